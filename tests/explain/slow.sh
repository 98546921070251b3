# simulate --slow, --network, --link: what changes, by hand; wrong factors and ranks.
python3 -c 'import json' 2>/dev/null || { echo "no python3"; exit 77; }
. tests/input/_lib.sh
T=$top/examples/terapipe/gpt3-13b-4.tcube
cat > pair.tcube <<EOF
include "$top/tests/simulate/_gpt.tcube"
plan { data = 2;  pipeline = 2;  cube = [1, 2, 1];  microbatch = 2;  slices = uniform(1) }
EOF
works "$t" simulate pair.tcube --json && mv out plain.json
value() { python3 -c "
import json
d = json.load(open('out')); p = json.load(open('plain.json'))
print($1)" 2> err; }
works "$t" simulate pair.tcube --slow rank=0:1 --network 1 --json
is "a factor of one changes something" "$(value "all(v['before_s'] == v['after_s'] for v in d['breakdown_s'].values())")" = True
is "before is not what simulate says" "$(value "d['step_s']['before'] == p['predicted']['simulated_s']")" = True
# all ranks: what is computed doubles, the rest does not
works "$t" simulate pair.tcube --slow node=0:2 --slow node=1:2 --json
is "compute does not double" "$(value "abs(d['breakdown_s']['compute']['after_s'] / d['breakdown_s']['compute']['before_s'] - 2) < 1e-9")" = True
is "y changes" "$(value "abs(d['breakdown_s']['y']['after_s'] / d['breakdown_s']['y']['before_s'] - 1) < 1e-9")" = True
# one rank is as bad as its stage and replica: ranks 0 and 1 (y), not their whole replica
works "$t" simulate pair.tcube --slow rank=0:2 --json && mv out one.json
works "$t" simulate pair.tcube --slow rank=0:2 --slow rank=1:1.5 --json
is "the stage is not as slow as its slowest rank" "$(cmp out one.json)" = ""
works "$t" simulate pair.tcube --slow rank=2:2 --json
is "not the second replica" "$(value "d['replica']")" = 1
works "$t" simulate pair.tcube --slow node=0:2 --json
is "slow stages in a pipeline" "$(value "d['step_s']['after'] > json.load(open('one.json'))['step_s']['after'] * (1 - 1e-12)")" = True
# half the network: twice the bytes' time, the link's collectives as before
works "$t" simulate "$T" --network 0.5 --json
is "data" "$(value "abs(d['breakdown_s']['data']['after_s'] / d['breakdown_s']['data']['before_s'] - 2) < 1e-3")" = True
is "inside a node" "$(value "d['collectives_s']['all_gather over y']['after_s'] == d['collectives_s']['all_gather over y']['before_s']")" = True
works "$t" simulate "$T" --link 0.5 --json
is "link" "$(value "1.2 < d['breakdown_s']['y']['after_s'] / d['breakdown_s']['y']['before_s'] <= 2")" = True
works "$t" simulate "$T" --slow rank=17:1.2 --network 0.5
is "words" "$(grep -cE 'rank 17 computes 1.2 times as long: stage|GB/s -> .*GB/s a port|^  step .* -> ' out)" = 3

fails 2 'one factor for each' "$t" simulate pair.tcube --slow rank=1:1.2 --slow rank=1:1.3
fails 2 'rank=N:FACTOR' "$t" simulate pair.tcube --slow 17:1.2
fails 2 'rank=N:FACTOR' "$t" simulate pair.tcube --slow rank=:1.2
fails 2 'rank=N:FACTOR' "$t" simulate pair.tcube --slow rank=-1:1.2
fails 2 'rank=N:FACTOR' "$t" simulate pair.tcube --slow rank=99999999999999:2
fails 2 'the plan has 8 ranks, the last is 7' "$t" simulate pair.tcube --slow rank=8:2
fails 2 'the plan has 2 nodes, the last is 1' "$t" simulate pair.tcube --slow node=2:2
fails 2 'no factor from 1' "$t" simulate pair.tcube --slow rank=1:0.5
fails 2 'no factor from 1' "$t" simulate pair.tcube --slow rank=1:fast
fails 2 'no factor' "$t" simulate pair.tcube --network 0
fails 2 'no factor' "$t" simulate pair.tcube --network nan
fails 2 'the files have none' "$t" simulate "$M" --network 0.5
fails 2 'plan takes no --slow' "$t" plan pair.tcube --slow rank=1:2
summary
