/*
 * schedule.c - the order of steps of every stage, as one table each, and the
 * checks that the tables fit together.
 *
 * Units are (microbatch, slice, chunk). Every stage runs the same order of
 * forwards and the same order of backwards; what differs is how many forwards
 * come before the first backward (the warm-up). After it forwards and backwards
 * alternate until the forwards are used up. With P stages, m microbatches of k
 * slices and v chunks, stage r of 0 .. P-1:
 *
 *   gpipe    all m*k*v forwards, then the backwards in exactly reverse order
 *   1f1b     warm-up min(P-r+k-2, m*k); backwards take microbatches first in first
 *            out, the slices of one last in first out
 *   chunks   units turn over in groups of G = k*ceil(P/k): a group passes chunk 0,
 *            then chunk 1 ..; warm-up min(2(P-r-1) + (v-1)G + k-1, m*k*v). A shorter
 *            last group would stand still, so m is a multiple of ceil(P/k)
 *
 *   k = 2, P = 2:   stage 0   F0.0 F0.1 F1.0 B0.1 F1.1 B0.0 ...
 *                   stage 1        F0.0 F0.1 B0.1 F1.0 B0.0 ...
 *
 * Transfers are put where one run of the whole pipeline would put them: all
 * compute steps and transfers get one global order, and a stage's table is that
 * order with the other stages left out. Whoever is first in the global order can
 * always go on, so even transfers that block both sides cannot deadlock; the
 * check below proves it again from the tables alone.
 */
#include "predict.h"

const char *const step_word[STEP_KINDS] = {
    "forward", "backward", "send_activation", "recv_activation", "send_gradient",
    "recv_gradient", "sync", "optimizer", "begin"
};
const char *const schedule_word[2] = { "gpipe", "1f1b" };

const char *step_text(const Step *s)
{
    if (s->kind >= STEP_SYNC)
        return step_word[s->kind];
    return s->chunk ? str_fmt("%s %d.%d.%d", step_word[s->kind], s->microbatch, s->slice, s->chunk)
                    : str_fmt("%s %d.%d", step_word[s->kind], s->microbatch, s->slice);
}

/* ---- formulas -------------------------------------------------------------------- */

static int min_int(int a, int b) { return a < b ? a : b; }
static int ceil_div(int a, int b) { return (a + b - 1) / b; }

static int group_microbatches(const Schedule *s) { return ceil_div(s->P, s->k); }

bool schedule_fits(const Schedule *s)
{
    return (double)s->m * s->k * s->v * s->P <= SCHEDULE_UNITS;
}

int schedule_group(const Schedule *s)
{
    return s->v == 1 ? 1 : group_microbatches(s);
}

int schedule_warmup(const Schedule *s, int r)
{
    int all = s->m * s->k * s->v;
    if (s->kind == SCHEDULE_GPIPE)
        return all;
    if (s->v == 1)
        return min_int(s->P - r + s->k - 2, all);
    return min_int(2 * (s->P - r - 1) + (s->v - 1) * s->k * group_microbatches(s) + s->k - 1, all);
}

/* ---- compute order --------------------------------------------------------------- */

/* The forwards of every stage, in order. */
static Steps forward_order(const Schedule *s)
{
    Steps out = { 0 };
    int group = s->v == 1 ? s->m : group_microbatches(s);
    vec_reserve(&out, s->m * s->k * s->v);
    for (int lo = 0; lo < s->m; lo += group)
        for (int c = 0; c < s->v; c++)
            for (int j = lo; j < lo + group && j < s->m; j++)
                for (int i = 0; i < s->k; i++) {
                    Step u = { STEP_FORWARD, j, i, c, NONE, 0 };
                    vec_add(&out, u);
                }
    return out;
}

