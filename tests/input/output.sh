# Outputs that cannot be written, and runs that are ended from outside: status 4 (or
# the signal's), the old file kept, nothing half written.
# needs: llvm
. tests/input/_lib.sh
build() { "$t" build "$M" $D --target cpu -q "$@"; }

fails 4 'no/w: error: could not write the weights there: No such file' \
                                        "$t" run "$M" $D --save no/w
fails 4 'no/l: error: could not open the log: No such file'   "$t" run "$M" $D --log no/l
fails 4 'no/t: error: could not write the trace'              "$t" run "$M" $D --trace no/t
fails 4 'could not write no/exe: '      "$t" build "$M" $D --target cpu -o no/exe
mkdir folder
fails 4 'folder: error: could not write the weights there: it is no regular file' \
                                        "$t" run "$M" $D --save folder
fails 4 'folder: error: could not open the log: Is a directory' "$t" run "$M" $D --log folder
fails 4 'could not write folder: '      "$t" build "$M" $D --target cpu -o folder
cp "$M" own.tcube; cp own.tcube kept.tcube      # a slip does not cost the model
for option in --save --log --trace; do
    fails 2 "$option ./own.tcube would overwrite the model file" \
                                        "$t" run own.tcube $D $option ./own.tcube
done
fails 2 'would overwrite the model'     "$t" build own.tcube $D --target cpu -o own.tcube
is 'the model is kept' "$(cat own.tcube)" = "$(cat kept.tcube)"
head -c 20000 /dev/zero | tr '\0' 'a' > own.txt
for option in --save --log --trace; do
    fails 2 "$option own.txt would overwrite the training data" \
                                        "$t" run "$M" --set train.data=own.txt $option own.txt
done
is 'the data is kept' "$(wc -c < own.txt)" = 20000
echo 'Nothing of yours.' > notes
for option in --save --log --trace; do          # nor what else is no run's
    fails 2 "$option notes would overwrite a file that is no |; name another, or remove it" \
                                        "$t" run "$M" $D $option notes
done
fails 2 '--log notes would'             "$t" run "$M" $D --set train.log=notes
fails 2 '--log notes would'             "$t" run "$M" $D --log notes --reference
is 'the notes are kept' "$(cat notes)" = 'Nothing of yours.'
for n in 1 2 3; do works "$t" run "$M" $D --steps $n --save w --log l --trace tr; done
is 'a run makes room for the next' "$(grep -c '^{"step"' l)" = 3
: > l; : > tr; : > w
works                                   "$t" run "$M" $D --steps 1 --save w --log l --trace tr
rm w l tr
works                                   "$t" build "$M" $D --target cpu -q -o -exe
is 'an executable whose name begins with -' -x ./-exe
mkfifo pipe         # never a device of the machine: a fault would replace it
fails 4 'pipe: error: could not write the weights there: it is no regular file' \
                                        "$t" run "$M" $D --save pipe
fails 4 'could not write pipe: it is no regular file' \
                                        "$t" build "$M" $D --target cpu -o pipe
is 'the pipe is kept' -p pipe
fails 4 '/dev/full: error: could not write the log'   "$t" run "$M" $D --log /dev/full
fails 4 '/dev/full: error: could not write the trace' "$t" run "$M" $D --trace /dev/full
fails 4 'could not write /dev/full: No space left' \
    "$t" simulate "$M" --set plan.pipeline=2 --trace /dev/full
works                                   "$t" run "$M" $D --log /dev/null
if touch folder/x && chmod 555 folder && ! touch folder/y 2> err; then  # not as root
    fails 4 'Permission denied'         "$t" run "$M" $D --save folder/w
    fails 4 'Permission denied'         "$t" run "$M" $D --log folder/l
    fails 4 'Permission denied'         "$t" build "$M" $D --target cpu -o folder/exe
fi
none no folder/w* folder/l folder/exe* w.tmp*

# A disk that is full: a limit on the size of files stands for it (blocks of 512 bytes).
old() { printf '\002\0\0\0\0\0\0\0{}'; }      # weights of no parameter
is_old() { is "$1" "$(cksum < "$2")" = "$(old | cksum)"; }
old > w; old > exe
printf 'ulimit -f 8; exec "$@"\n' > limited
fails 4 'w: error: could not write the weights: File too large' \
    sh limited "$t" run "$M" $D --save w
is_old 'the old weights are kept' w
fails 4 'could not write exe'           sh limited "$t" build "$M" $D --target cpu -o exe
is_old 'the old executable is kept' exe
none w.tmp* exe.*
if mkdir disk && mount -t tmpfs -o size=64k none disk 2> /dev/null; then
    head -c 60000 /dev/zero > disk/fill; old > disk/w
    fails 4 'No space left'             "$t" run "$M" $D --save disk/w
    is_old 'the old weights are kept' disk/w
    none disk/w.tmp*
    fails 4 ''                          "$t" build "$M" $D --target cpu -o disk/exe
    none disk/exe*
    umount disk
fi

# Linking fails.
fails 4 'could not run /none/cc'  env CC=/none/cc "$t" build "$M" $D --target cpu -o exe
fails 4 'false could not link exe' env CC=false   "$t" build "$M" $D --target cpu -o exe
is_old 'the old executable is kept' exe
none exe.*
works env CC=' env  A=b cc -s ' "$t" build "$M" $D --target cpu -o exe2 -q
works env CC= "$t" build "$M" $D --target cpu -o exe2 -q

# SIGTERM and SIGINT end the run after the step, with the weights saved; SIGKILL leaves
# the old file.
until_step() { n=0; until grep -q '^step' log || [ $n -gt 300 ]; do sleep 0.1; n=$((n + 1)); done; }
for cube in '[1,1,1]' '[1,2,2]'; do for signal in TERM INT; do
    rm -f w; : > log
    setsid "$t" run "$M" $D --set train.steps=100000000 --set "plan.cube=$cube" --save w \
        > log 2> said < /dev/null &
    pid=$!
    until_step; kill -$signal $pid; wait $pid; got=$?
    is "status $got after SIG$signal" $got = 0
    is "the run says so after SIG$signal" -s w
    grep -q 'a signal ends the run after step' said || bad 'no word about the signal'
    last=$(tail -n 1 log); last=${last#step }
    is 'the last line is whole' "$(tail -n 1 log | grep -cE '^step +[0-9]+ .* s$')" = 1
done; done
works "$t" run "$M" $D --steps 0 --load w
old > w; : > log
"$t" run "$M" $D --set train.steps=100000000 --save w > log 2> err &
pid=$!
until_step; kill -KILL $pid; wait $pid 2> /dev/null
is_old 'the old weights after SIGKILL' w
none w.tmp*
summary
