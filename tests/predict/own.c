/* own.c - see own.h. Run from the top of the tree. */
#include "own.h"
#include "estimate.h"
#include "residual.h"

typedef struct { const char *at[24]; int n; } Sets;

static void set(Sets *s, const char *text) { s->at[s->n++] = text; }

static const char *model_of(const Row *r, Sets *s)
{
    const Dims *d = &r->shape;
    set(s, str_fmt("model.layers=%g", d->layers));
    set(s, str_fmt("model.hidden=%g", d->hidden));
    set(s, str_fmt("model.heads=%g", d->heads));
    set(s, str_fmt("model.vocab=%.0f", d->vocab));
    if (d->gated) {
        set(s, str_fmt("model.kv_heads=%g", d->kv_heads));
        set(s, str_fmt("model.inner=%g", d->ffn));
        return "examples/llama.tcube";
    }
    set(s, str_fmt("model.context=%g", d->seq));
    return "examples/gpt3-175b.tcube";
}

/* As Megatron cuts: the first stages have one more where they are not equal. */
static const char *even_turns(double layers, int sections)
{
    Text t = { 0 };
    int each = (int)layers / sections, more = (int)layers % sections;
    for (int i = 0; i < sections; i++)
        text_add(&t, "%s%d", i ? ", " : "plan.turns=[", each + (i < more));
    text_add(&t, "]");
    return str_of(t.at, t.n);
}

static void layout_of(const Row *r, Sets *s)
{
    static const char *const again[] = { [AGAIN_NONE] = "none", [AGAIN_ATTENTION] = "attention",
                                         [AGAIN_FULL] = "full" };
    const Way *l = &r->layout;
    set(s, str_fmt("train.batch=%g", l->batch));
    set(s, str_fmt("train.sequence=%g", r->shape.seq));
    set(s, r->how->grad == 2 ? "train.precision=fp16" : "train.precision=bf16");
    set(s, str_fmt("plan.data=%g", l->dp));
    set(s, str_fmt("plan.pipeline=%g", l->pp));
    set(s, str_fmt("plan.chunks=%g", l->vp));
    set(s, str_fmt("plan.cube=[1,%g,1]", l->tp));
    set(s, str_fmt("plan.microbatch=%g", l->micro));
    set(s, str_fmt("plan.zero=%d", l->dp > 1 ? l->zero : 0));
    set(s, str_fmt("plan.recompute=%s", again[l->again]));
    if (l->pp > 1)
        set(s, even_turns(r->shape.layers, (int)(l->pp * l->vp)));
}

static const char *cluster_of(const Row *r, Sets *s)
{
    const char *file = str_fmt("examples/clusters/%s.tcube", r->machine);
    Inputs in = { .files = &file, .nfiles = 1 };
    const Config *c = config_read(parse_files(&in), &in);
    double gpus = r->layout.gpus, per = c->cluster.per_node.v;
    if (gpus < per)
        set(s, str_fmt("cluster.node=%g * %s", gpus, c->devices.at[c->cluster.device].name));
    set(s, str_fmt("cluster.nodes=%g", ceil(gpus / per)));
    return file;
}

static const char *cannot(const Row *r)
{
    const Dims *d = &r->shape;
    const Way *l = &r->layout;
    if (l->again == AGAIN_HALF)
        return "every other layer is computed again";
    if (r->how->gpipe)
        return "token slices, without embedding and head";
    if (l->fp8 || l->cp > 1)
        return "8 bits, or a sequence over several ranks";
    if (!d->gated && d->ffn != 4 * d->hidden)
        return "an MLP of other widths";
    if (fmod(l->batch, l->dp * l->micro) != 0 || fmod(d->heads, l->tp) != 0 ||
        fmod(d->hidden, l->tp) != 0)
        return "sizes that do not divide";
    return NULL;
}

const char *own_step(const Row *r, Own *out)
{
    Sets s = { 0 };
    const char *why = cannot(r), *what;
    if (why)
        return why;
    const char *files[] = { model_of(r, &s), cluster_of(r, &s) };
    layout_of(r, &s);
    Inputs in = { .files = files, .nfiles = 2, .sets = s.at, .nsets = s.n };
    int errors = diag_errors();
    const Config *c = config_read(parse_files(&in), &in);
    if (diag_errors() > errors)
        return "settings that are refused";
    Plan *p = plan_new(c);
    graph_build(p);
    mesh_choose(p);
    if (diag_errors() > errors || !mesh_feed(p, (int64_t)r->layout.micro))
        return "a layout that is refused";
    fuse_linears(p);
    autodiff_add(p);
    Estimator *e = estimator_new(p, false);
    Estimate of;
    Point a = point_of(p);
    Reject no = estimate_legal(e, &a);
    if (no != LEGAL)
        return reject_text[no];
    estimate(e, &a, &of);           // whether it fits is asked elsewhere
    *out = (Own){ .step_s = of.step_s, .published_s = residual_step(p, residual_of(p), &what) };
    return NULL;
}
