/*
 * tune_print.c - what a search found: the page that a person reads, and the object that
 * tools read. What is printed was simulated too; the order is that of the closed step
 * time.
 */
#include "tune_print.h"

/* ---- resolved ------------------------------------------------------------------------ */

void tune_settle(Plan *p)
{
    const Feed *f = &p->pipeline->feed;
    p->is.microbatch = f->b;
    p->is.T = f->b * p->is.sequence;
    p->is.nslices = f->k;
    p->is.slice = f->slice;
}

Config *tune_config(const Tune *t, const Point *a)
{
    Config *c = NEW(Config);
    *c = *t->plan->config;
    tune_pin(&c->plan, a);
    if (c->has_cluster)                     // a part of it may be cheaper
        c->cluster.nodes.v = (double)tune_devices_of(a) / c->cluster.per_node.v;
    return c;
}

Plan *tune_resolve(const Tune *t, const Point *a)
{
    Plan *s = NEW(Plan);
    *s = *t->plan;
    s->config = tune_config(t, a);
    mesh_choose(s);
    Pipeline *q = diag_errors() ? NULL : pipeline_plan(s, t->ask.turns_only, false, false);
    if (q == NULL)
        bug("tune: %s is legal and cannot be planned", tune_line(a));
    s->pipeline = q;
    tune_settle(s);
    return s;
}

TunePage tune_page(const Tune *t)
{
    TunePage page = { t, t->best.n, NEWN(TuneRow, t->best.n + 1) };
    for (int i = 0; i < page.n; i++) {
        Plan *s = tune_resolve(t, &t->best.at[i].at);
        page.at[i] = (TuneRow){ &t->best.at[i], s, s->pipeline->sim.step_s };
        arena_reset(scratch);
    }
    return page;
}

/* ---- the page ------------------------------------------------------------------------ */

static const char *count_text(int64_t n)        // "12,345"
{
    const char *s = str_fmt("%" PRId64, n);
    Text t = { 0 };
    size_t len = strlen(s);
    for (size_t i = 0; i < len; i++)
        text_add(&t, i && (len - i) % 3 == 0 ? ",%c" : "%c", s[i]);
    return str_of(t.at, t.n);
}

static const char *counted(int64_t n, const char *noun)
{
    return str_fmt("%s %s%s", count_text(n), noun, n == 1 ? "" : "s");
}

/* In the currency of the device's price, which is for an hour. */
static double cost_of(const Tune *t, const Candidate *c)
{
    const Config *k = t->plan->config;
    return c->is.step_s / 3600 * (double)tune_devices_of(&c->at) *
           k->devices.at[k->cluster.device].price.v;
}

static const char *room_text(const Candidate *c)
{
    return str_fmt("%s of %s", str_bytes(c->is.memory.peak), str_bytes(c->is.room_bytes));
}

static void print_searched(const Tune *t, FILE *f)
{
    fprintf(f, "  searched  %s in %s", counted(t->searched, "layout"), str_seconds(t->seconds));
    if (t->front_complete)
        fprintf(f, ": %s can be laid out, %s fit",
                count_text(t->feasible + t->rejected[REJECT_MEMORY]),
                count_text(t->feasible));
    fprintf(f, "\n");
    if (!t->complete)
        fprintf(f, "  budget    used up after %s: better ones may be left\n",
                str_seconds(t->seconds));
    TunePins pins = tune_pins(t->pins);
    for (int i = 0; i < pins.n; i++)
        fprintf(f, "  %-9s %s = %s%s\n", i ? "" : "pinned", pins.at[i].key, pins.at[i].value,
                pins.at[i].loc.end ? str_fmt(" (%s)", source_where(pins.at[i].loc)) : "");
}

/* The terms in which b differs most from a, dearest first: "bubble +1.2 s, y +300 ms". */
static const char *differences(const Estimate *a, const Estimate *b, int most)
{
    bool done[PARTS] = { false };
    Text t = { 0 };
    for (int n = 0; n < most; n++) {
        int worst = -1;
        for (int i = 0; i < PARTS; i++) {
            double d = fabs(b->part[i] - a->part[i]);
            if (!done[i] && d > 1e-3 * a->step_s &&
                (worst < 0 || d > fabs(b->part[worst] - a->part[worst])))
                worst = i;
        }
        if (worst < 0)
            break;
        double d = b->part[worst] - a->part[worst];
        text_add(&t, "%s%s %s%s", t.n ? ", " : "", part_word[worst], d < 0 ? "-" : "+",
                 str_seconds(fabs(d)));
        done[worst] = true;
    }
    return t.n ? str_of(t.at, t.n) : "";
}

