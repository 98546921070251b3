// catch: check "no __syncthreads between"
// catch: plain
// A buffer is filled again before everybody has read it.
#include "../test.h"

__global__ void sums(float *out, const float *in, int n)
{
    __shared__ float tile[96];
    int t = (int)threadIdx.x;
    float sum = 0;
    for (int i = 0; i < n; i++) {
        tile[t] = in[i * 96 + t];
        __syncthreads();
        for (int j = 0; j < 96; j++)
            sum += tile[j] * (float)(1 + (j + t) % 3);
#ifndef BUG
        __syncthreads();
#endif
    }
    out[t] = sum;
}

int main()
{
    Vec<float> in(96 * 4), out(96);
    for (int i = 0; i < 96 * 4; i++)
        in[i] = (float)(i * 7 % 31);
    in.send();
    sums<<<1, 96>>>(out.dev, in.dev, 4);
    out.fetch();
    for (int t = 0; t < 96; t++) {
        float want = 0;
        for (int i = 0; i < 96 * 4; i++)
            want += in[i] * (float)(1 + (i % 96 + t) % 3);
        CHECK(out[t] == want);
    }
    return test_end();
}
