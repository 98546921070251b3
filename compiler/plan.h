/*
 * plan.h - the one structure of the compiler.
 *
 * Passes fill it in order (main.c has the table):
 *
 *   graph      params, tensors, ops            whole tensors, program order
 *   autodiff   ops of phase BACKWARD           gradient of every parameter
 *   partition  mesh, units, values, insts      one rank's program; all ranks run
 *              with their layouts              the same list (SPMD); collectives
 *   memory     buffers                         offsets in one block
 *   verify     nothing; checks                 after every pass
 *   emit       RtProgram (rt.h)                what the executor reads
 *
 * References are indices. Letters: T tokens of one replica's step (batch/data *
 * sequence), W width, V vocabulary, g parts of a row; x, y, z sizes of the grid.
 */
#ifndef PLAN_H
#define PLAN_H

#include "ast.h"

typedef int TensorId, OpId, ParamId, ValueId, BufferId, UnitId, InstId, RowProgId;
enum { NONE = -1 };

/* ======================= the graph: whole tensors ========================= */

typedef enum { C_ROW, C_RED, C_ACC, C_OTHER } OpClass;
typedef enum {
#define OP(name, word, class) OP_##name,
#include "ops.h"
#undef OP
    OP_COUNT
} OpKind;
extern const char *const op_word[OP_COUNT];     // plan.c
extern const OpClass op_class[OP_COUNT];

typedef enum { PHASE_FORWARD, PHASE_BACKWARD, PHASE_SYNC, PHASE_OPTIMIZER } Phase;

typedef enum {
    T_ROWS,         // [T, width], one row per token
    T_IDS,          // [T] integers: tokens, positions, targets
    T_NUMBER,       // the constant `number`
    T_VECTOR,       // a learned vector [width]
    T_MATRIX,       // a learned matrix [rows, width]: linear [in, out], table [count, width]
    T_GRAD,         // gradient of a parameter, same shape; C_ACC ops add into it
    T_LOSS          // the scalar
} TensorKind;
typedef enum { IDS_TOKENS, IDS_POSITIONS, IDS_TARGETS } IdsKind;

typedef struct {
    TensorKind kind;
    const char *name;       // "h.3.ln_1", "h.3.attn.c_attn.weight"; shown to people
    Loc loc;                // where the model makes it
    int64_t rows, width;    // rows: of T_MATRIX only
    double number;
    IdsKind ids;
    ParamId param;          // T_VECTOR, T_MATRIX, T_GRAD
    OpId def;               // producer; NONE for ids, numbers, parameters
    TensorId grad_of;       // gradient rows: the forward tensor they belong to, or NONE
} Tensor;

typedef enum { PARAM_MATRIX, PARAM_TABLE, PARAM_VECTOR } ParamKind;
typedef enum { INIT_NORMAL, INIT_UNIFORM, INIT_CONSTANT } InitKind;
typedef struct {
    ParamKind kind;
    const char *name;       // full name in files: "h.0.attn.c_attn.weight"
    Loc loc;
    int64_t rows, width;    // logical: linear [in, out]; table [count, width]; vector [1, width]
    bool out_in;            // a file holds the matrix as [width, rows] (PyTorch's Linear)
    InitKind init; double init_a;   // std, half-width, value
    bool decay;             // weight decay applies
    int repeat, turn;       // as Op.repeat and Op.turn, of its first use
    TensorId tensor, grad;
} Param;

typedef struct {
    OpKind kind;
    Phase phase;
    const char *name;       // operator's full name: "h.3.mlp.c_fc", "h.3.gelu.1"
    Loc loc;
    int nin, nout;
    TensorId *in, *out;
    int repeat, turn;       // which top-level repeat (-1: none) and which of its turns
    int zone;               // counts turns and what stands between them, in program order
    OpId of;                // BACKWARD: the forward op this differentiates (NONE: glue)
    /* attributes, each used by the kinds named */
    double c;               // POW exponent, DROPOUT p
    uint32_t salt;          // DROPOUT: hash of the operator's name
    int parts;              // SUM VAR ROWMAX FIRST COLUMN SPLIT CONCAT: parts of the row, >= 1
    int64_t *sizes;         // SPLIT, CONCAT: width of each result/operand, all parts together
    int heads, kv_heads;    // ATTN; ROPE: heads
    Loc heads_loc, kv_loc;  // ATTN: where they are given
    bool causal; int64_t window; double scale, softcap;         // ATTN
    double theta; int64_t rotary; bool interleaved, inverse;    // ROPE
    bool transposed;        // LINEAR*: the matrix is used as its transpose
    int64_t ignore;         // CE
} Op;

