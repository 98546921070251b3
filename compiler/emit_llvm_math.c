/*
 * emit_llvm_math.c - the functions of row programs, lane by lane of a vector.
 *
 * exp, tanh, sigmoid and (float) erf are polynomials in the IR: no library, no
 * table, the same on any machine. Rounding tricks in them must not be "simplified",
 * so they use fmuladd without fast-math flags. What is rare calls libm per lane.
 * Errors, in units of the last place: float exp 1.5, tanh 3, erf 5; double 2.
 */
#include "llvm_emit.h"

/* c[0] x^(n-1) + .. + c[n-1] */
static Val poly(L *l, Val x, const double *c, int n)
{
    Val y = l_const(l_type(x), c[0]);
    for (int i = 1; i < n; i++) y = l_fma(l, y, x, l_const(l_type(x), c[i]));
    return y;
}

/* x within [-limit, limit]; NaN stays. */
static Val clamp(L *l, Val x, double limit)
{
    Val hi = l_const(l_type(x), limit), lo = l_const(l_type(x), -limit);
    x = l_select(l, l_cmp(l, LLVMRealOLT, hi, x), hi, x);
    return l_select(l, l_cmp(l, LLVMRealOGT, lo, x), lo, x);
}

/* ---- exp ------------------------------------------------------------------- */

/* x = n ln2 + r, |r| <= ln2/2. *shift: the bits of n + magic, n in the low ones. */
typedef struct { Val r, shift, n; } Reduced;

static Reduced exp_reduce(L *l, Val x)
{
    Typ t = l_type(x);
    double magic = l->is_double ? 0x1.8p52 : 0x1.8p23;      // adding it rounds to integer
    double hi = l->is_double ? 6.93147180369123816490e-01 : 0.693359375;
    double lo = l->is_double ? 1.90821492927058770002e-10 : -2.12194440e-4;
    Reduced o;
    o.shift = l_fma(l, x, l_const(t, 1.44269504088896340736), l_const(t, magic));
    o.n = LLVMBuildFSub(l->b, o.shift, l_const(t, magic), "");
    o.r = l_fma(l, o.n, l_const(t, -hi), x);
    o.r = l_fma(l, o.n, l_const(t, -lo), o.r);
    return o;
}

/* exp(r) - 1 - r = r^2 q(r): Taylor in double, a fitted polynomial in float. */
static Val exp_q(L *l, Val r)
{
    static const double fit[] = { 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                                  4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1 };
    static const double taylor[] = { 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800,
        1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
        1.0 / 24, 1.0 / 6, 0.5 };
    return l->is_double ? poly(l, r, taylor, 12) : poly(l, r, fit, 6);
}

static Typ int_like(L *l, Typ t)
{
    Typ i = l_scalar_type(t) == l->f64 ? l->i64 : l->i32;
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMVectorType(i, LLVMGetVectorSize(t)) : i;
}

/* y 2^n, by adding n to the exponent. */
static Val scale_by_2n(L *l, Val y, Val shift)
{
    Typ t = l_type(y), it = int_like(l, t);
    Val bits = LLVMBuildBitCast(l->b, y, it, "");
    Val n = LLVMBuildShl(l->b, LLVMBuildBitCast(l->b, shift, it, ""),
                         l_const(it, l->is_double ? 52 : 23), "");
    return LLVMBuildBitCast(l->b, l_iadd(l, bits, n), t, "");
}

/* exp(x): 0 below the normal numbers, inf above the largest, NaN for NaN. */
Val l_exp(L *l, Val x)
{
    Typ t = l_type(x);
    Val least = l_const(t, l->is_double ? -708.39641853226408 : -87.336544);
    Val most = l_const(t, l->is_double ? 709.78271289338397 : 88.722839);
    Reduced o = exp_reduce(l, x);
    Val y = l_fma(l, LLVMBuildFMul(l->b, o.r, o.r, ""), exp_q(l, o.r), o.r);
    y = LLVMBuildFAdd(l->b, y, l_const(t, 1), "");
    y = scale_by_2n(l, y, o.shift);
    y = l_select(l, l_cmp(l, LLVMRealOLT, x, least), l_const(t, 0), y);
    return l_select(l, l_cmp(l, LLVMRealOGT, x, most), l_const(t, INFINITY), y);
}

