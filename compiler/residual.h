/*
 * residual.h - how far the prices were off on published runs: the error bar of a plan.
 *
 * The table (residual_table.c) is written by `make predict-table`; the rows behind it are
 * not in this tree. They are runs of other programs, priced as tests/predict/README.md
 * says: what is tested is the prices, not what our own program does.
 */
#ifndef RESIDUAL_H
#define RESIDUAL_H

#include "plan.h"

typedef enum { FAMILY_TENSOR, FAMILY_SHARDED, FAMILY_SLICES } Family;
extern const char *const family_word[];

struct Manner;
typedef struct {
    const char *set, *arch;         // "terapipe_icml21 V100", "sm_70"
    Family family;
    int rows;                       // that no constant was fitted on
    double error, bias;             // mean |predicted / measured - 1|, mean of the same signed
    double parameters, devices;     // geometric means
    const struct Manner *how;       // the program that most of them are runs of
} Residual;
extern const Residual residuals[];
extern const int nresiduals;

/* The nearest set by kind of device, then family, size and number of devices. NULL where the
 * plan's device is of no kind in the table or its rates were measured. */
const Residual *residual_of(const Plan *p);
/* Seconds of a step of a plan's model in the plan's layout, were it run by the program of those
 * runs: what a published time is to be compared with. *what: that program, for people. NAN where
 * it cannot be said: runs of another family, cubes other than [1,t,1] and [n,1,1], zero 3 beside
 * tensor parallelism, layers that are not GPT's or Llama's, 32 bits. Slices are left out: those
 * programs have none. needs: graph, feed chosen. */
double residual_step(const Plan *p, const Residual *r, const char **what);

#endif
