/*
 * measure.c - measurements for `teracube profile`; see measure.h.
 *
 * Two ways. Work that needs no ranks (products, streams, generated kernels) runs on
 * plain threads that start together and go on until all have enough. What belongs to
 * ranks (collectives, transfers, starts of steps) waits, and goes by the clock: a program
 * made here, a list of equal steps, that rt_run executes like any other. The time from one
 * training step to the next, divided by the length of the list, is the figure.
 */
#include "measure.h"
#include "rt_impl.h"

#include <math.h>
#include <sched.h>
#include <sys/utsname.h>
#include <time.h>

void rt_measure_cpu(char name[RT_CPU_NAME])
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    struct utsname u;
    snprintf(name, RT_CPU_NAME, "%s", uname(&u) == 0 ? u.machine : "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (value == NULL || strncmp(line, "model name", 10) != 0)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        if (!*value)
            continue;
        snprintf(name, RT_CPU_NAME, "%.*s", RT_CPU_NAME - 1, value);
        break;
    }
    if (f)
        fclose(f);
}

const char *rt_measure_isa(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        return "x86-64 avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "x86-64 avx2 fma";
    return "x86-64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "other";
#endif
}

int rt_measure_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double lower_eighth(double *s, int n)
{
    if (n < 1)
        return 0;
    qsort(s, (size_t)n, sizeof *s, by_value);
    return s[n / 8];
}

/* ---- calls on threads ------------------------------------------------------------ */

enum { SAMPLES = 512, LEAST = 3 };
static const double SAMPLE_S = 20e-6;   // shorter calls are timed several at a time

typedef struct {
    RtMeasured fn; void *arg;
    int threads;
    double seconds;
    pthread_barrier_t start;
    atomic_int enough;                  // threads that have measured what they need
} Meter;

/* Seconds this thread has worked: other programs' turns do not count. */
static double worked_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct { Meter *m; int index; pthread_t thread; double sample[SAMPLES]; int n; } Prober;

static void *probe(void *arg)
{
    Prober *p = arg;
    Meter *m = p->m;
    int times = 1;
    bool told = false;
    m->fn(m->arg, p->index);            // memory is touched, code is there
    pthread_barrier_wait(&m->start);
    double begin = rt_now_s();
    while (atomic_load(&m->enough) < m->threads) {
        double t = worked_s();
        for (int i = 0; i < times; i++)
            m->fn(m->arg, p->index);
        t = worked_s() - t;
        if (t < SAMPLE_S && times < 1 << 20) {
            times *= 2;
            continue;
        }
        p->sample[p->n % SAMPLES] = t / times;
        p->n++;
        if (!told && p->n >= LEAST && rt_now_s() - begin >= m->seconds) {
            told = true;
            atomic_fetch_add(&m->enough, 1);
        }
    }
    return NULL;
}

double rt_measure_calls(RtMeasured fn, void *arg, int threads, double seconds)
{
    Meter m = { .fn = fn, .arg = arg, .threads = threads, .seconds = seconds };
    Prober *p = rt_alloc((size_t)threads, sizeof *p);
    double *all = rt_alloc((size_t)threads * SAMPLES, sizeof *all);
    int n = 0;
    atomic_init(&m.enough, 0);
    pthread_barrier_init(&m.start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        p[i].m = &m;
        p[i].index = i;
        if (pthread_create(&p[i].thread, NULL, probe, &p[i])) {
            fputs("error: could not start a thread\n", stderr);
            exit(RT_WORLD);
        }
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(p[i].thread, NULL);
        int k = p[i].n < SAMPLES ? p[i].n : SAMPLES;
        memcpy(all + n, p[i].sample, sizeof *all * (size_t)k);
        n += k;
    }
    double s = lower_eighth(all, n);
    pthread_barrier_destroy(&m.start);
    free(all);
    free(p);
    return s;
}

/* ---- products -------------------------------------------------------------------- */

struct RtMeasure { Rt rt; };

