# What a run prints and logs: equal losses on every layout, the same bits twice, the
# schedules, the data's formats and order, and lines that are JSON.
# needs: llvm
. tests/run/_lib.sh
run() {         # LOG OPTION...: the losses go to LOG.loss
    log=$1; shift
    works "$t" run "$M" $D -q --log "$log" "$@"
    figures "$log" loss > "$log.loss"
}
F='--set train.precision=fp64'

# The loss falls, and is the same on every layout and in the reference.
run one $F
is 'a line for each step' "$(wc -l < one.loss)" = 20
is 'the loss falls' "$(head -n 1 one.loss | cut -c1-4)" '>' "$(tail -n 1 one.loss | cut -c1-4)"
figures one grad_norm > one.norm
for on in 'plan.cube=[2,2,2]' 'plan.cube=[1,2,3]' 'plan.data=3' \
    'plan.cube=[1,2,1] --set plan.data=2' 'plan.keep=none --set plan.cube=[2,1,2]'; do
    run many $F --set $on
    near "losses, $on" 1e-10 many.loss one.loss
    figures many grad_norm > many.norm; near "norms, $on" 1e-10 many.norm one.norm
done
works "$t" run "$M" $D $F --reference -q --log ref
figures ref loss > ref.loss; near 'losses of the reference' 1e-10 ref.loss one.loss
run short;  run cube --set 'plan.cube=[2,2,2]'
near 'losses in fp32' 1e-4 cube.loss short.loss
near 'fp32 and fp64' 1e-3 short.loss one.loss

# Two runs, the same bits; lines on stdout say what the log says.
for cube in 1,1,1 2,2,2; do
    run a --set "plan.cube=[$cube]" --save a.w
    run b --set "plan.cube=[$cube]" --save b.w
    for key in step loss grad_norm lr; do figures a $key; done > a.all
    for key in step loss grad_norm lr; do figures b $key; done > b.all
    same "two logs on $cube" a.all b.all
    same "two files on $cube" a.w b.w
done
works "$t" run "$M" $D --steps 2
step='^step [12]  loss +[0-9.]+  grad_norm +[0-9.e+-]+  lr 1.0e-02 .* s$'
is 'step lines' "$(grep -cE "$step" out)" = 2
is 'no more lines' "$(wc -l < out)" = 3

# Every line of a log is JSON with these keys.
n='-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?'
line="\{\"step\": [0-9]+, \"loss\": $n, \"grad_norm\": $n, \"lr\": $n, \"tokens_per_s\": $n"
line="$line, \"step_s\": $n\}"
is 'step lines of the log' "$(grep -cxE "$line" one)" = 20
first='^\{"run": \{"model": "m", "plan": ".*"tokens_per_step": 96, .*\}\}$'
is 'the first record' "$(head -n 1 one | grep -cE "$first")" = 1
is 'nothing else' "$(wc -l < one)" = 21
if command -v python3 > /dev/null; then
    is 'JSON, as Python reads it' "$(python3 -c 'import json, sys
for l in sys.stdin: json.loads(l)
print("fine")' < one)" = fine
fi
run none --steps 0
is 'a log of no steps' "$(wc -l < none)" = 1

# Schedules, exactly; --steps does not change them.
lr() { # NAME SCHEDULE AWK-EXPRESSION: of s, with w = 4, n = 20, top = 0.01, a = 0.001
    run sched --set "train.schedule=$2"
    figures sched lr > got
    awk "BEGIN { pi = 3.14159265358979324; w = 4; n = 20; top = 0.01; a = 0.001; d = 5
        for (s = 0; s < n; s++) printf \"%.17g\\n\", $3 }" > want
    near "schedule $1" 1e-12 got want
    run sched --set "train.schedule=$2" --steps 7
    figures sched lr > got; head -n 7 want > want7
    near "schedule $1 with --steps 7" 1e-12 got want7
}
lr constant constant top
lr cosine 'cosine(warmup=4,min=1e-3)' \
    's < w ? top*(s+1)/(w+1) : a + 0.5*(top-a)*(1 + cos(pi*(s-w)/(n-w)))'
