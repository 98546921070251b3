# For the scripts of this folder. $M is a small model; counts go to the last line.
passed=0 failed=0 skipped=0
top=$PWD M=$PWD/tests/input/_model.tcube t=$TERACUBE
cd "$WORK" || exit 4
i=0; while [ $i -lt 40 ]; do printf '0123456789 "#$,;:?!<'; i=$((i + 1)); done > d.txt
D="--set train.data=$WORK/d.txt"

# A crash, a fault of ours or a sanitizer's report is never an answer.
sane() { [ "$got" -lt 124 ] && ! grep -qE '^fault:|Sanitizer|runtime error:' err; }
bad() { failed=$((failed + 1)); echo "FAIL $1"; head -n 12 err; }

# fails STATUS TEXT COMMAND...: ends with it, stderr has the text, stdout nothing
# that was not printed before. `|` in TEXT stands between texts that must all be there.
fails() {
    want=$1 texts=$2; shift 2
    timeout 120 "$@" > out 2> err; got=$?
    if [ $got != "$want" ] || ! sane; then bad "status $got, expected $want: $*"; return; fi
    rest=$texts
    while [ -n "$rest" ]; do
        text=${rest%%|*}
        case $rest in *'|'*) rest=${rest#*|} ;; *) rest= ;; esac
        grep -qF -- "$text" err || { bad "no \`$text\`: $*"; return; }
    done
    passed=$((passed + 1))
}

# works COMMAND...: status 0
works() {
    timeout 120 "$@" > out 2> err; got=$?
    if [ $got = 0 ] && sane; then passed=$((passed + 1)); else bad "status $got: $*"; fi
}

# is WHAT CONDITION...: a fact, as `test` sees it
is() {
    what=$1; shift
    : > err
    if [ "$@" ]; then passed=$((passed + 1)); else bad "$what"; fi
}

# none PATTERN...: no such file is left behind
none() {
    : > err
    for f in "$@"; do [ -e "$f" ] && { bad "left behind: $f"; return; }; done
    passed=$((passed + 1))
}

# le BYTES N...: numbers, little endian
le() {
    width=$1; shift
    for n; do
        k=0
        while [ $k -lt "$width" ]; do
            printf "\\$(printf %03o $((n % 256)))"; n=$((n / 256)); k=$((k + 1))
        done
    done
}

summary() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; }
