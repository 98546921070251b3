/*
 * config.c - the sections train, device, cluster and plan as settings.
 *
 * A section is a table of keys; a row says what kind of value the key takes and
 * where it goes, or names the function that reads it. --set is applied to the
 * tree first, so that a setting given there is read, checked and reported like
 * one of the file. Nothing here knows the model: what must divide what is
 * decided by the passes.
 */
#include "config.h"
#include "profile.h"

/* ---- train ---------------------------------------------------------------- */

static void read_objective(void *into, const Entry *entry)
{
    Train *t = into;
    const Expr *e;
    const char *word = read_head(entry, &e, "next masked");
    Param params[] = {
        { .name = "p", .number = &t->mask_p, .fraction = true },
        { .name = "token", .whole = &t->mask_token, .required = true },
    };

    if (!word)
        return;
    t->objective = strcmp(word, "next") == 0 ? OBJ_NEXT : OBJ_MASKED;
    t->objective_loc = e->loc;
    read_call(e, params, t->objective == OBJ_NEXT ? 0 : COUNT(params));
}

static void read_optimizer(void *into, const Entry *entry)
{
    Train *t = into;
    const Expr *e;
    const char *word = read_head(entry, &e, "adamw sgd");
    Param adamw[] = {
        { .name = "lr", .number = &t->lr },
        { .name = "beta1", .number = &t->beta1, .fraction = true },
        { .name = "beta2", .number = &t->beta2, .fraction = true },
        { .name = "eps", .number = &t->eps, .positive = true },
        { .name = "weight_decay", .number = &t->weight_decay },
    };
    Param sgd[] = {
        { .name = "lr", .number = &t->lr },
        { .name = "momentum", .number = &t->momentum, .fraction = true },
    };

    if (!word)
        return;
    t->optimizer = strcmp(word, "sgd") == 0 ? OPT_SGD : OPT_ADAMW;
    t->optimizer_loc = e->loc;
    if (t->optimizer == OPT_SGD) {
        t->lr = 1e-2;
        read_call(e, sgd, COUNT(sgd));
    } else {
        read_call(e, adamw, COUNT(adamw));
    }
}

static void read_schedule(void *into, const Entry *entry)
{
    Train *t = into;
    const Expr *e;
    const char *word = read_head(entry, &e, "constant cosine linear wsd");
    Param ramp[] = {
        { .name = "warmup", .whole = &t->warmup },
        { .name = "min", .number = &t->lr_min },
    };
    Param wsd[] = {
        { .name = "warmup", .whole = &t->warmup },
        { .name = "decay", .whole = &t->decay, .required = true },
        { .name = "min", .number = &t->lr_min },
    };

    if (!word)
        return;
    t->schedule = *word == 'w' ? SCHED_WSD : *word == 'l' ? SCHED_LINEAR
                : word[2] == 's' ? SCHED_COSINE : SCHED_CONSTANT;
    t->schedule_loc = e->loc;
    if (t->schedule == SCHED_WSD)
        read_call(e, wsd, COUNT(wsd));
    else
        read_call(e, ramp, t->schedule == SCHED_CONSTANT ? 0 : COUNT(ramp));
}

static void read_precision(void *into, const Entry *entry)
{
    static const struct { const char *name; Precision p; } list[] = {
        { "fp64", PREC_FP64 }, { "fp32", PREC_FP32 }, { "bf16", PREC_BF16 },
        { "fp16", PREC_FP16 }, { "fp8", PREC_FP8 },
    };
    Train *t = into;
    const Expr *e = only(entry);
    const char *word = e ? read_word(entry->name, e, "fp64 fp32 bf16 fp16 fp8") : NULL;

    for (int i = 0; word && i < COUNT(list); i++) {
        if (strcmp(word, list[i].name) == 0)
            t->precision = list[i].p;
    }
    if (word)
        t->precision_loc = e->loc;
}

static void read_reduce(void *into, const Entry *entry)
{
    const Expr *e = only(entry);
    const char *word = e ? read_word(entry->name, e, "fp32 bf16") : NULL;

    if (word) {
        ((Train *)into)->reduce_bf16 = strcmp(word, "bf16") == 0;
        ((Train *)into)->reduce_loc = e->loc;
    }
}

static void read_clip(void *into, const Entry *entry)
{
    Num *clip = &((Train *)into)->clip;
    const Expr *e = only(entry);

    if (!e || e->kind == E_NO)
        return;
    if (read_amount(entry->name, e, UNIT_NONE, false, &clip->v)) {
        clip->loc = e->loc;
        clip->set = true;
    }
}

static void add_pattern(Train *t, const Expr *e)
{
    const char *s = read_string("no_decay", e);

    if (s)
        vec_add(&t->no_decay, ((Word){ s, e->loc, true }));
}

