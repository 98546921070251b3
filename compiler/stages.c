/*
 * stages.c - which turns each section of the pipeline gets.
 *
 * needs: seconds of every turn, of what stands before the first and after the last.
 *
 * The pipeline is as fast as its dearest section, so that is minimised first. Many
 * cuts share it (96 equal turns on 40 sections); of these the one with the least sum of
 * squares is the most even. Both are exact, by
 *
 *     D(s, i) = min over j < i of  max(D(s-1, j), w(j..i))         then the same with
 *     Q(s, i) = min over j < i of  Q(s-1, j) + w(j..i)^2           where w(j..i) <= D
 *
 * in O(sections * turns^2); ties give the earlier section more turns. Turns are
 * never dropped and no section is empty.
 */
#include "predict.h"

typedef struct { const double *sum; double head, tail; int n; } Weights;

static double weight_of(const Weights *w, int lo, int hi)       // turns lo .. hi-1
{
    return w->sum[hi] - w->sum[lo] + (lo == 0 ? w->head : 0) + (hi == w->n ? w->tail : 0);
}

/* The least dearest section. */
static double best_cap(const Weights *w, int sections)
{
    double *at = arena_get(scratch, sizeof *at * (size_t)(w->n + 1));
    for (int i = 1; i <= w->n; i++)
        at[i] = weight_of(w, 0, i);
    for (int s = 2; s <= sections; s++)
        for (int i = w->n; i >= s; i--) {
            double best = HUGE_VAL;
            for (int j = i - 1; j >= s - 1; j--) {
                double last = weight_of(w, j, i), most = at[j] > last ? at[j] : last;
                best = most < best ? most : best;
                if (last >= best)
                    break;              // longer last sections only cost more
            }
            at[i] = best;
        }
    return at[w->n];
}

void stages_cut(int nturns, const double *weight, double head, double tail, int sections,
                int *turns)
{
    double *sum = NEWN(double, nturns + 1);
    for (int i = 0; i < nturns; i++)
        sum[i + 1] = sum[i] + weight[i];
    Weights w = { sum, head, tail, nturns };
    double cap = best_cap(&w, sections) * (1 + 1e-12);
    /* Q from the end, so that a tie can favour the earlier section. */
    size_t row = (size_t)nturns + 1;
    double *q = NEWN(double, row * (size_t)(sections + 1));
    int *next = NEWN(int, row * (size_t)(sections + 1));
    for (int s = 0; s <= sections; s++)
        for (int i = 0; i <= nturns; i++)
            q[(size_t)s * row + (size_t)i] = s == 0 && i == nturns ? 0 : HUGE_VAL;
    for (int s = 1; s <= sections; s++)         // s sections for turns i ..
        for (int i = nturns - s; i >= 0; i--)
            for (int j = nturns - s + 1; j > i; j--) {
                double a = weight_of(&w, i, j), rest = q[(size_t)(s - 1) * row + (size_t)j];
                double *best = &q[(size_t)s * row + (size_t)i];
                if (a <= cap && (a * a + rest) * (1 + 1e-12) < *best) {
                    *best = a * a + rest;
                    next[(size_t)s * row + (size_t)i] = j;
                }
            }
    for (int s = sections, i = 0; s > 0; s--) {
        int j = next[(size_t)s * row + (size_t)i];
        turns[sections - s] = j - i;
        i = j;
    }
}
