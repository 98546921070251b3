/*
 * streams.c - what may run beside what on a GPU: the stream of every instruction, the
 * events between them, and what a pass waits for.
 *
 *   needs memory; fills Inst.stream/signal/wait, Call.after, Plan.events/pieced/grad_pieces.
 *
 * A stream runs its instructions in order. Two instructions on different streams need an
 * event between them when one writes bytes of the block that the other touches: bytes,
 * not values, for buffers share room over time. An event is recorded behind the earlier
 * one and awaited in front of the later one; of what a stream is known to have waited for
 * already (vector clocks), nothing is said twice. Events are reused as soon as everyone
 * who waits for one has been told so: the GPU keeps what it was when it was asked.
 *
 * Within a pass all streams but STAGES start behind what came before on COMPUTE, and
 * COMPUTE goes on behind all of them. Transfers have passes of their own on STAGES: such a
 * pass waits for the last one on COMPUTE that conflicts with it in the regions they touch,
 * and the other way round (Call.after).
 *
 * The sum of the gradients over the replicas stands in the function SYNC and runs under the last
 * backward pass: the two are ordered as one, and the sum is cut into pieces, those
 * whose gradients are ready first in front. With zero = 1 each piece goes to
 * the replica that keeps those parameters' moments.
 */
#include "plan.h"

const char *const stream_word[STREAMS] = { "compute", "tensor", "weights", "gradients", "stages" };

/* ---- which stream ---------------------------------------------------------------------- */

static bool is_gradient(const Plan *p, const Inst *n)
{
    return n->nout == 1 && p->buffers.at[p->values.at[n->out[0]].buffer].class == BUF_GRADS;
}

StreamId inst_stream(const Plan *p, const Inst *n)
{
    if (n->kind != I_COLL)
        return STREAM_COMPUTE;
    if (n->coll == COLL_SEND || n->coll == COLL_RECV)
        return STREAM_STAGES;
    if (n->phase == PHASE_SYNC && n->axes != AX_DATA)
        return STREAM_TENSOR;               // not in front of the sum over data
    if (n->phase == PHASE_SYNC || n->phase == PHASE_OPTIMIZER || is_gradient(p, n))
        return STREAM_GRADIENTS;
    bool weight = n->nin == 1 && n->coll == COLL_ALL_GATHER && p->values.at[n->in[0]].unit != NONE;
    return weight ? STREAM_WEIGHTS : STREAM_TENSOR;
}

/* Weights are gathered for the operator that follows. */
int inst_turn(const Plan *p, int i, int end)
{
    for (; i < end; i++) {
        OpId op = p->insts.at[i].op;
        if (op != NONE)
            return p->ops.at[op].repeat < 0 ? NONE
                 : p->ops.at[op].repeat * 1000000 + p->ops.at[op].turn;
    }
    return NONE;
}

/* ---- which bytes ----------------------------------------------------------------------- */

typedef struct { int region; int64_t from, to; bool written; InstId at; } Touch;
typedef VEC(Touch) Touches;

/* From the value's first byte to its last; columns of other values between its rows count. */
static Touch touch_of(const Plan *p, ValueId id, bool written, InstId at)
{
    const Value *v = &p->values.at[id];
    const Buffer *b = &p->buffers.at[v->buffer];
    int64_t size = dtype_bytes(p, b->dtype), from = b->offset + v->offset * size;
    int64_t n = v->rows > 0 ? (v->rows - 1) * v->ld + v->cols : 0;
    return (Touch){ (int)b->region, from, from + n * size, written, at };
}

static bool conflict(const Touch *a, const Touch *b)
{
    return (a->written || b->written) && a->region == b->region && a->from < b->to &&
           b->from < a->to;
}

/* What the whole block is for: the norm, the totals, the optimizer. */
static bool is_barrier(const Inst *n)
{
    return n->kind == I_NORM || n->kind == I_TOTALS || n->kind == I_UPDATE;
}

/* ---- events within a function ---------------------------------------------------------- */

typedef struct {
    Plan *p;
    Touches touched[STREAMS];       // since the function began
    int last[STREAMS];              // latest instruction of each; -1
    int (*known)[STREAMS];          // by instruction: up to where each stream was waited for
    int now[STREAMS][STREAMS];      // the same of each stream
    int *last_wait;                 // by instruction: the last that waits for it, or -1
    InstId first;
    Touches mine;                   // of the instruction at hand
    const Func *whole_turns;        // of this function, turns are waited for as a whole
} Streams;

static void learn(int *to, const int *from)
{
    for (int t = 0; t < STREAMS; t++)
        to[t] = from[t] > to[t] ? from[t] : to[t];
}

