/*
 * test_stages.c - the runtime on several pipeline stages: messages, groups of stages, the
 * order of passes, the rows of slices, and what replicas own with zero >= 2.
 *
 * The programs are made by hand. n stages pass a number for each token on and back:
 *
 *     stage 0      x = token               dx arrives, is checked
 *     between      y = x + 1               dx = dy + 1
 *     the last     checks x                dx = 3 x
 *
 * Each stage counts its tokens, modulo 8, as the gradient of a vector: w in the first and
 * the last stage (tied), u in the others.
 */
#include "rt_impl.h"

#include <criterion/criterion.h>

#include <math.h>
#include <unistd.h>

enum { STAGES = 4, SLICES = 3, W = 8, L = 12, REAL = sizeof(float) };

typedef struct {
    int nstages, data, x, y, workers, microbatches, nslices;
    bool balanced;
} Make;

typedef struct {
    RtHeader head;
    RtStep step[64];
    RtRef arg[64][2];                       // of each step
    RtPass pass[128];
    RtParam param[2];
    RtUnit unit[1];
    RtPiece piece[1];
    RtSegment segment[2];
    RtColumns columns[1];
    RtRowMap rowmap[SLICES];
    int64_t slice[SLICES];
    int at[SLICES][6], end[SLICES][6];      // steps of the passes of a slice, by kind
} Stage;

static Stage stages[STAGES];
static RtProgram programs[STAGES];
static int made_stages;
static atomic_int wrong, calls;
static const char texts[] = "\0a step\0hand.tcube:1:1\0w\0u\0hand";
enum { A_STEP = 1, SOURCE = 8, NAME_W = 23, NAME_U = 25, MODEL = 27 };

/* ---- kernels -------------------------------------------------------------- */

static void expect(float got, double want)
{
    if ((double)got != want)
        atomic_fetch_add(&wrong, 1);
}

static void first_forward(const RtCall *c, int64_t lo, int64_t hi)
{
    float *x = c->arg[0];
    for (int64_t r = lo; r < hi; r++)
        x[r] = (float)c->row_token[r];
}

static void add_one(const RtCall *c, int64_t lo, int64_t hi)
{
    const float *x = c->arg[0];
    float *y = c->arg[1];
    for (int64_t r = lo; r < hi; r++)
        y[r] = x[r] + 1;
}

static void last_forward(const RtCall *c, int64_t lo, int64_t hi)
{
    const float *x = c->arg[0];
    for (int64_t r = lo; r < hi; r++) {
        expect(x[r], (double)(c->row_token[r] + made_stages - 2));
        if (c->flags[0])
            c->total[c->worker * 8] += 1;
    }
}

static void last_backward(const RtCall *c, int64_t lo, int64_t hi)
{
    const float *x = c->arg[0];
    float *dx = c->arg[1];
    for (int64_t r = lo; r < hi; r++) {
        expect(x[r], (double)(c->row_token[r] + made_stages - 2));
        dx[r] = 3 * x[r];
    }
}

static void first_backward(const RtCall *c, int64_t lo, int64_t hi)
{
    const float *x = c->arg[0], *dx = c->arg[1];
    int between = made_stages - 2;
    for (int64_t r = lo; r < hi; r++) {
        double token = (double)c->row_token[r];
        expect(x[r], token);
        expect(dx[r], 3 * (token + between) + between);
        atomic_fetch_add(&calls, 1);
    }
}

/* One item: the rows are few. */
static void count_tokens(const RtCall *c, int64_t lo, int64_t hi)
{
    float *dw = c->arg[0];
    const float *rows = c->arg[1];
    for (int64_t r = 0; lo < hi && r < (int64_t)rows[0]; r++)
        dw[c->row_token[r] % W] += 1;
}

static void how_many(const RtCall *c, int64_t lo, int64_t hi)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->nruns_q; i++)
        n += c->runs_q[i * 4 + 1];
    if (lo < hi)
        ((float *)c->arg[0])[0] = (float)n;
}

