/*
 * test_counts.c - collectives and words of one layer, worked out by hand.
 *
 * Words a rank receives, P = x*y*z ranks, T tokens, H the hidden width (design.md 2). A
 * matrix of n words gathered or scattered over g members, spread over P ranks at the
 * end, costs n(g-1)/P. Products of a layer, in order, of width in -> out:
 *
 *   gpt2      qkv H->3H   proj H->H   up H->4H   down 4H->H
 *   llama     qkv H->H+2K o    H->H   gate, up H->2I   down I->H   (K = kv width, I = inner)
 *   parallel  qkv and fc_in H->7H     out_proj, fc_out (H, 4H)->H, their sum scattered once
 *
 * Forward, a product entered in A gathers rows over y (T*in), its matrix over x (in*out), and
 * scatters its result over z (T*out); from B, y and z change places:
 *
 *   over y  gpt2, llama: gathers 2H, scatters 2H     = 4TH (y-1)/P    parallel: H + H = 2TH
 *   over z  gpt2: scatters 3H+4H, gathers H+4H       = 12TH (z-1)/P   parallel: 7H + 5H, same
 *           llama: scatters H+2K+2I, gathers H+I     = T(2H+2K+3I)(z-1)/P
 *   over x  gpt2, parallel 12H^2 (x-1)/P             llama: (2H^2 + 2HK + 3HI)(x-1)/P
 *
 * gpt2's sum is the V of design.md 2. Backward, with what was gathered kept: dY is gathered
 * where Y was scattered, dX scattered where X was gathered, dW scattered over x: the same words.
 * With keep=none, X is gathered again for dW and W for dX.
 *
 * Beside that, where z > 1, each norm gathers its statistics over z: T(z-1)/(xy) words for
 * each number of a row. Layer norm: sum, mean, M2 forward, two sums backward; RMS norm: one
 * and one.
 */
#include <criterion/criterion.h>

#include "grids.h"
#include "print.h"

typedef struct { int n; double words; } Sum;
typedef struct { Sum at[2][COLL_COUNT][32]; int stats[2]; double stat_words[2]; } Sums;

static Plan *plan(const char *model, const char *cube, const char *keep, int layers,
                  const char *more)
{
    const char *const sets[] = { str_fmt("plan.cube=%s", cube), str_fmt("plan.keep=%s", keep),
                                 str_fmt("model.layers=%d", layers), "train.batch=12",
                                 more ? more : "train.seed=1", NULL };
    Plan *p = grids_compile(grids_config(str_fmt("examples/%s.tcube", model), sets), 1);
    cr_assert_not_null(p, "%s on %s does not compile", model, cube);
    return p;
}

static void tally(const Plan *p, int sign, Sums *t)
{
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        if (n->kind != I_COLL || n->phase > PHASE_BACKWARD)
            continue;
        double words = sign * print_received(p, n) / 4;
        const Value *v = &p->values.at[n->in[0]];
        if (v->tensor == NONE && v->unit == NONE) {
            t->stats[n->phase] += sign;
            t->stat_words[n->phase] += words;
            continue;
        }
        Sum *s = &t->at[n->phase][n->coll][n->axes];
        s->n += sign;
        s->words += words;
    }
}

/* One layer: a plan of three less one of two. */
static Sums layer(const char *model, const char *cube, const char *keep)
{
    Sums t = { 0 };
    tally(plan(model, cube, keep, 3, NULL), 1, &t);
    tally(plan(model, cube, keep, 2, NULL), -1, &t);
    return t;
}

static void expect(const char *what, const Sums *t, Phase phase, CollKind kind, Axes axes, int n,
                   double words)
{
    const Sum *s = &t->at[phase][kind][axes];
    cr_expect(s->n == n && fabs(s->words - words) < 0.5,
              "%s %s %s over %s: %d of %.0f words, by hand %d of %.0f", what,
              phase ? "backward" : "forward", coll_word[kind], axes_word(axes, 1), s->n, s->words,
              n, words);
}

/* Nothing else is there: the counts add up. */
static void expect_total(const char *what, const Sums *t, Phase phase, int n)
{
    int all = 0;
    for (int k = 0; k < COLL_COUNT; k++)
        for (int a = 0; a < 32; a++)
            all += t->at[phase][k][a].n;
    cr_expect_eq(all, n, "%s: %d collectives %s, by hand %d", what, all,
                 phase ? "backward" : "forward", n);
}

/*
 * What a model's layer gathers and scatters: how often and how many columns, in A (rows over
 * y) and in B (over z), and its matrices. stat: numbers of a row and norm.
 */