/* Stream s waits for instruction `on` of another one in front of `at`. */
static void await(Streams *s, InstId at, InstId on)
{
    Inst *n = &s->p->insts.at[at];
    StreamId other = s->p->insts.at[on].stream;
    if (s->now[n->stream][other] >= on)
        return;
    n->wait[n->nwaits++] = on;              // becomes an event's number below
    s->last_wait[on - s->first] = at;
    learn(s->now[n->stream], s->known[on - s->first]);
}

static InstId latest_conflict(const Streams *s, StreamId other, const Touch *mine, int nmine,
                              InstId floor)
{
    const Touches *t = &s->touched[other];
    for (int i = t->n; i-- > 0 && t->at[i].at > floor;)
        for (int j = 0; j < nmine; j++)
            if (conflict(&t->at[i], &mine[j]))
                return t->at[i].at;
    return NONE;
}

/* The last instruction of the turn on the same stream, so that turns go on sharing their text. */
static InstId end_of_turn(const Streams *s, InstId i)
{
    const Plan *p = s->p;
    const Func *f = s->whole_turns;
    if (f == NULL || i < f->first || i >= f->end)
        return i;
    int turn = inst_turn(p, i, f->end);
    InstId last = i;
    for (int k = i + 1; k < f->end && inst_turn(p, k, f->end) == turn; k++)
        if (p->insts.at[k].stream == p->insts.at[i].stream)
            last = k;
    return last;
}

/* Instruction i waits for what conflicts with s->mine, on all other streams. */
static void await_conflicts(Streams *s, InstId i)
{
    Plan *p = s->p;
    const Inst *n = &p->insts.at[i];
    /* the latest first: what it waited for need not be said again */
    InstId on[STREAMS];
    for (int o = 0; o < STREAMS; o++)
        on[o] = o == (int)n->stream ? NONE
              : is_barrier(n) ? s->last[o]
              : latest_conflict(s, (StreamId)o, s->mine.at, s->mine.n, s->now[n->stream][o]);
    for (;;) {
        int best = NONE;
        for (int o = 0; o < STREAMS; o++)
            best = on[o] != NONE && (best == NONE || on[o] > on[best]) ? o : best;
        if (best == NONE)
            break;
        await(s, i, end_of_turn(s, on[best]));
        on[best] = NONE;
    }
}

static Touch touch_of_piece(const Plan *p, const GradPiece *g)
{
    ValueId v = p->insts.at[p->pieced].in[0];
    int64_t size = dtype_bytes(p, p->buffers.at[p->values.at[v].buffer].dtype);
    Touch t = touch_of(p, v, true, p->pieced);
    t.from += g->at * size;
    t.to = t.from + g->n * size;
    return t;
}

/* By what is ready first; those that are ready together as they stand. */
static void sort_pieces(Streams *s)
{
    Plan *p = s->p;
    InstId *ready = NEWN(InstId, p->grad_pieces.n);
    for (int k = 0; k < p->grad_pieces.n; k++) {
        GradPiece g = p->grad_pieces.at[k];
        Touch t = touch_of_piece(p, &g);
        InstId last = NONE;
        for (int o = 0; o < STREAMS; o++) {
            InstId at = latest_conflict(s, (StreamId)o, &t, 1, s->first - 1);
            last = at > last ? at : last;
        }
        int j = k;
        for (; j > 0 && ready[j - 1] > last; j--) {
            ready[j] = ready[j - 1];
            p->grad_pieces.at[j] = p->grad_pieces.at[j - 1];
        }
        ready[j] = last;
        p->grad_pieces.at[j] = g;
    }
}

static void order_pieces(Streams *s, InstId i)
{
    Plan *p = s->p;
    Inst *n = &p->insts.at[i];
    const Touch all = touch_of(p, n->in[0], true, i);
    sort_pieces(s);
    s->whole_turns = &p->funcs.at[p->under];
    for (int k = 0; k < p->grad_pieces.n; k++) {
        GradPiece *g = &p->grad_pieces.at[k];
        Touch mine = touch_of_piece(p, g);
        s->mine.n = n->nwaits = 0;
        vec_add(&s->mine, mine);
        await_conflicts(s, i);
        g->nwaits = n->nwaits;
        memcpy(g->wait, n->wait, sizeof g->wait);
    }
    s->whole_turns = NULL;
    s->mine.n = n->nwaits = 0;
    vec_add(&s->mine, all);
}

