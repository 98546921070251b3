/*
 * test_runtime.c - the runtime alone: collectives, tables, data, files, and
 * whole runs of a program made by hand (handmade.c) on many meshes.
 */
#include "handmade.h"
#include "rt_impl.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- helpers ------------------------------------------------------------- */

static char folder[64];

static void make_folder(void)
{
    strcpy(folder, "/tmp/rt-test-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void drop_folder(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", folder);
    cr_assert_eq(system(cmd), 0);
}

TestSuite(runtime, .init = make_folder, .fini = drop_folder);

static const char *in_folder(const char *name)
{
    static char path[8][160];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, n, f), n);
    cr_assert_eq(fclose(f), 0);
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "no file %s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *out = calloc(*n + 1, 1);
    cr_assert_eq(fread(out, 1, *n, f), *n);
    fclose(f);
    return out;
}

/* Some text to train on: 400 tokens below 23. */
static const char *data_file(void)
{
    static char bytes[400];
    for (int i = 0; i < 400; i++)
        bytes[i] = (char)((i * i + i / 7) % 23);
    static char path[160];
    snprintf(path, sizeof path, "%s", in_folder("data.txt"));
    write_file(path, bytes, sizeof bytes);
    return path;
}

/* Runs with stderr in a file; its text is in `said`. */
static char said[8192];
static int run(const RtProgram *p, RtOptions o)
{
    const char *path = in_folder("stderr");
    fflush(stderr);
    int keep = dup(2), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 2);
    o.quiet = 1;
    o.exe = "hand";
    int status = rt_run(p, &o);
    fflush(stderr);
    dup2(keep, 2);
    close(keep);
    ssize_t n = pread(fd, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    close(fd);
    return status;
}

/* ---- whole runs ---------------------------------------------------------- */

typedef struct { double loss[8], norm[8], *grad[3], *param[3]; const RtProgram *p; } Seen;

static void look(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    Seen *s = ctx;
    if (step >= 8)
        return;
    s->loss[step] = loss;
    s->norm[step] = norm;
    for (int i = 0; i < 3; i++) {
        size_t n = (size_t)(s->p->params[i].rows * s->p->params[i].width);
        free(s->grad[i]);
        free(s->param[i]);
        s->grad[i] = calloc(n, sizeof(double));
        s->param[i] = calloc(n, sizeof(double));
        rt_read_param(rt, 1, i, s->grad[i]);
        rt_read_param(rt, 0, i, s->param[i]);
    }
}

static Make usual(const char *data)
{
    return (Make){ .data = 1, .x = 1, .y = 1, .z = 1, .workers = 1, .microbatches = 1,
                   .is_double = true, .vocab = 23, .hidden = 6, .sequence = 12, .batch = 8,
                   .steps = 4, .data_file = data };
}

static int train_seen(Make m, RtOptions o, Seen *out)
{
    RtProgram *p = handmade(&m);
    memset(out, 0, sizeof *out);
    out->p = p;
    o.after_step = look;
    o.ctx = out;
    if (o.steps == 0)
        o.steps = -1;
    int status = run(p, o);
    out->p = NULL;
    handmade_free(p);
    return status;
}

static void seen_free(Seen *s)
{
    for (int i = 0; i < 3; i++) {
        free(s->grad[i]);
        free(s->param[i]);
    }
}

static void near(double a, double b, double tol, const char *what)
{
    cr_assert(fabs(a - b) <= tol * fmax(1e-3, fabs(b)), "%s: %.17g, expected %.17g", what, a, b);
}

static void compare(const Seen *a, const Seen *b, double tol)
{
    static const int64_t size[3] = { 23 * 6, 6 * 23, 12 };
    for (int i = 0; i < 4; i++) {
        near(a->loss[i], b->loss[i], tol, "loss");
        near(a->norm[i], b->norm[i], tol, "norm");
    }
    for (int i = 0; i < 3; i++)
        for (int64_t k = 0; k < size[i]; k++) {
            near(a->grad[i][k], b->grad[i][k], tol * 10, "gradient");
            near(a->param[i][k], b->param[i][k], tol * 10, "parameter");
        }
}

static void on_meshes(bool is_double, double tol)
{
    static const int mesh[][7] = {  // data x y z workers microbatches zero
        { 1, 2, 1, 1, 1, 1, 0 }, { 1, 1, 2, 1, 1, 1, 0 }, { 1, 1, 1, 2, 1, 1, 0 },
        { 1, 2, 2, 2, 1, 1, 0 }, { 2, 1, 1, 1, 1, 1, 0 }, { 2, 1, 1, 1, 1, 1, 1 },
        { 2, 2, 3, 1, 1, 2, 1 }, { 4, 1, 2, 1, 1, 2, 1 }, { 1, 1, 1, 1, 3, 1, 0 },
        { 1, 2, 1, 2, 2, 2, 0 }, { 1, 3, 3, 2, 1, 1, 0 }, { 1, 1, 7, 1, 1, 4, 0 },
        { 2, 1, 5, 2, 2, 1, 1 }, { 1, 1, 1, 1, 1, 8, 0 }, { 2, 3, 3, 1, 1, 1, 0 },
        { 2, 1, 1, 1, 1, 1, 2 }, { 2, 1, 1, 1, 1, 1, 3 }, { 2, 2, 3, 1, 1, 2, 2 },
        { 4, 1, 2, 1, 2, 2, 3 }, { 2, 2, 2, 2, 1, 2, 3 }, { 1, 2, 1, 1, 1, 1, 3 },
    };
    const char *data = data_file();
    for (int masked = 0; masked < 2; masked++) {
        Make m = usual(data);
        Seen one, many;
        m.is_double = is_double;
        m.masked = masked;
        cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &one), 0, "%s", said);
        for (size_t i = 0; i < sizeof mesh / sizeof *mesh; i++) {
            const int *q = mesh[i];
            m.data = q[0], m.x = q[1], m.y = q[2], m.z = q[3], m.workers = q[4];
            m.microbatches = q[5], m.zero = q[6];
            m.balanced = 12 % (2 * m.x * m.z) == 0;
            cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &many), 0, "%zu: %s", i, said);
            compare(&many, &one, tol);
            seen_free(&many);
        }
        seen_free(&one);
    }
}

Test(runtime, meshes_agree_fp64) { on_meshes(true, 1e-11); }
Test(runtime, meshes_agree_fp32) { on_meshes(false, 2e-3); }

/* Parameters in 16 bits: close to those in float; layouts are closer to each other. */
Test(runtime, meshes_agree_bf16)
{
    static const int mesh[][7] = {  // data x y z workers microbatches zero
        { 1, 2, 2, 1, 1, 1, 0 }, { 2, 1, 2, 1, 2, 2, 0 }, { 2, 2, 1, 2, 1, 1, 1 },
        { 4, 1, 2, 1, 1, 2, 1 }, { 2, 2, 2, 1, 1, 2, 2 }, { 4, 1, 3, 1, 2, 1, 3 },
    };
    Make m = usual(data_file());
    Seen plain, one, many;
    m.is_double = false;
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &plain), 0, "%s", said);
    m.bf16 = true;
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &one), 0, "%s", said);
    for (int i = 0; i < 4; i++)
        near(one.loss[i], plain.loss[i], 1e-2, "loss");
    cr_assert(one.loss[1] != plain.loss[1]);
    for (size_t i = 0; i < sizeof mesh / sizeof *mesh; i++) {
        const int *q = mesh[i];
        m.data = q[0], m.x = q[1], m.y = q[2], m.z = q[3], m.workers = q[4];
        m.microbatches = q[5], m.zero = q[6];
        cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &many), 0, "%zu: %s", i, said);
        for (int k = 0; k < 4; k++) {
            near(many.loss[k], one.loss[k], 1e-3, "loss");
            near(many.norm[k], one.norm[k], 1e-2, "norm");
        }
        for (int k = 0; k < 138; k++)
            cr_assert_float_eq(many.param[0][k], one.param[0][k], 2e-2);
        seen_free(&many);
    }
    seen_free(&plain);
    seen_free(&one);
}

