/*
 * main.c - the story of a compile: options, the pass table, the loop over it.
 *
 *     text -> ast -> plan, filled in by passes -> printed | run | built
 */
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options.h"
#include "predict.h"
#include "rt.h"

/* ---- passes ------------------------------------------------------------------ */

typedef struct {
    const char *name;
    void (*run)(Plan *p);
    bool verified;              // verify_plan can look at the plan afterwards
    void (*print)(const Plan *p, FILE *f);      // -d NAME
    const char *gives;
} Pass;

static const Pass passes[] = {
/*    name         function          verify  print        gives (each needs the ones above) */
    { "graph",     graph_build,      true,   print_graph, "operators in program order" },
    { "mesh",      mesh_choose,      true,   print_graph, "sizes of the axes, choices" },
    { "fuse",      fuse_linears,     true,   print_graph, "linears that share an input" },
    { "autodiff",  autodiff_add,     true,   print_graph, "the backward operators" },
    { "slice",     slice_choose,     true,   print_graph, "stages, microbatches, token slices" },
    { "partition", partition_choose, true,   print_insts, "layouts, collectives, instructions" },
    { "memory",    memory_place,     true,   print_memory, "offsets in one block" },
};
enum { NPASSES = sizeof passes / sizeof *passes };

static bool asked(const char *list, const char *word)   // is `word` in "a,b,c" or is it all
{
    size_t n = strlen(word);
    for (const char *s = list; s && *s; s += strcspn(s, ","), s += *s == ',') {
        size_t len = strcspn(s, ",");
        if ((len == n && memcmp(s, word, n) == 0) || (len == 3 && memcmp(s, "all", 3) == 0))
            return true;
    }
    return false;
}

/* What partition refuses is priced without it. */
static bool needs_paper(const Plan *p) { return p->is.refused != NULL; }

/* Partition places the blocks to see what fits: then `memory` finds nothing to do. */
static bool is_placed(const Plan *p)
{
    bool all = true;
    for (int r = 0; r < p->is.stages; r++)
        all &= plan_stage(p, r)->placed;
    return all;
}

const Config *config_of(const Options *o, const Inputs *in)
{
    Ast *ast = parse_files(in);
    if (asked(o->dump, "parse"))
        print_ast(ast, stderr);
    const Config *c = diag_errors() ? NULL : config_read(ast, in);
    return diag_errors() ? NULL : c;
}

bool compile_to(Compile *c, const char *last)
{
    Plan *p = c->plan = plan_new(c->config);
    p->is.workers = c->workers ? c->workers : c->o->threads;
    for (int i = 0; i < NPASSES; i++) {
        double t = now_s();
        bool changes = passes[i].run != memory_place || !is_placed(p);
        passes[i].run(p);
        arena_reset(scratch);
        if (c->o->time)
            fprintf(stderr, "%-10s %8.3f ms\n", passes[i].name, (now_s() - t) * 1e3);
        if (asked(c->o->dump, passes[i].name)) {
            fprintf(stderr, "== after %s\n", passes[i].name);
            passes[i].print(p, stderr);
        }
        if (diag_errors())
            return false;
        if (passes[i].run == mesh_choose)
            plan_check_hash(p);
        if (passes[i].verified && changes && verify_plan(p, passes[i].name, stderr))
            bug("the plan does not hold together after %s", passes[i].name);
        if (passes[i].run == partition_choose && p->pipeline)
            pipeline_settle(p);
        if (strcmp(passes[i].name, last) == 0)
            return true;
        if (strcmp(passes[i].name, "autodiff") == 0 && c->priced) {
            if (c->on_paper || needs_paper(p))
                return true;
            bool known = c->config->has_cluster || c->config->here || c->assumes;
            if (known && !p->is.refused && p->is.stages == 1)
                p->pipeline = pipeline_plan(p, false, c->o->blocking, false);
        }
        if (c->o->stop && strcmp(passes[i].name, c->o->stop) == 0)
            exit(EXIT_FINE);
    }
    return true;
}

bool compile_priced(Compile *c)
{
    c->priced = c->assumes = true;
    if (!compile_to(c, "memory"))
        return false;
    if (needs_paper(c->plan))
        c->plan->pipeline = pipeline_plan(c->plan, c->o->turns_only, c->o->blocking, true);
    return c->plan->pipeline != NULL;
}

/* ---- commands ------------------------------------------------------------------- */

