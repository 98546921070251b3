/*
 * comm_mpi.c - collectives of ranks that are processes, over the messages of processes.c.
 *
 * Every collective is one exchange in which each member sends every other one what it
 * wants, in one message. Sums are made here, in member order, by the same functions as
 * in comm_threads.c: a run gives the same bits either way. For p members and n elements
 * a part, each member sends and receives
 *
 *   all_gather, reduce_scatter      (p-1)*n
 *   all_reduce                      2*(p-1)/p of all; below SMALL bytes (p-1) times all
 *   broadcast, reduce               n to all from one, or from all to one
 *   all_to_all                      what it wants and what is wanted of it
 *   sum_doubles, barrier            to member 0 and back
 *
 * Parts to be summed arrive in a scratch of at most SCRATCH bytes, in several rounds where
 * they are larger. Worker 0 talks to MPI; large sums and copies are shared by all workers.
 *
 * A message to another stage is copied into a box and sent off; the sender waits only when
 * its box of BOXES messages ago is still under way. Its label goes ahead: microbatch and slice
 * are checked. Messages of different calls cannot be mixed up: the tag is the plan's step,
 * or its kind where stages with step lists of their own meet.
 */
#include "rt_impl.h"

enum {
    SMALL = 4096,           // bytes up to which all_reduce is done by everyone for itself
    SHARED = 64 << 10,      // bytes from which a rank's workers share a copy or a sum
    SCRATCH = 16 << 20,     // TUNING: bytes of parts that arrive in one round; 2026-11
    BOXES = 2,              // messages a sender may be ahead of its receiver
    TAG_TABLES = 3, TAG_EVENTS, TAG_BRING, TAG_MAIL = 8, TAG_KIND = 16, TAG_STEP = 64,
};

/* Messages of one kind to one rank. */
typedef struct {
    int peer, kind;
    int64_t room;           // bytes of a box
    char *box;
    RtLabel label[BOXES];
    unsigned sent;
} Channel;

/*
 * An all-to-all as seen from the side that sends. By member: what it wants of us, as it told
 * at the start: number of boxes, then for each {first row, rows, number of runs, {column, n} ..};
 * and where its elements stand in the scratch.
 */
typedef struct {
    int64_t **wanted;
    int64_t *give_at, *take_at;         // [p + 1]
} Exchange;

struct RtPost {
    char *scratch;          // what arrives to be summed or unpacked, what is packed
    Channel *channel; int nchannels;
    Exchange *exchange;                 // by step
};

static bool is_shared(const RtWorker *w, int64_t bytes)
{
    return w->rank->rt->nworkers > 1 && bytes >= SHARED;
}

static void my_share(const RtWorker *w, int64_t n, int64_t grain, bool shared, int64_t *lo,
                     int64_t *hi)
{
    rt_split(n, shared ? w->rank->rt->nworkers : 1, shared ? w->index : 0, grain, lo, hi);
}

