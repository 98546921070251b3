/*
 * survey.c - see survey.h: the list of measurements, what rank 0 makes of the figures, the file.
 *
 * A figure of a rank's own work is the middle one of all ranks; of a group the time of its
 * slowest member, and of several groups the middle one. What is slow is slower than the
 * middle by more than SLOW: a device in products or memory, a node in its links, a node
 * on the network. Nodes meet several partners, and the best counts: who met a slow one is not
 * blamed for it.
 */
#include "survey.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const double SLOW = 0.07;        // TUNING: devices of one kind are within 3 to 5 %

enum { PRODUCT, STREAM, START, RING, EXCHANGE };
typedef struct {
    int what, precision, form, ring;
    int64_t m, n, k, bytes;
    bool busy;
    SurveyGroup group;
    int with;
} Item;
typedef struct { Item *at; int n, room; } Items;

static void add(Items *all, Item i)
{
    if (all->n == all->room) {
        all->room = 2 * all->room + 64;
        all->at = realloc(all->at, (size_t)all->room * sizeof *all->at);
        if (!all->at) {
            fputs("error: out of memory\n", stderr);
            exit(4);
        }
    }
    all->at[all->n++] = i;
}

static void *room(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) {
        fputs("error: out of memory\n", stderr);
        exit(4);
    }
    return p;
}

/* ---- groups ------------------------------------------------------------------------ */

/* Groups of a node that are there at once. */
static int groups_of_node(const SurveyTask *t, int size, int stride)
{
    int inside = size * stride <= t->per_node ? size                    // members in one node
               : stride >= t->per_node ? 1 : t->per_node / stride;
    return t->per_node / inside;
}

/* Do blocks of size * stride ranks and nodes fit into each other? */
static bool fits(const SurveyTask *t, int size, int stride)
{
    int block = size * stride, n = t->per_node;
    if (block > t->nodes * n)
        return false;
    if (block <= n)
        return n % block == 0;
    return block % n == 0 && (stride <= n ? n % stride == 0 : stride % n == 0);
}

int survey_group(const SurveyTask *t, const SurveyGroup *g, int r)
{
    int block = g->size * g->stride, ranks = t->nodes * t->per_node, local = r % t->per_node;
    int of_node = block <= t->per_node ? local / block * g->stride + local % g->stride
                : g->stride <= t->per_node ? r % g->stride : local;
    if (r >= ranks / block * block || of_node >= g->sharing)
        return -1;
    return r / block * block + r % g->stride;
}

bool survey_active(const SurveyTask *t, const SurveyGroup *g, int r)
{
    return survey_group(t, g, r) >= 0;
}

/* ---- the list ------------------------------------------------------------------------ */

static void add_products(Items *all, const SurveyTask *t, const SurveyMachine *m, bool quick)
{
    /* TUNING: half a minute on a GPU; cores are a hundred times slower */
    static const int64_t device[] = { 128, 512, 2048, 8192, 0 };
    static const int64_t cores[] = { 32, 128, 512, 2048, 0 }, least[] = { 16, 32, 0 };
    const int64_t *side = t->tiny ? least : m->is_device ? device : cores, *last = side;
    while (last[1])
        last++;
    static const int order[] = { SURVEY_BF16, SURVEY_FP32, SURVEY_FP64 };
    int n = (int)(last - side) + 1, crowds = m->is_device ? 1 : 2;
    for (int i = 0; i < SURVEY_PRECISIONS * SURVEY_FORMS * n * n * n * crowds; i++) {
        int rest = i / crowds;
        Item p = { .what = PRODUCT, .busy = i % crowds, .k = side[rest % n],
                   .n = side[rest / n % n], .m = side[rest / n / n % n],
                   .form = rest / n / n / n % SURVEY_FORMS,
                   .precision = order[rest / n / n / n / SURVEY_FORMS] };
        bool large = p.m == *last && p.n == *last && p.k == *last;
        if (p.precision == SURVEY_FP64 && (p.form != SURVEY_NN || m->is_device))
            continue;
        if (!quick || (large && p.form == SURVEY_NN && p.busy == crowds - 1))
            add(all, p);
    }
}

