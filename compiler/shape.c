/*
 * shape.c - a model before any mesh: its turns by class, and of every class the kernels,
 * the parameters and the columns that stay until the backward pass.
 *
 * Everything here is widths of whole tensors. cost.c divides them by the axes of a mesh
 * and gives them prices; a search looks at the model once and does that for each mesh.
 */
#include "partition.h"
#include "predict.h"

typedef struct {
    const Plan *p; Shape *s; Part q;
    int *owner;             // by op: turn, -1 before the first, nturns after the last
    int *seen; int stamp;   // by tensor: met in the current walk
    bool *saved;            // by tensor: backward reads it
    bool *stored;           // by tensor: has memory of its own
    bool *again;            // by op: backward asks for it where its turn is computed again
    TurnShape *t;           // being filled
} Build;

static const Tensor *tensor(const Build *b, TensorId t) { return &b->p->tensors.at[t]; }
static const Op *producer(const Build *b, TensorId t)
{
    return tensor(b, t)->def == NONE ? NULL : &b->p->ops.at[tensor(b, t)->def];
}
static bool is_rows(const Build *b, TensorId t) { return tensor(b, t)->kind == T_ROWS; }
static bool is_view(const Op *o) { return o->kind == OP_SPLIT || o->kind == OP_CONCAT; }

/* ---- who owns what ---------------------------------------------------------------- */

static void find_owners(Build *b)
{
    const Plan *p = b->p;
    int last_repeat_op = NONE, now = -1, nzones = 0, *base = NEWN(int, p->nrepeats + 1);
    for (int i = 0; i < p->nrepeats; i++)
        base[i + 1] = base[i] + p->turns[i];
    for (int i = 0; i < p->nforward; i++) {
        last_repeat_op = p->ops.at[i].repeat >= 0 ? i : last_repeat_op;
        nzones = p->ops.at[i].zone >= nzones ? p->ops.at[i].zone + 1 : nzones;
    }
    int *of_zone = NEWN(int, nzones);
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->repeat >= 0)
            now = base[o->repeat] + o->turn;
        b->owner[i] = of_zone[o->zone] = o->repeat < 0 && i > last_repeat_op ? b->s->nturns : now;
    }
    for (int i = p->nforward; i < p->ops.n; i++)
        b->owner[i] = of_zone[p->ops.at[i].zone];
}

/* Row results that a kernel of its own reads, or another turn. */
static void find_stored(Build *b)
{
    const Plan *p = b->p;
    for (int pass = 0; pass < 2; pass++)            // twice: through splits
        for (int i = p->ops.n; i-- > 0;) {
            const Op *o = &p->ops.at[i];
            for (int j = 0; j < o->nout; j++) {
                TensorId t = o->out[j];
                const Spot *s = &b->q.spot[t];
                if (!is_rows(b, t) || is_view(o))
                    continue;
                bool stored = !is_row_op(o);
                for (int k = 0; k < s->nuses && !stored; k++) {
                    const Op *u = &p->ops.at[s->use[k]];
                    stored = !is_row_op(u) || b->owner[s->use[k]] != b->owner[i];
                }
                b->stored[t] = stored;
            }
        }
}

/* Columns of stored tensors behind t that this walk has not met. */
static double reads(Build *b, TensorId t, bool mark_saved, int depth)
{
    const Op *o = producer(b, t);
    if (!is_rows(b, t) || o == NULL || b->seen[t] == b->stamp || depth > 200)
        return 0;
    b->seen[t] = b->stamp;
    if (b->stored[t]) {
        if (mark_saved && o->phase == PHASE_FORWARD)
            b->saved[t] = true;
        return (double)tensor(b, t)->width;
    }
    double sum = 0;
    for (int j = 0; j < o->nin; j++)
        sum += reads(b, o->in[j], mark_saved, depth + 1);
    return sum;
}

/* Forward operators of a turn whose results its backward operators ask for. */
static void find_again(Build *b)
{
    const Plan *p = b->p;
    for (int i = p->ops.n; i-- > 0;) {
        const Op *o = &p->ops.at[i];
        if (o->phase == PHASE_FORWARD && !b->again[i])
            continue;
        for (int j = 0; j < o->nin; j++) {
            OpId d = is_rows(b, o->in[j]) ? tensor(b, o->in[j])->def : NONE;
            if (d != NONE && d < p->nforward && b->owner[d] == b->owner[i])
                b->again[d] = true;
        }
    }
}

