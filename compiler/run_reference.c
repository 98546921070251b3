/*
 * run_reference.c - `teracube run --reference`: trains with the slow interpreter of
 * the unpartitioned graph (runtime/reference.h), in double precision.
 *
 * The runtime does all the rest, with a program of its own making: the parameters of
 * the plan on one rank, and as steps, instead of the plan's, two calls of ours. So data,
 * masks, log, --load, --save, checkpoints and validation are those of every run. The first
 * call gets the step's tokens; the second its targets, and takes the step: parameters and
 * moments are read from the block before the first one and written back after each.
 */
#include "commands.h"
#include "reference.h"

/* Kernels have no context of their own, and there is one run in a process. */
static struct {
    const StageTables *e;
    const RefGraph *graph;
    Ref *ref;
    RefOptimizer optimizer;
    const int32_t *tokens;
    double **param, **grad, **m, **v;
    double norm;
    bool started, counted;
} run;

static double **arrays(const RefGraph *g)
{
    double **a = NEWN(double *, g->nparams + 1);
    for (int i = 0; i < g->nparams; i++)
        a[i] = NEWN(double, g->params[i].rows * g->params[i].width);
    return a;
}

/* Between a flat region of the rank and whole arrays. */
static void copy_values(double *flat, double **whole, bool to_flat)
{
    const StageTables *e = run.e;
    for (int i = 0; i < e->units.n; i++) {
        const RtUnit *u = &e->units.at[i];
        for (int k = u->first_piece; k < u->first_piece + u->npieces; k++) {
            const RtPiece *c = &e->pieces.at[k];
            const RtParam *a = &e->params.at[c->param];
            for (int64_t r = 0; r < a->rows && r < u->brows; r++)
                for (int64_t j = 0; j < c->width && c->start + j < a->width; j++) {
                    double *x = &flat[u->offset + r * u->bcols + c->local_start + j];
                    double *y = &whole[c->param][r * a->width + c->start + j];
                    *(to_flat ? x : y) = *(to_flat ? y : x);
                }
        }
    }
}

/* Parameters and moments; arg: the block's. */
static void copy_all(const RtCall *call, bool to_flat)
{
    double **const whole[] = { run.param, run.m, run.v };
    for (int i = 0; i < 3; i++)
        if (call->arg[i])
            copy_values(call->arg[i], whole[i], to_flat);
}

static void get_tokens(const RtCall *call, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    run.tokens = call->ids;
}

/* Adds the loss, summed over the targets, to call->total. In validation that is all. */
static void take_step(const RtCall *call, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    RefInput in = { run.tokens, call->ids, call->seed, call->step, !call->evaluate };
    if (!run.started)
        copy_all(call, false);
    run.started = true;
    run.counted = false;
    double loss = ref_step(run.ref, &in, run.param, call->evaluate ? NULL : run.grad);
    call->total[0] += call->scale > 0 ? loss / call->scale : 0;
    if (call->evaluate)
        return;
    run.norm = ref_update(&run.optimizer, run.graph, call->step, run.param, run.grad, run.m, run.v);
    copy_all(call, true);
}

/* The norm's kernel, called once for each unit: the whole norm, once a step. */
static void give_norm(const RtCall *call, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    if (!run.counted)
        call->total[0] += run.norm * run.norm;
    run.counted = true;
}

/* The arguments of a call are where the block has parameters and moments. */
static RtStep step(int kind, int phase, int call, int ids, const RtHeader *h)
{
    return (RtStep){ .kind = kind, .phase = phase, .name = -1, .source = -1, .reason = -1,
                     .kernel = call, .axes = RT_DATA, .rep = 1, .items = 1, .grain = 1,
                     .nargs = h->v_offset >= 0 ? 3 : 2,
                     .rowmap = ids == RT_IDS_NONE ? -1 : 0, .rowmap_k = -1, .colmap = -1,
                     .columns_src = -1, .columns_dst = -1, .ids = ids };
}

int run_reference(Compile *c)
{
    static const RtKernelFn calls[] = { get_tokens, take_step, give_norm };
    Config *one = NEW(Config);          // no plan: one rank, double precision
    *one = *c->config;
    one->plan = (PlanSpec){ 0 };
    one->has_plan = false;
    one->any_room = true;
    one->train.precision = PREC_FP64;
    Plan *whole = plan_new(one);
    graph_build(whole);
    Compile compile = { .o = c->o, .config = one, .start = c->start };
    if (diag_errors() || !compile_to(&compile, "memory"))
        return EXIT_INPUT;
    Emitted *emitted = emit_program(compile.plan);
    StageTables *e = &emitted->stage[0];
    RtHeader *h = &e->head;
    int64_t bytes = h->flat_pad * (int64_t)sizeof(double);
    run.e = e;
    run.graph = reference_build(whole);
    run.ref = ref_new(run.graph, h->batch, h->sequence);
    if (run.ref == NULL)
        die(EXIT_WORLD, "not enough memory for the reference");
    reference_optimizer(&one->train, &run.optimizer);
    run.param = arrays(run.graph);
    run.grad = arrays(run.graph);
    run.m = arrays(run.graph);
    run.v = arrays(run.graph);
    const RtStep steps[] = {
        step(RT_COUNT, 0, -1, RT_IDS_NONE, h), step(RT_KERNEL, 0, 0, RT_IDS_TOKENS, h),
        step(RT_KERNEL, 0, 1, RT_IDS_TARGETS, h), step(RT_NORM, 3, -1, RT_IDS_NONE, h),
        step(RT_TOTALS, 3, -1, RT_IDS_NONE, h),
    };
    const RtRef args[] = { { .offset = h->params_offset, .ld = 1 },
                           { .offset = h->m_offset, .ld = 1 }, { .offset = h->v_offset, .ld = 1 } };
    const RtRowMap all = { .nslices = 1, .count = h->T };
    const RtPass passes[] = {
        { .kind = RT_PASS_BEGIN, .first = 0, .last = 1 },
        { .kind = RT_PASS_FORWARD, .first = 1, .last = 3 },
        { .kind = RT_PASS_OPTIMIZER, .first = 3, .last = 5 },
    };
    const int64_t slices[] = { h->sequence };
    h->nsteps = sizeof steps / sizeof *steps;
    h->nrowmaps = 1;
    h->nouts = 0;
    h->nkernels = sizeof calls / sizeof *calls;
    h->norm_kernel = 2;
    h->workers = 1;
    h->block_bytes = (h->v_offset > h->m_offset ? h->v_offset : h->m_offset) + bytes;
    RtProgram program = emitted_program(emitted, calls)[0];
    program.passes = passes;
    program.slices = slices;
    h->npasses = sizeof passes / sizeof *passes;
    h->nslices = 1;
    program.steps = steps;
    program.args = args;
    program.rowmaps = &all;
    if (!c->o->quiet)
        fprintf(stderr, "note: the reference interpreter, in double precision, without a plan\n");
    RtOptions ro = { .load = c->o->load, .save = c->o->save, .log = c->o->log,
                     .trace = c->o->trace, .resume = c->o->resume, .steps = c->o->steps,
                     .quiet = c->o->quiet, .exe = "teracube" };
    int status = rt_run(&program, &ro);
    ref_free(run.ref);
    return status;
}