static Steps backward_order(const Schedule *s, const Steps *forward)
{
    Steps out = { 0 };
    vec_reserve(&out, forward->n);
    if (s->kind == SCHEDULE_GPIPE) {
        for (int i = forward->n; i-- > 0;) {
            Step u = forward->at[i];
            u.kind = STEP_BACKWARD;
            vec_add(&out, u);
        }
        return out;
    }
    int group = s->v == 1 ? s->m : group_microbatches(s);
    for (int lo = 0; lo < s->m; lo += group)
        for (int c = s->v; c-- > 0;)
            for (int j = lo; j < lo + group && j < s->m; j++)
                for (int i = s->k; i-- > 0;) {
                    Step u = { STEP_BACKWARD, j, i, c, NONE, 0 };
                    vec_add(&out, u);
                }
    return out;
}

int schedule_units(const Schedule *s, int r)
{
    return min_int(schedule_warmup(s, r) + 1, s->m * s->k * s->v);
}

/* Microbatches of a chunk with a forward done and a backward to come. The k slices of one
 * follow each other, so f forwards have begun ceil(f / k) and b backwards ended b / k: most
 * before the last backward of the first k. */
int schedule_kv(const Schedule *s, int r)
{
    int all = s->m * s->k * s->v, forwards = schedule_warmup(s, r) + s->k;
    return ceil_div(min_int(forwards, all), s->k);
}

/* ---- one global order ------------------------------------------------------------ */

/* A unit's place in tables of what is done: [kind][microbatch][slice][section]. */
static int unit_index(const Schedule *s, const Step *u, int section)
{
    bool backward = u->kind == STEP_BACKWARD || u->kind == STEP_SEND_GRADIENT ||
                    u->kind == STEP_RECV_GRADIENT;
    return ((backward * s->m + u->microbatch) * s->k + u->slice) * (s->P * s->v) + section;
}

/* Sends the result of unit u of stage r on: a step in both tables. */
static void transfer(Schedule *s, int r, const Step *u)
{
    bool forward = u->kind == STEP_FORWARD;
    int section = u->chunk * s->P + r, to = forward ? section + 1 : section - 1;
    if (to < 0 || to == s->P * s->v)
        return;
    int64_t bytes = s->b * s->slice[u->slice] * s->cut_bytes[forward ? section : to];
    Step send = *u, recv = *u;
    send.kind = forward ? STEP_SEND_ACTIVATION : STEP_SEND_GRADIENT;
    recv.kind = forward ? STEP_RECV_ACTIVATION : STEP_RECV_GRADIENT;
    send.peer = to % s->P;
    recv.peer = r;
    recv.chunk = to / s->P;
    send.bytes = recv.bytes = bytes;
    if (send.peer == r)             // one stage with chunks keeps its results
        return;
    vec_add(&s->stage[r], send);
    vec_add(&s->stage[send.peer], recv);
}

typedef struct {
    const Schedule *s;
    Steps forward, backward;
    int *nforward, *nbackward;      // by stage: how many have run
    int *warmup;
    double *free_at;                // by stage: end of its last step
    double *end;                    // by stage: of its next step; HUGE_VAL: it has to wait
    double *done;                   // by unit_index: when; 0: not yet
} Line;

/* The next compute step of a stage: forwards up to the warm-up, then one of each in turn. NULL
 * behind the last. */
static const Step *next_step(const Line *l, int r)
{
    int f = l->nforward[r], b = l->nbackward[r];
    if (f < l->forward.n && f <= l->warmup[r] + b)
        return &l->forward.at[f];
    return b < l->backward.n ? &l->backward.at[b] : NULL;
}

static double end_of_next(const Line *l, int r)
{
    const Schedule *s = l->s;
    const Step *u = next_step(l, r);
    if (u == NULL)
        return HUGE_VAL;
    bool is_forward = u->kind == STEP_FORWARD;
    int section = u->chunk * s->P + r, before = is_forward ? section - 1 : section + 1;
    double ready = l->free_at[r], input = 1;
    if (before >= 0 && before < s->P * s->v)
        input = l->done[unit_index(s, u, before)];
    else if (!is_forward) {
        Step own = *u;
        own.kind = STEP_FORWARD;
        input = l->done[unit_index(s, &own, section)];
    }
    if (input == 0)
        return HUGE_VAL;
    return (ready > input ? ready : input) + (is_forward ? 2 : 4);
}

