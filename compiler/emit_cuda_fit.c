/*
 * emit_cuda_fit.c - where a CUDA row kernel keeps its numbers, so that none is spilled.
 *
 * A thread has 65536 / (threads of a processor) registers. What they must hold follows from
 * the row program, E numbers of a row being a thread's:
 *
 *     kept      E a value that a later phase reads again: the most that live between two phases
 *     sums      E a sum over rows, from the first row to the last
 *     chunk     what one access of V neighbours has in flight, and their arithmetic
 *     the rest  addresses, counters, numbers of the whole row
 *
 * Ways of working are tried in this order, until one fits:
 *
 *     no reduction     columns know nothing of each other: sums over rows are made tile by
 *                      tile of columns, all rows of each; nothing is kept, any width fits
 *     on chip          all in registers; then vectors are read again, from a cache; bf16 is kept
 *                      as it was read, two a register; values, at last sums, go to shared
 *                      memory, each thread to places of its own; a block of 256 threads (two
 *                      on a processor), of 512, of 256 with twice the registers
 *     sums in a sweep  sums over rows in a second pass over a batch of rows, tile by tile
 *     partly on chip   what shared memory has no room for is read again by each phase
 *
 * The last two read memory more often than once, and the text of the kernel shows it
 * (tests/bench/rows_traffic.awk counts its loads).
 */
#include "emit_cuda.h"

enum {
    // TUNING: what ptxas 13.0 was seen to do for sm_80 and sm_90 with rows of many widths, and
    // for sm_100 where it is held back (next_row, in_turn in teracube.cuh)
    REST = 26,              // addresses, counters, scalars
    REST_COSTLY = 20,       // the same: erf, philox and their like while they run
    REST_PHASE = 20,        // the same, for each phase behind the second
    REST_AHEAD = 16,        // the same: of unrolled accesses that it reads ahead
    FEW = 3,                // unrolled accesses that it leaves in order; of more it reads ahead
    ACCESSES = 12,          // the most that are unrolled
    TILE = 64,              // registers for a tile of sums over rows and what they read
    TILE_ACCESSES = 4,      // to a row, at most, in one
    BATCH = 16,             // rows of a sweep: their reductions wait in shared memory
    ROOM = 96 << 10,        // shared memory of a block on the least of processors (sm_86: 99 KB)
    PHASES = 63             // those that `in_phase` tells apart
};

typedef struct { int group, least, limit; } Threads;      // least: blocks on a processor

/* ---- what is read when ----------------------------------------------------------------- */

bool cuda_rows_sum_stays(const RowProg *p, int i)
{
    const RowNode *n = &p->node[i];
    return n->kind == R_COLSUM &&
           (p->parts == 1 || p->arg[n->arg].length == p->width / p->parts);
}

static bool is_sum(const CudaRows *h, int i) { return cuda_rows_sum_stays(h->p, i); }

/* Is the node's value in memory or costly, so that a later phase should find it on chip? */
bool cuda_rows_keeps(const CudaRows *h, int i)
{
    const RowNode *n = &h->p->node[i];
    bool memory = n->kind == R_LOAD || n->kind == R_LOADVEC;
    return !h->levels.scalar[i] && (memory || row_costly(n)) && h->place[i] != IN_MEMORY;
}

/* Marks what phase p evaluates for node i. */
static void visit(CudaRows *h, int i, int p)
{
    const RowNode *n = &h->p->node[i];
    if (h->levels.scalar[i])
        return;
    if (h->seen[i] != NONE && h->seen[i] < p && cuda_rows_keeps(h, i)) {
        h->kept[i] = p;
        h->in_phase[i] |= 1ull << (p < PHASES ? p : PHASES);
        return;
    }
    if (h->seen[i] == NONE)
        h->seen[i] = p;
    h->in_phase[i] |= 1ull << (p < PHASES ? p : PHASES);
    if (n->kind != R_OP || n->op == OP_COLUMN)
        return;
    visit(h, n->a, p);
    if (n->b >= 0 && n->op != OP_SPREAD)
        visit(h, n->b, p);
}

