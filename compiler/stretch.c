/*
 * stretch.c - a section of the pipeline: the turns it has by class, its passes in seconds
 * and its bytes. Shared by the closed form (estimate.c) and the simulation (pipeline.c).
 */
#include "predict.h"

static void add_class(const Cost *c, Stretch *s, int class, bool again)
{
    if (class == NONE)
        return;
    const TurnClass *t = &c->classes.at[class];
    int recompute = c->is.recompute, kind = recompute != RECOMPUTE_FULL || again
                                          ? recompute : RECOMPUTE_NONE;
    s->saved += t->saved_bytes[kind];
    s->kv += t->kv_bytes;
    s->dkv += t->dkv_bytes;
    s->parameters += t->parameters;
    s->units += t->units;
    s->kernels[0] += t->kernels[0];
    s->kernels[1] += t->kernels[1] + (again ? t->kernels[2] : 0) +
                     (recompute == RECOMPUTE_ATTENTION ? t->nattention / 2 : 0);
    int i = 0;
    while (i < s->nclasses && s->class[i] != class)
        i++;
    if (i == s->nclasses)
        s->class[s->nclasses++] = class;
    s->count[i]++;
    s->again[i] += again;
}

/* Turns of a stage before its section i. */
static int turns_before(const Cost *c, const int *turns, int i)
{
    int sum = 0, P = c->mesh.size[MESH_STAGE];
    for (int k = i - P; k >= 0; k -= P)
        sum += turns[k];
    return sum;
}

Stretch *stretch_new(const Cost *c, int n, const int *turns)
{
    Stretch *all = NEWN(Stretch, n);
    for (int i = 0, first = 0; i < n; first += turns[i++]) {
        Stretch *t = &all[i];
        int before = turns_before(c, turns, i);
        t->first = first;
        t->turns = turns[i];
        t->class = NEWN(int, c->classes.n);
        t->count = NEWN(int, c->classes.n);
        t->again = NEWN(int, c->classes.n);
        if (i == 0)
            add_class(c, t, c->head, false);
        for (int k = 0; k < turns[i]; k++)
            add_class(c, t, c->class_of[first + k], c->is.recompute == RECOMPUTE_FULL &&
                                                    before + k < c->is.recompute_turns);
        if (i == n - 1)
            add_class(c, t, c->tail, false);
    }
    return all;
}

/* ---- passes ------------------------------------------------------------------------- */

Seconds seconds_sum(Seconds a, Seconds b, double times)
{
    return (Seconds){ a.compute + b.compute * times, a.recompute + b.recompute * times,
                      a.x + b.x * times, a.y + b.y * times, a.z + b.z * times,
                      a.data + b.data * times };
}

double seconds_total(const Seconds *s)
{
    return s->compute + s->recompute + s->x + s->y + s->z + s->data;
}

/* context > 0: only what attention adds over an empty one. */
static PassCost classes_pass(const Cost *c, const Stretch *s, double b, double l, double context)
{
    PassCost out = { 0 };
    for (int i = 0; i < s->nclasses; i++) {
        int class = s->class[i];
        if (context > 0 && c->classes.at[class].nattention == 0)
            continue;
        PassCost one = context > 0 ? cost_context(c, class, b, l, context)
                                   : cost_pass(c, class, b, l);
        out.forward = seconds_sum(out.forward, one.forward, s->count[i]);
        out.backward = seconds_sum(out.backward, one.backward, s->count[i]);
        out.backward.recompute += c->is.recompute == RECOMPUTE_FULL
            ? s->again[i] * one.again[RECOMPUTE_FULL]
            : s->count[i] * one.again[c->is.recompute];
    }
    return out;
}

PassCost stretch_base(const Cost *c, const Stretch *s, double b, double l)
{
    return classes_pass(c, s, b, l, 0);
}

PassCost stretch_context(const Cost *c, const Stretch *s, double b, double l, double context)
{
    return context > 0 ? classes_pass(c, s, b, l, context) : (PassCost){ 0 };
}

bool stretch_same_context(const Cost *c, const Stretch *s, const Stretch *t)
{
    int i = 0, j = 0;
    for (;; i++, j++) {
        while (i < s->nclasses && c->classes.at[s->class[i]].nattention == 0)
            i++;
        while (j < t->nclasses && c->classes.at[t->class[j]].nattention == 0)
            j++;
        if (i == s->nclasses || j == t->nclasses)
            return i == s->nclasses && j == t->nclasses;
        if (s->class[i] != t->class[j] || s->count[i] != t->count[j] ||
            s->again[i] != t->again[j])
            return false;
    }
}

