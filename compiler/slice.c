/*
 * slice.c - TeraPipe's dynamic programme (slice.h), exact and quick.
 *
 * All lengths in units of `grain`, n = L / grain of them; c context, l length.
 *
 * State    R(c): least sum of t over the tokens from c to the end, when no slice is
 *          above the caps (F on f, G on b; one cap F on t unless paired) and none is
 *          longer than `ell` units. The paper's S(i), seen from the other end: so row
 *          c of t and R(c+1), R(c+2) .. are both contiguous, and of equal lists the one
 *          with the longest slice first is found by walking from c = 0.
 *              R(n) = 0,  R(c) = min over l of  t(l, c) + R(c + l)  + mu
 *          S = R(0); mu is 0 but for the multipliers below.       n^2/2 steps (8)
 * Layers   R_k(c) = min t(l, c) + R_{k-1}(c + l): exactly k slices.  k n^2/2 at most
 *
 * Caps. S never grows with a cap. Having solved for cap b and found u <= b the longest
 * slice used, caps in [u, b] have the same S and no smaller T: what is left is below u.
 * An interval [a, b] of caps holds no T below  m S + fill a,  S any value known for a
 * cap >= b. `search` keeps intervals, takes the one with the lowest bound, trims its
 * upper end to what could still win, solves there, cuts the rest in two halves,
 * and stops when the lowest bound is above the best T. Caps are just numbers, halved
 * as such: the grid is never sorted. Pairs of caps: the same with rectangles.
 * The lowest cap of all is the least possible maximum (`bottleneck`).
 * When f and b have separate caps, max f + max b >= max (f + b): if the best for
 * one cap on t reaches equality, it is the best (always so where b grows with f).
 *
 * Early exit of a row: low(c, j) = least t(l, c) over l >= j W does not fall with j; past
 * the first j where it is above the cap nothing is allowed, whatever the shape of t.
 *
 * Memory. Room allows k slices a length ell(k). With ell = the largest of these and
 * any k we have a lower bound; if its list fits, it is the best. Otherwise (and for
 * further candidates) each k is excluded by a bound or solved by layers. The bound is
 * Lagrange's: with a price mu on each slice, T_mu - mu k <= T_k for any ell >= ell(k).
 *
 * Ties: a bound excludes only when it is above, not when equal. Among equal T and S
 * the count is minimised by a second pass over the rows (`canonical`).
 *
 * Rounding: T of intervals and lists is added in the same order, and rounding is
 * monotone, so the interval bounds are exact as computed; Lagrange's get SLACK.
 */
#include "slice.h"
#include "diag.h"

#include <float.h>
#include <limits.h>

enum { W = 16 };                // lengths per entry of `low`
static const double SLACK = 1e-12;      // relative, above what 1e4 additions lose

typedef struct {
    const SliceProblem *p;
    int n;
    int64_t grain;
    double m, fill;
    double *t, *f, *b;          // rows; f is t and b NULL unless separate
    double *tlow, *flow, *blow; // low(c, j) of each
    bool paired;                // caps now: F on f and G on b, else F on t
    const double *cf, *cflow;   // what F caps now
    size_t *row, *lowrow;       // where row c begins
    double *R;                  // n + 1: with mu; M: without, as the walk compares it
    double *M;
    double *layer; int nlayers; // R_j, j < nlayers, n + 1 each
    int *cnt, *pick;            // canonical: least slices from c on, and its first length
    int *path;                  // the list walked last
    struct { int ell; double f, b; } least[2];  // bottleneck, by `paired`
    Slices *out;
} Grid;

static void *get(size_t n, size_t size)
{
    void *p = malloc((n ? n : 1) * size);
    if (!p)
        die(EXIT_WORLD, "out of memory (slice: %zu x %zu bytes were asked for)", n, size);
    return p;
}

/* ---- one row --------------------------------------------------------------- */

/*
 * min over i < n with t[i] <= F (and f, b under their caps) of t[i] + R[i]. What is
 * above a cap becomes NaN, which loses every comparison.
 */
static double row_plain(const double *t, const double *R, int n, double F)
{
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        double s = t[i] + R[i];
        if (t[i] <= F && s < best)
            best = s;
    }
    return best;
}

static double row2_plain(const double *t, const double *f, const double *b, const double *R,
                         int n, double F, double G)
{
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        double s = t[i] + R[i];
        if (f[i] <= F && b[i] <= G && s < best)
            best = s;
    }
    return best;
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2")))
static double row_avx2(const double *t, const double *R, int n, double F)
{
    __m256d cap = _mm256_set1_pd(F), b0 = _mm256_set1_pd(INFINITY), b1 = b0;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256d x0 = _mm256_loadu_pd(t + i), x1 = _mm256_loadu_pd(t + i + 4);
        __m256d s0 = _mm256_add_pd(x0, _mm256_loadu_pd(R + i));
        __m256d s1 = _mm256_add_pd(x1, _mm256_loadu_pd(R + i + 4));
        s0 = _mm256_or_pd(s0, _mm256_cmp_pd(x0, cap, _CMP_NLE_UQ));
        s1 = _mm256_or_pd(s1, _mm256_cmp_pd(x1, cap, _CMP_NLE_UQ));
        b0 = _mm256_min_pd(s0, b0);     // second operand when one is NaN
        b1 = _mm256_min_pd(s1, b1);
    }
    double at[4], best = row_plain(t + i, R + i, n - i, F);
    _mm256_storeu_pd(at, _mm256_min_pd(b0, b1));
    for (int j = 0; j < 4; j++)
        best = at[j] < best ? at[j] : best;
    return best;
}

