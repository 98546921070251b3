/*
 * estimate.c - the step of one layout in closed form (estimate.h).
 *
 * A stage's units are (microbatch, slice, chunk). With f and g the seconds of a unit
 * forward and backward, F and G their sums over the k slices and v chunks of one
 * microbatch, x a transfer between stages, P stages, m microbatches, R the stage with
 * the largest sum:
 *
 *   gpipe        m F_R + sum over r != R of max f  +  the same of G     exact for equal
 *                                                     stages, see slice.h
 *   1f1b         m (F_R + G_R) + sum over r != R of (max f + max g)
 *   interleaved  the same with f and g of one chunk
 *
 * and every transfer of the first unit's way there and back, through all chunks. With 1f1b a
 * stage has at most so many units in flight; where their way to the last stage and back takes
 * longer than the stage works on them, it waits once for each such round.
 *
 * A stage ends its last backward before stage 0 does, by what the gradient has to go
 * down from it; meanwhile it sums what that pass did not hide of its gradients over data. The
 * step ends with the stage whose update ends last; `part` is that stage's time, and what it
 * waits for is the bubble.
 *
 * Sections that have the same turns are priced once, classes of turns once for each length
 * of a slice. Nothing is allocated once a cube has been seen.
 *
 * Known lies: see price.c and cost.c; slices of unequal time and unequal stages are an
 * upper bound for gpipe and an estimate otherwise.
 */
#include "estimate.h"
#include "partition.h"

const char *const keep_word[] = { [KEEP_BOTH] = "both", [KEEP_INPUTS] = "inputs",
                                  [KEEP_NONE] = "none", [KEEP_WEIGHTS] = "weights" };

const char *const reject_word[REJECTS] = {
    [LEGAL] = "legal", [REJECT_DEVICES] = "devices-match", [REJECT_BATCH] = "batch-divides",
    [REJECT_WIDTH] = "width-divides", [REJECT_HEADS] = "heads-divide",
    [REJECT_ROWS] = "rows-divide", [REJECT_ATTENTION] = "attention-heads",
    [REJECT_LAYERS] = "layers-cover", [REJECT_GROUPS] = "chunk-groups",
    [REJECT_SLICES] = "slice-causal", [REJECT_EFFECT] = "no-effect",
    [REJECT_PARTITION] = "partition", [REJECT_STEPS] = "too-large",
    [REJECT_MEMORY] = "memory-fits",
};
const char *const reject_text[REJECTS] = {
    [LEGAL] = "can be laid out",
    [REJECT_DEVICES] = "data, stages and cube do not multiply to the cluster's devices",
    [REJECT_BATCH] = "the batch does not split into replicas and microbatches",
    [REJECT_WIDTH] = "a width does not split over y or z",
    [REJECT_HEADS] = "heads do not split over y",
    [REJECT_ROWS] = "the tokens of a slice do not split over the cube",
    [REJECT_ATTENTION] = "the kind of attention that was pinned is not possible",
    [REJECT_LAYERS] = "turns do not cover stages and chunks",
    [REJECT_GROUPS] = "chunks pass the stages in whole groups of microbatches, and these are none",
    [REJECT_SLICES] = "attention that sees ahead cannot be sliced",
    [REJECT_EFFECT] = "something asked for has no effect",
    [REJECT_PARTITION] = "outside of the pinned partition",
    [REJECT_STEPS] = "a step has too many microbatches and slices for a table of it",
    [REJECT_MEMORY] = "does not fit",
};

/* ---- what is kept between calls --------------------------------------------------------- */

/* A pass, each way: all of its seconds, and of them compute; what making again adds. */
typedef struct { double all[2], compute[2], again[3]; } Pass;

/* Passes of l tokens over every class, by what is kept; once: gathering what is kept. */
typedef struct { int64_t l; int keep; bool sliced, piped; Pass *of; double *once; } Priced;

/* A mesh with its microbatch: terms, cuts, prices. Terms and transfers are the mesh's. */
typedef struct {
    Point at;                   // see same_cube
    int64_t stamp;              // no other cube has or had it
    Cost cost;
    struct { Priced *at; int n, cap; } priced;
    int sections, *turns;       // the last cut; 0: none yet
    double *weight;             // by class: seconds, for the cut
    bool has_weights;
    double *alpha[2], *slope[2];        // transfers into a stage, forward and back
    bool has_transfers;
    double tie;                 // seconds of a transfer of the tied weights
    int64_t grain, longest;     // slices are multiples of it; of the point at hand
    int64_t chunk_rows, chunk;  // the loss's chunks where an x share has so many rows
} Cube;

/* Bytes of a section, per token of a unit but where it says fixed: with inputs kept or not, with
 * weights kept (which are `kept`) or not. */
typedef struct { double saved[2], kv, dkv, work[2], fixed_work[2], kept; } Held;

/* Sections with the same turns of every class. */
typedef struct {
    int *count, *again;         // by class: all of it; that recompute = full computes again
    bool first, last;           // it holds the head, the tail
    int sections;
    Held held;
    double F, G, f, g;          // seconds of a microbatch, all slices; of the longest unit
    double once;                // gathering what is kept gathered for all passes
    double under;               // compute of the last pass
    double parameters, units, kernels[2];
    double more[3];             // by recompute: kernels that start again
} Kind;

/* Stages in a row that have the same sections, so many of each kind: seconds of a microbatch each
 * way, of the longest unit; of the step's begin and end. */
typedef struct { int kind, n; } Share;
typedef struct {
    int first, n;               // stages
    Share *of; int nkinds;
    double F, G, f, g, once, tied, sync, update, gather;
} Lane;

/* Seconds of transfers of a unit, each way: all of the way through the stages, the dearest,
 * through all stages and on to the next chunk; back: from each stage down to stage 0. */
typedef struct {
    int64_t stamp, longest; int chunks;     // what it is of
    double all[2], most[2], ring[2], *back;
} Way;

/* TUNING: meshes that are remembered: a search asks for the variants of one at a time, and
 * for a few in turn where it compares them. */
enum { CUBES = 8 };

struct Estimator {
    const Plan *of;
    const Shape *shape;
    int64_t devices;            // of the cluster; 0: any
    double matrices, pairs;     // for mfu: parameters in products; width x keys of attention
    Cube cube[CUBES]; int ncubes, oldest;
    int64_t stamps;
    int nclasses, **before;     // by class: turns of it before turn i
    int *run;                   // by turn: the first of the turns up to it that are of its class
    int *section, *done;        // by section: its kind; turns of its stage before and in it
    /* Of the point at hand, each with whose it is: kinds of sections and stages, what the kinds
     * hold, what they take. */
    struct { int64_t stamp; int chunks, again; } known;
    Kind *kind; int nkinds, room;
    Lane *lane; int nlanes;
    Share *share;               // of all lanes, one after another
    int64_t found;              // so many times: whose the kinds are
    struct { int64_t found; int recompute, zero, keep, sliced; } held, timed;
    Way way;
    double *weight;             // by turn: scratch of cut_of
};

