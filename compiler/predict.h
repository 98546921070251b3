/*
 * predict.h - planning a pipeline on paper: what it costs before it exists.
 *
 *   cost.c      the price list of the cluster; seconds of a pass over one turn
 *   stages.c    which turns each stage gets
 *   schedule.c  the step table: what each stage does, in order
 *   simulate.c  the step tables run as discrete events with cost.c's seconds
 *
 * All four need the graph with its backward operators and Plan.is (the passes up
 * to autodiff); none needs the layouts of partition. A stage is a position in the
 * pipeline; with `chunks` v it holds v runs of turns, and chunk c of stage r is
 * section c*P + r. Seconds are of one rank, and all ranks of a stage are alike.
 */
#ifndef PREDICT_H
#define PREDICT_H

#include "plan.h"

/* ======================= schedule.c ======================================== */

typedef enum {
    STEP_FORWARD, STEP_BACKWARD,            // one unit: (microbatch, slice, chunk)
    STEP_SEND_ACTIVATION, STEP_RECV_ACTIVATION, STEP_SEND_GRADIENT, STEP_RECV_GRADIENT,
    STEP_SYNC, STEP_OPTIMIZER,              // once, at the end; microbatch = slice = chunk = 0
    STEP_KINDS
} StepKind;
extern const char *const step_word[STEP_KINDS];     // as in `plan --json`

typedef struct {
    StepKind kind;
    int microbatch, slice, chunk;   // of a transfer: those of this stage's side
    int peer;                       // transfers: the other stage, else NONE
    int64_t bytes;                  // transfers: of all ranks of the stage together
} Step;
typedef struct { Step *at; int n, cap; } Steps;

typedef enum { SCHEDULE_GPIPE, SCHEDULE_1F1B } ScheduleKind;
extern const char *const schedule_word[2];

typedef struct {
    ScheduleKind kind;
    int P, v, m, k;             // stages, chunks of one, microbatches, slices
    int64_t b, sequence;        // sequences of a microbatch
    int64_t *slice;             // k lengths in tokens, adding up to the sequence
    int64_t *cut_bytes;         // P*v - 1: bytes of a token where section i ends
    Steps *stage;               // P tables, filled by schedule_build
} Schedule;

/* Microbatches come in whole groups of this many where there are chunks (else 1). */
int schedule_group(const Schedule *s);
/* Fills s->stage from everything above it. */
void schedule_build(Schedule *s);

/* Numbers of the schedule, by formula (design.md 3); units are (microbatch, slice, chunk). */
int schedule_warmup(const Schedule *s, int r);      // forwards before the first backward
int schedule_units(const Schedule *s, int r);       // most units whose backward is to come
int schedule_kv(const Schedule *s, int r);          // most microbatches begun, over all chunks
/* The formulas of `units` and `kv` alone, for a stage of P with k slices of m microbatches
 * (v = 1): what the slice programme's memory bound needs before a table exists. */
int schedule_units_of(ScheduleKind kind, int P, int r, int m, int k);
int schedule_kv_of(ScheduleKind kind, int P, int r, int m, int k);

/*
 * Static checks of a table, each printed to `f` (may be NULL): every unit once
 * forward and once backward; slices add up and go backward last first; transfers
 * match in order, number and size; each unit's input was received and its result
 * sent; and with transfers that block both sides nobody waits for ever. Returns
 * the number of checks that failed.
 */
int schedule_check(const Schedule *s, FILE *f);
const char *step_text(const Step *s);               // "forward 3.1" (".2" with chunks)

#endif
