/*
 * cost.c - a pass of a slice over one turn in seconds: the operators of the turn as terms
 * that price.c prices.
 *
 * Terms are linear in the tokens of the slice but for products and attention. A pass
 * takes the sum of its terms, or the time to start its kernels where that is longer: the
 * host runs ahead of the device (what starts a collective is in its alpha). Where a core
 * starts its own kernels, that takes time of its own.
 *
 * Known lies: kernels never overlap each other; row operators move each stored operand
 * once; conversions between the layouts A and B outside of linears are not priced, nor
 * what sharing one reduce-scatter saves.
 *
 * Products of blocks (summa(q)) are q products and q calls, one behind the other.
 *
 * Letters: e bytes of a number, N tokens (b sequences of l), c context, p ranks of
 * a group, T tokens a rank's x share has.
 */
#include "partition.h"
#include "predict.h"

double cost_sync(const Cost *c, double parameters)
{
    int d = c->is.data;
    Group g = price_group(&c->prices, &c->mesh, AX_DATA);
    double part = parameters * c->gradient * (d - 1) / d;
    return c->is.zero >= 1 ? price_collective(&c->prices, &g, RING_SUM, 1, part)
                                 : price_collective(&c->prices, &g, RING_ALL, 1, 2 * part);
}

double cost_update(const Cost *c, double parameters, double *gather_s)
{
    const Plan *p = c->plan;
    int d = c->is.data;
    double moments = p->config->train.optimizer == OPT_ADAMW ? 2 : 1, wide = c->gradient;
    double bytes = wide * (1 + 2 * moments) + 2 * (c->element < 4 ? 4 : c->element) +
                   (c->element < 4 ? c->element : 0);
    Group g = price_group(&c->prices, &c->mesh, AX_DATA);
    bool shards = c->is.zero >= 1 && d > 1;
    double whole = parameters * c->element * (d - 1) / d;
    *gather_s = shards ? price_collective(&c->prices, &g, RING_GATHER, 1, whole) : 0;
    return price_bytes(&c->prices, bytes * (shards ? parameters / d : parameters));
}

/* ---- a pass over one turn ------------------------------------------------------------ */

static void add_time(Seconds *s, int axis, double t)
{
    *(axis == 0 ? &s->x : axis == 1 ? &s->y : &s->z) += t;
}

double cost_term(const Cost *c, const Term *u, double b, double l, double context)
{
    const Prices *w = &c->prices;
    double N = b * l;
    switch (u->kind) {
    case TERM_PRODUCT:
        return u->sums_tokens
            ? price_product(w, u->form, u->m, u->n, u->k * N, c->element, u->bytes)
            : price_product(w, u->form, u->m * N, u->n, u->k, c->element, u->bytes);
    case TERM_BYTES:
        return price_bytes(w, u->token_bytes * N + u->bytes);
    case TERM_ATTENTION:
        return price_attention(w, &c->mesh, &u->attention, u->backward, c->is.balanced,
                               c->element, b, l, context, (double)c->is.sequence);
    default:
        return price_collective(w, &u->group, u->ring, u->calls, u->token_bytes * N + u->bytes);
    }
}

/* Terms of a pass; context >= 0: only what attention adds over an empty context. */
static PassCost terms_pass(const Cost *c, int class, double b, double l, double context)
{
    const TurnClass *t = &c->classes.at[class];
    PassCost out = { 0 };
    double hidden[2] = { 0 }, again = 0;
    for (int i = 0; i < (context > 0 ? t->nattention : t->terms.n); i++) {
        const Term *u = &t->terms.at[i];
        Seconds *s = u->backward ? &out.backward : &out.forward;
        double sec = cost_term(c, u, b, l, context);
        if (context > 0)
            sec -= cost_term(c, u, b, l, 0);
        if (u->kind != TERM_COLLECTIVE)
            s->compute += sec;
        else if (u->hidden)
            hidden[u->backward] += sec;
        else
            add_time(s, u->axis, sec);
        again += u->kind == TERM_ATTENTION && !u->backward ? sec : 0;
    }
    /* Weights of the next turn travel while this one computes. */
    if (hidden[0] > out.forward.compute)
        out.forward.x += hidden[0] - out.forward.compute;
    if (hidden[1] > out.backward.compute)
        out.backward.x += hidden[1] - out.backward.compute;
    if (c->is.recompute == RECOMPUTE_ATTENTION)
        out.backward.recompute = again;
    else if (c->is.recompute == RECOMPUTE_FULL && class != c->head && class != c->tail) {
        const Seconds *f = &out.forward;
        out.backward.recompute = f->compute + f->x + f->y + f->z;
    }
    return out;
}