typedef struct {
    const char *name;
    int gather_a, scatter_a, gather_b, scatter_b, matrices, norms, stat_fwd, stat_bwd;
    double ga, sa, gb, sb, w;
} LinearCase;

enum { H = 768, K = 256, I = 2048, T = 12 * 256 };       // 4 of 12 heads are kv heads
static const LinearCase shapes[] = {
    { "gpt2",     2, 2, 2, 2, 4, 2, 3, 2, 2*H, 2*H, 5*H, 7*H, 12.0*H*H },
    { "llama",    2, 2, 2, 2, 4, 2, 1, 1, 2*H, 2*H, H + I, H + 2*K + 2*I,
      2.0*H*H + 2.0*H*K + 3.0*H*I },
    // the attention's and the MLP's insides are gathered each for itself; one sum is scattered
    { "parallel", 1, 1, 2, 1, 3, 1, 3, 2, H, H, 5*H, 7*H, 12.0*H*H },
};

static void check(const LinearCase *s, int x, int y, int z)
{
    const char *cube = str_fmt("[%d,%d,%d]", x, y, z);
    double p = (double)x * y * z;
    for (int keep = 0; keep < 2; keep++) {
        const char *what = str_fmt("%s %s keep=%s", s->name, cube, keep ? "both" : "none");
        Sums t = layer(s->name, cube, keep ? "both" : "none");
        double gy = (double)T * (y - 1) / p, gz = (double)T * (z - 1) / p;
        double wx = s->w * (x - 1) / p;
        bool X = x > 1, Y = y > 1, Z = z > 1;
        Phase f = PHASE_FORWARD, b = PHASE_BACKWARD;
        int again = keep ? 0 : 1;
        expect(what, &t, f, COLL_ALL_GATHER, AX_X, X * s->matrices, wx);
        expect(what, &t, f, COLL_ALL_GATHER, AX_YK, Y * s->gather_a, s->ga * gy);
        expect(what, &t, f, COLL_REDUCE_SCATTER, AX_YK, Y * s->scatter_a, s->sa * gy);
        expect(what, &t, f, COLL_ALL_GATHER, AX_Z, Z * s->gather_b, s->gb * gz);
        expect(what, &t, f, COLL_REDUCE_SCATTER, AX_Z, Z * s->scatter_b, s->sb * gz);
        expect_total(what, &t, f, X * s->matrices + Y * (s->gather_a + s->scatter_a) +
                     Z * (s->gather_b + s->scatter_b));
        expect(what, &t, b, COLL_ALL_GATHER, AX_X, again * X * s->matrices, again * wx);
        expect(what, &t, b, COLL_REDUCE_SCATTER, AX_X, X * s->matrices, wx);
        expect(what, &t, b, COLL_ALL_GATHER, AX_YK, Y * (s->scatter_a + again * s->gather_a),
               (s->sa + again * s->ga) * gy);
        expect(what, &t, b, COLL_REDUCE_SCATTER, AX_YK, Y * s->gather_a, s->ga * gy);
        expect(what, &t, b, COLL_ALL_GATHER, AX_Z, Z * (s->scatter_b + again * s->gather_b),
               (s->sb + again * s->gb) * gz);
        expect(what, &t, b, COLL_REDUCE_SCATTER, AX_Z, Z * s->gather_b, s->gb * gz);
        expect_total(what, &t, b, X * (1 + again) * s->matrices +
                     Y * (s->scatter_a + (1 + again) * s->gather_a) +
                     Z * (s->scatter_b + (1 + again) * s->gather_b));
        double row = (double)T * (z - 1) / (x * y);
        cr_expect(t.stats[0] == Z * s->norms && t.stats[1] == Z * s->norms,
                  "%s: statistics travel %d and %d times, by hand %d each", what, t.stats[0],
                  t.stats[1], Z * s->norms);
        cr_expect_float_eq(t.stat_words[0], s->norms * s->stat_fwd * row, 0.5, "%s: %.0f words of "
                           "statistics, by hand %.0f", what, t.stat_words[0],
                           s->norms * s->stat_fwd * row);
        cr_expect_float_eq(t.stat_words[1], s->norms * s->stat_bwd * row, 0.5, "%s: %.0f words of "
                           "statistics backward, by hand %.0f", what, t.stat_words[1],
                           s->norms * s->stat_bwd * row);
    }
}

