# Model files that are none: empty, binary, too large, cut off, too long.
. tests/input/_lib.sh
: > empty.tcube
fails 1 'no model'                               "$t" check empty.tcube
fails 1 'no model'                               "$t" plan empty.tcube
fails 1 'train section'                          "$t" run empty.tcube
printf '\n\n# only a comment' > comment.tcube
fails 1 'no model'                               "$t" plan comment.tcube
head -c 5000 "$t" > binary.tcube
fails 1 'is not text: byte'                      "$t" check binary.tcube
printf 'model m {\n    x = \200\377 3\n}\n' > latin.tcube
fails 1 'latin.tcube:2:'                         "$t" check latin.tcube
printf '\357\273\277' > bom.tcube; cat "$M" >> bom.tcube
timeout 10 "$t" check bom.tcube > out 2> err; got=$?
is "a byte order mark: status $got" $got -le 1
fails 1 'could not open "none.tcube": No such file' "$t" check none.tcube
fails 1 '[file]'                                 "$t" check "$WORK"
fails 1 'could not open'                         "$t" check "$M" none.tcube
fails 1 'is larger than 64 MiB' "$t" check /dev/zero
head -c 70000000 /dev/zero | tr '\0' '#' > huge.tcube
fails 1 'is larger than 64 MiB'                  "$t" check huge.tcube
rm huge.tcube
sed 's/$/\r/' "$M" > crlf.tcube
works                                            "$t" check crlf.tcube
head -c 300 "$M" > cut.tcube
fails 1 'cut.tcube:'                             "$t" check cut.tcube
cat "$M" "$M" > twice.tcube
fails 1 'twice.tcube:12:|twice.tcube:1:'         "$t" check twice.tcube

# 10,000 lines: right, with one error near the end, and with one on every line.
{
    echo 'model long {'; echo '    x = embed(tokens, 64, 8)'
    i=0; while [ $i -lt 9990 ]; do echo "    a$i = $i + 1"; i=$((i + 1)); done
    echo '    loss = cross_entropy(linear(x, 64), targets)'; echo '}'
} > long.tcube
is 'the long file has lines' "$(wc -l < long.tcube)" -gt 9990
works                                            "$t" check long.tcube
sed '9980s/+/+ nobody +/' long.tcube > late.tcube
fails 1 'late.tcube:9980:|`nobody`'              "$t" check late.tcube
sed '3,$s/+/+ nobody +/' long.tcube > many.tcube
fails 1 'more error'                             "$t" check many.tcube
is 'at most 20 errors are shown' "$(grep -c ' error: ' err)" -le 21
{
    echo 'model deep {'; echo '    x = embed(tokens, 64, 8)'
    awk 'BEGIN { for (i = 0; i < 30000; i++) print "    x = x + relu(x)" }'
    echo '    loss = cross_entropy(linear(x, 64), targets)'; echo '}'
} > deep.tcube
works                                            "$t" check deep.tcube

# Includes: of itself, of a folder, of a binary file, of nothing.
echo 'include "self.tcube"' > self.tcube
fails 1 'self.tcube:1:'                          "$t" check self.tcube
echo 'include "."' > folder.tcube
fails 1 'folder.tcube:1:9|[file]'                "$t" check folder.tcube
echo 'include "binary.tcube"' > other.tcube
fails 1 'other.tcube:1:9|is not text: byte'      "$t" check other.tcube
echo 'include "none.tcube"' > missing.tcube
fails 1 'missing.tcube:1:9|No such file'         "$t" check missing.tcube
i=0; while [ $i -lt 300 ]; do echo "include \"c$((i + 1)).tcube\"" > c$i.tcube; i=$((i + 1)); done
: > c300.tcube
fails 1 'includes are nested more than'          "$t" check c0.tcube
summary
