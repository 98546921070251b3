/*
 * test_kernels.c - every kind of generated kernel against a plain twin in double.
 *
 * Each case runs in float and in double, on odd sizes, with leading dimensions
 * above the width, and with the items cut among 1 to 3 workers. Tolerances: |got - want| <=
 * tol * (1 + |want|), tol = 1e-12 for double and 3e-5 for float unless said.
 */
#include <criterion/criterion.h>

#include <dlfcn.h>
#include <unistd.h>

#include "kernel.h"
#include "random.h"
#include "rt.h"

/* ---- numbers -------------------------------------------------------------------- */

static uint64_t state = 88172645463325252u;
static uint64_t bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
static int64_t below(int64_t n) { return (int64_t)(bits() >> 11) % n; }
static double uniform(void) { return (double)(bits() >> 11) * 0x1p-52 - 1; }      // -1 .. 1

/* Reals of either type; guard: a border behind the end that must stay as it was. */
typedef struct { void *p; int64_t n; bool dbl; } Buf;
enum { GUARD = 64 };
static double at(Buf b, int64_t i) { return b.dbl ? ((double *)b.p)[i] : ((float *)b.p)[i]; }
static void put(Buf b, int64_t i, double x)
{
    if (b.dbl) ((double *)b.p)[i] = x;
    else ((float *)b.p)[i] = (float)x;
}
static Buf buf(bool dbl, int64_t n, double scale)
{
    Buf b = { NULL, n, dbl };
    b.p = aligned_alloc(64, ((size_t)(n + GUARD) * 8 + 63) / 64 * 64);
    for (int64_t i = 0; i < n; i++) put(b, i, scale * uniform());
    for (int64_t i = n; i < n + GUARD; i++) put(b, i, 4096);
    return b;
}
static void release(Buf b)
{
    for (int64_t i = b.n; i < b.n + GUARD; i++) cr_assert_eq(at(b, i), 4096, "written past the end");
    free(b.p);
}
static double *copy(Buf b)
{
    double *x = malloc(sizeof *x * (size_t)(b.n + 1));
    for (int64_t i = 0; i < b.n; i++) x[i] = at(b, i);
    return x;
}
static void same(Buf got, const double *want, double tol_double, double tol_float,
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
static void close_to(Buf got, const double *want, const char *what)
{
    same(got, want, 1e-12, 3e-5, what);
}

/* ---- running ---------------------------------------------------------------------- */

static void run(const KernelSpec *spec, RtCall *call, int64_t items, int workers)
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

static KernelSpec spec_of(KernelKind kind, const char *name, bool dbl)
{
    return (KernelSpec){ .kind = kind, .name = name, .key = name, .is_double = dbl };
}

static void both(void (*test)(bool dbl, int variant), int variants)
{
    for (int v = 0; v < variants; v++)
        for (int d = 0; d < 2; d++) test(d, v);
}

/* ---- row programs: building ---------------------------------------------------------- */

enum { MAX_NODES = 64, MAX_ARGS = 16 };
typedef struct { RowProg p; RowNode node[MAX_NODES]; RowArg arg[MAX_ARGS]; } Prog;

static Prog *prog(int64_t width, int parts)
{
    Prog *g = calloc(1, sizeof *g);
    g->p = (RowProg){ .name = "program", .width = width, .parts = parts, .arg = g->arg,
                      .node = g->node, .part_width = width / parts };
    return g;
}
static int node(Prog *g, RowNodeKind kind, int a, int b, int arg)
{
    g->node[g->p.nnodes] = (RowNode){ .kind = kind, .a = a, .b = b, .arg = arg };
    return g->p.nnodes++;
}
static int rows_arg(Prog *g, int64_t cols, bool out)
{
    g->arg[g->p.nargs] = (RowArg){ .is_out = out, .length = cols, .ld = cols + below(3),
                                   .stride = 1, .per = g->p.width / cols };
    return g->p.nargs++;
}
static int vec_arg(Prog *g, int64_t length, bool out)
{
    g->arg[g->p.nargs] = (RowArg){ .is_vector = true, .is_out = out, .length = length,
                                   .ld = length, .stride = 1, .per = 1 };
    return g->p.nargs++;
}
static int load(Prog *g) { return node(g, R_LOAD, NONE, NONE, rows_arg(g, g->p.width, false)); }
static int loadvec(Prog *g, int64_t n) { return node(g, R_LOADVEC, NONE, NONE, vec_arg(g, n, false)); }
static int number(Prog *g, double c)
{
    int i = node(g, R_NUMBER, NONE, NONE, 0);
    g->node[i].c = c;
    return i;
}
static bool is_part(Prog *g, int a)
{
    return a == NONE || g->node[a].part || g->node[a].kind == R_NUMBER;
}
static int op(Prog *g, OpKind kind, int a, int b)
{
    int i = node(g, R_OP, a, b, 0);
    g->node[i].op = kind;
    g->node[i].part = is_part(g, a) && is_part(g, b) && kind != OP_COLUMN;
    return i;
}
static int op_c(Prog *g, OpKind kind, int a, double c)
{
    int i = op(g, kind, a, NONE);
    g->node[i].c = c;
    return i;
}
static int reduce(Prog *g, RowNodeKind kind, int a, int b)
{
    int i = node(g, kind, a, b, 0);
    g->node[i].part = true;
    return i;
}
static int loadpart(Prog *g)
{
    int a = rows_arg(g, g->p.parts, false), i = node(g, R_LOADPART, NONE, NONE, a);
    g->node[i].part = true;
    return i;
}
static void store(Prog *g, int a) { node(g, R_STORE, a, NONE, rows_arg(g, g->p.width, true)); }
static void storepart(Prog *g, int a) { node(g, R_STOREPART, a, NONE, rows_arg(g, g->p.parts, true)); }
static void colsum(Prog *g, int a, int64_t n) { node(g, R_COLSUM, a, NONE, vec_arg(g, n, true)); }

/* ---- row programs: the twin ------------------------------------------------------------ */

static double twin_op(OpKind k, double a, double b, double c)
{
    switch (k) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_MAX: return a >= b ? a : b;
    case OP_MIN: return a <= b ? a : b;
    case OP_GE: return a >= b;
    case OP_EQ: return a == b;
    case OP_NEG: return -a;
    case OP_POW: return pow(a, c);
    case OP_EXP: return exp(a);
    case OP_LOG: return log(a);
    case OP_SQRT: return sqrt(a);
    case OP_RSQRT: return 1 / sqrt(a);
    case OP_TANH: return tanh(a);
    case OP_SIGMOID: return 1 / (1 + exp(-a));
    case OP_ERF: return erf(a);
    case OP_ABS: return fabs(a);
    case OP_SIGN: return (a > 0) - (a < 0);
    case OP_SIN: return sin(a);
    case OP_COS: return cos(a);
    case OP_SPREAD: return a;
    default: bug("no twin for operator %d", k);
    }
}

