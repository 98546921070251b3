# The plan page: links under each axis, and the chosen grid beside those with names.
python3 -c 'import json' 2>/dev/null || { echo "no python3"; exit 77; }
. tests/input/_lib.sh
T=$top/examples/terapipe/gpt3-13b-4.tcube
# p3.16xlarge: 8 devices and 1 port a node; stages 8 ranks apart, replicas 160
works "$t" simulate "$T"
is "stages cross nodes, 8 to a port" \
    "$(grep -c '^  stage *20 *8 .*20 nodes, 1 member of a group in each; 8 groups on 1 port of' out)" = 1
is "replicas" "$(grep -c '^  data *2 *160 .*2 nodes, 1 member of a group in each; 8 groups on' out)" = 1
is "y stays inside" "$(grep -c '^  y *8 *1 .*inside a node, ' out)" = 1
works "$t" plan "$top/examples/cube/three.tcube"
is "two nodes of four" "$(grep -c '^  x *2 *4 .*2 nodes, 1 member of a group in each; 4 groups' out)" = 1
works "$t" plan "$top/examples/cube/three.tcube" --set plan.ranks=[stage,data,z,y,x]
is "ranks in another order" "$(grep -cE '^  x *2 *1 .*inside a node|^  z *2 *4 .*2 nodes' out)" = 2
works "$t" plan "$top/examples/cube/three.tcube" --set plan.ranks=[stage,data,z,y,x] --json && mv out order.json
for cube in 1,8,1 8,1,1 2,2,2 1,2,4; do
    works "$t" plan "$top/examples/cube/three.tcube" --set plan.cube=[$cube] --json && mv out $cube.json
done
python3 - > facts 2>&1 <<'PY'
import json
plans = {c: json.load(open(c + ".json")) for c in ("1,8,1", "8,1,1", "2,2,2", "1,2,4")}
first = {g["grid"]: g for g in plans["2,2,2"]["grids"]}
assert first["Megatron"]["cube"] == [1, 8, 1] and first["FSDP"]["cube"] == [8, 1, 1]
assert first["chosen"] ["cube"] == first["symmetric cube"]["cube"] == [2, 2, 2]
assert first["2-D"]["cube"][0] == 1 and 1 not in first["2-D"]["cube"][1:]
best = first["the best"]["step_s"]
for c, p in plans.items():
    grids = {g["grid"]: g for g in p["grids"]}
    # the grid beside others, and the same grid chosen: one price
    for g in p["grids"]:
        cube = ",".join(map(str, g["cube"]))
        if cube in plans:
            own = [h for h in plans[cube]["grids"] if h["grid"] == "chosen"][0]
            assert abs(own["step_s"] - g["step_s"]) < 1e-9 * g["step_s"], (c, g, own)
        assert g["rejected"] is None and g["step_s"] >= best * (1 - 1e-12)
    step = p["predicted"]["step_s"]         # simulated; one stage: nearly the same sum
    assert abs(grids["chosen"]["step_s"] - step) < 1e-3 * step, (grids["chosen"], step)
    where = [a["name"] for a in p["mesh"]["axes"] if a["size"] > 1]
    assert where == [n for n, s in zip("xyz", map(int, c.split(","))) if s > 1], where
    for a in p["mesh"]["axes"]:
        assert (a["busy_s"] > 0) == (a["size"] > 1), a
        if a["name"] in "xyz":
            assert a["waited_s"] == p["predicted"]["breakdown_s"][a["name"]]
x = {a["name"]: a for a in plans["2,2,2"]["mesh"]["axes"]}
assert x["x"]["link"] == "network" and x["x"]["groups_per_port"] == 4 and x["x"]["stride"] == 4
assert x["y"]["link"] == x["z"]["link"] == "link" and x["data"]["link"] is None
other = json.load(open("order.json"))["mesh"]
assert other["order"] == ["stage", "data", "z", "y", "x"], other["order"]
assert [a["stride"] for a in other["axes"]][2:] == [1, 2, 4]
print("right")
PY
is "$(tail -1 facts)" "$(tail -1 facts)" = right
# what cannot be is said with its reason
G="$top/examples/gpt3-175b.tcube $top/examples/clusters/dgx-a100-128.tcube --set plan.pipeline=2 --set plan.microbatch=48 --set plan.recompute=attention"
works "$t" simulate $G --set plan.cube=[4,8,2]
is "heads" "$(grep -c '^  Megatron .*refused: heads do not split over y \[heads-divide\]' out)" = 1
is "memory" "$(grep -c '^  FSDP .*does not fit: .* \[memory-fits\]' out)" = 1
is "counted" "$(grep -c 'of 28 grids can be laid out and fit' out)" = 1      # 7 * 8 / 2 of 2^6
works "$t" simulate "$top/tests/simulate/_gpt.tcube" --set plan.cube=[1,4,1] --set plan.data=2
is "no cube of 4" "$(grep -c '^  symmetric cube .*4 ranks make none' out)" = 1
works "$t" simulate "$top/tests/simulate/_gpt.tcube" --set plan.data=8
is "grids of one rank" "$(grep -c '^grids' out)" = 0
summary
