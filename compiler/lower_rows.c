/*
 * lower_rows.c - a cluster of row operators becomes one row program.
 *
 * Results that are stored, reductions and gradients of vectors are its roots;
 * expressions are built from the roots down to what lies in memory. Results of
 * other clusters that were not stored are built again here.
 *
 * Where the width is split over ranks, reductions of whole rows end the program:
 * each rank writes its own statistics, one all-gather serves all of them, and a
 * small merge gives every rank the same whole ones. (Sums, maxima and (mean, M2)
 * travel together; merging in one fixed order gives all ranks the same bits.)
 */
#include "partition.h"

typedef enum { FREE, LINEAR, OTHER } Degree;    // in the operands that are partial

typedef struct {
    Part *q;
    RowGroup *g;
    int id;
    OpId op;                    // for names and places
    int64_t width;              // local
    int parts;                  // local
    Axes axis;                  // that splits the columns, canonical
    VEC(RowArg) args;
    VEC(RowNode) nodes;
    VEC(Degree) degree;
    VEC(uint32_t) salts;
    int *node;                  // per tensor, -1 none
    VEC(TensorId) touched;
    TensorId nonlinear;         // a partial operand that meets a non-linear operator
    VEC(TensorId) partial;      // operands with a pending sum
    int rep;
    RowProg prog;
} Build;

static int node_add(Build *b, RowNode n, Degree d)
{
    vec_add(&b->nodes, n);
    vec_add(&b->degree, d);
    return b->nodes.n - 1;
}

static int arg_add(Build *b, RowArg a)
{
    for (int i = 0; i < b->args.n; i++) {
        RowArg *o = &b->args.at[i];
        if (!a.is_out && !o->is_out && o->value == a.value && o->per == a.per &&
            o->is_vector == a.is_vector)
            return i;
    }
    vec_add(&b->args, a);
    return b->args.n - 1;
}

static int number(Build *b, double c)
{
    return node_add(b, (RowNode){ .kind = R_NUMBER, .c = c, .part = true }, FREE);
}

static int op2(Build *b, OpKind op, int x, int y, bool part, Degree d)
{
    return node_add(b, (RowNode){ .kind = R_OP, .op = op, .a = x, .b = y, .part = part }, d);
}

/* A node with one number per column. */
static int full(Build *b, int n)
{
    if (!b->nodes.at[n].part)
        return n;
    return op2(b, OP_ADD, n, number(b, 0), false, b->degree.at[n]);
}

/* ---- operands ------------------------------------------------------------------- */

static UnitId vector_unit(Build *b, ParamId w, int64_t *start, int64_t *length)
{
    ParamUnit *u = &b->q->p->units.at[b->q->param_unit[w]];
    *start = -1;
    *length = 0;
    for (int i = 0; i < u->npieces; i++)
        if (u->piece[i].param == w) {
            Columns one = { 1, &u->piece[i].cols };
            if (*start < 0)
                *start = u->piece[i].local_start;
            *length += local_width(b->q->p, one, u->col_axis);
        }
    return b->q->param_unit[w];
}

static int load_vector(Build *b, TensorId t)
{
    Part *q = b->q;
    int64_t start, length;
    ParamId w = q->p->tensors.at[t].param;
    UnitId u = vector_unit(b, w, &start, &length);
    if (length != b->width && b->width % length)
        bug("vector %s of %" PRId64 " in a program of %" PRId64 " columns",
            q->p->params.at[w].name, length, b->width);
    ValueId v = value_view(q, weight(q, u), 0, 1, start, length);
    RowArg a = { .value = v, .is_vector = true, .length = length, .stride = 1, .per = 1 };
    return node_add(b, (RowNode){ .kind = R_LOADVEC, .arg = arg_add(b, a) }, FREE);
}

