/*
 * emit_llvm_misc.c - rotary positions, embeddings, gradient norm, optimizers.
 *
 * All are streams limited by memory. Optimizer outputs are updated in place: their
 * lines have been read already, so non-temporal stores would only evict them.
 */
#include "llvm_emit.h"

/* ---- streams ------------------------------------------------------------------- */

/* One vector at element i; n: how many lanes exist, NULL: all. Updates carry. */
typedef void VectorFn(L *l, void *state, Val i, Val n, Val *carry);

static Val get_at(L *l, Typ of, Val p, Val i, Val n)
{
    Val at = l_at(l, of, p, i), rest = LLVMConstNull(l_reals(l, l->lanes));
    return n ? l_load_some(l, of, at, l->lanes, n, rest) : l_load(l, of, at, l->lanes, l->lanes);
}

static void put_at(L *l, Typ of, Val x, Val p, Val i, Val n)
{
    p = l_at(l, of, p, i);
    x = l_rounded(l, of, x);
    if (n) l_store_some(l, x, p, n);
    else l_store(l, x, p, l->lanes);
}

/* Of argument `arg`. */
static Val get(L *l, int arg, Val i, Val n)
{
    return get_at(l, l->stored[arg], l->arg[arg], i, n);
}

static void put(L *l, Val x, int arg, Val i, Val n)
{
    put_at(l, l->stored[arg], x, l->arg[arg], i, n);
}

/* Elements lo .. hi, with up to one carried value. */
static void stream(L *l, Val lo, Val hi, VectorFn *fn, void *state, Val *carry)
{
    int ncarry = carry != NULL;
    Val count = l_isub(l, hi, lo), rest = LLVMBuildURem(l->b, count, l_i64(l, l->lanes), "");
    Val whole = l_isub(l, hi, rest);
    Loop o = l_for(l, "stream", lo, whole, l->lanes, ncarry, carry);
    Val x = ncarry ? o.carry[0] : NULL;
    fn(l, state, o.i, NULL, &x);
    l_next(l, &o, &x);
    /* at most one turn */
    Loop t = l_for(l, "rest", whole, hi, l->lanes, ncarry, o.carry);
    x = ncarry ? t.carry[0] : NULL;
    fn(l, state, t.i, rest, &x);
    l_next(l, &t, &x);
    if (ncarry) *carry = t.carry[0];
}

/* total[worker*8] += x */
static void add_total(L *l, Val x)
{
    Val slot = l_imulc(l, l_field(l, l->i64, worker), 8);
    Val p = l_at(l, l->f64, l_field(l, l->ptr, total), slot);
    LLVMBuildStore(l->b, LLVMBuildFAdd(l->b, LLVMBuildLoad2(l->b, l->f64, p, ""), x, ""), p);
}

/* A double field of RtCall, or 1 - it, in all lanes. */
static Val everywhere(L *l, Val x)
{
    if (!l->is_double) x = LLVMBuildFPTrunc(l->b, x, l->f32, "");
    return l_splat(l, x, l->lanes);
}

/* ---- rotary positions ----------------------------------------------------------- */

/* x, y: of one head, stored as tx, ty; cs: (cos, sin) of the position. */
typedef struct { Val x, y, cs; Typ tx, ty; } Turn;

static Val turn_load(L *l, const Turn *t, Val d, int lanes, int n)
{
    return l_load(l, t->tx, l_at(l, t->tx, t->x, d), lanes, n);
}

static void turn_store(L *l, const Turn *t, Val x, Val d, int n)
{
    l_store(l, l_rounded(l, t->ty, x), l_at(l, t->ty, t->y, d), n);
}

static Val pick(L *l, Val x, int from, int step, int n)
{
    Val lane[L_LANES_MAX];
    for (int i = 0; i < n; i++) lane[i] = l_i32(l, from + i * step);
    return LLVMBuildShuffleVector(l->b, x, LLVMGetUndef(l_type(x)),
                                  LLVMConstVector(lane, (unsigned)n), "");
}

/* lane i of the result is lane (i & ~1) + pair[i & 1] */
static Val pairs(L *l, Val x, int even, int odd)
{
    Val lane[L_LANES_MAX];
    int n = l_lanes_of(x);
    for (int i = 0; i < n; i++) lane[i] = l_i32(l, (i & ~1) + (i & 1 ? odd : even));
    return LLVMBuildShuffleVector(l->b, x, LLVMGetUndef(l_type(x)),
                                  LLVMConstVector(lane, (unsigned)n), "");
}

