// catch: check "no __syncthreads between"
// Double buffering without the barrier at the end of a turn: a fast warp fills the buffer that a
// slow one still reads. Every order of the emulator happens to compute the right values.
#include "../test.h"
#include "prims.cuh"

__global__ void sum(float *out, const float4 *in, int n)
{
    __shared__ float4 tile[2][64];
    int t = (int)threadIdx.x;
    float s = 0;
    cp_async16(&tile[0][t], in + t);
    cp_async_commit();
    for (int i = 0; i < n; i++) {
        if (i + 1 < n) {
            cp_async16(&tile[(i + 1) % 2][t], in + (i + 1) * 64 + t);
            cp_async_commit();
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        for (int j = 0; j < 64; j++)
            s += tile[i % 2][(j + t) % 64].x;
#ifndef BUG
        __syncthreads();
#endif
    }
    out[t] = s;
}

int main()
{
    Vec<float> in(4 * 64 * 6), out(64);
    float want = 0;
    for (int i = 0; i < 4 * 64 * 6; i++) {
        in[i] = (float)(i % 13);
        want += i % 4 ? 0 : in[i];
    }
    in.send();
    sum<<<1, 64>>>(out.dev, (const float4 *)in.dev, 6);
    out.fetch();
    for (int i = 0; i < 64; i++)
        CHECK(out[i] == want);
    return test_end();
}
