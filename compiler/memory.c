/*
 * memory.c - an offset in one block for every buffer.
 *
 *   needs insts, funcs, calls, buffers; fills Buffer.first/last/region/offset, the
 *   regions' places of every call, Plan.block_bytes.
 *
 * A buffer lives from the first instruction that touches it to the last. Largest
 * first, each goes to the lowest gap that no buffer alive at the same time overlaps.
 * With one function each way that is all. Otherwise the block is, from its start:
 *
 *   persistent   parameters, gradients, moments; what BEGIN makes for the whole step
 *   transient    what one function alone touches: all functions share the room
 *   instances    regions of units and microbatches, one for each in flight: a region
 *                lives over the calls that may touch it, and is placed like a buffer
 *
 * The peak is the size of the block, exactly.
 */
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

/* Lowest offset at which the item fits among the placed ones, sorted by offset. */
static int64_t lowest_gap(const Item *const *placed, int n, const Item *b)
{
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const Item *o = placed[i];
        if (o->last < b->first || o->first > b->last)
            continue;
        if (o->at - at >= b->bytes)
            return at;
        int64_t end = o->at + o->bytes;
        at = end > at ? end : at;
    }
    return at;
}

/* Sorts the items by size, gives each a place; the room they need together. */
static int64_t place(Items *e)
{
    const Item **placed = NEWN(const Item *, e->n + 1);
    int64_t top = 0;
    qsort(e->at, (size_t)e->n, sizeof *e->at, by_size);
    for (int i = 0; i < e->n; i++) {
        Item *b = &e->at[i];
        b->at = lowest_gap(placed, i, b);
        int k = i;
        for (; k > 0 && placed[k - 1]->at > b->at; k--)
            placed[k] = placed[k - 1];
        placed[k] = b;
        top = b->at + b->bytes > top ? b->at + b->bytes : top;
    }
    return top;
}

/* Buffers `chosen` (NULL: all that live and are not persistent) from `base` on. */
static int64_t place_buffers(Plan *p, const bool *chosen, int64_t base)
{
    Items e = { 0 };
    for (int i = 0; i < p->buffers.n; i++) {
        const Buffer *b = &p->buffers.at[i];
        if (b->persistent || b->first < 0 || (chosen && !chosen[i]))
            continue;
        Item x = { i, buffer_bytes(p, b), b->first, b->last, 0 };
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

/* The room that region r of a unit (or of a chunk's microbatch) takes. */
static int64_t region_size(Plan *p, const Touch *t, Region r, int slice, int chunk)
{
    bool *chosen = NEWN(bool, p->buffers.n), any = false;
    for (int i = 0; i < p->buffers.n; i++) {
        if (p->buffers.at[i].persistent || t[i].func < 0 || t[i].one || t[i].rest)
            continue;
        const Func *f = &p->funcs.at[t[i].func];
        chosen[i] = region_of(&t[i]) == r && f->chunk == chunk &&
                    (r >= REGION_MICRO || f->slice == slice);
        any |= chosen[i];
        if (chosen[i])
            p->buffers.at[i].region = r;
    }
    return any ? place_buffers(p, chosen, 0) : 0;
}

/* Does a call touch the region of its unit, so that it must be there? */
bool call_needs(StepKind k, Region r)
{
    switch (r) {
    case REGION_UNIT:       return is_unit(k);
    case REGION_UNIT_FORTH: return is_forth(k);
    case REGION_UNIT_BACK:  return is_unit(k) && !is_forth(k);
    case REGION_MICRO:      return is_unit(k);
    case REGION_MICRO_BACK: return is_unit(k) && !is_forth(k);
    default:                return false;
    }
}

typedef struct { Region region; int microbatch, slice, chunk; } Instance;
typedef VEC(Instance) Instances;

static bool is_of(const Call *c, const Instance *x)
{
    return call_needs(c->step.kind, x->region) && c->step.microbatch == x->microbatch &&
           c->step.chunk == x->chunk && (x->region >= REGION_MICRO || c->step.slice == x->slice);
}

static void add_instances(const Plan *p, int64_t bytes, Instance x, Items *items, Instances *all)
{
    if (bytes == 0)
        return;
    int64_t m = p->is.batch / p->is.data / p->is.microbatch;
    for (int j = 0; j < m; j++) {
        Item e = { all->n, bytes, -1, -1, 0 };
        x.microbatch = j;
        for (int i = 0; i < p->calls.n; i++)
            if (is_of(&p->calls.at[i], &x)) {
                e.first = e.first < 0 ? i : e.first;
                e.last = i;
            }
        vec_add(items, e);
        vec_add(all, x);
    }
}

static void place_regions(Plan *p, const Touch *t)
{
    Items items = { 0 };
    Instances all = { 0 };
    for (int c = 0; c < p->is.chunks; c++) {
        for (int i = 0; i < p->is.nslices; i++)
            for (Region r = REGION_UNIT; r <= REGION_UNIT_BACK; r++)
                add_instances(p, region_size(p, t, r, i, c), (Instance){ r, 0, i, c }, &items,
                              &all);
        for (Region r = REGION_MICRO; r <= REGION_MICRO_BACK; r++)
            add_instances(p, region_size(p, t, r, 0, c), (Instance){ r, 0, 0, c }, &items, &all);
    }
    int64_t base = p->block_bytes;
    p->block_bytes += place(&items);
    for (int k = 0; k < items.n; k++) {
        const Instance *x = &all.at[items.at[k].id];
        for (int i = items.at[k].first; i <= items.at[k].last; i++)
            if (is_of(&p->calls.at[i], x))
                p->calls.at[i].region[x->region] = base + items.at[k].at;
    }
}

/* What functions use alone: each its own, all in the same room. */
static void place_transients(Plan *p, const Touch *t)
{
    bool *chosen = NEWN(bool, p->buffers.n);
    int64_t most = 0;
    for (int f = 0; f < p->funcs.n; f++) {
        bool any = false;
        for (int i = 0; i < p->buffers.n; i++)
            any |= chosen[i] = t[i].func == f && t[i].one;
        int64_t room = any ? place_buffers(p, chosen, p->block_bytes) : 0;
        most = room > most ? room : most;
    }
    p->block_bytes += most;
}

static void place_all(Plan *p)
{
    Touch *t = find_touches(p);
    for (int i = 0; i < p->buffers.n; i++)
        if (t[i].func >= 0 && t[i].rest && !t[i].one)
            p->buffers.at[i].persistent = true;
    p->block_bytes = place_persistent(p);
    place_transients(p, t);
    place_regions(p, t);
}

void memory_place(Plan *p)
{
    for (int r = 0; r < (p->stages && p->stage == 0 ? p->is.stages : 1); r++) {
        Plan *s = p->stages && p->stage == 0 ? p->stages[r] : p;
        if (s->insts.n == 0)
            continue;
        find_lives(s);
        if (s->is.stages == 1 && s->is.chunks == 1 && s->is.nslices == 1) {
            s->block_bytes = place_persistent(s);
            s->block_bytes += place_buffers(s, NULL, s->block_bytes);
        } else {
            place_all(s);
        }
    }
}
