/*
 * test_schedule.c - step tables: every schedule passes its checks, numbers in
 * flight equal the formulas of design.md section 3, and a table with a step
 * swapped, dropped or doubled is refused wherever that changes an order.
 */
#include <criterion/criterion.h>

#include "predict.h"
#include "slice.h"

static Schedule make(ScheduleKind kind, int P, int m, int k, int v)
{
    Schedule s = { .kind = kind, .P = P, .v = v, .m = m, .k = k, .b = 1 };
    s.slice = NEWN(int64_t, k);
    s.cut_bytes = NEWN(int64_t, P * v);
    for (int i = 0; i < k; i++)
        s.sequence += s.slice[i] = k - i;
    for (int i = 0; i + 1 < P * v; i++)
        s.cut_bytes[i] = 2 + i;
    schedule_build(&s);
    return s;
}

static int most_units(const Schedule *s, int r)
{
    int now = 0, most = 0;
    for (int i = 0; i < s->stage[r].n; i++) {
        now += s->stage[r].at[i].kind == STEP_FORWARD;
        now -= s->stage[r].at[i].kind == STEP_BACKWARD;
        most = now > most ? now : most;
    }
    return most;
}

/* Of chunks: with a forward done and a backward to come. */
static int most_microbatches(const Schedule *s, int r)
{
    int *left = NEWN(int, s->m * s->v), now = 0, most = 0;
    for (int i = 0; i < s->stage[r].n; i++) {
        const Step *u = &s->stage[r].at[i];
        int *n = &left[u->microbatch * s->v + u->chunk];
        if (u->kind == STEP_FORWARD)
            now += (*n)++ == 0;
        else if (u->kind == STEP_BACKWARD)
            now -= --*n == 0 && u->slice == 0;
        most = now > most ? now : most;
    }
    return most;
}

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

Test(schedule, small_ones_hold_together)
{
    for (int P = 1; P <= 6; P++)
        for (int m = 1; m <= 7; m++)
            for (int k = 1; k <= 5; k++)
                for (int kind = 0; kind < 2; kind++) {
                    Schedule s = make(kind, P, m, k, 1);
                    cr_assert_eq(schedule_check(&s, stderr), 0, "P %d m %d k %d", P, m, k);
                    for (int r = 0; r < P; r++) {
                        cr_assert_eq(most_units(&s, r), schedule_units(&s, r));
                        cr_assert_eq(most_microbatches(&s, r), schedule_kv(&s, r));
                        // the slice programme's bound on memory uses the same numbers
                        SliceRoom room = { .schedule = kind ? SLICE_1F1B : SLICE_GPIPE };
                        SliceProblem q = { .stages = P, .microbatches = m, .room = &room };
                        cr_assert_eq(schedule_units(&s, r), slice_units(&q, r, k));
                        cr_assert_leq(schedule_kv(&s, r), slice_kv(&q, r, k));
                    }
                }
}

/* What design.md says of the first stage. */
Test(schedule, first_stage_of_1f1b)
{
    for (int P = 1; P <= 6; P++)
        for (int m = 1; m <= 9; m++)
            for (int k = 1; k <= 5; k++) {
                Schedule s = make(SCHEDULE_1F1B, P, m, k, 1);
                int units = P - 1 + k, kv = ceil_div(P + 2 * k - 2, k);
                cr_assert_eq(schedule_units(&s, 0), units < m * k ? units : m * k);
                cr_assert_eq(schedule_kv(&s, 0), kv < m ? kv : m, "P %d m %d k %d: %d", P, m, k,
                             schedule_kv(&s, 0));
                Schedule g = make(SCHEDULE_GPIPE, P, m, k, 1);
                cr_assert_eq(schedule_units(&g, 0), m * k);
                cr_assert_eq(schedule_kv(&g, 0), m);
            }
}

Test(schedule, chunks_hold_together)
{
    for (int P = 2; P <= 5; P++)
        for (int v = 2; v <= 3; v++)
            for (int k = 1; k <= 4; k++)
                for (int g = 1; g <= 3; g++)
                    for (int kind = 0; kind < 2; kind++) {
                        Schedule s = make(kind, P, g * ceil_div(P, k), k, v);
                        cr_assert_eq(schedule_check(&s, stderr), 0, "P %d v %d k %d m %d", P, v, k,
                                     s.m);
                        cr_assert_eq(most_units(&s, 0), schedule_units(&s, 0));
                        for (int r = 0; r < P; r++)
                            cr_assert_eq(most_microbatches(&s, r), schedule_kv(&s, r));
                    }
}

static Steps copy_of(const Steps *t)
{
    Steps out = { 0 };
    for (int i = 0; i < t->n; i++)
        vec_add(&out, t->at[i]);
    return out;
}

static void drop(Steps *t, int i)
{
    memmove(t->at + i, t->at + i + 1, sizeof *t->at * (size_t)(t->n - i - 1));
    t->n--;
}

