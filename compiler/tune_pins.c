/*
 * tune_pins.c - what the plan section pins: as words, and pins that contradict each other
 * or the cluster, found before anything is searched. Both places are named.
 */
#include "partition.h"
#include "tune.h"

/* ---- as words ---------------------------------------------------------------------- */

static const char *list_text(const int64_t *at, int n)
{
    Text t = { 0 };
    for (int i = 0; i < n; i++)
        text_add(&t, "%s%" PRId64, i ? ", " : "", at[i]);
    return t.n ? str_fmt("[%s]", t.at) : "[]";
}

static void add(TunePins *out, const char *key, const char *value, Loc loc)
{
    if (out->n < (int)(sizeof out->at / sizeof *out->at))
        out->at[out->n++] = (TunePin){ key, value, loc };
}

static void add_num(TunePins *out, const char *key, Num n)
{
    if (n.set)
        add(out, key, str_fmt("%.0f", n.v), n.loc);
}

static void add_word(TunePins *out, const char *key, Word w)
{
    if (w.v)
        add(out, key, w.v, w.loc);
}

static const char *side_text(Num n) { return n.set ? str_fmt("%.0f", n.v) : "auto"; }

TunePins tune_pins(const PlanSpec *s)
{
    TunePins out = { 0 };
    add_num(&out, "data", s->data);
    add_num(&out, "pipeline", s->pipeline);
    add_num(&out, "chunks", s->chunks);
    if (s->cube[0].set || s->cube[1].set || s->cube[2].set)
        add(&out, "cube", str_fmt("[%s, %s, %s]", side_text(s->cube[0]), side_text(s->cube[1]),
                                  side_text(s->cube[2])), s->cube_loc);
    add_num(&out, "microbatch", s->microbatch);
    if (s->slices_kind == SLICES_UNIFORM)
        add(&out, "slices", str_fmt("uniform(%" PRId64 ")", s->slices_n), s->slices_loc);
    if (s->slices_kind == SLICES_LIST)
        add(&out, "slices", list_text(s->slices.at, s->slices.n), s->slices_loc);
    add_word(&out, "schedule", s->schedule);
    if (s->recompute_n)
        add(&out, "recompute", str_fmt("full(%" PRId64 ")", s->recompute_n), s->recompute.loc);
    else
        add_word(&out, "recompute", s->recompute);
    add_num(&out, "zero", s->zero);
    if (s->turns.n)
        add(&out, "turns", list_text(s->turns.at, s->turns.n), s->turns_loc);
    if (word_is(s->partition, "summa"))
        add(&out, "partition", str_fmt("summa(%" PRId64 ")", s->summa_q), s->partition.loc);
    else
        add_word(&out, "partition", s->partition);
    if (s->ranks.n)
        add(&out, "ranks", str_fmt("[%s, %s, %s, %s, %s]", s->ranks.at[0], s->ranks.at[1],
                                   s->ranks.at[2], s->ranks.at[3], s->ranks.at[4]), s->ranks_loc);
    add_word(&out, "attention", s->attention);
    add_word(&out, "rows", s->rows);
    add_word(&out, "keep", s->keep);
    add_word(&out, "vectors", s->vectors);
    add_num(&out, "logits_chunk", s->logits_chunk);
    return out;
}

/* ---- contradictions ------------------------------------------------------------------ */

static void note_pin(const char *key, int64_t v, Loc loc, Loc shown)
{
    if (loc.end && loc.start != shown.start)
        diag_note(loc, "%s = %" PRId64 " stands here", key, v);
}

