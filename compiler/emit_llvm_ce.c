/*
 * emit_llvm_ce.c - cross entropy over the columns of the vocabulary that a rank has.
 *
 * One pass each: the statistics keep a running maximum m and sum s per lane,
 *
 *     m' = max(m, x ..);  s = s exp(m - m') + sum exp(x - m')
 *
 * a block in the first cache at a time; lanes are merged at the end of the row. Columns from
 * RtCall.limit on do not exist: their number is known only at run time.
 */
#include "llvm_emit.h"

enum { BLOCK = 32 };                // vectors that share one step of the maximum
enum { MAX, SUM };

static double none_of(const L *l) { return l->is_double ? -1e300 : -1e30; }

/* Local columns that exist: limit - base, within 0 .. cols. */
static Val existing(L *l)
{
    Val n = l_isub(l, l_field(l, l->i64, limit), l_field(l, l->i64, base));
    return l_imax(l, l_imin(l, n, l_i64(l, l->spec->cols)), l_i64(l, 0));
}

/* n rounded down to a multiple */
static Val down(L *l, Val n, int64_t to)
{
    return l_imulc(l, LLVMBuildUDiv(l->b, n, l_i64(l, to), ""), to);
}

/* Local column of row r's target; *target: the global one. */
static Val target_column(L *l, Val r, Val *target)
{
    Val ids = l_field(l, l->ptr, ids);
    *target = l_load(l, l->i32, l_at(l, l->i32, ids, r), 1, 1);
    return l_isub(l, LLVMBuildSExt(l->b, *target, l->i64, ""), l_field(l, l->i64, base));
}

static Val stat_at(L *l, Val r, int i)
{
    int64_t ld = l->spec->ld[1] ? l->spec->ld[1] : 3;
    return l_real_at(l, l->arg[1], l_iaddc(l, l_imulc(l, r, ld), i));
}

static Val stat_get(L *l, Val r, int i)
{
    return l_load(l, l->real, stat_at(l, r, i), 1, 1);
}

/* The n columns of a row from c on; the logits are argument 0. */
static Val logits(L *l, Val row, Val c, int n)
{
    return l_load(l, l->stored[0], l_at(l, l->stored[0], row, c), n, n);
}

/* ---- statistics ------------------------------------------------------------------- */

/* The columns from .. to, whole vectors: their maximum first, then their exp. */
static void online_block(L *l, Val row, Val from, Val to, Val *state)
{
    Loop a = l_for(l, "max", from, to, l->lanes, 1, &state[MAX]);
    Val m = l_max(l, logits(l, row, a.i, l->lanes), a.carry[0]);
    l_next(l, &a, &m);
    m = a.carry[0];
    Val s = l_mul(l, state[SUM], l_exp(l, l_sub(l, state[MAX], m)));
    Loop o = l_for(l, "exp", from, to, l->lanes, 1, &s);
    Val x = logits(l, row, o.i, l->lanes);
    s = l_add(l, o.carry[0], l_exp(l, l_sub(l, x, m)));
    l_next(l, &o, &s);
    state[MAX] = m;
    state[SUM] = o.carry[0];
}

/* The last columns, fewer than a vector. */
static void online_rest(L *l, Val row, Val from, Val to, Val *state)
{
    Typ t = l_reals(l, l->lanes), of = l->stored[0];
    Loop o = l_for(l, "rest", from, to, l->lanes, 2, state);        // one turn or none
    Val n = l_isub(l, to, o.i), old = o.carry[MAX];
    Val x = l_load_some(l, of, l_at(l, of, row, o.i), l->lanes, n, l_const(t, none_of(l)));
    Val m = l_max(l, x, old), e = l_exp(l, l_sub(l, x, m));
    e = l_select(l, l_mask(l, l->lanes, n), e, LLVMConstNull(t));
    Val next[2] = { m, l_fma(l, o.carry[SUM], l_exp(l, l_sub(l, old, m)), e) };
    l_next(l, &o, next);
    state[MAX] = o.carry[MAX];
    state[SUM] = o.carry[SUM];
}

/* The whole row, lanes still apart. */
static void online_row(L *l, Val row, Val n, Val *state)
{
    Val whole = down(l, n, l->lanes);
    int64_t step = BLOCK * l->lanes;
    Loop o = l_for(l, "block", l_i64(l, 0), whole, step, 2, state);
    Val next[2] = { o.carry[MAX], o.carry[SUM] };
    online_block(l, row, o.i, l_imin(l, l_iaddc(l, o.i, step), whole), next);
    l_next(l, &o, next);
    state[MAX] = o.carry[MAX];
    state[SUM] = o.carry[SUM];
    online_rest(l, row, whole, n, state);
}

void emit_ce_stat(L *l, const KernelSpec *s)
{
    l_kernel(l, s, 2);
    Typ t = l_reals(l, l->lanes);
    Val n = existing(l);
    Loop o = l_for(l, "row", l->lo, l->hi, 1, 0, NULL);
    Val row = l_arg_at(l, 0, l_imulc(l, o.i, s->ld[0])), target;
    Val state[2] = { l_const(t, none_of(l)), LLVMConstNull(t) };
    online_row(l, row, n, state);
    Val m = l_reduce(l, L_MAX, state[MAX]);
    Val e = l_exp(l, l_sub(l, state[MAX], l_splat(l, m, l->lanes)));
    l_store(l, m, stat_at(l, o.i, 0), 1);
    l_store(l, l_reduce(l, L_SUM, l_mul(l, state[SUM], e)), stat_at(l, o.i, 1), 1);
    l_store(l, l_num(l, 0), stat_at(l, o.i, 2), 1);
    Val c = target_column(l, o.i, &target);
    If here = l_if(l, "here", l_icmp(l, LLVMIntULT, c, n));
    l_store(l, logits(l, row, c, 1), stat_at(l, o.i, 2), 1);
    l_fi(l, here);
    l_next(l, &o, NULL);
    l_finish(l);
}