static int load_rows(Build *b, TensorId t)
{
    Part *q = b->q;
    Plan *p = q->p;
    ValueId v = value_in(q, t, b->g->home);
    const Value *x = &p->values.at[v];
    RowArg a = { .value = v, .ld = x->ld, .stride = 1, .per = 1, .length = x->cols };
    RowNode n = { .kind = R_LOAD };
    if (p->tensors.at[t].width != b->g->width) {
        if (p->tensors.at[t].width == (b->g->parts ? b->g->parts : 1)) {
            n.kind = R_LOADPART;
            n.part = true;
        } else {
            a.per = b->width / x->cols;
        }
    }
    bool partial = x->layout.partial != 0;
    if (partial) {
        vec_add(&b->partial, t);
        b->rep = x->layout.rep;
    }
    n.arg = arg_add(b, a);
    return node_add(b, n, partial ? LINEAR : FREE);
}

/* ---- operators ------------------------------------------------------------------- */

/* A reduction of rows that are in pieces. (Copies of one kv head are whole rows.) */
static bool is_cut(Build *b, const Op *o)
{
    return op_class[o->kind] == C_RED && o->parts <= 1 && b->axis != 0 &&
           b->width != b->g->width;
}

static bool built_here(Build *b, TensorId t)
{
    const Plan *p = b->q->p;
    OpId d = p->tensors.at[t].def;
    if (d == NONE || !is_row_op(&p->ops.at[d]))
        return false;
    if (b->q->info[d].floating)
        return true;
    if (cluster_of(b->q, d) == b->id)
        return !is_cut(b, &p->ops.at[d]);
    return !b->q->spot[t].stored;
}

static int build(Build *b, TensorId t);

static Degree degree_of(Build *b, const Op *o, Degree x, Degree y)
{
    Degree d = OTHER;
    if (x == FREE && y == FREE)
        return FREE;
    switch (o->kind) {
    case OP_ADD: case OP_SUB:
        d = x == LINEAR && y == LINEAR ? LINEAR : OTHER;
        break;
    case OP_MUL:
        d = x == FREE || y == FREE ? (x > y ? x : y) : OTHER;
        break;
    case OP_DIV:
        d = y == FREE ? x : OTHER;
        break;
    case OP_NEG: case OP_DROPOUT: case OP_SPREAD: case OP_SUM:
        d = x;
        break;
    default:
        break;
    }
    if (d == OTHER && b->nonlinear == NONE)
        b->nonlinear = b->partial.at[0];
    return d;
}

static int build_reduction(Build *b, const Op *o)
{
    int a = full(b, build(b, o->in[0]));
    Degree d = degree_of(b, o, b->degree.at[a], FREE);
    int64_t n = b->g->width / (b->g->parts ? b->g->parts : 1);
    int m, m2;
    switch (o->kind) {
    case OP_SUM:
        return node_add(b, (RowNode){ .kind = R_SUM, .a = a, .part = true }, d);
    case OP_ROWMAX:
        return node_add(b, (RowNode){ .kind = R_MAX, .a = a, .part = true }, d);
    case OP_FIRST:
        b->prog.needs_colmap = true;
        m = build(b, o->in[1]);
        return node_add(b, (RowNode){ .kind = R_FIRST, .a = a, .b = m, .part = true }, d);
    default:
        m = node_add(b, (RowNode){ .kind = R_MEAN, .a = a, .part = true }, d);
        m2 = node_add(b, (RowNode){ .kind = R_M2, .a = a, .b = m, .part = true }, d);
        if (is_cut(b, o))
            return m2;
        return op2(b, OP_MUL, m2, number(b, 1.0 / (double)n), true, d);
    }
}

/* Which of the program's salts it is; the operators of other layers have others. */
static int salt_of(Build *b, uint32_t salt)
{
    int i = 0;
    while (i < b->salts.n && b->salts.at[i] != salt)
        i++;
    if (i == b->salts.n)
        vec_add(&b->salts, salt);
    return i;
}

