/*
 * autodiff.c - appends the backward operators: reverse mode over whole tensors.
 *
 * needs: graph (fuse).  fills: BACKWARD ops, Param.grad.  keeps: forward ops.
 *
 * Forward ops are visited in exact reverse. The gradient of a tensor is a running
 * sum: each consumer adds its share in its own turn, so that a value read by
 * many turns sends one gradient over a pipeline cut, not many. Row gradients
 * are C_ROW operators and reuse forward values; shares of parameters go by
 * C_ACC operators into Param.grad, where several may name the same T_GRAD.
 *
 * Shapes: d is the gradient of a result of width W and has width W. An operand
 * of width w < W was broadcast, so its share is SUM(parts = w) of what a full
 * one would get. Only the share that a SUM hands back may be narrower than its
 * tensor; take() spreads what is still narrow at the end.
 */
#include "plan.h"

typedef struct {
    Plan *p;
    TensorId *sum;          // by tensor: running sum of its gradient, or NONE
    bool *needs;            // by tensor: it depends on a parameter
    int ntensors;           // forward ones; later tensors have no gradient
    OpAt at;                // place of the forward op being differentiated
    int64_t w;              // width of its (first) result: vectors are read at it
} Diff;

static int64_t width_of(const Diff *d, TensorId t)
{
    return d->p->tensors.at[t].width;
}

static TensorKind kind_of(const Diff *d, TensorId t)
{
    return d->p->tensors.at[t].kind;
}

/* ---- row operators in the place of the current op --------------------- */

static TensorId row(Diff *d, OpKind kind, TensorId a, TensorId b, int64_t width)
{
    return rowop(d->p, &d->at, kind, a, b, width, (RowAttr){ 0 });
}

static TensorId number(Diff *d, double v)
{
    return rowop_number(d->p, v);
}

/* Width at which an operand of the current operator is read. */
static int64_t span(const Diff *d, TensorId t)
{
    return kind_of(d, t) == T_ROWS ? width_of(d, t) : kind_of(d, t) == T_VECTOR ? d->w : 1;
}

static int64_t wider(const Diff *d, TensorId a, TensorId b)
{
    return span(d, a) > span(d, b) ? span(d, a) : span(d, b);
}

static TensorId mul(Diff *d, TensorId a, TensorId b)
{
    return row(d, OP_MUL, a, b, wider(d, a, b));
}

static TensorId sub(Diff *d, TensorId a, TensorId b)
{
    return row(d, OP_SUB, a, b, wider(d, a, b));
}

static TensorId quo(Diff *d, TensorId a, TensorId b)
{
    return row(d, OP_DIV, a, b, wider(d, a, b));
}

static TensorId un(Diff *d, OpKind kind, TensorId a)
{
    return row(d, kind, a, NONE, span(d, a));
}

static TensorId reduce(Diff *d, OpKind kind, TensorId x, TensorId y, int parts)
{
    return rowop(d->p, &d->at, kind, x, y, parts, (RowAttr){ .parts = parts });
}

/* ---- running sums ----------------------------------------------------- */

static bool wants(const Diff *d, TensorId t)
{
    return t < d->ntensors && d->needs[t];
}

static void give(Diff *d, TensorId t, TensorId share)
{
    if (!wants(d, t))
        return;
    if (d->sum[t] == NONE) {
        d->sum[t] = share;
    } else {
        OpAt glue = d->at;
        glue.of = NONE;
        d->sum[t] = rowop(d->p, &glue, OP_ADD, d->sum[t], share, wider(d, d->sum[t], share),
                          (RowAttr){ 0 });
    }
    Tensor *g = &d->p->tensors.at[d->sum[t]];
    if (g->grad_of == NONE && g->def >= d->p->nforward)
        g->grad_of = t;
}

/* The whole gradient of t at its full width; NONE where nothing reached it. */
static TensorId take(Diff *d, TensorId t)
{
    if (t >= d->ntensors || d->sum[t] == NONE)
        return NONE;
    if (width_of(d, d->sum[t]) < width_of(d, t))
        d->sum[t] = row(d, OP_SPREAD, d->sum[t], t, width_of(d, t));
    return d->sum[t];
}

/* Sums a share over what was broadcast from t. */
static TensorId reduced(Diff *d, TensorId t, TensorId share)
{
    int64_t w = width_of(d, t);
    if (kind_of(d, t) == T_VECTOR || w >= width_of(d, share))
        return share;
    return reduce(d, OP_SUM, share, NONE, (int)w);
}

