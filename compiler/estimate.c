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
 * Backwards end at stage 0, so that is usually the stage that finishes last: its own work
 * is what `part` says, and what it waits for is the bubble.
 *
 * Known lies: see price.c and cost.c; slices of unequal time and unequal stages are an
 * upper bound for gpipe and an estimate otherwise.
 */
#include "estimate.h"
#include "partition.h"

const char *const reject_word[REJECTS] = {
    [LEGAL] = "legal", [REJECT_DEVICES] = "devices-match", [REJECT_BATCH] = "batch-divides",
    [REJECT_WIDTH] = "width-divides", [REJECT_HEADS] = "heads-divide",
    [REJECT_ROWS] = "rows-divide", [REJECT_ATTENTION] = "attention-heads",
    [REJECT_LAYERS] = "layers-cover", [REJECT_GROUPS] = "chunk-groups",
    [REJECT_SLICES] = "slice-causal", [REJECT_EFFECT] = "no-effect",
    [REJECT_PARTITION] = "partition", [REJECT_MEMORY] = "memory-fits",
};
const char *const reject_text[REJECTS] = {
    [LEGAL] = "can be laid out",
    [REJECT_DEVICES] = "data, stages and cube do not multiply to the cluster's devices",
    [REJECT_BATCH] = "the batch does not split into replicas and microbatches",
    [REJECT_WIDTH] = "a width does not split over y or z",
    [REJECT_HEADS] = "heads do not split over y",
    [REJECT_ROWS] = "the tokens of a slice do not split over the cube",
    [REJECT_ATTENTION] = "the kind of attention that was pinned is not possible",
    [REJECT_LAYERS] = "fewer turns than stages and chunks",
    [REJECT_GROUPS] = "chunks pass the stages in whole groups of microbatches, and these are none",
    [REJECT_SLICES] = "attention that sees ahead cannot be sliced",
    [REJECT_EFFECT] = "something asked for has no effect",
    [REJECT_PARTITION] = "outside of the pinned partition",
    [REJECT_MEMORY] = "does not fit",
};

/* What is priced once for a cube on its stages and replicas. */
typedef struct {
    Point at;                       // the key: see same_cube
    Cost *cost;
    int *turns, nturns; Stretch *section;
} Cube;

struct Estimator {
    const Plan *of;
    Plan plan;                      // of->..., with the choices of the point at hand
    bool turns_only;
    int64_t devices;                // of the cluster; 0: any
    VEC(Cube) cubes;
    double matrices, pairs;         // for mfu: parameters in products; width x keys of attention
};

Estimator *estimator_new(const Plan *p, bool turns_only)
{
    Estimator *e = NEW(Estimator);
    const Config *c = p->config;
    e->of = p;
    e->plan = *p;
    e->turns_only = turns_only;
    if (c->has_cluster)
        e->devices = (int64_t)(c->cluster.nodes.v * c->cluster.per_node.v);
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind == OP_LINEAR && !(o->repeat < 0 && turns_only))
            e->matrices += (double)p->tensors.at[o->in[0]].width *
                           (double)p->tensors.at[o->out[0]].width;
        if (o->kind == OP_ATTN) {
            double L = (double)p->is.sequence;
            double seen = o->window && (double)o->window < L ? (double)o->window : L;
            e->pairs += (double)p->tensors.at[o->in[0]].width * seen;
        }
    }
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

/* Length of slice i; uniform ones differ by at most a granule, longer first. */
static int64_t grain(const Estimator *e, const Point *p, bool balanced)
{
    int64_t step = p->x * lcm64(p->y, p->z), g = step / gcd64(step, p->microbatch);
    (void)e;
    return balanced ? lcm64(g, 2 * p->x * p->z) : g;
}

static int64_t slice_length(const Estimator *e, const Point *p, int64_t g, int i)
{
    int64_t units = e->of->is.sequence / g, k = p->nslices;
    return p->slice ? p->slice[i] : (units / k + (i < units % k)) * g;
}

