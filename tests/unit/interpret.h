/*
 * interpret.h - test helpers: a model from text, and a plain interpreter of the
 * plan's whole list of operators, forward and backward, in double.
 *
 * The interpreter follows the words of ops.h and shares nothing with
 * runtime/reference.c: where their gradients agree, autodiff.c is right.
 */
#ifndef INTERPRET_H
#define INTERPRET_H

#include "plan.h"
#include "reference.h"

/* The forward graph of `text` (the inside of a model, and fns before a line "---"),
 * fused or not; ends the process with a message on errors. */
Plan *unit_plan(const char *text, int64_t batch, int64_t sequence, bool fuse);

typedef struct {
    const Plan *p;
    int64_t S, T;
    double **val;               // by tensor: rows [T, width], parameters, gradients
    const RefInput *in;
    double loss;
} Interpret;

/* Runs all operators; gradients of parameters are in val[param.grad]. */
Interpret *interpret(const Plan *p, int64_t batch, int64_t sequence, const RefInput *in,
                     double *const *params);

#endif