const char *tune_slower(const Estimate *a, const Estimate *b)
{
    double d = 100 * (b->step_s / a->step_s - 1);
    const char *terms = differences(a, b, 4);
    const char *how = fabs(d) < 0.05 ? "as fast"
        : str_fmt("%.*f %% %s", fabs(d) < 10 ? 1 : 0, fabs(d), d < 0 ? "faster" : "slower");
    return *terms ? str_fmt("%s: %s", how, terms) : how;
}

static void print_winner(const TunePage *page, FILE *f)
{
    const TuneRow *w = &page->at[0];
    const Estimate *e = &w->is->is;
    fprintf(f, "  best      %s\n", tune_line(&w->is->at));
    fprintf(f, "            %s a step (%s simulated), %.4g tokens/s, mfu %.1f %%, hfu %.1f %%\n",
            str_seconds(e->step_s), str_seconds(w->simulated_s), e->tokens_per_s, 100 * e->mfu,
            100 * e->hfu);
    const Tune *t = page->t;
    fprintf(f, "            %s on stage %d%s\n", room_text(w->is), e->worst,
            t->laid_out ? str_fmt(", %s laid out", str_bytes((double)t->laid_out)) : "");
    for (int i = 0; i < t->outgrown.n; i++)
        fprintf(f, "  %-9s %s: %s laid out\n", i ? "" : "too large",
                tune_line(&t->outgrown.at[i].at), str_bytes((double)t->outgrown.at[i].bytes));
    if (page->t->ask.objective == TUNE_COST)
        fprintf(f, "            %.3g a step, %.4g for 10^9 tokens, on %s\n",
                cost_of(page->t, w->is), cost_of(page->t, w->is) / (e->tokens_per_s * e->step_s) *
                1e9, plural(tune_devices_of(&w->is->at), "device"));
    if (page->n < 2)
        return;
    const TuneRow *r = &page->at[1];
    fprintf(f, "  next      %s\n", tune_line(&r->is->at));
    double more = r->is->is.memory.peak - e->memory.peak;
    if (page->t->ask.objective == TUNE_MEMORY)
        fprintf(f, "            holds %s more; %s\n", str_bytes(more), tune_slower(e, &r->is->is));
    else
        fprintf(f, "            %s\n", tune_slower(e, &r->is->is));
}

static const char *slices_text(const Point *p)
{
    if (p->slice == NULL)
        return str_fmt("%d", p->nslices);
    return str_fmt("%d", p->nslices);
}

static const char *recompute_text(const Point *p)
{
    static const char *const word[] = { "none", "attention", "full" };
    return p->recompute_turns ? str_fmt("full(%d)", p->recompute_turns) : word[p->recompute];
}

/* Memory is the closed form's: what nearly fills the room may not fit once it is laid out. */
static void print_near_room(const TunePage *page, FILE *f)
{
    Text t = { 0 };
    double room = 0;
    const Config *c = page->t->plan->config;
    for (int i = 0; i < page->n; i++) {
        const Estimate *is = &page->at[i].is->is;
        room = is->room_bytes;
        bool known = i == 0 && page->t->laid_out > 0;
        if (!known && is->memory.peak > ESTIMATE_LOW * is->room_bytes)
            text_add(&t, "%s%d", t.n ? ", " : "", i + 1);
    }
    if (t.n == 0)
        return;
    fprintf(f, "  near the room: %s; what `plan` lays out is mostly within %.0f %% of this: it "
            "says whether it fits\n", t.at, 100 / ESTIMATE_LOW - 100);
    if (c->has_cluster && c->cluster.device >= 0) {
        const Device *d = &c->devices.at[c->cluster.device];
        fprintf(f, "                 --set device.%s.reserve='%s' keeps clear of that\n", d->name,
                str_bytes(d->reserve.v + (1 - ESTIMATE_LOW) * room));
    }
}