void schedule_reserve(Schedule *s, int P, int units)
{
    if (s->stage == NULL)
        s->stage = NEWN(Steps, P);
    for (int r = 0; r < P; r++)
        vec_reserve(&s->stage[r], units * (P > 1 ? 6 : 2) + 2);
}

/*
 * Runs the pipeline with a forward of 2 units of time and a backward of 4. A step
 * is chosen when it would end first; ties go to the later stage. What a stage has done
 * changes the next step of its neighbours and its own, nobody else's.
 */
void schedule_build(Schedule *s)
{
    int P = s->P, units = s->m * s->k * s->v;
    schedule_reserve(s, P, units);
    for (int r = 0; r < P; r++)
        s->stage[r].n = 0;
    Aside aside = aside_begin();
    Line l = { .s = s, .forward = forward_order(s), .nforward = NEWN(int, P),
               .nbackward = NEWN(int, P), .warmup = NEWN(int, P), .free_at = NEWN(double, P),
               .end = NEWN(double, P), .done = NEWN(double, (size_t)2 * units * P) };
    l.backward = backward_order(s, &l.forward);
    for (int r = 0; r < P; r++)
        l.warmup[r] = schedule_warmup(s, r);
    for (int r = 0; r < P; r++)
        l.end[r] = end_of_next(&l, r);
    for (int left = P * 2 * units; left > 0; left--) {
        int best = P - 1;
        for (int r = P - 1; r-- > 0;)
            best = l.end[r] < l.end[best] ? r : best;
        if (l.end[best] == HUGE_VAL)
            bug("schedule: %s of %d stages, %d microbatches, %d slices, %d chunks stands still",
                schedule_word[s->kind], s->P, s->m, s->k, s->v);
        const Step *u = next_step(&l, best);
        l.free_at[best] = l.done[unit_index(s, u, u->chunk * P + best)] = l.end[best];
        (u->kind == STEP_FORWARD ? l.nforward : l.nbackward)[best]++;
        vec_add(&s->stage[best], *u);
        transfer(s, best, u);
        int near[] = { best, (best + 1) % P, (best + P - 1) % P };
        for (int i = 0; i < 3; i++)
            l.end[near[i]] = end_of_next(&l, near[i]);
    }
    for (int r = 0; r < s->P; r++) {
        Step sync = { STEP_SYNC, 0, 0, 0, NONE, 0 }, update = { STEP_OPTIMIZER, 0, 0, 0, NONE, 0 };
        vec_add(&s->stage[r], sync);
        vec_add(&s->stage[r], update);
    }
    aside_end(aside);
}

/* ---- checks ---------------------------------------------------------------------- */

typedef struct { const Schedule *s; FILE *f; int failed; } Check;

__attribute__((format(printf, 3, 4)))
static void fails(Check *c, const char *check, const char *fmt, ...)
{
    va_list ap;
    c->failed++;
    if (c->f == NULL)
        return;
    fprintf(c->f, "%s: ", check);
    va_start(ap, fmt);
    vfprintf(c->f, fmt, ap);
    va_end(ap);
    fputc('\n', c->f);
}

static void check_slices(Check *c)
{
    int64_t sum = 0;
    for (int i = 0; i < c->s->k; i++) {
        if (c->s->slice[i] < 1)
            fails(c, "slices-sum", "slice %d has %" PRId64 " tokens", i, c->s->slice[i]);
        sum += c->s->slice[i];
    }
    if (sum != c->s->sequence)
        fails(c, "slices-sum", "slices add up to %" PRId64 ", the sequence has %" PRId64, sum,
              c->s->sequence);
}

static bool is_send(StepKind k) { return k == STEP_SEND_ACTIVATION || k == STEP_SEND_GRADIENT; }
static bool is_recv(StepKind k) { return k == STEP_RECV_ACTIVATION || k == STEP_RECV_GRADIENT; }
static bool in_range(const Schedule *s, const Step *u)
{
    return u->kind >= 0 && u->kind < STEP_KINDS && u->microbatch >= 0 && u->microbatch < s->m &&
           u->slice >= 0 && u->slice < s->k && u->chunk >= 0 && u->chunk < s->v;
}

