/*
 * pipeline.c - a plan with stages and slices, on paper: chooses what was left open,
 * builds the step tables and simulates them.
 *
 *   turns       cut by seconds of a pass over the whole sequence      stages.c
 *   microbatch  every divisor of the replica's batch, by              slice.c
 *   slices      the programme's best few of different b and k
 *   the winner  the one with the least simulated step                 simulate.c
 *
 * Memory of a stage: parameters, gradients and moments of its turns; activations of
 * the units in flight; K, V and their gradients of the microbatches begun; one
 * logits chunk on the last stage. Estimates: the real block is made by memory.c.
 */
#include "estimate.h"
#include "slice.h"

PassCost pipeline_pass(const Pipeline *q, int section, double b, double l, double c)
{
    return stretch_pass(q->cost, &q->section[section], b, l, c);
}

static void cut_stages(Pipeline *q)
{
    const PlanSpec *s = &q->plan->config->plan;
    int n = q->P * q->v, *turns = NEWN(int, n);
    if (s->turns.n == n)
        for (int i = 0; i < n; i++)
            turns[i] = (int)s->turns.at[i];
    else
        stretch_cut(q->cost, n, turns);
    q->section = stretch_new(q->cost, n, turns);
}

/* The price list and the stages for microbatches of b; false: b does not fit. Without x and z
 * prices hang on nothing but the size of a pass. */
static bool price(Pipeline *q, int64_t b)
{
    bool same = q->cost && q->plan->is.x * q->plan->is.z == 1;
    if (!mesh_feed(q->plan, b))
        return false;
    if (same) {
        q->cost->is = q->plan->is;
        return true;
    }
    if (q->cost)
        cost_fill(q->cost, q->plan, q->cost->shape, &q->plan->is);
    else
        q->cost = cost_new(q->plan, q->turns_only);
    cut_stages(q);
    return true;
}

static double cut_seconds(const Pipeline *q, int i, bool forward, double tokens)
{
    return stretch_transfer(q->cost, q->section, q->P * q->v, i, forward, tokens);
}

/* ---- memory ------------------------------------------------------------------------ */

static double stage_sum(const Pipeline *q, int r, size_t field)
{
    double sum = 0;
    for (int c = 0; c < q->v; c++)
        sum += *(const double *)(const void *)((const char *)&q->section[c * q->P + r] + field);
    return sum;
}

/* A matrix that both ends use is there once where they are one stage. */
static double stage_parameters(const Pipeline *q, int r)
{
    return stage_sum(q, r, offsetof(Stretch, parameters)) - (q->P == 1 ? q->cost->tied : 0);
}

static double stage_kv(const Pipeline *q, int r, double b)
{
    return b * (double)q->plan->is.sequence *
           (stage_sum(q, r, offsetof(Stretch, kv)) + stage_sum(q, r, offsetof(Stretch, dkv)));
}

/* All that does not depend on slices and units. */
static StageMemory static_memory(const Pipeline *q, int r)
{
    return stretch_memory(q->cost, stage_parameters(q, r), r == q->P - 1);
}

/* ---- the slice programme's view ------------------------------------------------------- */

/* Stages that cost the same are one kind. Of the sections of each, passes of an empty context are
 * kept by length; what context adds is found once for all that have the same attention. */
typedef struct { bool known; PassCost pass; double sends[2]; } Base;
typedef struct { int64_t l, c; PassCost pass; } Context;
typedef struct {
    Pipeline *q;
    double b;
    int64_t grain;
    int nkinds, *kind_stage, *kind_count;
    Base *base;                     // [kind][chunk][l / grain]
    int64_t lengths;
    int *same;                      // [kind][chunk]: the first section with the same attention
    Context *context;               // by that section: the last that was asked for
} View;

static bool same_stage(const Pipeline *q, int a, int b)
{
    for (int c = 0; c < q->v; c++) {
        int i = c * q->P + a, j = c * q->P + b;
        const Stretch *s = &q->section[i], *t = &q->section[j];
        if (s->nclasses != t->nclasses ||
            cut_seconds(q, i, true, 1e6) != cut_seconds(q, j, true, 1e6) ||
            cut_seconds(q, i - 1, false, 1e6) != cut_seconds(q, j - 1, false, 1e6))
            return false;
        for (int k = 0; k < s->nclasses; k++)
            if (s->class[k] != t->class[k] || s->count[k] != t->count[k])
                return false;
    }
    return true;
}

