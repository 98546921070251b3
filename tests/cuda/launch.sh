# How an emitted CUDA program starts, fails, saves and reports, as processes: one for each rank,
# under what torchrun, Slurm and Open MPI set, by --root, by launch.sh and launch.sbatch. The GPUs
# and NCCL are emulated (tests/cudasim); processes, sockets and deaths are real.
# needs: llvm
. tests/input/_lib.sh
command -v g++ > /dev/null || { echo "no g++"; exit 77; }
[ "$SAN" != 1 ] || { echo "the emulator is not built with sanitizers"; exit 77; }
export CUDASIM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES RT_COMM RT_TIMEOUT

# Two replicas of two stages; the replicas of a stage are a node of the cluster.
cat > c.tcube <<'E'
device d { memory = 8 GB; matrix = 9 TFLOP/s; vector = 9 TFLOP/s; bandwidth = 1 TB/s; arch = sm_90 }
cluster c { nodes = 2; node = 2 * d; link = 9 GB/s, 1 us; network = 9 GB/s, 1 us }
E
layout="--set plan.data=2 --set plan.pipeline=2 --set plan.zero=1 --set plan.slices=[4,4]
    --set plan.ranks=[stage,data,x,y,z]"
common="$D --set train.precision=fp64 --set train.steps=8 --set train.clip=1"
make_program() { # DIR SETTING...
    dir=$1; shift
    works "$t" emit "$M" c.tcube $common "$@" --target cuda -o $dir
    (cd $dir && ld -r -b binary -z noexecstack -o tables.o program.tables) || exit 4
    "$top/tests/cudasim/simcc" plain $dir/program $dir/program.cu -I"$top/runtime" $dir/tables.o \
        "$top/build/libteracube_rt.a" > err 2>&1 || { bad "$dir does not compile"; summary; exit 1; }
}
make_program gen $layout
P=$PWD/gen/program
losses() { sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p' "$1"; }
port=$((16000 + $$ % 9000))

# as BY RANK COMMAND...: with what a launcher sets for that rank of $n
n=4
as() {
    by=$1 r=$2; shift 2
    case $by in
        torchrun) env RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 \
                      MASTER_PORT=$port "$@" ;;
        slurm)    env SLURM_JOB_ID=$port SLURM_STEP_ID=0 SLURM_PROCID=$r SLURM_LOCALID=$r \
                      SLURM_STEP_NUM_TASKS=$n SLURM_STEP_NODELIST='localhost,b[1-3]' "$@" ;;
        mpi)      env OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=$n PMIX_NAMESPACE=job.$port \
                      OMPI_COMM_WORLD_LOCAL_RANK=$r OMPI_COMM_WORLD_LOCAL_SIZE=$n "$@" ;;
        root)     "$@" --rank $r --world $n --root "127.0.0.1:$port" ;;
        cyclic)   env RT_HOST=$([ $((r % 2)) = 0 ] && echo a || echo b) RANK=$r WORLD_SIZE=$n \
                      LOCAL_RANK=$((r / 2)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" ;;
        nodes)    env RT_HOST=$([ $r -lt 2 ] && echo a || echo b) RANK=$r WORLD_SIZE=$n \
                      LOCAL_RANK=$((r % 2)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" ;;
        alone)    env CUDA_VISIBLE_DEVICES=${gpu:-$r} RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r \
                      MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" ;;
    esac
}
# start BY 'RANKS' ARGUMENT...: those ranks; their outputs in out.R, err.R. $die, $hang: rank and
# count of operations; $other: rank and an option that it alone has
start() {
    how=$1 ranks=$2 pids=''; shift 2
    rm -f out.* err.*
    port=$((port + 1))
    for rank in $ranks; do
        case $die in "$rank "*) export CUDASIM_DIE="${die#* }" ;; *) unset CUDASIM_DIE ;; esac
        case $hang in "$rank "*) export CUDASIM_HANG="${hang#* }" ;; *) unset CUDASIM_HANG ;; esac
        case $other in "$rank "*) mine=${other#* } ;; *) mine='' ;; esac
        as $how $rank timeout 60 "$P" "$@" $mine > out.$rank 2> err.$rank &
        pids="$pids $!"
    done
    unset CUDASIM_DIE CUDASIM_HANG
}
finish() {
    statuses=''
    for pid in $pids; do wait $pid; statuses="$statuses $?"; done
    statuses=${statuses# }
    cat err.* > err
}
all="0 1 2 3"
goes() { # BY WHAT ARGUMENT...: all ranks end well
    by=$1 what=$2; shift 2
    start "$by" "$all" -q "$@"
    finish
    if [ "$statuses" = '0 0 0 0' ]; then passed=$((passed + 1)); else bad "$what: $statuses"; fi
}
tells() { # STATUSES 'TEXT|TEXT': one message has them all
    finish
    [ "$statuses" = "$1" ] || { bad "statuses $statuses, expected $1: $how"; return; }
    [ "$(grep -c ': error: ' err)" = 1 ] || { bad "not one message: $how"; return; }
    rest=$2
    while [ -n "$rest" ]; do
        text=${rest%%|*}
        case $rest in *'|'*) rest=${rest#*|} ;; *) rest='' ;; esac
        grep -qE -- "$text" err || { bad "no \`$text\`: $how"; return; }
    done
    passed=$((passed + 1))
}
# same WHAT LOG [FILE]: the losses of the run in threads, or those in FILE, to the last bit
same() {
    losses "$2" > have; : > err
    if cmp -s have "${3:-losses}"; then passed=$((passed + 1)); else bad "$1: other losses"; fi
}

# ---- the same run, however it is started --------------------------------------------------------
unset CUDASIM_PROCESSES
works "$P" -q --log l.threads --save w.threads --set 'train.checkpoint=every(4, "c.threads")'
losses l.threads > losses
is 'eight losses' "$(wc -l < losses)" = 8
export CUDASIM_PROCESSES=1
for by in torchrun slurm mpi root nodes alone; do
    goes $by $by --log l.$by --save w.$by
    same $by l.$by
    is "$by: the weights" "$(cmp w.$by w.threads 2>&1)" = ''
done
works env PORT=$((port + 50)) gen/launch.sh --log l.launch
is 'launch.sh starts processes' "$(grep -c '4 ranks as processes' out)" = 1
same launch.sh l.launch
if command -v mpirun > /dev/null; then
    works env HOSTS=localhost:4 PORT=$((port + 51)) gen/launch.sh -q --log l.hosts
    same 'launch.sh by mpirun' l.hosts
    works mpirun -np 4 "$P" -q --log l.mpirun
    same mpirun l.mpirun
else
    echo "SKIP cuda/launch.sh: no mpirun"; skipped=$((skipped + 4))
fi
if command -v torchrun > /dev/null && torchrun --no_python --nproc_per_node 1 true 2> /dev/null; then
    works torchrun --no_python --nproc_per_node 4 --master_port $((port + 60)) "$P" -q \
        --log l.torch
    same torchrun l.torch
else
    echo "SKIP cuda/launch.sh: no torchrun that starts \`true\`"; skipped=$((skipped + 2))
fi

# launch.sbatch, with a script in the place of srun that sets what Slurm does.
mkdir bin
cat > bin/srun <<'E'
#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
r=0
while [ $r -lt "$SLURM_NTASKS" ]; do
    SLURM_PROCID=$r SLURM_LOCALID=$r SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$SLURM_NTASKS \
        SLURM_STEP_NODELIST='localhost' "$@" &
    r=$((r + 1))
done
wait
E
chmod +x bin/srun
is 'launch.sbatch asks for what the plan has' "$(grep -cE \
    'nodes=2$|ntasks=4$|ntasks-per-node=2$|gpus-per-node=2$|distribution=block' gen/launch.sbatch)" = 5
works bash -n gen/launch.sbatch
works sh -n gen/launch.sh
works env PATH="$PWD/bin:$PATH" SLURM_SUBMIT_DIR=gen SLURM_NTASKS=4 SLURM_JOB_ID=$port \
    SLURM_JOB_NODELIST=localhost SLURM_PROCID=0 bash gen/launch.sbatch -q --log ../l.sbatch
same launch.sbatch l.sbatch

# ---- saved by processes, gone on as threads and on the CPU, and the other way round -------------
tail -n 4 losses > last
goes torchrun 'half a run' --set 'train.checkpoint=every(4, "c.processes")' --steps 4
is 'a checkpoint' -s c.processes/step-000004/optimizer.safetensors
works env -u CUDASIM_PROCESSES "$P" -q --resume c.processes --log l.resumed
same 'resumed as threads' l.resumed last
works "$t" run "$M" $common --target cpu -q --resume c.processes --log l.cpu
losses l.cpu > cpu
if paste cpu last | awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-10 * $1)) bad = 1 }
    END { exit bad || NR != 4 }'; then passed=$((passed + 1)); else bad 'resumed on the CPU'; fi
