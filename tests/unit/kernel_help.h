/*
 * kernel_help.h - what the tests of generated kernels share: random reals of either
 * type with a guard behind them, comparison, and running one kernel as workers do.
 *
 * Each case runs in float and in double, on odd sizes, with leading dimensions above
 * the width, and with the items cut among 1 to 3 workers. Tolerances: |got - want| <=
 * tol * (1 + |want|), tol = 1e-12 for double and 3e-5 for float unless said.
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

/* Reals of either type; guard: a border behind the end that must stay as it was. */
typedef struct { void *p; int64_t n; bool dbl; } Buf;
enum { GUARD = 64 };
static inline double at(Buf b, int64_t i) { return b.dbl ? ((double *)b.p)[i] : ((float *)b.p)[i]; }
static inline void put(Buf b, int64_t i, double x)
{
    if (b.dbl) ((double *)b.p)[i] = x;
    else ((float *)b.p)[i] = (float)x;
}
static inline Buf buf(bool dbl, int64_t n, double scale)
{
    Buf b = { NULL, n, dbl };
    b.p = aligned_alloc(64, ((size_t)(n + GUARD) * 8 + 63) / 64 * 64);
    for (int64_t i = 0; i < n; i++) put(b, i, scale * uniform());
    for (int64_t i = n; i < n + GUARD; i++) put(b, i, 4096);
    return b;
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
static inline void same(Buf got, const double *want, double tol_double, double tol_float,
                 const char *what)
{
    double tol = got.dbl ? tol_double : tol_float;
    for (int64_t i = 0; i < got.n; i++) {
        double g = at(got, i), w = want[i];
        bool both_nan = g != g && w != w;
        cr_assert(g == w || both_nan || fabs(g - w) <= tol * (1 + fabs(w)),
                  "%s (%s): element %ld of %ld is %.17g, not %.17g", what,
                  got.dbl ? "double" : "float", (long)i, (long)got.n, g, w);
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
    return (KernelSpec){ .kind = kind, .name = name, .key = name, .is_double = dbl };
}

static inline void both(void (*test)(bool dbl, int variant), int variants)
{
    for (int v = 0; v < variants; v++)
        for (int d = 0; d < 2; d++) test(d, v);
}

static inline double huge_real(Buf b) { return b.dbl ? 1e300 : 1e30; }

static const int64_t widths[] = { 1, 3, 17, 18, 216, 768 };

#endif
