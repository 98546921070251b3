// catch: plain "cublasSgemm: C"
// catch: asan "cublasSgemm: C"
// catch: check "cublasSgemm: C"
// A leading dimension that takes the product past the end of its buffer.
#include "../test.h"
#include "cublas_v2.h"

int main()
{
    cublasHandle_t blas;
    cublasCreate(&blas);
    Vec<float> a(16 * 8), b(8 * 4), c(16 * 4);
    for (int i = 0; i < 16 * 8; i++)
        a[i] = b[i % 32] = 1.0f;
    a.send(), b.send();
    float one = 1, zero = 0;
#ifdef BUG
    int ldc = 17;
#else
    int ldc = 16;
#endif
    cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 16, 4, 8, &one, a.dev, 16, b.dev, 8, &zero, c.dev,
                ldc);
    c.fetch();
    for (int i = 0; i < 16 * 4; i++)
        CHECK(c[i] == 8.0f);
    cublasDestroy(blas);
    return test_end();
}
