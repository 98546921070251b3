/*
 * comm_threads.c - collectives of ranks that are threads of one process.
 *
 * One idea for all of them: publish, meet, pull, meet.
 *
 *   1. each member writes its pointers into its slot of the group
 *   2. barrier: all slots are valid, all data is there
 *   3. each member reads what it wants from its peers' memory
 *   4. barrier: nobody reads any more, sources may change
 *
 * Sums are taken in member order by exactly one member per element, so two runs
 * give the same bits and all members get the same. Cost per member: two
 * barriers and, for n elements a part, p*n reads. all_reduce reads its part of
 * every member, then copies the other parts (three barriers), or below
 * SMALL bytes sums everything for itself (two).
 *
 * Waiting threads sleep in a futex: ranks may outnumber cores by far. A wait
 * that lasts too long ends the run and names the rank that did not come.
 */
#include "rt_impl.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BLOCK = 1024,           // elements summed at a time, on the stack
    SMALL = 4096,           // bytes up to which all_reduce is done by everyone for itself
    SHARED = 64 << 10,      // bytes from which a rank's workers share a collective
};
static const unsigned OVER = 1u << 31;          // in RtBarrier.gen: the run ends

/* ---- barriers ------------------------------------------------------------ */

int rt_barrier_make(RtBarrier *b, int n, const int *rank)
{
    atomic_init(&b->gen, 0);
    atomic_init(&b->sleepers, 0);
    atomic_init(&b->arrived, 0);
    b->n = n;
    b->rank = rank;
    b->seen = calloc((size_t)n, sizeof *b->seen);
    return b->seen ? RT_OK : RT_WORLD;
}

void rt_barrier_free(RtBarrier *b)
{
    free(b->seen);
    b->seen = NULL;
}