static void count_classes(Estimator *e)
{
    const Shape *s = e->shape;
    e->nclasses = s->classes.n;
    e->before = NEWN(int *, e->nclasses + 1);
    for (int c = 0; c < e->nclasses; c++) {
        e->before[c] = NEWN(int, s->nturns + 1);
        for (int i = 0; i < s->nturns; i++)
            e->before[c][i + 1] = e->before[c][i] + (s->class_of[i] == c);
    }
    e->run = NEWN(int, s->nturns + 1);
    for (int i = 0; i < s->nturns; i++)
        e->run[i] = i && s->class_of[i] == s->class_of[i - 1] ? e->run[i - 1] : i;
}

static void count_flop(Estimator *e)
{
    const Plan *p = e->of;
    double L = (double)p->is.sequence;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind == OP_LINEAR && !(o->repeat < 0 && e->shape->turns_only))
            e->matrices += (double)p->tensors.at[o->in[0]].width *
                           (double)p->tensors.at[o->out[0]].width;
        if (o->kind == OP_ATTN) {
            double seen = o->window && (double)o->window < L ? (double)o->window : L;
            e->pairs += (double)p->tensors.at[o->in[0]].width * seen;
        }
    }
}

Estimator *estimator_new(const Plan *p, bool turns_only)
{
    Estimator *e = NEW(Estimator);
    const Config *c = p->config;
    e->of = p;
    e->shape = shape_of((Plan *)p, turns_only);     // found once: nothing else changes
    if (c->has_cluster)
        e->devices = (int64_t)(c->cluster.nodes.v * c->cluster.per_node.v);
    count_classes(e);
    count_flop(e);
    e->section = NEWN(int, e->shape->nturns + 1);
    e->done = NEWN(int, e->shape->nturns + 1);
    e->weight = NEWN(double, e->shape->nturns + 1);
    e->lane = NEWN(Lane, e->shape->nturns + 1);
    e->share = NEWN(Share, e->shape->nturns + 1);
    e->way.back = NEWN(double, e->shape->nturns + 1);
    return e;
}

void estimator_free(Estimator *e) { (void)e; }

/* ---- what can be -------------------------------------------------------------------- */

static int64_t microbatches(const Estimator *e, const Point *p)
{
    return e->of->is.batch / p->data / p->microbatch;
}

static Schedule shape(const Estimator *e, const Point *p)
{
    return (Schedule){ .kind = p->schedule, .P = p->stages, .v = p->chunks,
                       .m = (int)microbatches(e, p), .k = p->nslices, .b = p->microbatch,
                       .sequence = e->of->is.sequence };
}

static void choose_variant(const Estimator *e, const Point *p, Choices *is)
{
    const PlanSpec *s = &e->of->config->plan;
    is->chunks = p->chunks;
    is->nslices = p->nslices;
    is->zero = p->zero;
    is->recompute = p->recompute;
    is->recompute_turns = p->recompute_turns ? p->recompute_turns : INT32_MAX;
    is->shard_vectors = s->vectors.v ? strcmp(s->vectors.v, "sharded") == 0 : is->zero >= 2;
}

/* The choices that mesh.c makes for such a mesh; logits_chunk is not among them. */
static Choices choices(const Estimator *e, const Point *p)
{
    Choices is = e->of->is;
    const PlanSpec *s = &e->of->config->plan;
    is.data = p->data;
    is.stages = p->stages;
    is.x = p->x, is.y = p->y, is.z = p->z;
    is.microbatch = p->microbatch;
    is.T = p->microbatch * is.sequence;
    Attend a = mesh_attend(s, e->shape->sizes, &is);
    is.attention = a.attention;
    is.balanced = a.balanced;
    is.summa = word_is(s->partition, "summa") && p->y > 1 ? p->y : 0;
    choose_variant(e, p, &is);
    return is;
}

Choices estimate_choices(const Estimator *e, const Point *p)
{
    Choices is = choices(e, p);
    is.logits_chunk = mesh_chunk(e->of, &is, is.T / is.x);
    return is;
}

/* Slices are multiples of it. */
static int64_t grain(const Point *p, bool balanced)
{
    int64_t step = p->x * lcm64(p->y, p->z), g = step / gcd64(step, p->microbatch);
    return balanced ? lcm64(g, 2 * p->x * p->z) : g;
}

/* Of slice i; uniform ones differ by at most a granule, longer first. */
static int64_t slice_length(const Estimator *e, const Point *p, int64_t g, int i)
{
    int64_t units = e->of->is.sequence / g, k = p->nslices;
    return p->slice ? p->slice[i] : (units / k + (i < units % k)) * g;
}

static bool heads_divide(const MeshSizes *s, int y)     // no word of summa(q): it says width
{
    for (int i = 0; i < s->heads.n; i++) {
        const HeadSize *h = &s->heads.at[i];
        if (h->heads % y || (h->kv_heads % y && y % h->kv_heads))
            return false;
    }
    return true;
}

static Reject slices_legal(const Estimator *e, const Point *p)
{
    int64_t L = e->of->is.sequence, sum = 0;
    Choices is = choices(e, p);
    int64_t g = grain(p, is.balanced);
    if (L % g || L / g < p->nslices)
        return REJECT_ROWS;
    for (int i = 0; p->slice && i < p->nslices; i++) {
        if (p->slice[i] % g)
            return REJECT_ROWS;
        sum += p->slice[i];
    }
    return p->slice && sum != L ? REJECT_SLICES : LEGAL;
}

/* A pinned chunk of the logits: as mesh.c takes it. In summa(q) it is all rows. */
static bool chunk_divides(const Estimator *e, const Point *p)
{
    const PlanSpec *s = &e->of->config->plan;
    int64_t rows = p->microbatch * e->of->is.sequence / p->x, chunk = (int64_t)s->logits_chunk.v;
    if (word_is(s->partition, "summa") && p->y > 1)
        return chunk == rows;
    return chunk > 0 && rows % chunk == 0 && chunk % p->z == 0;
}

