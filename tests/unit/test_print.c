/*
 * test_print.c - what the printers compute: names without turns, bytes of
 * collectives (each worked out by hand), how often a step calls them, what fills the
 * block, columns of tables.
 */
#include <criterion/criterion.h>

#include "grids.h"
#include "print.h"

Test(print, names_lose_their_turn)
{
    cr_assert_str_eq(print_turnless("h.3.attn.c_attn", 3), "h.*.attn.c_attn");
    cr_assert_str_eq(print_turnless("h.1.ln_1", 1), "h.*.ln_1");
    cr_assert_str_eq(print_turnless("layer12.mlp", 12), "layer*.mlp");
    cr_assert_str_eq(print_turnless("h.3.q+h.3.k: X", 3), "h.*.q+h.*.k: X");
    cr_assert_str_eq(print_turnless("h.13.ln_1", 3), "h.13.ln_1");
    cr_assert_str_eq(print_turnless("h.3.ln_1", NONE), "h.*.ln_1");
    cr_assert_str_eq(print_turnless("ln_1", NONE), "ln_1");
}

/* Grid 2 x 3 x 2 of fp32; value 0 is [10, 4], value 1 is [5, 4]. */
static Plan plan_of_two(void)
{
    Plan p = { 0 };
    p.is = (Choices){ .data = 1, .stages = 1, .x = 2, .y = 3, .z = 2, .precision = PREC_FP32 };
    for (int i = 0; i < 2; i++) {
        Value v = { .tensor = NONE, .buffer = NONE, .unit = NONE, .rows = i ? 5 : 10, .cols = 4 };
        vec_add(&p.values, v);
    }
    return p;
}

static double received(CollKind kind, A2aKind a2a, Axes axes, ValueId in, ValueId out)
{
    Plan p = plan_of_two();
    Inst i = { .kind = I_COLL, .coll = kind, .a2a = a2a, .axes = axes, .rep = 1,
               .nin = 1, .nout = 1, .in = &in, .out = &out };
    return print_received(&p, &i);
}

Test(print, bytes_received)
{
    // 160 bytes from each of the two others of y
    cr_assert_float_eq(received(COLL_ALL_GATHER, 0, AX_YK, 0, 0), 320, 1e-9);
    // the half of 80 bytes that is kept, from one other of z
    cr_assert_float_eq(received(COLL_REDUCE_SCATTER, 0, AX_Z, 0, 1), 80, 1e-9);
    // twice 2/3 of 160
    cr_assert_float_eq(received(COLL_ALL_REDUCE, 0, AX_YK, 0, 0), 4 * 160 / 3.0, 1e-9);
    // 160 bytes for each of three members but the one that has them; sums the other way
    cr_assert_float_eq(received(COLL_BROADCAST, 0, AX_YK, 0, 0), 2 * 160 / 3.0, 1e-9);
    cr_assert_float_eq(received(COLL_REDUCE, 0, AX_YK, 0, 0), 2 * 160 / 3.0, 1e-9);
    // heads for tokens among x*z = 4: 3/4 of 160
    cr_assert_float_eq(received(COLL_ALL_TO_ALL, A2A_HEADS, AX_X | AX_Z, 0, 0), 120, 1e-9);
    // y thirds meet z halves: overlaps 1/3, 1/6, 1/6, 1/3, squares 5/18 together
    cr_assert_float_eq(received(COLL_ALL_TO_ALL, A2A_AB, AX_YK | AX_Z, 0, 0), 160 * 13 / 18.0,
                       1e-9);
}

