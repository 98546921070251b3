/*
 * verify_shrink.c - a smaller model with the same plan, for `teracube verify`.
 *
 * What is too large to execute (design.md 8) is shrunk number by number: sequence
 * and batch, turns, then the model's other top-level numbers, the largest first,
 * each to the least value with which the plan still has the same signature: its
 * axes, its choices, its kinds of collectives, copies of kv heads, padding of the
 * vocabulary, loss in several chunks or in one, stages, microbatches (up to one more than
 * stages), slices; and enough classes and columns that gradients say something. Replicas are
 * reduced where there are more than 64 ranks, and then the cube.
 * Slices of a shorter sequence are as many, but even.
 *
 * Every candidate is the user's own files with more --set options, compiled by a
 * child process that says nothing: a candidate that is an error is not taken.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"

enum {
    WIDTH_FROM = 64,        // TUNING: numbers above it are taken for widths, others for counts
    WIDTH_LEAST = 16,       // TUNING: so that ranks have several columns
    CLASSES_LEAST = 8,      // of one class the loss is 0, and every gradient
    COLUMNS_LEAST = 4,      // a normalized row of one column is 0
    TURNS_LEAST = 2,        // so that one turn's end meets the next one's begin
    SEQUENCE_LEAST = 4,
    MASKED_LEAST = 64,      // masked: tokens of a sequence, so that some are chosen
    TRIALS = 400,           // TUNING: 2 to 10 ms each
    TRIAL_S = 10
};

typedef struct { const char *key; int64_t was, now, least; bool is_turns; } Number;

/* What a plan must keep, and how much it computes; travels through a pipe. */
typedef struct { bool fine; double flops; int ranks; uint64_t signature; } Trial;

typedef struct {
    const Compile *c;
    VEC(Number) numbers;                // sequence, batch, microbatch, then the model's
    int data, x, y, z, chunks;          // of the plan now; chunks of the loss in the first plan
    int ntrials;
    Trial best;
} Shrink;
enum { SEQUENCE, BATCH, MICROBATCH, FIRST_OF_MODEL };

/* ---- what must stay ------------------------------------------------------------- */

static uint64_t mix(uint64_t sum, uint64_t word) { return hash_bytes(&word, sizeof word, sum); }

static uint64_t signature(const Plan *p)
{
    const Choices *is = &p->is;
    uint64_t h = mix(mix(mix(mix(1, (uint64_t)is->data), (uint64_t)is->x), (uint64_t)is->y),
                     (uint64_t)is->z);
    h = mix(h, (uint64_t)is->attention * 64 + is->balanced * 32 + is->keep_inputs * 16 +
               is->keep_weights * 8 + is->shard_vectors * 4u + (uint64_t)is->zero);
    h = mix(h, is->T / is->x > is->logits_chunk);
    int64_t m = is->batch / is->data / is->microbatch;
    h = mix(h, (uint64_t)(m < is->stages + 1 ? m : is->stages + 1));
    h = mix(h, (uint64_t)is->stages * 4096 + (uint64_t)is->chunks * 64 + is->recompute);
    h = mix(h, (uint64_t)is->nslices);
    bool copies = false, padded = false, *seen = NEWN(bool, 1 << 16);
    for (int i = 0; i < p->nforward; i++)
        copies |= p->ops.at[i].kind == OP_ATTN && is->y > p->ops.at[i].kv_heads;
    for (int i = 0; i < p->units.n; i++) {
        const ParamUnit *u = &p->units.at[i];
        padded |= u->pad_rows > p->params.at[u->piece[0].param].rows;
        padded |= u->pad_cols > p->params.at[u->piece[0].param].width;
    }
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        if (n->kind == I_COLL)
            seen[n->phase << 14 | n->coll << 10 | n->a2a << 8 | n->axes << 1 | (n->rep > 1)] = true;
    }
    h = mix(h, copies * 2u + padded);
    int64_t classes = CLASSES_LEAST, columns = COLUMNS_LEAST;
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind != OP_CE && o->kind != OP_LINEAR)
            continue;
        int64_t in = p->tensors.at[o->in[0]].width, *least = o->kind == OP_CE ? &classes : &columns;
        *least = in < *least ? in : *least;
    }
    h = mix(h, (uint64_t)classes << 32 | (uint64_t)columns);
    for (int i = 0; i < 1 << 16; i++)
        if (seen[i])
            h = mix(h, (uint64_t)i);
    return h;
}

