/*
 * emit_cuda.c - the plan as a CUDA program that a person can read.
 *
 *   needs memory; writes DIR/program.cu and what belongs to it; keeps the plan.
 *
 * The steps are those that the CPU target runs (emit.c): kernels come from its list,
 * each once. Steps of one turn become a C function; addresses are its parameters, so
 * that equal turns, and equal stages, share the text:
 *
 *     static void layer_ln_1_forward(Ctx *c, const int64_t *o)   o: byte offsets
 *     static void stage0_1(Ctx *c)
 *     {
 *         for (int i = 0; i < 12; i++)
 *             layer_ln_1_forward(c, numbers_1 + 40 + 25 * i);
 *     }
 *
 * Two turns are equal when their text is: the code grows with the number of distinct
 * operators, not with layers, ranks, microbatches, or slices of one length. What differs from
 * slice to slice (where its keys and values stand, the tables of its rows) is in a second list, s.
 */
#include <errno.h>
#include <sys/stat.h>

#include "commands.h"
#include "emit_cuda.h"
#include "print.h"

enum {
    VEC_BYTES = 32,             // eight neighbours, be they bf16 or float
    SHARED_BYTES = 48 << 10,    // what a block has without asking
    FEW = 64                    // TUNING: hardly a piece has more operands
};

/* One of the numbers that a piece gets: where a value stands, an event, or what differs from
 * slice to slice. */
typedef struct { int64_t n; ValueId value; } Ref;

typedef struct { int stage, step; } Made;   // the first step that asks for a kernel
typedef struct { const char *name; int nrefs, nown; } PieceText;
typedef VEC(TurnPiece) Pieces;
typedef struct { Pieces all; unsigned used; } FuncPieces;   // of a function; its streams, as bits

/* A function of one stage or of several, of one slice or of several: their text is the same. */
typedef struct { const char *name, *array, *body; StepKind kind; int chunk; bool *stages, *slices; }
    PassFunc;

typedef struct {
    const Plan *p;                  // of the stage at hand
    const Emitted *e;
    const StageTables *s;
    Ending *const *ends;            // by stage and step
    int stage;
    Text kernels, pieces;
    Map *known, *names;             // texts of pieces; names taken
    VEC(PieceText) texts;
    Map *arrays;                    // numbers of functions, as text -> part of its name
    Map *bodies; VEC(PassFunc) passes;      // functions and tables by their text
    Text fresh;                     // arrays of the function at hand
    int narrays;
    const Func *func;               // being written
    VEC(Ref) refs, own;             // of the piece being written: in o, in s
    bool *called;                   // by kernel: a row program that is called
    Made *made;                     // by kernel
    int *aligned;                   // by kernel: elements its operands are aligned to
    CudaRows *how;                  // by kernel
    Numbers groups;                 // of all stages: axes, rep, stages
    Numbers tiles;                  // of the stage: rowmap, rowmap_k, causal, window
    Numbers boxes;                  // of the stage: one step of each kind of all-to-all
    int64_t scratch, sum[STREAMS];  // bytes beside the block
    unsigned used;                  // of the function: streams, as bits
    const char *pointers[2][RT_REGIONS][2][FEW];    // texts of `at`, as they are asked for
    VEC(int) marked;                // of the piece: events recorded in it, and their place in o
} Cuda;

/* ---- operands ------------------------------------------------------------------------ */

static const char *const region_word[RT_REGIONS] = {
    "RT_FIXED", "RT_UNIT", "RT_UNIT_FORTH", "RT_UNIT_BACK", "RT_MICRO", "RT_MICRO_BACK"
};

static const char *type_of(const RtRef *r) { return r->stored == RT_BF16_STORED ? "bf16" : "real"; }

/* The value that a reference of a step of this stage is to. */
static ValueId value_of(const Cuda *m, const RtRef *r)
{
    const StageTables *e = m->s;
    if (r >= e->args.at && r < e->args.at + e->args.n)
        return e->arg_values.at[r - e->args.at];
    size_t i = (size_t)((const char *)r - (const char *)e->steps.at) / sizeof *e->steps.at;
    const StepValues *v = &e->values.at[i];
    return r == &e->steps.at[i].a ? v->a : r == &e->steps.at[i].b ? v->b : v->c;
}

/* A number that the piece gets: its place in `o`. */
static int number(Cuda *m, int64_t n)
{
    Ref r = { n, NONE };
    vec_add(&m->refs, r);
    return m->refs.n - 1;
}

static bool is_sliced(const Cuda *m) { return m->p->is.nslices > 1; }

/*
 * A pointer: which of the piece's offsets, counted from which region. Each value has its own:
 * were it each address, the text would hang on who happens to stand where somebody else stood.
 * Keys, values and their gradients stand elsewhere for each slice: in `s`.
 */
static const char *at(Cuda *m, const RtRef *r)
{
    ValueId v = value_of(m, r);
    int k = 0;
    bool own = is_sliced(m) && r->region >= RT_MICRO;
    const Ref *known = own ? m->own.at : m->refs.at;
    int n = own ? m->own.n : m->refs.n;
    Ref fresh = { r->offset, v };
    if (v == NONE)
        bug("emit_cuda: a reference to no value");
    while (k < n && known[k].value != v)
        k++;
    if (k == n && own)
        vec_add(&m->own, fresh);
    else if (k == n)
        vec_add(&m->refs, fresh);
    const char *other = NULL, **text = &other;
    if (k < FEW)
        text = &m->pointers[r->stored == RT_BF16_STORED][r->region][own][k];
    if (*text == NULL)
        *text = str_fmt("at<%s>(c, %s, %c[%d])", type_of(r), region_word[r->region],
                        own ? 's' : 'o', k);
    return *text;
}

/* The index of a table of the slice's. */
static const char *of_slice(Cuda *m, int64_t n)
{
    Ref r = { n, NONE };
    if (!is_sliced(m))
        return str_fmt("%" PRId64, n);
    vec_add(&m->own, r);
    return str_fmt("s[%d]", m->own.n - 1);
}

/* Has another slice of the microbatch come before, in the direction of the function? */
static bool follows(const Cuda *m)
{
    const Func *f = m->func;
    bool forth = f->kind == STEP_FORWARD || f->kind == STEP_SEND_ACTIVATION ||
                 f->kind == STEP_RECV_ACTIVATION;
    return f->kind < STEP_SYNC && (forth ? f->slice > 0 : f->slice + 1 < m->p->is.nslices);
}