static void read_no_decay(void *into, const Entry *entry)
{
    for (int i = 0; i < entry->values.n; i++) {
        const Expr *e = entry->values.at[i];
        if (e->kind != E_LIST)
            add_pattern(into, e);
        for (int j = 0; e->kind == E_LIST && j < e->args.n; j++)
            add_pattern(into, e->args.at[j].value);
    }
}

static void read_validate(void *into, const Entry *entry)
{
    Train *t = into;
    const Expr *e = only(entry);
    Param params[] = {
        { .name = "n", .whole = &t->validate_every, .least = 1, .required = true },
        { .name = "batches", .whole = &t->validate_batches, .least = 1 },
        { .name = "data", .string = &t->validate_data, .required = true },
    };

    if (!e || e->kind == E_NO)
        return;
    if (e->kind != E_CALL || strcmp(e->text, "every") != 0) {
        diag_error(e->loc, "value-type", "`validate` takes `every(...)`, not %s", expr_words(e));
        diag_hint("for example `every(100, batches=4, data=\"valid.txt\")`");
        return;
    }
    t->validate_loc = e->loc;
    read_call(e, params, COUNT(params));
}

static void read_checkpoint(void *into, const Entry *entry)
{
    Train *t = into;
    const Expr *e = only(entry);
    Param params[] = {
        { .name = "n", .whole = &t->checkpoint_every, .least = 1, .required = true },
        { .name = "dir", .string = &t->checkpoint_dir, .required = true },
    };

    if (!e || e->kind == E_NO)
        return;
    if (e->kind != E_CALL || strcmp(e->text, "every") != 0) {
        diag_error(e->loc, "value-type", "`checkpoint` takes `every(...)`, not %s", expr_words(e));
        diag_hint("for example `every(100, \"checkpoints\")`");
        return;
    }
    t->checkpoint_loc = e->loc;
    read_call(e, params, COUNT(params));
}

#define TRAIN(f) offsetof(Train, f)
static const Key train_keys[] = {
    { "data",       K_PATH,  TRAIN(data), .dir = TRAIN(data_dir) },
    { "format",     K_WORD,  TRAIN(format), .words = "auto bytes u16 u32 llmc" },
    { "order",      K_WORD,  TRAIN(order), .words = "sequential shuffle" },
    { "batch",      K_WHOLE, TRAIN(batch), .min = 1, .max = WHOLE_MOST },
    { "sequence",   K_WHOLE, TRAIN(sequence), .min = 1, .max = WHOLE_MOST },
    { "steps",      K_WHOLE, TRAIN(steps), .min = 0, .max = STEPS_MOST },
    { "objective",  K_READ,  .read = read_objective },
    { "optimizer",  K_READ,  .read = read_optimizer },
    { "schedule",   K_READ,  .read = read_schedule },
    { "clip",       K_READ,  .read = read_clip },
    { "precision",  K_READ,  .read = read_precision },
    { "reduce",     K_READ,  .read = read_reduce },
    { "seed",       K_WHOLE, TRAIN(seed), .min = 0, .max = SEED_MOST },
    { "no_decay",   K_READ,  .read = read_no_decay },
    { "validate",   K_READ,  .read = read_validate },
    { "checkpoint", K_READ,  .read = read_checkpoint },
    { "weights",    K_PATH,  TRAIN(weights), .dir = TRAIN(weights_dir) },
    { "log",        K_PATH,  TRAIN(log), .dir = TRAIN(log_dir) },
};

/* ---- device --------------------------------------------------------------- */

/* Slower than a telephone line, or late by a second: a slip, MB/s for GB/s or s for us. */
static const double MODEM = 56e3 / 8, LATE_S = 1;

/* TUNING: slower than the first home computers: a slip, FLOP/s or B/s for T. */
static const double LEAST_RATE = 1e3;

