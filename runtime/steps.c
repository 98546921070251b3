/*
 * steps.c - what each kind of plan step does on one worker of one rank.
 *
 * Every worker of a rank calls rt_step for every step and takes its share of
 * the items; exec.c puts a barrier of the rank's workers behind each step.
 * Statistics are merged in double whatever the precision.
 */
#include "rt_impl.h"

#include <math.h>
#include <stddef.h>

static char *at(const RtRank *r, RtRef ref) { return r->block + ref.offset; }

static bool accumulates(const RtRank *r, const RtStep *s)
{
    return s->accumulate || (s->accumulate_later && r->now.pass > 0);
}

static double get(const RtRank *r, const void *base, int64_t i)
{
    return r->rt->real == sizeof(float) ? (double)((const float *)base)[i]
                                        : ((const double *)base)[i];
}

static void put(const RtRank *r, void *base, int64_t i, double v)
{
    if (r->rt->real == sizeof(float))
        ((float *)base)[i] = (float)v;
    else
        ((double *)base)[i] = v;
}

static void share(const RtWorker *w, int64_t n, int64_t grain, int64_t *lo, int64_t *hi)
{
    rt_split(n, w->rank->rt->nworkers, w->index, grain > 0 ? grain : 1, lo, hi);
}

/* ---- products and kernels ------------------------------------------------ */

/* Workers cut the larger side of C in multiples of 16. */
static void do_gemm(const RtWorker *w, const RtStep *s)
{
    const RtRank *r = w->rank;
    int64_t m0 = 0, m1 = s->m, n0 = 0, n1 = s->n;
    if (s->m >= s->n)
        share(w, s->m, 16, &m0, &m1);
    else
        share(w, s->n, 16, &n0, &n1);
    if (m0 >= m1 || n0 >= n1)
        return;
    int64_t real = (int64_t)r->rt->real;
    const char *a = at(r, s->a) + real * (s->trans_a ? m0 : m0 * s->a.ld);
    const char *b = at(r, s->b) + real * (s->trans_b ? n0 * s->b.ld : n0);
    char *c = at(r, s->c) + real * (m0 * s->c.ld + n0);
    rt_gemm(&r->rt->blas, s->trans_a, s->trans_b, m1 - m0, n1 - n0, s->k, a, s->a.ld, b,
            s->b.ld, c, s->c.ld, accumulates(r, s));
}

/* Is this rank the one among those with the same rows whose loss counts? */
static bool counts_loss(const RtRank *r, int axes)
{
    return (axes & RT_X || r->x == 0) && (axes & (RT_YK | RT_YR) || r->y == 0)
           && (axes & RT_Z || r->z == 0);
}

static void fill_call(RtWorker *w, const RtStep *s, RtCall *c)
{
    RtRank *r = w->rank;
    const RtHeader *h = r->rt->head;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < s->nargs; i++)
        c->arg[i] = at(r, s->arg[i]);
    c->flags = w->flags;
    w->flags[0] = 1;
    if (s->rowmap >= 0) {
        const RtRows *rows = &r->rows[s->rowmap];
        c->row_seq = rows->seq;
        c->row_pos = rows->pos;
        c->row_token = rows->token;
        c->ids = s->ids == RT_IDS_TOKENS ? rows->tokens
                 : s->ids == RT_IDS_TARGETS ? rows->targets
                 : s->ids == RT_IDS_POSITIONS ? rows->pos : NULL;
        c->runs_q = (const int32_t *)rows->runs;
        c->nruns_q = rows->nruns;
        w->flags[0] = counts_loss(r, r->rt->program->rowmaps[s->rowmap].axes);
    }
    if (s->rowmap_k >= 0) {
        c->runs_k = (const int32_t *)r->rows[s->rowmap_k].runs;
        c->nruns_k = r->rows[s->rowmap_k].nruns;
    }
    if (s->colmap >= 0)
        c->colmap = r->cols[s->colmap].global;
    if (s->ids == RT_IDS_TOKENS || s->ids == RT_IDS_POSITIONS) {
        const RtCols *rows = &r->cols[r->rt->program->units[s->unit].rows];
        c->base = rows->n > 0 ? rows->global[0] : 0;
    } else if (s->colmap >= 0 && r->cols[s->colmap].n > 0) {
        c->base = c->colmap[0];
    }
    c->worker = w->index;
    c->nworkers = r->rt->nworkers;
    c->seed = h->train.seed;
    c->step = (uint32_t)r->now.step;
    c->limit = h->vocab;
    c->ignore = h->ignore;
    c->scale = r->now.count > 0 ? 1.0 / (double)r->now.count : 0;
    c->total = r->loss;
}

