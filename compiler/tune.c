/*
 * tune.c - the search: cells, their variants, what is excluded and why that loses nothing.
 *
 * A cell is a mesh (data, pipeline, x, y, z) and a microbatch; its variants are chunks,
 * schedule, recompute, zero and slices. The best variant stands for the cell.
 *
 *   1  every factorisation of the devices and every microbatch: legal or counted by reason
 *   2  legal cells by estimate_bound, best first; a cell whose bound passes the worst of
 *      the best so far ends the search, for every variant of it and of those behind is slower
 *   3  the same again with slices, which cost a programme each: only cells with stages
 *      whose bound still beats the worst
 *   4  which of the other cells fit, and the front of time and memory
 *
 * Variants left out, and why:
 *   recompute     adds time and never takes any: with none that fits, the others lose in time;
 *                 full(n) takes longer and holds less with each n: the least n that fits
 *   gpipe         holds every unit of a step, 1f1b a part: without stages it is not tried
 *   chunks        interleave stages: with one stage there are none
 *   zero          shards over data: with one replica there is none
 *   slices        fill a pipeline: with one stage they only cost
 */
#include "partition.h"
#include "slice.h"
#include "tune.h"

const char *const objective_word[OBJECTIVES] = { "time", "memory", "cost" };

/* TUNING: slices are multiples of 8 tokens where the sequence allows, as in pipeline.c; lists of
 * equal slices that stand beside the programme's. */
enum { GRAIN = 8, UNIFORMS = 5 };

typedef struct { Point at; double bound; } Cell;
typedef struct { Cell *at; int n, cap; } Cells;         // on the heap: perm never shrinks

typedef struct { int64_t of; int n; int64_t at[1 << 11]; } Divisors;    // ascending

typedef struct {
    Tune *t;
    const Plan *p;
    const PlanSpec *s;
    double deadline;
    bool late;
    bool attends;                   // the model has attention to recompute
    bool slices_open;               // slices may be chosen
    Divisors devices, each;         // of all devices; of a replica's batch
    Cells cells;
} Search;

/* The best variant of a cell, and the one that lacks least. */
typedef struct { bool any, looked; Candidate best, least; } Found;

/* ---- points ---------------------------------------------------------------------- */

const char *tune_line(const Point *p)
{
    Text t = { 0 };
    text_add(&t, "data %d, pipeline %d, ", p->data, p->stages);
    if (p->chunks > 1)
        text_add(&t, "%s, ", plural(p->chunks, "chunk"));
    text_add(&t, "cube [%d, %d, %d], microbatch %" PRId64, p->x, p->y, p->z, p->microbatch);
    if (p->nslices > 1)
        text_add(&t, ", %s", plural(p->nslices, "slice"));
    if (p->stages > 1)
        text_add(&t, ", %s", schedule_word[p->schedule]);
    if (p->recompute == RECOMPUTE_ATTENTION)
        text_add(&t, ", recompute attention");
    else if (p->recompute == RECOMPUTE_FULL && p->recompute_turns == 0)
        text_add(&t, ", recompute full");
    else if (p->recompute == RECOMPUTE_FULL)
        text_add(&t, ", recompute full(%d)", p->recompute_turns);
    if (p->zero)
        text_add(&t, ", zero %d", p->zero);
    return str_of(t.at, t.n);
}

static Num num(int64_t v) { return (Num){ (double)v, { 0, 0 }, true }; }
static Word word(const char *v) { return (Word){ v, { 0, 0 }, true }; }

void tune_pin(PlanSpec *s, const Point *p)
{
    const int side[] = { p->x, p->y, p->z };
    s->data = num(p->data);
    s->pipeline = num(p->stages);
    s->chunks = num(p->chunks);
    for (int i = 0; i < 3; i++)
        s->cube[i] = num(side[i]);
    s->microbatch = num(p->microbatch);
    s->slices_kind = p->slice ? SLICES_LIST : SLICES_UNIFORM;
    s->slices_n = p->nslices;
    memset(&s->slices, 0, sizeof s->slices);        // the old list may be another's
    for (int i = 0; p->slice && i < p->nslices; i++)
        vec_add(&s->slices, p->slice[i]);
    s->schedule = word(schedule_word[p->schedule]);
    static const char *const again[] = { "none", "attention", "full" };
    s->recompute = word(again[p->recompute]);
    s->recompute_n = p->recompute == RECOMPUTE_FULL ? p->recompute_turns : 0;
    s->zero = num(p->zero);
}

