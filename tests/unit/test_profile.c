/*
 * test_profile.c - the file of measured rates: what is written is read again, and nothing
 * that was damaged is; figures between the measured ones; fits that find what made them.
 */
#include <criterion/criterion.h>

#include "predict.h"
#include "profile.h"

/* Rates that follow a formula: FLOP/s of a product = m^0.5 n^0.1 k^0.2 * 1e8. */
static double rate_of(double m, double n, double k)
{
    return 1e8 * pow(m, 0.5) * pow(n, 0.1) * pow(k, 0.2);
}

static Profile made_up(void)
{
    static const double side[4] = { 4, 32, 128, 1024 };
    Profile p = { .cpu = "Made Up 9000", .isa = "none", .blas = "a BLAS", .cores = 4,
                  .memory = 1e9, .load = 0.25, .step = { 1e-7, 1e-6 } };
    for (int form = 0; form < FORMS; form++) {
        ProductGrid *g = &p.product[0][form];
        g->nm = g->nn = g->nk = 4;
        for (int i = 0; i < 4; i++)
            g->m[i] = g->n[i] = g->k[i] = side[i];
        for (int busy = 0; busy < 2; busy++) {
            g->flops[busy] = NEWN(double, 64);
            for (int i = 0; i < 64; i++)
                g->flops[busy][i] = rate_of(side[i / 16], side[i / 4 % 4], side[i % 4]) /
                                    (1 + busy + form);
        }
    }
    vec_add(&p.streams, ((StreamRate){ 1e5, { 4e10, 2e10 } }));
    vec_add(&p.streams, ((StreamRate){ 1e7, { 1e10, 5e9 } }));
    for (int kind = 0; kind < RINGS; kind++) {
        RingRate r = { .kind = (RingKind)kind, .group = 4, .ranks = 8 };
        for (double b = 1e3; b < 1e7; b *= 10)
            vec_add(&r.points, ((RingPoint){ b, 3e-6 + b / 4e9 }));
        ring_fit(&r);
        vec_add(&p.rings, r);
    }
    TurnRate t = { .name = "h.0.attn", .heads = 12, .kv_heads = 4, .hd = 64 };
    for (double l = 16; l <= 256; l *= 2)
        for (double c = 0; c + l <= 512; c += 64) {
            TurnPoint q = { l, c, { 0 }, { 1e-5 * l, 2e-5 * l } };
            for (int side_ = 0; side_ < 2; side_++)
                q.attention[side_] = (1 + side_) * (1e-8 * l * l + 2e-6 * l +
                    (c > 0 ? 1e-6 + 1e-8 * l + 2e-8 * c + 3e-9 * l * c : 0));
            vec_add(&t.points, q);
        }
    turn_fit(&t);
    vec_add(&p.turns, t);
    return p;
}

Test(profile, what_is_written_is_read)
{
    Profile p = made_up();
    Text a = { 0 }, b = { 0 };
    const char *why;
    profile_text(&p, &a);
    Profile *q = profile_parse(a.at, a.n, &why);
    cr_assert_not_null(q, "%s", why);
    profile_text(q, &b);
    cr_assert_str_eq(a.at, b.at);
    cr_assert_eq(q->turns.at[0].points.n, p.turns.at[0].points.n);
}

Test(profile, nothing_damaged_is_read)
{
    Profile p = made_up();
    Text a = { 0 };
    const char *why;
    uint64_t state = 7;
    profile_text(&p, &a);
    for (size_t n = 0; n < a.n; n++) {
        char *part = malloc(n ? n : 1);         // a read behind its end is found
        memcpy(part, a.at, n);
        cr_assert_null(profile_parse(part, n, &why), "cut after %zu of %zu bytes", n, a.n);
        free(part);
    }
    for (int round = 0; round < 3000; round++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)(state >> 33) % a.n;
        char old = a.at[at];
        a.at[at] = (char)(state >> 25);
        Profile *q = profile_parse(a.at, a.n, &why);
        cr_assert((q == NULL) == (a.at[at] != old), "byte %zu: %d for %d", at, a.at[at], old);
        a.at[at] = old;
    }
}

