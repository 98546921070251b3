/*
 * print_pipeline.c - what a person reads of the prediction: the step at a glance, where
 * the time goes; of a plan on paper, every stage; the resolved plan block; the slice
 * search (--explain slice) and the step tables (--explain schedule).
 */
#include "print.h"
#include "residual.h"

void print_heading(FILE *f, const char *title)
{
    fprintf(f, "\n%s\n", title);
}

static const char *lengths(int k, const int64_t *len)
{
    Text t = { 0 };
    for (int i = 0; i < k;) {
        int n = 1;
        while (i + n < k && len[i + n] == len[i])
            n++;
        text_add(&t, i ? ", " : "");
        text_add(&t, n > 1 ? "%" PRId64 " x %d" : "%" PRId64, len[i], n);
        i += n;
    }
    return str_of(t.at, t.n);
}

void print_feed(const Pipeline *q, FILE *f)
{
    const Schedule *t = &q->schedule;
    fprintf(f, "  feed      %s of %s, each in %s of %s tokens; %s\n", plural(t->m, "microbatch"),
            plural(t->b, "sequence"), plural(t->k, "slice"), lengths(t->k, t->slice),
            schedule_word[t->kind]);
}

/* How far these prices were off on published runs of other programs, and what the nearest of
 * those would take here. */
static void print_error(const Plan *p, FILE *f)
{
    const Residual *r = residual_of(p);
    const char *what;
    double as_theirs = residual_step(p, r, &what);
    if (r)
        fprintf(f, "  error     %.0f %% (bias %+.0f %%) was the mean of %d published runs: %s, %s, "
                "about %s billion parameters; this program was never measured\n",
                100 * r->error, 100 * r->bias, r->rows, r->set, family_word[r->family],
                str_fmt(r->parameters < 1e10 ? "%.1f" : "%.0f", r->parameters / 1e9));
    if (as_theirs > 0)
        fprintf(f, "  published %s is what the program of those runs would take in this layout "
                "(%s)\n", str_seconds(as_theirs), what);
}

void print_step(const Pipeline *q, FILE *f)
{
    const Estimate *e = q->closed;
    fprintf(f, "  step      %s predicted, %.4g tokens/s, mfu %.1f %%, hfu %.1f %%%s\n",
            str_seconds(e->step_s), e->tokens_per_s, 100 * e->mfu, 100 * e->hfu,
            q->cost->prices.assumed ? " (prices of this machine are assumed)"
            : q->cost->prices.profile ? " (measured rates)" : "");
    const Prices *w = &q->cost->prices;
    if (w->cores > 0 && plan_ranks(q->plan) * w->workers > w->cores)
        fprintf(f, "  cores     %s%s take turns on %s: at most %d compute at a time\n",
                plural(plan_ranks(q->plan), "rank"),
                w->workers > 1 ? str_fmt(" of %d threads", w->workers) : "",
                plural(w->cores, "core"), w->cores);
    print_error(q->plan, f);
    if (q->P == 1)
        return;
    fprintf(f, "  simulated %s %s; %s by m sum t + (P-1) max t\n", str_seconds(q->sim.step_s),
            q->blocking ? "with sends that block" : "with sends beside the compute",
            str_seconds(q->feed.formula_s));
    fprintf(f, "  idle      %.1f %% of all stages' time\n", 100 * q->sim.bubble);
}

static void print_glance(const Pipeline *q, FILE *f)
{
    const Plan *p = q->plan;
    const Choices *is = &p->is;
    int worst = 0;
    for (int r = 1; r < q->P; r++)
        if (q->memory[r].peak > q->memory[worst].peak)
            worst = r;
    fprintf(f, "%s: data %d, pipeline %d, cube [%d, %d, %d]%s on %s, %s of %s in a step\n",
            p->model_name ? p->model_name : "model", is->data, q->P, is->x, is->y, is->z,
            q->v > 1 ? str_fmt(", %d chunks", q->v) : "", plural(plan_ranks(p), "device"),
            plural(is->batch, "sequence"), plural(is->sequence, "token"));
    print_feed(q, f);
    print_step(q, f);
    fprintf(f, "  memory    %s at the peak of stage %d, before `plan` lays it out",
            str_bytes(q->memory[worst].peak), worst);
    if (is->room_what)
        fprintf(f, ", of %s", is->room_what);
    fprintf(f, "\n");
    if (q->turns_only)
        fprintf(f, "  note      turns only: embedding, head and loss are left out\n");
    if (is->refused)
        fprintf(f, "  note      on paper: this version plans %s, but cannot run %s\n", is->refused,
                "them");
}

