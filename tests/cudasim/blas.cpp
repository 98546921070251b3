/*
 * blas.cpp - the matrix products of cuBLAS and cuBLASLt, in plain loops.
 *
 * d = epilogue(alpha op(a) op(b) + beta c), computed in float (double for doubles) and
 * rounded once. Every operand's extent must lie in one allocation; the workspace counts
 * as written by each product that is given it.
 */
#include "sim.h"
#include "cublasLt.h"
#include "cuda_bf16.h"

/* ---- operands ----------------------------------------------------------- */

struct Mat {
    char *p;
    cudaDataType type;
    size_t rows, cols, ld;
    bool row_major;
    long long stride;                           // elements between the matrices of a batch
};

static size_t size_of(cudaDataType t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_16BF ? 2 : 4; }
static bool known(cudaDataType t)
{
    return t == CUDA_R_32F || t == CUDA_R_64F || t == CUDA_R_16BF;
}

template <class R> static R load(const char *p, cudaDataType t, size_t i)
{
    switch (t) {
    case CUDA_R_64F:  return (R)((const double *)p)[i];
    case CUDA_R_16BF: return (R)cudasim_from_bf16(((const unsigned short *)p)[i]);
    default:          return (R)((const float *)p)[i];
    }
}

template <class R> static void store(char *p, cudaDataType t, size_t i, R v)
{
    switch (t) {
    case CUDA_R_64F:  ((double *)p)[i] = (double)v; break;
    case CUDA_R_16BF: ((unsigned short *)p)[i] = cudasim_to_bf16((float)v); break;
    default:          ((float *)p)[i] = (float)v;
    }
}

static size_t index_of(const Mat &m, size_t i, size_t j)
{
    return m.row_major ? i * m.ld + j : j * m.ld + i;
}

static bool check(const Mat &m, int batch, int device, const char *who)
{
    size_t width = m.row_major ? m.cols : m.rows, height = m.row_major ? m.rows : m.cols;
    for (int i = 0; i < batch; i += batch > 1 ? batch - 1 : 1)
        if (!check_device_rows(m.p + (long long)i * m.stride * (long long)size_of(m.type), height,
                               width * size_of(m.type), m.ld * size_of(m.type), device, who))
            return false;
    return true;
}

static void touch(const Op &op, const Mat &m, size_t batch, bool write)
{
    size_t s = size_of(m.type);
    size_t width = m.row_major ? m.cols : m.rows, height = m.row_major ? m.rows : m.cols;
    for (size_t i = 0; race_range && i < height; i++)
        race_range(op, m.p + ((long long)batch * m.stride + (long long)(i * m.ld)) * (long long)s,
                   width * s, write);
}

/* ---- the product -------------------------------------------------------- */

struct Product {
    Mat a, b, c, d;
    bool ta, tb;
    size_t m, n, k;
    int batch;
    bool device_scalars, doubles;               // of alpha and beta
    double alpha, beta;
    const void *palpha, *pbeta;
    int epilogue;
    const char *bias;
    cudaDataType bias_type;
    char *aux;
    size_t aux_ld;
    void *workspace;
    size_t workspace_bytes;
};

static double scalar(const void *p, bool doubles)
{
    return doubles ? *(const double *)p : (double)*(const float *)p;
}

// cuBLASLt's gelu is the one with tanh.
static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

template <class R> static void multiply(const Op &op, const Product &q, size_t batch, R alpha,
                                        R beta)
{
    Mat a = q.a, b = q.b, c = q.c, d = q.d;
    for (Mat *x : { &a, &b, &c, &d })
        x->p += (long long)batch * x->stride * (long long)size_of(x->type);
    std::vector<R> left(q.m * q.k), sum(q.m);   // op(a), its columns together
    for (size_t k = 0; k < q.k; k++)
        for (size_t i = 0; i < q.m; i++)
            left[k * q.m + i] = load<R>(a.p, a.type, q.ta ? index_of(a, k, i) : index_of(a, i, k));
    for (size_t j = 0; j < q.n; j++) {
        std::fill(sum.begin(), sum.end(), (R)0);
        for (size_t k = 0; k < q.k; k++) {
            R v = load<R>(b.p, b.type, q.tb ? index_of(b, j, k) : index_of(b, k, j));
            const R *col = &left[k * q.m];
            for (size_t i = 0; i < q.m; i++)
                sum[i] += col[i] * v;
        }
        for (size_t i = 0; i < q.m; i++) {
            R v = alpha * sum[i];
            if (beta != 0)
                v += beta * load<R>(c.p, c.type, index_of(c, i, j));
            if (q.epilogue & CUBLASLT_EPILOGUE_BIAS)
                v += load<R>(q.bias, q.bias_type, i);
            if (q.aux)
                store(q.aux, d.type, j * q.aux_ld + i, v);
            if (q.epilogue & CUBLASLT_EPILOGUE_RELU)
                v = v > 0 ? v : 0;
            if (q.epilogue & CUBLASLT_EPILOGUE_GELU)
                v = (R)gelu((double)v);
            store(d.p, d.type, index_of(d, i, j), v);
        }
    }
    (void)op;
}

