/*
 * frame.c - a step of Megatron, DeepSpeed, FSDP, Alpa or TeraPipe (frame.h).
 *
 * A layer is a list of products, kernels that move bytes, and collectives. Its time is
 * that of the device, or of the host that starts the kernels where that is longer, plus the
 * collectives that nothing hides:
 *
 *   pipeline   m * the slowest stage + the others once (divided by the chunks), transfers
 *              exposed: Narayanan et al. (SC 2021) 2.2
 *   sharded    each layer max(compute, gathering the next one's weights); backward the same
 *              with the gradients' reduction: FSDP
 *
 * Sources of the counts: Megatron-LM (2021) for kernels between products; Korthikanti et
 * al. (MLSys 2023) 4.1 for bytes kept per layer, s b h (34 + 5 a s / h) in 16 bits.
 */
#include "frame.h"

/* TUNING: host, fitted on half of vTrain's single-node rows (deepspeed) and of MosaicML's
 * (fsdp); that of others whose modules are PyTorch's of 2021 is taken to be DeepSpeed's. */
const Manner megatron = { .name = "megatron 2022", .sp = true, .dropout = true, .rails = true,
    .host = 43e-6, .sums = 0, .grad = 4, .logit = 44, .held = 8, .update = 34 };
/* 2023 on, fused by Transformer Engine; nothing at hand tests it */
const Manner megatron_core = { .name = "megatron core", .flash = true, .sp = true,
    .fused = true, .rails = true, .overlap = true, .host = 12e-6, .sums = 0, .grad = 4,
    .logit = 30, .held = 8, .update = 34 };
/* before 2022: weight gradients are added in a kernel of their own */
const Manner megatron_fp16 = { .name = "megatron 2021", .dropout = true, .rails = true,
    .host = 43e-6, .sums = 6, .grad = 2, .logit = 44, .held = 8, .update = 34 };
/* rails: pipe_partitioned, grad_partitioned (deepspeed/runtime/pipe/engine.py), on by default */
const Manner deepspeed = { .name = "megatron-deepspeed", .dropout = true, .rails = true,
    .host = 43e-6, .sums = 6, .grad = 2, .logit = 44, .held = 8, .update = 34 };
/* gradients of bf16 are added and reduced in fp32 */
const Manner deepspeed_bf16 = { .name = "megatron-deepspeed bf16", .dropout = true,
    .rails = true, .host = 43e-6, .sums = 10, .grad = 4, .logit = 44, .held = 8, .update = 34 };
/* narrow: what the six rows of Narayanan et al., Table 2, have in common: 16 to 18 GB/s */
const Manner deepspeed_zero3 = { .name = "deepspeed ZeRO-3, 2021", .dropout = true,
    .overlap = true, .narrow = true, .host = 43e-6, .sums = 6, .grad = 2, .logit = 44, .held = 8,
    .update = 34 };
const Manner fsdp = { .name = "fsdp", .flash = true, .overlap = true, .host = 20e-6,
    .sums = 4, .grad = 2, .logit = 36, .held = 12, .update = 32 };
const Manner fsdp_fp32 = { .name = "fsdp, fp32 sums", .flash = true, .overlap = true,
    .host = 20e-6, .sums = 8, .grad = 4, .logit = 36, .held = 12, .update = 34 };
const Manner titan = { .name = "torchtitan", .flash = true, .sp = true, .overlap = true,
    .host = 20e-6, .sums = 4, .grad = 4, .logit = 36, .held = 12, .update = 34 };
const Manner titan_compiled = { .name = "torchtitan, compiled", .flash = true, .sp = true,
    .overlap = true, .fused = true, .host = 20e-6, .sums = 4, .grad = 4, .logit = 24,
    .held = 12, .update = 34 };
const Manner alpa = { .name = "alpa", .fused = true, .whole = true, .sums = 0, .grad = 2,
    .logit = 24, .held = 8, .update = 34 };
const Manner terapipe = { .name = "terapipe", .stack = true, .broadcast = true, .gpipe = true,
    .apart = true, .host = 43e-6, .sums = 6, .grad = 2, .update = 34 };

/* What one pass of one thing takes. */
typedef struct { double device, kernels, wire; } Work;

typedef struct {
    const Prices *w, *w8;
    const Dims *s;
    const Way *l;
    const Manner *how;
    Group tp, dp;
    double N, rows;                 // tokens of a pass; of those, a rank's between products
    double length, context;         // tokens of a sequence in the pass; before it
    double sequences;
} Build;