static int build_op(Build *b, const Op *o)
{
    if (op_class[o->kind] == C_RED)
        return build_reduction(b, o);
    if (o->kind == OP_COLUMN) {
        b->prog.needs_colmap = true;
        return node_add(b, (RowNode){ .kind = R_OP, .op = OP_COLUMN }, FREE);
    }
    int x = build(b, o->in[0]);
    if (o->kind == OP_SPREAD)
        return full(b, x);
    int y = o->nin > 1 ? build(b, o->in[1]) : -1;
    if (o->kind == OP_DROPOUT) {
        b->prog.needs_colmap = b->prog.needs_rowmap = true;
        x = full(b, x);
    }
    Degree d = degree_of(b, o, b->degree.at[x], y >= 0 ? b->degree.at[y] : FREE);
    RowNode n = { .kind = R_OP, .op = o->kind, .a = x, .b = y, .c = o->c };
    if (o->kind == OP_DROPOUT)
        n.salt = salt_of(b, o->salt);
    n.part = b->nodes.at[x].part && (y < 0 || b->nodes.at[y].part);
    return node_add(b, n, d);
}

static int build_one(Build *b, TensorId t)
{
    const Plan *p = b->q->p;
    const Tensor *x = &p->tensors.at[t];
    int n;
    if (x->kind == T_NUMBER)
        n = number(b, x->number);
    else if (x->kind == T_VECTOR)
        n = load_vector(b, t);
    else if (built_here(b, t)) {
        Op o = p->ops.at[x->def];
        n = build_op(b, &o);
    } else
        n = load_rows(b, t);
    b->node[t] = n;
    vec_add(&b->touched, t);
    return n;
}

/* The next operand that build_op would build; NONE: all are there. */
static TensorId unbuilt(const Build *b, const Op *o)
{
    bool one = op_class[o->kind] == C_RED || o->kind == OP_SPREAD || o->nin < 2;
    int n = o->kind == OP_COLUMN ? 0 : one ? 1 : 2;
    for (int i = 0; i < n; i++)
        if (b->node[o->in[i]] < 0)
            return o->in[i];
    return NONE;
}

/* Operands first, from a list of its own: chains may be many thousand operators long. */
static int build(Build *b, TensorId t)
{
    const Plan *p = b->q->p;
    VEC(TensorId) todo = { 0 };
    TensorId at = t;
    while (b->node[t] < 0) {
        TensorId next = b->node[at] < 0 && built_here(b, at)
                        ? unbuilt(b, &p->ops.at[p->tensors.at[at].def]) : NONE;
        if (next != NONE) {
            vec_add(&todo, at);
            at = next;
            continue;
        }
        if (b->node[at] < 0)
            build_one(b, at);
        if (todo.n)
            at = todo.at[--todo.n];
    }
    return b->node[t];
}

/* ---- results -------------------------------------------------------------------- */

static Layout partial_layout(Build *b, Layout l, Degree d)
{
    if (d == LINEAR) {
        l.partial = AX_YR;
        l.rep = b->rep;
    }
    return l;
}

static void store(Build *b, const Op *o)
{
    Part *q = b->q;
    Plan *p = q->p;
    TensorId t = o->out[0];
    int n = build(b, t);
    int64_t w = p->tensors.at[t].width;
    bool part = w != b->g->width && b->nodes.at[n].part;
    if (!part)
        n = full(b, n);
    ValueId v = home_new(q, t, o->phase == PHASE_FORWARD ? BUF_ACTIVATION : BUF_WORK);
    Value *x = &p->values.at[v];
    x->layout = partial_layout(b, x->layout, b->degree.at[n]);
    RowArg a = { .value = v, .is_out = true, .ld = x->ld, .stride = 1, .per = 1,
                 .length = x->cols };
    node_add(b, (RowNode){ .kind = part ? R_STOREPART : R_STORE, .a = n, .part = part,
                           .arg = arg_add(b, a) }, FREE);
    spot_add(q, t, v);
}

typedef struct { ValueId scratch, grad; UnitId unit; bool accumulate; OpId op; } Sum;
typedef VEC(Sum) Sums;