/* What no device is, so that its times and its memory would be no answers either. */
static void check_device(const Device *d)
{
    const struct { const char *key; Num rate; const char *unit, *like; } rates[] = {
        { "bandwidth", d->bandwidth, "B/s", "GB/s, such as 2039 GB/s" },
        { "matrix", d->matrix, "FLOP/s", "TFLOP/s, such as 312 TFLOP/s" },
        { "matrix_fp8", d->matrix_fp8, "FLOP/s", "TFLOP/s, such as 1979 TFLOP/s" },
        { "matrix_fp32", d->matrix_fp32, "FLOP/s", "TFLOP/s, such as 19.5 TFLOP/s" },
        { "matrix_fp64", d->matrix_fp64, "FLOP/s", "TFLOP/s, such as 9.7 TFLOP/s" },
        { "vector", d->vector, "FLOP/s", "TFLOP/s, such as 19.5 TFLOP/s" } };

    for (int i = 0; i < COUNT(rates); i++)
        if (rates[i].rate.set && rates[i].rate.v < LEAST_RATE) {
            diag_error(rates[i].rate.loc, "value-range", "`%s` of %.3g %s makes no sense: at least "
                       "%.0f", rates[i].key, rates[i].rate.v, rates[i].unit, LEAST_RATE);
            diag_hint("data sheets have %s", rates[i].like);
        }
    if (d->launch.set && d->launch.v > LATE_S) {
        diag_error(d->launch.loc, "value-range", "a launch of %s makes no sense: at most %s",
                   str_seconds(d->launch.v), str_seconds(LATE_S));
        diag_hint("kernels start in microseconds, such as 4 us");
    }
    if (d->memory.set && d->reserve.set && d->reserve.v >= d->memory.v) {
        diag_error(d->reserve.loc, "value-range", "a reserve of %s leaves nothing of %s",
                   str_bytes(d->reserve.v), str_bytes(d->memory.v));
        diag_note(d->memory.loc, "the memory stands here");
        diag_hint("the reserve is a part of the memory that others take, such as 1 GiB");
    }
}

#define DEVICE(f) offsetof(Device, f)
static const Key device_keys[] = {
    { "memory",      K_POSITIVE, DEVICE(memory), .unit = UNIT_BYTES },
    { "bandwidth",   K_POSITIVE, DEVICE(bandwidth), .unit = UNIT_RATE },
    { "matrix",      K_POSITIVE, DEVICE(matrix), .unit = UNIT_FLOPS },
    { "matrix_fp8",  K_POSITIVE, DEVICE(matrix_fp8), .unit = UNIT_FLOPS },
    { "matrix_fp32", K_POSITIVE, DEVICE(matrix_fp32), .unit = UNIT_FLOPS },
    { "matrix_fp64", K_POSITIVE, DEVICE(matrix_fp64), .unit = UNIT_FLOPS },
    { "vector",      K_POSITIVE, DEVICE(vector), .unit = UNIT_FLOPS },
    { "launch",      K_AMOUNT,   DEVICE(launch), .unit = UNIT_SECONDS },
    { "reserve",     K_AMOUNT,   DEVICE(reserve), .unit = UNIT_BYTES },
    { "price",       K_AMOUNT,   DEVICE(price), .unit = UNIT_NONE },
    { "arch",        K_NAME,     DEVICE(arch), .words = NULL },
    { "profile",     K_PATH,     DEVICE(profile), .words = NULL },
};

/* ---- cluster -------------------------------------------------------------- */

static const Device *devices;           // for cluster's `node`
static int ndevices;

static int find_device(const Expr *e)
{
    const char *names[64];
    int n = 0;

    for (int i = 0; i < ndevices; i++) {
        const char *name = devices[i].name;
        if (name && strcmp(name, e->text) == 0)
            return i;
        if (name && n < 64)
            names[n++] = name;
    }
    const char *near = str_nearest(e->text, names, n);
    diag_error(e->loc, "unknown-device", "there is no device `%s`", e->text);
    if (near)
        diag_hint("did you mean %s?", near);
    else
        diag_hint("describe it: `device %s { memory = ... }`", e->text);
    return -1;
}

/* `8 * a100`, `a100 * 8` or `a100`. */
static void read_node(void *into, const Entry *entry)
{
    Cluster *c = into;
    const Expr *e = only(entry), *name = e, *count = NULL;

    if (!e)
        return;
    if (e->kind == E_BINARY && e->op == '*') {
        const Expr *a = e->args.at[0].value, *b = e->args.at[1].value;
        name = b->kind == E_NAME ? b : a;
        count = b->kind == E_NAME ? a : b;
    }
    if (name->kind != E_NAME) {
        diag_error(e->loc, "value-type", "`node` takes a number of devices, such as `8 * a100`");
        if ((e->kind == E_BINARY && e->op == '+') || e->kind == E_LIST)
            diag_hint("all devices of a cluster are alike: describe the slower kind, or one "
                      "cluster of each");
        return;
    }
    c->device = find_device(name);
    c->per_node = (Num){ 1, e->loc, true };
    if (count && !read_whole("node", count, UNIT_NONE, 1, WHOLE_MOST, &c->per_node.v))
        c->per_node.v = 1;
}

static void check_pair(const char *name, const Num *rate, const Num *latency)
{
    if (rate->set && rate->v < MODEM) {
        diag_error(rate->loc, "value-range", "`%s` of %s/s is slower than a modem (%s/s)", name,
                   str_bytes(rate->v), str_bytes(MODEM));
        diag_hint("data sheets have GB/s of one direction, such as 25 GB/s");
    }
    if (latency->set && latency->v > LATE_S) {
        diag_error(latency->loc, "value-range", "a latency of %s makes no sense for `%s`: at most "
                   "%s", str_seconds(latency->v), name, str_seconds(LATE_S));
        diag_hint("messages take microseconds, such as 8 us");
    }
}

