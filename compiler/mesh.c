/*
 * mesh.c - sizes of the axes and the choices of a plan, from what the user
 * pinned and what the model admits; every check of language.md section 6 that
 * needs no layout.
 *
 * Without a cluster the machine is this one: as many ranks as the plan asks
 * for. With a cluster and no cube, all factorisations are ordered by the words a
 * rank receives in a turn (design.md 2) and the first legal one is taken.
 */
#include <unistd.h>

#include "partition.h"

static const char *list_of(const int64_t *v, int n, const char *last)
{
    const char *s = "";
    for (int i = 0; i < n; i++)
        s = str_fmt("%s%s%" PRId64, s, i == 0 ? "" : i + 1 == n ? last : ", ", v[i]);
    return s;
}

/* ---- checks ------------------------------------------------------------------ */

int kv_rep(const Plan *p, const Op *a)
{
    return p->is.y > a->kv_heads ? p->is.y / a->kv_heads : 1;
}

/* heads-divide, for one size of y. Blocks of a matrix in summa(q) have no copies. */
static bool heads_split(int heads, int kv_heads, int y, bool summa)
{
    return heads % y == 0 && (kv_heads % y == 0 || (!summa && y % kv_heads == 0));
}

bool family_allows(const PlanSpec *s, int x, int y, int z)
{
    if (word_is(s->partition, "1d"))
        return x == 1 && z == 1;
    if (word_is(s->partition, "2d"))
        return x == 1;
    return !word_is(s->partition, "summa") || (x == 1 && y == s->summa_q && z == s->summa_q);
}

/* Where the side of the cube, 0 1 2 for x y z, is written. */
Loc mesh_side(const Plan *p, int side)
{
    const PlanSpec *s = &p->config->plan;
    if (p->is.summa)
        return s->partition.loc;
    return s->cube[side].loc.end ? s->cube[side].loc : s->cube_loc;
}

static void report_heads(const Plan *p, const Op *o)
{
    const Choices *is = &p->is;
    int y = is->y;
    char side = is->summa ? 'q' : 'y';
    if (o->heads % y)
        diag_error(o->heads_loc, "heads-divide", "%s not split over %c = %d",
                   o->heads == 1 ? "1 head does" : str_fmt("%d heads do", o->heads), side, y);
    else if (is->summa)
        diag_error(o->kv_loc, "heads-divide", "%d kv heads do not split over q = %d", o->kv_heads,
                   y);
    else
        diag_error(o->kv_loc, "heads-divide", "%d kv heads neither split over y = %d nor divide it",
                   o->kv_heads, y);
    if (mesh_side(p, 1).end)
        diag_note(mesh_side(p, 1), "%c = %d stands here", side, y);
    int64_t legal[64];
    int n = 0;
    for (int k = 1; k <= o->heads && n < 12; k++)
        if (mesh_fits(p, is->data, is->x, k, is->summa ? k : is->z))
            legal[n++] = k;
    for (int k = 1; k <= o->heads && n == 0; k++)
        if (heads_split(o->heads, o->kv_heads, k, is->summa))
            legal[n++] = k;
    if (is->summa)
        diag_hint("q can be %s; to use more devices, raise data or pipeline",
                  list_of(legal, n, " or "));
    else
        diag_hint("y can be %s; to use %d times as many devices, raise x or pipeline",
                  list_of(legal, n, " or "), y);
}

static bool check_heads(const Plan *p)
{
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind == OP_ATTN && !heads_split(o->heads, o->kv_heads, p->is.y, p->is.summa)) {
            report_heads(p, o);
            return false;
        }
    }
    return true;
}

