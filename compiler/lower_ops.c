/*
 * lower_ops.c - one function per operator that is not elementwise: its
 * instructions on one rank. Collectives come from lower.c.
 */
#include "partition.h"

static char other(char home) { return home == 'A' ? 'B' : 'A'; }

/* ---- products ------------------------------------------------------------------ */

void gemm(Part *q, OpId op, const char *what, ValueId a, bool ta, ValueId b, bool tb, ValueId c,
          bool accumulate)
{
    const Plan *p = q->p;
    Value va = p->values.at[a], vb = p->values.at[b], vc = p->values.at[c];
    Inst *i = inst_new(q, I_GEMM, op, what);
    i->trans_a = ta;
    i->trans_b = tb;
    i->m = vc.rows;
    i->n = vc.cols;
    i->k = ta ? va.rows : va.cols;
    i->accumulate = accumulate;
    if (i->m != (ta ? va.cols : va.rows) || i->n != (tb ? vb.rows : vb.cols) ||
        i->k != (tb ? vb.cols : vb.rows))
        bug("%s: product of [%" PRId64 ",%" PRId64 "] and [%" PRId64 ",%" PRId64 "] into [%" PRId64
            ",%" PRId64 "]", i->name, va.rows, va.cols, vb.rows, vb.cols, vc.rows, vc.cols);
    inst_in(i, a);
    inst_in(i, b);
    inst_out(i, c);
}

/* Columns of a unit in the operator's result; a table used as its transpose
 * gives its rows. */
static int64_t unit_out(const Part *q, const Op *f, UnitId u)
{
    const ParamUnit *n = &q->p->units.at[u];
    return f->transposed ? n->brows : n->bcols;
}

/* Rows [ichunk * chunk, ..) of a gathered operand, inside a chunk. */
static ValueId chunk_rows(Part *q, ValueId v)
{
    const Value *x = &q->p->values.at[v];
    if (!q->in_chunk || x->rows == q->chunk)
        return v;
    return value_view(q, v, q->ichunk * q->chunk, q->chunk, 0, x->cols);
}

/* The buffer a product (or look-up) sums into; `accumulate`: not the first term. */
static ValueId product_out(Part *q, OpId op, TensorId t, Axes partial, bool *accumulate)
{
    Plan *p = q->p;
    OpInfo *f = &q->info[op];
    *accumulate = false;
    if (f->psum != NONE && q->psums.at[f->psum].value != NONE) {
        *accumulate = true;
        return q->psums.at[f->psum].value;
    }
    Layout l = home_layout(q, t, q->spot[t].home);
    l.rows = canon(p, AX_X, 1);
    l.partial = canon(p, partial, 1);
    BufClass class = p->ops.at[op].phase == PHASE_FORWARD ? BUF_ACTIVATION : BUF_WORK;
    ValueId v = l.partial == 0 && f->psum == NONE && !q->in_chunk && q->spot[t].concat == NONE
        ? home_new(q, t, class)
        : value_new(q, t, l, rows_of(q, l.rows), q->spot[t].cols,
                    l.partial ? BUF_WORK : class, p->tensors.at[t].name);
    if (f->psum != NONE)
        q->psums.at[f->psum].value = v;
    return v;
}

static void lower_linear(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    OpInfo *f = &q->info[op];
    ValueId x = chunk_rows(q, gathered(q, o.in[0], f->lin_home));
    bool add;
    ValueId y = product_out(q, op, o.out[0], axis_of(f->lin_home), &add);
    int64_t at = 0;
    for (int k = 0; k < f->nunits; k++) {
        UnitId u = f->unit[k];
        int64_t n = unit_out(q, &o, u);
        ValueId w = weight(q, u);
        ValueId c = f->nunits == 1 ? y
            : value_view(q, y, 0, q->p->values.at[y].rows, at, n);
        gemm(q, op, o.transposed ? "X WT" : "X W", x, false, w, o.transposed, c, add);
        at += n;
    }
    if (f->psum == NONE)
        spot_add(q, o.out[0], y);
}

/* Copies of kv columns saw different heads: their sums must still be pending. */
static void check_copies(Part *q, const Op *f, TensorId dy, ValueId v)
{
    const Value *x = &q->p->values.at[v];
    for (int k = 0; k < q->spot[dy].cols.n; k++)
        if (q->spot[dy].cols.seg[k].rep > 1 && !(x->layout.partial & AX_YR))
            diag_error(f->loc, "heads-divide", "`%s` makes keys or values that are used outside "
                       "attention, with fewer kv heads than y = %d", f->name, q->p->is.y);
}

/* A unit's columns of a fused gradient. Where they have no copies nothing is
 * pending over copies either, whatever holds of the other units' columns. */
static ValueId unit_columns(Part *q, ValueId dy, int64_t at, int64_t n, UnitId u)
{
    ValueId v = value_view(q, dy, 0, q->p->values.at[dy].rows, at, n);
    Value *x = &q->p->values.at[v];
    if (q->p->units.at[u].piece[0].cols.rep > 1)
        return v;
    Columns c = { 0, NEWN(Segment, x->cols_map.n + 1) };
    for (int i = 0; i < x->cols_map.n; i++)
        if (x->cols_map.seg[i].rep <= 1)
            c.seg[c.n++] = x->cols_map.seg[i];
    x->cols_map = c;
    x->layout.partial &= (Axes)~AX_YR;
    return v;
}

