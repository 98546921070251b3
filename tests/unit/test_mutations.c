/*
 * test_mutations.c - does `verify` see every wrong collective?
 *
 * Each collective of a plan is deleted, doubled, moved and re-grouped, one change at
 * a time. A mutant counts when executing it changes a loss, a gradient or a
 * parameter of two steps, or fails, or hangs: verify must reject all that count. What
 * verify accepts is executed on threads in a process of its own, with memory
 * that starts as no number in each step; results are compared bit by bit. In plain
 * runs at most SAMPLE accepted mutants of a plan are executed; all with ALL=1.
 *
 * Other instructions are deleted and swapped with their neighbours in the same way. Of
 * products of blocks (summa) also flags that add to a sum, and who sends or sums; of
 * pipelines also flags that add to a sum, partners of transfers, the functions that
 * instructions belong to, and the calls of the step table: their order, functions,
 * microbatches and places in memory.
 * needs: llvm
 */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emit.h"
#include "predict.h"

enum { STEPS = 2, SAMPLE = 50, BATCH = 400, TRIED = 2500 };     // TRIED: of a pipeline

/* ---- plans ------------------------------------------------------------------------ */

static const char gpt[] =
    "model gpt { vocab = 31; layers = 2; hidden = 24; heads = 4\n"
    "  block layer(x) {\n"
    "    h = layernorm(x); q, k, v = split(linear(h, 3*hidden), 3)\n"
    "    x = x + dropout(linear(attention(q, k, v, heads=heads), hidden), 0.1)\n"
    "    return x + linear(gelu(linear(layernorm(x), 2*hidden)), hidden) }\n"
    "  x = embed(tokens, vocab, hidden, name=\"wte\") + embed(positions, 16, hidden)\n"
    "  repeat i in layers { x = layer(x, name=\"h.{i}\") }\n"
    "  loss = cross_entropy(linear(layernorm(x), vocab, bias=no, tie=\"wte\"), targets) }\n";

static const char llama[] =
    "model llama { vocab = 30; layers = 1; hidden = 24; heads = 4; kv = 2\n"
    "  block layer(x) {\n"
    "    h = rmsnorm(x)\n"
    "    q = rope(linear(h, hidden, bias=no), heads=heads)\n"
    "    k = rope(linear(h, hidden/heads*kv, bias=no), heads=kv)\n"
    "    v = linear(h, hidden/heads*kv, bias=no)\n"
    "    x = x + linear(attention(q, k, v, heads=heads, kv_heads=kv), hidden, bias=no)\n"
    "    h = rmsnorm(x)\n"
    "    h = silu(linear(h, 48, bias=no)) * linear(h, 48, bias=no)\n"
    "    return x + linear(h, hidden, bias=no) }\n"
    "  x = embed(tokens, vocab, hidden)\n"
    "  repeat i in layers { x = layer(x, name=\"h.{i}\") }\n"
    "  loss = cross_entropy(linear(rmsnorm(x), vocab, bias=no), targets) }\n";

static const char parallel[] =
    "model parallel { vocab = 30; layers = 2; hidden = 24; heads = 4\n"
    "  block layer(x) {\n"
    "    h = layernorm(x)\n"
    "    a = attention(linear(h, hidden), linear(h, hidden), linear(h, hidden), heads=heads)\n"
    "    return x + linear(a, hidden) + linear(gelu(linear(h, 2*hidden)), hidden) }\n"
    "  x = embed(tokens, vocab, hidden)\n"
    "  repeat i in layers { x = layer(x, name=\"h.{i}\") }\n"
    "  loss = cross_entropy(linear(layernorm(x), vocab), targets) }\n";

