/*
 * test_slice.c - the dynamic programme of slices against every list there is, on
 * small random instances of whole numbers (so equal means equal), and against the
 * plain programme over all caps on the paper's shapes. ALL=1: all of them.
 * Times are printed, never judged.
 */
#include "slice.h"

#include <criterion/criterion.h>

#include <float.h>

static bool all(void) { return getenv("ALL") && getenv("ALL")[0] == '1'; }

static uint64_t seed = 1;
static int dice(int n)          // 0 .. n - 1
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- random instances -------------------------------------------------------- */

enum { N = 12, STAGES = 6, KINDS = 3 };

typedef struct {
    double f[KINDS][N][N], b[KINDS][N][N];      // [kind][c][l - 1], units of grain
    int kind_stages[KINDS];
    int64_t token_bytes[STAGES], kv_bytes[STAGES], room_bytes[STAGES];
    SliceRoom room;
    SliceProblem p;
    int n;
} Case;

static void case_time(void *arg, int kind, int64_t l, int64_t c, double *f, double *b)
{
    const Case *x = arg;
    int64_t g = x->p.grain;
    cr_assert(l % g == 0 && c % g == 0 && l > 0 && c >= 0 && l + c <= x->p.tokens);
    *f = x->f[kind][c / g][l / g - 1];
    *b = x->b[kind][c / g][l / g - 1];
}

static int64_t own_units(void *arg, int r, int64_t k)
{
    (void)arg;
    return r + (k * 7) % 5 + 1;
}

static int64_t own_kv(void *arg, int r, int64_t k)
{
    (void)arg;
    return 1 + (r + k) % 3;
}

/* Shapes of t: noise, plateaus, causal growth, few values; sometimes impossible. */
static double draw(int shape, int l, int c)
{
    switch (shape) {
    case 0: return dice(50);
    case 1: return 4 + (l > 3 ? l - 3 : 0);
    case 2: return 5 + 3 * l + l * c;
    case 3: return dice(3) + 1;
    case 4: return 1;
    case 5: return l;
    default: return dice(5) ? 3 + 2 * l + dice(4) : INFINITY;
    }
}

static void case_make(Case *x)
{
    *x = (Case){ .n = 1 + dice(N - 1) };
    SliceProblem *p = &x->p;
    int nkinds = dice(3) ? 1 : 2 + dice(KINDS - 1);
    int shape = dice(7), back = dice(7), bend = dice(2);
    p->grain = 1 + dice(4);
    p->tokens = x->n * p->grain;
    p->stages = nkinds == 1 ? 1 + dice(STAGES) : nkinds + dice(STAGES - nkinds + 1);
    p->microbatches = 1 + dice(8);
    p->separate = dice(2);
    p->time = case_time;
    p->arg = x;
    p->candidates = dice(6);
    p->count_caps = dice(2);
    for (int q = 0; q < nkinds; q++)
        for (int c = 0; c < x->n; c++)
            for (int l = 1; l <= x->n; l++) {
                x->f[q][c][l - 1] = draw(shape, l, c);
                x->b[q][c][l - 1] = bend ? 2 * x->f[q][c][l - 1] : draw(back, l, c);
            }
    if (nkinds > 1) {
        p->nkinds = nkinds;
        p->kind_stages = x->kind_stages;
        for (int q = 0; q < nkinds; q++)
            x->kind_stages[q] = 1;
        x->kind_stages[dice(nkinds)] += p->stages - nkinds;
    }
    if (dice(4) == 0)
        p->most = 1 + dice(x->n);
    if (dice(6) == 0)
        p->least = 1 + dice(x->n);
    if (dice(2)) {
        int total = 1 + dice(40);
        x->room = (SliceRoom){ .schedule = (SliceSchedule)dice(3), .token_bytes = x->token_bytes,
            .kv_bytes = x->kv_bytes, .room_bytes = x->room_bytes, .units = own_units,
            .kv = own_kv };
        for (int r = 0; r < p->stages; r++) {
            x->token_bytes[r] = dice(4) ? 1 + dice(3) : 0;
            x->kv_bytes[r] = dice(20);
            x->room_bytes[r] = total * p->tokens / 2 + dice(30);
        }
        p->room = &x->room;
    }
}

