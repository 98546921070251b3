/*
 * tune.c - the search: cells, their variants, what is excluded and why that loses nothing.
 *
 * A cell is a mesh (data, pipeline, x, y, z) and a microbatch; its variants are chunks, slices,
 * schedule, zero and recompute. The best variant stands for the cell.
 *
 *   1  every factorisation of the devices and every microbatch: legal or counted by reason
 *   2  of each cell a bound on its time (estimate_bound) and the bytes of what holds least
 *   3  cells, the likely first, each searched where a variant could still win
 *   4  the same again with slices, whose lists cost a programme each (tune_slices.c)
 *
 * A variant could win if, by its bounds, it fits and is one of the best so far or is on the
 * front of time and memory. What the bounds rest on, held by test_tune.c against plain
 * enumeration:
 *
 *   recompute   adds time; full(n) more with each n, and what all of them keep lies on a line.
 *               full, attention or none holds least
 *   zero        2 or 3 holds least, and 1 less than 0
 *   keep        both or inputs is quickest, none holds least
 *   schedule    1f1b holds no more than gpipe, which is looked at where it may be quicker
 *   slices      fill a pipeline: with one stage they only cost. Their passes together take
 *               no less than the pass of the whole, so at best the waiting goes
 *   chunks      interleave stages: with one stage there are none
 */
#include "tune.h"

/* TUNING: slower layouts than so many times the best are of no interest, whatever they save. */
#define FRONT_TIMES 2

/* TUNING: nor are those that are better by less than this in one and in the other. */
#define FRONT_STEP 1.01

/* TUNING: where no whole sequences fit, up to so many slices of equal length are tried. */
enum { MOST_UNIFORM = 64 };

const char *const objective_word[OBJECTIVES] = { "time", "memory", "cost" };

typedef struct {
    Point at;
    Least bound;
    double least, guess;            // bytes of what holds least in one chunk; seconds
    bool fits, fits_whole;          // some variant does; one without slices does
} Cell;
typedef struct { Cell *at; int n, cap; } Cells;         // on the heap: perm never shrinks

/* A point whose slices are open: no list is quicker, or holds less. */
typedef struct { Point at; double seconds, bytes; Cell *cell; } Sliced;
typedef struct { Sliced *at; int n, cap; } SlicedList;

typedef struct { int64_t of; int n; int64_t at[1 << 11]; } Divisors;    // ascending

typedef struct {
    Tune *t;
    const Plan *p;
    const PlanSpec *s;
    double deadline;
    bool late;
    bool attends;                   // the model has attention to recompute
    bool slices_open;               // slices may be chosen
    bool for_front;                 // what could be on the front is looked at too
    Divisors devices, each;         // of all devices; of a replica's batch
    Cells cells;
    SliceView *view; SlicedList sliced;
} Search;

/* The best variant of a cell. */
typedef struct { bool any; Candidate best; } Found;

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
    if (p->keep != KEEP_CHOSEN)
        s->keep = word(keep_word[p->keep]);
}

