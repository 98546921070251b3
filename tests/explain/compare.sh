# needs: llvm
# teracube compare: a run's log and trace against the prediction. The simulator's own trace is
# what it predicts; terms add up to the step; runs of other plans and broken files are refused.
python3 -c 'import json' 2>/dev/null || { echo "no python3"; exit 77; }
. tests/input/_lib.sh
T=$top/examples/terapipe
works "$t" simulate "$T/gpt3-13b-5.tcube" --trace sim.json
works "$t" compare "$T/gpt3-13b-5.tcube" sim.json
is "the simulation is not what it predicts" "$(grep -c 'measured: the same' out)" = 1
is "stages differ" "$(grep -cE '^  (0|1-38|39) ' out) $(grep -cE '^  [0-9-]+ .*[+-][0-9.]+ [mun]?s$' out)" = "3 0"
# one stage slower in the trace: found
python3 - <<'PY'
import json
t = json.load(open("sim.json"))
for e in t["traceEvents"]:
    if e["ph"] == "X" and e["pid"] == 7 and e["cat"] == "backward":
        e["dur"] *= 1.5
json.dump(t, open("slow.json", "w"))
PY
works "$t" compare "$T/gpt3-13b-5.tcube" slow.json
is "the slow stage is not seen" "$(grep -cE '^  7 .*\+[0-9.]+ ms$' out)" = 1

for plan in cube=[1,2,1] cube=[2,1,1],pipeline=2 data=2,recompute=full; do
    sets=$(echo "--set plan.$plan" | sed 's/,\([a-z]\)/ --set plan.\1/g')
    works "$t" run "$M" $D $sets --steps 5 -q --log log --trace trace
    works "$t" compare "$M" $D $sets log trace --json
    python3 - > facts 2>&1 <<'PY'
import json
c = json.load(open("out"))
for key in "terms", "passes":
    for side in "predicted_s", "measured_s":
        total = sum(t[side] for t in c[key])
        assert abs(total - c[side]) < 1e-6 + 1e-6 * c[side], (key, side, total, c[side])
d = [abs(t["predicted_s"] - t["measured_s"]) for t in c["terms"]]
assert d == sorted(d, reverse=True)
names = [t["name"] for t in c["terms"] if t["measured_s"] > 0]
assert "products" in names and "attention" in names and "optimizer" in names
# the middle step of the trace is the median of steps 2 .. 4, begin to begin
begin = {}
for e in json.load(open("trace")):
    s = e["args"]["step"]
    begin[s] = min(begin.get(s, 1e30), e["ts"])
walls = sorted(begin[s + 1] - begin[s] for s in (2, 3, 4))
assert abs(walls[1] * 1e-6 - c["measured_s"]) < 1e-8, (walls, c["measured_s"])
# products: those of the compared step, by name, on average over ranks
step = [s for s in (2, 3, 4) if begin[s + 1] - begin[s] == walls[1]][0]
ev = [e for e in json.load(open("trace")) if e["args"]["step"] == step and e["pid"] == c["stage"]]
ranks = len({e["tid"] for e in ev})
if "full" not in json.dumps(c["plan"]) and "data" not in c["plan"].split(",")[0].replace("data 1", ""):
    products = sum(e["dur"] for e in ev if e["name"].split(": ")[-1] in ("X W", "XT dY", "dY WT", "X WT"))
    got = [t["measured_s"] for t in c["terms"] if t["name"] == "products"][0]
    assert got >= products * 1e-6 / ranks * (1 - 1e-6), (got, products * 1e-6 / ranks)
print("right")
PY
    is "$plan: $(tail -1 facts)" "$(tail -1 facts)" = right
    works "$t" compare "$M" $D $sets log
done
is "no word for terms" "$(grep -c 'terms need a trace' out)" = 1
is "recompute" "$("$t" compare "$M" $D $sets trace | grep -c '^  recompute .*[mu]s .*[mu]s')" = 1
bytes=$(wc -c < trace)
head -c $((bytes / 2)) trace > killed   # a run that was killed in its third step
works "$t" compare "$M" $D $sets killed
is "steps of a killed run" "$(grep -c 'killed: 2 steps' out)" = 1
head -c $((bytes / 10)) trace > killed
fails 1 'run-valid|within its first step' "$t" compare "$M" $D $sets killed

works "$t" compare "$M" $D $sets trace
is "what the passes do not share is said" "$(grep -c 'run in forward, and are predicted in backward' out)" = 1
fails 2 'compare needs the log or the trace' "$t" compare "$M"
fails 2 "needs the model's files" "$t" compare log
fails 2 'both traces' "$t" compare "$M" $D $sets trace trace
fails 1 'run-matches|another plan|data 2' "$t" compare "$M" $D log
fails 1 'run-matches|on 2 ranks' "$t" compare "$M" $D trace
fails 1 'run-matches|tokens' "$t" compare "$M" $D $sets --set train.batch=8 log
sed 's/"model": "[a-z0-9_]*"/"model": "other"/' log > other
fails 1 'run-matches|model other' "$t" compare "$M" $D $sets other
sed 's/"model_hash": "[^"]*/"model_hash": "1/' log > other
fails 1 'run-matches|a model with other parameters' "$t" compare "$M" $D $sets other
sed '3s/"step_s": [^,}]*/"step_s": 0/' log > slow
fails 1 'slow:3:1: error|a step of 0 s' "$t" compare "$M" $D $sets slow
fails 2 'could not read nowhere' "$t" compare "$M" nowhere
sed 's/X W"/X Y"/' trace > renamed
fails 1 'run-matches|X Y' "$t" compare "$M" $D $sets renamed
echo '{"a": }' > broken;    fails 1 'run-valid|a number was expected' "$t" compare "$M" $D broken
echo '[{"a" 1}]' > broken;  fails 1 'run-valid|a colon is missing' "$t" compare "$M" $D broken
echo '[]' > broken;         fails 1 'run-valid|no events' "$t" compare "$M" $D broken
echo '{}' > broken;         fails 1 'run-valid|no steps' "$t" compare "$M" $D broken
printf '{"step": 1, "step_s": "x"' > broken; fails 1 'run-valid' "$t" compare "$M" $D broken
head -c 300000 /dev/zero | tr '\0' '[' > broken; fails 1 'run-valid' "$t" compare "$M" $D broken
printf '{"x\\u00' > broken; fails 1 'run-valid' "$t" compare "$M" $D broken
summary
