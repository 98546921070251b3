# Ranks as processes under Open MPI's mpirun: the same bits as with ranks as threads, on a
# cube, with products of blocks, and in a pipeline with token slices; errors are told once.
# needs: llvm
. tests/run/_lib.sh
command -v mpirun > /dev/null || { echo 'no mpirun (openmpi-bin)'; exit 77; }
command -v "${CC:-cc}" > /dev/null || { echo 'no C compiler'; exit 77; }
cat > m <<'X'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun --oversubscribe -np "$@"
X
compare() { # WHAT RANKS EXE OPTION...
    what=$1 ranks=$2 exe=$3; shift 3
    works ./$exe -q --log a.l --save a.w "$@"
    works sh m "$ranks" ./$exe --log b.l --save b.w "$@"
    is "$what: they are processes" "$(grep -c "^m: $ranks ranks as processes, " out)" = 1
    for key in step loss grad_norm lr; do figures a.l $key; done > a.all
    for key in step loss grad_norm lr; do figures b.l $key; done > b.all
    same "$what: figures" a.all b.all
    same "$what: weights" a.w b.w
    none b.w.tmp-*
}
works "$t" build "$M" $D --target cpu --set plan.cube=[2,2,2] -o cube
compare 'a cube' 8 cube --steps 5
cp a.w first
compare 'a cube, loaded' 8 cube --load first --steps 0
same 'loaded and saved' first b.w
for on in 'plan.pipeline=2 --set plan.data=2 --set plan.microbatch=3 --set plan.slices=uniform(2)' \
    'plan.data=2 --set plan.zero=3 --set plan.cube=[1,2,1]' 'plan.partition=summa(2)'; do
    works "$t" build "$M" $D --target cpu --set $on -o pipe
    compare "$on" 4 pipe --steps 3
done

# Validation; checkpoints, gone on from by processes or by threads.
every="--set train.validate=every(2,1,\"$WORK/d.txt\") --set train.checkpoint=every(2,\"ck\")"
works "$t" build "$M" $D --target cpu --set plan.pipeline=2 --set plan.data=2 \
    --set plan.microbatch=3 $every -o keep
works ./keep -q --steps 4 --log a.l; mv ck threads
works sh m 4 ./keep -q --steps 2 --log b.l
works sh m 4 ./keep -q --steps 4 --resume ck --log b2.l
for file in model optimizer; do
    same "checkpoint: $file" threads/step-000004/$file.safetensors \
        ck/step-000004/$file.safetensors
done
sed -n 's/.*"validation_loss": \([^,}]*\).*/\1/p' a.l > a.all
sed -n 's/.*"validation_loss": \([^,}]*\).*/\1/p' b.l b2.l > b.all
same 'validation losses' a.all b.all

# One file has all ranks' times.
works sh m 4 ./pipe -q --steps 2 --trace t
is 'a track for each rank' "$(sed -n 's/.*"tid": \([0-9]*\).*/\1/p' t | sort -u | wc -l)" = 4

# One message, whoever finds the error.
once() { fails "$@"; is "one message: $2" "$(grep -c 'error:' err)" = 1; }
once 2 'cube: error: the plan has 8 ranks, the launcher started 3 processes; use mpirun -np 8' \
    sh m 3 ./cube
once 2 'cube: error: unknown option `--what`' sh m 3 ./cube --what
once 1 '[data-file]' sh m 8 ./cube --set train.data=none.txt
once 4 'could not write the weights' sh m 8 ./cube --save no/w
once 2 'rank 0 --save no; all ranks are started with the same options' \
    sh m 8 sh -c 'exec ./cube -q $([ $OMPI_COMM_WORLD_RANK != 5 ] || echo --save only5)'
none only5
b=$(od -An -tu1 -j 9000 -N 1 first)
cp first bad; printf "\\$(printf %03o $((b ^ 16)))" | dd of=bad bs=1 seek=9000 conv=notrunc 2> err
once 1 ' is damaged: the checksum of its bytes is ' sh m 8 ./cube --load bad
once 1 'the loss of step 2 is not finite' \
    sh m 8 ./cube --steps 3 --set train.lr=1e30 --set train.clip=no
once 4 "is not Open MPI's library" env RT_MPI=libm.so.6 sh m 2 ./cube
works env RT_COMM=threads sh m 1 ./cube --steps 1
is 'threads all the same' "$(grep -c '^m: 8 ranks, ' out)" = 1
summary
