/*
 * moves.cuh - copies, zeros, merged statistics, boxes of all-to-alls; what is not finite.
 *
 * What these mean is defined by the step kinds of rt.h: COPY, ZERO, MERGE, CE_MERGE,
 * ALL_TO_ALL. Statistics are merged in double, as the CPU runtime does.
 */
#ifndef MOVES_CUH
#define MOVES_CUH

#include "rows.cuh"

/* ---- copies -------------------------------------------------------------------------- */

/* Blocks (x: columns, y: rows). n numbers a thread. */
template <typename A, typename B, bool VECTOR>
__global__ void __launch_bounds__(128)
move_copy_kernel(const A *src, int64_t ld_src, B *dst, int64_t ld_dst, int64_t rows,
                 int64_t cols, bool add)
{
    constexpr int n = VECTOR ? Pack<A>::n : 1;
    int64_t c = ((int64_t)blockIdx.x * 128 + threadIdx.x) * n;
    if (c >= cols)                      // guard
        return;
    for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
        const A *from = src + r * ld_src + c;
        B *to = dst + r * ld_dst + c;
        Some<A, VECTOR> x;
        load_some<A, VECTOR>(&x, from);
        if constexpr (VECTOR && sizeof(A) == sizeof(B)) {
            Some<B, true> y;
            if (add)
                load_some<B, true>(&y, to);
#pragma unroll
            for (int i = 0; i < n; i++)
                y.at[i] = add ? y.at[i] + x.at[i] : x.at[i];
            store_some<B, true>(to, y);
        } else {
#pragma unroll
            for (int i = 0; i < n; i++)
                to[i] = narrow<B>(add ? widen(to[i]) + (real_of<B>)x.at[i] : (real_of<B>)x.at[i]);
        }
    }
}

/* dst [rows, cols] (+)= src, both with leading dimensions in numbers, converted where they are
 * stored differently; they do not overlap. */
template <typename A, typename B>
inline cudaError_t move_copy(const A *src, int64_t ld_src, B *dst, int64_t ld_dst, int64_t rows,
                             int64_t cols, bool add, cudaStream_t stream)
{
    if (rows <= 0 || cols <= 0)
        return cudaSuccess;
    if (ld_src == cols && ld_dst == cols) {     // one long row
        cols *= rows;
        rows = 1;
    }
    bool vector = rows_aligned(src, rows > 1 ? ld_src : 0) && cols % Pack<A>::n == 0
                  && (sizeof(A) != sizeof(B) || rows_aligned(dst, rows > 1 ? ld_dst : 0));
    int64_t each = 128 * (vector ? Pack<A>::n : 1);
    dim3 grid((unsigned)((cols + each - 1) / each), (unsigned)(rows < 65535 ? rows : 65535));
    if (vector)
        move_copy_kernel<A, B, true><<<grid, 128, 0, stream>>>(src, ld_src, dst, ld_dst, rows,
                                                               cols, add);
    else
        move_copy_kernel<A, B, false><<<grid, 128, 0, stream>>>(src, ld_src, dst, ld_dst, rows,
                                                                cols, add);
    return cudaGetLastError();
}

template <typename S> inline cudaError_t move_zero(S *dst, int64_t n, cudaStream_t stream)
{
    return n > 0 ? cudaMemsetAsync(dst, 0, (size_t)n * sizeof(S), stream) : cudaSuccess;
}

/* ---- what is not finite -------------------------------------------------------------- */

/* Lowers *first to the index row * cols + col of a number that is not finite. */
template <typename S>
__global__ void __launch_bounds__(256)
move_find_kernel(const S *x, int64_t ld, int64_t rows, int64_t cols, unsigned long long *first)
{
    for (int64_t i = blockIdx.x * (int64_t)256 + threadIdx.x; i < rows * cols;
         i += gridDim.x * (int64_t)256) {
        real_of<S> v = widen(x[i / cols * ld + i % cols]);
        if (v - v != 0) {
            atomicMin(first, (unsigned long long)i);
            return;
        }
    }
}

/* *first (on the device): the least such index of x [rows, cols], or ~0. */
template <typename S>
inline cudaError_t move_find(const S *x, int64_t ld, int64_t rows, int64_t cols,
                             unsigned long long *first, cudaStream_t stream)
{
    cudaError_t e = cudaMemsetAsync(first, 0xff, sizeof *first, stream);
    if (e != cudaSuccess || rows <= 0 || cols <= 0)
        return e;
    int64_t blocks = (rows * cols + 255) / 256;
    move_find_kernel<S><<<(unsigned)(blocks < 4096 ? blocks : 4096), 256, 0, stream>>>(x, ld, rows,
                                                                                  cols, first);
    return cudaGetLastError();
}