/* ======================= the mesh and layouts ============================= */

/*
 * Axes of one stage. y has two factors y = yk * yr where kv heads are fewer
 * than y: kv columns are split over YK (slow) and replicated over YR (fast). A
 * layout says which factor r = `rep` belongs to YR; r = 1 makes YK all of y and
 * YR nothing. Axes of size 1 never appear in a layout or a collective.
 */
typedef uint8_t Axes;
enum { AX_DATA = 1, AX_X = 2, AX_YK = 4, AX_YR = 8, AX_Z = 16, AX_STAGE = 32,
       AX_Y = AX_YK | AX_YR };

/*
 * Type of a value, per axis: in `rows` the tokens are split over it (x first,
 * then y or z); in `cols` the columns; in `partial` a sum over it is pending;
 * otherwise replicated. Layout A: rows {x,y}, cols {z}. B: rows {x,z}, cols {y}.
 */
typedef struct { Axes rows, cols, partial; int rep; } Layout;   // rep: for YR in partial

/*
 * Which global columns a rank holds: segments of the width, each cut evenly
 * over the column axis (over y/rep where rep > 1), local pieces one after
 * another. A plain tensor has one segment.
 */
typedef struct { int64_t start, width; int rep; } Segment;
typedef struct { int n; Segment *seg; } Columns;

/*
 * Which tokens a rank's local rows are. The replica's T rows stand in one global
 * order (plain: sequence-major; balanced: see Plan.balanced). `axes` as in
 * Layout.rows. chunk > 0: only rows [chunk_i * chunk, +chunk) of the rank's x
 * share, cut over z (the loss's chunks).
 */
typedef struct {
    Axes axes;
    int first, nslices;         // rows of slices first .. first + nslices - 1, one after another
    int64_t chunk, chunk_i; int64_t count;
} RowMap;

/* ======================= parameters on the mesh =========================== */

/*
 * A unit is what is stored, gathered and reduced together: one matrix block,
 * the fused matrices of linears that share an input, or the learned vectors of
 * one turn. Its block on a rank is [brows, bcols]; bcols are the local pieces
 * of `pieces`, one after another. The block, flattened row by row and padded,
 * is cut evenly over `spread` (x, and the axes it would be replicated on);
 * spread 0: every rank that shares the block keeps all of it. With zero >= 2 shard and
 * offset are multiples of data, and replica d owns part d of the shard; what is kept of
 * owned parts alone (moments, gradients, with zero 3 parameters) has it at offset/data.
 */
typedef struct { ParamId param; Segment cols; int64_t local_start; } Piece;
typedef struct {
    const char *name;       // "h.0.attn.c_attn"
    Loc loc;
    bool is_table;          // rows of the block are split over row_axis as one segment, padded
    Columns rows;           // global rows (the input width's columns); vectors: one row
    Axes row_axis, col_axis;
    int npieces; Piece *piece;
    int64_t brows, bcols;   // local block
    int64_t pad_rows, pad_cols; // global rows/columns after padding (vocabulary); 0: none
    bool pad_is_col;
    Axes spread;            int rep;    // rep: meaning of YR in spread and repl
    Axes repl;              // replicated over (block is the same on all ranks of these axes)
    bool first_stage;       // no earlier stage holds it too
    uint64_t stages;        // bit r: stage r holds it; 0: only this one
    int64_t shard;          // elements a rank stores
    int64_t offset;         // in the flat parameter region, elements
    int turn;               // turn of first use
    ValueId p, g;           // shard of parameters and gradients as values
} ParamUnit;