/* Is the step's result a sum of gradients over the training step? */
static bool is_gradient(const Cuda *m, const RtStep *s)
{
    const Inst *n = &m->p->insts.at[s - m->s->steps.at];
    return n->nout == 1 && n->phase <= PHASE_BACKWARD &&
           m->p->buffers.at[m->p->values.at[n->out[0]].buffer].class == BUF_GRADS;
}

/* What later slices always add to and the first one where `again`, all ask in one way. */
static const char *again(const Cuda *m, const RtStep *s)
{
    bool shared = is_sliced(m) && m->func->kind < STEP_SYNC;
    if (shared && (follows(m) ? s->accumulate && is_gradient(m, s) : s->accumulate_later))
        return "c->begun";
    return s->accumulate ? "true" : s->accumulate_later ? "c->again" : "false";
}

/* Index of the n numbers in a list of such; added where they are new. */
static int listed(Numbers *list, const int64_t *key, int n)
{
    for (int i = 0; i < list->n; i += n)
        if (memcmp(&list->at[i], key, sizeof *key * (size_t)n) == 0)
            return i / n;
    for (int i = 0; i < n; i++)
        vec_add(list, key[i]);
    return list->n / n - 1;
}

static int group_of(Cuda *m, const RtStep *s)
{
    return listed(&m->groups, (int64_t[]){ s->axes, s->rep, (int64_t)s->stages }, 3);
}

/* All-to-alls that move the same boxes. */
static int boxes_of(Cuda *m, const RtStep *s)
{
    for (int i = 0; i < m->boxes.n; i++) {
        const RtStep *o = &m->s->steps.at[m->boxes.at[i]];
        if (o->a2a == s->a2a && o->axes == s->axes && o->rep == s->rep && o->rows == s->rows &&
            o->a.stored == s->a.stored &&
            o->cols == s->cols && o->columns_src == s->columns_src && o->slice == s->slice &&
            o->columns_dst == s->columns_dst && o->a.ld == s->a.ld && o->c.ld == s->c.ld)
            return i;
    }
    vec_add(&m->boxes, s - m->s->steps.at);
    return m->boxes.n - 1;
}

static const char *name_of(const Cuda *m, int32_t at)
{
    return at < 0 ? "" : m->s->text.at + at;
}

/* Room beside the block: delta of attention, operands that change their type; sums that
 * are added to what is there. */
static void needs_room(Cuda *m, const RtStep *s, StreamId stream)
{
    int64_t real = m->e->stage[0].head.real_bytes, room = 0;
    if (s->kind == RT_GEMM && s->a.stored != s->b.stored)
        room = 2 * (s->a.stored == RT_REAL ? s->m : s->n) * s->k;
    if (s->kind == RT_KERNEL && m->e->specs.at[s->kernel].kind == K_ATTN_DX)
        room = m->p->rowmaps.at[s->rowmap].count * m->e->specs.at[s->kernel].heads * real;
    bool sums = s->kind == RT_REDUCE_SCATTER || s->kind == RT_REDUCE;
    int64_t sum = sums ? s->count * real : 0;
    m->scratch = room > m->scratch ? room : m->scratch;
    m->sum[stream] = sum > m->sum[stream] ? sum : m->sum[stream];
}

/* ---- one step ------------------------------------------------------------------------- */

static void gemm(Cuda *m, Text *t, const RtStep *s)
{
    text_add(t, "    gemm(c, %s, %" PRId64 ", %s,\n", at(m, &s->a), s->a.ld,
             s->trans_a ? "true" : "false");
    text_add(t, "         %s, %" PRId64 ", %s,\n", at(m, &s->b), s->b.ld,
             s->trans_b ? "true" : "false");
    text_add(t, "         %s, %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %s);\n",
             at(m, &s->c), s->c.ld, s->m, s->n, s->k, again(m, s));
}

static void rows_kernel(Cuda *m, Text *t, const RtStep *s, const KernelSpec *k)
{
    const CudaRows *how = &m->how[s->kernel];
    const RowProg *p = k->rows;
    bool sums = false;
    for (int i = 0; i < p->nnodes; i++)
        sums |= p->node[i].kind == R_COLSUM;
    int per = how->block / how->group;
    const char *blocks = sums ? "TERACUBE_WORKERS"
        : str_fmt("blocks(c, %" PRId64 ", %d)", s->items * p->parts, per);
    if (how->shared > SHARED_BYTES)
        text_add(t, "    shared_memory(c, %s, %" PRId64 ");\n", k->name, how->shared);
    text_add(t, "    %s<<<%s, %d, %" PRId64 ", c->compute>>>(\n", k->name, blocks, how->block,
             how->shared);
    for (int i = 0; i < s->nargs; i++)
        text_add(t, "        %s,\n", at(m, &step_args(m->s, s)[i]));
    text_add(t, "        %" PRId64, s->items);
    if (p->needs_colmap)
        text_add(t, ", c->column[%d]", s->colmap);
    if (p->needs_rowmap)
        text_add(t, ", c->rows[%s].token, c->seed, c->step, c->evaluate", of_slice(m, s->rowmap));
    for (int i = 0; i < p->nsalts; i++)
        text_add(t, ", (uint32_t)o[%d]", number(m, m->s->salts.at[s->first_salt + i]));
    text_add(t, ");\n");
}

static int tiles_of(Cuda *m, const RtStep *s, const KernelSpec *k)
{
    return listed(&m->tiles, (int64_t[]){ s->rowmap, s->rowmap_k, k->causal, k->window }, 4);
}

static void attention(Cuda *m, Text *t, const RtStep *s, const KernelSpec *k)
{
    bool back = k->kind == K_ATTN_DX;
    const RtRef *arg = step_args(m->s, s);
    text_add(t, "    attention%s<%" PRId64 ">(c, %s, { %" PRId64 ", %" PRId64 ", %s, %" PRId64
             ", %.17g, %.17g },\n", back ? "_backward" : "", k->hd,
             of_slice(m, tiles_of(m, s, k)), k->heads, k->kv_heads, k->causal ? "true" : "false",
             k->window, k->scale, k->softcap);
    for (int i = 0; i < s->nargs; i++)
        text_add(t, "        %s, %" PRId64 "%s\n", at(m, &arg[i]), arg[i].ld,
                 i + 1 < s->nargs ? "," : back ? "," : ");");
    if (back)
        text_add(t, "        %s);\n", k->accumulate == follows(m) && is_sliced(m)
                 ? "c->follows" : k->accumulate ? "true" : "false");
}

