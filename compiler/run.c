/*
 * run.c - the commands that end in machine code: `run` trains in this process
 * (ORC), `build` writes an object and links it with the runtime. For GPUs both hand over
 * to run_cuda.c and build_cuda.c.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "cuda.h"
#include "emit.h"
#include "reference.h"

/* Commands for the CPU take this machine; say so when a cluster was written. */
static void say_machine(const Compile *c)
{
    if (c->config->has_cluster && !c->o->quiet)
        fprintf(stderr, "note: %s takes this machine, not cluster %s\n", c->o->command,
                c->config->cluster.name);
}

/* run, verify and build --target cpu: the plan's mesh on this machine. */
void use_this_machine(Compile *c)
{
    say_machine(c);
    ((Config *)c->config)->has_cluster = false;
}

Kernels *make_kernels(const Compile *c, const Emitted *e)
{
    bool dump = c->o->dump && (strstr(c->o->dump, "llvm") || strcmp(c->o->dump, "all") == 0);
    return llvm_load(c->o->command)->make(e->specs.at, e->specs.n, c->plan->model_name,
                                          dump ? stderr : NULL);
}

const RtKernelFn *jit_kernels(Kernels *k)
{
    return (const RtKernelFn *)(void *)llvm_load("")->jit(k);
}

static bool training_is_complete(const Compile *c)
{
    const Train *t = &c->config->train;
    if (c->config->has_train && t->batch.set && t->sequence.set && (t->data.v || c->o->steps == 0))
        return true;
    diag_error(t->loc, "train-section", "%s needs a train section with data, batch and sequence",
               c->o->command);
    diag_hint("add: train { data = \"corpus.txt\"; batch = 4; sequence = 64; steps = 100 }");
    return false;
}

int command_run(Compile *c)
{
    const char *target = c->o->target;
    if (target && strcmp(target, "cpu") != 0 && strcmp(target, "cuda") != 0)
        die(EXIT_USAGE, "run knows --target cpu and cuda, not `%s`", target);
    use_this_machine(c);
    if (!training_is_complete(c))
        return EXIT_INPUT;
    if (c->o->reference)
        return run_reference(c);
    if (target ? strcmp(target, "cuda") == 0 : run_takes_cuda(c))
        return run_cuda(c);
    if (!compile_to(c, "memory"))
        return EXIT_INPUT;
    Emitted *e = emit_program(c->plan);
    if (diag_errors())
        return EXIT_INPUT;
    double t = now_s();
    Kernels *k = make_kernels(c, e);
    const RtProgram *program = emitted_program(e, jit_kernels(k));
    if (c->o->time)
        fprintf(stderr, "%-10s %8.3f ms, %s\n", "llvm", (now_s() - t) * 1e3,
                plural(e->specs.n, "kernel"));
    RtOptions ro = { .load = c->o->load, .save = c->o->save, .log = c->o->log,
                     .trace = c->o->trace, .resume = c->o->resume, .steps = c->o->steps,
                     .quiet = c->o->quiet, .exe = "teracube" };
    return rt_run(program, &ro);
}

/* ---- build ------------------------------------------------------------------------ */

/* The runtime library stands beside the compiler's own executable. */
const char *runtime_library(void)
{
    const char *lib = str_fmt("%s/libteracube_rt.a", own_folder());
    if (access(lib, R_OK) != 0)
        die(EXIT_WORLD, "%s: %s; build needs the runtime library beside teracube", lib,
            strerror(errno));
    return lib;
}

/* A table of every stage, one after another: program_main.c takes them apart again. */
typedef struct { const char *name; Text bytes; } Blob;

static void blob_add(Blob *b, const char *name, const void *at, size_t n)
{
    b->name = name;
    text_bytes(&b->bytes, at, n);
}

