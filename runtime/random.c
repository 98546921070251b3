/*
 * random.c - Philox 4x32-10 and the streams that are built on it.
 *
 * random.h lists the streams. The rounds and the constants are those of the
 * paper; tests/unit/test_random.c holds its known answers. Initial weights are
 * the only numbers that are needed by the hundred million: they are made in
 * vectors, with the same bits on every machine.
 */
#include "random.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)              // see "initial weights"; GCC has it off in ISO C
#pragma STDC FP_CONTRACT OFF
#endif

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

/* ---- initial weights ----------------------------------------------------- */

/*
 * Elements come in groups of 64, made of 16 Philox blocks of four words:
 *
 *     element 64 g + 16 j + l  is value j of block 16 g + l
 *
 * so that every loop below runs over 16 neighbours and becomes vector code.
 * The words of a block are two pairs; a normal pair is Box-Muller's,
 *
 *     u = (w0 + 1/2) / 2^32      r = sqrt(-2 log u), up to 6.76
 *     r cos(t), r sin(t)         t even on the circle, from the 32 bits of w1
 *
 * in double, with the logarithm, root, sine and cosine written out below:
 * additions, multiplications and one division in a fixed order, each of which
 * IEEE 754 rounds one way only. Nothing may be contracted to a fused multiply-add.
 */
enum { LANES = 16, GROUP = 4 * LANES };
typedef struct { double cos[LANES], sin[LANES]; } Pair;
typedef struct { uint32_t w[4][LANES]; } Blocks;

static inline __attribute__((always_inline)) void
philox_blocks(uint64_t first, uint64_t seed, uint64_t name_hash, Blocks *b)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int l = 0; l < LANES; l++) {
        b->w[0][l] = (uint32_t)first + (uint32_t)l;     // first is a multiple of LANES
        b->w[1][l] = (uint32_t)(first >> 32);
        b->w[2][l] = (uint32_t)name_hash;
        b->w[3][l] = (uint32_t)(name_hash >> 32);
    }
    for (int i = 0; i < 10; i++) {
        for (int l = 0; l < LANES; l++) {
            uint32_t c[4] = { b->w[0][l], b->w[1][l], b->w[2][l], b->w[3][l] };
            round_once(c, k0, k1);
            for (int j = 0; j < 4; j++)
                b->w[j][l] = c[j];
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* w / 2^32 - 1/2 + 2^-33 for w with its top bit turned: exact, even, never 0. */
static inline double centred(uint32_t w)
{
    return (double)(int32_t)w * 0x1p-32 + 0x1p-33;
}

static inline uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/*
 * log of x in [2^-33, 1): x = m 2^-k with m in [sqrt(1/2), sqrt(2)), then
 *     log m = log((1+s) / (1-s)) = 2 s + s^3 P(s^2),  s = (m-1) / (m+1)
 * with fdlibm's P.
 */
static inline __attribute__((always_inline)) double log_below_1(double x)
{
    const uint64_t root_half = 0x3fe6a09e667f3bcd;
    uint64_t above = bits_of(x) - root_half + ((uint64_t)64 << 52);    // 64 - k in its top bits
    uint64_t exponent = above >> 52;
    double minus_k = of_bits(0x4330000000000000 | exponent) - (0x1p52 + 64);
    double m = of_bits(bits_of(x) - (exponent << 52) + ((uint64_t)64 << 52));
    double s = (m - 1) / (m + 1), z = s * s;
    double p = 0.6666666666666735130
             + z * (0.3999999999940941908
             + z * (0.2857142874366239149
             + z * (0.2222219843214978396
             + z * (0.1818357216161805012
             + z * (0.1531383769920937332
             + z * 0.1479819860511658591)))));
    return minus_k * 0.69314718055994530942 + (2 * s + s * z * p);
}

/* sqrt(x) to 3e-11, by Newton's steps for 1/sqrt(x) from a guess within 4 %. */
static inline __attribute__((always_inline)) double root(double x)
{
    double half = 0.5 * x, y = of_bits(0x5fe6eb50c7b537a9 - (bits_of(x) >> 1));
    y = y * (1.5 - half * y * y);
    y = y * (1.5 - half * y * y);
    y = y * (1.5 - half * y * y);
    return x * y;
}

/*
 * r cos t and r sin t. The top bits of w choose one of four arcs of a quarter
 * circle, by turning round and by exchanging the two; the others the place in it.
 */
static inline __attribute__((always_inline)) void
on_circle(uint32_t w, double r, double *out_cos, double *out_sin)
{
    double x = centred(w << 2) * 1.5707963267948966192;     // within pi/4
    double z = x * x;
    double sine = x + x * z * (-1.66666666666666324348e-01
                  + z * (8.33333333332248946124e-03
                  + z * (-1.98412698298579493134e-04
                  + z * (2.75573137070700676789e-06
                  + z * (-2.50507602534068634195e-08
                  + z * 1.58969099521155010221e-10)))));
    double cosine = 1 - 0.5 * z + z * z * (4.16666666666666019037e-02
                    + z * (-1.38888888888741095749e-03
                    + z * (2.48015872894767294178e-05
                    + z * (-2.75573143513906633035e-07
                    + z * (2.08757232129817482790e-09
                    + z * -1.13596475577881948265e-11)))));
    r = of_bits(bits_of(r) ^ (uint64_t)(w >> 31) << 63);
    uint64_t exchange = -(uint64_t)(w >> 30 & 1);
    uint64_t both = (bits_of(cosine) ^ bits_of(sine)) & exchange;
    *out_cos = r * of_bits(bits_of(cosine) ^ both);
    *out_sin = r * of_bits(bits_of(sine) ^ both);
}

static inline __attribute__((always_inline)) void
values(int kind, const Blocks *b, double v[GROUP])
{
    if (kind == RT_INIT_UNIFORM) {
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < LANES; l++)
                v[LANES * j + l] = 2 * centred(b->w[j][l]);
        return;
    }
    for (int j = 0; j < 4; j += 2) {
        double *c = v + LANES * j, *s = c + LANES;
        for (int l = 0; l < LANES; l++) {
            double r = root(-2 * log_below_1(centred(b->w[j][l]) + 0.5));
            on_circle(b->w[j + 1][l], r, &c[l], &s[l]);
        }
    }
}

typedef void (*GroupFn)(int, uint64_t, uint64_t, uint64_t, double[GROUP]);

static void plain_group(int kind, uint64_t seed, uint64_t name_hash, uint64_t group, double *v)
{
    Blocks b;
    philox_blocks(group * LANES, seed, name_hash, &b);
    values(kind, &b, v);
}

#if defined(__x86_64__)
/* philox_blocks with each word in 64 bits, as the multiplier takes and gives them:
 * compilers shuffle them there and back in each round. The upper halves are rubbish. */
__attribute__((target("avx2"))) static inline void
avx2_blocks(uint64_t first, uint64_t seed, uint64_t name_hash, Blocks *b)
{
    enum { N = LANES / 4 };
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53u), m1 = _mm256_set1_epi64x(0xCD9E8D57u);
    const __m256i low = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    __m256i c[4][N];
    for (int n = 0; n < N; n++) {
        c[0][n] = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)first),
                                   _mm256_setr_epi64x(4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3));
        c[1][n] = _mm256_set1_epi64x((int64_t)(first >> 32));
        c[2][n] = _mm256_set1_epi64x((int64_t)name_hash);
        c[3][n] = _mm256_set1_epi64x((int64_t)(name_hash >> 32));
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
        for (int n = 0; n < N; n++) {
            __m256i p0 = _mm256_mul_epu32(c[0][n], m0), p1 = _mm256_mul_epu32(c[2][n], m1);
            __m256i hi0 = _mm256_srli_epi64(p0, 32), hi1 = _mm256_srli_epi64(p1, 32);
            c[0][n] = _mm256_xor_si256(_mm256_xor_si256(hi1, c[1][n]), key0);
            c[2][n] = _mm256_xor_si256(_mm256_xor_si256(hi0, c[3][n]), key1);
            c[1][n] = p1;
            c[3][n] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int j = 0; j < 4; j++)
        for (int n = 0; n < N; n++)
            _mm_storeu_si128((__m128i *)(void *)&b->w[j][4 * n], _mm256_castsi256_si128(
                             _mm256_permutevar8x32_epi32(c[j][n], low)));
}

