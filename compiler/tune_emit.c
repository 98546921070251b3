/*
 * tune_emit.c - `teracube tune --emit K -o DIR`: the best K layouts as folders that can be
 * built, and a script that runs each for 20 steps:
 *
 *     run.sh              all of them, or those that are named: ./run.sh 2 5
 *     N/settings          the layout, one plan.KEY=VALUE a line
 *     N/Makefile launch.sh ..         what `make` builds and what starts it
 *     N/failed            it could not be written, and why
 *     N/log.jsonl said status         left by run.sh: steps, words, exit status
 *
 * --results DIR reads them back (tune_results.c).
 */
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"
#include "kernel.h"
#include "tune_print.h"

static void write_text(const char *path, const Text *t, mode_t mode)
{
    FILE *f = fopen(path, "w");
    if (f == NULL)
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(errno));
    fwrite(t->at, 1, t->n, f);
    if (ferror(f) | fclose(f))
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(errno));
    chmod(path, mode);
}

/* The files of the command line by their full names: programs start in folders of their own. */
static Inputs from_anywhere(const Inputs *in)
{
    Inputs out = *in;
    const char **files = NEWN(const char *, in->nfiles);
    for (int i = 0; i < in->nfiles; i++) {
        char *full = realpath(in->files[i], NULL);
        if (full == NULL)
            die(EXIT_WORLD, "could not open %s: %s", in->files[i], strerror(errno));
        files[i] = str(full);
        free(full);
    }
    out.files = files;
    return out;
}

static void add_settings(const Plan *p, Inputs *in)
{
    PlanKeys keys = print_plan_keys(p);
    VEC(const char *) sets = { 0 };
    for (int i = 0; i < in->nsets; i++)
        vec_add(&sets, in->sets[i]);
    for (int i = 0; i < keys.n; i++) {
        const char *set = str_fmt("plan.%s=%s", keys.at[i].key, keys.at[i].value);
        vec_add(&sets, set);
    }
    const Config *c = p->config;
    if (c->has_cluster) {
        const char *set = str_fmt("cluster.nodes=%.0f", c->cluster.nodes.v);
        vec_add(&sets, set);
    }
    in->sets = sets.at;
    in->nsets = sets.n;
}

/* ---- one folder ------------------------------------------------------------------------- */

static void write_settings(const char *dir, const Inputs *in, int from)
{
    Text t = { 0 };
    for (int i = from; i < in->nsets; i++)
        text_add(&t, "%s\n", in->sets[i]);
    write_text(str_fmt("%s/settings", dir), &t, 0644);
}

/* A Makefile that calls `teracube build`, and what starts its program. */
static void write_cpu(const char *dir, const Inputs *in)
{
    Text t = { 0 }, l = { 0 };
    text_add(&t, "# make      builds ./program, machine code for this computer\n"
             "TERACUBE ?= %s/teracube\n\nprogram:\n\t$(TERACUBE) build --target cpu -q",
             own_folder());
    for (int i = 0; i < in->nfiles; i++)
        text_add(&t, " \\\n\t  %s", shell_word(in->files[i]));
    if (in->plan)
        text_add(&t, " \\\n\t  --plan %s", shell_word(in->plan));
    if (in->cluster)
        text_add(&t, " \\\n\t  --cluster %s", shell_word(in->cluster));
    for (int i = 0; i < in->nsets; i++)
        if (strncmp(in->sets[i], "cluster.", 8))
            text_add(&t, " \\\n\t  --set %s", shell_word(in->sets[i]));
    text_add(&t, " \\\n\t  -o $@\n\nclean:\n\trm -f program\n\n.PHONY: clean\n");
    write_text(str_fmt("%s/Makefile", dir), &t, 0644);
    text_add(&l, "#!/bin/sh\n# Starts the program: a thread for each rank.\n"
             "cd \"$(dirname \"$0\")\" && exec ./program \"$@\"\n");
    write_text(str_fmt("%s/launch.sh", dir), &l, 0755);
}

static const char *first_error(const char *path)
{
    static char line[512];
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "error: ")) {
            line[strcspn(line, "\n")] = 0;
            fclose(f);
            return str(strstr(line, "error: ") + 7);
        }
    if (f)
        fclose(f);
    return "no reason was given";
}

/* In a process of its own, so that one layout's errors are not another's. NULL: written. */
static const char *write_cuda(const Compile *c, const char *dir, const Inputs *in)
{
    const char *said = str_fmt("%s/said", dir);
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        die(EXIT_WORLD, "could not start a process: %s", strerror(errno));
    if (pid == 0) {
        if (freopen(said, "w", stderr) == NULL)
            _exit(EXIT_WORLD);
        Compile one = { .o = c->o, .config = config_of(c->o, in), .start = c->start };
        int status = one.config ? cuda_folder(&one, dir) : EXIT_INPUT;
        fflush(NULL);
        _exit(status);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FINE)
        return NULL;
    return WIFEXITED(status) ? first_error(said) : "the compiler was killed";
}