int tune_pinned_recompute(const PlanSpec *s)
{
    return s->recompute.v == NULL ? RECOMPUTE_NONE
         : strcmp(s->recompute.v, "attention") == 0 ? RECOMPUTE_ATTENTION
         : strcmp(s->recompute.v, "full") == 0 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
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

int64_t tune_devices_of(const Point *p)
{
    return (int64_t)p->data * p->stages * p->x * p->y * p->z;
}

/* Device seconds of a step: all devices cost the same. */
static double cost(const Candidate *c) { return c->is.step_s * (double)tune_devices_of(&c->at); }

int tune_order(Objective o, const Candidate *a, const Candidate *b)
{
    if (o == TUNE_COST && cost(a) != cost(b))
        return cost(a) < cost(b) ? -1 : 1;
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
    while (i < t->front.n && t->front.at[i].is.step_s <= FRONT_STEP * seconds)
        i++;
    return i == 0 || t->front.at[i - 1].is.memory.peak > FRONT_STEP * bytes;
}

void tune_add(Tune *t, const Candidate *c)
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

static void *more_room(void *at, size_t bytes)
{
    void *more = realloc(at, bytes);
    if (more == NULL)
        die(EXIT_WORLD, "out of memory (tune: %zu bytes for what it looks at)", bytes);
    return more;
}

static bool is_late(Search *q)
{
    if (!q->late && q->t->ask.budget_s > 0)
        q->late = now_s() > q->deadline;
    return q->late;
}

static double lack(const Candidate *c) { return c->is.memory.peak - c->is.room_bytes; }

static bool by_memory(const Search *q) { return q->t->ask.objective == TUNE_MEMORY; }

/* Could a variant with no less time and no fewer bytes than these be wanted? f NULL: any of
 * the cell's. */
static bool is_wanted(const Search *q, const Found *f, double seconds, double bytes)
{
    const Tune *t = q->t;
    if (bytes > (double)q->p->is.room_bytes)
        return false;
    if (q->for_front && seconds <= FRONT_TIMES * t->best.at[0].is.step_s &&
        on_front(t, seconds, bytes))
        return true;
    double v = by_memory(q) ? bytes : seconds;
    if (f && f->any) {                  // what is equal in both was met first
        const Estimate *best = &f->best.is;
        double first = by_memory(q) ? best->memory.peak : best->step_s;
        if (v > first || (v == first && (by_memory(q) ? seconds >= best->step_s
                                                      : bytes >= best->memory.peak)))
            return false;
    }
    if (t->best.n < t->ask.top)
        return true;
    const Estimate *worst = &t->best.at[t->best.n - 1].is;
    return v <= (by_memory(q) ? worst->memory.peak : worst->step_s);
}

static void price(Search *q, const Point *p, Candidate *out)
{
    q->t->evaluations++;
    out->at = *p;
    estimate_step(q->t->e, p, &out->is);
    arena_reset(scratch);               // at once, or it grows out of the caches
}

static double seconds_with(Search *q, Point p, int keep)
{
    p.keep = keep;
    q->t->evaluations++;
    return estimate_time(q->t->e, &p);
}

/* A variant itself keeps what the compiler would, the most that fits. Where everything does, so it
 * does in a variant that holds less. */
static bool keeps_all(const Search *q, const Candidate *c)
{
    return q->s->keep.v || c->is.keep == KEEP_BOTH;
}

static double bytes_with(Search *q, Point p, int keep)
{
    p.keep = keep;
    q->t->evaluations++;
    return estimate_peak(q->t->e, &p);
}

static double fewest_bytes(Search *q, Point p)
{
    return bytes_with(q, p, q->s->keep.v ? KEEP_CHOSEN : KEEP_NONE);
}

static Candidate smallest(Search *q, Point p)
{
    Candidate c;
    p.keep = q->s->keep.v ? KEEP_CHOSEN : KEEP_NONE;
    price(q, &p, &c);
    return c;
}

static void keep_best(Search *q, Found *f, const Candidate *c)
{
    if (lack(c) > 0)
        return;
    if (!q->t->ask.no_front)
        front_add(q->t, c);
    if (!f->any || tune_order(q->t->ask.objective, c, &f->best) < 0)
        f->best = *c;
    f->any = true;
}

/* Prices one variant and keeps it where it fits. */
static Candidate try_point(Search *q, Found *f, const Point *p)
{
    Candidate c;
    price(q, p, &c);
    keep_best(q, f, &c);
    return c;
}

/* ---- variants of a cell ------------------------------------------------------------ */

/* Most turns of a stage: full(n) for more is full. */
static int most_turns(Search *q, const Point *p)
{
    int n, most = 0;
    const int *turns = estimate_turns(q->t->e, p, &n);
    for (int r = 0; r < p->stages; r++) {
        int sum = 0;
        for (int c = 0; c < p->chunks; c++)
            sum += turns[c * p->stages + r];
        most = sum > most ? sum : most;
    }
    return most;
}

/* full(n) of a point, for all n. With the same kept, each n takes more time than those before
 * it and, from the first on, holds no more, so that what is kept is never less: both, inputs, none
 * (KEEP_BOTH < KEEP_INPUTS < KEEP_NONE). Of what keeps all, time and the bytes of a stage are
 * linear in n: no less than on a line from n = 0 to n = turns, where one stage holds most at both
 * ends. What keeps less is there because all does not fit, and holds no less than `partly`.
 * Nothing takes less than `quick`. */
typedef struct {
    Point at;
    bool line; int turns, keep;     // keep: of all turns
    double quick, seconds[2], bytes[2], partly;
} Row;

/* An end of full(n) for from < n < to: what it keeps, or could; by what is kept its bytes, and the
 * seconds of one turn more. 0: not asked yet. */
typedef struct { int n, keep; double bytes[KEEP_WEIGHTS + 1], seconds[KEEP_WEIGHTS + 1]; } End;

static Candidate try_full(Search *q, Found *f, Point p, int n)
{
    p.recompute = RECOMPUTE_FULL;
    p.recompute_turns = n;
    return try_point(q, f, &p);
}

static End end_of(const Candidate *c, int n)
{
    End e = { .n = n, .keep = c->is.keep };
    e.bytes[e.keep] = c->is.memory.peak;
    return e;
}

/* Of those up to this end that keep so much. */
static double least_bytes(Search *q, const Row *row, End *e, int keep)
{
    Point p = row->at;
    p.recompute = RECOMPUTE_FULL;
    p.recompute_turns = e->n;
    if (e->bytes[keep] == 0)
        e->bytes[keep] = bytes_with(q, p, keep);
    return keep > KEEP_BOTH ? larger(e->bytes[keep], row->partly) : e->bytes[keep];
}

/* Of those behind this end that keep so much. */
static double least_seconds(Search *q, const Row *row, End *e, int keep)
{
    Point p = row->at;
    p.recompute = RECOMPUTE_FULL;
    p.recompute_turns = e->n + 1;
    p.keep = keep;
    if (e->seconds[keep] == 0) {
        q->t->evaluations++;
        e->seconds[keep] = estimate_more(q->t->e, &p);
    }
    return e->seconds[keep];
}

/* Is one on the line between both wanted? */
static bool on_line(const Search *q, const Found *f, const Row *row, int lo, int hi)
{
    for (int n = lo + 1; n < hi; n++) {
        double x = (double)n / row->turns;
        double seconds = row->seconds[0] + x * (row->seconds[1] - row->seconds[0]);
        if (is_wanted(q, f, seconds, row->bytes[0] + x * (row->bytes[1] - row->bytes[0])))
            return true;
    }
    return false;
}

/* Is one of full(n) between both wanted, whatever it keeps? */
static bool are_wanted(Search *q, const Found *f, const Row *row, End *lo, End *hi)
{
    for (int keep = hi->keep; keep <= lo->keep; keep++) {
        double bytes = least_bytes(q, row, hi, keep);
        if (is_wanted(q, f, row->quick, bytes) &&
            is_wanted(q, f, least_seconds(q, row, lo, keep), bytes) &&
            (!row->line || keep != row->keep || on_line(q, f, row, lo->n, hi->n)))
            return true;
    }
    return false;
}

static void try_between(Search *q, Found *f, const Row *row, End *lo, End *hi)
{
    if (hi->n - lo->n < 2 || is_late(q) || !are_wanted(q, f, row, lo, hi))
        return;
    int n = (lo->n + hi->n) / 2;
    Candidate c = try_full(q, f, row->at, n);
    End mid = end_of(&c, n);
    try_between(q, f, row, lo, &mid);
    try_between(q, f, row, &mid, hi);
}

/* What of all recomputes holds least. Of full(n) full does or, in a stage of few turns, none. */
static Point least_recompute(Search *q, Point p, double *bytes)
{
    Point best = p;
    *bytes = INFINITY;
    for (p.recompute = RECOMPUTE_NONE; p.recompute <= RECOMPUTE_FULL; p.recompute++) {
        bool pinned = q->s->recompute.v != NULL;
        if (pinned ? p.recompute != tune_pinned_recompute(q->s)
                   : p.recompute == RECOMPUTE_ATTENTION && !q->attends)
            continue;
        p.recompute_turns = pinned ? (int)q->s->recompute_n : 0;
        double b = fewest_bytes(q, p);
        if (b < *bytes) {
            *bytes = b;
            best = p;
        }
    }
    return best;
}

/* Of a point that makes nothing again and keeps all, whether that fits or not. No recompute takes
 * less than `quick` or holds less than `floor`. */
static void try_recomputes(Search *q, Found *f, const Candidate *all, double quick, double floor)
{
    Candidate none = *all;
    Point p = none.at;
    bool fits = q->s->keep.v || lack(all) <= 0;
    double partly = INFINITY;
    none.at.keep = p.keep = KEEP_CHOSEN;
    if (fits)
        keep_best(q, f, &none);
    else {
        if (!is_wanted(q, f, quick, floor))
            return;
        partly = larger(floor, all->is.room_bytes - all->is.memory.peak + fewest_bytes(q, p));
        if (is_wanted(q, f, quick, partly))
            try_point(q, f, &p);
    }
    if (q->s->recompute.v || !is_wanted(q, f, quick, floor))
        return;
    Candidate full = try_full(q, f, p, 0);
    p.recompute = RECOMPUTE_ATTENTION;
    if (q->attends && is_wanted(q, f, quick, floor))
        try_point(q, f, &p);
    bool linear = p.chunks == 1 || q->for_front;    // of chunks that differ nearly so
    Row row = { .at = p, .turns = most_turns(q, &p), .keep = full.is.keep, .quick = quick,
                .line = keeps_all(q, &full) && all->is.worst == full.is.worst && linear,
                .seconds = { all->is.step_s, full.is.step_s }, .partly = partly,
                .bytes = { all->is.memory.peak, full.is.memory.peak } };
    /* the first needs the room of a turn more: where none fits as it is, any may be kept */
    End lo = { .keep = fits ? full.is.keep : KEEP_NONE }, hi = end_of(&full, row.turns);
    try_between(q, f, &row, &lo, &hi);
}

static int least_zero(const Search *q) { return q->s->zero.set ? (int)q->s->zero.v : 0; }
static int most_zero(const Search *q, const Point *p)
{
    return q->s->zero.set ? (int)q->s->zero.v : p->data > 1 ? 3 : 0;
}

/* Without recompute, and with all kept that could be, whether that fits or not. */
static Candidate with_all(Search *q, Point p)
{
    Candidate c;
    p.recompute = tune_pinned_recompute(q->s);
    p.recompute_turns = (int)q->s->recompute_n;
    p.keep = q->s->keep.v ? KEEP_CHOSEN : KEEP_BOTH;
    price(q, &p, &c);
    return c;
}

/* A row where nothing is made again: bytes and seconds with all kept; seconds with inputs or
 * nothing kept, where all does not fit. */
typedef struct { double bytes, all, inputs, none; } Plain;

static Plain plain_of(const Candidate *all)
{
    double s = all->is.step_s;
    return (Plain){ .bytes = all->is.memory.peak, .all = s, .inputs = s, .none = s };
}

/* With each schedule. Of whole stages, what another of `seen` beats where nothing is made again it
 * always does: it holds no more and is no slower, whatever each keeps. Chunks may gain a little,
 * which is nothing to the front. */
typedef struct { int n; Plain at[8]; } Seen;

static bool is_beaten(const Seen *seen, const Plain *b)
{
    for (int i = 0; i < seen->n; i++) {
        const Plain *a = &seen->at[i];
        if (b->bytes >= a->bytes && b->all >= a->all && b->none >= a->none &&
            b->inputs >= larger(a->all, a->inputs))     // the more fits, the more is kept
            return true;
    }
    return false;
}

static void try_schedules(Search *q, Found *f, Point p, double bytes, Seen *seen)
{
    const Word *pin = &q->s->schedule;
    for (int gpipe = 0; gpipe <= (p.stages > 1 || pin->v); gpipe++) {
        p.schedule = gpipe ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
        if (pin->v && !word_is(*pin, schedule_word[p.schedule]))
            continue;
        Candidate all = with_all(q, p);
        Plain plain = plain_of(&all);
        bool partly = lack(&all) > 0 && !q->s->keep.v;
        if (q->for_front && is_beaten(seen, &plain))
            continue;
        if (partly && (p.x > 1 || p.zero == 3))
            plain.inputs = seconds_with(q, all.at, KEEP_INPUTS);
        if (!is_wanted(q, f, less(plain.all, plain.inputs), bytes))
            continue;
        if (partly && !q->for_front && p.chunks == 1)
            plain.none = seconds_with(q, all.at, KEEP_NONE);
        if (p.chunks == 1 && is_beaten(seen, &plain))
            continue;
        if (gpipe && p.chunks > 1)
            least_recompute(q, p, &bytes);
        seen->at[seen->n++] = plain;
        try_recomputes(q, f, &all, less(plain.all, plain.inputs), bytes);
    }
}

/* From 3 to 0: each but 2 holds more than the one before, and could take as little time. */
static void try_zeros(Search *q, Found *f, Point p, double bound)
{
    Seen seen = { 0 };
    double bytes = 0;
    for (p.zero = most_zero(q, &p); p.zero >= least_zero(q) && !is_late(q); p.zero--) {
        if (p.zero < 2 && !is_wanted(q, f, bound, bytes))
            return;
        seen.n = p.zero > 0 ? 0 : seen.n;       // 0 and 1 keep alike
        p.schedule = word_is(q->s->schedule, "gpipe") ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
        least_recompute(q, p, &bytes);
        if (is_wanted(q, f, bound, bytes))
            try_schedules(q, f, p, bytes, &seen);
    }
}

static int most_chunks(const Search *q, const Point *p)
{
    return p->stages == 1 ? 1 : q->p->layers / p->stages;
}

static double bound_of(const Cell *c, const Point *p)
{
    const Least *b = &c->bound;
    return p->nslices > 1 ? b->seconds : larger(b->seconds, b->work + b->fill / p->chunks);
}

/* Without slices, or with those that are pinned. */
static void try_whole(Search *q, Found *f, const Cell *c)
{
    Point p = c->at;
    int lo = 1, hi = most_chunks(q, &p);
    if (q->s->chunks.set)
        lo = hi = (int)q->s->chunks.v;
    for (p.chunks = hi; p.chunks >= lo && is_wanted(q, f, c->bound.seconds, 0); p.chunks--)
        if ((p.chunks == c->at.chunks || estimate_legal(q->t->e, &p) == LEGAL) &&
            is_wanted(q, f, bound_of(c, &p), 0))
            try_zeros(q, f, p, bound_of(c, &p));
}

/* ---- slices ------------------------------------------------------------------------ */

static void add_sliced(Search *q, Sliced one)
{
    SlicedList *c = &q->sliced;
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 1024;
        c->at = more_room(c->at, (size_t)c->cap * sizeof *c->at);
    }
    c->at[c->n++] = one;
}

