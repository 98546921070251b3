// catch: check "no __syncthreads between"
// catch: plain
// A producer's barrier is missing: threads read what their neighbours write.
#include "../test.h"

__global__ void shift(float *out, const float *in)
{
    __shared__ float tile[128];
    int t = (int)threadIdx.x;
    tile[t] = in[t];
#ifndef BUG
    __syncthreads();
#endif
    out[t] = tile[(t + 40) % 128];
}

int main()
{
    Vec<float> in(128), out(128);
    for (int i = 0; i < 128; i++)
        in[i] = (float)i;
    in.send();
    shift<<<1, 128>>>(out.dev, in.dev);
    out.fetch();
    for (int i = 0; i < 128; i++)
        CHECK(out[i] == (float)((i + 40) % 128));
    return test_end();
}
