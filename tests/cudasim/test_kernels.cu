/* test_kernels.cu - the emulator's kernels against plain loops: indices, barriers, warp
 * operations, atomics, shared memory, ldmatrix, mma, cp.async, vectors. */
#include "test.h"
#include "prims.cuh"

/* ---- indices, shared memory, barriers ----------------------------------- */

__global__ void indices(int *out)
{
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = (int)(block * 1000 + thread);
}

static void test_indices()
{
    dim3 grid(3, 2, 2), block(5, 3, 2);
    Vec<int> out(12 * 30);
    indices<<<grid, block>>>(out.dev);
    out.fetch();
    for (int i = 0; i < 12 * 30; i++)
        CHECK(out[i] == i / 30 * 1000 + i % 30);
}

template <int N> __global__ void reverse(float *x)
{
    __shared__ float tile[N];
    x += blockIdx.x * N;
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

__global__ void transpose(float *out, const float *in, int n)
{
    extern __shared__ __align__(16) float row[];
    __shared__ float tile[8][9];
    __shared__ __align__(16) int whose;
    if (threadIdx.x == 0 && threadIdx.y == 0)
        whose = (int)blockIdx.x;
    tile[threadIdx.y][threadIdx.x] = in[(blockIdx.y * 8 + threadIdx.y) * n + blockIdx.x * 8
                                        + threadIdx.x];
    row[threadIdx.y * 8 + threadIdx.x] = 1.0f;
    __syncthreads();
    out[(blockIdx.x * 8 + threadIdx.y) * n + blockIdx.y * 8 + threadIdx.x] =
        tile[threadIdx.x][threadIdx.y] * row[threadIdx.x * 8 + threadIdx.y]
        + (float)(whose - (int)blockIdx.x);
}

static void test_shared()
{
    Vec<float> x(256 * 3);
    for (int i = 0; i < 256 * 3; i++)
        x[i] = (float)i;
    x.send();
    reverse<256><<<3, 256>>>(x.dev);
    x.fetch();
    for (int i = 0; i < 256 * 3; i++)
        CHECK(x[i] == (float)(i / 256 * 256 + 255 - i % 256));

    Vec<float> in(32 * 32), out(32 * 32);
    for (int i = 0; i < 32 * 32; i++)
        in[i] = (float)i;
    in.send();
    transpose<<<dim3(4, 4), dim3(8, 8),
                64 * sizeof(float), 0>>>(out.dev, in.dev, 32);
    out.fetch();
    for (int i = 0; i < 32 * 32; i++)
        CHECK(out[i] == in[i % 32 * 32 + i / 32]);
}

__global__ void votes(int *out)
{
    int t = (int)threadIdx.x;
    int n = __syncthreads_count(t % 3 == 0);
    int any = __syncthreads_or(t == 77), all = __syncthreads_and(t < 1000);
    if (t == 5)
        return;                         // those who left do not count in barriers
    __syncthreads();
    unsigned b = __ballot_sync(0xffffffff, t & 1);
    out[t] = n * 100 + any * 10 + all + (b == (t < 32 ? 0xaaaaaa8au : 0xaaaaaaaau) ? 1000 : 0);
}

/* ---- warps -------------------------------------------------------------- */

__global__ void shuffles(float *sum, int *up, double *half)
{
    int t = (int)threadIdx.x;
    float v = (float)t;
    for (int d = 16; d; d >>= 1)
        v += __shfl_xor_sync(0xffffffff, v, d);
    sum[t] = v;
    int u = __shfl_up_sync(0xffffffff, t, 1), w = __shfl_down_sync(0xffffffff, t, 2, 8);
    up[t] = u * 1000 + w;
    half[t] = 0;
    if (t % 32 < 16) {                  // half a warp
        double h = t;
        h += __shfl_xor_sync(0xffff, h, 8, 16);
        half[t] = h + __shfl_sync(0xffff, t, 3, 4);
    }
    __syncwarp();
}

static void test_warps()
{
    Vec<int> v(96);
    votes<<<1, 96>>>(v.dev);
    v.fetch();
    for (int t = 0; t < 96; t++)
        CHECK(t == 5 || v[t] == 32 * 100 + 10 + 1 + 1000);
    Vec<float> sum(64);
    Vec<int> up(64);
    Vec<double> half(64);
    shuffles<<<1, 64>>>(sum.dev, up.dev, half.dev);
    sum.fetch(), up.fetch(), half.fetch();
    for (int t = 0; t < 64; t++) {
        CHECK(sum[t] == (t < 32 ? 496.0f : 496.0f + 32 * 32));
        int u = t % 32 ? t - 1 : t, w = t % 8 + 2 > 7 ? t : t + 2;
        CHECK(up[t] == u * 1000 + w);
        CHECK(half[t] == (t % 32 >= 16 ? 0.0 : 2.0 * t + (t & 8 ? -8 : 8) + (t | 3)));
    }
}

/* ---- atomics ------------------------------------------------------------ */

__global__ void count(int *n, float *f, double *d, unsigned long long *u, int *lock, int *top)
{
    atomicAdd(n, 1);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    atomicAdd(u, 3ull);
    atomicMax(top, (int)(blockIdx.x * blockDim.x + threadIdx.x));
    int old, seen = 0;
    do
        old = seen, seen = atomicCAS(lock, old, old + 2);
    while (seen != old);
}

static void test_atomics()
{
    Vec<int> n(3);
    Vec<float> f(1);
    Vec<double> d(1);
    Vec<unsigned long long> u(1);
    n.send(), f.send(), d.send(), u.send();
    count<<<16, 64>>>(n.dev, f.dev, d.dev, u.dev, n.dev + 1, n.dev + 2);
    n.fetch(), f.fetch(), d.fetch(), u.fetch();
    CHECK(n[0] == 1024 && n[1] == 2048 && n[2] == 1023);
    CHECK(f[0] == 512.0f && d[0] == 256.0 && u[0] == 3072);
}

/* ---- ldmatrix, mma, cp.async: a 32 x 16 product over k = 64 ------------- */

enum { M = 32, N = 16, K = 64 };

__global__ void product(float *out, const __nv_bfloat16 *a, const __nv_bfloat16 *b)
{
    __shared__ __align__(16) __nv_bfloat16 sa[2][M][16];
    __shared__ __align__(16) __nv_bfloat16 sb[2][16][N];
    int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;       // 64 threads: 2 warps
    float c[2][4] = {};
    auto load = [&](int k, int to) {
        cp_async16(&sa[to][t / 2][t % 2 * 8], &a[t / 2 * K + k + t % 2 * 8]);
        if (t < 32)
            cp_async16(&sb[to][t / 2][t % 2 * 8], &b[(k + t / 2) * N + t % 2 * 8]);
        cp_async_commit();
    };
    load(0, 0);
    for (int k = 0, at = 0; k < K; k += 16, at ^= 1) {
        if (k + 16 < K) {
            load(k + 16, at ^ 1);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        uint32_t ra[4], rb[4];
        ldmatrix_x4(ra, &sa[at][warp * 16 + lane % 16][lane / 16 * 8]);
        ldmatrix_x4_trans(rb, &sb[at][lane % 16][lane / 16 * 8]);
        mma_bf16(c[0], ra, rb, c[0]);
        mma_bf16(c[1], ra, rb + 2, c[1]);
        __syncthreads();
    }
    for (int j = 0; j < 2; j++)
        for (int q = 0; q < 4; q++)
            out[(warp * 16 + lane / 4 + q / 2 * 8) * N + j * 8 + lane % 4 * 2 + q % 2] = c[j][q];
}

// The other ways to load: x1 and x2, with b held as its transpose.
__global__ void product_small(float *out, const __nv_bfloat16 *a, const __nv_bfloat16 *bt)
{
    __shared__ __align__(16) __nv_bfloat16 sa[16][16];
    __shared__ __align__(16) __nv_bfloat16 sbt[8][16];
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 256; i += 32)
        sa[i / 16][i % 16] = a[i];
    for (int i = lane; i < 128; i += 32)
        sbt[i / 16][i % 16] = bt[i];
    __syncwarp();
    uint32_t ra[4], rb[2], again[2];
    for (int q = 0; q < 4; q++)
        ldmatrix_x1(ra + q, &sa[lane % 8 + q % 2 * 8][q / 2 * 8]);
    ldmatrix_x2(rb, &sbt[lane % 8][lane / 8 % 2 * 8]);
    ldmatrix_x1(again, &sbt[lane % 8][0]);
    float c[4] = { 1, 1, 1, 1 }, d[4];
    mma_bf16(d, ra, rb, c);
    for (int q = 0; q < 4; q++)
        out[(lane / 4 + q / 2 * 8) * 8 + lane % 4 * 2 + q % 2] = d[q] + (float)(again[0] - rb[0]);
}

static void test_mma()
{
    Vec<__nv_bfloat16> a(M * K), b(K * N);
    Vec<float> out(M * N);
    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i * 37 % 19) - 9;
    for (int i = 0; i < K * N; i++)
        b[i] = (float)(i * 53 % 23) - 11;
    a.send(), b.send();
    product<<<1, 64>>>(out.dev, a.dev, b.dev);
    out.fetch();
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float want = 0;
            for (int k = 0; k < K; k++)
                want += (float)a[i * K + k] * (float)b[k * N + j];
            CHECK(out[i * N + j] == want);
        }
    Vec<float> small(16 * 8);
    product_small<<<1, 32>>>(small.dev, a.dev, b.dev);
    small.fetch();
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float want = 1;
            for (int k = 0; k < 16; k++)
                want += (float)a[i * 16 + k] * (float)b[j * 16 + k];
            CHECK(small[i * 8 + j] == want);
        }
}

