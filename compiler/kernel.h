/*
 * kernel.h - what emit_llvm.c is asked for: one KernelSpec per distinct kernel.
 *
 * emit.c walks the instructions, makes a spec for each one that needs a kernel,
 * and gives equal specs one kernel (by `key`, the spec in words). A spec is fully
 * specialised: sizes and leading dimensions are constants of the code; only the
 * pointers, the item range and the fields of RtCall are dynamic.
 *
 * Every kernel has the signature of RtKernelFn (rt.h). The order of RtCall.arg is
 * given below per kind. "real" is double or float. Arguments never overlap unless
 * said so; every argument is 64-byte aligned at its base.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include "plan.h"

typedef enum {
    /*
     * Row program `rows` (plan.h). Items: rows. arg[i] = argument i: element
     * (r, c) at r*ld + c*stride, offset already applied. R_COLSUM arguments
     * point to a scratch of [nworkers][length] reals; the kernel overwrites
     * (not adds to) row `worker` of it with the sum over its own rows
     * [lo, hi) (all zeros when lo == hi). needs_colmap: RtCall.colmap[c], the
     * global column. needs_rowmap: RtCall.row_token[r].
     */
    K_ROWS,
    /*
     * Flash attention on local heads. q [rq, heads*hd] ld_q, k, v
     * [rk, kv_heads*hd], o, lse [rq, heads] (ld = heads): log of the sum of exp(score).
     * `heads`/`kv_heads`: local numbers; query head h uses kv head
     * (h * kv_heads) / heads when heads >= kv_heads.
     * Runs (RtRun) of q rows and k rows come in RtCall: a q row sees the k rows of
     * its own sequence allowed by causal and window, by position. Items: (run of q,
     * head) pairs for forward, index = run*heads + head; backward: (sequence,
     * kv_head) pairs, index = sequence*kv_heads + kv_head, `nseq` of them, each
     * OVERWRITES dq for its q rows and dk, dv for its k rows (k rows of the sequence that
     * no q row sees get zeros; a sequence without q rows on this rank still
     * zeroes its dk, dv).
     *   forward  arg: q, k, v, o, lse        backward arg: q, k, v, o, lse, do, dq, dk, dv
     * scores = scale * q.k; softcap c > 0: c*tanh(s/c). No T x T matrix: blocks
     * of 64 x 64 or so on the kernel's stack.
     */
    K_ATTN, K_ATTN_DX,
    /* K_ATTN_DX with `accumulate`: dk, dv += instead (rows that no q row sees stay as they
     * are); dq is overwritten all the same. K has other rows than q: its runs say which. */
    /* x -> y, both [rows, heads*hd]; the first `rotary` features of each head by
     * position RtCall.row_pos[r]; angle pos * theta^(-2i/rotary); inverse: -angle. The rest is
     * copied. Items: rows. arg: x, y, table. table: [positions][rotary] reals
     * (cos, sin pairs: table[pos*rotary + 2i], +1), filled by K_ROPE_TABLE. */
    K_ROPE,
    /* arg: table. Items: positions. */
    K_ROPE_TABLE,
    /* Look-up of the rank's block: ids[r] - base in [0, brows) ? E row : zeros.
     * Items: rows. arg: E [brows, cols], y [rows, cols]. ids: RtCall.ids */
    K_EMBED,
    /* dE [brows, cols] += rows of dy. Items: columns (each worker owns a
     * range, so that no two write one element and the order is fixed).
     * arg: dy [rows, cols], dE. Does not clear dE. */
    K_EMBED_DW,
    /* One pass over the local columns of logits [rows, cols] (ld): online maximum,
     * sum of exp(l - max), and the target's logit if it is here (else 0). Global
     * column of local c: RtCall.base + c; columns >= RtCall.limit do not exist.
     * A rank with no existing column gives max = -huge (finite), sum 0.
     * arg: logits, stat [rows, 3] (max, sum, target). Items: rows. */
    K_CE_STAT,
    /* From whole statistics: RtCall.total[worker*8] += sum over rows of
     * (log(sum) + max - target) * count_me, and logits <- (softmax - onehot) *
     * RtCall.scale in place; rows whose target equals RtCall.ignore give 0 loss and 0
     * gradient; columns >= limit give 0. `count_me` is RtCall.flags[0] (1 on
     * the ranks that own the loss). The loss is the SUM (not divided).
     * arg: logits, stat [rows,3]. Items: rows. */
    K_CE,
    /* RtCall.total[worker*8] += sum of squares in double over elements [lo, hi) of
     * arg[0]. Items: elements. */
    K_NORM,
    /* Optimizer on flat elements [lo, hi): arg: p, g, m, v (SGD: p, g, m).
     * g is multiplied by RtCall.scale first. AdamW: m = b1 m + (1-b1) g; v = b2 v +
     * (1-b2) g^2; p -= lr * ((m*correct1) / (sqrt(v*correct2) + eps) + decay*p) with
     * correct = 1/(1-b^t). SGD: m = momentum*m + g; p -= lr*m. */
    K_ADAMW, K_SGD,
    K_KINDS
} KernelKind;

