# `plan --json` is one valid JSON object with the keys that tools rely on.
python3 -c 'import json' 2>/dev/null || { echo "no python3"; exit 77; }
"$TERACUBE" plan --json tests/plan/_paste.tcube --set plan.cube=[2,2,2] --set plan.data=3 \
    > "$WORK/json" || exit 1
python3 - "$WORK/json" <<'PY'
import json, sys
o = json.load(open(sys.argv[1]))
want = ["schema", "hashes", "warnings", "model", "cluster", "mesh", "layout", "predicted",
        "memory", "operators", "tensors", "collectives"]
assert list(o) == want, list(o)
assert o["schema"] == 1 and o["layout"]["cube"] == [2, 2, 2] and o["layout"]["data"] == 3
s = o["memory"]["stages"][0]
parts = ["parameters", "gradients", "optimizer", "activations", "keys_values", "gathered",
         "logits", "workspace", "library"]
assert sum(s[k] for k in parts) == s["peak"], s
assert o["predicted"]["step_s"] is None and o["predicted"]["breakdown_s"]["x"] is None
assert o["model"]["parameters"] == 100 * 48 + 2 * (12 * 48 * 48 + 13 * 48)
# design.md 8, key by key
keys = {
    "hashes": "model cluster prices", "model": "name parameters layers",
    "cluster": "name devices nodes", "mesh": "order axes",
    "layout": "data pipeline chunks cube microbatch slices schedule recompute zero turns "
              "partition attention rows keep vectors",
    "predicted": "step_s tokens_per_s flops_per_device_per_s mfu hfu error breakdown_s",
}
rows = {
    "operators": "name source stage m n k flops bytes forward_s backward_s saved_bytes count",
    "tensors": "name shape dtype layout local_shape local_bytes stage",
    "collectives": "kind axes group_size tensor bytes count_per_step seconds exposed_s algorithm "
                   "stream phase reason source stage",
}
for k, names in keys.items():
    assert set(o[k]) >= set(names.split()), (k, set(names.split()) - set(o[k]))
for k, names in rows.items():
    assert o[k]
    for row in o[k]:
        assert set(row) >= set(names.split()), (k, set(names.split()) - set(row))
for a in o["mesh"]["axes"]:
    assert set(a) >= set("name size stride link groups_per_port".split()), a
assert set(o["predicted"]["breakdown_s"]) >= set(
    "compute recompute x y z pipeline bubble data optimizer".split())
assert set(s) >= set("stage parameters gradients optimizer activations keys_values gathered "
                     "logits workspace library peak free".split())
for t in o["tensors"]:
    assert set(t["layout"]) >= {"rows", "columns", "replicated"}, t
assert {c["kind"] for c in o["collectives"]} <= set(
    "all_gather reduce_scatter all_reduce all_to_all broadcast reduce send recv".split())
for c in o["collectives"]:
    assert c["group_size"] > 1 and c["bytes"] > 0 and c["reason"] and c["axes"], c
names = [t["name"] for t in o["tensors"]]
assert "h.1.qkv.weight" in names and len(names) == len(set(names))
PY
[ $? = 0 ] || exit 1
# A pipeline: memory of every stage, collectives and tensors of each, counts over all passes.
"$TERACUBE" plan --json --schedule tests/plan/_paste.tcube --set plan.cube=[1,2,1] \
    --set plan.pipeline=2 --set plan.chunks=2 --set plan.microbatch=1 --set model.layers=4 \
    --set plan.slices=[16,32] --set plan.recompute=attention > "$WORK/json" || exit 1
python3 - "$WORK/json" <<'PY'
import json, sys
o = json.load(open(sys.argv[1]))
l = o["layout"]
assert l["pipeline"] == 2 and l["chunks"] == 2 and l["microbatch"] == 1, l
assert l["slices"] == [16, 32] and l["turns"] == [1, 1, 1, 1], l
assert l["schedule"] == "1f1b" and l["recompute"] == "attention", l
parts = ["parameters", "gradients", "optimizer", "activations", "keys_values", "gathered",
         "logits", "workspace", "library"]
stages = o["memory"]["stages"]
assert [s["stage"] for s in stages] == [0, 1]
for s in stages:
    assert sum(s[k] for k in parts) == s["peak"] and s["keys_values"] > 0, s
    assert s["peak"] + s["free"] == o["memory"]["device_bytes"] and s["units"] > 2, s
assert stages[0]["logits"] == 0
# 6 microbatches; chunk 0 of stage 1 sends to chunk 1 of stage 0, so stage 0 sends twice forward
# and stage 1 once: 48 columns over y = 2 ranks, so 24 rows' worth each of 16 and 32 tokens
sends = [c for c in o["collectives"] if c["kind"] == "send" and c["phase"] == "forward"]
recvs = [c for c in o["collectives"] if c["kind"] == "recv" and c["phase"] == "forward"]
total = lambda cs, r: sum(c["bytes"] * c["count_per_step"] for c in cs if c["stage"] == r)
assert total(sends, 0) == 2 * 6 * 48 * 24 * 8 and total(sends, 1) == 6 * 48 * 24 * 8, sends
assert total(recvs, 1) == total(sends, 0) and total(recvs, 0) == total(sends, 1)
assert all(c["peer"] == 1 - c["stage"] and c["axes"] == ["stage"] for c in sends + recvs)
# every tensor says where it is; the tied table is on both stages
tensors = {t["name"]: t for t in o["tensors"]}
assert tensors["wte.weight"]["stages"] == [0, 1] and tensors["wte.weight"]["stage"] == 0
assert [tensors["h.%d.up.weight" % i]["stage"] for i in range(4)] == [0, 1, 0, 1]
# the step tables: every unit once forward and once backward, ending in sync and optimizer
for s in o["schedule"]:
    for kind in "forward", "backward":
        units = [(t["microbatch"], t["slice"], t["chunk"]) for t in s["steps"]
                 if t["kind"] == kind]
        assert len(units) == len(set(units)) == 6 * 2 * 2
    assert [t["kind"] for t in s["steps"][-2:]] == ["sync", "optimizer"]
    assert "begin" not in {t["kind"] for t in s["steps"]}
# products of a stage's forward part run once for each of its units
qkv = [x for x in o["operators"] if x["name"] == "h.*.qkv: X W"]
assert sum(x["count"] for x in qkv if x["stage"] == 0) == 6 * 2 * 2, qkv
PY
