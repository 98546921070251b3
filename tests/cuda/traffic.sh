# Generated row programs read and write what has a number for each column of each row once
# (tests/bench/rows_traffic.awk, which must see one that does not).
passed=0 failed=0
mkdir -p "$WORK"
fails() { failed=$((failed + 1)); echo "FAIL $1"; }
look() { awk -f tests/bench/rows_traffic.awk "$1" > "$WORK/moved"; }

for model in gpt2 llama parallel tiny bert; do
    for cube in 1,1,1 1,2,2; do
        "$TERACUBE" emit examples/$model.tcube --set train.precision=bf16 \
            --set train.data=/usr/share/common-licenses/GPL-3 --set train.format=bytes \
            --set plan.cube=[$cube] --target cuda -o "$WORK/gen" -q 2> "$WORK/err" ||
            { fails "$model $cube: emit"; cat "$WORK/err"; continue; }
        look "$WORK/gen/program.cu"
        if [ -s "$WORK/moved" ] && ! grep -v ' 1\.000$' "$WORK/moved"; then passed=$((passed + 1))
        else fails "$model $cube: a row program moves more than once, or none was seen"; fi
    done
done
awk '/row_load/ && !twice { print; twice = 1 } { print }' "$WORK/gen/program.cu" > "$WORK/twice.cu"
look "$WORK/twice.cu"
if grep -qv ' 1\.000$' "$WORK/moved"; then passed=$((passed + 1))
else fails "a row that is loaded twice is not seen"; fi
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
