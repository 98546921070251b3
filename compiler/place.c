/*
 * place.c - where every tensor lives on the x-y-z grid.
 *
 * A tensor of activations has one home layout: A (tokens by x then y, width by
 * z) or B (tokens by x then z, width by y). Linears alternate between the two;
 * attention wants B, embeddings and the head's input A; what is elementwise
 * follows its operands. A width may consist of segments that are each cut
 * evenly (q, k and v of a fused product), so that a split costs nothing.
 *
 *         A: residual stream            B: inside a pair of linears
 *            H by z                        F by y
 *          +--------+                    +--------+
 *      x,y |        |  -- W1 [z,y] -->   |        | x,z
 *          +--------+  <- W2 [y,z] --    +--------+
 *
 * partition = summa(q), y = z = q: every tensor is in B, and every matrix and table has its
 * rows by z and its columns by y. A product is then a sum of q products of blocks (lower_summa.c).
 */
#include "partition.h"

bool is_row_op(const Op *o)
{
    return op_class[o->kind] == C_ROW || op_class[o->kind] == C_RED ||
           o->kind == OP_COLSUM;
}

Axes axis_of(char home) { return home == 'A' ? AX_Z : AX_YK; }

static bool is_rows(const Plan *p, TensorId t)
{
    return p->tensors.at[t].kind == T_ROWS;
}

void place_uses(Part *q)
{
    Plan *p = q->p;
    int *fill = SCRATCHN(int, p->tensors.n), all = 0;
    for (int i = 0; i < p->ops.n; i++)
        for (int j = 0; j < p->ops.at[i].nin; j++, all++)
            q->spot[p->ops.at[i].in[j]].nuses++;
    OpId *use = SCRATCHN(OpId, all);
    for (int t = 0; t < p->tensors.n; use += q->spot[t++].nuses)
        q->spot[t].use = use;
    for (int i = 0; i < p->ops.n; i++)
        for (int j = 0; j < p->ops.at[i].nin; j++) {
            TensorId t = p->ops.at[i].in[j];
            q->spot[t].use[fill[t]++] = i;
        }
}

/* ---- homes ----------------------------------------------------------------- */

static bool feeds_loss(const Part *q, OpId op)
{
    const Plan *p = q->p;
    TensorId t = p->ops.at[op].out[0];
    for (int hops = 0; hops < 64; hops++) {     // through single-use elementwise steps
        OpId next = NONE;
        for (int i = 0; i < q->spot[t].nuses; i++) {
            const Op *u = &p->ops.at[q->spot[t].use[i]];
            if (u->phase != PHASE_FORWARD)
                continue;
            if (u->kind == OP_CE)
                return true;
            if (next == NONE && op_class[u->kind] == C_ROW)
                next = q->spot[t].use[i];
        }
        if (next == NONE)
            return false;
        t = p->ops.at[next].out[0];
    }
    return false;
}

static char other(char home) { return home == 'A' ? 'B' : 'A'; }

/* The layout most of the operands' bytes are in; A on a tie. */
static char cheapest_home(const Part *q, const Op *o)
{
    int64_t a = 0, b = 0;
    for (int j = 0; j < o->nin; j++) {
        const Tensor *t = &q->p->tensors.at[o->in[j]];
        if (t->kind != T_ROWS)
            continue;
        if (q->spot[o->in[j]].home == 'A')
            a += t->width;
        else
            b += t->width;
    }
    return b > a ? 'B' : 'A';
}

