/*
 * emit_llvm_attn.c - attention by blocks, forward and backward, without a T x T
 * matrix.
 *
 * Queries lie in the lanes: a block of up to `bq` query rows is packed as
 * columns, QT [hd][bq], cut into panels of one vector. Then scores ST [key][query],
 * maxima, exp and sums are plain vertical vector code, and every product
 * is a tile whose broadcast operand is read from K, V or ST as it lies:
 *
 *     dots    ST[j, :]  = sum over d of K[j, d]  QT[d, :]          (also V, dOT)
 *     mix     OT[d, :] += sum over j of V[j, d]  PT[j, :]          (also K, dST)
 *     outer   dV[j, :] += sum over i of PT[j, i] dO[i, :]          (also dST, Q)
 *
 * K, V, Q and dO that are stored as bf16 are widened first, a block at a time: a block is
 * used by every row of the other side's block.
 *
 * Edges need no code of their own: a row beyond the end is the last row again, so
 * that it computes and stores what the last row does. Keys that no query of a panel
 * may see are not computed; where only some may, scores are masked.
 */
#include "llvm_emit.h"

typedef struct {
    L *l; const KernelSpec *s;
    int64_t bq, bk, hd;
    int64_t line;               // from row to row of QT, ST ..: bq and a bit, so that a
                                // panel's rows do not all fall into the same few cache sets
    bool ordered;               // a query sees no key behind it
    double none;                // score of a key that is not seen
    Sub widen, pack, unpack, dots, mix, outer;
    Val runs_q, runs_k, nruns_q, nruns_k;
} Attn;

/* n rows from local row `row`, positions pos ..; all i64. */
typedef struct { Val row, n, pos, seq; } Span;

/* Rows of one head as reals: row i starts at p + i*ld. */
typedef struct { Val p, ld; } Rows;

/* A panel: queries i .. last of the block, of which the first `keys` keys matter. */
typedef struct { Val i, last, keys; } Panel;

/* ---- pieces ------------------------------------------------------------------- */

static int64_t transposed(const L *l) { return l->reg_bytes / l->size; }

static Val vec_at(L *l, Val p, Val i)
{
    return l_load(l, l->real, l_real_at(l, p, i), l->lanes, l->lanes);
}

static void vec_put(L *l, Val x, Val p, Val i) { l_store(l, x, l_real_at(l, p, i), l->lanes); }

/* i + u, at most n - 1 */
static Val clamped(L *l, Val i, int64_t u, Val n)
{
    return l_imin(l, l_iaddc(l, i, u), l_iaddc(l, n, -1));
}

static Val round_up(L *l, Val n, int64_t to)
{
    return l_imulc(l, LLVMBuildUDiv(l->b, l_iaddc(l, n, to - 1), l_i64(l, to), ""), to);
}

/* Functions that forward and backward kernels of a module have in common. */
static const char *shared_name(Attn *a, const char *what)
{
    return str_fmt("attention.%s.%s%d", what, a->l->is_double ? "f64.hd" : "f32.hd", (int)a->hd);
}

/* dst[i][d] = src[i][d], i < n, from bf16 to rows of hd reals */
static void make_widen(Attn *a)
{
    L *l = a->l;
    int64_t whole = a->hd / l->lanes * l->lanes;
    if (l_sub_known(l, &a->widen, shared_name(a, "widen"))) return;
    a->widen = l_sub_begin(l, shared_name(a, "widen"), 4,
        (Typ[]){ l->ptr, l->i64, l->i64, l->ptr },
        (const char *const[]){ "src", "ld", "n", "dst" });
    Loop o = l_for(l, "i", l_i64(l, 0), LLVMGetParam(l->fn, 2), 1, 0, NULL);
    Val src = l_at(l, l->bf16, LLVMGetParam(l->fn, 0), l_imul(l, o.i, LLVMGetParam(l->fn, 1)));
    Val dst = l_real_at(l, LLVMGetParam(l->fn, 3), l_imulc(l, o.i, a->hd));
    Loop c = l_for(l, "d", l_i64(l, 0), l_i64(l, whole), l->lanes, 0, NULL);
    vec_put(l, l_load(l, l->bf16, l_at(l, l->bf16, src, c.i), l->lanes, l->lanes), dst, c.i);
    l_next(l, &c, NULL);
    if (a->hd > whole) {
        int n = (int)(a->hd - whole);
        Val at = l_i64(l, whole), x = l_load(l, l->bf16, l_at(l, l->bf16, src, at), l->lanes, n);
        l_store(l, x, l_real_at(l, dst, at), n);
    }
    l_next(l, &o, NULL);
    l_sub_end(l, &a->widen);
}

/* One square of pack: columns d .. d+active of rows p[] go to rows of dst. */
static void pack_square(Attn *a, Val *p, Val d, int active, Val dst, Val i, Val scale)
{
    L *l = a->l;
    int n = (int)transposed(l);
    Val x[L_LANES_MAX];
    for (int u = 0; u < n; u++) x[u] = l_load(l, l->real, l_real_at(l, p[u], d), n, active);
    l_transpose(l, x, n);
    for (int u = 0; u < active; u++) {
        Val at = l_iadd(l, l_imulc(l, l_iaddc(l, d, u), a->line), i);
        l_store(l, l_mul(l, x[u], l_splat(l, scale, n)), l_real_at(l, dst, at), n);
    }
}