PassCost cost_pass(const Cost *c, int class, double b, double l)
{
    return terms_pass(c, class, b, l, 0);
}

PassCost cost_context(const Cost *c, int class, double b, double l, double context)
{
    return context > 0 ? terms_pass(c, class, b, l, context) : (PassCost){ 0 };
}

/* ---- from operators to terms ---------------------------------------------------------- */

typedef struct {
    Plan *p; Cost *c; Part q;
    int *owner;             // by op: turn, -1 before the first, nturns after the last
    int *seen; int stamp;   // by tensor: met in the current walk
    bool *saved;            // by tensor: backward reads it
    bool *stored;           // by tensor: has memory of its own
    TurnClass *t;           // being filled
    double xyz, real;
} Build;

static const Tensor *tensor(const Build *b, TensorId t) { return &b->p->tensors.at[t]; }
static const Op *producer(const Build *b, TensorId t)
{
    return tensor(b, t)->def == NONE ? NULL : &b->p->ops.at[tensor(b, t)->def];
}
static bool is_rows(const Build *b, TensorId t) { return tensor(b, t)->kind == T_ROWS; }
static bool is_view(const Op *o) { return o->kind == OP_SPLIT || o->kind == OP_CONCAT; }

static void find_owners(Build *b)
{
    Plan *p = b->p;
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
        b->owner[i] = of_zone[o->zone] = o->repeat < 0 && i > last_repeat_op ? b->c->nturns : now;
    }
    for (int i = p->nforward; i < p->ops.n; i++)
        b->owner[i] = of_zone[p->ops.at[i].zone];
}

/* Row results that a kernel of its own reads, or another turn. */
static void find_stored(Build *b)
{
    Plan *p = b->p;
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

static Term *term(Build *b, TermKind kind, const Op *o)
{
    Term t = { .kind = kind, .backward = o->phase != PHASE_FORWARD };
    vec_add(&b->t->terms, t);
    return &b->t->terms.at[b->t->terms.n - 1];
}

/* A collective over one axis in which a rank receives (p-1)/p of `columns` per token of its
 * x share, the whole counted. */
static void collective(Build *b, const Op *o, RingKind ring, Axes axes, double columns,
                       double bytes, bool hidden)
{
    Group g = price_group(&b->c->prices, &b->c->mesh, axes);
    if (g.size <= 1)
        return;
    Term *t = term(b, TERM_COLLECTIVE, o);
    double part = (double)(g.size - 1) / g.size;
    t->axis = axes & AX_X && !(axes & AX_Z) ? 0 : axes & AX_YK ? 1 : 2;
    t->group = g;
    t->ring = ring;
    t->calls = 1;
    t->token_bytes = columns * b->real * part / b->p->is.x;
    t->bytes = bytes * part;
    t->hidden = hidden;
}

static void product(Build *b, const Op *o, ProductForm form, double m, double n, double k,
                    double more)
{
    Term *t = term(b, TERM_PRODUCT, o);
    t->sums_tokens = form == FORM_TN;
    t->form = form;
    t->m = m;
    t->n = n;
    t->k = k;
    t->bytes = more;
    b->t->kernels[t->backward]++;
    b->t->flops[t->backward] += 2 * m * n * k;
}

/* In summa(q): q calls that each send a block to the whole group, or sum one on a member. A
 * block passes a ring in pieces, so a call takes as long as receiving the block once. */
static void blocks(Build *b, const Op *o, RingKind ring, Axes axes, double columns, double bytes)
{
    Group g = price_group(&b->c->prices, &b->c->mesh, axes);
    Term *t = term(b, TERM_COLLECTIVE, o);
    t->axis = axes & AX_YK ? 1 : 2;
    t->group = g;
    t->ring = ring;
    t->rooted = true;
    t->calls = g.size;
    t->token_bytes = columns * b->real * g.size;
    t->bytes = bytes * g.size;
}

/* The three products of lower_summa.c: blocks of in/q and out/q columns, T/q rows. */
static void summa_terms(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id], *f = o->kind == OP_LINEAR ? o : &b->p->ops.at[o->of];
    int q = b->p->is.summa;
    double in = (double)tensor(b, f->in[0])->width / q, share = 1.0 / q;
    double out = (double)tensor(b, f->out[0])->width / q, weights = in * out * b->real;
    bool backward = o->kind == OP_LINEAR_DX;
    if (o->kind == OP_LINEAR_DW) {
        blocks(b, o, RING_GATHER, AX_YK, (f->transposed ? out : in) / q, 0);
        for (int l = 0; l < q; l++)
            product(b, o, FORM_TN, in, out, share, in * out * 2 * b->c->gradient);
        blocks(b, o, RING_SUM, AX_Z, 0, in * out * b->c->gradient);
        return;
    }
    blocks(b, o, RING_GATHER, AX_Z, 0, weights);
    if (backward != f->transposed)
        blocks(b, o, RING_SUM, AX_YK, (backward ? in : out) / q, 0);
    else
        blocks(b, o, RING_GATHER, AX_YK, (backward ? out : in) / q, 0);
    for (int l = 0; l < q; l++)
        product(b, o, backward ? FORM_NT : FORM_NN, share, backward ? in : out,
                backward ? out : in, 0);
}