/* Operands in different layouts, concat and split, a norm by heads. */
static const char convert[] =
    "fn unit(x; weight=1) = x * rsqrt(mean(x*x) + 1e-5) * weight\n"
    "model convert { vocab = 30; layers = 1; hidden = 24; heads = 4\n"
    "  block layer(x) {\n"
    "    h = linear(layernorm(x), hidden)\n"
    "    h = h * x + sigmoid(x)\n"
    "    q, k = split(linear(h, 2*hidden), 2)\n"
    "    q = unit(q, heads=heads); k = unit(k, heads=heads)\n"
    "    a = attention(q, k, linear(h, hidden), heads=heads)\n"
    "    g = concat(a, linear(x, hidden))\n"
    "    return x + linear(g, hidden) }\n"
    "  x = embed(tokens, vocab, hidden)\n"
    "  repeat i in layers { x = layer(x, name=\"h.{i}\") }\n"
    "  loss = cross_entropy(linear(x, vocab), targets) }\n";

static const char training[] =
    "train { batch = 4; sequence = 12; steps = 9; precision = fp64; clip = 1; seed = 3\n"
    "  optimizer = adamw(lr=0.01, weight_decay=0.1) }\n";

static Plan *plan_of(const char *model, const char *const *sets)
{
    char path[] = "/tmp/teracube-mutations-XXXXXX";
    int fd = mkstemp(path), n = 0;
    cr_assert(fd >= 0);
    cr_assert(write(fd, model, strlen(model)) > 0 && write(fd, training, strlen(training)) > 0);
    close(fd);
    while (sets[n])
        n++;
    const char *const files[] = { path };
    Inputs in = { .files = files, .nfiles = 1, .sets = sets, .nsets = n };
    Config *c = config_read(parse_files(&in), &in);
    Plan *p = plan_new(c);
    p->is.workers = 1;
    void (*const passes[])(Plan *) = { graph_build, mesh_choose, fuse_linears, autodiff_add,
                                       slice_choose, partition_choose, memory_place };
    for (size_t i = 0; i < sizeof passes / sizeof *passes && !diag_errors(); i++)
        passes[i](p);
    unlink(path);
    cr_assert_eq(diag_errors(), 0, "the plan does not compile");
    cr_assert_eq(verify_plan(p, "memory", stderr), 0, "verify rejects a correct plan");
    return p;
}

/* ---- mutants ------------------------------------------------------------------------ */

typedef enum {
    DELETE, DOUBLE, MOVE, REGROUP, OTHER_DELETE, OTHER_SWAP,
    FLAG, PARTNER,                          // pipelines and products of blocks
    BORDER, OTHER_MOVE,                     // pipelines: from here on
    CALL_DELETE, CALL_DOUBLE, CALL_MOVE, CALL_UNIT, CALL_AGAIN, CALL_REGION, KINDS
} Kind;
static const char *const kind_word[] = {
    "delete", "double", "move", "re-group", "other: delete", "other: swap",
    "flag", "partner", "border", "other: move",
    "call: delete", "call: double", "call: move", "call: unit", "call: again", "call: region"
};
typedef struct { Kind kind; InstId at, to; Axes axes; int rep, stage; } Mutant;
typedef VEC(Mutant) Mutants;

static bool is_piped(const Plan *p)
{
    return p->is.stages > 1 || p->is.chunks > 1 || p->is.nslices > 1;
}

/* Where functions begin and end, once an instruction went in at `at` (or out: by = -1). */
static void shift_funcs(Plan *m, int at, int by)
{
    for (int i = 0; i < m->funcs.n; i++) {
        Func *f = &m->funcs.at[i];
        bool last = f->end == m->insts.n - by && at == f->end;     // behind all others
        f->first += f->first > at ? by : 0;
        f->end += f->end > at || (by > 0 && last) ? by : 0;
    }
}

static Phase phase_at(const Plan *m, int at)
{
    static const Phase of[] = { PHASE_FORWARD, PHASE_BACKWARD, PHASE_FORWARD, PHASE_FORWARD,
        PHASE_BACKWARD, PHASE_BACKWARD, PHASE_SYNC, PHASE_OPTIMIZER, PHASE_FORWARD };
    for (int i = 0; i < m->funcs.n; i++)
        if (at >= m->funcs.at[i].first && at < m->funcs.at[i].end)
            return of[m->funcs.at[i].kind];
    return PHASE_OPTIMIZER;
}

