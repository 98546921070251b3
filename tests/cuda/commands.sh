# `build --target cuda` and `run` on GPUs, with tests/cudasim in the place of nvcc and a script in
# that of nvidia-smi: what is said when something is missing, the cache, the same losses as the
# CPU's.
# needs: llvm
. tests/input/_lib.sh
command -v g++ > /dev/null || { echo "no g++"; exit 77; }
[ "$SAN" != 1 ] || { echo "the emulator is not built with sanitizers"; exit 77; }
unset TERACUBE_TARGET CUDA_VISIBLE_DEVICES CUDA_HOME CUDA_PATH
mkdir bin tmp
export TMPDIR="$WORK/tmp" XDG_CACHE_HOME="$WORK/cache" PATH="$WORK/bin:$PATH"
script() { cat > "bin/$1"; chmod +x "bin/$1"; }

# nvcc, counted
script nvcc <<S
#!/bin/sh
case " \$* " in
    *' --dryrun '*) ;;
    *' -c '*) echo x >> "$WORK/compiles" ;;
    *' -o '*) echo x >> "$WORK/links" ;;
esac
exec "$top/tests/cudasim/nvcc" "\$@"
S
export NVCC="$WORK/bin/nvcc"
calls() { [ "$(cat compiles 2> /dev/null | wc -l) $(cat links 2> /dev/null | wc -l)" = "$1" ]; }
gpus() { # N ARCH: what nvidia-smi lists
    { echo '#!/bin/sh'; i=0; while [ $i -lt "$1" ]; do echo "echo $2"; i=$((i + 1)); done
    } | script nvidia-smi
}
D="$D --set train.precision=fp64 --set train.steps=6"

# The emulator itself is made now, not within the limit of a command.
echo 'int main() { return 0; }' > first.cu
"$top/tests/cudasim/simcc" plain first first.cu || exit 4

# ---- build -----------------------------------------------------------------------------------
cluster='cluster c { nodes = 1; node = 1 * d; link = 9 GB/s, 1 us; network = 9 GB/s, 1 us }'
device() { echo "device d { memory = 8 GB; matrix = 9 TFLOP/s; vector = 9 TFLOP/s;
    bandwidth = 1 TB/s; arch = $1 } $cluster"; }
B="$t build $M $D --target cuda -o exe"
for arch in sm_91 sm_70 cpu hopper; do device $arch > $arch.tcube; done
fails 1 'sm_91.tcube:2:32: error:|does not know sm_91 [device-arch]|there are sm_80 sm_90 sm_100' \
    $B sm_91.tcube
fails 1 'needs sm_80 or later, not sm_70 [device-arch]'     $B sm_70.tcube
fails 1 'is for GPUs: `cpu` is no arch like sm_90'          $B cpu.tcube
fails 2 'does not know sm_87; there are sm_80'              $B --arch sm_87
fails 2 '`gpu` is no arch like sm_90'                       $B --arch gpu
fails 2 'check takes no --arch'                             "$t" check "$M" --arch sm_80
fails 4 'could not run NVCC=/none'                          env NVCC=/none $B
ln -s "$(command -v env)" "$(command -v cc)" "$(command -v ld)" tmp
if [ ! -e /usr/local/cuda/bin/nvcc ]; then
    fails 4 'there is no nvcc here|teracube emit|make -C DIR'  env -u NVCC PATH="$WORK/tmp" $B
