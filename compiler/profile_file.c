/*
 * profile_file.c - the text of a profile: written, read, checked; and this machine's name.
 *
 * A file is good when its first line has this version, its last line is the checksum of
 * all before it, every line is known and whole, and nothing that prices rest on is
 * missing. The checksum is looked at last: a line that makes no sense is the better message.
 */
#include <errno.h>
#include <sys/stat.h>

#include "measure.h"
#include "profile.h"

const char *const form_word[FORMS] = { "nn", "nt", "tn" };
const char *const ring_word[RINGS] = { "all_gather", "reduce_scatter", "all_reduce",
                                         "send" };
static const char *const precision_word[PROFILE_PRECISIONS] = { "fp32", "fp64", "bf16" };
static const char *const side_word[2] = { "forward", "backward" };
static const char MAGIC[] = "teracube-profile", CHECKSUM[] = "checksum ";
enum { WORDS = 12, FILE_MOST = 4 << 20 };

/* ---- this machine ---------------------------------------------------------------- */

int machine_cores(void) { return rt_measure_cores(); }

Profile profile_here(void)
{
    char cpu[RT_CPU_NAME];
    rt_measure_cpu(cpu);
    return (Profile){ .cpu = str(cpu), .isa = rt_measure_isa(), .blas = "",
                      .cores = machine_cores() };
}

/* ---- writing --------------------------------------------------------------------- */

static void product_lines(const ProductGrid *g, int precision, int form, int crowds, Text *out)
{
    for (int busy = 0; busy < crowds; busy++)
        for (int i = 0; i < g->nm * g->nn * g->nk; i++)
            text_add(out, "product %s %s %s %g %g %g %.5g\n", precision_word[precision],
                     form_word[form], busy ? "busy" : "alone", g->m[i / g->nk / g->nn],
                     g->n[i / g->nk % g->nn], g->k[i % g->nk], g->flops[busy][i]);
}

static void turn_lines(const TurnRate *t, Text *out)
{
    text_add(out, "turn %s %d %d %d %s\n", precision_word[t->is_double], t->heads, t->kv_heads,
             t->hd, t->name);
    for (int i = 0; i < t->points.n; i++) {
        const TurnPoint *q = &t->points.at[i];
        text_add(out, "turn_point %g %g %.5g %.5g %.5g %.5g\n", q->l, q->c, q->attention[0],
                 q->products[0], q->attention[1], q->products[1]);
    }
    for (int side = 0; side < 2; side++) {
        const double *a = t->fit[side];
        text_add(out, "turn_fit %s %.8g %.8g %.8g %.8g %.4g %.4g\n", side_word[side], a[0], a[1],
                 a[2], a[3], t->mean[side], t->worst[side]);
    }
}

static void ring_lines(const RingRate *r, Text *out)
{
    if (r->stride)
        text_add(out, "group %s %d %d %d %d", ring_word[r->kind], r->group, r->stride, r->nodes,
                 r->sharing);
    else
        text_add(out, "ring %s %d %d", ring_word[r->kind], r->group, r->ranks);
    text_add(out, " %.5g %.5g %.4g %.4g\n", r->alpha, r->rate, r->mean, r->worst);
    for (int k = 0; k < r->points.n; k++)
        text_add(out, "ring_point %.0f %.5g\n", r->points.at[k].bytes, r->points.at[k].seconds);
}

void profile_text(const Profile *p, Text *out)
{
    text_add(out, "%s %d\n", MAGIC, PROFILE_VERSION);
    text_add(out, "%s %s\ncores %d\n", p->is_device ? "device" : "cpu", p->cpu, p->cores);
    if (p->isa)
        text_add(out, "isa %s\n", p->isa);
    text_add(out, "memory %.0f\nload %.2f\nblas %s\n", p->memory, p->load, p->blas);
    if (p->cluster)
        text_add(out, "cluster %d %d %d %s\n", p->nodes, p->per_node, p->ports, p->cluster);
    text_add(out, "step %.4g %.4g\n", p->step[0], p->step[1]);
    for (int d = 0; d < PROFILE_PRECISIONS; d++)
        for (int form = 0; form < FORMS; form++)
            product_lines(&p->product[d][form], d, form, p->is_device ? 1 : 2, out);
    for (int i = 0; i < p->streams.n; i++)
        text_add(out, "stream %.0f %.5g %.5g\n", p->streams.at[i].bytes,
                 p->streams.at[i].rate[0], p->streams.at[i].rate[1]);
    for (int i = 0; i < p->rings.n; i++)
        ring_lines(&p->rings.at[i], out);
    for (int i = 0; i < p->turns.n; i++)
        turn_lines(&p->turns.at[i], out);
    text_add(out, "%s%016" PRIx64 "\n", CHECKSUM, hash_bytes(out->at, out->n, 0));
}

