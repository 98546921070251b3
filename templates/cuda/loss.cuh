/*
 * loss.cuh - cross entropy of a rank's columns of the logits, in two passes with the
 * exchange of three numbers a row between them.
 *
 *     stat[r] = (max, sum of exp(l - max), target's logit), over the columns that exist here
 *     ... merged over the ranks that have the other columns (moves.cuh: ce_merge) ...
 *     loss   += log(sum) + max - target
 *     logits <- (exp(l - max) / sum - onehot) * scale
 *
 * One pass for max and sum: online softmax (Milakov and Gimelshein, 2018). Global column of
 * local c is base + c; columns from `limit` on do not exist. A block has a row.
 */
#ifndef LOSS_CUH
#define LOSS_CUH

#include "rows.cuh"

// With a least number of blocks the compiler does not spill for the sake of more of them.
constexpr int LOSS_THREADS = 256;

/* How many of the local columns exist. */
inline int64_t ce_columns(int64_t cols, int64_t base, int64_t limit)
{
    int64_t n = limit - base;
    return n < 0 ? 0 : n < cols ? n : cols;
}

/* Below every logit. */
template <typename R> __device__ __forceinline__ R ce_none() { return (R)-1e30; }
template <> __device__ __forceinline__ double ce_none<double>() { return -1e300; }

/* (max, sum) of two sets of logits. */
template <typename R>
__device__ __forceinline__ void ce_join(R *max, R *sum, R other_max, R other_sum)
{
    R ahead = other_max - *max, e = op_exp(-op_abs(ahead));
    *sum = ahead > 0 ? *sum * e + other_sum : *sum + other_sum * e;
    *max = ahead > 0 ? other_max : *max;
}

template <typename S, bool VECTOR>
__global__ void __launch_bounds__(LOSS_THREADS, 2)
ce_stat_kernel(const S *logits, int64_t ld, int64_t n, const int *targets, int64_t base,
               real_of<S> *stat)
{
    typedef real_of<S> R;
    constexpr int step = VECTOR ? Pack<S>::n : 1;
    __shared__ R part[2][LOSS_THREADS / 32];
    int64_t r = blockIdx.x, whole = VECTOR ? n / step * step : n;
    const S *row = logits + r * ld;
    R max = ce_none<R>(), sum = 0;
    for (int64_t c = (int64_t)threadIdx.x * step; c < whole; c += LOSS_THREADS * step) {
        Some<S, VECTOR> x;
        load_some<S, VECTOR>(&x, row + c);
        R most = x.at[0], add = 0;
#pragma unroll
        for (int i = 1; i < step; i++)
            most = most > x.at[i] ? most : x.at[i];
        most = most > max ? most : max;
#pragma unroll
        for (int i = 0; i < step; i++)
            add += op_exp(x.at[i] - most);
        sum = sum * op_exp(max - most) + add;
        max = most;
    }
    for (int64_t c = whole + threadIdx.x; c < n; c += LOSS_THREADS)
        ce_join(&max, &sum, (R)widen(row[c]), (R)1);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        R other = __shfl_xor_sync(0xffffffffu, max, lanes);
        ce_join(&max, &sum, other, __shfl_xor_sync(0xffffffffu, sum, lanes));
    }
    if (threadIdx.x % 32 == 0) {
        part[0][threadIdx.x / 32] = max;
        part[1][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < LOSS_THREADS / 32; i++)
        ce_join(&max, &sum, part[0][i], part[1][i]);
    int64_t target = targets[r] - base;
    stat[3 * r] = max;
    stat[3 * r + 1] = sum;
    stat[3 * r + 2] = target >= 0 && target < n ? widen(row[target]) : (R)0;
}

/* logits [rows, cols] are read, stat [rows][3] is overwritten; targets [rows] on the device.
 * A rank without existing columns gives (-huge, 0, 0). */