static void twice(Steps *t, int i)
{
    Step u = t->at[i];
    vec_add(t, u);
    memmove(t->at + i + 1, t->at + i, sizeof *t->at * (size_t)(t->n - 1 - i));
}

/*
 * Runs the tables with transfers that are kept until they are received, one queue
 * for each stage and direction: false when somebody waits for ever, gets another
 * unit than it expects, or computes with something missing.
 */
static bool runs(const Schedule *s)
{
    int n = s->P * s->m * s->k, *fwd = NEWN(int, n), *bwd = NEWN(int, n), *in = NEWN(int, n),
        *back = NEWN(int, n), *at = NEWN(int, s->P), *got_f = NEWN(int, s->P),
        *got_b = NEWN(int, s->P);
    Steps *sent_f = NEWN(Steps, s->P), *sent_b = NEWN(Steps, s->P);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->P; r++)
            while (at[r] < s->stage[r].n) {
                const Step *u = &s->stage[r].at[at[r]];
                int x = (r * s->m + u->microbatch) * s->k + u->slice;
                if (u->kind == STEP_RECV_ACTIVATION || u->kind == STEP_RECV_GRADIENT) {
                    bool f = u->kind == STEP_RECV_ACTIVATION;
                    const Steps *q = f ? &sent_f[r - 1] : &sent_b[r + 1];
                    int *got = f ? &got_f[r] : &got_b[r];
                    if (*got == q->n)
                        break;
                    const Step *w = &q->at[(*got)++];
                    if (w->microbatch != u->microbatch || w->slice != u->slice)
                        return false;
                    (f ? in : back)[x] = 1;
                } else if (u->kind == STEP_FORWARD) {
                    if ((r > 0 && !in[x]) || (u->slice > 0 && !fwd[x - 1]) || fwd[x])
                        return false;
                    fwd[x] = 1;
                } else if (u->kind == STEP_BACKWARD) {
                    if ((r + 1 < s->P && !back[x]) || !fwd[x] || bwd[x] ||
                        (u->slice + 1 < s->k && !bwd[x + 1]))
                        return false;
                    bwd[x] = 1;
                } else if (u->kind == STEP_SEND_ACTIVATION) {
                    if (!fwd[x])
                        return false;
                    vec_add(&sent_f[r], *u);
                } else if (u->kind == STEP_SEND_GRADIENT) {
                    if (!bwd[x])
                        return false;
                    vec_add(&sent_b[r], *u);
                } else
                    for (int i = 0; i < s->m * s->k; i++)
                        if (!bwd[r * s->m * s->k + i])
                            return false;
                at[r]++;
                moved = true;
            }
    }
    for (int r = 0; r < s->P; r++)
        if (at[r] < s->stage[r].n)
            return false;
    return true;
}

Test(schedule, mutations_are_refused)
{
    int swapped = 0, refused = 0;
    for (int kind = 0; kind < 2; kind++)
        for (int P = 1; P <= 4; P++)
            for (int k = 1; k <= 3; k++) {
                Schedule s = make(kind, P, 3, k, 1);
                for (int r = 0; r < P; r++) {
                    Steps kept = s.stage[r];
                    for (int i = 0; i < kept.n; i++) {
                        s.stage[r] = copy_of(&kept);
                        drop(&s.stage[r], i);
                        cr_assert_neq(schedule_check(&s, NULL), 0, "dropped %s",
                                      step_text(&kept.at[i]));
                        s.stage[r] = copy_of(&kept);
                        twice(&s.stage[r], i);
                        cr_assert_neq(schedule_check(&s, NULL), 0, "doubled %s",
                                      step_text(&kept.at[i]));
                        for (int j = i + 1; j < kept.n; j++) {
                            s.stage[r] = copy_of(&kept);
                            s.stage[r].at[i] = kept.at[j];
                            s.stage[r].at[j] = kept.at[i];
                            bool bad = schedule_check(&s, NULL) > 0;
                            swapped++;
                            refused += bad;
                            cr_assert(bad || runs(&s), "accepted, but does not run");
                        }
                    }
                    s.stage[r] = kept;
                }
            }
    cr_assert_gt(refused, swapped * 8 / 10, "%d of %d", refused, swapped);
}

/* A transfer of another size, to another stage, or another unit. */
Test(schedule, transfers_must_match)
{
    Schedule s = make(SCHEDULE_1F1B, 3, 3, 2, 1);
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < s.stage[r].n; i++) {
            Step *u = &s.stage[r].at[i], kept = *u;
            if (u->peer == NONE)
                continue;
            u->bytes++;
            cr_assert_neq(schedule_check(&s, NULL), 0);
            *u = kept;
            u->peer = (u->peer + 1) % 3;
            cr_assert_neq(schedule_check(&s, NULL), 0);
            *u = kept;
            u->slice ^= 1;
            cr_assert_neq(schedule_check(&s, NULL), 0);
            *u = kept;
        }
    s.slice[0]++;
    cr_assert_neq(schedule_check(&s, NULL), 0);
}
