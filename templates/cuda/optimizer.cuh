/*
 * optimizer.cuh - AdamW and SGD on flat parameters, and the gradient's squares.
 *
 *     AdamW  m = b1 m + (1-b1) g     v = b2 v + (1-b2) g^2
 *            p -= lr ((m correct1) / (sqrt(v correct2) + eps) + decay p),  correct = 1/(1-b^t)
 *     SGD    m = momentum m + g      p -= lr m
 *
 * (Loshchilov and Hutter, 2019.) g is multiplied by the clip factor first. p is the master
 * copy; where the model computes with bf16, `copy` gets the new p, rounded.
 *
 * A rank's elements are a list of pieces, made once: what stands together and has one decay,
 * cut into at most OPT_PIECE elements. A block works on a piece.
 */
#ifndef OPTIMIZER_CUH
#define OPTIMIZER_CUH

#include "rows.cuh"

// With a least number of blocks the compiler does not spill for the sake of more of them.
constexpr int OPT_THREADS = 256;
constexpr int OPT_PIECE = 16384;

/* n elements at p[p], copy[copy], g[g], m[m] and v[m]. */
struct OptPiece { int64_t p, copy, g, m; int n, decay; };

/* Host: cuts elements [0, n) that begin at those places; returns the number of pieces, which
 * are written unless `to` is NULL. */
inline int64_t opt_pieces(int64_t n, int64_t p, int64_t copy, int64_t g, int64_t m, bool decay,
                          OptPiece *to)
{
    int64_t count = 0;
    for (int64_t at = 0; at < n; at += OPT_PIECE, count++)
        if (to)
            to[count] = { p + at, copy + at, g + at, m + at,
                          (int)(n - at < OPT_PIECE ? n - at : OPT_PIECE), decay };
    return count;
}

/* The numbers of a step. clip (device, or NULL for 1): opt_clip's. */
struct OptStep {
    double lr, beta1, beta2, eps, decay, correct1, correct2, momentum;
    const double *clip;
};

template <typename R> struct OptFactors {
    R lr, clip, b1, c1, b2, c2, eps, decay, correct1, correct2, momentum;
};

template <typename R>
__device__ __forceinline__ OptFactors<R> opt_factors(const OptStep &s, int decay)
{
    return { (R)s.lr, s.clip ? (R)*s.clip : (R)1, (R)s.beta1, (R)(1 - s.beta1), (R)s.beta2,
             (R)(1 - s.beta2), (R)s.eps, decay ? (R)s.decay : (R)0, (R)s.correct1,
             (R)s.correct2, (R)s.momentum };
}

template <bool ADAM, typename R>
__device__ __forceinline__ void opt_element(const OptFactors<R> &f, R *p, R g, R *m, R *v)
{
    g *= f.clip;
    if constexpr (ADAM) {
        *m = f.b1 * *m + f.c1 * g;
        *v = f.b2 * *v + f.c2 * (g * g);
        *p -= f.lr * (*m * f.correct1 / (op_sqrt(*v * f.correct2) + f.eps) + f.decay * *p);
    } else {
        *m = f.momentum * *m + g;
        *p -= f.lr * *m;
    }
}

/* Four neighbours of a float copy in bf16, two of a double one. */
template <int N, typename R>
__device__ __forceinline__ void opt_copy(__nv_bfloat16 *to, const R (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i += 2)
        *(unsigned *)(void *)(to + i) = pack_bf16((float)x[i], (float)x[i + 1]);
}

template <bool ADAM, typename R>
__global__ void __launch_bounds__(OPT_THREADS, 2)
opt_kernel(const OptPiece *pieces, OptStep step, R *p, const R *g, R *m, R *v,
           __nv_bfloat16 *copy)
{
    constexpr int n = Pack<R>::n;
    const OptPiece piece = pieces[blockIdx.x];
    const OptFactors<R> f = opt_factors<R>(step, piece.decay);
    p += piece.p;
    g += piece.g;
    m += piece.m;
    v += ADAM ? piece.m : 0;
    copy += copy ? piece.copy : 0;
    bool even = (((uintptr_t)p | (uintptr_t)g | (uintptr_t)m | (uintptr_t)v) & 15) == 0
                && ((uintptr_t)copy & 3) == 0;
    int whole = even ? piece.n / n * n : 0;
    for (int i = (int)threadIdx.x * n; i < whole; i += OPT_THREADS * n) {
        Pack<R> a = load_pack(p + i), b = load_pack(g + i), c = load_pack(m + i), d = {};
        if constexpr (ADAM)
            d = load_pack(v + i);
#pragma unroll
        for (int k = 0; k < n; k++)
            opt_element<ADAM>(f, &a.at[k], b.at[k], &c.at[k], &d.at[k]);
        store_pack(p + i, a);
        store_pack(m + i, c);
        if constexpr (ADAM)
            store_pack(v + i, d);
        if (copy)
            opt_copy(copy + i, a.at);
    }
    for (int i = whole + (int)threadIdx.x; i < piece.n; i += OPT_THREADS) {
        R a = p[i], c = m[i], d = ADAM ? v[i] : (R)0;
        opt_element<ADAM>(f, &a, g[i], &c, &d);
        p[i] = a;
        m[i] = c;
        if constexpr (ADAM)
            v[i] = d;
        if (copy)
            copy[i] = narrow<__nv_bfloat16>(a);
    }
}

