/*
 * trajectory.c - steps of the reference on random tokens, and the comparison of an
 * executed program with them. Which tokens a step has is worked out here again,
 * straight from language.md 5, and not by the runtime's reader.
 */
#include "trajectory.h"
#include "random.h"

static double **arrays(const RefGraph *g)
{
    double **a = NEWN(double *, g->nparams + 1);
    for (int i = 0; i < g->nparams; i++)
        a[i] = NEWN(double, g->params[i].rows * g->params[i].width);
    return a;
}

static int64_t elements(const RefGraph *g, int i)
{
    return g->params[i].rows * g->params[i].width;
}

/* ---- tokens ----------------------------------------------------------------- */

typedef struct {
    const Train *train;
    int64_t batch, sequence, count, ignore;     // count: sequences of the data
    int32_t *tokens, *in, *target;
    int64_t *number; int64_t epoch;             // shuffle: order of that epoch
} Feed;

/* Random tokens below every table's rows; three steps' worth, so that they come again. */
static void feed_begin(Feed *f, const Plan *p, const Config *config, Trajectory *t)
{
    const Train *train = &config->train;
    *f = (Feed){ .train = train, .epoch = -1, .ignore = -1 };
    f->batch = train->batch.v > 0 ? (int64_t)train->batch.v : 1;
    f->sequence = train->sequence.v > 0 ? (int64_t)train->sequence.v : 1;
    int64_t n = f->batch * f->sequence, limit = p->vocab;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind == OP_CE)
            f->ignore = o->ignore;
        if (o->kind == OP_EMBED && p->tensors.at[o->in[0]].ids == IDS_TOKENS) {
            int64_t rows = p->params.at[p->tensors.at[o->in[1]].param].rows;
            limit = rows < limit ? rows : limit;
        }
    }
    f->count = 3 * f->batch;
    f->in = NEWN(int32_t, n);
    f->target = NEWN(int32_t, n);
    f->number = NEWN(int64_t, f->count);
    t->ntokens = 3 * n + 1;
    f->tokens = t->tokens = NEWN(int32_t, t->ntokens);
    uint64_t x = 12345 + (uint64_t)n;
    for (int64_t i = 0; i < t->ntokens; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        t->tokens[i] = (int32_t)((x >> 33) % (uint64_t)limit);
    }
}

/* order = shuffle: the numbers sorted by their Philox value (few: by insertion). */
static int64_t shuffled(Feed *f, int64_t epoch, int64_t at)
{
    uint64_t seed = (uint64_t)f->train->seed.v;
    if (f->epoch != epoch) {
        f->epoch = epoch;
        for (int64_t i = 0; i < f->count; i++) {
            uint64_t v = rt_shuffle_value(seed, (uint64_t)epoch, (uint64_t)i);
            int64_t k = i;
            for (; k > 0 && rt_shuffle_value(seed, (uint64_t)epoch,
                                             (uint64_t)f->number[k - 1]) > v; k--)
                f->number[k] = f->number[k - 1];
            f->number[k] = i;
        }
    }
    return f->number[at];
}

/* Tokens and targets of a step. */
static RefInput feed_step(Feed *f, int64_t step)
{
    const Train *t = f->train;
    bool shuffle = t->order.v && strcmp(t->order.v, "shuffle") == 0;
    for (int64_t r = 0; r < f->batch; r++) {
        int64_t at = step * f->batch + r;
        int64_t number = shuffle ? shuffled(f, at / f->count, at % f->count) : at % f->count;
        for (int64_t i = 0; i < f->sequence; i++) {
            const int32_t *token = &f->tokens[number * f->sequence + i];
            int64_t k = r * f->sequence + i;
            f->in[k] = token[0];
            f->target[k] = token[1];
            if (t->objective != OBJ_MASKED)
                continue;
            bool hit = rt_masked((uint64_t)t->seed.v, (uint32_t)step, (uint64_t)k, t->mask_p);
            f->in[k] = hit ? (int32_t)t->mask_token : token[0];
            f->target[k] = hit ? token[0] : (int32_t)f->ignore;
        }
    }
    return (RefInput){ f->in, f->target, (uint64_t)t->seed.v, (uint32_t)step, true };
}

/* ---- the reference's side ----------------------------------------------------- */

static void keep_gradient(Trajectory *t, double **grad)
{
    t->grad = arrays(t->graph);
    for (int i = 0; i < t->graph->nparams; i++)
        for (int64_t k = 0; k < elements(t->graph, i); k++) {
            t->grad[i][k] = grad[i][k];
            t->largest = fmax(t->largest, fabs(grad[i][k]));
        }
}

