/*
 * streams.c - what may run beside what on a GPU: the stream of every instruction, the
 * events between them, and what a pass waits for.
 *
 *   needs memory; fills Inst.stream/signal/wait, Call.after, Plan.events.
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

static void order_inst(Streams *s, InstId i)
{
    Plan *p = s->p;
    Inst *n = &p->insts.at[i];
    Touches *mine = &s->mine;
    mine->n = 0;
    for (int j = 0; j < n->nin + n->nout; j++) {
        Touch t = touch_of(p, j < n->nin ? n->in[j] : n->out[j - n->nin], j >= n->nin, i);
        vec_add(mine, t);
    }
    n->nwaits = 0;
    n->signal = NONE;
    /* the latest first: what it waited for need not be said again */
    InstId on[STREAMS];
    for (int o = 0; o < STREAMS; o++)
        on[o] = o == (int)n->stream ? NONE
              : is_barrier(n) ? s->last[o]
              : latest_conflict(s, (StreamId)o, mine->at, mine->n, s->now[n->stream][o]);
    for (;;) {
        int best = NONE;
        for (int o = 0; o < STREAMS; o++)
            best = on[o] != NONE && (best == NONE || on[o] > on[best]) ? o : best;
        if (best == NONE)
            break;
        await(s, i, on[best]);
        on[best] = NONE;
    }
    s->now[n->stream][n->stream] = i;
    memcpy(s->known[i - s->first], s->now[n->stream], sizeof s->now[0]);
    s->last[n->stream] = i;
    for (int j = 0; j < mine->n; j++)
        vec_add(&s->touched[n->stream], mine->at[j]);
}

/* Numbers for the events of [first, end): the lowest that nobody is still to wait for. */
static void number_events(Streams *s, InstId end)
{
    Plan *p = s->p;
    VEC(int) busy = { 0 };                  // by event: last instruction that waits for it
    for (int i = s->first; i < end; i++) {
        Inst *n = &p->insts.at[i];
        for (int j = 0; j < n->nwaits; j++)
            n->wait[j] = p->insts.at[n->wait[j]].signal;
        int last = s->last_wait[i - s->first], e = 0;
        if (last < 0)
            continue;
        while (e < busy.n && busy.at[e] > i)
            e++;
        if (e == busy.n)
            vec_add(&busy, last);
        busy.at[e] = last;
        n->signal = e;
    }
    p->events = busy.n > p->events ? busy.n : p->events;
}

static void order_function(Plan *p, const Func *f)
{
    int n = f->end - f->first;
    Streams s = { .p = p, .known = (int (*)[STREAMS])NEWN(int, STREAMS * (n + 1)),
                  .last_wait = NEWN(int, n + 1), .first = f->first };
    for (int a = 0; a < STREAMS; a++) {
        s.last[a] = NONE;
        for (int b = 0; b < STREAMS; b++)
            s.now[a][b] = f->first - 1;
    }
    for (int i = 0; i < n; i++)
        s.last_wait[i] = -1;
    for (int i = f->first; i < f->end; i++)
        order_inst(&s, i);
    number_events(&s, f->end);
}

/* ---- passes ---------------------------------------------------------------------------- */

static bool is_transfer(const Plan *p, const Call *c)
{
    const Func *f = &p->funcs.at[c->func];
    return f->end > f->first && p->insts.at[f->first].stream == STREAM_STAGES;
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

static void after_calls(Plan *p)
{
    Touches *t = function_touches(p);
    VEC(Touch) seen[2] = { { 0 }, { 0 } };      // of passes on COMPUTE; of transfers
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
            for (int j = 0; j < seen[!mine].n; j++) {
                const Touch *o = &seen[!mine].at[j];
                if (o->at > c->after && conflict(o, &x))
                    c->after = o->at;
            }
            int j = 0;                          // the same bytes again: only the last counts
            while (j < seen[mine].n && !(seen[mine].at[j].from == x.from &&
                   seen[mine].at[j].to == x.to && seen[mine].at[j].written == x.written))
                j++;
            if (j == seen[mine].n)
                vec_add(&seen[mine], x);
            seen[mine].at[j].at = i;
        }
    }
}

void streams_order(Plan *p)
{
    for (int r = 0; r < (p->stages ? p->is.stages : 1); r++) {
        Plan *s = plan_stage(p, r);
        for (int i = 0; i < s->insts.n; i++)
            s->insts.at[i].stream = inst_stream(s, &s->insts.at[i]);
        s->events = 0;
        for (int f = 0; f < s->funcs.n; f++)
            order_function(s, &s->funcs.at[f]);
        after_calls(s);
    }
}