/* With each zero that could win, by bounds that get dearer. */
static void look_at_zeros(Search *q, Cell *c, Point p, double floor, double workspace)
{
    for (p.zero = most_zero(q, &p); p.zero >= least_zero(q); p.zero--) {
        Candidate whole;
        Sliced one = { .at = p, .cell = c };
        if (p.zero == 0 && most_zero(q, &p) > 0)
            break;                      // has the lists of 1: see try_lists
        price(q, &p, &whole);
        slice_bound(q->view, &p, &whole.is, workspace, &one.seconds, &one.bytes);
        one.seconds = larger(one.seconds + slice_after(q->view, &p), floor);
        if (one.bytes > (double)q->p->is.room_bytes)
            break;
        if (is_wanted(q, NULL, one.seconds, one.bytes))
            add_sliced(q, one);
    }
}

/* The least of all zeros. */
static double least_after(Search *q, Point p)
{
    double least = INFINITY;
    for (p.zero = most_zero(q, &p); p.zero >= least_zero(q); p.zero--)
        least = less(least, slice_after(q->view, &p));
    return least;
}

/* With what is kept gathered: the more, the less time and room. What shrinks with the slices is the
 * workspace of the whole. */
static void look_at_keeps(Search *q, Cell *c, Point p)
{
    static const int keeps[] = { KEEP_BOTH, KEEP_INPUTS, KEEP_NONE };
    int n = q->s->keep.v ? 1 : 3;
    double seconds, bytes;
    p.zero = most_zero(q, &p);
    Candidate least = smallest(q, p);
    double workspace = least.is.memory.workspace;
    for (int k = 0; k < n; k++) {       // each with as much room as none of them has
        p.keep = n == 1 ? KEEP_CHOSEN : keeps[k];
        p.zero = least_zero(q);
        slice_bound(q->view, &p, &least.is, workspace, &seconds, &bytes);
        seconds = larger(seconds + least_after(q, p), c->bound.seconds);
        if (bytes > (double)q->p->is.room_bytes)
            return;
        if (is_wanted(q, NULL, seconds, bytes))
            look_at_zeros(q, c, p, seconds, workspace);
    }
}

