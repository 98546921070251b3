/*
 * emit.c - instructions to runtime steps, and the list of kernels they need.
 *
 *   needs memory; fills Emitted; keeps the plan.
 *
 * Equal kernels are made once: a kernel's key spells out all that its code
 * depends on. Steps of equal turns differ only in offsets and names.
 */
#include <ctype.h>

#include "emit.h"
#include "price.h"

typedef struct {
    Emitted *all; StageTables *e;
    const Plan *p;
    Map *texts, *keys, *names;  // keys and names: of all stages
    Text key, more;             // being written: the same room for every kernel
    int64_t real;
} Emit;

static int32_t text(Emit *m, const char *s)
{
    if (s == NULL)
        return -1;
    int *at = map_at(m->texts, s);
    if (*at < 0) {
        *at = (int)m->e->text.n;
        text_bytes(&m->e->text, s, strlen(s) + 1);
    }
    return *at;
}

static RtRef ref(const Emit *m, ValueId id)
{
    const Value *v = &m->p->values.at[id];
    const Buffer *b = &m->p->buffers.at[v->buffer];
    return (RtRef){ b->offset + v->offset * dtype_bytes(m->p, b->dtype), v->ld, b->region,
                    b->dtype == D_BF16 ? RT_BF16_STORED : RT_REAL };
}

static const Value *val(const Emit *m, ValueId id) { return &m->p->values.at[id]; }

static int32_t columns_index(Emit *m, Columns c, Axes axis)
{
    RtColumns r = { m->e->segments.n, c.n, axis, 0 };
    for (int i = 0; i < m->e->columns.n; i++) {     // the same table again
        const RtColumns *o = &m->e->columns.at[i];
        bool same = o->nseg == c.n && o->axis == (int32_t)axis;
        for (int k = 0; same && k < c.n; k++) {
            const RtSegment *s = &m->e->segments.at[o->first + k];
            same = s->start == c.seg[k].start && s->width == c.seg[k].width &&
                   s->rep == (axis & AX_YK ? c.seg[k].rep : 1);
        }
        if (same)
            return i;
    }
    for (int k = 0; k < c.n; k++) {
        RtSegment s = { c.seg[k].start, c.seg[k].width, axis & AX_YK ? c.seg[k].rep : 1, 0 };
        vec_add(&m->e->segments, s);
    }
    vec_add(&m->e->columns, r);
    return m->e->columns.n - 1;
}

/* ---- kernels --------------------------------------------------------------------- */

const char *emit_name(const char *s)
{
    enum { MOST = 100 };
    char buf[MOST + 2];
    size_t n = 0;
    for (; *s && n < MOST; s++) {
        if (n == 0 && isdigit((unsigned char)*s))
            buf[n++] = 'n';
        if (isalnum((unsigned char)*s))
            buf[n++] = *s;
        else if (n > 0 && buf[n - 1] != '_')
            buf[n++] = '_';
    }
    while (n > 0 && buf[n - 1] == '_')
        n--;
    return n ? str_of(buf, n) : "unnamed";
}

/* Ends in what no name of a library does: `memset` would take the place of C's. */
static const char *symbol(Emit *m, const char *name, const char *tail)
{
    const char *base = str_fmt("%s%s", emit_name(name), tail), *unique = base;
    for (int k = 2; map_get(m->names, unique) >= 0; k++)
        unique = str_fmt("%s_%d", base, k);
    map_put(m->names, unique, 1);
    return unique;
}

/* One more number of a key, in hexadecimal. */
static void key_number(Text *key, int64_t n)
{
    char buf[20], *s = buf + sizeof buf;
    uint64_t rest = (uint64_t)n;
    do
        *--s = "0123456789abcdef"[rest & 15];
    while (rest >>= 4);
    *--s = ' ';
    text_bytes(key, s, (size_t)(buf + sizeof buf - s));
}

static void key_numbers(Text *key, const int64_t *all, int n)
{
    for (int i = 0; i < n; i++)
        key_number(key, all[i]);
}

/* Equal for the same bits alone. */
static void key_real(Text *key, double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    key_number(key, bits);
}