/* Linear of `in` columns in layout A to `out` in B (or back): in is split over one of y, z
 * and out over the other. */
static void linear_terms(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id], *f = o->kind == OP_LINEAR ? o : &b->p->ops.at[o->of];
    OpId fid = o->kind == OP_LINEAR ? id : o->of;
    bool from_a = b->q.info[fid].lin_home == 'A';
    const Choices *is = &b->p->is;
    double ways_in = from_a ? is->z : is->y, ways_out = from_a ? is->y : is->z;
    Axes gather = from_a ? AX_YK : AX_Z, scatter = from_a ? AX_Z : AX_YK;
    double in = (double)tensor(b, f->in[0])->width / ways_in;
    double out = (double)tensor(b, f->out[0])->width / ways_out;
    double weights = in * out * b->real, share = 1.0 / is->x;
    const char *keep = b->p->config->plan.keep.v;
    bool keeps_x = keep && (strcmp(keep, "both") == 0 || strcmp(keep, "inputs") == 0);
    bool keeps_w = keep && (strcmp(keep, "both") == 0 || strcmp(keep, "weights") == 0);
    if (o->kind == OP_LINEAR) {
        collective(b, o, RING_GATHER, gather, in, 0, false);
        collective(b, o, RING_GATHER, AX_X, 0, weights, true);
        product(b, o, FORM_NN, share, out, in, 0);
        collective(b, o, RING_SUM, scatter, out, 0, false);
    } else if (o->kind == OP_LINEAR_DX) {
        collective(b, o, RING_GATHER, scatter, out, 0, false);
        if (!keeps_w)
            collective(b, o, RING_GATHER, AX_X, 0, weights, true);
        product(b, o, FORM_NT, share, in, out, 0);
        collective(b, o, RING_SUM, gather, in, 0, false);
    } else {
        if (!keeps_x)
            collective(b, o, RING_GATHER, gather, in, 0, false);
        product(b, o, FORM_TN, in, out, share, in * out * 2 * b->c->gradient);
        collective(b, o, RING_SUM, AX_X, 0, in * out * b->c->gradient, true);
    }
}