typedef struct {
    const RowProg *p; const RtCall *call;
    double *arg[MAX_ARGS];
    int64_t pw, row, part;
    double *val[MAX_NODES];         // columns of the part
} Twin;

static double huge_real(Buf b) { return b.dbl ? 1e300 : 1e30; }

static void twin_reduce(Twin *t, int i, double huge)
{
    const RowNode *n = &t->p->node[i];
    double sum = 0, most = -INFINITY, m2 = 0, first = huge;
    for (int64_t c = 0; c < t->pw; c++) {
        double x = t->val[n->a][c];
        sum += x;
        if (x > most) most = x;
        if (n->kind != R_FIRST || x != t->val[n->b][c]) continue;
        double at_column = (double)(t->call->colmap[t->part * t->pw + c] % t->p->part_width);
        if (at_column < first) first = at_column;
    }
    for (int64_t c = 0; c < t->pw; c++) {
        double d = t->val[n->a][c] - sum / (double)t->pw;
        m2 += d * d;
    }
    double y = n->kind == R_SUM ? sum : n->kind == R_MEAN ? sum / (double)t->pw
             : n->kind == R_M2 ? m2 : n->kind == R_MAX ? most : first;
    for (int64_t c = 0; c < t->pw; c++) t->val[i][c] = y;
}

static double twin_dropout(const Twin *t, const RowNode *n, double a, int64_t column)
{
    uint32_t word = rt_dropout_word(t->call->seed, t->call->step, n->salt,
        (uint64_t)t->call->row_token[t->row], (uint32_t)t->call->colmap[column]);
    return word >= rt_dropout_limit(n->c) ? a / (1 - n->c) : 0;
}

static void twin_node(Twin *t, int i, double huge)
{
    const RowNode *n = &t->p->node[i];
    const RowArg *a = &t->p->arg[n->arg];
    double *x = t->arg[n->arg];
    if (n->kind >= R_SUM && n->kind <= R_FIRST) { twin_reduce(t, i, huge); return; }
    for (int64_t c = 0; c < t->pw; c++) {
        int64_t column = t->part * t->pw + c, row = t->row * a->ld;
        double *y = &t->val[i][c], from = n->a >= 0 ? t->val[n->a][c] : 0;
        switch (n->kind) {
        case R_LOAD: *y = x[row + column / a->per * a->stride]; break;
        case R_LOADPART: *y = x[row + t->part * a->stride]; break;
        case R_LOADVEC: *y = x[column % a->length]; break;
        case R_NUMBER: *y = n->c; break;
        case R_OP:
            if (n->op == OP_COLUMN) *y = (double)(t->call->colmap[column] % t->p->part_width);
            else if (n->op == OP_DROPOUT) *y = twin_dropout(t, n, from, column);
            else *y = twin_op(n->op, from, n->b >= 0 ? t->val[n->b][c] : 0, n->c);
            break;
        case R_STORE: x[row + column * a->stride] = (a->accumulate ? x[row + column * a->stride]
                                                                   : 0) + from; break;
        case R_STOREPART:
            if (c == 0)
                x[row + t->part * a->stride] = (a->accumulate ? x[row + t->part * a->stride] : 0)
                                               + from;
            break;
        case R_COLSUM: x[column % a->length] += from; break;
        default: break;
        }
    }
}

static void twin_rows(Twin *t, int64_t rows, double huge)
{
    t->pw = t->p->width / t->p->parts;
    for (int i = 0; i < t->p->nnodes; i++) t->val[i] = calloc((size_t)t->pw, sizeof(double));
    for (t->row = 0; t->row < rows; t->row++)
        for (t->part = 0; t->part < t->p->parts; t->part++)
            for (int i = 0; i < t->p->nnodes; i++) twin_node(t, i, huge);
    for (int i = 0; i < t->p->nnodes; i++) free(t->val[i]);
}

/* Elements argument i needs; sums over rows: one row per worker. */
static int64_t arg_elements(const RowArg *a, int64_t rows, int workers)
{
    if (a->is_vector) return a->length * (a->is_out ? workers : 1);
    return rows * a->ld * (a->stride > 1 ? a->stride : 1);
}

static void sum_workers(Buf b, int64_t n, int workers)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int w = 0; w < workers; w++) sum += at(b, w * n + i);
        put(b, i, sum);
    }
}

typedef struct { double scale, shift, tol_double, tol_float; } Fill;

/* Runs the program both ways on random rows and compares everything it writes. */
static void check_rows_with(Prog *g, bool dbl, int64_t rows, int workers, Fill fill)
{
    RowProg *p = &g->p;
    RtCall call = { .seed = 12345678912345u, .step = 7 };
    int32_t *colmap = malloc(sizeof *colmap * (size_t)p->width);
    int64_t *token = malloc(sizeof *token * (size_t)(rows + 1));
    for (int64_t i = 0; i < p->width; i++) colmap[i] = (int32_t)i;
    for (int64_t i = 0; i < rows; i++) token[i] = 5000000000 + 3 * i;
    call.colmap = colmap;
    call.row_token = token;
    Buf b[MAX_ARGS];
    Twin t = { .p = p, .call = &call };
    for (int i = 0; i < p->nargs; i++) {
        RowArg *a = &p->arg[i];
        b[i] = buf(dbl, arg_elements(a, rows, workers), fill.scale);
        if (!a->is_out && !a->is_vector)
            for (int64_t j = 0; j < b[i].n; j++) put(b[i], j, at(b[i], j) + fill.shift);
        t.arg[i] = copy(b[i]);
        if (a->is_out && a->is_vector) memset(t.arg[i], 0, sizeof(double) * (size_t)b[i].n);
        call.arg[i] = b[i].p;
    }
    twin_rows(&t, rows, huge_real(b[0]));
    KernelSpec s = spec_of(K_ROWS, "rows", dbl);
    s.rows = p;
    run(&s, &call, rows, workers);
    for (int i = 0; i < p->nargs; i++) {
        RowArg *a = &p->arg[i];
        Buf part = b[i];
        if (a->is_vector && a->is_out) {
            sum_workers(b[i], a->length, workers);
            part.n = a->length;
        }
        same(part, t.arg[i], fill.tol_double, fill.tol_float, p->name);
        release(b[i]);
        free(t.arg[i]);
    }
    free(colmap);
    free(token);
    free(g);
}

