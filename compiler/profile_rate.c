/*
 * profile_rate.c - figures between the measured ones.
 *
 * Rates of products and of streams are interpolated between neighbours of the grid,
 * linearly in the logarithms of sizes and rates. Beyond the last size a rate stays what it
 * is; below the first one the time does. Between one thread at work and all cores at
 * work the logarithm of their number counts.
 */
#include "profile.h"
#include "survey.h"

/* ---- between points -------------------------------------------------------------- */

/* Where x lies on an ascending axis: between at[i] and at[i+1], the share of the latter. */
typedef struct { int i; double share; } Spot;

static Spot spot_of(const double *at, int n, double x)
{
    if (n < 2 || x <= at[0])
        return (Spot){ 0, 0 };
    if (x >= at[n - 1])
        return (Spot){ n - 2, 1 };
    int i = 0;
    while (i + 2 < n && x >= at[i + 1])
        i++;
    return (Spot){ i, log(x / at[i]) / log(at[i + 1] / at[i]) };
}

static double mix(double a, double b, double share)
{
    return share <= 0 ? a : share >= 1 ? b : exp(log(a) * (1 - share) + log(b) * share);
}

static double grid_rate(const ProductGrid *g, int busy, double m, double n, double k)
{
    Spot s[3] = { spot_of(g->m, g->nm, m), spot_of(g->n, g->nn, n), spot_of(g->k, g->nk, k) };
    double sum = 0;
    for (int corner = 0; corner < 8; corner++) {
        double weight = 1;
        int at[3];
        for (int d = 0; d < 3; d++) {
            bool high = corner >> d & 1;
            weight *= high ? s[d].share : 1 - s[d].share;
            at[d] = s[d].i + high;
        }
        if (weight > 0)
            sum += weight * log(g->flops[busy][(at[0] * g->nn + at[1]) * g->nk + at[2]]);
    }
    return exp(sum);
}

/* Share of the way from one thread at work to all cores. */
static double crowd(const Profile *p, double threads)
{
    if (threads <= 1 || p->cores <= 1)
        return 0;
    return threads >= p->cores ? 1 : log(threads) / log(p->cores);
}

/* The grid of a precision; where it was not measured another's, and what that has to be
 * multiplied by: double precision is half as fast, 16 bits are no slower than 32. */
static const ProductGrid *grid_of(const Profile *p, int precision, ProductForm form,
                                  double *times)
{
    static const struct { int precision; double times; } order[PROFILE_PRECISIONS][3] = {
        { { 0, 1 }, { 1, 2 }, { 2, 0.5 } }, { { 1, 1 }, { 0, 0.5 }, { 2, 0.25 } },
        { { 2, 1 }, { 0, 1 }, { 1, 2 } },
    };
    for (int i = 0; i < 3; i++)
        for (int plain = 0; plain < 2; plain++) {
            const ProductGrid *g = &p->product[order[precision][i].precision]
                                              [plain ? FORM_NN : form];
            *times = order[precision][i].times;
            if (g->nm)
                return g;
        }
    return NULL;                        // no profile is without products
}

double profile_product(const Profile *p, int precision, ProductForm form, double m, double n,
                       double k, double threads)
{
    double times;
    const ProductGrid *g = grid_of(p, precision, form, &times);
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    m = m < g->m[0] ? g->m[0] : m;
    n = n < g->n[0] ? g->n[0] : n;
    k = k < g->k[0] ? g->k[0] : k;
    double rate = mix(grid_rate(g, 0, m, n, k), grid_rate(g, 1, m, n, k), crowd(p, threads));
    return 2 * m * n * k / (rate * times);
}

double profile_peak(const Profile *p, int precision, double threads)
{
    double best = 0, times;
    const ProductGrid *g = grid_of(p, precision, FORM_NN, &times);
    for (int i = 0; i < g->nm * g->nn * g->nk; i++) {
        double rate = mix(g->flops[0][i], g->flops[1][i], crowd(p, threads));
        best = rate > best ? rate : best;
    }
    return best * times;
}

double profile_stream(const Profile *p, double bytes, double threads)
{
    double at[PROFILE_SIDE];
    int n = p->streams.n < PROFILE_SIDE ? p->streams.n : PROFILE_SIDE;
    for (int i = 0; i < n; i++)
        at[i] = p->streams.at[i].bytes;
    Spot s = spot_of(at, n, bytes);
    const StreamRate *lo = &p->streams.at[s.i], *hi = &p->streams.at[n > 1 ? s.i + 1 : s.i];
    double alone = mix(lo->rate[0], hi->rate[0], s.share);
    double busy = mix(lo->rate[1], hi->rate[1], s.share);
    return bytes / mix(alone, busy, crowd(p, threads));
}