Reject estimate_legal(const Estimator *e, const Point *p)
{
    const Plan *o = e->of;
    const PlanSpec *s = &o->config->plan;
    int64_t ranks = (int64_t)p->data * p->stages * p->x * p->y * p->z;
    int xz = p->x * p->z;
    if (e->devices && ranks != e->devices)
        return REJECT_DEVICES;
    if (o->is.batch % (p->data * p->microbatch))
        return REJECT_BATCH;
    if (!heads_divide(e->shape->sizes, p->y))
        return REJECT_HEADS;
    if (p->microbatch * o->is.sequence % (p->x * lcm64(p->y, p->z)))
        return REJECT_ROWS;
    if (!mesh_splits(e->shape->sizes, p->y, p->z))
        return REJECT_WIDTH;
    int n = p->stages * p->chunks;
    if (n > o->layers || (s->turns.n > 0 && s->turns.n != n))
        return REJECT_LAYERS;
    if (s->logits_chunk.set && o->vocab > 0 && !chunk_divides(e, p))
        return REJECT_ROWS;
    if ((p->zero > 0 && p->data == 1) || (p->chunks > 1 && p->stages == 1))
        return REJECT_EFFECT;
    if (p->nslices > 1 && o->sees_ahead)
        return REJECT_SLICES;
    if (!family_allows(s, p->x, p->y, p->z))
        return REJECT_PARTITION;
    if (word_is(s->attention, "local") && p->microbatch % xz)
        return REJECT_ATTENTION;
    for (int i = 0; word_is(s->attention, "exchange") && i < e->shape->sizes->heads.n; i++) {
        const HeadSize *h = &e->shape->sizes->heads.at[i];
        if (h->heads % (p->y * xz) || h->kv_heads % (p->y * xz))
            return REJECT_ATTENTION;
    }
    Schedule sched = shape(e, p);
    if (sched.m % schedule_group(&sched))
        return REJECT_GROUPS;
    if (!schedule_fits(&sched))
        return REJECT_STEPS;
    return slices_legal(e, p);
}

static int64_t longest_slice(const Estimator *e, const Point *p, int64_t grain)
{
    int64_t most = slice_length(e, p, grain, 0);
    for (int i = 1; p->slice && i < p->nslices; i++)
        most = p->slice[i] > most ? p->slice[i] : most;
    return most;
}

/* ---- a cube ------------------------------------------------------------------------- */

static bool same_mesh(const Point *a, const Point *b)
{
    return a->data == b->data && a->stages == b->stages && a->x == b->x && a->y == b->y &&
           a->z == b->z;
}

static void keep_these(Cost *c, int keep)
{
    c->keep_inputs = keep == KEEP_BOTH || keep == KEEP_INPUTS;
    c->keep_weights = keep == KEEP_BOTH || keep == KEEP_WEIGHTS;
}

static int pinned_keep(const Estimator *e)
{
    const Word k = e->of->config->plan.keep;
    return k.v == NULL ? KEEP_CHOSEN : word_is(k, "both") ? KEEP_BOTH
         : word_is(k, "inputs") ? KEEP_INPUTS : word_is(k, "weights") ? KEEP_WEIGHTS : KEEP_NONE;
}

/* KEEP_CHOSEN: neither the point nor the plan says. Products of blocks keep nothing, as in
 * partition. */
static int asked_keep(const Estimator *e, const Point *p)
{
    if (p->y > 1 && word_is(e->of->config->plan.partition, "summa"))
        return KEEP_NONE;
    return p->keep ? (int)p->keep : pinned_keep(e);
}

static Cube *cube_of(Estimator *e, const Point *p)
{
    int i = 0;
    while (i < e->ncubes && !same_mesh(&e->cube[i].at, p))
        i++;
    Cube *c = &e->cube[i];
    if (i < e->ncubes && c->at.microbatch == p->microbatch)
        return c;
    Choices is = choices(e, p);
    if (i == e->ncubes) {
        c = &e->cube[e->ncubes < CUBES ? e->ncubes++ : (e->oldest = (e->oldest + 1) % CUBES)];
        c->has_transfers = false;
        cost_fill(&c->cost, e->of, e->shape, &is);
    } else if (c->cost.is.attention != is.attention || c->cost.is.balanced != is.balanced)
        cost_fill(&c->cost, e->of, e->shape, &is);
    c->at = *p;
    c->stamp = ++e->stamps;
    c->priced.n = 0;
    c->sections = 0;
    c->has_weights = false;
    c->chunk_rows = 0;
    c->cost.is = is;
    c->grain = grain(p, is.balanced);
    return c;
}

/* What a point chooses beside its cube; read where passes are priced. */
static void set_choices(const Estimator *e, Cube *c, const Point *p)
{
    choose_variant(e, p, &c->cost.is);
    c->cost.is_piped = p->stages > 1 || p->chunks > 1 || p->nslices > 1;
    c->longest = longest_slice(e, p, c->grain);
}

/* The cut is made before anything is kept but what the plan pins, as in pipeline.c. */
static const int *cut_of(Estimator *e, Cube *c, int n)
{
    const PlanSpec *s = &e->of->config->plan;
    const Shape *of = e->shape;
    if (c->sections == n)
        return c->turns;
    if (c->turns == NULL) {
        c->turns = NEWN(int, of->nturns + 1);
        c->weight = NEWN(double, e->nclasses + 1);
    }
    c->sections = n;
    keep_these(&c->cost, pinned_keep(e));
    for (int i = 0; i < e->nclasses && !c->has_weights; i++)
        c->weight[i] = stretch_weight(&c->cost, i);
    c->has_weights = true;
    double *weight = e->weight;
    for (int i = 0; i < of->nturns; i++)
        weight[i] = c->weight[of->class_of[i]];
    if (s->turns.n == n)
        for (int i = 0; i < n; i++)
            c->turns[i] = (int)s->turns.at[i];
    else
        stages_cut(of->nturns, weight, of->head == NONE ? 0 : c->weight[of->head],
                   of->tail == NONE ? 0 : c->weight[of->tail], n, c->turns);
    return c->turns;
}

const int *estimate_turns(Estimator *e, const Point *p, int *n)
{
    Cube *c = cube_of(e, p);
    set_choices(e, c, p);
    *n = p->stages * p->chunks;
    return cut_of(e, c, *n);
}

static Pass pass_of(const PassCost *a)
{
    return (Pass){ .all = { seconds_total(&a->forward), seconds_total(&a->backward) },
                   .compute = { a->forward.compute, a->backward.compute },
                   .again = { a->again[0], a->again[1], a->again[2] } };
}

/* Passes of l tokens after none, over every class. */
static const Priced *priced(Estimator *e, Cube *c, int64_t l, int keep)
{
    bool sliced = c->cost.is.nslices > 1, piped = c->cost.is_piped;
    for (int i = 0; i < c->priced.n; i++) {
        const Priced *a = &c->priced.at[i];
        if (a->l == l && a->keep == keep && a->sliced == sliced && a->piped == piped)
            return a;
    }
    if (c->priced.n == c->priced.cap) {
        Priced empty = { 0 };
        vec_add(&c->priced, empty);
    } else
        c->priced.n++;
    Priced *a = &c->priced.at[c->priced.n - 1];
    if (a->of == NULL) {
        a->of = NEWN(Pass, e->nclasses);
        a->once = NEWN(double, e->nclasses);
    }
    a->l = l;
    a->keep = keep;
    a->sliced = sliced;
    a->piped = piped;
    keep_these(&c->cost, keep);
    for (int k = 0; k < e->nclasses; k++) {
        PassCost pass = cost_pass(&c->cost, k, (double)c->at.microbatch, (double)l);
        a->of[k] = pass_of(&pass);
        a->once[k] = cost_once(&c->cost, k);
    }
    return a;
}