/* Gives operand t its share of an elementwise operator, undoing broadcasts. */
static void give_row(Diff *d, TensorId t, TensorId share)
{
    if (!wants(d, t))
        return;
    if (kind_of(d, t) == T_VECTOR) {
        TensorId grad = d->p->params.at[d->p->tensors.at[t].param].grad;
        OpId id = op_add(d->p, OP_COLSUM, PHASE_BACKWARD, d->at.name, d->at.loc,
                         1, &share, 1, &grad);
        Op *op = &d->p->ops.at[id];
        op->repeat = d->at.repeat;
        op->turn = d->at.turn;
        op->zone = d->at.zone;
        op->of = d->at.of;
        return;
    }
    give(d, t, reduced(d, t, share));
}

/* ---- elementwise operators: y = op(a, b), g the gradient of y --------- */

static void diff_div(Diff *d, TensorId a, TensorId b, TensorId y, TensorId g)
{
    TensorId q = quo(d, g, b);
    give_row(d, a, q);
    if (wants(d, b))
        give_row(d, b, un(d, OP_NEG, mul(d, q, y)));
}

/* MAX takes a where a >= b, MIN where b >= a: ties belong to the first. */
static void diff_choice(Diff *d, const Op *f, TensorId a, TensorId b, TensorId g)
{
    int64_t w = width_of(d, f->out[0]);
    TensorId first = f->kind == OP_MAX ? row(d, OP_GE, a, b, w) : row(d, OP_GE, b, a, w);
    TensorId share = mul(d, g, first);
    give_row(d, a, share);
    if (wants(d, b))
        give_row(d, b, sub(d, g, share));
}

static void diff_pow(Diff *d, const Op *f, TensorId a, TensorId g)
{
    if (f->c == 0)
        return;
    TensorId power = f->c == 1 ? NONE : f->c == 2 ? a
        : rowop(d->p, &d->at, OP_POW, a, NONE, span(d, a), (RowAttr){ .c = f->c - 1 });
    TensorId scaled = mul(d, g, number(d, f->c));
    give_row(d, a, power == NONE ? scaled : mul(d, scaled, power));
}

/* g times the derivative of an operator of one operand, by its value y. */
static TensorId diff_unary(Diff *d, OpKind kind, TensorId a, TensorId y, TensorId g)
{
    switch (kind) {
    case OP_NEG:     return un(d, OP_NEG, g);
    case OP_EXP:     return mul(d, g, y);
    case OP_LOG:     return quo(d, g, a);
    case OP_SQRT:    return mul(d, quo(d, g, y), number(d, 0.5));
    case OP_RSQRT:   return mul(d, g, mul(d, mul(d, y, mul(d, y, y)), number(d, -0.5)));
    case OP_TANH:    return mul(d, g, sub(d, number(d, 1), mul(d, y, y)));
    case OP_SIGMOID: return mul(d, g, mul(d, y, sub(d, number(d, 1), y)));
    case OP_ERF:     // 2/sqrt(pi) exp(-a^2)
        return mul(d, g, mul(d, un(d, OP_EXP, un(d, OP_NEG, mul(d, a, a))),
                             number(d, 1.1283791670955125739)));
    case OP_ABS:     return mul(d, g, un(d, OP_SIGN, a));
    case OP_SIN:     return mul(d, g, un(d, OP_COS, a));
    case OP_COS:     return un(d, OP_NEG, mul(d, g, un(d, OP_SIN, a)));
    default:         return NONE;       // steps: no gradient
    }
}

static void diff_row(Diff *d, const Op *f, TensorId g)
{
    TensorId a = f->in[0], b = f->nin > 1 ? f->in[1] : NONE, y = f->out[0], share;
    switch (f->kind) {
    case OP_ADD:
        give_row(d, a, g);
        give_row(d, b, g);
        break;
    case OP_SUB:
        give_row(d, a, g);
        if (wants(d, b))
            give_row(d, b, un(d, OP_NEG, reduced(d, b, g)));
        break;
    case OP_MUL:
        if (wants(d, a))
            give_row(d, a, mul(d, g, b));
        if (wants(d, b))
            give_row(d, b, mul(d, g, a));
        break;
    case OP_DIV:
        diff_div(d, a, b, y, g);
        break;
    case OP_MAX:
    case OP_MIN:
        diff_choice(d, f, a, b, g);
        break;
    case OP_POW:
        diff_pow(d, f, a, g);
        break;
    case OP_SPREAD:
        give_row(d, a, g);
        break;
    case OP_DROPOUT:
        give(d, a, rowop(d->p, &d->at, OP_DROPOUT, g, NONE, width_of(d, g),
                         (RowAttr){ .c = f->c, .salt = f->salt }));
        break;
    default:
        share = diff_unary(d, f->kind, a, y, g);
        if (share != NONE)
            give_row(d, a, share);
    }
}