static void lower_linear_dx(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    Op fo = q->p->ops.at[o.of];
    OpInfo *f = &q->info[o.of];
    ValueId dy = gathered(q, o.in[0], other(f->lin_home));
    check_copies(q, &fo, o.in[0], dy);
    bool add;
    ValueId dx;
    if (q->in_chunk) {
        add = false;
        dx = value_view(q, q->head_dx, q->ichunk * q->chunk, q->chunk, 0,
                        q->p->values.at[q->head_dx].cols);
    } else {
        dx = product_out(q, op, o.out[0], axis_of(other(f->lin_home)), &add);
    }
    int64_t at = 0;
    for (int k = 0; k < f->nunits; k++) {
        UnitId u = f->unit[k];
        int64_t n = unit_out(q, &fo, u);
        ValueId w = weight(q, u);
        ValueId part = f->nunits == 1 ? dy : unit_columns(q, dy, at, n, u);
        gemm(q, op, fo.transposed ? "dY W" : "dY WT", part, false, w, !fo.transposed, dx,
             add || k > 0);
        at += n;
    }
    if (!q->in_chunk && q->info[op].psum == NONE)
        spot_add(q, o.out[0], dx);
}

static void lower_linear_dw(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    Op fo = q->p->ops.at[o.of];
    OpInfo *f = &q->info[o.of];
    ValueId x = chunk_rows(q, gathered(q, o.in[0], f->lin_home));
    ValueId dy = gathered(q, o.in[1], other(f->lin_home));
    check_copies(q, &fo, o.in[1], dy);
    int64_t at = 0;
    for (int k = 0; k < f->nunits; k++) {
        UnitId u = f->unit[k];
        int64_t n = unit_out(q, &fo, u);
        bool first;
        ValueId dw = weight_grad(q, u, &first);
        bool add = !first || (q->in_chunk && q->ichunk > 0);
        ValueId part = f->nunits == 1 ? dy : unit_columns(q, dy, at, n, u);
        if (fo.transposed)
            gemm(q, op, "dYT X", part, true, x, false, dw, add);
        else
            gemm(q, op, "XT dY", x, true, part, false, dw, add);
        if (!q->in_chunk || (q->ichunk + 1) * q->chunk >= q->T / q->p->is.x)
            weight_grad_done(q, u, op);
        at += n;
    }
}

static void lower_psum(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    int g = NONE;
    for (int j = 0; j < o.nin; j++) {
        OpId d = q->p->tensors.at[o.in[j]].def;
        g = q->info[d].psum;
        emit_op(q, d);
    }
    Value v = q->p->values.at[q->psums.at[g].value];
    v.tensor = o.out[0];
    vec_add(&q->p->values, v);
    spot_add(q, o.out[0], q->p->values.n - 1);
}

/* ---- embeddings ------------------------------------------------------------------ */

static void lower_embed(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    UnitId u = q->info[op].unit[0];
    ValueId e = weight(q, u);
    bool add;
    Axes rows = q->p->units.at[u].row_axis;
    ValueId y = product_out(q, op, o.out[0], rows, &add), to = y;
    if (add) {
        Value v = q->p->values.at[y];
        to = value_new(q, o.out[0], v.layout, v.rows, v.cols_map, BUF_WORK, "look-up");
    }
    Inst *i = inst_new(q, I_EMBED, op, "look-up");
    i->rowmap = rowmap_of(q, canon(q->p, AX_X, 1));
    inst_in(i, e);
    inst_out(i, to);
    if (add) {
        i = inst_new(q, I_COPY, op, "add the look-up");
        i->accumulate = true;
        inst_in(i, to);
        inst_out(i, y);
    }
    if (q->info[op].psum == NONE)
        spot_add(q, o.out[0], y);
}

static void lower_embed_dw(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    UnitId u = q->info[o.of].unit[0];
    ValueId dy = gathered(q, o.in[1], q->spot[q->p->ops.at[o.of].out[0]].home);
    bool first;
    ValueId de = weight_grad(q, u, &first);
    if (first)
        inst_out(inst_new(q, I_ZERO, op, "clear the table's gradient"), de);
    Inst *i = inst_new(q, I_EMBED_DW, op, "scatter-add");
    i->rowmap = rowmap_of(q, canon(q->p, AX_X, 1));
    inst_in(i, dy);
    inst_out(i, de);
    weight_grad_done(q, u, op);
}

/* ---- split and concat ---------------------------------------------------------------- */

static void copy(Part *q, OpId op, const char *what, ValueId from, ValueId to)
{
    Inst *i = inst_new(q, I_COPY, op, what);
    inst_in(i, from);
    inst_out(i, to);
}

static int local_parts(Part *q, TensorId t, int parts)
{
    const Spot *s = &q->spot[t];
    int64_t ways = axes_size(q->p, axis_of(s->home), 1);
    if (s->home == 'B')
        ways /= s->cols.seg[0].rep;
    return (int)(parts / ways);
}