static void squares(const RtCall *c, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        c->total[c->worker * 8] += (double)((float *)c->arg[0])[i]
                                   * (double)((float *)c->arg[0])[i];
}

static void descend(const RtCall *c, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        ((float *)c->arg[0])[i] -= (float)c->lr * ((float *)c->arg[1])[i];
}

enum { FIRST, ADD, LAST, LAST_BACK, FIRST_BACK, COUNT, ROWS, SQUARES, DESCEND };
static const RtKernelFn kernels[] = {
    first_forward, add_one, last_forward, last_backward, first_backward, count_tokens, how_many,
    squares, descend,
};

/* ---- a stage's program ----------------------------------------------------- */

/* In a unit's region: what came or was made forward, what went on; gradients alike. */
enum { X = 0, Y = 1024, DY = 2048, DX = 3072, UNIT = 4096 };

static RtStep *add(Stage *h, int kind, int kernel, int slice)
{
    int i = h->head.nsteps++;
    RtStep *s = &h->step[i];
    *s = (RtStep){ .kind = kind, .name = A_STEP, .source = SOURCE, .reason = -1,
                   .kernel = kernel, .rowmap = kernel >= 0 ? slice : -1, .rowmap_k = -1,
                   .colmap = -1, .columns_src = -1, .columns_dst = -1, .unit = -1, .peer = -1,
                   .items = kernel >= 0 ? h->rowmap[slice].count : 0, .grain = 1,
                   .first_arg = 2 * i, .nargs = 2 };
    return s;
}

static RtRef *args_of(Stage *h, const RtStep *s) { return h->arg[s - h->step]; }

static RtRef in_unit(int64_t offset)
{
    return (RtRef){ .offset = offset, .region = RT_UNIT };
}

static void message(Stage *h, int kind, int64_t at, int peer, int slice)
{
    RtStep *s = add(h, kind, -1, slice);
    s->peer = peer;
    s->a = s->c = in_unit(at);
    s->rows = h->rowmap[slice].count;
    s->cols = 1;
}

static void kernel(Stage *h, int k, int64_t a, int64_t b, int slice)
{
    RtStep *s = add(h, RT_KERNEL, k, slice);
    args_of(h, s)[0] = in_unit(a);
    args_of(h, s)[1] = in_unit(b);
}

static void end_part(Stage *h, int slice)
{
    for (int k = 0; k < 6; k++)
        if (h->at[slice][k] >= 0 && h->end[slice][k] < 0)
            h->end[slice][k] = h->head.nsteps;
}

static void begin_part(Stage *h, int slice, int kind)
{
    end_part(h, slice);
    h->at[slice][kind] = h->head.nsteps;
}

/* A slice's steps: six stretches, one for each kind of pass. */
static void slice_steps(Stage *h, int stage, int nstages, int i)
{
    RtStep *s;
    bool first = stage == 0, last = stage == nstages - 1;
    int64_t grads = h->head.grads_offset, scratch = h->head.m_offset + 256;
    memset(h->at[i], -1, sizeof h->at[i]);
    memset(h->end[i], -1, sizeof h->end[i]);
    begin_part(h, i, RT_PASS_RECV_ACTIVATION);
    if (!first)
        message(h, RT_RECV, X, stage - 1, i);
    begin_part(h, i, RT_PASS_FORWARD);
    kernel(h, first ? FIRST : last ? LAST : ADD, X, Y, i);
    begin_part(h, i, RT_PASS_SEND_ACTIVATION);
    if (!last)
        message(h, RT_SEND, first ? X : Y, stage + 1, i);
    begin_part(h, i, RT_PASS_RECV_GRADIENT);
    if (!last)
        message(h, RT_RECV, DY, stage + 1, i);
    begin_part(h, i, RT_PASS_BACKWARD);
    if (i == h->head.nslices - 1) {             // the first of the step to run
        s = add(h, RT_ZERO, -1, i);
        s->c.offset = grads;
        s->count = W;
        s->accumulate_later = 1;
    }
    s = add(h, RT_KERNEL, ROWS, i);
    s->items = 1;
    args_of(h, s)[0].offset = scratch;
    s = add(h, RT_KERNEL, COUNT, i);
    s->items = 1;
    args_of(h, s)[0].offset = grads;
    args_of(h, s)[1].offset = scratch;
    if (first)
        kernel(h, FIRST_BACK, X, DY, i);
    else
        kernel(h, last ? LAST_BACK : ADD, last ? X : DY, DX, i);
    begin_part(h, i, RT_PASS_SEND_GRADIENT);
    if (!first)
        message(h, RT_SEND, DX, stage - 1, i);
    end_part(h, i);
}

