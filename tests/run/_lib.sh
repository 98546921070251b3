# For the scripts of this folder: what tests/input/_lib.sh has, and logs compared.
. tests/input/_lib.sh
M=$top/tests/run/_model.tcube

# figures LOG KEY: the values of a key, one a line, as they stand in the log
figures() { sed -n "/^{\"step\"/s/.*\"$2\": \([^,}]*\).*/\1/p" "$1"; }

# near WHAT TOLERANCE FILE FILE: numbers, one a line, equal within a relative tolerance
near() {
    what=$1 tolerance=$2
    paste "$3" "$4" > err
    if [ -s "$3" ] && [ "$(wc -l < "$3")" = "$(wc -l < "$4")" ] &&
        awk -v tol="$tolerance" '{ d = $1 - $2; d = d < 0 ? -d : d; s = $2 < 0 ? -$2 : $2 }
            !(d <= tol * s) || $1 !~ /[0-9]/ { exit 1 }' err
    then passed=$((passed + 1)); else bad "$what"; fi
}

# same WHAT FILE FILE: the same bytes
same() {
    what=$1
    if cmp "$2" "$3" > err 2>&1; then passed=$((passed + 1)); else bad "$what"; fi
}