static int32_t kernel(Emit *m, KernelSpec s, const char *name, const char *tail, const char *more)
{
    s.is_double = m->real == 8;
    Text *key = &m->key;        // all that the code depends on
    key->n = 0;
    key_numbers(key, (int64_t[]){ s.kind, m->real, s.nrows, s.brows, s.cols, s.heads, s.kv_heads,
                s.hd, s.nseq, s.causal, s.window, s.rotary, s.interleaved, s.inverse,
                s.accumulate, s.copy, s.bf16 }, 17);
    key_numbers(key, s.ld, 9);
    key_real(key, s.scale);
    key_real(key, s.softcap);
    key_real(key, s.theta);
    text_add(key, "%s", more ? more : "");
    int at = map_get(m->keys, key->at);
    if (at >= 0)
        return at;
    s.key = str_of(key->at, key->n);
    s.name = symbol(m, name, str_fmt("%s_%s", tail, s.kind == K_ROWS ? "rows" : "kernel"));
    vec_add(&m->all->specs, s);
    map_put(m->keys, s.key, m->all->specs.n - 1);
    return m->all->specs.n - 1;
}

static const char *row_key(Emit *m, const RowProg *r)
{
    Text *t = &m->more;
    t->n = 0;
    key_numbers(t, (int64_t[]){ r->width, r->parts, r->part_width, r->needs_colmap,
                                 r->needs_rowmap, r->nargs }, 6);
    for (int i = 0; i < r->nargs; i++) {
        const RowArg *a = &r->arg[i];
        key_numbers(t, (int64_t[]){ a->is_out, a->accumulate, a->is_vector, a->bf16, a->length,
                                    a->ld, a->stride, a->per }, 8);
    }
    for (int i = 0; i < r->nnodes; i++) {
        const RowNode *n = &r->node[i];
        key_numbers(t, (int64_t[]){ n->kind, n->op, n->part, n->a, n->b, n->arg, n->salt }, 7);
        key_real(t, n->c);
    }
    text_bytes(t, "", 1);
    return t->at;
}

/* ---- one step per instruction ---------------------------------------------------------- */

static void arg(Emit *m, RtStep *s, ValueId v)
{
    vec_add(&m->e->args, ref(m, v));
    vec_add(&m->e->arg_values, v);
    s->nargs++;
}

/* Which of the step's arguments are stored in 16 bits. */
static uint32_t halves(const Emit *m, const RtStep *s)
{
    uint32_t mask = 0;
    for (int i = 0; i < s->nargs && i < 32; i++)
        mask |= (uint32_t)(step_args(m->e, s)[i].stored == RT_BF16_STORED) << i;
    return mask;
}

static void ld_of(const Emit *m, KernelSpec *s, const Inst *n)
{
    int k = 0;
    for (int j = 0; j < n->nin && k < 9; j++)
        s->ld[k++] = val(m, n->in[j])->ld;
    for (int j = 0; j < n->nout && k < 9; j++)
        s->ld[k++] = val(m, n->out[j])->ld;
}

static int32_t ids_of(const Emit *m, OpId op)
{
    const Op *o = &m->p->ops.at[op];
    switch (m->p->tensors.at[o->in[0]].ids) {
    case IDS_TOKENS:    return RT_IDS_TOKENS;
    case IDS_POSITIONS: return RT_IDS_POSITIONS;
    default:            return RT_IDS_TARGETS;
    }
}

static void in_out_args(Emit *m, RtStep *s, const Inst *n)
{
    for (int j = 0; j < n->nin; j++)
        arg(m, s, n->in[j]);
    for (int j = 0; j < n->nout; j++)
        arg(m, s, n->out[j]);
}