static void unit_pass(Stage *h, int kind, int microbatch, int slice)
{
    int first = h->at[slice][kind], last = h->end[slice][kind];
    if (first == last)
        return;
    RtPass *p = &h->pass[h->head.npasses++];
    *p = (RtPass){ .kind = kind, .first = first, .last = last, .microbatch = microbatch,
                   .slice = slice, .again = microbatch > 0 };
    p->region[RT_UNIT] = 1024 + (int64_t)(microbatch * h->head.nslices + slice) * UNIT;
}

/* First all units forward and then all back, or each microbatch forward and back: either
 * order needs no mailbox to hold more than one message. */
static void passes(Stage *h, int begin, int sync, bool all_forward)
{
    int m = h->head.microbatches, k = h->head.nslices;
    h->pass[h->head.npasses++] = (RtPass){ .kind = RT_PASS_BEGIN, .first = begin,
                                           .last = begin + 1 };
    for (int turn = 0; turn < (all_forward ? 1 : m); turn++) {
        int from = all_forward ? 0 : turn, to = all_forward ? m : turn + 1;
        for (int i = from; i < to; i++)
            for (int s = 0; s < k; s++) {
                unit_pass(h, RT_PASS_RECV_ACTIVATION, i, s);
                unit_pass(h, RT_PASS_FORWARD, i, s);
                unit_pass(h, RT_PASS_SEND_ACTIVATION, i, s);
            }
        for (int i = from; i < to; i++)
            for (int s = k - 1; s >= 0; s--) {
                unit_pass(h, RT_PASS_RECV_GRADIENT, i, s);
                unit_pass(h, RT_PASS_BACKWARD, i, s);
                unit_pass(h, RT_PASS_SEND_GRADIENT, i, s);
            }
    }
    int end = h->head.nsteps - 3;
    h->pass[h->head.npasses++] = (RtPass){ .kind = RT_PASS_SYNC, .first = sync, .last = end };
    h->pass[h->head.npasses++] = (RtPass){ .kind = RT_PASS_OPTIMIZER, .first = end,
                                           .last = h->head.nsteps };
}

