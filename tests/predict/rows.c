/*
 * rows.c - from the common columns of shared/published to rows.h.
 *
 * Nothing here is known of single rows. What a file leaves out is filled in by what its
 * header or its source says of all of its rows, see `sources`.
 */
#include "rows.h"

#include <ctype.h>

enum { COLUMNS = 40 };
typedef struct { const char *name[COLUMNS], *value[COLUMNS]; int n; } Cells;

/* Splits a line at commas that are not inside quotes; changes it. */
static int split_line(char *s, const char **out)
{
    int n = 0;
    while (n < COLUMNS) {
        char *w = s;
        out[n++] = s;
        bool quoted = false;
        for (; *s && (quoted || *s != ','); s++) {
            if (*s == '"' && quoted && s[1] == '"')
                *w++ = *++s;
            else if (*s == '"')
                quoted = !quoted;
            else if (*s != '\n' && *s != '\r')
                *w++ = *s;
        }
        bool last = *s == 0;
        *w = 0;
        if (last)
            break;
        s++;
    }
    return n;
}

static const char *text(const Cells *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->name[i], name) == 0)
            return c->value[i] ? c->value[i] : "";
    return "";
}

static double number(const Cells *c, const char *name)
{
    const char *s = text(c, name);
    return strtod(s + (*s == '~'), NULL);
}

static bool has(const char *s, const char *part) { return strcasestr(s, part) != NULL; }

/* What is said of all rows of a file. */
typedef struct {
    const char *file;               // its name begins with this
    const Manner *how;
    double vocab;                   // where the column is empty
    Again again;
    double split;                   // one row in so many is for fitting; 0: none, 1: all
    const char *machine;            // where the kind of GPU does not say it
} Source;

static const Source sources[] = {
    { "narayanan_sc21", &megatron_fp16, 51200, AGAIN_FULL, 0, NULL },
    { "korthikanti", &megatron, 51200, AGAIN_FULL, 0, NULL },
    { "megatron_2020", &megatron_fp16, 51200, AGAIN_FULL, 0, NULL },
    /* its simulator's settings: use_checkpoint, vocabulary 50257; see padded() */
    { "vtrain_ground_truth_single", &deepspeed, 50257, AGAIN_FULL, 2, NULL },
    { "vtrain_ground_truth_multi", &deepspeed, 51200, AGAIN_FULL, 0, "hgx-a100-512" },
    { "llm_foundry", &fsdp, 50368, AGAIN_NONE, 2, NULL },
    { "torchtitan", &titan, 128256, AGAIN_HALF, 2, NULL },
    { "alpa", &alpa, 51200, AGAIN_FULL, 0, NULL },
    { "terapipe", &terapipe, 50257, AGAIN_NONE, 0, NULL },
    { "megatron_functional", &megatron, 50304, AGAIN_NONE, 0, NULL },
    { "bigscience_tr11", &deepspeed, 250880, AGAIN_FULL, 0, "jean-zay-a100-384" },
    { "bigscience", &deepspeed, 51200, AGAIN_FULL, 0, NULL },
    { "mt_nlg", &deepspeed, 51200, AGAIN_FULL, 0, NULL },
    { "bloom", &deepspeed, 250880, AGAIN_FULL, 0, "jean-zay-a100-384" },
    { "gpt_neox", &deepspeed, 50432, AGAIN_FULL, 0, "hgx-a100-40gb-96" },
    { "megatron_core", &megatron_core, 131072, AGAIN_NONE, 0, NULL },
    { "mlperf", &megatron_core, 51200, AGAIN_NONE, 0, NULL },
    { "nemo", &megatron_core, 51200, AGAIN_NONE, 0, NULL },
    { "", &megatron, 51200, AGAIN_NONE, 0, NULL },
};