static void check_rows(Prog *g, bool dbl, int64_t rows, int workers)
{
    check_rows_with(g, dbl, rows, workers, (Fill){ 1, 0, 1e-12, 3e-5 });
}

static const int64_t widths[] = { 1, 3, 17, 18, 216, 768 };
static const int64_t row_counts[] = { 0, 1, 5 };

/* ---- row programs: cases ------------------------------------------------------------------ */

/* gelu(x + bias) + residual, tanh form */
static void gelu(bool dbl, int v)
{
    for (int i = 0; i < 3; i++) {
        Prog *g = prog(widths[v], 1);
        int x = op(g, OP_ADD, load(g), loadvec(g, widths[v]));
        int u = op(g, OP_MUL, op_c(g, OP_POW, x, 3), number(g, 0.044715));
        u = op(g, OP_MUL, op(g, OP_ADD, x, u), number(g, 0.7978845608028654));
        u = op(g, OP_ADD, op(g, OP_TANH, u, NONE), number(g, 1));
        u = op(g, OP_MUL, op(g, OP_MUL, x, number(g, 0.5)), u);
        store(g, op(g, OP_ADD, u, load(g)));
        check_rows(g, dbl, row_counts[i], i + 1);
    }
}
Test(rows, gelu) { both(gelu, 6); }

static int layer_norm(Prog *g, int x, int *inverse)
{
    int m = reduce(g, R_MEAN, x, NONE), m2 = reduce(g, R_M2, x, NONE);
    double n = (double)(g->p.width / g->p.parts);
    int var = op(g, OP_DIV, m2, number(g, n));
    *inverse = op(g, OP_RSQRT, op(g, OP_ADD, var, number(g, 1e-5)), NONE);
    return op(g, OP_MUL, op(g, OP_SUB, x, m), *inverse);
}

/* layer norm of a sum, per row and per head, the sum and the statistics kept */
static void norm(bool dbl, int v)
{
    static const struct { int64_t width; int parts; } s[] = { { 1, 1 }, { 17, 1 }, { 768, 1 },
        { 216, 12 }, { 768, 12 }, { 12, 12 }, { 300, 3 }, { 96, 32 } };
    Prog *g = prog(s[v].width, s[v].parts);
    int64_t pw = s[v].width / s[v].parts;
    int x = op(g, OP_ADD, load(g), load(g)), inverse;
    store(g, x);
    int y = layer_norm(g, x, &inverse);
    y = op(g, OP_MUL, y, loadvec(g, v & 1 ? pw : s[v].width));
    store(g, op(g, OP_ADD, y, loadvec(g, pw)));
    storepart(g, inverse);
    check_rows_with(g, dbl, 5, 2, (Fill){ 1, 0, 1e-11, 1e-4 });
}
Test(rows, norm) { both(norm, 8); }

/* 1000 + noise: the variance must not drown */
static void far_from_zero(bool dbl, int v)
{
    Prog *g = prog(widths[v], 1);
    int inverse, x = load(g);
    store(g, layer_norm(g, x, &inverse));
    storepart(g, reduce(g, R_M2, x, NONE));
    check_rows_with(g, dbl, 5, 1, (Fill){ 1, 1000, 1e-9, 2e-3 });
}
Test(rows, far_from_zero) { both(far_from_zero, 6); }

/* layer norm backward with both sums over rows */
static void norm_backward(bool dbl, int v)
{
    int64_t w = widths[v];
    for (int workers = 1; workers <= 3; workers++) {
        Prog *g = prog(w, 1);
        int x = load(g), dy = load(g), weight = loadvec(g, w), mean = loadpart(g), inv = loadpart(g);
        int xhat = op(g, OP_MUL, op(g, OP_SUB, x, mean), inv), d = op(g, OP_MUL, dy, weight);
        int s1 = op(g, OP_DIV, reduce(g, R_SUM, d, NONE), number(g, (double)w));
        int dx = op(g, OP_MUL, d, xhat);
        int s2 = op(g, OP_DIV, reduce(g, R_SUM, dx, NONE), number(g, (double)w));
        int r = op(g, OP_SUB, op(g, OP_SUB, d, s1), op(g, OP_MUL, xhat, s2));
        store(g, op(g, OP_MUL, r, inv));
        g->arg[g->p.nargs - 1].accumulate = workers == 2;
        colsum(g, op(g, OP_MUL, dy, xhat), w);
        colsum(g, dy, w);
        check_rows(g, dbl, workers == 3 ? 1 : 7, workers);
    }
}
Test(rows, norm_backward) { both(norm_backward, 6); }

/* softmax of each part; exp is put aside between the phases */
static void softmax(bool dbl, int v)
{
    static const struct { int64_t width; int parts; } s[] = { { 18, 1 }, { 768, 12 }, { 5, 5 },
        { 51, 3 }, { 20000, 1 } };
    Prog *g = prog(s[v].width, s[v].parts);
    int x = load(g), m = reduce(g, R_MAX, x, NONE);
    int e = op(g, OP_EXP, op(g, OP_SUB, x, m), NONE);
    int y = op(g, OP_DIV, e, reduce(g, R_SUM, e, NONE));
    store(g, y);
    storepart(g, reduce(g, R_SUM, op(g, OP_MUL, y, y), NONE));
    check_rows(g, dbl, 5, 2);
}
Test(rows, softmax) { both(softmax, 5); }

