/*
 * tune_why.c - answers about a search: why a layout that someone has in mind does not win, why
 * the next best one loses, and what is missing where nothing fits.
 */
#include "options.h"
#include "tune_print.h"

/* "cube=[2,2,2], pipeline=8": cut at commas outside of brackets, each a key of the plan. */
static void settings_of(const char *text, Inputs *in)
{
    VEC(const char *) sets = { 0 };
    for (int i = 0; i < in->nsets; i++)
        vec_add(&sets, in->sets[i]);
    in->more = "--why-not";
    in->from = in->nsets;
    for (const char *s = text; *s;) {
        int depth = 0;
        size_t n = 0;
        while (s[n] && (depth > 0 || s[n] != ',')) {
            depth += (s[n] == '[' || s[n] == '(') - (s[n] == ']' || s[n] == ')');
            n++;
        }
        size_t skip = strspn(s, " "), end = n;
        while (end > skip && s[end - 1] == ' ')
            end--;
        if (end > skip) {
            const char *one = str_of(s + skip, end - skip);
            bool whole = strncmp(one, "plan.", 5) == 0;
            const char *set = whole ? one : str_fmt("plan.%s", one);
            vec_add(&sets, set);
        }
        s += n + (s[n] == ',');
    }
    in->sets = sets.at;
    in->nsets = sets.n;
}

/* ---- two layouts, term by term ----------------------------------------------------------- */

static const char *signed_bytes(double d)
{
    return str_fmt("%s%s", d < 0 ? "-" : "+", str_bytes(fabs(d)));
}

static void memory_row(Table *t, const char *what, double a, double b)
{
    if (a == 0 && b == 0)
        return;
    table_cell(t, "%s", what);
    table_cell(t, "%s", str_bytes(a));
    table_cell(t, "%s", str_bytes(b));
    table_cell(t, "%s", signed_bytes(b - a));
}

void tune_print_memories(const Candidate *a, const Candidate *b, const char *left,
                         const char *right, FILE *f)
{
    const StageMemory *x = &a->is.memory, *y = &b->is.memory;
    Table t = { .align = "lrrr" };
    table_cell(&t, "memory of the fullest stage");
    table_cell(&t, "%s", left);
    table_cell(&t, "%s", right);
    table_cell(&t, "difference");
    memory_row(&t, "parameters", x->parameters, y->parameters);
    memory_row(&t, "gradients", x->gradients, y->gradients);
    memory_row(&t, "optimizer", x->optimizer, y->optimizer);
    memory_row(&t, "activations", x->activations, y->activations);
    memory_row(&t, "keys/values", x->keys_values, y->keys_values);
    memory_row(&t, "logits", x->logits, y->logits);
    memory_row(&t, "workspace", x->workspace, y->workspace);
    memory_row(&t, "peak", x->peak, y->peak);
    table_print(&t, f);
}

static void print_pair(const Candidate *a, const Candidate *b, const char *left,
                       const char *right, FILE *f)
{
    fprintf(f, "\n");
    tune_print_terms(a, b, left, right, f);
    fprintf(f, "\n");
    tune_print_memories(a, b, left, right, f);
}

/* ---- why not ------------------------------------------------------------------------------- */

static Tune *search_one(const Config *c, const TuneAsk *like)
{
    TuneAsk ask = *like;
    ask.top = 1;
    ask.no_front = true;
    return tune_all(c, &ask);
}

/* How b is behind a, by what was asked for. */
static const char *behind(Objective o, const Candidate *a, const Candidate *b)
{
    const char *slower = tune_slower(&a->is, &b->is);
    double cost = b->is.step_s * (double)tune_devices_of(&b->at) /
                  (a->is.step_s * (double)tune_devices_of(&a->at));
    return o == TUNE_MEMORY ? str_fmt("holds %s more; %s",
               str_bytes(b->is.memory.peak - a->is.memory.peak), slower)
         : o == TUNE_COST ? str_fmt("costs %.1f %% more; %s", 100 * (cost - 1), slower) : slower;
}

static void print_verdict(const Tune *here, const Tune *open, FILE *f)
{
    const Candidate *a = &open->best.at[0], *b = &here->best.at[0];
    fprintf(f, "  it fits   %s\n            %s a step, %s of %s\n", tune_line(&b->at),
            str_seconds(b->is.step_s), str_bytes(b->is.memory.peak), str_bytes(b->is.room_bytes));
    if (tune_order(open->ask.objective, a, b) >= 0) {
        fprintf(f, "  answer    nothing speaks against it: it is the best\n");
        return;
    }
    fprintf(f, "  the best  %s\n            %s a step, %s\n", tune_line(&a->at),
            str_seconds(a->is.step_s), str_bytes(a->is.memory.peak));
    fprintf(f, "  answer    %s\n", behind(open->ask.objective, a, b));
    print_pair(a, b, "best", "asked for", f);
}

