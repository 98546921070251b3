/*
 * emit_cuda_ends.c - products that cuBLASLt ends itself: plus a bias, and GELU of that.
 *
 *   needs emit_program; changes the kernel of steps that read such products.
 *
 * A row program right behind a product is not called where it does no more than
 *
 *     store(product + bias)               END_BIAS
 *     store(gelu(product + bias))         END_GELU
 *
 * Who else reads the product? Nobody: it is never stored. Or row programs, the gradient of
 * GELU say, that only ask for product + bias: then the library keeps that sum in the
 * product's place, and they no longer add the bias. GELU is the library's where the text
 * of the function is: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), not the one with erf.
 *
 * Nor does it where the result would stand on an operand of the product, as in recomputed
 * turns that forget the operand at once. Bias, product and result are stored alike, in float
 * or bf16. Gradients do not end so: the library would round the sum for a bias to bf16, and
 * the plan wants float.
 */
#include "emit_cuda.h"

static const char gelu_text[] =
    "((0.5 * x) * (1 + tanh((0.797884561 * (x + (((0.044715 * x) * x) * x))))))";

typedef struct { int inst, next; } Touched;

typedef struct {
    const Plan *p;              // of the stage
    StageTables *s;
    Emitted *e;
    int *first;                 // by buffer: the last instruction that touches it
    VEC(Touched) touch;
    Map *lighter;               // kernels that no longer add a bias, by key
} Ends;

/* ---- what a row program does -------------------------------------------------------- */

static bool loads_rows(const RowProg *r, int i)
{
    const RowNode *n = &r->node[i];
    return n->kind == R_LOAD && r->arg[n->arg].per <= 1 && r->arg[n->arg].stride == 1;
}

/* Is node i the sum of a row and a vector? */
static bool is_sum(const RowProg *r, int i, int *row, int *vector)
{
    const RowNode *n = &r->node[i];
    if (n->kind != R_OP || n->op != OP_ADD)
        return false;
    bool swapped = r->node[n->a].kind == R_LOADVEC;
    *row = swapped ? n->b : n->a;
    *vector = swapped ? n->a : n->b;
    return loads_rows(r, *row) && r->node[*vector].kind == R_LOADVEC;
}