/* ---- collectives ----------------------------------------------------------------- */

void ring_fit(RingRate *r)
{
    double *bytes = NEWN(double, r->points.n + 1), *seconds = NEWN(double, r->points.n + 1);
    for (int i = 0; i < r->points.n; i++) {
        bytes[i] = r->points.at[i].bytes;
        seconds[i] = r->points.at[i].seconds;
    }
    SurveyFit f = survey_fit(bytes, seconds, r->points.n);
    r->alpha = f.alpha;
    r->rate = f.rate;
    r->mean = f.mean;
    r->worst = f.worst;
}

/* Distance of a measured group from the one asked for: the size counts most, then
 * whether as many ranks are at work. */
static double unlike(const RingRate *r, int group, int ranks)
{
    return 4 * fabs(log((double)r->group / group)) + fabs(log((double)r->ranks / ranks));
}

bool profile_ring(const Profile *p, RingKind kind, int group, int ranks, double *alpha,
                  double *rate)
{
    const RingRate *best = NULL;
    for (int i = 0; i < p->rings.n; i++) {
        const RingRate *r = &p->rings.at[i];
        if (r->kind == kind && !r->stride && (best == NULL || unlike(r, group, ranks) <
                                                unlike(best, group, ranks)))
            best = r;
    }
    if (best == NULL)
        return false;
    double turns = best->ranks > p->cores ? (double)best->ranks / p->cores : 1;
    *alpha = best->alpha / turns;
    *rate = best->rate * turns;
    return true;
}

/* Of a group in one node never one across nodes. Groups that share a node's ports count most, for
 * they have the rate between them; then members, the nodes they are in, and how they lie. */
static double unlike_group(const RingRate *r, int size, int stride, int nodes, int sharing)
{
    return 1e3 * ((r->nodes > 1) != (nodes > 1)) + 6 * fabs(log((double)r->sharing / sharing)) +
           4 * fabs(log((double)r->group / size)) + 2 * fabs(log((double)r->nodes / nodes)) +
           0.1 * fabs(log((double)r->stride / stride));
}

bool profile_group(const Profile *p, RingKind kind, int size, int stride, int nodes, int sharing,
                   double *alpha, double *rate)
{
    const RingRate *best = NULL;
    double least = 1e3;
    for (int i = 0; i < p->rings.n; i++) {
        const RingRate *r = &p->rings.at[i];
        double far = r->kind == kind && r->stride ? unlike_group(r, size, stride, nodes, sharing)
                                                  : 1e3;
        if (far < least) {
            least = far;
            best = r;
        }
    }
    if (best == NULL)
        return false;
    *alpha = best->alpha;
    *rate = best->rate;
    return true;
}

/* ---- attention ------------------------------------------------------------------- */

enum { TERMS = 4 };

static void basis(double l, double c, double v[TERMS])
{
    v[0] = 1;
    v[1] = l;
    v[2] = c;
    v[3] = l * c;
}

/* Solves A x = y in place; a column without a pivot gives 0. */
static void solve(double a[TERMS][TERMS], double y[TERMS], double x[TERMS])
{
    int row_of[TERMS], used = 0;
    for (int col = 0; col < TERMS; col++) {
        int best = used;
        for (int i = used; i < TERMS; i++)
            best = fabs(a[i][col]) > fabs(a[best][col]) ? i : best;
        row_of[col] = -1;
        if (used == TERMS || fabs(a[best][col]) < 1e-12)
            continue;
        for (int j = 0; j < TERMS; j++) {
            double t = a[used][j];
            a[used][j] = a[best][j];
            a[best][j] = t;
        }
        double t = y[used];
        y[used] = y[best];
        y[best] = t;
        for (int i = 0; i < TERMS; i++) {
            double f = i == used ? 0 : a[i][col] / a[used][col];
            for (int j = 0; f != 0 && j < TERMS; j++)
                a[i][j] -= f * a[used][j];
            y[i] -= f * y[used];
        }
        row_of[col] = used++;
    }
    for (int col = 0; col < TERMS; col++)
        x[col] = row_of[col] < 0 ? 0 : y[row_of[col]] / a[row_of[col]][col];
}