template <typename S>
inline cudaError_t ce_stat(const S *logits, int64_t ld, int64_t rows, int64_t cols,
                           const int *targets, int64_t base, int64_t limit, real_of<S> *stat,
                           cudaStream_t stream)
{
    if (rows <= 0)
        return cudaSuccess;
    int64_t n = ce_columns(cols, base, limit);
    if (rows_aligned(logits, ld))
        ce_stat_kernel<S, true><<<(unsigned)rows, LOSS_THREADS, 0, stream>>>(logits, ld, n,
                                                                             targets, base, stat);
    else
        ce_stat_kernel<S, false><<<(unsigned)rows, LOSS_THREADS, 0, stream>>>(logits, ld, n,
                                                                              targets, base, stat);
    return cudaGetLastError();
}

/* ---- loss and gradient ----------------------------------------------------------------- */

template <typename S, bool VECTOR>
__global__ void __launch_bounds__(LOSS_THREADS, 2)
ce_kernel(S *logits, int64_t ld, int64_t n, int64_t cols, const real_of<S> *stat,
          const int *targets, int ignore, int64_t base, real_of<S> scale, double *row_loss)
{
    typedef real_of<S> R;
    constexpr int step = VECTOR ? Pack<S>::n : 1;
    int64_t r = blockIdx.x, c = targets[r] - base;
    S *row = logits + r * ld;
    const R max = stat[3 * r], sum = stat[3 * r + 1], target = stat[3 * r + 2];
    const bool counts = targets[r] != ignore;
    const R factor = scale / sum;
    // the target's own gradient from its logit in stat: what is stored may be rounded
    const R own = op_exp(target - max) * factor - scale;
    int64_t exist = counts ? n : 0, whole = VECTOR ? cols / step * step : cols;
    for (int64_t i = (int64_t)threadIdx.x * step; i < whole; i += LOSS_THREADS * step) {
        Some<S, VECTOR> x;
        load_some<S, VECTOR>(&x, row + i);
#pragma unroll
        for (int k = 0; k < step; k++)
            x.at[k] = i + k >= exist ? (R)0 : i + k == c ? own : op_exp(x.at[k] - max) * factor;
        store_some<S, VECTOR>(row + i, x);
    }
    for (int64_t i = whole + threadIdx.x; i < cols; i += LOSS_THREADS) {
        R x = i == c ? own : op_exp((R)widen(row[i]) - max) * factor;
        row[i] = narrow<S>(i < exist ? x : (R)0);
    }
    if (threadIdx.x == 0 && row_loss)
        row_loss[r] = counts ? log((double)sum) + (double)max - (double)target : 0;
}

/* *total += sum of row_loss [rows], by one block. */
template <int T>
__global__ void __launch_bounds__(T)
ce_total_kernel(const double *row_loss, int64_t rows, double *total)
{
    __shared__ double scratch[T / 32];
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += T)
        sum += row_loss[r];
    sum = group_sum<T>(sum, scratch);
    if (threadIdx.x == 0)
        *total += sum;
}

/*
 * logits [rows, cols] become their gradient. stat [rows][3]: of all columns. Where targets[r]
 * is `ignore` loss and gradient are 0; columns that do not exist get 0. scale: 1 / number of
 * targets that count. *total (device) += the loss, a sum: only on ranks that own it; NULL on
 * the others. row_loss: scratch [rows] of the caller.
 */
template <typename S>
inline cudaError_t ce(S *logits, int64_t ld, int64_t rows, int64_t cols, const real_of<S> *stat,
                      const int *targets, int ignore, int64_t base, int64_t limit, double scale,
                      double *row_loss, double *total, cudaStream_t stream)
{
    if (rows <= 0)
        return cudaSuccess;
    int64_t n = ce_columns(cols, base, limit);
    double *losses = total ? row_loss : NULL;
    real_of<S> factor = (real_of<S>)scale;
    if (rows_aligned(logits, ld))
        ce_kernel<S, true><<<(unsigned)rows, LOSS_THREADS, 0, stream>>>(
            logits, ld, n, cols, stat, targets, ignore, base, factor, losses);
    else
        ce_kernel<S, false><<<(unsigned)rows, LOSS_THREADS, 0, stream>>>(
            logits, ld, n, cols, stat, targets, ignore, base, factor, losses);
    if (total)
        ce_total_kernel<LOSS_THREADS><<<1, LOSS_THREADS, 0, stream>>>(row_loss, rows, total);
    return cudaGetLastError();
}

#endif