__attribute__((target("avx2")))
static void avx2_group(int kind, uint64_t seed, uint64_t name_hash, uint64_t group, double *v)
{
    Blocks b;
    avx2_blocks(group * LANES, seed, name_hash, &b);
    values(kind, &b, v);
}

__attribute__((target("avx512f,avx512dq,avx512vl")))
static void avx512_group(int kind, uint64_t seed, uint64_t name_hash, uint64_t group, double *v)
{
    Blocks b;
    avx2_blocks(group * LANES, seed, name_hash, &b);
    values(kind, &b, v);
}

static GroupFn choose_group(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        return avx512_group;
    return __builtin_cpu_supports("avx2") ? avx2_group : plain_group;
}
#else
static GroupFn choose_group(void) { return plain_group; }
#endif

void rt_init_range(int kind, double a, uint64_t seed, uint64_t name_hash, uint64_t first,
                   size_t n, double *out)
{
    if (kind == RT_INIT_CONSTANT) {
        for (size_t i = 0; i < n; i++)
            out[i] = a;
        return;
    }
    GroupFn group = choose_group();
    for (size_t i = 0; i < n;) {
        double v[GROUP];
        size_t from = (first + i) % GROUP, m = GROUP - from < n - i ? GROUP - from : n - i;
        group(kind, seed, name_hash, (first + i) / GROUP, v);
        for (size_t k = 0; k < m; k++)
            out[i + k] = a * v[from + k];
        i += m;
    }
}

double rt_init_value(int kind, double a, uint64_t seed, uint64_t name_hash, uint64_t index)
{
    double v;
    rt_init_range(kind, a, seed, name_hash, index, 1, &v);
    return v;
}

/* ---- choices ------------------------------------------------------------- */

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
