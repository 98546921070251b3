/*
 * test_cost.c - prices against hand counts: pairs of attention, products and bytes
 * of a GPT layer, words that its collectives receive, groups on nodes, stage cuts.
 */
#include <criterion/criterion.h>

#include "grids.h"
#include "predict.h"

Test(cost, pairs_of_attention)
{
    for (int window = 0; window <= 9; window++)
        for (int l = 1; l <= 8; l++)
            for (int c = 0; c <= 8; c++) {
                Attention t = { .causal = true, .window = window };
                int n = 0;
                for (int q = c; q < c + l; q++)
                    for (int k = 0; k <= q; k++)
                        n += window == 0 || k > q - window;
                cr_assert_float_eq(price_pairs(&t, 3, l, c, 16), 3 * n, 1e-9,
                                   "window %d l %d c %d", window, l, c);
            }
    Attention all = { 0 };
    cr_assert_float_eq(price_pairs(&all, 2, 16, 0, 16), 512, 1e-9);
}

static Plan *plan_of(const char *const *sets)
{
    return grids_open(grids_config("examples/terapipe/gpt3-1b-2.tcube", sets));
}

/* One layer of H columns: 24 H^2 FLOP a token forward, twice that backward. */
Test(cost, products_of_a_layer)
{
    const char *const sets[] = { NULL };
    Cost *c = cost_new(plan_of(sets), false);
    const double H = 2048, xyz = 8, e = 2;
    cr_assert_eq(c->nturns, 24);
    for (int i = 0; i < 24; i++)
        cr_assert_eq(c->class_of[i], c->class_of[0]);
    const TurnClass *t = &c->classes.at[c->class_of[0]];
    cr_assert_float_eq(t->flops[0], 24 * H * H / xyz, 1);
    cr_assert_float_eq(t->flops[1], 48 * H * H / xyz, 1);
    // qkv and up have their biases in layout B, split over y = 8
    cr_assert_float_eq(t->parameters, 12 * H * H / xyz + 6 * H + 7 * H / 8, 1);
    cr_assert_float_eq(t->kv_bytes, 2 * H * e / xyz, 1e-6);
    // ln_1, qkv, attention, out, ln_2, up, gelu, the sum: 16 H less K and V; lse: 16 heads
    cr_assert_float_eq(t->saved_bytes[0], (14 * H + 16) * e / xyz, 1e-6, "%g",
                       t->saved_bytes[0]);
    for (int i = 0; i < 23; i++)
        cr_assert_float_eq(c->cut_width[i], H, 1e-9);
    double pairs = 0;
    for (int i = 0; i < t->terms.n; i++)
        if (t->terms.at[i].kind == TERM_ATTENTION && !t->terms.at[i].backward)
            pairs = t->terms.at[i].attention.pair_flop;
    cr_assert_float_eq(pairs, 4 * H / xyz, 1e-6);
}

/* design.md 2: V = [4TH(y-1) + 12TH(z-1) + 12H^2(x-1)] / (xyz) words, forward. */
Test(cost, words_received_of_a_layer)
{
    static const int grid[][3] = { { 1, 8, 1 }, { 2, 2, 2 }, { 4, 2, 1 }, { 1, 4, 2 },
                                   { 1, 2, 4 } };
    for (int i = 0; i < 5; i++) {
        double x = grid[i][0], y = grid[i][1], z = grid[i][2], H = 2048, e = 2;
        const char *const sets[] = { str_fmt("plan.cube=[%g,%g,%g]", x, y, z),
                                     "plan.microbatch=4", NULL };
        Cost *c = cost_new(plan_of(sets), false);
        const TurnClass *t = &c->classes.at[c->class_of[0]];
        double token = 0, fixed = 0;
        for (int k = 0; k < t->terms.n; k++)
            if (t->terms.at[k].kind == TERM_COLLECTIVE && !t->terms.at[k].backward &&
                t->terms.at[k].token_bytes * x * y * z > 100) {
                token += t->terms.at[k].token_bytes;
                fixed += t->terms.at[k].bytes;
            } else if (t->terms.at[k].kind == TERM_COLLECTIVE && !t->terms.at[k].backward)
                fixed += t->terms.at[k].bytes;
        cr_assert_float_eq(token, (4 * H * (y - 1) + 12 * H * (z - 1)) * e / (x * y * z), 1e-6,
                           "[%g, %g, %g]: %g", x, y, z, token);
        cr_assert_float_eq(fixed, 12 * H * H * (x - 1) * e / (x * y * z), 1e-3);
    }
}

