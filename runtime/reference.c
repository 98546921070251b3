/*
 * reference.c - the forward graph in double precision, and its gradients.
 *
 * One function per operator and direction, forward and backward side by side,
 * loops over whole tensors. Backward functions add (+=) into the gradients of
 * their operands; a gradient starts as zeros when it is first needed and is
 * freed once its operator has been differentiated. Nothing is fused; only the
 * loops of matrix products are in a cache-friendly order.
 */
#include "reference.h"
#include "random.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Ref {
    const RefGraph *g;
    int64_t B, S, T;            // sequences, tokens of each, rows
    double **val, **grad;       // by tensor: rows [T, width]; parameters point outside
    int64_t *count;             // by tensor: elements
    double *scores, *dscores;   // [S, S], one head of attention
    RefInput in;
    double loss;
};

static void *must_alloc(size_t n)
{
    void *p = calloc(n ? n : 1, 1);
    if (!p)
        abort();                // only after ref_new took the large part already
    return p;
}

/* ---- operands --------------------------------------------------------- */

/* How an operand is read at (row, column): at[row * stride + column / per % length]. */
typedef struct {
    const double *at;
    double *grad;               // NULL: it has none
    int64_t stride, per, length;
    double number;
} Operand;

static double *grad_of(Ref *r, int t)
{
    if (r->g->tensors[t].kind == REF_T_ROWS && !r->grad[t])
        r->grad[t] = must_alloc((size_t)r->count[t] * sizeof(double));
    return r->grad[t];
}

static Operand operand(Ref *r, int t, int64_t width, bool backward)
{
    const RefTensor *x = &r->g->tensors[t];
    Operand o = { .per = 1, .length = 1, .number = x->number };
    o.at = x->kind == REF_T_NUMBER ? &x->number : r->val[t];
    if (x->kind == REF_T_ROWS) {
        o.stride = o.length = x->width;
        o.per = width / x->width;
    } else if (x->kind == REF_T_PARAM) {
        o.length = r->g->params[x->param].width;
    }
    o.grad = backward && x->kind != REF_T_NUMBER ? grad_of(r, t) : NULL;
    return o;
}

static int64_t place(const Operand *o, int64_t row, int64_t column)
{
    return row * o->stride + column / o->per % o->length;
}

/* ---- elementwise ------------------------------------------------------ */

/* 1/(1-p) where the element is kept, else 0. */
static double kept(const Ref *r, const RefOp *op, int64_t row, int64_t column)
{
    if (!r->in.training)
        return 1;
    uint32_t word = rt_dropout_word(r->in.seed, r->in.step, op->salt, (uint64_t)row,
                                    (uint32_t)column);
    return word >= rt_dropout_limit(op->c) ? 1 / (1 - op->c) : 0;
}

static double element(const RefOp *op, double a, double b)
{
    switch (op->kind) {
    case REF_ADD:     return a + b;
    case REF_SUB:     return a - b;
    case REF_MUL:     return a * b;
    case REF_DIV:     return a / b;
    case REF_MAX:     return a >= b ? a : b;
    case REF_MIN:     return a <= b ? a : b;
    case REF_NEG:     return -a;
    case REF_POW:     return pow(a, op->c);
    case REF_EXP:     return exp(a);
    case REF_LOG:     return log(a);
    case REF_SQRT:    return sqrt(a);
    case REF_RSQRT:   return 1 / sqrt(a);
    case REF_TANH:    return tanh(a);
    case REF_SIGMOID: return 1 / (1 + exp(-a));
    case REF_ERF:     return erf(a);
    case REF_ABS:     return fabs(a);
    case REF_SIN:     return sin(a);
    case REF_COS:     return cos(a);
    default:          return a;         // SPREAD; DROPOUT is multiplied by its mask
    }
}