static void check_all(const LinearCase *s)
{
    static const int grid[][3] = { { 1, 4, 1 }, { 4, 1, 1 }, { 1, 1, 4 }, { 2, 2, 2 },
                                   { 1, 2, 2 }, { 2, 4, 1 }, { 3, 2, 2 }, { 4, 2, 1 } };
    for (size_t i = 0; i < sizeof grid / sizeof *grid; i++)
        check(s, grid[i][0], grid[i][1], grid[i][2]);
}

Test(counts, gpt2)     { check_all(&shapes[0]); }
Test(counts, llama)    { check_all(&shapes[1]); }
Test(counts, parallel) { check_all(&shapes[2]); }

/* design.md 2: V = [4TH(y-1) + 12TH(z-1) + 12H^2(x-1)] / (xyz), forward and backward. */
Test(counts, formula_of_gpt)
{
    static const int grid[][3] = { { 1, 4, 1 }, { 4, 1, 1 }, { 2, 2, 2 }, { 2, 3, 1 },
                                   { 1, 6, 2 } };
    for (size_t g = 0; g < sizeof grid / sizeof *grid; g++) {
        double x = grid[g][0], y = grid[g][1], z = grid[g][2];
        double V = (4.0*T*H*(y - 1) + 12.0*T*H*(z - 1) + 12.0*H*H*(x - 1)) / (x*y*z);
        Sums t = layer("gpt2", str_fmt("[%.0f,%.0f,%.0f]", x, y, z), "both");
        for (int phase = 0; phase < 2; phase++) {
            double words = 0;
            for (int k = 0; k < COLL_COUNT; k++)
                for (int a = 0; a < 32; a++)
                    words += t.at[phase][k][a].words;
            cr_expect_float_eq(words, V, 0.5, "[%.0f,%.0f,%.0f]: %.0f words, V = %.0f", x, y, z,
                               words, V);
        }
    }
}

/*
 * Products of blocks: each of four linears takes q steps. Blocks of activations along y are
 * 7TH/q^2 words together, those of matrices along z 12H^2/q^2; a rank receives q-1 of q.
 * X W sends both; dY WT sends W and sums dX; XT dY sends X and sums dW.
 */
Test(counts, blocks_of_gpt)
{
    for (int q = 2; q <= 3; q++) {
        const char *what = str_fmt("plan.partition=summa(%d)", q);
        const char *cube = str_fmt("[1,%d,%d]", q, q);
        double rows = 7.0*T*H*(q - 1) / (q*q), matrices = 12.0*H*H*(q - 1) / (q*q);
        Sums t = { 0 };
        tally(plan("gpt2", cube, "none", 3, what), 1, &t);
        tally(plan("gpt2", cube, "none", 2, what), -1, &t);
        for (Phase phase = PHASE_FORWARD; phase <= PHASE_BACKWARD; phase++) {
            expect(what, &t, phase, COLL_BROADCAST, AX_YK, 4 * q, rows);
            expect(what, &t, phase, COLL_BROADCAST, AX_Z, 4 * q, matrices);
        }
        expect(what, &t, PHASE_BACKWARD, COLL_REDUCE, AX_YK, 4 * q, rows);
        expect(what, &t, PHASE_BACKWARD, COLL_REDUCE, AX_Z, 4 * q, matrices);
        expect_total(what, &t, PHASE_FORWARD, 8 * q);
        expect_total(what, &t, PHASE_BACKWARD, 16 * q);
    }
}

/*
 * What stands outside the layers of gpt2 on [2,2,2], with one chunk of logits.
 * Forward: wte and wpe gathered over x; their look-ups summed, scattered once over y; the
 * last norm's statistics over z and its rows over y; the logits scattered over z; the loss's
 * statistics gathered over y; the logits' gradient gathered over z. Backward: the head's dX
 * scattered over y; statistics over z; dY of the embedding gathered over y once for both tables;
 * the two tables' gradients scattered over x.
 */
