# Safetensors files that are cut off, garbled, or of another model: status 1, every
# wrong tensor named, nothing trained.
# needs: llvm
. tests/input/_lib.sh
S='--steps 0'
cat > v.tcube <<'X'
model v {
    x = embed(tokens, 3, 2, name="e")
    loss = cross_entropy(linear(x, 3, name="h"), targets)
}
train { batch = 1; sequence = 2; steps = 0 }
X
load() { want=$1 text=$2; shift 2; fails "$want" "$text" "$t" run v.tcube $S --load "$@"; }
file() { le 8 ${#1}; printf %s "$1"; le 4 1065353216 0 0 0 0 0; le 4 0 0 0 0 0 0; le 4 0 0 0; }
E='"e.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}'
H='"h.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[24,48]}'
B='"h.bias":{"dtype":"F32","shape":[3],"data_offsets":[48,60]}'
file "{$E,$H,$B}" > good
works "$t" run v.tcube $S --load good --save again
works "$t" run v.tcube $S --load again --save twice
is 'loaded and saved twice, the same bytes' "$(cmp again twice && echo same)" = same
file "{$E,$H,$B,\"__metadata__\":{\"format\":\"pt\"}}" > meta
works "$t" run v.tcube $S --load meta

load 1 'none: error: could not read the weights: No such file'  none
load 1 'no safetensors file: it is a folder; in one of a checkpoint'  .
mkfifo pipe;                  load 1 'no safetensors file: it is no regular file' pipe
: > empty;                    load 1 'no safetensors file: it has no header'   empty
printf 1234567 > seven;       load 1 'no safetensors file: it has no header'   seven
head -c 8 /dev/zero | tr '\0' '\377' > ones;  load 1 'no safetensors file: a header of' ones
head -c 50 good > cut1;       load 1 'cut1: error: the file is cut off: a header of' cut1
head -c $(($(wc -c < good) - 1)) good > cut2
load 1 'cut2: error: the file is cut off: tensor h.bias ends at'  cut2
cp "$M" text;                 load 1 'no safetensors file'      text

file "{$E,$B}" > missing;     load 1 'tensor h.weight [3, 2] is missing'       missing
file "{}" > nothing
load 1 'e.weight [3, 2] is missing|h.weight [3, 2] is missing|h.bias [3] is missing' nothing
file "{$E,$H,$B,\"other\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[56,60]}}" > extra
works "$t" run v.tcube $S --load extra
is 'the extra tensor is named' "$(grep -c '1 tensor has no use here: other' err)" = 1
W='"h.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[24,48]}'
file "{$E,$W,$B}" > shape;    load 1 'tensor h.weight is [2, 3], expected [3, 2]'    shape
W='"h.bias":{"dtype":"F32","shape":[3,1],"data_offsets":[48,60]}'
file "{$E,$H,$W}" > rank;     load 1 'tensor h.bias is [3, 1], expected [3]'         rank
W='"h.bias":{"dtype":"I32","shape":[3],"data_offsets":[48,60]}'
file "{$E,$H,$W}" > type;     load 1 'tensor h.bias has dtype I32; F32, F64, F16 and BF16' type
W='"h.bias":{"dtype":"F32","shape":[3],"data_offsets":[48,56]}'
file "{$E,$H,$W}" > bytes;    load 1 'tensor h.bias has offsets 48 to 56, its shape needs 12' bytes
W='"h.bias":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[48,60]}'
file "{$E,$H,$W}" > wide;     load 1 'tensor h.bias has offsets'                     wide
W='"h.bias":{"dtype":"F32","shape":[3],"data_offsets":[60,48]}'
file "{$E,$H,$W}" > back;     load 1 'tensor h.bias has offsets 60 to 48'            back
file "{$E,$H,$B,$E}" > dup;   load 1 'tensor e.weight stands there twice'            dup
for text in '{' '{"a"' '{"a":' '{"a":{}}' '[]' '{"a":{"dtype":"F32"}}' '{"a\u12":{}}' \
    '{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}' "{$E,$H,$B} x" '{"a":{"shape":[1,' \
    '{"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}}' "{$E $H}"; do
    file "$text" > garbled
    load 1 'garbled: error: expected|[weights-file]' garbled
done
for cube in '[1,1,1]' '[2,1,1]'; do     # fails at the start, on every layout
    echo old > kept
    fails 1 'is missing' "$t" run v.tcube --set train.data=d.txt --set train.batch=2 \
        --set "plan.cube=$cube" --load missing --save kept
    is 'the old file is kept' "$(cat kept)" = old
done
none kept.tmp*
summary