static char op_home(Part *q, OpId i, char *orient)
{
    Plan *p = q->p;
    Op *o = &p->ops.at[i];
    bool whole_parts = o->kind == OP_ROPE ||        // where their checks have looked
                       ((o->kind == OP_SPLIT || o->kind == OP_CONCAT) && o->parts > 1);
    if (o->phase == PHASE_BACKWARD && o->of != NONE && (is_row_op(o) || whole_parts)) {
        const Op *f = &p->ops.at[o->of];
        if (is_rows(p, f->out[0]))
            return q->spot[f->out[0]].home;
    }
    if (p->is.summa) {
        if (o->kind == OP_LINEAR)       // rows of its matrix by z: see units.c
            q->info[i].lin_home = o->transposed ? 'B' : 'A';
        return 'B';
    }
    switch (o->kind) {
    case OP_EMBED:
        return 'A';
    case OP_ATTN: case OP_ATTN_DX: case OP_CE_DX:
        return 'B';
    case OP_LINEAR: {
        ParamId w = p->tensors.at[o->in[1]].param;
        char in;
        if (p->params.at[w].kind == PARAM_TABLE)
            in = 'A';
        else if (orient[w])
            in = o->transposed ? other(orient[w]) : orient[w];
        else
            in = feeds_loss(q, i) ? 'A' : q->spot[o->in[0]].home;
        for (int j = 1; j < o->nin; j++) {
            ParamId wj = p->tensors.at[o->in[j]].param;
            if (!orient[wj])
                orient[wj] = o->transposed ? other(in) : in;
        }
        q->info[i].lin_home = in;
        return other(in);
    }
    case OP_LINEAR_DX:
        return q->info[o->of].lin_home;
    case OP_SPLIT: case OP_ROPE:
        return q->spot[o->in[0]].home;
    default:
        return cheapest_home(q, o);
    }
}

void place_homes(Part *q)
{
    Plan *p = q->p;
    char *orient = NEWN(char, p->params.n);
    for (int i = 0; i < p->ops.n; i++) {
        Op *o = &p->ops.at[i];
        if (op_class[o->kind] == C_ACC || o->kind == OP_CE)
            continue;
        char home = op_home(q, i, orient);
        for (int j = 0; j < o->nout; j++)
            q->spot[o->out[j]].home = home;
    }
}

/* ---- columns ---------------------------------------------------------------
 * Cuts spread along links "u is columns [off, off+width) of t" until nothing
 * changes. Rows and columns of parameters take part as tensors of their own. Off
 * BY_PARTS: both are cut into the same parts, of other widths, so that only the number
 * of copies spreads.
 */
enum { BY_PARTS = -1 };
typedef struct { int t, u; int64_t off; } Link;
typedef struct { Part *q; int n; Spot *spot; int64_t *width; VEC(Link) links; } Cuts;

static int param_rows(const Cuts *c, ParamId w) { return c->q->p->tensors.n + 2 * w; }
static int param_cols(const Cuts *c, ParamId w) { return c->q->p->tensors.n + 2 * w + 1; }

static void link_add(Cuts *c, int t, int u, int64_t off)
{
    Link l = { t, u, off };
    vec_add(&c->links, l);
}

static void link_linear(Cuts *c, const Op *o, TensorId x, TensorId y)
{
    Plan *p = c->q->p;
    int64_t off = 0;
    for (int j = 1; j < o->nin; j++) {
        ParamId w = p->tensors.at[o->in[j]].param;
        int in = o->transposed ? param_cols(c, w) : param_rows(c, w);
        int out = o->transposed ? param_rows(c, w) : param_cols(c, w);
        link_add(c, x, in, 0);
        link_add(c, y, out, off);
        off += c->width[out];
    }
}

