# The scripts for a machine with GPUs (tests/gpu), under the emulator: that they work, not what
# they measure.
command -v g++ > /dev/null || { echo "no g++"; exit 77; }
passed=0 failed=0
script() { # COMMAND...: FOUND in its table
    found=$1; shift
    if env DRY=1 OUT="$WORK/gpu" "$@" > "$WORK/out" 2>&1 &&
        grep -q "$found" "$WORK/gpu/table.txt"; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAIL $*"; tail -n 20 "$WORK/out"; fi
}
script 'gpt2 *teracube *[0-9]' sh tests/gpu/run.sh
script 'a killed rank: all end in' env ONE=pipeline sh tests/gpu/cluster.sh
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
