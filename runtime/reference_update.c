/*
 * reference_update.c - learning rates, clipping and optimizers in double.
 *
 * The formulas are those of the language, section 5; steps count from 0. Decay
 * is decoupled (AdamW) and applies to the parameters marked so.
 */
#include "reference.h"

#include <math.h>

/* How far the decay has come, from 0 at step `from` to 1 at `to`. */
static double progress(int64_t step, int64_t from, int64_t to)
{
    if (step >= to)
        return 1;
    return step <= from ? 0 : (double)(step - from) / (double)(to - from);
}

double ref_lr(const RefOptimizer *o, int64_t step)
{
    double a = o->lr_min, span = o->lr - a;
    if (o->schedule == REF_CONSTANT)
        return o->lr;
    if (step < o->warmup)
        return o->lr * (double)(step + 1) / (double)(o->warmup + 1);
    if (o->schedule == REF_COSINE)
        return a + 0.5 * span * (1 + cos(3.14159265358979323846
                                         * progress(step, o->warmup, o->steps)));
    if (o->schedule == REF_LINEAR_LR)
        return a + span * (1 - progress(step, o->warmup, o->steps));
    return a + span * (1 - progress(step, o->steps - o->decay, o->steps));     // WSD
}

static int64_t size_of(const RefParam *p)
{
    return p->rows * p->width;
}

static double norm_of(const RefGraph *g, double *const *grads)
{
    double sum = 0;
    for (int k = 0; k < g->nparams; k++)
        for (int64_t i = 0; i < size_of(&g->params[k]); i++)
            sum += grads[k][i] * grads[k][i];
    return sqrt(sum);
}

static void adamw(const RefOptimizer *o, double lr, double wd, int64_t step, int64_t n, double *p,
                  const double *g, double *m, double *v)
{
    double fix1 = 1 - pow(o->beta1, (double)(step + 1));
    double fix2 = 1 - pow(o->beta2, (double)(step + 1));
    for (int64_t i = 0; i < n; i++) {
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * g[i];
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * g[i] * g[i];
        p[i] -= lr * (m[i] / fix1 / (sqrt(v[i] / fix2) + o->eps) + wd * p[i]);
    }
}

static void sgd(const RefOptimizer *o, double lr, int64_t n, double *p, const double *g, double *u)
{
    for (int64_t i = 0; i < n; i++) {
        u[i] = o->momentum * u[i] + g[i];
        p[i] -= lr * u[i];
    }
}

double ref_update(const RefOptimizer *o, const RefGraph *g, int64_t step, double *const *params,
                  double *const *grads, double *const *m, double *const *v)
{
    double norm = norm_of(g, grads), lr = ref_lr(o, step);
    double scale = o->clip > 0 && norm > o->clip ? o->clip / (norm + 1e-6) : 1;
    for (int k = 0; k < g->nparams; k++) {
        int64_t n = size_of(&g->params[k]);
        for (int64_t i = 0; i < n && scale != 1; i++)
            grads[k][i] *= scale;
        if (o->kind == REF_SGD)
            sgd(o, lr, n, params[k], grads[k], m[k]);
        else
            adamw(o, lr, g->params[k].decay ? o->weight_decay : 0, step, n, params[k], grads[k],
                  m[k], v[k]);
    }
    return norm;
}
