// catch: check "host code reads device memory"
// The host reads device memory.
#include "../test.h"

__global__ void one(float *out) { out[threadIdx.x] = 1.0f; }

int main()
{
    Vec<float> out(32);
    one<<<1, 32>>>(out.dev);
    out.fetch();
    float sum = 0;
    for (int i = 0; i < 32; i++)
#ifdef BUG
        sum += out.dev[i];
#else
        sum += out[i];
#endif
    CHECK(sum == 32.0f);
    return test_end();
}