static void product(const Build *b, Work *k, double m, double n, double depth)
{
    k->device += price_products(b->l->fp8 ? b->w8 : b->w, 1, m, n, depth, 2);
    if (b->l->fp8)                  // both operands are read and written once more
        k->device += price_bytes(b->w, 3 * (m * depth + depth * n));
    k->kernels += b->l->fp8 ? 3 : 1;
}

static void plain_product(const Build *b, Work *k, double count, double m, double n, double depth)
{
    k->device += price_products(b->w, count, m, n, depth, 2);
    k->kernels++;
}

static void bytes(const Build *b, Work *k, double n, double kernels)
{
    k->device += price_bytes(b->w, n);
    k->kernels += kernels;
}

/* The sum of a tensor over the ranks of tp: whole, or cut and gathered again. */
static void sum_over_tp(const Build *b, Work *k)
{
    double t = b->l->tp, part = b->N * b->s->hidden * 2 * (t - 1) / t;
    if (t <= 1)
        return;
    /* its launch, and the slowest of the ranks' hosts: later by one more at each doubling */
    k->kernels += log2(t) * (b->l->sp ? 2 : 1);
    k->wire += b->l->sp ? 2 * price_collective(b->w, &b->tp, RING_GATHER, 1, part)
                        : price_collective(b->w, &b->tp, RING_ALL, 1, 2 * part);
}

static Work work_sum(Work a, Work b, double times)
{
    return (Work){ a.device + times * b.device, a.kernels + times * b.kernels,
                   a.wire + times * b.wire };
}

static double seconds(const Build *b, Work k)
{
    return fmax(k.device + k.wire, k.kernels * b->how->host);
}

/* (query, key) pairs of all heads that a rank has. */
static Work attention(const Build *b, bool back)
{
    const Dims *s = b->s;
    double hd = s->hidden / s->heads, heads = s->heads / b->l->tp * b->sequences;
    double q = b->length / b->l->cp, keys = b->context + b->length;
    Work k = { 0 };
    if (b->l->flash) {
        double seen = b->context + (b->length + 1) / 2, flop = 4 * heads * q * seen * hd;
        double share = back ? b->w->reach.flash_back : b->w->reach.flash;
        k.device += flop * (back ? 2.5 : 1) / (b->w->matrix * share);
        k.kernels += back ? 3 : 1;
        return k;
    }
    double pairs = heads * q * keys;
    for (int i = 0; i < (back ? 2 : 1); i++) {
        plain_product(b, &k, heads, q, keys, hd);
        plain_product(b, &k, heads, q, hd, keys);
    }
    bytes(b, &k, pairs * (back ? 6 : 4), 1);
    if (b->how->dropout)
        bytes(b, &k, pairs * 5, 1);
    return k;
}

/* Columns of q, k, v of a rank; of what stands between the MLP's products. */
static double qkv(const Build *b)
{
    return b->s->hidden * (1 + 2 * b->s->kv_heads / b->s->heads) / b->l->tp;
}

static Work layer_forward(const Build *b)
{
    const Dims *s = b->s;
    double h = s->hidden, t = b->l->tp, f = s->ffn / t, N = b->N, wide = b->how->fused ? 0.7 : 1;
    Work k = attention(b, false);
    bytes(b, &k, wide * b->rows * h * 8, 2);                    // normalisations
    product(b, &k, N, qkv(b), h);
    bytes(b, &k, wide * N * h / t * (s->gated ? 12 : 4), s->gated ? 3 : 2);     // layout, rope
    product(b, &k, N, h, h / t);
    sum_over_tp(b, &k);
    bytes(b, &k, wide * b->rows * h * (b->how->dropout ? 14 : 12), 2);  // dropout and sum
    product(b, &k, N, s->gated ? 2 * f : f, h);
    bytes(b, &k, wide * N * f * (s->gated ? 6 : 4), s->gated ? 2 : 1);
    product(b, &k, N, h, f);
    sum_over_tp(b, &k);
    k.kernels += b->how->fused ? 0 : 3;
    return k;
}

