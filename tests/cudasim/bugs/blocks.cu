// catch: check "blocks are never ordered"
// catch: plain
// A block reads what another block of the same kernel writes.
#include "../test.h"

__global__ void part(float *x)
{
#ifdef BUG
    x[blockIdx.x * 32 + threadIdx.x] = x[(blockIdx.x + 1) % 8 * 32 + threadIdx.x] + 1.0f;
#else
    x[blockIdx.x * 32 + threadIdx.x] += 1.0f;
#endif
}

// Allowed: the last block to finish adds up, behind a fence and an atomic.
__global__ void total(float *out, float *sums, unsigned *done, const float *x)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        float s = 0;
        for (int i = 0; i < 32; i++)
            s += x[blockIdx.x * 32 + i];
        sums[blockIdx.x] = s;
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float s = 0;
        for (unsigned i = 0; i < gridDim.x; i++)
            s += sums[i];
        *out = s;
    }
}

int main()
{
    Vec<float> x(256), out(1), sums(8);
    Vec<unsigned> done(1);
    for (int i = 0; i < 256; i++)
        x[i] = (float)(i / 32);
    x.send(), done.send();
    part<<<8, 32>>>(x.dev);
    total<<<8, 32>>>(out.dev, sums.dev, done.dev, x.dev);
    x.fetch(), out.fetch();
    for (int i = 0; i < 256; i++)
        CHECK(x[i] == (float)(i / 32 + 1));
    CHECK(out[0] == 32.0f * 36.0f);
    return test_end();
}
