/*
 * lower.c - values, conversions and collectives: the only place a collective
 * comes from.
 *
 * Operators are lowered in program order. A tensor can be found in several
 * forms at once (Spot.at): as its producer left it, perhaps partial; in its home
 * layout; gathered. Each is made when it is first asked for:
 *
 *   product  --reduce-scatter-->  home  --all-gather-->  rows of the x share
 *   (partial)                      |
 *                                  +--all-to-all-->  the other layout
 */
#include "partition.h"
#include "predict.h"

Axes canon(const Plan *p, Axes a, int rep)
{
    Axes out = 0;
    for (int bit = 1; bit <= AX_Z; bit <<= 1)
        if ((a & bit) && axes_size(p, (Axes)bit, rep) > 1)
            out |= (Axes)bit;
    return out;
}

/* ---- values ------------------------------------------------------------------ */

Layout home_layout(Part *q, TensorId t, char home)
{
    const Plan *p = q->p;
    Layout l = { .rep = 1 };
    l.rows = canon(p, home == 'A' ? AX_X | AX_YK : AX_X | AX_Z, 1);
    if (p->tensors.at[t].width > 1)
        l.cols = canon(p, axis_of(home), 1);
    return l;
}

int64_t rows_of(Part *q, Axes rows)
{
    const Plan *p = q->p;
    if (q->in_chunk)
        return q->chunk / (rows & AX_Z ? p->is.z : 1);
    return q->T / axes_size(p, rows, 1);
}

static int rowmap_add(Plan *p, RowMap m)
{
    for (int i = 0; i < p->rowmaps.n; i++) {
        const RowMap *o = &p->rowmaps.at[i];
        if (o->axes == m.axes && o->chunk == m.chunk && o->chunk_i == m.chunk_i &&
            o->first == m.first && o->nslices == m.nslices)
            return i;
    }
    vec_add(&p->rowmaps, m);
    return p->rowmaps.n - 1;
}

int rowmap_of(Part *q, Axes rows)
{
    return rowmap_add(q->p, (RowMap){ rows, q->slice, 1, q->in_chunk ? q->chunk : 0,
                                      q->in_chunk ? q->ichunk : 0, rows_of(q, rows) });
}

int rowmap_upto(Part *q, Axes rows)
{
    const Plan *p = q->p;
    int64_t n = 0;
    for (int i = 0; i <= q->slice; i++)
        n += p->is.slice[i];
    return rowmap_add(q->p, (RowMap){ rows, 0, q->slice + 1, 0, 0,
                                      n * p->is.microbatch / axes_size(p, rows, 1) });
}

static BufferId buffer_new(Part *q, const char *name, BufClass class, DType d, int64_t n)
{
    if (q->in_chunk && class >= BUF_ACTIVATION)
        class = BUF_LOGITS;
    if (q->again && class == BUF_ACTIVATION && q->phase == PHASE_BACKWARD)
        class = BUF_WORK;
    Buffer b = { .name = name, .class = class, .dtype = d, .elements = n, .first = -1,
                 .last = -1 };
    vec_add(&q->p->buffers, b);
    return q->p->buffers.n - 1;
}

static ValueId value_add(Part *q, Value v)
{
    v.made = q->phase;
    vec_add(&q->p->values, v);
    return q->p->values.n - 1;
}

/*
 * How rows are stored: with precision bf16 in 16 bits, but for statistics of rows (also
 * attention's log-sum-exp) and what lies within a chunk of the loss.
 */
static DType stored(const Part *q, TensorId t)
{
    const Plan *p = q->p;
    const Tensor *x = &p->tensors.at[t];
    const Op *d = x->def != NONE ? &p->ops.at[x->def] : NULL;
    bool statistic = x->width == 1 || (d && op_class[d->kind] == C_RED) ||
                     (d && d->kind == OP_ATTN && d->out[1] == t);
    return p->is.precision == PREC_BF16 && !q->in_chunk && !statistic ? D_BF16 : D_REAL;
}

DType stored_of(const Part *q, ValueId v)
{
    return q->p->buffers.at[q->p->values.at[v].buffer].dtype;
}

void store_as(Part *q, ValueId v, DType d)
{
    q->p->buffers.at[q->p->values.at[v].buffer].dtype = d;
}

ValueId value_new(Part *q, TensorId t, Layout l, int64_t rows, Columns c, BufClass class,
                  const char *name)
{
    const Plan *p = q->p;
    int64_t cols = 0;
    if (p->tensors.at[t].width == 1)
        cols = 1;
    else
        cols = local_width(p, c, l.cols);
    Value v = { .tensor = t, .layout = l, .cols_map = c, .rows = rows, .cols = cols,
                .ld = cols, .unit = NONE, .rowmap = rowmap_of(q, l.rows) };
    v.buffer = buffer_new(q, name, class, stored(q, t), rows * cols);
    return value_add(q, v);
}

