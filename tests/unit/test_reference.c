/*
 * test_reference.c - the reference against central differences, and the
 * compiler's gradients against the reference, for every operator.
 *
 * Each model below is small and has random weights. The loss of the reference
 * is differentiated numerically in a few elements of every parameter; then the
 * plan's whole list of operators is run by tests/unit/interpret.c, with linears
 * fused and not, and must give the reference's loss and gradients to 1e-12.
 */
#include <criterion/criterion.h>

#include "interpret.h"
#include "random.h"

enum { B = 2, S = 6, V = 11 };

static const struct { const char *name, *text; } models[] = {
    { "linear",
      "x = embed(tokens, 11, 5) + embed(positions, 6, 5, init=uniform(1))\n"
      "x = linear(x, 7, stored=in_out)\n"
      "loss = cross_entropy(linear(x, 11, init=normal(1), bias=no), targets)" },
    { "ties",
      "x = embed(tokens, 11, 6, name=\"wte\")\n"
      "y = linear(x, 4, name=\"down\"); z = linear(y, 6, tie=\"down\", bias=no)\n"
      "s = linear(z, 6, name=\"square\"); s = tanh(linear(s, 6, tie=\"square\"))\n"
      "w = linear(z + s, 4, tie=\"down\", name=\"again\")\n"
      "x = x + linear(w, 6)\n"
      "loss = cross_entropy(linear(x, 11, tie=\"wte\", name=\"head\"), targets)" },
    { "elementwise",
      "x = embed(tokens, 11, 6); y = embed(positions, 6, 6); n = linear(x, 1)\n"
      "a = exp(0.3 * x) + log(2 + x*x) - sqrt(1 + y^2) / (1.5 + sin(y)) + cos(x - y)\n"
      "b = tanh(x) * sigmoid(y) + erf(x * y) - abs(x) ^ 1.7 + (2 + y*y)^-1.5 + rsqrt(3 + y)\n"
      "c = maximum(x, y) - minimum(2*x, 1) + maximum(0.1, y) * n - n / (2 + sigmoid(x)) + x^3\n"
      "d = minimum(x, y) * 3 - 1 / (4 + x) + -y + n * n - (2 - n) * x + x / (3 + n)\n"
      "loss = cross_entropy(linear(a + b + c + d, 11, init=normal(0.3)), targets)" },
    { "norms",
      "x = embed(tokens, 11, 12)\n"
      "a = layernorm(x); b = rmsnorm(x, 1e-3); c = gelu(x) + gelu_erf(a) + silu(b) + relu(x)\n"
      "d = layernorm(x, heads=3, name=\"per\") + rmsnorm(a, heads=4)\n"
      "loss = cross_entropy(linear(a + b + c + d, 11), targets)" },
    { "reductions",
      "fn softmax(x) = exp(x - rowmax(x)) / sum(exp(x - rowmax(x)))\n"
      "fn spread(x, y; w=0.5, u=1) = w * sum(x * (u + y)) + var(y) * mean(y) - rowmax(x*w) * u\n"
      "fn vectors(x; w=1, u=2) = x * (1 + tanh(w)) + sum(u*u) * mean(w) + exp(w) + w^3 + var(u)\n"
      "fn narrow(x) = mean(x) * var(mean(x) + 1) + sum(mean(x)) + rowmax(mean(x)) + sum(2)\n"
      "fn wide(x) = narrow(x) * x\n"
      "fn nested(x; g=1) = softmax(x * g) + layernorm(x) * rmsnorm(x + mean(x), 0.1)\n"
      "fn inner(x; g=1) = silu(mean(x)) + silu(g) + vectors(mean(x), name=\"v\")\n"
      "---\n"
      "x = embed(tokens, 11, 12); y = linear(x, 12); m = linear(x, 1)\n"
      "a = softmax(x) + softmax(x, heads=3) + spread(x, y) + spread(x, m, heads=2)\n"
      "b = vectors(x) + vectors(y, heads=4) + narrow(x) + narrow(y) * x + wide(y, heads=3)\n"
      "c = nested(x) + nested(y, heads=6) + inner(x) * y + spread(m, y)\n"
      "d = inner(x, heads=4, name=\"i\")\n"
      "d = linear(d, 12)\n"
      "loss = cross_entropy(linear(a + b + c + d, 11, init=normal(0.2)), targets)" },
    { "attention",
      "x = embed(tokens, 11, 12, init=normal(1)) + embed(positions, 6, 12)\n"
      "q = linear(x, 12); k = linear(x, 6); v = linear(x, 6)\n"
      "a = attention(q, k, v, heads=4, kv_heads=2)\n"
      "q, k, v = split(linear(a, 36), 3)\n"
      "b = attention(q, k, v, heads=3, causal=no, scale=0.7)\n"
      "b = b + attention(q, k, v, heads=2, window=3)\n"
      "c = attention(q, q, v, heads=6, kv_heads=6, window=2, softcap=0.8)\n"
      "d = attention(b, linear(b, 3), linear(c, 3), heads=4, kv_heads=1, causal=no, softcap=2)\n"
      "loss = cross_entropy(linear(a + b + c + d, 11), targets)" },
    { "rope",
      "x = embed(tokens, 11, 16)\n"
      "q = rope(linear(x, 16), heads=2) + rope(x, heads=2, theta=500, style=interleaved)\n"
      "k = rope(x, heads=4, rotary=2) + rope(x, heads=1, rotary=6, style=interleaved)\n"
      "loss = cross_entropy(linear(attention(q, k, x, heads=2), 11), targets)" },
    { "split",
      "x = embed(tokens, 11, 12)\n"
      "a, b, c = split(x, [2, 4, 6]); d, e = split(x, 2, heads=3)\n"
      "f, g = split(x, [1, 3], heads=3); h, unused = split(linear(x, 8), 2)\n"
      "y = concat(a, c, h, d) + concat(f, linear(e, 2), g, b) * 0.5\n"
      "z = concat(g, f, linear(y, 3), heads=3); a, z = split(z, [2, 3], heads=3)\n"
      "loss = cross_entropy(linear(y, 11) + linear(z, 11) + linear(concat(a, y), 11), targets)" },
    { "dropout",
      "x = dropout(embed(tokens, 11, 8), 0.3)\n"
      "repeat i in 2 { x = x + dropout(gelu(linear(x, 8)), 0.2 + 0.1*i) }\n"
      "loss = cross_entropy(linear(x, 11), targets)" },
    { "ignore",
      "x = embed(tokens, 11, 8)\n"
      "loss = cross_entropy(linear(x, 11), targets, ignore=3)" },
    { "far", // the variance of 1000 + noise
      "x = layernorm(1000 + embed(tokens, 11, 8, init=normal(1)))\n"
      "loss = cross_entropy(linear(x, 11), targets)" },
    { "blocks",
      "fn mean_of(x) = mean(x)\n"
      "---\n"
      "width = 8\n"
      "block mlp(x, n) { h = linear(x, n * width); return linear(silu(h), width), h }\n"
      "block layer(x, k) {\n"
      "    y, h = mlp(rmsnorm(x), 2 + k, name=\"mlp\")\n"
      "    repeat j in k { y = y + linear(x, width, name=\"extra.{j}\") * mean_of(h) }\n"
      "    return x + y * [0.5, 2][k % 2]\n"
      "}\n"
      "x = embed(tokens, 11, width)\n"
      "first = x\n"
      "repeat i in 2 { x = layer(x, i, name=\"h.{i}\") + first }\n"
      "repeat i in 1 { x = layer(x, 2) }\n"
      "loss = cross_entropy(linear(x + first, 11), targets)" },
};