/* ======================= one rank's program =============================== */

typedef enum {              // element type of a buffer
    D_REAL,                 // float or double
    D_F64, D_I32,
    D_BF16                  // 16 bits, computed with as float
} DType;

typedef enum {
    BUF_PARAMS, BUF_GRADS, BUF_MOMENTS,     // alive all the time
    BUF_ACTIVATION,         // from forward to backward
    BUF_GATHERED,           // gathered copies of X, W, K, V
    BUF_LOGITS, BUF_WORK,   // within a few instructions
    BUF_CLASSES
} BufClass;
extern const char *const buf_class_word[BUF_CLASSES];
/* The first buffers of every plan, alive all the time. */
enum { THE_PARAMS, THE_GRADS, THE_M, THE_V, THE_MASTER, PERSISTENT };

/*
 * Where a buffer is counted from. What lives from one pass to another is there once for
 * every unit, or every microbatch, in flight: see Call. Order and meaning as in rt.h.
 */
typedef enum {
    REGION_FIXED, REGION_UNIT, REGION_UNIT_FORTH, REGION_UNIT_BACK, REGION_MICRO,
    REGION_MICRO_BACK, REGIONS
} Region;

typedef struct {
    const char *name;
    BufClass class;
    DType dtype;
    int64_t elements;
    InstId first, last;     // life, inclusive; persistent: 0 .. last instruction
    bool persistent;
    Region region;
    int64_t offset;         // bytes in the region, 64-byte aligned (memory.c)
} Buffer;

/*
 * partition = summa(q): block `i` of q, of columns (a weight: of rows) that the axis `over`
 * splits. Either what member i of each group has, sent to all of it, or (sum) the rank's
 * part of the sum that member i is to have. over 0: no panel.
 */
typedef struct { Axes over; int i; bool sum; } SummaPanel;

/* A matrix of numbers on every rank: [rows, cols] at buffer[offset + r*ld + c]. */
typedef struct {
    TensorId tensor;        // what it holds (NONE: scratch)
    Layout layout;
    Columns cols_map;       // valid for T_ROWS values
    int rowmap;             // index of Plan.rowmaps, NONE where rows are not tokens
    int64_t rows, cols, ld;
    BufferId buffer; int64_t offset;        // elements
    UnitId unit;            // weights: which unit; `layout` is then unused
    bool whole;             // weights: gathered block (else the shard)
    bool part;              // weights: the replica's part of the shard alone (zero 2, 3)
    bool gathered; Phase made;  // a gathered copy, and the phase that made it (see keep)
    SummaPanel panel;            // one block of the matrix, on its way
} Value;

/*
 * Row program: what becomes one fused kernel. Nodes in order, each FULL (one
 * number per column) or PART (one per part of the row). Evaluated row by row.
 */
typedef enum {
    R_LOAD,                 // argument arg at (row, column): a full or broadcast operand
    R_LOADPART,             // argument arg at (row, part) -> PART
    R_LOADVEC,              // argument arg at column % length
    R_NUMBER,               // c
    R_OP,                   // op (C_ROW) on a, b
    R_SUM, R_MEAN, R_M2, R_MAX, R_FIRST,    // FULL -> PART; M2 = sum of (x-mean)^2 over a part;
                            // FIRST(a, b): smallest index (see colmap) where a == b, else huge
    R_STORE,                // a -> argument arg (row, column)
    R_STOREPART,            // a (PART) -> argument arg (row, part)
    R_COLSUM                // argument arg [column % length] += sum over rows of a
} RowNodeKind;
typedef struct {
    RowNodeKind kind; OpKind op; bool part;     // part: the node is PART
    int a, b, arg;          // nodes; argument
    double c; int salt;     // DROPOUT: which of the program's salts
} RowNode;
typedef struct {
    ValueId value;          // its buffer, ld
    bool is_out, accumulate;
    bool is_vector;
    int64_t length;         // vectors: length; others: columns
    int64_t ld, stride;     // element (row, i): row*ld + i*stride
    int64_t per;            // R_LOAD: column c reads i = c / per (1: plainly)
    bool bf16;              // stored in 16 bits
} RowArg;
typedef struct {
    const char *name;       // "h_ln_1": kernels are named after operators
    int64_t width;          // local columns
    int parts;              // local parts
    bool needs_colmap;      // COLUMN, FIRST, DROPOUT: global column of each local one
    bool needs_rowmap;      // DROPOUT: global token of each row
    Columns columns; Axes axis; // which global columns: for the table behind colmap
    int64_t part_width;     // global width of a part: COLUMN = colmap % part_width
    int nargs; RowArg *arg;
    int nnodes; RowNode *node;
    int nsalts; uint32_t *salt;     // of its dropouts: the kernel is told, it does not know
} RowProg;

