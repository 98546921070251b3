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
 * never dropped and no section is empty. Where all turns cost the same, each in turn goes to
 * the section that has least so far: squares are convex, so that gives the least sum of them,
 * and with it the least dearest section.
 */
#include "diag.h"
#include "predict.h"

typedef struct { const double *sum; double head, tail; int n; } Weights;

static double weight_of(const Weights *w, int lo, int hi)       // turns lo .. hi-1
{
    return w->sum[hi] - w->sum[lo] + (lo == 0 ? w->head : 0) + (hi == w->n ? w->tail : 0);
}

/* The least dearest section; `at` has room for n + 1 numbers. */
static double best_cap(const Weights *w, int sections, double *at)
{
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

void stages_even(int nturns, double weight, double head, double tail, int sections, int *turns)
{
    int first = 1, last = 1, each = 1, more = 0, middle = sections - 2, left = nturns - sections;
    if (sections == 1) {
        turns[0] = nturns;
        return;
    }
    while (left > 0) {
        double f = head + first * weight, l = tail + last * weight, m = each * weight;
        bool none = middle == 0;
        if (f <= l && (none || f <= m))
            first++, left--;
        else if (none || l < m)
            last++, left--;
        else {
            more = left < middle ? left : 0;
            each += more == 0;
            left -= more ? more : middle;
        }
    }
    for (int i = 0; i < sections; i++)
        turns[i] = i == 0 ? first : i == sections - 1 ? last : each + (i - 1 < more);
}

void stages_cut(int nturns, const double *weight, double head, double tail, int sections,
                int *turns)
{
    bool even = true;
    for (int i = 1; i < nturns; i++)
        even &= weight[i] == weight[0];
    if (even) {
        stages_even(nturns, weight[0], head, tail, sections, turns);
        return;
    }
    size_t row = (size_t)nturns + 1, cells = row * (size_t)(sections + 1);
    double *sum = malloc((2 * row + cells) * sizeof *sum), *q = sum + 2 * row;
    int *next = malloc(cells * sizeof *next);
    if (sum == NULL || next == NULL)
        die(EXIT_WORLD, "out of memory (cutting %d turns)", nturns);
    sum[0] = 0;
    for (int i = 0; i < nturns; i++)
        sum[i + 1] = sum[i] + weight[i];
    Weights w = { sum, head, tail, nturns };
    double cap = best_cap(&w, sections, sum + row) * (1 + 1e-12);
    /* Q from the end, so that a tie can favour the earlier section. */
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
    free(sum);
    free(next);
}
