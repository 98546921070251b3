/*
 * llvm_emit.h - thin helpers over the LLVM C API, shared by emit_llvm*.c and
 * included by nobody else.
 *
 * An L is one module being made, with the kernel it is at. Values are SSA
 * values: loops carry what changes (l_for), there are no variables in memory
 * except work arrays on the stack. Vectors are explicit, `lanes` wide: two
 * machine registers, so that each operation has two independent halves.
 * A vector of one lane is a plain scalar; all helpers accept both.
 *
 * v_ values and b_ blocks have names in the IR: a dump is meant to be read.
 */
#ifndef LLVM_EMIT_H
#define LLVM_EMIT_H

#include "diag.h"
#include "kernel.h"
#include "rt.h"

#include <llvm-c/Core.h>

typedef LLVMValueRef Val;
typedef LLVMTypeRef Typ;
typedef LLVMBasicBlockRef Bb;

enum { L_ROWS_MAX = 8, L_CARRY = 24, L_LANES_MAX = 64 };

typedef struct {
    LLVMContextRef ctx;
    LLVMModuleRef mod;
    LLVMBuilderRef b;
    Typ i1, i8, i16, i32, i64, f32, f64, ptr, none;
    Typ bf16;                   // only as a type of memory: values of it are float
    const char *cpu, *features;
    int reg_bytes;              // widest vector register: 16, 32, 64
    int tile_rows;              // rows of a register tile (emit_llvm_tile.c)
    /* the kernel that is being made */
    const KernelSpec *spec;
    Typ real; bool is_double; int size;     // its element type
    int lanes;
    LLVMFastMathFlags fast;     // put on every operation that takes them
    Val fn;                     // the function the builder is in
    Val call, lo, hi;           // RtCall, range of items
    Val arg[RT_MAX_ARGS];       // pointers, noalias
    Typ stored[RT_MAX_ARGS];    // what an argument's elements are: `real` or `bf16`
} L;

/* ---- types and constants ----------------------------------------------------- */

static inline Typ l_vec(Typ of, int n) { return n == 1 ? of : LLVMVectorType(of, (unsigned)n); }
static inline Typ l_type(Val v) { return LLVMTypeOf(v); }
static inline int l_lanes_of(Val v)
{
    Typ t = LLVMTypeOf(v);
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? (int)LLVMGetVectorSize(t) : 1;
}
static inline Typ l_scalar_type(Typ t)
{
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetElementType(t) : t;
}
static inline Val l_i64(const L *l, int64_t n)
{
    return LLVMConstInt(l->i64, (unsigned long long)n, 1);
}
static inline Val l_i32(const L *l, int64_t n)
{
    return LLVMConstInt(l->i32, (unsigned long long)n, 1);
}
static inline bool l_is_const(Val v, int64_t *n)
{
    if (!LLVMIsAConstantInt(v)) return false;
    *n = LLVMConstIntGetSExtValue(v);
    return true;
}

/* The constant `x` in every lane of type t, a real or integer type or vector. */
static inline Val l_const(Typ t, double x)
{
    Typ s = l_scalar_type(t);
    Val c = LLVMGetTypeKind(s) == LLVMIntegerTypeKind
        ? LLVMConstInt(s, (unsigned long long)(int64_t)x, 1) : LLVMConstReal(s, x);
    if (s == t) return c;
    Val all[L_LANES_MAX];
    unsigned n = LLVMGetVectorSize(t);
    assert(n <= L_LANES_MAX);
    for (unsigned i = 0; i < n; i++) all[i] = c;
    return LLVMConstVector(all, n);
}
static inline Val l_num(const L *l, double x) { return l_const(l->real, x); }
static inline Typ l_reals(const L *l, int n) { return l_vec(l->real, n); }

/* <0, 1, .. n-1> of an integer or real type. */
static inline Val l_iota(Typ of, int n)
{
    if (n == 1) return LLVMConstNull(of);
    Val all[L_LANES_MAX];
    for (int i = 0; i < n; i++) all[i] = l_const(of, i);
    return LLVMConstVector(all, (unsigned)n);
}

/* ---- operations ------------------------------------------------------------ */

/* Fast-math flags, on instructions only: constants are folded by the builder. */
static inline Val l_fast(const L *l, Val v)
{
    if (LLVMIsAInstruction(v) && LLVMCanValueUseFastMathFlags(v))
        LLVMSetFastMathFlags(v, l->fast);
    return v;
}
static inline Val l_add(L *l, Val a, Val c) { return l_fast(l, LLVMBuildFAdd(l->b, a, c, "")); }
static inline Val l_sub(L *l, Val a, Val c) { return l_fast(l, LLVMBuildFSub(l->b, a, c, "")); }
static inline Val l_mul(L *l, Val a, Val c) { return l_fast(l, LLVMBuildFMul(l->b, a, c, "")); }
static inline Val l_neg(L *l, Val a) { return l_fast(l, LLVMBuildFNeg(l->b, a, "")); }
/* Division and square root are exact: the estimates that arcp and afn allow give
 * NaN for 1/inf and sqrt(inf), and save nothing that could be measured. */
