/*
 * predict.h - planning a pipeline on paper: what it costs before it exists.
 *
 *   price.c     seconds of single things (price.h)
 *   shape.c     the model's turns by class, before any mesh
 *   cost.c      seconds of a pass over one turn
 *   stretch.c   a section of the pipeline: its turns by class, passes, bytes
 *   stages.c    which turns each stage gets
 *   schedule.c  the step table: what each stage does, in order
 *   simulate.c  the step tables run as discrete events with cost.c's seconds
 *
 * All need the graph with its backward operators and Plan.is (the passes up
 * to autodiff); none needs the layouts of partition. A stage is a position in the
 * pipeline; with `chunks` v it holds v runs of turns, and chunk c of stage r is
 * section c*P + r. Seconds are of one rank, and all ranks of a stage are alike.
 */
#ifndef PREDICT_H
#define PREDICT_H

#include "price.h"

/* ======================= shape.c =========================================== */

/* A kernel of a turn before any mesh: an operator, or a run of row operators. Widths are in
 * columns of whole tensors. */
typedef struct {
    const Op *op;                   // of a run: the first
    bool run, backward;
    bool from_a;                    // linears: input in layout A; runs: rows that are reduced
    bool again;                     // forward: made again where its turn is computed again
    bool transposed;                // linears: of the forward operator
    bool loss, attended;            // linears: makes logits, in chunks; reads attention's result
    double in, keys, out;           // attention: queries, keys, values; runs: out, all touched
    double rows;                    // embeddings: of the table
    int reduced;                    // runs: reductions of rows that may be split
} Kernel;

typedef struct { ParamKind kind; double rows, columns; bool by_y; } Weight;  // by_y: vectors in B

/* Turns with the same operators and widths are one class. */
typedef struct {
    const char *key, *name;         // name: of its first operator
    struct { Kernel *at; int n, cap; } kernels;         // those of attention come first
    struct { Weight *at; int n, cap; } weights;
    double saved[3];                // columns kept until the backward pass, without K and V;
                                    // by Choices.recompute
    double split;                   // columns kept besides where z splits rows that are reduced
} TurnShape;

typedef struct Shape {
    const Plan *plan;
    bool turns_only;                // embedding, head and loss are not there
    int nturns, *class_of;          // by turn; all repeats, one after another
    int head, tail;                 // classes of what stands before and after them, or NONE
    struct { TurnShape *at; int n, cap; } classes;
    double *cut_width;              // by turn: columns alive after it
    double tied;                    // elements that first and last stage both hold
    const MeshSizes *sizes;
} Shape;

/* needs: autodiff, before partition. Found once, in perm. */
const Shape *shape_of(Plan *p, bool turns_only);

/* ======================= cost.c ============================================ */

/* Wall seconds of one rank; x, y, z, data: collectives that nothing hides. */
typedef struct { double compute, recompute, x, y, z, data; } Seconds;

typedef enum { TERM_PRODUCT, TERM_BYTES, TERM_ATTENTION, TERM_COLLECTIVE } TermKind;
/* When a collective is not needed: an input, matrix or K and V that was kept from the forward
 * pass; ONCE: a matrix that is gathered once for all passes of a step (keep, with stages). */
typedef enum { KEPT_NEVER, KEPT_INPUT, KEPT_WEIGHT, KEPT_KEYS, KEPT_ONCE } Kept;
typedef struct {
    TermKind kind;
    bool backward;
    bool again;                     // forward: made again where its turn is
    int axis;                       // collectives: 0 x, 1 y, 2 z
    double m, n, k;                 // product: sizes; the one that counts tokens is per token
    bool sums_tokens;               // product: tokens are k (gradient of a matrix), else m
    ProductForm form;
    double token_bytes, bytes;      // moved or received, per token and apart from it
    double calls;                   // collectives
    Group group; RingKind ring;
    bool hidden;                    // collectives: runs beside the pass's compute
    bool rooted;                    // collectives: broadcasts, or sums on one member
    Kept kept;
    Attention attention;
} Term;
typedef struct { Term *at; int n, cap; } Terms;