static void add_streams(Items *all, const SurveyTask *t, const SurveyMachine *m, bool quick)
{
    int64_t most = t->tiny ? 256 << 10 : 256 << 20;
    int crowds = m->is_device ? 1 : 2;
    for (int64_t bytes = 64 << 10; bytes <= most; bytes *= 4)
        for (int busy = 0; busy < crowds; busy++)
            if (!quick || (bytes * 4 > most && busy == crowds - 1))
                add(all, (Item){ .what = STREAM, .bytes = bytes, .busy = busy });
    for (int busy = 0; busy < crowds && !quick; busy++)
        add(all, (Item){ .what = START, .busy = busy });
}

static void add_ring(Items *all, const SurveyTask *t, const SurveyMachine *m, int ring,
                     SurveyGroup g, bool quick)
{
    /* TUNING: from latency alone to bytes alone */
    static const int64_t device[] = { 16 << 10, 256 << 10, 4 << 20, 64 << 20, 0 };
    static const int64_t cores[] = { 1 << 10, 32 << 10, 1 << 20, 8 << 20, 0 };
    static const int64_t least[] = { 4 << 10, 64 << 10, 0 };
    for (const int64_t *b = t->tiny ? least : m->is_device ? device : cores; *b; b++)
        if (!quick || b[1] == 0)
            add(all, (Item){ .what = RING, .ring = ring, .group = g, .bytes = *b });
}

static void add_group(Items *all, const SurveyTask *t, const SurveyMachine *m, int size,
                      int stride)
{
    int most = groups_of_node(t, size, stride);
    for (int sharing = 1; sharing <= most; sharing = sharing * 2 > most && sharing < most
                                                     ? most : sharing * 2)
        for (int ring = 0; ring < SURVEY_RINGS; ring++)
            if (ring != SURVEY_SEND || size == 2)
                add_ring(all, t, m, ring, (SurveyGroup){ size, stride, sharing }, false);
}

static void add_groups(Items *all, const SurveyTask *t, const SurveyMachine *m)
{
    int ranks = t->nodes * t->per_node;
    for (int size = 2; size <= ranks; size = size * 2 > ranks && size < ranks ? ranks : size * 2)
        for (int stride = 1; size * stride <= ranks; stride *= 2)
            if (fits(t, size, stride))
                add_group(all, t, m, size, stride);
    for (int size = 2; size <= t->nodes && (t->per_node & (t->per_node - 1)); size *= 2)
        add_group(all, t, m, size, t->per_node);       // nodes of 6: strides above are powers of 2
}

/* The list of all ranks; the items at and behind *own are those that name slow nodes. */
static Items list_of(const SurveyTask *t, const SurveyMachine *m, int *own)
{
    Items all = { 0 };
    if (!t->quick) {
        add_products(&all, t, m, false);
        add_streams(&all, t, m, false);
        add_groups(&all, t, m);
    }
    *own = all.n;
    add_products(&all, t, m, true);
    add_streams(&all, t, m, true);
    if (t->per_node > 1)
        add_ring(&all, t, m, SURVEY_GATHER, (SurveyGroup){ t->per_node, 1, 1 }, true);
    int64_t bytes = t->tiny ? 64 << 10 : m->is_device ? 64 << 20 : 8 << 20;
    for (int with = 1; with < t->nodes; with *= 2)
        add(&all, (Item){ .what = EXCHANGE, .with = with, .bytes = bytes });
    return all;
}

/* The rank of the other node that this one exchanges with; -1: none. */
static int partner(const SurveyTask *t, int rank, int with)
{
    int node = (rank / t->per_node) ^ with;
    return node < t->nodes ? node * t->per_node + rank % t->per_node : -1;
}

static double measure(const SurveyTask *t, const SurveyMachine *m, const Item *i)
{
    switch (i->what) {
    case PRODUCT:
        return m->product(m->ctx, i->precision, i->form, i->m, i->n, i->k, i->busy);
    case STREAM: return m->stream(m->ctx, i->bytes, i->busy);
    case START: return m->start(m->ctx, i->busy);
    case RING: return m->collective(m->ctx, i->ring, &i->group, i->bytes);
    default:
        return m->exchange(m->ctx, partner(t, m->rank, i->with), i->with * t->per_node, i->bytes);
    }
}

