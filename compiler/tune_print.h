/*
 * tune_print.h - the answer of a search, for people and for tools.
 */
#ifndef TUNE_PRINT_H
#define TUNE_PRINT_H

#include "options.h"
#include "print.h"
#include "tune.h"

/* A candidate with everything chosen and its step simulated. */
typedef struct { const Candidate *is; Plan *plan; double simulated_s; } TuneRow;
typedef struct { const Tune *t; int n; TuneRow *at; } TunePage;     // best first

/* Times the best again, event by event. */
TunePage tune_page(const Tune *t);
/* The configuration of a point: its pins, of as many nodes. */
Config *tune_config(const Tune *t, const Point *a);
/* The plan of a point with all its choices, its pipeline simulated (on paper). */
Plan *tune_resolve(const Tune *t, const Point *a);
void tune_settle(Plan *p);          // its pipeline's microbatch and slices are the plan's
void tune_print(const TunePage *page, FILE *f);
void tune_print_json(const TunePage *page, FILE *f);
/* The plan section of a resolved plan; what it hangs on stands in a comment (hash.c). */
void tune_print_block(const Tune *t, const Plan *p, FILE *f);
void tune_write_block(const Tune *t, const Plan *p, const char *path);      // tune_run.c
/* "3.1 % slower: bubble +1.2 s, y +300 ms", of b against a. */
const char *tune_slower(const Estimate *a, const Estimate *b);
/* Both term by term. */
void tune_print_terms(const Candidate *a, const Candidate *b, const char *left, const char *right,
                      FILE *f);
void tune_print_rejected(const Tune *t, FILE *f);
void tune_print_memories(const Candidate *a, const Candidate *b, const char *left,
                         const char *right, FILE *f);      // tune_why.c
/* ---- tune_emit.c, tune_results.c: folders of the best; what they measured ---- */
int tune_emit(const Compile *c, const TunePage *page);      // the exit status
int tune_results(const Compile *c);
/* ---- tune_why.c ---- */
/* Nothing fits, or nothing is legal: an error that says what the nearest layout lacks, and how
 * many devices are enough. */
void tune_report_none(const Tune *t);
int tune_why_not(Compile *c, const TuneAsk *ask);

#endif