bool cuda_rows_result(const CudaRows *h, int i, int phase)
{
    RowNodeKind k = h->p->node[i].kind;
    return (k == R_STORE || (k == R_COLSUM && !(h->swept && is_sum(h, i)))) &&
           h->levels.level[i] == phase;
}

static void analyse(CudaRows *h)
{
    for (int i = 0; i < h->p->nnodes; i++) {
        h->seen[i] = h->kept[i] = NONE;
        h->in_phase[i] = 0;
    }
    for (int q = 0; q < h->levels.nphases; q++) {
        for (int k = 0; k < h->levels.nred; k++)
            if (h->levels.red[k].phase == q)
                visit(h, h->levels.red[k].a, q);
        for (int i = 0; i < h->p->nnodes; i++)
            if (cuda_rows_result(h, i, q))
                visit(h, h->p->node[i].a, q);
    }
}

/* ---- what it takes ---------------------------------------------------------------------- */

static int words(const CudaRows *h) { return h->is_double ? 2 : 1; }

/* Bytes of one number of node i where it is kept as it was stored. */
static int stored_bytes(const CudaRows *h, int i)
{
    const RowNode *n = &h->p->node[i];
    bool memory = n->kind == R_LOAD || n->kind == R_LOADVEC;
    return memory && h->p->arg[n->arg].bf16 ? 2 : 4 * words(h);
}

/* Registers of a thread that a kept value or a sum takes. */
static int taken(const CudaRows *h, int i)
{
    switch (h->place[i]) {
    case IN_REGISTERS: return h->each * words(h);
    case IN_PAIRS:     return h->each / 2;
    default:           return 0;
    }
}

static int kept_registers(const CudaRows *h)
{
    int most = 0;
    for (int q = 0; q < h->levels.nphases; q++) {
        int live = 0;
        for (int i = 0; i < h->p->nnodes; i++)
            if (h->kept[i] > q && h->seen[i] <= q)
                live += taken(h, i);
        most = live > most ? live : most;
    }
    return most;
}

static int sum_registers(const CudaRows *h)
{
    int all = 0;
    for (int i = 0; i < h->p->nnodes && !h->swept; i++)
        if (is_sum(h, i))
            all += h->place[i] == IN_REGISTERS ? (h->tile ? h->tile : h->each) * words(h) : 0;
    return all;
}

/* Is something in registers that all accesses to a row, unrolled, must name? */
static bool is_unrolled(const CudaRows *h)
{
    for (int i = 0; i < h->p->nnodes; i++)
        if (taken(h, i) && (h->kept[i] != NONE || (is_sum(h, i) && !h->swept && !h->tile)))
            return true;
    return false;
}

/* Accesses to each operand that a loop has in flight. */
static int in_flight(const CudaRows *h)
{
    int n = h->each / h->vec;
    return n <= FEW || !is_unrolled(h) ? 1 : n;
}

/* Of one phase's loop: a chunk's values, and what its accesses have in flight. */
static int loop_registers(const CudaRows *h, int q)
{
    int loads = 0, stores = 0;
    for (int i = 0; i < h->p->nnodes; i++) {
        const RowNode *x = &h->p->node[i];
        bool asked = h->in_phase[i] >> q & 1, later = h->kept[i] != NONE && h->seen[i] < q;
        bool held = h->kept[i] != NONE && taken(h, i);
        if (asked && !held && (x->kind == R_LOAD || x->kind == R_LOADVEC || later))
            loads += (h->vec * stored_bytes(h, i) + 3) / 4;
        if (is_sum(h, i) && h->place[i] == IN_SHARED && cuda_rows_result(h, i, q))
            loads += h->vec * words(h);
        if (x->kind == R_STORE && h->levels.level[i] == q)
            stores += (h->vec * (h->p->arg[x->arg].bf16 ? 2 : 4 * words(h)) + 3) / 4;
    }
    return h->vec * words(h) + stores + loads * in_flight(h);
}

