/*
 * blas.c - matrix products: finds a BLAS, checks it, measures it, calls it.
 *
 * Libraries are opened at start, not linked, for two reasons: a machine without
 * one still runs, and OpenBLAS reads OPENBLAS_CORETYPE in its constructor, so
 * that only a setenv before dlopen helps where it does not know the processor
 * (Debian's then runs five times too slow). Candidates stand in a fixed order,
 * found by measurement, and the first that multiplies rightly is taken, however
 * fast it is this time: the choice decides the last bits of a run, and on a busy
 * machine a race has other winners. A slow one is only reported.
 * RT_BLAS=openblas|blis|onednn|none|PATH pins it. The products of a rank's
 * workers are cut by the caller: every library runs with one thread.
 *
 * The serial flavour of OpenBLAS 0.3.21 gives wrong products when two threads
 * call it at once (4 steps of a tiny model on 2 ranks: 1 run in 10). It comes
 * last, and where a run has several threads a lock lets in one at a time.
 *
 * Without any library plain blocked loops are used, and a warning says so.
 */
#include "rt_impl.h"

#include <dlfcn.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };      // cblas.h
typedef void (*CblasSgemm)(int, int, int, int, int, int, float, const float *, int,
                           const float *, int, float, float *, int);
typedef void (*CblasDgemm)(int, int, int, int, int, int, double, const double *, int,
                           const double *, int, double, double *, int);
typedef int (*DnnlSgemm)(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t,
                         const float *, int64_t, float, float *, int64_t);

/* TUNING: fraction of the machine's peak under which a BLAS is called slow. */
static const double SLOW = 0.40;

#if defined(__aarch64__)
#define DEBIAN "/usr/lib/aarch64-linux-gnu/"
#else
#define DEBIAN "/usr/lib/x86_64-linux-gnu/"
#endif
typedef struct { const char *word, *name, *path; } Candidate;
static const Candidate candidates[] = {
    { "openblas", "OpenBLAS", DEBIAN "openblas-pthread/libopenblas.so.0" },
    { "openblas", "OpenBLAS", "libopenblas.so.0" },
    { "openblas", "OpenBLAS", DEBIAN "openblas-serial/libopenblas.so.0" },
    { "blis", "BLIS", "libblis.so.4" },
    { "blis", "BLIS", "libblis.so" },
    { "onednn", "oneDNN", "libdnnl.so.3" },
    { "onednn", "oneDNN", "libdnnl.so.2" },
    { "onednn", "oneDNN", "libdnnl.so" },
};
enum { NCANDIDATES = sizeof candidates / sizeof *candidates };

/* ---- our own loops ------------------------------------------------------- */

enum { KC = 128, NC = 256, MR = 4 };
typedef float F8 __attribute__((vector_size(32), aligned(4)));
typedef double D4 __attribute__((vector_size(32), aligned(8)));

/* C [m, nb] += A [m, kb] B, B packed [kb][NC], zeros behind column nb. Rows that do not
 * exist repeat row 0 and are not stored. */
static inline __attribute__((always_inline)) void
body_f32(int64_t m, int64_t nb, int64_t kb, const float *a, int64_t a_row, int64_t a_col,
         float (*b)[NC], float *c, int64_t ldc)
{
    for (int64_t i = 0; i < m; i += MR) {
        int64_t rows = m - i < MR ? m - i : MR;
        const float *a0 = a + i * a_row, *a1 = rows > 1 ? a0 + a_row : a0;
        const float *a2 = rows > 2 ? a1 + a_row : a0, *a3 = rows > 3 ? a2 + a_row : a0;
        for (int64_t j = 0; j < nb; j += 8) {
            int64_t cols = nb - j < 8 ? nb - j : 8;
            F8 s0 = { 0 }, s1 = s0, s2 = s0, s3 = s0;
            for (int64_t k = 0; k < kb; k++) {
                F8 v = *(const F8 *)&b[k][j];
                s0 += a0[k * a_col] * v;
                s1 += a1[k * a_col] * v;
                s2 += a2[k * a_col] * v;
                s3 += a3[k * a_col] * v;
            }
            F8 sum[MR] = { s0, s1, s2, s3 };
            for (int64_t r = 0; r < rows; r++)
                for (int64_t t = 0; t < cols; t++)
                    c[(i + r) * ldc + j + t] += sum[r][t];
        }
    }
}