ValueId value_matrix(Part *q, int64_t rows, int64_t cols, DType d, BufClass class,
                     const char *name)
{
    Value v = { .tensor = NONE, .rows = rows, .cols = cols, .ld = cols, .unit = NONE,
                .rowmap = NONE, .layout = { .rep = 1 } };
    v.buffer = buffer_new(q, name, class, d, rows * cols);
    return value_add(q, v);
}

ValueId value_view(Part *q, ValueId v, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    Value w = q->p->values.at[v];
    w.offset += row * w.ld + col;
    w.rows = rows;
    w.cols = cols;
    return value_add(q, w);
}

void spot_add(Part *q, TensorId t, ValueId v) { vec_add(&q->spot[t].at, v); }

ValueId home_new(Part *q, TensorId t, BufClass class)
{
    Plan *p = q->p;
    Spot *s = &q->spot[t];
    Layout l = home_layout(q, t, s->home);
    if (s->concat == NONE)
        return value_new(q, t, l, rows_of(q, l.rows), s->cols, class, p->tensors.at[t].name);
    const Op *o = &p->ops.at[s->concat];
    if (q->concat[s->concat] == NONE)
        q->concat[s->concat] = home_new(q, o->out[0], class);
    int64_t col = 0;
    for (int j = 0; o->in[j] != t; j++)
        col += local_width(p, q->spot[o->in[j]].cols, l.cols);
    ValueId v = value_view(q, q->concat[s->concat], 0, rows_of(q, l.rows), col,
                           local_width(p, s->cols, l.cols));
    p->values.at[v].tensor = t;
    p->values.at[v].cols_map = s->cols;
    return v;
}

/* ---- instructions -------------------------------------------------------------- */

Inst *inst_new(Part *q, InstKind kind, OpId op, const char *what)
{
    Plan *p = q->p;
    Inst i = { .kind = kind, .phase = q->phase, .op = op, .rows = NONE, .rep = 1,
               .rowmap = NONE, .rowmap_k = NONE };
    if (op != NONE) {
        i.loc = p->ops.at[op].loc;
        i.name = what ? str_fmt("%s: %s", p->ops.at[op].name, what) : p->ops.at[op].name;
    } else {
        i.name = what;
    }
    vec_add(&p->insts, i);
    return &p->insts.at[p->insts.n - 1];
}

static ValueId *add_id(ValueId *at, int n, ValueId v)
{
    ValueId *more = NEWN(ValueId, n + 1);
    if (n)
        memcpy(more, at, sizeof *at * (size_t)n);
    more[n] = v;
    return more;
}

void inst_in(Inst *i, ValueId v)
{
    i->in = add_id(i->in, i->nin, v);
    i->nin++;
}

void inst_out(Inst *i, ValueId v)
{
    i->out = add_id(i->out, i->nout, v);
    i->nout++;
}

/* A group of one is not in the plan: then the result is the source. */
ValueId coll(Part *q, CollKind kind, Axes axes, int rep, ValueId src, ValueId dst, OpId op,
             const char *what, const char *reason)
{
    if (canon(q->p, axes, rep) == 0)
        return src;
    Inst *i = inst_new(q, I_COLL, op, what);
    i->coll = kind;
    i->axes = canon(q->p, axes, rep);
    i->rep = rep;
    i->reason = reason;
    inst_in(i, src);
    inst_out(i, dst);
    return dst;
}

ValueId contiguous(Part *q, ValueId v, OpId op)
{
    Value a = q->p->values.at[v];
    if (a.ld == a.cols || a.rows == 1)
        return v;
    Value b = a;
    b.ld = b.cols;
    b.offset = 0;
    b.buffer = buffer_new(q, "contiguous copy", BUF_WORK, stored_of(q, v), b.rows * b.cols);
    ValueId w = value_add(q, b);
    Inst *i = inst_new(q, I_COPY, op, "copy to contiguous rows");
    inst_in(i, v);
    inst_out(i, w);
    return w;
}

/* ---- finding a tensor ------------------------------------------------------------ */

static bool settled(Layout l) { return (l.partial & (Axes)~AX_YR) == 0; }

static ValueId find(Part *q, TensorId t, Axes rows, Axes cols, bool is_settled)
{
    const Spot *s = &q->spot[t];
    for (int i = s->at.n - 1; i >= 0; i--) {
        const Value *v = &q->p->values.at[s->at.at[i]];
        if (v->layout.rows != rows || v->layout.cols != cols || settled(v->layout) != is_settled)
            continue;
        if (v->gathered && v->made == PHASE_FORWARD && q->phase == PHASE_BACKWARD &&
            !q->p->is.keep_inputs)
            continue;
        return s->at.at[i];
    }
    return NONE;
}

void demand(Part *q, TensorId t)
{
    OpId d = q->p->tensors.at[t].def;
    if (d != NONE)
        emit_op(q, d);
}

static const char *axes_name(Axes a) { return axes_word(a, 1); }