typedef enum {
    COLL_ALL_GATHER, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE, COLL_ALL_TO_ALL,
    COLL_BROADCAST, COLL_REDUCE, COLL_SEND, COLL_RECV, COLL_COUNT
} CollKind;
extern const char *const coll_word[COLL_COUNT];

/* all_to_all: what is exchanged. */
typedef enum {
    A2A_AB, A2A_BA,         // layouts A and B, over {y,z}
    A2A_HEADS, A2A_TOKENS   // attention=exchange over {x,z}: tokens -> heads, and back
} A2aKind;

typedef enum {
    I_GEMM,         // C (+)= op(A) op(B); in A, B; out C
    I_ROWS,         // row program
    I_COLL,         // collective; in[0] -> out[0] (equal for all_reduce)
    I_MERGE,        // gathered statistics of reductions -> whole ones
    I_COLSUM,       // out[0] (+)= sum over workers of scratch in[0]
    I_ATTN, I_ATTN_DX, I_ROPE, I_ROPE_TABLE, I_EMBED, I_EMBED_DW,
    I_CE_STAT,      // logits -> per row (max, sum of exp, target logit) of local columns
    I_CE_MERGE,     // gathered statistics of the members -> whole ones
    I_CE,           // merged statistics -> loss +=, logits become their gradient (in place)
    I_COPY,         // in[0] -> out[0], rows x cols
    I_ZERO,         // out[0] = 0
    I_COUNT,        // number of targets that count, before the first forward
    I_NORM,         // sum of squares of owned gradient elements
    I_TOTALS,       // loss and squares summed over all ranks; the clip factor
    I_UPDATE,       // optimizer step on the owned range
    I_KINDS
} InstKind;
extern const char *const inst_word[I_KINDS];

/* Queues of a GPU; see streams.c. */
typedef enum {
    STREAM_COMPUTE, STREAM_TENSOR,      // kernels and products; collectives of activations
    STREAM_WEIGHTS, STREAM_GRADIENTS,   // gathers of weights; sums of gradients
    STREAM_STAGES, STREAMS              // transfers between stages
} StreamId;
extern const char *const stream_word[STREAMS];

typedef struct {
    InstKind kind;
    Phase phase;
    OpId op;                // the operator it serves, or NONE
    Loc loc;                // source line shown by errors and -d
    const char *name;       // "h.0.attn.c_attn: X W"
    int nin, nout;
    ValueId *in, *out;
    bool accumulate;        // out += instead of out =
    bool trans_a, trans_b;  // GEMM
    int64_t m, n, k;
    RowProgId rows;         // I_ROWS
    int rowmap;             // whose tokens the kernel's rows are, NONE: does not matter
    int rowmap_k;           // I_ATTN*: of K and V
    CollKind coll; A2aKind a2a; Axes axes; int rep;
    uint64_t stages;        // axes & AX_STAGE: bit r: stage r takes part
    int slice;              // all_to_all: whose rows
    int peer;               // send, recv: the other stage; broadcast, reduce: the root's
                            // coordinate on the axis
    const char *reason;     // I_COLL: why it is there, for people
    bool is_vector_grad;    // all_reduce bundled over a range of the gradient region
    StreamId stream;                // streams.c: where it runs on a GPU
    int signal;                     // event recorded behind it, or NONE
    int nwaits, wait[STREAMS - 1];  // events awaited in front of it
    int nstats; uint8_t *stat;      // I_MERGE: OpKind of each statistic (SUM, ROWMAX, VAR, FIRST)
    int64_t stat_n;         // I_MERGE: elements a rank contributed to each part (VAR)
} Inst;

