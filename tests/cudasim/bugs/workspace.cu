// catch: check "no event orders the streams"
// Two streams share one cublasLt workspace.
#include "../test.h"
#include "cublasLt.h"

int main()
{
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout;
    cudaStream_t s[2];
    cublasLtCreate(&lt);
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 8, 8, 8);
    Vec<float> a(64), c(64), d(64), space(2048);
    for (int i = 0; i < 64; i++)
        a[i] = 1.0f;
    a.send();
    cudaDeviceSynchronize();
    float one = 1, zero = 0;
    for (int i = 0; i < 2; i++) {
        cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking);
        float *out = i ? d.dev : c.dev, *work = space.dev;
#ifndef BUG
        work += i * 1024;
#endif
        cublasLtMatmul(lt, desc, &one, a.dev, layout, a.dev, layout, &zero, out, layout, out,
                       layout, nullptr, work, 4096, s[i]);
    }
    cudaDeviceSynchronize();
    c.fetch(), d.fetch();
    for (int i = 0; i < 64; i++)
        CHECK(c[i] == 8.0f && d[i] == 8.0f);
    return test_end();
}