/* exp(x) - 1 for 0 <= x <= 40, double: 2^n (exp(r) - 1) + (2^n - 1). */
static Val expm1_positive(L *l, Val x)
{
    Typ t = l_type(x);
    Reduced o = exp_reduce(l, x);
    Val e = l_fma(l, LLVMBuildFMul(l->b, o.r, o.r, ""), exp_q(l, o.r), o.r);
    Val two_n = scale_by_2n(l, l_const(t, 1), o.shift);
    return l_fma(l, two_n, e, LLVMBuildFSub(l->b, two_n, l_const(t, 1), ""));
}

/* ---- from exp -------------------------------------------------------------- */

/* 1 / (1 + exp(-x)) */
Val l_sigmoid(L *l, Val x)
{
    Typ t = l_type(x);
    Val one = l_const(t, 1);
    return l_div(l, one, LLVMBuildFAdd(l->b, one, l_exp(l, LLVMBuildFNeg(l->b, x, "")), ""));
}

/* x p(x^2) / q(x^2), x within the limit where the function has reached 1. */
static Val odd_ratio(L *l, Val x, double limit, const double *p, int np, const double *q, int nq)
{
    x = clamp(l, x, limit);
    Val z = LLVMBuildFMul(l->b, x, x, "");
    return l_div(l, LLVMBuildFMul(l->b, x, poly(l, z, p, np), ""), poly(l, z, q, nq));
}

/* float: a fitted ratio; double: e / (e + 2), e = exp(2|x|) - 1, with x's sign. */
Val l_tanh(L *l, Val x)
{
    static const double p[] = { -2.76076847742355e-16, 2.00018790482477e-13,
        -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
        6.37261928875436e-04, 4.89352455891786e-03 };
    static const double q[] = { 1.19825839466702e-06, 1.18534705686654e-04,
        2.26843463243900e-03, 4.89352518554385e-03 };
    if (!l->is_double) return odd_ratio(l, x, 7.90531110763549805, p, 7, q, 4);
    Typ t = l_type(x);
    Val a = l_abs(l, clamp(l, x, 20));
    Val e = expm1_positive(l, LLVMBuildFAdd(l->b, a, a, ""));
    Val y = l_div(l, e, LLVMBuildFAdd(l->b, e, l_const(t, 2), ""));
    return l_intrinsic(l, "llvm.copysign", 2, (Val[]){ y, x });
}

Val l_erf(L *l, Val x)
{
    static const double p[] = { -2.72614225801306e-10, 2.77068142495902e-08,
        -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
        -2.95459980854025e-03, -1.60960333262415e-02 };
    static const double q[] = { -1.45660718464996e-05, -2.13374055278905e-04,
        -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02 };
    return l->is_double ? l_libm(l, "erf", x) : odd_ratio(l, x, 4, p, 7, q, 5);
}

/* ---- libm ------------------------------------------------------------------ */

/* Type of a function of n parameters that returns the same. */
static Typ same_type(Typ t, int n)
{
    Typ p[2] = { t, t };
    return LLVMFunctionType(t, p, (unsigned)n, 0);
}

static Val declared(L *l, const char *name, Typ type)
{
    Val f = LLVMGetNamedFunction(l->mod, name);
    return f ? f : LLVMAddFunction(l->mod, name, type);
}