/* Partial derivatives of y = op(a, b). */
static void slopes(const RefOp *op, double a, double b, double y, double *da, double *db)
{
    *da = 1;
    *db = 0;
    switch (op->kind) {
    case REF_ADD:     *db = 1; break;
    case REF_SUB:     *db = -1; break;
    case REF_MUL:     *da = b; *db = a; break;
    case REF_DIV:     *da = 1 / b; *db = -a / (b * b); break;
    case REF_MAX:     *da = a >= b; *db = !(a >= b); break;
    case REF_MIN:     *da = a <= b; *db = !(a <= b); break;
    case REF_NEG:     *da = -1; break;
    case REF_POW:     *da = op->c == 0 ? 0 : op->c * pow(a, op->c - 1); break;
    case REF_EXP:     *da = y; break;
    case REF_LOG:     *da = 1 / a; break;
    case REF_SQRT:    *da = 0.5 / y; break;
    case REF_RSQRT:   *da = -0.5 * y / a; break;
    case REF_TANH:    *da = 1 - y * y; break;
    case REF_SIGMOID: *da = y * (1 - y); break;
    case REF_ERF:     *da = 2 / sqrt(3.14159265358979323846) * exp(-a * a); break;
    case REF_ABS:     *da = (a > 0) - (a < 0); break;
    case REF_SIN:     *da = cos(a); break;
    case REF_COS:     *da = -sin(a); break;
    default:          break;
    }
}

static void row_forward(Ref *r, const RefOp *op)
{
    int64_t W = r->g->tensors[op->out[0]].width;
    Operand a = operand(r, op->in[0], W, false), b = a;
    double *y = r->val[op->out[0]];
    if (op->nin > 1)
        b = operand(r, op->in[1], W, false);
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t c = 0; c < W; c++) {
            double v = element(op, a.at[place(&a, t, c)], b.at[place(&b, t, c)]);
            y[t * W + c] = op->kind == REF_DROPOUT ? v * kept(r, op, t, c) : v;
        }
}

static void row_backward(Ref *r, const RefOp *op)
{
    int64_t W = r->g->tensors[op->out[0]].width;
    const double *y = r->val[op->out[0]], *dy = r->grad[op->out[0]];
    Operand a = operand(r, op->in[0], W, true), b = a;
    if (op->nin > 1)
        b = operand(r, op->in[1], W, true);
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t c = 0; c < W; c++) {
            int64_t ia = place(&a, t, c), ib = place(&b, t, c), i = t * W + c;
            double da, db;
            slopes(op, a.at[ia], b.at[ib], y[i], &da, &db);
            if (op->kind == REF_DROPOUT)
                da = kept(r, op, t, c);
            if (a.grad)
                a.grad[ia] += dy[i] * da;
            if (b.grad && op->nin > 1)
                b.grad[ib] += dy[i] * db;
        }
}

/* ---- reductions: x [T, W] -> y [T, parts] ----------------------------- */

static double mean_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

static int64_t first_largest(const double *x, int64_t n)
{
    int64_t k = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[k])
            k = i;
    return k;
}

static double reduce(RefKind kind, const double *x, int64_t n)
{
    double mean = mean_of(x, n), sum = 0;
    if (kind == REF_SUM)
        return mean * (double)n;
    if (kind == REF_ROWMAX)
        return x[first_largest(x, n)];
    for (int64_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sum / (double)n;
}

static void reduce_forward(Ref *r, const RefOp *op)
{
    int64_t W = r->g->tensors[op->in[0]].width, n = W / op->parts;
    const double *x = r->val[op->in[0]];
    double *y = r->val[op->out[0]];
    for (int64_t i = 0; i < r->T * op->parts; i++)
        y[i] = reduce(op->kind, x + i * n, n);
}

static void reduce_backward(Ref *r, const RefOp *op)
{
    int64_t W = r->g->tensors[op->in[0]].width, n = W / op->parts;
    const double *dy = r->grad[op->out[0]];
    double *dx = grad_of(r, op->in[0]);
    for (int64_t i = 0; i < r->T * op->parts; i++) {
        const double *x = r->val[op->in[0]] + i * n;
        double mean = mean_of(x, n);
        if (op->kind == REF_ROWMAX)
            dx[i * n + first_largest(x, n)] += dy[i];
        for (int64_t c = 0; c < n && op->kind != REF_ROWMAX; c++)
            dx[i * n + c] += op->kind == REF_SUM ? dy[i] : dy[i] * 2 * (x[c] - mean) / (double)n;
    }
}

/* ---- linear: y = x [W1 | W2 ..]; transposed: x WT --------------------- */

/* y[T, ldy] (+)= x[T, n] w[n, m], or w[m, n] transposed. */
static void matmul(int64_t T, int64_t n, int64_t m, const double *x, int64_t ldx, const double *w,
                   bool transposed, double *y, int64_t ldy)
{
    for (int64_t t = 0; t < T; t++) {
        const double *xt = x + t * ldx;
        double *yt = y + t * ldy;
        for (int64_t j = 0; transposed && j < m; j++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++)
                sum += xt[i] * w[j * n + i];
            yt[j] += sum;
        }
        for (int64_t i = 0; !transposed && i < n; i++)
            for (int64_t j = 0; j < m; j++)
                yt[j] += xt[i] * w[i * m + j];
    }
}

