// catch: plain "divergent barrier"
// catch: check "divergent barrier"
// catch: asan "divergent barrier"
// Half of the block waits at another barrier.
#include "../test.h"

__global__ void half(float *x)
{
    x[threadIdx.x] = 0;
#ifdef BUG
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
#else
    __syncthreads();
#endif
    x[threadIdx.x] += 1.0f;
}

int main()
{
    Vec<float> x(64);
    half<<<1, 64>>>(x.dev);
    x.fetch();
    CHECK(x[0] == 1.0f);
    return test_end();
}
