/*
 * test_fuzz.c - random models on random grids: each is diagnosed or verified, never
 * a crash, a hang or a fault of ours; some that are small are executed and compared
 * with the reference. Others are damaged first, token by token.
 *
 * Every case is a number (FUZZ_SEED, default 1, and counting) that gives the same file
 * always, and runs in a process of its own. FUZZ_SECONDS (default 30; 900 with ALL=1)
 * says for how long. The file of a case that fails is kept in /tmp.
 * needs: llvm
 */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
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

/* ---- a model ------------------------------------------------------------------------ */

enum { MOST = 40 };
typedef struct { char name[12]; int width; } Var;
typedef struct {
    Text t;
    Var var[MOST]; int n;
    int names, hidden, heads, nlinear;
    int sequence, batch, x, y, z, data;
    bool masked, in_block, executable, summa;
    char tied[24]; int tied_in, tied_out;
} Model;

static const char *const fn_text =
    "fn soft(x) = exp(x - rowmax(x)) / sum(exp(x - rowmax(x)))\n"
    "fn cut(x; w=1, b=0) = minimum(maximum(x * w + b, -1.5), 1.5)\n"
    "fn norm2(x; w=1) = (x - mean(x)) / sqrt(var(x) + 0.1) * w\n"
    "fn mixed(x, y; a=0.5) = sigmoid(a * x) * y + mean(x * y)\n"
    "fn wave(x) = sin(x) * cos(x) + abs(x) * 0.1\n"
    "fn total(x) = sum(x * x) * 0.01\n"
    "fn deep(x; g=1) = rmsnorm(x + mean(x)) * g + tanh(rowmax(x))\n"
    "fn safe(x, y) = x / (1 + y * y)\n";

static const char *indent(const Model *m) { return m->in_block ? "        " : "    "; }

static Var *any(Model *m) { return &m->var[below(m->n)]; }

static Var *wide(Model *m, int width)       // some variable of that width, or NULL
{
    for (int i = 0, at = below(m->n); i < m->n; i++)
        if (m->var[(at + i) % m->n].width == width)
            return &m->var[(at + i) % m->n];
    return NULL;
}

/* The name of a new variable; it is known once its statement is written. */
static const char *fresh(Model *m)
{
    static char name[12];
    snprintf(name, sizeof name, "t%d", m->names++);
    return name;
}

static void known(Model *m, const char *name, int width)
{
    if (m->n == MOST)
        return;
    snprintf(m->var[m->n].name, sizeof m->var[0].name, "%s", name);
    m->var[m->n++].width = width;
}

static int some_width(Model *m)
{
    static const int factor[] = { 1, 1, 1, 1, 2, 2, 3, 4 };
    if (chance(4))
        return 1 + below(9);
    return m->hidden * PICK(factor) / (chance(20) ? 2 : 1);
}

static void add_linear(Model *m, const char *to, const char *x, int width)
{
    text_add(&m->t, "%s%s = linear(%s, %d%s%s", indent(m), to, x, width,
             chance(30) ? ", bias=no" : "", chance(15) ? ", stored=in_out" : "");
    text_add(&m->t, chance(30) ? ", init=normal(0.1))\n" : ")\n");
    known(m, to, width);
}