static void insert(Plan *m, int at, Inst i)
{
    vec_add(&m->insts, i);
    memmove(m->insts.at + at + 1, m->insts.at + at,
            sizeof *m->insts.at * (size_t)(m->insts.n - 1 - at));
    m->insts.at[at] = i;
    shift_funcs(m, at, 1);
    if (is_piped(m))
        m->insts.at[at].phase = phase_at(m, at);
}

static void removed(Plan *m, int at)
{
    m->insts.n--;
    memmove(m->insts.at + at, m->insts.at + at + 1,
            sizeof *m->insts.at * (size_t)(m->insts.n - at));
    shift_funcs(m, at, -1);
}

static Plan *copy_of(const Plan *p)
{
    Plan *m = NEW(Plan);
    *m = *p;
    m->insts.at = NEWN(Inst, p->insts.n + 2);
    m->insts.cap = p->insts.n + 2;
    memcpy(m->insts.at, p->insts.at, sizeof *m->insts.at * (size_t)p->insts.n);
    m->funcs.at = NEWN(Func, p->funcs.n + 1);
    memcpy(m->funcs.at, p->funcs.at, sizeof *m->funcs.at * (size_t)p->funcs.n);
    m->calls.at = NEWN(Call, p->calls.n + 2);
    m->calls.cap = p->calls.n + 2;
    memcpy(m->calls.at, p->calls.at, sizeof *m->calls.at * (size_t)p->calls.n);
    return m;
}

static void call_removed(Plan *m, int at)
{
    m->calls.n--;
    memmove(m->calls.at + at, m->calls.at + at + 1,
            sizeof *m->calls.at * (size_t)(m->calls.n - at));
}

static void call_insert(Plan *m, int at, Call c)
{
    vec_add(&m->calls, c);
    memmove(m->calls.at + at + 1, m->calls.at + at,
            sizeof *m->calls.at * (size_t)(m->calls.n - 1 - at));
    m->calls.at[at] = c;
}

static void mutate_call(Plan *m, Mutant a)
{
    Call c = m->calls.at[a.at];
    switch (a.kind) {
    case CALL_DELETE:
        call_removed(m, a.at);
        break;
    case CALL_DOUBLE:
        call_insert(m, a.to, c);
        break;
    case CALL_MOVE:
        call_removed(m, a.at);
        call_insert(m, a.to, c);
        break;
    case CALL_UNIT:             // the unit and function of another call, with its own memory
        m->calls.at[a.at].step = m->calls.at[a.to].step;
        m->calls.at[a.at].func = m->calls.at[a.to].func;
        break;
    case CALL_REGION:           // rep: which region; to: whose place, or 64 bytes on
        m->calls.at[a.at].region[a.rep] = a.to == a.at ? c.region[a.rep] + 64
                                                       : m->calls.at[a.to].region[a.rep];
        break;
    default:
        m->calls.at[a.at].again ^= true;
        return;
    }
    bool *called = NEWN(bool, m->funcs.n);
    for (int i = 0; i < m->calls.n; i++) {
        m->calls.at[i].again = called[m->calls.at[i].func];
        called[m->calls.at[i].func] = true;
    }
}

static void change(Plan *m, Mutant a)
{
    Inst i = a.kind < CALL_DELETE ? m->insts.at[a.at] : (Inst){ 0 };
    switch (a.kind) {
    case DELETE: case OTHER_DELETE:
        removed(m, a.at);
        break;
    case DOUBLE:                // the copy goes before instruction `to`
        i.phase = m->insts.at[a.to > 0 ? a.to - 1 : 0].phase;
        insert(m, a.to, i);
        break;
    case MOVE: case OTHER_SWAP: case OTHER_MOVE:    // to the place of instruction `to`
        i.phase = m->insts.at[a.to].phase;
        removed(m, a.at);
        insert(m, a.to, i);
        break;
    case REGROUP:
        m->insts.at[a.at].axes = a.axes;
        m->insts.at[a.at].rep = a.rep;
        break;
    case FLAG:
        m->insts.at[a.at].accumulate ^= true;
        break;
    case PARTNER:
        m->insts.at[a.at].peer = a.to;
        m->insts.at[a.at].stages ^= i.stages ? UINT64_C(1) << a.to : 0;
        break;
    case BORDER:                // of functions at - 1 and at
        m->funcs.at[a.at - 1].end += a.to;
        m->funcs.at[a.at].first += a.to;
        a.at = m->funcs.at[a.at].first - (a.to > 0);
        if (a.at >= 0 && a.at < m->insts.n)
            m->insts.at[a.at].phase = phase_at(m, a.at);
        break;
    default:
        mutate_call(m, a);
    }
}

