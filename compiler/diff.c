/*
 * diff.c - `teracube diff`: two plans side by side, what changed first.
 *
 *     diff A.tcube B.tcube               two files, each with all it needs
 *     diff COMMON.tcube... A B           files before the last two belong to both
 *     diff [COMMON... --] A... -- B...   sides of several files, or of settings: a --set belongs
 *                                        to where it stands, before the first file to both
 *     diff FILE... --plan P,Q            two plan blocks of the same files
 *
 * Both are laid out where both can be; else both are compared as priced on paper.
 */
#include "commands.h"
#include "json.h"
#include "network.h"
#include "print.h"
#include "sides.h"

typedef struct { const char *name; Inputs in; Compile c; Plan *p; Pipeline *q; } Side;

/* ---- the command line ------------------------------------------------------------ */

static const char *words_of(const char *const *files, int n)
{
    Text t = { 0 };
    for (int i = 0; i < n; i++)
        text_add(&t, "%s%s", i ? " " : "", files[i]);
    return str_of(t.at ? t.at : "", t.n);
}

/* `common` words first, then those from `first` to `end`. */
static const char **pick(const char *const *all, int common, int first, int end)
{
    int n = common + end - first;
    const char **at = NEWN(const char *, n + 1);
    for (int i = 0; i < n; i++)
        at[i] = all[i < common ? i : first + i - common];
    return at;
}

/* Files and settings of a side: those before `common`, and its own. */
static void side_inputs(Side *s, const Inputs *in, Place common, Place first, Place end)
{
    int own = end.files - first.files, sets = end.sets - first.sets;
    s->in.files = pick(in->files, common.files, first.files, end.files);
    s->in.nfiles = common.files + own;
    s->in.sets = pick(in->sets, common.sets, first.sets, end.sets);
    s->in.nsets = common.sets + sets;
    s->name = words_of(s->in.files + common.files, own);
    for (int i = 0; i < sets; i++)
        s->name = str_fmt("%s%s--set %s", s->name, *s->name ? " " : "", in->sets[first.sets + i]);
    if (own + sets == 0 || s->in.nfiles == 0)
        die(EXIT_USAGE, "diff needs a file on each side of `--`; or a --set, behind common files: "
            "COMMON... -- --set K=A -- --set K=B");
}

/* The two names of --plan, or of the blocks where there are just two. */
static bool plan_names(const Compile *c, const char *name[2])
{
    const Inputs *in = &c->o->in;
    if (in->plan) {
        const char *comma = strchr(in->plan, ',');
        if (comma == NULL)
            return false;
        name[0] = str_of(in->plan, (size_t)(comma - in->plan));
        name[1] = str(comma + 1);
        if (strchr(comma + 1, ',') || !*name[0] || !*name[1])
            die(EXIT_USAGE, "diff compares two plans, not --plan %s", in->plan);
        return true;
    }
    if (in->nfiles != 1 || c->o->nsplits > 0)
        return false;
    Inputs all = *in;
    all.many_plans = true;
    const Config *config = config_of(c->o, &all);
    if (config == NULL)
        exit(diag_status());
    if (config->plans.n != 2)
        die(EXIT_USAGE, "diff compares two plans, and %s has %s; name two files, or two of its "
            "plans with --plan A,B", in->files[0], config->plans.n == 1 ? "one"
            : str_fmt("%d", config->plans.n));
    for (int i = 0; i < 2; i++)
        name[i] = config->plans.at[i].name;
    if (!name[0] || !name[1])
        die(EXIT_USAGE, "the two plans of %s need names", in->files[0]);
    return true;
}

static void find_sides(const Compile *c, Side side[2])
{
    const Options *o = c->o;
    const Inputs *in = &o->in;
    const char *name[2] = { NULL, NULL };
    bool named = plan_names(c, name);
    Place end = { in->nfiles, in->nsets };
    side[0].in = side[1].in = *in;
    if (o->nsplits > 2)
        die(EXIT_USAGE, "diff takes at most two `--`: COMMON... -- A... -- B...");
    if (o->nsplits > 0) {
        Place common = o->nsplits == 2 ? o->split[0] : o->first, cut = o->split[o->nsplits - 1];
        side_inputs(&side[0], in, common, common, cut);
        side_inputs(&side[1], in, common, cut, end);
    } else if (named)
        side[0].name = side[1].name = "";
    else {
        Place common = { in->nfiles - 2, in->nsets };
        for (int i = 0; i < 2; i++)
            side_inputs(&side[i], in, common, (Place){ common.files + i, in->nsets },
                        (Place){ common.files + i + 1, in->nsets });
    }
    for (int i = 0; i < 2 && named; i++) {
        side[i].in.plan = name[i];
        side[i].name = *side[i].name ? str_fmt("%s, plan %s", side[i].name, name[i])
                                     : str_fmt("plan %s", name[i]);
    }
}