/* A transfer is a start and bytes over a rate: two prices give both. */
static void find_transfers(Estimator *e, Cube *c)
{
    const Cost *k = &c->cost;
    int P = k->mesh.size[MESH_STAGE];
    for (int back = 0; back < 2 && c->alpha[back] == NULL; back++) {
        c->alpha[back] = NEWN(double, e->shape->nturns + 1);
        c->slope[back] = NEWN(double, e->shape->nturns + 1);
    }
    for (int back = 0; back < 2; back++)
        for (int r = 0; r < P; r++) {
            double none = price_transfer(&k->prices, &k->mesh, r, !back, 0);
            c->alpha[back][r] = none;
            c->slope[back][r] = (price_transfer(&k->prices, &k->mesh, r, !back, 1e9) - none) / 1e9;
        }
    c->tie = price_transfer(&k->prices, &k->mesh, P - 1, true, k->tied * k->gradient);
    c->has_transfers = true;
}

/* ---- sections that are alike ---------------------------------------------------------- */

/* Classes of section i of n, so many of whose turns are computed again. */
static void count_section(const Estimator *e, const int *turns, int i, int n, int first, int again,
                          Kind *k)
{
    for (int c = 0; c < e->nclasses; c++) {
        const int *of = e->before[c];
        k->count[c] = of[first + turns[i]] - of[first];
        k->again[c] = of[first + again] - of[first];
    }
    k->first = i == 0 && e->shape->head != NONE;
    k->last = i == n - 1 && e->shape->tail != NONE;
    if (k->first)
        k->count[e->shape->head]++;
    if (k->last)
        k->count[e->shape->tail]++;
}

static bool same_kind(const Estimator *e, const Kind *a, const Kind *b)
{
    bool same = a->first == b->first && a->last == b->last;
    for (int i = 0; same && i < e->nclasses; i++)       // a few: memcmp takes longer
        same = a->count[i] == b->count[i] && a->again[i] == b->again[i];
    return same;
}

static Kind *kind_room(Estimator *e)
{
    if (e->nkinds == e->room) {
        int more = e->room ? 2 * e->room : 8;
        Kind *at = NEWN(Kind, more);
        if (e->room)
            memcpy(at, e->kind, sizeof *at * (size_t)e->room);
        for (int i = e->room; i < more; i++) {
            at[i].count = NEWN(int, e->nclasses);
            at[i].again = NEWN(int, e->nclasses);
        }
        e->kind = at;
        e->room = more;
    }
    return &e->kind[e->nkinds];
}

/* Kernels that the passes of a kind start, and the elements it holds. */
static void sum_kind(const Estimator *e, const Cost *c, Kind *k)
{
    k->parameters = k->units = k->kernels[0] = k->kernels[1] = 0;
    k->more[RECOMPUTE_ATTENTION] = k->more[RECOMPUTE_FULL] = 0;
    for (int i = 0; i < e->nclasses; i++) {
        const TurnClass *t = &c->classes.at[i];
        k->parameters += k->count[i] * t->parameters;
        k->units += k->count[i] * t->units;
        k->kernels[0] += k->count[i] * t->kernels[0];
        k->kernels[1] += k->count[i] * t->kernels[1];
        k->more[RECOMPUTE_FULL] += k->again[i] * t->kernels[2];
        k->more[RECOMPUTE_ATTENTION] += k->count[i] * (t->nattention / 2);
    }
}

/* Turns that are computed again of a stage. Read with recompute = full alone, so that others have
 * the kinds of full(all). */
static int again_of(const Point *p)
{
    return p->recompute == RECOMPUTE_FULL && p->recompute_turns ? p->recompute_turns : INT32_MAX;
}

static bool is_alike(const Estimator *e, int r, int stages, int n)      // to the stage before
{
    bool same = r > 0;
    for (int i = r; same && i < n; i += stages)
        same = e->section[i] == e->section[i - 1];
    return same;
}

static void find_lanes(Estimator *e, int stages, int n)
{
    Share *next = e->share;
    e->nlanes = 0;
    for (int r = 0; r < stages; r++) {
        if (is_alike(e, r, stages, n)) {
            e->lane[e->nlanes - 1].n++;
            continue;
        }
        Lane *a = &e->lane[e->nlanes++];
        *a = (Lane){ .first = r, .n = 1, .of = next };
        for (int i = r; i < n; i += stages) {
            int k = 0;
            while (k < a->nkinds && a->of[k].kind != e->section[i])
                k++;
            if (k == a->nkinds)
                a->of[a->nkinds++] = (Share){ .kind = e->section[i] };
            a->of[k].n++;
        }
        next += a->nkinds;
    }
}

static void find_kinds(Estimator *e, const Point *p, const Cube *c)
{
    int n = p->stages * p->chunks, again = again_of(p);
    const int *turns = c->turns;
    if (e->known.stamp == c->stamp && e->known.chunks == p->chunks && e->known.again == again)
        return;
    e->known.stamp = c->stamp;
    e->known.chunks = p->chunks;
    e->known.again = again;
    e->found++;
    e->nkinds = 0;
    for (int i = 0, first = 0, at = 0, last = 0; i < n; first += turns[i++]) {
        int before = i < p->stages ? 0 : e->done[i - p->stages];
        int left = again > before ? again - before : 0;
        left = left > turns[i] ? turns[i] : left;
        e->done[i] = before + turns[i];
        /* most are like their neighbour, of one class of turns */
        bool alike = i > 1 && i < n - 1 && turns[i] == turns[i - 1] && left == last &&
                     e->run[first + turns[i] - 1] <= first - turns[i];
        last = left;
        if (alike) {
            e->kind[at].sections++;
            e->section[i] = at;
            continue;
        }
        Kind *k = kind_room(e);
        count_section(e, turns, i, n, first, left, k);
        for (at = 0; !same_kind(e, &e->kind[at], k);)
            at++;
        if (at == e->nkinds) {
            k->sections = 0;
            sum_kind(e, &c->cost, k);
            e->nkinds++;
        }
        e->kind[at].sections++;
        e->section[i] = at;
    }
    find_lanes(e, p->stages, n);
}

/* Host time that the kernels' own does not cover. */
static double more_for(const Cost *c, double kernels, double seconds)
{
    double launch = kernels * c->prices.launch - (c->prices.serial ? 0 : seconds);
    return launch > 0 ? launch : 0;
}

