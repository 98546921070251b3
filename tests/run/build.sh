# build --target cpu: the executable trains as `run` does, takes --set train.KEY for
# what the plan does not depend on, and refuses the rest.
# needs: llvm
. tests/run/_lib.sh
: > err
command -v "${CC:-cc}" > /dev/null || { echo 'no C compiler'; exit 77; }
cut_times() { sed 's/  *[0-9.]* [kM]*tok\/s .*//; /^step/!d' "$1"; }
for cube in 1,1,1 1,2,2; do
    on="--set plan.cube=[$cube] --set train.steps=6"
    works "$t" run "$M" $D $on --save run.w;         cut_times out > run.lines
    works "$t" build "$M" $D $on --target cpu -o exe
    is "build says what it made on $cube" "$(grep -c '^exe: [0-9]* ranks* as threads' out)" = 1
    works ./exe --save exe.w;                        cut_times out > exe.lines
    same "lines on $cube" run.lines exe.lines
    same "weights on $cube" run.w exe.w
    mkdir -p elsewhere; cp exe elsewhere/moved
    (cd elsewhere && exec env -i ./moved --steps 2 -q --log l) 2> err
    is "moved, without an environment, on $cube" "$(wc -l < elsewhere/l)" = 3
done
works ./exe --help
is 'help names the options' "$(grep -cE '^  --(steps|load|save|log|trace|set)' out)" = 6

# Names that are also those of C's library: kernels do not take their place.
works "$t" build "$top/tests/grids/names.tcube" --set train.data=d.txt --target cpu -o named
works ./named --steps 2 -q --log l.exe
works "$t" run "$top/tests/grids/names.tcube" --set train.data=d.txt --steps 2 -q --log l.run
figures l.run loss > run.loss; figures l.exe loss > exe.loss
same 'losses with such names' run.loss exe.loss

# What can be set, against `run` with the same settings.
tr 0123456789 9876543210 < d.txt > e.txt
for set in seed=9 steps=3 clip=0.5 clip=no order=shuffle 'optimizer=adamw(lr=1e-3,beta2=0.9)' \
    'schedule=cosine(warmup=2,min=1e-4)' 'schedule=wsd(decay=2)' "data=$WORK/e.txt" format=bytes; do
    works "$t" run "$M" $D $on --set "train.$set" -q --log l.run
    works ./exe --set "train.$set" -q --log l.exe
    figures l.run loss > run.loss; figures l.exe loss > exe.loss
    same "losses with train.$set" run.loss exe.loss
    figures l.run lr > run.lr; figures l.exe lr > exe.lr
    same "rates with train.$set" run.lr exe.lr
done
works ./exe --set train.lr=5e-3 --set train.warmup=0 --steps 1 -q
works ./exe --load run.w --steps 0 --save again
same 'loaded and saved' run.w again
works ./exe --set train.weights=run.w --set train.log=l --steps 1
is 'train.log' "$(wc -l < l)" = 2

refused='is fixed when built; rebuild with `teracube build'
for set in train.batch=4 train.sequence=4 train.precision=fp64 train.objective=next \
    plan.cube=[1,1,1] model.layers=3 train.no_decay=x device.memory=1 cluster.nodes=2 \
    train.nonsense=1; do
    fails 2 "exe: error: --set $set|$refused" ./exe --set "$set"
done
fails 2 'the kind of optimizer is fixed when built' ./exe --set 'train.optimizer=sgd(lr=1)'
fails 2 'the kind of optimizer is fixed when built' ./exe --set 'train.optimizer=adamwx(lr=1)'
fails 2 '`adamw` has no `momentum`'      ./exe --set 'train.optimizer=adamw(momentum=0.9)'
fails 2 'expected a number below 1'      ./exe --set train.beta1=1
fails 2 'expected a number above 0'      ./exe --set train.eps=0
fails 2 'expected a number that is not'  ./exe --set train.lr=-1
fails 2 'expected a number that is not'  ./exe --set train.lr=nan
fails 2 'expected a whole number'        ./exe --set train.steps=1.5
fails 2 'expected a whole number'        ./exe --set train.seed=-3
fails 2 'expected every(STEPS, "FOLDER")' ./exe --set 'train.checkpoint=every(1,"")'
fails 2 'expected train.KEY=VALUE'       ./exe --set lr
fails 2 'unknown option `--what`'        ./exe --what
fails 2 'expected a value after `--set`' ./exe --set
fails 2 'unexpected argument `x`'        ./exe x
fails 2 'expects a whole number'         ./exe --steps -1
fails 1 '[data-file]'                    ./exe --set train.data=none.txt
fails 2 'unknown format'                 ./exe --set train.format=u8
fails 2 'unknown order'                  ./exe --set train.order=random
fails 4 'could not open the log'         ./exe --log no/l
fails 4 'could not write the weights'    ./exe --save no/w
fails 1 'is cut off'    sh -c 'head -c 100 run.w > cut; exec ./exe --load cut'
summary
