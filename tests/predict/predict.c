/*
 * predict.c - the model of prices over published rows.
 *
 *     predict FOLDER..                  the table of residuals
 *     predict FOLDER.. --sweeps [WORD]  each sweep: rank, regret, what was picked; with a word,
 *                                       the rows of those that miss, in the measured order
 *     predict FOLDER.. --rows WORD      each row of the sets whose names contain the word
 *     predict FOLDER.. --left-out       what cannot be compared, by reason
 *     predict FOLDER.. --own            the second table alone; --own WORD: row by row
 *     predict FOLDER.. --table          the table as C, for compiler/residual_table.c
 *     predict FOLDER.. --fit ARCH       constants of an architecture, fitted on rows for that
 *
 * Run from the top of the tree: clusters are read from examples/clusters.
 */
#include "own.h"
#include "residual.h"

#include <dirent.h>

/* ---- prices of a machine ------------------------------------------------------------ */

typedef struct { const char *name, *arch; Prices w[2]; double memory; } Machine;
static VEC(Machine) machines;
static VEC(Reach) reaches;              // those in use: the compiler's, or being fitted

static Reach *reach_of(const char *arch)
{
    for (int i = 0; i < reaches.n; i++)
        if (strcmp(reaches.at[i].arch, arch) == 0)
            return &reaches.at[i];
    vec_add(&reaches, *price_reach(arch));
    return &reaches.at[reaches.n - 1];
}

static Machine *machine_of(const char *name)
{
    for (int i = 0; i < machines.n; i++)
        if (machines.at[i].name == name)
            return &machines.at[i];
    const char *file = str_fmt("examples/clusters/%s.tcube", name);
    Inputs in = { .files = &file, .nfiles = 1 };
    const Config *c = config_read(parse_files(&in), &in);
    if (diag_errors())
        exit(EXIT_INPUT);
    Plan *p = plan_new(c);
    Machine m = { .name = name };
    for (int i = 0; i < 2; i++) {
        p->is.precision = i ? PREC_FP8 : PREC_BF16;
        m.w[i] = price_list(p);
    }
    const Device *d = &c->devices.at[c->cluster.device];
    m.arch = d->arch.v;
    m.memory = d->memory.v - d->reserve.v;
    vec_add(&machines, m);
    return &machines.at[machines.n - 1];
}

static double one_of(const Prices *w, const One *o)
{
    double s = price_bytes(w, o->copied);
    if (o->ranks > 0) {
        Mesh m = { .size = { 1, 1, 1, o->ranks, 1 }, .stride = { 1, 1, 1, 1, 1 },
                   .ranks = o->ranks };
        Group g = price_group(w, &m, AX_YK);
        s += price_collective(w, &g, o->ring, 1, o->bytes);
    } else
        s += price_bytes(w, o->bytes);
    for (int i = 0; i < o->products; i++)
        s += price_products(w, o->count[i], o->m[i], o->n[i], o->k[i], 2);
    return s;
}

static void predict(Row *r)
{
    Machine *m = machine_of(r->machine);
    m->w[0].reach = m->w[1].reach = *reach_of(m->arch);
    if (r->seen == SEEN_ONE) {
        r->predicted = one_of(&m->w[0], &r->one);
        return;
    }
    Frame f = frame_of(&m->w[0], &m->w[1], &r->shape, &r->layout, r->how);
    switch (r->seen) {
    case SEEN_STEP: r->predicted = f.step_s; break;
    case SEEN_FORWARD: r->predicted = f.forward_s; break;
    case SEEN_BACKWARD: r->predicted = f.backward_s; break;
    case SEEN_STATIC: r->predicted = f.static_bytes; break;
    case SEEN_KEPT: r->predicted = f.activation_bytes; break;
    case SEEN_ONE: break;
    case SEEN_PEAK: case SEEN_FULL: r->predicted = f.peak_bytes; break;
    }
}

static bool is_time(const Row *r) { return r->seen <= SEEN_ONE; }
static bool is_memory(const Row *r) { return r->seen >= SEEN_PEAK && r->seen <= SEEN_KEPT; }

/* ---- figures of a set -------------------------------------------------------------- */

