# The program of `teracube profile CLUSTER --target cuda`: by nvcc, and measured under the
# emulation, a thread for each rank. (Its judgement: tests/unit/test_survey.c.)
# needs: g++
. tests/input/_lib.sh
sed 's/^cluster.*/cluster c { nodes = 2;  node = 4 * d;  link = 10 GB\/s, 2 us;  network = 1 GB\/s, 10 us;  ports = 2 }/
     s/^device.*/device d { memory = 1 GB;  bandwidth = 1 GB\/s;  matrix = 1 TFLOP\/s;  vector = 1 GFLOP\/s;  arch = sm_90 }/' \
    "$top/tests/simulate/_gpt.tcube" > c.tcube
works "$t" profile c.tcube --target cuda -o dir
is "files" -e dir/profile.cu -a -x dir/launch.sh -a -x dir/launch.sbatch -a -e dir/Makefile
is "srun and mpirun" "$(grep -cE 'srun -N 2 --ntasks-per-node=4|mpirun -np 8 ' dir/launch.sh)" = 2
is "shells" "$(sh -n dir/launch.sh && sh -n dir/launch.sbatch && echo fine)" = fine
lib=${t%/*}/libteracube_rt.a
# without a limit of time: the emulator may have to be compiled as well
if "$top/tests/cudasim/simcc" plain prog -I"$top/runtime" dir/profile.cu "$lib" > err 2>&1; then
    export CUDASIM_DEVICES=8
    works ./prog --tiny --quick
    is "words of --quick" "$(grep -cE '^  (products in bf16|network, each device) ' out)" = 2
    is "a profile is written by --quick" ! -e c.profile
    for seed in 1 2; do
        works env CUDASIM_SEED=$seed ./prog --tiny
        is "groups" "$(grep -cE '^group (all_gather|reduce_scatter|all_reduce) 4 2 2 2 ' c.profile)" = 3
        is "messages" "$(grep -c '^group send 2 ' c.profile)" = 7     # strides 1 2 4, sharing
    done
    { grep -v '^device\|^cluster' c.tcube
      echo 'device d { profile = "c.profile";  arch = sm_90 }'
      grep '^cluster' c.tcube; } > m.tcube
    works "$t" simulate m.tcube --set plan.cube=[1,4,2]
    is "measured rates" "$(grep -c 'measured rates' out)" = 1
    fails 4 'cluster c has 8 GPUs, and this process sees 2: start one process' \
        env CUDASIM_DEVICES=2 ./prog --tiny
    fails 2 'unknown option --fast' ./prog --fast
    fails 4 'could not write no/p' ./prog --tiny -o no/p
    fails 4 'start' env RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=23456 ./prog
    # as processes; then one of them dies
    port=$((24000 + $$ % 5000))
    processes() {
        port=$((port + 1)) pids=''
        for r in 0 1 2 3 4 5 6 7; do
            [ "$r" = "$dies" ] && export CUDASIM_DIE=30 || unset CUDASIM_DIE
            env CUDASIM_PROCESSES=1 CUDASIM_THREADS=1 RANK=$r LOCAL_RANK=$((r % 4)) WORLD_SIZE=8 \
                MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 120 ./prog --tiny -o p.profile \
                > out.$r 2> err.$r &
            pids="$pids $!"
        done
        unset CUDASIM_DIE
        codes=
        for pid in $pids; do wait "$pid"; codes="$codes $?"; done
    }
    dies=none; processes
    is "processes:$codes" "$codes" = " 0 0 0 0 0 0 0 0"
    is "groups of processes" "$(grep -cE '^group (all_gather|reduce_scatter|all_reduce) 4 2 2 2 ' p.profile)" = 3
    dies=5; processes
    is "a rank has died:$codes" "$codes" = " 4 4 4 4 4 137 4 4"
    is "who is gone" "$(cat err.* | grep -c 'rank 5 is gone')" = 1
else
    bad "profile.cu by simcc"
fi
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
if [ -n "$nvcc" ]; then
    cp "$top/tests/cudasim/include/nccl.h" . && mkdir -p near && mv nccl.h near
    works "$nvcc" -std=c++17 -arch=sm_80 -I"$top/templates/cuda" -I"$top/runtime" \
        -Xcompiler -Wall,-Wextra,-Werror -Werror all-warnings -c -o profile.o dir/profile.cu
else
    skipped=$((skipped + 1)); echo "no nvcc"
fi
summary
