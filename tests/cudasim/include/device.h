/*
 * device.h - what CUDA C++ gives kernels, for g++: built-in variables, launches,
 * barriers, warp operations, atomics, vector types and intrinsics.
 *
 * Kernels run as fibers (sim.cpp). Every barrier and warp operation carries the
 * line that called it, so that a stuck block can be described.
 */
#ifndef CUDASIM_DEVICE_H
#define CUDASIM_DEVICE_H
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

/* ---- vector types ------------------------------------------------------- */

#define CUDASIM_VEC(T, N, A2, A4) \
    struct N##1 { T x; }; \
    struct __attribute__((aligned(A2))) N##2 { T x, y; }; \
    struct N##3 { T x, y, z; }; \
    struct __attribute__((aligned(A4))) N##4 { T x, y, z, w; }; \
    static inline N##1 make_##N##1(T x) { return { x }; } \
    static inline N##2 make_##N##2(T x, T y) { return { x, y }; } \
    static inline N##3 make_##N##3(T x, T y, T z) { return { x, y, z }; } \
    static inline N##4 make_##N##4(T x, T y, T z, T w) { return { x, y, z, w }; }
CUDASIM_VEC(signed char, char, 2, 4)
CUDASIM_VEC(unsigned char, uchar, 2, 4)
CUDASIM_VEC(short, short, 4, 8)
CUDASIM_VEC(unsigned short, ushort, 4, 8)
CUDASIM_VEC(int, int, 8, 16)
CUDASIM_VEC(unsigned, uint, 8, 16)
CUDASIM_VEC(float, float, 8, 16)
CUDASIM_VEC(long long, longlong, 16, 16)
CUDASIM_VEC(unsigned long long, ulonglong, 16, 16)
CUDASIM_VEC(double, double, 16, 16)
#undef CUDASIM_VEC

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

/* ---- threads and launches ----------------------------------------------- */

namespace cudasim {

struct Block { uint3 index; dim3 dim, grid; };
struct Thread { uint3 index; const Block *block; };

// A kernel with its arguments; alive until the launch has run.
struct Body {
    size_t bytes;                       // of the whole object: the arguments lie in it
    virtual void run() const = 0;       // in each thread
    virtual ~Body() {}
};

void enqueue(const char *name, const void *fn, dim3 grid, dim3 block, size_t smem,
             cudaStream_t s, Body *body);

template <class T> struct Same { typedef T type; };

template <class... P> struct Config {
    const char *name;
    void (*fn)(P...);
    dim3 grid, block;
    size_t smem;
    cudaStream_t stream;

    struct Call : Body {
        void (*fn)(P...);
        std::tuple<P...> args;
        Call(void (*f)(P...), P... a) : fn(f), args(a...) { bytes = sizeof *this; }
        void run() const override { std::apply(fn, args); }
    };
    void operator()(typename Same<P>::type... args) const
    {
        enqueue(name, (const void *)fn, grid, block, smem, stream, new Call(fn, args...));
    }
};

template <class... P>
Config<P...> config(const char *name, void (*fn)(P...), dim3 grid, dim3 block, size_t smem = 0,
                    cudaStream_t s = 0)
{
    return { name, fn, grid, block, smem, s };
}

// Shared memory of the block; `name` and `n` stand for the declaration.
void *shared(const char *name, int n, size_t bytes, size_t align);
void *dynamic_shared();
template <class T> T &shared(const char *name, int n)
{
    return *(T *)shared(name, n, sizeof(T), alignof(T));
}

/*
 * One warp instruction: each lane of `mask` that is still running hands in its argument;
 * the last to arrive calls fn(args, lanes), args[i] being null for lanes absent. `what`
 * names it; lanes that meet with different functions are an error.
 */
typedef void (*WarpFn)(void **args, unsigned lanes);
void warp_op(unsigned mask, void *arg, WarpFn fn, const char *what, const char *file, int line);
enum Vote { ANY, ALL, BALLOT };
unsigned vote(Vote kind, unsigned mask, int predicate, const char *file, int line);
enum Shuffle { IDX, UP, DOWN, XOR };
uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int lane, int width,
                 const char *file, int line);
int barrier(const char *file, int line, int predicate);     // number of true predicates
void warp_barrier(unsigned mask, const char *file, int line);
unsigned active_lanes();
void trap(const char *file, int line);

