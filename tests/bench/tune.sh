#!/bin/sh
# How long tune takes: the whole process, best of three (RUNS=n), and what it looked at; a plan
# again after one edit (TIMES=0: not); and whether layouts measured here come in the order predicted
# (ORDER=0: not; it runs ten of them, after a profile). `make bench` calls it.
cd "$(dirname "$0")/../.." || exit 4
T=build/teracube
RUNS=${RUNS:-3}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && trap 'exit 130' INT TERM
m=examples/gpt3-175b.tcube c=examples/clusters/dgx-a100-128.tcube

best() { # COMMAND...: seconds, best of RUNS; what it said is in $work/said
    for i in $(seq "$RUNS"); do
        a=$(date +%s%N); "$@" > "$work/said" 2>&1 || { echo nan; return; }
        b=$(date +%s%N); echo $((b - a))
    done | sort -n | awk 'NR == 1 { printf "%.3f", $1 / 1e9 }'
}
row() { # NAME TARGET ARGS...
    name=$1 target=$2; shift 2
    s=$(best "$@")
    printf '%-44s %8s s  (at most %s s)  %s\n' "$name" "$s" "$target" \
        "$(sed -n 's/^  searched  //p' "$work/said")"
}
searches() {
    row 'tune 175B on 128 GPUs' 1 "$T" tune $m $c --top 10
    row 'tune 175B on 1,024 GPUs' 1 "$T" tune $m $c --set cluster.nodes=128
    row 'tune 1T on 16,384 GPUs' 8 "$T" tune $m $c --set cluster.nodes=2048 --set model.hidden=25600 \
        --set model.layers=128 --set model.heads=160 --set train.batch=3072
    "$T" tune $m $c --write "$work/plan.tcube" > /dev/null
    row 'simulate the best again, after one edit' 0.1 "$T" simulate $m "$work/plan.tcube" $c \
        --set train.batch=1920
    row 'tune its microbatch and slices alone' 0.1 "$T" tune $m $c --set plan.data=2 \
        --set plan.pipeline=8 --set plan.cube=[4,2,1] --set plan.chunks=12
}
# The search itself, over all its evaluations: seconds of one, with cells, bounds and lists.
evaluation() {
    "$T" tune $m $c --set cluster.nodes=128 --json > "$work/said" 2>&1
    awk -F'[:,]' '/"seconds"/ { s = $2 } /"evaluations"/ { n = $2 }
        END { printf "%-44s %8.2f us (at most 10 us)  %d in %.2f s\n", "one evaluation of tune",
              s / n * 1e6, n, s }' "$work/said"
}
[ "${TIMES:-1}" = 1 ] && searches && evaluation
[ "${ORDER:-1}" = 1 ] || exit 0
# Ten layouts of one model, by the profile of this machine: places predicted and measured.
"$T" profile examples/char.tcube -o "$work/here.profile" > /dev/null 2> "$work/err" ||
    { echo "ten layouts: skipped, no profile: $(head -1 "$work/err")"; exit 0; }
echo "device here { profile = \"$work/here.profile\" }" > "$work/here.tcube"
while read -r args; do
    set --
    for a in $args; do set -- "$@" --set "$a"; done
    p=$("$T" simulate examples/char.tcube "$work/here.tcube" "$@" --json 2> /dev/null |
        sed -n 's/.*"step_s": *\([0-9.e+-]*\).*/\1/p' | head -n 1)
    rm -f "$work/log"
    "$T" run examples/char.tcube "$@" --steps 5 --log "$work/log" > /dev/null 2>&1
    q=$(sed -n 's/.*"step_s": *\([0-9.e+-]*\).*/\1/p' "$work/log" | tail -n 4 | sort -g | head -n 2 |
        tail -n 1)
    echo "${p:-nan} ${q:-nan} $args"
done > "$work/ten" <<'W'
plan.cube=[1,1,1] plan.microbatch=12
plan.cube=[1,1,1] plan.microbatch=1
plan.cube=[1,2,1] plan.microbatch=12
plan.cube=[2,2,2] plan.microbatch=12
plan.cube=[1,2,1] plan.microbatch=1
plan.data=2 plan.zero=3 plan.microbatch=2
plan.pipeline=2 plan.microbatch=12 plan.slices=uniform(1)
plan.pipeline=2 plan.microbatch=2 plan.slices=uniform(1)
plan.cube=[1,1,1] plan.microbatch=12 plan.recompute=full
plan.cube=[1,2,1] plan.microbatch=4 plan.recompute=full
W
awk '{ p[NR] = $1; q[NR] = $2; what[NR] = $3; for (i = 4; i <= NF; i++) what[NR] = what[NR] " " $i }
    function place(v, i,  k, n) { n = 0; for (k = 1; k <= NR; k++) n += v[k] < v[i]; return n }
    END {
        printf "%-58s %9s %9s\n", "a step of char, ten layouts", "predicted", "measured"
        for (i = 1; i <= NR; i++) {
            gsub(/plan\./, "", what[i])
            printf "%-58s %7.2f s %7.2f s\n", what[i], p[i], q[i]
            d += (place(p, i) - place(q, i)) ^ 2
        }
        printf "rank correlation %.2f (at least 0.9 is asked for)\n", 1 - 6 * d / (NR * (NR * NR - 1))
    }' "$work/ten"