/* Adds a pass of every section of a kind over l tokens after `context`. */
static void price_unit(const Estimator *e, const Point *p, const Cost *c, const Pass *of, double l,
                       double context, Kind *k)
{
    double f = 0, g = 0, compute[2] = { 0 }, data[2];
    for (int i = 0; i < e->nclasses; i++) {
        double n = k->count[i], again = p->recompute == RECOMPUTE_FULL ? k->again[i] : n;
        if (n == 0)
            continue;
        f += n * of[i].all[0];
        g += n * of[i].all[1] + again * of[i].again[p->recompute];
        compute[0] += n * of[i].compute[0];
        compute[1] += n * of[i].compute[1];
        if (context > 0 && c->classes.at[i].nattention) {
            PassCost after = cost_context(c, i, (double)p->microbatch, l, context);
            Pass more = pass_of(&after);
            f += n * more.all[0];
            g += n * more.all[1] + again * more.again[p->recompute];
            compute[0] += n * more.compute[0];
            compute[1] += n * more.compute[1];
        }
    }
    double host[2] = { more_for(c, k->kernels[0], f),
                       more_for(c, k->kernels[1] + k->more[p->recompute], g) };
    compute[0] += host[0];
    compute[1] += host[1];
    cost_data(c, k->parameters, k->units, compute, data);
    f += host[0] + data[0];
    g += host[1] + data[1];
    k->F += f;
    k->G += g;
    k->f = larger(k->f, f);
    k->g = larger(k->g, g);
    if (context == 0)               // the first slice goes back last
        k->under = compute[1];
}

/* Whatever the schedule. Where slices are cut, nothing is found again. */
static void price_kinds(Estimator *e, const Point *p, Cube *c, int keep)
{
    double context = 0;
    if (e->timed.found == e->found && e->timed.recompute == p->recompute &&
        e->timed.zero == p->zero && e->timed.keep == keep && p->nslices == 1)
        return;
    e->timed.found = p->nslices == 1 ? e->found : 0;
    e->timed.recompute = p->recompute;
    e->timed.zero = p->zero;
    e->timed.keep = keep;
    for (int n = 0; n < e->nkinds; n++) {
        Kind *k = &e->kind[n];
        k->F = k->G = k->f = k->g = k->once = 0;
    }
    for (int i = 0; i < p->nslices; i++) {
        int64_t l = slice_length(e, p, c->grain, i);
        const Priced *of = priced(e, c, l, keep);
        for (int n = 0; n < e->nkinds; n++) {
            Kind *k = &e->kind[n];
            for (int t = 0; i == 0 && t < e->nclasses; t++)
                k->once += k->count[t] * of->once[t];
            price_unit(e, p, &c->cost, of->of, (double)l, context, k);
        }
        context += (double)l;
    }
}

/* ---- time --------------------------------------------------------------------------- */

static void fill_lane(const Estimator *e, const Point *p, const Cube *c, Lane *a)
{
    double params = 0, units = 0, under = 0;
    a->F = a->G = a->f = a->g = a->once = a->tied = 0;
    for (int i = 0; i < a->nkinds; i++) {
        const Kind *k = &e->kind[a->of[i].kind];
        double n = a->of[i].n;
        a->F += n * k->F;
        a->G += n * k->G;
        a->f = larger(a->f, k->f);
        a->g = larger(a->g, k->g);
        a->once += n * k->once;
        under += n * k->under;
        params += n * k->parameters;
        units += n * k->units;
    }
    params -= p->stages == 1 ? c->cost.tied : 0;
    bool ends = a->first == 0 || a->first == p->stages - 1;
    if (p->stages > 1 && c->cost.tied > 0 && ends)
        a->tied = c->tie;
    a->sync = cost_sync(&c->cost, a->first, params, under);
    a->update = cost_update(&c->cost, params, units, &a->gather);
}

/* Of the longest slice. */
static void find_way(Estimator *e, const Point *p, Cube *c)
{
    Way *w = &e->way;
    double ranks = (double)p->x * p->y * p->z, *back = w->back;
    double each = (double)c->longest * (double)p->microbatch * c->cost.element / ranks, above = 0;
    int last = p->stages - 1;
    if (w->stamp == c->stamp && w->longest == c->longest && w->chunks == p->chunks)
        return;
    if (p->stages > 1 && !c->has_transfers)
        find_transfers(e, c);
    *w = (Way){ .stamp = c->stamp, .longest = c->longest, .chunks = p->chunks, .back = back };
    for (int r = 0, turn = 0; r < p->stages && p->stages > 1; r++) {
        double into[2] = { 0 };
        turn += c->turns[r];
        if (r > 0)
            into[0] = c->alpha[0][r] + c->slope[0][r] * above;
        above = e->shape->cut_width[turn - 1] * each;
        if (r < last)
            into[1] = c->alpha[1][r] + c->slope[1][r] * above;
        for (int i = 0; i < 2; i++) {
            w->all[i] += into[i];
            w->most[i] = larger(w->most[i], into[i]);
        }
        back[r + 1] = w->all[1];
    }
    if (p->chunks > 1) {
        w->ring[0] = w->all[0] + c->alpha[0][0] + c->slope[0][0] * above;
        w->ring[1] = w->all[1] + c->alpha[1][last] + c->slope[1][last] * above;
    }
}

/* The stage that the others wait for: with the largest sum, forward alone, backward alone. */
typedef struct { const Lane *all, *forward, *backward; } Slowest;

static Slowest find_slowest(const Estimator *e)
{
    const Lane *a = e->lane;
    Slowest s = { a, a, a };
    for (a++; a < e->lane + e->nlanes; a++) {
        s.all = a->F + a->G > s.all->F + s.all->G ? a : s.all;
        s.forward = a->F > s.forward->F ? a : s.forward;
        s.backward = a->G > s.backward->G ? a : s.backward;
    }
    return s;
}

/* Waits of stage 0 for the way to the last stage and back, in rounds of all units it may have
 * in flight. */
static double round_trips(const Estimator *e, const Point *p, double moved)
{
    Schedule s = shape(e, p);
    const Lane *a = e->lane;
    if (p->schedule == SCHEDULE_GPIPE || p->chunks > 1)
        return 0;
    double way = moved, units = schedule_units(&s, 0), each = (a->F + a->G) / p->nslices;
    for (int i = 0; i < e->nlanes; i++)
        way += a[i].n * (a[i].F + a[i].G) / p->nslices;
    double wait = way - units * each, rounds = ((double)s.m * s.k - 1) / units;
    return wait > 0 && wait <= moved ? wait * floor(rounds) : 0;
}

/* Seconds of all microbatches on what is slowest, a stage or a link between two. While units
 * only enter or only leave the pipeline, each way has a slowest of its own. */
static double busy_of(const Estimator *e, const Point *p, const Slowest *s)
{
    Schedule t = shape(e, p);
    const double *link = e->way.most;
    double m = t.m, units = (double)t.m * t.k, k = t.k * t.v;
    double one_way = p->schedule == SCHEDULE_GPIPE ? units : schedule_units(&t, 0) / (double)t.v;
    double apart = larger(s->forward->F, k * link[0]) + larger(s->backward->G, k * link[1]);
    double both = larger(s->all->F + s->all->G, k * larger(link[0], link[1]));
    if (p->schedule != SCHEDULE_GPIPE)
        apart = larger(s->all->F, k * link[0]) + larger(s->all->G, k * link[1]);
    double share = one_way < units ? one_way / units : 1;
    return m * (share * apart + (1 - share) * both);
}

/* A chunk begins when the group's first unit is back from the last stage; the others of the group
 * hide some of its way. 1f1b has backwards in between, but for the first group and the last. */
