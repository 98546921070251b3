# Generated CUDA programs, executed by the emulator (tests/cudasim: logic, not speed or
# rounding): losses and gradient norms of 5 steps, and what a step of SGD makes of every
# parameter, which is its gradient. In double precision against the CPU target, within
# 1e-10; else against the reference, within what the compiler allows (trajectory.c).
# Every order of streams and threads must give the same bits; so must the builds that look
# for overruns (asan) and for races, missing waits and bounds (check).
# GPU=NVCC ARCH=sm_90: not emulated, but by this nvcc and on this machine's GPU, with cases of
# its own (tests/gpu/run.sh).
# NAME@one: all ranks on one GPU, with tests/gpu/onedevice.cu instead of NCCL.
#   ALL=1    all models on all layouts, in all builds, with 50 orders of streams
#   ONE=PATTERN    those cases alone         V=1    how near each one is
passed=0 failed=0 turn=0
[ -n "$WORK" ] || WORK=$(mktemp -d)
command -v g++ > /dev/null || { echo "0 passed, 0 failed, 1 skipped"; exit 0; }
mkdir -p "$WORK"
cc -O2 -o "$WORK/compare" tests/cuda/compare.c -lm || exit 4

small="--set train.steps=5 --set train.schedule=constant
    --set train.clip=1e9 --set train.data=/usr/share/common-licenses/GPL-3
    --set train.batch=4 --set train.sequence=24 --set train.optimizer=sgd(lr=1)"
# After steps of 1 losses jump, and what rounding adds grows.
slower="--set train.optimizer=sgd(lr=0.1)"
tiny="examples/tiny.tcube --set model.layers=3 --set model.hidden=24 --set model.context=24"
llama="examples/llama.tcube --set model.vocab=256 --set model.hidden=48 --set model.layers=2
    --set model.heads=4 --set model.kv_heads=2 --set model.inner=72 --set train.format=bytes"
parallel="examples/parallel.tcube --set model.vocab=256 --set model.hidden=48 --set model.layers=2
    --set model.heads=4 --set model.rotary=4 --set train.format=bytes"
single="tests/grids/single.tcube --set model.vocab=256"
rows="tests/cuda/wide.tcube"
both="tests/grids/both.tcube --set model.vocab=256"
names="tests/grids/names.tcube"

fails() { failed=$((failed + 1)); echo "FAIL $1"; }

# The twin of a program: the CPU target, in double precision, else the reference.
twin() { # PRECISION MODEL ARGUMENT...
    with="--target cpu"; [ "$1$GPU" = fp64 ] || with=--reference
    model=$2; shift 2
    "$TERACUBE" run $model $small $with "$@" -q
}

# What may differ, as the compiler says.
allowed() { # PRECISION MODEL
    [ "$1" = fp64 ] && { echo 1e-10; return; }
    "$TERACUBE" verify $2 $small --set train.precision="$1" --full |
        sed -n 's/.*; \([0-9.e+-]*\) is allowed$/\1/p' | grep . || [ -z "$GPU" ] ||
        case $1 in fp32) echo 1e-4 ;; bf16) echo 0.1 ;; esac        # TUNING: without LLVM
}

# The build $1 of the program, as $dir/$1.
build() {
    standin=
    case $name in *@one*) standin="-include $PWD/tests/gpu/onedevice.h $PWD/tests/gpu/onedevice.cu"
    esac
    if [ -n "$GPU" ]; then
        make -C "$dir" NVCC="$GPU" ARCH="$ARCH" TERACUBE="$PWD" CHECKS="$standin" \
            > "$dir/err" 2>&1 && cp "$dir/program" "$dir/$1" && return
        fails "$name: does not compile"; head -20 "$dir/err"
        return 1
    fi
    # shellcheck disable=SC2086
    tests/cudasim/simcc "$1" "$dir/$1" "$dir/program.cu" $standin -Iruntime "$dir/tables.o" \
        build/libteracube_rt.a > "$dir/err" 2>&1 ||
        { fails "$name: the $1 build does not compile"; head -20 "$dir/err"; return 1; }
}

# The gradients of a step, as build $1 makes them with orders of threads and streams.
step() { # BUILD ORDER SEED
    CUDASIM_ORDER=$2 CUDASIM_SEED=$3 "$dir/$1" --steps 1 --save "$dir/v1" -q > "$dir/err" 2>&1 ||
        { fails "$name, $1 build, order $2, seed $3: status $?"; head -20 "$dir/err"; return 1; }
    [ -e "$dir/first" ] || cp "$dir/v1" "$dir/first"
    cmp -s "$dir/first" "$dir/v1" ||
        { fails "$name, $1 build, order $2, seed $3: other bits"; return 1; }
}

