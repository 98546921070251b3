/* test_blas.cu - products against plain loops: both transpositions, leading dimensions,
 * types, batches, scalars on the device, epilogues, row-major layouts. */
#include "test.h"
#include "cublasLt.h"
#include "cuda_bf16.h"

static cublasHandle_t blas;
static int small(int i, int step) { return i * step % 13 - 6; }

template <class T, class C> static void product(bool ta, bool tb, cudaDataType type,
                                                cudaDataType ctype, double alpha, double beta)
{
    enum { M = 19, N = 7, K = 11, LDA = 23, LDB = 13, LDC = 20, BATCH = 3 };
    Vec<T> a(LDA * 20 * BATCH), b(LDB * 12 * BATCH);
    Vec<C> c(LDC * N * BATCH);
    for (int i = 0; i < LDA * 20 * BATCH; i++)
        a[i] = (T)small(i, 7);
    for (int i = 0; i < LDB * 12 * BATCH; i++)
        b[i] = (T)small(i, 5);
    for (int i = 0; i < LDC * N * BATCH; i++)
        c[i] = beta == 0 ? (C)NAN : (C)small(i, 3);
    std::vector<C> before = c.host;
    a.send(), b.send(), c.send();
    float alpha4 = (float)alpha, beta4 = (float)beta;
    bool d = ctype == CUDA_R_64F;
    cublasOperation_t opa = ta ? CUBLAS_OP_T : CUBLAS_OP_N, opb = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    CHECK(!cublasGemmStridedBatchedEx(
        blas, opa, opb, M, N, K, d ? (void *)&alpha : &alpha4, a.dev, type, LDA, LDA * 20,
        b.dev, type, LDB, LDB * 12, d ? (void *)&beta : &beta4, c.dev, ctype, LDC, LDC * N, BATCH,
        d ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    c.fetch();
    for (int z = 0; z < BATCH; z++)
        for (int j = 0; j < N; j++)
            for (int i = 0; i < M; i++) {
                double sum = 0;
                for (int k = 0; k < K; k++)
                    sum += (double)(float)a[z * LDA * 20 + (ta ? i * LDA + k : k * LDA + i)] *
                           (double)(float)b[z * LDB * 12 + (tb ? k * LDB + j : j * LDB + k)];
                int at = z * LDC * N + j * LDC + i;
                sum = alpha * sum + (beta == 0 ? 0 : beta * (double)before[(size_t)at]);
                CHECK((double)c[at] == (double)(C)(float)sum);
            }
    CHECK(memcmp(&c[M], &before[M], sizeof(C)) == 0);                   // between columns
}

static void scalars_on_device()
{
    Vec<float> a(64), c(64), s(2);
    for (int i = 0; i < 64; i++)
        a[i] = 1.0f, c[i] = 2.0f;
    s[0] = 0.5f, s[1] = 3.0f;
    a.send(), c.send(), s.send();
    cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE);
    CHECK(!cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, s.dev, a.dev, 8, a.dev, 8,
                       s.dev + 1, c.dev, 8));
    cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_HOST);
    c.fetch();
    for (int i = 0; i < 64; i++)
        CHECK(c[i] == 10.0f);
}

// out (tokens x width, row by row) = gelu(x w + bias): as columns, out' = w' x'.
static void epilogues()
{
    enum { T = 6, K = 8, N = 5 };
    Vec<__nv_bfloat16> x(T * K), w(K * N), bias(N);
    Vec<float> out(T * N), rows(T * N);
    for (int i = 0; i < T * K; i++)
        x[i] = (float)small(i, 3) / 4;
    for (int i = 0; i < K * N; i++)
        w[i] = (float)small(i, 5) / 8;
    for (int i = 0; i < N; i++)
        bias[i] = (float)i - 2;
    x.send(), w.send(), bias.send();
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t d;
    cublasLtMatrixLayout_t lw, lx, lo;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found;
    int n;
    uint64_t space = 4096;
    CHECK(!cublasLtCreate(&lt));
    cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&lw, CUDA_R_16BF, N, K, N);
    cublasLtMatrixLayoutCreate(&lx, CUDA_R_16BF, K, T, K);
    cublasLtMatrixLayoutCreate(&lo, CUDA_R_32F, N, T, N);
    cublasLtEpilogue_t e = CUBLASLT_EPILOGUE_GELU_BIAS;
    cudaDataType bf16 = CUDA_R_16BF;
    void *p = bias.dev;
    CHECK(!cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e));
    CHECK(!cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p, sizeof p));
    CHECK(!cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bf16, 4));
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space,
                                         sizeof space);
    CHECK(!cublasLtMatmulAlgoGetHeuristic(lt, d, lw, lx, lo, lo, pref, 1, &found, &n) && n == 1);
    Vec<char> work((int)found.workspaceSize);
    float one = 1, zero = 0;
    CHECK(!cublasLtMatmul(lt, d, &one, w.dev, lw, x.dev, lx, &zero, out.dev, lo, out.dev, lo,
                          &found.algo, work.dev, found.workspaceSize, 0));
    out.fetch();
    for (int t = 0; t < T; t++)
        for (int j = 0; j < N; j++) {
            float v = (float)bias[j];
            for (int k = 0; k < K; k++)
                v += (float)x[t * K + k] * (float)w[k * N + j];
            float want = 0.5f * v * (1 + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
            CHECK(fabsf(out[t * N + j] - want) < 1e-5f);
        }
    // The same product with row-major layouts and no epilogue.
    cublasLtOrder_t row = CUBLASLT_ORDER_ROW;
    cublasLtMatrixLayout_t rw, rx, ro;
    cublasLtMatrixLayoutCreate(&rx, CUDA_R_16BF, T, K, K);
    cublasLtMatrixLayoutCreate(&rw, CUDA_R_16BF, K, N, N);
    cublasLtMatrixLayoutCreate(&ro, CUDA_R_32F, T, N, N);
    for (auto l : { rw, rx, ro })
        CHECK(!cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &row, 4));
    e = CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e);
    CHECK(!cublasLtMatmul(lt, d, &one, x.dev, rx, w.dev, rw, &zero, rows.dev, ro, rows.dev, ro,
                          nullptr, nullptr, 0, 0));
    rows.fetch();
    for (int i = 0; i < T * N; i++) {
        float v = 0;
        for (int k = 0; k < K; k++)
            v += (float)x[i / N * K + k] * (float)w[k * N + i % N];
        CHECK(rows[i] == v);
    }
    for (auto l : { lw, lx, lo, rw, rx, ro })
        cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatmulDescDestroy(d);
    cublasLtDestroy(lt);
}

int main()
{
    CHECK(!cublasCreate(&blas));
    for (int t = 0; t < 4; t++) {
        product<float, float>(t & 1, t & 2, CUDA_R_32F, CUDA_R_32F, 1, 0);
        product<double, double>(t & 1, t & 2, CUDA_R_64F, CUDA_R_64F, 2, 1);
        product<__nv_bfloat16, float>(t & 1, t & 2, CUDA_R_16BF, CUDA_R_32F, 1, 1);
        product<__nv_bfloat16, __nv_bfloat16>(t & 1, t & 2, CUDA_R_16BF, CUDA_R_16BF, 0.5, 0);
    }
    scalars_on_device();
    epilogues();
    cublasDestroy(blas);
    return test_end();
}
