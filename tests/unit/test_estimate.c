/*
 * test_estimate.c - the closed step time: its parts add up, its bound is below it, and it
 * agrees with the simulation of the same layout.
 */
#include <criterion/criterion.h>

#include "estimate.h"
#include "grids.h"

static Plan *plan_of(const char *file, const char *const *sets)
{
    Plan *p = plan_new(grids_config(file, sets));
    graph_build(p);
    mesh_choose(p);
    fuse_linears(p);
    autodiff_add(p);
    cr_assert_eq(diag_errors(), 0);
    return p;
}

static void adds_up(const Estimate *e)
{
    double sum = 0;
    for (int i = 0; i < PARTS; i++) {
        cr_assert_geq(e->part[i], 0, "%s", part_word[i]);
        sum += e->part[i];
    }
    cr_assert_float_eq(sum, e->step_s, 1e-9 * e->step_s);
}

Test(estimate, parts_add_up)
{
    const char *const sets[] = { NULL };
    Plan *p = plan_of("examples/terapipe/gpt3-1b-2.tcube", sets);
    Estimator *e = estimator_new(p, false);
    for (int k = 1; k <= 4; k *= 2) {
        Point a = point_of(p);
        Estimate out;
        a.nslices = k;
        a.slice = NULL;
        a.microbatch = 1;
        cr_assert_eq(estimate_legal(e, &a), LEGAL);
        estimate(e, &a, &out);
        adds_up(&out);
        cr_assert_leq(estimate_bound(e, &a), out.step_s);
    }
}
