/*
 * attention.cuh - attention without a T x T matrix, forward and backward.
 *
 *     x = scale q.k, through the cap c: c tanh(x/c), for the keys that a query sees
 *     lse = log sum exp(x)       p = exp(x - lse)      o = sum p v
 *     delta = do.o               dp = do.v             ds = p (dp - delta) scale (1 - (x/c)^2)
 *     dv += p do                 dk += ds q            dq = sum ds k
 *
 * Forward: online softmax over tiles of keys (Milakov and Gimelshein 2018; Dao et al.,
 * FlashAttention, 2022), results scaled once at the end (Dao, FlashAttention-2, 2023).
 * Backward: three kernels that write every element once, so that no atomics are needed and
 * the sums have one order: delta; dk and dv by tiles of keys; dq by tiles of queries. The
 * price is that the two big ones both make p and dp (7 products instead of 5).
 *
 * Two forms: bf16 with head sizes 32, 40 .. 256 and rows aligned to 16 bytes on tensor cores
 * (attention_mma.cuh); everything else in plain arithmetic (attention_plain.cuh).
 *
 * Shapes, S as stored, R = real_of<S>:
 *     q, o, dout, dq   [rows of queries, heads * head_size]      S
 *     k, v             [rows of keys, kv_heads * head_size]      S
 *     dk, dv           the same                                  R
 *     lse              [rows of queries, heads]                  R
 *     delta            [rows of queries][heads], scratch of the caller
 * Which rows meet which stands in AttnTiles (attention_tiles.cuh).
 */
#ifndef ATTENTION_CUH
#define ATTENTION_CUH

#include "attention_mma.cuh"
#include "attention_plain.cuh"