static void column_sum(Build *b, OpId op, Sums *sums)
{
    Part *q = b->q;
    Plan *p = q->p;
    const Op *o = &p->ops.at[op];
    ParamId w = p->tensors.at[o->out[0]].param;
    int64_t start, length;
    int n = full(b, build(b, o->in[0]));
    UnitId u = vector_unit(b, w, &start, &length);
    bool first;
    ValueId whole = weight_grad(q, u, &first);
    ParamUnit *un = &p->units.at[u];
    int piece = 0;
    while (un->piece[piece].param != w)
        piece++;
    Sum s = { .unit = u, .op = op, .accumulate = q->grad[u].first[piece] };
    q->grad[u].first[piece] = true;     // from now on: add
    s.grad = value_view(q, whole, 0, 1, start, length);
    s.scratch = value_matrix(q, p->is.workers, length, D_REAL, BUF_WORK, "column sums");
    RowArg a = { .value = s.scratch, .is_out = true, .is_vector = true, .length = length,
                 .stride = 1, .per = 1 };
    node_add(b, (RowNode){ .kind = R_COLSUM, .a = n, .arg = arg_add(b, a) }, FREE);
    vec_add(sums, s);
}

/* Statistics of reductions over a split width, [rows, slots]. */
typedef struct { OpId op; int slot; Degree degree; } Stat;
typedef VEC(Stat) Stats;

static int count_slots(Build *b, Stats *stats)
{
    Plan *p = b->q->p;
    int slots = 0;
    for (int i = 0; i < b->g->ops.n; i++) {
        const Op *o = &p->ops.at[b->g->ops.at[i]];
        if (!is_cut(b, o))
            continue;
        Stat s = { b->g->ops.at[i], slots, FREE };
        slots += o->kind == OP_VAR ? 2 : 1;
        vec_add(stats, s);
    }
    return slots;
}

static void store_stat(Build *b, ValueId stats, int slots, int slot, int node)
{
    ValueId v = value_view(b->q, stats, 0, b->q->p->values.at[stats].rows, slot, 1);
    RowArg a = { .value = v, .is_out = true, .ld = slots, .stride = 1, .per = 1, .length = 1 };
    node_add(b, (RowNode){ .kind = R_STOREPART, .a = node, .part = true,
                           .arg = arg_add(b, a) }, FREE);
}

static void build_stats(Build *b, Stats *stats, ValueId value, int slots)
{
    Plan *p = b->q->p;
    for (int i = 0; i < stats->n; i++) {
        Op o = p->ops.at[stats->at[i].op];
        int n = build_reduction(b, &o);
        stats->at[i].degree = b->degree.at[n];
        int slot = stats->at[i].slot;
        if (o.kind == OP_VAR)
            store_stat(b, value, slots, slot++, b->nodes.at[n].b);
        store_stat(b, value, slots, slot, n);
    }
}

static void merge_stats(Build *b, const Stats *stats, ValueId mine, int slots)
{
    Part *q = b->q;
    Plan *p = q->p;
    Value a = p->values.at[mine];
    int64_t ways = axes_size(p, b->axis, 1);
    ValueId all = value_matrix(q, ways * a.rows, slots, D_REAL, BUF_WORK, "statistics of all");
    p->values.at[all].layout = (Layout){ .rows = a.layout.rows, .cols = b->axis, .rep = 1 };
    coll(q, COLL_ALL_GATHER, b->axis, 1, mine, all, stats->at[0].op,
         str_fmt("statistics, all-gather over %s", axes_word(b->axis, 1)),
         str_fmt("a row is split over %s; its sums, maxima and variances need all of it",
                 axes_word(b->axis, 1)));
    ValueId *out = NEWN(ValueId, stats->n);
    uint8_t *kind = NEWN(uint8_t, stats->n);
    for (int i = 0; i < stats->n; i++) {
        TensorId t = p->ops.at[stats->at[i].op].out[0];
        Layout l = home_layout(q, t, b->g->home);
        l = partial_layout(b, l, stats->at[i].degree);
        out[i] = value_new(q, t, l, a.rows, q->spot[t].cols, BUF_ACTIVATION,
                           p->tensors.at[t].name);
        kind[i] = (uint8_t)p->ops.at[stats->at[i].op].kind;
        spot_add(q, t, out[i]);
    }
    Inst *i = inst_new(q, I_MERGE, stats->at[0].op, "merge statistics");
    inst_in(i, all);
    for (int k = 0; k < stats->n; k++)
        inst_out(i, out[k]);
    i->nstats = stats->n;
    i->stat = kind;
    i->stat_n = b->width;
    i->axes = b->axis;
}