/* ---- one candidate -------------------------------------------------------------- */

static const char *set_of(const Number *n) { return str_fmt("%s=%" PRId64, n->key, n->now); }

/* The loss in as many chunks as there were, or fewer, but not in one if it was not. */
static const char *chunk_of(const Shrink *s)
{
    int64_t rows = s->numbers.at[MICROBATCH].now * s->numbers.at[SEQUENCE].now / s->x;
    for (int k = s->chunks; k > 1; k--)
        if (rows % k == 0 && rows / k % s->z == 0)
            return str_fmt("plan.logits_chunk=%" PRId64, rows / k);
    return str_fmt("plan.logits_chunk=%" PRId64, rows > 0 ? rows : 1);
}

/* The plan's own slices while the sequence is as long as it was, else as many even ones. */
static const char *slices_of(const Shrink *s)
{
    const Choices *is = &s->c->plan->is;
    Text t = { 0 };
    if (s->numbers.at[SEQUENCE].now != s->numbers.at[SEQUENCE].was)
        return str_fmt("plan.slices=uniform(%d)", is->nslices);
    for (int i = 0; i < is->nslices; i++)
        text_add(&t, "%s%" PRId64, i ? "," : "", is->slice[i]);
    return str_fmt("plan.slices=[%s]", t.at);
}

/* The command line's settings and those that make the candidate. */
static Inputs inputs_of(const Shrink *s)
{
    static const char *const attention[] = { "local", "gather", "exchange" };
    static const char *const keep[] = { "none", "inputs", "weights", "both" };
    const Choices *is = &s->c->plan->is;
    VEC(const char *) sets = { 0 };
    Inputs in = s->c->o->in;
    for (int i = 0; i < in.nsets; i++)
        vec_add(&sets, in.sets[i]);
    for (int i = 0; i < s->numbers.n; i++)
        if (s->numbers.at[i].now != s->numbers.at[i].was)
            vec_add(&sets, set_of(&s->numbers.at[i]));
    if (s->numbers.at[MICROBATCH].now == s->numbers.at[MICROBATCH].was)
        vec_add(&sets, set_of(&s->numbers.at[MICROBATCH]));
    vec_add(&sets, slices_of(s));
    vec_add(&sets, str_fmt("plan.cube=[%d,%d,%d]", s->x, s->y, s->z));
    vec_add(&sets, str_fmt("plan.data=%d", s->data));
    if (s->data > 1)
        vec_add(&sets, str_fmt("plan.zero=%d", is->zero));
    else
        vec_add(&sets, "plan.zero=0");
    vec_add(&sets, str_fmt("plan.attention=%s", attention[is->attention]));
    if (is->attention == ATT_GATHER)
        vec_add(&sets, is->balanced ? "plan.rows=balanced" : "plan.rows=plain");
    vec_add(&sets, str_fmt("plan.keep=%s", keep[is->keep_inputs + 2 * is->keep_weights]));
    vec_add(&sets, is->shard_vectors ? "plan.vectors=sharded" : "plan.vectors=whole");
    vec_add(&sets, chunk_of(s));
    in.sets = sets.at;
    in.nsets = sets.n;
    return in;
}

static bool compile_candidate(const Shrink *s, Compile *c)
{
    Inputs in = inputs_of(s);
    *c = (Compile){ .o = s->c->o, .start = s->c->start };
    Config *config = config_read(parse_files(&in), &in);
    config->has_cluster = false;
    config->any_room = true;
    c->config = config;
    return diag_errors() == 0 && compile_to(c, "memory");
}

static void child(const Shrink *s, int to)
{
    int null = open("/dev/null", O_WRONLY);
    Compile c;
    dup2(null, 1);
    dup2(null, 2);
    alarm(TRIAL_S);
    if (!compile_candidate(s, &c))
        _exit(1);
    Trial t = { .fine = true, .flops = verify_flops(c.plan, emit_program(c.plan)),
                .ranks = plan_ranks(c.plan), .signature = signature(c.plan) };
    _exit(write(to, &t, sizeof t) != sizeof t);
}

