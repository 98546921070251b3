#!/bin/sh
# Speed of the CPU target: step times against PyTorch on the same model, cores
# and threads, the share of the BLAS's own speed, what a cube costs, how long
# planning and starting take. `make bench`; STEPS=n for longer runs; needs quiet.
cd "$(dirname "$0")/../.." || exit 4
T=build/teracube
STEPS=${STEPS:-9} threads=$(nproc)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && trap 'exit 130' INT TERM

# PyTorch's best environment (shared with limits): its BLAS does not know recent
# processors, and malloc must not give pages back between steps.
flags=$(grep -m 1 '^flags' /proc/cpuinfo)
case $flags in
    *avx512f*avx512bw*) core=SkylakeX ;;
    *avx2*)             core=Haswell ;;
    *)                  core= ;;
esac
best_env() {
    env ${core:+OPENBLAS_CORETYPE=$core} OMP_NUM_THREADS="$threads" \
        OPENBLAS_NUM_THREADS="$threads" MALLOC_MMAP_THRESHOLD_=20000000000 \
        MALLOC_TRIM_THRESHOLD_=20000000000 "$@"
}

python=
for p in python3 /usr/bin/python3; do
    [ -z "$python" ] && "$p" -c 'import torch' 2>/dev/null && python=$p
done
[ -n "$python" ] || echo "PyTorch is skipped: no python3 here imports torch (python3-torch)"

cc -O2 -o "$work/limits" tests/bench/limits.c -lpthread -ldl || exit 4
set -- $(OPENBLAS_CORETYPE=$core "$work/limits" "$threads")
peak=$1 touch_s=$2
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $threads threads," \
     "sgemm ${core:-default} $peak GFLOP/s, load $(cut -d' ' -f1 /proc/loadavg)"

# Median of step_s of the later steps in a log of JSON lines.
median() {
    sed -n 's/.*"step_s": *\([0-9.e+-]*\).*/\1/p' "$1" | tail -n "$((STEPS * 3 / 4))" |
        sort -g | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "nan" }'
}
ours() { # FILE ARGS...
    rm -f "$work/log"
    "$T" run "$@" --steps "$STEPS" --log "$work/log" > "$work/out" 2>&1 ||
        { tail -n 3 "$work/out" >&2; echo nan; return; }
    median "$work/log"
}
torch() { # LAYERS WIDTH HEADS VOCAB CONTEXT BATCH SEQUENCE
    [ -n "$python" ] || { echo nan; return; }
    best_env "$python" tests/bench/peer_torch.py "$@" "$STEPS" "$threads" |
        sed -n 's/.*"step_s": \([0-9.e+-]*\).*/\1/p'
}

printf '%-28s %9s %9s %7s %9s %9s\n' 'a step of' teracube PyTorch ratio GFLOP/s 'of sgemm'
row() { # NAME FLOP OURS TORCH
    awk -v name="$1" -v flop="$2" -v a="$3" -v b="$4" -v peak="$peak" 'BEGIN {
        printf "%-28s %7.2f s ", name, a
        if (b == "nan") printf "%9s %7s", "skipped", "-"; else printf "%7.2f s %7.2f", b, b / a
        printf " %9.0f %8.0f%%\n", flop / a / 1e9, 100 * flop / a / 1e9 / (peak > 0 ? peak : 1) }'
}
# FLOP: 6 (parameters without positions) tokens + 12 layers width sequence tokens
flop() { awk -v p="$1" -v l="$2" -v c="$3" -v b="$4" -v t="$5" \
    'BEGIN { printf "%.0f", 6 * p * b * t + 12 * l * c * t * b * t }'; }

for t in 64 256; do
    a=$(ours examples/gpt2.tcube --set train.sequence=$t)
    row "gpt2 124M, 4 x $t tokens" "$(flop 123653376 12 768 4 $t)" "$a" \
        "$(torch 12 768 12 50257 1024 4 $t)"
done
a=$(ours examples/char.tcube)
row "char 6 x 384, 12 x 256 tokens" "$(flop 10745856 6 384 12 256)" "$a" \
    "$(torch 6 384 6 256 256 12 256)"

p=$(ours examples/gpt2.tcube --set plan.cube=[1,2,1])
q=$(ours examples/gpt2.tcube --set plan.cube=[2,2,2])
awk -v p="$p" -v q="$q" 'BEGIN {
    printf "gpt2, 4 x 256 tokens: [1,2,1] %.2f s, [2,2,2] %.2f s, %.2f times\n", p, q, q / p }'

# One sequence's worth in flight: what slices gain, two stages on two cores.
p=$(ours examples/char.tcube --set plan.pipeline=2 --set plan.microbatch=12 \
    --set "plan.slices=uniform(1)")
q=$(ours examples/char.tcube --set plan.pipeline=2 --set plan.microbatch=12 \
    --set "plan.slices=uniform(4)")
awk -v p="$p" -v q="$q" 'BEGIN {
    printf "char, 2 stages, 1 microbatch: whole %.2f s, in 4 slices %.2f s, %.2f times as fast\n",
        p, q, p / q }'

# Predicted from this machine's own profile, and executed.
"$T" profile examples/char.tcube -o "$work/here.profile" -q > "$work/out" 2>&1 ||
    cat "$work/out" >&2
echo "device here { profile = \"$work/here.profile\" }" > "$work/here.tcube"
printf '%-58s %9s %9s %6s\n' 'a step of char, profiled' predicted executed off
while read -r args; do
    set --
    for a in $args; do set -- "$@" --set "$a"; done
    p=$("$T" simulate examples/char.tcube "$work/here.tcube" "$@" --json 2> "$work/err" |
        sed -n 's/.*"step_s": *\([0-9.e+-]*\).*/\1/p' | head -n 1)
    q=$(ours examples/char.tcube "$@")
    awk -v what="$args" -v p="${p:-nan}" -v q="$q" 'BEGIN { gsub(/plan\./, "", what)
        printf "%-58s %7.2f s %7.2f s %+5.0f%%\n", what, p, q, 100 * (p / q - 1) }'
done <<'W'
plan.pipeline=2 plan.microbatch=3 plan.slices=uniform(1)
plan.pipeline=2 plan.microbatch=12 plan.slices=uniform(4)
plan.pipeline=2 plan.microbatch=4 plan.slices=[96,88,72] plan.schedule=gpipe
plan.pipeline=3 plan.microbatch=2 plan.slices=uniform(1)
plan.pipeline=4 model.layers=8 plan.microbatch=3 plan.slices=uniform(2)
W

seconds() { # best of 5
    for i in 1 2 3 4 5; do
        a=$(date +%s%N); "$@" > /dev/null 2>&1; b=$(date +%s%N); echo $((b - a))
    done | sort -n | awk 'NR == 1 { printf "%.3f", $1 / 1e9 }'
}
printf 'teracube plan examples/gpt2.tcube: %s s\n' "$(seconds "$T" plan examples/gpt2.tcube)"
block=$("$T" plan --json examples/gpt2.tcube | grep -o '"peak": *[0-9]*' | head -1 | tr -dc 0-9)
start=$(seconds "$T" run examples/gpt2.tcube --steps 0)
awk -v s="$start" -v b="${block:-0}" -v t="$touch_s" 'BEGIN {
    printf "compile and start gpt2: %.2f s, of which touching %.2f GB takes %.2f s\n",
        s, b / 1e9, b / 1e9 * t }'

tests/bench/emit.sh
tests/bench/tune.sh
