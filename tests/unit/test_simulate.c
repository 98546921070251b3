/*
 * test_simulate.c - the simulated step of made-up times: exact where a formula is
 * known, its parts add up, memory in flight, and what blocking transfers add.
 */
#include <criterion/criterion.h>

#include "predict.h"

static uint64_t state = 12345;

static double random_s(double most)         // xorshift
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return most * (double)(state >> 11) / 9007199254740992.0;
}

static int random_int(int lo, int hi) { return lo + (int)(random_s(1) * (hi - lo + 1)); }

/* Equal stages; times of slice i in f[i], b[i]; sends of `send` seconds. */
static Timing timing(Schedule *s, const double *f, const double *b, double send)
{
    size_t n = (size_t)(s->P * s->v * s->k);
    Seconds *fw = NEWN(Seconds, n), *bw = NEWN(Seconds, n);
    double *sends = NEWN(double, n), *zero = NEWN(double, n), *kv = NEWN(double, n),
           *unit = NEWN(double, n);
    for (int i = 0; i < (int)n; i++) {
        fw[i].compute = f[i % s->k] * 0.75;
        fw[i].y = f[i % s->k] * 0.25;
        bw[i].compute = b[i % s->k];
        sends[i] = send;
    }
    for (int i = 0; i < s->P * s->v; i++) {
        unit[i] = 2;
        kv[i] = 1000;
    }
    return (Timing){ .schedule = s, .forward = fw, .backward = bw, .send_forward = sends,
        .send_backward = sends, .sync = zero, .update = zero, .gather = zero, .unit_bytes = unit,
        .kv_bytes = kv };
}

static Schedule shape(ScheduleKind kind, int P, int m, int k, int v)
{
    Schedule s = { .kind = kind, .P = P, .v = v, .m = m, .k = k, .b = 1 };
    s.slice = NEWN(int64_t, k);
    s.cut_bytes = NEWN(int64_t, P * v);
    for (int i = 0; i < k; i++)
        s.sequence += s.slice[i] = 10 + i;
    schedule_build(&s);
    return s;
}

static void check_parts(const Simulation *sim)
{
    double sum = 0;
    for (int i = 0; i < PARTS; i++) {
        cr_assert_geq(sim->part[i], 0);
        sum += sim->part[i];
    }
    cr_assert_float_eq(sum, sim->step_s, 1e-9 * sim->step_s);
}

/* gpipe on equal stages: m sum (f + b) + (K-1) (max f + max b), exactly. */
Test(simulate, equal_stages_are_exact)
{
    for (int round = 0; round < 500; round++) {
        int K = random_int(1, 9), m = random_int(1, 4), k = random_int(1, 8);
        double f[8], b[8], sum = 0, fmax = 0, bmax = 0;
        for (int i = 0; i < k; i++) {
            f[i] = random_s(1) + 0.01;
            b[i] = random_s(2) + 0.01;
            sum += f[i] + b[i];
            fmax = f[i] > fmax ? f[i] : fmax;
            bmax = b[i] > bmax ? b[i] : bmax;
        }
        Schedule s = shape(SCHEDULE_GPIPE, K, m, k, 1);
        Timing t = timing(&s, f, b, 0);
        Simulation sim = simulate_run(&t, false);
        cr_assert_float_eq(sim.step_s, m * sum + (K - 1) * (fmax + bmax), 1e-9,
                           "K %d m %d k %d: %.12g", K, m, k, sim.step_s);
        check_parts(&sim);
    }
}

/* One chunk, equal slices: 1f1b takes as long as gpipe and holds less. */
Test(simulate, one_forward_one_backward)
{
    double f[4] = { 1, 1, 1, 1 }, b[4] = { 2, 2, 2, 2 };
    for (int P = 1; P <= 5; P++)
        for (int k = 1; k <= 4; k++)
            for (int m = 1; m <= 7; m++) {
                Schedule s = shape(SCHEDULE_1F1B, P, m, k, 1);
                Timing t = timing(&s, f, b, 0);
                Simulation sim = simulate_run(&t, false);
                cr_assert_float_eq(sim.step_s, 3 * m * k + 3 * (P - 1), 1e-9, "P %d k %d m %d: %g",
                                   P, k, m, sim.step_s);
                check_parts(&sim);
                int units = P - 1 + k < m * k ? P - 1 + k : m * k;
                cr_assert_leq(sim.activations[0], 2.0 * units * (10 + k - 1));
                cr_assert_leq(sim.kv[0], 1000.0 * schedule_kv(&s, 0));
            }
}

/* Interleaving shortens the bubble by the number of chunks. */
Test(simulate, chunks_shorten_the_bubble)
{
    double one = 1, two = 2, half = 0.5;
    Schedule s = shape(SCHEDULE_1F1B, 4, 8, 1, 1), c = shape(SCHEDULE_1F1B, 4, 8, 1, 2);
    Timing t = timing(&s, &one, &two, 0), u = timing(&c, &half, &one, 0);
    Simulation a = simulate_run(&t, false), b = simulate_run(&u, false);
    cr_assert_float_eq(a.step_s, 24 + 9, 1e-9);
    cr_assert_float_eq(b.step_s, 24 + 4.5, 1e-9);
    cr_assert_lt(b.bubble, a.bubble);
}

