/*
 * trajectory.h - what the reference says about the first steps of a model, and how
 * an executed program agrees with it. Shared by verify_run.c and the tests of grids.
 *
 * A trajectory hangs on the model and the train section alone, never on a layout:
 * it is computed once and compared with any number of plans.
 */
#ifndef TRAJECTORY_H
#define TRAJECTORY_H

#include "plan.h"
#include "reference.h"
#include "rt.h"

typedef struct {
    const RefGraph *graph;
    int64_t steps;
    double *loss, *norm;            // of each step
    double **grad;                  // of step 1, by parameter
    double largest;                 // its largest element
    int32_t *tokens; int64_t ntokens;   // instead of a data file
} Trajectory;

/* Runs the reference for `steps` steps on random tokens. */
Trajectory *trajectory_new(const Config *config, int64_t steps);

/*
 * Agreement (design.md 9): losses and norms within `tolerance` relative; a gradient
 * tensor where max|a-b| <= tolerance * max(max|b|, 0.01 G), G the largest element.
 */
typedef struct {
    const Trajectory *t;
    double tolerance;
    int64_t steps;                  // executed so far
    int bad;                        // values that differ; the first ten are printed
    double worst_scalar, worst;     // the largest difference of a loss or norm, of a gradient
    const char *worst_name;
    double *loss, *norm;            // as executed; NULL: not kept
    double *scratch;                // room for the largest parameter
} Comparison;

Comparison comparison_new(const Trajectory *t, Precision precision);

/* For RtOptions: after_step and its ctx, a Comparison. */
void comparison_step(void *ctx, Rt *rt, int64_t step, double loss, double norm);
/* Options that execute `steps` of a program on the trajectory's tokens. */
RtOptions comparison_options(Comparison *c, int64_t steps);

#endif