static double chunk_waits(const Estimator *e, const Point *p)
{
    Schedule s = shape(e, p);
    const double *ring = e->way.ring;
    int group = schedule_group(&s);
    double spare = (double)(group * s.k - s.P) / (s.k * s.v);
    double groups = p->schedule == SCHEDULE_GPIPE ? (double)s.m / group : 1;
    return groups * (s.v - 1) * (larger(0, ring[0] - spare * e->lane[0].F) +
                                 larger(0, ring[1] - spare * e->lane[0].G));
}

/* Seconds of a unit on all stages but the slowest; least: but those where it takes longest. */
static double fill_of(const Estimator *e, const Point *p, const Slowest *s, bool least)
{
    bool gpipe = p->schedule == SCHEDULE_GPIPE;
    double fill = 0, f = 0, g = 0, both = 0;
    for (const Lane *a = e->lane; a < e->lane + e->nlanes; a++) {
        fill += a->n * (a->f + a->g);
        f = larger(f, a->f);
        g = larger(g, a->g);
        both = larger(both, a->f + a->g);
    }
    if (least)
        return fill - (gpipe ? f + g : both);
    return fill - (gpipe ? s->forward->f + s->backward->g : s->all->f + s->all->g);
}

/* Seconds from the first pass until stage 0 has done the last; *moved: of them, for transfers. */
static double work_of(const Estimator *e, const Point *p, bool least, double *moved)
{
    Slowest s = find_slowest(e);
    *moved = e->way.all[0] + e->way.all[1];
    *moved += round_trips(e, p, *moved) + (p->chunks > 1 ? chunk_waits(e, p) : 0);
    return busy_of(e, p, &s) + fill_of(e, p, &s, least) + *moved;
}

/* When the updates may begin, and the stages whose own end last: of those that are alike, the
 * first. */
static double ready_of(const Estimator *e, double work, const Lane **last)
{
    double down = 0, ready = 0, end = 0, all = 0;
    bool barrier = e->of->config->train.clip.v > 0;
    const Lane *a = e->lane, *none = a + e->nlanes;
    for (; a < none; down += a->n * a->g, a++)
        all = larger(all, work - down - e->way.back[a->first] + a->tied + a->sync);
    down = 0;
    *last = e->lane;
    for (a = e->lane; a < none; down += a->n * a->g, a++) {
        double done = work - down - e->way.back[a->first] + a->tied + a->sync;
        double begin = barrier ? all : done;
        if (begin + a->update + a->gather > end) {
            end = begin + a->update + a->gather;
            ready = begin;
            *last = a;
        }
    }
    return ready;
}

/* Ranks that take turns on a machine's cores: all their work shares them. */
static double share_cores(const Estimator *e, const Point *p, const Cube *c, double work)
{
    const Prices *w = &c->cost.prices;
    double threads = (double)p->data * p->x * p->y * p->z * w->workers, sum = 0;
    if (w->cores == 0 || threads * p->stages <= w->cores)
        return work;
    for (const Lane *a = e->lane; a < e->lane + e->nlanes; a++)
        sum += a->n * (double)microbatches(e, p) * (a->F + a->G);
    return larger(work, sum * threads / w->cores);
}

/* A step; the stages that end last; how much slower passes are for sharing cores; what of their
 * work was transfers. */
typedef struct { double seconds; const Lane *last; double slower, moved; } Timed;

static Timed time_step(Estimator *e, const Point *p, Cube *c, int keep, bool least)
{
    Timed t;
    keep_these(&c->cost, keep);
    price_kinds(e, p, c, keep);
    find_way(e, p, c);
    for (int i = 0; i < e->nlanes; i++)
        fill_lane(e, p, c, &e->lane[i]);
    double alone = work_of(e, p, least, &t.moved), work = share_cores(e, p, c, alone);
    t.slower = work / alone;
    t.seconds = e->lane[0].once + ready_of(e, work, &t.last) + t.last->update + t.last->gather;
    return t;
}

/* ---- memory -------------------------------------------------------------------------- */

/*
 * What a rank of a stage holds, from below:
 *
 *   fixed        parameters, gradients, moments                     as units.c lays them out
 *   activations  what the backward operators read, of the units in flight; inputs of linears
 *                that are kept gathered
 *   keys, values with slices: of all tokens, of the microbatches begun; and their gradients,
 *                of one
 *   workspace    the most that one operator of the backward pass, or the loss, needs beside
 *                that: rows, a gathered matrix, a gradient that is whole before it is
 *                scattered
 *
 * memory.c places real buffers by their lives, with gaps: the sum here is not exact. See
 * tests/unit/test_estimate.c for how far off it may be.
 */
typedef struct { double longest, units, begun; bool sliced; } Flight;

static Flight flight_of(const Estimator *e, const Point *p, const Cube *c, int r)
{
    Schedule s = shape(e, p);
    /* a stage receives before it computes: it has what the stage before it has in flight */
    int above = r > 0 ? r - 1 : 0, more = p->chunks > 1;
    int most = schedule_units(&s, above) + more, all = s.m * s.k * s.v;
    Flight f = { .units = most < all ? most : all, .begun = schedule_kv(&s, above),
                 .longest = (double)c->longest,
                 .sliced = p->nslices > 1 };
    if (p->stages == 1 && p->chunks == 1 && p->nslices == 1)
        f.units = f.begun = 1;          // one function each way, called in turn
    return f;
}

/* Bytes of an element of a block beside its shard: gathered, and its gradient until it is
 * scattered over x and data. */
typedef struct { double gathered, whole; } Whole;

static Whole whole_of(const Cost *c)
{
    double wide = c->element < 4 ? 4 : c->element;
    bool spread = c->is.x > 1, parts = c->is.data > 1 && c->is.zero >= 2;
    Whole w = { 0 };
    if (spread || (parts && c->is.zero >= 3))
        w.gathered = c->element;
    if (spread || parts)
        w.whole = wide * (1 + (spread && parts ? 1.0 / c->is.x : 0));
    return w;
}

static Held held_by(const Estimator *e, const Point *p, const Cost *k, const Whole *whole,
                    const Kind *kind)
{
    int mode = p->recompute == RECOMPUTE_ATTENTION ? RECOMPUTE_ATTENTION : RECOMPUTE_NONE;
    bool sliced = p->nslices > 1;
    Held h = { 0 };
    for (int i = 0; i < e->nclasses; i++) {
        const TurnClass *t = &k->classes.at[i];
        double n = kind->count[i], again = p->recompute == RECOMPUTE_FULL ? kind->again[i] : 0;
        double inputs = t->input_bytes[mode == RECOMPUTE_ATTENTION];
        double local = t->kv_local, gathered = t->kv_bytes > local ? t->kv_bytes : 0;
        if (n == 0)
            continue;
        for (int kept = 0; kept < 2; kept++) {
            double all = t->saved_bytes[mode] + (kept ? inputs : 0);
            double work = t->transient_bytes + (again > 0 ? all + local : 0);
            h.saved[kept] += (n - again) * (all + (sliced ? local : kept ? gathered : 0)) +
                             again * t->saved_bytes[RECOMPUTE_FULL];
            h.work[kept] = larger(h.work[kept], work);
            double unit = t->block * (whole->whole + (kept ? 0 : whole->gathered));
            double table = t->table * larger(whole->whole, whole->gathered);    // not together
            h.fixed_work[kept] = larger(h.fixed_work[kept], larger(unit, table));
        }
        h.kv += sliced ? n * t->kv_bytes : (n - again) * local;
        h.dkv += sliced ? n * t->dkv_bytes : 0;
        h.kept += n * t->blocks * whole->gathered;
    }
    return h;
}