void print_parts(const Pipeline *q, FILE *f)
{
    const Estimate *s = q->closed;
    print_heading(f, str_fmt("where the step goes, on stage %d, which ends last", s->last));
    for (int i = 0; i < PARTS; i++)
        if (s->part[i] > 0)
            fprintf(f, "  %-10s %10s %5.1f %%\n", part_word[i], str_seconds(s->part[i]),
                    100 * s->part[i] / s->step_s);
}

double print_longest(const Pipeline *q, int r, const Seconds *of)
{
    double most = 0;
    for (int c = 0; c < q->v; c++)
        for (int i = 0; i < q->schedule.k; i++) {
            const Seconds *x = &of[(c * q->P + r) * q->schedule.k + i];
            double t = x->compute + x->recompute + x->x + x->y + x->z;
            most = t > most ? t : most;
        }
    return most;
}

const char *print_stage_turns(const Pipeline *q, int r)
{
    Text turns = { 0 };
    for (int c = 0; c < q->v; c++)
        text_add(&turns, c ? "+%d" : "%d", q->section[c * q->P + r].turns);
    return str_of(turns.at, turns.n);
}

static void print_stages(const Pipeline *q, FILE *f)
{
    Table t = { .align = "llrrrrrrrrr" };
    static const char *const head[] = { "stage", "turns", "forward", "backward", "idle", "units",
                                        "K/V", "weights", "activations", "K/V", "peak" };
    for (int i = 0; i < 11; i++)
        table_cell(&t, "%s", head[i]);
    for (int r = 0; r < q->P; r++) {
        const StageMemory *m = &q->memory[r];
        table_cell(&t, "%d", r);
        table_cell(&t, "%s", print_stage_turns(q, r));
        table_cell(&t, "%s", str_seconds(print_longest(q, r, q->timing.forward)));
        table_cell(&t, "%s", str_seconds(print_longest(q, r, q->timing.backward)));
        table_cell(&t, "%.1f%%", 100 * (1 - q->sim.busy[r] / q->sim.step_s));
        table_cell(&t, "%d", schedule_units(&q->schedule, r));
        table_cell(&t, "%d", schedule_kv(&q->schedule, r));
        table_cell(&t, "%s", str_bytes(m->parameters + m->gradients + m->optimizer));
        table_cell(&t, "%s", str_bytes(m->activations));
        table_cell(&t, "%s", str_bytes(m->keys_values));
        table_cell(&t, "%s", str_bytes(m->peak));
    }
    print_heading(f, "stages: turns, the longest unit, units and microbatches in flight, memory of "
                     "a rank");
    table_join(&t);
    table_print(&t, f);
}

/* ---- the plan block ------------------------------------------------------------------- */

static const char *list_text(int n, const int64_t *of)
{
    Text t = { 0 };
    for (int i = 0; i < n; i++)
        text_add(&t, "%s%" PRId64, i ? ", " : "", of[i]);
    return t.n ? str_of(t.at, t.n) : "";
}

static void add_key(PlanKeys *keys, const char *key, const char *value)
{
    PlanKey k = { key, value };
    vec_add(keys, k);
}

static const char *ranks_text(const PlanSpec *s)
{
    Text t = { 0 };
    for (int i = 0; i < s->ranks.n; i++)
        text_add(&t, "%s%s", i ? ", " : "[", s->ranks.at[i]);
    text_add(&t, "]");
    return str_of(t.at, t.n);
}

