/*
 * cost.c - a pass of a slice over one turn in seconds: the kernels of the turn (shape.c) on
 * a mesh, as terms that price.c prices.
 *
 * Terms are linear in the tokens of the slice but for products and attention. A pass
 * takes the sum of its terms, or the time to start its kernels where that is longer: the
 * host runs ahead of the device (what starts a collective is in its alpha). Where a core
 * starts its own kernels, that takes time of its own.
 *
 * Known lies: kernels never overlap each other; row operators move each stored operand
 * once; conversions between the layouts A and B outside of linears are not priced, nor
 * what sharing one reduce-scatter saves, nor what collectives take from kernels beside them.
 *
 * Products of blocks (summa(q)) are q products and q calls, one behind the other.
 *
 * Letters: e bytes of a number, N tokens (b sequences of l), c context, p ranks of
 * a group, T tokens a rank's x share has.
 */
#include "predict.h"

/* Does a GPU's network work while its kernels run? Cores do both, one after the other. */
static bool overlaps(const Cost *c) { return c->prices.cores == 0 && !c->prices.serial; }

/* ---- over data ------------------------------------------------------------------------ */

/* Seconds of so many calls in which a rank receives (d-1)/d of `bytes`. */
static double over_data(const Cost *c, RingKind ring, double calls, double bytes)
{
    int d = c->is.data;
    return d == 1 ? 0 : price_collective(&c->prices, &c->groups[AX_DATA], ring, calls,
                                         bytes * (d - 1) / d);
}

/* Elements whose gradients come with the end of the last pass: the embedding's, and of what first
 * and last stage share. */
static double late_parameters(const Cost *c, int stage)
{
    return stage == 0 ? c->head == NONE ? 0 : c->classes.at[c->head].parameters
         : stage == c->mesh.size[MESH_STAGE] - 1 ? c->tied : 0;
}

/*
 * A network that works beside its kernels sums in pieces (streams.c), each as soon as it is
 * there: the pass hides what it can but for the last piece and what comes late.
 */
double cost_sync(const Cost *c, int stage, double parameters, double under)
{
    double bytes = parameters * c->gradient, d = c->is.data, n = 1;
    if (c->is.zero >= 2 || d == 1 || parameters <= 0)
        return 0;
    if (overlaps(c)) {
        n = ceil(bytes / GRAD_PIECE_BYTES);
        n = n < GRAD_PIECES ? n : GRAD_PIECES;
        n = c->is.zero == 1 ? d * ceil(n / d) : n;      // none goes to two replicas
    }
    double sum = c->is.zero == 1 ? over_data(c, RING_SUM, n, bytes)
                                 : over_data(c, RING_ALL, n, 2 * bytes);
    if (n == 1)
        return sum;
    double late = late_parameters(c, stage) / parameters;
    double left = sum - under * (1 - 1 / n), end = sum * (late + (1 - late) / n);
    return left > end ? left : end;
}

void cost_data(const Cost *c, double parameters, double units, const double *compute,
               double *data)
{
    double gather = c->is.zero >= 3 ? over_data(c, RING_GATHER, units, parameters * c->element) : 0;
    double sum = c->is.zero >= 2 ? over_data(c, RING_SUM, units, parameters * c->gradient) : 0;
    double beside[2] = { c->keep_weights && c->is_piped ? 0 : gather,
                         sum + (c->keep_weights ? 0 : gather) };
    for (int i = 0; i < 2; i++)
        data[i] = larger(0, beside[i] - (overlaps(c) ? compute[i] : 0));
}

