// catch: asan "misaligned address"
// Four numbers at once, from where rows of an odd width begin.
#include "../test.h"

__global__ void copy(const float *from, float *to, int rows, int ld)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < rows)
        *(float4 *)(to + 4 * i) = *(const float4 *)(from + ld * i);
}

int main()
{
#ifdef BUG
    enum { LD = 5 };
#else
    enum { LD = 8 };
#endif
    Vec<float> x(64 * LD), y(64 * 4);
    for (int i = 0; i < 64 * LD; i++)
        x[i] = (float)i;
    x.send();
    copy<<<2, 32>>>(x.dev, y.dev, 64, LD);
    y.fetch();
    for (int i = 0; i < 64; i++)
        CHECK(y[4 * i + 3] == (float)(LD * i + 3));
    return test_end();
}