static int peer_of(const Schedule *s, int r, StepKind k)
{
    if (k == STEP_SEND_ACTIVATION || k == STEP_RECV_GRADIENT)
        return (r + 1) % s->P;
    return is_send(k) || is_recv(k) ? (r + s->P - 1) % s->P : NONE;
}

/* What stage r knows of a unit: bits of what happened so far. */
enum { HAS_IN = 1, IS_FORWARD = 2, IS_SENT = 4, HAS_GRAD = 8, IS_BACKWARD = 16, IS_RETURNED = 32 };

/* One table by itself: each unit in its order, everything once. */
static void check_stage(Check *c, int r)
{
    const Schedule *s = c->s;
    const Steps *t = &s->stage[r];
    int sections = s->P * s->v;
    int *state = NEWN(int, s->m * s->k * s->v);
    int sync = 0, update = 0;
    for (int i = 0; i < t->n; i++) {
        const Step *u = &t->at[i];
        if (!in_range(s, u)) {
            fails(c, "step-range", "stage %d, step %d: no such unit", r, i);
            continue;
        }
        if (u->peer != peer_of(s, r, u->kind)) {
            fails(c, "transfers-match", "stage %d, step %d: %s has the wrong other stage", r, i,
                  step_text(u));
            continue;
        }
        int *at = &state[(u->microbatch * s->k + u->slice) * s->v + u->chunk];
        const int *next = u->slice + 1 < s->k ? at + s->v : NULL;
        const int *prev = u->slice > 0 ? at - s->v : NULL;
        int section = u->chunk * s->P + r, needs = 0, gives = 0;
        bool first = section == 0 || s->P == 1, last = section == sections - 1 || s->P == 1;
        bool ok = true;
        switch (u->kind) {
        case STEP_RECV_ACTIVATION: gives = HAS_IN; ok = !first; break;
        case STEP_FORWARD:
            gives = IS_FORWARD;
            needs = first ? 0 : HAS_IN;
            ok = prev == NULL || *prev & IS_FORWARD;
            if (s->P == 1 && u->chunk > 0)
                ok &= (at[-1] & IS_FORWARD) != 0;
            break;
        case STEP_SEND_ACTIVATION: gives = IS_SENT; needs = IS_FORWARD; ok = !last; break;
        case STEP_RECV_GRADIENT: gives = HAS_GRAD; needs = IS_SENT; ok = !last; break;
        case STEP_BACKWARD:
            gives = IS_BACKWARD;
            needs = last ? IS_FORWARD : IS_FORWARD | IS_SENT | HAS_GRAD;
            ok = next == NULL || *next & IS_BACKWARD;
            if (s->P == 1 && u->chunk + 1 < s->v)
                ok &= (at[1] & IS_BACKWARD) != 0;
            break;
        case STEP_SEND_GRADIENT: gives = IS_RETURNED; needs = IS_BACKWARD; ok = !first; break;
        case STEP_SYNC: sync++; ok = update == 0; break;
        default: update++; ok = sync == 1; break;
        }
        if (u->kind < STEP_SYNC && (sync || update))
            ok = false;
        if (!ok || (*at & needs) != needs || (gives && *at & gives))
            fails(c, u->kind == STEP_BACKWARD ? "backward-order" : "step-order",
                  "stage %d, step %d: %s is out of order or twice", r, i, step_text(u));
        *at |= gives;
    }
    for (int i = 0; i < s->m * s->k * s->v; i++) {
        int section = i % s->v * s->P + r;
        bool first = section == 0 || s->P == 1, last = section == sections - 1 || s->P == 1;
        int all = IS_FORWARD | IS_BACKWARD | (first ? 0 : HAS_IN | IS_RETURNED) |
                  (last ? 0 : IS_SENT | HAS_GRAD);
        if (state[i] != all)
            fails(c, "step-missing", "stage %d: unit %d.%d.%d is not complete", r,
                  i / s->v / s->k, i / s->v % s->k, i % s->v);
    }
    if (sync != 1 || update != 1)
        fails(c, "step-missing", "stage %d: %d syncs and %d updates", r, sync, update);
}