/* A copy of the plan with one change. What is moved belongs to the phase it moves to. */
static Plan *mutate(const Plan *p, Mutant a)
{
    if (!is_piped(p)) {
        Plan *m = copy_of(p);
        change(m, a);
        m->funcs.n = m->calls.n = 0;
        funcs_of_one(m);
        calls_of_one(m);
        return m;
    }
    Plan **stages = NEWN(Plan *, p->is.stages);
    for (int r = 0; r < p->is.stages; r++) {
        stages[r] = copy_of(plan_stage(p, r));
        stages[r]->stages = p->stages ? stages : NULL;
    }
    change(stages[a.stage], a);
    return stages[0];
}

static bool touches(const Plan *p, const Inst *n, BufferId b, bool writes)
{
    for (int j = 0; j < (writes ? n->nout : n->nin); j++)
        if (p->values.at[writes ? n->out[j] : n->in[j]].buffer == b)
            return true;
    return false;
}

static void add_move(const Plan *p, Mutants *all, InstId at, int to)
{
    if (to < 0 || to >= p->insts.n || to == at)
        return;
    for (int i = all->n - 1; i >= 0 && all->at[i].at == at; i--)
        if (all->at[i].kind == MOVE && all->at[i].to == to)
            return;
    Mutant m = { MOVE, at, to, 0, 1, p->stage };
    vec_add(all, m);
}

/* By several distances; just past every reader and writer of its buffers; to the ends. */
static void moves(const Plan *p, Mutants *all, InstId at)
{
    static const int far[] = { 1, 2, 3, 5, 8, 13, 21, 34, 55, 89 };
    const Inst *n = &p->insts.at[at];
    BufferId src = p->values.at[n->nin ? n->in[0] : n->out[0]].buffer;
    BufferId dst = p->values.at[n->nout ? n->out[0] : n->in[0]].buffer;
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        add_move(p, all, at, at - far[i]);
        add_move(p, all, at, at + far[i]);
    }
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *o = &p->insts.at[i];
        if (i != at && (touches(p, o, src, true) || touches(p, o, dst, false) ||
                        touches(p, o, dst, true) || touches(p, o, src, false))) {
            add_move(p, all, at, i);
            add_move(p, all, at, i > at ? i - 1 : i + 1);
        }
    }
    add_move(p, all, at, 0);
    add_move(p, all, at, p->insts.n - 1);
}

/* The group that the runtime makes of it (comm.c): equal ones are no mutants. */
static int group_of(const Plan *p, Axes axes, int rep)
{
    bool halved = !(axes & AX_YK) != !(axes & AX_YR);
    rep = halved && rep > 1 ? rep : 1;
    if (rep == 1)
        axes = (Axes)(axes & AX_YK ? axes | AX_YR : axes & ~AX_YR);
    int g = 0;
    for (int bit = 1; bit <= AX_Z; bit <<= 1)
        if ((axes & bit) && axes_size(p, (Axes)(bit & ~(rep == 1 ? AX_YR : 0)), rep) > 1)
            g |= bit;
    return g * 64 + (g & AX_Y ? rep : 1);
}