/* Units and microbatches held, written a second time from design.md. */
static int64_t held_units(const Case *x, int r, int64_t k)
{
    int64_t all_units = x->p.microbatches * k, w = x->p.stages - r + k - 2;
    if (x->room.schedule == SLICE_OWN)
        return own_units(NULL, r, k);
    if (x->room.schedule == SLICE_GPIPE)
        return all_units;
    return (w < all_units ? w : all_units) + (w < all_units);      // warm-up, and one more
}

static int64_t held_kv(const Case *x, int r, int64_t k)
{
    if (x->room.schedule == SLICE_OWN)
        return own_kv(NULL, r, k);
    if (x->room.schedule == SLICE_GPIPE)
        return x->p.microbatches;
    double ahead = ceil((double)(x->p.stages - r + 2 * k - 2) / (double)k);
    return ahead < (double)x->p.microbatches ? (int64_t)ahead : x->p.microbatches;
}

static bool fits(const Case *x, int k, int longest)
{
    for (int r = 0; x->p.room && r < x->p.stages; r++)
        if (held_units(x, r, k) * longest * x->p.grain * x->token_bytes[r] +
                held_kv(x, r, k) * x->kv_bytes[r] > x->room_bytes[r])
            return false;
    return true;
}

typedef struct { double T; int k; int len[N]; } Brute;

static bool before(const Brute *a, const Brute *b)
{
    if (a->T != b->T)
        return a->T < b->T;
    if (a->k != b->k)
        return a->k < b->k;
    for (int i = 0; i < a->k; i++)
        if (a->len[i] != b->len[i])
            return a->len[i] > b->len[i];
    return false;
}

/* One kind of stage at a time, straight from slice.h. */
static double slowest(const Case *x, int c, int l, double *f, double *b)
{
    int nk = x->p.nkinds ? x->p.nkinds : 1;
    double t = 0;
    *f = *b = 0;
    for (int q = 0; q < nk; q++) {
        *f = fmax(*f, x->f[q][c][l - 1]);
        *b = fmax(*b, x->b[q][c][l - 1]);
        t = fmax(t, x->f[q][c][l - 1] + x->b[q][c][l - 1]);
    }
    return x->p.separate ? *f + *b : t;
}

static double fill(const Case *x)
{
    if (!x->p.nkinds)
        return x->p.stages - 1;
    double sum = 0, most = 0;
    for (int q = 0; q < x->p.nkinds; q++) {
        double rho = 0;
        for (int c = 0; c < x->n; c++)
            for (int l = 1; l <= x->n - c; l++) {
                double f, b, t = slowest(x, c, l, &f, &b);
                if (t == INFINITY)
                    continue;
                double fq = x->f[q][c][l - 1], bq = x->b[q][c][l - 1];
                if (x->p.separate)
                    rho = fmax(rho, fmax(f > 0 ? fq / f : 0, b > 0 ? bq / b : 0));
                else
                    rho = fmax(rho, t > 0 ? (fq + bq) / t : 0);
            }
        sum += rho * x->kind_stages[q];
        most = fmax(most, rho);
    }
    return sum - most;
}

/* Best of every k among all lists; best[k].k 0: none. */
static void brute(const Case *x, Brute *best)
{
    double fl = fill(x);
    for (int k = 0; k <= N; k++)
        best[k] = (Brute){ .T = INFINITY };
    for (int cuts = 0; cuts < 1 << (x->n - 1); cuts++) {
        Brute y = { 0 };
        for (int i = 0, l = 1; i < x->n; i++, l++)
            if (i == x->n - 1 || (cuts >> i & 1)) {
                y.len[y.k++] = l;
                l = 0;
            }
        if (y.k < x->p.least || (x->p.most && y.k > x->p.most))
            continue;
        double S = 0, T = 0, F = 0, B = 0, f, b;
        int longest = 0;
        for (int i = 0, c = 0; i < y.k; c += y.len[i++]) {
            double t = slowest(x, c, y.len[i], &f, &b);
            longest = y.len[i] > longest ? y.len[i] : longest;
            S += t;
            T = fmax(T, t);
            F = fmax(F, f);
            B = fmax(B, b);
        }
        if (S == INFINITY || !fits(x, y.k, longest))
            continue;
        y.T = (double)x->p.microbatches * S + fl * (x->p.separate ? F + B : T);
        if (before(&y, &best[y.k]) || !best[y.k].k)
            best[y.k] = y;
    }
}