/* The formula of node i, node x being its variable; "?" for what is no elementwise function. */
static void formula(const RowProg *r, int i, int x, Text *t)
{
    static const char *const infix[OP_COUNT] = {
        [OP_ADD] = "+", [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/"
    };
    const RowNode *n = &r->node[i];
    if (i == x) {
        text_add(t, "x");
    } else if (n->kind == R_NUMBER) {
        text_add(t, "%.9g", n->c);
    } else if (n->kind == R_OP && n->b >= 0 && infix[n->op]) {
        text_add(t, "(");
        formula(r, n->a, x, t);
        text_add(t, " %s ", infix[n->op]);
        formula(r, n->b, x, t);
        text_add(t, ")");
    } else if (n->kind == R_OP && n->op == OP_TANH) {
        text_add(t, "tanh(");
        formula(r, n->a, x, t);
        text_add(t, ")");
    } else {
        text_add(t, "?");
    }
}

/* How a row program ends `product`: stores one thing, made of it and a bias. */
static Ending ending_of(const RowProg *r, ValueId product)
{
    Ending e = { END_NONE, false, NONE, NONE };
    int sum = NONE, store = NONE, row, vector;
    for (int i = 0; i < r->nnodes; i++) {
        const RowNode *n = &r->node[i];
        if (n->kind == R_STOREPART || n->kind == R_COLSUM || (n->kind == R_STORE && store >= 0))
            return e;
        if (n->kind == R_STORE)
            store = i;
        if (is_sum(r, i, &row, &vector) && r->arg[r->node[row].arg].value == product) {
            sum = i;
            e.bias = r->node[vector].arg;
        }
    }
    if (sum == NONE || store == NONE || r->parts != 1)
        return e;
    const RowArg *out = &r->arg[r->node[store].arg];
    if (out->stride != 1 || out->accumulate || r->arg[e.bias].length != r->width)
        return e;
    Text t = { 0 };
    formula(r, r->node[store].a, sum, &t);
    e.out = r->node[store].arg;
    e.end = strcmp(t.at, "x") == 0 ? END_BIAS : strcmp(t.at, gelu_text) == 0 ? END_GELU : END_NONE;
    return e;
}

/* ---- who reads a product -------------------------------------------------------------- */

static void touches(Ends *m, int inst, const ValueId *v, int n)
{
    for (int k = 0; k < n; k++) {
        int *first = &m->first[m->p->values.at[v[k]].buffer];
        if (*first >= 0 && m->touch.at[*first].inst == inst)
            continue;
        Touched t = { inst, *first };
        *first = m->touch.n;
        vec_add(&m->touch, t);
    }
}

/* The node of a row program that is product + bias, if it uses the product for nothing else. */
static int only_sum(const Plan *p, const RowProg *r, ValueId product, TensorId bias)
{
    int sum = NONE, row, vector;
    for (int i = 0; i < r->nnodes; i++) {
        const RowNode *n = &r->node[i];
        if (is_sum(r, i, &row, &vector) && r->arg[r->node[row].arg].value == product &&
            p->values.at[r->arg[r->node[vector].arg].value].tensor == bias && sum == NONE) {
            sum = i;
            continue;
        }
        int used[2] = { n->kind >= R_OP ? n->a : NONE, n->kind >= R_OP ? n->b : NONE };
        for (int k = 0; k < 2; k++)
            if (used[k] >= 0 && r->node[used[k]].kind == R_LOAD &&
                r->arg[r->node[used[k]].arg].value == product)
                return NONE;
    }
    return sum;
}

static bool is_among(const ValueId *list, int count, ValueId v)
{
    for (int k = 0; k < count; k++)
        if (list[k] == v)
            return true;
    return false;
}

/* Is every other one that touches the product's buffer a row program that reads product + bias?
 * `kept`: is there any. */
static bool others_agree(const Ends *m, int product_at, int rows_at, TensorId bias, bool *kept)
{
    const Plan *p = m->p;
    ValueId v = p->insts.at[product_at].out[0];
    *kept = false;
    for (int i = m->first[p->values.at[v].buffer]; i >= 0; i = m->touch.at[i].next) {
        int at = m->touch.at[i].inst;
        const Inst *n = &p->insts.at[at];
        if (at == product_at || at == rows_at)
            continue;
        *kept = true;
        if (n->kind != I_ROWS || is_among(n->out, n->nout, v) || !is_among(n->in, n->nin, v) ||
            only_sum(p, &p->rowprogs.at[n->rows], v, bias) == NONE)
            return false;
    }
    return true;
}

/* ---- row programs that no longer add the bias --------------------------------------------- */

static void lighten(Ends *m, int at, ValueId product, TensorId bias)
{
    const RowProg *own = &m->p->rowprogs.at[m->p->insts.at[at].rows];
    int sum = only_sum(m->p, own, product, bias), row, vector;
    RtStep *s = &m->s->steps.at[at];
    KernelSpec k = m->e->specs.at[s->kernel];
    k.key = str_fmt("%s less %d", k.key, sum);
    int known = map_get(m->lighter, k.key);
    if (known >= 0) {
        s->kernel = known;
        return;
    }
    RowProg *r = NEW(RowProg);
    *r = *k.rows;
    r->node = NEWN(RowNode, r->nnodes);
    memcpy(r->node, k.rows->node, sizeof *r->node * (size_t)r->nnodes);
    is_sum(r, sum, &row, &vector);
    r->node[sum] = r->node[row];
    k.rows = r;
    k.name = str_fmt("%s_kept", k.name);
    vec_add(&m->e->specs, k);
    s->kernel = m->e->specs.n - 1;
    map_put(m->lighter, k.key, s->kernel);
}

static void lighten_others(Ends *m, int product_at, int rows_at, TensorId bias)
{
    ValueId v = m->p->insts.at[product_at].out[0];
    for (int i = m->first[m->p->values.at[v].buffer]; i >= 0; i = m->touch.at[i].next)
        if (m->touch.at[i].inst != product_at && m->touch.at[i].inst != rows_at)
            lighten(m, m->touch.at[i].inst, v, bias);
}

/* ---- pairs ------------------------------------------------------------------------------ */

/* Do the bytes of [rows, ld] at a and at b meet? Regions never do. */
static bool meets(const RtRef *a, int64_t a_rows, const RtRef *b, int64_t b_rows, int64_t real)
{
    int64_t a_bytes = a_rows * a->ld * (a->stored == RT_BF16_STORED ? 2 : real);
    int64_t b_bytes = b_rows * b->ld * (b->stored == RT_BF16_STORED ? 2 : real);
    return a->region == b->region && a->offset < b->offset + b_bytes &&
           b->offset < a->offset + a_bytes;
}

/* The result is there one step early: it must not stand where the operands still are. */
static bool has_room(const RtStep *g, const RtRef *out, const Ending *e, int64_t real)
{
    return !meets(out, g->m, &g->a, g->trans_a ? g->k : g->m, real) &&
           !meets(out, g->m, &g->b, g->trans_b ? g->n : g->k, real) &&
           !(e->kept && meets(out, g->m, &g->c, g->m, real));
}

static Ending pair(Ends *m, int i)
{
    const Ending none = { END_NONE, false, NONE, NONE };
    const Plan *p = m->p;
    const RtStep *g = &m->s->steps.at[i], *r = &m->s->steps.at[i + 1];
    int64_t real = m->e->stage[0].head.real_bytes;
    if (g->kind != RT_GEMM || g->accumulate || g->accumulate_later || real == 8 ||
        g->a.stored != g->b.stored || g->a.stored != g->c.stored || r->kind != RT_KERNEL ||
        p->insts.at[i + 1].kind != I_ROWS)
        return none;
    const RowProg *rows = &p->rowprogs.at[p->insts.at[i + 1].rows];
    ValueId v = p->insts.at[i].out[0];
    Ending e = ending_of(rows, v);
    const RtRef *arg = step_args(m->s, r);
    if (e.end == END_NONE || rows->width != g->n || r->items != g->m ||
        arg[e.bias].stored != g->c.stored || arg[e.out].stored != g->c.stored)
        return none;
    TensorId bias = p->values.at[rows->arg[e.bias].value].tensor;
    if (!others_agree(m, i, i + 1, bias, &e.kept) || (e.kept && e.end == END_BIAS) ||
        !has_room(g, &arg[e.out], &e, real))
        return none;
    if (e.kept)
        lighten_others(m, i, i + 1, bias);
    return e;
}

Ending **cuda_endings(const Plan *p, Emitted *e)
{
    Ends m = { .e = e, .lighter = map_new() };
    Ending **all = NEWN(Ending *, e->nstages);
    for (int r = 0; r < e->nstages; r++) {
        m.p = plan_stage(p, r);
        m.s = &e->stage[r];
        m.touch.n = 0;
        m.first = NEWN(int, m.p->buffers.n);
        for (int i = 0; i < m.p->buffers.n; i++)
            m.first[i] = NONE;
        for (int i = 0; i < m.p->insts.n; i++) {
            touches(&m, i, m.p->insts.at[i].in, m.p->insts.at[i].nin);
            touches(&m, i, m.p->insts.at[i].out, m.p->insts.at[i].nout);
        }
        all[r] = NEWN(Ending, m.p->insts.n + 1);
        for (int k = 0; k < m.p->funcs.n; k++) {
            const Func *f = &m.p->funcs.at[k];
            for (int i = f->first; i + 1 < f->end; i++)
                if (inst_turn(m.p, i, f->end) == inst_turn(m.p, i + 1, f->end))
                    all[r][i] = pair(&m, i);
        }
    }
    return all;
}
