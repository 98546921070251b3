/*
 * emit_llvm_build.c - the helpers of llvm_emit.h that are more than one call.
 */
#include "llvm_emit.h"

/* ---- vectors --------------------------------------------------------------- */

static Val shuffle(L *l, Val a, Val c, const int *lane, int n)
{
    Val mask[L_LANES_MAX];
    for (int i = 0; i < n; i++)
        mask[i] = lane[i] < 0 ? LLVMGetUndef(l->i32) : l_i32(l, lane[i]);
    return LLVMBuildShuffleVector(l->b, a, c, LLVMConstVector(mask, (unsigned)n), "");
}

Val l_splat(L *l, Val x, int n)
{
    if (n == 1) return x;
    int64_t whole;
    if (l_is_const(x, &whole)) return l_const(l_vec(l_type(x), n), (double)whole);
    Val undef = LLVMGetUndef(l_vec(l_type(x), n));
    Val one = LLVMBuildInsertElement(l->b, undef, x, l_i64(l, 0), "");
    int lane[L_LANES_MAX] = { 0 };
    return shuffle(l, one, undef, lane, n);
}

Val l_combine(L *l, int op, Val a, Val c)
{
    if (op == L_SUM) return l_add(l, a, c);
    if (op == L_MAX) return l_max(l, a, c);
    return l_select(l, l_cmp(l, LLVMRealOLT, a, c), a, c);
}

Val l_reduce(L *l, int op, Val x)
{
    int n = l_lanes_of(x);
    if (n == 1) return x;
    Val undef = LLVMGetUndef(l_type(x));
    for (int half = n / 2; half >= 1; half /= 2) {      // fold the upper half onto the lower
        int low[L_LANES_MAX], high[L_LANES_MAX];
        for (int i = 0; i < half; i++) { low[i] = i; high[i] = i + half; }
        x = l_combine(l, op, shuffle(l, x, undef, low, half), shuffle(l, x, undef, high, half));
        undef = LLVMGetUndef(l_type(x));
    }
    return LLVMBuildExtractElement(l->b, x, l_i64(l, 0), "");
}

void l_transpose(L *l, Val *rows, int n)
{
    for (int s = 1; s < n; s *= 2) {            // exchange s x s squares off the diagonal
        for (int i = 0; i < n; i++) {
            if (i & s) continue;
            int up[L_LANES_MAX], down[L_LANES_MAX];
            for (int t = 0; t < n; t++) {
                up[t] = t & s ? n + t - s : t;
                down[t] = t & s ? n + t : t + s;
            }
            Val a = rows[i], c = rows[i + s];
            rows[i] = shuffle(l, a, c, up, n);
            rows[i + s] = shuffle(l, a, c, down, n);
        }
    }
}

/* ---- memory ------------------------------------------------------------------ */

unsigned l_bytes(Typ scalar)
{
    switch (LLVMGetTypeKind(scalar)) {
    case LLVMBFloatTypeKind: return 2;
    case LLVMFloatTypeKind: return 4;
    case LLVMIntegerTypeKind: return LLVMGetIntTypeWidth(scalar) / 8;
    default: return 8;
    }
}

Val l_mask(L *l, int lanes, Val n)
{
    Val each = l_splat(l, LLVMBuildTrunc(l->b, n, l->i32, ""), lanes);
    return l_icmp(l, LLVMIntSLT, l_iota(l->i32, lanes), each);
}

static Val masked_load(L *l, Typ of, Val p, int lanes, Val mask, Val rest)
{
    Typ over[2] = { l_vec(of, lanes), l->ptr };
    unsigned id = LLVMLookupIntrinsicID("llvm.masked.load", 16);
    Val f = LLVMGetIntrinsicDeclaration(l->mod, id, over, 2);
    Val x[4] = { p, l_i32(l, l_bytes(of)), mask, rest };
    return LLVMBuildCall2(l->b, LLVMIntrinsicGetType(l->ctx, id, over, 2), f, x, 4, "");
}