/* The product of what is pinned of the mesh must divide the devices. */
static void check_devices(const Config *c, int64_t devices)
{
    const PlanSpec *s = &c->plan;
    const struct { const char *key; Num n; Loc loc; } part[] = {
        { "data", s->data, s->data.loc }, { "pipeline", s->pipeline, s->pipeline.loc },
        { "x", s->cube[0], s->cube_loc }, { "y", s->cube[1], s->cube_loc },
        { "z", s->cube[2], s->cube_loc } };
    int64_t product = 1;
    int pinned = 0, shown = -1;
    Text what = { 0 };
    for (int i = 0; i < 5; i++)
        if (part[i].n.set) {
            int64_t v = (int64_t)part[i].n.v;
            if (v > devices || product > devices)
                product = devices + 1;
            else
                product *= v;
            text_add(&what, "%s%s = %" PRId64, pinned++ ? ", " : "", part[i].key, v);
            if (part[i].loc.end && (shown < 0 || devices % v))
                shown = i;
        }
    bool fits = pinned == 5 ? product == devices : product <= devices && devices % product == 0;
    if (fits)
        return;
    Loc at = shown >= 0 ? part[shown].loc : s->loc;
    diag_error(at, "devices-match", "%s %s %s", what.at, pinned == 5 ? "do not make"
               : pinned > 1 ? "do not divide" : "does not divide",
               plural(devices, c->has_cluster ? "device" : "core"));
    Loc before = at;
    for (int i = 0; i < 5; i++)
        if (part[i].n.set && part[i].loc.start != before.start) {
            note_pin(part[i].key, (int64_t)part[i].n.v, part[i].loc, at);
            before = part[i].loc;
        }
    if (c->has_cluster && c->cluster.nodes.loc.end)
        diag_note(c->cluster.nodes.loc, "%s of %s", plural((int64_t)c->cluster.nodes.v, "node"),
                  plural((int64_t)c->cluster.per_node.v, "device"));
    diag_hint("leave one of them out, and tune chooses it");
}

static void check_batch(const Config *c)
{
    const PlanSpec *s = &c->plan;
    int64_t batch = c->train.batch.v > 0 ? (int64_t)c->train.batch.v : 1;
    int64_t d = s->data.set ? (int64_t)s->data.v : 1;
    int64_t b = s->microbatch.set ? (int64_t)s->microbatch.v : 1;
    if (d <= batch && b <= batch && batch % (d * b) == 0)
        return;
    Loc at = s->microbatch.set && batch % d == 0 ? s->microbatch.loc : s->data.loc;
    diag_error(at, "batch-divides", "a batch of %" PRId64 " does not split into %s%s%s", batch,
               s->data.set ? plural(d, "replica") : "", s->data.set && s->microbatch.set
               ? " of " : "", s->microbatch.set ? str_fmt("microbatches of %" PRId64, b) : "");
    note_pin("data", d, s->data.loc, at);
    note_pin("microbatch", b, s->microbatch.loc, at);
    note_pin("batch", batch, c->train.batch.loc, at);
    diag_hint("leave one of them out, and tune chooses it");
}

static void check_pair(Num a, Num b, bool wrong, const char *key, const char *what)
{
    if (!a.set || !b.set || !wrong)
        return;
    diag_error(a.loc, "no-effect", "%s = %.0f needs more than one %s", key, a.v, what);
    diag_note(b.loc, "and there is one: %.0f stands here", b.v);
    diag_hint("leave one of them out, and tune chooses it");
}