/* ---- reading --------------------------------------------------------------------- */

/* A line being read: its words, and where the complaint goes. */
typedef struct {
    int number, nwords;
    const char *word[WORDS], *rest[WORDS];      // rest: from that word to the line's end
    const char *why;
    Profile *p;
    VEC(double) product[PROFILE_PRECISIONS][FORMS][2];  // four numbers a point: m, n, k, FLOP/s
    bool fits[2];                               // of the last turn
} Reader;

#define WRONG(r, ...) ((r)->why = str_fmt("line %d: %s", (r)->number, str_fmt(__VA_ARGS__)))

static void split_words(Reader *r, const char *line, size_t n)
{
    const char *end = line + n;
    r->nwords = 0;
    while (line < end && r->nwords < WORDS) {
        size_t len = 0;
        while (line + len < end && line[len] != ' ')
            len++;
        r->rest[r->nwords] = str_of(line, (size_t)(end - line));
        r->word[r->nwords++] = str_of(line, len);
        line += len + (line + len < end);
    }
}

static double number(Reader *r, int i, bool zero_too)
{
    char *end;
    if (r->why || i >= r->nwords) {
        if (!r->why)
            WRONG(r, "`%s` needs %d values", r->word[0], i);
        return 1;
    }
    double v = strtod(r->word[i], &end);
    if (end == r->word[i] || *end || !isfinite(v))
        WRONG(r, "`%s` is no number", r->word[i]);
    else if (v < 0 || (v == 0 && !zero_too))
        WRONG(r, "%s makes no sense for `%s`", r->word[i], r->word[0]);
    return v;
}

static double any_number(Reader *r, int i)      // of a fit: may be negative
{
    char *end;
    double v = i < r->nwords ? strtod(r->word[i], &end) : 0;
    if (i < r->nwords && end != r->word[i] && !*end && isfinite(v))
        return v;
    return number(r, i, true);
}

static int whole(Reader *r, int i)
{
    double v = number(r, i, false);
    if (!r->why && (v != floor(v) || v > 1e6))
        WRONG(r, "%s makes no sense for `%s`", r->word[i], r->word[0]);
    return r->why ? 1 : (int)v;
}

static int one_of(Reader *r, int i, const char *const *words, int n)
{
    for (int k = 0; i < r->nwords && k < n; k++)
        if (strcmp(r->word[i], words[k]) == 0)
            return k;
    if (!r->why)
        WRONG(r, "`%s` is unknown to `%s`", i < r->nwords ? r->word[i] : "", r->word[0]);
    return 0;
}

static const char *line_rest(Reader *r, int i)
{
    if (i < r->nwords)
        return r->rest[i];
    if (!r->why)
        WRONG(r, "`%s` has no value", r->word[0]);
    return "";
}

static void read_cpu(Reader *r) { r->p->cpu = line_rest(r, 1); }
static void read_device(Reader *r)
{
    r->p->cpu = line_rest(r, 1);
    r->p->is_device = true;
}

static void read_isa(Reader *r) { r->p->isa = line_rest(r, 1); }
static void read_blas(Reader *r) { r->p->blas = line_rest(r, 1); }
static void read_cores(Reader *r) { r->p->cores = whole(r, 1); }
static void read_memory(Reader *r) { r->p->memory = number(r, 1, true); }
static void read_load(Reader *r) { r->p->load = number(r, 1, true); }

static void read_step(Reader *r)
{
    r->p->step[0] = number(r, 1, false);
    r->p->step[1] = number(r, 2, false);
}

