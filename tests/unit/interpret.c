/*
 * interpret.c - executes every operator of a plan, one after another.
 *
 * Written from ops.h, one case per operator, and slow. Memory lives in `perm`
 * as everything of a test does.
 */
#include "interpret.h"

#include "random.h"

#include <unistd.h>

/* ---- a plan from text ------------------------------------------------- */

Plan *unit_plan(const char *text, int64_t batch, int64_t sequence, bool fuse)
{
    char path[] = "/tmp/unit-XXXXXX.tcube";
    int fd = mkstemps(path, 6);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        die(EXIT_WORLD, "could not write %s", path);
    const char *model = strstr(text, "---\n");
    fprintf(f, "%.*s\nmodel test {\n%s\n}\n", model ? (int)(model - text) : 0, text,
            model ? model + 4 : text);
    fprintf(f, "train {\n data = \"x\"\n batch = %d\n sequence = %d\n steps = 1\n"
            " objective = masked(p=0.5, token=0)\n}\n", (int)batch, (int)sequence);
    fclose(f);
    const char *files[] = { path };
    Inputs in = { .files = files, .nfiles = 1 };
    Config *config = config_read(parse_files(&in), &in);
    unlink(path);
    Plan *p = plan_new(config);
    if (!diag_errors())
        graph_build(p);
    if (diag_errors())
        die(EXIT_FAULT, "the model of a test has errors");
    if (fuse)
        fuse_linears(p);
    autodiff_add(p);
    return p;
}

/* ---- elementwise ------------------------------------------------------ */

static const Tensor *tensor(const Interpret *x, TensorId t)
{
    return &x->p->tensors.at[t];
}

/* Operand t at (row, column) of a result of width W. */
static double at(const Interpret *x, TensorId t, int64_t row, int64_t c, int64_t W)
{
    const Tensor *o = tensor(x, t);
    if (o->kind == T_NUMBER)
        return o->number;
    if (o->kind == T_VECTOR)
        return x->val[t][c % o->width];
    return x->val[t][row * o->width + c / (W / o->width)];
}

static double mask(const Interpret *x, const Op *op, int64_t row, int64_t c)
{
    uint32_t w = rt_dropout_word(x->in->seed, x->in->step, op->salt, (uint64_t)row, (uint32_t)c);
    return w >= rt_dropout_limit(op->c) ? 1 / (1 - op->c) : 0;
}

static double element(const Interpret *x, const Op *op, double a, double b, int64_t row, int64_t c)
{
    switch (op->kind) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_MAX: return a >= b ? a : b;
    case OP_MIN: return a <= b ? a : b;
    case OP_GE: return a >= b;
    case OP_EQ: return a == b;
    case OP_NEG: return -a;
    case OP_POW: return pow(a, op->c);
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
    case OP_COLUMN: return (double)(c % (tensor(x, op->in[0])->width / op->parts));
    case OP_DROPOUT: return a * mask(x, op, row, c);
    case OP_SPREAD: return a;
    default: bug("element: %s", op_word[op->kind]);
    }
}

static void run_row(Interpret *x, const Op *op)
{
    int64_t W = tensor(x, op->out[0])->width;
    for (int64_t t = 0; t < x->T; t++)
        for (int64_t c = 0; c < W; c++)
            x->val[op->out[0]][t * W + c] = element(x, op, at(x, op->in[0], t, c, W),
                op->nin > 1 ? at(x, op->in[1], t, c, W) : 0, t, c);
}

