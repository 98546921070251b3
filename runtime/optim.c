/*
 * optim.c - learning rates, the elements the optimizer works on, and --set.
 *
 * The schedule's length is train.steps, whatever --steps says. `warmup` = w:
 * lr*(s+1)/(w+1) for s < w. Step s counts from 0.
 */
#include "rt_impl.h"

#include <errno.h>
#include <math.h>

enum { CONSTANT, COSINE, LINEAR, WSD };
static const char *const schedule_word[] = { "constant", "cosine", "linear", "wsd" };

/* ---- learning rate ------------------------------------------------------- */

double rt_learning_rate(const RtHeader *head, int64_t s)
{
    double lr = head->train.lr, low = head->train.lr_min;
    int64_t w = head->train.warmup, steps = head->train.steps, d = head->train.decay_steps;
    if (head->train.schedule == CONSTANT)
        return lr;
    if (s < w)
        return lr * (double)(s + 1) / (double)(w + 1);
    if (head->train.schedule == WSD) {
        int64_t past = s - (steps - d);         // steps into the decay
        if (past <= 0)
            return lr;
        return past >= d ? low : low + (lr - low) * (1 - (double)past / (double)d);
    }
    if (s >= steps)
        return low;
    double t = (double)(s - w) / (double)(steps - w);
    if (head->train.schedule == LINEAR)
        return low + (lr - low) * (1 - t);
    return low + 0.5 * (lr - low) * (1 + cos(acos(-1) * t));
}

/* ---- ranges with one decay ----------------------------------------------- */

typedef struct { RtRank *r; int unit; int64_t cap; } RangeList;

static int add_span(void *ctx, const RtSpan *span)
{
    RangeList *list = ctx;
    RtRank *r = list->r;
    bool decay = r->rt->program->params[span->param].decay != 0;
    RtRange *last = r->nranges ? &r->range[r->nranges - 1] : NULL;
    bool joined = last && (last->unit == list->unit || r->head->zero < 2);
    if (joined && last->hi == span->at && last->decay == decay) {
        last->hi += span->n;
        return RT_OK;
    }
    if (r->nranges == list->cap) {
        list->cap = 2 * list->cap + 32;
        RtRange *range = rt_alloc((size_t)list->cap, sizeof *range);
        if (r->range)
            memcpy(range, r->range, sizeof *range * (size_t)r->nranges);
        free(r->range);
        r->range = range;
    }
    r->range[r->nranges++] = (RtRange){ span->at, span->at + span->n, list->unit, decay };
    return RT_OK;
}

static int by_place(const void *a, const void *b)
{
    const RtRange *p = a, *q = b;
    return (p->lo > q->lo) - (p->lo < q->lo);
}

/*
 * Which flat elements this rank updates, joined where neighbours decay alike:
 * a unit of matrices is one range. With zero, only what the replica owns. Padding
 * is left out and stays zero.
 */
int rt_ranges_make(RtRank *r)
{
    const RtHeader *h = r->head;
    RangeList list = { .r = r };
    for (list.unit = 0; list.unit < h->nunits; list.unit++) {
        int64_t lo, hi;
        rt_held(r, list.unit, RT_MOMENTS, &lo, &hi);
        RT_TRY(rt_spans(r, list.unit, lo, hi, add_span, &list));
    }
    if (r->nranges > 1)
        qsort(r->range, (size_t)r->nranges, sizeof *r->range, by_place);
    return RT_OK;
}

/* ---- --set --------------------------------------------------------------- */

static bool read_number(const char *text, double *out)
{
    char clean[64];
    size_t n = 0;
    for (; *text && n < sizeof clean - 1; text++)
        if (*text != '_')
            clean[n++] = *text;
    clean[n] = 0;
    char *end;
    errno = 0;
    *out = strtod(clean, &end);
    return !*text && n > 0 && *end == 0 && errno == 0 && isfinite(*out);
}

static int not_so(Rt *rt, const char *kv, const char *want)
{
    return rt_fail(rt, RT_USAGE, "%s: error: --set %s: expected %s", rt->exe, kv, want);
}

