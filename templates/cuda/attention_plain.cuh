/*
 * attention_plain.cuh - attention for float, double, and head sizes that tensor cores do
 * not take: fused multiply-adds on tiles in shared memory.
 *
 * A block of 256 threads works on 64 rows of one side and loops over tiles of 64 of the
 * other. Thread (ty, tx) of 16 x 16 has scores (ty + 16 i, tx + 16 j) and elements
 * (ty + 16 i, tx + 16 c) of the result, of which a block makes 128 columns (64 in double);
 * wider heads take more blocks, which make the scores again. attention.cuh has the formulas.
 */
#ifndef ATTENTION_PLAIN_CUH
#define ATTENTION_PLAIN_CUH

#include "attention_tiles.cuh"

constexpr int PLAIN_THREADS = 256;
constexpr int PLAIN_DEPTH = 16;         // features of the operands in shared memory at once
constexpr int PLAIN_ROWS = 8;           // rows of the mixed operand at once

/* Columns of the result that a thread makes, and a block: by registers. */
template <typename R> constexpr int plain_out = sizeof(R) == 8 ? 4 : 8;
template <typename R> constexpr int plain_cols = 16 * plain_out<R>;

template <typename R> struct PlainRoom {
    R a[ATTN_TILE][PLAIN_DEPTH + 1], b[ATTN_TILE][PLAIN_DEPTH + 1];
    R mixed[PLAIN_ROWS][plain_cols<R>];
    R p[ATTN_TILE][ATTN_TILE + 1];      // probabilities, or their gradient
};

/* Rows of one head: row i, feature d at p[i*ld + d], for i < n. */
template <typename S> struct PlainRows { const S *p; int64_t ld; int n; };

template <typename S>
__device__ __forceinline__ PlainRows<S> plain_rows(const S *p, int64_t ld, const AttnTile &t,
                                                   int head, int head_size)
{
    return { p + (int64_t)t.row * ld + (int64_t)head * head_size, ld, t.n };
}

/* s[i][j] = sum over d of a[row i][d] b[row j][d]; rows that do not exist count as 0. */
template <typename S, typename R>
__device__ void plain_product(PlainRoom<R> *room, const PlainRows<S> &a, const PlainRows<S> &b,
                              int head_size, R (&s)[4][4])
{
    int tid = (int)threadIdx.x, ty = tid / 16, tx = tid % 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[i][j] = 0;
    for (int d0 = 0; d0 < head_size; d0 += PLAIN_DEPTH) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = ty + 16 * i, d = d0 + tx;
            bool in_a = row < a.n && d < head_size, in_b = row < b.n && d < head_size;
            room->a[row][tx] = in_a ? widen(a.p[row * a.ld + d]) : (R)0;
            room->b[row][tx] = in_b ? widen(b.p[row * b.ld + d]) : (R)0;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < PLAIN_DEPTH; d++) {
            R x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = room->a[ty + 16 * i][d];
                y[i] = room->b[tx + 16 * i][d];
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[i][j] += x[i] * y[j];
        }
    }
}

/* out[i][c] += sum over j of room->p[row i][j] b[row j][c0 + c]. Ends with room->p free. */
template <typename S, typename R>
__device__ void plain_mix(PlainRoom<R> *room, const PlainRows<S> &b, int c0, int head_size,
                          R (&out)[4][plain_out<R>])
{
    int tid = (int)threadIdx.x, ty = tid / 16, tx = tid % 16;
    for (int j0 = 0; j0 < b.n; j0 += PLAIN_ROWS) {
        __syncthreads();
#pragma unroll
        for (int i = tid; i < PLAIN_ROWS * plain_cols<R>; i += PLAIN_THREADS) {
            int j = j0 + i / plain_cols<R>, c = c0 + i % plain_cols<R>;
            room->mixed[i / plain_cols<R>][i % plain_cols<R>] =
                j < b.n && c < head_size ? widen(b.p[j * b.ld + c]) : (R)0;
        }
        __syncthreads();
#pragma unroll 2
        for (int j = 0; j < PLAIN_ROWS; j++) {
            R x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = room->p[ty + 16 * i][j0 + j];
#pragma unroll
            for (int c = 0; c < plain_out<R>; c++) {
                R y = room->mixed[j][tx + 16 * c];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    out[i][c] += x[i] * y;
            }
        }
    }
    __syncthreads();
}

template <typename R> __device__ __forceinline__ void plain_clear(R (&out)[4][plain_out<R>])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < plain_out<R>; c++)
            out[i][c] = 0;
}

/* Puts rows of the result where they belong; add: +=. */
template <typename D, typename R>
__device__ void plain_store(D *p, int64_t ld, const AttnTile &t, int head, int head_size, int c0,
                            const R (&out)[4][plain_out<R>], bool add)
{
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < plain_out<R>; c++) {
            int row = ty + 16 * i, d = c0 + tx + 16 * c;
            if (row >= t.n || d >= head_size)       // guard
                continue;
            D *at = p + (t.row + row) * ld + (int64_t)head * head_size + d;
            *at = narrow<D>(add ? widen(*at) + out[i][c] : out[i][c]);
        }
}

