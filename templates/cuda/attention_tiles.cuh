/*
 * attention_tiles.cuh - which rows of queries meet which rows of keys.
 *
 * Rows of a rank come as runs (RtRun: row, n, seq, pos): local rows row .. row+n-1 are
 * positions pos .. of sequence seq, in order. Queries and keys have runs of their own: the
 * keys of a slice are also those of the slices before it, gathered ones those of other
 * ranks. Runs are cut into tiles of at most 64 rows. Tiles stand sorted by (seq, pos), so
 * those that a tile meets are neighbours:
 *
 *     causal, window 6          key tiles     0  1  2  3
 *                     query tile 0            #              first 0, last 1
 *                                1            #  #           first 0, last 2
 *                                2               #  #        first 1, last 3
 *                                3                  #  #     first 2, last 4
 *
 * The same numbers for a key tile are the column of the picture. Blocks are started in the
 * order of work, most first, so that the last ones are short (Graham's rule for machines
 * in parallel, 1969).
 */
#ifndef ATTENTION_TILES_CUH
#define ATTENTION_TILES_CUH

#include "rows.cuh"

#include <stdlib.h>

constexpr int ATTN_TILE = 64;           // rows of a tile at most

struct AttnTile {
    int row, n, seq, pos;               // as RtRun
    int first, last;                    // tiles [first, last) of the other side
};

/* Tables on the device, of one pair of row maps. */
struct AttnTiles {
    const AttnTile *q, *k;
    const int *q_order, *k_order;       // tiles by work, most first
    int nq, nk;
};

/* Sizes of one attention; leading dimensions in elements. The kernels take it by value. */
struct AttnSpec {
    int heads, kv_heads;                // query head h uses kv head h * kv_heads / heads
    int head_size;
    bool ordered;                       // causal, or a window: no key behind the query
    int window;                         // > 0: only keys with pos > query's - window
    double scale, softcap;              // score = scale q.k; softcap c > 0: c tanh(score / c)
    int64_t ld_q, ld_k, ld_v, ld_o, ld_lse;
    int64_t ld_do, ld_dq, ld_dk, ld_dv; // backward only
};

/* ---- host: the tables ------------------------------------------------------------- */

inline int64_t attn_count_tiles(const int32_t *runs, int64_t nruns)
{
    int64_t n = 0;
    for (int64_t i = 0; i < nruns; i++)
        n += (runs[4 * i + 1] + ATTN_TILE - 1) / ATTN_TILE;
    return n;
}

/* Bytes on the device that attn_tiles_make needs. Runs: four int32 each, as RtCall's. */
inline size_t attn_tiles_bytes(const int32_t *runs_q, int64_t nruns_q, const int32_t *runs_k,
                               int64_t nruns_k)
{
    int64_t n = attn_count_tiles(runs_q, nruns_q) + attn_count_tiles(runs_k, nruns_k);
    return (size_t)n * (sizeof(AttnTile) + sizeof(int));
}

inline void attn_cut(const int32_t *runs, int64_t nruns, AttnTile *tile)
{
    for (int64_t i = 0; i < nruns; i++) {
        const int32_t *run = runs + 4 * i;
        for (int at = 0; at < run[1]; at += ATTN_TILE) {
            int n = run[1] - at < ATTN_TILE ? run[1] - at : ATTN_TILE;
            *tile++ = { run[0] + at, n, run[2], run[3] + at, 0, 0 };
        }
    }
}

/* Index of the first tile that ends behind position `pos` of `seq`, or is of a later one. */
inline int attn_find(const AttnTile *tile, int n, int seq, int64_t pos)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int i = lo + (hi - lo) / 2;
        bool before = tile[i].seq < seq
                      || (tile[i].seq == seq && (int64_t)tile[i].pos + tile[i].n <= pos);
        if (before)
            lo = i + 1;
        else
            hi = i;
    }
    return lo;
}

/* For each tile the others with a position within [pos - before, pos + n - 1 + after]. */
inline void attn_meet(AttnTile *tile, int n, const AttnTile *other, int nother, int64_t before,
                      int64_t after)
{
    for (int i = 0; i < n; i++) {
        AttnTile *t = &tile[i];
        int64_t to = (int64_t)t->pos + t->n - 1 + after;
        t->first = attn_find(other, nother, t->seq, t->pos - before);
        t->last = t->first;
        while (t->last < nother && other[t->last].seq == t->seq && other[t->last].pos <= to)
            t->last++;
    }
}