/* x in data's place: one microbatch of all replicas, weights gathered turn by turn. */
static Point canonical(const Point *p, int64_t batch)
{
    Point q = *p;
    if (q.stages == 1 && q.zero == 3 && q.microbatch * q.data == batch) {
        q.x *= q.data;
        q.microbatch *= q.data;
        q.data = 1;
        q.zero = 0;
    }
    return q;
}

static int mesh_order(const Point *a, const Point *b)
{
    const int64_t v[][2] = { { a->stages, b->stages }, { a->data, b->data }, { a->x, b->x },
        { a->z, b->z }, { a->y, b->y }, { a->microbatch, b->microbatch } };
    for (int i = 0; i < 6; i++)
        if (v[i][0] != v[i][1])
            return v[i][0] < v[i][1] ? -1 : 1;
    return 0;
}

bool tune_same(const Plan *p, const Point *a, const Point *b)
{
    Point x = canonical(a, p->is.batch), y = canonical(b, p->is.batch);
    return mesh_order(&x, &y) == 0;
}

int tune_order(Objective o, const Candidate *a, const Candidate *b)
{
    double t = a->is.step_s - b->is.step_s, m = a->is.memory.peak - b->is.memory.peak;
    double first = o == TUNE_MEMORY ? m : t, second = o == TUNE_MEMORY ? t : m;
    if (first != 0)
        return first < 0 ? -1 : 1;
    if (second != 0)
        return second < 0 ? -1 : 1;
    if (mesh_order(&a->at, &b->at))
        return mesh_order(&a->at, &b->at);
    const int v[][2] = { { a->at.chunks, b->at.chunks }, { a->at.nslices, b->at.nslices },
        { a->at.recompute, b->at.recompute }, { a->at.zero, b->at.zero },
        { b->at.schedule, a->at.schedule } };
    for (int i = 0; i < 5; i++)
        if (v[i][0] != v[i][1])
            return v[i][0] < v[i][1] ? -1 : 1;
    return 0;
}

/* ---- what was found -------------------------------------------------------------- */

/* f[i] is no slower than f[i + 1] and holds no less. */
static void front_add(Tune *t, const Candidate *c)
{
    int lo = 0, keep;
    while (lo < t->front.n && t->front.at[lo].is.step_s < c->is.step_s)
        lo++;
    if (lo < t->front.n && t->front.at[lo].is.step_s == c->is.step_s &&
        t->front.at[lo].is.memory.peak <= c->is.memory.peak)
        return;
    if (lo > 0 && t->front.at[lo - 1].is.memory.peak <= c->is.memory.peak)
        return;
    for (keep = lo; keep < t->front.n &&
         t->front.at[keep].is.memory.peak >= c->is.memory.peak;)
        keep++;
    Candidate last = *c;
    vec_add(&t->front, last);               // for the room
    memmove(&t->front.at[lo + 1], &t->front.at[keep],
            sizeof last * (size_t)(t->front.n - 1 - keep));
    t->front.at[lo] = *c;
    t->front.n += lo - keep;
}

static bool on_front(const Tune *t, double seconds, double bytes)   // could such a one be?
{
    int i = 0;
    while (i < t->front.n && t->front.at[i].is.step_s <= seconds)
        i++;
    return i == 0 || t->front.at[i - 1].is.memory.peak > bytes;
}

static void best_add(Tune *t, const Candidate *c)
{
    Objective o = t->ask.objective;
    int same = 0;
    while (same < t->best.n && !tune_same(t->plan, &t->best.at[same].at, &c->at))
        same++;
    if (same < t->best.n) {
        if (tune_order(o, c, &t->best.at[same]) >= 0)
            return;
    } else if (t->best.n < t->ask.top)
        vec_add(&t->best, *c);
    else if (tune_order(o, c, &t->best.at[--same]) >= 0)
        return;
    for (; same > 0 && tune_order(o, c, &t->best.at[same - 1]) < 0; same--)
        t->best.at[same] = t->best.at[same - 1];
    t->best.at[same] = *c;
}

/* What a cell must beat to be among the best. */
static double worst_time(const Tune *t)
{
    return t->ask.objective == TUNE_MEMORY || t->best.n < t->ask.top
         ? INFINITY : t->best.at[t->best.n - 1].is.step_s;
}

static bool is_late(Search *q)
{
    if (!q->late && q->t->ask.budget_s > 0)
        q->late = now_s() > q->deadline;
    return q->late;
}

static double lack(const Candidate *c) { return c->is.memory.peak - c->is.room_bytes; }

