/*
 * test_print.c - what the printers compute: names without turns, bytes of
 * collectives (each worked out by hand), memory at the peak.
 */
#include <criterion/criterion.h>

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
    // heads for tokens among x*z = 4: 3/4 of 160
    cr_assert_float_eq(received(COLL_ALL_TO_ALL, A2A_HEADS, AX_X | AX_Z, 0, 0), 120, 1e-9);
    // y thirds meet z halves: overlaps 1/3, 1/6, 1/6, 1/3, squares 5/18 together
    cr_assert_float_eq(received(COLL_ALL_TO_ALL, A2A_AB, AX_YK | AX_Z, 0, 0), 160 * 13 / 18.0,
                       1e-9);
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
