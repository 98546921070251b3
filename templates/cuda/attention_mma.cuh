/*
 * attention_mma.cuh - attention in bf16 on tensor cores: mma.sync m16n8k16, sums in float.
 *
 * A warp has 16 rows of the block's 64 and all of the other side's tile. In the layout of the
 * instruction lane (g, t) = (lane / 4, lane % 4) holds of a 16 x 8 result
 *
 *     c[0], c[1]   row g,      columns 2t, 2t + 1
 *     c[2], c[3]   row g + 8,  columns 2t, 2t + 1
 *
 * which, rounded to pairs of bf16, is also how the left operand of the next product must lie:
 * probabilities never leave the registers (Dao, FlashAttention-2, 2023). The backward kernel
 * for keys makes the transposed scores, [key][query], for the same reason.
 *
 * Tiles lie in shared memory as [64][depth + 8]: with the 8 numbers behind each row, the eight
 * rows that ldmatrix reads at once are in different banks. Features behind the head size up to
 * a multiple of 16, and rows that do not exist, are zeros there. Copies are asynchronous and
 * run while the warps multiply what came before.
 */
#ifndef ATTENTION_MMA_CUH
#define ATTENTION_MMA_CUH

#include "attention_tiles.cuh"

typedef __nv_bfloat16 bf16;

constexpr int MMA_THREADS = 128;        // a warp for each 16 rows

template <typename S> constexpr bool attn_is_mma(int head_size)
{
    return sizeof(S) == 2 && head_size % 8 == 0 && head_size >= 32 && head_size <= 256;
}

template <int HEAD> struct Mma {
    static constexpr int depth = (HEAD + 15) / 16 * 16;     // features of the products
    static constexpr int ld = depth + 8;                    // in shared memory
    static constexpr int tile = ATTN_TILE * ld;             // elements of a tile there
    // Two copies of what the backward kernels loop over, where 160 KB hold them.
    static constexpr int stages = 6 * tile * (int)sizeof(bf16) <= 160 << 10 ? 2 : 1;
};

/* The kernel for dk and dv: heads above 128 features are shared by two warps. */
template <int HEAD> struct MmaDkdv {
    static constexpr int groups = HEAD > 128 ? 2 : 1;
    static constexpr int threads = MMA_THREADS * groups;
    static constexpr int out = (Mma<HEAD>::depth / 16 + groups - 1) / groups;   // 16 columns each
    static constexpr int step = HEAD > 64 ? 32 : 64;        // queries at once, by registers
};

template <int HEAD> constexpr size_t attn_forward_bytes()
{
    return 3 * Mma<HEAD>::tile * sizeof(bf16);
}

template <int HEAD> constexpr size_t attn_backward_bytes()
{
    return (2 + 2 * Mma<HEAD>::stages) * Mma<HEAD>::tile * sizeof(bf16)
           + Mma<HEAD>::stages * 2 * ATTN_TILE * sizeof(float);
}

/* ---- pieces ------------------------------------------------------------------------ */

/* Starts to copy a tile's rows of one head to `to` [64][ld]. */
template <int HEAD, int THREADS>
__device__ __forceinline__ void mma_fetch(bf16 *to, const bf16 *p, int64_t ld, const AttnTile &t,
                                          int head)
{
    constexpr int pieces = Mma<HEAD>::depth / 8;            // of 16 bytes in a row
    constexpr int across = pieces < 8 ? 4 : 8, rows = THREADS / across;
    int row = (int)threadIdx.x / across, piece = (int)threadIdx.x % across;
    const bf16 *from = p + (int64_t)(t.row + row) * ld + (int64_t)head * HEAD + piece * 8;
    to += row * Mma<HEAD>::ld + piece * 8;
#pragma unroll
    for (int i = 0; i < ATTN_TILE; i += rows)
#pragma unroll
        for (int c = 0; c < pieces; c += across)
            if (c + across <= pieces || c + piece < pieces)         // guard
                cp_async16_or_zero(to + i * Mma<HEAD>::ld + c * 8, from + i * ld + c * 8,
                                   row + i < t.n && (c + piece) * 8 < HEAD);
}