static void order_inst(Streams *s, InstId i)
{
    Plan *p = s->p;
    Inst *n = &p->insts.at[i];
    Touches *mine = &s->mine;
    mine->n = 0;
    n->nwaits = 0;
    n->signal = NONE;
    if (i == p->pieced) {
        order_pieces(s, i);
    } else {
        for (int j = 0; j < n->nin + n->nout; j++) {
            Touch t = touch_of(p, j < n->nin ? n->in[j] : n->out[j - n->nin], j >= n->nin, i);
            vec_add(mine, t);
        }
        await_conflicts(s, i);
    }
    s->now[n->stream][n->stream] = i;
    memcpy(s->known[i - s->first], s->now[n->stream], sizeof s->now[0]);
    s->last[n->stream] = i;
    for (int j = 0; j < mine->n; j++)
        vec_add(&s->touched[n->stream], mine->at[j]);
}

typedef VEC(int) Ints;

/* Events that were instructions become numbers. */
static void name_waits(const Plan *p, int n, int *wait)
{
    for (int j = 0; j < n; j++)
        wait[j] = p->insts.at[wait[j]].signal;
}

/* Numbers for the events of a function: the lowest that nobody is still to wait for; busy: by
 * event, the last instruction that waits for it. */
static void number_events(Streams *s, const Func *f, Ints *busy)
{
    Plan *p = s->p;
    for (int i = f->first; i < f->end; i++) {
        Inst *n = &p->insts.at[i];
        name_waits(p, n->nwaits, n->wait);
        for (int k = 0; i == p->pieced && k < p->grad_pieces.n; k++)
            name_waits(p, p->grad_pieces.at[k].nwaits, p->grad_pieces.at[k].wait);
        int last = s->last_wait[i - s->first], e = 0;
        if (last < 0)
            continue;
        while (e < busy->n && busy->at[e] > i)
            e++;
        if (e == busy->n)
            vec_add(busy, last);
        busy->at[e] = last;
        n->signal = e;
    }
    p->events = busy->n > p->events ? busy->n : p->events;
}

/* Orders f; and with it `more`, which goes on where f's last call ends, or NULL. */
static void order_function(Plan *p, const Func *f, const Func *more)
{
    Aside aside = aside_begin();
    const Func *const part[] = { f, more };
    int n = (more ? more : f)->end - f->first;
    Streams s = { .p = p, .known = (int (*)[STREAMS])NEWN(int, STREAMS * (n + 1)),
                  .last_wait = NEWN(int, n + 1), .first = f->first };
    Ints busy = { 0 };
    for (int a = 0; a < STREAMS; a++) {
        s.last[a] = NONE;
        for (int b = 0; b < STREAMS; b++)
            s.now[a][b] = f->first - 1;
    }
    for (int i = 0; i < n; i++)
        s.last_wait[i] = -1;
    for (int k = 0; k < 2 && part[k]; k++)
        for (int i = part[k]->first; i < part[k]->end; i++)
            order_inst(&s, i);
    for (int k = 0; k < 2 && part[k]; k++)
        number_events(&s, part[k], &busy);
    aside_end(aside);
}

/* ---- passes ---------------------------------------------------------------------------- */

static bool is_transfer(const Plan *p, const Call *c)
{
    const Func *f = &p->funcs.at[c->func];
    return f->end > f->first && p->insts.at[f->first].stream == STREAM_STAGES;
}

/* The sum's instruction and the function that it runs under, or NONE. */
static void find_pieced(Plan *p)
{
    int sync = -1;
    p->pieced = p->under = NONE;
    p->grad_pieces.n = 0;
    for (int i = 0; i < p->calls.n && sync < 0; i++)
        if (p->calls.at[i].step.kind == STEP_SYNC)
            sync = i;
    int back = sync - 1;
    while (back >= 0 && is_transfer(p, &p->calls.at[back]))
        back--;
    if (back < 0 || p->calls.at[back].step.kind != STEP_BACKWARD)
        return;
    const Func *f = &p->funcs.at[p->calls.at[sync].func];
    for (int i = f->first; i < f->end; i++) {
        const Inst *n = &p->insts.at[i];
        bool sums = n->coll == COLL_REDUCE_SCATTER || n->coll == COLL_ALL_REDUCE;
        if (n->kind == I_COLL && n->axes == AX_DATA && sums)
            p->pieced = i;
    }
    if (p->pieced != NONE)
        p->under = p->calls.at[back].func;
}

static const Func *sync_of(const Plan *p)
{
    for (int f = 0; f < p->funcs.n; f++)
        if (p->funcs.at[f].kind == STEP_SYNC)
            return &p->funcs.at[f];
    return NULL;
}

