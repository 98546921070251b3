/*
 * fault.c - a loss or a gradient norm that is no finite number: who made it first?
 *
 * The optimizer has not run, so the step can be taken again: parameters are what they
 * were, gradients are overwritten. This time every rank looks at what each of its plan
 * steps wrote (RtOut) and keeps the first number that is not finite. Ranks of a stage
 * walk one list, so the earliest place in it is the origin: what spreads by collectives
 * shows up behind it. What a stage received, or summed with other stages, is somebody
 * else's fault, and taken only where there is nothing better. Parameters are looked
 * at too.
 */
#include "rt_impl.h"

#include <math.h>

enum { TEXT = 384, LETTERS = 6 };       // letters that a double carries

static const char *const pass_words[] = {
    "the forward", "the backward", "sending activations", "receiving activations",
    "sending gradients", "receiving gradients", "the gradient sum", "the optimizer",
    "the start of the step",
};

/* ---- looking ------------------------------------------------------------- */

/* Where in the block the step wrote `o`: reduced in place, that is the rank's own part. */
static int64_t place_of(const RtRank *r, const RtPass *pass, int istep, const RtOut *o)
{
    const RtStep *s = &r->program->steps[istep];
    int64_t at = pass->region[o->at.region] + o->at.offset;
    bool in_place = s->a.offset == s->c.offset && s->a.region == s->c.region;
    if (s->kind == RT_REDUCE_SCATTER && in_place)
        at += r->seat[r->step_kind[istep]].me * s->count * rt_size(r->rt, o->at.stored);
    return at;
}

/* The first number of `o`, which stands at `at`, that is not finite, as row * cols + col, and its
 * value; -1: there is none. */
static int64_t first_of(RtRank *r, const RtOut *o, int64_t at, double *value)
{
    if (r->rt->options->device)
        return rt_device_find(r, o, at, value);
    for (int64_t i = 0; i < o->rows * o->cols; i++) {
        *value = rt_get(r->rt, o->at.stored, r->block + at, i / o->cols * o->at.ld + i % o->cols);
        if (!isfinite(*value))
            return i;
    }
    return -1;
}

/* Behind a step of the search; every worker calls it. */
int rt_look(RtWorker *w, int istep)
{
    RtRank *r = w->rank;
    RtSearch *f = &r->search;
    const RtStep *s = &r->program->steps[istep];
    if (s->nouts == 0)
        return RT_OK;
    for (int k = 0; w->index == 0 && k < s->nouts && !f->found; k++) {
        const RtOut *o = &r->program->outs[s->first_out + k];
        double v;
        int64_t i = first_of(r, o, place_of(r, w->pass, istep, o), &v);
        if (i >= 0)
            *f = (RtSearch){ .found = true, .step = istep, .row = i / o->cols, .col = i % o->cols,
                             .pass = (int)(w->pass - r->program->passes),
                             .out = s->first_out + k, .value = v };
    }
    return rt_team(w);                  // the others wait: what was written is read
}

typedef struct { const RtRank *r; int unit; RtSearch *found; } ParamSearch;

static int look_span(void *ctx, const RtSpan *s)
{
    ParamSearch *to = ctx;
    const RtRank *r = to->r;
    const RtHeader *h = r->head;
    const char *base = r->block + h->params_offset;
    int64_t shift = rt_shift(r, to->unit, RT_PARAMS);
    for (int64_t i = 0; i < s->n; i++) {
        double v = rt_get(r->rt, h->params_stored, base, s->at + i - shift);
        if (isfinite(v))
            continue;
        *to->found = (RtSearch){ .found = true, .step = to->unit, .out = s->param, .row = s->row,
                                 .col = s->col + i, .value = v };
        return 1;
    }
    return RT_OK;
}

/* The first parameter of the rank that is not finite: its unit as `step`, itself as `out`. */
static void look_at_params(const RtRank *r, RtSearch *found)
{
    *found = (RtSearch){ 0 };
    for (int u = 0; u < r->head->nunits && !found->found; u++) {
        ParamSearch to = { r, u, found };
        int64_t lo, hi;
        rt_held(r, u, RT_PARAMS, &lo, &hi);
        rt_spans(r, u, lo, hi, look_span, &to);
    }
}

/* ---- agreeing ------------------------------------------------------------ */

/* The rank with the least key, the first of them; -1: no rank has one (below 2^52). */
static int least(RtWorker *w, bool has, int64_t key, int *rank)
{
    const RtRank *r = w->rank;
    double best = 0;
    *rank = -1;
    for (int i = 0; i < r->rt->nranks; i += RT_MAX_SUMS) {
        int n = r->rt->nranks - i < RT_MAX_SUMS ? r->rt->nranks - i : RT_MAX_SUMS;
        double v[RT_MAX_SUMS] = { 0 };
        if (has && r->id >= i && r->id < i + n)
            v[r->id - i] = (double)key + 1;
        RT_TRY(rt_sum_doubles(w, &r->world, v, n));
        for (int k = 0; k < n; k++)
            if (v[k] > 0 && (*rank < 0 || v[k] < best)) {
                best = v[k];
                *rank = i + k;
            }
    }
    return RT_OK;
}

