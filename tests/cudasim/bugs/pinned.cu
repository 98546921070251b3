// catch: plain
// catch: asan
// The host reads pinned memory before the copy into it is waited for.
#include "../test.h"

int main()
{
    float *host;
    Vec<float> x(64);
    for (int i = 0; i < 64; i++)
        x[i] = 5.0f;
    x.send();
    cudaMallocHost(&host, 64 * sizeof(float));
    cudaMemcpyAsync(host, x.dev, 64 * sizeof(float), cudaMemcpyDeviceToHost, 0);
#ifndef BUG
    cudaStreamSynchronize(0);
#endif
    for (int i = 0; i < 64; i++)
        CHECK(host[i] == 5.0f);
    cudaFreeHost(host);
    return test_end();
}
