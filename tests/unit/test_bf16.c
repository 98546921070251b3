/*
 * test_bf16.c - numbers stored in 16 bits: rounding, moving, sums, products.
 */
#include "rt_impl.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* ---- rounding ------------------------------------------------------------- */

/* The nearest of all values in 16 bits; of two equally near ones the even one. */
static uint16_t nearest(float f)
{
    uint16_t best = 0;
    double least = INFINITY;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float v = rt_float((uint16_t)h);
        if (!isfinite(v) || signbit(v) != signbit(f))
            continue;
        double d = fabs((double)v - (double)f);
        if (d < least || (d == least && h % 2 == 0)) {
            least = d;
            best = (uint16_t)h;
        }
    }
    return best;
}

Test(bf16, rounds_to_nearest_even)
{
    static const float some[] = { 0, 1, -1, 1.00390625f, 1.01171875f, 257, 259, 3.14159f, 1e-39f,
                                  -1e-40f, 1e38f, -0.1f, 1.0039063f, 65280, 0.33333f };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        cr_assert_eq(rt_bf16(some[i]), nearest(some[i]), "%g", (double)some[i]);
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = rt_float((uint16_t)h);
        if (isnan(f))
            cr_assert(isnan(rt_float(rt_bf16(f))));
        else
            cr_assert_eq(rt_bf16(f), h);
    }
    cr_assert(isnan(rt_float(rt_bf16((float)NAN))));
    uint32_t low = 0x7f800001;                  // a nan whose bits are all in the lower half
    float f;
    memcpy(&f, &low, sizeof f);
    cr_assert(isnan(rt_float(rt_bf16(f))));
    cr_assert_eq(rt_float(rt_bf16(3.4e38f)), (float)INFINITY);
}

/* ---- a program of a few steps ---------------------------------------------- */

enum { N = 3000, P = 3, PART = P * N * 4 };     // bytes: room for floats

static RtHeader head;
static RtStep step[8];
static RtRef args[5];
static RtPass pass;
static atomic_int came, wrong;

/* Ranks are numbered as they come: 256, 1 and 1 in every element, and what was there. */
static void fill(const RtCall *c, int64_t lo, int64_t hi)
{
    if (lo >= hi)
        return;
    int me = atomic_fetch_add(&came, 1);
    for (int i = 0; i < P * N; i++) {
        ((uint16_t *)c->arg[0])[i] = rt_bf16(me == 0 ? 256 : 1);
        ((uint16_t *)c->arg[1])[i] = rt_bf16(2);
        ((float *)c->arg[2])[i] = 0.25f;
        ((uint16_t *)c->arg[3])[i] = rt_bf16((float)(me + 1));
    }
}

static void expect(double got, double want)
{
    if (got != want)
        atomic_fetch_add(&wrong, 1);
}

static void look(const RtCall *c, int64_t lo, int64_t hi)
{
    double all = 0;
    if (lo >= hi)
        return;
    for (int i = 0; i < N; i++) {
        expect((double)rt_float(((uint16_t *)c->arg[0])[i]), 258);      // summed in float
        expect((double)rt_float(((uint16_t *)c->arg[1])[i]), 260);
        expect((double)((float *)c->arg[2])[i], 258.25);
    }
    for (int q = 0; q < P; q++) {
        float first = rt_float(((uint16_t *)c->arg[4])[q * N]);
        all += (double)first;
        for (int i = 0; i < N; i++)
            expect((double)rt_float(((uint16_t *)c->arg[4])[q * N + i]), (double)first);
    }
    expect(all, 6);
}

static RtRef stored(int64_t at, bool bf16)
{
    return (RtRef){ .offset = at, .ld = N, .stored = bf16 ? RT_BF16_STORED : RT_REAL };
}

static RtStep *add(int kind, RtRef a, RtRef c, int64_t n)
{
    RtStep *s = &step[head.nsteps++];
    *s = (RtStep){ .kind = kind, .axes = RT_X, .kernel = -1, .rowmap = -1, .rowmap_k = -1,
                   .colmap = -1, .unit = -1, .a = a, .c = c, .count = n };
    return s;
}

static void add_kernel(int k)
{
    RtStep *s = add(RT_KERNEL, stored(0, true), stored(0, true), 0);
    s->kernel = k;
    s->items = 1;
    s->nargs = 5;
    for (int i = 0; i < 5; i++)
        args[i].offset = i * PART;
}

static void begin(int x, int workers)
{
    head = (RtHeader){ .version = RT_VERSION, .header_bytes = sizeof head,
                       .step_bytes = sizeof(RtStep), .real_bytes = 4, .nstages = 1, .data = 1,
                       .x = x, .y = 1, .z = 1, .workers = workers, .microbatches = 1, .batch = x,
                       .sequence = 1, .T = x, .vocab = 9, .block_bytes = 6 * PART, .npasses = 1,
                       .nslices = 1, .master_offset = -1 };
    head.train.data = head.train.data_dir = head.train.format = -1;
    head.train.order = head.train.weights = head.train.log = -1;
    atomic_store(&came, 0);
    atomic_store(&wrong, 0);
}