static void other_kernel(Cuda *m, Text *t, const RtStep *s, const KernelSpec *k)
{
    const RtRef *arg = step_args(m->s, s);
    switch (k->kind) {
    case K_ROPE:
        text_add(t, "    rope(c, %s, %s, %" PRId64 ", %s, %" PRId64 ", %s, %" PRId64 ", %" PRId64
                 ", %" PRId64 ", %" PRId64 ", %s, %s);\n", of_slice(m, s->rowmap), at(m, &arg[0]),
                 k->ld[0], at(m, &arg[1]), k->ld[1], at(m, &arg[2]), s->items, k->heads, k->hd,
                 k->rotary, k->interleaved ? "true" : "false", k->inverse ? "true" : "false");
        break;
    case K_ROPE_TABLE:
        text_add(t, "    rope_table(c, %s, %" PRId64 ", %" PRId64 ", %.17g);\n", at(m, &arg[0]),
                 s->items, k->rotary, k->theta);
        break;
    case K_EMBED: case K_EMBED_DW:
        text_add(t, "    embed%s(c, %s, %s, %d, %s, %" PRId64 ", %s, %" PRId64 ", %" PRId64
                 ", %" PRId64 ", %" PRId64 ");\n", k->kind == K_EMBED ? "" : "_gradient",
                 of_slice(m, s->rowmap),
                 s->ids == RT_IDS_POSITIONS ? "IDS_POSITIONS" : "IDS_TOKENS",
                 m->s->units.at[s->unit].rows, at(m, &arg[0]), k->ld[0], at(m, &arg[1]),
                 k->ld[1], m->p->rowmaps.at[s->rowmap].count, k->cols, k->brows);
        break;
    case K_CE_STAT: case K_CE:
        text_add(t, "    loss_%s(c, %s, %d, %s, %" PRId64 ", %s, %" PRId64 ", %" PRId64 ");\n",
                 k->kind == K_CE ? "gradient" : "statistics", of_slice(m, s->rowmap), s->colmap,
                 at(m, &arg[0]), k->ld[0], at(m, &arg[1]), s->items, k->cols);
        break;
    default:
        bug("emit_cuda: kernel kind %d", k->kind);
    }
}

static void merge(Cuda *m, Text *t, const RtStep *s)
{
    text_add(t, "    {\n        real *const to[] = { ");
    for (int i = 0; i < s->nstats; i++)
        text_add(t, "%s%s", i ? ", " : "", at(m, &step_args(m->s, s)[i]));
    text_add(t, " };\n        static const uint8_t kind[] = { ");
    for (int i = 0; i < s->nstats; i++)
        text_add(t, "%s%d", i ? ", " : "", s->stat[i]);
    text_add(t, " };\n        merge(c, %d, %s, %" PRId64 ", %d, kind, %" PRId64 ", to);\n    }\n",
             group_of(m, s), at(m, &s->a), s->rows, s->nstats, s->stat_n);
}

static const char *const stream_name[STREAMS] = {
    "COMPUTE", "TENSOR", "WEIGHTS", "GRADIENTS", "STAGES"
};

static void collective(Cuda *m, Text *t, const RtStep *s, StreamId stream)
{
    const char *on = stream_name[stream];
    static const char *const word[] = {
        [RT_ALL_GATHER] = "all_gather", [RT_REDUCE_SCATTER] = "reduce_scatter",
        [RT_ALL_REDUCE] = "all_reduce", [RT_ALL_TO_ALL] = "all_to_all"
    };
    bool in_place = s->a.offset == s->c.offset && s->a.region == s->c.region;
    switch ((RtStepKind)s->kind) {
    case RT_ALL_REDUCE:
        text_add(t, "    all_reduce(c, %s, %d, %s, %" PRId64 ");\n", on, group_of(m, s),
                 at(m, &s->c), s->count);
        break;
    case RT_BROADCAST:
        text_add(t, "    broadcast(c, %s, %d, %d, %s, %s, %" PRId64 ");\n", on,
                 group_of(m, s), s->peer, at(m, &s->a), at(m, &s->c), s->count);
        break;
    case RT_REDUCE:
        text_add(t, "    reduce(c, %s, %d, %d, %s, %s, %" PRId64 ", %s);\n", on,
                 group_of(m, s), s->peer, at(m, &s->a), at(m, &s->c), s->count, again(m, s));
        break;
    case RT_ALL_TO_ALL:
        text_add(t, "    all_to_all(c, %s, %d, %d, %s, %s);\n", on, group_of(m, s),
                 boxes_of(m, s), at(m, &s->a), at(m, &s->c));
        break;
    default:
        text_add(t, "    %s%s(c, %s, %d, %s, %s, %" PRId64 "%s);\n", word[s->kind],
                 in_place ? "_in_place" : "", on, group_of(m, s), at(m, &s->a), at(m, &s->c),
                 s->count,
                 s->kind == RT_REDUCE_SCATTER ? str_fmt(", %s", again(m, s)) : "");
    }
}

/* With two stages both neighbours are the same one. */
static const char *neighbour(const Cuda *m, const RtStep *s)
{
    return s->peer == (m->stage + 1) % m->e->nstages ? "NEXT_STAGE" : "PREVIOUS_STAGE";
}