static char *element(const RtRank *r, RtNumbers x, int64_t i)
{
    return (char *)x.at + i * rt_size(r->rt, x.stored);
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* The tag of the running step's messages in this group. */
static int tag_of(const RtRank *r, const RtGroup *g)
{
    const RtRank *all = r->rt->rank;
    int op = atomic_load(&r->sign->op);
    if (op < 0)
        return TAG_KIND + RT_STEP_KINDS;
    bool stages = all[g->rank[0]].stage != all[g->rank[g->n - 1]].stage;
    return stages ? TAG_KIND + r->program->steps[op].kind : TAG_STEP + op;
}

static int meet(RtRank *r)
{
    return rt_mpi_wait(r->rt, r, -1, "a collective");
}

/* ---- parts --------------------------------------------------------------- */

/* How n elements, or p parts of n each, are cut into the members' parts; or all are `root`'s. */
typedef struct { int64_t n; int p; enum { CUT_EVENLY, CUT_EACH, CUT_ROOT } how; int root; } Cut;

static void part_of(const Cut *c, int q, int64_t *lo, int64_t *hi)
{
    if (c->how == CUT_EVENLY) {
        rt_split(c->n, c->p, q, RT_LINE, lo, hi);
        return;
    }
    *lo = c->how == CUT_EACH ? q * c->n : 0;
    *hi = c->how == CUT_EACH || q == c->root ? *lo + c->n : 0;
}

/* Every member's part to all: mine is `own`, the others arrive in `all`. Worker 0. */
static int gather(RtRank *r, const RtSeat *s, const Cut *c, RtNumbers own, RtNumbers all)
{
    const RtGroup *g = s->group;
    int tag = tag_of(r, g);
    int64_t size = rt_size(r->rt, all.stored), lo, hi, mine;
    part_of(c, s->me, &lo, &hi);
    mine = hi - lo;
    for (int i = 1; i < g->n; i++) {
        int q = (s->me + i) % g->n;
        part_of(c, q, &lo, &hi);
        if (lo < hi)
            RT_TRY(rt_mpi_recv(r->rt, element(r, all, lo), (hi - lo) * size, g->rank[q], tag));
    }
    for (int i = 1; i < g->n && mine > 0; i++) {
        int q = (s->me + g->n - i) % g->n;
        RT_TRY(rt_mpi_send(r->rt, own.at, mine * size, g->rank[q], tag, -1));
    }
    return meet(r);
}

/* Elements of a part that arrive in one round at most, of each of p - 1 members. */
static int64_t round_size(int p, int64_t size)
{
    return max64(SCRATCH / size / (p - 1) / RT_LINE, 1) * RT_LINE;
}

/* Elements at .. at + most of every part to the member that sums it; the slots of the group
 * say where those of my part are. Worker 0. */
static int scatter(RtRank *r, const RtSeat *s, const Cut *c, RtNumbers src, int64_t at,
                   int64_t most)
{
    RtGroup *g = s->group;
    int tag = tag_of(r, g);
    int64_t size = rt_size(r->rt, src.stored), lo, hi, mine;
    char *room = r->post->scratch;
    part_of(c, s->me, &lo, &hi);
    mine = min64(hi - lo - at, most);
    g->slot[s->me].src = element(r, src, lo + at);
    for (int i = 1; i < g->n && mine > 0; i++) {
        int q = (s->me + i) % g->n;
        g->slot[q].src = room;
        RT_TRY(rt_mpi_recv(r->rt, room, mine * size, g->rank[q], tag));
        room += most * size;
    }
    for (int i = 1; i < g->n; i++) {
        int q = (s->me + g->n - i) % g->n;
        part_of(c, q, &lo, &hi);
        int64_t n = min64(hi - lo - at, most);
        if (n > 0)
            RT_TRY(rt_mpi_send(r->rt, element(r, src, lo + at), n * size, g->rank[q], tag, -1));
    }
    return meet(r);
}

/* out (+)= the sum of all members' elements of my part. All workers, or worker 0 alone. */
static int sum_parts(RtWorker *w, const RtSeat *s, const Cut *c, RtNumbers src, RtNumbers out,
                     bool add, bool shared)
{
    RtRank *r = w->rank;
    int64_t most = round_size(s->group->n, rt_size(r->rt, src.stored)), longest = 0, lo, hi;
    for (int q = 0; q < s->group->n; q++) {
        part_of(c, q, &lo, &hi);
        longest = max64(longest, hi - lo);
    }
    most = min64(most, longest);
    part_of(c, s->me, &lo, &hi);
    for (int64_t at = 0; at < longest; at += most) {
        if (w->index == 0)
            RT_TRY(scatter(r, s, c, src, at, most));
        if (shared)
            RT_TRY(rt_team(w));
        int64_t n = max64(0, min64(hi - lo - at, most)), a, b;
        my_share(w, n, RT_LINE, shared, &a, &b);
        RtNumbers to = { element(r, out, at + a), out.stored };
        rt_sum_members(w, s->group, src.stored, a, b - a, to, add);
        if (shared)
            RT_TRY(rt_team(w));
    }
    return RT_OK;
}

/* ---- collectives --------------------------------------------------------- */

static int mpi_all_gather(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n)
{
    RtRank *r = w->rank;
    if (w->index)
        return RT_OK;
    char *to = element(r, dst, s->me * n);
    if (src.at != to)
        memcpy(to, src.at, (size_t)(n * rt_size(r->rt, dst.stored)));
    return gather(r, s, &(Cut){ n, s->group->n, CUT_EACH, 0 }, src, dst);
}

static int mpi_reduce_scatter(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                              int64_t n, bool add)
{
    bool shared = is_shared(w, n * s->group->n * rt_size(w->rank->rt, src.stored));
    if (!shared && w->index)
        return RT_OK;
    return sum_parts(w, s, &(Cut){ n, s->group->n, CUT_EACH, 0 }, src, dst, add, shared);
}

/* Everybody gets everything and sums for itself. */
static int reduce_small(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n)
{
    _Alignas(RT_LINE) char sum[SMALL];
    RtRank *r = w->rank;
    RtGroup *g = s->group;
    int tag = tag_of(r, g);
    int64_t bytes = n * rt_size(r->rt, dst.stored);
    char *room = r->post->scratch;
    g->slot[s->me].src = dst.at;
    for (int q = 0; q < g->n; q++)
        if (q != s->me) {
            g->slot[q].src = room;
            RT_TRY(rt_mpi_recv(r->rt, room, bytes, g->rank[q], tag));
            room += bytes;
        }
    for (int q = 0; q < g->n; q++)
        if (q != s->me)
            RT_TRY(rt_mpi_send(r->rt, dst.at, bytes, g->rank[q], tag, -1));
    RT_TRY(meet(r));
    rt_sum_members(w, g, dst.stored, 0, n, (RtNumbers){ sum, dst.stored }, false);
    memcpy(dst.at, sum, (size_t)bytes);
    return RT_OK;
}

static int mpi_all_reduce(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n)
{
    RtRank *r = w->rank;
    int64_t bytes = n * rt_size(r->rt, dst.stored), lo, hi;
    bool shared = is_shared(w, bytes);
    if (!shared && w->index)
        return RT_OK;
    if (bytes <= SMALL)
        return reduce_small(w, s, dst, n);
    Cut c = { n, s->group->n, CUT_EVENLY, 0 };
    part_of(&c, s->me, &lo, &hi);
    RtNumbers own = { element(r, dst, lo), dst.stored };
    RT_TRY(sum_parts(w, s, &c, dst, own, false, shared));
    return w->index ? RT_OK : gather(r, s, &c, own, dst);
}

static int mpi_broadcast(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                         int64_t n)
{
    RtRank *r = w->rank;
    const RtGroup *g = s->group;
    int tag = tag_of(r, g);
    int64_t bytes = n * rt_size(r->rt, dst.stored);
    if (w->index)
        return RT_OK;
    if (s->me != root)
        RT_TRY(rt_mpi_recv(r->rt, dst.at, bytes, g->rank[root], tag));
    else
        memcpy(dst.at, src.at, (size_t)bytes);
    for (int q = 0; q < g->n && s->me == root; q++)
        if (q != root)
            RT_TRY(rt_mpi_send(r->rt, src.at, bytes, g->rank[q], tag, -1));
    return meet(r);
}

/* A part that is all of it for the root, and nothing for the others. */
static int mpi_reduce(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                      int64_t n, bool add)
{
    bool shared = is_shared(w, n * rt_size(w->rank->rt, src.stored));
    if (!shared && w->index)
        return RT_OK;
    return sum_parts(w, s, &(Cut){ n, s->group->n, CUT_ROOT, root }, src, dst, add, shared);
}

/* Copies what member q wants into the scratch. */
static void pack(const RtWorker *w, const int64_t *wanted, const char *src, int64_t ld,
                 int64_t size, bool shared, char *out)
{
    int64_t nboxes = *wanted++;
    for (int64_t i = 0; i < nboxes; i++) {
        const int64_t first = wanted[0], rows = wanted[1], nruns = wanted[2], *run = wanted + 3;
        int64_t width = 0, lo, hi;
        for (int64_t k = 0; k < nruns; k++)
            width += run[2 * k + 1];
        my_share(w, rows, 1, shared, &lo, &hi);
        for (int64_t row = lo; row < hi; row++) {
            char *to = out + row * width * size;
            for (int64_t k = 0; k < nruns; k++) {
                size_t bytes = (size_t)(run[2 * k + 1] * size);
                memcpy(to, src + ((first + row) * ld + run[2 * k]) * size, bytes);
                to += bytes;
            }
        }
        out += rows * width * size;
        wanted = run + 2 * nruns;
    }
}

/* Copies one box from where it arrived, or from our own matrix. */
static void unpack(const RtWorker *w, const RtBoxes *b, const RtBox *box, const char *arrived,
                   const char *own, char *dst, int64_t size, bool shared)
{
    const RtColRun *runs = b->run + box->run;
    int64_t width = 0, lo, hi;
    for (int k = 0; k < box->nruns; k++)
        width += runs[k].n;
    my_share(w, box->rows, 1, shared, &lo, &hi);
    for (int64_t row = lo; row < hi; row++) {
        const char *from = arrived ? arrived + row * width * size : NULL;
        char *to = dst + (box->dst_row + row) * b->dst_ld * size;
        for (int k = 0; k < box->nruns; k++) {
            const char *in = arrived ? from
                                     : own + ((box->src_row + row) * b->src_ld + runs[k].src)
                                             * size;
            memcpy(to + runs[k].dst * size, in, (size_t)(runs[k].n * size));
            from = arrived ? from + runs[k].n * size : NULL;
        }
    }
}

static int64_t box_elements(const RtBoxes *b, const RtBox *box)
{
    int64_t width = 0;
    for (int k = box->run; k < box->run + box->nruns; k++)
        width += b->run[k].n;
    return width * box->rows;
}

static int swap(RtRank *r, const RtGroup *g, const Exchange *e, int64_t size)
{
    int tag = tag_of(r, g);
    char *room = r->post->scratch;
    for (int q = 0; q < g->n; q++)
        if (e->take_at[q + 1] > e->take_at[q])
            RT_TRY(rt_mpi_recv(r->rt, room + e->take_at[q] * size,
                               (e->take_at[q + 1] - e->take_at[q]) * size, g->rank[q], tag));
    for (int q = 0; q < g->n; q++)
        if (e->give_at[q + 1] > e->give_at[q])
            RT_TRY(rt_mpi_send(r->rt, room + e->give_at[q] * size,
                               (e->give_at[q + 1] - e->give_at[q]) * size, g->rank[q], tag, -1));
    return meet(r);
}

static int mpi_all_to_all(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                          const RtBoxes *b)
{
    RtRank *r = w->rank;
    const Exchange *e = &r->post->exchange[b->step];
    int64_t size = rt_size(r->rt, dst.stored);
    bool shared = is_shared(w, b->elements * size);
    bool all = r->rt->nworkers > 1;             // members' sizes differ: meet anyway
    bool works = shared || w->index == 0;
    for (int q = 0; q < s->group->n && works; q++)
        if (e->wanted[q])
            pack(w, e->wanted[q], src.at, b->src_ld, size, shared,
                 r->post->scratch + e->give_at[q] * size);
    if (all)
        RT_TRY(rt_team(w));
    if (w->index == 0)
        RT_TRY(swap(r, s->group, e, size));
    if (all)
        RT_TRY(rt_team(w));
    int64_t used = 0;
    for (int i = 0; i < b->nboxes && works; i++) {
        const RtBox *box = &b->box[i];
        if (i > 0 && box->peer != b->box[i - 1].peer)
            used = 0;
        const char *arrived = r->post->scratch + (e->take_at[box->peer] + used) * size;
        unpack(w, b, box, box->peer == s->me ? NULL : arrived, src.at, dst.at, size, shared);
        used += box_elements(b, box);
    }
    return all ? rt_team(w) : RT_OK;            // nobody packs again before all have unpacked
}

/* Member 0 sums for all. */
static int mpi_sum_doubles(RtWorker *w, const RtSeat *s, double *v, int n)
{
    RtRank *r = w->rank;
    const RtGroup *g = s->group;
    int tag = tag_of(r, g);
    int64_t bytes = n * (int64_t)sizeof *v;
    if (s->me > 0) {
        double mine[RT_MAX_SUMS];
        memcpy(mine, v, (size_t)bytes);
        RT_TRY(rt_mpi_recv(r->rt, v, bytes, g->rank[0], tag));
        RT_TRY(rt_mpi_send(r->rt, mine, bytes, g->rank[0], tag, -1));
        return meet(r);
    }
    double sum[RT_MAX_SUMS] = { 0 }, (*in)[RT_MAX_SUMS] = (void *)r->post->scratch;
    memcpy(in[0], v, (size_t)bytes);
    for (int q = 1; q < g->n; q++)
        RT_TRY(rt_mpi_recv(r->rt, in[q], bytes, g->rank[q], tag));
    RT_TRY(meet(r));
    for (int q = 0; q < g->n; q++)
        for (int i = 0; i < n; i++)
            sum[i] += in[q][i];
    memcpy(v, sum, (size_t)bytes);
    for (int q = 1; q < g->n; q++)
        RT_TRY(rt_mpi_send(r->rt, v, bytes, g->rank[q], tag, -1));
    return meet(r);
}

static int mpi_barrier(RtWorker *w, const RtSeat *s)
{
    double nothing = 0;
    return mpi_sum_doubles(w, s, &nothing, 1);
}

/* ---- messages between stages --------------------------------------------- */

static Channel *channel_to(RtPost *post, int peer, int kind)
{
    for (int i = 0; i < post->nchannels; i++)
        if (post->channel[i].peer == peer && post->channel[i].kind == kind)
            return &post->channel[i];
    return NULL;
}

static int mpi_send(RtWorker *w, int peer, int kind, const void *src, int64_t bytes)
{
    RtRank *r = w->rank;
    if (w->index)
        return RT_OK;
    Channel *c = channel_to(r->post, peer, kind);
    int i = (int)(c->sent++ % BOXES), box = (int)(c - r->post->channel) * BOXES + i;
    RT_TRY(rt_mpi_wait(r->rt, r, box, "a message"));
    memcpy(c->box + i * c->room, src, (size_t)bytes);
    c->label[i] = (RtLabel){ bytes, atomic_load(&r->sign->op), w->pass->microbatch,
                           w->pass->slice, 0 };
    int tag = TAG_MAIL + kind;
    RT_TRY(rt_mpi_send(r->rt, &c->label[i], sizeof(RtLabel), peer, tag, box));
    return rt_mpi_send(r->rt, c->box + i * c->room, bytes, peer, tag, box);
}

static int mpi_recv(RtWorker *w, int peer, int kind, void *dst, int64_t bytes)
{
    RtRank *r = w->rank;
    RtLabel label = { 0 };
    if (w->index)
        return RT_OK;
    int tag = TAG_MAIL + kind;
    RT_TRY(rt_mpi_recv(r->rt, &label, sizeof label, peer, tag));
    RT_TRY(rt_mpi_wait(r->rt, r, -1, "a message"));
    if (label.bytes != bytes || label.microbatch != w->pass->microbatch
        || label.slice != w->pass->slice)
        return rt_wrong_message(w, peer, &label, bytes);
    RT_TRY(rt_mpi_recv(r->rt, dst, bytes, peer, tag));
    return rt_mpi_wait(r->rt, r, -1, "a message");
}

/* ---- start and end ------------------------------------------------------- */

/* Boxes for the largest message that a step of the rank's passes sends. */
static void make_channels(RtRank *r, RtPost *post)
{
    int a_stage = r->rt->nranks / r->head->nstages;
    post->channel = rt_alloc((size_t)r->head->nstages * RT_MAIL_KINDS, sizeof *post->channel);
    for (int i = 0; i < r->head->npasses; i++) {
        const RtPass *pass = &r->program->passes[i];
        for (int k = pass->first; k < pass->last; k++) {
            const RtStep *s = &r->program->steps[k];
            if (s->kind != RT_SEND)
                continue;
            int to = r->id + (s->peer - r->stage) * a_stage, kind = rt_mail_kind(pass);
            Channel *c = channel_to(post, to, kind);
            if (!c) {
                c = &post->channel[post->nchannels++];
                *c = (Channel){ .peer = to, .kind = kind };
            }
            c->room = max64(c->room, s->rows * s->cols * rt_size(r->rt, s->a.stored));
        }
    }
    for (int i = 0; i < post->nchannels; i++)
        post->channel[i].box = rt_alloc(BOXES, (size_t)post->channel[i].room);
}

/* What this rank wants of member q, for that member to know. */
static int64_t *wishes(const RtBoxes *b, int q, int64_t *n)
{
    int64_t nboxes = 0, room = 1;
    for (int i = 0; i < b->nboxes; i++)
        if (b->box[i].peer == q)
            room += 3 + 2 * b->box[i].nruns;
    int64_t *out = rt_alloc((size_t)room, sizeof *out), *p = out + 1;
    for (int i = 0; i < b->nboxes; i++) {
        const RtBox *box = &b->box[i];
        if (box->peer != q)
            continue;
        nboxes++;
        *p++ = box->src_row;
        *p++ = box->rows;
        *p++ = box->nruns;
        for (int k = box->run; k < box->run + box->nruns; k++) {
            *p++ = b->run[k].src;
            *p++ = b->run[k].n;
        }
    }
    *out = nboxes;
    *n = room;
    return out;
}

/* Elements that the wishes of a member are of. */
static int64_t wished(const int64_t *p)
{
    int64_t n = 0, nboxes = *p++;
    for (int64_t i = 0; i < nboxes; i++) {
        int64_t width = 0;
        for (int64_t k = 0; k < p[2]; k++)
            width += p[4 + 2 * k];
        n += width * p[1];
        p += 3 + 2 * p[2];
    }
    return n;
}

/* Tells every member of the group what is wanted of it, and hears the same. */
static int tell_wishes(RtRank *r, const RtSeat *s, const RtBoxes *b, Exchange *e)
{
    const RtGroup *g = s->group;
    int64_t *length = rt_alloc(2 * (size_t)g->n, sizeof *length), *heard = length + g->n;
    int64_t **mine = rt_alloc((size_t)g->n, sizeof *mine);
    int status = RT_OK;
    e->wanted = rt_alloc((size_t)g->n, sizeof *e->wanted);
    for (int q = 0; q < g->n && !status; q++) {
        if (q == s->me)
            continue;
        mine[q] = wishes(b, q, &length[q]);
        status = rt_mpi_recv(r->rt, &heard[q], sizeof *heard, g->rank[q], TAG_TABLES);
        if (!status)
            status = rt_mpi_send(r->rt, &length[q], sizeof *length, g->rank[q], TAG_TABLES, -1);
    }
    if (!status)
        status = meet(r);
    for (int q = 0; q < g->n && !status; q++) {
        if (q == s->me)
            continue;
        e->wanted[q] = rt_alloc((size_t)heard[q], sizeof **e->wanted);
        status = rt_mpi_recv(r->rt, e->wanted[q], heard[q] * 8, g->rank[q], TAG_TABLES);
        if (!status)
            status = rt_mpi_send(r->rt, mine[q], length[q] * 8, g->rank[q], TAG_TABLES, -1);
    }
    if (!status)
        status = meet(r);
    for (int q = 0; q < g->n; q++)
        free(mine[q]);
    free(mine);
    free(length);
    return status;
}

/* Where each member's elements stand in the scratch: those given first. */
static int64_t lay_out(const RtSeat *s, const RtBoxes *b, Exchange *e)
{
    int p = s->group->n;
    int64_t at = 0;
    e->give_at = rt_alloc((size_t)p + 1, sizeof *e->give_at);
    e->take_at = rt_alloc((size_t)p + 1, sizeof *e->take_at);
    for (int q = 0; q < p; q++) {
        e->give_at[q] = at;
        at += e->wanted[q] ? wished(e->wanted[q]) : 0;
    }
    e->give_at[p] = e->take_at[0] = at;
    for (int q = 0; q < p; q++) {
        for (int i = 0; i < b->nboxes; i++)
            at += b->box[i].peer == q && q != s->me ? box_elements(b, &b->box[i]) : 0;
        e->take_at[q + 1] = at;
    }
    return at;
}

/* Bytes that a sum of this step wants for what arrives in a round. */
static int64_t step_scratch(const RtRank *r, int istep)
{
    const RtStep *s = &r->program->steps[istep];
    int p = r->step_kind[istep] >= 0 ? r->seat[r->step_kind[istep]].group->n : 1;
    bool scatters = s->kind == RT_REDUCE_SCATTER || s->kind == RT_REDUCE;
    if (p == 1 || (!scatters && s->kind != RT_ALL_REDUCE))
        return 0;
    int64_t size = rt_size(r->rt, scatters ? s->a.stored : s->c.stored);
    int64_t part = scatters ? s->count : s->count / p + 2 * RT_LINE;
    return (p - 1) * max64(min64(part, round_size(p, size)) * size, SMALL);
}

/* The rank's tables being made; worker 0. */
static int mpi_start(RtRank *r)
{
    RtPost *post = r->post = rt_alloc(1, sizeof *post);
    const RtHeader *h = r->head;
    make_channels(r, post);
    post->exchange = rt_alloc((size_t)h->nsteps, sizeof *post->exchange);
    int64_t bytes = r->rt->nranks * (int64_t)sizeof(double[RT_MAX_SUMS]);
    for (int i = 0; i < h->nsteps; i++)
        bytes = max64(bytes, step_scratch(r, i));
    for (const RtBoxes *b = r->made; b; b = b->next) {
        const RtSeat *s = &r->seat[r->step_kind[b->step]];
        Exchange *e = &post->exchange[b->step];
        if (s->group->n == 1)
            continue;
        RT_TRY(tell_wishes(r, s, b, e));
        bytes = max64(bytes, lay_out(s, b, e) * (int64_t)r->rt->real);
    }
    post->scratch = rt_alloc((size_t)bytes, 1);
    return RT_OK;
}

static void free_post(RtRank *r)
{
    RtPost *post = r->post;
    for (int i = 0; i < post->nchannels; i++)
        free(post->channel[i].box);
    for (int i = 0; i < r->head->nsteps && post->exchange; i++) {
        Exchange *e = &post->exchange[i];
        int p = e->wanted ? r->seat[r->step_kind[i]].group->n : 0;
        for (int q = 0; q < p; q++)
            free(e->wanted[q]);
        free(e->wanted);
        free(e->give_at);
        free(e->take_at);
    }
    free(post->channel);
    free(post->exchange);
    free(post->scratch);
    free(post);
    r->post = NULL;
}

/* After an error messages may still be under way, and MPI in what they are made of. */
static void mpi_close(Rt *rt)
{
    RtRank *r = &rt->rank[rt->first];
    for (int i = 0; r->post && i < r->post->nchannels * BOXES; i++)
        if (!atomic_load(&rt->status))
            rt_mpi_wait(rt, NULL, i, "a message");
    if (r->post && !atomic_load(&rt->status))
        free_post(r);
}

/* ---- to rank 0 ----------------------------------------------------------- */

int rt_mpi_bring(RtWorker *w, const void *p, size_t bytes)
{
    Rt *rt = w->rank->rt;
    RT_TRY(rt_mpi_send(rt, p, (int64_t)bytes, 0, TAG_BRING, -1));
    return rt_mpi_wait(rt, w->rank, -1, "what rank 0 takes");
}

int rt_mpi_take(RtWorker *w, int from, void *p, size_t bytes)
{
    Rt *rt = w->rank->rt;
    RT_TRY(rt_mpi_recv(rt, p, (int64_t)bytes, from, TAG_BRING));
    return rt_mpi_wait(rt, w->rank, -1, "what a rank brings");
}

/* ---- the trace ----------------------------------------------------------- */

/* Calls of plan steps in a training step. */
static int64_t calls_of(const RtProgram *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->head->npasses; i++)
        n += p->passes[i].last - p->passes[i].first;
    return n;
}

