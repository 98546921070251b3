# teracube profile CLUSTER --target cpu -o DIR: a program that measures the cluster, as threads and
# as processes; the planner reads what it writes. What does not match is said.
. tests/input/_lib.sh
cat > cluster.tcube <<'EOF'
device core { memory = 1 GB;  bandwidth = 5 GB/s;  matrix = 60 GFLOP/s;  vector = 8 GFLOP/s;  arch = cpu }
cluster box { nodes = 1;  node = 4 * core;  link = 5 GB/s, 2 us }
cluster two { nodes = 2;  node = 2 * core;  link = 5 GB/s, 2 us;  network = 1 GB/s, 20 us }
EOF
works "$t" profile cluster.tcube --cluster box --target cpu -o box
is "files" -e box/profile.c -a -x box/launch.sh -a -x box/launch.sbatch -a -e box/Makefile
sanitizers=; [ "$SAN" = 1 ] && sanitizers=-fsanitize=address,undefined
build() { works env -u TERACUBE make -C "$1" CC="cc $sanitizers"; }
build box
works box/launch.sh --tiny --quick
is "a profile is written by --quick" ! -e box/box.profile
works box/launch.sh --tiny
is "words" "$(grep -cE '^box: 1 node of 4 x |products in fp32 |^  all_gather +4 +1 +1 +1 ' out)" = 3
# cores of another name: the profile prices a cluster anywhere
model() { sed '/^device\|^cluster/d' "$top/tests/simulate/_gpt.tcube"; }
{ model; echo 'device some { profile = "box/box.profile";  memory = 1 GB }'
  echo 'cluster c { nodes = 1;  node = 4 * some;  link = 5 GB/s, 2 us }'; } > m.tcube
works "$t" simulate m.tcube --set plan.cube=[1,4,1]
is "measured rates" "$(grep -c 'measured rates' out)" = 1
fails 1 'profile-cluster|nodes of 4 devices; those of c have 2' "$t" simulate m.tcube \
    --set 'cluster.node=2*some' --set plan.cube=[1,2,1]
works "$t" simulate m.tcube --set cluster.nodes=2 --set 'cluster.network=1 GB/s, 9 us' \
    --set plan.cube=[1,4,1] --set plan.data=2
is "more nodes than measured" "$(grep -c '\[profile-cluster\]' err)" = 1
fails 1 'profile-machine|of processors|arch = sm_80' "$t" simulate m.tcube \
    --set device.arch=sm_80 --set plan.cube=[1,4,1]
# of GPUs: on cores it says nothing
cat > gpu.head <<'EOF'
teracube-profile 1
device FAKE 80GB
cores 1
memory 80000000000
load 0.00
blas none
cluster 1 4 1 fake
step 4e-06 4e-06
product bf16 nn alone 64 64 64 1e+14
product bf16 nn alone 64 64 128 1e+14
stream 65536 1e+12 1e+12
group all_gather 4 1 1 1 1e-05 1e+11 0 0
ring_point 65536 1.07e-05
EOF
cat > sum.c <<'EOF'
#include <stdio.h>
int main(void)
{
    unsigned long long h = 0xcbf29ce484222325u;
    for (int c; (c = getchar()) != EOF; h = (h ^ (unsigned char)c) * 0x100000001b3u)
        putchar(c);
    printf("checksum %016llx\n", h);
}
EOF
cc -o sum sum.c && ./sum < gpu.head > gpu.profile
sed 's|box/box.profile|gpu.profile|' m.tcube > g.tcube
works "$t" simulate g.tcube --set device.arch=sm_80 --set plan.cube=[1,4,1]
is "measured rates of GPUs" "$(grep -c 'measured rates' out)" = 1
fails 1 'profile-machine|of GPUs, FAKE 80GB' "$t" simulate g.tcube --set device.arch=cpu --set plan.cube=[1,4,1]
{ model; echo 'device some { profile = "gpu.profile" }'; } > h.tcube
fails 1 'profile-machine|computes on its cores' "$t" check h.tcube
grep -v 64.64.128 gpu.head | ./sum > short.profile; sed 's/^group.*/group all_gather 2 1 4 1 1e-05 1e+11 0 0/' \
    gpu.head | ./sum > odd.profile
sed 's/gpu.profile/odd.profile/' g.tcube > odd.tcube
fails 1 'profile-valid|a group of 2 in 4 nodes makes no sense' "$t" simulate odd.tcube
sed 's/gpu.profile/short.profile/' g.tcube > short.tcube
works "$t" simulate short.tcube --set device.arch=sm_80 --set plan.cube=[1,4,1]

fails 2 'not gpu' "$t" profile cluster.tcube --cluster box --target gpu -o x
fails 2 'cluster box is measured by a program: --target' "$t" profile cluster.tcube --cluster box -o x
fails 2 'needs -o DIR' "$t" profile cluster.tcube --cluster box --target cpu
fails 2 'a file that describes the cluster; ' "$t" profile "$M" --target cpu -o x
fails 2 'a file that describes the cluster' "$t" profile --target cpu -o x
fails 1 'profile-machine|--target cuda does not measure' "$t" profile cluster.tcube --cluster box --target cuda -o x
fails 4 'there is a file of that name' "$t" profile cluster.tcube --cluster box --target cpu -o sum.c
none x
fails 2 'unknown option --speed' box/profile --speed
fails 4 'could not write absent/p' box/profile --tiny -o absent/p
works "$t" profile cluster.tcube --cluster two --target cpu -o two
build two
fails 2 'cluster two has 2 nodes: start one process' two/profile
if command -v mpirun > /dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    works mpirun --oversubscribe -np 4 two/profile --tiny -o two/two.profile
    is "words of processes" "$(grep -cE '^two: 2 nodes of 2 x |^  all_gather +2 +2 +2 +2 ' out)" = 2
    is "figures left behind" "$(ls two | grep -c rank-)" = 0
    { model; echo 'device some { profile = "two/two.profile";  memory = 1 GB }'
      echo 'cluster c { nodes = 2;  node = 2 * some;  link = 5 GB/s, 2 us;  network = 1 GB/s, 9 us }'; } > p.tcube
    works "$t" simulate p.tcube --set plan.cube=[1,4,1]
    fails 2 'mpirun started 3 processes' mpirun --oversubscribe -np 3 two/profile --tiny
else
    skipped=$((skipped + 5)); echo "no mpirun"
fi
summary