/* c[16][N] = a b^T over the features; a: 16 rows, b: N rows of tiles in shared memory. */
template <int HEAD, int N>
__device__ __forceinline__ void mma_product(const bf16 *a, const bf16 *b, float (&c)[N / 8][4])
{
    constexpr int ld = Mma<HEAD>::ld;
    int lane = (int)threadIdx.x % 32;
    const bf16 *row_a = a + lane % 16 * ld + lane / 16 * 8;
    const bf16 *row_b = b + (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] = 0;
#pragma unroll
    for (int d = 0; d < Mma<HEAD>::depth; d += 16) {
        uint32_t x[4], y[4];
        ldmatrix_x4(x, row_a + d);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            ldmatrix_x4(y, row_b + n * 16 * ld + d);
            mma_bf16(c[2 * n], x, y, c[2 * n]);
            mma_bf16(c[2 * n + 1], x, y + 2, c[2 * n + 1]);
        }
    }
}

/* out[16][16 OUT] += p b; p: 16 x N in registers, rounded to bf16; b: N rows, from the first
 * column of out on, of which `columns` times 16 exist. */
template <int HEAD, int N, int OUT>
__device__ __forceinline__ void mma_mix(const float (&p)[N / 8][4], const bf16 *b,
                                        float (&out)[2 * OUT][4], int columns)
{
    constexpr int ld = Mma<HEAD>::ld;
    int lane = (int)threadIdx.x % 32;
    const bf16 *row_b = b + lane % 16 * ld + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        uint32_t x[4] = { pack_bf16(p[2 * j][0], p[2 * j][1]),
                          pack_bf16(p[2 * j][2], p[2 * j][3]),
                          pack_bf16(p[2 * j + 1][0], p[2 * j + 1][1]),
                          pack_bf16(p[2 * j + 1][2], p[2 * j + 1][3]) };
#pragma unroll
        for (int c = 0; c < OUT; c++) {
            uint32_t y[4];
            if (c >= columns)           // guard
                break;
            ldmatrix_x4_trans(y, row_b + j * 16 * ld + c * 16);
            mma_bf16(out[2 * c], x, y, out[2 * c]);
            mma_bf16(out[2 * c + 1], x, y + 2, out[2 * c + 1]);
        }
    }
}

template <int N> __device__ __forceinline__ void mma_clear(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] = 0;
}

