# The plan block that `plan` prints, pasted back, gives the same block and the same
# instructions, byte for byte.
for args in "" "--set plan.cube=[2,2,2]" "--set plan.cube=[1,3,1] --set plan.data=2" \
    "--set plan.cube=[3,1,2] --set plan.keep=none" "--set plan.cube=[1,2,4]"; do
    file=tests/plan/_paste.tcube
    block() { sed -n '/^plan {/,/^}/p'; }
    "$TERACUBE" plan $file $args > "$WORK/page" || exit 1
    block < "$WORK/page" > "$WORK/plan.tcube"
    "$TERACUBE" plan $file "$WORK/plan.tcube" > "$WORK/again" || exit 1
    block < "$WORK/again" | diff "$WORK/plan.tcube" - || exit 1
    "$TERACUBE" plan $file $args -d partition > "$WORK/a" 2>&1 || exit 1
    "$TERACUBE" plan $file "$WORK/plan.tcube" -d partition > "$WORK/b" 2>&1 || exit 1
    grep '^ *[0-9][0-9]* [fbso]' "$WORK/a" | sed 's/  #.*//' > "$WORK/c"
    grep '^ *[0-9][0-9]* [fbso]' "$WORK/b" | sed 's/  #.*//' > "$WORK/d"
    [ -s "$WORK/c" ] && diff "$WORK/c" "$WORK/d" || exit 1
done