Test(counts, outside_the_layers)
{
    Sums t = { 0 }, one;
    tally(plan("gpt2", "[2,2,2]", "both", 3, "plan.logits_chunk=1536"), 1, &t);
    one = layer("gpt2", "[2,2,2]", "both");
    static const struct { Phase phase; CollKind kind; Axes axes; int n; } want[] = {
        { PHASE_FORWARD,  COLL_ALL_GATHER,     AX_X,  2 },
        { PHASE_FORWARD,  COLL_REDUCE_SCATTER, AX_YK, 1 },
        { PHASE_FORWARD,  COLL_ALL_GATHER,     AX_YK, 1 },
        { PHASE_FORWARD,  COLL_REDUCE_SCATTER, AX_Z,  1 },
        { PHASE_FORWARD,  COLL_ALL_GATHER,     AX_Z,  1 },
        { PHASE_BACKWARD, COLL_REDUCE_SCATTER, AX_YK, 1 },
        { PHASE_BACKWARD, COLL_ALL_GATHER,     AX_YK, 1 },
        { PHASE_BACKWARD, COLL_REDUCE_SCATTER, AX_X,  2 },
    };
    int total[2] = { 0, 0 }, all[2] = { 0, 0 };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int n = t.at[want[i].phase][want[i].kind][want[i].axes].n -
                3 * one.at[want[i].phase][want[i].kind][want[i].axes].n;
        cr_expect_eq(n, want[i].n, "%s %s over %s: %d, by hand %d",
                     want[i].phase ? "backward" : "forward", coll_word[want[i].kind],
                     axes_word(want[i].axes, 1), n, want[i].n);
        total[want[i].phase] += want[i].n;
    }
    for (int phase = 0; phase < 2; phase++)
        for (int k = 0; k < COLL_COUNT; k++)
            for (int a = 0; a < 32; a++)
                all[phase] += t.at[phase][k][a].n - 3 * one.at[phase][k][a].n;
    cr_expect_eq(all[0], total[0], "%d collectives forward, by hand %d", all[0], total[0]);
    cr_expect_eq(all[1], total[1], "%d collectives backward, by hand %d", all[1], total[1]);
    cr_expect_eq(t.stats[0] - 3 * one.stats[0], 2);     // ln_f over z, the loss over y
    cr_expect_eq(t.stats[1] - 3 * one.stats[1], 1);
}

static int synced(const Plan *p, CollKind kind, Axes axes)
{
    int n = 0;
    for (int i = 0; i < p->insts.n; i++)
        n += p->insts.at[i].kind == I_COLL && p->insts.at[i].phase > PHASE_BACKWARD &&
             p->insts.at[i].coll == kind && (axes == 0 || p->insts.at[i].axes == axes);
    return n;
}

/*
 * Once a step. Vectors in A (norms, biases of proj and down) are split over z and kept by all
 * ranks of x and y; those in B (biases of qkv and up) are split over y and kept by x and z.
 * One all-reduce for each set of axes; on [1,4,1] the second set is empty, on [4,1,1] both are x.
 */
Test(counts, once_a_step)
{
    static const struct { const char *model, *cube; int n; } want[] = {
        { "gpt2", "[1,4,1]", 1 },     { "gpt2", "[4,1,1]", 1 },     { "gpt2", "[2,2,2]", 2 },
        { "llama", "[1,4,1]", 1 },    { "llama", "[4,1,1]", 1 },    { "llama", "[2,2,2]", 1 },
        { "parallel", "[1,4,1]", 1 }, { "parallel", "[4,1,1]", 1 }, { "parallel", "[2,2,2]", 2 },
        { "gpt2", "[1,1,1]", 0 },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        Plan *p = plan(want[i].model, want[i].cube, "both", 2, NULL);
        int n = synced(p, COLL_ALL_REDUCE, 0);
        cr_expect_eq(n, want[i].n, "%s %s: %d all-reduces of vectors, by hand %d", want[i].model,
                     want[i].cube, n, want[i].n);
        cr_expect_eq(synced(p, COLL_REDUCE_SCATTER, 0) + synced(p, COLL_ALL_GATHER, 0), 0);
    }
    // replicas: all gradients in one all-reduce, or (zero = 1) one reduce-scatter and one gather
    const char *const zero[] = { "plan.cube=[1,2,2]", "plan.data=2", "plan.zero=0", NULL };
    Plan *p = grids_compile(grids_config("examples/gpt2.tcube", zero), 1);
    cr_expect_eq(synced(p, COLL_ALL_REDUCE, AX_DATA), 1);
    cr_expect_eq(synced(p, COLL_REDUCE_SCATTER, 0) + synced(p, COLL_ALL_GATHER, 0), 0);
    const char *const one[] = { "plan.cube=[1,2,2]", "plan.data=2", "plan.zero=1", NULL };
    p = grids_compile(grids_config("examples/gpt2.tcube", one), 1);
    cr_expect_eq(synced(p, COLL_ALL_REDUCE, AX_DATA), 0);
    cr_expect_eq(synced(p, COLL_REDUCE_SCATTER, AX_DATA), 1);
    cr_expect_eq(synced(p, COLL_ALL_GATHER, AX_DATA), 1);
}
