/*
 * rt.h - the border between a compiled plan and the runtime: the only header
 * that generated code and the emitters share with it.
 *
 * A program (RtProgram) is what all ranks of one pipeline stage run (SPMD): a step
 * list, the passes that run parts of it in order, tables of parameters, row orders
 * and columns, and a list of kernels (machine code made by emit_llvm.c; one list
 * for all stages). All tables are plain data without pointers: names and source
 * lines are offsets into `text`, so a program can be written into an object
 * file as bytes and used as it lies there. `teracube run` hands the same
 * tables over in memory.
 *
 * Ranks are threads (comm_threads) by default; a rank may have several worker
 * threads that walk the same steps, each on its share of the rows, and meet at
 * a barrier after every step.
 *
 * Element type "real": float or double, by RtProgram.real_bytes.
 */
#ifndef RT_H
#define RT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define RT_VERSION 5

/* ---- mesh ------------------------------------------------------------------
 * Rank numbers: z fastest, then y, x, data, stage. y = yk * yr: coordinate y = yk_i *
 * rep + yr_i, where rep is given with the axes. Members of a group stand in
 * the order stage, data, x, yk, yr, z (z fastest). RT_STAGE: the ranks of the stages
 * in the step's bit set `stages` that have this rank's other coordinates.
 */
enum { RT_DATA = 1, RT_X = 2, RT_YK = 4, RT_YR = 8, RT_Z = 16, RT_STAGE = 32 };

/* How a number is stored: "real" (float or double, by real_bytes), or 16 bits that are
 * read as float and rounded to nearest even when stored. */
enum { RT_REAL, RT_BF16_STORED };

typedef enum {
    RT_GEMM,            // C (+)= op(A) op(B)
    RT_KERNEL,          // a generated kernel over `items`
    RT_ALL_GATHER,      // src [n] of each member, in group order -> dst [p*n]
    RT_REDUCE_SCATTER,  // src [p*n], summed over members, part i -> dst [n] of member i
    RT_ALL_REDUCE,      // dst [n] summed over members, in place
    RT_BROADCAST,       // src [n] of member `peer` -> dst [n] of each
    RT_REDUCE,          // src [n], summed over members -> dst [n] of member `peer`
    RT_ALL_TO_ALL,      // boxes: see `a2a`
    RT_MERGE,           // statistics of split reductions
    RT_CE_MERGE,        // (max, sum, target) of each member's columns -> whole ones
    RT_COLSUM,          // dst [n] (+)= sum over workers of src [workers][n]
    RT_COPY,            // dst (+)= src, rows x cols
    RT_ZERO,
    RT_COUNT,           // targets that count in this step, over data
    RT_NORM,            // squares of the owned gradient elements -> scalars
    RT_TOTALS,          // all-reduce of {loss, squares} over all ranks; the clip factor
    RT_UPDATE,          // optimizer kernel on the owned range
    RT_SEND,            // a [rows, cols] to the same place of stage `peer`
    RT_RECV,            // c [rows, cols] from the same place of stage `peer`
    RT_STEP_KINDS
} RtStepKind;

/* What an RT_ALL_TO_ALL exchanges. Rows in global order, columns by `columns`. */
enum { RT_A2A_AB, RT_A2A_BA, RT_A2A_HEADS, RT_A2A_TOKENS };

/* What RtCall.ids holds for the rows of a kernel step. */
enum { RT_IDS_NONE, RT_IDS_TOKENS, RT_IDS_POSITIONS, RT_IDS_TARGETS };

enum { RT_MAX_ARGS = 64 };

/*
 * Where a buffer of the block is. What lives from one pass to another exists once for
 * every unit (microbatch, slice, chunk) or microbatch in flight: its offset counts from
 * a place that the pass gives (RtPass.region).
 */
enum {
    RT_FIXED,           // in the block itself
    RT_UNIT,            // of a unit, from its forward side to its backward side
    RT_UNIT_FORTH,      // of a unit, forward side only (receive, forward, send)
    RT_UNIT_BACK,       // of a unit, backward side only
    RT_MICRO,           // of a microbatch and chunk: keys and values of all slices
    RT_MICRO_BACK,      // of the same, backward side only: their gradients
    RT_REGIONS
};

