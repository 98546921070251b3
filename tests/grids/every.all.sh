# Every grid of up to 27 ranks that the small form of each example admits, in fp64
# against the reference. A grid that is refused must be refused with an error of the
# file's or an option's (status 1 or 2); those are counted and printed. GRIDS=n takes
# every n-th grid.
# needs: llvm
set -u
cd "$(dirname "$0")" || exit 4
passed=0 failed=0 refused=0 n=0
for f in ../../examples/*.tcube ../../examples/cube/model.tcube; do
    case $f in *175b*) continue ;; esac         # gpt2, larger
    for x in $(seq 27); do for y in $(seq $((27 / x))); do for z in $(seq $((27 / x / y))); do
        n=$((n + 1))
        [ $((n % ${GRIDS:-1})) = 0 ] || continue
        timeout 120 "$TERACUBE" verify "$f" --small --set train.precision=fp64 \
            --set train.batch=48 --set train.sequence=54 --set "plan.cube=[$x,$y,$z]" \
            > "$WORK.out" 2>&1
        status=$?       # 2: all that is wrong stands in an option
        case $status in [12]) grep -q '^.*: error: .*\[[a-z-]*\]$' "$WORK.out" || status=9 ;; esac
        case $status in
            0) passed=$((passed + 1)) ;;
            [12]) refused=$((refused + 1)) ;;
            *) failed=$((failed + 1)); echo "FAIL $f [$x,$y,$z]"; tail -n 5 "$WORK.out" ;;
        esac
    done; done; done
done
echo "note: $refused grids are refused with a message"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