/* dst[d][i] = scale src[i][d], i < n rounded up to a panel */
static void make_pack(Attn *a)
{
    L *l = a->l;
    int n = (int)transposed(l);
    if (l_sub_known(l, &a->pack, shared_name(a, "pack"))) return;
    a->pack = l_sub_begin(l, shared_name(a, "pack"), 5,
        (Typ[]){ l->ptr, l->i64, l->i64, l->ptr, l->real },
        (const char *const[]){ "src", "ld", "n", "dst", "scale" });
    Val src = LLVMGetParam(l->fn, 0), ld = LLVMGetParam(l->fn, 1), rows = LLVMGetParam(l->fn, 2);
    Val dst = LLVMGetParam(l->fn, 3), scale = LLVMGetParam(l->fn, 4), p[L_LANES_MAX];
    Loop o = l_for(l, "i", l_i64(l, 0), round_up(l, rows, l->lanes), n, 0, NULL);
    for (int u = 0; u < n; u++)
        p[u] = l_real_at(l, src, l_imul(l, clamped(l, o.i, u, rows), ld));
    Loop c = l_for(l, "d", l_i64(l, 0), l_i64(l, a->hd / n * n), n, 0, NULL);
    pack_square(a, p, c.i, n, dst, o.i, scale);
    l_next(l, &c, NULL);
    if (a->hd % n) pack_square(a, p, l_i64(l, a->hd / n * n), (int)(a->hd % n), dst, o.i, scale);
    l_next(l, &o, NULL);
    l_sub_end(l, &a->pack);
}

static void unpack_square(Attn *a, Typ to, Val src, Val i, Val d, int active, Val factor,
                          Val *p)
{
    L *l = a->l;
    int n = (int)transposed(l);
    Val x[L_LANES_MAX];
    for (int u = 0; u < n; u++) {
        Val at = l_iadd(l, l_imulc(l, l_iaddc(l, d, u), a->line), i);
        x[u] = LLVMConstNull(l_reals(l, n));
        if (u < active) x[u] = l_mul(l, l_load(l, l->real, l_real_at(l, src, at), n, n), factor);
    }
    l_transpose(l, x, n);
    for (int u = 0; u < n; u++) l_store(l, l_rounded(l, to, x[u]), l_at(l, to, p[u], d), active);
}

/* dst[i][d] = factor[i] src[d][i], i < n; dst has elements of type `to` */
static void make_unpack(Attn *a, Typ to)
{
    L *l = a->l;
    int n = (int)transposed(l);
    const char *name = shared_name(a, to == l->bf16 ? "unpack.bf16" : "unpack");
    if (l_sub_known(l, &a->unpack, name)) return;
    a->unpack = l_sub_begin(l, name, 5,
        (Typ[]){ l->ptr, l->ptr, l->i64, l->i64, l->ptr },
        (const char *const[]){ "src", "dst", "ld", "n", "factor" });
    Val src = LLVMGetParam(l->fn, 0), dst = LLVMGetParam(l->fn, 1), ld = LLVMGetParam(l->fn, 2);
    Val rows = LLVMGetParam(l->fn, 3), factors = LLVMGetParam(l->fn, 4), p[L_LANES_MAX];
    Loop o = l_for(l, "i", l_i64(l, 0), rows, n, 0, NULL);
    Val factor = l_load(l, l->real, l_real_at(l, factors, o.i), n, n);
    for (int u = 0; u < n; u++)
        p[u] = l_at(l, to, dst, l_imul(l, clamped(l, o.i, u, rows), ld));
    Loop c = l_for(l, "d", l_i64(l, 0), l_i64(l, a->hd / n * n), n, 0, NULL);
    unpack_square(a, to, src, o.i, c.i, n, factor, p);
    l_next(l, &c, NULL);
    if (a->hd % n)
        unpack_square(a, to, src, o.i, l_i64(l, a->hd / n * n), (int)(a->hd % n), factor, p);
    l_next(l, &o, NULL);
    l_sub_end(l, &a->unpack);
}

/* c[j, :] = sum over d of k[j, d] b[d, :] for j < rows; k has n rows */
static void make_dots(Attn *a)
{
    L *l = a->l;
    if (l_sub_known(l, &a->dots, shared_name(a, "dots"))) return;
    a->dots = l_sub_begin(l, shared_name(a, "dots"), 6,
        (Typ[]){ l->ptr, l->i64, l->i64, l->i64, l->ptr, l->ptr },
        (const char *const[]){ "k", "ld", "n", "rows", "b", "c" });
    Val k = LLVMGetParam(l->fn, 0), ld = LLVMGetParam(l->fn, 1), n = LLVMGetParam(l->fn, 2);
    Val c = LLVMGetParam(l->fn, 5);
    Loop o = l_for(l, "j", l_i64(l, 0), LLVMGetParam(l->fn, 3), l->tile_rows, 0, NULL);
    Tile t = { .a_step = l_i64(l, 1), .b = LLVMGetParam(l->fn, 4), .b_step = l_i64(l, a->line),
               .n = l_i64(l, a->hd), .cols = l->lanes, .mode = TILE_SET };
    for (int u = 0; u < l->tile_rows; u++) {
        t.a[u] = l_real_at(l, k, l_imul(l, clamped(l, o.i, u, n), ld));
        t.c[u] = l_real_at(l, c, l_imulc(l, l_iaddc(l, o.i, u), a->line));
    }
    l_tile(l, &t);
    l_next(l, &o, NULL);
    l_sub_end(l, &a->dots);
}

