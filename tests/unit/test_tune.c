/*
 * test_tune.c - the search finds what plain enumeration finds: the same winner with the same
 * time, the same best of every cell, the same front, and counts that add up.
 */
#include <criterion/criterion.h>

#include "grids.h"
#include "tune.h"

static const char small[] = "tests/tune/_gpus.tcube";

static Plan *opened(const char *const *sets)
{
    Plan *p = tune_open(grids_config(small, sets));
    cr_assert_eq(diag_errors(), 0);
    return p;
}

/* ---- plain enumeration ----------------------------------------------------------------- */

/* All layouts, one by one. cell: the best of each mesh and microbatch. */
typedef struct {
    Plan *p; Tune like;             // like: for estimates and the view
    SliceView *view; int keep;
    Objective objective;
    int64_t legal, feasible, rejected, priced;
    Candidates cell, all;           // all: those that fit
} Every;

static void every_recompute(Every *q, Point a, Candidate *best, bool *any)
{
    for (a.recompute = RECOMPUTE_NONE; a.recompute <= RECOMPUTE_FULL; a.recompute++)
        for (a.recompute_turns = 0;
             a.recompute_turns < (a.recompute == RECOMPUTE_FULL ? q->p->layers : 1);
             a.recompute_turns++) {
            Candidate c = { .at = a };
            q->priced++;
            if (estimate_step(q->like.e, &a, &c.is) != LEGAL)
                continue;
            vec_add(&q->all, c);
            if (!*any || tune_order(q->objective, &c, best) < 0)
                *best = c;
            *any = true;
        }
    arena_reset(scratch);
}

static void every_zero(Every *q, Point a, Candidate *best, bool *any)
{
    for (a.zero = 0; a.zero <= 3; a.zero++)
        if (estimate_legal(q->like.e, &a) == LEGAL)
            every_recompute(q, a, best, any);
}

static void every_slices(Every *q, Point a, Candidate *best, bool *any)
{
    static const int keeps[] = { KEEP_BOTH, KEEP_INPUTS, KEEP_NONE };
    SliceLists lists;
    a.keep = keeps[q->keep];
    slice_lists(q->view, &a, INFINITY, &lists);
    a.keep = KEEP_CHOSEN;
    for (int i = 0; i < lists.n; i++) {
        Candidate c = { .at = a };
        c.at.nslices = lists.at[i].k;
        c.at.slice = lists.at[i].len;
        if (estimate_legal(q->like.e, &c.at) != LEGAL ||
            estimate_step(q->like.e, &c.at, &c.is) != LEGAL)
            continue;
        if (!*any || tune_order(q->objective, &c, best) < 0)
            *best = c;
        *any = true;
    }
    arena_reset(scratch);
}

static void every_uniform(Every *q, Point a, Candidate *best, bool *any)
{
    for (a.zero = 0; a.zero <= 3; a.zero++)
        for (a.recompute = RECOMPUTE_NONE; a.recompute <= RECOMPUTE_FULL; a.recompute++) {
            Candidate c = { .at = a };
            if (estimate_legal(q->like.e, &a) != LEGAL ||
                estimate_step(q->like.e, &a, &c.is) != LEGAL)
                continue;
            if (!*any || tune_order(q->objective, &c, best) < 0)
                *best = c;
            *any = true;
        }
}

/* Whole sequences, and the programme's lists for everything that it depends on. */
static void every_list(Every *q, Point a, Candidate *best, bool *any)
{
    for (int s = 0; s < (a.stages > 1 ? 2 : 1); s++) {
        a.schedule = s ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
        every_zero(q, a, best, any);
        for (a.zero = 0; a.stages > 1 && a.zero < 4; a.zero++)
            for (a.recompute = 0; a.recompute < 3; a.recompute++)
                for (q->keep = 0; q->keep < 3 && estimate_legal(q->like.e, &a) == LEGAL; q->keep++)
                    every_slices(q, a, best, any);
        a.zero = a.recompute = 0;
    }
}

static void every_cell(Every *q, Point a)
{
    Candidate best;
    bool any = false;
    a.chunks = 1;
    if (estimate_legal(q->like.e, &a) != LEGAL) {
        q->rejected++;
        return;
    }
    q->legal++;
    int64_t whole = q->all.n;
    for (a.chunks = 1; a.chunks <= q->p->layers; a.chunks++)
        if (estimate_legal(q->like.e, &a) == LEGAL)
            every_list(q, a, &best, &any);
    a.chunks = 1;
    if (q->all.n == whole && a.stages > 1)      // none without slices
        for (a.nslices = 2; a.nslices <= 64; a.nslices *= 2)
            every_uniform(q, a, &best, &any);
    q->feasible += any;
    if (!any)
        return;
    for (int i = 0; i < q->cell.n; i++)
        if (tune_same(q->p, &q->cell.at[i].at, &best.at)) {
            if (tune_order(q->objective, &best, &q->cell.at[i]) < 0)
                q->cell.at[i] = best;
            return;
        }
    vec_add(&q->cell, best);
}

