# `run --reference` on the real data: the losses of `run` on a grid, and the same
# first weights, byte for byte.
# needs: llvm
set -eu
cd "$(dirname "$0")"
set -- ../../examples/tiny.tcube -q --set train.precision=fp64 --set train.batch=2 \
    --set train.sequence=32
"$TERACUBE" run "$@" --steps 3 --reference --log "$WORK.a" --save "$WORK.wa"
"$TERACUBE" run "$@" --steps 3 --set plan.cube=[1,2,2] --log "$WORK.b" --save "$WORK.wb"
losses() { sed -n 's/.*"loss": \([0-9.]\{12\}\).*"grad_norm": \([0-9.]\{12\}\).*/\1 \2/p' "$1"; }
losses "$WORK.a" > "$WORK.la"; losses "$WORK.b" > "$WORK.lb"
[ "$(wc -l < "$WORK.la")" = 3 ]
diff "$WORK.la" "$WORK.lb"
"$TERACUBE" run "$@" --steps 0 --reference --save "$WORK.wa"
"$TERACUBE" run "$@" --steps 0 --set plan.cube=[2,2,1] --save "$WORK.wb"
cmp "$WORK.wa" "$WORK.wb"
