/*
 * log.c - what a run says: the first error, one line a step, JSON lines, a trace.
 *
 * Step lines go to stdout, everything else for people to stderr. The first
 * error is kept and printed by rt_run after all ranks have ended; later ones
 * are consequences of it. Files are opened at start and their buffers filled
 * once there, so that a step allocates nothing.
 */
#include "rt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

double rt_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* On whole cache lines of its own; zeroed. free() releases it. */
void *rt_alloc(size_t count, size_t size)
{
    size_t bytes;
    void *p = NULL;
    if (!__builtin_mul_overflow(count ? count : 1, size, &bytes) && bytes < SIZE_MAX - RT_LINE) {
        bytes = (bytes + RT_LINE - 1) / RT_LINE * RT_LINE;
        p = aligned_alloc(RT_LINE, bytes);
    }
    if (!p) {
        fputs("error: out of memory\n", stderr);
        exit(RT_WORLD);
    }
    return memset(p, 0, bytes);
}

const char *rt_text(const RtProgram *p, int32_t offset)
{
    return offset < 0 ? "" : p->text + offset;
}

/* A rank as messages call it. */
const char *rt_who(const RtRank *r, char out[48])
{
    snprintf(out, 48, r->rt->head->nstages > 1 ? "rank %d (stage %d)" : "rank %d", r->id,
             r->stage);
    return out;
}

/* ---- errors -------------------------------------------------------------- */

int rt_fail(Rt *rt, int status, const char *fmt, ...)
{
    pthread_mutex_lock(&rt->fault_lock);
    bool first = atomic_load(&rt->status) == RT_OK;
    if (first) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(rt->fault, sizeof rt->fault, fmt, ap);
        va_end(ap);
        atomic_store(&rt->status, status);
    }
    pthread_mutex_unlock(&rt->fault_lock);
    if (first)
        rt_wake_all(rt);
    return atomic_load(&rt->status);
}

/* A warning or a remark; one process makes it. */
void rt_note(const Rt *rt, const char *fmt, ...)
{
    if (rt->first > 0)
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s: %s\n", rt->exe, text);
}

void rt_guard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", fd ? O_RDONLY : O_WRONLY);    // using it still fails
    signal(SIGXFSZ, SIG_IGN);
}

/* ---- files --------------------------------------------------------------- */

static void put_json(FILE *f, const char *s)
{
    putc('"', f);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 32)
            fprintf(f, "\\u%04x", c);
        else
            putc(c, f);
    }
    putc('"', f);
}

/* JSON has no nan and no inf. */
static const char *json_number(double v, char out[32])
{
    snprintf(out, 32, isfinite(v) ? "%.17g" : "null", v);
    return out;
}

static int64_t step_tokens(const Rt *rt)
{
    return rt->head->batch * rt->head->sequence;
}

