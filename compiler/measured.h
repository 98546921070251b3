/*
 * measured.h - what a run measured: its log (--log) and its trace (--trace), read back.
 *
 * A log is JSON lines: a record of the run, then one a step. A trace is a Chrome trace whose
 * events are plan steps of a rank (a run on processors), or whole passes of a rank or stage
 * (a run on devices, `teracube simulate`).
 */
#ifndef MEASURED_H
#define MEASURED_H

#include "plan.h"

typedef struct {
    const char *name;               // "h.0.attn.c_attn: X W", or "forward 3.1"
    StepKind pass;
    int stage, rank, step;          // rank: of the whole run, or the stream of a simulated stage
    int microbatch, slice, chunk;
    double begin, seconds;
} Event;
typedef VEC(Event) Events;

typedef struct {
    const char *log, *trace;        // paths, or NULL
    /* the log's record of the run; "" and 0 where it has none */
    const char *model, *plan, *blas, *precision, *model_hash;
    int devices, workers;
    double tokens;                  // of a step
    VEC(double) step_s;             // of its steps, in order
    Events events;                  // in the order of the trace
    bool is_simulated;              // the trace is simulate's
} Measured;

/* Is it a log or a trace (and no .tcube file)? By its first byte. */
bool measured_is(const char *path);
/* Of one run. NULL: what is wrong was reported [run-valid]; with `why` it is put there in words. */
Measured *measured_read(const char *const *paths, int n, const char **why);

/* What speaks against a log being of a run of this plan, in words, and `hint` what to do; NULL:
 * nothing. Needs mesh. */
const char *measured_mismatch(const Measured *m, const Plan *p, const char **hint);

#endif