/* pieces [npieces] on the device. p, m, v are updated in place, g is read; copy: bf16, or
 * NULL. Pieces do not overlap. */
template <typename R>
inline cudaError_t opt_adamw(const OptPiece *pieces, int64_t npieces, const OptStep &step, R *p,
                             const R *g, R *m, R *v, __nv_bfloat16 *copy, cudaStream_t stream)
{
    if (npieces <= 0)
        return cudaSuccess;
    opt_kernel<true, R><<<(unsigned)npieces, OPT_THREADS, 0, stream>>>(pieces, step, p, g, m, v,
                                                                       copy);
    return cudaGetLastError();
}

template <typename R>
inline cudaError_t opt_sgd(const OptPiece *pieces, int64_t npieces, const OptStep &step, R *p,
                           const R *g, R *m, __nv_bfloat16 *copy, cudaStream_t stream)
{
    if (npieces <= 0)
        return cudaSuccess;
    opt_kernel<false, R><<<(unsigned)npieces, OPT_THREADS, 0, stream>>>(pieces, step, p, g, m,
                                                                        (R *)NULL, copy);
    return cudaGetLastError();
}

/* ---- the gradient's norm ------------------------------------------------------------- */

template <typename R>
__global__ void __launch_bounds__(OPT_THREADS, 2)
opt_squares_kernel(const OptPiece *pieces, const R *g, double *partial)
{
    constexpr int n = Pack<R>::n;
    __shared__ double scratch[OPT_THREADS / 32];
    const OptPiece piece = pieces[blockIdx.x];
    const R *x = g + piece.g;
    int whole = (uintptr_t)x % 16 == 0 ? piece.n / n * n : 0;
    double sum = 0;
    for (int i = (int)threadIdx.x * n; i < whole; i += OPT_THREADS * n) {
        Pack<R> a = load_pack(x + i);
#pragma unroll
        for (int k = 0; k < n; k++)
            sum += (double)a.at[k] * (double)a.at[k];
    }
    for (int i = whole + (int)threadIdx.x; i < piece.n; i += OPT_THREADS)
        sum += (double)x[i] * (double)x[i];
    sum = group_sum<OPT_THREADS>(sum, scratch);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

template <int T>
__global__ void __launch_bounds__(T)
opt_sum_kernel(const double *partial, int64_t n, double *total)
{
    __shared__ double scratch[T / 32];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += T)
        sum += partial[i];
    sum = group_sum<T>(sum, scratch);
    if (threadIdx.x == 0)
        *total = sum;
}

/* *total (device) = sum of squares of the elements of g in the pieces (OptPiece.g, .n).
 * partial: scratch [npieces] of the caller. */
template <typename R>
inline cudaError_t opt_squares(const OptPiece *pieces, int64_t npieces, const R *g,
                               double *partial, double *total, cudaStream_t stream)
{
    if (npieces > 0)
        opt_squares_kernel<R><<<(unsigned)npieces, OPT_THREADS, 0, stream>>>(pieces, g, partial);
    cudaError_t error = cudaGetLastError();
    if (error)
        return error;
    opt_sum_kernel<OPT_THREADS><<<1, OPT_THREADS, 0, stream>>>(partial, npieces, total);
    return cudaGetLastError();
}

template <typename R> __global__ void opt_clip_kernel(const R *squares, R most, R *clip)
{
    R norm = op_sqrt(*squares);
    *clip = most > 0 && norm > most ? most / (norm + (R)1e-6) : (R)1;
}

/* *clip (device) = what gradients are multiplied by so that their norm is at most `most`;
 * squares (device): the sum of squares of all ranks. most <= 0: 1. */
inline cudaError_t opt_clip(const double *squares, double most, double *clip, cudaStream_t stream)
{
    opt_clip_kernel<double><<<1, 1, 0, stream>>>(squares, most, clip);
    return cudaGetLastError();
}

#endif