/* every operator, on numbers of several sizes */
static void operators(bool dbl, int v)
{
    static const OpKind kinds[] = { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_MAX, OP_MIN, OP_GE, OP_EQ,
        OP_NEG, OP_EXP, OP_TANH, OP_SIGMOID, OP_ERF, OP_ABS, OP_SIGN, OP_SIN, OP_COS, OP_SPREAD };
    static const double sizes[] = { 1e-3, 1, 30, 90 };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (kinds[k] == OP_EXP && sizes[v] > 30) continue;
        Prog *g = prog(k % 2 ? 37 : 3, 1);
        int a = load(g), b = kinds[k] <= OP_EQ ? load(g) : NONE;
        store(g, op(g, kinds[k], a, b));
        g->p.name = op_word[kinds[k]];
        check_rows_with(g, dbl, 50, 1, (Fill){ sizes[v], 0, 1e-13, 3e-6 });
    }
    Prog *g = prog(37, 1);                      // operands above zero
    int a = load(g), b = op(g, OP_ADD, op(g, OP_ABS, a, NONE), number(g, 1e-3));
    store(g, op(g, OP_LOG, b, NONE));
    store(g, op(g, OP_SQRT, b, NONE));
    store(g, op(g, OP_RSQRT, b, NONE));
    static const double powers[] = { 0, 1, 2, 3, 5, -1, -2, 0.5, -0.5, 1.7, -0.3 };
    for (int i = 0; i < 11; i++) store(g, op_c(g, OP_POW, b, powers[i]));
    check_rows_with(g, dbl, 9, 1, (Fill){ sizes[v] > 2 ? 2 : sizes[v], 0, 1e-12, 1e-5 });
}
Test(rows, operators) { both(operators, 4); }

/* relative accuracy near zero, and the ends of the range */
static void extremes(bool dbl, int v)
{
    static const double in[] = { 1e-30, -1e-20, 1e-8, -3e-5, 1e-3, 0.02, 0.3, -0.34, 0.35, 0.7, 1,
        5, -9, 18, 25, -60, 85, -87.2, -100, 200, -1e10, 1e20, INFINITY, -INFINITY, NAN };
    static const OpKind kinds[] = { OP_TANH, OP_SIGMOID, OP_EXP, OP_ERF };
    enum { N = sizeof in / sizeof *in };
    Prog *g = prog(N, 1);
    store(g, op(g, kinds[v], load(g), NONE));
    Buf x = buf(dbl, N, 1), y = buf(dbl, N, 1);
    g->arg[0].ld = g->arg[1].ld = N;
    for (int i = 0; i < N; i++) put(x, i, in[i]);
    RtCall call = { .arg = { x.p, y.p } };
    KernelSpec s = spec_of(K_ROWS, "extreme", dbl);
    s.rows = &g->p;
    run(&s, &call, 1, 1);
    for (int i = 0; i < N; i++) {
        double want = twin_op(kinds[v], at(x, i), 0, 0), got = at(y, i);
        if (!dbl && want > 3.4e38) want = INFINITY;
        double tol = dbl ? 1e-14 : 4e-6, least = dbl ? 1e-300 : 1e-37;
        bool ok = got == want || (got != got && want != want)
            || fabs(got - want) <= tol * fabs(want) + least;
        cr_assert(ok, "%s(%g) is %.17g, not %.17g (%s)", op_word[kinds[v]], at(x, i), got, want,
                  dbl ? "double" : "float");
    }
    release(x);
    release(y);
    free(g);
}
Test(rows, extremes) { both(extremes, 4); }

/* operands narrower than the row, strides, vectors of other lengths */
static void shapes(bool dbl, int v)
{
    static const struct { int64_t width; int parts; int64_t per, length; } s[] = {
        { 768, 1, 64, 768 }, { 768, 12, 64, 64 }, { 768, 12, 768, 128 }, { 216, 12, 18, 18 },
        { 216, 1, 18, 18 }, { 216, 4, 27, 6 }, { 18, 1, 18, 1 }, { 96, 2, 3, 24 }, { 17, 1, 17, 17 },
        { 64, 4, 32, 32 }, { 128, 1, 32, 32 }, { 6, 6, 1, 3 }, { 24, 24, 4, 8 } };
    Prog *g = prog(s[v].width, s[v].parts);
    int gate = node(g, R_LOAD, NONE, NONE, rows_arg(g, s[v].width / s[v].per, false));
    int strided = rows_arg(g, s[v].width, false);
    g->arg[strided].stride = 2;
    g->arg[strided].ld *= 2;
    int x = op(g, OP_MUL, op(g, OP_SPREAD, gate, NONE), node(g, R_LOAD, NONE, NONE, strided));
    x = op(g, OP_ADD, x, loadvec(g, s[v].length));
    int m = reduce(g, R_MAX, x, NONE);
    int y = op(g, OP_SUB, x, op(g, OP_MUL, m, loadpart(g)));
    store(g, y);
    g->arg[g->p.nargs - 1].stride = 3;
    g->arg[g->p.nargs - 1].ld = 3 * s[v].width;
    storepart(g, op(g, OP_NEG, m, NONE));
    g->arg[g->p.nargs - 1].stride = 2;
    g->arg[g->p.nargs - 1].ld = 2 * s[v].parts + 1;
    colsum(g, y, s[v].length);
    colsum(g, m, s[v].width);
    colsum(g, gate, 1);
    check_rows(g, dbl, 5, 2);
}
Test(rows, shapes) { both(shapes, 13); }

/* the first column of the largest, as the gradient of rowmax finds it */
static void first_of_largest(bool dbl, int v)
{
    static const struct { int64_t width; int parts; } s[] = { { 17, 1 }, { 768, 12 }, { 40, 5 } };
    Prog *g = prog(s[v].width, s[v].parts);
    int x = op(g, OP_SIGN, op(g, OP_SUB, load(g), number(g, 0.5)), NONE);
    int m = reduce(g, R_MAX, x, NONE), f = reduce(g, R_FIRST, x, m);
    int column = op(g, OP_COLUMN, x, NONE);
    store(g, op(g, OP_EQ, column, f));
    storepart(g, f);
    storepart(g, reduce(g, R_FIRST, x, number(g, 5)));
    g->p.needs_colmap = true;
    check_rows(g, dbl, 5, 1);
}
Test(rows, first_of_largest) { both(first_of_largest, 3); }