RtMeasure *rt_measure_open(bool is_double)
{
    RtMeasure *m = rt_alloc(1, sizeof *m);
    Rt *rt = &m->rt;
    rt->exe = "teracube";
    rt->real = is_double ? sizeof(double) : sizeof(float);
    rt->nranks = rt_measure_cores();
    rt->nworkers = 1;
    pthread_mutex_init(&rt->fault_lock, NULL);
    pthread_mutex_init(&rt->blas_lock, NULL);
    if (rt_blas_open(rt) == RT_OK)
        return m;
    fprintf(stderr, "%s\n", rt->fault);
    rt_measure_close(m);
    return NULL;
}

const char *rt_measure_blas(const RtMeasure *m) { return m->rt.blas.what; }

void rt_measure_close(RtMeasure *m)
{
    pthread_mutex_destroy(&m->rt.fault_lock);
    pthread_mutex_destroy(&m->rt.blas_lock);
    free(m);
}

typedef struct {
    const RtBlas *blas;
    bool ta, tb;
    int64_t m, n, k;
    char **a, **b, **c;                 // by thread
} Product;

static void multiply(void *arg, int thread)
{
    Product *p = arg;
    rt_gemm(p->blas, p->ta, p->tb, p->m, p->n, p->k, p->a[thread], p->ta ? p->m : p->k,
            p->b[thread], p->tb ? p->k : p->n, p->c[thread], p->n, false);
}

static char *numbers(int64_t n, size_t real)
{
    size_t bytes = ((size_t)n * real + 63) / 64 * 64;
    char *p = aligned_alloc(64, bytes);
    if (!p) {
        fputs("error: out of memory\n", stderr);
        exit(RT_WORLD);
    }
    for (int64_t i = 0; i < n; i++) {
        double v = (double)(i * 7 % 9 - 4) * 0.01;
        if (real == sizeof(double))
            ((double *)(void *)p)[i] = v;
        else
            ((float *)(void *)p)[i] = (float)v;
    }
    return p;
}

double rt_measure_product(RtMeasure *m, bool trans_a, bool trans_b, int64_t rows, int64_t cols,
                          int64_t depth, int threads, double seconds)
{
    size_t real = m->rt.real, room = sizeof(char *) * (size_t)threads;
    Product p = { &m->rt.blas, trans_a, trans_b, rows, cols, depth, rt_alloc(1, room),
                  rt_alloc(1, room), rt_alloc(1, room) };
    for (int i = 0; i < threads; i++) {
        p.a[i] = numbers(rows * depth, real);
        p.b[i] = numbers(depth * cols, real);
        p.c[i] = numbers(rows * cols, real);
    }
    double s = rt_measure_calls(multiply, &p, threads, seconds);
    for (int i = 0; i < threads; i++) {
        free(p.a[i]);
        free(p.b[i]);
        free(p.c[i]);
    }
    free(p.a);
    free(p.b);
    free(p.c);
    return s;
}

/* ---- memory ---------------------------------------------------------------------- */

typedef struct { int64_t n; float **x, **y; } Stream;
typedef float F8 __attribute__((vector_size(32)));

static void scale(void *arg, int thread)
{
    const Stream *s = arg;
    const F8 *x = (const F8 *)(const void *)s->x[thread];
    F8 *y = (F8 *)(void *)s->y[thread];
    for (int64_t i = 0; i < s->n / 8; i++)
        y[i] = 1.5f * x[i];
}

double rt_measure_stream(int64_t bytes, int threads, double seconds)
{
    size_t room = sizeof(float *) * (size_t)threads;
    Stream s = { bytes / 8, rt_alloc(1, room), rt_alloc(1, room) };
    for (int i = 0; i < threads; i++) {
        s.x[i] = (float *)(void *)numbers(s.n, sizeof(float));
        s.y[i] = (float *)(void *)numbers(s.n, sizeof(float));
    }
    double t = rt_measure_calls(scale, &s, threads, seconds);
    for (int i = 0; i < threads; i++) {
        free(s.x[i]);
        free(s.y[i]);
    }
    free(s.x);
    free(s.y);
    return t;
}

/* ---- steps of ranks -------------------------------------------------------------- */

