# Output that cannot be written: closed, or on a full disk. Status 4, and what is
# opened later never takes the place of a closed file.
# needs: llvm
. tests/input/_lib.sh
full() { # to /dev/full
    timeout 60 "$@" > /dev/full 2> err; got=$?
    if [ $got = 4 ] && sane && grep -q 'could not write' err; then passed=$((passed + 1)); else
        bad "status $got, expected 4, to /dev/full: $*"; fi
}
closed() {
    timeout 60 "$@" >&- 2> err; got=$?
    if [ $got = 4 ] && sane && grep -q 'could not write' err; then passed=$((passed + 1)); else
        bad "status $got, expected 4, stdout closed: $*"; fi
}
for to in full closed; do
    $to "$t" --help
    $to "$t" --version
    $to "$t" check "$M"
    $to "$t" plan "$M"
    $to "$t" plan "$M" --json
    $to "$t" run "$M" $D --save w.safetensors --log l.jsonl
    none w.safetensors w.safetensors.tmp*
    $to "$t" run "$M" $D --set plan.cube=[1,2,1]
    $to "$t" build "$M" $D --target cpu -o exe
    [ ! -x exe ] || $to ./exe
    [ ! -x exe ] || $to ./exe --help
    rm -f exe
done
# Quiet: nothing to print, so all is well; the log stays a log.
timeout 60 "$t" run "$M" $D -q --save w.safetensors --log l.jsonl >&- 2> err; got=$?
is "status $got of a quiet run without stdout" $got = 0
is 'the log of a quiet run' "$(grep -c '^{"step": ' l.jsonl)" = 3
timeout 60 "$t" check "$M" --set train.bach=1 2>&- > out; got=$?
is "status $got without stderr" $got = 2
timeout 60 "$t" check "$M" <&- >&- 2>&-; got=$?
is "status $got without any file" $got = 4
summary