static Val const_mask(L *l, int lanes, int n)
{
    Val all[L_LANES_MAX];
    for (int i = 0; i < lanes; i++) all[i] = LLVMConstInt(l->i1, i < n, 0);
    return LLVMConstVector(all, (unsigned)lanes);
}

/* bf16 in 16 bits -> float. */
static Val widened(L *l, Val x)
{
    int n = l_lanes_of(x);
    x = LLVMBuildZExt(l->b, x, l_vec(l->i32, n), "");
    x = LLVMBuildShl(l->b, x, l_const(l_type(x), 16), "");
    return LLVMBuildBitCast(l->b, x, l_vec(l->f32, n), "");
}

Val l_rounded(L *l, Typ of, Val x)
{
    if (of != l->bf16) return x;
    int n = l_lanes_of(x);
    Typ t = l_vec(l->i32, n);
    Val bits = LLVMBuildBitCast(l->b, x, t, ""), sixteen = l_const(t, 16);
    Val high = LLVMBuildLShr(l->b, bits, sixteen, "");
    Val up = l_iadd(l, LLVMBuildAnd(l->b, high, l_const(t, 1), ""), l_const(t, 0x7fff));
    Val near = LLVMBuildLShr(l->b, l_iadd(l, bits, up), sixteen, "");
    Val quiet = LLVMBuildOr(l->b, high, l_const(t, 0x40), "");
    near = l_select(l, l_cmp(l, LLVMRealUNO, x, x), quiet, near);
    return LLVMBuildTrunc(l->b, near, l_vec(l->i16, n), "");
}

/* As l_store: few machines have masked loads of 16 bits. */
static Val load_pieces(L *l, Typ of, Val p, int lanes, int n)
{
    Val x = LLVMConstNull(l_vec(of, lanes));
    for (int at = 0, size = lanes / 2; size >= 1; size /= 2) {
        if (!(n & size)) continue;
        int spread[L_LANES_MAX], merge[L_LANES_MAX];
        for (int i = 0; i < lanes; i++) {
            spread[i] = i >= at && i < at + size ? i - at : -1;
            merge[i] = i >= at && i < at + size ? lanes + i : i;
        }
        Val piece = LLVMBuildLoad2(l->b, l_vec(of, size), l_at(l, of, p, l_i64(l, at)), "");
        LLVMSetAlignment(piece, l_bytes(of));
        if (size == 1) {
            x = LLVMBuildInsertElement(l->b, x, piece, l_i64(l, at), "");
        } else {
            piece = shuffle(l, piece, LLVMGetUndef(l_type(piece)), spread, lanes);
            x = shuffle(l, x, piece, merge, lanes);
        }
        at += size;
    }
    return x;
}

Val l_load(L *l, Typ of, Val p, int lanes, int n)
{
    if (of == l->bf16) return widened(l, l_load(l, l->i16, p, lanes, n));
    Val zero = LLVMConstNull(l_vec(of, lanes));
    if (n == 0) return zero;
    if (n < lanes && n > 1 && l_bytes(of) < 4) return load_pieces(l, of, p, lanes, n);
    if (n < lanes && n > 1) return masked_load(l, of, p, lanes, const_mask(l, lanes, n), zero);
    Val x = LLVMBuildLoad2(l->b, n == lanes ? l_vec(of, lanes) : of, p, "");
    LLVMSetAlignment(x, l_bytes(of));
    return n == lanes ? x : LLVMBuildInsertElement(l->b, zero, x, l_i64(l, 0), "");
}

/* An incomplete vector leaves in pieces of powers of two: masked stores are slow
 * on some machines, and n is known. */
void l_store(L *l, Val x, Val p, int n)
{
    int lanes = l_lanes_of(x);
    Typ of = l_scalar_type(l_type(x));
    if (n == lanes) {
        LLVMSetAlignment(LLVMBuildStore(l->b, x, p), l_bytes(of));
        return;
    }
    for (int at = 0, size = lanes / 2; size >= 1; size /= 2) {
        if (!(n & size)) continue;
        int lane[L_LANES_MAX];
        for (int i = 0; i < size; i++) lane[i] = at + i;
        Val piece = size == 1 ? LLVMBuildExtractElement(l->b, x, l_i64(l, at), "")
                              : shuffle(l, x, LLVMGetUndef(l_type(x)), lane, size);
        Val q = l_at(l, of, p, l_i64(l, at));
        LLVMSetAlignment(LLVMBuildStore(l->b, piece, q), l_bytes(of));
        at += size;
    }
}

