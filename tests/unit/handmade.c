/*
 * handmade.c - see handmade.h. The layout:
 *
 *     E [V, H]      rows over y (padded), columns whole, block spread over x and z
 *     W [H, V]      columns over y, block spread over x and z
 *     v [2H]        a vector without decay that only the optimizer sees
 *     h [T/(xz), H] sum over y of the look-ups
 *     logits [T/(xz), V/y]
 *
 * Gradients are reduce-scattered over x and z, then summed over data: with zero >= 2 in
 * each microbatch, unit by unit. With zero 3 each gather over x and z has one over data
 * before it.
 *
 * With bf16, E is gathered as it is stored and copied to float; W goes into the products
 * as it is stored.
 */
#include "handmade.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 40, MAX_PASSES = 24, TEXT = 4096 };

typedef struct {
    RtProgram program;              // first: the program is the object
    RtHeader head;
    RtStep step[MAX_STEPS];
    RtRef arg[2 * MAX_STEPS];           // two of each step
    RtParam param[3];
    RtUnit unit[3];
    RtPiece piece[3];
    RtSegment segment[8];
    RtColumns columns[8];
    RtRowMap rowmap[1];
    RtPass pass[MAX_PASSES];
    int64_t slice[1];
    RtKernelFn kernel[8];
    char text[TEXT];
    int64_t block;
    int64_t rows;
} Hand;

/* ---- kernels -------------------------------------------------------------- */

enum { K_EMBED, K_EMBED_DW, K_STAT, K_CE, K_NORM, K_UPDATE, K_UPDATE_COPY };

/* Sizes, which generated kernels have as constants; one program at a time. */
static struct { int64_t brows, hidden, rows, part; } size;

#define KERNELS(real, tag)                                                              \
static void embed_##tag(const RtCall *c, int64_t lo, int64_t hi)                        \
{                                                                                       \
    const real *e = c->arg[0];                                                          \
    real *y = c->arg[1];                                                                \
    int64_t brows = size.brows, cols = size.hidden;                                     \
    for (int64_t r = lo; r < hi; r++) {                                                 \
        int64_t row = c->ids[r] - c->base;                                              \
        for (int64_t k = 0; k < cols; k++)                                              \
            y[r * cols + k] = row >= 0 && row < brows ? e[row * cols + k] : 0;          \
    }                                                                                   \
}                                                                                       \
static void embed_dw_##tag(const RtCall *c, int64_t lo, int64_t hi)                     \
{                                                                                       \
    const real *dy = c->arg[0];                                                         \
    real *de = c->arg[1];                                                               \
    int64_t brows = size.brows, cols = size.hidden, rows = size.rows;                   \
    for (int64_t r = 0; r < rows; r++) {                                                \
        int64_t row = c->ids[r] - c->base;                                              \
        for (int64_t k = lo; row >= 0 && row < brows && k < hi; k++)                    \
            de[row * cols + k] += dy[r * cols + k];                                     \
    }                                                                                   \
}                                                                                       \
static void stat_##tag(const RtCall *c, int64_t lo, int64_t hi)                         \
{                                                                                       \
    const real *l = c->arg[0];                                                          \
    real *s = c->arg[1];                                                                \
    int64_t cols = size.part;                                                           \
    for (int64_t r = lo; r < hi; r++) {                                                 \
        double max = -1e30, sum = 0, target = 0;                                        \
        for (int64_t k = 0; k < cols && c->base + k < c->limit; k++)                    \
            max = fmax(max, (double)l[r * cols + k]);                                   \
        for (int64_t k = 0; k < cols && c->base + k < c->limit; k++) {                  \
            sum += exp((double)l[r * cols + k] - max);                                  \
            if (c->base + k == c->ids[r])                                               \
                target = (double)l[r * cols + k];                                       \
        }                                                                               \
        s[r * 3] = (real)max;                                                           \
        s[r * 3 + 1] = (real)sum;                                                       \
        s[r * 3 + 2] = (real)target;                                                    \
    }                                                                                   \
}                                                                                       \
static void ce_##tag(const RtCall *c, int64_t lo, int64_t hi)                           \
{                                                                                       \
    real *l = c->arg[0];                                                                \
    const real *s = c->arg[1];                                                          \
    int64_t cols = size.part;                                                           \
    for (int64_t r = lo; r < hi; r++) {                                                 \
        bool counts = c->ids[r] != c->ignore;                                           \
        double max = (double)s[r * 3], sum = (double)s[r * 3 + 1];                      \
        if (counts && c->flags[0])                                                      \
            c->total[c->worker * 8] += log(sum) + max - (double)s[r * 3 + 2];           \
        for (int64_t k = 0; k < cols; k++) {                                            \
            double p = exp((double)l[r * cols + k] - max) / sum;                        \
            p -= c->base + k == c->ids[r];                                              \
            l[r * cols + k] = (real)(counts && c->base + k < c->limit ? p * c->scale : 0); \
        }                                                                               \
    }                                                                                   \
}                                                                                       \
static void norm_##tag(const RtCall *c, int64_t lo, int64_t hi)                         \
{                                                                                       \
    for (int64_t i = lo; i < hi; i++)                                                   \
        c->total[c->worker * 8] += (double)((const real *)c->arg[0])[i]                 \
                                   * (double)((const real *)c->arg[0])[i];              \
}                                                                                       \
static void update_##tag(const RtCall *c, int64_t lo, int64_t hi)                       \
{                                                                                       \
    real *p = c->arg[0], *m = c->arg[2], *v = c->arg[3];                                \
    const real *g = c->arg[1];                                                          \
    for (int64_t i = lo; i < hi; i++) {                                                 \
        double d = (double)g[i] * c->scale;                                             \
        m[i] = (real)(c->beta1 * (double)m[i] + (1 - c->beta1) * d);                    \
        v[i] = (real)(c->beta2 * (double)v[i] + (1 - c->beta2) * d * d);                \
        d = (double)m[i] * c->correct1 / (sqrt((double)v[i] * c->correct2) + c->eps);   \
        p[i] = (real)((double)p[i] - c->lr * (d + c->decay * (double)p[i]));            \
    }                                                                                   \
}
KERNELS(float, f32)
KERNELS(double, f64)