static void view_kinds(View *v)
{
    const Pipeline *q = v->q;
    v->kind_stage = NEWN(int, q->P);
    v->kind_count = NEWN(int, q->P);
    for (int r = 0; r < q->P; r++) {
        int k = 0;
        while (k < v->nkinds && !same_stage(q, v->kind_stage[k], r))
            k++;
        if (k == v->nkinds)
            v->kind_stage[v->nkinds++] = r;
        v->kind_count[k]++;
    }
}

/* Section of chunk `ch` of a kind's first stage. */
static int section_of(const View *v, int kind, int ch)
{
    return ch * v->q->P + v->kind_stage[kind];
}

static Base base_of(const View *v, int i, int64_t l)
{
    const Pipeline *q = v->q;
    return (Base){ true, stretch_base(q->cost, &q->section[i], v->b, (double)l),
                   { cut_seconds(q, i, true, v->b * (double)l),
                     cut_seconds(q, i - 1, false, v->b * (double)l) } };
}

static const PassCost *context_of(View *v, int i, int same, int64_t l, int64_t c)
{
    Context *x = &v->context[same];
    if (x->l != l || x->c != c)
        *x = (Context){ l, c, stretch_context(v->q->cost, &v->q->section[i], v->b, (double)l,
                                              (double)c) };
    return &x->pass;
}

static void view_same(View *v)
{
    const Pipeline *q = v->q;
    v->same = NEWN(int, v->nkinds * q->v);
    for (int at = 0; at < v->nkinds * q->v; at++) {
        const Stretch *s = &q->section[section_of(v, at / q->v, at % q->v)];
        int k = 0;
        while (k < at && !stretch_same_context(q->cost, s,
                                               &q->section[section_of(v, k / q->v, k % q->v)]))
            k++;
        v->same[at] = k;
    }
}

static void slice_seconds(void *arg, int kind, int64_t l, int64_t c, double *f, double *b)
{
    View *v = arg;
    const Pipeline *q = v->q;
    for (int ch = 0; ch < q->v; ch++) {
        int i = section_of(v, kind, ch), at = kind * q->v + ch;
        Base *known = &v->base[at * v->lengths + l / v->grain], other;
        if (l % v->grain) {
            other = base_of(v, i, l);
            known = &other;
        } else if (!known->known)
            *known = base_of(v, i, l);
        PassCost a = stretch_after(q->cost, &q->section[i], known->pass,
                                   context_of(v, i, v->same[at], l, c));
        *f += seconds_total(&a.forward) + known->sends[0];
        *b += seconds_total(&a.backward) + known->sends[1];
    }
}

static Schedule shape(const Pipeline *q, int64_t m, int64_t k)
{
    return (Schedule){ .kind = word_is(q->plan->config->plan.schedule, "gpipe") ? SCHEDULE_GPIPE
                                                                                : SCHEDULE_1F1B,
                       .P = q->P, .v = q->v, .m = (int)m, .k = (int)k };
}

typedef struct { const Pipeline *q; int64_t m; } RoomArg;

static int64_t room_units(void *arg, int stage, int64_t k)
{
    const RoomArg *a = arg;
    Schedule s = shape(a->q, a->m, k);
    return schedule_units(&s, stage);
}

static int64_t room_kv(void *arg, int stage, int64_t k)
{
    const RoomArg *a = arg;
    Schedule s = shape(a->q, a->m, k);
    return schedule_kv(&s, stage);
}