Choices estimate_choices(Estimator *e, const Point *p)
{
    Choices *is = &e->plan.is;
    is->data = p->data;
    is->stages = p->stages;
    is->chunks = p->chunks;
    is->x = p->x, is->y = p->y, is->z = p->z;
    is->zero = p->zero;
    is->recompute = p->recompute;
    is->recompute_turns = p->recompute_turns ? p->recompute_turns : INT32_MAX;
    is->nslices = p->nslices;
    mesh_feed(&e->plan, p->microbatch);
    return *is;
}

Reject estimate_legal(Estimator *e, const Point *p)
{
    const Plan *o = e->of;
    const PlanSpec *s = &o->config->plan;
    int64_t ranks = (int64_t)p->data * p->stages * p->x * p->y * p->z;
    if (e->devices && ranks != e->devices)
        return REJECT_DEVICES;
    if (o->is.batch % (p->data * p->microbatch))
        return REJECT_BATCH;
    for (int i = 0; i < o->nforward; i++) {
        const Op *a = &o->ops.at[i];
        if (a->kind == OP_ATTN && (a->heads % p->y || (a->kv_heads % p->y && p->y % a->kv_heads)))
            return REJECT_HEADS;
    }
    if (p->microbatch * o->is.sequence % (p->x * lcm64(p->y, p->z)))
        return REJECT_ROWS;
    if (!mesh_fits(o, p->data, p->x, p->y, p->z))
        return REJECT_WIDTH;
    if (p->stages * p->chunks > o->layers)
        return REJECT_LAYERS;
    if ((p->zero > 0 && p->data == 1) || (p->chunks > 1 && p->stages == 1))
        return REJECT_EFFECT;
    if (p->nslices > 1 && o->sees_ahead)
        return REJECT_SLICES;
    if (!family_allows(s, p->x, p->y, p->z))
        return REJECT_PARTITION;
    Schedule sched = shape(e, p);
    if (sched.m % schedule_group(&sched))
        return REJECT_GROUPS;
    Choices is = estimate_choices(e, p);
    int64_t g = grain(e, p, is.balanced);
    if (o->is.sequence % g || o->is.sequence / g < p->nslices)
        return REJECT_ROWS;
    for (int i = 0; p->slice && i < p->nslices; i++)
        if (p->slice[i] % g)
            return REJECT_ROWS;
    return LEGAL;
}

/* ---- a cube ------------------------------------------------------------------------- */

static bool same_cube(const Point *a, const Point *b)
{
    return a->data == b->data && a->stages == b->stages && a->x == b->x && a->y == b->y &&
           a->z == b->z && a->chunks == b->chunks && a->microbatch == b->microbatch &&
           a->recompute == b->recompute && a->recompute_turns == b->recompute_turns &&
           a->zero == b->zero;
}

static Cube *cube_of(Estimator *e, const Point *p)
{
    for (int i = e->cubes.n; i-- > 0;)
        if (same_cube(&e->cubes.at[i].at, p))
            return &e->cubes.at[i];
    Cube c = { .at = *p, .nturns = p->stages * p->chunks };
    const PlanSpec *s = &e->of->config->plan;
    estimate_choices(e, p);
    c.cost = cost_new(&e->plan, e->turns_only);
    c.turns = NEWN(int, c.nturns);
    if (s->turns.n == c.nturns)
        for (int i = 0; i < c.nturns; i++)
            c.turns[i] = (int)s->turns.at[i];
    else
        stretch_cut(c.cost, c.nturns, c.turns);
    c.section = stretch_new(c.cost, c.nturns, c.turns);
    vec_add(&e->cubes, c);
    return &e->cubes.at[e->cubes.n - 1];
}

const int *estimate_turns(Estimator *e, const Point *p, int *n)
{
    Cube *c = cube_of(e, p);
    *n = c->nturns;
    return c->turns;
}