goes torchrun 'resumed as processes' --resume c.threads/step-000004 --log l.back
same 'resumed as processes' l.back last

# ---- the trace -----------------------------------------------------------------------------------
goes torchrun 'a trace' --steps 2 --trace trace.json
works "$t" simulate "$M" c.tcube $common $layout --trace simulated.json
names() { grep -oE '"name": "(forward|backward|send|recv|sync|optimizer)[a-z_]*( [0-9.]*)?"' "$1" |
    sort -u; }
names simulated.json > want; names trace.json | grep -v recv > have     # waiting is not drawn
works "$t" compare "$M" c.tcube $common $layout trace.json
is 'the trace has the names of the simulator' "$(wc -l < want)" -ge 8
is 'and no other ones' "$(diff want have)" = ''
is 'it has all ranks' "$(grep -o '"tid": [0-9]*' trace.json | sort -u | wc -l)" = 4

# ---- the profile of its devices --------------------------------------------------------------------
export RT_PROFILE=tiny
goes torchrun 'a profile' --profile p.txt
unset RT_PROFILE
fails 2 'd.txt would overwrite a file that is no profile' "$P" --profile d.txt
sed 's/arch = sm_90/&; profile = "p.txt"/' c.tcube > profiled.tcube
works "$t" plan "$M" profiled.tcube $common $layout
is 'of the cluster' "$(grep '^cluster' p.txt)" = 'cluster 2 2 1 of the plan'

