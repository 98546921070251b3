/*
 * verify_flow.c - layouts as types: the program is run on types alone.
 *
 * For every buffer a list of facts says which part holds what type: rows and
 * columns split over which axes, which sum is pending. Each instruction has a
 * rule: it reads facts (they must cover the operand and agree with its declared
 * type), works out the type of its result without looking at how the plan was
 * made, and writes that fact. All ranks run one list, so their collectives are in one
 * order; what is left to check is that each has the group its operand needs.
 *
 *     all-gather over g       rows (.., g)      -> rows (..)
 *     reduce-scatter over g   partial g         -> rows (.., g)
 *     all-reduce over g       partial g         -> none pending
 *     product x[.., k] w[k, ..]   columns of x split over k -> partial k
 *
 * partition = summa(q): panels are blocks on their way. A broadcast over g makes block i of
 * what g splits a panel, which a product takes and nothing else; a sum over blocks is done
 * when each has been added once, a result when each of its blocks has been summed once.
 */
#include "verify.h"

typedef struct {
    int64_t offset, rows, cols, ld;
    Layout type;
    UnitId unit; bool whole, part;      // weights and their gradients
    TensorId tensor;            // what it holds; of a sum, its first term
    bool copies;                // some columns are held by several ranks of y
    int nterms; OpId last;      // operators that added to it, and the last of them
    int64_t k, want;            // products: columns summed over, and how many there are
    int64_t tokens;             // column sums: of how many tokens
    bool read;                  // since it was written: adding to it now is too late
    bool sum;                   // of gradients: to be read, once, before it may go
    SummaPanel panel;                // it is a block on its way
    uint64_t blocks; int nblocks;       // of q that are to be there, those that are; 0: no blocks
} Fact;
typedef VEC(Fact) Facts;

/* Tokens whose rows an operator has added to a unit's gradient. */
typedef struct { OpId op; UnitId unit; int64_t tokens; int before; } Share;

typedef struct {
    Verify *v;
    const Plan *p;
    Facts *facts;               // per buffer
    InstId i;
    VEC(Share) shares;
    int *newest_share;          // per op: its last one, each knows the one before
    int ncount, nnorm, ntotals, nupdate;        // of a step's end, seen so far
    int64_t contracting, contracted;            // of the product at hand: its columns, all
    TensorId dlogits;           // what the loss leaves in the logits' place
    uint64_t *rounds;           // per op: blocks of a weight's gradient that it has summed
    bool adds;                  // the round at hand adds to the gradient
} Flow;