static void regroups(const Plan *p, Mutants *all, InstId at)
{
    const Inst *n = &p->insts.at[at];
    int seen[128], nseen = 0, reps[] = { 1, 2, p->is.y };
    seen[nseen++] = group_of(p, n->axes, n->rep);
    for (int r = 0; r < 3; r++)
        for (int axes = 0; axes < 32; axes++) {
            if (reps[r] > p->is.y || p->is.y % reps[r])
                continue;
            int g = group_of(p, (Axes)axes, reps[r]);
            bool again = false;
            for (int i = 0; i < nseen; i++)
                again |= seen[i] == g;
            if (again || nseen == 128)
                continue;
            seen[nseen++] = g;
            Mutant m = { REGROUP, at, at, (Axes)axes, reps[r], p->stage };
            vec_add(all, m);
        }
}

static void add(Mutants *all, const Plan *p, Kind kind, int at, int to, int rep)
{
    Mutant m = { kind, at, to, 0, rep, p->stage };
    vec_add(all, m);
}

static void inst_mutants(const Plan *p, Mutants *all)
{
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        bool transfer = n->kind == I_COLL && (n->coll == COLL_SEND || n->coll == COLL_RECV);
        for (int r = 0; r < p->is.summa && n->kind == I_COLL; r++)
            if ((n->coll == COLL_BROADCAST || n->coll == COLL_REDUCE) && r != n->peer)
                add(all, p, PARTNER, i, r, 1);
        if (p->is.summa && n->nout)
            add(all, p, FLAG, i, i, 1);
        if (n->kind != I_COLL) {
            add(all, p, OTHER_DELETE, i, i, 1);
            if (i + 1 < p->insts.n && p->insts.at[i + 1].kind != I_COLL)
                add(all, p, OTHER_SWAP, i, i + 1, 1);
            continue;
        }
        add(all, p, DELETE, i, i, 1);
        static const int behind[] = { 1, 2, 4, 9, 30 };
        for (int k = 0; k < 6; k++)
            if ((k < 5 ? i + behind[k] : p->insts.n) <= p->insts.n &&
                (k < 5 || i + 1 < p->insts.n))
                add(all, p, DOUBLE, i, k < 5 ? i + behind[k] : p->insts.n, 1);
        moves(p, all, i);
        if (!transfer)
            regroups(p, all, i);
    }
}

static void pipe_mutants(const Plan *p, Mutants *all)
{
    static const int far[] = { 1, 2, 3, 5, 8, 13, 34 };
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        if (n->nout && !p->is.summa)
            add(all, p, FLAG, i, i, 1);
        for (int r = 0; r < p->is.stages && (n->coll >= COLL_SEND || n->stages); r++)
            if (n->kind == I_COLL && (n->stages || r != n->peer))
                add(all, p, PARTNER, i, r, 1);
        for (int k = 0; k < 7 && n->kind != I_COLL; k++) {
            if (i + far[k] < p->insts.n && far[k] > 1)
                add(all, p, OTHER_MOVE, i, i + far[k], 1);
            if (i >= far[k])
                add(all, p, OTHER_MOVE, i, i - far[k], 1);
        }
    }
    for (int i = 1; i < p->funcs.n; i++)
        for (int by = -1; by <= 1; by += 2)
            add(all, p, BORDER, i, by, 1);
    for (int i = 0; i < p->calls.n; i++) {
        add(all, p, CALL_DELETE, i, i, 1);
        add(all, p, CALL_AGAIN, i, i, 1);
        for (int k = 0; k < p->calls.n; k++) {
            add(all, p, CALL_DOUBLE, i, k, 1);
            if (k != i)
                add(all, p, CALL_MOVE, i, k, 1);
            if (k != i && p->calls.at[k].step.kind == p->calls.at[i].step.kind)
                add(all, p, CALL_UNIT, i, k, 1);
        }
        for (int r = 0; r < REGIONS; r++)
            for (int k = 0; k < p->calls.n; k++)
                if (k == i || p->calls.at[k].region[r] != p->calls.at[i].region[r])
                    add(all, p, CALL_REGION, i, k, r);
    }
}