/* ---- statistics of rows that are split over ranks -------------------------------------- */

/* In the order of RtStep.stat. */
enum MergeStat { MERGE_SUM, MERGE_MAX, MERGE_VAR, MERGE_MIN };
constexpr int MERGE_MOST = 64;

/* What one statistic is: its first slot in a row of the members, where the whole one goes. */
template <typename R> struct MergeOut { int kind, slot; R *dst; };
template <typename R> struct MergeSpec { int n, slots; MergeOut<R> out[MERGE_MOST]; };

template <typename R>
__global__ void __launch_bounds__(128)
merge_kernel(MergeSpec<R> s, const R *parts, int p, int64_t rows, double members)
{
    int64_t row = (int64_t)blockIdx.x * 128 + threadIdx.x;
    if (row >= rows)                    // guard
        return;
    const MergeOut<R> o = s.out[blockIdx.y];
    const R *at = parts + row * s.slots + o.slot;
    const int64_t next = rows * s.slots;        // from member to member
    double all = at[0];
    for (int i = 1; i < p; i++) {
        double v = at[i * next];
        if (o.kind == MERGE_MAX)
            all = v > all ? v : all;
        else if (o.kind == MERGE_MIN)
            all = v < all ? v : all;
        else
            all += v;
    }
    if (o.kind == MERGE_VAR) {
        // `members` values each: M2 = sum of M2_i + n * sum (mean_i - mean)^2 (Chan et al., 1979)
        double mean = all / p, m2 = 0, between = 0;
        for (int i = 0; i < p; i++) {
            double d = at[i * next] - mean;
            between += d * d;
            m2 += at[i * next + 1];
        }
        all = (m2 + members * between) / (p * members);
    }
    o.dst[row] = (R)all;
}

/*
 * MERGE: parts [p][rows][slots] of p members -> dst[k] [rows], nstats of them, at most
 * MERGE_MOST. stat[k] is a MergeStat; MERGE_VAR has two slots (mean, M2), the others one.
 * members: values behind each member's (mean, M2). Host arrays are read before the return.
 */
template <typename R>
inline cudaError_t merge(const R *parts, int p, int64_t rows, int nstats, const uint8_t *stat,
                         R *const *dst, int64_t members, cudaStream_t stream)
{
    MergeSpec<R> s = {};
    if (nstats > MERGE_MOST)
        return cudaErrorInvalidValue;
    for (int k = 0; k < nstats; k++) {
        s.out[k] = { stat[k], s.slots, dst[k] };
        s.slots += stat[k] == MERGE_VAR ? 2 : 1;
    }
    if (rows <= 0 || nstats <= 0)
        return cudaSuccess;
    dim3 grid((unsigned)((rows + 127) / 128), (unsigned)nstats);
    merge_kernel<R><<<grid, 128, 0, stream>>>(s, parts, p, rows, (double)members);
    return cudaGetLastError();
}

template <typename R>
__global__ void __launch_bounds__(128)
ce_merge_kernel(const R *parts, int p, int64_t rows, R *whole)
{
    int64_t row = (int64_t)blockIdx.x * 128 + threadIdx.x;
    if (row >= rows)                    // guard
        return;
    const R *at = parts + row * 3;
    double max = at[0], sum = 0, target = 0;
    for (int i = 1; i < p; i++)
        max = fmax(max, (double)at[i * rows * 3]);
    for (int i = 0; i < p; i++) {
        const R *part = at + i * rows * 3;
        sum += (double)part[1] * exp((double)part[0] - max);
        target += (double)part[2];
    }
    whole[row * 3] = (R)max;
    whole[row * 3 + 1] = (R)sum;
    whole[row * 3 + 2] = (R)target;
}

/* CE_MERGE: (max, sum, target) of p members' columns, [p][rows][3], -> of all, [rows][3]. */
template <typename R>
inline cudaError_t ce_merge(const R *parts, int p, int64_t rows, R *whole, cudaStream_t stream)
{
    if (rows <= 0)
        return cudaSuccess;
    ce_merge_kernel<R><<<(unsigned)((rows + 127) / 128), 128, 0, stream>>>(parts, p, rows, whole);
    return cudaGetLastError();
}

/* ---- boxes of an all-to-all ---------------------------------------------------------------- */

/*
 * The rank that receives has a list of boxes (RtBox): rows [src_row, + rows) of a peer become
 * its rows [dst_row, ..), in runs of columns (RtColRun). A message holds the boxes one after
 * another, each row by row, of a row its runs: [box][row][run][column]. The sender packs with
 * the receiver's boxes that name it, from (src_row, run.src); the receiver unpacks with the
 * same boxes to (dst_row, run.dst). So each needs, for its side, a list of
 */
