/*
 * tune_slices.c - the slice lists that are tried with a layout: TeraPipe's programme
 * (slice.h) over the passes that the estimate adds up.
 *
 * Every list is priced by estimate() afterwards. With equal stages its objective is the
 * programme's, and the best list of the grain is among those found; with unequal ones the
 * programme minimises a bound on it, so the best of several counts are tried. The
 * programme's room leaves the workspace out: what then does not fit is dropped.
 *
 * Passes of every class of turns are priced once for a mesh and microbatch; a stage adds
 * them up by how many turns of each class it has.
 */
#include "slice.h"
#include "tune.h"

/* TUNING: slices are multiples of 8 tokens where the sequence allows, as in pipeline.c, and of
 * a 32nd of the sequence: finer ones change a step by less than it is known. `plan` chooses
 * finer ones. LISTS counts of slices are priced. */
enum { GRAIN = 8, SHARES = 32, LISTS = 2 };

/* TUNING: the programme's objective is a bound on the estimate where stages differ, and no
 * more above it than this. */
#define WORTH 1.05

typedef struct { double f, g, again[3]; bool known; } Pass;    // as PassCost, added up

/* Stages with the same turns of every class. */
typedef struct { int *count, *again; double launches[2], parameters, units, data[2]; } Kind;

/* Passes over all classes: by class and slice; what context adds, by slice and context; what k
 * slices together take at least, by their number; what context adds at least to a pair of
 * grains, one of the slice and one before it. They
 * hang on cube, microbatch and keep alone, so that other stages and replicas find them
 * again (but with `ranks` of one's own, which may set the axes of a cube apart). */
typedef struct { Point at; Pass **base, **more, **least, *rate; } Passes;
enum { SETS = 64, WAYS = 8 };       // TUNING: so many are remembered, each in the set of its cube
typedef struct { Passes at[WAYS]; int n, oldest; } PassesSet;

/* Of a stage: k slices together each way, context left out; what it adds of a pair of grains; what
 * starting kernels takes, whatever else hides beside it. */
typedef struct { double work[2], pair[2], launches[2]; } Bound;

/* What slice_bound needs of a point, whatever its schedule, zero and room: by kind and count; the
 * stages' waits where the longest slice has so many grains, or more. */
typedef struct {
    Point cell; const Passes *passes; int chunks, recompute;
    Bound *of[SHARES + 1];
    double wait[SHARES + 1];
} Bounds;

struct SliceView {
    Tune *t;
    const Shape *shape;
    Point at;                       // whose mesh and microbatch `cost` has
    int chunks, recompute;          // of the point whose stages are below; chunks 0: none
    Cost cost;
    int64_t grain; int n;           // tokens; of them in the sequence
    Passes *passes; PassesSet set[SETS];
    int nkinds, *kind_stages; Kind *kind; Bounds bounds;
    int *first;                     // by section: its first turn
};

SliceView *slice_view(Tune *t)
{
    SliceView *v = NEW(SliceView);
    v->t = t;
    v->shape = shape_of(t->plan, t->ask.turns_only);
    int classes = v->shape->classes.n, most = v->shape->nturns + 1;
    v->kind = NEWN(Kind, most);
    for (int k = 0; k <= SHARES; k++)
        v->bounds.of[k] = NEWN(Bound, most);
    v->kind_stages = NEWN(int, most);
    v->first = NEWN(int, most);
    for (int k = 0; k < most; k++) {
        v->kind[k].count = NEWN(int, 2 * classes);
        v->kind[k].again = v->kind[k].count + classes;
    }
    return v;
}

/* Tokens that every slice is a multiple of; the whole sequence: none is possible. */
static int64_t grain_of(const Choices *is, const Point *a)
{
    int64_t step = a->x * lcm64(a->y, a->z), L = is->sequence;
    int64_t grain = step / gcd64(step, a->microbatch);
    if (is->balanced)
        grain = lcm64(grain, 2 * a->x * a->z);
    for (int64_t k = SHARES; k > 1; k--)
        if (L % k == 0 && L / k % grain == 0 && L / k >= (L < 2 * GRAIN ? 1 : GRAIN))
            return L / k;
    return L;
}

