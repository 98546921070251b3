# The command line: status 2 and a message that says what to write instead.
# needs: llvm
. tests/input/_lib.sh
fails 2 'usage: teracube COMMAND'                       "$t"
works                                                   "$t" --help
fails 2 'unknown command `plam`; did you mean `plan`?'  "$t" plam "$M"
fails 2 'check needs a model file'                      "$t" check
fails 2 'unknown option --sett; did you mean `--set`'    "$t" check "$M" --sett a=1
fails 2 'unknown option --zzzzzzzz'                     "$t" check "$M" --zzzzzzzz
fails 2 '--set needs a value'                           "$t" check "$M" --set
fails 2 '--set needs a value'                           "$t" check "$M" --set=
fails 2 '--save needs a value'                          "$t" run "$M" --save ''
fails 2 '--json takes no value'                         "$t" plan "$M" --json=yes
fails 2 'check takes no --save'                         "$t" check "$M" --save f
fails 2 'run takes no --json'                           "$t" run "$M" --json
fails 2 '--small and --full exclude each other'         "$t" verify "$M" --small --full
fails 2 '--steps takes a whole number, not `-1`'        "$t" run "$M" --steps -1
fails 2 '--steps takes a whole number, not `2x`'        "$t" run "$M" --steps 2x
fails 2 '--steps takes a number up to 1099511627776'    "$t" run "$M" --steps 99999999999999999999
fails 2 '--threads takes a number up to 4096'           "$t" run "$M" --threads 5000000000
fails 2 'unknown pass `grahp`; did you mean `graph`?'   "$t" check "$M" -d grahp
fails 2 'unknown pass `graph,mesh`'                     "$t" check "$M" --stop graph,mesh
fails 2 '--explain knows slice, schedule, partition and tune, not `slices`' \
    "$t" plan "$M" --explain slices
fails 2 'build needs --target cpu'                      "$t" build "$M" -o x
fails 2 'build needs --target cpu or --target cuda'     "$t" build "$M" -o x --target gpu
fails 2 'build needs -o EXE'                            "$t" build "$M" --target cpu
fails 2 '--seed takes a whole number, not `x`'          "$t" check "$M" --seed x
fails 2 'no section `trian`|did you mean `train`?'      "$t" check "$M" --set trian.batch=1
fails 2 'no key `bach`|did you mean `batch`?'          "$t" check "$M" --set train.bach=1
fails 2 'use attention = gather, or microbatch = 2' \
    "$t" check "$M" --set plan.cube=[1,1,2] --set plan.attention=local --set plan.microbatch=1
fails 2 'use attention = gather, or microbatch = 2 and a batch of 6' "$t" check "$M" \
    --set plan.cube=[1,1,2] --set plan.attention=local --set plan.microbatch=1 --set train.batch=5
fails 2 'KEY=VALUE'                                     "$t" check "$M" --set nonsense
fails 2 'error'                                         "$t" check "$M" --set 'plan.cube=[1,2'
fails 2 'error'                                         "$t" check "$M" --set train.batch=0
bell=$(printf 'train.data=a\001b')
fails 2 'error'                                         "$t" check "$M" --set "$bell"
works                                                   "$t" check -- "$M"
works                                                   "$t" check "$M" --set=train.batch=8
fails 1 'could not open'                                "$t" check --  -q
fails 2 'RT_COMM=pigeon'         env RT_COMM=pigeon     "$t" run "$M" $D
fails 2 'RT_TIMEOUT=soon'        env RT_TIMEOUT=soon    "$t" run "$M" $D
fails 4 'RT_BLAS=/none.so'       env RT_BLAS=/none.so   "$t" run "$M" $D
summary
