# Generated CUDA programs, executed by the emulator (tests/cudasim: logic, not speed or
# rounding) against the CPU target, both in double precision: losses of 5 steps, and what a
# step of SGD makes of every parameter, which is its gradient.
#   ALL=1    all models on all layouts       ONE=name    that case alone
passed=0 failed=0 skipped=0
[ -n "$WORK" ] || WORK=$(mktemp -d)
command -v g++ > /dev/null || { echo "0 passed, 0 failed, 1 skipped"; exit 0; }
mkdir -p "$WORK"
cc -O2 -o "$WORK/compare" tests/cuda/compare.c -lm || exit 4

small="--set train.precision=fp64 --set train.steps=5 --set train.schedule=constant
    --set train.clip=1e9 --set train.data=/usr/share/common-licenses/GPL-3
    --set train.batch=4 --set train.sequence=24 --set train.optimizer=sgd(lr=1)"
tiny="examples/tiny.tcube --set model.layers=3 --set model.hidden=24 --set model.context=24"
llama="examples/llama.tcube --set model.vocab=256 --set model.hidden=48 --set model.layers=2
    --set model.heads=4 --set model.kv_heads=2 --set model.inner=72 --set train.format=bytes"
parallel="examples/parallel.tcube --set model.vocab=256 --set model.hidden=48 --set model.layers=2
    --set model.heads=4 --set model.rotary=4 --set train.format=bytes"

fails() { failed=$((failed + 1)); echo "FAIL $1"; }

one() { # NAME MODEL SETTING...
    name=$1 model=$2; shift 2
    [ -z "$ONE" ] || [ "$ONE" = "$name" ] || return
    dir=$WORK/cuda
    rm -rf "$dir"; mkdir -p "$dir"
    args=
    for s; do args="$args --set $s"; done
    # shellcheck disable=SC2086
    "$TERACUBE" emit $model $small $args --target cuda -o "$dir" -q 2> "$WORK/err" ||
        { fails "$name: emit"; cat "$WORK/err"; return; }
    (cd "$dir" && ld -r -b binary -z noexecstack -o tables.o program.tables) || exit 4
    tests/cudasim/simcc plain "$dir/program" "$dir/program.cu" -Iruntime "$dir/tables.o" \
        build/libteracube_rt.a > "$WORK/err" 2>&1 ||
        { fails "$name: does not compile"; head -20 "$WORK/err"; return; }
    # shellcheck disable=SC2086
    { "$TERACUBE" run $model $small $args --steps 0 --save "$WORK/w0" -q &&
      "$TERACUBE" run $model $small $args --steps 1 --save "$WORK/w1" -q &&
      "$TERACUBE" run $model $small $args --steps 5 --log "$WORK/l1" -q; } > "$WORK/err" 2>&1 ||
        { fails "$name: the CPU's run"; cat "$WORK/err"; return; }
    CUDASIM_SEED=1 "$dir/program" --steps 5 --log "$WORK/l2" -q > "$WORK/err" 2>&1 ||
        { fails "$name: status $?"; head -20 "$WORK/err"; return; }
    for f in l1 l2; do
        sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p' "$WORK/$f" > "$WORK/$f.loss"
    done
    paste "$WORK/l1.loss" "$WORK/l2.loss" | awk '
        { d = $1 - $2; d = d < 0 ? -d : d; if (!(d <= 1e-10 * $1)) bad = 1; n++ }
        END { exit bad || n != 5 }' ||
        { fails "$name: losses differ"; paste "$WORK/l1.loss" "$WORK/l2.loss"; return; }
    rm -f "$WORK/first"
    for seed in $seeds; do                              # orders of streams
        CUDASIM_SEED=$seed "$dir/program" --steps 1 --save "$WORK/w2" -q > "$WORK/err" 2>&1 ||
            { fails "$name, seed $seed: status $?"; head -20 "$WORK/err"; return; }
        worst=$("$WORK/compare" "$WORK/w2" "$WORK/w1" "$WORK/w0" 1e-10) ||
            { fails "$name, seed $seed: a gradient is off by $worst"; return; }
        [ -e "$WORK/first" ] || cp "$WORK/w2" "$WORK/first"
        cmp -s "$WORK/first" "$WORK/w2" || { fails "$name, seed $seed: other bits"; return; }
    done
    passed=$((passed + 1))
}

seeds="1 2 3"
one one "$tiny"
one cube "$tiny" plan.cube=[2,2,2]
one llama-1d "$llama" plan.cube=[1,4,1]
one parallel-312 "$parallel" plan.cube=[3,1,2] train.batch=6
one replicas "$llama" plan.data=2 plan.cube=[1,2,1] plan.zero=1
one slices "$tiny" plan.pipeline=3 plan.microbatch=2 "plan.slices=[12,8,4]" plan.recompute=full
if [ -n "$ALL" ]; then
    seeds=$(seq 1 50)
    for m in tiny llama parallel; do
        eval "model=\$$m"
        one "$m one" "$model"
        one "$m cube" "$model" plan.cube=[2,2,2]
        one "$m 1d" "$model" plan.cube=[1,4,1]
        one "$m 312" "$model" plan.cube=[3,1,2] train.batch=6
        one "$m replicas" "$model" plan.data=2 plan.cube=[1,2,1]
        one "$m gpipe" "$model" plan.pipeline=2 plan.microbatch=2 "plan.slices=[12,8,4]" \
            plan.schedule=gpipe
        one "$m 1f1b" "$model" plan.pipeline=2 plan.microbatch=2 "plan.slices=[12,8,4]"
        one "$m chunks" "$model" plan.pipeline=2 plan.chunks=2 model.layers=4 plan.microbatch=2
        one "$m recompute" "$model" plan.recompute=full plan.zero=3 plan.data=2
    done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
