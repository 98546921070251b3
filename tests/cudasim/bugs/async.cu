// catch: check "cp.async into it is not waited for"
// catch: plain
// The wait for cp.async is missing: there is a barrier, but nothing has arrived.
#include "../test.h"
#include "prims.cuh"

__global__ void copy(float4 *out, const float4 *in)
{
    __shared__ float4 tile[64];
    int t = (int)threadIdx.x;
    cp_async16(&tile[t], in + t);
    cp_async_commit();
#ifndef BUG
    cp_async_wait<0>();
#endif
    __syncthreads();
    out[t] = tile[63 - t];
}

int main()
{
    Vec<float> in(256), out(256);
    for (int i = 0; i < 256; i++)
        in[i] = (float)i;
    in.send();
    copy<<<1, 64>>>((float4 *)out.dev, (const float4 *)in.dev);
    out.fetch();
    for (int i = 0; i < 256; i++)
        CHECK(out[i] == (float)((63 - i / 4) * 4 + i % 4));
    return test_end();
}