/* false: errors were reported. */
static bool load(const Compile *c, Side *s)
{
    const Config *config = config_of(c->o, &s->in);
    if (config == NULL)
        return false;
    s->c = (Compile){ .o = c->o, .config = config, .start = c->start };
    if (!compile_priced(&s->c))
        return false;
    s->p = s->c.plan;
    s->q = s->p->pipeline;
    return true;
}

/* ---- what is compared -------------------------------------------------------------- */

static void put_model(SideTable *of, int i, const Side *s)
{
    const Config *c = s->p->config;
    side_text(of, i, "model", s->p->model_name ? s->p->model_name : "-");
    side_text(of, i, "parameters", str_fmt("%" PRId64, print_parameters(s->p)));
    side_text(of, i, "turns", str_fmt("%d", s->p->layers));
    side_text(of, i, "batch", str_fmt("%" PRId64, s->p->is.batch));
    side_text(of, i, "sequence", str_fmt("%" PRId64, s->p->is.sequence));
    side_text(of, i, "precision", precision_word[s->p->is.precision]);
    side_text(of, i, "cluster", c->has_cluster ? c->cluster.name : "this machine");
    side_text(of, i, "devices", str_fmt("%d", plan_ranks(s->p)));
}

static void put_layout(SideTable *of, int i, const Side *s)
{
    PlanKeys keys = print_plan_keys(s->p);
    for (int k = 0; k < keys.n; k++)
        side_text(of, i, keys.at[k].key, keys.at[k].value);
}

static void put_time(SideTable *of, int i, const Side *s)
{
    for (int k = 0; k < PARTS; k++)
        if (s->q->closed->part[k] > 0)
            side_put(of, i, part_word[k], s->q->closed->part[k]);
}

static int worst_stage(const Side *s, bool on_paper)
{
    int worst = 0;
    for (int r = 1; r < s->q->P; r++)
        if (on_paper ? s->q->memory[r].peak > s->q->memory[worst].peak
            : plan_stage(s->p, r)->block_bytes > plan_stage(s->p, worst)->block_bytes)
            worst = r;
    return worst;
}

static void put_some(SideTable *of, int i, const char *name, double bytes)
{
    if (bytes > 0)
        side_put(of, i, name, bytes);
}

static void put_memory(SideTable *of, int i, const Side *s, bool on_paper)
{
    int r = worst_stage(s, on_paper);
    if (!on_paper) {
        const Plan *p = plan_stage(s->p, r);
        Peak peak = print_peak(p);
        for (int k = 0; k < BUF_CLASSES; k++)
            put_some(of, i, buf_class_word[k], (double)peak.bytes[k]);
        put_some(of, i, "keys/values", (double)peak.keys_values);
        put_some(of, i, "gaps", (double)(p->block_bytes - peak.sum));
        side_put(of, i, "peak", (double)p->block_bytes);
        side_row(of, "peak")->is_sum = true;
        return;
    }
    const StageMemory *m = &s->q->memory[r];
    put_some(of, i, "parameters", m->parameters);
    put_some(of, i, "gradients", m->gradients);
    put_some(of, i, "optimizer", m->optimizer);
    put_some(of, i, "activations", m->activations);
    put_some(of, i, "keys/values", m->keys_values);
    put_some(of, i, "logits", m->logits);
    put_some(of, i, "workspace", m->workspace);
    side_put(of, i, "peak", m->peak);
    side_row(of, "peak")->is_sum = true;
}

/* ---- collectives ------------------------------------------------------------------- */

typedef struct { NetUse of[2]; bool has[2]; } Pair;
typedef VEC(Pair) Pairs;