static const struct { const char *words[2], *file; } machines[] = {
    { { "p3.16xlarge" }, "p3-16xlarge-64" }, { { "DGX-2" }, "dgx2-64" },
    { { "p3dn" }, "p3dn-24xlarge-32" }, { { "V100", "32GB" }, "p3dn-24xlarge-32" },
    { { "A100", "40" }, "dgx-a100-40gb-128" }, { { "A100" }, "dgx-a100-128" },
    { { "H100", "HBM2e" }, "grand-teton-h100-128" }, { { "H100" }, "dgx-h100-128" },
    { { "H800" }, "h800-128" },
    { { "H200" }, "dgx-h200-128" }, { { "B200" }, "dgx-b200-128" },
};

static const char *machine_of(const char *gpu)
{
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        if (has(gpu, machines[i].words[0]) &&
            (!machines[i].words[1] || has(gpu, machines[i].words[1])))
            return machines[i].file;
    return NULL;
}

static Again again_of(const char *s, const char *notes, Again otherwise)
{
    if (*s == 0)
        return otherwise;
    if (has(s, "full") || has(s, "true") || has(s, "yes"))
        return AGAIN_FULL;
    if (has(s, "selective"))
        return has(notes, "torchtitan") || has(notes, "performance.md") ? AGAIN_HALF
                                                                         : AGAIN_ATTENTION;
    return AGAIN_NONE;
}

/* "[704;688;656]", "[120]x4+[112]x6+[104]x8+[64]", "uniform 8", "16 slices" */
static void read_slices(const char *notes, Row *r)
{
    static double length[64];
    const char *s = strchr(notes, '['), *u = strcasestr(notes, "uniform ");
    Way *l = &r->layout;
    if (has(notes, "without TeraPipe") || has(notes, "batch only")) {
        l->slices = 1;
        return;
    }
    if (u) {
        l->slices = strtod(u + 8, NULL);
        return;
    }
    if (strstr(notes, " slices;")) {
        const char *d = strstr(notes, " slices;");
        while (d > notes && isdigit((unsigned char)d[-1]))
            d--;
        l->slices = strtod(d, NULL);
        return;
    }
    int n = 0;
    while (s && n < 64) {
        char *end = (char *)s + 1;
        int from = n;
        while (*end && *end != ']' && n < 64) {
            length[n++] = strtod(end, &end);
            end += *end == ';' || *end == ' ';
        }
        if (end[0] == ']' && end[1] == 'x') {
            int times = (int)strtol(end + 2, NULL, 10);
            for (int i = 1; i < times && n < 64; i++)
                length[n++] = length[from];
        }
        s = strchr(end, '[');
    }
    if (n > 0) {
        double *own = NEWN(double, n);
        memcpy(own, length, sizeof *own * (size_t)n);
        l->slice = own;
        l->nslice = n;
    }
}

/* TFLOP/s of a device to seconds, by the formula of the source: with full recompute 96 of
 * B s l h^2 (1 + s/6h + V/16lh), else 72 of (1 + s/6h + V/12lh): Narayanan et al. (SC 2021). */
static double from_tflops(const Row *r, double tflops)
{
    const Dims *s = &r->shape;
    double again = r->layout.again == AGAIN_FULL, lh = s->layers * s->hidden;
    double flop = (again ? 96 : 72) * r->layout.batch * s->seq * lh * s->hidden *
                  (1 + s->seq / (6 * s->hidden) + s->vocab / ((again ? 16 : 12) * lh));
    return flop / (r->layout.gpus * tflops * 1e12);
}

