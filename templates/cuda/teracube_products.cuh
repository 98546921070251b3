/*
 * teracube_products.cuh - matrix products by cuBLAS, and by cuBLASLt where it ends them too.
 *
 *     gemm        C (+)= op(A) op(B)
 *     gemm_bias   C = op(A) op(B) + bias
 *     gemm_gelu   C = gelu(op(A) op(B) + bias); kept = op(A) op(B) + bias, if it is asked for
 *
 * All row-major with leading dimensions in numbers, bias [n]. gelu is the one with tanh.
 * cuBLAS counts columns first: it makes C^T = op(B)^T op(A)^T of what lies there.
 */
#ifndef TERACUBE_PRODUCTS_CUH
#define TERACUBE_PRODUCTS_CUH

inline cudaDataType type_of(const float *) { return CUDA_R_32F; }
inline cudaDataType type_of(const double *) { return CUDA_R_64F; }
inline cudaDataType type_of(const bf16 *) { return CUDA_R_16BF; }

template <typename A, typename B, typename C>
inline void gemm_same(Ctx *c, const A *a, int64_t lda, bool ta, const B *b, int64_t ldb, bool tb,
                      C *out, int64_t ldc, int64_t m, int64_t n, int64_t k, bool add)
{
    const double one = 1, beta = add ? 1 : 0;
    const float one_f = 1, beta_f = add ? 1 : 0;
    bool wide = sizeof(C) == 8;
    const void *alpha = wide ? (const void *)&one : &one_f;
    const void *more = wide ? (const void *)&beta : &beta_f;
    check(c, "product", cublasGemmEx(c->blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                                     ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)n, (int)m, (int)k, alpha,
                                     b, type_of(b), (int)ldb, a, type_of(a), (int)lda, more, out,
                                     type_of(out), (int)ldc,
                                     wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                     CUBLAS_GEMM_DEFAULT));
}

template <typename T, typename C>
inline void gemm(Ctx *c, const T *a, int64_t lda, bool ta, const T *b, int64_t ldb, bool tb,
                 C *out, int64_t ldc, int64_t m, int64_t n, int64_t k, bool add)
{
    gemm_same(c, a, lda, ta, b, ldb, tb, out, ldc, m, n, k, add);
}

/* Operands of two types: the wide one is rounded first, as the tensor cores would. */
template <typename C>
inline void gemm(Ctx *c, const float *a, int64_t lda, bool ta, const bf16 *b, int64_t ldb, bool tb,
                 C *out, int64_t ldc, int64_t m, int64_t n, int64_t k, bool add)
{
    bf16 *x = (bf16 *)(void *)c->scratch;
    int64_t rows = ta ? k : m, cols = ta ? m : k;
    check(c, "conversion", move_copy(a, lda, x, cols, rows, cols, false, c->compute));
    gemm_same(c, x, cols, ta, b, ldb, tb, out, ldc, m, n, k, add);
}

template <typename C>
inline void gemm(Ctx *c, const bf16 *a, int64_t lda, bool ta, const float *b, int64_t ldb, bool tb,
                 C *out, int64_t ldc, int64_t m, int64_t n, int64_t k, bool add)
{
    bf16 *x = (bf16 *)(void *)c->scratch;
    int64_t rows = tb ? n : k, cols = tb ? k : n;
    check(c, "conversion", move_copy(b, ldb, x, cols, rows, cols, false, c->compute));
    gemm_same(c, a, lda, ta, x, cols, tb, out, ldc, m, n, k, add);
}

/* ---- products that end in a bias or GELU --------------------------------------------------- */