Trajectory *trajectory_new(const Config *config, int64_t steps)
{
    Trajectory *t = NEW(Trajectory);
    Plan *whole = plan_new(config);
    graph_build(whole);
    if (diag_errors())
        return t;
    t->graph = reference_build(whole);
    t->steps = steps;
    t->loss = NEWN(double, steps + 1);
    t->norm = NEWN(double, steps + 1);
    Feed f;
    feed_begin(&f, whole, config, t);
    Ref *ref = ref_new(t->graph, f.batch, f.sequence);
    if (ref == NULL)
        die(EXIT_WORLD, "not enough memory for the reference");
    RefOptimizer optimizer;
    reference_optimizer(&config->train, &optimizer);
    double **param = arrays(t->graph), **grad = arrays(t->graph);
    double **m = arrays(t->graph), **v = arrays(t->graph);
    ref_init(t->graph, (uint64_t)config->train.seed.v, param);
    for (int64_t s = 0; s < steps; s++) {
        RefInput in = feed_step(&f, s);
        t->loss[s] = ref_step(ref, &in, param, grad);
        if (s == 0)
            keep_gradient(t, grad);
        t->norm[s] = ref_update(&optimizer, t->graph, s, param, grad, m, v);
    }
    ref_free(ref);
    return t;
}

/* ---- the executed side -------------------------------------------------------- */

/*
 * bf16 keeps 8 bits: what is stored is off by 2^-9 of itself at most, which is the error of
 * one rounding, taken as independent. A gradient of the first layer has passed one for
 * each operator that ends in memory, forward and backward: about a third of them. Their
 * errors add up as the root of their number; 4 such deviations are allowed.
 */
static double bf16_tolerance(const RefGraph *g)
{
    double roundings = 2 * (double)g->nops / 3;
    return 4 * sqrt(roundings) * 0x1p-9;
}

Comparison comparison_new(const Trajectory *t, Precision precision)
{
    int64_t most = 1;
    for (int i = 0; i < t->graph->nparams; i++)
        most = elements(t->graph, i) > most ? elements(t->graph, i) : most;
    return (Comparison){ .t = t, .tolerance = precision == PREC_FP64 ? 1e-10
                                     : precision == PREC_FP32 ? 1e-4 : bf16_tolerance(t->graph),
                         .worst_name = "", .scratch = NEWN(double, most) };
}

static void differs(Comparison *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void differs(Comparison *c, const char *fmt, ...)
{
    va_list ap;
    if (c->bad++ >= 10)
        return;
    va_start(ap, fmt);
    fputs("verify: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

static void compare_scalar(Comparison *c, int64_t step, const char *what, double a, double b)
{
    double e = fabs(a - b) / (fabs(b) > 1e-300 ? fabs(b) : 1);
    if (!(e <= c->worst_scalar))
        c->worst_scalar = e;
    if (!(e <= c->tolerance))
        differs(c, "step %" PRId64 ": %s %.17g, reference %.17g", step + 1, what, a, b);
}

static void compare_gradient(Comparison *c, int i)
{
    const Trajectory *t = c->t;
    const RefParam *p = &t->graph->params[i];
    double diff = 0, size = 0;
    int64_t at = 0;
    for (int64_t k = 0; k < p->rows * p->width; k++) {
        double d = fabs(c->scratch[k] - t->grad[i][k]);
        if (!(d <= diff)) {
            diff = d;
            at = k;
        }
        size = fmax(size, fabs(t->grad[i][k]));
    }
    double e = diff / fmax(fmax(size, 0.01 * t->largest), 1e-300);
    if (!(e <= c->worst)) {
        c->worst = e;
        c->worst_name = p->name;
    }
    if (!(e <= c->tolerance))
        differs(c, "gradient of %s differs by %.3g (allowed %.0e) at [%" PRId64 ", %" PRId64
                "]: %.17g, reference %.17g", p->name, e, c->tolerance, at / p->width,
                at % p->width, c->scratch[at], t->grad[i][at]);
}

void comparison_step(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    Comparison *c = ctx;
    if (c->loss)
        c->loss[step] = loss;
    if (c->norm)
        c->norm[step] = norm;
    for (int i = 0; step == 0 && i < c->t->graph->nparams; i++) {
        rt_read_param(rt, 1, i, c->scratch);
        compare_gradient(c, i);
    }
    compare_scalar(c, step, "loss", loss, c->t->loss[step]);
    compare_scalar(c, step, "gradient norm", norm, c->t->norm[step]);
    c->steps = step + 1;
}

RtOptions comparison_options(Comparison *c, int64_t steps)
{
    return (RtOptions){ .steps = steps, .quiet = 1, .exe = "teracube",
                        .after_step = comparison_step, .ctx = c, .fixed_tokens = c->t->tokens,
                        .fixed_ntokens = c->t->ntokens };
}
