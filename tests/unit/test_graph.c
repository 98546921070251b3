/*
 * test_graph.c - what the graph holds: names of parameters, turns, operators
 * shared and removed, fused linears. Messages are tested in tests/graph.
 */
#include <criterion/criterion.h>

#include "interpret.h"

static int count_ops(const Plan *p, OpKind kind, Phase phase)
{
    int n = 0;
    for (int i = 0; i < p->ops.n; i++)
        n += p->ops.at[i].kind == kind && p->ops.at[i].phase == phase;
    return n;
}

static const Param *param(const Plan *p, const char *name)
{
    for (int i = 0; i < p->params.n; i++)
        if (strcmp(p->params.at[i].name, name) == 0)
            return &p->params.at[i];
    cr_assert_fail("no parameter %s", name);
    return NULL;
}

Test(graph, names_of_parameters)
{
    const Plan *p = unit_plan(
        "fn outer(x; g=2) = layernorm(x * g) + layernorm(x, name=\"in\")\n"
        "---\n"
        "block mlp(x) { return linear(relu(linear(x, 8, name=\"up\")), 8) }\n"
        "block layer(x) { return mlp(x) + outer(x) + linear(x, 8, bias=no) }\n"
        "x = embed(tokens, 11, 8) + embed(positions, 8, 8, name=\"wpe\")\n"
        "repeat i in 2 { x = layer(x, name=\"h.{i}\") }\n"
        "x = layer(x, name=\"{2 * 1.5}\")\n"
        "x = layer(x)\n"
        "x = linear(outer(x, name=\"o\"), 8, name=\"\")\n"
        "loss = cross_entropy(linear(x, 11), targets)", 2, 8, false);
    static const char *const names[] = {
        "embed.1.weight", "wpe.weight", "h.0.mlp.1.up.weight", "h.0.mlp.1.up.bias",
        "h.0.mlp.1.linear.1.weight", "h.0.mlp.1.linear.1.bias", "h.0.outer.1.g",
        "h.0.outer.1.layernorm.weight", "h.0.outer.1.layernorm.bias", "h.0.outer.1.in.weight",
        "h.0.outer.1.in.bias", "h.0.linear.1.weight"
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cr_expect_str_eq(p->params.at[i].name, names[i]);
    cr_expect_eq(param(p, "h.1.mlp.1.up.weight")->turn, 1);
    cr_expect_eq(param(p, "3.linear.1.weight")->turn, NONE);
    cr_expect_eq(param(p, "layer.1.outer.1.g")->init_a, 2);
    cr_expect_eq(param(p, "o.in.weight")->width, 8);
    cr_expect_eq(param(p, "weight")->rows, 8);
    cr_expect(param(p, "linear.1.weight")->decay && !param(p, "linear.1.bias")->decay);
}

Test(graph, turns_and_zones)
{
    const Plan *p = unit_plan(
        "block twice(x) { repeat k in 2 { x = tanh(x) } return x }\n"
        "x = twice(embed(tokens, 11, 8))\n"
        "repeat i in 2 { repeat j in 2 { x = exp(x) } }\n"
        "x = sin(x)\n"
        "repeat i in 3 { x = cos(x) }\n"
        "loss = cross_entropy(linear(x, 11), targets)", 2, 8, false);
    cr_assert_eq(p->nrepeats, 2);
    cr_expect_eq(p->turns[0], 2);
    cr_expect_eq(p->turns[1], 3);
    cr_expect_eq(p->layers, 5);
    int zone = 0;
    for (int i = 0; i < p->nforward; i++) {
        const Op *op = &p->ops.at[i];
        int repeat = op->kind == OP_EXP ? 0 : op->kind == OP_COS ? 1 : NONE;
        cr_expect_eq(op->repeat, repeat, "%s", op->name);
        cr_expect((op->turn == NONE) == (repeat == NONE));
        cr_expect(op->zone >= zone);
        zone = op->zone;
    }
    for (int i = p->nforward; i < p->ops.n; i++) {      // gradients in reverse
        const Op *op = &p->ops.at[i];
        cr_expect(op->zone <= zone);
        zone = op->zone;
        if (op->of != NONE)
            cr_expect_eq(op->turn, p->ops.at[op->of].turn);
    }
}

Test(graph, equal_row_operators_are_one)
{
    const Plan *p = unit_plan(
        "x = embed(tokens, 11, 8)\n"
        "y = layernorm(x, name=\"a\") + layernorm(x, name=\"b\") * 2\n"
        "repeat i in 2 { y = y + silu(x) }\n"
        "loss = cross_entropy(linear(y, 11), targets)", 2, 8, false);
    cr_expect_eq(count_ops(p, OP_VAR, PHASE_FORWARD), 1);
    cr_expect_eq(count_ops(p, OP_RSQRT, PHASE_FORWARD), 1);
    cr_expect_eq(count_ops(p, OP_SIGMOID, PHASE_FORWARD), 2);   // not across turns
    int sums = 0;       // of x itself: the gradient of var reads the forward mean
    for (int i = 0; i < p->ops.n; i++)
        sums += p->ops.at[i].kind == OP_SUM && p->ops.at[i].in[0] == p->ops.at[0].out[0];
    cr_expect_eq(sums, 1);
}

Test(graph, what_misses_the_loss_is_removed)
{
    const Plan *p = unit_plan(
        "x = embed(tokens, 11, 8)\n"
        "y = tanh(linear(x, 8, name=\"side\"))\n"
        "other = cross_entropy(linear(y, 11, name=\"head2\"), targets)\n"
        "loss = cross_entropy(linear(x, 11), targets)", 2, 8, false);
    cr_expect_eq(count_ops(p, OP_TANH, PHASE_FORWARD), 0);
    cr_expect_eq(count_ops(p, OP_CE, PHASE_FORWARD), 1);
    cr_expect_eq(p->params.n, 3);
    for (int i = 0; i < p->params.n; i++) {
        cr_expect_eq(p->tensors.at[p->params.at[i].tensor].param, i);
        cr_expect_eq(p->tensors.at[p->params.at[i].grad].param, i);
    }
    cr_expect_eq(diag_nwarnings(), 2);      // one per place: the linear and the head
    for (int i = 0; i < p->tensors.n; i++) {
        OpId def = p->tensors.at[i].def;
        if (def != NONE && p->tensors.at[i].kind == T_ROWS)
            cr_expect_eq(p->ops.at[def].out[0], i);
    }
}

Test(graph, numbers)
{
    const Plan *p = unit_plan(
        "a = 2^3^2 / 2^8; b = -2^2 + 7 % 4; c = [4096, 0][3 % 2]; d = floor(2.7) + ceil(0.2)\n"
        "x = embed(tokens, 10 + a - b + c, 8/3 * 12)\n"
        "x = linear(x, maximum(sqrt(16), exp(log(3))) * d)\n"
        "loss = cross_entropy(linear(x, 11), targets)", 2, 8, false);
    cr_expect_eq(param(p, "embed.1.weight")->rows, 13);
    cr_expect_eq(param(p, "embed.1.weight")->width, 32);
    cr_expect_eq(param(p, "linear.1.weight")->width, 12);
    cr_expect_eq(p->vocab, 11);
    cr_expect_eq(p->token_limit, 11);
}

Test(graph, linears_of_one_input_are_fused)
{
    const Plan *p = unit_plan(
        "x = embed(tokens, 11, 8, name=\"wte\")\n"
        "repeat i in 2 {\n"
        "    q = linear(x, 8, bias=no, name=\"h.{i}.q\"); k = linear(x, 4, name=\"h.{i}.k\")\n"
        "    k = tanh(k); v = linear(k, 4, name=\"h.{i}.v\"); o = linear(x, 4, name=\"h.{i}.o\")\n"
        "    x = attention(q, k, v + o, heads=2, kv_heads=1)\n"
        "}\n"
        "t = linear(x, 8, name=\"t\"); u = linear(x, 8, tie=\"t\", name=\"u\")\n"
        "y = linear(x, 8, name=\"y\")\n"
        "loss = cross_entropy(linear(t + u + y, 11, tie=\"wte\"), targets)", 2, 8, true);
    int merged = 0;
    for (int i = 0; i < p->nforward; i++) {
        const Op *op = &p->ops.at[i];
        if (op->kind != OP_LINEAR || op->nin == 2)
            continue;
        cr_expect_str_eq(op->name, str_fmt("h.%d.q+k+o", op->turn));
        cr_expect_eq(p->tensors.at[op->out[0]].width, 16);
        cr_expect_eq(p->ops.at[i + 1].kind, OP_SPLIT);
        cr_expect_eq(p->ops.at[i + 1].nout, 3);
        merged++;
    }
    cr_expect_eq(merged, 2);
    cr_expect_eq(count_ops(p, OP_LINEAR, PHASE_FORWARD), 2 * 2 + 4);
    for (int i = 0; i < p->ops.n; i++)
        for (int k = 0; k < p->ops.at[i].nin; k++) {
            OpId def = p->tensors.at[p->ops.at[i].in[k]].def;
            cr_expect(def < i, "%s reads what comes later", p->ops.at[i].name);
        }
}

Test(graph, scopes)
{
    const Plan *p = unit_plan(
        "n = 2; w = 3\n"
        "block b(x) { repeat i in 3 { n = n + 1; m = n } w = n; return linear(x, w) }\n"
        "x = b(embed(tokens, 11, n))\n"     // 2 + 3 = 5 wide, and n is still 2 here
        "repeat i in 2 { n = n * 2; i = 7 }\n"
        "x = b(linear(x, n))\n"             // n = 8
        "loss = cross_entropy(linear(x, w), targets)", 2, 8, false);
    cr_expect_eq(param(p, "embed.1.weight")->width, 2);
    cr_expect_eq(param(p, "b.1.linear.1.weight")->width, 5);
    cr_expect_eq(param(p, "linear.1.weight")->width, 8);
    cr_expect_eq(param(p, "b.2.linear.1.weight")->width, 11);
    cr_expect_eq(p->vocab, 3);
}

Test(graph, large_tables_and_no_loops)
{
    const Plan *p = unit_plan(
        "x = embed(tokens, 2^20, 2^12)\n"
        "repeat i in 0 { x = tanh(x) }\n"
        "loss = cross_entropy(linear(x, 2^20, tie=\"embed.1\", bias=no), targets)", 2, 8, true);
    cr_expect_eq(p->turns[0], 0);
    cr_expect_eq(p->nforward, 3);
    cr_expect(p->ops.at[1].transposed);
}
