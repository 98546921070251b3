/*
 * main.c - the story of a compile: options, the pass table, the loop over it.
 *
 *     text -> ast -> plan, filled in by passes -> printed | run | built
 */
#include <unistd.h>

#include "options.h"

/* ---- passes ------------------------------------------------------------------ */

typedef struct {
    const char *name;
    void (*run)(Plan *p);
    bool verified;              // verify_plan can look at the plan afterwards
    void (*print)(const Plan *p, FILE *f);      // -d NAME
    const char *needs, *gives;
} Pass;

static const Pass passes[] = {
/*    name         function          verify print        needs        gives                      */
    { "graph",     graph_build,      true,  print_graph, "ast",       "operators in program order" },
    { "mesh",      mesh_choose,      true,  print_graph, "graph",     "sizes of the axes, choices" },
    { "fuse",      fuse_linears,     true,  print_graph, "graph",     "linears that share an input" },
    { "autodiff",  autodiff_add,     true,  print_graph, "graph",     "the backward operators" },
    { "partition", partition_choose, true,  print_insts, "mesh",      "layouts, collectives, one rank's program" },
    { "memory",    memory_place,     true,  print_insts, "partition", "offsets in one block" },
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

bool compile_to(Compile *c, const char *last)
{
    Plan *p = c->plan = plan_new(c->config);
    p->is.workers = c->o->threads;
    for (int i = 0; i < NPASSES; i++) {
        double t = now_s();
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
        if (passes[i].verified && verify_plan(p, passes[i].name, stderr))
            bug("the plan does not hold together after %s", passes[i].name);
        if (strcmp(passes[i].name, last) == 0)
            return true;
        if (c->o->stop && strcmp(passes[i].name, c->o->stop) == 0)
            exit(EXIT_FINE);
    }
    return true;
}

/* ---- commands ------------------------------------------------------------------- */

int command_check(Compile *c)
{
    if (!compile_to(c, "autodiff"))
        return EXIT_INPUT;
    if (c->plan->is.refused == NULL) {
        partition_choose(c->plan);
        if (diag_errors())
            return EXIT_INPUT;
    }
    if (!c->o->quiet)
        printf("%s: no errors\n", c->plan->model_name);
    return EXIT_FINE;
}

int command_plan(Compile *c)
{
    if (!compile_to(c, "memory"))
        return EXIT_INPUT;
    if (c->o->explain && strcmp(c->o->explain, "partition") == 0)
        print_insts(c->plan, stdout);
    else if (c->o->json)
        print_json(c->plan, stdout);
    else
        print_page(c->plan, stdout);
    return EXIT_FINE;
}

typedef struct { const char *name; int (*run)(Compile *c); const char *what; } Command;
static const Command commands[] = {
    { "check",  command_check,  "errors and warnings only" },
    { "plan",   command_plan,   "the resolved plan: layouts, collectives, memory (--json)" },
    { "verify", command_verify, "static checks, then a step against the reference" },
    { "run",    command_run,    "train here (--steps --load --save --log --threads --reference)" },
    { "build",  command_build,  "an executable (--target cpu -o EXE)" },
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

/* ---- options --------------------------------------------------------------------- */

static void usage(FILE *f)
{
    fprintf(f, "usage: teracube COMMAND FILE... [options]\n\n");
    for (int i = 0; i < NCOMMANDS; i++)
        fprintf(f, "  %-8s %s\n", commands[i].name, commands[i].what);
    fprintf(f, "\noptions: --set KEY=VALUE  --plan NAME  --cluster NAME  --seed N  -d PASS[,PASS]  "
               "--stop PASS\n         --time  -q  -v  --version\npasses:  ");
    for (int i = 0; i < NPASSES; i++)
        fprintf(f, " %s", passes[i].name);
    fprintf(f, " llvm\n");
}

typedef struct { const char *name; bool *flag; const char **text; } Option;
typedef VEC(const char *) Words;

static int64_t whole(const char *option, const char *s)
{
    char *end;
    long long n = strtoll(s, &end, 10);
    if (*s == 0 || *end || n < 0)
        die(EXIT_USAGE, "%s takes a whole number, not `%s`", option, s);
    return n;
}

static const char *value_of(int argc, char **argv, int *i)
{
    if (*i + 1 >= argc)
        die(EXIT_USAGE, "%s needs a value", argv[*i]);
    return argv[++*i];
}

static void read_option(Options *o, Words *sets, int argc, char **argv, int *i)
{
    const char *steps = NULL, *threads = NULL, *seed = NULL, *set = NULL;
    const Option list[] = {
        { "--json", &o->json, NULL },           { "--schedule", &o->schedule, NULL },
        { "-q", &o->quiet, NULL },              { "-v", &o->verbose, NULL },
        { "--time", &o->time, NULL },           { "--reference", &o->reference, NULL },
        { "--help", &o->help, NULL },           { "-h", &o->help, NULL },
        { "--small", &o->is_small, NULL },      { "--full", &o->is_full, NULL },
        { "--static", &o->is_static, NULL },    { "-d", NULL, &o->dump },
        { "--stop", NULL, &o->stop },           { "--explain", NULL, &o->explain },
        { "--target", NULL, &o->target },       { "-o", NULL, &o->output },
        { "--load", NULL, &o->load },           { "--save", NULL, &o->save },
        { "--log", NULL, &o->log },             { "--trace", NULL, &o->trace },
        { "--plan", NULL, &o->in.plan },        { "--cluster", NULL, &o->in.cluster },
        { "--steps", NULL, &steps },            { "--threads", NULL, &threads },
        { "--seed", NULL, &seed },              { "--set", NULL, &set },
    };
    enum { N = sizeof list / sizeof *list };
    const char *names[N];
    const char *word = argv[*i], *eq = strchr(word, '=');
    size_t n = eq && word[1] == '-' ? (size_t)(eq - word) : strlen(word);
    for (int k = 0; k < N; k++) {
        names[k] = list[k].name;
        if (strlen(list[k].name) != n || memcmp(list[k].name, word, n))
            continue;
        if (list[k].flag) {
            if (word[n])
                die(EXIT_USAGE, "%s takes no value", list[k].name);
            *list[k].flag = true;
            return;
        }
        *list[k].text = word[n] ? word + n + 1 : value_of(argc, argv, i);
        if (steps)
            o->steps = whole("--steps", steps);
        if (threads)
            o->threads = (int)whole("--threads", threads);
        if (seed)
            set = str_fmt("train.seed=%s", seed);
        if (set)
            vec_add(sets, set);
        return;
    }
    const char *near = str_nearest(str_of(word, n), names, N);
    die(EXIT_USAGE, near ? "unknown option %s; did you mean %s?" : "unknown option %s", word, near);
}

static void read_options(Options *o, int argc, char **argv)
{
    Words files = { 0 }, sets = { 0 };
    bool plain = false;         // after "--"
    o->steps = -1;
    for (int i = 1; i < argc; i++) {
        if (!plain && strcmp(argv[i], "--") == 0)
            plain = true;
        else if (!plain && strcmp(argv[i], "--version") == 0) {
            printf("teracube 1\n");
            exit(EXIT_FINE);
        } else if (!plain && argv[i][0] == '-' && argv[i][1])
            read_option(o, &sets, argc, argv, &i);
        else if (o->command == NULL)
            o->command = argv[i];
        else
            vec_add(&files, argv[i]);
    }
    o->in.files = files.at;
    o->in.nfiles = files.n;
    o->in.sets = sets.at;
    o->in.nsets = sets.n;
}

static const Command *find_command(const Options *o)
{
    const char *names[NCOMMANDS];
    if (o->help || o->command == NULL) {
        usage(o->help ? stdout : stderr);
        exit(o->help ? EXIT_FINE : EXIT_USAGE);
    }
    for (int i = 0; i < NCOMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(o->command, commands[i].name) == 0)
            return &commands[i];
    }
    static const char *const later[] = { "tune", "simulate", "emit", "profile" };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strcmp(o->command, later[i]) == 0)
            die(EXIT_USAGE, "this version has no command `%s`", o->command);
    const char *near = str_nearest(o->command, names, NCOMMANDS);
    die(EXIT_USAGE, near ? "unknown command `%s`; did you mean %s?" : "unknown command `%s`",
        o->command, near);
}