/* One matrix in the rank's block: element (r, c) at byte
 * region + offset + (r*ld + c)*size, size by `stored`. */
typedef struct { int64_t offset, ld; int32_t region, stored; } RtRef;

/*
 * Which reference a step that is no kernel reads (a) and writes (c):
 *
 *   GEMM                        a, b -> c
 *   ALL_GATHER, REDUCE_SCATTER  a -> c. Where a and c have the same offset it is
 *                               in place: gather reads, reduce-scatter writes the
 *                               member's own part, offset + (its index)*count*size
 *   ALL_REDUCE                  c, in place
 *   BROADCAST                   a of member `peer` -> c of all; a and c do not overlap
 *   REDUCE                      a -> c of member `peer`; the others' c stays as it is
 *   ALL_TO_ALL                  a -> c, leading dimensions of both count
 *   MERGE                       a [p][rows][slots] -> arguments 0 .. nstats, [rows] each;
 *                               p = size of the group of `axes`
 *   CE_MERGE                    a [p][rows][3] -> c [rows][3]; p as MERGE
 *   COLSUM                      a [workers][count] -> c [count]
 *   COPY                        a -> c, rows x cols
 *   ZERO                        c [count]; with accumulate(_later) it does nothing
 *   SEND                        a, rows x cols, contiguous
 *   RECV                        c, rows x cols, contiguous
 *
 * REDUCE_SCATTER, REDUCE, COLSUM, COPY and GEMM obey `accumulate`. Sums are made in float or
 * double whatever the numbers are stored as.
 */

typedef struct {
    int32_t kind, phase;            // phase: 0 forward 1 backward 2 sync 3 optimizer
    int32_t name, source, reason;   // text offsets: "h.0.attn.c_attn: X W", "gpt2.tcube:12:19"
    int32_t kernel;                 // index of the kernel, -1
    int32_t accumulate;             // += (GEMM, COPY, COLSUM); see also `accumulate_later`
    int32_t accumulate_later;       // overwrite where RtPass.again is 0, else +=
    /* GEMM, row-major */
    int32_t trans_a, trans_b;
    int64_t m, n, k;
    RtRef a, b, c;
    /* collectives: n elements (of real) per member's part; COPY: n = cols */
    int32_t axes, rep, a2a;
    int32_t slice;                  // A2A: whose rows (see RtRowMap)
    int32_t peer;                   // SEND, RECV: the other stage; BROADCAST, REDUCE: the
                                    // member, in group order, that has or gets it; else -1
    uint64_t stages;                // axes & RT_STAGE: bit r: stage r is in the group
    int64_t rows, count;            // rows of the local src (A2A, COPY, MERGE);
                                    // elements (collectives, ZERO)
    int64_t cols;                   // columns of the local src (A2A HEADS and TOKENS, COPY)
    int32_t columns_src, columns_dst;   // A2A: column tables of both sides (index, or -1)
    int32_t nstats; uint8_t stat[RT_MAX_ARGS];    // MERGE: 0 sum 1 max 2 var (mean, M2) 3 min
    int64_t stat_n;                 // MERGE: elements behind each member's (mean, M2)
    /* kernels */
    int64_t items;                  // rows, or (sequence, head) pairs...: split among workers
    int64_t grain;                  // workers get multiples of it
    int32_t first_arg, nargs;       // real data: RtRef of the args table; passed as pointers in
                                    // this order
    int32_t first_salt;             // of its dropouts: RtCall.salt
    int32_t rowmap;                 // tables passed to kernels: see RtKernel
    int32_t rowmap_k;               // attention: row order of K and V
    int32_t colmap;                 // index of RtColumns, -1
    int32_t ids;                    // RT_IDS_*: RtCall.ids, by rowmap
    int32_t first_out, nouts;       // what it writes: RtOut of the outs table
    int32_t unit;                   // ids TOKENS, POSITIONS: the table (RtCall.base = its first
                                    // row here); TARGETS: base = first column of colmap
    int64_t items_per_run;          // > 0: items = (runs of rowmap) * this (attention forward:
                                    // heads); `items` is then unused
    double  flops;                  // of one rank, for --profile and the log
} RtStep;

