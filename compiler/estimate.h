/*
 * estimate.h - the step time and the memory of one layout in closed form: what `plan`,
 * `tune` and the test against plain enumeration share. simulate.c times again, event by
 * event, what is printed.
 *
 * An Estimator is one model on one cluster. It reads the graph of a Plan with its backward
 * operators (passes graph .. autodiff, any mesh) once and prices each cube (x, y, z on its
 * stages and replicas) once. All it needs is its own: freed with it.
 *
 * Bytes are a sum, without the gaps of the block that memory.c lays out: between ESTIMATE_LOW and
 * ESTIMATE_HIGH of it (test_estimate.c, on GPT-2; 0.84 was seen on bert).
 *
 * Seconds and bytes are of one rank; a stage's ranks are alike. Sources: schedules and
 * slices, design.md 3 and TeraPipe (ICML 2021) eq. 5; interleaving, Narayanan et al.
 * (SC 2021) 2.2; volumes of the cube, design.md 2.
 */
#ifndef ESTIMATE_H
#define ESTIMATE_H

#include "predict.h"

#define ESTIMATE_LOW 0.95
#define ESTIMATE_HIGH 1.12

/* One layout of the space that `tune` searches. */
typedef struct {
    int data, stages, chunks, x, y, z;
    int64_t microbatch;             // sequences of a replica in one pass
    int nslices; const int64_t *slice;      // lengths; NULL: uniform(nslices)
    ScheduleKind schedule;
    int recompute, recompute_turns; // as Choices.recompute; FULL: turns of each stage, 0: all
    int zero;
    /* What is gathered once is kept for the backward pass. CHOSEN: as partition does, the first
     * of the pinned one or both, inputs, none that fits. */
    enum { KEEP_CHOSEN, KEEP_BOTH, KEEP_INPUTS, KEEP_NONE, KEEP_WEIGHTS } keep;
} Point;

extern const char *const keep_word[];           // "both", ..; of CHOSEN none

/* Why a layout cannot be. */
typedef enum {
    LEGAL,
    REJECT_DEVICES,                 // not the cluster's number of devices
    REJECT_BATCH,                   // batch % (data * microbatch)
    REJECT_WIDTH, REJECT_HEADS, REJECT_ROWS,
    REJECT_ATTENTION,               // the pinned kind of attention is not possible
    REJECT_LAYERS,                  // fewer turns than stages * chunks, or others pinned
    REJECT_GROUPS,                  // chunks: microbatches are no whole groups
    REJECT_SLICES,                  // attention that sees ahead, or too many
    REJECT_EFFECT,                  // zero without data, chunks without stages, ..
    REJECT_PARTITION,               // outside of the pinned family
    REJECT_STEPS,                   // more units than schedule_fits
    REJECT_MEMORY,
    REJECTS
} Reject;
extern const char *const reject_word[REJECTS];      // "batch-divides": checks of language.md 6
extern const char *const reject_text[REJECTS];      // for people

typedef struct Estimator Estimator;

/* Never NULL. turns_only: without embedding, head and loss. */
Estimator *estimator_new(const Plan *p, bool turns_only);
void       estimator_free(Estimator *e);

/* What needs no price: LEGAL or the first reason found; never REJECT_MEMORY. */
Reject estimate_legal(const Estimator *e, const Point *p);
/* Of a legal point. REJECT_MEMORY: it does not fit; *out is filled all the same. */
Reject estimate(Estimator *e, const Point *p, Estimate *out);
/* The same without what only explains it: parts, mfu, hfu and tokens_per_s are 0. */
Reject estimate_step(Estimator *e, const Point *p, Estimate *out);
/* Bytes alone, of the stage that holds most. */
double estimate_peak(Estimator *e, const Point *p);
/* Seconds alone, whether it fits or not: with all kept that could be, where nothing is said. */
double estimate_time(Estimator *e, const Point *p);
/* Seconds that none that makes these turns again, or more, and keeps the same stays below. */
double estimate_more(Estimator *e, const Point *p);
/* Seconds that no slicing, schedule, recompute and zero of the same data, stages, cube and
 * microbatch stays below. Without slices, nor does one with c chunks below work + fill / c. */
typedef struct { double seconds, work, fill; } Least;
Least estimate_bound(Estimator *e, const Point *p);
/* Of stage r; like Estimate.memory. */
StageMemory estimate_memory(Estimator *e, const Point *p, int r);
/* Turns of every section (chunk * stages + stage); *n of them. Valid until the next call. */
const int *estimate_turns(Estimator *e, const Point *p, int *n);
/* The plan's own layout, its feed as chosen. */
Point  point_of(const Plan *p);
/* The choices that the compiler makes for a point, as mesh.c does. */
Choices estimate_choices(const Estimator *e, const Point *p);

#endif
