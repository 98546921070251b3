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

/* Pieces of a stage's units: no column of a parameter twice; adds what they cover, of a unit
 * that several stages hold once. */
static void cover(Verify *v, const Plan *p, int64_t *covered)
{
    for (int i = 0; i < p->units.n; i++) {
        const ParamUnit *u = &p->units.at[i];
        for (int k = 0; k < u->npieces; k++) {
            const Piece *a = &u->piece[k];
            covered[a->param] += u->first_stage ? a->cols.width : 0;
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
}

/* The units of all stages cover every column of every parameter exactly once. */
static void check_coverage(Verify *v)
{
    const Plan *p = v->p;
    int64_t *covered = NEWN(int64_t, p->params.n);
    if (p->stage > 0)
        return;
    for (int r = 0; r < p->is.stages; r++)
        cover(v, plan_stage(p, r), covered);
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
    return b->elements * (b->dtype == D_I32 ? 4 : b->dtype == D_BF16 ? 2 : b->dtype == D_F64 ||
                          p->is.precision == PREC_FP64 ? 8 : 4);
}

/* group: buffers of different groups share no room, or are not alive together; -1: all. */
typedef struct { const Buffer *b; int first, last; int func; bool other; int group; } Life;

static int by_place(const void *x, const void *y)
{
    const Life *a = x, *b = y;
    if (a->b->region != b->b->region)
        return a->b->region < b->b->region ? -1 : 1;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return a->b->offset < b->b->offset ? -1 : a->b->offset > b->b->offset;
}

/* Lives, found anew: instructions and functions that touch each buffer. */
static Life *find_lives(const Plan *p)
{
    Life *l = NEWN(Life, p->buffers.n);
    for (int i = 0; i < p->buffers.n; i++)
        l[i] = (Life){ &p->buffers.at[i], p->buffers.at[i].persistent ? 0 : INT32_MAX,
                       p->buffers.at[i].persistent ? p->insts.n : -1, -1, false, -1 };
    for (int f = 0; f < p->funcs.n; f++)
        for (int i = p->funcs.at[f].first; i < p->funcs.at[f].end; i++) {
            const Inst *n = &p->insts.at[i];
            for (int j = 0; j < n->nin + n->nout; j++) {
                Life *x = &l[p->values.at[j < n->nin ? n->in[j] : n->out[j - n->nin]].buffer];
                x->first = i < x->first ? i : x->first;
                x->last = i > x->last ? i : x->last;
                x->other |= x->func >= 0 && x->func != f;
                x->func = x->func < 0 ? f : x->func;
            }
        }
    return l;
}

static int slice_of(const Plan *p, const Life *l) { return p->funcs.at[l->func].slice; }
static int chunk_of(const Plan *p, const Life *l) { return p->funcs.at[l->func].chunk; }

/* In a region: the copy, one for each slice and chunk. In the block: what one function alone
 * touches is apart in time from what another does. */
static int group_of(const Plan *p, const Life *l)
{
    if (l->func < 0 || l->b->persistent)
        return -1;
    if (l->b->region == REGION_FIXED)
        return l->other ? -1 : l->func;
    return chunk_of(p, l) * p->is.nslices + (l->b->region < REGION_MICRO ? slice_of(p, l) : 0);
}

static void check_overlap(Verify *v, const Life *a, const Life *b)
{
    const Plan *p = v->p;
    if (b->last >= a->first && b->first <= a->last && b->last >= 0 &&
        b->b->offset < a->b->offset + bytes_of(p, a->b) &&
        a->b->offset < b->b->offset + bytes_of(p, b->b))
        verify_fail(v, b->first < p->insts.n ? b->first : NONE,
                    "buffers `%s` and `%s` are alive together and overlap", a->b->name, b->b->name);
}

/*
 * Buffers that are alive together do not share a byte. In one function each way all of
 * the block is one timeline. With more, what is in REGION_FIXED and not persistent must
 * belong to one function, and copies of regions are checked by check_regions.
 */
static void check_apart(Verify *v)
{
    const Plan *p = v->p;
    bool one = p->is.stages == 1 && p->is.chunks == 1 && p->is.nslices == 1;
    if (p->block_bytes == 0)
        return;
    Life *l = find_lives(p);
    for (int i = 0; i < p->buffers.n; i++)
        l[i].group = one ? 0 : group_of(p, &l[i]);
    qsort(l, (size_t)p->buffers.n, sizeof *l, by_place);
    for (int i = 0; i < p->buffers.n; i++) {
        int64_t end = l[i].b->offset + bytes_of(p, l[i].b);
        if (l[i].last < 0)
            continue;
        if (end > p->block_bytes || l[i].b->offset % 64)
            verify_fail(v, NONE, "buffer `%s` is outside the block or not aligned", l[i].b->name);
        if (!one && l[i].other && l[i].b->region == REGION_FIXED && !l[i].b->persistent)
            verify_fail(v, l[i].first, "buffer `%s` goes from function to function in room that "
                        "all share", l[i].b->name);
        for (int k = i + 1; k < p->buffers.n && l[k].b->region == l[i].b->region &&
                            (l[i].group < 0 || (l[k].group == l[i].group &&
                                                l[k].b->offset < end)); k++)
            check_overlap(v, &l[i], &l[k]);
    }
}

/* ---- copies of regions ---------------------------------------------------------------------- */

typedef struct { int microbatch; int64_t at, end; int first, last; } Copy;
typedef VEC(Copy) Copies;

static bool is_forward_side(StepKind k)
{
    return k == STEP_FORWARD || k == STEP_SEND_ACTIVATION || k == STEP_RECV_ACTIVATION;
}

/* Bytes that the buffers of a region's copy take. */
static int64_t copy_bytes(const Plan *p, const Life *l, int region, int slice, int chunk)
{
    int64_t end = 0;
    for (int i = 0; i < p->buffers.n; i++) {
        if ((int)l[i].b->region != region || l[i].func < 0 || chunk_of(p, &l[i]) != chunk ||
            (region < REGION_MICRO && slice_of(p, &l[i]) != slice))
            continue;
        int64_t e = l[i].b->offset + bytes_of(p, l[i].b);
        end = e > end ? e : end;
    }
    return end;
}

/* known: index of the copy in `all`, or -1. */
static void note_copy(const Plan *p, int64_t bytes, int region, int icall, int *known, Copies *all,
                      Verify *v)
{
    const Call *c = &p->calls.at[icall];
    Copy x = { c->step.microbatch, c->region[region], c->region[region] + bytes, icall, icall };
    if (*known < 0) {
        *known = all->n;
        vec_add(all, x);
    }
    Copy *o = &all->at[*known];
    if (o->at != x.at)
        verify_fail(v, NONE, "a region of microbatch %d moves while it is alive", x.microbatch);
    o->last = icall;
}

/* Copies stand in the order in which they begin. */
static void check_alive_together(Verify *v, const Copies *all)
{
    const Copy **alive = NEWN(const Copy *, all->n + 1);
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        const Copy *a = &all->at[i];
        int kept = 0;
        for (int k = 0; k < n; k++) {
            const Copy *b = alive[k];
            if (b->last < a->first)
                continue;
            alive[kept++] = b;
            if (a->at < b->end && b->at < a->end)
                verify_fail(v, NONE, "regions of microbatches %d and %d are alive together and "
                            "overlap", b->microbatch, a->microbatch);
        }
        n = kept;
        alive[n++] = a;
    }
}

/* Every copy of a region stays in its place, and apart from those alive with it. */
static void check_regions(Verify *v)
{
    const Plan *p = v->p;
    if (p->block_bytes == 0 || (p->is.stages == 1 && p->is.chunks == 1 && p->is.nslices == 1))
        return;
    Life *l = find_lives(p);
    int64_t fixed = 0;
    int units = p->is.nslices * p->is.chunks;
    int64_t *bytes = NEWN(int64_t, units * REGIONS);
    for (int i = 0; i < p->buffers.n; i++)
        if (l[i].b->region == REGION_FIXED && l[i].last >= 0 &&
            l[i].b->offset + bytes_of(p, l[i].b) > fixed)
            fixed = l[i].b->offset + bytes_of(p, l[i].b);
    for (int u = 0; u < units; u++)
        for (int r = REGION_UNIT; r < REGIONS; r++)
            bytes[u * REGIONS + r] = copy_bytes(p, l, r, u % p->is.nslices, u / p->is.nslices);
    Copies all = { 0 };
    int m = 0;                              // microbatches
    for (int i = 0; i < p->calls.n; i++)
        m = p->calls.at[i].step.microbatch >= m ? p->calls.at[i].step.microbatch + 1 : m;
    int *known = NEWN(int, m * units * REGIONS + 1);
    for (int i = 0; i < m * units * REGIONS; i++)
        known[i] = -1;
    for (int i = 0; i < p->calls.n; i++) {
        const Step *s = &p->calls.at[i].step;
        for (int r = REGION_UNIT; s->kind < STEP_SYNC && r < REGIONS; r++) {
            bool back = r == REGION_UNIT_BACK || r == REGION_MICRO_BACK;
            bool forth = is_forward_side(s->kind);
            int unit = s->chunk * p->is.nslices + s->slice;
            int whose = s->chunk * p->is.nslices + (r < REGION_MICRO ? s->slice : 0);
            int64_t n = bytes[unit * REGIONS + r];
            if (n > 0 && !(back && forth) && !(r == REGION_UNIT_FORTH && !forth))
                note_copy(p, n, r, i, &known[(s->microbatch * units + whose) * REGIONS + r],
                          &all, v);
        }
    }
    for (int i = 0; i < all.n; i++) {
        const Copy *a = &all.at[i];
        if (a->at < fixed || a->end > p->block_bytes || a->at % 64)
            verify_fail(v, NONE, "a region of microbatch %d lies outside its part of the block",
                        a->microbatch);
    }
    check_alive_together(v, &all);
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

/* ---- stages --------------------------------------------------------------------------------- */

static const Func *func_of(const Plan *p, StepKind kind, int slice, int chunk)
{
    for (int i = 0; i < p->funcs.n; i++) {
        const Func *f = &p->funcs.at[i];
        if (f->kind == kind && f->slice == slice && f->chunk == chunk)
            return f;
    }
    return NULL;
}

/* What one side sends is what the other expects: tensors, in order, of one layout. */
static void check_pair(Verify *v, const Plan *from, StepKind kind, const Func *out, const Plan *to,
                       const Func *in)
{
    if (out == NULL || in == NULL || out->end - out->first != in->end - in->first) {
        verify_fail(v, NONE, "stage %d and stage %d disagree on how much is in %s", from->stage,
                    to->stage, step_word[kind]);
        return;
    }
    for (int i = 0; i < out->end - out->first; i++) {
        const Inst *a = &from->insts.at[out->first + i], *b = &to->insts.at[in->first + i];
        if (a->coll != COLL_SEND || b->coll != COLL_RECV || a->nin != 1 || b->nout != 1 ||
            a->peer != to->stage || b->peer != from->stage) {
            verify_fail(v, out->first + i, "stage %d does not send where stage %d receives",
                        from->stage, to->stage);
            continue;
        }
        const Value *x = &from->values.at[a->in[0]], *y = &to->values.at[b->out[0]];
        if (x->tensor != y->tensor || x->rows != y->rows || x->cols != y->cols ||
            x->ld != x->cols || y->ld != y->cols ||
            from->buffers.at[x->buffer].dtype != to->buffers.at[y->buffer].dtype ||
            x->layout.rows != y->layout.rows ||
            x->layout.cols != y->layout.cols || x->layout.partial || y->layout.partial)
            verify_fail(v, out->first + i, "stage %d sends another value than stage %d expects",
                        from->stage, to->stage);
    }
}

/* Also that each function does transfers alone, or none. */
static void check_cuts(Verify *v)
{
    const Plan *p = v->p;
    int P = p->is.stages, last = P * p->is.chunks - 1;
    for (int f = 0; f < p->funcs.n; f++)
        for (int i = p->funcs.at[f].first; i < p->funcs.at[f].end; i++) {
            StepKind k = p->funcs.at[f].kind;
            bool moves = k >= STEP_SEND_ACTIVATION && k <= STEP_RECV_GRADIENT;
            const Inst *n = &p->insts.at[i];
            bool transfer = n->kind == I_COLL && (n->coll == COLL_SEND || n->coll == COLL_RECV);
            if (moves != transfer)
                verify_fail(v, i, "a transfer stands among computation, or the reverse");
        }
    if (P == 1 || p->stages[P - 1]->insts.n == 0)
        return;
    for (int c = 0; c < p->is.chunks; c++)
        for (int i = 0; i < p->is.nslices; i++) {
            int s = c * P + p->stage;
            const Plan *next = plan_stage(p, (s + 1) % P);
            if (s == last)
                continue;
            check_pair(v, p, STEP_SEND_ACTIVATION, func_of(p, STEP_SEND_ACTIVATION, i, c), next,
                       func_of(next, STEP_RECV_ACTIVATION, i, (s + 1) / P));
            check_pair(v, next, STEP_SEND_GRADIENT,
                       func_of(next, STEP_SEND_GRADIENT, i, (s + 1) / P), p,
                       func_of(p, STEP_RECV_GRADIENT, i, c));
        }
}

/* Collectives do not convert; gradients and what they are summed from are never rounded. */
static void check_dtypes(Verify *v)
{
    const Plan *p = v->p;
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        const Value *a = n->nin ? &p->values.at[n->in[0]] : NULL;
        const Value *c = n->nout ? &p->values.at[n->out[0]] : NULL;
        if (n->kind == I_COLL && a && c &&
            p->buffers.at[a->buffer].dtype != p->buffers.at[c->buffer].dtype)
            verify_fail(v, i, "its two sides are stored differently");
        if (c && c->unit != NONE && n->kind != I_COLL && n->kind != I_UPDATE &&
            p->buffers.at[c->buffer].dtype != D_REAL)
            verify_fail(v, i, "a gradient of `%s` is rounded to 16 bits",
                        p->units.at[c->unit].name);
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
    { "regions-apart",     check_regions,  ON_INSTS },
    { "dtypes-agree",      check_dtypes,   ON_INSTS },
    { "transfers-match",   check_cuts,     ON_INSTS },
    { "calls",             verify_calls,   ON_INSTS },      // names its own checks
};

/* What it makes is gone afterwards: it keeps nothing but the count of what failed. */
static void verify_stage(Verify *v)
{
    Aside aside = aside_begin();
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (checks[i].needs == ON_INSTS && v->p->insts.n == 0)
            continue;
        if (checks[i].needs == ON_GRAPH && v->p->stage > 0)
            continue;
        v->check = checks[i].name;
        checks[i].run(v);
    }
    aside_end(aside);
}

int verify_plan(const Plan *p, const char *after, FILE *f)
{
    Verify v = { .p = p, .after = after, .f = f };
    for (int r = 0; r < (p->stages ? p->is.stages : 1); r++) {
        v.p = plan_stage(p, r);
        verify_stage(&v);
    }
    if (v.failed > 10 && f)
        fprintf(f, "verify: %d more\n", v.failed - 10);
    return v.failed;
}