/* The master copy is updated, then rounded. Plain: values are far from the largest. */
static void update_copy(const RtCall *c, int64_t lo, int64_t hi)
{
    update_f32(c, lo, hi);
    for (int64_t i = lo; i < hi; i++) {
        uint32_t w;
        memcpy(&w, (const float *)c->arg[0] + i, sizeof w);
        ((uint16_t *)c->arg[4])[i] = (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16);
    }
}

/* ---- the program ---------------------------------------------------------- */

static int32_t text(Hand *h, const char *s)
{
    size_t at = 1;
    while (h->text[at])
        at += strlen(h->text + at) + 1;
    if (at + strlen(s) + 2 > TEXT)
        abort();
    strcpy(h->text + at, s);
    return (int32_t)at;
}

static int64_t place(Hand *h, int64_t elements)
{
    int64_t at = h->block;
    h->block += (elements * (int64_t)h->head.real_bytes + 63) / 64 * 64;
    return at;
}

static RtStep *add(Hand *h, int kind, int phase, const char *name)
{
    RtStep *s = &h->step[h->head.nsteps++];
    s->kind = kind;
    s->phase = phase;
    s->name = text(h, name);
    s->source = text(h, "hand.tcube:1:1");
    s->reason = -1;
    s->kernel = s->rowmap = s->rowmap_k = s->colmap = s->columns_src = s->columns_dst = -1;
    s->unit = -1;
    s->grain = 1;
    return s;
}

static RtStep *coll(Hand *h, int kind, int phase, const char *name, int axes, int64_t a,
                    int64_t c, int64_t n)
{
    RtStep *s = add(h, kind, phase, name);
    s->axes = axes;
    s->a.offset = a;
    s->c.offset = c;
    s->count = n;
    return s;
}

static RtStep *kernel(Hand *h, int k, int phase, const char *name, int64_t items, int64_t a,
                      int64_t b)
{
    RtStep *s = add(h, RT_KERNEL, phase, name);
    s->kernel = k;
    s->items = items;
    s->nargs = 2;
    s->first_arg = 2 * (h->head.nsteps - 1);
    h->arg[s->first_arg].offset = a;
    h->arg[s->first_arg + 1].offset = b;
    s->rowmap = 0;
    return s;
}

static void gemm(Hand *h, int phase, const char *name, bool ta, bool tb, int64_t m, int64_t n,
                 int64_t k, RtRef a, RtRef b, RtRef c)
{
    RtStep *s = add(h, RT_GEMM, phase, name);
    s->trans_a = ta;
    s->trans_b = tb;
    s->m = m;
    s->n = n;
    s->k = k;
    s->a = a;
    s->b = b;
    s->c = c;
}

