/*
 * residual.c - the published runs that are nearest to a plan, and what the program of those
 * runs would take in its layout (residual.h).
 */
#include "residual.h"
#include "frame.h"
#include "predict.h"

const char *const family_word[] = { "tensor parallel", "sharded weights", "token slices" };

static double parameters(const Plan *p)
{
    double sum = 0;
    for (int i = 0; i < p->params.n; i++)
        sum += (double)p->params.at[i].rows * (double)p->params.at[i].width;
    return sum;
}

static bool is_sliced(const Plan *p)
{
    return (p->pipeline ? p->pipeline->schedule.k : p->is.nslices) > 1;
}

static Family family_of(const Choices *is)      // of whole sequences
{
    return (is->x > 1 || is->zero >= 3) && is->y * is->z == 1 ? FAMILY_SHARDED : FAMILY_TENSOR;
}

const Residual *residual_of(const Plan *p)
{
    const Config *c = p->config;
    const Residual *best = NULL;
    double least = INFINITY, size = parameters(p), ranks = (double)plan_ranks(p);
    if (!c->has_cluster || c->cluster.device < 0 || size <= 0)
        return NULL;
    const Device *d = &c->devices.at[c->cluster.device];
    Family family = is_sliced(p) ? FAMILY_SLICES : family_of(&p->is);
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

/* ---- as they ran it ----------------------------------------------------------------------- */

/* Elements of a turn's matrices; *ffn: rows of the last one. */
static double turn_matrices(const Plan *p, int turn, double *ffn)
{
    double sum = 0;
    for (int i = 0; i < p->params.n; i++) {
        const Param *a = &p->params.at[i];
        if (a->repeat != 0 || a->turn != turn || a->kind != PARAM_MATRIX)
            continue;
        sum += (double)a->rows * (double)a->width;
        *ffn = (double)a->rows;
    }
    return sum;
}

/* Every turn has one attention, all of a size and causal, and two or three matrices of h x f. */
static bool dims_of(const Plan *p, Dims *d)
{
    int nattention = 0;
    *d = (Dims){ .layers = p->layers, .seq = (double)p->is.sequence, .vocab = (double)p->vocab,
                 .tied = true };
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind != OP_ATTN)
            continue;
        double h = (double)p->tensors.at[o->in[0]].width;
        if (o->repeat != 0 || o->turn != nattention++ || !o->causal || o->window > 0 ||
            (d->hidden > 0 && (d->hidden != h || d->kv_heads != o->kv_heads)))
            return false;
        d->hidden = h;
        d->heads = o->heads;
        d->kv_heads = o->kv_heads;
    }
    if (p->nrepeats != 1 || nattention != p->layers || d->vocab <= 0)
        return false;
    double first = turn_matrices(p, 0, &d->ffn), same = 0, h = d->hidden;
    for (int i = 1; i < p->layers; i++)
        if (turn_matrices(p, i, &same) != first || same != d->ffn)
            return false;
    double times = (first - h * h * (2 + 2 * d->kv_heads / d->heads)) / (h * d->ffn);
    for (int i = 0; i < p->params.n; i++)
        d->tied &= p->params.at[i].kind != PARAM_MATRIX || p->params.at[i].repeat >= 0;
    d->gated = times == 3;
    return times == 2 || times == 3;
}

/* In the plan's precision: DeepSpeed adds up and reduces gradients of bf16 in fp32. */
static const Manner *program_of(const Plan *p, const Residual *r)
{
    return r->how == &deepspeed && p->is.precision == PREC_BF16 ? &deepspeed_bf16 : r->how;
}

static bool way_of(const Plan *p, const Residual *r, Dims *d, Way *l)
{
    const Manner *how = r->how;
    const Choices *is = &p->is;
    bool full = is->recompute == RECOMPUTE_FULL;
    if (r->family != family_of(is) || how->gpipe || is->z > 1 || (is->y > 1 && is->zero >= 3) ||
        (is->x > 1 && (is->y > 1 || is->microbatch % is->x)) ||
        (full && is->recompute_turns < p->layers) ||
        (is->precision != PREC_BF16 && is->precision != PREC_FP16))
        return false;
    *l = (Way){ .gpus = plan_ranks(p), .tp = is->y, .pp = is->stages, .vp = is->chunks,
                .dp = (double)is->data * is->x, .cp = 1, .zero = is->x > 1 ? 3 : is->zero,
                .micro = (double)is->microbatch / is->x, .batch = (double)is->batch,
                .flash = how->flash, .sp = how->sp && !full && is->y > 1,
                .again = full ? AGAIN_FULL : is->recompute == RECOMPUTE_ATTENTION ? AGAIN_ATTENTION
                       : AGAIN_NONE };
    if (is->y > 1)                  // Megatron pads to 128 columns of each rank
        d->vocab = ceil(d->vocab / (128 * is->y)) * 128 * is->y;
    return true;
}

double residual_step(const Plan *p, const Residual *r, const char **what)
{
    Dims d;
    Way l;
    if (r == NULL || !dims_of(p, &d) || !way_of(p, r, &d, &l))
        return NAN;
    Prices w = price_list(p);
    const Manner *how = program_of(p, r);
    *what = str_fmt("%s: %s%s%s%s", how->name, l.flash ? "fused attention" : "scores stored",
                    how->dropout ? ", dropout" : "",
                    l.tp == 1 ? "" : l.sp ? ", rows cut between products"
                                          : ", whole rows between products",
                    is_sliced(p) ? ", whole sequences" : "");
    return frame_of(&w, &w, &d, &l, how).step_s;
}