static const char *text_of(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(models[i].name, name) == 0)
            return models[i].text;
    bug("no model %s", name);
}

/* ---- one model with random weights and data --------------------------- */

typedef struct {
    Plan *p;
    RefGraph *g;
    Ref *r;
    RefInput in;
    double **params, **grads;
} Case;

static double noise(uint32_t a, uint32_t b)     // in [-1, 1]
{
    return 2 * (rt_dropout_word(7, a, b, a * 1000003u + b, 1) / 4294967296.0) - 1;
}

static double **arrays(const RefGraph *g)
{
    double **a = NEWN(double *, g->nparams + 1);
    for (int k = 0; k < g->nparams; k++)
        a[k] = NEWN(double, g->params[k].rows * g->params[k].width);
    return a;
}

static Case case_of(const char *text, bool fuse)
{
    Case c = { .p = unit_plan(text, B, S, fuse) };
    int32_t ignored = strstr(text, "ignore=3") ? 3 : -1;
    int32_t *tokens = NEWN(int32_t, B * S), *targets = NEWN(int32_t, B * S);
    c.g = reference_build(c.p);
    c.r = ref_new(c.g, B, S);
    c.params = arrays(c.g);
    c.grads = arrays(c.g);
    ref_init(c.g, 1, c.params);
    for (int k = 0; k < c.g->nparams; k++)
        for (int64_t i = 0; i < c.g->params[k].rows * c.g->params[k].width; i++)
            c.params[k][i] += 0.4 * noise((uint32_t)k, (uint32_t)i);
    for (int i = 0; i < B * S; i++) {
        tokens[i] = (i * 7 + 3) % V;
        targets[i] = i % 5 == 4 ? ignored : (i * i + 1) % V;
    }
    c.in = (RefInput){ .tokens = tokens, .targets = targets, .seed = 5, .step = 3,
                       .training = true };
    return c;
}