__attribute__((target("avx2")))
static double row2_avx2(const double *t, const double *f, const double *b, const double *R,
                        int n, double F, double G)
{
    __m256d capf = _mm256_set1_pd(F), capb = _mm256_set1_pd(G), b0 = _mm256_set1_pd(INFINITY);
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256d s = _mm256_add_pd(_mm256_loadu_pd(t + i), _mm256_loadu_pd(R + i));
        s = _mm256_or_pd(s, _mm256_cmp_pd(_mm256_loadu_pd(f + i), capf, _CMP_NLE_UQ));
        s = _mm256_or_pd(s, _mm256_cmp_pd(_mm256_loadu_pd(b + i), capb, _CMP_NLE_UQ));
        b0 = _mm256_min_pd(s, b0);
    }
    double at[4], best = row2_plain(t + i, f + i, b + i, R + i, n - i, F, G);
    _mm256_storeu_pd(at, b0);
    for (int j = 0; j < 4; j++)
        best = at[j] < best ? at[j] : best;
    return best;
}

static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#else
#define row_avx2 row_plain
#define row2_avx2 row2_plain
static bool has_avx2(void) { return false; }
#endif

/* Lengths lo..hi of row c; R by position. */
static double row_min(Grid *g, const double *R, int c, int lo, int hi, double F, double G)
{
    if (hi < lo)
        return INFINITY;
    size_t at = g->row[c] + (size_t)(lo - 1);
    int n = hi - lo + 1;
    R += c + lo;
    g->out->steps += n;
    bool fast = has_avx2();
    if (!g->paired)
        return (fast ? row_avx2 : row_plain)(g->t + at, R, n, F);
    return (fast ? row2_avx2 : row2_plain)(g->t + at, g->f + at, g->b + at, R, n, F, G);
}

static bool allowed(const Grid *g, size_t at, double F, double G)
{
    return g->cf[at] <= F && (!g->paired || g->b[at] <= G);
}

/* Blocks of row c that may hold something under the cap; *j is a guess, moved. */
static int low_end(const double *low, int blocks, double cap, int *j)
{
    if (*j > blocks)
        *j = blocks;
    while (*j < blocks && low[*j] <= cap)
        ++*j;
    while (*j > 0 && !(low[*j - 1] <= cap))
        --*j;
    return *j * W;
}

typedef struct { int f, b; } Ends;

/* Longest length of row c worth looking at. */
static int row_end(const Grid *g, int c, int ell, double F, double G, Ends *e)
{
    int len = g->n - c < ell ? g->n - c : ell, blocks = (g->n - c + W - 1) / W;
    int end = low_end(g->cflow + g->lowrow[c], blocks, F, &e->f);
    len = end < len ? end : len;
    if (g->paired) {
        end = low_end(g->blow + g->lowrow[c], blocks, G, &e->b);
        len = end < len ? end : len;
    }
    return len;
}

/* ---- one pair of caps ------------------------------------------------------- */

/* R and M under the caps, any number of slices; returns R(0). */
static double solve_any(Grid *g, int ell, double mu, double F, double G)
{
    Ends e = { 0, 0 };
    g->R[g->n] = 0;
    for (int c = g->n - 1; c >= 0; c--) {
        g->M[c] = row_min(g, g->R, c, 1, row_end(g, c, ell, F, G, &e), F, G);
        g->R[c] = g->M[c] + mu;
    }
    return g->R[0];
}

/* The walk from c = 0, longest slice first; returns the number of slices in g->path. */
static int walk_any(Grid *g, int ell, double F, double G)
{
    int k = 0;
    for (int c = 0; c < g->n; c += g->path[k++]) {
        int l = g->n - c < ell ? g->n - c : ell;
        size_t at = g->row[c] - 1;
        while (!allowed(g, at + (size_t)l, F, G) || g->t[at + (size_t)l] + g->R[c + l] != g->M[c])
            l--;
        g->path[k] = l;
    }
    return k;
}

/* Of all lists with the least S under the caps: fewest slices, then longest first. */
static int canonical(Grid *g, int ell, double F, double G)
{
    Ends e = { 0, 0 };
    solve_any(g, ell, 0, F, G);
    g->cnt[g->n] = 0;
    for (int c = g->n - 1; c >= 0; c--) {
        int end = row_end(g, c, ell, F, G, &e);
        size_t at = g->row[c] - 1;
        g->cnt[c] = g->n + 1;
        for (int l = end; l > 0 && g->M[c] < INFINITY; l--)
            if (g->t[at + (size_t)l] + g->R[c + l] == g->M[c] && g->cnt[c + l] + 1 < g->cnt[c] &&
                    allowed(g, at + (size_t)l, F, G)) {
                g->cnt[c] = g->cnt[c + l] + 1;
                g->pick[c] = l;
            }
    }
    int k = 0;
    for (int c = 0; c < g->n; c += g->path[k++])
        g->path[k] = g->pick[c];
    return k;
}