/* Value `v` [rows, parts*w] seen as [rows*parts, w]. */
static ValueId by_part(Part *q, ValueId v, int parts)
{
    Value a = q->p->values.at[v];
    a.rows *= parts;
    a.cols /= parts;
    a.ld = a.cols;
    a.rowmap = NONE;
    vec_add(&q->p->values, a);
    return q->p->values.n - 1;
}

static void keep_copies_only(Part *q, ValueId v)    // YR is pending on copies alone
{
    Value *x = &q->p->values.at[v];
    bool copies = false;
    for (int i = 0; i < x->cols_map.n; i++)
        copies |= x->cols_map.seg[i].rep > 1;
    if (!copies)
        x->layout.partial &= (Axes)~AX_YR;
}

static void lower_split(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    ValueId x = value_in(q, o.in[0], q->spot[o.out[0]].home);
    int parts = o.parts > 1 ? local_parts(q, o.in[0], o.parts) : 1;
    int64_t at = 0;
    if (parts > 1)
        x = by_part(q, contiguous(q, x, op), parts);
    for (int j = 0; j < o.nout; j++) {
        TensorId t = o.out[j];
        Layout l = q->p->values.at[x].layout;
        int64_t w = local_width(q->p, q->spot[t].cols, l.cols) / parts;
        if (q->spot[t].nuses == 0) {
            at += w;
            continue;
        }
        ValueId v = value_view(q, x, 0, q->p->values.at[x].rows, at, w);
        if (parts > 1) {
            ValueId y = value_new(q, t, l, rows_of(q, l.rows), q->spot[t].cols, BUF_ACTIVATION,
                                  q->p->tensors.at[t].name);
            copy(q, op, "take its columns of each part", v, by_part(q, y, parts));
            v = y;
        }
        q->p->values.at[v].tensor = t;
        q->p->values.at[v].cols_map = q->spot[t].cols;
        keep_copies_only(q, v);
        spot_add(q, t, v);
        at += w;
    }
}

static void lower_concat(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    TensorId t = o.out[0];
    char home = q->spot[t].home;
    ValueId *from = NEWN(ValueId, o.nin);
    for (int j = 0; j < o.nin; j++)
        from[j] = value_in(q, o.in[j], home);
    if (q->concat[op] == NONE)
        q->concat[op] = home_new(q, t, o.phase == PHASE_FORWARD ? BUF_ACTIVATION : BUF_WORK);
    ValueId y = q->concat[op];
    int parts = o.parts > 1 ? local_parts(q, t, o.parts) : 1;
    ValueId to = parts > 1 ? by_part(q, contiguous(q, y, op), parts) : y;
    int64_t at = 0;
    Axes partial = 0;
    int rep = 1;
    for (int j = 0; j < o.nin; j++) {
        Value a = q->p->values.at[from[j]];
        int64_t w = a.cols / parts;
        if (a.buffer != q->p->values.at[y].buffer) {
            ValueId part = value_view(q, to, 0, q->p->values.at[to].rows, at, w);
            if (parts == 1)
                q->p->values.at[part].cols_map = q->spot[o.in[j]].cols;
            copy(q, op, "put its columns in place",
                 parts > 1 ? by_part(q, contiguous(q, from[j], op), parts) : from[j], part);
        }
        partial |= a.layout.partial;
        rep = a.layout.partial ? a.layout.rep : rep;
        at += w;
    }
    q->p->values.at[y].layout.partial = partial;
    q->p->values.at[y].layout.rep = rep;
    spot_add(q, t, y);
}

/* ---- rope --------------------------------------------------------------------------- */

static ValueId rope_table(Part *q, OpId op, const Op *o)
{
    for (int i = 0; i < q->tables.n; i++) {
        const Op *t = &q->p->ops.at[q->table_of.at[i]];
        if (t->theta == o->theta && t->rotary == o->rotary)
            return q->tables.at[i];
    }
    ValueId v = value_matrix(q, q->p->is.sequence, o->rotary, D_REAL, BUF_WORK, "rotary angles");
    Phase phase = q->phase;
    if (!q->whole)
        front(q);
    Inst *i = inst_new(q, I_ROPE_TABLE, op, "cosines and sines");
    inst_out(i, v);
    if (!q->whole)
        front_end(q, phase);
    vec_add(&q->tables, v);
    vec_add(&q->table_of, op);
    return v;
}

static void lower_rope(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    ValueId x = value_in(q, o.in[0], q->spot[o.out[0]].home), table = rope_table(q, op, &o);
    ValueId y = home_new(q, o.out[0], o.phase == PHASE_FORWARD ? BUF_ACTIVATION : BUF_WORK);
    q->p->values.at[y].layout = q->p->values.at[x].layout;
    Inst *i = inst_new(q, I_ROPE, op, o.inverse ? "turn back" : "turn");
    i->rowmap = rowmap_of(q, q->p->values.at[x].layout.rows);
    inst_in(i, x);
    inst_in(i, table);
    inst_out(i, y);
    spot_add(q, o.out[0], y);
}

