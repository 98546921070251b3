/*
 * sim.cpp - kernels on the CPU. The blocks of a kernel are shared out among a few OS
 * threads; the threads of a block are fibers, each on a stack of its own from its
 * first wait on. One that ends without waiting leaves its stack to the next.
 *
 * A block that cannot go on is described and ends the program: who waits where.
 * Blocks run to their end one after another, so a kernel whose blocks wait for each
 * other cannot run here.
 */
#include "sim.h"
#include <atomic>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#if !defined(__x86_64__) || defined(SIM_UCONTEXT)
#include <ucontext.h>
#endif

__thread cudasim::Thread *cudasim_self;
__thread Worker *sim_worker;

/* ---- settings and reports ----------------------------------------------- */

static long env(const char *name, long otherwise)
{
    const char *s = getenv(name);
    return s && *s ? atol(s) : otherwise;
}

const Settings &settings()
{
    static const Settings s = [] {
        Settings r;
        const char *o = getenv("CUDASIM_ORDER");
        r.order = !o || !*o || o[0] == 'a' ? ASCENDING : o[0] == 'd' ? DESCENDING : RANDOM;
        r.seed = (uint64_t)env("CUDASIM_SEED", 1);
        r.threads = (int)env("CUDASIM_THREADS", 2);
        r.devices = (int)env("CUDASIM_DEVICES", 8);
        r.memory = (size_t)env("CUDASIM_MEMORY_MB", 1024) << 20;
        r.timeout = (int)env("CUDASIM_TIMEOUT", 120);
        return r;
    }();
    return s;
}

static std::atomic<int> nreports;

static void spoil_exit()
{
    if (nreports) {
        fflush(stdout);
        _exit(EXIT_REPORTED);
    }
}

