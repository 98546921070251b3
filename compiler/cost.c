/*
 * cost.c - what things cost in seconds: matrix products, kernels that move bytes,
 * collectives, transfers; and from these a pass of a slice over one turn.
 *
 * The unit is a second of wall time on one rank. Parameters are the device and
 * cluster sections; without them this machine is assumed (see assumed_machine).
 * What the list keeps per turn is a list of terms, each linear in the tokens of
 * the slice but for these two:
 *
 *   product    max(2mnk / (matrix * e(m,n,k)), bytes / memory),
 *              e = TOP * k/(k + DEEP) * mn/(mn + tile)
 *   attention  FLOP of the (query, key) pairs / (matrix * ATTENTION), at least the bytes
 *   rows       bytes that enter or leave a run of row operators / (memory * STREAM)
 *   ring       steps * alpha + bytes received / rate of the group
 *
 * A pass takes the sum of its terms, or the time to start its kernels where that is
 * longer: the host runs ahead of the device (what starts a collective is in its alpha).
 * On a profiled machine products come from the measured grid, bytes from the measured
 * streams, attention from the measured turn where heads are of the same size, rings from
 * the measured calls, and starting kernels takes time of its own. Ranks of this machine
 * are priced as if each had its cores; the simulation shares them out (simulate.c).
 *
 * Rings: all-gather and reduce-scatter take p-1 steps and (p-1)/p of the whole; an
 * all-reduce is both. Groups inside a node have its link; one that crosses nodes has its
 * node's ports, shared with the groups of the node's other devices.
 *
 * Known lies: kernels never overlap each other; every rank is as fast as the next;
 * congestion between groups of different axes is left out; a ring is always a ring
 * (no trees, no hierarchy); a partial sum is reduced at the size of a stored number;
 * row operators move each stored operand once; conversions between the layouts A and
 * B outside of linears are not priced, nor what sharing one reduce-scatter saves.
 *
 * Letters: e bytes of a number, N tokens (b sequences of l), c context, p ranks of
 * a group, T tokens a rank's x share has.
 */
#include "partition.h"
#include "predict.h"

/* TUNING: best share of the matrix rate that products reach, and the depth k at which half
 * of it is lost. Aceso's V100 products (calib_v100_ops_aceso.csv, tensor parallel 1): 80 to
 * 87 of 125 TFLOP/s forward at k = 5120, 97 to 105 in the backward pass; 76 at k = 1024;
 * 60 at k = 512. */
static const double TOP = 0.76, DEEP = 100;
/* TUNING: results at which a product reaches half its speed, as a share of the matrix
 * rate: one wave of tiles over all units. 125 TFLOP/s: 5e5, 30 tiles of 128 x 128. The same
 * file: 2048 x 1024 x 1024 takes 73 us, 59 TFLOP/s. */
static const double TILE_SHARE = 1 / 2.5e8;
/* TUNING: fused attention on matrix units; 0.35 is what FlashAttention-2 reaches on
 * A100 forward and backward together with masks, less its best case of 0.6. */
static const double ATTENTION = 0.35;
/* Backward forms the scores again and makes three products of two: 5 to 2. */
static const double ATTENTION_BACK = 2.5;
/* TUNING: of the memory's rate that streaming kernels reach (stream benchmarks: 0.8 to 0.9). */
static const double STREAM = 0.8;
/* TUNING: to start a kernel, where the device section does not say. */
static const double LAUNCH_GPU = 5e-6, LAUNCH_CPU = 1e-6;

/* ---- the machine ------------------------------------------------------------------ */

static double num_or(Num n, double otherwise) { return n.set ? n.v : otherwise; }

/* TUNING: a core of this machine, until it is profiled: 60 GFLOP/s in fp32 products, 5
 * GB/s of memory. Ranks take turns on the cores, and memcpy is the link. */
static Prices assumed_machine(const Plan *p)
{
    int workers = p->is.workers > 1 ? p->is.workers : 1;
    double half = p->is.precision == PREC_FP64 ? 0.5 : 1;
    return (Prices){ .matrix = 60e9 * workers * half, .vector = 8e9 * workers * half,
                     .memory = 5e9 * workers, .launch = LAUNCH_CPU, .tile = 256, .link = 5e9,
                     .link_alpha = 2e-6, .port = 5e9, .port_alpha = 2e-6, .ports = 1,
                     .per_node = 1 << 20, .nodes = 1, .assumed = true,
                     .cores = machine_cores(), .workers = workers };
}

