/*
 * slice.h - the token slices of a pipeline: TeraPipe's dynamic programme, exact.
 *
 * (n) is an equation of TeraPipe, ICML 2021 (research/terapipe.md, 2.7); [d3] is
 * section 3 of design.md. Times are seconds, lengths and contexts tokens, sizes
 * bytes. Nothing here knows the plan; no globals; what a call works on is freed
 * before it returns, what it hands back lives in the caller's arena.
 *
 * A replica sends m microbatches through K stages. Each is cut along L tokens into
 * slices of l_1..l_k tokens, sum L (4), every l_i a multiple of `grain`. With
 * t_i = t(l_i, l_1 + .. + l_(i-1)) the time of slice i on the slowest stage,
 *
 *     T  = m sum_i t_i + fill max_i t_i                      (5), joint over m
 *     T* = min over t_max of  m S(L; t_max) + fill t_max     (6)
 *
 * or, when forward f and backward b are separate (t = f + b),
 *
 *     T  = m sum_i (f_i + b_i) + fill (max_i f_i + max_i b_i)                 [d3]
 *
 * Equal stages: fill = K - 1, and T is the makespan of gpipe, exactly.
 * Unequal stages come as kinds q, kind q standing for some number of stages.
 * t(l, c) is then the largest of the kinds at (l, c), rho_q <= 1 the largest
 * share t_q / t over the whole grid (of f and of b, when separate), and
 *
 *     fill = sum over stages of rho  -  the largest rho.
 *
 * T is then an upper bound of gpipe's makespan, met when all are equal: the
 * makespan is the dearest monotone path through slices x stages. On it every slice
 * pays once, at most t_i; what is left is one cell in each stage but one (any one:
 * the cells a path leaves downwards before that stage, and enters after it), at
 * most rho_q max t. For 1f1b, T is an estimate: simulate the best few.
 */
#ifndef SLICE_H
#define SLICE_H

#include "util.h"

/*
 * Time of a slice of l tokens after c tokens of context on one stage of kind
 * `kind`: *f forward, *b backward, both preset to 0; what does not tell them apart
 * puts the sum in *f. Transfers, collectives and recompute belong in it. INFINITY:
 * such a slice cannot be. Never negative; called once for each l, c of the grid.
 */
typedef void SliceTime(void *arg, int kind, int64_t l, int64_t c, double *f, double *b);

/* A table as a SliceTime (arg = &table): row c/grain has n columns, l/grain - 1. */
typedef struct { int n; int64_t grain; const double *f, *b; } SliceTable;  // b may be NULL
SliceTime slice_table;

/*
 * What a stage can hold [d3]. With k slices, stage r keeps `units(r, k)` slices and
 * the keys and values of `kv(r, k)` microbatches at once, and must have
 *
 *     units x longest slice x token_bytes[r] + kv x kv_bytes[r] <= room_bytes[r].
 *
 * gpipe: m k and m. 1f1b, with P - r stages from r on: min(m k, P - r - 1 + k) and
 * min(m, ceil((P - r + 2k - 2) / k)). SLICE_OWN: the caller's functions, for
 * schedules with chunks.
 */
typedef enum { SLICE_GPIPE, SLICE_1F1B, SLICE_OWN } SliceSchedule;
typedef struct {
    SliceSchedule schedule;
    const int64_t *token_bytes;     // per stage: kept per token (all sequences) of a unit
    const int64_t *kv_bytes;        // per stage: K, V, dK, dV of one microbatch
    const int64_t *room_bytes;      // per stage: left by parameters and the rest
    int64_t (*units)(void *arg, int stage, int64_t k), (*kv)(void *arg, int stage, int64_t k);
    void *arg;                      // SLICE_OWN only
} SliceRoom;