static bool same_cube(const SliceView *v, const Point *a, const Point *b)
{
    bool apart = v->t->pins->ranks.n > 0;
    return a->x == b->x && a->y == b->y && a->z == b->z && a->microbatch == b->microbatch &&
           a->keep == b->keep && (!apart || (a->data == b->data && a->stages == b->stages));
}

/* Where a cube is remembered: Fibonacci hashing, by 2^64 over the golden ratio. */
static unsigned set_of(const Point *p)
{
    const uint64_t of[5] = { (uint64_t)p->x, (uint64_t)p->y, (uint64_t)p->z,
                             (uint64_t)p->microbatch, (uint64_t)p->keep };
    uint64_t h = 0;
    for (int i = 0; i < 5; i++)
        h = (h + of[i]) * 0x9e3779b97f4a7c15u;
    return (unsigned)(h >> 32) % SETS;
}

static bool same_cell(const Point *a, const Point *b)
{
    return a->data == b->data && a->stages == b->stages && a->x == b->x && a->y == b->y &&
           a->z == b->z && a->microbatch == b->microbatch;
}

static void open_passes(SliceView *v, const Point *p)
{
    int classes = v->shape->classes.n;
    if (v->passes && same_cube(v, &v->passes->at, p))
        return;
    PassesSet *set = &v->set[set_of(p)];
    for (int i = 0; i < set->n; i++)
        if (same_cube(v, &set->at[i].at, p)) {
            v->passes = &set->at[i];
            return;
        }
    set->oldest = set->n < WAYS ? set->n++ : (set->oldest + 1) % WAYS;
    Passes *t = v->passes = &set->at[set->oldest];
    t->at = *p;
    if (t->base == NULL) {
        t->base = NEWN(Pass *, classes);
        t->more = NEWN(Pass *, classes);
        t->least = NEWN(Pass *, classes);
        t->rate = NEWN(Pass, classes);
    }
    memset(t->rate, 0, sizeof *t->rate * (size_t)classes);
    for (int c = 0; c < classes; c++) {
        if (t->base[c] == NULL) {
            t->base[c] = NEWN(Pass, 2 * (SHARES + 1));
            t->least[c] = t->base[c] + SHARES + 1;
        }
        memset(t->base[c], 0, sizeof *t->base[c] * 2 * (SHARES + 1));
        if (t->more[c])
            memset(t->more[c], 0, sizeof *t->more[c] * SHARES * SHARES);
    }
}

/* The cost's cell, and what is kept gathered in it. */
static void open_cell(SliceView *v, const Point *p)
{
    const char *pin = v->t->pins->keep.v;
    bool both = pin ? strcmp(pin, "both") == 0 : p->keep == KEEP_BOTH;
    if (v->n == 0 || !same_cell(&v->at, p)) {
        Point two = *p;
        two.nslices = 2;
        two.slice = NULL;
        Choices is = estimate_choices(v->t->e, &two);
        cost_fill(&v->cost, v->t->plan, v->shape, &is);
        v->chunks = 0;
        v->at = *p;
        v->grain = grain_of(&is, p);
        v->n = (int)(is.sequence / v->grain);
    }
    v->cost.keep_inputs = both || (pin ? strcmp(pin, "inputs") == 0 : p->keep == KEEP_INPUTS);
    v->cost.keep_weights = both || (pin && strcmp(pin, "weights") == 0);
    open_passes(v, p);
}

static void set_pass(Pass *to, const PassCost *a)
{
    *to = (Pass){ .f = seconds_total(&a->forward), .g = seconds_total(&a->backward),
                  .known = true };
    memcpy(to->again, a->again, sizeof to->again);
}

/* Of l grains after c, over one class. */
static const Pass *base_of(SliceView *v, int class, int l)
{
    Pass *a = &v->passes->base[class][l];
    if (!a->known) {
        PassCost pass = cost_pass(&v->cost, class, (double)v->at.microbatch,
                                  (double)(l * v->grain));
        set_pass(a, &pass);
    }
    return a;
}

