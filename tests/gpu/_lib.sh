# For the scripts of this folder: what there is here, and the emulator in its place with DRY=1.
cd "$(dirname "$0")/../.." || exit 4
top=$PWD
begun=$(date +%s)
TERACUBE=${TERACUBE:-$top/build/teracube}
[ -x "$TERACUBE" ] || { echo "skipped: no build/teracube; make first"; exit 77; }
export TERACUBE TERACUBE_TARGET=cpu
out=${OUT:-$top/build/gpu}
mkdir -p "$out" || exit 4

if [ -n "$DRY" ]; then
    nvcc=$top/tests/cudasim/nvcc arch=sm_90 gpus=8 gpu="the emulator: logic, not speed or rounding"
    export CUDASIM_PROCESSES=1
else
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
    asked=$(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2> /dev/null) || asked=
    gpus=$(printf '%s' "$asked" | grep -c .)
    [ "$gpus" -gt 0 ] || { echo "skipped: no GPU"; exit 77; }
    [ -n "$nvcc" ] || { echo "skipped: no nvcc"; exit 77; }
    arch=sm_$(printf '%s' "$asked" | head -n 1 | cut -d, -f1 | tr -d '. ')
    gpu=$(printf '%s' "$asked" | head -n 1 | cut -d, -f2)
fi

: > "$out/table.txt"
failed=0
say() { echo "$*" | tee -a "$out/table.txt"; }
fails() { failed=$((failed + 1)); say "FAIL $1"; [ ! -s "$2" ] || head -n 20 "$2"; }
left() { echo $((limit - $(date +%s) + begun)); }       # seconds

# program NAME ARGUMENT...: emits and builds $out/NAME; $standin: sources instead of NCCL
program() {
    dir=$out/$1; shift
    rm -rf "$dir"
    "$TERACUBE" emit "$@" --target cuda --arch $arch -o "$dir" -q > "$out/err" 2>&1 &&
        make -C "$dir" NVCC="$nvcc" TERACUBE="$top" CHECKS="$standin" > "$out/err" 2>&1 ||
        { fails "$dir is not made" "$out/err"; return 1; }
}

losses() { sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p' "$1"; }
# The middle of the times of a step, the first quarter left out.
step_s() {
    sed -n 's/.*"step_s": *\([0-9.e+-]*\).*/\1/p' "$1" | awk '{ t[NR] = $1 } END {
        n = 0; for (i = int(NR / 4) + 1; i <= NR; i++) s[++n] = t[i]
        for (i = 2; i <= n; i++) for (k = i; k > 1 && s[k - 1] > s[k]; k--) {
            x = s[k]; s[k] = s[k - 1]; s[k - 1] = x }
        print n ? s[int((n + 1) / 2)] : "" }'
}
# value FILE KEY: the first such key of a JSON file
value() { tr ',{}' '\n\n\n' < "$1" | sed -n "s/^ *\"$2\": *//p" | head -n 1; }

# profile FILE DEVICES: measures the GPUs of this machine, so many, for `device { profile = .. }`
profile() {
    { echo "device here { memory = 1 GB; matrix = 1 TFLOP/s; vector = 1 TFLOP/s;"
      echo "    bandwidth = 1 TB/s; arch = $arch }"
      echo "cluster here { nodes = 1; node = $2 * here; link = 1 GB/s, 1 us; network = 1 GB/s, 1 us }"
    } > "$out/here.tcube"
    rm -rf "$out/profile" "$1"
    if "$TERACUBE" profile "$out/here.tcube" --target cuda -o "$out/profile" > "$out/err" 2>&1 &&
        make -C "$out/profile" NVCC="$nvcc" TERACUBE="$top" ARCH=$arch > "$out/err" 2>&1 &&
        env -u CUDASIM_PROCESSES timeout 120 "$out/profile/profile" ${DRY:+--tiny} -o "$1" \
            > "$out/profile/said" 2> "$out/err" && [ -s "$1" ]; then say "device profile: $1"
    else fails "the device profile" "$out/err"; fi
}
