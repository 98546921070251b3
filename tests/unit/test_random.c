/*
 * test_random.c - random numbers: the generator's known answers, and initial
 * weights: the same bits on every machine and in every range, and normal. Checksums too.
 */
#include "rt_impl.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

Test(random, philox_answers_as_the_paper)
{
    static const uint32_t in[3][6] = {
        { 0, 0, 0, 0, 0, 0 },
        { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0 },
    };
    static const uint32_t want[3][4] = {
        { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 },
    };
    for (int i = 0; i < 3; i++) {
        uint32_t got[4];
        rt_philox(in[i], in[i] + 4, got);
        cr_assert_arr_eq(got, want[i], sizeof got);
    }
}

/* ---- the definition, written plainly with the C library ------------------- */

/* Element 64 g + 16 j + l is value j of block 16 g + l. */
static double plain_value(int kind, double a, uint64_t seed, uint64_t name, uint64_t index)
{
    uint64_t block = index / 64 * 16 + index % 16;
    int j = (int)(index / 16 % 4);
    uint32_t ctr[4] = { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)name,
                        (uint32_t)(name >> 32) };
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, w[4];
    rt_philox(ctr, key, w);
    if (kind == RT_INIT_UNIFORM)
        return a * (2 * ((int32_t)w[j] + 0.5) * 0x1p-32);
    uint32_t place = w[j / 2 * 2 + 1];
    double r = sqrt(-2 * log(((int32_t)w[j / 2 * 2] + 0x1p31 + 0.5) * 0x1p-32));
    double angle = ((int32_t)(place << 2) + 0.5) * 0x1p-32 * acos(0);
    bool is_sine = (j % 2 == 1) != (place >> 30 & 1);
    return a * (place >> 31 ? -r : r) * (is_sine ? sin(angle) : cos(angle));
}

static const uint64_t some_seeds[] = { 0, 1, 1337, 0x123456789abcdef0, ~(uint64_t)0 };
static const uint64_t some_firsts[] = { 0, 63, 1000003, ((uint64_t)1 << 34) - 70,
                                       (uint64_t)1 << 40 };

Test(random, initial_values_are_box_and_mullers)
{
    enum { N = 300 };
    double v[N];
    uint64_t name = rt_name_hash("h.0.attn.c_attn.weight");
    for (int s = 0; s < 5; s++)
        for (int f = 0; f < 5; f++)
            for (int kind = RT_INIT_NORMAL; kind <= RT_INIT_UNIFORM; kind++) {
                rt_init_range(kind, 3, some_seeds[s], name, some_firsts[f], N, v);
                for (uint64_t i = 0; i < N; i++) {
                    double want = plain_value(kind, 3, some_seeds[s], name, some_firsts[f] + i);
                    cr_assert_float_eq(v[i], want, 1e-9, "%d %d %llu: %.17g, expected %.17g", s, f,
                                       (unsigned long long)i, v[i], want);
                }
            }
}

/* A value does not depend on the range it is asked in. */
Test(random, ranges_agree)
{
    enum { N = 700 };
    double all[N], part[N];
    uint64_t name = rt_name_hash("wte.weight"), base = ((uint64_t)1 << 34) - 300;
    for (int kind = RT_INIT_NORMAL; kind <= RT_INIT_CONSTANT; kind++) {
        rt_init_range(kind, 0.02, 1337, name, base, N, all);
        for (size_t i = 0; i < N; i++)
            cr_assert_eq(all[i], rt_init_value(kind, 0.02, 1337, name, base + i));
        for (size_t from = 0; from < 140; from += 3)
            for (size_t n = 0; from + n <= N; n += 1 + n / 3) {
                part[n < N ? n : 0] = -77;
                rt_init_range(kind, 0.02, 1337, name, base + from, n, part);
                cr_assert_eq(memcmp(part, all + from, n * sizeof *part), 0);
                cr_assert(n >= N || part[n] == -77, "wrote behind the end");
            }
    }
}

/* Found on one machine, to hold on every other, whatever vectors it has. */
Test(random, initial_values_have_these_bits)
{
    enum { N = 100000 };
    static double v[N];
    static const struct { int kind; uint64_t hash; } want[] = {
        { RT_INIT_NORMAL, 0x0b43f434ccac6c57 }, { RT_INIT_UNIFORM, 0x96e03822c33ee581 },
    };
    uint64_t name = rt_name_hash("wte.weight");
    for (int k = 0; k < 2; k++) {
        uint64_t h = 0xcbf29ce484222325u;
        rt_init_range(want[k].kind, 0.02, 1337, name, 5, N, v);
        for (int i = 0; i < N; i++) {
            uint64_t bits;
            memcpy(&bits, &v[i], sizeof bits);
            h = (h ^ bits) * 0x100000001b3u;
        }
        cr_expect_eq(h, want[k].hash, "0x%016llx", (unsigned long long)h);
    }
}

/* ---- how they are spread -------------------------------------------------- */