/* A class on a mesh. */
typedef struct {
    const char *key, *name;         // name: of its first operator
    Terms terms; int nattention;    // those of attention come first
    int kernels[3];                 // started in forward, backward; forward again
    double flops[3];                // of products, one token: forward, backward, forward again
    double saved_bytes[3];          // per token: kept from forward to backward, without K and V;
                                    // by Choices.recompute
    double input_bytes[2];          // per token: inputs of linears, gathered; without attention's
    double kv_bytes, dkv_bytes;     // per token: keys and values as attention reads them; their
                                    // gradients
    double kv_local;                // per token: a rank's own keys and values
    double transient_bytes;         // per token: the largest set of rows that one operator of the
                                    // backward pass needs together
    /* elements of a rank's block before it is spread over x: of all matrices and tables, of
     * the largest matrix, of the largest table, of the loss's matrix */
    double blocks, block, table, loss_block;
    double loss_token;              // tail: rows around the loss, bytes per token
    double parameters;              // elements a rank holds
    double units;                   // matrices and such that travel alone
} TurnClass;

/* Seconds of a pass over a class or a section, each way, nothing made again; and what making
 * again adds to the backward pass, by Choices.recompute. */
typedef struct { Seconds forward, backward; double again[3]; } PassCost;

typedef struct Cost {
    const Plan *plan; const Shape *shape;
    Choices is;                     // of the plan, when this was made
    bool keep_inputs, keep_weights; // what the passes to be priced find still gathered
    bool is_piped;                  // stages, chunks or slices: functions for each
    Prices prices; Mesh mesh;
    int nturns; const int *class_of;        // as in the shape
    int head, tail;
    struct { TurnClass *at; int n, cap; } classes;
    const double *cut_width;
    double tied;                    // elements of a rank that first and last stage both hold
    double logits_bytes;            // of a token of the logits chunk
    int element, gradient;          // bytes: stored number, reduced gradient
    Group groups[64]; bool grouped[64];     // by axes
} Cost;

Cost   *cost_new(Plan *p, bool turns_only);
/* The same with other choices; c is empty or was filled before (its memory is used again). */
void    cost_fill(Cost *c, const Plan *p, const Shape *s, const Choices *is);
/* One pass of b sequences, l tokens each after c, over a class; what depends on c alone. */
PassCost    cost_pass(const Cost *c, int class, double b, double l);
PassCost    cost_context(const Cost *c, int class, double b, double l, double context);
/* Gathering matrices before the first pass, where they are kept gathered; else 0. */
double      cost_once(const Cost *c, int class);
/* One term of it; attention: all of it, not what context adds. */
double      cost_term(const Cost *c, const Term *u, double b, double l, double context);
/* Of a stage's parameters, in so many units: gradients over data behind the last pass (zero 0 and
 * 1), of whose seconds of compute `under` hide them on GPUs; what a pass does over data and its
 * compute does not hide (zero 2 and 3), forward and backward; the optimizer, and parameters over
 * data behind it. */
double  cost_sync(const Cost *c, int stage, double parameters, double under);
void    cost_data(const Cost *c, double parameters, double units, const double *compute,
                  double *data);
double  cost_update(const Cost *c, double parameters, double units, double *gather_s);

/* ======================= stages.c ========================================== */

/* Turns of every section (stage and chunk), chunk-major as in `turns`: section c*P + r.
 * weight[i]: seconds of turn i; first and last carry head and tail. Minimises the
 * dearest section, then the sum of squares; earlier sections get more. */
void stages_cut(int nturns, const double *weight, double head, double tail, int sections,
                int *turns);
/* The same of turns that cost the same, in O(turns). */
void stages_even(int nturns, double weight, double head, double tail, int sections, int *turns);

/* ======================= stretch.c ========================================= */

/* Turns of a section by class, and what else it carries. */
typedef struct {
    int first, turns;               // turns first .. first + turns - 1
    int nclasses, *class, *count;   // head and tail among them
    int *again;                     // of the count: turns that are computed again
    double saved, kv, dkv;          // bytes of a token, per rank
    double parameters, units;       // elements per rank, in so many units
    int kernels[2];                 // started in a pass, forward and backward
} Stretch;