static void make_stage(const Make *k, int stage)
{
    Stage *h = &stages[stage];
    bool tied = stage == 0 || stage == k->nstages - 1;
    memset(h, 0, sizeof *h);
    int units = k->microbatches * k->nslices;
    h->head = (RtHeader){
        .version = RT_VERSION, .header_bytes = sizeof h->head, .step_bytes = sizeof(RtStep),
        .real_bytes = REAL, .stage = stage, .nstages = k->nstages, .data = k->data, .x = k->x,
        .y = k->y, .z = 1, .workers = k->workers, .balanced = k->balanced,
        .microbatches = k->microbatches, .batch = 2 * k->data * k->microbatches, .sequence = L,
        .T = 2 * L, .vocab = 9, .block_bytes = 1024 + units * UNIT, .params_offset = 0,
        /* every stage keeps its gradients elsewhere */
        .grads_offset = 64 + 64 * stage, .m_offset = 384, .v_offset = -1, .master_offset = -1,
        .flat = W, .flat_pad = W, .nparams = 2, .nunits = 1, .npieces = 1, .nsegments = 1,
        .ncolumns = 1, .nrowmaps = k->nslices, .nkernels = 9, .nslices = k->nslices,
        .ignore = -1, .optimizer = 1, .update_kernel = DESCEND, .norm_kernel = SQUARES,
        .model_name = MODEL, .plan_line = MODEL,
    };
    h->head.train.data = h->head.train.data_dir = h->head.train.format = -1;
    h->head.train.order = h->head.train.weights = h->head.train.log = -1;
    h->head.train.steps = 2;
    h->head.train.lr = 0.125;
    for (int i = 0, left = L; i < k->nslices; i++) {        // 12, or 8 4, or 4 4 4
        h->slice[i] = i == k->nslices - 1 ? left : k->nslices == 2 ? 8 : 4;
        left -= (int)h->slice[i];
        h->rowmap[i] = (RtRowMap){ .axes = RT_X, .first = i, .nslices = 1,
                                   .count = 2 * h->slice[i] / k->x };
    }
    h->param[0] = (RtParam){ .name = NAME_W, .kind = 2, .init = 2, .init_a = 0.5, .rows = 1,
                             .width = W };
    h->param[1] = (RtParam){ .name = NAME_U, .kind = 2, .init = 2, .init_a = 0.25, .rows = 1,
                             .width = W };
    h->segment[0] = (RtSegment){ 0, 1, 1, 0 };
    h->columns[0] = (RtColumns){ 0, 1, 0, 0 };
    h->piece[0] = (RtPiece){ tied ? 0 : 1, 1, 0, W, 0 };
    h->unit[0] = (RtUnit){ .npieces = 1, .repl = RT_X | RT_YK, .rep = 1, .brows = 1, .bcols = W,
                           .shard = W, .counts = stage == 0 || (stage == 1 && !tied) };
    programs[stage] = (RtProgram){
        &h->head, h->step, h->param, h->unit, h->piece, h->segment, h->columns, h->rowmap,
        h->pass, h->slice, NULL, h->arg[0], NULL, texts, kernels,
    };
    for (int i = 0; i < k->nslices; i++)
        slice_steps(h, stage, k->nstages, i);
    int begin = h->head.nsteps;
    add(h, RT_COUNT, -1, 0);
    int sync = h->head.nsteps;
    RtStep *s = add(h, RT_ALL_REDUCE, -1, 0);
    s->axes = RT_DATA | RT_X;
    s->count = W;
    s->c.offset = h->head.grads_offset;
    if (tied && k->nstages > 1) {
        s = add(h, RT_ALL_REDUCE, -1, 0);
        s->axes = RT_STAGE;
        s->stages = 1 | 1u << (k->nstages - 1);
        s->count = W;
        s->c.offset = h->head.grads_offset;
    }
    add(h, RT_NORM, -1, 0);
    add(h, RT_TOTALS, -1, 0);
    add(h, RT_UPDATE, -1, 0);
    passes(h, begin, sync, k->microbatches % 2 == 0);
}

static void make(const Make *k)
{
    made_stages = k->nstages;
    for (int s = 0; s < k->nstages; s++)
        make_stage(k, s);
    atomic_store(&wrong, 0);
    atomic_store(&calls, 0);
}

