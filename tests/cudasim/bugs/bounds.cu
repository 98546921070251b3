// catch: check "out of bounds"
// catch: asan "heap-buffer-overflow"
// catch: plain "past the end"
// One element is stored behind the last row.
#include "../test.h"

__global__ void fill(float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
#ifdef BUG
    if (i <= n)
#else
    if (i < n)
#endif
        x[i] = 1.0f;
}

int main()
{
    Vec<float> x(1000);
    fill<<<8, 128>>>(x.dev, 1000);
    x.fetch();
    for (int i = 0; i < 1000; i++)
        CHECK(x[i] == 1.0f);
    return test_end();
}