static void check_rows(const Plan *p)
{
    const Choices *is = &p->is;
    const PlanSpec *s = &p->config->plan;
    int64_t step = is->x * lcm64(is->y, is->z);
    if (is->T % step) {
        int64_t b = step / gcd64(step, is->sequence);
        diag_error(s->cube_loc.end ? s->cube_loc : s->loc, "rows-divide", "%s of %s %s not "
                   "a multiple of x*lcm(y, z) = %" PRId64, plural(is->microbatch, "sequence"),
                   plural(is->sequence, "token"), is->microbatch > 1 ? "are" : "is", step);
        if (p->config->train.batch.loc.end)
            diag_note(p->config->train.batch.loc, "the batch of %" PRId64 " stands here",
                      is->batch);
        int64_t micro = b, unit = b * is->data;
        while (is->batch / is->data % micro && micro < is->batch / is->data)
            micro += b;
        if (is->batch % is->data || is->batch / is->data % micro)
            micro = b;
        int64_t batch = (is->batch + unit - 1) / unit * unit;
        const char *fits = !s->microbatch.set ? str_fmt("a batch of %" PRId64 " fits", batch)
            : batch == is->batch ? str_fmt("microbatch = %" PRId64 " fits", micro)
            : str_fmt("microbatch = %" PRId64 " and a batch of %" PRId64 " fit", micro, batch);
        diag_hint("%s, or a sequence that is a multiple of %" PRId64, fits,
                  step / gcd64(step, is->microbatch));
    }
    if (is->balanced && is->sequence % (2 * is->x * is->z)) {
        diag_error(s->rows.loc, "rows-divide", "balanced rows need a sequence that is a multiple "
                   "of 2*x*z = %d, not %" PRId64, 2 * is->x * is->z, is->sequence);
        int64_t unit = lcm64(2 * is->x * is->z, step / gcd64(step, is->microbatch));
        diag_hint("write rows = plain, or a sequence of %" PRId64,
                  (is->sequence + unit - 1) / unit * unit);
    }
}

static void check_slices(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    int64_t sum = 0, n = 1;
    if (s->slices_kind == SLICES_LIST) {
        for (int i = 0; i < s->slices.n; i++)
            sum += s->slices.at[i];
        n = s->slices.n;
        if (sum != p->is.sequence) {
            diag_error(s->slices_loc, "slices-sum", "the slices add up to %" PRId64
                       ", the sequence has %s", sum, plural(p->is.sequence, "token"));
            if (p->config->train.sequence.loc.end)
                diag_note(p->config->train.sequence.loc, "the sequence stands here");
            if (n > 0 && sum - s->slices.at[n - 1] < p->is.sequence)
                diag_hint("make the last slice %" PRId64,
                          s->slices.at[n - 1] + p->is.sequence - sum);
        }
    } else if (s->slices_kind == SLICES_UNIFORM) {
        n = s->slices_n;
        int64_t step = p->is.x * lcm64(p->is.y, p->is.z);
        if (n > p->is.sequence) {
            diag_error(s->slices_loc, "slices-sum", "%s of %s", plural(n, "slice"),
                       plural(p->is.sequence, "token"));
            int64_t most = p->is.sequence / (step / gcd64(step, p->is.microbatch));
            if (most > 0)               // none fits: check_rows tells
                diag_hint("at most uniform(%" PRId64 ")", most);
        }
    }
    if (n > 1 && p->sees_ahead) {
        diag_error(p->sees_ahead_loc, "slice-causal",
                   "this attention sees ahead, so its sequence cannot be cut into slices");
        diag_note(s->slices_loc, "%" PRId64 " slices are asked for here", n);
        diag_hint("use slices = uniform(1), or causal=yes");
    }
}

/* "[3, 3, 2]": n shares of all turns, the larger first. */
static const char *even_turns(int layers, int n)
{
    const char *s = "[";
    for (int i = 0; i < n && i < 64; i++)
        s = str_fmt("%s%s%d", s, i ? ", " : "", layers / n + (i < layers % n));
    return str_fmt("%s]", s);
}

static void hint_turns(const Plan *p, int n)
{
    if (n <= p->layers)                 // else there are too many stages, which is said too
        diag_hint("write turns = %s", even_turns(p->layers, n));
}

static void check_turns(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    int chunks = s->chunks.set ? (int)s->chunks.v : 1;
    int64_t sum = 0;
    if (s->turns.n) {
        for (int i = 0; i < s->turns.n; i++)
            sum += s->turns.at[i];
        if (sum != p->layers) {
            diag_error(s->turns_loc, "layers-cover", "turns add up to %" PRId64
                       ", the model's repeats have %d", sum, p->layers);
            hint_turns(p, p->is.stages * chunks);
        } else if (s->turns.n != p->is.stages * chunks) {
            diag_error(s->turns_loc, "layers-cover", "%s for %s of %s",
                       plural(s->turns.n, "entry"), plural(p->is.stages, "stage"),
                       plural(chunks, "chunk"));
            hint_turns(p, p->is.stages * chunks);
        }
    }
    for (int i = 0; i < s->turns.n && !diag_errors(); i++)
        if (s->turns.at[i] < 1) {
            diag_error(s->turns_loc, "layers-cover", "entry %d of the turns is 0: a stage%s "
                       "without turns", i, chunks > 1 ? "'s chunk" : "");
            hint_turns(p, p->is.stages * chunks);
            break;
        }
    if (p->is.stages > 1 && chunks > 1 && p->is.stages * chunks > p->layers) {
        diag_error(s->chunks.loc, "layers-cover", "%d chunks on each of %d stages, for %s",
                   chunks, p->is.stages, plural(p->layers, "turn"));
        if (p->layers / p->is.stages > 0)
            diag_hint("chunks can be at most %d", p->layers / p->is.stages);
        else
            diag_hint("pipeline can be at most %d", p->layers);
    } else if (p->is.stages > 1 && p->is.stages > p->layers) {
        diag_error(s->pipeline.loc, "layers-cover", "%s for %s",
                   plural(p->is.stages, "stage"), plural(p->layers, "turn"));
        diag_hint("pipeline can be at most %d", p->layers);
    }
}

