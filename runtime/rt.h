/*
 * rt.h - the border between a compiled plan and the runtime: the only header
 * that generated code and the emitters share with it.
 *
 * A program (RtProgram) is one step list that every rank runs (SPMD), tables of
 * parameters, row orders and columns, and a list of kernels (machine code made
 * by emit_llvm.c). All tables are plain data without pointers: names and source
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

#define RT_VERSION 1

/* ---- mesh ------------------------------------------------------------------
 * Rank numbers: z fastest, then y, x, data. y = yk * yr: coordinate y = yk_i *
 * rep + yr_i, where rep is given with the axes. Members of a group stand in
 * the order data, x, yk, yr, z (z fastest).
 */
enum { RT_DATA = 1, RT_X = 2, RT_YK = 4, RT_YR = 8, RT_Z = 16 };

typedef enum {
    RT_GEMM,            // C (+)= op(A) op(B)
    RT_KERNEL,          // a generated kernel over `items`
    RT_ALL_GATHER,      // src [n] of each member, in group order -> dst [p*n]
    RT_REDUCE_SCATTER,  // src [p*n], summed over members, part i -> dst [n] of member i
    RT_ALL_REDUCE,      // dst [n] summed over members, in place
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
    RT_STEP_KINDS
} RtStepKind;

/* What an RT_ALL_TO_ALL exchanges. Rows in global order, columns by `columns`. */
enum { RT_A2A_AB, RT_A2A_BA, RT_A2A_HEADS, RT_A2A_TOKENS };

/* What RtCall.ids holds for the rows of a kernel step. */
enum { RT_IDS_NONE, RT_IDS_TOKENS, RT_IDS_POSITIONS, RT_IDS_TARGETS };

enum { RT_MAX_ARGS = 64 };

/* One matrix in the rank's block: element (r, c) at byte offset + (r*ld + c)*size. */
typedef struct { int64_t offset, ld; } RtRef;

/*
 * Which reference a step that is no kernel reads (a) and writes (c):
 *
 *   GEMM                        a, b -> c
 *   ALL_GATHER, REDUCE_SCATTER  a -> c. Where a and c have the same offset it is
 *                               in place: gather reads, reduce-scatter writes the
 *                               member's own part, offset + (its index)*count*size
 *   ALL_REDUCE                  c, in place
 *   ALL_TO_ALL                  a -> c, leading dimensions of both count
 *   MERGE                       a [p][rows][slots] -> arg[0 .. nstats), [rows] each;
 *                               p = size of the group of `axes`
 *   CE_MERGE                    a [p][rows][3] -> c [rows][3]; p as MERGE
 *   COLSUM                      a [workers][count] -> c [count]
 *   COPY                        a -> c, rows x cols
 *   ZERO                        c [count]; with accumulate(_later) it does nothing
 *
 * REDUCE_SCATTER, COLSUM, COPY and GEMM obey `accumulate`.
 */

typedef struct {
    int32_t kind, phase;            // phase: 0 forward 1 backward 2 sync 3 optimizer
    int32_t name, source, reason;   // text offsets: "h.0.attn.c_attn: X W", "gpt2.tcube:12:19"
    int32_t kernel;                 // index of the kernel, -1
    int32_t accumulate;             // += (GEMM, COPY, COLSUM); see also `accumulate_later`
    int32_t accumulate_later;       // overwrite in a step's first pass, += afterwards
    /* GEMM, row-major */
    int32_t trans_a, trans_b;
    int64_t m, n, k;
    RtRef a, b, c;
    /* collectives: n elements (of real) per member's part; COPY: n = cols */
    int32_t axes, rep, a2a;
    int64_t rows, count;            // rows of the local src (A2A, COPY, MERGE);
                                    // elements (collectives, ZERO)
    int64_t cols;                   // columns of the local src (A2A HEADS and TOKENS, COPY)
    int32_t columns_src, columns_dst;   // A2A: column tables of both sides (index, or -1)
    int32_t nstats; uint8_t stat[RT_MAX_ARGS];    // MERGE: 0 sum 1 max 2 var (mean, M2) 3 min
    int64_t stat_n;                 // MERGE: elements behind each member's (mean, M2)
    /* kernels */
    int64_t items;                  // rows, or (sequence, head) pairs...: split among workers
    int64_t grain;                  // workers get multiples of it
    int32_t nargs;
    RtRef arg[RT_MAX_ARGS];         // real data; passed as pointers in this order
    int32_t rowmap;                 // tables passed to kernels: see RtKernel
    int32_t rowmap_k;               // attention: row order of K and V
    int32_t colmap;                 // index of RtColumns, -1
    int32_t ids;                    // RT_IDS_*: RtCall.ids, by rowmap
    int32_t unit;                   // ids TOKENS, POSITIONS: the table (RtCall.base = its first
                                    // row here); TARGETS: base = first column of colmap
    int64_t items_per_run;          // > 0: items = (runs of rowmap) * this (attention forward:
                                    // heads); `items` is then unused
    double  flops;                  // of one rank, for --profile and the log
} RtStep;

