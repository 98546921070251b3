/*
 * test_estimate.c - the closed step and memory of a layout: its parts add up, its bound is
 * below every variant, `plan` says the same, the simulation nearly the same, so does the
 * list of kernels that published runs are priced with, and memory is near the block that is
 * laid out.
 */
#include <criterion/criterion.h>

#include "estimate.h"
#include "frame.h"
#include "grids.h"
#include "tune.h"

static Plan *plan_of(const char *file, const char *const *sets)
{
    return grids_open(grids_config(file, sets));
}

static void adds_up(const Estimate *e)
{
    double sum = 0;
    for (int i = 0; i < PARTS; i++) {
        cr_assert_geq(e->part[i], 0, "%s", part_word[i]);
        sum += e->part[i];
    }
    cr_assert_float_eq(sum, e->step_s, 1e-9 * e->step_s);
    cr_assert_geq(e->hfu, e->mfu);
}

Test(estimate, parts_add_up)
{
    const char *const sets[] = { NULL };
    Plan *p = plan_of("examples/terapipe/gpt3-1b-2.tcube", sets);
    Estimator *e = estimator_new(p, false);
    for (int k = 1; k <= 4; k *= 2)
        for (int again = RECOMPUTE_NONE; again <= RECOMPUTE_FULL; again++) {
            Point a = point_of(p);
            Estimate out;
            a.nslices = k;
            a.slice = NULL;
            a.microbatch = 1;
            a.recompute = again;
            cr_assert_eq(estimate_legal(e, &a), LEGAL);
            estimate(e, &a, &out);
            adds_up(&out);
        }
}

/* Every variant of a cell: chunks, slices, schedule, recompute, zero, keep. */
static int variants_above(Estimator *e, Point a, int turns)
{
    Least least = estimate_bound(e, &a);
    int n = 0;
    for (a.chunks = 1; a.chunks <= 3; a.chunks++)
        for (a.nslices = 1; a.nslices <= 8; a.nslices *= 2)
            for (int v = 0; v < 2 * 4 * 4 * 4; v++) {
                Estimate out;
                a.schedule = v % 2 ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
                a.zero = v / 2 % 4;
                a.recompute = v / 8 % 4 == 3 ? RECOMPUTE_FULL : v / 8 % 4;
                a.recompute_turns = v / 8 % 4 == 3 ? turns / a.stages / 2 : 0;
                a.keep = KEEP_BOTH + v / 32;
                if (estimate_legal(e, &a) != LEGAL)
                    continue;
                estimate(e, &a, &out);
                double bound = a.nslices > 1 ? least.seconds
                             : larger(least.seconds, least.work + least.fill / a.chunks);
                cr_assert_leq(bound, out.step_s * (1 + 1e-12), "pipeline %d, data %d, cube [%d, "
                              "%d, %d], b %d, chunks %d, %d slices, v %d: %g %g", a.stages, a.data,
                              a.x, a.y, a.z, (int)a.microbatch, a.chunks, a.nslices, v, bound,
                              out.step_s);
                n++;
            }
    return n;
}

Test(estimate, bound_is_below_every_variant)
{
    const char *const sets[] = { NULL };
    Plan *p = plan_of("examples/terapipe/gpt3-1b-2.tcube", sets);
    Estimator *e = estimator_new(p, false);
    static const int mesh[][5] = { { 2, 24, 1, 4, 1 }, { 12, 2, 1, 8, 1 }, { 8, 3, 2, 2, 2 },
                                   { 24, 1, 8, 1, 1 }, { 6, 4, 2, 4, 1 }, { 1, 12, 1, 8, 2 } };
    int n = 0;
    for (int i = 0; i < 6; i++)
        for (int64_t b = 1; b <= 4; b *= 2) {
            Point a = { .data = mesh[i][0], .stages = mesh[i][1], .chunks = 1, .x = mesh[i][2],
                        .y = mesh[i][3], .z = mesh[i][4], .microbatch = b, .nslices = 1 };
            if (p->is.batch % (a.data * b) == 0)
                n += variants_above(e, a, p->layers);
        }
    cr_assert_gt(n, 1000, "%d", n);
}

