/*
 * units.c - how parameters are stored on the grid.
 *
 * A unit is stored, gathered and reduced as one: the block of a matrix (or of
 * several that are multiplied as one), an embedding table, or learned vectors.
 * Its block [rows by one axis, columns by the other] is flattened and cut over
 * `spread`. Units stand one after another in the rank's flat parameter region:
 * matrices in program order, then vectors by the axes their gradients are
 * summed over, so that one all-reduce serves many.
 */
#include "partition.h"

enum { ALIGN = 16 };        // elements between units: 64 bytes of float

static ParamUnit *unit_add(Part *q, const char *name, Loc loc, int turn)
{
    ParamUnit u = { .name = name, .loc = loc, .turn = turn, .p = NONE, .g = NONE, .rep = 1,
                    .first_stage = true };
    vec_add(&q->p->units, u);
    return &q->p->units.at[q->p->units.n - 1];
}

static void piece_add(ParamUnit *u, ParamId w, Segment cols)
{
    Piece *more = NEWN(Piece, u->npieces + 1);
    if (u->npieces)
        memcpy(more, u->piece, sizeof *more * (size_t)u->npieces);
    more[u->npieces++] = (Piece){ w, cols, 0 };
    u->piece = more;
}

static Axes all_axes(const Plan *p, int rep)
{
    return canon(p, AX_X | AX_YK | AX_Z | (rep > 1 ? AX_YR : 0), rep);
}

/* Local sizes, spread, shard: once rows, axes and pieces are known. */
static void unit_finish(Part *q, ParamUnit *u, bool spread_all)
{
    Plan *p = q->p;
    u->bcols = 0;
    for (int i = 0; i < u->npieces; i++) {
        Columns one = { 1, &u->piece[i].cols };
        u->piece[i].local_start = u->bcols;
        u->bcols += local_width(p, one, u->col_axis);
        u->rep = u->piece[i].cols.rep > u->rep ? u->piece[i].cols.rep : u->rep;
    }
    for (int i = 0; i < u->rows.n; i++)
        u->rep = u->row_axis & AX_YK && u->rows.seg[i].rep > u->rep ? u->rows.seg[i].rep : u->rep;
    u->brows = local_width(p, u->rows, u->row_axis);
    Axes used = canon(p, (u->row_axis | u->col_axis), u->rep);
    Axes free = all_axes(p, u->rep) & (Axes)~used;
    u->spread = spread_all ? free : 0;
    u->repl = spread_all ? 0 : free;
    int64_t ways = axes_size(p, u->spread, u->rep);
    u->shard = (u->brows * u->bcols + ways - 1) / ways;
    if (p->is.zero >= 2)
        u->shard = (u->shard + p->is.data - 1) / p->is.data * p->is.data;
}

static Spot *rows_spot(Part *q, ParamId w) { return &q->spot[q->p->tensors.n + 2 * w]; }
static Spot *cols_spot(Part *q, ParamId w) { return &q->spot[q->p->tensors.n + 2 * w + 1]; }

/* Rows of a matrix keep rep = 1 unless they are kv columns of an earlier product. */
static int seg_rep(Segment g, Axes axis) { return axis & AX_YK ? g.rep : 1; }

static void matrix_units(Part *q, OpId op)
{
    Plan *p = q->p;
    const Op *o = &p->ops.at[op];
    char rows_home = o->transposed ? (q->info[op].lin_home == 'A' ? 'B' : 'A')
                                   : q->info[op].lin_home;
    Axes row_axis = axis_of(rows_home), col_axis = axis_of(rows_home == 'A' ? 'B' : 'A');
    ParamUnit *u = NULL;
    int rep = 0;
    for (int j = 1; j < o->nin; j++) {
        ParamId w = p->tensors.at[o->in[j]].param;
        Columns c = cols_spot(q, w)->cols;
        q->param_unit[w] = p->units.n;
        for (int i = 0; i < c.n; i++) {
            Segment g = c.seg[i];
            g.rep = seg_rep(g, col_axis);
            if (u == NULL || g.rep != rep) {
                if (u != NULL)
                    unit_finish(q, u, true);
                u = unit_add(q, p->params.at[w].name, p->params.at[w].loc, o->turn);
                u->rows = rows_spot(q, w)->cols;
                u->row_axis = row_axis;
                u->col_axis = col_axis;
                if (cols_spot(q, w)->pad)
                    u->pad_cols = cols_spot(q, w)->pad;
                rep = g.rep;
            } else if (i == 0) {
                q->param_unit[w] = p->units.n - 1;
                u->name = str_fmt("%s+%s", u->name, p->params.at[w].name);
            }
            piece_add(u, w, g);
        }
        q->param_nunits[w] = p->units.n - q->param_unit[w];
    }
    unit_finish(q, u, true);
}