/* Reduction over the 16 threads that have the same rows. */
template <int OP, typename R> __device__ __forceinline__ R plain_across(R x)
{
#pragma unroll
    for (int lanes = 8; lanes > 0; lanes /= 2)
        x = row_combine<OP>(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

/* A score that no query has: below all, and its exp is 0. */
template <typename R> __device__ __forceinline__ R attn_none() { return (R)-1e30; }
template <> __device__ __forceinline__ double attn_none<double>() { return -1e300; }

/* Block = (place in q_order * heads + head) * column blocks + column block. */
template <typename S>
__global__ void __launch_bounds__(PLAIN_THREADS)
attn_forward_plain_kernel(AttnSpec s, AttnTiles tiles, const S *q, const S *k, const S *v, S *o,
                          real_of<S> *lse)
{
    typedef real_of<S> R;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    PlainRoom<R> *room = (PlainRoom<R> *)shared_bytes;
    int nblocks = (s.head_size + plain_cols<R> - 1) / plain_cols<R>;
    int c0 = (int)(blockIdx.x % nblocks) * plain_cols<R>;
    int head = (int)(blockIdx.x / nblocks % s.heads), kv_head = attn_kv_head(s, head);
    const AttnTile tile = tiles.q[tiles.q_order[blockIdx.x / nblocks / s.heads]];
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    PlainRows<S> rows_q = plain_rows(q, s.ld_q, tile, head, s.head_size);
    const R scale = (R)s.scale, cap = (R)s.softcap, none = attn_none<R>();
    R most[4], total[4], out[4][plain_out<R>];
    plain_clear(out);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        most[i] = none;
        total[i] = 0;
    }
    for (int t = tile.first; t < tile.last; t++) {
        const AttnTile keys = tiles.k[t];
        AttnMask mask(s, tile, keys);
        R x[4][4];
        plain_product(room, rows_q, plain_rows(k, s.ld_k, keys, kv_head, s.head_size),
                      s.head_size, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            R best = most[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[i][j] *= scale;
                if (cap > 0)
                    x[i][j] = cap * op_tanh(x[i][j] / cap);
                if (!mask.sees(ty + 16 * i, tx + 16 * j))
                    x[i][j] = none;
                best = best > x[i][j] ? best : x[i][j];
            }
            best = plain_across<ROW_MAX>(best);
            R shrink = op_exp(most[i] - best), sum = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                R p = x[i][j] > none ? op_exp(x[i][j] - best) : (R)0;
                sum += p;
                room->p[ty + 16 * i][tx + 16 * j] = p;
            }
            total[i] = total[i] * shrink + plain_across<ROW_SUM>(sum);
            most[i] = best;
#pragma unroll
            for (int c = 0; c < plain_out<R>; c++)
                out[i][c] *= shrink;
        }
        plain_mix(room, plain_rows(v, s.ld_v, keys, kv_head, s.head_size), c0, s.head_size, out);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        R factor = total[i] > 0 ? 1 / total[i] : (R)0;
#pragma unroll
        for (int c = 0; c < plain_out<R>; c++)
            out[i][c] *= factor;
        if (c0 == 0 && tx == 0 && ty + 16 * i < tile.n)
            lse[(tile.row + ty + 16 * i) * s.ld_lse + head] =
                total[i] > 0 ? most[i] + op_log(total[i]) : none;
    }
    plain_store(o, s.ld_o, tile, head, s.head_size, c0, out, false);
}

/*
 * From score x = q.k: p, and its gradient by q.k from dp = do.v. Scores are made as in the
 * forward kernel.
 */
template <typename R>
__device__ __forceinline__ void attn_gradient(R *x, R *dp, bool seen, R lse, R delta, R scale,
                                              R cap)
{
    R score = *x * scale, slope = scale;
    if (cap > 0) {
        R t = op_tanh(score / cap);
        score = cap * t;
        slope *= 1 - t * t;
    }
    R p = seen ? op_exp(score - lse) : (R)0;
    *dp = p * (*dp - delta) * slope;
    *x = p;
}