PlanKeys print_plan_keys(const Plan *p)
{
    const Choices *is = &p->is;
    const PlanSpec *s = &p->config->plan;
    const Pipeline *q = p->pipeline;
    int sections = q ? q->P * q->v : 1, k = q ? q->feed.k : 1;
    PlanKeys keys = { 0 };
    add_key(&keys, "data", str_fmt("%d", is->data));
    add_key(&keys, "pipeline", str_fmt("%d", is->stages));
    add_key(&keys, "chunks", str_fmt("%d", is->chunks));
    add_key(&keys, "cube", str_fmt("[%d, %d, %d]", is->x, is->y, is->z));
    add_key(&keys, "microbatch", str_fmt("%" PRId64, q ? q->feed.b : is->microbatch));
    add_key(&keys, "slices", k > 1 ? str_fmt("[%s]", list_text(k, q->feed.slice)) : "uniform(1)");
    add_key(&keys, "schedule", s->schedule.v ? s->schedule.v : "1f1b");
    add_key(&keys, "recompute", print_recompute(p));
    add_key(&keys, "zero", str_fmt("%d", is->zero));
    if (sections > 1) {
        int64_t *turns = NEWN(int64_t, sections);
        for (int i = 0; i < sections; i++)
            turns[i] = q->section[i].turns;
        add_key(&keys, "turns", str_fmt("[%s]", list_text(sections, turns)));
    }
    if (s->ranks.n == 5)
        add_key(&keys, "ranks", ranks_text(s));
    if (s->partition.v)
        add_key(&keys, "partition", strcmp(s->partition.v, "summa") ? s->partition.v
                : str_fmt("summa(%" PRId64 ")", s->summa_q));
    add_key(&keys, "attention", attention_word[is->attention]);
    add_key(&keys, "rows", is->balanced ? "balanced" : "plain");
    if (is->keep_why || s->keep.v)          // on paper nobody chose
        add_key(&keys, "keep", is->keep_why ? print_keep(is) : s->keep.v);
    add_key(&keys, "prefetch", str_fmt("%d", is->prefetch));
    add_key(&keys, "vectors", is->shard_vectors ? "sharded" : "whole");
    add_key(&keys, "logits_chunk", k > 1 && !s->logits_chunk.set ? "auto"  // each slice has its own
            : str_fmt("%" PRId64, is->logits_chunk));
    return keys;
}

/* The plan with every choice made; pasted back it gives the same plan. */
void print_plan_block(const Plan *p, FILE *f)
{
    PlanKeys keys = print_plan_keys(p);
    fprintf(f, "\nplan {\n");
    for (int i = 0; i < keys.n; i++)
        fprintf(f, "    %-12s = %s\n", keys.at[i].key, keys.at[i].value);
    fprintf(f, "}\n");
}

void print_pipeline(const Pipeline *q, FILE *f)
{
    print_glance(q, f);
    print_parts(q, f);
    print_axis_links(q, f);
    print_grids(q->plan, f);
    print_stages(q, f);
    print_plan_block(q->plan, f);
}

/* ---- --explain slice ----------------------------------------------------------------- */

/* t(l, c) of the stage that is slowest on a whole sequence. */
static void print_times(const Pipeline *q, FILE *f)
{
    int64_t L = q->schedule.sequence;
    double b = (double)q->schedule.b, most = 0;
    int slow = 0;
    for (int i = 0; i < q->P * q->v; i++) {
        PassCost a = pipeline_pass(q, i, b, (double)L, 0);
        double t = a.forward.compute + a.backward.compute;
        if (t > most) {
            most = t;
            slow = i;
        }
    }
    print_heading(f, str_fmt("t(l, c): forward + backward of %s on stage %d, without transfers",
                             plural(q->schedule.b, "sequence"), slow % q->P));
    static const double context[] = { 0, 0.125, 0.25, 0.5, 0.75 };
    fprintf(f, "  %8s", "l \\ c");
    for (int i = 0; i < 5; i++)
        fprintf(f, " %10.0f", floor(context[i] * (double)L));
    fprintf(f, "\n");
    for (int64_t l = L; l >= 1 && l * 256 >= L; l /= 2) {
        fprintf(f, "  %8" PRId64, l);
        for (int i = 0; i < 5; i++) {
            double c = floor(context[i] * (double)L);
            PassCost a = pipeline_pass(q, slow, b, (double)l, c);
            const Seconds *x = &a.forward, *y = &a.backward;
            double t = x->compute + x->x + x->y + x->z + y->compute + y->recompute + y->x + y->y +
                       y->z;
            fprintf(f, " %10s", c + (double)l > (double)L ? "-" : str_seconds(t));
        }
        fprintf(f, "\n");
    }
}

