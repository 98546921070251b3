#!/bin/sh
# table.sh - TeraPipe's settings: predicted beside measured, without and with slices.
#     examples/terapipe/table.sh [teracube]
# Measured values are the paper's (Tables 2 and 4); "~" were read off bars. The paper ran the
# layers alone, and so do these: embedding, head and loss are left out (--turns-only). Its
# transfers block the sending stage (--blocking). The last column is the same plan
# with sends beside the compute, as Teracube's schedules have it.
cd "$(dirname "$0")" || exit 4
t=${1:-../../build/teracube}

get() { # KEY FILE
    sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p" "$2" | head -1
}

# Equal neighbours once: 120 x 4 112 x 6
short() {
    sed -n 's/.*"slices": \[\([^]]*\)\].*/\1/p' "$1" | head -1 | tr -d ' ' | tr ',' '\n' | uniq -c |
        awk '{ printf "%s%s", (NR > 1 ? " " : ""), ($1 > 1 ? $2 "x" $1 : $2) }'
}

work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
printf '%-8s | %8s %8s | %8s %8s | %6s %6s | %7s | %s\n' setting without measured with measured \
    faster paper overlap 'slices (of b sequences), then the published ones'
while read -r name file without with published; do
    "$t" simulate "gpt3-$file.tcube" --turns-only --blocking --json \
        --set plan.microbatch=1 --set 'plan.slices=uniform(1)' > "$work/a" || exit
    "$t" simulate "gpt3-$file.tcube" --turns-only --blocking --json > "$work/b" || exit
    slices=$(sed -n 's/.*"slices": \(\[[^]]*\]\).*/\1/p' "$work/b" | head -1)
    b=$(get microbatch "$work/b")
    "$t" simulate "gpt3-$file.tcube" --turns-only --json --set "plan.slices=$slices" \
        --set "plan.microbatch=$b" > "$work/c" || exit
    awk -v n="$name" -v a="$(get step_s "$work/a")" -v b="$(get step_s "$work/b")" \
        -v c="$(get step_s "$work/c")" -v w="$without" -v v="$with" \
        -v s="$(short "$work/b") (b=$b)" -v p="$published" 'BEGIN {
            m = w; k = v; sub("~", "", m); sub("~", "", k)
            printf "%-8s | %8.3f %8s | %8.3f %8s | %6.2f %6.2f | %7.3f | %s; %s\n", n, a, w, b, v,
                a / b, m / k, c, s, p }'
done <<'END'
(1)  1b-1      1.517  1.254  not published
(2)  1b-2      ~1.03  ~1.03  whole sequences
(3)  1b-3      0.913  0.913  whole sequences
(4)  13b-4     ~2.6   ~1.9   not published
(5)  13b-5     1.863  1.328  704 688 656
(6)  44b-6     13.319 7.103  not published
(7)  44b-7     ~4.3   ~2.8   not published
(8)  44b-8     2.662  1.111  384x2 368 320 296x2
(9)  175b-9    9.990  1.481  120x4 112x6 104x8 64
(10) 175b-10   5.822  1.160  16 slices
4096 13b-4096  2.526  0.913  not published
6144 13b-6144  3.754  0.756  not published
8192 13b-8192  4.978  0.636  not published
END
printf '\nslices alone, Table 3: uniform(n), predicted and measured\n'
sweep() { # NAME FILE LENGTHS=SECONDS..
    name=$1 file=$2; shift 2
    for pair in "$@"; do
        "$t" simulate "gpt3-$file.tcube" --turns-only --blocking --json --set plan.microbatch=1 \
            --set "plan.slices=uniform(${pair%=*})" > "$work/a" || exit
        printf '%-5s %4d slices  %7.3f  %7s\n' "$name" "${pair%=*}" "$(get step_s "$work/a")" \
            "${pair#*=}"
    done
}
sweep '(8)' 44b-8 1=2.662 4=1.241 8=1.255 16=1.241
sweep '(9)' 175b-9 1=9.990 4=2.902 8=1.892 16=1.547 32=1.593 64=2.227 128=3.252