/* ---- the program ------------------------------------------------------------------ */

static void begin(Build *b, Part *q, int c)
{
    Plan *p = q->p;
    RowGroup *g = &q->clusters.at[c];
    b->q = q;
    b->g = g;
    b->id = c;
    b->op = g->ops.at[0];
    b->nonlinear = NONE;
    b->rep = 1;
    b->prog = (RowProg){ 0 };
    b->axis = g->width > 1 ? canon(p, axis_of(g->home), 1) : 0;
    b->width = g->width;
    b->parts = g->parts ? g->parts : 1;
    if (b->axis == 0)
        return;
    for (int i = 0; i < g->ops.n; i++) {        // any tensor of the full width
        const Op *o = &p->ops.at[g->ops.at[i]];
        for (int j = -1; j < o->nin; j++) {
            TensorId t = j < 0 ? o->out[0] : o->in[j];
            if (p->tensors.at[t].kind != T_ROWS || p->tensors.at[t].width != g->width)
                continue;
            b->width = local_width(p, q->spot[t].cols, b->axis);
            Segment s = q->spot[t].cols.seg[0];
            if (b->parts > 1)
                b->parts /= (int)(axes_size(p, b->axis, 1) / (b->axis & AX_Y ? s.rep : 1));
            return;
        }
    }
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static Columns columns_of(Build *b)
{
    Plan *p = b->q->p;
    for (int i = 0; i < b->g->ops.n; i++) {
        const Op *o = &p->ops.at[b->g->ops.at[i]];
        for (int j = -1; j < o->nin; j++) {
            TensorId t = j < 0 ? o->out[0] : o->in[j];
            if (p->tensors.at[t].kind == T_ROWS && p->tensors.at[t].width == b->g->width)
                return b->q->spot[t].cols;
        }
    }
    return (Columns){ 0, NULL };
}

static void finish(Build *b, const Sums *sums)
{
    Part *q = b->q;
    Plan *p = q->p;
    RowProg r = b->prog;
    for (int k = 0; k < b->args.n; k++)
        b->args.at[k].bf16 = stored_of(q, b->args.at[k].value) == D_BF16;
    r.name = p->ops.at[b->op].name;
    r.width = b->width;
    r.parts = b->parts;
    r.part_width = b->g->width / (b->g->parts ? b->g->parts : 1);
    r.nargs = b->args.n;
    r.arg = arena_copy(perm, b->args.at, sizeof *r.arg * (size_t)r.nargs);
    r.nnodes = b->nodes.n;
    r.node = arena_copy(perm, b->nodes.at, sizeof *r.node * (size_t)r.nnodes);
    r.nsalts = b->salts.n;
    r.salt = arena_copy(perm, b->salts.at, sizeof *r.salt * (size_t)r.nsalts);
    r.columns = columns_of(b);
    r.axis = b->axis;
    vec_add(&p->rowprogs, r);
    Inst *i = inst_new(q, I_ROWS, b->op, NULL);
    i->rows = p->rowprogs.n - 1;
    i->rowmap = rowmap_of(q, canon(p, b->g->home == 'A' ? AX_X | AX_YK : AX_X | AX_Z, 1));
    for (int k = 0; k < b->args.n; k++)
        if (b->args.at[k].is_out)
            inst_out(i, b->args.at[k].value);
        else
            inst_in(i, b->args.at[k].value);
    for (int k = 0; k < sums->n; k++) {
        const Sum *s = &sums->at[k];
        Inst *c = inst_new(q, I_COLSUM, s->op, "column sums");
        c->accumulate = s->accumulate;
        inst_in(c, s->scratch);
        inst_out(c, s->grad);
    }
}

/* Operands first: everything outside that is read must have been lowered. */
static void demand_operands(Part *q, int c)
{
    Plan *p = q->p;
    RowGroup *g = &q->clusters.at[c];
    for (int i = 0; i < g->ops.n; i++) {
        const Op *o = &p->ops.at[g->ops.at[i]];
        for (int j = 0; j < o->nin; j++) {
            OpId d = p->tensors.at[o->in[j]].def;
            if (d != NONE && !(is_row_op(&p->ops.at[d]) && cluster_of(q, d) == c))
                demand(q, o->in[j]);
        }
    }
}

static bool has_roots(const Part *q, const RowGroup *g)
{
    for (int i = 0; i < g->ops.n; i++) {
        const Op *o = &q->p->ops.at[g->ops.at[i]];
        if (o->kind == OP_COLSUM || q->spot[o->out[0]].stored)
            return true;
    }
    return false;
}

/* Room for a program being built; its table of nodes is all -1. Building one may ask for
 * another cluster first, so there is one for each depth. */
static Build *build_room(Part *q, int depth)
{
    static VEC(Build *) rooms;
    static int n;
    if (n < q->p->tensors.n) {
        n = q->p->tensors.n;
        rooms.n = 0;
    }
    while (rooms.n <= depth) {
        Build *fresh = NEW(Build);
        fresh->node = NEWN(int, n);
        for (int i = 0; i < n; i++)
            fresh->node[i] = -1;
        vec_add(&rooms, fresh);
    }
    return rooms.at[depth];
}

static void forget(Build *b)
{
    for (int i = 0; i < b->touched.n; i++)
        b->node[b->touched.at[i]] = -1;
    b->touched.n = b->nodes.n = b->degree.n = b->salts.n = b->args.n = b->partial.n = 0;
}

/* A trial run: where a pending sum would meet something that is not linear in
 * it, the sum is taken first. */
static void settle_operands(Build *b)
{
    Part *q = b->q;
    for (int i = 0; i < b->g->ops.n; i++) {
        Op o = q->p->ops.at[b->g->ops.at[i]];
        if (o.kind == OP_COLSUM)
            build(b, o.in[0]);
        else if (is_cut(b, &o))
            build_reduction(b, &o);
        else if (q->spot[o.out[0]].stored)
            build(b, o.out[0]);
    }
    for (int i = 0; i < b->partial.n && b->nonlinear != NONE; i++) {
        TensorId t = b->partial.at[i];
        ValueId v = value_in(q, t, b->g->home);
        if (q->p->values.at[v].layout.partial)
            all_reduced(q, t, v, q->p->tensors.at[t].def);
    }
    b->nonlinear = NONE;
    forget(b);
}

void lower_cluster(Part *q, int c)
{
    Plan *p = q->p;
    RowGroup *g = &q->clusters.at[c];
    if (!has_roots(q, g))
        return;
    vec_sort(g->ops, by_number);
    demand_operands(q, c);
    static int depth;
    Phase phase = q->phase;
    Build *b = build_room(q, depth++);
    Sums sums = { 0 };
    Stats stats = { 0 };
    begin(b, q, c);
    settle_operands(b);
    int slots = count_slots(b, &stats);
    ValueId mine = NONE;
    if (slots) {
        Axes rows = canon(p, g->home == 'A' ? AX_X | AX_YK : AX_X | AX_Z, 1);
        mine = value_matrix(q, rows_of(q, rows), slots, D_REAL, BUF_WORK, "statistics");
        p->values.at[mine].layout = (Layout){ .rows = rows, .partial = b->axis, .rep = 1 };
        build_stats(b, &stats, mine, slots);
    }
    for (int i = 0; i < g->ops.n; i++) {
        Op o = p->ops.at[g->ops.at[i]];
        if (o.kind == OP_COLSUM)
            column_sum(b, g->ops.at[i], &sums);
        else if (q->spot[o.out[0]].stored && !is_cut(b, &o))
            store(b, &o);
    }
    if (b->nonlinear != NONE)
        bug("a pending sum over y meets `%s`, which is not linear", p->ops.at[b->op].name);
    finish(b, &sums);
    forget(b);
    if (slots)
        merge_stats(b, &stats, mine, slots);
    depth--;
    bool more = q->in_chunk && (q->ichunk + 1) * q->chunk < q->T / p->is.x;
    for (int i = 0; i < sums.n && !more; i++)
        weight_grad_done(q, sums.at[i].unit, sums.at[i].op);
    q->phase = phase;
}
