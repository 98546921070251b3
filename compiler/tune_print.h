/*
 * tune_print.h - the answer of a search, for people and for tools.
 */
#ifndef TUNE_PRINT_H
#define TUNE_PRINT_H

#include "print.h"
#include "tune.h"

/* A candidate with everything chosen and its step simulated. */
typedef struct { const Candidate *is; Plan *plan; double simulated_s; } TuneRow;
typedef struct { const Tune *t; int n; TuneRow *at; } TunePage;     // best first

/* Times the best again, event by event. */
TunePage tune_page(const Tune *t);
/* The plan of a point with all its choices, its pipeline simulated (on paper). */
Plan *tune_resolve(const Tune *t, const Point *a);
void tune_print(const TunePage *page, FILE *f);
void tune_print_json(const TunePage *page, FILE *f);
/* The plan section of a resolved plan; with hashes: what it hangs on, in a comment. */
void tune_print_block(const Plan *p, bool hashes, FILE *f);
/* Nothing fits, or nothing is legal: an error that says what the nearest layout lacks. */
void tune_report_none(const Tune *t);

#endif
