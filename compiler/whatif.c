/*
 * whatif.c - `simulate --slow rank=17:1.2 --network 0.5`: the same plan on a machine that is
 * slower somewhere, term by term beside the machine as given.
 *
 * Plan, turns and slices stay as they are. A slow rank takes so many times as long for what it
 * computes (passes and optimizer); the ranks of its stage and replica meet it in their
 * collectives and wait, so the whole stage is that slow. Replicas meet at the end of the
 * step: the replica whose step is longest is shown.
 *
 * Known lies: what a full recompute sends again is slowed like what it computes; a replica
 * that waits for a slower one is not shown; collectives keep the algorithm they had.
 */
#include <ctype.h>

#include "diag.h"
#include "json.h"
#include "network.h"
#include "options.h"
#include "print.h"
#include "sides.h"

typedef struct { const char *text; int rank; double factor; } Slow;     // rank: of the plan
typedef VEC(Slow) Slows;

/* ---- options -------------------------------------------------------------------------- */

static double factor_of(const char *option, const char *word, const char *text, double least)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= least) || v > 1e6 || !isfinite(v))
        die(EXIT_USAGE, "%s %s: `%s` is no factor from %g to 1e6", option, word, text, least);
    return v;
}

/* "rank=17:1.2", "node=2:1.1" (all its ranks). */
static void read_slow(Slows *all, const char *word, const Pipeline *q)
{
    const Prices *w = &q->cost->prices;
    bool rank = strncmp(word, "rank=", 5) == 0, node = strncmp(word, "node=", 5) == 0;
    const char *colon = strchr(word, ':');
    int per = rank ? 1 : w->per_node, ranks = plan_ranks(q->plan), n = 0;
    int have = (ranks + per - 1) / per;
    if ((!rank && !node) || colon == NULL || colon == word + 5 || colon - word > 12)
        die(EXIT_USAGE, "--slow takes rank=N:FACTOR or node=N:FACTOR, not `%s`", word);
    for (const char *s = word + 5; s < colon; s++) {
        if (!isdigit((unsigned char)*s))
            die(EXIT_USAGE, "--slow takes rank=N:FACTOR or node=N:FACTOR, not `%s`", word);
        n = 10 * n + (*s - '0');
    }
    double factor = factor_of("--slow", word, colon + 1, 1);
    if (n >= have)
        die(EXIT_USAGE, "--slow %s: the plan has %s, the last is %d", word,
            plural(have, rank ? "rank" : "node"), have - 1);
    for (int i = 0; i < all->n; i++)
        if (strncmp(all->at[i].text, word, (size_t)(colon - word) + 1) == 0)
            die(EXIT_USAGE, "--slow %s and --slow %s: one factor for each", all->at[i].text, word);
    for (int i = n * per; i < (n + 1) * per && i < ranks; i++) {
        Slow s = { word, i, factor };
        vec_add(all, s);
    }
}

static int coordinate(const Mesh *m, int axis, int rank)
{
    return rank / m->stride[axis] % m->size[axis];
}

/* ---- the slower machine --------------------------------------------------------------- */

/* Scales the rates of links in nodes or between them. What there was, in words. */
static void scale(Num *rate, double factor)
{
    if (rate->set)
        rate->v *= factor;
}

static void scale_network(Config *c, double network, double link)
{
    scale(&c->cluster.network_rate, network);
    scale(&c->cluster.spine_rate, network);
    scale(&c->cluster.link_rate, link);
}

