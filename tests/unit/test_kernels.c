/*
 * test_kernels.c - attention, rotary positions, embedding, cross entropy, norm and
 * optimizers: generated kernels against plain twins in double; object files.
 * needs: llvm
 */
#include <dlfcn.h>
#include <unistd.h>

#include "kernel_help.h"

/* ---- attention ------------------------------------------------------------ */

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

static void order_free(Order *o)
{
    free(o->seq);
    free(o->pos);
    free(o->runs);
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
enum { FORWARD = 1 << Q | 1 << K | 1 << V | 1 << O };   // what can be bf16
enum { BACKWARD = FORWARD | 1 << DO | 1 << DQ };

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

static KernelSpec attention_spec(const Att *a, bool dbl, double scale)
{
    KernelSpec s = spec_of(K_ATTN, "attention", dbl);
    s.heads = a->heads;
    s.kv_heads = a->kv;
    s.hd = a->hd;
    s.nseq = a->nseq;
    s.causal = a->causal;
    s.window = a->window;
    s.softcap = a->softcap;
    s.scale = scale;
    s.bf16 &= FORWARD;
    return s;
}

/* Of a forward kernel's spec. */
static KernelSpec attention_backward(KernelSpec s)
{
    s.kind = K_ATTN_DX;
    s.bf16 = s.is_double ? 0 : halved;
    return s;
}

static void attention_case(const Att *a, bool dbl, int workers)
{
    AttTwin t = { .a = a, .scale = 1 / sqrt((double)a->hd) };
    orders(a, &t.q, &t.k);
    RtCall call = { .runs_q = (int32_t *)t.q.runs, .runs_k = (int32_t *)t.k.runs,
                    .nruns_q = t.q.nruns, .nruns_k = t.k.nruns };
    KernelSpec s = attention_spec(a, dbl, t.scale);
    Buf b[9];
    for (int i = 0; i < 9; i++) {
        bool keys = i == K || i == V || i == DK || i == DV;
        int64_t cols = i == LSE ? a->heads : (keys ? a->kv : a->heads) * a->hd;
        t.ld[i] = s.ld[i] = cols + (i == LSE ? 0 : below(5));
        b[i] = arg_buf(i, dbl, (keys ? t.k.n : t.q.n) * t.ld[i], 1.5);
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
    s = attention_backward(s);
    run(&s, &call, a->nseq * a->kv, workers);
    same(b[DQ], t.x[DQ], 1e-12, 1e-4, "attention: dq");
    same(b[DK], t.x[DK], 1e-12, 1e-4, "attention: dk");
    same(b[DV], t.x[DV], 1e-12, 1e-4, "attention: dv");
    for (int i = 0; i < 9; i++) {
        release(b[i]);
        free(t.x[i]);
    }
    order_free(&t.q);
    order_free(&t.k);
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
Test(attention, bf16)
{
    static const uint32_t mask[] = { BACKWARD, 1 << Q | 1 << DQ, 1 << K | 1 << DO,
                                     1 << V | 1 << O };
    halves(attention, sizeof atts / sizeof *atts, mask[0]);
    for (int i = 1; i < 4; i++) halves(attention, 5, mask[i]);
}

/* ---- attention, slice by slice ---------------------------------------------- */

/*
 * Slices of tokens: queries of [c, c + l), keys and values of [0, c + l), whose rows stand
 * one slice after another. Backward: the last slice overwrites dk and dv, the others add.
 */
typedef struct { int64_t n, length[6]; } Cut;

/* Rows row .. row+n as pieces of the positions pos .., the last piece first. */
static void order_pieces(Order *o, int64_t row, int64_t n, int64_t seq, int64_t pos)
{
    while (n > 0) {
        int64_t piece = 1 + below(n);
        order_add(o, row + n - piece, piece, seq, pos);
        pos += piece;
        n -= piece;
    }
}

/* Rows of the whole (token seq*len + pos) to those of `part` in order o, or back. */
static void move_rows(AttTwin *t, int what, double *whole, const Order *o, Buf part, bool back)
{
    int64_t ld = t->ld[what];
    for (int64_t r = 0; r < o->n; r++)
        for (int64_t c = 0; c < ld; c++) {
            double *x = &whole[(o->seq[r] * t->a->len + o->pos[r]) * ld + c];
            if (back) *x = at(part, r * ld + c);
            else put(part, r * ld + c, *x);
        }
}

typedef struct {
    AttTwin t; KernelSpec spec;
    const Cut *cut;
    Order q[6], k;
    int64_t nruns_k[6];         // of each slice's prefix
    Buf b[6][9];                // of each slice; keys: slice 0 has those of all
    int workers;
} Sliced;

static bool of_keys(int what) { return what == K || what == V || what == DK || what == DV; }

static void sliced_open(Sliced *z, bool dbl)
{
    const Att *a = z->t.a;
    int64_t c = 0;
    orders(a, &z->t.q, &z->t.k);
    z->k = order_new(a->nseq * a->len);
    for (int64_t i = 0; i < z->cut->n; c += z->cut->length[i++]) {
        int64_t l = z->cut->length[i];
        z->q[i] = order_new(a->nseq * l);
        for (int64_t n = 0; n < a->nseq; n++) {
            order_pieces(&z->q[i], n * l, l, n, c);
            order_pieces(&z->k, a->nseq * c + n * l, l, n, c);
        }
        z->nruns_k[i] = z->k.nruns;
    }
    cr_assert_eq(c, a->len);
    for (int w = 0; w < 9; w++) {
        int64_t cols = w == LSE ? a->heads : (of_keys(w) ? a->kv : a->heads) * a->hd;
        int64_t ld = z->t.ld[w] = z->spec.ld[w] = cols + below(3);
        Buf whole = arg_buf(w, dbl, a->nseq * a->len * ld, 1.5);
        z->t.x[w] = copy(whole);
        release(whole);
        for (int64_t i = 0; i < z->cut->n; i++) {
            Order *o = of_keys(w) ? &z->k : &z->q[i];
            z->b[i][w] = of_keys(w) && i ? z->b[0][w] : arg_buf(w, dbl, o->n * ld, 0);
            move_rows(&z->t, w, z->t.x[w], o, z->b[i][w], false);
        }
    }
}

static void sliced_run(Sliced *z, int64_t i)
{
    RtCall call = { .runs_q = (int32_t *)z->q[i].runs, .runs_k = (int32_t *)z->k.runs,
                    .nruns_q = z->q[i].nruns, .nruns_k = z->nruns_k[i] };
    const Att *a = z->t.a;
    for (int w = 0; w < 9; w++) call.arg[w] = z->b[i][w].p;
    bool back = z->spec.kind == K_ATTN_DX;
    run(&z->spec, &call, back ? a->nseq * a->kv : z->q[i].nruns * a->heads, z->workers);
}

/* Compares what the slices made with the twin's; gives the twin the same numbers. */
static void sliced_same(Sliced *z, int what, const char *name)
{
    int64_t n = z->t.a->nseq * z->t.a->len * z->t.ld[what];
    double *got = malloc(sizeof *got * (size_t)n);
    if (of_keys(what)) move_rows(&z->t, what, got, &z->k, z->b[0][what], true);
    else
        for (int64_t i = 0; i < z->cut->n; i++)
            move_rows(&z->t, what, got, &z->q[i], z->b[i][what], true);
    double tol = z->spec.is_double ? 1e-12 : 1e-4, *want = z->t.x[what];
    for (int64_t i = 0; i < n; i++) {
        cr_assert(agree(is_half(what, z->spec.is_double), got[i], want[i], tol),
                  "%s: element %ld is %.17g, not %.17g", name, (long)i, got[i], want[i]);
        want[i] = got[i];
    }
    free(got);
}

static void sliced_close(Sliced *z)
{
    for (int w = 0; w < 9; w++) {
        free(z->t.x[w]);
        for (int64_t i = 0; i < (of_keys(w) ? 1 : z->cut->n); i++) release(z->b[i][w]);
    }
    for (int64_t i = 0; i < z->cut->n; i++) order_free(&z->q[i]);
    order_free(&z->k);
    order_free(&z->t.q);
    order_free(&z->t.k);
}

static void sliced(bool dbl, int v)
{
    static const struct { Att a; Cut cut; } s[] = {
        { { 2, 2, 16, 1, 100, true, 0, 0, 0 }, { 3, { 37, 1, 62 } } },
        { { 4, 2, 18, 2, 90, true, 0, 0, 0 }, { 4, { 1, 70, 18, 1 } } },    // grouped queries
        { { 2, 1, 64, 2, 300, true, 30, 0, 0 }, { 3, { 150, 20, 130 } } },  // window
        { { 3, 1, 24, 1, 260, true, 100, 1.5, 0 }, { 5, { 64, 64, 1, 65, 66 } } },
        { { 1, 1, 7, 3, 50, true, 0, 0.7, 0 }, { 6, { 20, 1, 1, 10, 1, 17 } } },
        { { 2, 2, 40, 1, 33, true, 0, 0, 0 }, { 1, { 33 } } },
    };
    double scale = 1 / sqrt((double)s[v].a.hd);
    Sliced z = { .t = { .a = &s[v].a, .scale = scale }, .cut = &s[v].cut, .workers = 1 + v % 3,
                 .spec = attention_spec(&s[v].a, dbl, scale) };
    sliced_open(&z, dbl);
    twin_forward(&z.t);
    for (int64_t i = 0; i < z.cut->n; i++) sliced_run(&z, i);
    sliced_same(&z, O, "slices: o");
    sliced_same(&z, LSE, "slices: lse");
    twin_backward(&z.t);
    z.spec = attention_backward(z.spec);
    for (int64_t i = z.cut->n - 1; i >= 0; i--) {
        sliced_run(&z, i);
        z.spec.accumulate = true;
    }
    sliced_same(&z, DQ, "slices: dq");
    sliced_same(&z, DK, "slices: dk");
    sliced_same(&z, DV, "slices: dv");
    sliced_close(&z);
}
Test(attention, sliced) { both(sliced, 6); }
Test(attention, sliced_bf16) { halves(sliced, 6, BACKWARD); }

/* ---- rotary positions ----------------------------------------------------- */

static void rope(bool dbl, int v)
{
    static const struct { int64_t heads, hd, rotary; } s[] = { { 2, 64, 64 }, { 3, 18, 10 },
        { 1, 2, 2 }, { 12, 64, 32 }, { 2, 50, 50 }, { 4, 16, 4 }, { 3, 9, 4 }, { 2, 35, 34 } };
    bool pairs = v & 1, inverse = v & 2;
    for (int i = 0; i < 8; i++) {
        int64_t hd = s[i].hd, r = s[i].rotary, cols = s[i].heads * hd, rows = 5, positions = 40;
        KernelSpec k = spec_of(K_ROPE_TABLE, "table", dbl);
        k.rotary = r;
        k.theta = 10000;
        k.bf16 = 0;
        Buf table = buf(dbl, positions * r, 1), x = arg_buf(0, dbl, rows * (cols + 3), 1);
        Buf y = arg_buf(1, dbl, rows * (cols + 1), 1);
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
Test(misc, rope)
{
    both(rope, 4);
    for (uint32_t mask = 1; mask <= 3; mask++) halves(rope, 4, mask);
}

/* ---- embedding ------------------------------------------------------------ */

static void embed(bool dbl, int v)
{
    int64_t cols = widths[v], brows = 10, rows = 6, ld = cols + 2;
    int32_t ids[] = { 20, 29, 19, 30, 25, 20 };
    KernelSpec k = spec_of(K_EMBED, "embed", dbl);
    k.cols = cols;
    k.brows = brows;
    k.ld[0] = cols;
    k.ld[1] = ld;
    Buf e = arg_buf(0, dbl, brows * cols, 1), y = arg_buf(1, dbl, rows * ld, 1);
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
    release(e);
    e = buf(dbl, brows * cols, 1);
    want = copy(e);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t id = ids[r] - 20;
            if (id >= 0 && id < brows) want[id * cols + c] += at(y, r * ld + c);
        }
    k.kind = K_EMBED_DW;
    k.bf16 = k.bf16 >> 1 & 1;
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
Test(misc, embed)
{
    both(embed, 6);
    for (uint32_t mask = 1; mask <= 3; mask++) halves(embed, 6, mask);
}

/* ---- cross entropy -------------------------------------------------------- */

static void cross_entropy(bool dbl, int v)
{
    static const struct { int64_t cols, base, limit; } s[] = { { 1, 0, 1 }, { 17, 0, 100 },
        { 50, 100, 133 }, { 50, 100, 90 }, { 500, 0, 500 }, { 5033, 7, 5001 }, { 64, 0, 64 } };
    int64_t cols = s[v].cols, base = s[v].base, n = s[v].limit - base, ld = cols + 1, rows = 5;
    n = n < 0 ? 0 : n > cols ? cols : n;
    int32_t last = (int32_t)(base + (n ? n : 1) - 1);
    int32_t ids[] = { (int32_t)base, last, -1, (int32_t)base + 3, 99999 };
    KernelSpec k = spec_of(K_CE_STAT, "ce_stat", dbl);
    k.cols = cols;
    k.ld[0] = ld;
    k.ld[1] = 3;
    Buf x = arg_buf(0, dbl, rows * ld, 30), stat = buf(dbl, rows * 3, 1);
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
Test(misc, cross_entropy)
{
    both(cross_entropy, 7);
    halves(cross_entropy, 7, 1);
}

/* A target that is nearly certain: p - 1 is not made from a p that was rounded. */
Test(misc, certain_target)
{
    Buf x = buf_as(false, true, 2, 0);
    put(x, 0, 6);
    float stat[3] = { 6, (float)(1 + exp(-6)), 6 };
    double total[8] = { 0 };
    int32_t ids[] = { 0 }, count_me = 1;
    KernelSpec k = spec_of(K_CE, "ce", false);
    k.cols = k.ld[0] = 2;
    k.bf16 = 1;
    RtCall call = { .arg = { x.p, stat }, .ids = ids, .limit = 2, .ignore = -1, .scale = 1,
                    .flags = &count_me, .total = total };
    run(&k, &call, 1, 1);
    double p = exp(-6) / (1 + exp(-6));
    same(x, (double[]){ -p, p }, 0, 1e-7, "ce of a certain target");
    release(x);
}

/* ---- norm and optimizers -------------------------------------------------- */

static void rounded(Buf half, Buf of, const char *what)
{
    double *want = copy(of);
    same(half, want, 0, 0, what);
    free(want);
}

static void norm_and_update(bool dbl, int v)
{
    static const int64_t sizes[] = { 0, 1, 15, 16, 33, 1000 };
    int64_t n = sizes[v];
    Buf p = buf(dbl, n, 1), g = arg_buf(1, dbl, n, 1), m = buf(dbl, n, 1), w = buf(dbl, n, 0.1);
    Buf half = buf_as(dbl, true, n, 1);     // what `copy` writes
    for (int64_t i = 0; i < n; i++) put(w, i, fabs(at(w, i)));
    double total[24] = { 0 }, sum = 0;
    KernelSpec k = spec_of(K_NORM, "norm", dbl);
    k.bf16 = g.half;
    RtCall call = { .arg = { g.p }, .total = total };
    for (int64_t i = 0; i < n; i++) sum += at(g, i) * at(g, i);
    run(&k, &call, n, 3);
    cr_assert(fabs(total[0] + total[8] + total[16] - sum) <= 1e-13 * (1 + sum), "norm");
    double *wp = copy(p), *wm = copy(m), *wv = copy(w);
    call = (RtCall){ .arg = { p.p, g.p, m.p, w.p, half.p }, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95,
        .eps = 1e-8, .decay = 0.1, .scale = 0.7, .correct1 = 1.3, .correct2 = 1.1,
        .momentum = 0.8 };
    k = spec_of(K_ADAMW, "adamw", dbl);
    k.copy = g.half;
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
    if (k.copy) rounded(half, p, "adamw: the copy");
    k = spec_of(K_SGD, "sgd", dbl);
    k.copy = g.half;
    call.arg[3] = half.p;
    for (int64_t i = 0; i < n; i++) {
        wm[i] = 0.8 * wm[i] + at(g, i) * 0.7;
        wp[i] -= 1e-2 * wm[i];
    }
    run(&k, &call, n, 2);
    close_to(p, wp, "sgd: p");
    close_to(m, wm, "sgd: m");
    if (k.copy) rounded(half, p, "sgd: the copy");
    release(half);
    release(p);
    release(g);
    release(m);
    release(w);
    free(wp);
    free(wm);
    free(wv);
}
Test(misc, norm_and_update)
{
    both(norm_and_update, 6);
    halves(norm_and_update, 6, 2);
}

/* ---- the object file, other machines -------------------------------------- */

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
    both(attention, 8);
    both(rope, 4);
    both(cross_entropy, 7);
    both(norm_and_update, 6);
    halves(attention, 5, 1 << Q | 1 << K | 1 << O | 1 << DQ);
    halves(rope, 4, 3);
    halves(cross_entropy, 7, 1);
    halves(norm_and_update, 6, 2);
    llvm_cpu = "x86-64-v4";
    llvm_features = "+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx2,+fma";
    for (int d = 0; d < 3; d++) {
        KernelSpec k = spec_of(K_ATTN_DX, "k", d == 1);
        if (d == 2) k.bf16 = BACKWARD;
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