/* ---- attention ------------------------------------------------------------------------- */

static Axes xz(const Part *q) { return canon(q->p, AX_X | AX_Z, 1); }

/* K or V of all the rows of the (x, z) group. */
static ValueId all_rows(Part *q, TensorId t, OpId op)
{
    Plan *p = q->p;
    ValueId v = value_in(q, t, 'B');
    Value a = p->values.at[v];
    if (xz(q) == 0 || p->is.attention != ATT_GATHER)
        return v;
    const Spot *s = &q->spot[t];
    for (int i = s->at.n - 1; i >= 0; i--) {
        const Value *o = &p->values.at[s->at.at[i]];
        if (o->layout.rows == 0 && o->layout.cols == a.layout.cols && o->gathered &&
            (o->made == q->phase || p->is.keep_inputs))
            return s->at.at[i];
    }
    Layout l = a.layout;
    l.rows = 0;
    v = contiguous(q, v, op);
    ValueId all = value_new(q, t, l, q->T, a.cols_map, BUF_GATHERED,
                            str_fmt("%s, all rows", p->tensors.at[t].name));
    store_as(q, all, stored_of(q, v));
    p->values.at[all].gathered = true;
    coll(q, COLL_ALL_GATHER, xz(q), 1, v, all, op,
         str_fmt("all-gather over %s", axes_word(xz(q), 1)),
         str_fmt("sequences are cut over %s; queries see keys and values of other ranks",
                 axes_word(xz(q), 1)));
    spot_add(q, t, all);
    return all;
}

/* Exchange: heads of the rank are cut over (x, z), its tokens completed. */
static ValueId by_heads(Part *q, TensorId t, OpId op)
{
    Plan *p = q->p;
    ValueId v = value_in(q, t, 'B');
    Value a = p->values.at[v];
    Axes cols = (Axes)(canon(p, AX_YK, 1) | xz(q));
    if (xz(q) == 0)
        return v;
    ValueId there = NONE;
    const Spot *s = &q->spot[t];
    for (int i = s->at.n - 1; i >= 0 && there == NONE; i--) {
        const Value *o = &p->values.at[s->at.at[i]];
        if (o->layout.rows == 0 && o->layout.cols == cols &&
            (o->made == q->phase || p->is.keep_inputs))
            there = s->at.at[i];
    }
    if (there != NONE)
        return there;
    Layout l = { .cols = cols, .rep = 1 };
    v = contiguous(q, v, op);
    ValueId all = value_new(q, t, l, q->T, a.cols_map, BUF_GATHERED,
                            str_fmt("%s, by heads", p->tensors.at[t].name));
    store_as(q, all, stored_of(q, v));
    p->values.at[all].gathered = true;
    coll(q, COLL_ALL_TO_ALL, xz(q), 1, v, all, op, "all-to-all tokens to heads",
         str_fmt("sequences are cut over %s; attention gets whole ones of fewer heads",
                 axes_word(xz(q), 1)));
    if (all != v)
        p->insts.at[p->insts.n - 1].a2a = A2A_HEADS;
    spot_add(q, t, all);
    return all;
}

static void back_to_tokens(Part *q, TensorId t, ValueId v, OpId op)
{
    Plan *p = q->p;
    spot_add(q, t, v);
    if (xz(q) == 0)
        return;
    Layout l = home_layout(q, t, 'B');
    ValueId y = value_new(q, t, l, rows_of(q, l.rows), q->spot[t].cols, BUF_ACTIVATION,
                          p->tensors.at[t].name);
    store_as(q, y, stored_of(q, v));
    coll(q, COLL_ALL_TO_ALL, xz(q), 1, v, y, op, "all-to-all heads to tokens",
         "back to the rank's own tokens, all its heads");
    p->insts.at[p->insts.n - 1].a2a = A2A_TOKENS;
    spot_add(q, t, y);
}

static ValueId attention_in(Part *q, TensorId t, OpId op, bool is_kv)
{
    if (q->p->is.attention == ATT_EXCHANGE)
        return by_heads(q, t, op);
    return is_kv ? all_rows(q, t, op) : value_in(q, t, 'B');
}

/* A result with the rows and columns that attention works on. Gradients of keys and
 * values are sums over queries: never stored in 16 bits. */
static ValueId attention_out(Part *q, TensorId t, bool is_kv)
{
    Plan *p = q->p;
    BufClass class = is_kv ? BUF_WORK : BUF_ACTIVATION;
    Layout l = home_layout(q, t, 'B');
    bool heads = p->is.attention == ATT_EXCHANGE && xz(q);
    bool all = is_kv && p->is.attention == ATT_GATHER && xz(q);
    bool wide = is_kv && p->is.precision == PREC_BF16;
    if (!heads && !all && !wide)
        return home_new(q, t, class);
    if (heads)
        l = (Layout){ .cols = (Axes)(canon(p, AX_YK, 1) | xz(q)), .rep = 1 };
    if (all) {
        l.rows = 0;
        l.partial = xz(q);
    }
    ValueId v = value_new(q, t, l, heads || all ? q->T : rows_of(q, l.rows), q->spot[t].cols,
                          class, p->tensors.at[t].name);
    if (wide)
        store_as(q, v, D_REAL);
    return v;
}