static void link_op(Cuts *c, const Op *o)
{
    Plan *p = c->q->p;
    int64_t off = 0;
    switch (o->kind) {
    case OP_LINEAR:
        link_linear(c, o, o->in[0], o->out[0]);
        break;
    case OP_LINEAR_DX:
        link_linear(c, o, o->out[0], o->in[0]);
        break;
    case OP_EMBED:
        link_add(c, o->out[0], param_cols(c, p->tensors.at[o->in[1]].param), 0);
        break;
    case OP_LINEAR_DW: {
        const Op *f = &p->ops.at[o->of];
        link_add(c, o->in[0], f->in[0], 0);
        link_add(c, o->in[1], f->out[0], 0);
        break;
    }
    case OP_EMBED_DW:
        link_add(c, o->in[1], p->ops.at[o->of].out[0], 0);
        break;
    case OP_SPLIT:
        for (int j = 0; j < o->nout; off += o->sizes[j++])
            link_add(c, o->in[0], o->out[j], o->parts <= 1 ? off : BY_PARTS);
        break;
    case OP_CONCAT:
        for (int j = 0; j < o->nin; off += o->sizes[j++])
            link_add(c, o->out[0], o->in[j], o->parts <= 1 ? off : BY_PARTS);
        break;
    case OP_ROPE: case OP_CE_DX:
        link_add(c, o->in[0], o->out[0], 0);
        break;
    case OP_PSUM:
        for (int j = 0; j < o->nin; j++)
            link_add(c, o->in[j], o->out[0], 0);
        break;
    case OP_ATTN:
        link_add(c, o->in[0], o->out[0], 0);
        link_add(c, o->in[1], o->in[2], 0);
        break;
    case OP_ATTN_DX:
        link_add(c, o->in[0], o->out[0], 0);
        link_add(c, o->in[0], o->in[5], 0);
        link_add(c, o->in[1], o->out[1], 0);
        link_add(c, o->in[2], o->out[2], 0);
        break;
    default:
        if (!is_row_op(o) || o->kind == OP_COLSUM)
            break;
        for (int j = 0; j < o->nin; j++) {
            const Tensor *t = &p->tensors.at[o->in[j]];
            bool rows = t->kind == T_ROWS, same = t->width == p->tensors.at[o->out[0]].width;
            if (t->width <= 1 || p->tensors.at[o->out[0]].width <= 1)
                continue;
            if (op_class[o->kind] == C_ROW && same && (rows || t->kind == T_VECTOR))
                link_add(c, o->in[j], o->out[0], 0);
            else if (rows && !same)
                link_add(c, o->in[j], o->out[0], BY_PARTS);
        }
    }
}

/* Makes [at] a boundary of s; true if it was none. */
static bool cut_at(Spot *s, int64_t at)
{
    for (int i = 0; i < s->cols.n; i++) {
        Segment *g = &s->cols.seg[i];
        if (at == g->start || at < g->start || at >= g->start + g->width)
            continue;
        Segment *more = NEWN(Segment, s->cols.n + 1);
        memcpy(more, s->cols.seg, sizeof *more * (size_t)(i + 1));
        memcpy(more + i + 2, g + 1, sizeof *more * (size_t)(s->cols.n - i - 1));
        more[i + 1] = (Segment){ at, g->start + g->width - at, g->rep };
        more[i].width = at - g->start;
        s->cols = (Columns){ s->cols.n + 1, more };
        return true;
    }
    return false;
}

/* Gives columns [lo, hi) of s at least `rep` copies; boundaries must exist. */
static bool mark_rep(Spot *s, int64_t lo, int64_t hi, int rep)
{
    bool changed = false;
    for (int i = 0; i < s->cols.n; i++) {
        Segment *g = &s->cols.seg[i];
        if (g->start >= lo && g->start + g->width <= hi && g->rep < rep) {
            g->rep = rep;
            changed = true;
        }
    }
    return changed;
}

static int most_copies(const Spot *s)
{
    int rep = 1;
    for (int i = 0; i < s->cols.n; i++)
        rep = s->cols.seg[i].rep > rep ? s->cols.seg[i].rep : rep;
    return rep;
}

static bool follow(Cuts *c, const Link *l)
{
    Spot *t = &c->spot[l->t], *u = &c->spot[l->u];
    if (l->off == BY_PARTS)
        return mark_rep(t, 0, INT64_MAX, most_copies(u)) |
               mark_rep(u, 0, INT64_MAX, most_copies(t));
    int64_t width = c->width[l->u];
    bool whole = l->off == 0 && width == c->width[l->t];
    bool changed = false;
    if (whole && t->pad != u->pad) {
        t->pad = u->pad = t->pad > u->pad ? t->pad : u->pad;
        changed = true;
    }
    changed |= cut_at(t, l->off);
    changed |= cut_at(t, l->off + width);
    for (int i = 0; i < u->cols.n; i++) {
        Segment g = u->cols.seg[i];
        changed |= cut_at(t, l->off + g.start);
        changed |= mark_rep(t, l->off + g.start, l->off + g.start + g.width, g.rep);
    }
    for (int i = 0; i < t->cols.n; i++) {
        Segment g = t->cols.seg[i];
        if (g.start < l->off || g.start + g.width > l->off + width)
            continue;
        changed |= cut_at(u, g.start - l->off);
        changed |= mark_rep(u, g.start - l->off, g.start - l->off + g.width, g.rep);
    }
    return changed;
}

