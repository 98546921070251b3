/*
 * verify.c - named checks over a plan, run after every pass, in release builds
 * too. A wrong collective hangs a cluster or trains a wrong model; a plan is small.
 *
 * Before this point a violation is the user's and has a caret; here it is ours.
 */
#include "verify.h"

void verify_fail(Verify *v, InstId i, const char *fmt, ...)
{
    va_list ap;
    if (v->failed++ >= 10 || v->f == NULL)
        return;
    fprintf(v->f, "verify: after %s: ", v->after);
    if (i != NONE) {
        const Inst *n = &v->p->insts.at[i];
        fprintf(v->f, "instruction %d `%s` (%s): ", i, n->name ? n->name : inst_word[n->kind],
                n->loc.end ? source_where(n->loc) : "-");
    }
    va_start(ap, fmt);
    vfprintf(v->f, fmt, ap);
    va_end(ap);
    fprintf(v->f, " [%s]\n", v->check);
}

/* ---- the graph -------------------------------------------------------------------- */

/* Every operand is defined before it is read, every tensor once. */
static void check_order(Verify *v)
{
    const Plan *p = v->p;
    bool *defined = NEWN(bool, p->tensors.n);
    for (int t = 0; t < p->tensors.n; t++) {
        TensorKind k = p->tensors.at[t].kind;
        defined[t] = k == T_IDS || k == T_NUMBER || k == T_VECTOR || k == T_MATRIX;
    }
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        for (int j = 0; j < o->nin; j++)
            if (!defined[o->in[j]])
                verify_fail(v, NONE, "operator %d `%s` reads tensor %d before it is made", i,
                            o->name, o->in[j]);
        for (int j = 0; j < o->nout; j++) {
            if (defined[o->out[j]] && p->tensors.at[o->out[j]].kind != T_GRAD)
                verify_fail(v, NONE, "operator %d `%s` makes tensor %d again", i, o->name,
                            o->out[j]);
            defined[o->out[j]] = true;
        }
    }
}

static int64_t width(const Plan *p, TensorId t) { return p->tensors.at[t].width; }

/* Operand and result widths of the operators that other passes rely on. */
static void check_widths(Verify *v)
{
    const Plan *p = v->p;
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        int64_t sum = 0;
        bool fine = true;
        switch (o->kind) {
        case OP_LINEAR: case OP_LINEAR_DX:
            for (int j = 1; j < o->nin; j++) {
                const Tensor *w = &p->tensors.at[o->in[j]];
                bool flip = o->transposed != (o->kind == OP_LINEAR_DX);
                sum += flip ? w->rows : w->width;
                if (o->kind == OP_LINEAR)
                    fine &= (flip ? w->width : w->rows) == width(p, o->in[0]);
            }
            if (o->kind == OP_LINEAR)
                fine &= sum == width(p, o->out[0]);
            break;
        case OP_SPLIT:
            for (int j = 0; j < o->nout; j++)
                sum += width(p, o->out[j]);
            fine = sum == width(p, o->in[0]);
            break;
        case OP_CONCAT:
            for (int j = 0; j < o->nin; j++)
                sum += width(p, o->in[j]);
            fine = sum == width(p, o->out[0]);
            break;
        case OP_ATTN:
            fine = width(p, o->in[1]) == width(p, o->in[2]) &&
                   width(p, o->in[0]) == width(p, o->out[0]);
            break;
        default:
            break;
        }
        if (!fine)
            verify_fail(v, NONE, "widths of operator %d `%s` do not fit", i, o->name);
    }
}

/* ---- parameters ---------------------------------------------------------------------- */

/* The pieces of all units cover every column of every parameter exactly once. */
static void check_coverage(Verify *v)
{
    const Plan *p = v->p;
    int64_t *covered = NEWN(int64_t, p->params.n);
    for (int i = 0; i < p->units.n; i++) {
        const ParamUnit *u = &p->units.at[i];
        for (int k = 0; k < u->npieces; k++) {
            const Piece *a = &u->piece[k];
            covered[a->param] += a->cols.width;
            for (int j = 0; j <= i; j++)
                for (int l = 0; l < p->units.at[j].npieces; l++) {
                    const Piece *b = &p->units.at[j].piece[l];
                    if (b == a || b->param != a->param || (j == i && l >= k))
                        continue;
                    if (a->cols.start < b->cols.start + b->cols.width &&
                        b->cols.start < a->cols.start + a->cols.width)
                        verify_fail(v, NONE, "columns of `%s` are stored twice",
                                    p->params.at[a->param].name);
                }
        }
    }
    for (int i = 0; i < p->params.n && p->units.n; i++)
        if (covered[i] < p->params.at[i].width)
            verify_fail(v, NONE, "%" PRId64 " of %" PRId64 " columns of `%s` are stored",
                        covered[i], p->params.at[i].width, p->params.at[i].name);
}