/* What was measured, as seconds or bytes; why it cannot be compared. */
static const char *measured(Row *r, const Cells *c)
{
    const char *metric = text(c, "measured_metric"), *unit = text(c, "unit");
    const char *value = text(c, "measured_value");
    double v = number(c, "measured_value"), second = has(unit, "ms") ? 1e-3 : 1;
    const Way *l = &r->layout;
    r->seen = SEEN_STEP;
    if (has(value, "OOM") || has(metric, "out of memory") || has(metric, "fits_in_memory")) {
        r->seen = SEEN_FULL;
        return NULL;
    }
    if (has(metric, "layer_forward"))
        r->seen = SEEN_FORWARD, r->measured = v * second;
    else if (has(metric, "layer_backward"))
        r->seen = SEEN_BACKWARD, r->measured = v * second;
    else if (has(metric, "memory_params"))
        r->seen = SEEN_STATIC, r->measured = v * 1073741824;
    else if (has(metric, "mem-allocated"))
        r->seen = SEEN_STATIC, r->measured = v;
    else if (has(metric, "memory_activations"))
        r->seen = SEEN_KEPT, r->measured = v * 1073741824;
    else if ((has(metric, "peak") && has(metric, "mem")) || has(metric, "mem-max"))
        r->seen = SEEN_PEAK,
        r->measured = v * (has(unit, "GiB") ? 1073741824 : has(unit, "GB") ? 1e9
                           : has(unit, "MB") ? 1e6 : 1);
    else if ((has(metric, "iteration") || has(metric, "latency") || has(metric, "step_time")) &&
             (strcmp(unit, "s") == 0 || strcmp(unit, "ms") == 0))
        r->measured = v * second;
    else if (strcmp(unit, "tokens/s") == 0)
        r->measured = l->batch * r->shape.seq / v;
    else if (strcmp(unit, "tokens/s/GPU") == 0)
        r->measured = l->batch * r->shape.seq / (v * l->gpus);
    else if (has(unit, "samples/s") || has(unit, "sequences/s"))
        r->measured = l->batch / v;
    else if (has(unit, "TFLOP/s/GPU"))
        r->measured = from_tflops(r, v);
    else
        return str_fmt("no time and no peak: %s", metric);
    if (has(r->file, "functional") && r->seen == SEEN_STEP)
        return "a test's time: deterministic kernels, toy sizes (its header warns)";
    return v > 0 ? NULL : "no value";
}

/* Megatron pads what it cuts, to 128 columns of each rank. */
static double padded(double vocab, double tp)
{
    return tp > 1 ? ceil(vocab / (128 * tp)) * 128 * tp : vocab;
}

static const char *read_layout(Row *r, const Cells *c, const Source *s)
{
    const char *notes = text(c, "notes");
    Dims *m = &r->shape;
    Way *l = &r->layout;
    m->layers = number(c, "layers");
    m->hidden = number(c, "hidden");
    m->heads = number(c, "heads");
    m->kv_heads = number(c, "kv_heads") > 0 ? number(c, "kv_heads") : m->heads;
    m->ffn = number(c, "ffn") > 0 ? number(c, "ffn") : 4 * m->hidden;
    m->seq = number(c, "seq");
    m->vocab = number(c, "vocab") > 0 ? number(c, "vocab") : s->vocab;
    m->gated = has(r->config, "llama") || has(notes, "swiglu");
    m->tied = !m->gated && !has(notes, "untie");
    if (m->gated && number(c, "ffn") <= 0)          // Llama's rule: 8/3 h in multiples of 256
        m->ffn = ceil(m->hidden * 8 / 3 / 256) * 256;
    l->gpus = number(c, "gpus");
    l->tp = number(c, "tp");
    l->pp = number(c, "pp");
    l->vp = number(c, "vp") > 1 ? number(c, "vp") : 1;
    l->cp = number(c, "cp") > 1 ? number(c, "cp") : 1;
    l->dp = number(c, "dp");
    if (l->dp <= 0 && l->tp * l->pp > 0)
        l->dp = l->gpus / (l->tp * l->pp * l->cp);
    m->vocab = padded(m->vocab, l->tp);
    const char *zero = text(c, "zero");
    l->zero = has(zero, "optimizer") ? 1 : has(zero, "auto") ? 2 : (int)strtol(zero, NULL, 10);
    l->micro = number(c, "micro_batch");
    l->batch = number(c, "global_batch");
    if (l->micro <= 0)                              // one microbatch, or one sequence
        l->micro = l->pp > 1 || r->how->gpipe ? 1 : l->batch / (l->dp > 0 ? l->dp : 1);
    if (l->batch <= 0 && l->pp == 1)
        l->batch = l->micro * l->dp;
    const char *sp = text(c, "sp");
    bool late = r->how == &megatron_core;           // 2023 on: where it is not said
    l->sp = has(sp, "yes") || strcmp(sp, "1") == 0 || (m->gated && l->tp > 1) ||
            (late && *sp == 0 && l->tp > 1);
    const char *flash = text(c, "flash_attention");
    l->flash = has(flash, "yes") || has(flash, "flash") || (late && *flash == 0);
    l->again = again_of(text(c, "recompute"), notes, s->again);
    l->fp8 = has(text(c, "precision"), "8");
    if (r->how->gpipe)
        read_slices(notes, r);
    if (number(c, "ep") > 1 || has(notes, "experts") || has(r->config, "moe"))
        return "experts";
    if (m->layers <= 0 || m->hidden <= 0 || m->heads <= 0)
        return "layers, hidden or heads are not stated";
    if (m->seq <= 0)
        return "the sequence is not stated";
    if (l->gpus <= 0 || l->tp <= 0 || l->pp <= 0 || l->dp <= 0)
        return "the layout is not stated";
    if (l->batch <= 0)
        return "the batch is not stated";
    if (fabs(l->tp * l->pp * l->dp * l->cp - l->gpus) > 0.5)
        return "tp pp dp cp do not multiply to the GPUs";
    if (l->batch < l->micro * l->dp - 0.5)
        return "the batch is smaller than a microbatch of each replica";
    if (has(notes, "bps") && (has(notes, "delay") || has(notes, "bandwidth")))
        return "a network slowed down on purpose";
    if (has(notes, "interleaved") && l->vp < 2)
        return "interleaved by a number of chunks that is not stated";
    if (has(notes, "act_cpu_offload True") || has(notes, "offload=true"))
        return "offloading";
    return NULL;
}