/* c[d, :] = c[d, :] scale + sum over j < n of v[j, d] p[j, :] */
static void make_mix(Attn *a, int mode)
{
    L *l = a->l;
    a->mix = l_sub_begin(l, str_fmt("%s.mix", l->spec->name), 6,
        (Typ[]){ l->ptr, l->i64, l->i64, l->ptr, l->ptr, l_reals(l, l->lanes) },
        (const char *const[]){ "v", "ld", "n", "p", "c", "scale" });
    Val v = LLVMGetParam(l->fn, 0), c = LLVMGetParam(l->fn, 4), hd = l_i64(l, a->hd);
    Loop o = l_for(l, "d", l_i64(l, 0), hd, l->tile_rows, 0, NULL);
    Tile t = { .a_step = LLVMGetParam(l->fn, 1), .b = LLVMGetParam(l->fn, 3),
               .b_step = l_i64(l, a->line), .n = LLVMGetParam(l->fn, 2), .cols = l->lanes,
               .mode = mode, .scale = LLVMGetParam(l->fn, 5) };
    for (int u = 0; u < l->tile_rows; u++) {
        Val d = clamped(l, o.i, u, hd);
        t.a[u] = l_real_at(l, v, d);
        t.c[u] = l_real_at(l, c, l_imulc(l, d, a->line));
    }
    l_tile(l, &t);
    l_next(l, &o, NULL);
    l_sub_end(l, &a->mix);
}

/* One panel of columns d .. of outer. */
static void outer_panel(Attn *a, Val d, int cols)
{
    L *l = a->l;
    Val p = LLVMGetParam(l->fn, 0), c = LLVMGetParam(l->fn, 4), zero = l_i64(l, 0);
    Tile t = { .a_step = l_i64(l, 1), .b = l_real_at(l, LLVMGetParam(l->fn, 2), d),
               .b_step = LLVMGetParam(l->fn, 3), .n = LLVMGetParam(l->fn, 1), .cols = cols,
               .mode = TILE_ADD };
    for (int u = 0; u < l->tile_rows; u++) {
        Val row = l_imul(l, clamped(l, zero, u, LLVMGetParam(l->fn, 6)), LLVMGetParam(l->fn, 5));
        t.a[u] = l_real_at(l, p, l_i64(l, u * a->line));
        t.c[u] = l_real_at(l, c, l_iadd(l, row, d));
    }
    l_tile(l, &t);
}

/* c[u, :] += sum over i < n of p[u, i] b[i, :], one group of tile rows; c has `rows` */
static void make_outer(Attn *a)
{
    L *l = a->l;
    a->outer = l_sub_begin(l, str_fmt("%s.outer", l->spec->name), 7,
        (Typ[]){ l->ptr, l->i64, l->ptr, l->i64, l->ptr, l->i64, l->i64 },
        (const char *const[]){ "p", "n", "b", "ldb", "c", "ldc", "rows" });
    int64_t whole = a->hd / l->lanes * l->lanes;
    Loop o = l_for(l, "d", l_i64(l, 0), l_i64(l, whole), l->lanes, 0, NULL);
    outer_panel(a, o.i, l->lanes);
    l_next(l, &o, NULL);
    if (a->hd > whole) outer_panel(a, l_i64(l, whole), (int)(a->hd - whole));
    l_sub_end(l, &a->outer);
}

/* ---- who sees whom --------------------------------------------------------------- */

static Val run_field(L *l, Val runs, Val i, int k)
{
    Val x = l_load(l, l->i32, l_at(l, l->i32, runs, l_iaddc(l, l_imulc(l, i, 4), k)), 1, 1);
    return LLVMBuildSExt(l->b, x, l->i64, "");
}

static Span run_span(L *l, Val runs, Val i)
{
    return (Span){ run_field(l, runs, i, 0), run_field(l, runs, i, 1), run_field(l, runs, i, 3),
                   run_field(l, runs, i, 2) };
}

/* The block of at most `most` rows that starts `at` rows behind the span's start. */
static Span block_of(L *l, const Span *s, Val at, Val end, int64_t most)
{
    return (Span){ l_iadd(l, s->row, at), l_imin(l, l_isub(l, end, at), l_i64(l, most)),
                   l_iadd(l, s->pos, at), s->seq };
}

typedef void BlockFn(Attn *a, void *state, const Span *q, const Span *k);