typedef struct { double at; int i; } Key;
static int by_value(const void *a, const void *b)
{
    const Key *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Ranks of n values; those closer than 2 % to the first of their run share one. */
static void ranks(const double *v, int n, double *rank)
{
    Key *k = NEWN(Key, n);
    for (int i = 0; i < n; i++)
        k[i] = (Key){ v[i], i };
    qsort(k, (size_t)n, sizeof *k, by_value);
    for (int i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && k[j].at < k[i].at * 1.02; j++)
            ;
        for (int l = i; l < j; l++)
            rank[k[l].i] = (i + j - 1) / 2.0;
    }
}

/* Spearman's; 1 where all are ties. */
static double rank_correlation(const double *a, const double *b, int n)
{
    double *x = NEWN(double, n), *y = NEWN(double, n), mean = (n - 1) / 2.0;
    double xy = 0, xx = 0, yy = 0;
    ranks(a, n, x);
    ranks(b, n, y);
    for (int i = 0; i < n; i++) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    return xx <= 0 || yy <= 0 ? 1 : xy / sqrt(xx * yy);
}

typedef struct {
    const char *name;
    int rows, trained;
    double error, bias;             // of the rows not trained on; mean absolute, mean
    double trained_error;
    int sweeps; double rank, least_rank, regret, most_regret;
    int memory; double memory_error, memory_bias;
    int full, false_fits;
} Set;

/* Rows of one work on one machine, at least SWEEP of them. */
enum { SWEEP = 6 };
typedef struct {
    VEC(int) rows;
    double rank, regret;
    int best, pick;                 // rows: the quickest as measured, as predicted
    double spread, scatter;         // deviation of log measured; of log predicted / measured
} Sweep;

static double deviation(const double *v, int n)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        sum += log(v[i]);
        squares += log(v[i]) * log(v[i]);
    }
    return sqrt(fmax(0, squares / n - sum / n * sum / n));
}

/* The sweep whose first row is i; false: too few, or i is of one that was had. */
static bool sweep_of(const Rows *rows, int i, bool *done, Sweep *w)
{
    *w = (Sweep){ .best = i, .pick = i };
    for (int j = i; j < rows->n && !done[i]; j++) {
        const Row *r = &rows->at[j];
        if (r->why_not || r->seen != SEEN_STEP || r->sweep != rows->at[i].sweep)
            continue;
        done[j] = j > i;            // i is the last to be had
        vec_add(&w->rows, j);
        w->best = w->rows.n == 1 || r->measured < rows->at[w->best].measured ? j : w->best;
        w->pick = w->rows.n == 1 || r->predicted < rows->at[w->pick].predicted ? j : w->pick;
    }
    int n = w->rows.n;
    done[i] = true;
    if (n < SWEEP)
        return false;
    double *seen = NEWN(double, n), *ours = NEWN(double, n), *off = NEWN(double, n);
    for (int k = 0; k < n; k++) {
        const Row *r = &rows->at[w->rows.at[k]];
        seen[k] = r->measured;
        ours[k] = r->predicted;
        off[k] = r->predicted / r->measured;
    }
    w->rank = rank_correlation(seen, ours, n);
    w->regret = rows->at[w->pick].measured / rows->at[w->best].measured - 1;
    w->spread = deviation(seen, n);
    w->scatter = deviation(off, n);
    return true;
}

static void sweeps_of(const Rows *rows, Set *s)
{
    bool *done = NEWN(bool, rows->n);
    Sweep w;
    s->least_rank = 1;
    for (int i = 0; i < rows->n; i++) {
        if (rows->at[i].set != s->name || !sweep_of(rows, i, done, &w))
            continue;
        s->sweeps++;
        s->rank += w.rank;
        s->regret += w.regret;
        s->least_rank = fmin(s->least_rank, w.rank);
        s->most_regret = fmax(s->most_regret, w.regret);
    }
    if (s->sweeps > 0) {
        s->rank /= s->sweeps;
        s->regret /= s->sweeps;
    }
}

static Set set_of(const Rows *rows, const char *name)
{
    Set s = { .name = name };
    for (int i = 0; i < rows->n; i++) {
        const Row *r = &rows->at[i];
        if (r->set != name || r->why_not)
            continue;
        double off = r->predicted / r->measured - 1;
        if (r->seen == SEEN_FULL) {
            s.full++;
            s.false_fits += r->predicted <= machine_of(r->machine)->memory;
        } else if (is_memory(r)) {
            s.memory++;
            s.memory_error += fabs(off);
            s.memory_bias += off;
        } else if (r->trains) {
            s.trained++;
            s.trained_error += fabs(off);
        } else {
            s.rows++;
            s.error += fabs(off);
            s.bias += off;
        }
    }
    s.error /= s.rows ? s.rows : 1;
    s.bias /= s.rows ? s.rows : 1;
    s.trained_error /= s.trained ? s.trained : 1;
    s.memory_error /= s.memory ? s.memory : 1;
    s.memory_bias /= s.memory ? s.memory : 1;
    sweeps_of(rows, &s);
    return s;
}