/* Products of blocks, as test_counts.c counts them; a call takes as long as its block. */
Test(cost, blocks_of_a_layer)
{
    for (int q = 2; q <= 4; q += 2) {
        const double H = 2048, e = 2;
        const char *const sets[] = { str_fmt("plan.partition=summa(%d)", q),
                                     str_fmt("plan.cube=[1,%d,%d]", q, q), "plan.data=1",
                                     str_fmt("cluster.nodes=%d", 12 * q * q / 8),
                                     "plan.microbatch=4", NULL };
        Cost *c = cost_new(plan_of(sets), false);
        const TurnClass *t = &c->classes.at[c->class_of[0]];
        double token[2][2] = { { 0 } }, fixed[2][2] = { { 0 } };     // forward, backward; y, z
        for (int k = 0; k < t->terms.n; k++) {
            const Term *u = &t->terms.at[k];
            if (u->kind != TERM_COLLECTIVE || !u->rooted)
                continue;
            cr_assert_eq(u->calls, q);
            token[u->backward][u->axis - 1] += u->token_bytes;
            fixed[u->backward][u->axis - 1] += u->bytes;
        }
        cr_assert_float_eq(token[0][0], 7 * H * e / q, 1e-6);
        cr_assert_float_eq(token[1][0], 2 * 7 * H * e / q, 1e-6);
        cr_assert_float_eq(fixed[0][1], 12 * H * H * e / q, 1e-3);
        cr_assert_float_eq(fixed[1][1], 12 * H * H * (e + c->gradient) / q, 1e-3);
        cr_assert_float_eq(token[0][1] + token[1][1] + fixed[0][0] + fixed[1][0], 0, 1e-9);
        cr_assert_float_eq(t->flops[0], 24 * H * H / (q * q), 1);
        cr_assert_float_eq(t->flops[1], 48 * H * H / (q * q), 1);
    }
}

static double transfer(const Cost *c, int stage, bool forward, double bytes)
{
    return price_transfer(&c->prices, &c->mesh, stage, forward, bytes);
}

/* 8 devices a node; ports shared by the groups of the node's devices. */
Test(cost, groups_on_nodes)
{
    const char *const sets[] = { NULL };
    Plan *p = plan_of(sets);
    Prices w = price_list(p);
    Mesh m = price_mesh(p);
    Group y = price_group(&w, &m, AX_YK), data = price_group(&w, &m, AX_DATA);
    cr_assert(y.size == 8 && !y.crosses);
    const Reach *r = &w.reach;
    cr_assert_float_eq(y.rate, 125e9 * r->link[2], 1);
    cr_assert(data.size == 2 && data.crosses);
    cr_assert_float_eq(data.rate, 20e9 / 8 / 8 * r->port, 1);
    Cost *c = cost_new(p, false);
    // every stage is a node: its 8 devices share one port
    cr_assert_float_eq(transfer(c, 3, true, 1e6), r->call + 50e-6 + 8e6 / 2.5e9 / r->send, 1e-9);
    const char *const four[] = { "plan.cube=[1,4,1]", "plan.pipeline=24", NULL };
    Cost *d = cost_new(plan_of(four), false);
    // two stages a node: to stage 1 inside it, to stage 2 four devices share the port
    cr_assert_float_eq(transfer(d, 1, true, 1e6), r->call + 4e-6 + 1e6 / 125e9 / r->link[0],
                       1e-9);
    cr_assert_float_eq(transfer(d, 2, true, 1e6), r->call + 50e-6 + 4e6 / 2.5e9 / r->send, 1e-9);
    cr_assert_float_eq(transfer(d, 1, false, 1e6), r->call + 50e-6 + 4e6 / 2.5e9 / r->send, 1e-9);
}