/* ---- time --------------------------------------------------------------------------- */

/* A stage: its passes of one microbatch, and its longest unit each way. */
typedef struct { Seconds forward, backward; double F, G, f, g, send; } Lane;

static Lane lane_of(Estimator *e, const Point *p, const Cube *c, int r)
{
    Lane a = { 0 };
    bool balanced = c->cost->is.balanced;
    int64_t unit = grain(e, p, balanced);
    for (int ch = 0; ch < p->chunks; ch++) {
        double context = 0;
        int i = ch * p->stages + r;
        for (int k = 0; k < p->nslices; k++) {
            double l = (double)slice_length(e, p, unit, k), b = (double)p->microbatch;
            PassCost t = stretch_pass(c->cost, &c->section[i], b, l, context);
            double f = seconds_total(&t.forward), g = seconds_total(&t.backward);
            a.forward = seconds_sum(a.forward, t.forward, 1);
            a.backward = seconds_sum(a.backward, t.backward, 1);
            a.f = f > a.f ? f : a.f;
            a.g = g > a.g ? g : a.g;
            context += l;
        }
    }
    a.F = seconds_total(&a.forward);
    a.G = seconds_total(&a.backward);
    return a;
}

static double stage_parameters(const Point *p, const Cube *c, int r)
{
    double sum = 0;
    for (int ch = 0; ch < p->chunks; ch++)
        sum += c->section[ch * p->stages + r].parameters;
    return sum - (p->stages == 1 ? c->cost->tied : 0);
}

static void add_parts(double *part, const Seconds *s, double times)
{
    part[PART_COMPUTE] += s->compute * times;
    part[PART_RECOMPUTE] += s->recompute * times;
    part[PART_X] += s->x * times;
    part[PART_Y] += s->y * times;
    part[PART_Z] += s->z * times;
}

static void step_time(Estimator *e, const Point *p, const Cube *c, Estimate *out)
{
    double m = (double)microbatches(e, p), fill = 0, most = 0, fmost = 0, gmost = 0;
    double tokens = (double)p->microbatch * (double)e->of->is.sequence / p->nslices;
    Lane first = { 0 };
    int n = p->stages * p->chunks, worst = 0, fworst = 0, gworst = 0;
    double *f = arena_get(scratch, 3 * sizeof *f * (size_t)p->stages), *g = f + p->stages;
    for (int r = 0; r < p->stages; r++) {
        Lane a = lane_of(e, p, c, r);
        f[r] = a.f, g[r] = a.g;
        if (a.F + a.G > most)
            most = a.F + a.G, worst = r;
        if (a.F > fmost)
            fmost = a.F, fworst = r;
        if (a.G > gmost)
            gmost = a.G, gworst = r;
        if (r == 0)
            first = a;
        if (r + 1 < p->stages)
            fill += stretch_transfer(c->cost, c->section, n, r, true, tokens) +
                    stretch_transfer(c->cost, c->section, n, r, false, tokens);
    }
    bool gpipe = p->schedule == SCHEDULE_GPIPE;
    for (int r = 0; r < p->stages; r++)
        fill += (gpipe ? r != fworst : r != worst) * f[r] +
                (gpipe ? r != gworst : r != worst) * g[r];
    double work = m * (gpipe ? fmost + gmost : most) + fill;
    double params = stage_parameters(p, c, 0), gather;
    add_parts(out->part, &first.forward, m);
    add_parts(out->part, &first.backward, m);
    out->part[PART_DATA] = cost_sync(c->cost, params);
    out->part[PART_OPTIMIZER] = cost_update(c->cost, params, &gather);
    out->part[PART_DATA] += gather;
    out->part[PART_BUBBLE] = work - m * (first.F + first.G);
    for (int i = 0; i < PARTS; i++)
        out->step_s += out->part[i];
}

/* ---- memory -------------------------------------------------------------------------- */