typedef struct {
    int64_t tokens, grain;          // L; grain divides it (0: 1)
    int stages;                     // K
    int64_t microbatches;           // m
    bool separate;                  // f and b have caps of their own
    SliceTime *time; void *arg;
    int nkinds;                     // 0 or 1: all stages are equal
    const int *kind_stages;         // per kind: how many stages, sum K
    const SliceRoom *room;          // NULL: no bound
    int64_t least, most;            // number of slices allowed (0: any)
    double worth;                   // lists with a T above are not looked for (0: all are)
    int candidates;                 // best so many of different k (0: the best alone)
    bool count_caps;                // fill Slices.caps (sorts the grid)
} SliceProblem;

typedef struct {
    int k;                          // slices; 0: none
    int64_t *len;                   // tokens, k of them
    double T, S;                    // objective; sum of one microbatch
    double tmax;                    // the longest slice, f + b
    double fmax, bmax;              // separate: the two maxima (else tmax and 0)
    double fill_s;                  // fill x maxima, the bubble: T = m S + fill_s
} SliceChoice;

/* A stage that lacks room; stage -1: none. The least lack over all k. */
typedef struct { int stage; int64_t k, longest, need_bytes, room_bytes; } SliceLack;

typedef struct {
    SliceChoice best;               // k 0: nothing fits (see lack) or nothing is possible
    int ncand; SliceChoice *cand;   // T ascending, k all different; cand[0] is best
    SliceLack lack;
    double fill;
    /* How the search went. Caps are pairs when `paired`. */
    bool paired;
    int64_t caps, tried;            // distinct caps (pairs: their product); caps solved for
    int64_t steps;                  // inner steps, all solves
    /* What stopped it: of the intervals of caps left unsolved, the one with the lowest
     * bound, m S' + fill stop_lo >= T, S' the sum found at a cap not below stop_hi.
     * INFINITY: none is left but caps so long that m S + fill cap passes T at once. */
    double stop_lo, stop_hi, stop_bound;
    int k_bounded, k_searched;      // counts of slices excluded by a bound; searched alone
} Slices;

/*
 * The best slices, exactly: no other list of multiples of `grain` that fits has a
 * smaller T (as floating point adds it: slices from the last to the first). Of equal
 * T: the fewest slices, then the longest first slice, then second, and so on.
 */
Slices slice_solve(Arena *a, const SliceProblem *p);

/* T of a given list (any lengths, sum L) by the same sums; *lack may be NULL. */
SliceChoice slice_price(Arena *a, const SliceProblem *p, const int64_t *len, int k,
                        SliceLack *lack);

/* `uniform(k)`: lengths as equal as `grain` allows, longest first; false: k too large. */
bool slice_uniform(const SliceProblem *p, int k, int64_t *len);

/* Units of activations, and microbatches of K and V, that stage `r` holds. */
int64_t slice_units(const SliceProblem *p, int r, int64_t k);
int64_t slice_kv(const SliceProblem *p, int r, int64_t k);

/*
 * Every microbatch size b that divides `batch` (sequences of a replica): `make` fills
 * *p (all but microbatches, which is batch / b) or returns false to leave b out. All
 * results in *all (in perm), b ascending; returns the index of the best, of equal T the larger
 * b, or -1.
 */
typedef struct { int64_t b, m; Slices s; } SliceBatch;
typedef bool SliceMake(void *arg, int64_t b, SliceProblem *p);
int slice_best_b(Arena *a, int64_t batch, SliceMake *make, void *arg, SliceBatch **all, int *n);

/*
 * t_ctx = a0 + a1 l + a2 c + a3 l c (9) by least squares over three points of four; the
 * relative error |base + t_ctx - t| / t is of every fourth, which the fit does not see.
 * A coefficient that the points cannot tell is 0 (`rank` says how many could).
 * false: fewer than 4 points.
 */
typedef struct { double l, c, t, base; } SlicePoint;    // t_ctx = t - base; base = t(l, 0) or 0
typedef struct { double a[4]; double err_mean, err_max; int rank, fitted, held; } SliceFit;
bool slice_fit(const SlicePoint *at, int n, SliceFit *fit);
double slice_fit_at(const SliceFit *fit, double l, double c);

#endif
