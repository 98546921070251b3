/*
 * print_grid.c - why this grid: the links under each axis and its share of the step; the
 * chosen grid beside those that have names, all else as planned.
 *
 *     [1, p, 1]   Megatron's tensor and sequence parallelism (arXiv 2205.05198)
 *     [p, 1, 1]   FSDP's and ZeRO-3's sharding, within a stage (arXiv 2304.11277)
 *     [1, q, r]   2-D: the best of them
 *     [c, c, c]   the symmetric cube (arXiv 2105.14450)
 *     the best    of all x y z = p
 */
#include "estimate.h"
#include "json.h"
#include "network.h"
#include "print.h"

/* ---- axes and their links ---------------------------------------------------------------- */

const char *const mesh_axis_word[MESH_AXES] = { "stage", "data", "x", "y", "z" };
static const TimePart axis_part[MESH_AXES] = {
    PART_PIPELINE, PART_DATA, PART_X, PART_Y, PART_Z
};

/* Seconds of calls over this axis, of a rank of the stage that ends last. Calls over several axes
 * count for the last of them: the stage's grid is priced so too. */
static double axis_seconds(const NetUses *uses, int axis)
{
    double sum = 0;
    for (int i = 0; i < uses->n; i++) {
        int at = 0;
        for (int k = 0; k < MESH_AXES; k++)
            if (strstr(uses->at[i].axis, mesh_axis_word[k]))
                at = k;
        if (strstr(uses->at[i].axis, "data"))
            at = MESH_DATA;
        sum += at == axis ? uses->at[i].seconds : 0;
    }
    return sum;
}

static const char *share_text(double part, double step)
{
    return part > 0 ? str_fmt("%.1f %%", 100 * part / step) : "-";
}

void print_axis_links(const Pipeline *q, FILE *f)
{
    static const char *const head[] = { "axis", "size", "stride", "busy", "of the step",
                                        "waited for", "links" };
    const Mesh *m = &q->cost->mesh;
    NetUses uses = network_uses(q->plan, q, q->sim.last, false);
    Table t = { .align = "lrrrrrl" };
    if (m->ranks == 1)
        return;
    for (int i = 0; i < 7; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i < MESH_AXES; i++) {
        Links l = network_links(&q->cost->prices, m, i);
        double busy = axis_seconds(&uses, i);
        if (m->size[i] == 1)
            continue;
        table_cell(&t, "%s", mesh_axis_word[i]);
        table_cell(&t, "%d", m->size[i]);
        table_cell(&t, "%d", m->stride[i]);
        table_cell(&t, "%s", busy > 0 ? str_seconds(busy) : "-");
        table_cell(&t, "%s", share_text(busy, q->closed->step_s));
        table_cell(&t, "%s", share_text(q->closed->part[axis_part[i]], q->closed->step_s));
        table_cell(&t, "%s", q->cost->prices.cores ? "memory of this machine"
                                                   : network_links_text(&l));
    }
    print_heading(f, "links under each axis; its transfers as if alone, and what of the step waits "
                     "for them");
    table_print(&t, f);
}

void json_axis(Json *j, const Plan *p, const Mesh *m, int axis)
{
    const Pipeline *q = p->pipeline;
    bool known = q && p->config->has_cluster && m->size[axis] > 1;
    Links l = { 0 };
    NetUses uses = { 0 };
    if (known)
        l = network_links(&q->cost->prices, m, axis);
    if (q)
        uses = network_uses(p, q, q->sim.last, false);
    json_begin(j, NULL, '{');
    json_text(j, "name", mesh_axis_word[axis]);
    json_integer(j, "size", m->size[axis]);
    json_integer(j, "stride", m->stride[axis]);
    json_text(j, "link", !known ? NULL : l.spine ? "spine" : l.crosses ? "network" : "link");
    if (known && l.crosses)
        json_real(j, "groups_per_port", (double)l.groups / (l.ports > 0 ? l.ports : 1));
    else
        json_null(j, "groups_per_port");
    if (q) {
        json_real(j, "busy_s", axis_seconds(&uses, axis));
        json_real(j, "waited_s", q->closed->part[axis_part[axis]]);
    }
    json_end(j, '}');
}

