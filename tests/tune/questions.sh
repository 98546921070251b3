# Questions and wrong input: why not this layout, what wins against what, nothing fits, pins
# that contradict each other (both lines are named), clusters that are none.
. tests/input/_lib.sh
s="$top/tests/tune/_small.tcube"
has() { is "$1" "$(grep -c -- "$1" page)" -ge 1; }
asks() { works "$@"; cp out page; }

asks "$t" tune $s --why-not 'cube=[8,1,1], data=1'
has 'answer .* % slower: .*x +'
has '^  it fits   data 1, pipeline 1, cube \[8, 1, 1\]'
asks "$t" tune $s --why-not 'cube=[1,8,1]'
has 'answer    it cannot be laid out'
has 'heads-divide  *4 '
asks "$t" tune $s --why-not 'zero=0, data=8, recompute=none' --set 'device.chip.memory=8 MB'
has 'answer    it does not fit: the nearest, data 8'
best=$("$t" tune $s | sed -n 's/^  best      data \([0-9]*\), pipeline \([0-9]*\),.*cube \(\[[^]]*\]\).*/data=\1, pipeline=\2, cube=\3/p')
asks "$t" tune $s --why-not "$best"
has 'nothing speaks against it'
fails 2 '--why-not:1:11: error|1, y = 3, z = 1 do not divide 8 devices|[devices-match]' "$t" tune $s --why-not 'cube=[1,3,1]'
fails 2 'takes entries of the plan' "$t" tune $s --why-not ' , '
fails 2 'unknown-key' "$t" tune $s --why-not 'stages=2'

asks "$t" tune $s --why-not 'data=8' --objective memory
has 'answer    holds .* more; '
asks "$t" tune $s --why-not 'data=8' --objective cost --set device.chip.price=2
has 'answer    costs .* % more; '
fails 2 'takes no --write' "$t" tune $s --why-not 'data=8' --write f

asks "$t" plan $s --explain tune
has '^best '
has '^next '
has '  step .*%$'
asks "$t" plan $s --explain tune --set plan.data=8 --set plan.cube=[1,1,1] --set plan.microbatch=1
has '^this plan data 8'

asks "$t" tune $s --objective memory --top 3
is "the smallest first" "$(grep '^  1  ' page | grep -c MB)" = 1
asks "$t" tune $s --objective cost --set device.chip.price=2
has 'on a part of pair: --set cluster.nodes=1'
fails 1 'has no price|[price]' "$t" tune $s --objective cost

# nothing fits; a larger cluster would do
fails 1 'no layout of 8 devices fits|lacks|[memory-fits]' "$t" tune $s --set 'device.chip.memory=2 MB'
fails 1 'lacks|devices of pair (nodes = |are enough' "$t" tune $s --set train.batch=512 \
    --set 'device.chip.memory=5 MB'
fails 1 '256 times as many nodes are not enough; parameters, gradients and moments alone fill about' \
    "$t" tune $s --set model.hidden=1048576
works "$t" tune $s --budget 20
# the best one is laid out; where its block outgrows the room the next that fits is the best
for m in 8400 8900; do
    m="device.chip.memory=$m KB"
    asks "$t" tune $s --set "$m" --write fits.tcube
    has '^  too large data 1, pipeline 2, .*: 8.[0-9]* MB laid out'
    has ' of 8.[0-9]* MB on stage [0-9], [0-9.]* MB laid out'
    works "$t" plan $s fits.tcube --set "$m"
    works "$t" tune $s --set "$m" --json
    is "$m: in JSON, both" "$(grep -o '"laid_out_bytes": *[0-9]' out | wc -l)" -ge 2
done
# what nearly fills the room says how to keep clear of it, and then `plan` lays it out
m='device.chip.memory=10 MB'
asks "$t" tune $s --set "$m"
has "near the room: 2.*within 5 %"
has "--set device.chip.reserve='500 KB' keeps clear"
works "$t" tune $s --set "$m" --set 'device.chip.reserve=500 KB' --write clear.tcube
works "$t" plan $s clear.tcube --set "$m"
# a prime batch: one microbatch of all, or so many that no table of a step has room for them
fails 1 'no layout of 8 devices fits' "$t" tune $s --set train.batch=16777259
is "what is too long is counted" "$(grep -c '^  too-large  *[0-9]' out)" = 1
fails 2 '[too-large]|16777259 microbatches of a replica, on 2 stages' "$t" simulate $s --set plan.pipeline=2 \
    --set plan.cube=[1,4,1] --set plan.microbatch=1 --set train.batch=16777259