/* Calls fn for the blocks of keys of q's sequence that some row of q sees. */
static void each_key_block(Attn *a, const Span *q, BlockFn *fn, void *state)
{
    L *l = a->l;
    Loop o = l_for(l, "krun", l_i64(l, 0), a->nruns_k, 1, 0, NULL);
    Span run = run_span(l, a->runs_k, o.i);
    If same = l_if(l, "same", l_icmp(l, LLVMIntEQ, run.seq, q->seq));
    Val from = l_i64(l, 0), to = run.n;
    if (a->ordered) to = l_imin(l, to, l_isub(l, l_iadd(l, q->pos, q->n), run.pos));
    if (a->s->window > 0)
        from = l_imax(l, from, l_isub(l, l_iaddc(l, q->pos, 1 - a->s->window), run.pos));
    Loop c = l_for(l, "kblock", from, to, a->bk, 0, NULL);
    Span k = block_of(l, &run, c.i, to, a->bk);
    fn(a, state, q, &k);
    l_next(l, &c, NULL);
    l_fi(l, same);
    l_next(l, &o, NULL);
}

typedef void PanelFn(Attn *a, void *state, const Span *q, const Span *k, const Panel *p);

static void each_panel(Attn *a, const Span *q, const Span *k, PanelFn *fn, void *state)
{
    L *l = a->l;
    Loop o = l_for(l, "panel", l_i64(l, 0), q->n, l->lanes, 0, NULL);
    Panel p = { .i = o.i, .last = clamped(l, o.i, l->lanes - 1, q->n), .keys = k->n };
    if (a->ordered)
        p.keys = l_imin(l, p.keys, l_iaddc(l, l_isub(l, l_iadd(l, q->pos, p.last), k->pos), 1));
    Val any = l_icmp(l, LLVMIntSGT, p.keys, l_i64(l, 0));
    if (a->s->window > 0) {         // the newest key against the oldest query
        Val newest = l_iadd(l, k->pos, k->n), oldest = l_iadd(l, q->pos, p.i);
        any = LLVMBuildAnd(l->b, any, l_icmp(l, LLVMIntSGT, newest,
                                             l_iaddc(l, oldest, 1 - a->s->window)), "");
    }
    If some = l_if(l, "seen", any);
    fn(a, state, q, k, &p);
    l_fi(l, some);
    l_next(l, &o, NULL);
}

static Val positions(Attn *a, const Span *q, const Panel *p)
{
    L *l = a->l;
    Val i = l_iadd(l, l_splat(l, LLVMBuildTrunc(l->b, p->i, l->i32, ""), l->lanes),
                   l_iota(l->i32, l->lanes));
    Val last = l_splat(l, LLVMBuildTrunc(l->b, p->last, l->i32, ""), l->lanes);
    i = l_imin(l, i, last);
    return l_iadd(l, i, l_splat(l, LLVMBuildTrunc(l->b, q->pos, l->i32, ""), l->lanes));
}

/* Which lanes, at positions `at`, see the key at position `pos`. */
static Val sees(Attn *a, Val at, Val pos)
{
    L *l = a->l;
    Val key = l_splat(l, LLVMBuildTrunc(l->b, pos, l->i32, ""), l->lanes);
    Val yes = l_icmp(l, LLVMIntSLE, key, at);
    if (a->s->window <= 0) return yes;
    Val least = l_isub(l, at, l_const(l_type(at), (double)a->s->window));
    return LLVMBuildAnd(l->b, yes, l_icmp(l, LLVMIntSGT, key, least), "");
}

/* Is there a key in the panel's block that some of its queries do not see? */
static Val needs_mask(Attn *a, const Span *q, const Span *k, const Panel *p)
{
    L *l = a->l;
    Val newest = l_iadd(l, k->pos, p->keys), first = l_iadd(l, q->pos, p->i);
    Val need = l_icmp(l, LLVMIntSGT, newest, l_iaddc(l, first, 1));
    if (a->s->window <= 0) return need;
    Val last = l_iadd(l, q->pos, p->last);
    return LLVMBuildOr(l->b, need, l_icmp(l, LLVMIntSLE, k->pos,
                                          l_iaddc(l, last, -a->s->window)), "");
}

/* &x[row, head h of hd] */
static Val head_at(Attn *a, int arg, Val row, Val h)
{
    L *l = a->l;
    Val at = l_iadd(l, l_imulc(l, row, a->s->ld[arg]), l_imulc(l, h, a->hd));
    return l_arg_at(l, arg, at);
}

/* Rows of the span, head h: as they lie, or widened into `room` [n][hd]. */
static Rows rows_of(Attn *a, int arg, const Span *s, Val h, Val room)
{
    L *l = a->l;
    Rows r = { head_at(a, arg, s->row, h), l_i64(l, a->s->ld[arg]) };
    if (l->stored[arg] == l->real) return r;
    l_sub_call(l, &a->widen, 4, (Val[]){ r.p, r.ld, s->n, room });
    return (Rows){ room, l_i64(l, a->hd) };
}

static Val row_at(L *l, const Rows *r, Val i) { return l_real_at(l, r->p, l_imul(l, i, r->ld)); }

static Val lse_at(Attn *a, Val row, Val h)
{
    int64_t ld = a->s->ld[4] ? a->s->ld[4] : a->s->heads;
    return l_real_at(a->l, a->l->arg[4], l_iadd(a->l, l_imulc(a->l, row, ld), h));
}

