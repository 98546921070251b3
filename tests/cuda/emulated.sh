# Generated CUDA programs, executed by the emulator (tests/cudasim: logic, not speed or
# rounding): losses and gradient norms of 5 steps, and what a step of SGD makes of every
# parameter, which is its gradient. In double precision against the CPU target, within
# 1e-10; else against the reference, within what the compiler allows (trajectory.c).
#   ALL=1    all models on all layouts       ONE=name    that case alone
passed=0 failed=0 skipped=0
[ -n "$WORK" ] || WORK=$(mktemp -d)
command -v g++ > /dev/null || { echo "0 passed, 0 failed, 1 skipped"; exit 0; }
mkdir -p "$WORK"
cc -O2 -o "$WORK/compare" tests/cuda/compare.c -lm || exit 4

small="--set train.steps=5 --set train.schedule=constant
    --set train.clip=1e9 --set train.data=/usr/share/common-licenses/GPL-3
    --set train.batch=4 --set train.sequence=24 --set train.optimizer=sgd(lr=1)"
tiny="examples/tiny.tcube --set model.layers=3 --set model.hidden=24 --set model.context=24"
llama="examples/llama.tcube --set model.vocab=256 --set model.hidden=48 --set model.layers=2
    --set model.heads=4 --set model.kv_heads=2 --set model.inner=72 --set train.format=bytes"
parallel="examples/parallel.tcube --set model.vocab=256 --set model.hidden=48 --set model.layers=2
    --set model.heads=4 --set model.rotary=4 --set train.format=bytes"
single="tests/grids/single.tcube --set model.vocab=256"
both="tests/grids/both.tcube --set model.vocab=256"

fails() { failed=$((failed + 1)); echo "FAIL $1"; }

# The twin of a program: the CPU target, in double precision, else the reference.
twin() { # PRECISION MODEL ARGUMENT...
    with=; [ "$1" = fp64 ] || with=--reference
    model=$2; shift 2
    "$TERACUBE" run $model $small $with "$@" -q
}

# What may differ, as the compiler says.
allowed() { # PRECISION MODEL
    [ "$1" = fp64 ] && { echo 1e-10; return; }
    "$TERACUBE" verify $2 $small --set train.precision="$1" --full |
        sed -n 's/.*; \([0-9.e+-]*\) is allowed$/\1/p'
}

# shellcheck disable=SC2086
one() { # NAME PRECISION MODEL SETTING...
    name=$1 precision=$2 model=$3; shift 3
    [ -z "$ONE" ] || [ "$ONE" = "$name" ] || return
    dir=$WORK/cuda
    rm -rf "$dir"; mkdir -p "$dir"
    args="--set train.precision=$precision"
    # After steps of 1 losses jump, and what rounding adds grows beyond a first step's bound.
    [ $precision != bf16 ] || args="$args --set train.optimizer=sgd(lr=0.1)"
    for s; do args="$args --set $s"; done
    "$TERACUBE" emit $model $small $args --target cuda -o "$dir" -q 2> "$WORK/err" ||
        { fails "$name: emit"; cat "$WORK/err"; return; }
    (cd "$dir" && ld -r -b binary -z noexecstack -o tables.o program.tables) || exit 4
    tests/cudasim/simcc plain "$dir/program" "$dir/program.cu" -Iruntime "$dir/tables.o" \
        build/libteracube_rt.a > "$WORK/err" 2>&1 ||
        { fails "$name: does not compile"; head -20 "$WORK/err"; return; }
    { twin $precision "$model" $args --steps 0 --save "$WORK/w0" &&
      twin $precision "$model" $args --steps 1 --save "$WORK/w1" &&
      twin $precision "$model" $args --steps 5 --log "$WORK/l1" &&
      bound=$(allowed $precision "$model") && [ -n "$bound" ]; } > "$WORK/err" 2>&1 ||
        { fails "$name: the twin's run"; cat "$WORK/err"; return; }
    { CUDASIM_SEED=1 "$dir/program" --steps 5 --log "$WORK/l2" -q &&
      "$dir/program" --steps 0 --save "$WORK/v0" -q; } > "$WORK/err" 2>&1 ||
        { fails "$name: status $?"; head -20 "$WORK/err"; return; }
    for f in l1 l2; do
        sed -n 's/.*"loss": *\([0-9.e+-]*\).*"grad_norm": *\([0-9.e+-]*\).*/\1\n\2/p' "$WORK/$f" \
            > "$WORK/$f.numbers"
    done
    paste "$WORK/l1.numbers" "$WORK/l2.numbers" | awk -v most="$bound" '
        { d = $1 - $2; d = d < 0 ? -d : d; if (!(d <= most * $1)) bad = 1; n++ }
        END { exit bad || n != 10 }' ||
        { fails "$name: losses or norms differ by more than $bound"
          paste "$WORK/l1.numbers" "$WORK/l2.numbers"; return; }
    rm -f "$WORK/first"
    for seed in $seeds; do                              # orders of streams
        CUDASIM_SEED=$seed "$dir/program" --steps 1 --save "$WORK/v1" -q > "$WORK/err" 2>&1 ||
            { fails "$name, seed $seed: status $?"; head -20 "$WORK/err"; return; }
        worst=$("$WORK/compare" "$WORK/v1" "$WORK/v0" "$WORK/w1" "$WORK/w0" $bound) ||
            { fails "$name, seed $seed: a gradient is off by $worst, allowed $bound"; return; }
        [ -e "$WORK/first" ] || cp "$WORK/v1" "$WORK/first"
        cmp -s "$WORK/first" "$WORK/v1" || { fails "$name, seed $seed: other bits"; return; }
    done
    [ -z "$V" ] || echo "$name: gradients within $worst of $bound"
    passed=$((passed + 1))
}