static const TurnPoint *point_at(const TurnRate *t, double l, double c)
{
    for (int i = 0; i < t->points.n; i++)
        if (t->points.at[i].l == l && t->points.at[i].c == c)
            return &t->points.at[i];
    return NULL;
}

/* Least squares of (t_ctx - fit) / t, t the whole of the turn: the error of t counts. */
static void fit_side(TurnRate *t, int side)
{
    double a[TERMS][TERMS] = { { 0 } }, y[TERMS] = { 0 }, x[TERMS], unit[TERMS], top = 1;
    for (int i = 0; i < t->points.n; i++)
        top = fmax(top, fmax(t->points.at[i].l, t->points.at[i].c));
    basis(top, top, unit);              // terms are scaled to 1 at most
    for (int i = 0; i < t->points.n; i++) {
        const TurnPoint *q = &t->points.at[i], *zero = point_at(t, q->l, 0);
        double v[TERMS], whole = q->attention[side] + q->products[side];
        if (q->c <= 0 || zero == NULL)
            continue;
        basis(q->l, q->c, v);
        for (int j = 0; j < TERMS; j++)
            v[j] /= unit[j] * whole;
        double want = (q->attention[side] - zero->attention[side]) / whole;
        for (int j = 0; j < TERMS; j++) {
            for (int k = 0; k < TERMS; k++)
                a[j][k] += v[j] * v[k];
            y[j] += v[j] * want;
        }
    }
    double largest = 0;
    for (int j = 0; j < TERMS; j++)
        largest = fmax(largest, a[j][j]);
    for (int j = 0; j < TERMS && largest > 0; j++) {
        for (int k = 0; k < TERMS; k++)
            a[j][k] /= largest;
        y[j] /= largest;
    }
    solve(a, y, x);
    for (int j = 0; j < TERMS; j++)
        t->fit[side][j] = x[j] / unit[j];
}

void turn_fit(TurnRate *t)
{
    for (int side = 0; side < 2; side++) {
        int n = 0;
        fit_side(t, side);
        t->mean[side] = t->worst[side] = 0;
        for (int i = 0; i < t->points.n; i++) {
            const TurnPoint *q = &t->points.at[i], *zero = point_at(t, q->l, 0);
            double v[TERMS], got = 0;
            if (q->c <= 0 || zero == NULL)
                continue;
            basis(q->l, q->c, v);
            for (int j = 0; j < TERMS; j++)
                got += t->fit[side][j] * v[j];
            double error = fabs(got - q->attention[side] + zero->attention[side]) /
                           (q->attention[side] + q->products[side]);
            t->mean[side] += error;
            t->worst[side] = fmax(t->worst[side], error);
            n++;
        }
        t->mean[side] /= n > 0 ? n : 1;
    }
}

const TurnRate *profile_turn(const Profile *p, bool is_double, int hd, double group)
{
    for (int i = 0; i < p->turns.n; i++) {
        const TurnRate *t = &p->turns.at[i];
        if (t->is_double == is_double && t->hd == hd && t->points.n > 0 &&
            fabs((double)t->heads / t->kv_heads - group) < 1e-9)
            return t;
    }
    return NULL;
}

/* Without context: between measured lengths; beyond them it grows as the pairs do. */
static double empty_context(const TurnRate *t, int side, double l)
{
    double at[PROFILE_SIDE], s[PROFILE_SIDE];
    int n = 0;
    for (int i = 0; i < t->points.n && n < PROFILE_SIDE; i++)
        if (t->points.at[i].c == 0) {
            at[n] = t->points.at[i].l;
            s[n++] = t->points.at[i].attention[side];
        }
    if (n == 0 || l <= 0)
        return 0;
    if (l > at[n - 1])
        return s[n - 1] * l * (l + 1) / (at[n - 1] * (at[n - 1] + 1));
    if (l < at[0])
        return s[0] * l / at[0];
    Spot w = spot_of(at, n, l);
    return n > 1 ? mix(s[w.i], s[w.i + 1], w.share) : s[0];
}

double profile_attention(const TurnRate *t, bool backward, double l, double c)
{
    double v[TERMS], more = 0, base = empty_context(t, backward, l);
    basis(l, c, v);
    for (int j = 0; j < TERMS && c > 0; j++)
        more += t->fit[backward][j] * v[j];
    return (base + (more > 0 ? more : 0)) / t->heads;
}