Test(runtime, loss_is_right)
{
    Make m = usual(data_file());
    Seen s, t;
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &s), 0);
    cr_assert(s.loss[0] > 2 && s.loss[0] < 6 && s.loss[3] < s.loss[0]);
    seen_free(&s);
    m.data = 2, m.x = 2, m.workers = 2;     // same bits twice
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &s), 0);
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &t), 0);
    cr_assert_eq(memcmp(s.loss, t.loss, sizeof s.loss), 0);
    cr_assert_eq(memcmp(s.norm, t.norm, sizeof s.norm), 0);
    seen_free(&s);
    seen_free(&t);
}

Test(runtime, own_loops_multiply_as_blas)
{
    Make m = usual(data_file());
    Seen s, t;
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &s), 0);
    setenv("RT_BLAS", "none", 1);
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &t), 0);
    cr_assert_not_null(strstr(said, "no BLAS found"));
    compare(&t, &s, 1e-11);
    seen_free(&t);
    setenv("RT_BLAS", "nonsense", 1);
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &t), RT_WORLD);
    seen_free(&s);
}

Test(runtime, gemm_of_odd_shapes)
{
    enum { M = 37, N = 300, K = 141 };
    static double a[K * M + M * K], b[K * N], c[M * (N + 3)], d[M * (N + 3)];
    static float fa[K * M], fb[K * N], fc[M * (N + 3)];
    RtBlas own = { .is_double = true }, own_f = { .is_double = false };
    for (int i = 0; i < M * K; i++)
        fa[i] = (float)(a[i] = i % 7 - 3);
    for (int i = 0; i < K * N; i++)
        fb[i] = (float)(b[i] = i % 5 - 2);
    for (int t = 0; t < 8; t++) {
        bool ta = t & 1, tb = t & 2, sum = t & 4;
        for (int i = 0; i < M * (N + 3); i++)
            fc[i] = (float)(c[i] = d[i] = 5);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                double v = sum ? d[i * (N + 3) + j] : 0;
                for (int k = 0; k < K; k++)
                    v += (ta ? a[k * M + i] : a[i * K + k]) * (tb ? b[j * K + k] : b[k * N + j]);
                d[i * (N + 3) + j] = v;
            }
        rt_gemm(&own, ta, tb, M, N, K, a, ta ? M : K, b, tb ? K : N, c, N + 3, sum);
        rt_gemm(&own_f, ta, tb, M, N, K, fa, ta ? M : K, fb, tb ? K : N, fc, N + 3, sum);
        for (int i = 0; i < M * (N + 3); i++)
            cr_assert(c[i] == d[i] && (double)fc[i] == d[i], "form %d, element %d", t, i);
    }
}

/* ---- collectives --------------------------------------------------------- */

/* A program of one collective; ranks fill their block with their own numbers. */
typedef struct {
    RtHeader head;
    RtStep step[4];
    RtRef arg[4][5];                // of each step
    RtPass pass[3];
    int64_t slice;
    RtProgram p;
    char text[64];
} Tiny;

static void tiny(Tiny *t, int x, int workers, int64_t block)
{
    memset(t, 0, sizeof *t);
    strcpy(t->text + 1, "a tiny step");
    strcpy(t->text + 20, "tiny.tcube:3:4");
    t->head = (RtHeader){ .version = RT_VERSION, .header_bytes = sizeof t->head,
                          .step_bytes = sizeof(RtStep), .real_bytes = 4, .data = 1, .x = x,
                          .y = 1, .z = 1, .workers = workers, .microbatches = 1, .batch = x,
                          .sequence = 1, .T = x, .vocab = 9, .block_bytes = block, .nstages = 1,
                          .npasses = 1, .nslices = 1, .master_offset = -1 };
    t->head.train.data = t->head.train.data_dir = t->head.train.format = -1;
    t->head.train.order = t->head.train.weights = t->head.train.log = -1;
    t->head.train.steps = 1;
    for (int i = 0; i < 4; i++)
        t->step[i] = (RtStep){ .name = 1, .source = 20, .axes = RT_X, .kernel = -1,
                               .first_arg = 5 * i, .rowmap = -1, .rowmap_k = -1,
                               .colmap = -1 };
    t->slice = 1;
    t->p = (RtProgram){ .head = &t->head, .steps = t->step, .args = t->arg[0],
                        .text = t->text, .passes = t->pass, .slices = &t->slice };
}

/* One forward of all steps; of each microbatch where there are several. */
static int tiny_run(Tiny *t)
{
    static int32_t tokens[64];
    t->head.npasses = t->head.microbatches;
    for (int i = 0; i < t->head.npasses; i++)
        t->pass[i] = (RtPass){ .kind = RT_PASS_FORWARD, .last = t->head.nsteps, .microbatch = i,
                               .again = i > 0 };
    return run(&t->p, (RtOptions){ .steps = 1, .fixed_tokens = tokens, .fixed_ntokens = 64 });
}

static atomic_int filled, checked, whose, sums;     // bit by rank: who was sent; who summed
static int check_p, check_n, check_kind;

/* Ranks are numbered as they come; rank k fills its source with 2^k * (1 + i % 5). */
static void number(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    if (c->worker)
        return;
    int me = atomic_fetch_add(&filled, 1);
    float *src = c->arg[0];
    for (int i = 0; i < check_p * (check_n + 1); i++)
        src[i] = (float)(1 << me) * (float)(1 + i % 5);
}

static void check(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    if (c->worker)
        return;
    const float *dst = c->arg[1], *src = c->arg[0];
    float all = (float)((1 << check_p) - 1);
    double sum = 0;
    if (check_kind == RT_ALL_GATHER) {          // each part is one rank's; all are there
        for (int q = 0; q < check_p; q++) {
            float who = check_n ? dst[q * check_n] : 0;
            sum += (double)who;
            for (int i = 0; i < check_n; i++)
                cr_assert_eq(dst[q * check_n + i], who * (float)(1 + i % 5));
        }
        cr_assert(!check_n || (float)sum == all);
    } else if (check_kind == RT_REDUCE_SCATTER) {
        for (int i = 0; i < check_n; i++) {     // part q starts at q*n: find q by the pattern
            bool found = false;
            for (int q = 0; q < check_p; q++)
                found = found || dst[i] == all * (float)(1 + (q * check_n + i) % 5);
            cr_assert(found);
        }
    } else if (check_kind == RT_BROADCAST) {    // all is one rank's, the same for all
        for (int i = 0; i < check_n; i++)
            cr_assert_eq(dst[i], dst[0] * (float)(1 + i % 5));
        if (check_n)
            atomic_fetch_or(&whose, (int)dst[0]);
    } else if (check_kind == RT_REDUCE) {       // one has the sum, added twice
        for (int i = 0; i < check_n; i++)
            cr_assert_eq(dst[i], dst[0] == 0 ? 0 : 2 * all * (float)(1 + i % 5));
        atomic_fetch_add(&sums, check_n && dst[0] != 0);
    } else {
        for (int i = 0; i < check_n; i++)
            cr_assert_eq(src[i], all * (float)(1 + i % 5), "%d of %d, %d ranks: %g", i, check_n,
                         check_p, (double)src[i]);
    }
    atomic_fetch_add(&checked, 1);
}