static void attention_terms(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id];
    const Choices *is = &b->p->is;
    bool back = o->kind == OP_ATTN_DX;
    double q = (double)tensor(b, o->in[0])->width, k = (double)tensor(b, o->in[1])->width;
    double v = (double)tensor(b, o->in[2])->width, y = is->y;
    double heads_y = o->kv_heads < y ? o->kv_heads : y;
    Axes xz = AX_X | AX_Z;
    if (is->attention == ATT_GATHER)
        collective(b, o, RING_GATHER, xz, (k + v) / heads_y * is->x, 0, false);
    else if (is->attention == ATT_EXCHANGE)
        collective(b, o, RING_GATHER, xz, (2 * q + k + v) / y / is->z * (back ? 2 : 1), 0, false);
    if (back && is->attention == ATT_GATHER)
        collective(b, o, RING_SUM, xz, (k + v) / heads_y * is->x, 0, false);
    Term *t = term(b, TERM_ATTENTION, o);
    Attention *a = &t->attention;
    a->causal = o->causal;
    a->window = o->window;
    a->gather = is->attention == ATT_GATHER && is->x * is->z > 1;
    a->pair_flop = 2 * (q + q / k * v) / b->xyz;
    a->heads = o->heads / b->xyz;
    a->hd = q / o->heads;
    a->per_kv = (double)o->heads / o->kv_heads;
    a->query_bytes = 2 * q * b->real / b->xyz;
    a->key_bytes = (k + v) * b->real / heads_y / (a->gather ? 1 : is->x * is->z);
    b->t->kernels[back] += back ? 2 : 1;
    if (back)
        return;
    b->t->kv_bytes += a->key_bytes;
    b->t->dkv_bytes += (k + v) * b->c->gradient / heads_y / (a->gather ? 1 : is->x * is->z);
}

static void loss_terms(Build *b, const Op *o, const TensorId logits)
{
    double V = (double)tensor(b, logits)->width / b->xyz;
    Group g = price_group(&b->c->prices, &b->c->mesh, AX_YK);
    Term *t = term(b, TERM_BYTES, o);
    t->token_bytes = V * b->real * (o->kind == OP_CE ? 1 : 2);
    b->t->kernels[t->backward]++;
    if (o->kind != OP_CE || g.size <= 1)
        return;
    Term *r = term(b, TERM_COLLECTIVE, o);
    r->axis = 1;
    r->group = g;
    r->ring = RING_ALL;
    r->calls = 2;
    r->token_bytes = 12.0 / (b->p->is.x * b->p->is.z);
}

/* What is no row operator and no view. */
static void op_terms(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id];
    switch (o->kind) {
    case OP_LINEAR: case OP_LINEAR_DX: case OP_LINEAR_DW:
        (b->p->is.summa ? summa_terms : linear_terms)(b, id);
        break;
    case OP_ATTN: case OP_ATTN_DX:
        attention_terms(b, id);
        break;
    case OP_CE: case OP_CE_DX:
        loss_terms(b, o, o->in[0]);
        break;
    case OP_EMBED: case OP_EMBED_DW: {
        TensorId rows = o->kind == OP_EMBED ? o->out[0] : o->in[1];
        double w = (double)tensor(b, rows)->width;
        bool q = b->p->is.summa > 0;                // rows of the table by z, else by y
        term(b, TERM_BYTES, o)->token_bytes = 2 * w * b->real / b->p->is.z / b->p->is.x;
        b->t->kernels[o->kind == OP_EMBED_DW]++;
        collective(b, o, o->kind == OP_EMBED ? RING_SUM : RING_GATHER, q ? AX_Z : AX_YK,
                   w / b->p->is.z, 0, false);
        break;
    }
    default: {          // rope and the like: in and out once
        double w = 0;
        for (int j = 0; j < o->nout; j++)
            w += (double)tensor(b, o->out[j])->width;
        Term *t = term(b, TERM_BYTES, o);
        t->token_bytes = 2 * w * b->real / b->xyz;
        b->t->kernels[t->backward]++;
    }
    }
}

/* A run of row operators between kernels of their own is one kernel. */
typedef struct { const Op *first; double columns; int reduced; bool wide_a; } Run;

static void run_end(Build *b, Run *r)
{
    if (r->first == NULL)
        return;
    Term *t = term(b, TERM_BYTES, r->first);
    t->token_bytes = r->columns * b->real / b->xyz;
    if (t->token_bytes > b->t->transient_bytes)
        b->t->transient_bytes = t->token_bytes;
    b->t->kernels[r->first->phase != PHASE_FORWARD]++;
    Group g = price_group(&b->c->prices, &b->c->mesh, r->wide_a ? AX_Z : AX_YK);
    if (r->reduced && g.size > 1) {
        Term *c = term(b, TERM_COLLECTIVE, r->first);
        c->axis = r->wide_a ? 2 : 1;
        c->group = g;
        c->ring = RING_ALL;
        c->calls = 1;
        c->token_bytes = 2.0 * r->reduced * b->c->gradient * (g.size - 1) / b->xyz;
    }
    *r = (Run){ 0 };
}

