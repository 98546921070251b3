/*
 * race.cpp - the check build. The program is compiled with -fsanitize=thread and linked with
 * the __tsan_* functions below instead of libtsan: every access of a kernel comes here.
 *
 * Each two bytes of device and shared memory have a cell: who wrote last, who has read
 * since. Two accesses, one of them a write, must be ordered:
 *   in a block         by a __syncthreads between them, or in a warp by a __syncwarp
 *   between blocks     never (but see `fences`), unless both are atomic
 *   between operations of streams     by stream order, events and waits of the host: clocks
 * Accesses must also lie in live memory of the right device. Bytes written one by one are
 * checked between operations only.
 */
#define CUDASIM_CHECK 1
#include "sim.h"
#include "cudasim.h"
#include <atomic>
#include <execinfo.h>
#include <link.h>
#include <set>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- cells -------------------------------------------------------------- */

/*
 * Who: block 18 bits, barriers passed 14, thread 12, __syncwarps passed 20. The epochs
 * are only compared for equality; that they wrap does not matter.
 */
typedef uint64_t Who;
static const Who NOBODY = ~(Who)0;      // an access without a place: only its operation counts

enum { ATOMIC = 1, MANY_BLOCKS = 2, MANY_WARPS = 4, MANY_LANES = 8, ASYNC = 16 };
struct Cell {
    Who writer, reader;
    uint32_t writer_op, reader_op, reader2_op;  // reader2: unordered with reader_op
    uint32_t writer_pc, reader_pc;
    uint32_t flags;
};

static unsigned block_of(Who w) { return (unsigned)(w >> 46); }
static unsigned epoch_of(Who w) { return w >> 32 & 0x3fff; }
static unsigned thread_of(Who w) { return w >> 20 & 0xfff; }
static unsigned warp_epoch_of(Who w) { return w & 0xfffff; }

static unsigned linear_block(const Worker *w)
{
    uint3 b = w->block.index;
    return (b.z * w->block.grid.y + b.y) * w->block.grid.x + b.x;
}

static Who who_now(const Worker *w)
{
    return (Who)(linear_block(w) & 0x3ffff) << 46 | (Who)(w->epoch & 0x3fff) << 32 |
           (Who)w->now->id << 20 | (w->now->warp_epoch & 0xfffff);
}

/* ---- operations --------------------------------------------------------- */

struct OpInfo { uint32_t slot, clock; std::string name; void *callers[8]; int ncallers; };
enum { CHUNK = 4096 };
static OpInfo *chunks[1 << 14];
static uint32_t nops;                           // id 0: none

void race_op(Op &op)                            // with big_lock held
{
    op.id = ++nops;
    OpInfo *&c = chunks[op.id / CHUNK];
    if (!c)
        c = new OpInfo[CHUNK];
    OpInfo &i = c[op.id % CHUNK];
    i.slot = (uint32_t)op.slot;
    i.clock = op.clock;
    i.name = op.name;
    i.ncallers = backtrace(i.callers, 8);
}

static const OpInfo &info(uint32_t id) { return chunks[id / CHUNK][id % CHUNK]; }

static bool ordered(uint32_t before, const Op &op)
{
    if (!before || before == op.id)
        return true;
    const OpInfo &b = info(before);
    const Clock &c = op.mark->clock;
    return b.slot < c.size() && c[b.slot] >= b.clock;
}

/* ---- source lines ------------------------------------------------------- */

static uintptr_t image;                         // where the program was loaded
static int first_object(struct dl_phdr_info *i, size_t, void *)
{
    image = i->dlpi_addr;
    return 1;
}

static uint32_t short_pc(void *pc)
{
    static bool known = (dl_iterate_phdr(first_object, nullptr), true);
    (void)known;
    return (uint32_t)((uintptr_t)pc - image);
}

