/*
 * hash.c - what a plan hangs on, as four numbers: the model, how it is trained, the cluster
 * and the price list. A plan block of `tune --write` carries them in a comment,
 *
 *     # tuned for model HASH train HASH cluster HASH prices HASH
 *
 * and a command that reads it says which of them has changed since.
 */
#include "predict.h"

const char *const hash_word[] = { "model", "train", "cluster", "prices" };

static uint64_t hash_text(uint64_t h, const char *s) { return hash_bytes(s, strlen(s) + 1, h); }

static void add_whole(Text *t, const int64_t *n, int count)
{
    for (int i = 0; i < count; i++) {
        text_bytes(t, " ", 1);
        text_number(t, n[i]);
    }
}

static void add_real(Text *t, double x)         // mostly nothing is given
{
    if (x == 0 && !signbit(x))
        text_bytes(t, " 0", 2);
    else
        text_add(t, " %g", x);
}

/* Of what the model computes: operators, operands, attributes, parameters. */
static uint64_t model_hash(const Plan *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    Text t = { 0 };                 // the same room for all
    for (int i = 0; i < p->params.n; i++) {
        const Param *w = &p->params.at[i];
        t.n = 0;
        text_add(&t, "%s %d %" PRId64 " %" PRId64, w->name, w->kind, w->rows, w->width);
        h = hash_text(h, t.at);
    }
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        t.n = 0;
        text_add(&t, "%s %s", op_word[o->kind], o->name);
        add_real(&t, o->c);
        add_whole(&t, (int64_t[]){ o->parts, o->heads, o->kv_heads, o->causal, o->window }, 5);
        add_real(&t, o->scale);
        add_real(&t, o->softcap);
        add_real(&t, o->theta);
        add_whole(&t, (int64_t[]){ o->rotary, o->interleaved }, 2);
        text_bytes(&t, "", 1);
        h = hash_bytes(t.at, t.n, h);
    }
    return h;
}

static uint64_t cluster_hash(const Config *c)
{
    uint64_t h = 0xcbf29ce484222325u;
    if (!c->has_cluster)
        return hash_text(h, "this machine");
    const Cluster *k = &c->cluster;
    h = hash_text(h, str_fmt("%s %g %g %g %g %g %g %g", k->name, k->nodes.v, k->per_node.v,
        k->link_rate.v, k->link_latency.v, k->network_rate.v, k->network_latency.v, k->ports.v));
    if (k->device >= 0 && k->device < c->devices.n) {
        const Device *d = &c->devices.at[k->device];
        h = hash_text(h, str_fmt("%s %g %g %g %g %g", d->name, d->memory.v, d->bandwidth.v,
            d->matrix.v, d->vector.v, d->reserve.v));
    }
    return h;
}

/* What a layout's time and memory hang on. */
static uint64_t train_hash(const Train *t)
{
    return hash_text(0, str_fmt("%g %g %d %d %g %d %d", t->batch.v, t->sequence.v, t->precision,
                                t->optimizer, t->momentum, t->clip.v > 0, t->reduce_bf16));
}

/* The measured rates, or what some things cost by the data sheet: that changes with its
 * figures and with our own opinions. */
static uint64_t prices_hash(const Plan *p)
{
    const Config *c = p->config;
    const Device *d = c->has_cluster && c->cluster.device >= 0 ? &c->devices.at[c->cluster.device]
                                                               : NULL;
    const Profile *f = d ? d->rates : c->here;
    Text t = { 0 };
    if (f)
        profile_text(f, &t);
    else if (d) {
        Prices w = price_list(p);
        text_add(&t, "%.9g %.9g %.9g %.9g", w.launch, price_bytes(&w, 1e8),
                 price_product(&w, FORM_NN, 4096, 4096, 4096, 2, 0),
                 price_product(&w, FORM_TN, 1024, 512, 8192, 2, 0));
    } else
        text_add(&t, "assumed");
    return hash_bytes(t.at, t.n, 0);
}

uint64_t plan_hash(const Plan *p, HashOf of)
{
    return of == HASH_MODEL ? model_hash(p) : of == HASH_TRAIN ? train_hash(&p->config->train)
         : of == HASH_CLUSTER ? cluster_hash(p->config) : prices_hash(p);
}

const char *plan_hash_line(const Plan *p)
{
    Text t = { 0 };
    text_add(&t, "# tuned for");
    for (int i = 0; i < HASHES; i++)
        text_add(&t, " %s %016" PRIx64, hash_word[i], plan_hash(p, i));
    return str_of(t.at, t.n);
}

/* The words behind `# tuned for` in the plan section that begins at `loc`; NULL: none. */
static const char *tuned_for(Loc loc, uint32_t *at)
{
    static const char mark[] = "# tuned for ";
    const char *s = loc.end ? source_text(loc.start) : NULL, *start = s;
    while (s && *s && *s != '}') {
        if (*s == '#') {
            if (strncmp(s, mark, sizeof mark - 1) == 0) {
                *at = loc.start + (uint32_t)(s - start);
                return s + sizeof mark - 1;
            }
            s += strcspn(s, "\n");
        } else
            s++;
    }
    return NULL;
}

void plan_check_hash(const Plan *p)
{
    uint32_t at = 0;
    const char *s = tuned_for(p->config->plan.loc, &at);
    for (int i = 0; s && i < HASHES; i++) {
        size_t n = strcspn(s, "\n");
        const char *words = str_of(s, n), *key = strstr(words, str_fmt("%s ", hash_word[i]));
        const char *now = str_fmt("%016" PRIx64, plan_hash(p, i));
        if (key == NULL)
            continue;
        key += strlen(hash_word[i]) + 1;
        if (strncmp(key, now, 16) == 0)
            continue;
        uint32_t from = at + (uint32_t)(sizeof "# tuned for " - 1) + (uint32_t)(key - words);
        diag_warning((Loc){ from, from + 16 }, "stale-plan", "this plan was tuned for another %s: "
                     "%.16s then, %s now", i == HASH_TRAIN ? "training" : i == HASH_PRICES
                     ? "price list" : hash_word[i], key, now);
        diag_hint("`teracube tune ... --write FILE` of the other files, without this plan, makes "
                  "it anew; without the comment nothing is compared");
    }
}