static void plain(Cuda *m, Text *t, const RtStep *s)
{
    switch ((RtStepKind)s->kind) {
    case RT_MERGE:
        merge(m, t, s);
        break;
    case RT_CE_MERGE:
        text_add(t, "    merge_loss(c, %d, %s, %s, %" PRId64 ");\n", group_of(m, s),
                 at(m, &s->a), at(m, &s->c), s->rows);
        break;
    case RT_COLSUM:
        text_add(t, "    column_sums(c, %s, %s, %" PRId64 ", %s);\n", at(m, &s->a),
                 at(m, &s->c), s->count, again(m, s));
        break;
    case RT_COPY:
        text_add(t, "    copy(c, %s, %" PRId64 ", %s, %" PRId64 ", %" PRId64 ", %" PRId64
                 ", %s);\n",
                 at(m, &s->a), s->a.ld, at(m, &s->c), s->c.ld, s->rows, s->cols, again(m, s));
        break;
    case RT_ZERO:
        text_add(t, "    zero(c, %s, %" PRId64 ", %s);\n", at(m, &s->c), s->count, again(m, s));
        break;
    case RT_SEND:
        text_add(t, "    send(c, %s, %s, %" PRId64 ");\n", neighbour(m, s), at(m, &s->a),
                 s->rows * s->cols);
        break;
    case RT_RECV:
        text_add(t, "    recv(c, %s, %s, %" PRId64 ");\n", neighbour(m, s), at(m, &s->c),
                 s->rows * s->cols);
        break;
    case RT_NORM:
        text_add(t, "    gradient_norm(c);\n");
        break;
    case RT_UPDATE:
        text_add(t, "    update(c);\n");
        break;
    default:                // counted and summed by the host, between passes
        text_add(t, "    /* by the host */\n");
    }
}

/* Text of the user's in a comment: it may not end it, nor look like the start of another. */
static const char *quoted(const char *s)
{
    Text t = { 0 };
    const char *c = s;
    while (*c && (unsigned char)*c >= ' ')
        c++;
    if (c > s && c[-1] == '\\')         // the line would go on
        return quoted(str_fmt("%s.", s));
    if (*c == 0 && !strstr(s, "*/") && !strstr(s, "/*"))
        return s;
    for (char before = 0; *s; before = *s++) {
        bool ends = (before == '*' && *s == '/') || (before == '/' && *s == '*');
        text_add(&t, "%s%c", ends ? " " : "", (unsigned char)*s < ' ' ? '?' : *s);
    }
    return t.n ? t.at : "";
}

/* The front of a step: its name, the model's line, sizes, and why it is there; step() counts, but
 * for transfers, which begin together. `one`: a call of its own, not one with the next step. */
static void comment(Cuda *m, Text *t, const RtStep *s, int i, bool one)
{
    const Inst *n = &m->p->insts.at[i];
    bool transfer = s->kind == RT_SEND || s->kind == RT_RECV;
    const char *name = print_turnless(name_of(m, s->name), print_turn(m->p, n));
    if (transfer)                       // without the stage's number
        name = str_of(name, strcspn(name, ":"));
    text_add(t, "\n    %s/* %s  (%s)", transfer ? "" : one ? "step(c);  " : "step(c, 2);  ",
             quoted(name), quoted(name_of(m, s->source)));
    for (int j = 0; j < n->nout && j < 1; j++) {
        const Value *v = &m->p->values.at[n->out[j]];
        text_add(t, "  [%" PRId64 ", %" PRId64 "]", v->rows, v->cols);
        if (v->layout.rows)
            text_add(t, " rows by %s", axes_word(v->layout.rows, v->layout.rep));
        if (v->layout.cols)
            text_add(t, " columns by %s", axes_word(v->layout.cols, v->layout.rep));
    }
    if (s->reason >= 0)
        text_add(t, "\n       %s",
                 quoted(print_turnless(name_of(m, s->reason), print_turn(m->p, n))));
    text_add(t, " */\n");
}

/* The number of an event is one of the piece's parameters; `n` counts from 0. */
static int event_of(Cuda *m, int event)
{
    for (int i = m->marked.n - 2; i >= 0; i -= 2)
        if (m->marked.at[i] == event)
            return m->marked.at[i + 1];
    vec_add(&m->marked, event);
    vec_add(&m->marked, m->refs.n);
    return number(m, event);
}

static void waits(Cuda *m, Text *t, StreamId stream, int n, const int *wait)
{
    m->used |= 1u << stream;
    for (int i = 0; i < n; i++)
        text_add(t, "    follow(c, %s, o[%d]);\n", stream_name[stream], event_of(m, wait[i]));
}

/* A record makes the number mean something new from here on. */
static void marks(Cuda *m, Text *t, const Inst *n)
{
    if (n->signal == NONE)
        return;
    vec_add(&m->marked, n->signal);
    vec_add(&m->marked, m->refs.n);
    text_add(t, "    mark(c, %s, o[%d]);\n", stream_name[n->stream], number(m, n->signal));
}

/* The sum of gradients over data, each piece as soon as the backward pass has made it. */
static void gradient_pieces(Cuda *m, Text *t, const RtStep *s, const Inst *n)
{
    const char *on = stream_name[n->stream], *from = at(m, &s->a);
    text_add(t, "    /* in pieces, each as soon as it is made, under the backward pass%s */\n",
             n->coll == COLL_REDUCE_SCATTER ? "; each to the replica that updates it" : "");
    text_add(t, "    watched_as_one(c, %d);\n", m->p->grad_pieces.n);
    for (int k = 0; k < m->p->grad_pieces.n; k++) {
        const GradPiece *g = &m->p->grad_pieces.at[k];
        waits(m, t, n->stream, g->nwaits, g->wait);
        if (g->owner != NONE)
            text_add(t, "    reduce_in_place(c, %s, %d, %d, %s + %" PRId64 ", %" PRId64 ");\n", on,
                     group_of(m, s), g->owner, from, g->at, g->n);
        else
            text_add(t, "    all_reduce(c, %s, %d, %s + %" PRId64 ", %" PRId64 ");\n", on,
                     group_of(m, s), from, g->at, g->n);
    }
}