/* ---- kernels ------------------------------------------------------------------------ */

static Kernel *kernel_add(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id];
    Kernel k = { .op = o, .backward = o->phase != PHASE_FORWARD, .again = b->again[id] };
    vec_add(&b->t->kernels, k);
    return &b->t->kernels.at[b->t->kernels.n - 1];
}

static void linear_kernel(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id];
    OpId fid = o->kind == OP_LINEAR ? id : o->of;
    const Op *f = &b->p->ops.at[fid];
    Kernel *k = kernel_add(b, id);
    k->from_a = b->q.info[fid].lin_home == 'A';
    k->transposed = f->transposed;
    k->attended = producer(b, f->in[0]) && producer(b, f->in[0])->kind == OP_ATTN;
    k->loss = tensor(b, f->out[0])->width == b->p->vocab;
    k->in = (double)tensor(b, f->in[0])->width;
    k->out = (double)tensor(b, f->out[0])->width;
}

/* What is no row operator and no view. */
static void op_kernel(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id];
    if (o->kind == OP_LINEAR || o->kind == OP_LINEAR_DX || o->kind == OP_LINEAR_DW) {
        linear_kernel(b, id);
        return;
    }
    Kernel *k = kernel_add(b, id);
    if (o->kind == OP_ATTN || o->kind == OP_ATTN_DX) {
        k->in = (double)tensor(b, o->in[0])->width;
        k->keys = (double)tensor(b, o->in[1])->width;
        k->out = (double)tensor(b, o->in[2])->width;
    } else if (o->kind == OP_CE || o->kind == OP_CE_DX)
        k->out = (double)tensor(b, o->in[0])->width;
    else if (o->kind == OP_EMBED || o->kind == OP_EMBED_DW) {
        const Op *f = o->kind == OP_EMBED ? o : &b->p->ops.at[o->of];
        k->rows = (double)b->p->params.at[tensor(b, f->in[1])->param].rows;
        k->out = (double)tensor(b, o->kind == OP_EMBED ? o->out[0] : o->in[1])->width;
    } else
        for (int j = 0; j < o->nout; j++)       // rope and the like: in and out once
            k->out += 2 * (double)tensor(b, o->out[j])->width;
}

/* A run of row operators between kernels of their own is one kernel. */
typedef struct { OpId first; Kernel k; } Run;

static void run_end(Build *b, Run *r)
{
    if (r->first == NONE)
        return;
    Kernel *k = kernel_add(b, r->first);
    k->run = true;
    k->again = r->k.again;
    k->out = r->k.out;
    k->reduced = r->k.reduced;
    k->from_a = r->k.from_a;
    *r = (Run){ .first = NONE };
}

static void run_op(Build *b, Run *r, OpId id)
{
    const Op *o = &b->p->ops.at[id];
    if (r->first == NONE) {
        r->first = id;
        b->stamp++;
    }
    r->k.again |= b->again[id];
    for (int j = 0; j < o->nin; j++)
        r->k.out += reads(b, o->in[j], false, 0);
    for (int j = 0; j < o->nout; j++) {
        if (!is_rows(b, o->out[j]))
            continue;
        if (b->stored[o->out[j]])
            r->k.out += (double)tensor(b, o->out[j])->width;
        b->seen[o->out[j]] = b->stamp;
    }
    if (op_class[o->kind] == C_RED && tensor(b, o->in[0])->width > 1) {
        /* a program that is cut at its reductions stores what it reduces, beside what that was
         * made of (cluster.c) */
        bool a = b->q.spot[o->in[0]].home == 'A' && o->phase == PHASE_FORWARD;
        b->t->split += a && r->k.reduced == 0 ? (double)tensor(b, o->in[0])->width : 0;
        r->k.reduced++;
        r->k.from_a = b->q.spot[o->in[0]].home == 'A';
    }
}

/* Attention first: context adds to it alone. */
static void attention_first(TurnShape *t)
{
    Kernel *sorted = NEWN(Kernel, t->kernels.n + 1);
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < t->kernels.n; i++) {
            OpKind k = t->kernels.at[i].op->kind;
            bool attends = !t->kernels.at[i].run && (k == OP_ATTN || k == OP_ATTN_DX);
            if (attends == (pass == 0))
                sorted[n++] = t->kernels.at[i];
        }
    t->kernels.at = sorted;
}