/* dw[n, m] += xT[n, T] dy[T, m]. */
static void outer(int64_t T, int64_t n, int64_t m, const double *x, int64_t ldx, const double *dy,
                  int64_t ldy, double *dw)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < T; t++) {
            double a = x[t * ldx + i];
            for (int64_t j = 0; j < m; j++)
                dw[i * m + j] += a * dy[t * ldy + j];
        }
}

static const RefParam *weight(const Ref *r, const RefOp *op, int k)
{
    return &r->g->params[r->g->tensors[op->in[k]].param];
}

static void linear_forward(Ref *r, const RefOp *op)
{
    int64_t n = r->g->tensors[op->in[0]].width, W = r->g->tensors[op->out[0]].width, at = 0;
    double *y = r->val[op->out[0]];
    memset(y, 0, (size_t)(r->T * W) * sizeof *y);
    for (int k = 1; k < op->nin; k++) {
        int64_t m = op->transposed ? weight(r, op, k)->rows : weight(r, op, k)->width;
        matmul(r->T, n, m, r->val[op->in[0]], n, r->val[op->in[k]], op->transposed, y + at, W);
        at += m;
    }
}

static void linear_backward(Ref *r, const RefOp *op)
{
    int64_t n = r->g->tensors[op->in[0]].width, W = r->g->tensors[op->out[0]].width, at = 0;
    const double *x = r->val[op->in[0]], *dy = r->grad[op->out[0]];
    double *dx = grad_of(r, op->in[0]);
    for (int k = 1; k < op->nin; k++) {
        int64_t m = op->transposed ? weight(r, op, k)->rows : weight(r, op, k)->width;
        if (op->transposed)
            outer(r->T, m, n, dy + at, W, x, n, r->grad[op->in[k]]);
        else
            outer(r->T, n, m, x, n, dy + at, W, r->grad[op->in[k]]);
        matmul(r->T, m, n, dy + at, W, r->val[op->in[k]], !op->transposed, dx, n);
        at += m;
    }
}

/* ---- embed ------------------------------------------------------------ */

static int64_t id_of(const Ref *r, int t, int64_t row)
{
    RefTensorKind kind = r->g->tensors[t].kind;
    return kind == REF_T_POSITIONS ? row % r->S
        : kind == REF_T_TOKENS ? r->in.tokens[row] : r->in.targets[row];
}

static void embed_forward(Ref *r, const RefOp *op)
{
    int64_t W = r->g->tensors[op->out[0]].width;
    for (int64_t t = 0; t < r->T; t++) {
        int64_t id = id_of(r, op->in[0], t);
        assert(id >= 0 && id < weight(r, op, 1)->rows);
        memcpy(r->val[op->out[0]] + t * W, r->val[op->in[1]] + id * W, (size_t)W * sizeof(double));
    }
}

static void embed_backward(Ref *r, const RefOp *op)
{
    int64_t W = r->g->tensors[op->out[0]].width;
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t c = 0; c < W; c++)
            r->grad[op->in[1]][id_of(r, op->in[0], t) * W + c] += r->grad[op->out[0]][t * W + c];
}

/* ---- split and concat ------------------------------------------------- */

/*
 * Piece k of a row of width W has sizes[k] columns, sizes[k]/parts in each part:
 *
 *     | a a b | a a b |      W = 6, parts = 2, sizes = {4, 2}
 *
 * Calls move(whole, piece, columns) for each run of each row.
 */
typedef void Move(double *whole, double *piece, int64_t columns);

static void copy_out(double *whole, double *piece, int64_t n)
{
    memcpy(piece, whole, (size_t)n * sizeof *piece);
}

static void copy_in(double *whole, double *piece, int64_t n)
{
    memcpy(whole, piece, (size_t)n * sizeof *piece);
}

static void add_in(double *whole, double *piece, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        whole[i] += piece[i];
}

static void add_out(double *whole, double *piece, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        piece[i] += whole[i];
}

static void pieces(const Ref *r, const RefOp *op, double *whole, int64_t W, int k, double *piece,
                   Move *move)
{
    int64_t n = op->sizes[k] / op->parts, part = W / op->parts, start = 0;
    for (int j = 0; j < k; j++)
        start += op->sizes[j] / op->parts;
    for (int64_t i = 0; i < r->T * op->parts; i++)      // W = parts * part: rows follow on
        move(whole + i * part + start, piece + i * n, n);
}