/* ---- figures ------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle one of those above 0; 0: there is none. Reorders v. */
static double middle(double *v, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (v[i] > 0)
            v[kept++] = v[i];
    qsort(v, (size_t)kept, sizeof *v, by_value);
    return kept ? v[(kept - 1) / 2] : 0;
}

typedef struct {
    const SurveyTask *t; const SurveyMachine *m;
    Items items; int own;
    double *all;                    // [rank][item]
    char (*host)[SURVEY_NAME];      // by rank
    double *some;                   // room for a figure of each rank
} Results;

static double seconds(const Results *r, int rank, int item)
{
    return r->all[(size_t)rank * (size_t)r->items.n + (size_t)item];
}

static double figure(const Results *r, int item)
{
    const Item *i = &r->items.at[item];
    for (int k = 0; k < r->m->ranks; k++)
        r->some[k] = 0;
    for (int k = 0; k < r->m->ranks; k++) {
        double s = seconds(r, k, item);
        int g = i->what == RING ? survey_group(r->t, &i->group, k) : k;
        if (g >= 0 && s > r->some[g])
            r->some[g] = s;
    }
    return middle(r->some, r->m->ranks);
}

/* As ring_fit of the compiler asks: sum of squared logarithms, so that one bad point counts
 * once; a grid over both, made finer four times. */
static double fit_error(const double *bytes, const double *s, int n, double alpha, double rate)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double e = log((alpha + bytes[i] / rate) / s[i]);
        sum += e * e;
    }
    return sum;
}

SurveyFit survey_fit(const double *bytes, const double *s, int n)
{
    enum { GRID = 32, ZOOMS = 4 };
    double lo[2] = { HUGE_VAL, HUGE_VAL }, hi[2] = { 0, 0 }, best[2] = { 0, 0 };
    for (int i = 0; i < n; i++) {
        lo[0] = fmin(lo[0], s[i] / 100);
        hi[0] = fmax(hi[0], s[i]);
        lo[1] = fmin(lo[1], bytes[i] / s[i]);
        hi[1] = fmax(hi[1], bytes[i] / s[i] * 100);
    }
    for (int zoom = 0; zoom < ZOOMS; zoom++) {
        double least = HUGE_VAL, step[2];
        for (int d = 0; d < 2; d++)
            step[d] = pow(hi[d] / lo[d], 1.0 / GRID);
        for (int i = 0; i <= GRID; i++)
            for (int j = 0; j <= GRID; j++) {
                double at[2] = { lo[0] * pow(step[0], i), lo[1] * pow(step[1], j) };
                double e = fit_error(bytes, s, n, at[0], at[1]);
                if (e < least) {
                    least = e;
                    memcpy(best, at, sizeof at);
                }
            }
        for (int d = 0; d < 2; d++) {
            lo[d] = best[d] / (step[d] * step[d]);
            hi[d] = best[d] * step[d] * step[d];
        }
    }
    SurveyFit f = { best[0], best[1], 0, 0 };
    for (int i = 0; i < n; i++) {
        double error = fabs(f.alpha + bytes[i] / f.rate - s[i]) / s[i];
        f.mean += error / n;
        f.worst = error > f.worst ? error : f.worst;
    }
    return f;
}

/* ---- the file ------------------------------------------------------------------------ */

typedef struct { char *at; size_t n, room; } Out;

