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
 * SMALL bytes sums everything for itself (two). In a broadcast all read one member's
 * memory; in a reduce one member reads all.
 *
 * Messages between two ranks go through a ring of mailboxes: the sender copies in
 * and goes on, the receiver copies out. A sender waits only while the ring is full.
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
    HOPS = 16,              // ranks that the message of a wait names
    BOXES = 2,              // messages a sender may be ahead of its receiver
};
static const unsigned OVER = 1u << 31;  // in RtBarrier.gen, RtMail.sent, .taken: the run ends

/*
 * Messages of one kind from one rank to another. Message i lies in box i % BOXES; `sent`
 * and `taken` count them (without their top bit).
 */
struct RtMail {
    _Alignas(RT_LINE) atomic_uint sent;
    _Alignas(RT_LINE) atomic_uint taken;
    atomic_int sleepers;
    int from, to, kind;
    int64_t room;                       // bytes of a box
    char *box;
    RtLabel label[BOXES];
};

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

static void wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

static void end_waits(atomic_uint *word)
{
    atomic_fetch_or(word, OVER);
    wake(word);
}

/* Ends every wait, now and later. */
static void end_barrier(RtBarrier *b)
{
    if (b->seen)                        // else not made yet
        end_waits(&b->gen);
}

void rt_wake_all(Rt *rt)
{
    for (int i = 0; i < rt->ngroups; i++)
        end_barrier(&rt->groups[i]->barrier);
    for (int i = 0; rt->rank && i < rt->nranks; i++)
        end_barrier(&rt->rank[i].team);
    for (int i = 0; i < rt->nmail; i++) {
        end_waits(&rt->mail[i].sent);
        end_waits(&rt->mail[i].taken);
    }
}

static const char *const kind_word[RT_STEP_KINDS] = {
    "product", "kernel", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",
    "all_to_all", "merge", "merge", "sum of columns", "copy", "zero", "count", "norm", "totals",
    "update", "send", "recv",
};

/* "all_gather 'h.0.attn: X over y'" */
static void op_words(const RtRank *r, int op, const char *what, char *out, size_t room)
{
    const RtProgram *p = r->program;
    if (op < 0 || op >= r->head->nsteps)
        snprintf(out, room, "%s", what);
    else
        snprintf(out, room, "%s '%s'", kind_word[p->steps[op].kind],
                 rt_text(p, p->steps[op].name));
}

/* ---- who waits for whom -------------------------------------------------- */

static int missing_member(const RtBarrier *b, unsigned round)
{
    for (int i = 0; i < b->n; i++)
        if (atomic_load(&b->seen[i]) != round)
            return i;
    return -1;
}

/* The rank that `r` waits for, or -1. */
static int awaited_by(const RtRank *r)
{
    const RtBarrier *b = atomic_load(&r->waits);
    if (!b)
        return atomic_load(&r->sign->waits_for);
    int m = missing_member(b, (atomic_load(&b->gen) & ~OVER) + 1);
    return m < 0 ? -1 : b->rank[m];
}

/* A number that changes when a rank moves that this one waits for, through others too:
 * in a pipeline a rank may stand still for long because the first stage works. */
uint64_t rt_moves(const RtRank *r)
{
    const Rt *rt = r->rt;
    uint64_t moves = 0;
    int rank = r->id;
    for (int hop = 0; hop <= rt->nranks && rank >= 0; hop++) {
        const RtRank *q = &rt->rank[rank];
        moves = moves * 1000003 + (uint64_t)atomic_load(&q->sign->progress) * 4099
                + (uint64_t)rank;
        rank = awaited_by(q);
    }
    return moves;
}

/*
 * The message of a wait that lasted too long. Follows waiting ranks to the one
 * that does not wait: who is missing there is what the reader wants to know.
 * `worker` >= 0: this thread waits for that worker of its own rank.
 */
