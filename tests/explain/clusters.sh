# Clusters that cannot be: clear answers.
. tests/input/_lib.sh
cat > c.tcube <<EOF
include "$top/tests/simulate/_gpt.tcube"
plan { pipeline = 2;  cube = [1, 4, 1] }
EOF
works "$t" simulate c.tcube
wrong() { fails 2 "[value-range]|$2" "$t" simulate c.tcube --set "$1"; }
wrong 'cluster.nodes=0'                 '`nodes` must be at least 1, not 0'
wrong 'cluster.node=0*d'                '`node` must be at least 1, not 0'
wrong 'cluster.ports=0'                 '`ports` must be at least 1, not 0'
wrong 'cluster.link=0 GB/s, 1 us'       '`link` must be more than 0'
wrong 'cluster.network=0.001 MB/s, 10 us'       '1 KB/s is slower than a modem'
wrong 'cluster.network=0.05 Mbit/s, 10 us'      'is slower than a modem'
wrong 'cluster.link=0.002 MB/s, 10 us'          'is slower than a modem'
wrong 'cluster.network=1 GB/s, 10 s'    'a latency of 10 s makes no sense'
wrong 'cluster.spine=1 nodes, 0.001 MB/s, 10 us' '`spine` of 1 KB/s is slower than a modem'
wrong 'device.bandwidth=900 B/s'        '`bandwidth` of 900 B/s makes no sense'
wrong 'device.matrix=125 FLOP/s'        '`matrix` of 125 FLOP/s makes no sense'
wrong 'device.vector=1e-300 TFLOP/s'    '`vector` of 1e-288 FLOP/s makes no sense'
wrong 'device.launch=4 s'               'a launch of 4 s makes no sense'
wrong 'device.reserve=2 TB'             'a reserve of 2 TB leaves nothing of'
fails 2 'all devices of a cluster are alike' "$t" simulate c.tcube --set 'cluster.node=4*d + 4*d'
fails 1 '[layers-cover]|pipeline can be at most' "$t" simulate c.tcube --set plan.pipeline=63 \
    --set plan.turns=[1,1]
is "no hint of stages without turns" "$(grep -c 'write turns' err)" = 0
works "$t" simulate c.tcube --set "cluster.network=0.1 MB/s, 100 ms"    # slow, but it is there
for cmd in plan tune diff; do           # each says it, none works on
    case $cmd in diff) f='c.tcube c.tcube' ;; *) f=c.tcube ;; esac
    fails 2 '`nodes` must be at least 1' "$t" $cmd $f --set cluster.nodes=0
done
fails 2 'slower than a modem|at most 1 s' "$t" simulate c.tcube --set 'cluster.network=0.001 MB/s, 10 s'
summary
