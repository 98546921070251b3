/*
 * exec.c - the life of the rank threads: start, first weights, steps, save, end.
 *
 * Each worker of each rank is a thread that walks its stage's passes, and in each
 * pass the same steps:
 *
 *   for each training step
 *       for each pass                   a unit (microbatch, slice, chunk) forward or
 *           for each of its steps       backward, its transfers, the gradient sum, ..
 *
 * The compiler has put the passes in their order. That a unit's turn has come is
 * checked all the same: a backward that runs too early is an error, not a wrong
 * gradient. Behind every plan step the workers of a rank meet. What a step needs is
 * allocated before the first one. The one block of a rank is mapped here and touched
 * once.
 */
#include "rt_impl.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    STACK = 16 << 20,           // bytes of a thread; kernels keep tiles on it
    SMALL_PAGE = 4096,          // no page is smaller
    HUGE_PAGE = 2 << 20,
    TOUCH = 64 * HUGE_PAGE,     // bytes touched between two signs of life
    HUGE_FROM = 2 * HUGE_PAGE,  // blocks of this size and more ask for huge pages
    SPIN = 2000,                // TUNING: rounds (some 50 us) a waiting thread spins before it
                                // sleeps, where every thread has a core; 2025-11
    GRACE_S = 10,               // how long a rank may need to notice the end of the run
    LOOK_MS = 100,              // between two looks at the ranks
    LEFT_S = 1,                 // so long for a rank whose device may wait for one that is gone
};

/* ---- signals ------------------------------------------------------------- */

static volatile sig_atomic_t signal_came;       // the runtime's only global

static void on_signal(int number)
{
    if (signal_came) {
        signal(number, SIG_DFL);        // it strikes when this handler returns
        raise(number);
    }
    signal_came = number;
}

int rt_signalled(void) { return signal_came; }

/* The first signal ends the run after its step, a second one at once. */
static const int caught[] = { SIGINT, SIGTERM, SIGUSR1 };
enum { CAUGHT = sizeof caught / sizeof *caught };

static void catch_signals(struct sigaction old[CAUGHT])
{
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&act.sa_mask);
    signal_came = 0;
    for (int i = 0; i < CAUGHT; i++)
        sigaction(caught[i], &act, &old[i]);
}

static void release_signals(const struct sigaction old[CAUGHT])
{
    for (int i = 0; i < CAUGHT; i++)
        sigaction(caught[i], &old[i], NULL);
}

/* ---- start of a rank ----------------------------------------------------- */

/* Denormals cost up to thirty times: flush them, in every thread. */
static void flush_denormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);          // FTZ, DAZ
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | 1u << 24));
#endif
}

static int map_block(RtRank *r)
{
    Rt *rt = r->rt;
    char who[48];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int64_t need = rt->options->device ? rt_persistent_bytes(r) : r->head->block_bytes;
    size_t bytes = ((size_t)need + page - 1) / page * page;
    bytes = bytes ? bytes : page;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return rt_fail(rt, RT_WORLD, "%s: error: %s could not get its block of %lld bytes: %s",
                       rt->exe, rt_who(r, who), (long long)bytes, strerror(errno));
    if (bytes >= HUGE_FROM)
        madvise(p, bytes, MADV_HUGEPAGE);       // a wish; its refusal changes nothing
    r->block = p;
    r->block_mapped = bytes;
    return RT_OK;
}