/* A unit of chunk c keeps only that chunk's bytes; the mean over chunks stands for it. */
static SliceRoom *room_of(const Pipeline *q, double b, int64_t m)
{
    int64_t *token = NEWN(int64_t, q->P), *kv = NEWN(int64_t, q->P), *room = NEWN(int64_t, q->P);
    for (int r = 0; r < q->P; r++) {
        StageMemory f = static_memory(q, r);
        double left = (double)q->plan->is.room_bytes - f.parameters - f.gradients - f.optimizer -
                      f.logits;
        token[r] = (int64_t)(b * stage_sum(q, r, offsetof(Stretch, saved)) / q->v);
        kv[r] = (int64_t)(stage_kv(q, r, b) / q->v);
        room[r] = left > 9e18 ? INT64_MAX / 4 : (int64_t)left;
    }
    RoomArg *arg = NEW(RoomArg);
    *arg = (RoomArg){ q, m };
    SliceRoom *out = NEW(SliceRoom);
    *out = (SliceRoom){ .schedule = q->v > 1 ? SLICE_OWN : shape(q, 1, 1).kind == SCHEDULE_GPIPE
                            ? SLICE_GPIPE : SLICE_1F1B,
                        .token_bytes = token, .kv_bytes = kv, .room_bytes = room,
                        .units = room_units, .kv = room_kv, .arg = arg };
    return out;
}

/* TUNING: slices are multiples of 8 tokens where the sequence allows, as TeraPipe's: finer
 * ones gain nothing that a cost model can see, and odd sizes make odd products. */
enum { GRAIN = 8 };

static int64_t grain_of(const Plan *p, int64_t b)
{
    int64_t step = p->is.x * lcm64(p->is.y, p->is.z), L = p->is.sequence;
    int64_t grain = step / gcd64(step, b);
    if (p->is.balanced)
        grain = lcm64(grain, 2 * p->is.x * p->is.z);
    if (L % grain)
        return L;
    bool chosen = p->config->plan.slices_kind == SLICES_AUTO;
    while (chosen && grain < GRAIN && L % (2 * grain) == 0)
        grain *= 2;
    return grain;
}

static View *view_new(Pipeline *q, int64_t b, SliceProblem *out)
{
    const Plan *p = q->plan;
    const PlanSpec *s = &p->config->plan;
    View *v = NEW(View);
    v->q = q;
    v->b = (double)b;
    v->grain = grain_of(p, b);
    view_kinds(v);
    v->lengths = p->is.sequence / v->grain + 1;
    v->base = NEWN(Base, v->lengths * v->nkinds * q->v);
    v->context = NEWN(Context, v->nkinds * q->v);
    view_same(v);
    *out = (SliceProblem){ .tokens = p->is.sequence, .grain = v->grain, .stages = q->P,
        .microbatches = p->is.batch / p->is.data / b, .separate = true, .time = slice_seconds,
        .arg = v, .nkinds = v->nkinds, .kind_stages = v->kind_count, .candidates = 4,
        /* what will be laid out has its memory checked by partition, exactly */
        .room = q->loose ? NULL
              : room_of(q, (double)b, p->is.batch / p->is.data / b) };
    if (s->slices_kind == SLICES_AUTO && (p->sees_ahead || p->is.stages == 1))
        out->most = 1;                  // without stages slices only cost
    return v;
}

/* ---- choosing ------------------------------------------------------------------------- */

static void add_feed(Pipeline *q, int64_t b, const SliceChoice *c)
{
    Feed f = { .b = b, .m = q->plan->is.batch / q->plan->is.data / b, .k = c->k,
               .formula_s = c->T };
    if (c->k < 1)
        return;
    f.slice = NEWN(int64_t, c->k);
    memcpy(f.slice, c->len, sizeof *f.slice * (size_t)c->k);
    vec_add(&q->feeds, f);
}

/* Bytes; of models beyond all measure no int64_t. */
static double lacks(const SliceLack *l) { return (double)l->need_bytes - (double)l->room_bytes; }