/* The layout of q from a plan of no mesh at all, which chooses what is kept. */
static void says_the_same(const Pipeline *q, Plan *other, const char *what)
{
    const Plan *p = q->plan;
    Point a = point_of(p);
    Estimate out;
    a.keep = KEEP_CHOSEN;
    other->is.workers = p->is.workers;
    estimate(estimator_new(other, false), &a, &out);
    const Estimate *is = q->closed;
    cr_assert_float_eq(out.step_s, is->step_s, 1e-12 * out.step_s, "%s: %.12g, plan %.12g",
                       what, out.step_s, is->step_s);
    for (int i = 0; i < PARTS; i++)
        cr_assert_float_eq(out.part[i], is->part[i], 1e-9 * out.step_s, "%s: %s %.12g, plan %.12g",
                           what, part_word[i], out.part[i], is->part[i]);
    int n;
    Estimator *e = estimator_new(other, false);
    const int *turns = estimate_turns(e, &a, &n);
    for (int k = 0; k < n; k++)
        cr_assert_eq(turns[k], q->section[k].turns);
}

Test(estimate, plan_says_the_same)
{
    static const char *const layout[][6] = {
        { "plan.pipeline=2", "plan.cube=[1,2,1]", "plan.data=2", "plan.microbatch=1" },
        { "plan.pipeline=3", "plan.cube=[2,1,1]", "plan.slices=uniform(2)", "plan.microbatch=2" },
        { "plan.pipeline=2", "plan.recompute=full(1)", "plan.cube=[2,1,2]", "plan.microbatch=4" },
        { "plan.pipeline=2", "plan.chunks=2", "plan.microbatch=1", "plan.recompute=attention" },
        { "plan.pipeline=2", "plan.data=2", "plan.zero=3", "plan.slices=[192,64]",
          "plan.schedule=gpipe" },
        { "plan.pipeline=2", "plan.cube=[1,4,1]", "plan.microbatch=4" },    // long chunks of logits
    };
    const char *const none[] = { NULL };
    for (int i = 0; i < 6; i++) {
        const char *sets[7] = { NULL };
        for (int k = 0; k < 6; k++)
            sets[k] = layout[i][k];
        Plan *p = grids_compile(grids_config("examples/gpt2.tcube", sets), 1);
        cr_assert_not_null(p, "layout %d", i);
        Plan *other = plan_of("examples/gpt2.tcube", none);
        says_the_same(p->pipeline, other, sets[0]);
        Point a = point_of(p);
        int last = a.stages - 1;
        double logits = estimate_memory(estimator_new(other, false), &a, last).logits;
        cr_assert_float_eq(logits, p->pipeline->memory[last].logits, 1, "layout %d: %.0f", i,
                           logits);
    }
}

/* Products of blocks, all rows of which lie in B, keep nothing and gather blocks again. */
Test(estimate, plan_of_blocks_says_the_same)
{
    static const char small[] = "tests/tune/_small.tcube";
    const char *const open[] = { "plan.partition=summa(2)", NULL };
    const char *const layout[][6] = {
        { "plan.data=2", "plan.zero=3", "plan.recompute=full(2)", open[0], "plan.cube=[1,2,2]" },
        { "plan.pipeline=2", "plan.chunks=2", "plan.microbatch=1", open[0], "plan.cube=[1,2,2]" },
    };
    for (int i = 0; i < 2; i++) {
        Pipeline *q = pipeline_plan(plan_of(small, layout[i]), false, false, false);
        says_the_same(q, tune_open(grids_config(small, open)), layout[i][0]);
        cr_assert_eq(q->closed->keep, KEEP_NONE);
    }
}

Test(estimate, near_the_simulation)
{
    static const char *const layout[][5] = {
        { "plan.pipeline=24", "plan.data=1", "plan.microbatch=1", "plan.slices=uniform(4)" },
        { "plan.pipeline=12", "plan.data=2", "plan.microbatch=2", "plan.slices=uniform(1)" },
        { "plan.pipeline=6", "plan.data=4", "plan.microbatch=1", "plan.schedule=gpipe" },
        { "plan.pipeline=3", "plan.data=8", "plan.chunks=2", "plan.microbatch=1" },
        { "plan.pipeline=8", "plan.data=3", "plan.recompute=full", "plan.microbatch=2" },
    };
    for (int i = 0; i < 5; i++) {
        const char *sets[6] = { NULL };
        for (int k = 0; k < 5; k++)
            sets[k] = layout[i][k];
        Pipeline *q = pipeline_plan(plan_of("examples/terapipe/gpt3-1b-2.tcube", sets), false,
                                    false, true);
        cr_assert_not_null(q);
        cr_assert_float_eq(q->closed->step_s / q->sim.step_s, 1, 0.05, "layout %d: %g, simulated "
                           "%g", i, q->closed->step_s, q->sim.step_s);
        adds_up(q->closed);
    }
}