typedef struct {
    double parameters, gradients, optimizer, activations, keys_values, logits, workspace, peak;
} StageMemory;

Stretch *stretch_new(const Cost *c, int n, const int *turns);   // of every section
/* Turns of n sections, by the seconds of their classes. */
void     stretch_cut(const Cost *c, int n, int *turns);
double   stretch_weight(const Cost *c, int class);      // those seconds; 0 for NONE
Seconds  seconds_sum(Seconds a, Seconds b, double times);       // a + times * b
double   seconds_total(const Seconds *s);
/* A pass of b sequences of l tokens after c. It is put together by stretch_after from what it
 * takes without context, and what attention adds for that; which is the same for stretches that
 * have the same turns with attention. */
PassCost stretch_pass(const Cost *c, const Stretch *s, double b, double l, double context);
PassCost stretch_base(const Cost *c, const Stretch *s, double b, double l);
PassCost stretch_context(const Cost *c, const Stretch *s, double b, double l, double context);
PassCost stretch_after(const Cost *c, const Stretch *s, PassCost base, const PassCost *more);
bool     stretch_same_context(const Cost *c, const Stretch *s, const Stretch *t);
/* Bytes of a token at the end of a section, of all ranks of a stage. */
int64_t  stretch_cut_bytes(const Cost *c, const Stretch *s);
/* Seconds to send so many tokens over the end of section i of n, or back over it. */
double   stretch_transfer(const Cost *c, const Stretch *all, int n, int i, bool forward,
                          double tokens);
StageMemory stretch_memory(const Cost *c, double parameters, bool last);    // the static part

/* ======================= schedule.c ======================================== */

typedef enum { SCHEDULE_GPIPE, SCHEDULE_1F1B } ScheduleKind;
extern const char *const schedule_word[2];

typedef struct {
    ScheduleKind kind;
    int P, v, m, k;             // stages, chunks of one, microbatches, slices
    int64_t b, sequence;        // sequences of a microbatch
    int64_t *slice;             // k lengths in tokens, adding up to the sequence
    int64_t *cut_bytes;         // P*v - 1: bytes of a token where section i ends
    Steps *stage;               // P tables, filled by schedule_build; NULL, or some to write over
} Schedule;

/* Microbatches come in whole groups of this many where there are chunks (else 1). */
int schedule_group(const Schedule *s);
/* Tables of more units (m * k passes over each of v * P sections) are refused. TUNING: 2 GB of
 * them, four times the longest that a layout of a published run has. */
enum { SCHEDULE_UNITS = 1 << 22 };
bool schedule_fits(const Schedule *s);
/* Fills s->stage from everything above it. */
void schedule_build(Schedule *s);
void schedule_reserve(Schedule *s, int P, int units);   // room for all that will be built

/* Numbers of the schedule, by formula (design.md 3); units are (microbatch, slice, chunk). */
int schedule_warmup(const Schedule *s, int r);      // forwards before the first backward
int schedule_units(const Schedule *s, int r);       // most units whose backward is to come
int schedule_kv(const Schedule *s, int r);          // most microbatches begun, over all chunks

/*
 * Static checks of a table, each printed to `f` (may be NULL): every unit once
 * forward and once backward; slices add up and go backward last first; transfers
 * match in order, number and size; each unit's input was received and its result
 * sent; and with transfers that block both sides nobody waits for ever. Returns
 * the number of checks that failed.
 */
int schedule_check(const Schedule *s, FILE *f);
const char *step_text(const Step *s);               // "forward 3.1" (".2" with chunks)

/* ======================= simulate.c ======================================== */

/* Seconds and bytes of every step; [section][slice] arrays are section-major. */
typedef struct {
    const Schedule *schedule;
    const Seconds *forward, *backward;      // of section c*P + r, slice i
    const double *send_forward, *send_backward;     // where section ends; where it begins
    const double *begin;                    // per stage: gathers before the first pass (x)
    const double *sync, *update, *gather;   // per stage; gather: parameters over data
    double tied;                            // sum of matrices that first and last stage share
    bool blocking;                          // a send holds up the stage that sends
    bool barrier;                           // the update waits for all stages (clip)
    const double *unit_bytes;               // per section: of a token of a unit in flight
    const double *kv_bytes;                 // per section: K and V of a microbatch
    /* Stages at work share the cores evenly, each wanting one for each of its threads; their
     * seconds are those on cores of their own. cores 0: no limit. */
    int cores, threads;
} Timing;