/* ======================= passes =========================================== */

/*
 * The instructions of a stage stand in functions, in an order that one microbatch
 * could run them in: BEGIN; for each chunk and slice RECV_ACTIVATION, FORWARD,
 * SEND_ACTIVATION; for each chunk and slice from the last RECV_GRADIENT, BACKWARD,
 * SEND_GRADIENT; SYNC; OPTIMIZER. The step table calls them for every unit.
 */
typedef enum {
    STEP_FORWARD, STEP_BACKWARD,            // one unit: (microbatch, slice, chunk)
    STEP_SEND_ACTIVATION, STEP_RECV_ACTIVATION, STEP_SEND_GRADIENT, STEP_RECV_GRADIENT,
    STEP_SYNC, STEP_OPTIMIZER,              // once, at the end; microbatch = slice = chunk = 0
    STEP_BEGIN,                             // once, in front; in no table of schedule.c
    STEP_KINDS
} StepKind;
extern const char *const step_word[STEP_KINDS];     // as in `plan --json`

/* May a call touch that region of its unit? */
static inline bool call_needs(StepKind k, Region r)
{
    bool forth = k == STEP_FORWARD || k == STEP_SEND_ACTIVATION || k == STEP_RECV_ACTIVATION;
    bool back = r == REGION_UNIT_BACK || r == REGION_MICRO_BACK;
    return k < STEP_SYNC && r != REGION_FIXED && !(forth ? back : r == REGION_UNIT_FORTH);
}

typedef struct { StepKind kind; int slice, chunk; InstId first, end; } Func;

typedef struct {
    StepKind kind;
    int microbatch, slice, chunk;   // of a transfer: those of this stage's side
    int peer;                       // transfers: the other stage, else NONE
    int64_t bytes;                  // transfers: of all ranks of the stage together
} Step;
typedef struct { Step *at; int n, cap; } Steps;

/* One step of the table: the function it calls, and where the unit's regions are. */
typedef struct {
    Step step; int func; bool again;
    int after;              // streams.c: call on the other side (transfers, the rest) that must
                            // be done, or NONE
    int64_t region[REGIONS];
} Call;

/* ======================= the plan ========================================= */

typedef struct {
    int data, stages, x, y, z;
    int summa;                      // partition = summa(q): q, with x = 1, y = z = q; else 0
    int64_t batch, sequence;        // of the whole step
    int64_t microbatch;             // sequences of a replica in one pass (= batch/data here)
    int64_t T;                      // rows of one pass: microbatch * sequence
    bool balanced;                  // row order; attention gathers K and V
    int zero;
    enum { ATT_LOCAL, ATT_GATHER, ATT_EXCHANGE } attention;
    const char *attention_why;
    bool keep_inputs, keep_weights; const char *keep_why;
    int prefetch; const char *prefetch_why; // turns that weights are gathered ahead of their use
    bool shard_vectors; const char *vectors_why;
    int64_t logits_chunk;           // tokens of a rank's x share, at most
    int nslices; int64_t *slice;    // tokens of each; one slice: the whole sequence
    int chunks;
    enum { RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_FULL } recompute;
    int recompute_turns;            // FULL: so many turns of each stage
    Precision precision;
    int workers;                    // threads of one rank (CPU); 0 before: choose
    int64_t room_bytes;             // memory of one rank, less the reserve
    const char *room_what;          // "24.0 GB of this machine / 8 ranks"
    /* what this version cannot lay out yet, or NULL; see mesh.c */
    const char *refused; Loc refused_loc;
    const char *refused_hint;       // a value that works, or NULL
} Choices;