/* Exactly k slices: R_k(0), layers kept for the walk. Positions out of reach: INFINITY. */
static double solve_layers(Grid *g, int k, int ell, double F, double G)
{
    size_t width = (size_t)g->n + 1;
    if (g->nlayers < k + 1) {
        free(g->layer);
        g->layer = get((size_t)(k + 1) * width, sizeof *g->layer);
        g->nlayers = k + 1;
    }
    int64_t n = g->n, lo1 = n, hi1 = n;         // positions that the layer before reaches
    for (int j = 0; j <= k; j++) {
        double *D = g->layer + (size_t)j * width;
        for (size_t c = 0; c < width; c++)
            D[c] = INFINITY;
        if (j == 0) {
            D[n] = 0;
            continue;
        }
        const double *before = D - width;
        int64_t reach = (int64_t)(k - j) * ell;
        int64_t lo = n - (int64_t)j * ell, hi = n - j < reach ? n - j : reach;
        lo = lo < k - j ? k - j : lo;
        Ends e = { 0, 0 };
        for (int64_t c = hi; c >= lo; c--) {
            int64_t end = row_end(g, (int)c, ell, F, G, &e);
            D[c] = row_min(g, before, (int)c, (int)(lo1 - c > 1 ? lo1 - c : 1),
                           (int)(hi1 - c < end ? hi1 - c : end), F, G);
        }
        lo1 = lo;
        hi1 = hi;
    }
    return g->layer[(size_t)k * width];
}

static void walk_layers(Grid *g, int k, int ell, double F, double G)
{
    size_t width = (size_t)g->n + 1;
    for (int c = 0, j = k; j > 0; j--) {
        const double *D = g->layer + (size_t)j * width, *before = D - width;
        int l = g->n - c < ell ? g->n - c : ell;
        size_t at = g->row[c] - 1;
        while (!allowed(g, at + (size_t)l, F, G) || g->t[at + (size_t)l] + before[c + l] != D[c])
            l--;
        g->path[k - j] = l;
        c += l;
    }
}

/* Least possible maximum of `f` (rows as t) with slices of at most ell units. */
static double bottleneck(Grid *g, const double *f, const double *low, int ell)
{
    double *B = g->M;
    B[g->n] = 0;
    for (int c = g->n - 1; c >= 0; c--) {
        int len = g->n - c < ell ? g->n - c : ell;
        B[c] = INFINITY;
        for (int l = 1; l <= len; l++) {
            if ((l - 1) % W == 0 && low[g->lowrow[c] + (size_t)((l - 1) / W)] >= B[c])
                break;
            double x = f[g->row[c] + (size_t)l - 1], y = B[c + l];
            x = x > y ? x : y;
            B[c] = x < B[c] ? x : B[c];
        }
    }
    return B[0];
}

/* ---- over the caps ----------------------------------------------------------- */

typedef struct {
    double T, S, fmax, bmax;
    int k; int *len;                            // room for n
    double stop_lo, stop_hi, stop_bound;        // as in Slices
} Found;

/* Caps F in [fa, fb], G in [ba, bb]; S: of some caps not below, bound = m S + fill (fa + ba) */
typedef struct { double fa, fb, ba, bb, S, bound; } Box;
typedef struct { Box *at; int n, cap; } Boxes;

static void box_dropped(Found *best, const Box *x)
{
    if (x->bound < best->stop_bound) {
        best->stop_bound = x->bound;
        best->stop_lo = x->fa + x->ba;
        best->stop_hi = x->fb + x->bb;
    }
}

static void box_add(const Grid *g, Boxes *q, Box x, Found *best)
{
    if (x.fa > x.fb || x.ba > x.bb)
        return;
    x.bound = g->m * x.S + g->fill * (x.fa + x.ba);
    if (x.bound > best->T) {
        box_dropped(best, &x);
        return;
    }
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 64;
        q->at = realloc(q->at, (size_t)q->cap * sizeof *q->at);
        if (!q->at)
            die(EXIT_WORLD, "out of memory (slice: %d intervals of caps)", q->cap);
    }
    q->at[q->n++] = x;
}

static double below(double x) { return nextafter(x, -INFINITY); }

/* Both halves of x, cut along F or along G. */
static void box_halve(const Grid *g, Boxes *q, Box x, bool along_b, Found *best)
{
    Box lo = x, hi = x;
    if (x.fa > x.fb || x.ba > x.bb)
        return;
    if (along_b) {
        lo.bb = x.ba + (x.bb - x.ba) / 2;
        hi.ba = nextafter(lo.bb, INFINITY);
    } else {
        lo.fb = x.fa + (x.fb - x.fa) / 2;
        hi.fa = nextafter(lo.fb, INFINITY);
    }
    box_add(g, q, lo, best);
    box_add(g, q, hi, best);
}

/* Negative: x before y in the order of slice.h. Lengths decide only when both are known. */
static int found_order(const Found *x, const Found *y)
{
    if (x->T != y->T)
        return x->T < y->T ? -1 : 1;
    if (x->k != y->k)
        return x->k - y->k;
    for (int i = 0; i < x->k; i++)
        if (x->len[i] != y->len[i])
            return y->len[i] - x->len[i];
    return 0;
}

/* Takes the list in g->path: its maxima and T; S was solved for. */
static Found path_found(Grid *g, int k, double S)
{
    Found x = { .S = S, .k = k, .len = g->path };
    for (int i = 0, c = 0; i < k; c += g->path[i++]) {
        size_t at = g->row[c] + (size_t)g->path[i] - 1;
        x.fmax = g->cf[at] > x.fmax ? g->cf[at] : x.fmax;
        if (g->paired)
            x.bmax = g->b[at] > x.bmax ? g->b[at] : x.bmax;
    }
    x.T = g->m * S + g->fill * (x.fmax + x.bmax);
    return x;
}