/* What was measured takes the place of the data sheet. */
static void use_profile(Prices *w, const Profile *f, const Plan *p)
{
    int ranks = plan_ranks(p), here = ranks < w->per_node ? ranks : w->per_node;
    double alpha, rate;
    w->workers = w->workers > 1 ? w->workers : 1;
    w->at_work = (double)here * w->workers < f->cores ? (double)here * w->workers : f->cores;
    w->profile = f;
    w->ranks = here;
    w->serial = true;
    w->assumed = false;
    w->matrix = w->workers * profile_peak(f, p->is.precision == PREC_FP64, w->at_work);
    w->memory = w->workers * f->streams.at[f->streams.n - 1].rate[w->at_work > 1];
    w->launch = f->step[w->workers > 1];
    if (profile_ring(f, RING_SEND, 2, 2, &alpha, &rate)) {
        w->link_alpha = alpha;
        w->link = rate;
    }
}

Prices cost_prices(const Plan *p)
{
    const Config *c = p->config;
    Prices w = { .workers = 1 };
    if (!c->has_cluster || c->cluster.device < 0) {
        w = assumed_machine(p);
        if (c->here)
            use_profile(&w, c->here, p);
        return w;
    }
    const Cluster *k = &c->cluster;
    const Device *d = &c->devices.at[k->device];
    w.vector = num_or(d->vector, 10e12);
    double matrix = num_or(d->matrix, 8 * w.vector);
    switch (p->is.precision) {
    case PREC_FP64: w.matrix = num_or(d->matrix_fp64, w.vector / 2); break;
    case PREC_FP32: w.matrix = num_or(d->matrix_fp32, w.vector); break;
    case PREC_FP8: w.matrix = num_or(d->matrix_fp8, matrix); break;
    default: w.matrix = matrix;
    }
    w.memory = num_or(d->bandwidth, 1e12);
    w.launch = num_or(d->launch, d->arch.v && strncmp(d->arch.v, "sm_", 3) == 0 ? LAUNCH_GPU
                                                                                : LAUNCH_CPU);
    w.tile = w.matrix * TILE_SHARE;
    w.nodes = (int)num_or(k->nodes, 1);
    w.per_node = (int)num_or(k->per_node, 1);
    w.port = num_or(k->network_rate, num_or(k->link_rate, 25e9));
    w.port_alpha = num_or(k->network_latency, 10e-6);
    w.link = num_or(k->link_rate, w.port);
    w.link_alpha = num_or(k->link_latency, 5e-6);
    w.ports = (int)num_or(k->ports, 1);
    if (k->spine_nodes.set) {
        w.spine_nodes = (int)k->spine_nodes.v;
        w.spine = num_or(k->spine_rate, w.port);
        w.spine_alpha = num_or(k->spine_latency, w.port_alpha);
    }
    if (d->rates)
        use_profile(&w, d->rates, p);
    return w;
}

static int axis_size(const Plan *p, const char *a)
{
    switch (*a) {
    case 's': return p->is.stages;
    case 'd': return p->is.data;
    case 'x': return p->is.x;
    case 'y': return p->is.y;
    default: return p->is.z;
    }
}

int cost_stride(const Plan *p, const char *axis)
{
    static const char *const usual[] = { "stage", "data", "x", "y", "z" };
    const PlanSpec *s = &p->config->plan;
    int stride = 1;
    for (int i = 5; i-- > 0;) {
        const char *a = s->ranks.n == 5 ? s->ranks.at[i] : usual[i];
        if (*a == *axis)
            return stride;
        stride *= axis_size(p, a);
    }
    return stride;
}

