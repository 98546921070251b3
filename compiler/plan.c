/*
 * plan.c - the plan's small helpers: making tensors and operators, the words
 * of every enum, and the sizes and names of sets of mesh axes.
 *
 * Arrays of a plan grow, so everything is referred to by index; the arrays
 * handed to op_add are copied.
 */
#include "plan.h"

const char *const op_word[OP_COUNT] = {
#define OP(name, word, class) word,
#include "ops.h"
#undef OP
};

const OpClass op_class[OP_COUNT] = {
#define OP(name, word, class) class,
#include "ops.h"
#undef OP
};

const char *const coll_word[COLL_COUNT] = {
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce",
    "send", "recv"
};

const char *const inst_word[I_KINDS] = {
    "gemm", "rows", "coll", "merge", "colsum", "attention", "attention_dx", "rope", "rope_table",
    "embed", "embed_dw", "ce_stat", "ce_merge", "ce", "copy", "zero", "count", "norm", "totals",
    "update"
};

const char *const buf_class_word[BUF_CLASSES] = {
    "parameters", "gradients", "moments", "activations", "gathered", "logits", "workspace"
};

Plan *plan_new(const Config *config)
{
    Plan *p = NEW(Plan);
    p->config = config;
    p->model_name = config->ast->model_name;
    p->loss = p->tokens = p->positions = p->targets = NONE;
    return p;
}

TensorId tensor_add(Plan *p, TensorKind kind, const char *name, Loc loc, int64_t width)
{
    Tensor t = { .kind = kind, .name = name, .loc = loc, .width = width,
                 .param = NONE, .def = NONE, .grad_of = NONE };
    vec_add(&p->tensors, t);
    return p->tensors.n - 1;
}

static TensorId *copy_ids(int n, const TensorId *ids)
{
    return arena_copy(perm, ids, sizeof *ids * (size_t)n);
}

OpId op_add(Plan *p, OpKind kind, Phase phase, const char *name, Loc loc,
            int nin, const TensorId *in, int nout, const TensorId *out)
{
    Op op = { .kind = kind, .phase = phase, .name = name, .loc = loc, .nin = nin, .nout = nout,
              .in = copy_ids(nin, in), .out = copy_ids(nout, out),
              .repeat = NONE, .turn = NONE, .of = NONE, .parts = 1 };
    vec_add(&p->ops, op);
    OpId id = p->ops.n - 1;
    for (int i = 0; i < nout; i++)
        if (p->tensors.at[out[i]].kind != T_GRAD)   // gradients have many producers
            p->tensors.at[out[i]].def = id;
    return id;
}

int64_t axes_size(const Plan *p, Axes axes, int rep)
{
    int64_t size = 1;
    int r = rep > 1 ? rep : 1;
    if (axes & AX_DATA)
        size *= p->is.data;
    if (axes & AX_X)
        size *= p->is.x;
    if (axes & AX_YK)
        size *= p->is.y / r;
    if (axes & AX_YR)
        size *= r;
    if (axes & AX_Z)
        size *= p->is.z;
    return size;
}

/* y as its slow factor ("1 of 2"), its fast one ("2 of 2"), or whole. */
static const char *y_word(Axes axes, int rep)
{
    if ((axes & AX_Y) == AX_Y || rep <= 1)
        return " y";
    return axes & AX_YK ? " y (1 of 2)" : " y (2 of 2)";
}

const char *axes_word(Axes axes, int rep)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%s%s%s%s%s", axes & AX_STAGE ? " stage" : "",
                     axes & AX_DATA ? " data" : "", axes & AX_X ? " x" : "",
                     axes & AX_Y ? y_word(axes, rep) : "", axes & AX_Z ? " z" : "");
    return n ? str_of(text + 1, (size_t)n - 1) : "";
}

int64_t buffer_bytes(const Plan *p, const Buffer *b)
{
    return (b->elements * dtype_bytes(p, b->dtype) + 63) / 64 * 64;
}

int64_t dtype_bytes(const Plan *p, DType d)
{
    int64_t real = p->is.precision == PREC_FP64 ? 8 : 4;
    return d == D_I32 ? 4 : d == D_F64 ? 8 : d == D_BF16 ? 2 : real;
}

int plan_ranks(const Plan *p)
{
    return p->is.data * p->is.stages * p->is.x * p->is.y * p->is.z;
}

int plan_collectives(const Plan *p)
{
    int n = 0;
    for (int r = 0; r < p->is.stages; r++)
        for (int i = 0; i < plan_stage(p, r)->insts.n; i++)
            n += plan_stage(p, r)->insts.at[i].kind == I_COLL;
    return n;
}

Plan *plan_stage(const Plan *p, int r) { return p->stages ? p->stages[r] : (Plan *)p; }

const char *plan_line(const Plan *p)
{
    const Choices *is = &p->is;
    Text t = { 0 };
    text_add(&t, "data %d", is->data);
    if (is->stages > 1)
        text_add(&t, ", pipeline %d", is->stages);
    if (is->chunks > 1)
        text_add(&t, " in %d chunks", is->chunks);
    text_add(&t, ", cube [%d, %d, %d]", is->x, is->y, is->z);
    if (is->summa)
        text_add(&t, ", summa(%d)", is->summa);
    int64_t m = is->batch / is->data / is->microbatch;
    if (m > 1)
        text_add(&t, ", %" PRId64 " microbatches", m);
    if (is->nslices > 1)
        text_add(&t, "%s %d slices", m > 1 ? " in" : ",", is->nslices);
    return str_of(t.at, t.n);
}