static void report_lack(const Pipeline *q, const SliceLack *lack)
{
    const Plan *p = q->plan;
    Loc at = p->config->plan.pipeline.loc.end ? p->config->plan.pipeline.loc : p->config->plan.loc;
    diag_error(at, "memory-fits", "stage %d lacks %s: with %s, the longest of %s, what is in "
               "flight needs %s and there is room for %s", lack->stage,
               str_bytes(lacks(lack)),
               plural(lack->k, "slice"), plural(lack->longest, "token"),
               str_bytes((double)lack->need_bytes),
               str_bytes(lack->room_bytes > 0 ? (double)lack->room_bytes : 0));
    if (p->config->plan.recompute.v == NULL || word_is(p->config->plan.recompute, "none"))
        diag_hint("recompute = full keeps only what enters a turn; a larger cube or data with "
                  "zero splits it further");
    else
        diag_hint("a larger cube splits it further, as does a smaller microbatch");
}

/* rows-divide, for slices that were written down. */
static bool slices_divide(const Plan *p, int64_t b, const int64_t *len, int k, bool reports)
{
    int64_t step = p->is.x * lcm64(p->is.y, p->is.z), each = 2 * p->is.x * p->is.z;
    for (int i = 0; i < k; i++) {
        bool rows = b * len[i] % step == 0, balanced = !p->is.balanced || len[i] % each == 0;
        if (rows && balanced)
            continue;
        if (!reports)
            return false;
        int64_t unit = step / gcd64(step, b);
        unit = p->is.balanced ? lcm64(unit, each) : unit;
        if (rows)
            diag_error(p->config->plan.slices_loc, "rows-divide", "slice %d has %s; balanced "
                       "rows need a multiple of 2*x*z = %" PRId64, i, plural(len[i], "token"),
                       each);
        else
            diag_error(p->config->plan.slices_loc, "rows-divide", "slice %d of %s has %s, "
                       "not a multiple of x*lcm(y, z) = %" PRId64, i, plural(b, "sequence"),
                       plural(b * len[i], "row"), step);
        diag_hint("slices of multiples of %" PRId64 " tokens fit", unit);
        return false;
    }
    return true;
}

static void read_slices(Pipeline *q, int64_t b, const SliceProblem *pr, SliceLack *lack)
{
    const PlanSpec *s = &q->plan->config->plan;
    /* another microbatch may fit them; the last one says why none did */
    bool reports = q->feeds.n == 0 && (s->microbatch.set || pr->microbatches == 1);
    int64_t *len;
    int k = s->slices_kind == SLICES_UNIFORM ? (int)s->slices_n : s->slices.n;
    len = NEWN(int64_t, k > 0 ? k : 1);
    if (s->slices_kind == SLICES_LIST)
        memcpy(len, s->slices.at, sizeof *len * (size_t)k);
    else if (!slice_uniform(pr, k, len)) {
        if (!reports)
            return;
        diag_error(s->slices_loc, "rows-divide", "%s of multiples of %s do not fit "
                   "into %" PRId64, plural(k, "slice"), plural(pr->grain, "token"), pr->tokens);
        diag_hint("at most uniform(%" PRId64 ")", pr->tokens / pr->grain);
        return;
    }
    if (!slices_divide(q->plan, b, len, k, reports))
        return;
    SliceProblem own = *pr;             // a grid of these lengths alone
    for (int i = 0; i < k; i++)
        own.grain = i ? gcd64(own.grain, len[i]) : len[0];
    SliceChoice c = slice_price(scratch, &own, len, k, lack);
    if (lack->stage < 0)
        add_feed(q, b, &c);
}

/* From so many slices on, chunks pass in groups that divide m microbatches. */
static int64_t least_count(const Pipeline *q, int64_t m)
{
    int64_t k = q->P;
    while (k > 1 && m % ((q->P + k - 2) / (k - 1)) == 0)
        k--;
    return k;
}

/* Do the ranks of this machine take turns on its cores? */
static bool shares_cores(const Pipeline *q)
{
    const Prices *w = &q->cost->prices;
    return w->cores > 0 && plan_ranks(q->plan) * w->workers > w->cores;
}

/* The programme gives each stage cores of its own. Where they take turns, slices shorten
 * nothing that waits for a core: the whole sequence stands beside its candidates. */
static void add_whole(Pipeline *q, int64_t b, const SliceProblem *pr)
{
    SliceLack lack = { .stage = -1 };
    if (pr->least > 1)
        return;
    SliceChoice c = slice_price(scratch, pr, &pr->tokens, 1, &lack);
    if (lack.stage < 0)
        add_feed(q, b, &c);
}