typedef VEC(const char *) Words;
static Words set_names(const Rows *rows)
{
    Words names = { 0 };
    for (int i = 0; i < rows->n; i++) {
        bool known = false;
        for (int j = 0; j < names.n; j++)
            known |= names.at[j] == rows->at[i].set;
        if (!known && !rows->at[i].why_not)
            vec_add(&names, rows->at[i].set);
    }
    return names;
}

static void print_table(const Rows *rows)
{
    Words names = set_names(rows);
    printf("%-44s %5s %6s %6s %10s %6s %5s %6s %5s %6s %6s %6s %6s\n", "set", "rows", "error",
           "bias", "fitted", "sweeps", "rank", "least", "regr.", "most", "memory", "error", "oom");
    for (int i = 0; i < names.n; i++) {
        Set s = set_of(rows, names.at[i]);
        printf("%-44s", s.name);
        if (s.rows)
            printf(" %5d %5.1f%% %+5.1f%%", s.rows, 100 * s.error, 100 * s.bias);
        else
            printf(" %5s %6s %6s", "-", "-", "-");
        if (s.trained)
            printf(" %4d %4.1f%%", s.trained, 100 * s.trained_error);
        else
            printf(" %10s", "-");
        if (s.sweeps)
            printf(" %6d %5.2f %6.2f %4.1f%% %5.1f%%", s.sweeps, s.rank, s.least_rank,
                   100 * s.regret, 100 * s.most_regret);
        else
            printf(" %6s %5s %6s %5s %6s", "-", "-", "-", "-", "-");
        if (s.memory)
            printf(" %6d %5.1f%%", s.memory, 100 * s.memory_error);
        else
            printf(" %6s %6s", "-", "-");
        if (s.full)
            printf(" %d/%d", s.false_fits, s.full);
        putchar('\n');
    }
}

static const struct { const Manner *how; const char *symbol; } manners[] = {
#define M(name) { &name, #name }
    M(megatron), M(megatron_core), M(megatron_fp16), M(deepspeed), M(deepspeed_bf16),
    M(deepspeed_zero3), M(fsdp), M(fsdp_fp32), M(titan), M(titan_compiled), M(alpa), M(terapipe),
#undef M
};
enum { MANNERS = sizeof manners / sizeof *manners };

/* Of most rows of a set that the table counts. */
static const char *usual_manner(const Rows *rows, const char *set)
{
    int count[MANNERS] = { 0 }, most = 0;
    for (int i = 0; i < rows->n; i++)
        for (int j = 0; j < MANNERS; j++) {
            const Row *r = &rows->at[i];
            count[j] += r->set == set && !r->why_not && r->seen == SEEN_STEP && !r->trains &&
                        r->how == manners[j].how;
            most = count[j] > count[most] ? j : most;
        }
    return manners[most].symbol;
}

/* The table of compiler/residual_table.c: sets with rows that nothing was fitted on. */
static void print_c(const Rows *rows)
{
    static const char *const family[] = { "FAMILY_TENSOR", "FAMILY_SHARDED", "FAMILY_SLICES" };
    Words names = set_names(rows);
    int n = 0;
    printf("/* residual_table.c - written by `make predict-table`; see residual.h. */\n"
           "#include \"frame.h\"\n#include \"residual.h\"\n\nconst Residual residuals[] = {\n");
    for (int k = 0; k < names.n; k++) {
        Set s = set_of(rows, names.at[k]);
        double size = 0, devices = 0, count[3] = { 0 };
        const char *arch = "";
        for (int i = 0; i < rows->n; i++) {
            const Row *r = &rows->at[i];
            const Way *l = &r->layout;
            if (r->set != s.name || r->why_not || r->seen != SEEN_STEP || r->trains)
                continue;
            size += log(dims_parameters(&r->shape)) / s.rows;
            devices += log(l->gpus) / s.rows;
            count[r->how->gpipe ? 2 : l->zero >= 3 && l->tp <= 1]++;
            arch = machine_of(r->machine)->arch;
        }
        if (s.rows < 4)             // TUNING: fewer say little
            continue;
        int most = count[2] > count[0] && count[2] > count[1] ? 2 : count[1] > count[0];
        printf("    { \"%s\", \"%s\", %s,\n      %d, %.3f, %.3f, %.3g, %.3g, &%s },\n", s.name,
               arch, family[most], s.rows, s.error, s.bias, exp(size), exp(devices),
               usual_manner(rows, s.name));
        n++;
    }
    printf("};\nconst int nresiduals = %d;\n", n);
}