static void split_forward(Ref *r, const RefOp *op)
{
    for (int k = 0; k < op->nout; k++)
        pieces(r, op, r->val[op->in[0]], r->g->tensors[op->in[0]].width, k, r->val[op->out[k]],
               copy_out);
}

static void split_backward(Ref *r, const RefOp *op)
{
    for (int k = 0; k < op->nout; k++)
        if (r->grad[op->out[k]])
            pieces(r, op, grad_of(r, op->in[0]), r->g->tensors[op->in[0]].width, k,
                   r->grad[op->out[k]], add_in);
}

static void concat_forward(Ref *r, const RefOp *op)
{
    for (int k = 0; k < op->nin; k++)
        pieces(r, op, r->val[op->out[0]], r->g->tensors[op->out[0]].width, k, r->val[op->in[k]],
               copy_in);
}

static void concat_backward(Ref *r, const RefOp *op)
{
    for (int k = 0; k < op->nin; k++)
        pieces(r, op, r->grad[op->out[0]], r->g->tensors[op->out[0]].width, k,
               grad_of(r, op->in[k]), add_out);
}

/* ---- rope ------------------------------------------------------------- */

/* out (+)= x turned by position * theta^(-2i/rotary); sign -1 turns back. */
static void rope(const Ref *r, const RefOp *op, const double *x, double *out, double sign)
{
    int64_t W = r->g->tensors[op->in[0]].width, D = W / op->heads, half = op->rotary / 2;
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t h = 0; h < op->heads; h++) {
            const double *a = x + t * W + h * D;
            double *y = out + t * W + h * D;
            for (int64_t i = 0; i < half; i++) {
                double freq = pow(op->theta, -2.0 * (double)i / (double)op->rotary);
                double angle = (double)(t % r->S) * freq, s = sign * sin(angle), c = cos(angle);
                int64_t p = op->interleaved ? 2 * i : i, q = op->interleaved ? p + 1 : i + half;
                y[p] += a[p] * c - a[q] * s;
                y[q] += a[p] * s + a[q] * c;
            }
            for (int64_t i = op->rotary; i < D; i++)
                y[i] += a[i];
        }
}

static void rope_forward(Ref *r, const RefOp *op)
{
    memset(r->val[op->out[0]], 0, (size_t)r->count[op->out[0]] * sizeof(double));
    rope(r, op, r->val[op->in[0]], r->val[op->out[0]], 1);
}

static void rope_backward(Ref *r, const RefOp *op)
{
    rope(r, op, r->grad[op->out[0]], grad_of(r, op->in[0]), -1);
}

/* ---- attention -------------------------------------------------------- */

/* One head of one sequence: where its rows stand and how far apart they are. */
typedef struct {
    int64_t D, ldq, ldk, q, k;      // head size; strides; first elements of q, o and of k, v
} Head;

static Head head_of(const Ref *r, const RefOp *op, int64_t b, int64_t h)
{
    int64_t ldq = r->g->tensors[op->in[0]].width, ldk = r->g->tensors[op->in[1]].width;
    int64_t D = ldq / op->heads, hk = h / (op->heads / op->kv_heads);
    return (Head){ D, ldq, ldk, b * r->S * ldq + h * D, b * r->S * ldk + hk * D };
}