static void dropout(bool dbl, int v)
{
    Prog *g = prog(widths[v], 1);
    int y = op_c(g, OP_DROPOUT, load(g), v == 2 ? 0 : 0.3);
    g->node[y].salt = 0xdeadbeef;
    store(g, y);
    int z = op_c(g, OP_DROPOUT, op(g, OP_MUL, y, reduce(g, R_SUM, y, NONE)), 0.9);
    g->node[z].salt = 17;
    store(g, z);
    g->p.needs_colmap = g->p.needs_rowmap = true;
    check_rows(g, dbl, 5, 2);
}
Test(rows, dropout) { both(dropout, 6); }

/* programs nobody would write */
static void random_program(bool dbl, int v)
{
    static const OpKind kinds[] = { OP_ADD, OP_SUB, OP_MUL, OP_MAX, OP_MIN, OP_TANH, OP_SIGMOID,
        OP_COS, OP_NEG, OP_ABS, OP_SIN };   // GE would jump at roundings
    static const RowNodeKind reds[] = { R_SUM, R_MEAN, R_M2, R_MAX };
    int parts = (int)(1 + below(3));
    Prog *g = prog(parts * (1 + below(v % 2 ? 40 : 9)), parts);
    load(g);
    loadpart(g);
    loadvec(g, g->p.width);
    number(g, 0.75);
    while (g->p.nnodes < 24) {
        int a = (int)below(g->p.nnodes), b = (int)below(g->p.nnodes);
        if (below(4) == 0) {
            int r = reduce(g, reds[below(4)], a, NONE);         // kept small
            op(g, OP_TANH, r, NONE);
        } else {
            OpKind k = kinds[below(11)];
            op(g, k, a, k <= OP_EQ ? b : NONE);
        }
    }
    int n = g->p.nnodes;
    for (int i = 0; i < 4; i++) store(g, (int)below(n));
    colsum(g, n - 1, g->p.width);
    for (int i = 4; i < n; i++)
        if (is_part(g, i) && g->node[i].kind != R_NUMBER) { storepart(g, i); break; }
    check_rows_with(g, dbl, 4, 1 + v % 3, (Fill){ 0.7, 0, 1e-10, 1e-2 });
}
Test(rows, random_program) { both(random_program, 40); }

/* ---- attention --------------------------------------------------------------------------- */

typedef struct {
    int64_t heads, kv, hd, nseq, len;
    bool causal; int64_t window; double softcap;
    int chunks;                 // 0: plain; else q has chunks c and n-1-c of each sequence
} Att;

typedef struct { int64_t n, nruns; int32_t *seq, *pos; RtRun *runs; } Order;

static void order_add(Order *o, int64_t row, int64_t n, int64_t seq, int64_t pos)
{
    o->runs[o->nruns++] = (RtRun){ (int32_t)row, (int32_t)n, (int32_t)seq, (int32_t)pos };
    for (int64_t i = 0; i < n; i++) {
        o->seq[row + i] = (int32_t)seq;
        o->pos[row + i] = (int32_t)(pos + i);
    }
    if (o->n < row + n) o->n = row + n;
}

static Order order_new(int64_t rows)
{
    size_t n = (size_t)rows + 8;
    return (Order){ 0, 0, calloc(n, 4), calloc(n, 4), calloc(n, sizeof(RtRun)) };
}

/* Queries of member `me` of chunks/2 and all keys, member after member. */
static void orders(const Att *a, Order *q, Order *k)
{
    int64_t c = a->chunks ? a->len / a->chunks : a->len;
    *q = order_new(a->nseq * a->len);
    *k = order_new(a->nseq * a->len);
    for (int64_t s = 0; s < a->nseq; s++) {
        if (!a->chunks) {
            order_add(q, s * a->len, a->len, s, 0);
            order_add(k, s * a->len, a->len, s, 0);
            continue;
        }
        int me = 1 % (a->chunks / 2);
        if (s != 1 || a->nseq < 3) {            // a sequence without queries here
            int64_t row = q->n;
            order_add(q, row + c, c, s, me * c);
            order_add(q, row, c, s, (a->chunks - 1 - me) * c);
        }
        for (int i = 0; i < a->chunks; i++) {   // chunk i: first or second of its member
            int owner = i < a->chunks / 2 ? i : a->chunks - 1 - i;
            int64_t row = (owner * a->nseq * 2 + s * 2 + (i != owner)) * c;
            order_add(k, row, c, s, i * c);
        }
    }
}

typedef struct { const Att *a; Order q, k; int64_t ld[9]; double *x[9]; double scale; } AttTwin;
enum { Q, K, V, O, LSE, DO, DQ, DK, DV };

static bool sees(const AttTwin *t, int64_t i, int64_t j)
{
    int64_t d = t->q.pos[i] - t->k.pos[j];
    if (t->q.seq[i] != t->k.seq[j]) return false;
    if ((t->a->causal || t->a->window > 0) && d < 0) return false;
    return t->a->window <= 0 || d < t->a->window;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i] * y[i];
    return s;
}

static double *head(AttTwin *t, int what, int64_t row, int64_t h)
{
    return t->x[what] + row * t->ld[what] + h * t->a->hd;
}

static double score(AttTwin *t, int64_t i, int64_t j, int64_t h, int64_t g)
{
    double s = t->scale * dot(head(t, Q, i, h), head(t, K, j, g), t->a->hd), c = t->a->softcap;
    return c > 0 ? c * tanh(s / c) : s;
}