static void one_collective(int kind, int p, int workers, int n)
{
    Tiny t;
    RtKernelFn fns[] = { number, check };
    int64_t part = (int64_t)(n + 1) * 4 * p;
    tiny(&t, p, workers, 2 * (part + 64));
    t.p.kernels = fns;
    int64_t other = (part + 63) / 64 * 64;
    for (int i = 0; i < 3; i++) {
        t.step[i].nargs = 2;
        t.arg[i][1].offset = other;
        t.step[i].kind = RT_KERNEL;
        t.step[i].items = 1;
    }
    t.step[0].kernel = 0;
    t.step[2].kernel = 1;
    t.step[1].kind = kind;
    t.step[1].count = n;
    t.step[1].c.offset = kind == RT_ALL_REDUCE ? 0 : other;
    t.head.nsteps = 3;
    if (kind == RT_BROADCAST || kind == RT_REDUCE)
        t.step[1].peer = p - 1;
    if (kind == RT_REDUCE) {                    // once overwritten, once added
        t.step[3] = t.step[2];
        t.step[2] = t.step[1];
        t.step[2].accumulate = 1;
        t.head.nsteps = 4;
    }
    atomic_store(&whose, 0);
    atomic_store(&sums, 0);
    check_p = p, check_n = n, check_kind = kind;
    atomic_store(&filled, 0);
    atomic_store(&checked, 0);
    cr_assert_eq(tiny_run(&t), 0, "%s", said);
    cr_assert_eq(atomic_load(&checked), p);
    int from = atomic_load(&whose);
    cr_assert_eq(from & (from - 1), 0, "members were sent what several have");
    cr_assert_eq(from != 0, kind == RT_BROADCAST && n > 0);
    cr_assert_eq(atomic_load(&sums), kind == RT_REDUCE && n > 0);
}

static void all_sizes(int kind)
{
    static const int sizes[] = { 1, 2, 3, 4, 5, 7, 8 }, counts[] = { 0, 1, 64, 1000, 40000 };
    for (int s = 0; s < 7; s++)
        for (int c = 0; c < 5; c++)
            for (int w = 1; w < 4; w += 2)
                one_collective(kind, sizes[s], w, counts[c]);
}

Test(runtime, all_gather) { all_sizes(RT_ALL_GATHER); }
Test(runtime, reduce_scatter) { all_sizes(RT_REDUCE_SCATTER); }
Test(runtime, all_reduce) { all_sizes(RT_ALL_REDUCE); }
Test(runtime, broadcast) { all_sizes(RT_BROADCAST); }
Test(runtime, reduce) { all_sizes(RT_REDUCE); }

/* ---- all-to-all ---------------------------------------------------------- */

/* Ranks without threads: only coordinates, for tables. */
typedef struct { Rt rt; RtHeader head; RtRank *rank; } Plain;

static void plain(Plain *p, const RtHeader *h, const RtProgram *program)
{
    memset(p, 0, sizeof *p);
    p->head = *h;
    p->rt.head = &p->head;
    static int64_t whole;
    static RtProgram none;
    whole = h->sequence;
    none = (RtProgram){ .head = &p->head, .slices = &whole };
    p->head.nstages = 1;
    p->rt.program = program ? program : &none;
    p->rt.exe = "test";
    p->rt.nranks = p->rt.nlocal = h->data * h->x * h->y * h->z;
    p->rt.real = 4;
    p->rt.nworkers = 1;
    pthread_mutex_init(&p->rt.fault_lock, NULL);
    p->rank = rt_alloc((size_t)p->rt.nranks, sizeof *p->rank);
    for (int i = 0; i < p->rt.nranks; i++)
        p->rank[i] = rt_place(&p->rt, i);
    p->rt.rank = p->rank;
}

enum { A2A_W = 24 };

/* A: element (global row g, column c) holds g*100 + c. Checks layout `axes`. */
static void a2a_expect(const RtRank *r, const float *m, int axes, const RtCols *cols, bool write)
{
    int64_t n, first = rt_rows_first(r, axes, 0, &n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < cols->n; c++) {
            float v = (float)((first + i) * 100 + cols->global[c]);
            if (write)
                ((float *)(uintptr_t)m)[i * cols->n + c] = v;
            else
                cr_assert_eq(m[i * cols->n + c], v, "rank %d, row %d, column %d", r->id, (int)i,
                             (int)c);
        }
}

static void a2a_mesh(int x, int y, int z, int rep)
{
    RtSegment seg[] = { { 0, A2A_W / 2, 1, 0 }, { A2A_W / 2, A2A_W / 2, rep, 0 } };
    RtColumns col[] = { { 0, 2, RT_Z, 0 }, { 0, 2, RT_YK, 0 } };
    RtStep step[2] = { { .kind = RT_ALL_TO_ALL, .a2a = RT_A2A_AB, .axes = RT_YK | RT_YR | RT_Z,
                         .columns_src = 0, .columns_dst = 1 },
                       { .kind = RT_ALL_TO_ALL, .a2a = RT_A2A_BA, .axes = RT_YK | RT_YR | RT_Z,
                         .columns_src = 1, .columns_dst = 0 } };
    RtHeader h = { .data = 1, .x = x, .y = y, .z = z, .T = x * y * z * 2,
                   .sequence = x * y * z * 2, .nsteps = 2, .ncolumns = 2, .workers = 1,
                   .microbatches = 1, .real_bytes = 4, .nstages = 1, .nslices = 1 };
    RtProgram prog = { .head = &h, .steps = step, .segments = seg, .columns = col, .text = "",
                       .slices = &h.sequence };
    Plain p;
    plain(&p, &h, &prog);
    rt_groups_make(&p.rt);
    int n = p.rt.nranks;
    float **a = calloc((size_t)n, sizeof *a), **b = calloc((size_t)n, sizeof *b);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(rt_tables_make(&p.rank[i]), 0, "%s", p.rt.fault);
        const RtCols *ca = &p.rank[i].cols[0], *cb = &p.rank[i].cols[1];
        a[i] = calloc((size_t)(h.T / (x * y) * ca->n), sizeof **a);
        b[i] = calloc((size_t)(h.T / (x * z) * cb->n), sizeof **b);
        a2a_expect(&p.rank[i], a[i], RT_X | RT_YK | RT_YR, ca, true);
    }
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < n; i++) {       // what the threads do, one rank after another
            RtRank *r = &p.rank[i];
            const RtBoxes *boxes = r->boxes[s];
            const RtSeat *seat = &r->seat[p.rt.step_kind[0][s]];
            float *dst = s ? a[i] : b[i];
            int64_t sld, dld = r->cols[1 - s].n;
            if (s && i == 0)
                for (int k = 0; k < n; k++)
                    memset(a[k], 0, sizeof **a * (size_t)(h.T / (x * y) * p.rank[k].cols[0].n));
            for (int k = 0; k < boxes->nboxes; k++) {
                const RtBox *box = &boxes->box[k];
                int peer = seat->group->rank[box->peer];
                const float *src = s ? b[peer] : a[peer];
                sld = p.rank[peer].cols[s].n;
                for (int64_t row = 0; row < box->rows; row++)
                    for (int q = box->run; q < box->run + box->nruns; q++)
                        memcpy(dst + (box->dst_row + row) * dld + boxes->run[q].dst,
                               src + (box->src_row + row) * sld + boxes->run[q].src,
                               sizeof *src * (size_t)boxes->run[q].n);
            }
        }
    for (int i = 0; i < n; i++) {
        a2a_expect(&p.rank[i], b[i], RT_X | RT_Z, &p.rank[i].cols[1], false);
        a2a_expect(&p.rank[i], a[i], RT_X | RT_YK | RT_YR, &p.rank[i].cols[0], false);
        rt_tables_free(&p.rank[i]);
        free(a[i]);
        free(b[i]);
    }
    free(a);
    free(b);
    rt_groups_free(&p.rt);
    free(p.rank);
}