/* The same behind a product of cuBLAS. `kept` may be `c` where nobody wants it. */
template <typename S, bool GELU>
__global__ void __launch_bounds__(256)
product_end_kernel(const S *bias, S *c, int64_t ldc, S *kept, int64_t ld_kept, int64_t rows,
                   int64_t cols)
{
    typedef real_of<S> R;
    for (int64_t i = blockIdx.x * (int64_t)256 + threadIdx.x; i < rows * cols;
         i += gridDim.x * (int64_t)256) {
        int64_t row = i / cols, col = i % cols;
        R x = widen(c[row * ldc + col]) + widen(bias[col]);
        if (kept)
            kept[row * ld_kept + col] = narrow<S>(x);
        if (GELU)
            x = (R)0.5 * x * (1 + op_tanh((R)0.7978845608028654 * (x + (R)0.044715 * x * x * x)));
        c[row * ldc + col] = narrow<S>(x);
    }
}

/* What the library was asked, and its answer: how it does it, or that it cannot. */
struct EndedKey {
    int64_t m, n, k, lda, ldb, ldc, ld_kept;
    int type, ta, tb, epilogue, aligned[5], pad;
};

struct EndedProduct {
    EndedKey key;
    bool can;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    EndedProduct *next;
};

inline int alignment_of(const void *p)
{
    uintptr_t low = (uintptr_t)p & (~(uintptr_t)p + 1);
    return low > 0 && low < 256 ? (int)low : 256;
}

/* The pointers count only by their alignment. */
inline void point(Ctx *c, EndedProduct *e, const void *bias, void *kept)
{
    check(c, "product", cublasLtMatmulDescSetAttribute(
        e->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    if (kept)
        check(c, "product", cublasLtMatmulDescSetAttribute(
            e->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &kept, sizeof kept));
}

inline void ask_library(Ctx *c, EndedProduct *e, const void *bias, void *kept)
{
    const EndedKey &k = e->key;
    const cudaDataType type = (cudaDataType)k.type;
    const int opa = k.ta ? CUBLAS_OP_T : CUBLAS_OP_N, opb = k.tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t how = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    /* The library's first operand is B. */
    bool made = cublasLtMatmulDescCreate(&e->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0 &&
        cublasLtMatrixLayoutCreate(&e->b, type, (uint64_t)(k.tb ? k.k : k.n),
                                   (uint64_t)(k.tb ? k.n : k.k), k.ldb) == 0 &&
        cublasLtMatrixLayoutCreate(&e->a, type, (uint64_t)(k.ta ? k.m : k.k),
                                   (uint64_t)(k.ta ? k.k : k.m), k.lda) == 0 &&
        cublasLtMatrixLayoutCreate(&e->c, type, (uint64_t)k.n, (uint64_t)k.m, k.ldc) == 0 &&
        cublasLtMatmulPreferenceCreate(&how) == 0;
    if (!check(c, "product", made ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED))
        return;
    auto set = [&](cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes) {
        check(c, "product", cublasLtMatmulDescSetAttribute(e->desc, what, value, bytes));
    };
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t bytes) {
        check(c, "product", cublasLtMatmulPreferenceSetAttribute(how, what, value, bytes));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, &opb, sizeof opb);
    set(CUBLASLT_MATMUL_DESC_TRANSB, &opa, sizeof opa);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, &k.epilogue, sizeof k.epilogue);
    point(c, e, bias, kept);
    if (kept)
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k.ld_kept, sizeof k.ld_kept);
    const uint64_t bytes = c->lt_bytes;
    const uint32_t a = (uint32_t)k.aligned[0], b = (uint32_t)k.aligned[1];
    const uint32_t out = (uint32_t)k.aligned[2];
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out);
    e->can = cublasLtMatmulAlgoGetHeuristic(c->lt, e->desc, e->b, e->a, e->c, e->c, how, 1, &found,
                                            &n) == CUBLAS_STATUS_SUCCESS && n > 0;
    if (e->can)
        e->algo = found.algo;
    cublasLtMatmulPreferenceDestroy(how);
}

inline EndedProduct *ended_product(Ctx *c, const EndedKey &key, const void *bias, void *kept)
{
    EndedProduct *e = c->ended;
    while (e && memcmp(&e->key, &key, sizeof key) != 0)
        e = e->next;
    if (e)
        return e;
    e = (EndedProduct *)calloc(1, sizeof *e);
    e->key = key;
    e->next = c->ended;
    c->ended = e;
    ask_library(c, e, bias, kept);
    return e;
}