static void print_refusal(const Tune *here, const Tune *open, FILE *f)
{
    if (here->has_near) {
        const Candidate *n = &here->near;
        fprintf(f, "  answer    it does not fit: the nearest, %s,\n            lacks %s of %s on "
                "stage %d\n", tune_line(&n->at),
                str_bytes(n->is.memory.peak - n->is.room_bytes), str_bytes(n->is.room_bytes),
                n->is.worst);
    } else
        fprintf(f, "  answer    %s\n", here->complete ? "it cannot be laid out"
                : "nothing of it was found within the budget");
    tune_print_rejected(here, f);
    if (open->best.n) {
        fprintf(f, "\n  the best  %s\n            %s a step\n", tune_line(&open->best.at[0].at),
                str_seconds(open->best.at[0].is.step_s));
        if (here->has_near) {
            fprintf(f, "\n");
            tune_print_memories(&open->best.at[0], &here->near, "best", "nearest", f);
        }
    }
}

int tune_why_not(Compile *c, const TuneAsk *ask)
{
    Inputs in = c->o->in;
    settings_of(c->o->why_not, &in);
    if (in.nsets == c->o->in.nsets)
        die(EXIT_USAGE, "--why-not takes entries of the plan, such as 'cube=[2,2,2], pipeline=8'");
    const Config *asked = config_of(c->o, &in);
    Tune *here = asked ? search_one(asked, ask) : NULL;
    Tune *open = here ? search_one(c->config, ask) : NULL;
    if (open == NULL)
        return EXIT_INPUT;
    printf("why not %s?\n", c->o->why_not);
    if (!here->complete || !open->complete)
        printf("  budget    used up: better ones may be left on both sides\n");
    if (here->best.n && open->best.n)
        print_verdict(here, open, stdout);
    else
        print_refusal(here, open, stdout);
    return EXIT_FINE;
}

/* ---- plan --explain tune ---------------------------------------------------------------- */

/* The plan section's best against its runner-up; where it leaves no choice, against the best
 * that there is. */
int tune_explain(Compile *c)
{
    TuneAsk ask = { .top = 2, .no_front = true };
    Tune *t = tune_all(c->config, &ask);
    if (t == NULL)
        return EXIT_INPUT;
    if (t->best.n == 0) {
        tune_report_none(t);
        return EXIT_INPUT;
    }
    const Candidate *a = &t->best.at[0], *b = &t->best.at[1];
    const char *left = "best", *right = "next";
    if (t->best.n == 1) {
        Config *open = NEW(Config);
        *open = *c->config;
        open->plan = (PlanSpec){ .loc = open->plan.loc };
        open->plans.n = 0;
        Tune *all = search_one(open, &ask);
        if (all == NULL)
            return EXIT_INPUT;
        b = a;
        a = &all->best.at[0];
        right = "this plan";
    }
    printf("%-9s %s\n%-9s %s\n", left, tune_line(&a->at), right, tune_line(&b->at));
    if (tune_order(TUNE_TIME, a, b) == 0) {
        printf("          nothing is better\n");
        return EXIT_FINE;
    }
    printf("          %s\n", tune_slower(&a->is, &b->is));
    print_pair(a, b, left, right, stdout);
    return EXIT_FINE;
}

/* ---- nothing fits ---------------------------------------------------------------------- */

enum { MOST_TIMES = 256 };          // TUNING: whoever needs more has another model in mind

/* How many nodes of the cluster's kind are enough, whatever gaps a block has; NULL where MOST_TIMES
 * as many are not. Before any error is reported. */
static const Tune *find_enough(const Config *c)
{
    for (int more = 2; c->has_cluster && more <= MOST_TIMES; more *= 2) {
        Config *k = NEW(Config);
        *k = *c;
        k->cluster.nodes.v *= more;
        Plan *p = tune_open(k);
        TuneAsk ask = { .top = 1, .no_front = true, .budget_s = 5 };
        if (p)
            p->is.room_bytes = (int64_t)(ESTIMATE_LOW * (double)p->is.room_bytes);
        Tune *t = p ? tune_search(p, &ask) : NULL;
        if (t && t->best.n)
            return t;
    }
    return NULL;
}

static const char *biggest_part(const StageMemory *m, double *bytes)
{
    const struct { const char *what; double n; } part[] = {
        { "parameters", m->parameters }, { "gradients", m->gradients },
        { "the optimizer's state", m->optimizer }, { "activations", m->activations },
        { "keys and values", m->keys_values }, { "logits", m->logits },
        { "workspace", m->workspace } };
    int most = 0;
    for (int i = 1; i < 7; i++)
        most = part[i].n > part[most].n ? i : most;
    *bytes = part[most].n;
    return part[most].what;
}