static void read_cluster(Reader *r)
{
    r->p->nodes = whole(r, 1);
    r->p->per_node = whole(r, 2);
    r->p->ports = whole(r, 3);
    r->p->cluster = line_rest(r, 4);
}

static void read_product(Reader *r)
{
    static const char *const crowd[] = { "alone", "busy" };
    int d = one_of(r, 1, precision_word, PROFILE_PRECISIONS);
    int form = one_of(r, 2, form_word, FORMS);
    int busy = one_of(r, 3, crowd, 2);
    for (int i = 4; i < 8; i++)
        vec_add(&r->product[d][form][busy], number(r, i, false));
}

static void read_stream(Reader *r)
{
    StreamRate s = { number(r, 1, false), { number(r, 2, false), number(r, 3, false) } };
    int n = r->p->streams.n;
    if (!r->why && (n == PROFILE_SIDE || (n && s.bytes <= r->p->streams.at[n - 1].bytes)))
        WRONG(r, "streams are not in order of their bytes");
    vec_add(&r->p->streams, s);
}

static void read_ring(Reader *r)
{
    RingRate x = { .kind = (RingKind)one_of(r, 1, ring_word, RINGS), .group = whole(r, 2),
                   .ranks = whole(r, 3), .alpha = number(r, 4, true),
                   .rate = number(r, 5, false), .mean = number(r, 6, true),
                   .worst = number(r, 7, true) };
    if (!r->why && (x.group < 2 || x.ranks < x.group))
        WRONG(r, "a group of %d in %d ranks makes no sense", x.group, x.ranks);
    vec_add(&r->p->rings, x);
}

static void read_group(Reader *r)
{
    RingRate x = { .kind = (RingKind)one_of(r, 1, ring_word, RINGS), .group = whole(r, 2),
                   .stride = whole(r, 3), .nodes = whole(r, 4), .sharing = whole(r, 5),
                   .alpha = number(r, 6, true), .rate = number(r, 7, false),
                   .mean = number(r, 8, true), .worst = number(r, 9, true) };
    if (!r->why && (x.group < 2 || x.nodes > x.group))
        WRONG(r, "a group of %d in %d nodes makes no sense", x.group, x.nodes);
    x.ranks = x.group;
    vec_add(&r->p->rings, x);
}

static void read_ring_point(Reader *r)
{
    RingPoint q = { number(r, 1, false), number(r, 2, false) };
    if (r->p->rings.n == 0)
        WRONG(r, "`ring_point` stands before any `ring` or `group`");
    else
        vec_add(&r->p->rings.at[r->p->rings.n - 1].points, q);
}

static bool turn_ends(Reader *r)
{
    bool fine = r->p->turns.n == 0 || (r->fits[0] && r->fits[1]);
    if (!fine)
        WRONG(r, "the turn before it has no fit");
    r->fits[0] = r->fits[1] = false;
    return fine;
}

static void read_turn(Reader *r)
{
    TurnRate t = { .is_double = one_of(r, 1, precision_word, 2), .heads = whole(r, 2),
                   .kv_heads = whole(r, 3), .hd = whole(r, 4), .name = line_rest(r, 5) };
    if (turn_ends(r))
        vec_add(&r->p->turns, t);
}

static TurnRate *last_turn(Reader *r)
{
    if (r->p->turns.n == 0)
        WRONG(r, "`%s` stands before any `turn`", r->word[0]);
    return r->p->turns.n ? &r->p->turns.at[r->p->turns.n - 1] : NULL;
}

static void read_turn_point(Reader *r)
{
    TurnRate *t = last_turn(r);
    TurnPoint q = { number(r, 1, false), number(r, 2, true),
                    { number(r, 3, false), number(r, 5, false) },
                    { number(r, 4, true), number(r, 6, true) } };
    if (t)
        vec_add(&t->points, q);
}

static void read_turn_fit(Reader *r)
{
    TurnRate *t = last_turn(r);
    int side = one_of(r, 1, side_word, 2);
    for (int i = 0; t && i < 4; i++)
        t->fit[side][i] = any_number(r, 2 + i);
    if (t == NULL)
        return;
    t->mean[side] = number(r, 6, true);
    t->worst[side] = number(r, 7, true);
    r->fits[side] = true;
}

