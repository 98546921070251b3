/*
 * partition.h - shared by the files of the partition pass only:
 *
 *   mesh.c       sizes of the axes and the choices; the checks that need no layout
 *   place.c      layout A or B and the columns of every tensor; units
 *   cluster.c    which elementwise operators become one row program
 *   sections.c   which chunk of which stage an operator is in; what crosses the cuts
 *   lower.c      the instructions of one rank, and every collective
 *   lower_ops.c  one function per operator
 *   lower_summa.c  products of blocks
 *   partition.c  the pass: calls them in this order
 */
#ifndef PARTITION_H
#define PARTITION_H

#include "plan.h"

typedef VEC(TensorId) Ends;
typedef VEC(ValueId) ValueList;

/* What partition knows about a tensor (index: TensorId). */
typedef struct {
    char home;              // 'A' or 'B'; 0: not rows
    Columns cols;           // pieces of its width
    int64_t pad;            // padded width (vocabulary), 0: none
    int nuses; OpId *use;   // operators that read it
    ValueList at;           // where it can be found now
    OpId concat;            // the CONCAT whose buffer it is written into, or NONE
    bool stored;            // row results: has memory of its own (else inlined where read)
    bool crosses;           // goes to another block, or over a cut: stored
} Spot;

/* What partition knows about an operator (index: OpId). */
typedef struct {
    int cluster;            // row operators: index of Part.clusters, or NONE
    int level;
    bool floating;          // backward, but needs no gradient: inlined where it is read
    bool region;            // between the last linear and the loss: done chunk by chunk
    bool emitted;
    char lin_home;          // LINEAR: layout of its input
    int psum;               // LINEAR, LINEAR_DX, EMBED: index of Part.psums, or NONE
    int nunits; UnitId *unit;   // LINEAR (of the backward ones: see `of`), EMBED
} OpInfo;

typedef struct {
    char home; Phase phase; bool region; int block;
    int64_t width; int parts;       // parts 0: not known yet
    bool narrow;                    // may widen: see cluster.c
    int level, joined;              // joined: merged into that cluster (NONE: itself)
    bool emitted;
    VEC(OpId) ops;
    Ends ends;                      // tensors in memory that it touches, about
} RowGroup;

typedef struct { ValueId value; } Psum;       // the buffer that its terms share

/* Gradient of a unit: shares of the function being lowered (of all, with one function
 * each way), and whether the stored sum has been begun, by unit and by piece. */
typedef struct { int ncontrib, done; ValueId whole; bool begun; bool *first; } UnitGrad;

/* Attention over slices: keys, values, and their gradients, of the whole sequence. */
typedef struct { ValueId all[2], grad[2]; } KeyRoots;

/* Where a slice's tensors were left by its forward pass. */
typedef struct {
    ValueList *at; bool *op_emitted, *cluster_emitted;
    ValueId *concat, *psum;
    ValueId head_dx;
} UnitState;

typedef struct Part {
    Plan *p;
    Spot *spot; OpInfo *info;
    int *param_unit; int *param_nunits;     // units of a parameter (consecutive)
    VEC(RowGroup) clusters;
    VEC(Psum) psums;
    UnitGrad *grad;                         // per unit
    ValueId *unit_whole; Phase *unit_phase; int *unit_turn;    // gathered copy and when
    ValueId head_dx;                        // gradient of the head's input, all chunks
    OpId ce, head;                          // the loss; the last linear when a region exists
    /* chunk being lowered: rows of the region's values */
    bool in_chunk; int64_t chunk, ichunk;
    Phase phase;                            // of the instructions being made
    int turn;
    int64_t odd_width[2];                   // in A and B: the last width reported
    VEC(ValueId) tables; VEC(OpId) table_of;    // rope tables
    ValueId *concat;                        // per op: CONCAT's result, once begun
    /* pipeline: sections.c */
    int *section, *block;                   // per op
    Ends *cut, *cut_back;                   // by section: what crosses the cut behind it
    uint64_t *param_stages; bool *param_here;   // per parameter
    bool whole;                             // one stage, slice and chunk: one function each way
    int slice, chunk_now;                   // being lowered
    int64_t T;                              // tokens of a microbatch's slice
    bool again;                             // forward operators are computed again
    KeyRoots *roots;                        // per op, ATTN
    UnitState *state;                       // by slice
} Part;

enum { TO_A = 'A', TO_B = 'B' };

/* mesh.c */
/* Is the cube in the family that `partition` names? 1d: [1,p,1], 2d: [1,q,r], summa(q):
 * [1,q,q]; 3d, or none named: any. */
