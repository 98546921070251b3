/*
 * embed.cuh - look-up in a rank's block of a table, and its gradient.
 *
 *     y[r, :] = E[ids[r] - base, :] where 0 <= ids[r] - base < brows, else 0
 *     dE[ids[r] - base, :] += dy[r, :] for the same rows
 *
 * The gradient without atomics and in a fixed order: the host sorts the pass's rows by id
 * (counting, stable), and a block adds up all rows of one id. Ids that do not occur cost
 * nothing, neither time nor memory.
 */
#ifndef EMBED_CUH
#define EMBED_CUH

#include "rows.cuh"

/* One warp a row. */
template <typename E, typename Y, bool VECTOR>
__global__ void __launch_bounds__(256)
embed_kernel(const E *table, int64_t ld_table, const int *ids, int64_t base, int64_t brows,
             Y *y, int64_t ld_y, int64_t rows, int64_t cols)
{
    constexpr int n = VECTOR ? Pack<Y>::n : 1;
    int64_t r = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (r >= rows)                      // guard
        return;
    int64_t row = ids[r] - base;
    bool here = row >= 0 && row < brows;
    for (int64_t c = (int64_t)(threadIdx.x % 32) * n; c < cols; c += 32 * n) {
        Some<Y, VECTOR> x;
#pragma unroll
        for (int i = 0; i < n; i++)
            x.at[i] = 0;
        if (here) {
            if constexpr (VECTOR && sizeof(E) == sizeof(Y)) {
                load_some<Y, true>(&x, (const Y *)(const void *)(table + row * ld_table + c));
            } else {
#pragma unroll
                for (int i = 0; i < n; i++)
                    x.at[i] = (real_of<Y>)widen(table[row * ld_table + c + i]);
            }
        }
        store_some<Y, VECTOR>(y + r * ld_y + c, x);
    }
}

/* table [brows, cols] stored as E, y [rows, cols] stored as Y, overwritten; ids [rows] on the
 * device. A table of the same type is best: then 16 bytes are read at once. */
template <typename E, typename Y>
inline cudaError_t embed_forward(const E *table, int64_t ld_table, const int *ids, int64_t base,
                                 int64_t brows, Y *y, int64_t ld_y, int64_t rows, int64_t cols,
                                 cudaStream_t stream)
{
    if (rows <= 0)
        return cudaSuccess;
    unsigned blocks = (unsigned)((rows + 7) / 8);
    bool vector = rows_aligned(y, ld_y) && cols % Pack<Y>::n == 0
                  && (sizeof(E) != sizeof(Y) || rows_aligned(table, ld_table));
    if (vector)
        embed_kernel<E, Y, true><<<blocks, 256, 0, stream>>>(table, ld_table, ids, base, brows, y,
                                                             ld_y, rows, cols);
    else
        embed_kernel<E, Y, false><<<blocks, 256, 0, stream>>>(table, ld_table, ids, base, brows,
                                                              y, ld_y, rows, cols);
    return cudaGetLastError();
}

/* ---- gradient ----------------------------------------------------------------------- */

/* Rows order[first .. first + n) of the pass have id base + row. */
struct EmbedOwner { int row, first, n; };

/*
 * Host: order [rows] and owners [rows] at most, in the order of first appearance; returns how
 * many owners. count: scratch of brows ints, all 0 before and after. Ids outside of the block
 * appear in neither.
 */
inline int embed_sort(const int *ids, int64_t rows, int64_t base, int64_t brows, int *count,
                      int *order, EmbedOwner *owners)
{
    int nowners = 0, at = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = ids[r] - base;
        if (row < 0 || row >= brows)
            continue;
        if (count[row] == 0) {
            count[row] = ++nowners;
            owners[nowners - 1] = { (int)row, 0, 0 };
        }
        owners[count[row] - 1].n++;
    }
    for (int i = 0; i < nowners; i++) {
        owners[i].first = at;
        at += owners[i].n;
        owners[i].n = 0;
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = ids[r] - base;
        if (row < 0 || row >= brows)
            continue;
        EmbedOwner *o = &owners[count[row] - 1];
        order[o->first + o->n++] = (int)r;
    }
    for (int i = 0; i < nowners; i++)
        count[owners[i].row] = 0;
    return nowners;
}

constexpr int EMBED_PARTS = 8;          // threads that share the rows of an element
constexpr int EMBED_COLS = 4;           // columns of a thread, 32 apart

/* Block (owner, 128 columns): thread (x, y) adds up part y of the owner's rows, in order;
 * then the parts are added up, in order. */
template <typename S>
__global__ void __launch_bounds__(32 * EMBED_PARTS)
embed_backward_kernel(const S *dy, int64_t ld_dy, const int *order, const EmbedOwner *owners,
                      real_of<S> *de, int64_t ld_de, int64_t cols)
{
    typedef real_of<S> R;
    __shared__ R part[EMBED_PARTS][32 * EMBED_COLS];
    const EmbedOwner o = owners[blockIdx.x];
    int64_t c0 = (int64_t)blockIdx.y * 32 * EMBED_COLS;
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    R sum[EMBED_COLS] = {};
    int to = (int)((int64_t)o.n * (y + 1) / EMBED_PARTS);
    for (int i = (int)((int64_t)o.n * y / EMBED_PARTS); i < to; i++) {
        const S *row = dy + order[o.first + i] * ld_dy;
#pragma unroll
        for (int k = 0; k < EMBED_COLS; k++) {
            int64_t c = c0 + x + 32 * k;
            if (c < cols)               // guard
                sum[k] += widen(row[c]);
        }
    }
#pragma unroll
    for (int k = 0; k < EMBED_COLS; k++)
        part[y][x + 32 * k] = sum[k];
    __syncthreads();
    int t = y * 32 + x;
    if (t >= 32 * EMBED_COLS || c0 + t >= cols)     // guard
        return;
    R all = 0;
#pragma unroll
    for (int i = 0; i < EMBED_PARTS; i++)
        all += part[i][t];
    de[o.row * ld_de + c0 + t] += all;
}

/* de [brows, cols] += rows of dy [rows, cols]; order and owners: embed_sort's, copied to the
 * device by the caller before this runs. de is not cleared. */
template <typename S>
inline cudaError_t embed_backward(const S *dy, int64_t ld_dy, const int *order,
                                  const EmbedOwner *owners, int nowners, real_of<S> *de,
                                  int64_t ld_de, int64_t cols, cudaStream_t stream)
{
    if (nowners <= 0 || cols <= 0)
        return cudaSuccess;
    dim3 grid((unsigned)nowners, (unsigned)((cols + 32 * EMBED_COLS - 1) / (32 * EMBED_COLS)));
    embed_backward_kernel<S><<<grid, dim3(32, EMBED_PARTS), 0, stream>>>(dy, ld_dy, order, owners,
                                                                         de, ld_de, cols);
    return cudaGetLastError();
}

#endif