static void found_take(Found *to, const Found *from)    // all but the stop
{
    to->T = from->T;
    to->S = from->S;
    to->fmax = from->fmax;
    to->bmax = from->bmax;
    to->k = from->k;
    memcpy(to->len, from->len, (size_t)from->k * sizeof *to->len);
}

/* Upper ends of x down to where a cap could still give best->T. */
static void box_trim(const Grid *g, Box *x, const Found *best)
{
    if (g->fill <= 0 || best->T == INFINITY || x->S == -INFINITY)
        return;
    double room = (best->T - g->m * x->S) / g->fill;
    room += SLACK * (fabs(best->T) + fabs(g->m * x->S)) / g->fill + DBL_MIN;
    x->fb = fmin(x->fb, room - x->ba);
    if (g->paired)
        x->bb = fmin(x->bb, room - x->fa);
}

/* The list under the caps of x: its S is solved for, its maxima are its own. */
static Found box_solve(Grid *g, const Box *x, int k, int ell, double mu)
{
    g->out->tried++;
    double S = k ? solve_layers(g, k, ell, x->fb, x->bb)
                 : solve_any(g, ell, mu / g->m, x->fb, x->bb);
    if (!(S < INFINITY))
        return (Found){ .T = INFINITY };
    if (k)
        walk_layers(g, k, ell, x->fb, x->bb);
    return path_found(g, k ? k : walk_any(g, ell, x->fb, x->bb), S);
}

/*
 * The best list under the caps in use: of k slices (0: of any number) of at most
 * ell units, T at most `worth`. T and S contain a price mu per slice. false: none.
 */
static bool search_caps(Grid *g, int k, int ell, double mu, double worth, Found *best)
{
    bool ties = k == 0 && mu == 0;      // equal S may hide fewer slices
    bool final = true;                  // best is the first among equals
    Boxes q = { 0 };

    best->T = worth;
    best->k = 0;
    best->stop_bound = INFINITY;
    if (g->least[g->paired].ell != ell) {
        g->least[g->paired].ell = ell;
        g->least[g->paired].f = bottleneck(g, g->cf, g->cflow, ell);
        g->least[g->paired].b = g->paired ? bottleneck(g, g->b, g->blow, ell) : 0;
    }
    Box all = { g->least[g->paired].f, DBL_MAX, g->least[g->paired].b,
                g->paired ? DBL_MAX : 0, mu < 0 ? -INFINITY : 0, 0 };
    box_add(g, &q, all, best);
    while (q.n) {
        int at = 0;
        for (int i = 1; i < q.n; i++)
            if (q.at[i].bound < q.at[at].bound)
                at = i;
        Box x = q.at[at];
        q.at[at] = q.at[--q.n];
        if (x.bound > best->T) {
            box_dropped(best, &x);
            break;                      // the others are no better
        }
        box_trim(g, &x, best);
        if (x.fb < x.fa || x.bb < x.ba)
            continue;
        Found y = box_solve(g, &x, k, ell, mu);
        if (!y.k)
            continue;
        double F = y.fmax, G = y.bmax, S = y.S;
        bool y_final = !ties;
        if (ties && g->fill == 0) {     // T is m S, whatever the longest slice
            y = path_found(g, canonical(g, ell, x.fb, x.bb), S);
            y_final = true;
        } else if (ties && best->k && y.T == best->T) {
            if (!final) {
                Found z = path_found(g, canonical(g, ell, best->fmax, best->bmax), best->S);
                found_take(best, &z);
                final = true;
            }
            y = path_found(g, canonical(g, ell, F, G), S);
            y_final = true;
        }
        if (best->k ? found_order(&y, best) < 0 : y.T <= best->T) {
            found_take(best, &y);
            final = y_final;
        }
        if (g->fill == 0)
            break;                      // lower caps are no better
        Box less_f = { x.fa, fmin(x.fb, below(F)), x.ba, x.bb, S, 0 };
        Box less_b = { fmax(x.fa, F), x.fb, x.ba, fmin(x.bb, below(G)), S, 0 };
        box_halve(g, &q, less_f, false, best);
        if (g->paired)
            box_halve(g, &q, less_b, true, best);
    }
    free(q.at);
    if (best->k && !final) {
        Found z = path_found(g, canonical(g, ell, best->fmax, best->bmax), best->S);
        found_take(best, &z);
    }
    return best->k > 0;
}

static void use_caps(Grid *g, bool paired)
{
    g->paired = paired;
    g->cf = paired ? g->f : g->t;
    g->cflow = paired ? g->flow : g->tlow;
}

/* The same for the problem: one cap on t first, pairs only when it leaves a gap. */
static bool search(Grid *g, int k, int ell, double mu, double worth, Found *best)
{
    use_caps(g, false);
    if (!search_caps(g, k, ell, mu, worth, best) || !g->p->separate)
        return best->k > 0;
    use_caps(g, true);
    memcpy(g->path, best->len, (size_t)best->k * sizeof *g->path);
    Found x = path_found(g, best->k, best->S);
    if (x.T == best->T) {
        best->fmax = x.fmax;
        best->bmax = x.bmax;
        return true;
    }
    g->out->paired = true;
    return search_caps(g, k, ell, mu, worth, best);
}

/* ---- the grid ---------------------------------------------------------------- */