seeds="1 2 3"
one one fp64 "$tiny"
one cube fp64 "$tiny" plan.cube=[2,2,2] plan.prefetch=1
one llama-1d fp64 "$llama" plan.cube=[1,4,1]
one parallel-312 fp64 "$parallel" plan.cube=[3,1,2] train.batch=6
one replicas fp64 "$llama" plan.data=2 plan.cube=[1,2,1] plan.zero=1
one slices fp64 "$tiny" plan.pipeline=3 plan.microbatch=2 "plan.slices=[12,8,4]" plan.recompute=full
one boxes fp64 "$single" plan.cube=[2,2,2]
one exchange fp64 "$both" plan.cube=[1,2,3] plan.attention=exchange train.batch=6
one exchange-bf16 bf16 "$tiny" plan.cube=[2,2,1] plan.attention=exchange
one fp32 fp32 "$llama" plan.cube=[1,2,1]
one bf16 bf16 "$llama" plan.cube=[1,2,2]
one bf16-slices bf16 "$tiny" plan.pipeline=2 plan.microbatch=2 "plan.slices=[12,8,4]"
if [ -n "$ALL" ]; then
    seeds=$(seq 1 50)
    for m in tiny llama parallel; do
        eval "model=\$$m"
        one "$m one" fp64 "$model"
        one "$m cube" fp64 "$model" plan.cube=[2,2,2]
        one "$m 1d" fp64 "$model" plan.cube=[1,4,1]
        one "$m 312" fp64 "$model" plan.cube=[3,1,2] train.batch=6
        one "$m replicas" fp64 "$model" plan.data=2 plan.cube=[1,2,1]
        one "$m gpipe" fp64 "$model" plan.pipeline=2 plan.microbatch=2 "plan.slices=[12,8,4]" \
            plan.schedule=gpipe
        one "$m 1f1b" fp64 "$model" plan.pipeline=2 plan.microbatch=2 "plan.slices=[12,8,4]"
        one "$m chunks" fp64 "$model" plan.pipeline=2 plan.chunks=2 model.layers=4 plan.microbatch=2
        one "$m recompute" fp64 "$model" plan.recompute=full plan.zero=3 plan.data=2
        for precision in fp32 bf16; do
            one "$m one $precision" $precision "$model"
            one "$m cube $precision" $precision "$model" plan.cube=[2,2,2]
            one "$m 312 $precision" $precision "$model" plan.cube=[3,1,2] train.batch=6
            one "$m gpipe $precision" $precision "$model" plan.pipeline=2 plan.microbatch=2 \
                "plan.slices=[12,8,4]" plan.schedule=gpipe
            one "$m chunks $precision" $precision "$model" plan.pipeline=2 plan.chunks=2 \
                model.layers=4 plan.microbatch=2 plan.data=2 plan.zero=1
            one "$m recompute $precision" $precision "$model" plan.recompute=full plan.zero=3 \
                plan.data=2
        done
    done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
