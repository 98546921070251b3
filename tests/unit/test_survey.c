/*
 * Surveys of a cluster (runtime/survey.c) on a machine made up of formulas: what rank 0 makes of
 * the figures, what it calls slow, and that the planner finds the formulas again in the file.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <unistd.h>

#include "predict.h"
#include "survey.h"

enum { NODES = 4, PER = 8, RANKS = NODES * PER, PORTS = 2 };

typedef struct {
    int rank;
    int slow_rank, slow_links, slow_net;        // -1: none
} Fake;

static const SurveyTask task = { .cluster = "fake", .nodes = NODES, .per_node = PER,
                                 .ports = PORTS, .exe = "test" };
static struct { char *at; size_t bytes; } kept[RANKS][2];

static double product(void *ctx, int precision, int form, int64_t m, int64_t n, int64_t k,
                      bool busy)
{
    const Fake *f = ctx;
    double rate = precision == SURVEY_BF16 ? 200e12 : 50e12;
    (void)form, (void)busy;
    return 2.0 * (double)m * (double)n * (double)k / rate * (f->rank == f->slow_rank ? 1.25 : 1);
}

static double stream(void *ctx, int64_t bytes, bool busy)
{
    (void)ctx, (void)busy;
    return (double)bytes / 1e12;
}

static double start(void *ctx, bool busy)
{
    (void)ctx, (void)busy;
    return 4e-6;
}

/* Inside a node 10 us + bytes / 100 GB/s; across, 30 us + bytes / the share of 20 GB/s ports. */
static double collective(void *ctx, int kind, const SurveyGroup *g, int64_t bytes)
{
    const Fake *f = ctx;
    bool inside = g->size * g->stride <= PER;
    double share = g->sharing > PORTS ? (double)PORTS / g->sharing : 1;
    if (!survey_active(&task, g, f->rank))
        return 0;
    double rate = (inside ? 100e9 : 20e9 * share) * (kind == SURVEY_ALL ? 0.5 : 1);
    double s = (inside ? 10e-6 : 30e-6) + (double)bytes / rate;
    return s * (inside && f->rank / PER == f->slow_links ? 1.3 : 1);
}

static double exchange(void *ctx, int partner, int apart, int64_t bytes)
{
    const Fake *f = ctx;
    cr_assert_eq(abs(partner - f->rank), apart);
    bool slow = f->rank / PER == f->slow_net || partner / PER == f->slow_net;
    return (double)bytes / 10e9 * (slow ? 2 : 1);
}

/* Ranks run one after another here, rank 0 last: it takes what the others left. */
static bool collect(void *ctx, const void *mine, void *all, size_t bytes)
{
    const Fake *f = ctx;
    int turn = kept[f->rank][0].at != NULL;
    kept[f->rank][turn].at = malloc(bytes);
    memcpy(kept[f->rank][turn].at, mine, bytes);
    kept[f->rank][turn].bytes = bytes;
    for (int r = 0; f->rank == 0 && r < RANKS; r++) {
        cr_assert_eq(kept[r][turn].bytes, bytes, "rank %d has another list", r);
        memcpy((char *)all + (size_t)r * bytes, kept[r][turn].at, bytes);
    }
    return true;
}

/* The survey's words; *t as it was run. */
static const char *survey(SurveyTask t, Fake f)
{
    static char words[1 << 16];
    char name[] = "/tmp/survey-XXXXXX";
    int file = mkstemp(name), out = dup(1);
    fflush(stdout);
    dup2(file, 1);
    memset(kept, 0, sizeof kept);
    for (int r = RANKS - 1; r >= 0; r--) {
        f.rank = r;
        SurveyMachine m = { .ctx = &f, .rank = r, .ranks = RANKS, .is_device = true, .cores = 1,
                            .bytes = 80e9, .product = product, .stream = stream, .start = start,
                            .collective = collective, .exchange = exchange, .collect = collect };
        snprintf(m.host, sizeof m.host, "host%d", r / PER);
        strcpy(m.kind, "FAKE 80GB");
        strcpy(m.library, "none");
        cr_assert_eq(survey_run(&t, &m), 0);
    }
    dup2(out, 1);
    close(out);
    ssize_t n = pread(file, words, sizeof words - 1, 0);
    words[n > 0 ? n : 0] = 0;
    close(file);
    unlink(name);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 2; i++)
            free(kept[r][i].at);
    return words;
}

static int count(const char *words, const char *of)
{
    int n = 0;
    for (const char *s = words; (s = strstr(s, of)); s++)
        n++;
    return n;
}

static SurveyTask quickly(void)
{
    SurveyTask t = task;
    t.quick = true;
    return t;
}

Test(survey, names_what_is_slow)
{
    const char *w = survey(quickly(), (Fake){ .slow_rank = 13, .slow_links = 3, .slow_net = 2 });
    cr_assert(strstr(w, "slow: node 1 (host1), rank 13: products in bf16 at 80 %"), "%s", w);
    cr_assert(strstr(w, "slow: node 1 (host1), rank 13: products in fp32 at 80 %"), "%s", w);
    cr_assert(strstr(w, "slow: node 3 (host3): links of a node at 77 %"), "%s", w);
    cr_assert(strstr(w, "slow: node 2 (host2): network, each device at 50 %"), "%s", w);
    cr_assert_eq(count(w, "slow:"), 4, "%s", w);
}