/* The next transfer of one kind between stage r and stage q in r's table, from step *at on. */
static const Step *next_transfer(const Schedule *s, int r, int q, StepKind kind, int *at)
{
    const Steps *t = &s->stage[r];
    while (*at < t->n) {
        const Step *u = &t->at[(*at)++];
        if (u->kind == kind && u->peer == q)
            return u;
    }
    return NULL;
}

static void check_pair(Check *c, int r, int q, StepKind send_kind)
{
    const Schedule *s = c->s;
    int i = 0, k = 0, sent = 0, received = 0;
    for (;;) {
        const Step *a = next_transfer(s, r, q, send_kind, &i);
        const Step *b = next_transfer(s, q, r, send_kind + 1, &k);
        sent += a != NULL;
        received += b != NULL;
        if (a == NULL && b == NULL)
            break;
        if (a == NULL || b == NULL)
            continue;
        int from = a->chunk * s->P + r, to = b->chunk * s->P + q;
        if (a->microbatch != b->microbatch || a->slice != b->slice || a->bytes != b->bytes ||
            to != (send_kind == STEP_SEND_ACTIVATION ? from + 1 : from - 1))
            fails(c, "transfers-match", "stage %d sends %s (%" PRId64 " bytes), stage %d expects "
                  "%s (%" PRId64 " bytes)", r, step_text(a), a->bytes, q, step_text(b), b->bytes);
        int64_t cut = s->cut_bytes[from < to ? from : to];
        if (a->bytes != s->b * s->slice[a->slice] * cut)
            fails(c, "transfers-match", "stage %d: %s has %" PRId64 " bytes", r, step_text(a),
                  a->bytes);
    }
    if (sent != received)
        fails(c, "transfers-match", "stage %d sends %d times (%s) to stage %d, which receives %d",
              r, sent, step_word[send_kind], q, received);
}

/*
 * Steps with edges to what must come before: the step before in its table, and for
 * the two ends of a transfer, each other (they happen together). Runs whoever can
 * go on until nobody can; what is left waits in a circle.
 */
static void check_deadlock(Check *c)
{
    const Schedule *s = c->s;
    int *at = NEWN(int, s->P);
    bool moved = true;
    while (moved) {
        moved = false;
        for (int r = 0; r < s->P; r++)
            while (at[r] < s->stage[r].n) {
                const Step *u = &s->stage[r].at[at[r]];
                if (is_send(u->kind) || is_recv(u->kind)) {
                    int q = u->peer;
                    if (q < 0 || q >= s->P || q == r || at[q] == s->stage[q].n)
                        break;
                    const Step *w = &s->stage[q].at[at[q]];
                    bool pair = is_send(u->kind) ? w->kind == u->kind + 1 : w->kind + 1 == u->kind;
                    if (!pair || w->peer != r || w->microbatch != u->microbatch ||
                        w->slice != u->slice)
                        break;
                    at[q]++;
                }
                at[r]++;
                moved = true;
            }
    }
    for (int r = 0; r < s->P; r++)
        if (at[r] < s->stage[r].n) {
            const Step *u = &s->stage[r].at[at[r]];
            fails(c, "no-deadlock", "stage %d waits for ever in step %d, %s, for stage %d", r,
                  at[r], step_text(u), u->peer);
        }
}

int schedule_check(const Schedule *s, FILE *f)
{
    Check c = { s, f, 0 };
    check_slices(&c);
    for (int r = 0; r < s->P; r++)
        check_stage(&c, r);
    for (int r = 0; s->P > 1 && r < s->P; r++) {
        check_pair(&c, r, (r + 1) % s->P, STEP_SEND_ACTIVATION);
        check_pair(&c, (r + 1) % s->P, r, STEP_SEND_GRADIENT);
    }
    check_deadlock(&c);
    return c.failed;
}
