/*
 * print.h - shared by the printers: print.c (graph, instructions), print_page.c
 * (what a person reads), print_json.c (what tools read).
 */
#ifndef PRINT_H
#define PRINT_H

#include "plan.h"

/* Collectives that differ only in the turn of a repeat, counted together. */
typedef struct {
    const Inst *inst;       // the first of them
    const char *name;       // turn numbers replaced by `*`: "h.*.attn.c_attn: X"
    const char *tensor;     // what is sent, likewise
    const char *reason;     // why it is there, likewise
    double bytes;           // received per rank and call, on average over the group
    int calls;              // per step
    int64_t size;           // ranks of a group
} Traffic;
typedef VEC(Traffic) Traffics;

/* Memory at the moment the most is alive. */
typedef struct {
    InstId at;
    int64_t bytes[BUF_CLASSES], sum;
} Peak;

Traffics    print_traffic(const Plan *p);           // in order of first use
double      print_received(const Plan *p, const Inst *i);   // bytes per rank and call
Peak        print_peak(const Plan *p);
int64_t     print_real_bytes(const Plan *p);
Axes        print_axes(const Plan *p, Axes a, int rep);     // without axes of size 1
const char *print_turnless(const char *name, int turn);     // "h.3.ln" -> "h.*.ln"
const char *print_value_name(const Plan *p, ValueId v);     // tensor, weight or buffer
int         print_turn(const Plan *p, const Inst *i);
int64_t     print_parameters(const Plan *p);        // elements of the model
int         print_passes(const Plan *p);            // microbatches of a step
/* Local elements of parameter w on a rank, its unit, and the block's shape. */
typedef struct { const ParamUnit *unit; int64_t rows, cols, elements; } ParamHome;
ParamHome   print_param_home(const Plan *p, ParamId w);

#endif