static void every_mesh(Every *q, int n)
{
    Point a = { .chunks = 1, .nslices = 1, .schedule = SCHEDULE_1F1B };
    for (a.data = 1; a.data <= n; a.data++)
        for (a.stages = 1; a.stages <= n; a.stages++)
            for (a.x = 1; a.x <= n; a.x++)
                for (a.y = 1; a.y <= n; a.y++) {
                    int d = a.data * a.stages * a.x * a.y;
                    a.z = n / d;
                    if (n % d || a.z == 0)
                        continue;
                    if (q->p->is.batch % a.data) {
                        q->rejected++;
                        continue;
                    }
                    for (a.microbatch = 1; a.microbatch <= q->p->is.batch / a.data; a.microbatch++)
                        if (q->p->is.batch / a.data % a.microbatch == 0)
                            every_cell(q, a);
                }
}

static Objective sorted_by;
static int in_order(const void *a, const void *b) { return tune_order(sorted_by, a, b); }

static Every enumerate(Plan *p, Objective objective)
{
    Every q = { .p = p, .objective = objective };
    q.like = (Tune){ .plan = p, .pins = &p->config->plan, .e = estimator_new(p, false) };
    q.view = slice_view(&q.like);
    every_mesh(&q, (int)tune_devices(p->config));
    sorted_by = objective;
    if (q.cell.n)
        qsort(q.cell.at, (size_t)q.cell.n, sizeof *q.cell.at, in_order);
    return q;
}

/* ---- the search against it ------------------------------------------------------------- */

/* Candidates of whole sequences that no other beats in both. */
static int64_t front_size(const Every *q)
{
    int64_t n = 0;
    for (int i = 0; i < q->all.n; i++) {
        const Estimate *a = &q->all.at[i].is;
        bool beaten = false;
        for (int k = 0; k < q->all.n && !beaten; k++) {
            const Estimate *b = &q->all.at[k].is;
            beaten = b->step_s <= a->step_s && b->memory.peak <= a->memory.peak &&
                     (b->step_s < a->step_s || b->memory.peak < a->memory.peak || k < i);
        }
        n += !beaten;
    }
    return n;
}

static void compare(const char *const *sets, Objective objective, int top)
{
    Plan *p = opened(sets);
    Every q = enumerate(p, objective);
    TuneAsk ask = { .objective = objective, .top = top };
    Tune *t = tune_search(p, &ask);
    int64_t rejected = 0;
    for (int i = 0; i < REJECTS; i++)
        rejected += t->rejected[i];
    cr_assert(t->complete && t->front_complete);
    cr_expect_eq(t->searched, q.legal + q.rejected);
    cr_expect_eq(t->feasible, q.feasible, "%" PRId64 " fit, not %" PRId64, q.feasible, t->feasible);
    cr_expect_eq(rejected, q.rejected + q.legal - q.feasible);
    cr_expect_eq(t->best.n, q.cell.n < top ? q.cell.n : top);
    Text given = { 0 };
    for (int i = 0; sets[i]; i++)
        text_add(&given, " %s", sets[i]);
    for (int i = 0; i < t->best.n; i++) {
        const Candidate *a = &t->best.at[i], *b = &q.cell.at[i];
        cr_expect_eq(tune_order(objective, a, b), 0, "%d of%s: %s, %.9g s, %.9g bytes; enumerated "
                     "%s, %.9g s, %.9g bytes", i, given.at ? given.at : "", tune_line(&a->at),
                     a->is.step_s, a->is.memory.peak, tune_line(&b->at), b->is.step_s,
                     b->is.memory.peak);
    }
    cr_log_info("%s: %" PRId64 " layouts one by one, %" PRId64 " by the search",
                objective_word[objective], q.priced, t->evaluations);
}

static const char *const roomy[] = { NULL };
static const char *const tight[] = { "device.chip.memory=6 MB", NULL };
static const char *const six[] = { "cluster.nodes=2", "cluster.node=3*chip", "train.batch=12",
                                   "device.chip.memory=10 MB", NULL };