Test(survey, blames_nobody)
{
    const char *w = survey(quickly(), (Fake){ .slow_rank = -1, .slow_links = -1, .slow_net = -1 });
    cr_assert_eq(count(w, "slow:"), 0, "%s", w);
    cr_assert_eq(count(w, "nothing is slower than the middle"), 1, "%s", w);
    cr_assert_eq(count(w, "collectives"), 0);       // quick: no profile
}

/* Every group has its size in members, all in step; in a node as many as `sharing`. */
Test(survey, groups_are_whole)
{
    for (int size = 2; size <= RANKS; size *= 2)
        for (int stride = 1; size * stride <= RANKS; stride *= 2)
            for (int sharing = 1; sharing <= PER; sharing++) {
                SurveyGroup g = { size, stride, sharing };
                int members[RANKS] = { 0 }, groups = 0;
                for (int r = 0; r < RANKS; r++) {
                    int at = survey_group(&task, &g, r);
                    cr_assert(at < 0 || ((r - at) % stride == 0 && (r - at) / stride < size));
                    if (at >= 0)
                        members[at]++;
                }
                for (int r = 0; r < PER; r++)       // the lowest ranks of groups of node 0
                    groups += members[r] > 0;
                for (int r = 0; r < RANKS; r++)
                    cr_assert(members[r] == 0 || members[r] == size, "%d of %d", members[r], size);
                cr_assert(groups <= sharing, "%d x %d: %d groups, %d asked", size, stride, groups,
                          sharing);
            }
}

Test(survey, the_planner_reads_it)
{
    char name[] = "/tmp/profile-XXXXXX";
    int file = mkstemp(name);
    SurveyTask t = task;
    t.out = name;
    const char *w = survey(t, (Fake){ .slow_rank = -1, .slow_links = -1, .slow_net = -1 });
    cr_assert(strstr(w, "is written: device NAME"), "%s", w);
    size_t n = (size_t)lseek(file, 0, SEEK_END);
    char *text = malloc(n + 1);
    cr_assert_eq(pread(file, text, n, 0), (ssize_t)n);
    const char *why = NULL;
    Profile *p = profile_parse(text, n, &why);
    cr_assert_not_null(p, "%s", why);
    unlink(name);
    cr_assert(p->is_device && p->nodes == NODES && p->per_node == PER && p->ports == PORTS);
    cr_assert_str_eq(p->cpu, "FAKE 80GB");
    cr_assert_float_eq(profile_product(p, 2, FORM_NN, 1000, 1000, 1000, 1), 1e-5, 1e-7);
    cr_assert_float_eq(profile_product(p, 0, FORM_TN, 1000, 1000, 1000, 1), 4e-5, 4e-7);
    cr_assert_float_eq(profile_stream(p, 1e8, 1), 1e-4, 1e-6);
    cr_assert_float_eq(p->step[0], 4e-6, 1e-9);
    double alpha, rate;
    cr_assert(profile_group(p, RING_GATHER, PER, 1, 1, 1, &alpha, &rate));
    cr_assert_float_eq(alpha, 10e-6, 0.5e-6);
    cr_assert_float_eq(rate, 100e9, 2e9);
    cr_assert(profile_group(p, RING_GATHER, NODES, PER, NODES, PER, &alpha, &rate));
    cr_assert_float_eq(alpha, 30e-6, 1e-6);
    cr_assert_float_eq(rate, 5e9, 0.1e9);           // 8 groups on 2 ports
    cr_assert(profile_group(p, RING_GATHER, NODES, PER, NODES, 1, &alpha, &rate));
    cr_assert_float_eq(rate, 20e9, 0.4e9);
    cr_assert(profile_group(p, RING_ALL, NODES, PER, NODES, PER, &alpha, &rate));
    cr_assert_float_eq(rate, 2.5e9, 0.05e9);
    cr_assert(profile_group(p, RING_SEND, 2, PER, 2, 1, &alpha, &rate));
    Text again = { 0 };                             // written and read again: the same
    profile_text(p, &again);
    cr_assert_not_null(profile_parse(again.at, again.n, &why), "%s", why);
    free(text);
}

Test(survey, a_fit_is_exact_where_it_can_be)
{
    double bytes[] = { 1e4, 1e6, 1e8 }, seconds[3];
    for (int i = 0; i < 3; i++)
        seconds[i] = 20e-6 + bytes[i] / 50e9;
    SurveyFit f = survey_fit(bytes, seconds, 3);
    cr_assert_float_eq(f.alpha, 20e-6, 1e-7);
    cr_assert_float_eq(f.rate, 50e9, 2e8);
    cr_assert_lt(f.worst, 0.01);
}