/* Numbers that a step writes, where a fault is looked for: fault.c. */
typedef struct { RtRef at; int64_t rows, cols; int32_t name, pad; } RtOut;

/*
 * Row order of a local matrix: which tokens its rows are (plan.h RowMap). A slice of
 * a microbatch of b sequences has b * length rows in one global order, cut over
 * `axes`; the rank's rows of slices first .. first + nslices - 1 stand one slice after
 * another (keys and values: 0 .. i). chunk > 0: only part chunk_i of one slice's x share.
 */
typedef struct { int32_t axes, first, nslices, pad; int64_t chunk, chunk_i, count; } RtRowMap;

/*
 * What a rank does in a training step, in order: each pass runs steps [first, last) on
 * one unit. BEGIN stands once at the front, SYNC and OPTIMIZER once at the end. Passes of
 * one unit run its steps with that unit's regions.
 *
 * Validation runs the BEGIN, RECV_ACTIVATION, FORWARD and SEND_ACTIVATION passes alone.
 */
typedef enum {
    RT_PASS_FORWARD, RT_PASS_BACKWARD, RT_PASS_SEND_ACTIVATION, RT_PASS_RECV_ACTIVATION,
    RT_PASS_SEND_GRADIENT, RT_PASS_RECV_GRADIENT, RT_PASS_SYNC, RT_PASS_OPTIMIZER, RT_PASS_BEGIN
} RtPassKind;
typedef struct {
    int32_t kind, first, last;
    int32_t microbatch, slice, chunk;
    int32_t again;                  // an earlier pass of this training step ran these steps
    int32_t func;                   // passes of the same steps have the same number
    int32_t after;                  // devices: the pass on the other side (transfers, the rest)
                                    // that must be done before, or -1; see streams.c
    int32_t awaited;                // a later pass names this one in `after`
    int64_t region[RT_REGIONS];     // bytes from the block's start; [RT_FIXED] is 0
} RtPass;

/* Columns a rank holds: nseg segments from `first` in the segments table, each
 * cut evenly over `axis` (0: whole). local width = sum of the pieces. */
typedef struct { int64_t start, width; int32_t rep, pad; } RtSegment;
typedef struct { int32_t first, nseg, axis, pad; } RtColumns;

/*
 * Parameters in files and on ranks. Unit u: a block [brows, bcols] flattened,
 * cut over `spread`; rank shards stand at `offset` of the flat region. Piece:
 * local columns [local_start, ..) of the block are columns `cols` of a parameter.
 *
 * zero = 1: replica d owns flat elements [d, d+1) * flat_pad/data. zero >= 2: shard and
 * offset are multiples of `data`, and replica d owns part d of every unit's shard,
 * [offset + d*shard/data, + shard/data). What is kept of owned parts alone (moments;
 * gradients; with zero 3 parameters) has that part at element offset/data.
 */
typedef struct {
    int32_t name;                   // full name
    int32_t kind;                   // 0 matrix 1 table 2 vector
    int32_t out_in;                 // stored transposed in files
    int32_t decay;
    int32_t init; int32_t pad;      // 0 normal 1 uniform 2 constant
    double  init_a;
    int64_t rows, width;            // logical
} RtParam;
typedef struct {
    int32_t name, source;
    int32_t rows;                   // RtColumns index: global rows of the block, by row_axis
    int32_t col_axis;
    int32_t first_piece, npieces;
    int32_t spread, rep, repl, pad;
    int64_t brows, bcols, shard, offset;
    int64_t limit_rows, limit_cols; // logical size: rows/columns beyond are padding
    int32_t counts, pad2;           // 0: an earlier stage holds it too, saves it and counts
                                    // it in the norm
} RtUnit;
typedef struct { int32_t param, rep; int64_t start, width, local_start; } RtPiece;

/* How each kernel of the table is called (emit_llvm.c makes them):
 *
 *     void kernel(const RtCall *call, int64_t lo, int64_t hi);
 *
 * works on items [lo, hi) of its step. */
