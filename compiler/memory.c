/*
 * memory.c - an offset in one block for every buffer.
 *
 *   needs insts, funcs, calls, buffers; fills Buffer.first/last/region/offset, the
 *   regions' places of every call, Plan.block_bytes.
 *
 * A buffer lives from the first instruction that touches it to the last; gathered weights,
 * from some turns before. Largest first, each goes to the lowest gap that no buffer alive at the
 * same time overlaps.
 * With one function each way that is all. Otherwise the block is, from its start:
 *
 *   persistent   parameters, gradients, moments; what BEGIN makes for the whole step
 *   transient    what one function alone touches: all functions share the room
 *   instances    regions of units and microbatches, one for each in flight: a region
 *                lives over the calls that may touch it, and is placed like a buffer
 *
 * The peak is the size of the block, exactly.
 */
#include <limits.h>

#include "plan.h"

static void touch(Plan *p, ValueId v, InstId i)
{
    Buffer *b = &p->buffers.at[p->values.at[v].buffer];
    if (b->first < 0)
        b->first = i;
    b->last = i;
}

static void find_lives(Plan *p)
{
    for (int i = 0; i < p->buffers.n; i++)
        p->buffers.at[i].first = p->buffers.at[i].last = -1;
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        for (int j = 0; j < n->nin; j++)
            touch(p, n->in[j], i);
        for (int j = 0; j < n->nout; j++)
            touch(p, n->out[j], i);
    }
    for (int i = 0; i < p->buffers.n; i++)
        if (p->buffers.at[i].persistent) {
            p->buffers.at[i].first = 0;
            p->buffers.at[i].last = p->insts.n - 1;
        }
}

/*
 * Room for weights that are gathered ahead: it is there from the start of the turn that stands
 * Choices.prefetch turns before, so that the stream of weights need not wait for it (streams.c).
 */
static void look_ahead(Plan *p, int first, int end)
{
    int *start = NEWN(int, end - first + 1), n = 0;
    for (int i = first; i < end;) {
        int turn = inst_turn(p, i, end);
        start[n++] = i;
        for (; i < end && inst_turn(p, i, end) == turn; i++) {
            const Inst *x = &p->insts.at[i];
            Buffer *b = x->nout ? &p->buffers.at[p->values.at[x->out[0]].buffer] : NULL;
            if (inst_stream(p, x) == STREAM_WEIGHTS && b->first == i)
                b->first = start[n - 1 > p->is.prefetch ? n - 1 - p->is.prefetch : 0];
        }
    }
}

static void find_ahead(Plan *p)
{
    if (p->is.prefetch == 0)
        return;
    if (p->funcs.n == 0)
        look_ahead(p, 0, p->insts.n);
    for (int f = 0; f < p->funcs.n; f++)
        look_ahead(p, p->funcs.at[f].first, p->funcs.at[f].end);
}

/* ---- placing ------------------------------------------------------------------------- */

/* Something that wants `bytes` from call or instruction `first` to `last`. */
typedef struct { int id; int64_t bytes; int first, last; int64_t at; } Item;
typedef VEC(Item) Items;

static int by_size(const void *x, const void *y)
{
    const Item *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->id - b->id;
}

/* Placed items of one offset and size: their lives lie apart, in order. */
typedef struct { int first, last; } Life;
typedef struct { int64_t at, bytes; VEC(Life) lives; } Slot;
typedef VEC(Slot) Slots;

/* The first of the slot's lives that does not end before `first`. */
static int life_after(const Slot *s, int first)
{
    int lo = 0, hi = s->lives.n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->lives.at[mid].last < first)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The first of the slot's lives that the item's meets, or NULL. */
static const Life *meets(const Slot *s, const Item *b)
{
    int n = s->lives.n;
    const Life *l = &s->lives.at[n - 1];
    if (l->last < b->first)                     // items mostly come in order
        return NULL;
    if (n > 1 && l[-1].last >= b->first)
        l = &s->lives.at[life_after(s, b->first)];
    return l->first <= b->last ? l : NULL;
}

/*
 * What the last search has found: below `at` there is no gap for so many bytes, because of lives
 * all of which last from `first` to `last`. So there is none for another item of that size that
 * lives then. With gpipe thousands of copies of a region are alive together: without this each
 * would be held against all of those before it.
 */
typedef struct { int64_t bytes, at; int first, last; } Full;

static void is_in_the_way(Full *f, const Life *l)
{
    f->first = l->first > f->first ? l->first : f->first;
    f->last = l->last < f->last ? l->last : f->last;
}

