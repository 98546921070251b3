# Plans on paper: `simulate --json --schedule` and `--trace` are valid JSON, parts add up,
# and the printed plan block gives the same plan again.
python3 -c 'import json' 2>/dev/null || { echo "no python3"; exit 77; }
f=examples/terapipe/gpt3-13b-5.tcube
"$TERACUBE" simulate $f --json --schedule --trace "$WORK/trace" > "$WORK/json" || exit 1
python3 - "$WORK/json" "$WORK/trace" <<'PY'
import json, sys
o = json.load(open(sys.argv[1]))
p = o["predicted"]
assert abs(sum(p["breakdown_s"].values()) - p["step_s"]) < 1e-9 * p["step_s"]
assert 0 < p["mfu"] < 1 and 0 < p["bubble"] < 1
l = o["layout"]
assert sum(l["slices"]) == 2048 and len(l["turns"]) == 40 and sum(l["turns"]) == 40
k, m = len(l["slices"]), 32 // l["microbatch"]
assert [s["stage"] for s in o["schedule"]] == list(range(40))
for s in o["schedule"]:
    kinds = [x["kind"] for x in s["steps"]]
    assert kinds.count("forward") == kinds.count("backward") == k * m
    assert kinds.count("send_activation") == (k * m if s["stage"] < 39 else 0)
    assert kinds[-2:] == ["sync", "optimizer"]
for s in o["memory"]["stages"]:
    parts = sum(v for n, v in s.items() if n not in ("stage", "peak", "free"))
    assert abs(parts - s["peak"]) < 16, s
t = json.load(open(sys.argv[2]))["traceEvents"]
names = {(e["pid"], e["tid"]): e["args"]["name"] for e in t if e["name"] == "thread_name"}
assert len(names) == 3 * 40
end = max(e["ts"] + e["dur"] for e in t if e["ph"] == "X")
assert abs(end * 1e-6 - p["simulated_s"]) < 1e-6, (end, p["simulated_s"])
assert abs(p["step_s"] / p["simulated_s"] - 1) < 0.05, p       # the closed form
PY
[ $? = 0 ] || exit 1
for opt in "" "--turns-only" "--turns-only --blocking"; do
    "$TERACUBE" simulate $f $opt > "$WORK/a" || exit 1
    sed -n '/^plan {/,$p' "$WORK/a" > "$WORK/plan.tcube"
    sed '/^plan {/,$d; s|include "|include "'"$PWD"'/examples/terapipe/|' $f > "$WORK/rest.tcube"
    "$TERACUBE" simulate "$WORK/rest.tcube" "$WORK/plan.tcube" $opt > "$WORK/b" || exit 1
    diff "$WORK/a" "$WORK/b" || { echo "pasting the block changes the plan ($opt)"; exit 1; }
done