static Trial try(Shrink *s)
{
    Trial t = { 0 };
    int fd[2];
    s->ntrials++;
    fflush(NULL);
    if (pipe(fd) != 0)
        die(EXIT_WORLD, "could not make a pipe");
    pid_t pid = fork();
    if (pid < 0)
        die(EXIT_WORLD, "could not start a process");
    if (pid == 0)
        child(s, fd[1]);
    close(fd[1]);
    if (read(fd[0], &t, sizeof t) != sizeof t)
        t = (Trial){ 0 };
    close(fd[0]);
    waitpid(pid, NULL, 0);
    return t;
}

/* ---- candidates ------------------------------------------------------------------- */

static bool take(Shrink *s, Number *n, int64_t v)
{
    int64_t old = n->now;
    n->now = v;
    Trial t = try(s);
    if (t.fine && t.signature == s->best.signature && t.flops <= s->best.flops) {
        s->best = t;
        return true;
    }
    n->now = old;
    return false;
}

/* The least value that keeps the plan: one by one, in growing odd steps, then divisors. */
static bool shrink_number(Shrink *s, Number *n)
{
    int64_t v = n->least, now = n->now, first = n->least < 16 ? 16 : 80;
    for (; v < now && v <= first && s->ntrials < TRIALS; v++)
        if (take(s, n, v))
            return true;
    for (int64_t u = v; u < now && s->ntrials < TRIALS; u += u / 8 | 1)
        if (take(s, n, u))
            return true;
    for (int64_t d = now / (v > 0 ? v : 1); d > 1 && s->ntrials < TRIALS; d--)
        if (now % d == 0 && take(s, n, now / d))
            return true;
    return false;
}

static bool shrink_numbers(Shrink *s)
{
    bool changed = shrink_number(s, &s->numbers.at[SEQUENCE]);
    changed |= shrink_number(s, &s->numbers.at[MICROBATCH]);
    changed |= shrink_number(s, &s->numbers.at[BATCH]);
    for (int i = FIRST_OF_MODEL; i < s->numbers.n; i++)
        if (s->numbers.at[i].is_turns)
            changed |= shrink_number(s, &s->numbers.at[i]);
    bool *done = NEWN(bool, s->numbers.n);
    for (;;) {
        int next = -1;
        for (int i = FIRST_OF_MODEL; i < s->numbers.n; i++)
            if (!done[i] && !s->numbers.at[i].is_turns &&
                (next < 0 || s->numbers.at[i].now > s->numbers.at[next].now))
                next = i;
        if (next < 0)
            return changed;
        done[next] = true;
        changed |= shrink_number(s, &s->numbers.at[next]);
    }
}

/* One axis of the cube made smaller, the largest that can be; false: none can. */
static bool shrink_axis(Shrink *s)
{
    int *const axis[] = { &s->x, &s->y, &s->z };
    for (int most = 1 << 20;;) {
        int largest = 0;
        for (int i = 0; i < 3; i++)
            if (*axis[i] < most && *axis[i] > largest)
                largest = *axis[i];
        if (largest < 2)
            return false;
        for (int i = 0; i < 3; i++)
            for (int d = 2; *axis[i] == largest && d <= largest; d++) {
                if (largest % d)
                    continue;
                *axis[i] = largest / d;
                Trial t = try(s);
                if (t.fine) {
                    s->best = t;
                    return true;
                }
                *axis[i] = largest;
            }
        most = largest;
    }
}

/* More ranks than can be executed: fewer replicas, then a smaller cube. */
static bool shrink_ranks(Shrink *s)
{
    const Choices *is = &s->c->plan->is;
    int64_t sequences = is->batch / is->data;
    while ((int64_t)is->stages * s->data * s->x * s->y * s->z > VERIFY_RANKS) {
        if (s->data > 2) {
            s->data = 2;
            s->numbers.at[BATCH].now = 2 * sequences;
            s->best = try(s);
            if (!s->best.fine)
                return false;
        } else if (!shrink_axis(s))
            return false;
    }
    return true;
}

/* ---- the model's numbers ------------------------------------------------------------ */

static bool is_turns(const Ast *ast, const char *name)
{
    for (int i = 0; i < ast->body.n; i++) {
        const Stmt *b = ast->body.at[i];
        if (b->is_repeat && b->value->kind == E_NAME && strcmp(b->value->text, name) == 0)
            return true;
    }
    return false;
}

