/*
 * tune_results.c - `teracube tune --results DIR`: the layouts of `--emit` ranked by what they
 * measured, those that failed with their reason, and the price list that fits them best.
 *
 * The fit: a step is a * compute + b * communication, its waiting shared out in proportion;
 * a and b minimise the sum of squares of (predicted / measured - 1). A log that cannot be read, or
 * is of another plan, model or batch, is a failure like a run's: the others are ranked.
 */
#include <errno.h>
#include <unistd.h>

#include "measured.h"
#include "options.h"
#include "tune_print.h"

typedef struct {
    int number;                     // its folder
    Plan *plan; Candidate is;
    double measured_s;
    const char *failed;             // why there is no measurement, or NULL
} Result;
typedef VEC(Result) Results;

/* ---- reading ------------------------------------------------------------------------------ */

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    Text t = { 0 };
    char part[4096];
    size_t n;
    if (f == NULL)
        return NULL;
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        text_bytes(&t, part, n);
    fclose(f);
    text_bytes(&t, "", 1);
    return t.at;
}

static const char *first_line(const char *s) { return str_of(s, strcspn(s, "\n")); }

/* The line of `said` that speaks of an error, else its last. */
static const char *reason_of(const char *said)
{
    const char *last = NULL;
    for (const char *s = said; s && *s;) {
        size_t n = strcspn(s, "\n");
        const char *line = str_of(s, n);
        if (strstr(line, "error") || strstr(line, "out of memory") || strstr(line, "Error"))
            return line;
        if (n && strncmp(line, "make", 4))
            last = line;
        s += n + (s[n] == '\n');
    }
    return last ? last : "it said nothing";
}

static int by_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of a log's steps; the first quarter warms up. */
static double median(const Measured *m)
{
    int skip = m->step_s.n / 4, n = m->step_s.n - skip;
    double *s = NEWN(double, n);
    memcpy(s, m->step_s.at + skip, sizeof *s * (size_t)n);
    qsort(s, (size_t)n, sizeof *s, by_seconds);
    return n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
}

static void read_run(const char *dir, Result *r)
{
    const char *log = str_fmt("%s/log.jsonl", dir);
    const char *failed = read_file(str_fmt("%s/failed", dir));
    const char *status = read_file(str_fmt("%s/status", dir));
    if (failed)
        r->failed = str_fmt("could not be written: %s", first_line(failed));
    else if (status == NULL)
        r->failed = "was not run";
    else if (strcmp(first_line(status), "0"))
        r->failed = str_fmt("status %s: %s", first_line(status),
                            reason_of(read_file(str_fmt("%s/said", dir))));
    else if (access(log, R_OK) != 0)
        r->failed = "left no log";
    if (r->failed)
        return;
    const char *why = NULL, *hint;
    Measured *m = measured_read(&log, 1, &why);
    r->failed = m ? measured_mismatch(m, r->plan, &hint) : why;
    if (r->failed == NULL)
        r->measured_s = median(m);
}

static const Config *config_with(const Options *o, const char *name, const char *settings)
{
    Inputs in = o->in;
    in.more = name;
    in.from = in.nsets;
    VEC(const char *) sets = { 0 };
    for (int i = 0; i < in.nsets; i++)
        vec_add(&sets, in.sets[i]);
    for (const char *s = settings; *s;) {
        size_t n = strcspn(s, "\n");
        const char *set = str_of(s, n);
        if (n)
            vec_add(&sets, set);
        s += n + (s[n] == '\n');
    }
    in.sets = sets.at;
    in.nsets = sets.n;
    return config_of(o, &in);
}

/* Prices a layout; false: errors were reported. */
static bool predict(const Config *c, Result *r)
{
    Plan *p = tune_open(c);
    if (p == NULL)
        return false;
    mesh_choose(p);
    p->pipeline = diag_errors() ? NULL : pipeline_plan(p, false, false, false);
    if (p->pipeline == NULL)
        return false;
    tune_settle(p);
    Estimator *e = estimator_new(p, false);
    r->plan = p;
    r->is.at = point_of(p);
    estimate(e, &r->is.at, &r->is.is);
    arena_reset(scratch);
    return true;
}

static bool read_results(const Options *o, const char *dir, Results *out)
{
    for (int i = 1; ; i++) {
        const char *sub = str_fmt("%s/%d", dir, i);
        const char *path = str_fmt("%s/settings", sub), *settings = read_file(path);
        if (settings == NULL)
            break;
        Result r = { .number = i };
        const Config *c = config_with(o, str_fmt("--results %s", path), settings);
        if (c == NULL || !predict(c, &r)) {
            diag_note((Loc){ 0, 0 }, "this is %s, a layout that was written for other files", path);
            return false;
        }
        read_run(sub, &r);
        vec_add(out, r);
    }
    if (out->n == 0)
        die(EXIT_USAGE, "%s has no layouts: `teracube tune ... --emit K -o %s` writes them", dir,
            dir);
    return true;
}