static void class_kernels(Build *b, const OpId *ids, int n)
{
    Run run = { .first = NONE };
    for (int i = 0; i < n; i++) {
        const Op *o = &b->p->ops.at[ids[i]];
        if (is_view(o))
            continue;
        if (is_row_op(o)) {
            if (run.first != NONE && b->p->ops.at[run.first].phase != o->phase)
                run_end(b, &run);
            run_op(b, &run, ids[i]);
            continue;
        }
        run_end(b, &run);
        op_kernel(b, ids[i]);
    }
    run_end(b, &run);
    attention_first(b->t);
}

/* ---- classes -------------------------------------------------------------------------- */

/* Operators of one owner, as something that equal owners share. */
static const char *class_key(const Build *b, const OpId *ids, int n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < n; i++) {
        const Op *o = &b->p->ops.at[ids[i]];
        int64_t attr[] = { o->kind, o->phase, o->nin, o->nout, o->heads, o->kv_heads, o->causal,
                           o->window, o->parts, o->kind == OP_LINEAR ? b->q.info[ids[i]].lin_home
                                                                     : 0 };
        h = hash_bytes(attr, sizeof attr, h);
        for (int j = 0; j < o->nin + o->nout; j++) {
            const Tensor *t = tensor(b, j < o->nin ? o->in[j] : o->out[j - o->nin]);
            int64_t shape[] = { t->kind, t->rows, t->width };
            h = hash_bytes(shape, sizeof shape, h);
        }
    }
    return str_fmt("%016" PRIx64, h);
}

/* Columns of a token that stay until the backward pass: what it reads, but K and V. */
static void class_saved(Build *b, int owner, const OpId *ids, int n)
{
    double columns = 0, attention = 0;
    for (int i = 0; i < n; i++) {
        const Op *o = &b->p->ops.at[ids[i]];
        if (o->phase != PHASE_FORWARD)
            continue;
        for (int j = 0; j < o->nout; j++)
            if (b->saved[o->out[j]] && tensor(b, o->out[j])->width != b->p->vocab)
                columns += (double)tensor(b, o->out[j])->width;
        if (o->kind == OP_ATTN) {
            columns -= (double)(tensor(b, o->in[1])->width + tensor(b, o->in[2])->width);
            attention += (double)(tensor(b, o->out[0])->width + tensor(b, o->out[1])->width);
        }
    }
    double *saved = b->t->saved;
    saved[RECOMPUTE_NONE] = columns > 0 ? columns : 0;
    saved[RECOMPUTE_ATTENTION] = columns > attention ? columns - attention : 0;
    saved[RECOMPUTE_FULL] = owner >= 0 && owner < b->s->nturns ? b->s->cut_width[owner]
                                                                : saved[RECOMPUTE_NONE];
}

static void weight_add(Build *b, TurnShape *t, const Op *o, ParamId w)
{
    const Param *a = &b->p->params.at[w];
    Weight n = { .kind = a->kind, .rows = (double)a->rows, .columns = (double)a->width };
    char home = 'A';
    if (a->kind == PARAM_VECTOR && o->nout > 0 && is_rows(b, o->out[0]))
        home = b->q.spot[o->out[0]].home;
    n.by_y = home == 'B';
    vec_add(&t->weights, n);
}

/* Parameters of a class: those of the first owner that has it. */
static void find_weights(Build *b, const int *class_of_owner)
{
    const Plan *p = b->p;
    int *first = NEWN(int, p->params.n), *counted = NEWN(int, b->s->classes.n);
    for (int w = 0; w < p->params.n; w++)
        first[w] = -2;
    for (int i = 0; i < b->s->classes.n; i++)
        counted[i] = -2;
    for (int i = 0; i < p->nforward; i++)
        for (int j = 0; j < p->ops.at[i].nin; j++) {
            ParamId w = tensor(b, p->ops.at[i].in[j])->param;
            int owner = b->owner[i];
            if (w == NONE || first[w] == owner)
                continue;
            const Param *a = &p->params.at[w];
            if (first[w] != -2 && (first[w] < 0 || owner >= b->s->nturns))
                b->s->tied += (double)a->rows * (double)a->width;
            first[w] = owner;
            int class = class_of_owner[owner + 1];
            if (counted[class] == -2)
                counted[class] = owner;
            if (counted[class] == owner)
                weight_add(b, &b->s->classes.at[class], &p->ops.at[i], w);
        }
}