static void add_attention(Model *m)
{
    static const int groups[] = { 1, 1, 1, 2, 3, 4 };
    char q[12], k[12], v[12], o[12];
    const char *x = any(m)->name;
    int heads = m->heads, kv = heads / PICK(groups), hd = m->hidden / heads;
    kv = kv < 1 ? 1 : kv;
    char from[12];
    snprintf(from, sizeof from, "%s", x);
    snprintf(q, sizeof q, "%s", fresh(m));
    snprintf(k, sizeof k, "%s", fresh(m));
    snprintf(v, sizeof v, "%s", fresh(m));
    snprintf(o, sizeof o, "%s", fresh(m));
    if (chance(30) && kv == heads) {
        text_add(&m->t, "%s%s, %s, %s = split(linear(%s, %d), 3%s)\n", indent(m), q, k, v, from,
                 3 * m->hidden, chance(30) ? str_fmt(", heads=%d", heads) : "");
        known(m, q, m->hidden);
        known(m, k, m->hidden);
        known(m, v, m->hidden);
    } else {
        add_linear(m, q, from, m->hidden);
        add_linear(m, k, from, kv * hd);
        add_linear(m, v, from, kv * hd);
    }
    if (chance(40) && hd % 2 == 0) {
        const char *how = chance(50) ? ", style=interleaved" : "";
        int part = chance(30) && hd >= 4 ? hd / 2 / 2 * 2 : hd;
        text_add(&m->t, "%s%s = rope(%s, heads=%d%s, rotary=%d)\n", indent(m), q, q, heads, how,
                 part);
        text_add(&m->t, "%s%s = rope(%s, heads=%d%s, rotary=%d)\n", indent(m), k, k, kv, how,
                 part);
    }
    if (chance(25))
        text_add(&m->t, "%s%s = %s(%s, heads=%d)\n", indent(m), k,
                 chance(50) ? "rmsnorm" : "norm2", k, kv);
    text_add(&m->t, "%s%s = attention(%s, %s, %s, heads=%d, kv_heads=%d", indent(m), o, q, k, v,
             heads, kv);
    if (m->masked && chance(70))
        text_add(&m->t, ", causal=no");
    else if (chance(25))
        text_add(&m->t, ", window=%d", 1 + below(2 * m->sequence));
    if (chance(20))
        text_add(&m->t, ", softcap=2.0");
    text_add(&m->t, ")\n");
    known(m, o, m->hidden);
}

static void add_split(Model *m)
{
    Var x = *any(m);
    int parts = 2 + below(2), heads = chance(30) ? m->heads : 1;
    char a[3][12];
    if (x.width % (parts * heads))
        return;
    for (int i = 0; i < parts; i++)
        snprintf(a[i], sizeof a[i], "%s", fresh(m));
    text_add(&m->t, "%s%s, %s%s%s = split(%s, %d", indent(m), a[0], a[1], parts > 2 ? ", " : "",
             parts > 2 ? a[2] : "", x.name, parts);
    text_add(&m->t, heads > 1 ? ", heads=%d)\n" : ")\n", heads);
    for (int i = 0; i < parts; i++)
        known(m, a[i], x.width / parts);
}

static void add_concat(Model *m)
{
    Var x = *any(m), y = *any(m);
    int heads = chance(30) ? m->heads : 1;
    const char *to = fresh(m);
    if (x.width % heads || y.width % heads || x.width + y.width > 6 * m->hidden)
        return;
    text_add(&m->t, "%s%s = concat(%s, %s", indent(m), to, x.name, y.name);
    text_add(&m->t, heads > 1 ? ", heads=%d)\n" : ")\n", heads);
    known(m, to, x.width + y.width);
}

static void add_rows(Model *m)
{
    static const char *const one[] = { "gelu", "silu", "relu", "gelu_erf", "layernorm", "rmsnorm",
        "soft", "cut", "norm2", "wave", "deep", "layernorm", "gelu" };
    static const char *const two[] = { "mixed", "safe" };
    Var x = *any(m), *y = wide(m, x.width);
    const char *to = fresh(m);
    switch (below(7)) {
    case 0:
        text_add(&m->t, "%s%s = %s %c %s\n", indent(m), to, x.name, "+-*"[below(3)], y->name);
        break;
    case 1:
        text_add(&m->t, "%s%s = %s(%s, %s)\n", indent(m), to, PICK(two), x.name, y->name);
        break;
    case 2:
        text_add(&m->t, "%s%s = %s * %.2f + %s ^ 2 * 0.1\n", indent(m), to, x.name,
                 below(100) / 50.0 - 1, y->name);
        break;
    case 3:
        text_add(&m->t, "%s%s = total(%s)\n", indent(m), to, x.name);
        known(m, to, 1);
        return;
    case 4:
        if ((y = wide(m, 1)) != NULL) {
            text_add(&m->t, "%s%s = %s * tanh_(%s)\n", indent(m), to, x.name, y->name);
            break;
        }
        // fall through
    case 5:
        if (chance(20)) {
            text_add(&m->t, "%s%s = dropout(%s, 0.%d)\n", indent(m), to, x.name, 1 + below(5));
            break;
        }
        // fall through
    default: {
        int heads = chance(25) && x.width % m->heads == 0 ? m->heads : 1;
        text_add(&m->t, "%s%s = %s(%s", indent(m), to, PICK(one), x.name);
        text_add(&m->t, heads > 1 ? ", heads=%d)\n" : ")\n", heads);
    }
    }
    known(m, to, x.width);
}