/* Seconds of the stages of one replica, each stage as slow as its slowest rank. */
static Timing slowed(const Pipeline *q, const Slows *slow, int replica)
{
    Timing t = q->timing;
    int P = q->P, n = P * q->v * q->schedule.k;
    Seconds *f = NEWN(Seconds, n), *b = NEWN(Seconds, n);
    double *update = NEWN(double, P), *factor = NEWN(double, P);
    for (int r = 0; r < P; r++)
        factor[r] = 1;
    for (int i = 0; i < slow->n; i++) {
        const Slow *s = &slow->at[i];
        int stage = coordinate(&q->cost->mesh, MESH_STAGE, s->rank);
        if (coordinate(&q->cost->mesh, MESH_DATA, s->rank) == replica && s->factor > factor[stage])
            factor[stage] = s->factor;
    }
    for (int i = 0; i < n; i++) {
        double by = factor[i / q->schedule.k % P];
        f[i] = t.forward[i];
        b[i] = t.backward[i];
        f[i].compute *= by;
        b[i].compute *= by;
        b[i].recompute *= by;
    }
    for (int r = 0; r < P; r++)
        update[r] = t.update[r] * factor[r];
    t.forward = f;
    t.backward = b;
    t.update = update;
    return t;
}

static Simulation slow_step(const Pipeline *q, const Slows *slow, int *replica)
{
    Simulation longest = { 0 };
    for (int d = 0; d < q->plan->is.data; d++) {
        Timing t = slowed(q, slow, d);
        Simulation s = simulate_run(&t, false);
        if (d == 0 || s.step_s > longest.step_s) {
            longest = s;
            *replica = d;
        }
        if (slow->n == 0)
            break;
    }
    return longest;
}

/* ---- printing ------------------------------------------------------------------------- */

static const char *rate_of(double rate, double factor)
{
    return str_fmt("%s/s -> %s/s", str_bytes(rate), str_bytes(rate * factor));
}

static void print_slow(const Pipeline *q, const Slows *slow, FILE *f)
{
    const Mesh *m = &q->cost->mesh;
    for (int i = 0; i < slow->n; i++) {
        const Slow *s = &slow->at[i];
        if (i > 0 && slow->at[i - 1].text == s->text)       // a node's ranks
            continue;
        int last = i;
        while (last + 1 < slow->n && slow->at[last + 1].text == s->text)
            last++;
        if (last > i)
            fprintf(f, "  slow      ranks %d to %d compute %g times as long\n", s->rank,
                    slow->at[last].rank, s->factor);
        else
            fprintf(f, "  slow      rank %d computes %g times as long: stage %d, data %d, x %d, y "
                    "%d, z %d; its stage waits for it\n", s->rank, s->factor,
                    coordinate(m, MESH_STAGE, s->rank), coordinate(m, MESH_DATA, s->rank),
                    coordinate(m, MESH_X, s->rank), coordinate(m, MESH_Y, s->rank),
                    coordinate(m, MESH_Z, s->rank));
    }
}

/* How much of the longer work of the stages the step does not feel. */
static void print_absorbed(const Pipeline *q, const Simulation *a, const Simulation *b, FILE *f)
{
    if (q->P == 1)
        return;
    double most = 0;
    int stage = 0;
    for (int r = 0; r < q->P; r++)
        if (b->busy[r] - a->busy[r] > most) {
            most = b->busy[r] - a->busy[r];
            stage = r;
        }
    double longer = b->step_s - a->step_s, hidden = most > longer ? most - longer : 0;
    fprintf(f, "  idle      %.1f %% -> %.1f %% of all stages' time", 100 * a->bubble,
            100 * b->bubble);
    if (most > 1e-9 * a->step_s)        // less is rounding
        fprintf(f, "; stage %d is at work %s longer, of which %.0f %% disappear in waiting", stage,
                str_seconds(most), 100 * hidden / most);
    fprintf(f, "\n");
}

static void put_uses(SideTable *t, int side, const Pipeline *q)
{
    NetUses uses = network_uses(q->plan, q, q->sim.last, true);
    for (int i = 0; i < uses.n; i++) {
        const NetUse *u = &uses.at[i];
        const char *name = str_fmt("%s over %s", coll_word[u->coll], u->axis);
        SideRow *r = side_row(t, name);
        side_put(t, side, name, r->value[side] + u->seconds);
    }
}

static void json_table(Json *j, const SideTable *t)
{
    json_begin(j, t->key, '{');
    for (int i = 0; i < t->rows.n; i++) {
        json_begin(j, t->rows.at[i].name, '{');
        json_real(j, "before_s", t->rows.at[i].value[0]);
        json_real(j, "after_s", t->rows.at[i].value[1]);
        json_end(j, '}');
    }
    json_end(j, '}');
}