/* Is one of the point's recompute wanted, whatever the schedule, if all of it fits? */
static bool slices_wanted(Search *q, const Cell *c, Point p)
{
    const Estimate room = { .room_bytes = INFINITY };
    double seconds, bytes;
    p.keep = q->s->keep.v ? KEEP_CHOSEN : KEEP_BOTH;
    p.zero = least_zero(q);
    slice_bound(q->view, &p, &room, 0, &seconds, &bytes);
    return is_wanted(q, NULL, larger(seconds + least_after(q, p), c->bound.seconds), 0);
}

static void look_at_slices(Search *q, Cell *c, Point p)
{
    const PlanSpec *s = q->s;
    int from = RECOMPUTE_NONE, to = RECOMPUTE_FULL;
    p.recompute_turns = 0;
    p.schedule = SCHEDULE_1F1B;
    if (s->recompute.v) {
        from = to = tune_pinned_recompute(s);
        p.recompute_turns = (int)s->recompute_n;
    }
    for (int r = from; r <= to; r++) {
        p.recompute = r;
        if (!slices_wanted(q, c, p))
            return;                     // what is made again takes longer
        for (int k = 0; k < 2; k++) {
            p.schedule = k ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
            if ((!s->schedule.v || word_is(s->schedule, schedule_word[p.schedule])) &&
                (r != RECOMPUTE_ATTENTION || from == to || q->attends))
                look_at_keeps(q, c, p);
        }
    }
}