static void run_op(Build *b, Run *r, const Op *o)
{
    if (r->first == NULL) {
        r->first = o;
        b->stamp++;
    }
    for (int j = 0; j < o->nin; j++)
        r->columns += reads(b, o->in[j], false, 0);
    for (int j = 0; j < o->nout; j++) {
        if (!is_rows(b, o->out[j]))
            continue;
        if (b->stored[o->out[j]])
            r->columns += (double)tensor(b, o->out[j])->width;
        b->seen[o->out[j]] = b->stamp;
    }
    if (op_class[o->kind] == C_RED && tensor(b, o->in[0])->width > 1) {
        r->reduced++;
        r->wide_a = b->q.spot[o->in[0]].home == 'A';
    }
}

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

static void class_fill(Build *b, const OpId *ids, int n)
{
    Run run = { 0 };
    for (int i = 0; i < n; i++) {
        const Op *o = &b->p->ops.at[ids[i]];
        if (is_view(o))
            continue;
        if (is_row_op(o)) {
            if (run.first && run.first->phase != o->phase)
                run_end(b, &run);
            run_op(b, &run, o);
            continue;
        }
        run_end(b, &run);
        op_terms(b, ids[i]);
    }
    run_end(b, &run);
    Terms sorted = { 0 };
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < b->t->terms.n; i++)
            if ((b->t->terms.at[i].kind == TERM_ATTENTION) == (pass == 0))
                vec_add(&sorted, b->t->terms.at[i]);
    for (int i = 0; i < sorted.n; i++)
        b->t->nattention += sorted.at[i].kind == TERM_ATTENTION;
    b->t->terms = sorted;
}

/* Bytes of a token that stay until the backward pass: what it reads, but K and V. */
static void class_saved(Build *b, int owner, const OpId *ids, int n)
{
    double columns = 0;
    for (int i = 0; i < n; i++) {
        const Op *o = &b->p->ops.at[ids[i]];
        if (o->phase != PHASE_FORWARD)
            continue;
        for (int j = 0; j < o->nout; j++)
            if (b->saved[o->out[j]])
                columns += (double)tensor(b, o->out[j])->width;
        if (o->kind == OP_ATTN) {
            columns -= (double)(tensor(b, o->in[1])->width + tensor(b, o->in[2])->width);
            if (b->c->is.recompute == RECOMPUTE_ATTENTION)
                columns -= (double)(tensor(b, o->out[0])->width + tensor(b, o->out[1])->width);
        }
    }
    b->t->saved_bytes = (columns > 0 ? columns : 0) * b->real / b->xyz;
    if (b->c->is.recompute == RECOMPUTE_FULL && owner >= 0 && owner < b->c->nturns) {
        double all = b->t->saved_bytes;         // one turn's worth exists while it runs
        b->t->saved_bytes = b->c->cut_width[owner] * b->real / b->xyz;
        b->t->transient_bytes += all;
    }
}

static void add_parameters(Build *b, int *class_of_owner)
{
    Plan *p = b->p;
    int *first = NEWN(int, p->params.n);
    for (int w = 0; w < p->params.n; w++)
        first[w] = -2;
    int *counted = NEWN(int, b->c->classes.n);
    for (int i = 0; i < b->c->classes.n; i++)
        counted[i] = -2;
    for (int i = 0; i < p->nforward; i++)
        for (int j = 0; j < p->ops.at[i].nin; j++) {
            ParamId w = tensor(b, p->ops.at[i].in[j])->param;
            if (w == NONE)
                continue;
            const Param *a = &p->params.at[w];
            bool is_vector = a->kind == PARAM_VECTOR;
            double n = (is_vector ? 1 : (double)a->rows) * (double)a->width /
                       (is_vector ? p->is.z : b->xyz);
            int owner = b->owner[i];
            if (first[w] == owner)
                continue;
            if (first[w] != -2 && owner != first[w] && (first[w] < 0 || owner >= b->c->nturns))
                b->c->tied += n;
            first[w] = owner;
            int class = class_of_owner[owner + 1];
            if (counted[class] == -2)           // each class once: by its first owner
                counted[class] = owner;
            if (counted[class] == owner)
                b->c->classes.at[class].parameters += n;
        }
}