/* Takes the sum that a product left pending, each rank keeping its own rows. */
static ValueId scatter(Part *q, TensorId t, ValueId v)
{
    Plan *p = q->p;
    Value a = p->values.at[v];
    Layout home = home_layout(q, t, q->spot[t].home);
    Axes over = a.layout.partial & (Axes)~AX_YR;
    if ((a.layout.rows | over) != home.rows)
        bug("%s: a sum over %s is pending on rows by %s", p->tensors.at[t].name,
            axes_name(over), axes_name(a.layout.rows));
    OpId op = p->tensors.at[t].def;
    Layout l = home;
    l.partial = a.layout.partial & AX_YR;
    l.rep = a.layout.rep;
    ValueId src = contiguous(q, v, op);
    ValueId dst = value_new(q, t, l, rows_of(q, l.rows), a.cols_map, BUF_ACTIVATION,
                            p->tensors.at[t].name);
    store_as(q, dst, stored_of(q, src));
    coll(q, COLL_REDUCE_SCATTER, over, 1, src, dst, op,
         str_fmt("reduce-scatter over %s", axes_name(over)),
         str_fmt("each rank of %s has a part of every sum; the result's rows are split over it",
                 axes_name(over)));
    spot_add(q, t, dst);
    return dst;
}

ValueId home_value(Part *q, TensorId t)
{
    demand(q, t);
    Layout l = home_layout(q, t, q->spot[t].home);
    ValueId v = find(q, t, l.rows, l.cols, true);
    if (v != NONE)
        return v;
    const Spot *s = &q->spot[t];
    for (int i = 0; i < s->at.n; i++)
        if (!settled(q->p->values.at[s->at.at[i]].layout))
            return scatter(q, t, s->at.at[i]);
    bug("%s (%s) is nowhere", q->p->tensors.at[t].name,
        op_word[q->p->ops.at[q->p->tensors.at[t].def].kind]);
}

void all_reduced(Part *q, TensorId t, ValueId v, OpId op)
{
    Plan *p = q->p;
    Value a = p->values.at[v];
    Axes over = a.layout.partial;
    int rep = a.layout.rep;
    ValueId src = contiguous(q, v, op);
    a = p->values.at[src];
    a.layout.partial = 0;
    ValueId dst = value_add(q, a);
    coll(q, COLL_ALL_REDUCE, over, rep, src, dst, op,
         str_fmt("all-reduce over %s", axes_word(over, rep)),
         "copies of the same kv heads saw different query heads; what follows is not linear");
    Spot *s = &q->spot[t];
    for (int i = 0; i < s->at.n; i++)
        if (s->at.at[i] == v)
            s->at.at[i] = dst;
}

ValueId value_in(Part *q, TensorId t, char home)
{
    Plan *p = q->p;
    char from = q->spot[t].home;
    ValueId v = home_value(q, t);
    if (home == from)
        return v;
    Layout l = home_layout(q, t, home);
    Layout now = p->values.at[v].layout;
    if (l.rows == now.rows && l.cols == now.cols)
        return v;
    ValueId there = find(q, t, l.rows, l.cols, true);
    if (there != NONE)
        return there;
    OpId op = p->tensors.at[t].def;
    if (now.partial) {
        all_reduced(q, t, v, op);
        v = home_value(q, t);
    }
    v = contiguous(q, v, op);
    ValueId dst = value_new(q, t, l, rows_of(q, l.rows), q->spot[t].cols, BUF_GATHERED,
                            str_fmt("%s in %c", p->tensors.at[t].name, home));
    p->values.at[dst].gathered = true;
    store_as(q, dst, stored_of(q, v));
    Inst *i = inst_new(q, I_COLL, op, str_fmt("all-to-all %c to %c", from, home));
    i->coll = COLL_ALL_TO_ALL;
    i->a2a = home == 'B' ? A2A_AB : A2A_BA;
    i->axes = canon(p, AX_YK | AX_Z, 1);
    i->slice = q->slice;
    i->reason = str_fmt("`%s` is in layout %c and meets an operand in %c: rows are exchanged for "
                        "columns", p->tensors.at[t].name, from, home);
    inst_in(i, v);
    inst_out(i, dst);
    spot_add(q, t, dst);
    return dst;
}

ValueId gathered(Part *q, TensorId t, char home)
{
    Plan *p = q->p;
    ValueId v = value_in(q, t, home);
    Value a = p->values.at[v];
    Axes over = canon(p, home == 'A' ? AX_YK : AX_Z, 1), rows = canon(p, AX_X, 1);
    if (over == 0)
        return v;
    ValueId there = find(q, t, rows, a.layout.cols, true);
    if (there != NONE)
        return there;
    OpId op = p->tensors.at[t].def;
    Layout l = a.layout;
    l.rows = rows;
    v = contiguous(q, v, op);
    ValueId dst = value_new(q, t, l, rows_of(q, rows), a.cols_map, BUF_GATHERED,
                            str_fmt("%s, rows over %s", p->tensors.at[t].name, axes_name(over)));
    p->values.at[dst].gathered = true;
    store_as(q, dst, stored_of(q, v));
    coll(q, COLL_ALL_GATHER, over, 1, v, dst, op, str_fmt("all-gather over %s", axes_name(over)),
         str_fmt("rows of `%s` are split over %s; the product needs all rows of its x share",
                 p->tensors.at[t].name, axes_name(over)));
    spot_add(q, t, dst);
    return dst;
}