/* Blocks of results: parts never cost less than the whole, rows of odd length cost more. */
Test(cost, products_in_blocks)
{
    Prices w = { .matrix = 312e12, .memory = 2e12, .reach = *price_reach("sm_80") };
    const Reach *r = &w.reach;
    double full = 108 * 128.0 * 128, k = 4096;      // results of one wave
    double wave = full * 2 * (k + r->deep) / (w.matrix * r->top);
    double stored = price_bytes(&w, 2 * full);
    cr_assert_float_eq(price_products(&w, 1, 128 * 12, 128 * 9, k, 2),
                       wave * (1 + r->tail) + stored, 1e-9);
    double last = 0;
    for (int m = 64; m <= 8192; m += 192) {
        double now = price_products(&w, 1, m, 3000, 1024, 2);
        cr_assert_geq(now, last);
        cr_assert_geq(price_products(&w, 1, m, 3000, 1024, 2) +
                      price_products(&w, 1, 500, 3000, 1024, 2),
                      price_products(&w, 1, m + 500, 3000, 1024, 2));
        last = now;
    }
    double even = price_products(&w, 1, 4096, 50304, 2048, 2);
    double odd = price_products(&w, 1, 4096, 50257, 2048, 2);
    cr_assert_gt(odd, 1.8 * even);
    cr_assert_str_eq(price_reach("sm_86")->arch, "sm_80");
    cr_assert_null(price_reach("none such")->arch);
    cr_assert_null(price_reach(NULL)->arch);
}

/* Small sums over many nodes go up and down a tree; large ones are as long as a ring. */
Test(cost, trees_over_nodes)
{
    Prices w = { .link = 300e9, .link_alpha = 3e-6, .port = 25e9, .port_alpha = 8e-6, .ports = 8,
                 .per_node = 8, .nodes = 64, .reach = *price_reach("sm_80") };
    Mesh m = { .size = { 1, 512, 1, 1, 1 }, .stride = { 512, 1, 1, 1, 1 }, .ranks = 512 };
    Group g = price_group(&w, &m, AX_DATA);
    double call = w.reach.call;
    cr_assert_eq(g.nodes, 64);
    cr_assert_float_eq(price_collective(&w, &g, RING_ALL, 1, 0), call + 2 * (7 * 3e-6 + 6 * 8e-6),
                       1e-12);
    cr_assert_float_eq(price_collective(&w, &g, RING_GATHER, 1, 0),
                       call + 511 * (448 * 3e-6 + 64 * 8e-6) / 512, 1e-9);
    cr_assert_float_eq(g.rate, 8 * 25e9 * w.reach.port, 1);
}

/* In pieces under the last backward pass: what it is too short for, the last piece, and what comes
 * with its end are waited for. */
Test(cost, gradients_hide)
{
    const char *const sets[] = { "plan.pipeline=4", "plan.data=6", NULL };
    Cost *c = cost_new(plan_of(sets), false);
    const Group *g = &c->groups[AX_DATA];
    double params = 40e6, bytes = 2 * params * c->gradient * 5 / 6;
    double all = price_collective(&c->prices, g, RING_ALL, 16, bytes);
    cr_assert_eq(c->is.zero, 0);
    cr_assert_float_eq(cost_sync(c, 1, params, 0), all, 1e-12);
    cr_assert_float_eq(cost_sync(c, 1, params, all / 2), all - all / 2 * 15 / 16, 1e-12);
    cr_assert_float_eq(cost_sync(c, 1, params, 2 * all), all / 16, 1e-12);
    double table = c->classes.at[c->head].parameters / params, tied = c->tied / params;
    cr_assert(table > 0.1 && tied > 0.1 && tied <= table);
    cr_assert_float_eq(cost_sync(c, 0, params, 2 * all), all * (table + (1 - table) / 16), 1e-12);
    cr_assert_float_eq(cost_sync(c, 3, params, 2 * all), all * (tied + (1 - tied) / 16), 1e-12);
    // a small sum is one piece
    cr_assert_float_eq(cost_sync(c, 1, params / 1e4, 1),
                       price_collective(&c->prices, g, RING_ALL, 1, bytes / 1e4), 1e-12);
    // each to one replica: three of each of six
    c->is.zero = 1;
    cr_assert_float_eq(cost_sync(c, 1, params, 0),
                       price_collective(&c->prices, g, RING_SUM, 18, bytes / 2), 1e-12);
    c->is.zero = 2;
    cr_assert_eq(cost_sync(c, 1, params, 0), 0);
    // cores do one after the other
    c->is.zero = 0;
    c->prices.cores = 4;
    cr_assert_float_eq(cost_sync(c, 1, params, 2 * all),
                       price_collective(&c->prices, g, RING_ALL, 1, bytes), 1e-12);
}