typedef struct {
    KernelKind kind;
    const char *name;       // symbol, readable: "h_mlp_gelu_fwd"; unique (emit.c numbers)
    const char *key;        // the whole spec in words: equal keys, equal kernels
    bool is_double;
    const RowProg *rows;    // K_ROWS
    int64_t nrows, cols;    // sizes where fixed (0: dynamic by items)
    int64_t brows;          // K_EMBED, K_EMBED_DW: rows of the rank's block of the table
    int64_t ld[9];          // leading dimension of arg[i], elements
    int64_t heads, kv_heads, hd, nseq;
    bool causal; int64_t window; double scale, softcap;
    double theta; int64_t rotary; bool interleaved, inverse;
    bool accumulate;        // K_ATTN_DX
    /*
     * Bit i: arg[i] is stored as bf16 (ld in elements of 2 bytes): read as float, rounded
     * to nearest even when written; all arithmetic is float. Never set when is_double. Row programs
     * have it per argument instead (RowArg.bf16). K_ADAMW, K_SGD with `copy`: one more
     * argument behind the others, bf16: the new p, rounded.
     */
    uint32_t bf16;
    bool copy;
} KernelSpec;

/* ---- rowlevels.c: row programs, phase by phase ------------------------------------------- */

/* A reduction of node a, made in `phase`. node: NONE for a mean that only R_M2 asks for; b:
 * R_FIRST's; mean: R_M2's, a place in the list. */
typedef struct { RowNodeKind kind; int a, b, node, phase, mean; } RowReduction;
typedef struct {
    int nphases, nred;
    RowReduction *red;
    int *level;             // by node: the phase that knows it
    bool *scalar;           // by node: one number for each part
} RowLevels;

RowLevels row_levels(const RowProg *p);
bool      row_costly(const RowNode *n);         // a function of many instructions
bool      row_is_reduction(RowNodeKind k);

/* ---- emit_llvm.c (only with LLVM) ------------------------------------------ */

typedef struct Kernels Kernels;     // an LLVM module being made, then machine code

/* Makes all kernels for this machine. With `dump` the optimised... readable IR
 * (before optimisation) is printed to it. Never returns NULL; faults are bug(). */
Kernels *emit_llvm(const KernelSpec *spec, int n, const char *module_name, FILE *dump);
/* ORC: addresses in the order of `spec`, as RtKernelFn. Valid until kernels_free. */
void   **kernels_jit(Kernels *k);
/*
 * Writes an object that defines the kernels and
 *     const void *const rt_kernels[n];
 * and, as constant bytes, one symbol for each of `nblobs` blobs, to `path`.
 * Returns 0, or -1 with errno.
 */
int      kernels_object(Kernels *k, const char *path, int nblobs,
                        const char *const *blob_name, const void *const *blob,
                        const size_t *blob_bytes);
void     kernels_free(Kernels *k);

/* The four as a table, found in teracube_llvm.so when a command needs it. */
typedef struct {
    Kernels *(*make)(const KernelSpec *spec, int n, const char *module_name, FILE *dump);
    void   **(*jit)(Kernels *k);
    int      (*object)(Kernels *k, const char *path, int nblobs, const char *const *blob_name,
                       const void *const *blob, const size_t *blob_bytes);
    void     (*free)(Kernels *k);
} LlvmApi;
extern const LlvmApi llvm_api;
/* llvm_load.c: opens it once; ends the process with status 4 where LLVM is absent. */
const LlvmApi *llvm_load(const char *command);
const char    *own_folder(void);        // of this executable

/* Another target than this computer, in LLVM's words: "x86-64-v4", "+avx512f,..". */
extern const char *llvm_cpu, *llvm_features;

#endif