/* key=value inside adamw(...) or cosine(...). `key` names a field of train. */
static int set_number(Rt *rt, const char *kv, const char *key, const char *value)
{
    RtHeader *h = &rt->own;
    enum { ANY, POSITIVE, BELOW_1 };
    const struct { const char *key; double *real; int64_t *whole; int range; } keys[] = {
        { "lr", &h->train.lr, NULL, ANY }, { "beta1", &h->train.beta1, NULL, BELOW_1 },
        { "beta2", &h->train.beta2, NULL, BELOW_1 }, { "eps", &h->train.eps, NULL, POSITIVE },
        { "weight_decay", &h->train.weight_decay, NULL, ANY },
        { "momentum", &h->train.momentum, NULL, BELOW_1 },
        { "min", &h->train.lr_min, NULL, ANY }, { "clip", &h->train.clip, NULL, POSITIVE },
        { "steps", NULL, &h->train.steps, ANY }, { "warmup", NULL, &h->train.warmup, ANY },
        { "decay", NULL, &h->train.decay_steps, ANY },
    };
    double v;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(key, keys[i].key) != 0)
            continue;
        if (strcmp(key, "clip") == 0 && strcmp(value, "no") == 0)
            value = "0";
        else if (!read_number(value, &v) || v < 0)
            return not_so(rt, kv, "a number that is not negative");
        else if (keys[i].range == POSITIVE && v <= 0)
            return not_so(rt, kv, "a number above 0");
        else if (keys[i].range == BELOW_1 && v >= 1)
            return not_so(rt, kv, "a number below 1");
        else if (keys[i].whole && (v != floor(v) || v >= 0x1p40))
            return not_so(rt, kv, "a whole number below 2^40");
        read_number(value, &v);
        if (keys[i].real)
            *keys[i].real = v;
        else
            *keys[i].whole = (int64_t)v;
        return RT_OK;
    }
    return rt_fail(rt, RT_USAGE, "%s: error: --set %s: unknown key `%s`", rt->exe, kv, key);
}

/* "name(a=1, b=2)" or "name": calls set_number for each argument. */
static int set_call(Rt *rt, const char *kv, const char *value, char name[32],
                    const char *const *allowed)
{
    size_t n = strcspn(value, "( ");
    if (n == 0 || n >= 32)
        return not_so(rt, kv, "a name");
    memcpy(name, value, n);
    name[n] = 0;
    const char *p = value + n + strspn(value + n, " ");
    if (!*p)
        return RT_OK;
    if (*p != '(' || value[strlen(value) - 1] != ')')
        return not_so(rt, kv, "name(key=value, ...)");
    p++;
    while (*(p += strspn(p, " ,")) != ')') {
        char key[32], text[64];
        size_t k = strcspn(p, "= ,)"), after = k + strspn(p + k, " ");
        if (p[after] != '=' || k >= sizeof key)
            return not_so(rt, kv, "name(key=value, ...)");
        memcpy(key, p, k);
        key[k] = 0;
        p += after + 1;
        p += strspn(p, " ");
        size_t v = strcspn(p, " ,)");
        if (v >= sizeof text)
            return not_so(rt, kv, "a number");
        memcpy(text, p, v);
        text[v] = 0;
        p += v;
        bool known = false;
        for (int i = 0; allowed[i]; i++)
            known = known || strcmp(allowed[i], key) == 0;
        if (!known)
            return rt_fail(rt, RT_USAGE, "%s: error: --set %s: `%s` has no `%s`", rt->exe, kv,
                           name, key);
        RT_TRY(set_number(rt, kv, key, text));
    }
    return p[1] ? not_so(rt, kv, "nothing after `)`") : RT_OK;
}

static int set_optimizer(Rt *rt, const char *kv, const char *value)
{
    static const char *const adamw[] = { "lr", "beta1", "beta2", "eps", "weight_decay", NULL };
    static const char *const sgd[] = { "lr", "momentum", NULL };
    RtHeader *h = &rt->own;
    bool is_adamw = h->optimizer == 0;
    const char *built = is_adamw ? "adamw" : "sgd";
    char name[32];
    size_t n = strcspn(value, "( ");
    if (n != strlen(built) || strncmp(value, built, n) != 0)
        return rt_fail(rt, RT_USAGE, "%s: error: --set %s: the kind of optimizer is fixed when "
                       "built; rebuild with --set %s", rt->exe, kv, kv);
    h->train.lr = is_adamw ? 1e-3 : 1e-2;       // what is not written has its default
    h->train.beta1 = 0.9;
    h->train.beta2 = 0.999;
    h->train.eps = 1e-8;
    h->train.weight_decay = h->train.momentum = 0;
    return set_call(rt, kv, value, name, is_adamw ? adamw : sgd);
}

static int set_schedule(Rt *rt, const char *kv, const char *value)
{
    static const char *const keys[4][4] = {
        { NULL }, { "warmup", "min", NULL }, { "warmup", "min", NULL },
        { "warmup", "decay", "min", NULL },
    };
    RtHeader *h = &rt->own;
    char name[32];
    size_t n = strcspn(value, "( ");
    for (int i = 0; i < 4; i++) {
        if (strlen(schedule_word[i]) != n || strncmp(value, schedule_word[i], n) != 0)
            continue;
        h->train.schedule = i;
        h->train.warmup = h->train.decay_steps = 0;
        h->train.lr_min = 0;
        return set_call(rt, kv, value, name, keys[i]);
    }
    return not_so(rt, kv, "constant, cosine(...), linear(...) or wsd(...)");
}

static int set_text(Rt *rt, const char *value, char **out)
{
    size_t n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
        value++;
        n -= 2;
    }
    free(*out);
    *out = rt_alloc(n + 1, 1);
    memcpy(*out, value, n);
    (void)rt;
    return RT_OK;
}