static void wake(RtBarrier *b)
{
    syscall(SYS_futex, &b->gen, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

/* Ends every wait, now and later. */
static void end_barrier(RtBarrier *b)
{
    if (!b->seen)
        return;                         // not made yet
    atomic_fetch_or(&b->gen, OVER);
    wake(b);
}

void rt_wake_all(Rt *rt)
{
    for (int i = 0; i < rt->ngroups; i++)
        end_barrier(&rt->groups[i]->barrier);
    for (int i = 0; rt->rank && i < rt->nranks; i++)
        end_barrier(&rt->rank[i].team);
}

static const char *const kind_word[RT_STEP_KINDS] = {
    "product", "kernel", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "merge",
    "merge", "sum of columns", "copy", "zero", "count", "norm", "totals", "update",
};

/* "all_gather 'h.0.attn: X over y'" */
static void op_words(const Rt *rt, int op, const char *what, char *out, size_t room)
{
    const RtProgram *p = rt->program;
    if (op < 0 || op >= rt->head->nsteps)
        snprintf(out, room, "%s", what);
    else
        snprintf(out, room, "%s '%s'", kind_word[p->steps[op].kind],
                 rt_text(p, p->steps[op].name));
}

static int missing_member(const RtBarrier *b, unsigned round)
{
    for (int i = 0; i < b->n; i++)
        if (atomic_load(&b->seen[i]) != round)
            return i;
    return -1;
}

/*
 * The message of a wait that lasted too long. Follows waiting ranks to the one
 * that does not wait: who is missing there is what the reader wants to know.
 */
static int waited_too_long(RtRank *r, RtBarrier *b, unsigned round, const char *what)
{
    Rt *rt = r->rt;
    char text[1600], words[300];
    size_t at = 0;
    for (int hop = 0; hop < rt->nranks && at < sizeof text; hop++) {
        int op = atomic_load(&r->op), m = missing_member(b, round);
        const RtProgram *p = rt->program;
        op_words(rt, op, what, words, sizeof words);
        int peer = m < 0 ? -1 : b->rank ? b->rank[m] : r->id;
        char whom[48] = "its peers";
        if (peer >= 0)
            snprintf(whom, sizeof whom, b->rank ? "rank %d" : "worker %d", b->rank ? peer : m);
        if (hop == 0)
            at += (size_t)snprintf(text, sizeof text, "%s: error: rank %d waited %g s in %s "
                                   "(%s%sstep %lld) for %s", rt->exe, r->id, rt->timeout_s,
                                   words, op >= 0 ? rt_text(p, p->steps[op].source) : "",
                                   op >= 0 ? ", " : "", (long long)r->now.step + 1, whom);
        else
            at += (size_t)snprintf(text + at, sizeof text - at, "\nnote: rank %d itself waits "
                                   "in %s for %s", r->id, words, whom);
        if (peer < 0 || !b->rank || at >= sizeof text)
            break;
        r = &rt->rank[peer];
        b = atomic_load(&r->waits);
        if (!b) {
            op_words(rt, atomic_load(&r->op), "nothing", words, sizeof words);
            if (atomic_load(&r->op) >= 0)
                snprintf(text + at, sizeof text - at, "\nnote: rank %d is in %s", peer, words);
            break;
        }
        round = (atomic_load(&b->gen) & ~OVER) + 1;
    }
    return rt_fail(rt, RT_WORLD, "%s", text);
}

/* Sleeps until the round ends. Counts the time only while the missing rank stands still. */
static int sleep_for(RtRank *r, RtBarrier *b, unsigned gen, unsigned round, const char *what)
{
    Rt *rt = r->rt;
    double since = 0;
    long long progress = -1;
    int whom = -1;
    while (atomic_load(&b->gen) == gen) {
        double nap_s = rt->timeout_s < 4 ? rt->timeout_s / 8 : 0.5;
        struct timespec nap = { (time_t)nap_s, (long)(1e9 * (nap_s - (double)(time_t)nap_s)) };
        atomic_fetch_add(&b->sleepers, 1);
        long rc = syscall(SYS_futex, &b->gen, FUTEX_WAIT_PRIVATE, gen, &nap, NULL, 0);
        int why = rc ? errno : 0;
        atomic_fetch_sub(&b->sleepers, 1);
        if (why != ETIMEDOUT)
            continue;
        double now = rt_now_s();
        int m = missing_member(b, round);
        long long moves = m < 0 || !b->rank ? 0 : atomic_load(&rt->rank[b->rank[m]].progress);
        if (m != whom || moves != progress) {
            whom = m;
            progress = moves;
            since = now - (since == 0 ? nap_s : 0);
        }
        if (now - since >= rt->timeout_s)
            return waited_too_long(r, b, round, what);
    }
    return RT_OK;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Member `me` meets the others. `what`: for messages, where no step is running. */
int rt_wait(RtRank *r, RtBarrier *b, int me, const char *what)
{
    Rt *rt = r->rt;
    unsigned gen = atomic_load(&b->gen);
    unsigned next = (gen + 1) & ~OVER;
    if (gen & OVER)
        return atomic_load(&rt->status);
    atomic_store(&b->seen[me], gen + 1);
    if (atomic_fetch_add(&b->arrived, 1) == b->n - 1) {
        atomic_store(&b->arrived, 0);
        if (!atomic_compare_exchange_strong(&b->gen, &gen, next))
            return atomic_load(&rt->status);
        if (atomic_load(&b->sleepers) > 0)
            wake(b);
        return RT_OK;
    }
    for (int i = 0; i < rt->spin && atomic_load_explicit(&b->gen, memory_order_acquire) == gen;
         i++)
        pause_cpu();
    if (atomic_load(&b->gen) == gen) {
        if (b->rank)
            atomic_store(&r->waits, b);
        int status = sleep_for(r, b, gen, gen + 1, what);
        if (b->rank)
            atomic_store(&r->waits, NULL);
        RT_TRY(status);
    }
    return atomic_load(&b->gen) & OVER ? atomic_load(&rt->status) : RT_OK;
}

int rt_team(RtWorker *w)
{
    RtRank *r = w->rank;
    return r->rt->nworkers == 1 ? RT_OK : rt_wait(r, &r->team, w->index, "a step");
}

/* ---- publish and meet ---------------------------------------------------- */

/* Steps 1 and 2; checks that all members are in the same call. */
static int enter(RtWorker *w, const RtSeat *s, const void *src, void *dst, int64_t n, bool shared)
{
    RtGroup *g = s->group;
    RtRank *r = w->rank;
    if (w->index == 0) {
        int op = atomic_load(&r->op);
        RtSlot *slot = &g->slot[s->me];
        slot->src = src;
        slot->dst = dst;
        slot->n = n;
        slot->step = op;
        RT_TRY(rt_wait(r, &g->barrier, s->me, "a collective"));
        for (int i = 0; i < g->n; i++)
            if (g->slot[i].step != op || g->slot[i].n != n)
                return rt_fail(r->rt, RT_BUG, "%s: error: ranks %d and %d are in different "
                               "collectives (plan steps %d and %d)", r->rt->exe, r->id,
                               g->rank[i], op, g->slot[i].step);
    }
    return shared ? rt_team(w) : RT_OK;
}

/* Step 4. */
static int leave(RtWorker *w, const RtSeat *s, bool shared)
{
    if (shared)
        RT_TRY(rt_team(w));
    return w->index ? RT_OK : rt_wait(w->rank, &s->group->barrier, s->me, "a collective");
}

/* Do the rank's workers share a collective that moves n elements? If not, worker 0 does it. */
static bool is_shared(const RtWorker *w, int64_t n)
{
    return w->rank->rt->nworkers > 1 && (size_t)n * w->rank->rt->real >= SHARED;
}

static void my_part(const RtWorker *w, int64_t n, bool shared, int64_t *lo, int64_t *hi)
{
    rt_split(n, shared ? w->rank->rt->nworkers : 1, shared ? w->index : 0, RT_LINE, lo, hi);
}

static const char *at_const(const RtWorker *w, const void *base, int64_t i)
{
    return (const char *)base + (size_t)i * w->rank->rt->real;
}

static char *at(const RtWorker *w, void *base, int64_t i)
{
    return (char *)base + (size_t)i * w->rank->rt->real;
}

/* out [n] (+)= sum over members of their element from + i, in member order. */
static void sum_f32(const RtGroup *g, int64_t from, int64_t n, float *out, bool add)
{
    float sum[BLOCK];
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t m = n - b < BLOCK ? n - b : BLOCK;
        const float *in = (const float *)g->slot[0].src + from + b;
        memcpy(sum, in, sizeof *sum * (size_t)m);
        for (int q = 1; q < g->n; q++) {
            in = (const float *)g->slot[q].src + from + b;
            for (int64_t i = 0; i < m; i++)
                sum[i] += in[i];
        }
        for (int64_t i = 0; add && i < m; i++)
            sum[i] = out[b + i] + sum[i];
        memcpy(out + b, sum, sizeof *sum * (size_t)m);
    }
}

static void sum_f64(const RtGroup *g, int64_t from, int64_t n, double *out, bool add)
{
    double sum[BLOCK];
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t m = n - b < BLOCK ? n - b : BLOCK;
        const double *in = (const double *)g->slot[0].src + from + b;
        memcpy(sum, in, sizeof *sum * (size_t)m);
        for (int q = 1; q < g->n; q++) {
            in = (const double *)g->slot[q].src + from + b;
            for (int64_t i = 0; i < m; i++)
                sum[i] += in[i];
        }
        for (int64_t i = 0; add && i < m; i++)
            sum[i] = out[b + i] + sum[i];
        memcpy(out + b, sum, sizeof *sum * (size_t)m);
    }
}

static void sum_members(const RtWorker *w, const RtGroup *g, int64_t from, int64_t n, void *out,
                        bool add)
{
    if (w->rank->rt->real == sizeof(float))
        sum_f32(g, from, n, out, add);
    else
        sum_f64(g, from, n, out, add);
}

/* ---- collectives --------------------------------------------------------- */

static int threads_all_gather(RtWorker *w, const RtSeat *s, const void *src, void *dst,
                              int64_t n)
{
    RtGroup *g = s->group;
    bool shared = is_shared(w, n * g->n);
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, src, dst, n, shared));
    int64_t lo, hi;
    my_part(w, n, shared, &lo, &hi);
    for (int i = 0; i < g->n && lo < hi; i++) {
        int q = (s->me + i) % g->n;     // own part first, then others: spreads the readers
        const void *from = at_const(w, g->slot[q].src, lo);
        void *to = at(w, dst, q * n + lo);
        if (from != to)
            memcpy(to, from, (size_t)(hi - lo) * w->rank->rt->real);
    }
    return leave(w, s, shared);
}

