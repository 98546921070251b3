/*
 * steps.c - what each kind of plan step does on one worker of one rank.
 *
 * Every worker of a rank calls rt_step for every step and takes its share of
 * the items; exec.c puts a barrier of the rank's workers behind each step.
 * Statistics are merged in double whatever the precision. Matrices stored in 16 bits
 * are widened into the rank's scratch before a product.
 */
#include "rt_impl.h"

#include <math.h>
#include <stddef.h>

/* Where a reference is in the unit of the running pass. */
static char *at(const RtWorker *w, RtRef ref)
{
    return w->rank->block + w->pass->region[ref.region] + ref.offset;
}

static bool accumulates(const RtWorker *w, const RtStep *s)
{
    return s->accumulate || (s->accumulate_later && w->pass->again);
}

static RtNumbers numbers(const RtWorker *w, RtRef ref)
{
    return (RtNumbers){ at(w, ref), ref.stored };
}

/* Element i of a reference. */
static double get(const RtWorker *w, RtRef ref, int64_t i)
{
    return rt_get(w->rank->rt, ref.stored, at(w, ref), i);
}

static void put(const RtWorker *w, RtRef ref, int64_t i, double v)
{
    rt_put(w->rank->rt, ref.stored, at(w, ref), i, v);
}

static void share(const RtWorker *w, int64_t n, int64_t grain, int64_t *lo, int64_t *hi)
{
    rt_split(n, w->rank->rt->nworkers, w->index, grain > 0 ? grain : 1, lo, hi);
}

/* ---- products and kernels ------------------------------------------------ */

/* A matrix of a product: as it lies in the block, or widened. */
typedef struct { char *at; int64_t ld; } Operand;

/* Widens the worker's share of an operand's rows; the scratch behind it is next. */
static Operand widened(const RtWorker *w, RtRef ref, int64_t rows, int64_t cols, float **scratch)
{
    if (ref.stored == RT_REAL)
        return (Operand){ at(w, ref), ref.ld };
    float *to = *scratch;
    *scratch += rows * cols;
    int64_t lo, hi;
    share(w, rows, 1, &lo, &hi);
    for (int64_t i = lo; i < hi; i++)
        rt_widen((const uint16_t *)(const void *)at(w, ref) + i * ref.ld, cols, to + i * cols);
    return (Operand){ (char *)to, cols };
}

/* Widens (back: narrows) rows [m0, m1) and columns [n0, n1) of the product. */
static void turn_product(const RtWorker *w, const RtStep *s, Operand c, int64_t m0, int64_t m1,
                         int64_t n0, int64_t n1, bool back)
{
    for (int64_t i = m0; i < m1; i++) {
        uint16_t *row = (uint16_t *)(void *)at(w, s->c) + i * s->c.ld + n0;
        float *wide = (float *)(void *)c.at + i * c.ld + n0;
        if (back)
            rt_narrow(wide, n1 - n0, row);
        else
            rt_widen(row, n1 - n0, wide);
    }
}

/* Workers cut the larger side of C in multiples of 16. */
static int do_gemm(RtWorker *w, const RtStep *s)
{
    const RtRank *r = w->rank;
    float *scratch = r->scratch;
    bool narrow_c = s->c.stored == RT_BF16_STORED, add = accumulates(w, s);
    Operand a = widened(w, s->a, s->trans_a ? s->k : s->m, s->trans_a ? s->m : s->k, &scratch);
    Operand b = widened(w, s->b, s->trans_b ? s->n : s->k, s->trans_b ? s->k : s->n, &scratch);
    Operand c = narrow_c ? (Operand){ (char *)scratch, s->n } : (Operand){ at(w, s->c), s->c.ld };
    if (s->a.stored == RT_BF16_STORED || s->b.stored == RT_BF16_STORED)
        RT_TRY(rt_team(w));
    int64_t m0 = 0, m1 = s->m, n0 = 0, n1 = s->n, real = (int64_t)r->rt->real;
    if (s->m >= s->n)
        share(w, s->m, 16, &m0, &m1);
    else
        share(w, s->n, 16, &n0, &n1);
    if (m0 >= m1 || n0 >= n1)
        return RT_OK;
    if (narrow_c && add)
        turn_product(w, s, c, m0, m1, n0, n1, false);
    rt_gemm(&r->rt->blas, s->trans_a, s->trans_b, m1 - m0, n1 - n0, s->k,
            a.at + real * (s->trans_a ? m0 : m0 * a.ld), a.ld,
            b.at + real * (s->trans_b ? n0 * b.ld : n0), b.ld,
            c.at + real * (m0 * c.ld + n0), c.ld, add);
    if (narrow_c)
        turn_product(w, s, c, m0, m1, n0, n1, true);
    return RT_OK;
}

