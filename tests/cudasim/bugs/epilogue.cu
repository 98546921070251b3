// catch: check "no event orders the streams"
// A product adds a bias that another stream is still bringing.
#include "../test.h"
#include "cublasLt.h"

int main()
{
    enum { N = 8 };
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout;
    cudaStream_t compute, weights;
    cudaEvent_t there;
    cublasLtCreate(&lt);
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, N, N, N);
    cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&weights, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&there, cudaEventDisableTiming);
    Vec<float> a(N * N), c(N * N), kept(N * N), shard(N), bias(N);
    for (int i = 0; i < N * N; i++)
        a[i] = 0.5f;
    for (int i = 0; i < N; i++)
        shard[i] = (float)i;
    a.send(), shard.send();
    cudaDeviceSynchronize();
    cudaMemcpyAsync(bias.dev, shard.dev, N * sizeof(float), cudaMemcpyDeviceToDevice, weights);
    cudaEventRecord(there, weights);
#ifndef BUG
    cudaStreamWaitEvent(compute, there, 0);
#endif
    cublasLtEpilogue_t e = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    void *p = bias.dev, *aux = kept.dev;
    int64_t ld = N;
    float one = 1, zero = 0;
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p, sizeof p);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                                   sizeof aux);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    CHECK(!cublasLtMatmul(lt, desc, &one, a.dev, layout, a.dev, layout, &zero, c.dev, layout,
                          c.dev, layout, nullptr, nullptr, 0, compute));
    cudaDeviceSynchronize();
    kept.fetch();
    for (int i = 0; i < N * N; i++)
        CHECK(kept[i] == 2.0f + (float)(i % N));
    return test_end();
}