static void print_rows(const Rows *rows, const char *word)
{
    for (int i = 0; i < rows->n; i++) {
        const Row *r = &rows->at[i];
        if (r->why_not || !strstr(r->set, word))
            continue;
        const Way *l = &r->layout;
        printf("%s:%d %c L%g h%g s%g  t%g p%g v%g d%g z%d b%g/%g %s a%d  %d  %.5g %.5g %+.1f%%\n",
               r->set, r->line, r->trains ? 'f' : ' ', r->shape.layers, r->shape.hidden,
               r->shape.seq, l->tp, l->pp, l->vp, l->dp, l->zero, l->micro, l->batch,
               r->how->name, l->again, r->seen, r->measured, r->predicted,
               100 * (r->predicted / r->measured - 1));
    }
}

/* ---- sweeps -------------------------------------------------------------------------- */

static const char *layout_text(const Row *r)
{
    const Way *l = &r->layout;
    return str_fmt("t%g p%g d%g%s b%g", l->tp, l->pp, l->dp,
                   l->vp > 1 ? str_fmt(" v%g", l->vp) : "", l->micro);
}

static void print_sweep_rows(const Rows *rows, const Sweep *w)
{
    Key *k = NEWN(Key, w->rows.n);
    for (int i = 0; i < w->rows.n; i++)
        k[i] = (Key){ rows->at[w->rows.at[i]].measured, w->rows.at[i] };
    qsort(k, (size_t)w->rows.n, sizeof *k, by_value);
    for (int i = 0; i < w->rows.n; i++) {
        const Row *r = &rows->at[k[i].i];
        printf("      %-20s %8.4g %8.4g %+6.1f%%%s\n", layout_text(r), r->measured, r->predicted,
               100 * (r->predicted / r->measured - 1), k[i].i == w->pick ? "  picked" : "");
    }
}

/* What is asked of every sweep; those that miss are marked. */
static const double RANK = 0.9, REGRET = 0.03;

static void print_sweeps(const Rows *rows, const char *word)
{
    bool *done = NEWN(bool, rows->n);
    int n = 0, low = 0, dear = 0;
    Sweep w;
    printf("\n%-70s %4s %5s %6s %7s %7s  %-16s %s\n", "sweep", "rows", "rank", "regret", "spread",
           "scatter", "picked", "best");
    for (int i = 0; i < rows->n; i++) {
        const Row *r = &rows->at[i];
        if (r->why_not || !strstr(r->set, word) || !sweep_of(rows, i, done, &w))
            continue;
        bool out = w.rank < RANK, costs = w.regret > REGRET;
        const char *name = str_fmt("%s L%g h%g s%g, %g GPUs, batch %g", r->set, r->shape.layers,
                                   r->shape.hidden, r->shape.seq, r->layout.gpus, r->layout.batch);
        printf("%-70s %4d %4.2f%c %5.1f%%%c %6.1f%% %6.1f%%  %-16s %s\n", name, w.rows.n, w.rank,
               out ? '*' : ' ', 100 * w.regret, costs ? '*' : ' ', 100 * w.spread, 100 * w.scatter,
               layout_text(&rows->at[w.pick]), layout_text(&rows->at[w.best]));
        n++;
        low += out;
        dear += costs;
        if (*word && (out || costs))
            print_sweep_rows(rows, &w);
    }
    printf("%d sweeps: rank below %g in %d, regret above %g %% in %d (*)\n", n, RANK, low,
           100 * REGRET, dear);
}

/* TUNING: rows of a set that are planned; planning all takes longer than it tells. */
enum { PLANNED = 60 };