int64_t local_width(const Plan *p, Columns c, Axes axis)
{
    int64_t n = 0;
    for (int i = 0; i < c.n; i++) {
        int64_t ways = axes_size(p, axis, 1);
        if (axis & AX_YK)
            ways /= c.seg[i].rep;
        n += c.seg[i].width / ways;
    }
    return n;
}

/* What the home's column axis is called in the plan section. */
static char side_of(const Plan *p, char home)
{
    return p->is.summa ? 'q' : home == 'A' ? 'z' : 'y';
}

/* Sizes of the home's column axis near the one at hand with which everything divides. */
static bool size_fits(const Part *q, char home, int v)
{
    const Choices *is = &q->p->is;
    if (is->summa)
        return mesh_fits(q->p, is->data, is->x, v, v);
    return home == 'A' ? mesh_fits(q->p, is->data, is->x, is->y, v)
                       : mesh_fits(q->p, is->data, is->x, v, is->z);
}

static const char *near_sizes(const Part *q, char home, int64_t size)
{
    int64_t lo = 0, hi = 0;
    for (int64_t v = size - 1; v >= 1 && !lo; v--)
        if (size_fits(q, home, (int)v))
            lo = v;
    for (int64_t v = size + 1; v <= 4 * size && !hi; v++)
        if (size_fits(q, home, (int)v))
            hi = v;
    return lo && hi ? str_fmt("%" PRId64 " or %" PRId64, lo, hi)
                    : str_fmt("%" PRId64, lo ? lo : hi ? hi : 1);
}

/* A width that splits `ways` ways, and into heads of an even size. */
static int64_t near_width(const Part *q, int64_t width, int64_t ways)
{
    int64_t unit = ways;
    for (int i = 0; i < q->p->nforward; i++)
        if (q->p->ops.at[i].kind == OP_ATTN)
            unit = lcm64(unit, 2 * q->p->ops.at[i].heads);
    return (width + unit - 1) / unit * unit;
}

static const char *near_divisor(int64_t width, int64_t ways)
{
    int64_t lo = ways, hi = ways;
    while (lo > 1 && width % lo)
        lo--;
    while (hi < width && width % hi)
        hi++;
    return lo == hi || hi == width ? str_fmt("%" PRId64, lo)
                                   : str_fmt("%" PRId64 " or %" PRId64, lo, hi);
}

/* width-divides: every segment cut evenly over the column axis of the home. */
static void check_width(Part *q, TensorId t)
{
    Plan *p = q->p;
    const Tensor *x = &p->tensors.at[t];
    const Spot *s = &q->spot[t];
    Axes axis = axis_of(s->home);
    int64_t size = axes_size(p, axis, 1);
    if (size == 1)
        return;
    for (int i = 0; i < s->cols.n; i++) {
        Segment g = s->cols.seg[i];
        int64_t ways = size / (s->home == 'B' ? g.rep : 1);
        if (g.width % ways == 0)
            continue;
        if (q->odd_width[s->home == 'B'] == g.width)    // said already of a tensor like it
            return;
        q->odd_width[s->home == 'B'] = g.width;
        char a = side_of(p, s->home);
        diag_error(x->loc, "width-divides", "width %" PRId64 " of `%s` does not split over "
                   "%c = %" PRId64, g.width, x->name, a, size);
        Loc side = mesh_side(p, s->home == 'A' ? 2 : 1);
        if (side.end)
            diag_note(side, "%c = %" PRId64 " stands here", a, size);
        diag_hint("%c can be %s; or make the width %" PRId64, a, near_sizes(q, s->home, size),
                  near_width(q, g.width, ways));
        return;
    }
}

/* Copies of kv columns serve attention alone: a product would add each copy's part. */
static void check_copied(Part *q, const Op *o)
{
    const Spot *s = &q->spot[o->in[0]];
    for (int i = 0; i < s->cols.n; i++)
        if (s->cols.seg[i].rep > 1) {
            diag_error(o->loc, "heads-divide", "`%s` reads keys or values that have fewer kv heads "
                       "than y = %d", q->p->tensors.at[o->in[0]].name, q->p->is.y);
            diag_hint("use a y of at most the kv heads, or other linears for what is used outside "
                      "attention");
            return;
        }
}