/* The host starts kernels ahead of the device: a pass takes at least that long. A core has
 * nobody to start them but itself. */
static PassCost at_least_launches(const Cost *c, const Stretch *s, PassCost a)
{
    double f = s->kernels[0] * c->prices.launch, b = s->kernels[1] * c->prices.launch;
    if (!c->prices.serial) {
        f -= seconds_total(&a.forward);
        b -= seconds_total(&a.backward);
    }
    a.forward.compute += f > 0 ? f : 0;
    a.backward.compute += b > 0 ? b : 0;
    return a;
}

PassCost stretch_after(const Cost *c, const Stretch *s, PassCost base, const PassCost *more)
{
    base.forward = seconds_sum(base.forward, more->forward, 1);
    base.backward = seconds_sum(base.backward, more->backward, 1);
    base = at_least_launches(c, s, base);
    double compute[2] = { base.forward.compute, base.backward.compute }, data[2];
    cost_data(c, s->parameters, s->units, compute, data);
    base.forward.data += data[0];
    base.backward.data += data[1];
    return base;
}

PassCost stretch_pass(const Cost *c, const Stretch *s, double b, double l, double context)
{
    PassCost more = stretch_context(c, s, b, l, context);
    return stretch_after(c, s, stretch_base(c, s, b, l), &more);
}

/* ---- cuts ---------------------------------------------------------------------------- */

/* TUNING: turns are cut by the seconds of one whole sequence: what a unit has is not known
 * yet, and the shares of head and turns hardly change with it. */
double stretch_weight(const Cost *c, int class)
{
    if (class == NONE)
        return 0;
    Stretch s = { .class = (int[1]){ 0 }, .count = (int[1]){ 0 }, .again = (int[1]){ 0 } };
    Cost whole = *c;                // the cut is the same whatever the slices and recompute
    whole.is.recompute = RECOMPUTE_NONE;
    whole.is.nslices = 1;
    add_class(&whole, &s, class, false);
    PassCost a = at_least_launches(&whole, &s, cost_pass(&whole, class, 1,
                                                         (double)c->is.sequence));
    return seconds_total(&a.forward) + seconds_total(&a.backward);
}

void stretch_cut(const Cost *c, int n, int *turns)
{
    double *weight = NEWN(double, c->nturns);
    for (int i = 0; i < c->nturns; i++)
        weight[i] = i && c->class_of[i] == c->class_of[i - 1]
                  ? weight[i - 1] : stretch_weight(c, c->class_of[i]);
    stages_cut(c->nturns, weight, stretch_weight(c, c->head), stretch_weight(c, c->tail), n,
               turns);
}

int64_t stretch_cut_bytes(const Cost *c, const Stretch *s)
{
    return (int64_t)c->cut_width[s->first + s->turns - 1] * c->element;
}

double stretch_transfer(const Cost *c, const Stretch *all, int n, int i, bool forward,
                        double tokens)
{
    const int *size = c->mesh.size;
    double ranks = (double)size[MESH_X] * size[MESH_Y] * size[MESH_Z];
    if (i < 0 || i >= n - 1 || size[MESH_STAGE] == 1)
        return 0;
    int to = (forward ? i + 1 : i) % size[MESH_STAGE];
    double bytes = tokens * (double)stretch_cut_bytes(c, &all[i]) / ranks;
    return price_transfer(&c->prices, &c->mesh, to, forward, bytes);
}

/* ---- memory --------------------------------------------------------------------------- */

StageMemory stretch_memory(const Cost *c, double parameters, bool last)
{
    const Plan *p = c->plan;
    double moments = p->config->train.optimizer == OPT_ADAMW ? 2 : p->config->train.momentum > 0;
    int d = c->is.data, wide = c->element < 4 ? 4 : c->element;
    double master = c->element < 4 ? 4 : 0;
    return (StageMemory){
        .parameters = parameters * c->element / (c->is.zero >= 3 ? d : 1),
        .gradients = parameters * wide / (c->is.zero >= 2 ? d : 1),
        .optimizer = parameters * (moments * wide + master) / (c->is.zero >= 1 ? d : 1),
        .logits = last ? c->logits_bytes * (double)c->is.logits_chunk : 0
    };
}