int command_check(Compile *c)
{
    if (!compile_to(c, "autodiff"))
        return EXIT_INPUT;
    if (c->plan->is.refused == NULL) {
        slice_choose(c->plan);
        if (!diag_errors())
            partition_choose(c->plan);
        if (diag_errors())
            return EXIT_INPUT;
    }
    if (!c->o->quiet)
        printf("%s: no errors\n", c->plan->model_name);
    return EXIT_FINE;
}

/* Pipelines and what belongs to them are planned, not lowered; see pipeline.c. */
static bool is_asked(const Compile *c, const char *word)
{
    return c->o->explain && strcmp(c->o->explain, word) == 0;
}

static int plan_on_paper(Compile *c)
{
    Pipeline *q = pipeline_plan(c->plan, c->o->turns_only, c->o->blocking, true);
    if (q == NULL)
        return EXIT_INPUT;
    c->plan->pipeline = q;
    if (whatif_asked(c->o)) {
        whatif_print(c, q, stdout);
        return EXIT_FINE;
    }
    if (c->o->trace && !simulate_trace(&q->sim, &q->schedule, c->o->trace))
        die(EXIT_WORLD, "could not write %s: %s", c->o->trace, strerror(errno));
    if (c->o->json)
        print_json(c->plan, c->o->schedule, stdout);
    else if (is_asked(c, "slice"))
        print_slices(q, stdout);
    else if (is_asked(c, "schedule"))
        print_schedule(q, stdout);
    else
        print_pipeline(q, stdout);
    return EXIT_FINE;
}

int command_simulate(Compile *c)
{
    if (!compile_to(c, "autodiff"))
        return EXIT_INPUT;
    return plan_on_paper(c);
}

int command_plan(Compile *c)
{
    if (is_asked(c, "tune"))
        return tune_explain(c);
    c->priced = true;
    c->on_paper = is_asked(c, "slice") || is_asked(c, "schedule") || c->o->turns_only;
    if (!compile_to(c, "memory"))
        return EXIT_INPUT;
    if (c->on_paper || needs_paper(c->plan))
        return plan_on_paper(c);
    if (c->o->explain && strcmp(c->o->explain, "partition") == 0)
        print_insts(c->plan, stdout);
    else if (c->o->json)
        print_json(c->plan, c->o->schedule, stdout);
    else
        print_page(c->plan, stdout);
    return EXIT_FINE;
}