/* ---- vectors, bf16, zero fill ------------------------------------------- */

__global__ void vectors(uint4 *out, const float4 *in, int n)
{
    __shared__ uint4 tile[32];
    int i = (int)threadIdx.x;
    cp_async16_or_zero(&tile[i], in + i, i < n);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    uint4 v = tile[i ^ 1];
    v.x = pack_bf16(__uint_as_float(v.x), 2.0f);
    st_cs16(out + i, v);
    if (i == 0)
        st16(out + 32, ld_nc16(in));
}

static unsigned bits(float f)
{
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float value(unsigned u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void test_vectors()
{
    Vec<float> in(32 * 4);
    Vec<unsigned> out(33 * 4);
    for (int i = 0; i < 32 * 4; i++)
        in[i] = (float)i;
    in.send();
    vectors<<<1, 32>>>((uint4 *)out.dev, (const float4 *)in.dev, 20);
    out.fetch();
    for (int i = 0; i < 32; i++) {
        float x = (i ^ 1) < 20 ? (float)(i ^ 1) * 4 : 0;
        CHECK(out[i * 4] == (0x40000000u | bits(x) >> 16));
        CHECK(value(out[i * 4 + 3]) == ((i ^ 1) < 20 ? x + 3 : 0));
    }
    CHECK(value(out[32 * 4 + 1]) == 1.0f);
    CHECK((float)__float2bfloat16_rn(1.00390625f) == 1.0f);       // half way: to even
    CHECK((float)__float2bfloat16_rn(1.01171875f) == 1.015625f);
    CHECK(isnan((float)__float2bfloat16_rn(NAN)));
}

/* ---- errors ------------------------------------------------------------- */

static void test_errors()
{
    void *p;
    size_t free_bytes, total;
    cudaMemGetInfo(&free_bytes, &total);
    CHECK(cudaMalloc(&p, total + 1) == cudaErrorMemoryAllocation && !p);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    indices<<<1, 2000>>>(nullptr);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    indices<<<1, 32, 100 << 10>>>(nullptr);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(indices, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10));
    CHECK(!cudaFuncSetAttribute(indices, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    Vec<int> out(32);
    cudaGetLastError();
    indices<<<1, 32, 100 << 10>>>(out.dev);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaSetDevice(1000) == cudaErrorInvalidDevice);
    cudaGetLastError();
}

int main()
{
    test_indices();
    test_shared();
    test_warps();
    test_atomics();
    test_mma();
    test_vectors();
    test_errors();
    return test_end();
}
