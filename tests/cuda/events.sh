# The waits of the CUDA program between its streams, one after the other left out: the check build
# of the emulator must miss each of them (a wait that nobody misses is one too many, or a race
# that nobody sees). The program as it stands must run without a report.
#   ALL=1    every wait, not one in twenty
passed=0 failed=0
[ -n "$WORK" ] || WORK=$(mktemp -d)
command -v g++ > /dev/null || { echo "0 passed, 0 failed, 1 skipped"; exit 0; }
dir=$WORK/events
export CUDASIM_SEED=1

fails() { failed=$((failed + 1)); echo "FAIL $1"; }

waits() { # NAME SETTING...
    name=$1; shift
    rm -rf "$dir"; mkdir -p "$dir"
    args=
    for s; do args="$args --set $s"; done
    # shellcheck disable=SC2086
    "$TERACUBE" emit examples/tiny.tcube --set model.layers=1 --set model.hidden=24 \
        --set model.context=24 --set train.precision=fp64 --set train.batch=4 \
        --set train.data=/usr/share/common-licenses/GPL-3 --set train.sequence=24 \
        $args --target cuda -o "$dir" -q || { fails "$name: emit"; return; }
    awk '{ print } /^#include "teracube.cuh"/ {
        print "#define follow(c, s, k) ((unsigned)__LINE__ == left_out ? (void)0 : follow(c, s, k))"
    }' "$dir/program.cu" | awk '/^#define follow/ {
        print "static const unsigned left_out = getenv(\"LEFT_OUT\") ? atoi(getenv(\"LEFT_OUT\")) : 0;"
    } { print }' > "$dir/waits.cu"
    (cd "$dir" && ld -r -b binary -z noexecstack -o tables.o program.tables) || exit 4
    tests/cudasim/simcc check "$dir/waits" "$dir/waits.cu" -Iruntime "$dir/tables.o" \
        build/libteracube_rt.a > "$WORK/err" 2>&1 ||
        { fails "$name: does not compile"; head -20 "$WORK/err"; return; }
    if "$dir/waits" --steps 2 -q > "$WORK/err" 2>&1; then passed=$((passed + 1))
    else fails "$name: as it stands"; head -20 "$WORK/err"; return; fi
    lines=$(grep -n '^ *follow(c,' "$dir/waits.cu" | cut -d: -f1 |
        awk -v all="$ALL" 'all != "" || NR % 20 == 1')
    [ -n "$lines" ] || fails "$name: no waits at all"
    for l in $lines; do
        if LEFT_OUT=$l "$dir/waits" --steps 2 -q > "$WORK/err" 2>&1
        then fails "$name: nobody misses line $l: $(sed -n "${l}p" "$dir/waits.cu")"
        elif grep -q '^cudasim:' "$WORK/err"; then passed=$((passed + 1))
        else fails "$name: line $l: no report"; head "$WORK/err"; fi
    done
}

waits cube plan.cube=[2,2,2]
waits zero plan.data=2 plan.zero=2
waits replicas model.hidden=128 plan.data=2 plan.zero=1
waits stages model.layers=2 plan.pipeline=2 plan.microbatch=2 "plan.slices=[12,12]"
echo "$passed passed, $failed failed, 0 skipped"
