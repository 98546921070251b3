/*
 * rope.cuh - rotary positions (Su et al., RoFormer, 2021).
 *
 * Of each head the first `rotary` features are turned in pairs, by the row's position:
 *
 *     angle = position * theta^(-2i/rotary)
 *     y1 = x1 cos - x2 sin        y2 = x2 cos + x1 sin
 *
 * Pair i is features (i, i + rotary/2), or (2i, 2i + 1) where `interleaved`; `inverse` turns
 * back, which is also the gradient. The other features are copied.
 */
#ifndef ROPE_CUH
#define ROPE_CUH

#include "rows.cuh"

/* table[position][2i] = cos, [2i + 1] = sin. Angles in double: positions are large. */
template <typename R>
__global__ void __launch_bounds__(256)
rope_table_kernel(R *table, int64_t positions, int rotary, double theta)
{
    int64_t n = (int64_t)blockIdx.x * 256 + threadIdx.x, pos = n / (rotary / 2);
    int i = (int)(n % (rotary / 2));
    if (pos >= positions)               // guard
        return;
    double angle = (double)pos * pow(theta, -2.0 * i / rotary);
    table[pos * rotary + 2 * i] = (R)cos(angle);
    table[pos * rotary + 2 * i + 1] = (R)sin(angle);
}

/* table [positions][rotary], overwritten; rotary is even and not 0. */
template <typename R>
inline cudaError_t rope_table(R *table, int64_t positions, int rotary, double theta,
                              cudaStream_t stream)
{
    int64_t n = positions * (rotary / 2);
    if (n <= 0)
        return cudaSuccess;
    rope_table_kernel<R><<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(table, positions, rotary,
                                                                          theta);
    return cudaGetLastError();
}

struct RopeSpec {
    int heads, head_size, rotary;
    bool interleaved, inverse;
    int64_t ld_x, ld_y;
};

/* A thread turns the pairs of one access: numbers d .. d+n and, if not interleaved, those
 * rotary/2 behind them; or copies numbers behind the turned ones. */
template <typename X, typename Y, bool VECTOR>
__global__ void __launch_bounds__(256)
rope_kernel(RopeSpec s, const X *x, Y *y, const real_of<X> *table, const int *row_pos,
            int64_t rows)
{
    typedef real_of<X> R;
    constexpr int n = VECTOR ? Pack<X>::n : 2;
    constexpr bool wide = VECTOR && sizeof(X) == sizeof(Y);
    int turned = s.interleaved ? s.rotary / n : (s.rotary / 2 + n - 1) / n;    // accesses of a head
    int units = turned + (s.head_size - s.rotary + n - 1) / n;
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    int64_t row = i / units / s.heads;
    if (row >= rows)                    // guard
        return;
    int unit = (int)(i % units), head = (int)(i / units % s.heads);
    const X *from = x + row * s.ld_x + (int64_t)head * s.head_size;
    Y *to = y + row * s.ld_y + (int64_t)head * s.head_size;
    const R *cs = table + (int64_t)row_pos[row] * s.rotary, sign = s.inverse ? (R)-1 : (R)1;
    bool copies = unit >= turned;
    int d = copies ? s.rotary + (unit - turned) * n : unit * n;
    int end = copies ? s.head_size : s.interleaved ? s.rotary : s.rotary / 2;
    int half = s.rotary / 2;
    R a[n], b[n];
    if constexpr (wide) {
        Some<X, true> p, q;
        load_some<X, true>(&p, from + d);
        if (!copies && !s.interleaved)
            load_some<X, true>(&q, from + d + half);
#pragma unroll
        for (int k = 0; k < n; k++) {
            a[k] = p.at[k];
            b[k] = copies || s.interleaved ? (R)0 : q.at[k];
        }
    } else {
#pragma unroll
        for (int k = 0; k < n; k++) {
            a[k] = d + k < end ? widen(from[d + k]) : (R)0;
            b[k] = !copies && !s.interleaved && d + k < end ? widen(from[d + k + half]) : (R)0;
        }
    }
    if (!copies && s.interleaved) {
#pragma unroll
        for (int k = 0; k < n; k += 2) {
            R c = cs[d + k], e = cs[d + k + 1] * sign, p = a[k], q = a[k + 1];
            a[k] = p * c - q * e;
            a[k + 1] = q * c + p * e;
        }
    } else if (!copies) {
#pragma unroll
        for (int k = 0; k < n; k++) {
            if (d + k >= end)           // guard
                break;
            R c = cs[2 * (d + k)], e = cs[2 * (d + k) + 1] * sign, p = a[k], q = b[k];
            a[k] = p * c - q * e;
            b[k] = q * c + p * e;
        }
    }
    if constexpr (wide) {
        Some<Y, true> p, q;
#pragma unroll
        for (int k = 0; k < n; k++) {
            p.at[k] = a[k];
            q.at[k] = b[k];
        }
        store_some<Y, true>(to + d, p);
        if (!copies && !s.interleaved)
            store_some<Y, true>(to + d + half, q);
    } else {
#pragma unroll
        for (int k = 0; k < n; k++)
            if (d + k < end) {          // guard
                to[d + k] = narrow<Y>(a[k]);
                if (!copies && !s.interleaved)
                    to[d + k + half] = narrow<Y>(b[k]);
            }
    }
}

/* x [rows, heads * head_size] stored as X -> y, stored as Y, overwritten; they may be the same
 * rows in place where types and leading dimensions agree. table: rope_table's; row_pos [rows]
 * on the device. */
template <typename X, typename Y>
inline cudaError_t rope(const RopeSpec &s, const X *x, Y *y, const real_of<X> *table,
                        const int *row_pos, int64_t rows, cudaStream_t stream)
{
    constexpr int n = Pack<X>::n;
    bool vector = sizeof(X) == sizeof(Y) && rows_aligned(x, s.ld_x) && rows_aligned(y, s.ld_y)
                  && s.head_size % n == 0 && s.rotary % (s.interleaved ? n : 2 * n) == 0;
    int step = vector ? n : 2;
    int turned = s.interleaved ? s.rotary / step : (s.rotary / 2 + step - 1) / step;
    int units = turned + (s.head_size - s.rotary + step - 1) / step;
    int64_t threads = rows * s.heads * units;
    if (threads <= 0)
        return cudaSuccess;
    unsigned blocks = (unsigned)((threads + 255) / 256);
    if (vector)
        rope_kernel<X, Y, true><<<blocks, 256, 0, stream>>>(s, x, y, table, row_pos, rows);
    else
        rope_kernel<X, Y, false><<<blocks, 256, 0, stream>>>(s, x, y, table, row_pos, rows);
    return cudaGetLastError();
}

#endif
