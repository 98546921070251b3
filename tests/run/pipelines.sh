# Stages and slices, seen from outside: losses of one rank, the same bits twice, weights
# that are the same bytes and load anywhere, executables, and the printed block.
# needs: llvm
. tests/run/_lib.sh
F='--set train.precision=fp64'
run() {         # LOG OPTION...: losses and norms go to LOG.all
    log=$1; shift
    works "$t" run "$M" $D -q --log "$log" "$@"
    { figures "$log" loss; figures "$log" grad_norm; } > "$log.all"
}
P='--set plan.pipeline'; S='--set plan.slices'; B='--set plan.microbatch'

run one $F --save one.w
works "$t" run "$M" $D -q --steps 0 --save begun.w
run two $F --load one.w --steps 2           # where one.w goes on
while read -r on; do
    # shellcheck disable=SC2086
    set -- $on
    run a "$@" $F --save a.w; near "losses, $on" 1e-10 a.all one.all
    run b "$@" $F --save b.w
    same "two runs, $on" a.all b.all
    same "two files, $on" a.w b.w
    works "$t" run "$M" $D -q --steps 0 --save c.w "$@"
    same "weights as they begin, $on" c.w begun.w
    works "$t" run "$M" $D -q --steps 0 --load one.w --save c.w "$@" $F
    same "loaded and saved, $on" c.w one.w
    run c "$@" $F --load one.w --steps 2; near "goes on, $on" 1e-10 c.all two.all
    run d $F --load a.w --steps 2
    near "one rank goes on, $on" 1e-8 d.all two.all
done <<X2
$P=2
$P=2 $B=1 --set plan.schedule=gpipe
$P=2 $B=2 $S=[1,1,1,1,1,1,1,1]
$P=2 $B=3 $S=[5,1,2] --set plan.recompute=full
$S=[2,5,1]
$P=2 $B=2 $S=uniform(2) --set plan.cube=[2,2,1] --set plan.vectors=sharded
$P=2 $B=1 $S=[6,2] --set plan.cube=[1,2,1] --set plan.data=2 --set plan.zero=1
$P=2 $B=1 --set plan.cube=[1,1,2] --set plan.data=2 --set plan.zero=2
$P=2 $B=2 $S=uniform(4) --set plan.data=3 --set plan.zero=3
X2
: > err
run k --set model.layers=4 $F; run l $P=2 --set plan.chunks=2 --set model.layers=4 $B=2 $F
near 'losses, two chunks' 1e-10 l.all k.all
run short; run piped $P=2 $S='uniform(2)' $B=2
near 'losses in fp32' 1e-4 piped.all short.all

# The peak that plan prints is the block that a rank of the fullest stage has.
for on in "$P=2 $B=2" "$P=2 $B=1 $S=[3,5] --set plan.recompute=full"; do
    # shellcheck disable=SC2086
    run l $on --steps 1
    block=$(sed -n '1s/.*"block_bytes": \([0-9]*\).*/\1/p' l)
    # shellcheck disable=SC2086
    works "$t" plan "$M" $on --json
    is "the block of $on, $block" "$(grep -c "\"peak\": $block," out)" -ge 1
done

command -v "${CC:-cc}" > /dev/null || summary
# shellcheck disable=SC2086
works "$t" build "$M" $D $F $P=2 $B=2 $S=[5,3] --target cpu -o exe
works ./exe --save exe.w -q --log e
{ figures e loss; figures e grad_norm; } > e.all
near 'the executable' 1e-10 e.all one.all
summary