/* ---- once a step ------------------------------------------------------------------- */

static void swap_lists(Plan *p)
{
    char keep[sizeof p->insts];
    memcpy(keep, &p->insts, sizeof keep);
    memcpy(&p->insts, &p->front, sizeof keep);
    memcpy(&p->front, keep, sizeof keep);
}

void front(Part *q)
{
    swap_lists(q->p);
    q->phase = PHASE_FORWARD;
}

void front_end(Part *q, Phase phase)
{
    swap_lists(q->p);
    q->phase = phase;
}

/* ---- parameters -------------------------------------------------------------------- */

/* A unit's numbers in a buffer of their own: the block, or the rank's shard of it. */
static ValueId unit_buffer(Part *q, UnitId u, bool whole, BufClass class, DType dtype,
                           const char *what)
{
    const ParamUnit *n = &q->p->units.at[u];
    Value v = { .tensor = NONE, .rows = n->brows, .cols = n->bcols, .ld = n->bcols, .unit = u,
                .whole = whole, .rowmap = NONE, .layout = { .rep = 1 } };
    if (!whole) {
        v.rows = 1;
        v.cols = v.ld = n->shard;
    }
    v.gathered = class == BUF_GATHERED;
    v.buffer = buffer_new(q, what, class, dtype,
                          n->shard * (whole ? axes_size(q->p, n->spread, n->rep) : 1));
    return value_add(q, v);
}

static void unit_gather(Part *q, UnitId u, Axes axes, int rep, ValueId from, ValueId to,
                        const char *why)
{
    Plan *p = q->p;
    const ParamUnit *n = &p->units.at[u];
    coll(q, COLL_ALL_GATHER, axes, rep, from, to, NONE,
         str_fmt("%s: all-gather over %s", n->name, axes_word(axes, rep)),
         str_fmt("%s `%s` %s over %s", why, n->name, axes == AX_DATA ? "are split" : "is spread",
                 axes_word(axes, rep)));
    p->insts.at[p->insts.n - 1].loc = n->loc;
}

ValueId weight(Part *q, UnitId u)
{
    Plan *p = q->p;
    ParamUnit *n = &p->units.at[u];
    bool parts = p->is.zero >= 3;       // replicas keep parts of the shards
    if (n->spread == 0 && !parts)
        return n->p;
    bool fresh = q->unit_whole[u] != NONE &&
        (p->is.keep_weights || (q->unit_phase[u] == q->phase && q->unit_turn[u] == q->turn));
    if (fresh)
        return q->unit_whole[u];
    bool once = p->is.keep_weights && !q->whole;        // for all passes of the step
    Phase phase = q->phase;
    if (once)
        front(q);
    ValueId from = n->p, to = from;
    if (parts) {
        bool whole = n->spread == 0;
        to = unit_buffer(q, u, whole, whole ? BUF_GATHERED : BUF_WORK, stored_of(q, from),
                         str_fmt("%s, of all replicas", n->name));
        unit_gather(q, u, AX_DATA, 1, from, to, "zero = 3: the shards of");
        from = to;
    }
    if (n->spread) {
        to = unit_buffer(q, u, true, BUF_GATHERED, stored_of(q, from),
                         str_fmt("%s, gathered", n->name));
        unit_gather(q, u, n->spread, n->rep, from, to, "the block of");
    }
    if (once)
        front_end(q, phase);
    q->unit_whole[u] = to;
    q->unit_phase[u] = q->phase;
    q->unit_turn[u] = q->turn;
    return to;
}

/* What pads the block to equal shards is summed and counted in the norm: zeros. */
static void clear_tail(Part *q, UnitId u, ValueId whole)
{
    Plan *p = q->p;
    const ParamUnit *n = &p->units.at[u];
    Value v = p->values.at[whole];
    int64_t used = n->brows * n->bcols;
    int64_t tail = n->shard * axes_size(p, n->spread, n->rep) - used;
    if (tail == 0)
        return;
    v.offset += used;
    v.rows = 1;
    v.cols = v.ld = tail;
    v.unit = NONE;
    inst_out(inst_new(q, I_ZERO, NONE, str_fmt("%s: clear the padding", n->name)),
             value_add(q, v));
}

/* Is the unit's gradient made whole and then scattered, or made where it is kept? */
static bool is_scattered(const Part *q, const ParamUnit *u)
{
    return u->spread != 0 || q->p->is.zero >= 2;
}