lr linear 'linear(warmup=4,min=1e-3)' 's < w ? top*(s+1)/(w+1) : a + (top-a)*(1 - (s-w)/(n-w))'
lr wsd 'wsd(warmup=4,decay=5,min=1e-3)' \
    's < w ? top*(s+1)/(w+1) : s < n-d ? top : a + (top-a)*(1 - (s-(n-d))/d)'

# The same tokens in every format, in one file or three.
tokens='7 3 60 12 5 9 33 48 1 0 2 63 17 8 8 21 40 41 42 43 44 50 51 52 53 6 5 4 3 2 1 9 11'
le 1 $tokens > t.dat; le 2 $tokens > t.u16; le 4 $tokens > t.u32
{ le 4 20240520 1 33; head -c 1012 /dev/zero; le 2 $tokens; } > t.bin
mkdir parts; head -c 5 t.dat > parts/a.dat; : > parts/b.dat
tail -c +6 t.dat | head -c 14 > parts/c.dat; tail -c +20 t.dat > parts/d.dat
data() { log=$1; shift; run "$log" --set train.batch=2 --steps 6 "$@"; }
data bytes --set train.data="$WORK/t.dat"
for f in u16 u32; do
    data other --set train.data="$WORK/t.$f" --set train.format=$f
    same "format $f" bytes.loss other.loss
done
data other --set train.data="$WORK/t.bin"
same 'format llmc, found' bytes.loss other.loss
data other --set train.data="$WORK/t.bin" --set train.format=llmc
same 'format llmc' bytes.loss other.loss
data other --set train.data="$WORK/parts/*.dat"
same 'files joined' bytes.loss other.loss
data other --set train.data="$WORK/parts/*.dat" --set plan.data=2 --set 'plan.cube=[1,2,1]'
near 'files joined, two replicas' 1e-4 other.loss bytes.loss

# Sequence r of step s is number (s batch + r) mod floor((N-1)/sequence). With nothing
# learned and no dropout, 4 sequences by 3 come again after 4 steps, and 33 - 1 = 4 * 8.
sed 's/dropout(\(.*\), 0.1)/\1/; s/batch = 12/batch = 3/' "$M" > plain.tcube
plain() { works "$t" run plain.tcube -q --set train.optimizer='sgd(lr=0)' --steps 9 --log l "$@"
    figures l loss > "$log.loss"; }
log=seq; plain $F --set train.data="$WORK/t.dat"
head -n 4 seq.loss > first; tail -n +5 seq.loss | head -n 4 > second
same 'the data come again' first second
is 'four steps differ' "$(sort -u first | wc -l)" = 4
log=each; plain $F --set train.data="$WORK/t.dat" --set train.batch=1
awk 'NR <= 4 { l[NR - 1] = $1 } END { for (s = 0; s < 9; s++)
    printf "%.17g\n", (l[3*s % 4] + l[(3*s + 1) % 4] + l[(3*s + 2) % 4]) / 3 }' each.loss > want
near 'sequences in order' 1e-12 seq.loss want
# Shuffled: every epoch has each sequence once; epochs differ; layouts do not.
log=shuffled; plain $F --set train.data="$WORK/t.dat" --set train.batch=1 --set train.order=shuffle
head -n 4 each.loss | sort > all
for e in 1 5; do
    tail -n +$e shuffled.loss | head -n 4 | sort > epoch
    same "the epoch from step $e" epoch all
done
log=grid; plain $F --set train.data="$WORK/t.dat" --set train.batch=4 --set train.order=shuffle
log=grid2; plain $F --set train.data="$WORK/t.dat" --set train.batch=4 --set train.order=shuffle \
    --set 'plan.cube=[2,2,1]' --set plan.data=2
near 'shuffled on a grid' 1e-12 grid2.loss grid.loss
summary