/* Operators that work on whole parts need them whole on a rank. */
static void check_parts(Part *q, const Op *o)
{
    Plan *p = q->p;
    int parts = o->kind == OP_ROPE ? o->heads : o->parts;
    bool has = op_class[o->kind] == C_RED || o->kind == OP_SPLIT || o->kind == OP_CONCAT ||
               o->kind == OP_ROPE;
    for (int j = 0; j < o->nin && op_class[o->kind] == C_ROW; j++) {
        const Tensor *w = &p->tensors.at[o->in[j]];     // a vector that parts share
        int64_t width = p->tensors.at[o->out[0]].width;
        if (w->kind == T_VECTOR && w->width > 1 && w->width < width) {
            parts = (int)(width / w->width);
            has = true;
        }
    }
    if (!has || o->phase != PHASE_FORWARD)
        return;
    const Spot *s = &q->spot[o->kind == OP_CONCAT ? o->out[0] : o->in[0]];
    char home = q->spot[o->out[0]].home;
    int64_t size = axes_size(p, axis_of(home), 1);
    char a = side_of(p, home);
    int rep = home == 'B' ? s->cols.seg[0].rep : 1;
    if (parts <= 1 && op_class[o->kind] == C_RED && rep > 1 && size > rep) {
        diag_error(o->loc, "heads-divide", "`%s` works on whole rows of kv heads that are copied "
                   "on %s of y each", o->name, plural(rep, "rank"));
        diag_hint("work on each head, with heads=, or use a y of at most the kv heads");
        return;
    }
    if (parts <= 1 && o->kind != OP_ROPE)
        return;
    if (size > 1 && s->cols.n > 1) {
        diag_error(o->loc, "heads-divide", "what `%s` cuts into %d parts is joined from pieces "
                   "that split over %c = %" PRId64 " one by one, not part by part", o->name, parts,
                   a, size);
        diag_hint("join them inside each part with concat(.., heads=%d), or use %c = 1", parts, a);
    } else if (size > 1 && parts % (size / rep)) {
        diag_error(o->loc, "heads-divide", "the %d parts of `%s` do not split over "
                   "%c = %" PRId64, parts, o->name, a, size);
        diag_hint("%c can be %s", a, near_divisor(parts, size));
    }
}

/* What is worked on part by part, and its other side, may not be cut in another way: only
 * copies spread along such links (BY_PARTS). */
static void check_cuts(Part *q, const Op *o)
{
    const Plan *p = q->p;
    char home = q->spot[o->out[0]].home, a = side_of(p, home);
    int64_t size = axes_size(p, axis_of(home), 1);
    bool by_parts = (o->kind == OP_SPLIT || o->kind == OP_CONCAT) && o->parts > 1;
    TensorId cut = NONE;
    for (int j = 0; j < o->nin + o->nout; j++) {
        TensorId t = j < o->nin ? o->in[j] : o->out[j - o->nin];
        const Tensor *x = &p->tensors.at[t];
        if (x->kind != T_ROWS || x->width <= 1)
            continue;
        by_parts |= is_row_op(o) && p->tensors.at[o->out[0]].width > 1 &&
                    x->width != p->tensors.at[o->out[0]].width;
        cut = q->spot[t].cols.n > 1 ? t : cut;
    }
    if (!by_parts || cut == NONE || size == 1 || o->phase != PHASE_FORWARD)
        return;
    diag_error(o->loc, "heads-divide", "`%s`, which `%s` takes part by part, is cut into pieces "
               "that split over %c = %" PRId64 " one by one", p->tensors.at[cut].name, o->name, a,
               size);
    diag_hint("cut it by the same parts everywhere, with heads=, or use %c = 1", a);
}

static void check_attention(Part *q, const Op *o)
{
    int64_t y = q->p->is.y;
    if (o->phase != PHASE_FORWARD || y == 1)
        return;
    for (int j = 0; j < 3; j++)
        if (q->spot[o->in[j]].cols.n > 1) {
            diag_error(o->loc, "heads-divide", "%s of `%s` is joined from parts that split over "
                       "y = %" PRId64 " one by one, not by head", j == 0 ? "q" : j == 1 ? "k" : "v",
                       o->name, y);
            diag_hint("join them inside each head with concat(.., heads=), or use y = 1");
            return;
        }
}

