/*
 * kernel_help.h - what the tests of generated kernels share: random reals of either
 * type, or stored as bf16, with a guard behind them, comparison, and running one kernel
 * as workers do.
 *
 * Each case runs in float and in double, on odd sizes, with leading dimensions above
 * the width, and with the items cut among 1 to 3 workers. Tolerances: |got - want| <=
 * tol * (1 + |want|), tol = 1e-12 for double and 3e-5 for float unless said. What is
 * stored as bf16 must be a number of that range rounded.
 */
#ifndef KERNEL_HELP_H
#define KERNEL_HELP_H

#include <criterion/criterion.h>

#include "kernel.h"
#include "rt.h"

/* ---- numbers -------------------------------------------------------------------- */

static uint64_t state = 88172645463325252u;
static inline uint64_t bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
static inline int64_t below(int64_t n) { return (int64_t)(bits() >> 11) % n; }
static inline double uniform(void) { return (double)(bits() >> 11) * 0x1p-52 - 1; }      // -1 .. 1

/* bf16: the upper half of a float. */
static inline float from_half(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float y;
    memcpy(&y, &u, sizeof y);
    return y;
}
/* The nearest; of two equally near the even one. */
static inline uint16_t to_half(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t low = u & 0xffff, high = u >> 16;
    if (x != x) return (uint16_t)(high | 0x40);
    if (low > 0x8000 || (low == 0x8000 && high % 2)) high++;
    return (uint16_t)high;
}

/* Reals of either type, or bf16; guard: a border behind the end that must stay as it was. */
typedef struct { void *p; int64_t n; bool dbl, half; } Buf;
enum { GUARD = 64 };
static inline double at(Buf b, int64_t i)
{
    if (b.half) return from_half(((uint16_t *)b.p)[i]);
    return b.dbl ? ((double *)b.p)[i] : ((float *)b.p)[i];
}
static inline void put(Buf b, int64_t i, double x)
{
    if (b.half) ((uint16_t *)b.p)[i] = to_half((float)x);
    else if (b.dbl) ((double *)b.p)[i] = x;
    else ((float *)b.p)[i] = (float)x;
}
static inline Buf buf_as(bool dbl, bool half, int64_t n, double scale)
{
    Buf b = { NULL, n, dbl, half };
    b.p = aligned_alloc(64, ((size_t)(n + GUARD) * 8 + 63) / 64 * 64);
    for (int64_t i = 0; i < n; i++) put(b, i, scale * uniform());
    for (int64_t i = n; i < n + GUARD; i++) put(b, i, 4096);
    return b;
}
static inline Buf buf(bool dbl, int64_t n, double scale) { return buf_as(dbl, false, n, scale); }

/* Bit i: argument i of float kernels is bf16 in the cases that `halves` runs. */
static uint32_t halved;
static inline bool is_half(int arg, bool dbl) { return !dbl && halved >> arg & 1; }
static inline Buf arg_buf(int arg, bool dbl, int64_t n, double scale)
{
    return buf_as(dbl, is_half(arg, dbl), n, scale);
}
static inline void release(Buf b)
{
    for (int64_t i = b.n; i < b.n + GUARD; i++)
        cr_assert_eq(at(b, i), 4096, "written past the end");
    free(b.p);
}
static inline double *copy(Buf b)
{
    double *x = malloc(sizeof *x * (size_t)(b.n + 1));
    for (int64_t i = 0; i < b.n; i++) x[i] = at(b, i);
    return x;
}
static inline bool agree(bool half, double got, double want, double tol)
{
    double e = tol * (1 + fabs(want));
    if (got == want || (got != got && want != want)) return true;
    if (!half) return fabs(got - want) <= e;
    return got >= from_half(to_half((float)(want - e)))
        && got <= from_half(to_half((float)(want + e)));
}
static inline void same(Buf got, const double *want, double tol_double, double tol_float,
                 const char *what)
{
    double tol = got.dbl ? tol_double : tol_float;
    for (int64_t i = 0; i < got.n; i++) {
        double g = at(got, i), w = want[i];
        cr_assert(agree(got.half, g, w, tol),
                  "%s (%s): element %ld of %ld is %.17g, not %.17g", what,
                  got.dbl ? "double" : got.half ? "bf16" : "float", (long)i, (long)got.n, g, w);
    }
}
static inline void close_to(Buf got, const double *want, const char *what)
{
    same(got, want, 1e-12, 3e-5, what);
}

/* ---- running ---------------------------------------------------------------------- */

static inline void run(const KernelSpec *spec, RtCall *call, int64_t items, int workers)
{
    Kernels *k = emit_llvm(spec, 1, "test", NULL);
    RtKernelFn fn = (RtKernelFn)(uintptr_t)kernels_jit(k)[0];
    call->nworkers = workers;
    for (int w = 0; w < workers; w++) {
        call->worker = w;
        fn(call, items * w / workers, items * (w + 1) / workers);
    }
    kernels_free(k);
}

static inline KernelSpec spec_of(KernelKind kind, const char *name, bool dbl)
{
    return (KernelSpec){ .kind = kind, .name = name, .key = name, .is_double = dbl,
                         .bf16 = dbl || kind == K_ROWS ? 0 : halved };
}

static inline void both(void (*test)(bool dbl, int variant), int variants)
{
    for (int v = 0; v < variants; v++)
        for (int d = 0; d < 2; d++) test(d, v);
}

/* The float cases with the arguments of `mask` in bf16. */
static inline void halves(void (*test)(bool dbl, int variant), int variants, uint32_t mask)
{
    halved = mask;
    for (int v = 0; v < variants; v++) test(false, v);
    halved = 0;
}

static inline double huge_real(Buf b) { return b.dbl ? 1e300 : 1e30; }

static const int64_t widths[] = { 1, 3, 17, 18, 216, 768 };

#endif
