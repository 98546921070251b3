/*
 * fuse.c - linears that read the same tensor become one LINEAR.
 *
 * needs: graph, before autodiff.  fills: LINEARs with several matrices.
 *
 * q, k and v of an attention, or gate and up of a Llama mlp, multiply the same
 * x. As one product [x Wq | x Wk | x Wv] they share the gather of x and make
 * one efficient matrix product; parameters and their names stay separate. The
 * merged operator stands where the first of them stood (x is there already),
 * and a SPLIT gives the original tensors. Only linears of one zone are merged;
 * tied or transposed matrices, and those used twice, are left alone.
 */
#include "plan.h"

/* How often each parameter's tensor is read. */
static int *count_uses(const Plan *p)
{
    int *uses = NEWN(int, p->tensors.n + 1);
    for (int i = 0; i < p->ops.n; i++)
        for (int k = 0; k < p->ops.at[i].nin; k++)
            uses[p->ops.at[i].in[k]]++;
    return uses;
}

static bool is_candidate(const Op *op, const int *uses)
{
    return op->kind == OP_LINEAR && op->phase == PHASE_FORWARD && op->nin == 2
        && !op->transposed && uses[op->in[1]] == 1;
}

/* "h.0.q_proj+k_proj": the shared prefix once. */
static const char *joined_name(const Plan *p, const OpId *ids, int n)
{
    Text t = { 0 };
    const char *first = p->ops.at[ids[0]].name, *dot = strrchr(first, '.');
    size_t prefix = dot ? (size_t)(dot - first) + 1 : 0;
    text_add(&t, "%s", first);
    for (int i = 1; i < n; i++) {
        const char *name = p->ops.at[ids[i]].name;
        bool shared = strncmp(name, first, prefix) == 0;
        text_add(&t, "+%s", shared ? name + prefix : name);
    }
    return str_of(t.at, t.n);
}

static Op placed(const Op *at, OpKind kind, const char *name)
{
    return (Op){ .kind = kind, .phase = PHASE_FORWARD, .name = name, .loc = at->loc,
                 .repeat = at->repeat, .turn = at->turn, .zone = at->zone, .of = NONE,
                 .parts = 1 };
}

/* The merged LINEAR and its SPLIT, in place of ids[0 .. n). */
static void merge(Plan *p, const OpId *ids, int n, Op out[2])
{
    const Op *first = &p->ops.at[ids[0]];
    const char *name = joined_name(p, ids, n);
    int64_t width = 0;
    Op linear = placed(first, OP_LINEAR, name), split = placed(first, OP_SPLIT, name);
    linear.in = NEWN(TensorId, n + 1);
    linear.out = NEWN(TensorId, 1);
    split.in = NEWN(TensorId, 1);
    split.out = NEWN(TensorId, n);
    split.sizes = NEWN(int64_t, n);
    linear.in[0] = first->in[0];
    for (int i = 0; i < n; i++) {
        const Op *op = &p->ops.at[ids[i]];
        linear.in[i + 1] = op->in[1];
        split.out[i] = op->out[0];
        split.sizes[i] = p->tensors.at[op->out[0]].width;
        width += split.sizes[i];
    }
    linear.nin = n + 1;
    linear.nout = split.nin = 1;
    split.nout = n;
    linear.out[0] = split.in[0] = tensor_add(p, T_ROWS, name, linear.loc, width);
    out[0] = linear;
    out[1] = split;
}

/* The linears from `from` on that read its tensor in its zone. */
static int same_input(const Plan *p, OpId from, const int *uses, OpId *ids)
{
    const Op *first = &p->ops.at[from];
    int n = 0;
    for (OpId i = from; i < p->nforward && p->ops.at[i].zone == first->zone; i++)
        if (is_candidate(&p->ops.at[i], uses) && p->ops.at[i].in[0] == first->in[0])
            ids[n++] = i;
    return n;
}

void fuse_linears(Plan *p)
{
    int *uses = count_uses(p), n;
    bool *gone = NEWN(bool, p->ops.n + 1);
    OpId *ids = NEWN(OpId, p->ops.n + 1);
    VEC(Op) fused = { 0 };
    for (OpId i = 0; i < p->nforward; i++) {
        if (gone[i])
            continue;
        n = is_candidate(&p->ops.at[i], uses) ? same_input(p, i, uses, ids) : 0;
        if (n < 2) {
            vec_add(&fused, p->ops.at[i]);
            continue;
        }
        Op made[2];
        merge(p, ids, n, made);
        vec_add(&fused, made[0]);
        vec_add(&fused, made[1]);
        for (int k = 0; k < n; k++)
            gone[ids[k]] = true;
    }
    p->ops.n = 0;
    for (int i = 0; i < fused.n; i++) {
        vec_add(&p->ops, fused.at[i]);
        for (int k = 0; k < fused.at[i].nout; k++)
            p->tensors.at[fused.at[i].out[k]].def = i;
    }
    p->nforward = p->ops.n;
    rowop_index(p);
}