void place_columns(Part *q)
{
    Plan *p = q->p;
    Cuts c = { .q = q, .n = p->tensors.n + 2 * p->params.n };
    c.spot = q->spot;       // has room for the parameters' rows and columns
    c.width = NEWN(int64_t, c.n);
    for (int t = 0; t < c.n; t++) {
        if (t < p->tensors.n)
            c.width[t] = p->tensors.at[t].width;
        else {
            const Param *w = &p->params.at[(t - p->tensors.n) / 2];
            c.width[t] = (t - p->tensors.n) % 2 ? w->width : w->rows;
        }
        q->spot[t].cols = (Columns){ 1, NEWN(Segment, 1) };
        q->spot[t].cols.seg[0] = (Segment){ 0, c.width[t], 1 };
        q->spot[t].pad = 0;
    }
    for (int w = 0; w < p->params.n; w++)
        if (p->params.at[w].kind == PARAM_TABLE)
            q->spot[param_rows(&c, w)].pad =
                (p->params.at[w].rows + p->is.y - 1) / p->is.y * p->is.y;
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        link_op(&c, o);
        if (o->kind == OP_ATTN && kv_rep(p, o) > 1)
            mark_rep(&q->spot[o->in[1]], 0, INT64_MAX, kv_rep(p, o));
        if (o->kind == OP_CE)
            q->spot[o->in[0]].pad = (c.width[o->in[0]] + p->is.y - 1) / p->is.y * p->is.y;
    }
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < c.links.n; i++)
            again |= follow(&c, &c.links.at[i]);
        for (int i = c.links.n - 1; again && i >= 0; i--)
            follow(&c, &c.links.at[i]);
    }
    for (int t = 0; t < c.n; t++)
        if (q->spot[t].pad > c.width[t] && q->spot[t].cols.n == 1 &&
            (t >= p->tensors.n || c.width[t] > 1))          // a number for each row is not split
            q->spot[t].cols.seg[0].width = q->spot[t].pad;
    int before = diag_errors();
    for (int i = 0; i < p->nforward && diag_errors() < before + 8; i++) {
        const Op *o = &p->ops.at[i];
        int said = diag_errors();
        check_parts(q, o);
        if (said == diag_errors())
            check_cuts(q, o);
        if (o->kind == OP_ATTN)
            check_attention(q, o);
        for (int j = 0; j < o->nout; j++)
            if (is_rows(p, o->out[j]) && !is_row_op(o))
                check_width(q, o->out[j]);
        if (o->kind == OP_LINEAR) {
            check_width(q, o->in[0]);
            check_copied(q, o);
        }
    }
}

/* ---- the loss's region -------------------------------------------------------
 * What lies between the last linear and the loss, and its gradient, is done in
 * chunks of tokens, so that logits never exist in full. That needs: nothing
 * else reads what is inside, and nothing but vectors enters it.
 */
static bool region_ok(const Part *q, const bool *inside, TensorId t, OpId *head)
{
    const Plan *p = q->p;
    OpId d = p->tensors.at[t].def;
    if (d == NONE)
        return false;
    const Op *o = &p->ops.at[d];
    if (o->kind == OP_LINEAR) {
        if (*head != NONE && *head != d)
            return false;
        *head = d;
        return true;
    }
    if (!is_row_op(o) || o->kind == OP_COLSUM || inside == NULL)
        return false;
    if (op_class[o->kind] == C_RED && p->is.y > 1)
        return false;
    for (int j = 0; j < o->nin; j++)
        if (p->tensors.at[o->in[j]].kind == T_ROWS && !region_ok(q, inside, o->in[j], head))
            return false;
    return true;
}

/* Marks what is computed from the head's product, forward and backward. */
static bool region_mark(Part *q, OpId head)
{
    Plan *p = q->p;
    bool *in = NEWN(bool, p->tensors.n);
    in[p->ops.at[head].out[0]] = true;
    q->info[head].region = true;
    for (int i = head + 1; i < p->ops.n; i++) {
        Op *o = &p->ops.at[i];
        bool reads = false, all = true;
        for (int j = 0; j < o->nin; j++)
            if (is_rows(p, o->in[j])) {
                reads |= in[o->in[j]];
                all &= in[o->in[j]];
            }
        if (!reads)
            continue;
        bool ends = o->of == head && (o->kind == OP_LINEAR_DX || o->kind == OP_LINEAR_DW);
        if (!ends && !(is_row_op(o) && all) && o->kind != OP_CE && o->kind != OP_CE_DX)
            return false;
        q->info[i].region = true;
        for (int j = 0; j < o->nout && !ends; j++)
            in[o->out[j]] = true;
    }
    return true;
}