/* Some variant of the cell fits. */
static void found(Search *q, Cell *c, const Found *f)
{
    if (!c->fits) {                     // by a list that is not uniform
        q->t->feasible++;
        q->t->rejected[REJECT_MEMORY]--;
        c->fits = true;
    }
    tune_add(q->t, &f->best);
}

/* Each list, where zero, recompute and chunks are those it was made for. */
static void try_lists(Search *q, const Sliced *one)
{
    SliceLists lists;
    Point p = one->at;
    Found f = { 0 };
    bool full = q->t->best.n == q->t->ask.top && !by_memory(q);
    slice_lists(q->view, &p, full ? q->t->best.at[q->t->best.n - 1].is.step_s : INFINITY, &lists);
    p.keep = KEEP_CHOSEN;
    for (int i = 0; i < lists.n && !is_late(q); i++) {
        p.nslices = lists.at[i].k;
        p.slice = lists.at[i].len;
        if (estimate_legal(q->t->e, &p) != LEGAL)
            continue;
        try_point(q, &f, &p);
        if (one->at.zero == 1 && least_zero(q) == 0) {
            Point none = p;
            none.zero = 0;
            try_point(q, &f, &none);
        }
    }
    if (f.any)
        found(q, one->cell, &f);
}

/* Slices alone make the cell fit: those that look_at_cell found are tried, too. */
static void try_uniform(Search *q, Cell *c)
{
    Found f = { 0 };
    Point p = c->at;
    bool pinned = q->s->recompute.v != NULL;
    for (p.nslices = 2; p.nslices <= MOST_UNIFORM && estimate_legal(q->t->e, &p) == LEGAL;
         p.nslices *= 2)
        for (p.zero = most_zero(q, &p); p.zero >= least_zero(q); p.zero--)
            for (int r = RECOMPUTE_NONE; r <= (pinned ? RECOMPUTE_NONE : RECOMPUTE_FULL); r++) {
                p.recompute = pinned ? tune_pinned_recompute(q->s) : r;
                try_point(q, &f, &p);
            }
    if (f.any)
        found(q, c, &f);
}