static void twin_forward(AttTwin *t)
{
    for (int64_t i = 0; i < t->q.n; i++)
        for (int64_t h = 0; h < t->a->heads; h++) {
            int64_t g = h * t->a->kv / t->a->heads;
            double most = -INFINITY, sum = 0, *o = head(t, O, i, h);
            for (int64_t j = 0; j < t->k.n; j++)
                if (sees(t, i, j)) most = fmax(most, score(t, i, j, h, g));
            for (int64_t d = 0; d < t->a->hd; d++) o[d] = 0;
            for (int64_t j = 0; j < t->k.n; j++) {
                if (!sees(t, i, j)) continue;
                double p = exp(score(t, i, j, h, g) - most);
                sum += p;
                for (int64_t d = 0; d < t->a->hd; d++) o[d] += p * head(t, V, j, g)[d];
            }
            for (int64_t d = 0; d < t->a->hd; d++) o[d] /= sum;
            t->x[LSE][i * t->ld[LSE] + h] = most + log(sum);
        }
}

static void twin_backward(AttTwin *t)
{
    int64_t hd = t->a->hd;
    for (int64_t j = 0; j < t->k.n; j++)
        for (int64_t d = 0; d < t->a->kv * hd; d++)
            t->x[DK][j * t->ld[DK] + d] = t->x[DV][j * t->ld[DV] + d] = 0;
    for (int64_t i = 0; i < t->q.n; i++)
        for (int64_t h = 0; h < t->a->heads; h++) {
            int64_t g = h * t->a->kv / t->a->heads;
            double *dq = head(t, DQ, i, h), *go = head(t, DO, i, h);
            double delta = dot(go, head(t, O, i, h), hd), lse = t->x[LSE][i * t->ld[LSE] + h];
            for (int64_t d = 0; d < hd; d++) dq[d] = 0;
            for (int64_t j = 0; j < t->k.n; j++) {
                if (!sees(t, i, j)) continue;
                double s = score(t, i, j, h, g), p = exp(s - lse), c = t->a->softcap;
                double ds = p * (dot(go, head(t, V, j, g), hd) - delta) * t->scale;
                if (c > 0) ds *= 1 - s / c * (s / c);
                for (int64_t d = 0; d < hd; d++) {
                    dq[d] += ds * head(t, K, j, g)[d];
                    head(t, DK, j, g)[d] += ds * head(t, Q, i, h)[d];
                    head(t, DV, j, g)[d] += p * go[d];
                }
            }
        }
}

static void attention_case(const Att *a, bool dbl, int workers)
{
    AttTwin t = { .a = a, .scale = 1 / sqrt((double)a->hd) };
    orders(a, &t.q, &t.k);
    RtCall call = { .runs_q = (int32_t *)t.q.runs, .runs_k = (int32_t *)t.k.runs,
                    .nruns_q = t.q.nruns, .nruns_k = t.k.nruns };
    KernelSpec s = spec_of(K_ATTN, "attention", dbl);
    s.heads = a->heads;
    s.kv_heads = a->kv;
    s.hd = a->hd;
    s.nseq = a->nseq;
    s.causal = a->causal;
    s.window = a->window;
    s.softcap = a->softcap;
    s.scale = t.scale;
    Buf b[9];
    for (int i = 0; i < 9; i++) {
        bool keys = i == K || i == V || i == DK || i == DV;
        int64_t cols = i == LSE ? a->heads : (keys ? a->kv : a->heads) * a->hd;
        t.ld[i] = s.ld[i] = cols + (i == LSE ? 0 : below(5));
        b[i] = buf(dbl, (keys ? t.k.n : t.q.n) * t.ld[i], 1.5);
        t.x[i] = copy(b[i]);
        call.arg[i] = b[i].p;
    }
    twin_forward(&t);
    run(&s, &call, t.q.nruns * a->heads, workers);
    close_to(b[O], t.x[O], "attention: o");
    close_to(b[LSE], t.x[LSE], "attention: lse");
    for (int64_t i = 0; i < b[O].n; i++) t.x[O][i] = at(b[O], i);
    for (int64_t i = 0; i < b[LSE].n; i++) t.x[LSE][i] = at(b[LSE], i);
    twin_backward(&t);
    s.kind = K_ATTN_DX;
    run(&s, &call, a->nseq * a->kv, workers);
    same(b[DQ], t.x[DQ], 1e-12, 1e-4, "attention: dq");
    same(b[DK], t.x[DK], 1e-12, 1e-4, "attention: dk");
    same(b[DV], t.x[DV], 1e-12, 1e-4, "attention: dv");
    for (int i = 0; i < 9; i++) {
        release(b[i]);
        free(t.x[i]);
    }
}

static const Att atts[] = {
    { 1, 1, 64, 1, 64, true, 0, 0, 0 },         // one full block
    { 2, 2, 18, 2, 5, true, 0, 0, 0 },
    { 1, 1, 1, 3, 1, true, 0, 0, 0 },
    { 4, 2, 16, 1, 77, true, 0, 0, 0 },         // grouped queries, odd length
    { 3, 1, 128, 1, 130, true, 0, 0, 0 },
    { 2, 2, 24, 2, 67, false, 0, 0, 0 },        // sees ahead
    { 2, 1, 32, 1, 200, true, 30, 0, 0 },       // window
    { 1, 1, 7, 1, 150, true, 1, 0, 0 },
    { 2, 2, 20, 2, 70, true, 0, 2.5, 0 },       // softcap
    { 2, 1, 16, 1, 100, true, 65, 0.7, 0 },
    { 2, 2, 16, 2, 64, true, 0, 0, 4 },         // balanced rows, gathered keys
    { 4, 2, 18, 3, 96, true, 0, 0, 8 },         // and a sequence without queries
    { 2, 1, 64, 1, 320, true, 100, 0, 4 },
    { 2, 2, 40, 1, 48, false, 0, 1.5, 4 },
    { 3, 2, 9, 1, 33, true, 0, 0, 0 },          // heads that do not divide
    { 1, 1, 300, 1, 70, true, 0, 0, 0 },        // wide heads: smaller blocks
};

static void attention(bool dbl, int v)
{
    attention_case(&atts[v], dbl, 1 + v % 3);
}
Test(attention, all) { both(attention, sizeof atts / sizeof *atts); }

/* ---- rotary positions ------------------------------------------------------------------ */