/* ---- nothing can be laid out --------------------------------------------------------------- */

static void fill(Num *to, Num from)
{
    if (!to->set)
        *to = from;
}

/* What is wrong with a layout, said by the checks of `plan`: they name the lines of the model, of
 * the pins and what would do. */
static void show_rejected(const Tune *t, const Point *at)
{
    Plan *s = NEW(Plan);
    Config *c = NEW(Config);
    *s = *t->plan;
    *c = *t->plan->config;
    PlanSpec *to = &c->plan, all = *to;
    tune_pin(&all, at);
    fill(&to->data, all.data);
    fill(&to->pipeline, all.pipeline);
    for (int i = 0; i < 3; i++)
        fill(&to->cube[i], all.cube[i]);
    fill(&to->microbatch, all.microbatch);
    if (to->slices_kind == SLICES_AUTO) {
        to->slices_kind = SLICES_UNIFORM;
        to->slices_n = 1;
    }
    s->config = c;
    diag_note((Loc){ 0, 0 }, "for example %s:", tune_line(at));
    int errors = diag_errors();
    mesh_choose(s);
    if (diag_errors() == errors)
        pipeline_plan(s, t->ask.turns_only, false, false);
}

/* The largest part of the cluster that can be laid out: fewer nodes, or fewer devices of its one
 * node. TUNING: a second is what the answer is worth. */
static const char *find_part(const Tune *t)
{
    Config *c = NEW(Config);
    Plan *p = NEW(Plan);
    *c = *t->plan->config;
    *p = *t->plan;
    p->config = c;
    bool nodes = c->cluster.nodes.v > 1;
    Num *n = nodes ? &c->cluster.nodes : &c->cluster.per_node;
    double until = now_s() + 1;
    for (n->v--; c->has_cluster && n->v >= 1 && now_s() < until; n->v--) {
        bool any = tune_any(p);
        arena_reset(scratch);
        if (any)
            return str_fmt("%s of %s can be laid out: %s", plural(tune_devices(c), "device"),
                           c->cluster.name, nodes ? str_fmt("nodes = %.0f", n->v)
                           : str_fmt("node = %.0f * %s", n->v,
                                     c->devices.at[c->cluster.device].name));
    }
    return NULL;
}

static void report_impossible(const Tune *t, Loc at, bool pins)
{
    int most = 0;
    for (int i = 1; i < REJECTS; i++)
        most = t->rejected[i] > t->rejected[most] ? i : most;
    const char *part = find_part(t);
    diag_error(at, reject_word[most], "no layout of %s is possible%s; most are rejected by this "
               "check: %s", plural(t->devices, "device"), pins ? " with what is pinned" : "",
               reject_text[most]);
    if (part)
        diag_hint("%s", part);
    show_rejected(t, &t->first[most]);
}

void tune_report_none(const Tune *t)
{
    const Config *c = t->plan->config;
    bool pins = tune_pins(t->pins).n > 0;
    Loc at = pins && c->plan.loc.end ? c->plan.loc : c->has_cluster ? c->cluster.loc : c->plan.loc;
    if (!t->complete) {
        diag_error(at, "budget", "nothing was found that fits within the budget");
        diag_hint("without --budget the search ends when nothing can win any more");
        return;
    }
    if (!t->has_near) {
        report_impossible(t, at, pins);
        return;
    }
    const Candidate *n = &t->near;
    double bytes;
    const char *what = biggest_part(&n->is.memory, &bytes);
    const Tune *enough = find_enough(c);
    diag_error(at, "memory-fits", "no layout of %s fits: the nearest, %s, lacks %s of %s on stage "
               "%d, most of it %s, %s", plural(t->devices, "device"), tune_line(&n->at),
               str_bytes(n->is.memory.peak - n->is.room_bytes), str_bytes(n->is.room_bytes),
               n->is.worst, what, str_bytes(bytes));
    if (enough == NULL && c->has_cluster && n->is.room_bytes > 0) {
        const StageMemory *m = &n->is.memory;
        double state = (m->parameters + m->gradients + m->optimizer) * (double)t->devices;
        double full = ceil(state / n->is.room_bytes);
        diag_hint("%d times as many nodes are not enough%s", MOST_TIMES, full <= (double)t->devices
                  ? "" : str_fmt("; parameters, gradients and moments alone fill about %.0f "
                                 "devices", full));
    }
    if (enough == NULL)
        return;
    const Candidate *b = &enough->best.at[0];
    diag_hint("%s of %s (nodes = %.0f) are enough: %s, %s of %s",
              plural(enough->devices, "device"), c->cluster.name,
              enough->plan->config->cluster.nodes.v, tune_line(&b->at),
              str_bytes(b->is.memory.peak), str_bytes(n->is.room_bytes));
}