inline void free_ended(Ctx *c)
{
    while (c->ended) {
        EndedProduct *e = c->ended;
        c->ended = e->next;
        cublasLtMatmulDescDestroy(e->desc);
        cublasLtMatrixLayoutDestroy(e->a);
        cublasLtMatrixLayoutDestroy(e->b);
        cublasLtMatrixLayoutDestroy(e->c);
        free(e);
    }
}

/* Where the library has no such product, sizes that 8 does not divide say: two kernels. */
template <bool GELU, typename T>
inline void gemm_ended(Ctx *c, const T *a, int64_t lda, bool ta, const T *b, int64_t ldb, bool tb,
                       const T *bias, T *out, int64_t ldc, T *kept, int64_t ld_kept, int64_t m,
                       int64_t n, int64_t k)
{
    EndedKey key;
    memset(&key, 0, sizeof key);
    key = { m, n, k, lda, ldb, ldc, ld_kept, (int)type_of(a), ta, tb,
            !GELU ? CUBLASLT_EPILOGUE_BIAS
                  : kept ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS,
            { alignment_of(a), alignment_of(b), alignment_of(out), alignment_of(bias),
              alignment_of(kept) }, 0 };
    EndedProduct *e = ended_product(c, key, bias, kept);
    const float one = 1, none = 0;
    if (!e->can) {
        gemm_same(c, a, lda, ta, b, ldb, tb, out, ldc, m, n, k, false);
        product_end_kernel<T, GELU><<<blocks(c, m * n, 256), 256, 0, c->compute>>>(
            bias, out, ldc, kept, ld_kept, m, n);
        check(c, "product", cudaGetLastError());
        return;
    }
    point(c, e, bias, kept);
    check(c, "product", cublasLtMatmul(c->lt, e->desc, &one, b, e->b, a, e->a, &none, out, e->c,
                                       out, e->c, &e->algo, c->lt_space, c->lt_bytes,
                                       c->compute));
}

template <typename T>
inline void gemm_bias(Ctx *c, const T *a, int64_t lda, bool ta, const T *b, int64_t ldb, bool tb,
                      const T *bias, T *out, int64_t ldc, int64_t m, int64_t n, int64_t k)
{
    gemm_ended<false>(c, a, lda, ta, b, ldb, tb, bias, out, ldc, (T *)NULL, 0, m, n, k);
}

template <typename T>
inline void gemm_gelu(Ctx *c, const T *a, int64_t lda, bool ta, const T *b, int64_t ldb, bool tb,
                      const T *bias, T *out, int64_t ldc, int64_t m, int64_t n, int64_t k)
{
    gemm_ended<true>(c, a, lda, ta, b, ldb, tb, bias, out, ldc, (T *)NULL, 0, m, n, k);
}

template <typename T>
inline void gemm_gelu(Ctx *c, const T *a, int64_t lda, bool ta, const T *b, int64_t ldb, bool tb,
                      const T *bias, T *out, int64_t ldc, T *kept, int64_t ld_kept, int64_t m,
                      int64_t n, int64_t k)
{
    gemm_ended<true>(c, a, lda, ta, b, ldb, tb, bias, out, ldc, kept, ld_kept, m, n, k);
}

/* TUNING: what NVIDIA asks for: 32 MiB from Hopper on, else 4. */
enum { LT_HOPPER = 32 << 20, LT_OTHERS = 4 << 20 };

inline void take_products(Ctx *c)
{
    int major = 0;
    check(c, "this GPU", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                                c->device));
    c->lt_bytes = major >= 9 ? LT_HOPPER : LT_OTHERS;
    check(c, "cuBLASLt", cublasLtCreate(&c->lt));
    check(c, "scratch", cudaMalloc(&c->lt_space, c->lt_bytes));
}

#endif
