# A pinned family confines the search: every layout listed is of it.
python3 -c 'import json' 2> /dev/null || { echo "no python3"; exit 77; }
set -e
for family in 1d 2d 3d 'summa(2)' 'summa(4)'; do
    "$TERACUBE" tune examples/cube/model.tcube examples/cube/longhorn.tcube --turns-only --json \
        --top 20 --set cluster.nodes=4 --set plan.data=1 --set plan.pipeline=1 \
        --set model.layers=2 --set plan.microbatch=24 --set plan.recompute=none \
        --set "plan.partition=$family" > "$WORK/json" 2> "$WORK/err" || [ "$family" = 'summa(2)' ]
    python3 - "$WORK/json" "$family" <<'PY'
import json, sys
family = sys.argv[2]
all = [c["layout"] for c in json.load(open(sys.argv[1]))["candidates"]]
cubes = [tuple(a["cube"]) for a in all]
fits = {"1d": lambda x, y, z: x == z == 1, "2d": lambda x, y, z: x == 1,
        "3d": lambda x, y, z: True, "summa(4)": lambda x, y, z: (x, y, z) == (1, 4, 4)}
if family == "summa(2)":                # four of the sixteen devices
    assert not cubes, cubes
else:
    assert cubes and all and len(set(cubes)) == len(cubes), cubes
    assert [c for c in cubes if not fits[family](*c)] == [], (family, cubes)
    assert len(cubes) == {"1d": 1, "2d": 5, "3d": 15, "summa(4)": 1}[family], (family, cubes)
    assert family != "summa(4)" or all[0]["partition"] == family, all[0]
PY
done