static Work layer_backward(const Build *b)
{
    const Dims *s = b->s;
    double h = s->hidden, t = b->l->tp, f = s->ffn / t, N = b->N, wide = b->how->fused ? 0.7 : 1;
    double up = s->gated ? 2 * f : f, matrices = h * (qkv(b) + h / t + up + f);
    Work k = attention(b, true);
    const double sizes[4][2] = { { qkv(b), h }, { h, h / t }, { up, h }, { h, f } };
    for (int i = 0; i < 4; i++) {
        product(b, &k, N, sizes[i][1], sizes[i][0]);
        product(b, &k, sizes[i][1], sizes[i][0], N);
    }
    bytes(b, &k, matrices * b->how->sums, 4);
    bytes(b, &k, wide * b->rows * h * 20, 4);                   // normalisations, their vectors
    bytes(b, &k, wide * b->rows * h * (b->how->dropout ? 22 : 12), 4);
    bytes(b, &k, wide * N * f * (s->gated ? 10 : 8), 2);
    bytes(b, &k, wide * N * h / t * (s->gated ? 24 : 18), 4);
    sum_over_tp(b, &k);
    sum_over_tp(b, &k);
    k.kernels += b->how->fused ? 0 : 6;
    return k;
}

/* What is done again before the backward pass of a layer. */
static Work layer_again(const Build *b, Work forward)
{
    Work none = { 0 };
    switch (b->l->again) {
    case AGAIN_FULL: return forward;
    case AGAIN_HALF: return work_sum(none, forward, 0.5);
    case AGAIN_ATTENTION: return attention(b, false);
    default: return none;
    }
}

static Work embedding(const Build *b, bool back)
{
    double h = b->s->hidden;
    Work k = { 0 };
    bytes(b, &k, b->rows * h * (b->how->dropout ? 14 : 10), 8);
    if (back)
        bytes(b, &k, b->s->vocab / b->l->tp * h * (2 + b->how->grad), 3);
    else
        sum_over_tp(b, &k);
    return k;
}

static Work head(const Build *b, bool back)
{
    double h = b->s->hidden, V = b->s->vocab / b->l->tp;
    Work k = { 0 };
    bytes(b, &k, b->rows * h * (back ? 10 : 4), 2);
    bytes(b, &k, b->N * V * b->how->logit / 2, 20);
    plain_product(b, &k, 1, b->N, V, h);
    if (back) {
        plain_product(b, &k, 1, h, V, b->N);
        sum_over_tp(b, &k);
    }
    return k;
}

/* ---- memory ---------------------------------------------------------------------------- */

static double layer_parameters(const Build *b)
{
    const Dims *s = b->s;
    double up = s->gated ? 3 : 2;
    return s->hidden * (qkv(b) * b->l->tp + s->hidden + up * s->ffn) / b->l->tp + 13 * s->hidden;
}

double dims_parameters(const Dims *s)
{
    double attention = s->hidden * s->hidden * (2 + 2 * s->kv_heads / s->heads);
    return s->layers * (attention + (s->gated ? 3 : 2) * s->hidden * s->ffn) +
           s->vocab * s->hidden * (s->tied ? 1 : 2);
}

/* Bytes of one layer kept for the backward pass of one microbatch. */
static double layer_kept(const Build *b)
{
    const Dims *s = b->s;
    const Way *l = b->l;
    double t = l->tp, h = s->hidden, sp = l->sp ? t : 1, dropout = b->how->dropout;
    double whole = b->N * h, pairs = s->heads / t * b->sequences * b->length * b->length;
    if (l->again == AGAIN_FULL)
        return 2 * whole / sp;
    double mlp = s->gated ? 6 * s->ffn / h : 4 * s->ffn / h;    // before and after the function
    double kept = whole * (8 + 2 * dropout) / sp + whole * (2 + 6 + 2 + mlp) / t;
    if (!l->flash && l->again != AGAIN_ATTENTION)
        kept += pairs * (dropout ? 5 : 4);
    return l->again == AGAIN_HALF ? kept / 2 : kept;
}

static void memory(const Build *b, const Way *l, double of_layers, double micros, Frame *out)
{
    const Dims *s = b->s;
    const Manner *how = b->how;
    double table = s->vocab / l->tp * s->hidden, per = layer_parameters(b);
    double shard = l->zero >= 3 ? l->dp : 1, moments = l->zero >= 1 ? l->dp : 1;
    double params = of_layers * per + (how->stack ? 0 : table * (s->tied || l->pp > 1 ? 1 : 2));
    double grads = l->zero >= 2 && !how->whole ? l->dp : 1, weights = 2;
    double kept = layer_kept(b), full = kept;
    out->static_bytes = params * (weights / shard + how->grad / grads + 12 / moments);
    if (l->zero >= 3)
        out->static_bytes = params / (l->dp * l->cp) * (4 + 4 + 8) + 3 * per * (2 + 2);
    /* TUNING: workspaces of cuBLAS and of fused kernels; what Megatron's tests hold beyond
     * their parameters is 30 to 90 MB */
    out->static_bytes += 64e6;
    if (l->again == AGAIN_FULL) {
        Way once = *l;
        Build c = *b;
        once.again = AGAIN_NONE;
        c.l = &once;
        full = layer_kept(&c);
    }
    double fly = fmin(micros, l->pp) * (l->vp > 1 ? 1 + (l->pp - 1) / (l->pp * l->vp) : 1);
    out->activation_bytes = kept * of_layers * fly;
    /* one layer made again and its gradients; on the last stage the logits instead */
    double logits = how->stack ? 0 : b->N * s->vocab / l->tp * how->held;
    double work = full * (l->again == AGAIN_FULL ? 1 : 0.5);
    if (l->pp > 1)
        logits -= out->activation_bytes * (1 - 1 / fly);        // fewer microbatches there
    out->peak_bytes = out->static_bytes + out->activation_bytes + fmax(work, logits);
}