static void read_pair(const char *name, const Expr *const *at, Num *rate, Num *latency)
{
    if (read_amount(name, at[0], UNIT_RATE, false, &rate->v)) {
        rate->loc = at[0]->loc;
        rate->set = true;
    }
    if (read_amount(name, at[1], UNIT_SECONDS, true, &latency->v)) {
        latency->loc = at[1]->loc;
        latency->set = true;
    }
    check_pair(name, rate, latency);
}

static bool has_values(const Entry *entry, int n, const char *what)
{
    const Exprs *v = &entry->values;

    if (v->n == n)
        return true;
    diag_error((Loc){ v->at[0]->loc.start, v->at[v->n - 1]->loc.end }, "value-type",
               "`%s` takes %s, not %d", entry->name, plural(n, "value"), v->n);
    diag_hint("write `%s = %s`", entry->name, what);
    return false;
}

static void read_link(void *into, const Entry *entry)
{
    Cluster *c = into;

    if (has_values(entry, 2, "300 GB/s, 3 us"))
        read_pair("link", (const Expr *const *)entry->values.at, &c->link_rate, &c->link_latency);
}

static void read_network(void *into, const Entry *entry)
{
    Cluster *c = into;

    if (has_values(entry, 2, "25 GB/s, 8 us"))
        read_pair("network", (const Expr *const *)entry->values.at, &c->network_rate,
                  &c->network_latency);
}

static void read_spine(void *into, const Entry *entry)
{
    Cluster *c = into;
    const Expr *const *at = (const Expr *const *)entry->values.at;

    if (!has_values(entry, 3, "32 nodes, 12 GB/s, 10 us"))
        return;
    if (read_whole("spine", at[0], UNIT_NODES, 1, WHOLE_MOST, &c->spine_nodes.v)) {
        c->spine_nodes.loc = at[0]->loc;
        c->spine_nodes.set = true;
    }
    read_pair("spine", at + 1, &c->spine_rate, &c->spine_latency);
}

#define CLUSTER(f) offsetof(Cluster, f)
static const Key cluster_keys[] = {
    { "nodes",   K_WHOLE, CLUSTER(nodes), .min = 1, .max = WHOLE_MOST },
    { "node",    K_READ,  .read = read_node },
    { "link",    K_READ,  .read = read_link },
    { "network", K_READ,  .read = read_network },
    { "ports",   K_WHOLE, CLUSTER(ports), .min = 1, .max = WHOLE_MOST },
    { "spine",   K_READ,  .read = read_spine },
};

/* ---- plan ----------------------------------------------------------------- */

static bool read_list(const Entry *entry, const Expr *e, const char *what)
{
    if (e->kind == E_LIST && e->args.n > 0)
        return true;
    diag_error(e->loc, "value-type", "`%s` takes %s, not %s", entry->name, what,
               e->kind == E_LIST ? "an empty list" : expr_words(e));
    return false;
}

static void read_cube(void *into, const Entry *entry)
{
    PlanSpec *p = into;
    const Expr *e = only(entry);

    if (!e || !read_list(entry, e, "a list such as `[1, 4, 1]`"))
        return;
    if (e->args.n != 3) {
        diag_error(e->loc, "value-type", "`cube` has the three sides x, y and z, not %d",
                   e->args.n);
        return;
    }
    p->cube_loc = e->loc;
    for (int i = 0; i < 3; i++) {
        const Expr *side = e->args.at[i].value;
        Num *to = &p->cube[i];
        if (side->kind == E_AUTO)
            continue;
        if (read_whole("cube", side, UNIT_NONE, 1, WHOLE_MOST, &to->v)) {
            to->loc = side->loc;
            to->set = true;
        }
    }
}

static void read_slices(void *into, const Entry *entry)
{
    PlanSpec *p = into;
    const Expr *e = only(entry);
    double v;

    if (!e)
        return;
    if (e->kind == E_CALL && strcmp(e->text, "uniform") == 0) {
        Param n = { .name = "n", .whole = &p->slices_n, .least = 1, .required = true };
        p->slices_kind = SLICES_UNIFORM;
        p->slices_loc = e->loc;
        read_call(e, &n, 1);
        return;
    }
    if (!read_list(entry, e, "a list of lengths, `uniform(n)` or `auto`"))
        return;
    p->slices_kind = SLICES_LIST;
    p->slices_loc = e->loc;
    for (int i = 0; i < e->args.n; i++) {
        if (read_whole("slices", e->args.at[i].value, UNIT_NONE, 1, WHOLE_MOST, &v))
            vec_add(&p->slices, (int64_t)v);
    }
    p->slices_n = p->slices.n;
}

