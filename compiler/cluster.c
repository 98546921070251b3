/*
 * cluster.c - which elementwise operators become one kernel.
 *
 * Every tensor has a level: the number of products, collectives and other
 * non-elementwise steps on the longest way to it. Row operators of one level
 * that touch are one cluster, so a cluster never waits for itself. A reduction
 * over a width that is split ends its cluster: its result is one level up.
 *
 * A row result that another cluster reads is either stored or computed again there.
 * TUNING: it is computed again when it depends on at most one full-width tensor
 * in memory (bias + GELU in the backward pass, normalised rows): that costs no
 * extra reads. Backward operators that need no gradient float: they are
 * computed where they are read.
 *
 * A kernel takes RT_MAX_ARGS tensors: a cluster that would touch too many ends, and
 * the operator is one level up. (What is computed again may add some.)
 */
#include "partition.h"

enum {
    MAX_INLINE = 48,            // TUNING: operators computed again in one place, at most
    MAX_ENDS = 32,              // TUNING: tensors in memory that a cluster touches, about
    MAX_FLOAT = 12              // TUNING: those that a floating operator reads
};

int cluster_of(Part *q, OpId op)
{
    int c = q->info[op].cluster;
    while (c != NONE && q->clusters.at[c].joined != NONE)
        c = q->clusters.at[c].joined;
    return c;
}

static bool is_rows(const Part *q, TensorId t) { return q->p->tensors.at[t].kind == T_ROWS; }

/*
 * The width and parts that an operator asks of its program; parts 0: any. An
 * operator of width w that is `narrow` may also stand in a program of parts = w
 * and a larger width, as one number per part.
 */
typedef struct { int64_t width; int parts; bool narrow; } Shape;

static Shape shape_of(const Part *q, const Op *o)
{
    const Plan *p = q->p;
    if (op_class[o->kind] == C_RED)
        return (Shape){ p->tensors.at[o->in[0]].width, o->parts > 0 ? o->parts : 1, false };
    if (o->kind == OP_COLSUM)
        return (Shape){ p->tensors.at[o->in[0]].width, 0, false };
    Shape s = { p->tensors.at[o->out[0]].width, 0, true };
    if (o->kind == OP_COLUMN || o->kind == OP_DROPOUT)
        s.narrow = false;
    if (o->kind == OP_COLUMN && o->parts > 0)
        s.parts = o->parts;
    for (int j = 0; j < o->nin; j++)
        if (p->tensors.at[o->in[j]].kind == T_VECTOR)
            s.narrow = false;
    return s;
}

/* The shape that serves both; false: none does. */
static bool unify(Shape a, Shape b, Shape *out)
{
    if (a.width < b.width) {
        Shape t = a;
        a = b;
        b = t;
    }
    *out = a;
    if (a.width == b.width) {
        out->narrow = a.narrow && b.narrow;
        out->parts = a.parts ? a.parts : b.parts;
        return a.parts == 0 || b.parts == 0 || a.parts == b.parts;
    }
    out->parts = (int)b.width;
    return b.narrow && b.parts == 0 && a.width % b.width == 0 &&
           (a.parts == 0 || a.parts == b.width);
}

/* ---- tensors in memory that a cluster touches ----------------------------------------- */

/* Adds t; false: there are more than `most`. */
static bool end_add(Ends *e, TensorId t, int most)
{
    for (int i = 0; i < e->n; i++)
        if (e->at[i] == t)
            return true;
    vec_add(e, t);
    return e->n <= most;
}

/* Adds what o reads that is not made in the cluster (NONE: in none); a floating operand is
 * computed in place, its operands are read. `steps` are left. */
static bool reads_add(Part *q, const Op *o, int cluster, Ends *e, int most, int *steps)
{
    const Plan *p = q->p;
    if (--*steps < 0)
        return false;
    for (int j = 0; j < o->nin; j++) {
        const Tensor *t = &p->tensors.at[o->in[j]];
        if (t->kind == T_NUMBER)
            continue;
        if (t->def != NONE && q->info[t->def].floating) {
            if (!reads_add(q, &p->ops.at[t->def], cluster, e, most, steps))
                return false;
        } else if (t->def == NONE || cluster == NONE || cluster_of(q, t->def) != cluster) {
            if (!end_add(e, o->in[j], most))
                return false;
        }
    }
    return true;
}