/* A product and the row program behind it, as one call. */
static void ended_product(Cuda *m, Text *t, int i)
{
    const RtStep *s = &m->s->steps.at[i], *rows = s + 1;
    const Ending *e = &m->ends[m->stage][i];
    const Inst *n = &m->p->insts.at[i];
    const RtRef *arg = step_args(m->s, rows), *out = &arg[e->out];
    text_add(t, "\n    /* with it: %s%s */\n", e->end == END_BIAS ? "+ bias" : "gelu(.. + bias)",
             e->kept ? ", kept for the gradient: .. + bias" : "");
    for (int k = 0; k < 2; k++)
        waits(m, t, n[k].stream, n[k].nwaits, n[k].wait);
    text_add(t, "    %s(c, %s, %" PRId64 ", %s,\n", e->end == END_BIAS ? "gemm_bias" : "gemm_gelu",
             at(m, &s->a), s->a.ld, s->trans_a ? "true" : "false");
    text_add(t, "         %s, %" PRId64 ", %s,\n", at(m, &s->b), s->b.ld,
             s->trans_b ? "true" : "false");
    text_add(t, "         %s,\n         %s, %" PRId64 ", ", at(m, &arg[e->bias]), at(m, out),
             out->ld);
    if (e->kept)
        text_add(t, "%s, %" PRId64 ", ", at(m, &s->c), s->c.ld);
    text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ");\n", s->m, s->n, s->k);
    marks(m, t, n);
    marks(m, t, n + 1);
}

/* Returns how many steps it has written. */
static int step(Cuda *m, Text *t, int i)
{
    const RtStep *s = &m->s->steps.at[i];
    const Inst *n = &m->p->insts.at[i];
    bool one = m->ends[m->stage][i].end == END_NONE;
    comment(m, t, s, i, one);
    if (!one) {
        ended_product(m, t, i);
        return 2;
    }
    needs_room(m, s, n->stream);
    waits(m, t, n->stream, n->nwaits, n->wait);
    if (i == m->p->pieced) {
        gradient_pieces(m, t, s, n);
    } else if (s->kind == RT_GEMM) {
        gemm(m, t, s);
    } else if (s->kind == RT_KERNEL) {
        const KernelSpec *k = &m->e->specs.at[s->kernel];
        if (k->kind == K_ROWS)
            rows_kernel(m, t, s, k);
        else if (k->kind == K_ATTN || k->kind == K_ATTN_DX)
            attention(m, t, s, k);
        else
            other_kernel(m, t, s, k);
    } else if (s->kind >= RT_ALL_GATHER && s->kind <= RT_ALL_TO_ALL) {
        collective(m, t, s, n->stream);
    } else {
        plain(m, t, s);
    }
    marks(m, t, n);
    return 1;
}

/* ---- pieces: the steps of a turn ---------------------------------------------------------- */

static const char *unique(Cuda *m, const char *base, const char *tail)
{
    const char *stem = str_fmt("%s%s", emit_name(str_of(base, strcspn(base, ":"))), tail);
    const char *name = stem;
    for (int k = 2; map_get(m->names, name) >= 0; k++)
        name = str_fmt("%s_%d", stem, k);
    map_put(m->names, name, 1);
    return name;
}

/* "d NAME" is the gradient of NAME. */
static const char *operand_name(const Plan *p, ValueId v)
{
    const Value *x = &p->values.at[v];
    TensorId of = x->unit == NONE && x->tensor != NONE ? p->tensors.at[x->tensor].grad_of : NONE;
    if (of != NONE)
        return str_fmt("d %s", p->tensors.at[of].name);
    bool back = x->buffer != NONE && p->buffers.at[x->buffer].class == BUF_GRADS;
    return str_fmt("%s%s", back ? "d " : "", print_value_name(p, v));
}

/* The value that o[k] or s[k] at `s` is the place of; NONE: it is another number. */
static ValueId placed_at(const TurnPiece *x, const char *s)
{
    bool own = *s == 's', first = s > x->text && s[-1] == ' ';      // at<real>(c, RT_FIXED, o[4])
    int k = first && s[1] == '[' ? (int)strtol(s + 2, NULL, 10) : -1;
    if ((*s != 'o' && !own) || k < 0 || k >= (own ? x->own_value.n : x->value.n))
        return NONE;
    return own ? x->own_value.at[k] : x->value.at[k];
}

/* The piece's text with the names of what stands at a line's places behind it: names are no part of
 * what makes two turns equal. */
static void named_text(const Cuda *m, const TurnPiece *x, Text *out)
{
    enum { COLUMN = 56 };
    int turn = print_turn(m->p, &m->p->insts.at[x->first]);
    for (const char *line = x->text, *end; *line; line = end) {
        int n = 0;
        end = line + strcspn(line, "\n") + 1;
        text_bytes(out, line, (size_t)(end - line) - 1);
        int pad = COLUMN - (int)(end - line);
        for (const char *s = line; s < end; s++) {
            ValueId v = placed_at(x, s);
            if (v == NONE)
                continue;
            text_add(out, n ? ", " : "%*s// ", pad > 2 ? pad : 2, "");
            text_add(out, "%s", quoted(print_turnless(operand_name(m->p, v), turn)));
            n++;
        }
        text_add(out, "\n");
    }
}

/* The piece's function: that of an equal text, or a new one. */
static int piece_function(Cuda *m, const TurnPiece *x)
{
    int known = map_get(m->known, x->text);
    if (known >= 0)
        return known;
    const Inst *n = &m->p->insts.at[x->first];
    const char *name = print_turnless(n->name ? n->name : "steps", print_turn(m->p, n));
    static const char *const phase[] = { "_forward", "_back", "_sync", "_step" };
    PieceText t = { unique(m, name, phase[n->phase]), x->at.n, x->own.n };
    vec_add(&m->texts, t);
    map_put(m->known, x->text, m->texts.n - 1);
    text_add(&m->pieces, "static void %s(Ctx *c, const int64_t *o%s)\n{", t.name,
             is_sliced(m) ? ", const int64_t *s" : "");
    named_text(m, x, &m->pieces);
    text_add(&m->pieces, "}\n\n");
    return m->texts.n - 1;
}

static FuncPieces cut_pieces(Cuda *m, const Func *f)
{
    FuncPieces out = { { 0 }, 0 };
    Text t = { 0 };
    m->used = 0;
    m->func = f;
    for (int i = f->first, n; i < f->end; i = n) {
        int turn = inst_turn(m->p, i, f->end);
        TurnPiece x = { .first = i };
        for (n = i; n < f->end && inst_turn(m->p, n, f->end) == turn;)
            n++;
        m->refs.n = m->own.n = m->marked.n = 0;
        t.n = 0;
        for (int k = i; k < n;)
            k += step(m, &t, k);
        x.text = str_of(t.at, t.n);
        for (int k = 0; k < m->refs.n; k++) {               // the region is in the text
            vec_add(&x.at, m->refs.at[k].n);
            vec_add(&x.value, m->refs.at[k].value);
        }
        for (int k = 0; k < m->own.n; k++) {
            vec_add(&x.own, m->own.at[k].n);
            vec_add(&x.own_value, m->own.at[k].value);
        }
        vec_add(&out.all, x);
    }
    out.used = m->used;
    return out;
}

