#!/bin/sh
# The tests of templates/cuda under the emulator: tests/cudasim/kernels/run.sh [MODE...], all
# three builds by default. Ends with "N passed, N failed, N skipped".
here=$(cd "$(dirname "$0")" && pwd) top=$here/../../..
bin=$top/build/cudasim/kernels
mkdir -p "$bin"
passed=0 failed=0
command -v g++ > /dev/null || { echo "no g++"; exit 77; }

[ $# -gt 0 ] || set -- plain asan check
cc -O2 -c -o "$bin/random.o" "$top/runtime/random.c" || exit 4
for test in "$here"/*.cu; do
    name=$(basename "$test" .cu)
    for mode; do
        case $name.$mode in traffic.plain | traffic.asan) continue ;; esac  # nobody counts
        prog=$bin/$name.$mode
        if [ -n "$(find "$here" "$here/../" "$top/templates/cuda" -maxdepth 2 -type f \
            -newer "$prog" 2>&1 | head -n 1)" ] &&
            ! "$here/../simcc" "$mode" "$prog" "$test" -I"$top/runtime" "$bin/random.o" \
            > "$bin/out" 2>&1; then
            failed=$((failed + 1)); echo "FAIL $name, $mode: does not compile"
            head -n 20 "$bin/out"
        elif ! timeout 300 "$prog" > "$bin/out" 2>&1; then
            failed=$((failed + 1)); echo "FAIL $name, $mode"; head -n 20 "$bin/out"
        else
            passed=$((passed + 1))
        fi
    done
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
