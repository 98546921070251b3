# needs: llvm blas
# Folders of the best layouts: they build and run, what they measured ranks them, and what
# failed keeps its reason.
. tests/input/_lib.sh
unset MAKEFLAGS MFLAGS CC           # those of `make check CC=..` are not for its folders
m="$top/examples/tiny.tcube --set train.data=$WORK/d.txt"
works "$t" tune $m --emit 3 -o all --top 3
is "three folders and a script" -x all/run.sh -a -f all/1/settings -a -f all/3/Makefile -a ! -e all/4
printf 'program:\n\t@echo "error: no room on this device"; exit 1\n' > all/2/Makefile
STEPS=3; export STEPS
works ./all/run.sh 1 2
is "a log of three steps" "$(grep -c '"step":' all/1/log.jsonl)" = 3
is "the status of what failed" "$(cat all/2/status)" != 0
works "$t" tune $m --results all --write best.tcube
cp out page
has() { is "$1" "$(grep -c -- "$1" page)" = 1; }
has '1 of 3 layouts measured'
has 'folder 1$'
has 'status 2: error: no room on this device'
has 'was not run'
is "the measured best is written" "$(grep -c '^plan {' best.tcube)" = 1
echo '{"step": 1' > all/1/log.jsonl
fails 1 'run-valid' "$t" tune $m --results all
works "$t" tune $m --emit 1 -o all
is "what was measured before is forgotten" ! -e all/1/log.jsonl
fails 2 'has no layouts' "$t" tune $m --results "$WORK"
fails 2 '--emit needs -o DIR' "$t" tune $m --emit 2
fails 2 'exclude each other' "$t" tune $m --emit 2 -o all --results all
fails 2 '--target is cuda or cpu' "$t" tune $m --emit 2 -o all --target gpu
: > file
fails 4 'could not make' "$t" tune $m --emit 1 -o file/all

# CUDA programs, where the cluster's devices are GPUs
works "$t" tune "$top/tests/tune/_small.tcube" --emit 2 -o gpus --target cuda --set train.data=d.txt
is "program.cu" -f gpus/1/program.cu -a -f gpus/2/Makefile -a -x gpus/1/launch.sh
summary
