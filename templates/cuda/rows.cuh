/*
 * rows.cuh - what generated row programs and the other templates are made of: numbers
 * as they are stored, 16-byte access, reductions, random bits, functions, column sums.
 *
 * S is how a number is stored: float, double or __nv_bfloat16. real_of<S> is what is
 * computed with: float, or double for double. Narrowing rounds to nearest even.
 *
 * A row is worked on by a group of T threads: T = 32 is a warp, and a block holds as many
 * rows as it has warps; a larger T is the whole block, which holds one. All sums have a
 * fixed order: equal runs give equal bits.
 */
#ifndef ROWS_CUH
#define ROWS_CUH

#include "prims.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

/* ---- numbers as they are stored ------------------------------------------------ */

template <typename S> struct Stored { typedef S real; };
template <> struct Stored<__nv_bfloat16> { typedef float real; };
template <typename S> using real_of = typename Stored<S>::real;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

/* A second argument that only says the type. */
__device__ __forceinline__ float narrow_to(float x, float) { return x; }
__device__ __forceinline__ double narrow_to(double x, double) { return x; }
__device__ __forceinline__ float narrow_to(double x, float) { return (float)x; }
__device__ __forceinline__ double narrow_to(float x, double) { return (double)x; }
__device__ __forceinline__ __nv_bfloat16 narrow_to(float x, __nv_bfloat16)
{
    return __float2bfloat16_rn(x);
}
__device__ __forceinline__ __nv_bfloat16 narrow_to(double x, __nv_bfloat16)
{
    return __float2bfloat16_rn((float)x);
}
template <typename S, typename R> __device__ __forceinline__ S narrow(R x)
{
    return narrow_to(x, S());
}

/* The numbers of one 16-byte access: 4 floats, 2 doubles, 8 of bfloat16. */
template <typename S> struct Pack {
    static constexpr int n = 16 / (int)sizeof(S);
    real_of<S> at[n];
};

__device__ __forceinline__ void unpack(uint4 w, Pack<float> *p)
{
    p->at[0] = __uint_as_float(w.x);
    p->at[1] = __uint_as_float(w.y);
    p->at[2] = __uint_as_float(w.z);
    p->at[3] = __uint_as_float(w.w);
}

__device__ __forceinline__ void unpack(uint4 w, Pack<double> *p)
{
    p->at[0] = __longlong_as_double((long long)((unsigned long long)w.y << 32 | w.x));
    p->at[1] = __longlong_as_double((long long)((unsigned long long)w.w << 32 | w.z));
}