/* Every rank's events of the step to rank 0, on its clock. */
int rt_mpi_bring_events(RtWorker *w)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    double started[1] = { rt->started_s };
    if (r->id > 0) {
        int64_t bytes = r->nevents * (int64_t)sizeof *r->events;
        RT_TRY(rt_mpi_send(rt, started, sizeof started, 0, TAG_EVENTS, -1));
        RT_TRY(rt_mpi_send(rt, r->events, bytes, 0, TAG_EVENTS, -1));
        r->nevents = 0;
        return rt_mpi_wait(rt, r, -1, "the trace");
    }
    for (int i = 1; i < rt->nranks; i++) {
        RtRank *q = &rt->rank[i];
        q->nevents = calls_of(q->program);
        if (!q->events)
            q->events = rt_alloc((size_t)q->nevents, sizeof *q->events);
        RT_TRY(rt_mpi_recv(rt, started, sizeof started, i, TAG_EVENTS));
        RT_TRY(rt_mpi_recv(rt, q->events, q->nevents * (int64_t)sizeof *q->events, i, TAG_EVENTS));
        RT_TRY(rt_mpi_wait(rt, r, -1, "the trace"));
        double shift = rt_mpi_clock(rt, i, started[0]);
        for (int64_t e = 0; e < q->nevents; e++) {
            q->events[e].begin_s += shift;
            q->events[e].end_s += shift;
        }
    }
    return RT_OK;
}

const RtComm rt_comm_mpi = {
    "mpi", NULL, mpi_start, mpi_close, mpi_all_gather, mpi_reduce_scatter, mpi_all_reduce,
    mpi_broadcast, mpi_reduce, mpi_all_to_all, mpi_send, mpi_recv, mpi_sum_doubles, mpi_barrier,
};