typedef struct RtCall {
    void *arg[RT_MAX_ARGS];         // pointers into the block
    const int32_t *row_seq;         // per local row: sequence inside the replica's pass
    const int32_t *row_pos;         //   position in that sequence
    const int64_t *row_token;       //   global token: (sequence of the step)*sequence + position
    const int32_t *ids;             // per local row: token (EMBED) or target (CE)
    const int32_t *colmap;          // per local column: global column
    const int32_t *runs_q, *runs_k; // attention: see RtRun; nruns_*
    int64_t nruns_q, nruns_k;
    int32_t *flags;                 // scratch of the step, per worker
    int64_t worker, nworkers;
    uint64_t seed; uint32_t step;
    uint32_t evaluate;              // 1: validation: nothing is dropped out
    const uint32_t *salt;           // one of each dropout (rt_dropout_word)
    int64_t base;                   // first global row of a table's block (EMBED), column (CE)
    int64_t limit;                  // CE: number of logical columns (vocabulary)
    int32_t ignore, pad2;           // CE: the target that does not count
    double  scale;                  // CE: 1 / number of targets that count; UPDATE: clip factor
    double *total;                  // CE: loss; NORM: squares; one slot per worker, [worker*8]
    double  lr, beta1, beta2, eps, decay, correct1, correct2, momentum;     // UPDATE
} RtCall;
typedef void (*RtKernelFn)(const RtCall *call, int64_t lo, int64_t hi);

/* A run: local rows [row, row+n) are positions pos.. of one sequence, in order.
 * Stored as four int32 each, sorted by (seq, pos). */
typedef struct { int32_t row, n, seq, pos; } RtRun;

typedef struct {
    uint32_t version, header_bytes, step_bytes, real_bytes;
    int32_t stage, nstages;
    int32_t data, x, y, z, zero, workers;
    int32_t balanced, microbatches;
    int64_t batch, sequence, T;     // T: tokens of one microbatch of one replica
    int64_t vocab;                  // logits' width; every token must be below it
    int64_t token_limit;            // rows of the smallest token table
    int64_t block_bytes;            // the planned peak of one rank
    /* bytes in the block. m and v hold flat elements, with zero >= 1 only what the replica
     * owns. -1: none (sgd has no v). master: float parameters, m's layout, beside stored ones of
     * 16 bits (params_stored = RT_BF16_STORED); else -1. */
    int64_t params_offset, grads_offset, m_offset, v_offset, master_offset;
    int32_t params_stored;
    int32_t node;                   // ranks that the plan puts on one machine; 0: it does not say
    int32_t place[5];               // number of a rank's place on the cluster: the sum of its
                                    // coordinates stage, data, x, y, z times these
    int32_t ports;                  // of a node to the network
    int64_t flat, flat_pad;         // elements of the flat region; padded for data
    int32_t nsteps, nparams, nunits, npieces, nsegments, ncolumns, nrowmaps, nkernels;
    int32_t npasses, nslices, nouts, nargs, nsalts;
    int32_t text_bytes;
    int32_t optimizer;              // 0 adamw 1 sgd
    int32_t model_name, plan_line;  // text: "gpt2"; "data 1, [2,2,2]"
    uint64_t model_hash, plan_hash;
    int32_t ignore;                 // CE ignore value
    int32_t objective;              // 0 next 1 masked
    double  mask_p; int32_t mask_token;
    int32_t update_kernel, norm_kernel;
    /* what a run may change with --set train.KEY: defaults from the model file */
    struct {
        int32_t data, data_dir, format, order;      // text offsets, -1: none
        int64_t steps, warmup, decay_steps;
        double  lr, beta1, beta2, eps, weight_decay, momentum, lr_min, clip;
        int32_t schedule;           // 0 constant 1 cosine 2 linear 3 wsd
        int32_t weights, log;
        int32_t checkpoint_dir, validate_data;
        int64_t checkpoint_every, validate_every, validate_batches;     // every: 0: never
        uint64_t seed;
    } train;
} RtHeader;

typedef struct {
    const RtHeader *head;
    const RtStep *steps;
    const RtParam *params;
    const RtUnit *units;
    const RtPiece *pieces;
    const RtSegment *segments;
    const RtColumns *columns;
    const RtRowMap *rowmaps;
    const RtPass *passes;
    const int64_t *slices;          // tokens of each, adding up to the sequence
    const RtOut *outs;
    const RtRef *args;              // of the steps, one after another
    const uint32_t *salts;          // the same
    const char *text;
    const RtKernelFn *kernels;
} RtProgram;