/* ---- a step ------------------------------------------------------------------------------- */

/* Ranks: tp fastest, then data, then stages (or stages, then data). */
static Mesh mesh_of(const Way *l, const Manner *how)
{
    int inner = (int)(l->tp * l->cp);
    Mesh m = { .size = { (int)l->pp, (int)l->dp, 1, (int)l->tp, 1 },
               .stride = { how->apart ? inner : inner * (int)l->dp,
                          how->apart ? inner * (int)l->pp : inner, 1, 1, 1 },
               .ranks = (int)l->gpus };
    return m;
}

/* The border behind stage r - 1, both ways. */
static double transfer(const Build *b, const Mesh *m, int r)
{
    double whole = b->N * b->s->hidden * 2, cut = b->how->rails || b->l->sp ? b->l->tp : 1;
    const Prices *w = b->w;
    if (m->size[MESH_STAGE] == 1)
        return 0;
    int near = m->stride[MESH_STAGE];
    bool inside = (r - 1) * near / w->per_node == r * near / w->per_node;
    if (inside || !b->how->broadcast)
        return 2 * price_transfer(w, m, r, true, whole / cut) +
               (cut > 1 && b->how->rails && !b->l->sp && !inside
                ? 2 * price_collective(w, &b->tp, RING_GATHER, 1, whole * (1 - 1 / cut)) : 0);
    double port = w->port * w->reach.send;          // one rank of the stage sends for all
    return 2 * (w->reach.call + w->port_alpha + whole / port +
                (b->l->tp > 1 ? price_collective(w, &b->tp, RING_GATHER, 1, whole) : 0));
}

/* Gradients of `params` over the replicas, and the optimizer. */
static double finish(const Build *b, double params, double hides)
{
    const Way *l = b->l;
    double d = l->dp, part = params * b->how->grad * (d - 1) / d, s = 0;
    if (d > 1 && l->zero < 3) {
        s = l->zero == 2 ? price_collective(b->w, &b->dp, RING_SUM, 1, part)
                         : price_collective(b->w, &b->dp, RING_ALL, 1, 2 * part);
        s = b->how->overlap ? fmax(0, s - hides) : s;
        if (l->zero >= 1)
            s += price_collective(b->w, &b->dp, RING_GATHER, 1, params * 2 * (d - 1) / d);
    }
    return s + price_bytes(b->w, params * b->how->update / (l->zero >= 1 ? d : 1));
}

/* Sharded weights: gathered for a layer, its gradients reduced. */
static void sharded(const Build *b, double params, double *forward, double *backward)
{
    double d = b->l->dp, part = params * (d - 1) / d;
    double gather = price_collective(b->w, &b->dp, RING_GATHER, 1, 2 * part);
    double reduce = price_collective(b->w, &b->dp, RING_SUM, 1, b->how->grad * part);
    if (b->how->overlap) {
        /* TUNING: collectives take multiprocessors and bandwidth from what they hide under */
        const double steal = 0.1;
        *forward = fmax(*forward, gather) + steal * fmin(*forward, gather);
        double both = gather + reduce;
        *backward = fmax(*backward, both) + steal * fmin(*backward, both);
    } else {
        *forward += gather;
        *backward += gather + reduce;
    }
}

/* First and last stage add up the gradients of the table that both have. */
static double tied_sum(const Build *b, const Mesh *m, double table)
{
    int apart = m->stride[MESH_STAGE] * (m->size[MESH_STAGE] - 1);
    Mesh ends = { .size = { 1, 1, 2, apart, 1 }, .stride = { 1, 1, apart, 1, 1 },
                  .ranks = 2 * apart };
    Group g = price_group(b->w, &ends, AX_X);
    return price_collective(b->w, &g, RING_ALL, 1, table * b->how->grad);
}

