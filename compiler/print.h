/*
 * print.h - shared by the printers:
 *
 *   print.c           the graph and the instructions as text; traffic of collectives
 *   print_memory.c    what fills the block at its peak; the map of the block
 *   print_table.c     columns
 *   print_page.c      what a person reads of a plan that is laid out
 *   print_pipeline.c  ... and of the prediction; of a plan on paper; the plan block
 *   print_grid.c      ... of links and of other grids
 *   print_json.c      what tools read
 */
#ifndef PRINT_H
#define PRINT_H

#include "json.h"
#include "predict.h"

/* Collectives and transfers of a stage that differ only in the turn of a repeat, counted
 * together. */
typedef struct {
    const Inst *inst;       // the first of them
    const char *name;       // turn numbers replaced by `*`: "h.*.attn.c_attn: X"
    const char *tensor;     // what is sent, likewise
    const char *reason;     // why it is there, likewise
    double bytes, most;     // received (send: sent) per rank and call, on average over the
                            // group: of the smallest call and of the largest
    double sum;             // of all calls of a step
    int64_t calls;          // per step
    int64_t size;           // ranks of a group
} Traffic;
typedef VEC(Traffic) Traffics;

/* What fills the block: the persistent part, the function that needs the most, and the
 * units and microbatches in flight when they need the most. The rest are gaps. */
typedef struct {
    int64_t bytes[BUF_CLASSES];
    int64_t keys_values;    // of microbatches whose slices share them; in no class above
    int64_t sum;            // of all of these
    InstId at;              // where that function needs the most
    int units, microbatches;        // most of either in flight
} Peak;

/* ---- print.c ---- */
/* One stage's, in order of first use. by_size: calls that differ in size stand apart. */
Traffics    print_traffic(const Plan *p, bool by_size);
double      print_received(const Plan *p, const Inst *i);   // bytes per rank and call
int64_t     print_group(const Plan *p, const Inst *i);      // ranks of a collective
int        *print_counts(const Plan *p);            // calls of each instruction in a step
Axes        print_axes(const Plan *p, Axes a, int rep);     // without axes of size 1
const char *print_turnless(const char *name, int turn);     // "h.3.ln" -> "h.*.ln"
const char *print_value_name(const Plan *p, ValueId v);     // tensor, weight or buffer
int         print_turn(const Plan *p, const Inst *i);
const char *print_range(int from, int to);          // "3" or "3-5"
const char *print_ranges(const bool *of, int n);    // those that are true: "0, 2-4"; "-"
int64_t     print_parameters(const Plan *p);        // elements of the model
int64_t     print_passes(const Plan *p);            // microbatches of a step
int64_t     print_param_bytes(const Plan *p);       // of a stored element
/* Local elements of a parameter on a rank of a stage, its unit (NULL: it has none there), and the
 * block's shape. */
typedef struct { const ParamUnit *unit; int64_t rows, cols, elements; } ParamHome;
ParamHome **print_param_homes(const Plan *p);       // by stage and parameter
const char *print_keep(const Choices *is);          // as in the plan block
const char *print_partition(const Choices *is);     // the family: 1d, 2d, 3d, summa(q)
const char *print_recompute(const Plan *p);
extern const char *const attention_word[3];
extern const char *const precision_word[5];

/* ---- print_memory.c ---- */
Peak        print_peak(const Plan *p);              // of one stage
/* The block of stage r if the pipeline ran its units by another schedule. */
int64_t     print_block_under(const Plan *p, int r, ScheduleKind kind);

/* ---- print_table.c ---- */
typedef struct {
    const char *align;              // a letter per column: l or r
    VEC(const char *) cells;        // row by row, the first is the heading
} Table;
void        table_cell(Table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Rows of stages: neighbours that differ in the first cell alone become one, "0-3". */
void        table_join(Table *t);
/* Columns that say nothing ("-" in every row) are left out. */
void        table_print(const Table *t, FILE *f);

/* ---- print_json.c ---- */
void        print_json_layout(Json *j, const Plan *p);          // "layout": { .. }
void        print_json_predicted(Json *j, const Plan *p);

/* ---- print_grid.c ---- */
void        print_axis_links(const Pipeline *q, FILE *f);   // links under each axis, its share
void        print_grids(const Plan *p, FILE *f);    // the chosen grid beside those with names
extern const char *const mesh_axis_word[MESH_AXES];
void        json_axis(Json *j, const Plan *p, const Mesh *m, int axis);     // of `mesh`
void        json_grids(Json *j, const Plan *p);     // "grids"

/* ---- print_pipeline.c ---- */
void        print_heading(FILE *f, const char *title);
void        print_step(const Pipeline *q, FILE *f); // lines of the glance
void        print_feed(const Pipeline *q, FILE *f);
void        print_parts(const Pipeline *q, FILE *f);
double      print_longest(const Pipeline *q, int r, const Seconds *of);    // pass of a unit
const char *print_stage_turns(const Pipeline *q, int r);
/* The resolved plan, as the block has it: "cube", "[1, 4, 1]". */
typedef struct { const char *key, *value; } PlanKey;
typedef VEC(PlanKey) PlanKeys;
PlanKeys    print_plan_keys(const Plan *p);
void        print_plan_block(const Plan *p, FILE *f);

#endif