static int by_seconds(const void *a, const void *b)
{
    const Sliced *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : mesh_order(&x->at, &y->at);
}

static int by_bytes(const void *a, const void *b)
{
    const Sliced *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : by_seconds(a, b);
}

/* What could win by its bounds, the best first: its programme runs unless by then it cannot. */
static void search_sliced(Search *q)
{
    q->view = slice_view(q->t);
    for (int i = 0; i < q->cells.n && !is_late(q); i++) {
        Cell *c = &q->cells.at[i];
        Point p = c->at;
        int lo = 1, hi = most_chunks(q, &p);
        if (p.stages == 1 || !is_wanted(q, NULL, c->bound.seconds, 0))
            continue;
        if (c->fits && !c->fits_whole)
            try_uniform(q, c);
        if (q->s->chunks.set)
            lo = hi = (int)q->s->chunks.v;
        for (p.chunks = lo; p.chunks <= hi && is_wanted(q, NULL, c->bound.seconds, 0); p.chunks++)
            if (p.chunks == c->at.chunks || estimate_legal(q->t->e, &p) == LEGAL)
                look_at_slices(q, c, p);
    }
    SlicedList *all = &q->sliced;
    if (all->n)
        qsort(all->at, (size_t)all->n, sizeof *all->at, by_memory(q) ? by_bytes : by_seconds);
    for (int i = 0; i < all->n && !is_late(q); i++)
        if (is_wanted(q, NULL, all->at[i].seconds, all->at[i].bytes))
            try_lists(q, &all->at[i]);
}

/* ---- cells -------------------------------------------------------------------------- */

static void reject(Search *q, const Point *p, Reject why)
{
    q->t->searched++;
    if (q->t->rejected[why]++ == 0)
        q->t->first[why] = *p;
}

