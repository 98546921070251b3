# The plan block that `plan` prints, pasted back as a file, gives the same page and the
# same instructions, byte for byte. Several examples, grids, replicas and choices.
passed=0 failed=0
block() { sed -n '/^plan {/,/^}/p'; }
again() { # FILE ARGS: the block alone must do what the arguments did
    file=$1; shift; model=; plan=
    for a; do case $a in plan.*) plan="$plan --set $a" ;; *) model="$model --set $a" ;; esac; done
    # shellcheck disable=SC2086
    "$TERACUBE" plan $file $model $plan > "$WORK/page" &&
    block < "$WORK/page" > "$WORK/plan.tcube" &&
    "$TERACUBE" plan $file "$WORK/plan.tcube" $model > "$WORK/again" &&
    block < "$WORK/again" | diff "$WORK/plan.tcube" - > "$WORK/diff" &&
    "$TERACUBE" plan $file $model $plan --explain partition > "$WORK/a" &&
    "$TERACUBE" plan $file "$WORK/plan.tcube" $model --explain partition > "$WORK/b" &&
    [ -s "$WORK/plan.tcube" ] && [ -s "$WORK/a" ] && diff "$WORK/a" "$WORK/b" > "$WORK/diff"
}
for file in tests/plan/_paste.tcube examples/gpt2.tcube examples/llama.tcube \
    examples/parallel.tcube examples/bert.tcube examples/tiny.tcube; do
    for args in "" "plan.cube=[2,2,2]" "plan.cube=[1,4,1] plan.data=2" "plan.cube=[4,1,1]" \
        "plan.cube=[2,1,2] plan.keep=none" "plan.cube=[1,2,2] plan.data=2 plan.zero=0" \
        "plan.cube=[2,2,1] plan.microbatch=1" "plan.cube=[2,1,2] plan.attention=gather" \
        "plan.partition=summa(2)" \
        "plan.cube=[1,2,1] plan.vectors=sharded" "plan.cube=[1,1,2] plan.rows=plain"; do
        # shellcheck disable=SC2086
        if again $file model.layers=2 train.batch=8 $args 2> "$WORK/err"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1)); echo "FAIL $file $args"; head -6 "$WORK/err" "$WORK/diff"
        fi
    done
done
for file in tests/plan/_paste.tcube examples/gpt2.tcube examples/llama.tcube examples/tiny.tcube; do
    for args in "plan.pipeline=2" "plan.pipeline=4 plan.microbatch=2 plan.schedule=gpipe" \
        "plan.pipeline=2 plan.chunks=2 plan.microbatch=1 plan.cube=[1,2,1]" \
        "plan.pipeline=2 plan.turns=[3,1] plan.zero=2 plan.data=2 plan.keep=inputs" \
        "plan.pipeline=2 plan.slices=uniform(2) plan.recompute=full(1) plan.cube=[1,1,2]" \
        "plan.slices=uniform(4) plan.recompute=attention plan.vectors=sharded" \
        "plan.pipeline=2 plan.slices=uniform(2) plan.partition=summa(2)" \
        "plan.zero=3 plan.data=2 plan.cube=[2,1,1] plan.recompute=full"; do
        # shellcheck disable=SC2086
        if again $file model.layers=4 train.batch=8 $args 2> "$WORK/err"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1)); echo "FAIL $file $args"; head -6 "$WORK/err" "$WORK/diff"
        fi
    done
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
