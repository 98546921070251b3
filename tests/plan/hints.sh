# Hints are values that work: each file of this folder is refused with the hint named here, and
# accepted once what the hint says is done.
#
#     FILE | words of the hint | what is done, as arguments
passed=0 failed=0
cd tests/plan || exit 1
while IFS='|' read -r file hint fix; do
    file=$(echo $file) hint=$(echo $hint) base=
    [ -n "$file" ] || continue
    case $file in rows-balanced) base='--set train.sequence=40' ;;
        slice-causal) base='--set plan.slices=[24,24]' ;; esac
    # shellcheck disable=SC2086
    if "$TERACUBE" check $file.tcube $base > "$WORK/out" 2>&1; then
        failed=$((failed + 1)); echo "FAIL $file: is accepted as it is"
    elif ! grep -q "^hint: .*$hint" "$WORK/out"; then
        failed=$((failed + 1)); echo "FAIL $file: no hint says '$hint'"; grep '^hint' "$WORK/out"
    elif ! "$TERACUBE" check $file.tcube $base $fix > "$WORK/out" 2>&1; then
        failed=$((failed + 1)); echo "FAIL $file: $fix does not help"; head -5 "$WORK/out"
    else
        passed=$((passed + 1))
    fi
done <<'W'
attention-heads | attention = gather     | --set plan.attention=gather
batch-divides   | a batch of 8 fits      | --set train.batch=8
chunk           | 96 fits                | --set plan.logits_chunk=96
devices-match   | \[1, 4, 1\]            | --set plan.cube=[1,4,1]
devices-match   | \[1, 2, 2\]            | --set plan.cube=[1,2,2]
devices-match   | \[1, 1, 4\]            | --set plan.cube=[1,1,4]
devices-match   | \[2, 2, 1\]            | --set plan.cube=[2,2,1]
heads-divide    | y can be 1,            | --set plan.cube=[1,1,1]
heads-divide    | 2, 3, 4                | --set plan.cube=[1,3,1]
heads-divide    | 6 or 12                | --set plan.cube=[1,6,1]
heads-divide    | 12; to use             | --set plan.cube=[1,12,1]
heads-kv        | 2, 4                   | --set plan.cube=[1,4,1]
heads-kv        | or 12                  | --set plan.cube=[1,12,1]
layers-cover    | turns = \[1, 1\]       | --set plan.turns=[1,1]
local           | a batch of 8           | --set train.batch=8
local           | attention = gather     | --set plan.attention=gather
memory-microbatch | microbatch = 3       | --set plan.microbatch=3
no-effect       | zero = 0               | --set plan.zero=0
no-effect       | raise data             | --set plan.data=2
no-effect-chunks    | chunks = 1         | --set plan.chunks=1
no-effect-chunks    | raise pipeline     | --set plan.chunks=1 --set plan.pipeline=2
no-effect-recompute | recompute = none   | --set plan.recompute=none
partition-1d    | partition = 3d         | --set plan.partition=3d
summa-grid      | partition = 3d         | --set plan.partition=3d
summa-keep      | keep = none            | --set plan.keep=none
summa-heads     | q can be 1, 2          | --set plan.partition=summa(2)
parts-cut       | use z = 1              | --set plan.cube=[1,2,1]
rows-balanced   | rows = plain           | --set plan.rows=plain
rows-balanced   | a sequence of 42       | --set train.sequence=42
rows-divide     | a batch of 10 fits     | --set train.batch=10
rows-divide     | a multiple of 5        | --set train.sequence=50
rows-microbatch | microbatch = 4 fits    | --set plan.microbatch=4
rows-microbatch | a multiple of 2        | --set train.sequence=4
rows-microbatch2 | microbatch = 3 and a batch of 6 fit | --set plan.microbatch=3 --set train.batch=6
slice-causal    | uniform(1)             | --set plan.slices=uniform(1)
slices-sum      | the last slice 28      | --set plan.slices=[20,28]
width-divides   | z can be 4             | --set plan.cube=[1,1,4]
width-divides   | or 6                   | --set plan.cube=[1,1,6]
width-divides   | the width 120          | --set model.hidden=120 --set train.batch=10
several   | a batch of 20 fits | --set train.batch=20 --set model.hidden=120 --set plan.turns=[2]
W
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
