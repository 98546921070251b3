# Row kernels of a program.cu: "KERNEL moved/least" - how often a kernel reads or writes each
# argument that has a number for each column of each row, weighed by its bytes, over once.
# A vector, the same for all rows, counts nothing: it stays in a cache.
function finish(   least, all, a) {
    for (a in size) {
        least += times[a] > 0 ? size[a] : 0
        all += times[a] * size[a]
    }
    if (kernel != "" && least > 0)
        printf "%s %.3f\n", kernel, all / least
    delete size
    delete times
    kernel = ""
}
/^__global__/ { finish(); kernel = $0; sub(/.*\) /, "", kernel); sub(/\(.*/, "", kernel) }
kernel != "" && /__restrict__ a[0-9]+/ {
    a = $0
    sub(/.*__restrict__ /, "", a)
    sub(/[^a0-9].*/, "", a)
    size[a] = /bfloat16/ ? 2 : /double/ ? 8 : 4
}
kernel != "" && /a[0-9]+( \+ |\[)row \* / && !/if \(lane == 0\)|part \* [0-9]+\]/ {
    match($0, /a[0-9]+( \+ |\[)row \*/)
    a = substr($0, RSTART, RLENGTH)
    sub(/[^a0-9].*/, "", a)
    if (/row_load|row_store|\+ j\)/)
        times[a]++
}
/^}/ { if (kernel != "") finish() }