void place_region(Part *q)
{
    Plan *p = q->p;
    q->head = q->ce = NONE;
    for (int i = 0; i < p->nforward; i++)
        if (p->ops.at[i].kind == OP_CE)
            q->ce = i;
    if (q->ce == NONE || p->is.summa)
        return;
    OpId head = NONE;
    bool dummy = true;
    if (!region_ok(q, &dummy, p->ops.at[q->ce].in[0], &head))
        return;
    if (region_mark(q, head))
        q->head = head;
    else
        for (int i = 0; i < p->ops.n; i++)
            q->info[i].region = false;
}

/* ---- partial sums -------------------------------------------------------------
 * In a tree of additions, products (or look-ups) that are each partial over
 * the same axis are summed before one reduce-scatter: x + (a W + b) + (c V + d)
 * becomes PSUM(a W, c V) + x + b + d. In summa(q) only look-ups leave a sum pending.
 */
typedef VEC(TensorId) Leaves;

static bool is_add(const Part *q, TensorId t, int64_t width)
{
    const Plan *p = q->p;
    OpId d = p->tensors.at[t].def;
    return d != NONE && p->ops.at[d].kind == OP_ADD && !q->info[d].region &&
           p->tensors.at[t].width == width && p->tensors.at[t].kind == T_ROWS;
}

/* An addition that is the only reader of another one, in the same block. */
static bool is_inner(const Part *q, TensorId t, OpId add)
{
    const Plan *p = q->p;
    return is_add(q, t, p->tensors.at[p->ops.at[add].out[0]].width) && q->spot[t].nuses == 1 &&
           q->block[p->tensors.at[t].def] == q->block[add];
}

static void leaves_of(const Part *q, OpId add, Leaves *leaf, int depth)
{
    const Plan *p = q->p;
    const Op *o = &p->ops.at[add];
    for (int j = 0; j < o->nin; j++) {
        TensorId t = o->in[j];
        if (is_inner(q, t, add) && depth < 64)
            leaves_of(q, p->tensors.at[t].def, leaf, depth + 1);
        else
            vec_add(leaf, t);
    }
}

static bool is_partial_leaf(const Part *q, TensorId t, char home, int64_t width, int block)
{
    const Plan *p = q->p;
    OpId d = p->tensors.at[t].def;
    if (d == NONE || q->spot[t].nuses != 1 || q->spot[t].home != home ||
        p->tensors.at[t].width != width || q->info[d].region || q->block[d] != block)
        return false;
    OpKind k = p->ops.at[d].kind;
    return k == OP_EMBED || (!p->is.summa && (k == OP_LINEAR || k == OP_LINEAR_DX));
}

typedef VEC(Op) Ops;

static TensorId emit_psum(Part *q, const Op *root, const Leaves *terms, Ops *out)
{
    Plan *p = q->p;
    Op s = *root;
    s.kind = OP_PSUM;
    s.nin = terms->n;
    s.in = NEWN(TensorId, terms->n);
    memcpy(s.in, terms->at, sizeof *s.in * (size_t)terms->n);
    s.out = NEWN(TensorId, 1);
    s.out[0] = tensor_add(p, T_ROWS, str_fmt("%s.sum", root->name), root->loc,
                          p->tensors.at[root->out[0]].width);
    vec_add(out, s);
    return s.out[0];
}

static void emit_chain(Part *q, const Op *root, TensorId sum, const Leaves *rest, Ops *out)
{
    Plan *p = q->p;
    TensorId acc = sum;
    for (int i = 0; i < rest->n; i++) {
        Op a = *root;
        a.in = NEWN(TensorId, 2);
        a.in[0] = acc;
        a.in[1] = rest->at[i];
        a.nin = 2;
        a.out = NEWN(TensorId, 1);
        a.out[0] = i + 1 == rest->n ? root->out[0]
            : tensor_add(p, T_ROWS, root->name, root->loc, p->tensors.at[root->out[0]].width);
        acc = a.out[0];
        vec_add(out, a);
    }
}