void rt_waiting(const RtRank *r, int worker, const char *what, double seconds, char *out,
                size_t room)
{
    const Rt *rt = r->rt;
    char words[300], who[48], whom[48];
    int op = atomic_load(&r->sign->op), peer = awaited_by(r);
    if (worker > 0 || (worker == 0 && peer < 0))
        snprintf(whom, sizeof whom, "worker %d", worker);
    else if (peer < 0)
        snprintf(whom, sizeof whom, "its peers");
    else
        rt_who(&rt->rank[peer], whom);
    op_words(r, op, what, words, sizeof words);
    char time[32] = "";
    if (seconds >= 0.1)
        snprintf(time, sizeof time, " %.3g s", seconds);
    size_t at = (size_t)snprintf(out, room, "%s waited%s in %s (%s%sstep %lld) for %s",
                                 rt_who(r, who), time, words,
                                 op >= 0 ? rt_text(r->program, r->program->steps[op].source) : "",
                                 op >= 0 ? ", " : "", (long long)r->now.step + 1, whom);
    int seen[HOPS];
    for (int hop = 0; hop < HOPS && peer >= 0 && at < room; hop++) {
        seen[hop] = r->id;
        r = &rt->rank[peer];
        for (int i = 0; i <= hop; i++)
            if (seen[i] == peer) {
                snprintf(out + at, room - at, "\nnote: they wait for each other");
                return;
            }
        op = atomic_load(&r->sign->op);
        peer = awaited_by(r);
        op_words(r, op, "nothing", words, sizeof words);
        if (peer >= 0)
            at += (size_t)snprintf(out + at, room - at, "\nnote: %s itself waits in %s for %s",
                                   rt_who(r, who), words, rt_who(&rt->rank[peer], whom));
        else if (op >= 0)
            at += (size_t)snprintf(out + at, room - at, "\nnote: %s is in %s", rt_who(r, who),
                                   words);
    }
}

void rt_doing(const RtRank *r, char *out, size_t room)
{
    char words[300], who[48];
    int op = atomic_load(&r->sign->op);
    op_words(r, op, "nothing", words, sizeof words);
    snprintf(out, room, "%s is in %s (%s%sstep %lld)", rt_who(r, who), words,
             op >= 0 ? rt_text(r->program, r->program->steps[op].source) : "",
             op >= 0 ? ", " : "", (long long)r->now.step + 1);
}

static int waited_too_long(const RtRank *r, int worker, const char *what)
{
    char text[1600];
    rt_waiting(r, worker, what, r->rt->timeout_s, text, sizeof text);
    return rt_fail(r->rt, RT_WORLD, "%s: error: %s", r->rt->exe, text);
}

/*
 * Sleeps until *word is no longer `value`. Counts the time only while those it waits for
 * stand still. `team`: the rank's own barrier of workers, or NULL.
 */