/* Prices one variant; does it fit? */
static bool try_point(Search *q, Found *f, const Point *p)
{
    Candidate c = { .at = *p };
    if (is_late(q))
        return false;
    if (++q->t->evaluations % 256 == 0)
        arena_reset(scratch);
    bool fits = estimate(q->t->e, p, &c.is) == LEGAL;
    if (!f->looked || lack(&c) < lack(&f->least))
        f->least = c;
    f->looked = true;
    if (!fits)
        return false;
    if (!q->t->ask.no_front)
        front_add(q->t, &c);
    if (!f->any || tune_order(q->t->ask.objective, &c, &f->best) < 0)
        f->best = c;
    f->any = true;
    return true;
}

/* ---- variants of a cell ------------------------------------------------------------ */

static bool is_word(Word w, const char *text) { return w.v && strcmp(w.v, text) == 0; }

static int pinned_recompute(const PlanSpec *s)
{
    return is_word(s->recompute, "attention") ? RECOMPUTE_ATTENTION
         : is_word(s->recompute, "full") ? RECOMPUTE_FULL : RECOMPUTE_NONE;
}

static bool try_full(Search *q, Found *f, Point p, int n)
{
    p.recompute = RECOMPUTE_FULL;
    p.recompute_turns = n;
    return try_point(q, f, &p);
}

/* Every n where `all`, else the least that fits. */
static void try_fulls(Search *q, Found *f, Point p, bool all)
{
    int turns = (q->p->layers + p.stages - 1) / p.stages, lo = 1, hi = turns;
    bool fits = try_full(q, f, p, 0);
    if (all)
        for (int n = 1; n < turns; n++)
            try_full(q, f, p, n);
    if (all || !fits)
        return;
    while (lo < hi) {                       // full(hi) fits, full(lo - 1) does not
        int mid = (lo + hi) / 2;
        if (try_full(q, f, p, mid))
            hi = mid;
        else
            lo = mid + 1;
    }
}

static void try_recomputes(Search *q, Found *f, Point p, bool all)
{
    const PlanSpec *s = q->s;
    p.recompute_turns = 0;
    if (s->recompute.v) {
        p.recompute = pinned_recompute(s);
        p.recompute_turns = (int)s->recompute_n;
        try_point(q, f, &p);
        return;
    }
    p.recompute = RECOMPUTE_NONE;
    if (try_point(q, f, &p) && !all)
        return;
    p.recompute = RECOMPUTE_ATTENTION;
    if (q->attends)
        try_point(q, f, &p);
    try_fulls(q, f, p, all);
}

static void try_zeros(Search *q, Found *f, Point p, bool all)
{
    int lo = 0, hi = p.data > 1 ? 3 : 0;
    if (q->s->zero.set)
        lo = hi = (int)q->s->zero.v;
    for (p.zero = lo; p.zero <= hi; p.zero++)
        try_recomputes(q, f, p, all);
}

static void try_schedules(Search *q, Found *f, Point p, bool all)
{
    bool open = !q->s->schedule.v;
    if (open || is_word(q->s->schedule, "1f1b")) {
        p.schedule = SCHEDULE_1F1B;
        try_zeros(q, f, p, all);
    }
    if ((open && p.stages > 1 && !all) || is_word(q->s->schedule, "gpipe")) {
        p.schedule = SCHEDULE_GPIPE;
        try_zeros(q, f, p, all);
    }
}

static int most_chunks(const Search *q, const Point *p)
{
    return p->stages == 1 ? 1 : q->p->layers / p->stages;
}

/* The lists of a cell with so many chunks: one whole sequence, or what is pinned, or with
 * `sliced` all but the whole. */
static void try_lists(Search *q, Found *f, Point p, bool sliced, bool all)
{
    SliceLists lists = { .n = 1, .at = { { 1, NULL } } };
    if (sliced || !q->slices_open)
        tune_slices(q->t, &p, &lists);
    for (int i = 0; i < lists.n; i++) {
        p.nslices = lists.at[i].k;
        p.slice = lists.at[i].len;
        if (estimate_legal(q->t->e, &p) == LEGAL)
            try_schedules(q, f, p, all);
    }
}

static void try_cell(Search *q, Found *f, Point p, bool sliced, bool all)
{
    int lo = 1, hi = most_chunks(q, &p);
    if (q->s->chunks.set)
        lo = hi = (int)q->s->chunks.v;
    for (p.chunks = lo; p.chunks <= hi; p.chunks++)
        try_lists(q, f, p, sliced, all);
}

/* ---- slices ------------------------------------------------------------------------ */