/* Of pipelines, about TRIED of each stage's kinds together; all of them with ALL=1. */
static Mutants mutants_of(const Plan *p)
{
    Mutants all = { 0 };
    uint64_t x = 88172645463325252u;
    int kept = 0, count[KINDS] = { 0 }, each = TRIED / KINDS;
    for (int r = 0; r < p->is.stages; r++) {
        inst_mutants(plan_stage(p, r), &all);
        if (is_piped(p))
            pipe_mutants(plan_stage(p, r), &all);
    }
    if (!is_piped(p) || (getenv("ALL") && *getenv("ALL")))
        return all;
    for (int i = 0; i < all.n; i++)
        count[all.at[i].kind]++;
    for (int i = 0; i < all.n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if ((int)(x % 1000000) < (int)(1e6 * each / count[all.at[i].kind]))
            all.at[kept++] = all.at[i];
    }
    all.n = kept;
    return all;
}

/* ---- executing ------------------------------------------------------------------------ */

enum { ROOM = 400000 };
typedef struct { int status, n; double at[ROOM]; } Results;

static void keep(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    Results *r = ctx;
    const RtProgram *p = *(const RtProgram **)(void *)rt;
    (void)step;
    r->at[r->n++] = loss;
    r->at[r->n++] = norm;
    for (int what = 0; what < 2; what++)
        for (int i = 0; i < p->head->nparams; i++) {
            int n = (int)(p->params[i].rows * p->params[i].width);
            if (r->n + n > ROOM)
                abort();
            rt_read_param(rt, what, i, r->at + r->n);
            r->n += n;
        }
}

typedef struct {
    Emitted *base;
    const RtKernelFn *kernel;
    Results *want, *got;        // shared with the children
    int32_t token[400];
} Runner;

static void *shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(p != MAP_FAILED);
    return p;
}

/* In the child: never returns. */
static void execute(Runner *w, const Plan *m, Results *out)
{
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    dup2(null, 1);
    alarm(30);
    Emitted *e = emit_program(m);
    RtKernelFn *kernel = NEWN(RtKernelFn, e->specs.n + 1);
    for (int i = 0; i < e->specs.n; i++) {
        int k = 0;
        while (k < w->base->specs.n && strcmp(w->base->specs.at[k].key, e->specs.at[i].key))
            k++;
        if (k == w->base->specs.n)
            _exit(99);
        kernel[i] = w->kernel[k];
    }
    const RtProgram *program = emitted_program(e, kernel);
    RtOptions o = { .steps = STEPS, .quiet = 1, .exe = "test", .after_step = keep, .ctx = out,
                    .fixed_tokens = w->token, .fixed_ntokens = 400 };
    out->status = rt_run(program, &o);
    _exit(out->status);
}

static void run(Runner *w, const Plan *p, const Mutant *a, Results *out)
{
    out->n = 0;
    out->status = -1;
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0)
        execute(w, a ? mutate(p, *a) : p, out);
    int status;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status))
        out->status = -WTERMSIG(status);
}

typedef enum { REJECTED, SAME, ROUNDING, COUNTS, NOT_RUN } Verdict;

static Verdict compare(const Results *want, const Results *got)
{
    double size = 0;
    Verdict v = SAME;
    if (got->status != 0 || got->n != want->n)
        return COUNTS;
    for (int i = 0; i < want->n; i++)
        size = fmax(size, fabs(want->at[i]));
    for (int i = 0; i < want->n; i++) {
        double d = fabs(got->at[i] - want->at[i]);
        if (memcmp(&got->at[i], &want->at[i], sizeof d) == 0)
            continue;
        if (!(d <= 1e-9 * fabs(want->at[i]) || d <= 1e-13 * size))
            return COUNTS;
        v = ROUNDING;
    }
    return v;
}

/* verify on all mutants, in children: what it allocates goes with them. */
static unsigned char *judge(const Plan *p, const Mutants *all)
{
    unsigned char *rejected = shared((size_t)all->n + 1);
    for (int from = 0; from < all->n; from += BATCH) {
        pid_t pid = fork();
        cr_assert(pid >= 0);
        if (pid == 0) {
            for (int i = from; i < all->n && i < from + BATCH; i++)
                rejected[i] = verify_plan(mutate(p, all->at[i]), "mutation", NULL) > 0;
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "verify itself ends with status %x", (unsigned)status);
    }
    return rejected;
}

