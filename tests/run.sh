#!/bin/sh
# The test runner: tests/run.sh [FOLDER...]; `make check T=folder` calls it.
# tests/README.md says what each kind of test looks like. Prints failures, one
# line per folder, and at the end "N passed, N failed, N skipped" alone on a line.
#   SAN=1     the build in build/san        ALL=1    the long lists too
#   GOLDEN=1  rewrites .err and .out instead of comparing
cd "$(dirname "$0")/.." || exit 4
B=build; [ "$SAN" = 1 ] && B=build/san
TERACUBE=$PWD/$B/teracube
[ "$SAN" = 1 ] && export ASAN_OPTIONS="detect_leaks=0:$ASAN_OPTIONS"
export TERACUBE SAN ALL TERACUBE_TARGET=cpu     # also where there is a GPU
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && trap 'exit 130' INT TERM
export WORK="$work/test"
passed=0 failed=0 skipped=0 failures=

pass() { passed=$((passed + 1)); }
fail() { # NAME REASON
    failed=$((failed + 1)); failures="$failures  $1
"
    echo "FAIL $1: $2"
}
skip() { skipped=$((skipped + 1)); echo "SKIP $1: $2"; }

# Value of the directive `# KEY: value` in the head comment; one line each.
directive() { sed -n "/^#/!q; s/^# $1: *//p" "$2"; }

# Skips a test when one of the things it needs is not here.
lacks() { # NAME NEED...
    lacking=$1; shift
    for need; do case $need in
        llvm) command -v llvm-config-19 > /dev/null ||
                  { skip "$lacking" "no LLVM 19 (llvm-19-dev)"; return 0; } ;;
        blas) [ -n "$(find /usr/lib /usr/local/lib -name 'libopenblas.so.0' 2> /dev/null)" ] ||
                  { skip "$lacking" "no BLAS (libopenblas0-pthread)"; return 0; } ;;
    esac; done
    return 1
}

# Expected text beside the input: compares, or rewrites with GOLDEN=1.
golden() { # NAME GOT WANTED
    if [ -n "$GOLDEN" ]; then cp "$2" "$3"; return 0; fi
    diff -u "$3" "$2" > "$work/diff" && return 0
    fail "$1" "differs from ${3##*/}"; head -40 "$work/diff"; return 1
}

run_file() { # FOLDER FILE
    name=$1/$2 base=tests/$1/${2%.tcube}
    lacks "$name" $(directive needs "tests/$name") && return
    cmd=$(directive run "tests/$name"); errors=$(directive error "tests/$name")
    want=$(directive status "tests/$name")
    [ -z "$want" ] && want=0 && { [ -s "$base.err" ] || [ -n "$errors" ]; } && want=1
    # A golden made for the first time decides its own status.
    [ -n "$GOLDEN" ] && [ -e "$base.err" ] && [ ! -s "$base.err" ] && want=any
    (cd "tests/$1" && eval "set -- ${cmd:-check}" &&
        first=$1 && shift &&
        eval "set -- \"\$@\" $(directive args "$FILE")" &&
        exec timeout 300 "$TERACUBE" "$first" "$FILE" "$@" < /dev/null)  \
        > "$work/out" 2> "$work/err"
    got=$?
    if [ "$want" != any ] && [ "$got" != "$want" ]; then
        fail "$name" "exit status $got, expected $want"; head -20 "$work/err"; return
    fi
    if [ -e "$base.err" ]; then golden "$name" "$work/err" "$base.err" || return; fi
    if [ -e "$base.out" ]; then golden "$name" "$work/out" "$base.out" || return; fi
    for e in $errors; do
        grep -qF "[$e]" "$work/err" ||
            { fail "$name" "no message named $e"; head -20 "$work/err"; return; }
    done
    cat "$work/out" "$work/err" > "$work/both"
    directive count "tests/$name" > "$work/counts"
    while read -r line; do
        n=$(grep -cE -- "${line% *}" "$work/both")
        [ "$n" = "${line##* }" ] || { fail "$name" "$n lines match '${line% *}', expected \
${line##* }"; return; }
    done < "$work/counts"
    pass
}

