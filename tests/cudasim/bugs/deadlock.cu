// catch: plain "lanes ffffff00 wait in a shuffle with mask ffffffff"
// A shuffle names lanes that wait at a barrier.
#include "../test.h"

__global__ void mixed(float *x)
{
    float v = 1.0f;
#ifdef BUG
    if (threadIdx.x >= 40)
#endif
        v += __shfl_xor_sync(0xffffffff, v, 1);
    __syncthreads();
    x[threadIdx.x] = v;
}

int main()
{
    Vec<float> x(64);
    mixed<<<1, 64>>>(x.dev);
    x.fetch();
    for (int i = 0; i < 64; i++)
        CHECK(x[i] == 2.0f);
    return test_end();
}