/* What o reads, and what it surely writes: gradients of vectors, operands of products. */
static bool ends_add(Part *q, const Op *o, int cluster, Ends *e, int most)
{
    TensorId t = o->out[0];
    bool out = o->kind == OP_COLSUM;
    int steps = 8 * MAX_ENDS;
    for (int k = 0; k < q->spot[t].nuses && !out; k++)
        out = !is_row_op(&q->p->ops.at[q->spot[t].use[k]]);
    return reads_add(q, o, cluster, e, most, &steps) && (!out || end_add(e, t, most));
}

static bool ends_fit(const RowGroup *a, const RowGroup *b)
{
    int n = a->ends.n;
    for (int i = 0; i < b->ends.n; i++) {
        bool known = false;
        for (int k = 0; k < a->ends.n && !known; k++)
            known = a->ends.at[k] == b->ends.at[i];
        n += !known;
    }
    return n <= MAX_ENDS;
}

static Shape group_shape(const RowGroup *g)
{
    return (Shape){ g->width, g->parts, g->narrow };
}

static void reshape(RowGroup *g, Shape s)
{
    g->width = s.width;
    g->parts = s.parts;
    g->narrow = s.narrow;
}

/* Reductions whose sum needs other ranks: the result is a level up. They are done in
 * the layout of their result, whatever their operand comes in. */
static bool is_cut(const Part *q, const Op *o)
{
    if (op_class[o->kind] != C_RED || o->parts > 1)
        return false;
    const Plan *p = q->p;
    Axes axis = axis_of(q->spot[o->out[0]].home);
    return axes_size(p, axis, 1) > 1 &&
           local_width(p, q->spot[o->in[0]].cols, axis) != p->tensors.at[o->in[0]].width;
}

/* A producer that this operator could share a kernel with. */
static bool joinable(const Part *q, OpId d, char home, const Op *o)
{
    const Plan *p = q->p;
    return is_row_op(&p->ops.at[d]) && !q->info[d].floating && !is_cut(q, &p->ops.at[d]) &&
           q->spot[p->ops.at[d].out[0]].home == home &&
           q->info[d].region == q->info[o - p->ops.at].region &&
           q->block[d] == q->block[o - p->ops.at] &&
           p->ops.at[d].phase == o->phase;
}

static char op_home_of(const Part *q, const Op *o)
{
    if (o->kind != OP_COLSUM)
        return q->spot[o->out[0]].home;
    const Op *f = o->of != NONE ? &q->p->ops.at[o->of] : NULL;     // where the vector was used
    return f && is_row_op(f) ? q->spot[f->out[0]].home : q->spot[o->in[0]].home;
}

static void join(Part *q, int into, int from)
{
    RowGroup *a = &q->clusters.at[into], *b = &q->clusters.at[from];
    Shape s;
    unify(group_shape(a), group_shape(b), &s);
    reshape(a, s);
    b->joined = into;
    for (int i = 0; i < b->ops.n; i++)
        vec_add(&a->ops, b->ops.at[i]);
    for (int i = 0; i < b->ends.n; i++)
        end_add(&a->ends, b->ends.at[i], MAX_ENDS);
}

static bool groups_fit(const RowGroup *a, const RowGroup *b)
{
    Shape s;
    return a->home == b->home && a->phase == b->phase && a->region == b->region &&
           a->block == b->block &&
           a->level == b->level && unify(group_shape(a), group_shape(b), &s) && ends_fit(a, b);
}