static const char *show(const Plan *p, Mutant a)
{
    p = plan_stage(p, a.stage);
    if (a.kind >= CALL_DELETE)
        return str_fmt("stage %d: %s of %d, %s (to %d, region %d)", a.stage, kind_word[a.kind],
                       a.at, step_text(&p->calls.at[a.at].step), a.to, a.rep);
    const Inst *n = &p->insts.at[a.at];
    return str_fmt("stage %d: %s of %d `%s` (to %d, axes %s)", a.stage, kind_word[a.kind], a.at,
                   a.kind == BORDER ? "function" : n->name ? n->name : inst_word[n->kind], a.to,
                   axes_word(a.axes, a.rep));
}

static void check(const char *name, const char *model, const char *const *sets)
{
    Plan *p = plan_of(model, sets);
    Mutants all = mutants_of(p);
    int count[KINDS][5] = { { 0 } }, accepted = 0, bad = 0;
    setenv("RT_TIMEOUT", "2", 1);
    setenv("RT_POISON", "1", 1);
    setenv("RT_BLAS", "none", 1);
    Runner w = { .base = emit_program(p) };
    w.kernel = (const RtKernelFn *)(void *)kernels_jit(
        emit_llvm(w.base->specs.at, w.base->specs.n, "mutations", NULL));
    w.want = shared(sizeof *w.want);
    w.got = shared(sizeof *w.got);
    for (int i = 0; i < 400; i++)
        w.token[i] = (i * 7 + i * i / 3) % 30;
    unsigned char *rejected = judge(p, &all);
    run(&w, p, NULL, w.want);
    cr_assert_eq(w.want->status, 0, "%s: the plan itself ends with status %d", name,
                 w.want->status);
    run(&w, p, NULL, w.got);
    cr_assert_eq(compare(w.want, w.got), SAME, "%s: two runs differ", name);
    for (int i = 0; i < all.n; i++)
        accepted += !rejected[i];
    int stride = getenv("ALL") && *getenv("ALL") ? 1 : (accepted + SAMPLE - 1) / SAMPLE, k = 0;
    for (int i = 0; i < all.n; i++) {
        Verdict v = REJECTED;
        if (!rejected[i] && stride > 1 && k++ % stride)
            v = NOT_RUN;
        else if (!rejected[i]) {
            run(&w, p, &all.at[i], w.got);
            v = compare(w.want, w.got);
        }
        count[all.at[i].kind][v]++;
        if (v == COUNTS && bad++ < 30)
            fprintf(stderr, "%s: verify accepts: %s\n", name, show(p, all.at[i]));
    }
    for (int i = 0; i < (is_piped(p) ? KINDS : p->is.summa ? BORDER : FLAG); i++)
        fprintf(stderr, "%-22s %-13s rejected %5d  same bits %4d  rounding %3d  counts %3d  "
                "accepted, not run %4d\n", name, kind_word[i], count[i][REJECTED], count[i][SAME],
                count[i][ROUNDING], count[i][COUNTS], count[i][NOT_RUN]);
    cr_assert_eq(bad, 0, "%s: verify accepts %d mutants that count", name, bad);
}