static int64_t grain_of(const Plan *p, const Point *a)
{
    int64_t step = a->x * lcm64(a->y, a->z), L = p->is.sequence;
    int64_t grain = step / gcd64(step, a->microbatch);
    if (L % grain)
        return L;
    while (grain < GRAIN && L % (2 * grain) == 0)
        grain *= 2;
    return grain;
}

void tune_slices(Tune *t, const Point *p, SliceLists *out)
{
    const PlanSpec *s = t->pins;
    int64_t L = t->plan->is.sequence;
    *out = (SliceLists){ 0 };
    if (s->slices_kind == SLICES_LIST) {
        out->at[0].k = s->slices.n;
        out->at[0].len = s->slices.at;
        out->n = 1;
        return;
    }
    if (s->slices_kind == SLICES_UNIFORM) {
        out->at[0].k = (int)s->slices_n;
        out->n = 1;
        return;
    }
    int64_t grain = grain_of(t->plan, p);
    for (int64_t k = 2; k < 2 << UNIFORMS && k <= L / grain; k *= 2)
        out->at[out->n++].k = (int)k;
}

/* ---- cells -------------------------------------------------------------------------- */

static void reject(Search *q, Reject why)
{
    q->t->searched++;
    q->t->rejected[why]++;
}

static void add_cell(Search *q, Point p)
{
    Reject why = estimate_legal(q->t->e, &p);
    if (why != LEGAL) {
        reject(q, why);
        return;
    }
    Cells *c = &q->cells;
    q->t->searched++;
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 1024;
        c->at = realloc(c->at, (size_t)c->cap * sizeof *c->at);
        if (c->at == NULL)
            die(EXIT_WORLD, "out of memory (tune: %d layouts)", c->cap);
    }
    c->at[c->n++] = (Cell){ p, 0 };
}

/* No number below 2^40 has more than 1 << 11 divisors. */
static const Divisors *divisors(Divisors *d, int64_t n)
{
    int high = 0;
    if (d->of == n)
        return d;
    d->of = n;
    d->n = 0;
    for (int64_t i = 1; i <= n / i; i++)
        if (n % i == 0)
            d->at[d->n++] = i;
    for (int i = d->n; i-- > 0;)
        if (d->at[i] != n / d->at[i])
            d->at[d->n + high++] = n / d->at[i];
    d->n += high;
    return d;
}

static bool pinned_away(Num pin, int64_t v) { return pin.set && (int64_t)pin.v != v; }

static void add_mesh(Search *q, Point p)
{
    int64_t batch = q->p->is.batch, each = batch / p.data;
    if (batch % p.data) {
        reject(q, REJECT_BATCH);
        return;
    }
    const Divisors *of = divisors(&q->each, each);
    bool any = false;
    for (int i = 0; i < of->n; i++) {
        if (pinned_away(q->s->microbatch, of->at[i]))
            continue;
        any = true;
        p.microbatch = of->at[i];
        add_cell(q, p);
    }
    if (!any)
        reject(q, REJECT_BATCH);
}

static void add_cubes(Search *q, Point p, int64_t n)
{
    const PlanSpec *s = q->s;
    bool flat = is_word(s->partition, "1d"), square = flat || is_word(s->partition, "2d");
    for (int i = 0; i < q->devices.n; i++) {
        int64_t x = q->devices.at[i];
        if (n % x || pinned_away(s->cube[0], x) || (square && x > 1))
            continue;
        for (int k = 0; k < q->devices.n && !is_late(q); k++) {
            int64_t y = q->devices.at[k], z = n / x / y;
            if (n / x % y || pinned_away(s->cube[1], y) || pinned_away(s->cube[2], z) ||
                (flat && z > 1))
                continue;
            p.x = (int)x;
            p.y = (int)y;
            p.z = (int)z;
            add_mesh(q, p);
        }
    }
}

static void add_cells(Search *q)
{
    int64_t n = q->t->devices;
    Point p = { .chunks = q->s->chunks.set ? (int)q->s->chunks.v : 1, .nslices = 1,
                .schedule = SCHEDULE_1F1B };
    divisors(&q->devices, n);
    for (int i = 0; i < q->devices.n; i++)
        for (int k = 0; k < q->devices.n; k++) {
            int64_t data = q->devices.at[i], stages = q->devices.at[k];
            if (n / data % stages || pinned_away(q->s->data, data) ||
                pinned_away(q->s->pipeline, stages))
                continue;
            p.data = (int)data;
            p.stages = (int)stages;
            add_cubes(q, p, n / data / stages);
        }
}

static int by_bound(const void *a, const void *b)
{
    const Cell *x = a, *y = b;
    return x->bound != y->bound ? (x->bound < y->bound ? -1 : 1) : mesh_order(&x->at, &y->at);
}

