/*
 * rowop.c - makes elementwise operators and row reductions, equal ones once.
 *
 * graph.c and autodiff.c make every C_ROW and C_RED operator here. One with
 * the same kind, operands and attributes in the same zone (a turn, or what
 * stands between two) is reused, so that mean(x) of a layernorm is one value
 * for its variance and its gradient. Zones are not crossed: a value that is
 * cheap to compute again must not travel over a pipeline cut.
 */
#include "plan.h"

static uint64_t row_hash(const Op *op)
{
    int64_t key[8] = { op->kind, op->in[0], op->nin > 1 ? op->in[1] : NONE, op->parts,
                       op->salt, op->zone, 0, 0 };
    memcpy(&key[6], &op->c, sizeof op->c);
    return hash_bytes(key, sizeof key, 0);
}

static bool row_equal(const Op *a, const Op *b)
{
    return a->kind == b->kind && a->nin == b->nin && a->in[0] == b->in[0]
        && (a->nin < 2 || a->in[1] == b->in[1]) && a->parts == b->parts && a->salt == b->salt
        && a->zone == b->zone && a->c == b->c;
}

/* The slot where `op` stands or belongs. */
static OpId *row_slot(Plan *p, const Op *op)
{
    uint64_t mask = (uint64_t)p->row_index.cap - 1;
    for (uint64_t i = row_hash(op) & mask; ; i = (i + 1) & mask) {
        OpId *slot = &p->row_index.slot[i];
        if (*slot == NONE || row_equal(&p->ops.at[*slot], op))
            return slot;
    }
}

static void row_index_size(Plan *p, int cap)
{
    p->row_index.slot = NEWN(OpId, cap);
    p->row_index.cap = cap;
    p->row_index.n = 0;
    for (int i = 0; i < cap; i++)
        p->row_index.slot[i] = NONE;
}

static void row_remember(Plan *p, OpId id)
{
    OpId *slot = row_slot(p, &p->ops.at[id]);
    if (*slot == NONE) {
        *slot = id;
        p->row_index.n++;
    }
}

void rowop_index(Plan *p)
{
    int cap = 256;
    while (cap < 3 * p->ops.n)
        cap *= 2;
    row_index_size(p, cap);
    for (int i = 0; i < p->ops.n; i++) {
        OpClass class = op_class[p->ops.at[i].kind];
        if (class == C_ROW || class == C_RED)
            row_remember(p, i);
    }
    p->number_index = map_new();
    for (int i = 0; i < p->tensors.n; i++)
        if (p->tensors.at[i].kind == T_NUMBER)
            map_put(p->number_index, str_fmt("%a", p->tensors.at[i].number), i);
}

TensorId rowop_number(Plan *p, double v)
{
    const char *key = str_fmt("%a", v);
    TensorId t = map_get(p->number_index, key);
    if (t >= 0)
        return t;
    t = tensor_add(p, T_NUMBER, str_fmt("%.9g", v), (Loc){ 0, 0 }, 1);
    p->tensors.at[t].number = v;
    map_put(p->number_index, key, t);
    return t;
}

TensorId rowop(Plan *p, const OpAt *at, OpKind kind, TensorId a, TensorId b, int64_t width,
               RowAttr attr)
{
    TensorId in[2] = { a, b };
    Op key = { .kind = kind, .nin = b == NONE ? 1 : 2, .in = in, .c = attr.c, .salt = attr.salt,
               .parts = attr.parts ? attr.parts : 1, .zone = at->zone };
    OpId *slot = row_slot(p, &key);
    if (*slot != NONE)
        return p->ops.at[*slot].out[0];
    TensorId out = tensor_add(p, T_ROWS, at->name, at->loc, width);
    OpId id = op_add(p, kind, at->phase, at->name, at->loc, key.nin, in, 1, &out);
    Op *op = &p->ops.at[id];
    op->repeat = at->repeat;
    op->turn = at->turn;
    op->zone = at->zone;
    op->of = at->of;
    op->c = key.c;
    op->salt = key.salt;
    op->parts = key.parts;
    *slot = id;
    if (++p->row_index.n * 2 > p->row_index.cap) {
        int cap = p->row_index.cap * 2;
        row_index_size(p, cap);
        for (int i = 0; i < p->ops.n; i++)
            if (op_class[p->ops.at[i].kind] == C_ROW || op_class[p->ops.at[i].kind] == C_RED)
                row_remember(p, i);
    }
    return out;
}