static void rope(bool dbl, int v)
{
    static const struct { int64_t heads, hd, rotary; } s[] = { { 2, 64, 64 }, { 3, 18, 10 },
        { 1, 2, 2 }, { 12, 64, 32 }, { 2, 50, 50 }, { 4, 16, 4 } };
    bool pairs = v & 1, inverse = v & 2;
    for (int i = 0; i < 6; i++) {
        int64_t hd = s[i].hd, r = s[i].rotary, cols = s[i].heads * hd, rows = 5, positions = 40;
        KernelSpec k = spec_of(K_ROPE_TABLE, "table", dbl);
        k.rotary = r;
        k.theta = 10000;
        Buf table = buf(dbl, positions * r, 1), x = buf(dbl, rows * (cols + 3), 1);
        Buf y = buf(dbl, rows * (cols + 1), 1);
        int32_t pos[] = { 0, 39, 7, 8, 3 };
        RtCall call = { .arg = { table.p }, .row_pos = pos };
        run(&k, &call, positions, 2);
        k = spec_of(K_ROPE, "rope", dbl);
        k.heads = s[i].heads;
        k.hd = hd;
        k.rotary = r;
        k.interleaved = pairs;
        k.inverse = inverse;
        k.ld[0] = cols + 3;
        k.ld[1] = cols + 1;
        double *want = copy(y);
        for (int64_t j = 0; j < rows; j++)
            for (int64_t c = 0; c < cols; c++) {
                int64_t d = c % hd, m = pairs ? d / 2 : d % (r / 2);
                bool second = pairs ? d % 2 : d >= r / 2;
                int64_t other = pairs ? (second ? -1 : 1) : (second ? -r / 2 : r / 2);
                double angle = pos[j] * pow(10000, -2.0 * (double)m / (double)r);
                if (inverse) angle = -angle;
                double a = at(x, j * (cols + 3) + c);
                double b = d < r ? at(x, j * (cols + 3) + c + other) : 0;
                want[j * (cols + 1) + c] = d >= r ? a
                    : a * cos(angle) + (second ? b : -b) * sin(angle);
            }
        call = (RtCall){ .arg = { x.p, y.p, table.p }, .row_pos = pos };
        run(&k, &call, rows, 1 + i % 3);
        close_to(y, want, "rope");
        release(table);
        release(x);
        release(y);
        free(want);
    }
}
Test(misc, rope) { both(rope, 4); }

/* ---- embedding --------------------------------------------------------------------------- */

static void embed(bool dbl, int v)
{
    int64_t cols = widths[v], brows = 10, rows = 6, ld = cols + 2;
    int32_t ids[] = { 20, 29, 19, 30, 25, 20 };
    KernelSpec k = spec_of(K_EMBED, "embed", dbl);
    k.cols = cols;
    k.brows = brows;
    k.ld[0] = cols;
    k.ld[1] = ld;
    Buf e = buf(dbl, brows * cols, 1), y = buf(dbl, rows * ld, 1);
    RtCall call = { .arg = { e.p, y.p }, .ids = ids, .base = 20 };
    double *want = copy(y);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t id = ids[r] - 20;
            want[r * ld + c] = id >= 0 && id < brows ? at(e, id * cols + c) : 0;
        }
    run(&k, &call, rows, 2);
    same(y, want, 0, 0, "embed");
    free(want);
    want = copy(e);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t id = ids[r] - 20;
            if (id >= 0 && id < brows) want[id * cols + c] += at(y, r * ld + c);
        }
    k.kind = K_EMBED_DW;
    k.nrows = rows;
    k.ld[0] = ld;
    k.ld[1] = cols;
    call.arg[0] = y.p;
    call.arg[1] = e.p;
    run(&k, &call, cols, 3);
    close_to(e, want, "embed_dw");
    release(e);
    release(y);
    free(want);
}
Test(misc, embed) { both(embed, 6); }

/* ---- cross entropy -------------------------------------------------------------------------- */

static void cross_entropy(bool dbl, int v)
{
    static const struct { int64_t cols, base, limit; } s[] = { { 1, 0, 1 }, { 17, 0, 100 },
        { 50, 100, 133 }, { 50, 100, 90 }, { 500, 0, 500 }, { 5033, 7, 5001 }, { 64, 0, 64 } };
    int64_t cols = s[v].cols, base = s[v].base, n = s[v].limit - base, ld = cols + 1, rows = 5;
    n = n < 0 ? 0 : n > cols ? cols : n;
    int32_t ids[] = { (int32_t)base, (int32_t)(base + (n ? n : 1) - 1), -1, (int32_t)base + 3, 99999 };
    KernelSpec k = spec_of(K_CE_STAT, "ce_stat", dbl);
    k.cols = cols;
    k.ld[0] = ld;
    k.ld[1] = 3;
    Buf x = buf(dbl, rows * ld, 30), stat = buf(dbl, rows * 3, 1);
    RtCall call = { .arg = { x.p, stat.p }, .ids = ids, .base = base, .limit = s[v].limit,
                    .ignore = -1, .scale = 0.125 };
    double *want = copy(stat), *grad = copy(x), loss = 0, total[24] = { 0 };
    for (int64_t r = 0; r < rows; r++) {
        double m = n ? -INFINITY : -huge_real(x), sum = 0;
        for (int64_t c = 0; c < n; c++) m = fmax(m, at(x, r * ld + c));
        for (int64_t c = 0; c < n; c++) sum += exp(at(x, r * ld + c) - m);
        int64_t c = ids[r] - base;
        want[r * 3] = m;
        want[r * 3 + 1] = sum;
        want[r * 3 + 2] = c >= 0 && c < n ? at(x, r * ld + c) : 0;
    }
    run(&k, &call, rows, 2);
    close_to(stat, want, "ce_stat");
    for (int64_t r = 0; r < rows; r++) {        // as if merged: rows of nothing get a sum
        if (n == 0) {
            put(stat, r * 3, 1.5);
            put(stat, r * 3 + 1, 2);
        }
        double m = at(stat, r * 3), sum = at(stat, r * 3 + 1);
        bool counts = ids[r] != -1;
        if (counts) loss += log(sum) + m - at(stat, r * 3 + 2);
        for (int64_t c = 0; c < cols; c++) {
            double p = exp(at(x, r * ld + c) - m) / sum - (ids[r] - base == c);
            grad[r * ld + c] = counts && c < n ? p * 0.125 : 0;
        }
    }
    int32_t count_me = v != 3;
    call.flags = &count_me;
    call.total = total;
    k.kind = K_CE;
    run(&k, &call, rows, 3);
    close_to(x, grad, "ce");
    double got = total[0] + total[8] + total[16], tol = dbl ? 1e-12 : 1e-5;
    if (!count_me) loss = 0;
    cr_assert(fabs(got - loss) <= tol * (1 + fabs(loss)), "ce: loss %g, not %g", got, loss);
    release(x);
    release(stat);
    free(want);
    free(grad);
}
Test(misc, cross_entropy) { both(cross_entropy, 7); }