static void table_unit(Part *q, ParamId w, int turn)
{
    Plan *p = q->p;
    const Param *a = &p->params.at[w];
    Columns c = cols_spot(q, w)->cols;
    q->param_unit[w] = p->units.n;
    q->param_nunits[w] = 1;
    ParamUnit *u = unit_add(q, a->name, a->loc, turn);
    u->is_table = true;
    u->rows = rows_spot(q, w)->cols;
    u->row_axis = p->is.summa ? AX_Z : AX_YK;
    u->col_axis = p->is.summa ? AX_YK : AX_Z;
    u->pad_rows = rows_spot(q, w)->pad;
    for (int i = 0; i < c.n; i++) {
        Segment g = c.seg[i];
        g.rep = 1;
        piece_add(u, w, g);
    }
    unit_finish(q, u, true);
}

/* The first forward row operator that reads the vector decides where it is split. */
static bool vector_use(const Part *q, ParamId w, TensorId *out)
{
    const Plan *p = q->p;
    const Spot *s = &q->spot[p->params.at[w].tensor];
    for (int i = 0; i < s->nuses; i++) {
        const Op *o = &p->ops.at[s->use[i]];
        if (is_row_op(o) && o->phase == PHASE_FORWARD && o->nout == 1 &&
            p->tensors.at[o->out[0]].kind == T_ROWS) {
            *out = o->out[0];
            return true;
        }
    }
    return false;
}

static void vector_unit(Part *q, ParamId w)
{
    Plan *p = q->p;
    const Param *a = &p->params.at[w];
    TensorId t;
    q->param_unit[w] = p->units.n;
    q->param_nunits[w] = 1;
    ParamUnit *u = unit_add(q, a->name, a->loc, a->turn);
    u->rows = (Columns){ 1, NEWN(Segment, 1) };
    u->rows.seg[0] = (Segment){ 0, 1, 1 };
    Segment whole = { 0, a->width, 1 };
    if (vector_use(q, w, &t) && p->tensors.at[t].width == a->width && a->width > 1) {
        const Spot *s = &q->spot[t];
        u->col_axis = axis_of(s->home);
        for (int i = 0; i < s->cols.n; i++) {
            Segment g = s->cols.seg[i];
            g.rep = seg_rep(g, u->col_axis);
            piece_add(u, w, g);
        }
        if (s->pad > a->width)
            u->pad_cols = s->pad;
    } else {
        piece_add(u, w, whole);
    }
    unit_finish(q, u, false);
}

/* Which function adds to a vector's gradient; with one function each way there is no
 * difference. A vector that several add to is its own. */
static int *grad_functions(const Part *q)
{
    const Plan *p = q->p;
    bool whole = p->is.stages == 1 && p->is.chunks == 1 && p->is.nslices == 1;
    int *of = NEWN(int, p->params.n);
    for (int i = p->nforward; i < p->ops.n && !whole; i++) {
        if (p->ops.at[i].kind != OP_COLSUM)
            continue;
        int *f = &of[p->tensors.at[p->ops.at[i].out[0]].param];
        int here = 1 + 2 * q->section[i] + q->info[i].region;
        *f = *f == 0 || *f == here ? here : -1 - p->tensors.at[p->ops.at[i].out[0]].param;
    }
    return of;
}

/* Vectors of one turn whose gradients are summed over the same axes, by one function: one
 * unit. */
