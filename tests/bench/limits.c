/*
 * limits.c - what this machine could do: sgemm of the BLAS that the runtime would
 * load, on all threads at once, and the time to touch fresh memory. bench.sh
 * divides by these.
 *
 *     limits THREADS      prints "GFLOP/s seconds-to-touch-1-GB"
 *
 * OPENBLAS_CORETYPE must be set before the start (bench.sh does).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef void Sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int,
                   float, float *, int);
enum { M = 512, N = 768, K = 768, ROUNDS = 12 };
enum { ROW_MAJOR = 101, NO_TRANS = 111 };

static Sgemm *sgemm;
static int nthreads;
static pthread_barrier_t gate;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *worker(void *best)
{
    float *a = calloc(M * K, sizeof *a), *b = calloc(K * N, sizeof *b);
    float *c = calloc(M * N, sizeof *c);
    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i % 7);
    for (int i = 0; i < K * N; i++)
        b[i] = (float)(i % 5);
    for (int r = 0; r < ROUNDS; r++) {
        pthread_barrier_wait(&gate);
        double start = now();
        for (int i = 0; i < 8; i++)
            sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, M, N, K, 1, a, K, b, N, 0, c, N);
        pthread_barrier_wait(&gate);
        double rate = 8 * 2.0 * M * N * K * nthreads / (now() - start) * 1e-9;
        if (best && rate > *(double *)best)
            *(double *)best = rate;
    }
    free(a), free(b), free(c);
    return NULL;
}

static void *toucher(void *at)
{
    size_t n = (size_t)1000000000 / (size_t)nthreads;
    for (size_t i = 0; i < n; i += 4096)
        ((volatile char *)at)[i] = 1;
    return NULL;
}

static void run(pthread_t *t, void *(*fn)(void *), void **arg)
{
    for (int i = 0; i < nthreads; i++)
        pthread_create(&t[i], NULL, fn, arg[i]);
    for (int i = 0; i < nthreads; i++)
        pthread_join(t[i], NULL);
}

int main(int argc, char **argv)
{
    nthreads = argc > 1 ? atoi(argv[1]) : 2;
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    void (*set_threads)(int) = lib ? (void (*)(int))dlsym(lib, "openblas_set_num_threads") : NULL;
    sgemm = lib ? (Sgemm *)dlsym(lib, "cblas_sgemm") : NULL;
    double best = 0;
    pthread_t *t = calloc((size_t)nthreads, sizeof *t);
    void **arg = calloc((size_t)nthreads, sizeof *arg);
    if (sgemm) {
        if (set_threads)
            set_threads(1);
        pthread_barrier_init(&gate, NULL, (unsigned)nthreads);
        arg[0] = &best;
        run(t, worker, arg);
    }
    char *fresh = mmap(NULL, 1000000000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    if (fresh == MAP_FAILED)
        return 4;
    for (int i = 0; i < nthreads; i++)
        arg[i] = fresh + (size_t)1000000000 / (size_t)nthreads * (size_t)i;
    double start = now();
    run(t, toucher, arg);
    printf("%.1f %.3f\n", best, now() - start);
    return 0;
}