static const Pass *more_of(SliceView *v, int class, int l, int c)
{
    if (v->passes->more[class] == NULL)
        v->passes->more[class] = NEWN(Pass, SHARES * SHARES);
    Pass *a = &v->passes->more[class][(l - 1) * SHARES + c - 1];
    if (!a->known) {
        PassCost pass = cost_context(&v->cost, class, (double)v->at.microbatch,
                                     (double)(l * v->grain), (double)(c * v->grain));
        set_pass(a, &pass);
    }
    return a;
}

/* out[k] = k times the convex envelope of at[1 .. n] at n / k: no k numbers that add up to n have
 * a smaller sum of their at[]. */
static void envelope(const double *at, int n, double *out)
{
    int hull[SHARES + 1], h = 0;
    for (int i = 1; i <= n; i++) {
        while (h > 1 && (at[hull[h - 1]] - at[hull[h - 2]]) * (i - hull[h - 2]) >=
                            (at[i] - at[hull[h - 2]]) * (hull[h - 1] - hull[h - 2]))
            h--;
        hull[h++] = i;
    }
    for (int k = 1; k <= n; k++) {
        double x = (double)n / k;
        int j = 0;
        while (j + 2 < h && hull[j + 1] < x)
            j++;
        int a = hull[j], b = hull[j + 1 < h ? j + 1 : j];
        double y = a == b ? at[a] : at[a] + (at[b] - at[a]) * (x - a) / (b - a);
        out[k] = k * y;
    }
}

/* What k slices take at least over one class, context left out. */
static const Pass *least_of(SliceView *v, int class, int k)
{
    Pass *of = v->passes->least[class];
    if (of[k].known)
        return &of[k];
    double at[5][SHARES + 1], out[5][SHARES + 1];
    for (int l = 1; l <= v->n; l++) {
        const Pass *p = base_of(v, class, l);
        const double part[5] = { p->f, p->g, p->again[0], p->again[1], p->again[2] };
        for (int i = 0; i < 5; i++)
            at[i][l] = part[i];
    }
    for (int i = 0; i < 5; i++)
        envelope(at[i], v->n, out[i]);
    for (int l = 1; l <= v->n; l++)
        of[l] = (Pass){ out[0][l], out[1][l], { out[2][l], out[3][l], out[4][l] }, true };
    return &of[k];
}

/* Seconds of all turns of a stage; starting kernels takes as long at least. */
static void stage_seconds(SliceView *v, const Kind *k, int l, int c, double *f, double *g)
{
    double a = 0, b = 0;
    for (int i = 0; i < v->shape->classes.n; i++) {
        if (k->count[i] == 0)
            continue;
        const Pass *p = base_of(v, i, l);
        a += k->count[i] * p->f;
        b += k->count[i] * p->g + k->again[i] * p->again[v->recompute];
        if (c == 0 || v->cost.classes.at[i].nattention == 0)
            continue;
        p = more_of(v, i, l, c);
        a += k->count[i] * p->f;
        b += k->count[i] * p->g + k->again[i] * p->again[v->recompute];
    }
    bool serial = v->cost.prices.serial;
    *f += serial ? a + k->launches[0] : a > k->launches[0] ? a : k->launches[0];
    *g += serial ? b + k->launches[1] : b > k->launches[1] ? b : k->launches[1];
}

/* Of one chunk on average: the programme has as many times more microbatches. What goes over data
 * hides beside the pass. */
static void slice_seconds(void *arg, int kind, int64_t l, int64_t c, double *f, double *g)
{
    SliceView *v = arg;
    const Kind *k = &v->kind[kind];
    stage_seconds(v, k, (int)(l / v->grain), (int)(c / v->grain), f, g);
    *f = (*f > k->data[0] ? *f : k->data[0]) / v->chunks;
    *g = (*g > k->data[1] ? *g : k->data[1]) / v->chunks;
}

/* ---- stages ------------------------------------------------------------------------ */