#define MUTATIONS(name, model, ...)                                 \
    Test(mutations, name)                                           \
    {                                                               \
        static const char *const sets[] = { __VA_ARGS__, NULL };    \
        check(#name, model, sets);                                  \
    }

MUTATIONS(gpt_222, gpt, "plan.cube=[2,2,2]")
MUTATIONS(gpt_222_again, gpt, "plan.cube=[2,2,2]", "plan.keep=none", "plan.logits_chunk=6")
MUTATIONS(gpt_122_zero, gpt, "plan.cube=[1,2,2]", "plan.data=2", "plan.zero=1", "train.batch=8")
MUTATIONS(gpt_211_data, gpt, "plan.cube=[2,1,1]", "plan.data=2", "plan.zero=0")
MUTATIONS(gpt_221_data, gpt, "plan.cube=[2,2,1]", "plan.data=2", "plan.zero=0", "train.batch=8")
MUTATIONS(gpt_321, gpt, "plan.cube=[3,2,1]", "train.batch=6")
MUTATIONS(gpt_221_passes, gpt, "plan.cube=[2,2,1]", "plan.microbatch=2")
MUTATIONS(gpt_121_passes, gpt, "plan.cube=[1,2,1]", "plan.data=2", "plan.microbatch=1")
MUTATIONS(gpt_321_uneven, gpt, "plan.cube=[3,2,1]", "train.batch=6", "model.hidden=20")
MUTATIONS(gpt_gather, gpt, "plan.cube=[2,1,2]", "plan.attention=gather", "train.batch=1",
          "train.sequence=16")
MUTATIONS(gpt_exchange, gpt, "plan.cube=[2,1,2]", "plan.attention=exchange", "train.batch=1",
          "train.sequence=16")
MUTATIONS(llama_141, llama, "plan.cube=[1,4,1]", "plan.data=2", "plan.zero=1")
MUTATIONS(llama_241, llama, "plan.cube=[2,4,1]", "plan.keep=inputs")
MUTATIONS(llama_142, llama, "plan.cube=[1,4,2]", "plan.keep=none")
MUTATIONS(llama_241_gather, llama, "plan.cube=[2,4,1]", "train.batch=1", "train.sequence=16",
          "plan.attention=gather")
MUTATIONS(llama_122, llama, "plan.cube=[1,2,2]")
MUTATIONS(parallel_222, parallel, "plan.cube=[2,2,2]")
MUTATIONS(parallel_141, parallel, "plan.cube=[1,4,1]")
MUTATIONS(parallel_211, parallel, "plan.cube=[2,1,1]", "plan.vectors=sharded")
MUTATIONS(convert_222, convert, "plan.cube=[2,2,2]")
MUTATIONS(convert_122_zero, convert, "plan.cube=[1,2,2]", "plan.data=2", "plan.zero=1")
MUTATIONS(convert_321, convert, "plan.cube=[3,2,1]", "train.batch=6")
MUTATIONS(summa_passes, gpt, "plan.partition=summa(2)", "plan.data=2", "plan.microbatch=1",
          "plan.zero=2", "plan.attention=exchange")
MUTATIONS(summa_convert, convert, "plan.partition=summa(2)", "model.heads=2")
MUTATIONS(summa_3, gpt, "plan.partition=summa(3)", "train.batch=3", "model.heads=3")
MUTATIONS(piped_summa, llama, "plan.pipeline=2", "plan.partition=summa(2)", "plan.slices=[6,6]",
          "plan.microbatch=2", "model.layers=2", "plan.recompute=full")
MUTATIONS(piped_slices, gpt, "plan.pipeline=2", "plan.microbatch=1", "plan.slices=[5,1,6]",
          "plan.schedule=1f1b")
MUTATIONS(piped_full, gpt, "plan.pipeline=2", "plan.microbatch=2", "plan.slices=uniform(2)",
          "plan.cube=[1,2,1]", "plan.recompute=full", "plan.schedule=gpipe")
MUTATIONS(piped_chunks, llama, "plan.pipeline=2", "plan.chunks=2", "plan.microbatch=1",
          "plan.slices=[7,5]", "model.layers=4", "plan.vectors=sharded", "plan.data=2",
          "plan.zero=1")
MUTATIONS(piped_one, llama, "plan.slices=[4,6,2]", "plan.microbatch=2", "plan.cube=[1,2,2]",
          "plan.recompute=attention", "plan.keep=none")
MUTATIONS(piped_zero_2, gpt, "plan.pipeline=2", "plan.microbatch=1", "plan.slices=[6,6]",
          "plan.cube=[2,1,1]", "plan.data=2", "plan.zero=2")
MUTATIONS(piped_zero_3, gpt, "plan.pipeline=2", "plan.microbatch=1", "plan.cube=[1,1,2]",
          "plan.data=2", "plan.zero=3", "plan.vectors=sharded")
