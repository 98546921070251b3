/*
 * verify.h - shared by verify.c (the table of checks), verify_flow.c (types on layouts,
 * instruction by instruction) and verify_calls.c (functions and step tables).
 */
#ifndef VERIFY_H
#define VERIFY_H

#include "plan.h"

typedef struct {
    const Plan *p;
    const char *after;      // the pass that just ran
    const char *check;      // name of the check that runs
    FILE *f;                // NULL: only count
    int failed;
} Verify;

/* One failed check: the instruction (or NONE) and what disagrees. */
void verify_fail(Verify *v, InstId i, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Runs the program on types. Names of its checks: read-before-written,
 * layout-agrees, other-contents, partial-value, sum-twice, sum-order, group-fits,
 * gradient-summed, parameters-whole, sum-unfinished, step-order. */
void verify_flow(Verify *v);

/* Functions and step tables. Names: functions-cover, regions-apart, step-order,
 * step-range, step-missing, backward-order, transfers-match, slices-sum, no-deadlock. */
void verify_calls(Verify *v);

#endif