/* ---- grids -------------------------------------------------------------------------------- */

typedef struct {
    const char *family;
    int x, y, z;                    // 0: there is none
    Reject reject;
    Estimate of;                    // LEGAL and REJECT_MEMORY
} Grid;
typedef struct {
    int ranks, legal, tried;        // of all grids
    Grid chosen, best;
    VEC(Grid) named;
} Grids;

static Grid grid_of(Estimator *e, Point at, const char *family, int x, int y, int z)
{
    Grid g = { .family = family, .x = x, .y = y, .z = z };
    at.x = x;
    at.y = y;
    at.z = z;
    g.reject = estimate_legal(e, &at);
    if (g.reject == LEGAL)
        g.reject = estimate(e, &at, &g.of);
    return g;
}

static bool is_better(const Grid *a, const Grid *b)
{
    return a->reject == LEGAL && (b->x == 0 || b->reject != LEGAL || a->of.step_s < b->of.step_s);
}

/* What follows from a grid is chosen anew for each, also where the plan pins it: the printed
 * block does, and says the same as the plan it was printed from. */
static const Plan *unpinned(const Plan *p)
{
    Config *c = NEW(Config);
    Plan *q = NEW(Plan);
    *c = *p->config;
    *q = *p;
    c->plan.attention = c->plan.rows = c->plan.keep = c->plan.vectors = (Word){ 0 };
    c->plan.logits_chunk = (Num){ 0 };
    c->plan.turns.n = 0;
    q->config = c;
    return q;
}

static Grid chosen_grid(const Plan *p, Point at)
{
    Estimator *e = estimator_new(p, p->pipeline->turns_only);
    Grid g = grid_of(e, at, "chosen", p->is.x, p->is.y, p->is.z);
    estimator_free(e);
    return g;
}

static bool same_grid(const Grid *a, const Grid *b)
{
    return a->x == b->x && a->y == b->y && a->z == b->z;
}

static void add_named(Grids *g, Grid a)
{
    if (same_grid(&a, &g->chosen)) {
        const char *family = a.family;
        a = g->chosen;
        a.family = family;
    }
    vec_add(&g->named, a);
}

static Grids *grids_of(const Plan *p)
{
    const Choices *is = &p->is;
    Grids *g = NEW(Grids);
    Point at = point_of(p);
    Estimator *e = estimator_new(unpinned(p), p->pipeline->turns_only);
    Grid flat = { .family = "2-D" };
    int n = g->ranks = is->x * is->y * is->z, side = (int)lround(cbrt(n));
    g->chosen = chosen_grid(p, at);
    g->best = g->chosen;
    for (int x = 1; x <= n; x++)
        for (int y = 1; n % x == 0 && y <= n / x; y++) {
            if (n / x % y != 0)
                continue;
            Grid a = grid_of(e, at, "the best", x, y, n / x / y);
            if (same_grid(&a, &g->chosen))
                a = g->chosen;
            g->tried++;
            g->legal += a.reject == LEGAL;
            if (is_better(&a, &g->best))
                g->best = a;
            if (x == 1 && y > 1 && y < n && (flat.x == 0 || is_better(&a, &flat))) {
                flat = a;
                flat.family = "2-D";
            }
        }
    Grid cube = { .family = "symmetric cube" };
    if (side * side * side == n)
        cube = grid_of(e, at, cube.family, side, side, side);
    add_named(g, grid_of(e, at, "Megatron", 1, n, 1));
    add_named(g, grid_of(e, at, "FSDP", n, 1, 1));
    add_named(g, flat);
    add_named(g, cube);
    g->best.family = "the best";
    estimator_free(e);
    return g;
}