/* ---- reductions: y = op(x) has one number per part -------------------- */

static void diff_red(Diff *d, const Op *f, TensorId g)
{
    TensorId x = f->in[0], y = f->out[0];
    int64_t w = width_of(d, x);
    double n = (double)(w / f->parts);
    if (f->kind == OP_SUM) {
        give(d, x, g);      // narrow: read at x's width
    } else if (f->kind == OP_VAR) {
        TensorId sum = reduce(d, OP_SUM, x, NONE, f->parts);
        TensorId mean = n == 1 ? sum : mul(d, sum, number(d, 1 / n));
        give(d, x, mul(d, sub(d, x, mean), mul(d, g, number(d, 2 / n))));
    } else if (f->kind == OP_ROWMAX) {
        TensorId first = reduce(d, OP_FIRST, x, y, f->parts);
        TensorId column = rowop(d->p, &d->at, OP_COLUMN, x, NONE, w,
                                (RowAttr){ .parts = f->parts });
        give(d, x, mul(d, row(d, OP_EQ, column, first, w), g));
    }
}

/* ---- operators of their own ------------------------------------------- */

/* A backward op with the forward op's place and attributes. */
static OpId back(Diff *d, OpId forward, OpKind kind, int nin, const TensorId *in,
                 int nout, const TensorId *out)
{
    OpId id = op_add(d->p, kind, PHASE_BACKWARD, d->at.name, d->at.loc, nin, in, nout, out);
    Op copy = d->p->ops.at[forward], *op = &d->p->ops.at[id];
    copy.kind = kind;
    copy.phase = PHASE_BACKWARD;
    copy.nin = op->nin;
    copy.nout = op->nout;
    copy.in = op->in;
    copy.out = op->out;
    copy.of = forward;
    *op = copy;
    return id;
}

/* A new tensor for the gradient of t. */
static TensorId grad_rows(Diff *d, TensorId t)
{
    TensorId g = tensor_add(d->p, T_ROWS, d->at.name, d->at.loc, width_of(d, t));
    d->p->tensors.at[g].grad_of = t;
    return g;
}

static TensorId param_grad(const Diff *d, TensorId t)
{
    return d->p->params.at[d->p->tensors.at[t].param].grad;
}

static void diff_linear(Diff *d, OpId id, TensorId g)
{
    Op f = d->p->ops.at[id];
    int n = f.nin - 1;
    TensorId *in = NEWN(TensorId, n + 1), *out = NEWN(TensorId, n), x = f.in[0];
    for (int i = 0; i < n; i++)
        out[i] = param_grad(d, f.in[i + 1]);
    in[0] = x;
    in[1] = g;
    back(d, id, OP_LINEAR_DW, 2, in, n, out);
    if (!wants(d, x))
        return;
    for (int i = 0; i < n; i++)
        in[i + 1] = f.in[i + 1];
    in[0] = g;
    TensorId dx = grad_rows(d, x);
    back(d, id, OP_LINEAR_DX, n + 1, in, 1, &dx);
    give(d, x, dx);
}

/* A result nobody reads has no gradient: zeros stand for it. */
static void diff_split(Diff *d, OpId id)
{
    Op f = d->p->ops.at[id];
    TensorId *in = NEWN(TensorId, f.nout), dx;
    for (int i = 0; i < f.nout; i++) {
        in[i] = take(d, f.out[i]);
        if (in[i] == NONE)
            in[i] = row(d, OP_SPREAD, number(d, 0), f.out[i], width_of(d, f.out[i]));
    }
    dx = grad_rows(d, f.in[0]);
    back(d, id, OP_CONCAT, f.nout, in, 1, &dx);
    give(d, f.in[0], dx);
}

static void diff_concat(Diff *d, OpId id, TensorId g)
{
    Op f = d->p->ops.at[id];
    TensorId *out = NEWN(TensorId, f.nin);
    for (int i = 0; i < f.nin; i++)
        out[i] = grad_rows(d, f.in[i]);
    back(d, id, OP_SPLIT, 1, &g, f.nin, out);
    for (int i = 0; i < f.nin; i++)
        give(d, f.in[i], out[i]);
}