fi
rm tmp/*
fails 1 'needs sm_80 or later, not sm_70 [device-arch]' \
    "$t" emit "$M" $D sm_70.tcube --target cuda -o gen
fails 1 '`hopper` is no arch like sm_90 [device-arch]' \
    "$t" emit "$M" $D hopper.tcube --target cuda -o gen
fails 2 '`gpu` is no arch like sm_90'       "$t" emit "$M" $D --target cuda -o gen --arch gpu
fails 2 'is no arch like sm_90'     "$t" emit "$M" $D --target cuda -o gen --arch 'sm_90;touch x'
fails 2 'bin/false does not know sm_90; there are none that it names'  env NVCC=/bin/false $B
none gen
mkdir own; echo mine > own/Makefile
fails 4 'own holds a Makefile that is not of an emitted program' \
    "$t" emit "$M" $D --target cuda -o own
is 'which stays' "$(ls own; cat own/Makefile)" = "Makefile
mine"
works "$t" emit "$M" $D --target cuda -o "of one's own"
is 'the command to copy' "$(sed 's/.*; //' out)" = "make -C 'of one'\''s own' builds it"
fails 4 "there is no of one's own/program; make builds it" "of one's own/launch.sh"
works env NVCC=/none "$t" emit "$M" $D --target cuda -o gen
works "$t" emit "$M" $D --target cuda -o gen
is 'emit needs no nvcc' -s gen/Makefile -a -s gen/program.cu
lacks() { # MESSAGE OF NVCC
    { echo '#!/bin/sh'; echo 'case "$*" in *--dryrun*) exit 0 ;; esac'
      echo "echo \"$1\" >&2; exit 1"; } | script broken
}
lacks 'teracube.cuh:30:10: fatal error: nccl.h: No such file or directory'
fails 4 'NCCL is missing: nvcc found no nccl.h|CPATH'       env NVCC=bin/broken $B
lacks '/usr/bin/ld: cannot find -lnccl: No such file or directory'
fails 4 'NCCL is missing: the linker found no libnccl'      env NVCC=bin/broken $B
lacks 'teracube.cuh:28:10: fatal error: cublas_v2.h: No such file or directory'
fails 4 'cuBLAS is missing: nvcc found no cublas_v2.h'      env NVCC=bin/broken $B
lacks 'program.cu(7): error: identifier x is undefined'
fails 4 'program.cu(7): error: identifier x|could not compile program.cu (status 1)' \
    env NVCC=bin/broken $B
fails 4 'could not write .: it is no regular file'  "$t" build "$M" $D --target cuda -o .
fails 4 'could not write no/exe: No such file'      "$t" build "$M" $D --target cuda -o no/exe
fails 4 'could not make a folder in /none'          env TMPDIR=/none $B
# A signal while nvcc runs: it gets it too, nothing stays, and we end by it.
printf '#!/bin/sh\ncase "$*" in *--dryrun*) exit 0 ;; esac\necho $$ > "%s/nvcc.pid"\n%s' "$WORK" \
    'exec sleep 60' | script slow
for signal in 'TERM 143' 'HUP 129'; do
    rm -f nvcc.pid
    NVCC=bin/slow $B > out 2> err & pid=$!
    for i in $(seq 300); do [ -s nvcc.pid ] && break; sleep 0.1; done
    kill -${signal% *} $pid; wait $pid; got=$?
    is "SIG${signal% *} ends build" "$got" = "${signal#* }"
    is "nvcc has ended" -n "$(kill -0 "$(cat nvcc.pid)" 2> /dev/null || echo gone)"
    is 'nothing is left in TMPDIR' -z "$(ls tmp)"
    is 'nothing is said' -z "$(cat err)"
done
none exe exe.new.*
rm -f compiles links
works $B --set 'plan.cube=[1,2,1]'
is 'it says what it made' "$(cat out)" = 'exe: 2 ranks on GPUs (sm_90); run it with --help'
is 'one compile, one link' "$(calls '1 1' && echo yes)" = yes
is 'nothing is left in TMPDIR' -z "$(ls tmp)"

# ---- the executable ----------------------------------------------------------------------------
losses() { sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p' "$1"; }
works "$t" run "$M" $D -q --log l.cpu --target cpu
works ./exe -q --log l.exe
losses l.cpu > cpu; losses l.exe > exe.losses
paste cpu exe.losses | awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-10 * $1)) bad = 1 }
    END { exit bad || NR != 6 }' && passed=$((passed + 1)) || bad "losses of build differ"
fails 4 "has 0 B of memory, the plan's block "      env CUDASIM_MEMORY_MB=0 ./exe
fails 4 'there is no GPU'                           env CUDASIM_DEVICES=0 ./exe

# ---- run ---------------------------------------------------------------------------------------
export CUDASIM_PROCESSES=1 CUDASIM_THREADS=1                # a process is a rank
R="$t run $M $D -q"
printf '#!/bin/sh\necho "no driver is running"; exit 9\n' | script nvidia-smi
fails 4 'there is no GPU here: nvidia-smi says: no driver is running' $R --target cuda
works $R --steps 0
fails 2 'run knows --target cpu and cuda, not `gpu`'        $R --target gpu
fails 2 'TERACUBE_TARGET=gpu: there are cpu and cuda'       env TERACUBE_TARGET=gpu $R
gpus 2 9.0
fails 2 'the plan has 4 ranks, this machine 2 GPUs [too-few-gpus]' $R --set 'plan.cube=[2,2,1]'
fails 2 'the plan has 2 ranks, this machine 1 GPU [' \
    env CUDA_VISIBLE_DEVICES=1 $R --set 'plan.cube=[1,2,1]'
fails 4 'there is no GPU here'      env CUDA_VISIBLE_DEVICES= $R --target cuda
fails 2 '--threads is for --target cpu'                     $R --target cuda --threads 2
fails 4 'could not make /dev/null/teracube'     env XDG_CACHE_HOME=/dev/null $R
fails 4 'neither XDG_CACHE_HOME nor HOME'       env -u HOME XDG_CACHE_HOME= $R
fails 2 'does not know sm_87'                               $R --arch sm_87
works env NVCC=/none "$t" run "$M" $D --steps 1
is 'without nvcc the CPU is taken' "$(cat err)" = \
    'note: run takes the CPU: here are 2 GPUs, but no nvcc'
rm -f compiles links
works "$t" run "$M" $D --set 'plan.cube=[1,2,1]' --log l.run
is 'it says what it takes' "$(sed -n 1p err)" = \
    'note: run takes 2 of 2 GPUs (sm_90); --target cpu takes the CPU'
is 'the losses are those of build' "$(losses l.run)" = "$(losses l.exe)"
works $R --set 'plan.cube=[1,2,1]' --steps 1
is 'the second start compiles and links nothing' "$(calls '1 1' && echo yes)" = yes
works $R --set 'plan.cube=[1,2,1]' --set train.steps=9 --log l.run
is 'other steps are linked alone' "$(calls '1 2' && echo yes)" = yes
is 'and taken' "$(losses l.run | wc -l)" = 9
gpus 2 8.0
works $R --set 'plan.cube=[1,2,1]' --steps 1
is 'another kind of GPU is another program' "$(calls '2 3' && echo yes)" = yes
works env TERACUBE_TARGET=cpu $R --steps 1
is 'nothing is left in TMPDIR' -z "$(ls tmp)"
summary
