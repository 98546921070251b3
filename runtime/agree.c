/*
 * agree.c - do all processes mean the same run?
 *
 * Each is started with options of its own, and on another machine it finds other files. One
 * that ends earlier leaves the rest waiting; one with another learning rate makes parameters
 * that are wrong and look right. So all say what they are about to do, a line for each
 * setting, and the first line that differs from rank 0's is told before there is a step. Which
 * files there will be is compared before any is opened: those that ranks write together are made
 * by rank 0, and a rank that looks for another one would only say that it is not there.
 */
#include "rt_impl.h"

#include <assert.h>
#include <inttypes.h>

enum { SAID = 1024, TAIL = 200 };       // bytes of what a process says, of a path in it

static void say(char said[SAID], const char *format, ...)
{
    size_t n = strlen(said);
    va_list a;
    va_start(a, format);
    int more = vsnprintf(said + n, SAID - n, format, a);
    va_end(a);
    assert(more >= 0 && n + (size_t)more < SAID);
}

static void say_number(char said[SAID], const char *name, double v)
{
    char shortest[32];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(shortest, sizeof shortest, "%.*g", digits, v);
        if (strtod(shortest, NULL) == v)
            break;
    }
    say(said, "%s %s\n", name, shortest);
}

static const char *given(const void *path) { return path ? "yes" : "no"; }

/* Where a path is long its end tells. */
static const char *tail(const char *path)
{
    size_t n = path ? strlen(path) : 0;
    return !path ? "no" : n > TAIL ? path + n - TAIL : path;
}

static void say_files(const Rt *rt, char said[SAID])
{
    *said = 0;
    say(said, "--load %s\n--resume %s\n--save %s\n--log %s\n--trace %s\n",
        given(rt->load_path), given(rt->options->resume), tail(rt->options->save),
        given(rt->log_path), given(rt->options->trace));
    say(said, "checkpoints %s\n", tail(rt->keep.dir));
}

static void say_settings(const Rt *rt, char said[SAID])
{
    const RtHeader *h = rt->head;
    static const char *const shape[] = { "constant", "cosine", "linear", "wsd" };
    *said = 0;
    say(said, "model %016" PRIx64 "\nsteps %" PRId64 "\nfirst step %" PRId64 "\n", h->model_hash,
        rt->steps, rt->first_step + 1);
    say(said, "tokens of data %" PRId64 "\nformat %.20s\norder %.20s\nseed %" PRIu64 "\n",
        rt->data ? rt_data_tokens(rt->data) : 0, rt->format, rt->order, h->train.seed);
    const struct { const char *name; double v; } number[] = {
        { "lr", h->train.lr }, { "beta1", h->train.beta1 }, { "beta2", h->train.beta2 },
        { "eps", h->train.eps }, { "weight_decay", h->train.weight_decay },
        { "momentum", h->train.momentum }, { "clip", h->train.clip }, { "min", h->train.lr_min },
    };
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        say_number(said, number[i].name, number[i].v);
    say(said, "schedule %s\nwarmup %" PRId64 "\n", shape[h->train.schedule & 3], h->train.warmup);
    say(said, "decay %" PRId64 "\nschedule of %" PRId64 " steps\ncheckpoint every %" PRId64 "\n",
        h->train.decay_steps, h->train.steps, h->train.checkpoint_every);
    say(said, "validate every %" PRId64 "\nbatches of a validation %" PRId64 "\n"
        "tokens of a validation %" PRId64 "\n", h->train.validate_every,
        h->train.validate_batches, rt->validation ? rt_data_tokens(rt->validation) : 0);
}

/* "lr 0.1", "lr 0.2": the lines in which two differ. */
static bool differ(const char *a, const char *b, char x[SAID], char y[SAID])
{
    while (*a && *b) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n) != 0) {
            snprintf(x, SAID, "%.*s", (int)n, a);
            snprintf(y, SAID, "%.*s", (int)m, b);
            return true;
        }
        a += n + 1;
        b += m + 1;
    }
    return false;
}

static int compare(Rt *rt, void (*say_it)(const Rt *rt, char said[SAID]))
{
    char mine[SAID] = "", x[SAID], y[SAID];
    char (*all)[SAID] = rt_alloc((size_t)rt->nranks, sizeof *all);
    say_it(rt, mine);
    int status = rt->mpi ? rt_mpi_share(rt, mine, all, sizeof mine)
                         : rt_remote_share(rt, mine, all, sizeof mine);
    for (int r = 1; r < rt->nranks && !status; r++)
        if (differ(all[r], all[0], x, y))
            status = rt_fail(rt, RT_USAGE, "%s: error: rank %d has %s, rank 0 %s; all ranks are "
                             "started with the same options, data and weights", rt->exe, r, x, y);
    free(all);
    return rt_processes_agree(rt, NULL);
}

int rt_same_files(Rt *rt) { return compare(rt, say_files); }
int rt_same_run(Rt *rt) { return compare(rt, say_settings); }
