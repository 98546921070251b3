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

typedef struct {
    const char *set, *arch;         // "terapipe_icml21 V100", "sm_70"
    Family family;
    int rows;                       // that no constant was fitted on
    double error, bias;             // mean |predicted / measured - 1|, mean of the same signed
    double parameters, devices;     // geometric means
} Residual;
extern const Residual residuals[];
extern const int nresiduals;

/* The nearest set by kind of device, then family, size and number of devices. NULL where the
 * plan's device is of no kind in the table or its rates were measured. */
const Residual *residual_of(const Plan *p);

#endif