/* Members of the group of rank 0, and how the nodes lie under them. */
Group cost_group(const Plan *p, const Prices *w, Axes axes)
{
    static const struct { Axes axis; const char *name; } all[] = {
        { AX_DATA, "data" }, { AX_X, "x" }, { AX_YK, "y" }, { AX_Z, "z" } };
    Group g = { .size = 1, .rate = w->link, .alpha = w->link_alpha };
    int reach = 0, here = 1;            // farthest member; members in the first node
    for (int i = 0; i < 4; i++)
        if (axes & all[i].axis) {
            g.size *= axis_size(p, all[i].name);
            reach += (axis_size(p, all[i].name) - 1) * cost_stride(p, all[i].name);
        }
    if (reach < w->per_node) {
        double steps = g.size > 1 ? g.size - 1 : 1;
        if (w->profile && g.size > 1) {
            if (profile_ring(w->profile, RING_GATHER, g.size, w->ranks, &g.alpha, &g.rate))
                g.alpha /= steps;
            if (profile_ring(w->profile, RING_SUM, g.size, w->ranks, &g.sum_alpha, &g.sum_rate))
                g.sum_alpha /= steps;
        }
        return g;
    }
    here = 0;
    for (int rank = 0; rank < w->per_node && rank <= reach; rank++) {
        bool in = true;
        for (int i = 0; i < 5; i++) {
            static const char *const name[] = { "stage", "data", "x", "y", "z" };
            static const Axes of[] = { 0, AX_DATA, AX_X, AX_YK, AX_Z };
            int coord = rank / cost_stride(p, name[i]) % axis_size(p, name[i]);
            in &= coord == 0 || (axes & of[i]);
        }
        here += in;
    }
    if (here < 1)
        here = 1;
    double groups = (double)w->per_node / here;
    double rate = w->ports * w->port / groups;
    bool spine = w->spine_nodes && reach >= w->spine_nodes * w->per_node;
    if (spine && w->spine * w->ports / groups < rate)
        rate = w->spine * w->ports / groups;
    g.crosses = true;
    g.rate = rate < w->link ? rate : w->link;
    g.alpha = spine ? w->spine_alpha : w->port_alpha;
    return g;
}

/* ---- prices ------------------------------------------------------------------------ */

/* Workers of a rank cut the larger side of a result. */
static double measured_product(const Prices *w, ProductForm form, double m, double n, double k,
                               double e)
{
    *(m >= n ? &m : &n) /= w->workers;
    return profile_product(w->profile, e > 4, form, m, n, k, w->at_work);
}

double cost_product(const Prices *w, ProductForm form, double m, double n, double k, double e,
                    double more_bytes)
{
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    double speed = w->matrix * TOP * k / (k + DEEP) * (m * n / (m * n + w->tile));
    double flop_s = w->profile ? measured_product(w, form, m, n, k, e) : 2 * m * n * k / speed;
    double bytes_s = cost_bytes(w, e * (m * k + k * n + m * n) + more_bytes);
    return flop_s > bytes_s ? flop_s : bytes_s;
}

double cost_bytes(const Prices *w, double bytes)
{
    return w->profile ? profile_stream(w->profile, bytes / w->workers, w->at_work)
                      : bytes / (w->memory * STREAM);
}

double cost_ring(const Group *g, RingKind kind, double steps, double bytes)
{
    double moves = steps * g->alpha + bytes / g->rate;
    double sums = g->sum_rate > 0 ? steps * g->sum_alpha + bytes / g->sum_rate : moves;
    if (g->size <= 1)
        return 0;
    return kind == RING_GATHER ? moves : kind == RING_SUM ? sums : (moves + sums) / 2;
}

double cost_pairs(const Term *t, double b, double l, double c, double L)
{
    double pairs;
    if (!t->causal)
        pairs = l * L;
    else
        pairs = l * c + l * (l + 1) / 2;
    if (t->causal && t->window > 0 && c + l > (double)t->window) {
        double w = (double)t->window, full = c + l - (c > w ? c : w);   // rows that see w keys
        double rest = l - full;                                          // rows c+1 .. c+rest
        pairs = full * w + rest * c + rest * (rest + 1) / 2;
    }
    return b * pairs;
}

/* A rank of stage r receives `bytes` from the stage before it (after it, for gradients). */
double cost_transfer(const Cost *c, int r, bool forward, double bytes)
{
    const Plan *p = c->plan;
    const Prices *w = &c->prices;
    int stride = cost_stride(p, "stage"), P = p->is.stages;
    int from = forward ? (r + P - 1) % P : (r + 1) % P;
    int a = from * stride / w->per_node, b = r * stride / w->per_node;
    if (P == 1)
        return 0;
    if (a == b)
        return w->link_alpha + bytes / w->link;
    int sending = 0;                    // devices of the sender's node that send elsewhere
    for (int rank = a * w->per_node; rank < (a + 1) * w->per_node && rank < plan_ranks(p); rank++) {
        int stage = rank / stride % P, to = forward ? (stage + 1) % P : (stage + P - 1) % P;
        bool ends = forward ? stage == P - 1 : stage == 0;
        if (!ends && (rank + (to - stage) * stride) / w->per_node != a)
            sending++;
    }
    double rate = w->ports * w->port / (sending > 0 ? sending : 1);
    return w->port_alpha + bytes / (rate < w->link ? rate : w->link);
}