void ldmatrix(uint32_t *r, int n, bool trans, const void *row, const char *file, int line);
void mma_bf16(float *d, const uint32_t *a, const uint32_t *b, const float *c, const char *file,
              int line);
void cp_async(void *shared, const void *global, int bytes, int copied);
void cp_async_commit();
void cp_async_wait(int groups_left);                        // -1: everything, committed or not

#ifdef CUDASIM_CHECK
void touch_atomic(const void *p, int bytes);
void fence();
#else
static inline void fence() {}
static inline void touch_atomic(const void *, int) {}
#endif
}

extern __thread cudasim::Thread *cudasim_self;              // null on the host
#define threadIdx (cudasim_self->index)
#define blockIdx (cudasim_self->block->index)
#define blockDim (cudasim_self->block->dim)
#define gridDim (cudasim_self->block->grid)
static const int warpSize = 32;

/* ---- barriers and warp operations --------------------------------------- */

#define CUDASIM_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(CUDASIM_AT) { cudasim::barrier(file, line, 0); }
static inline int __syncthreads_count(int p, CUDASIM_AT) { return cudasim::barrier(file, line, p); }
static inline int __syncthreads_or(int p, CUDASIM_AT)
{
    return cudasim::barrier(file, line, p) > 0;
}
static inline int __syncthreads_and(int p, CUDASIM_AT)
{
    return cudasim::barrier(file, line, !p) == 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffff, CUDASIM_AT)
{
    cudasim::warp_barrier(mask, file, line);
}
static inline int __any_sync(unsigned mask, int p, CUDASIM_AT)
{
    return cudasim::vote(cudasim::ANY, mask, p, file, line);
}
static inline int __all_sync(unsigned mask, int p, CUDASIM_AT)
{
    return cudasim::vote(cudasim::ALL, mask, p, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int p, CUDASIM_AT)
{
    return cudasim::vote(cudasim::BALLOT, mask, p, file, line);
}
static inline unsigned __activemask() { return cudasim::active_lanes(); }

#define CUDASIM_SHFL(NAME, KIND) \
    template <class T> static inline T NAME(unsigned mask, T v, int lane, int width = 32, \
                                            CUDASIM_AT) \
    { \
        static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes"); \
        uint64_t bits = 0; \
        __builtin_memcpy(&bits, &v, sizeof v); \
        bits = cudasim::shuffle(cudasim::KIND, mask, bits, lane, width, file, line); \
        T out; \
        __builtin_memcpy(&out, &bits, sizeof out); \
        return out; \
    }
CUDASIM_SHFL(__shfl_sync, IDX)
CUDASIM_SHFL(__shfl_up_sync, UP)
CUDASIM_SHFL(__shfl_down_sync, DOWN)
CUDASIM_SHFL(__shfl_xor_sync, XOR)
#undef CUDASIM_SHFL

static inline void __threadfence()
{
    cudasim::fence();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system() { __threadfence(); }
static inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) {}
static inline void __trap(CUDASIM_AT) { cudasim::trap(file, line); }

/* ---- atomics: blocks run on several OS threads -------------------------- */

#define CUDASIM_NOTSAN __attribute__((no_sanitize("thread")))

// *p = f(*p) by compare and swap of U, the integer of T's size; the old value.
template <class U, class T, class F>
CUDASIM_NOTSAN static inline T cudasim_rmw(T *p, F f)
{
    cudasim::touch_atomic(p, sizeof *p);
    U old = __atomic_load_n((U *)p, __ATOMIC_RELAXED), next;
    T was, now;
    do {
        __builtin_memcpy(&was, &old, sizeof was);
        now = f(was);
        __builtin_memcpy(&next, &now, sizeof next);
    } while (!__atomic_compare_exchange_n((U *)p, &old, next, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_RELAXED));
    return was;
}

#define CUDASIM_ATOMIC(NAME, T, U, EXPR) \
    CUDASIM_NOTSAN static inline T NAME(T *p, T v) \
    { \
        return cudasim_rmw<U>(p, [v](T old) CUDASIM_NOTSAN -> T { (void)old; return EXPR; }); \
    }
#define CUDASIM_INTEGERS(T, U) \
    CUDASIM_ATOMIC(atomicAdd, T, U, old + v) \
    CUDASIM_ATOMIC(atomicMax, T, U, old > v ? old : v) \
    CUDASIM_ATOMIC(atomicMin, T, U, old < v ? old : v) \
    CUDASIM_ATOMIC(atomicAnd, T, U, old & v) \
    CUDASIM_ATOMIC(atomicOr, T, U, old | v) \
    CUDASIM_ATOMIC(atomicXor, T, U, old ^ v) \
    CUDASIM_ATOMIC(atomicExch, T, U, v) \
    CUDASIM_NOTSAN static inline T atomicCAS(T *p, T expected, T v) \
    { \
        return cudasim_rmw<U>(p, [=](T old) CUDASIM_NOTSAN -> T { \
            return old == expected ? v : old; }); \
    }
CUDASIM_INTEGERS(int, uint32_t)
CUDASIM_INTEGERS(unsigned, uint32_t)
CUDASIM_INTEGERS(unsigned long long, uint64_t)
CUDASIM_ATOMIC(atomicSub, int, uint32_t, old - v)
CUDASIM_ATOMIC(atomicSub, unsigned, uint32_t, old - v)
CUDASIM_ATOMIC(atomicAdd, float, uint32_t, old + v)
CUDASIM_ATOMIC(atomicAdd, double, uint64_t, old + v)
CUDASIM_ATOMIC(atomicExch, float, uint32_t, v)
CUDASIM_NOTSAN static inline unsigned atomicInc(unsigned *p, unsigned top)
{
    return cudasim_rmw<uint32_t>(p, [top](unsigned old) CUDASIM_NOTSAN -> unsigned {
        return old >= top ? 0 : old + 1; });
}
#undef CUDASIM_ATOMIC
#undef CUDASIM_INTEGERS

/* ---- intrinsics --------------------------------------------------------- */

// glibc declares some of these names: macros, not functions.
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }

#define CUDASIM_CAST(NAME, TO, FROM) \
    static inline TO NAME(FROM v) { TO out; __builtin_memcpy(&out, &v, sizeof out); return out; }
CUDASIM_CAST(__float_as_int, int, float)
CUDASIM_CAST(__float_as_uint, unsigned, float)
CUDASIM_CAST(__int_as_float, float, int)
CUDASIM_CAST(__uint_as_float, float, unsigned)
CUDASIM_CAST(__double_as_longlong, long long, double)
CUDASIM_CAST(__longlong_as_double, double, long long)
#undef CUDASIM_CAST
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline int __mulhi(int a, int b) { return (int64_t)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned __int128)a * b >> 64;
}
static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(bytes >> 8 * (select >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n)
{
    return (unsigned)((((uint64_t)hi << 32 | lo) << (n & 31)) >> 32);
}
long long clock64();

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stwt(T *p, T v) { *p = v; }
static inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)p; }

