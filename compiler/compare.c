/*
 * compare.c - `teracube compare FILE... RUN`: what was predicted against what a run
 * measured, term by term, the worst first. RUN: its trace, its log, or both.
 *
 * One step of the trace is compared, the one of middle length: so its terms are of one step and
 * add up. Figures are of a rank of the stage that ends last in the prediction, on average
 * over the stage's ranks. A collective takes what it takes the rank that came last; what
 * others spend in it, they spend waiting.
 *
 * Known lies: where ranks take turns on cores, a rank that has none keeps its clock running;
 * the prediction stretches its terms alike, the measurement where it happens. The gradient of the
 * loss and the head's products with it are made in the forward pass, chunk by chunk, and predicted
 * in the backward pass: the page says so below its passes.
 */
#include <errno.h>
#include <unistd.h>

#include "diag.h"
#include "json.h"
#include "measured.h"
#include "network.h"
#include "options.h"
#include "print.h"

typedef enum {
    ON_PRODUCTS, ON_ATTENTION, ON_ROWS, ON_RECOMPUTE, ON_X, ON_Y, ON_Z, ON_DATA, ON_STAGES,
    ON_OPTIMIZER, ON_SUMS, ON_PEERS, ON_REST, ONS
} On;
static const char *const on_word[ONS] = {
    "products", "attention", "row operators", "recompute", "x", "y", "z", "data", "other stages",
    "optimizer", "sums of the step", "slower ranks", "between plan steps"
};

/* A term of the step: what it is, in seconds, and where most of it was measured. */
typedef struct { const char *name, *most; double predicted, measured; } Line;
typedef VEC(Line) Lines;

/* Calls of one kind of collective over one group of axes. */
typedef struct { NetUse predicted; double seconds; int calls; bool was_measured; } NetRow;

typedef struct {
    const Measured *m;
    const Plan *p; const Pipeline *q;
    Simulation sim;                     // with its spans
    int stage;                          // compared
    bool by_op;                         // events are plan steps, not whole passes
    int step, steps;                    // the one compared; how many there are
    double wall, predicted;             // seconds of the step
    Events events;                      // of that step, by rank and time
    Lines terms, passes;
    double *busy;                       // by stage, measured: without waiting for other stages
    VEC(NetRow) net;
} Comparison;

/* ---- the step ------------------------------------------------------------------------ */

typedef struct { int step; double begin, end, wall; } Lap;
typedef VEC(Lap) Laps;

static int by_number(const void *a, const void *b)
{
    return ((const Lap *)a)->step - ((const Lap *)b)->step;
}

static int by_wall(const void *a, const void *b)
{
    double x = ((const Lap *)a)->wall, y = ((const Lap *)b)->wall;
    return (x > y) - (x < y);
}

/* Steps of the trace, and how long each took: to the begin of the next one. */
static Laps find_laps(const Measured *m)
{
    Laps laps = { 0 };
    for (int i = 0; i < m->events.n; i++) {
        const Event *e = &m->events.at[i];
        int k = laps.n - 1;             // steps come one after another
        while (k >= 0 && laps.at[k].step != e->step)
            k--;
        if (k < 0) {
            Lap l = { e->step, e->begin, 0, 0 };
            vec_add(&laps, l);
            k = laps.n - 1;
        }
        Lap *l = &laps.at[k];
        l->begin = e->begin < l->begin ? e->begin : l->begin;
        l->end = e->begin + e->seconds > l->end ? e->begin + e->seconds : l->end;
    }
    vec_sort(laps, by_number);
    for (int i = 0; i < laps.n; i++) {
        bool follows = i + 1 < laps.n && laps.at[i + 1].step == laps.at[i].step + 1;
        laps.at[i].wall = (follows ? laps.at[i + 1].begin : laps.at[i].end) - laps.at[i].begin;
    }
    return laps;
}

/* The middle one of those that count: the first warms up, the last has no next one. */
static Lap middle(Laps laps)
{
    Lap *from = laps.at;
    int n = laps.n;
    if (n >= 3) {
        from++;
        n -= 2;
    }
    qsort(from, (size_t)n, sizeof *from, by_wall);
    return from[(n - 1) / 2];
}