static inline __attribute__((always_inline)) void
body_f64(int64_t m, int64_t nb, int64_t kb, const double *a, int64_t a_row, int64_t a_col,
         double (*b)[NC], double *c, int64_t ldc)
{
    for (int64_t i = 0; i < m; i += MR) {
        int64_t rows = m - i < MR ? m - i : MR;
        const double *a0 = a + i * a_row, *a1 = rows > 1 ? a0 + a_row : a0;
        const double *a2 = rows > 2 ? a1 + a_row : a0, *a3 = rows > 3 ? a2 + a_row : a0;
        for (int64_t j = 0; j < nb; j += 4) {
            int64_t cols = nb - j < 4 ? nb - j : 4;
            D4 s0 = { 0 }, s1 = s0, s2 = s0, s3 = s0;
            for (int64_t k = 0; k < kb; k++) {
                D4 v = *(const D4 *)&b[k][j];
                s0 += a0[k * a_col] * v;
                s1 += a1[k * a_col] * v;
                s2 += a2[k * a_col] * v;
                s3 += a3[k * a_col] * v;
            }
            D4 sum[MR] = { s0, s1, s2, s3 };
            for (int64_t r = 0; r < rows; r++)
                for (int64_t t = 0; t < cols; t++)
                    c[(i + r) * ldc + j + t] += sum[r][t];
        }
    }
}

typedef void (*BlockF32)(int64_t, int64_t, int64_t, const float *, int64_t, int64_t,
                         float (*)[NC], float *, int64_t);
typedef void (*BlockF64)(int64_t, int64_t, int64_t, const double *, int64_t, int64_t,
                         double (*)[NC], double *, int64_t);

static void plain_f32(int64_t m, int64_t nb, int64_t kb, const float *a, int64_t a_row,
                      int64_t a_col, float (*b)[NC], float *c, int64_t ldc)
{
    body_f32(m, nb, kb, a, a_row, a_col, b, c, ldc);
}