static void rows_step(Emit *m, RtStep *s, const Inst *n)
{
    const RowProg *r = &m->p->rowprogs.at[n->rows];
    s->kind = RT_KERNEL;
    for (int i = 0; i < r->nargs; i++)
        arg(m, s, r->arg[i].value);
    s->items = m->p->rowmaps.at[n->rowmap].count;
    s->rowmap = n->rowmap;
    if (r->needs_colmap)
        s->colmap = columns_index(m, r->columns, r->axis);
    s->first_salt = m->e->salts.n;
    for (int i = 0; i < r->nsalts; i++)
        vec_add(&m->e->salts, r->salt[i]);
    KernelSpec k = { .kind = K_ROWS, .rows = r, .nrows = 0, .cols = r->width };
    s->kernel = kernel(m, k, r->name, n->phase == PHASE_BACKWARD ? "_bwd" : "", row_key(m, r));
}

static void attention_step(Emit *m, RtStep *s, const Inst *n)
{
    const Op *o = &m->p->ops.at[n->op];
    bool back = n->kind == I_ATTN_DX;
    int64_t hd = m->p->tensors.at[o->in[0]].width / m->p->ops.at[back ? o->of : n->op].heads;
    const Op *f = &m->p->ops.at[back ? o->of : n->op];
    const Value *q = val(m, n->in[0]), *k = val(m, n->in[1]);
    KernelSpec spec = { .kind = back ? K_ATTN_DX : K_ATTN, .heads = q->cols / hd,
        .kv_heads = k->cols / hd, .hd = hd, .nseq = m->p->is.microbatch, .causal = f->causal,
        .window = f->window < m->p->is.sequence ? f->window : 0,    // a longer one is none
        .scale = f->scale, .softcap = f->softcap, .accumulate = n->accumulate };
    ld_of(m, &spec, n);
    in_out_args(m, s, n);
    spec.bf16 = halves(m, s);
    s->kind = RT_KERNEL;
    s->kernel = kernel(m, spec, f->name, back ? "_bwd" : "", NULL);
    if (back)
        s->items = m->p->is.microbatch * spec.kv_heads;
    else
        s->items_per_run = spec.heads;
    s->rowmap = n->rowmap;
    s->rowmap_k = n->rowmap_k;
    int slice = m->p->rowmaps.at[n->rowmap].first;
    double before = 0, mine = (double)m->p->is.slice[slice];
    for (int i = 0; i < slice; i++)
        before += (double)m->p->is.slice[i];
    double pairs = (double)q->rows * (before + mine * (f->causal ? 0.5 : 1));
    s->flops = (back ? 10 : 4) * pairs * (double)q->cols;
}

static void rope_step(Emit *m, RtStep *s, const Inst *n)
{
    const Op *o = &m->p->ops.at[n->op];
    KernelSpec k = { .theta = o->theta, .rotary = o->rotary, .interleaved = o->interleaved };
    s->kind = RT_KERNEL;
    if (n->kind == I_ROPE_TABLE) {
        k.kind = K_ROPE_TABLE;
        arg(m, s, n->out[0]);
        s->items = m->p->is.sequence;
    } else {
        const Value *x = val(m, n->in[0]), *y = val(m, n->out[0]);
        k.kind = K_ROPE;
        k.inverse = o->inverse;
        k.hd = m->p->tensors.at[o->in[0]].width / o->heads;
        k.heads = x->cols / k.hd;
        k.ld[0] = x->ld;
        k.ld[1] = y->ld;
        arg(m, s, n->in[0]);
        arg(m, s, n->out[0]);
        arg(m, s, n->in[1]);
        s->items = x->rows;
        s->rowmap = n->rowmap;
    }
    k.bf16 = halves(m, s);
    s->kernel = kernel(m, k, o->name, n->kind == I_ROPE_TABLE ? "_angles"
                                      : o->inverse ? "_bwd" : "", NULL);
}

static void embed_step(Emit *m, RtStep *s, const Inst *n)
{
    const Op *o = &m->p->ops.at[n->op];
    bool back = n->kind == I_EMBED_DW;
    const Value *table = val(m, back ? n->out[0] : n->in[0]);
    const Value *y = val(m, back ? n->in[0] : n->out[0]);
    KernelSpec k = { .kind = back ? K_EMBED_DW : K_EMBED, .nrows = y->rows, .cols = y->cols,
                     .brows = table->rows };
    ld_of(m, &k, n);
    in_out_args(m, s, n);
    s->kind = RT_KERNEL;
    s->ids = ids_of(m, n->op);
    s->unit = table->unit;
    s->rowmap = n->rowmap;
    s->items = back ? y->cols : y->rows;
    s->grain = back ? 16 : 1;
    k.bf16 = halves(m, s);
    s->kernel = kernel(m, k, m->p->ops.at[back ? o->of : n->op].name, back ? "_bwd" : "", NULL);
}