double cost_update(const Cost *c, double parameters, double units, double *gather_s)
{
    const Plan *p = c->plan;
    int d = c->is.data, zero = d > 1 ? c->is.zero : 0;
    double moments = p->config->train.optimizer == OPT_ADAMW ? 2 : 1, wide = c->gradient;
    double bytes = wide * (1 + 2 * moments) + 2 * (c->element < 4 ? 4 : c->element) +
                   (c->element < 4 ? c->element : 0);
    double whole = parameters * c->element;
    bool once = zero == 3 && c->keep_weights && c->is_piped;    // before the first pass
    *gather_s = zero == 1 ? over_data(c, RING_GATHER, 1, whole)
              : zero == 2 || once ? over_data(c, RING_GATHER, units, whole) : 0;
    return price_bytes(&c->prices, bytes * (zero ? parameters / d : parameters));
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

static bool is_skipped(const Cost *c, const Term *u)
{
    return (u->kept == KEPT_INPUT && c->keep_inputs) || (u->kept == KEPT_WEIGHT && c->keep_weights)
        || (u->kept == KEPT_KEYS && (c->keep_inputs || c->is.nslices > 1))
        || (u->kept == KEPT_ONCE && c->keep_weights && c->is_piped);
}

/* Terms of a pass; context > 0: only what attention adds over an empty context. */
static PassCost terms_pass(const Cost *c, int class, double b, double l, double context)
{
    const TurnClass *t = &c->classes.at[class];
    PassCost out = { 0 };
    double hidden[2] = { 0 };
    for (int i = 0; i < (context > 0 ? t->nattention : t->terms.n); i++) {
        const Term *u = &t->terms.at[i];
        Seconds *s = u->backward ? &out.backward : &out.forward;
        if (is_skipped(c, u))
            continue;
        double sec = cost_term(c, u, b, l, context);
        if (context > 0)
            sec -= cost_term(c, u, b, l, 0);
        if (u->kind != TERM_COLLECTIVE)
            s->compute += sec;
        else if (u->hidden)
            hidden[u->backward] += sec;
        else
            add_time(s, u->axis, sec);
        if (u->kind == TERM_ATTENTION && !u->backward)
            out.again[RECOMPUTE_ATTENTION] += sec;
        if (u->again && !u->hidden)
            out.again[RECOMPUTE_FULL] += sec;
        if (u->kept == KEPT_INPUT && u->kind == TERM_COLLECTIVE)
            out.again[RECOMPUTE_FULL] -= sec;   // the forward part gathers it in its stead
    }
    /* Weights of the next turn travel while this one computes. */
    for (int back = 0; back < 2; back++) {
        Seconds *s = back ? &out.backward : &out.forward;
        double more = hidden[back] - (overlaps(c) ? s->compute : 0);
        s->x += more > 0 ? more : 0;
    }
    if (out.again[RECOMPUTE_FULL] < 0)
        out.again[RECOMPUTE_FULL] = 0;
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

double cost_once(const Cost *c, int class)
{
    const TurnClass *t = &c->classes.at[class];
    double sum = 0;
    for (int i = 0; i < t->terms.n; i++)
        if (t->terms.at[i].kept == KEPT_ONCE && is_skipped(c, &t->terms.at[i]))
            sum += cost_term(c, &t->terms.at[i], 0, 0, 0);
    return sum;
}

/* ---- from kernels to terms ------------------------------------------------------------ */

/* A class being filled. Shares: of rows and columns together, and of each axis. */
typedef struct {
    Cost *c; TurnClass *t; const Kernel *k;
    double xyz, x, y, z, real;
    Term none;                      // of a group of one: goes nowhere
} Fill;

static Term *term(Fill *f, TermKind kind)
{
    Term t = { .kind = kind, .backward = f->k->backward, .again = f->k->again };
    vec_add(&f->t->terms, t);
    return &f->t->terms.at[f->t->terms.n - 1];
}

static const Group *group(Cost *c, Axes axes)
{
    if (!c->grouped[axes]) {
        c->groups[axes] = price_group(&c->prices, &c->mesh, axes);
        c->grouped[axes] = true;
    }
    return &c->groups[axes];
}

/* A collective over one axis in which a rank receives (p-1)/p of `columns` per token of its
 * x share, the whole counted. */
static Term *collective(Fill *f, RingKind ring, Axes axes, double columns, double bytes)
{
    const Group *g = group(f->c, axes);
    if (g->size <= 1)
        return &f->none;
    Term *t = term(f, TERM_COLLECTIVE);
    double part = (double)(g->size - 1) / g->size;
    t->axis = axes & AX_X && !(axes & AX_Z) ? 0 : axes & AX_YK ? 1 : 2;
    t->group = *g;
    t->ring = ring;
    t->calls = 1;
    t->token_bytes = columns * f->real * part / f->x;
    t->bytes = bytes * part;
    return t;
}

/* Of a matrix over x: runs beside the compute. */
static void spread(Fill *f, RingKind ring, double bytes, Kept kept)
{
    Term *t = collective(f, ring, AX_X, 0, bytes);
    t->hidden = true;
    t->kept = kept;
}

static void started(Fill *f, int n)
{
    f->t->kernels[f->k->backward] += n;
    if (f->k->again)
        f->t->kernels[2] += n;
}

static void product(Fill *f, ProductForm form, double m, double n, double k, double more)
{
    Term *t = term(f, TERM_PRODUCT);
    t->sums_tokens = form == FORM_TN;
    t->form = form;
    t->m = m;
    t->n = n;
    t->k = k;
    t->bytes = more;
    started(f, 1);
    f->t->flops[t->backward] += 2 * m * n * k;
    f->t->flops[2] += t->again ? 2 * m * n * k : 0;
}

/* In summa(q): q calls that each send a block to the whole group, or sum one on a member. A
 * block passes a ring in pieces, so a call takes as long as receiving the block once. */
static void blocks(Fill *f, RingKind ring, Axes axes, double columns, double bytes)
{
    const Group *g = group(f->c, axes);
    Term *t = term(f, TERM_COLLECTIVE);
    t->axis = axes & AX_YK ? 1 : 2;
    t->group = *g;
    t->ring = ring;
    t->rooted = true;
    t->calls = g->size;
    t->token_bytes = columns * f->real * g->size;
    t->bytes = bytes * g->size;
}

/* The three products of lower_summa.c: blocks of in/q and out/q columns, T/q rows. */
static void summa_terms(Fill *f)
{
    const Kernel *k = f->k;
    int q = f->c->is.summa;
    double in = k->in / q, out = k->out / q, weights = in * out * f->real, share = 1.0 / q;
    bool backward = k->op->kind == OP_LINEAR_DX;
    if (k->op->kind == OP_LINEAR_DW) {
        blocks(f, RING_GATHER, AX_YK, (k->transposed ? out : in) / q, 0);
        for (int l = 0; l < q; l++)
            product(f, FORM_TN, in, out, share, in * out * 2 * f->c->gradient);
        blocks(f, RING_SUM, AX_Z, 0, in * out * f->c->gradient);
        return;
    }
    blocks(f, RING_GATHER, AX_Z, 0, weights);
    if (backward != k->transposed)
        blocks(f, RING_SUM, AX_YK, (backward ? in : out) / q, 0);
    else
        blocks(f, RING_GATHER, AX_YK, (backward ? out : in) / q, 0);
    for (int l = 0; l < q; l++)
        product(f, backward ? FORM_NT : FORM_NN, share, backward ? in : out,
                backward ? out : in, 0);
}

/* What a linear holds. Of A to B the input is gathered over y, as the output is split; its
 * gradient and the output's are gathered or whole sums likewise. */
static void linear_bytes(Fill *f, double in, double out, double ways_in, double ways_out)
{
    TurnClass *t = f->t;
    const Kernel *k = f->k;
    double e = f->real, block = in * out;
    double inputs = ways_out > 1 ? in * e / f->x : 0, outputs = ways_in > 1 ? out * e / f->x : 0;
    if (k->loss) {
        t->loss_token = larger(t->loss_token, inputs + in * e / f->x);
        t->loss_block = larger(t->loss_block, block);
        return;
    }
    if (k->op->kind == OP_LINEAR) {
        // attention's backward pass reads its result where it lies, too
        double instead = inputs > 0 && !k->attended ? k->in * e / f->xyz : 0;
        t->input_bytes[0] += inputs - instead;
        t->input_bytes[1] += k->attended ? 0 : inputs - instead;
        t->blocks += block;
    } else if (k->op->kind == OP_LINEAR_DW) {
        double rows = (k->in + k->out) * e / f->xyz;
        t->transient_bytes = larger(t->transient_bytes, rows + 2 * inputs + outputs);
        t->block = larger(t->block, block);
    }
}

/* Rows of a table's results are sums over y. */
static void table_bytes(Fill *f)
{
    TurnClass *t = f->t;
    double out = f->k->out / f->z, block = f->k->rows * out / f->y;
    t->transient_bytes = larger(t->transient_bytes, (f->y > 1 ? 2 : 1) * out * f->real / f->x);
    t->blocks += f->k->backward ? 0 : block;
    t->table = larger(t->table, block);
}

/* Linear of `in` columns in layout A to `out` in B (or back): in is split over one of y, z
 * and out over the other. */
static void linear_terms(Fill *f)
{
    const Kernel *k = f->k;
    double ways_in = k->from_a ? f->z : f->y, ways_out = k->from_a ? f->y : f->z;
    Axes gather = k->from_a ? AX_YK : AX_Z, scatter = k->from_a ? AX_Z : AX_YK;
    double in = k->in / ways_in, out = k->out / ways_out;
    double weights = in * out * f->real, share = 1.0 / f->x;
    linear_bytes(f, in, out, ways_in, ways_out);
    if (k->op->kind == OP_LINEAR) {
        collective(f, RING_GATHER, gather, in, 0);
        spread(f, RING_GATHER, weights, KEPT_ONCE);
        product(f, FORM_NN, share, out, in, 0);
        collective(f, RING_SUM, scatter, out, 0);
    } else if (k->op->kind == OP_LINEAR_DX) {
        collective(f, RING_GATHER, scatter, out, 0);
        spread(f, RING_GATHER, weights, KEPT_WEIGHT);
        product(f, FORM_NT, share, in, out, 0);
        collective(f, RING_SUM, gather, in, 0);
    } else {
        collective(f, RING_GATHER, gather, in, 0)->kept = KEPT_INPUT;
        product(f, FORM_TN, in, out, share, in * out * 2 * f->c->gradient);
        spread(f, RING_SUM, in * out * f->c->gradient, KEPT_NEVER);
    }
}

/* What attention receives from the ranks that share its sequences, and returns to them. */
static void attention_collectives(Fill *f, double heads_y)
{
    const Kernel *k = f->k;
    const Choices *is = &f->c->is;
    double q = k->in, kv = k->keys + k->out;
    Axes xz = AX_X | AX_Z;
    if (is->attention == ATT_GATHER) {
        Term *t = collective(f, RING_GATHER, xz, kv / heads_y * f->x, 0);
        t->kept = k->backward ? KEPT_KEYS : KEPT_NEVER;
        if (k->backward)
            collective(f, RING_SUM, xz, kv / heads_y * f->x, 0);
    } else if (is->attention == ATT_EXCHANGE) {
        double ways = f->y * f->z;
        collective(f, RING_GATHER, xz, (2 * q + kv) / ways, 0);
        if (k->backward)
            collective(f, RING_GATHER, xz, (2 * q + kv) / ways, 0)->kept = KEPT_KEYS;
    }
}

static void attention_terms(Fill *f)
{
    const Kernel *k = f->k;
    const Op *o = k->op;
    const Choices *is = &f->c->is;
    double q = k->in, keys = k->keys, values = k->out;
    double heads_y = o->kv_heads < f->y ? o->kv_heads : f->y;
    Term *t = term(f, TERM_ATTENTION);
    Attention *a = &t->attention;
    a->causal = o->causal;
    a->window = o->window;
    a->gather = is->attention == ATT_GATHER && f->x * f->z > 1;
    a->pair_flop = 2 * (q + q / keys * values) / f->xyz;
    a->heads = o->heads / f->xyz;
    a->hd = q / o->heads;
    a->per_kv = (double)o->heads / o->kv_heads;
    a->query_bytes = 2 * q * f->real / f->xyz;
    double ways = heads_y * (a->gather ? 1 : f->x * f->z);
    a->key_bytes = (keys + values) * f->real / ways;
    started(f, k->backward ? 2 : 1);
    double all = (keys + values) / ways, wide = f->c->element < 4 ? 4 : f->real;
    if (k->backward) {
        double rows = (3 * q + keys + values) * f->real / f->xyz;
        f->t->transient_bytes = larger(f->t->transient_bytes, rows + all * (f->real + wide));
        return;
    }
    f->t->kv_bytes += a->key_bytes;
    f->t->dkv_bytes += all * wide;
    f->t->kv_local += (keys + values) * f->real / heads_y / (f->x * f->z);
}

static void loss_terms(Fill *f)
{
    const Kernel *k = f->k;
    bool loss = k->op->kind == OP_CE;
    term(f, TERM_BYTES)->token_bytes = k->out / f->xyz * f->real * (loss ? 1 : 2);
    started(f, 1);
    const Group *g = group(f->c, AX_YK);
    if (!loss || g->size <= 1)
        return;
    Term *r = term(f, TERM_COLLECTIVE);
    r->axis = 1;
    r->group = *g;
    r->ring = RING_ALL;
    r->calls = 2;
    r->token_bytes = 12.0 / (f->x * f->z);
}

static void run_terms(Fill *f)
{
    const Kernel *k = f->k;
    Term *t = term(f, TERM_BYTES);
    t->token_bytes = k->out * f->real / f->xyz;
    if (k->backward)
        f->t->transient_bytes = larger(f->t->transient_bytes, t->token_bytes);
    started(f, 1);
    bool over_z = k->from_a && !f->c->is.summa;         // in summa(q) columns lie by y alone
    const Group *g = group(f->c, over_z ? AX_Z : AX_YK);
    if (k->reduced && g->size > 1) {
        Term *c = term(f, TERM_COLLECTIVE);
        c->axis = over_z ? 2 : 1;
        c->group = *g;
        c->ring = RING_ALL;
        c->calls = 1;
        c->token_bytes = 2.0 * k->reduced * f->c->gradient * (g->size - 1) / f->xyz;
    }
}

static void kernel_terms(Fill *f)
{
    const Kernel *k = f->k;
    if (k->run) {
        run_terms(f);
        return;
    }
    switch (k->op->kind) {
    case OP_LINEAR: case OP_LINEAR_DX: case OP_LINEAR_DW:
        (f->c->is.summa ? summa_terms : linear_terms)(f);
        break;
    case OP_ATTN: case OP_ATTN_DX:
        attention_terms(f);
        break;
    case OP_CE: case OP_CE_DX:
        loss_terms(f);
        break;
    case OP_EMBED: case OP_EMBED_DW: {
        double w = k->out / f->z;
        table_bytes(f);
        term(f, TERM_BYTES)->token_bytes = 2 * w * f->real / f->x;
        started(f, 1);
        // rows of the table lie by y, in summa(q) by z
        collective(f, k->backward ? RING_GATHER : RING_SUM, f->c->is.summa ? AX_Z : AX_YK, w, 0);
        break;
    }
    default:
        term(f, TERM_BYTES)->token_bytes = k->out * f->real / f->xyz;
        started(f, 1);
    }
}

static void class_fill(Cost *c, const TurnShape *s, TurnClass *t)
{
    Terms terms = t->terms;
    bool vectors = false;
    const Choices *is = &c->is;
    Fill f = { .c = c, .t = t, .x = is->x, .y = is->y, .z = is->z, .real = c->element,
               .xyz = (double)is->x * is->y * is->z };
    *t = (TurnClass){ .key = s->key, .name = s->name, .terms = terms };
    t->terms.n = 0;
    for (int i = 0; i < s->kernels.n; i++) {
        f.k = &s->kernels.at[i];
        kernel_terms(&f);
        t->nattention = t->terms.n && t->terms.at[t->terms.n - 1].kind == TERM_ATTENTION
                      ? t->terms.n : t->nattention;
    }
    for (int i = 0; i < s->kernels.n; i++) {        // behind the terms that context adds to
        f.k = &s->kernels.at[i];
        if (!f.k->run && (f.k->op->kind == OP_ATTN || f.k->op->kind == OP_ATTN_DX))
            attention_collectives(&f, f.k->op->kv_heads < f.y ? f.k->op->kv_heads : f.y);
    }
    for (int i = 0; i < 3; i++)
        t->saved_bytes[i] = (s->saved[i] + (f.z > 1 && i != RECOMPUTE_FULL ? s->split : 0)) *
                            f.real / f.xyz;
    for (int i = 0; i < s->weights.n; i++) {
        const Weight *w = &s->weights.at[i];
        bool vector = w->kind == PARAM_VECTOR;
        t->parameters += vector ? w->columns / (w->by_y ? f.y : f.z) : w->rows * w->columns / f.xyz;
        t->units += !vector;
        vectors |= vector;
    }
    t->units += vectors;            // those of a turn travel together
}

void cost_fill(Cost *c, const Plan *p, const Shape *s, const Choices *is)
{
    static const int bytes[] = { 8, 4, 2, 2, 1 };
    Plan there = *p;                // with these choices
    there.is = *is;
    c->plan = p;
    c->shape = s;
    c->is = *is;
    c->is_piped = is->stages > 1 || is->chunks > 1 || is->nslices > 1;
    c->prices = price_list(&there);
    c->mesh = price_mesh_of(p, is->data, is->stages, is->x, is->y, is->z);
    memset(c->grouped, 0, sizeof c->grouped);
    group(c, AX_DATA);
    c->nturns = s->nturns;
    c->class_of = s->class_of;
    c->head = s->head;
    c->tail = s->tail;
    c->cut_width = s->cut_width;
    c->element = bytes[is->precision];
    c->gradient = c->element >= 4 ? c->element : p->config->train.reduce_bf16 ? 2 : 4;
    if (c->classes.n == 0) {
        c->classes.at = NEWN(TurnClass, s->classes.n);
        c->classes.n = c->classes.cap = s->classes.n;
    }
    for (int i = 0; i < s->classes.n; i++)
        class_fill(c, &s->classes.at[i], &c->classes.at[i]);
    double xyz = (double)is->x * is->y * is->z;
    c->tied = s->tied / xyz;
    double logits = ceil((double)p->vocab / is->y) * (c->element < 4 ? 4 : c->element);
    c->logits_bytes = s->turns_only || p->vocab <= 0 ? 0    // a sum over z, and the rank's share
                    : is->z > 1 ? logits * (1 + 1.0 / is->z) : logits;
}

/* What `keep` pins; partition chooses what is open. */
static void read_keep(Cost *c)
{
    const char *keep = c->plan->config->plan.keep.v;
    bool both = keep && strcmp(keep, "both") == 0;
    c->keep_inputs = both || (keep && strcmp(keep, "inputs") == 0);
    c->keep_weights = both || (keep && strcmp(keep, "weights") == 0);
}

Cost *cost_new(Plan *p, bool turns_only)
{
    Cost *c = NEW(Cost);
    cost_fill(c, p, shape_of(p, turns_only), &p->is);
    read_keep(c);
    return c;
}