/* ---- gradients -------------------------------------------------------- */

/* (f(p + h) - f(p - h)) / 2h, from h and h/2 (Richardson): the error is of order h^4. */
static double slope(Case *c, double *p)
{
    double keep = *p, d[2];
    for (int i = 0; i < 2; i++) {
        double h = 2e-4 / (1 + i);
        *p = keep + h;
        double up = ref_step(c->r, &c->in, c->params, NULL);
        *p = keep - h;
        d[i] = (up - ref_step(c->r, &c->in, c->params, NULL)) / (2 * h);
        *p = keep;
    }
    return (4 * d[1] - d[0]) / 3;
}

static void check_differences(Case *c, const char *name)
{
    ref_step(c->r, &c->in, c->params, c->grads);
    for (int k = 0; k < c->g->nparams; k++) {
        int64_t n = c->g->params[k].rows * c->g->params[k].width;
        for (int64_t i = 0; i < n; i += 1 + n / 9) {
            double want = slope(c, &c->params[k][i]), got = c->grads[k][i];
            cr_expect(fabs(want - got) <= 1e-8 + 1e-6 * fabs(want),
                      "%s: %s[%d]: difference %.12g, gradient %.12g", name,
                      c->g->params[k].name, (int)i, want, got);
        }
    }
}

static void check_operators(Case *c, const char *name)
{
    double loss = ref_step(c->r, &c->in, c->params, c->grads), most = 0;
    Interpret *x = interpret(c->p, B, S, &c->in, c->params);
    cr_expect(fabs(loss - x->loss) <= 1e-12 * fabs(loss), "%s: loss %.15g, operators %.15g", name,
              loss, x->loss);
    for (int k = 0; k < c->g->nparams; k++)
        for (int64_t i = 0; i < c->g->params[k].rows * c->g->params[k].width; i++)
            most = fmax(most, fabs(c->grads[k][i]));
    for (int k = 0; k < c->g->nparams; k++)
        for (int64_t i = 0; i < c->g->params[k].rows * c->g->params[k].width; i++) {
            double want = c->grads[k][i], got = x->val[c->p->params.at[k].grad][i];
            cr_expect(fabs(want - got) <= 1e-12 * (fabs(want) + most),
                      "%s: %s[%d]: reference %.15g, operators %.15g", name,
                      c->g->params[k].name, (int)i, want, got);
        }
}