/* ---- the fit ------------------------------------------------------------------------------ */

typedef struct { double compute, exchange; int n; double before, after; } Fit;

/* Compute and communication of a step, each with its share of the waiting. */
static void halves(const Estimate *e, double *c, double *m)
{
    const double *p = e->part;
    *c = p[PART_COMPUTE] + p[PART_RECOMPUTE] + p[PART_OPTIMIZER];
    *m = p[PART_X] + p[PART_Y] + p[PART_Z] + p[PART_PIPELINE] + p[PART_DATA];
    double share = *c + *m > 0 ? *c / (*c + *m) : 1;
    *c += p[PART_BUBBLE] * share;
    *m += p[PART_BUBBLE] * (1 - share);
}

static Fit fit_of(const Results *all)
{
    Fit f = { 1, 1, 0, 0, 0 };
    double cc = 0, cm = 0, mm = 0, c1 = 0, m1 = 0;
    for (int i = 0; i < all->n; i++) {
        double c, m, y = all->at[i].measured_s;
        if (all->at[i].failed)
            continue;
        halves(&all->at[i].is.is, &c, &m);
        cc += c * c / y / y, cm += c * m / y / y, mm += m * m / y / y;
        c1 += c / y, m1 += m / y;
        f.before += fabs(all->at[i].is.is.step_s / y - 1);
        f.n++;
    }
    double det = cc * mm - cm * cm;
    if (f.n > 0 && c1 > cm)
        f.compute = (c1 - cm) / cc;     // with little communication, compute alone
    if (f.n > 1 && det > 1e-6 * cc * mm) {
        double a = (c1 * mm - m1 * cm) / det, b = (m1 * cc - c1 * cm) / det;
        if (a > 0 && b > 0)
            f.compute = a, f.exchange = b;
    }
    for (int i = 0; i < all->n; i++) {
        double c, m;
        if (all->at[i].failed)
            continue;
        halves(&all->at[i].is.is, &c, &m);
        f.after += fabs((f.compute * c + f.exchange * m) / all->at[i].measured_s - 1);
    }
    if (f.n)
        f.before /= f.n, f.after /= f.n;
    return f;
}

static const char *rate_text(double v, const char *unit, double scale)
{
    return str_fmt("%.4g %s", v / scale, unit);
}

/* The price list with the fit's factors, as settings: one a line, as run.sh's are. */
static void write_prices(const Plan *p, const Fit *f, const char *path, FILE *out)
{
    const Config *c = p->config;
    Text t = { 0 };
    if (!c->has_cluster || c->cluster.device < 0 || c->devices.at[c->cluster.device].rates) {
        fprintf(out, "            measure this machine again: teracube profile\n");
        return;
    }
    const Device *d = &c->devices.at[c->cluster.device];
    const Cluster *k = &c->cluster;
    const struct { const char *key; Num n; } rate[] = { { "matrix", d->matrix },
        { "matrix_fp8", d->matrix_fp8 }, { "matrix_fp32", d->matrix_fp32 },
        { "matrix_fp64", d->matrix_fp64 }, { "vector", d->vector } };
    for (int i = 0; i < 5; i++)
        if (rate[i].n.set)
            text_add(&t, "device.%s.%s=%s\n", d->name, rate[i].key,
                     rate_text(rate[i].n.v / f->compute, "TFLOP/s", 1e12));
    if (d->bandwidth.set)
        text_add(&t, "device.%s.bandwidth=%s\n", d->name,
                 rate_text(d->bandwidth.v / f->compute, "GB/s", 1e9));
    if (k->link_rate.set)
        text_add(&t, "cluster.link=%s, %.4g us\n",
                 rate_text(k->link_rate.v / f->exchange, "GB/s", 1e9),
                 k->link_latency.v * f->exchange * 1e6);
    if (k->network_rate.set)
        text_add(&t, "cluster.network=%s, %.4g us\n",
                 rate_text(k->network_rate.v / f->exchange, "GB/s", 1e9),
                 k->network_latency.v * f->exchange * 1e6);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(errno));
    fwrite(t.at, 1, t.n, file);
    if (ferror(file) | fclose(file))
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(errno));
    fprintf(out, "            %s has the price list that fits, as settings (--set)\n", path);
}

