/*
 * tune.h - the best layouts of a model on a cluster: the whole space
 *
 *     data x pipeline x (x, y, z) x microbatch          a cell
 *     x chunks x schedule x recompute x zero x slices   its variants
 *
 * less what the plan section pins, priced by the closed function of estimate.h.
 *
 *   tune.c        cells, variants, the search
 *   tune_slices.c slice lists of a layout
 *   tune_fit.c    the best one laid out
 *   tune_pins.c   pins that contradict each other, before anything is searched
 *   tune_print.c  the page, --json, --why-not and --explain tune
 *   tune_run.c    `teracube tune`, --write; folders of the best and what was measured
 *
 * Nothing that could win is left out: the cells of all legal meshes are met in the order of
 * estimate_bound, which no variant of a cell beats, until the bound passes the worst of
 * the best so far. Variants that a bound or an order excludes are named where that happens.
 */
#ifndef TUNE_H
#define TUNE_H

#include "estimate.h"

typedef enum { TUNE_TIME, TUNE_MEMORY, TUNE_COST, OBJECTIVES } Objective;
extern const char *const objective_word[OBJECTIVES];

typedef struct { Point at; Estimate is; } Candidate;
typedef VEC(Candidate) Candidates;
typedef struct { Point at; int64_t bytes; } LaidOut;    // of its largest block

typedef struct {
    Objective objective;
    int top;                        // so many of the best
    double budget_s;                // 0: until the search is complete
    bool turns_only;                // without embedding, head and loss
    bool no_front;                  // the best alone: no front of time and memory, no counts
} TuneAsk;

typedef struct {
    Plan *plan; Estimator *e;
    const PlanSpec *pins;
    TuneAsk ask;
    int64_t devices;
    Candidates best;                // at most ask.top, best first; cells all different
    Candidates front;               // time ascending, memory descending: nothing is better in both
    /* searched = feasible + the sum of rejected. One layout is a cell; a mesh that no
     * microbatch fits counts once. */
    int64_t searched, feasible, rejected[REJECTS];
    Point first[REJECTS];           // of those rejected: an example of each
    int64_t laid_out;               // bytes of the best's largest block; 0: it was not laid out
    VEC(LaidOut) outgrown;          // would be best, but their blocks are larger than the room
    bool has_near; Candidate near;  // nothing fits: the cell that lacks the fewest bytes
    bool complete, front_complete;  // the budget was enough
    double seconds;
    int64_t bounds, evaluations, programmes;        // calls of estimate_bound and estimate; of
                                                    // the slice programme
} Tune;

/* The graph with its backward operators, of no mesh. NULL: errors were reported. */
Plan *tune_open(const Config *c);
/* needs: tune_open; its config has the cluster and the pins.
 * NULL: errors were reported. */
Tune *tune_search(Plan *p, const TuneAsk *ask);
int64_t tune_devices_of(const Point *p);
/* Can any layout be laid out, whatever it holds? Prices nothing. */
bool tune_any(Plan *p);
/* The number of devices the plan may use: all of the cluster, or this machine's cores. */
int64_t tune_devices(const Config *c);
/* tune_open, tune_check and tune_search for each plan section that was chosen, and for the
 * objective cost for each number of nodes that divides the cluster's: the best of all. */
Tune *tune_all(const Config *c, const TuneAsk *ask);
/* Lays the best out where it nearly fills the room; one that does not fit gives its place to the
 * best that does. tune_all has done it. (tune_fit.c) */
void tune_fit(Tune *t);
/* Adds one to the best, in its place. */
void tune_add(Tune *t, const Candidate *c);
/* Is a better than b for the objective? Ties: fewer devices in the pipeline, and so on, so that
 * the order never hangs on the order of the search. */
int tune_order(Objective o, const Candidate *a, const Candidate *b);
/* Do both give the same program (design.md 2: zero = 3 over data, or x in its place)? */
bool tune_same(const Plan *p, const Point *a, const Point *b);
/* "data 8, pipeline 8, cube [2, 8, 1], microbatch 1, 1f1b, recompute attention, zero 1" */
const char *tune_line(const Point *p);
int tune_pinned_recompute(const PlanSpec *s);   // RECOMPUTE_NONE where it is open
/* A point as the entries of a plan section. */
void tune_pin(PlanSpec *s, const Point *p);
/* ---- tune_pins.c ---- */
typedef struct { const char *key, *value; Loc loc; } TunePin;
typedef struct { int n; TunePin at[20]; } TunePins;
TunePins tune_pins(const PlanSpec *s);          // what the plan section pins, in words
/* Pins that contradict each other, the model or the cluster: errors that name both places. */
void tune_check(const Plan *p);

/* ---- tune_slices.c ---- */
/* Slice lists worth pricing, in perm: the programme's best of different counts. */
typedef struct { int n; struct { int k; const int64_t *len; } at[8]; } SliceLists;
typedef struct SliceView SliceView;
SliceView *slice_view(Tune *t);
/* What no list of a point comes below; whole: the estimate of its sequence in one slice, with so
 * many bytes of a workspace that shrinks with its slices. Bytes beyond the room: none fits. */
void   slice_bound(SliceView *v, const Point *p, const Estimate *whole, double workspace,
                   double *seconds, double *bytes);
/* What every list of a point takes besides, behind the last pass. */
double slice_after(SliceView *v, const Point *p);
/* Of a point, whose own slices are not looked at; lists that take longer may be left out. */
void   slice_lists(SliceView *v, const Point *p, double limit_s, SliceLists *out);

#endif