static void local_rows(const PlanSpec *s)
{
    diag_error(s->rows.loc, "no-effect", "balanced rows spread each sequence over x and z, local "
               "attention keeps it whole");
}

void mesh_check_pins(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    bool summa = word_is(s->partition, "summa") && s->summa_q > 1;
    if (summa && s->keep.v && !word_is(s->keep, "none")) {
        diag_error(s->keep.loc, "no-effect", "partition = summa(q) sends its blocks again for "
                   "every product: keep = %s finds nothing to keep", s->keep.v);
        diag_hint("write keep = none");
    }
    if (s->recompute.v && strcmp(s->recompute.v, "attention") == 0) {
        bool any = false;
        for (int i = 0; i < p->nforward; i++)
            any |= p->ops.at[i].kind == OP_ATTN;
        if (!any) {
            diag_error(s->recompute.loc, "no-effect", "the model has no attention to recompute");
            diag_hint("write recompute = none");
        }
    }
    if (s->recompute_n > p->layers) {
        diag_error(s->recompute.loc, "no-effect", "recompute = full(%" PRId64 "): the model has %s",
                   s->recompute_n, plural(p->layers, "turn"));
        diag_hint("write recompute = full");
    }
    if (word_is(s->rows, "balanced") && word_is(s->attention, "local"))
        local_rows(s);
}

static void check_effect(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    if (s->zero.set && s->zero.v > 0 && p->is.data == 1) {
        diag_error(s->zero.loc, "no-effect", "zero = %d shards over data, and data is 1",
                   (int)s->zero.v);
        diag_hint("write zero = 0, or raise data");
    }
    if (s->chunks.set && s->chunks.v > 1 && p->is.stages == 1) {
        diag_error(s->chunks.loc, "no-effect", "chunks = %d interleaves stages, and there is one",
                   (int)s->chunks.v);
        diag_hint("write chunks = 1, or raise pipeline");
    }
    mesh_check_pins(p);
}

/* Cubes of n devices that the model admits, at most four. */
static const char *fitting_cubes(const Plan *p, int64_t n)
{
    const char *list[4];
    int found = 0;
    for (int64_t x = 1; x <= n && found < 4; x++)
        for (int64_t y = n / x; n % x == 0 && y >= 1 && found < 4; y--)
            if (n / x % y == 0 && family_allows(&p->config->plan, (int)x, (int)y,
                                                (int)(n / x / y)) &&
                mesh_fits(p, p->is.data, (int)x, (int)y, (int)(n / x / y)))
                list[found++] = str_fmt("[%" PRId64 ", %" PRId64 ", %" PRId64 "]", x, y, n / x / y);
    const char *s = found ? list[0] : NULL;
    for (int i = 1; i < found; i++)
        s = str_fmt("%s%s%s", s, i + 1 < found ? ", " : " or ", list[i]);
    return s;
}

static void check_devices(const Plan *p)
{
    const Config *c = p->config;
    const Choices *is = &p->is;
    if (!c->has_cluster)
        return;
    int64_t have = (int64_t)(c->cluster.nodes.v * c->cluster.per_node.v);
    int64_t want = (int64_t)is->data * is->stages * is->x * is->y * is->z;
    if (have == want)
        return;
    Loc at = c->plan.cube_loc.end ? c->plan.cube_loc : c->plan.loc.end ? c->plan.loc
                                                                       : c->cluster.loc;
    diag_error(at, "devices-match", "the plan uses %s (data %d, pipeline %d, "
               "cube [%d, %d, %d]), the cluster has %" PRId64, plural(want, "device"), is->data,
               is->stages,
               is->x, is->y, is->z, have);
    if (c->cluster.nodes.loc.end)
        diag_note(c->cluster.nodes.loc, "%s of %s",
                  plural((int64_t)c->cluster.nodes.v, "node"),
                  plural((int64_t)c->cluster.per_node.v, "device"));
    int64_t inner = (int64_t)is->stages * is->x * is->y * is->z;
    int64_t outer = (int64_t)is->data * is->stages;
    const char *cubes = have % outer == 0 && have / outer <= 65536 ? fitting_cubes(p, have / outer)
                                                                   : NULL;
    if (have % inner == 0 && mesh_fits(p, (int)(have / inner), is->x, is->y, is->z))
        diag_hint("data = %" PRId64 " fits%s%s", have / inner, cubes ? ", or cube = " : "",
                  cubes ? cubes : "");
    else if (cubes)
        diag_hint("cube = %s fits", cubes);
    else
        diag_hint("data * pipeline * x * y * z must be %" PRId64 "; `teracube tune` looks for what "
                  "fits", have);
}