/* Functions of one chunk that do the same for all slices: their pieces stand in one order. */
static void share_numbers(const Cuda *m, FuncPieces *of)
{
    const Plan *p = m->p;
    bool equal = true;
    for (int i = 1; i < p->is.nslices; i++)
        equal &= p->is.slice[i] == p->is.slice[0];
    if (equal)                          // so are their texts, where they can be
        return;
    TurnPiece **same = NEWN(TurnPiece *, p->is.nslices);
    for (int f = 0; f < p->funcs.n; f++)
        for (int i = 0; i < of[f].all.n; i++) {
            int n = 0;
            for (int g = 0; g < p->funcs.n && p->funcs.at[f].kind < STEP_SYNC; g++)
                if (p->funcs.at[g].kind == p->funcs.at[f].kind && i < of[g].all.n &&
                    p->funcs.at[g].chunk == p->funcs.at[f].chunk)
                    same[n++] = &of[g].all.at[i];
            if (n > 1 && same[0] == &of[f].all.at[i])       // of all slices at once
                cuda_share_numbers(same, n);
        }
}

/* A piece's numbers: from which on; in a loop, `step` more each time. */
static const char *numbers_from(const char *array, int at, int step)
{
    return step ? str_fmt("%s + %d + %d * i", array, at, step) : str_fmt("%s + %d", array, at);
}

/* How many times the q pieces from i on stand there, one after another. */
static int repeats(const int *all, int count, int i, int q)
{
    int n = 0;
    while (i + (n + 1) * q <= count) {
        for (int k = 0; k < q; k++)
            if (all[i + n * q + k] != all[i + k])
                return n;
        n++;
    }
    return n;
}

enum { LONGEST_LOOP = 8 };              // pieces in a loop

/* Calls of pieces; where some follow each other again and again they are a loop. */
static void calls(const Cuda *m, Text *t, const char *array, const int *all, int count)
{
    int at = 0, own = 0;
    for (int i = 0; i < count;) {
        int q = 1, n;
        while (q < LONGEST_LOOP && repeats(all, count, i, q) < 2)
            q++;
        n = repeats(all, count, i, q);
        if (n < 2)
            q = n = 1;
        int refs = 0, owns = 0;         // of a time round
        for (int k = 0; k < q; k++) {
            refs += m->texts.at[all[i + k]].nrefs;
            owns += m->texts.at[all[i + k]].nown;
        }
        if (n > 1)
            text_add(t, "    for (int i = 0; i < %d; i++)%s\n", n, q > 1 ? " {" : "");
        for (int k = 0, o = at, w = own; k < q; k++) {
            const PieceText *x = &m->texts.at[all[i + k]];
            text_add(t, "%s    %s(c, %s", n > 1 ? "    " : "", x->name,
                     x->nrefs ? numbers_from(array, o, n > 1 ? refs : 0) : "NULL");
            if (is_sliced(m))
                text_add(t, ", %s", x->nown ? numbers_from("c->slice", w, n > 1 ? owns : 0)
                                            : "NULL");
            text_add(t, ");\n");
            o += x->nrefs;
            w += x->nown;
        }
        if (n > 1 && q > 1)
            text_add(t, "    }\n");
        at += n * refs;
        own += n * owns;
        i += n * q;
    }
}

/* The array of a function's numbers: an equal one again, or a new one. */
static const char *array_of(Cuda *m, const Pieces *all, bool own, const char *base)
{
    const char *what = own ? "slice" : "offsets";
    Text t = { 0 };
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        const Numbers *some = own ? &all->at[i].own : &all->at[i].at;
        for (int k = 0; k < some->n; k++) {
            bool next = n++ % 10 > 0;
            text_bytes(&t, next ? " " : "\n    ", next ? 1 : 5);
            text_number(&t, some->at[k]);
            text_bytes(&t, ",", 1);
        }
    }
    if (n == 0)
        return "NULL";
    text_bytes(&t, "", 1);
    int known = map_get(m->arrays, t.at);
    if (known >= 0)
        return str_fmt("numbers_%d", known);
    map_put(m->arrays, t.at, ++m->narrays);
    text_add(&m->fresh, "static const int64_t numbers_%d[] = {      // %s of %s%s\n};\n\n",
             m->narrays, what, base, t.at);
    return str_fmt("numbers_%d", m->narrays);
}

/* The function's name: that of an equal one, or of a new one; and the numbers of its slice. */
static const char *function(Cuda *m, int index, const Pieces *all, const char **slice)
{
    const Func *f = &m->p->funcs.at[index];
    const char *name = str_fmt("stage%d_%d", m->stage, index);
    Text body = { 0 };
    int *called = NEWN(int, all->n);
    for (int i = 0; i < all->n; i++)
        called[i] = piece_function(m, &all->at[i]);
    m->fresh = (Text){ 0 };
    const char *array = array_of(m, all, false, name);
    *slice = array_of(m, all, true, name);
    calls(m, &body, array, called, all->n);
    const char *text = body.n ? body.at : "    (void)c;\n";
    const char *key = str_fmt("%d %d %s", f->kind, f->chunk, text);
    int at = map_get(m->bodies, key);
    if (at < 0) {
        PassFunc fresh = { name, "", text, f->kind, f->chunk, NEWN(bool, m->e->nstages),
                       NEWN(bool, m->p->is.nslices) };
        at = m->passes.n;
        map_put(m->bodies, key, at);
        vec_add(&m->passes, fresh);
    }
    PassFunc *x = &m->passes.at[at];
    if (m->fresh.n)
        x->array = str_fmt("%s%s", x->array, m->fresh.at);
    x->stages[m->stage] = true;
    x->slices[f->slice] = true;
    return x->name;
}