/* Gets [lo, hi) from the system: in one call where it knows that, else page by page. */
static void touch(char *lo, char *hi)
{
#if defined(MADV_POPULATE_WRITE)
    if (madvise(lo, (size_t)(hi - lo), MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (volatile char *p = lo; p < hi; p += SMALL_PAGE)
        *p = 0;
}

/* The worker's share of the block, in stretches, so that those who wait see it move. */
static void touch_block(const RtWorker *w)
{
    RtRank *r = w->rank;
    int64_t lo, hi;
    rt_split((int64_t)r->block_mapped, r->rt->nworkers, w->index, HUGE_PAGE, &lo, &hi);
    for (int64_t at = lo; at < hi; at += TOUCH) {
        touch(r->block + at, r->block + (hi - at < TOUCH ? hi : at + TOUCH));
        atomic_fetch_add(&r->sign->progress, 1);
    }
}

static int start_rank(RtRank *r)
{
    RT_TRY(map_block(r));
    RT_TRY(rt_tables_make(r));
    if (r->rt->comm->start)
        RT_TRY(r->rt->comm->start(r));
    if (r->rt->options->device)
        RT_TRY(rt_device_open(r));
    size_t slots = (size_t)r->rt->nworkers * 8;
    r->loss = rt_alloc(slots, sizeof *r->loss);
    r->squares = rt_alloc(slots, sizeof *r->squares);
    r->scratch = rt_alloc((size_t)rt_gemm_scratch(r->program), sizeof *r->scratch);
    size_t calls = 0;
    for (int i = 0; i < r->head->npasses; i++)
        calls += (size_t)(r->program->passes[i].last - r->program->passes[i].first) + 1;
    if (r->rt->options->trace)
        r->events = rt_alloc(calls, sizeof *r->events);
    return RT_OK;
}

/* ---- steps --------------------------------------------------------------- */

static int one_call(RtWorker *w, int istep)
{
    RtRank *r = w->rank;
    bool timed = r->events && !r->now.evaluate && !r->searching;
    double begin = 0;
    if (w->index == 0) {
        atomic_store(&r->sign->op, istep);
        atomic_fetch_add(&r->sign->progress, 1);
        if (timed)
            begin = rt_now_s();
    }
    RT_TRY(rt_step(w, istep));
    RT_TRY(rt_team(w));
    if (w->index == 0 && timed) {
        int pass = (int)(w->pass - r->program->passes);
        r->events[r->nevents++] = (RtEvent){ begin, rt_now_s(), istep, pass };
    }
    if (r->searching)
        RT_TRY(rt_look(w, istep));
    return atomic_load_explicit(&r->rt->status, memory_order_relaxed);
}

/* RT_POISON=1, for tests: what lives within a step starts as no number. */
static void poison(RtRank *r)
{
    const char *want = getenv("RT_POISON");
    if (!want || strcmp(want, "1") != 0)
        return;
    int64_t from = rt_persistent_bytes(r);
    if (r->rt->options->device || from >= r->head->block_bytes)
        return;
    memset(r->block + from, 0xff, (size_t)(r->head->block_bytes - from));
}

/* A training step, or a batch of validation. */
int rt_begin_step(RtRank *r, int64_t step, bool evaluate)
{
    Rt *rt = r->rt;
    poison(r);
    r->now = (RtNow){ .step = step, .clip = 1, .evaluate = evaluate,
                      .lr = evaluate ? 0 : rt_learning_rate(rt->head, step) };
    memset(r->loss, 0, sizeof *r->loss * (size_t)rt->nworkers * 8);
    memset(r->squares, 0, sizeof *r->squares * (size_t)rt->nworkers * 8);
    size_t pieces = (size_t)r->nchunks * (size_t)rt->head->microbatches;
    memset(r->forwards, 0, sizeof *r->forwards * pieces);
    memset(r->backwards, 0, sizeof *r->backwards * pieces);
    return rt_data_step(r, step);
}

static int out_of_order(const RtRank *r, const RtPass *pass, const char *why)
{
    return rt_fail(r->rt, RT_BUG, "%s: error: stage %d runs the %s of microbatch %d slice %d%s "
                   "out of order: %s", r->rt->exe, r->stage,
                   pass->kind == RT_PASS_FORWARD ? "forward" : "backward", pass->microbatch,
                   pass->slice, r->nchunks > 1 ? " of a chunk" : "", why);
}

/*
 * Has the unit's turn come? Slices go forward in order, since each needs the keys and
 * values of those before it, and back in reverse, since each adds to their gradients.
 */
static int check_order(RtRank *r, const RtPass *pass)
{
    int64_t piece = (int64_t)pass->chunk * r->head->microbatches + pass->microbatch;
    int32_t *forwards = &r->forwards[piece], *backwards = &r->backwards[piece];
    int nslices = r->head->nslices;
    if (pass->kind == RT_PASS_FORWARD) {
        if (*forwards != pass->slice)
            return out_of_order(r, pass, *forwards < pass->slice ? "a slice before it has not run"
                                                                 : "it has run already");
        ++*forwards;
        return RT_OK;
    }
    if (*forwards < nslices)
        return out_of_order(r, pass, "not all slices have gone forward");
    if (*backwards != nslices - 1 - pass->slice)
        return out_of_order(r, pass, *backwards < nslices - 1 - pass->slice
                                     ? "a slice behind it has not run" : "it has run already");
    ++*backwards;
    return RT_OK;
}

/* Worker 0 gets the tables ready. */
static int begin_pass(RtRank *r, const RtPass *pass)
{
    if (pass->kind != RT_PASS_FORWARD && pass->kind != RT_PASS_BACKWARD)
        return RT_OK;
    RT_TRY(check_order(r, pass));
    return rt_data_fill(r, pass);
}

static int one_pass(RtWorker *w, const RtPass *pass)
{
    w->pass = pass;
    if (w->index == 0)
        RT_TRY(begin_pass(w->rank, pass));
    RT_TRY(rt_team(w));
    if (w->rank->rt->options->device)
        return rt_device_pass(w, pass);
    for (int i = pass->first; i < pass->last; i++) {
        RT_TRY(one_call(w, i));
        if (w->rank->program->steps[i].kind == RT_TOTALS && w->rank->now.broken)
            break;                      // the workers have met: all see the same
    }
    return RT_OK;
}

int rt_passes(RtWorker *w, unsigned kinds)
{
    RtRank *r = w->rank;
    for (int i = 0; i < r->head->npasses; i++) {
        if (!(kinds >> r->program->passes[i].kind & 1))
            continue;
        RT_TRY(one_pass(w, &r->program->passes[i]));
        if (r->now.broken)
            break;
    }
    return RT_OK;
}

/* Rank 0 tells; the others wait where somebody looks at their memory. */
static int end_step(RtWorker *w, double begin)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    const RtOptions *o = rt->options;
    bool looked_at = o->after_step || (r->events && !rt_processes(rt));
    atomic_store(&r->sign->op, -1);
    if (o->after_step && o->device)
        RT_TRY(rt_device_pull(r));
    if (looked_at)
        RT_TRY(rt_barrier(w, &r->world));
    if (r->events && o->device)
        RT_TRY(rt_device_events(r));
    if (r->events && rt_processes(rt))
        RT_TRY(rt->mpi ? rt_mpi_bring_events(w) : rt_remote_bring_events(w));
    if (r->id == 0) {
        RT_TRY(rt_log_step(r, rt_now_s() - begin));
        if (rt->trace)
            rt_trace_step(rt, r->now.step);
        if (o->after_step)
            o->after_step(o->ctx, rt, r->now.step, r->now.loss, r->now.norm);
    }
    return looked_at ? rt_barrier(w, &r->world) : RT_OK;
}

static bool is_due(int64_t every, int64_t step)
{
    return every > 0 && (step + 1) % every == 0;
}

static int all_steps(RtWorker *w)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    bool lead = w->index == 0;
    for (int64_t step = rt->first_step; step < rt->steps; step++) {
        double begin = rt_now_s();
        if (lead)
            RT_TRY(rt_begin_step(r, step, false));
        RT_TRY(rt_passes(w, ~0u));
        if (r->now.broken)
            return rt_find_fault(w);
        bool stop = r->now.stop;        // worker 0 clears it behind the next barrier
        if (lead)
            RT_TRY(end_step(w, begin));
        RT_TRY(rt_team(w));
        bool saved = is_due(rt->head->train.checkpoint_every, step) || step + 1 == rt->steps;
        if (saved || stop)
            RT_TRY(rt_checkpoint(w, step + 1));
        if (!stop && is_due(rt->head->train.validate_every, step)) {
            RT_TRY(rt_validate(w, step + 1, &stop));
            if (stop && !saved)
                RT_TRY(rt_checkpoint(w, step + 1));
        }
        if (stop) {
            if (lead && r->id == 0)
                rt_note(rt, "a signal ends the run after step %lld%s%s", (long long)step + 1,
                        rt->keep.on ? "; its checkpoint is in " : "",
                        rt->keep.on ? rt->keep.dir : "");
            break;
        }
    }
    return RT_OK;
}