static void add_cell(Search *q, Point p)
{
    Reject why = estimate_legal(q->t->e, &p);
    if (why != LEGAL) {
        reject(q, &p, why);
        return;
    }
    Cells *c = &q->cells;
    q->t->searched++;
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 1024;
        c->at = more_room(c->at, (size_t)c->cap * sizeof *c->at);
    }
    c->at[c->n++] = (Cell){ .at = p };
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
    p.microbatch = 1;
    if (batch % p.data) {
        reject(q, &p, REJECT_BATCH);
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
        reject(q, &p, REJECT_BATCH);
}

static void add_cubes(Search *q, Point p, int64_t n)
{
    const PlanSpec *s = q->s;
    for (int i = 0; i < q->devices.n; i++) {
        int64_t x = q->devices.at[i];
        if (n % x || pinned_away(s->cube[0], x))
            continue;
        for (int k = 0; k < q->devices.n && !is_late(q); k++) {
            int64_t y = q->devices.at[k], z = n / x / y;
            if (n / x % y || pinned_away(s->cube[1], y) || pinned_away(s->cube[2], z))
                continue;
            p.x = (int)x;
            p.y = (int)y;
            p.z = (int)z;
            add_mesh(q, p);
        }
    }
}

/* What is pinned of the variants; the rest as its neutral value. */
static Point pinned_variant(const PlanSpec *s)
{
    Point p = { .chunks = s->chunks.set ? (int)s->chunks.v : 1, .nslices = 1,
                .schedule = word_is(s->schedule, "gpipe") ? SCHEDULE_GPIPE : SCHEDULE_1F1B,
                .zero = s->zero.set ? (int)s->zero.v : 0,
                .recompute = tune_pinned_recompute(s), .recompute_turns = (int)s->recompute_n };
    if (s->slices_kind == SLICES_LIST) {
        p.nslices = s->slices.n;
        p.slice = s->slices.n > 1 ? s->slices.at : NULL;
    } else if (s->slices_kind == SLICES_UNIFORM)
        p.nslices = (int)s->slices_n;
    return p;
}

