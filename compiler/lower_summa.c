/*
 * lower_summa.c - products of partition = summa(q): the 2-D algorithm of SUMMA (van de Geijn
 * and Watts, 1997) as Optimus trains with it (Xu et al., arXiv 2104.05343).
 *
 * Ranks form a q x q grid, z its rows and y its columns. Activations and matrices alike have
 * their rows by z and their columns by y. Each product takes q steps; in step l blocks go from
 * the ranks that have them to their row or column of the grid:
 *
 *   C = A B     A(i,l) to row i, B(l,j) to column j          C(i,j) += A(i,l) B(l,j)
 *   C = A BT    B(l,j) to column j, A(i,j) B(l,j)T           summed over row i: C(i,l)
 *   C = AT B    A(i,l) to row i, A(i,l)T B(i,j)              summed over column j: C(l,j)
 *
 * A rank receives 2(q-1) blocks for each product. Nothing that was sent is kept.
 */
#include "partition.h"

/* A block of its own that holds panel l of `like`. */
static ValueId panel_new(Part *q, const Value *like, int64_t rows, int64_t cols, DType d,
                         SummaPanel panel, const char *name)
{
    ValueId id = value_matrix(q, rows, cols, d, panel.sum ? BUF_WORK : BUF_GATHERED, name);
    Value *v = &q->p->values.at[id];
    v->tensor = like->tensor;
    v->layout = like->layout;
    v->cols_map = like->cols_map;
    v->rowmap = like->rowmap;
    v->unit = like->unit;
    v->whole = like->whole;
    v->panel = panel;
    return id;
}

static ValueId rooted(Part *q, CollKind kind, Axes over, int l, ValueId from, ValueId to, OpId op,
                      const char *reason)
{
    coll(q, kind, over, 1, from, to, op,
         str_fmt("%s over %s", kind == COLL_BROADCAST ? "broadcast" : "reduce",
                 axes_word(over, 1)), reason);
    q->p->insts.at[q->p->insts.n - 1].peer = l;
    return to;
}

/* Columns l of x, which its rank sends to the others of the grid's row. */
static ValueId columns_sent(Part *q, OpId op, TensorId x, int l)
{
    Plan *p = q->p;
    ValueId v = contiguous(q, home_value(q, x), op);
    Value a = p->values.at[v];
    a.layout.cols = 0;
    ValueId to = panel_new(q, &a, a.rows, a.cols, stored_of(q, v), (SummaPanel){ AX_YK, l, false },
                           str_fmt("a block of %s", p->tensors.at[x].name));
    return rooted(q, COLL_BROADCAST, AX_YK, l, v, to, op,
                  str_fmt("summa: in step l the l-th block of `%s` goes to its row of the grid",
                          p->tensors.at[x].name));
}

/* Rows l of the unit's matrix, which their rank sends to the others of the grid's column. */
static ValueId rows_sent(Part *q, OpId op, UnitId u, int l)
{
    Plan *p = q->p;
    ValueId v = weight(q, u);
    Value a = p->values.at[v];
    ValueId to = panel_new(q, &a, a.rows, a.cols, stored_of(q, v), (SummaPanel){ AX_Z, l, false },
                           str_fmt("a block of %s", p->units.at[u].name));
    return rooted(q, COLL_BROADCAST, AX_Z, l, v, to, op,
                  str_fmt("summa: in step l the l-th block of `%s` goes to its column of the grid",
                          p->units.at[u].name));
}

static ValueId result(Part *q, OpId op, TensorId t)
{
    return home_new(q, t, q->p->ops.at[op].phase == PHASE_FORWARD ? BUF_ACTIVATION : BUF_WORK);
}

static void product(Part *q, OpId op, TensorId x, UnitId u, TensorId out, const char *what)
{
    ValueId y = result(q, op, out);
    for (int l = 0; l < q->p->is.summa; l++) {
        ValueId a = columns_sent(q, op, x, l), w = rows_sent(q, op, u, l);
        gemm(q, op, what, a, false, w, false, y, l > 0);
    }
    spot_add(q, out, y);
}

static void product_transposed(Part *q, OpId op, TensorId x, UnitId u, TensorId out,
                               const char *what)
{
    Plan *p = q->p;
    ValueId y = result(q, op, out), v = home_value(q, x);
    for (int l = 0; l < p->is.summa; l++) {
        ValueId w = rows_sent(q, op, u, l);
        Value c = p->values.at[y];
        c.layout.cols = 0;
        c.layout.partial = AX_YK;
        ValueId part = panel_new(q, &c, c.rows, p->values.at[w].rows, stored_of(q, y),
                                 (SummaPanel){ AX_YK, l, true },
                                 str_fmt("a block of %s, summed", p->tensors.at[out].name));
        gemm(q, op, what, v, false, w, true, part, false);
        rooted(q, COLL_REDUCE, AX_YK, l, part, y, op,
               "summa: in step l the parts of the l-th block of the result are summed where it "
               "belongs");
    }
    spot_add(q, out, y);
}

/* The one unit of the operator's matrices: summa(q) has no copies of columns. */
static UnitId unit_of(Part *q, OpId forward)
{
    const OpInfo *f = &q->info[forward];
    if (f->nunits != 1)
        bug("%s: %d units in a product of blocks", q->p->ops.at[forward].name, f->nunits);
    return f->unit[0];
}

void summa_linear(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    UnitId u = unit_of(q, op);
    if (o.transposed)
        product_transposed(q, op, o.in[0], u, o.out[0], "X WT");
    else
        product(q, op, o.in[0], u, o.out[0], "X W");
}

void summa_linear_dx(Part *q, OpId op)
{
    Op o = q->p->ops.at[op];
    UnitId u = unit_of(q, o.of);
    if (q->p->ops.at[o.of].transposed)
        product(q, op, o.in[0], u, o.out[0], "dY W");
    else
        product_transposed(q, op, o.in[0], u, o.out[0], "dY WT");
}

void summa_linear_dw(Part *q, OpId op)
{
    Plan *p = q->p;
    Op o = p->ops.at[op];
    UnitId u = unit_of(q, o.of);
    bool flip = p->ops.at[o.of].transposed, first;
    TensorId sent = o.in[flip], stays = o.in[!flip];
    ValueId dw = weight_grad(q, u, &first), v = home_value(q, stays);
    for (int l = 0; l < p->is.summa; l++) {
        ValueId a = columns_sent(q, op, sent, l);
        Value g = p->values.at[dw];
        ValueId part = panel_new(q, &g, g.rows, g.cols, stored_of(q, dw),
                                 (SummaPanel){ AX_Z, l, true },
                                 str_fmt("a block of the gradient of %s", p->units.at[u].name));
        gemm(q, op, flip ? "dYT X" : "XT dY", a, true, v, false, part, false);
        rooted(q, COLL_REDUCE, AX_Z, l, part, dw, op,
               str_fmt("summa: in step l the parts of the l-th block of the gradient of `%s` are "
                       "summed where it belongs", p->units.at[u].name));
        p->insts.at[p->insts.n - 1].accumulate = !first;
    }
    weight_grad_done(q, u, op);
}