static int run(const RtKernelFn *kernels)
{
    static const int64_t slice = 1;
    static int32_t tokens[64];
    RtProgram p = { .head = &head, .steps = step, .passes = &pass, .slices = &slice,
                    .args = args, .text = "", .kernels = kernels };
    pass = (RtPass){ .kind = RT_PASS_FORWARD, .last = head.nsteps };
    return rt_run(&p, &(RtOptions){ .steps = 1, .quiet = 1, .fixed_tokens = tokens,
                                    .fixed_ntokens = 64 });
}

/* n elements in each part: small and large take different roads. */
static void sums(int64_t n, int workers)
{
    static const RtKernelFn kernels[] = { fill, look };
    begin(P, workers);
    add_kernel(0);
    add(RT_REDUCE_SCATTER, stored(0, true), stored(PART, true), n)->accumulate = 1;
    add(RT_REDUCE_SCATTER, stored(0, true), stored(2 * PART, false), n)->accumulate = 1;
    add(RT_ALL_REDUCE, stored(0, true), stored(0, true), n);
    add(RT_ALL_GATHER, stored(3 * PART, true), stored(4 * PART, true), n);
    if (n == N)
        add_kernel(1);
    cr_assert_eq(run(kernels), 0);
    cr_assert_eq(atomic_load(&wrong), 0, "%d elements, %d workers: %d", (int)n, workers,
                 atomic_load(&wrong));
}

Test(bf16, sums_are_made_in_float)
{
    for (int workers = 1; workers <= 3; workers += 2) {
        sums(N, workers);
        sums(7, workers);
        sums(0, workers);
    }
}

/* ---- products -------------------------------------------------------------- */

enum { M = 37, K = 21, C = 50 };

static int trans, mask, again;

static double value(int which, int i) { return (i * (which + 3) + i / 7) % 9 - 4; }

static void put(void *p, bool bf16, int i, double v)
{
    if (bf16)
        ((uint16_t *)p)[i] = rt_bf16((float)v);
    else
        ((float *)p)[i] = (float)v;
}

static void operands(const RtCall *c, int64_t lo, int64_t hi)
{
    for (int i = 0; lo < hi && i < 64 * 64; i++) {
        put(c->arg[0], mask & 1, i, value(0, i));
        put(c->arg[1], mask & 2, i, value(1, i));
        put(c->arg[2], mask & 4, i, 2);
    }
}

static void product(const RtCall *c, int64_t lo, int64_t hi)
{
    for (int i = 0; lo < hi && i < M; i++)
        for (int j = 0; j < C; j++) {
            double v = again ? 2 : 0;
            for (int k = 0; k < K; k++)
                v += value(0, trans & 1 ? k * 64 + i : i * 64 + k)
                     * value(1, trans & 2 ? j * 64 + k : k * 64 + j);
            int at = i * 64 + j;
            if (mask & 4)
                expect((double)rt_float(((uint16_t *)c->arg[2])[at]),
                       (double)rt_float(rt_bf16((float)v)));
            else
                expect((double)((float *)c->arg[2])[at], v);
        }
}

Test(bf16, products_of_stored_operands)
{
    static const RtKernelFn kernels[] = { operands, product };
    for (int form = 0; form < 4 * 8 * 2 * 2; form++) {
        trans = form % 4, mask = form / 4 % 8, again = form / 32 % 2;
        begin(1, form / 64 ? 3 : 1);
        add_kernel(0);
        RtStep *s = add(RT_GEMM, stored(0, mask & 1), stored(2 * PART, mask & 4), 0);
        s->b = stored(PART, mask & 2);
        s->a.ld = s->b.ld = s->c.ld = 64;
        s->trans_a = trans & 1;
        s->trans_b = trans & 2;
        s->m = M, s->n = C, s->k = K;
        s->accumulate = again;
        add_kernel(1);
        cr_assert_eq(run(kernels), 0);
        cr_assert_eq(atomic_load(&wrong), 0, "form %d: %d", form, atomic_load(&wrong));
    }
}

/* ---- copies ---------------------------------------------------------------- */

Test(bf16, moves)
{
    Rt rt = { .real = 4 };
    uint16_t h[40], g[40];
    float f[40];
    for (int i = 0; i < 40; i++)
        h[i] = rt_bf16((float)i);
    rt_move(&rt, h, RT_BF16_STORED, f, RT_REAL, 40, false);
    rt_move(&rt, h, RT_BF16_STORED, f, RT_REAL, 40, true);
    rt_move(&rt, f, RT_REAL, g, RT_BF16_STORED, 40, false);
    rt_move(&rt, h, RT_BF16_STORED, g, RT_BF16_STORED, 40, true);
    for (int i = 0; i < 40; i++)
        cr_assert(f[i] == (float)(2 * i) && rt_float(g[i]) == (float)(3 * i));
    rt_move(&rt, g, RT_BF16_STORED, h, RT_BF16_STORED, 40, false);
    cr_assert_eq(memcmp(h, g, sizeof h), 0);
}
