#!/bin/sh
# On a machine with a GPU, in under eight minutes: are the kernels right, is the program right
# (one rank, and several ranks on the one GPU), how fast is it, and PyTorch beside it.
#
#     tests/gpu/run.sh            what it found: build/gpu/table.txt, build/gpu/device.profile
#     DRY=1 tests/gpu/run.sh      the script itself, under the emulator, at small sizes
#     OUT=FOLDER                  instead of build/gpu
limit=460
. "$(dirname "$0")/_lib.sh"
say "$gpu, $arch; $("$nvcc" --version | tail -n 1); $(date -u +%FT%TZ)"

# ---- right -------------------------------------------------------------------------------------
# Each template against plain loops in double: instructions of tensor cores, layouts of fragments.
# nvcc takes minutes for all sizes of heads, so the rest goes on meanwhile.
kernels() {
    cc -O2 -c -o "$out/random.o" runtime/random.c
    for test in tests/cudasim/kernels/*.cu; do
        name=$(basename "$test" .cu)
        if ! "$nvcc" -std=c++17 -O1 -arch=$arch -Itemplates/cuda -Iruntime -o "$out/$name" "$test" \
            "$out/random.o" > "$out/$name.err" 2>&1; then echo "FAIL kernels, $name: nvcc"
        elif ! timeout 100 "$out/$name" > "$out/$name.err" 2>&1; then echo "FAIL kernels, $name"
        else echo "kernels, $name: right"; continue; fi
        head -n 20 "$out/$name.err"
    done
}
kernels=
[ -n "$DRY" ] || { kernels > "$out/kernels" 2>&1 & kernels=$!; }  # make check emulates them

# Losses of five steps and gradients of the first, against the reference in double.
[ -z "$DRY" ] || export HIDDEN=48 LONG=48 ONE="${ONE:-slices@one}"
mkdir -p "$out/right"
WORK=$out/right GPU=$nvcc ARCH=$arch V=1 timeout 300 sh tests/cuda/emulated.sh > "$out/said" 2>&1
status=$?
grep -E '^FAIL|gradients within|passed' "$out/said" | tee -a "$out/table.txt"
[ $status = 0 ] || fails "programs (status $status)" "$out/said"

# ---- fast --------------------------------------------------------------------------------------
# fast NAME LAYERS WIDTH HEADS BATCH: GPT-2 of these sizes in bf16, 1024 tokens a sequence.
row() { printf '%-10s %-28s %9s %12s %9s\n' "$@" | tee -a "$out/table.txt"; }
fast() {
    name=$1 layers=$2 width=$3 heads=$4 batch=$5 context=1024 steps=20 vocab=50304
    [ -z "$DRY" ] || { layers=1 width=48 heads=2 batch=2 context=32 steps=2 vocab=256; }
    standin=
    program "$name" examples/gpt2.tcube --set train.precision=bf16 --set train.format=bytes \
        --set train.data="$top/README.md" --set model.layers=$layers --set model.hidden=$width \
        --set model.heads=$heads --set model.context=$context --set model.vocab=$vocab \
        --set train.batch=$batch --set train.sequence=$context || return
    timeout 100 "$dir/program" --steps $steps --log "$dir/log" -q > "$out/err" 2>&1 ||
        { fails "$name: status $?" "$out/err"; return; }
    tokens=$((batch * context))
    # 6 FLOP for each number of a matrix, and attention, not halved
    each=$(awk "BEGIN { print 6 * (12 * $layers * $width * $width + $vocab * $width) \
        + 12 * $layers * $width * $context }")
    line teracube "$(step_s "$dir/log")"
    torch
}
line() { # WHO SECONDS
    row "$name" "$1" $(awk "BEGIN { s = $2; printf \"%.4g %.0f %.4g\", s * 1e3, $tokens / s, \
        $each * $tokens / s / 1e12 }")
}
torch() {
    [ -z "$DRY" ] || return
    python3 -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null ||
        { say "$name: no PyTorch that sees the GPU"; return; }
    for how in plain flash compiled; do
        [ "$(left)" -gt 90 ] || { say "$name: no time for PyTorch, $how"; return; }
        timeout 90 python3 tests/gpu/peer_torch.py $how $layers $width $heads $vocab $context \
            $batch $steps > "$out/torch" 2> "$out/err" ||
            { fails "PyTorch, $how" "$out/err"; continue; }
        line "PyTorch $(value "$out/torch" torch | tr -d '"'), $how" "$(value "$out/torch" step_s)"
    done
}
row model program 'ms a step' tokens/s TFLOP/s
fast gpt2 12 768 12 16             # GPT-2 124M
[ "$(left)" -gt 60 ] && fast wide 6 1600 25 8      # layers as wide as those of GPT-2 1.5B

# ---- what the planner reads ----------------------------------------------------------------------
profile "$out/device.profile" 1

if [ -n "$kernels" ]; then
    while kill -0 $kernels 2> /dev/null && [ "$(left)" -gt 0 ]; do sleep 1; done
    if kill $kernels 2> /dev/null; then fails "kernels: no time left" "$out/kernels"
    else tee -a "$out/table.txt" < "$out/kernels"; fi
    failed=$((failed + $(grep -c '^FAIL' "$out/kernels")))
fi
say "$(($(date +%s) - begun)) s; $failed failed"
[ $failed = 0 ]