static bool laid_out(const Pipeline *q) { return !q->on_paper && !q->plan->is.refused; }

static void search_b(Pipeline *q, int64_t b, SliceLack *lack)
{
    Plan *p = q->plan;
    const PlanSpec *s = &p->config->plan;
    SliceProblem pr;
    SliceLack here = { .stage = -1 };
    double start = now_s();
    if (!price(q, b))
        return;
    view_new(q, b, &pr);
    if (q->v > 1)
        pr.least = least_count(q, pr.microbatches);
    if (s->slices_kind == SLICES_AUTO) {
        Slices found = slice_solve(scratch, &pr);
        for (int i = 0; i < found.ncand; i++)
            add_feed(q, b, &found.cand[i]);
        if ((shares_cores(q) || (q->loose && !laid_out(q))) && found.ncand > 0)
            add_whole(q, b, &pr);
        if (found.best.k == 0)
            here = found.lack;
        else if (q->search.tried == 0 || found.stop_bound < q->search.bound) {
            q->search.bound = found.stop_bound;
            q->search.cap_lo = found.stop_lo;
            q->search.cap_hi = found.stop_hi;
        }
        q->search.tried += found.tried;
        q->search.steps += found.steps;
    } else
        read_slices(q, b, &pr, &here);
    q->search.seconds += now_s() - start;
    if (here.stage >= 0 && (lack->stage < 0 || lacks(&here) < lacks(lack)))
        *lack = here;
}

/* The layout with this feed. */
static Point point_with(const Pipeline *q, const Feed *f)
{
    Point a = point_of(q->plan);
    a.chunks = q->v;
    a.microbatch = f->b;
    a.nslices = f->k;
    a.slice = f->k > 1 ? f->slice : NULL;
    return a;
}

static void stage_memory(Pipeline *q)
{
    Point a = point_with(q, &q->feed);
    a.keep = q->closed->keep;
    q->memory = NEWN(StageMemory, q->P);
    for (int r = 0; r < q->P; r++)
        q->memory[r] = estimate_memory(q->estimator, &a, r);
}

static void build_schedule(Pipeline *q, const Feed *f)
{
    Schedule *s = &q->schedule;
    int n = q->P * q->v;
    Steps *before = s->stage;           // of another candidate: written over
    *s = shape(q, f->m, f->k);
    s->stage = before;
    s->b = f->b;
    s->sequence = q->plan->is.sequence;
    s->slice = f->slice;
    s->cut_bytes = NEWN(int64_t, n);
    for (int i = 0; i + 1 < n; i++)
        s->cut_bytes[i] = stretch_cut_bytes(q->cost, &q->section[i]);
    schedule_build(s);
}

/* Passes and transfers of every section and slice. */
static void time_passes(Pipeline *q, Timing *t)
{
    const Schedule *s = &q->schedule;
    int n = q->P * q->v;
    size_t units = (size_t)n * (size_t)s->k;
    Seconds *fw = NEWN(Seconds, units), *bw = NEWN(Seconds, units);
    double *sf = NEWN(double, units), *sb = NEWN(double, units);
    double *unit = NEWN(double, n), *kv = NEWN(double, n);
    for (int i = 0; i < n; i++) {
        double context = 0;
        for (int k = 0; k < s->k; k++) {
            double l = (double)s->slice[k];
            PassCost a = pipeline_pass(q, i, (double)s->b, l, context);
            fw[i * s->k + k] = a.forward;
            bw[i * s->k + k] = a.backward;
            sf[i * s->k + k] = cut_seconds(q, i, true, (double)s->b * l);
            sb[i * s->k + k] = cut_seconds(q, i - 1, false, (double)s->b * l);
            context += l;
        }
        unit[i] = q->section[i].saved;
        kv[i] = (q->section[i].kv + q->section[i].dkv) * (double)(s->b * s->sequence);
    }
    t->forward = fw, t->backward = bw;
    t->send_forward = sf, t->send_backward = sb;
    t->unit_bytes = unit, t->kv_bytes = kv;
}

