# Validation: the loss of other data, without dropout, the same on every layout and in the
# reference; the training takes no notice of it, to the bit.
# needs: llvm
. tests/run/_lib.sh
run() { works "$t" run "$M" $D --set train.precision=fp64 -q "$@"; }
i=0; while [ $i -lt 30 ]; do printf '%d*7/(2 - %d); ' $i $((i * i)); i=$((i + 1)); done > v.txt
V='train.validate=every(3,batches=2,data="v.txt")'
for on in 'plan.data=1' 'plan.cube=[2,2,2]' 'plan.data=2 --set plan.zero=3' \
    'plan.pipeline=2 --set plan.microbatch=3 --set plan.slices=[4,4]'; do
    run --set $on --log plain
    figures plain loss > plain.loss; figures plain grad_norm >> plain.loss
    run --set $on --set "$V" --log valid; figures valid loss > valid.loss
    figures valid grad_norm >> valid.loss
    same "training with and without, $on" plain.loss valid.loss
    figures valid validation_loss > got
    [ -e want ] || cp got want
    near "validation, $on" 1e-10 got want
done
is 'every third step' "$(wc -l < want)" = 6
run --reference --set "$V" --log valid; figures valid validation_loss > got
near 'validation of the reference' 1e-10 got want

# With nothing learned: the mean over all batches is the mean of what training has on them,
# but for dropout; steps of the training's data have a loss of their own.
sed 's/dropout(\(.*\), 0.1)/\1/' "$M" > dry.tcube
dry() {
    works "$t" run dry.tcube --set train.precision=fp64 --set 'train.optimizer=sgd(lr=0)' -q "$@"
}
dry --set train.data="$PWD/v.txt" --steps 3 --log l; figures l loss |
    awk '{ s += $1 } END { printf "%.17g\n", s / 3 }' > want
dry $D --steps 2 --set 'train.validate=every(1,3,"v.txt")' --log l; figures l validation_loss > got
cat want >> want2; cat want >> want2; near 'by hand' 1e-12 got want2
works "$t" run "$M" $D --set 'train.validate=every(2,data="v.txt",batches=100)' --steps 2
is 'few sequences are told' "$(grep -c 'some count more than once' err)" = 1
is 'a line' "$(grep -cE '^step 2  validation loss +[0-9.]+$' out)" = 1
fails 1 'none.txt: error: could not read the data' "$t" run "$M" $D -q \
    --set 'train.validate=every(2,data="none.txt")'
fails 2 'would overwrite the validation data' "$t" run "$M" $D -q --log v.txt \
    --set 'train.validate=every(2,data="v.txt")'
summary