# pins against each other, the model and the cluster: both lines are named
pins() { sed '$a plan {' "$s" > p.tcube; printf '%s\n' "$@" '}' >> p.tcube; }
pins 'data = 3' 'pipeline = 3'
fails 1 'data = 3, pipeline = 3 do not divide 8 devices|[devices-match]|p.tcube:43|data = 3 stands here' "$t" tune p.tcube
pins 'data = 8' 'microbatch = 2'
fails 1 'a batch of 8 does not split into 8 replicas of microbatches of 2|[batch-divides]|data = 8 stands here|batch = 8 stands here' "$t" tune p.tcube
pins 'zero = 2' 'data = 1'
fails 1 'zero = 2 needs more than one replica|1 stands here|[no-effect]' "$t" tune p.tcube
pins 'chunks = 2' 'pipeline = 1'
fails 1 'chunks = 2 needs more than one stage|[no-effect]' "$t" tune p.tcube
pins 'pipeline = 4' 'chunks = 2'
fails 1 '[layers-cover]|pipeline * chunks can be at most 4' "$t" tune p.tcube
# what `plan` refuses of a mesh is no layout of that mesh
pins 'turns = [3, 1]'
asks "$t" tune p.tcube
has '^  best .*pipeline 2'
pins 'turns = [2, 1, 1]'
fails 1 'no layout of 8 devices is possible|[layers-cover]|3 entries for 1 stage' "$t" tune p.tcube
pins 'logits_chunk = 32' 'data = 1'
asks "$t" tune p.tcube
has '^  best '
pins 'logits_chunk = 7'
fails 1 'no layout of 8 devices is possible|[rows-divide]|logits_chunk must divide' "$t" tune p.tcube
pins 'recompute = full(9)'
fails 1 'the model has 4 turns|[no-effect]' "$t" tune p.tcube
fails 2 'the model has 4 turns|[no-effect]' "$t" tune $s --why-not 'recompute=full(9)'
pins 'partition = summa(2)' 'keep = both'
fails 1 'finds nothing to keep|[no-effect]' "$t" tune p.tcube
pins 'rows = balanced' 'attention = local'
fails 1 'balanced rows spread|[no-effect]' "$t" tune p.tcube
fails 2 '--json is of the whole plan' "$t" plan $s --explain tune --json
pins 'slices = [32, 16]'
fails 1 'the slices add up to 48|[slices-sum]|sequence = 64 stands here' "$t" tune p.tcube
pins 'partition = summa(2)' 'cube = [1, 4, 2]'
fails 1 'partition = summa(2) is the grid [1, 2, 2]|the cube stands here' "$t" tune p.tcube
pins 'partition = summa(3)'
fails 1 'summa(3) takes squares of 9 devices, and 8 devices|q can be 2 at most' "$t" tune p.tcube

# nothing can be laid out: a check says it of one layout, by its lines; what part of the cluster would do
pins 'pipeline = 4' 'slices = uniform(300)'
fails 1 'no layout of 8 devices is possible|for example|300 slices of 64 tokens|p.tcube:43|at most uniform(' \
    "$t" tune p.tcube
pins 'pipeline = 4' 'zero = 3' 'recompute = full(2)' 'data = 1'
fails 1 'p.tcube:43|zero = 3 needs more than one replica' "$t" tune p.tcube
fails 1 'no layout of 18 devices|12 devices of pair can be laid out: nodes = 2|for example' "$t" tune $s \
    --set cluster.nodes=3 --set 'cluster.node=6*chip'
fails 1 'no layout of 7 devices|6 devices of pair can be laid out: node = 6 * chip' "$t" tune $s \
    --set cluster.nodes=1 --set 'cluster.node=7*chip'
fails 1 'repeats nothing|[layers-cover]' "$t" tune $s --set model.layers=0
fails 1 'looks for what fits' "$t" plan $s --set cluster.nodes=1 --set 'cluster.node=7*chip'
pins 'partition = 1d' 'cube = [2, 2, 1]'
fails 1 'partition = 1d is the grid [1, p, 1]|the cube stands here' "$t" tune p.tcube
# --write replaces what it wrote and nothing else, whole or not at all
works "$t" tune $s --write best.tcube
works "$t" tune $s --write best.tcube
cp best.tcube kept.tcube; cp best.tcube more.tcube; echo 'train { }' >> more.tcube; echo text > text
fails 2 'there is a file of that name, and more in it' "$t" tune $s --write text
fails 2 'there is a file of that name, and more in it' "$t" tune $s --write more.tcube
is "which stays" "$(cat text)" = text
ln -s kept.tcube link.tcube; ln -s new.tcube open.tcube
works "$t" tune $s --write link.tcube
works "$t" tune $s --write open.tcube
is "links stay links" -L link.tcube -a -L open.tcube -a -s new.tcube
fails 4 'No space left' "$t" tune $s --write /dev/full
mkdir best.tcube.part               # stands for a disk without room
fails 4 'could not write best.tcube' "$t" tune $s --write best.tcube
is "the old plan stays" "$(cmp best.tcube kept.tcube && echo same)" = same
works "$t" plan $s best.tcube --set train.batch=16
is "a stale plan says how it is made anew" "$(grep -c 'of the other files, without this plan' err)" = 1
fails 2 'a plan goes into a file of its own' "$t" tune $s best.tcube --write best.tcube
fails 2 '--top takes a number from 1 on'    "$t" tune $s --top 0
fails 2 '--emit takes a number from 1 on'   "$t" tune $s --emit 0 -o x
asks "$t" tune --help
has '^  --budget S '
has '^usage: teracube tune FILE'
pins 'cube = [1, 2, 1]' 'data = 2'
works "$t" tune p.tcube
summary