/* Sizes of the model that a mesh must divide, each once. out 0: the vocabulary, padded. */
typedef struct {
    int heads, kv_heads, count; bool causal;
    int64_t queries, keys, values;          // columns
} HeadSize;
typedef struct { int64_t in, out; int kv_heads; } LinearSize;   // kv_heads: it makes keys; or 0
typedef struct {
    VEC(HeadSize) heads;
    VEC(LinearSize) linears;
    bool summa;                             // partition = summa(q): columns have no copies
} MeshSizes;

/*
 * TUNING: pieces of the sum of gradients over data, and the least bytes of one. The last is not
 * hidden by anything; each costs a collective's latency.
 */
enum { GRAD_PIECES = 16, GRAD_PIECE_BYTES = 1 << 20 };

/* n elements from `at` on of the flat gradient, and who gets their sum: a replica, or NONE: all. */
typedef struct {
    int64_t at, n; int owner;
    int nwaits, wait[STREAMS - 1];  // as in Inst
} GradPiece;

typedef struct Plan {
    const Config *config;
    const char *model_name;
    /* graph */
    VEC(Param) params;
    VEC(Tensor) tensors;
    VEC(Op) ops;
    int nforward;                   // ops[0 .. nforward) are the forward part
    TensorId loss, tokens, positions, targets;
    int64_t vocab;                  // width of the logits
    int64_t token_limit;            // tokens must lie below: the least of vocab and token tables
    int nrepeats; int *turns;       // turns of each top-level repeat
    int layers;                     // their sum
    bool sees_ahead; Loc sees_ahead_loc;    // some attention is not causal
    /* rowop.c: existing C_ROW and C_RED ops by content, T_NUMBERs by value */
    struct { OpId *slot; int cap, n; } row_index;
    Map *number_index;
    /* mesh */
    const MeshSizes *sizes;
    const struct Shape *shape[2];   // shape.c; [1]: turns only. NULL: not asked for yet
    /* partition */
    Choices is;
    VEC(RowMap) rowmaps;
    VEC(ParamUnit) units;
    VEC(Value) values;
    VEC(RowProg) rowprogs;
    VEC(Inst) insts, front;         // front: of BEGIN, while lowering
    VEC(Func) funcs;
    VEC(Call) calls;                // the stage's step table
    int events;                     // streams.c: numbers of events in use
    /* streams.c: the sum of gradients over data, in pieces; the function whose last call it runs
     * under; NONE: it does neither */
    InstId pieced; int under; VEC(GradPiece) grad_pieces;
    int stage;
    struct Plan **stages;           // all of them, or NULL: this is the only one
    int64_t flat;                   // elements of the flat parameter region of a rank
    int64_t flat_pad;               // flat rounded up to a multiple of data (zero >= 1)
    /* memory */
    VEC(Buffer) buffers;
    int64_t block_bytes;            // the peak, exactly
    bool placed;                    // memory.c has seen these instructions
    /* on paper */
    struct Pipeline *pipeline;      // pipeline.c: predicted, or NULL
} Plan;

/* ---- plan.c: small helpers ------------------------------------------------ */
Plan    *plan_new(const Config *config);
TensorId tensor_add(Plan *p, TensorKind kind, const char *name, Loc loc, int64_t width);
OpId     op_add(Plan *p, OpKind kind, Phase phase, const char *name, Loc loc,
                int nin, const TensorId *in, int nout, const TensorId *out);   // copies arrays
int64_t  axes_size(const Plan *p, Axes axes, int rep);  // product of sizes
const char *axes_word(Axes axes, int rep);              // "x", "x z", "y (1 of 2)"
int64_t  dtype_bytes(const Plan *p, DType d);
int64_t  buffer_bytes(const Plan *p, const Buffer *b);  // whole lines of 64
int      plan_ranks(const Plan *p);
/* "data 2, pipeline 2, cube [1, 2, 1], 4 microbatches in 3 slices" */
const char *plan_line(const Plan *p);
Plan    *plan_stage(const Plan *p, int r);      // the plan of stage r; itself where there is one
int      plan_collectives(const Plan *p);      // instructions of all stages that are collectives