Test(print, bytes_sent_and_received)
{
    Plan p = plan_of_two();
    ValueId v = 0;
    Inst send = { .kind = I_COLL, .coll = COLL_SEND, .rep = 1, .nin = 1, .in = &v };
    Inst recv = { .kind = I_COLL, .coll = COLL_RECV, .rep = 1, .nout = 1, .out = &v };
    cr_assert_float_eq(print_received(&p, &send), 160, 1e-9);
    cr_assert_float_eq(print_received(&p, &recv), 160, 1e-9);
    cr_assert_eq(print_group(&p, &send), 2);
    // a sum over stages 0 and 5
    Inst sum = { .kind = I_COLL, .coll = COLL_ALL_REDUCE, .axes = AX_STAGE, .stages = 33, .rep = 1,
                 .nin = 1, .nout = 1, .in = &v, .out = &v };
    cr_assert_eq(print_group(&p, &sum), 2);
    cr_assert_float_eq(print_received(&p, &sum), 160, 1e-9);
}

Test(print, peak_is_the_largest_sum_alive)
{
    Plan p = plan_of_two();
    Inst i = { .kind = I_ZERO };
    for (int k = 0; k < 3; k++)
        vec_add(&p.insts, i);
    Buffer b[] = {
        { .class = BUF_PARAMS, .elements = 16, .first = 0, .last = 2, .persistent = true },
        { .class = BUF_WORK, .elements = 32, .first = 0, .last = 1 },
        { .class = BUF_ACTIVATION, .elements = 16, .first = 1, .last = 2 },
    };
    for (int k = 0; k < 3; k++)
        vec_add(&p.buffers, b[k]);
    Peak peak = print_peak(&p);
    cr_assert_eq(peak.at, 1);
    cr_assert_eq(peak.sum, 64 + 128 + 64);
    cr_assert_eq(peak.bytes[BUF_WORK], 128);
}

/* ---- pipelines: examples/tiny has 2 turns of width 128, 8 sequences of 64 tokens ------ */

static Plan *tiny(const char *a, const char *b, const char *c, const char *d)
{
    const char *const sets[] = { a, b, c, d, NULL };
    Plan *p = grids_compile(grids_config("examples/tiny.tcube", sets), 1);
    cr_assert_not_null(p);
    return p;
}

static const Traffic *find_traffic(const Traffics *all, CollKind kind, Phase phase)
{
    for (int i = 0; i < all->n; i++)
        if (all->at[i].inst->coll == kind && all->at[i].inst->phase == phase)
            return &all->at[i];
    cr_assert_fail("no %s", coll_word[kind]);
    return NULL;
}

Test(print, a_step_calls_functions_for_every_unit)
{
    Plan *p = tiny("plan.pipeline=2", "plan.microbatch=2", "plan.slices=[16,48]",
                   "plan.turns=[1,1]");
    for (int r = 0; r < 2; r++) {
        const Plan *s = plan_stage(p, r);
        const int *calls = print_counts(s);
        for (int k = 0; k < s->funcs.n; k++)
            for (int i = s->funcs.at[k].first; i < s->funcs.at[k].end; i++)
                cr_assert_eq(calls[i], s->funcs.at[k].kind < STEP_SYNC ? 4 : 1);
    }
    // one tensor of width 128 crosses the cut: 2 sequences of 16 and of 48 tokens, 4 bytes each
    Traffics all = print_traffic(p, false);
    const Traffic *t = find_traffic(&all, COLL_SEND, PHASE_FORWARD);
    cr_assert_eq(t->calls, 8);
    cr_assert_float_eq(t->bytes, 2 * 16 * 128 * 4, 1e-9);
    cr_assert_float_eq(t->most, 2 * 48 * 128 * 4, 1e-9);
    cr_assert_float_eq(t->sum, 8 * 64 * 128 * 4, 1e-9);
    t = find_traffic(&all, COLL_RECV, PHASE_BACKWARD);
    cr_assert_float_eq(t->sum, 8 * 64 * 128 * 4, 1e-9);
    // both ends use the table of 256 bytes
    t = find_traffic(&all, COLL_ALL_REDUCE, PHASE_SYNC);
    cr_assert_eq(t->calls, 1);
    cr_assert_eq(t->size, 2);
    cr_assert_float_eq(t->sum, 256 * 128 * 4, 1e-9);
    all = print_traffic(p, true);
    t = find_traffic(&all, COLL_SEND, PHASE_FORWARD);
    cr_assert_eq(t->calls, 4);
    cr_assert_float_eq(t->bytes, t->most, 1e-9);
}