# A good step that is taken for a broken one: behind each of its steps all numbers are looked at.
no_fault() {
    case " $looked " in *" $name "*) ;; *) [ -n "$ALL" ] || return 0 ;; esac
    RT_LOOK=1 CUDASIM_SEED=3 "$dir/plain" --steps 1 -q 2> "$dir/err" > /dev/null
    grep -q '^note: no tensor is' "$dir/err" ||
        { fails "$name: the search in a good step"; head -5 "$dir/err"; return 1; }
}

same_numbers() { # what differs by more than $bound is printed
    for f in l1 l2; do
        sed -n 's/.*"loss": *\([0-9.e+-]*\).*"grad_norm": *\([0-9.e+-]*\).*/\1\n\2/p' "$dir/$f" \
            > "$dir/$f.numbers"
    done
    paste "$dir/l1.numbers" "$dir/l2.numbers" | awk -v most="$bound" '
        { d = $1 - $2; d = d < 0 ? -d : d; if (!(d <= most * $1)) { print; bad = 1 } n++ }
        END { exit bad || n != 10 }'
}

# shellcheck disable=SC2086
one() { # NAME PRECISION MODEL SETTING...
    name=$1 precision=$2 model=$3; shift 3
    case $name in ${ONE:-*}) ;; *) return ;; esac
    turn=$((turn + 1))
    [ $((turn % workers)) = $worker ] || return
    case $name in
        *@one*) export RT_SHARE_GPU=1 CUDASIM_DEVICES=1 ;;
        *)      unset RT_SHARE_GPU CUDASIM_DEVICES ;;
    esac
    rm -rf "$dir"; mkdir -p "$dir"
    args="--set train.precision=$precision"
    for s; do args="$args --set $s"; done
    small_steps=$slower
    case $args in *adamw*) small_steps= ;; esac
    "$TERACUBE" emit $model $small $args --target cuda -o "$dir" -q 2> "$dir/err" ||
        { fails "$name: emit"; cat "$dir/err"; return; }
    (cd "$dir" && ld -r -b binary -z noexecstack -o tables.o program.tables) || exit 4
    build plain || return
    { twin $precision "$model" $args --steps 0 --save "$dir/w0" &&
      twin $precision "$model" $args --steps 1 --save "$dir/w1" &&
      twin $precision "$model" $args $small_steps --steps 5 --log "$dir/l1" &&
      bound=$(allowed $precision "$model") && [ -n "$bound" ]; } > "$dir/err" 2>&1 ||
        { fails "$name: the twin's run"; cat "$dir/err"; return; }
    { CUDASIM_SEED=1 "$dir/plain" $small_steps --steps 5 --log "$dir/l2" -q &&
      "$dir/plain" --steps 0 --save "$dir/v0" -q; } > "$dir/err" 2>&1 ||
        { fails "$name: status $?"; head -20 "$dir/err"; return; }
    same_numbers > "$dir/err" ||
        { fails "$name: losses or norms differ by more than $bound"; cat "$dir/err"; return; }
    step plain asc 1 || return
    no_fault || return
    worst=$("$WORK/compare" "$dir/v1" "$dir/v0" "$dir/w1" "$dir/w0" $bound) ||
        { fails "$name: a gradient is off by $worst, allowed $bound"; return; }
    step plain desc 2 && step plain random 3 || return
    for seed in $seeds; do step plain asc $seed || return; done
    for mode in asan check; do
        case " $ALL $sanitized " in *" 1 "* | *" $name:$mode "*) ;; *) continue ;; esac
        build $mode && step $mode asc 1 || return
    done
    [ -z "$V" ] || echo "$name: gradients within $worst of $bound"
    passed=$((passed + 1))
}

looked="cube summa slices exchange-bf16 ends bf16-slices"
sanitized="cube@one:check parallel-312:asan ends-again:asan cube:check slices:check ends:check"
few() {
    one one fp64 "$tiny"
    one cube fp64 "$tiny" plan.cube=[2,2,2] plan.prefetch=1
    one llama-1d fp64 "$llama" plan.cube=[1,4,1]
    one parallel-312 fp64 "$parallel" plan.cube=[3,1,2] train.batch=6
    one summa fp64 "$tiny" "plan.partition=summa(2)" plan.data=2
    one replicas fp64 "$llama" plan.data=2 plan.cube=[1,2,1] plan.zero=1
    one wide fp64 "$rows" train.batch=1
    one slices fp64 "$tiny" plan.pipeline=3 plan.microbatch=2 "plan.slices=[12,8,4]" \
        plan.recompute=full
    one boxes fp64 "$single" plan.cube=[2,2,2]
    one names fp64 "$names" plan.pipeline=3 plan.microbatch=2
    one exchange fp64 "$both" plan.cube=[1,2,3] plan.attention=exchange train.batch=6
    one cube@one fp64 "$tiny" plan.cube=[2,2,1] plan.pipeline=2 plan.microbatch=2
    one exchange-bf16 bf16 "$tiny" plan.cube=[2,2,1] plan.attention=exchange
    one fp32 fp32 "$llama" plan.cube=[1,2,1]
    one bf16 bf16 "$llama" plan.cube=[1,2,2]
    one ends fp32 "$tiny" plan.cube=[1,2,1]
    one ends-again bf16 "$tiny" model.hidden=20 plan.recompute=full
    # eps keeps what is noise in a gradient from becoming a step of lr
    one adamw fp64 "$tiny" plan.data=2 plan.zero=2 plan.logits_chunk=16 train.clip=0.5 \
        "train.optimizer=adamw(lr=0.1,eps=0.1,weight_decay=0.1)"
    one adamw-bf16 bf16 "$tiny" plan.cube=[1,2,1] plan.logits_chunk=16 train.clip=0.5 \
        "train.optimizer=adamw(lr=0.01,eps=0.1,weight_decay=0.1)"
    one bf16-slices bf16 "$tiny" plan.pipeline=2 plan.microbatch=2 "plan.slices=uniform(3)"
}