/* Section i has turns[i] turns from first[i] on. */
static void fill_kind(const SliceView *v, Kind *k, const Point *p, const int *turns,
                      const int *first, int r)
{
    const Shape *s = v->shape;
    int n = p->stages * p->chunks;
    memset(k->count, 0, sizeof *k->count * 2 * (size_t)s->classes.n);
    for (int i = r; i < n; i += p->stages)
        for (int j = first[i]; j < first[i] + turns[i]; j++)
            k->count[s->class_of[j]]++;
    memcpy(k->again, k->count, sizeof *k->again * (size_t)s->classes.n);
    if (r == 0 && s->head != NONE)
        k->count[s->head]++;
    if (r == p->stages - 1 && s->tail != NONE)
        k->count[s->tail]++;
    k->launches[0] = k->launches[1] = k->parameters = k->units = 0;
    for (int i = 0; i < s->classes.n; i++) {
        const TurnClass *t = &v->cost.classes.at[i];
        for (int way = 0; way < 2; way++)
            k->launches[way] += v->cost.prices.launch * k->count[i] * t->kernels[way];
        k->parameters += k->count[i] * t->parameters;
        k->units += k->count[i] * t->units;
    }
}

/* Gathers and sums over data of a pass (zero 2 and 3), whatever they hide beside. */
static void find_data(SliceView *v)
{
    const double none[2] = { 0 };
    for (int k = 0; k < v->nkinds; k++)
        cost_data(&v->cost, v->kind[k].parameters, v->kind[k].units, none, v->kind[k].data);
}

/* Stages of the point by kind, and what each pass does over data. */
static void open_point(SliceView *v, const Point *p)
{
    int n;
    Point whole = *p;
    whole.nslices = 1;
    whole.slice = NULL;
    open_cell(v, p);
    v->cost.is.zero = p->zero;
    v->recompute = p->recompute;        // what NONE makes again takes no time
    if (v->chunks == p->chunks) {
        find_data(v);
        return;
    }
    const int *turns = estimate_turns(v->t->e, &whole, &n);
    v->chunks = p->chunks;
    v->nkinds = 0;
    for (int i = 0, at = 0; i < n; at += turns[i++])
        v->first[i] = at;
    for (int r = 0; r < p->stages; r++) {
        Kind *new = &v->kind[v->nkinds];
        int k = 0;
        fill_kind(v, new, p, turns, v->first, r);
        while (k < v->nkinds && memcmp(v->kind[k].count, new->count, sizeof *new->count * 2 *
                                       (size_t)v->shape->classes.n))
            k++;
        if (k == v->nkinds)
            v->kind_stages[v->nkinds++] = 0;
        v->kind_stages[k]++;
    }
    find_data(v);
}

/* Stage 0 is the last to work, and has yet to sum what its last pass does not hide of its
 * gradients, and to update and gather its parameters. That pass is no longer than one of the
 * whole sequence. A list may keep less than it was made for, so that zero 3 has nothing to
 * gather. The first kind is its own. */
double slice_after(SliceView *v, const Point *p)
{
    double gather, tied = 0, f = 0, under = 0;
    open_point(v, p);
    const Kind *k = &v->kind[0];
    stage_seconds(v, k, v->n, 0, &f, &under);
    if (v->cost.tied > 0)
        tied = price_transfer(&v->cost.prices, &v->cost.mesh, p->stages - 1, true,
                              v->cost.tied * v->cost.gradient);
    double update = cost_update(&v->cost, k->parameters, k->units, &gather);
    return tied + cost_sync(&v->cost, 0, k->parameters, under) + update +
           (p->zero == 3 ? 0 : gather);
}

static double microbatches(const SliceView *v, const Point *p)
{
    return (double)(v->t->plan->is.batch / p->data / p->microbatch);
}

/* ---- the programme ----------------------------------------------------------------- */

static Schedule shape(const Plan *p, const Point *a, int64_t k)
{
    return (Schedule){ .kind = a->schedule, .P = a->stages, .v = a->chunks, .k = (int)k,
                       .m = (int)(p->is.batch / a->data / a->microbatch) };
}