enum { ROUNDS = 48, LIST = 256 };       // training steps of a run; steps of its list, at most

typedef struct { double at[ROUNDS + 1]; int n; } Clock;

static void note_time(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    Clock *c = ctx;
    (void)rt, (void)step, (void)loss, (void)norm;
    if (c->n <= ROUNDS)
        c->at[c->n++] = rt_now_s();
}

/* What every program here has in common; `shape` says the rest. */
static RtHeader head_of(const RtHeader *shape, int stage, int nsteps, int npasses)
{
    RtHeader h = *shape;
    h.version = RT_VERSION;
    h.header_bytes = sizeof h;
    h.step_bytes = sizeof(RtStep);
    h.real_bytes = sizeof(float);
    h.stage = stage;
    h.microbatches = h.nslices = 1;
    h.batch = h.data;
    h.sequence = h.T = h.vocab = h.token_limit = 1;
    h.nsteps = nsteps;
    h.npasses = npasses;
    h.model_name = h.plan_line = 1;
    h.train.data = h.train.data_dir = h.train.format = h.train.order = -1;
    h.train.weights = h.train.log = -1;
    h.v_offset = h.master_offset = -1;
    h.ignore = -1;
    return h;
}

static const char text[] = "\0profile";
static const int64_t slices[1] = { 1 };

/* Seconds of a training step of the program; negative where the run failed, and said why; 0 on
 * processes that are not rank 0, which has the clock. */
static double time_program(const RtProgram *p, bool processes, int rounds)
{
    static const int32_t tokens[64];
    Clock clock = { .n = 0 };
    RtOptions o = { .steps = rounds + 1, .quiet = 1, .exe = "teracube", .after_step = note_time,
                    .ctx = &clock, .fixed_tokens = tokens, .fixed_ntokens = 64,
                    .may_be_launched = processes, .goes_on = processes && rounds > 1 };
    int status = rt_run(p, &o);
    double least = HUGE_VAL;
    for (int i = 0; i + 1 < clock.n; i++)
        least = fmin(least, clock.at[i + 1] - clock.at[i]);
    return status ? -1 : clock.n < 2 ? 0 : least;
}

/* Seconds of one of `n` copies of `step`. */
static double time_list(const RtHeader *shape, const RtStep *step, int n, bool processes,
                        int rounds)
{
    RtHeader head = head_of(shape, 0, n, 1);
    RtStep *list = rt_alloc((size_t)n, sizeof *list);
    for (int i = 0; i < n; i++)
        list[i] = *step;
    RtPass pass = { .kind = RT_PASS_FORWARD, .last = n };
    RtProgram p = { .head = &head, .steps = list, .passes = &pass, .slices = slices,
                    .text = text };
    double s = time_program(&p, processes, rounds) / n;
    free(list);
    return s;
}

static double time_step(const RtHeader *shape, const RtStep *step, double seconds)
{
    double t = time_list(shape, step, 4, false, ROUNDS);
    if (t <= 0)
        return 0;
    double n = seconds / ROUNDS / t;
    return time_list(shape, step, n < 4 ? 4 : n > LIST ? LIST : (int)n, false, ROUNDS);
}

static RtStep plain_step(RtStepKind kind)
{
    return (RtStep){ .kind = kind, .reason = -1, .kernel = -1, .columns_src = -1,
                     .columns_dst = -1, .rowmap = -1, .rowmap_k = -1, .colmap = -1, .unit = -1,
                     .grain = 1, .peer = -1 };
}

/* The step, and the mesh of groups of `group` over x, `stride` ranks apart. */
static RtHeader collective_step(RtStepKind kind, int group, int stride, int ranks, int64_t bytes,
                                RtStep *s)
{
    int64_t part = bytes / (group - 1) / (int64_t)sizeof(float);        // elements from a member
    *s = plain_step(kind);
    s->axes = RT_X;
    s->count = part;
    if (kind == RT_ALL_REDUCE)          // receives 2 (p-1)/p of what it sums
        s->count = bytes * group / (2 * (group - 1)) / (int64_t)sizeof(float);
    int64_t room = (part * group * (int64_t)sizeof(float) + 4096) / 64 * 64;
    if (kind == RT_REDUCE_SCATTER)
        s->c.offset = room;             // else in place
    return (RtHeader){ .nstages = 1, .data = ranks / group / stride, .x = group, .y = 1,
                       .z = stride, .workers = 1, .block_bytes = 2 * room };
}