static int threads_reduce_scatter(RtWorker *w, const RtSeat *s, const void *src, void *dst,
                                  int64_t n, bool add)
{
    bool shared = is_shared(w, n * s->group->n);
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, src, dst, n, shared));
    int64_t lo, hi;
    my_part(w, n, shared, &lo, &hi);
    sum_members(w, s->group, s->me * n + lo, hi - lo, at(w, dst, lo), add);
    return leave(w, s, shared);
}

static int threads_all_reduce(RtWorker *w, const RtSeat *s, void *dst, int64_t n)
{
    RtGroup *g = s->group;
    size_t real = w->rank->rt->real;
    bool shared = is_shared(w, n);
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, dst, dst, n, shared));
    if ((size_t)n * real <= SMALL) {
        _Alignas(RT_LINE) char sum[SMALL];
        sum_members(w, g, 0, n, sum, false);
        RT_TRY(leave(w, s, false));
        memcpy(dst, sum, (size_t)n * real);
        return RT_OK;
    }
    // 1. sum my part of every member into my own buffer
    int64_t lo, hi, a, b;
    rt_split(n, g->n, s->me, RT_LINE, &lo, &hi);
    my_part(w, hi - lo, shared, &a, &b);
    sum_members(w, g, lo + a, b - a, at(w, dst, lo + a), false);
    RT_TRY(leave(w, s, shared));
    if (shared)
        RT_TRY(rt_team(w));
    // 2. fetch the other parts from the members that summed them
    for (int i = 1; i < g->n; i++) {
        int q = (s->me + i) % g->n;
        rt_split(n, g->n, q, RT_LINE, &lo, &hi);
        my_part(w, hi - lo, shared, &a, &b);
        if (a < b)
            memcpy(at(w, dst, lo + a), at_const(w, g->slot[q].src, lo + a),
                   (size_t)(b - a) * real);
    }
    return leave(w, s, shared);
}