/* words: of a whole line, the key among them; 0: the last value may have several. */
static const struct { const char *key; int words; void (*read)(Reader *r); } lines[] = {
    { "cpu", 0, read_cpu },         { "cores", 2, read_cores },   { "isa", 0, read_isa },
    { "memory", 2, read_memory },   { "load", 2, read_load },     { "blas", 0, read_blas },
    { "step", 3, read_step },       { "product", 8, read_product },
    { "stream", 4, read_stream },   { "ring", 8, read_ring },
    { "device", 0, read_device },   { "cluster", 0, read_cluster },
    { "group", 10, read_group },
    { "ring_point", 3, read_ring_point },   { "turn", 0, read_turn },
    { "turn_point", 7, read_turn_point },   { "turn_fit", 8, read_turn_fit },
};

static void read_line(Reader *r, const char *line, size_t n)
{
    split_words(r, line, n);
    for (size_t i = 0; r->nwords && i < sizeof lines / sizeof *lines; i++)
        if (strcmp(lines[i].key, r->word[0]) == 0) {
            if (lines[i].words && r->nwords != lines[i].words)
                WRONG(r, "`%s` needs %d values, not %d", r->word[0], lines[i].words - 1,
                      r->nwords - 1);
            else
                lines[i].read(r);
            return;
        }
    WRONG(r, "`%s` is unknown", r->nwords ? r->word[0] : "");
}

/* ---- grids ----------------------------------------------------------------------- */

static bool add_side(double *at, int *n, double v)
{
    int i = 0;
    while (i < *n && at[i] < v)
        i++;
    if (i < *n && at[i] == v)
        return true;
    if (*n == PROFILE_SIDE)
        return false;
    memmove(at + i + 1, at + i, sizeof *at * (size_t)(*n - i));
    at[i] = v;
    ++*n;
    return true;
}

static int index_of(const double *at, int n, double v)
{
    int i = 0;
    while (i < n && at[i] != v)
        i++;
    return i;
}

/* The points as a grid; every place of it has to be there, alone and busy. */
static bool make_grid(Reader *r, int d, int form)
{
    ProductGrid *g = &r->p->product[d][form];
    for (int busy = 0; busy < 2; busy++)
        for (int i = 0; i < r->product[d][form][busy].n; i += 4) {
            const double *q = r->product[d][form][busy].at + i;
            if (!add_side(g->m, &g->nm, q[0]) || !add_side(g->n, &g->nn, q[1]) ||
                !add_side(g->k, &g->nk, q[2]))
                return false;
        }
    int size = g->nm * g->nn * g->nk;
    for (int busy = 0; busy < 2; busy++) {
        g->flops[busy] = busy && r->p->is_device ? g->flops[0] : NEWN(double, size);
        for (int i = 0; i < r->product[d][form][busy].n; i += 4) {
            const double *q = r->product[d][form][busy].at + i;
            int at = (index_of(g->m, g->nm, q[0]) * g->nn + index_of(g->n, g->nn, q[1])) *
                     g->nk + index_of(g->k, g->nk, q[2]);
            g->flops[busy][at] = q[3];
        }
        for (int i = 0; i < size; i++)
            if (g->flops[busy][i] <= 0)
                return false;
    }
    return true;
}

static const char *whats_missing(Reader *r)
{
    const Profile *p = r->p;
    bool products = false;
    for (int d = 0; d < PROFILE_PRECISIONS; d++) {
        for (int form = 0; form < FORMS; form++)
            if (!make_grid(r, d, form))
                return str_fmt("its grid of %s %s products has holes", precision_word[d],
                               form_word[form]);
        products |= p->product[d][FORM_NN].nm > 0;
    }
    return p->cpu == NULL ? "it names no cpu and no device"
         : p->isa == NULL && !p->is_device ? "it names no isa"
         : p->cores < 1 ? "it has no number of cores" : !products ? "it has no products"
         : p->streams.n == 0 ? "it has no streams" : p->step[0] <= 0 ? "it has no `step`"
         : !turn_ends(r) ? "its last turn has no fit" : NULL;
}

/* ---- the whole file -------------------------------------------------------------- */