static void add_statement(Model *m)
{
    switch (below(12)) {
    case 0: case 1: case 2: {
        char to[12];
        snprintf(to, sizeof to, "%s", fresh(m));
        add_linear(m, to, any(m)->name, some_width(m));
        break;
    }
    case 3: case 4:
        add_attention(m);
        break;
    case 5:
        add_split(m);
        break;
    case 6:
        add_concat(m);
        break;
    case 7: {
        char to[12];
        Var x = *any(m);
        if (m->tied[0] == 0 || (x.width != m->tied_in && x.width != m->tied_out))
            break;
        snprintf(to, sizeof to, "%s", fresh(m));
        int width = x.width == m->tied_in ? m->tied_out : m->tied_in;
        text_add(&m->t, "%s%s = linear(%s, %d, bias=no, tie=\"%s\")\n", indent(m), to, x.name,
                 width, m->tied);
        known(m, to, width);
        break;
    }
    default:
        add_rows(m);
    }
}

/* Brings some variable to the hidden width; the block's or model's result. */
static void result(Model *m, const char *to, const char *residual)
{
    Var *x = &m->var[m->n - 1];
    const char *plus = residual ? str_fmt("%s + ", residual) : "";
    if (x->width == m->hidden && chance(40))
        text_add(&m->t, "%s%s = %s%s\n", indent(m), to, plus, x->name);
    else
        text_add(&m->t, "%s%s = %slinear(%s, %d)\n", indent(m), to, plus, x->name, m->hidden);
}

static void sections(Model *m)
{
    static const char *const attention[] = { "local", "gather", "exchange" };
    static const char *const keep[] = { "none", "inputs", "weights", "both" };
    Text *t = &m->t;
    text_add(t, "train {\n    batch = %d; sequence = %d; steps = 5; seed = %d; precision = fp64\n",
             m->batch, m->sequence, below(1000));
    if (m->masked)
        text_add(t, "    objective = masked(p=0.4, token=1)\n");
    text_add(t, chance(30) ? "    optimizer = sgd(lr=1e-2, momentum=0.9)\n"
                           : "    optimizer = adamw(lr=1e-3, weight_decay=0.1)\n");
    if (chance(30))
        text_add(t, "    clip = 0.5; order = shuffle\n");
    text_add(t, "}\nplan {\n    data = %d; cube = [%d, %d, %d]\n", m->data, m->x, m->y, m->z);
    if (m->data > 1 && chance(50))
        text_add(t, "    zero = %d\n", below(2));
    if (chance(30))
        text_add(t, "    attention = %s\n", PICK(attention));
    if (chance(20))
        text_add(t, "    rows = %s\n", chance(60) ? "plain" : "balanced");
    if (m->summa)
        text_add(t, "    partition = summa(%d)\n", m->y);
    if (chance(m->summa ? 10 : 30))
        text_add(t, "    keep = %s\n", PICK(keep));
    if (chance(30))
        text_add(t, "    vectors = %s\n", chance(60) ? "sharded" : "whole");
    int rows = m->batch / m->data * m->sequence / m->x;
    if (chance(m->summa ? 5 : 25))
        text_add(t, "    logits_chunk = %d\n", rows / (1 + below(4)) + (rows == 0));
    if (chance(15))
        text_add(t, "    microbatch = %d\n", 1 + below(3));
    text_add(t, "}\n");
}