# Adds the counts of a script that ends with a summary of its own.
run_script() { # FOLDER FILE
    name=$1/$2
    lacks "$name" $(directive needs "tests/$name") && return
    rm -rf "$WORK"; mkdir "$WORK"
    timeout "${ALL:+2}3600" sh "tests/$name" < /dev/null > "$work/out" 2>&1
    status=$? last=$(tail -n 1 "$work/out")
    case $last in
        *[0-9]" passed, "[0-9]*" failed"*)
            set -- $(echo "$last" | tr -cd '0-9 ')
            passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + ${3:-0}))
            grep -E '^(SKIP|note:)' "$work/out"
            if [ "$2" != 0 ]; then
                failures="$failures  $name ($2)
"
                grep -vE '^SKIP' "$work/out" | tail -n 60
            elif [ $status != 0 ]; then fail "$name" "exit status $status"; fi ;;
        *)  case $status in
                0)  pass ;;
                77) skip "$name" "$last" ;;
                *)  fail "$name" "exit status $status"; tail -n 40 "$work/out" ;;
            esac ;;
    esac
}

# Criterion programs, each test counted by its TAP line.
run_unit() {
    if [ ! -e /usr/include/criterion/criterion.h ] &&
        [ ! -e /usr/local/include/criterion/criterion.h ]; then
        skip unit "no Criterion (libcriterion-dev)"; return
    fi
    ${MAKE:-make} -s -k --no-print-directory SAN="${SAN:-0}" unit > "$work/make" 2>&1 ||
        cat "$work/make"
    for src in tests/unit/test_*.c; do
        [ -e "$src" ] || continue
        prog=$(basename "$src" .c)
        lacks "unit/$prog" $(sed -n '1,12s/^ \* needs: *//p' "$src") && continue
        if [ ! -x "$B/unit/$prog" ]; then fail "unit/$prog" "does not build"; continue; fi
        timeout 3600 "$B/unit/$prog" --tap < /dev/null > "$work/out" 2> "$work/err"
        status=$?
        n=$(grep -c '^ok' "$work/out"); s=$(grep -c '^ok.*# SKIP' "$work/out")
        f=$(grep -c '^not ok' "$work/out")
        passed=$((passed + n - s)); skipped=$((skipped + s)); failed=$((failed + f))
        grep '^ok.*# SKIP' "$work/out"
        if [ "$f" != 0 ]; then
            failures="$failures$(sed -n 's/^not ok - \([^ ]*\).*/  unit \1/p' "$work/out")
"
            sed -n '/^not ok/,/^ok/p' "$work/out" | grep -v '^ok'; tail -n 20 "$work/err"
        elif [ $status != 0 ]; then
            fail "unit/$prog" "exit status $status"; tail -n 20 "$work/err"
        fi
    done
}

if [ $# -gt 0 ]; then folders=$*; else
    folders=$(cd tests && ls -d */ | tr -d / | grep -vx bench)
fi
for folder in $folders; do
    [ -d "tests/$folder" ] || { echo "no folder tests/$folder"; exit 2; }
    p0=$passed f0=$failed s0=$skipped
    if [ "$folder" = unit ]; then run_unit; fi
    for file in $(cd "tests/$folder" && ls *.tcube *.sh 2>/dev/null | grep -v '^_'); do
        case $file in
            *.all.sh) [ -n "$ALL" ] && run_script "$folder" "$file" ;;
            *.sh)     run_script "$folder" "$file" ;;
            *.tcube)  FILE=$file; export FILE; run_file "$folder" "$file" ;;
        esac
    done
    n=$((passed + failed + skipped - p0 - f0 - s0))
    [ $n = 0 ] || printf '%-10s %d passed, %d failed, %d skipped\n' \
        "$folder" $((passed - p0)) $((failed - f0)) $((skipped - s0))
done

[ -z "$failures" ] || printf 'failed:\n%s' "$failures"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