static void run(const Op &op, const Product &q)
{
    double alpha = q.alpha, beta = q.beta;
    if (q.device_scalars) {
        size_t bytes = q.doubles ? 8 : 4;
        touches(op, q.palpha, bytes, false);
        touches(op, q.pbeta, bytes, false);
        alpha = scalar(q.palpha, q.doubles);
        beta = scalar(q.pbeta, q.doubles);
    }
    if (q.workspace_bytes) {                    // used for nothing, but used
        touches(op, q.workspace, q.workspace_bytes, true);
        memset(q.workspace, 0xff, q.workspace_bytes);
    }
    if (q.epilogue & CUBLASLT_EPILOGUE_BIAS)
        touches(op, q.bias, q.m * size_of(q.bias_type), false);
    for (size_t i = 0; i < (size_t)q.batch; i++) {
        touch(op, q.a, i, false);
        touch(op, q.b, i, false);
        if (beta != 0)
            touch(op, q.c, i, false);
        touch(op, q.d, i, true);
        if (q.aux)
            touch(op, { q.aux, q.d.type, q.m, q.n, q.aux_ld, false, 0 }, 0, true);
        if (q.d.type == CUDA_R_64F)
            multiply<double>(op, q, i, alpha, beta);
        else
            multiply<float>(op, q, i, (float)alpha, (float)beta);
    }
}

static bool shape(const Mat &m, size_t rows, size_t cols)
{
    size_t width = m.row_major ? cols : rows;
    return m.rows == rows && m.cols == cols && m.ld >= std::max<size_t>(1, width);
}

static cublasStatus_t enqueue(const char *who, Product q, cudaStream_t stream)
{
    CUstream_st *s = resolve(stream);
    if (!s)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (q.m == 0 || q.n == 0 || q.batch == 0)
        return CUBLAS_STATUS_SUCCESS;
    for (const Mat *x : { &q.a, &q.b, &q.c, &q.d })
        if (!known(x->type))
            return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!shape(q.a, q.ta ? q.k : q.m, q.ta ? q.m : q.k) ||
        !shape(q.b, q.tb ? q.n : q.k, q.tb ? q.k : q.n) || !shape(q.c, q.m, q.n) ||
        !shape(q.d, q.m, q.n)) {
        report("%s: shapes or leading dimensions do not fit: m %zu, n %zu, k %zu", who, q.m, q.n,
               q.k);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    auto name = [&](const char *x) { return format("%s: %s", who, x); };
    bool reads_c = q.device_scalars || q.beta != 0;
    if (!check(q.a, q.batch, s->device, name("A").c_str()) ||
        !check(q.b, q.batch, s->device, name("B").c_str()) ||
        (reads_c && !check(q.c, q.batch, s->device, name("C").c_str())) ||
        !check(q.d, q.batch, s->device, name(q.c.p == q.d.p ? "C" : "D").c_str()) ||
        !check_device_range(q.workspace, q.workspace_bytes, s->device,
                            name("workspace").c_str()))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (q.epilogue & CUBLASLT_EPILOGUE_BIAS &&
        !check_device_range(q.bias, q.m * size_of(q.bias_type), s->device, name("bias").c_str()))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!q.device_scalars) {
        q.alpha = scalar(q.palpha, q.doubles);
        q.beta = scalar(q.pbeta, q.doubles);
    }
    Op op;
    op.name = who;
    op.run = [=](Op &o) { run(o, q); };
    enqueue_op(s, std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- cuBLAS ------------------------------------------------------------- */

struct cublasContext {
    cudaStream_t stream = nullptr;
    bool device_scalars = false;
    void *workspace = nullptr;
    size_t bytes = 0;
};

static Mat operand(const void *p, cudaDataType t, bool transposed, int rows, int cols, int ld,
                   long long stride)
{
    if (transposed)
        std::swap(rows, cols);
    return { (char *)p, t, (size_t)rows, (size_t)cols, (size_t)std::max(ld, 0), false, stride };
}

static cublasStatus_t gemm(const char *who, cublasHandle_t h, cublasOperation_t opa,
                           cublasOperation_t opb, int m, int n, int k, const void *alpha,
                           const void *a, cudaDataType ta, int lda, long long sa, const void *b,
                           cudaDataType tb, int ldb, long long sb, const void *beta, void *c,
                           cudaDataType tc, int ldc, long long sc, int batch,
                           cublasComputeType_t compute)
{
    if (!h)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    bool doubles = tc == CUDA_R_64F;
    if (ta != tb || (doubles != (compute == CUBLAS_COMPUTE_64F)) ||
        (ta == CUDA_R_32F && tc == CUDA_R_16BF))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    Product q = {};
    q.ta = opa != CUBLAS_OP_N;
    q.tb = opb != CUBLAS_OP_N;
    q.m = (size_t)m, q.n = (size_t)n, q.k = (size_t)k;
    q.a = operand(a, ta, q.ta, m, k, lda, sa);
    q.b = operand(b, tb, q.tb, k, n, ldb, sb);
    q.c = q.d = operand(c, tc, false, m, n, ldc, sc);
    q.batch = batch;
    q.device_scalars = h->device_scalars;
    q.doubles = doubles;
    q.palpha = alpha, q.pbeta = beta;
    q.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    q.workspace = h->workspace, q.workspace_bytes = h->bytes;
    return enqueue(who, q, h->stream);
}

extern "C" {

const char *cublasGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS:          return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:  return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:     return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:    return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:    return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:                             return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}
const char *cublasGetStatusString(cublasStatus_t s) { return cublasGetStatusName(s); }

cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    *h = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t h)
{
    cudaDeviceSynchronize();
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t h, int *v)
{
    (void)h;
    *v = 120400;
    return CUBLAS_STATUS_SUCCESS;
}

