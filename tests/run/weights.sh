# Whole models as safetensors: for every layout the same bytes of what was initialised
# or loaded, and a matrix stored [out, in] or [in, out] as the file says.
# needs: llvm
. tests/run/_lib.sh
run() { works "$t" run "$M" $D -q "$@"; }
set -- 1,1,1 2,1,1 1,2,3 2,2,2 4,1,2
for p in fp32 fp64; do
    run --steps 0 --set train.precision=$p --save first.$p
    run --steps 0 --set train.precision=$p --seed 4 --save other.$p
    is "another seed, other weights, $p" -n "$(cmp first.$p other.$p)"
    for cube; do for data in 'plan.data=1' 'plan.data=2' 'plan.data=2 --set plan.zero=0'; do
        on="--set train.precision=$p --set plan.cube=[$cube] --set $data"
        run --steps 0 $on --save w;                        same "initial $on" first.$p w
        run --steps 0 $on --load other.$p --save w;        same "loaded $on"  other.$p w
    done; done
done
# fp32 into fp64 and back is exact.
run --steps 0 --set train.precision=fp64 --load first.fp32 --save wide
run --steps 0 --load wide --save w;                        same 'through fp64' first.fp32 w
# train.weights is --load.
run --steps 0 --set train.weights="$WORK/other.fp32" --save w; same 'train.weights' other.fp32 w

# A file made by hand. Tokens 0 1 2: logits of the first two rows by awk.
cat > v.tcube <<'X'
model v {
    x = embed(tokens, 3, 2, name="e")
    loss = cross_entropy(linear(x, 3, name="h"), targets)
}
train { data = "abc.txt"; batch = 1; sequence = 2; steps = 1; precision = fp64
        optimizer = sgd(lr=0) }
X
printf '\000\001\002' > abc.txt
one=1065353216 two=1073741824 three=1077936128 half=1056964608 minus=3212836864
hand() {        # SHAPE OF h.weight, ITS SIX NUMBERS
    text='{"e.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},'
    text=$text'"h.bias":{"dtype":"F32","shape":[3],"data_offsets":[24,36]},'
    text=$text'"h.weight":{"dtype":"F32","shape":'$1',"data_offsets":[36,60]}}'
    shift
    le 8 ${#text}; printf %s "$text"
    le 4 $one $two $half $minus 0 $three    0 $one $half    "$@"
}
hand '[3,2]' $one 0 $two $half $minus $three > out_in
hand '[2,3]' $one $two $minus 0 $half $three > in_out
awk 'function loss(a, b, c, t) { return log(exp(a) + exp(b) + exp(c)) - t }
    BEGIN { printf "%.15g\n", (loss(1, 4, 5.5, 4) + loss(0.5, 1.5, -3, -3)) / 2 }' > wanted
sed 's/name="h"/name="h", stored=in_out/' v.tcube > in.tcube
for cube in 1,1,1 1,1,2; do
    works "$t" run v.tcube  -q --load out_in --log l --save a --set "plan.cube=[$cube]"
    figures l loss > got; near "loss of out_in on $cube" 1e-12 got wanted
    works "$t" run in.tcube -q --load in_out --log l --save b --set "plan.cube=[$cube]"
    figures l loss > got; near "loss of in_out on $cube" 1e-12 got wanted
done
fails 1 'tensor h.weight is [2, 3], expected [3, 2]' "$t" run v.tcube -q --load in_out
summary