bool family_allows(const PlanSpec *s, int x, int y, int z);
int  kv_rep(const Plan *p, const Op *attn); // copies of each kv column: y / kv_heads, or 1
bool mesh_fits(const Plan *p, int data, int x, int y, int z);   // rows, heads and widths divide
const MeshSizes *mesh_sizes(const Plan *p);         // needs graph
bool mesh_splits(const MeshSizes *s, int y, int z); // heads and widths divide
/* Attention and the order of rows, as far as sizes decide. */
typedef struct {
    int attention; bool balanced;
    bool whole, splits;             // local, exchange are possible
    double gather, exchange;        // words a rank receives for a token
} Attend;
Attend mesh_attend(const PlanSpec *s, const MeshSizes *sizes, const Choices *is);
void mesh_check_pins(const Plan *p);        // that find nothing to do, on any mesh
Loc  mesh_side(const Plan *p, int side);    // where x, y or z (0 1 2) is written, or nowhere

/* partition.c */
void partition_check(Plan *p);

/* fits.c */
const char *fitting_change(const Plan *p);  // of the plan, so that it fits: "keep = none"; or NULL
/* Bytes of the largest block of the plan with section s (keep left open: none) in place of its own.
 * In a child process that says nothing: INT64_MAX where it is an error, or takes too long. */
int64_t laid_out_bytes(const Plan *p, const PlanSpec *s);

/* Of the logits, with the mesh of `is`; rows of an x share. */
int64_t mesh_chunk(const Plan *p, const Choices *is, int64_t rows);

/* sections.c */
void place_sections(Part *q);
void place_cuts(Part *q);
void place_params(Part *q);
bool block_again(const Part *q, OpId op);   // its turn is computed again

/* place.c */
void place_uses(Part *q);
void place_homes(Part *q);
void place_columns(Part *q);                // user errors: width-divides, heads-divide
void place_region(Part *q);
void place_psums(Part *q);
void place_units(Part *q);
Axes axis_of(char home);                    // the axis that splits columns: z in A, y in B
int64_t local_width(const Plan *p, Columns c, Axes axis);
bool is_row_op(const Op *o);

/* cluster.c */
void cluster_ops(Part *q);

/* lower.c */
void lower(Part *q);
Axes canon(const Plan *p, Axes a, int rep);     // without axes of size 1
Layout home_layout(Part *q, TensorId t, char home);
ValueId value_new(Part *q, TensorId t, Layout l, int64_t rows, Columns c, BufClass class,
                  const char *name);
ValueId value_matrix(Part *q, int64_t rows, int64_t cols, DType d, BufClass class,
                     const char *name);
ValueId value_view(Part *q, ValueId v, int64_t row, int64_t rows, int64_t col, int64_t cols);
DType   stored_of(const Part *q, ValueId v);    // of its buffer
void    store_as(Part *q, ValueId v, DType d);  // before anything uses it
Inst   *inst_new(Part *q, InstKind kind, OpId op, const char *what);   // valid until the next
void    inst_in(Inst *i, ValueId v);
void    inst_out(Inst *i, ValueId v);
int     rowmap_of(Part *q, Axes rows);
int     rowmap_upto(Part *q, Axes rows);    // of keys: slices 0 .. the current one
int64_t rows_of(Part *q, Axes rows);        // local rows, of the chunk inside one
void    spot_add(Part *q, TensorId t, ValueId v);
ValueId coll(Part *q, CollKind kind, Axes axes, int rep, ValueId src, ValueId dst, OpId op,
             const char *what, const char *reason);
ValueId home_value(Part *q, TensorId t);            // in its own layout
ValueId value_in(Part *q, TensorId t, char home);   // converted where it must
ValueId gathered(Part *q, TensorId t, char home);   // rows of the whole x share
ValueId contiguous(Part *q, ValueId v, OpId op);
ValueId home_new(Part *q, TensorId t, BufClass class);  // to be written by its producer
ValueId weight(Part *q, UnitId u);                  // gathered over its spread
ValueId weight_grad(Part *q, UnitId u, bool *first);    // where dW goes; counts contributions
void    weight_grad_done(Part *q, UnitId u, OpId op);   // after each: reduce after the last
void    all_reduced(Part *q, TensorId t, ValueId v, OpId op);   // v's pending sum is taken
void    demand(Part *q, TensorId t);
void    front(Part *q);                     // what follows is done once a step, in BEGIN ..
void    front_end(Part *q, Phase phase);    // .. until here; back in `phase`
void    emit_op(Part *q, OpId op);
void    emit_cluster(Part *q, int c);
int     cluster_of(Part *q, OpId op);       // after joins

/* lower_ops.c */
void gemm(Part *q, OpId op, const char *what, ValueId a, bool ta, ValueId b, bool tb, ValueId c,
          bool accumulate);
void lower_op(Part *q, OpId op);
void lower_loss(Part *q, OpId op);
void lower_sync(Part *q);

/* lower_summa.c */
void summa_linear(Part *q, OpId op);
void summa_linear_dx(Part *q, OpId op);
void summa_linear_dw(Part *q, OpId op);

/* lower_rows.c */
void lower_cluster(Part *q, int c);

#endif