/* ---- choices ------------------------------------------------------------------- */

/* What a search over grids needs of the model, added up once. */
typedef struct {
    double in_a, out_a, in_b, out_b, weights;   // widths of linears entered in A, in B
    double params;
} Sums;

static Sums sum_model(const Plan *p)
{
    Sums s = { 0 };
    bool from_a = true;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind != OP_LINEAR)
            continue;
        int64_t in = p->tensors.at[o->in[0]].width, out = p->tensors.at[o->out[0]].width;
        *(from_a ? &s.in_a : &s.in_b) += (double)in;
        *(from_a ? &s.out_a : &s.out_b) += (double)out;
        s.weights += (double)in * (double)out;
        from_a = !from_a;
    }
    for (int i = 0; i < p->params.n; i++)
        s.params += (double)p->params.at[i].rows * (double)p->params.at[i].width;
    return s;
}

/* Words a rank receives in a forward pass over all linears, taken to alternate
 * between A and B: T*in*(y-1) + T*out*(z-1) + in*out*(x-1) over x*y*z, and with
 * y and z exchanged. */
static double words(const Sums *s, int x, int y, int z, double T)
{
    double v = T * ((s->in_a + s->out_b) * (y - 1) + (s->out_a + s->in_b) * (z - 1)) +
               s->weights * (x - 1);
    return v / ((double)x * y * z);
}

/* ---- what must divide ----------------------------------------------------------- */

static void add_heads(const Plan *p, MeshSizes *s, const Op *o)
{
    HeadSize h = { .heads = o->heads, .kv_heads = o->kv_heads, .causal = o->causal, .count = 1,
                   .queries = p->tensors.at[o->in[0]].width,
                   .keys = p->tensors.at[o->in[1]].width,
                   .values = p->tensors.at[o->in[2]].width };
    for (int i = 0; i < s->heads.n; i++) {
        HeadSize *k = &s->heads.at[i];
        if (k->heads == h.heads && k->kv_heads == h.kv_heads && k->causal == h.causal &&
            k->queries == h.queries && k->keys == h.keys && k->values == h.values) {
            k->count++;
            return;
        }
    }
    vec_add(&s->heads, h);
}

static void add_linear(MeshSizes *s, int64_t in, int64_t out)
{
    LinearSize l = { in, out, 0 };
    for (int i = 0; i < s->linears.n; i++)
        if (s->linears.at[i].in == in && s->linears.at[i].out == out)
            return;
    for (int i = 0; i < s->heads.n; i++) {
        const HeadSize *h = &s->heads.at[i];
        if (h->keys == out && (l.kv_heads == 0 || h->kv_heads < l.kv_heads))
            l.kv_heads = h->kv_heads;
    }
    vec_add(&s->linears, l);
}

const MeshSizes *mesh_sizes(const Plan *p)
{
    MeshSizes *s = NEW(MeshSizes);
    s->summa = word_is(p->config->plan.partition, "summa") && p->config->plan.summa_q > 1;
    for (int i = 0; i < p->nforward; i++)
        if (p->ops.at[i].kind == OP_ATTN)
            add_heads(p, s, &p->ops.at[i]);
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        for (int j = 1; o->kind == OP_LINEAR && j < o->nin; j++) {
            const Param *w = &p->params.at[p->tensors.at[o->in[j]].param];
            int64_t out = o->transposed ? w->rows : w->width;
            add_linear(s, p->tensors.at[o->in[0]].width, out == p->vocab && out > 1 ? 0 : out);
        }
    }
    return s;
}

bool mesh_splits(const MeshSizes *s, int y, int z)
{
    for (int i = 0; i < s->heads.n; i++)
        if (!heads_split(s->heads.at[i].heads, s->heads.at[i].kv_heads, y, s->summa))
            return false;
    for (int i = 0; i < s->linears.n; i++) {
        const LinearSize *l = &s->linears.at[i];
        bool copied = l->kv_heads && l->kv_heads < y && !s->summa;
        if (l->in % z || l->in % y || (!copied && (l->out % y || l->out % z)))
            return false;
    }
    return true;
}

