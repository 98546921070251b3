/*
 * reference.h - the slow, plain, double-precision model that everything else
 * is compared with: any layout, any slices, both targets.
 *
 * A RefGraph is the forward graph on whole tensors as plain data; the compiler
 * fills one in (compiler/reference_build.c). The interpreter runs a whole batch
 * operator by operator and differentiates each by hand-written loops; it knows
 * nothing of layouts, nor of the compiler's own gradients.
 *
 * Rows are tokens, sequence-major: row = sequence * length + position, which
 * is also the global token that random numbers hang on. How an operand is read
 * in a result of width W: rows of width w at column c / (W/w), a vector of
 * length P at c % P, a number plainly.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Operators of the forward graph, as in the compiler's ops.h. */
#define REF_KINDS(X) \
    X(ADD) X(SUB) X(MUL) X(DIV) X(MAX) X(MIN) X(NEG) X(POW) X(EXP) X(LOG) X(SQRT) X(RSQRT) \
    X(TANH) X(SIGMOID) X(ERF) X(ABS) X(SIN) X(COS) X(DROPOUT) X(SPREAD) \
    X(SUM) X(VAR) X(ROWMAX) X(LINEAR) X(EMBED) X(SPLIT) X(CONCAT) X(ROPE) X(ATTN) X(CE)

typedef enum {
#define X(name) REF_##name,
    REF_KINDS(X)
#undef X
    REF_KIND_COUNT
} RefKind;

typedef enum { REF_T_ROWS, REF_T_TOKENS, REF_T_POSITIONS, REF_T_TARGETS, REF_T_NUMBER,
               REF_T_PARAM, REF_T_LOSS } RefTensorKind;

typedef struct {
    RefTensorKind kind;
    int64_t width;          // ROWS
    double number;          // NUMBER
    int param;              // PARAM
} RefTensor;

typedef struct {
    const char *name;
    int64_t rows, width;    // vectors: one row
    bool vector, decay;
    int init; double init_a;        // RT_INIT_* of random.h
} RefParam;

typedef struct {
    RefKind kind;
    const char *name;
    int nin, nout;
    int *in, *out;          // tensors
    double c;               // POW: exponent; DROPOUT: p
    uint32_t salt;          // DROPOUT
    int parts;              // SUM VAR ROWMAX SPLIT CONCAT
    int64_t *sizes;         // SPLIT, CONCAT: widths of the pieces, all parts together
    int heads, kv_heads;    // ATTN; ROPE: heads
    bool causal; int64_t window; double scale, softcap;     // ATTN
    double theta; int64_t rotary; bool interleaved;         // ROPE
    bool transposed;        // LINEAR: every matrix is used as its transpose
    int64_t ignore;         // CE
} RefOp;

typedef struct RefGraph {
    int nparams, ntensors, nops;
    RefParam *params;
    RefTensor *tensors;
    RefOp *ops;
    int loss;               // tensor
} RefGraph;

/* ---- one step of the model -------------------------------------------- */

typedef struct Ref Ref;
typedef struct {
    const int32_t *tokens, *targets;    // [batch * sequence]
    uint64_t seed; uint32_t step;       // of the dropout masks
    bool training;                      // false: no dropout
} RefInput;

Ref   *ref_new(const RefGraph *g, int64_t batch, int64_t sequence);     // NULL: no memory
void   ref_free(Ref *r);
/* Mean loss over the targets that are not ignored; 0 if there are none. params
 * and grads are arrays by parameter, row-major [rows, width]. grads may be NULL
 * (forward only); else they are overwritten. */
double ref_step(Ref *r, const RefInput *in, double *const *params, double *const *grads);
/* Values of a tensor of rows after ref_step: [batch * sequence, width]. */
const double *ref_value(const Ref *r, int tensor);
/* Initial values of all parameters. */
void   ref_init(const RefGraph *g, uint64_t seed, double *const *params);

/* ---- the optimizer ---------------------------------------------------- */

enum { REF_ADAMW, REF_SGD };
enum { REF_CONSTANT, REF_COSINE, REF_LINEAR_LR, REF_WSD };
typedef struct RefOptimizer {
    int kind;
    double lr, beta1, beta2, eps, weight_decay;     // ADAMW
    double momentum;                                // SGD
    double clip;                                    // 0: none
    int schedule;
    int64_t warmup, decay, steps;
    double lr_min;
} RefOptimizer;

double ref_lr(const RefOptimizer *o, int64_t step);         // step from 0
/* Clips and applies grads (which are scaled in place). m and v: moments by
 * parameter, zero before step 0; sgd uses m only. Returns the norm before clipping. */
double ref_update(const RefOptimizer *o, const RefGraph *g, int64_t step, double *const *params,
                  double *const *grads, double *const *m, double *const *v);

#endif