__device__ __forceinline__ void unpack(uint4 w, Pack<__nv_bfloat16> *p)
{
    const unsigned bits[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        p->at[2 * i] = __uint_as_float(bits[i] << 16);
        p->at[2 * i + 1] = __uint_as_float(bits[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ uint4 repack(const Pack<float> &p)
{
    return make_uint4(__float_as_uint(p.at[0]), __float_as_uint(p.at[1]),
                      __float_as_uint(p.at[2]), __float_as_uint(p.at[3]));
}

__device__ __forceinline__ uint4 repack(const Pack<double> &p)
{
    unsigned long long a = (unsigned long long)__double_as_longlong(p.at[0]);
    unsigned long long b = (unsigned long long)__double_as_longlong(p.at[1]);
    return make_uint4((unsigned)a, (unsigned)(a >> 32), (unsigned)b, (unsigned)(b >> 32));
}

__device__ __forceinline__ uint4 repack(const Pack<__nv_bfloat16> &p)
{
    return make_uint4(pack_bf16(p.at[0], p.at[1]), pack_bf16(p.at[2], p.at[3]),
                      pack_bf16(p.at[4], p.at[5]), pack_bf16(p.at[6], p.at[7]));
}

/* p: aligned to 16 bytes. */
template <typename S> __device__ __forceinline__ Pack<S> load_pack(const S *p)
{
    Pack<S> x;
    unpack(ld16(p), &x);
    return x;
}

template <typename S> __device__ __forceinline__ void store_pack(S *p, const Pack<S> &x)
{
    st16(p, repack(x));
}

/* Pack<S>::n numbers at once where VECTOR (p is aligned to 16 bytes), else one. */
template <typename S, bool VECTOR> struct Some {
    static constexpr int n = VECTOR ? Pack<S>::n : 1;
    real_of<S> at[n];
};

template <typename S, bool VECTOR>
__device__ __forceinline__ void load_some(Some<S, VECTOR> *x, const S *p)
{
    if constexpr (VECTOR) {
        Pack<S> all = load_pack(p);
#pragma unroll
        for (int i = 0; i < Pack<S>::n; i++)
            x->at[i] = all.at[i];
    } else {
        x->at[0] = widen(*p);
    }
}

template <typename S, bool VECTOR>
__device__ __forceinline__ void store_some(S *p, const Some<S, VECTOR> &x)
{
    if constexpr (VECTOR) {
        Pack<S> all;
#pragma unroll
        for (int i = 0; i < Pack<S>::n; i++)
            all.at[i] = x.at[i];
        store_pack(p, all);
    } else {
        *p = narrow<S>(x.at[0]);
    }
}

/* Host: may rows that begin at p, ld elements apart, be read in 16 bytes? */
template <typename S> inline bool rows_aligned(const S *p, int64_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld * (int64_t)sizeof(S) % 16 == 0;
}

/* ---- reductions ------------------------------------------------------------------ */

enum RowSum { ROW_SUM, ROW_MAX, ROW_MIN };

template <int OP, typename R> __device__ __forceinline__ R row_combine(R a, R b)
{
    return OP == ROW_SUM ? a + b : OP == ROW_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

/* Every lane gets the result of its warp's 32 lanes. */
template <int OP, typename R> __device__ __forceinline__ R warp_reduce(R x)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x = row_combine<OP>(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

/* Every thread gets the result of its group of T; scratch [T/32] is the block's, for
 * T > 32 only. Ends with the scratch free for the next call. */
template <int OP, int T, typename R> __device__ __forceinline__ R group_reduce(R x, R *scratch)
{
    static_assert(T % 32 == 0 && T <= 1024, "a group is made of warps");
    x = warp_reduce<OP>(x);
    if constexpr (T > 32) {
        if (threadIdx.x % 32 == 0)
            scratch[threadIdx.x / 32] = x;
        __syncthreads();
        x = scratch[0];
#pragma unroll
        for (int i = 1; i < T / 32; i++)
            x = row_combine<OP>(x, scratch[i]);
        __syncthreads();
    }
    return x;
}

template <int T, typename R> __device__ __forceinline__ R group_sum(R x, R *scratch)
{
    return group_reduce<ROW_SUM, T>(x, scratch);
}
template <int T, typename R> __device__ __forceinline__ R group_max(R x, R *scratch)
{
    return group_reduce<ROW_MAX, T>(x, scratch);
}
template <int T, typename R> __device__ __forceinline__ R group_min(R x, R *scratch)
{
    return group_reduce<ROW_MIN, T>(x, scratch);
}

/*
 * Mean and M2 = sum (x - mean)^2 of a row of `width` numbers that a group holds in
 * registers: x[0 .. n) of each thread exist. Two passes: right for 1000 + noise.
 */
template <int T, int N, typename R>
__device__ __forceinline__ void group_moments(const R (&x)[N], int n, int64_t width, R *scratch,
                                              R *mean, R *m2)
{
    R sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += i < n ? x[i] : (R)0;
    *mean = group_sum<T>(sum, scratch) / (R)width;
    sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += i < n ? (x[i] - *mean) * (x[i] - *mean) : (R)0;
    *m2 = group_sum<T>(sum, scratch);
}

/* ---- random bits ------------------------------------------------------------------ */

/* Philox 4x32-10 (Salmon et al., 2011), as rt_philox of runtime/random.c. */
__device__ __forceinline__ uint4 philox(uint4 c, uint2 key)
{
#pragma unroll
    for (int i = 0; i < 10; i++) {
        unsigned hi0 = __umulhi(0xD2511F53u, c.x), lo0 = 0xD2511F53u * c.x;
        unsigned hi1 = __umulhi(0xCD9E8D57u, c.z), lo1 = 0xCD9E8D57u * c.z;
        c = make_uint4(hi1 ^ c.y ^ key.x, lo1, hi0 ^ c.w ^ key.y, lo0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return c;
}

/* token, feature: global. The element is kept where word >= limit, floor(p * 2^32). */
__device__ __forceinline__ unsigned dropout_word(uint64_t seed, unsigned step, unsigned salt,
                                                 uint64_t token, unsigned feature)
{
    uint4 c = make_uint4((unsigned)token, (unsigned)(token >> 32), feature, salt);
    return philox(c, make_uint2((unsigned)seed ^ 0x5eedu, step)).x;
}

/* x / (1-p) or 0; scale = 1 / (1-p). Under validation: limit 0 and scale 1. */
template <typename R>
__device__ __forceinline__ R dropout(R x, unsigned word, unsigned limit, R scale)
{
    return word >= limit ? x * scale : (R)0;
}

/* ---- functions ---------------------------------------------------------------------- */

/* In the order of compiler/ops.h. Accurate to a few units of the last place as long as
 * the program is not compiled with -use_fast_math. */
__device__ __forceinline__ float op_exp(float x) { return expf(x); }
__device__ __forceinline__ double op_exp(double x) { return exp(x); }
__device__ __forceinline__ float op_log(float x) { return logf(x); }
__device__ __forceinline__ double op_log(double x) { return log(x); }
__device__ __forceinline__ float op_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ double op_sqrt(double x) { return sqrt(x); }
__device__ __forceinline__ float op_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ double op_tanh(double x) { return tanh(x); }
__device__ __forceinline__ float op_erf(float x) { return erff(x); }
__device__ __forceinline__ double op_erf(double x) { return erf(x); }
__device__ __forceinline__ float op_sin(float x) { return sinf(x); }
__device__ __forceinline__ double op_sin(double x) { return sin(x); }
__device__ __forceinline__ float op_cos(float x) { return cosf(x); }
__device__ __forceinline__ double op_cos(double x) { return cos(x); }
__device__ __forceinline__ float op_abs(float x) { return fabsf(x); }
__device__ __forceinline__ double op_abs(double x) { return fabs(x); }
__device__ __forceinline__ float op_pow(float x, float c) { return powf(x, c); }
__device__ __forceinline__ double op_pow(double x, double c) { return pow(x, c); }
template <typename R> __device__ __forceinline__ R op_rsqrt(R x) { return 1 / op_sqrt(x); }
template <typename R> __device__ __forceinline__ R op_sigmoid(R x) { return 1 / (1 + op_exp(-x)); }
template <typename R> __device__ __forceinline__ R op_max(R a, R b) { return a >= b ? a : b; }
template <typename R> __device__ __forceinline__ R op_min(R a, R b) { return a <= b ? a : b; }
template <typename R> __device__ __forceinline__ R op_ge(R a, R b) { return a >= b ? (R)1 : (R)0; }
template <typename R> __device__ __forceinline__ R op_eq(R a, R b) { return a == b ? (R)1 : (R)0; }
template <typename R> __device__ __forceinline__ R op_sign(R x)
{
    return (R)((x > 0) - (x < 0));
}

/* x^C for a small whole C: products only, as op_pow would lose time. */
template <int C, typename R> __device__ __forceinline__ R op_power(R x)
{
    if constexpr (C < 0)
        return 1 / op_power<-C>(x);
    else if constexpr (C == 0)
        return 1;
    else if constexpr (C == 1)
        return x;
    else if constexpr (C % 2)
        return x * op_power<C - 1>(x);
    else
        return op_power<C / 2>(x * x);
}

/* ---- sums over rows ------------------------------------------------------------------ */

/*
 * The end of a row kernel that sums over its rows: thread t of a group holds in sum[i] what
 * column first + (i/V*T + t)*V + i%V of its rows adds up to (V neighbours per access; columns
 * of `width` and beyond do not exist). `partial` [length] is this block's own row of
 * [blocks][length], cleared by colsum_zero; element c gets the sum of columns c, c + length, ..
 * of all groups, in a fixed order. All threads of the block call both; blockDim.x = groups * T.
 */
template <typename R> __device__ void colsum_zero(int64_t length, R *partial)
{
    for (int64_t c = threadIdx.x; c < length; c += blockDim.x)
        partial[c] = 0;
    __syncthreads();
}

template <int T, int V, int N, typename R>
__device__ void colsum_add(const R (&sum)[N], int64_t first, int64_t width, int64_t length,
                           R *partial)
{
    int groups = (int)blockDim.x / T, group = (int)threadIdx.x / T, t = (int)threadIdx.x % T;
    int64_t end = first + (int64_t)N * T < width ? first + (int64_t)N * T : width;
    for (int g = 0; g < groups; g++)
        for (int64_t from = first / length * length; from < end; from += length) {
            if (g == group) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    int64_t c = first + (int64_t)(i / V * T + t) * V + i % V;
                    if (c >= from && c < from + length && c < end)
                        partial[c - from] += sum[i];
                }
            }
            __syncthreads();
        }
}

/* The same for sums that the block, one group, has in shared memory: sum [width]. */
template <int T, typename R>
__device__ void colsum_shared(const R *sum, int64_t width, int64_t length, R *partial)
{
    for (int64_t from = 0; from < width; from += length) {
        __syncthreads();
        for (int64_t c = threadIdx.x; c < length && from + c < width; c += T)
            partial[c] += sum[from + c];
    }
}

constexpr int COLSUM_ROWS = 8;          // threads that share a column

/* dst [length] (+)= sum of partial [n][length] over n, in the order of n. */
template <typename R>
__global__ void __launch_bounds__(32 * COLSUM_ROWS)
colsum_finish_kernel(const R *partial, int64_t n, int64_t length, R *dst, bool add)
{
    __shared__ R part[COLSUM_ROWS][32];
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    int y = (int)threadIdx.y;
    R sum = 0;
    if (c < length)
        for (int64_t i = n * y / COLSUM_ROWS; i < n * (y + 1) / COLSUM_ROWS; i++)
            sum += partial[i * length + c];
    part[y][threadIdx.x] = sum;
    __syncthreads();
    if (y > 0 || c >= length)           // guard
        return;
    for (int i = 1; i < COLSUM_ROWS; i++)
        sum += part[i][threadIdx.x];
    dst[c] = add ? dst[c] + sum : sum;
}

/* RT_COLSUM. partial and dst are the caller's; any alignment. */
template <typename R>
inline cudaError_t colsum_finish(const R *partial, int64_t n, int64_t length, R *dst, bool add,
                                 cudaStream_t stream)
{
    if (length <= 0)
        return cudaSuccess;
    unsigned blocks = (unsigned)((length + 31) / 32);
    colsum_finish_kernel<R><<<blocks, dim3(32, COLSUM_ROWS), 0, stream>>>(partial, n, length,
                                                                          dst, add);
    return cudaGetLastError();
}

/* partial[b][c] = sum of x[r][c] over rows r of block b's share, rows*b/n .. */
template <typename S>
__global__ void __launch_bounds__(32 * COLSUM_ROWS)
colsum_rows_kernel(const S *x, int64_t ld, int64_t rows, int64_t cols, real_of<S> *partial)
{
    typedef real_of<S> R;
    __shared__ R part[COLSUM_ROWS][32];
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x, n = gridDim.y;
    int64_t to = rows * (blockIdx.y + 1) / n;
    int y = (int)threadIdx.y;
    R sum = 0;
    if (c < cols)
        for (int64_t r = rows * blockIdx.y / n + y; r < to; r += COLSUM_ROWS)
            sum += widen(x[r * ld + c]);
    part[y][threadIdx.x] = sum;
    __syncthreads();
    if (y > 0 || c >= cols)             // guard
        return;
    for (int i = 1; i < COLSUM_ROWS; i++)
        sum += part[i][threadIdx.x];
    partial[blockIdx.y * cols + c] = sum;
}

/* dst [cols] (+)= sum over the rows of x [rows, cols] (ld elements apart). partial: scratch
 * of the caller, [nblocks][cols]; nblocks, at most 65535, fixes the order of the sum. */
template <typename S>
inline cudaError_t colsum_rows(const S *x, int64_t ld, int64_t rows, int64_t cols,
                               real_of<S> *partial, int nblocks, real_of<S> *dst, bool add,
                               cudaStream_t stream)
{
    if (cols <= 0)
        return cudaSuccess;
    dim3 grid((unsigned)((cols + 31) / 32), (unsigned)nblocks);
    colsum_rows_kernel<S><<<grid, dim3(32, COLSUM_ROWS), 0, stream>>>(x, ld, rows, cols, partial);
    cudaError_t error = cudaGetLastError();
    return error ? error : colsum_finish(partial, (int64_t)nblocks, cols, dst, add, stream);
}

#endif
