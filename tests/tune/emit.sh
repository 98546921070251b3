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
mv all/1/log.jsonl log
broken() {      # what of the log, what is said of it
    sed "$1" log > all/1/log.jsonl
    works "$t" tune $m --results all; cp out page
    has '0 of 3 layouts measured'
    has "$2"
}
broken '1,$d'                                  'all/1/log.jsonl:1:1: .*no steps with their seconds'
broken '2s/"loss": [0-9.]*/"loss": NaN/'       'all/1/log.jsonl:2:[0-9]*: .*a number was expected'
broken '3s/"step_s": [0-9.e-]*/"step_s": -1/'  'all/1/log.jsonl:3:1: .*a step of -1 s'
broken '3s/"step_s": [0-9.e-]*/"step_s": 1e300/' 'a step of 1e+300 s'
broken '1s/"model_hash": "[^"]*/"model_hash": "1/' 'of a model with other parameters'
broken '1s/"plan": "[^"]*/"plan": "data 9/'    'is of another plan: data 9; the files have'
broken '1s/"tokens_per_step": [0-9]*/"tokens_per_step": 1/' 'has 1 tokens; the files have'
for k in 1 2 3; do echo 0 > all/$k/status; sed '1d' log > all/$k/log.jsonl; done
works "$t" tune $m --results all; cp out page
is "equal steps have no order" "$(grep -c 'rank correlation' page)" = 0
fails 2 'this is all/1/settings, a layout that was written for other files' "$t" tune $m \
    --results all --set train.batch=7
works "$t" tune $m --emit 1 -o all
is "what was measured before is forgotten" ! -e all/1/log.jsonl
works "$t" tune $m --results all; cp out page
has '^all: 0 of 1 layout measured'
mkdir mine; echo mine > mine/run.sh
fails 2 'a run.sh that --emit did not write' "$t" tune $m --emit 1 -o mine
is "what is not ours is left alone" "$(cat mine/run.sh)" = mine
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