static int sleep_on(RtRank *r, atomic_uint *word, unsigned value, atomic_int *sleepers,
                    const RtBarrier *team, const char *what)
{
    Rt *rt = r->rt;
    double since = 0;
    uint64_t moves = 0;
    while (atomic_load(word) == value) {
        double nap_s = rt->timeout_s < 4 ? rt->timeout_s / 8 : 0.5;
        struct timespec nap = { (time_t)nap_s, (long)(1e9 * (nap_s - (double)(time_t)nap_s)) };
        atomic_fetch_add(sleepers, 1);
        long rc = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &nap, NULL, 0);
        int why = rc ? errno : 0;
        atomic_fetch_sub(sleepers, 1);
        if (why != ETIMEDOUT)
            continue;
        double now = rt_now_s();
        uint64_t m = rt_moves(r);
        if (since == 0 || m != moves) {
            since = now - (since == 0 ? nap_s : 0);
            moves = m;
        }
        if (now - since >= rt->timeout_s)
            return waited_too_long(r, team ? missing_member(team, value + 1) : -1, what);
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
            wake(&b->gen);
        return RT_OK;
    }
    for (int i = 0; i < rt->spin && atomic_load_explicit(&b->gen, memory_order_acquire) == gen;
         i++)
        pause_cpu();
    if (atomic_load(&b->gen) == gen) {
        if (b->rank)
            atomic_store(&r->waits, b);
        int status = sleep_on(r, &b->gen, gen, &b->sleepers, b->rank ? NULL : b, what);
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

/* Are two members in the same call? Stages have step lists of their own. */
static bool same_call(const RtRank *a, int a_op, const RtRank *b, int b_op)
{
    if (a->stage == b->stage || a_op < 0 || b_op < 0)
        return a_op == b_op;
    return a->program->steps[a_op].kind == b->program->steps[b_op].kind;
}

/* Steps 1 and 2; checks that all members are in the same call. */
static int enter(RtWorker *w, const RtSeat *s, const void *src, void *dst, int64_t n, bool shared)
{
    RtGroup *g = s->group;
    RtRank *r = w->rank;
    if (w->index == 0) {
        int op = atomic_load(&r->sign->op);
        RtSlot *slot = &g->slot[s->me];
        slot->src = src;
        slot->dst = dst;
        slot->n = n;
        slot->step = op;
        RT_TRY(rt_wait(r, &g->barrier, s->me, "a collective"));
        for (int i = 0; i < g->n; i++)
            if (g->slot[i].n != n
                || !same_call(r, op, &r->rt->rank[g->rank[i]], g->slot[i].step))
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

/* Do the rank's workers share a collective that moves so many bytes? If not, worker 0
 * does it. */
static bool is_shared(const RtWorker *w, int64_t bytes)
{
    return w->rank->rt->nworkers > 1 && bytes >= SHARED;
}

static void my_part(const RtWorker *w, int64_t n, bool shared, int64_t *lo, int64_t *hi)
{
    rt_split(n, shared ? w->rank->rt->nworkers : 1, shared ? w->index : 0, RT_LINE, lo, hi);
}

/* Element i of what is at `base`. */
static const char *at_const(const void *base, int64_t size, int64_t i)
{
    return (const char *)base + i * size;
}

static RtNumbers number_at(const RtWorker *w, RtNumbers x, int64_t i)
{
    return (RtNumbers){ (char *)x.at + i * rt_size(w->rank->rt, x.stored), x.stored };
}

/* m floats of what is at `base`; widened into `room` where they are stored in 16 bits. */
static const float *floats(const void *base, int stored, int64_t at, int64_t m, float *room)
{
    if (stored == RT_REAL)
        return (const float *)base + at;
    rt_widen((const uint16_t *)base + at, m, room);
    return room;
}

/* out [n] (+)= sum over members of their element first + i, in member order. */
static void sum_f32(const RtGroup *g, int stored, int64_t first, int64_t n, RtNumbers out,
                    bool add)
{
    float sum[BLOCK], room[BLOCK];
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t m = n - b < BLOCK ? n - b : BLOCK;
        const float *in = floats(g->slot[0].src, stored, first + b, m, room);
        memcpy(sum, in, sizeof *sum * (size_t)m);
        for (int q = 1; q < g->n; q++) {
            in = floats(g->slot[q].src, stored, first + b, m, room);
            for (int64_t i = 0; i < m; i++)
                sum[i] += in[i];
        }
        if (add) {
            in = floats(out.at, out.stored, b, m, room);
            for (int64_t i = 0; i < m; i++)
                sum[i] = in[i] + sum[i];
        }
        if (out.stored == RT_REAL)
            memcpy((float *)out.at + b, sum, sizeof *sum * (size_t)m);
        else
            rt_narrow(sum, m, (uint16_t *)out.at + b);
    }
}

static void sum_f64(const RtGroup *g, int64_t first, int64_t n, double *out, bool add)
{
    double sum[BLOCK];
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t m = n - b < BLOCK ? n - b : BLOCK;
        const double *in = (const double *)g->slot[0].src + first + b;
        memcpy(sum, in, sizeof *sum * (size_t)m);
        for (int q = 1; q < g->n; q++) {
            in = (const double *)g->slot[q].src + first + b;
            for (int64_t i = 0; i < m; i++)
                sum[i] += in[i];
        }
        for (int64_t i = 0; add && i < m; i++)
            sum[i] = out[b + i] + sum[i];
        memcpy(out + b, sum, sizeof *sum * (size_t)m);
    }
}

/* `stored`: how the members' numbers are. */
void rt_sum_members(const RtWorker *w, const RtGroup *g, int stored, int64_t first, int64_t n,
                    RtNumbers out, bool add)
{
    if (w->rank->rt->real == sizeof(float))
        sum_f32(g, stored, first, n, out, add);
    else
        sum_f64(g, first, n, out.at, add);
}

/* ---- collectives --------------------------------------------------------- */

static int threads_all_gather(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                              int64_t n)
{
    RtGroup *g = s->group;
    int64_t size = rt_size(w->rank->rt, dst.stored);
    bool shared = is_shared(w, n * g->n * size);
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, src.at, dst.at, n, shared));
    int64_t lo, hi;
    my_part(w, n, shared, &lo, &hi);
    for (int i = 0; i < g->n && lo < hi; i++) {
        int q = (s->me + i) % g->n;     // own part first, then others: spreads the readers
        const void *in = at_const(g->slot[q].src, size, lo);
        void *out = number_at(w, dst, q * n + lo).at;
        if (in != out)
            memcpy(out, in, (size_t)((hi - lo) * size));
    }
    return leave(w, s, shared);
}