static void json_all(const Simulation *a, const Simulation *b, int replica, const SideTable *parts,
                     const SideTable *net, FILE *f)
{
    Json json = { f, true, 1 }, *j = &json;
    fputc('{', f);
    json_integer(j, "schema", 1);
    json_begin(j, "step_s", '{');
    json_real(j, "before", a->step_s);
    json_real(j, "after", b->step_s);
    json_end(j, '}');
    json_integer(j, "replica", replica);
    json_table(j, parts);
    json_table(j, net);
    json_end(j, '}');
    fputc('\n', f);
}

/* ---- the command ------------------------------------------------------------------------ */

static void check_network(const Compile *c, bool network)
{
    const Cluster *k = &c->config->cluster;
    const char *option = network ? "--network" : "--link";
    if (!c->config->has_cluster)
        die(EXIT_USAGE, "%s scales the links of a cluster, and the files have none", option);
    if (network ? !k->network_rate.set : !k->link_rate.set)
        die(EXIT_USAGE, "%s: cluster %s has no `%s`", option, k->name, option + 2);
}

bool whatif_asked(const Options *o) { return o->slow.n > 0 || o->network || o->link; }

/* q: the plan on the machine as given. */
void whatif_print(Compile *c, const Pipeline *q, FILE *f)
{
    const Options *o = c->o;
    Slows slow = { 0 };
    double network = 1, link = 1;
    for (int i = 0; i < o->slow.n; i++)
        read_slow(&slow, o->slow.at[i], q);
    if (o->network) {
        check_network(c, true);
        network = factor_of("--network", "FACTOR", o->network, 1e-6);
    }
    if (o->link) {
        check_network(c, false);
        link = factor_of("--link", "FACTOR", o->link, 1e-6);
    }
    const Cluster k = c->config->cluster;           // as given
    scale_network((Config *)c->config, network, link);
    const Pipeline *again = network != 1 || link != 1 ? pipeline_again(q) : q;
    int replica = 0;
    Simulation before = q->sim, after = slow_step(again, &slow, &replica);
    SideTable parts = { .key = "breakdown_s", .show = SHOW_SECONDS, .title = before.last ==
                        after.last ? "where the step goes, on the stage that ends last"
                        : str_fmt("where the step goes, on the stage that ends last: %d, then %d",
                                  before.last, after.last) };
    SideTable net = { .key = "collectives_s", .title = "collectives of a rank in a step, whether "
                      "hidden or not", .show = SHOW_SECONDS };
    for (int i = 0; i < PARTS; i++)
        if (before.part[i] > 0 || after.part[i] > 0) {
            side_put(&parts, 0, part_word[i], before.part[i]);
            side_put(&parts, 1, part_word[i], after.part[i]);
        }
    if (again != q) {
        put_uses(&net, 0, q);
        put_uses(&net, 1, again);
    }
    if (o->json) {
        json_all(&before, &after, replica, &parts, &net, f);
        return;
    }
    const char *by = side_change(SHOW_SECONDS, before.step_s, after.step_s);
    fprintf(f, "%s: %s on %s\n", c->plan->model_name ? c->plan->model_name : "model",
            plan_line(c->plan), plural(plan_ranks(c->plan), "rank"));
    print_slow(q, &slow, f);
    if (o->network)
        fprintf(f, "  network   %s a port\n", rate_of(k.network_rate.v, network));
    if (o->link)
        fprintf(f, "  link      %s a device\n", rate_of(k.link_rate.v, link));
    fprintf(f, "  step      %s -> %s%s%s\n", str_seconds(before.step_s), str_seconds(after.step_s),
            *by ? ", " : "", *by ? by : ": nothing changes");
    if (c->plan->is.data > 1 && slow.n > 0)
        fprintf(f, "  replica   %d is the slowest; the others wait for it\n", replica);
    print_absorbed(q, &before, &after, f);
    side_print(&parts, "as given", "then", "change", f);
    side_print(&net, "as given", "then", "change", f);
}