static bool sees(const RefOp *op, int64_t i, int64_t j)
{
    return (!op->causal || j <= i) && (op->window == 0 || i - j < op->window);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double capped(const RefOp *op, double s)
{
    return op->softcap > 0 ? op->softcap * tanh(s / op->softcap) : s;
}

/* r->scores row by row: the softmax of what each token sees, 0 elsewhere.
 * Returns log(sum(exp(score))) of row i in lse[i * heads] where lse is not NULL. */
static void softmax_of(Ref *r, const RefOp *op, const Head *h, double *lse)
{
    const double *q = r->val[op->in[0]] + h->q, *k = r->val[op->in[1]] + h->k;
    for (int64_t i = 0; i < r->S; i++) {
        double *p = r->scores + i * r->S, most = -HUGE_VAL, sum = 0;
        for (int64_t j = 0; j < r->S; j++) {
            p[j] = !sees(op, i, j) ? -HUGE_VAL
                : capped(op, op->scale * dot(q + i * h->ldq, k + j * h->ldk, h->D));
            most = fmax(most, p[j]);
        }
        for (int64_t j = 0; j < r->S; j++)
            sum += p[j] = exp(p[j] - most);
        for (int64_t j = 0; j < r->S; j++)
            p[j] /= sum;
        if (lse)
            lse[i * op->heads] = most + log(sum);
    }
}

static void axpy(double a, const double *x, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void attention_forward(Ref *r, const RefOp *op)
{
    memset(r->val[op->out[0]], 0, (size_t)r->count[op->out[0]] * sizeof(double));
    for (int64_t b = 0; b < r->B; b++)
        for (int64_t head = 0; head < op->heads; head++) {
            Head h = head_of(r, op, b, head);
            const double *v = r->val[op->in[2]] + h.k;
            double *o = r->val[op->out[0]] + h.q;
            softmax_of(r, op, &h, r->val[op->out[1]] + b * r->S * op->heads + head);
            for (int64_t i = 0; i < r->S; i++)
                for (int64_t j = 0; j < r->S; j++)
                    axpy(r->scores[i * r->S + j], v + j * h.ldk, o + i * h.ldq, h.D);
        }
}

/* dP = do vT; ds = P (dP - sum(P dP)), back through the cap; then q, k and v. */
static void attention_backward_head(Ref *r, const RefOp *op, const Head *h)
{
    const double *q = r->val[op->in[0]] + h->q, *k = r->val[op->in[1]] + h->k;
    const double *v = r->val[op->in[2]] + h->k, *dout = r->grad[op->out[0]] + h->q;
    double *dq = grad_of(r, op->in[0]) + h->q, *dk = grad_of(r, op->in[1]) + h->k;
    double *dv = grad_of(r, op->in[2]) + h->k;
    softmax_of(r, op, h, NULL);
    for (int64_t i = 0; i < r->S; i++) {
        double *p = r->scores + i * r->S, *dp = r->dscores + i * r->S, mix = 0;
        for (int64_t j = 0; j < r->S; j++) {
            dp[j] = dot(dout + i * h->ldq, v + j * h->ldk, h->D);
            mix += p[j] * dp[j];
        }
        for (int64_t j = 0; j < r->S; j++) {
            double raw = op->scale * dot(q + i * h->ldq, k + j * h->ldk, h->D);
            double cap = op->softcap > 0 ? tanh(raw / op->softcap) : 0;
            double ds = p[j] * (dp[j] - mix) * (1 - cap * cap) * op->scale;
            axpy(ds, k + j * h->ldk, dq + i * h->ldq, h->D);
            axpy(ds, q + i * h->ldq, dk + j * h->ldk, h->D);
            axpy(p[j], dout + i * h->ldq, dv + j * h->ldk, h->D);
        }
    }
}

static void attention_backward(Ref *r, const RefOp *op)
{
    for (int64_t b = 0; b < r->B; b++)
        for (int64_t head = 0; head < op->heads; head++) {
            Head h = head_of(r, op, b, head);
            attention_backward_head(r, op, &h);
        }
}

/* ---- cross entropy: mean over targets that are not ignored ------------ */

static int64_t counted(const Ref *r, const RefOp *op)
{
    int64_t n = 0;
    for (int64_t t = 0; t < r->T; t++)
        n += r->in.targets[t] != op->ignore;
    return n;
}

static double row_lse(const double *x, int64_t V)
{
    double most = x[first_largest(x, V)], sum = 0;
    for (int64_t c = 0; c < V; c++)
        sum += exp(x[c] - most);
    return most + log(sum);
}

static void loss_forward(Ref *r, const RefOp *op)
{
    int64_t V = r->g->tensors[op->in[0]].width, n = counted(r, op);
    r->loss = 0;
    for (int64_t t = 0; t < r->T; t++) {
        const double *x = r->val[op->in[0]] + t * V;
        int64_t target = r->in.targets[t];
        if (target == op->ignore)
            continue;
        assert(target >= 0 && target < V);
        r->loss += (row_lse(x, V) - x[target]) / (double)n;
    }
}

static void loss_backward(Ref *r, const RefOp *op)
{
    int64_t V = r->g->tensors[op->in[0]].width, n = counted(r, op);
    double *dx = grad_of(r, op->in[0]);
    for (int64_t t = 0; t < r->T; t++) {
        const double *x = r->val[op->in[0]] + t * V;
        if (r->in.targets[t] == op->ignore)
            continue;
        double lse = row_lse(x, V);
        for (int64_t c = 0; c < V; c++)
            dx[t * V + c] += (exp(x[c] - lse) - (c == r->in.targets[t])) / (double)n;
    }
}

/* ---- running ---------------------------------------------------------- */

typedef struct { void (*forward)(Ref *, const RefOp *), (*backward)(Ref *, const RefOp *); } Rule;

static Rule rule_of(RefKind kind)
{
    switch (kind) {
    case REF_SUM:
    case REF_VAR:
    case REF_ROWMAX: return (Rule){ reduce_forward, reduce_backward };
    case REF_LINEAR: return (Rule){ linear_forward, linear_backward };
    case REF_EMBED:  return (Rule){ embed_forward, embed_backward };
    case REF_SPLIT:  return (Rule){ split_forward, split_backward };
    case REF_CONCAT: return (Rule){ concat_forward, concat_backward };
    case REF_ROPE:   return (Rule){ rope_forward, rope_backward };
    case REF_ATTN:   return (Rule){ attention_forward, attention_backward };
    case REF_CE:     return (Rule){ loss_forward, loss_backward };
    default:         return (Rule){ row_forward, row_backward };
    }
}

static bool reached(const Ref *r, const RefOp *op)
{
    for (int k = 0; k < op->nout; k++)
        if (r->grad[op->out[k]] || op->out[k] == r->g->loss)
            return true;
    return false;
}

static void free_grads(Ref *r, const RefOp *op)
{
    for (int k = 0; k < op->nout; k++) {
        free(r->grad[op->out[k]]);
        r->grad[op->out[k]] = NULL;
    }
}

double ref_step(Ref *r, const RefInput *in, double *const *params, double *const *grads)
{
    const RefGraph *g = r->g;
    r->in = *in;
    for (int t = 0; t < g->ntensors; t++)
        if (g->tensors[t].kind == REF_T_PARAM) {
            r->val[t] = params[g->tensors[t].param];
            r->grad[t] = grads ? grads[g->tensors[t].param] : NULL;
        }
    for (int i = 0; i < g->nops; i++)
        rule_of(g->ops[i].kind).forward(r, &g->ops[i]);
    if (!grads)
        return r->loss;
    for (int k = 0; k < g->nparams; k++)
        memset(grads[k], 0, (size_t)(g->params[k].rows * g->params[k].width) * sizeof(double));
    for (int i = g->nops - 1; i >= 0; i--)
        if (reached(r, &g->ops[i])) {
            rule_of(g->ops[i].kind).backward(r, &g->ops[i]);
            free_grads(r, &g->ops[i]);
        }
    return r->loss;
}

const double *ref_value(const Ref *r, int tensor)
{
    return r->val[tensor];
}

void ref_init(const RefGraph *g, uint64_t seed, double *const *params)
{
    for (int k = 0; k < g->nparams; k++) {
        const RefParam *p = &g->params[k];
        rt_init_range(p->init, p->init_a, seed, rt_name_hash(p->name), 0,
                      (size_t)(p->rows * p->width), params[k]);
    }
}

Ref *ref_new(const RefGraph *g, int64_t batch, int64_t sequence)
{
    Ref *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (Ref){ .g = g, .B = batch, .S = sequence, .T = batch * sequence };
    r->val = calloc((size_t)g->ntensors + 1, sizeof *r->val);
    r->grad = calloc((size_t)g->ntensors + 1, sizeof *r->grad);
    r->count = calloc((size_t)g->ntensors + 1, sizeof *r->count);
    r->scores = calloc((size_t)(sequence * sequence), sizeof(double));
    r->dscores = calloc((size_t)(sequence * sequence), sizeof(double));
    bool fine = r->val && r->grad && r->count && r->scores && r->dscores;
    for (int t = 0; t < g->ntensors && fine; t++)
        if (g->tensors[t].kind == REF_T_ROWS) {
            r->count[t] = r->T * g->tensors[t].width;
            r->val[t] = calloc((size_t)r->count[t], sizeof(double));
            fine = r->val[t] != NULL;
        }
    if (fine)
        return r;
    ref_free(r);
    return NULL;
}

void ref_free(Ref *r)
{
    if (!r)
        return;
    for (int t = 0; t < r->g->ntensors; t++)
        if (r->g->tensors[t].kind == REF_T_ROWS) {
            if (r->val)
                free(r->val[t]);
            if (r->grad)
                free(r->grad[t]);
        }
    free(r->val);
    free(r->grad);
    free(r->count);
    free(r->scores);
    free(r->dscores);
    free(r);
}