double rt_measure_collective(RtStepKind kind, int group, int ranks, int64_t bytes,
                             double seconds)
{
    RtStep s;
    RtHeader h = collective_step(kind, group, 1, ranks, bytes, &s);
    return time_step(&h, &s, seconds);
}

/* All processes take the same lists, so these do not hang on what rank 0 measured. */
double rt_measure_group(RtStepKind kind, int group, int stride, int ranks, int64_t bytes,
                        bool processes, double seconds)
{
    enum { SOME = 12, SHORT = 256 << 10 };      // TUNING: a few dozen milliseconds each
    RtStep s;
    RtHeader h = collective_step(kind, group, stride, ranks, bytes, &s);
    if (!processes)
        return time_step(&h, &s, seconds);
    return time_list(&h, &s, bytes < SHORT ? 16 : 2, true, SOME);
}

void rt_measure_end(int ranks)
{
    RtStep s;
    RtHeader h = collective_step(RT_ALL_GATHER, ranks, 1, ranks, 4096, &s);
    time_list(&h, &s, 1, true, 1);      // the only one of one round
}

double rt_measure_step(int workers, double seconds)
{
    enum { NUMBERS = 16 };
    RtStep s = plain_step(RT_COPY);
    s.rows = 1;
    s.cols = s.a.ld = s.c.ld = NUMBERS;
    s.c.offset = 4096;
    RtHeader h = { .nstages = 1, .data = 1, .x = 1, .y = 1, .z = 1, .workers = workers,
                   .block_bytes = 8192 };
    return time_step(&h, &s, seconds);
}

/* Stage 0 sends activations and receives gradients, stage 1 the other way: one message is
 * under way at a time. */
static double time_messages(int64_t bytes, int n)
{
    int64_t room = (bytes + 4096) / 64 * 64;
    RtHeader shape = { .nstages = 2, .data = 1, .x = 1, .y = 1, .z = 1, .workers = 1,
                       .block_bytes = 2 * room }, head[2];
    RtStep step[2][2];
    RtPass *pass[2];
    RtProgram p[2];
    for (int stage = 0; stage < 2; stage++) {
        pass[stage] = rt_alloc(2 * (size_t)n, sizeof *pass[stage]);
        for (int i = 0; i < 2; i++) {   // the first step sends on stage 0, receives on 1
            RtStep *s = &step[stage][i];
            *s = plain_step(i == stage ? RT_SEND : RT_RECV);
            s->peer = 1 - stage;
            s->rows = 1;
            s->cols = s->count = bytes / (int64_t)sizeof(float);
            s->a.ld = s->c.ld = s->cols;
            s->c.offset = room;
        }
        for (int i = 0; i < 2 * n; i++)
            pass[stage][i] = (RtPass){ .first = i % 2, .last = i % 2 + 1,
                .kind = stage == 0 ? (i % 2 ? RT_PASS_RECV_GRADIENT : RT_PASS_SEND_ACTIVATION)
                                   : (i % 2 ? RT_PASS_SEND_GRADIENT : RT_PASS_RECV_ACTIVATION) };
        head[stage] = head_of(&shape, stage, 2, 2 * n);
        p[stage] = (RtProgram){ .head = &head[stage], .steps = step[stage],
                                .passes = pass[stage], .slices = slices, .text = text };
    }
    double s = time_program(p, false, ROUNDS) / (2 * n);
    free(pass[0]);
    free(pass[1]);
    return s;
}

double rt_measure_transfer(int64_t bytes, double seconds)
{
    double t = time_messages(bytes, 2);
    double n = t > 0 ? seconds / ROUNDS / t / 2 : 0;
    return t > 0 ? time_messages(bytes, n < 2 ? 2 : n > LIST ? LIST : (int)n) : 0;
}