static int live(RtWorker *w)
{
    RtRank *r = w->rank;
    if (w->index == 0)
        RT_TRY(start_rank(r));
    RT_TRY(rt_team(w));
    touch_block(w);
    RT_TRY(rt_team(w));
    RT_TRY(rt_init_params(w));
    RT_TRY(rt_team(w));
    if (w->index == 0 && r->rt->options->device)
        RT_TRY(rt_device_push(r));
    if (w->index == 0)
        RT_TRY(rt_barrier(w, &r->world));
    RT_TRY(all_steps(w));
    if (w->index == 0 && r->rt->options->device)
        RT_TRY(rt_device_pull(r));
    return r->rt->options->save ? rt_save(w) : RT_OK;
}

static void *worker_main(void *arg)
{
    flush_denormals();
    live(arg);                          // its status is in Rt
    return NULL;
}

/* ---- all ranks ----------------------------------------------------------- */

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int start_threads(Rt *rt)
{
    pthread_attr_t attr;
    if (pthread_attr_init(&attr))
        return rt_fail(rt, RT_WORLD, "%s: error: could not prepare threads", rt->exe);
    int rc = pthread_attr_setstacksize(&attr, STACK);
    for (int i = rt->first; i < rt->first + rt->nlocal && !rc; i++)
        for (int k = 0; k < rt->nworkers && !rc; k++) {
            RtWorker *w = &rt->rank[i].worker[k];
            rc = pthread_create(&w->thread, &attr, worker_main, w);
            w->started = rc == 0;
        }
    pthread_attr_destroy(&attr);
    if (rc)
        return rt_fail(rt, RT_WORLD, "%s: error: could not start %d threads: %s", rt->exe,
                       rt->nlocal * rt->nworkers, strerror(rc));
    return RT_OK;
}

