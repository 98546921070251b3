/*
 * simulate.c - runs the step tables of all stages on paper.
 *
 * Every stage has three streams: one computes, in the order of its table; one sends
 * results on, one sends gradients back. A step starts when its stream is free and
 * its input has arrived; a send starts when its result is there and takes the
 * seconds of the link. With `blocking` a send also holds up the stage's compute,
 * as in TeraPipe's own implementation. No step waits for anything else, so going
 * round the stages and taking whatever can start gives the times of a queue of
 * events, in any order of going round.
 *
 * Where stages share cores (Timing.cores), work is no longer as long as its seconds: the
 * stages at work are served at once, each at the same speed, cores / (stages at work *
 * threads of a stage), at most 1. Going round then only finds what can start, and when;
 * time passes from one start or end of work to the next.
 *
 * For equal stages, one microbatch of slices t_1 .. t_n and gpipe's forwards this is
 * sum t + (K-1) max t exactly (tests/unit/test_simulate.c).
 *
 * breakdown: the wall time of the stage that finishes last. What it waits for is
 * `pipeline` while the transfer it needs is on its way (or holds it up) and `bubble`
 * otherwise.
 */
#include <errno.h>

#include "predict.h"

const char *const part_word[PARTS] = {
    "compute", "recompute", "x", "y", "z", "pipeline", "bubble", "data", "optimizer"
};

typedef struct { double start, end; bool known; } Flight;

typedef struct {
    const Timing *t; const Schedule *s; Simulation *sim; bool keep;
    int *at;                        // per stage: next step of its table
    double *now, *sent, *sent_back; // per stage: when its streams are free
    double (*part)[PARTS];          // per stage
    double *done;                   // per stage: when the last compute step ended
    Flight *flight;                 // [backward][microbatch][slice][section that receives]
    double *ready;                  // per stage: end of its sync
    struct Job { Step step; double part[PARTS], start, left; enum { NONE_YET, WAITS, RUNS } is; }
        *job;                       // per stage, where cores are shared; NULL: they are not
} Run;

static Flight *flight_of(const Run *r, bool backward, const Step *u, int section)
{
    const Schedule *s = r->s;
    int unit = (backward * s->m + u->microbatch) * s->k + u->slice;
    return &r->flight[unit * s->P * s->v + section];
}

static void span(Run *r, int stage, Stream stream, double start, double end, const Step *u)
{
    if (!r->keep)
        return;
    Span a = { stage, stream, start, end, *u };
    vec_add(&r->sim->spans, a);
}

static void add_seconds(double *part, const Seconds *x)
{
    part[PART_COMPUTE] += x->compute;
    part[PART_RECOMPUTE] += x->recompute;
    part[PART_X] += x->x;
    part[PART_Y] += x->y;
    part[PART_Z] += x->z;
    part[PART_DATA] += x->data;
}

static void idle(Run *r, int stage, double until)
{
    if (until > r->now[stage]) {
        r->part[stage][PART_BUBBLE] += until - r->now[stage];
        r->now[stage] = until;
    }
}

static void wait_for(Run *r, int stage, const Flight *f)
{
    if (f->end <= r->now[stage])
        return;
    idle(r, stage, f->start < f->end ? f->start : f->end);
    r->part[stage][PART_PIPELINE] += f->end - r->now[stage];
    r->now[stage] = f->end;
}

static void send(Run *r, int stage, const Step *u)
{
    const Schedule *s = r->s;
    bool back = u->kind == STEP_SEND_GRADIENT;
    int section = u->chunk * s->P + stage;
    double *stream = back ? &r->sent_back[stage] : &r->sent[stage];
    double sec = (back ? r->t->send_backward : r->t->send_forward)[section * s->k + u->slice];
    double start = r->done[stage] > *stream ? r->done[stage] : *stream;
    if (r->t->blocking && start < r->now[stage])
        start = r->now[stage];
    Flight *f = flight_of(r, back, u, back ? section - 1 : section + 1);
    *f = (Flight){ start, start + sec, true };
    *stream = f->end;
    span(r, stage, back ? SPAN_SEND_BACK : SPAN_SEND, f->start, f->end, u);
    if (r->t->blocking) {
        r->part[stage][PART_PIPELINE] += f->end - r->now[stage];
        r->now[stage] = f->end;
    }
}

/* Work that took from start to now[stage]; what it was made of is stretched alike. */
static void worked(Run *r, int stage, const Step *u, const double *part, double start)
{
    double sum = 0, end = r->now[stage];
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    for (int i = 0; i < PARTS && sum > 0; i++)
        r->part[stage][i] += part[i] * ((end - start) / sum);
    r->sim->busy[stage] += end - start;
    if (u->kind == STEP_FORWARD || u->kind == STEP_BACKWARD)
        r->done[stage] = end;
    if (u->kind == STEP_SYNC)
        r->ready[stage] = end > 0 ? end : 1e-300;
    span(r, stage, SPAN_COMPUTE, start, end, u);
}