void slice_table(void *arg, int kind, int64_t l, int64_t c, double *f, double *b)
{
    const SliceTable *t = arg;
    size_t at = (size_t)(c / t->grain) * (size_t)t->n + (size_t)(l / t->grain) - 1;
    (void)kind;
    *f = t->f[at];
    if (t->b)
        *b = t->b[at];
}

static int kinds(const SliceProblem *p) { return p->nkinds > 1 ? p->nkinds : 1; }
static int64_t grain_of(const SliceProblem *p) { return p->grain > 0 ? p->grain : 1; }

/* Time on the slowest stage, and shares of it into rho[kind] when that is not NULL. */
static void price(const SliceProblem *p, int64_t l, int64_t c, double *f, double *b, double *rho)
{
    enum { SOME = 16 };
    int nk = kinds(p);
    double some[2 * SOME], *each = nk <= SOME ? some : get((size_t)nk, 2 * sizeof *each);
    *f = *b = 0;
    for (int q = 0; q < nk; q++) {
        double x = 0, y = 0;
        p->time(p->arg, q, l, c, &x, &y);
        if (!p->separate) {
            x += y;
            y = 0;
        }
        x = x >= 0 ? x : INFINITY;      // NaN: cannot be
        y = y >= 0 ? y : INFINITY;
        each[2 * q] = x;
        each[2 * q + 1] = y;
        *f = x > *f ? x : *f;
        *b = y > *b ? y : *b;
    }
    for (int q = 0; rho && q < nk && *f <= DBL_MAX && *b <= DBL_MAX; q++) {
        if (*f > 0)
            rho[q] = fmax(rho[q], each[2 * q] / *f);
        if (*b > 0)
            rho[q] = fmax(rho[q], each[2 * q + 1] / *b);
    }
    if (each != some)
        free(each);
}

static double fill_of(const SliceProblem *p, const double *rho)
{
    if (kinds(p) == 1)
        return p->stages - 1;
    double sum = 0, most = 0;
    for (int q = 0; q < p->nkinds; q++) {
        sum += rho[q] * p->kind_stages[q];
        most = p->kind_stages[q] > 0 ? fmax(most, rho[q]) : most;
    }
    return sum - most;
}

/* low(c, j) of the rows f. */
static double *lows(const Grid *g, const double *f)
{
    double *low = get(g->lowrow[g->n], sizeof *low);
    for (int c = 0; c < g->n; c++) {
        int blocks = (g->n - c + W - 1) / W;
        double least = INFINITY;
        for (int l = g->n - c, j = blocks - 1; j >= 0; j--) {
            for (; l > j * W; l--) {
                double x = f[g->row[c] + (size_t)l - 1];
                least = x < least ? x : least;
            }
            low[g->lowrow[c] + (size_t)j] = least;
        }
    }
    return low;
}

static void grid_build(Grid *g, const SliceProblem *p)
{
    int n = g->n;
    g->row = get((size_t)n + 1, sizeof *g->row);
    g->lowrow = get((size_t)n + 1, sizeof *g->lowrow);
    g->row[0] = g->lowrow[0] = 0;
    for (int c = 0; c < n; c++) {
        g->row[c + 1] = g->row[c] + (size_t)(n - c);
        g->lowrow[c + 1] = g->lowrow[c] + (size_t)((n - c + W - 1) / W);
    }
    g->t = get(g->row[n], sizeof *g->t);
    g->f = p->separate ? get(g->row[n], sizeof *g->f) : g->t;
    g->b = p->separate ? get(g->row[n], sizeof *g->b) : NULL;
    double *rho = get((size_t)kinds(p), sizeof *rho);
    for (int q = 0; q < kinds(p); q++)
        rho[q] = 0;
    for (int c = 0; c < n; c++)
        for (int l = 1; l <= n - c; l++) {
            size_t at = g->row[c] + (size_t)l - 1;
            double f, b;
            price(p, l * g->grain, c * g->grain, &f, &b, kinds(p) > 1 ? rho : NULL);
            g->t[at] = f + b;
            if (p->separate) {
                g->f[at] = f;
                g->b[at] = b;
            }
        }
    g->fill = fill_of(p, rho);
    free(rho);
    g->tlow = lows(g, g->t);
    g->flow = p->separate ? lows(g, g->f) : NULL;
    g->blow = p->separate ? lows(g, g->b) : NULL;
    g->R = get((size_t)n + 1, sizeof *g->R);
    g->M = get((size_t)n + 1, sizeof *g->M);
    g->cnt = get((size_t)n + 1, sizeof *g->cnt);
    g->pick = get((size_t)n + 1, sizeof *g->pick);
    g->path = get((size_t)n + 1, sizeof *g->path);
}

