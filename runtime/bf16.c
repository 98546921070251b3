/*
 * bf16.c - numbers stored in 16 bits: the upper half of a float. Computing is done in
 * float; storing rounds to nearest, ties to even.
 */
#include "rt_impl.h"

void rt_widen(const uint16_t *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = rt_float(src[i]);
}

void rt_narrow(const float *src, int64_t n, uint16_t *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = rt_bf16(src[i]);
}

/* dst [n] (+)= src [n]; sums are made in float or double. */
void rt_move(const Rt *rt, const void *src, int src_stored, void *dst, int dst_stored, int64_t n,
             bool add)
{
    bool plain = src_stored == RT_REAL && dst_stored == RT_REAL;
    if (!add && src_stored == dst_stored)
        memmove(dst, src, (size_t)(n * rt_size(rt, dst_stored)));
    else if (plain && rt->real == sizeof(float))
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i] += ((const float *)src)[i];
    else if (plain)
        for (int64_t i = 0; i < n; i++)
            ((double *)dst)[i] += ((const double *)src)[i];
    else
        for (int64_t i = 0; i < n; i++)
            rt_put(rt, dst_stored, dst, i, rt_get(rt, src_stored, src, i)
                                           + (add ? rt_get(rt, dst_stored, dst, i) : 0));
}
