# Emitted programs by nvcc: they compile without warnings and spills, link, and, where there is
# no GPU, say so in one line.
#   ALL=1    every example, for sm_80, sm_90 and sm_100
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
[ -n "$nvcc" ] || { echo "no nvcc (nvidia-cuda-toolkit)"; exit 77; }
passed=0 failed=0
mkdir -p "$WORK"
fails() { failed=$((failed + 1)); echo "FAIL $1"; }

one() { # NAME MODEL ARCH SETTING...
    name=$1 model=$2 arch=$3; shift 3
    dir=$WORK/gen; rm -rf "$dir"
    args=
    for s; do args="$args --set $s"; done
    # shellcheck disable=SC2086
    "$TERACUBE" emit "examples/$model.tcube" $args --target cuda -o "$dir" -q 2> "$WORK/err" ||
        { fails "$name: emit"; cat "$WORK/err"; return; }
    make -C "$dir" NVCC="$nvcc" ARCH="$arch" TERACUBE="$PWD" \
        CHECKS='-Werror all-warnings -Xptxas -warn-spills,-Werror' > "$WORK/out" 2>&1 ||
        { fails "$name: nvcc for $arch"; grep -E 'error|warning|rror:' "$WORK/out" | head; return; }
    passed=$((passed + 1))
    [ -e /dev/nvidia0 ] && return
    "$dir/program" --steps 1 > "$WORK/out" 2> "$WORK/err"
    status=$?
    if [ $status = 4 ] && [ "$(wc -l < "$WORK/err")" = 1 ] &&
        grep -q 'error: .*there is no GPU' "$WORK/err"; then passed=$((passed + 1))
    else fails "$name: status $status without a GPU"; cat "$WORK/err"; fi
}

data=train.data=/usr/share/common-licenses/GPL-3
one char char sm_90 train.precision=bf16 plan.cube=[1,2,1]
if [ -n "$ALL" ]; then
    for arch in sm_80 sm_90 sm_100; do
        for m in tiny char gpt2 llama parallel bert; do
            one "$m $arch" $m $arch train.precision=bf16 $data train.format=bytes
        done
    done
fi
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