/* Columns of rows made by turn i or before it and read after it. */
static void find_cuts(Build *b)
{
    const Plan *p = b->p;
    int n = b->s->nturns;
    for (int i = 0; i < p->nforward; i++)
        for (int j = 0; j < p->ops.at[i].nout; j++) {
            TensorId t = p->ops.at[i].out[j];
            int last = b->owner[i];
            if (!is_rows(b, t))
                continue;
            for (int k = 0; k < b->q.spot[t].nuses; k++) {
                OpId u = b->q.spot[t].use[k];
                if (u < p->nforward && b->owner[u] > last)
                    last = b->owner[u];
            }
            for (int cut = b->owner[i] < 0 ? 0 : b->owner[i]; cut < last && cut < n; cut++)
                b->s->cut_width[cut] += (double)tensor(b, t)->width;
        }
}

/* Operators by owner, in order: those of owner o are ids[first[o + 1] .. first[o + 2]). */
static OpId *sort_ops(const Build *b, int *first)
{
    const Plan *p = b->p;
    int owners = b->s->nturns + 2, *fill = NEWN(int, owners);
    OpId *ids = NEWN(OpId, p->ops.n + 1);
    for (int i = 0; i < p->ops.n; i++)
        first[b->owner[i] + 2]++;
    for (int o = 1; o <= owners; o++)
        first[o] += first[o - 1];
    for (int i = 0; i < p->ops.n; i++)
        ids[first[b->owner[i] + 1] + fill[b->owner[i] + 1]++] = i;
    return ids;
}

static void find_classes(Build *b)
{
    const Plan *p = b->p;
    Shape *s = b->s;
    int owners = s->nturns + 2, *first = NEWN(int, owners + 1), *class = NEWN(int, owners);
    const OpId *ids = sort_ops(b, first);
    Map *keys = map_new();
    for (int o = 0; o < owners; o++) {
        const OpId *of = ids + first[o];
        int n = first[o + 1] - first[o];
        bool turn = o > 0 && o <= s->nturns;
        class[o] = NONE;
        if (n == 0 && !turn)
            continue;
        const char *key = str_fmt("%s%s", turn ? "" : o ? "tail" : "head", class_key(b, of, n));
        class[o] = map_get(keys, key);
        if (class[o] < 0) {
            TurnShape t = { .key = key, .name = n ? p->ops.at[of[0]].name : "" };
            class[o] = s->classes.n;
            map_put(keys, key, s->classes.n);
            vec_add(&s->classes, t);
            b->t = &s->classes.at[class[o]];
            class_kernels(b, of, n);
            class_saved(b, o - 1, of, n);
        }
        if (turn)
            s->class_of[o - 1] = class[o];
    }
    find_weights(b, class);
    s->head = s->turns_only ? NONE : class[0];
    s->tail = s->turns_only ? NONE : class[owners - 1];
}

const Shape *shape_of(Plan *p, bool turns_only)
{
    if (p->shape[turns_only])
        return p->shape[turns_only];
    Shape *s = NEW(Shape);
    Build build = { .p = p, .s = s, .q.p = p }, *b = &build;
    p->shape[turns_only] = s;
    s->plan = p;
    s->turns_only = turns_only;
    for (int i = 0; i < p->nrepeats; i++)
        s->nturns += p->turns[i];
    Mark mark = arena_mark(scratch);
    b->q.spot = SCRATCHN(Spot, p->tensors.n + 2 * p->params.n);
    b->q.info = SCRATCHN(OpInfo, p->ops.n);
    place_uses(&b->q);
    place_homes(&b->q);
    b->owner = SCRATCHN(int, p->ops.n);
    b->seen = SCRATCHN(int, p->tensors.n);
    b->saved = SCRATCHN(bool, p->tensors.n);
    b->stored = SCRATCHN(bool, p->tensors.n);
    b->again = SCRATCHN(bool, p->ops.n);
    s->class_of = NEWN(int, s->nturns + 1);
    s->cut_width = NEWN(double, s->nturns + 1);
    find_owners(b);
    find_stored(b);
    find_again(b);
    find_cuts(b);
    for (int i = p->nforward; i < p->ops.n; i++)
        for (int j = 0; j < p->ops.at[i].nin; j++) {
            b->stamp++;
            reads(b, p->ops.at[i].in[j], true, 0);
        }
    find_classes(b);
    if (turns_only)
        s->tied = 0;
    s->sizes = mesh_sizes(p);
    arena_release(scratch, mark);
    return s;
}