static inline Val l_div(L *l, Val a, Val c) { return LLVMBuildFDiv(l->b, a, c, ""); }
static inline Val l_cmp(L *l, LLVMRealPredicate p, Val a, Val c)
{
    return LLVMBuildFCmp(l->b, p, a, c, "");
}
static inline Val l_select(L *l, Val c, Val a, Val other)
{
    return LLVMBuildSelect(l->b, c, a, other, "");
}

static inline Val l_iadd(L *l, Val a, Val c) { return LLVMBuildAdd(l->b, a, c, ""); }
static inline Val l_isub(L *l, Val a, Val c) { return LLVMBuildSub(l->b, a, c, ""); }
static inline Val l_imul(L *l, Val a, Val c) { return LLVMBuildMul(l->b, a, c, ""); }
static inline Val l_icmp(L *l, LLVMIntPredicate p, Val a, Val c)
{
    return LLVMBuildICmp(l->b, p, a, c, "");
}
static inline Val l_iaddc(L *l, Val a, int64_t n) { return n ? l_iadd(l, a, l_i64(l, n)) : a; }
static inline Val l_imulc(L *l, Val a, int64_t n)
{
    return n == 1 ? a : l_imul(l, a, l_i64(l, n));
}
static inline Val l_imin(L *l, Val a, Val c)
{
    return l_select(l, l_icmp(l, LLVMIntSLT, a, c), a, c);
}
static inline Val l_imax(L *l, Val a, Val c)
{
    return l_select(l, l_icmp(l, LLVMIntSGT, a, c), a, c);
}
/* The larger: c where one is NaN (the machine's max instruction). */
static inline Val l_max(L *l, Val a, Val c)
{
    return l_select(l, l_cmp(l, LLVMRealOGT, a, c), a, c);
}

/* Calls of intrinsics that are overloaded on the type of the first operand. */
static inline Val l_intrinsic(L *l, const char *name, int n, Val *x)
{
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    Typ t = LLVMTypeOf(x[0]);
    Val f = LLVMGetIntrinsicDeclaration(l->mod, id, &t, 1);
    return LLVMBuildCall2(l->b, LLVMIntrinsicGetType(l->ctx, id, &t, 1), f, x, (unsigned)n, "");
}
static inline Val l_abs(L *l, Val x) { return l_intrinsic(l, "llvm.fabs", 1, &x); }
static inline Val l_sqrt(L *l, Val x) { return l_intrinsic(l, "llvm.sqrt", 1, &x); }
/* a*c + d, fused where the machine can. */
static inline Val l_fma(L *l, Val a, Val c, Val d)
{
    return l_intrinsic(l, "llvm.fmuladd", 3, (Val[]){ a, c, d });
}

/* A scalar in n lanes. */
Val l_splat(L *l, Val x, int n);
/* All lanes into one; op 0 adds, 1 takes the largest, 2 the smallest. */
enum { L_SUM, L_MAX, L_MIN };
Val l_combine(L *l, int op, Val a, Val c);
Val l_reduce(L *l, int op, Val x);
/* rows[i] lane j becomes rows[j] lane i; n a power of two, vectors of n lanes. */
void l_transpose(L *l, Val *rows, int n);

/* ---- memory ------------------------------------------------------------------ */

/* &p[i], elements of type `of`. */
static inline Val l_at(L *l, Typ of, Val p, Val i)
{
    return LLVMBuildInBoundsGEP2(l->b, of, p, &i, 1, "");
}
static inline Val l_real_at(L *l, Val p, Val i) { return l_at(l, l->real, p, i); }
/* Element i of argument n. */
static inline Val l_arg_at(L *l, int n, Val i) { return l_at(l, l->stored[n], l->arg[n], i); }
unsigned l_bytes(Typ scalar);

/* The first n of `lanes` elements from p (any alignment of whole elements); the
 * other lanes are zero. Storing leaves the other elements alone. Elements of l->bf16 are
 * loaded as float; to store some, round them first. */