/* Text of rank `from` for all: as numbers, which every back end can sum. */
static int tell(RtWorker *w, int from, char text[TEXT])
{
    bool mine = w->rank->id == from;
    for (int i = 0; i < TEXT; i += LETTERS * RT_MAX_SUMS) {
        double v[RT_MAX_SUMS] = { 0 };
        for (int k = 0; mine && k < RT_MAX_SUMS; k++)
            for (int c = 0; c < LETTERS; c++)
                v[k] = v[k] * 256 + (unsigned char)text[i + k * LETTERS + c];
        RT_TRY(rt_sum_doubles(w, &w->rank->world, v, RT_MAX_SUMS));
        for (int k = 0; !mine && k < RT_MAX_SUMS; k++) {
            uint64_t letters = (uint64_t)v[k];
            for (int c = LETTERS - 1; c >= 0; c--, letters >>= 8)
                text[i + k * LETTERS + c] = (char)(letters & 255);
        }
    }
    return RT_OK;
}

/* Comes from other stages: a message, or a sum with them. */
static bool is_derived(const RtRank *r, const RtSearch *f)
{
    const RtStep *s = &r->program->steps[f->step];
    return s->kind == RT_RECV || s->axes & RT_STAGE;
}

/* C prints -nan for some; there is one nan. */
static const char *sign(double v) { return v < 0 ? "-" : ""; }

static void step_words(const RtRank *r, const RtSearch *f, char text[TEXT])
{
    const RtProgram *p = r->program;
    const RtStep *s = &p->steps[f->step];
    const RtOut *o = &p->outs[f->out];
    const RtPass *pass = &p->passes[f->pass];
    char who[48], unit[64] = "";
    bool has_unit = pass->kind != RT_PASS_BEGIN && pass->kind < RT_PASS_SYNC;
    if (has_unit)
        snprintf(unit, sizeof unit, " of microbatch %d, slice %d", pass->microbatch, pass->slice);
    snprintf(text, TEXT, "\nnote: first on %s, plan step %d (%.100s), tensor %.80s [%lld, %lld] = "
             "%s%g, in %s%s (%.80s)", rt_who(r, who), f->step, rt_text(p, s->name),
             rt_text(p, o->name), (long long)f->row, (long long)f->col, sign(f->value),
             fabs(f->value), pass_words[pass->kind], unit, rt_text(p, s->source));
}

static void param_words(const RtRank *r, const RtSearch *f, char text[TEXT])
{
    const RtProgram *p = r->program;
    const RtParam *q = &p->params[f->out];
    char who[48], at[64];
    if (q->kind == 2)                   // a vector
        snprintf(at, sizeof at, "%lld", (long long)f->col);
    else
        snprintf(at, sizeof at, "%lld, %lld", (long long)f->row, (long long)f->col);
    snprintf(text, TEXT, "\nnote: parameter %.160s [%s] is %s%g, as %s has it (%.100s)",
             rt_text(p, q->name), at, sign(f->value), fabs(f->value), rt_who(r, who),
             rt_text(p, p->units[f->step].source));
}

/* ---- all ranks ----------------------------------------------------------- */

/* Calls that are no steps of a plan are not looked into. */
static bool has_outs(const Rt *rt)
{
    for (int s = 0; s < rt->head->nstages; s++)
        if (rt->program[s].head->nouts > 0)
            return true;
    return false;
}

static int report(RtWorker *w, const RtNow *now, const char *first, const char *param)
{
    RtRank *r = w->rank;
    bool loss = !isfinite(now->loss);
    double v = loss ? now->loss : now->norm;
    const char *none = *first || *param || !has_outs(r->rt) ? "" :
        "\nnote: no tensor is: the sum of finite numbers is too large, or it came by chance";
    if (r->id == 0)
        rt_fail(r->rt, RT_USER, "%s: error: the %s of step %lld is not finite: %s%g%s%s%s",
                r->rt->exe, loss ? "loss" : "gradient norm", (long long)now->step + 1, sign(v),
                fabs(v), first, param, none);
    return rt_agree(w);                 // it is everybody's
}

/* Takes the broken step again, says what broke it, and ends the run. All workers of all
 * ranks call it. */
int rt_find_fault(RtWorker *w)
{
    RtRank *r = w->rank;
    RtNow now = r->now;
    char first[TEXT] = "", param[TEXT] = "";
    RtSearch bad = { 0 };
    int at = -1;
    enum { KINDS = ~(1 << RT_PASS_OPTIMIZER) };
    RT_TRY(rt_team(w));
    if (has_outs(r->rt)) {
        if (w->index == 0) {
            RT_TRY(rt_begin_step(r, now.step, false));
            r->searching = true;
        }
        RT_TRY(rt_team(w));
        RT_TRY(rt_passes(w, (unsigned)KINDS));
    }
    if (w->index)
        return RT_OK;
    atomic_store(&r->sign->op, -1);
    if (has_outs(r->rt)) {
        const RtSearch *f = &r->search;
        int64_t key = f->found ? (int64_t)is_derived(r, f) << 44 | (int64_t)f->pass << 22 | f->step
                               : 0;
        RT_TRY(least(w, f->found, key, &at));
        if (at == r->id)
            step_words(r, f, first);
        if (at >= 0)
            RT_TRY(tell(w, at, first));
        if (r->rt->options->device)
            RT_TRY(rt_device_pull(r));
        look_at_params(r, &bad);
        RT_TRY(least(w, bad.found, bad.out, &at));
        if (at == r->id)
            param_words(r, &bad, param);
        if (at >= 0)
            RT_TRY(tell(w, at, param));
    }
    return report(w, &now, first, param);
}
