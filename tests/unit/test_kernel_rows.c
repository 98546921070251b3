/*
 * test_kernel_rows.c - generated row programs against an interpreter of RowProg that
 * follows plan.h word by word, in double. Cases also run with every second argument, then
 * with all arguments in bf16.
 * needs: llvm
 */
#include "kernel_help.h"
#include "random.h"

/* ---- building ------------------------------------------------------------- */

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
static int loadvec(Prog *g, int64_t n)
{
    return node(g, R_LOADVEC, NONE, NONE, vec_arg(g, n, false));
}
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
static void storepart(Prog *g, int a)
{
    node(g, R_STOREPART, a, NONE, rows_arg(g, g->p.parts, true));
}
static void colsum(Prog *g, int a, int64_t n) { node(g, R_COLSUM, a, NONE, vec_arg(g, n, true)); }

/* ---- the twin ------------------------------------------------------------- */

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
    if (t->call->evaluate) return a;
    uint32_t word = rt_dropout_word(t->call->seed, t->call->step, t->call->salt[n->salt],
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
static uint32_t evaluate;       // of the calls that follow
static uint32_t salts[2] = { 17, 0xdeadbeef };

/* Runs the program both ways on random rows and compares everything it writes. */
static void check_rows_with(Prog *g, bool dbl, int64_t rows, int workers, Fill fill)
{
    RowProg *p = &g->p;
    RtCall call = { .seed = 12345678912345u, .step = 7, .evaluate = evaluate,
                    .salt = salts };
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
        a->bf16 = is_half(i, dbl);
        b[i] = buf_as(dbl, a->bf16 && !(a->is_out && a->is_vector),
                      arg_elements(a, rows, workers), fill.scale);
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

static void all(void (*test)(bool dbl, int variant), int variants)
{
    both(test, variants);
    halves(test, variants, 0x5555);
    halves(test, variants, 0xaaaa);
    halves(test, variants, 0xffff);
}

static const int64_t row_counts[] = { 0, 1, 5 };

/* ---- cases ---------------------------------------------------------------- */

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
Test(rows, gelu) { all(gelu, 6); }

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
Test(rows, norm) { all(norm, 8); }

/* 1000 + noise: the variance must not drown */
static void far_from_zero(bool dbl, int v)
{
    Prog *g = prog(widths[v], 1);
    int inverse, x = load(g);
    store(g, layer_norm(g, x, &inverse));
    storepart(g, reduce(g, R_M2, x, NONE));
    check_rows_with(g, dbl, 5, 1, (Fill){ 1, 1000, 1e-9, 2e-3 });
}
Test(rows, far_from_zero) { all(far_from_zero, 6); }

/* layer norm backward with both sums over rows */
static void norm_backward(bool dbl, int v)
{
    int64_t w = widths[v];
    for (int workers = 1; workers <= 3; workers++) {
        Prog *g = prog(w, 1);
        int x = load(g), dy = load(g), weight = loadvec(g, w);
        int mean = loadpart(g), inv = loadpart(g);
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
Test(rows, norm_backward) { all(norm_backward, 6); }

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
Test(rows, softmax) { all(softmax, 5); }

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
Test(rows, operators) { all(operators, 4); }

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
        { 216, 1, 18, 18 }, { 216, 4, 27, 6 }, { 18, 1, 18, 1 }, { 96, 2, 3, 24 },
        { 17, 1, 17, 17 }, { 64, 4, 32, 32 }, { 128, 1, 32, 32 }, { 6, 6, 1, 3 },
        { 24, 24, 4, 8 } };
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
Test(rows, shapes) { all(shapes, 13); }

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
Test(rows, first_of_largest) { all(first_of_largest, 3); }

static void dropout(bool dbl, int v)
{
    Prog *g = prog(widths[v / 2], 1);
    int y = op_c(g, OP_DROPOUT, load(g), v == 4 ? 0 : 0.3);
    g->p.salt = salts;
    g->p.nsalts = 2;
    g->node[y].salt = 1;
    store(g, y);
    int z = op_c(g, OP_DROPOUT, op(g, OP_MUL, y, reduce(g, R_SUM, y, NONE)), 0.9);
    store(g, z);
    g->p.needs_colmap = g->p.needs_rowmap = true;
    evaluate = v % 2;
    check_rows(g, dbl, 5, 2);
    evaluate = 0;
}
Test(rows, dropout) { all(dropout, 12); }

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
Test(rows, random_program) { all(random_program, 40); }

/* Every bf16, loaded; floats around every bf16, stored: bit for bit. */
Test(rows, rounding)
{
    enum { N = 65536 };
    for (int way = 0; way < 2; way++) {
        uint32_t *real = malloc(N * 4);
        uint16_t *half = malloc(N * 2);
        for (int low = 0; low < (way ? 6 : 1); low++) {
            static const uint32_t lows[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
            Prog *g = prog(17, 1);
            int rows = N / 17;
            store(g, load(g));
            for (int i = 0; i < 2; i++) g->arg[i].ld = 17;
            g->arg[way].bf16 = true;
            for (uint32_t i = 0; i < N; i++) {
                real[i] = way ? i << 16 | lows[low] : 7;
                half[i] = way ? 7 : (uint16_t)i;
            }
            RtCall call = { .arg = { way ? (void *)real : half, way ? (void *)half : real } };
            KernelSpec s = spec_of(K_ROWS, "rounding", false);
            s.rows = &g->p;
            run(&s, &call, rows, 2);
            for (uint32_t i = 0; i < 17 * (uint32_t)rows; i++) {
                float x;
                memcpy(&x, &real[i], sizeof x);
                bool right = way ? half[i] == to_half(x) : real[i] == i << 16;
                cr_assert(right, "float %08x, bf16 %04x", real[i], half[i]);
            }
            free(g);
        }
        free(real);
        free(half);
    }
}

/* Plain SSE2 has narrower vectors and no fused multiply-add. */
Test(rows, other_machine)
{
    llvm_cpu = "x86-64";
    llvm_features = "+sse2";
    both(norm, 8);
    both(operators, 2);
    both(dropout, 12);
    halves(norm, 8, 0x5555);
    halves(shapes, 13, 0xffff);
    halves(random_program, 10, 0xaaaa);
}