static int threads_reduce_scatter(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                                  int64_t n, bool add)
{
    bool shared = is_shared(w, n * s->group->n * rt_size(w->rank->rt, src.stored));
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, src.at, dst.at, n, shared));
    int64_t lo, hi;
    my_part(w, n, shared, &lo, &hi);
    rt_sum_members(w, s->group, src.stored, s->me * n + lo, hi - lo, number_at(w, dst, lo), add);
    return leave(w, s, shared);
}

static int threads_all_reduce(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n)
{
    RtGroup *g = s->group;
    int64_t size = rt_size(w->rank->rt, dst.stored);
    bool shared = is_shared(w, n * size);
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, dst.at, dst.at, n, shared));
    if (n * size <= SMALL) {
        _Alignas(RT_LINE) char sum[SMALL];
        rt_sum_members(w, g, dst.stored, 0, n, (RtNumbers){ sum, dst.stored }, false);
        RT_TRY(leave(w, s, false));
        memcpy(dst.at, sum, (size_t)(n * size));
        return RT_OK;
    }
    // 1. sum my part of every member into my own buffer
    int64_t lo, hi, a, b;
    rt_split(n, g->n, s->me, RT_LINE, &lo, &hi);
    my_part(w, hi - lo, shared, &a, &b);
    rt_sum_members(w, g, dst.stored, lo + a, b - a, number_at(w, dst, lo + a), false);
    RT_TRY(leave(w, s, shared));
    if (shared)
        RT_TRY(rt_team(w));
    // 2. fetch the other parts from the members that summed them
    for (int i = 1; i < g->n; i++) {
        int q = (s->me + i) % g->n;
        rt_split(n, g->n, q, RT_LINE, &lo, &hi);
        my_part(w, hi - lo, shared, &a, &b);
        if (a < b)
            memcpy(number_at(w, dst, lo + a).at, at_const(g->slot[q].src, size, lo + a),
                   (size_t)((b - a) * size));
    }
    return leave(w, s, shared);
}

static int threads_broadcast(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                             int64_t n)
{
    int64_t size = rt_size(w->rank->rt, dst.stored), lo, hi;
    bool shared = is_shared(w, n * size);
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, src.at, dst.at, n, shared));
    my_part(w, n, shared, &lo, &hi);
    if (lo < hi)
        memcpy(number_at(w, dst, lo).at, at_const(s->group->slot[root].src, size, lo),
               (size_t)((hi - lo) * size));
    return leave(w, s, shared);
}

static int threads_reduce(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                          int64_t n, bool add)
{
    bool shared = is_shared(w, n * rt_size(w->rank->rt, src.stored));
    if (!shared && w->index)
        return RT_OK;
    RT_TRY(enter(w, s, src.at, dst.at, n, shared));
    int64_t lo, hi;
    my_part(w, n, shared, &lo, &hi);
    if (s->me == root)
        rt_sum_members(w, s->group, src.stored, lo, hi - lo, number_at(w, dst, lo), add);
    return leave(w, s, shared);
}