Test(runtime, a2a_round_trips)
{
    static const int mesh[][4] = { { 1, 1, 1, 1 }, { 1, 2, 1, 1 }, { 1, 1, 2, 1 }, { 1, 2, 2, 1 },
                                   { 2, 2, 3, 1 }, { 1, 3, 2, 1 }, { 3, 4, 3, 1 }, { 1, 4, 2, 2 },
                                   { 2, 6, 4, 3 }, { 1, 4, 1, 4 }, { 1, 12, 1, 1 } };
    for (size_t i = 0; i < sizeof mesh / sizeof *mesh; i++)
        a2a_mesh(mesh[i][0], mesh[i][1], mesh[i][2], mesh[i][3]);
}

/* HEADS then TOKENS through the threads back end gives the source back. */
static void a2a_source(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    int me = atomic_fetch_add(&filled, 1);
    float *src = c->arg[0];
    for (int i = 0; i < 3 * check_p * 2; i++)
        src[i] = (float)(me * 1000 + i);
}

static void a2a_same(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    const float *src = c->arg[0], *mid = c->arg[1], *back = c->arg[2];
    int cols = check_p * 2;
    cr_assert_eq(memcmp(src, back, sizeof *src * (size_t)(3 * cols)), 0);
    for (int i = 0; i < 3 * check_p * 2; i++)   // rows of all, columns of one part
        cr_assert_eq((int)mid[i] % 1000 / cols, i / 2 % 3);
    atomic_fetch_add(&checked, 1);
}

Test(runtime, a2a_heads_and_tokens)
{
    for (int p = 1; p <= 5; p++) {
        Tiny t;
        RtKernelFn fns[] = { a2a_source, a2a_same };
        tiny(&t, p, 1, 4096 * 3);
        t.p.kernels = fns;
        t.head.nsteps = 4;
        for (int i = 0; i < 4; i++) {
            t.step[i].nargs = 3;
            t.arg[i][1].offset = 4096;
            t.arg[i][2].offset = 8192;
            t.step[i].kind = RT_KERNEL;
            t.step[i].items = 1;
            t.step[i].kernel = i == 3;
            t.step[i].columns_src = t.step[i].columns_dst = -1;
        }
        for (int i = 1; i < 3; i++) {
            t.step[i].kind = RT_ALL_TO_ALL;
            t.step[i].a2a = i == 1 ? RT_A2A_HEADS : RT_A2A_TOKENS;
            t.step[i].rows = i == 1 ? 3 : 3 * p;
            t.step[i].cols = i == 1 ? 2 * p : 2;
            t.step[i].a = (RtRef){ .offset = i == 1 ? 0 : 4096, .ld = i == 1 ? 2 * p : 2 };
            t.step[i].c = (RtRef){ .offset = i == 1 ? 4096 : 8192, .ld = i == 1 ? 2 : 2 * p };
        }
        check_p = p;
        atomic_store(&filled, 0);
        atomic_store(&checked, 0);
        cr_assert_eq(tiny_run(&t), 0, "%s", said);
        cr_assert_eq(atomic_load(&checked), p);
    }
}

/* ---- merges and sums ------------------------------------------------------- */

enum { M_N = 50 };
static double m_value(int p, int row, int i)
{
    return 1000 + (p * 31 + row * 7 + i * i) % 17 * 0.01;
}

/* Each member's (sum, mean, M2, max, min) of M_N values a row. */
static void m_parts(const RtCall *c, int64_t lo, int64_t hi)
{
    double *s = c->arg[0];
    (void)lo, (void)hi;
    for (int p = 0; p < check_p && c->worker == 0; p++)
        for (int row = 0; row < 40; row++) {
            double sum = 0, m2 = 0, max = 0, min = 1e9, *at = s + (p * 40 + row) * 5;
            for (int i = 0; i < M_N; i++)
                sum += m_value(p, row, i);
            for (int i = 0; i < M_N; i++) {
                double v = m_value(p, row, i);
                m2 += (v - sum / M_N) * (v - sum / M_N);
                max = fmax(max, v);
                min = fmin(min, v);
            }
            memcpy(at, (double[]){ sum, sum / M_N, m2, max, min }, 5 * sizeof *at);
        }
}

static void m_check(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    for (int row = 0; row < 40 && c->worker == 0; row++) {
        double sum = 0, var = 0, max = 0, min = 1e9;
        for (int k = 0; k < check_p * M_N; k++) {
            double v = m_value(k / M_N, row, k % M_N);
            sum += v;
            max = fmax(max, v);
            min = fmin(min, v);
        }
        for (int k = 0; k < check_p * M_N; k++) {
            double d = m_value(k / M_N, row, k % M_N) - sum / (check_p * M_N);
            var += d * d / (check_p * M_N);
        }
        near(((double *)c->arg[1])[row], sum, 1e-14, "sum");
        near(((double *)c->arg[2])[row], var, 1e-9, "var");
        near(((double *)c->arg[3])[row], max, 0, "max");
        near(((double *)c->arg[4])[row], min, 0, "min");
    }
    if (c->worker == 0)
        atomic_fetch_add(&checked, 1);
}

Test(runtime, merges)
{
    for (int workers = 1; workers < 4; workers += 2) {
        Tiny t;
        RtKernelFn fns[] = { m_parts, m_check };
        tiny(&t, 3, workers, 16384);
        t.p.kernels = fns;
        t.head.real_bytes = 8;
        t.head.nsteps = 3;
        for (int i = 0; i < 3; i++) {
            t.step[i].kind = i == 1 ? RT_MERGE : RT_KERNEL;
            t.step[i].kernel = i / 2;
            t.step[i].nargs = 5;
            for (int k = 1; k < 5; k++)
                t.arg[i][k - (i == 1)].offset = 8192 + k * 512;
        }
        t.step[1].rows = 40;
        t.step[1].nstats = 4;
        t.step[1].stat_n = M_N;
        memcpy(t.step[1].stat, (uint8_t[]){ 0, 2, 1, 3 }, 4);
        check_p = 3;
        atomic_store(&checked, 0);
        cr_assert_eq(tiny_run(&t), 0, "%s", said);
        cr_assert_eq(atomic_load(&checked), 3);
    }
}

/* Column sums over workers, added in later passes; copies with leading dimensions. */
static void c_parts(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    for (int i = 0; i < 6; i++)
        ((float *)c->arg[0])[c->worker * 6 + i] = (float)(c->worker + 1 + i);
}

static void c_check(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)lo, (void)hi;
    if (c->worker)
        return;
    int64_t w = c->nworkers, times = atomic_fetch_add(&checked, 1) + 1;
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(((float *)c->arg[1])[i], (float)(times * (w * (w + 1) / 2 + w * i)));
        cr_assert_eq(((float *)c->arg[2])[i / 3 * 10 + i % 3], ((float *)c->arg[1])[i]);
    }
}

Test(runtime, column_sums_and_copies)
{
    for (int workers = 1; workers < 5; workers++) {
        Tiny t;
        RtKernelFn fns[] = { c_parts, c_check };
        tiny(&t, 1, workers, 4096);
        t.p.kernels = fns;
        t.head.nsteps = 4;
        t.head.microbatches = 3;
        t.head.batch = 3;
        for (int i = 0; i < 4; i++) {
            t.step[i].kind = RT_KERNEL;
            t.step[i].kernel = i / 3;
            t.step[i].items = 1;
            t.step[i].nargs = 3;
            t.arg[i][1].offset = 1024;
            t.arg[i][2].offset = 2048;
        }
        t.step[1].kind = RT_COLSUM;
        t.step[1].count = 6;
        t.step[1].c.offset = 1024;
        t.step[1].accumulate_later = 1;
        t.step[2].kind = RT_COPY;
        t.step[2].rows = 2;
        t.step[2].cols = 3;
        t.step[2].a = (RtRef){ .offset = 1024, .ld = 3 };
        t.step[2].c = (RtRef){ .offset = 2048, .ld = 10 };
        atomic_store(&checked, 0);
        cr_assert_eq(tiny_run(&t), 0, "%s", said);
        cr_assert_eq(atomic_load(&checked), 3);
    }
}