static double reduce(const Op *op, const double *a, double b, int64_t n)
{
    double r = op->kind == OP_ROWMAX ? a[0] : op->kind == OP_FIRST ? HUGE_VAL : 0, mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += a[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        if (op->kind == OP_SUM)
            r += a[i];
        else if (op->kind == OP_VAR)
            r += (a[i] - mean) * (a[i] - mean) / (double)n;
        else if (op->kind == OP_ROWMAX)
            r = fmax(r, a[i]);
        else if (a[i] == b && r == HUGE_VAL)
            r = (double)i;
    return r;
}

static void run_red(Interpret *x, const Op *op)
{
    int64_t n = tensor(x, op->in[0])->width / op->parts;
    for (int64_t i = 0; i < x->T * op->parts; i++)
        x->val[op->out[0]][i] = reduce(op, x->val[op->in[0]] + i * n,
                                       op->nin > 1 ? x->val[op->in[1]][i] : 0, n);
}

static void run_colsum(Interpret *x, const Op *op)
{
    int64_t W = tensor(x, op->in[0])->width, P = tensor(x, op->out[0])->width;
    for (int64_t t = 0; t < x->T; t++)
        for (int64_t c = 0; c < W; c++)
            x->val[op->out[0]][c % P] += x->val[op->in[0]][t * W + c];
}

/* ---- matrices --------------------------------------------------------- */

/* Element (i, o) of the matrix as it is used, [in, out]. */
static double *used(Interpret *x, TensorId w, bool transposed, int64_t i, int64_t o)
{
    return x->val[w] + (transposed ? o * tensor(x, w)->width + i : i * tensor(x, w)->width + o);
}

/* Calls of all three products: y += x w, dx += dy wT, dw += xT dy, chosen by op. */
static void run_linear(Interpret *x, const Op *op)
{
    bool dw = op->kind == OP_LINEAR_DW, dx = op->kind == OP_LINEAR_DX;
    int n = dw ? op->nout : op->nin - 1;
    TensorId in = dx ? op->out[0] : op->in[0], out = dw ? op->in[1] : dx ? op->in[0] : op->out[0];
    int64_t I = tensor(x, in)->width, W = tensor(x, out)->width, start = 0;
    for (int k = 0; k < n; k++) {
        TensorId w = dw ? op->out[k] : op->in[k + 1];
        int64_t O = op->transposed ? tensor(x, w)->rows : tensor(x, w)->width;
        for (int64_t t = 0; t < x->T; t++)
            for (int64_t i = 0; i < I; i++)
                for (int64_t o = 0; o < O; o++) {
                    double *m = used(x, w, op->transposed, i, o);
                    double *a = x->val[in] + t * I + i, *b = x->val[out] + t * W + start + o;
                    if (dw)
                        *m += *a * *b;
                    else if (dx)
                        *a += *b * *m;
                    else
                        *b += *a * *m;
                }
        start += O;
    }
    if (start != W)
        bug("%s: its matrices do not make its width", op->name);
}

static int64_t id_at(const Interpret *x, TensorId ids, int64_t row)
{
    IdsKind kind = tensor(x, ids)->ids;
    return kind == IDS_POSITIONS ? row % x->S
        : kind == IDS_TOKENS ? x->in->tokens[row] : x->in->targets[row];
}

static void run_embed(Interpret *x, const Op *op)
{
    bool dw = op->kind == OP_EMBED_DW;
    double *table = x->val[dw ? op->out[0] : op->in[1]];
    TensorId rows = dw ? op->in[1] : op->out[0];
    int64_t W = tensor(x, rows)->width;
    for (int64_t t = 0; t < x->T; t++)
        for (int64_t c = 0; c < W; c++) {
            double *e = table + id_at(x, op->in[0], t) * W + c, *r = x->val[rows] + t * W + c;
            if (dw)
                *e += *r;
            else
                *r = *e;
        }
}

/* ---- split, concat, rope ---------------------------------------------- */

static void run_pieces(Interpret *x, const Op *op)
{
    bool split = op->kind == OP_SPLIT;
    TensorId whole = split ? op->in[0] : op->out[0];
    const TensorId *piece = split ? op->out : op->in;
    int n = split ? op->nout : op->nin;
    int64_t W = tensor(x, whole)->width;
    for (int64_t t = 0; t < x->T; t++)
        for (int part = 0; part < op->parts; part++) {
            int64_t c = t * W + part * (W / op->parts);
            for (int k = 0; k < n; k++) {
                int64_t w = op->sizes[k] / op->parts;
                if (op->sizes[k] != tensor(x, piece[k])->width)
                    bug("%s: sizes", op->name);
                for (int64_t i = 0; i < w; i++, c++) {
                    double *p = x->val[piece[k]] + t * op->sizes[k] + part * w + i;
                    if (split)
                        *p = x->val[whole][c];
                    else
                        x->val[whole][c] = *p;
                }
            }
        }
}

static void run_rope(Interpret *x, const Op *op)
{
    int64_t W = tensor(x, op->in[0])->width, D = W / op->heads;
    memcpy(x->val[op->out[0]], x->val[op->in[0]], (size_t)(x->T * W) * sizeof(double));
    for (int64_t t = 0; t < x->T; t++)
        for (int64_t h = 0; h < op->heads; h++)
            for (int64_t i = 0; i < op->rotary / 2; i++) {
                double angle = (double)(t % x->S)
                    / pow(op->theta, 2.0 * (double)i / (double)op->rotary);
                double s = op->inverse ? -sin(angle) : sin(angle), c = cos(angle);
                int64_t p = t * W + h * D + (op->interleaved ? 2 * i : i);
                int64_t q = op->interleaved ? p + 1 : p + op->rotary / 2;
                double a = x->val[op->in[0]][p], b = x->val[op->in[0]][q];
                x->val[op->out[0]][p] = a * c - b * s;
                x->val[op->out[0]][q] = b * c + a * s;
            }
}

/* ---- attention -------------------------------------------------------- */

/* Row of head h of tensor t. */
static double *head(const Interpret *x, TensorId t, int64_t row, int64_t h, int64_t D)
{
    return x->val[t] + row * tensor(x, t)->width + h * D;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

static bool sees(const Op *op, int64_t i, int64_t j)
{
    return (!op->causal || i >= j) && (!op->window || j > i - op->window);
}

typedef struct { int64_t i, j, h, kv, D; } Pair;    // token i of head h looks at j of kv

static double score(const Interpret *x, const Op *op, Pair p)
{
    double s = op->scale * dot(head(x, op->in[0], p.i, p.h, p.D),
                               head(x, op->in[1], p.j, p.kv, p.D), p.D);
    return op->softcap > 0 ? op->softcap * tanh(s / op->softcap) : s;
}

/* Calls f for every pair that sees each other, after clearing nothing. */
static void each_pair(Interpret *x, const Op *op, void (*f)(Interpret *, const Op *, Pair))
{
    int64_t D = tensor(x, op->in[0])->width / op->heads;
    for (int64_t h = 0; h < op->heads; h++)
        for (int64_t t = 0; t < x->T; t++)
            for (int64_t j = 0; j < x->S; j++)
                if (sees(op, t % x->S, j))
                    f(x, op, (Pair){ t, t - t % x->S + j, h, h / (op->heads / op->kv_heads), D });
}

static void add_exp(Interpret *x, const Op *op, Pair p)
{
    *head(x, op->out[1], p.i, p.h, 1) += exp(score(x, op, p));
}

static void add_value(Interpret *x, const Op *op, Pair p)
{
    double w = exp(score(x, op, p) - *head(x, op->out[1], p.i, p.h, 1));
    for (int64_t d = 0; d < p.D; d++)
        head(x, op->out[0], p.i, p.h, p.D)[d] += w * head(x, op->in[2], p.j, p.kv, p.D)[d];
}

/* in: q, k, v, o, lse, do; out: dq, dk, dv */
static void add_dx(Interpret *x, const Op *op, Pair p)
{
    double s = score(x, op, p), w = exp(s - *head(x, op->in[4], p.i, p.h, 1));
    const double *go = head(x, op->in[5], p.i, p.h, p.D);
    double dp = dot(go, head(x, op->in[2], p.j, p.kv, p.D), p.D);
    double mix = dot(go, head(x, op->in[3], p.i, p.h, p.D), p.D);
    double ds = w * (dp - mix) * op->scale;
    if (op->softcap > 0)
        ds *= 1 - s / op->softcap * (s / op->softcap);
    for (int64_t d = 0; d < p.D; d++) {
        head(x, op->out[0], p.i, p.h, p.D)[d] += ds * head(x, op->in[1], p.j, p.kv, p.D)[d];
        head(x, op->out[1], p.j, p.kv, p.D)[d] += ds * head(x, op->in[0], p.i, p.h, p.D)[d];
        head(x, op->out[2], p.j, p.kv, p.D)[d] += w * go[d];
    }
}

static void run_attention(Interpret *x, const Op *op)
{
    if (op->kind == OP_ATTN_DX) {
        each_pair(x, op, add_dx);
        return;
    }
    each_pair(x, op, add_exp);
    for (int64_t i = 0; i < x->T * op->heads; i++)
        x->val[op->out[1]][i] = log(x->val[op->out[1]][i]);
    each_pair(x, op, add_value);
}

/* ---- loss ------------------------------------------------------------- */

static void run_loss(Interpret *x, const Op *op)
{
    int64_t V = tensor(x, op->in[0])->width, n = 0;
    for (int64_t t = 0; t < x->T; t++)
        n += id_at(x, op->in[1], t) != op->ignore;
    for (int64_t t = 0; t < x->T; t++) {
        const double *l = x->val[op->in[0]] + t * V;
        int64_t target = id_at(x, op->in[1], t);
        double sum = 0;
        for (int64_t c = 0; c < V; c++)
            sum += exp(l[c]);
        if (target == op->ignore)
            continue;
        if (op->kind == OP_CE)
            x->loss += (log(sum) - l[target]) / (double)n;
        for (int64_t c = 0; c < V && op->kind == OP_CE_DX; c++)
            x->val[op->out[0]][t * V + c] = (exp(l[c]) / sum - (c == target)) / (double)n;
    }
}

/* ---- all operators ---------------------------------------------------- */

static void run_op(Interpret *x, const Op *op)
{
    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW: run_linear(x, op); break;
    case OP_EMBED:
    case OP_EMBED_DW:  run_embed(x, op); break;
    case OP_SPLIT:
    case OP_CONCAT:    run_pieces(x, op); break;
    case OP_ATTN:
    case OP_ATTN_DX:   run_attention(x, op); break;
    case OP_CE:
    case OP_CE_DX:     run_loss(x, op); break;
    case OP_ROPE:      run_rope(x, op); break;
    case OP_COLSUM:    run_colsum(x, op); break;
    default:
        if (op_class[op->kind] == C_ROW)
            run_row(x, op);
        else
            run_red(x, op);
    }
}

Interpret *interpret(const Plan *p, int64_t batch, int64_t sequence, const RefInput *in,
                     double *const *params)
{
    Interpret *x = NEW(Interpret);
    *x = (Interpret){ .p = p, .S = sequence, .T = batch * sequence, .in = in };
    x->val = NEWN(double *, p->tensors.n);
    for (int i = 0; i < p->tensors.n; i++) {
        const Tensor *t = &p->tensors.at[i];
        if (t->kind == T_ROWS)
            x->val[i] = NEWN(double, x->T * t->width);
        else if (t->kind == T_GRAD)
            x->val[i] = NEWN(double, t->rows * t->width);
        else if (t->kind == T_VECTOR || t->kind == T_MATRIX)
            x->val[i] = params[t->param];
    }
    for (int i = 0; i < p->ops.n; i++)
        run_op(x, &p->ops.at[i]);
    return x;
}
