/*
 * random.c - Philox 4x32-10 and the streams that are built on it.
 *
 * random.h lists the streams. The rounds and the constants are those of the
 * paper; tests/unit/test_reference.c holds its known answers. Normal values
 * come in pairs (Box-Muller): elements 2k and 2k+1 share one Philox block.
 */
#include "random.h"

#include <math.h>

static inline void round_once(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
    uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t hi0 = (uint32_t)(p0 >> 32), lo0 = (uint32_t)p0;
    uint32_t hi1 = (uint32_t)(p1 >> 32), lo1 = (uint32_t)p1;
    c[0] = hi1 ^ c[1] ^ k0;
    c[2] = hi0 ^ c[3] ^ k1;
    c[1] = lo1;
    c[3] = lo0;
}

void rt_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = { ctr[0], ctr[1], ctr[2], ctr[3] };
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < 10; i++) {
        round_once(c, k0, k1);
        k0 += 0x9E3779B9u;      // the golden ratio
        k1 += 0xBB67AE85u;      // sqrt(3) - 1
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

uint32_t rt_dropout_word(uint64_t seed, uint32_t step, uint32_t salt, uint64_t token,
                         uint32_t feature)
{
    uint32_t ctr[4] = { (uint32_t)token, (uint32_t)(token >> 32), feature, salt };
    uint32_t key[2] = { (uint32_t)seed ^ 0x5eedu, step }, out[4];
    rt_philox(ctr, key, out);
    return out[0];
}

uint32_t rt_dropout_limit(double p)
{
    return (uint32_t)floor(p * 4294967296.0);
}

uint64_t rt_name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const unsigned char *s = (const unsigned char *)name; *s; s++)
        h = (h ^ *s) * 0x100000001b3u;
    return h;
}

/* 53 bits of two words as a number in (0, 1]: log() of it is finite. */
static double unit_open(uint32_t hi, uint32_t lo)
{
    uint64_t bits = ((uint64_t)hi << 32 | lo) >> 11;
    return ((double)bits + 1.0) * 0x1p-53;
}

/* The two values of elements 2*pair and 2*pair + 1, before scaling by a. */
static void init_pair(int kind, uint64_t seed, uint64_t name_hash, uint64_t pair, double v[2])
{
    uint32_t ctr[4] = { (uint32_t)pair, (uint32_t)(pair >> 32),
                        (uint32_t)name_hash, (uint32_t)(name_hash >> 32) };
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, w[4];
    rt_philox(ctr, key, w);
    double u0 = unit_open(w[0], w[1]), u1 = unit_open(w[2], w[3]);
    if (kind == RT_INIT_UNIFORM) {
        v[0] = 2 * u0 - 1;
        v[1] = 2 * u1 - 1;
        return;
    }
    double radius = sqrt(-2 * log(u0)), angle = 6.283185307179586476925 * u1;
    v[0] = radius * cos(angle);
    v[1] = radius * sin(angle);
}

void rt_init_range(int kind, double a, uint64_t seed, uint64_t name_hash, uint64_t first,
                   size_t n, double *out)
{
    if (kind == RT_INIT_CONSTANT) {
        for (size_t i = 0; i < n; i++)
            out[i] = a;
        return;
    }
    double v[2] = { 0, 0 };
    for (size_t i = 0; i < n; i++) {
        uint64_t index = first + i;
        if (i == 0 || index % 2 == 0)
            init_pair(kind, seed, name_hash, index / 2, v);
        out[i] = a * v[index % 2];
    }
}

double rt_init_value(int kind, double a, uint64_t seed, uint64_t name_hash, uint64_t index)
{
    double v;
    rt_init_range(kind, a, seed, name_hash, index, 1, &v);
    return v;
}

uint64_t rt_shuffle_value(uint64_t seed, uint64_t epoch, uint64_t number)
{
    uint32_t ctr[4] = { (uint32_t)number, (uint32_t)(number >> 32),
                        (uint32_t)epoch, (uint32_t)(epoch >> 32) };
    uint32_t key[2] = { (uint32_t)seed ^ 0x5f1eu, (uint32_t)(seed >> 32) }, out[4];
    rt_philox(ctr, key, out);
    return (uint64_t)out[0] << 32 | out[1];
}

bool rt_masked(uint64_t seed, uint32_t step, uint64_t token, double p)
{
    uint32_t ctr[4] = { (uint32_t)token, (uint32_t)(token >> 32), 0, 0x3a5cu };
    uint32_t key[2] = { (uint32_t)seed ^ 0x3a5cu, step }, out[4];
    rt_philox(ctr, key, out);
    return (double)out[0] < p * 4294967296.0;
}