void print_slices(const Pipeline *q, FILE *f)
{
    print_glance(q, f);
    print_times(q, f);
    print_heading(f, "candidates: the programme's time, the simulated step; the least step is "
                     "taken");
    fprintf(f, "    %4s %4s %4s %12s %12s  %s\n", "b", "m", "k", "formula", "simulated", "slices");
    for (int i = 0; i < q->feeds.n; i++) {
        const Feed *c = &q->feeds.at[i];
        fprintf(f, "  %s %4" PRId64 " %4" PRId64 " %4d %12s %12s  %s\n", i ? " " : "*", c->b, c->m,
                c->k, str_seconds(c->formula_s), str_seconds(c->step_s), lengths(c->k, c->slice));
    }
    if (q->search.tried == 0) {
        fprintf(f, "\nThe slices are the plan's own; nothing was searched.\n");
        return;
    }
    fprintf(f, "\nthe programme was solved for %s on the longest slice, %s, in %s with its "
            "prices\n", plural(q->search.tried, "cap"), plural(q->search.steps, "inner step"),
            str_seconds(q->search.seconds));
    if (isfinite(q->search.bound))
        fprintf(f, "stopped by a bound: caps from %s to %s give at least %s\n",
                str_seconds(q->search.cap_lo), str_seconds(q->search.cap_hi),
                str_seconds(q->search.bound));
    const Feed *w = &q->feed;
    if (q->feeds.n > 1) {
        const Feed *n = &q->feeds.at[1];
        fprintf(f, "the winner beats %s of %s by %s (%.1f %%)\n", plural(n->k, "slice"),
                plural(n->b, "sequence"), str_seconds(n->step_s - w->step_s),
                100 * (n->step_s / w->step_s - 1));
    }
}

/* ---- --explain schedule --------------------------------------------------------------- */

enum { PICTURE = 100, PICTURE_ROWS = 32 };

/* One row per stage, time from left to right: microbatch numbers of forwards, letters of
 * backwards, dots where the stage is idle. */
static void print_picture(const Pipeline *q, FILE *f)
{
    const Simulation *s = &q->sim;
    int rows = q->P < PICTURE_ROWS ? q->P : PICTURE_ROWS;
    print_heading(f, str_fmt("time from left to right, %s a column: digits forward, letters "
                             "backward (by microbatch), s sync, o optimizer",
                             str_seconds(s->step_s / PICTURE)));
    char (*row)[PICTURE + 1] = arena_get(scratch, sizeof *row * (size_t)rows);
    for (int r = 0; r < rows; r++)
        memset(row[r], '.', PICTURE);
    for (int i = 0; i < s->spans.n; i++) {
        const Span *a = &s->spans.at[i];
        if (a->stage >= rows || a->stream != SPAN_COMPUTE)
            continue;
        int n = a->step.microbatch, lo = (int)(a->start / s->step_s * PICTURE);
        int hi = (int)(a->end / s->step_s * PICTURE);
        char c = a->step.kind == STEP_FORWARD ? (char)('0' + n % 10)
               : a->step.kind == STEP_BACKWARD ? (char)('a' + n % 26)
               : a->step.kind == STEP_SYNC ? 's' : 'o';
        for (int k = lo; k < hi && k < PICTURE; k++)
            row[a->stage][k] = c;
    }
    for (int r = 0; r < rows; r++)
        fprintf(f, "  %3d %s\n", r, row[r]);
    if (rows < q->P)
        fprintf(f, "  ... %s more\n", plural(q->P - rows, "stage"));
}

void print_schedule(const Pipeline *q, FILE *f)
{
    print_glance(q, f);
    print_picture(q, f);
    for (int r = 0; r < q->P; r++) {
        const Steps *t = &q->schedule.stage[r];
        print_heading(f, str_fmt("stage %d: %s", r, plural(t->n, "step")));
        for (int i = 0; i < t->n; i++) {
            const Step *u = &t->at[i];
            fprintf(f, "  %5d  %s", i, step_text(u));
            if (u->peer != NONE)
                fprintf(f, " %s stage %d, %s", u->kind == STEP_SEND_ACTIVATION ||
                        u->kind == STEP_SEND_GRADIENT ? "to" : "from", u->peer,
                        str_bytes((double)u->bytes));
            fprintf(f, "\n");
        }
    }
}
