# A run that is stopped: by a signal it ends after its step, saved; killed at any moment it
# leaves a checkpoint that goes on to the bit; a full disk spares the checkpoint before.
# needs: llvm
. tests/run/_lib.sh
many='--set train.steps=1000000 --set plan.cube=[1,2,1]'
works "$t" build "$M" $D $many --target cpu -o exe
every='train.checkpoint=every(1,"ck")'
# until_so COMMAND...: waits for it to succeed, a minute at most
until_so() { k=0; until "$@" 2> /dev/null || [ $((k += 1)) -gt 1200 ]; do sleep 0.05; done; }
two_steps() { [ "$(grep -c '^{"step"' l)" -ge 2 ]; }
newest() { head -n 1 "$1/latest" | sed 's/step-0*//'; }

# Signals. The step that runs is finished; what is in the checkpoint is what --save writes.
for sig in TERM INT USR1; do
    rm -rf ck
    ./exe -q --set 'train.checkpoint=every(1000000,"ck")' --log l --save w 2> err & pid=$!
    until_so two_steps
    kill -$sig $pid; wait $pid; got=$?
    is "status 0 after SIG$sig" $got = 0
    last=$(figures l step | tail -n 1)
    is "it is told, SIG$sig" "$(newest ck)" = "$last"
    same "saved, SIG$sig" w "ck/$(head -n 1 ck/latest)/model.safetensors"
    rm -f l
done
./exe -q --set 'train.checkpoint=every(1000000,"ck")' --log l 2> err & pid=$!
until_so two_steps
kill -TERM $pid; wait $pid
is 'a note names the step' \
    "$(grep -c "a signal ends the run after step $(figures l step | tail -n 1)" err)" = 1
rm -f l

# A validation ends behind the batch at hand: step 3 of 1000000 batches, not saved before it.
rm -rf ck
long="train.validate=every(3,1000000,\"$WORK/d.txt\")"
./exe -q --set 'train.checkpoint=every(2,"ck")' --set "$long" --log l 2> err & pid=$!
until_so grep -q '^{"step": 3' l
sleep 0.2; kill -TERM $pid; wait $pid; got=$?
is 'the step before it is told' "$(grep -c 'a signal ends the run after step 3; ' err)" = 1
is 'status 0 in a validation' $got = 0
is 'and saved' "$(newest ck)" = 3
is 'no figure of half a validation' "$(grep -c validation_loss l)" = 0
rm -f l

# A second signal does not wait for anything.
rm -rf ck
./exe -q --set "$every" --set "$long" --log l 2> err & pid=$!
until_so grep -q '^{"step": 3' l
kill -TERM $pid; kill -INT $pid; wait $pid; got=$?
is 'a second signal' $got -gt 128
works ./exe -q --resume ck --steps 2

# Killed at any moment, again and again; then the same as never killed.
rm -rf ck; seed=$$
for i in 1 2 3 4 5 6 7 8 9 10; do
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    on=; [ -e ck/latest ] && on='--resume ck'
    ./exe -q --set "$every" $on 2> err & pid=$!
    sleep 0.$((seed / 65536 % 40 + 12)); kill -9 $pid; wait $pid 2> /dev/null
    if [ -e ck/latest ]; then
        folder=ck/$(head -n 1 ck/latest)
        is "complete, $i" -s "$folder/model.safetensors" -a -s "$folder/optimizer.safetensors"
    fi
done
at=$(newest ck)
rm -f l; works ./exe -q --resume ck --steps $((at + 3)) --log l --set "$every"
works ./exe -q --steps $((at + 3)) --log whole
figures l loss > l.loss; figures whole loss | tail -n 3 > whole.loss
same "killed ten times, at step $at" l.loss whole.loss
none ck/*.tmp
is 'two checkpoints' "$(ls ck | wc -l)" = 3
works ./exe -q --steps 2 --set "$every"
is 'an earlier run is told' "$(grep -c 'has checkpoints of an earlier run' err)" = 1

# Two runs, one folder.
rm -rf ck l; ./exe -q --set "$every" 2> err2 & pid=$!
until_so test -e ck/latest
fails 4 'ck: error: another run writes its checkpoints there' ./exe -q --set "$every"
sleep 0.3; kill -TERM $pid; wait $pid; got=$?
is 'the first one goes on' $got = 0

# The disk is full: a file may not grow beyond some kilobytes.
rm -rf ck; works ./exe -q --set "$every" --steps 2
cp -r ck before
fails 4 \
    'could not write the checkpoint: File too large|the run ends after step 3; step-000002 in ck' \
    sh -c "ulimit -f 64; exec ./exe -q --resume ck --set '$every'"
is 'the one before is whole' -z "$(diff -r before ck)"
works ./exe -q --resume ck --steps 3
fails 4 'd.txt: error: could not make the folder of the checkpoints' \
    ./exe -q --set 'train.checkpoint=every(1,"d.txt")'
summary