typedef struct { const char *name, *takes; int (*run)(Compile *c); const char *what; } Command;
static const Command commands[] = {
    { "check",    "FILE...", command_check, "errors and warnings only" },
    { "plan",     "FILE...", command_plan,
      "the resolved plan: layouts, collectives, memory (--json)" },
    { "simulate", "FILE...", command_simulate,
      "predicted step (--trace F --slow rank=N:F --network F)" },
    { "tune",     "FILE...", command_tune,
      "the best layouts of the cluster (--top N; --objective; --write F)" },
    { "verify",   "FILE...", command_verify, "static checks, then a step against the reference" },
    { "run",      "FILE...", command_run,
      "train here (--steps --load --save --log --threads --reference)" },
    { "emit",     "FILE...", command_emit,
      "a CUDA program to read and build (--target cuda -o DIR)" },
    { "build",    "FILE...", command_build, "an executable (--target cpu|cuda -o EXE)" },
    { "diff",     "A B | [COMMON... --] A... -- B...", command_diff,
      "two plans side by side: A B, or -- between sides (--json)" },
    { "compare",  "FILE... RUN", command_compare,
      "predicted against a run: FILE... its log, trace or both" },
    { "profile",  "[FILE...]", command_profile,
      "measure this machine (-o F); a cluster (FILE --target T -o DIR)" },
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

/* The exit status, once all output is written. */
static int finish(int status)
{
    if (fflush(stdout) || ferror(stdout))
        die(EXIT_WORLD, "could not write the output");
    return status;
}

/* ---- options --------------------------------------------------------------------- */

/* `of`: the commands that take it; NULL: all. `value`: what stands behind it; NULL: nothing. */
typedef struct {
    const char *name; bool *flag; const char **text; const char *of, *value, *what;
} Option;
typedef struct { const char *top, *emit, *steps, *threads, *seed, *set, *slow; } Raw;
enum { MOST_OPTIONS = 48 };
typedef VEC(const char *) Words;

/* Every option, and where its value goes. */
static int option_list(Options *o, Raw *r, Option *out)
{
    const Option list[] = {
        { "--top", NULL, &r->top, "tune", "N", "the best N (5)" },
        { "--objective", NULL, &o->objective, "tune", "O", "of what: time, memory or cost" },
        { "--budget", NULL, &o->budget, "tune", "S", "seconds at most" },
        { "--write", NULL, &o->write, "tune", "F", "the best's plan block as a file" },
        { "--why-not", NULL, &o->why_not, "tune", "PINS",
          "why 'cube=[2,2,2], pipeline=8' does not win" },
        { "--emit", NULL, &r->emit, "tune", "K", "the best K as folders of -o that build and run" },
        { "--results", NULL, &o->results, "tune", "DIR", "what the folders of --emit measured" },
        { "--explain", NULL, &o->explain, "plan,simulate", "WHAT",
          "slice or schedule; plan: partition or tune too" },
        { "--slow", NULL, &r->slow, "simulate", "rank=N:F",
          "rank N (or node=N) computes F times as long" },
        { "--network", NULL, &o->network, "simulate", "F", "F times the network's rate" },
        { "--link", NULL, &o->link, "simulate", "F", "F times the rate inside of nodes" },
        { "--target", NULL, &o->target, "build,emit,run,tune,profile", "T", "cpu or cuda" },
        { "--arch", NULL, &o->arch, "build,emit,run,profile", "A", "GPUs of this kind: sm_90" },
        { "-o", NULL, &o->output, "build,emit,profile,tune", "F", "the file or folder to write" },
        { "--steps", NULL, &r->steps, "run,verify", "N", "steps in all" },
        { "--threads", NULL, &r->threads, "plan,simulate,verify,run,build", "N",
          "threads of all ranks together" },
        { "--load", NULL, &o->load, "run", "F", "parameters to begin with" },
        { "--save", NULL, &o->save, "run", "F", "parameters at the end" },
        { "--resume", NULL, &o->resume, "run", "DIR", "go on with a checkpoint" },
        { "--log", NULL, &o->log, "run", "F", "a line of JSON for each step" },
        { "--trace", NULL, &o->trace, "run,simulate", "F", "events for ui.perfetto.dev" },
        { "--reference", &o->reference, NULL, "run", NULL, "with the slow interpreter" },
        { "--small", &o->is_small, NULL, "verify", NULL, "a smaller model of the same kind" },
        { "--full", &o->is_full, NULL, "verify", NULL, "the model as it is" },
        { "--static", &o->is_static, NULL, "verify", NULL, "nothing is executed" },
        { "--quick", &o->is_quick, NULL, "profile", NULL, "fewer figures, in a minute" },
        { "--json", &o->json, NULL, "plan,simulate,diff,compare,tune", NULL, "for tools" },
        { "--schedule", &o->schedule, NULL, "plan,simulate", NULL, "--json with step tables" },
        { "--turns-only", &o->turns_only, NULL, "plan,simulate,diff,tune", NULL,
          "without embedding, head and loss" },
        { "--blocking", &o->blocking, NULL, "plan,simulate,diff", NULL,
          "sends hold up the stage that sends" },
        { "--set", NULL, &r->set, NULL, "KEY=VALUE", "any key of any section: plan.data=2" },
        { "--seed", NULL, &r->seed, NULL, "N", "train.seed" },
        { "--plan", NULL, &o->in.plan, NULL, "NAME", "of several plans" },
        { "--cluster", NULL, &o->in.cluster, NULL, "NAME", "of several clusters" },
        { "-d", NULL, &o->dump, NULL, "PASS,..", "print the plan after passes" },
        { "--stop", NULL, &o->stop, NULL, "PASS", "end behind a pass" },
        { "--time", &o->time, NULL, NULL, NULL, "seconds of each pass" },
        { "-q", &o->quiet, NULL, NULL, NULL, "only what is wrong" },
        { "-v", &o->verbose, NULL, NULL, NULL, "more than usual" },
        { "-h", &o->help, NULL, NULL, NULL, NULL },
        { "--help", &o->help, NULL, NULL, NULL, "this; teracube COMMAND --help: of a command" },
    };
    enum { N = sizeof list / sizeof *list };
    _Static_assert((int)N <= (int)MOST_OPTIONS, "more options than there is room for");
    memcpy(out, list, sizeof list);
    return N;
}

/* Of one command, or NULL: of all. */
static void usage(const Command *c, FILE *f)
{
    Options o;
    Raw r;
    Option list[MOST_OPTIONS];
    int n = option_list(&o, &r, list);
    fprintf(f, "usage: teracube %s %s [options]\n\n", c ? c->name : "COMMAND",
            c ? c->takes : "FILE...");
    for (int i = 0; i < NCOMMANDS; i++)
        if (c == NULL || c == &commands[i])
            fprintf(f, "  %-8s %s\n", commands[i].name, commands[i].what);
    fprintf(f, "\noptions%s:\n", c ? "" : " of all commands");
    for (int i = 0; i < n; i++)
        if (list[i].what && (list[i].of == NULL || (c && asked(list[i].of, c->name))))
            fprintf(f, "  %-18s %s\n", list[i].value ? str_fmt("%s %s", list[i].name,
                    list[i].value) : list[i].name, list[i].what);
    fprintf(f, "  %-18s %s\n\npasses:  ", "--version", "of the compiler");
    for (int i = 0; i < NPASSES; i++)
        fprintf(f, " %s", passes[i].name);
    fprintf(f, " llvm\n");
}

static int64_t whole(const char *option, const char *s, int64_t least, int64_t most)
{
    errno = 0;
    long long n = strtoll(s, NULL, 10);
    if (*s == 0 || s[strspn(s, "0123456789")])
        die(EXIT_USAGE, "%s takes a whole number, not `%s`", option, s);
    if (errno || n > most)
        die(EXIT_USAGE, "%s takes a number up to %" PRId64 ", not `%s`", option, most, s);
    if (n < least)
        die(EXIT_USAGE, "%s takes a number from %" PRId64 " on, not `%s`", option, least, s);
    return n;
}

static bool is_command(const char *word)
{
    for (int i = 0; i < NCOMMANDS; i++)
        if (strcmp(commands[i].name, word) == 0)
            return true;
    return false;
}

static const char *value_of(int argc, char **argv, int *i)
{
    if (*i + 1 >= argc)
        die(EXIT_USAGE, "%s needs a value", argv[*i]);
    return argv[++*i];
}

static void read_option(Options *o, Words *sets, int argc, char **argv, int *i)
{
    Raw r = { 0 };
    Option list[MOST_OPTIONS];
    const char *names[MOST_OPTIONS];
    int count = option_list(o, &r, list);
    const char *word = argv[*i], *eq = strchr(word, '=');
    size_t n = eq && word[1] == '-' ? (size_t)(eq - word) : strlen(word);
    for (int k = 0; k < count; k++) {
        names[k] = list[k].name;
        if (strlen(list[k].name) != n || memcmp(list[k].name, word, n))
            continue;
        if (list[k].of && o->command && !asked(list[k].of, o->command) && is_command(o->command))
            die(EXIT_USAGE, "%s takes no %s", o->command, list[k].name);
        if (list[k].flag) {
            if (word[n])
                die(EXIT_USAGE, "%s takes no value", list[k].name);
            *list[k].flag = true;
            return;
        }
        *list[k].text = word[n] ? word + n + 1 : value_of(argc, argv, i);
        if (**list[k].text == 0)
            die(EXIT_USAGE, "%s needs a value", list[k].name);
        if (r.steps)
            o->steps = whole("--steps", r.steps, 0, INT64_C(1) << 40);
        if (r.top)
            o->top = (int)whole("--top", r.top, 1, 1000);
        if (r.emit)
            o->emit = (int)whole("--emit", r.emit, 1, 1000);
        if (r.threads)
            o->threads = (int)whole("--threads", r.threads, 0, 4096);
        if (r.seed)
            r.set = str_fmt("train.seed=%" PRId64,
                            whole("--seed", r.seed, 0, (INT64_C(1) << 53) - 1));
        if (r.set)
            vec_add(sets, r.set);
        if (r.slow)
            vec_add(&o->slow, r.slow);
        return;
    }
    const char *near = str_nearest(str_of(word, n), names, count);
    die(EXIT_USAGE, near ? "unknown option %s; did you mean %s?" : "unknown option %s", word, near);
}

static void read_options(Options *o, int argc, char **argv)
{
    Words files = { 0 }, sets = { 0 };
    bool plain = false;         // after "--"
    o->steps = -1;
    for (int i = 1; i < argc; i++) {
        bool splits = o->command && strcmp(o->command, "diff") == 0;
        if (splits && strcmp(argv[i], "--") == 0) {
            if (o->nsplits < (int)(sizeof o->split / sizeof *o->split))
                o->split[o->nsplits++] = (Place){ files.n, sets.n };
        } else if (!plain && strcmp(argv[i], "--") == 0)
            plain = true;
        else if (!plain && strcmp(argv[i], "--version") == 0) {
            printf("teracube 1\n");
            exit(finish(EXIT_FINE));
        } else if (!plain && argv[i][0] == '-' && argv[i][1])
            read_option(o, &sets, argc, argv, &i);
        else if (o->command == NULL)
            o->command = argv[i];
        else {
            if (files.n == 0)
                o->first.sets = sets.n;
            vec_add(&files, argv[i]);
        }
    }
    o->in.files = files.at;
    o->in.nfiles = files.n;
    o->in.sets = sets.at;
    o->in.nsets = sets.n;
}

static const Command *find_command(const Options *o)
{
    const char *names[NCOMMANDS];
    const Command *found = NULL;
    for (int i = 0; i < NCOMMANDS; i++) {
        names[i] = commands[i].name;
        if (o->command && strcmp(o->command, commands[i].name) == 0)
            found = &commands[i];
    }
    if (o->help || o->command == NULL) {
        usage(found, o->help ? stdout : stderr);
        exit(finish(o->help ? EXIT_FINE : EXIT_USAGE));
    }
    if (found)
        return found;
    const char *near = str_nearest(o->command, names, NCOMMANDS);
    die(EXIT_USAGE, near ? "unknown command `%s`; did you mean %s?" : "unknown command `%s`",
        o->command, near);
}

static void check_word(const char *word, const char *const *names, int n)
{
    for (int i = 0; word && i < n; i++)
        if (strcmp(names[i], word) == 0)
            return;
    const char *near = word ? str_nearest(word, names, n) : NULL;
    if (word)
        die(EXIT_USAGE, near ? "unknown pass `%s`; did you mean %s?" : "unknown pass `%s`", word,
            near);
}

static void check_words(const Options *o)
{
    const char *names[NPASSES + 4];
    int n = 0;
    for (; n < NPASSES; n++)
        names[n] = passes[n].name;
    check_word(o->stop, names, n);
    names[n++] = "llvm";
    names[n++] = "parse";
    names[n++] = "all";
    for (const char *p = o->dump; p && *p; p += strcspn(p, ","), p += *p == ',')
        check_word(str_of(p, strcspn(p, ",")), names, n);
    static const char *const explained[] = { "slice", "schedule", "partition", "tune" };
    const int nexplained = strcmp(o->command, "simulate") == 0 ? 2 : 4;
    bool explains = o->explain == NULL;
    for (int i = 0; i < nexplained; i++)
        explains |= o->explain && strcmp(o->explain, explained[i]) == 0;
    if (!explains)
        die(EXIT_USAGE, "--explain knows slice%s, not `%s`", nexplained == 4
            ? ", schedule, partition and tune" : " and schedule", o->explain);
    if (o->explain && o->json)
        die(EXIT_USAGE, "--json is of the whole plan, not of --explain %s", o->explain);
    if (o->is_small && o->is_full)
        die(EXIT_USAGE, "--small and --full exclude each other");
}

/* A slip of the command line must not cost the model: outputs are no inputs. */
static void keep_inputs(const Options *o)
{
    const char *const out[][2] = { { "-o", o->output }, { "--save", o->save }, { "--log", o->log },
                                   { "--trace", o->trace }, { "--write", o->write } };
    struct stat a, b;
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        for (int k = 0; out[i][1] && k < o->in.nfiles; k++)
            if (stat(out[i][1], &a) == 0 && stat(o->in.files[k], &b) == 0 &&
                a.st_dev == b.st_dev && a.st_ino == b.st_ino)
                die(EXIT_USAGE, "%s %s would overwrite the model file%s", out[i][0], out[i][1],
                    out[i][1] == o->write ? ": a plan goes into a file of its own, which is then "
                    "named beside the others" : "");
}

int main(int argc, char **argv)
{
    rt_guard_files();
    Options o = { 0 };
    Compile c = { .o = &o, .start = now_s() };
    read_options(&o, argc, argv);
    const Command *command = find_command(&o);
    check_words(&o);
    o.in.many_plans = command->run == command_tune;
    o.in.no_profiles = command->run == command_profile;     // it is about to write them
    if (o.in.nfiles == 0 && !o.in.no_profiles)
        die(EXIT_USAGE, "%s needs a model file", o.command);
    keep_inputs(&o);
    bool reads = command->run == command_diff || command->run == command_compare;
    if (!reads)                                 // these read their files themselves
        c.config = config_of(&o, &o.in);
    int status = diag_errors() ? diag_status() : command->run(&c);
    if (diag_errors() && status <= EXIT_INPUT)
        status = diag_status();
    return finish(status);
}