/* ---- hash.c: what a plan hangs on -------------------------------------------- */
typedef enum { HASH_MODEL, HASH_TRAIN, HASH_CLUSTER, HASH_PRICES, HASHES } HashOf;
extern const char *const hash_word[HASHES];
uint64_t plan_hash(const Plan *p, HashOf of);   // needs graph
const char *plan_hash_line(const Plan *p);      // a comment for a plan block
void     plan_check_hash(const Plan *p);        // such a comment that is no longer true: warnings

/* ---- rowop.c: elementwise operators and row reductions, equal ones once ---- */
typedef struct {            // what a new operator takes over from its place
    Phase phase; const char *name; Loc loc;
    int repeat, turn, zone; OpId of;
} OpAt;
typedef struct { int parts; double c; uint32_t salt; } RowAttr;     // parts 0: 1
/* The result of `kind` on a and b (b NONE: unary). An op of the same kind, operands
 * and attributes in the same zone is reused. width: of the result. */
TensorId rowop(Plan *p, const OpAt *at, OpKind kind, TensorId a, TensorId b, int64_t width,
               RowAttr attr);
TensorId rowop_number(Plan *p, double v);       // the T_NUMBER of this value
void     rowop_index(Plan *p);                  // rebuilds the tables (ops were renumbered)

/* ---- the passes, in order -------------------------------------------------- */
/* graph.c     needs ast; fills params, tensors, ops (forward). User errors. */
void graph_build(Plan *p);
/* fuse.c      needs graph, before autodiff: linears of one turn that read the same
 *             tensor become one LINEAR with several matrices, and a SPLIT. */
void fuse_linears(Plan *p);
/* autodiff.c  needs graph; appends BACKWARD ops, Param.grad. */
void autodiff_add(Plan *p);
/* mesh.c      needs graph; fills Plan.is. Every check that needs no layout. */
void mesh_choose(Plan *p);
/* The choices that hang on the microbatch, for another one; false: b does not fit. */
bool mesh_feed(Plan *p, int64_t b);
/* Sizes of 1 and the room of one of so many ranks, where a search chooses the mesh. */
void mesh_open(Plan *p, int64_t ranks);
/* reference_build.c  The forward graph and the optimizer as runtime/reference.h has them. */
struct RefGraph;
struct RefOptimizer;
struct RefGraph *reference_build(const Plan *p);
void reference_optimizer(const Train *t, struct RefOptimizer *out);
/* pipeline.c  needs autodiff, mesh. With stages or slices: turns of the stages, microbatch,
 *             slices and step tables (Plan.is, Plan.pipeline). User errors. */
void slice_choose(Plan *p);
/* sections.c  Section (chunk * stages + stage) of every operator. */
int *plan_sections(const Plan *p);
/* partition.c needs autodiff, mesh; fills rowmaps .. insts. User errors. */
void partition_choose(Plan *p);
/* calls.c     Functions and step table of a plan of one stage and one slice, from its insts. */
void funcs_of_one(Plan *p);
void calls_of_one(Plan *p);
void calls_of_table(Plan *p, const Steps *table);       // of one stage; BEGIN in front of it
/* memory.c    needs insts; fills buffers' lives and offsets, block_bytes; of a stage once, until
 * `placed` is false again. */
void memory_place(Plan *p);
/* streams.c   needs memory; streams and events of the CUDA target, of all stages. */
void streams_order(Plan *p);
StreamId inst_stream(const Plan *p, const Inst *n);
/* The turn that instruction i of a function that ends at `end` works for: a number of its own
 * for each, NONE outside of repeats. */
int inst_turn(const Plan *p, int i, int end);
/* verify.c    Returns the number of failed checks; prints each to `f` (may be NULL). */
int  verify_plan(const Plan *p, const char *after, FILE *f);
/* print.c */
void print_graph(const Plan *p, FILE *f);
void print_insts(const Plan *p, FILE *f);
void print_memory(const Plan *p, FILE *f);
void print_page(const Plan *p, FILE *f);
void print_json(const Plan *p, bool schedule, FILE *f);

#endif