bool mesh_fits(const Plan *p, int data, int x, int y, int z)
{
    const PlanSpec *s = &p->config->plan;
    int64_t each = p->is.batch / data, b = s->microbatch.set ? (int64_t)s->microbatch.v : each;
    if (p->is.batch % data || each % b || b * p->is.sequence % (x * lcm64(y, z)))
        return false;
    return mesh_splits(p->sizes ? p->sizes : mesh_sizes(p), y, z);
}

/* Best grid of `n` devices with what is pinned; false: none fits. */
static bool search_grid(Plan *p, int64_t n)
{
    const PlanSpec *s = &p->config->plan;
    Choices best = p->is;
    Sums sums = sum_model(p);
    double least = HUGE_VAL;
    for (int d = 1; d <= n; d++) {
        if (n % d || (s->data.set && d != (int)s->data.v))
            continue;
        for (int x = 1; x <= n / d; x++)
            for (int y = 1; (n / d) % x == 0 && y <= n / d / x; y++) {
                if ((n / d / x) % y)
                    continue;
                int z = (int)(n / d / x / y);
                if ((s->cube[0].set && (x != p->is.x || y != p->is.y || z != p->is.z)) ||
                    !family_allows(s, x, y, z))
                    continue;
                double T = (double)(p->is.batch / d * p->is.sequence);
                double v = 3 * words(&sums, x, y, z, T) +
                           2 * sums.params / ((double)x * y * z) * (d - 1) / d;
                if (v < least && mesh_fits(p, d, x, y, z)) {
                    least = v;
                    best.data = d, best.x = x, best.y = y, best.z = z;
                }
            }
    }
    p->is = best;
    return least < HUGE_VAL;
}

static void choose_grid(Plan *p)
{
    const Config *c = p->config;
    const PlanSpec *s = &c->plan;
    Choices *is = &p->is;
    is->data = s->data.set ? (int)s->data.v : 1;
    is->stages = s->pipeline.set ? (int)s->pipeline.v : 1;
    is->x = s->cube[0].set ? (int)s->cube[0].v : 1;
    is->y = s->cube[1].set ? (int)s->cube[1].v : 1;
    is->z = s->cube[2].set ? (int)s->cube[2].v : 1;
    if (word_is(s->partition, "summa") && !s->cube[0].set)
        is->y = is->z = (int)s->summa_q;
    if (word_is(s->partition, "summa") && family_allows(s, is->x, is->y, is->z) && is->y > 1)
        is->summa = is->y;
    if (!c->has_cluster || (s->data.set && s->cube[0].set))
        return;
    int64_t n = (int64_t)(c->cluster.nodes.v * c->cluster.per_node.v);
    if (n % is->stages == 0 && n / is->stages <= 65536)
        search_grid(p, n / is->stages);
}

/* Can the slices that are written down have balanced rows? Others are chosen to fit. */
static bool slices_balance(const PlanSpec *s, const Choices *is)
{
    int64_t each = 2 * is->x * is->z, step = is->x * lcm64(is->y, is->z);
    bool fit = true;
    if (s->slices_kind == SLICES_UNIFORM)
        fit = s->slices_n * lcm64(each, step / gcd64(step, is->microbatch)) <= is->sequence;
    for (int i = 0; s->slices_kind == SLICES_LIST && i < s->slices.n; i++)
        fit &= s->slices.at[i] % each == 0;
    return fit;
}

Attend mesh_attend(const PlanSpec *s, const MeshSizes *sizes, const Choices *is)
{
    int xz = is->x * is->z;
    Attend a = { .whole = is->microbatch % xz == 0, .splits = true };
    bool causal = true;
    for (int i = 0; i < sizes->heads.n; i++) {
        const HeadSize *h = &sizes->heads.at[i];
        double kv = (double)(h->keys + h->values), share = (double)(xz - 1) / xz * h->count;
        a.splits &= h->heads % (is->y * xz) == 0 && h->kv_heads % (is->y * xz) == 0;
        causal &= h->causal;
        a.gather += kv / (is->y < h->kv_heads ? is->y : h->kv_heads) * share;
        a.exchange += (kv + 2.0 * (double)h->queries) / is->y / xz * share;
    }
    const char *pin = s->attention.v;
    bool balanced = s->rows.v && strcmp(s->rows.v, "balanced") == 0;
    bool plain = s->rows.v && strcmp(s->rows.v, "plain") == 0;
    if (pin)
        a.attention = strcmp(pin, "local") == 0 ? ATT_LOCAL
                    : strcmp(pin, "exchange") == 0 ? ATT_EXCHANGE : ATT_GATHER;
    else
        a.attention = a.whole && !balanced ? ATT_LOCAL
                    : a.splits && a.exchange < a.gather ? ATT_EXCHANGE : ATT_GATHER;
    bool can = a.attention == ATT_GATHER && xz > 1 && is->sequence % (2 * xz) == 0;
    a.balanced = balanced || (!plain && can && causal && slices_balance(s, is));
    return a;
}