static void do_kernel(RtWorker *w, const RtStep *s)
{
    RtCall call;
    fill_call(w, s, &call);
    RtKernelFn fn = w->rank->rt->program->kernels[s->kernel];
    int64_t items = s->items_per_run > 0 ? call.nruns_q * s->items_per_run : s->items;
    if (s->rowmap_k >= 0 && call.nworkers > 1) {    // later positions cost more: deal them out
        for (int64_t i = w->index; i < items; i += call.nworkers)
            fn(&call, i, i + 1);
        return;
    }
    int64_t lo, hi;
    share(w, items, s->grain, &lo, &hi);
    fn(&call, lo, hi);                  // also when empty: column sums write zeros
}

/* ---- merging and moving -------------------------------------------------- */

enum { STAT_SUM, STAT_MAX, STAT_VAR, STAT_MIN };

/* The whole statistic from p members' parts; `slot` of `slots` in each row. */
static double merge_one(const RtRank *r, const RtStep *s, const void *src, int64_t p,
                        int64_t row, int slot, int slots, int stat)
{
    double all = 0, mean = 0;
    for (int64_t i = 0; i < p; i++) {
        double v = get(r, src, (i * s->rows + row) * slots + slot);
        if (stat == STAT_MAX)
            all = i == 0 || v > all ? v : all;
        else if (stat == STAT_MIN)
            all = i == 0 || v < all ? v : all;
        else
            all += v;
    }
    if (stat != STAT_VAR)
        return all;
    // n values a member: M2 = sum of M2_i + n * sum (mean_i - mean)^2
    mean = all / (double)p;
    double m2 = 0, between = 0;
    for (int64_t i = 0; i < p; i++) {
        int64_t e = (i * s->rows + row) * slots + slot;
        double d = get(r, src, e) - mean;
        between += d * d;
        m2 += get(r, src, e + 1);
    }
    return (m2 + (double)s->stat_n * between) / ((double)p * (double)s->stat_n);
}

static void do_merge(const RtWorker *w, const RtStep *s, int64_t p)
{
    const RtRank *r = w->rank;
    int slots = 0;
    for (int k = 0; k < s->nstats; k++)
        slots += s->stat[k] == STAT_VAR ? 2 : 1;
    int64_t lo, hi;
    share(w, s->rows, 16, &lo, &hi);
    for (int64_t row = lo; row < hi; row++)
        for (int k = 0, slot = 0; k < s->nstats; slot += s->stat[k] == STAT_VAR ? 2 : 1, k++)
            put(r, at(r, s->arg[k]), row,
                merge_one(r, s, at(r, s->a), p, row, slot, slots, s->stat[k]));
}

/* Of each member's columns (max, sum of exp(l - max), target) -> of all columns. */
static void do_ce_merge(const RtWorker *w, const RtStep *s, int64_t p)
{
    const RtRank *r = w->rank;
    const void *src = at(r, s->a);
    int64_t lo, hi;
    share(w, s->rows, 16, &lo, &hi);
    for (int64_t row = lo; row < hi; row++) {
        double max = get(r, src, row * 3), sum = 0, target = 0;
        for (int64_t i = 1; i < p; i++)
            max = fmax(max, get(r, src, (i * s->rows + row) * 3));
        for (int64_t i = 0; i < p; i++) {
            int64_t e = (i * s->rows + row) * 3;
            sum += get(r, src, e + 1) * exp(get(r, src, e) - max);
            target += get(r, src, e + 2);
        }
        put(r, at(r, s->c), row * 3, max);
        put(r, at(r, s->c), row * 3 + 1, sum);
        put(r, at(r, s->c), row * 3 + 2, target);
    }
}