/* Reduction over the 4 lanes that have the same row. */
template <int OP> __device__ __forceinline__ float mma_across(float x)
{
    x = row_combine<OP>(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return row_combine<OP>(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/*
 * Stores the warp's 16 rows, from row `first` of the tile on, times factor[0] (rows g) and
 * factor[1] (rows g + 8). They go through `room` [16][ld], the warp's own part of a tile that
 * it has no more use for, to be written in 16 bytes.
 */
template <int HEAD, int N>
__device__ __forceinline__ void mma_store(bf16 *room, const float (&out)[N][4],
                                          const float (&factor)[2], bf16 *p, int64_t ld,
                                          const AttnTile &t, int first, int head)
{
    constexpr int pieces = HEAD / 8;
    int lane = (int)threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bf16 *at = room + (lane / 4 + 8 * half) * Mma<HEAD>::ld + n * 8 + lane % 4 * 2;
            *(uint32_t *)(void *)at = pack_bf16(out[n][2 * half] * factor[half],
                                                out[n][2 * half + 1] * factor[half]);
        }
    __syncwarp();
    bf16 *to = p + (int64_t)(t.row + first) * ld + (int64_t)head * HEAD;
#pragma unroll 4
    for (int i = lane; i < 16 * pieces; i += 32) {
        int row = i / pieces, d = i % pieces * 8;
        if (first + row < t.n)          // guard
            st16(to + row * ld + d, ld16(room + row * Mma<HEAD>::ld + d));
    }
}

/* ---- forward ------------------------------------------------------------------------ */

/* Scores of a tile in place: scale, cap, and -1e30 for keys that are not seen. `first`: the
 * warp's first row. */
__device__ __forceinline__ void mma_scores(const AttnMask &mask, float scale, float cap,
                                           int first, float (&x)[ATTN_TILE / 8][4])
{
    int lane = (int)threadIdx.x % 32;
    bool all = mask.all();
#pragma unroll
    for (int n = 0; n < ATTN_TILE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[n][e] *= scale;
            if (cap > 0)
                x[n][e] = cap * tanhf(x[n][e] / cap);
            if (!all && !mask.sees(first + lane / 4 + e / 2 * 8, n * 8 + lane % 4 * 2 + e % 2))
                x[n][e] = -1e30f;
        }
}

/* x becomes exp(x - most'), with most' the new maximum; gives exp(most - most'). */
__device__ __forceinline__ void mma_softmax(float (&x)[ATTN_TILE / 8][4], float (&most)[2],
                                            float (&total)[2], float (&shrink)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float best = most[half], sum = 0;
#pragma unroll
        for (int n = 0; n < ATTN_TILE / 8; n++)
            best = fmaxf(best, fmaxf(x[n][2 * half], x[n][2 * half + 1]));
        best = mma_across<ROW_MAX>(best);
        shrink[half] = __expf(most[half] - best);
#pragma unroll
        for (int n = 0; n < ATTN_TILE / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                x[n][e] = x[n][e] > -1e30f ? __expf(x[n][e] - best) : 0;
                sum += x[n][e];
            }
        total[half] = total[half] * shrink[half] + sum;     // of this lane's columns
        most[half] = best;
    }
}

/* Block = place in q_order * heads + head. */
template <int HEAD>
__global__ void __launch_bounds__(MMA_THREADS, HEAD <= 128 ? 3 : 2)
attn_forward_mma_kernel(AttnSpec s, AttnTiles tiles, const bf16 *q, const bf16 *k, const bf16 *v,
                        bf16 *o, float *lse)
{
    constexpr int out16 = Mma<HEAD>::depth / 16;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    bf16 *room_q = (bf16 *)shared_bytes, *room_k = room_q + Mma<HEAD>::tile;
    bf16 *room_v = room_k + Mma<HEAD>::tile;
    int head = (int)(blockIdx.x % s.heads), kv_head = attn_kv_head(s, head);
    const AttnTile tile = tiles.q[tiles.q_order[blockIdx.x / s.heads]];
    int first = (int)threadIdx.x / 32 * 16, lane = (int)threadIdx.x % 32;
    float most[2] = { -1e30f, -1e30f }, total[2] = { 0, 0 }, out[2 * out16][4];
    mma_clear(out);
    mma_fetch<HEAD, MMA_THREADS>(room_q, q, s.ld_q, tile, head);
    if (tile.first < tile.last)
        mma_fetch<HEAD, MMA_THREADS>(room_k, k, s.ld_k, tiles.k[tile.first], kv_head);
    cp_async_commit();
    for (int t = tile.first; t < tile.last; t++) {
        const AttnTile keys = tiles.k[t];
        float x[ATTN_TILE / 8][4], shrink[2];
        cp_async_wait<0>();             // these keys are here, and no warp needs older values
        __syncthreads();
        mma_fetch<HEAD, MMA_THREADS>(room_v, v, s.ld_v, keys, kv_head);
        cp_async_commit();
        mma_product<HEAD, ATTN_TILE>(room_q + first * Mma<HEAD>::ld, room_k, x);
        mma_scores(AttnMask(s, tile, keys), (float)s.scale, (float)s.softcap, first, x);
        mma_softmax(x, most, total, shrink);
#pragma unroll
        for (int n = 0; n < 2 * out16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[n][e] *= shrink[e / 2];
        cp_async_wait<0>();             // the values are here, and no warp needs these keys
        __syncthreads();
        if (t + 1 < tile.last)
            mma_fetch<HEAD, MMA_THREADS>(room_k, k, s.ld_k, tiles.k[t + 1], kv_head);
        cp_async_commit();
        mma_mix<HEAD, ATTN_TILE, out16>(x, room_v, out, out16);
    }
    cp_async_wait<0>();
    __syncthreads();                    // a tile without keys: its queries are here
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + lane / 4 + 8 * half;
        float sum = mma_across<ROW_SUM>(total[half]);
        factor[half] = sum > 0 ? 1 / sum : 0;
        if (lane % 4 == 0 && row < tile.n)
            lse[(tile.row + row) * s.ld_lse + head] = sum > 0 ? most[half] + logf(sum) : -1e30f;
    }
    mma_store<HEAD>(room_q + first * Mma<HEAD>::ld, out, factor, o, s.ld_o, tile, first, head);
}

/* ---- backward ------------------------------------------------------------------------ */

/* As attn_gradient: x = q.k becomes p, dp becomes the gradient of x. */
__device__ __forceinline__ void mma_gradient(float *x, float *dp, bool seen, float lse,
                                             float delta, float scale, float cap)
{
    float score = *x * scale, slope = scale;
    if (cap > 0) {
        float t = tanhf(score / cap);
        score = cap * t;
        slope *= 1 - t * t;
    }
    float p = seen ? __expf(score - lse) : 0;
    *dp = p * (*dp - delta) * slope;
    *x = p;
}

/* What the loop of the kernel for keys has in shared memory of one tile of queries. */
template <int HEAD> struct MmaQueries {
    bf16 *q, *dout;
    float *lse, *delta;                 // [64]
};

template <int HEAD>
__device__ __forceinline__ MmaQueries<HEAD> mma_queries(unsigned char *shared, int stage)
{
    constexpr int stages = Mma<HEAD>::stages;
    bf16 *tiles = (bf16 *)shared + 2 * Mma<HEAD>::tile;     // behind k and v
    float *rows = (float *)(void *)(tiles + 2 * stages * Mma<HEAD>::tile);
    bf16 *q = tiles + 2 * stage * Mma<HEAD>::tile;
    rows += stage * 2 * ATTN_TILE;
    return { q, q + Mma<HEAD>::tile, rows, rows + ATTN_TILE };
}

/* Block = place in k_order * kv_heads + kv_head. Warp w has keys w % 4 * 16 .. and, of the
 * columns of dk and dv, part w / 4. Turn i of the loop is tile i % span of query head i / span. */
template <int HEAD>
__global__ void __launch_bounds__(MmaDkdv<HEAD>::threads, 2 / MmaDkdv<HEAD>::groups)
attn_dkdv_mma_kernel(AttnSpec s, AttnTiles tiles, const bf16 *q, const bf16 *k, const bf16 *v,
                     const float *lse, const bf16 *dout, const float *delta, float *dk, float *dv,
                     bool add)
{
    constexpr int threads = MmaDkdv<HEAD>::threads, out16 = MmaDkdv<HEAD>::out;
    constexpr int step = MmaDkdv<HEAD>::step, stages = Mma<HEAD>::stages;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    bf16 *room_k = (bf16 *)shared_bytes, *room_v = room_k + Mma<HEAD>::tile;
    int tid = (int)threadIdx.x, lane = tid % 32, first = tid / 32 % 4 * 16;
    constexpr bool split = MmaDkdv<HEAD>::groups > 1;
    int c0 = split ? tid / 128 * out16 * 16 : 0;           // the warp's first column
    int columns = split ? min(out16, (Mma<HEAD>::depth - c0) / 16) : out16;
    int kv_head = (int)(blockIdx.x % s.kv_heads), head0 = attn_first_head(s, kv_head);
    const AttnTile tile = tiles.k[tiles.k_order[blockIdx.x / s.kv_heads]];
    int span = tile.last - tile.first, turns = span * (attn_first_head(s, kv_head + 1) - head0);
    if (add && turns == 0)
        return;
    float sum_k[2 * out16][4], sum_v[2 * out16][4];
    mma_clear(sum_k);
    mma_clear(sum_v);
    if (turns > 0) {
        const AttnTile queries = tiles.q[tile.first];
        MmaQueries<HEAD> to = mma_queries<HEAD>(shared_bytes, 0);
        mma_fetch<HEAD, threads>(room_k, k, s.ld_k, tile, kv_head);
        mma_fetch<HEAD, threads>(room_v, v, s.ld_v, tile, kv_head);
        mma_fetch<HEAD, threads>(to.q, q, s.ld_q, queries, head0);
        mma_fetch<HEAD, threads>(to.dout, dout, s.ld_do, queries, head0);
        if (tid < ATTN_TILE) {
            int64_t row = queries.row + tid;
            to.lse[tid] = tid < queries.n ? lse[row * s.ld_lse + head0] : 0;
            to.delta[tid] = tid < queries.n ? delta[row * s.heads + head0] : 0;
        }
    }
    cp_async_commit();
    for (int turn = 0; turn < turns; turn++) {
        MmaQueries<HEAD> at = mma_queries<HEAD>(shared_bytes, turn % stages);
        MmaQueries<HEAD> to = mma_queries<HEAD>(shared_bytes, (turn + 1) % stages);
        bool more = turn + 1 < turns;
        int next_head = head0 + (more ? (turn + 1) / span : 0);
        const AttnTile queries = tiles.q[tile.first + turn % span];
        const AttnTile next = tiles.q[tile.first + (more ? (turn + 1) % span : 0)];
        AttnMask mask(s, queries, tile);
        bool all = mask.all();
        cp_async_wait<0>();             // this tile is here, and no warp needs the one before
        __syncthreads();
        float next_lse = 0, next_delta = 0;
        if (more && tid < next.n) {
            next_lse = lse[(next.row + tid) * s.ld_lse + next_head];
            next_delta = delta[(int64_t)(next.row + tid) * s.heads + next_head];
        }
        if (more && stages > 1) {
            mma_fetch<HEAD, threads>(to.q, q, s.ld_q, next, next_head);
            mma_fetch<HEAD, threads>(to.dout, dout, s.ld_do, next, next_head);
            cp_async_commit();
        }
#pragma unroll 1
        for (int i0 = 0; i0 < ATTN_TILE; i0 += step) {
            float p[step / 8][4], dp[step / 8][4];          // [key][query]
            const bf16 *rows_q = at.q + i0 * Mma<HEAD>::ld;
            const bf16 *rows_do = at.dout + i0 * Mma<HEAD>::ld;
            mma_product<HEAD, step>(room_k + first * Mma<HEAD>::ld, rows_q, p);
            mma_product<HEAD, step>(room_v + first * Mma<HEAD>::ld, rows_do, dp);
#pragma unroll
            for (int n = 0; n < step / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int i = i0 + n * 8 + lane % 4 * 2 + e % 2;
                    bool seen = all || mask.sees(i, first + lane / 4 + e / 2 * 8);
                    mma_gradient(&p[n][e], &dp[n][e], seen, at.lse[i], at.delta[i],
                                 (float)s.scale, (float)s.softcap);
                }
            mma_mix<HEAD, step, out16>(p, rows_do + c0, sum_v, columns);
            mma_mix<HEAD, step, out16>(dp, rows_q + c0, sum_k, columns);
        }
        if (more && stages == 1) {
            __syncthreads();
            mma_fetch<HEAD, threads>(to.q, q, s.ld_q, next, next_head);
            mma_fetch<HEAD, threads>(to.dout, dout, s.ld_do, next, next_head);
            cp_async_commit();
        }
        if (more && tid < ATTN_TILE) {
            to.lse[tid] = next_lse;
            to.delta[tid] = next_delta;
        }
    }
#pragma unroll
    for (int n = 0; n < 2 * out16; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + lane / 4 + 8 * half, d = c0 + n * 8 + lane % 4 * 2;
            if (n >= 2 * columns || row >= tile.n || d >= HEAD)     // guard
                continue;
            int64_t at = (int64_t)kv_head * HEAD + d, at_row = tile.row + row;
            float2 *to_k = (float2 *)(void *)(dk + at_row * s.ld_dk + at);
            float2 *to_v = (float2 *)(void *)(dv + at_row * s.ld_dv + at);
            float2 x = add ? *to_k : make_float2(0, 0), y = add ? *to_v : make_float2(0, 0);
            *to_k = make_float2(x.x + sum_k[n][2 * half], x.y + sum_k[n][2 * half + 1]);
            *to_v = make_float2(y.x + sum_v[n][2 * half], y.y + sum_v[n][2 * half + 1]);
        }
}

/* Blocks as the forward kernel's. */
template <int HEAD>
__global__ void __launch_bounds__(MMA_THREADS, 2)
attn_dq_mma_kernel(AttnSpec s, AttnTiles tiles, const bf16 *q, const bf16 *k, const bf16 *v,
                   const float *lse, const bf16 *dout, const float *delta, bf16 *dq)
{
    constexpr int out16 = Mma<HEAD>::depth / 16, step = HEAD > 128 ? 32 : 64;
    constexpr int stages = Mma<HEAD>::stages;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    bf16 *room_q = (bf16 *)shared_bytes, *room_do = room_q + Mma<HEAD>::tile;
    bf16 *room_k = room_do + Mma<HEAD>::tile, *room_v = room_k + stages * Mma<HEAD>::tile;
    int head = (int)(blockIdx.x % s.heads), kv_head = attn_kv_head(s, head);
    const AttnTile tile = tiles.q[tiles.q_order[blockIdx.x / s.heads]];
    int first = (int)threadIdx.x / 32 * 16, lane = (int)threadIdx.x % 32;
    float of_lse[2], of_delta[2], sum[2 * out16][4];
    mma_clear(sum);
    mma_fetch<HEAD, MMA_THREADS>(room_q, q, s.ld_q, tile, head);
    mma_fetch<HEAD, MMA_THREADS>(room_do, dout, s.ld_do, tile, head);
    if (tile.first < tile.last) {
        mma_fetch<HEAD, MMA_THREADS>(room_k, k, s.ld_k, tiles.k[tile.first], kv_head);
        mma_fetch<HEAD, MMA_THREADS>(room_v, v, s.ld_v, tiles.k[tile.first], kv_head);
    }
    cp_async_commit();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + lane / 4 + 8 * half;
        int64_t at = tile.row + row;
        of_lse[half] = row < tile.n ? lse[at * s.ld_lse + head] : 0;
        of_delta[half] = row < tile.n ? delta[at * s.heads + head] : 0;
    }
    for (int t = tile.first; t < tile.last; t++) {
        int stage = (t - tile.first) % stages, other = (stage + 1) % stages;
        AttnMask mask(s, tile, tiles.k[t]);
        bool all = mask.all(), more = t + 1 < tile.last;
        cp_async_wait<0>();             // this tile is here, and no warp needs the one before
        __syncthreads();
        if (more && stages > 1) {
            const AttnTile next = tiles.k[t + 1];
            mma_fetch<HEAD, MMA_THREADS>(room_k + other * Mma<HEAD>::tile, k, s.ld_k, next,
                                         kv_head);
            mma_fetch<HEAD, MMA_THREADS>(room_v + other * Mma<HEAD>::tile, v, s.ld_v, next,
                                         kv_head);
            cp_async_commit();
        }
#pragma unroll 1
        for (int j0 = 0; j0 < ATTN_TILE; j0 += step) {
            float p[step / 8][4], dp[step / 8][4];
            const bf16 *rows_k = room_k + stage * Mma<HEAD>::tile + j0 * Mma<HEAD>::ld;
            const bf16 *rows_v = room_v + stage * Mma<HEAD>::tile + j0 * Mma<HEAD>::ld;
            mma_product<HEAD, step>(room_q + first * Mma<HEAD>::ld, rows_k, p);
            mma_product<HEAD, step>(room_do + first * Mma<HEAD>::ld, rows_v, dp);
#pragma unroll
            for (int n = 0; n < step / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    bool seen = all || mask.sees(first + lane / 4 + e / 2 * 8,
                                                 j0 + n * 8 + lane % 4 * 2 + e % 2);
                    mma_gradient(&p[n][e], &dp[n][e], seen, of_lse[e / 2], of_delta[e / 2],
                                 (float)s.scale, (float)s.softcap);
                }
            mma_mix<HEAD, step, out16>(dp, rows_k, sum, out16);
        }
        if (more && stages == 1) {
            const AttnTile next = tiles.k[t + 1];
            __syncthreads();
            mma_fetch<HEAD, MMA_THREADS>(room_k, k, s.ld_k, next, kv_head);
            mma_fetch<HEAD, MMA_THREADS>(room_v, v, s.ld_v, next, kv_head);
            cp_async_commit();
        }
    }
    cp_async_wait<0>();
    __syncthreads();
    const float one[2] = { 1, 1 };
    mma_store<HEAD>(room_q + first * Mma<HEAD>::ld, sum, one, dq, s.ld_dq, tile, first, head);
}

#endif
