# What a later version lays out is checked now, and refused by run and verify with one clear
# line and a hint that works.
passed=0 failed=0
file=tests/plan/_paste.tcube
while IFS='|' read -r args hint; do
    [ -n "$args" ] || continue
    # shellcheck disable=SC2086
    if ! "$TERACUBE" check $file $args > "$WORK/check" 2>&1; then
        failed=$((failed + 1)); echo "FAIL $args: check refuses it"; head -3 "$WORK/check"; continue
    fi
    for command in run verify; do
        # shellcheck disable=SC2086
        "$TERACUBE" $command $file $args > "$WORK/out" 2>&1
        status=$?
        if [ $status = 1 ] || [ $status = 2 ]; then :; else
            failed=$((failed + 1)); echo "FAIL $command $args: status $status"; continue
        fi
        if [ "$(grep -c 'error:' "$WORK/out")" != 1 ] || ! grep -q '\[unsupported\]' "$WORK/out"
        then failed=$((failed + 1)); echo "FAIL $command $args:"; cat "$WORK/out"; continue; fi
        [ -z "$(echo $hint)" ] || grep -q "^hint: write$hint" "$WORK/out" ||
            { failed=$((failed + 1)); echo "FAIL $command $args: hint"; cat "$WORK/out"; continue; }
        passed=$((passed + 1))
    done
done <<'W'
--set train.precision=fp16                 | precision = bf16
--set train.precision=fp8                  | precision = bf16
--set train.reduce=bf16                    | reduce = fp32
W
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