static void say(const char *fmt, va_list ap)
{
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> hold(one_at_a_time);
    if (nreports++ == 0)
        atexit(spoil_exit);
    if (nreports > 30) {
        fprintf(stderr, "cudasim: too many reports\n");
        _exit(EXIT_REPORTED);
    }
    fputs("cudasim: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

void report(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void fatal(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    fflush(stdout);
    _exit(EXIT_STUCK);
}

std::string format(const char *fmt, ...)
{
    char *s;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        abort();
    va_end(ap);
    std::string r = s;
    free(s);
    return r;
}

const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static std::string where_block(const Worker *w)
{
    uint3 b = w->block.index;
    return format("kernel %s, block (%u,%u,%u)", w->kernel->name.c_str(), b.x, b.y, b.z);
}

std::string where_now()
{
    Worker *w = sim_worker;
    if (!w || !w->now)
        return "host";
    uint3 t = w->now->index;
    return where_block(w) + format(", thread (%u,%u,%u)", t.x, t.y, t.z);
}

#if SIM_ASAN
// Stacks of fibers and what sleeps at exit look like leaks.
extern "C" const char *__asan_default_options() { return "detect_leaks=0"; }
#endif

/* ---- switching ---------------------------------------------------------- */

#if defined(__x86_64__) && !defined(SIM_UCONTEXT)
// Saves what a callee must keep, exchanges stacks, restores.
extern "C" void cudasim_switch(void **save, void *load);
asm(".text\n.p2align 4\n.globl cudasim_switch\n.type cudasim_switch,@function\n"
    "cudasim_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp,(%rdi)\n    mov %rsi,%rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n.size cudasim_switch,.-cudasim_switch\n");

static void *first_frame(char *low, char *high, void (*entry)())
{
    (void)low;
    void **sp = (void **)((uintptr_t)high & ~(uintptr_t)15);
    *--sp = nullptr;                    // entry never returns; keeps the ABI's alignment
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
    return sp;
}
#else
static void cudasim_switch(void **save, void *load)
{
    ucontext_t here, *there = (ucontext_t *)load;
    *save = &here;
    swapcontext(&here, there);
}

static void *first_frame(char *low, char *high, void (*entry)())
{
    ucontext_t *u = (ucontext_t *)((uintptr_t)(high - sizeof *u) & ~(uintptr_t)15);
    getcontext(u);
    u->uc_stack.ss_sp = low;
    u->uc_stack.ss_size = (size_t)((char *)u - low) & ~(size_t)15;
    u->uc_link = nullptr;
    makecontext(u, entry, 0);
    return u;
}
#endif

/* ---- workers ------------------------------------------------------------ */

// Stacks are staggered: all at one offset of a page would share few cache sets.
static char *new_stack()
{
    static std::atomic<unsigned> n;
    char *p = (char *)mmap(nullptr, STACK + 8192, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        fatal("no memory for the stacks of threads");
    mprotect(p, 4096, PROT_NONE);
    return p + 4096 + n++ % 21 * 192;
}

// Never freed: work may still run while a thread's own objects are being destroyed.
static Worker *this_worker()
{
    static __thread Worker *mine;
    if (!mine) {
        mine = new Worker();
        mine->fiber = new Fiber[MAX_THREADS]();
        mine->arena = (char *)aligned_alloc(1024, ARENA);
    }
    return mine;
}

/* ---- threads of a block ------------------------------------------------- */

static void to_scheduler(Worker *w)
{
    Fiber *f = w->now;
    cudasim_switch(&f->sp, w->sp);
}

static void release_barrier(Worker *w)
{
    const Fiber *first = nullptr;
    for (int i = 0; i < w->nfibers; i++) {
        Fiber *f = &w->fiber[i];
        if (f->state != AT_BARRIER)
            continue;
        if (!first)
            first = f;
        else if (f->line != first->line || strcmp(f->file, first->file))
            fatal("divergent barrier in %s: thread %d waits at %s:%d, thread %d at %s:%d",
                  where_block(w).c_str(), first->id, base_name(first->file), first->line, f->id,
                  base_name(f->file), f->line);
        f->state = READY;
    }
    w->at_barrier = 0;
    w->epoch++;
}

static unsigned lanes_alive(const Worker *w, int warp)
{
    unsigned alive = 0;
    for (int i = 0; i < 32 && warp * 32 + i < w->nfibers; i++)
        if (w->fiber[warp * 32 + i].state != DONE)
            alive |= 1u << i;
    return alive;
}

// Performs the operation that `f` waits in if all its lanes are there.
static bool try_warp(Worker *w, Fiber *f)
{
    int warp = f->id / 32;
    unsigned lanes = f->mask & lanes_alive(w, warp);
    Fiber *lane0 = &w->fiber[warp * 32];
    void *args[32] = { nullptr };
    for (int i = 0; i < 32; i++) {
        if (!(lanes >> i & 1))
            continue;
        Fiber *g = lane0 + i;
        if (g->state != IN_WARP || g->mask != f->mask)
            return false;
        if (g->fn != f->fn)
            fatal("lanes of one warp meet in different operations in %s: thread %d in %s at "
                  "%s:%d, thread %d in %s at %s:%d", where_block(w).c_str(), f->id, f->what,
                  base_name(f->file), f->line, g->id, g->what, base_name(g->file), g->line);
        args[i] = g->arg;
    }
    w->in_warp_op = true;
    f->fn(args, lanes);
    w->in_warp_op = false;
    for (int i = 0; i < 32; i++)
        if (lanes >> i & 1)
            lane0[i].state = READY;
    return true;
}

static void thread_ends(Worker *w, Fiber *f)
{
    if (!f->copies.empty())
        finish_copies(f, -1);
    f->state = DONE;
    w->ndone++;
    if (w->at_barrier && w->at_barrier == w->nfibers - w->ndone)
        release_barrier(w);
    for (int i = f->id & ~31; i < (f->id | 31) + 1 && i < w->nfibers; i++)
        if (w->fiber[i].state == IN_WARP)
            try_warp(w, &w->fiber[i]);
}

static void fiber_main()
{
    Worker *w = sim_worker;
    for (;;) {
        Fiber *f = w->now;
        w->kernel->body->run();
        f = w->now;
        thread_ends(w, f);
        if (w->pos + 1 == w->nfibers || w->fiber[w->order[w->pos + 1]].state != NEW) {
            w->free_stacks.push_back(f->stack);
            to_scheduler(w);
        }
        // Here again with the next thread of this round, on the stack of the last.
        Fiber *next = &w->fiber[w->order[++w->pos]];
        next->stack = f->stack;
        next->state = READY;
        w->now = next;
        cudasim_self = next;
    }
}

static void resume(Worker *w, Fiber *f)
{
    if (f->state == NEW) {
        if (w->free_stacks.empty())
            w->free_stacks.push_back(new_stack());
        f->stack = w->free_stacks.back();
        w->free_stacks.pop_back();
        f->sp = first_frame(f->stack, f->stack + STACK, fiber_main);
        f->state = READY;
    }
    w->now = f;
    cudasim_self = f;
    cudasim_switch(&w->sp, f->sp);
    w->now = nullptr;
    cudasim_self = nullptr;
}

[[noreturn]] static void stuck(Worker *w)
{
    std::string s = format("deadlock in %s: %d of %d threads alive, %d at __syncthreads",
                           where_block(w).c_str(), w->nfibers - w->ndone, w->nfibers,
                           w->at_barrier);
    int told = 0;
    for (int warp = 0; warp * 32 < w->nfibers; warp++) {
        unsigned seen = 0;
        for (int i = warp * 32; i < warp * 32 + 32 && i < w->nfibers; i++) {
            Fiber *f = &w->fiber[i];
            if ((f->state != IN_WARP && f->state != AT_BARRIER) || seen >> (i & 31) & 1)
                continue;
            unsigned lanes = 0;
            for (int j = i; j < warp * 32 + 32 && j < w->nfibers; j++)
                if (w->fiber[j].state == f->state && w->fiber[j].line == f->line)
                    lanes |= 1u << (j & 31);
            seen |= lanes;
            if (told++ == 8) {
                s += "\n  ...";
                fatal("%s", s.c_str());
            }
            s += format("\n  warp %d: lanes %08x wait in %s", warp, lanes,
                        f->state == AT_BARRIER ? "__syncthreads" : f->what);
            if (f->state == IN_WARP)
                s += format(" with mask %08x", f->mask);
            s += format(" at %s:%d", base_name(f->file), f->line);
        }
    }
    fatal("%s", s.c_str());
}

static void set_order(Worker *w, bool first)
{
    Order o = settings().order;
    if (!first && o != RANDOM)
        return;
    for (int i = 0; first && i < w->nfibers; i++)
        w->order[i] = o == DESCENDING ? w->nfibers - 1 - i : i;
    if (o == RANDOM)
        for (int i = w->nfibers - 1; i > 0; i--)
            std::swap(w->order[i], w->order[w->random.below((uint64_t)i + 1)]);
}

static void run_block(Worker *w, uint3 index)
{
    const dim3 &d = w->block.dim;
    w->block.index = index;
    w->ndone = w->at_barrier = w->truths = 0;
    for (int i = 0; i < w->nfibers; i++) {
        Fiber *f = &w->fiber[i];
        f->id = i;
        f->index = { (unsigned)i % d.x, (unsigned)i / d.x % d.y, (unsigned)i / d.x / d.y };
        f->block = &w->block;
        f->state = NEW;
        f->warp_epoch = 0;
        f->group = f->depth = 0;
    }
    for (auto &s : w->shared)
        s.used = false;
    if (race_block)
        race_block(w);
    set_order(w, true);
    for (;;) {
        bool moved = false;
        for (w->pos = 0; w->pos < w->nfibers; w->pos++) {
            Fiber *f = &w->fiber[w->order[w->pos]];
            if (f->state == NEW || f->state == READY) {
                moved = true;
                resume(w, f);
            }
        }
        if (w->ndone == w->nfibers)
            return;
        if (!moved)
            stuck(w);
        set_order(w, false);
    }
}

/* ---- blocks of a kernel ------------------------------------------------- */

struct Job {
    const Kernel *kernel;
    uint64_t nblocks, step, first;      // block of turn i: (first + i * step) mod nblocks
    std::atomic<uint64_t> next{0};
};

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

static void new_launch(Worker *w, const Kernel *k)
{
    for (auto &s : w->shared)
        if (SIM_ASAN)
            free(s.base);
    w->shared.clear();
    w->arena_left = w->arena_used;
    w->arena_used = 0;
    w->kernel = k;
    w->block.dim = k->block;
    w->block.grid = k->grid;
    w->nfibers = (int)(k->block.x * k->block.y * k->block.z);
}

static void work(Job *j)
{
    Worker *w = this_worker(), *outer = sim_worker;
    const Kernel *k = j->kernel;
    new_launch(w, k);
    sim_worker = w;
    uint64_t i;
    while ((i = j->next++) < j->nblocks) {
        uint64_t b = (j->first + i * j->step) % j->nblocks;
        w->random.state = settings().seed * 1000003 + b;
        run_block(w, { (unsigned)(b % k->grid.x), (unsigned)(b / k->grid.x % k->grid.y),
                       (unsigned)(b / k->grid.x / k->grid.y) });
    }
    sim_worker = outer;
}

// Helpers sleep until a kernel is big enough; a rank that finds them busy works alone.
struct Pool {
    std::mutex lock;
    std::condition_variable wake, idle;
    Job *job = nullptr;
    int running = 0, nhelpers = 0;
    uint64_t round = 0;
};
static Pool &pool = *new Pool();        // never destroyed: helpers sleep on it at exit

static void helper()
{
    uint64_t seen = 0;
    std::unique_lock<std::mutex> hold(pool.lock);
    for (;;) {
        pool.wake.wait(hold, [&] { return pool.job && pool.round != seen; });
        seen = pool.round;
        Job *j = pool.job;
        pool.running++;
        hold.unlock();
        work(j);
        hold.lock();
        if (--pool.running == 0)
            pool.idle.notify_all();
    }
}

static void crashed(int sig, siginfo_t *info, void *);
static void catch_crashes()
{
    static thread_local char alt[32768];
    stack_t s = {};
    s.ss_sp = alt;
    s.ss_size = sizeof alt;
    sigaltstack(&s, nullptr);
    struct sigaction a = {};
    a.sa_sigaction = crashed;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &a, nullptr);
    sigaction(SIGBUS, &a, nullptr);
}

void run_kernel(const Kernel &k)
{
    static thread_local bool caught;
    if (!SIM_ASAN && !caught) {
        catch_crashes();
        caught = true;
    }
    Job j;
    j.kernel = &k;
    j.nblocks = (uint64_t)k.grid.x * k.grid.y * k.grid.z;
    j.first = 0;
    j.step = 1;
    if (settings().order == DESCENDING) {
        j.first = j.nblocks - 1;
        j.step = j.nblocks - 1;
    } else if (settings().order == RANDOM) {
        Random r = { settings().seed };
        do
            j.step = 1 + r.below(j.nblocks);
        while (gcd(j.step, j.nblocks) != 1);
        j.first = r.below(j.nblocks);
    }
    bool shared_out = false;
    if (!race_block && j.nblocks >= 4 && settings().threads > 1) {
        std::unique_lock<std::mutex> hold(pool.lock);
        if (!pool.job && !pool.running) {
            for (; pool.nhelpers < settings().threads - 1; pool.nhelpers++)
                std::thread(helper).detach();
            pool.job = &j;
            pool.round++;
            pool.wake.notify_all();
            shared_out = true;
        }
    }
    work(&j);
    if (shared_out) {
        std::unique_lock<std::mutex> hold(pool.lock);
        pool.job = nullptr;
        pool.idle.wait(hold, [] { return !pool.running; });
    }
}

// The plain build's only bounds check: pages around allocations that nobody may touch.
static void crashed(int sig, siginfo_t *info, void *)
{
    signal(sig, SIG_DFL);
    Worker *w = sim_worker;
    if (!w || !w->now)
        return;
    char *p = (char *)info->si_addr, *low = w->now->stack;
    if (p < low && p >= low - 3 * 4096)
        fatal("stack overflow in %s", where_now().c_str());
    fatal("wrong address %p (%s) in %s", (void *)p, describe(p).c_str(), where_now().c_str());
}

/* ---- what kernels call -------------------------------------------------- */

static Worker *in_kernel(const char *what)
{
    Worker *w = sim_worker;
    if (!w || !w->now)
        fatal("%s outside a kernel", what);
    return w;
}

namespace cudasim {

int barrier(const char *file, int line, int predicate)
{
    Worker *w = in_kernel("__syncthreads");
    Fiber *f = w->now;
    f->file = file;
    f->line = line;
    f->state = AT_BARRIER;
    if (w->at_barrier == 0)
        w->truths = 0;
    w->truths += predicate != 0;
    f->predicate = 0;
    if (++w->at_barrier == w->nfibers - w->ndone) {
        int truths = w->truths;
        for (int i = 0; i < w->nfibers; i++)
            w->fiber[i].predicate = truths;
        release_barrier(w);
    } else {
        to_scheduler(w);
    }
    return f->predicate;
}

void warp_op(unsigned mask, void *arg, WarpFn fn, const char *what, const char *file, int line)
{
    Worker *w = in_kernel(what);
    Fiber *f = w->now;
    if (!(mask >> (f->id & 31) & 1))
        fatal("%s at %s:%d: mask %08x lacks the caller, %s", what, base_name(file), line, mask,
              where_now().c_str());
    f->mask = mask;
    f->arg = arg;
    f->fn = fn;
    f->what = what;
    f->file = file;
    f->line = line;
    f->state = IN_WARP;
    if (!try_warp(w, f))
        to_scheduler(w);
}

unsigned active_lanes()
{
    Worker *w = in_kernel("__activemask");
    return lanes_alive(w, w->now->id / 32);
}

void trap(const char *file, int line)
{
    fatal("__trap at %s:%d in %s", base_name(file), line, where_now().c_str());
}

void *shared(const char *name, int n, size_t bytes, size_t align)
{
    Worker *w = in_kernel("__shared__");
    SharedVar *v = nullptr;
    for (auto &s : w->shared)
        if (s.n == n && s.name == name)
            v = &s;
    if (!v) {
        char *base;
        size_t sum = bytes;
        for (auto &s : w->shared)
            sum += s.bytes;
        if (sum > (48 << 10) + w->kernel->smem && n >= 0)
            fatal("kernel %s: %zu bytes of shared memory, at most 49152 can be static",
                  w->kernel->name.c_str(), sum - w->kernel->smem);
        if (sum > 227 << 10)
            fatal("kernel %s: %zu bytes of shared memory, a block has %d",
                  w->kernel->name.c_str(), sum, 227 << 10);
        if (SIM_ASAN) {
            if (posix_memalign((void **)&base, std::max(align, (size_t)16), bytes ? bytes : 1))
                abort();
        } else {                        // a gap after each: check knows that it is nobody's
            size_t at = (w->arena_used + 127) & ~(size_t)127;
            at = (at + align - 1) & ~(align - 1);
            base = w->arena + at;
            w->arena_used = at + bytes + 64;
        }
        w->shared.push_back({ name, n, base, bytes, false });
        v = &w->shared.back();
    }
    if (!v->used) {
        v->used = true;
        memset(v->base, 0xff, v->bytes);
    }
    return v->base;
}

void *dynamic_shared()
{
    static const char name[] = "dynamic shared memory";
    return shared(name, -1, in_kernel(name)->kernel->smem, 128);
}

}

long long clock64()
{
    static std::atomic<long long> ticks;
    return ticks += 100;
}
