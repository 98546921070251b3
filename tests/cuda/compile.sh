# templates/cuda by nvcc: no warnings, no register is spilled, and the attention of bf16 has
# the tensor-core instructions that its sizes ask for.
#   ALL=1    sm_80, sm_90 and sm_100, and nine head sizes
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
[ -n "$nvcc" ] || { echo "no nvcc (nvidia-cuda-toolkit)"; exit 77; }
passed=0 failed=0
mkdir -p "$WORK"

# compile NAME ARCH DEFINE...: tests/cuda/kernels/NAME.cu
compile() {
    name=$1 arch=$2; shift 2
    rm -rf "$WORK/keep"; mkdir -p "$WORK/keep"
    if "$nvcc" -std=c++17 -arch="$arch" -Itemplates/cuda -Xcompiler -Wall,-Wextra,-Werror \
        -Werror all-warnings -Xptxas -warn-spills,-Werror --keep --keep-dir "$WORK/keep" "$@" \
        -c -o "$WORK/$name.o" "tests/cuda/kernels/$name.cu" > "$WORK/out" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)); echo "FAIL $name for $arch $*"; head -n 20 "$WORK/out"
    fi
}

# count KERNEL INSTRUCTION NUMBER: in the PTX of the last one
count() {
    n=$(sed -n "/entry.*$1/,/^}/p" "$WORK/keep/attention.ptx" | grep -c "$2")
    if [ "$n" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAIL $1: $n times $2, expected $3"; fi
}

archs=sm_80 heads=
[ -n "$ALL" ] && archs="sm_80 sm_90 sm_100" heads="32 40 64 80 96 144 192 256"
for arch in $archs; do
    compile small "$arch"
    compile attention "$arch" -DSIZE=128 -DPLAIN
    # forward: q.k 64 keys, p.v 128 columns; a warp has 16 rows, an instruction 16 x 8 x 16
    count attn_forward_mma_kernel mma.sync $((128 / 16 * 64 / 8 + 64 / 16 * 128 / 8))
    # for keys, 32 queries at once: k.q and v.do; p.do and ds.q
    count attn_dkdv_mma_kernel mma.sync $((2 * 128 / 16 * 32 / 8 + 2 * 32 / 16 * 128 / 8))
    # for queries: q.k and do.v; ds.k
    count attn_dq_mma_kernel mma.sync $((2 * 128 / 16 * 64 / 8 + 64 / 16 * 128 / 8))
    for head in $heads; do
        compile attention "$arch" -DSIZE="$head"
    done
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