/* Floats that the rank's products need for operands stored in 16 bits. */
int64_t rt_gemm_scratch(const RtProgram *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->head->nsteps; i++) {
        const RtStep *s = &p->steps[i];
        int64_t n = 0;
        if (s->kind != RT_GEMM)
            continue;
        n += s->a.stored == RT_BF16_STORED ? s->m * s->k : 0;
        n += s->b.stored == RT_BF16_STORED ? s->k * s->n : 0;
        n += s->c.stored == RT_BF16_STORED ? s->m * s->n : 0;
        most = n > most ? n : most;
    }
    return most;
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
    const RtProgram *p = r->program;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < s->nargs; i++)
        c->arg[i] = at(w, p->args[s->first_arg + i]);
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
        w->flags[0] = counts_loss(r, p->rowmaps[s->rowmap].axes);
    }
    if (s->rowmap_k >= 0) {
        c->runs_k = (const int32_t *)r->rows[s->rowmap_k].runs;
        c->nruns_k = r->rows[s->rowmap_k].nruns;
    }
    if (s->colmap >= 0)
        c->colmap = r->cols[s->colmap].global;
    if (s->ids == RT_IDS_TOKENS || s->ids == RT_IDS_POSITIONS) {
        const RtCols *rows = &r->cols[p->units[s->unit].rows];
        c->base = rows->n > 0 ? rows->global[0] : 0;
    } else if (s->colmap >= 0 && r->cols[s->colmap].n > 0) {
        c->base = c->colmap[0];
    }
    c->worker = w->index;
    c->nworkers = r->rt->nworkers;
    c->seed = h->train.seed;
    c->step = (uint32_t)r->now.step;
    c->evaluate = r->now.evaluate;
    c->salt = r->program->salts + s->first_salt;
    c->limit = h->vocab;
    c->ignore = h->ignore;
    c->scale = r->now.count > 0 ? 1.0 / (double)r->now.count : 0;
    c->total = r->loss;
}