static void read_recompute(void *into, const Entry *entry)
{
    PlanSpec *p = into;
    const Expr *e;
    const char *word = read_head(entry, &e, "none attention full");
    Param n = { .name = "n", .whole = &p->recompute_n, .least = 1, .required = true };

    if (!word)
        return;
    p->recompute = (Word){ word, e->loc, true };
    if (e->kind == E_CALL)
        read_call(e, &n, strcmp(word, "full") == 0);
}

static void read_partition(void *into, const Entry *entry)
{
    PlanSpec *p = into;
    const Expr *e;
    const char *word = read_head(entry, &e, "1d 2d 3d summa");
    Param q = { .name = "q", .whole = &p->summa_q, .least = 1, .required = true };

    if (!word)
        return;
    p->partition = (Word){ word, e->loc, true };
    read_call(e, &q, strcmp(word, "summa") == 0);
}

static void read_ranks(void *into, const Entry *entry)
{
    static const char axes[] = "stage data x y z";
    PlanSpec *p = into;
    const Expr *e = only(entry);

    if (!e || !read_list(entry, e, "a list such as `[stage, data, x, y, z]`"))
        return;
    p->ranks_loc = e->loc;
    for (int i = 0; i < e->args.n; i++) {
        const Expr *axis = e->args.at[i].value;
        const char *word = read_word("ranks", axis, axes);
        for (int j = 0; word && j < i; j++) {
            if (strcmp(word, e->args.at[j].value->text ? e->args.at[j].value->text : "") == 0) {
                diag_error(axis->loc, "duplicate-name", "axis `%s` is given twice", word);
                diag_note(e->args.at[j].value->loc, "it is given here first");
                return;
            }
        }
        if (!word)
            return;
        vec_add(&p->ranks, word);
    }
    if (p->ranks.n != 5)
        diag_error(e->loc, "value-type", "`ranks` orders all five axes, not %d", p->ranks.n);
}

static void read_turns(void *into, const Entry *entry)
{
    PlanSpec *p = into;
    const Expr *e = only(entry);
    double v;

    if (!e || !read_list(entry, e, "a list such as `[3, 3, 2]`"))
        return;
    p->turns_loc = e->loc;
    for (int i = 0; i < e->args.n; i++) {
        if (read_whole("turns", e->args.at[i].value, UNIT_NONE, 0, WHOLE_MOST, &v))
            vec_add(&p->turns, (int64_t)v);
    }
}

#define PLAN(f) offsetof(PlanSpec, f)
static const Key plan_keys[] = {
    { "data",         K_WHOLE, PLAN(data), .min = 1, .max = WHOLE_MOST },
    { "pipeline",     K_WHOLE, PLAN(pipeline), .min = 1, .max = WHOLE_MOST },
    { "chunks",       K_WHOLE, PLAN(chunks), .min = 1, .max = WHOLE_MOST },
    { "cube",         K_READ,  .read = read_cube },
    { "microbatch",   K_WHOLE, PLAN(microbatch), .min = 1, .max = WHOLE_MOST },
    { "slices",       K_READ,  .read = read_slices },
    { "schedule",     K_WORD,  PLAN(schedule), .words = "gpipe 1f1b" },
    { "recompute",    K_READ,  .read = read_recompute },
    { "zero",         K_WHOLE, PLAN(zero), .min = 0, .max = 3 },
    { "partition",    K_READ,  .read = read_partition },
    { "ranks",        K_READ,  .read = read_ranks },
    { "turns",        K_READ,  .read = read_turns },
    { "attention",    K_WORD,  PLAN(attention), .words = "local gather exchange" },
    { "rows",         K_WORD,  PLAN(rows), .words = "plain balanced" },
    { "keep",         K_WORD,  PLAN(keep), .words = "none inputs weights both" },
    { "vectors",      K_WORD,  PLAN(vectors), .words = "whole sharded" },
    { "logits_chunk", K_WHOLE, PLAN(logits_chunk), .min = 1, .max = WHOLE_MOST },
    { "prefetch",     K_WHOLE, PLAN(prefetch), .min = 0, .max = 1000000 },
};

/* ---- sections in general -------------------------------------------------- */

const Kind kinds[NKINDS] = {
    { "train", train_keys, COUNT(train_keys) },
    { "device", device_keys, COUNT(device_keys) },
    { "cluster", cluster_keys, COUNT(cluster_keys) },
    { "plan", plan_keys, COUNT(plan_keys) },
};

const Kind *find_kind(const char *name)
{
    for (int i = 0; i < COUNT(kinds); i++) {
        if (strcmp(kinds[i].kind, name) == 0)
            return &kinds[i];
    }
    return NULL;
}

const Key *find_key(const Kind *kind, const char *name)
{
    for (int i = 0; i < kind->n; i++) {
        if (strcmp(kind->keys[i].name, name) == 0)
            return &kind->keys[i];
    }
    return NULL;
}