typedef enum { SPAN_COMPUTE, SPAN_SEND, SPAN_SEND_BACK } Stream;
typedef struct { int stage; Stream stream; double start, end; Step step; } Span;
typedef enum {
    PART_COMPUTE, PART_RECOMPUTE, PART_X, PART_Y, PART_Z, PART_PIPELINE, PART_BUBBLE, PART_DATA,
    PART_OPTIMIZER, PARTS
} TimePart;
extern const char *const part_word[PARTS];

typedef struct {
    double step_s, part[PARTS];     // of the stage that finishes last; adds up
    int last;                       // that stage
    double bubble;                  // idle share of all stages together
    double *busy;                   // per stage: seconds at work
    double *activations, *kv;       // per stage: bytes at their peaks
    struct { Span *at; int n, cap; } spans;     // by stage, in time order per stream
} Simulation;

Simulation simulate_run(const Timing *t, bool keep_spans);
/* Chrome trace of the spans: a process per stage, a thread per stream. false: errno. */
bool simulate_trace(const Simulation *sim, const Schedule *s, const char *path);

/* ======================= estimate.c ======================================== */

/* One layout in closed form; estimate.h has the rest. */
typedef struct Estimate {
    double step_s, part[PARTS];     // parts add up to step_s: of the stage that finishes last
    int last;                       // that stage
    StageMemory memory; int worst;  // of the stage that has most
    double room_bytes;              // of a rank
    int keep;                       // what was taken, KEEP_BOTH .. (estimate.h)
    double mfu, hfu, tokens_per_s;
} Estimate;

/* ======================= pipeline.c ======================================== */

/* One way to feed the pipeline: b, slices, their price and their run. */
typedef struct {
    int64_t b, m; int k; int64_t *slice;
    double formula_s;               // the slice programme's objective
    double step_s;                  // simulated
} Feed;

typedef struct Pipeline {
    Plan *plan; Cost *cost;
    bool turns_only, blocking, on_paper;
    bool loose;                     // nothing fits by the estimate: memory is not looked at
    bool too_long;                  // a feed was left out: see schedule_fits
    int P, v;
    Stretch *section;              // P*v, in the order of the model
    Feed feed;                      // the chosen one
    struct { Feed *at; int n, cap; } feeds;     // all that were simulated, best first
    struct { double cap_lo, cap_hi, bound; int64_t tried, steps; double seconds; } search;
    Schedule schedule; Timing timing; Simulation sim;
    StageMemory *memory;            // per stage
    double tokens, model_flop;      // of a step
    /* The closed form of what was chosen, which `plan` and `tune` print; of the simulation
     * where there is none (sends that block). */
    Estimate *closed;
    struct Estimator *estimator;
} Pipeline;

/* needs: graph, mesh, fuse, autodiff. Chooses what the plan leaves open (turns, microbatch,
 * slices), builds the schedule and simulates it. on_paper: nothing is laid out afterwards, so
 * slices keep to the memory as estimated, and the simulation keeps its spans. NULL: errors
 * were reported. */
Pipeline *pipeline_plan(Plan *p, bool turns_only, bool blocking, bool on_paper);
/* The same plan, turns and feed, priced again: the config has other rates by now. */
Pipeline *pipeline_again(const Pipeline *old);
/* The prediction again, by what partition keeps from the forward pass. */
void pipeline_settle(Plan *p);
/* Seconds of a pass of section i over b sequences of l tokens after c. */
PassCost pipeline_pass(const Pipeline *q, int section, double b, double l, double c);
void print_pipeline(const Pipeline *q, FILE *f);            // print_pipeline.c
void print_slices(const Pipeline *q, FILE *f);              // --explain slice
void print_schedule(const Pipeline *q, FILE *f);            // --explain schedule

#endif