// Also goes back to the default workspace, as in cuBLAS.
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s)
{
    h->stream = s;
    h->workspace = nullptr;
    h->bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t h, cudaStream_t *s)
{
    *s = h->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t h, void *p, size_t bytes)
{
    if (bytes && (uintptr_t)p % 256)
        return CUBLAS_STATUS_INVALID_VALUE;
    h->workspace = p;
    h->bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t m)
{
    (void)h, (void)m;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t h, cublasPointerMode_t m)
{
    h->device_scalars = m == CUBLAS_POINTER_MODE_DEVICE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm(cublasHandle_t h, cublasOperation_t opa, cublasOperation_t opb, int m,
                           int n, int k, const float *alpha, const float *a, int lda,
                           const float *b, int ldb, const float *beta, float *c, int ldc)
{
    return gemm("cublasSgemm", h, opa, opb, m, n, k, alpha, a, CUDA_R_32F, lda, 0, b, CUDA_R_32F,
                ldb, 0, beta, c, CUDA_R_32F, ldc, 0, 1, CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasDgemm(cublasHandle_t h, cublasOperation_t opa, cublasOperation_t opb, int m,
                           int n, int k, const double *alpha, const double *a, int lda,
                           const double *b, int ldb, const double *beta, double *c, int ldc)
{
    return gemm("cublasDgemm", h, opa, opb, m, n, k, alpha, a, CUDA_R_64F, lda, 0, b, CUDA_R_64F,
                ldb, 0, beta, c, CUDA_R_64F, ldc, 0, 1, CUBLAS_COMPUTE_64F);
}

cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t h, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k,
    const float *alpha, const float *a, int lda, long long stride_a, const float *b, int ldb,
    long long stride_b, const float *beta, float *c, int ldc, long long stride_c, int batch)
{
    return gemm("cublasSgemmStridedBatched", h, opa, opb, m, n, k, alpha, a, CUDA_R_32F, lda,
                stride_a, b, CUDA_R_32F, ldb, stride_b, beta, c, CUDA_R_32F, ldc, stride_c, batch,
                CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t opa, cublasOperation_t opb, int m,
                            int n, int k, const void *alpha, const void *a, cudaDataType ta,
                            int lda, const void *b, cudaDataType tb, int ldb, const void *beta,
                            void *c, cudaDataType tc, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algo)
{
    (void)algo;
    return gemm("cublasGemmEx", h, opa, opb, m, n, k, alpha, a, ta, lda, 0, b, tb, ldb, 0, beta, c,
                tc, ldc, 0, 1, compute);
}

cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t h, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType ta, int lda, long long stride_a,
    const void *b, cudaDataType tb, int ldb, long long stride_b, const void *beta, void *c,
    cudaDataType tc, int ldc, long long stride_c, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t algo)
{
    (void)algo;
    return gemm("cublasGemmStridedBatchedEx", h, opa, opb, m, n, k, alpha, a, ta, lda, stride_a, b,
                tb, ldb, stride_b, beta, c, tc, ldc, stride_c, batch, compute);
}

/* ---- cuBLASLt ----------------------------------------------------------- */

struct cublasLtContext { int unused; };
struct cublasLtMatmulDescOpaque {
    cublasComputeType_t compute;
    cudaDataType scale;
    int pointer_mode = 0;
    int ta = 0, tb = 0;
    int epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
    void *aux = nullptr;
    int64_t aux_ld = 0;
    int bias_type = -1;
};
struct cublasLtMatrixLayoutOpaque {
    cudaDataType type;
    int order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride;
};
struct cublasLtMatmulPreferenceOpaque { uint64_t workspace = 0; };

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType scale)
{
    *d = new cublasLtMatmulDescOpaque();
    (*d)->compute = compute;
    (*d)->scale = scale;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *field, size_t size, const void *value, size_t bytes)
{
    if (bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attr,
                                              const void *value, size_t bytes)
{
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:   return set(&d->compute, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:     return set(&d->scale, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:   return set(&d->pointer_mode, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:         return set(&d->ta, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:         return set(&d->tb, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:       return set(&d->epilogue, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:   return set(&d->bias, 8, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(&d->bias_type, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&d->aux, 8, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:      return set(&d->aux_ld, 8, value, bytes);
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = new cublasLtMatrixLayoutOpaque{ type, CUBLASLT_ORDER_COL, rows, cols, ld, 1, 0 };
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *value, size_t bytes)
{
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:        return set(&l->type, 4, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:       return set(&l->order, 4, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:        return set(&l->rows, 8, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:        return set(&l->cols, 8, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:          return set(&l->ld, 8, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(&l->batch, 4, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(&l->stride, 8, value, bytes);
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new cublasLtMatmulPreferenceOpaque();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *value, size_t bytes)
{
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&p->workspace, 8, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// With an epilogue: not of doubles; an auxiliary matrix and 16-bit operands by eights.
static bool lt_can(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t out)
{
    bool aux = (d->epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX;
    if (d->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return true;
    if (out->type == CUDA_R_64F || (aux && (d->aux_ld % 8 || (uintptr_t)d->aux % 16)))
        return false;
    return out->type != CUDA_R_16BF || (a->ld % 8 == 0 && b->ld % 8 == 0 && out->ld % 8 == 0);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
    cublasLtMatmulPreference_t p, int wanted, cublasLtMatmulHeuristicResult_t *results,
    int *found)
{
    (void)h, (void)c;
    if (wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *found = 0;
    if (!lt_can(d, a, b, out))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    results->workspaceSize = std::min<size_t>(p ? p->workspace : 0, 65536);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static Mat lt_operand(const void *p, cublasLtMatrixLayout_t l)
{
    return { (char *)p, l->type, l->rows, l->cols, (size_t)l->ld, l->order == CUBLASLT_ORDER_ROW,
             l->stride };
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s)
{
    (void)algo;
    if (!h || !d || !la || !lb || !lc || !lout)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    const int all = CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_RELU_BIAS |
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    if (d->epilogue & ~all || !lt_can(d, la, lb, lout))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    Product q = {};
    q.ta = d->ta != CUBLAS_OP_N;
    q.tb = d->tb != CUBLAS_OP_N;
    q.m = lout->rows, q.n = lout->cols, q.k = q.ta ? la->rows : la->cols;
    q.a = lt_operand(a, la);
    q.b = lt_operand(b, lb);
    q.c = lt_operand(c, lc);
    q.d = lt_operand(out, lout);
    q.batch = lout->batch;
    q.device_scalars = d->pointer_mode != 0;
    q.doubles = d->scale == CUDA_R_64F;
    q.palpha = alpha, q.pbeta = beta;
    q.epilogue = d->epilogue;
    q.bias = (const char *)d->bias;
    q.bias_type = d->bias_type < 0 ? lout->type : (cudaDataType)d->bias_type;
    if ((d->epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX)
        q.aux = (char *)d->aux, q.aux_ld = (size_t)d->aux_ld;
    q.workspace = workspace, q.workspace_bytes = workspace ? workspace_bytes : 0;
    return enqueue("cublasLtMatmul", q, s);
}

}