/* ---- rows and columns ---------------------------------------------------- */

static RtRows rows_of(Plain *p, int rank, int axes, int64_t chunk, int64_t chunk_i)
{
    RtRowMap map = { axes, 0, 1, 0, chunk, chunk_i, 0 };
    RtRows rows;
    rt_rows_make(&p->rank[rank], &map, &rows);
    return rows;
}

/* Fills the global tokens as a pass of the microbatch does. */
static void rows_fill(RtRank *r, RtRows *rows, int microbatch)
{
    static RtHeader one;
    one = *r->head;
    one.nrowmaps = 1;
    r->head = &one;
    r->rows = rows;
    RtPass pass = { .microbatch = microbatch, .slice = rows->last };
    cr_assert_eq(rt_data_fill(r, &pass), 0);
}

static void rows_free(RtRows *r)
{
    free(r->seq);
    free(r->pos);
    free(r->token);
    free(r->runs);
}

/* All ranks together hold every row once; runs describe the rows. */
static void rows_cover(Plain *p, int axes, int copies)
{
    int64_t T = p->head.T;
    int *seen = calloc((size_t)T, sizeof *seen);
    for (int i = 0; i < p->rt.nranks; i++) {
        RtRows r = rows_of(p, i, axes, 0, 0);
        int64_t in_runs = 0;
        for (int64_t k = 0; k < r.count; k++)
            seen[r.seq[k] * p->head.sequence + r.pos[k]]++;
        for (int64_t k = 0; k < r.nruns; k++) {
            const RtRun *run = &r.runs[k];
            in_runs += run->n;
            for (int j = 0; j < run->n; j++)
                cr_assert(r.seq[run->row + j] == run->seq && r.pos[run->row + j] == run->pos + j);
            cr_assert(k == 0 || run->seq > run[-1].seq
                      || (run->seq == run[-1].seq && run->pos >= run[-1].pos + run[-1].n));
        }
        cr_assert_eq(in_runs, r.count);
        rows_free(&r);
    }
    for (int64_t g = 0; g < T; g++)
        cr_assert_eq(seen[g], copies);
    free(seen);
}

Test(runtime, row_orders)
{
    for (int balanced = 0; balanced < 2; balanced++) {
        RtHeader h = { .data = 1, .x = 2, .y = 3, .z = 2, .T = 3 * 24, .sequence = 24,
                       .microbatches = 1, .balanced = balanced };
        Plain p;
        plain(&p, &h, NULL);
        rows_cover(&p, 0, 12);
        rows_cover(&p, RT_X, 6);
        rows_cover(&p, RT_X | RT_YK | RT_YR, 2);
        rows_cover(&p, RT_X | RT_Z, 3);
        free(p.rank);
    }
}

Test(runtime, balanced_rows_by_hand)
{
    RtHeader h = { .data = 2, .x = 2, .y = 1, .z = 1, .T = 16, .sequence = 8, .microbatches = 3,
                   .balanced = 1 };
    Plain p;
    plain(&p, &h, NULL);
    RtRows r = rows_of(&p, 2, RT_X, 0, 0);      // replica 1, x = 0: chunks 0 and 3 of 2
    rows_fill(&p.rank[2], &r, 1);
    static const int seq[] = { 0, 0, 0, 0, 1, 1, 1, 1 }, pos[] = { 0, 1, 6, 7, 0, 1, 6, 7 };
    cr_assert_eq(r.count, 8);
    cr_assert_eq(r.nruns, 4);
    for (int i = 0; i < 8; i++) {
        cr_assert(r.seq[i] == seq[i] && r.pos[i] == pos[i]);
        cr_assert_eq(r.token[i], (6 + 2 + seq[i]) * 8 + pos[i]);
    }
    rows_free(&r);
    r = rows_of(&p, 1, RT_X, 0, 0);
    cr_assert(r.pos[0] == 2 && r.pos[3] == 5 && r.nruns == 2);
    rows_free(&r);
    free(p.rank);
}

Test(runtime, chunks_of_rows)
{
    RtHeader h = { .data = 1, .x = 2, .y = 1, .z = 2, .T = 48, .sequence = 48,
                   .microbatches = 1 };
    Plain p;
    plain(&p, &h, NULL);
    RtRows r = rows_of(&p, 3, RT_X | RT_Z, 8, 1);   // x 1, z 1
    cr_assert(r.count == 4 && r.pos[0] == 24 + 8 + 4);
    rows_free(&r);
    r = rows_of(&p, 3, RT_X, 8, 2);
    cr_assert(r.count == 8 && r.pos[0] == 24 + 16);
    rows_free(&r);
    r = rows_of(&p, 0, RT_X | RT_Z, 10, 2);         // the last chunk is shorter
    cr_assert(r.count == 2 && r.pos[0] == 20);
    rows_free(&r);
    free(p.rank);
}

Test(runtime, columns)
{
    RtHeader h = { .data = 1, .x = 1, .y = 4, .z = 3 };
    RtSegment seg[] = { { 0, 12, 1, 0 }, { 12, 6, 2, 0 }, { 100, 9, 1, 0 } };
    RtColumns by_y = { 0, 2, RT_YK, 0 }, by_z = { 2, 1, RT_Z, 0 }, whole = { 1, 1, 0, 0 };
    RtProgram prog = { .head = &h, .segments = seg, .text = "", .slices = &h.sequence };
    Plain p;
    RtCols c;
    plain(&p, &h, &prog);
    const RtRank *r = &p.rank[3 * 3 + 2];           // y 3, z 2
    cr_assert_eq(rt_cols_make(r, &by_y, &c), 0);
    static const int want[] = { 9, 10, 11, 15, 16, 17 };
    cr_assert_eq(c.n, 6);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(c.global[i], want[i]);
    free(c.global);
    cr_assert_eq(rt_cols_make(r, &by_z, &c), 0);
    cr_assert(c.n == 3 && c.global[0] == 106);
    free(c.global);
    cr_assert_eq(rt_cols_make(r, &whole, &c), 0);
    cr_assert(c.n == 6 && c.global[0] == 12 && c.global[5] == 17);
    free(c.global);
    seg[2].width = 10;
    cr_assert_eq(rt_cols_make(r, &by_z, &c), RT_BUG);
    free(p.rank);
}

/* ---- schedules ----------------------------------------------------------- */

Test(runtime, schedules)
{
    RtHeader h = { .train = { .lr = 1, .lr_min = 0.1, .warmup = 4, .steps = 14,
                              .decay_steps = 5 } };
    near(rt_learning_rate(&h, 9), 1, 1e-15, "constant");
    for (h.train.schedule = 1; h.train.schedule < 4; h.train.schedule++) {
        near(rt_learning_rate(&h, 0), 0.2, 1e-15, "warm-up");
        near(rt_learning_rate(&h, 3), 0.8, 1e-15, "warm-up");
        near(rt_learning_rate(&h, 4), 1, 1e-15, "top");
        near(rt_learning_rate(&h, 14), 0.1, 1e-15, "end");
        near(rt_learning_rate(&h, 1000), 0.1, 1e-15, "after the end");
    }
    h.train.schedule = 1;
    near(rt_learning_rate(&h, 9), 0.55, 1e-15, "cosine");
    near(rt_learning_rate(&h, 5), 0.1 + 0.45 * (1 + cos(M_PI / 10)), 1e-15, "cosine");
    h.train.schedule = 2;
    near(rt_learning_rate(&h, 5), 0.91, 1e-15, "linear");
    h.train.schedule = 3;
    near(rt_learning_rate(&h, 9), 1, 1e-15, "wsd");
    near(rt_learning_rate(&h, 10), 0.82, 1e-15, "wsd");
}