/* Where the last line begins. */
static size_t last_line(const char *text, size_t n)
{
    size_t i = n - 1;
    while (i > 0 && text[i - 1] != '\n')
        i--;
    return i;
}

Profile *profile_parse(const char *text, size_t n, const char **why)
{
    Reader reader = { .number = 1, .p = NEW(Profile) }, *r = &reader;
    size_t head = strlen(MAGIC), first = 0, last;
    while (first < n && text[first] != '\n')
        first++;
    *why = "it is no profile: its first line is not `teracube-profile 1`";
    if (first < head + 2 || memcmp(text, MAGIC, head) != 0 || text[head] != ' ')
        return NULL;
    const char *version = str_of(text + head + 1, first - head - 1);
    if (strspn(version, "0123456789") != first - head - 1)      // a line that ends in \r too
        return NULL;
    *why = str_fmt("it is of version %s, and this teracube reads version %d", version,
                   PROFILE_VERSION);
    if (strcmp(version, str_fmt("%d", PROFILE_VERSION)) != 0)
        return NULL;
    *why = "it is cut short: the last line is no checksum";
    last = last_line(text, n);
    if (text[n - 1] != '\n' || n - last != strlen(CHECKSUM) + 17 || last <= first ||
        memcmp(text + last, CHECKSUM, strlen(CHECKSUM)) != 0)
        return NULL;
    for (size_t at = first + 1; at < last && r->why == NULL;) {
        size_t len = 0;
        while (text[at + len] != '\n')
            len++;
        r->number++;
        read_line(r, text + at, len);
        at += len + 1;
    }
    *why = r->why;
    if (r->why)
        return NULL;
    *why = "its checksum does not fit: it was changed after it was measured";
    if (strcmp(str_fmt("%016" PRIx64 "\n", hash_bytes(text, last, 0)),
               str_of(text + last + strlen(CHECKSUM), 17)) != 0)
        return NULL;
    *why = whats_missing(r);
    return *why ? NULL : r->p;
}

static char *file_bytes(const char *path, size_t *n, const char **why)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    *why = f == NULL ? strerror(errno) : NULL;
    if (f && (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)))
        *why = "it is no regular file";
    else if (f && st.st_size > FILE_MOST)
        *why = "it is too large for a profile";
    if (f && *why == NULL) {
        text = arena_get(perm, (size_t)st.st_size + 1);
        *n = fread(text, 1, (size_t)st.st_size, f);
        if (ferror(f))
            *why = strerror(errno);
    }
    if (f)
        fclose(f);
    return *why ? NULL : text;
}

static const char HOW[] = "measure it: teracube profile -o %s";

Profile *profile_read(const char *path, Loc loc)
{
    size_t n = 0;
    const char *why;
    char *text = file_bytes(path, &n, &why);
    Profile *p = text ? profile_parse(text, n, &why) : NULL;
    if (p)
        return p;
    if (text)
        diag_error(loc, "profile-valid", "the profile %s cannot be used: %s", path, why);
    else
        diag_error(loc, "profile-valid", "could not read the profile %s: %s", path, why);
    diag_hint(HOW, path);
    return NULL;
}

bool profile_same(const Profile *a, const Profile *b)
{
    return a->is_device == b->is_device && a->cores == b->cores && strcmp(a->cpu, b->cpu) == 0 &&
           (a->is_device || strcmp(a->isa, b->isa) == 0);
}

bool profile_is_here(const Profile *p, Loc loc)
{
    Profile here = profile_here();
    if (profile_same(p, &here))
        return true;
    if (p->is_device) {
        diag_error(loc, "profile-machine", "the profile is of GPUs, %s; this machine computes on "
                   "its cores", p->cpu);
        diag_hint("a device of a cluster with `arch = sm_..` can have it; `teracube profile -o F` "
                  "measures this machine");
        return false;
    }
    diag_error(loc, "profile-machine", "the profile is of another machine: %s, %s, %s; this one "
               "is %s, %s, %s", p->cpu, plural(p->cores, "core"), p->isa, here.cpu,
               plural(here.cores, "core"), here.isa);
    diag_hint("measure this one with `teracube profile -o F`, or leave `profile` out");
    return false;
}
