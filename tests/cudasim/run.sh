#!/bin/sh
# The emulator's own tests: programs that must be right in every build and order, planted
# bugs that must be caught by the build named for them, and their correct twins.
# Ends with "N passed, N failed, N skipped".
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
export CUDASIM_BUILD=$top/build/cudasim
bin=$CUDASIM_BUILD/bin
mkdir -p "$bin"
passed=0 failed=0 skipped=0
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAIL $1: $2"; [ -s "$bin/out" ] && head -n 20 "$bin/out"; }

command -v g++ > /dev/null || { echo "no g++"; exit 77; }

# Built again only when a source is newer than the program.
built() { # MODE PROGRAM SOURCE OPTIONS...
    mode=$1 prog=$2 src=$3; shift 3
    [ -e "$prog" ] && [ -z "$(find "$here" "$top/templates/cuda" \
        \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name simcc -o -name '*.awk' \
        -o -path "$src" \) -newer "$prog" | head -n 1)" ] && return
    "$here/simcc" "$mode" "$prog" "$@" "$src" > "$bin/out" 2>&1
}

for src in "$here"/test_*.cu; do
    name=$(basename "$src" .cu)
    for mode in plain asan; do
        if ! built $mode "$bin/$name.$mode" "$src"; then fail "$name" "$mode: does not build"; continue; fi
        for order in asc desc random; do
            if CUDASIM_ORDER=$order timeout 60 "$bin/$name.$mode" > "$bin/out" 2>&1; then pass
            else fail "$name" "$mode, order $order: exit status $?"; fi
        done
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