static void line(Out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(Out *o, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (o->n + (size_t)n + 1 > o->room) {
        o->room = 2 * o->room + 4096;
        o->at = realloc(o->at, o->room);
        if (!o->at) {
            fputs("error: out of memory\n", stderr);
            exit(4);
        }
    }
    memcpy(o->at + o->n, text, (size_t)n + 1);
    o->n += (size_t)n;
}

static uint64_t checksum(const Out *o)
{
    uint64_t h = 0xcbf29ce484222325u;               // hash_bytes of the compiler: FNV-1a
    for (size_t i = 0; i < o->n; i++)
        h = (h ^ (unsigned char)o->at[i]) * 0x100000001b3u;
    return h;
}

static const char *const precision_word[] = { "fp32", "fp64", "bf16" };
static const char *const form_word[] = { "nn", "nt", "tn" };
static const char *const ring_word[] = { "all_gather", "reduce_scatter", "all_reduce", "send" };

static bool same_ring(const Item *a, const Item *b)
{
    return b->what == RING && a->ring == b->ring && a->group.size == b->group.size &&
           a->group.stride == b->group.stride && a->group.sharing == b->group.sharing;
}

static int nodes_of(const SurveyTask *t, const SurveyGroup *g)
{
    int block = g->size * g->stride;
    return block <= t->per_node ? 1 : g->stride >= t->per_node ? g->size : block / t->per_node;
}

enum { POINTS = 8 };
typedef struct { double bytes[POINTS], seconds[POINTS]; int n; SurveyFit fit; } Ring;

/* The items from *at on that are of one kind and group. */
static Ring ring_at(const Results *r, int *at)
{
    const Item *first = &r->items.at[*at];
    Ring ring = { .n = 0 };
    for (; *at < r->own && same_ring(first, &r->items.at[*at]); ++*at) {
        double s = figure(r, *at);
        if (s > 0 && ring.n < POINTS) {
            ring.bytes[ring.n] = (double)r->items.at[*at].bytes;
            ring.seconds[ring.n++] = s;
        }
    }
    if (ring.n > 0)
        ring.fit = survey_fit(ring.bytes, ring.seconds, ring.n);
    return ring;
}

static void ring_lines(const Results *r, int *at, Out *o)
{
    const Item *i = &r->items.at[*at];
    Ring ring = ring_at(r, at);
    if (ring.n == 0)
        return;
    line(o, "group %s %d %d %d %d %.5g %.5g %.4g %.4g\n", ring_word[i->ring], i->group.size,
         i->group.stride, nodes_of(r->t, &i->group), i->group.sharing, ring.fit.alpha,
         ring.fit.rate, ring.fit.mean, ring.fit.worst);
    for (int k = 0; k < ring.n; k++)
        line(o, "ring_point %.0f %.5g\n", ring.bytes[k], ring.seconds[k]);
}

static void streams(const Results *r, Out *o)
{
    double bytes[64], rate[2][64];
    int n = 0;
    for (int k = 0; k < r->own; k++) {
        const Item *i = &r->items.at[k];
        double s = i->what == STREAM ? figure(r, k) : 0;
        if (s <= 0)
            continue;
        if (!i->busy)
            bytes[n++] = (double)i->bytes;
        rate[i->busy][n - 1] = (double)i->bytes / s;
        if (r->m->is_device)
            rate[1][n - 1] = rate[0][n - 1];
    }
    for (int k = 0; k < n; k++)
        line(o, "stream %.0f %.5g %.5g\n", bytes[k], rate[0][k], rate[1][k]);
}

static bool write_file(const Results *r)
{
    const SurveyMachine *m = r->m;
    const SurveyTask *t = r->t;
    Out o = { 0 };
    double start[2] = { 0 };
    line(&o, "teracube-profile 1\n%s %s\n", m->is_device ? "device" : "cpu", m->kind);
    if (!m->is_device)
        line(&o, "isa %s\n", m->isa);
    line(&o, "cores %d\nmemory %.0f\nload 0.00\nblas %s\n", m->cores, m->bytes, m->library);
    line(&o, "cluster %d %d %d %s\n", t->nodes, t->per_node, t->ports, t->cluster);
    for (int k = 0; k < r->own; k++)
        if (r->items.at[k].what == START)
            start[r->items.at[k].busy] = figure(r, k);
    line(&o, "step %.4g %.4g\n", start[0], m->is_device ? start[0] : start[1]);
    for (int k = 0; k < r->own; k++) {
        const Item *i = &r->items.at[k];
        double s = i->what == PRODUCT ? figure(r, k) : 0;
        if (s > 0)
            line(&o, "product %s %s %s %" PRId64 " %" PRId64 " %" PRId64 " %.5g\n",
                 precision_word[i->precision], form_word[i->form], i->busy ? "busy" : "alone",
                 i->m, i->n, i->k, 2.0 * (double)i->m * (double)i->n * (double)i->k / s);
    }
    streams(r, &o);
    for (int k = 0; k < r->own;)
        if (r->items.at[k].what == RING)
            ring_lines(r, &k, &o);
        else
            k++;
    line(&o, "checksum %016" PRIx64 "\n", checksum(&o));
    FILE *f = fopen(t->out, "wb");
    bool fine = f && fwrite(o.at, 1, o.n, f) == o.n;
    if (f)
        fine = fclose(f) == 0 && fine;
    if (!fine)
        fprintf(stderr, "%s: error: could not write %s: %s\n", t->exe, t->out, strerror(errno));
    free(o.at);
    return fine;
}

/* ---- what is slow -------------------------------------------------------------------- */

static const char *words(double v, const char *unit, char out[32])
{
    static const char *const prefix[] = { "", "K", "M", "G", "T", "P" };
    int i = 0;
    for (; v >= 999.5 && i < 5; i++)
        v /= 1000;
    snprintf(out, 32, "%.3g %s%s", v, prefix[i], unit);
    return out;
}

/* Rates of ranks or nodes beside the middle one; names those that are slow. */
static int compare(const Results *r, const char *what, const double *rate, int n, bool nodes,
                   const char *unit)
{
    double least = HUGE_VAL, most = 0;
    char a[32], b[32], c[32];
    memcpy(r->some, rate, sizeof *rate * (size_t)n);
    double mid = middle(r->some, n);
    int slow = 0;
    for (int i = 0; i < n; i++)
        if (rate[i] > 0) {
            least = fmin(least, rate[i]);
            most = fmax(most, rate[i]);
        }
    if (mid <= 0)
        return 0;
    printf("  %-28s %s in the middle, from %s to %s\n", what, words(mid, unit, a),
           words(least, unit, b), words(most, unit, c));
    for (int i = 0; i < n; i++) {
        if (rate[i] <= 0 || rate[i] >= (1 - SLOW) * mid)
            continue;
        int rank = nodes ? i * r->t->per_node : i;
        slow++;
        printf("  slow: node %d (%s)", rank / r->t->per_node, r->host[rank]);
        if (!nodes)
            printf(", rank %d", rank);
        printf(": %s at %.0f %% of the middle\n", what, 100 * rate[i] / mid);
    }
    return slow;
}

static int judge(const Results *r)
{
    const SurveyTask *t = r->t;
    int ranks = r->m->ranks, slow = 0;
    size_t most = (size_t)(ranks > t->nodes ? ranks : t->nodes);
    double *rate = room(most, sizeof *rate), *net = room(most, sizeof *net);
    char what[96];
    int64_t meets = 0;
    for (int k = r->own; k < r->items.n; k++) {
        const Item *i = &r->items.at[k];
        for (int q = 0; q < ranks; q++) {
            double s = seconds(r, q, k), done = i->what == PRODUCT
                ? 2.0 * (double)i->m * (double)i->n * (double)i->k : (double)i->bytes;
            rate[q] = s > 0 ? done / s : 0;
        }
        if (i->what == PRODUCT) {
            snprintf(what, sizeof what, "products in %s", precision_word[i->precision]);
            slow += compare(r, what, rate, ranks, false, "FLOP/s");
        } else if (i->what == STREAM)
            slow += compare(r, "memory", rate, ranks, false, "B/s");
        else {
            /* a node is as fast as its slowest rank */
            for (int n = 0; n < t->nodes; n++) {
                double least = HUGE_VAL;
                for (int q = n * t->per_node; q < (n + 1) * t->per_node && q < ranks; q++)
                    least = rate[q] > 0 ? fmin(least, rate[q]) : least;
                least = isfinite(least) ? least : 0;
                if (i->what == RING)
                    rate[n] = least;            // no node before this one is looked at again
                else
                    net[n] = fmax(net[n], least);
            }
            if (i->what == RING)
                slow += compare(r, "links of a node", rate, t->nodes, true, "B/s");
            else
                meets = i->bytes;
        }
    }
    if (meets > 0)
        slow += compare(r, "network, each device", net, t->nodes, true, "B/s");
    free(rate);
    free(net);
    if (slow == 0)
        printf("  nothing is slower than the middle by more than %.0f %%\n", 100 * SLOW);
    return slow;
}

static void print_groups(const Results *r)
{
    char a[32];
    printf("\ncollectives: latency + bytes received / rate; middle of the groups at work\n"
           "  %-14s %5s %6s %5s %7s  %10s %12s  %s\n", "kind", "size", "stride", "nodes",
           "sharing", "latency", "rate", "error: mean, worst");
    for (int k = 0; k < r->own;) {
        if (r->items.at[k].what != RING) {
            k++;
            continue;
        }
        const Item *i = &r->items.at[k];
        Ring ring = ring_at(r, &k);
        if (ring.n > 0)
            printf("  %-14s %5d %6d %5d %7d  %7.1f us %12s  %.0f %%, %.0f %%\n",
                   ring_word[i->ring], i->group.size, i->group.stride, nodes_of(r->t, &i->group),
                   i->group.sharing, ring.fit.alpha * 1e6, words(ring.fit.rate, "B/s", a),
                   100 * ring.fit.mean, 100 * ring.fit.worst);
    }
}

/* ---- all together --------------------------------------------------------------------- */

static void print_head(const Results *r)
{
    const SurveyTask *t = r->t;
    printf("%s: %d node%s of %d x %s, %d port%s; %s\n", t->cluster, t->nodes,
           t->nodes == 1 ? "" : "s", t->per_node, r->m->kind, t->ports,
           t->ports == 1 ? "" : "s", r->m->library);
    for (int i = 0; i < r->m->ranks; i++)               // does a host have what a node should?
        if (strcmp(r->host[i], r->host[i / t->per_node * t->per_node]) != 0) {
            printf("  note: ranks %d and %d should share a node, and are on %s and %s: the "
                   "launcher must place ranks node by node\n", i / t->per_node * t->per_node, i,
                   r->host[i / t->per_node * t->per_node], r->host[i]);
            return;
        }
}

int survey_run(const SurveyTask *t, const SurveyMachine *m)
{
    Results r = { .t = t, .m = m };
    r.items = list_of(t, m, &r.own);
    double *mine = room((size_t)r.items.n, sizeof *mine);
    for (int i = 0; i < r.items.n; i++) {
        mine[i] = measure(t, m, &r.items.at[i]);
        if (mine[i] < 0)
            return 4;
    }
    size_t bytes = (size_t)r.items.n * sizeof *mine;
    if (m->rank == 0) {
        r.all = room((size_t)m->ranks, bytes);
        r.host = room((size_t)m->ranks, sizeof *r.host);
        r.some = room((size_t)m->ranks, sizeof *r.some);
    }
    if (!m->collect(m->ctx, mine, r.all, bytes) ||
        !m->collect(m->ctx, m->host, r.host, SURVEY_NAME))
        return 4;
    int status = 0;
    if (m->rank == 0) {
        print_head(&r);
        judge(&r);
        if (!t->quick) {
            print_groups(&r);
            status = write_file(&r) ? 0 : 4;
            if (status == 0)
                printf("\n%s is written: device NAME { profile = \"%s\" } takes its rates\n",
                       t->out, t->out);
        }
        fflush(stdout);
    }
    free(mine);
    free(r.all);
    free(r.host);
    free(r.some);
    free(r.items.at);
    return status;
}

int survey_options(SurveyTask *t, int argc, char **argv, int (*more)(void *, int, char **),
                   void *ctx)
{
    t->exe = argv[0];
    for (int i = 1; i < argc; i++) {
        int took = more ? more(ctx, argc - i, argv + i) : 0;
        if (strcmp(argv[i], "--quick") == 0)
            t->quick = true;
        else if (strcmp(argv[i], "--tiny") == 0)
            t->tiny = true;
        else if (strcmp(argv[i], "-o") == 0 && i + 1 < argc)
            t->out = argv[++i];
        else if (took > 0)
            i += took - 1;
        else if (strcmp(argv[i], "--help") == 0) {
            printf("usage: %s [--quick] [-o FILE]\n  measures cluster %s (%d x %d) and writes %s;\n"
                   "  --quick: a minute, names what is slow, writes nothing\n", argv[0],
                   t->cluster, t->nodes, t->per_node, t->out);
            return 0;
        } else {
            fprintf(stderr, "%s: error: unknown option %s; --help lists them\n", argv[0], argv[i]);
            return 2;
        }
    }
    return -1;
}