static const char *model_text(void)
{
    static const int widths[] = { 8, 12, 16, 24, 24, 24, 36, 48 }, heads[] = { 1, 2, 2, 3, 4, 6 };
    static const int axes[] = { 1, 1, 1, 2, 2, 2, 3, 4 }, sequences[] = { 4, 8, 12, 24, 24 };
    static const int batches[] = { 1, 2, 4, 6, 12 };
    Model m = { .hidden = PICK(widths), .heads = PICK(heads), .sequence = PICK(sequences),
                .batch = PICK(batches), .x = PICK(axes), .y = PICK(axes), .z = PICK(axes),
                .data = chance(70) ? 1 : 2 + below(2), .masked = chance(20) };
    if (chance(15)) {                   // products of blocks
        m.x = 1;
        m.y = m.z = 2 + below(2);
        m.summa = true;
    }
    Text *t = &m.t;
    int vocab = 3 + below(40), turns = 1 + below(3);
    if (chance(85) && m.hidden % m.heads)
        m.heads = 2;
    if (chance(70)) {                   // a grid that mostly fits
        while (m.heads % m.y || m.hidden % m.y)
            m.y--;
        while (m.hidden % m.z)
            m.z--;
        if (m.summa && m.y != m.z)
            m.y = m.z = 1;
        m.data = m.batch % m.data ? 1 : m.data;
    }
    text_add(t, "%sfn tanh_(x) = tanh(x)\n", fn_text);
    text_add(t, "model fuzz {\n    block layer(x, i) {\n");
    m.in_block = true;
    known(&m, "x", m.hidden);
    for (int i = 2 + below(7); i > 0; i--)
        add_statement(&m);
    result(&m, "y", chance(70) ? "x" : NULL);
    text_add(t, "        return y\n    }\n");
    m.in_block = false;
    m.n = 0;
    text_add(t, "    x = embed(tokens, %d, %d, name=\"tok\")%s\n", vocab, m.hidden,
             chance(50) ? str_fmt(" + embed(positions, %d, %d)", m.sequence, m.hidden) : "");
    known(&m, "x", m.hidden);
    if (chance(30)) {
        int inner = m.hidden * (1 + below(3));
        text_add(t, "    e = linear(x, %d, name=\"early\")\n", inner);
        known(&m, "e", inner);
        snprintf(m.tied, sizeof m.tied, "early");
        m.tied_in = m.hidden;
        m.tied_out = inner;
    }
    for (int i = below(3); i > 0; i--)
        add_statement(&m);
    text_add(t, "    repeat i in %d { x = layer(x, i, name=\"layer.{i}\") }\n", turns);
    for (int i = below(4); i > 0; i--)
        add_statement(&m);
    result(&m, "x", "x");
    if (chance(60))
        text_add(t, "    x = layernorm(x)\n");
    const char *tie = chance(40) ? ", tie=\"tok\"" : "", *after = chance(20) ? "wave" : "";
    text_add(t, "    loss = cross_entropy(%s%slinear(x, %d%s%s)%s, targets)\n}\n", after,
             *after ? "(" : "", vocab, chance(50) ? ", bias=no" : "", tie, *after ? ")" : "");
    sections(&m);
    return t->at;
}

/* Some tokens of the text deleted, doubled, exchanged or replaced. */
static const char *damaged(const char *text)
{
    static const char *const words[] = { "(", ")", "{", "}", "[", "]", ",", "=", "+", "-", "*",
        "/", "^", "%", ";", "\n", "\"", "0", "1", "-1", "1e300", "1099511627776", "2.5", "auto",
        "yes", "x", "repeat", "in", "block", "fn", "model", "return", "heads", "3 GB", "1f1b",
        "tokens", "targets", "embed", "linear", "split", "i", "\\", "\t", "#", "{i}", "positions" };
    Text t = { 0 };
    int n = 1 + below(4), len = (int)strlen(text);
    int at[4];
    for (int i = 0; i < n; i++)
        at[i] = (int)strlen(fn_text) * chance(90) + below(len);
    for (const char *s = text; *s;) {
        size_t k = strcspn(s, " \n(),=+-*/[]{}");
        k = k ? k : 1;
        bool hit = false;
        for (int i = 0; i < n; i++)
            hit |= at[i] >= s - text && at[i] < s - text + (int)k;
        int what = hit ? below(4) : 4;
        if (what == 1)
            text_add(&t, "%.*s %.*s", (int)k, s, (int)k, s);
        else if (what == 2)
            text_add(&t, " %s ", PICK(words));
        else if (what == 3)
            text_add(&t, "%.*s %s ", (int)k, s, PICK(words));
        else if (what == 4)
            text_add(&t, "%.*s", (int)k, s);
        s += k;
    }
    return t.at ? t.at : "";
}