static void check_words(const Options *o)
{
    const char *names[NPASSES + 4];
    int n = 0;
    for (; n < NPASSES; n++)
        names[n] = passes[n].name;
    names[n++] = "llvm";
    names[n++] = "parse";
    names[n++] = "config";
    names[n++] = "all";
    const char *const lists[] = { o->dump, o->stop };
    for (int k = 0; k < 2; k++)
        for (const char *s = lists[k]; s && *s; s += strcspn(s, ","), s += *s == ',') {
            const char *word = str_of(s, strcspn(s, ","));
            bool known = false;
            for (int i = 0; i < n; i++)
                known |= strcmp(names[i], word) == 0;
            if (!known) {
                const char *near = str_nearest(word, names, n);
                die(EXIT_USAGE, near ? "unknown pass `%s`; did you mean %s?"
                                     : "unknown pass `%s`", word, near);
            }
        }
}

int main(int argc, char **argv)
{
    Options o = { 0 };
    Compile c = { .o = &o, .start = now_s() };
    read_options(&o, argc, argv);
    const Command *command = find_command(&o);
    check_words(&o);
    if (o.in.nfiles == 0)
        die(EXIT_USAGE, "%s needs a model file", o.command);
    Ast *ast = parse_files(&o.in);
    if (asked(o.dump, "parse"))
        print_ast(ast, stderr);
    c.config = diag_errors() ? NULL : config_read(ast, &o.in);
    int status = diag_errors() ? diag_status() : command->run(&c);
    if (diag_errors() && status <= EXIT_INPUT)
        status = diag_status();
    if (fflush(stdout) || ferror(stdout))
        die(EXIT_WORLD, "could not write the output");
    return status;
}