/* Runs with stderr in a file; its text is in `said`. */
static char said[4096];
static int run(RtOptions o)
{
    static int32_t tokens[400];
    FILE *f = tmpfile();
    fflush(stderr);
    int keep = dup(2);
    dup2(fileno(f), 2);
    o.quiet = 1;
    o.exe = "hand";
    o.fixed_tokens = tokens;
    o.fixed_ntokens = 400;
    int status = rt_run(programs, &o);
    fflush(stderr);
    dup2(keep, 2);
    close(keep);
    ssize_t n = pread(fileno(f), said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    fclose(f);
    return status;
}

/* ---- whole runs ------------------------------------------------------------ */

typedef struct { int steps; double loss[2], norm[2], w[2][W], u[2][W]; bool same; } Seen;

/* Are the first and the last stage's copies of w the same bits? */
static bool copies_agree(Rt *rt)
{
    const RtRank *first = &rt->rank[0], *last = &rt->rank[rt->nranks - 1];
    return memcmp(first->block, last->block, W * REAL) == 0;
}

static void look(void *ctx, Rt *rt, int64_t step, double loss, double norm)
{
    Seen *s = ctx;
    s->loss[step] = loss;
    s->norm[step] = norm;
    rt_read_param(rt, 0, 0, s->w[step]);
    rt_read_param(rt, 1, 1, s->u[step]);
    s->same = copies_agree(rt) && (step == 0 || s->same);
    s->steps++;
}

static void expect_run(const Make *k)
{
    Seen s = { 0 };
    make(k);
    int status = run((RtOptions){ .steps = 2, .after_step = look, .ctx = &s });
    cr_assert_eq(status, 0, "%d stages: %s", k->nstages, said);
    cr_assert_eq(atomic_load(&wrong), 0);
    int64_t tokens = stages[0].head.batch * L;
    cr_assert_eq(atomic_load(&calls), 2 * tokens * k->y);
    double once = (double)tokens / W, twice = 2 * once, others = k->nstages > 2 ? once : 0;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(s.loss[i], 1);
        /* u is in the stages between; only stage 1's copy counts */
        cr_assert_float_eq(s.norm[i], sqrt(W * (twice * twice + others * others)), 1e-9);
        for (int c = 0; c < W; c++) {
            cr_assert_eq(s.w[i][c], 0.5 - 0.125 * twice * (i + 1));
            cr_assert(k->nstages < 3 || s.u[i][c] == once);
        }
    }
    cr_assert(s.same);
}

Test(stages, numbers_go_on_and_back)
{
    static const Make makes[] = {
        { 2, 1, 1, 1, 1, 2, 1, false }, { 2, 1, 1, 1, 1, 4, 3, false },
        { 3, 1, 1, 1, 1, 2, 2, false }, { 4, 1, 1, 1, 1, 3, 3, false },
        { 2, 2, 2, 1, 1, 2, 2, true }, { 3, 2, 2, 1, 1, 2, 3, true },
        { 2, 1, 1, 2, 3, 2, 2, false }, { 4, 2, 2, 2, 2, 1, 1, true },
        { 3, 1, 2, 1, 2, 8, 1, true },
    };
    for (size_t i = 0; i < sizeof makes / sizeof *makes; i++)
        expect_run(&makes[i]);
}

Test(stages, messages_that_workers_share)
{
    enum { N = 50000 };
    static const Make k = { 2, 1, 1, 1, 3, 2, 1, false };
    make(&k);
    for (int s = 0; s < 2; s++) {                   // rows and more
        Stage *h = &stages[s];
        for (int i = 0; i < h->head.nsteps; i++)
            if (h->step[i].kind == RT_SEND || h->step[i].kind == RT_RECV)
                h->step[i].cols = N;
        for (int i = 0; i < h->head.npasses; i++)
            h->pass[i].region[RT_UNIT] *= 4 * N * 24 / UNIT;
        for (int i = 0; i < h->head.nsteps; i++) {
            RtStep *q = &h->step[i];
            RtRef *refs[] = { &q->a, &q->c, &h->arg[i][0], &h->arg[i][1] };
            for (int r = 0; r < 4; r++)
                if (refs[r]->region == RT_UNIT)
                    refs[r]->offset *= N * 24 * REAL / 1024;
        }
        h->head.block_bytes = (int64_t)60 * N * 24 * REAL;
    }
    cr_assert_eq(run((RtOptions){ .steps = 2 }), 0, "%s", said);
    cr_assert_eq(atomic_load(&wrong), 0);
}