/* An internal function that applies libm's `name` to every lane in a loop. */
static Val lane_function(L *l, const char *name, const char *libm, int lanes, int n)
{
    Typ vec = l_reals(l, lanes), one = same_type(l->real, n), all = same_type(vec, n);
    Val f = LLVMAddFunction(l->mod, name, all), outer = l->fn;
    Bb back = LLVMGetInsertBlock(l->b);
    LLVMSetLinkage(f, LLVMInternalLinkage);
    l->fn = f;
    LLVMPositionBuilderAtEnd(l->b, LLVMAppendBasicBlockInContext(l->ctx, f, "b_entry"));
    Val at[2];
    for (int i = 0; i < n; i++) {
        at[i] = l_stack(l, lanes, "v_lanes");
        l_store(l, LLVMGetParam(f, (unsigned)i), at[i], lanes);
    }
    Loop o = l_for(l, "lane", l_i64(l, 0), l_i64(l, lanes), 1, 0, NULL);
    Val x[2];
    for (int i = 0; i < n; i++)
        x[i] = LLVMBuildLoad2(l->b, l->real, l_real_at(l, at[i], o.i), "");
    Val y = LLVMBuildCall2(l->b, one, declared(l, libm, one), x, (unsigned)n, "");
    LLVMBuildStore(l->b, y, l_real_at(l, at[0], o.i));
    l_next(l, &o, NULL);
    LLVMBuildRet(l->b, l_load(l, l->real, at[0], lanes, lanes));
    l->fn = outer;
    LLVMPositionBuilderAtEnd(l->b, back);
    return f;
}

static Val libm_n(L *l, const char *name, int n, Val *x)
{
    int lanes = l_lanes_of(x[0]);
    const char *libm = str_fmt("%s%s", name, l->is_double ? "" : "f");
    Typ type = same_type(l_type(x[0]), n);
    Val f;
    if (lanes == 1) {
        f = declared(l, libm, type);
    } else {
        const char *wide = str_fmt("%s.v%d", libm, lanes);
        f = LLVMGetNamedFunction(l->mod, wide);
        if (!f) f = lane_function(l, wide, libm, lanes, n);
    }
    return LLVMBuildCall2(l->b, type, f, x, (unsigned)n, "");
}

Val l_libm(L *l, const char *name, Val x)
{
    return libm_n(l, name, 1, &x);
}

/* x^c: products where c is a small integer, square roots where it is a half. */
Val l_pow(L *l, Val x, double c)
{
    Typ t = l_type(x);
    if (c == 0.5) return l_sqrt(l, x);
    if (c == -0.5) return l_div(l, l_const(t, 1), l_sqrt(l, x));
    if (c != floor(c) || fabs(c) > 16) return libm_n(l, "pow", 2, (Val[]){ x, l_const(t, c) });
    Val y = NULL, square = x;
    for (int n = (int)fabs(c); n; n >>= 1) {
        if (n & 1) y = y ? l_mul(l, y, square) : square;
        if (n > 1) square = l_mul(l, square, square);
    }
    if (!y) return l_const(t, 1);
    return c < 0 ? l_div(l, l_const(t, 1), y) : y;
}

/* ---- random bits ------------------------------------------------------------- */

/* High and low words of x * m, 32 bit lanes. Even and odd lanes are multiplied
 * as 64 bit lanes: the machine has that product and no other. */
static void mul_hi_lo(L *l, Val x, uint32_t m, Val *hi, Val *lo)
{
    int n = l_lanes_of(x);
    Typ t = l_type(x);
    if (n == 1) {
        Val p = l_imul(l, LLVMBuildZExt(l->b, x, l->i64, ""), l_i64(l, m));
        *hi = LLVMBuildTrunc(l->b, LLVMBuildLShr(l->b, p, l_i64(l, 32), ""), t, "");
        *lo = LLVMBuildTrunc(l->b, p, t, "");
        return;
    }
    Typ w = l_vec(l->i64, n / 2);
    Val low = l_splat(l, l_i64(l, 0xffffffff), n / 2), by = l_splat(l, l_i64(l, m), n / 2);
    Val half = l_const(w, 32), wide = LLVMBuildBitCast(l->b, x, w, "");
    Val even = l_imul(l, LLVMBuildAnd(l->b, wide, low, ""), by);
    Val odd = l_imul(l, LLVMBuildLShr(l->b, wide, half, ""), by);
    Val h = LLVMBuildOr(l->b, LLVMBuildLShr(l->b, even, half, ""),
                        LLVMBuildAnd(l->b, odd, LLVMConstNot(low), ""), "");
    Val o = LLVMBuildOr(l->b, LLVMBuildAnd(l->b, even, low, ""),
                        LLVMBuildShl(l->b, odd, half, ""), "");
    *hi = LLVMBuildBitCast(l->b, h, t, "");
    *lo = LLVMBuildBitCast(l->b, o, t, "");
}

