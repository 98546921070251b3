# Memory: resident peak at most the printed blocks and 200 MB; nothing is allocated
# during a step.
# needs: llvm
. tests/run/_lib.sh
CC=${CC:-cc}
: > err
command -v "$CC" > /dev/null || { echo 'no C compiler'; exit 77; }
[ "$SAN" = 1 ] && { echo 'sanitizers keep memory of their own'; exit 77; }

cat > peak.c <<'X'
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)         /* runs argv[1..]; peak in bytes to peak.bytes */
{
    int status;
    struct rusage u;
    if (argc > 1 && fork() == 0) { execv(argv[1], argv + 1); _exit(127); }
    wait4(-1, &status, 0, &u);
    FILE *f = fopen("peak.bytes", "w");
    fprintf(f, "%ld\n", u.ru_maxrss * 1024);
    return fclose(f) || !WIFEXITED(status) ? 1 : WEXITSTATUS(status);
}
X
cat > count.c <<'X'
/* Counts what is asked of the allocator. Each step ends with a flush of its line: the
 * counts after the first and after the last go to the file "count" at exit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
static atomic_long calls, first = -1, last;
static atomic_int lines;
void *__libc_malloc(size_t); void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t); void *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { calls++; return __libc_malloc(n); }
void *calloc(size_t n, size_t s) { calls++; return __libc_calloc(n, s); }
void *realloc(void *p, size_t n) { calls++; return __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { calls++; return __libc_memalign(a, n); }
void *memalign(size_t a, size_t n) { calls++; return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n)
{
    calls++;
    *p = __libc_memalign(a, n);
    return *p ? 0 : 12;
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "mmap");
    calls++;
    return real(at, n, prot, flags, fd, from);
}
int fflush(FILE *f)
{
    static int (*real)(FILE *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fflush");
    if (f == stdout) {          /* the head line, then one a step */
        lines++;
        if (lines == 2)
            first = calls;
        if (lines >= 2 && lines <= 41)
            last = calls;
    }
    return real(f);
}
__attribute__((destructor)) static void tell(void)
{
    FILE *f = fopen("count", "w");
    if (f) { fprintf(f, "%ld %ld %d\n", first, last, lines); fclose(f); }
}
X
"$CC" -O1 -o peak peak.c && "$CC" -O1 -shared -fPIC -o count.so count.c -ldl ||
    { echo 'the C compiler makes no programs'; exit 77; }

resident() { # TITLE COMMAND...: against devices * block_bytes of the log
    title=$1; shift
    works ./peak "$@" --log l
    [ $got = 0 ] || return
    ranks=$(sed -n '1s/.*"devices": \([0-9]*\).*/\1/p' l)
    block=$(sed -n '1s/.*"block_bytes": \([0-9]*\).*/\1/p' l) peak=$(cat peak.bytes)
    is "$title: peak $peak, $ranks blocks of $block" "$peak" -le $((ranks * block + 200000000))
}
for cube in 1,1,1 2,2,2; do
    for model in tiny char; do
        resident "$model on $cube" "$t" run "$top/examples/$model.tcube" --steps 2 -q \
            --set "plan.cube=[$cube]"
    done
done
resident 'tiny on two stages' "$t" run "$top/examples/tiny.tcube" --steps 2 -q \
    --set plan.pipeline=2 --set plan.slices='uniform(4)' --set plan.microbatch=2
resident 'char on three stages' "$t" run "$top/examples/char.tcube" --steps 2 -q \
    --set plan.pipeline=3 --set plan.recompute=full --set plan.microbatch=1
if [ -n "$ALL" ]; then
    resident 'gpt2' "$t" run "$top/examples/gpt2.tcube" --steps 1 -q --set train.batch=4 \
        --set train.sequence=64 --set train.data="$top/README.md" --set plan.cube=[2,1,1]
fi

# Nothing is allocated between the ends of the first and the last of 40 steps. With our
# own products: OpenBLAS maps a buffer of its own whenever more threads than ever
# before multiply at once.
works "$t" build "$M" $D --target cpu --set plan.cube=[1,2,2] -o exe
steady() {
    title=$1; shift
    works env RT_BLAS=none LD_PRELOAD="$WORK/count.so" "$@" --steps 40 --log l
    read -r first last lines < count
    is "$title: $first allocations after step 1, $last after step 40" "$first" = "$last"
    is "$title: the allocator and $lines lines were seen" "$first" -gt 10 -a "$lines" -ge 41
}
steady 'run on one rank'  "$t" run "$M" $D --threads 2
steady 'run, two replicas' "$t" run "$M" $D --set plan.data=2 --set plan.cube=[1,2,1]
steady 'run on a cube'    "$t" run "$M" $D --set plan.cube=[2,2,2] --save w \
    --set train.order=shuffle
steady 'exchange'         "$t" run "$M" $D --set plan.cube=[1,2,1] --trace tr \
    --set plan.attention=exchange
steady 'two stages'       "$t" run "$M" $D --set plan.pipeline=2 --set plan.microbatch=2 \
    --set plan.slices=[3,5]
steady 'slices and a cube' "$t" run "$M" $D --set plan.slices=[2,4,2] --set plan.microbatch=4 \
    --set plan.cube=[2,2,1] --set plan.recompute=full
steady 'stages, zero = 2' "$t" run "$M" $D --set plan.pipeline=2 --set plan.data=2 \
    --set plan.zero=2 --set plan.microbatch=1
steady 'executable'       ./exe
summary
