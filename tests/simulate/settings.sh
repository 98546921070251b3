# TeraPipe's settings: where the paper sliced tokens and where it did not, and speed-ups
# within 20 % of the measured ones where those are known exactly.
passed=0 failed=0
step() { "$TERACUBE" simulate "examples/terapipe/gpt3-$1.tcube" --turns-only --blocking --json \
             ${2:+--set "plan.slices=$2"} > "$WORK/json" &&
    sed -n 's/.*"step_s": \([^,]*\).*/\1/p' "$WORK/json" | head -1; }
count() { sed -n 's/.*"slices": \[\([^]]*\)\].*/\1/p' "$WORK/json" | tr ',' '\n' | grep -c .; }
while read -r name faster least most; do
    without=$(step "$name" 'uniform(1)') && with=$(step "$name") && k=$(count) || exit 1
    if awk -v a="$without" -v b="$with" -v f="$faster" -v k="$k" -v lo="$least" -v hi="$most" \
        'BEGIN { r = a / b / f; exit !(r > 0.8 && r < 1.2 && k >= lo && k <= hi) }'
    then passed=$((passed + 1)); else
        failed=$((failed + 1)); echo "FAIL $name: $without s, $with s with $k slices"; fi
done <<'END'
1b-1     1.21  2  8
1b-2     1.00  1  1
1b-3     1.00  1  1
13b-5    1.40  2  6
44b-6    1.88  8 40
44b-8    2.40  3 12
175b-9   6.75 12 30
175b-10  5.02 10 24
13b-4096 2.77  4 16
13b-6144 4.97  6 24
13b-8192 7.83  8 32
END
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
