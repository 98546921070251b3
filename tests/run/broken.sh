# A loss that is not finite: the run ends and says which rank made the first such number, in
# which plan step, and which parameter is one.
# needs: llvm
. tests/run/_lib.sh
F='--set train.precision=fp64'
works "$t" run "$M" $D $F -q --steps 0 --save w

# doctor FILE TENSOR NUMBER BYTES: the number of a tensor becomes these 8 bytes, unchecked
doctor() {
    n=$(od -An -tu8 -N8 w | tr -d ' ')
    at=$(head -c $((8 + n)) w | tail -c "$n" | grep -o "\"$2\":{[^}]*}" |
        sed 's/.*data_offsets":\[\([0-9]*\),.*/\1/')
    sed 's/"crc32c"/"crc32x"/' w > "$1"; printf "$4" | dd of="$1" bs=1 seek=$((8 + n + at + 8 * $3)) conv=notrunc 2> /dev/null
}
inf='\0\0\0\0\0\0\360\177' nan='\0\0\0\0\0\0\370\177'
doctor nan h.1.g.weight 29 "$nan"; doctor inf h.0.o.weight 5 "$inf"; doctor bias h.1.o.bias 2 "$inf"
doctor last f.weight 23 "$nan"
broken() { file=$1 texts=$2; shift 2
    fails 1 "error: the loss of step 1 is not finite: nan|$texts" \
        "$t" run "$M" $D $F -q --load $file "$@"; }
S='plan.pipeline=2 --set plan.microbatch=3 --set plan.slices=[4,4]'

# nan: h.1.g.weight [48, 24] at row 1, column 5 in the file, which has it transposed.
place='parameter h.1.g.weight [5, 1] is nan, as rank' line='_model.tcube:11:32)'
broken nan \
"note: first on rank 0, plan step|(h.1.g+u: X W), tensor h.1.g+u [0, 1] = nan|$line|$place 0 has"
broken nan "note: first on rank 1 (stage 1), plan step|(h.1.g+u: X W)|$place 1 (stage 1)" --set $S
broken nan "h.1.g.weight|= nan, in|$line|$place" --set plan.cube=[2,2,2]
broken nan "$place" --set plan.data=2 --set plan.zero=3 --set plan.cube=[1,2,1]
broken nan "first on rank 0, plan step" --set plan.cube=[1,1,2]

place='parameter h.0.o.weight [5, 0] is inf, as rank 0'
broken inf \
"note: first on rank 0, plan step|(h.0.o: X W), tensor h.0.o [0, 0] =|_model.tcube:9:25)|$place has"
broken inf "note: first on rank 0 (stage 0), plan step|(h.0.o: X W)|$place (stage 0)" --set $S
broken bias \
"note: first on rank 1 (stage 1)|parameter h.1.o.bias [2] is inf, as rank 1 (stage 1)" --set $S
# The last stage alone is broken; what it sends back is not taken for the first.
broken last \
"note: first on rank 1 (stage 1)|of microbatch 0, slice 0|parameter f.weight [23] is nan" --set $S

# Nothing is written behind it, and what was is whole.
works "$t" run "$M" $D $F -q --steps 2 --set 'train.checkpoint=every(1,"ck")'
cp -r ck before
doctor ck/step-000002/model.safetensors h.1.g.weight 29 "$nan"
sed -i 's/"crc32c"/"crc32x"/; s/"teracube":"2"/"teracube":"1"/' ck/step-000002/optimizer.safetensors
sed 's/adamw(lr=1e-2/adamw(lr=1e24/' "$M" > wild.tcube
fails 1 "the loss of step|is not finite|note: first on rank 0" \
    "$t" run wild.tcube $D -q --save never \
    --set train.clip=no --set 'train.checkpoint=every(1,"wild")'
none never never.tmp-*
fails 1 'error: the loss of step 3 is not finite: nan|parameter h.1.g.weight [5, 1] is nan' \
    "$t" run "$M" $D $F -q --resume ck --set 'train.checkpoint=every(1,"ck")' --save never
is 'nothing is written behind it' "$(head -n 1 ck/latest)" = step-000002
fails 1 'error: the loss of step 1 is not finite' "$t" run "$M" $D --reference -q --load nan
summary