static int threads_all_to_all(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                              const RtBoxes *b)
{
    size_t size = (size_t)rt_size(w->rank->rt, dst.stored);
    bool shared = is_shared(w, b->elements * (int64_t)size);
    bool all = w->rank->rt->nworkers > 1;       // members' sizes differ: enter together
    RT_TRY(enter(w, s, src.at, dst.at, 0, all));
    for (int i = 0; i < b->nboxes && (shared || w->index == 0); i++) {
        const RtBox *box = &b->box[i];
        const char *peer = s->group->slot[box->peer].src;
        int64_t lo, hi;
        rt_split(box->rows, shared ? w->rank->rt->nworkers : 1, shared ? w->index : 0, 1, &lo,
                 &hi);
        for (int64_t row = lo; row < hi; row++) {
            const char *in = peer + (size_t)((box->src_row + row) * b->src_ld) * size;
            char *out = (char *)dst.at + (size_t)((box->dst_row + row) * b->dst_ld) * size;
            for (const RtColRun *c = b->run + box->run; c < b->run + box->run + box->nruns; c++)
                memcpy(out + (size_t)c->dst * size, in + (size_t)c->src * size,
                       (size_t)c->n * size);
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

/* ---- messages ------------------------------------------------------------ */

static RtMail *mail_of(const Rt *rt, int from, int to, int kind)
{
    int64_t stage = rt->rank[to].stage;     // the other coordinates are equal
    return &rt->mail[(from * rt->head->nstages + stage) * RT_MAIL_KINDS + kind];
}

/* Boxes for the largest message that a step of the rank's passes sends. */
static void make_mail(RtRank *r)
{
    Rt *rt = r->rt;
    int a_stage = rt->nranks / rt->head->nstages;
    for (int i = 0; i < r->head->npasses; i++) {
        const RtPass *pass = &r->program->passes[i];
        for (int k = pass->first; k < pass->last; k++) {
            const RtStep *s = &r->program->steps[k];
            if (s->kind != RT_SEND)
                continue;
            int to = r->id + (s->peer - r->stage) * a_stage, kind = rt_mail_kind(pass);
            RtMail *m = mail_of(rt, r->id, to, kind);
            int64_t bytes = s->rows * s->cols * rt_size(rt, s->a.stored);
            m->from = r->id;
            m->to = to;
            m->kind = kind;
            m->room = bytes > m->room ? bytes : m->room;
        }
    }
}

static int threads_open(Rt *rt)
{
    if (rt->head->nstages == 1)
        return RT_OK;
    int n = rt->nranks * rt->head->nstages * RT_MAIL_KINDS;
    rt->mail = rt_alloc((size_t)n, sizeof *rt->mail);
    rt->nmail = n;
    for (int i = 0; i < rt->nranks; i++)
        make_mail(&rt->rank[i]);
    for (int i = 0; i < n; i++)
        if (rt->mail[i].room > 0)
            rt->mail[i].box = rt_alloc(BOXES, (size_t)rt->mail[i].room);
    return RT_OK;
}

static void threads_close(Rt *rt)
{
    for (int i = 0; i < rt->nmail; i++)
        free(rt->mail[i].box);
    free(rt->mail);
    rt->mail = NULL;
    rt->nmail = 0;
}

/* Waits until *word, which rank `peer` changes, is no longer `value`. */
static int await_mail(RtRank *r, RtMail *m, atomic_uint *word, unsigned value, int peer)
{
    for (int i = 0; i < r->rt->spin && atomic_load(word) == value; i++)
        pause_cpu();
    if (atomic_load(word) != value)
        return RT_OK;
    atomic_store(&r->sign->waits_for, peer);
    int status = sleep_on(r, word, value, &m->sleepers, NULL, "a message");
    atomic_store(&r->sign->waits_for, -1);
    return status;
}

/* The next number; the peer may wait for it. */
static int count_up(Rt *rt, RtMail *m, atomic_uint *word)
{
    unsigned v = atomic_load(word);
    if (v & OVER || !atomic_compare_exchange_strong(word, &v, (v + 1) & ~OVER))
        return atomic_load(&rt->status);
    if (atomic_load(&m->sleepers) > 0)
        wake(word);
    return RT_OK;
}

/* The worker's share of a copy of `bytes` bytes. */
static void copy_share(const RtWorker *w, void *dst, const void *src, int64_t bytes, bool shared)
{
    int64_t lo, hi;
    my_part(w, bytes, shared, &lo, &hi);
    if (lo < hi)
        memcpy((char *)dst + lo, (const char *)src + lo, (size_t)(hi - lo));
}

static int threads_send(RtWorker *w, int peer, int kind, const void *src, int64_t bytes)
{
    RtRank *r = w->rank;
    RtMail *m = mail_of(r->rt, r->id, peer, kind);
    bool shared = is_shared(w, bytes);
    unsigned sent = atomic_load(&m->sent), taken;
    if (!shared && w->index)
        return RT_OK;
    while (w->index == 0 && !((taken = atomic_load(&m->taken)) & OVER)
           && ((sent - taken) & ~OVER) >= BOXES)
        RT_TRY(await_mail(r, m, &m->taken, taken, peer));
    if (shared)
        RT_TRY(rt_team(w));
    if (atomic_load(&m->taken) & OVER)
        return atomic_load(&r->rt->status);
    unsigned i = (sent & ~OVER) % BOXES;
    copy_share(w, m->box + i * m->room, src, bytes, shared);
    if (shared)
        RT_TRY(rt_team(w));
    if (w->index)
        return RT_OK;
    m->label[i].bytes = bytes;
    m->label[i].step = atomic_load(&r->sign->op);
    m->label[i].microbatch = w->pass->microbatch;
    m->label[i].slice = w->pass->slice;
    return count_up(r->rt, m, &m->sent);
}

/* The message that came is not the one that is expected. */
int rt_wrong_message(const RtWorker *w, int from, const RtLabel *sent, int64_t bytes)
{
    const RtRank *r = w->rank, *peer = &r->rt->rank[from];
    char who[48], whom[48], did[300], want[300];
    op_words(peer, sent->step, "a message", did, sizeof did);
    op_words(r, atomic_load(&r->sign->op), "a message", want, sizeof want);
    return rt_fail(r->rt, RT_BUG, "%s: error: %s expects microbatch %d slice %d, %lld bytes, in "
                   "%s; %s sent microbatch %d slice %d, %lld bytes, in %s", r->rt->exe,
                   rt_who(r, who), w->pass->microbatch, w->pass->slice, (long long)bytes, want,
                   rt_who(peer, whom), sent->microbatch, sent->slice, (long long)sent->bytes,
                   did);
}

static int threads_recv(RtWorker *w, int peer, int kind, void *dst, int64_t bytes)
{
    RtRank *r = w->rank;
    RtMail *m = mail_of(r->rt, peer, r->id, kind);
    bool shared = is_shared(w, bytes);
    unsigned taken = atomic_load(&m->taken), sent;
    if (!shared && w->index)
        return RT_OK;
    while (w->index == 0 && !((sent = atomic_load(&m->sent)) & OVER)
           && sent == (taken & ~OVER))
        RT_TRY(await_mail(r, m, &m->sent, sent, peer));
    if (shared)
        RT_TRY(rt_team(w));
    if (atomic_load(&m->sent) & OVER)
        return atomic_load(&r->rt->status);
    unsigned i = (taken & ~OVER) % BOXES;
    if (m->label[i].bytes != bytes || m->label[i].microbatch != w->pass->microbatch
        || m->label[i].slice != w->pass->slice)
        return rt_wrong_message(w, peer, &m->label[i], bytes);
    copy_share(w, dst, m->box + i * m->room, bytes, shared);
    if (shared)
        RT_TRY(rt_team(w));
    return w->index ? RT_OK : count_up(r->rt, m, &m->taken);
}

const RtComm rt_comm_threads = {
    "threads", threads_open, NULL, threads_close, threads_all_gather, threads_reduce_scatter,
    threads_all_reduce, threads_broadcast, threads_reduce, threads_all_to_all, threads_send,
    threads_recv, threads_sum_doubles, threads_barrier,
};