# Heads of 64, as tensor cores like them.
on_gpu() {
    small="$small --set train.sequence=${LONG:-128} --set model.hidden=${HIDDEN:-256}
        --set model.heads=4"
    wide="$tiny --set model.context=128"
    for precision in fp64 fp32 bf16; do
        one "gpt $precision" $precision "$wide"
        one "llama $precision" $precision "$llama --set model.inner=384"
    done
    one cube@one fp32 "$wide" plan.cube=[2,2,2] plan.prefetch=1
    one slices@one fp64 "$wide" plan.pipeline=3 plan.microbatch=2 \
        "plan.slices=[$((${LONG:-128} - 40)),24,16]"
    one chunks@one bf16 "$wide" plan.pipeline=2 plan.chunks=2 model.layers=4 plan.microbatch=2
    one exchange@one bf16 "$wide" plan.cube=[2,2,1] plan.attention=exchange
    one replicas@one bf16 "$wide" plan.data=2 plan.cube=[1,2,1] plan.zero=3 plan.recompute=full
    one summa@one fp64 "$wide" "plan.partition=summa(2)"
}

all() {
    few
    seeds=$(seq 4 50)
    one summa@one fp64 "$tiny" "plan.partition=summa(2)"
    one bf16@one bf16 "$llama" plan.cube=[2,2,1] plan.data=2 plan.zero=3
    for m in tiny llama parallel; do
        eval "model=\$$m"
        three="plan.pipeline=3 model.layers=3 plan.microbatch=2 plan.slices=[12,8,4]"
        one "$m one" fp64 "$model"
        one "$m cube" fp64 "$model" plan.cube=[2,2,2]
        one "$m 1d" fp64 "$model" plan.cube=[1,4,1]
        one "$m 312" fp64 "$model" plan.cube=[3,1,2] train.batch=6 plan.prefetch=1
        one "$m replicas" fp64 "$model" plan.data=2 plan.cube=[1,2,1]
        one "$m gpipe" fp64 "$model" $three plan.schedule=gpipe
        one "$m 1f1b" fp64 "$model" $three
        one "$m chunks" fp64 "$model" plan.pipeline=2 plan.chunks=2 model.layers=4 plan.microbatch=2
        one "$m uniform" fp64 "$model" plan.pipeline=2 plan.chunks=2 model.layers=4 \
            plan.microbatch=2 "plan.slices=uniform(3)" plan.cube=[1,2,1]
        one "$m recompute" fp64 "$model" plan.recompute=full plan.zero=3 plan.data=2
        for precision in fp32 bf16; do
            one "$m one $precision" $precision "$model"
            one "$m cube $precision" $precision "$model" plan.cube=[2,2,2]
            one "$m 312 $precision" $precision "$model" plan.cube=[3,1,2] train.batch=6
            one "$m gpipe $precision" $precision "$model" $three plan.schedule=gpipe
            one "$m chunks $precision" $precision "$model" plan.pipeline=2 plan.chunks=2 \
                model.layers=4 plan.microbatch=2 plan.data=2 plan.zero=1
            one "$m recompute $precision" $precision "$model" plan.recompute=full plan.zero=3 \
                plan.data=2
        done
    done
}

# Two workers, each of which takes every other case.
worker() {
    worker=$1 turn=0 dir=$WORK/$1
    if [ -n "$GPU" ]; then on_gpu; elif [ -n "$ALL" ]; then all; else few; fi
    echo "$passed $failed" > "$WORK/$worker.counts"
}
workers=2
export CUDASIM_THREADS=1
worker 1 > "$WORK/1.out" 2>&1 & other=$!
worker 0
wait $other
cat "$WORK/1.out"
read -r passed failed < "$WORK/0.counts"
read -r p f < "$WORK/1.counts"
passed=$((passed + p)) failed=$((failed + f))
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ] && [ -n "$p" ]