Test(stages, a_tied_parameter_is_saved_once)
{
    static const Make k = { 3, 1, 2, 1, 1, 2, 1, true };
    char path[] = "/tmp/rt-stages-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    make(&k);
    cr_assert_eq(run((RtOptions){ .steps = 0, .save = path }), 0, "%s", said);
    FILE *f = fopen(path, "rb");
    float v[2 * W];
    cr_assert_eq(fseek(f, -(long)sizeof v, SEEK_END), 0);
    cr_assert_eq(fread(v, sizeof *v, 2 * W, f), 2 * W);
    fclose(f);
    for (int i = 0; i < W; i++)
        cr_assert(v[i] == 0.5f && v[W + i] == 0.25f);
    cr_assert_eq(run((RtOptions){ .steps = 2, .load = path }), 0, "%s", said);
    unlink(path);
}

/* ---- what is refused ------------------------------------------------------- */

static RtPass *pass_of(Stage *h, int kind, int microbatch, int slice)
{
    for (int i = 0; i < h->head.npasses; i++)
        if (h->pass[i].kind == kind && h->pass[i].microbatch == microbatch
            && h->pass[i].slice == slice)
            return &h->pass[i];
    return NULL;
}

static void exchange(Stage *h, int kind, int m, int a, int n, int b)
{
    RtPass *p = pass_of(h, kind, m, a), *q = pass_of(h, kind, n, b), t = *p;
    *p = *q;
    *q = t;
}

Test(stages, passes_out_of_order_are_refused)
{
    static const Make k = { 2, 1, 1, 1, 1, 2, 3, false };
    make(&k);
    exchange(&stages[1], RT_PASS_BACKWARD, 1, 1, 1, 2);
    cr_assert_eq(run((RtOptions){ .steps = 1 }), RT_BUG);
    cr_assert_not_null(strstr(said, "stage 1 runs the backward of microbatch 1 slice 1 out of "
                                    "order: a slice behind it has not run"), "%s", said);
    make(&k);
    exchange(&stages[0], RT_PASS_FORWARD, 0, 0, 0, 1);
    cr_assert_eq(run((RtOptions){ .steps = 1 }), RT_BUG);
    cr_assert_not_null(strstr(said, "stage 0 runs the forward of microbatch 0 slice 1 out of "
                                    "order: a slice before it has not run"), "%s", said);
    make(&k);
    *pass_of(&stages[0], RT_PASS_BACKWARD, 1, 2) = *pass_of(&stages[0], RT_PASS_BACKWARD, 0, 0);
    cr_assert_eq(run((RtOptions){ .steps = 1 }), RT_BUG);
    cr_assert_not_null(strstr(said, "slice 0 out of order: it has run already"), "%s", said);
    make(&k);
    *pass_of(&stages[0], RT_PASS_FORWARD, 1, 2) = (RtPass){ .kind = RT_PASS_SYNC };
    cr_assert_eq(run((RtOptions){ .steps = 1 }), RT_BUG);
    cr_assert_not_null(strstr(said, "not all slices have gone forward"), "%s", said);
}

Test(stages, a_wrong_message_is_refused)
{
    static const Make k = { 2, 1, 1, 1, 1, 2, 3, false };
    make(&k);
    exchange(&stages[0], RT_PASS_SEND_ACTIVATION, 1, 0, 1, 1);
    cr_assert_eq(run((RtOptions){ .steps = 1 }), RT_BUG);
    cr_assert_not_null(strstr(said, "rank 1 (stage 1) expects microbatch 1 slice 0, 32 bytes, in "
                                    "recv 'a step'; rank 0 (stage 0) sent microbatch 1 slice 1"),
                       "%s", said);
}