/* A thread that does not notice the end is stuck: then only the process can end. */
static void join_threads(Rt *rt)
{
    char who[48];
    double over = 0;
    for (int i = 0; i < rt->nlocal * rt->nworkers; i++) {
        RtWorker *w = &rt->rank[rt->first + i / rt->nworkers].worker[i % rt->nworkers];
        if (!w->started)
            continue;
        for (;;) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += LOOK_MS * 1000000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            if (pthread_timedjoin_np(w->thread, NULL, &until) == 0)
                break;
            if (rt->mpi)
                rt_mpi_watch(rt);
            if (rt->remote) {
                rt_remote_watch(rt);
                if (rt_remote_stuck(rt, LEFT_S))
                    return;
                continue;
            }
            if (atomic_load(&rt->status) && over == 0)
                over = rt_now_s();
            if (over > 0 && rt_now_s() - over > GRACE_S) {
                fprintf(stderr, "%s\nnote: %s is stuck and cannot be stopped\n", rt->fault,
                        rt_who(w->rank, who));
                if (rt->save.fd >= 0)
                    unlink(rt->save.tmp);
                _exit(atomic_load(&rt->status));
            }
        }
    }
}

static void make_ranks(Rt *rt)
{
    rt->rank = rt_alloc((size_t)rt->nranks, sizeof *rt->rank);
    if (!rt->mpi)
        rt->sign = rt_alloc((size_t)rt->nranks, sizeof *rt->sign);
    for (int i = 0; i < rt->nranks; i++) {
        RtRank *r = &rt->rank[i];
        *r = rt_place(rt, i);
        r->sign = &rt->sign[i];
        atomic_init(&r->waits, NULL);
        if (!rt_is_here(rt, i))
            continue;
        atomic_store(&r->sign->op, -1);
        atomic_store(&r->sign->waits_for, -1);
        r->worker = rt_alloc((size_t)rt->nworkers, sizeof *r->worker);
        for (int k = 0; k < rt->nworkers; k++)
            r->worker[k] = (RtWorker){ .rank = r, .index = k };
        if (rt_barrier_make(&r->team, rt->nworkers, NULL)) {
            fputs("error: out of memory\n", stderr);
            exit(RT_WORLD);
        }
    }
}

static void free_ranks(Rt *rt)
{
    for (int i = 0; i < rt->nranks; i++)
        if (!rt_is_here(rt, i))
            free(rt->rank[i].events);
    for (int i = rt->first; i < rt->first + rt->nlocal; i++) {
        RtRank *r = &rt->rank[i];
        if (!atomic_load(&rt->status))  // a device may wait for one that has failed: it stays
            rt_device_close(r);         // it looks at the tables
        rt_tables_free(r);
        if (r->block)
            munmap(r->block, r->block_mapped);
        rt_barrier_free(&r->team);
        free(r->worker);
        free(r->loss);
        free(r->squares);
        free(r->scratch);
        free(r->events);
    }
}

int rt_exec(Rt *rt)
{
    struct sigaction old[CAUGHT];
    bool all_run = rt->remote ? false : rt->mpi ? rt_mpi_has_cores(rt)
                 : rt->nranks * rt->nworkers <= cores();
    rt->spin = all_run ? SPIN : 0;
    if (rt->mpi && cores() < rt->nworkers && cores() < sysconf(_SC_NPROCESSORS_ONLN))
        rt_note(rt, "warning: the launcher bound a rank of %d workers to %d core%s; mpirun "
                "--bind-to none frees it", rt->nworkers, cores(), cores() == 1 ? "" : "s");
    make_ranks(rt);
    rt_groups_make(rt);
    if (!rt->comm->open || rt->comm->open(rt) == RT_OK) {
        catch_signals(old);
        start_threads(rt);
        join_threads(rt);
        if (rt->mpi)
            rt_mpi_place_fault(rt);
        release_signals(old);
    }
    if (rt->remote && atomic_load(&rt->status))
        return atomic_load(&rt->status);        // a thread may be at work yet
    free_ranks(rt);
    if (rt->comm->close)
        rt->comm->close(rt);
    rt_groups_free(rt);
    free(rt->rank);
    rt->rank = NULL;
    if (!rt->mpi)
        free(rt->sign);
    rt->ngroups = 0;
    return atomic_load(&rt->status);
}
