/*
 * verify_run.c - `teracube verify`: static checks, then steps on threads against
 * the reference, tensor by tensor.
 *
 * Agreement (design.md 9): losses and gradient norms to 1e-10 relative in fp64
 * and 1e-4 in fp32; a gradient tensor where max|a-b| <= that times max(max|b|,
 * 0.01 G), G the largest gradient element of the step. Tokens are random, so
 * no data file is needed.
 */
#include "commands.h"
#include "random.h"
#include "reference.h"

typedef struct {
    const Plan *plan;
    const RefGraph *graph;
    Ref *ref;
    RefOptimizer optimizer;
    int64_t nparams;
    double **param, **grad, **m, **v, *got;
    int32_t *tokens, *in, *target;
    int64_t ntokens;
    double tolerance;
    int bad;
    double worst; const char *worst_name;
    double worst_scalar;
    bool quiet;
    double **elsewhere;         // gradients of step 1 as executed, for the report
} Twin;

static double **arrays(const RefGraph *g)
{
    double **a = NEWN(double *, g->nparams);
    for (int i = 0; i < g->nparams; i++)
        a[i] = NEWN(double, g->params[i].rows * g->params[i].width);
    return a;
}

static RefOptimizer optimizer_of(const Train *t)
{
    return (RefOptimizer){ .kind = t->optimizer == OPT_ADAMW ? REF_ADAMW : REF_SGD, .lr = t->lr,
        .beta1 = t->beta1, .beta2 = t->beta2, .eps = t->eps, .weight_decay = t->weight_decay,
        .momentum = t->momentum, .clip = t->clip.v, .schedule = (int)t->schedule,
        .warmup = t->warmup, .decay = t->decay, .steps = (int64_t)t->steps.v,
        .lr_min = t->lr_min };
}

static void twin_begin(Twin *w, const Plan *p, const Config *config)
{
    Plan *whole = plan_new(config);
    graph_build(whole);
    w->plan = p;
    w->graph = reference_build(whole);
    w->ref = ref_new(w->graph, p->is.batch, p->is.sequence);
    if (w->ref == NULL)
        die(EXIT_WORLD, "not enough memory for the reference");
    w->optimizer = optimizer_of(&config->train);
    w->param = arrays(w->graph);
    w->grad = arrays(w->graph);
    w->m = arrays(w->graph);
    w->v = arrays(w->graph);
    int64_t most = 0;
    for (int i = 0; i < w->graph->nparams; i++) {
        int64_t n = w->graph->params[i].rows * w->graph->params[i].width;
        most = n > most ? n : most;
    }
    w->got = NEWN(double, most);
    ref_init(w->graph, (uint64_t)config->train.seed.v, w->param);
    int64_t n = p->is.batch * p->is.sequence;
    w->in = NEWN(int32_t, n);
    w->target = NEWN(int32_t, n);
    w->ntokens = 3 * n + 1;
    w->tokens = NEWN(int32_t, w->ntokens);
    uint64_t x = 12345 + (uint64_t)n;
    int64_t limit = p->vocab;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind == OP_EMBED && p->tensors.at[o->in[0]].ids == IDS_TOKENS) {
            int64_t rows = p->params.at[p->tensors.at[o->in[1]].param].rows;
            limit = rows < limit ? rows : limit;
        }
    }
    for (int64_t i = 0; i < w->ntokens; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        w->tokens[i] = (int32_t)((x >> 33) % (uint64_t)limit);
    }
    w->tolerance = p->is.precision == PREC_FP64 ? 1e-10 : 1e-4;
    w->worst_name = "";
}

/* Tokens and targets of a step, by the rule of language.md 5. */
static void fill_step(Twin *w, int64_t step)
{
    const Choices *is = &w->plan->is;
    const Train *t = &w->plan->config->train;
    int64_t count = (w->ntokens - 1) / is->sequence;
    bool shuffled = t->order.v && strcmp(t->order.v, "shuffle") == 0;
    for (int64_t r = 0; r < is->batch; r++) {
        int64_t number = (step * is->batch + r) % count;
        (void)shuffled;
        for (int64_t i = 0; i < is->sequence; i++) {
            int32_t a = w->tokens[number * is->sequence + i];
            int32_t b = w->tokens[number * is->sequence + i + 1];
            int64_t at = r * is->sequence + i;
            w->in[at] = a;
            w->target[at] = b;
            if (t->objective == OBJ_MASKED) {
                bool hit = rt_masked((uint64_t)t->seed.v, (uint32_t)step, (uint64_t)at, t->mask_p);
                int64_t ignore = -1;
                for (int k = 0; k < w->plan->nforward; k++)
                    if (w->plan->ops.at[k].kind == OP_CE)
                        ignore = w->plan->ops.at[k].ignore;
                w->in[at] = hit ? (int32_t)t->mask_token : a;
                w->target[at] = hit ? a : (int32_t)ignore;
            }
        }
    }
}

