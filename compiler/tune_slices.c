/*
 * tune_slices.c - the slice lists that are tried with a layout: TeraPipe's programme
 * (slice.h) over the passes that the estimate adds up.
 *
 * Every list is priced by estimate() afterwards. With equal stages its objective is the
 * programme's, and the best list of the grain is among those found; with unequal ones the
 * programme minimises a bound on it, so the best of several counts are tried. The
 * programme's room leaves the workspace out: what then does not fit is dropped.
 */
#include "slice.h"
#include "tune.h"

/* TUNING: slices are multiples of 8 tokens where the sequence allows, as in pipeline.c, and of
 * a 64th of the sequence: finer ones change a step by less than it is known. `plan` chooses
 * finer ones. LISTS counts of slices are priced. */
enum { GRAIN = 8, SHARES = 64, LISTS = 4 };

typedef struct {
    const Plan *p;
    Cost *cost;
    Stretch *section;
    int P, v;
    double b;
    int nkinds, *kind_stage, *kind_count;   // equal stages are one kind
} View;

static int64_t grain_of(const Plan *p, const Point *a)
{
    int64_t step = a->x * lcm64(a->y, a->z), L = p->is.sequence;
    int64_t grain = step / gcd64(step, a->microbatch);
    if (p->is.balanced)
        grain = lcm64(grain, 2 * a->x * a->z);
    if (L % grain)
        return L;
    while ((grain < GRAIN || grain * SHARES < L) && L % (2 * grain) == 0)
        grain *= 2;
    return grain;
}

static bool same_stage(const View *v, int a, int b)
{
    for (int c = 0; c < v->v; c++) {
        const Stretch *s = &v->section[c * v->P + a], *t = &v->section[c * v->P + b];
        if (s->nclasses != t->nclasses)
            return false;
        for (int k = 0; k < s->nclasses; k++)
            if (s->class[k] != t->class[k] || s->count[k] != t->count[k])
                return false;
    }
    return true;
}

static void find_kinds(View *v)
{
    v->kind_stage = arena_get(scratch, sizeof *v->kind_stage * (size_t)v->P);
    v->kind_count = arena_get(scratch, sizeof *v->kind_count * (size_t)v->P);
    for (int r = 0; r < v->P; r++) {
        int k = 0;
        while (k < v->nkinds && !same_stage(v, v->kind_stage[k], r))
            k++;
        if (k == v->nkinds)
            v->kind_stage[v->nkinds++] = r;
        v->kind_count[k]++;
    }
}

static void slice_seconds(void *arg, int kind, int64_t l, int64_t c, double *f, double *b)
{
    const View *v = arg;
    for (int ch = 0; ch < v->v; ch++) {
        const Stretch *s = &v->section[ch * v->P + v->kind_stage[kind]];
        PassCost a = stretch_pass(v->cost, s, v->b, (double)l, (double)c);
        *f += seconds_total(&a.forward);
        *b += seconds_total(&a.backward);
    }
}

static Schedule shape(const Plan *p, const Point *a, int64_t k)
{
    return (Schedule){ .kind = a->schedule, .P = a->stages, .v = a->chunks, .k = (int)k,
                       .m = (int)(p->is.batch / a->data / a->microbatch) };
}

typedef struct { const Plan *p; const Point *a; } RoomArg;

static int64_t room_units(void *arg, int stage, int64_t k)
{
    const RoomArg *r = arg;
    Schedule s = shape(r->p, r->a, k);
    return schedule_units(&s, stage);
}

static int64_t room_kv(void *arg, int stage, int64_t k)
{
    const RoomArg *r = arg;
    Schedule s = shape(r->p, r->a, k);
    return schedule_kv(&s, stage);
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
        at[r] = (int64_t)(m.activations / schedule_units(&one, r) / (double)p->is.sequence);
        kv[r] = (int64_t)(m.keys_values / (double)schedule_kv(&one, r));
        room[r] = left > 9e18 ? INT64_MAX / 4 : (int64_t)left;
    }
    return (SliceRoom){ .schedule = whole->chunks > 1 ? SLICE_OWN
                            : whole->schedule == SCHEDULE_GPIPE ? SLICE_GPIPE : SLICE_1F1B,
                        .token_bytes = at, .kv_bytes = kv, .room_bytes = room,
                        .units = room_units, .kv = room_kv, .arg = arg };
}

void tune_slices(Tune *t, const Point *p, SliceLists *out)
{
    Plan plan = *t->plan;
    Point whole = *p;
    whole.nslices = 1;
    whole.slice = NULL;
    plan.is = estimate_choices(t->e, &whole);
    int n;
    const int *turns = estimate_turns(t->e, &whole, &n);
    View v = { .p = &plan, .P = p->stages, .v = p->chunks, .b = (double)p->microbatch };
    v.cost = cost_new(&plan, t->ask.turns_only);
    v.section = stretch_new(v.cost, n, turns);
    find_kinds(&v);
    RoomArg arg = { t->plan, &whole };
    SliceRoom room = room_of(t, &whole, &arg);
    SliceProblem pr = { .tokens = plan.is.sequence, .grain = grain_of(&plan, p),
        .stages = p->stages, .microbatches = plan.is.batch / p->data / p->microbatch,
        .separate = true, .time = slice_seconds, .arg = &v, .nkinds = v.nkinds,
        .kind_stages = v.kind_count, .candidates = LISTS, .least = 2, .room = &room };
    *out = (SliceLists){ 0 };
    t->programmes++;
    if (pr.tokens / pr.grain < 2)
        return;
    Slices found = slice_solve(scratch, &pr);
    for (int i = 0; i < found.ncand; i++) {
        int64_t *len = NEWN(int64_t, found.cand[i].k);
        memcpy(len, found.cand[i].len, sizeof *len * (size_t)found.cand[i].k);
        out->at[out->n].k = found.cand[i].k;
        out->at[out->n++].len = len;
    }
}