# ---- ranks in another order: a node has the stages of a replica ----------------------------------
make_program other --set plan.data=2 --set plan.pipeline=2 --set 'plan.ranks=[data,stage,x,y,z]'
works env -u CUDASIM_PROCESSES other/program -q --log l.other
losses l.other > losses.other
P=$PWD/other/program
goes nodes 'another order' --log l.nodes --trace trace.other
same 'another order' l.nodes losses.other
is 'the trace has all ranks' "$(grep -o '"pid": [0-9]*, "tid": [0-9]*' trace.other | sort -u |
    tr '\n' ' ')" = '"pid": 0, "tid": 0 "pid": 0, "tid": 1 "pid": 1, "tid": 2 "pid": 1, "tid": 3 '
die='2 9'
start nodes "$all" -q
tells '4 4 137 4' 'rank 1 on b is gone'        # the third process is rank 1: replica 1, stage 0
die='' P=$PWD/gen/program

# ---- what goes wrong ------------------------------------------------------------------------------
now=$(date +%s)
start torchrun '0 1 3' -q
tells '4 4 4' 'rank 2 did not come within 9 s to rank 0 on|ranks 0, 1 and 3 did|rank 3 is on'
is 'a missing peer is known within 10 s' $(($(date +%s) - now)) -le 12
export RT_JOIN=2
start torchrun '1 2 3' -q
tells '4 4 4' 'rank 1 waited in vain for rank 0 at 127.0.0.1, port '
unset RT_JOIN
n=2
start torchrun '0 1' -q
tells '4 4' 'the plan has 4 ranks, torchrun started 2 processes; --nnodes times'
start slurm '0 1' -q
tells '4 4' 'the plan has 4 ranks, Slurm started 2 processes; use srun -n 4'
start mpi '0 1' -q
tells '4 4' 'the plan has 4 ranks, Open MPI started 2 processes; use mpirun -np 4'
n=4
start cyclic "$all" -q
tells '4 4 4 4' 'ranks 0 and 1 share data but not a node: the launcher placed ranks cyclically|rank 0 is on a, rank 1 on b'
RT_PLACEMENT=any; export RT_PLACEMENT
goes cyclic 'RT_PLACEMENT=any' --steps 1
unset RT_PLACEMENT
head -c 500 d.txt > short.txt
for option in steps=3 train.lr=0.5 train.seed=7 train.data=short.txt; do
    case $option in train.*) other="2 --set $option" ;; *) other="2 --$option" ;; esac
    start torchrun "$all" -q
    option=${option#train.}
    case $option in data=*) option='tokens of data=' ;; esac
    tells '2 2 2 2' "rank 2 has ${option%%=*} .*, rank 0 .*; all ranks are started with the same"
done
other=''; b=$(od -An -tu1 -j 9000 -N 1 w.torchrun); cp w.torchrun bad.w
printf "\\$(printf %03o $((b ^ 16)))" | dd of=bad.w bs=1 seek=9000 conv=notrunc 2> err
start torchrun "$all" -q --load bad.w
tells '1 1 1 1' 'tensor .* is damaged: the checksum of its bytes is '
# A number that is not finite: the tensor is that which the CPU target names.
size=$(wc -c < w.torchrun)
{ head -c $((size - 8)) w.torchrun | sed 's/"crc32c"/"crc32x"/'
  printf '\0\0\0\0\0\0\370\177'; } > broken.w