static void read_how(Row *r, const Cells *c)
{
    const char *notes = text(c, "notes"), *method = strstr(notes, "method=");
    if (r->how == &fsdp && has(notes, "MP mode DEFAULT"))
        r->how = &fsdp_fp32;
    if (r->how == &titan && has(notes, "compile"))
        r->how = &titan_compiled;
    if (method && has(method, "=megatron"))
        r->how = &megatron_fp16;
    const char *gpu = text(c, "gpu_type");
    if (r->how == &deepspeed && has(text(c, "precision"), "bf16"))
        r->how = &deepspeed_bf16;
    if (r->how == &megatron && !has(r->file, "functional") && (has(gpu, "H1") || has(gpu, "H2") ||
                                has(gpu, "H8") || has(gpu, "B2") || has(gpu, "B3")))
        r->how = &megatron_core;
    if ((r->how == &megatron || r->how == &megatron_core) && (int)number(c, "zero") == 3)
        r->how = &fsdp;
    if (r->how == &megatron && has(text(c, "precision"), "fp16"))
        r->how = &megatron_fp16;
    if (r->how == &megatron_fp16 && (int)number(c, "zero") == 3)
        r->how = &deepspeed_zero3;
}

static const char *set_of(const Row *r, const Cells *c)
{
    const char *notes = text(c, "notes"), *gpu = text(c, "gpu_type");
    const char *kind = has(gpu, "V100") ? "V100" : has(gpu, "A100") ? "A100"
                     : has(gpu, "H100") ? "H100" : has(gpu, "H200") ? "H200" : gpu;
    const char *part = has(notes, "ablation") || has(text(c, "model"), "ablation") ? ", ablation"
                     : has(notes, "scheme ZeRO-3") ? ", ZeRO-3"
                     : has(text(c, "measured_metric"), "layer_") ? ", layer" : "";
    return str_fmt("%.*s %s%s", (int)strcspn(r->file, "."), r->file, kind, part);
}

/* ---- calibration ------------------------------------------------------------------ */

/* Aceso's operators on a V100: us forward and backward. Those shorter than a tenth of a
 * millisecond say more of the host than of the device. */