/* What of the sum over data the last pass hides is the same in both. */
Test(estimate, gradients_hide_as_in_the_simulation)
{
    static const char *const layout[][4] = {
        { "plan.pipeline=1", "plan.data=24", "plan.microbatch=1" },
        { "plan.pipeline=1", "plan.data=24", "plan.zero=1", "plan.slices=uniform(2)" },
        { "plan.pipeline=3", "plan.data=8", "plan.chunks=2", "plan.microbatch=1" },
    };
    for (int i = 0; i < 3; i++) {
        const char *sets[7] = { "train.batch=96", "cluster.network=400 Gbit/s, 5 us" };
        for (int k = 0; k < 4; k++)
            sets[k + 2] = layout[i][k];
        Pipeline *q = pipeline_plan(plan_of("examples/terapipe/gpt3-1b-2.tcube", sets), false,
                                    false, true);
        cr_assert_not_null(q);
        int last = q->closed->last;
        double data = q->closed->part[PART_DATA], params = 0;
        for (int c = 0; c < q->v; c++)
            params += q->section[c * q->P + last].parameters;
        params -= q->P == 1 ? q->cost->tied : 0;
        cr_assert_float_eq(data, q->sim.part[PART_DATA], 1e-9 * data, "layout %d: %g, simulated %g",
                           i, data, q->sim.part[PART_DATA]);
        cr_assert(data > 0 && (i == 1 || data < 0.8 * cost_sync(q->cost, last, params, 0)),
                  "layout %d: %g of %g", i, data, cost_sync(q->cost, last, params, 0));
        if (q->P == 1)
            cr_assert_float_eq(q->closed->step_s, q->sim.step_s, 1e-9 * q->sim.step_s);
    }
}

/* Few microbatches in chunks over slow links: each chunk waits for the way through all stages. */
Test(estimate, chunks_wait_for_their_turn)
{
    for (int i = 0; i < 16; i++) {
        char stages[32], chunks[32];
        snprintf(stages, sizeof stages, "plan.pipeline=%d", i & 1 ? 4 : 2);
        snprintf(chunks, sizeof chunks, "plan.chunks=%d", i & 2 ? 4 : 2);
        const char *const sets[] = { stages, chunks, i & 4 ? "plan.schedule=gpipe"
                                                           : "plan.schedule=1f1b",
            i & 8 ? "train.batch=16" : "train.batch=4", "plan.microbatch=1", "model.layers=16",
            "plan.slices=uniform(1)", "cluster.nodes=1", "cluster.node=4*chip",
            i & 1 ? "plan.data=1" : "plan.data=2", "cluster.link=2 GB/s, 100 us",
            "cluster.network=2 GB/s, 100 us", "plan.cube=[1,1,1]", NULL };
        Pipeline *q = pipeline_plan(plan_of("tests/tune/_small.tcube", sets), false, false, true);
        cr_assert_not_null(q, "%d", i);
        cr_assert_float_eq(q->closed->step_s / q->sim.step_s, 1, 0.01, "%d: %g, simulated %g", i,
                           q->closed->step_s, q->sim.step_s);
    }
}

/* GPT-3 on A100, our program as another list of kernels has it (frame.c). Where layers are
 * computed again, a frame does all of it; ours leaves the last product out. */