/* ---- data ---------------------------------------------------------------- */

static void open_data(Plain *p, const char *path, const char *format, const char *order)
{
    p->rt.data_path = (char *)(uintptr_t)path;
    p->rt.format = (char *)(uintptr_t)format;
    p->rt.order = (char *)(uintptr_t)order;
    static RtOptions none;
    p->rt.options = &none;
    atomic_store(&p->rt.status, 0);
}

static RtHeader data_head(void)
{
    return (RtHeader){ .data = 2, .x = 1, .y = 1, .z = 1, .T = 8, .sequence = 4, .batch = 4,
                       .microbatches = 1, .vocab = 70000, .token_limit = 70000, .ignore = -1,
                       .nrowmaps = 1, .nstages = 1, .nslices = 1 };
}

static void expect_fault(Plain *p, const char *part)
{
    cr_assert_not_null(strstr(p->rt.fault, part), "found: %s", p->rt.fault);
    rt_data_close(&p->rt);
}

Test(runtime, data_formats)
{
    RtHeader h = data_head();
    RtProgram prog = { .head = &h, .text = "", .slices = &h.sequence };
    Plain p;
    plain(&p, &h, &prog);
    uint16_t u16[512 + 20] = { 0 };
    uint32_t u32[20];
    for (int i = 0; i < 20; i++)
        u32[i] = (uint32_t)(i * 3000);
    for (int i = 0; i < 20; i++)
        u16[512 + i] = (uint16_t)(i * 3000);
    uint32_t head[] = { 20240520, 1, 20 };
    memcpy(u16, head, sizeof head);
    write_file(in_folder("b.u16"), u16 + 512, 40);
    write_file(in_folder("a.bin"), u16, sizeof u16);
    write_file(in_folder("c.u32"), u32, sizeof u32);
    write_file(in_folder("x.bin"), u32, sizeof u32);
    struct { const char *file, *format; } good[] = {
        { "a.bin", "auto" }, { "a.bin", "llmc" }, { "b.u16", "u16" }, { "c.u32", "u32" },
    };
    for (int i = 0; i < 4; i++) {
        open_data(&p, in_folder(good[i].file), good[i].format, "");
        cr_assert_eq(rt_data_open(&p.rt), 0, "%s", p.rt.fault);
        cr_assert_eq(rt_data_tokens(p.rt.data), 20);
        cr_assert_eq(rt_data_token(p.rt.data, 19), 57000);
        rt_data_close(&p.rt);
    }
    open_data(&p, in_folder("c.u32"), "", "");          // auto: bytes
    cr_assert_eq(rt_data_open(&p.rt), 0);
    cr_assert_eq(rt_data_tokens(p.rt.data), 80);
    rt_data_close(&p.rt);
    struct { const char *file, *format, *says; } bad[] = {
        { "x.bin", "auto", "x.bin: error: a .bin file without an llmc header" },
        { "b.u16", "llmc", "no llmc header" },
        { "nothing", "auto", "nothing: error: could not read the data: No such file" },
        { "*.none", "auto", "no file matches" }, { "", "auto", "no regular file" },
        { "b.u16", "u8", "unknown format `u8`" },
    };
    for (int i = 0; i < 6; i++) {
        open_data(&p, in_folder(bad[i].file), bad[i].format, "");
        cr_assert_eq(rt_data_open(&p.rt), i < 5 ? RT_USER : RT_USAGE, "%d", i);
        expect_fault(&p, bad[i].says);
    }
    write_file(in_folder("odd.u16"), u16, 41);
    open_data(&p, in_folder("odd.u16"), "u16", "");
    cr_assert_eq(rt_data_open(&p.rt), RT_USER);
    expect_fault(&p, "41 bytes are no whole number of u16 tokens");
    u16[4] = 21;                                        // says 21, holds 20
    write_file(in_folder("cut.bin"), u16, sizeof u16);
    open_data(&p, in_folder("cut.bin"), "auto", "");
    cr_assert_eq(rt_data_open(&p.rt), RT_USER);
    expect_fault(&p, "the header says 21 tokens, the file holds 20");
    write_file(in_folder("short"), "abcd", 4);
    open_data(&p, in_folder("short"), "auto", "");
    cr_assert_eq(rt_data_open(&p.rt), RT_USER);
    expect_fault(&p, "4 tokens, a sequence of 4 and its targets need 5");
    free(p.rank);
}

/* Tokens and targets of the rows of both replicas, by the formula of the language. */
static void expect_step(Plain *p, int64_t step, int64_t nseq, const int64_t *order)
{
    RtRowMap map = { .nslices = 1, .count = 8 };
    for (int d = 0; d < 2; d++) {
        RtRank *r = &p->rank[d];
        RtRows rows;
        rt_rows_make(r, &map, &rows);
        rows.tokens = calloc(8, sizeof *rows.tokens);
        rows.targets = calloc(8, sizeof *rows.targets);
        r->rows = &rows;
        r->sequence = calloc(2, sizeof *r->sequence);
        r->now = (RtNow){ .step = step };
        cr_assert_eq(rt_data_step(r, step), 0);
        cr_assert_eq(rt_data_fill(r, &(RtPass){ 0 }), 0, "%s", p->rt.fault);
        for (int i = 0; i < 8; i++) {
            int64_t seq = (step * 4 + d * 2 + i / 4) % nseq;
            int64_t at = (order ? order[seq] : seq) * 4 + i % 4;
            cr_assert_eq(rows.tokens[i], at % 251);
            cr_assert_eq(rows.targets[i], (at + 1) % 251);
        }
        cr_assert_eq(rt_data_count(r), 8);
        free(rows.tokens);
        free(rows.targets);
        free(r->sequence);
        rows_free(&rows);
    }
}

Test(runtime, data_order_over_files)
{
    RtHeader h = data_head();
    RtProgram prog = { .head = &h, .text = "", .slices = &h.sequence };
    Plain p;
    plain(&p, &h, &prog);
    unsigned char all[91];
    for (int i = 0; i < 91; i++)
        all[i] = (unsigned char)(i % 251);
    write_file(in_folder("t1.txt"), all, 7);            // joined in name order
    write_file(in_folder("t2.txt"), all + 7, 0);
    write_file(in_folder("t3.txt"), all + 7, 50);
    write_file(in_folder("t4.txt"), all + 57, 34);
    open_data(&p, in_folder("t*.txt"), "auto", "sequential");
    cr_assert_eq(rt_data_open(&p.rt), 0, "%s", p.rt.fault);
    for (int64_t step = 0; step < 14; step++)
        expect_step(&p, step, 22, NULL);
    rt_data_close(&p.rt);

    open_data(&p, in_folder("t*.txt"), "auto", "shuffle");
    cr_assert_eq(rt_data_open(&p.rt), 0);
    int64_t order[22];
    for (int i = 0; i < 22; i++)
        order[i] = i;
    for (int i = 0; i < 22; i++)                        // plain selection sort
        for (int k = i + 1; k < 22; k++)
            if (rt_shuffle_value(0, 0, (uint64_t)order[k])
                < rt_shuffle_value(0, 0, (uint64_t)order[i])) {
                int64_t t = order[i];
                order[i] = order[k];
                order[k] = t;
            }
    for (int64_t step = 0; step < 5; step++)
        expect_step(&p, step, 22, order);
    rt_data_close(&p.rt);

    p.head.token_limit = 80;
    open_data(&p, in_folder("t*.txt"), "auto", "");
    cr_assert_eq(rt_data_open(&p.rt), 0);
    RtRowMap map = { .nslices = 1, .count = 8 };
    RtRows rows;
    rt_rows_make(&p.rank[0], &map, &rows);
    rows.tokens = calloc(8, sizeof *rows.tokens);
    p.rank[0].rows = &rows;
    p.rank[0].sequence = calloc(2, sizeof(int64_t));
    rt_data_step(&p.rank[0], 5);                        // sequences 20, 21
    cr_assert_eq(rt_data_fill(&p.rank[0], &(RtPass){ 0 }), RT_USER);
    expect_fault(&p, "t4.txt: error: token 80 at byte 23 (token 23 of the file) is not below 80 "
                     "[token-range]");
    free(rows.tokens);
    free(p.rank[0].sequence);
    rows_free(&rows);
    free(p.rank);
}