static Val xor(L *l, Val a, Val c) { return LLVMBuildXor(l->b, a, c, ""); }

/* As rt_philox (runtime/random.c); the ten rounds are a loop, to keep the code small. */
Val l_philox(L *l, const Val ctr[4], const Val key[2])
{
    Val c[6] = { ctr[0], ctr[1], ctr[2], ctr[3], key[0], key[1] }, hi0, lo0, hi1, lo1;
    Typ t = l_type(c[0]);
    Loop o = l_for(l, "round", l_i64(l, 0), l_i64(l, 10), 1, 6, c);
    memcpy(c, o.carry, sizeof c);
    mul_hi_lo(l, c[0], 0xD2511F53u, &hi0, &lo0);
    mul_hi_lo(l, c[2], 0xCD9E8D57u, &hi1, &lo1);
    c[0] = xor(l, xor(l, hi1, c[1]), c[4]);
    c[1] = lo1;
    c[2] = xor(l, xor(l, hi0, c[3]), c[5]);
    c[3] = lo0;
    c[4] = l_iadd(l, c[4], l_const(t, (int32_t)0x9E3779B9u));
    c[5] = l_iadd(l, c[5], l_const(t, (int32_t)0xBB67AE85u));
    l_next(l, &o, c);
    return o.carry[0];
}

/* ---- operators, in the order of ops.h ------------------------------------------ */

static Val choose(L *l, LLVMRealPredicate p, Val a, Val b, double yes, double no)
{
    Typ t = l_type(a);
    return l_select(l, l_cmp(l, p, a, b), l_const(t, yes), l_const(t, no));
}

Val l_op(L *l, OpKind op, Val a, Val b, double c)
{
    Val zero = l_const(l_type(a), 0), one = l_const(l_type(a), 1);
    switch (op) {
    case OP_ADD:     return l_add(l, a, b);
    case OP_SUB:     return l_sub(l, a, b);
    case OP_MUL:     return l_mul(l, a, b);
    case OP_DIV:     return l_div(l, a, b);
    case OP_MAX:     return l_select(l, l_cmp(l, LLVMRealOGE, a, b), a, b);
    case OP_MIN:     return l_select(l, l_cmp(l, LLVMRealOLE, a, b), a, b);
    case OP_GE:      return choose(l, LLVMRealOGE, a, b, 1, 0);
    case OP_EQ:      return choose(l, LLVMRealOEQ, a, b, 1, 0);
    case OP_NEG:     return l_neg(l, a);
    case OP_POW:     return l_pow(l, a, c);
    case OP_EXP:     return l_exp(l, a);
    case OP_LOG:     return l_libm(l, "log", a);
    case OP_SQRT:    return l_sqrt(l, a);
    case OP_RSQRT:   return l_div(l, one, l_sqrt(l, a));
    case OP_TANH:    return l_tanh(l, a);
    case OP_SIGMOID: return l_sigmoid(l, a);
    case OP_ERF:     return l_erf(l, a);
    case OP_ABS:     return l_abs(l, a);
    case OP_SIGN:    return l_select(l, l_cmp(l, LLVMRealOGT, a, zero), one,
                                     choose(l, LLVMRealOLT, a, zero, -1, 0));
    case OP_SIN:     return l_libm(l, "sin", a);
    case OP_COS:     return l_libm(l, "cos", a);
    case OP_SPREAD:  return a;
    default:         bug("operator %s in a row program", op_word[op]);
    }
}