static void report_exchange(const Plan *p)
{
    const Choices *is = &p->is;
    int ways = is->y * is->x * is->z;
    diag_error(p->config->plan.attention.loc, "attention-heads", "exchange needs heads and kv "
               "heads that are multiples of x*y*z = %d", ways);
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind == OP_ATTN && (o->heads % ways || o->kv_heads % ways)) {
            diag_note(o->loc, "%s and %s here", plural(o->heads, "head"),
                      plural(o->kv_heads, "kv head"));
            break;
        }
    }
    diag_hint("use attention = gather");
}

static void report_local(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    const Choices *is = &p->is;
    int xz = is->x * is->z;
    diag_error(s->attention.loc, "batch-divides", "local attention needs a microbatch that is "
               "a multiple of x*z = %d, not %" PRId64, xz, is->microbatch);
    int64_t micro = (is->microbatch + xz - 1) / xz * xz, unit = micro * is->data;
    if (!s->microbatch.set)
        diag_hint("use attention = gather, or a batch of %" PRId64, unit);
    else if (is->batch % unit == 0)
        diag_hint("use attention = gather, or microbatch = %" PRId64, micro);
    else
        diag_hint("use attention = gather, or microbatch = %" PRId64 " and a batch of %" PRId64,
                  micro, (is->batch + unit - 1) / unit * unit);
}

static void choose_attention(Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    Choices *is = &p->is;
    if (p->sizes == NULL)
        p->sizes = mesh_sizes(p);
    Attend a = mesh_attend(s, p->sizes, is);
    const char *pin = s->attention.v;
    if (pin && strcmp(pin, "exchange") == 0 && !a.splits)
        report_exchange(p);
    if (pin && strcmp(pin, "local") == 0 && !a.whole)
        report_local(p);
    is->attention = a.attention;
    is->balanced = a.balanced;
    is->attention_why = pin ? "pinned"
        : is->attention == ATT_LOCAL ? "every rank has whole sequences"
        : is->attention == ATT_EXCHANGE
        ? str_fmt("words moved for a token: exchange %.3g, gather %.3g", a.exchange, a.gather)
        : !a.splits ? "heads do not split over x*y*z, so keys and values are gathered over x and z"
        : str_fmt("words moved for a token: gather %.3g, exchange %.3g", a.gather, a.exchange);
    if (word_is(s->rows, "balanced") && is->attention == ATT_LOCAL &&
        !word_is(s->attention, "local"))
        local_rows(s);
}

/* Tokens of the loss's chunks, of R in an x share: a divisor that z divides; near `want`. */
static int64_t chunk_near(int64_t R, int z, int64_t want, bool at_most)
{
    int64_t below = 0, above = 0;           // the nearest legal sizes around `want`
    for (int64_t d = 1; d * d <= R; d++)
        for (int k = 0; k < 2 && R % d == 0; k++) {
            int64_t c = k ? R / d : d;
            if (c % z)
                continue;
            if (c <= want)
                below = c > below ? c : below;
            else if (above == 0 || c < above)
                above = c;
        }
    return (at_most && below) || below * 4 >= want || above == 0 ? below : above;
}

/* TUNING: 64 MB of logits, but at least 256 rows so that the product runs at full speed. */
static int64_t wanted_chunk(const Plan *p, int y)
{
    int64_t bytes = (p->is.precision == PREC_FP64 ? 8 : 4) *
                    ((p->vocab + y - 1) / y);
    int64_t want = (INT64_C(64) << 20) / bytes;
    return want < 256 ? 256 : want;
}

int64_t mesh_chunk(const Plan *p, const Choices *is, int64_t rows)
{
    const PlanSpec *s = &p->config->plan;
    if (p->vocab <= 0 || is->summa)
        return rows;
    if (s->logits_chunk.set)
        return chunk_near(rows, is->z, (int64_t)s->logits_chunk.v, true);
    return chunk_near(rows, is->z, wanted_chunk(p, is->y), false);
}