static void do_colsum(const RtWorker *w, const RtStep *s)
{
    const RtRank *r = w->rank;
    bool add = accumulates(r, s);
    int64_t lo, hi;
    share(w, s->count, RT_LINE, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        double sum = 0;
        for (int64_t k = 0; k < r->rt->nworkers; k++)
            sum += get(r, at(r, s->a), k * s->count + i);
        put(r, at(r, s->c), i, add ? get(r, at(r, s->c), i) + sum : sum);
    }
}

static void do_copy(const RtWorker *w, const RtStep *s)
{
    const RtRank *r = w->rank;
    size_t real = r->rt->real;
    bool add = accumulates(r, s);
    int64_t lo, hi, cols = s->cols > 0 ? s->cols : s->count;
    share(w, s->rows, 1, &lo, &hi);
    for (int64_t row = lo; row < hi; row++) {
        const char *src = at(r, s->a) + (size_t)(row * s->a.ld) * real;
        char *dst = at(r, s->c) + (size_t)(row * s->c.ld) * real;
        if (!add)
            memmove(dst, src, (size_t)cols * real);
        else if (real == sizeof(float))
            for (int64_t i = 0; i < cols; i++)
                ((float *)dst)[i] += ((const float *)src)[i];
        else
            for (int64_t i = 0; i < cols; i++)
                ((double *)dst)[i] += ((const double *)src)[i];
    }
}

static void do_zero(const RtWorker *w, const RtStep *s)
{
    if (accumulates(w->rank, s))
        return;
    int64_t lo, hi;
    share(w, s->count, RT_LINE, &lo, &hi);
    memset(at(w->rank, s->c) + (size_t)lo * w->rank->rt->real, 0,
           (size_t)(hi - lo) * w->rank->rt->real);
}

/* ---- the step's sums and the optimizer ----------------------------------- */

/* Targets that count, of all replicas. */
static int do_count(RtWorker *w, int istep)
{
    if (w->index)
        return RT_OK;
    RtRank *r = w->rank;
    double n = (double)rt_data_count(r);
    RT_TRY(rt_sum_doubles(w, &r->seat[r->rt->step_kind[istep]], &n, 1));
    r->now.count = (int64_t)n;
    return RT_OK;
}

/* Squares of the gradient elements this rank answers for: each one once in all ranks. */
static void do_norm(RtWorker *w)
{
    RtRank *r = w->rank;
    const RtProgram *p = r->rt->program;
    const RtHeader *h = r->rt->head;
    RtCall call = { .arg = { r->block + h->grads_offset }, .worker = w->index,
                    .nworkers = r->rt->nworkers, .total = r->squares, .flags = w->flags };
    int64_t from, to;
    rt_owned(r, &from, &to);
    for (int u = 0; u < h->nunits; u++) {
        if (!r->counts[u])
            continue;
        int64_t a = p->units[u].offset, b = a + p->units[u].shard, lo, hi;
        a = a > from ? a : from;
        b = b < to ? b : to;
        if (a >= b)
            continue;
        share(w, b - a, RT_LINE, &lo, &hi);
        if (lo < hi)
            p->kernels[h->norm_kernel](&call, a + lo, a + hi);
    }
}

static int do_totals(RtWorker *w)
{
    if (w->index)
        return RT_OK;
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    RtNow *now = &r->now;
    double v[3] = { 0, 0, rt_signalled() };
    for (int i = 0; i < rt->nworkers; i++) {
        v[0] += r->loss[i * 8];
        v[1] += r->squares[i * 8];
    }
    RT_TRY(rt_sum_doubles(w, &r->world, v, 3));
    now->loss = now->count > 0 ? v[0] / (double)now->count : 0;
    now->norm = sqrt(v[1]);
    now->stop = v[2] > 0;
    double clip = rt->head->train.clip;
    now->clip = clip > 0 && now->norm > clip ? clip / (now->norm + 1e-6) : 1;
    if (!isfinite(now->loss) || !isfinite(now->norm))
        return rt_fail(rt, RT_USER, "%s: error: the %s of step %lld is not finite: %g", rt->exe,
                       isfinite(now->loss) ? "gradient norm" : "loss", (long long)now->step + 1,
                       isfinite(now->loss) ? now->norm : now->loss);
    return RT_OK;
}