// "prims.cuh:130 < attention.cu:41": inlined functions, innermost first.
static bool is_ours(const char *file)
{
    static const char *const names[] = {
        "device.h:", "sim.cpp:", "host.cpp:", "nccl.cpp:", "blas.cpp:", "race.cpp:",
        "cuda_runtime.h:", "std_function.h:", "invoke.h:", "move.h:", "tuple:"
    };
    for (const char *n : names)
        if (!strncmp(file, n, strlen(n)))
            return true;
    return !strchr(file, '.') || strchr(file, '?');
}

static std::string lines(std::vector<uint32_t> pcs, int most = 8)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    std::string cmd = format("addr2line -i -e '%s'", exe), out;
    for (uint32_t pc : pcs)
        cmd += format(" 0x%x", pc - 1);
    cmd += " 2> /dev/null";
    FILE *f = popen(cmd.c_str(), "r");
    char line[4096];
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, " \n")] = 0;
        const char *base = base_name(line);
        if (is_ours(base) || most-- <= 0)
            continue;
        out += (out.empty() ? "" : " < ") + std::string(base);
    }
    if (f)
        pclose(f);
    return out.empty() ? "unknown line" : out;
}

// The access itself and the calls that led to it.
static std::string lines_now(uint32_t pc)
{
    std::vector<uint32_t> pcs = { pc };
    Worker *w = sim_worker;
    if (w && w->now)
        for (int i = w->now->depth - 1; i >= 1 && i >= w->now->depth - 3; i--)
            pcs.push_back(short_pc(w->now->callers[i & 15]));
    return lines(pcs);
}

static std::string issued(uint32_t op)
{
    const OpInfo &i = info(op);
    std::vector<uint32_t> pcs;
    for (int k = 1; k < i.ncallers; k++)
        if ((uintptr_t)i.callers[k] - image < 0x7fffffff)       // not of a shared library
            pcs.push_back(short_pc(i.callers[k]));
    return pcs.empty() ? "" : ", issued at " + lines(pcs, 2);
}

// Once for each pair of places.
static bool first_time(int kind, uint32_t a, uint32_t b)
{
    static std::mutex &lock = *new std::mutex();
    static auto &seen = *new std::set<std::tuple<int, uint32_t, uint32_t>>();
    std::lock_guard<std::mutex> hold(lock);
    return seen.insert({ kind, std::min(a, b), std::max(a, b) }).second;
}

/* ---- the rules ---------------------------------------------------------- */

enum Conflict { NONE, BLOCKS, WARPS, LANES, STREAMS, IN_FLIGHT };

struct Access {
    const Op *op;
    Who who;
    bool write, atomic;
    uint32_t pc;
    const void *at;
};

/*
 * fences: "the last block adds up". A block that has passed a __threadfence and then an atomic
 * has published what it wrote to blocks that make an atomic access later.
 */
struct Fences {
    uint32_t op = 0;
    std::vector<bool> published;
    bool fenced = false, acquired = false;
};
static thread_local Fences fences;

static Conflict compare(Who a, Who b)
{
    if (a == NOBODY || b == NOBODY || thread_of(a) == thread_of(b))
        return a != NOBODY && b != NOBODY && block_of(a) != block_of(b) ? BLOCKS : NONE;
    if (block_of(a) != block_of(b))
        return BLOCKS;
    if (epoch_of(a) != epoch_of(b))
        return NONE;
    if (thread_of(a) / 32 != thread_of(b) / 32)
        return WARPS;
    return warp_epoch_of(a) != warp_epoch_of(b) ? NONE : LANES;
}

static bool published(const Access &x, Who other)
{
    return fences.op == x.op->id && fences.acquired && block_of(other) < fences.published.size()
        && fences.published[block_of(other)];
}

static std::string place(const void *p)
{
    Worker *w = sim_worker;
    if (w)
        for (auto &s : w->shared)
            if ((char *)p >= s.base && (char *)p < s.base + s.bytes)
                return format("shared memory \"%s\", byte %zu", s.name,
                              (size_t)((char *)p - s.base));
    return describe(p);
}