/*
 * The arguments of every(...), in the order of the language: those without a name take it.
 * The last one is a path and must be there.
 */
typedef struct { const char *key; int64_t *whole; char **path; } EveryArg;

static int every_arg(const EveryArg *args, int n, const char *key, size_t length)
{
    for (int i = 0; i < n; i++)
        if (strlen(args[i].key) == length && strncmp(args[i].key, key, length) == 0)
            return i;
    return n;
}

static bool every_value(Rt *rt, const EveryArg *a, const char *text)
{
    double v;
    if (a->path)
        return *text && set_text(rt, text, a->path) == RT_OK;
    if (!read_number(text, &v) || v < 1 || v != floor(v) || v >= 0x1p40)
        return false;
    *a->whole = (int64_t)v;
    return true;
}

/* "every(10, \"DIR\")" or "no". */
static int set_every(Rt *rt, const char *kv, const char *value, const EveryArg *args, int n,
                     const char *form)
{
    const char *p = value + strspn(value, " ");
    *args[0].whole = 0;
    if (strcmp(p, "no") == 0)
        return RT_OK;
    if (strncmp(p, "every(", 6) != 0)
        return not_so(rt, kv, form);
    p += 6;
    for (int i = 0; *(p += strspn(p, " ,")) != ')' && *p; i++) {
        size_t k = strcspn(p, "=,) \"");
        const char *after = p + k + strspn(p + k, " ");
        int at = i;
        if (*after == '=') {
            at = every_arg(args, n, p, k);
            p = after + 1 + strspn(after + 1, " ");
        }
        bool quoted = *p == '"';
        size_t length = quoted ? strcspn(p + 1, "\"") : strcspn(p, ",) ");
        char *text = rt_alloc(length + 1, 1);
        memcpy(text, p + quoted, length);
        p += length + quoted;
        p += quoted && *p == '"';
        bool fine = at < n && every_value(rt, &args[at], text);
        free(text);
        if (!fine)
            return not_so(rt, kv, form);
    }
    bool whole = *p == ')' && !p[1] && *args[0].whole > 0 && *args[n - 1].path;
    return whole ? RT_OK : not_so(rt, kv, form);
}

/* One --set of a built program. */
int rt_set(Rt *rt, const char *kv)
{
    RtHeader *h = &rt->own;
    const char *eq = strchr(kv, '=');
    char key[64];
    if (!eq || eq == kv || (size_t)(eq - kv) >= sizeof key)
        return rt_fail(rt, RT_USAGE, "%s: error: --set %s: expected train.KEY=VALUE", rt->exe, kv);
    memcpy(key, kv, (size_t)(eq - kv));
    key[eq - kv] = 0;
    const char *value = eq + 1, *word = key + 6;
    static const char *const numbers[] = {
        "steps", "lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "warmup", "decay",
        "min", "clip",
    };
    if (strncmp(key, "train.", 6) == 0) {
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (strcmp(word, numbers[i]) == 0)
                return set_number(rt, kv, word, value);
        if (strcmp(word, "optimizer") == 0)
            return set_optimizer(rt, kv, value);
        if (strcmp(word, "schedule") == 0)
            return set_schedule(rt, kv, value);
        if (strcmp(word, "checkpoint") == 0) {
            const EveryArg args[] = { { "n", &h->train.checkpoint_every, NULL },
                                      { "dir", NULL, &rt->keep.dir } };
            return set_every(rt, kv, value, args, 2, "every(STEPS, \"FOLDER\") or no");
        }
        if (strcmp(word, "validate") == 0) {
            const EveryArg args[] = { { "n", &h->train.validate_every, NULL },
                                      { "batches", &h->train.validate_batches, NULL },
                                      { "data", NULL, &rt->validate_path } };
            h->train.validate_batches = 1;
            return set_every(rt, kv, value, args, 3,
                             "every(STEPS, batches=N, data=\"FILE\") or no");
        }
        if (strcmp(word, "data") == 0)
            return set_text(rt, value, &rt->data_path);
        if (strcmp(word, "weights") == 0)
            return set_text(rt, value, &rt->load_path);
        if (strcmp(word, "log") == 0)
            return set_text(rt, value, &rt->log_path);
        if (strcmp(word, "format") == 0)
            return set_text(rt, value, &rt->format);
        if (strcmp(word, "order") == 0)
            return set_text(rt, value, &rt->order);
        if (strcmp(word, "seed") == 0) {
            double v;
            if (!read_number(value, &v) || v < 0 || v != floor(v) || v >= 0x1p53)
                return not_so(rt, kv, "a whole number below 2^53");
            h->train.seed = (uint64_t)v;
            return RT_OK;
        }
    }
    return rt_fail(rt, RT_USAGE, "%s: error: --set %s: `%s` is fixed when built; rebuild with "
                   "`teracube build ... --set %s`", rt->exe, kv, key, kv);
}