static void plain_f64(int64_t m, int64_t nb, int64_t kb, const double *a, int64_t a_row,
                      int64_t a_col, double (*b)[NC], double *c, int64_t ldc)
{
    body_f64(m, nb, kb, a, a_row, a_col, b, c, ldc);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma")))
static void avx2_f32(int64_t m, int64_t nb, int64_t kb, const float *a, int64_t a_row,
                     int64_t a_col, float (*b)[NC], float *c, int64_t ldc)
{
    body_f32(m, nb, kb, a, a_row, a_col, b, c, ldc);
}

__attribute__((target("avx2,fma")))
static void avx2_f64(int64_t m, int64_t nb, int64_t kb, const double *a, int64_t a_row,
                     int64_t a_col, double (*b)[NC], double *c, int64_t ldc)
{
    body_f64(m, nb, kb, a, a_row, a_col, b, c, ldc);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define avx2_f32 plain_f32
#define avx2_f64 plain_f64
static bool has_avx2(void) { return false; }
#endif

static void own_gemm_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a,
                         int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc)
{
    _Alignas(64) float pack[KC][NC];
    BlockF32 block = has_avx2() ? avx2_f32 : plain_f32;
    for (int64_t j = 0; j < n; j += NC)
        for (int64_t l = 0; l < k; l += KC) {
            int64_t nb = n - j < NC ? n - j : NC, kb = k - l < KC ? k - l : KC;
            for (int64_t q = 0; q < kb; q++)
                for (int64_t t = 0; t < NC; t++)
                    pack[q][t] = t >= nb ? 0 : tb ? b[(j + t) * ldb + l + q]
                                                  : b[(l + q) * ldb + j + t];
            block(m, nb, kb, a + (ta ? l * lda : l), ta ? 1 : lda, ta ? lda : 1, pack, c + j,
                  ldc);
        }
}

static void own_gemm_f64(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double *a,
                         int64_t lda, const double *b, int64_t ldb, double *c, int64_t ldc)
{
    _Alignas(64) double pack[KC][NC];
    BlockF64 block = has_avx2() ? avx2_f64 : plain_f64;
    for (int64_t j = 0; j < n; j += NC)
        for (int64_t l = 0; l < k; l += KC) {
            int64_t nb = n - j < NC ? n - j : NC, kb = k - l < KC ? k - l : KC;
            for (int64_t q = 0; q < kb; q++)
                for (int64_t t = 0; t < NC; t++)
                    pack[q][t] = t >= nb ? 0 : tb ? b[(j + t) * ldb + l + q]
                                                  : b[(l + q) * ldb + j + t];
            block(m, nb, kb, a + (ta ? l * lda : l), ta ? 1 : lda, ta ? lda : 1, pack, c + j,
                  ldc);
        }
}

static void clear(void *c, size_t real, int64_t m, int64_t n, int64_t ldc)
{
    for (int64_t i = 0; i < m; i++)
        memset((char *)c + (size_t)(i * ldc) * real, 0, (size_t)n * real);
}

/* ---- a product ----------------------------------------------------------- */

static int at_least_one(int64_t ld) { return ld > 0 ? (int)ld : 1; }

void rt_gemm(const RtBlas *blas, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
             const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,
             bool add)
{
    size_t real = blas->is_double ? sizeof(double) : sizeof(float);
    if (m <= 0 || n <= 0)
        return;
    if (k <= 0) {
        if (!add)
            clear(c, real, m, n, ldc);
        return;
    }
    if (blas->lock)
        pthread_mutex_lock(blas->lock);
    int ta = trans_a ? TRANS : NO_TRANS, tb = trans_b ? TRANS : NO_TRANS;
    int la = at_least_one(lda), lb = at_least_one(ldb), lc = at_least_one(ldc);
    if (blas->cblas && blas->is_double) {
        ((CblasDgemm)blas->cblas)(ROW_MAJOR, ta, tb, (int)m, (int)n, (int)k, 1, a, la, b, lb,
                                  add, c, lc);
    } else if (blas->cblas) {
        ((CblasSgemm)blas->cblas)(ROW_MAJOR, ta, tb, (int)m, (int)n, (int)k, 1, a, la, b, lb,
                                  add, c, lc);
    } else if (blas->dnnl && !blas->is_double) {
        ((DnnlSgemm)blas->dnnl)(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, 1, a, lda, b,
                                ldb, add, c, ldc);
    } else {
        if (!add)
            clear(c, real, m, n, ldc);
        if (blas->is_double)
            own_gemm_f64(trans_a, trans_b, m, n, k, a, lda, b, ldb, c, ldc);
        else
            own_gemm_f32(trans_a, trans_b, m, n, k, a, lda, b, ldb, c, ldc);
    }
    if (blas->lock)
        pthread_mutex_unlock(blas->lock);
}

/* ---- what the machine can do --------------------------------------------- */

/* Seconds this thread has worked: other programs' turns do not count. */
static double worked_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#if defined(__x86_64__)
/* Ten independent chains of fused multiply-adds hide the latency. */
__attribute__((target("avx512f"))) static float fma_512(int n)
{
    __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
    __m512 a = y, b = x, c = y, d = x, e = y, f = x, g = y, h = x, i = y, j = x;
    for (int k = 0; k < n; k++) {
        a = _mm512_fmadd_ps(a, x, y);
        b = _mm512_fmadd_ps(b, x, y);
        c = _mm512_fmadd_ps(c, x, y);
        d = _mm512_fmadd_ps(d, x, y);
        e = _mm512_fmadd_ps(e, x, y);
        f = _mm512_fmadd_ps(f, x, y);
        g = _mm512_fmadd_ps(g, x, y);
        h = _mm512_fmadd_ps(h, x, y);
        i = _mm512_fmadd_ps(i, x, y);
        j = _mm512_fmadd_ps(j, x, y);
    }
    a = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
    e = _mm512_add_ps(_mm512_add_ps(e, f), _mm512_add_ps(g, h));
    a = _mm512_add_ps(_mm512_add_ps(a, e), _mm512_add_ps(i, j));
    return _mm512_reduce_add_ps(a);
}

__attribute__((target("avx2,fma"))) static float fma_256(int n)
{
    __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    __m256 a = y, b = x, c = y, d = x, e = y, f = x, g = y, h = x, i = y, j = x;
    for (int k = 0; k < n; k++) {
        a = _mm256_fmadd_ps(a, x, y);
        b = _mm256_fmadd_ps(b, x, y);
        c = _mm256_fmadd_ps(c, x, y);
        d = _mm256_fmadd_ps(d, x, y);
        e = _mm256_fmadd_ps(e, x, y);
        f = _mm256_fmadd_ps(f, x, y);
        g = _mm256_fmadd_ps(g, x, y);
        h = _mm256_fmadd_ps(h, x, y);
        i = _mm256_fmadd_ps(i, x, y);
        j = _mm256_fmadd_ps(j, x, y);
    }
    a = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
    e = _mm256_add_ps(_mm256_add_ps(e, f), _mm256_add_ps(g, h));
    a = _mm256_add_ps(_mm256_add_ps(a, e), _mm256_add_ps(i, j));
    return _mm256_cvtss_f32(a);
}
#endif

/* GFLOP/s of one thread, fp32; 0 where we do not know how to ask. */
static double peak_f32(void)
{
    double best = 0;
#if defined(__x86_64__)
    bool wide = __builtin_cpu_supports("avx512f");
    if (!wide && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")))
        return 0;
    volatile float keep;
    enum { ROUNDS = 20000 };
    for (int i = 0; i < 4; i++) {
        double t = worked_s();
        keep = wide ? fma_512(ROUNDS) : fma_256(ROUNDS);
        t = worked_s() - t;
        double rate = 2e-9 * 10 * ROUNDS * (wide ? 16 : 8) / t;
        best = rate > best ? rate : best;
    }
    (void)keep;
#endif
    return best;
}

/* The core OpenBLAS should assume; NULL: let it choose. */
static const char *core_type(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
#endif
    return NULL;
}

/* ---- choosing ------------------------------------------------------------ */

enum { N = 192 };       // side of the test product: a third of a millisecond

static double in_a(int i, int k) { return (i * 7 + k * 3) % 9 - 4; }
static double in_b(int k, int j) { return (k * 5 + j) % 7 - 3; }

/* Small integers: every right answer is exact. Checks eight rows. */
static bool is_right(const RtBlas *blas, const void *c)
{
    for (int i = 0; i < N; i += N / 8)
        for (int j = 0; j < N; j++) {
            double want = 0;
            for (int k = 0; k < N; k++)
                want += in_a(i, k) * in_b(k, j);
            double got = blas->is_double ? ((const double *)c)[i * N + j]
                                         : (double)((const float *)c)[i * N + j];
            if (got != want)
                return false;
        }
    return true;
}

/* Fills blas->gflops; false: it multiplies wrongly. */
static bool self_test(RtBlas *blas)
{
    size_t real = blas->is_double ? sizeof(double) : sizeof(float);
    char *a = rt_alloc(3 * N * N, real), *b = a + N * N * real, *c = b + N * N * real;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            if (blas->is_double) {
                ((double *)(void *)a)[i * N + j] = in_a(i, j);
                ((double *)(void *)b)[i * N + j] = in_b(i, j);
            } else {
                ((float *)(void *)a)[i * N + j] = (float)in_a(i, j);
                ((float *)(void *)b)[i * N + j] = (float)in_b(i, j);
            }
        }
    double start = worked_s();
    int rounds = 6;
    for (int i = 0; i < rounds && (i < 2 || worked_s() - start < 4e-3 * rounds / 6); i++) {
        double t = worked_s();
        rt_gemm(blas, false, false, N, N, N, a, N, b, N, c, N, false);
        t = worked_s() - t;
        double rate = 2e-9 * N * N * N / (t > 0 ? t : 1e-9);
        blas->gflops = rate > blas->gflops ? rate : blas->gflops;
        if (i == rounds - 1 && rounds < 24 && blas->gflops < SLOW * blas->peak)
            rounds *= 2;                // look again before calling it slow
    }
    bool right = is_right(blas, c);
    free(a);
    return right;
}

/* dlsym gives an object pointer; functions take the same road (POSIX). */
static void one_thread(void *lib, const char *name)
{
    void (*set)(int) = NULL;
    *(void **)(void *)&set = dlsym(lib, name);
    if (set)
        set(1);
}

static bool open_candidate(Rt *rt, const Candidate *c, double peak, RtBlas *out)
{
    void *lib = dlopen(c->path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return false;
    bool is_double = rt->real == sizeof(double);
    *out = (RtBlas){ .name = c->name, .is_double = is_double, .peak = peak };
    out->cblas = dlsym(lib, is_double ? "cblas_dgemm" : "cblas_sgemm");
    if (!out->cblas && !is_double)
        out->dnnl = dlsym(lib, "dnnl_sgemm");
    one_thread(lib, "openblas_set_num_threads");
    one_thread(lib, "bli_thread_set_num_threads");
    int (*parallel)(void) = NULL;
    *(void **)(void *)&parallel = dlsym(lib, "openblas_get_parallel");
    if (parallel && parallel() == 0 && rt->nranks * rt->nworkers > 1)
        out->lock = &rt->blas_lock;
    char *(*core)(void) = NULL;
    *(void **)(void *)&core = dlsym(lib, "openblas_get_corename");
    snprintf(out->what, sizeof out->what, "%s%s%s", c->name, core ? " " : "",
             core ? core() : "");
    return (out->cblas || out->dnnl) && self_test(out);
}

static void warn_speed(const Rt *rt, const RtBlas *b)
{
    if (!b->cblas && !b->dnnl)
        rt_note(rt, "warning: no BLAS found, products use plain loops (%.0f GFLOP/s; install "
                "libopenblas0-pthread)", b->gflops);
    else if (b->lock)
        rt_note(rt, "warning: the serial OpenBLAS multiplies for one thread at a time; install "
                "libopenblas0-pthread");
    else if (b->peak > 0 && b->gflops < SLOW * b->peak)
        rt_note(rt, "warning: %s reaches %.0f of %.0f GFLOP/s; OPENBLAS_CORETYPE or RT_BLAS "
                "choose another", b->what, b->gflops, b->peak);
}

int rt_blas_open(Rt *rt)
{
    bool is_double = rt->real == sizeof(double);
    const char *want = getenv("RT_BLAS");
    Candidate given = { want, want, want };
    const char *core = core_type();
    if (core)
        setenv("OPENBLAS_CORETYPE", core, 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    double peak = peak_f32() / (is_double ? 2 : 1);
    RtBlas best = { 0 };
    int n = want && strchr(want, '/') ? 1 : NCANDIDATES;
    for (int i = 0; i < n; i++) {
        const Candidate *c = n == 1 ? &given : &candidates[i];
        RtBlas b;
        if (n > 1 && want && *want && strcmp(want, c->word) != 0)
            continue;
        if (!open_candidate(rt, c, peak, &b))
            continue;
        if (!best.name || !b.lock)
            best = b;
        if (!best.lock)
            break;
    }
    if (!best.name && want && *want && strcmp(want, "none") != 0)
        return rt_fail(rt, RT_WORLD, "%s: error: RT_BLAS=%s: no such library here, or it does "
                       "not multiply", rt->exe, want);
    if (!best.name) {
        best = (RtBlas){ .name = "none", .what = "no BLAS", .is_double = is_double,
                         .peak = peak };
        self_test(&best);
    }
    rt->blas = best;
    warn_speed(rt, &best);
    return RT_OK;
}