/* Every so many rows of a set, as a user would plan them. */
static void print_own(const Rows *rows, const char *word)
{
    Words names = set_names(rows);
    puts("\nthe same rows through `plan`: our own program in their layouts, and the page's line "
         "`published`");
    printf("%-44s %5s %8s %15s %10s %6s %6s\n", "set", "rows", "own/seen", "least, most",
           "published", "error", "bias");
    for (int k = 0; k < names.n; k++) {
        double sum = 0, least = INFINITY, most = 0, off = 0, bias = 0;
        int all = 0, seen = 0, n = 0, lines = 0;
        for (int i = 0; i < rows->n; i++)
            all += rows->at[i].set == names.at[k] && rows->at[i].seen == SEEN_STEP &&
                   !rows->at[i].why_not;
        for (int i = 0; i < rows->n; i++) {
            const Row *r = &rows->at[i];
            Own own;
            if (r->set != names.at[k] || r->seen != SEEN_STEP || r->why_not ||
                seen++ % ((all + PLANNED - 1) / PLANNED) != 0)
                continue;
            const char *why = own_step(r, &own);
            if (*word && strstr(r->set, word))
                printf("  line %d: %s\n", r->line, why ? why
                       : str_fmt("%.5g s, own %.5g, published %.5g", r->measured, own.step_s,
                                 own.published_s));
            if (why)
                continue;
            double ratio = own.step_s / r->measured, theirs = own.published_s / r->measured - 1;
            n++;
            sum += ratio;
            least = fmin(least, ratio);
            most = fmax(most, ratio);
            if (own.published_s > 0) {
                lines++;
                off += fabs(theirs);
                bias += theirs;
            }
        }
        if (n == 0)
            continue;
        printf("%-44s %5d %8.2f %8.2f, %5.2f", names.at[k], n, sum / n, least, most);
        if (lines > 0)
            printf(" %10d %5.1f%% %+5.1f%%", lines, 100 * off / lines, 100 * bias / lines);
        putchar('\n');
    }
}

/* Under the table: what is not in it, by file and reason, and the lines. */
static void print_reasons(const Rows *rows)
{
    bool *done = NEWN(bool, rows->n);
    puts("\nnot compared: rows, why, lines");
    for (int i = 0; i < rows->n; i++) {
        const Row *a = &rows->at[i];
        const char *why = a->why_not ? str_of(a->why_not, strcspn(a->why_not, "0123456789")) : "";
        Text lines = { 0 };
        bool differ = false;            // in a number: the first stands for all
        int n = 0, runs = 0, last = -1;
        for (int j = i; j < rows->n && a->why_not && !done[i]; j++) {
            const Row *r = &rows->at[j];
            if (j > i && (done[j] || !r->why_not || strcmp(r->file, a->file) != 0 ||
                          strncmp(r->why_not, why, strlen(why)) != 0))
                continue;
            n++;
            differ |= strcmp(r->why_not, a->why_not) != 0;
            done[j] |= j > i;
            if (r->line == last || r->line == last + 1) {
                last = r->line;
                continue;
            }
            if (runs++ < 12)
                text_add(&lines, "%s%d..", runs > 1 ? " " : "", r->line);
            last = r->line;
        }
        if (n > 0)
            printf("  %5d  %s: %s%s: from lines %s%s\n", n, a->file, a->why_not,
                   differ ? ", .." : "", str_of(lines.at, lines.n),
                   runs > 12 ? " and more (--left-out)" : "");
    }
}

static void print_left_out(const Rows *rows)
{
    for (int i = 0; i < rows->n; i++)
        if (rows->at[i].why_not)
            printf("%s:%d: %s\n", rows->at[i].file, rows->at[i].line, rows->at[i].why_not);
}

/* ---- fitting ---------------------------------------------------------------------- */

static const struct { const char *name; size_t at; int n; double most; } constants[] = {
#define C(field, n, most) { #field, offsetof(Reach, field), n, most }
    C(top, 1, 0.95), C(deep, 1, 1e3), C(tail, 1, 2), C(wave, 1, 1), C(stream, 1, 0.95),
    C(flash, 1, 0.75), C(flash_back, 1, 0.75), C(call, 1, 1e-3), C(link, 3, 0.95),
    C(port, 1, 0.95), C(send, 1, 0.95),
#undef C
};
enum { NCONSTANTS = sizeof constants / sizeof *constants };

static double *constant(Reach *r, int i)
{
    return (double *)(void *)((char *)r + constants[i].at);
}

static double scale(Reach *r, int i, double by)
{
    double most = 0;
    for (int j = 0; j < constants[i].n; j++) {
        double *at = constant(r, i) + j;
        *at *= by;
        most = fmax(most, *at);
    }
    return most;
}