ValueId weight_grad(Part *q, UnitId u, bool *first)
{
    ParamUnit *n = &q->p->units.at[u];
    UnitGrad *g = &q->grad[u];
    *first = is_scattered(q, n) ? g->done == 0 : !g->begun;
    if (!is_scattered(q, n))
        return n->g;
    if (g->whole == NONE) {
        g->whole = unit_buffer(q, u, true, BUF_WORK, D_REAL,
                               str_fmt("gradient of %s, whole", n->name));
        clear_tail(q, u, g->whole);
    }
    return g->whole;
}

/* Sums `from` over axes, each rank keeping its part; `last`: into the stored gradient. */
static void grad_scatter(Part *q, UnitId u, Axes axes, int rep, ValueId from, ValueId to,
                         OpId op, bool last)
{
    Plan *p = q->p;
    const ParamUnit *n = &p->units.at[u];
    const char *why = axes == AX_DATA
        ? str_fmt("replicas saw other sequences; each keeps its part of `%s` (zero = %d)", n->name,
                  p->is.zero)
        : str_fmt("each rank of %s saw other tokens or heads; the block of `%s` is spread over it",
                  axes_word(axes, rep), n->name);
    coll(q, COLL_REDUCE_SCATTER, axes, rep, from, to, op,
         str_fmt("gradient, reduce-scatter over %s", axes_word(axes, rep)), why);
    p->insts.at[p->insts.n - 1].accumulate = last && q->grad[u].begun;
}

void weight_grad_done(Part *q, UnitId u, OpId op)
{
    const ParamUnit *n = &q->p->units.at[u];
    UnitGrad *g = &q->grad[u];
    bool parts = q->p->is.zero >= 2;
    g->done++;
    if (!is_scattered(q, n))
        g->begun = true;
    if (g->done < g->ncontrib || !is_scattered(q, n))
        return;
    ValueId from = g->whole;
    if (n->spread) {
        ValueId to = n->g;
        if (parts)
            to = unit_buffer(q, u, false, BUF_WORK, D_REAL,
                             str_fmt("gradient of %s, shard", n->name));
        grad_scatter(q, u, n->spread, n->rep, from, to, op, !parts);
        from = to;
    }
    if (parts)
        grad_scatter(q, u, AX_DATA, 1, from, n->g, op, true);
    g->begun = true;
}

/* ---- program order -------------------------------------------------------------------- */

void emit_cluster(Part *q, int c)
{
    if (q->clusters.at[c].emitted)
        return;
    q->clusters.at[c].emitted = true;
    lower_cluster(q, c);
}

void emit_op(Part *q, OpId op)
{
    OpInfo *f = &q->info[op];
    if (is_row_op(&q->p->ops.at[op])) {
        int c = cluster_of(q, op);
        if (c != NONE && !f->floating)
            emit_cluster(q, c);
        return;
    }
    if (f->emitted)
        return;
    f->emitted = true;
    lower_op(q, op);
}

/* Tensors that their producer can write straight into a CONCAT's result. */
static void find_concats(Part *q)
{
    Plan *p = q->p;
    for (int t = 0; t < p->tensors.n; t++)
        q->spot[t].concat = NONE;
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        q->concat[i] = NONE;
        if (o->kind != OP_CONCAT || o->parts > 1)
            continue;
        for (int j = 0; j < o->nin; j++) {
            Spot *s = &q->spot[o->in[j]];
            OpId d = p->tensors.at[o->in[j]].def;
            if (s->nuses != 1 || s->home != q->spot[o->out[0]].home || d == NONE ||
                q->info[d].region || q->block[d] != q->block[i])
                continue;
            const Op *m = &p->ops.at[d];
            bool writes = m->kind == OP_ROPE || (op_class[m->kind] == C_ROW && s->stored) ||
                (m->kind == OP_ATTN_DX &&
                 ((p->is.attention == ATT_LOCAL && p->is.nslices == 1 &&
                   p->is.precision != PREC_BF16) ||
                  (o->in[j] == m->out[0] && p->is.attention != ATT_EXCHANGE)));
            if (writes && p->tensors.at[o->in[j]].width > 1)
                s->concat = i;
        }
    }
}

static void begin_gradients(Part *q)
{
    Plan *p = q->p;
    for (int i = 0; i < p->units.n; i++) {
        q->grad[i] = (UnitGrad){ .whole = NONE };
        q->grad[i].first = SCRATCHN(bool, p->units.at[i].npieces);
        q->unit_whole[i] = NONE;
    }
}

/* Does the operator stand in the function being lowered? */
static bool is_here(const Part *q, OpId i, Phase phase)
{
    const Op *o = &q->p->ops.at[i];
    int s = q->chunk_now * q->p->is.stages + q->p->stage;
    bool forward = o->phase == PHASE_FORWARD || q->info[i].region;
    return q->section[i] == s && forward == (phase == PHASE_FORWARD);
}

/* Shares of the units' gradients that the function's operators add. With one function
 * each way those of both are one sum. */