/* Work of a stage from its now on; false: it has begun, and its end is found by pass_time. */
static bool work(Run *r, int stage, const Step *u, const double *part)
{
    double sum = 0, start = r->now[stage];
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    if (r->job && sum > 0) {
        struct Job *j = &r->job[stage];
        *j = (struct Job){ .step = *u, .start = start, .left = sum, .is = WAITS };
        memcpy(j->part, part, sizeof j->part);
        return false;
    }
    r->now[stage] = start + sum;
    worked(r, stage, u, part, start);
    return true;
}

static bool compute(Run *r, int stage, const Step *u)
{
    const Schedule *s = r->s;
    bool back = u->kind == STEP_BACKWARD;
    int section = u->chunk * s->P + stage;
    const Seconds *x = &(back ? r->t->backward : r->t->forward)[section * s->k + u->slice];
    bool receives = s->P > 1 && (back ? section + 1 < s->P * s->v : section > 0);
    const Flight *needs = receives ? flight_of(r, back, u, section) : NULL;
    if (needs && !needs->known)
        return false;
    if (needs)
        wait_for(r, stage, needs);
    double part[PARTS] = { 0 };
    add_seconds(part, x);
    return work(r, stage, u, part);
}

static bool all_synced(const Run *r)
{
    for (int i = 0; i < r->s->P; i++)
        if (r->ready[i] == 0)
            return false;
    return true;
}

/* The last backward of the other end: tied gradients are summed when both have theirs. */
static bool tied_ready(const Run *r, int stage)
{
    int other = stage == 0 ? r->s->P - 1 : 0;
    return r->at[other] >= r->s->stage[other].n - 2;
}

static bool step(Run *r, int stage, const Step *u)
{
    const Schedule *s = r->s;
    bool tied = r->t->tied > 0 && s->P > 1 && (stage == 0 || stage == s->P - 1);
    switch (u->kind) {
    case STEP_FORWARD: case STEP_BACKWARD:
        return compute(r, stage, u);
    case STEP_SEND_ACTIVATION: case STEP_SEND_GRADIENT:
        send(r, stage, u);
        return true;
    case STEP_RECV_ACTIVATION: case STEP_RECV_GRADIENT:
        return true;                    // posted early; the work waits for what it needs
    case STEP_SYNC: {
        if (tied && !tied_ready(r, stage))
            return false;
        if (tied) {
            int other = stage == 0 ? s->P - 1 : 0;
            idle(r, stage, r->done[other]);
            r->part[stage][PART_PIPELINE] += r->t->tied;
            r->now[stage] += r->t->tied;
        }
        double part[PARTS] = { [PART_DATA] = r->t->sync[stage] };
        return work(r, stage, u, part);
    }
    default: {
        if (r->t->barrier && !all_synced(r))
            return false;
        for (int i = 0; r->t->barrier && i < s->P; i++)
            idle(r, stage, r->ready[i]);
        double part[PARTS] = { [PART_OPTIMIZER] = r->t->update[stage],
                               [PART_DATA] = r->t->gather[stage] };
        return work(r, stage, u, part);
    }
    }
}

/* Starts what can start at its stages' times. */
static void go_round(Run *r)
{
    const Schedule *s = r->s;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < s->P; i++)
            while (r->at[i] < s->stage[i].n && (r->job == NULL || r->job[i].is == NONE_YET) &&
                   step(r, i, &s->stage[i].at[r->at[i]])) {
                r->at[i]++;
                moved = true;
            }
    }
}

/* Shared cores: on to the next start or end of work. false: there is no more. */
static bool pass_time(Run *r, double *clock)
{
    int P = r->s->P, running = 0, next = -1;
    for (int i = 0; i < P; i++)
        running += r->job[i].is == RUNS;
    double speed = running ? (double)r->t->cores / ((double)running * r->t->threads) : 1;
    speed = speed < 1 ? speed : 1;
    double when = HUGE_VAL;
    for (int i = 0; i < P; i++) {
        const struct Job *j = &r->job[i];
        double t = j->is == WAITS ? j->start : j->is == RUNS ? *clock + j->left / speed : HUGE_VAL;
        if (t < when) {
            when = t;
            next = i;
        }
    }
    if (next < 0)
        return false;
    for (int i = 0; i < P; i++)
        if (r->job[i].is == RUNS)
            r->job[i].left -= when > *clock ? (when - *clock) * speed : 0;
    *clock = when > *clock ? when : *clock;
    struct Job *j = &r->job[next];
    if (j->is == WAITS) {
        j->is = RUNS;
        return true;
    }
    r->now[next] = *clock;
    j->is = NONE_YET;
    worked(r, next, &j->step, j->part, j->start);
    r->at[next]++;
    return true;
}