/*
 * A program as one file: each kind of table of all stages, one after another, in the
 * order of RtProgram (head first, then steps .. text), its bytes as uint64 before it,
 * padded to 8. rt_program_read gives an array of programs (free it), NULL: damaged.
 */
enum { RT_TABLES = 14 };
RtProgram *rt_program_read(const void *at, size_t bytes, int *nstages);

/* ---- devices ----------------------------------------------------------------
 *
 * Steps that run elsewhere than on this computer: a program made for GPUs hands over a
 * table of functions. The runtime keeps a copy of the block's persistent part (parameters,
 * gradients, moments) on the host, for first weights and files, and moves it by write
 * and read. One context for each rank; its functions, but close, are called on the rank's
 * own thread and return NULL, or a message (the context's own, valid until the next call).
 */
struct RtOptions;
typedef struct { int32_t axes, rep; uint64_t stages; } RtGroupKey;
typedef struct { int n, me; const int *rank; } RtDeviceGroup;           // n 0: not a member
typedef struct {                    // a row order on the rank, as in RtCall
    int64_t count, nruns;
    const int32_t *seq, *pos, *tokens, *targets;    // the last two: NULL where nobody asks
    const int64_t *token;
    const RtRun *runs;
} RtDeviceRows;
typedef struct { int64_t n; const int32_t *global; } RtDeviceColumns;

/* An all-to-all copies boxes: `rows` rows that member `peer` of the group gives or takes, in
 * each the same runs of columns; src: where the giver has them, dst: the taker. In elements. */
typedef struct { int64_t src, dst, n; } RtColRun;
typedef struct { int peer, run, nruns; int64_t src_row, dst_row, rows; } RtBox;
/* At most one box a member, in the order of the group. */
typedef struct {
    const RtBox *give, *take; int ngive, ntake;
    const RtColRun *give_run, *take_run;
} RtDeviceBoxes;

/* n elements in a row, at byte offsets of the block; -1: there is no such thing. */
typedef struct { int64_t n, params, master, grads, m, v; int32_t decay, pad; } RtDeviceRange;

typedef struct {
    const RtProgram *program;       // of the rank's stage
    int rank, nranks;
    const RtDeviceRows *rows;       // by row map; the arrays stay, their contents change
    const RtDeviceColumns *columns;
    const RtDeviceGroup *groups;    // by RtDevice.groups
    const RtDeviceBoxes *const *boxes;      // by step; NULL: no RT_ALL_TO_ALL
    /* what the optimizer does here, and which gradient elements count in the norm */
    const RtDeviceRange *updates, *norms;
    int nupdates, nnorms;
    int device;                     // the GPU it takes
    const char *meeting;            // [RT_MEETING], made by RtDevice.meeting for all ranks
    bool timed;                     // spans will be asked for
} RtDeviceRank;

enum { RT_MEETING = 128, RT_DEVICE_NAME = 64 };

/* A GPU: what no other one of the machine is called, its kind, its memory. */
typedef struct { char id[RT_DEVICE_NAME], kind[RT_DEVICE_NAME]; size_t bytes; } RtDeviceFacts;

/* What a pass needs to know of the training step. */
typedef struct {
    int64_t step, count;            // from 0; targets that count
    double lr, clip;
    uint32_t evaluate;
    /* Not NULL: a broken step is taken again (fault.c); to be called on the rank's thread behind
     * each step of the plan, which may ask `find` for what that has written. */
    void (*look)(void *of, int istep);
    void *of;
} RtDeviceNow;