static void print_top(const TunePage *page, FILE *f)
{
    static const char *const head[] = { "", "devices", "a step costs", "data", "pipeline",
        "chunks", "cube", "microbatch", "slices", "schedule", "recompute", "zero", "step",
        "simulated", "mfu", "memory" };
    enum { COLUMNS = sizeof head / sizeof *head };
    Table t = { .align = "rrrrrrlrrllrrrrr" };
    const Tune *u = page->t;
    bool costs = u->ask.objective == TUNE_COST;
    for (int i = 0; i < COLUMNS; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i < page->n; i++) {
        const Candidate *c = page->at[i].is;
        const Point *p = &c->at;
        table_cell(&t, "%d", i + 1);
        table_cell(&t, "%s", costs ? count_text(tune_devices_of(p)) : "-");
        table_cell(&t, "%s", costs ? str_fmt("%.3g", cost_of(u, c)) : "-");
        table_cell(&t, "%d", p->data);
        table_cell(&t, "%d", p->stages);
        table_cell(&t, "%d", p->chunks);
        table_cell(&t, "[%d, %d, %d]", p->x, p->y, p->z);
        table_cell(&t, "%" PRId64, p->microbatch);
        table_cell(&t, "%s", slices_text(p));
        table_cell(&t, "%s", p->stages > 1 ? schedule_word[p->schedule] : "-");
        table_cell(&t, "%s", recompute_text(p));
        table_cell(&t, "%d", p->zero);
        table_cell(&t, "%s", str_seconds(c->is.step_s));
        table_cell(&t, "%s", str_seconds(page->at[i].simulated_s));
        table_cell(&t, "%.1f %%", 100 * c->is.mfu);
        table_cell(&t, "%s", str_bytes(c->is.memory.peak));
    }
    print_heading(f, page->n == 1 ? "the best" : str_fmt("the best %d, each the best of its mesh "
                  "and microbatch", page->n));
    table_print(&t, f);
    print_near_room(page, f);
}

void tune_print_terms(const Candidate *a, const Candidate *b, const char *left, const char *right,
                      FILE *f)
{
    Table t = { .align = "lrrrr" };
    table_cell(&t, "term");
    table_cell(&t, "%s", left);
    table_cell(&t, "%s", right);
    table_cell(&t, "difference");
    table_cell(&t, "of the step");
    for (int i = 0; i < PARTS; i++) {
        double x = a->is.part[i], y = b->is.part[i];
        if (fabs(x) + fabs(y) < 1e-9 * a->is.step_s)    // less is rounding
            continue;
        table_cell(&t, "%s", part_word[i]);
        table_cell(&t, "%s", str_seconds(x));
        table_cell(&t, "%s", str_seconds(y));
        table_cell(&t, "%s%s", y < x ? "-" : "+", str_seconds(fabs(y - x)));
        table_cell(&t, "%+.1f %%", 100 * (y - x) / a->is.step_s);
    }
    table_cell(&t, "step");
    table_cell(&t, "%s", str_seconds(a->is.step_s));
    table_cell(&t, "%s", str_seconds(b->is.step_s));
    double d = b->is.step_s - a->is.step_s;
    table_cell(&t, "%s%s", d < 0 ? "-" : "+", str_seconds(fabs(d)));
    table_cell(&t, "%+.1f %%", 100 * d / a->is.step_s);
    table_print(&t, f);
}

void tune_print_rejected(const Tune *t, FILE *f)
{
    int64_t all = 0;
    for (int i = 0; i < REJECTS; i++)
        all += t->rejected[i];
    if (all == 0)
        return;
    print_heading(f, "rejected, each by the first check that it fails");
    Table out = { .align = "lrl" };
    table_cell(&out, "check");
    table_cell(&out, "layouts");
    table_cell(&out, "why");
    for (int i = 0; i < REJECTS; i++)
        if (t->rejected[i]) {
            table_cell(&out, "%s", reject_word[i]);
            table_cell(&out, "%s", count_text(t->rejected[i]));
            table_cell(&out, "%s", reject_text[i]);
        }
    table_print(&out, f);
}

static void print_front(const Tune *t, FILE *f)
{
    if (t->front.n < 2)
        return;
    Table out = { .align = "rrl" };
    table_cell(&out, "step");
    table_cell(&out, "memory");
    table_cell(&out, "layout");
    /* TUNING: a page has room for so many, spread evenly over the front */
    enum { SHOWN = 12 };
    int n = t->front.n < SHOWN ? t->front.n : SHOWN;
    for (int i = 0; i < n; i++) {
        const Candidate *c = &t->front.at[n == 1 ? 0 : i * (t->front.n - 1) / (n - 1)];
        table_cell(&out, "%s", str_seconds(c->is.step_s));
        table_cell(&out, "%s", str_bytes(c->is.memory.peak));
        table_cell(&out, "%s", tune_line(&c->at));
    }
    print_heading(f, str_fmt("time against memory: nothing is better in both%s",
                  n < t->front.n ? str_fmt(" (%d of %d)", n, t->front.n) : ""));
    table_print(&out, f);
}

