# Token files that are missing, too short, of the wrong kind, or hold a token that
# the model does not know: status 1 and the file (with the offset of the token).
# needs: llvm
. tests/input/_lib.sh
with() {        # FILE [KEY=VALUE]...
    echo "--set train.data=$WORK/$1"; shift
    for s; do echo "--set train.$s"; done
}

fails 1 'none.txt: error: could not read the data: No such file|[data-file]' \
                                        "$t" run "$M" $(with none.txt)
fails 1 'no file matches'               "$t" run "$M" $(with 'no*.txt')
fails 1 'is no regular file'            "$t" run "$M" $(with .)
mkfifo pipe                             # nobody writes: not waited for
fails 1 'pipe: error: the data is no regular file'      "$t" run "$M" $(with pipe)
sed 's/data = "d.txt"; //' "$M" > nodata.tcube
fails 1 'needs a train section with data|[train-section]' "$t" run nodata.tcube
: > empty.txt
fails 1 '0 tokens, a sequence of 8 and its targets need 9|[data-short]' \
                                        "$t" run "$M" $(with empty.txt)
printf 12345678 > short.txt
fails 1 '8 tokens, a sequence of 8 and its targets need 9|short.txt' \
                                        "$t" run "$M" $(with short.txt)
printf 123456789 > enough.txt
works                                   "$t" run "$M" $(with enough.txt)

# A token that is not below 64: of a text, of 16 and 32 bits, behind a header, in the
# second file; as the target alone (the last token of the row).
printf '0123456789abcdefgh' > high.txt
fails 1 'high.txt: error: token 97 at byte 10 (token 10 of|is not below 64 [token-range]' \
                                        "$t" run "$M" $(with high.txt)
printf '01234567z' > target.txt
fails 1 'target.txt: error: token 122 at byte 8' "$t" run "$M" $(with target.txt)
le 2 1 2 3 4 5 6 64 8 9 10 > high.bin
fails 1 'high.bin: error: token 64 at byte 12 (token 6 of the file)' \
                                        "$t" run "$M" $(with high.bin format=u16)
le 4 1 2 3 4 5 65536 7 8 9 > high32.bin
fails 1 'high32.bin: error: token 65536 at byte 20 (token 5' \
                                        "$t" run "$M" $(with high32.bin format=u32)
le 4 1 2 3 4 4294967295 6 7 8 9 > all.bin
fails 1 'token 4294967295 at byte 16'   "$t" run "$M" $(with all.bin format=u32)
header() { le 4 20240520 "$1" "$2"; head -c $((1024 - 12)) /dev/zero; }
{ header 1 10; le 2 1 2 3 4 5 6 7 8 99 10; } > llmc.bin
fails 1 'llmc.bin: error: token 99 at byte 1040 (token 8 of the file)' \
                                        "$t" run "$M" $(with llmc.bin)
mkdir many; cp d.txt many/1.txt; printf '0123456z' > many/2.txt; cp d.txt many/3.txt
fails 1 'many/2.txt: error: token 122 at byte 7' \
                                        "$t" run "$M" $(with 'many/*.txt' batch=104)
for cube in '[1,2,1]' '[2,1,2]' '[2,2,1]'; do
    fails 1 'token 97 at byte 10'       "$t" run "$M" $(with high.txt) --set "plan.cube=$cube"
done

# Formats.
le 2 1 2 3 4 5 6 7 8 9 10 > plain.bin
fails 1 'plain.bin: error: a .bin file without an llmc header|format = u16' \
                                        "$t" run "$M" $(with plain.bin)
works                                   "$t" run "$M" $(with plain.bin format=u16)
fails 1 'no llmc header'                "$t" run "$M" $(with plain.bin format=llmc)
printf 1 >> plain.bin
fails 1 '21 bytes are no whole number of u16 tokens' "$t" run "$M" $(with plain.bin format=u16)
fails 1 '21 bytes are no whole number of u32 tokens' "$t" run "$M" $(with plain.bin format=u32)
{ header 2 10; le 2 1 2 3 4 5 6 7 8 9 10; } > version.bin
fails 1 'llmc version 2, expected 1'    "$t" run "$M" $(with version.bin)
{ header 1 11; le 2 1 2 3 4 5 6 7 8 9 10; } > cut.bin
fails 1 'cut.bin: error: the header says 11 tokens, the file holds 10' \
                                        "$t" run "$M" $(with cut.bin)
{ header 1 10; le 2 1 2 3 4 5 6 7 8 9 10; } | head -c 600 > head.bin
fails 1 'head.bin: error'               "$t" run "$M" $(with head.bin format=llmc)
fails 2 'format'                        "$t" run "$M" $(with d.txt format=u8)
fails 2 'order'                         "$t" run "$M" $(with d.txt order=random)
# A file beside what is wrong is not touched.
echo kept > w.safetensors; echo kept > l.jsonl
fails 1 '[data-short]' "$t" run "$M" $(with short.txt) --save w.safetensors --log l.jsonl
is 'the old weights are kept' "$(cat w.safetensors)" = kept
is 'the old log is kept' "$(cat l.jsonl)" = kept
none w.safetensors.tmp*
summary