static int by_offset(const void *x, const void *y)
{
    const ParamUnit *a = *(const ParamUnit *const *)x, *b = *(const ParamUnit *const *)y;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static void check_shards(Verify *v)
{
    const Plan *p = v->p;
    const ParamUnit **u = NEWN(const ParamUnit *, p->units.n);
    for (int i = 0; i < p->units.n; i++)
        u[i] = &p->units.at[i];
    qsort(u, (size_t)p->units.n, sizeof *u, by_offset);
    for (int i = 0; i < p->units.n; i++) {
        int64_t end = i + 1 < p->units.n ? u[i + 1]->offset : p->flat;
        if (u[i]->offset + u[i]->shard > end)
            verify_fail(v, NONE, "the shard of `%s` overlaps the next", u[i]->name);
        if (u[i]->shard * axes_size(p, u[i]->spread, u[i]->rep) < u[i]->brows * u[i]->bcols)
            verify_fail(v, NONE, "the shards of `%s` are smaller than its block", u[i]->name);
    }
}

/* ---- memory ------------------------------------------------------------------------------ */

static int64_t bytes_of(const Plan *p, const Buffer *b)
{
    return b->elements * (b->dtype == D_I32 ? 4 : b->dtype == D_F64 ||
                          p->is.precision == PREC_FP64 ? 8 : 4);
}

typedef struct { const Buffer *b; int first, last; } Life;

static int by_place(const void *x, const void *y)
{
    const Life *a = x, *b = y;
    return a->b->offset < b->b->offset ? -1 : a->b->offset > b->b->offset;
}

/* Buffers that are alive together do not share a byte. Lives are found anew. */
static void check_apart(Verify *v)
{
    const Plan *p = v->p;
    Life *l = NEWN(Life, p->buffers.n);
    if (p->block_bytes == 0)
        return;
    for (int i = 0; i < p->buffers.n; i++)
        l[i] = (Life){ &p->buffers.at[i], p->buffers.at[i].persistent ? 0 : INT32_MAX,
                       p->buffers.at[i].persistent ? p->insts.n : -1 };
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        for (int j = 0; j < n->nin + n->nout; j++) {
            Life *x = &l[p->values.at[j < n->nin ? n->in[j] : n->out[j - n->nin]].buffer];
            x->first = i < x->first ? i : x->first;
            x->last = i > x->last ? i : x->last;
        }
    }
    qsort(l, (size_t)p->buffers.n, sizeof *l, by_place);
    for (int i = 0; i < p->buffers.n; i++) {
        int64_t end = l[i].b->offset + bytes_of(p, l[i].b);
        if (l[i].last < 0)
            continue;
        if (end > p->block_bytes || l[i].b->offset % 64)
            verify_fail(v, NONE, "buffer `%s` is outside the block or not aligned", l[i].b->name);
        for (int k = i + 1; k < p->buffers.n && l[k].b->offset < end; k++)
            if (l[k].last >= l[i].first && l[k].first <= l[i].last && l[k].last >= 0)
                verify_fail(v, l[k].first < p->insts.n ? l[k].first : NONE,
                            "buffers `%s` and `%s` are alive together and overlap",
                            l[i].b->name, l[k].b->name);
    }
}

static void check_values(Verify *v)
{
    const Plan *p = v->p;
    for (int i = 0; i < p->values.n; i++) {
        const Value *x = &p->values.at[i];
        int64_t last = x->offset + (x->rows - 1) * x->ld + x->cols;
        if (x->rows > 0 && x->cols > 0 && (x->offset < 0 || x->cols > x->ld ||
                                           last > p->buffers.at[x->buffer].elements))
            verify_fail(v, NONE, "value %d lies outside buffer `%s`", i,
                        p->buffers.at[x->buffer].name);
        if ((x->layout.rows & x->layout.cols) || (x->layout.rows & x->layout.partial) ||
            (x->layout.cols & x->layout.partial & (Axes)~AX_Y))
            verify_fail(v, NONE, "value %d in buffer `%s` uses one axis twice", i,
                        p->buffers.at[x->buffer].name);
    }
}

/* ---- the table ---------------------------------------------------------------------------- */

typedef enum { ON_GRAPH, ON_INSTS } Needs;
typedef struct { const char *name; void (*run)(Verify *v); Needs needs; } Check;
static const Check checks[] = {
    { "defined-once",      check_order,    ON_GRAPH },
    { "widths-fit",        check_widths,   ON_GRAPH },
    { "parameters-covered", check_coverage, ON_INSTS },
    { "shards-apart",      check_shards,   ON_INSTS },
    { "values-inside",     check_values,   ON_INSTS },
    { "flow",              verify_flow,    ON_INSTS },      // names its own checks
    { "buffers-apart",     check_apart,    ON_INSTS },
};

int verify_plan(const Plan *p, const char *after, FILE *f)
{
    Verify v = { .p = p, .after = after, .f = f };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (checks[i].needs == ON_INSTS && p->insts.n == 0)
            continue;
        v.check = checks[i].name;
        checks[i].run(&v);
    }
    if (v.failed > 10 && f)
        fprintf(f, "verify: %d more\n", v.failed - 10);
    return v.failed;
}