static void tell(const Access &x, Conflict c, bool other_wrote, Who other, uint32_t other_op,
                 uint32_t other_pc)
{
    // Operations of libraries have no line of their own: once for each pair of them.
    if (!first_time(c, x.pc ? x.pc : 0x80000000 + x.op->id,
                    other_pc ? other_pc : 0x80000000 + other_op))
        return;
    static const char *const missing[] = {
        "", "blocks are never ordered", "no __syncthreads between", "no __syncwarp between",
        "no event orders the streams", "a cp.async into it is not waited for"
    };
    const char *verb = x.atomic ? "changes (atomic)" : x.write ? "writes" : "reads";
    std::string s = format("race on %s: %s\n  %s", place(x.at).c_str(), missing[c],
        sim_worker && sim_worker->now ? where_now().c_str() : x.op->name.c_str());
    s += format(" %s", verb) + (x.pc ? ": " + lines_now(x.pc) : "");
    if (c == STREAMS)
        s += issued(x.op->id);
    s += "\n  after " + info(other_op).name;
    if (other != NOBODY)
        s += format(", block %u, thread %u", block_of(other), thread_of(other));
    s += (other_wrote ? " wrote" : " read") + (other_pc ? ": " + lines({ other_pc }) : "");
    if (c == STREAMS)
        s += issued(other_op);
    report("%s", s.c_str());
}

static void check_writer(const Cell *c, const Access &x)
{
    if (!c->writer_op)
        return;
    Conflict k;
    if (c->writer_op != x.op->id) {
        if (ordered(c->writer_op, *x.op))
            return;
        k = STREAMS;
    } else {
        k = compare(c->writer, x.who);
        if (k == NONE || (x.atomic && c->flags & ATOMIC) ||
            (k == BLOCKS && published(x, c->writer)))
            return;
    }
    tell(x, k, true, c->writer, c->writer_op, c->writer_pc);
}

static void check_readers(const Cell *c, const Access &x)
{
    if (c->reader2_op && !ordered(c->reader2_op, *x.op))
        tell(x, STREAMS, false, NOBODY, c->reader2_op, c->reader_pc);
    if (!c->reader_op)
        return;
    Conflict k;
    if (c->reader_op != x.op->id) {
        if (ordered(c->reader_op, *x.op))
            return;
        k = STREAMS;
    } else {
        k = c->flags & MANY_BLOCKS ? BLOCKS : compare(c->reader, x.who);
        bool same_epoch = x.who != NOBODY && c->reader != NOBODY &&
            epoch_of(c->reader) == epoch_of(x.who);
        if (k == NONE && same_epoch && c->flags & MANY_WARPS)
            k = WARPS;
        if (k == NONE && same_epoch && c->flags & MANY_LANES &&
            warp_epoch_of(c->reader) == warp_epoch_of(x.who))
            k = LANES;
        if (k == NONE || (k == BLOCKS && published(x, c->reader)))
            return;
    }
    tell(x, k, false, c->reader, c->reader_op, c->reader_pc);
}

static void note_read(Cell *c, const Access &x)
{
    const uint32_t many = MANY_BLOCKS | MANY_WARPS | MANY_LANES;
    if (c->reader_op != x.op->id) {
        if (c->reader_op && !ordered(c->reader_op, *x.op))
            c->reader2_op = c->reader_op;
        c->flags &= ~many;
    } else if (x.who == NOBODY || c->reader == NOBODY) {
        c->flags &= ~many;
    } else if (block_of(c->reader) != block_of(x.who)) {
        c->flags = (c->flags & ~many) | MANY_BLOCKS;
    } else if (epoch_of(c->reader) != epoch_of(x.who)) {
        c->flags &= ~(MANY_WARPS | MANY_LANES);
    } else if (thread_of(c->reader) / 32 != thread_of(x.who) / 32) {
        c->flags |= MANY_WARPS;
    } else if (warp_epoch_of(c->reader) != warp_epoch_of(x.who)) {
        c->flags &= ~MANY_LANES;
    } else if (thread_of(c->reader) != thread_of(x.who)) {
        c->flags |= MANY_LANES;
    }
    c->reader = x.who;
    c->reader_op = x.op->id;
    c->reader_pc = x.pc;
}