static void check_layers(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    int64_t P = s->pipeline.set ? (int64_t)s->pipeline.v : 1;
    int64_t v = s->chunks.set ? (int64_t)s->chunks.v : 1, sum = 0;
    if (p->layers == 0) {
        diag_error(p->ops.at[p->nforward - 1].loc, "layers-cover", "this model repeats nothing, "
                   "and tune lays out turns");
        diag_hint("write its layers as a `repeat` of one turn or more; `teracube plan` takes it as "
                  "it is");
        return;
    }
    if (P * v > p->layers) {
        Loc at = P > p->layers || !s->chunks.set ? s->pipeline.loc : s->chunks.loc;
        diag_error(at, "layers-cover", "%s for %s", v > 1 ? str_fmt("%s of %s", plural(v, "chunk"),
                   plural(P, "stage")) : plural(P, "stage"), plural(p->layers, "turn"));
        note_pin("pipeline", P, s->pipeline.loc, at);
        note_pin("chunks", v, s->chunks.loc, at);
        diag_hint("pipeline * chunks can be at most %d", p->layers);
        return;
    }
    for (int i = 0; i < s->turns.n; i++)
        sum += s->turns.at[i];
    bool counts = s->pipeline.set && s->chunks.set ? s->turns.n != P * v
                : s->turns.n % (P * v) != 0;
    if (s->turns.n && (sum != p->layers || counts)) {
        diag_error(s->turns_loc, "layers-cover", "%s that add up to %" PRId64 "; the model's "
                   "repeats have %d turns", plural(s->turns.n, "entry"), sum, p->layers);
        note_pin("pipeline", P, s->pipeline.loc, s->turns_loc);
        note_pin("chunks", v, s->chunks.loc, s->turns_loc);
        diag_hint("leave the turns out: they are cut by cost");
    }
}

static void check_slices(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    int64_t sum = 0, n = s->slices_kind == SLICES_UNIFORM ? s->slices_n : s->slices.n;
    for (int i = 0; i < s->slices.n; i++)
        sum += s->slices.at[i];
    if (s->slices_kind == SLICES_LIST && sum != p->is.sequence) {
        diag_error(s->slices_loc, "slices-sum", "the slices add up to %" PRId64
                   ", the sequence has %s", sum, plural(p->is.sequence, "token"));
        note_pin("sequence", p->is.sequence, p->config->train.sequence.loc, s->slices_loc);
        diag_hint("leave the slices out, and tune chooses them");
    }
    if (s->slices_kind != SLICES_AUTO && n > 1 && p->sees_ahead) {
        diag_error(p->sees_ahead_loc, "slice-causal", "this attention sees ahead, so its sequence "
                   "cannot be cut into slices");
        diag_note(s->slices_loc, "%" PRId64 " slices are asked for here", n);
    }
}

static void check_family(const PlanSpec *s, int64_t devices)
{
    bool flat = word_is(s->partition, "1d"), square = flat || word_is(s->partition, "2d");
    bool summa = word_is(s->partition, "summa");
    double q = (double)s->summa_q;
    const Num *side = s->cube;
    bool wrong = ((square || summa) && side[0].set && side[0].v > 1) ||
                 (flat && side[2].set && side[2].v > 1) ||
                 (summa && ((side[1].set && side[1].v != q) || (side[2].set && side[2].v != q)));
    if (wrong) {
        const char *is = summa ? str_fmt("summa(%" PRId64 ")", s->summa_q) : s->partition.v;
        diag_error(s->partition.loc, "partition", "partition = %s is the grid %s", is,
                   summa ? str_fmt("[1, %" PRId64 ", %" PRId64 "]", s->summa_q, s->summa_q)
                         : flat ? "[1, p, 1]" : "[1, q, r]");
        diag_note(s->cube_loc, "the cube stands here");
        diag_hint("leave one of them out, and tune chooses it");
    } else if (summa && (q * q > (double)devices || devices % (s->summa_q * s->summa_q))) {
        int64_t r = 1;
        for (int64_t i = 1; i * i <= devices; i++)
            r = devices % (i * i) ? r : i;
        diag_error(s->partition.loc, "devices-match", "summa(%" PRId64 ") takes squares of %.0f "
                   "devices, and %s do not split into them", s->summa_q, q * q,
                   plural(devices, "device"));
        diag_hint("of these devices q can be %" PRId64 " at most", r);
    }
}

void tune_check(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    check_devices(p->config, tune_devices(p->config));
    check_batch(p->config);
    check_pair(s->zero, s->data, s->zero.v > 0 && s->data.v == 1, "zero", "replica");
    check_pair(s->chunks, s->pipeline, s->chunks.v > 1 && s->pipeline.v == 1, "chunks", "stage");
    check_layers(p);
    check_slices(p);
    mesh_check_pins(p);
    check_family(s, tune_devices(p->config));
}