"$t" run "$M" c.tcube $common $layout --target cpu -q --load broken.w 2> err; grep '^note' err > want
start torchrun "$all" -q --load broken.w
tells '1 1 1 1' 'the loss of step 1 is not finite: nan'
grep '^note' err > have
is 'the first tensor that is not finite' "$(grep -c 'first on rank .*plan step\|is nan, as rank' want)" = 2
is 'as on the CPU' -z "$(diff want have)"
for option in --save --log --load; do
    other="2 $option w.torchrun"
    start torchrun "$all" -q
    tells '2 2 2 2' "rank 2 has $option [wy].*, rank 0 $option no; all ranks are started with the same"
done
other='2 --set train.checkpoint=every(1,"ck2")'
start torchrun "$all" -q --set 'train.checkpoint=every(1,"ck1")'
tells '2 2 2 2' 'rank 2 has checkpoints ck2, rank 0 checkpoints ck1'
other=''
CUDASIM_DEVICES=0; export CUDASIM_DEVICES
start torchrun "$all" -q
tells '4 4 4 4' 'there is no GPU on '
CUDASIM_DEVICES=2
start torchrun "$all" -q
tells '4 4 4 4' 'rank 2 is number 3 on .*, which has 2 GPUs'
fails 4 'the plan has 4 ranks, this machine 2 GPUs' "$P" -q
unset CUDASIM_DEVICES
gpu=1
start alone "$all" -q
tells '4 4 4 4' 'ranks 0 and 1 take the same GPU \(0000:01:00.0\) of '
gpu=''
fails 4 "has 0 B of memory, the plan's block" env CUDASIM_MEMORY_MB=0 "$P" -q
fails 4 'and what stands beside it 4.' env CUDASIM_MEMORY_MB=4 "$P" -q
fails 4 '--rank, --world and --root HOST:PORT go together' "$P" --rank 0 --world 4
fails 4 '--root needs --rank and --world' "$P" --root localhost:1
fails 4 '--root localhost: expected HOST:PORT' "$P" --rank 0 --world 4 --root localhost
fails 4 'there is no rank 4 among 4' "$P" --rank 4 --world 4 --root localhost:7
fails 4 'but not MASTER_ADDR' env RANK=0 WORLD_SIZE=4 "$P"
fails 4 'does not say on which host rank 0 is' env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 "$P"
fails 4 'rank 1 waited in vain for rank 0 at no07-x, port ' env RT_JOIN=0.2 SLURM_JOB_ID=1 \
    SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_STEP_NODELIST='no[07-09,11]-x,b[1,3]' "$P"

# Killed in step 3: by the count of operations, of which a run of two steps says how many it has.
die='1 0'
goes torchrun 'two steps' --steps 2
count=$(sed -n 's/ operations$//p' err)
count=$((count + count / 4))
for who in 1 0 3; do
    die="$who $count"
    now=$(date +%s)
    start torchrun "$all"
    case $who in 0) want='137 4 4 4' ;; 1) want='4 137 4 4' ;; 3) want='4 4 4 137' ;; esac
    tells "$want" "rank $who on .* is gone: its process has ended; rank [01] .*waited in [a-z_]+ '.*' \(.*_model.tcube:[0-9:]+, step 3\)"
    is 'the others stop within 10 s' $(($(date +%s) - now)) -le 20
    is 'two steps were done' "$(grep -c '^step' out.0)" = 2
done
die=''

# Alive, and bringing nothing more: who stands still for RT_TIMEOUT.
hang="1 $count" RT_TIMEOUT=4; export RT_TIMEOUT
start torchrun "$all" -q
tells '4 4 4 4' "nobody has moved for 4[.0-9]* s: rank 0 .*waited 4[.0-9]* s in [a-z_]+ '.*_model.tcube:[0-9:]+, step 3|rank 3 on .* was last heard in '.*step 3"
hang=''; unset RT_TIMEOUT

# A signal to one of them ends the run of all behind a step, with a checkpoint.
start torchrun "$all" --set train.steps=2000 --set 'train.checkpoint=every(5000, "c.usr1")'
i=0; while ! grep -q '^step' out.0 && [ $i -lt 300 ]; do sleep 0.1; i=$((i + 1)); done
for pid in $pids; do one=$pid; done         # a shell, or timeout, above the program
while [ -n "$one" ] && [ "$(ps -o comm= -p "$one")" != program ]; do
    one=$(ps -o pid= --ppid "$one" | tr -d ' ')
done
kill -USR1 "$one"
finish
is 'USR1 ends them all well' "$statuses" = '0 0 0 0'
is 'and says so once' "$(cat err.* | grep -c 'a signal ends the run after step')" = 1
is 'with a checkpoint' -s c.usr1/latest
none w.*.tmp* c.*/*.tmp
summary
