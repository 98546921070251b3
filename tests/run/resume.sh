# Checkpoints: a run goes on from one as if it had never stopped, on the layout that wrote it
# to the bit, on any other as the reference does; what does not fit is one clear message.
# needs: llvm
. tests/run/_lib.sh
run() { works "$t" run "$M" $D $F -q "$@"; }
rest() { rm -f rest; run "$@" --log rest; figures rest loss > rest.last; }    # a log goes on
F='--set train.precision=fp64 --set train.order=shuffle'
first='train.checkpoint=every(4,"ck")'
S='plan.pipeline=2 --set plan.microbatch=3 --set plan.slices=[4,4]'

# Each of these writes a checkpoint after 10 steps; the others go on from it.
run --log whole
figures whole loss > loss; tail -n +11 loss > last; figures whole grad_norm | tail -n +11 > norms
set -- 'plan.data=1' 'plan.data=2 --set plan.zero=1' 'plan.cube=[2,2,1]' "$S" \
    'plan.pipeline=2 --set plan.data=2 --set plan.zero=3 --set plan.microbatch=2'
n=0
for on; do
    n=$((n + 1)) at="ck$n"
    run --set $on --steps 10 --set "train.checkpoint=every(4,\"$at\")" --save w
    same "parameters as --save writes them, $on" w $at/step-000010/model.safetensors
    run --set $on --log there; figures there loss | tail -n +11 > there.last
    rest --set $on --resume $at
    same "goes on to the bit, $on" rest.last there.last
    is "the step goes on, $on" "$(figures rest step | head -n 1)" = 11
done
is 'two checkpoints are kept' "$(ls ck1 | tr '\n' ' ')" = 'latest step-000008 step-000010 '
is 'the newest stands first' "$(tr '\n' ' ' < ck1/latest)" = 'step-000010 step-000008 '
for from in 1 2 3 4 5; do
    to=$((from % 5 + 1)); eval "on=\${$to}"
    rest --set $on --resume ck$from
    near "from ck$from to $on" 1e-10 rest.last last
    figures rest grad_norm > rest.norm; near "norms from ck$from to $on" 1e-10 rest.norm norms
done
rest --resume ck1/step-000008/
tail -n +9 loss > last8; same 'a checkpoint by its name' rest.last last8
rest --reference --resume ck4
near 'the reference goes on' 1e-10 rest.last last
# Schedule, another log, and the end.
sched='train.schedule=cosine(warmup=3,min=1e-3)'
run --set "$sched" --log a; run --set "$sched" --set "$first" --steps 7 --log b
run --set "$sched" --resume ck --log b
figures a lr > lr.a; figures b lr > lr.b; same 'learning rates, in a log that goes on' lr.a lr.b
is 'the log says so' "$(grep -c '"resumed_step": 7' b)" = 1
works "$t" run "$M" $D $F --resume ck1 --steps 10
is 'nothing is left to do' "$(grep -c 'nothing is left to do' err)" = 1
sed 's/adamw(lr=1e-2, weight_decay=0.1)/sgd(lr=0.1, momentum=0.9)/' "$M" > sgd.tcube
sgd() { works "$t" run sgd.tcube $D $F -q "$@"; }
sgd --log c; sgd --set 'train.checkpoint=every(5,"cs")' --steps 5
sgd --resume cs --log d --set plan.data=3
figures c loss | tail -n +6 > c.last; figures d loss > d.last; near 'sgd' 1e-10 d.last c.last

# What does not fit.
refuse() { want=$1; shift; fails 1 "$want" "$t" run "$M" $D $F -q "$@"; }
mkdir empty; refuse 'empty: error: no checkpoint there: it has no file `latest`' --resume empty
refuse 'none: error: no checkpoint there: No such file' --resume none
mkdir odd; echo rubbish > odd/latest; refuse 'odd/latest: error: it does not name' --resume odd
fails 2 'exclude each other' "$t" run "$M" $D -q --resume ck1 --load w
refuse 'ck1/step-000010/model.safetensors: error: 16 tensors have no place in this model: h.1.n1' \
    --resume ck1 --set model.layers=1
refuse 'model.safetensors: error: tensor h.2.n1.weight [24] is missing' \
    --resume ck1 --set model.layers=3
refuse 'tensor e.weight is [64, 24], expected [65, 24]' --resume ck1 --set model.vocab=65
refuse 'made with sequences of 8 tokens, this run has 4' --resume ck1 --set train.sequence=4
refuse 'optimizer.safetensors: error: made with optimizer sgd, this run has adamw' --resume cs
damage() { rm -rf bad.ck; cp -r ck1/step-000010 bad.ck; }
damage; rm bad.ck/model.safetensors
refuse 'bad.ck/model.safetensors: error: could not read the weights: No such' --resume bad.ck
for f in model optimizer; do
    damage; size=$(wc -c < bad.ck/$f.safetensors)
    head -c $((size - 9)) ck1/step-000010/$f.safetensors > bad.ck/$f.safetensors
    refuse "bad.ck/$f.safetensors: error: the file is cut off: tensor" --resume bad.ck
done
# A bit is another one: in the header, in a tensor, in the last byte of all.
flip() { # FILE BYTE
    b=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %03o $((b ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2> err
}
for f in model optimizer; do
    file=bad.ck/$f.safetensors
    damage; flip $file 35
    refuse "$file: error: the header is damaged: its checksum is " --resume bad.ck
    damage; flip $file $(($(wc -c < $file) / 2))
    refuse "$file: error: tensor |is damaged: the checksum of its bytes is " --resume bad.ck
    damage; flip $file $(($(wc -c < $file) - 1))
    for on in 'plan.data=1' "$S" 'plan.cube=[2,2,2] --set plan.data=2 --set plan.zero=3'; do
        refuse "$file: error: tensor |f.weight is damaged: |may name an older one" \
            --set $on --resume bad.ck
    done
done
# Checkpoints of version 1 had no checksums, later ones have them.
old() { sed -i 's/"crc32c"/"crc32x"/; s/"teracube":"2"/"teracube":"1"/' bad.ck/*.safetensors; }
damage; sed -i 's/"crc32c"/"crc32x"/' bad.ck/model.safetensors
refuse 'model.safetensors: error: its metadata has no `crc32c`' --resume bad.ck
damage; old; rest --resume bad.ck
near 'version 1' 1e-10 rest.last last
sed -i 's/"teracube":"1"/"teracube":"9"/' bad.ck/optimizer.safetensors
refuse 'a checkpoint of version 9' --resume bad.ck
damage; old; sed -i 's/adam.v.h.1.g.weight/adam.v.h.1.G.weight/' bad.ck/optimizer.safetensors
refuse 'optimizer.safetensors: error: tensor adam.v.h.1.g.weight [48, 24] is missing' \
    --resume bad.ck
damage; old; sed -i 's/"step":"10"/"stop":"10"/' bad.ck/optimizer.safetensors
refuse 'its metadata has no `step`' --resume bad.ck
summary
