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
for c in o["collectives"]:
    assert c["group_size"] > 1 and c["bytes"] > 0 and c["reason"] and c["axes"], c
names = [t["name"] for t in o["tensors"]]
assert "h.1.qkv.weight" in names and len(names) == len(set(names))
PY