static void grid_free(Grid *g)
{
    if (g->f != g->t)
        free(g->f);
    free(g->t);
    free(g->b);
    free(g->tlow);
    free(g->flow);
    free(g->blow);
    free(g->row);
    free(g->lowrow);
    free(g->R);
    free(g->M);
    free(g->cnt);
    free(g->pick);
    free(g->path);
    free(g->layer);
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static int64_t distinct(const Grid *g, const double *f)
{
    size_t n = g->row[g->n];
    double *all = get(n, sizeof *all);
    memcpy(all, f, n * sizeof *all);
    qsort(all, n, sizeof *all, by_value);
    int64_t count = 0;
    for (size_t i = 0; i < n && all[i] <= DBL_MAX; i++)
        count += i == 0 || all[i] != all[i - 1];
    free(all);
    return count;
}

/* ---- memory ------------------------------------------------------------------- */

int64_t slice_units(const SliceProblem *p, int r, int64_t k)
{
    const SliceRoom *room = p->room;
    int64_t all = p->microbatches * k, ahead = p->stages - r - 1 + k;
    if (room->schedule == SLICE_OWN)
        return room->units(room->arg, r, k);
    return room->schedule == SLICE_GPIPE || all < ahead ? all : ahead;
}

int64_t slice_kv(const SliceProblem *p, int r, int64_t k)
{
    const SliceRoom *room = p->room;
    int64_t all = p->microbatches, ahead = (p->stages - r + 2 * k - 2 + k - 1) / k;
    if (room->schedule == SLICE_OWN)
        return room->kv(room->arg, r, k);
    return room->schedule == SLICE_GPIPE || all < ahead ? all : ahead;
}

static int64_t times(int64_t x, int64_t y)      // saturates
{
    int64_t z;
    return __builtin_mul_overflow(x, y, &z) ? INT64_MAX : z;
}

static int64_t plus(int64_t x, int64_t y)
{
    int64_t z;
    return __builtin_add_overflow(x, y, &z) ? INT64_MAX : z;
}

/* Longest slice, in tokens and at most L, that every stage can hold when there are k. */
static int64_t longest_of(const SliceProblem *p, int64_t k)
{
    int64_t longest = p->tokens;
    for (int r = 0; p->room && r < p->stages; r++) {
        int64_t per = times(slice_units(p, r, k), p->room->token_bytes[r]);
        int64_t left = p->room->room_bytes[r];
        int64_t kv = times(slice_kv(p, r, k), p->room->kv_bytes[r]);
        if (kv > left)
            return 0;
        if (per > 0 && (left - kv) / per < longest)
            longest = (left - kv) / per;
    }
    return longest;
}

/* The stage that lacks most when the longest of k slices has `longest` tokens. */
static SliceLack lack_of(const SliceProblem *p, int64_t k, int64_t longest)
{
    static const int64_t HALF = INT64_MAX / 2;
    SliceLack worst = { .stage = -1, .k = k, .longest = longest };
    int64_t most = 0;
    for (int r = 0; p->room && r < p->stages; r++) {
        int64_t unit = times(longest, p->room->token_bytes[r]);
        int64_t need = plus(times(slice_units(p, r, k), unit),
                            times(slice_kv(p, r, k), p->room->kv_bytes[r]));
        int64_t room = p->room->room_bytes[r];
        need = need > HALF ? HALF : need;           // so that their difference is a number, too
        room = room < -HALF ? -HALF : room;         // INT64_MIN: the weights alone are too many
        int64_t short_bytes = need - room;
        if (short_bytes > most) {
            most = short_bytes;
            worst.stage = r;
            worst.need_bytes = need;
            worst.room_bytes = room;
        }
    }
    return worst;
}

/* ---- every count of slices ------------------------------------------------------ */

/* T of the best list, with mu per slice; k 0: not found, but T is not above it. */
typedef struct { double mu, T; int ell, k; } Price;
typedef struct { Price *at; int n; } Prices;

/* What no list of k slices of at most ell units can beat. */
static double lagrange(const Prices *q, int k, int ell)
{
    double bound = -INFINITY;
    for (int i = 0; i < q->n; i++)
        if (q->at[i].ell >= ell) {
            double x = q->at[i].T - q->at[i].mu * k;
            x -= SLACK * (fabs(q->at[i].T) + fabs(q->at[i].mu * k));
            bound = fmax(bound, x);
        }
    return bound;
}

/*
 * Looks for a price of slices that excludes k: too few in the answer, cheaper;
 * too many, dearer. A few tries are enough where T_k is convex in k, as it mostly is.
 */
static bool excluded(Grid *g, Prices *q, int k, int ell, double worth, Found *tmp)
{
    enum { TRIES = 8 };
    double lo = -INFINITY, hi = INFINITY, T = 0;
    bool known = false;
    for (int i = 0; i < q->n; i++)
        if (q->at[i].ell == ell && q->at[i].k) {
            T = q->at[i].T;
            if (q->at[i].k > k)
                lo = fmax(lo, q->at[i].mu);
            else if (q->at[i].k < k)
                hi = fmin(hi, q->at[i].mu);
            else
                known = true;
        }
    for (int i = 0; i < TRIES; i++) {
        if (lagrange(q, k, ell) > worth)
            return true;
        if (known)
            return false;       // no price tells more
        double mu = 0, step = fabs(T) / (4 * k);
        if (lo > -INFINITY && hi < INFINITY)
            mu = lo + (hi - lo) / 2;
        else if (lo > -INFINITY)
            mu = lo > 0 ? 2 * lo : lo < 0 ? lo / 2 + step : step;
        else if (hi < INFINITY)
            mu = hi < 0 ? 2 * hi : hi > 0 ? hi / 2 - step : -step;
        double cut = worth + mu * k + SLACK * (fabs(worth) + fabs(mu * k));
        bool found = search(g, 0, ell, mu, cut, tmp);
        q->at = realloc(q->at, (size_t)(q->n + 1) * sizeof *q->at);
        if (!q->at)
            die(EXIT_WORLD, "out of memory (slice: %d multipliers)", q->n);
        q->at[q->n++] = found ? (Price){ mu, T = tmp->T, ell, tmp->k } : (Price){ mu, cut, ell, 0 };
        if (!found)
            return true;
        if (tmp->k == k)
            break;
        if (tmp->k > k)
            lo = mu;
        else
            hi = mu;
    }
    return lagrange(q, k, ell) > worth;
}

static SliceChoice choice(Arena *a, const Grid *g, const Found *x)
{
    SliceChoice s = { .k = x->k, .T = x->T, .S = x->S };
    s.len = arena_get(a, (size_t)x->k * sizeof *s.len);
    for (int i = 0, c = 0; i < x->k; c += x->len[i++]) {
        size_t at = g->row[c] + (size_t)x->len[i] - 1;
        s.len[i] = x->len[i] * g->grain;
        s.tmax = fmax(s.tmax, g->t[at]);
        s.fmax = fmax(s.fmax, g->f[at]);
        s.bmax = fmax(s.bmax, g->b ? g->b[at] : 0);
    }
    s.fill_s = g->fill * (s.fmax + s.bmax);
    return s;
}

static void check(const SliceProblem *p)
{
    assert(p->tokens > 0 && p->stages > 0 && p->microbatches > 0 && p->time);
    assert(p->tokens % grain_of(p) == 0 && p->tokens / grain_of(p) < INT_MAX);
    (void)p;
}

/* x into top[0..have), best first, `want` at most; returns the new count. */
static int top_add(Found *top, int have, int want, const Found *x)
{
    if (have == want && found_order(x, &top[have - 1]) > 0)
        return have;
    int at = have < want ? have++ : have - 1;
    found_take(&top[at], x);
    top[at].stop_lo = x->stop_lo;
    top[at].stop_hi = x->stop_hi;
    top[at].stop_bound = x->stop_bound;
    for (; at > 0 && found_order(&top[at], &top[at - 1]) < 0; at--) {
        Found t = top[at];
        top[at] = top[at - 1];
        top[at - 1] = t;
    }
    return have;
}

/* All counts k with room, nearest first, but `known`, into top. */
static int each_count(Grid *g, const int *ell, int near, int known, Found *top, int have,
                      int want)
{
    Prices q = { 0 };
    Found x = { .len = get((size_t)g->n, sizeof *x.len) };
    for (int i = 1; i < 2 * g->n; i++) {
        int k = near + (i % 2 ? -(i / 2) : i / 2);      // near, near + 1, near - 1 ..
        if (k < 1 || k > g->n || !ell[k] || k == known)
            continue;
        double worth = have < want ? INFINITY : top[have - 1].T;
        if (have == want && k > 1 && excluded(g, &q, k, ell[k], worth, &x)) {
            g->out->k_bounded++;
            continue;
        }
        g->out->k_searched++;
        if (search(g, k, ell[k], 0, worth, &x))
            have = top_add(top, have, want, &x);
    }
    free(x.len);
    free(q.at);
    return have;
}

/* ell[k] in units, 0: k is not allowed or has no room; returns the largest. */
static int rooms(const SliceProblem *p, int n, int *ell, SliceLack *lack)
{
    int64_t least = INT64_MAX, grain = grain_of(p);
    int most = 0;
    for (int k = 1; k <= n; k++) {
        ell[k] = 0;
        if (k < p->least || (p->most > 0 && k > p->most))
            continue;
        int64_t units = longest_of(p, k) / grain;
        if (units * k >= n) {
            ell[k] = (int)units;
            most = ell[k] > most ? ell[k] : most;
            continue;
        }
        SliceLack x = lack_of(p, k, (n + k - 1) / k * grain);
        if (x.stage >= 0 && x.need_bytes - x.room_bytes < least) {
            least = x.need_bytes - x.room_bytes;
            *lack = x;
        }
    }
    if (most)
        lack->stage = -1;
    return most;
}

Slices slice_solve(Arena *a, const SliceProblem *p)
{
    Slices out = { .stop_bound = INFINITY, .lack = { .stage = -1 } };
    Grid g = { .p = p, .grain = grain_of(p), .m = (double)p->microbatches, .out = &out };
    check(p);
    g.n = (int)(p->tokens / g.grain);
    int n = g.n, want = p->candidates > 1 ? p->candidates : 1, have = 0;
    int *ell = get((size_t)n + 1, sizeof *ell), most_ell = rooms(p, n, ell, &out.lack);
    if (!most_ell) {
        free(ell);
        return out;
    }

    grid_build(&g, p);
    Found *top = get((size_t)want, sizeof *top);
    for (int i = 0; i < want; i++)
        top[i] = (Found){ .T = INFINITY, .len = get((size_t)n, sizeof(int)) };

    if (search(&g, 0, most_ell, 0, p->worth > 0 ? p->worth : INFINITY, top)) {
        int near = top->k, longest = 0;
        for (int i = 0; i < near; i++)
            longest = top->len[i] > longest ? top->len[i] : longest;
        have = longest <= ell[near];    // it fits: the best
        if (have < want)
            have = each_count(&g, ell, near, have ? near : 0, top, have, want);
    }

    out.fill = g.fill;
    out.ncand = have;
    out.cand = arena_get(a, (size_t)want * sizeof *out.cand);
    for (int i = 0; i < have; i++)
        out.cand[i] = choice(a, &g, &top[i]);
    if (have) {
        out.best = out.cand[0];
        out.stop_lo = top->stop_lo;
        out.stop_hi = top->stop_hi;
        out.stop_bound = top->stop_bound;
    }
    if (p->count_caps)
        out.caps = out.paired ? times(distinct(&g, g.f), distinct(&g, g.b)) : distinct(&g, g.t);
    for (int i = 0; i < want; i++)
        free(top[i].len);
    free(top);
    free(ell);
    grid_free(&g);
    return out;
}

/* ---- lists, batches, fits --------------------------------------------------------- */

SliceChoice slice_price(Arena *a, const SliceProblem *p, const int64_t *len, int k,
                        SliceLack *lack)
{
    SliceChoice s = { .k = k };
    int64_t c = p->tokens, g = grain_of(p), longest = 0;
    double f, b, *rho = get((size_t)kinds(p), sizeof *rho);
    for (int q = 0; q < kinds(p); q++)
        rho[q] = 0;
    for (int64_t i = 0; kinds(p) > 1 && i < p->tokens; i += g)
        for (int64_t l = g; l <= p->tokens - i; l += g)
            price(p, l, i, &f, &b, rho);
    s.len = arena_get(a, (size_t)k * sizeof *s.len);
    for (int i = k - 1; i >= 0; i--) {
        s.len[i] = len[i];
        c -= len[i];
        assert(len[i] > 0 && c >= 0);
        price(p, len[i], c, &f, &b, NULL);
        s.S = (f + b) + s.S;
        s.tmax = fmax(s.tmax, f + b);
        s.fmax = fmax(s.fmax, f);
        s.bmax = fmax(s.bmax, b);
        longest = len[i] > longest ? len[i] : longest;
    }
    assert(c == 0);
    s.fill_s = fill_of(p, rho) * (s.fmax + s.bmax);
    s.T = (double)p->microbatches * s.S + s.fill_s;
    if (lack)
        *lack = lack_of(p, k, longest);
    free(rho);
    return s;
}

bool slice_uniform(const SliceProblem *p, int k, int64_t *len)
{
    int64_t g = grain_of(p), n = p->tokens / g;
    if (k < 1 || k > n)
        return false;
    for (int i = 0; i < k; i++)
        len[i] = (n / k + (i < n % k)) * g;
    return true;
}

int slice_best_b(Arena *a, int64_t batch, SliceMake *make, void *arg, SliceBatch **all, int *n)
{
    VEC(SliceBatch) v = { 0 };
    int best = -1;
    for (int64_t b = 1; b <= batch; b++) {
        SliceProblem p = { 0 };
        if (batch % b || !make(arg, b, &p))
            continue;
        p.microbatches = batch / b;
        vec_add(&v, ((SliceBatch){ b, p.microbatches, slice_solve(a, &p) }));
        const Slices *s = &v.at[v.n - 1].s;
        if (s->best.k && (best < 0 || s->best.T <= v.at[best].s.best.T))
            best = v.n - 1;
    }
    *all = v.at;
    *n = v.n;
    return best;
}

double slice_fit_at(const SliceFit *fit, double l, double c)
{
    return fit->a[0] + fit->a[1] * l + fit->a[2] * c + fit->a[3] * l * c;
}

/* Normal equations, l and c scaled to at most 1, eliminated with the largest pivot first. */
bool slice_fit(const SlicePoint *at, int n, SliceFit *fit)
{
    double A[4][5] = { { 0 } }, x[4] = { 0 }, lmax = 0, cmax = 0;
    int order[4] = { 0, 1, 2, 3 };
    *fit = (SliceFit){ .rank = 0 };
    for (int i = 0; i < n; i++) {
        lmax = fmax(lmax, fabs(at[i].l));
        cmax = fmax(cmax, fabs(at[i].c));
    }
    lmax = lmax > 0 ? lmax : 1;
    cmax = cmax > 0 ? cmax : 1;
    for (int i = 0; i < n; i++) {
        if (i % 4 == 3)
            continue;
        double l = at[i].l / lmax, c = at[i].c / cmax, row[4] = { 1, l, c, l * c };
        fit->fitted++;
        for (int j = 0; j < 4; j++) {
            for (int k = 0; k < 4; k++)
                A[j][k] += row[j] * row[k];
            A[j][4] += row[j] * (at[i].t - at[i].base);
        }
    }
    for (int s = 0; s < 4; s++) {
        int top = s;
        for (int j = s + 1; j < 4; j++)
            if (A[order[j]][order[j]] > A[order[top]][order[top]])
                top = j;
        int o = order[top];
        if (A[o][o] <= 1e-11 * fit->fitted)     // what is left of the points cannot tell
            break;
        order[top] = order[s];
        order[s] = o;
        fit->rank++;
        for (int j = s + 1; j < 4; j++) {
            int r = order[j];
            double share = A[r][o] / A[o][o];
            for (int k = 0; k < 5; k++)
                A[r][k] -= share * A[o][k];
        }
    }
    for (int s = fit->rank - 1; s >= 0; s--) {
        int o = order[s];
        x[o] = A[o][4];
        for (int j = s + 1; j < fit->rank; j++)
            x[o] -= A[o][order[j]] * x[order[j]];
        x[o] /= A[o][o];
    }
    fit->a[0] = x[0];
    fit->a[1] = x[1] / lmax;
    fit->a[2] = x[2] / cmax;
    fit->a[3] = x[3] / (lmax * cmax);
    for (int i = 3; i < n; i += 4) {
        double t = at[i].t, e = at[i].base + slice_fit_at(fit, at[i].l, at[i].c) - t;
        e = t != 0 ? fabs(e / t) : fabs(e);
        fit->err_mean += e;
        fit->err_max = fmax(fit->err_max, e);
        fit->held++;
    }
    fit->err_mean /= fit->held ? fit->held : 1;
    return n >= 4;
}