/* Factors that bring the prediction no nearer are none. */
static void print_prices(const Plan *p, const Fit *f, const char *path, FILE *out)
{
    if (f->after >= f->before) {
        fprintf(out, "  prices    mean error %.1f %%; no factors of compute and communication make "
                "it less\n", 100 * f->before);
        unlink(path);                   // an earlier fit's
        return;
    }
    fprintf(out, "  prices    compute takes %.3g times what is priced, communication %.3g times: "
            "mean error %.1f %%,\n            with these factors %.1f %%\n", f->compute,
            f->exchange, 100 * f->before, 100 * f->after);
    write_prices(p, f, path, out);
}

/* ---- the page ----------------------------------------------------------------------------- */

static int by_measured(const void *a, const void *b)
{
    const Result *x = a, *y = b;
    if (!x->failed != !y->failed)
        return x->failed ? 1 : -1;
    if (x->measured_s != y->measured_s)
        return x->measured_s < y->measured_s ? -1 : 1;
    return x->number - y->number;
}

/* Places from 0 on; those that are equal share theirs. */
static void places(const Results *all, int n, bool measured, double *out)
{
    for (int i = 0; i < n; i++) {
        double v = measured ? all->at[i].measured_s : all->at[i].is.is.step_s;
        out[i] = -0.5;
        for (int k = 0; k < n; k++) {
            double u = measured ? all->at[k].measured_s : all->at[k].is.is.step_s;
            out[i] += u < v ? 1 : u == v ? 0.5 : 0;
        }
    }
}

/* Spearman's, of the places measured and predicted; NAN where one of them is no order. */
static double correlation(const Results *all, int n)
{
    double *a = NEWN(double, n), *b = NEWN(double, n), mean = (n - 1) / 2.0;
    double aa = 0, ab = 0, bb = 0;
    places(all, n, true, a);
    places(all, n, false, b);
    for (int i = 0; i < n; i++) {
        aa += (a[i] - mean) * (a[i] - mean);
        ab += (a[i] - mean) * (b[i] - mean);
        bb += (b[i] - mean) * (b[i] - mean);
    }
    return ab / sqrt(aa * bb);
}

static void print_results(const Results *all, int measured, FILE *f)
{
    Table t = { .align = "rrrrrl" };
    static const char *const head[] = { "", "folder", "measured", "predicted", "off by", "layout" };
    for (int i = 0; i < 6; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i < measured; i++) {
        const Result *r = &all->at[i];
        table_cell(&t, "%d", i + 1);
        table_cell(&t, "%d", r->number);
        table_cell(&t, "%s", str_seconds(r->measured_s));
        table_cell(&t, "%s", str_seconds(r->is.is.step_s));
        table_cell(&t, "%+.1f %%", 100 * (r->is.is.step_s / r->measured_s - 1));
        table_cell(&t, "%s", tune_line(&r->is.at));
    }
    if (measured) {
        print_heading(f, "by what was measured: the median step");
        table_print(&t, f);
    }
    if (measured < all->n)
        print_heading(f, "not measured");
    for (int i = measured; i < all->n; i++)
        fprintf(f, "  %3d  %s\n       %s\n", all->at[i].number, tune_line(&all->at[i].is.at),
                all->at[i].failed);
}

int tune_results(const Compile *c)
{
    const char *dir = c->o->results;
    Results all = { 0 };
    int measured = 0;
    if (!read_results(c->o, dir, &all))
        return EXIT_INPUT;
    qsort(all.at, (size_t)all.n, sizeof *all.at, by_measured);
    while (measured < all.n && all.at[measured].failed == NULL)
        measured++;
    printf("%s: %d of %s measured\n", dir, measured, plural(all.n, "layout"));
    if (measured) {
        const Result *w = &all.at[0];
        printf("  best      %s\n            %s measured, %s predicted; folder %d\n",
               tune_line(&w->is.at), str_seconds(w->measured_s), str_seconds(w->is.is.step_s),
               w->number);
        Fit f = fit_of(&all);
        double order = correlation(&all, measured);
        if (isfinite(order))
            printf("  order     rank correlation %.2f with the predicted one\n", order);
        print_prices(w->plan, &f, str_fmt("%s/prices", dir), stdout);
    }
    print_results(&all, measured, stdout);
    if (measured == 0)
        return EXIT_FINE;
    Tune like = { .plan = all.at[0].plan };
    printf("\n");
    tune_print_block(&like, all.at[0].plan, stdout);
    if (c->o->write)
        tune_write_block(&like, all.at[0].plan, c->o->write);
    return EXIT_FINE;
}