static void put_network(Pairs *all, int i, const Side *s, bool on_paper)
{
    NetUses uses = network_uses(s->p, s->q, s->q->sim.last, on_paper);
    for (int k = 0; k < uses.n; k++) {
        const NetUse *u = &uses.at[k];
        int at = 0;
        while (at < all->n) {
            const Pair *e = &all->at[at];
            const NetUse *x = &e->of[e->has[0] ? 0 : 1];
            if (!e->has[i] && x->coll == u->coll && strcmp(x->axis, u->axis) == 0)
                break;
            at++;
        }
        if (at == all->n)
            vec_add(all, (Pair){ 0 });
        all->at[at].of[i] = *u;
        all->at[at].has[i] = true;
    }
}

static bool pair_same(const Pair *e)
{
    const NetUse *a = &e->of[0], *b = &e->of[1];
    return e->has[0] && e->has[1] && a->size == b->size && side_alike(a->calls, b->calls) &&
           side_alike(a->bytes, b->bytes) && side_alike(a->seconds, b->seconds);
}

static int by_seconds(const void *a, const void *b)
{
    const Pair *x = a, *y = b;
    double d = fabs(x->of[1].seconds - x->of[0].seconds);
    double e = fabs(y->of[1].seconds - y->of[0].seconds);
    return (d < e) - (d > e);
}

static const NetUse *either(const Pair *e) { return &e->of[e->has[0] ? 0 : 1]; }

/* "8 in 2.1 GB, 31 ms": calls, bytes, seconds. */
static void use_cells(Table *t, const Pair *e, int side)
{
    const NetUse *u = &e->of[side];
    table_cell(t, "%s", e->has[side] ? str_fmt("%" PRId64, u->size) : "-");
    table_cell(t, "%s", e->has[side] ? str_fmt("%.0f", u->calls) : "-");
    table_cell(t, "%s", e->has[side] ? str_bytes(u->bytes) : "-");
    table_cell(t, "%s", e->has[side] ? str_seconds(u->seconds) : "-");
}

static void print_network(Pairs *all, const Side side[2], FILE *f)
{
    static const char *const head[] = { "", "ranks", "calls", "bytes", "a: time", "ranks", "calls",
                                        "bytes", "b: time", "b - a" };
    Table t = { .align = "lrrrrrrrrr" };
    Text same = { 0 };
    int changed = 0, nsame = 0;
    vec_sort(*all, by_seconds);
    for (int i = 0; i < 10; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i < all->n; i++) {
        const Pair *e = &all->at[i];
        const char *name = str_fmt("%s over %s", coll_word[either(e)->coll], either(e)->axis);
        if (pair_same(e)) {
            text_add(&same, "%s%s", nsame++ ? ", " : "", name);
            continue;
        }
        changed++;
        table_cell(&t, "%s", name);
        use_cells(&t, e, 0);
        use_cells(&t, e, 1);
        table_cell(&t, "%s", side_change(SHOW_SECONDS, e->of[0].seconds, e->of[1].seconds));
    }
    if (all->n == 0)
        return;
    print_heading(f, str_fmt("collectives of a rank in a step: received (send: sent), priced "
        "whether hidden or not%s", side[0].q->P * side[1].q->P == 1 ? ""
        : "; of the stage that ends last"));
    if (changed)
        table_print(&t, f);
    if (nsame)
        fprintf(f, "  unchanged: %.*s\n", (int)same.n, same.at);
}

/* ---- printing ---------------------------------------------------------------------- */

enum { MODEL, LAYOUT, TIME, MEMORY, NPARTS };

static void count_changes(const SideTable part[NPARTS], const Pairs *net, int *changed, int *same)
{
    for (int i = 0; i < NPARTS; i++)
        for (int k = 0; k < part[i].rows.n; k++)
            ++*(side_same(&part[i].rows.at[k]) ? same : changed);
    for (int k = 0; k < net->n; k++)
        ++*(pair_same(&net->at[k]) ? same : changed);
}

static void print_sides(const Side side[2], const SideTable part[NPARTS], Pairs *net, FILE *f)
{
    double a = side[0].q->closed->step_s, b = side[1].q->closed->step_s;
    int changed = 0, same = 0;
    for (int i = 0; i < 2; i++)
        fprintf(f, "%c  %s: %s\n", 'a' + i, side[i].name, plan_line(side[i].p));
    if (side_alike(a, b))
        fprintf(f, "   step %s in both\n", str_seconds(a));
    else
        fprintf(f, "   step %s -> %s, %s: %c is faster\n", str_seconds(a), str_seconds(b),
                side_change(SHOW_SECONDS, a, b), b < a ? 'b' : 'a');
    count_changes(part, net, &changed, &same);
    fprintf(f, "   %s changed, %d unchanged\n", plural(changed, "figure"), same);
    bool other = false;
    for (int i = 0; i < part[MODEL].rows.n; i++)
        other |= !side_same(&part[MODEL].rows.at[i]);
    if (other)
        side_print(&part[MODEL], "a", "b", "b - a", f);
    side_print(&part[LAYOUT], "a", "b", "b - a", f);
    side_print(&part[TIME], "a", "b", "b - a", f);
    print_network(net, side, f);
    side_print(&part[MEMORY], "a", "b", "b - a", f);
}