void unknown_key(const Kind *kind, Loc loc, const char *name)
{
    const char *names[32];

    for (int i = 0; i < kind->n; i++)
        names[i] = kind->keys[i].name;
    const char *near = str_nearest(name, names, kind->n);
    diag_error(loc, "unknown-key", "a %s section has no key `%s`", kind->kind, name);
    if (kind->keys == train_keys && is_among(name, "lr beta1 beta2 eps weight_decay momentum")) {
        diag_hint("write it in the parentheses of `optimizer = adamw(...)`");
        return;
    }
    if (kind->keys == train_keys && is_among(name, "warmup decay min")) {
        diag_hint("write it in the parentheses of `schedule = cosine(...)`");
        return;
    }
    if (near) {
        diag_hint("did you mean %s?", near);
        return;
    }
    for (int i = 0; i < COUNT(kinds); i++) {
        if (find_key(&kinds[i], name)) {
            diag_hint("`%s` belongs to %s", name, kinds[i].kind);
            return;
        }
    }
    Text all = { 0 };
    for (int i = 0; i < kind->n; i++)
        text_add(&all, "%s%s", i ? " " : "", names[i]);
    diag_hint("its keys are %s", all.at);
}

static void *at_offset(void *into, size_t offset)
{
    return (char *)into + offset;
}

static void read_number(const Key *key, const Expr *e, Num *to)
{
    double v;
    bool fine = key->kind == K_WHOLE
              ? read_whole(key->name, e, key->unit, key->min, key->max, &v)
              : read_amount(key->name, e, key->unit, key->kind == K_AMOUNT, &v);

    if (fine)
        *to = (Num){ v, e->loc, true };
}

static void read_text(const Key *key, const Expr *e, void *into)
{
    const char *v;

    if (key->kind == K_WORD)
        v = read_word(key->name, e, key->words);
    else if (key->kind == K_NAME && e->kind == E_NAME)
        v = e->text;
    else
        v = read_string(key->name, e);
    if (!v)
        return;
    *(Word *)at_offset(into, key->at) = (Word){ v, e->loc, true };
    if (key->dir)
        *(const char **)at_offset(into, key->dir) = source_dir(e->loc.start);
}

static void read_entry(const Key *key, const Entry *entry, void *into)
{
    if (key->kind == K_READ) {
        key->read(into, entry);
        return;
    }
    const Expr *e = only(entry);
    if (!e)
        return;
    if (key->kind == K_WHOLE || key->kind == K_POSITIVE || key->kind == K_AMOUNT)
        read_number(key, e, at_offset(into, key->at));
    else
        read_text(key, e, into);
}

/* Reads a section into its struct, which holds the defaults. */
static void read_section(const Section *s, void *into)
{
    const Kind *kind = find_kind(s->kind);
    bool is_plan = strcmp(s->kind, "plan") == 0;

    for (int i = 0; i < s->entries.n; i++) {
        const Entry *e = &s->entries.at[i];
        const Key *key = find_key(kind, e->name);
        const Entry *first = NULL;
        for (int j = 0; j < i && !first; j++) {
            if (s->entries.at[j].name == e->name)
                first = &s->entries.at[j];
        }
        if (first) {
            diag_error(e->loc, "duplicate-key", "`%s` is given twice", e->name);
            diag_note(first->loc, "it is given here first");
        } else if (!key) {
            unknown_key(kind, e->loc, e->name);
        } else if (!(is_plan && e->values.n == 1 && e->values.at[0]->kind == E_AUTO)) {
            read_entry(key, e, into);
        }
    }
}

static void need(const Section *s, bool given, const char *key, const char *like)
{
    if (given)
        return;
    if (s->name)
        diag_error(s->loc, "missing-key", "%s `%s` has no `%s`", s->kind, s->name, key);
    else
        diag_error(s->loc, "missing-key", "the %s section has no `%s`", s->kind, key);
    diag_hint("write `%s = %s`, for example", key, like);
}

static bool has_entry(const Section *s, const char *key)
{
    for (int i = 0; i < s->entries.n; i++) {
        if (strcmp(s->entries.at[i].name, key) == 0)
            return true;
    }
    return false;
}

/* ---- each section --------------------------------------------------------- */

static Train train_defaults(void)
{
    return (Train){
        .data_dir = ".", .weights_dir = ".", .log_dir = ".",
        .format = { "auto", { 0, 0 }, false }, .order = { "sequential", { 0, 0 }, false },
        .batch = { .v = 1 }, .sequence = { .v = 1 }, .steps = { .v = 1 },
        .mask_p = 0.15, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
        .precision = PREC_FP32, .validate_batches = 1,
    };
}

