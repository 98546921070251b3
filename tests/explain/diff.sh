# teracube diff: two files, groups of files, two plans of one file; figures are those of
# `plan`; wrong command lines.
python3 -c 'import json' 2>/dev/null || { echo "no python3"; exit 77; }
. tests/input/_lib.sh
C=$top/examples/cube
T=$top/examples/terapipe
works "$t" diff "$C/one.tcube" "$C/one.tcube"
is "a plan differs from itself" "$(grep -c 'in both\| 0 figures changed' out)" = 2
works "$t" diff "$C/one.tcube" "$C/three.tcube"
is "no cube in the difference" "$(grep -c 'cube  *\[1, 8, 1\]  \[2, 2, 2\]' out)" = 1
is "no all-gather over z" "$(grep -c 'all_gather over z  *-' out)" = 1
works "$t" diff --json "$C/one.tcube" "$C/three.tcube" && mv out diff.json
works "$t" plan --json "$C/one.tcube" && mv out one.json
works "$t" plan --json "$C/three.tcube" && mv out three.json
python3 - > facts 2>&1 <<'PY'
import json
d = json.load(open("diff.json"))
for side in "a", "b":
    p = json.load(open("one.json" if side == "a" else "three.json"))
    sum_s = sum(v[side] or 0 for v in d["breakdown_s"].values())
    assert abs(sum_s - d["step_s"][side]) < 1e-9 * sum_s, side
    bytes_ = sum(v[side] or 0 for k, v in d["memory"].items() if k != "peak")
    assert bytes_ == d["memory"]["peak"][side] == p["memory"]["stages"][0]["peak"], side
    want = {}
    for c in p["collectives"]:
        k = c["kind"], "".join(c["axes"])
        n = want.get(k, [0, 0])
        want[k] = [n[0] + c["count_per_step"], n[1] + c["bytes"] * c["count_per_step"]]
    got = {(c["kind"], c["axes"].replace(" ", "")): c[side] for c in d["collectives"] if c[side]}
    assert set(got) == set(want), (got, want)
    for k, c in got.items():
        assert c["calls"] == want[k][0] and abs(c["bytes"] - want[k][1]) < 1, (k, c, want[k])
        assert c["seconds"] > 0
assert d["layout"]["cube"] == {"a": "[1, 8, 1]", "b": "[2, 2, 2]"} and d["compared"] == "laid out"
print("right")
PY
is "$(tail -1 facts)" "$(tail -1 facts)" = right
# files that belong to both sides
sed '/^plan/,$d' "$C/two.tcube" | sed "s|include \"|include \"$C/|" > common.tcube
for l in one two; do sed -n '/^plan/,$p' "$C/$l.tcube" > $l.tcube; done
works "$t" diff common.tcube one.tcube two.tcube && mv out last
works "$t" diff common.tcube -- one.tcube -- two.tcube && mv out groups
is "COMMON A B is not COMMON -- A -- B" "$(cmp last groups)" = ""
works "$t" diff common.tcube one.tcube -- common.tcube two.tcube
sed 1d last > a; sed 1d out > b     # the first line names the files
is "A -- B is not COMMON A B" "$(sed 1d a)" = "$(sed 1d b)"
{ cat common.tcube; sed 's/^plan/plan p/' one.tcube; sed 's/^plan/plan q/' two.tcube; } > both.tcube
works "$t" diff both.tcube
is "plans of one file" "$(grep -c 'plan [pq]:' out)" = 2
works "$t" diff both.tcube --plan q,p
is "plans as named" "$(grep -c '^a .*plan q:\|^b .*plan p:' out)" = 2
# what is only priced; stages against stages
works "$t" diff "$C/one.tcube" "$C/three.tcube" --set train.precision=fp8 --json
is "on paper" "$(grep -c '"compared": "on paper"' out)" = 1
works "$t" diff "$T/gpt3-13b-5.tcube" "$T/gpt3-13b-5.tcube" --set plan.schedule=gpipe
works "$t" diff "$T/gpt3-13b-4.tcube" "$T/gpt3-13b-5.tcube"
is "sends" "$(grep -c 'send over stage' out)" -ge 1

fails 2 'diff needs a model file' "$t" diff
fails 2 'two plans' "$t" diff "$C/one.tcube"
fails 2 'a file on each side' "$t" diff "$C/one.tcube" --
fails 2 'behind common files' "$t" diff "$C/one.tcube" -- --set plan.data=2

# a setting between `--` is of its side; before the first file, and without `--`, of both
works "$t" diff common.tcube one.tcube -- common.tcube one.tcube --set train.precision=bf16
is "b alone has the setting" "$(sed -n 2p out | grep -c 'one.tcube --set train.precision=bf16: ')" = 1
is "and is faster" "$(grep -c 'b is faster' out)" = 1
cp out right
works "$t" diff common.tcube one.tcube -- --set train.precision=fp32 -- --set train.precision=bf16
is "sides of settings alone" "$(sed 1,2d out)" = "$(sed 1,2d right)"
works "$t" diff --set train.precision=bf16 common.tcube one.tcube -- common.tcube one.tcube
is "before the files it is of both" "$(grep -c ' in both' out)" = 1

fails 2 'at most two' "$t" diff a -- b -- c -- d
fails 2 'two plans, not --plan p,q,r' "$t" diff both.tcube --plan p,q,r
fails 2 'unknown-plan|`nobody`' "$t" diff both.tcube --plan p,nobody
fails 1 'absent.tcube' "$t" diff "$C/one.tcube" absent.tcube
fails 1 'heads-divide|this is a, one.tcube' "$t" diff common.tcube one.tcube two.tcube --set plan.cube=[1,7,1] \
    --set cluster.nodes=7 --set plan.data=4
summary
