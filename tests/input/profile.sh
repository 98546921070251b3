# `teracube profile`: what it writes can be used at once, here and nowhere else; outputs
# that cannot be written are found before anything is measured.
# needs: llvm
. tests/input/_lib.sh

fails 2 'profile needs -o F'            "$t" profile
fails 2 'profile needs -o F'            "$t" profile "$M" --quick
fails 2 'check takes no --quick'        "$t" check "$M" --quick
cp "$M" own.tcube
fails 2 '-o own.tcube would overwrite the model file' "$t" profile own.tcube -o own.tcube
mkdir folder
fails 4 'could not write no/p: No such file'              "$t" profile -o no/p
fails 4 'could not write folder: it is no regular file'   "$t" profile -o folder
fails 2 '[unknown-key]'                 "$t" profile "$M" --set train.nothing=1 -o p

# Of the model itself, which names the file that is not there yet.
{ cat "$M"; echo 'device here { profile = "p" }'; } > here.tcube
fails 1 'could not read the profile p: No such file|[profile-valid]' "$t" check ./here.tcube
works                                   "$t" profile ./here.tcube --quick -o p
is 'a first line'  "$(head -n 1 p)" = 'teracube-profile 1'
is 'a table'       "$(grep -c 'GFLOP/s of a core' out)" -ge 3
is 'a turn'        "$(grep -c '^turn_point ' p)" -ge 4
is 'its fits'      "$(grep -c 't_ctx = ' out)" = 2
none p.new.*
works                                   "$t" simulate ./here.tcube
is 'measured rates' "$(grep -c 'measured rates' out)" = 1
works                                   "$t" simulate ./here.tcube --set plan.pipeline=2
works                                   "$t" check ./here.tcube

# A damaged one: one message each. (Another machine's: tests/profile.)
cp p good
head -c 500 good > p
fails 1 'it is cut short|[profile-valid]' "$t" run ./here.tcube $D --steps 1
is 'one error' "$(grep -c ' error: ' err)" = 1
sed 's/^\(stream .*\)/\1x/' good > p
fails 1 'is no number|[profile-valid]'  "$t" simulate ./here.tcube
sed 's/^load .*/load 9.99/' good > p
fails 1 'its checksum does not fit'     "$t" simulate ./here.tcube
sed "s/\$/$(printf '\r')/" good > p
fails 1 'it is no profile: its first line is not' "$t" simulate ./here.tcube
: > p
fails 1 'it is no profile'              "$t" simulate ./here.tcube
summary