/* Forward and backward of a layer, with all that waits for it. */
static void layer_times(const Build *b, double *forward, double *backward)
{
    Work f = layer_forward(b), g = layer_backward(b);
    *forward = seconds(b, f);
    *backward = seconds(b, work_sum(g, layer_again(b, f), 1));
    if (b->l->zero >= 3 && b->l->dp > 1)
        sharded(b, layer_parameters(b), forward, backward);
}

static double most_layers(const Way *l, const Dims *s) { return ceil(s->layers / l->pp); }

static double pipelined(Build *b, const Mesh *m, Frame *out)
{
    const Way *l = b->l;
    int P = (int)l->pp;
    double micros = l->batch / l->dp / l->micro, v = l->vp > 1 ? l->vp : 1;
    double f, g, most = 0, fill = 0, per = layer_parameters(b);
    double table = b->how->stack ? 0 : b->s->vocab / l->tp * b->s->hidden;
    layer_times(b, &f, &g);
    out->forward_s = f;
    out->backward_s = g;
    double e = b->how->stack ? 0 : seconds(b, embedding(b, false)) + seconds(b, embedding(b, true));
    double h = b->how->stack ? 0 : seconds(b, head(b, false)) + seconds(b, head(b, true));
    double each = floor(b->s->layers / P), more = b->s->layers - each * P;
    for (int r = 0; r < P; r++) {
        double n = each + (r < more), x = r > 0 ? transfer(b, m, r) : 0;
        double next = r + 1 < P ? transfer(b, m, r + 1) : 0;
        double own = n * (f + g) + (r == 0) * e + (r == P - 1) * h;
        double unit = own + v * (P > 1 ? fmax(x, next) : 0);
        if (unit > most)
            most = unit;
        fill += own / v + x;
    }
    double bubble = fill - most / v;
    double params = most_layers(l, b->s) * per + table * (P > 1 || b->s->tied ? 1 : 2);
    double tied = P > 1 && table > 0 && b->s->tied ? tied_sum(b, m, table) : 0;
    return micros * most + (bubble > 0 ? bubble : 0) + tied + finish(b, params, g * each);
}

/* Token slices of one length pass the stages; all forward, then all backward. */
static double sliced(Build *b, const Mesh *m, const double *slice, int n)
{
    const Way *l = b->l;
    double micros = l->batch / l->dp / l->micro, P = l->pp, sum = 0, longest = 0, hops = 0;
    double each = most_layers(l, b->s), worst = 0;
    b->context = 0;
    for (int i = 0; i < n; i++) {
        double f, g, cross = 0, all = 0;
        b->length = slice[i];
        b->N = b->rows = l->micro * slice[i];
        layer_times(b, &f, &g);
        for (int r = 1; r < (int)P; r++) {
            double x = transfer(b, m, r);
            all += x;
            cross = x > cross ? x : cross;
        }
        double unit = each * (f + g) + cross;
        sum += unit;
        if (unit > longest)
            longest = unit, hops = all, worst = each * (f + g);
        b->context += slice[i];
    }
    return micros * sum + (P - 1) * worst + hops + finish(b, each * layer_parameters(b), 0);
}

static double best_slices(Build *b, const Mesh *m)
{
    double best = INFINITY, L = b->s->seq, slice[256];
    if (b->l->slice)
        return sliced(b, m, b->l->slice, b->l->nslice);
    for (int k = 1; k <= 256; k++) {
        if (b->l->slices > 0 && k != (int)b->l->slices)
            continue;
        for (int i = 0; i < k; i++)
            slice[i] = L / k;
        double s = sliced(b, m, slice, k);
        best = s < best ? s : best;
    }
    return best;
}

Frame frame_of(const Prices *w, const Prices *w8, const Dims *s, const Way *l,
               const Manner *how)
{
    Mesh m = mesh_of(l, how);
    Build build = { .w = w, .w8 = w8, .s = s, .l = l, .how = how, .length = s->seq,
                    .sequences = l->micro, .N = l->micro * s->seq / l->cp }, *b = &build;
    Frame out = { 0 };
    b->rows = l->sp ? b->N / l->tp : b->N;
    b->tp = price_group(w, &m, AX_YK);
    b->dp = price_group(w, &m, AX_DATA);
    double port = w->port * w->reach.port;
    if (how->narrow && b->dp.crosses && b->dp.rate > port)
        b->dp.rate = port;
    memory(b, l, most_layers(l, s), l->batch / l->dp / l->micro, &out);
    out.step_s = how->gpipe ? best_slices(b, &m) : pipelined(b, &m, &out);
    return out;
}