static void json_row(Json *j, const SideTable *p, const SideRow *r)
{
    json_begin(j, r->name, '{');
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "b" : "a";
        if (!r->has[i])
            json_null(j, name);
        else if (p->show == SHOW_TEXT)
            json_text(j, name, r->text[i]);
        else
            json_real(j, name, r->value[i]);
    }
    json_end(j, '}');
}

static void json_use(Json *j, const char *name, const Pair *e, int side)
{
    const NetUse *u = &e->of[side];
    if (!e->has[side]) {
        json_null(j, name);
        return;
    }
    json_begin(j, name, '{');
    json_integer(j, "group_size", u->size);
    json_real(j, "calls", u->calls);
    json_real(j, "bytes", u->bytes);
    json_real(j, "seconds", u->seconds);
    json_end(j, '}');
}

static void json_sides(const Side side[2], const SideTable part[NPARTS], const Pairs *net,
                       bool on_paper, FILE *f)
{
    Json json = { f, true, 1 }, *j = &json;
    int changed = 0, same = 0;
    count_changes(part, net, &changed, &same);
    fputc('{', f);
    json_integer(j, "schema", 1);
    json_text(j, "a", side[0].name);
    json_text(j, "b", side[1].name);
    json_text(j, "compared", on_paper ? "on paper" : "laid out");
    json_integer(j, "changed", changed);
    json_integer(j, "unchanged", same);
    json_begin(j, "step_s", '{');
    json_real(j, "a", side[0].q->closed->step_s);
    json_real(j, "b", side[1].q->closed->step_s);
    json_end(j, '}');
    for (int i = 0; i < NPARTS; i++) {
        json_begin(j, part[i].key, '{');
        for (int k = 0; k < part[i].rows.n; k++)
            json_row(j, &part[i], &part[i].rows.at[k]);
        json_end(j, '}');
    }
    json_begin(j, "collectives", '[');
    for (int k = 0; k < net->n; k++) {
        json_begin(j, NULL, '{');
        json_text(j, "kind", coll_word[either(&net->at[k])->coll]);
        json_text(j, "axes", either(&net->at[k])->axis);
        json_use(j, "a", &net->at[k], 0);
        json_use(j, "b", &net->at[k], 1);
        json_end(j, '}');
    }
    json_end(j, ']');
    json_end(j, '}');
    fputc('\n', f);
}

int command_diff(Compile *c)
{
    Side side[2] = { { 0 }, { 0 } };
    find_sides(c, side);
    for (int i = 0; i < 2; i++)
        if (!load(c, &side[i])) {
            fprintf(stderr, "note: this is %c, %s\n", 'a' + i, side[i].name);
            return EXIT_INPUT;
        }
    bool on_paper = side[0].p->insts.n == 0 || side[1].p->insts.n == 0;
    Pairs net = { 0 };
    SideTable part[NPARTS] = {
        [MODEL] = { .key = "model", .title = "model and machine", .show = SHOW_TEXT },
        [LAYOUT] = { .key = "layout", .title = "layout", .show = SHOW_TEXT },
        [TIME] = { .key = "breakdown_s", .title = "where the step goes", .show = SHOW_SECONDS },
        [MEMORY] = { .key = "memory", .title = on_paper
                     ? "memory of a rank of the fullest stage, estimated on paper"
                     : "memory of a rank of the fullest stage", .show = SHOW_BYTES },
    };
    for (int i = 0; i < 2; i++) {
        put_model(&part[MODEL], i, &side[i]);
        put_layout(&part[LAYOUT], i, &side[i]);
        put_time(&part[TIME], i, &side[i]);
        put_memory(&part[MEMORY], i, &side[i], on_paper);
        put_network(&net, i, &side[i], on_paper);
    }
    if (c->o->json)
        json_sides(side, part, &net, on_paper, stdout);
    else
        print_sides(side, part, &net, stdout);
    return EXIT_FINE;
}