/* Steps of a phase stand together: a pass of each kind runs one phase, or the count. */
static int first_of(const Hand *h, int phase)
{
    int i = 1;
    while (i < h->head.nsteps && h->step[i].phase < phase)
        i++;
    return i;
}

static void add_pass(Hand *h, int kind, int first, int last, int microbatch)
{
    if (h->head.npasses == MAX_PASSES)
        abort();
    h->pass[h->head.npasses++] = (RtPass){ .kind = kind, .first = first, .last = last,
                                           .microbatch = microbatch, .again = microbatch > 0 };
}

static void add_passes(Hand *h)
{
    int at[5];
    for (int phase = 0; phase < 5; phase++)
        at[phase] = first_of(h, phase);
    add_pass(h, RT_PASS_BEGIN, 0, 1, 0);
    for (int m = 0; m < h->head.microbatches; m++) {
        add_pass(h, RT_PASS_FORWARD, 1, at[1], m);
        add_pass(h, RT_PASS_BACKWARD, at[1], at[2], m);
    }
    add_pass(h, RT_PASS_SYNC, at[2], at[3], 0);
    add_pass(h, RT_PASS_OPTIMIZER, at[3], at[4], 0);
}

/* Parameters, as they are stored. */
static void gather(Hand *h, int phase, const char *name, int axes, int64_t from, int64_t to,
                   int64_t n)
{
    RtStep *s = coll(h, RT_ALL_GATHER, phase, name, axes, from, to, n);
    s->a.stored = s->c.stored = h->head.params_stored;
}

/* The sum of a unit's gradients: over x and z, and with zero >= 2 over data. */
static void reduce(Hand *h, const char *name, int spread, int64_t from, int64_t between,
                   int64_t to, int64_t shard)
{
    bool over_data = h->head.zero >= 2;
    RtStep *s = coll(h, RT_REDUCE_SCATTER, 1, name, spread, from, over_data ? between : to, shard);
    s->accumulate_later = !over_data;
    if (over_data) {
        s = coll(h, RT_REDUCE_SCATTER, 1, name, RT_DATA, between, to, shard / h->head.data);
        s->accumulate_later = 1;
    }
}

static RtRef ref(int64_t offset, int64_t ld)
{
    return (RtRef){ .offset = offset, .ld = ld };
}

