/*
 * reference_build.c - the plan's forward graph as the runtime's RefGraph.
 *
 * The runtime knows nothing of the compiler, so the reference reads a graph of
 * plain data. Tensors, parameters and operators keep their numbers; only
 * what belongs to the forward part is copied.
 */
#include "plan.h"
#include "reference.h"

static RefKind ref_kind(OpKind kind)
{
    switch (kind) {
#define X(name) case OP_##name: return REF_##name;
    REF_KINDS(X)
#undef X
    default: bug("reference: %s is not a forward operator", op_word[kind]);
    }
}

static RefTensor ref_tensor(const Tensor *t)
{
    static const RefTensorKind kinds[] = {
        [T_ROWS] = REF_T_ROWS, [T_NUMBER] = REF_T_NUMBER, [T_VECTOR] = REF_T_PARAM,
        [T_MATRIX] = REF_T_PARAM, [T_LOSS] = REF_T_LOSS
    };
    static const RefTensorKind ids[] = {
        [IDS_TOKENS] = REF_T_TOKENS, [IDS_POSITIONS] = REF_T_POSITIONS,
        [IDS_TARGETS] = REF_T_TARGETS
    };
    return (RefTensor){ .kind = t->kind == T_IDS ? ids[t->ids] : kinds[t->kind],
                        .width = t->width, .number = t->number, .param = t->param };
}

static RefOp ref_op(const Op *op)
{
    return (RefOp){
        .kind = ref_kind(op->kind), .name = op->name, .nin = op->nin, .nout = op->nout,
        .in = op->in, .out = op->out, .c = op->c, .salt = op->salt, .parts = op->parts,
        .sizes = op->sizes, .heads = op->heads, .kv_heads = op->kv_heads, .causal = op->causal,
        .window = op->window, .scale = op->scale, .softcap = op->softcap, .theta = op->theta,
        .rotary = op->rotary, .interleaved = op->interleaved, .transposed = op->transposed,
        .ignore = op->ignore
    };
}

/* Gradients and backward rows, made by autodiff, come after the forward tensors;
 * they are left out, so that no memory is spent on them. */
static int forward_tensors(const Plan *p)
{
    int n = 0;
    for (int i = 0; i < p->nforward; i++) {
        const Op *op = &p->ops.at[i];
        for (int k = 0; k < op->nin; k++)
            n = op->in[k] >= n ? op->in[k] + 1 : n;
        for (int k = 0; k < op->nout; k++)
            n = op->out[k] >= n ? op->out[k] + 1 : n;
    }
    return n;
}

RefGraph *reference_build(const Plan *p)
{
    RefGraph *g = NEW(RefGraph);
    g->nparams = p->params.n;
    g->params = NEWN(RefParam, p->params.n + 1);
    for (int i = 0; i < p->params.n; i++) {
        const Param *q = &p->params.at[i];
        g->params[i] = (RefParam){ .name = q->name, .rows = q->rows, .width = q->width,
                                   .vector = q->kind == PARAM_VECTOR, .decay = q->decay,
                                   .init = (int)q->init, .init_a = q->init_a };
    }
    g->ntensors = forward_tensors(p);
    g->tensors = NEWN(RefTensor, g->ntensors + 1);
    for (int i = 0; i < g->ntensors; i++)
        g->tensors[i] = ref_tensor(&p->tensors.at[i]);
    g->nops = p->nforward;
    g->ops = NEWN(RefOp, p->nforward + 1);
    for (int i = 0; i < p->nforward; i++)
        g->ops[i] = ref_op(&p->ops.at[i]);
    g->loss = p->loss;
    return g;
}

void reference_optimizer(const Train *t, RefOptimizer *out)
{
    static const int schedules[] = {
        [SCHED_CONSTANT] = REF_CONSTANT, [SCHED_COSINE] = REF_COSINE,
        [SCHED_LINEAR] = REF_LINEAR_LR, [SCHED_WSD] = REF_WSD
    };
    *out = (RefOptimizer){
        .kind = t->optimizer == OPT_SGD ? REF_SGD : REF_ADAMW, .lr = t->lr, .beta1 = t->beta1,
        .beta2 = t->beta2, .eps = t->eps, .weight_decay = t->weight_decay,
        .momentum = t->momentum, .clip = t->clip.v, .schedule = schedules[t->schedule],
        .warmup = t->warmup, .decay = t->decay, .steps = (int64_t)t->steps.v,
        .lr_min = t->lr_min
    };
}