/* Compute of the passes that end the chunks of a stage: back through the first slice. */
static double last_passes(const Pipeline *q, int r)
{
    double sum = 0;
    for (int c = 0; c < q->v; c++)
        sum += q->timing.backward[(c * q->P + r) * q->schedule.k].compute;
    return sum;
}

/* What is gathered once, before the first pass. */
static double begin_seconds(const Pipeline *q, int r)
{
    double sum = 0;
    for (int c = 0; c < q->v; c++) {
        const Stretch *s = &q->section[c * q->P + r];
        for (int i = 0; i < s->nclasses; i++)
            sum += s->count[i] * cost_once(q->cost, s->class[i]);
    }
    return sum;
}

/* Prices by what is kept, and runs the schedule. */
static void run_schedule(Pipeline *q, const Feed *f, bool keep_spans)
{
    const Plan *p = q->plan;
    Cost *c = q->cost;
    Estimate *closed = NEW(Estimate);
    Point a = point_with(q, f);
    estimate(q->estimator, &a, closed);
    q->closed = closed;
    c->is.nslices = f->k;
    c->is_piped = q->P > 1 || q->v > 1 || f->k > 1;
    c->keep_inputs = closed->keep == KEEP_BOTH || closed->keep == KEEP_INPUTS;
    c->keep_weights = closed->keep == KEEP_BOTH || closed->keep == KEEP_WEIGHTS;
    double *sync = NEWN(double, q->P), *update = NEWN(double, q->P), *gather = NEWN(double, q->P);
    double *begin = NEWN(double, q->P);
    double tied = q->P > 1 ? price_transfer(&c->prices, &c->mesh, q->P - 1, true,
                                            c->tied * c->gradient) : 0;
    q->timing = (Timing){ .schedule = &q->schedule, .begin = begin, .sync = sync,
        .update = update, .gather = gather, .tied = c->tied > 0 ? tied : 0,
        .blocking = q->blocking, .barrier = p->config->train.clip.v > 0,
        .cores = c->prices.cores, .threads = plan_ranks(p) / q->P * c->prices.workers };
    time_passes(q, &q->timing);
    for (int r = 0; r < q->P; r++) {
        double w = stage_parameters(q, r), units = stage_sum(q, r, offsetof(Stretch, units));
        begin[r] = begin_seconds(q, r);
        sync[r] = cost_sync(c, r, w, last_passes(q, r));
        update[r] = cost_update(c, w, units, &gather[r]);
    }
    q->sim = simulate_run(&q->timing, keep_spans);
    if (q->blocking) {
        double longer = q->sim.step_s / closed->step_s;
        closed->step_s = q->sim.step_s;
        closed->last = q->sim.last;
        memcpy(closed->part, q->sim.part, sizeof closed->part);
        closed->mfu /= longer;
        closed->hfu /= longer;
        closed->tokens_per_s /= longer;
    }
}

static void build(Pipeline *q, const Feed *f, bool keep_spans)
{
    build_schedule(q, f);
    run_schedule(q, f, keep_spans);
}

static void check_schedule(const Pipeline *q)
{
    if (schedule_check(&q->schedule, stderr))
        bug("the schedule does not hold together");
}

static int by_step(const void *a, const void *b)
{
    const Feed *x = a, *y = b;
    if (x->step_s != y->step_s)
        return x->step_s < y->step_s ? -1 : 1;
    return x->k != y->k ? x->k - y->k : (x->b < y->b) - (x->b > y->b);
}

static int by_formula(const void *a, const void *b)
{
    const Feed *x = a, *y = b;
    return (x->formula_s > y->formula_s) - (x->formula_s < y->formula_s);
}

/* TUNING: so many candidates of the programme are simulated; its order is exact for gpipe on
 * equal stages, and close elsewhere. */
enum { SIMULATED = 6 };

static void drop_short_groups(Pipeline *q)
{
    int kept = 0;
    for (int i = 0; i < q->feeds.n; i++) {
        Schedule s = shape(q, q->feeds.at[i].m, q->feeds.at[i].k);
        q->too_long |= !schedule_fits(&s);
        if (s.m % schedule_group(&s) == 0 && schedule_fits(&s))
            q->feeds.at[kept++] = q->feeds.at[i];
    }
    q->feeds.n = kept;
}

