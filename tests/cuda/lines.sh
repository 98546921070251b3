# The program's text grows with the number of distinct operators, not with layers, ranks,
# microbatches or slices, of one length or of several; its comments say who runs a function.
passed=0 failed=0
[ -n "$WORK" ] || WORK=$(mktemp -d)
mkdir -p "$WORK"
is() { # WHAT CONDITION...
    what=$1; shift
    if [ "$@" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $what: $*"; fi
}
lines() { # ARGS...: of GPT-3 175B on 128 GPUs
    "$TERACUBE" emit examples/gpt3-175b.tcube examples/clusters/dgx-a100-128.tcube \
        --set plan.data=2 --set plan.pipeline=8 --set 'plan.cube=[1,8,1]' \
        --set plan.microbatch=1 "$@" --target cuda -o "$WORK/gen" -q && wc -l < "$WORK/gen/program.cu"
}
bert() { "$TERACUBE" emit examples/bert.tcube "$@" --target cuda -o "$WORK/gen" -q &&
    wc -l < "$WORK/gen/program.cu"; }
one=$(lines --set 'plan.slices=uniform(1)')
half=$(lines --set 'plan.slices=uniform(1)' --set model.layers=48)
is 'lines of 175B'                  "$one" -lt 4000
is 'with half the layers: fewer offsets alone' "$one" -lt $((half * 5 / 4))
is 'with dropout too'               "$(bert)" -lt $(($(bert --set model.layers=6) * 5 / 4))
four=$(lines --set 'plan.slices=uniform(4)')
is 'lines with 4 slices'            "$four" -lt 6000
is 'slices run the same functions' \
    "$(grep -c '^/\* stages 1-6: forward, slices 0-3 of 512 tokens \*/$' "$WORK/gen/program.cu")" = 1
is 'with 8'                         "$(lines --set 'plan.slices=uniform(8)')" -lt $((four * 5 / 4))
is 'with 4 of several lengths'      "$(lines --set 'plan.slices=[544,512,504,488]')" -lt 6000
is 'shapes in comments are those of the slice' \
    "$(grep -c '/\* .*  \[s\[[0-9]*\], 12288\]' "$WORK/gen/program.cu")" -gt 3
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