static void diff_attn(Diff *d, OpId id, TensorId g)
{
    Op f = d->p->ops.at[id];
    TensorId in[6] = { f.in[0], f.in[1], f.in[2], f.out[0], f.out[1], g }, out[3];
    for (int i = 0; i < 3; i++)
        out[i] = grad_rows(d, f.in[i]);
    back(d, id, OP_ATTN_DX, 6, in, 3, out);
    for (int i = 0; i < 3; i++)
        give(d, f.in[i], out[i]);
}

static void diff_rope(Diff *d, OpId id, TensorId g)
{
    TensorId x = d->p->ops.at[id].in[0], dx = grad_rows(d, x);
    OpId b = back(d, id, OP_ROPE, 1, &g, 1, &dx);
    d->p->ops.at[b].inverse = !d->p->ops.at[id].inverse;
    give(d, x, dx);
}

static void diff_loss(Diff *d, OpId id)
{
    Op f = d->p->ops.at[id];
    TensorId dx = grad_rows(d, f.in[0]);
    back(d, id, OP_CE_DX, 2, f.in, 1, &dx);
    give(d, f.in[0], dx);
}

static void diff_embed(Diff *d, OpId id, TensorId g)
{
    Op f = d->p->ops.at[id];
    TensorId in[2] = { f.in[0], g }, out = param_grad(d, f.in[1]);
    back(d, id, OP_EMBED_DW, 2, in, 1, &out);
}

static bool any_reached(const Diff *d, const Op *f)
{
    for (int i = 0; i < f->nout; i++)
        if (d->sum[f->out[i]] != NONE)
            return true;
    return false;
}

static void diff_op(Diff *d, OpId id)
{
    Op f = d->p->ops.at[id];
    d->at = (OpAt){ .phase = PHASE_BACKWARD, .name = f.name, .loc = f.loc, .repeat = f.repeat,
                    .turn = f.turn, .zone = f.zone, .of = id };
    d->w = width_of(d, f.out[0]);
    if (f.kind == OP_CE && f.out[0] == d->p->loss) {
        diff_loss(d, id);
        return;
    }
    if (!any_reached(d, &f))
        return;
    if (f.kind == OP_SPLIT) {
        diff_split(d, id);
        return;
    }
    TensorId g = take(d, f.out[0]);
    if (op_class[f.kind] == C_ROW)
        diff_row(d, &f, g);
    else if (op_class[f.kind] == C_RED)
        diff_red(d, &f, g);
    else if (f.kind == OP_LINEAR)
        diff_linear(d, id, g);
    else if (f.kind == OP_EMBED)
        diff_embed(d, id, g);
    else if (f.kind == OP_CONCAT)
        diff_concat(d, id, g);
    else if (f.kind == OP_ATTN)
        diff_attn(d, id, g);
    else if (f.kind == OP_ROPE)
        diff_rope(d, id, g);
    else
        bug("autodiff: no gradient for %s", op_word[f.kind]);
}

static void add_param_grads(Plan *p)
{
    for (int i = 0; i < p->params.n; i++) {
        Param param = p->params.at[i];
        TensorId g = tensor_add(p, T_GRAD, param.name, param.loc, param.width);
        p->tensors.at[g].rows = param.rows;
        p->tensors.at[g].param = i;
        p->params.at[i].grad = g;
    }
}

/* Which tensors depend on a parameter. */
static void mark_needs(Diff *d)
{
    for (int t = 0; t < d->ntensors; t++)
        d->needs[t] = kind_of(d, t) == T_VECTOR || kind_of(d, t) == T_MATRIX;
    for (int i = 0; i < d->p->nforward; i++) {
        const Op *op = &d->p->ops.at[i];
        for (int j = 0; j < op->nin; j++)
            if (d->needs[op->in[j]])
                for (int k = 0; k < op->nout; k++)
                    d->needs[op->out[k]] = true;
    }
}

void autodiff_add(Plan *p)
{
    Diff d = { .p = p, .ntensors = p->tensors.n };
    d.sum = NEWN(TensorId, d.ntensors + 1);
    d.needs = NEWN(bool, d.ntensors + 1);
    for (int t = 0; t < d.ntensors; t++)
        d.sum[t] = NONE;
    rowop_index(p);
    mark_needs(&d);
    add_param_grads(p);
    for (OpId id = p->nforward - 1; id >= 0; id--)
        diff_op(&d, id);
}