RtProgram *handmade(const Make *k)
{
    Hand *h = aligned_alloc(64, (sizeof *h + 63) / 64 * 64);
    memset(h, 0, sizeof *h);
    RtHeader *d = &h->head;
    h->program = (RtProgram){ d, h->step, h->param, h->unit, h->piece, h->segment, h->columns,
                              h->rowmap, h->pass, h->slice, NULL, h->arg, NULL, h->text,
                              h->kernel };
    RtKernelFn f32[] = { embed_f32, embed_dw_f32, stat_f32, ce_f32, norm_f32, update_f32,
                         update_copy };
    RtKernelFn f64[] = { embed_f64, embed_dw_f64, stat_f64, ce_f64, norm_f64, update_f64,
                         update_copy };
    memcpy(h->kernel, k->is_double ? f64 : f32, sizeof f32);
    int passes = k->microbatches > 0 ? k->microbatches : 1, n = k->x * k->z;
    int64_t H = k->hidden, V = (k->vocab + k->y - 1) / k->y * k->y, part = V / k->y;
    *d = (RtHeader){
        .version = RT_VERSION, .header_bytes = sizeof *d, .step_bytes = sizeof(RtStep),
        .real_bytes = k->is_double ? 8 : 4, .nstages = 1, .nslices = 1,
        .data = k->data, .x = k->x, .y = k->y, .z = k->z,
        .zero = k->zero, .workers = k->workers, .balanced = k->balanced,
        .microbatches = passes, .batch = k->batch, .sequence = k->sequence,
        .T = k->batch / k->data / passes * k->sequence, .vocab = k->vocab,
        .token_limit = k->vocab, .nparams = 3, .nunits = 3, .npieces = 3, .nsegments = 4,
        .ncolumns = 4, .nrowmaps = 1, .nkernels = 7, .ignore = -1, .objective = k->masked,
        .mask_p = 0.3, .mask_token = 1, .update_kernel = K_UPDATE, .norm_kernel = K_NORM,
    };
    h->text[0] = 0;
    d->model_name = text(h, "hand");
    d->plan_line = text(h, "by hand");
    d->train.data = k->data_file ? text(h, k->data_file) : -1;
    d->train.data_dir = d->train.format = d->train.order = d->train.weights = -1;
    d->train.log = -1;
    d->train.steps = k->steps;
    d->train.lr = 0.05;
    d->train.beta1 = 0.9;
    d->train.beta2 = 0.95;
    d->train.eps = 1e-8;
    d->train.weight_decay = 0.1;
    d->train.clip = 0.2;
    d->train.seed = 7;
    int64_t rows = h->rows = d->T / n;
    h->rowmap[0] = (RtRowMap){ .axes = RT_X | RT_Z, .nslices = 1, .count = rows };
    h->slice[0] = k->sequence;

    /* parameters: table, matrix, vector */
    h->param[0] = (RtParam){ .name = text(h, "wte.weight"), .kind = 1, .decay = 1,
                             .init_a = 0.5, .rows = k->vocab, .width = H };
    h->param[1] = (RtParam){ .name = text(h, "head.weight"), .out_in = k->out_in, .decay = 0,
                             .init_a = 0.5, .rows = H, .width = k->vocab };
    h->param[2] = (RtParam){ .name = text(h, "v.weight"), .kind = 2, .init = 1, .init_a = 1,
                             .rows = 1, .width = 2 * H };
    h->segment[0] = (RtSegment){ 0, V, 1, 0 };
    h->segment[1] = (RtSegment){ 0, H, 1, 0 };
    h->segment[2] = (RtSegment){ 0, 1, 1, 0 };
    h->segment[3] = (RtSegment){ 0, V, 1, 0 };
    h->columns[0] = (RtColumns){ 0, 1, RT_YK, 0 };      // rows of the table
    h->columns[1] = (RtColumns){ 1, 1, 0, 0 };          // rows of W
    h->columns[2] = (RtColumns){ 2, 1, 0, 0 };          // the one row of a vector
    h->columns[3] = (RtColumns){ 3, 1, RT_YK, 0 };      // columns of the logits
    h->piece[0] = (RtPiece){ 0, 1, 0, H, 0 };
    h->piece[1] = (RtPiece){ 1, 1, 0, V, 0 };
    h->piece[2] = (RtPiece){ 2, 1, 0, 2 * H, 0 };
    int spread = RT_X | RT_Z;
    int parts = k->zero >= 2 ? k->data : 1;     // that replicas own of a shard
    int64_t e_shard = (part * H + n * parts - 1) / (n * parts) * parts, w_shard = e_shard;
    int64_t v_shard = (2 * H + parts - 1) / parts * parts;
    h->unit[0] = (RtUnit){ .rows = 0, .first_piece = 0, .npieces = 1, .counts = 1, .spread = spread,
                           .brows = part, .bcols = H, .shard = e_shard, .offset = 0 };
    h->unit[1] = (RtUnit){ .rows = 1, .col_axis = RT_YK, .first_piece = 1, .npieces = 1,
                           .counts = 1, .spread = spread, .brows = H, .bcols = part,
                           .shard = w_shard, .offset = e_shard };
    h->unit[2] = (RtUnit){ .rows = 2, .first_piece = 2, .npieces = 1, .counts = 1,
                           .repl = RT_X | RT_YK | RT_Z, .brows = 1, .bcols = 2 * H,
                           .shard = v_shard, .offset = e_shard + w_shard };
    d->flat = e_shard + w_shard + v_shard;
    d->flat_pad = (d->flat + k->data * 16 - 1) / (k->data * 16) * (k->data * 16);
    int64_t state = k->zero ? d->flat_pad / k->data : d->flat_pad;
    d->params_stored = k->bf16 ? RT_BF16_STORED : RT_REAL;
    d->params_offset = place(h, k->zero >= 3 ? state : d->flat_pad);
    d->grads_offset = place(h, k->zero >= 2 ? state : d->flat_pad);
    d->m_offset = place(h, state);
    d->v_offset = place(h, state);
    d->master_offset = k->bf16 ? place(h, state) : -1;
    d->update_kernel = k->bf16 ? K_UPDATE_COPY : K_UPDATE;

    /* buffers */
    int64_t real = d->real_bytes;
    int64_t E = place(h, e_shard * n), W = place(h, w_shard * n), dE = place(h, e_shard * n);
    int64_t dW = place(h, w_shard * n), X = place(h, rows * H), dX = place(h, rows * H);
    int64_t L = place(h, rows * part), S = place(h, rows * 3), all = place(h, rows * 3 * k->y);
    int64_t P = d->params_offset, own = e_shard / parts, size_p = k->bf16 ? 2 : real;
    int64_t gE = d->grads_offset, gW = gE + (k->zero >= 2 ? own : e_shard) * real;
    int64_t sE = P, sW = P + e_shard * size_p, sG = place(h, e_shard);
    int64_t rounded = place(h, e_shard * n);
    if (k->zero >= 3) {
        sE = place(h, e_shard);
        sW = place(h, w_shard);
    }

    size.brows = size.part = part;
    size.hidden = H;
    size.rows = rows;

    RtStep *s;
    add(h, RT_COUNT, 0, "targets");
    if (k->zero >= 3) {
        gather(h, 0, "wte: E over data", RT_DATA, P, sE, own);
        gather(h, 0, "head: W over data", RT_DATA, P + own * size_p, sW, own);
    }
    gather(h, 0, "wte: E over x z", spread, sE, k->bf16 ? rounded : E, e_shard);
    if (k->bf16) {
        s = add(h, RT_COPY, 0, "wte: E to float");
        s->rows = 1;
        s->cols = e_shard * n;
        s->a = (RtRef){ .offset = rounded, .ld = s->cols, .stored = RT_BF16_STORED };
        s->c = ref(E, s->cols);
    }
    gather(h, 0, "head: W over x z", spread, sW, W, w_shard);
    RtRef w_ref = { .offset = W, .ld = part, .stored = d->params_stored };
    s = kernel(h, K_EMBED, 0, "wte: look-up", rows, E, X);
    s->ids = RT_IDS_TOKENS;
    s->unit = 0;
    coll(h, RT_ALL_REDUCE, 0, "wte: X over y", RT_YK | RT_YR, X, X, rows * H);
    gemm(h, 0, "head: X W", false, false, rows, part, H, ref(X, H), w_ref,
         ref(L, part));
    s = kernel(h, K_STAT, 0, "loss: statistics", rows, L, S);
    s->ids = RT_IDS_TARGETS;
    s->colmap = 3;
    coll(h, RT_ALL_GATHER, 0, "loss: statistics over y", RT_YK | RT_YR, S, all, rows * 3);
    s = coll(h, RT_CE_MERGE, 0, "loss: merge", RT_YK | RT_YR, all, S, 0);
    s->rows = rows;
    s = kernel(h, K_CE, 1, "loss", rows, L, S);
    s->ids = RT_IDS_TARGETS;
    s->colmap = 3;
    gemm(h, 1, "head: dW", true, false, H, part, rows, ref(X, H), ref(L, part),
         ref(dW, part));
    reduce(h, "head: dW over x z", spread, dW, sG, gW, w_shard);
    gemm(h, 1, "head: dX", false, true, rows, H, part, ref(L, part), w_ref,
         ref(dX, H));
    coll(h, RT_ALL_REDUCE, 1, "head: dX over y", RT_YK | RT_YR, dX, dX, rows * H);
    coll(h, RT_ZERO, 1, "wte: clear dE", 0, dE, dE, e_shard * n);
    s = kernel(h, K_EMBED_DW, 1, "wte: dE", H, dX, dE);
    s->ids = RT_IDS_TOKENS;
    s->unit = 0;
    reduce(h, "wte: dE over x z", spread, dE, sG, gE, e_shard);
    int64_t slice = d->flat_pad / k->data;
    if (k->zero == 1)
        coll(h, RT_REDUCE_SCATTER, 2, "gradients over data", RT_DATA, gE, gE, slice);
    else if (k->zero == 0)
        coll(h, RT_ALL_REDUCE, 2, "gradients over data", RT_DATA, gE, gE, d->flat_pad);
    add(h, RT_NORM, 3, "norm");
    add(h, RT_TOTALS, 3, "totals");
    add(h, RT_UPDATE, 3, "update");
    if (k->zero == 1)
        gather(h, 3, "parameters over data", RT_DATA, P, P, slice);
    for (int u = 0; k->zero == 2 && u < d->nunits; u++) {
        int64_t at = P + h->unit[u].offset * size_p;
        gather(h, 3, "parameters over data", RT_DATA, at, at, h->unit[u].shard / parts);
    }
    add_passes(h);
    d->block_bytes = h->block;
    return &h->program;
}

void handmade_free(RtProgram *p) { free(p); }
