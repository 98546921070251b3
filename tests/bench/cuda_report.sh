#!/bin/sh
# make cuda-report: what nvcc makes of GPT-2 in bf16, kernel by kernel and for three kinds of GPU:
# registers, spilled bytes, shared memory (ptxas), tensor-core instructions, accesses of 16 bytes
# and narrower ones (PTX); bytes that a row program moves over the least possible (program.cu).
# Then, counted under emulation, the bytes that each kernel of templates/cuda moves.
#   ARCH="sm_90"   MODEL=file   PRECISION=fp64     Status 1 where a register is spilled.
cd "$(dirname "$0")/../.." || exit 4
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
[ -n "$nvcc" ] || { echo "no nvcc (nvidia-cuda-toolkit)"; exit 0; }
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && trap 'exit 130' INT TERM
bad=0
build/teracube emit "${MODEL:-examples/gpt2.tcube}" --set train.precision="${PRECISION:-bf16}" \
    --target cuda -o "$work" -q || exit 1
awk -f tests/bench/rows_traffic.awk "$work/program.cu" > "$work/moved"
for arch in ${ARCH:-sm_80 sm_90 sm_100}; do
    "$nvcc" -std=c++17 -O3 -arch="$arch" -Itemplates/cuda -Iruntime -Xptxas -v -cubin --keep \
        --keep-dir "$work" -o "$work/program.cubin" "$work/program.cu" 2> "$work/ptxas" ||
        { head "$work/ptxas"; exit 1; }
    echo "$arch; emulated at most, never run on a GPU"
    printf '%-52s %9s %7s %7s %4s %9s %9s %11s\n' kernel registers spilled shared mma '16 bytes' \
        narrower moved/least
    awk '
    FILENAME ~ /moved$/ { moved[$1] = $2; next }
    FILENAME ~ /ptx$/ {
        if ($0 ~ /\.entry/) { match($0, /[A-Za-z0-9_]+\(/); k = substr($0, RSTART, RLENGTH - 1) }
        if (/mma\.sync/) mma[k]++
        if (/(ld|st)\.global[^;]*\.v4\.(u32|f32|b32)|(ld|st)\.global[^;]*\.v2\.(f64|u64|b64)/)
            wide[k]++
        else if (/(ld|st)\.global/) thin[k]++
        next
    }
    /Compiling entry function/ { split($0, q, "\x27"); k = q[2] }
    /spill stores/ { match($0, /[0-9]+ bytes spill stores/); spill[k] = substr($0, RSTART) + 0 }
    /Used [0-9]+ registers/ {
        match($0, /Used [0-9]+/); regs[k] = substr($0, RSTART + 5) + 0
        if (match($0, /[0-9]+ bytes smem/)) smem[k] = substr($0, RSTART) + 0
        order[++n] = k
    }
    END {
        for (i = 1; i <= n; i++) {
            k = order[i]; name = k; ratio = ""
            sub(/^_ZN?(5model)?[0-9]+/, "", name)
            for (m in moved)
                if (index(name, m) == 1) ratio = moved[m]
            printf "%-52s %9d %7d %7d %4d %9d %9d %11s\n", substr(name, 1, 52), regs[k], spill[k],
                smem[k], mma[k], wide[k], thin[k], ratio
            spilled += spill[k]
        }
        printf "%d kernels, %d bytes spilled\n\n", n, spilled
        exit spilled > 0
    }' "$work/moved" "$work/program.ptx" "$work/ptxas" || bad=1
done
command -v g++ > /dev/null || { echo "no g++: traffic of the templates is not counted"; exit $bad; }
printf '%-34s %12s %12s %9s\n' 'bytes moved, under emulation' moved least ratio
cc -O2 -c -o "$work/random.o" runtime/random.c &&
    tests/cudasim/simcc check "$work/traffic" tests/cudasim/kernels/traffic.cu -Iruntime \
        "$work/random.o" && TRAFFIC=1 "$work/traffic" || bad=1
exit $bad
