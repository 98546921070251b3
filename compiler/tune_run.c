/*
 * tune_run.c - `teracube tune`: what was asked for, the search, and what becomes of the best:
 * the page, JSON, a plan block in a file.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options.h"
#include "tune_print.h"

Plan *tune_open(const Config *c)
{
    Plan *p = plan_new(c);
    graph_build(p);
    if (diag_errors())
        return NULL;
    mesh_open(p, tune_devices(c));
    fuse_linears(p);
    autodiff_add(p);
    arena_reset(scratch);
    return diag_errors() ? NULL : p;
}

static void objective_of(const Options *o, TuneAsk *ask)
{
    for (int i = 0; o->objective && i < OBJECTIVES; i++)
        if (strcmp(o->objective, objective_word[i]) == 0) {
            ask->objective = i;
            return;
        }
    if (o->objective) {
        const char *near = str_nearest(o->objective, objective_word, OBJECTIVES);
        die(EXIT_USAGE, "--objective is time, memory or cost, not `%s`%s", o->objective,
            near ? str_fmt("; did you mean %s?", near) : "");
    }
}

/* Seconds; a budget that leaves no time is no search. */
static double budget_of(const char *text)
{
    char *end;
    if (text == NULL)
        return 0;
    double s = strtod(text, &end);
    if (*end == 's' && end[1] == 0)
        end++;
    if (end == text || *end || !isfinite(s) || s < 0)
        die(EXIT_USAGE, "--budget takes seconds, such as 10 or 0.5, not `%s`", text);
    if (s == 0)
        die(EXIT_USAGE, "a budget of 0 seconds leaves no time to look at a single layout; without "
            "--budget the search ends when nothing can win any more");
    return s;
}

static void check_price(const Config *c)
{
    const Device *d = c->has_cluster && c->cluster.device >= 0
                    ? &c->devices.at[c->cluster.device] : NULL;
    if (d == NULL)
        die(EXIT_USAGE, "--objective cost needs a cluster whose device has a price");
    if (d->price.v > 0)
        return;
    diag_error(d->loc, "price", "device %s has no price, and --objective cost needs one", d->name);
    diag_hint("write price = 2.5, for example: of one device and hour, in any currency");
}

static void check_options(const Options *o)
{
    if (o->emit > 0 && o->output == NULL)
        die(EXIT_USAGE, "--emit needs -o DIR");
    if (o->emit == 0 && o->output)
        die(EXIT_USAGE, "tune writes folders with --emit K -o DIR, its plan block with --write "
            "FILE");
    if ((o->emit > 0) + (o->results != NULL) + (o->why_not != NULL) > 1)
        die(EXIT_USAGE, "--emit, --results and --why-not exclude each other");
    if (o->why_not && (o->write || o->top))
        die(EXIT_USAGE, "--why-not is about two layouts; it takes no %s", o->top ? "--top"
            : "--write");
    if (o->results && (o->top || o->budget || o->objective))
        die(EXIT_USAGE, "--results searches nothing; it takes no %s", o->top ? "--top"
            : o->budget ? "--budget" : "--objective");
    if (o->json && (o->results || o->why_not))
        die(EXIT_USAGE, "--json is of the list of the best, not of %s", o->results ? "--results"
            : "--why-not");
}

/* Is it a block that --write wrote, and nothing else? */
static bool is_own_block(const char *s)
{
    const char *end = strchr(s, '}');
    s += strspn(s, " \t\r\n");
    while (*s == '#') {
        s += strcspn(s, "\n");
        s += strspn(s, " \t\r\n");
    }
    return strncmp(s, "plan {", 6) == 0 && strstr(s, "# tuned for ") && end &&
           end[1 + strspn(end + 1, " \t\r\n")] == 0;
}

/* Before the search: --write replaces what it wrote, and no other file. */
static void check_write(const char *path)
{
    struct stat st;
    char text[1 << 14];
    if (path == NULL || stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return;
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    if (st.st_size != (off_t)n || !is_own_block(text))
        die(EXIT_USAGE, "--write %s: there is a file of that name, and more in it than a plan that "
            "tune wrote; name another, or remove it", path);
}

static TuneAsk ask_of(const Options *o)
{
    int top = o->top ? o->top : 5;
    TuneAsk ask = { .top = top > o->emit ? top : o->emit, .budget_s = budget_of(o->budget),
                    .turns_only = o->turns_only };
    objective_of(o, &ask);
    return ask;
}

/* Whole or not at all: a regular file is replaced when the new one is complete. */
void tune_write_block(const Tune *t, const Plan *p, const char *path)
{
    struct stat st;
    char *real = realpath(path, NULL);
    const char *to = real ? real : path;
    bool other = lstat(to, &st) == 0 && !S_ISREG(st.st_mode);   // a link: to nothing yet
    const char *fresh = other ? to : str_fmt("%s.part", to);
    FILE *f = fopen(fresh, "w");
    if (f)
        tune_print_block(t, p, f);
    if (f == NULL || (ferror(f) | fclose(f)) || (!other && rename(fresh, to) != 0)) {
        int why = errno;
        if (f && !other)
            unlink(fresh);
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(why));
    }
    free(real);
}

int command_tune(Compile *c)
{
    TuneAsk ask = ask_of(c->o);
    check_options(c->o);
    check_write(c->o->write);
    if (c->o->results)
        return tune_results(c);
    if (ask.objective == TUNE_COST)
        check_price(c->config);
    if (c->o->why_not)
        return diag_errors() ? EXIT_INPUT : tune_why_not(c, &ask);
    Tune *t = diag_errors() ? NULL : tune_all(c->config, &ask);
    if (t == NULL)
        return EXIT_INPUT;
    TunePage page = tune_page(t);
    if (c->o->json)
        tune_print_json(&page, stdout);
    else
        tune_print(&page, stdout);
    if (c->o->write && t->best.n)
        tune_write_block(t, page.at[0].plan, c->o->write);
    if (t->best.n == 0) {
        tune_report_none(t);
        return EXIT_INPUT;
    }
    return c->o->emit ? tune_emit(c, &page) : EXIT_FINE;
}