struct AttnWork { int64_t work; int tile; };

inline int attn_more_work(const void *a, const void *b)
{
    const AttnWork *x = (const AttnWork *)a, *y = (const AttnWork *)b;
    return x->work != y->work ? (x->work < y->work ? 1 : -1) : x->tile - y->tile;
}

inline void attn_sort(const AttnTile *tile, int n, AttnWork *work, int *order)
{
    for (int i = 0; i < n; i++)
        work[i] = { (int64_t)tile[i].last - tile[i].first, i };
    qsort(work, (size_t)n, sizeof *work, attn_more_work);
    for (int i = 0; i < n; i++)
        order[i] = work[i].tile;
}

/*
 * Fills `device` (attn_tiles_bytes of it, the caller's, kept as long as the tables are used)
 * and *tiles. To be called once for each pair of row maps, before the first step.
 */
inline cudaError_t attn_tiles_make(const int32_t *runs_q, int64_t nruns_q, const int32_t *runs_k,
                                   int64_t nruns_k, bool causal, int64_t window, void *device,
                                   AttnTiles *tiles)
{
    const int64_t any = (int64_t)1 << 40;
    bool ordered = causal || window > 0;
    int nq = (int)attn_count_tiles(runs_q, nruns_q), nk = (int)attn_count_tiles(runs_k, nruns_k);
    size_t bytes = attn_tiles_bytes(runs_q, nruns_q, runs_k, nruns_k);
    int most = nq > nk ? nq : nk;
    AttnTile *q = (AttnTile *)malloc(bytes + 1), *k = q + nq;
    AttnWork *work = (AttnWork *)malloc(sizeof *work * (size_t)most + 1);
    cudaError_t error = cudaErrorMemoryAllocation;
    if (q && work) {
        int *order = (int *)(k + nk);
        attn_cut(runs_q, nruns_q, q);
        attn_cut(runs_k, nruns_k, k);
        int64_t back = window > 0 ? window - 1 : any, ahead = ordered ? 0 : any;
        attn_meet(q, nq, k, nk, back, ahead);
        attn_meet(k, nk, q, nq, ahead, back);
        attn_sort(q, nq, work, order);
        attn_sort(k, nk, work, order + nq);
        error = cudaMemcpy(device, q, bytes, cudaMemcpyHostToDevice);
    }
    free(work);
    free(q);
    const AttnTile *at = (const AttnTile *)device;
    const int *order = (const int *)(at + nq + nk);
    *tiles = { at, at + nq, order, order + nq, nq, nk };
    return error;
}

/* ---- device: who sees whom --------------------------------------------------------- */

/* Row i of a query tile and row j of a key tile; lead = key tile's pos - query tile's. */
struct AttnMask {
    int nq, nk, lead, window;
    bool ordered;

    __device__ __forceinline__ AttnMask(const AttnSpec &s, const AttnTile &q, const AttnTile &k)
        : nq(q.n), nk(k.n), lead(k.pos - q.pos), window(s.window), ordered(s.ordered) {}

    __device__ __forceinline__ bool sees(int i, int j) const
    {
        int back = i - lead - j;            // how far the key lies behind the query
        return i < nq && j < nk && (!ordered || back >= 0) && (window <= 0 || back < window);
    }
    /* Every row of the one tile sees all of the other, and both tiles are whole. */
    __device__ __forceinline__ bool all() const
    {
        return nq == ATTN_TILE && nk == ATTN_TILE && (!ordered || lead + nk - 1 <= 0)
               && (window <= 0 || nq - 1 - lead < window);
    }
};

/* Query heads of a kv head: those h with h * kv_heads / heads = kv_head. */
__device__ __forceinline__ int attn_first_head(const AttnSpec &s, int kv_head)
{
    return (kv_head * s.heads + s.kv_heads - 1) / s.kv_heads;
}

__device__ __forceinline__ int attn_kv_head(const AttnSpec &s, int head)
{
    return head * s.kv_heads / s.heads;
}

#endif