static void count_contributions(Part *q, Phase phase)
{
    Plan *p = q->p;
    if (q->whole && phase == PHASE_BACKWARD)
        return;
    for (int i = 0; i < p->units.n; i++) {
        UnitGrad *g = &q->grad[i];
        g->ncontrib = g->done = 0;
        g->whole = NONE;
        if (is_scattered(q, &p->units.at[i]))
            memset(g->first, 0, sizeof *g->first * (size_t)p->units.at[i].npieces);
        if (!p->is.keep_weights)
            q->unit_whole[i] = NONE;
    }
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        if (!q->whole && !is_here(q, i, phase))
            continue;
        if (o->kind == OP_COLSUM)
            q->grad[q->param_unit[p->tensors.at[o->out[0]].param]].ncontrib++;
        if (o->kind == OP_LINEAR_DW || o->kind == OP_EMBED_DW)
            for (int k = 0; k < q->info[o->of].nunits; k++)
                q->grad[q->info[o->of].unit[k]].ncontrib++;
    }
}

/* The persistent buffers and each unit's share of them. */
static void make_regions(Part *q)
{
    Plan *p = q->p;
    int zero = p->is.zero, d = p->is.data;
    int64_t part = zero >= 1 ? p->flat_pad / d : p->flat_pad;
    bool master = p->is.precision == PREC_BF16;
    BufferId params = buffer_new(q, "parameters", BUF_PARAMS, master ? D_BF16 : D_REAL,
                                 zero >= 3 ? part : p->flat_pad);
    BufferId grads = buffer_new(q, "gradients", BUF_GRADS, D_REAL,
                                zero >= 2 ? part : p->flat_pad);
    bool adam = p->config->train.optimizer == OPT_ADAMW;
    buffer_new(q, "first moments", BUF_MOMENTS, D_REAL, part);
    buffer_new(q, "second moments", BUF_MOMENTS, D_REAL, adam ? part : 0);
    buffer_new(q, "master weights", BUF_MOMENTS, D_REAL, master ? part : 0);
    for (int i = 0; i < PERSISTENT; i++)
        p->buffers.at[i].persistent = true;
    for (int i = 0; i < p->units.n; i++) {
        ParamUnit *u = &p->units.at[i];
        Value whole = { .tensor = NONE, .unit = i, .rowmap = NONE, .layout = { .rep = 1 },
                        .buffer = params, .offset = u->offset, .rows = 1, .cols = u->shard,
                        .ld = u->shard };
        Value own = whole;
        own.part = true;
        own.offset = u->offset / d;
        own.cols = own.ld = u->shard / d;
        if (u->spread == 0) {
            whole.rows = u->brows;
            whole.cols = whole.ld = u->bcols;
        }
        u->p = value_add(q, zero >= 3 ? own : whole);
        whole.buffer = own.buffer = grads;
        u->g = value_add(q, zero >= 2 ? own : whole);
    }
}

/* ---- functions ------------------------------------------------------------------------ */

static void func_begin(Part *q, StepKind kind)
{
    Func f = { kind, q->slice, q->chunk_now, q->p->insts.n, 0 };
    vec_add(&q->p->funcs, f);
}

static void func_end(Part *q)
{
    q->p->funcs.at[q->p->funcs.n - 1].end = q->p->insts.n;
}

/* Nothing has been computed of the current unit. */
static void clear_unit(Part *q)
{
    Plan *p = q->p;
    for (int t = 0; t < p->tensors.n; t++)
        q->spot[t].at = (ValueList){ 0 };
    for (int i = 0; i < p->ops.n; i++) {
        q->info[i].emitted = false;
        q->concat[i] = NONE;
    }
    for (int i = 0; i < q->clusters.n; i++)
        q->clusters.at[i].emitted = false;
    for (int i = 0; i < q->psums.n; i++)
        q->psums.at[i].value = NONE;
}

static void keep_unit(Part *q)
{
    Plan *p = q->p;
    UnitState *s = &q->state[q->slice];
    s->at = SCRATCHN(ValueList, p->tensors.n);
    s->op_emitted = SCRATCHN(bool, p->ops.n);
    s->cluster_emitted = SCRATCHN(bool, q->clusters.n);
    s->concat = SCRATCHN(ValueId, p->ops.n);
    s->psum = SCRATCHN(ValueId, q->psums.n);
    for (int t = 0; t < p->tensors.n; t++)
        s->at[t] = q->spot[t].at;
    for (int i = 0; i < p->ops.n; i++) {
        s->op_emitted[i] = q->info[i].emitted;
        s->concat[i] = q->concat[i];
    }
    for (int i = 0; i < q->clusters.n; i++)
        s->cluster_emitted[i] = q->clusters.at[i].emitted;
    for (int i = 0; i < q->psums.n; i++)
        s->psum[i] = q->psums.at[i].value;
    s->head_dx = q->head_dx;
}