Test(stages, a_message_that_does_not_come_ends_the_run)
{
    static const Make k = { 3, 1, 1, 1, 2, 2, 1, false };
    make(&k);
    pass_of(&stages[0], RT_PASS_SEND_ACTIVATION, 1, 0)->last--;
    setenv("RT_TIMEOUT", "0.4", 1);
    cr_assert_eq(run((RtOptions){ .steps = 1 }), RT_WORLD);
    unsetenv("RT_TIMEOUT");
    cr_assert_not_null(strstr(said, "waited 0.4 s in recv 'a step' (hand.tcube:1:1, step 1) for "
                                    "rank "), "%s", said);
    cr_assert_not_null(strstr(said, "(stage 0)"), "%s", said);
    cr_assert_not_null(strstr(said, "note: they wait for each other"), "%s", said);
}

/* ---- rows of slices --------------------------------------------------------- */

/* Slice s of the order at hand, listed as rt.h says it: row g is (seq[g], pos[g]). */
typedef struct { int n, seq[64], pos[64]; } Listing;

static Listing listing(const RtHeader *h, const int64_t *slices, int s)
{
    Listing all = { 0 };
    int b = (int)(h->T / h->sequence), n = h->x * h->z, start = 0, len = (int)slices[s];
    for (int i = 0; i < s; i++)
        start += (int)slices[i];
    for (int r = 0; r < (h->balanced ? n : 1); r++)
        for (int q = 0; q < b; q++)
            for (int half = 0; half < (h->balanced ? 2 : 1); half++) {
                int chunk = h->balanced ? len / (2 * n) : len;
                int at = start + (half ? 2 * n - 1 - r : r) * chunk;
                for (int i = 0; i < chunk; i++, all.n++) {
                    all.seq[all.n] = q;
                    all.pos[all.n] = at + i;
                }
            }
    return all;
}

static void check_map(RtRank *r, RtRowMap map, int part, int parts)
{
    const RtHeader *h = r->head;
    RtRows rows;
    rt_rows_make(r, &map, &rows);
    int at = 0, in_runs = 0;
    for (int s = map.first; s < map.first + map.nslices; s++) {
        Listing all = listing(h, r->program->slices, s);
        for (int i = 0; i < all.n / parts; i++, at++) {
            cr_assert_eq(rows.seq[at], all.seq[part * (all.n / parts) + i]);
            cr_assert_eq(rows.pos[at], all.pos[part * (all.n / parts) + i]);
        }
    }
    cr_assert_eq(rows.count, at);
    for (int64_t k = 0; k < rows.nruns; k++) {
        const RtRun *run = &rows.runs[k];
        in_runs += run->n;
        for (int i = 0; i < run->n; i++) {
            cr_assert_eq(rows.seq[run->row + i], run->seq);
            cr_assert_eq(rows.pos[run->row + i], run->pos + i);
        }
        cr_assert(k == 0 || run->seq > run[-1].seq
                  || (run->seq == run[-1].seq && run->pos > run[-1].pos));
        for (int64_t j = 0; j < rows.nruns; j++)    // none continues another in rows too
            cr_assert(!(rows.runs[j].row + rows.runs[j].n == run->row
                        && rows.runs[j].seq == run->seq
                        && rows.runs[j].pos + rows.runs[j].n == run->pos));
    }
    cr_assert_eq(in_runs, at);
    free(rows.seq);
    free(rows.pos);
    free(rows.token);
    free(rows.runs);
}