static void bundle_vectors(Part *q, int first)
{
    Plan *p = q->p;
    const int *func = grad_functions(q);
    int n = p->units.n;
    ParamUnit *old = NEWN(ParamUnit, n - first);
    memcpy(old, p->units.at + first, sizeof *old * (size_t)(n - first));
    p->units.n = first;
    for (int i = 0; i < n - first; i++) {
        ParamUnit *u = NULL;
        for (int k = first; k < p->units.n && u == NULL; k++) {
            ParamUnit *b = &p->units.at[k];
            if (b->turn == old[i].turn && b->col_axis == old[i].col_axis &&
                b->rep == old[i].rep && !b->pad_cols && !old[i].pad_cols &&
                func[b->piece[0].param] == func[old[i].piece[0].param])
                u = b;
        }
        if (u == NULL) {
            vec_add(&p->units, old[i]);
            u = &p->units.at[p->units.n - 1];
        } else {
            for (int k = 0; k < old[i].npieces; k++)
                piece_add(u, old[i].piece[k].param, old[i].piece[k].cols);
            u->name = u->turn == NONE ? "vectors outside of turns"
                                      : str_fmt("vectors of turn %d", u->turn);
        }
        q->param_unit[old[i].piece[0].param] = (int)(u - p->units.at);
    }
    for (int k = first; k < p->units.n; k++)
        unit_finish(q, &p->units.at[k], true);
}

static int unit_order(const ParamUnit *u)       // vectors last, by summed axes
{
    return u->repl == 0 ? 0 : (1 + u->repl) * 1024 + u->rep;
}

void place_units(Part *q)
{
    Plan *p = q->p;
    for (int w = 0; w < p->params.n; w++)
        q->param_unit[w] = NONE;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind != OP_LINEAR && o->kind != OP_EMBED)
            continue;
        ParamId w = p->tensors.at[o->in[1]].param;
        if (q->param_unit[w] != NONE || !q->param_here[w])
            continue;
        if (p->params.at[w].kind == PARAM_TABLE)
            table_unit(q, w, o->turn);
        else
            matrix_units(q, i);
    }
    int first = p->units.n;
    for (int w = 0; w < p->params.n; w++) {
        if (q->param_unit[w] != NONE || !q->param_here[w])
            continue;
        if (p->params.at[w].kind == PARAM_VECTOR)
            vector_unit(q, w);
        else if (p->params.at[w].kind == PARAM_TABLE)
            table_unit(q, w, p->params.at[w].turn);
        else
            bug("parameter %s is in no linear", p->params.at[w].name);
    }
    if (p->is.shard_vectors)
        bundle_vectors(q, first);
    for (int i = 0; i < p->units.n; i++) {
        ParamUnit *u = &p->units.at[i];
        uint64_t s = q->param_stages[u->piece[0].param];
        u->first_stage = (s & ((UINT64_C(1) << p->stage) - 1)) == 0;
        u->stages = s & (s - 1) ? s : 0;
    }
    /* offsets: matrices in order, then vectors grouped by the axes of their sums */
    int64_t at = 0, align = (int64_t)ALIGN * (p->is.zero >= 2 ? p->is.data : 1);
    for (int key = 0; key >= 0;) {
        int next = -1;
        for (int i = 0; i < p->units.n; i++) {
            int k = unit_order(&p->units.at[i]);
            if (k == key) {
                p->units.at[i].offset = at;
                at += (p->units.at[i].shard + align - 1) / align * align;
            } else if (k > key && (next < 0 || k < next))
                next = k;
        }
        key = next;
    }
    p->flat = at;
    int64_t step = (int64_t)ALIGN * p->is.data;
    p->flat_pad = (at + step - 1) / step * step;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind != OP_LINEAR && o->kind != OP_EMBED)
            continue;
        OpInfo *f = &q->info[i];
        int n = 0;
        if (!q->param_here[p->tensors.at[o->in[1]].param])
            continue;
        for (int j = 1; j < o->nin; j++)
            n += q->param_nunits[p->tensors.at[o->in[j]].param];
        f->unit = NEWN(UnitId, n);
        for (int j = 1; j < o->nin; j++) {
            ParamId w = p->tensors.at[o->in[j]].param;
            for (int k = 0; k < q->param_nunits[w]; k++) {
                UnitId u = q->param_unit[w] + k;
                if (f->nunits == 0 || f->unit[f->nunits - 1] != u)
                    f->unit[f->nunits++] = u;
            }
        }
    }
}