static void check_model(const char *name)
{
    for (int fuse = 0; fuse < 2; fuse++) {
        Case c = case_of(text_of(name), fuse);
        if (!fuse)
            check_differences(&c, name);
        check_operators(&c, name);
        ref_free(c.r);
    }
}

Test(reference, linear) { check_model("linear"); }
Test(reference, ties) { check_model("ties"); }
Test(reference, elementwise) { check_model("elementwise"); }
Test(reference, norms) { check_model("norms"); }
Test(reference, reductions) { check_model("reductions"); }
Test(reference, attention) { check_model("attention"); }
Test(reference, rope) { check_model("rope"); }
Test(reference, split) { check_model("split"); }
Test(reference, dropout) { check_model("dropout"); }
Test(reference, ignore) { check_model("ignore"); }
Test(reference, far) { check_model("far"); }
Test(reference, blocks) { check_model("blocks"); }

/* ---- what differences cannot see -------------------------------------- */

static double grad_sum(Case *c, const char *name)
{
    double sum = 0;
    ref_step(c->r, &c->in, c->params, c->grads);
    for (int k = 0; k < c->g->nparams; k++)
        for (int64_t i = 0; i < c->g->params[k].width && !strcmp(c->g->params[k].name, name); i++)
            sum += fabs(c->grads[k][i]);
    return sum;
}

/* Both operands are equal; `first` must get all of the gradient. */
static void check_tie(const char *choice)
{
    const char *frame = "fn scaled(x; w=1) = x * w\n"
        "---\n"
        "x = embed(tokens, 11, 4, init=normal(1))\n"
        "a = scaled(x, name=\"first\"); b = scaled(x, name=\"second\")\n"
        "y = %s\n"
        "loss = cross_entropy(linear(y * x, 11), targets)";
    Case c = case_of(str_fmt(frame, choice), false);
    for (int k = 0; k < c.g->nparams; k++)
        for (int64_t i = 0; i < 4 && c.g->params[k].vector && c.g->params[k].width == 4; i++)
            c.params[k][i] = 1;
    cr_expect(grad_sum(&c, "first.w") > 1e-3, "%s: the first has no gradient", choice);
    cr_expect_eq(grad_sum(&c, "second.w"), 0, "%s: the second has a gradient", choice);
    check_operators(&c, choice);
    ref_free(c.r);
}

Test(reference, ties_go_to_the_first)
{
    check_tie("maximum(a, b)");
    check_tie("minimum(a, b)");
}

/* rowmax of [a, b] with b = a: the gradient of w reaches a through its place alone. */
Test(reference, a_tied_rowmax_goes_to_the_first)
{
    const char *frame = "fn scaled(x; w=1) = x * w\n"
        "fn top(x) = rowmax(x)\n"
        "---\n"
        "x = embed(tokens, 11, 4, init=normal(1))\n"
        "a = scaled(x, name=\"first\"); b = scaled(x, name=\"second\")\n"
        "loss = cross_entropy(linear(top(concat(a, b)) * x, 11), targets)";
    Case c = case_of(frame, false);
    for (int k = 0; k < c.g->nparams; k++)
        for (int64_t i = 0; i < 4 && c.g->params[k].vector && c.g->params[k].width == 4; i++)
            c.params[k][i] = 1;
    cr_expect(grad_sum(&c, "first.w") > 1e-3);
    cr_expect_eq(grad_sum(&c, "second.w"), 0);
    check_operators(&c, "rowmax");
    ref_free(c.r);
}

