// catch: check "past the end of shared"
// catch: asan "heap-buffer-overflow"
// A row of shared memory is read one element too far; the value is not used.
#include "../test.h"

__global__ void scan(float *out, const float *in)
{
    __shared__ float tile[64];
    int t = (int)threadIdx.x;
    tile[t] = in[t];
    __syncthreads();
#ifdef BUG
    float next = tile[t + 1];
#else
    float next = t < 63 ? tile[t + 1] : 0.0f;
#endif
    out[t] = t < 63 ? tile[t] + next : *(volatile float *)&next * 0.0f == 0.0f ? 1.0f : 1.0f;
}

int main()
{
    Vec<float> in(64), out(64);
    for (int i = 0; i < 64; i++)
        in[i] = (float)i;
    in.send();
    scan<<<1, 64>>>(out.dev, in.dev);
    out.fetch();
    for (int i = 0; i < 63; i++)
        CHECK(out[i] == (float)(2 * i + 1));
    return test_end();
}