template <typename K>
inline cudaError_t attn_allow_shared(K *kernel, size_t bytes)
{
    if (bytes <= 48 << 10)
        return cudaSuccess;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Column blocks of the plain form. */
template <typename R> inline int attn_plain_blocks(const AttnSpec &s)
{
    return (s.head_size + plain_cols<R> - 1) / plain_cols<R>;
}

template <typename S>
inline cudaError_t attn_forward_plain(const AttnSpec &s, const AttnTiles &tiles, const S *q,
                                      const S *k, const S *v, S *o, real_of<S> *lse,
                                      cudaStream_t stream)
{
    size_t bytes = sizeof(PlainRoom<real_of<S>>);
    cudaError_t error = attn_allow_shared(attn_forward_plain_kernel<S>, bytes);
    if (error)
        return error;
    unsigned blocks = (unsigned)(tiles.nq * s.heads * attn_plain_blocks<real_of<S>>(s));
    attn_forward_plain_kernel<S><<<blocks, PLAIN_THREADS, bytes, stream>>>(s, tiles, q, k, v, o,
                                                                           lse);
    return cudaGetLastError();
}

/*
 * o and lse are overwritten, for all rows of queries that the tables have; a row that sees no
 * key gets zeros and a hugely negative lse.
 */
template <typename S, int HEAD>
inline cudaError_t attn_forward(const AttnSpec &s, const AttnTiles &tiles, const S *q, const S *k,
                                const S *v, S *o, real_of<S> *lse, cudaStream_t stream)
{
    if (s.head_size != HEAD || s.heads < s.kv_heads)
        return cudaErrorInvalidValue;
    if (tiles.nq == 0)
        return cudaSuccess;
    if constexpr (attn_is_mma<S>(HEAD))
        if (rows_aligned(q, s.ld_q) && rows_aligned(k, s.ld_k) && rows_aligned(v, s.ld_v)
            && rows_aligned(o, s.ld_o)) {
            size_t bytes = attn_forward_bytes<HEAD>();
            cudaError_t error = attn_allow_shared(attn_forward_mma_kernel<HEAD>, bytes);
            if (error)
                return error;
            unsigned blocks = (unsigned)(tiles.nq * s.heads);
            attn_forward_mma_kernel<HEAD><<<blocks, MMA_THREADS, bytes, stream>>>(s, tiles, q, k,
                                                                                  v, o, lse);
            return cudaGetLastError();
        }
    return attn_forward_plain(s, tiles, q, k, v, o, lse, stream);
}

/* delta[row][head] = sum over d of dout o; a warp makes each. */
template <typename S>
__global__ void __launch_bounds__(256)
attn_delta_kernel(AttnSpec s, int64_t rows, const S *o, const S *dout, real_of<S> *delta)
{
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (i >= rows * s.heads)            // guard
        return;
    int64_t row = i / s.heads, head = i % s.heads;
    const S *x = o + row * s.ld_o + head * s.head_size;
    const S *y = dout + row * s.ld_do + head * s.head_size;
    real_of<S> sum = 0;
    for (int d = lane; d < s.head_size; d += 32)
        sum += widen(x[d]) * widen(y[d]);
    sum = warp_reduce<ROW_SUM>(sum);
    if (lane == 0)
        delta[i] = sum;
}

template <typename S>
inline cudaError_t attn_backward_plain(const AttnSpec &s, const AttnTiles &tiles, const S *q,
                                       const S *k, const S *v, const real_of<S> *lse,
                                       const S *dout, const real_of<S> *delta, S *dq,
                                       real_of<S> *dk, real_of<S> *dv, bool accumulate,
                                       cudaStream_t stream)
{
    size_t bytes = sizeof(PlainRoom<real_of<S>>);
    cudaError_t error = attn_allow_shared(attn_dkdv_plain_kernel<S>, bytes);
    if (!error)
        error = attn_allow_shared(attn_dq_plain_kernel<S>, bytes);
    if (error)
        return error;
    unsigned blocks_k = (unsigned)(tiles.nk * s.kv_heads * attn_plain_blocks<real_of<S>>(s));
    unsigned blocks_q = (unsigned)(tiles.nq * s.heads * attn_plain_blocks<real_of<S>>(s));
    if (blocks_k)
        attn_dkdv_plain_kernel<S><<<blocks_k, PLAIN_THREADS, bytes, stream>>>(
            s, tiles, q, k, v, lse, dout, delta, dk, dv, accumulate);
    if (blocks_q)
        attn_dq_plain_kernel<S><<<blocks_q, PLAIN_THREADS, bytes, stream>>>(
            s, tiles, q, k, v, lse, dout, delta, dq);
    return cudaGetLastError();
}

template <int HEAD>
inline cudaError_t attn_backward_mma(const AttnSpec &s, const AttnTiles &tiles,
                                     const __nv_bfloat16 *q, const __nv_bfloat16 *k,
                                     const __nv_bfloat16 *v, const float *lse,
                                     const __nv_bfloat16 *dout, const float *delta,
                                     __nv_bfloat16 *dq, float *dk, float *dv, bool accumulate,
                                     cudaStream_t stream)
{
    size_t bytes = attn_backward_bytes<HEAD>();
    cudaError_t error = attn_allow_shared(attn_dkdv_mma_kernel<HEAD>, bytes);
    if (!error)
        error = attn_allow_shared(attn_dq_mma_kernel<HEAD>, bytes);
    if (error)
        return error;
    unsigned blocks_k = (unsigned)(tiles.nk * s.kv_heads);
    unsigned blocks_q = (unsigned)(tiles.nq * s.heads);
    if (blocks_k)
        attn_dkdv_mma_kernel<HEAD><<<blocks_k, MmaDkdv<HEAD>::threads, bytes, stream>>>(
            s, tiles, q, k, v, lse, dout, delta, dk, dv, accumulate);
    if (blocks_q)
        attn_dq_mma_kernel<HEAD><<<blocks_q, MMA_THREADS, bytes, stream>>>(
            s, tiles, q, k, v, lse, dout, delta, dq);
    return cudaGetLastError();
}

/*
 * dq is overwritten. dk and dv are overwritten, with zeros where no query looks, or, with
 * `accumulate`, added to: then rows that no query sees stay as they are. `rows`: all local
 * rows of queries; o and lse as the forward kernel left them; delta has rows * heads reals.
 */
template <typename S, int HEAD>
inline cudaError_t attn_backward(const AttnSpec &s, const AttnTiles &tiles, int64_t rows,
                                 const S *q, const S *k, const S *v, const S *o,
                                 const real_of<S> *lse, const S *dout, real_of<S> *delta, S *dq,
                                 real_of<S> *dk, real_of<S> *dv, bool accumulate,
                                 cudaStream_t stream)
{
    if (s.head_size != HEAD || s.heads < s.kv_heads)
        return cudaErrorInvalidValue;
    if (rows > 0) {
        unsigned blocks = (unsigned)((rows * s.heads + 7) / 8);
        attn_delta_kernel<S><<<blocks, 256, 0, stream>>>(s, rows, o, dout, delta);
        cudaError_t error = cudaGetLastError();
        if (error)
            return error;
    }
    if constexpr (attn_is_mma<S>(HEAD))
        if (rows_aligned(q, s.ld_q) && rows_aligned(k, s.ld_k) && rows_aligned(v, s.ld_v)
            && rows_aligned(dout, s.ld_do) && rows_aligned(dq, s.ld_dq)
            && rows_aligned(dk, s.ld_dk) && rows_aligned(dv, s.ld_dv))
            return attn_backward_mma<HEAD>(s, tiles, q, k, v, lse, dout, delta, dq, dk, dv,
                                           accumulate, stream);
    return attn_backward_plain(s, tiles, q, k, v, lse, dout, delta, dq, dk, dv, accumulate,
                               stream);
}

#endif
