/* residual.c - the published runs that are nearest to a plan (residual.h). */
#include "residual.h"

const char *const family_word[] = { "tensor parallel", "sharded weights", "token slices" };

static double parameters(const Plan *p)
{
    double sum = 0;
    for (int i = 0; i < p->params.n; i++)
        sum += (double)p->params.at[i].rows * (double)p->params.at[i].width;
    return sum;
}

const Residual *residual_of(const Plan *p)
{
    const Config *c = p->config;
    const Choices *is = &p->is;
    const Residual *best = NULL;
    double least = INFINITY, size = parameters(p), ranks = (double)plan_ranks(p);
    if (!c->has_cluster || c->cluster.device < 0 || size <= 0)
        return NULL;
    const Device *d = &c->devices.at[c->cluster.device];
    bool sharded = (is->x > 1 || is->zero >= 3) && is->y * is->z == 1;
    Family family = is->nslices > 1 ? FAMILY_SLICES : sharded ? FAMILY_SHARDED : FAMILY_TENSOR;
    for (int i = 0; i < nresiduals && !d->rates && d->arch.v; i++) {
        const Residual *r = &residuals[i];
        /* TUNING: another family is as far as eight times the size; the number of devices
         * says less than the size */
        double far = fabs(log(r->parameters / size)) + 0.3 * fabs(log(r->devices / ranks)) +
                     (r->family != family ? log(8) : 0);
        if (strcmp(r->arch, d->arch.v) == 0 && far < least) {
            least = far;
            best = r;
        }
    }
    return best;
}