/* ---- loss and gradient --------------------------------------------------------------- */

static Val as_double(L *l, Val x)
{
    return l->is_double ? x : LLVMBuildFPExt(l->b, x, l->f64, "");
}

static Val log_double(L *l, Val x)
{
    Typ type = LLVMFunctionType(l->f64, &l->f64, 1, 0);
    Val f = LLVMGetNamedFunction(l->mod, "log");
    if (!f) f = LLVMAddFunction(l->mod, "log", type);
    return LLVMBuildCall2(l->b, type, f, &x, 1, "");
}

/* row[c] = exp(row[c] - m) scale / sum for the n columns that exist, 0 behind them */
static void softmax_row(L *l, Val row, Val n, Val whole, Val m, Val factor)
{
    Typ t = l_reals(l, l->lanes), of = l->stored[0];
    m = l_splat(l, m, l->lanes);
    factor = l_splat(l, factor, l->lanes);
    Loop o = l_for(l, "col", l_i64(l, 0), whole, l->lanes, 0, NULL);
    Val x = l_mul(l, l_exp(l, l_sub(l, logits(l, row, o.i, l->lanes), m)), factor);
    l_store(l, l_rounded(l, of, x), l_at(l, of, row, o.i), l->lanes);
    l_next(l, &o, NULL);
    Loop r = l_for(l, "rest", whole, n, l->lanes, 0, NULL);
    Val some = l_isub(l, n, whole), p = l_at(l, of, row, r.i);
    x = l_load_some(l, of, p, l->lanes, some, LLVMConstNull(t));
    x = l_mul(l, l_exp(l, l_sub(l, x, m)), factor);
    l_store_some(l, l_rounded(l, of, x), p, some);
    l_next(l, &r, NULL);
}

static void clear_row(L *l, Val row, Val from)
{
    unsigned size = l_bytes(l->stored[0]);
    Val bytes = l_imulc(l, l_isub(l, l_i64(l, l->spec->cols), from), size);
    LLVMBuildMemSet(l->b, l_at(l, l->stored[0], row, from), LLVMConstNull(l->i8), bytes, size);
}

/* The gradient of row r whose target is local column c. The target's own is made from its
 * logit: what softmax_row stored may be rounded. */
static void gradient_row(L *l, Val r, Val row, Val n, Val whole, Val c, Val scale)
{
    Val factor = l_div(l, scale, stat_get(l, r, 1)), most = stat_get(l, r, 0);
    softmax_row(l, row, n, whole, most, factor);
    clear_row(l, row, n);
    If here = l_if(l, "here", l_icmp(l, LLVMIntULT, c, n));
    Val p = l_mul(l, l_exp(l, l_sub(l, stat_get(l, r, 2), most)), factor);
    p = l_rounded(l, l->stored[0], l_sub(l, p, scale));
    l_store(l, p, l_at(l, l->stored[0], row, c), 1);
    l_fi(l, here);
}

void emit_ce(L *l, const KernelSpec *s)
{
    l_kernel(l, s, 2);
    Val n = existing(l), whole = down(l, n, l->lanes), zero = LLVMConstReal(l->f64, 0);
    Val ignore = l_field(l, l->i32, ignore), scale = l_field(l, l->f64, scale), target;
    if (!l->is_double) scale = LLVMBuildFPTrunc(l->b, scale, l->f32, "");
    Loop o = l_for(l, "row", l->lo, l->hi, 1, 1, &zero);
    Val row = l_arg_at(l, 0, l_imulc(l, o.i, s->ld[0]));
    Val c = target_column(l, o.i, &target), counts = l_icmp(l, LLVMIntNE, target, ignore);
    Val loss = LLVMBuildFAdd(l->b, log_double(l, as_double(l, stat_get(l, o.i, 1))),
                             as_double(l, stat_get(l, o.i, 0)), "");
    loss = LLVMBuildFSub(l->b, loss, as_double(l, stat_get(l, o.i, 2)), "");
    loss = l_select(l, counts, loss, zero);
    If i = l_if(l, "counts", counts);
    gradient_row(l, o.i, row, n, whole, c, scale);
    i = l_else(l, i);
    clear_row(l, row, l_i64(l, 0));
    l_fi(l, i);
    loss = LLVMBuildFAdd(l->b, o.carry[0], loss, "");
    l_next(l, &o, &loss);
    Val mine = l_icmp(l, LLVMIntNE, l_load(l, l->i32, l_field(l, l->ptr, flags), 1, 1),
                      l_i32(l, 0));
    Val slot = l_imulc(l, l_field(l, l->i64, worker), 8);
    Val p = l_at(l, l->f64, l_field(l, l->ptr, total), slot);
    Val sum = LLVMBuildFAdd(l->b, LLVMBuildLoad2(l->b, l->f64, p, ""), o.carry[0], "");
    If add = l_if(l, "mine", mine);
    LLVMBuildStore(l->b, sum, p);
    l_fi(l, add);
    l_finish(l);
}