static const char *read_operator(Row *r, const Cells *c, bool back)
{
    double h = number(c, "hidden"), heads = number(c, "heads"), seq = number(c, "seq");
    double b = number(c, "micro_batch"), t = number(c, "tp"), N = b * seq, hd = h / heads;
    double pairs = b * heads / t * seq * seq, us = number(c, back ? "bwd_us" : "fwd_us");
    const char *op = text(c, "op");
    One *o = &r->one;
    double in = 0, out = 0;
    if (strcmp(op, "enc-attention-qkv") == 0)
        in = h, out = 3 * h / t;
    else if (strcmp(op, "enc-attention-dense") == 0 )
        in = h / t, out = h;
    else if (strcmp(op, "enc-MLP-GEMM-1") == 0)
        in = h, out = 4 * h / t;
    else if (strcmp(op, "enc-MLP-GEMM-2") == 0)
        in = 4 * h / t, out = h;
    else if (strcmp(op, "enc-attention-softmax") == 0)
        o->bytes = pairs * (back ? 6 : 4);
    else if (strcmp(op, "enc-attention-dropout") == 0)
        o->bytes = pairs * 5;
    else if (strcmp(op, "enc-MLP-gelu") == 0)
        o->bytes = N * 4 * h / t * (back ? 6 : 4);
    if (in > 0)
        *o = back ? (One){ .products = 2, .count = { 1, 1 }, .m = { N, in }, .n = { in, out },
                           .k = { out, N } }
                  : (One){ .products = 1, .count = { 1 }, .m = { N }, .n = { out }, .k = { in } };
    /* what Megatron's split sums over the ranks is in the operator's time */
    bool sums = back ? strcmp(op, "enc-attention-qkv") == 0 || strcmp(op, "enc-MLP-GEMM-1") == 0
                     : strcmp(op, "enc-attention-dense") == 0 ||
                       strcmp(op, "enc-MLP-GEMM-2") == 0;
    if (sums && t > 1) {
        o->ranks = (int)t;
        o->ring = RING_ALL;
        o->bytes = 2 * N * h * 2 * (t - 1) / t;
    }
    if (strcmp(op, "enc-attention-score") == 0 || strcmp(op, "enc-attention-context") == 0) {
        double one = b * heads / t;
        bool score = strcmp(op, "enc-attention-score") == 0;
        *o = back ? (One){ .products = 2, .count = { one, one }, .m = { seq, seq },
                           .n = { hd, score ? hd : seq }, .k = { seq, score ? seq : hd } }
                  : (One){ .products = 1, .count = { one }, .m = { seq },
                           .n = { score ? seq : hd }, .k = { score ? hd : seq } };
    }
    r->set = str_fmt("calibration: V100 %s", o->products == 0 ? "bytes"
                     : in > 0 ? "products" : "products of attention");
    r->measured = us * 1e-6;
    r->machine = "p3dn-24xlarge-32";
    if (number(c, "tp_algo") > 0)
        return "the other split of the same operator";
    if (o->products == 0 && o->bytes <= 0)
        return "an operator that is not priced by itself";
    return us < 100 ? "shorter than 100 us" : NULL;
}

static const char *read_collective(Row *r, const Cells *c)
{
    const char *kind = text(c, "collective"), *gpu = text(c, "gpu_type");
    double n = number(c, "size_bytes"), p = number(c, "ranks"), us = number(c, "time_us");
    One *o = &r->one;
    o->ranks = (int)p;
    o->ring = has(kind, "all_reduce") ? RING_ALL : has(kind, "scatter") ? RING_SUM : RING_GATHER;
    o->bytes = has(kind, "all_reduce") ? 2 * n * (p - 1) / p
             : has(kind, "scatter") ? n * (p - 1) / p : n * (p - 1);
    /* PyTorch's lists of tensors are copied to or from one buffer */
    o->copied = o->ring == RING_ALL ? 0 : o->ring == RING_SUM ? 2 * n : 2 * n * p;
    r->set = str_fmt("calibration: %.4s %s", gpu, kind);
    r->machine = has(gpu, "A100") ? "dgx-a100-128" : has(gpu, "32GB") ? "p3dn-24xlarge-32"
                                                                      : "p3-16xlarge-64";
    r->measured = us * 1e-6;
    if (has(kind, "all_to_all") || has(kind, "p2p"))
        return "not priced by itself";
    if (!has(text(c, "interconnect"), "intra") || !(has(gpu, "A100") || has(gpu, "V100")))
        return "the machine is not stated";
    return us <= 0 || n < 1e6 ? "no time" : NULL;
}