static const char *why_not(const Grid *g, int ranks)
{
    if (g->x == 0)
        return str_fmt("%d ranks make none", ranks);
    if (g->reject == REJECT_MEMORY)
        return str_fmt("does not fit: %s of %s [memory-fits]", str_bytes(g->of.memory.peak),
                       str_bytes(g->of.room_bytes));
    return str_fmt("refused: %s [%s]", reject_text[g->reject], reject_word[g->reject]);
}

static void grid_row(const Grids *all, const Grid *g, Table *t)
{
    bool chosen = same_grid(g, &all->chosen) && g->x > 0;
    const Estimate *of = &g->of;
    bool priced = g->x > 0 && (g->reject == LEGAL || g->reject == REJECT_MEMORY);
    table_cell(t, "%s", g->family);
    table_cell(t, "%s", g->x ? str_fmt("[%d, %d, %d]", g->x, g->y, g->z) : "-");
    table_cell(t, "%s", priced ? str_seconds(of->step_s) : "-");
    table_cell(t, "%s", chosen || !priced ? "-"
               : str_fmt("%+.1f %%", 100 * (of->step_s / all->chosen.of.step_s - 1)));
    for (int i = PART_X; i <= PART_Z; i++)
        table_cell(t, "%s", priced && of->part[i] > 0 ? str_seconds(of->part[i]) : "-");
    table_cell(t, "%s", priced ? str_bytes(of->memory.peak) : "-");
    table_cell(t, "%s", chosen ? "chosen" : g->x && g->reject == LEGAL ? "-"
               : why_not(g, all->ranks));
}

void print_grids(const Plan *p, FILE *f)
{
    static const char *const head[] = { "grid", "x, y, z", "step", "against the chosen", "x", "y",
                                        "z", "memory", "note" };
    if (p->is.x * p->is.y * p->is.z == 1)
        return;
    Grids *g = grids_of(p);
    Table t = { .align = "llrrrrrrl" };
    for (int i = 0; i < 9; i++)
        table_cell(&t, "%s", head[i]);
    bool named = false;
    for (int i = 0; i < g->named.n; i++)
        named |= same_grid(&g->named.at[i], &g->chosen);
    if (!named)
        grid_row(g, &g->chosen, &t);
    for (int i = 0; i < g->named.n; i++)
        grid_row(g, &g->named.at[i], &t);
    grid_row(g, &g->best, &t);
    print_heading(f, str_fmt("grids of %d ranks, all else as planned: the step in closed form, and "
                             "what of it waits for each axis", g->ranks));
    table_print(&t, f);
    fprintf(f, "  %d of %d grids can be laid out and fit%s\n", g->legal, g->tried,
            same_grid(&g->best, &g->chosen) && g->best.reject == LEGAL
            ? "; the chosen one is the fastest" : "");
}

void json_grids(Json *j, const Plan *p)
{
    json_begin(j, "grids", '[');
    Grids *g = p->is.x * p->is.y * p->is.z > 1 ? grids_of(p) : NULL;
    for (int i = -1; g && i <= g->named.n; i++) {
        const Grid *a = i < 0 ? &g->chosen : i < g->named.n ? &g->named.at[i] : &g->best;
        json_begin(j, NULL, '{');
        json_text(j, "grid", a->family);
        if (a->x > 0) {
            json_begin(j, "cube", '[');
            json_integer(j, NULL, a->x);
            json_integer(j, NULL, a->y);
            json_integer(j, NULL, a->z);
            json_end(j, ']');
        } else
            json_null(j, "cube");
        json_text(j, "rejected", a->x == 0 || a->reject == LEGAL ? NULL : reject_word[a->reject]);
        if (a->of.step_s > 0)
            json_real(j, "step_s", a->of.step_s);
        else
            json_null(j, "step_s");
        json_end(j, '}');
    }
    json_end(j, ']');
}
