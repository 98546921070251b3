/*
 * survey_cpu.c - measures cores for survey.h: ranks are threads of this process, or, under
 * mpirun, processes; collectives are those of a run (measure.h).
 *
 * As threads one survey speaks for all ranks. As processes each is a rank with figures of its own
 * work, all of them at work at once, so that `alone` is as busy as `busy`; collectives have rank
 * 0's clock. All groups of a node are at work in both: fewer cannot be measured here.
 */
#include "measure.h"
#include "rt_impl.h"
#include "survey.h"

#include <errno.h>
#include <unistd.h>

static const double POINT_S = 4e-3, LIST_S = 0.02;      // TUNING: a minute for all

typedef struct {
    const SurveyTask *t;
    RtMeasure *blas[2];                 // fp32, fp64
    bool processes;
    int rank, ranks, cores;
    int collected;                      // calls of collect so far
} Cores;

static int at_work(const Cores *c, bool busy) { return busy && !c->processes ? c->cores : 1; }

static double product(void *ctx, int precision, int form, int64_t m, int64_t n, int64_t k,
                      bool busy)
{
    Cores *c = ctx;
    if (precision == SURVEY_BF16)       // stored only: computed in fp32
        return 0;
    return rt_measure_product(c->blas[precision == SURVEY_FP64], form == SURVEY_TN,
                              form == SURVEY_NT, m, n, k, at_work(c, busy), POINT_S);
}

static double stream(void *ctx, int64_t bytes, bool busy)
{
    return rt_measure_stream(bytes, at_work(ctx, busy), POINT_S);
}

static double start(void *ctx, bool busy)
{
    double s = rt_measure_step(at_work(ctx, busy), LIST_S);
    return s > 0 ? s : -1;
}

static double collective(void *ctx, int kind, const SurveyGroup *g, int64_t bytes)
{
    static const RtStepKind step[] = { RT_ALL_GATHER, RT_REDUCE_SCATTER, RT_ALL_REDUCE };
    Cores *c = ctx;
    SurveyGroup more = { g->size, g->stride, g->sharing + 1 };
    int every = c->t->nodes * c->t->per_node;
    if (every % (g->size * g->stride) != 0)
        return 0;
    for (int r = 0; r < every; r++)     // are there groups that should look on?
        if (survey_active(c->t, &more, r) != survey_active(c->t, g, r))
            return 0;
    if (kind == SURVEY_SEND)            // of processes: a rank's own message is not told apart
        return c->processes || g->stride > 1 ? 0 : rt_measure_transfer(bytes, LIST_S);
    return rt_measure_group(step[kind], g->size, g->stride, every, bytes, c->processes, LIST_S);
}

static double exchange(void *ctx, int partner, int apart, int64_t bytes)
{
    Cores *c = ctx;
    (void)partner;
    if (c->ranks % (2 * apart) != 0)
        return 0;
    return rt_measure_group(RT_ALL_GATHER, 2, apart, c->ranks, bytes, c->processes, LIST_S);
}

/* ---- figures to rank 0 ------------------------------------------------------------------ */

static void file_of(const Cores *c, int rank, char out[512])
{
    snprintf(out, 512, "%.400s.%d.rank-%d", c->t->out, c->collected, rank);
}

static bool told(const Cores *c, const char *file)
{
    fprintf(stderr, "%s: error: rank %d could not hand on its figures by %s: %s; the folder must "
            "be the same for all processes\n", c->t->exe, c->rank, file, strerror(errno));
    return false;
}

static bool meet(const Cores *c)
{
    return c->ranks == 1 || rt_measure_group(RT_ALL_GATHER, c->ranks, 1, c->ranks, 4096, true,
                                             LIST_S) >= 0;
}

/* By files in the folder of the profile, between two meetings. */
static bool collect(void *ctx, const void *mine, void *all, size_t bytes)
{
    Cores *c = ctx;
    char name[512];
    bool fine = true;
    if (!c->processes) {
        memcpy(all, mine, bytes);
        return true;
    }
    c->collected++;
    file_of(c, c->rank, name);
    FILE *f = fopen(name, "wb");
    fine = f && fwrite(mine, 1, bytes, f) == bytes;
    if (f)
        fine = fclose(f) == 0 && fine;
    fine = (fine || told(c, name)) && meet(c);
    for (int r = 0; fine && c->rank == 0 && r < c->ranks; r++) {
        file_of(c, r, name);
        f = fopen(name, "rb");
        fine = (f && fread((char *)all + (size_t)r * bytes, 1, bytes, f) == bytes) ||
               told(c, name);
        if (f)
            fclose(f);
    }
    fine = fine && meet(c);
    file_of(c, c->rank, name);
    unlink(name);
    return fine;
}

/* ---- all together ----------------------------------------------------------------------- */

static bool fits(const Cores *c)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    int world = size ? atoi(size) : 1, every = c->t->nodes * c->t->per_node;
    if (c->processes && world != every) {
        if (c->rank == 0)
            fprintf(stderr, "%s: error: cluster %s has %d cores, and mpirun started %d "
                    "process%s\n", c->t->exe, c->t->cluster, every, world, world == 1 ? "" : "es");
        return false;
    }
    if (!c->processes && c->t->nodes > 1) {
        fprintf(stderr, "%s: error: cluster %s has %d nodes: start one process for each core, as "
                "launch.sh does\n", c->t->exe, c->t->cluster, c->t->nodes);
        return false;
    }
    return true;
}

int survey_cpu(SurveyTask t, int argc, char **argv)
{
    Cores c = { .t = &t, .processes = rt_launched(), .ranks = 1, .cores = rt_measure_cores() };
    SurveyMachine m = { .ctx = &c, .product = product, .stream = stream, .start = start,
                        .collective = collective, .exchange = exchange, .collect = collect };
    int status = survey_options(&t, argc, argv, NULL, NULL);
    if (status >= 0)
        return status;
    if (c.processes) {
        c.rank = rt_launched_rank();
        c.ranks = t.nodes * t.per_node;
    }
    if (!fits(&c))
        return RT_USAGE;
    c.blas[0] = rt_measure_open(false);
    c.blas[1] = rt_measure_open(true);
    if (!c.blas[0] || !c.blas[1])
        return RT_WORLD;
    m.rank = c.rank;
    m.ranks = c.ranks;
    m.cores = c.cores;
    m.bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    rt_measure_cpu(m.kind);
    snprintf(m.isa, sizeof m.isa, "%s", rt_measure_isa());
    snprintf(m.library, sizeof m.library, "%s", rt_measure_blas(c.blas[0]));
    if (gethostname(m.host, sizeof m.host - 1))
        strcpy(m.host, "unknown");
    status = survey_run(&t, &m);
    if (status == RT_OK && c.processes)
        rt_measure_end(c.ranks);
    rt_measure_close(c.blas[0]);
    rt_measure_close(c.blas[1]);
    return status;
}