static void choose_chunk(Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    Choices *is = &p->is;
    int64_t R = is->T / is->x;
    if (is->summa) {                    // rows stay where they are: no chunks of them
        is->logits_chunk = R;
        if (s->logits_chunk.set && (int64_t)s->logits_chunk.v != R) {
            diag_error(s->logits_chunk.loc, "no-effect", "partition = summa(q) makes the logits "
                       "of all %" PRId64 " tokens at once", R);
            diag_hint("leave logits_chunk out, or write logits_chunk = %" PRId64, R);
        }
        return;
    }
    if (s->logits_chunk.set && p->vocab > 0) {
        int64_t want = (int64_t)s->logits_chunk.v;
        if (want <= 0 || R % want || want % is->z) {
            int64_t near = is->z;
            for (int64_t c = is->z; c <= R && c <= (want > 0 ? want : 1); c += is->z)
                if (R % c == 0)
                    near = c;
            diag_error(s->logits_chunk.loc, "rows-divide", "logits_chunk must divide the %" PRId64
                       " tokens of an x share and be a multiple of z = %d", R, is->z);
            diag_hint("%" PRId64 " fits", near);
        }
        is->logits_chunk = want;
        return;
    }
    is->logits_chunk = mesh_chunk(p, is, R);
}

static void choose_room(Plan *p)
{
    const Config *c = p->config;
    Choices *is = &p->is;
    int64_t ranks = plan_ranks(p);
    if (c->any_room) {
        is->room_bytes = INT64_MAX;
        is->room_what = "any";
        return;
    }
    if (c->has_cluster && c->cluster.device >= 0) {
        const Device *d = &c->devices.at[c->cluster.device];
        is->room_bytes = d->memory.set ? (int64_t)(d->memory.v - d->reserve.v) : INT64_MAX;
        is->room_what = str_fmt("%s of %s", str_bytes((double)is->room_bytes), d->name);
        return;
    }
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    is->room_bytes = pages * page / ranks;
    is->room_what = str_fmt("%s of this machine / %s", str_bytes((double)(pages * page)),
                            plural(ranks, "rank"));
}

/* Copies run beside products where they have a stream of their own: on a GPU. */
static void choose_prefetch(Plan *p)
{
    const Config *c = p->config;
    const Device *d = c->has_cluster && c->cluster.device >= 0
        ? &c->devices.at[c->cluster.device] : NULL;
    Choices *is = &p->is;
    is->prefetch = d && arch_is_gpu(d->arch.v);
    is->prefetch_why = is->prefetch ? "weights are gathered under the turn before" : NULL;
    if (c->plan.prefetch.set) {
        is->prefetch = (int)c->plan.prefetch.v;
        is->prefetch_why = "pinned";
    }
}

/* The first thing of the plan that this version cannot lay out. */
static void find_refused(Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    const Train *t = &p->config->train;
    struct { bool is; const char *what; Loc loc; const char *hint; } list[] = {
        { p->is.stages > 63, "more than 63 stages", s->pipeline.loc, "pipeline = 63" },
        { t->precision > PREC_BF16, "fp16 and fp8", t->precision_loc, "precision = bf16" },
        { t->reduce_bf16, "reduce = bf16", t->reduce_loc, "reduce = fp32" },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].is) {
            p->is.refused = list[i].what;
            p->is.refused_loc = list[i].loc;
            p->is.refused_hint = list[i].hint;
            return;
        }
}

static void check_partition(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    const Choices *is = &p->is;
    if (family_allows(s, is->x, is->y, is->z))
        return;
    const char *grid = word_is(s->partition, "1d") ? "1d is the grid [1, p, 1]"
        : word_is(s->partition, "2d") ? "2d is the grid [1, q, r]"
        : str_fmt("summa(%" PRId64 ") is the grid [1, %" PRId64 ", %" PRId64 "]", s->summa_q,
                  s->summa_q, s->summa_q);
    diag_error(s->partition.loc, "partition", "partition = %s, the cube is [%d, %d, %d]", grid,
               is->x, is->y, is->z);
    if (s->cube_loc.end)
        diag_note(s->cube_loc, "the cube stands here");
    diag_hint("write partition = 3d");
}