/* Row order of a local matrix: which tokens its rows are (plan.h RowMap). */
typedef struct { int32_t axes; int32_t pad; int64_t chunk, chunk_i, count; } RtRowMap;

/* Columns a rank holds: nseg segments from `first` in the segments table, each
 * cut evenly over `axis` (0: whole). local width = sum of the pieces. */
typedef struct { int64_t start, width; int32_t rep, pad; } RtSegment;
typedef struct { int32_t first, nseg, axis, pad; } RtColumns;

/*
 * Parameters in files and on ranks. Unit u: a block [brows, bcols] flattened,
 * cut over `spread`; rank shards stand at `offset` of the flat region. Piece:
 * local columns [local_start, ..) of the block are columns `cols` of a parameter.
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
    uint64_t seed; uint32_t step; uint32_t pad;
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
    int32_t data, x, y, z, zero, workers;
    int32_t balanced, microbatches;
    int64_t batch, sequence, T;     // T: rows of one pass of one replica
    int64_t vocab;                  // logits' width; every token must be below it
    int64_t token_limit;            // rows of the smallest token table
    int64_t block_bytes;            // the planned peak of one rank
    /* bytes in the block. m and v hold flat elements, with zero >= 1 only the
     * replica's slice [d, d+1) * flat_pad/data of them. -1: none (sgd has no v). */
    int64_t params_offset, grads_offset, m_offset, v_offset;
    int64_t flat, flat_pad;         // elements of the flat region; padded for data
    int32_t nsteps, nparams, nunits, npieces, nsegments, ncolumns, nrowmaps, nkernels;
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
        int32_t weights, log, pad;
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
    const char *text;
    const RtKernelFn *kernels;
} RtProgram;

/* ---- entry points --------------------------------------------------------- */

typedef struct Rt Rt;       // one run: all ranks of this process

typedef struct {
    const char *load, *save, *log, *trace;      // NULL: none
    int64_t steps;                              // -1: the schedule's
    int     quiet;
    const char *const *sets; int nsets;         // "train.lr=1e-3"; others refused
    const char *exe;                            // name shown in messages
    /* tests and verify: called after each step on rank 0's thread while all
     * ranks wait; `grads`/`params` are readable through rt_read_param. */
    void (*after_step)(void *ctx, Rt *rt, int64_t step, double loss, double norm);
    void *ctx;
    const int32_t *fixed_tokens;                // verify: tokens instead of a data file
    int64_t fixed_ntokens;
} RtOptions;

/* First thing in main: files that are opened later never take the places of closed
 * standard ones, and a file that grows too large is an error, not a signal. */
void rt_guard_files(void);

/* Trains. Returns the exit status (0, 1, 3 or 4); messages go to stderr, step
 * lines to stdout. Owns nothing of `program` afterwards. */
int rt_run(const RtProgram *program, const RtOptions *options);

/* main() of a built executable: --steps --load --save --log --trace --set. */
int rt_main(const RtProgram *program, int argc, char **argv);

/* Learning rate of step s (from 0) by the schedule in `head`. */
double rt_learning_rate(const RtHeader *head, int64_t s);

/* Whole parameter (what = 0), gradient (1) `iparam` as doubles in logical
 * [rows, width] order, assembled from all ranks; dst holds rows*width. */
void rt_read_param(Rt *rt, int what, int iparam, double *dst);
/* Bytes allocated as blocks by all ranks; resident bookkeeping for tests. */
int64_t rt_block_bytes(Rt *rt);

#endif
