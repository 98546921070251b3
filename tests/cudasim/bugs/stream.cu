// catch: check "no event orders the streams"
// catch: plain
// A second stream reads a buffer without waiting for the first.
#include "../test.h"

__global__ void set(float *x, float v) { x[threadIdx.x] = v; }
__global__ void add(float *out, const float *x) { out[threadIdx.x] = x[threadIdx.x] + 1.0f; }

int main()
{
    Vec<float> x(64), out(64);
    cudaStream_t a, b;
    cudaEvent_t ready;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    set<<<1, 64, 0, a>>>(x.dev, 1.0f);
    set<<<1, 64, 0, a>>>(x.dev, 2.0f);
    set<<<1, 64, 0, a>>>(x.dev, 3.0f);
    cudaEventRecord(ready, a);
#ifndef BUG
    cudaStreamWaitEvent(b, ready, 0);
#endif
    add<<<1, 64, 0, b>>>(out.dev, x.dev);
    cudaStreamSynchronize(b);
    cudaStreamSynchronize(a);
    out.fetch();
    for (int i = 0; i < 64; i++)
        CHECK(out[i] == 4.0f);
    cudaStreamDestroy(a), cudaStreamDestroy(b), cudaEventDestroy(ready);
    return test_end();
}