void mesh_choose(Plan *p)
{
    const Config *c = p->config;
    const PlanSpec *s = &c->plan;
    Choices *is = &p->is;
    is->batch = c->train.batch.v > 0 ? (int64_t)c->train.batch.v : 1;
    is->sequence = c->train.sequence.v > 0 ? (int64_t)c->train.sequence.v : 1;
    is->precision = c->train.precision;
    p->sizes = mesh_sizes(p);           // before linears are fused: the same, but quicker
    choose_grid(p);
    check_devices(p);
    is->zero = s->zero.set ? (int)s->zero.v : 0;
    if (!s->zero.set && is->data > 1)
        is->zero = 1;
    int64_t micro = s->microbatch.set ? (int64_t)s->microbatch.v : 0;
    if (is->batch % ((micro ? micro : 1) * is->data)) {
        Loc at = s->data.loc.end ? s->data.loc : micro ? s->microbatch.loc : c->train.batch.loc;
        int64_t unit = (micro ? micro : 1) * is->data, each = is->batch / is->data, less = micro;
        diag_error(at, "batch-divides", "a batch of %" PRId64 " does not split into data = %d "
                   "replicas of microbatches of %" PRId64, is->batch, is->data, micro ? micro : 1);
        if (c->train.batch.loc.end && at.start != c->train.batch.loc.start)
            diag_note(c->train.batch.loc, "the batch stands here");
        int64_t fits = (is->batch + unit - 1) / unit * unit;
        int64_t step = is->x * lcm64(is->y, is->z);
        while ((micro ? micro : fits / is->data) * is->sequence % step && fits < unit * step * 2)
            fits += unit;
        while (less > 1 && (each % less || less * is->sequence % step))
            less--;
        if (micro && is->batch % is->data == 0 && less && less * is->sequence % step == 0)
            diag_hint("microbatch = %" PRId64 " fits, or a batch of %" PRId64, less, fits);
        else
            diag_hint("a batch of %" PRId64 " fits", fits);
        micro = 1;
    }
    is->microbatch = micro ? micro : is->batch / is->data;
    if (is->microbatch < 1)
        is->microbatch = 1;
    is->T = is->microbatch * is->sequence;
    is->nslices = 1;
    is->chunks = s->chunks.set ? (int)s->chunks.v : 1;
    is->recompute = word_is(s->recompute, "attention") ? RECOMPUTE_ATTENTION
                  : word_is(s->recompute, "full") ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    is->recompute_turns = s->recompute_n > 0 ? (int)s->recompute_n : INT32_MAX;
    is->slice = NEWN(int64_t, 1);
    is->slice[0] = is->sequence;
    bool heads_fine = check_heads(p);
    choose_attention(p);
    if (c->has_train)
        check_rows(p);
    check_slices(p);
    check_turns(p);
    check_effect(p);
    check_partition(p);
    choose_chunk(p);
    choose_room(p);
    is->shard_vectors = word_is(s->vectors, "sharded") || (!s->vectors.v && is->zero >= 2);
    is->vectors_why = s->vectors.v ? "pinned"
        : is->zero >= 2 ? "sharded: those of a turn travel together over data"
        : "whole: no gather in any turn, one sum at the end";
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t ranks = plan_ranks(p);
    if (is->workers == 0)
        is->workers = cores > ranks ? (int)(cores / ranks) : 1;
    choose_prefetch(p);
    find_refused(p);
    if (diag_errors() && heads_fine && p->is.refused == NULL)
        partition_check(p);
}

void mesh_open(Plan *p, int64_t ranks)
{
    const Train *t = &p->config->train;
    Choices *is = &p->is;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    is->batch = t->batch.v > 0 ? (int64_t)t->batch.v : 1;
    is->sequence = t->sequence.v > 0 ? (int64_t)t->sequence.v : 1;
    is->precision = t->precision;
    is->stages = is->x = is->y = is->z = is->chunks = is->nslices = 1;
    is->data = (int)ranks;
    choose_room(p);
    choose_prefetch(p);
    is->data = 1;
    is->microbatch = 1;
    is->T = is->sequence;
    is->slice = NEWN(int64_t, 1);
    is->slice[0] = is->sequence;
    if (is->workers == 0)
        is->workers = cores > ranks ? (int)(cores / ranks) : 1;
}

bool mesh_feed(Plan *p, int64_t b)
{
    const PlanSpec *s = &p->config->plan;
    Choices *is = &p->is;
    int64_t T = b * is->sequence, chunk = s->logits_chunk.set ? (int64_t)s->logits_chunk.v : 0;
    if (T % (is->x * lcm64(is->y, is->z)) || (chunk && T / is->x % chunk) ||
        (word_is(s->attention, "local") && b % (is->x * is->z)))
        return false;
    is->microbatch = b;
    is->T = T;
    choose_attention(p);
    choose_chunk(p);
    return true;
}