/* Longer slices and longer contexts never cost less; the pieces of one cost more. */
Test(cost, time_grows)
{
    const char *const sets[] = { "plan.pipeline=4", "plan.data=6", "plan.slices=uniform(4)", NULL };
    Pipeline *q = pipeline_plan(plan_of(sets), false, false, false);
    cr_assert_not_null(q);
    double last = 0, whole = 0, parts = 0;
    for (int l = 64; l <= 2048; l += 64) {
        PassCost a = pipeline_pass(q, 1, 1, l, 0), b = pipeline_pass(q, 1, 1, 64, l - 64);
        cr_assert_geq(a.forward.compute + a.forward.y, last);
        last = whole = a.forward.compute + a.forward.y;
        parts += b.forward.compute + b.forward.y;
    }
    cr_assert_geq(parts, whole * (1 - 1e-9));
    double sum = 0;
    for (int i = 0; i < PARTS; i++)
        sum += q->sim.part[i];
    cr_assert_float_eq(sum, q->sim.step_s, 1e-9 * q->sim.step_s);
}

static double dearest(int n, const double *w, double head, double tail, int s, const int *turns)
{
    double most = 0;
    for (int i = 0, at = 0; i < s; i++) {
        double sum = (i == 0 ? head : 0) + (i == s - 1 ? tail : 0);
        for (int k = 0; k < turns[i]; k++)
            sum += w[at++];
        most = sum > most ? sum : most;
    }
    cr_assert(n > 0);
    return most;
}

static double brute(int n, const double *w, double head, double tail, int s, int *turns, int at,
                    int left)
{
    if (at == s - 1) {
        turns[at] = left;
        return dearest(n, w, head, tail, s, turns);
    }
    double best = HUGE_VAL;
    for (int k = 1; k <= left - (s - 1 - at); k++) {
        turns[at] = k;
        double t = brute(n, w, head, tail, s, turns, at + 1, left - k);
        best = t < best ? t : best;
    }
    return best;
}

Test(stages, cuts_equal_brute_force)
{
    uint64_t state = 99;
    for (int round = 0; round < 300; round++) {
        double w[9], r[3];
        for (int i = 0; i < 12; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            *(i < 9 ? &w[i] : &r[i - 9]) = (double)(state >> 60) + 1;
        }
        int n = 1 + (int)(state >> 33) % 9, s = 1 + (int)(state >> 40) % n, turns[9], tmp[9];
        stages_cut(n, w, r[0], r[1], s, turns);
        int sum = 0;
        for (int i = 0; i < s; i++) {
            cr_assert_geq(turns[i], 1);
            sum += turns[i];
        }
        cr_assert_eq(sum, n);
        cr_assert_float_eq(dearest(n, w, r[0], r[1], s, turns),
                           brute(n, w, r[0], r[1], s, tmp, 0, n), 1e-9);
    }
}

/* Turns that cost the same, by their quick way: dearest and squares as over all cuts. */
Test(stages, even_cuts_equal_brute_force)
{
    uint64_t state = 7;
    for (int round = 0; round < 300; round++) {
        double w[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 }, r[2];
        for (int i = 0; i < 2; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            r[i] = (double)(state >> 60) / 4;
        }
        int n = 1 + (int)(state >> 33) % 9, s = 1 + (int)(state >> 40) % n, turns[9], tmp[9];
        int other[9];
        stages_even(n, 1, r[0], r[1], s, turns);
        cr_assert_float_eq(dearest(n, w, r[0], r[1], s, turns),
                           brute(n, w, r[0], r[1], s, tmp, 0, n), 1e-9);
        w[0] += 1e-14;                          // no longer even: the programme
        stages_cut(n, w, r[0], r[1], s, other);
        for (int i = 0; i < s; i++)
            cr_assert_eq(turns[i], other[i], "%d turns, %d sections, ends %g %g", n, s, r[0], r[1]);
    }
}

Test(stages, even_and_uneven)
{
    double w[96];
    int turns[40];
    for (int i = 0; i < 96; i++)
        w[i] = 1;
    stages_cut(96, w, 0, 0, 40, turns);         // 16 of 3, then 24 of 2
    for (int i = 0; i < 40; i++)
        cr_assert_eq(turns[i], i < 16 ? 3 : 2);
    stages_cut(12, w, 0, 2.5, 4, turns);        // the head weighs as much as some turns
    cr_assert(turns[3] < turns[0]);
    cr_assert_eq(turns[0] + turns[1] + turns[2] + turns[3], 12);
}