static const Pass *rate_of(SliceView *v, int class)
{
    Pass *r = &v->passes->rate[class];
    if (r->known)
        return r;
    *r = (Pass){ INFINITY, INFINITY, { INFINITY, INFINITY, INFINITY }, true };
    for (int l = 1; l < v->n; l++)
        for (int c = 1; c + l <= v->n; c++) {
            const Pass *p = more_of(v, class, l, c);
            double pairs = (double)l * c;
            r->f = less(r->f, p->f / pairs);
            r->g = less(r->g, p->g / pairs);
            for (int i = 0; i < 3; i++)
                r->again[i] = less(r->again[i], p->again[i] / pairs);
        }
    return r;
}

static Bound bound_of(SliceView *v, const Kind *kind, int k)
{
    Bound b = { 0 };
    for (int i = 0; i < v->shape->classes.n; i++) {
        if (kind->count[i] == 0)
            continue;
        const Pass *p = least_of(v, i, k);
        b.work[0] += kind->count[i] * p->f;
        b.work[1] += kind->count[i] * p->g + kind->again[i] * p->again[v->recompute];
        if (v->cost.classes.at[i].nattention == 0)
            continue;
        p = rate_of(v, i);
        b.pair[0] += kind->count[i] * p->f;
        b.pair[1] += kind->count[i] * p->g + kind->again[i] * p->again[v->recompute];
    }
    for (int way = 0; way < 2; way++)
        b.launches[way] = k * kind->launches[way];
    return b;
}

/* data: what each slice does over data at least, each way. */
static double seconds_of(const Bound *b, double pairs, int k, const double *data)
{
    double sum = 0;
    for (int way = 0; way < 2; way++)
        sum += larger(b->work[way] + b->pair[way] * pairs,
                      larger(b->launches[way], k * data[way]));
    return sum;
}

static double wait_of(SliceView *v, const Point *p, int l)
{
    double most = 0, fill = 0;
    for (int i = 0; i < v->nkinds; i++) {
        double f = 0, g = 0;
        stage_seconds(v, &v->kind[i], l, 0, &f, &g);
        fill += v->kind_stages[i] * (f + g);
        most = larger(most, f + g);
    }
    return (fill - most) / p->chunks;
}

static void open_bounds(SliceView *v, const Point *p)
{
    Bounds *b = &v->bounds;
    if (b->passes == v->passes && b->chunks == p->chunks && b->recompute == p->recompute &&
        same_cell(&b->cell, p))
        return;
    b->passes = v->passes;
    b->chunks = p->chunks;
    b->recompute = p->recompute;
    b->cell = *p;
    b->wait[v->n] = INFINITY;
    for (int l = v->n - 1; l > 0; l--)
        b->wait[l] = less(wait_of(v, p, l), b->wait[l + 1]);
    for (int k = 2; k <= v->n; k++)
        for (int i = 0; i < v->nkinds; i++)
            b->of[k][i] = bound_of(v, &v->kind[i], k);
}

/*
 * Of k slices the longest has lmax, L / k at least. Without context they take no less than the
 * envelope says, starting their kernels, and what each does over data. Of all pairs of
 * tokens, context has those that no slice has to itself, (L - lmax) L / 2 at least. The
 * stages but one wait for the longest:
 *
 *     min over k >= 2, lmax of  m work(k, lmax)  +  (sum - max of f(lmax) + g(lmax)) / v
 *
 * where the stage that is fullest without slices has room for the units of lmax tokens that k
 * slices have in flight. Lengths within a quarter share the least of both terms; the longest
 * come first, whose work no other lmax of the same k comes below.
 */
void slice_bound(SliceView *v, const Point *p, const Estimate *whole, double workspace,
                 double *seconds, double *bytes)
{
    const StageMemory *mem = &whole->memory;
    Schedule s = shape(v->t->plan, p, 1);
    double m = microbatches(v, p), L = (double)v->t->plan->is.sequence;
    double shrinks = workspace + mem->logits;
    double rest = mem->peak - mem->activations - mem->keys_values - shrinks;
    double token = mem->activations / schedule_units(&s, whole->worst) / L;
    open_point(v, p);
    open_bounds(v, p);
    double share = shrinks / v->n;
    *seconds = *bytes = INFINITY;
    for (s.k = 2; s.k <= v->n; s.k++) {
        double each = token * (double)v->grain * schedule_units(&s, whole->worst) + share;
        int least = (v->n + s.k - 1) / s.k, to = v->n - s.k + 1;
        *bytes = less(rest + each * least, *bytes);
        while (to >= least && rest + each * to > whole->room_bytes)
            to--;
        for (double work = 0; to >= least && m * work + v->bounds.wait[least] < *seconds;) {
            int l = to - to / 5 > least ? to - to / 5 : least;
            for (int i = 0; i < v->nkinds; i++)
                work = larger(work, seconds_of(&v->bounds.of[s.k][i], (v->n - to) * v->n / 2.0,
                                               s.k, v->kind[i].data));
            *seconds = less(m * work + v->bounds.wait[l], *seconds);
            to = l - 1;
        }
    }
}