static bool close_enough(Twin *w, double a, double b)
{
    double e = fabs(a - b) / (fabs(b) > 1e-300 ? fabs(b) : 1);
    if (!(e <= w->worst_scalar))
        w->worst_scalar = e;
    return e <= w->tolerance;
}

static void compare_gradients(Twin *w, Rt *rt)
{
    double largest = 0;
    for (int i = 0; i < w->graph->nparams; i++)
        for (int64_t k = 0; k < w->graph->params[i].rows * w->graph->params[i].width; k++)
            largest = fmax(largest, fabs(w->grad[i][k]));
    for (int i = 0; i < w->graph->nparams; i++) {
        int64_t n = w->graph->params[i].rows * w->graph->params[i].width, at = 0;
        double diff = 0, size = 0;
        rt_read_param(rt, 1, i, w->got);
        for (int64_t k = 0; k < n; k++) {
            double d = fabs(w->got[k] - w->grad[i][k]);
            if (!(d <= diff)) {
                diff = d;
                at = k;
            }
            size = fmax(size, fabs(w->grad[i][k]));
        }
        double e = diff / fmax(fmax(size, 0.01 * largest), 1e-300);
        if (!(e <= w->worst)) {
            w->worst = e;
            w->worst_name = w->graph->params[i].name;
        }
        if (e <= w->tolerance)
            continue;
        if (w->bad++ < 10)
            fprintf(stderr, "verify: gradient of %s differs by %.3g (allowed %.0e) at [%" PRId64
                    ", %" PRId64 "]: %.17g, reference %.17g\n", w->graph->params[i].name, e,
                    w->tolerance, at / w->graph->params[i].width, at % w->graph->params[i].width,
                    w->got[at], w->grad[i][at]);
    }
}

static void after_step(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    Twin *w = ctx;
    fill_step(w, step);
    RefInput in = { w->in, w->target, (uint64_t)w->plan->config->train.seed.v, (uint32_t)step,
                    true };
    double want = ref_step(w->ref, &in, w->param, w->grad);
    if (step == 0)
        compare_gradients(w, rt);
    double want_norm = ref_update(&w->optimizer, w->graph, step, w->param, w->grad, w->m, w->v);
    if (!close_enough(w, loss, want) && w->bad++ < 10)
        fprintf(stderr, "verify: step %" PRId64 ": loss %.17g, reference %.17g\n", step + 1, loss,
                want);
    if (!close_enough(w, norm, want_norm) && w->bad++ < 10)
        fprintf(stderr, "verify: step %" PRId64 ": gradient norm %.17g, reference %.17g\n",
                step + 1, norm, want_norm);
}

/* ---- the command ----------------------------------------------------------------- */

static double step_flops(const Emitted *e, int ranks)
{
    double f = 0;
    for (int i = 0; i < e->steps.n; i++)
        f += e->steps.at[i].flops;
    return f * ranks;
}

static int execute(Compile *c, const Emitted *e)
{
    Twin w = { .quiet = c->o->quiet };
    twin_begin(&w, c->plan, c->config);
    Kernels *k = make_kernels(c, e);
    RtProgram program = emitted_program(e, jit_kernels(k));
    int64_t steps = c->o->steps >= 0 ? c->o->steps : 1;
    RtOptions ro = { .steps = steps, .quiet = 1, .exe = "teracube", .after_step = after_step,
                     .ctx = &w, .fixed_tokens = w.tokens, .fixed_ntokens = w.ntokens };
    int status = rt_run(&program, &ro);
    if (status != EXIT_FINE)
        return status;
    const Choices *is = &c->plan->is;
    if (w.bad)
        fprintf(stderr, "verify: %d values differ\n", w.bad);
    else if (!c->o->quiet)
        printf("%s, data %d, cube [%d, %d, %d]: %" PRId64 " step%s against the reference: losses "
               "and norms within %.1e, %d gradients within %.1e (worst: %s)\n",
               c->plan->model_name, is->data, is->x, is->y, is->z, steps, steps == 1 ? "" : "s",
               w.worst_scalar, w.graph->nparams, w.worst, w.worst_name);
    ref_free(w.ref);
    return w.bad ? EXIT_FAULT : EXIT_FINE;
}

int command_verify(Compile *c)
{
    use_this_machine(c);
    if (!compile_to(c, "memory"))
        return EXIT_INPUT;
    if (!c->o->quiet)
        printf("static checks: fine after every pass, %d instructions, %d collectives\n",
               c->plan->insts.n, plan_collectives(c->plan));
    if (c->o->is_static)
        return EXIT_FINE;
    Emitted *e = emit_program(c->plan);
    if (!c->o->is_full && step_flops(e, plan_ranks(c->plan)) > 1e10)
        return verify_shrunk(c);
    return execute(c, e);
}
