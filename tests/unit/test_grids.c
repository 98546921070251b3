/*
 * test_grids.c - any grid gives what the reference gives (design.md 9): losses and
 * gradient norms of 20 steps, and every parameter's gradient of step 1.
 *
 * The model is tests/grids/model.tcube; fp32 runs 5 of the 20 steps. The variants
 * take one step, each on a few grids where its layouts differ most.
 */
#include <criterion/criterion.h>

#include "grids.h"

static const char model[] = "tests/grids/model.tcube";
typedef struct { int x, y, z; } Grid;
static const Grid grids[] = {
    { 1, 1, 1 }, { 2, 1, 1 }, { 1, 2, 1 }, { 1, 1, 2 }, { 2, 2, 2 }, { 3, 2, 1 }, { 1, 2, 3 },
    { 1, 4, 3 }, { 4, 1, 2 }, { 1, 1, 12 }, { 3, 3, 3 }
};
enum { NGRIDS = sizeof grids / sizeof *grids };

enum { MOST_SETS = 24 };
typedef struct { const char *at[MOST_SETS]; int n; } Sets;
static void set(Sets *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void set(Sets *s, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cr_assert_lt(s->n, MOST_SETS - 1);
    s->at[s->n++] = str(text);
}
static void set_grid(Sets *s, Grid g, int data)
{
    set(s, "plan.cube=[%d,%d,%d]", g.x, g.y, g.z);
    set(s, "plan.data=%d", data);
}

/* Executes one plan; false where something differs or does not run. */
static bool agrees(const char *file, const Sets *s, const Trajectory *t, int64_t steps, int workers,
                   const char *what)
{
    const Config *config = grids_config(file, s->at);
    Plan *p = grids_compile(config, workers);
    if (p == NULL || p->is.refused) {
        cr_expect(false, "%s: is not laid out", what);
        return false;
    }
    Comparison c = comparison_new(t, p->is.precision);
    int status = grids_execute(p, &c, steps);
    bool good = status == 0 && c.bad == 0 && c.steps == steps;
    cr_expect(good, "%s: status %d, %d values differ after %d of %d steps (gradient of %s: %.3g, "
              "scalars %.3g)", what, status, c.bad, (int)c.steps, (int)steps, c.worst_name, c.worst,
              c.worst_scalar);
    return good;
}

#ifdef HAVE_LLVM
#define NEEDS_LLVM
#else
#define NEEDS_LLVM cr_skip_test("no LLVM 19")
#endif

static const Trajectory *with_batch(int batch)
{
    static const Trajectory *made[16];
    Sets s = { 0 };
    set(&s, "train.batch=%d", batch);
    if (made[batch] == NULL)
        made[batch] = trajectory_new(grids_config(model, s.at), 20);
    return made[batch];
}

/* Rows of a replica must be a multiple of x*lcm(y, z). */
static bool rows_divide(Grid g, int batch, int data)
{
    return batch % data == 0 && batch / data * 24 % (g.x * lcm64(g.y, g.z)) == 0;
}

static void one_grid(Grid g, int batch, int data, int zero, const char *precision)
{
    int64_t steps = strcmp(precision, "fp32") == 0 ? 5 : 20;
    Sets s = { 0 };
    set_grid(&s, g, data);
    set(&s, "train.batch=%d", batch);
    set(&s, "train.precision=%s", precision);
    if (data > 1)
        set(&s, "plan.zero=%d", zero);
    agrees(model, &s, with_batch(batch), steps, 1,
           str_fmt("[%d,%d,%d] data %d batch %d zero %d %s", g.x, g.y, g.z, data, batch, zero,
                   precision));
}

/* A batch of 6; of 9 where 48 rows of a replica do not divide. */
static void all_grids(int data)
{
    for (int i = 0; i < NGRIDS; i++) {
        int batch = rows_divide(grids[i], 6, data) ? 6 : 9;
        one_grid(grids[i], batch, data, (i + data) % 2, "fp64");
        one_grid(grids[i], batch, data, (i + data + 1) % 2, "fp32");
    }
}

Test(grids, data_1_and_2)
{
    NEEDS_LLVM;
    all_grids(1);
    all_grids(2);
}

Test(grids, data_3_and_batch_1)
{
    NEEDS_LLVM;
    all_grids(3);
    for (int i = 0; i < NGRIDS; i++)
        if (rows_divide(grids[i], 1, 1)) {
            one_grid(grids[i], 1, 1, 0, "fp64");
            one_grid(grids[i], 1, 1, 0, "fp32");
        }
}

/* ---- the same bits ---------------------------------------------------------- */

static void same_bits(Grid g, int data, int workers)
{
    Sets s = { 0 };
    set_grid(&s, g, data);
    set(&s, "train.precision=fp32");
    const Config *config = grids_config(model, s.at);
    const Trajectory *t = trajectory_new(config, 3);
    Plan *p = grids_compile(config, workers);
    cr_assert_not_null(p);
    double loss[2][3], norm[2][3], **params[2];
    for (int k = 0; k < 2; k++) {
        Comparison c = comparison_new(t, PREC_FP32);
        c.loss = loss[k];
        c.norm = norm[k];
        params[k] = grids_arrays(t->graph);
        cr_assert_eq(grids_execute_keeping(p, &c, 3, params[k]), 0);
        cr_assert_eq(c.bad, 0);
    }
    cr_expect_arr_eq(loss[0], loss[1], sizeof loss[0]);
    cr_expect_arr_eq(norm[0], norm[1], sizeof norm[0]);
    for (int i = 0; i < t->graph->nparams; i++)
        cr_expect_arr_eq(params[0][i], params[1][i], (size_t)(t->graph->params[i].rows *
                         t->graph->params[i].width) * sizeof(double), "%s",
                         t->graph->params[i].name);
}

Test(grids, two_runs_give_the_same_bits)
{
    NEEDS_LLVM;
    same_bits((Grid){ 1, 1, 1 }, 1, 2);
    same_bits((Grid){ 2, 2, 2 }, 1, 1);
    same_bits((Grid){ 1, 2, 3 }, 2, 2);
}

/* ---- variants ---------------------------------------------------------------- */

typedef struct {
    const char *file;
    const char *sets[4];                // of the plan; NULL ends them
    const char *grids;                  // "x,y,z x,y,z/data ..."
} Variant;

static const char all_sorts[] = "1,1,1 2,1,1 1,2,1 1,1,2 2,2,2 1,2,3/2 3,1,2 1,4,1 1,1,4";

/*
 * Two steps in fp64. What each is for stands at the head of its file; the model itself
 * tries what a plan may pin: how attention sees other ranks' tokens, what is kept,
 * how the vectors are stored, and the loss in several chunks.
 */
static const Variant variants[] = {
    { "kv", { NULL }, "1,1,1 1,2,1 1,4,1 1,8,1 2,4,1 1,4,2 1,2,2 1,4,3 2,2,2/2 1,1,3" },
    { "kv", { "plan.attention=gather", "plan.rows=plain" }, "2,4,1 1,4,2 1,4,3 2,1,2" },
    { "kv", { "plan.vectors=sharded" }, "1,1,1 2,4,1 1,4,3 1,2,2/2" },
    { "both", { NULL }, all_sorts },
    { "both", { "plan.attention=gather" }, "2,2,2 1,2,3" },
    { "branches", { NULL }, all_sorts },
    { "branches", { "plan.keep=none" }, "2,2,2 1,2,3" },
    { "branches", { "plan.keep=both" }, "2,2,2 1,2,3" },
    { "branches", { "plan.vectors=sharded" }, "2,2,2 1,2,3/2" },
    { "single", { NULL }, all_sorts },
    { "single", { "plan.vectors=sharded" }, "2,2,2 1,2,3/2" },
    { "rows", { NULL }, "1,1,1 2,1,1 1,2,1 1,1,2 2,2,2 1,2,3/2 3,1,2 1,3,1 1,1,4" },
    { "rows", { "plan.vectors=sharded" }, "2,2,2 1,2,3/2" },
    { "model", { "plan.attention=gather", "plan.rows=plain" }, "2,1,1 1,1,2 2,2,2 1,2,3" },
    { "model", { "plan.attention=gather", "plan.rows=balanced" }, "2,1,1 1,1,2 2,2,2 1,2,3" },
    { "model", { "plan.attention=exchange" }, "2,1,1 1,1,3 2,2,1 1,2,2 3,2,1 1,1,12" },
    { "model", { "plan.keep=none" }, "1,1,1 2,2,2 1,2,3" },
    { "model", { "plan.keep=inputs" }, "2,2,2 1,2,3" },
    { "model", { "plan.keep=weights" }, "2,2,2 1,2,3" },
    { "model", { "plan.keep=both" }, "2,2,2 1,2,3" },
    { "model", { "plan.vectors=sharded" }, "1,1,1 2,2,2 1,2,3/2 3,2,1" },
    { "model", { "plan.logits_chunk=12" }, "1,1,1 2,2,2 1,2,3/2 1,4,3" },
    { "rope_back", { NULL }, "1,1,1 1,1,4 1,1,2 1,3,2 2,1,2" },
    /* products of blocks */
    { "model", { "plan.partition=summa(2)" }, "1,2,2 1,2,2/3" },
    { "model", { "plan.partition=summa(3)", "plan.zero=1" }, "1,3,3/2" },
    { "model", { "plan.partition=summa(2)", "plan.zero=3", "plan.recompute=full" }, "1,2,2/2" },
    { "model", { "plan.partition=summa(2)", "plan.pipeline=2", "plan.slices=[16,8]" },
      "1,2,2 1,2,2/2" },
    { "model", { "plan.partition=summa(2)", "plan.attention=gather", "plan.rows=plain" },
      "1,2,2/2" },
    { "model", { "plan.partition=summa(2)", "plan.attention=exchange" }, "1,2,2" },
    { "kv", { "plan.partition=summa(2)" }, "1,2,2 1,2,2/2" },
    { "both", { "plan.partition=summa(2)" }, "1,2,2" },
    { "branches", { "plan.partition=summa(2)" }, "1,2,2" },
    { "branches", { "plan.partition=summa(3)" }, "1,3,3" },
    { "single", { "plan.partition=summa(2)" }, "1,2,2/2" },
    { "rows", { "plan.partition=summa(2)" }, "1,2,2" },
    { "model", { "plan.partition=1d" }, "1,3,1" },
    { "model", { "plan.partition=2d" }, "1,2,3" },
};
enum { NVARIANTS = sizeof variants / sizeof *variants };

static void one_variant(const Variant *v)
{
    const char *file = str_fmt("tests/grids/%s.tcube", v->file);
    const Trajectory *t = trajectory_new(grids_config(file, NULL), 2);
    for (const char *g = v->grids; *g; g += strspn(g, " ")) {
        Grid grid;
        int data = 1, used = 0, n = 0;
        cr_assert_eq(sscanf(g, "%d,%d,%d%n", &grid.x, &grid.y, &grid.z, &used), 3);
        g += used;
        if (sscanf(g, "/%d%n", &data, &n) == 1)
            g += n;
        Sets s = { 0 };
        const char *what = v->file;
        for (int i = 0; i < 4 && v->sets[i]; i++) {
            set(&s, "%s", v->sets[i]);
            what = str_fmt("%s %s", what, v->sets[i]);
        }
        set_grid(&s, grid, data);
        agrees(file, &s, t, 2, 1, str_fmt("%s [%d,%d,%d] data %d", what, grid.x, grid.y, grid.z,
                                          data));
    }
}

Test(grids, variants_of_layers)
{
    NEEDS_LLVM;
    for (int i = 0; i < NVARIANTS; i++)
        if (strcmp(variants[i].file, "model") != 0)
            one_variant(&variants[i]);
}

Test(grids, variants_of_plans)
{
    NEEDS_LLVM;
    for (int i = 0; i < NVARIANTS; i++)
        if (strcmp(variants[i].file, "model") == 0)
            one_variant(&variants[i]);
}

/* Stored in 16 bits, within the bound that trajectory.c derives. (Not `branches`: the step of
 * its relu turns a rounding into another gradient.) */
static const Variant halves[] = {
    { "model", { "train.precision=bf16" }, "1,1,1 2,2,2 1,2,3/2 3,1,2" },
    { "model", { "train.precision=bf16", "plan.attention=gather" }, "2,1,2 1,2,3" },
    { "model", { "train.precision=bf16", "plan.attention=exchange" }, "2,2,1 1,1,3" },
    { "model", { "train.precision=bf16", "plan.pipeline=2", "plan.slices=[16,8]", "plan.zero=3" },
      "1,1,1/2 2,1,1/2" },
    { "model", { "train.precision=bf16", "plan.zero=2", "plan.recompute=full" }, "1,2,1/2" },
    { "kv", { "train.precision=bf16" }, "1,1,1 1,4,1 1,8,1 2,2,2/2" },
    { "both", { "train.precision=bf16", "plan.vectors=sharded" }, "2,2,2" },
    { "model", { "train.precision=bf16", "plan.partition=summa(2)" }, "1,2,2 1,2,2/2" },
};

Test(grids, sixteen_bits)
{
    NEEDS_LLVM;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        one_variant(&halves[i]);
}