Val l_load_some(L *l, Typ of, Val p, int lanes, Val n, Val rest)
{
    if (lanes == 1) return rest;
    if (of == l->bf16) {
        Val x = masked_load(l, l->i16, p, lanes, l_mask(l, lanes, n),
                            LLVMConstNull(l_vec(l->i16, lanes)));
        return l_select(l, l_mask(l, lanes, n), widened(l, x), rest);
    }
    return masked_load(l, of, p, lanes, l_mask(l, lanes, n), rest);
}

void l_store_some(L *l, Val x, Val p, Val n)
{
    int lanes = l_lanes_of(x);
    if (lanes == 1) return;
    Typ over[2] = { l_type(x), l->ptr };
    unsigned id = LLVMLookupIntrinsicID("llvm.masked.store", 17);
    Val f = LLVMGetIntrinsicDeclaration(l->mod, id, over, 2);
    Val a[4] = { x, p, l_i32(l, l_bytes(l_scalar_type(l_type(x)))), l_mask(l, lanes, n) };
    LLVMBuildCall2(l->b, LLVMIntrinsicGetType(l->ctx, id, over, 2), f, a, 4, "");
}

Val l_field_at(L *l, Typ type, size_t offset, const char *name)
{
    Val p = l_at(l, l->i8, l->call, l_i64(l, (int64_t)offset));
    return LLVMBuildLoad2(l->b, type, p, name);
}

Val l_stack(L *l, int64_t n, const char *name)
{
    Bb now = LLVMGetInsertBlock(l->b), entry = LLVMGetEntryBasicBlock(l->fn);
    Val first = LLVMGetFirstInstruction(entry);
    if (first) LLVMPositionBuilderBefore(l->b, first);
    else LLVMPositionBuilderAtEnd(l->b, entry);
    Val p = LLVMBuildAlloca(l->b, LLVMArrayType2(l->real, (uint64_t)n), name);
    LLVMSetAlignment(p, 64);
    LLVMPositionBuilderAtEnd(l->b, now);
    return p;
}

/* ---- control --------------------------------------------------------------- */

static Bb block(L *l, const char *name, const char *what)
{
    return LLVMAppendBasicBlockInContext(l->ctx, l->fn, str_fmt("b_%s%s", name, what));
}

static void move_to(L *l, Bb b)
{
    Bb last = LLVMGetLastBasicBlock(l->fn);
    if (last != b) LLVMMoveBasicBlockAfter(b, last);
    LLVMPositionBuilderAtEnd(l->b, b);
}

Loop l_for(L *l, const char *name, Val from, Val to, int64_t step, int n, const Val *init)
{
    Loop o = { .to = to, .step = step, .n = n };
    int64_t a, z;
    bool runs = l_is_const(from, &a) && l_is_const(to, &z) && a < z;
    Bb before = LLVMGetInsertBlock(l->b);
    assert(n <= L_CARRY);
    o.body = block(l, name, "");
    o.done = block(l, name, ".end");
    if (runs) {
        LLVMBuildBr(l->b, o.body);
    } else {
        o.from = before;
        LLVMBuildCondBr(l->b, l_icmp(l, LLVMIntSLT, from, to), o.body, o.done);
    }
    LLVMPositionBuilderAtEnd(l->b, o.body);
    o.i = LLVMBuildPhi(l->b, l->i64, str_fmt("v_%s", name));
    LLVMAddIncoming(o.i, &from, &before, 1);
    for (int k = 0; k < n; k++) {
        o.init[k] = init[k];
        o.carry[k] = LLVMBuildPhi(l->b, l_type(init[k]), "");
        LLVMAddIncoming(o.carry[k], &o.init[k], &before, 1);
    }
    return o;
}