static void add_cells(Search *q)
{
    int64_t n = q->t->devices;
    Point p = pinned_variant(q->s);
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

/* Of all zeros and recomputes. */
static Point least_variant(Search *q, Point p, double *bytes)
{
    Point best = p;
    int most = most_zero(q, &p), least_holding = most == 3 && !q->s->zero.set ? 2 : most;
    *bytes = INFINITY;
    for (p.zero = most; p.zero >= least_holding; p.zero--) {
        double b;
        Point least = least_recompute(q, p, &b);
        if (b < *bytes) {
            *bytes = b;
            best = least;
        }
    }
    return best;
}

/* The bytes of what holds least of a cell without slices; where that does not fit, chunks may, or
 * slices. */
static void look_at_cell(Search *q, Cell *c)
{
    double room = (double)q->p->is.room_bytes, bytes, more;
    Point p = least_variant(q, c->at, &bytes), least = p;
    c->least = bytes;
    int most = q->s->chunks.set ? 1 : most_chunks(q, &p);
    for (p = c->at, p.chunks = 2; p.chunks <= most && bytes > room; p.chunks++)
        if (estimate_legal(q->t->e, &p) == LEGAL) {
            Point other = least_variant(q, p, &more);
            least = more < bytes ? other : least;
            bytes = more < bytes ? more : bytes;
        }
    c->fits_whole = bytes <= room;
    bool slices = q->slices_open && p.stages > 1 && !q->p->sees_ahead;
    p = c->at;
    for (p.nslices = 2; p.nslices <= MOST_UNIFORM && slices && bytes > room; p.nslices *= 2) {
        if (estimate_legal(q->t->e, &p) != LEGAL)
            break;
        Point other = least_variant(q, p, &more);
        least = more < bytes ? other : least;
        bytes = more < bytes ? more : bytes;
    }
    Candidate it = smallest(q, least);
    c->fits = bytes <= room;
    c->guess = it.is.step_s;
    c->bound = estimate_bound(q->t->e, &c->at);
    q->t->bounds++;
    q->t->feasible += c->fits;
    q->t->rejected[REJECT_MEMORY] += !c->fits;
    if (!c->fits && (!q->t->has_near || lack(&it) < lack(&q->t->near))) {
        q->t->near = it;
        q->t->has_near = true;
    }
}

/* The likely first: what is found early leaves less to look at. */
static int by_guess(const void *a, const void *b)
{
    const Cell *x = a, *y = b;
    return x->guess != y->guess ? (x->guess < y->guess ? -1 : 1) : mesh_order(&x->at, &y->at);
}

static int by_least(const void *a, const void *b)
{
    const Cell *x = a, *y = b;
    return x->least != y->least ? (x->least < y->least ? -1 : 1) : by_guess(a, b);
}

/* ---- the search ----------------------------------------------------------------------- */

static void look_at_cells(Search *q)
{
    Cells *c = &q->cells;
    for (int i = 0; i < c->n && !is_late(q); i++)
        look_at_cell(q, &c->at[i]);
    if (q->late)                    // not all have bounds: those that have none come last
        for (int i = 0; i < c->n; i++)
            if (c->at[i].least == 0)
                c->at[i].guess = c->at[i].least = INFINITY;
    if (c->n)
        qsort(c->at, (size_t)c->n, sizeof *c->at, by_memory(q) ? by_least : by_guess);
}

static void search_whole(Search *q)
{
    for (int i = 0; i < q->cells.n && !is_late(q); i++) {
        const Cell *c = &q->cells.at[i];
        Found f = { 0 };
        if (!c->fits_whole)
            continue;
        try_whole(q, &f, c);
        if (f.any)
            tune_add(q->t, &f.best);
    }
}

/* What the search left out of those that are shown. */
static void explain(Tune *t)
{
    for (int i = 0; i < t->best.n; i++)
        estimate(t->e, &t->best.at[i].at, &t->best.at[i].is);
    for (int i = 0; i < t->front.n; i++)
        estimate(t->e, &t->front.at[i].at, &t->front.at[i].is);
    if (t->has_near)
        estimate(t->e, &t->near.at, &t->near.is);
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

bool tune_any(Plan *p)
{
    Tune t = { .plan = p, .pins = &p->config->plan, .devices = tune_devices(p->config),
               .e = estimator_new(p, false) };
    Search q = { .t = &t, .p = p, .s = t.pins };
    add_cells(&q);
    free(q.cells.at);
    return q.cells.n > 0;
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
    look_at_cells(&q);
    search_whole(&q);
    if (q.slices_open && !p->sees_ahead)
        search_sliced(&q);
    t->complete = !q.late;
    if (!ask->no_front && t->best.n) {
        q.for_front = true;
        search_whole(&q);
    }
    t->front_complete = !q.late;
    explain(t);
    free(q.cells.at);
    free(q.sliced.at);
    t->seconds = now_s() - start;
    return t;
}

/* ---- several searches ------------------------------------------------------------------ */

static void merge(Tune *all, const Tune *t)
{
    for (int i = 0; i < t->best.n; i++)
        tune_add(all, &t->best.at[i]);
    for (int i = 0; i < t->front.n; i++)
        front_add(all, &t->front.at[i]);
    if (t->has_near && (!all->has_near || lack(&t->near) < lack(&all->near)))
        all->near = t->near;
    all->has_near |= t->has_near;
    all->searched += t->searched;
    all->feasible += t->feasible;
    for (int i = 0; i < REJECTS; i++)
        all->rejected[i] += t->rejected[i];
    all->complete &= t->complete;
    all->front_complete &= t->front_complete;
    all->bounds += t->bounds;
    all->evaluations += t->evaluations;
    all->programmes += t->programmes;
    all->seconds += t->seconds;
}

Tune *tune_all(const Config *c, const TuneAsk *ask)
{
    Plan *p = tune_open(c);
    Tune *all = NULL;
    int most = c->has_cluster ? (int)c->cluster.nodes.v : 1;
    int nplans = c->plans.n > 1 ? c->plans.n : 1;
    for (int i = 0; p && i < nplans; i++)
        for (int nodes = most; nodes > 0; nodes = ask->objective == TUNE_COST ? nodes - 1 : 0) {
            if (most % nodes)
                continue;
            Config *k = NEW(Config);
            Plan *one = NEW(Plan);
            *k = *c;
            k->plan = nplans > 1 ? c->plans.at[i] : c->plan;
            k->cluster.nodes.v = nodes;
            *one = *p;
            one->config = k;
            if (nodes == most)
                tune_check(one);
            if (diag_errors())
                return NULL;
            Tune *t = tune_search(one, ask);
            if (all)
                merge(all, t);
            else
                all = t;
        }
    if (all)
        tune_fit(all);
    return all;
}