/* ---- attention over slices: keys of all slices so far in one buffer ---------------------- */

/* Rows of the slices before `slice` of a matrix whose rows are split over `rows`. */
static int64_t rows_before(const Part *q, Axes rows, int slice)
{
    const Plan *p = q->p;
    int64_t n = 0;
    for (int i = 0; i < slice; i++)
        n += p->is.slice[i];
    return n * p->is.microbatch / axes_size(p, rows, 1);
}

/* The rows of slices [from, to) of a buffer of all of them. */
static ValueId rows_between(Part *q, ValueId root, int from, int to)
{
    Value r = q->p->values.at[root];
    int64_t lo = rows_before(q, r.layout.rows, from), hi = rows_before(q, r.layout.rows, to);
    ValueId v = value_view(q, root, lo, hi - lo, 0, r.cols);
    q->p->values.at[v].rowmap = from == 0 && to > 1 ? rowmap_upto(q, r.layout.rows)
                                                    : rowmap_of(q, r.layout.rows);
    return v;
}

static ValueId all_slices(Part *q, TensorId t, Layout l, BufClass class, const char *what)
{
    const Plan *p = q->p;
    return value_new(q, t, l, rows_before(q, l.rows, p->is.nslices), q->spot[t].cols, class,
                     str_fmt("%s, %s", p->tensors.at[t].name, what));
}

/* Layout in which attention reads keys: gathered, or by heads, or as they are. */
static Layout key_layout(Part *q, Layout l)
{
    if (xz(q) && q->p->is.attention == ATT_GATHER)
        l.rows = 0;
    if (xz(q) && q->p->is.attention == ATT_EXCHANGE)
        l = (Layout){ .cols = (Axes)(canon(q->p, AX_YK, 1) | xz(q)), .rep = 1 };
    return l;
}

/* Puts the slice's keys (or values) behind those of the slices before, in place. */
static void append_keys(Part *q, TensorId t, OpId op, ValueId *root)
{
    Plan *p = q->p;
    ValueId v = value_in(q, t, 'B');
    Layout l = key_layout(q, p->values.at[v].layout);
    if (q->slice == 0) {
        *root = all_slices(q, t, l, BUF_GATHERED, "all slices");
        store_as(q, *root, stored_of(q, v));
    }
    ValueId to = rows_between(q, *root, q->slice, q->slice + 1);
    if (xz(q) == 0 || p->is.attention == ATT_LOCAL) {
        copy(q, op, "behind the slices before", v, to);
        return;
    }
    v = contiguous(q, v, op);
    if (p->is.attention == ATT_GATHER) {
        coll(q, COLL_ALL_GATHER, xz(q), 1, v, to, op,
             str_fmt("all-gather over %s", axes_word(xz(q), 1)),
             str_fmt("sequences are cut over %s; queries see keys and values of other ranks",
                     axes_word(xz(q), 1)));
        return;
    }
    coll(q, COLL_ALL_TO_ALL, xz(q), 1, v, to, op, "all-to-all tokens to heads",
         str_fmt("sequences are cut over %s; attention gets whole ones of fewer heads",
                 axes_word(xz(q), 1)));
    p->insts.at[p->insts.n - 1].a2a = A2A_HEADS;
}

/* Keys (j = 0) or values (1) that the slice's queries may see. What is computed again
 * in the backward pass finds them still there. */
static ValueId keys(Part *q, TensorId t, OpId op, int j)
{
    if (q->p->is.nslices == 1)
        return attention_in(q, t, op, true);
    if (q->phase == PHASE_FORWARD)
        append_keys(q, t, op, &q->roots[op].all[j]);
    return rows_between(q, q->roots[op].all[j], 0, q->slice + 1);
}

static void lower_attention(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    ValueId a[3], out[2];
    a[0] = attention_in(q, o.in[0], op, false);
    a[1] = keys(q, o.in[1], op, 0);
    a[2] = keys(q, o.in[2], op, 1);
    for (int j = 0; j < 2; j++)
        out[j] = attention_out(q, o.out[j], false);
    Inst *i = inst_new(q, I_ATTN, op, "softmax(q kT) v");
    for (int j = 0; j < 3; j++)
        inst_in(i, a[j]);
    for (int j = 0; j < 2; j++)
        inst_out(i, out[j]);
    i->rowmap = rowmap_of(q, q->p->values.at[a[0]].layout.rows);
    i->rowmap_k = rowmap_upto(q, q->p->values.at[a[1]].layout.rows);
    if (q->p->is.attention == ATT_EXCHANGE) {
        back_to_tokens(q, o.out[0], out[0], op);
        spot_add(q, o.out[1], out[1]);
    } else {
        for (int j = 0; j < 2; j++)
            spot_add(q, o.out[j], out[j]);
    }
}

static ValueId newest(Part *q, TensorId t)
{
    const Spot *s = &q->spot[t];
    return s->at.at[s->at.n - 1];
}