/* Columns of rows made by turn i or before it and read after it. */
static void find_cuts(Build *b)
{
    Plan *p = b->p;
    int n = b->c->nturns;
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
                b->c->cut_width[cut] += (double)tensor(b, t)->width;
        }
}

Cost *cost_new(Plan *p, bool turns_only)
{
    Cost *c = NEW(Cost);
    Build build = { .p = p, .c = c, .q.p = p }, *b = &build;
    c->plan = p;
    c->is = p->is;
    c->prices = price_list(p);
    c->mesh = price_mesh(p);
    c->turns_only = turns_only;
    c->head = c->tail = NONE;
    for (int i = 0; i < p->nrepeats; i++)
        c->nturns += p->turns[i];
    static const int bytes[] = { 8, 4, 2, 2, 1 };
    c->element = bytes[p->is.precision];
    c->gradient = c->element >= 4 ? c->element : p->config->train.reduce_bf16 ? 2 : 4;
    b->real = c->element;
    b->xyz = (double)p->is.x * p->is.y * p->is.z;
    b->q.spot = NEWN(Spot, p->tensors.n + 2 * p->params.n);
    b->q.info = NEWN(OpInfo, p->ops.n);
    place_uses(&b->q);
    place_homes(&b->q);
    b->owner = NEWN(int, p->ops.n);
    b->seen = NEWN(int, p->tensors.n);
    b->saved = NEWN(bool, p->tensors.n);
    b->stored = NEWN(bool, p->tensors.n);
    c->class_of = NEWN(int, c->nturns + 1);
    c->cut_width = NEWN(double, c->nturns + 1);
    find_owners(b);
    find_stored(b);
    find_cuts(b);
    for (int i = p->nforward; i < p->ops.n; i++)
        for (int j = 0; j < p->ops.at[i].nin; j++) {
            b->stamp++;
            reads(b, p->ops.at[i].in[j], true, 0);
        }
    int owners = c->nturns + 2, *count = NEWN(int, owners + 1), *class = NEWN(int, owners);
    for (int i = 0; i < p->ops.n; i++)
        count[b->owner[i] + 2]++;
    for (int o = 1; o <= owners; o++)
        count[o] += count[o - 1];
    OpId *ids = NEWN(OpId, p->ops.n + 1);
    int *fill = NEWN(int, owners);
    for (int i = 0; i < p->ops.n; i++)
        ids[count[b->owner[i] + 1] + fill[b->owner[i] + 1]++] = i;
    Map *keys = map_new();
    for (int o = 0; o < owners; o++) {
        const OpId *of = ids + count[o];
        bool turn = o > 0 && o <= c->nturns;
        class[o] = NONE;
        if (fill[o] == 0 && !turn)
            continue;
        const char *key = str_fmt("%s%s", turn ? "" : o ? "tail" : "head",
                                  class_key(b, of, fill[o]));
        class[o] = map_get(keys, key);
        if (class[o] < 0) {
            TurnClass t = { .key = key, .name = fill[o] ? p->ops.at[of[0]].name : "" };
            class[o] = c->classes.n;
            map_put(keys, key, c->classes.n);
            vec_add(&c->classes, t);
            b->t = &c->classes.at[class[o]];
            class_fill(b, of, fill[o]);
            class_saved(b, o - 1, of, fill[o]);
        }
        if (turn)
            c->class_of[o - 1] = class[o];
    }
    add_parameters(b, class);
    if (!turns_only) {
        c->head = class[0];
        c->tail = class[owners - 1];
        if (p->vocab > 0)
            c->logits_bytes = ceil((double)p->vocab / p->is.y) / p->is.z *
                              (c->element < 4 ? 4 : c->element);
    } else
        c->tied = 0;
    return c;
}