static StageMemory memory_of(Estimator *e, const Point *p, const Cube *c, int r)
{
    Schedule s = shape(e, p);
    double params = stage_parameters(p, c, r), saved = 0, kv = 0, most = 0;
    double b = (double)p->microbatch;
    double longest = (double)slice_length(e, p, grain(e, p, c->cost->is.balanced), 0);
    for (int i = 0; p->slice && i < p->nslices; i++)
        longest = (double)p->slice[i] > longest ? (double)p->slice[i] : longest;
    StageMemory m = stretch_memory(c->cost, params, r == p->stages - 1);
    for (int ch = 0; ch < p->chunks; ch++) {
        const Stretch *t = &c->section[ch * p->stages + r];
        double w = stretch_transient(c->cost, t);
        saved += t->saved;
        kv += t->kv + t->dkv;
        most = w > most ? w : most;
    }
    int mk = (s.P - r + 2 * s.k - 2 + s.k - 1) / s.k;
    double micros = s.kind == SCHEDULE_GPIPE || mk > s.m ? s.m : mk;
    m.activations = saved / p->chunks * b * longest * schedule_units(&s, r);
    m.keys_values = kv * b * (double)e->of->is.sequence * micros;
    m.workspace = most * b * longest;
    m.peak = m.parameters + m.gradients + m.optimizer + m.activations + m.keys_values +
             m.logits + m.workspace;
    return m;
}

StageMemory estimate_memory(Estimator *e, const Point *p, int r)
{
    return memory_of(e, p, cube_of(e, p), r);
}

/* ---- both ---------------------------------------------------------------------------- */

Reject estimate(Estimator *e, const Point *p, Estimate *out)
{
    const Cube *c = cube_of(e, p);
    *out = (Estimate){ .room_bytes = (double)e->of->is.room_bytes };
    step_time(e, p, c, out);
    for (int r = 0; r < p->stages; r++) {
        StageMemory m = memory_of(e, p, c, r);
        if (r == 0 || m.peak > out->memory.peak) {
            out->memory = m;
            out->worst = r;
        }
    }
    double T = (double)(e->of->is.batch * e->of->is.sequence);
    double flop = (6 * e->matrices + 12 * e->pairs) * T;
    double done = flop - 6 * e->pairs * T * !e->of->sees_ahead;
    double peak = c->cost->prices.matrix * c->cost->mesh.ranks;
    done += p->recompute == RECOMPUTE_FULL ? done / 3 : 0;
    out->mfu = flop / (out->step_s * peak);
    out->hfu = done / (out->step_s * peak);
    out->tokens_per_s = T / out->step_s;
    return out->memory.peak > out->room_bytes ? REJECT_MEMORY : LEGAL;
}

double estimate_bound(Estimator *e, const Point *p)
{
    Point one = *p;
    Estimate out = { 0 };
    one.nslices = 1;
    one.slice = NULL;
    one.recompute = RECOMPUTE_NONE;
    one.zero = p->data > 1;
    step_time(e, &one, cube_of(e, &one), &out);
    return out.part[PART_COMPUTE] + out.part[PART_OPTIMIZER];
}

Point point_of(const Plan *p)
{
    const Choices *is = &p->is;
    const PlanSpec *s = &p->config->plan;
    return (Point){ .data = is->data, .stages = is->stages, .chunks = is->chunks, .x = is->x,
                    .y = is->y, .z = is->z, .microbatch = is->microbatch,
                    .nslices = is->nslices, .slice = is->nslices > 1 ? is->slice : NULL,
                    .schedule = s->schedule.v && strcmp(s->schedule.v, "gpipe") == 0
                              ? SCHEDULE_GPIPE : SCHEDULE_1F1B,
                    .recompute = is->recompute,
                    .recompute_turns = is->recompute_turns == INT32_MAX ? 0
                                                                        : is->recompute_turns,
                    .zero = is->zero };
}