Test(reference, no_target_counts)
{
    Case c = case_of(text_of("linear"), false);
    int32_t *none = NEWN(int32_t, B * S);
    for (int i = 0; i < B * S; i++)
        none[i] = -1;
    c.in.targets = none;
    cr_expect_eq(ref_step(c.r, &c.in, c.params, c.grads), 0);
    for (int k = 0; k < c.g->nparams; k++)
        for (int64_t i = 0; i < c.g->params[k].rows * c.g->params[k].width; i++)
            cr_assert_eq(c.grads[k][i], 0);
    ref_free(c.r);
}

Test(reference, no_dropout_without_training)
{
    Case c = case_of(text_of("dropout"), false);
    double with = ref_step(c.r, &c.in, c.params, NULL);
    c.in.training = false;
    double without = ref_step(c.r, &c.in, c.params, NULL);
    c.in.step++;
    cr_expect_neq(with, without);
    cr_expect_eq(without, ref_step(c.r, &c.in, c.params, NULL));
    ref_free(c.r);
}

/* Position 1 turns the pair (1, 0) by one radian: frequency 0 is 1 for every theta. */
Test(reference, rope_turns_by_the_position)
{
    Case c = case_of("x = rope(embed(tokens, 11, 4), heads=1)\n"
                     "y = rope(embed(tokens, 11, 4), heads=1, style=interleaved)\n"
                     "loss = cross_entropy(linear(x + y, 11), targets)", false);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 44; i++)
            c.params[k][i] = i % 4 == 0;
    ref_step(c.r, &c.in, c.params, NULL);
    for (int i = 0; i < c.p->nforward; i++) {
        const Op *op = &c.p->ops.at[i];
        if (op->kind != OP_ROPE)
            continue;
        const double *y = ref_value(c.r, op->out[0]) + 4;       // the second token
        cr_expect_float_eq(y[0], cos(1), 1e-15);
        cr_expect_float_eq(y[op->interleaved ? 1 : 2], sin(1), 1e-15);
        cr_expect_eq(y[op->interleaved ? 2 : 1], 0);
    }
    ref_free(c.r);
}

/* ---- random numbers --------------------------------------------------- */

Test(random, initial_values)
{
    enum { N = 20001 };
    static double v[N];
    uint64_t hash = rt_name_hash("h.0.ln.weight");
    double sum = 0, square = 0, most = 0;
    rt_init_range(RT_INIT_NORMAL, 0.02, 1, hash, 0, N, v);
    for (int i = 0; i < N; i++) {
        sum += v[i] / N;
        square += v[i] * v[i] / N;
        cr_assert_eq(v[i], rt_init_value(RT_INIT_NORMAL, 0.02, 1, hash, (uint64_t)i));
    }
    cr_expect_float_eq(sum, 0, 0.0005);
    cr_expect_float_eq(sqrt(square), 0.02, 0.0005);
    rt_init_range(RT_INIT_UNIFORM, 3, 1, hash, 7, N, v);
    for (int i = 0; i < N; i++)
        most = fmax(most, fabs(v[i]));
    cr_expect(most <= 3 && most > 2.99);
    cr_expect_eq(v[0], rt_init_value(RT_INIT_UNIFORM, 3, 1, hash, 7));
    cr_expect_eq(rt_init_value(RT_INIT_CONSTANT, 5, 1, hash, 7), 5);
    cr_expect_eq(rt_name_hash(""), 0xcbf29ce484222325u);
    cr_expect_eq(rt_name_hash("a"), 0xaf63dc4c8601ec8cu);
}

Test(random, choices_have_their_probability)
{
    int masked = 0, dropped = 0;
    for (uint64_t t = 0; t < 20000; t++) {
        masked += rt_masked(1, 2, t, 0.15);
        dropped += rt_dropout_word(1, 2, 3, t, 4) < rt_dropout_limit(0.25);
    }
    cr_expect(abs(masked - 3000) < 250, "%d", masked);
    cr_expect(abs(dropped - 5000) < 250, "%d", dropped);
    cr_expect(!rt_masked(1, 2, 3, 0) && rt_masked(1, 2, 3, 1));
    cr_expect_eq(rt_dropout_limit(0), 0u);
    cr_expect_neq(rt_shuffle_value(1, 0, 5), rt_shuffle_value(1, 1, 5));
}