/* With the right checksum too, nonsense is refused. */
Test(profile, every_line_is_checked)
{
    static const char *const change[][3] = {
        { "cores 4", "cores 0", "line 3: 0 makes no sense for `cores`" },
        { "cores 4", "cores four", "line 3: `four` is no number" },
        { "cores 4", "cores 4 5", "line 3: `cores` needs 1 values, not 2" },
        { "cores 4\n", "", "it has no number of cores" },
        { "cores", "gores", "line 3: `gores` is unknown" },
        { "isa none", "isa", "line 4: `isa` has no value" },
        { "step 1e-07", "step nan", "line 8: `nan` is no number" },
        { "product fp32 nn", "product fp33 nn", "line 9: `fp33` is unknown to `product`" },
        { "product fp32 nn", "product fp32 xx", "line 9: `xx` is unknown to `product`" },
        { "turn fp32", "turn_point 1 2 3 4 5 6\nturn fp32",
          "line 415: `turn_point` stands before any `turn`" },
        { "turn_fit forward", "turn_fit backward", "its last turn has no fit" },
    };
    Profile p = made_up();
    const char *why;
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        Text a = { 0 }, b = { 0 };
        profile_text(&p, &a);
        char *at = strstr(a.at, change[i][0]);
        cr_assert_not_null(at);
        *strstr(a.at, "checksum") = 0;
        text_add(&b, "%.*s%s%s", (int)(at - a.at), a.at, change[i][1],
                 at + strlen(change[i][0]));
        text_add(&b, "checksum %016" PRIx64 "\n", hash_bytes(b.at, b.n, 0));
        cr_assert_null(profile_parse(b.at, b.n, &why), "%s", change[i][1]);
        cr_assert_str_eq(why, change[i][2]);
    }
}

Test(profile, between_the_points)
{
    Profile p = made_up();
    /* a power law is met everywhere on the grid */
    for (double m = 4; m <= 1024; m *= 1.7)
        for (double k = 4; k <= 1024; k *= 2.3) {
            double s = profile_product(&p, false, FORM_NN, m, 50, k, 1);
            cr_assert_float_eq(s * rate_of(m, 50, k), 2 * m * 50 * k, 1e-6 * m * 50 * k);
        }
    double one = profile_product(&p, false, FORM_NN, 64, 64, 64, 1);
    cr_assert_float_eq(profile_product(&p, false, FORM_NN, 64, 64, 64, 4), 2 * one, 1e-9 * one);
    cr_assert_float_eq(profile_product(&p, false, FORM_NN, 64, 64, 64, 9), 2 * one, 1e-9 * one);
    cr_assert_float_eq(profile_product(&p, false, FORM_NN, 64, 64, 64, 2), sqrt(2) * one,
                       1e-9 * one);
    cr_assert_float_eq(profile_product(&p, false, FORM_TN, 64, 64, 64, 1), 3 * one, 1e-9 * one);
    /* beyond the last size the rate stays, below the first one the time */
    cr_assert_float_eq(profile_product(&p, false, FORM_NN, 1024, 1024, 4096, 1),
                       4 * profile_product(&p, false, FORM_NN, 1024, 1024, 1024, 1), 1e-9);
    cr_assert_float_eq(profile_product(&p, false, FORM_NN, 1, 1, 1, 1),
                       profile_product(&p, false, FORM_NN, 4, 4, 4, 1), 1e-15);
    /* fp64 was not measured: half of fp32 */
    cr_assert_float_eq(profile_product(&p, true, FORM_NN, 64, 64, 64, 1), 2 * one, 1e-9 * one);
    cr_assert_float_eq(profile_stream(&p, 1e6, 1), 1e6 / 2e10, 1e-12);
    cr_assert_float_eq(profile_stream(&p, 1e9, 4), 1e9 / 5e9, 1e-9);
}

Test(profile, fits)
{
    Profile p = made_up();
    double alpha, rate;
    for (int kind = 0; kind < RINGS; kind++) {
        cr_assert_float_eq(p.rings.at[kind].alpha, 3e-6, 0.02 * 3e-6);
        cr_assert_float_eq(p.rings.at[kind].rate, 4e9, 0.02 * 4e9);
    }
    /* 8 ranks took turns on 4 cores: of a core's own time a call costs half */
    cr_assert(profile_ring(&p, RING_SUM, 4, 8, &alpha, &rate));
    cr_assert_float_eq(alpha, 1.5e-6, 0.02 * 1.5e-6);
    cr_assert_float_eq(rate, 8e9, 0.02 * 8e9);
    const TurnRate *t = profile_turn(&p, false, 64, 3);
    cr_assert_not_null(t);
    cr_assert_null(profile_turn(&p, false, 64, 1));
    cr_assert_null(profile_turn(&p, true, 64, 3));
    for (int side = 0; side < 2; side++) {
        cr_assert_float_eq(t->fit[side][0], (1 + side) * 1e-6, 1e-10);
        cr_assert_float_eq(t->fit[side][1], (1 + side) * 1e-8, 1e-12);
        cr_assert_float_eq(t->fit[side][2], (1 + side) * 2e-8, 1e-12);
        cr_assert_float_eq(t->fit[side][3], (1 + side) * 3e-9, 1e-13);
        cr_assert_lt(t->worst[side], 1e-6);
        const TurnPoint *q = &t->points.at[t->points.n - 1];
        cr_assert_float_eq(profile_attention(t, side, q->l, q->c) * 12, q->attention[side],
                           1e-6 * q->attention[side]);
    }
}