/* Block = (place in k_order * kv_heads + kv_head) * column blocks + column block. */
template <typename S>
__global__ void __launch_bounds__(PLAIN_THREADS)
attn_dkdv_plain_kernel(AttnSpec s, AttnTiles tiles, const S *q, const S *k, const S *v,
                       const real_of<S> *lse, const S *dout, const real_of<S> *delta,
                       real_of<S> *dk, real_of<S> *dv, bool add)
{
    typedef real_of<S> R;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    PlainRoom<R> *room = (PlainRoom<R> *)shared_bytes;
    int nblocks = (s.head_size + plain_cols<R> - 1) / plain_cols<R>;
    int c0 = (int)(blockIdx.x % nblocks) * plain_cols<R>;
    int kv_head = (int)(blockIdx.x / nblocks % s.kv_heads);
    const AttnTile tile = tiles.k[tiles.k_order[blockIdx.x / nblocks / s.kv_heads]];
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    if (add && tile.first == tile.last)
        return;
    PlainRows<S> rows_k = plain_rows(k, s.ld_k, tile, kv_head, s.head_size);
    PlainRows<S> rows_v = plain_rows(v, s.ld_v, tile, kv_head, s.head_size);
    R sum_k[4][plain_out<R>], sum_v[4][plain_out<R>];
    plain_clear(sum_k);
    plain_clear(sum_v);
    for (int head = attn_first_head(s, kv_head); head < attn_first_head(s, kv_head + 1); head++)
        for (int t = tile.first; t < tile.last; t++) {
            const AttnTile queries = tiles.q[t];
            AttnMask mask(s, queries, tile);
            PlainRows<S> rows_q = plain_rows(q, s.ld_q, queries, head, s.head_size);
            PlainRows<S> rows_do = plain_rows(dout, s.ld_do, queries, head, s.head_size);
            R p[4][4], dp[4][4];                // [key][query]
            plain_product(room, rows_k, rows_q, s.head_size, p);
            plain_product(room, rows_v, rows_do, s.head_size, dp);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int query = tx + 16 * j;
                bool exists = query < queries.n;
                int64_t row = queries.row + query;
                R of_lse = exists ? lse[row * s.ld_lse + head] : (R)0;
                R of_delta = exists ? delta[row * s.heads + head] : (R)0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    attn_gradient(&p[i][j], &dp[i][j], mask.sees(query, ty + 16 * i), of_lse,
                                  of_delta, (R)s.scale, (R)s.softcap);
                    room->p[ty + 16 * i][query] = p[i][j];
                }
            }
            plain_mix(room, rows_do, c0, s.head_size, sum_v);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    room->p[ty + 16 * i][tx + 16 * j] = dp[i][j];
            plain_mix(room, rows_q, c0, s.head_size, sum_k);
        }
    plain_store(dk, s.ld_dk, tile, kv_head, s.head_size, c0, sum_k, add);
    plain_store(dv, s.ld_dv, tile, kv_head, s.head_size, c0, sum_v, add);
}

/* Blocks as the forward kernel's. */
template <typename S>
__global__ void __launch_bounds__(PLAIN_THREADS)
attn_dq_plain_kernel(AttnSpec s, AttnTiles tiles, const S *q, const S *k, const S *v,
                     const real_of<S> *lse, const S *dout, const real_of<S> *delta, S *dq)
{
    typedef real_of<S> R;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    PlainRoom<R> *room = (PlainRoom<R> *)shared_bytes;
    int nblocks = (s.head_size + plain_cols<R> - 1) / plain_cols<R>;
    int c0 = (int)(blockIdx.x % nblocks) * plain_cols<R>;
    int head = (int)(blockIdx.x / nblocks % s.heads), kv_head = attn_kv_head(s, head);
    const AttnTile tile = tiles.q[tiles.q_order[blockIdx.x / nblocks / s.heads]];
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    PlainRows<S> rows_q = plain_rows(q, s.ld_q, tile, head, s.head_size);
    PlainRows<S> rows_do = plain_rows(dout, s.ld_do, tile, head, s.head_size);
    R sum[4][plain_out<R>], of_lse[4], of_delta[4];
    plain_clear(sum);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool exists = ty + 16 * i < tile.n;
        int64_t row = tile.row + ty + 16 * i;
        of_lse[i] = exists ? lse[row * s.ld_lse + head] : (R)0;
        of_delta[i] = exists ? delta[row * s.heads + head] : (R)0;
    }
    for (int t = tile.first; t < tile.last; t++) {
        const AttnTile keys = tiles.k[t];
        AttnMask mask(s, tile, keys);
        PlainRows<S> rows_k = plain_rows(k, s.ld_k, keys, kv_head, s.head_size);
        R p[4][4], dp[4][4];
        plain_product(room, rows_q, rows_k, s.head_size, p);
        plain_product(room, rows_do, plain_rows(v, s.ld_v, keys, kv_head, s.head_size),
                      s.head_size, dp);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                attn_gradient(&p[i][j], &dp[i][j], mask.sees(ty + 16 * i, tx + 16 * j),
                              of_lse[i], of_delta[i], (R)s.scale, (R)s.softcap);
                room->p[ty + 16 * i][tx + 16 * j] = dp[i][j];
            }
        plain_mix(room, rows_k, c0, s.head_size, sum);
    }
    plain_store(dq, s.ld_dq, tile, head, s.head_size, c0, sum, false);
}

#endif