/* Whatever the schedule, and what is kept. */
static void hold_kinds(Estimator *e, const Point *p, const Cube *c)
{
    int sliced = p->nslices > 1;
    Whole whole = whole_of(&c->cost);
    if (e->held.found == e->found && e->held.recompute == p->recompute &&
        e->held.zero == p->zero && e->held.sliced == sliced)
        return;
    e->held.found = e->found;
    e->held.recompute = p->recompute;
    e->held.zero = p->zero;
    e->held.sliced = sliced;
    for (int i = 0; i < e->nkinds; i++)
        e->kind[i].held = held_by(e, p, &c->cost, &whole, &e->kind[i]);
}

/* Of stage r, one of those that are alike. */
static StageMemory memory_of(Estimator *e, const Point *p, const Cube *c, int keep, const Lane *a,
                             int r)
{
    const Cost *k = &c->cost;
    Flight f = flight_of(e, p, c, r);
    double params = 0, b = (double)p->microbatch, unit = b * f.longest;
    double all = b * (double)e->of->is.sequence, saved = 0, kv = 0, dkv = 0, kept = 0;
    double rows = 0, blocks = 0;
    bool inputs = keep == KEEP_BOTH || keep == KEEP_INPUTS;
    bool weights = keep == KEEP_BOTH || keep == KEEP_WEIGHTS;
    for (int i = 0; i < a->nkinds; i++) {
        const Kind *kind = &e->kind[a->of[i].kind];
        const Held *h = &kind->held;
        double n = a->of[i].n;
        params += n * kind->parameters;
        saved += n * h->saved[inputs];
        kv += n * h->kv;
        dkv += n * h->dkv;
        kept += weights ? n * h->kept : 0;
        rows = larger(rows, h->work[inputs]);
        blocks = larger(blocks, h->fixed_work[weights]);
    }
    params -= p->stages == 1 ? k->tied : 0;
    bool last = r == p->stages - 1 && e->shape->tail != NONE;
    StageMemory m = stretch_memory(k, params, last);
    double work = rows * unit + blocks;
    m.activations = saved / p->chunks * unit * f.units;
    m.keys_values = kv / p->chunks * all * f.begun + dkv * all;
    if (last) {                         // the gradient of the loss's input waits with its unit
        const TurnClass *t = &k->classes.at[e->shape->tail];
        bool tied = p->stages == 1 && k->tied > 0;          // gathered with the embedding
        Whole whole = whole_of(k);
        double gathered = t->loss_block * whole.gathered;
        double loss = t->loss_token * unit + t->loss_block * whole.whole + (weights ? 0 : gathered);
        kept += weights && !tied ? gathered : 0;
        m.activations += t->loss_token / 2 * unit * (f.units - 1) / p->chunks;
        work = larger(work, loss + m.logits) - m.logits;
    }
    m.workspace = larger(work, 0) + kept;
    m.peak = m.parameters + m.gradients + m.optimizer + m.activations + m.keys_values +
             m.logits + m.workspace;
    return m;
}

/* A stage that has what the one before it has holds no more: it is nearer to the last. */
static double worst_memory(Estimator *e, const Point *p, const Cube *c, int keep, Estimate *out)
{
    for (const Lane *a = e->lane; a < e->lane + e->nlanes; a++) {
        StageMemory m = memory_of(e, p, c, keep, a, a->first);
        if (a == e->lane || m.peak > out->memory.peak) {
            out->memory = m;
            out->worst = a->first;
        }
    }
    return out->memory.peak;
}

/* What is kept, as partition chooses it: the first that fits. */
static int choose_keep(Estimator *e, const Point *p, const Cube *c, Estimate *out)
{
    static const int order[] = { KEEP_BOTH, KEEP_INPUTS, KEEP_NONE };
    int pin = asked_keep(e, p);
    int keep = pin ? pin : KEEP_BOTH;
    hold_kinds(e, p, c);
    for (int i = 0; i < 3; i++) {
        keep = pin ? pin : order[i];
        if (worst_memory(e, p, c, keep, out) <= out->room_bytes || pin)
            break;
    }
    return keep;
}

/* Sections, their kinds, and the choices of a point. */
static Cube *open_point(Estimator *e, const Point *p)
{
    Cube *c = cube_of(e, p);
    set_choices(e, c, p);
    cut_of(e, c, p->stages * p->chunks);
    find_kinds(e, p, c);
    int64_t rows = c->longest * p->microbatch / p->x;
    if (c->chunk_rows != rows) {
        c->chunk_rows = rows;
        c->chunk = mesh_chunk(e->of, &c->cost.is, rows);
    }
    c->cost.is.logits_chunk = c->chunk;
    return c;
}

StageMemory estimate_memory(Estimator *e, const Point *p, int r)
{
    Estimate out = { .room_bytes = (double)e->of->is.room_bytes };
    Cube *c = open_point(e, p);
    int keep = choose_keep(e, p, c, &out);
    const Lane *a = e->lane;
    while (a->first + a->n <= r)
        a++;
    return memory_of(e, p, c, keep, a, r);
}

/* ---- both ---------------------------------------------------------------------------- */

/* FLOP of a token that are done again, full attention counted as in mfu. */
static double again_flop(const Estimator *e, const Point *p, const Cube *c)
{
    double sum = 0;
    for (int s = 0; p->recompute == RECOMPUTE_FULL && s < e->nkinds; s++) {
        const Kind *k = &e->kind[s];
        for (int i = 0; i < e->nclasses; i++)
            sum += k->sections * k->again[i] * c->cost.classes.at[i].flops[2];
    }
    return sum * p->x * p->y * p->z;
}

/* Share of the turns that are computed again. */
static double attention_again(const Estimator *e)
{
    double again = 0;
    for (int s = 0; s < e->nkinds; s++)
        for (int i = 0; i < e->nclasses; i++)
            again += e->kind[s].sections * e->kind[s].again[i];
    return e->shape->nturns ? again / e->shape->nturns : 0;
}

static void add_parts(double *part, const Seconds *s, double times)
{
    part[PART_COMPUTE] += s->compute * times;
    part[PART_RECOMPUTE] += s->recompute * times;
    part[PART_X] += s->x * times;
    part[PART_Y] += s->y * times;
    part[PART_Z] += s->z * times;
    part[PART_DATA] += s->data * times;
}