/* ---- weights in files ---------------------------------------------------- */

static char *saved(Make m, RtOptions o, size_t *n)
{
    const char *path = in_folder("saved.safetensors");
    RtProgram *p = handmade(&m);
    unlink(path);
    o.save = path;
    cr_assert_eq(run(p, o), 0, "%s", said);
    handmade_free(p);
    return read_file(path, n);
}

Test(runtime, files_are_the_same_in_every_layout)
{
    static const int mesh[][7] = { { 1, 1, 1, 1, 1, 1, 0 }, { 1, 2, 3, 1, 1, 1, 0 },
                                   { 2, 2, 2, 2, 1, 1, 1 }, { 1, 3, 1, 2, 2, 1, 0 },
                                   { 4, 1, 5, 1, 1, 1, 1 }, { 2, 2, 2, 1, 1, 1, 2 },
                                   { 4, 1, 3, 1, 2, 1, 3 }, { 2, 3, 1, 2, 1, 1, 3 } };
    for (int out_in = 0; out_in < 2; out_in++)
        for (int is_double = 0; is_double < 2; is_double++) {
            char *first = NULL;
            size_t first_n = 0, n;
            for (size_t i = 0; i < sizeof mesh / sizeof *mesh; i++) {
                Make m = usual(data_file());
                const int *q = mesh[i];
                m.data = q[0], m.x = q[1], m.y = q[2], m.z = q[3], m.workers = q[4];
                m.zero = q[6];
                m.out_in = out_in;
                m.is_double = is_double;
                m.bf16 = !is_double && i % 2 == 1;      // the master copy is saved
                char *file = saved(m, (RtOptions){ .steps = 0 }, &n);
                if (!first) {
                    first = file;
                    first_n = n;
                    cr_assert_not_null(strstr(file + 8, out_in
                        ? "\"head.weight\":{\"dtype\":" : "\"wte.weight\":{\"dtype\":"));
                    cr_assert_not_null(strstr(file + 8, out_in ? "[23,6]" : "[6,23]"));
                    cr_assert_eq(n, 8 + *(uint64_t *)(void *)file
                                 + (size_t)(2 * 23 * 6 + 12) * (is_double ? 8 : 4));
                    continue;
                }
                cr_assert(n == first_n && memcmp(file, first, n) == 0, "mesh %zu", i);
                free(file);
                /* loading in this layout and saving gives the bytes back */
                write_file(in_folder("in"), first, first_n);
                file = saved(m, (RtOptions){ .steps = 0, .load = in_folder("in") }, &n);
                cr_assert(n == first_n && memcmp(file, first, n) == 0, "mesh %zu, loaded", i);
                free(file);
            }
            free(first);
        }
}

/* A file of one's own: u64 length, header, data. */
static const char *own_file(const char *header, size_t data, const void *bytes)
{
    static char text[8192];
    uint64_t n = strlen(header);
    memset(text, 0, sizeof text);
    memcpy(text, &n, 8);
    memcpy(text + 8, header, n);
    if (bytes)
        memcpy(text + 8 + n, bytes, data);
    const char *path = in_folder("own.safetensors");
    write_file(path, text, 8 + n + data);
    return path;
}

#define WTE "\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[23,6],\"data_offsets\":[0,552]}"
#define HEAD "\"head.weight\":{\"dtype\":\"BF16\",\"shape\":[6,23],\"data_offsets\":[552,828]}"
#define VEC "\"v.weight\":{\"dtype\":\"F16\",\"shape\":[12],\"data_offsets\":[828,852]}"

Test(runtime, other_dtypes_are_read)
{
    static char bytes[852];
    float one = 1.5f;
    uint16_t bf = 0x4020, half = 0xc100;                // 2.5, -2.5
    for (int i = 0; i < 138; i++)
        memcpy(bytes + i * 4, &one, 4);
    for (int i = 0; i < 138; i++)
        memcpy(bytes + 552 + i * 2, &bf, 2);
    for (int i = 0; i < 12; i++)
        memcpy(bytes + 828 + i * 2, &half, 2);
    const char *path = own_file("{\"__metadata__\":{\"a\":\"\\u00e9\"}," WTE "," HEAD "," VEC
                                ", \"more\":{\"dtype\":\"I8\",\"shape\":[0],"
                                "\"data_offsets\":[852,852]} }  ", 852, bytes);
    Make m = usual(data_file());
    m.x = 2, m.y = 2;
    size_t n;
    char *file = saved(m, (RtOptions){ .steps = 0, .load = path }, &n);
    cr_assert_not_null(strstr(said, "1 tensor has no use here: more"));
    const double *v = (const double *)(void *)(file + n) - (2 * 138 + 12);
    cr_assert(v[0] == 1.5 && v[137] == 1.5 && v[138] == 2.5 && v[275] == 2.5 && v[276] == -2.5
              && v[287] == -2.5);
    free(file);
}

