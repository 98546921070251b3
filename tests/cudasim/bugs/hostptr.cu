// catch: check "host memory"
// A kernel is given the host's copy of an array.
#include "../test.h"

__global__ void twice(float *out, const float *in)
{
    out[threadIdx.x] = 2.0f * in[threadIdx.x];
}

int main()
{
    Vec<float> in(32), out(32);
    for (int i = 0; i < 32; i++)
        in[i] = (float)i;
    in.send();
#ifdef BUG
    twice<<<1, 32>>>(out.dev, in.host.data());
#else
    twice<<<1, 32>>>(out.dev, in.dev);
#endif
    out.fetch();
    for (int i = 0; i < 32; i++)
        CHECK(out[i] == 2.0f * (float)i);
    return test_end();
}