/* Bytes in flight along a stage's table: units until their backward, K and V of a
 * microbatch from its first forward to its last backward. */
static void memory_peaks(Run *r, int stage)
{
    const Schedule *s = r->s;
    const Steps *t = &s->stage[stage];
    int *begun = SCRATCHN(int, s->m * s->v);
    double act = 0, kv = 0, both = 0;
    for (int i = 0; i < t->n; i++) {
        const Step *u = &t->at[i];
        if (u->kind != STEP_FORWARD && u->kind != STEP_BACKWARD)
            continue;
        int section = u->chunk * s->P + stage, *n = &begun[u->microbatch * s->v + u->chunk];
        double unit = r->t->unit_bytes[section] * (double)(s->b * s->slice[u->slice]);
        bool forward = u->kind == STEP_FORWARD;
        if (forward && (*n)++ == 0)
            kv += r->t->kv_bytes[section];
        act += forward ? unit : -unit;
        if (act + kv > both) {
            both = act + kv;
            r->sim->activations[stage] = act;
            r->sim->kv[stage] = kv;
        }
        if (!forward && --*n == 0 && u->slice == 0)
            kv -= r->t->kv_bytes[section];
    }
}

Simulation simulate_run(const Timing *t, bool keep_spans)
{
    const Schedule *s = t->schedule;
    Simulation sim = { .busy = NEWN(double, s->P), .activations = NEWN(double, s->P),
                       .kv = NEWN(double, s->P) };
    Run run = { .t = t, .s = s, .sim = &sim, .keep = keep_spans }, *r = &run;
    int P = s->P;
    Mark mark = arena_mark(scratch);
    r->at = SCRATCHN(int, P);
    r->now = SCRATCHN(double, P);
    r->sent = SCRATCHN(double, P);
    r->sent_back = SCRATCHN(double, P);
    r->done = SCRATCHN(double, P);
    r->ready = SCRATCHN(double, P);
    r->part = arena_get(scratch, sizeof *r->part * (size_t)P);
    for (int i = 0; t->begin && i < P; i++) {
        r->now[i] = t->begin[i];
        r->part[i][PART_X] += t->begin[i];
    }
    r->flight = SCRATCHN(Flight, (size_t)2 * (size_t)s->m * (size_t)s->k * (size_t)(P * s->v));
    if (t->cores > 0 && P * t->threads > t->cores)
        r->job = arena_get(scratch, sizeof *r->job * (size_t)P);
    double clock = 0;
    do
        go_round(r);
    while (r->job && pass_time(r, &clock));
    double busy = 0;
    for (int i = 0; i < P; i++) {
        if (r->at[i] < s->stage[i].n)
            bug("simulate: stage %d stands still at %s", i, step_text(&s->stage[i].at[r->at[i]]));
        memory_peaks(r, i);
        busy += sim.busy[i];
        if (r->now[i] > sim.step_s) {
            sim.step_s = r->now[i];
            sim.last = i;
        }
    }
    memcpy(sim.part, r->part[sim.last], sizeof sim.part);
    sim.bubble = sim.step_s > 0 ? 1 - busy / (P * sim.step_s) : 0;
    arena_release(scratch, mark);
    return sim;
}

/* ---- trace ----------------------------------------------------------------------- */

bool simulate_trace(const Simulation *sim, const Schedule *s, const char *path)
{
    static const char *const stream[] = { "compute", "send activations", "send gradients" };
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return false;
    fprintf(f, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for (int i = 0; i < s->P; i++) {
        fprintf(f, "%s\n{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": "
                "{\"name\": \"stage %d\"}}", i ? "," : "", i, i);
        fprintf(f, ",\n{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_sort_index\", \"args\": "
                "{\"sort_index\": %d}}", i, i);
        for (int k = 0; k < 3; k++)
            fprintf(f, ",\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", "
                    "\"args\": {\"name\": \"%s\"}}", i, k, stream[k]);
    }
    for (int i = 0; i < sim->spans.n; i++) {
        const Span *a = &sim->spans.at[i];
        const Step *u = &a->step;
        fprintf(f, ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
                "\"name\": \"%s\", \"cat\": \"%s\", \"args\": {\"microbatch\": %d, \"slice\": %d, "
                "\"chunk\": %d", a->stage, a->stream, a->start * 1e6, (a->end - a->start) * 1e6,
                step_text(u), step_word[u->kind], u->microbatch, u->slice, u->chunk);
        if (u->peer != NONE)
            fprintf(f, ", \"peer\": %d, \"bytes\": %" PRId64, u->peer, u->bytes);
        fprintf(f, "}}");
    }
    fprintf(f, "\n]}\n");
    bool ok = !ferror(f);
    int error = ok ? 0 : errno;
    ok &= fclose(f) == 0;
    if (error)
        errno = error;
    return ok;
}