/* out: the argument that unpack writes. */
static Attn *attn_open(L *l, const KernelSpec *s, int nargs, int out)
{
    l_kernel(l, s, nargs);
    Attn *a = NEW(Attn);
    *a = (Attn){ .l = l, .s = s, .bq = 64, .bk = 64, .hd = s->hd,
                 .ordered = s->causal || s->window > 0, .none = s->is_double ? -1e300 : -1e30 };
    if (s->heads < s->kv_heads) bug("kernel %s: fewer heads than kv_heads", s->name);
    while (3 * a->hd * a->bq * l->size > 400 << 10 && a->bq > l->lanes) a->bq /= 2;
    a->line = a->bq + 64 / l->size;
    a->runs_q = l_field(l, l->ptr, runs_q);
    a->runs_k = l_field(l, l->ptr, runs_k);
    a->nruns_q = l_field(l, l->i64, nruns_q);
    a->nruns_k = l_field(l, l->i64, nruns_k);
    if (s->bf16) make_widen(a);
    make_pack(a);
    make_unpack(a, l->stored[out]);
    make_dots(a);
    return a;
}

static void clear(Attn *a, Val p, int64_t n)
{
    L *l = a->l;
    LLVMBuildMemSet(l->b, p, LLVMConstNull(l->i8), l_i64(l, n * l->size), 64);
}

static void fill(Attn *a, Val p, double x)
{
    L *l = a->l;
    for (int64_t i = 0; i < a->bq; i += l->lanes)
        vec_put(l, l_const(l_reals(l, l->lanes), x), p, l_i64(l, i));
}

enum { A_Q, A_K, A_V, A_O, A_LSE, A_DO, A_DQ, A_DK, A_DV };

/* An array for rows that are widened, `n` of them; none where it is not needed. */
static Val room(Attn *a, int arg, int64_t n, const char *name)
{
    return a->l->stored[arg] == a->l->real ? NULL : l_stack(a->l, n * a->hd, name);
}

/* ---- forward ------------------------------------------------------------------- */

typedef struct {
    Val head, kv_head;
    Val qt, st, ot, most, total, factor;    // work arrays; most, total: of each query
    Val qroom, kroom, vroom;
    Rows k, v;                              // of the present block
} Forward;

static void softcap_scores(Attn *a, Val st, Val keys)
{
    L *l = a->l;
    double c = a->s->softcap;
    Loop o = l_for(l, "cap", l_i64(l, 0), keys, 1, 0, NULL);
    Val at = l_imulc(l, o.i, a->line), x = vec_at(l, st, at);
    x = l_tanh(l, l_mul(l, x, l_const(l_type(x), 1 / c)));
    vec_put(l, l_mul(l, x, l_const(l_type(x), c)), st, at);
    l_next(l, &o, NULL);
}

static void mask_scores(Attn *a, Val st, const Span *q, const Span *k, const Panel *p)
{
    L *l = a->l;
    If need = l_if(l, "mask", needs_mask(a, q, k, p));
    Val pos = positions(a, q, p);
    Loop o = l_for(l, "masked", l_i64(l, 0), p->keys, 1, 0, NULL);
    Val at = l_imulc(l, o.i, a->line), x = vec_at(l, st, at);
    x = l_select(l, sees(a, pos, l_iadd(l, k->pos, o.i)), x, l_const(l_type(x), a->none));
    vec_put(l, x, st, at);
    l_next(l, &o, NULL);
    l_fi(l, need);
}

/* m' = max(m, s); p = exp(s - m'); total = total exp(m - m') + sum p. Gives exp(m - m'). */
static Val softmax_panel(Attn *a, Forward *f, Val st, const Panel *p)
{
    L *l = a->l;
    Val old = vec_at(l, f->most, p->i);
    Loop o = l_for(l, "max", l_i64(l, 0), p->keys, 1, 1, &old);
    Val most = l_max(l, vec_at(l, st, l_imulc(l, o.i, a->line)), o.carry[0]);
    l_next(l, &o, &most);
    most = o.carry[0];
    Val shrink = l_exp(l, l_sub(l, old, most));
    Val total = l_mul(l, vec_at(l, f->total, p->i), shrink);
    Loop e = l_for(l, "exp", l_i64(l, 0), p->keys, 1, 1, &total);
    Val at = l_imulc(l, e.i, a->line), x = l_exp(l, l_sub(l, vec_at(l, st, at), most));
    vec_put(l, x, st, at);
    total = l_add(l, e.carry[0], x);
    l_next(l, &e, &total);
    vec_put(l, most, f->most, p->i);
    vec_put(l, e.carry[0], f->total, p->i);
    return shrink;
}

static void forward_panel(Attn *a, void *state, const Span *q, const Span *k, const Panel *p)
{
    L *l = a->l;
    Forward *f = state;
    Val st = f->st;
    l_sub_call(l, &a->dots, 6, (Val[]){ f->k.p, f->k.ld, k->n, p->keys,
                                        l_real_at(l, f->qt, p->i), st });
    if (a->s->softcap > 0) softcap_scores(a, st, p->keys);
    if (a->ordered) mask_scores(a, st, q, k, p);
    Val shrink = softmax_panel(a, f, st, p);
    l_sub_call(l, &a->mix, 6, (Val[]){ f->v.p, f->v.ld, p->keys, st,
                                       l_real_at(l, f->ot, p->i), shrink });
}

