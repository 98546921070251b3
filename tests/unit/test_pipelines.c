/*
 * test_pipelines.c - random pipelines: replicas, stages, grids, microbatches, token slices,
 * schedules, chunks and recomputation on shrunk examples. Each is diagnosed, or executed
 * for two steps in fp64 and equal to the reference (design.md 9), and executed again with
 * the same bits.
 *
 * Every draw is a number (PIPELINE_SEED, default 1, and counting) that gives the same
 * settings always, and runs in a process of its own; a failure prints the command that
 * repeats it. PIPELINE_COUNT (default 40; 400 with ALL=1) says how many.
 * needs: llvm
 */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "grids.h"

/* ---- random numbers --------------------------------------------------------------- */

static uint64_t state;
static uint64_t bits(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static int below(int n) { return (int)(bits() % (uint64_t)n); }
static bool chance(int percent) { return below(100) < percent; }
#define PICK(list) ((list)[below((int)(sizeof (list) / sizeof *(list)))])

/* ---- a draw ----------------------------------------------------------------------- */

enum { MOST_SETS = 40 };
typedef struct {
    const char *file, *set[MOST_SETS];
    int nset;
    int heads, kv, hidden, layers;
    int data, P, x, y, z, v, m, b, k, sequence, micro;
    int slice[32];                      // k of them
    bool ahead;
} Draw;

static void set(Draw *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void set(Draw *d, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cr_assert_lt(d->nset, MOST_SETS - 1);
    d->set[d->nset++] = str(text);
}

enum { ONE_TOKEN, UNEVEN, FEW, ONE_STAGE, ANY, WILD };

static void draw_model(Draw *d, int what)
{
    static const char own[] = "tests/grids/stages.tcube";
    int i;
    static const struct {
        const char *file, *sizes;
        int heads, kv, hidden;          // hidden 0: any
        bool ahead;                     // an attention sees ahead: one slice
    } models[] = {
        { "examples/tiny.tcube", "vocab=29 context=24 heads=6", 6, 6, 0, false },
        { "examples/char.tcube", "vocab=30 context=24 heads=6", 6, 6, 0, false },
        { "examples/gpt2.tcube", "vocab=31 context=24 heads=6", 6, 6, 0, false },
        { "examples/llama.tcube", "vocab=32 inner=36 heads=6 kv_heads=2", 6, 2, 0, false },
        { "examples/llama.tcube", "vocab=32 inner=36 heads=6 kv_heads=3", 6, 3, 0, false },
        { "examples/parallel.tcube", "vocab=33 rotary=2 heads=6", 6, 6, 0, false },
        { own, "kv_heads=2", 6, 2, 0, false },
        { own, "kv_heads=6 cap=0.7", 6, 6, 0, false },
        { own, "kv_heads=2 vocab=24", 6, 2, 0, false },
        { "tests/grids/branches.tcube", "", 12, 12, 48, false },
        { "tests/grids/single.tcube", "", 12, 12, 48, false },
        { "tests/grids/rows.tcube", "", 12, 12, 72, false },
        { "tests/grids/both.tcube", "", 12, 12, 48, true },
    };
    do
        i = below((int)(sizeof models / sizeof *models));
    while (models[i].ahead && what != FEW && what != ANY);
    d->file = models[i].file;
    d->heads = models[i].heads;
    d->kv = models[i].kv;
    d->ahead = models[i].ahead;
    d->hidden = models[i].hidden ? models[i].hidden : chance(70) ? 24 : 36;
    set(d, "model.hidden=%d", d->hidden);
    for (const char *s = models[i].sizes; *s; s += strspn(s, " ")) {
        int n = (int)strcspn(s, " ");
        set(d, "model.%.*s", n, s);
        s += n;
    }
    bool is_own = d->file == own;
    if (is_own && chance(50))
        set(d, "model.window=%d", 1 + below(12));
    if (is_own && chance(20))
        set(d, "model.p=0.4");
    int extra = below(3), sections = d->P * d->v;
    d->layers = sections + extra;
    if (is_own) {                        // some turns are of the other kind
        int others = 1 + below(3);
        int layers = d->layers - others;
        set(d, "model.others=%d", others);
        set(d, "model.layers=%d", layers < 1 ? 1 : layers);
        d->layers = others + (layers < 1 ? 1 : layers);
    } else {
        set(d, "model.layers=%d", d->layers);
    }
}

static bool heads_fit(const Draw *d)
{
    return d->heads % d->y == 0 && (d->kv % d->y == 0 || d->y % d->kv == 0) &&
           d->hidden % d->z == 0 && d->hidden % d->y == 0;
}

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* Tokens in multiples of `grain`, cut at random places; at most 12 slices. */
static void draw_slices(Draw *d, int grain, int want)
{
    int units = d->sequence / grain;
    d->k = want < units ? want : units;
    for (int i = 0; i < d->k; i++)
        d->slice[i] = 1;
    for (int left = units - d->k; left > 0; left--)
        d->slice[below(d->k)]++;
    for (int i = 0; i < d->k; i++)
        d->slice[i] *= grain;
}

static const char *slices_text(const Draw *d)
{
    const char *s = "[";
    for (int i = 0; i < d->k; i++)
        s = str_fmt("%s%s%d", s, i ? "," : "", d->slice[i]);
    return str_fmt("%s]", s);
}

static void draw_grid(Draw *d, int what)
{
    static const int stages[] = { 1, 2, 2, 2, 3, 3, 4 }, axes[] = { 1, 1, 1, 2, 2, 3 };
    static const int replicas[] = { 1, 1, 1, 2, 2, 3 };
    do {
        d->P = what == ONE_STAGE ? 1 : what == FEW ? 2 + below(3) : PICK(stages);
        d->data = PICK(replicas);
        d->x = PICK(axes);
        d->y = PICK(axes);
        d->z = PICK(axes);
        d->v = d->P > 1 && chance(30) ? 2 + below(2) : 1;
    } while (d->data * d->P * d->x * d->y * d->z > 16 || d->P * d->v > 6);
}

/* Microbatches and slices that fit the grid. */
static void draw_feed(Draw *d, int what)
{
    static const int sequences[] = { 6, 8, 12, 12, 24 };
    int step = d->x * (int)lcm64(d->y, d->z);
    d->sequence = what == ONE_TOKEN ? 3 + below(6) : PICK(sequences);
    d->b = what == ONE_TOKEN ? step : 1 + below(3);
    while (d->b * d->sequence % step)
        d->b++;
    int grain = step / (int)gcd64(step, d->b);
    while (d->sequence % grain)
        d->b++, grain = step / (int)gcd64(step, d->b);
    d->k = 1;
    d->slice[0] = d->sequence;
    if (d->ahead)
        ;
    else if (what == ONE_TOKEN)
        draw_slices(d, 1, d->sequence);
    else if (what == UNEVEN || what == ONE_STAGE || chance(60))
        draw_slices(d, grain, 2 + below(5));
    d->m = what == FEW ? 1 + below(d->P - 1) : 1 + below(5);
    if (d->v > 1 && chance(95))         // whole groups of microbatches
        d->m = ceil_div(d->P, d->k) * (1 + below(2));
}

static void set_feed(Draw *d, int what)
{
    set(d, "train.batch=%d", d->data * d->b * d->m);
    set(d, "train.sequence=%d", d->sequence);
    bool automatic = what == ANY && d->P > 1 && chance(25);
    if (!automatic || d->v > 1 || chance(60)) {
        set(d, "plan.microbatch=%d", d->b);
        d->micro = d->b;
    }
    if (automatic)
        set(d, "plan.slices=auto");
    else if (d->k > 1 && what == ANY && chance(30))
        set(d, "plan.slices=uniform(%d)", d->k);
    else if (d->k > 1)
        set(d, "plan.slices=%s", slices_text(d));
}

static void set_turns(Draw *d)
{
    int sections = d->P * d->v, turn[8];
    const char *s = "[";
    for (int i = 0; i < sections; i++)
        turn[i] = 1;
    for (int left = d->layers - sections; left > 0; left--)
        turn[below(sections)]++;
    for (int i = 0; i < sections; i++)
        s = str_fmt("%s%s%d", s, i ? "," : "", turn[i]);
    set(d, "plan.turns=%s]", s);
}

static void set_choices(Draw *d)
{
    static const char *const recompute[] = { "none", "attention", "full", "full(1)", "full(2)" };
    static const char *const keep[] = { "none", "inputs", "weights", "both" };
    int xz = d->x * d->z;
    if (chance(80))
        set(d, "plan.schedule=%s", chance(50) ? "gpipe" : "1f1b");
    if (chance(70))
        set(d, "plan.recompute=%s", PICK(recompute));
    if (d->data > 1 && chance(80))
        set(d, "plan.zero=%d", chance(75) ? below(2) : 2 + below(2));
    if (chance(30))
        set(d, "plan.keep=%s", PICK(keep));
    if (chance(20))
        set(d, "plan.vectors=%s", chance(50) ? "sharded" : "whole");
    if (d->P > 1 && chance(25))
        set_turns(d);
    if (chance(10))
        set(d, "plan.logits_chunk=%d", d->z);
    if (d->micro && d->b % xz == 0 && chance(15))
        set(d, "plan.attention=%s", chance(50) ? "local" : "gather");
    else if (d->heads % (xz * d->y) == 0 && d->kv % (xz * d->y) == 0 && chance(30))
        set(d, "plan.attention=exchange");
    bool even = true;
    for (int i = 0; i < d->k; i++)
        even &= d->slice[i] % (2 * xz) == 0;
    if (even && d->micro && xz > 1 && d->b % xz && chance(30))
        set(d, "plan.rows=balanced");
    if (chance(15))
        set(d, "train.clip=%s", chance(50) ? "no" : "0.01");
    if (chance(15))
        set(d, "train.optimizer=sgd(lr=1e-2,momentum=0.9)");
    if (chance(15))
        set(d, "train.order=%s", chance(50) ? "shuffle" : "sequential");
    set(d, "train.seed=%d", below(1000));
}

/* Something that mostly does not fit. */
static void set_wild(Draw *d)
{
    switch (below(9)) {
    case 0: set(d, "plan.slices=uniform(%d)", 1 + below(40)); break;
    case 1: set(d, "plan.microbatch=%d", 1 + below(9)); break;
    case 2: set(d, "plan.chunks=%d", 1 + below(9)); break;
    case 3: set(d, "plan.pipeline=%d", 1 + below(9)); break;
    case 4: set(d, "plan.slices=[%d,%d]", 1 + below(12), 1 + below(12)); break;
    case 5: set(d, "plan.turns=[1,%d]", below(4)); break;
    case 6: set(d, "plan.rows=balanced"); break;
    case 7: set(d, "plan.attention=local"); break;
    default: set(d, "plan.logits_chunk=%d", 1 + below(30)); break;
    }
}

static Draw draw(uint64_t seed)
{
    Draw d = { 0 };
    int what = (int)(seed % 10);
    what = what < ANY ? what : what == 9 ? WILD : ANY;
    state = seed * 7919;
    draw_grid(&d, what);
    draw_model(&d, what);
    for (int i = 0; i < 50 && !heads_fit(&d); i++)
        draw_grid(&d, what), d.nset = 0, draw_model(&d, what);
    draw_feed(&d, what);
    set(&d, "train.precision=fp64");
    set(&d, "plan.data=%d", d.data);
    set(&d, "plan.pipeline=%d", d.P);
    set(&d, "plan.cube=[%d,%d,%d]", d.x, d.y, d.z);
    if (d.v > 1)
        set(&d, "plan.chunks=%d", d.v);
    set_feed(&d, what);
    set_choices(&d);
    if (what == WILD)
        set_wild(&d);
    return d;
}

/* ---- one in a process of its own --------------------------------------------------- */

enum { EXECUTED = 40, DIAGNOSED, DIFFERS, OTHER_BITS, NO_MESSAGE };

static bool same_arrays(const Trajectory *t, double **a, double **b)
{
    for (int i = 0; i < t->graph->nparams; i++)
        if (memcmp(a[i], b[i], sizeof **a * (size_t)(t->graph->params[i].rows *
                                                     t->graph->params[i].width)))
            return false;
    return true;
}

static int run_draw(const Draw *d)
{
    const Config *config = grids_config(d->file, d->set);
    Plan *p = diag_errors() ? NULL : grids_compile(config, below(4) ? 1 : 2);
    if (p == NULL)
        return diag_errors() ? DIAGNOSED : NO_MESSAGE;
    const Trajectory *t = trajectory_new(config, 2);
    double **params[2], loss[2][2], norm[2][2];
    for (int i = 0; i < 2; i++) {
        Comparison c = comparison_new(t, PREC_FP64);
        c.loss = loss[i];
        c.norm = norm[i];
        params[i] = grids_arrays(t->graph);
        int status = grids_execute_keeping(p, &c, 2, params[i]);
        if (status)
            return status;
        if (c.bad || c.steps != 2)
            return DIFFERS;
    }
    bool same = memcmp(loss[0], loss[1], sizeof *loss) == 0 &&
                memcmp(norm[0], norm[1], sizeof *norm) == 0 && same_arrays(t, params[0], params[1]);
    return same ? EXECUTED : OTHER_BITS;
}

/* A case ends at once: what Criterion would do at exit is the parent's. */
static void leave(int status, void *none)
{
    (void)none;
    _exit(status);
}

static const char *command(const Draw *d)
{
    const char *s = str_fmt("RT_POISON=1 build/teracube verify --full --steps 2 %s", d->file);
    for (int i = 0; i < d->nset; i++)
        s = str_fmt("%s --set '%s'", s, d->set[i]);
    return s;
}

/* Errors that the draw's process printed; the check of the first, "" without. */
static const char *said(const char *path, char *check, size_t room)
{
    Text t = { 0 };
    char line[800];
    FILE *f = fopen(path, "r");
    *check = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *open = strrchr(line, '['), *close = strrchr(line, ']');
        if (strstr(line, "error: ") && open && close > open && *check == 0)
            snprintf(check, room, "%.*s", (int)(close - open - 1), open + 1);
        if (strstr(line, "error: ") || strstr(line, "verify") || strstr(line, "fault"))
            text_add(&t, "    %s", line);
    }
    if (f)
        fclose(f);
    return t.at ? t.at : "";
}

static int executed, diagnosed;
static struct { char check[40]; int n; } refused[40];

static void count_check(const char *check)
{
    int i = 0;
    while (i < 39 && refused[i].n && strcmp(refused[i].check, check))
        i++;
    snprintf(refused[i].check, sizeof refused[i].check, "%s", check);
    refused[i].n++;
}

static bool one_draw(uint64_t seed)
{
    char path[] = "/tmp/teracube-pipelines-XXXXXX", check[40];
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    Draw d = draw(seed);
    fflush(NULL);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        dup2(fd, 2);
        dup2(fd, 1);
        on_exit(leave, NULL);
        alarm(120);
        _exit(run_draw(&d));
    }
    close(fd);
    int w;
    waitpid(pid, &w, 0);
    int status = WIFEXITED(w) ? WEXITSTATUS(w) : 128 + WTERMSIG(w);
    const char *text = said(path, check, sizeof check);
    unlink(path);
    if (status == DIAGNOSED && *check)
        diagnosed++, count_check(check);
    else if (status == EXECUTED)
        executed++;
    else {
        cr_expect(false, "PIPELINE_SEED=%llu: %s (status %d)\n%s\n%s", (unsigned long long)seed,
                  status == DIFFERS ? "differs from the reference" :
                  status == OTHER_BITS ? "a second run gives other bits" :
                  status == DIAGNOSED || status == NO_MESSAGE ? "refused without a check" :
                  "a fault", status, command(&d), text);
        return false;
    }
    if (getenv("PIPELINE_SHOW"))
        fprintf(stderr, "%s %s\n%s", *check ? check : "executed", command(&d), text);
    return true;
}

Test(pipelines, executed_and_equal)
{
    const char *first = getenv("PIPELINE_SEED"), *many = getenv("PIPELINE_COUNT");
    const char *all = getenv("ALL");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
    int n = many ? atoi(many) : all && *all ? 400 : 40, faults = 0;
    setenv("RT_POISON", "1", 1);
    setenv("RT_TIMEOUT", "20", 1);
    double begin = now_s();
    for (int i = 0; i < n && (faults < 8 || many); i++) {
        faults += !one_draw(seed++);
        arena_reset(scratch);
    }
    fprintf(stderr, "pipelines: %d draws in %.0f s: %d executed and equal, %d diagnosed (", n,
            now_s() - begin, executed, diagnosed);
    for (int i = 0; i < 40 && refused[i].n; i++)
        fprintf(stderr, "%s%s %d", i ? ", " : "", refused[i].check, refused[i].n);
    fprintf(stderr, "), %d faults\n", faults);
    cr_expect(n < 20 || executed * 10 >= n * 8, "%d of %d draws were executed", executed, n);
}