/* The first slot at offset `at` or above. */
static int slot_from(const Slots *slots, int64_t at)
{
    int lo = 0, hi = slots->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (slots->at[mid].at < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Lowest offset at which the item fits among the slots, sorted by offset; none has more bytes
 * than `most`. */
static int64_t lowest_gap(const Slots *slots, const Item *b, int64_t most, Full *f)
{
    bool known = f->bytes == b->bytes && f->first <= f->last && b->first <= f->last &&
                 b->last >= f->first;
    if (!known)
        *f = (Full){ b->bytes, 0, INT_MIN, INT_MAX };
    int from = slot_from(slots, f->at);
    int64_t at = f->at;
    for (int i = from; i-- > 0 && slots->at[i].at + most > f->at;) {    // those that reach there
        const Slot *o = &slots->at[i];
        const Life *l = o->at + o->bytes > f->at ? meets(o, b) : NULL;
        if (l == NULL)
            continue;
        at = o->at + o->bytes > at ? o->at + o->bytes : at;
        is_in_the_way(f, l);
    }
    for (int i = from; i < slots->n && slots->at[i].at - at < b->bytes; i++) {
        const Slot *o = &slots->at[i];
        const Life *l = meets(o, b);
        if (l == NULL)
            continue;
        at = o->at + o->bytes > at ? o->at + o->bytes : at;
        is_in_the_way(f, l);
    }
    f->at = at;
    return at;
}

static void occupy(Slots *slots, const Item *b)
{
    int i = slot_from(slots, b->at);
    while (i < slots->n && slots->at[i].at == b->at && slots->at[i].bytes != b->bytes)
        i++;
    if (i == slots->n || slots->at[i].at != b->at) {
        Slot fresh = { b->at, b->bytes, { 0 } };
        int n = slots->n;
        vec_add(slots, fresh);
        memmove(&slots->at[i + 1], &slots->at[i], sizeof fresh * (size_t)(n - i));
        slots->at[i] = fresh;
    }
    Slot *s = &slots->at[i];
    Life life = { b->first, b->last };
    int n = s->lives.n, k = life_after(s, b->first);
    vec_add(&s->lives, life);
    memmove(&s->lives.at[k + 1], &s->lives.at[k], sizeof life * (size_t)(n - k));
    s->lives.at[k] = life;
}

/* Sorts the items by size, gives each a place; the room they need together. */
static int64_t place(Items *e)
{
    Slots slots = { 0 };
    Full full = { -1, 0, 0, 0 };
    int64_t top = 0;
    vec_sort(*e, by_size);
    for (int i = 0; i < e->n; i++) {
        Item *b = &e->at[i];
        b->at = lowest_gap(&slots, b, e->at[0].bytes, &full);
        occupy(&slots, b);
        top = b->at + b->bytes > top ? b->at + b->bytes : top;
    }
    return top;
}

typedef struct { BufferId *at; int n, cap; } Group;      // buffers that are placed together

/* A group's buffers that live and are not persistent, from `base` on. */
static int64_t place_buffers(Plan *p, const Group *g, int64_t base)
{
    Items e = { 0 };
    for (int i = 0; i < g->n; i++) {
        const Buffer *b = &p->buffers.at[g->at[i]];
        if (b->persistent || b->first < 0)
            continue;
        Item x = { g->at[i], buffer_bytes(p, b), b->first, b->last, 0 };
        vec_add(&e, x);
    }
    int64_t top = place(&e);
    for (int i = 0; i < e.n; i++)
        p->buffers.at[e.at[i].id].offset = e.at[i].at + base;
    return top;
}

static int64_t place_persistent(Plan *p)        // first in the block, in order
{
    int64_t at = 0;
    for (int i = 0; i < p->buffers.n; i++) {
        Buffer *b = &p->buffers.at[i];
        b->offset = 0;
        b->region = REGION_FIXED;
        if (!b->persistent)
            continue;
        b->offset = at;
        at += buffer_bytes(p, b);
    }
    return at;
}

/* ---- regions ------------------------------------------------------------------------- */

static bool is_forth(StepKind k)
{
    return k == STEP_FORWARD || k == STEP_SEND_ACTIVATION || k == STEP_RECV_ACTIVATION;
}

static bool is_unit(StepKind k) { return k < STEP_SYNC; }

/* Which region a buffer belongs to, from the functions that touch it (bits `forth`, `back`,
 * `rest`; one slice or several). */
typedef struct { int func; bool one, forth, back, rest, slices, chunks; } Touch;

static void touched_by(const Plan *p, Touch *t, int func)
{
    const Func *f = &p->funcs.at[func], *first = t->func >= 0 ? &p->funcs.at[t->func] : f;
    t->one = t->func < 0 || (t->one && t->func == func);
    t->forth |= is_forth(f->kind);
    t->back |= is_unit(f->kind) && !is_forth(f->kind);
    t->rest |= !is_unit(f->kind);
    t->slices |= first->slice != f->slice;
    t->chunks |= first->chunk != f->chunk;
    t->func = t->func < 0 ? func : t->func;
}

static Region region_of(const Touch *t)
{
    if (t->slices)
        return t->forth ? REGION_MICRO : REGION_MICRO_BACK;
    return t->forth && t->back ? REGION_UNIT : t->forth ? REGION_UNIT_FORTH : REGION_UNIT_BACK;
}

static Touch *find_touches(const Plan *p)
{
    Touch *t = NEWN(Touch, p->buffers.n);
    for (int i = 0; i < p->buffers.n; i++)
        t[i].func = -1;
    for (int f = 0; f < p->funcs.n; f++)
        for (int i = p->funcs.at[f].first; i < p->funcs.at[f].end; i++) {
            const Inst *n = &p->insts.at[i];
            for (int j = 0; j < n->nin + n->nout; j++)
                touched_by(p, &t[p->values.at[j < n->nin ? n->in[j] : n->out[j - n->nin]].buffer],
                           f);
        }
    return t;
}

/* Index of a region: of a unit, or of a chunk's microbatch (slice 0). */
static int region_index(const Plan *p, Region r, int slice, int chunk)
{
    return (chunk * p->is.nslices + (r < REGION_MICRO ? slice : 0)) * REGIONS + (int)r;
}

/* Every copy of a region, one for each microbatch, is there from the first call that may
 * touch it to the last. */
static void place_regions(Plan *p, const Group *regions, int nregions)
{
    int m = (int)(p->is.batch / p->is.data / p->is.microbatch);
    int64_t *bytes = NEWN(int64_t, nregions);
    Items copies = { 0 };               // m of each region
    for (int i = 0; i < nregions; i++) {
        bytes[i] = regions[i].n ? place_buffers(p, &regions[i], 0) : 0;
        for (int j = 0; j < m; j++) {
            Item x = { i * m + j, bytes[i], -1, -1, 0 };
            vec_add(&copies, x);
        }
    }
    for (int i = 0; i < p->calls.n; i++)
        for (Region r = REGION_UNIT; r < REGIONS; r++) {
            const Step *s = &p->calls.at[i].step;
            if (!call_needs(s->kind, r))
                continue;
            Item *x = &copies.at[region_index(p, r, s->slice, s->chunk) * m + s->microbatch];
            x->first = x->first < 0 ? i : x->first;
            x->last = i;
        }
    int64_t base = p->block_bytes, *at = NEWN(int64_t, nregions * m);
    int n = 0;
    for (int i = 0; i < copies.n; i++)
        if (copies.at[i].bytes > 0)
            copies.at[n++] = copies.at[i];
    copies.n = n;
    p->block_bytes += place(&copies);
    for (int i = 0; i < n; i++)
        at[copies.at[i].id] = base + copies.at[i].at;
    for (int i = 0; i < p->calls.n; i++)
        for (Region r = REGION_UNIT; r < REGIONS; r++) {
            Call *c = &p->calls.at[i];
            if (call_needs(c->step.kind, r))
                c->region[r] = at[region_index(p, r, c->step.slice, c->step.chunk) * m +
                                  c->step.microbatch];
        }
}

/* What functions use alone: each its own, all in the same room. */
static void place_transients(Plan *p, const Group *own)
{
    int64_t most = 0;
    for (int f = 0; f < p->funcs.n; f++) {
        int64_t room = own[f].n ? place_buffers(p, &own[f], p->block_bytes) : 0;
        most = room > most ? room : most;
    }
    p->block_bytes += most;
}

static void place_all(Plan *p)
{
    Touch *t = find_touches(p);
    int nregions = p->is.chunks * p->is.nslices * REGIONS;
    Group *own = NEWN(Group, p->funcs.n), *regions = NEWN(Group, nregions);
    for (int i = 0; i < p->buffers.n; i++)
        if (t[i].func >= 0 && t[i].rest && !t[i].one)
            p->buffers.at[i].persistent = true;
    p->block_bytes = place_persistent(p);
    for (int i = 0; i < p->buffers.n; i++) {
        Buffer *b = &p->buffers.at[i];
        if (b->persistent || t[i].func < 0)
            continue;
        const Func *f = &p->funcs.at[t[i].func];
        b->region = t[i].one ? REGION_FIXED : region_of(&t[i]);
        Group *g = t[i].one ? &own[t[i].func]
                            : &regions[region_index(p, b->region, f->slice, f->chunk)];
        vec_add(g, i);
    }
    place_transients(p, own);
    place_regions(p, regions, nregions);
}

static void place_stage(Plan *p)
{
    find_lives(p);
    find_ahead(p);
    if (p->is.stages > 1 || p->is.chunks > 1 || p->is.nslices > 1) {
        place_all(p);
        return;
    }
    Group all = { 0 };
    for (int i = 0; i < p->buffers.n; i++)
        vec_add(&all, i);
    p->block_bytes = place_persistent(p);
    p->block_bytes += place_buffers(p, &all, p->block_bytes);
}

void memory_place(Plan *p)
{
    for (int r = 0; r < (p->stages && p->stage == 0 ? p->is.stages : 1); r++) {
        Plan *s = p->stages && p->stage == 0 ? p->stages[r] : p;
        if (s->insts.n == 0 || s->placed)
            continue;
        Aside aside = aside_begin();
        place_stage(s);
        s->placed = true;
        aside_end(aside);
    }
}