/* ---- norm and optimizers ---------------------------------------------------------------------- */

static void norm_and_update(bool dbl, int v)
{
    static const int64_t sizes[] = { 0, 1, 15, 16, 33, 1000 };
    int64_t n = sizes[v];
    Buf p = buf(dbl, n, 1), g = buf(dbl, n, 1), m = buf(dbl, n, 1), w = buf(dbl, n, 0.1);
    for (int64_t i = 0; i < n; i++) put(w, i, fabs(at(w, i)));
    double total[24] = { 0 }, sum = 0;
    KernelSpec k = spec_of(K_NORM, "norm", dbl);
    RtCall call = { .arg = { g.p }, .total = total };
    for (int64_t i = 0; i < n; i++) sum += at(g, i) * at(g, i);
    run(&k, &call, n, 3);
    cr_assert(fabs(total[0] + total[8] + total[16] - sum) <= 1e-13 * (1 + sum), "norm");
    double *wp = copy(p), *wm = copy(m), *wv = copy(w);
    call = (RtCall){ .arg = { p.p, g.p, m.p, w.p }, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95,
        .eps = 1e-8, .decay = 0.1, .scale = 0.7, .correct1 = 1.3, .correct2 = 1.1, .momentum = 0.8 };
    k = spec_of(K_ADAMW, "adamw", dbl);
    for (int64_t i = 0; i < n; i++) {
        double d = at(g, i) * 0.7;
        wm[i] = 0.9 * wm[i] + (1 - 0.9) * d;
        wv[i] = 0.95 * wv[i] + (1 - 0.95) * d * d;
        wp[i] -= 1e-2 * (wm[i] * 1.3 / (sqrt(wv[i] * 1.1) + 1e-8) + 0.1 * wp[i]);
    }
    run(&k, &call, n, 3);
    close_to(p, wp, "adamw: p");
    close_to(m, wm, "adamw: m");
    close_to(w, wv, "adamw: v");
    k = spec_of(K_SGD, "sgd", dbl);
    for (int64_t i = 0; i < n; i++) {
        wm[i] = 0.8 * wm[i] + at(g, i) * 0.7;
        wp[i] -= 1e-2 * wm[i];
    }
    run(&k, &call, n, 2);
    close_to(p, wp, "sgd: p");
    close_to(m, wm, "sgd: m");
    release(p);
    release(g);
    release(m);
    release(w);
    free(wp);
    free(wm);
    free(wv);
}
Test(misc, norm_and_update) { both(norm_and_update, 6); }

/* ---- the object file, other machines ------------------------------------------------------------ */

static const char words[] = "a blob\0with a zero";

Test(object, links_and_runs)
{
    const char *path = str_fmt("/tmp/teracube_kernels_%ld.o", (long)getpid());
    const char *lib = str_fmt("%s.so", path), *name[] = { "first_data", "second_data" };
    KernelSpec k[2] = { spec_of(K_NORM, "k_norm", true), spec_of(K_ROPE_TABLE, "k_table", false) };
    k[1].rotary = 8;
    k[1].theta = 100;
    const void *blob[] = { words, "x" };
    size_t bytes[] = { sizeof words, 1 };
    Kernels *made = emit_llvm(k, 2, "test", NULL);
    cr_assert_eq(kernels_object(made, "/nowhere/at/all.o", 0, NULL, NULL, NULL), -1);
    kernels_free(made);
    made = emit_llvm(k, 2, "test", NULL);
    cr_assert_eq(kernels_object(made, path, 2, name, blob, bytes), 0);
    kernels_free(made);
    cr_assert_eq(system(str_fmt("cc -shared -o %s %s -lm", lib, path)), 0);
    void *so = dlopen(lib, RTLD_NOW);
    cr_assert(so, "%s", dlerror());
    RtKernelFn const *fn = dlsym(so, "rt_kernels");
    cr_assert(!memcmp(dlsym(so, "first_data"), words, sizeof words));
    cr_assert(!memcmp(dlsym(so, "second_data"), "x", 1));
    double x[3] = { 1, 2, 3 }, total[8] = { 0 };
    RtCall call = { .arg = { x }, .total = total, .nworkers = 1 };
    fn[0](&call, 0, 3);
    cr_assert_eq(total[0], 14);
    float table[8];
    call.arg[0] = table;
    fn[1](&call, 0, 1);
    cr_assert(table[0] == 1 && table[1] == 0);
    dlclose(so);
    remove(path);
    remove(lib);
}

/* Code for plain SSE2 runs here too; for AVX-512 it must at least compile. */
Test(object, other_machines)
{
    llvm_cpu = "x86-64";
    llvm_features = "+sse2";
    both(norm, 8);
    both(operators, 2);
    both(dropout, 6);
    both(attention, 8);
    both(rope, 4);
    both(cross_entropy, 7);
    both(norm_and_update, 6);
    llvm_cpu = "x86-64-v4";
    llvm_features = "+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx2,+fma";
    for (int d = 0; d < 2; d++) {
        KernelSpec k = spec_of(K_ATTN_DX, "k", d);
        k.heads = k.kv_heads = 2;
        k.hd = 50;
        k.causal = true;
        Kernels *made = emit_llvm(&k, 1, "test", NULL);
        const char *path = str_fmt("/tmp/teracube_avx512_%ld.o", (long)getpid());
        cr_assert_eq(kernels_object(made, path, 0, NULL, NULL, NULL), 0);
        kernels_free(made);
        remove(path);
    }
}