static void check_schedule(const Train *t)
{
    int64_t steps = (int64_t)t->steps.v, ramps = t->warmup + t->decay;

    if (t->schedule == SCHED_CONSTANT)
        return;
    if (t->lr_min > t->lr) {
        diag_error(t->schedule_loc, "value-range", "`min` is %s, more than the lr of %s",
                   number_words(t->lr_min), number_words(t->lr));
        if (t->optimizer_loc.end)
            diag_note(t->optimizer_loc, "the optimizer is given here");
    }
    if (!t->steps.set) {
        diag_error(t->schedule_loc, "missing-key", "the schedule needs `steps`");
    } else if (ramps > steps && steps > 0) {
        diag_error(t->schedule_loc, "value-range",
                   "%s %s; the training has %" PRId64,
                   t->decay ? "warmup and decay take" : "the warmup takes",
                   plural(ramps, "step"), steps);
        diag_note(t->steps.loc, "steps = %" PRId64 " stands here", steps);
    }
}

static void read_train(Config *c, const Section *s)
{
    int errors = diag_errors();

    c->has_train = true;
    c->train.loc = s->loc;
    read_section(s, &c->train);
    need(s, has_entry(s, "batch"), "batch", "8");
    need(s, has_entry(s, "sequence"), "sequence", "1024");
    if (diag_errors() == errors)
        check_schedule(&c->train);
}

static void read_device(Config *c, const Section *s, bool no_profiles)
{
    Device d = { .name = s->name, .loc = s->loc };

    read_section(s, &d);
    if (!has_entry(s, "profile")) {
        need(s, has_entry(s, "memory"), "memory", "80 GB");
        need(s, has_entry(s, "bandwidth"), "bandwidth", "2039 GB/s");
        need(s, has_entry(s, "matrix"), "matrix", "312 TFLOP/s");
        need(s, has_entry(s, "vector"), "vector", "19.5 TFLOP/s");
    }
    if (d.profile.set)
        d.profile.v = path_join(source_dir(d.profile.loc.start), d.profile.v);
    if (d.profile.set && !no_profiles)
        d.rates = profile_read(d.profile.v, d.profile.loc);
    if (d.rates && !d.memory.set && d.rates->memory > 0)        // a device is a core
        d.memory = (Num){ d.rates->memory / d.rates->cores, d.profile.loc, true };
    check_device(&d);
    if (!d.matrix_fp32.set)
        d.matrix_fp32.v = d.vector.v;
    vec_add(&c->devices, d);
}

static Cluster read_cluster(const Section *s)
{
    Cluster c = { .name = s->name, .loc = s->loc, .device = -1, .nodes = { .v = 1 },
                  .ports = { .v = 1 } };

    read_section(s, &c);
    need(s, has_entry(s, "node"), "node", "8 * a100");
    need(s, c.per_node.v <= 1 || has_entry(s, "link"), "link", "300 GB/s, 3 us");
    need(s, c.nodes.v <= 1 || has_entry(s, "network"), "network", "25 GB/s, 8 us");
    double total = c.nodes.v * c.per_node.v;
    if (total > WHOLE_MOST)
        diag_error(c.loc, "value-range", "the cluster has %s devices; at most %s are possible",
                   number_words(total), number_words(WHOLE_MOST));
    return c;
}

static PlanSpec read_plan(const Section *s)
{
    PlanSpec p = { .name = s->name, .loc = s->loc };

    read_section(s, &p);
    return p;
}

/* ---- all together --------------------------------------------------------- */

/* A section of the same kind and name; several plans need names. */
static void check_twice(const Ast *ast, int i)
{
    const Section *s = &ast->sections.at[i];

    for (int j = 0; j < i; j++) {
        const Section *first = &ast->sections.at[j];
        if (first->kind != s->kind)
            continue;
        bool unnamed = !first->name || !s->name;
        if (first->name != s->name && !unnamed)
            continue;
        if (strcmp(s->kind, "train") == 0)
            diag_error(s->loc, "duplicate-section", "a second train section is given");
        else if (unnamed && strcmp(s->kind, "plan") == 0)
            diag_error(s->loc, "duplicate-section", "several plans need names");
        else if (!unnamed)
            diag_error(s->loc, "duplicate-section", "%s `%s` is given twice", s->kind, s->name);
        else
            continue;
        diag_note(first->loc, "the first one stands here");
        if (unnamed && strcmp(s->kind, "plan") == 0)
            diag_hint("write `plan NAME { ... }` and choose one with --plan NAME");
        return;
    }
}