static void loss_step(Emit *m, RtStep *s, const Inst *n)
{
    const Value *x = val(m, n->in[0]);
    KernelSpec k = { .kind = n->kind == I_CE ? K_CE : K_CE_STAT, .cols = x->cols };
    k.ld[0] = x->ld;
    k.ld[1] = 3;
    arg(m, s, n->in[0]);
    arg(m, s, n->kind == I_CE ? n->in[1] : n->out[0]);
    s->kind = RT_KERNEL;
    s->ids = RT_IDS_TARGETS;
    s->rowmap = n->rowmap;
    s->colmap = columns_index(m, x->cols_map, AX_YK);
    s->items = x->rows;
    k.bf16 = halves(m, s);
    s->kernel = kernel(m, k, "loss", n->kind == I_CE ? "_gradient" : "_statistics", NULL);
}

/* The operands of a step that is no kernel. */
static void operands(Emit *m, RtStep *s, ValueId a, ValueId b, ValueId c)
{
    StepValues *v = &m->e->values.at[m->e->values.n - 1];
    *v = (StepValues){ a, b, c };
    if (a != NONE)
        s->a = ref(m, a);
    if (b != NONE)
        s->b = ref(m, b);
    if (c != NONE)
        s->c = ref(m, c);
}

static void coll_step(Emit *m, RtStep *s, const Inst *n)
{
    const Value *a = n->nin ? val(m, n->in[0]) : NULL, *c = n->nout ? val(m, n->out[0]) : NULL;
    static const int32_t kind[COLL_COUNT] = { RT_ALL_GATHER, RT_REDUCE_SCATTER, RT_ALL_REDUCE,
        RT_ALL_TO_ALL, RT_BROADCAST, RT_REDUCE, RT_SEND, RT_RECV };
    static const int32_t a2a[] = { RT_A2A_AB, RT_A2A_BA, RT_A2A_HEADS, RT_A2A_TOKENS };
    s->kind = kind[n->coll];
    s->axes = n->axes;
    s->stages = n->stages;
    s->rep = n->rep;
    s->reason = text(m, n->reason);
    s->accumulate = n->accumulate;
    s->slice = n->slice;
    if (n->coll == COLL_SEND || n->coll == COLL_RECV) {
        const Value *v = n->coll == COLL_SEND ? val(m, n->in[0]) : val(m, n->out[0]);
        bool sends = n->coll == COLL_SEND;
        operands(m, s, sends ? n->in[0] : NONE, NONE, sends ? NONE : n->out[0]);
        s->rows = v->rows;
        s->cols = v->cols;
        s->count = v->rows * v->cols;
        s->peer = n->peer;
        return;
    }
    if (n->coll == COLL_BROADCAST || n->coll == COLL_REDUCE)
        s->peer = n->peer;
    operands(m, s, n->in[0], NONE, n->out[0]);
    s->rows = a->rows;
    s->cols = a->cols;
    s->count = n->coll == COLL_REDUCE_SCATTER ? c->rows * c->cols : a->rows * a->cols;
    if (n->coll != COLL_ALL_TO_ALL)
        return;
    s->a2a = a2a[n->a2a];
    Axes ca = n->a2a == A2A_AB ? AX_Z : AX_YK, cc = n->a2a == A2A_AB ? AX_YK : AX_Z;
    const Tensor *t = &m->p->tensors.at[a->tensor];
    s->columns_src = columns_index(m, a->cols_map, t->width > 1 ? ca : 0);
    s->columns_dst = columns_index(m, c->cols_map, t->width > 1 ? cc : 0);
}