/* ---- a case ------------------------------------------------------------------------- */

enum { VERIFIED, DIAGNOSED, EXECUTED = 10, DIFFERS, UNDEFINED };

static int run_case(const char *file, bool execute)
{
    const char *const none[] = { NULL };
    const Config *config = grids_config(file, none);
    Plan *p = diag_errors() ? NULL : grids_compile(config, execute && below(2) ? 2 : 1);
    if (p == NULL)
        return diag_errors() ? DIAGNOSED : 99;
    if (!execute || plan_ranks(p) > 24 || !config->has_train)
        return VERIFIED;
    const Trajectory *t = trajectory_new(config, 2);
    Comparison c = comparison_new(t, PREC_FP64);
    if (!isfinite(t->norm[0]) || t->largest > 1e6)
        return UNDEFINED;
    int status = grids_execute(p, &c, 2);
    if (status == 1)
        return UNDEFINED;               // not finite, which the runtime says
    // random models amplify rounding: 1e-6 here, where a wrong plan is off by far more
    bool good = c.worst < 1e-6 && c.worst_scalar < 1e-6;
    return status == 0 && good ? EXECUTED : status == 0 ? DIFFERS : status;
}

static int count[16];

/* A case ends at once: what Criterion would do at exit is the parent's. */
static void leave(int status, void *none)
{
    (void)none;
    _exit(status);
}

static void one_case(uint64_t seed, int *faults)
{
    const char *file = str_fmt("/tmp/teracube-fuzz-%d.tcube", (int)getpid());
    const char *says = str_fmt("/tmp/teracube-fuzz-%d.err", (int)getpid());
    state = seed * 7919;
    const char *text = model_text();
    bool broken = chance(25), execute = !broken && chance(25);
    if (broken)
        text = damaged(text);
    FILE *f = fopen(file, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int to = open(says, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(to, 2);
        on_exit(leave, NULL);
        alarm(60);
        _exit(run_case(file, execute));
    }
    int w;
    waitpid(pid, &w, 0);
    int status = WIFEXITED(w) ? WEXITSTATUS(w) : 15;
    if (status < 16)
        count[status]++;
    if (status == VERIFIED || status == DIAGNOSED || status == EXECUTED || status == UNDEFINED)
        return;
    const char *kept = str_fmt("/tmp/teracube-fuzz-seed-%llu.tcube", (unsigned long long)seed);
    rename(file, kept);
    char line[600], said[1200] = "";     // its own warnings left out
    f = fopen(says, "r");
    while (f && fgets(line, sizeof line, f))
        if ((strncmp(line, "verify", 6) == 0 || strstr(line, "fault") || strstr(line, "rror")) &&
            strlen(said) + strlen(line) < sizeof said)
            strcat(said, line);
    if (f)
        fclose(f);
    cr_expect(false, "FUZZ_SEED=%llu: %s %d; the file is %s\n%s", (unsigned long long)seed,
              WIFEXITED(w) ? "status" : "signal", WIFEXITED(w) ? status : WTERMSIG(w), kept, said);
    (*faults)++;
}

Test(fuzz, diagnosed_or_verified)
{
    const char *seconds = getenv("FUZZ_SECONDS"), *first = getenv("FUZZ_SEED");
    const char *all = getenv("ALL");
    double limit = seconds ? atof(seconds) : all && *all ? 900 : 30, begin = now_s();
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
    int faults = 0, n = 0;
    for (; now_s() - begin < limit && faults < 5; n++)
        one_case(seed++, &faults);
    fprintf(stderr, "fuzz: %d cases in %.0f s: %d verified, %d diagnosed, %d executed and equal, "
            "%d executed and not finite, %d faults\n", n, now_s() - begin, count[VERIFIED],
            count[DIAGNOSED], count[EXECUTED], count[UNDEFINED], faults);
    arena_reset(scratch);
}