/* From the end of the flat gradient; none goes over from what one replica keeps to the next. */
static void cut_gradient(Plan *p)
{
    const Inst *n = &p->insts.at[p->pieced];
    const Value *v = &p->values.at[n->in[0]];
    int64_t size = dtype_bytes(p, p->buffers.at[v->buffer].dtype);
    int64_t most = (v->cols + GRAD_PIECES - 1) / GRAD_PIECES, end = v->cols;
    int64_t part = n->coll == COLL_REDUCE_SCATTER ? v->cols / p->is.data : v->cols;
    most = most * size < GRAD_PIECE_BYTES ? GRAD_PIECE_BYTES / size : most;
    while (end > 0) {
        int64_t owner = (end - 1) / part, at = owner * part;
        at = end - most > at ? end - most : at;
        GradPiece g = { .at = at, .n = end - at,
                        .owner = n->coll == COLL_REDUCE_SCATTER ? (int)owner : NONE };
        vec_add(&p->grad_pieces, g);
        end = at;
    }
}

/* What a function touches of each region, as intervals from the region's start. */
static Touches *function_touches(const Plan *p)
{
    Touches *t = NEWN(Touches, p->funcs.n * REGIONS * 2);
    for (int f = 0; f < p->funcs.n; f++)
        for (int i = p->funcs.at[f].first; i < p->funcs.at[f].end; i++) {
            const Inst *n = &p->insts.at[i];
            for (int j = 0; j < n->nin + n->nout; j++) {
                Touch x = touch_of(p, j < n->nin ? n->in[j] : n->out[j - n->nin], j >= n->nin, f);
                Touches *of = &t[(f * REGIONS + x.region) * 2 + x.written];
                if (of->n == 0)
                    vec_add(of, x);
                of->at[0].from = x.from < of->at[0].from ? x.from : of->at[0].from;
                of->at[0].to = x.to > of->at[0].to ? x.to : of->at[0].to;
            }
        }
    return t;
}

/* Intervals of the block in the order of their first bytes; `longest`: bytes of one. */
typedef struct { Touches all; int64_t longest; } Seen;

static int seen_from(const Seen *s, int64_t from)
{
    int lo = 0, hi = s->all.n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->all.at[mid].from < from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The last call that touched what x does, if later than `after`. */
static int last_before(const Seen *s, const Touch *x, int after)
{
    for (int j = seen_from(s, x->from - s->longest); j < s->all.n && s->all.at[j].from < x->to; j++)
        if (s->all.at[j].at > after && conflict(&s->all.at[j], x))
            after = s->all.at[j].at;
    return after;
}

/* Of the same bytes only the last counts. */
static void see(Seen *s, const Touch *x)
{
    int j = seen_from(s, x->from), n = s->all.n;
    for (; j < n && s->all.at[j].from == x->from; j++)
        if (s->all.at[j].to == x->to && s->all.at[j].written == x->written) {
            s->all.at[j].at = x->at;
            return;
        }
    vec_add(&s->all, *x);
    memmove(&s->all.at[j + 1], &s->all.at[j], sizeof *x * (size_t)(n - j));
    s->all.at[j] = *x;
    s->longest = x->to - x->from > s->longest ? x->to - x->from : s->longest;
}

static void after_calls(Plan *p)
{
    Aside aside = aside_begin();
    Touches *t = function_touches(p);
    Seen seen[2] = { { { 0 }, 0 }, { { 0 }, 0 } };      // of passes on COMPUTE; of transfers
    for (int i = 0; i < p->calls.n; i++) {
        Call *c = &p->calls.at[i];
        int mine = is_transfer(p, c);
        c->after = NONE;
        for (int k = 0; k < REGIONS * 2; k++) {
            const Touches *of = &t[c->func * REGIONS * 2 + k];
            if (of->n == 0)
                continue;
            Touch x = of->at[0];
            x.at = i;
            x.from += c->region[x.region];
            x.to += c->region[x.region];
            x.region = 0;                       // bytes of the block now
            c->after = last_before(&seen[!mine], &x, c->after);
            see(&seen[mine], &x);
        }
    }
    aside_end(aside);
}

void streams_order(Plan *p)
{
    for (int r = 0; r < (p->stages ? p->is.stages : 1); r++) {
        Plan *s = plan_stage(p, r);
        for (int i = 0; i < s->insts.n; i++)
            s->insts.at[i].stream = inst_stream(s, &s->insts.at[i]);
        s->events = 0;
        find_pieced(s);
        if (s->pieced != NONE)
            cut_gradient(s);
        for (int f = 0; f < s->funcs.n; f++)
            if (f == s->under)
                order_function(s, &s->funcs.at[f], sync_of(s));
            else if (s->under == NONE || s->funcs.at[f].kind != STEP_SYNC)
                order_function(s, &s->funcs.at[f], NULL);
        after_calls(s);
    }
}