/* Pairs (d, d + half): y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; n of them at d. */
static void turn_halves(L *l, const Turn *t, Val d, int n)
{
    int w = l->lanes / 2;
    Val half = l_iaddc(l, d, l->spec->rotary / 2);
    Val both = l_load(l, l->real, l_real_at(l, t->cs, l_imulc(l, d, 2)), 2 * w, 2 * n);
    Val c = pick(l, both, 0, 2, w), s = pick(l, both, 1, 2, w);
    if (l->spec->inverse) s = l_neg(l, s);
    Val x1 = turn_load(l, t, d, w, n), x2 = turn_load(l, t, half, w, n);
    turn_store(l, t, l_sub(l, l_mul(l, x1, c), l_mul(l, x2, s)), d, n);
    turn_store(l, t, l_add(l, l_mul(l, x2, c), l_mul(l, x1, s)), half, n);
}

/* Pairs (2i, 2i+1), n features at d: y = x cos + swapped x * (-sin, sin). */
static void turn_pairs(L *l, const Turn *t, Val d, int n)
{
    Val both = l_load(l, l->real, l_real_at(l, t->cs, d), l->lanes, n), sign[L_LANES_MAX];
    double first = l->spec->inverse ? 1 : -1;
    for (int i = 0; i < l->lanes; i++) sign[i] = l_num(l, i & 1 ? -first : first);
    Val s = l_mul(l, pairs(l, both, 1, 1), LLVMConstVector(sign, (unsigned)l->lanes));
    Val x = turn_load(l, t, d, l->lanes, n);
    Val y = l_add(l, l_mul(l, x, pairs(l, both, 0, 0)), l_mul(l, pairs(l, x, 1, 0), s));
    turn_store(l, t, y, d, n);
}

static void copy_features(L *l, const Turn *t, Val d, int n)
{
    turn_store(l, t, turn_load(l, t, d, l->lanes, n), d, n);
}

/* fn on features from .. to, `lanes` at a time. */
static void features(L *l, const Turn *t, void (*fn)(L *, const Turn *, Val, int), int64_t from,
                     int64_t to, int lanes)
{
    int64_t whole = from + (to - from) / lanes * lanes;
    if (from == to) return;
    Loop o = l_for(l, "feature", l_i64(l, from), l_i64(l, whole), lanes, 0, NULL);
    fn(l, t, o.i, lanes);
    l_next(l, &o, NULL);
    if (whole < to) fn(l, t, l_i64(l, whole), (int)(to - whole));
}

void emit_rope(L *l, const KernelSpec *s)
{
    l_kernel(l, s, 3);
    Val pos = l_field(l, l->ptr, row_pos);
    Loop o = l_for(l, "row", l->lo, l->hi, 1, 0, NULL);
    Val p = LLVMBuildSExt(l->b, l_load(l, l->i32, l_at(l, l->i32, pos, o.i), 1, 1), l->i64, "");
    Val x = l_arg_at(l, 0, l_imulc(l, o.i, s->ld[0]));
    Val y = l_arg_at(l, 1, l_imulc(l, o.i, s->ld[1]));
    Turn t = { .cs = l_arg_at(l, 2, l_imulc(l, p, s->rotary)), .tx = l->stored[0],
               .ty = l->stored[1] };
    Loop h = l_for(l, "head", l_i64(l, 0), l_i64(l, s->heads), 1, 0, NULL);
    t.x = l_at(l, t.tx, x, l_imulc(l, h.i, s->hd));
    t.y = l_at(l, t.ty, y, l_imulc(l, h.i, s->hd));
    if (s->interleaved) features(l, &t, turn_pairs, 0, s->rotary, l->lanes);
    else features(l, &t, turn_halves, 0, s->rotary / 2, l->lanes / 2);
    features(l, &t, copy_features, s->rotary, s->hd, l->lanes);
    l_next(l, &h, NULL);
    l_next(l, &o, NULL);
    l_finish(l);
}

/* Angle per position of each pair, theta^(-2i/rotary), as constants of the module. */
static Val frequencies(L *l, const KernelSpec *s)
{
    int n = (int)(s->rotary / 2);
    Val *f = NEWN(Val, n + 1);
    for (int i = 0; i < n; i++)
        f[i] = LLVMConstReal(l->f64, pow(s->theta, -2.0 * i / (double)s->rotary));
    Val all = LLVMConstArray2(l->f64, f, (uint64_t)n);
    Val g = LLVMAddGlobal(l->mod, LLVMTypeOf(all), str_fmt("%s.frequency", s->name));
    LLVMSetInitializer(g, all);
    LLVMSetGlobalConstant(g, 1);
    LLVMSetLinkage(g, LLVMInternalLinkage);
    return g;
}

