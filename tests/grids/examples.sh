# Every example on five grids, one of them of more than 64 ranks, one with products of blocks:
# verified against the reference in fp64, shrunk where it is too large to execute.
# needs: llvm
set -u
cd "$(dirname "$0")" || exit 4
passed=0 failed=0
for f in ../../examples/*.tcube ../../examples/cube/model.tcube; do
    case $f in *175b*) continue ;; esac         # gpt2, larger
    # tiny has a context of 64 tokens; 2592 tokens a step fit all of these grids
    for grid in "1,1,1" "2,2,2" "1,2,4" "2,1,2 --set plan.data=24" \
        "1,2,2 --set plan.partition=summa(2)"; do
        if timeout 120 "$TERACUBE" verify "$f" --small --set train.precision=fp64 \
            --set train.batch=48 --set train.sequence=54 --set plan.cube=[${grid%% *}] \
            ${grid#${grid%% *}} > "$WORK.out" 2>&1; then passed=$((passed + 1))
        else failed=$((failed + 1)); echo "FAIL $f $grid"; tail -n 5 "$WORK.out"; fi
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