static void check_peak(const Plan *s, bool sliced)
{
    Peak peak = print_peak(s);
    int64_t sum = peak.keys_values, persistent = 0;
    for (int c = 0; c < BUF_CLASSES; c++)
        sum += peak.bytes[c];
    for (int i = 0; i < PERSISTENT; i++)
        persistent += buffer_bytes(s, &s->buffers.at[i]);
    cr_assert_eq(sum, peak.sum);
    cr_assert_eq(peak.bytes[BUF_PARAMS] + peak.bytes[BUF_GRADS] + peak.bytes[BUF_MOMENTS],
                 persistent);
    cr_assert_leq(peak.sum, s->block_bytes);
    cr_assert_gt(peak.sum, s->block_bytes / 10 * 8, "stage %d: %" PRId64 " of %" PRId64
                 " bytes have no class", s->stage, s->block_bytes - peak.sum, s->block_bytes);
    cr_assert_eq(peak.keys_values > 0, sliced);
}

Test(print, classes_fill_the_block)
{
    static const char *const way[][2] = {
        { "plan.schedule=gpipe", "plan.recompute=none" },
        { "plan.schedule=1f1b", "plan.recompute=full" },
        { "plan.zero=3", "plan.data=2" }, { "plan.cube=[2,1,2]", "plan.recompute=attention" },
    };
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            Plan *p = tiny(k ? "plan.slices=[16,48]" : "plan.slices=uniform(1)", "plan.pipeline=2",
                           way[i][0], way[i][1]);
            for (int r = 0; r < 2; r++)
                check_peak(plan_stage(p, r), k);
            check_peak(tiny("plan.microbatch=4", "plan.pipeline=1", way[i][0], way[i][1]), false);
        }
}

Test(print, the_other_schedule)
{
    Plan *p = tiny("plan.pipeline=2", "plan.microbatch=1", "plan.slices=uniform(1)",
                   "plan.schedule=1f1b");
    Plan *g = tiny("plan.pipeline=2", "plan.microbatch=1", "plan.slices=uniform(1)",
                   "plan.schedule=gpipe");
    for (int r = 0; r < 2; r++) {
        int64_t block = plan_stage(p, r)->block_bytes, other = plan_stage(g, r)->block_bytes;
        cr_assert_eq(print_block_under(p, r, SCHEDULE_1F1B), block);
        cr_assert_eq(print_block_under(p, r, SCHEDULE_GPIPE), other);
        cr_assert_eq(plan_stage(p, r)->block_bytes, block);
        cr_assert_lt(block, other);
        cr_assert_eq(print_peak(plan_stage(g, r)).units, 8);
    }
}

/* ---- tables --------------------------------------------------------------------------- */

Test(print, tables)
{
    char text[400] = "";
    Table t = { .align = "llr" };
    static const char *const cell[] = { "stage", "silent", "bytes", "0", "-", "5", "1", "-", "12",
                                        "2", "-", "12", "3", "-", "12", "4", "-", "5" };
    for (int i = 0; i < 18; i++)
        table_cell(&t, "%s", cell[i]);
    table_join(&t);
    FILE *f = fmemopen(text, sizeof text, "w");
    table_print(&t, f);
    fclose(f);
    cr_assert_str_eq(text, "  stage  bytes\n"
                           "  0          5\n"
                           "  1-3       12\n"
                           "  4          5\n");
}

Test(print, plural)
{
    cr_assert_str_eq(plural(1, "microbatch"), "1 microbatch");
    cr_assert_str_eq(plural(2, "microbatch"), "2 microbatches");
    cr_assert_str_eq(plural(0, "rank"), "0 ranks");
    cr_assert_str_eq(plural(3, "entry"), "3 entries");
}
