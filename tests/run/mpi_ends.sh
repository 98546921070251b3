# Ranks as processes that are killed, stopped, told to end, or whose disk is full: the run
# ends everywhere within seconds, with one message.
# needs: llvm
. tests/run/_lib.sh
command -v mpirun > /dev/null || { echo 'no mpirun (openmpi-bin)'; exit 77; }
command -v "${CC:-cc}" > /dev/null || { echo 'no C compiler'; exit 77; }
works "$t" build "$M" $D --target cpu --set plan.cube=[1,2,2] -o exe
cat > rank <<'X'
echo $$ > "pid.$OMPI_COMM_WORLD_RANK"
exec ./exe "$@"
X
# start OPTION...: four processes in their first steps, their numbers in pid.0 ..
start() {
    rm -f pid.? l
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        timeout 60 mpirun --oversubscribe -np 4 sh rank --log l "$@" > out 2> err &
    run=$! n=0
    until [ $n = 300 ] || [ "$(cat l 2> /dev/null | wc -l)" -gt 3 ]; do
        sleep 0.1; n=$((n + 1))
    done
}
# ends WHAT STATUS LINE: in time, and one line of stderr tells of an error: LINE, as grep -E
ends() {
    from=$(date +%s); wait $run; got=$?
    for rank in 0 1 2 3; do
        while kill -0 "$(cat pid.$rank)" 2> /dev/null && [ $(($(date +%s) - from)) -le 10 ]; do
            sleep 0.1
        done
    done
    took=$(($(date +%s) - from))
    cp err told
    is "$1: status $got" $got = "$2"
    is "$1: $took s" $took -le 10
    cp told err
    [ "$(grep -c 'error:' told)" = 1 ] && grep -qE "$3" told && passed=$((passed + 1)) || bad "$1"
    none w w.tmp-*
}
place="waited( [0-9.]+ s)? in [a-z_]+ '.*' \(.*_model.tcube:[0-9]+:[0-9]+, step [0-9]+\)"
doing="(is in [a-z_]+ '.*' \(.*step [0-9]+\)|$place for rank [0-3])"
start -q --steps 1000000 --save w
kill -KILL "$(cat pid.2)"
ends 'a killed rank' 137 "^exe: error: rank 2 is gone; rank [013] $doing"

# Options of its own.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun --oversubscribe \
    -np 3 ./exe -q --steps 2 : -np 1 ./exe -q --steps 2 --set train.lr=0.25 > out 2> told
is "a rank with another lr: status $?" $? = 2
is 'and it is named' "$(grep -c '^exe: error: rank 3 has lr 0.25, rank 0 lr ' told)" = 1

RT_TIMEOUT=2; export RT_TIMEOUT
start -q --steps 1000000 --save w
kill -STOP "$(cat pid.1)"
ends 'a stopped rank' 4 "^exe: error: rank [023] $place for rank [0-3]"
unset RT_TIMEOUT

# A signal to one of them ends the run after its step.
start --steps 1000000 --save w
kill -TERM "$(cat pid.3)"
wait $run; got=$?
cp err told
is "a signal: status $got" $got = 0
is 'a signal: said' "$(grep -c 'a signal ends the run after step' told)" = 1
is 'a signal: saved' -s w
rm -f w

# The disk is full for one of them.
if command -v prlimit > /dev/null; then
    start -q --steps 1000000 --save w
    prlimit --pid "$(cat pid.2)" --fsize=20000
    kill -TERM "$(cat pid.0)"
    ends 'a full disk' 4 '^w: error: could not write the weights: File too large'
    is 'a full disk: where' "$(grep -c '^note: so says rank 2 on ' told)" = 1
fi
summary
