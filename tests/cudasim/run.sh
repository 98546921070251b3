#!/bin/sh
# The emulator's own tests. test_*.cu must be right; bugs/*.cu hold a planted bug each, under
# #ifdef BUG, and are correct without it. Comments at their head say who must see the bug:
#   // catch: BUILD "PATTERN"       PATTERN: in what it prints; without: a wrong result
# Without BUG no build, order or seed may complain. All programs of a build are compiled as
# one. ALL=1: every order with every seed. Ends with "N passed, N failed, N skipped".
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../.." && pwd)
export CUDASIM_BUILD=$top/build/cudasim
bin=$CUDASIM_BUILD/bin
mkdir -p "$bin"
command -v g++ > /dev/null || { echo "no g++"; exit 77; }
passed=0 failed=0 skipped=0
pass() { passed=$((passed + 1)); }
fail() { # NAME REASON [OUTPUT]
    failed=$((failed + 1)); echo "FAIL $1: $2"
    [ -s "$3" ] && head -n 20 "$3"
}
skip() { skipped=$((skipped + 1)); echo "SKIP $1: $2"; }

# ---- programs -----------------------------------------------------------------------

# FILE... as one program that runs the part named by its first argument.
joined() {
    for h in test.h prims.cuh cublasLt.h cudasim.h nccl.h atomic; do
        case $h in *.*) echo "#include \"$h\"" ;; *) echo "#include <$h>" ;; esac
    done
    echo '#define main run'
    for file; do
        echo "namespace part_$(basename "$file" .cu) {"
        echo "#line 1 \"${file#"$here"/}\""
        cat "$file"
        echo '}'
    done
    echo '#undef main'
    echo 'int main(int, char **argv) {'
    for file; do
        name=$(basename "$file" .cu)
        echo "    if (!strcmp(argv[1], \"$name\")) return part_$name::run();"
    done
    echo '    return 99; }'
}

# Again only when something is newer.
build() { # MODE good|bug
    prog=$bin/$2.$1
    [ -e "$prog" ] && [ -z "$(find "$here"/* "$here/bugs" "$here/include" -maxdepth 1 -type f \
        ! -name '*.md' -newer "$prog" | head -n 1)" ] &&
        [ "$prog" -nt "$top/templates/cuda/prims.cuh" ] && return
    "$here/simcc" "$1" "$prog.new" -O1 $([ "$2" = bug ] && echo -DBUG) "$bin/$2.cu" \
        -I"$here/bugs" -I"$here" > "$prog.log" 2>&1 && mv "$prog.new" "$prog"
}

tests= bugs=
for f in "$here"/test_*.cu; do [ "${f##*/}" = test_ranks.cu ] || tests="$tests $f"; done
for f in "$here"/bugs/*.cu; do bugs="$bugs $f"; done
joined $tests $bugs > "$bin/good.cu"
joined $bugs > "$bin/bug.cu"
{ build plain good; build plain bug; build asan bug; } & builder=$!
build check good; build check bug; build asan good
wait $builder

for mode in plain asan check; do
    for what in good bug; do
        if [ -e "$bin/$what.$mode" ] && [ ! -e "$bin/$what.$mode.new" ]; then pass
        else fail "$what.$mode" "does not build" "$bin/$what.$mode.log"; fi
    done
done

# ---- runs ------------------------------------------------------------------------------

once() { # PROGRAM PART ORDER SEED
    CUDASIM_ORDER=$3 CUDASIM_SEED=$4 CUDASIM_TIMEOUT=20 timeout 60 "$bin/$1" "$2" \
        > "$bin/out" 2>&1
}

combinations() {
    i=0
    for seed in 0 1 2 3 4 5 6 7 8; do
        for order in asc desc random; do
            i=$((i + 1))
            # Every seed once, every order three times; all pairs with ALL=1.
            [ -n "$ALL" ] || [ $(((i - 1) % 3)) = $((seed % 3)) ] && echo "$order $seed"
        done
    done
}

right() { # MODE PART
    for pair in $(combinations | tr ' ' ,); do
        once "good.$1" "$2" "${pair%,*}" "${pair#*,}" && [ ! -s "$bin/out" ] && continue
        fail "$2" "$1, order and seed $pair: not right, or a report without a bug" "$bin/out"
        return
    done
    pass
}

caught() { # PART MODE PATTERN
    for pair in $(combinations | tr ' ' ,); do
        once "bug.$2" "$1" "${pair%,*}" "${pair#*,}"
        status=$?
        [ $status != 0 ] && [ $status != 124 ] && tr '\n' ' ' < "$bin/out" |
            grep -qE -- "$3" && { pass; return; }
        [ "$2" = check ] && break               # one order must be enough
    done
    fail "bugs/$1" "$2 does not see it (status $status)" "$bin/out"
}

for file in $tests $bugs; do
    for mode in plain asan check; do right $mode "$(basename "$file" .cu)"; done
done
for file in $bugs; do
    sed -n 's,^// catch: ,,p' "$file" > "$bin/expected"
    while read -r mode pattern; do
        pattern=${pattern#\"}
        caught "$(basename "$file" .cu)" "$mode" "${pattern%\"}"
    done < "$bin/expected"
done

# ---- one process per GPU; wrong declarations; nvcc ----------------------------------------

if "$here/simcc" check "$bin/ranks" --ranks "$here/test_ranks.cu" > "$bin/out" 2>&1 &&
    CUDASIM_RANKS=5 timeout 60 "$bin/ranks" > "$bin/out" 2>&1; then pass
else fail test_ranks "status $?" "$bin/out"; fi

echo '__global__ void k() { __shared__ int a[2], b[2]; }' > "$bin/two.cu"
"$here/simcc" plain "$bin/two" "$bin/two.cu" > "$bin/out" 2>&1
if grep -q 'two.cu:1: cudasim: cannot read' "$bin/out"; then pass
else fail rewrite "two variables in one __shared__ declaration" "$bin/out"; fi

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
if [ -z "$nvcc" ]; then skip prims.cuh "no nvcc"
elif [ -e "$bin/prims.o" ] && [ "$bin/prims.o" -nt "$top/templates/cuda/prims.cuh" ] &&
    [ "$bin/prims.o" -nt "$here/test_kernels.cu" ]; then pass
elif "$nvcc" -std=c++17 -gencode 'arch=compute_80,code=[sm_80,sm_90,sm_100]' \
    -I"$top/templates/cuda" -c -o "$bin/prims.o" "$here/test_kernels.cu" > "$bin/out" 2>&1; then
    pass
else fail prims.cuh "nvcc" "$bin/out"; fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