static void calibration_row(Rows *rows, const Cells *c, const char *file, int line)
{
    bool operator = *text(c, "fwd_us") != 0;
    for (int back = 0; back < (operator ? 2 : 1); back++) {
        Row r = { .file = file, .line = line, .seen = SEEN_ONE, .trains = true, .how = &megatron,
                  .sweep = "", .config = str_fmt("%d %d", line, back) };
        r.why_not = operator ? read_operator(&r, c, back) : read_collective(&r, c);
        vec_add(rows, r);
    }
}

void rows_read(Rows *rows, const char *path)
{
    FILE *f = fopen(path, "r");
    char line[8192];
    Cells c = { 0 };
    if (f == NULL)
        die(EXIT_USAGE, "cannot read %s", path);
    const char *slash = strrchr(path, '/'), *file = str_of(slash ? slash + 1 : path,
                                                           strlen(slash ? slash + 1 : path));
    const Source *s = sources;
    while (strncmp(file, s->file, strlen(s->file)) != 0)
        s++;
    for (int n = 1, data = 0; fgets(line, sizeof line, f); n++) {
        if (line[0] == '#')
            continue;
        char *own = NEWN(char, strlen(line) + 1);
        strcpy(own, line);
        if (c.n == 0) {
            c.n = split_line(own, c.name);
            continue;
        }
        memset(c.value, 0, sizeof c.value);
        split_line(own, c.value);
        Row r = { .file = file, .line = n, .how = s->how };
        if (*text(&c, "measured_metric") == 0) {
            if (*text(&c, "fwd_us") || *text(&c, "collective"))
                calibration_row(rows, &c, file, n);
            else if (strspn(line, " ,\r\n") < strlen(line)) {
                Row none = { .file = file, .line = n, .set = file, .sweep = "", .config = "",
                             .how = s->how, .why_not = "nothing says what was measured" };
                vec_add(rows, none);
            }
            continue;
        }
        r.config = str_fmt("%s %s %s %s %s/%s/%s/%s/%s z%s b%s/%s %s %s %s %s %s",
                           text(&c, "model"), text(&c, "layers"), text(&c, "hidden"),
                           text(&c, "seq"), text(&c, "gpus"), text(&c, "tp"), text(&c, "pp"),
                           text(&c, "vp"), text(&c, "cp"), text(&c, "zero"),
                           text(&c, "micro_batch"), text(&c, "global_batch"),
                           text(&c, "gpu_type"), text(&c, "precision"), text(&c, "recompute"),
                           text(&c, "sp"), text(&c, "notes"));
        read_how(&r, &c);
        r.why_not = read_layout(&r, &c, s);
        r.machine = machine_of(text(&c, "gpu_type"));
        r.machine = r.machine && s->machine ? s->machine : r.machine;
        r.set = set_of(&r, &c);
        const Way *l = &r.layout;
        r.sweep = str_fmt("%s %g %g %g %g %g %s", r.set, r.shape.layers, r.shape.hidden,
                          r.shape.seq, l->gpus, l->batch, text(&c, "gpu_type"));
        if (r.machine == NULL && r.why_not == NULL)
            r.why_not = "no cluster of this kind in examples/clusters";
        if (has(text(&c, "notes"), "SUSPECT") && r.why_not == NULL)
            r.why_not = "marked as suspect in its source";
        const char *cannot = measured(&r, &c);
        if (r.why_not == NULL)
            r.why_not = cannot;
        bool given = has(text(&c, "notes"), "Table 2, scheme") || r.seen == SEEN_FORWARD ||
                     r.seen == SEEN_BACKWARD;
        r.trains = given || s->split == 1 || (s->split > 1 && data / 2 % (int)s->split == 1);
        data++;
        vec_add(rows, r);
    }
    fclose(f);
}