/* Where the gradient of keys or values goes: of the prefix, to be added to behind the
 * last slice, whose own rows are then complete; `mine`: those of the slice. */
static ValueId key_gradient(Part *q, TensorId t, ValueId *root, Layout l, ValueId *mine)
{
    Plan *p = q->p;
    if (q->slice == p->is.nslices - 1) {
        *root = all_slices(q, t, l, BUF_WORK, "all slices");
        store_as(q, *root, D_REAL);
    }
    *mine = rows_between(q, *root, q->slice, q->slice + 1);
    return rows_between(q, *root, 0, q->slice + 1);
}

/* Outputs of the backward pass: dq, then dk and dv with what is pending in them. */
static void gradient_outs(Part *q, const Op *o, ValueId *out, ValueId *mine)
{
    Plan *p = q->p;
    int rep = p->is.attention == ATT_EXCHANGE ? 1 : q->spot[o->in[1]].cols.seg[0].rep;
    for (int j = 0; j < 3; j++) {
        if (j == 0 || p->is.nslices == 1) {
            out[j] = mine[j] = attention_out(q, o->out[j], j > 0);
            Layout *l = &p->values.at[out[j]].layout;
            if (j > 0 && rep > 1) {
                l->partial |= AX_YR;
                l->rep = rep;
            }
            continue;
        }
        Layout l = key_layout(q, home_layout(q, o->out[j], 'B'));
        if (p->is.attention == ATT_GATHER)
            l.partial = xz(q);
        if (rep > 1) {
            l.partial |= AX_YR;
            l.rep = rep;
        }
        out[j] = key_gradient(q, o->out[j], &q->roots[o->of].grad[j - 1], l, &mine[j]);
    }
}

static void lower_attention_dx(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    bool sliced = q->p->is.nslices > 1;
    ValueId a[6], out[3], mine[3];
    for (int j = 0; j < 6; j++) {
        if (j == 1 || j == 2) {
            a[j] = keys(q, o.in[j], o.of, j - 1);
            continue;
        }
        demand(q, o.in[j]);
        a[j] = j == 4 ? newest(q, o.in[4]) : attention_in(q, o.in[j], op, false);
    }
    gradient_outs(q, &o, out, mine);
    Inst *i = inst_new(q, I_ATTN_DX, op, "gradients of q, k, v");
    for (int j = 0; j < 6; j++)
        inst_in(i, a[j]);
    for (int j = 0; j < 3; j++)
        inst_out(i, out[j]);
    i->rowmap = rowmap_of(q, q->p->values.at[a[0]].layout.rows);
    i->rowmap_k = rowmap_upto(q, q->p->values.at[a[1]].layout.rows);
    i->accumulate = sliced && q->slice < q->p->is.nslices - 1;
    for (int j = 0; j < 3; j++)
        if (q->p->is.attention == ATT_EXCHANGE)
            back_to_tokens(q, o.out[j], mine[j], op);
        else
            spot_add(q, o.out[j], mine[j]);
}

/* Over slices, keys and values stay where the forward pass put them. */
static bool keys_are_kept(const Part *q, const Op *o, int j)
{
    return q->p->is.nslices > 1 && q->phase == PHASE_BACKWARD && (j == 1 || j == 2) &&
           (o->kind == OP_ATTN || o->kind == OP_ATTN_DX);
}

void lower_op(Part *q, OpId op)
{
    const Op o = q->p->ops.at[op];
    for (int j = 0; j < o.nin; j++)
        if (q->p->tensors.at[o.in[j]].kind == T_ROWS && o.kind != OP_PSUM &&
            !keys_are_kept(q, &o, j))
            demand(q, o.in[j]);
    bool summa = q->p->is.summa > 0;
    switch (o.kind) {
    case OP_LINEAR:    (summa ? summa_linear : lower_linear)(q, op); break;
    case OP_LINEAR_DX: (summa ? summa_linear_dx : lower_linear_dx)(q, op); break;
    case OP_LINEAR_DW: (summa ? summa_linear_dw : lower_linear_dw)(q, op); break;
    case OP_PSUM:      lower_psum(q, op); break;
    case OP_EMBED:     lower_embed(q, op); break;
    case OP_EMBED_DW:  lower_embed_dw(q, op); break;
    case OP_SPLIT:     lower_split(q, op); break;
    case OP_CONCAT:    lower_concat(q, op); break;
    case OP_ROPE:      lower_rope(q, op); break;
    case OP_ATTN:      lower_attention(q, op); break;
    case OP_ATTN_DX:   lower_attention_dx(q, op); break;
    default:
        bug("operator %s is not lowered here", op_word[o.kind]);
    }
}

/* ---- the loss -------------------------------------------------------------------------- */