static void forward_block(Attn *a, void *state, const Span *q, const Span *k)
{
    Forward *f = state;
    f->k = rows_of(a, A_K, k, f->kv_head, f->kroom);
    f->v = rows_of(a, A_V, k, f->kv_head, f->vroom);
    each_panel(a, q, k, forward_panel, state);
}

/* o = OT / total, lse = m + log(total) */
static void forward_results(Attn *a, Forward *f, const Span *q)
{
    L *l = a->l;
    Loop o = l_for(l, "result", l_i64(l, 0), q->n, l->lanes, 0, NULL);
    Val total = vec_at(l, f->total, o.i);
    vec_put(l, l_div(l, l_const(l_type(total), 1), total), f->factor, o.i);
    vec_put(l, l_add(l, vec_at(l, f->most, o.i), l_libm(l, "log", total)), f->most, o.i);
    l_next(l, &o, NULL);
    Loop r = l_for(l, "lse", l_i64(l, 0), q->n, 1, 0, NULL);
    Val lse = l_load(l, l->real, l_real_at(l, f->most, r.i), 1, 1);
    l_store(l, lse, lse_at(a, l_iadd(l, q->row, r.i), f->head), 1);
    l_next(l, &r, NULL);
    l_sub_call(l, &a->unpack, 5, (Val[]){ f->ot, head_at(a, A_O, q->row, f->head),
                                          l_i64(l, a->s->ld[A_O]), q->n, f->factor });
}

/* Item = run of queries * heads + head. */
void emit_attn(L *l, const KernelSpec *s)
{
    Attn *a = attn_open(l, s, 5, A_O);
    make_mix(a, TILE_SCALE);
    int64_t wide = a->hd * a->line;
    Forward f = { .qt = l_stack(l, wide, "v_qt"), .ot = l_stack(l, wide, "v_ot"),
        .st = l_stack(l, (a->bk + l->tile_rows) * a->line, "v_st"),
        .most = l_stack(l, a->bq, "v_max"), .total = l_stack(l, a->bq, "v_total"),
        .factor = l_stack(l, a->bq, "v_factor"), .qroom = room(a, A_Q, a->bq, "v_q"),
        .kroom = room(a, A_K, a->bk, "v_k"), .vroom = room(a, A_V, a->bk, "v_v") };
    Loop o = l_for(l, "item", l->lo, l->hi, 1, 0, NULL);
    Val heads = l_i64(l, s->heads);
    Span run = run_span(l, a->runs_q, LLVMBuildUDiv(l->b, o.i, heads, ""));
    f.head = LLVMBuildURem(l->b, o.i, heads, "v_head");
    f.kv_head = LLVMBuildUDiv(l->b, l_imulc(l, f.head, s->kv_heads), heads, "v_kv_head");
    Loop c = l_for(l, "qblock", l_i64(l, 0), run.n, a->bq, 0, NULL);
    Span q = block_of(l, &run, c.i, run.n, a->bq);
    Rows rows = rows_of(a, A_Q, &q, f.head, f.qroom);
    l_sub_call(l, &a->pack, 5, (Val[]){ rows.p, rows.ld, q.n, f.qt, l_num(l, s->scale) });
    clear(a, f.ot, wide);
    fill(a, f.most, a->none);
    fill(a, f.total, 0);
    each_key_block(a, &q, forward_block, &f);
    forward_results(a, &f, &q);
    l_next(l, &c, NULL);
    l_next(l, &o, NULL);
    l_finish(l);
}

/* ---- backward ------------------------------------------------------------------ */

typedef struct {
    Val head, kv_head;
    Val qt, dot, dqt, pt, dst;      // QT, dOT, dQT [hd][bq]; PT, dST [bk][bq]
    Val lse, delta, one;
    Val qroom, doroom, kroom, vroom;
    Rows q, go, k, v;               // of the present blocks; go: dO
} Backward;

/* p = exp(s - lse), ds = p (dp - delta) scale, and through the cap 1 - (s/c)^2 */
static void gradient_scores(Attn *a, Backward *b, Val pt, Val dst, const Span *q, const Span *k,
                            const Panel *p)
{
    L *l = a->l;
    double cap = a->s->softcap;
    Val lse = vec_at(l, b->lse, p->i), delta = vec_at(l, b->delta, p->i), pos = positions(a, q, p);
    Loop o = l_for(l, "ds", l_i64(l, 0), round_up(l, p->keys, l->tile_rows), 1, 0, NULL);
    Val at = l_imulc(l, o.i, a->line), s = vec_at(l, pt, at), dp = vec_at(l, dst, at), t = NULL;
    if (cap > 0) {
        t = l_tanh(l, l_mul(l, s, l_const(l_type(s), 1 / cap)));
        s = l_mul(l, t, l_const(l_type(s), cap));
    }
    Val x = l_exp(l, l_sub(l, s, lse));
    if (a->ordered) {
        Val key = l_iadd(l, k->pos, clamped(l, o.i, 0, k->n));
        x = l_select(l, sees(a, pos, key), x, l_const(l_type(x), 0));
    }
    Val ds = l_mul(l, l_mul(l, x, l_const(l_type(x), a->s->scale)), l_sub(l, dp, delta));
    if (cap > 0) ds = l_mul(l, ds, l_sub(l, l_const(l_type(t), 1), l_mul(l, t, t)));
    vec_put(l, x, pt, at);
    vec_put(l, ds, dst, at);
    l_next(l, &o, NULL);
}