/* ---- the search ----------------------------------------------------------------------- */

static void price_bounds(Search *q)
{
    for (int i = 0; i < q->cells.n && !is_late(q); i++) {
        q->cells.at[i].bound = estimate_bound(q->t->e, &q->cells.at[i].at);
        q->t->bounds++;
    }
    qsort(q->cells.at, (size_t)q->cells.n, sizeof *q->cells.at, by_bound);
}

static void search_best(Search *q, bool sliced)
{
    for (int i = 0; i < q->cells.n && !is_late(q); i++) {
        const Cell *c = &q->cells.at[i];
        Found f = { 0 };
        if (c->bound > worst_time(q->t))
            break;
        if (sliced && c->at.stages == 1)
            continue;
        try_cell(q, &f, c->at, sliced, q->t->ask.objective == TUNE_MEMORY);
        if (f.any)
            best_add(q->t, &f.best);
    }
}

/* The variants of a cell that hold least: does one fit? */
static bool fits_at_all(Search *q, Found *f, Point p)
{
    int lo = 0, hi = p.data > 1 ? 3 : 0;
    if (q->s->zero.set)
        lo = hi = (int)q->s->zero.v;
    SliceLists lists = { 0 };
    if (!q->slices_open || (p.stages > 1 && !q->p->sees_ahead))
        tune_slices(q->t, &p, &lists);
    for (int sliced = q->slices_open ? 0 : 1; sliced < 2 && !f->any; sliced++) {
        if (sliced && lists.n == 0)
            break;
        p.nslices = sliced ? lists.at[lists.n - 1].k : 1;
        p.slice = sliced ? lists.at[lists.n - 1].len : NULL;
        p.schedule = is_word(q->s->schedule, "gpipe") ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
        if (estimate_legal(q->t->e, &p) != LEGAL)
            continue;
        for (p.zero = hi; p.zero >= lo && !f->any; p.zero--) {
            p.recompute = q->s->recompute.v ? pinned_recompute(q->s) : RECOMPUTE_FULL;
            p.recompute_turns = (int)q->s->recompute_n;
            try_point(q, f, &p);
            p.recompute = RECOMPUTE_NONE;
            if (!f->any && !q->s->recompute.v)
                try_point(q, f, &p);
        }
    }
    return f->any;
}

static void look_at_rest(Search *q)
{
    Tune *t = q->t;
    for (int i = 0; i < q->cells.n && !is_late(q); i++) {
        const Cell *c = &q->cells.at[i];
        Found f = { 0 };
        if (fits_at_all(q, &f, c->at)) {
            t->feasible++;
            if (on_front(t, c->bound, f.least.is.memory.peak))
                try_cell(q, &f, c->at, false, true);
            continue;
        }
        t->rejected[REJECT_MEMORY]++;
        if (f.looked && (!t->has_near || lack(&f.least) < lack(&t->near))) {
            t->near = f.least;
            t->has_near = true;
        }
    }
    t->front_complete = !q->late;
}

int64_t tune_devices(const Config *c)
{
    const PlanSpec *s = &c->plan;
    if (c->has_cluster)
        return (int64_t)(c->cluster.nodes.v * c->cluster.per_node.v);
    const Num *pin[] = { &s->data, &s->pipeline, &s->cube[0], &s->cube[1], &s->cube[2] };
    int64_t n = 1;
    bool all = true;
    for (int i = 0; i < 5; i++) {
        n *= pin[i]->set ? (int64_t)pin[i]->v : 1;
        all &= pin[i]->set;
    }
    return all ? n : lcm64(n, machine_cores());
}

Tune *tune_search(Plan *p, const TuneAsk *ask)
{
    Tune *t = NEW(Tune);
    double start = now_s();
    Search q = { .t = t, .p = p, .s = &p->config->plan, .deadline = start + ask->budget_s };
    t->plan = p;
    t->pins = q.s;
    t->ask = *ask;
    t->devices = tune_devices(p->config);
    t->e = estimator_new(p, ask->turns_only);
    for (int i = 0; i < p->nforward; i++)
        q.attends |= p->ops.at[i].kind == OP_ATTN;
    q.slices_open = q.s->slices_kind == SLICES_AUTO;
    add_cells(&q);
    price_bounds(&q);
    search_best(&q, false);
    if (q.slices_open && !p->sees_ahead)
        search_best(&q, true);
    t->complete = !q.late;
    if (!ask->no_front)
        look_at_rest(&q);
    free(q.cells.at);
    t->seconds = now_s() - start;
    return t;
}