/* Floating: a backward row operator none of whose operands is a gradient. */
static bool floats(Part *q, const Op *o)
{
    const Plan *p = q->p;
    if (o->phase != PHASE_BACKWARD || op_class[o->kind] != C_ROW)
        return false;
    for (int j = 0; j < o->nin; j++) {
        OpId d = p->tensors.at[o->in[j]].def;
        if (d != NONE && p->ops.at[d].phase == PHASE_BACKWARD && !q->info[d].floating)
            return false;
    }
    Ends e = { 0 };
    int steps = 8 * MAX_ENDS;
    return reads_add(q, o, NONE, &e, MAX_FLOAT, &steps);
}

static void place_op(Part *q, OpId i, int base)
{
    Plan *p = q->p;
    const Op *o = &p->ops.at[i];
    char home = op_home_of(q, o);
    OpInfo *f = &q->info[i];
    f->level = base;
    for (int j = 0; j < o->nin; j++) {
        OpId d = p->tensors.at[o->in[j]].def;
        if (d == NONE)
            continue;
        int l = q->info[d].level + (joinable(q, d, home, o) ? 0 : 1);
        f->level = l > f->level ? l : f->level;
    }
    Shape s = shape_of(q, o);
    int mine = NONE;
    bool clash = false;
    for (int j = 0; j < o->nin && !clash; j++) {
        OpId d = p->tensors.at[o->in[j]].def;
        if (d == NONE || !joinable(q, d, home, o) || q->info[d].level != f->level)
            continue;
        int c = cluster_of(q, d);
        if (c == mine)
            continue;
        Shape both;
        if (!unify(group_shape(&q->clusters.at[c]), s, &both) ||
            (both.width > s.width && !s.narrow) ||
            (mine != NONE && !groups_fit(&q->clusters.at[mine], &q->clusters.at[c]))) {
            clash = true;
            break;
        }
        if (mine == NONE)
            mine = c;
        else
            join(q, mine, c);
        unify(group_shape(&q->clusters.at[mine]), s, &both);
        reshape(&q->clusters.at[mine], both);
    }
    Ends ends = { 0 };
    if (mine != NONE && !clash) {
        Ends *e = &q->clusters.at[mine].ends;
        for (int k = 0; k < e->n; k++)
            vec_add(&ends, e->at[k]);
        clash = !ends_add(q, o, mine, &ends, MAX_ENDS);
    }
    if (clash) {
        f->level++;
        mine = NONE;
    }
    if (mine == NONE) {
        ends.n = 0;
        ends_add(q, o, NONE, &ends, MAX_ENDS);
        RowGroup g = { .home = home, .phase = o->phase, .region = f->region,
                       .block = q->block[i], .width = s.width,
                       .parts = s.parts, .narrow = s.narrow, .level = f->level,
                       .joined = NONE };
        mine = q->clusters.n;
        vec_add(&q->clusters, g);
    }
    f->cluster = mine;
    q->clusters.at[mine].ends = ends;
    vec_add(&q->clusters.at[mine].ops, i);
}

/* Clusters of one level that read the same full-width tensor read it once. */
static void join_readers(Part *q)
{
    Plan *p = q->p;
    for (int t = 0; t < p->tensors.n; t++) {
        const Spot *s = &q->spot[t];
        if (!is_rows(q, t))
            continue;
        for (int j = 1; j < s->nuses; j++)
            for (int k = 0; k < j; k++) {
                int a = cluster_of(q, s->use[k]), b = cluster_of(q, s->use[j]);
                if (a == NONE || b == NONE || a == b)
                    continue;
                const RowGroup *ga = &q->clusters.at[a], *gb = &q->clusters.at[b];
                if (ga->width == p->tensors.at[t].width && ga->width == gb->width &&
                    groups_fit(ga, gb))
                    join(q, a, b);
            }
    }
}

/* ---- what is stored ------------------------------------------------------------ */

typedef struct { int n; TensorId leaf[2]; int ops; } Leaves;     // n = 2: two or more

static void leaf_add(Leaves *a, TensorId t)
{
    for (int i = 0; i < a->n && i < 2; i++)
        if (a->leaf[i] == t)
            return;
    if (a->n < 2)
        a->leaf[a->n++] = t;
}