Test(estimate, agrees_with_the_frame)
{
    static const Manner own = { .name = "own", .fused = true, .rails = true, .overlap = true,
                                .host = 5e-6, .grad = 4, .logit = 12, .update = 34 };
    static const Way ways[] = {
        { .tp = 8, .pp = 8, .vp = 1, .dp = 8, .micro = 1, .again = AGAIN_ATTENTION },
        { .tp = 8, .pp = 16, .vp = 1, .dp = 4, .micro = 2, .again = AGAIN_NONE },
        { .tp = 4, .pp = 16, .vp = 2, .dp = 8, .micro = 1, .again = AGAIN_ATTENTION },
        { .tp = 8, .pp = 1, .vp = 1, .dp = 64, .zero = 3, .micro = 24, .again = AGAIN_NONE },
        { .tp = 1, .pp = 1, .vp = 1, .dp = 512, .zero = 3, .micro = 3, .again = AGAIN_NONE },
    };
    static const int again[] = { [AGAIN_NONE] = RECOMPUTE_NONE,
                                 [AGAIN_ATTENTION] = RECOMPUTE_ATTENTION };
    const char *const sets[] = { "cluster.nodes=64", NULL };
    const Dims d = { .layers = 96, .hidden = 12288, .heads = 96, .kv_heads = 96, .ffn = 49152,
                     .seq = 2048, .vocab = 51200, .tied = true };
    Plan *p = plan_of("tests/simulate/whole.tcube", sets);
    Prices w = price_list(p);
    for (int i = 0; i < 5; i++) {
        Way l = ways[i];
        Estimate out;
        l.gpus = 512, l.batch = 1536, l.cp = 1, l.flash = true, l.sp = l.tp > 1;
        Point a = { .data = (int)l.dp, .stages = (int)l.pp, .chunks = (int)l.vp, .x = 1,
                    .y = (int)l.tp, .z = 1, .microbatch = (int64_t)l.micro, .nslices = 1,
                    .schedule = SCHEDULE_1F1B, .recompute = again[l.again], .zero = l.zero };
        cr_assert_eq(estimate_legal(estimator_new(p, false), &a), LEGAL);
        estimate(estimator_new(p, false), &a, &out);
        double other = frame_of(&w, &w, &d, &l, &own).step_s;
        cr_assert_float_eq(out.step_s / other, 1, 0.04, "layout %d: %g, as a frame %g", i,
                           out.step_s, other);
    }
}

/* The block that is laid out, with gaps and all. */
Test(estimate, memory_is_near_the_block)
{
    static const char *const layout[][7] = {
        { "plan.cube=[1,2,2]", "plan.microbatch=2", "plan.keep=both" },
        { "plan.cube=[2,2,1]", "plan.data=2", "plan.zero=1", "plan.keep=none" },
        { "plan.cube=[1,4,1]", "plan.slices=uniform(4)", "plan.keep=none" },
        { "plan.pipeline=3", "plan.cube=[1,2,1]", "plan.microbatch=1", "plan.keep=inputs" },
        { "plan.pipeline=4", "plan.cube=[2,2,1]", "plan.slices=uniform(2)", "plan.keep=both" },
        { "plan.pipeline=4", "plan.recompute=full", "plan.schedule=gpipe", "plan.microbatch=1",
          "plan.keep=none" },
        { "plan.pipeline=2", "plan.recompute=attention", "plan.cube=[1,2,1]", "plan.keep=none" },
        { "plan.pipeline=3", "plan.data=2", "plan.zero=2", "plan.microbatch=1", "plan.keep=none" },
        { "plan.pipeline=2", "plan.recompute=full(2)", "plan.microbatch=1", "plan.keep=none" },
    };
    for (int i = 0; i < 9; i++) {
        const char *sets[8] = { NULL };
        for (int k = 0; k < 7; k++)
            sets[k] = layout[i][k];
        Config *c = NEW(Config);
        *c = *grids_config("examples/gpt2.tcube", sets);
        c->any_room = true;
        Plan *p = grids_compile(c, 1);
        cr_assert_not_null(p, "layout %d", i);
        Point a = point_of(p);
        Estimator *e = estimator_new(grids_open(c), false);
        for (int r = 0; r < p->is.stages; r++) {
            double real = (double)plan_stage(p, r)->block_bytes;
            double share = estimate_memory(e, &a, r).peak / real;
            cr_assert(share > ESTIMATE_LOW && share < ESTIMATE_HIGH, "layout %d, stage %d: %.3f of %.0f",
                      i, r, share, real);
        }
    }
}
