#!/bin/sh
# What emit needs for GPT-3 175B: seconds of processor time (user and system), best of RUNS=n,
# and the lines of program.cu, without slices and with. `make bench` calls it.
cd "$(dirname "$0")/../.." || exit 4
T=build/teracube
RUNS=${RUNS:-5}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && trap 'exit 130' INT TERM
row() { # NAME ARGS...
    name=$1; shift
    for i in $(seq "$RUNS"); do
        (
            "$T" emit examples/gpt3-175b.tcube examples/clusters/dgx-a100-128.tcube \
                --set plan.data=2 --set plan.pipeline=8 --set 'plan.cube=[1,8,1]' \
                --set plan.microbatch=1 "$@" --target cuda -o "$work/gen" -q || exit
            times > "$work/times"
            tail -n 1 "$work/times"
        )
    done > "$work/all"
    lines=$(wc -l < "$work/gen/program.cu")
    awk -v name="$name" -v lines="$lines" '
        { gsub(/[ms]/, " "); s = 60 * ($1 + $3) + $2 + $4; best = NR == 1 || s < best ? s : best }
        END { printf "%-44s %8s s  (at most 0.2 s)  %d lines (at most 6,000)\n", name,
              NR ? sprintf("%.3f", best) : "nan", lines }' "$work/all"
}
row 'emit 175B for 128 GPUs'
row 'emit 175B in 4 slices' --set 'plan.slices=uniform(4)'
row 'emit 175B in 8 slices' --set 'plan.slices=uniform(8)'
