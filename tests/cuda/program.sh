# Emitted programs by nvcc: they compile without warnings and spills, link, and, where there is
# no GPU, say so in one line.
#   ALL=1    every example, for sm_80, sm_90 and sm_100        V=1    how long each one took
# shellcheck disable=SC2086
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
[ -n "$nvcc" ] || { echo "no nvcc (nvidia-cuda-toolkit)"; exit 77; }
passed=0 failed=0
mkdir -p "$WORK"
fails() { failed=$((failed + 1)); echo "FAIL $1"; }

checks='-Werror all-warnings -Xptxas -warn-spills,-Werror'
one() { # NAME ARCH FILE ARGUMENT...
    name=$1 arch=$2; shift 2
    dir=$WORK/gen; rm -rf "$dir"
    "$TERACUBE" emit "$@" --target cuda --arch "$arch" -o "$dir" -q 2> "$WORK/err" ||
        { fails "$name: emit"; cat "$WORK/err"; return; }
    from=$(date +%s)
    make -C "$dir" NVCC="$nvcc" TERACUBE="$PWD" \
        CHECKS="$checks" > "$WORK/out" 2>&1 ||
        { fails "$name: nvcc for $arch"; grep -E 'error|warning|rror:' "$WORK/out" | head; return; }
    [ -z "$V" ] || echo "$name $arch: nvcc and link $(($(date +%s) - from)) s"
    passed=$((passed + 1))
    [ -e /dev/nvidia0 ] && return
    "$dir/program" --steps 1 > "$WORK/out" 2> "$WORK/err"
    status=$?
    if [ $status = 4 ] && [ "$(wc -l < "$WORK/err")" = 1 ] &&
        grep -q 'error: .*there is no GPU' "$WORK/err"; then passed=$((passed + 1))
    else fails "$name: status $status without a GPU"; cat "$WORK/err"; fi
}

data="--set train.data=/usr/share/common-licenses/GPL-3 --set train.format=bytes"
bf16="--set train.precision=bf16 $data"
one char sm_90 examples/char.tcube $bf16 --set plan.cube=[1,2,1]
if [ -n "$ALL" ]; then
    one names sm_90 tests/grids/names.tcube $bf16 --set plan.pipeline=3
    for arch in sm_80 sm_90 sm_100; do
        for f in examples/[!g]*.tcube examples/gpt2.tcube; do one "$f" $arch "$f" $bf16; done
        for f in examples/cube/[!lm]*.tcube; do one "$f" $arch "$f" $bf16; done
        one gpt3-175b $arch examples/gpt3-175b.tcube examples/clusters/dgx-a100-128.tcube $bf16 \
            --set plan.cube=[1,8,1] --set plan.pipeline=16 --set plan.recompute=full
        # fp16 and 96 stages are for plans on paper
        for f in 1b-1 13b-5 44b-8; do
            one terapipe/$f $arch examples/terapipe/gpt3-$f.tcube $bf16 \
                --set train.reduce=fp32
        done
    done
    checks="$checks -include $PWD/tests/gpu/onedevice.h $PWD/tests/gpu/onedevice.cu"
    one onedevice sm_90 examples/tiny.tcube $bf16 --set plan.cube=[2,2,2]
    checks=
    for precision in fp32 fp64; do
        one "llama $precision" sm_90 examples/llama.tcube $data --set train.precision=$precision
    done
fi
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