static int threads_all_to_all(RtWorker *w, const RtSeat *s, const void *src, void *dst,
                              const RtBoxes *b)
{
    size_t real = w->rank->rt->real;
    bool shared = is_shared(w, b->elements);
    bool all = w->rank->rt->nworkers > 1;       // members' sizes differ: enter together
    RT_TRY(enter(w, s, src, dst, 0, all));
    for (int i = 0; i < b->nboxes && (shared || w->index == 0); i++) {
        const RtBox *box = &b->box[i];
        const char *from = s->group->slot[box->peer].src;
        int64_t lo, hi;
        rt_split(box->rows, shared ? w->rank->rt->nworkers : 1, shared ? w->index : 0, 1, &lo,
                 &hi);
        for (int64_t row = lo; row < hi; row++) {
            const char *in = from + (size_t)((box->src_row + row) * b->src_ld) * real;
            char *out = (char *)dst + (size_t)((box->dst_row + row) * b->dst_ld) * real;
            for (const RtColRun *c = b->run + box->run; c < b->run + box->run + box->nruns; c++)
                memcpy(out + (size_t)c->dst * real, in + (size_t)c->src * real,
                       (size_t)c->n * real);
        }
    }
    return leave(w, s, all);
}

static int threads_sum_doubles(RtWorker *w, const RtSeat *s, double *v, int n)
{
    double sum[RT_MAX_SUMS] = { 0 };
    RT_TRY(enter(w, s, v, v, n, false));
    for (int q = 0; q < s->group->n; q++)
        for (int i = 0; i < n; i++)
            sum[i] += ((const double *)s->group->slot[q].src)[i];
    RT_TRY(leave(w, s, false));
    memcpy(v, sum, sizeof *sum * (size_t)n);
    return RT_OK;
}

static int threads_barrier(RtWorker *w, const RtSeat *s)
{
    return rt_wait(w->rank, &s->group->barrier, s->me, "the end of a step");
}

const RtComm rt_comm_threads = {
    "threads", threads_all_gather, threads_reduce_scatter, threads_all_reduce,
    threads_all_to_all, threads_sum_doubles, threads_barrier,
};