static void merge_step(Emit *m, RtStep *s, const Inst *n)
{
    s->kind = n->kind == I_MERGE ? RT_MERGE : RT_CE_MERGE;
    s->axes = n->axes;
    s->rep = 1;
    operands(m, s, n->in[0], NONE, n->out[0]);
    s->rows = val(m, n->out[0])->rows;
    s->nstats = n->nstats;
    s->stat_n = n->stat_n;
    for (int i = 0; i < n->nstats && i < RT_MAX_ARGS; i++)      // arg() reports more
        s->stat[i] = n->stat[i] == OP_SUM ? 0 : n->stat[i] == OP_ROWMAX ? 1
                   : n->stat[i] == OP_VAR ? 2 : 3;
    for (int i = 0; n->kind == I_MERGE && i < n->nout; i++)
        arg(m, s, n->out[i]);
}

static void plain_step(Emit *m, RtStep *s, const Inst *n)
{
    const Value *a = n->nin ? val(m, n->in[0]) : NULL, *c = n->nout ? val(m, n->out[0]) : NULL;
    operands(m, s, n->nin ? n->in[0] : NONE, n->nin > 1 ? n->in[1] : NONE,
             n->nout ? n->out[0] : NONE);
    s->accumulate = n->accumulate;
    switch (n->kind) {
    case I_GEMM:
        s->kind = RT_GEMM;
        s->trans_a = n->trans_a;
        s->trans_b = n->trans_b;
        s->m = n->m;
        s->n = n->n;
        s->k = n->k;
        s->flops = 2.0 * (double)n->m * (double)n->n * (double)n->k;
        break;
    case I_COLSUM:
        s->kind = RT_COLSUM;
        s->count = c->cols;
        break;
    case I_COPY:
        s->kind = RT_COPY;
        s->rows = a->rows;
        s->cols = a->cols;
        break;
    case I_ZERO:
        s->kind = RT_ZERO;
        s->count = c->rows * c->cols;
        break;
    case I_COUNT:
        s->kind = RT_COUNT;
        break;
    case I_NORM:
        s->kind = RT_NORM;
        break;
    case I_TOTALS:
        s->kind = RT_TOTALS;
        break;
    case I_UPDATE:
        s->kind = RT_UPDATE;
        break;
    default:
        bug("instruction %s is not emitted", inst_word[n->kind]);
    }
}

/* What the step writes on every rank. Statistics of the loss may be infinite: columns of padding
 * alone. */
static void outs(Emit *m, RtStep *s, const Inst *n)
{
    s->first_out = m->e->outs.n;
    bool one_rank = n->kind == I_COLL && n->coll == COLL_REDUCE;
    bool looked_at = !one_rank && n->kind != I_CE_STAT && n->kind != I_CE_MERGE;
    for (int j = 0; j < n->nout && looked_at; j++) {
        const Value *v = val(m, n->out[j]);
        if (m->p->buffers.at[v->buffer].dtype == D_I32)
            continue;
        const char *name = v->unit != NONE ? m->p->units.at[v->unit].name
                         : v->tensor != NONE ? m->p->tensors.at[v->tensor].name : n->name;
        RtOut o = { ref(m, n->out[j]), v->rows, v->cols, text(m, name), 0 };
        vec_add(&m->e->outs, o);
    }
    s->nouts = m->e->outs.n - s->first_out;
}

/* What belongs to no operator (sums of a step, the optimizer) is told by the loss's line. */
static Loc loss_place(const Plan *p)
{
    for (int i = p->nforward - 1; i >= 0; i--)
        if (p->ops.at[i].kind == OP_CE)
            return p->ops.at[i].loc;
    return (Loc){ 0 };
}

