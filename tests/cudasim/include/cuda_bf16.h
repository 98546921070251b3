/* cuda_bf16.h - bf16 as two bytes; arithmetic in float, rounded to nearest even. */
#ifndef CUDASIM_CUDA_BF16_H
#define CUDASIM_CUDA_BF16_H
#include "cuda_runtime.h"

#ifndef __cplusplus
typedef struct { unsigned short __x; } __nv_bfloat16;
#else

static inline unsigned short cudasim_to_bf16(float f)
{
    unsigned u;
    __builtin_memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return 0x7fff;                          // the one NaN that the hardware gives
    return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline float cudasim_from_bf16(unsigned short x)
{
    unsigned u = (unsigned)x << 16;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

struct __attribute__((aligned(2))) __nv_bfloat16 {
    unsigned short __x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : __x(cudasim_to_bf16(f)) {}
    __nv_bfloat16(double f) : __x(cudasim_to_bf16((float)f)) {}
    __nv_bfloat16(int f) : __x(cudasim_to_bf16((float)f)) {}
    operator float() const { return cudasim_from_bf16(__x); }
};
struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline float __bfloat162float(__nv_bfloat16 b) { return (float)b; }
static inline __nv_bfloat16 __double2bfloat16(double f) { return __nv_bfloat16((float)f); }
static inline __nv_bfloat162 __float2bfloat162_rn(float f) { return { f, f }; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return { a, b }; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return { v.x, v.y }; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return { (float)v.x, (float)v.y }; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return { a, b };
}
static inline float __low2float(__nv_bfloat162 v) { return v.x; }
static inline float __high2float(__nv_bfloat162 v) { return v.y; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.__x; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x)
{
    __nv_bfloat16 v;
    v.__x = x;
    return v;
}
static inline __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return { (float)a + (float)b };
}
static inline __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return { (float)a * (float)b };
}
static inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return { __hadd(a.x, b.x), __hadd(a.y, b.y) };
}
static inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return { __hmul(a.x, b.x), __hmul(a.y, b.y) };
}
#endif
#endif
