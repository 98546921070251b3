# The model over published rows: within its gates, and the committed summary is fresh.
predict=$(dirname "$TERACUBE")/predict/predict
rows=${PUBLISHED:-../shared/published}
[ -x "$predict" ] || { echo "no $predict: make check builds it"; exit 77; }
[ -d "$rows" ] || { echo "no folder $rows with published rows"; exit 77; }
runs=tests/predict/runs
passed=0 failed=0
ok() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAIL $*"; }
"$predict" "$rows" "$runs" > "$WORK/table" || exit 1
# gate SET PER-CENT: mean absolute error of rows that no constant was fitted on
gate() {
    error=$(sed -n "s/^$1  *[0-9][0-9]* *\([0-9.]*\)%.*/\1/p" "$WORK/table")
    [ -n "$error" ] || { echo "$1: no rows here"; return; }
    if awk "BEGIN { exit !($error <= $2) }"; then ok; else fail "$1: $error % > $2 %"; fi
}
gate 'narayanan_sc21 A100' 7
gate 'korthikanti_2205_05198 A100' 7
gate 'vtrain_ground_truth_multi A100' 12
gate 'vtrain_ground_truth_single A100' 9
gate 'llm_foundry_mpt A100' 12
gate 'terapipe_icml21 V100' 25
gate 'alpa_osdi22 V100, ablation' 20
# single runs, all of them too low; bounds that tell of a change, not of what is good enough
gate 'bloom_176b A100' 10
gate 'gpt_neox_20b A100' 14
gate 'mt_nlg_530b A100' 20
"$predict" "$rows" "$runs" --sweeps > "$WORK/sweeps"
if [ "$(grep -c '^vtrain_ground_truth_multi A100.* 0\.9[0-9]   *[0-9.]*%  ' "$WORK/sweeps")" = 1 ] &&
   tail -1 "$WORK/sweeps" | grep -q '^[0-9]* sweeps: rank below 0.9 in '; then ok
else fail "sweeps: $(grep '^vtrain_ground_truth_multi' "$WORK/sweeps")"; fi
# the same rows planned as a user would; what the page says of the program that was run
said() {
    error=$(sed -n "s/^$1  *[0-9]* *[0-9.]* *[0-9.]*, *[0-9.]* *[0-9]* *\([0-9.]*\)%.*/\1/p" \
        "$WORK/table")
    [ -n "$error" ] || { echo "$1: no rows here"; return; }
    if awk "BEGIN { exit !($error <= $2) }"; then ok; else fail "$1, as planned: $error % > $2 %"; fi
}
said 'narayanan_sc21 A100' 7
said 'korthikanti_2205_05198 A100' 7
said 'vtrain_ground_truth_multi A100' 12
said 'vtrain_ground_truth_single A100' 9
said 'llm_foundry_mpt A100' 12
"$predict" "$rows" "$runs" --table > "$WORK/table.c"
if cmp -s "$WORK/table.c" compiler/residual_table.c; then ok
else fail "compiler/residual_table.c is stale: make predict-table"; fi
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
