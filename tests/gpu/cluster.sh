#!/bin/sh
# On one node of 8 GPUs, or two, in under ten minutes: 20 steps of one small model in five
# layouts, their losses beside each other's and the reference's, predicted and measured times, and
# what happens when a rank is killed.
#
#     tests/gpu/cluster.sh                    one node
#     HOSTS=a:4,b:4 tests/gpu/cluster.sh      two, by mpirun; this folder on both
#     DRY=1 tests/gpu/cluster.sh              the script itself, under the emulator
#     ONE=PATTERN    those layouts alone      OUT=FOLDER    instead of build/gpu
# shellcheck disable=SC2086
limit=570
. "$(dirname "$0")/_lib.sh"
[ -n "$HOSTS" ] || [ "$gpus" -ge 8 ] || { echo "skipped: $gpus GPUs, 8 are needed"; exit 77; }
say "$gpu, $arch, $gpus here${HOSTS:+; $HOSTS}; $(date -u +%FT%TZ)"
export RT_TIMEOUT=30 CUDASIM_THREADS=1
steps=20 sizes="hidden=64 context=64" train="sequence=64 batch=16" slices=[32,16,16] most=100
[ -z "$DRY" ] || { steps=2 sizes="hidden=16 context=16" train="sequence=16 batch=4"
                   slices=[8,4,4] most=600; }

case $arch in                           # for the prediction, until there is a device profile
    sm_80) cluster=dgx-a100-128 ;; sm_90) cluster=dgx-h100-128 ;; sm_100) cluster=dgx-b200-128 ;;
esac
nodes=1
[ -z "$HOSTS" ] || nodes=$(echo "$HOSTS" | tr ',' '\n' | grep -c .)
if [ -n "$cluster" ]; then              # as in the data sheets, with so many nodes of so many
    sed "s,include \",&$top/examples/clusters/,; s/^\( *nodes *= \)[0-9]*/\1$nodes/
        s/^\( *node *= \)[0-9]*/\1$((8 / nodes))/; s/\(; *node *= \)[0-9]*/\1$((8 / nodes))/" \
        examples/clusters/$cluster.tcube > "$out/cluster.tcube"
fi
model="examples/tiny.tcube ${cluster:+$out/cluster.tcube}
    --set model.layers=4 --set model.heads=8 --set train.precision=fp32
    $(printf ' --set model.%s' $sizes) $(printf ' --set train.%s' $train)
    --set train.steps=100000 --set train.schedule=constant --set train.optimizer=sgd(lr=0.1)
    --set train.data=$top/README.md"
"$TERACUBE" run $model --reference --steps $steps --log "$out/reference.log" -q \
    > "$out/reference.err" 2>&1 & reference=$!

# ---- five layouts ------------------------------------------------------------------------------
layout() { # NAME SETTING...
    name=$1; shift
    case $name in ${ONE:-*}) ;; *) return ;; esac
    args=
    for s; do args="$args --set $s"; done
    program $name $model $args || return
    made="$made $name"
    timeout $most "$dir/launch.sh" --steps $steps --log "$dir/log" -q > "$out/err" 2>&1 ||
        { fails "$name: status $?" "$out/err"; return; }
    say "$name: $(step_s "$dir/log") s a step"
    "$TERACUBE" compare $model $args "$dir/log" > "$out/compared" 2> "$out/err" ||
        { fails "$name: no prediction" "$out/err"; return; }
    tee -a "$out/table.txt" < "$out/compared"
}
layout 1d           plan.cube=[1,8,1]
layout weights      plan.cube=[8,1,1]
layout cube         plan.cube=[2,2,2]
layout data         plan.data=8
layout pipeline     plan.pipeline=4 plan.data=2 plan.microbatch=1 plan.slices=$slices

wait $reference || fails "the reference" "$out/reference.err"
losses "$out/reference.log" > "$out/reference.losses"
for name in $made; do
    losses "$out/$name/log" > "$out/$name/losses"
    paste "$out/reference.losses" "$out/$name/losses" | awk -v n=$steps -v name=$name '
        { d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (!(d <= 1e-4)) bad = 1
          if (d > most) most = d }
        END { printf "%s: losses within %.2g of the reference, 1e-4 is allowed\n", name, most
              exit bad || NR != n }' > "$out/err"
    status=$?
    say "$(cat "$out/err")"
    [ $status = 0 ] || fails "$name: losses differ"
done

# ---- a rank is killed ----------------------------------------------------------------------------
killed() {
    dir=$out/$1; rm -f "$dir/log"
    RT_TIMEOUT=20 "$dir/launch.sh" --log "$dir/log" -q > "$out/err" 2>&1 & all=$!
    until [ "$(losses "$dir/log" 2> /dev/null | wc -l)" -ge 3 ]; do
        kill -0 $all 2> /dev/null && [ "$(left)" -gt 60 ] ||
            { fails "no third step" "$out/err"; kill $all 2> /dev/null; return; }
        sleep 1
    done
    # A process of its own: a child of launch.sh, or of the mpirun that it became.
    victim=$(ps -o pid= --ppid $all | sed -n 4p)
    from=$(date +%s)
    kill -9 $victim
    wait $all
    status=$? took=$(($(date +%s) - from))
    if [ $status != 0 ] && [ $took -lt 40 ] && grep -q 'error: .*rank' "$out/err"; then
        say "a killed rank: all end in $took s: $(grep -m 1 'error: ' "$out/err")"
    else fails "a killed rank: status $status after $took s" "$out/err"; fi
}
for name in $made; do last=$name; done
[ -z "$last" ] || killed $last

[ "$(left)" -lt 100 ] || profile "$out/cluster.profile" 8
say "$(($(date +%s) - begun)) s; $failed failed"
[ $failed = 0 ]