static void step(Emit *m, const Inst *n)
{
    RtStep s = { .phase = (int32_t)n->phase, .kernel = -1, .rep = 1, .rowmap = -1, .rowmap_k = -1,
                 .colmap = -1, .columns_src = -1, .columns_dst = -1, .unit = -1, .grain = 1,
                 .reason = -1, .peer = -1, .first_arg = m->e->args.n };
    s.name = text(m, n->name);
    Loc at = n->loc.end ? n->loc : loss_place(m->p);
    s.source = text(m, at.end ? source_where(at) : "");
    outs(m, &s, n);
    vec_add(&m->e->values, ((StepValues){ NONE, NONE, NONE }));
    switch (n->kind) {
    case I_ROWS:
        rows_step(m, &s, n);
        break;
    case I_ATTN: case I_ATTN_DX:
        attention_step(m, &s, n);
        break;
    case I_ROPE: case I_ROPE_TABLE:
        rope_step(m, &s, n);
        break;
    case I_EMBED: case I_EMBED_DW:
        embed_step(m, &s, n);
        break;
    case I_CE_STAT: case I_CE:
        loss_step(m, &s, n);
        break;
    case I_COLL:
        coll_step(m, &s, n);
        break;
    case I_MERGE: case I_CE_MERGE:
        merge_step(m, &s, n);
        break;
    default:
        plain_step(m, &s, n);
    }
    if (s.nargs > RT_MAX_ARGS && !diag_errors())
        diag_error(n->loc, "too-large", "`%s` works on %d tensors at once; at most %d are "
                   "supported", n->op != NONE ? m->p->ops.at[n->op].name : n->name, s.nargs,
                   RT_MAX_ARGS);
    /* Gradients: the first microbatch overwrites, later ones add. */
    if (n->nout == 1 && !s.accumulate && n->phase <= PHASE_BACKWARD &&
        m->p->buffers.at[val(m, n->out[0])->buffer].class == BUF_GRADS)
        s.accumulate_later = 1;
    vec_add(&m->e->steps, s);
}

/* ---- parameters and head ------------------------------------------------------------------- */

static void params(Emit *m)
{
    const Plan *p = m->p;
    for (int i = 0; i < p->params.n; i++) {
        const Param *a = &p->params.at[i];
        RtParam r = { .name = text(m, a->name), .kind = (int32_t)a->kind, .out_in = a->out_in,
                      .decay = a->decay, .init = (int32_t)a->init, .init_a = a->init_a,
                      .rows = a->rows, .width = a->width };
        vec_add(&m->e->params, r);
    }
    for (int i = 0; i < p->units.n; i++) {
        const ParamUnit *u = &p->units.at[i];
        const Param *a = &p->params.at[u->piece[0].param];
        RtUnit r = { .name = text(m, u->name), .source = text(m, source_where(u->loc)),
                     .rows = columns_index(m, u->rows, u->row_axis), .col_axis = u->col_axis,
                     .first_piece = m->e->pieces.n, .npieces = u->npieces, .spread = u->spread,
                     .rep = u->rep, .repl = u->repl, .brows = u->brows, .bcols = u->bcols,
                     .shard = u->shard, .offset = u->offset, .counts = u->first_stage };
        r.limit_rows = u->is_table ? a->rows : INT64_MAX;
        r.limit_cols = u->pad_cols ? a->width : INT64_MAX;
        for (int k = 0; k < u->npieces; k++) {
            RtPiece c = { u->piece[k].param, u->piece[k].cols.rep, u->piece[k].cols.start,
                          u->piece[k].cols.width, u->piece[k].local_start };
            vec_add(&m->e->pieces, c);
        }
        vec_add(&m->e->units, r);
    }
    for (int i = 0; i < p->rowmaps.n; i++) {
        const RowMap *a = &p->rowmaps.at[i];
        RtRowMap r = { a->axes, a->first, a->nslices, 0, a->chunk, a->chunk_i, a->count };
        vec_add(&m->e->rowmaps, r);
    }
}

static int64_t token_limit(const Plan *p)       // rows of the smallest table tokens look up
{
    int64_t n = p->vocab > 0 ? p->vocab : INT64_MAX;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind != OP_EMBED || p->tensors.at[o->in[0]].ids != IDS_TOKENS)
            continue;
        int64_t rows = p->params.at[p->tensors.at[o->in[1]].param].rows;
        n = rows < n ? rows : n;
    }
    return n;
}

/* A path is relative to the file that names it. */
static const char *path_in(const char *dir, const char *path)
{
    bool plain = path == NULL || *path == '/' || strcmp(dir, ".") == 0;
    return plain ? path : str_fmt("%s/%s", dir, path);
}