Test(stages, rows_of_slices_as_listed)
{
    static const int64_t slices[] = { 8, 16, 4 };
    for (int balanced = 0; balanced < 2; balanced++)
        for (int x = 1; x <= 2; x++)
            for (int b = 1; b <= 2; b++) {
                RtHeader h = { .data = 1, .x = x, .y = 2, .z = 1, .T = 28 * b, .sequence = 28,
                               .microbatches = 1, .balanced = balanced, .nslices = 3,
                               .nstages = 1 };
                RtProgram p = { .head = &h, .slices = slices };
                Rt rt = { .program = &p, .head = &h, .nranks = 2 * x };
                for (int id = 0; id < 2 * x; id++) {
                    RtRank r = rt_place(&rt, id);
                    for (int first = 0; first < 3; first++)
                        for (int n = 1; first + n <= 3; n++) {
                            RtRowMap map = { .axes = RT_X, .first = first, .nslices = n };
                            check_map(&r, map, r.x, x);
                            map.axes = 0;
                            check_map(&r, map, 0, 1);
                            map.axes = RT_X | RT_YK | RT_YR;
                            check_map(&r, map, id, 2 * x);
                        }
                }
            }
}

Test(stages, keys_of_all_slices_are_one_run)
{
    static const int64_t slices[] = { 8, 16, 4 };
    RtHeader h = { .data = 1, .x = 1, .y = 1, .z = 1, .T = 28, .sequence = 28, .nslices = 3,
                   .microbatches = 1, .nstages = 1 };
    RtProgram p = { .head = &h, .slices = slices };
    Rt rt = { .program = &p, .head = &h, .nranks = 1 };
    RtRank r = rt_place(&rt, 0);
    RtRows rows;
    rt_rows_make(&r, &(RtRowMap){ .nslices = 3 }, &rows);
    cr_assert(rows.nruns == 1 && rows.runs[0].n == 28 && rows.last == 2);
    free(rows.seq);
    free(rows.pos);
    free(rows.token);
    free(rows.runs);
}

/* ---- what replicas own ------------------------------------------------------- */

static void check_owned(int zero, int data)
{
    RtUnit unit[3] = { { .shard = 7 * data }, { .shard = data, .offset = 7 * data },
                       { .shard = 30 * data, .offset = 8 * data } };
    int64_t flat = 38 * data, pad = 40 * data;
    RtHeader h = { .data = data, .x = 1, .y = 1, .z = 1, .zero = zero, .flat = flat,
                   .flat_pad = pad, .nunits = 3, .nstages = 1 };
    RtProgram p = { .head = &h, .units = unit };
    Rt rt = { .program = &p, .head = &h, .nranks = data };
    int owners[64 * 8] = { 0 };
    for (int d = 0; d < data; d++) {
        RtRank r = rt_place(&rt, d);
        int kept[64 * 8] = { 0 };
        for (int u = 0; u < 3; u++) {
            int64_t lo, hi;
            rt_owned(&r, u, &lo, &hi);
            for (int64_t e = lo; e < hi; e++) {
                cr_assert(e >= unit[u].offset && e < unit[u].offset + unit[u].shard);
                owners[e]++;
                int64_t at = e - rt_shift(&r, u, RT_MOMENTS);
                cr_assert(at >= 0 && at < (zero ? pad / data : pad));
                kept[at]++;
                cr_assert_eq(rt_shift(&r, u, RT_GRADS),
                             zero >= 2 ? rt_shift(&r, u, RT_MOMENTS) : 0);
                cr_assert_eq(rt_shift(&r, u, RT_PARAMS),
                             zero == 3 ? rt_shift(&r, u, RT_MOMENTS) : 0);
            }
            if (zero >= 2 && lo < hi)
                cr_assert_eq(lo - rt_shift(&r, u, RT_MOMENTS), unit[u].offset / data);
        }
        for (int i = 0; i < 64 * 8; i++)
            cr_assert_leq(kept[i], 1);
    }
    for (int64_t e = 0; e < flat; e++)
        cr_assert_eq(owners[e], 1, "zero %d: element %d has %d owners", zero, (int)e, owners[e]);
}

Test(stages, every_element_has_one_owner)
{
    for (int zero = 0; zero <= 3; zero++)
        for (int data = 1; data <= 8; data++)
            check_owned(zero, data);
}
