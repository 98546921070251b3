# What is read out of rows, on rows that were made up.
predict=$(dirname "$TERACUBE")/predict/predict
[ -x "$predict" ] || { echo "no $predict: make check builds it"; exit 77; }
passed=0 failed=0
is() { if [ "$2" = "$3" ]; then passed=$((passed + 1)); else
    failed=$((failed + 1)); echo "FAIL $1: $2, not $3"; fi; }
"$predict" tests/predict/made --rows made > "$WORK/rows"
"$predict" tests/predict/made --left-out > "$WORK/out"
is "one second, said in three units" "$(awk '$(NF-2) == 1' "$WORK/rows" | wc -l)" 3
is "and one prediction" "$(awk '$(NF-2) == 1 { print $(NF-1) }' "$WORK/rows" | sort -u | wc -l)" 1
is "left out" "$(wc -l < "$WORK/out")" 6
is "repeated" "$(sed -n 's/^repeated.*same run //p' "$WORK/out" | tr '\n' ' ')" "as line 3 as line 5 "
grep -v '^repeated' "$WORK/out" > "$WORK/made"
is "reasons" "$(cut -d: -f3- "$WORK/made" | tr '\n' '|')" " the layout is not stated| no \
cluster of this kind in examples/clusters| tp pp dp cp do not multiply to the GPUs| no time and \
no peak: loss|"
"$predict" tests/predict/made > "$WORK/table"
is "by reason" "$(sed -n 's/.*repeated.csv: //p' "$WORK/table")" \
    "the same run as line 3, ..: from lines 4.. 6.."
is "out of memory is no fit" "$(grep -c ' 0/1$' "$WORK/table")" 1
# one layout three times, planned; and the layout as its program runs it, which is what is priced
priced=$(awk '$(NF-2) == 1 { print $(NF-1); exit }' "$WORK/rows")
"$predict" tests/predict/made --own made > "$WORK/own"
is "planned" "$(grep -c "line .: 1 s, own 0\.[0-9]*, published $priced\$" "$WORK/own")" 3
is "in a table" "$(sed -n 's/^vtrain_ground_truth_made A100  *//p' "$WORK/own" | cut -d' ' -f1)" 3
"$predict" "$WORK/none" > /dev/null 2> "$WORK/err"
is "no folder" "$? $(grep -c 'cannot read' "$WORK/err")" "2 1"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