/* ---- the optimizer ---------------------------------------------------- */

/* One weight of a matrix and one of a vector, both 1, with gradients 3 and 4. */
static double update_once(const RefOptimizer *o, int64_t step, double *p, double *m, double *v)
{
    RefParam params[2] = { { .name = "a", .rows = 1, .width = 1, .decay = true },
                           { .name = "b", .rows = 1, .width = 1, .vector = true } };
    RefGraph g = { .nparams = 2, .params = params };
    double grads[2] = { 3, 4 };
    double *pp[2] = { p, p + 1 }, *pg[2] = { grads, grads + 1 };
    double *pm[2] = { m, m + 1 }, *pv[2] = { v, v + 1 };
    return ref_update(o, &g, step, pp, pg, pm, pv);
}

Test(optimizer, adamw_by_hand)
{
    RefOptimizer o = { .kind = REF_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 0.5,
                       .weight_decay = 0.2 };
    double p[2] = { 1, 1 }, m[2] = { 0 }, v[2] = { 0 };
    double norm = update_once(&o, 0, p, m, v);
    cr_expect_float_eq(norm, 5, 1e-15);
    // bias correction makes the first moments the gradients themselves: 3/(3 + 0.5), 4/4.5
    cr_expect_float_eq(p[0], 1 - 0.1 * (3 / 3.5 + 0.2), 1e-15);
    cr_expect_float_eq(p[1], 1 - 0.1 * (4 / 4.5), 1e-15);
    double before = p[0];
    update_once(&o, 1, p, m, v);
    cr_expect_float_eq(p[0], before - 0.1 * (3 / 3.5 + 0.2 * before), 1e-14);
}

Test(optimizer, sgd_and_clipping_by_hand)
{
    RefOptimizer o = { .kind = REF_SGD, .lr = 0.1, .momentum = 0.5, .clip = 1 };
    double p[2] = { 1, 1 }, m[2] = { 0 }, v[2] = { 0 }, scale = 1 / (5 + 1e-6);
    double norm = update_once(&o, 0, p, m, v);
    cr_expect_float_eq(norm, 5, 1e-15);
    cr_expect_float_eq(p[0], 1 - 0.1 * 3 * scale, 1e-15);
    update_once(&o, 1, p, m, v);
    cr_expect_float_eq(p[0], 1 - 0.1 * 3 * scale * 2.5, 1e-15);
}

Test(optimizer, schedules_by_hand)
{
    RefOptimizer o = { .lr = 1, .warmup = 4, .steps = 12, .lr_min = 0.2, .decay = 5 };
    cr_expect_eq(ref_lr(&o, 0), 1);
    o.schedule = REF_COSINE;
    cr_expect_float_eq(ref_lr(&o, 0), 0.2, 1e-15);
    cr_expect_float_eq(ref_lr(&o, 3), 0.8, 1e-15);
    cr_expect_float_eq(ref_lr(&o, 4), 1, 1e-15);
    cr_expect_float_eq(ref_lr(&o, 8), 0.6, 1e-15);      // half way
    cr_expect_float_eq(ref_lr(&o, 12), 0.2, 1e-15);
    o.schedule = REF_LINEAR_LR;
    cr_expect_float_eq(ref_lr(&o, 6), 0.8, 1e-15);
    cr_expect_float_eq(ref_lr(&o, 20), 0.2, 1e-15);
    o.schedule = REF_WSD;
    cr_expect_float_eq(ref_lr(&o, 7), 1, 1e-15);
    cr_expect_float_eq(ref_lr(&o, 8), 0.84, 1e-15);     // one of five steps down
}