static int rest_registers(const CudaRows *h)
{
    int costly = 0;
    for (int i = 0; i < h->p->nnodes; i++)
        if (!h->levels.scalar[i] && row_costly(&h->p->node[i]) && h->p->node[i].op != OP_DIV)
            costly = REST_COSTLY * words(h);
    int more = h->levels.nphases > 2 ? (h->levels.nphases - 2) * REST_PHASE : 0;
    return REST + costly + more + (in_flight(h) > 1 ? REST_AHEAD : 0);
}

static int registers(const CudaRows *h)
{
    int loop = 0;
    for (int q = 0; q < h->levels.nphases && q <= PHASES; q++) {
        int n = loop_registers(h, q);
        loop = n > loop ? n : loop;
    }
    return kept_registers(h) + sum_registers(h) + loop + rest_registers(h);
}

static bool fits(CudaRows *h)
{
    analyse(h);
    h->registers = registers(h);
    return h->registers <= h->limit && (h->each <= ACCESSES * h->vec || !is_unrolled(h));
}

/* ---- ways of working ---------------------------------------------------------------------- */

static void take(CudaRows *h, Threads s)
{
    h->group = s.group;
    h->least = s.least;
    h->limit = s.limit;
    h->block = s.group == ROWS_WARP ? ROWS_BLOCK : s.group;
    int64_t chunk = (int64_t)h->group * h->vec, pw = h->p->width / h->p->parts;
    h->each = (int)((pw + chunk - 1) / chunk) * h->vec;
    h->shared = 0;
    for (int i = 0; i < h->p->nnodes; i++)
        h->place[i] = IN_REGISTERS;
}

/* Moves node i's numbers to shared memory if there is room. */
static bool to_shared(CudaRows *h, int i)
{
    int64_t bytes = (int64_t)h->each * h->group * stored_bytes(h, i);
    if (h->shared + bytes > ROOM / h->least)
        return false;
    h->place[i] = IN_SHARED;
    h->offset[i] = h->shared;
    h->shared += bytes;
    return true;
}

static void vectors_to_memory(CudaRows *h)
{
    for (int i = 0; i < h->p->nnodes; i++)
        if (h->p->node[i].kind == R_LOADVEC)
            h->place[i] = IN_MEMORY;
}

/* Can the row stay on chip in this shape? Else some of it is placed, and too much is left. */
static bool on_chip(CudaRows *h, Threads s)
{
    take(h, s);
    if (fits(h))
        return true;
    vectors_to_memory(h);
    if (fits(h))
        return true;
    for (int i = 0; i < h->p->nnodes && h->vec > 1; i++)
        if (h->kept[i] != NONE && stored_bytes(h, i) == 2)
            h->place[i] = IN_PAIRS;
    if (fits(h))
        return true;
    if (h->group == ROWS_WARP)
        return false;
    for (RowPlace from = IN_REGISTERS; from <= IN_PAIRS; from++)
        for (int i = 0; i < h->p->nnodes; i++)
            if (h->kept[i] != NONE && h->place[i] == from && to_shared(h, i) && fits(h))
                return true;
    for (int i = 0; i < h->p->nnodes && !h->swept; i++)
        if (is_sum(h, i) && to_shared(h, i) && fits(h))
            return true;
    return false;
}

static bool some_shape(CudaRows *h, bool narrow, int64_t pw)
{
    Threads two = { ROWS_BLOCK, 2, 128 }, one = { ROWS_BLOCK, 1, 255 };
    Threads wide = { ROWS_WIDE, 1, 128 };
    if (narrow && on_chip(h, h->is_double ? (Threads){ ROWS_WARP, 1, 255 }
                                          : (Threads){ ROWS_WARP, 2, 128 }))
        return true;
    if (!h->is_double && pw <= ROWS_LONG && on_chip(h, two))
        return true;
    if (h->is_double && pw <= ROWS_LONG && on_chip(h, one))
        return true;
    return on_chip(h, wide) || on_chip(h, one);
}

/* A kept value that has no place yet, loads first; NONE: all have one. */
static int unplaced(const CudaRows *h)
{
    int costly = NONE;
    for (int i = 0; i < h->p->nnodes; i++)
        if (h->kept[i] != NONE && h->place[i] == IN_REGISTERS) {
            if (h->p->node[i].kind != R_OP)
                return i;
            costly = i;
        }
    return costly;
}

