/*
 * grids.c - see grids.h. One LLVM module per plan, holding only the kernels that no
 * earlier plan had.
 */
#include <criterion/criterion.h>

#include "grids.h"
#include "emit.h"

#ifdef HAVE_LLVM
static void **make(const KernelSpec *spec, int n)
{
    return kernels_jit(emit_llvm(spec, n, "grids", NULL));
}
#else
static void **make(const KernelSpec *spec, int n)
{
    (void)spec, (void)n;
    bug("a test that needs LLVM did not skip itself");
}
#endif


const Config *grids_config(const char *file, const char *const *sets)
{
    Inputs in = { .files = &file, .nfiles = 1, .sets = sets };
    while (sets && sets[in.nsets])
        in.nsets++;
    return config_read(parse_files(&in), &in);
}

Plan *grids_open(const Config *config)
{
    Plan *p = plan_new(config);
    graph_build(p);
    mesh_choose(p);
    fuse_linears(p);
    autodiff_add(p);
    cr_assert_eq(diag_errors(), 0);
    return p;
}

Plan *grids_compile(const Config *config, int workers)
{
    Options o = { .steps = -1, .threads = workers, .command = "verify" };
    Compile c = { .o = &o, .config = config };
    return !diag_errors() && compile_to(&c, "memory") ? c.plan : NULL;
}

static Map *known;                      // key -> index of kernel
static VEC(RtKernelFn) kernel;

static const RtKernelFn *kernels_of(const Emitted *e)
{
    VEC(KernelSpec) fresh = { 0 };
    known = known ? known : map_new();
    for (int i = 0; i < e->specs.n; i++)
        if (map_get(known, e->specs.at[i].key) < 0) {
            map_put(known, e->specs.at[i].key, kernel.n + fresh.n);
            vec_add(&fresh, e->specs.at[i]);
        }
    if (fresh.n > 0) {
        void **at = make(fresh.at, fresh.n);
        for (int i = 0; i < fresh.n; i++)
            vec_add(&kernel, (RtKernelFn)(uintptr_t)at[i]);
    }
    RtKernelFn *all = NEWN(RtKernelFn, e->specs.n + 1);
    for (int i = 0; i < e->specs.n; i++)
        all[i] = kernel.at[map_get(known, e->specs.at[i].key)];
    return all;
}

typedef struct { Comparison *same; int64_t last; double **params; } Keeper;

static void keep(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    Keeper *k = ctx;
    comparison_step(k->same, rt, step, loss, norm);
    for (int i = 0; step == k->last && i < k->same->t->graph->nparams; i++)
        rt_read_param(rt, 0, i, k->params[i]);
}

int grids_execute_keeping(const Plan *p, Comparison *c, int64_t steps, double **params)
{
    Emitted *e = emit_program(p);
    const RtProgram *program = emitted_program(e, kernels_of(e));
    RtOptions o = comparison_options(c, steps);
    Keeper k = { c, steps - 1, params };
    if (params) {
        o.after_step = keep;
        o.ctx = &k;
    }
    return rt_run(program, &o);
}

int grids_execute(const Plan *p, Comparison *c, int64_t steps)
{
    return grids_execute_keeping(p, c, steps, NULL);
}

double **grids_arrays(const RefGraph *g)
{
    double **a = NEWN(double *, g->nparams + 1);
    for (int i = 0; i < g->nparams; i++)
        a[i] = NEWN(double, g->params[i].rows * g->params[i].width);
    return a;
}