static void train_head(Emit *m, RtHeader *h)
{
    const Train *t = &m->p->config->train;
    h->train.data = text(m, t->data.v);
    h->train.data_dir = text(m, t->data_dir);
    h->train.format = text(m, t->format.v);
    h->train.order = text(m, t->order.v);
    h->train.steps = (int64_t)t->steps.v;
    h->train.warmup = t->warmup;
    h->train.decay_steps = t->decay;
    h->train.lr = t->lr;
    h->train.beta1 = t->beta1;
    h->train.beta2 = t->beta2;
    h->train.eps = t->eps;
    h->train.weight_decay = t->weight_decay;
    h->train.momentum = t->momentum;
    h->train.lr_min = t->lr_min;
    h->train.clip = t->clip.v;
    h->train.schedule = (int32_t)t->schedule;
    h->train.weights = text(m, path_in(t->weights_dir, t->weights.v));
    h->train.checkpoint_every = t->checkpoint_every;
    h->train.checkpoint_dir = text(m, t->checkpoint_dir);
    h->train.validate_every = t->validate_every;
    h->train.validate_batches = t->validate_batches;
    h->train.validate_data = text(m, t->validate_data);
    h->train.log = text(m, path_in(t->log_dir, t->log.v));
    h->train.seed = (uint64_t)t->seed.v;
    h->optimizer = (int32_t)t->optimizer;
    h->objective = (int32_t)t->objective;
    h->mask_p = t->mask_p;
    h->mask_token = (int32_t)t->mask_token;
}

static void head(Emit *m)
{
    const Plan *p = m->p;
    RtHeader *h = &m->e->head;
    const Choices *is = &p->is;
    h->version = RT_VERSION;
    h->header_bytes = sizeof *h;
    h->step_bytes = sizeof(RtStep);
    h->real_bytes = (uint32_t)m->real;
    h->stage = p->stage;
    h->nstages = is->stages;
    h->data = is->data;
    h->x = is->x;
    h->y = is->y;
    h->z = is->z;
    h->zero = is->zero;
    h->workers = is->workers;
    h->balanced = is->balanced;
    h->microbatches = (int32_t)(is->batch / is->data / is->microbatch);
    h->batch = is->batch;
    h->sequence = is->sequence;
    h->T = is->T;
    h->vocab = p->vocab;
    h->token_limit = token_limit(p);
    h->block_bytes = p->block_bytes;
    if (p->config->has_cluster && p->config->cluster.device >= 0) {
        Mesh mesh = price_mesh(p);
        h->node = (int32_t)p->config->cluster.per_node.v;
        h->ports = (int32_t)p->config->cluster.ports.v;
        for (int i = 0; i < MESH_AXES; i++)
            h->place[i] = mesh.stride[i];
    }
    h->flat = p->flat;
    h->flat_pad = p->flat_pad;
    train_head(m, h);
    h->params_offset = p->buffers.at[THE_PARAMS].offset;
    h->grads_offset = p->buffers.at[THE_GRADS].offset;
    h->m_offset = p->buffers.at[THE_M].offset;
    h->v_offset = h->optimizer == 0 ? p->buffers.at[THE_V].offset : -1;
    bool master = is->precision == PREC_BF16;
    h->master_offset = master ? p->buffers.at[THE_MASTER].offset : -1;
    h->params_stored = master ? RT_BF16_STORED : RT_REAL;
    h->ignore = -1;
    for (int i = 0; i < p->nforward; i++)
        if (p->ops.at[i].kind == OP_CE)
            h->ignore = (int32_t)p->ops.at[i].ignore;
    KernelSpec k = { .kind = h->optimizer == 0 ? K_ADAMW : K_SGD, .copy = master };
    h->update_kernel = kernel(m, k, h->optimizer == 0 ? "adamw" : "sgd", "", NULL);
    k.kind = K_NORM;
    k.copy = false;
    h->norm_kernel = kernel(m, k, "gradient_norm", "", NULL);
    h->model_name = text(m, p->model_name);
    h->plan_line = text(m, plan_line(p));
}

