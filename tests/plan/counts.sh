# Collectives of one layer, counted by hand, against the difference between a plan of
# 4 layers and one of 3. Columns: phase kind axis count; what is not named is 0.
#
# One layer of gpt2 or llama has four products: in (q, k, v together), proj, up (llama:
# gate and up together), down; parallel has three: in (q, k, v, fc_in together), proj, fc_out.
# Entering in A, a product gathers rows over y and its matrix over x, and scatters its result
# over z; from B, y and z change places. Backward each gathers dY where Y was scattered, scatters dX
# where X was gathered, and scatters dW over x. Where z > 1 each norm exchanges its row
# statistics over z once forward and once backward. Gradients of vectors travel once a step.
passed=0 failed=0
count() { # FILE GRID KEEP LAYERS
    "$TERACUBE" plan "examples/$1.tcube" --set "plan.cube=[$2]" --set "plan.keep=$3" \
        --set "model.layers=$4" --set train.batch=8 -d partition 2>&1 |
        sed -n 's/^ *[0-9]* \(fwd\|bwd\) *\([a-z_]*\) over:{\([a-z,]*\)}.*/\1 \2 \3/p' | sort |
        uniq -c | awk '{ print $2, $3, $4, $1 }'
}
expect() { # FILE GRID KEEP < lines
    sed 's/^ *//; /^$/d' | sort > "$WORK/want"
    count "$1" "$2" "$3" 3 > "$WORK/three"
    count "$1" "$2" "$3" 4 > "$WORK/four"
    awk 'NR == FNR { a[$1" "$2" "$3] = $4; next } { k = $1" "$2" "$3; n = $4 - a[k]
        if (n) print k, n }' "$WORK/three" "$WORK/four" | sort > "$WORK/got"
    if [ -s "$WORK/four" ] && diff "$WORK/want" "$WORK/got" > "$WORK/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)); echo "FAIL $1 [$2] keep=$3: < by hand, > in the plan"
        cat "$WORK/diff"
    fi
}

for model in gpt2 llama; do
# rows of the two norms gathered, the results of proj and down scattered; backward dY of
# proj and down gathered, dX of in and up scattered
expect $model 1,4,1 both <<'W'
    fwd all_gather y 2
    fwd reduce_scatter y 2
    bwd all_gather y 2
    bwd reduce_scatter y 2
W
# the norms' rows are gathered again for dW of in and up
expect $model 1,4,1 none <<'W'
    fwd all_gather y 2
    fwd reduce_scatter y 2
    bwd all_gather y 4
    bwd reduce_scatter y 2
W
# four matrices gathered, four gradients scattered
expect $model 4,1,1 both <<'W'
    fwd all_gather x 4
    bwd reduce_scatter x 4
W
# the matrices are gathered again for dX
expect $model 4,1,1 none <<'W'
    fwd all_gather x 4
    bwd all_gather x 4
    bwd reduce_scatter x 4
W
# both together; over z also the statistics of two norms
expect $model 2,2,2 both <<'W'
    fwd all_gather x 4
    fwd all_gather y 2
    fwd all_gather z 4
    fwd reduce_scatter y 2
    fwd reduce_scatter z 2
    bwd all_gather y 2
    bwd all_gather z 4
    bwd reduce_scatter x 4
    bwd reduce_scatter y 2
    bwd reduce_scatter z 2
W
done

# one gather for four products; proj and fc_out are summed before one scatter
expect parallel 1,4,1 both <<'W'
    fwd all_gather y 1
    fwd reduce_scatter y 1
    bwd all_gather y 1
    bwd reduce_scatter y 1
W
expect parallel 4,1,1 both <<'W'
    fwd all_gather x 3
    bwd reduce_scatter x 3
W
# over z: rows of the attention's and of the MLP's inside are two tensors; the norm is one
expect parallel 2,2,2 both <<'W'
    fwd all_gather x 3
    fwd all_gather y 1
    fwd all_gather z 3
    fwd reduce_scatter y 1
    fwd reduce_scatter z 1
    bwd all_gather y 1
    bwd all_gather z 2
    bwd reduce_scatter x 3
    bwd reduce_scatter y 1
    bwd reduce_scatter z 2
W
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
