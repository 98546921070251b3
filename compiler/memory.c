/*
 * memory.c - an offset in one block for every buffer.
 *
 *   needs insts, buffers; fills Buffer.first/last/offset, Plan.block_bytes.
 *
 * A buffer lives from the first instruction that touches it to the last. Largest
 * first, each goes to the lowest gap that no buffer alive
 * at the same time overlaps. The peak is the size of the block, exactly.
 */
#include "plan.h"

enum { ALIGN = 64 };

static int64_t buffer_bytes(const Plan *p, const Buffer *b)
{
    int64_t real = p->is.precision == PREC_FP64 ? 8 : 4;
    int64_t each = b->dtype == D_I32 ? 4 : b->dtype == D_F64 ? 8 : real;
    return (b->elements * each + ALIGN - 1) / ALIGN * ALIGN;
}

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

typedef struct { int id; int64_t bytes; } Placed;

static int by_size(const void *x, const void *y)
{
    const Placed *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->id - b->id;
}

/* Lowest offset at which [bytes] fits among the placed ones, sorted by offset. */
static int64_t lowest_gap(const Plan *p, const int *placed, int n, const Buffer *b, int64_t bytes)
{
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const Buffer *o = &p->buffers.at[placed[i]];
        if (o->last < b->first || o->first > b->last)
            continue;
        if (o->offset - at >= bytes)
            return at;
        int64_t end = o->offset + buffer_bytes(p, o);
        at = end > at ? end : at;
    }
    return at;
}

void memory_place(Plan *p)
{
    find_lives(p);
    Placed *e = NEWN(Placed, p->buffers.n);
    int *placed = NEWN(int, p->buffers.n);
    int n = 0, nplaced = 0;
    p->block_bytes = 0;
    for (int i = 0; i < p->buffers.n; i++) {
        Buffer *b = &p->buffers.at[i];
        b->offset = 0;
        if (b->persistent) {        // first in the block, in order
            b->offset = p->block_bytes;
            p->block_bytes += buffer_bytes(p, b);
        } else if (b->first >= 0) {
            e[n++] = (Placed){ i, buffer_bytes(p, b) };
        }
    }
    int64_t base = p->block_bytes, top = 0;
    qsort(e, (size_t)n, sizeof *e, by_size);
    for (int i = 0; i < n; i++) {
        Buffer *b = &p->buffers.at[e[i].id];
        b->offset = lowest_gap(p, placed, nplaced, b, e[i].bytes);
        int k = nplaced++;
        for (; k > 0 && p->buffers.at[placed[k - 1]].offset > b->offset; k--)
            placed[k] = placed[k - 1];
        placed[k] = e[i].id;
        top = b->offset + e[i].bytes > top ? b->offset + e[i].bytes : top;
    }
    for (int i = 0; i < n; i++)
        p->buffers.at[e[i].id].offset += base;
    p->block_bytes += top;
}