/* A libm function in double, whatever the kernel's type is. */
static Val in_double(L *l, const char *name, Val x)
{
    bool was = l->is_double;
    Typ real = l->real;
    l->is_double = true;
    l->real = l->f64;
    Val y = l_libm(l, name, x);
    l->is_double = was;
    l->real = real;
    return y;
}

static Val from_double(L *l, Val x)
{
    return l->is_double ? x : LLVMBuildFPTrunc(l->b, x, l->f32, "");
}

/* table[pos][2i] = cos(pos f[i]), [2i+1] = sin */
void emit_rope_table(L *l, const KernelSpec *s)
{
    l_kernel(l, s, 1);
    Val f = frequencies(l, s);
    Loop o = l_for(l, "pos", l->lo, l->hi, 1, 0, NULL);
    Val pos = LLVMBuildSIToFP(l->b, o.i, l->f64, "");
    Val row = l_real_at(l, l->arg[0], l_imulc(l, o.i, s->rotary));
    Loop c = l_for(l, "pair", l_i64(l, 0), l_i64(l, s->rotary / 2), 1, 0, NULL);
    Val each = LLVMBuildLoad2(l->b, l->f64, l_at(l, l->f64, f, c.i), "");
    Val angle = LLVMBuildFMul(l->b, pos, each, "");
    Val p = l_real_at(l, row, l_imulc(l, c.i, 2));
    l_store(l, from_double(l, in_double(l, "cos", angle)), p, 1);
    l_store(l, from_double(l, in_double(l, "sin", angle)), l_real_at(l, p, l_i64(l, 1)), 1);
    l_next(l, &c, NULL);
    l_next(l, &o, NULL);
    l_finish(l);
}

/* ---- embeddings ------------------------------------------------------------------ */

/* Row of the block for local row r; *here: whether this rank has it. */
static Val table_row(L *l, Val ids, Val base, Val r, Val *here)
{
    Val id = LLVMBuildSExt(l->b, l_load(l, l->i32, l_at(l, l->i32, ids, r), 1, 1), l->i64, "");
    id = l_isub(l, id, base);
    *here = l_icmp(l, LLVMIntULT, id, l_i64(l, l->spec->brows));
    return id;
}

typedef struct { Val from, to; Typ from_type, to_type; } Convert;

static void convert_vector(L *l, void *state, Val i, Val n, Val *carry)
{
    Convert *c = state;
    (void)carry;
    put_at(l, c->to_type, get_at(l, c->from_type, c->from, i, n), c->to, i, n);
}

/* y[r, :] = E[ids[r] - base, :] or 0 */
void emit_embed(L *l, const KernelSpec *s)
{
    if (s->brows <= 0) bug("kernel %s: brows is not set", s->name);
    l_kernel(l, s, 2);
    Val ids = l_field(l, l->ptr, ids), base = l_field(l, l->i64, base), here;
    unsigned align = l_bytes(l->stored[1]);
    Val bytes = l_i64(l, s->cols * align);
    Loop o = l_for(l, "row", l->lo, l->hi, 1, 0, NULL);
    Val y = l_arg_at(l, 1, l_imulc(l, o.i, s->ld[1]));
    Val row = table_row(l, ids, base, o.i, &here);
    If i = l_if(l, "here", here);
    Val e = l_arg_at(l, 0, l_imulc(l, row, s->ld[0]));
    if (l->stored[0] == l->stored[1]) {
        LLVMBuildMemCpy(l->b, y, align, e, align, bytes);
    } else {
        Convert c = { e, y, l->stored[0], l->stored[1] };
        stream(l, l_i64(l, 0), l_i64(l, s->cols), convert_vector, &c, NULL);
    }
    i = l_else(l, i);
    LLVMBuildMemSet(l->b, y, LLVMConstNull(l->i8), bytes, align);
    l_fi(l, i);
    l_next(l, &o, NULL);
    l_finish(l);
}

typedef struct { Val dy, de; } AddRow;

static void add_vector(L *l, void *state, Val i, Val n, Val *carry)
{
    AddRow *a = state;
    (void)carry;
    Val sum = l_add(l, get_at(l, l->stored[1], a->de, i, n), get_at(l, l->stored[0], a->dy, i, n));
    put_at(l, l->stored[1], sum, a->de, i, n);
}