static void report_groups(const Pipeline *q, int64_t batch)
{
    const PlanSpec *s = &q->plan->config->plan;
    int64_t k = s->slices_kind == SLICES_UNIFORM ? s->slices_n
              : s->slices_kind == SLICES_LIST ? s->slices.n : 1;
    Schedule one = shape(q, 1, k);
    int64_t m = s->microbatch.set ? batch / (int64_t)s->microbatch.v : batch;
    diag_error(s->chunks.loc, "layers-cover", "chunks pass %s in whole groups of %s, and "
               "there %s %" PRId64, plural(q->P, "stage"),
               plural(schedule_group(&one), "microbatch"),
               m == 1 ? "is" : "are", m);
    if (s->microbatch.set)
        diag_note(s->microbatch.loc, "%s of a replica make%s %s", plural(batch, "sequence"),
                  batch == 1 ? "s" : "", plural(m, "microbatch"));
    diag_hint("write chunks = 1, slices = auto, or another microbatch");
}

static void report_steps(const Pipeline *q, int64_t batch)
{
    const PlanSpec *s = &q->plan->config->plan;
    int64_t m = s->microbatch.set ? batch / (int64_t)s->microbatch.v : batch;
    Loc at = s->microbatch.loc.end ? s->microbatch.loc : q->plan->config->train.batch.loc;
    diag_error(at, "too-large", "%s of a replica, on %s: a table of such a step has more than %d "
               "passes", plural(m, "microbatch"), plural(q->P, "stage"), SCHEDULE_UNITS);
    diag_hint("write a larger microbatch, or fewer slices");
}

static void search_all(Pipeline *q, SliceLack *lack)
{
    const PlanSpec *s = &q->plan->config->plan;
    int64_t batch = q->plan->is.batch / q->plan->is.data;
    if (s->microbatch.set || q->P == 1)
        search_b(q, s->microbatch.set ? (int64_t)s->microbatch.v : batch, lack);
    else
        for (int64_t b = 1; b <= batch && !diag_errors(); b++) {
            if (batch % b == 0)
                search_b(q, b, lack);
        }
    drop_short_groups(q);
}

/* What is not laid out must fit by the closed form, as in `tune`; *lack: of the nearest. */
static void drop_unfit(Pipeline *q, SliceLack *lack)
{
    int kept = 0;
    for (int i = 0; i < q->feeds.n; i++) {
        const Feed *f = &q->feeds.at[i];
        Estimate e;
        Point a = point_with(q, f);
        if (estimate(q->estimator, &a, &e) == LEGAL) {
            q->feeds.at[kept++] = *f;
            continue;
        }
        const StageMemory *m = &e.memory;
        double always = m->parameters + m->gradients + m->optimizer + m->logits;
        SliceLack here = { .stage = e.worst, .k = f->k, .longest = f->slice[0],
                           .need_bytes = (int64_t)(m->peak - always),
                           .room_bytes = (int64_t)(e.room_bytes - always) };
        for (int j = 1; j < f->k; j++)
            here.longest = f->slice[j] > here.longest ? f->slice[j] : here.longest;
        if (lack->stage < 0 || lacks(&here) < lacks(lack))
            *lack = here;
    }
    q->feeds.n = kept;
}

/* The programme counts the keys and values of every token with their gradients, as slices need
 * them. A whole sequence may hold less: where nothing fits, others say so. */
static void search_loose(Pipeline *q, SliceLack *lack)
{
    q->loose = true;
    lack->stage = -1;
    search_all(q, lack);
    if (!laid_out(q))
        drop_unfit(q, lack);            // else partition, exactly
}