static void restore_unit(Part *q)
{
    Plan *p = q->p;
    const UnitState *s = &q->state[q->slice];
    for (int t = 0; t < p->tensors.n; t++)
        q->spot[t].at = s->at[t];
    for (int i = 0; i < p->ops.n; i++) {
        q->info[i].emitted = s->op_emitted[i];
        q->concat[i] = s->concat[i];
    }
    for (int i = 0; i < q->clusters.n; i++)
        q->clusters.at[i].emitted = s->cluster_emitted[i];
    for (int i = 0; i < q->psums.n; i++)
        q->psums.at[i].value = s->psum[i];
    q->head_dx = s->head_dx;
}

/* Forward operators whose results the backward pass is to compute again. */
static void forget_op(Part *q, OpId i)
{
    const Op *o = &q->p->ops.at[i];
    q->info[i].emitted = false;
    q->concat[i] = NONE;
    if (is_row_op(o) && cluster_of(q, i) != NONE)
        q->clusters.at[cluster_of(q, i)].emitted = false;
    if (q->info[i].psum != NONE)
        q->psums.at[q->info[i].psum].value = NONE;
    for (int j = 0; j < o->nout; j++)
        q->spot[o->out[j]].at = (ValueList){ 0 };
}

static void forget_block(Part *q, int block)
{
    for (int i = 0; i < q->p->nforward; i++)
        if (q->block[i] == block)
            forget_op(q, i);
}

static void forget_attention(Part *q)
{
    for (int i = 0; i < q->p->nforward; i++)
        if (q->p->ops.at[i].kind == OP_ATTN && is_here(q, i, PHASE_FORWARD))
            forget_op(q, i);
}

/* ---- transfers ------------------------------------------------------------------------ */

static void receive(Part *q, StepKind kind, const Ends *what, int peer)
{
    func_begin(q, kind);
    for (int i = 0; i < what->n; i++) {
        TensorId t = what->at[i];
        Layout l = home_layout(q, t, q->spot[t].home);
        const Tensor *x = &q->p->tensors.at[t];
        ValueId v = value_new(q, t, l, rows_of(q, l.rows), q->spot[t].cols, BUF_ACTIVATION,
                              x->name);
        Inst *n = inst_new(q, I_COLL, x->def, str_fmt("from stage %d", peer));
        n->coll = COLL_RECV;
        n->peer = peer;
        n->reason = "made by an earlier stage, read here or behind it";
        if (kind == STEP_RECV_GRADIENT)
            n->reason = "gradient of what this stage sent on";
        inst_out(n, v);
        spot_add(q, t, v);
        q->info[x->def].emitted = true;         // by another stage
        if (is_row_op(&q->p->ops.at[x->def]) && cluster_of(q, x->def) != NONE)
            q->clusters.at[cluster_of(q, x->def)].emitted = true;
    }
    func_end(q);
}

/* What is to be sent, whole and contiguous: the last work of the function before. */
static ValueId *ready(Part *q, const Ends *what)
{
    ValueId *v = NEWN(ValueId, what->n + 1);
    for (int i = 0; i < what->n; i++) {
        TensorId t = what->at[i];
        OpId d = q->p->tensors.at[t].def;
        v[i] = home_value(q, t);
        if (q->p->values.at[v[i]].layout.partial) {
            all_reduced(q, t, v[i], d);
            v[i] = home_value(q, t);
        }
        v[i] = contiguous(q, v[i], d);
    }
    return v;
}

static void deliver(Part *q, StepKind kind, const Ends *what, const ValueId *v, int peer)
{
    func_begin(q, kind);
    for (int i = 0; i < what->n; i++) {
        const Tensor *x = &q->p->tensors.at[what->at[i]];
        Inst *n = inst_new(q, I_COLL, x->def, str_fmt("to stage %d", peer));
        n->coll = COLL_SEND;
        n->peer = peer;
        n->reason = kind == STEP_SEND_GRADIENT ? "gradient of what was received"
                                               : "a later stage reads it";
        inst_in(n, v[i]);
    }
    func_end(q);
}

/* ---- one unit ------------------------------------------------------------------------- */

static void begin_unit(Part *q, Phase phase, int slice)
{
    const Plan *p = q->p;
    q->phase = phase;
    q->slice = slice;
    q->T = p->is.microbatch * p->is.slice[slice];
    q->chunk = mesh_chunk(p, &p->is, q->T / p->is.x);
}

static void walk_ops(Part *q, Phase phase)
{
    Plan *p = q->p;
    int block = NONE;
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        if (o->phase != phase || q->section[i] != q->chunk_now * p->is.stages + p->stage)
            continue;
        q->phase = phase;
        q->turn = o->repeat * 100000 + o->turn;
        if (phase == PHASE_BACKWARD && q->block[i] != block && block_again(q, i))
            forget_block(q, block = q->block[i]);
        if (o->kind == OP_CE)
            lower_loss(q, i);
        else if (q->info[i].region || o->kind == OP_CE_DX)
            continue;
        else if (!is_row_op(o) || o->kind == OP_COLSUM)
            emit_op(q, i);
    }
}

