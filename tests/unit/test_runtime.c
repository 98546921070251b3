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

/* ---- helpers -------------------------------------------------------------- */

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
    const char *path = in_folder("data.txt");
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

/* ---- whole runs ------------------------------------------------------------- */

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
            fprintf(stderr,"mesh %zu masked %d: %.15g %.15g | %.15g %.15g\n",i,masked,many.loss[0],many.loss[1],one.loss[0],one.loss[1]);
            compare(&many, &one, tol);
            seen_free(&many);
        }
        seen_free(&one);
    }
}

Test(runtime, meshes_agree_fp64) { on_meshes(true, 1e-11); }
Test(runtime, meshes_agree_fp32) { on_meshes(false, 2e-3); }

Test(runtime, loss_is_right)
{
    Make m = usual(data_file());
    Seen s, t;
    cr_assert_eq(train_seen(m, (RtOptions){ 0 }, &s), 0);
    cr_assert(s.loss[0] > 2 && s.loss[0] < 6 && s.loss[3] < s.loss[0]);
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

/* ---- collectives -------------------------------------------------------------- */

/* A program of one collective; ranks fill their block with their own numbers. */
typedef struct { RtHeader head; RtStep step[4]; RtProgram p; char text[64]; } Tiny;

static void tiny(Tiny *t, int x, int workers, int64_t block)
{
    memset(t, 0, sizeof *t);
    strcpy(t->text + 1, "a tiny step");
    strcpy(t->text + 20, "tiny.tcube:3:4");
    t->head = (RtHeader){ .version = RT_VERSION, .header_bytes = sizeof t->head,
                          .step_bytes = sizeof(RtStep), .real_bytes = 4, .data = 1, .x = x,
                          .y = 1, .z = 1, .workers = workers, .microbatches = 1, .batch = x,
                          .sequence = 1, .T = x, .vocab = 9, .block_bytes = block };
    t->head.train.data = t->head.train.data_dir = t->head.train.format = -1;
    t->head.train.order = t->head.train.weights = t->head.train.log = -1;
    t->head.train.steps = 1;
    for (int i = 0; i < 4; i++)
        t->step[i] = (RtStep){ .name = 1, .source = 20, .axes = RT_X, .kernel = -1,
                               .rowmap = -1, .rowmap_k = -1, .colmap = -1 };
    t->p = (RtProgram){ .head = &t->head, .steps = t->step, .text = t->text };
}

static int32_t nine_tokens[64];
static int rank_of_fill;
static atomic_int filled;

/* Kernel: numbers the ranks as they come, fills [count] floats of arg 0. */
static void fill(const RtCall *c, int64_t lo, int64_t hi)
{
    if (c->worker)
        return;
    float *p = c->arg[0];
    (void)hi;
    for (int64_t i = lo; i < 8 * 1000; i++)
        p[i] = (float)((uintptr_t)p % 1 + (size_t)i % 13);
}

static int check_p, check_n, check_kind;
static atomic_int checked;

/* Every rank's number is 1 + (bits of its filled pattern): see `number`. */
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
        t.step[i].arg[1].offset = other;
        t.step[i].kind = RT_KERNEL;
        t.step[i].items = 1;
    }
    t.step[0].kernel = 0;
    t.step[2].kernel = 1;
    t.step[1].kind = kind;
    t.step[1].count = n;
    t.step[1].c.offset = kind == RT_ALL_REDUCE ? 0 : other;
    t.head.nsteps = 3;
    check_p = p, check_n = n, check_kind = kind;
    atomic_store(&filled, 0);
    atomic_store(&checked, 0);
    cr_assert_eq(run(&t.p, (RtOptions){ .steps = 1, .fixed_tokens = nine_tokens,
                                        .fixed_ntokens = 64 }), 0, "%s", said);
    cr_assert_eq(atomic_load(&checked), p);
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

/* ---- all-to-all ------------------------------------------------------------------ */

/* Ranks without threads: only coordinates, for tables. */
typedef struct { Rt rt; RtHeader head; RtRank *rank; } Plain;

static void plain(Plain *p, const RtHeader *h, const RtProgram *program)
{
    memset(p, 0, sizeof *p);
    p->head = *h;
    p->rt.head = &p->head;
    p->rt.program = program;
    p->rt.exe = "test";
    p->rt.nranks = h->data * h->x * h->y * h->z;
    p->rt.real = 4;
    p->rt.nworkers = 1;
    pthread_mutex_init(&p->rt.fault_lock, NULL);
    p->rank = rt_alloc((size_t)p->rt.nranks, sizeof *p->rank);
    for (int i = 0; i < p->rt.nranks; i++)
        p->rank[i] = (RtRank){ .rt = &p->rt, .id = i, .z = i % h->z, .y = i / h->z % h->y,
                               .x = i / h->z / h->y % h->x, .d = i / h->z / h->y / h->x };
    p->rt.rank = p->rank;
}

enum { A2A_W = 24 };
static int a2a_rep;

/* A: element (global row g, column c) holds g*100 + c. Checks layout `axes`. */
static void a2a_expect(const RtRank *r, const float *m, int axes, const RtCols *cols, bool write)
{
    int64_t n, first = rt_rows_first(r, axes, &n);
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
                   .microbatches = 1, .real_bytes = 4 };
    RtProgram prog = { .head = &h, .steps = step, .segments = seg, .columns = col, .text = "" };
    Plain p;
    plain(&p, &h, &prog);
    rt_groups_make(&p.rt);
    int n = p.rt.nranks;
    RtWorker w = { .index = 0 };
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
            const RtSeat *seat = &r->seat[p.rt.step_kind[s]];
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
    (void)w;
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
            t.step[i].arg[1].offset = 4096;
            t.step[i].arg[2].offset = 8192;
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
            t.step[i].a = (RtRef){ i == 1 ? 0 : 4096, i == 1 ? 2 * p : 2 };
            t.step[i].c = (RtRef){ i == 1 ? 4096 : 8192, i == 1 ? 2 : 2 * p };
        }
        check_p = p;
        atomic_store(&filled, 0);
        atomic_store(&checked, 0);
        cr_assert_eq(run(&t.p, (RtOptions){ .steps = 1, .fixed_tokens = nine_tokens,
                                            .fixed_ntokens = 64 }), 0, "%s", said);
        cr_assert_eq(atomic_load(&checked), p);
    }
    (void)fill, (void)rank_of_fill, (void)a2a_rep;
}