static void choose_feed(Pipeline *q)
{
    Plan *p = q->plan;
    int64_t batch = p->is.batch / p->is.data;
    SliceLack lack = { .stage = -1 };
    search_all(q, &lack);
    if (!laid_out(q))
        drop_unfit(q, &lack);
    if (q->feeds.n == 0 && lack.stage >= 0)
        search_loose(q, &lack);
    if (q->feeds.n == 0) {
        if (lack.stage >= 0)
            report_lack(q, &lack);
        else if (!diag_errors() && q->too_long)
            report_steps(q, batch);
        else if (!diag_errors() && q->v > 1)
            report_groups(q, batch);
        else if (!diag_errors())
            bug("pipeline: no slices at all");
        return;
    }
    vec_sort(q->feeds, by_formula);
    if (q->feeds.n > SIMULATED && !shares_cores(q))
        q->feeds.n = SIMULATED;
    int64_t most = 0;
    for (int i = 0; i < q->feeds.n; i++) {
        const Feed *f = &q->feeds.at[i];
        most = f->m * f->k * q->v > most ? f->m * f->k * q->v : most;
    }
    schedule_reserve(&q->schedule, q->P, (int)most);
    for (int i = q->feeds.n; i-- > 0;) {        // the likely winner last: it stays
        q->feed = q->feeds.at[i];
        price(q, q->feed.b);
        build(q, &q->feed, false);
        q->feeds.at[i].step_s = q->sim.step_s;
    }
    vec_sort(q->feeds, by_step);
}

/* ---- figures -------------------------------------------------------------------------- */

/* Of a step, for what is printed of it. */
static void figures(Pipeline *q)
{
    const Prices *w = &q->cost->prices;
    double devices = plan_ranks(q->plan), peak = w->matrix;
    if (shares_cores(q)) {              // of the cores, not of each rank
        devices = w->cores;
        peak /= w->workers;
    }
    q->tokens = (double)(q->plan->is.batch * q->plan->is.sequence);
    q->model_flop = q->closed->mfu * q->closed->step_s * devices * peak;
}

Pipeline *pipeline_plan(Plan *p, bool turns_only, bool blocking, bool on_paper)
{
    const PlanSpec *s = &p->config->plan;
    Pipeline *q = NEW(Pipeline);
    q->plan = p;
    q->turns_only = turns_only;
    q->blocking = blocking;
    q->on_paper = on_paper;
    q->P = p->is.stages;
    q->v = s->chunks.set ? (int)s->chunks.v : 1;
    q->estimator = estimator_new(p, turns_only);
    choose_feed(q);
    if (diag_errors() || q->feeds.n == 0)
        return NULL;
    bool is_built = q->feed.slice == q->feeds.at[0].slice;
    q->feed = q->feeds.at[0];
    if (!is_built || on_paper) {
        price(q, q->feed.b);
        build(q, &q->feed, on_paper);
    }
    check_schedule(q);
    stage_memory(q);
    figures(q);
    return q;
}

void pipeline_settle(Plan *p)
{
    Pipeline *q = p->pipeline;
    run_schedule(q, &q->feed, q->on_paper);
    figures(q);
}

Pipeline *pipeline_again(const Pipeline *old)
{
    Pipeline *q = NEW(Pipeline);
    int n = old->P * old->v, *turns = NEWN(int, n);
    *q = *old;
    for (int i = 0; i < n; i++)
        turns[i] = old->section[i].turns;
    q->cost = cost_new(q->plan, q->turns_only);
    q->section = stretch_new(q->cost, n, turns);
    q->estimator = estimator_new(q->plan, q->turns_only);
    q->schedule.stage = NULL;
    build(q, &old->feed, true);
    check_schedule(q);
    stage_memory(q);
    figures(q);
    return q;
}

static bool is_piped(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    bool sliced = (s->slices_kind == SLICES_LIST && s->slices.n > 1) ||
                  (s->slices_kind == SLICES_UNIFORM && s->slices_n > 1);
    return p->is.stages > 1 || p->is.chunks > 1 || sliced;
}

void slice_choose(Plan *p)
{
    Choices *is = &p->is;
    if (!is_piped(p))
        return;
    Pipeline *q = pipeline_plan(p, false, false, false);
    if (q == NULL)
        return;
    p->pipeline = q;
    is->microbatch = q->feed.b;
    is->T = q->feed.b * is->sequence;
    is->nslices = q->feed.k;
    is->slice = q->feed.slice;
}