static void do_update(RtWorker *w)
{
    RtRank *r = w->rank;
    const RtHeader *h = r->rt->head;
    if (r->nranges == 0)
        return;
    // m and v hold the replica's slice only: their element 0 is flat element `first`
    int64_t first = h->zero > 0 ? r->d * (h->flat_pad / h->data) : 0;
    ptrdiff_t back = (ptrdiff_t)(first * (int64_t)r->rt->real);
    double t = (double)r->now.step + 1;
    RtCall call = {
        .worker = w->index, .nworkers = r->rt->nworkers, .flags = w->flags,
        .step = (uint32_t)r->now.step, .seed = h->train.seed, .scale = r->now.clip,
        .lr = r->now.lr, .beta1 = h->train.beta1, .beta2 = h->train.beta2, .eps = h->train.eps,
        .momentum = h->train.momentum, .correct1 = 1 / (1 - pow(h->train.beta1, t)),
        .correct2 = 1 / (1 - pow(h->train.beta2, t)),
    };
    call.arg[0] = r->block + h->params_offset;
    call.arg[1] = r->block + h->grads_offset;
    call.arg[2] = r->block + (h->m_offset - back);
    call.arg[3] = h->v_offset >= 0 ? r->block + (h->v_offset - back) : NULL;
    int64_t from = r->range[0].lo, lo, hi;
    share(w, r->range[r->nranges - 1].hi - from, RT_LINE, &lo, &hi);
    lo += from;
    hi += from;
    for (int64_t i = 0; i < r->nranges; i++) {
        const RtRange *g = &r->range[i];
        int64_t a = g->lo > lo ? g->lo : lo, b = g->hi < hi ? g->hi : hi;
        if (a >= b)
            continue;
        call.decay = g->decay ? h->train.weight_decay : 0;
        r->rt->program->kernels[h->update_kernel](&call, a, b);
    }
}

/* The side that is one part: in place it is the member's own part of the other. */
static void *own_part(const RtRank *r, const RtStep *s, const RtSeat *seat, RtRef ref)
{
    int64_t part = s->a.offset == s->c.offset ? seat->me * s->count * (int64_t)r->rt->real : 0;
    return at(r, ref) + part;
}

/* ---- all of them --------------------------------------------------------- */

int rt_step(RtWorker *w, int istep)
{
    RtRank *r = w->rank;
    const RtStep *s = &r->rt->program->steps[istep];
    int kind = r->rt->step_kind[istep];
    const RtSeat *seat = kind >= 0 ? &r->seat[kind] : NULL;
    switch ((RtStepKind)s->kind) {
    case RT_GEMM:
        do_gemm(w, s);
        break;
    case RT_KERNEL:
        do_kernel(w, s);
        break;
    case RT_ALL_GATHER:
        return rt_all_gather(w, seat, own_part(r, s, seat, s->a), at(r, s->c), s->count);
    case RT_REDUCE_SCATTER:
        return rt_reduce_scatter(w, seat, at(r, s->a), own_part(r, s, seat, s->c), s->count,
                                 accumulates(r, s));
    case RT_ALL_REDUCE:
        return rt_all_reduce(w, seat, at(r, s->c), s->count);
    case RT_ALL_TO_ALL:
        return rt_all_to_all(w, seat, at(r, s->a), at(r, s->c), r->boxes[istep]);
    case RT_MERGE:
        do_merge(w, s, seat->group->n);
        break;
    case RT_CE_MERGE:
        do_ce_merge(w, s, seat->group->n);
        break;
    case RT_COLSUM:
        do_colsum(w, s);
        break;
    case RT_COPY:
        do_copy(w, s);
        break;
    case RT_ZERO:
        do_zero(w, s);
        break;
    case RT_COUNT:
        return do_count(w, istep);
    case RT_NORM:
        do_norm(w);
        break;
    case RT_TOTALS:
        return do_totals(w);
    case RT_UPDATE:
        do_update(w);
        break;
    case RT_STEP_KINDS:
        return rt_fail(r->rt, RT_BUG, "%s: error: step %d has no kind", r->rt->exe, istep);
    }
    return RT_OK;
}