Test(runtime, broken_files_are_named)
{
    struct { const char *header; size_t data; const char *says; } bad[] = {
        { "{" WTE "," HEAD "}", 852, "tensor v.weight [12] is missing" },
        { "{" WTE "," HEAD "," VEC "}", 851, "the file is cut off: tensor v.weight ends at" },
        { "{" WTE "," HEAD "," VEC, 852, "expected `,` or `}`" },
        { "{" WTE "," WTE "," VEC "}", 852, "wte.weight stands there twice" },
        { "{\"v.weight\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[0,48]}," WTE ","
          HEAD "}", 852, "tensor v.weight is [3, 4], expected [12]" },
        { "{\"v.weight\":{\"dtype\":\"F8\",\"shape\":[12],\"data_offsets\":[0,12]}," WTE ","
          HEAD "}", 852, "dtype F8" },
        { "{\"v.weight\":{\"dtype\":\"F32\",\"shape\":[12],\"data_offsets\":[0,12]}}", 852,
          "its shape needs 48 bytes" },
        { "[]", 0, "expected `{`" },
        { "{\"v\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,12]}}", 0,
          "expected a whole number" },
        { "{\"v\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "expected dtype, shape and" },
        { "{\"v", 0, "expected the end of this string" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Make m = usual(data_file());
        RtProgram *p = handmade(&m);
        const char *path = own_file(bad[i].header, bad[i].data, NULL);
        cr_assert_eq(run(p, (RtOptions){ .steps = 0, .load = path }), RT_USER);
        cr_assert_not_null(strstr(said, bad[i].says), "%zu: %s", i, said);
        cr_assert_eq(strncmp(said, path, strlen(path)), 0, "%s", said);
        cr_assert_eq(run(p, (RtOptions){ .steps = 0, .load = in_folder("none") }), RT_USER);
        handmade_free(p);
    }
    Make m = usual(data_file());
    RtProgram *p = handmade(&m);
    write_file(in_folder("tiny"), "1234", 4);
    cr_assert_eq(run(p, (RtOptions){ .steps = 0, .load = in_folder("tiny") }), RT_USER);
    cr_assert_eq(run(p, (RtOptions){ .steps = 0, .save = "/no/such/folder/f" }), RT_WORLD);
    cr_assert_not_null(strstr(said, "/no/such/folder/f: error: could not write the weights"));
    cr_assert_eq(run(p, (RtOptions){ .steps = 1, .log = "/no/such/folder/f" }), RT_WORLD);
    handmade_free(p);
}

/* ---- how runs end -------------------------------------------------------- */

static void stall(const RtCall *c, int64_t lo, int64_t hi)
{
    (void)c, (void)lo, (void)hi;
    if (atomic_fetch_add(&filled, 1) == 1)      // the second rank that comes
        while (atomic_load(&checked) == 0)
            usleep(1000);
}

static void *release_later(void *arg)
{
    usleep(1200 * 1000);
    atomic_store(&checked, 1);
    return arg;
}

Test(runtime, a_missing_member_ends_the_run)
{
    Tiny t;
    RtKernelFn fns[] = { stall };
    pthread_t thread;
    tiny(&t, 5, 1, 4096);
    t.p.kernels = fns;
    t.head.nsteps = 2;
    t.step[0].kind = RT_KERNEL;
    t.step[0].kernel = 0;
    t.step[0].items = 1;
    t.step[1].kind = RT_ALL_REDUCE;
    t.step[1].count = 10;
    atomic_store(&filled, 0);
    atomic_store(&checked, 0);
    setenv("RT_TIMEOUT", "0.4", 1);
    pthread_create(&thread, NULL, release_later, NULL);
    cr_assert_eq(tiny_run(&t), RT_WORLD);
    pthread_join(thread, NULL);
    cr_assert_not_null(strstr(said, " waited 0.4 s in all_reduce 'a tiny step' (tiny.tcube:3:4, "
                                    "step 1) for rank "), "%s", said);
    cr_assert_not_null(strstr(said, " is in kernel 'a tiny step'"), "%s", said);
}

Test(runtime, tokens_out_of_range_end_the_run)
{
    Make m = usual(data_file());
    static int32_t tokens[200];
    for (int i = 0; i < 200; i++)
        tokens[i] = i == 150 ? 23 : i % 23;
    m.x = 2, m.y = 2, m.z = 2;
    RtProgram *p = handmade(&m);
    cr_assert_eq(run(p, (RtOptions){ .steps = 9, .fixed_tokens = tokens,
                                     .fixed_ntokens = 200 }), RT_USER);
    cr_assert_not_null(strstr(said, "token 23 at byte 600"), "%s", said);
    handmade_free(p);
}

Test(runtime, a_loss_that_is_not_finite_ends_the_run)
{
    Make m = usual(data_file());
    m.data = 2;
    RtProgram *p = handmade(&m);
    static const char *const sets[] = { "train.lr=1e300", "train.clip=no" };
    cr_assert_eq(run(p, (RtOptions){ .steps = 4, .sets = sets, .nsets = 2 }), RT_USER);
    cr_assert_not_null(strstr(said, "is not finite"), "%s", said);
    handmade_free(p);
}

static void interrupt(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    (void)rt, (void)loss, (void)norm;
    *(int64_t *)ctx = step;
    if (step == 1)
        raise(SIGTERM);
}

Test(runtime, a_signal_ends_the_run_after_its_step)
{
    Make m = usual(data_file());
    m.data = 2, m.y = 2;
    m.steps = 50;
    RtProgram *p = handmade(&m);
    int64_t last = -1;
    const char *path = in_folder("stopped.safetensors");
    cr_assert_eq(run(p, (RtOptions){ .steps = -1, .save = path, .after_step = interrupt,
                                     .ctx = &last }), 0, "%s", said);
    cr_assert_eq(last, 2);
    cr_assert_not_null(strstr(said, "a signal ends the run after step 3"));
    cr_assert_eq(access(path, R_OK), 0);
    handmade_free(p);
}

/* ---- options, log -------------------------------------------------------- */

Test(runtime, sets)
{
    Make m = usual(data_file());
    RtProgram *p = handmade(&m);
    struct { const char *set; int status; const char *says; } t[] = {
        { "train.lr=1_0e-4", 0, "" }, { "train.optimizer=adamw(lr=6e-4, beta2=0.95)", 0, "" },
        { "train.schedule=cosine(warmup=1, min=6e-5)", 0, "" }, { "train.steps=2", 0, "" },
        { "train.seed=12", 0, "" }, { "train.order=shuffle", 0, "" },
        { "train.lr=fast", RT_USAGE, "a number that is not negative" },
        { "train.steps=2.5", RT_USAGE, "a whole number" },
        { "train.batch=64", RT_USAGE, "`train.batch` is fixed when built; rebuild with" },
        { "plan.cube=[1,1,1]", RT_USAGE, "fixed when built" },
        { "train.optimizer=sgd(lr=1)", RT_USAGE, "the kind of optimizer is fixed when built" },
        { "train.optimizer=adamw(momentum=1)", RT_USAGE, "`adamw` has no `momentum`" },
        { "train.schedule=cosine(min=6e-5", RT_USAGE, "expected name(key=value" },
        { "train.schedule=step", RT_USAGE, "expected constant, cosine" },
        { "nonsense", RT_USAGE, "expected train.KEY=VALUE" },
        { "train.data=/none", RT_USER, "/none: error: could not read the data" },
        { "train.order=random", RT_USAGE, "unknown order `random`" },
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *sets[] = { t[i].set };
        cr_assert_eq(run(p, (RtOptions){ .steps = 1, .sets = sets, .nsets = 1 }), t[i].status,
                     "%s: %s", t[i].set, said);
        cr_assert_not_null(strstr(said, t[i].says), "%s: %s", t[i].set, said);
    }
    handmade_free(p);
}

Test(runtime, log_and_trace)
{
    Make m = usual(data_file());
    m.x = 2;
    RtProgram *p = handmade(&m);
    Seen s = { .p = p };
    RtOptions o = { .steps = -1, .log = in_folder("log"), .trace = in_folder("trace"),
                    .after_step = look, .ctx = &s };
    cr_assert_eq(run(p, o), 0, "%s", said);
    size_t n;
    char *log = read_file(o.log, &n), want[128], *line = log;
    const char *head = "{\"run\": {\"model\": \"hand\"";
    cr_assert_eq(strncmp(log, head, strlen(head)), 0, "%s", log);
    for (int i = 0; i < 4; i++) {
        line = strchr(line, '\n') + 1;
        snprintf(want, sizeof want, "{\"step\": %d, \"loss\": %.17g, \"grad_norm\": %.17g, ", i + 1,
                 s.loss[i], s.norm[i]);
        cr_assert_eq(strncmp(line, want, strlen(want)), 0, "%s", line);
    }
    free(log);
    char *trace = read_file(o.trace, &n);
    cr_assert(trace[0] == '[' && trace[n - 2] == ']');
    cr_assert_not_null(strstr(trace, "\"name\": \"head: X W\", \"ph\": \"X\""));
    free(trace);
    seen_free(&s);
    handmade_free(p);
}

Test(runtime, command_line)
{
    Make m = usual(data_file());
    RtProgram *p = handmade(&m);
    char *ok[] = { "prog", "-q", "--steps=1", "--set", "train.lr=1e-3", NULL };
    char *bad[] = { "prog", "--what", NULL }, *none[] = { "prog", "--steps", NULL };
    char *word[] = { "prog", "--steps", "x", NULL };
    cr_assert_eq(rt_main(p, 5, ok), 0);
    cr_assert_eq(rt_main(p, 2, bad), RT_USAGE);
    cr_assert_eq(rt_main(p, 2, none), RT_USAGE);
    cr_assert_eq(rt_main(p, 3, word), RT_USAGE);
    handmade_free(p);
}