double cost_sync(const Cost *c, double parameters)
{
    int d = c->plan->is.data;
    Group g = cost_group(c->plan, &c->prices, AX_DATA);
    double part = parameters * c->gradient * (d - 1) / d;
    return d == 1 ? 0 : c->plan->is.zero >= 1 ? cost_ring(&g, RING_SUM, d - 1, part)
                                              : cost_ring(&g, RING_ALL, 2 * (d - 1), 2 * part);
}

double cost_update(const Cost *c, double parameters, double *gather_s)
{
    const Plan *p = c->plan;
    int d = p->is.data;
    double moments = p->config->train.optimizer == OPT_ADAMW ? 2 : 1, wide = c->gradient;
    double bytes = wide * (1 + 2 * moments) + 2 * (c->element < 4 ? 4 : c->element) +
                   (c->element < 4 ? c->element : 0);
    Group g = cost_group(p, &c->prices, AX_DATA);
    bool shards = p->is.zero >= 1 && d > 1;
    double whole = parameters * c->element * (d - 1) / d;
    *gather_s = shards ? cost_ring(&g, RING_GATHER, d - 1, whole) : 0;
    return cost_bytes(&c->prices, bytes * (shards ? parameters / d : parameters));
}

/* ---- a pass over one turn ------------------------------------------------------------ */

static void add_time(Seconds *s, int axis, double t)
{
    *(axis == 0 ? &s->x : axis == 1 ? &s->y : &s->z) += t;
}

/* From the measured turn; rows in order: the last rank of x, z sees the most keys. */
static double measured_attention(const Cost *c, const Term *t, const TurnRate *turn, double b,
                                 double l, double context)
{
    double parts = t->gather ? c->plan->is.x * c->plan->is.z : 1, rows = l / parts;
    double before = c->plan->is.balanced ? (l - rows) / 2 : l - rows;
    return b * t->heads * parts / c->prices.workers *
           profile_attention(turn, t->backward, rows, context + before);
}

static const TurnRate *turn_of(const Cost *c, const Term *t)
{
    bool plain = c->prices.profile && t->causal && t->window == 0;
    return plain ? profile_turn(c->prices.profile, c->element > 4, (int)t->hd, t->per_kv) : NULL;
}

static double attention_s(const Cost *c, const Term *t, double b, double l, double context)
{
    const TurnRate *turn = turn_of(c, t);
    if (turn)
        return measured_attention(c, t, turn, b, l, context);
    double L = (double)c->plan->is.sequence;
    double flop = cost_pairs(t, b, l, context, L) * t->pair_flop;
    if (t->gather && t->causal && !c->plan->is.balanced) {
        /* rows in order: the last rank of x, z sees the most keys */
        double g = c->plan->is.x * c->plan->is.z;
        flop = b * l * (context + l - l / g / 2) * t->pair_flop;
    }
    double keys = t->causal && t->window && context + l > (double)t->window ? (double)t->window + l
                                                                       : context + l;
    double s = flop / (c->prices.matrix * ATTENTION);
    double bytes_s = cost_bytes(&c->prices, b * (l * t->token_bytes + keys * t->bytes));
    return (s > bytes_s ? s : bytes_s) * (t->backward ? t->ratio : 1);
}