Val  l_load(L *l, Typ of, Val p, int lanes, int n);
void l_store(L *l, Val x, Val p, int n);
/* The same where n is known only at run time, 0 <= n < lanes; other lanes: `rest`. */
Val  l_load_some(L *l, Typ of, Val p, int lanes, Val n, Val rest);
void l_store_some(L *l, Val x, Val p, Val n);
Val  l_mask(L *l, int lanes, Val n);            // <i < n>
/* x as elements of type `of` are stored: float to the nearest bf16, ties to even, as i16. */
Val  l_rounded(L *l, Typ of, Val x);

/* A field of RtCall. */
#define l_field(l, type, field) l_field_at(l, type, offsetof(RtCall, field), #field)
Val  l_field_at(L *l, Typ type, size_t offset, const char *name);
/* An array of `n` reals on the stack of the body, aligned for vectors. */
Val  l_stack(L *l, int64_t n, const char *name);

/* ---- control --------------------------------------------------------------- */

/*
 * for (i = from; i < to; i += step) with n carried values: carry[] are their
 * values inside the body; l_next ends the body with the new ones and moves to
 * the code behind the loop, where carry[] are the last ones. The test stands at
 * the bottom; a test before the first turn is made where it may be needed.
 */
typedef struct {
    Bb body, done, from;     // from: where a loop of no turns leaves (or NULL)
    Val i, to, carry[L_CARRY], init[L_CARRY];
    int64_t step;
    int n;
} Loop;
Loop l_for(L *l, const char *name, Val from, Val to, int64_t step, int n, const Val *init);
void l_next(L *l, Loop *o, const Val *next);

/* if (cond) { .. }: code between l_if and l_fi; it makes no values. */
typedef struct { Bb done; } If;
If   l_if(L *l, const char *name, Val cond);
If   l_else(L *l, If i);
void l_fi(L *l, If i);

/* ---- functions --------------------------------------------------------------- */

/* Starts `name` (external): loads its pointers, calls name.body, where the builder
 * then stands; sets the fields of the kernel. l_finish ends it. */
void l_kernel(L *l, const KernelSpec *spec, int nargs);
void l_finish(L *l);
/* An internal function, not inlined; parameters that are pointers do not overlap.
 * The builder moves in; l_sub_end goes back. l_sub_known: it has been made before. */
typedef struct { Val fn, outer; Typ type; Bb back; } Sub;
Sub  l_sub_begin(L *l, const char *name, int nparams, const Typ *params, const char *const *names);
bool l_sub_known(L *l, Sub *s, const char *name);
void l_sub_end(L *l, const Sub *s);
Val  l_sub_call(L *l, const Sub *s, int n, Val *args);

/* ---- emit_llvm_math.c ---------------------------------------------------------- */

Val l_exp(L *l, Val x);
Val l_tanh(L *l, Val x);
Val l_sigmoid(L *l, Val x);
Val l_erf(L *l, Val x);
Val l_pow(L *l, Val x, double c);
Val l_libm(L *l, const char *name, Val x);      // "log": logf or log, lane by lane
/* First word of Philox 4x32-10 of counter {c[0..3]}, key {k[0], k[1]}: i32 lanes. */
Val l_philox(L *l, const Val c[4], const Val k[2]);
/* C_ROW operator on values; `b` as needed (not COLUMN, DROPOUT). */
Val l_op(L *l, OpKind op, Val a, Val b, double c);

/* ---- emit_llvm_tile.c: register-blocked products for attention ------------------ */

/*
 * A tile is tile_rows x lanes of C in registers: C[r, :] (+)= sum over k of
 * a[r][k*a_step] * b[k*b_step + :]. cols < lanes: the last columns do not exist.
 */
enum { TILE_SET, TILE_ADD, TILE_SCALE };    // C = , C +=, C = C*scale +
typedef struct {
    Val a[L_ROWS_MAX]; Val a_step;
    Val b, b_step;
    Val c[L_ROWS_MAX];
    Val n;                      // of k, >= 1
    int cols, mode; Val scale;
} Tile;
void l_tile(L *l, const Tile *t);

/* ---- one function per group of kinds ------------------------------------------- */

void emit_rows(L *l, const KernelSpec *spec);           // emit_llvm_rows.c
void emit_attn(L *l, const KernelSpec *spec);           // emit_llvm_attn.c
void emit_attn_dx(L *l, const KernelSpec *spec);
void emit_rope(L *l, const KernelSpec *spec);           // emit_llvm_misc.c
void emit_rope_table(L *l, const KernelSpec *spec);
void emit_embed(L *l, const KernelSpec *spec);
void emit_embed_dw(L *l, const KernelSpec *spec);
void emit_ce_stat(L *l, const KernelSpec *spec);
void emit_ce(L *l, const KernelSpec *spec);
void emit_norm(L *l, const KernelSpec *spec);
void emit_update(L *l, const KernelSpec *spec);

#endif