/* Sends beside the compute only lengthen the way; blocking ones cost every unit. */
Test(simulate, transfers)
{
    double f = 1, b = 2;
    int P = 3, m = 5;
    Schedule s = shape(SCHEDULE_GPIPE, P, m, 1, 1);
    Timing t = timing(&s, &f, &b, 0.5);
    Simulation beside = simulate_run(&t, true);
    cr_assert_float_eq(beside.step_s, 3.0 * m + (P - 1) * (3 + 2 * 0.5), 1e-9);
    check_parts(&beside);
    t.blocking = true;
    Simulation blocks = simulate_run(&t, false);
    cr_assert_float_eq(blocks.step_s, 4.0 * m + (P - 1) * 4 - 1, 1e-9, "%g", blocks.step_s);
    check_parts(&blocks);
    /* spans of one stream never overlap, and all units are there */
    int computed = 0;
    for (int i = 0; i < beside.spans.n; i++) {
        const Span *x = &beside.spans.at[i];
        computed += x->stream == SPAN_COMPUTE && x->step.kind < STEP_SEND_ACTIVATION;
        for (int j = 0; j < i; j++) {
            const Span *y = &beside.spans.at[j];
            if (x->stage == y->stage && x->stream == y->stream)
                cr_assert(x->start >= y->end - 1e-12 || y->start >= x->end - 1e-12);
        }
    }
    cr_assert_eq(computed, 2 * P * m);
}

/* Tied matrices wait for the other end; clipping makes all updates wait. */
Test(simulate, ends_wait)
{
    double f = 1, b = 2, sync[3] = { 0, 7, 0 }, update[3] = { 1, 1, 1 };
    Schedule s = shape(SCHEDULE_1F1B, 3, 2, 1, 1);
    Timing t = timing(&s, &f, &b, 0);
    t.update = update;
    Simulation a = simulate_run(&t, false);
    cr_assert_float_eq(a.step_s, 6 + 6 + 1, 1e-9);
    t.tied = 4;
    a = simulate_run(&t, false);
    cr_assert_float_eq(a.step_s, 12 + 4 + 1, 1e-9);
    t.tied = 0;
    t.sync = sync;
    t.barrier = true;
    a = simulate_run(&t, false);
    cr_assert_float_eq(a.step_s, 12 - 2 + 7 + 1, 1e-9, "%g", a.step_s);
    check_parts(&a);
}

/* Three stages, two cores, three microbatches, forward 1 s, backward 2 s. By hand: two
 * stages at most are at work until 2 s; then all three at two thirds of their speed, 1.5 s;
 * two until 4.5 s, one until 5.5 s. Back again the same, twice as long. */
Test(simulate, stages_take_turns_on_cores)
{
    double f = 1, b = 2;
    Schedule s = shape(SCHEDULE_GPIPE, 3, 3, 1, 1);
    Timing t = timing(&s, &f, &b, 0);
    t.cores = 2;
    t.threads = 1;
    Simulation sim = simulate_run(&t, true);
    cr_assert_float_eq(sim.step_s, 5.5 + 11, 1e-9, "%.12g", sim.step_s);
    check_parts(&sim);
    for (int i = 0; i < sim.spans.n; i++)
        if (sim.spans.at[i].stage == 0 && sim.spans.at[i].step.microbatch == 2 &&
            sim.spans.at[i].step.kind == STEP_FORWARD)
            cr_assert_float_eq(sim.spans.at[i].end, 3.5, 1e-9);
    t.cores = 3;                                // enough: as without a limit
    cr_assert_float_eq(simulate_run(&t, false).step_s, 15, 1e-9);
    t.threads = 2;                              // six threads on three cores: as three on 1.5
    sim = simulate_run(&t, false);
    cr_assert_float_eq(sim.step_s, 3 * (2 * (1 + 4.0 / 3) + 2), 1e-9, "%.12g", sim.step_s);
}

/* One core and no waiting for transfers: the core is never idle, whatever the order. */
Test(simulate, one_core_does_all_the_work)
{
    for (int round = 0; round < 200; round++) {
        int P = random_int(1, 6), m = random_int(1, 5), k = random_int(1, 5);
        double f[5], b[5], sum = 0;
        for (int i = 0; i < k; i++)
            sum += (f[i] = random_s(1) + 0.01) + (b[i] = random_s(2) + 0.01);
        Schedule s = shape(round % 2 ? SCHEDULE_GPIPE : SCHEDULE_1F1B, P, m, k, 1);
        Timing t = timing(&s, f, b, 0);
        t.cores = t.threads = 1;
        Simulation sim = simulate_run(&t, true);
        cr_assert_float_eq(sim.step_s, P * m * sum, 1e-9 * P * m * sum, "P %d m %d k %d: %.12g",
                           P, m, k, sim.step_s);
        check_parts(&sim);
        t.cores = P;                            // a core each: the sum of limits is none
        double alone = simulate_run(&t, false).step_s;
        t.cores = 0;
        cr_assert_float_eq(alone, simulate_run(&t, false).step_s, 1e-9 * alone);
    }
}

/* Fewer cores never help; with blocking sends the parts still add up. */
Test(simulate, fewer_cores_take_longer)
{
    double f[2] = { 1, 0.5 }, b[2] = { 2, 1 }, update[4] = { 1, 2, 1, 3 }, last = HUGE_VAL;
    for (int cores = 1; cores <= 9; cores++) {
        Schedule s = shape(SCHEDULE_1F1B, 4, 6, 2, 1);
        Timing t = timing(&s, f, b, 0.25);
        t.update = update;
        t.barrier = true;
        t.tied = 0.5;
        t.blocking = cores % 2;
        t.threads = 2;
        t.cores = cores;
        Simulation sim = simulate_run(&t, true);
        check_parts(&sim);
        t.blocking = false;
        sim = simulate_run(&t, true);
        cr_assert_leq(sim.step_s, last + 1e-9);
        last = sim.step_s;
    }
}