/* Of the rank that has most. */
static int64_t largest_block(const Rt *rt)
{
    int64_t most = 0;
    for (int s = 0; s < rt->head->nstages; s++) {
        int64_t bytes = rt->program[s].head->block_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static int log_broken(Rt *rt)
{
    return rt_fail(rt, RT_WORLD, "%s: error: could not write the log: %s", rt->log_path,
                   strerror(errno));
}

static void put_hosts(const Rt *rt)
{
    char host[256] = "";
    if (!rt_processes(rt)) {
        if (gethostname(host, sizeof host - 1))
            snprintf(host, sizeof host, "unknown");
        put_json(rt->log, host);
        return;
    }
    const char *name;
    for (int i = 0; (name = rt->mpi ? rt_mpi_host(rt, i) : rt_remote_host(rt, i)); i++) {
        fputs(i ? ", " : "", rt->log);
        put_json(rt->log, name);
    }
}

/* The record that opens a log. */
static int log_run(Rt *rt)
{
    const RtHeader *h = rt->head;
    const char *precision = h->params_stored == RT_BF16_STORED ? "bf16"
                            : rt->real == sizeof(float) ? "fp32" : "fp64";
    fputs("{\"run\": {\"model\": ", rt->log);
    put_json(rt->log, rt_text(rt->program, h->model_name));
    fputs(", \"plan\": ", rt->log);
    put_json(rt->log, rt_text(rt->program, h->plan_line));
    fprintf(rt->log, ", \"model_hash\": \"%016llx\", \"plan_hash\": \"%016llx\", "
            "\"version\": %u, \"hosts\": [", (unsigned long long)h->model_hash,
            (unsigned long long)h->plan_hash, h->version);
    put_hosts(rt);
    fprintf(rt->log, "], \"devices\": %d, \"workers\": %d, \"blas\": ", rt->nranks,
            rt->nworkers);
    put_json(rt->log, rt->blas.what);
    fprintf(rt->log, ", \"seed\": %llu, \"precision\": \"%s\", \"tokens_per_step\": %lld, "
            "\"block_bytes\": %lld", (unsigned long long)h->train.seed, precision,
            (long long)step_tokens(rt), (long long)largest_block(rt));
    if (rt->options->resume)
        fprintf(rt->log, ", \"resumed_step\": %lld", (long long)rt->first_step);
    fputs("}}\n", rt->log);
    return fflush(rt->log) ? log_broken(rt) : RT_OK;
}

int rt_log_open(Rt *rt)
{
    const RtOptions *o = rt->options;
    if (rt->first > 0)                  // rank 0 writes for all
        return RT_OK;
    if (rt->log_path) {
        rt->log = fopen(rt->log_path, o->resume ? "a" : "w");
        if (!rt->log)
            return rt_fail(rt, RT_WORLD, "%s: error: could not open the log: %s", rt->log_path,
                           strerror(errno));
        RT_TRY(log_run(rt));
    }
    if (o->trace) {
        rt->trace = fopen(o->trace, "w");
        if (!rt->trace || fputs("[\n", rt->trace) < 0 || fflush(rt->trace))
            return rt_fail(rt, RT_WORLD, "%s: error: could not write the trace: %s", o->trace,
                           strerror(errno));
    }
    return RT_OK;
}

int rt_log_close(Rt *rt)
{
    int status = RT_OK;
    bool broken = rt->trace && ferror(rt->trace);
    if (rt->log && fclose(rt->log))
        status = log_broken(rt);
    rt->log = NULL;
    if (rt->trace) {
        fputs("\n]\n", rt->trace);
        if (fclose(rt->trace) || broken)
            status = rt_fail(rt, RT_WORLD, "%s: error: could not write the trace: %s",
                             rt->options->trace, strerror(errno));
        rt->trace = NULL;
    }
    return status;
}

/* ---- what people see ----------------------------------------------------- */

/* "1.21 GB": three digits and a unit. */
const char *rt_size_words(double v, const char *unit, char out[32])
{
    static const char prefix[][2] = { "", "k", "M", "G", "T", "P" };
    int i = 0;
    while (v >= 999.5 && i < 5) {
        v /= 1000;
        i++;
    }
    snprintf(out, 32, "%.*f %s%s", v >= 99.5 || (i == 0 && v == floor(v)) ? 0 : v >= 9.95 ? 1 : 2,
             v, prefix[i], unit);
    return out;
}

void rt_log_head(Rt *rt)
{
    const RtHeader *h = rt->head;
    if (rt->options->quiet || rt->first > 0)
        return;
    char bytes[32], workers[48] = "", blas[160] = "";
    if (rt->nworkers > 1)
        snprintf(workers, sizeof workers, " of %d workers", rt->nworkers);
    if (rt->blas.what[0])
        snprintf(blas, sizeof blas, "; %s", rt->blas.what);
    if (rt->blas.gflops > 0)
        snprintf(blas + strlen(blas), sizeof blas - strlen(blas), " %.0f GFLOP/s",
                 rt->blas.gflops);
    printf("%s: %d rank%s%s%s, %s%s; block %s a rank; %lld tokens a step\n",
           rt_text(rt->program, h->model_name), rt->nranks, rt->nranks == 1 ? "" : "s",
           rt_processes(rt) ? " as processes" : "", workers,
           rt_text(rt->program, h->plan_line), blas,
           rt_size_words((double)largest_block(rt), "B", bytes), (long long)step_tokens(rt));
    fflush(stdout);
}

/* Called by rank 0 after each step. */
int rt_log_step(RtRank *r, double step_s)
{
    Rt *rt = r->rt;
    const RtNow *now = &r->now;
    double rate = (double)step_tokens(rt) / (step_s > 0 ? step_s : 1e-9);
    long long step = now->step + 1;
    if (!rt->options->quiet) {
        char words[32], digits[24];
        int width = snprintf(digits, sizeof digits, "%lld", (long long)rt->steps);
        printf("step %*lld  loss %7.4f  grad_norm %8.4g  lr %.1e  %10s  %8.4f s\n", width, step,
               now->loss, now->norm, now->lr, rt_size_words(rate, "tok/s", words), step_s);
        if (fflush(stdout))
            return rt_fail(rt, RT_WORLD, "%s: error: could not write to stdout: %s", rt->exe,
                           strerror(errno));
    }
    if (rt->log) {
        char loss[32], norm[32];
        fprintf(rt->log, "{\"step\": %lld, \"loss\": %s, \"grad_norm\": %s, \"lr\": %.17g, "
                "\"tokens_per_s\": %.6g, \"step_s\": %.6g}\n", step,
                json_number(now->loss, loss), json_number(now->norm, norm), now->lr, rate,
                step_s);
        if (fflush(rt->log))
            return log_broken(rt);
    }
    return RT_OK;
}

int rt_log_validation(Rt *rt, int64_t step, double loss)
{
    char number[32];
    if (!rt->options->quiet) {
        char digits[24];
        int width = snprintf(digits, sizeof digits, "%lld", (long long)rt->steps);
        printf("step %*lld  validation loss %7.4f\n", width, (long long)step, loss);
        if (fflush(stdout))
            return rt_fail(rt, RT_WORLD, "%s: error: could not write to stdout: %s", rt->exe,
                           strerror(errno));
    }
    if (rt->log) {
        fprintf(rt->log, "{\"step\": %lld, \"validation_loss\": %s}\n", (long long)step,
                json_number(loss, number));
        if (fflush(rt->log))
            return log_broken(rt);
    }
    return RT_OK;
}

static const char *const pass_word[] = {
    "forward", "backward", "send_activation", "recv_activation", "send_gradient",
    "recv_gradient", "sync", "optimizer", "begin",
};

/* A pass as the simulator calls it: "forward 0.1", microbatch and slice. */
static void pass_name(const RtPass *p, char out[64])
{
    size_t n = (size_t)snprintf(out, 64, "%s", pass_word[p->kind]);
    if (p->kind >= RT_PASS_SYNC)
        return;
    n += (size_t)snprintf(out + n, 64 - n, " %d.%d", p->microbatch, p->slice);
    if (p->chunk)
        snprintf(out + n, 64 - n, ".%d", p->chunk);
}

static void trace_event(Rt *rt, const RtRank *r, const RtEvent *e, int64_t step)
{
    const RtProgram *p = r->program;
    const RtStep *s = e->step < 0 ? NULL : &p->steps[e->step];
    const RtPass *pass = &p->passes[e->pass];
    char whole[64];
    pass_name(pass, whole);
    fputs(rt->trace_any ? ",\n{\"name\": " : "{\"name\": ", rt->trace);
    rt->trace_any = true;
    put_json(rt->trace, s ? rt_text(p, s->name) : whole);
    fprintf(rt->trace, ", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
            "\"dur\": %.3f, \"args\": {\"step\": %lld, \"pass\": \"%s\", "
            "\"microbatch\": %d, \"slice\": %d, \"chunk\": %d, \"source\": ", r->stage, r->id,
            1e6 * (e->begin_s - rt->started_s), 1e6 * (e->end_s - e->begin_s),
            (long long)step + 1, pass_word[pass->kind], pass->microbatch, pass->slice,
            pass->chunk);
    put_json(rt->trace, s ? rt_text(p, s->source) : "");
    fputs("}}", rt->trace);
}

/* Chrome trace of one step of all ranks: one track per rank. */
void rt_trace_step(Rt *rt, int64_t step)
{
    for (int i = 0; i < rt->nranks; i++) {
        RtRank *r = &rt->rank[i];
        for (int64_t e = 0; e < r->nevents; e++)
            trace_event(rt, r, &r->events[e], step);
        r->nevents = 0;
    }
    fflush(rt->trace);
}