/* The step table: each call as a pass over the steps of its function. */
static void passes(Emit *m)
{
    const Plan *p = m->p;
    vec_reserve(&m->e->passes, p->calls.n);
    for (int i = 0; i < p->calls.n; i++) {
        const Call *c = &p->calls.at[i];
        const Func *f = &p->funcs.at[c->func];
        RtPass r = { .kind = (int32_t)c->step.kind, .first = f->first, .last = f->end,
                     .microbatch = c->step.microbatch, .slice = c->step.slice,
                     .chunk = c->step.chunk, .again = c->again, .func = c->func,
                     .after = c->after };
        for (int k = 0; k < REGIONS; k++)
            r.region[k] = c->region[k];
        vec_add(&m->e->passes, r);
        if (r.after >= 0)
            m->e->passes.at[r.after].awaited = 1;
    }
    for (int i = 0; i < p->is.nslices; i++)
        vec_add(&m->e->slices, p->is.slice[i]);
}

static void one_stage(Emit *m)
{
    params(m);
    vec_reserve(&m->e->steps, m->p->insts.n);
    vec_reserve(&m->e->values, m->p->insts.n);
    for (int i = 0; i < m->p->insts.n; i++)
        step(m, &m->p->insts.at[i]);
    passes(m);
    head(m);
    StageTables *e = m->e;
    RtHeader *h = &e->head;
    h->nsteps = e->steps.n;
    h->nparams = e->params.n;
    h->nunits = e->units.n;
    h->npieces = e->pieces.n;
    h->nsegments = e->segments.n;
    h->ncolumns = e->columns.n;
    h->nrowmaps = e->rowmaps.n;
    h->npasses = e->passes.n;
    h->nslices = e->slices.n;
    h->nouts = e->outs.n;
    h->nargs = e->args.n;
    h->nsalts = e->salts.n;
    h->text_bytes = (int32_t)e->text.n;
}

static uint64_t params_hash(const StageTables *e)
{
    return hash_bytes(e->params.at, sizeof *e->params.at * (size_t)e->params.n, 0);
}

uint64_t emitted_model_hash(const Plan *p)
{
    StageTables e = { 0 };
    Emit m = { .p = p, .e = &e, .texts = map_new() };
    params(&m);
    return params_hash(&e);
}

Emitted *emit_program(const Plan *p)
{
    Emitted *e = NEW(Emitted);
    Emit m = { .all = e, .keys = map_new(), .names = map_new(),
               .real = p->is.precision == PREC_FP64 ? 8 : 4 };
    uint64_t hash = 0;
    e->nstages = p->is.stages;
    e->stage = NEWN(StageTables, e->nstages);
    for (int r = 0; r < e->nstages; r++) {
        m.e = &e->stage[r];
        m.p = plan_stage(p, r);
        m.texts = map_new();
        one_stage(&m);
        hash = hash_bytes(m.e->steps.at, sizeof *m.e->steps.at * (size_t)m.e->steps.n, hash);
        hash = hash_bytes(m.e->args.at, sizeof *m.e->args.at * (size_t)m.e->args.n, hash);
    }
    for (int r = 0; r < e->nstages; r++) {
        RtHeader *h = &e->stage[r].head;
        h->nkernels = e->specs.n;
        h->model_hash = params_hash(m.e);
        h->plan_hash = hash;
    }
    return e;
}

const RtProgram *emitted_program(const Emitted *e, const RtKernelFn *kernels)
{
    RtProgram *out = NEWN(RtProgram, e->nstages);
    for (int r = 0; r < e->nstages; r++) {
        const StageTables *s = &e->stage[r];
        out[r] = (RtProgram){ .head = &s->head, .steps = s->steps.at, .params = s->params.at,
            .units = s->units.at, .pieces = s->pieces.at, .segments = s->segments.at,
            .columns = s->columns.at, .rowmaps = s->rowmaps.at, .passes = s->passes.at,
            .slices = s->slices.at, .outs = s->outs.at,
            .args = s->args.at, .salts = s->salts.at, .text = s->text.at, .kernels = kernels };
    }
    return out;
}