static void choose_plans(Config *c, const Choice *plan)
{
    VEC(PlanSpec) all = { 0 };

    for (int i = 0; i < c->plans.n; i++)
        vec_add(&all, c->plans.at[i]);
    if (plan->many && plan->chosen) {       // in the order of the option
        c->plans.n = 0;
        for (const char *w = plan->chosen; *w;) {
            size_t n = strcspn(w, ",");
            const char *name = str_of(w, n);
            for (int i = 0; i < all.n; i++) {
                if (all.at[i].name == name)
                    vec_add(&c->plans, all.at[i]);
            }
            w += n + (w[n] == ',');
        }
    }
    for (int i = 0; i < c->plans.n && !c->has_plan; i++) {
        c->has_plan = is_chosen(plan, c->plans.at[i].name);
        if (c->has_plan)
            c->plan = c->plans.at[i];
    }
}

/* The rates of a cluster's device have to be of such devices, in such nodes. */
static void check_rates(const Config *c)
{
    const Cluster *k = &c->cluster;
    const Device *d = c->has_cluster && k->device >= 0 ? &c->devices.at[k->device] : NULL;
    const Profile *f = d ? d->rates : NULL;
    bool gpu = d && arch_is_gpu(d->arch.v);

    if (f == NULL)
        return;
    if (gpu != f->is_device && d->arch.v) {
        diag_error(d->profile.loc, "profile-machine", "the profile is of %s, %s",
                   f->is_device ? "GPUs" : "processors", f->cpu);
        diag_note(d->arch.loc, "arch = %s stands here", d->arch.v);
    } else if (f->cluster && f->per_node != (int)k->per_node.v) {
        diag_error(d->profile.loc, "profile-cluster", "the profile is of %s, nodes of %s; those "
                   "of %s have %d", f->cluster, plural(f->per_node, "device"), k->name,
                   (int)k->per_node.v);
        diag_note(k->per_node.loc, "its nodes stand here");
        diag_hint("measure it: teracube profile FILE --target %s -o DIR", gpu ? "cuda" : "cpu");
    } else if (f->cluster && f->nodes < (int)k->nodes.v) {
        diag_warning(d->profile.loc, "profile-cluster", "%s were measured; groups in more of the "
                     "%d of %s are priced like those", plural(f->nodes, "node"), (int)k->nodes.v,
                     k->name);
    }
}

/*
 * The rates of this machine: without a cluster, of the devices with a profile the one that
 * is of this machine. A cluster of `arch = cpu` is made of this machine's cores too.
 */
static void find_here(Config *c)
{
    const Device *first = NULL;

    if (c->has_cluster) {
        const Device *d = c->cluster.device < 0 ? NULL : &c->devices.at[c->cluster.device];
        if (d && d->rates && d->arch.v && strcmp(d->arch.v, "cpu") == 0 &&
            profile_is_here(d->rates, d->profile.loc))
            c->here = d->rates;         // run and verify leave the cluster aside
        return;
    }
    for (int i = 0; i < c->devices.n; i++) {
        const Device *d = &c->devices.at[i];
        Profile here = profile_here();
        first = first || !d->rates ? first : d;
        if (d->rates && !c->here && profile_same(d->rates, &here))
            c->here = d->rates;
    }
    if (first && !c->here)
        profile_is_here(first->rates, first->profile.loc);
}

static void read_all(Config *c, const Choice *plan, const Choice *cluster, bool no_profiles)
{
    const Ast *ast = c->ast;

    for (int i = 0; i < ast->sections.n; i++) {
        check_twice(ast, i);
        if (strcmp(ast->sections.at[i].kind, "device") == 0)
            read_device(c, &ast->sections.at[i], no_profiles);
    }
    devices = c->devices.at;
    ndevices = c->devices.n;
    for (int i = 0; i < ast->sections.n; i++) {
        const Section *s = &ast->sections.at[i];
        if (strcmp(s->kind, "train") == 0 && !c->has_train) {
            read_train(c, s);
        } else if (strcmp(s->kind, "plan") == 0) {
            PlanSpec p = read_plan(s);
            vec_add(&c->plans, p);
        } else if (strcmp(s->kind, "cluster") == 0) {
            Cluster one = read_cluster(s);
            if (!c->has_cluster && is_chosen(cluster, s->name)) {
                c->cluster = one;
                c->has_cluster = true;
            }
        }
    }
    choose_plans(c, plan);
    check_rates(c);
    find_here(c);
}

Config *config_read(Ast *ast, const Inputs *in)
{
    Config *c = NEW(Config);
    Choice plan = make_choice("plan", in->plan, in->many_plans);
    Choice cluster = make_choice("cluster", in->cluster, false);

    c->ast = ast;
    c->train = train_defaults();
    for (int i = 0; i < in->nsets; i++)
        apply_setting(c, in->more && i >= in->from ? in->more : "--set", in->sets[i], &plan,
                      &cluster);
    check_choice(ast, &plan);
    check_choice(ast, &cluster);
    read_all(c, &plan, &cluster, in->no_profiles);
    return c;
}