void l_next(L *l, Loop *o, const Val *next)
{
    Val i = LLVMBuildNSWAdd(l->b, o->i, l_i64(l, o->step), "");
    Bb latch = LLVMGetInsertBlock(l->b);
    LLVMBuildCondBr(l->b, l_icmp(l, LLVMIntSLT, i, o->to), o->body, o->done);
    LLVMAddIncoming(o->i, &i, &latch, 1);
    move_to(l, o->done);
    for (int k = 0; k < o->n; k++) {
        Val last = next[k];
        LLVMAddIncoming(o->carry[k], &last, &latch, 1);
        if (o->from) {
            Val phi = LLVMBuildPhi(l->b, l_type(last), "");
            LLVMAddIncoming(phi, (Val[]){ o->init[k], last }, (Bb[]){ o->from, latch }, 2);
            last = phi;
        }
        o->carry[k] = last;
    }
}

If l_if(L *l, const char *name, Val cond)
{
    Bb then = block(l, name, "");
    If i = { block(l, name, ".end") };
    LLVMBuildCondBr(l->b, cond, then, i.done);
    LLVMPositionBuilderAtEnd(l->b, then);
    return i;
}

If l_else(L *l, If i)
{
    If e = { block(l, "else", ".end") };
    LLVMBuildBr(l->b, e.done);
    move_to(l, i.done);
    return e;
}

void l_fi(L *l, If i)
{
    LLVMBuildBr(l->b, i.done);
    move_to(l, i.done);
}

/* ---- functions --------------------------------------------------------------- */

static void attribute(L *l, Val fn, const char *key, const char *value)
{
    LLVMAddAttributeAtIndex(fn, LLVMAttributeFunctionIndex,
        LLVMCreateStringAttribute(l->ctx, key, (unsigned)strlen(key), value,
                                  (unsigned)strlen(value)));
}

static void flag(L *l, Val fn, LLVMAttributeIndex where, const char *name)
{
    unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
    LLVMAddAttributeAtIndex(fn, where, LLVMCreateEnumAttribute(l->ctx, kind, 0));
}

static Val function(L *l, const char *name, Typ type, bool internal)
{
    Val fn = LLVMAddFunction(l->mod, name, type);
    attribute(l, fn, "target-cpu", l->cpu);
    attribute(l, fn, "target-features", l->features);
    attribute(l, fn, "prefer-vector-width", l->reg_bytes == 64 ? "512" : "256");
    flag(l, fn, LLVMAttributeFunctionIndex, "nounwind");
    if (internal) {
        LLVMSetLinkage(fn, LLVMInternalLinkage);
        flag(l, fn, LLVMAttributeFunctionIndex, "noinline");
    }
    return fn;
}

static void name_param(Val fn, unsigned i, const char *name)
{
    LLVMSetValueName2(LLVMGetParam(fn, i), name, strlen(name));
}

/* The entry: void name(const RtCall *call, int64_t lo, int64_t hi). */
static void kernel_entry(L *l, const char *name, Val body, Typ body_type, int nargs)
{
    Typ param[3] = { l->ptr, l->i64, l->i64 };
    Val fn = function(l, name, LLVMFunctionType(l->none, param, 3, 0), false);
    LLVMPositionBuilderAtEnd(l->b, LLVMAppendBasicBlockInContext(l->ctx, fn, "b_entry"));
    Val x[RT_MAX_ARGS + 3];
    x[0] = LLVMGetParam(fn, 0);
    name_param(fn, 0, "call");
    name_param(fn, 1, "lo");
    name_param(fn, 2, "hi");
    for (int i = 0; i < nargs; i++) {
        int64_t at = (int64_t)(offsetof(RtCall, arg) + sizeof(void *) * (size_t)i);
        Val p = l_at(l, l->i8, x[0], l_i64(l, at));
        x[1 + i] = LLVMBuildLoad2(l->b, l->ptr, p, str_fmt("v_arg%d", i));
    }
    x[1 + nargs] = LLVMGetParam(fn, 1);
    x[2 + nargs] = LLVMGetParam(fn, 2);
    Val c = LLVMBuildCall2(l->b, body_type, body, x, (unsigned)nargs + 3, "");
    LLVMSetTailCall(c, 1);
    LLVMBuildRetVoid(l->b);
}