#define CUDASIM_MINMAX(T) \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
CUDASIM_MINMAX(int)
CUDASIM_MINMAX(unsigned)
CUDASIM_MINMAX(long)
CUDASIM_MINMAX(unsigned long)
CUDASIM_MINMAX(long long)
CUDASIM_MINMAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
#undef CUDASIM_MINMAX

/* ---- the C++ side of the host API --------------------------------------- */

template <class T> static inline cudaError_t cudaMalloc(T **p, size_t n)
{
    return cudaMalloc((void **)(void *)p, n);
}
template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t n, unsigned = 0)
{
    return cudaMallocHost((void **)(void *)p, n);
}
template <class T> static inline cudaError_t cudaHostAlloc(T **p, size_t n, unsigned flags)
{
    return cudaHostAlloc((void **)(void *)p, n, flags);
}
template <class F> static inline cudaError_t cudaFuncSetAttribute(F *k, cudaFuncAttribute a, int v)
{
    return cudasim_func_limit((const void *)k, a, v);
}
template <class F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, F *k)
{
    return cudasim_func_attributes(a, (const void *)k);
}
template <class F> static inline cudaError_t
cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F *k, int threads, size_t smem)
{
    return cudasim_occupancy(blocks, (const void *)k, threads, smem);
}
template <class F> static inline cudaError_t
cudaOccupancyMaxPotentialBlockSize(int *grid, int *block, F *, size_t = 0, int limit = 0)
{
    *block = limit ? limit : 256;
    *grid = 132 * (2048 / *block);
    return cudaSuccess;
}
template <class T> static inline cudaError_t
cudaMemcpyToSymbol(T &symbol, const void *src, size_t n, size_t offset = 0,
                   cudaMemcpyKind = cudaMemcpyHostToDevice)
{
    memcpy((char *)&symbol + offset, src, n);
    return cudaSuccess;
}
#endif