static void unit_forward(Part *q, int slice)
{
    const Plan *p = q->p;
    int s = q->chunk_now * p->is.stages + p->stage, P = p->is.stages;
    bool first = s == 0, last = s == P * p->is.chunks - 1;
    clear_unit(q);
    begin_unit(q, PHASE_FORWARD, slice);
    if (!first)
        receive(q, STEP_RECV_ACTIVATION, &q->cut[s - 1], (p->stage + P - 1) % P);
    func_begin(q, STEP_FORWARD);
    count_contributions(q, PHASE_FORWARD);
    walk_ops(q, PHASE_FORWARD);
    ValueId *v = last ? NULL : ready(q, &q->cut[s]);
    func_end(q);
    if (!last)
        deliver(q, STEP_SEND_ACTIVATION, &q->cut[s], v, (p->stage + 1) % P);
    keep_unit(q);
}

static void unit_backward(Part *q, int slice)
{
    const Plan *p = q->p;
    int s = q->chunk_now * p->is.stages + p->stage, P = p->is.stages;
    bool first = s == 0, last = s == P * p->is.chunks - 1;
    begin_unit(q, PHASE_BACKWARD, slice);
    restore_unit(q);
    if (!last)
        receive(q, STEP_RECV_GRADIENT, &q->cut_back[s], (p->stage + 1) % P);
    func_begin(q, STEP_BACKWARD);
    count_contributions(q, PHASE_BACKWARD);
    q->again = p->is.recompute != RECOMPUTE_NONE;
    if (p->is.recompute == RECOMPUTE_ATTENTION)
        forget_attention(q);
    walk_ops(q, PHASE_BACKWARD);
    ValueId *v = first ? NULL : ready(q, &q->cut_back[s - 1]);
    q->again = false;
    func_end(q);
    if (!first)
        deliver(q, STEP_SEND_GRADIENT, &q->cut_back[s - 1], v, (p->stage + P - 1) % P);
}

/* Of the last function, what the optimizer does becomes one of its own. */
static void split_sync(Part *q)
{
    Plan *p = q->p;
    Func *sync = &p->funcs.at[p->funcs.n - 1], update = { STEP_OPTIMIZER, 0, 0, 0, sync->end };
    update.first = sync->first;
    while (update.first < update.end && p->insts.at[update.first].phase == PHASE_SYNC)
        update.first++;
    sync->end = update.first;
    vec_add(&p->funcs, update);
}

/* BEGIN goes in front of all that was lowered. */
static void put_front(Part *q)
{
    Plan *p = q->p;
    int n = p->front.n;
    vec_reserve(&p->insts, p->insts.n + n);
    memmove(&p->insts.at[n], p->insts.at, sizeof *p->insts.at * (size_t)p->insts.n);
    memcpy(p->insts.at, p->front.at, sizeof *p->insts.at * (size_t)n);
    p->insts.n += n;
    p->front.n = 0;
    Func begin = { STEP_BEGIN, 0, 0, 0, n };
    vec_add(&p->funcs, begin);
    for (int i = p->funcs.n - 1; i > 0; i--) {
        p->funcs.at[i] = p->funcs.at[i - 1];
        p->funcs.at[i].first += n;
        p->funcs.at[i].end += n;
    }
    p->funcs.at[0] = begin;
}

static void make_calls(Part *q)
{
    Plan *p = q->p;
    if (q->whole)
        calls_of_one(p);
    else
        calls_of_table(p, &p->pipeline->schedule.stage[p->stage]);
}

void lower(Part *q)
{
    Plan *p = q->p;
    int k = p->is.nslices;
    q->whole = p->is.stages == 1 && p->is.chunks == 1 && k == 1;
    q->phase = PHASE_FORWARD;
    q->roots = SCRATCHN(KeyRoots, p->ops.n);
    for (int i = 0; i < p->ops.n; i++)
        q->roots[i] = (KeyRoots){ { NONE, NONE }, { NONE, NONE } };
    find_concats(q);
    make_regions(q);
    begin_gradients(q);
    front(q);
    inst_new(q, I_COUNT, NONE, "count the targets");
    front_end(q, PHASE_FORWARD);
    UnitState **state = SCRATCHN(UnitState *, p->is.chunks);
    for (q->chunk_now = 0; q->chunk_now < p->is.chunks; q->chunk_now++) {
        q->state = state[q->chunk_now] = SCRATCHN(UnitState, k);
        for (int i = 0; i < k; i++)
            unit_forward(q, i);
    }
    for (q->chunk_now = p->is.chunks - 1; q->chunk_now >= 0; q->chunk_now--) {
        q->state = state[q->chunk_now];
        for (int i = k - 1; i >= 0; i--)
            unit_backward(q, i);
    }
    q->chunk_now = q->slice = 0;
    q->T = p->is.T;
    func_begin(q, STEP_SYNC);
    lower_sync(q);
    func_end(q);
    split_sync(q);
    put_front(q);
    make_calls(q);
}