static bool same(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void case_check(Case *x, int number)
{
    Brute each[N + 1], sorted[N + 1];
    int have = 0, want = x->p.candidates > 1 ? x->p.candidates : 1;
    brute(x, each);
    for (int k = 1; k <= x->n; k++)
        if (each[k].k) {
            int at = have++;
            for (; at > 0 && before(&each[k], &sorted[at - 1]); at--)
                sorted[at] = sorted[at - 1];
            sorted[at] = each[k];
        }
    have = have < want ? have : want;

    Slices s = slice_solve(scratch, &x->p);
    cr_assert_eq(s.ncand, have, "case %d: %d candidates, brute force has %d", number, s.ncand,
                 have);
    cr_assert_eq(s.best.k > 0, have > 0);
    if (!have && x->p.room && !x->p.least && !x->p.most) {
        bool any = false;
        for (int k = 1; k <= x->n; k++)
            any |= fits(x, k, (x->n + k - 1) / k);
        cr_assert_eq(s.lack.stage >= 0, !any, "case %d: lack", number);
        if (!any)
            cr_assert_gt(s.lack.need_bytes, s.lack.room_bytes);
    }
    for (int i = 0; i < have; i++) {
        const SliceChoice *c = &s.cand[i];
        cr_assert(same(c->T, sorted[i].T), "case %d candidate %d: T %.17g, brute force %.17g",
                  number, i, c->T, sorted[i].T);
        SliceLack lack;
        SliceChoice again = slice_price(scratch, &x->p, c->len, c->k, &lack);
        cr_assert(again.T == c->T && again.S == c->S && again.tmax == c->tmax &&
                  again.fmax == c->fmax && again.bmax == c->bmax && again.fill_s == c->fill_s,
                  "case %d: priced %.17g, solved %.17g", number, again.T, c->T);
        cr_assert_eq(lack.stage, -1);
        if (x->p.nkinds)
            continue;           // shares are not whole numbers: ties are not exact
        cr_assert(c->T == sorted[i].T && c->k == sorted[i].k, "case %d candidate %d: %d slices, "
                  "brute force %d", number, i, c->k, sorted[i].k);
        for (int j = 0; j < c->k; j++)
            cr_assert_eq(c->len[j], sorted[i].len[j] * x->p.grain,
                         "case %d candidate %d slice %d: %d, brute force %d", number, i, j,
                         (int)c->len[j], sorted[i].len[j] * (int)x->p.grain);
    }
    if (have && s.stop_bound < INFINITY)
        cr_assert(s.stop_bound >= s.best.T, "case %d: skipped below the best", number);
}

Test(slice, equals_every_list)
{
    int count = all() ? 20000 : 1500, bounded = 0, apart = 0, none = 0, kinds = 0, pairs = 0;
    static Case x;
    for (int i = 0; i < count; i++) {
        seed = (uint64_t)i * 77 + 5;
        case_make(&x);
        case_check(&x, i);
        bounded += x.p.room != NULL;
        apart += x.p.separate;
        kinds += x.p.nkinds > 1;
        Slices s = slice_solve(scratch, &x.p);
        none += s.best.k == 0;
        pairs += s.paired;
        arena_reset(scratch);
    }
    cr_assert(bounded > 500 && apart > 500 && kinds > 300 && none > 20 && none < count / 2 &&
              pairs > 50, "%d bounded %d apart %d kinds %d none %d pairs", bounded, apart, kinds,
              none, pairs);
}

/* ---- the paper's shapes --------------------------------------------------------- */

/* Settings (1) to (10): layers per stage, K, sequences of a replica; ms of one layer. */
typedef struct { const char *name; int layers, stages, batch; double flat, token, ctx; } Shape;
static const Shape shapes[] = {
    { "1", 1, 24, 16, 1.45, 1.3e-3, 4.0e-7 },   { "2", 2, 12, 36, 0.90, 4.0e-4, 0.5e-7 },
    { "3", 1, 24, 72, 0.90, 4.0e-4, 0.5e-7 },   { "4", 2, 20, 16, 1.10, 1.6e-3, 1.2e-7 },
    { "5", 1, 40, 32, 1.10, 1.6e-3, 1.2e-7 },   { "6", 1, 96, 2, 1.60, 1.1e-2, 9.0e-7 },
    { "7", 4, 24, 4, 1.20, 2.1e-3, 1.5e-7 },    { "8", 2, 48, 8, 1.20, 2.1e-3, 1.5e-7 },
    { "9", 1, 96, 2, 1.70, 9.0e-3, 5.0e-7 },    { "10", 2, 48, 2, 1.60, 5.0e-3, 2.5e-7 },
};
enum { NSHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct { const Shape *s; bool noise; double b_share, b_knee; } Model;

static void model_time(void *arg, int kind, int64_t l, int64_t c, double *f, double *b)
{
    const Model *m = arg;
    double t = m->s->flat, work = m->s->token * (double)l + m->s->ctx * (double)(l * c + l * l / 2);
    (void)kind;
    t = (work > t ? work : t) + 0.1 * work + 0.15;
    if (m->noise) {
        uint64_t h = (uint64_t)l * 0x9e3779b97f4a7c15u ^ (uint64_t)c * 0xc2b2ae3d27d4eb4fu;
        h ^= h >> 29; h *= 0xbf58476d1ce4e5b9u; h ^= h >> 32;
        t *= 1 + 0.02 * (double)(h % 1000) / 1000;
    }
    *f = 1e-3 * m->s->layers * t;
    double back = m->b_share * work;    // a knee elsewhere: b does not grow with f
    *b = 1e-3 * m->s->layers * (back > m->b_knee ? back : m->b_knee) +
         (m->b_knee > 0 ? 1e-7 * (double)(2048 - l) : 0);
}

static SliceProblem problem(Model *m, const Shape *s, int64_t grain)
{
    m->s = s;
    return (SliceProblem){ .tokens = 2048, .grain = grain, .stages = s->stages,
        .microbatches = s->batch, .time = model_time, .arg = m };
}

static int up(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* (6) to (8) as printed, by prefixes, every distinct t_max, nothing skipped. */
static double plain(const SliceProblem *p, int64_t *ncaps)
{
    int n = (int)(p->tokens / p->grain), caps = 0;
    double *t = calloc((size_t)(n * n), sizeof *t), *S = calloc((size_t)n + 1, sizeof *S);
    double *cap = calloc((size_t)(n * n), sizeof *cap), best = INFINITY;
    for (int i = 1; i <= n; i++)        // row i: slices that end at i
        for (int l = 1; l <= i; l++) {
            double f = 0, b = 0;
            p->time(p->arg, 0, l * p->grain, (i - l) * p->grain, &f, &b);
            cap[caps++] = t[(i - 1) * n + i - l] = f + b;
        }
    qsort(cap, (size_t)caps, sizeof *cap, up);
    int count = 0;
    for (int i = 0; i < caps; i++)
        if (i == 0 || cap[i] != cap[i - 1])
            cap[count++] = cap[i];
    for (int j = 0; j < count; j++) {
        for (int i = 1; i <= n; i++) {
            const double *row = t + (i - 1) * n;
            double least = INFINITY;
            for (int c = 0; c < i; c++) {
                double s = row[c] <= cap[j] ? S[c] + row[c] : INFINITY;
                least = s < least ? s : least;
            }
            S[i] = least;
        }
        best = fmin(best, (double)p->microbatches * S[n] + (p->stages - 1) * cap[j]);
    }
    free(t); free(S); free(cap);
    *ncaps = count;
    return best;
}

Test(slice, equals_the_plain_programme)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int noise = 0; noise < 2; noise++) {
            if (!all() && !(i == 8 && noise == 0) && !(i == 4 && noise == 1))
                continue;
            Model m = { .noise = noise };
            SliceProblem p = problem(&m, &shapes[i], 8);
            p.count_caps = true;
            int64_t caps;
            double start = now_s(), want = plain(&p, &caps), took = now_s() - start;
            Slices s = slice_solve(scratch, &p);
            cr_assert(same(s.best.T, want), "setting %s: %.17g, plain %.17g", shapes[i].name,
                      s.best.T, want);
            cr_assert_eq(s.caps, caps);
            fprintf(stderr, "setting %-2s%s: %d slices, %" PRId64 " of %" PRId64
                    " caps tried; plain %.1f s\n", shapes[i].name, noise ? " noisy" : "",
                    s.best.k, s.tried, s.caps, took);
        }
}

/* Pairs of caps, every pair, at 64 tokens. */
Test(slice, equals_the_plain_programme_of_pairs)
{
    int paired = 0;
    for (int i = 0; i < NSHAPES; i += all() ? 1 : 4) {
        Model m = { .noise = true, .b_share = 1.1, .b_knee = 2 * shapes[i].flat };
        SliceProblem p = problem(&m, &shapes[i], 64);
        p.separate = true;
        enum { M = 32 };
        static double f[M][M], b[M][M], fc[M * M], bc[M * M];
        int n = 0;
        for (int c = 0; c < M; c++)
            for (int l = 1; l <= M - c; l++, n++) {
                model_time(&m, 0, l * 64, c * 64, &f[c][l - 1], &b[c][l - 1]);
                fc[n] = f[c][l - 1];
                bc[n] = b[c][l - 1];
            }
        double best = INFINITY, R[M + 1] = { 0 };
        for (int u = 0; u < n; u++)
            for (int v = 0; v < n; v++) {
                for (int c = M - 1; c >= 0; c--) {
                    R[c] = INFINITY;
                    for (int l = 1; l <= M - c; l++)
                        if (f[c][l - 1] <= fc[u] && b[c][l - 1] <= bc[v])
                            R[c] = fmin(R[c], f[c][l - 1] + b[c][l - 1] + R[c + l]);
                }
                best = fmin(best, (double)p.microbatches * R[0] + (p.stages - 1) * (fc[u] + bc[v]));
            }
        Slices s = slice_solve(scratch, &p);
        cr_assert(same(s.best.T, best), "setting %s: %.17g, plain %.17g", shapes[i].name,
                  s.best.T, best);
        paired += s.paired;
    }
    cr_assert_gt(paired, 0);
}

/* ---- memory ----------------------------------------------------------------------- */

/* Runs the step table of one stage of 1f1b over slices and counts what it holds. */
Test(slice, held_by_1f1b)
{
    int64_t zero[32] = { 0 };
    SliceRoom room = { .schedule = SLICE_1F1B, .token_bytes = zero, .kv_bytes = zero,
                       .room_bytes = zero };
    for (int P = 1; P <= 12; P++)
        for (int m = 1; m <= 9; m++)
            for (int k = 1; k <= 7; k++)
                for (int r = 0; r < P; r++) {
                    SliceProblem p = { .stages = P, .microbatches = m, .room = &room };
                    int warm = P - r + k - 2 < m * k ? P - r + k - 2 : m * k;
                    int fwd = 0, back = 0, units = 0, kv = 0;
                    while (back < m * k) {
                        if (fwd < m * k && fwd - back <= warm)
                            fwd++;
                        else
                            back++;     // microbatch back / k, its last slice first
                        int alive = (fwd + k - 1) / k - back / k;
                        units = fwd - back > units ? fwd - back : units;
                        kv = alive > kv ? alive : kv;
                    }
                    cr_assert_eq(slice_units(&p, r, k), units, "units P %d m %d k %d r %d: %d, "
                                 "run %d", P, m, k, r, (int)slice_units(&p, r, k), units);
                    cr_assert_eq(slice_kv(&p, r, k), kv, "K/V P %d m %d k %d r %d: %d, run %d",
                                 P, m, k, r, (int)slice_kv(&p, r, k), kv);
                }
    SliceProblem p = { .stages = 8, .microbatches = 5, .room = &room };
    cr_assert_eq(slice_units(&p, 0, 4), 8 - 1 + 4);
    cr_assert_eq(slice_kv(&p, 0, 4), 4);        // ceil((8 + 8 - 2) / 4)
    room.schedule = SLICE_GPIPE;
    cr_assert_eq(slice_units(&p, 0, 4), 20);
    cr_assert_eq(slice_kv(&p, 7, 4), 5);
}

/* Every count of slices and every cap in turn, with rooms that bind; noisy times. */
Test(slice, equals_the_plain_programme_by_count)
{
    enum { M = 18, K = 6, WANT = 4 };
    int bounded = 0, searched = 0;
    for (int round = 0; round < (all() ? 400 : 60); round++) {
        seed = (uint64_t)round * 31 + 7;
        static double t[M * M], cap[M * M], D[M + 1][M + 1];
        int64_t token[K], kv[K], bytes[K];
        int ncaps = 0, m = 1 + dice(6);
        double over = 2 + dice(30), ctx = dice(3) * 0.05, knee = dice(6);
        for (int c = 0; c < M; c++)
            for (int l = 1; l <= M - c; l++)
                cap[ncaps++] = t[c * M + l - 1] =
                    (over + fmax(l, knee) + ctx * l * c) * (1 + 1e-3 * dice(40));
        SliceTable table = { .n = M, .grain = 1, .f = t };
        SliceRoom room = { .schedule = SLICE_1F1B, .token_bytes = token, .kv_bytes = kv,
                           .room_bytes = bytes };
        int tight = 18 + dice(40);
        for (int r = 0; r < K; r++) {
            token[r] = 10;
            kv[r] = 20 + dice(20);
            bytes[r] = 10 * tight + 3 * kv[r];
        }
        SliceProblem p = { .tokens = M, .stages = K, .microbatches = m, .time = slice_table,
                           .arg = &table, .room = round % 4 ? &room : NULL, .candidates = WANT };
        double best[WANT + 1];
        int have = 0;
        for (int k = 1; k <= M; k++) {
            double least = INFINITY;
            int ell = M;
            for (int r = 0; p.room && r < K; r++)
                while (ell && slice_units(&p, r, k) * ell * token[r] + slice_kv(&p, r, k) * kv[r] >
                       bytes[r])
                    ell--;
            for (int x = 0; x < ncaps; x++) {
                for (int c = 0; c <= M; c++)
                    D[0][c] = c == 0 ? 0 : INFINITY;
                for (int j = 1; j <= k; j++)
                    for (int i = 0; i <= M; i++) {
                        D[j][i] = INFINITY;
                        for (int l = 1; l <= i && l <= ell; l++)
                            if (t[(i - l) * M + l - 1] <= cap[x])
                                D[j][i] = fmin(D[j][i], D[j - 1][i - l] + t[(i - l) * M + l - 1]);
                    }
                least = fmin(least, m * D[k][M] + (K - 1) * cap[x]);
            }
            int at = have < WANT ? have++ : WANT;
            if (least == INFINITY) {
                have -= at < WANT;
                continue;
            }
            for (; at > 0 && least < best[at - 1]; at--)
                best[at] = best[at - 1];
            best[at] = least;
        }
        Slices s = slice_solve(scratch, &p);
        cr_assert_eq(s.ncand, have);
        for (int i = 0; i < have; i++)
            cr_assert(same(s.cand[i].T, best[i]), "round %d candidate %d: %.17g, plain %.17g",
                      round, i, s.cand[i].T, best[i]);
        bounded += s.k_bounded;
        searched += s.k_searched;
    }
    cr_assert(bounded > 100 && searched > 100);
}

/* The room shapes the choice: less of it, shorter slices, more time; then nothing fits. */
Test(slice, less_room_costs_time)
{
    Model m = { 0 };
    SliceProblem p = problem(&m, &shapes[4], 8);
    enum { K = 40 };
    int changed = 0;
    int64_t token[K], kv[K], bytes[K];
    SliceRoom room = { .schedule = SLICE_1F1B, .token_bytes = token, .kv_bytes = kv,
                       .room_bytes = bytes };
    double free_T = slice_solve(scratch, &p).best.T, last = free_T;
    p.room = &room;
    for (int64_t per = 9600; per >= 0; per -= 240) {
        for (int r = 0; r < K; r++) {
            token[r] = 100;
            kv[r] = 2048;
            bytes[r] = 100 * per + 2 * 2048;
        }
        double start = now_s();
        Slices s = slice_solve(scratch, &p);
        changed += s.best.k && s.best.T > last;
        fprintf(stderr, "room for %5d tokens: %2d slices, T %.4f, %.2f ms, %d counts searched, %d "
                "bounded\n", (int)per, s.best.k, s.best.T, 1e3 * (now_s() - start), s.k_searched,
                s.k_bounded);
        if (s.best.k) {
            cr_assert(s.best.T >= last * (1 - 1e-12) && s.best.T >= free_T);
            last = s.best.T;
        } else {
            cr_assert(s.lack.stage == 0 && s.lack.need_bytes > s.lack.room_bytes);
        }
    }
    cr_assert_gt(changed, 3);
}

/* ---- the rest ----------------------------------------------------------------------- */

/* Bound of unequal stages: never below the makespan; equal stages: equal to it. */
Test(slice, bounds_the_makespan)
{
    static Case x;
    for (int i = 0; i < 400; i++) {
        seed = (uint64_t)i * 991 + 3;
        case_make(&x);
        x.p.separate = false;
        x.p.room = NULL;
        Slices s = slice_solve(scratch, &x.p);
        if (!s.best.k)
            continue;
        int nk = x.p.nkinds ? x.p.nkinds : 1, K = x.p.stages;
        double done[STAGES] = { 0 };
        for (int mb = 0; mb < x.p.microbatches; mb++)
            for (int j = 0, c = 0; j < s.best.k; c += (int)(s.best.len[j++] / x.p.grain)) {
                int l = (int)(s.best.len[j] / x.p.grain), r = 0;
                double ready = 0;
                for (int q = 0; q < nk; q++)
                    for (int z = 0; z < (nk == 1 ? K : x.kind_stages[q]); z++, r++)
                        ready = done[r] = fmax(ready, done[r]) + x.f[q][c][l - 1] +
                                          x.b[q][c][l - 1];
            }
        if (nk == 1)
            cr_assert_eq(s.best.T, done[K - 1], "case %d: T %g, run %g", i, s.best.T, done[K - 1]);
        cr_assert(s.best.T >= done[K - 1] * (1 - 1e-12), "case %d: T %g below the run's %g", i,
                  s.best.T, done[K - 1]);
    }
}

static bool make_b(void *arg, int64_t b, SliceProblem *p)
{
    static double f[4][6][6];
    static SliceTable table[4];
    int at = b == 1 ? 0 : b == 2 ? 1 : b == 3 ? 2 : 3;
    if (b == *(int *)arg)
        return false;
    for (int c = 0; c < 6; c++)
        for (int l = 1; l <= 6; l++)
            f[at][c][l - 1] = 4 + (double)b * (2 * l + l * c);
    table[at] = (SliceTable){ .n = 6, .grain = 16, .f = &f[at][0][0] };
    *p = (SliceProblem){ .tokens = 96, .grain = 16, .stages = 5, .time = slice_table,
                         .arg = &table[at] };
    return true;
}

Test(slice, best_microbatch)
{
    int n, left_out = 3;
    SliceBatch *each;
    int best = slice_best_b(scratch, 6, make_b, &left_out, &each, &n);
    cr_assert(n == 3 && best >= 0);             // 1, 2 and 6
    for (int i = 0; i < n; i++) {
        SliceProblem p;
        cr_assert(make_b(&left_out, each[i].b, &p) && each[i].m == 6 / each[i].b);
        p.microbatches = each[i].m;
        cr_assert_eq(slice_solve(scratch, &p).best.T, each[i].s.best.T);
        cr_assert(each[best].s.best.T <= each[i].s.best.T);
    }
}

Test(slice, lists_are_priced_alike)
{
    Model m = { 0 };
    SliceProblem p = problem(&m, &shapes[9], 8);
    Slices s = slice_solve(scratch, &p);
    int64_t len[256];
    for (int k = 1; k <= 256; k++) {
        cr_assert(slice_uniform(&p, k, len));
        int64_t sum = 0;
        for (int i = 0; i < k; i++) {
            sum += len[i];
            cr_assert(len[i] % 8 == 0 && len[i] > 0 && len[0] - len[i] <= 8 &&
                      (!i || len[i] <= len[i - 1]));
        }
        cr_assert_eq(sum, 2048);
        cr_assert(slice_price(scratch, &p, len, k, NULL).T >= s.best.T);
    }
    cr_assert_not(slice_uniform(&p, 257, len));
    int64_t odd[2] = { 2041, 7 };               // any lengths, not only multiples
    SliceChoice c = slice_price(scratch, &p, odd, 2, NULL);
    double f1 = 0, f2 = 0, b = 0;
    model_time(&m, 0, 2041, 0, &f1, &b);
    model_time(&m, 0, 7, 2041, &f2, &b);
    cr_assert(same(c.T, 2 * (f1 + f2) + 47 * fmax(f1, f2)));
}

Test(slice, fit)
{
    SlicePoint at[64];
    for (int i = 0; i < 64; i++) {
        double l = 8 + 37 * (i % 8), c = 100 * (double)(i / 8);
        at[i] = (SlicePoint){ l, c, 3e-3 + 2e-6 * l + 5e-7 * c + 7e-9 * l * c, 0 };
    }
    SliceFit fit;
    cr_assert(slice_fit(at, 64, &fit));
    cr_assert(fit.rank == 4 && fit.fitted == 48 && fit.held == 16 && fit.err_max < 1e-11);
    cr_assert(fabs(fit.a[0] - 3e-3) < 1e-13 && fabs(fit.a[3] - 7e-9) < 1e-18);
    cr_assert(fabs(slice_fit_at(&fit, 50, 60) - (3e-3 + 1e-4 + 3e-5 + 2.1e-5)) < 1e-13);
    for (int i = 0; i < 64; i++) {      // on top of t(l, 0), and 1 % wrong where it is tested
        at[i].base = 1 + at[i].l;
        at[i].t = (at[i].base + at[i].t) * (i == 7 ? 1.04 : 1);
    }
    cr_assert(slice_fit(at, 64, &fit));
    cr_assert(fabs(fit.err_max - 0.04 / 1.04) < 1e-9);
    cr_assert(fabs(fit.err_mean * 16 - fit.err_max) < 1e-9);
    for (int i = 0; i < 64; i++)
        at[i] = (SlicePoint){ 512, i, 2 + 0.5 * i, 0 };        // one length only
    cr_assert(slice_fit(at, 64, &fit));
    cr_assert(fit.rank == 2 && fit.err_max < 1e-9);
    cr_assert_not(slice_fit(at, 3, &fit));
}

/* ---- how long it takes ------------------------------------------------------------------ */

static void timed(const char *what, SliceProblem *p, int times)
{
    double best = INFINITY;
    Slices s = { 0 };
    for (int i = 0; i < times; i++) {
        double start = now_s();
        s = slice_solve(scratch, p);
        best = fmin(best, now_s() - start);
    }
    cr_assert(s.best.k > 0);
    fprintf(stderr, "%-26s K %2d m %2d: %8.2f ms, %2d slices, %4" PRId64 " caps tried, %6.1f M "
            "steps\n", what, p->stages, (int)p->microbatches, 1e3 * best, s.best.k, s.tried,
            1e-6 * (double)s.steps);
    arena_reset(scratch);
}

Test(slice, times)
{
    for (int i = 0; i < NSHAPES; i++) {
        if (!all() && i != 2 && i != 4 && i != 8)
            continue;
        for (int noise = 0; noise < 2; noise++) {
            Model m = { .noise = noise };
            SliceProblem p = problem(&m, &shapes[i], 8);
            timed(noise ? "256 units, noisy" : "256 units", &p, 3);
            p.candidates = 5;
            timed(noise ? "256 units, noisy, 5 best" : "256 units, 5 best", &p, 1);
            p.candidates = 0;
            p.separate = true;
            m.b_share = 1.1;
            m.b_knee = 2 * shapes[i].flat;
            timed(noise ? "256 units, noisy, pairs" : "256 units, pairs", &p, 1);
            p = problem(&m, &shapes[i], 1);
            timed(noise ? "2048 units, noisy" : "2048 units", &p, 1);
        }
    }
}