/* Who runs it, as a comment: "stages 1 - 6: forward, slices 0 - 3". */
static void function_text(const Cuda *m, const PassFunc *x, Text *t)
{
    static const char *const note[] = {
        "forward", "backward", "send activations", "receive activations", "send gradients",
        "receive gradients", "what comes after the last microbatch", "the optimizer",
        "once a step, in front"
    };
    const Choices *is = &m->p->is;
    int stages = 0, slices = 0;
    int64_t least = INT64_MAX, most = 0;    // tokens
    for (int i = 0; i < is->stages; i++)
        stages += x->stages[i];
    for (int i = 0; i < is->nslices && is->nslices > 1; i++)
        if (x->slices[i]) {
            slices++;
            least = is->slice[i] < least ? is->slice[i] : least;
            most = is->slice[i] > most ? is->slice[i] : most;
        }
    text_add(t, "%s/* stage%s %s: %s", x->array, stages > 1 ? "s" : "",
             print_ranges(x->stages, is->stages), note[x->kind]);
    if (x->kind < STEP_SYNC && slices > 0)
        text_add(t, ", slice%s %s", slices > 1 ? "s" : "", print_ranges(x->slices, is->nslices));
    if (x->kind < STEP_SYNC && slices > 0 && least == most)
        text_add(t, " of %" PRId64 " tokens", most);
    if (x->kind < STEP_SYNC && is->chunks > 1)
        text_add(t, ", chunk %d", x->chunk);
    text_add(t, " */\nstatic void %s(Ctx *c)\n{\n%s}\n\n", x->name, x->body);
}

/* A table's name: that of an equal one of an earlier stage, or of a new one. */
static int table(Cuda *m, Text *out, const char *type, const char *name, const char *content)
{
    const char *key = str_fmt("%s%s", name, content);
    int known = map_get(m->bodies, key);
    if (known >= 0)
        return known;
    map_put(m->bodies, key, m->stage);
    text_add(out, "static %s = {%s};\n\n", str_fmt(type, m->stage), content);
    return m->stage;
}

/* ---- kernels ------------------------------------------------------------------------------- */

static int ref_aligned(const RtRef *r, int64_t size)
{
    int64_t n = VEC_BYTES;
    while (n > size && r->offset % n)
        n /= 2;
    return (int)(n / size > 0 ? n / size : 1);
}

/* The least alignment of any operand in any use of each kernel, and which ones are used. */
static void find_alignment(Cuda *m)
{
    int64_t real = m->e->stage[0].head.real_bytes;
    m->aligned = NEWN(int, m->e->specs.n + 1);
    for (int i = 0; i < m->e->specs.n; i++)
        m->aligned[i] = 8;
    m->called = NEWN(bool, m->e->specs.n + 1);
    m->made = NEWN(Made, m->e->specs.n + 1);
    for (int i = 0; i < m->e->specs.n; i++)
        m->made[i].stage = NONE;
    for (int r = 0; r < m->e->nstages; r++)
        for (int i = 0; i < m->e->stage[r].steps.n; i++) {
            const RtStep *s = &m->e->stage[r].steps.at[i];
            if (s->kind != RT_KERNEL || m->e->specs.at[s->kernel].kind != K_ROWS)
                continue;
            if (m->made[s->kernel].stage == NONE)
                m->made[s->kernel] = (Made){ r, i };
            if (i > 0 && m->ends[r][i - 1].end != END_NONE)
                continue;
            m->called[s->kernel] = true;
            for (int j = 0; j < s->nargs; j++) {
                if (!cuda_rows_wide(m->e->specs.at[s->kernel].rows, j))
                    continue;
                const RtRef *arg = &step_args(&m->e->stage[r], s)[j];
                int a = ref_aligned(arg, arg->stored == RT_BF16_STORED ? 2 : real);
                m->aligned[s->kernel] = a < m->aligned[s->kernel] ? a : m->aligned[s->kernel];
            }
        }
}

/* A row program, below what it is of and with its arguments' names. */
static void row_kernel(Cuda *m, int i)
{
    const KernelSpec *k = &m->e->specs.at[i];
    const Made *at = &m->made[i];
    const StageTables *s = &m->e->stage[at->stage];
    const RtStep *step = &s->steps.at[at->step];
    const Plan *p = plan_stage(m->p, at->stage);
    int turn = print_turn(p, &p->insts.at[at->step]);
    const char **what = NEWN(const char *, k->rows->nargs);
    for (int a = 0; a < k->rows->nargs; a++)
        what[a] = quoted(print_turnless(print_value_name(p, k->rows->arg[a].value), turn));
    text_add(&m->kernels, "/* %s%s  (%s) */\n",
             quoted(print_turnless(s->text.at + step->name, turn)),
             p->insts.at[at->step].phase == PHASE_BACKWARD ? ", backward" : "",
             quoted(s->text.at + step->source));
    cuda_rows(&m->kernels, k->name, what, &m->how[i]);
}

static void row_kernels(Cuda *m)
{
    bool is_double = m->e->stage[0].head.real_bytes == 8;
    m->how = NEWN(CudaRows, m->e->specs.n + 1);
    for (int i = 0; i < m->e->specs.n; i++) {
        const KernelSpec *k = &m->e->specs.at[i];
        if (!m->called[i])
            continue;
        m->how[i] = cuda_rows_how(k->rows, is_double, m->aligned[i]);
        row_kernel(m, i);
    }
}

/* ---- the file ------------------------------------------------------------------------------ */

typedef struct { int pass, tiles, boxes; } StageNames;     // stages whose tables they are

/* Streams of function f, which uses some itself; those of what runs under it start with it. */
static unsigned streams_of(const Cuda *m, int f, unsigned used)
{
    const Plan *p = m->p;
    for (int i = 0; f == p->under && i < p->insts.n; i++)
        if (p->insts.at[i].phase == PHASE_SYNC)
            used |= 1u << p->insts.at[i].stream;
    return p->under != NONE && p->funcs.at[f].kind == STEP_SYNC ? used | 1u << STREAMS : used;
}

/* ", TENSOR_BIT | WEIGHTS_BIT": what runs beside COMPUTE. */
static const char *streams_used(unsigned used)
{
    Text t = { 0 };
    for (int i = STREAM_TENSOR; i < STREAMS; i++)
        if (used >> i & 1)
            text_add(&t, "%s%s_BIT", t.n ? " | " : ", ", stream_name[i]);
    if (used >> STREAMS & 1)
        text_add(&t, "%sUNDER_BIT", t.n ? " | " : ", ");
    return t.n ? t.at : ", 0";
}