static void backward_panel(Attn *a, void *state, const Span *q, const Span *k, const Panel *p)
{
    L *l = a->l;
    Backward *b = state;
    Val pt = l_real_at(l, b->pt, p->i), dst = l_real_at(l, b->dst, p->i);
    l_sub_call(l, &a->dots, 6, (Val[]){ b->k.p, b->k.ld, k->n, p->keys,
                                        l_real_at(l, b->qt, p->i), pt });
    l_sub_call(l, &a->dots, 6, (Val[]){ b->v.p, b->v.ld, k->n, p->keys,
                                        l_real_at(l, b->dot, p->i), dst });
    gradient_scores(a, b, pt, dst, q, k, p);
    Val one = l_const(l_reals(l, l->lanes), 1);
    l_sub_call(l, &a->mix, 6, (Val[]){ b->k.p, b->k.ld, p->keys, dst,
                                       l_real_at(l, b->dqt, p->i), one });
}

/* dV, dK of one group of keys, from the queries from .. to that see some of them */
static void backward_keys(Attn *a, Backward *b, const Span *q, const Span *k)
{
    L *l = a->l;
    const int64_t *ld = a->s->ld;
    Loop o = l_for(l, "keys", l_i64(l, 0), k->n, l->tile_rows, 0, NULL);
    Val from = l_i64(l, 0), to = q->n, lead = l_isub(l, k->pos, q->pos);
    if (a->ordered) from = l_imax(l, from, l_iadd(l, lead, o.i));
    if (a->s->window > 0) {
        Val last = l_iadd(l, lead, clamped(l, o.i, l->tile_rows - 1, k->n));
        to = l_imin(l, to, l_iaddc(l, last, a->s->window));
    }
    If some = l_if(l, "some", l_icmp(l, LLVMIntSLT, from, to));
    Val at = l_iadd(l, l_imulc(l, o.i, a->line), from), n = l_isub(l, to, from);
    Val key = l_iadd(l, k->row, o.i), left = l_isub(l, k->n, o.i);
    l_sub_call(l, &a->outer, 7, (Val[]){ l_real_at(l, b->pt, at), n,
        row_at(l, &b->go, from), b->go.ld,
        head_at(a, A_DV, key, b->kv_head), l_i64(l, ld[A_DV]), left });
    l_sub_call(l, &a->outer, 7, (Val[]){ l_real_at(l, b->dst, at), n,
        row_at(l, &b->q, from), b->q.ld,
        head_at(a, A_DK, key, b->kv_head), l_i64(l, ld[A_DK]), left });
    l_fi(l, some);
    l_next(l, &o, NULL);
}

static void backward_block(Attn *a, void *state, const Span *q, const Span *k)
{
    Backward *b = state;
    b->k = rows_of(a, A_K, k, b->kv_head, b->kroom);
    b->v = rows_of(a, A_V, k, b->kv_head, b->vroom);
    each_panel(a, q, k, backward_panel, state);
    backward_keys(a, state, q, k);
}

/* sum over d of x[d] y[d], hd of them; elements of types tx, ty */
static Val dot(Attn *a, Typ tx, Val x, Typ ty, Val y)
{
    L *l = a->l;
    int64_t whole = a->hd / l->lanes * l->lanes;
    Val sum = LLVMConstNull(l_reals(l, l->lanes));
    Loop o = l_for(l, "dot", l_i64(l, 0), l_i64(l, whole), l->lanes, 1, &sum);
    Val u = l_load(l, tx, l_at(l, tx, x, o.i), l->lanes, l->lanes);
    sum = l_fma(l, u, l_load(l, ty, l_at(l, ty, y, o.i), l->lanes, l->lanes), o.carry[0]);
    l_next(l, &o, &sum);
    sum = o.carry[0];
    if (a->hd > whole) {
        int n = (int)(a->hd - whole);
        Val at = l_i64(l, whole);
        u = l_load(l, tx, l_at(l, tx, x, at), l->lanes, n);
        sum = l_fma(l, u, l_load(l, ty, l_at(l, ty, y, at), l->lanes, n), sum);
    }
    return l_reduce(l, L_SUM, sum);
}

/* lse and delta = dO . O of each query, in lanes */
static void backward_rows(Attn *a, Backward *b, const Span *q)
{
    L *l = a->l;
    Loop o = l_for(l, "row", l_i64(l, 0), round_up(l, q->n, l->lanes), 1, 0, NULL);
    Val i = clamped(l, o.i, 0, q->n), row = l_iadd(l, q->row, i);
    Val d = dot(a, l->real, row_at(l, &b->go, i), l->stored[A_O], head_at(a, A_O, row, b->head));
    l_store(l, d, l_real_at(l, b->delta, o.i), 1);
    l_store(l, l_load(l, l->real, lse_at(a, row, b->head), 1, 1), l_real_at(l, b->lse, o.i), 1);
    l_next(l, &o, NULL);
}