static int64_t value_now(const Config *c, const Stmt *b)
{
    const Expr *e = b->value;
    for (int i = 0; i < c->model_sets.n; i++) {
        const Entry *set = &c->model_sets.at[i];
        if (strcmp(set->name, b->names.at[0].name) == 0 && set->values.n == 1)
            e = set->values.at[0];
    }
    bool whole = e->kind == E_NUMBER && e->number == floor(e->number) && e->number < 1e15;
    return whole ? (int64_t)e->number : 0;
}

static void find_numbers(Shrink *s)
{
    const Config *config = s->c->config;
    const Choices *is = &s->c->plan->is;
    Number sequence = { "train.sequence", is->sequence, is->sequence, SEQUENCE_LEAST, false };
    if (config->train.objective == OBJ_MASKED)
        sequence.least = is->sequence < MASKED_LEAST ? is->sequence : MASKED_LEAST;
    Number batch = { "train.batch", is->batch, is->batch, is->data, false };
    Number micro = { "plan.microbatch", is->microbatch, is->microbatch, 1, false };
    vec_add(&s->numbers, sequence);
    vec_add(&s->numbers, batch);
    vec_add(&s->numbers, micro);
    for (int i = 0; i < config->ast->body.n; i++) {
        const Stmt *b = config->ast->body.at[i];
        if (b->is_repeat || b->names.n != 1)
            continue;
        const char *name = b->names.at[0].name;
        int64_t v = value_now(config, b);
        bool again = false;
        for (int k = FIRST_OF_MODEL; k < s->numbers.n; k++)
            again |= strcmp(s->numbers.at[k].key, str_fmt("model.%s", name)) == 0;
        if (v < 2 || again)
            continue;
        Number n = { str_fmt("model.%s", name), v, v, v > WIDTH_FROM ? WIDTH_LEAST : 1,
                     is_turns(config->ast, name) };
        int sections = is->stages * is->chunks;
        if (n.is_turns)
            n.least = config->plan.turns.n ? v : sections > TURNS_LEAST ? sections : TURNS_LEAST;
        vec_add(&s->numbers, n);
    }
}

static void say_shrunk(const Shrink *s, double before)
{
    const Choices *is = &s->c->plan->is;
    Text t = { 0 };
    for (int i = 0; i < s->numbers.n; i++) {
        const Number *n = &s->numbers.at[i];
        if (n->now != n->was)
            text_add(&t, ", %s %" PRId64 " -> %" PRId64, strchr(n->key, '.') + 1, n->was, n->now);
    }
    if (s->data != is->data)
        text_add(&t, ", data %d -> %d", is->data, s->data);
    if (s->x != is->x || s->y != is->y || s->z != is->z)
        text_add(&t, ", cube [%d, %d, %d] -> [%d, %d, %d]", is->x, is->y, is->z, s->x, s->y, s->z);
    printf("shrunk to execute it, from %s a step on %s to %s on %d%s\n", str_flop(before),
           plural(plan_ranks(s->c->plan), "rank"), str_flop(s->best.flops), s->best.ranks,
           t.n ? str_fmt(": %s", t.at + 2) : ": nothing could be made smaller");
}

int verify_shrunk(Compile *c)
{
    const Choices *is = &c->plan->is;
    double before = verify_flops(c->plan, emit_program(c->plan));
    int64_t chunks = is->T / is->x / is->logits_chunk;
    Shrink s = { .c = c, .data = is->data, .x = is->x, .y = is->y, .z = is->z,
                 .chunks = chunks > 3 ? 3 : (int)chunks };
    find_numbers(&s);
    s.best = try(&s);
    if (!s.best.fine)
        bug("the plan with all its choices written out is not accepted");
    if (!shrink_ranks(&s)) {
        fprintf(stderr, "verify: static checks only: %d ranks are too many to execute, and no "
                "smaller grid was found\n", plan_ranks(c->plan));
        return EXIT_FINE;
    }
    s.numbers.at[BATCH].least = s.data;
    for (int i = 0; i < 4 && shrink_numbers(&s); i++)
        ;
    if (!c->o->quiet)
        say_shrunk(&s, before);
    Compile small;
    if (!compile_candidate(&s, &small))
        return EXIT_FAULT;
    return verify_execute(&small, emit_program(small.plan));
}