/* Statistics of the rank's columns, merged over y; then the loss and the gradient. */
static void cross_entropy(Part *q, OpId op, OpId dx)
{
    Plan *p = q->p;
    TensorId dlogits = NONE;
    if (dx != NONE) {
        dlogits = p->ops.at[dx].out[0];
        q->info[dx].emitted = true;
    }
    Op o = p->ops.at[op];
    TensorId t = o.in[0];
    ValueId v = contiguous(q, value_in(q, t, 'B'), op);
    bool shared = false;
    for (int i = 0; i < q->spot[t].nuses; i++) {
        OpKind k = p->ops.at[q->spot[t].use[i]].kind;
        shared |= k != OP_CE && k != OP_CE_DX;
    }
    if (shared) {       // others still need the logits: the gradient gets a copy
        ValueId w = value_new(q, t, p->values.at[v].layout, p->values.at[v].rows,
                              p->values.at[v].cols_map, BUF_LOGITS, "gradient of the logits");
        store_as(q, w, stored_of(q, v));
        copy(q, op, "copy of the logits", v, w);
        v = w;
    }
    Value a = p->values.at[v];
    Axes y = canon(p, AX_YK, 1);
    ValueId stat = value_matrix(q, a.rows, 3, D_REAL, BUF_WORK, "loss statistics"), whole = stat;
    p->values.at[stat].layout = (Layout){ .rows = a.layout.rows, .partial = y, .rep = 1 };
    Inst *i = inst_new(q, I_CE_STAT, op, "maximum, sum, target");
    i->rowmap = a.rowmap;
    inst_in(i, v);
    inst_out(i, stat);
    if (y) {
        ValueId all = value_matrix(q, a.rows * axes_size(p, y, 1), 3, D_REAL, BUF_WORK,
                                   "loss statistics of all");
        p->values.at[all].layout = (Layout){ .rows = a.layout.rows, .cols = y, .rep = 1 };
        coll(q, COLL_ALL_GATHER, y, 1, stat, all, op, "statistics, all-gather over y",
             "the vocabulary is split over y; maximum, sum of exp and target logit are merged");
        whole = value_matrix(q, a.rows, 3, D_REAL, BUF_WORK, "whole loss statistics");
        p->values.at[whole].layout = (Layout){ .rows = a.layout.rows, .rep = 1 };
        i = inst_new(q, I_CE_MERGE, op, "merge statistics");
        i->axes = y;
        inst_in(i, all);
        inst_out(i, whole);
    }
    i = inst_new(q, I_CE, op, "loss and gradient of the logits");
    i->rowmap = a.rowmap;
    inst_in(i, v);
    inst_in(i, whole);
    inst_out(i, v);
    if (dlogits == NONE)
        return;
    a = p->values.at[v];
    a.tensor = dlogits;
    vec_add(&p->values, a);
    spot_add(q, dlogits, p->values.n - 1);
}

static void forget_region(Part *q)
{
    Plan *p = q->p;
    for (int i = 0; i < p->ops.n; i++) {
        if (!q->info[i].region)
            continue;
        const Op *o = &p->ops.at[i];
        q->info[i].emitted = false;
        if (is_row_op(o) && cluster_of(q, i) != NONE)
            q->clusters.at[cluster_of(q, i)].emitted = false;
        if (o->kind != OP_LINEAR_DX && op_class[o->kind] != C_ACC)
            for (int j = 0; j < o->nout; j++)
                q->spot[o->out[j]].at.n = 0;
    }
}

/* One pass over the region's operators for the chunk at hand. */
static void lower_chunk(Part *q, OpId ce, OpId ce_dx)
{
    Plan *p = q->p;
    forget_region(q);
    emit_op(q, q->head);
    cross_entropy(q, ce, ce_dx);
    for (int i = 0; i < p->ops.n; i++)
        if (q->info[i].region && p->ops.at[i].phase == PHASE_BACKWARD && i != ce_dx &&
            (!is_row_op(&p->ops.at[i]) || p->ops.at[i].kind == OP_COLSUM))
            emit_op(q, i);
}

void lower_loss(Part *q, OpId ce)
{
    Plan *p = q->p;
    OpId ce_dx = NONE, dx = NONE;
    for (int i = p->nforward; i < p->ops.n; i++) {
        if (p->ops.at[i].kind == OP_CE_DX)
            ce_dx = i;
        if (q->info[i].region && p->ops.at[i].kind == OP_LINEAR_DX)
            dx = i;
    }
    if (q->head == NONE) {
        cross_entropy(q, ce, ce_dx);
        return;
    }
    gathered(q, p->ops.at[q->head].in[0], q->info[q->head].lin_home);
    for (int k = 0; k < q->info[q->head].nunits; k++)
        weight(q, q->info[q->head].unit[k]);
    if (dx != NONE) {
        TensorId t = p->ops.at[dx].out[0];
        char home = q->info[q->head].lin_home;
        Layout l = home_layout(q, t, home);
        l.rows = canon(p, AX_X, 1);
        l.partial = canon(p, axis_of(other(home)), 1);
        q->head_dx = value_new(q, t, l, rows_of(q, l.rows), q->spot[t].cols, BUF_WORK,
                               p->tensors.at[t].name);
    }
    int64_t R = q->T / p->is.x;
    q->in_chunk = true;
    for (q->ichunk = 0; q->ichunk * q->chunk < R; q->ichunk++)
        lower_chunk(q, ce, ce_dx);
    q->in_chunk = false;
    if (dx != NONE) {
        spot_add(q, p->ops.at[dx].out[0], q->head_dx);
        q->info[dx].emitted = true;
    }
}