static void touch(Cell *c, const Access &x)
{
    if (c->flags & ASYNC)
        tell(x, IN_FLIGHT, true, c->writer, c->writer_op, c->writer_pc);
    if (c->writer_op == x.op->id && c->writer == x.who && x.write && !c->reader_op) {
        c->writer_pc = x.pc;                    // the same thread again
        c->flags = (c->flags & ASYNC) | (x.atomic ? ATOMIC : 0);
        return;
    }
    check_writer(c, x);
    if (!x.write) {
        note_read(c, x);
        return;
    }
    check_readers(c, x);
    c->writer = x.who;
    c->writer_op = x.op->id;
    c->writer_pc = x.pc;
    c->reader_op = c->reader2_op = 0;
    c->flags = (c->flags & ASYNC) | (x.atomic ? ATOMIC : 0);
}

static void touch_cells(Cell *first, const char *base, Access &x, size_t bytes)
{
    size_t at = (size_t)((const char *)x.at - base);
    if (bytes == 1)
        x.who = NOBODY;
    for (size_t i = at / 2; i <= (at + bytes - 1) / 2; i++) {
        x.at = base + 2 * i;
        touch(first + i, x);
    }
}

/* ---- memory ------------------------------------------------------------- */

static void *shadow_for(size_t bytes)
{
    void *p = mmap(nullptr, (bytes / 2 + 1) * sizeof(Cell), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        fatal("no memory for the shadow of %zu bytes", bytes);
    return p;
}

void race_alloc(Alloc *a) { a->shadow = shadow_for(a->bytes); }
void race_free(Alloc *a) { munmap(a->shadow, (a->bytes / 2 + 1) * sizeof(Cell)); }

static bool in_regions(const void *p)
{
    for (int i = 0; i < sim_nregions; i++)
        if ((const char *)p >= sim_region[i].low && (const char *)p < sim_region[i].high)
            return true;
    return false;
}

static Alloc *cached_alloc(const void *p)
{
    static thread_local Alloc *last[4];
    static thread_local unsigned turn;
    for (Alloc *a : last)
        if (a && (size_t)((const char *)p - a->base) < a->bytes)
            return a;
    Alloc *a = find_alloc(p);
    if (a)
        last[turn++ % 4] = a;
    return a;
}

void race_range(const Op &op, const void *p, size_t bytes, bool write)
{
    Alloc *a = bytes ? find_alloc(p) : nullptr;
    if (!a || a->freed || (size_t)((const char *)p - a->base) + bytes > a->bytes)
        return;                                 // the caller has complained
    Access x = { &op, NOBODY, write, false, 0, p };
    touch_cells((Cell *)a->shadow, a->base, x, bytes);
}

void race_block(Worker *w)
{
    if (!w->shadow)
        w->shadow = shadow_for(ARENA);
    // What the kernel before left there is of another stream, maybe.
    size_t used = w->arena_left > w->arena_used ? w->arena_left : w->arena_used;
    memset(w->shadow, 0, (used / 2 + 1) * sizeof(Cell));
    w->arena_left = 0;
    w->counted.clear();
    if (fences.op != w->kernel->op->id) {
        fences.op = w->kernel->op->id;
        fences.published.assign((size_t)w->block.grid.x * w->block.grid.y * w->block.grid.z,
                                false);
    }
    fences.fenced = fences.acquired = false;
}

extern "C" char __executable_start, _end;

// Memory of neither kind: the thread's own, the launch's, the program's constants.
static void check_other(const Worker *w, const void *at, bool write, uint32_t pc)
{
    const char *p = (const char *)at, *body = (const char *)w->kernel->body.get();
    if ((p >= body && p < body + w->kernel->body->bytes) ||
        (p >= (const char *)w && p < (const char *)(w + 1)) ||
        (p >= (const char *)w->fiber && p < (const char *)(w->fiber + MAX_THREADS)) ||
        at == &cudasim_self || (p >= &__executable_start && p < &_end))
        return;
    for (int i = 0; i < w->nfibers; i++) {
        const Fiber *f = &w->fiber[i];
        if (f->state != NEW && f->state != DONE && p >= f->stack && p < f->stack + STACK) {
            if (first_time(101, pc, 0))
                report("%s %s a local variable of thread %d: %s", where_now().c_str(),
                       write ? "writes" : "reads", f->id, lines_now(pc).c_str());
            return;
        }
    }
    if (first_time(100, pc, 0))
        report("%s %s host memory, %p: %s", where_now().c_str(), write ? "writes" : "reads", at,
               lines_now(pc).c_str());
}

static void out_of_bounds(const void *at, size_t bytes, bool write, const char *what, uint32_t pc)
{
    if (first_time(102, pc, 0))
        report("%s %s %zu bytes out of bounds, %s: %s", where_now().c_str(),
               write ? "writes" : "reads", bytes, what, lines_now(pc).c_str());
    (void)at;
}

static std::atomic<uint64_t> moved[2];         // bytes of device memory that kernels read, wrote
static std::atomic<bool> counting;

extern "C" int cudasim_traffic(uint64_t *read, uint64_t *written)
{
    counting = true;
    *read = moved[0];
    *written = moved[1];
    return 1;
}

static void check_access(const void *at, size_t bytes, bool write, bool atomic, void *pc)
{
    Worker *w = sim_worker;
    if (!w || !w->now) {                        // the host
        if (in_regions(at)) {
            Alloc *a = find_alloc(at, true);
            if (!a || a->where != PINNED)
                if (first_time(103, short_pc(pc), 0))
                    report("host code %s device memory, %s: %s", write ? "writes" : "reads",
                           describe(at).c_str(), lines({ short_pc(pc) }).c_str());
        }
        return;
    }
    const char *p = (const char *)at;
    if ((p >= w->now->stack && p < w->now->stack + STACK) || w->in_warp_op)
        return;
    Access x = { w->kernel->op, who_now(w), write, atomic, short_pc(pc), at };
    if (p >= w->arena && p < w->arena + ARENA) {
        for (auto &s : w->shared)
            if (s.used && p >= s.base && p + bytes <= s.base + s.bytes) {
                touch_cells((Cell *)w->shadow, w->arena, x, bytes);
                return;
            }
        std::string near = "between shared variables";
        for (auto &s : w->shared)
            if (p >= s.base && p < s.base + s.bytes + 64)
                near = format("%zu past the end of shared \"%s\" (%zu bytes)",
                              (size_t)(p + bytes - s.base - s.bytes), s.name, s.bytes);
        out_of_bounds(at, bytes, write, near.c_str(), x.pc);
        return;
    }
    if (!in_regions(at)) {
        check_other(w, at, write, x.pc);
        return;
    }
    Alloc *a = cached_alloc(at);
    if (!a || a->freed || (size_t)(p - a->base) + bytes > a->bytes) {
        out_of_bounds(at, bytes, write, describe(at).c_str(), x.pc);
        return;
    }
    if (a->where == ON_DEVICE && a->device != w->kernel->op->device) {
        if (first_time(104, x.pc, 0))
            report("%s, on device %d, %s memory of another device, %s: %s", where_now().c_str(),
                   w->kernel->op->device, write ? "writes" : "reads", describe(at).c_str(),
                   lines_now(x.pc).c_str());
        return;
    }
    if (counting && !w->settling && w->counted.insert({ p, x.pc }).second)
        moved[write].fetch_add(bytes, std::memory_order_relaxed);
    touch_cells((Cell *)a->shadow, a->base, x, bytes);
}

void race_access(const void *p, size_t bytes, bool write, void *pc)
{
    check_access(p, bytes, write, false, pc);
}

// Marks the destination as in flight, or as arrived and written now.
void race_async(const Copy &c, bool begin)
{
    Worker *w = sim_worker;
    if (c.dst < w->arena || c.dst + c.bytes > w->arena + ARENA) {
        out_of_bounds(c.dst, (size_t)c.bytes, true, "cp.async to other than shared memory",
                      short_pc(c.pc));
        return;
    }
    Cell *cells = (Cell *)w->shadow + (c.dst - w->arena) / 2;
    for (int i = 0; !begin && i < c.bytes / 2; i++)
        cells[i].flags &= ~(uint32_t)ASYNC;
    w->settling = !begin;
    if (c.copied)
        check_access(c.src, (size_t)c.copied, false, false, c.pc);
    w->settling = false;
    check_access(c.dst, (size_t)c.bytes, true, false, c.pc);
    for (int i = 0; begin && i < c.bytes / 2; i++)
        cells[i].flags |= ASYNC;
}

namespace cudasim {

void touch_atomic(const void *p, int bytes)
{
    Worker *w = sim_worker;
    if (!w || !w->now)
        return;
    if (fences.fenced && linear_block(w) < fences.published.size())
        fences.published[linear_block(w)] = true;
    fences.acquired = true;
    check_access(p, (size_t)bytes, true, true, __builtin_return_address(0));
}

void fence() { fences.fenced = true; }

}

/* ---- what -fsanitize=thread calls --------------------------------------- */

#define PC __builtin_return_address(0)
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void *caller)
{
    Worker *w = sim_worker;
    if (w && w->now)
        w->now->callers[w->now->depth++ & 15] = caller;
}
void __tsan_func_exit()
{
    Worker *w = sim_worker;
    if (w && w->now)
        w->now->depth--;
}

