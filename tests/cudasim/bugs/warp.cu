// catch: check "no __syncwarp between"
// catch: plain
// Lanes exchange through shared memory without __syncwarp.
#include "../test.h"

__global__ void swap(float *x)
{
    __shared__ float tile[64];
    int t = (int)threadIdx.x;
    tile[t] = x[t];
#ifndef BUG
    __syncwarp();
#endif
    x[t] = tile[t ^ 1];
}

int main()
{
    Vec<float> x(64);
    for (int i = 0; i < 64; i++)
        x[i] = (float)i;
    x.send();
    swap<<<1, 64>>>(x.dev);
    x.fetch();
    for (int i = 0; i < 64; i++)
        CHECK(x[i] == (float)(i ^ 1));
    return test_end();
}