typedef struct {
    const RtGroupKey *groups; int ngroups;
    int64_t beside;             // bytes of a device that libraries and sums need beside the block
    /* Before there are ranks, on the main thread; messages are static. How many GPUs this
     * process sees; what one is; what ranks need to find each other, made by rank 0's process
     * for all. */
    const char *(*count)(int *n);
    const char *(*look)(int device, RtDeviceFacts *facts);
    const char *(*meeting)(char meeting[RT_MEETING]);
    const char *(*open)(const RtDeviceRank *rank, void **ctx);
    void        (*close)(void *ctx);
    const char *(*write)(void *ctx, int64_t offset, const void *src, size_t bytes);
    const char *(*read)(void *ctx, int64_t offset, void *dst, size_t bytes);
    const char *(*rows)(void *ctx, int map);        // token, tokens, targets have changed
    const char *(*pass)(void *ctx, int ipass, const RtDeviceNow *now);
    /* The first number of a matrix in the block that is not finite, as row * cols + col, or -1.
     * Waits for the steps before, but for messages on their way. Within `look`. */
    const char *(*find)(void *ctx, int64_t offset, int64_t ld, int64_t rows, int64_t cols,
                        int stored, int64_t *first);
    /* loss and squares of this rank since the step began, after its passes */
    const char *(*sums)(void *ctx, double *loss, double *squares);
    /* The collective or transfer at which the device is: the n-th of pass *ipass, counted
     * from 0. false: it waits in none. *done counts those that have ended. Any thread may ask. */
    bool (*where)(void *ctx, int *ipass, int *nth, uint64_t *done);
    /* When each pass of the step began and ended, in seconds of CLOCK_MONOTONIC; waits for
     * them. Where the rank is `timed`. */
    const char *(*spans)(void *ctx, double *begin, double *end);
    /* Measures the devices and their links for a profile (compiler/profile.h) instead of
     * training; the exit status. */
    int (*profile)(const RtHeader *head, const struct RtOptions *options);
} RtDevice;

/* ---- entry points --------------------------------------------------------- */

typedef struct Rt Rt;       // one run: all ranks of this process

typedef struct RtOptions {
    const char *load, *save, *log, *trace;      // NULL: none
    const char *resume;                         // folder of checkpoints, or one of them
    int64_t steps;                              // the run ends after it; -1: the schedule's
    int     quiet;
    const char *const *sets; int nsets;         // "train.lr=1e-3"; others refused
    const char *exe;                            // name shown in messages
    int     may_be_launched;                    // under mpirun this process is one rank
    int     goes_on;                            // and will run another program after this one
    const char *root, *rank, *world;            // --root HOST:PORT --rank N --world N, or NULL
    const char *profile;                        // file of --profile, for RtDevice.profile
    /* tests and verify: called after each step on rank 0's thread while all
     * ranks wait; `grads`/`params` are readable through rt_read_param. */
    void (*after_step)(void *ctx, Rt *rt, int64_t step, double loss, double norm);
    void *ctx;
    const RtDevice *device;                     // NULL: this computer runs the steps
    const int32_t *fixed_tokens;                // verify: tokens instead of a data file
    int64_t fixed_ntokens;
} RtOptions;

#ifdef __cplusplus
extern "C" {
#endif

/* First thing in main: files that are opened later never take the places of closed
 * standard ones, and a file that grows too large is an error, not a signal. */
void rt_guard_files(void);

/* Trains. `program`: one per stage, head->nstages of them. Returns the exit status
 * (0, 1, 3 or 4); messages go to stderr, step lines to stdout. Owns nothing of
 * `program` afterwards. */
int rt_run(const RtProgram *program, const RtOptions *options);

/* main() of a built executable: --steps --load --save --resume --log --trace --set; where a
 * device runs the steps also --root --rank --world --profile. */
int rt_main(const RtProgram *program, int argc, char **argv);

/* Learning rate of step s (from 0) by the schedule in `head`. */
double rt_learning_rate(const RtHeader *head, int64_t s);

/* Whole parameter (what = 0), gradient (1) `iparam` as doubles in logical
 * [rows, width] order, assembled from all ranks; dst holds rows*width. */
void rt_read_param(Rt *rt, int what, int iparam, double *dst);
/* Bytes allocated as blocks by all ranks; resident bookkeeping for tests. */
int64_t rt_block_bytes(Rt *rt);

/* main() of a program whose steps run on a device: `tables` as rt_program_read takes them. */
int rt_device_main(const void *tables, size_t bytes, const RtDevice *device, int argc,
                   char **argv);

#ifdef __cplusplus
}
#endif

#endif