void l_kernel(L *l, const KernelSpec *spec, int nargs)
{
    l->spec = spec;
    l->is_double = spec->is_double;
    l->real = spec->is_double ? l->f64 : l->f32;
    l->size = spec->is_double ? 8 : 4;
    l->lanes = 2 * l->reg_bytes / l->size;
    for (int i = 0; i < nargs && i < RT_MAX_ARGS; i++) {
        bool half = spec->rows ? spec->rows->arg[i].bf16 : i < 32 && spec->bf16 >> i & 1;
        if (half && spec->is_double) bug("kernel %s: bf16 in double", spec->name);
        l->stored[i] = half ? l->bf16 : l->real;
    }
    l->fast = LLVMFastMathAllowReassoc | LLVMFastMathAllowContract | LLVMFastMathNoSignedZeros;
    if (!spec->is_double) l->fast |= LLVMFastMathAllowReciprocal | LLVMFastMathApproxFunc;

    if (nargs > RT_MAX_ARGS) bug("kernel %s: %d arguments", spec->name, nargs);
    Typ param[RT_MAX_ARGS + 3];
    param[0] = l->ptr;
    for (int i = 0; i < nargs; i++) param[1 + i] = l->ptr;
    param[1 + nargs] = param[2 + nargs] = l->i64;
    Typ type = LLVMFunctionType(l->none, param, (unsigned)nargs + 3, 0);
    Val body = function(l, str_fmt("%s.body", spec->name), type, true);
    kernel_entry(l, spec->name, body, type, nargs);

    l->fn = body;
    l->call = LLVMGetParam(body, 0);
    name_param(body, 0, "call");
    for (int i = 0; i < nargs; i++) {
        unsigned at = 1 + (unsigned)i;
        l->arg[i] = LLVMGetParam(body, at);
        name_param(body, at, str_fmt("arg%d", i));
        flag(l, body, at + 1, "noalias");       // attribute 0 is the result's
    }
    l->lo = LLVMGetParam(body, (unsigned)nargs + 1);
    l->hi = LLVMGetParam(body, (unsigned)nargs + 2);
    name_param(body, (unsigned)nargs + 1, "lo");
    name_param(body, (unsigned)nargs + 2, "hi");
    LLVMPositionBuilderAtEnd(l->b, LLVMAppendBasicBlockInContext(l->ctx, body, "b_entry"));
}

void l_finish(L *l)
{
    LLVMBuildRetVoid(l->b);
}

Sub l_sub_begin(L *l, const char *name, int n, const Typ *params, const char *const *names)
{
    Sub s = { .outer = l->fn, .back = LLVMGetInsertBlock(l->b) };
    Typ copy[16];
    assert(n <= 16);
    memcpy(copy, params, sizeof *params * (size_t)n);
    s.type = LLVMFunctionType(l->none, copy, (unsigned)n, 0);
    s.fn = function(l, name, s.type, true);
    for (int i = 0; i < n; i++) {
        name_param(s.fn, (unsigned)i, names[i]);
        if (params[i] == l->ptr) flag(l, s.fn, (unsigned)i + 1, "noalias");
    }
    l->fn = s.fn;
    LLVMPositionBuilderAtEnd(l->b, LLVMAppendBasicBlockInContext(l->ctx, s.fn, "b_entry"));
    return s;
}

bool l_sub_known(L *l, Sub *s, const char *name)
{
    s->fn = LLVMGetNamedFunction(l->mod, name);
    if (s->fn) s->type = LLVMGlobalGetValueType(s->fn);
    return s->fn;
}

void l_sub_end(L *l, const Sub *s)
{
    LLVMBuildRetVoid(l->b);
    l->fn = s->outer;
    LLVMPositionBuilderAtEnd(l->b, s->back);
}

Val l_sub_call(L *l, const Sub *s, int n, Val *args)
{
    return LLVMBuildCall2(l->b, s->type, s->fn, args, (unsigned)n, "");
}