/* In shared memory what has room there; the rest is read or computed again. */
static void partly_on_chip(CudaRows *h)
{
    take(h, (Threads){ ROWS_WIDE, 1, 128 });
    vectors_to_memory(h);
    analyse(h);
    for (int i; (i = unplaced(h)) != NONE; analyse(h))
        if (!to_shared(h, i))
            h->place[i] = IN_MEMORY;
}

/* Sums over rows by tiles: the numbers of a thread in one. */
static int tile_of(const CudaRows *h, int sums)
{
    int access = words(h) * sums * h->vec;
    for (int i = 0; i < h->p->nnodes; i++)
        if (h->p->node[i].kind == R_LOAD || h->p->node[i].kind == R_LOADVEC)
            access += (h->vec * stored_bytes(h, i) + 3) / 4;
    int n = TILE / access;
    n = (n > TILE_ACCESSES ? TILE_ACCESSES : n > 1 ? n : 1) * h->vec;
    return n < h->each ? n : h->each;
}

static void choose(CudaRows *h)
{
    const RowProg *p = h->p;
    int64_t pw = p->width / p->parts;
    int sums = 0;
    bool loose = false;     // sums of several parts in one row of scratch: an item a block
    for (int i = 0; i < p->nnodes; i++) {
        sums += is_sum(h, i);
        loose |= p->node[i].kind == R_COLSUM && !is_sum(h, i);
    }
    bool narrow = pw <= (sums ? 256 : 1024) && !loose;
    if (h->levels.nred == 0) {
        int group = narrow ? ROWS_WARP : pw <= ROWS_LONG || sums ? ROWS_BLOCK : ROWS_WIDE;
        take(h, (Threads){ group, h->is_double || group == ROWS_WIDE ? 1 : 2,
                          h->is_double && group != ROWS_WIDE ? 255 : 128 });
        h->tile = sums ? tile_of(h, sums) : 0;
        fits(h);
        return;
    }
    if (some_shape(h, narrow, pw))
        return;
    h->swept = sums > 0;
    if (!h->swept || !some_shape(h, narrow, pw))
        partly_on_chip(h);
    if (h->swept) {
        h->batch = BATCH;
        h->tile = tile_of(h, sums);
    }
    fits(h);
}

/* ---- accesses ---------------------------------------------------------------------------- */

bool cuda_rows_wide(const RowProg *p, int arg)
{
    int64_t pw = p->width / p->parts;
    const RowArg *a = &p->arg[arg];
    for (int i = 0; i < p->nnodes; i++) {
        const RowNode *n = &p->node[i];
        bool moves = n->kind == R_LOAD || n->kind == R_STORE || n->kind == R_LOADVEC;
        if (moves && n->arg == arg && cuda_rows_plain(a) && !(a->is_vector && a->length % pw))
            return true;
    }
    return false;
}

static bool aligned(const RowProg *p, int64_t pw, int v)
{
    if (pw % v)
        return false;
    for (int i = 0; i < p->nargs; i++)
        if (cuda_rows_wide(p, i) && !p->arg[i].is_vector && p->arg[i].ld % v)
            return false;
    return true;
}

CudaRows cuda_rows_how(const RowProg *p, bool is_double, int aligned_to)
{
    CudaRows h = { .p = p, .is_double = is_double, .vec = is_double ? 2 : 4,
                   .levels = row_levels(p) };
    for (int i = 0; i < p->nargs && h.vec == 4; i++)
        if (p->arg[i].bf16)
            h.vec = 8;
    while (h.vec > 1 && (h.vec > aligned_to || !aligned(p, p->width / p->parts, h.vec)))
        h.vec /= 2;
    h.seen = NEWN(int, p->nnodes);
    h.kept = NEWN(int, p->nnodes);
    h.place = NEWN(RowPlace, p->nnodes);
    h.offset = NEWN(int64_t, p->nnodes);
    h.in_phase = NEWN(uint64_t, p->nnodes);
    choose(&h);
    return h;
}