typedef struct { const Plan *p; const Point *a; } RoomArg;

static int64_t room_units(void *arg, int stage, int64_t k)
{
    const RoomArg *r = arg;
    Schedule s = shape(r->p, r->a, k);
    return schedule_units(&s, stage);
}

/* So many at least have slices among the units. */
static int64_t room_kv(void *arg, int stage, int64_t k)
{
    return (room_units(arg, stage, k) + k - 1) / k;
}

/* From so many slices on, chunks pass in groups that divide m microbatches. */
static int64_t least_count(const Point *p, int64_t m)
{
    int64_t k = p->chunks > 1 ? p->stages : 2;
    while (k > 2 && m % ((p->stages + k - 2) / (k - 1)) == 0)
        k--;
    return k > 2 ? k : 2;
}

/* Bytes of a unit and of keys and values, from what the whole sequence in one slice holds. */
static SliceRoom room_of(Tune *t, const Point *whole, RoomArg *arg)
{
    const Plan *p = t->plan;
    int P = whole->stages;
    int64_t *at = arena_get(scratch, sizeof *at * 3 * (size_t)P), *kv = at + P, *room = kv + P;
    Schedule one = shape(p, whole, 1);
    for (int r = 0; r < P; r++) {
        StageMemory m = estimate_memory(t->e, whole, r);
        double rest = m.peak - m.activations - m.keys_values - m.workspace;
        double left = (double)p->is.room_bytes - rest;
        int units = schedule_units(&one, r);
        at[r] = (int64_t)(m.activations / units / (double)p->is.sequence);
        kv[r] = (int64_t)(m.keys_values / units);
        room[r] = left > 9e18 ? INT64_MAX / 4 : (int64_t)left;
    }
    return (SliceRoom){ .schedule = SLICE_OWN, .token_bytes = at, .kv_bytes = kv,
                        .room_bytes = room, .units = room_units, .kv = room_kv, .arg = arg };
}

void slice_lists(SliceView *v, const Point *p, double limit_s, SliceLists *out)
{
    Point whole = *p;
    *out = (SliceLists){ 0 };
    whole.nslices = 1;
    whole.slice = NULL;
    whole.zero = p->zero == 0 && p->data > 1 ? 1 : p->zero;     // the same passes, more room
    open_point(v, p);
    if (v->n < 2)
        return;
    RoomArg arg = { v->t->plan, &whole };
    SliceRoom room = room_of(v->t, &whole, &arg);
    SliceProblem pr = { .tokens = v->t->plan->is.sequence, .grain = v->grain, .stages = p->stages,
        .microbatches = (int64_t)microbatches(v, p) * p->chunks, .separate = true,
        .worth = limit_s < INFINITY ? WORTH * limit_s : 0, .time = slice_seconds,
        .arg = v, .nkinds = v->nkinds, .kind_stages = v->kind_stages, .candidates = LISTS,
        .room = &room };
    pr.least = least_count(p, (int64_t)microbatches(v, p));
    if (pr.least > v->n)
        return;
    v->t->programmes++;
    Slices found = slice_solve(scratch, &pr);
    for (int i = 0; i < found.ncand; i++) {
        int64_t *len = NEWN(int64_t, found.cand[i].k);
        memcpy(len, found.cand[i].len, sizeof *len * (size_t)found.cand[i].k);
        out->at[out->n].k = found.cand[i].k;
        out->at[out->n++].len = len;
    }
}