static int by_rank_and_time(const void *a, const void *b)
{
    const Event *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank - y->rank;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void find_step(Comparison *c)
{
    Laps laps = find_laps(c->m);
    c->steps = laps.n;
    Lap l = middle(laps);
    c->step = l.step;
    c->wall = l.wall;
    for (int i = 0; i < c->m->events.n; i++)
        if (c->m->events.at[i].step == l.step)
            vec_add(&c->events, c->m->events.at[i]);
    vec_sort(c->events, by_rank_and_time);
}

static double middle_of_log(const Measured *m, double *least, double *most)
{
    Laps laps = { 0 };
    for (int i = 0; i < m->step_s.n; i++) {
        Lap l = { .step = i, .wall = m->step_s.at[i] };
        vec_add(&laps, l);
    }
    int first = laps.n >= 2;            // which warms up
    qsort(laps.at + first, (size_t)(laps.n - first), sizeof *laps.at, by_wall);
    *least = laps.at[first].wall;
    *most = laps.at[laps.n - 1].wall;
    return laps.at[first + (laps.n - first - 1) / 2].wall;
}

/* ---- is it this plan's run? ------------------------------------------------------------ */

static const Loc nowhere = { 0, 0 };

static bool log_matches(const Measured *m, const Plan *p)
{
    const char *hint, *why = measured_mismatch(m, p, &hint);
    if (why) {
        diag_error(nowhere, "run-matches", "%s", why);
        diag_hint("%s", hint);
    }
    return why == NULL;
}

/* Stages and ranks of the trace. */
static bool trace_matches(const Measured *m, const Plan *p)
{
    int stages = 0, last = 0, ranks = plan_ranks(p);
    for (int i = 0; i < m->events.n; i++) {
        const Event *e = &m->events.at[i];
        stages = e->stage >= stages ? e->stage + 1 : stages;
        last = e->rank > last ? e->rank : last;
    }
    if (stages == p->is.stages && (m->is_simulated || last + 1 == ranks))
        return true;
    diag_error(nowhere, "run-matches", "%s has %s%s; the plan has %s on %s", m->trace,
               plural(stages, "stage"), m->is_simulated ? "" : str_fmt(" on %s", plural(last + 1,
               "rank")), plural(p->is.stages, "stage"), plural(ranks, "rank"));
    diag_hint("name the files and --set options of the run");
    return false;
}

/* ---- plan steps ------------------------------------------------------------------------- */

/* Instructions by pass and name; of one stage. */
static Map *names_of(const Plan *s)
{
    Map *map = map_new();
    for (int f = 0; f < s->funcs.n; f++)
        for (InstId i = s->funcs.at[f].first; i < s->funcs.at[f].end; i++)
            map_put(map, str_fmt("%d %s", s->funcs.at[f].kind, s->insts.at[i].name), i);
    return map;
}

static On axis_of(Axes a)
{
    return a & AX_DATA ? ON_DATA : a & AX_STAGE ? ON_STAGES : a & AX_Z ? ON_Z
         : a & (AX_YK | AX_YR) ? ON_Y : ON_X;
}

/* Forward work in a backward pass is done for the second time. */
static bool is_again(const Plan *s, const Inst *n, StepKind pass)
{
    bool full = s->is.recompute == RECOMPUTE_FULL || n->kind == I_ATTN;
    return pass == STEP_BACKWARD && full && s->is.recompute != RECOMPUTE_NONE &&
           n->op != NONE && s->ops.at[n->op].phase == PHASE_FORWARD;
}

static On on_of(const Plan *s, const Inst *n, StepKind pass)
{
    if (is_again(s, n, pass))
        return ON_RECOMPUTE;
    switch (n->kind) {
    case I_GEMM: return ON_PRODUCTS;
    case I_ATTN: case I_ATTN_DX: return ON_ATTENTION;
    case I_COLL:
        return n->coll == COLL_SEND || n->coll == COLL_RECV ? ON_STAGES : axis_of(n->axes);
    case I_COUNT: case I_TOTALS: return ON_SUMS;
    case I_NORM: case I_UPDATE: return ON_OPTIMIZER;
    default: return ON_ROWS;
    }
}

/* What was measured of a term, by the name that its turns share. */
typedef struct { const char *name; On on; double seconds; } Subject;
typedef VEC(Subject) Subjects;

static void add_named(Subjects *all, Map *seen, const char *name, On on, double seconds)
{
    const char *key = str_fmt("%d %s", on, name);
    int at = map_get(seen, key);
    if (at < 0) {
        Subject n = { name, on, 0 };
        map_put(seen, key, at = all->n);
        vec_add(all, n);
    }
    all->at[at].seconds += seconds;
}

/* The ranks of a stage pass the same plan steps in the same order: of the k-th, the sum and the
 * least of their seconds. */
typedef struct { const Inst *inst; StepKind pass; double sum, least; int n; } Kth;
typedef VEC(Kth) Kths;

static Kths stage_steps(const Comparison *c, int stage, int *ranks, const char **unknown)
{
    const Plan *s = plan_stage(c->p, stage);
    Map *names = names_of(s);
    Kths all = { 0 };
    int rank = -1, k = 0;
    *ranks = 0;
    for (int i = 0; i < c->events.n; i++) {
        const Event *e = &c->events.at[i];
        if (e->stage != stage)
            continue;
        if (e->rank != rank) {
            rank = e->rank;
            k = 0;
            ++*ranks;
        }
        int at = map_get(names, str_fmt("%d %s", e->pass, e->name));
        if (at < 0) {
            *unknown = *unknown ? *unknown : e->name;
            continue;
        }
        const Inst *inst = &s->insts.at[at];
        if (k == all.n) {
            Kth new = { inst, e->pass, 0, e->seconds, 0 };
            vec_add(&all, new);
        }
        Kth *t = &all.at[k++];
        if (t->inst != inst) {
            *unknown = e->name;
            continue;
        }
        t->sum += e->seconds;
        t->least = e->seconds < t->least ? e->seconds : t->least;
        t->n++;
    }
    return all;
}

static bool is_meeting(const Inst *n)
{
    return n->kind == I_TOTALS || n->kind == I_COUNT ||
           (n->kind == I_COLL && n->coll != COLL_SEND && n->coll != COLL_RECV);
}

static void add_net(Comparison *c, const Plan *s, const Inst *n, double seconds)
{
    const char *axis = str(axes_word(print_axes(s, n->axes, n->rep), n->rep));
    for (int i = 0; i < c->net.n; i++) {
        NetRow *r = &c->net.at[i];
        if (r->predicted.coll == n->coll && strcmp(r->predicted.axis, axis) == 0) {
            r->seconds += seconds;
            r->calls++;
            r->was_measured = true;
            return;
        }
    }
}

static void predict_net(Comparison *c)
{
    NetUses uses = network_uses(c->p, c->q, c->stage, false);
    for (int i = 0; i < uses.n; i++)
        if (uses.at[i].coll != COLL_SEND) {
            NetRow r = { .predicted = uses.at[i] };
            vec_add(&c->net, r);
        }
}

/* Shares of the stage's compute: products, attention, the rest. */
static void compute_shares(const Comparison *c, double share[3])
{
    const Pipeline *q = c->q;
    const Schedule *s = &q->schedule;
    double all = 0;
    for (int v = 0; v < q->v; v++) {
        const Stretch *t = &q->section[v * q->P + c->stage];
        double context = 0;
        for (int i = 0; i < s->k; i++) {
            double l = (double)s->slice[i];
            for (int k = 0; k < t->nclasses; k++) {
                const TurnClass *class = &q->cost->classes.at[t->class[k]];
                for (int u = 0; u < class->terms.n; u++) {
                    const Term *a = &class->terms.at[u];
                    if (a->kind == TERM_COLLECTIVE)
                        continue;
                    int to = a->kind == TERM_PRODUCT ? 0 : a->kind == TERM_ATTENTION ? 1 : 2;
                    share[to] += t->count[k] * cost_term(q->cost, a, (double)s->b, l, context);
                }
            }
            all += q->timing.forward[(v * q->P + c->stage) * s->k + i].compute +
                   q->timing.backward[(v * q->P + c->stage) * s->k + i].compute;
            context += l;
        }
    }
    share[2] = all > share[0] + share[1] ? all - share[0] - share[1] : 0;  // with kernels' starts
    double sum = share[0] + share[1] + share[2];
    for (int i = 0; i < 3 && sum > 0; i++)
        share[i] /= sum;
}

static void predict_terms(const Comparison *c, double out[ONS])
{
    static const On of[PARTS] = {
        [PART_RECOMPUTE] = ON_RECOMPUTE, [PART_X] = ON_X, [PART_Y] = ON_Y, [PART_Z] = ON_Z,
        [PART_PIPELINE] = ON_STAGES, [PART_BUBBLE] = ON_STAGES, [PART_DATA] = ON_DATA,
        [PART_OPTIMIZER] = ON_OPTIMIZER
    };
    double share[3] = { 0 };
    compute_shares(c, share);
    for (int i = 0; i < PARTS; i++)
        if (i != PART_COMPUTE)
            out[of[i]] += c->sim.part[i];
    for (int i = 0; i < 3; i++)
        out[ON_PRODUCTS + i] = c->sim.part[PART_COMPUTE] * share[i];
}

/* false: the plan does not have these steps; reported. */
static bool by_terms(Comparison *c)
{
    const Plan *s = plan_stage(c->p, c->stage);
    double predicted[ONS] = { 0 }, measured[ONS] = { 0 }, sum = 0;
    const char *unknown = NULL;
    Subjects names = { 0 };
    Map *seen = map_new();
    predict_terms(c, predicted);
    predict_net(c);
    for (int r = 0; r < c->p->is.stages; r++) {
        int ranks = 0;
        Kths all = stage_steps(c, r, &ranks, &unknown);
        const Plan *of = plan_stage(c->p, r);
        for (int i = 0; i < all.n; i++) {
            const Kth *t = &all.at[i];
            On on = on_of(of, t->inst, t->pass);
            double mean = t->sum / (t->n > 0 ? t->n : 1);
            c->busy[r] += on == ON_STAGES ? 0 : mean;
            if (r != c->stage)
                continue;
            bool meets = is_meeting(t->inst);
            const char *name = print_turnless(t->inst->name, print_turn(s, t->inst));
            measured[on] += meets ? t->least : mean;
            measured[ON_PEERS] += meets ? mean - t->least : 0;
            add_named(&names, seen, name, on, meets ? t->least : mean);
            add_named(&names, seen, name, ON_PEERS, meets ? mean - t->least : 0);
            if (t->inst->kind == I_COLL && meets)
                add_net(c, s, t->inst, t->least);
            sum += mean;
        }
    }
    if (unknown) {
        diag_error(nowhere, "run-matches", "%s has a step `%s` that the plan does not have there",
                   c->m->trace, unknown);
        diag_hint("name the files and --set options of the run");
        return false;
    }
    measured[ON_REST] = c->wall - sum;
    for (int i = 0; i < ONS; i++) {
        Line t = { on_word[i], "", predicted[i], measured[i] };
        double most = 0;
        for (int k = 0; k < names.n; k++)
            if ((int)names.at[k].on == i && names.at[k].seconds > most) {
                most = names.at[k].seconds;
                t.most = str_fmt("%s, %s", names.at[k].name, str_seconds(most));
            }
        if (t.predicted > 0 || t.measured > 0)
            vec_add(&c->terms, t);
    }
    return true;
}

/* ---- whole passes ------------------------------------------------------------------------ */

/* Transfers run beside the work: only what a stage waits for them counts, and that is in
 * what is left of the step. */
static bool is_work(StepKind k)
{
    return k == STEP_FORWARD || k == STEP_BACKWARD || k == STEP_SYNC || k == STEP_OPTIMIZER ||
           k == STEP_BEGIN;
}

static void by_passes(Comparison *c)
{
    double predicted[STEP_KINDS] = { 0 }, measured[STEP_KINDS] = { 0 };
    double left[2] = { c->predicted, c->wall };
    int stages = c->p->is.stages, ranks = c->m->is_simulated ? 1 : plan_ranks(c->p) / stages;
    for (int i = 0; i < c->sim.spans.n; i++) {
        const Span *a = &c->sim.spans.at[i];
        if (a->stage == c->stage && a->stream == SPAN_COMPUTE)
            predicted[a->step.kind] += a->end - a->start;
    }
    for (int i = 0; i < c->events.n; i++) {
        const Event *e = &c->events.at[i];
        if (!is_work(e->pass) || (c->m->is_simulated && e->rank != 0))
            continue;
        if (!c->by_op)
            c->busy[e->stage] += e->seconds / ranks;
        if (e->stage == c->stage)
            measured[e->pass] += e->seconds / ranks;
    }
    for (int k = 0; k < STEP_KINDS; k++) {
        Line t = { step_word[k], "", predicted[k], measured[k] };
        left[0] -= predicted[k];
        left[1] -= measured[k];
        if (predicted[k] > 0 || measured[k] > 0)
            vec_add(&c->passes, t);
    }
    Line rest = { "waiting", "", left[0] > 1e-12 ? left[0] : 0, left[1] > 1e-12 ? left[1] : 0 };
    vec_add(&c->passes, rest);
}

/* ---- printing ---------------------------------------------------------------------------- */

static int by_difference(const void *a, const void *b)
{
    const Line *x = a, *y = b;
    double d = fabs(x->measured - x->predicted), e = fabs(y->measured - y->predicted);
    return (d < e) - (d > e);
}

/* A trace has its times to a nanosecond. */
static const char *signed_seconds(double s)
{
    return fabs(s) < 1e-7 ? "-" : str_fmt("%s%s", s < 0 ? "-" : "+", str_seconds(fabs(s)));
}

static void print_terms(const Comparison *c, Lines *terms, const char *title, FILE *f)
{
    static const char *const head[] = { "", "predicted", "measured", "difference", "of the step",
                                        "most of it measured in" };
    Table t = { .align = "lrrrrl" };
    double sum[2] = { 0 };
    if (terms->n == 0)
        return;
    vec_sort(*terms, by_difference);
    for (int i = 0; i < 6; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i <= terms->n; i++) {
        Line a = i < terms->n ? terms->at[i] : (Line){ "the step", "", sum[0], sum[1] };
        double d = a.measured - a.predicted;
        table_cell(&t, "%s", a.name);
        table_cell(&t, "%s", a.predicted > 0 ? str_seconds(a.predicted) : "-");
        table_cell(&t, "%s", a.measured > 0 ? str_seconds(a.measured) : "-");
        table_cell(&t, "%s", signed_seconds(d));
        table_cell(&t, "%+.1f %%", 100 * d / c->wall);
        table_cell(&t, "%s", *a.most ? a.most : "-");
        sum[0] += a.predicted;
        sum[1] += a.measured;
    }
    print_heading(f, title);
    table_print(&t, f);
}

static const char *rate_text(double bytes, double seconds)
{
    return seconds > 0 ? str_fmt("%s/s", str_bytes(bytes / seconds)) : "-";
}

static void print_net(const Comparison *c, FILE *f)
{
    static const char *const head[] = { "", "ranks", "calls", "bytes", "predicted", "measured",
                                        "predicted at", "measured at" };
    Table t = { .align = "lrrrrrrr" };
    bool any = false;
    for (int i = 0; i < 8; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i < c->net.n; i++) {
        const NetRow *r = &c->net.at[i];
        const NetUse *u = &r->predicted;
        if (!r->was_measured)
            continue;
        any = true;
        table_cell(&t, "%s over %s", coll_word[u->coll], u->axis);
        table_cell(&t, "%" PRId64, u->size);
        table_cell(&t, "%d", r->calls);
        table_cell(&t, "%s", str_bytes(u->bytes));
        table_cell(&t, "%s", str_seconds(u->seconds));
        table_cell(&t, "%s", str_seconds(r->seconds));
        table_cell(&t, "%s", rate_text(u->bytes, u->seconds));
        table_cell(&t, "%s", rate_text(u->bytes, r->seconds));
    }
    if (!any)
        return;
    print_heading(f, "collectives of a rank, on cores of its own; measured: of the rank that came "
                     "last");
    table_print(&t, f);
}

static void print_stages(const Comparison *c, FILE *f)
{
    Table t = { .align = "lrrr" };
    if (c->p->is.stages == 1 || c->m->trace == NULL)
        return;
    table_cell(&t, "stage");
    table_cell(&t, "predicted at work");
    table_cell(&t, "measured");
    table_cell(&t, "difference");
    for (int r = 0; r < c->p->is.stages; r++) {
        table_cell(&t, "%d", r);
        table_cell(&t, "%s", str_seconds(c->sim.busy[r]));
        table_cell(&t, "%s", str_seconds(c->busy[r]));
        table_cell(&t, "%s", signed_seconds(c->busy[r] - c->sim.busy[r]));
    }
    print_heading(f, "stages: seconds without waiting for other stages");
    table_join(&t);
    table_print(&t, f);
}

/* "12 % too low" */
static const char *verdict(double predicted, double measured)
{
    double e = predicted / measured - 1;
    return fabs(e) < 5e-4 ? "the same" : str_fmt("the prediction is %.1f %% too %s", 100 * fabs(e),
                                                 e < 0 ? "low" : "high");
}

static void print_glance(const Comparison *c, FILE *f)
{
    const Measured *m = c->m;
    const Prices *w = &c->q->cost->prices;
    fprintf(f, "%s: %s on %s\n", c->p->model_name ? c->p->model_name : "model", plan_line(c->p),
            plural(plan_ranks(c->p), "rank"));
    fprintf(f, "  step      %s predicted, %s measured: %s\n", str_seconds(c->predicted),
            str_seconds(c->wall), verdict(c->predicted, c->wall));
    fprintf(f, "  mfu       %.1f %% predicted, %.1f %% measured\n", 100 * c->q->closed->mfu,
            100 * c->q->closed->mfu * c->q->closed->step_s / c->wall);
    fprintf(f, "  machine   %s\n", w->assumed ? "this one, its prices assumed: measure them with "
            "`teracube profile`" : w->profile ? "by its measured rates"
            : str_fmt("cluster %s, by its data sheet", c->p->config->cluster.name));
    if (m->trace)
        fprintf(f, "  trace     %s: %s; step %d, the one of middle length, is compared\n", m->trace,
                plural(c->steps, "step"), c->step);
    if (m->log) {
        double least, most, mid = middle_of_log(m, &least, &most);
        fprintf(f, "  log       %s: %s, %s in the middle, from %s to %s%s\n", m->log,
                plural(m->step_s.n, "step"), str_seconds(mid), str_seconds(least),
                str_seconds(most), m->step_s.n > 1 ? ", without the first" : "");
    }
}

static void print_all(Comparison *c, FILE *f)
{
    const char *on = c->p->is.stages == 1 ? "" : str_fmt(", on stage %d", c->stage);
    print_glance(c, f);
    print_terms(c, &c->terms, str_fmt("term by term%s, the worst first", on), f);
    print_net(c, f);
    print_terms(c, &c->passes, str_fmt("passes%s", on), f);
    if (c->m->trace && !c->m->is_simulated && c->stage == c->p->is.stages - 1)
        fprintf(f, "  the loss's gradient and the head's products with it run in forward, and are "
                "predicted in backward\n");
    print_stages(c, f);
    if (c->m->trace == NULL)
        fprintf(f, "\nA log has whole steps alone; terms need a trace (--trace F).\n");
}

static void json_terms(Json *j, const char *name, Lines *terms)
{
    vec_sort(*terms, by_difference);
    json_begin(j, name, '[');
    for (int i = 0; i < terms->n; i++) {
        const Line *t = &terms->at[i];
        json_begin(j, NULL, '{');
        json_text(j, "name", t->name);
        json_real(j, "predicted_s", t->predicted);
        json_real(j, "measured_s", t->measured);
        json_end(j, '}');
    }
    json_end(j, ']');
}

static void json_all(Comparison *c, FILE *f)
{
    Json json = { f, true, 1 }, *j = &json;
    fputc('{', f);
    json_integer(j, "schema", 1);
    json_text(j, "plan", plan_line(c->p));
    json_text(j, "trace", c->m->trace);
    json_text(j, "log", c->m->log);
    json_real(j, "predicted_s", c->predicted);
    json_real(j, "measured_s", c->wall);
    json_integer(j, "stage", c->stage);
    json_terms(j, "terms", &c->terms);
    json_terms(j, "passes", &c->passes);
    json_begin(j, "collectives", '[');
    for (int i = 0; i < c->net.n; i++) {
        const NetRow *r = &c->net.at[i];
        json_begin(j, NULL, '{');
        json_text(j, "kind", coll_word[r->predicted.coll]);
        json_text(j, "axes", r->predicted.axis);
        json_real(j, "bytes", r->predicted.bytes);
        json_real(j, "predicted_s", r->predicted.seconds);
        if (r->was_measured)
            json_real(j, "measured_s", r->seconds);
        else
            json_null(j, "measured_s");
        json_end(j, '}');
    }
    json_end(j, ']');
    json_end(j, '}');
    fputc('\n', f);
}

/* ---- the command ------------------------------------------------------------------------ */

/* Plan steps have names of their own, passes are called as step_text does. */
static bool has_steps(const Measured *m)
{
    for (int i = 0; i < m->events.n; i++) {
        const Event *e = &m->events.at[i];
        size_t n = strlen(step_word[e->pass]);
        if (strncmp(e->name, step_word[e->pass], n) != 0 || (e->name[n] && e->name[n] != ' '))
            return true;
    }
    return false;
}

int command_compare(Compile *c)
{
    Inputs in = c->o->in;
    int n = 0;
    while (n < in.nfiles && measured_is(in.files[in.nfiles - 1 - n]))
        n++;
    in.nfiles -= n;
    if (in.nfiles == 0)
        die(EXIT_USAGE, "compare needs the model's files, then the log or trace of its run");
    if (n == 0 && access(in.files[in.nfiles - 1], R_OK) != 0)
        die(EXIT_USAGE, "could not read %s: %s", in.files[in.nfiles - 1], strerror(errno));
    if (n == 0)
        die(EXIT_USAGE, "compare needs the log or the trace of a run behind the files; %s is "
            "neither", in.files[in.nfiles - 1]);
    Comparison all = { .m = measured_read(in.files + in.nfiles, n, NULL) }, *a = &all;
    if (a->m == NULL)
        return EXIT_INPUT;
    a->by_op = has_steps(a->m);
    c->config = config_of(c->o, &in);
    if (c->config == NULL)
        return EXIT_INPUT;
    bool here = a->by_op || (*a->m->blas && strncmp(a->m->blas, "cu", 2) != 0);
    if (here)                           // a run on processors
        ((Config *)c->config)->has_cluster = false;
    c->workers = a->m->workers;
    if (!compile_priced(c))
        return EXIT_INPUT;
    a->p = c->plan;
    a->q = c->plan->pipeline;
    a->sim = simulate_run(&a->q->timing, true);
    a->stage = a->sim.last;
    a->predicted = a->sim.step_s;
    a->busy = NEWN(double, a->p->is.stages);
    if ((a->m->log && !log_matches(a->m, a->p)) || (a->m->trace && !trace_matches(a->m, a->p)))
        return EXIT_INPUT;
    if (a->m->trace) {
        find_step(a);
        if (a->by_op && !by_terms(a))
            return EXIT_INPUT;
        by_passes(a);
    } else {
        double least, most;
        a->wall = middle_of_log(a->m, &least, &most);
    }
    if (c->o->json)
        json_all(a, stdout);
    else
        print_all(a, stdout);
    return EXIT_FINE;
}