static StageNames stage_program(Cuda *m, int r, Text *tables)
{
    Text pass = { 0 }, tiles = { 0 }, boxes = { 0 };
    m->stage = r;
    m->p = plan_stage(m->p, r);
    m->s = &m->e->stage[r];
    m->tiles.n = m->boxes.n = 0;
    FuncPieces *of = arena_get(perm, sizeof *of * (size_t)m->p->funcs.n);
    for (int i = 0; i < m->p->funcs.n; i++)
        of[i] = cut_pieces(m, &m->p->funcs.at[i]);
    share_numbers(m, of);
    for (int i = 0; i < m->p->funcs.n; i++) {
        const char *slice, *name = function(m, i, &of[i].all, &slice);
        text_add(&pass, "\n    { %s, %s%s },", name, slice,
                 streams_used(streams_of(m, i, of[i].used)));
    }
    for (int i = 0; i < m->tiles.n; i += 4)
        text_add(&tiles, "\n    { %" PRId64 ", %" PRId64 ", %s, %" PRId64 " },", m->tiles.at[i],
                 m->tiles.at[i + 1], m->tiles.at[i + 2] ? "true" : "false", m->tiles.at[i + 3]);
    for (int i = 0; i < m->boxes.n; i++)
        text_add(&boxes, "\n    { %" PRId64 ", %d },", m->boxes.at[i],
                 group_of(m, &m->s->steps.at[m->boxes.at[i]]));
    return (StageNames){
        table(m, tables, "const PassCode passes_%d[]", "passes", str_fmt("%s\n", pass.at)),
        table(m, tables, "const TileSet tiles_%d[]", "tiles",
              str_fmt("%s\n    { -1, -1, false, 0 }\n", tiles.n ? tiles.at : "")),
        table(m, tables, "const BoxSet boxes_%d[]", "boxes",
              str_fmt("%s\n    { -1, 0 }\n", boxes.n ? boxes.at : "")),
    };
}

static void main_text(const Cuda *m, const StageNames *names, Text *t)
{
    text_add(t, "/* Groups of ranks: axes, ranks of y in a copy, stages. */\n"
             "static const GroupKey groups[] = {\n");
    for (int i = 0; i < m->groups.n; i += 3) {
        const int64_t *g = &m->groups.at[i];
        const char *key = str_fmt("{ %" PRId64 ", %" PRId64 ", UINT64_C(%" PRIu64 ") },", g[0],
                                  g[1], (uint64_t)g[2]);
        text_add(t, "    %-30s // %d: over %s\n", key, i / 3, axes_word((Axes)g[0], (int)g[1]));
    }
    text_add(t, "    { 0, 0, 0 }\n};\n\nstatic const StageProgram stages[] = {\n");
    for (int r = 0; r < m->e->nstages; r++)
        text_add(t, "    { passes_%d, tiles_%d, boxes_%d },\n", names[r].pass, names[r].tiles,
                 names[r].boxes);
    int events = 0;
    for (int r = 0; r < m->e->nstages; r++)
        events = plan_stage(m->p, r)->events > events ? plan_stage(m->p, r)->events : events;
    text_add(t, "};\n\n/* Stages, groups, events, and bytes of scratch beside the block: of "
             "products and attention,\n * of sums on each stream. */\n"
             "static const Program program = {\n    stages, groups, %d, %" PRId64 ", {", events,
             m->scratch);
    for (int i = 0; i < STREAMS; i++)
        text_add(t, "%s%" PRId64, i ? ", " : " ", m->sum[i]);
    text_add(t, " }\n};\n\n}                           // model\n\n"
             "extern \"C\" const char _binary_program_tables_start[];\n"
             "extern \"C\" const char _binary_program_tables_end[];\n\n"
             "int main(int argc, char **argv)\n{\n"
             "    return teracube_main<&model::program>(_binary_program_tables_start,\n"
             "                                          _binary_program_tables_end, argc, argv);\n"
             "}\n");
}

void cuda_program(const Plan *p, const Emitted *e, Ending *const *ends, Text *out)
{
    Cuda m = { .p = p, .e = e, .ends = ends, .known = map_new(), .names = map_new(),
               .arrays = map_new(), .bodies = map_new() };
    StageNames *names = NEWN(StageNames, e->nstages);
    Text tables = { 0 };
    find_alignment(&m);
    row_kernels(&m);
    for (int r = 0; r < e->nstages; r++) {
        m.p = p;
        names[r] = stage_program(&m, r, &tables);
    }
    const char *stored = p->is.precision == PREC_FP64 ? "double" : "float";
    text_add(out, "/*\n * program.cu - %s: %s\n *\n"
             " * Made by teracube from the plan in plan.txt. Each function below is a turn of the "
             "model or\n * what stands between turns; `o` are byte offsets into the rank's block, "
             "salts of dropout, and\n * numbers of events where a stream marks one or follows "
             "it%s. What stands at a\n * line's offsets is behind it, by its name in the first "
             "turn that runs the function; d: the\n * gradient. teracube.cuh has what is called "
             "here. Edit, then make.\n */\n#define TERACUBE_WORKERS %d\n"
             "typedef %s real;\n#include \"teracube.cuh\"\n\n", p->model_name, plan_line(p),
             p->is.nslices > 1 ? "; `s` is what differs from slice\n * to slice" : "",
             p->is.workers, stored);
    text_add(out, "namespace model {           // its names hide those of teracube.cuh\n\n"
             "/* ---- row programs ---- */\n\n");
    text_bytes(out, m.kernels.at, m.kernels.n);
    text_add(out, "/* ---- turns ---- */\n\n");
    text_bytes(out, m.pieces.at, m.pieces.n);
    text_add(out, "/* ---- passes ---- */\n\n");
    for (int i = 0; i < m.passes.n; i++)
        function_text(&m, &m.passes.at[i], out);
    text_add(out, "/* ---- the stages' functions, by RtPass.func of the step table; row orders "
             "that meet in\n * attention, and kinds of all-to-alls (teracube.cuh) ---- */\n\n");
    text_bytes(out, tables.at, tables.n);
    main_text(&m, names, out);
    out->at[out->n] = 0;
}