#define ACCESS(N) \
    void __tsan_read##N(void *p) { check_access(p, N, false, false, PC); } \
    void __tsan_write##N(void *p) { check_access(p, N, true, false, PC); } \
    void __tsan_unaligned_read##N(void *p) { check_access(p, N, false, false, PC); } \
    void __tsan_unaligned_write##N(void *p) { check_access(p, N, true, false, PC); } \
    void __tsan_volatile_read##N(void *p) { check_access(p, N, false, false, PC); } \
    void __tsan_volatile_write##N(void *p) { check_access(p, N, true, false, PC); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *p, unsigned long n) { if (n) check_access(p, n, false, false, PC); }
void __tsan_write_range(void *p, unsigned long n) { if (n) check_access(p, n, true, false, PC); }
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}

// Atomics of host code.
#define ATOMICS(N, T) \
    T __tsan_atomic##N##_load(const volatile T *p, int) \
    { \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST); \
    } \
    void __tsan_atomic##N##_store(volatile T *p, T v, int) \
    { \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##N##_exchange(volatile T *p, T v, int) \
    { \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##N##_fetch_add(volatile T *p, T v, int) \
    { \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##N##_fetch_sub(volatile T *p, T v, int) \
    { \
        return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##N##_fetch_and(volatile T *p, T v, int) \
    { \
        return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##N##_fetch_or(volatile T *p, T v, int) \
    { \
        return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##N##_fetch_xor(volatile T *p, T v, int) \
    { \
        return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); \
    } \
    int __tsan_atomic##N##_compare_exchange_strong(volatile T *p, T *e, T v, int, int) \
    { \
        return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    } \
    int __tsan_atomic##N##_compare_exchange_weak(volatile T *p, T *e, T v, int, int) \
    { \
        return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    } \
    T __tsan_atomic##N##_compare_exchange_val(volatile T *p, T e, T v, int, int) \
    { \
        __atomic_compare_exchange_n(p, &e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        return e; \
    }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

}