static void decide_stored(Part *q)
{
    Plan *p = q->p;
    Leaves *leaves = NEWN(Leaves, p->tensors.n);
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind == OP_COLSUM)
            continue;
        if (!is_row_op(o)) {
            for (int j = 0; j < o->nout; j++)
                leaf_add(&leaves[o->out[j]], o->out[j]);
            continue;
        }
        TensorId t = o->out[0];
        Spot *s = &q->spot[t];
        bool other_kind = false, crosses = false, converts = false;
        for (int k = 0; k < s->nuses; k++) {
            OpId u = s->use[k];
            if (!is_row_op(&p->ops.at[u])) {
                other_kind = true;
                continue;
            }
            converts |= op_home_of(q, &p->ops.at[u]) != s->home;
            crosses |= q->info[u].floating || cluster_of(q, u) != cluster_of(q, i);
        }
        Leaves *l = &leaves[t];
        l->ops = 1;
        if (op_class[o->kind] == C_RED) {
            s->stored = other_kind || crosses || converts || s->crosses || is_cut(q, o);
            continue;
        }
        for (int j = 0; j < o->nin; j++) {
            TensorId a = o->in[j];
            if (!is_rows(q, a))
                continue;
            if (p->tensors.at[a].def == NONE || q->spot[a].stored ||
                !is_row_op(&p->ops.at[p->tensors.at[a].def])) {
                if (p->tensors.at[a].width == p->tensors.at[t].width)
                    leaf_add(l, a);
                continue;
            }
            l->ops = l->ops + leaves[a].ops <= MAX_INLINE ? l->ops + leaves[a].ops : MAX_INLINE + 1;
            for (int k = 0; k < leaves[a].n; k++)
                leaf_add(l, leaves[a].leaf[k]);
        }
        bool again = l->ops <= MAX_INLINE && (l->n <= 1 || q->info[i].floating);
        s->stored = other_kind || converts || s->crosses || (crosses && !again);
        if (s->stored && q->info[i].floating) {     // needs a kernel after all
            q->info[i].floating = false;
            place_op(q, i, q->info[i].level);
        }
        if (s->stored)
            *l = (Leaves){ 1, { t, NONE }, 1 };
    }
}

/* What is computed again elsewhere takes its operands along: reductions among
 * them are stored, so that no row is reduced twice. */
static void store_reductions(Part *q)
{
    Plan *p = q->p;
    bool *away = NEWN(bool, p->tensors.n);
    for (int i = p->ops.n - 1; i >= 0; i--) {
        const Op *o = &p->ops.at[i];
        TensorId t = o->nout ? o->out[0] : NONE;
        if (op_class[o->kind] != C_ROW || q->spot[t].stored)
            continue;
        for (int k = 0; k < q->spot[t].nuses && !away[t]; k++) {
            OpId u = q->spot[t].use[k];
            away[t] = q->info[u].floating || cluster_of(q, u) != cluster_of(q, i);
        }
        for (int j = 0; j < o->nin && (away[t] || q->info[i].floating); j++) {
            OpId d = p->tensors.at[o->in[j]].def;
            if (d == NONE || !is_row_op(&p->ops.at[d]))
                continue;
            if (op_class[p->ops.at[d].kind] == C_RED)
                q->spot[o->in[j]].stored = true;
            else
                away[o->in[j]] = true;
        }
    }
}

void cluster_ops(Part *q)
{
    Plan *p = q->p;
    int backward = 0;
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        OpInfo *f = &q->info[i];
        f->cluster = NONE;
        int base = o->phase == PHASE_BACKWARD ? backward : 0;
        if (is_row_op(o) && floats(q, o)) {
            f->floating = true;
            f->level = base;
        } else if (is_row_op(o)) {
            place_op(q, i, base);
        } else {
            f->level = base;
            for (int j = 0; j < o->nin; j++) {
                OpId d = p->tensors.at[o->in[j]].def;
                if (d != NONE && q->info[d].level + 1 > f->level)
                    f->level = q->info[d].level + 1;
            }
        }
        if (i < p->nforward && f->level >= backward)
            backward = f->level + 1;
    }
    join_readers(q);
    decide_stored(q);
    store_reductions(q);
}