/* Bounds are five standard deviations of each estimate. */
Test(random, normal_values_are_normal)
{
    enum { N = 1 << 22, PART = 4096, BINS = 64 };
    double v[PART], sum[5] = { 0 }, next = 0, pair = 0, most = 0;
    static int bin[BINS + 1];
    int beyond[6] = { 0 };
    for (int i = 0; i < N; i += PART) {
        rt_init_range(RT_INIT_NORMAL, 1, 1, rt_name_hash("a"), (uint64_t)i, PART, v);
        for (int k = 0; k < PART; k++) {
            double x = v[k], p = x;
            cr_assert(isfinite(x) && x != 0);
            for (int m = 1; m <= 4; m++, p *= x)
                sum[m] += p / N;
            if (k > 0)
                next += x * v[k - 1] / N;
            if (k >= 16)
                pair += x * v[k - 16] / N;          // the other one of Box and Muller
            for (int s = 1; s < 6; s++)
                beyond[s] += fabs(x) > s;
            most = fmax(most, fabs(x));
            bin[(int)(BINS * 0.5 * erfc(-x / sqrt(2)))]++;
        }
    }
    double sd = 1 / sqrt(N);
    cr_expect_float_eq(sum[1], 0, 5 * sd, "mean %g", sum[1]);
    cr_expect_float_eq(sum[2], 1, 5 * sd * sqrt(2), "variance %g", sum[2]);
    cr_expect_float_eq(sum[3], 0, 5 * sd * sqrt(15), "third %g", sum[3]);
    cr_expect_float_eq(sum[4], 3, 5 * sd * sqrt(96), "kurtosis %g", sum[4]);
    cr_expect_float_eq(next, 0, 5 * sd, "neighbours %g", next);
    cr_expect_float_eq(pair, 0, 5 * sd, "pairs %g", pair);
    for (int s = 1; s < 6; s++) {
        double want = N * erfc(s / sqrt(2));
        cr_expect_float_eq(beyond[s], want, 5 * sqrt(want), "beyond %d: %d, expected %.1f", s,
                           beyond[s], want);
    }
    cr_expect(most > 4.5 && most < 6.77, "most %g", most);
    double chi = 0;
    for (int i = 0; i < BINS; i++)
        chi += (bin[i] - (double)N / BINS) * (bin[i] - (double)N / BINS) / ((double)N / BINS);
    cr_expect(fabs(chi - (BINS - 1)) < 5 * sqrt(2 * (BINS - 1)), "chi square %g", chi);
}

Test(random, uniform_values_are_even)
{
    enum { N = 1 << 20, PART = 4096, BINS = 64 };
    double v[PART], sum = 0, square = 0, chi = 0;
    static int bin[BINS];
    for (int i = 0; i < N; i += PART) {
        rt_init_range(RT_INIT_UNIFORM, 3, 1, rt_name_hash("a"), (uint64_t)i, PART, v);
        for (int k = 0; k < PART; k++) {
            cr_assert(v[k] > -3 && v[k] < 3);
            sum += v[k] / N;
            square += v[k] * v[k] / N;
            bin[(int)((v[k] + 3) / 6 * BINS)]++;
        }
    }
    for (int i = 0; i < BINS; i++)
        chi += (bin[i] - (double)N / BINS) * (bin[i] - (double)N / BINS) / ((double)N / BINS);
    cr_expect_float_eq(sum, 0, 5 * sqrt(3.0 / N));
    cr_expect_float_eq(square, 3, 5 * sqrt(7.2 / N));
    cr_expect(fabs(chi - (BINS - 1)) < 5 * sqrt(2 * (BINS - 1)), "chi square %g", chi);
}

/* Names, seeds and places give other numbers. */
Test(random, streams_are_apart)
{
    uint64_t a = rt_name_hash("a"), b = rt_name_hash("b");
    double x = rt_init_value(RT_INIT_NORMAL, 1, 1, a, 0);
    cr_expect_neq(x, rt_init_value(RT_INIT_NORMAL, 1, 1, b, 0));
    cr_expect_neq(x, rt_init_value(RT_INIT_NORMAL, 1, 2, a, 0));
    cr_expect_neq(x, rt_init_value(RT_INIT_NORMAL, 1, 1 + ((uint64_t)1 << 32), a, 0));
    cr_expect_neq(x, rt_init_value(RT_INIT_NORMAL, 1, 1, a, (uint64_t)1 << 34));
    cr_expect_eq(rt_init_value(RT_INIT_CONSTANT, 5, 1, a, 7), 5);
}

/* The answers of RFC 3720, B.4, by instruction and by table. */
Test(random, crc_answers_as_the_rfc)
{
    unsigned char zero[32] = { 0 }, ones[32], up[32];
    for (int i = 0; i < 32; i++) {
        ones[i] = 255;
        up[i] = (unsigned char)i;
    }
    const struct { const void *p; size_t n; uint32_t want; } cases[] = {
        { zero, 32, 0x8a9136aa }, { ones, 32, 0x62a8ab43 }, { up, 32, 0x46dd794e },
        { "123456789", 9, 0xe3069283 },
    };
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(~rt_crc(~0u, cases[i].p, cases[i].n), cases[i].want);
        cr_assert_eq(~rt_crc_table(~0u, cases[i].p, cases[i].n), cases[i].want);
        cr_assert_eq(rt_crc_end(rt_crc(0, cases[i].p, cases[i].n), cases[i].n), cases[i].want);
    }
}

/* Parts of a message in any order, cut anywhere, make its checksum. */
Test(random, crc_of_parts)
{
    enum { N = 5000 };
    static unsigned char text[N];
    uint32_t r = 1, whole, sum;
    for (int i = 0; i < N; i++)
        text[i] = (unsigned char)((r = r * 1664525 + 1013904223) >> 24);
    whole = ~rt_crc(~0u, text, N);
    for (int cut = 1; cut < N; cut += cut / 3 + 1) {
        sum = rt_crc(0, text + cut, (size_t)(N - cut));
        sum ^= rt_crc_behind(rt_crc(0, text, (size_t)cut), (uint64_t)(N - cut));
        cr_assert_eq(rt_crc_end(sum, N), whole, "cut at %d", cut);
    }
    // n zeros, then m more, are n + m, also where they are many
    uint64_t n = 123456789012345, m = 987654321098765;
    cr_assert_eq(rt_crc_behind(rt_crc_behind(77, n), m), rt_crc_behind(77, n + m));
}