static void do_kernel(RtWorker *w, const RtStep *s)
{
    RtCall call;
    fill_call(w, s, &call);
    RtKernelFn fn = w->rank->program->kernels[s->kernel];
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
static double merge_one(const RtWorker *w, const RtStep *s, int64_t p, int64_t row, int slot,
                        int slots, int stat)
{
    double all = 0, mean = 0;
    for (int64_t i = 0; i < p; i++) {
        double v = get(w, s->a, (i * s->rows + row) * slots + slot);
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
        double d = get(w, s->a, e) - mean;
        between += d * d;
        m2 += get(w, s->a, e + 1);
    }
    return (m2 + (double)s->stat_n * between) / ((double)p * (double)s->stat_n);
}

static void do_merge(const RtWorker *w, const RtStep *s, int64_t p)
{
    const RtRef *to = &w->rank->program->args[s->first_arg];
    int slots = 0;
    for (int k = 0; k < s->nstats; k++)
        slots += s->stat[k] == STAT_VAR ? 2 : 1;
    int64_t lo, hi;
    share(w, s->rows, 16, &lo, &hi);
    for (int64_t row = lo; row < hi; row++)
        for (int k = 0, slot = 0; k < s->nstats; slot += s->stat[k] == STAT_VAR ? 2 : 1, k++)
            put(w, to[k], row, merge_one(w, s, p, row, slot, slots, s->stat[k]));
}

/* Of each member's columns (max, sum of exp(l - max), target) -> of all columns. */
static void do_ce_merge(const RtWorker *w, const RtStep *s, int64_t p)
{
    int64_t lo, hi;
    share(w, s->rows, 16, &lo, &hi);
    for (int64_t row = lo; row < hi; row++) {
        double max = get(w, s->a, row * 3), sum = 0, target = 0;
        for (int64_t i = 1; i < p; i++)
            max = fmax(max, get(w, s->a, (i * s->rows + row) * 3));
        for (int64_t i = 0; i < p; i++) {
            int64_t e = (i * s->rows + row) * 3;
            sum += get(w, s->a, e + 1) * exp(get(w, s->a, e) - max);
            target += get(w, s->a, e + 2);
        }
        put(w, s->c, row * 3, max);
        put(w, s->c, row * 3 + 1, sum);
        put(w, s->c, row * 3 + 2, target);
    }
}

static void do_colsum(const RtWorker *w, const RtStep *s)
{
    bool add = accumulates(w, s);
    int64_t lo, hi;
    share(w, s->count, RT_LINE, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        double sum = 0;
        for (int64_t k = 0; k < w->rank->rt->nworkers; k++)
            sum += get(w, s->a, k * s->count + i);
        put(w, s->c, i, add ? get(w, s->c, i) + sum : sum);
    }
}

static void do_copy(const RtWorker *w, const RtStep *s)
{
    const Rt *rt = w->rank->rt;
    bool add = accumulates(w, s);
    int64_t lo, hi, cols = s->cols > 0 ? s->cols : s->count;
    share(w, s->rows, 1, &lo, &hi);
    for (int64_t row = lo; row < hi; row++)
        rt_move(rt, at(w, s->a) + row * s->a.ld * rt_size(rt, s->a.stored), s->a.stored,
                at(w, s->c) + row * s->c.ld * rt_size(rt, s->c.stored), s->c.stored, cols, add);
}

static void do_zero(const RtWorker *w, const RtStep *s)
{
    if (accumulates(w, s))
        return;
    int64_t lo, hi;
    share(w, s->count, RT_LINE, &lo, &hi);
    int64_t size = rt_size(w->rank->rt, s->c.stored);
    memset(at(w, s->c) + lo * size, 0, (size_t)((hi - lo) * size));
}

/* ---- the step's sums and the optimizer ----------------------------------- */

/* Targets that count, of all replicas. */
static int do_count(RtWorker *w, int istep)
{
    if (w->index)
        return RT_OK;
    RtRank *r = w->rank;
    double n = (double)rt_data_count(r);
    RT_TRY(rt_sum_doubles(w, &r->seat[r->step_kind[istep]], &n, 1));
    r->now.count = (int64_t)n;
    return RT_OK;
}

/* Where flat element 0 would be of what begins at `offset` with element `shift`. */
static void *kept(const RtRank *r, int64_t offset, int64_t shift, int stored)
{
    return r->block + (offset - shift * rt_size(r->rt, stored));
}

/* Squares of the gradient elements this rank answers for: each one once in all ranks. */
static void do_norm(RtWorker *w)
{
    RtRank *r = w->rank;
    const RtHeader *h = r->head;
    RtCall call = { .worker = w->index, .nworkers = r->rt->nworkers, .total = r->squares,
                    .flags = w->flags };
    for (int u = 0; u < h->nunits; u++) {
        int64_t from, to, lo, hi;
        rt_owned(r, u, &from, &to);
        if (!r->counts[u] || from >= to)
            continue;
        call.arg[0] = kept(r, h->grads_offset, rt_shift(r, u, RT_GRADS), RT_REAL);
        share(w, to - from, RT_LINE, &lo, &hi);
        if (lo < hi)
            r->program->kernels[h->norm_kernel](&call, from + lo, from + hi);
    }
}

static int do_totals(RtWorker *w)
{
    if (w->index)
        return RT_OK;
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    RtNow *now = &r->now;
    double v[3] = { 0, 0, rt_signalled() != 0 };
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
    bool good = isfinite(now->loss) && isfinite(now->norm);
    now->broken = !r->searching && (!good || rt->look);         // fault.c
    return RT_OK;
}

/* The kernel's arguments for elements of the unit. */
static void update_args(const RtRank *r, int unit, RtCall *call)
{
    const RtHeader *h = r->head;
    int64_t moments = rt_shift(r, unit, RT_MOMENTS);
    void *params = kept(r, h->params_offset, rt_shift(r, unit, RT_PARAMS), h->params_stored);
    int n = 0;
    call->arg[n++] = h->master_offset < 0 ? params
                                          : kept(r, h->master_offset, moments, RT_REAL);
    call->arg[n++] = kept(r, h->grads_offset, rt_shift(r, unit, RT_GRADS), RT_REAL);
    call->arg[n++] = kept(r, h->m_offset, moments, RT_REAL);
    if (h->v_offset >= 0)
        call->arg[n++] = kept(r, h->v_offset, moments, RT_REAL);
    if (h->master_offset >= 0)
        call->arg[n++] = params;
}

static void do_update(RtWorker *w)
{
    RtRank *r = w->rank;
    const RtHeader *h = r->rt->head;
    if (r->nranges == 0)
        return;
    double t = (double)r->now.step + 1;
    RtCall call = {
        .worker = w->index, .nworkers = r->rt->nworkers, .flags = w->flags,
        .step = (uint32_t)r->now.step, .seed = h->train.seed, .scale = r->now.clip,
        .lr = r->now.lr, .beta1 = h->train.beta1, .beta2 = h->train.beta2, .eps = h->train.eps,
        .momentum = h->train.momentum, .correct1 = 1 / (1 - pow(h->train.beta1, t)),
        .correct2 = 1 / (1 - pow(h->train.beta2, t)),
    };
    int64_t from = r->range[0].lo, lo, hi;
    share(w, r->range[r->nranges - 1].hi - from, RT_LINE, &lo, &hi);
    lo += from;
    hi += from;
    for (int64_t i = 0; i < r->nranges; i++) {
        const RtRange *g = &r->range[i];
        int64_t a = g->lo > lo ? g->lo : lo, b = g->hi < hi ? g->hi : hi;
        if (a >= b)
            continue;
        update_args(r, g->unit, &call);
        call.decay = g->decay ? h->train.weight_decay : 0;
        r->program->kernels[r->head->update_kernel](&call, a, b);
    }
}

/* The side that is one part: in place it is the member's own part of the other. */
static RtNumbers own_part(const RtWorker *w, const RtStep *s, const RtSeat *seat, RtRef ref)
{
    bool in_place = at(w, s->a) == at(w, s->c);
    int64_t part = in_place ? seat->me * s->count * rt_size(w->rank->rt, ref.stored) : 0;
    return (RtNumbers){ at(w, ref) + part, ref.stored };
}

static int64_t message_bytes(const RtWorker *w, const RtStep *s, RtRef ref)
{
    return s->rows * s->cols * rt_size(w->rank->rt, ref.stored);
}

/* ---- all of them --------------------------------------------------------- */

int rt_step(RtWorker *w, int istep)
{
    RtRank *r = w->rank;
    const RtStep *s = &r->program->steps[istep];
    int kind = r->step_kind[istep];
    const RtSeat *seat = kind >= 0 ? &r->seat[kind] : NULL;
    switch ((RtStepKind)s->kind) {
    case RT_GEMM:
        return do_gemm(w, s);
    case RT_KERNEL:
        do_kernel(w, s);
        break;
    case RT_ALL_GATHER:
        return rt_all_gather(w, seat, own_part(w, s, seat, s->a), numbers(w, s->c), s->count);
    case RT_REDUCE_SCATTER:
        return rt_reduce_scatter(w, seat, numbers(w, s->a), own_part(w, s, seat, s->c), s->count,
                                 accumulates(w, s));
    case RT_ALL_REDUCE:
        return rt_all_reduce(w, seat, numbers(w, s->c), s->count);
    case RT_BROADCAST:
        return rt_broadcast(w, seat, s->peer, numbers(w, s->a), numbers(w, s->c), s->count);
    case RT_REDUCE:
        return rt_reduce(w, seat, s->peer, numbers(w, s->a), numbers(w, s->c), s->count,
                         accumulates(w, s));
    case RT_ALL_TO_ALL:
        return rt_all_to_all(w, seat, numbers(w, s->a), numbers(w, s->c), r->boxes[istep]);
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
    case RT_SEND:
        return rt_send(w, s->peer, at(w, s->a), message_bytes(w, s, s->a));
    case RT_RECV:
        return rt_recv(w, s->peer, at(w, s->c), message_bytes(w, s, s->c));
    case RT_STEP_KINDS:
        return rt_fail(r->rt, RT_BUG, "%s: error: step %d has no kind", r->rt->exe, istep);
    }
    return RT_OK;
}