/* Terms of a pass; context >= 0: only what attention adds over an empty context. */
static PassCost terms_pass(const Cost *c, int class, double b, double l, double context)
{
    const TurnClass *t = &c->classes.at[class];
    const Prices *w = &c->prices;
    PassCost out = { 0 };
    double N = b * l, hidden[2] = { 0 }, again = 0;
    for (int i = 0; i < (context > 0 ? t->nattention : t->terms.n); i++) {
        const Term *u = &t->terms.at[i];
        Seconds *s = u->backward ? &out.backward : &out.forward;
        double sec = 0;
        switch (u->kind) {
        case TERM_PRODUCT:
            sec = u->sums_tokens
                ? cost_product(w, u->form, u->m, u->n, u->k * N, c->element, u->bytes)
                : cost_product(w, u->form, u->m * N, u->n, u->k, c->element, u->bytes);
            s->compute += sec;
            break;
        case TERM_BYTES:
            s->compute += cost_bytes(w, u->token_bytes * N + u->bytes);
            break;
        case TERM_ATTENTION:
            sec = attention_s(c, u, b, l, context);
            if (context > 0)
                sec -= attention_s(c, u, b, l, 0);
            s->compute += sec;
            again += u->backward ? 0 : sec;
            break;
        case TERM_COLLECTIVE:
            sec = cost_ring(&u->group, u->ring, u->steps, u->token_bytes * N + u->bytes);
            if (u->hidden)
                hidden[u->backward] += sec;
            else
                add_time(s, u->axis, sec);
        }
    }
    /* Weights of the next turn travel while this one computes. */
    if (hidden[0] > out.forward.compute)
        out.forward.x += hidden[0] - out.forward.compute;
    if (hidden[1] > out.backward.compute)
        out.backward.x += hidden[1] - out.backward.compute;
    const char *recompute = c->plan->config->plan.recompute.v;
    if (recompute && strcmp(recompute, "attention") == 0)
        out.backward.recompute = again;
    else if (recompute && strcmp(recompute, "full") == 0 && class != c->head && class != c->tail) {
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
    Group g = cost_group(b->p, &b->c->prices, axes);
    if (g.size <= 1)
        return;
    Term *t = term(b, TERM_COLLECTIVE, o);
    double part = (double)(g.size - 1) / g.size;
    t->axis = axes & AX_X && !(axes & AX_Z) ? 0 : axes & AX_YK ? 1 : 2;
    t->group = g;
    t->ring = ring;
    t->steps = g.size - 1;
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
    t->causal = o->causal;
    t->window = o->window;
    t->gather = is->attention == ATT_GATHER && is->x * is->z > 1;
    t->pair_flop = 2 * (q + q / k * v) / b->xyz;
    t->ratio = ATTENTION_BACK;
    t->heads = o->heads / b->xyz;
    t->hd = q / o->heads;
    t->per_kv = (double)o->heads / o->kv_heads;
    t->token_bytes = 2 * q * b->real / b->xyz;
    t->bytes = (k + v) * b->real / heads_y / (t->gather ? 1 : is->x * is->z);
    b->t->kernels[back] += back ? 2 : 1;
    if (back)
        return;
    b->t->kv_bytes += t->bytes;
    b->t->dkv_bytes += (k + v) * b->c->gradient / heads_y / (t->gather ? 1 : is->x * is->z);
}

static void loss_terms(Build *b, const Op *o, const TensorId logits)
{
    double V = (double)tensor(b, logits)->width / b->xyz;
    Group g = cost_group(b->p, &b->c->prices, AX_YK);
    Term *t = term(b, TERM_BYTES, o);
    t->token_bytes = V * b->real * (o->kind == OP_CE ? 1 : 2);
    b->t->kernels[t->backward]++;
    if (o->kind != OP_CE || g.size <= 1)
        return;
    Term *r = term(b, TERM_COLLECTIVE, o);
    r->axis = 1;
    r->group = g;
    r->ring = RING_ALL;
    r->steps = 4 * (g.size - 1);
    r->token_bytes = 12.0 / (b->p->is.x * b->p->is.z);
}

/* What is no row operator and no view. */
static void op_terms(Build *b, OpId id)
{
    const Op *o = &b->p->ops.at[id];
    switch (o->kind) {
    case OP_LINEAR: case OP_LINEAR_DX: case OP_LINEAR_DW:
        linear_terms(b, id);
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
        term(b, TERM_BYTES, o)->token_bytes = 2 * w * b->real / b->p->is.z / b->p->is.x;
        b->t->kernels[o->kind == OP_EMBED_DW]++;
        collective(b, o, o->kind == OP_EMBED ? RING_SUM : RING_GATHER, AX_YK, w / b->p->is.z, 0,
                   false);
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
    Group g = cost_group(b->p, &b->c->prices, r->wide_a ? AX_Z : AX_YK);
    if (r->reduced && g.size > 1) {
        Term *c = term(b, TERM_COLLECTIVE, r->first);
        c->axis = r->wide_a ? 2 : 1;
        c->group = g;
        c->ring = RING_ALL;
        c->steps = 2 * (g.size - 1);
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
            const char *rec = b->p->config->plan.recompute.v;
            if (rec && strcmp(rec, "attention") == 0)
                columns -= (double)(tensor(b, o->out[0])->width + tensor(b, o->out[1])->width);
        }
    }
    b->t->saved_bytes = (columns > 0 ? columns : 0) * b->real / b->xyz;
    const char *rec = b->p->config->plan.recompute.v;
    if (rec && strcmp(rec, "full") == 0 && owner >= 0 && owner < b->c->nturns) {
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
    c->prices = cost_prices(p);
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