static const char first_words[] = "#!/bin/sh\n# Builds and runs each layout";

/* A run.sh that --emit did not write is somebody's work. */
static void check_folder(const char *dir)
{
    char text[sizeof first_words] = "";
    FILE *f = fopen(str_fmt("%s/run.sh", dir), "r");
    if (f == NULL)
        return;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    if (n && strcmp(text, first_words))
        die(EXIT_USAGE, "-o %s: there is a run.sh that --emit did not write; name another folder",
            dir);
}

static void forget(const char *dir)             // what an earlier run.sh left
{
    static const char *const name[] = { "failed", "log.jsonl", "said", "status", "program" };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        unlink(str_fmt("%s/%s", dir, name[i]));
}

/* ---- all -------------------------------------------------------------------------------- */

static void write_script(const Compile *c, const TunePage *page, int n, const char *dir)
{
    Text t = { 0 };
    text_add(&t, "%s for 20 steps (STEPS=n: more), one after another:\n", first_words);
    for (int i = 0; i < n; i++)
        text_add(&t, "#   %d  %s\n", i + 1, tune_line(&page->at[i].is->at));
    text_add(&t, "# `./run.sh 2 5` runs those alone. Each leaves N/log.jsonl, N/said, N/status;\n"
             "#   teracube tune");
    for (int i = 0; i < c->o->in.nfiles; i++)
        text_add(&t, " %s", c->o->in.files[i]);
    for (int i = 0; i < c->o->in.nsets; i++)
        text_add(&t, " --set %s", shell_word(c->o->in.sets[i]));
    text_add(&t, " --results %s\n"
             "# ranks them by what was measured.\n"
             "cd \"$(dirname \"$0\")\" || exit 4\n"
             "[ $# -gt 0 ] || set --", dir);
    for (int i = 0; i < n; i++)
        text_add(&t, " %d", i + 1);
    text_add(&t, "\nfor i; do\n"
             "    if [ -e \"$i/failed\" ]; then\n"
             "        echo \"$i: could not be written: $(cat \"$i/failed\")\"\n"
             "        continue\n"
             "    fi\n"
             "    rm -f \"$i/log.jsonl\" \"$i/status\"\n"
             "    make -C \"$i\" > \"$i/said\" 2>&1 &&\n"
             "        \"./$i/launch.sh\" --steps \"${STEPS:-20}\" --log log.jsonl \\\n"
             "            >> \"$i/said\" 2>&1\n"
             "    status=$?\n"
             "    echo $status > \"$i/status\"\n"
             "    [ $status = 0 ] && echo \"$i: done\" ||\n"
             "        echo \"$i: failed with status $status, see $i/said\"\n"
             "done\n");
    write_text(str_fmt("%s/run.sh", dir), &t, 0755);
}

static bool for_cuda(const Compile *c)
{
    const char *target = c->o->target, *arch = cuda_arch(c);
    if (target && strcmp(target, "cuda") && strcmp(target, "cpu"))
        die(EXIT_USAGE, "--target is cuda or cpu, not `%s`", target);
    return target ? strcmp(target, "cuda") == 0 : arch_is_gpu(arch);
}

int tune_emit(const Compile *c, const TunePage *page)
{
    const char *dir = c->o->output;
    int n = page->n < c->o->emit ? page->n : c->o->emit, written = 0;
    bool cuda = for_cuda(c);
    Inputs all = from_anywhere(&c->o->in);
    check_folder(dir);
    folder_make(dir);
    for (int i = 0; i < n; i++) {
        const char *sub = str_fmt("%s/%d", dir, i + 1), *why = NULL;
        Inputs in = all;
        folder_make(sub);
        forget(sub);
        add_settings(page->at[i].plan, &in);
        write_settings(sub, &in, all.nsets);
        if (cuda)
            why = write_cuda(c, sub, &in);
        else
            write_cpu(sub, &in);
        if (why) {
            Text t = { 0 };
            text_add(&t, "%s\n", why);
            write_text(str_fmt("%s/failed", sub), &t, 0644);
            fprintf(stderr, "%s: could not be written: %s\n", sub, why);
        }
        written += why == NULL;
    }
    for (int i = n + 1; unlink(str_fmt("%s/%d/settings", dir, i)) == 0; i++)
        forget(str_fmt("%s/%d", dir, i));       // an earlier --emit had more
    write_script(c, page, n, dir);
    if (!c->o->quiet && !c->o->json)
        printf("\n%s: %s; %s/run.sh builds and runs them, --results %s reads what they measured\n",
               dir, plural(written, "layout"), dir, dir);
    return written ? EXIT_FINE : EXIT_INPUT;
}