static void object(const Compile *c, const Emitted *e, const char *path)
{
    enum { BLOBS = RT_TABLES };
    Blob b[BLOBS] = { { 0 } };
    for (int r = 0; r < e->nstages; r++) {
        const StageTables *s = &e->stage[r];
        int k = 0;
        blob_add(&b[k++], "program_head", &s->head, sizeof s->head);
#define TABLE(symbol, v) blob_add(&b[k++], symbol, (v).at, sizeof *(v).at * (size_t)(v).n)
        TABLE("program_steps", s->steps);
        TABLE("program_params", s->params);
        TABLE("program_units", s->units);
        TABLE("program_pieces", s->pieces);
        TABLE("program_segments", s->segments);
        TABLE("program_columns", s->columns);
        TABLE("program_rowmaps", s->rowmaps);
        TABLE("program_passes", s->passes);
        TABLE("program_slices", s->slices);
        TABLE("program_outs", s->outs);
        TABLE("program_args", s->args);
        TABLE("program_salts", s->salts);
#undef TABLE
        blob_add(&b[k++], "program_text", s->text.at, s->text.n);
    }
    const char *name[BLOBS];
    const void *data[BLOBS];
    size_t bytes[BLOBS];
    for (int i = 0; i < BLOBS; i++) {
        name[i] = b[i].name;
        data[i] = b[i].bytes.at;
        bytes[i] = b[i].bytes.n;
    }
    const LlvmApi *llvm = llvm_load(c->o->command);
    Kernels *k = make_kernels(c, e);
    if (llvm->object(k, path, BLOBS, name, data, bytes) != 0)
        die(EXIT_WORLD, "could not write %s: %s", c->o->output, strerror(errno));
    llvm->free(k);
}

int command_build(Compile *c)
{
    const char *target = c->o->target;
    if (target == NULL || (strcmp(target, "cpu") != 0 && strcmp(target, "cuda") != 0))
        die(EXIT_USAGE, "build needs --target cpu or --target cuda");
    if (c->o->output == NULL)
        die(EXIT_USAGE, "build needs -o EXE");
    struct stat st;
    if (stat(c->o->output, &st) == 0 && !S_ISREG(st.st_mode))
        die(EXIT_WORLD, "could not write %s: it is no regular file", c->o->output);
    const char *slash = strrchr(c->o->output, '/');
    if (access(slash ? str_of(c->o->output, (size_t)(slash - c->o->output) + 1) : ".", W_OK) != 0)
        die(EXIT_WORLD, "could not write %s: %s", c->o->output, strerror(errno));
    if (!training_is_complete(c))
        return EXIT_INPUT;
    if (strcmp(target, "cuda") == 0)
        return build_cuda(c);
    use_this_machine(c);
    if (!compile_to(c, "memory"))
        return EXIT_INPUT;
    const char *lib = runtime_library();
    const char *dot = c->o->output[0] == '-' ? "./" : "";       // no option of the linker
    const char *obj = str_fmt("%s%s.o.%ld", dot, c->o->output, (long)getpid());
    const char *exe = str_fmt("%s%s.new.%ld", dot, c->o->output, (long)getpid());
    Emitted *e = emit_program(c->plan);
    if (diag_errors())
        return EXIT_INPUT;
    object(c, e, obj);
    const char *const rest[] = { "-o", exe, obj, lib, "-lm", "-lpthread", "-ldl",
#ifdef TERACUBE_SAN
        "-fsanitize=address,undefined",
#endif
        NULL };
    const char *argv[CHILD_WORDS + sizeof rest / sizeof *rest], *named = getenv("CC");
    int n = child_words(argv, 0, named ? named : "");      // "ccache cc": as make takes it
    if (n == 0)
        argv[n++] = "cc";
    const char *cc = argv[0];
    memcpy(argv + n, rest, sizeof rest);
    int status = child_run(argv, NULL, NULL);
    unlink(obj);
    if (status != 0) {
        unlink(exe);
        if (status == CHILD_ABSENT)
            die(EXIT_WORLD, "could not run %s to link %s; install a C compiler or set CC", cc,
                c->o->output);
        die(EXIT_WORLD, "%s could not link %s (status %d)", cc, c->o->output, status);
    }
    if (rename(exe, c->o->output) != 0) {
        int why = errno;
        unlink(exe);
        die(EXIT_WORLD, "could not write %s: %s", c->o->output, strerror(why));
    }
    if (!c->o->quiet)
        printf("%s: %s as threads; run it with --help\n", c->o->output,
               plural(plan_ranks(c->plan), "rank"));
    return EXIT_FINE;
}