/* A sum of products alone: its tensor is the root's own. */
static void emit_bare(const Op *root, const Leaves *terms, Ops *out)
{
    Op s = *root;
    s.kind = OP_PSUM;
    s.nin = terms->n;
    s.in = NEWN(TensorId, terms->n);
    memcpy(s.in, terms->at, sizeof *s.in * (size_t)terms->n);
    vec_add(out, s);
}

static bool psum_at(Part *q, OpId root, Ops *out)
{
    Plan *p = q->p;
    Op o = p->ops.at[root];
    Leaves leaf = { 0 }, terms = { 0 }, rest = { 0 };
    int64_t w = p->tensors.at[o.out[0]].width;
    leaves_of(q, root, &leaf, 0);
    for (int i = 0; i < leaf.n; i++)
        if (is_partial_leaf(q, leaf.at[i], q->spot[o.out[0]].home, w,
                            q->block[root]))
            vec_add(&terms, leaf.at[i]);
        else
            vec_add(&rest, leaf.at[i]);
    if (terms.n < 2)
        return false;
    if (rest.n == 0)
        emit_bare(&o, &terms, out);
    else
        emit_chain(q, &o, emit_psum(q, &o, &terms, out), &rest, out);
    return true;
}

/* The additions inside a root; root[i]: which one operator i went into. */
static void mark_inner(Part *q, OpId add, OpId into, OpId *root, int depth)
{
    Plan *p = q->p;
    const Op *o = &p->ops.at[add];
    for (int j = 0; j < o->nin; j++)
        if (is_inner(q, o->in[j], add) && depth < 64) {
            root[p->tensors.at[o->in[j]].def] = into;
            mark_inner(q, p->tensors.at[o->in[j]].def, into, root, depth + 1);
        }
}

static bool is_root(const Part *q, OpId i)
{
    const Plan *p = q->p;
    const Op *o = &p->ops.at[i];
    if (o->kind != OP_ADD || q->info[i].region)
        return false;
    const Spot *s = &q->spot[o->out[0]];
    return !(s->nuses == 1 && p->ops.at[s->use[0]].kind == OP_ADD &&
             !q->info[s->use[0]].region && q->block[s->use[0]] == q->block[i] &&
             p->tensors.at[p->ops.at[s->use[0]].out[0]].width ==
                 p->tensors.at[o->out[0]].width);
}

void place_psums(Part *q)
{
    Plan *p = q->p;
    int n = p->ops.n, ninputs = 0;
    OpId *root = SCRATCHN(OpId, n); // of what is no more
    for (int i = 0; i < n; i++)
        root[i] = NONE;
    Ops *at = SCRATCHN(Ops, n);
    for (int i = 0; i < n; i++)
        if (is_root(q, i) && psum_at(q, i, &at[i])) {
            root[i] = i;
            mark_inner(q, i, i, root, 0);
            ninputs++;
        }
    if (ninputs == 0)
        return;
    int *new_id = SCRATCHN(int, n), nforward = 0, more = 0;
    Ops all = { 0 };
    for (int i = 0; i < n; i++)
        more += at[i].n;
    vec_reserve(&all, n + more);
    for (int i = 0; i < n; i++) {
        if (i == p->nforward)
            nforward = all.n;
        for (int j = 0; j < at[i].n; j++)
            vec_add(&all, at[i].at[j]);
        if (root[i] == NONE)
            vec_add(&all, p->ops.at[i]);
        new_id[i] = all.n - 1;      // of a root: its last addition
    }
    for (int i = 0; i < n; i++)
        if (root[i] != NONE)
            new_id[i] = new_id[root[i]];
    p->nforward = p->nforward == n ? all.n : nforward;
    for (int i = 0; i < all.n; i++) {
        if (all.at[i].of != NONE)
            all.at[i].of = new_id[all.at[i].of];
        for (int j = 0; j < all.at[i].nout; j++)
            if (p->tensors.at[all.at[i].out[j]].kind != T_GRAD)
                p->tensors.at[all.at[i].out[j]].def = i;
    }
    p->ops.at = all.at;
    p->ops.n = all.n;
    p->ops.cap = all.cap;
}