void tune_print_block(const Tune *t, const Plan *p, FILE *f)
{
    PlanKeys keys = print_plan_keys(p);
    const Config *c = p->config;
    if (c->cluster.nodes.v != t->plan->config->cluster.nodes.v)
        fprintf(f, "# on a part of %s: --set cluster.nodes=%.0f\n", c->cluster.name,
                c->cluster.nodes.v);
    fprintf(f, "plan {\n");
    fprintf(f, "    %s\n", plan_hash_line(p));
    for (int i = 0; i < keys.n; i++)
        fprintf(f, "    %-12s = %s\n", keys.at[i].key, keys.at[i].value);
    fprintf(f, "}\n");
}

void tune_print(const TunePage *page, FILE *f)
{
    const Tune *t = page->t;
    const Plan *p = t->plan;
    const Config *c = p->config;
    fprintf(f, "%s on %s, %s of %s in a step\n", p->model_name ? p->model_name : "model",
            c->has_cluster ? str_fmt("%s of %s", plural(t->devices, "device"), c->cluster.name)
                           : str_fmt("%s of this machine", plural(t->devices, "rank")),
            plural(p->is.batch, "sequence"), plural(p->is.sequence, "token"));
    print_searched(t, f);
    if (page->n)
        print_winner(page, f);
    if (page->n)
        print_top(page, f);
    if (page->n > 1) {
        print_heading(f, "why the next one loses");
        if (t->ask.objective == TUNE_MEMORY)
            tune_print_memories(page->at[0].is, page->at[1].is, "best", "next", f);
        else
            tune_print_terms(page->at[0].is, page->at[1].is, "best", "next", f);
    }
    print_front(t, f);
    tune_print_rejected(t, f);
    if (page->n) {
        fprintf(f, "\n");
        tune_print_block(t, page->at[0].plan, f);
    }
}

/* ---- JSON ------------------------------------------------------------------------------ */

static void json_candidate(Json *j, const TuneRow *r)
{
    json_begin(j, NULL, '{');
    print_json_layout(j, r->plan);
    print_json_predicted(j, r->plan);
    json_real(j, "step_s", r->is->is.step_s);
    json_real(j, "simulated_s", r->simulated_s);
    json_integer(j, "memory_peak", (int64_t)r->is->is.memory.peak);
    json_end(j, '}');
}

void tune_print_json(const TunePage *page, FILE *f)
{
    Json json = { f, true, 1 }, *j = &json;
    const Tune *t = page->t;
    fputc('{', f);
    json_begin(j, "candidates", '[');
    for (int i = 0; i < page->n; i++)
        json_candidate(j, &page->at[i]);
    json_end(j, ']');
    json_begin(j, "front", '[');
    for (int i = 0; i < t->front.n; i++) {
        json_begin(j, NULL, '{');
        json_text(j, "layout", tune_line(&t->front.at[i].at));
        json_real(j, "step_s", t->front.at[i].is.step_s);
        json_integer(j, "memory_peak", (int64_t)t->front.at[i].is.memory.peak);
        json_end(j, '}');
    }
    json_end(j, ']');
    if (t->laid_out)
        json_integer(j, "laid_out_bytes", t->laid_out);
    else
        json_null(j, "laid_out_bytes");
    json_begin(j, "outgrown", '[');
    for (int i = 0; i < t->outgrown.n; i++) {
        json_begin(j, NULL, '{');
        json_text(j, "layout", tune_line(&t->outgrown.at[i].at));
        json_integer(j, "laid_out_bytes", t->outgrown.at[i].bytes);
        json_end(j, '}');
    }
    json_end(j, ']');
    json_integer(j, "searched", t->searched);
    json_integer(j, "feasible", t->feasible);
    json_begin(j, "rejected", '{');
    for (int i = 0; i < REJECTS; i++)
        if (t->rejected[i])
            json_integer(j, reject_word[i], t->rejected[i]);
    json_end(j, '}');
    TunePins pins = tune_pins(t->pins);
    json_begin(j, "pinned", '{');
    for (int i = 0; i < pins.n; i++)
        json_text(j, pins.at[i].key, pins.at[i].value);
    json_end(j, '}');
    json_text(j, "objective", objective_word[t->ask.objective]);
    if (t->has_near && t->best.n == 0) {
        json_begin(j, "nearest_infeasible", '{');
        json_text(j, "layout", tune_line(&t->near.at));
        json_integer(j, "memory_peak", (int64_t)t->near.is.memory.peak);
        json_integer(j, "room_bytes", (int64_t)t->near.is.room_bytes);
        json_end(j, '}');
    } else
        json_null(j, "nearest_infeasible");
    json_real(j, "seconds", t->seconds);
    json_integer(j, "evaluations", t->evaluations);
    json_integer(j, "slice_programmes", t->programmes);
    json_end(j, '}');
    fputc('\n', f);
}