/* ---- after the last pass ---------------------------------------------------------------- */

/* A range of the flat gradient (or parameter) region as one value. */
static ValueId range(Part *q, bool grads, int64_t at, int64_t n)
{
    Value v = { .tensor = NONE, .unit = NONE, .rowmap = NONE, .layout = { .rep = 1 },
                .buffer = grads ? THE_GRADS : THE_PARAMS, .offset = at, .rows = 1, .cols = n,
                .ld = n };
    vec_add(&q->p->values, v);
    return q->p->values.n - 1;
}

static void sum_vectors(Part *q)        // one all-reduce per set of axes
{
    Plan *p = q->p;
    bool *done = NEWN(bool, p->units.n);
    for (int i = 0; i < p->units.n; i++) {
        const ParamUnit *u = &p->units.at[i];
        if (done[i] || u->repl == 0)
            continue;
        int64_t parts = p->is.zero >= 2 ? p->is.data : 1;      // a replica has its own alone
        int64_t lo = u->offset, hi = u->offset + u->shard;
        int n = 0;
        for (int k = i; k < p->units.n; k++) {
            const ParamUnit *v = &p->units.at[k];
            if (v->repl != u->repl || v->rep != u->rep)
                continue;
            done[k] = true;
            n++;
            lo = v->offset < lo ? v->offset : lo;
            hi = v->offset + v->shard > hi ? v->offset + v->shard : hi;
        }
        ValueId v = range(q, true, lo / parts, (hi - lo) / parts);
        coll(q, COLL_ALL_REDUCE, u->repl, u->rep, v, v, NONE,
             str_fmt("gradients of %s: all-reduce over %s", plural(n, "vector"),
                     axes_word(u->repl, u->rep)),
             str_fmt("every rank of %s keeps these vectors whole and saw other tokens or heads",
                     axes_word(u->repl, u->rep)));
        Inst *c = &p->insts.at[p->insts.n - 1];
        c->is_vector_grad = true;
        c->loc = u->loc;
    }
}

/* Matrices that several stages hold: every copy gets the whole sum. */
static void sum_stages(Part *q)
{
    Plan *p = q->p;
    for (int i = 0; i < p->units.n; i++) {
        const ParamUnit *u = &p->units.at[i];
        if (u->stages == 0)
            continue;
        Inst *c = inst_new(q, I_COLL, NONE, str_fmt("gradient of %s: all-reduce over stages",
                                                    u->name));
        c->coll = COLL_ALL_REDUCE;
        c->axes = AX_STAGE;
        c->stages = u->stages;
        c->loc = u->loc;
        c->reason = "several stages use it; each saw a part of what depends on it";
        inst_in(c, u->g);
        inst_out(c, u->g);
    }
}

void lower_sync(Part *q)
{
    Plan *p = q->p;
    q->phase = PHASE_SYNC;
    for (int i = 0; i < p->units.n; i++)
        if (!q->grad[i].begun)
            inst_out(inst_new(q, I_ZERO, NONE, str_fmt("%s: no gradient", p->units.at[i].name)),
                     p->units.at[i].g);
    sum_vectors(q);
    sum_stages(q);
    Axes data = canon(p, AX_DATA, 1);
    int zero = data ? p->is.zero : 0;
    int64_t part = p->flat_pad / p->is.data;
    if (zero == 1)
        coll(q, COLL_REDUCE_SCATTER, data, 1, range(q, true, 0, p->flat_pad),
             range(q, true, 0, part), NONE, "gradients: reduce-scatter over data",
             "replicas saw other sequences; each updates its part of the parameters (zero = 1)");
    else if (data && zero == 0)
        coll(q, COLL_ALL_REDUCE, data, 1, range(q, true, 0, p->flat_pad),
             range(q, true, 0, p->flat_pad), NONE, "gradients: all-reduce over data",
             "replicas saw other sequences");
    ValueId g = range(q, true, 0, zero >= 1 ? part : p->flat);
    ValueId w = range(q, false, 0, zero == 1 || zero == 3 ? part : p->flat);
    inst_in(inst_new(q, I_NORM, NONE, "squares of the gradient"), g);
    inst_new(q, I_TOTALS, NONE, "loss and gradient norm");
    q->phase = PHASE_OPTIMIZER;
    Inst *u = inst_new(q, I_UPDATE, NONE, "optimizer");
    inst_in(u, g);
    inst_out(u, w);
    if (zero == 1)
        coll(q, COLL_ALL_GATHER, data, 1, w, range(q, false, 0, p->flat_pad), NONE,
             "parameters: all-gather over data", "each replica updated its part (zero = 1)");
    for (int i = 0; zero == 2 && i < p->units.n; i++) {
        const ParamUnit *n = &p->units.at[i];
        coll(q, COLL_ALL_GATHER, data, 1, range(q, false, n->offset, n->shard / p->is.data),
             range(q, false, n->offset, n->shard), NONE,
             str_fmt("%s: all-gather over data", n->name),
             "each replica updated its part (zero = 2)");
        p->insts.at[p->insts.n - 1].loc = n->loc;
    }
}
