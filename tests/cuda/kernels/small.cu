/* small.cu - every kernel of the other templates for every type, to be compiled. */
#include "embed.cuh"
#include "loss.cuh"
#include "moves.cuh"
#include "optimizer.cuh"
#include "rope.cuh"

typedef __nv_bfloat16 bf16;

#define STORED(S) \
    template cudaError_t embed_forward(const S *, int64_t, const int *, int64_t, int64_t, S *, \
                                       int64_t, int64_t, int64_t, cudaStream_t); \
    template cudaError_t embed_backward(const S *, int64_t, const int *, const EmbedOwner *, int, \
                                        real_of<S> *, int64_t, int64_t, cudaStream_t); \
    template cudaError_t ce_stat(const S *, int64_t, int64_t, int64_t, const int *, int64_t, \
                                 int64_t, real_of<S> *, cudaStream_t); \
    template cudaError_t ce(S *, int64_t, int64_t, int64_t, const real_of<S> *, const int *, int, \
                            int64_t, int64_t, double, double *, double *, cudaStream_t); \
    template cudaError_t rope(const RopeSpec &, const S *, S *, const real_of<S> *, const int *, \
                              int64_t, cudaStream_t); \
    template cudaError_t move_copy(const S *, int64_t, S *, int64_t, int64_t, int64_t, bool, \
                                   cudaStream_t); \
    template cudaError_t colsum_rows(const S *, int64_t, int64_t, int64_t, real_of<S> *, int, \
                                     real_of<S> *, bool, cudaStream_t); \
    template cudaError_t move_find(const S *, int64_t, int64_t, int64_t, unsigned long long *, \
                                   cudaStream_t);
STORED(float)
STORED(double)
STORED(bf16)

template cudaError_t embed_forward(const float *, int64_t, const int *, int64_t, int64_t, bf16 *,
                                   int64_t, int64_t, int64_t, cudaStream_t);
template cudaError_t rope(const RopeSpec &, const float *, bf16 *, const float *, const int *,
                          int64_t, cudaStream_t);
template cudaError_t rope(const RopeSpec &, const bf16 *, float *, const float *, const int *,
                          int64_t, cudaStream_t);
template cudaError_t move_copy(const float *, int64_t, bf16 *, int64_t, int64_t, int64_t, bool,
                               cudaStream_t);
template cudaError_t move_copy(const bf16 *, int64_t, float *, int64_t, int64_t, int64_t, bool,
                               cudaStream_t);

#define COMPUTED(R) \
    template cudaError_t rope_table(R *, int64_t, int, double, cudaStream_t); \
    template cudaError_t merge(const R *, int, int64_t, int, const uint8_t *, R *const *, \
                               int64_t, cudaStream_t); \
    template cudaError_t ce_merge(const R *, int, int64_t, R *, cudaStream_t); \
    template cudaError_t opt_adamw(const OptPiece *, int64_t, const OptStep &, R *, const R *, \
                                   R *, R *, bf16 *, cudaStream_t); \
    template cudaError_t opt_sgd(const OptPiece *, int64_t, const OptStep &, R *, const R *, \
                                 R *, bf16 *, cudaStream_t); \
    template cudaError_t opt_squares(const OptPiece *, int64_t, const R *, double *, double *, \
                                     cudaStream_t);
COMPUTED(float)
COMPUTED(double)

/* What row programs are made of. */
template <typename S> __global__ void rows_kernel(const S *x, S *y, real_of<S> *partial)
{
    typedef real_of<S> R;
    __shared__ R scratch[8];
    Pack<S> p = load_pack(x + threadIdx.x * Pack<S>::n);
    R mean, m2;
    group_moments<256>(p.at, Pack<S>::n, 256 * Pack<S>::n, scratch, &mean, &m2);
    for (int i = 0; i < Pack<S>::n; i++) {
        R z = (p.at[i] - mean) * op_rsqrt(m2);
        z = op_erf(z) + op_tanh(z) + op_sigmoid(z) + op_exp(z) + op_pow(z, (R)1.5) + op_sin(z);
        unsigned word = dropout_word(1, 2, 3, threadIdx.x, (unsigned)i);
        p.at[i] = dropout(z + op_power<3>(z), word, 1u << 30, (R)2);
    }
    store_pack(y + threadIdx.x * Pack<S>::n, p);
    colsum_zero(100, partial);
    colsum_add<256, Pack<S>::n>(p.at, 0, 256 * Pack<S>::n, 100, partial);
}
template __global__ void rows_kernel(const float *, float *, float *);
template __global__ void rows_kernel(const double *, double *, double *);
template __global__ void rows_kernel(const bf16 *, bf16 *, float *);