static const char *const deep[] = { "model.layers=6", "train.batch=4", "device.chip.memory=7 MB",
                                    "cluster.nodes=1", NULL };
/* few microbatches, so that slices win */
static const char *const thin[] = { "train.batch=1", "model.layers=4", "train.sequence=64", NULL };

/* GPUs, whose calls cost more than what they send: zero 0 wins in some cells */
static const char *const gpus[] = { "train.batch=4", "cluster.node=4*a100_40gb",
                                    "cluster.link=300 GB/s, 3 us", "cluster.network=25 GB/s, 8 us",
                                    "cluster.ports=4", NULL };

Test(tune, time) { compare(roomy, TUNE_TIME, 10); }
Test(tune, time_where_memory_is_short) { compare(tight, TUNE_TIME, 10); }
Test(tune, time_on_six) { compare(six, TUNE_TIME, 10); }
Test(tune, time_of_a_deeper_model) { compare(deep, TUNE_TIME, 5); }
Test(tune, time_of_one_sequence) { compare(thin, TUNE_TIME, 5); }
Test(tune, time_of_each_cell) { compare(gpus, TUNE_TIME, 1000); }
Test(tune, memory) { compare(roomy, TUNE_MEMORY, 5); }
Test(tune, memory_where_it_is_short) { compare(tight, TUNE_MEMORY, 5); }

/* Random models and clusters: what makes a layout win differs widely. */
static void compare_random(uint64_t seed)
{
    static const struct { const char *key; const char *of[6]; } choice[] = {
        { "cluster.nodes", { "1", "2", "2", "4" } },
        { "cluster.node", { "1*chip", "2*chip", "4*chip" } },
        { "train.batch", { "1", "2", "4", "6", "8", "12" } },
        { "model.layers", { "1", "2", "3", "4", "5", "6" } },
        { "model.hidden", { "64", "128", "256" } }, { "train.sequence", { "16", "32", "64" } },
        { "device.chip.memory", { "2 MB", "4 MB", "6 MB", "10 MB", "20 MB", "1 GB" } },
        { "device.chip.launch", { "0 us", "1 us", "20 us" } },
        { "device.chip.matrix", { "200 GFLOP/s", "2 TFLOP/s", "20 TFLOP/s" } },
        { "cluster.link", { "2 GB/s, 1 us", "20 GB/s, 1 us", "200 GB/s, 1 us" } },
        { "cluster.network", { "0.2 GB/s, 20 us", "2 GB/s, 5 us", "20 GB/s, 1 us" } },
        { "train.precision", { "bf16", "fp32" } },
    };
    enum { N = sizeof choice / sizeof *choice };
    const char *sets[N + 1] = { NULL };
    for (int i = 0; i < N; i++) {
        int n = 0;
        while (n < 6 && choice[i].of[n])
            n++;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        Text t = { 0 };
        text_add(&t, "%s=%s", choice[i].key, choice[i].of[seed / 65536 % (uint64_t)n]);
        sets[i] = str_of(t.at, t.n);
    }
    compare(sets, seed / 65536 % 4 ? TUNE_TIME : TUNE_MEMORY, 5);
}

Test(tune, of_random_clusters)
{
    static const uint64_t lost[] = { 1004, 2151, 3605 };    // that a search once did not find

    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++)
        compare_random(lost[i]);
    for (uint64_t seed = 1; seed <= (getenv("ALL") ? 4000 : 100); seed++)
        compare_random(seed);
}

Test(tune, the_front)
{
    Plan *p = opened(tight);
    Every q = enumerate(p, TUNE_TIME);
    TuneAsk ask = { .top = 1 };
    Tune *t = tune_search(p, &ask);
    int whole = 0;
    for (int i = 0; i < t->front.n; i++)
        whole += t->front.at[i].at.nslices == 1;
    cr_assert_leq(whole, front_size(&q));
    for (int i = 0; i < q.all.n; i++) {
        bool covered = false;
        for (int k = 0; k < t->front.n && !covered; k++)
            covered = t->front.at[k].is.step_s <= 1.01 * q.all.at[i].is.step_s &&
                      t->front.at[k].is.memory.peak <= 1.01 * q.all.at[i].is.memory.peak;
        cr_assert(covered || q.all.at[i].is.step_s > 2 * t->best.at[0].is.step_s,
                  "%s: %.9g s, %.9g bytes", tune_line(&q.all.at[i].at), q.all.at[i].is.step_s,
                  q.all.at[i].is.memory.peak);
    }
}