/* Mean over sets of the mean |log error| on rows for fitting. */
static double loss(Rows *rows, const char *arch)
{
    Words names = set_names(rows);
    double sum = 0, sets = 0;
    for (int k = 0; k < names.n; k++) {
        double off = 0, n = 0;
        for (int i = 0; i < rows->n; i++) {
            Row *r = &rows->at[i];
            if (r->why_not || r->set != names.at[k] || !r->trains || !is_time(r) ||
                strcmp(machine_of(r->machine)->arch, arch) != 0)
                continue;
            predict(r);
            off += fabs(log(r->predicted / r->measured));
            n++;
        }
        if (n > 0) {
            sum += off / n;
            sets++;
        }
    }
    return sets > 0 ? sum / sets : 0;
}

static double dice(void)                // -1 .. 1; the same every time
{
    static uint64_t seed = 1;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 33) / (1u << 30) - 1;
}

/* Several constants at a time, by steps that shrink; what is better is kept. */
static void fit(Rows *rows, const char *arch)
{
    Reach *r = reach_of(arch);
    double best = loss(rows, arch);
    for (int i = 0; i < 6000; i++) {
        Reach old = *r;
        double step = 0.4 * exp(-i / 1500.0);
        bool inside = true;
        for (int k = 0; k < NCONSTANTS; k++)
            if (dice() > 0.2)
                inside &= scale(r, k, exp(step * dice())) <= constants[k].most;
        double now = inside ? loss(rows, arch) : INFINITY;
        if (now < best)
            best = now;
        else
            *r = old;
    }
    printf("%s: mean error %.4f\n   ", arch, best);
    for (int i = 0; i < NCONSTANTS; i++) {
        printf(" .%s =%s", constants[i].name, constants[i].n > 1 ? " {" : "");
        for (int j = 0; j < constants[i].n; j++)
            printf("%s %.3g", j ? "," : "", constant(r, i)[j]);
        printf("%s", constants[i].n > 1 ? " }," : ",");
    }
    putchar('\n');
}

/* ---- all of it ----------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void read_folder(Rows *rows, const char *folder)
{
    Words files = { 0 };
    DIR *d = opendir(folder);
    if (d == NULL)
        die(EXIT_USAGE, "cannot read %s", folder);
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".csv"))
            vec_add(&files, str_fmt("%s/%s", folder, e->d_name));
    closedir(d);
    qsort(files.at, (size_t)files.n, sizeof *files.at, by_name);
    for (int i = 0; i < files.n; i++)
        rows_read(rows, files.at[i]);
}

/* A run that says its time in several units counts once. */
static void drop_repeated(Rows *rows)
{
    Map *known = map_new();
    for (int i = 0; i < rows->n; i++) {
        Row *r = &rows->at[i];
        if (r->why_not)
            continue;
        const char *key = str_fmt("%d %s %s", r->seen, r->file, r->config);
        int before = map_get(known, key);
        if (before >= 0 && rows->at[before].line < r->line &&
            strncmp(r->file, "vtrain", 6) != 0)
            r->why_not = str_fmt("the same run as line %d", rows->at[before].line);
        else
            map_put(known, key, i);
    }
}

int main(int argc, char **argv)
{
    Rows rows = { 0 };
    int at = 1;
    for (; at < argc && argv[at][0] != '-'; at++)
        read_folder(&rows, argv[at]);
    if (at == 1)
        die(EXIT_USAGE, "usage: predict FOLDER.. [--rows WORD | --sweeps [WORD] | --left-out | "
                        "--own [WORD] | --table | --fit ARCH..]");
    drop_repeated(&rows);
    const char *what = at < argc ? argv[at] : "", *word = at + 1 < argc ? argv[at + 1] : "";
    for (int i = at + 1; i < argc && strcmp(what, "--fit") == 0; i++)
        fit(&rows, argv[i]);
    for (int i = 0; i < rows.n; i++)
        if (!rows.at[i].why_not)
            predict(&rows.at[i]);
    if (strcmp(what, "--rows") == 0)
        print_rows(&rows, word);
    else if (strcmp(what, "--sweeps") == 0)
        print_sweeps(&rows, word);
    else if (strcmp(what, "--left-out") == 0)
        print_left_out(&rows);
    else if (strcmp(what, "--table") == 0)
        print_c(&rows);
    else if (strcmp(what, "--own") == 0)
        print_own(&rows, word);
    else {
        print_table(&rows);
        print_own(&rows, "");
        print_reasons(&rows);
    }
    return 0;
}
