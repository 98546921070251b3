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
              "attention rows keep vectors",
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
    "all_gather reduce_scatter all_reduce all_to_all broadcast send recv".split())
for c in o["collectives"]:
    assert c["group_size"] > 1 and c["bytes"] > 0 and c["reason"] and c["axes"], c
names = [t["name"] for t in o["tensors"]]
assert "h.1.qkv.weight" in names and len(names) == len(set(names))
PY