static void find_parts(const Estimator *e, const Point *p, const Cube *c, const Timed *t,
                       Estimate *out)
{
    const Lane *a = t->last;
    const Stretch *section = stretch_new(&c->cost, p->stages * p->chunks, c->turns);
    double times = (double)microbatches(e, p) * t->slower, sum = 0;
    for (int ch = 0; ch < p->chunks; ch++) {
        double context = 0;
        for (int i = 0; i < p->nslices; i++) {
            double l = (double)slice_length(e, p, c->grain, i);
            PassCost pass = stretch_pass(&c->cost, &section[ch * p->stages + a->first],
                                         (double)p->microbatch, l, context);
            add_parts(out->part, &pass.forward, times);
            add_parts(out->part, &pass.backward, times);
            context += l;
        }
    }
    out->part[PART_DATA] += a->sync + a->gather;
    out->part[PART_OPTIMIZER] = a->update;
    out->part[PART_PIPELINE] = t->moved * t->slower + a->tied;
    out->part[PART_X] += e->lane[0].once;
    for (int i = 0; i < PARTS; i++)
        sum += out->part[i];
    /* transfers on the way of the first unit may run beside the work of the last stage */
    double rest = out->step_s - sum;
    out->part[PART_BUBBLE] = rest > 0 ? rest : 0;
    out->part[PART_PIPELINE] += rest < 0 ? rest : 0;
}

static Timed estimate_open(Estimator *e, const Point *p, Cube *c, Estimate *out)
{
    *out = (Estimate){ .room_bytes = (double)e->of->is.room_bytes };
    out->keep = choose_keep(e, p, c, out);
    Timed t = time_step(e, p, c, out->keep, false);
    out->step_s = t.seconds;
    out->last = t.last->first;
    return t;
}

static Reject fits(const Estimate *is)
{
    return is->memory.peak > is->room_bytes ? REJECT_MEMORY : LEGAL;
}

Reject estimate_step(Estimator *e, const Point *p, Estimate *out)
{
    estimate_open(e, p, open_point(e, p), out);
    return fits(out);
}

Reject estimate(Estimator *e, const Point *p, Estimate *out)
{
    Cube *c = open_point(e, p);
    Timed t = estimate_open(e, p, c, out);
    find_parts(e, p, c, &t, out);
    const Prices *w = &c->cost.prices;
    double T = (double)(e->of->is.batch * e->of->is.sequence), devices = c->cost.mesh.ranks;
    double flop = 6 * e->matrices + 12 * e->pairs, peak = w->matrix * devices;
    double share = p->recompute == RECOMPUTE_NONE ? 0
                 : p->recompute == RECOMPUTE_ATTENTION ? 1
                 : attention_again(e);
    if (w->cores > 0 && devices * w->workers > w->cores)    // of the cores, not of each rank
        peak = w->matrix / w->workers * w->cores;
    out->mfu = flop * T / (out->step_s * peak);
    out->hfu = (flop + again_flop(e, p, c) + 4 * e->pairs * share) * T / (out->step_s * peak);
    out->tokens_per_s = T / out->step_s;
    return fits(out);
}

double estimate_peak(Estimator *e, const Point *p)
{
    Estimate out = { .room_bytes = (double)e->of->is.room_bytes };
    Cube *c = open_point(e, p);
    choose_keep(e, p, c, &out);
    return out.memory.peak;
}

static double seconds_of(Estimator *e, const Point *p, bool least)
{
    Cube *c = open_point(e, p);
    int pin = asked_keep(e, p);
    return time_step(e, p, c, pin ? pin : KEEP_BOTH, least).seconds;
}

double estimate_time(Estimator *e, const Point *p) { return seconds_of(e, p, false); }

/* Units get longer, and with chunks another stage may be the slowest, which then waits for a
 * shorter one than before. */
double estimate_more(Estimator *e, const Point *p) { return seconds_of(e, p, true); }

/* ---- bounds -------------------------------------------------------------------------- */

/*
 * Whatever the slices, chunks, schedule, recompute, zero and keep: some stage has at least
 * its share of all turns, in whole turns, and of all seconds; it works on every microbatch
 * and updates its parameters. A pass in slices is no quicker than the whole (price.h), nothing
 * that is made again is free, and everything that is kept is gathered once at least. Without
 * slices the other stages also wait for a chunk of each, so that the slowest having just its share
 * is the least: m > 1 / chunks.
 */
Least estimate_bound(Estimator *e, const Point *p)
{
    Point one = { .data = p->data, .stages = p->stages, .chunks = 1, .x = p->x, .y = p->y,
                  .z = p->z, .microbatch = p->microbatch, .nslices = 1 };
    Cube *c = cube_of(e, &one);
    const Shape *s = e->shape;
    set_choices(e, c, &one);
    c->cost.is.zero = p->data > 1;
    c->cost.is_piped = true;
    const Pass *of = priced(e, c, e->of->is.sequence, KEEP_BOTH)->of;
    double all = 0, least = INFINITY, params = 0, few = INFINITY, m = (double)microbatches(e, p);
    for (int i = 0; i < e->nclasses; i++) {
        double t = of[i].all[0] + of[i].all[1];
        double w = c->cost.classes.at[i].parameters;
        bool end = i == s->head || i == s->tail;
        int n = end ? 1 : e->before[i][s->nturns];
        all += n * t;
        params += n * w;
        least = !end && t < least ? t : least;
        few = !end && w < few ? w : few;
    }
    double turns = ceil((double)s->nturns / p->stages), gather;
    double whole = m * turns * least, mean = m * all / p->stages;
    double update[2] = { cost_update(&c->cost, turns * few, 0, &gather),
                         cost_update(&c->cost, params - c->cost.tied, 0, &gather) / p->stages };
    Least out = { .seconds = larger(whole + update[0], mean + update[1]), .work = mean,
                  .fill = all - all / p->stages };
    if (whole > mean) {
        out.work = whole;
        out.fill = (s->nturns - turns) * least;
    }
    return out;
}

Point point_of(const Plan *p)
{
    const Choices *is = &p->is;
    const PlanSpec *s = &p->config->plan;
    return (Point){ .data = is->data, .stages = is->stages, .chunks = is->chunks, .x = is->x,
                    .y = is->y, .z = is->z, .microbatch = is->microbatch,
                    .nslices = is->nslices, .slice = is->nslices > 1 ? is->slice : NULL,
                    .schedule = word_is(s->schedule, "gpipe") ? SCHEDULE_GPIPE : SCHEDULE_1F1B,
                    .recompute = is->recompute,
                    .recompute_turns = is->recompute_turns == INT32_MAX ? 0
                                                                        : is->recompute_turns,
                    .zero = is->zero,
                    .keep = p->insts.n == 0 ? KEEP_CHOSEN
                          : is->keep_inputs ? (is->keep_weights ? KEEP_BOTH : KEEP_INPUTS)
                          : is->keep_weights ? KEEP_WEIGHTS : KEEP_NONE };
}