/* dE[ids[r] - base, lo .. hi] += dy[r, lo .. hi] */
void emit_embed_dw(L *l, const KernelSpec *s)
{
    if (s->brows <= 0) bug("kernel %s: brows is not set", s->name);
    l_kernel(l, s, 2);
    Val ids = l_field(l, l->ptr, ids), base = l_field(l, l->i64, base), here;
    Loop o = l_for(l, "row", l_i64(l, 0), l_i64(l, s->nrows), 1, 0, NULL);
    Val row = table_row(l, ids, base, o.i, &here);
    If i = l_if(l, "here", here);
    AddRow a = { l_arg_at(l, 0, l_imulc(l, o.i, s->ld[0])),
                 l_arg_at(l, 1, l_imulc(l, row, s->ld[1])) };
    stream(l, l->lo, l->hi, add_vector, &a, NULL);
    l_fi(l, i);
    l_next(l, &o, NULL);
    l_finish(l);
}

/* ---- gradient norm ----------------------------------------------------------------- */

static void square_vector(L *l, void *state, Val i, Val n, Val *carry)
{
    (void)state;
    Val x = get(l, 0, i, n);
    if (!l->is_double) x = LLVMBuildFPExt(l->b, x, l_vec(l->f64, l->lanes), "");
    *carry = l_fma(l, x, x, *carry);
}

/* total += sum x^2 */
void emit_norm(L *l, const KernelSpec *s)
{
    l_kernel(l, s, 1);
    Val sum = LLVMConstNull(l_vec(l->f64, l->lanes));
    stream(l, l->lo, l->hi, square_vector, NULL, &sum);
    add_total(l, l_reduce(l, L_SUM, sum));
    l_finish(l);
}

/* ---- optimizers -------------------------------------------------------------------- */

typedef struct { Val lr, scale, b1, c1, b2, c2, eps, decay, correct1, correct2, momentum; } Factors;

static Val less_than_one(L *l, Val x)
{
    return LLVMBuildFSub(l->b, LLVMConstReal(l->f64, 1), x, "");
}

/* The new p, and where it is kept twice its copy in argument `copy`. */
static void put_parameter(L *l, Val p, int copy, Val i, Val n)
{
    put(l, p, 0, i, n);
    if (l->spec->copy) put(l, p, copy, i, n);
}

/* m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 * p -= lr ((m correct1) / (sqrt(v correct2) + eps) + decay p) */
static void adamw_vector(L *l, void *state, Val i, Val n, Val *carry)
{
    Factors *u = state;
    (void)carry;
    Val p = get(l, 0, i, n), g = l_mul(l, get(l, 1, i, n), u->scale);
    Val m = l_fma(l, u->b1, get(l, 2, i, n), l_mul(l, u->c1, g));
    Val v = l_fma(l, u->b2, get(l, 3, i, n), l_mul(l, u->c2, l_mul(l, g, g)));
    put(l, m, 2, i, n);
    put(l, v, 3, i, n);
    Val root = l_add(l, l_sqrt(l, l_mul(l, v, u->correct2)), u->eps);
    Val d = l_fma(l, u->decay, p, l_div(l, l_mul(l, m, u->correct1), root));
    put_parameter(l, l_sub(l, p, l_mul(l, u->lr, d)), 4, i, n);
}

/* m = momentum m + g; p -= lr m */
static void sgd_vector(L *l, void *state, Val i, Val n, Val *carry)
{
    Factors *u = state;
    (void)carry;
    Val g = l_mul(l, get(l, 1, i, n), u->scale);
    Val m = l_fma(l, u->momentum, get(l, 2, i, n), g);
    put(l, m, 2, i, n);
    put_parameter(l, l_sub(l, get(l, 0, i, n), l_mul(l, u->lr, m)), 3, i, n);
}

void emit_update(L *l, const KernelSpec *s)
{
    bool adamw = s->kind == K_ADAMW;
    int copy = adamw ? 4 : 3;
    l_kernel(l, s, copy + s->copy);
    if (s->copy) l->stored[copy] = l->bf16;
    Factors u = { .lr = everywhere(l, l_field(l, l->f64, lr)),
                  .scale = everywhere(l, l_field(l, l->f64, scale)) };
    if (adamw) {
        Val b1 = l_field(l, l->f64, beta1), b2 = l_field(l, l->f64, beta2);
        u.b1 = everywhere(l, b1);
        u.c1 = everywhere(l, less_than_one(l, b1));
        u.b2 = everywhere(l, b2);
        u.c2 = everywhere(l, less_than_one(l, b2));
        u.eps = everywhere(l, l_field(l, l->f64, eps));
        u.decay = everywhere(l, l_field(l, l->f64, decay));
        u.correct1 = everywhere(l, l_field(l, l->f64, correct1));
        u.correct2 = everywhere(l, l_field(l, l->f64, correct2));
    } else {
        u.momentum = everywhere(l, l_field(l, l->f64, momentum));
    }
    stream(l, l->lo, l->hi, adamw ? adamw_vector : sgd_vector, &u, NULL);
    l_finish(l);
}
