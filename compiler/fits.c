/*
 * fits.c - the cheapest change with which a plan fits into memory.
 *
 * Changes are tried, the cheapest first, by laying the plan out with them in a child
 * process that says nothing: a change that is an error is not proposed.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "partition.h"

enum { TRIAL_S = 10 };

/* In the child: bytes of the largest block of the changed plan. */
static int64_t peak_of(const Plan *p, const Config *c)
{
    void (*const passes[])(Plan *) = { graph_build, mesh_choose, fuse_linears, autodiff_add,
                                       slice_choose, partition_choose };
    Plan *q = plan_new(c);
    int64_t most = 0;
    q->is.workers = p->is.workers;
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        passes[i](q);
        if (diag_errors() || q->is.refused)
            return INT64_MAX;
    }
    for (int r = 0; r < q->is.stages; r++)
        most = plan_stage(q, r)->block_bytes > most ? plan_stage(q, r)->block_bytes : most;
    return most;
}

int64_t laid_out_bytes(const Plan *p, const PlanSpec *s)
{
    int ends[2], errors = diag_errors();
    int64_t peak = INT64_MAX;
    Config c = *p->config;
    c.plan = *s;
    c.any_room = true;                  // which would keep all that is gathered
    if (c.plan.keep.v == NULL)
        c.plan.keep.v = "none";
    if (pipe(ends))
        return peak;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1);
        dup2(nowhere, 2);
        alarm(TRIAL_S);
        peak = errors ? INT64_MAX : peak_of(p, &c);
        _exit(write(ends[1], &peak, sizeof peak) != sizeof peak);
    }
    close(ends[1]);
    if (pid < 0 || read(ends[0], &peak, sizeof peak) != sizeof peak)
        peak = INT64_MAX;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return peak;
}

static bool fits(const Plan *p, const PlanSpec *s)
{
    return laid_out_bytes(p, s) <= p->is.room_bytes;
}

static const char *smaller_microbatch(const Plan *p, PlanSpec *s)
{
    int64_t batch = p->is.batch / p->is.data, least = 1;
    for (int64_t b = p->is.microbatch - 1; b > 0; b--)
        least = batch % b ? least : b;
    for (int64_t b = p->is.microbatch - 1, tried = 0; b > 0 && tried < 4; b--) {
        if (batch % b)
            continue;
        tried++;
        s->microbatch.v = (double)(tried == 4 ? least : b);
        s->microbatch.set = true;
        if (fits(p, s))
            return str_fmt("microbatch = %" PRId64, (int64_t)s->microbatch.v);
    }
    return NULL;
}

const char *fitting_change(const Plan *p)
{
    PlanSpec s = p->config->plan, t = s;
    const char *what = NULL;
    if (s.keep.v && strcmp(s.keep.v, "none") != 0) {
        t.keep.v = "none";
        if (fits(p, &t))
            return "keep = none";
    }
    t = s;
    what = smaller_microbatch(p, &t);
    t = s;
    if (what == NULL && p->is.data > 1 && p->is.zero == 0) {
        t.zero.v = t.zero.set = 1;
        what = fits(p, &t) ? "zero = 1" : NULL;
    }
    t = s;
    if (what == NULL && p->is.recompute != RECOMPUTE_FULL) {
        t.recompute = (Word){ "full", s.recompute.loc, true };
        t.recompute_n = 0;
        what = fits(p, &t) ? "recompute = full" : NULL;
        const char *micro = what ? NULL : smaller_microbatch(p, &t);
        what = micro ? str_fmt("recompute = full and %s", micro) : what;
    }
    return what;
}