static void backward_queries(Attn *a, Backward *b, const Span *run)
{
    L *l = a->l;
    const int64_t *ld = a->s->ld;
    Loop o = l_for(l, "qblock", l_i64(l, 0), run->n, a->bq, 0, NULL);
    Span q = block_of(l, run, o.i, run->n, a->bq);
    b->q = rows_of(a, A_Q, &q, b->head, b->qroom);
    b->go = rows_of(a, A_DO, &q, b->head, b->doroom);
    l_sub_call(l, &a->pack, 5, (Val[]){ b->q.p, b->q.ld, q.n, b->qt, l_num(l, a->s->scale) });
    l_sub_call(l, &a->pack, 5, (Val[]){ b->go.p, b->go.ld, q.n, b->dot, l_num(l, 1) });
    clear(a, b->dqt, a->hd * a->line);
    backward_rows(a, b, &q);
    each_key_block(a, &q, backward_block, b);
    l_sub_call(l, &a->unpack, 5, (Val[]){ b->dqt, head_at(a, A_DQ, q.row, b->head),
                                          l_i64(l, ld[A_DQ]), q.n, b->one });
    l_next(l, &o, NULL);
}

/* dk = dv = 0 for the keys of sequence seq. */
static void clear_keys(Attn *a, Backward *b, Val seq)
{
    L *l = a->l;
    Loop o = l_for(l, "krun", l_i64(l, 0), a->nruns_k, 1, 0, NULL);
    Span run = run_span(l, a->runs_k, o.i);
    If same = l_if(l, "same", l_icmp(l, LLVMIntEQ, run.seq, seq));
    Loop c = l_for(l, "key", l_i64(l, 0), run.n, 1, 0, NULL);
    Val row = l_iadd(l, run.row, c.i), n = l_i64(l, a->hd * l->size);
    for (int arg = A_DK; arg <= A_DV; arg++)
        LLVMBuildMemSet(l->b, head_at(a, arg, row, b->kv_head), LLVMConstNull(l->i8), n,
                        (unsigned)l->size);
    l_next(l, &c, NULL);
    l_fi(l, same);
    l_next(l, &o, NULL);
}

static Backward backward_arrays(Attn *a)
{
    L *l = a->l;
    int64_t wide = a->hd * a->line, square = (a->bk + l->tile_rows) * a->line;
    Backward b = { .qt = l_stack(l, wide, "v_qt"), .dot = l_stack(l, wide, "v_dot"),
        .dqt = l_stack(l, wide, "v_dqt"), .pt = l_stack(l, square, "v_pt"),
        .dst = l_stack(l, square, "v_dst"), .lse = l_stack(l, a->bq, "v_lse"),
        .delta = l_stack(l, a->bq, "v_delta"), .one = l_stack(l, a->bq, "v_one"),
        .qroom = room(a, A_Q, a->bq, "v_q"), .doroom = room(a, A_DO, a->bq, "v_do"),
        .kroom = room(a, A_K, a->bk, "v_k"), .vroom = room(a, A_V, a->bk, "v_v") };
    fill(a, b.one, 1);
    return b;
}

/* Item = sequence * kv_heads + kv_head; its query heads one after another. */
void emit_attn_dx(L *l, const KernelSpec *s)
{
    Attn *a = attn_open(l, s, 9, A_DQ);
    make_mix(a, TILE_ADD);
    make_outer(a);
    Backward b = backward_arrays(a);
    Loop o = l_for(l, "item", l->lo, l->hi, 1, 0, NULL);
    Val kv = l_i64(l, s->kv_heads), seq = LLVMBuildUDiv(l->b, o.i, kv, "v_seq");
    b.kv_head = LLVMBuildURem(l->b, o.i, kv, "v_kv_head");
    if (!s->accumulate) clear_keys(a, &b, seq);
    /* heads h with h * kv_heads / heads = kv_head */
    Val from = l_imulc(l, b.kv_head, s->heads), to = l_iaddc(l, from, s->heads);
    from = LLVMBuildUDiv(l->b, l_iaddc(l, from, s->kv_heads - 1), kv, "");
    to = LLVMBuildUDiv(l->b, l_iaddc(l, to, s->kv_heads - 1), kv, "");
    Loop h = l_for(l, "head", from, to, 1, 0, NULL);
    b.head = h.i;
    Loop r = l_for(l, "qrun", l_i64(l, 0), a->nruns_q, 1, 0, NULL);
    Span run = run_span(l, a->runs_q, r.i);
    If same = l_if(l, "mine", l_icmp(l, LLVMIntEQ, run.seq, seq));
    backward_queries(a, &b, &run);
    l_fi(l, same);
    l_next(l, &r, NULL);
    l_next(l, &h, NULL);
    l_next(l, &o, NULL);
    l_finish(l);
}