struct MoveBox {
    int64_t row, rows;                  // of the matrix
    int64_t at, width;                  // first number in the buffer; numbers of a row
    int run, nruns;
};
struct MoveRun { int64_t col, at, n; }; // first column; first number within the box's row

/* A table of boxes on the device. unit: bytes that all places and lengths are multiples of. */
struct MoveBoxes {
    const MoveBox *box; const MoveRun *run;
    int nboxes, unit;
    int64_t most;                       // rows of the largest box
};

/* Host: fills at and width of boxes that lie behind one another from number `at` of the
 * buffer on, and at of their runs; returns the number behind the last. */
inline int64_t move_boxes_place(MoveBox *box, int nboxes, MoveRun *run, int64_t at)
{
    for (int i = 0; i < nboxes; i++) {
        box[i].at = at;
        box[i].width = 0;
        for (int k = box[i].run; k < box[i].run + box[i].nruns; k++) {
            run[k].at = box[i].width;
            box[i].width += run[k].n;
        }
        at += box[i].rows * box[i].width;
    }
    return at;
}

/* Host: unit and `most` of a placed list whose matrix has numbers of `size` bytes, ld of them
 * from row to row. box and run of *b are left to the caller, who copies the lists. */
inline void move_boxes_measure(const MoveBox *box, int nboxes, const MoveRun *run, int64_t ld,
                               int size, MoveBoxes *b)
{
    int64_t bits = ld;
    b->most = 0;
    for (int i = 0; i < nboxes; i++) {
        bits |= box[i].at | box[i].width;
        b->most = box[i].rows > b->most ? box[i].rows : b->most;
        for (int k = box[i].run; k < box[i].run + box[i].nruns; k++)
            bits |= run[k].col | run[k].at | run[k].n;
    }
    b->nboxes = nboxes;
    b->unit = 16;
    while (b->unit > size && bits * size % b->unit)
        b->unit /= 2;
}

/* Block (32 columns at once, 8 rows); U is one unit, 1 << shift numbers. */
template <typename U>
__global__ void __launch_bounds__(256)
move_boxes_kernel(MoveBoxes b, int shift, U *matrix, int64_t ld, U *buffer, bool pack)
{
    const MoveBox box = b.box[blockIdx.y];
    const int64_t width = box.width >> shift;
    for (int64_t row = blockIdx.x * 8 + threadIdx.y; row < box.rows; row += gridDim.x * 8) {
        U *packed = buffer + (box.at >> shift) + row * width;
        U *whole = matrix + (box.row + row) * ld;
        int k = box.run;
        for (int64_t c = threadIdx.x; c < width; c += 32) {
            while (k + 1 < box.run + box.nruns && b.run[k + 1].at >> shift <= c)
                k++;
            U *place = whole + (b.run[k].col >> shift) + (c - (b.run[k].at >> shift));
            if (pack)
                packed[c] = *place;
            else
                *place = packed[c];
        }
    }
}

template <typename U>
inline cudaError_t move_boxes_by(const MoveBoxes &b, int size, void *matrix, int64_t ld,
                                 void *buffer, bool pack, cudaStream_t stream)
{
    int shift = 0;
    while ((size << shift) < (int)sizeof(U))
        shift++;
    int64_t blocks = (b.most + 7) / 8;
    dim3 grid((unsigned)(blocks < 4096 ? blocks : 4096), (unsigned)b.nboxes);
    move_boxes_kernel<U><<<grid, dim3(32, 8), 0, stream>>>(b, shift, (U *)matrix, ld >> shift,
                                                           (U *)buffer, pack);
    return cudaGetLastError();
}

/* pack: boxes of `matrix` (numbers of `size` bytes, ld of them from row to row) -> buffer; else
 * back. Fastest where both are aligned to 16 bytes; boxes do not overlap; at most 65535. */
inline cudaError_t move_boxes(MoveBoxes b, int size, void *matrix, int64_t ld, void *buffer,
                              bool pack, cudaStream_t stream)
{
    if (b.nboxes <= 0 || b.most <= 0)
        return cudaSuccess;
    while (((uintptr_t)matrix | (uintptr_t)buffer) % (unsigned)b.unit)
        b.unit /= 2;
    switch (b.unit) {
    case 16: return move_boxes_by<uint4>(b, size, matrix, ld, buffer, pack, stream);
    case 8:  return move_boxes_by<uint2>(b, size, matrix, ld, buffer, pack, stream);
    case 4:  return move_boxes_by<unsigned>(b, size, matrix, ld, buffer, pack, stream);
    default: return move_boxes_by<unsigned short>(b, size, matrix, ld, buffer, pack, stream);
    }
}

#endif