static void fail(Flow *f, const char *check, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(Flow *f, const char *check, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    f->v->check = check;
    verify_fail(f->v, f->i, "%s", text);
}

static const char *type_word(Layout l)
{
    return str_fmt("rows {%s} columns {%s} pending {%s}", axes_word(l.rows, 1),
                   axes_word(l.cols, 1), axes_word(l.partial, l.rep));
}

static bool same_type(Layout a, Layout b)
{
    return a.rows == b.rows && a.cols == b.cols && a.partial == b.partial &&
           (a.rep == b.rep || !(a.partial & AX_YR));
}

/* ---- facts ------------------------------------------------------------------------- */

static bool overlaps(const Fact *a, const Value *b)
{
    int64_t a1 = a->offset + (a->rows - 1) * a->ld + a->cols;
    int64_t b1 = b->offset + (b->rows - 1) * b->ld + b->cols;
    if (a->offset >= b1 || b->offset >= a1)
        return false;
    if (a->ld != b->ld || a->rows == 1 || b->rows == 1)
        return true;
    int64_t ac = a->offset % a->ld, bc = b->offset % b->ld;
    return ac < bc + b->cols && bc < ac + a->cols;
}

/* Elements of `b` that the fact covers, where both lie on one grid of rows. */
static int64_t covered(const Fact *a, const Value *b)
{
    int64_t a1 = a->offset + (a->rows - 1) * a->ld + a->cols;
    int64_t b1 = b->offset + (b->rows - 1) * b->ld + b->cols;
    if (a->offset <= b->offset && a1 >= b1 && (a->ld == a->cols || a->rows == 1))
        return b->rows * b->cols;
    if (a->ld == b->ld && a->rows > 1 && b->rows > 1) {
        int64_t ar = a->offset / a->ld, br = b->offset / b->ld;
        int64_t ac = a->offset % a->ld, bc = b->offset % b->ld;
        int64_t r0 = ar > br ? ar : br, c0 = ac > bc ? ac : bc;
        int64_t r1 = ar + a->rows < br + b->rows ? ar + a->rows : br + b->rows;
        int64_t c1 = ac + a->cols < bc + b->cols ? ac + a->cols : bc + b->cols;
        return r1 > r0 && c1 > c0 ? (r1 - r0) * (c1 - c0) : 0;
    }
    return a->offset >= b->offset && a1 <= b1 ? a->rows * a->cols : 0;
}

static const Value *val(const Flow *f, ValueId v) { return &f->p->values.at[v]; }

/* A range of the flat region spans several units and the gaps between them. */
static bool is_range(const Flow *f, const Value *x)
{
    BufClass c = f->p->buffers.at[x->buffer].class;
    return (c == BUF_PARAMS || c == BUF_GRADS) && x->unit == NONE;
}

/* The fact's tensor may stand where `t` is asked for: views and sums in place. */
static bool holds(const Flow *f, const Fact *a, TensorId t, int depth)
{
    OpId d = f->p->tensors.at[t].def;
    if (a->tensor == t)
        return true;
    if (d == NONE || depth > 16)
        return false;
    const Op *o = &f->p->ops.at[d];
    if (o->kind == OP_SPLIT)
        return holds(f, a, o->in[0], depth + 1);
    for (int j = 0; j < o->nin && (o->kind == OP_PSUM || o->kind == OP_CONCAT); j++)
        if (holds(f, a, o->in[j], depth + 1))
            return o->kind == OP_CONCAT || a->nterms == o->nin;
    return false;
}

static bool same_panel(SummaPanel a, SummaPanel b)
{
    return a.over == b.over && (a.over == 0 || (a.i == b.i && a.sum == b.sum));
}

static const char *panel_word(SummaPanel a)
{
    return a.over == 0 ? "no block on its way"
         : str_fmt("%sblock %d over %s", a.sum ? "a part of " : "", a.i, axes_word(a.over, 1));
}

static bool has_copies(const Value *x)
{
    bool copies = false;
    for (int i = 0; i < x->cols_map.n; i++)
        copies |= x->cols_map.seg[i].rep > 1;
    return copies;
}

/* A sum over copies is pending on copied columns alone: others do not care. */
static bool agrees(const Fact *a, const Value *x)
{
    Layout t = a->type, u = x->layout;
    if ((t.partial ^ u.partial) & AX_YR) {
        if (t.partial & AX_YR ? has_copies(x) : a->copies)
            return false;
        t.partial &= (Axes)~AX_YR;
        u.partial &= (Axes)~AX_YR;
    }
    return same_type(t, u);
}

/* Reads an operand: what it holds now must be all there and of its declared type. */
static Layout read(Flow *f, ValueId id)
{
    const Value *x = val(f, id);
    Facts *facts = &f->facts[x->buffer];
    int64_t got = 0;
    for (int i = 0; i < facts->n; i++) {
        Fact *a = &facts->at[i];
        if (!overlaps(a, x))
            continue;
        got += covered(a, x);
        a->read = true;
        if (a->k < a->want)
            fail(f, "sum-unfinished", "`%s` is summed over %" PRId64 " of %" PRId64 " columns",
                 f->p->buffers.at[x->buffer].name, a->k, a->want);
        if (x->unit == NONE && !is_range(f, x) && !agrees(a, x))
            fail(f, a->type.partial != x->layout.partial ? "partial-value" : "layout-agrees",
                 "`%s` holds %s, the operand is declared %s",
                 f->p->buffers.at[x->buffer].name, type_word(a->type), type_word(x->layout));
        if (x->tensor != NONE && a->tensor != NONE && !holds(f, a, x->tensor, 0))
            fail(f, "other-contents", "`%s` is not, or not yet, in `%s`",
                 f->p->tensors.at[x->tensor].name, f->p->buffers.at[x->buffer].name);
        if (!same_panel(a->panel, x->panel))
            fail(f, "layout-agrees", "`%s` holds %s, the operand names %s",
                 f->p->buffers.at[x->buffer].name, panel_word(a->panel), panel_word(x->panel));
        if (a->nblocks && a->blocks + 1 != UINT64_C(1) << (a->nblocks - 1) << 1)
            fail(f, "sum-unfinished", "`%s` has %d of its %d blocks",
                 f->p->buffers.at[x->buffer].name, __builtin_popcountll(a->blocks), a->nblocks);
        if (x->unit != NONE && (a->unit != x->unit || a->whole != x->whole || a->part != x->part))
            fail(f, "layout-agrees", "`%s` holds another block than the operand names",
                 f->p->buffers.at[x->buffer].name);
    }
    if (got < x->rows * x->cols && !is_range(f, x))
        fail(f, "read-before-written", "%" PRId64 " of %" PRId64 " elements of `%s` have been "
             "written", got, x->rows * x->cols, f->p->buffers.at[x->buffer].name);
    return x->layout;
}

static void forget(Flow *f, const Value *x)
{
    Facts *facts = &f->facts[x->buffer];
    int n = 0;
    for (int i = 0; i < facts->n; i++)
        if (!overlaps(&facts->at[i], x))
            facts->at[n++] = facts->at[i];
    facts->n = n;
}

/* Gradients whose norm was taken are not written again. */
static void late(Flow *f, const Value *x)
{
    if (f->nnorm && f->p->buffers.at[x->buffer].class == BUF_GRADS)
        fail(f, "gradient-summed", "a gradient is written after the norm was taken");
}

/* A gradient that nobody has read is added to, never overwritten. */
static void keeps_sums(Flow *f, const Value *x)
{
    const Facts *facts = &f->facts[x->buffer];
    for (int i = 0; i < facts->n; i++)
        if (facts->at[i].sum && !facts->at[i].read && overlaps(&facts->at[i], x))
            fail(f, "gradient-summed", "what was added to the gradient of `%s` is overwritten",
                 f->p->units.at[facts->at[i].unit].name);
}

static void put(Flow *f, ValueId id, Layout type)
{
    const Value *x = val(f, id);
    const Inst *n = &f->p->insts.at[f->i == NONE ? 0 : f->i];
    Fact a = { .offset = x->offset, .rows = x->rows, .cols = x->cols, .ld = x->ld, .type = type,
               .unit = x->unit, .whole = x->whole, .part = x->part, .tensor = x->tensor,
               .copies = has_copies(x), .nterms = 1, .last = f->i == NONE ? NONE : n->op,
               .panel = x->panel };
    a.k = f->contracting;
    a.want = f->contracted;
    keeps_sums(f, x);
    forget(f, x);
    vec_add(&f->facts[x->buffer], a);
    late(f, x);
}

static Fact *newest(Flow *f, ValueId id)        // the fact that `put` has just made
{
    Facts *facts = &f->facts[val(f, id)->buffer];
    return &facts->at[facts->n - 1];
}

/* Writes a result of the type that the rule gives; it must be the declared one. */
static void write(Flow *f, ValueId id, Layout type)
{
    const Value *x = val(f, id);
    if (x->unit == NONE && !same_type(type, x->layout))
        fail(f, "layout-agrees", "the result is %s, declared %s", type_word(type),
             type_word(x->layout));
    put(f, id, type);
}

/* Adds to what is there: same type, nobody has read it yet. */
static void add(Flow *f, ValueId id, Layout type)
{
    const Value *x = val(f, id);
    const Inst *n = &f->p->insts.at[f->i];
    Facts *facts = &f->facts[x->buffer];
    int64_t got = 0;
    for (int i = 0; i < facts->n; i++) {
        Fact *a = &facts->at[i];
        if (!overlaps(a, x))
            continue;
        got += covered(a, x);
        if (a->read)
            fail(f, "sum-unfinished", "`%s` was read before this term was added",
                 f->p->buffers.at[x->buffer].name);
        if (!same_type(a->type, type))
            fail(f, "partial-value", "adds %s to %s", type_word(type), type_word(a->type));
        if (a->last != n->op)
            a->nterms++;
        if (a->last != n->op)
            a->want += f->contracted;
        a->k += f->contracting;
        a->last = n->op;
    }
    late(f, x);
    if (got < x->rows * x->cols)
        fail(f, "read-before-written", "adds to `%s`, which was not written",
             f->p->buffers.at[x->buffer].name);
}

static void produce(Flow *f, ValueId id, Layout type, bool accumulate)
{
    if (accumulate)
        add(f, id, type);
    else
        write(f, id, type);
}

/* One more block of what stands at `id`, which the instruction's operator makes; each once. */
static void add_block(Flow *f, ValueId id, int i, int nblocks)
{
    const Value *x = val(f, id);
    Facts *facts = &f->facts[x->buffer];
    for (int k = 0; k < facts->n; k++) {
        Fact *a = &facts->at[k];
        if (!overlaps(a, x))
            continue;
        if (a->blocks >> i & 1)
            fail(f, "sum-twice", "block %d is in `%s` already", i,
                 f->p->buffers.at[x->buffer].name);
        a->blocks |= UINT64_C(1) << i;
        a->nblocks = nblocks;
    }
}

static void no_blocks(Flow *f, ValueId id)
{
    Facts *facts = &f->facts[val(f, id)->buffer];
    for (int k = 0; k < facts->n; k++)
        if (overlaps(&facts->at[k], val(f, id)))
            facts->at[k].blocks = 0;
}

/* Same, for gradients of units: their type is not declared on the value. */
static void produce_grad(Flow *f, ValueId id, Layout type, bool accumulate)
{
    if (accumulate) {
        add(f, id, type);
    } else {
        put(f, id, type);
        newest(f, id)->sum = val(f, id)->unit != NONE;
    }
}

/* ---- types ----------------------------------------------------------------------------- */

static Axes canon(const Flow *f, Axes a, int rep)
{
    Axes out = 0;
    for (int bit = 1; bit <= AX_Z; bit <<= 1)
        if ((a & bit) && axes_size(f->p, (Axes)bit, rep) > 1)
            out |= (Axes)bit;
    return out;
}

static Layout type(Axes rows, Axes cols, Axes partial)
{
    return (Layout){ rows, cols, partial, 1 };
}

/* Over YR, together with all of y, the sum is over all of y. */
static Layout pending(Layout l, Axes more)
{
    l.partial |= more;
    if (l.partial & AX_YK) {
        l.partial &= (Axes)~AX_YR;
        l.rep = 1;
    }
    return l;
}

/* Sums over these come at the end of a step: over replicas, and over stages that share. */
enum { LATE = AX_DATA | AX_STAGE };

static Axes late_axes(const Flow *f, UnitId u)
{
    Axes stage = u != NONE && f->p->units.at[u].stages ? AX_STAGE : 0;
    return canon(f, AX_DATA, 1) | stage;
}

static const Op *forward_of(const Flow *f, const Inst *n)
{
    const Op *o = &f->p->ops.at[n->op];
    return o->phase == PHASE_BACKWARD && o->of != NONE ? &f->p->ops.at[o->of] : o;
}

static bool same_columns(Columns a, Columns b)
{
    bool same = a.n == b.n;
    for (int i = 0; same && i < a.n; i++)
        same = a.seg[i].start == b.seg[i].start && a.seg[i].width == b.seg[i].width;
    return same;
}

/* ---- rules: products --------------------------------------------------------------------- */

static const ParamUnit *read_weight(Flow *f, ValueId id)
{
    const Value *w = val(f, id);
    if (w->unit == NONE) {
        fail(f, "layout-agrees", "an operand of the product is no weight");
        return NULL;
    }
    const ParamUnit *u = &f->p->units.at[w->unit];
    if (canon(f, u->spread, u->rep) && !w->whole)
        fail(f, "read-before-written", "the block of `%s` is spread over %s and not gathered",
             u->name, axes_word(u->spread, u->rep));
    if (w->part)
        fail(f, "read-before-written", "the shard of `%s` is split over data and not gathered",
             u->name);
    read(f, id);
    return u;
}

/* x W: the contracted axis splits x's columns and W's rows alike. */
static void product(Flow *f, const Inst *n, bool x_by_cols)
{
    const ParamUnit *u = read_weight(f, n->in[1]);
    Layout x = read(f, n->in[0]);
    if (u == NULL)
        return;
    Axes k = canon(f, x_by_cols ? u->col_axis : u->row_axis, 1);
    Axes out = canon(f, x_by_cols ? u->row_axis : u->col_axis, 1);
    const Value *v = val(f, n->in[0]);
    if (x.cols != k)
        fail(f, "layout-agrees", "columns of the operand are split over {%s}, the weight over {%s}",
             axes_word(x.cols, 1), axes_word(k, 1));
    if (x.partial & (Axes)~AX_YR)
        fail(f, "partial-value", "a pending sum over %s enters a product",
             axes_word(x.partial, x.rep));
    if (x.rows & (k | out))
        fail(f, "layout-agrees", "rows split over %s: the ranks that sum do not hold the same rows",
             axes_word(x.rows, 1));
    if (!x_by_cols && !same_columns(v->cols_map, u->rows))
        fail(f, "layout-agrees", "columns of the operand are not the rows of `%s`", u->name);
    Layout y = x;
    y.cols = out;
    int copies = x_by_cols ? u->piece[0].cols.rep : u->rows.seg[0].rep;
    f->contracting = n->k * axes_size(f->p, k, 1) / (k & AX_YK ? copies : 1);
    f->contracted = f->p->tensors.at[f->p->ops.at[n->op].in[0]].width;
    produce(f, n->out[0], pending(y, k), n->accumulate);
    f->contracting = f->contracted = 0;
}

static void share(Flow *f, OpId op, UnitId u, int64_t tokens)
{
    for (int i = f->newest_share[op]; i != NONE; i = f->shares.at[i].before)
        if (f->shares.at[i].unit == u) {
            f->shares.at[i].tokens += tokens;
            return;
        }
    Share s = { op, u, tokens, f->newest_share[op] };
    f->newest_share[op] = f->shares.n;
    vec_add(&f->shares, s);
}

/* XT dY: a sum over the rank's rows, pending over the axes that split them. */
static void weight_gradient(Flow *f, const Inst *n)
{
    Layout a = read(f, n->in[0]), b = read(f, n->in[1]);
    const Value *g = val(f, n->out[0]);
    if (g->unit == NONE) {
        fail(f, "layout-agrees", "the result is no gradient of a unit");
        return;
    }
    const ParamUnit *u = &f->p->units.at[g->unit];
    Axes rows = canon(f, u->row_axis, 1), cols = canon(f, u->col_axis, 1);
    if (a.rows != b.rows)
        fail(f, "layout-agrees", "the operands hold other rows: %s and %s", type_word(a),
             type_word(b));
    if (a.cols != rows || b.cols != cols)
        fail(f, "layout-agrees", "the operands' columns are split over {%s} and {%s}, `%s` over "
             "{%s} and {%s}", axes_word(a.cols, 1), axes_word(b.cols, 1), u->name,
             axes_word(rows, 1), axes_word(cols, 1));
    if (a.rows & (rows | cols))
        fail(f, "gradient-summed", "rows are split over an axis that splits `%s`", u->name);
    if ((a.partial | b.partial) & (Axes)~AX_YR)
        fail(f, "partial-value", "a pending sum over %s enters a product",
             axes_word(a.partial | b.partial, 1));
    Layout t = type(0, 0, (Axes)(a.rows | late_axes(f, g->unit) |
                                 ((a.partial | b.partial) & AX_YR)));
    t.rep = b.partial & AX_YR ? b.rep : a.rep;
    share(f, n->op, g->unit, n->k * axes_size(f->p, a.rows, 1));
    produce_grad(f, n->out[0], t, n->accumulate);
}

/* ---- rules: products of blocks, partition = summa(q) ---------------------------------------- */

/* A step of C = A B (by_cols: of C = A BT): in[1] is a block of the weight's rows. */
static void block_product(Flow *f, const Inst *n, bool by_cols)
{
    const ParamUnit *u = read_weight(f, n->in[1]);
    Layout x = read(f, n->in[0]);
    if (u == NULL)
        return;
    const Value *v = val(f, n->in[0]), *w = val(f, n->in[1]), *c = val(f, n->out[0]);
    Axes rows = canon(f, u->row_axis, 1), cols = canon(f, u->col_axis, 1);
    SummaPanel sent = { cols, w->panel.i, false }, none = { 0 };
    if (w->panel.over != rows || w->panel.sum)
        fail(f, "layout-agrees", "the weight is %s, not a block over %s", panel_word(w->panel),
             axes_word(rows, 1));
    if (!same_panel(v->panel, by_cols ? none : sent))
        fail(f, "layout-agrees", "the operand is %s, the weight %s", panel_word(v->panel),
             panel_word(w->panel));
    sent.sum = true;
    if (!same_panel(c->panel, by_cols ? sent : none))
        fail(f, "layout-agrees", "the result is declared %s, the weight is %s",
             panel_word(c->panel), panel_word(w->panel));
    if (x.cols != (by_cols ? cols : 0) || (x.rows & cols))
        fail(f, "layout-agrees", "the operand is %s, the weight's columns are split over {%s}",
             type_word(x), axes_word(cols, 1));
    if (x.partial)
        fail(f, "partial-value", "a pending sum over %s enters a product",
             axes_word(x.partial, x.rep));
    if (!by_cols && !same_columns(v->cols_map, u->rows))
        fail(f, "layout-agrees", "columns of the operand are not the rows of `%s`", u->name);
    Layout y = type(x.rows, by_cols ? 0 : cols, by_cols ? cols : 0);
    f->contracting = n->k * (by_cols ? axes_size(f->p, cols, 1) : 1);
    f->contracted = f->p->tensors.at[f->p->ops.at[n->op].in[0]].width;
    produce(f, n->out[0], y, n->accumulate);
    f->contracting = f->contracted = 0;
    if (!by_cols)
        add_block(f, n->out[0], w->panel.i, (int)axes_size(f->p, rows, 1));
}

/* A step of C = AT B: the columns that were sent are a block of the weight's rows. */
static void block_gradient(Flow *f, const Inst *n)
{
    Layout a = read(f, n->in[0]), b = read(f, n->in[1]);
    const Value *v = val(f, n->in[0]), *g = val(f, n->out[0]);
    if (g->unit == NONE) {
        fail(f, "layout-agrees", "the result is no gradient of a unit");
        return;
    }
    const ParamUnit *u = &f->p->units.at[g->unit];
    Axes rows = canon(f, u->row_axis, 1), cols = canon(f, u->col_axis, 1);
    SummaPanel sent = { cols, v->panel.i, false }, made = { rows, v->panel.i, true };
    if (!same_panel(v->panel, sent) || !same_panel(g->panel, made))
        fail(f, "layout-agrees", "the operand is %s, the result declared %s", panel_word(v->panel),
             panel_word(g->panel));
    if (val(f, n->in[1])->panel.over)
        fail(f, "layout-agrees", "both operands are blocks on their way");
    if (a.rows != b.rows || a.cols || b.cols != cols || (a.rows & cols))
        fail(f, "layout-agrees", "the operands are %s and %s", type_word(a), type_word(b));
    if (a.partial || b.partial)
        fail(f, "partial-value", "a pending sum over %s enters a product",
             axes_word(a.partial | b.partial, 1));
    if (n->accumulate)
        fail(f, "sum-twice", "a block's part of a gradient is added to another one");
    produce_grad(f, n->out[0], type(0, 0, (Axes)(a.rows | late_axes(f, g->unit))), false);
    newest(f, n->out[0])->tokens = n->k * axes_size(f->p, a.rows, 1);
}

static void rule_gemm(Flow *f, const Inst *n)
{
    const Op *o = &f->p->ops.at[n->op], *fo = forward_of(f, n);
    bool blocks = f->p->is.summa > 0;
    switch (o->kind) {
    case OP_LINEAR:
        (blocks ? block_product : product)(f, n, fo->transposed);
        break;
    case OP_LINEAR_DX:
        (blocks ? block_product : product)(f, n, !fo->transposed);
        break;
    case OP_LINEAR_DW:
        (blocks ? block_gradient : weight_gradient)(f, n);
        break;
    default:
        fail(f, "layout-agrees", "a product of operator %s", op_word[o->kind]);
    }
}

/* ---- rules: row programs ------------------------------------------------------------------- */

typedef enum { FREE, LINEAR, OTHER } Degree;

static Degree combine(OpKind op, Degree a, Degree b)
{
    if (a == FREE && b == FREE)
        return FREE;
    switch (op) {
    case OP_ADD: case OP_SUB:
        return a == LINEAR && b == LINEAR ? LINEAR : OTHER;
    case OP_MUL:
        return a == FREE || b == FREE ? (a > b ? a : b) : OTHER;
    case OP_DIV:
        return b == FREE ? a : OTHER;
    case OP_NEG: case OP_DROPOUT:
        return a;
    default:
        return OTHER;
    }
}

static bool is_zero(const RowProg *r, int node)
{
    return r->node[node].kind == R_NUMBER && r->node[node].c == 0;
}

typedef struct { Axes rows; Axes partial; int rep; bool seen; } RowTypes;

static void row_operand(Flow *f, const RowProg *r, const RowArg *a, RowTypes *t)
{
    const Value *x = val(f, a->value);
    if (a->is_vector) {
        const ParamUnit *u = read_weight(f, a->value);
        Axes cols = u ? canon(f, u->col_axis, 1) : 0;
        if (u && cols && cols != r->axis)
            fail(f, "layout-agrees", "vector `%s` is split over %s, the rows over {%s}", u->name,
                 axes_word(cols, 1), axes_word(r->axis, 1));
        return;
    }
    Layout l = read(f, a->value);
    if (t->seen && l.rows != t->rows)
        fail(f, "layout-agrees", "operands hold other rows: split over {%s} and {%s}",
             axes_word(l.rows, 1), axes_word(t->rows, 1));
    if (l.cols && l.cols != r->axis)
        fail(f, "layout-agrees", "operands are split over {%s} and {%s}", axes_word(l.cols, 1),
             axes_word(r->axis, 1));
    if (l.partial & (Axes)~AX_YR)
        fail(f, "partial-value", "a sum over %s is pending in `%s`", axes_word(l.partial, l.rep),
             f->p->buffers.at[x->buffer].name);
    t->seen = true;
    t->rows = l.rows;
    if (l.partial) {
        t->partial = l.partial;
        t->rep = l.rep;
    }
}

/* The axis that splits the vector whose gradient is summed into `sums`. Where none
 * does, parts on other ranks share the vector and their sums are still to be added. */
static Axes sum_axis(const Flow *f, const Inst *inst, ValueId sums)
{
    for (const Inst *n = inst + 1; n < f->p->insts.at + f->p->insts.n; n++)
        if (n->kind == I_COLSUM && n->in[0] == sums) {
            UnitId u = f->p->values.at[n->out[0]].unit;
            Axes cols = u == NONE ? 0 : f->p->units.at[u].col_axis;
            return canon(f, cols, 1);
        }
    return 0;
}

/* Types of the nodes: how each depends on operands whose sum is pending, and
 * whether it is a part of a sum over the split width. */
static void row_results(Flow *f, const Inst *inst, const RowProg *r, RowTypes t)
{
    Degree *d = NEWN(Degree, r->nnodes);
    bool *split = NEWN(bool, r->nnodes);
    bool whole = r->axis == 0 || r->width / r->parts == r->part_width;
    for (int i = 0; i < r->nnodes; i++) {
        const RowNode *n = &r->node[i];
        const RowArg *a = n->arg < r->nargs ? &r->arg[n->arg] : NULL;
        Layout l = type(t.rows, 0, 0);
        switch (n->kind) {
        case R_LOAD: case R_LOADPART:
            d[i] = val(f, a->value)->layout.partial ? LINEAR : FREE;
            continue;
        case R_LOADVEC: case R_NUMBER:
            continue;
        case R_OP:
            if (n->op == OP_COLUMN)
                continue;
            if (split[n->a] || (n->b >= 0 && split[n->b]))
                fail(f, "partial-value", "a part of a row's sum is used as the whole");
            if (n->op == OP_ADD && n->b >= 0 && is_zero(r, n->b))
                d[i] = d[n->a];
            else
                d[i] = combine(n->op, d[n->a], n->b >= 0 ? d[n->b] : FREE);
            break;
        case R_SUM: case R_MEAN:
            d[i] = d[n->a];
            split[i] = !whole;
            break;
        case R_M2: case R_MAX: case R_FIRST:
            d[i] = d[n->a] ? OTHER : FREE;
            split[i] = !whole;
            break;
        case R_STORE: case R_STOREPART:
            if (d[n->a] == OTHER)
                fail(f, "partial-value", "a pending sum meets an operator that is not linear");
            if (d[n->a] == LINEAR) {
                l.partial = t.partial;
                l.rep = t.rep;
            }
            if (split[n->a])
                l.partial |= r->axis;
            l.cols = val(f, a->value)->layout.cols;     // width 1 or the program's
            if (l.cols && l.cols != r->axis)
                fail(f, "layout-agrees", "the result is declared split over another axis");
            if (n->kind == R_STORE && r->axis && l.cols == 0 && r->width > 1)
                fail(f, "layout-agrees", "the result is split and declared whole");
            write(f, a->value, l);
            break;
        case R_COLSUM:
            if (d[n->a] == OTHER)
                fail(f, "partial-value", "a pending sum meets an operator that is not linear");
            l = type(0, 0, (Axes)(t.rows | canon(f, AX_DATA, 1)));
            if (d[n->a] == LINEAR) {
                l.partial |= t.partial;
                l.rep = t.rep;
            }
            l = pending(l, r->axis & (Axes)~sum_axis(f, inst, a->value));
            put(f, a->value, l);
            newest(f, a->value)->tokens = f->p->rowmaps.at[inst->rowmap].count *
                                     axes_size(f->p, t.rows, 1);
            break;
        }
    }
}

static void rule_rows(Flow *f, const Inst *n)
{
    const RowProg *r = &f->p->rowprogs.at[n->rows];
    RowTypes t = { .rep = 1 };
    for (int i = 0; i < r->nargs; i++)
        if (!r->arg[i].is_out)
            row_operand(f, r, &r->arg[i], &t);
    if (!t.seen)                        // constants: as many rows as are asked for
        t.rows = f->p->rowmaps.at[n->rowmap].axes;
    row_results(f, n, r, t);
}

static void rule_colsum(Flow *f, const Inst *n)
{
    const Value *s = val(f, n->in[0]);
    Facts *facts = &f->facts[s->buffer];
    if (facts->n != 1) {
        fail(f, "read-before-written", "the column sums were not made");
        return;
    }
    Layout l = facts->at[0].type;
    const Value *g = val(f, n->out[0]);
    const ParamUnit *u = &f->p->units.at[g->unit];
    Axes cols = canon(f, u->col_axis, u->rep);
    if (l.partial & cols & (Axes)~AX_YR)
        fail(f, "gradient-summed", "a sum over %s is pending on a vector split over it",
             axes_word(l.partial, l.rep));
    share(f, n->op, g->unit, facts->at[0].tokens);
    l.partial |= late_axes(f, g->unit);
    produce_grad(f, n->out[0], l, n->accumulate);
}

static void rule_merge(Flow *f, const Inst *n)
{
    Layout l = read(f, n->in[0]);
    if (l.cols != n->axes)
        fail(f, "group-fits", "statistics of {%s} are merged as of {%s}", axes_word(l.cols, 1),
             axes_word(n->axes, 1));
    l.cols = 0;
    for (int j = 0; j < n->nout; j++) {
        Layout o = l;
        o.partial = val(f, n->out[j])->layout.partial & AX_YR;
        o.rep = val(f, n->out[j])->layout.rep;
        write(f, n->out[j], o);
    }
}

/* ---- rules: the rest -------------------------------------------------------------------- */

static void rule_embed(Flow *f, const Inst *n)
{
    const ParamUnit *u = read_weight(f, n->in[0]);
    if (u == NULL)
        return;
    Axes rows = f->p->rowmaps.at[n->rowmap].axes;
    write(f, n->out[0], type(rows, canon(f, u->col_axis, 1), canon(f, u->row_axis, 1)));
}

static void rule_embed_dw(Flow *f, const Inst *n)
{
    Layout l = read(f, n->in[0]);
    const ParamUnit *u = &f->p->units.at[val(f, n->out[0])->unit];
    if (l.cols != canon(f, u->col_axis, 1) || (l.rows & u->row_axis) || l.partial)
        fail(f, "gradient-summed", "the table's gradient needs all rows of the x share, has %s",
             type_word(l));
    if (l.rows != f->p->rowmaps.at[n->rowmap].axes)
        fail(f, "layout-agrees", "ids of other rows than the gradient's");
    share(f, n->op, val(f, n->out[0])->unit,
          val(f, n->in[0])->rows * axes_size(f->p, l.rows, 1));
    produce_grad(f, n->out[0], type(0, 0, (Axes)(l.rows | late_axes(f, val(f, n->out[0])->unit))),
                 true);
}

/*
 * Gradients of the keys of slices 0 .. i: one fact for each slice, complete when every
 * slice from the last down to it has added to it.
 */
static void key_gradient(Flow *f, const Inst *n, ValueId id, Layout l)
{
    const Choices *is = &f->p->is;
    const Value *x = val(f, id);
    Facts *facts = &f->facts[x->buffer];
    int slice = f->p->rowmaps.at[n->rowmap].first;
    int64_t ranks = axes_size(f->p, x->layout.rows, 1), at = x->offset;
    if (!same_type(l, x->layout))
        fail(f, "layout-agrees", "the result is %s, declared %s", type_word(l),
             type_word(x->layout));
    if (n->accumulate == (slice == is->nslices - 1))
        fail(f, "backward-order", "the last slice begins the gradient of its keys, others add");
    for (int i = 0; i <= slice; i++) {
        Value part = *x;
        part.offset = at;
        part.rows = is->slice[i] * is->microbatch / ranks;
        at += part.rows * x->ld;
        Fact *a = NULL;
        for (int k = 0; k < facts->n; k++)
            if (facts->at[k].offset == part.offset && facts->at[k].rows == part.rows)
                a = &facts->at[k];
        if (!n->accumulate) {
            Fact new = { .offset = part.offset, .rows = part.rows, .cols = x->cols, .ld = x->ld,
                         .type = l, .unit = NONE, .tensor = x->tensor, .copies = has_copies(x),
                         .nterms = 1, .last = n->op, .k = 1, .want = is->nslices - i };
            forget(f, &part);
            vec_add(&f->facts[x->buffer], new);
        } else if (a == NULL || a->read || a->k != is->nslices - 1 - slice) {
            fail(f, "backward-order", "slice %d adds to the keys' gradient of slice %d, which is "
                 "%s", slice, i, a == NULL ? "not there" : a->read ? "read already"
                                                         : "not as far");
        } else {
            a->k++;
        }
    }
}

static void rule_attention(Flow *f, const Inst *n)
{
    const Choices *is = &f->p->is;
    Layout q = read(f, n->in[0]), k = read(f, n->in[1]), v = read(f, n->in[2]);
    bool back = n->kind == I_ATTN_DX;
    bool gathers = is->attention == ATT_GATHER;
    if ((q.partial | k.partial | v.partial))
        fail(f, "partial-value", "a sum is pending in q, k or v");
    if (k.rows != v.rows || k.cols != v.cols)
        fail(f, "layout-agrees", "k is %s, v is %s", type_word(k), type_word(v));
    if (!gathers && k.rows != q.rows)
        fail(f, "layout-agrees", "q is %s, k is %s", type_word(q), type_word(k));
    if (gathers && k.rows)
        fail(f, "layout-agrees", "queries see keys of other ranks, which are not gathered");
    if (!gathers && q.rows && is->microbatch % axes_size(f->p, q.rows, 1))
        fail(f, "layout-agrees", "sequences are cut over %s", axes_word(q.rows, 1));
    if (q.rows != f->p->rowmaps.at[n->rowmap].axes || k.rows != f->p->rowmaps.at[n->rowmap_k].axes)
        fail(f, "layout-agrees", "positions of other rows than q's or k's");
    if (!back) {
        write(f, n->out[0], q);
        write(f, n->out[1], q);
        return;
    }
    for (int j = 3; j < 6; j++) {
        Layout l = read(f, n->in[j]);
        if (!same_type(l, q))
            fail(f, l.partial ? "partial-value" : "layout-agrees", "o, lse or do is %s, q is %s",
                 type_word(l), type_word(q));
    }
    write(f, n->out[0], q);
    Layout dk = k;
    dk.partial = gathers ? q.rows : 0;
    int rep = val(f, n->in[1])->cols_map.seg[0].rep;
    if (rep > 1 && is->attention != ATT_EXCHANGE) {
        dk.partial |= AX_YR;
        dk.rep = rep;
    }
    for (int j = 1; j < 3; j++)
        if (is->nslices == 1)
            write(f, n->out[j], dk);
        else
            key_gradient(f, n, n->out[j], dk);
}

static void rule_rope(Flow *f, const Inst *n)
{
    Layout l = read(f, n->in[0]);
    read(f, n->in[1]);
    if (l.partial & (Axes)~AX_YR)
        fail(f, "partial-value", "a pending sum is turned");
    if (l.rows != f->p->rowmaps.at[n->rowmap].axes)
        fail(f, "layout-agrees", "positions of other rows than the operand's");
    write(f, n->out[0], l);
}

static void rule_copy(Flow *f, const Inst *n)
{
    Layout l = read(f, n->in[0]);
    if (n->accumulate)
        add(f, n->out[0], l);
    else
        put(f, n->out[0], l);
}

static void rule_loss(Flow *f, const Inst *n)
{
    Layout l = read(f, n->in[0]);
    Axes y = canon(f, AX_YK, 1);
    if (l.partial)
        fail(f, "partial-value", "a sum over %s is pending in the logits",
             axes_word(l.partial, l.rep));
    if (l.cols != y || (l.rows & y))
        fail(f, "layout-agrees", "logits are %s", type_word(l));
    if (l.rows != (canon(f, AX_X | AX_Z, 1)))
        fail(f, "layout-agrees", "rows of the logits are counted on several ranks: %s",
             type_word(l));
    if (f->p->rowmaps.at[n->rowmap].axes != l.rows)
        fail(f, "layout-agrees", "targets of other rows than the logits'");
    if (n->kind == I_CE_STAT) {
        write(f, n->out[0], type(l.rows, 0, y));
        return;
    }
    Layout s = read(f, n->in[1]);
    if (s.partial)
        fail(f, "partial-value", "the loss's statistics are of the rank's own columns only");
    if (f->ncount != 1 || f->ntotals)
        fail(f, "step-order", "the loss is taken before targets are counted or after it is summed");
    write(f, n->out[0], l);
    newest(f, n->out[0])->tensor = f->dlogits;
}

/* ---- rules: collectives --------------------------------------------------------------------- */

/* Parts of a shard over data, or shards of a block over its spread. */
static void weight_gather(Flow *f, const Inst *n)
{
    const Value *a = val(f, n->in[0]), *c = val(f, n->out[0]);
    const ParamUnit *u = &f->p->units.at[a->unit];
    read(f, n->in[0]);
    bool parts = n->axes == AX_DATA;
    if (parts ? !a->part || c->part || c->whole != (u->spread == 0)
              : n->axes != u->spread || n->rep != u->rep || a->part || a->whole || !c->whole)
        fail(f, "group-fits", "`%s` is spread over %s, gathered over %s", u->name,
             axes_word(u->spread, u->rep), axes_word(n->axes, n->rep));
    if (c->unit != a->unit)
        fail(f, "group-fits", "`%s` is gathered into the room of another unit", u->name);
    put(f, n->out[0], type(0, 0, 0));
}

static Layout fact_type(Flow *f, ValueId id)        // of a gradient, where it is one type
{
    const Value *x = val(f, id);
    Facts *facts = &f->facts[x->buffer];
    Layout l = { .rep = 1 };
    bool first = true;
    for (int i = 0; i < facts->n; i++) {
        if (!overlaps(&facts->at[i], x))
            continue;
        if (!first && !same_type(l, facts->at[i].type))
            fail(f, "gradient-summed", "parts of the range have other sums pending: %s and %s",
                 type_word(l), type_word(facts->at[i].type));
        l = facts->at[i].type;
        first = false;
    }
    if (first)
        fail(f, "read-before-written", "no gradient has been written here");
    return l;
}

/* What pads the block to equal shards must be zeros. */
static void tail_cleared(Flow *f, const Inst *n, const ParamUnit *u)
{
    int64_t used = u->brows * u->bcols, got = 0;
    Value tail = *val(f, n->in[0]);
    tail.offset += used;
    tail.rows = 1;
    tail.cols = tail.ld = u->shard * axes_size(f->p, u->spread, u->rep) - used;
    for (int i = 0; i < f->facts[tail.buffer].n && tail.cols > 0; i++)
        if (overlaps(&f->facts[tail.buffer].at[i], &tail))
            got += covered(&f->facts[tail.buffer].at[i], &tail);
    if (got < tail.cols)
        fail(f, "read-before-written", "the padding of the gradient of `%s` has not been cleared",
             u->name);
}

/* A unit's gradient: whole, then over its spread, then (zero >= 2) over data. */
static void unit_scatter(Flow *f, const Inst *n)
{
    const Value *a = val(f, n->in[0]), *c = val(f, n->out[0]);
    const ParamUnit *u = &f->p->units.at[a->unit];
    bool parts = n->axes == AX_DATA;
    for (int i = 0; i < f->facts[a->buffer].n; i++)
        if (f->facts[a->buffer].at[i].read && overlaps(&f->facts[a->buffer].at[i], a))
            fail(f, "sum-twice", "this gradient of `%s` is scattered already", u->name);
    read(f, n->in[0]);
    Layout l = fact_type(f, n->in[0]);
    if (parts ? f->p->is.zero < 2 || !c->part || a->part || a->whole != (u->spread == 0)
              : n->axes != u->spread || n->rep != u->rep || !a->whole || c->whole || c->part)
        fail(f, "group-fits", "`%s` is spread over %s, its gradient summed over %s", u->name,
             axes_word(u->spread, u->rep), axes_word(n->axes, n->rep));
    Axes now = l.partial & (Axes)~(parts ? AX_STAGE | u->repl : LATE);
    if (now != n->axes || ((n->axes & AX_YR) && l.rep != n->rep) || c->unit != a->unit)
        fail(f, "gradient-summed", "pending is {%s}, summed {%s}", axes_word(l.partial, l.rep),
             axes_word(n->axes, n->rep));
    if (a->whole)
        tail_cleared(f, n, u);
    const Facts *shards = &f->facts[c->buffer];
    for (int i = 0; i < shards->n && !n->accumulate; i++)
        if (overlaps(&shards->at[i], c))
            fail(f, "sum-twice", "the gradient of `%s` is scattered already", u->name);
    if (n->phase > PHASE_BACKWARD)
        fail(f, "step-order", "every microbatch adds to the gradient of `%s`", u->name);
    l.partial &= (Axes)~n->axes;
    if (parts)
        l.cols = AX_DATA;
    produce_grad(f, n->out[0], l, n->accumulate);
}

/* Sums over a range of the flat gradients: type changes fact by fact. */
static void range_sum(Flow *f, const Inst *n)
{
    const Value *x = val(f, n->in[0]);
    Facts *facts = &f->facts[x->buffer];
    bool own_part = n->coll == COLL_REDUCE_SCATTER;
    int any = 0;
    for (int i = 0; i < facts->n; i++) {
        Fact *a = &facts->at[i];
        if (!overlaps(a, x))
            continue;
        any++;
        if ((a->type.partial & n->axes) != n->axes || ((n->axes & AX_YR) && a->type.rep != n->rep))
            fail(f, "sum-twice", "pending is {%s}, summed {%s}",
                 axes_word(a->type.partial, a->type.rep), axes_word(n->axes, n->rep));
        if (own_part && a->type.cols)
            fail(f, "sum-twice", "the gradient is scattered already");
        a->type.partial &= (Axes)~n->axes;
        if ((n->axes & AX_DATA) && a->type.partial)
            fail(f, "sum-order", "replicas are summed while a sum over {%s} is pending",
                 axes_word(a->type.partial, a->type.rep));
        if (own_part)
            a->type.cols |= n->axes;
    }
    if (!any)
        fail(f, "read-before-written", "no gradient has been written here");
    if (n->phase < PHASE_SYNC)
        fail(f, "step-order", "gradients are summed before the last microbatch");
    late(f, x);
    if (n->axes & AX_DATA && (x->offset != 0 || x->cols != f->p->flat_pad))
        fail(f, "group-fits", "replicas sum a part of the gradients");
}

static void range_gather(Flow *f, const Inst *n)
{
    Facts *facts = &f->facts[val(f, n->in[0])->buffer];
    for (int i = 0; i < facts->n; i++) {
        if (!overlaps(&facts->at[i], val(f, n->out[0])))
            continue;
        if (facts->at[i].type.cols && facts->at[i].type.cols != n->axes)
            fail(f, "group-fits", "parameters are split over {%s}, gathered over {%s}",
                 axes_word(facts->at[i].type.cols, 1), axes_word(n->axes, n->rep));
        facts->at[i].type.cols = 0;
    }
    if (!(n->axes & AX_DATA))
        fail(f, "group-fits", "parameters are gathered over %s", axes_word(n->axes, n->rep));
}

/* The axes in `g` are the innermost of `rows` (x, then y or z). */
static bool innermost(Axes rows, Axes g)
{
    Axes rest = rows & (Axes)~g;
    return (rows & g) == g && g && !((g & AX_X) && rest);
}

static void rule_gather(Flow *f, const Inst *n)
{
    const Value *a = val(f, n->in[0]), *c = val(f, n->out[0]);
    if (is_range(f, a)) {
        range_gather(f, n);
        return;
    }
    if (a->unit != NONE) {
        weight_gather(f, n);
        return;
    }
    Layout l = read(f, n->in[0]);
    if (a->tensor == NONE) {            // statistics, stacked for a merge
        if (l.partial != n->axes)
            fail(f, "group-fits", "statistics are split over {%s}, gathered over {%s}",
                 axes_word(l.partial, l.rep), axes_word(n->axes, n->rep));
        l.cols = n->axes;
        l.partial = 0;
        write(f, n->out[0], l);
        return;
    }
    if (!innermost(l.rows, n->axes))
        fail(f, "group-fits", "rows are split over {%s}, gathered over {%s}",
             axes_word(l.rows, 1), axes_word(n->axes, n->rep));
    l.rows &= (Axes)~n->axes;
    if (c->rows != a->rows * axes_size(f->p, n->axes, n->rep))
        fail(f, "group-fits", "%" PRId64 " rows of %" PRId64 " ranks make %" PRId64, a->rows,
             axes_size(f->p, n->axes, n->rep), c->rows);
    write(f, n->out[0], l);
}

static void rule_scatter(Flow *f, const Inst *n)
{
    const Value *a = val(f, n->in[0]), *c = val(f, n->out[0]);
    if (is_range(f, a)) {
        range_sum(f, n);
        return;
    }
    if (a->unit != NONE) {
        unit_scatter(f, n);
        return;
    }
    Layout l = read(f, n->in[0]);
    if ((l.partial & n->axes) != n->axes)
        fail(f, "sum-twice", "pending is {%s}, summed {%s}", axes_word(l.partial, l.rep),
             axes_word(n->axes, n->rep));
    l.partial &= (Axes)~n->axes;
    l.rows |= n->axes;
    if (!innermost(l.rows, n->axes) || a->rows != c->rows * axes_size(f->p, n->axes, n->rep))
        fail(f, "group-fits", "%" PRId64 " rows scattered over {%s} make %" PRId64, a->rows,
             axes_word(n->axes, n->rep), c->rows);
    write(f, n->out[0], l);
}

/* Member `peer` of the group sends its block of columns, or of a weight's rows, to all. */
static void rule_broadcast(Flow *f, const Inst *n)
{
    const Value *a = val(f, n->in[0]), *c = val(f, n->out[0]);
    SummaPanel made = { n->axes, n->peer, false };
    if (a->panel.over || !same_panel(c->panel, made) || a->rows != c->rows || a->cols != c->cols)
        fail(f, "group-fits", "%s is sent as block %d over %s, declared %s", panel_word(a->panel),
             n->peer, axes_word(n->axes, 1), panel_word(c->panel));
    if (a->unit != NONE) {
        const ParamUnit *u = read_weight(f, n->in[0]);
        if (n->axes != canon(f, u->row_axis, 1) || c->unit != a->unit)
            fail(f, "group-fits", "a block of `%s`, whose rows are split over %s, is sent over %s",
                 u->name, axes_word(canon(f, u->row_axis, 1), 1), axes_word(n->axes, n->rep));
        put(f, n->out[0], type(0, 0, 0));
        return;
    }
    Layout l = read(f, n->in[0]);
    if (l.partial)
        fail(f, "partial-value", "a sum over %s is pending in what is sent",
             axes_word(l.partial, l.rep));
    if (l.cols != n->axes)
        fail(f, "group-fits", "columns are split over {%s}, a block is sent over {%s}",
             axes_word(l.cols, 1), axes_word(n->axes, n->rep));
    l.cols = 0;
    write(f, n->out[0], l);
}

/* A block of a weight's gradient is summed where it belongs. A round of all blocks is one
 * contribution: it overwrites all of them, or adds to all. */
static void block_summed(Flow *f, const Inst *n, int nblocks)
{
    const Value *a = val(f, n->in[0]), *c = val(f, n->out[0]);
    uint64_t *round = &f->rounds[n->op], bit = UINT64_C(1) << n->peer;
    read(f, n->in[0]);
    Layout l = fact_type(f, n->in[0]);
    int64_t tokens = 0;
    Facts *facts = &f->facts[a->buffer];
    for (int i = 0; i < facts->n; i++)
        if (overlaps(&facts->at[i], a))
            tokens = facts->at[i].tokens;
    if (c->unit != a->unit || c->panel.over || c->part)
        fail(f, "group-fits", "a block of one gradient is summed into the room of another");
    if (!(l.partial & n->axes))
        fail(f, "sum-twice", "pending is {%s}, summed {%s}", axes_word(l.partial, l.rep),
             axes_word(n->axes, n->rep));
    l.partial &= (Axes)~n->axes;
    if (*round == 0) {
        produce_grad(f, n->out[0], l, n->accumulate);
        no_blocks(f, n->out[0]);
    } else if (n->accumulate != f->adds)
        fail(f, "sum-twice", "some blocks of one gradient are added, others overwritten");
    f->adds = n->accumulate;
    *round |= bit;
    add_block(f, n->out[0], n->peer, nblocks);
    if (__builtin_popcountll(*round) < nblocks)
        return;
    share(f, n->op, a->unit, tokens);
    *round = 0;
}

/* The parts of a block are summed on member `peer`, whose block it is. */
static void rule_root_sum(Flow *f, const Inst *n)
{
    const Value *a = val(f, n->in[0]), *c = val(f, n->out[0]);
    SummaPanel part = { n->axes, n->peer, true };
    int nblocks = (int)axes_size(f->p, n->axes, n->rep);
    if (!same_panel(a->panel, part) || a->rows != c->rows || a->cols != c->cols)
        fail(f, "group-fits", "%s is summed over %s on member %d", panel_word(a->panel),
             axes_word(n->axes, n->rep), n->peer);
    if (a->unit != NONE) {
        block_summed(f, n, nblocks);
        return;
    }
    Layout l = read(f, n->in[0]);
    if (l.partial != n->axes)
        fail(f, "sum-twice", "pending is {%s}, summed {%s}", axes_word(l.partial, l.rep),
             axes_word(n->axes, n->rep));
    l.partial = 0;
    l.cols = n->axes;
    const Fact *now = NULL;
    for (int i = 0; i < f->facts[c->buffer].n; i++)
        if (overlaps(&f->facts[c->buffer].at[i], c))
            now = &f->facts[c->buffer].at[i];
    bool more = now && now->last == n->op && now->nblocks == nblocks && now->tensor == c->tensor &&
                __builtin_popcountll(now->blocks) < nblocks;
    if (!more)
        write(f, n->out[0], l);
    add_block(f, n->out[0], n->peer, nblocks);
}

static void rule_reduce(Flow *f, const Inst *n)
{
    if (is_range(f, val(f, n->in[0]))) {
        range_sum(f, n);
        return;
    }
    Layout l = read(f, n->in[0]);
    for (int i = 0; i < val(f, n->in[0])->cols_map.n; i++)
        if ((n->axes & AX_Y) == AX_YR && val(f, n->in[0])->cols_map.seg[i].rep != n->rep)
            fail(f, "sum-twice", "columns without copies are summed over %s",
                 axes_word(n->axes, n->rep));
    if (l.partial != n->axes || l.rep != n->rep)
        fail(f, "sum-twice", "pending is {%s}, summed {%s}", axes_word(l.partial, l.rep),
             axes_word(n->axes, n->rep));
    l.partial = 0;
    write(f, n->out[0], l);
}

static void rule_exchange(Flow *f, const Inst *n)
{
    Layout l = read(f, n->in[0]), want;
    Axes x = canon(f, AX_X, 1), y = canon(f, AX_YK, 1), z = canon(f, AX_Z, 1);
    const Value *a = val(f, n->in[0]);
    bool wide = a->tensor != NONE && f->p->tensors.at[a->tensor].width > 1;
    Axes group = n->a2a == A2A_AB || n->a2a == A2A_BA ? y | z : x | z;
    Layout la = type(x | y, wide ? z : 0, 0), lb = type(x | z, wide ? y : 0, 0);
    Layout heads = type(0, y | x | z, 0);
    Layout from = n->a2a == A2A_AB ? la : n->a2a == A2A_TOKENS ? heads : lb;
    want = n->a2a == A2A_AB ? lb : n->a2a == A2A_BA ? la : n->a2a == A2A_HEADS ? heads : lb;
    if (!same_type(l, from))
        fail(f, l.partial ? "partial-value" : "layout-agrees", "exchanges %s, expects %s",
             type_word(l), type_word(from));
    if (n->axes != group)
        fail(f, "group-fits", "exchanged over {%s}, the splits differ over {%s}",
             axes_word(n->axes, n->rep), axes_word(group, 1));
    write(f, n->out[0], want);
}

/* Between stages: whole rows, in the layout both sides declare. */
static void rule_transfer(Flow *f, const Inst *n)
{
    if (n->coll == COLL_RECV) {
        put(f, n->out[0], val(f, n->out[0])->layout);
        return;
    }
    Layout l = read(f, n->in[0]);
    if (l.partial)
        fail(f, "partial-value", "a sum over %s is pending in what is sent",
             axes_word(l.partial, l.rep));
}

/* Copies of one unit on several stages. */
static void stage_sum(Flow *f, const Inst *n)
{
    const Value *x = val(f, n->in[0]);
    const ParamUnit *u = x->unit != NONE ? &f->p->units.at[x->unit] : NULL;
    if (u == NULL || u->stages == 0 || n->stages != u->stages) {
        fail(f, "group-fits", "the stages that sum are not those that hold it");
        return;
    }
    if (n->phase != PHASE_SYNC || f->nnorm)
        fail(f, "step-order", "copies of `%s` are summed before the last microbatch, or after the "
             "norm", u->name);
    Facts *facts = &f->facts[x->buffer];
    int64_t got = 0;
    for (int i = 0; i < facts->n; i++) {
        if (!overlaps(&facts->at[i], x))
            continue;
        got += covered(&facts->at[i], x);
        if (!(facts->at[i].type.partial & AX_STAGE))
            fail(f, "sum-twice", "the copies of `%s` are summed already", u->name);
        facts->at[i].type.partial &= (Axes)~AX_STAGE;
    }
    if (got < x->rows * x->cols)
        fail(f, "read-before-written", "no gradient of `%s` has been written", u->name);
}

static void rule_coll(Flow *f, const Inst *n)
{
    if (n->coll == COLL_SEND || n->coll == COLL_RECV) {
        rule_transfer(f, n);
        return;
    }
    if (n->axes == AX_STAGE) {
        stage_sum(f, n);
        return;
    }
    if (n->axes == 0 || axes_size(f->p, n->axes, n->rep) == 1)
        fail(f, "group-fits", "a group of one");
    bool rooted = n->coll == COLL_BROADCAST || n->coll == COLL_REDUCE;
    if (rooted && (n->peer < 0 || n->peer >= axes_size(f->p, n->axes, n->rep) || n->peer > 63)) {
        fail(f, "group-fits", "member %d of a group of %d", n->peer,
             (int)axes_size(f->p, n->axes, n->rep));
        return;
    }
    if ((n->axes & AX_Y) == AX_YK && n->rep > 1)
        fail(f, "group-fits", "a group of every %d-th rank of y", n->rep);
    switch (n->coll) {
    case COLL_ALL_GATHER:     rule_gather(f, n); break;
    case COLL_REDUCE_SCATTER: rule_scatter(f, n); break;
    case COLL_ALL_REDUCE:     rule_reduce(f, n); break;
    case COLL_ALL_TO_ALL:     rule_exchange(f, n); break;
    case COLL_BROADCAST:      rule_broadcast(f, n); break;
    case COLL_REDUCE:         rule_root_sum(f, n); break;
    default:
        fail(f, "group-fits", "no rule for %s", coll_word[n->coll]);
    }
}

/* ---- the end of a step ----------------------------------------------------------------- */

/* Before the norm and the update no sum may be pending. */
static void gradients_done(Flow *f, const Inst *n)
{
    Axes data = canon(f, AX_DATA, 1);
    bool sharded = data && f->p->is.zero >= 1;
    Facts *facts = &f->facts[val(f, n->in[0])->buffer];
    int64_t *got = NEWN(int64_t, f->p->units.n + 1);
    for (int i = 0; i < facts->n; i++) {
        const Fact *a = &facts->at[i];
        if (a->unit != NONE)
            got[a->unit] += a->rows * a->cols;
        const char *name = a->unit != NONE ? f->p->units.at[a->unit].name : "?";
        if (a->type.partial)
            fail(f, "gradient-summed", "the gradient of `%s` still has a sum over {%s} pending",
                 name, axes_word(a->type.partial, a->type.rep));
        if (a->type.cols != (sharded ? data : 0))
            fail(f, "gradient-summed", "the gradient of `%s` is split over {%s}", name,
                 axes_word(a->type.cols, 1));
    }
    for (int i = 0; i < f->p->units.n; i++)
        if (got[i] < val(f, f->p->units.at[i].g)->rows * val(f, f->p->units.at[i].g)->cols)
            fail(f, "gradient-summed", "%" PRId64 " elements of the gradient of `%s` have been "
                 "written, not %" PRId64, got[i], f->p->units.at[i].name,
                 val(f, f->p->units.at[i].g)->rows * val(f, f->p->units.at[i].g)->cols);
}

static void update(Flow *f, const Inst *n)
{
    Axes data = canon(f, AX_DATA, 1);
    gradients_done(f, n);
    if (f->ntotals != 1 || f->nupdate++)
        fail(f, "step-order", "the update does not stand once behind the totals");
    Facts *facts = &f->facts[val(f, n->out[0])->buffer];
    for (int i = 0; i < facts->n; i++)
        facts->at[i].type.cols = f->p->is.zero == 1 || f->p->is.zero == 2 ? data : 0;
}

static void begin(Flow *f)      // parameters are there; gradients are not
{
    const Plan *p = f->p;
    for (int i = 0; i < p->units.n; i++)
        put(f, p->units.at[i].p, type(0, 0, 0));
}

/* Every operator that adds to a gradient has done so, for every token once. */
static void check_contributions(Flow *f)
{
    const Plan *p = f->p;
    bool *found = NEWN(bool, p->ops.n);
    int *section = plan_sections(p);
    f->i = NONE;
    for (int i = 0; i < f->shares.n; i++) {
        const Share *s = &f->shares.at[i];
        found[s->op] = true;
        if (s->tokens != p->is.T)
            fail(f, "gradient-summed", "`%s` adds the rows of %" PRId64 " tokens to the gradient "
                 "of `%s`, there are %" PRId64, p->ops.at[s->op].name, s->tokens,
                 p->units.at[s->unit].name, p->is.T);
    }
    for (int i = 0; i < p->ops.n; i++)
        if (f->rounds[i])
            fail(f, "gradient-summed", "`%s` sums %d blocks of its gradient, there are %d",
                 p->ops.at[i].name, __builtin_popcountll(f->rounds[i]), p->is.summa);
    for (int i = 0; i < p->ops.n; i++)
        if (op_class[p->ops.at[i].kind] == C_ACC && !found[i] &&
            section[i] % p->is.stages == p->stage)
            fail(f, "gradient-summed", "`%s` never adds to its gradient", p->ops.at[i].name);
    if (f->ncount != 1 || f->nnorm != 1 || f->ntotals != 1 || f->nupdate != 1)
        fail(f, "step-order", "a step has %d counts of targets, %d norms, %d totals, %d updates",
             f->ncount, f->nnorm, f->ntotals, f->nupdate);
    for (int b = 0; b < p->buffers.n; b++)
        for (int i = 0; i < f->facts[b].n && !p->buffers.at[b].persistent; i++)
            if (f->facts[b].at[i].sum && !f->facts[b].at[i].read)
                fail(f, "gradient-summed", "`%s` is not added to the gradient",
                     p->buffers.at[b].name);
    Facts *facts = &f->facts[0];
    for (int i = 0; i < facts->n; i++)
        if (facts->at[i].type.cols)
            fail(f, "parameters-whole", "at the end of a step `%s` is split over {%s}",
                 facts->at[i].unit != NONE ? p->units.at[facts->at[i].unit].name : "?",
                 axes_word(facts->at[i].type.cols, 1));
}

/* Flags and phases, where the rule of the kind takes them for granted. */
static void check_inst(Flow *f, const Inst *n)
{
    bool scatter = n->kind == I_COLL &&
                   (n->coll == COLL_REDUCE_SCATTER || n->coll == COLL_REDUCE) &&
                   val(f, n->in[0])->unit != NONE;
    bool keys = n->kind == I_ATTN_DX && f->p->is.nslices > 1;
    bool adds = n->kind == I_GEMM || n->kind == I_COLSUM || n->kind == I_COPY || scatter || keys;
    if (n->accumulate && !adds)
        fail(f, "sum-twice", "adds to what it should make");
    if ((n->kind == I_NORM || n->kind == I_TOTALS) && n->phase != PHASE_SYNC)
        fail(f, "step-order", "gradients are complete behind the last microbatch");
    if (n->kind == I_UPDATE && n->phase != PHASE_OPTIMIZER)
        fail(f, "step-order", "the update stands before the end of the step");
    bool takes = n->kind == I_GEMM || (n->kind == I_COLL && (n->coll == COLL_BROADCAST ||
                                                             n->coll == COLL_REDUCE));
    for (int j = 0; j < n->nin && !takes; j++)
        if (val(f, n->in[j])->panel.over)
            fail(f, "layout-agrees", "%s is no whole operand",
                 panel_word(val(f, n->in[j])->panel));
}

static void rule(Flow *f, const Inst *n)
{
    check_inst(f, n);
    switch (n->kind) {
    case I_GEMM:       rule_gemm(f, n); break;
    case I_ROWS:       rule_rows(f, n); break;
    case I_COLL:       rule_coll(f, n); break;
    case I_MERGE: case I_CE_MERGE:
        rule_merge(f, n);
        break;
    case I_COLSUM:     rule_colsum(f, n); break;
    case I_ATTN: case I_ATTN_DX:
        rule_attention(f, n);
        break;
    case I_ROPE:       rule_rope(f, n); break;
    case I_ROPE_TABLE: put(f, n->out[0], type(0, 0, 0)); break;
    case I_EMBED:      rule_embed(f, n); break;
    case I_EMBED_DW:   rule_embed_dw(f, n); break;
    case I_CE_STAT: case I_CE:
        rule_loss(f, n);
        break;
    case I_COPY:       rule_copy(f, n); break;
    case I_COUNT:      f->ncount++; break;
    case I_NORM:
        gradients_done(f, n);
        f->nnorm++;
        break;
    case I_TOTALS:
        if (!f->nnorm || f->ntotals++)
            fail(f, "step-order", "totals do not stand once behind the norm");
        break;
    case I_UPDATE:     update(f, n); break;
    case I_ZERO:
        if (n->op != NONE)      // a table's gradient, before rows are added
            put(f, n->out[0], type(0, 0, (Axes)(canon(f, AX_X, 1) |
                                                late_axes(f, val(f, n->out[0])->unit))));
        else
            put(f, n->out[0], type(0, 0, late_axes(f, val(f, n->out[0])->unit)));
        break;
    default:
        break;
    }
}

void verify_flow(Verify *v)
{
    const Plan *p = v->p;
    Flow f = { .v = v, .p = p, .i = NONE, .dlogits = NONE };
    f.facts = NEWN(Facts, p->buffers.n);
    f.newest_share = NEWN(int, p->ops.n);
    f.rounds = NEWN(uint64_t, p->ops.n);
    for (int i = 0; i < p->ops.n; i++)
        f.newest_share[i] = NONE;
    for (int i = p->nforward; i < p->ops.n; i++)
        if (p->ops.at[i].kind == OP_CE_DX)
            f.dlogits = p->ops.at[i].out[0];
    begin(&f);
    for (f.i = 0; f.i < p->insts.n; f.i++) {
        if (f.i > 0 && p->insts.at[f.i].phase < p->insts.at[f.i - 1].phase)
            fail(&f, "step-order", "a phase stands behind a later one");
        rule(&f, &p->insts.at[f.i]);
    }
    check_contributions(&f);
}
