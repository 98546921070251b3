/*
 * emit_files.c - `teracube emit --target cuda -o DIR`: a folder that can be read, edited
 * and built:
 *
 *     program.cu      kernels, turns, passes (emit_cuda.c)
 *     program.tables  units, row orders, names: what the runtime reads
 *     Makefile        nvcc; ARCH and TERACUBE can be set
 *     launch.sh, ..   emit_launch.c; plan.txt, plan.json
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "cuda.h"
#include "emit_cuda.h"

static FILE *open_file(const char *dir, const char *name)
{
    const char *path = str_fmt("%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(errno));
    return f;
}

static void close_file(FILE *f, const char *dir, const char *name)
{
    if (ferror(f) | fclose(f))
        die(EXIT_WORLD, "could not write %s/%s: %s", dir, name, strerror(errno));
}

void write_text(const char *dir, const char *name, const char *at, size_t n)
{
    FILE *f = open_file(dir, name);
    fwrite(at, 1, n, f);
    close_file(f, dir, name);
}

void folder_make(const char *dir)
{
    struct stat st;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        die(EXIT_WORLD, "could not make %s: %s", dir, strerror(errno));
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
        die(EXIT_WORLD, "could not make %s: there is a file of that name", dir);
}

/* Files of the user's are not written over: a folder of emit's has tables, one that `tune --emit`
 * is about to fill has settings. */
static void folder_is_ours(const char *dir)
{
    static const char *const ours[] = {
        "program.cu", "Makefile", "launch.sh", "launch.sbatch", "launch.c", "launch.h", "plan.txt",
        "plan.json"
    };
    if (access(str_fmt("%s/program.tables", dir), F_OK) == 0 ||
        access(str_fmt("%s/settings", dir), F_OK) == 0)
        return;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (access(str_fmt("%s/%s", dir, ours[i]), F_OK) == 0)
            die(EXIT_WORLD, "%s holds a %s that is not of an emitted program; name another folder",
                dir, ours[i]);
}

typedef struct { const void *at; size_t n; } Bytes;

static void tables_of(const StageTables *s, Bytes part[RT_TABLES])
{
#define TABLE(v) { (v).at, sizeof *(v).at * (size_t)(v).n }
    const Bytes all[RT_TABLES] = {
        { &s->head, sizeof s->head }, TABLE(s->steps), TABLE(s->params), TABLE(s->units),
        TABLE(s->pieces), TABLE(s->segments), TABLE(s->columns), TABLE(s->rowmaps),
        TABLE(s->passes), TABLE(s->slices), TABLE(s->outs), TABLE(s->args), TABLE(s->salts),
        TABLE(s->text)
    };
#undef TABLE
    memcpy(part, all, sizeof all);
}

/* Each kind of table of all stages, its bytes before it; rt_program_read takes them apart. */
static void write_tables(const char *dir, const Emitted *e)
{
    static const char pad[8];
    Bytes (*part)[RT_TABLES] = (Bytes (*)[RT_TABLES])NEWN(Bytes, e->nstages * RT_TABLES);
    FILE *f = open_file(dir, "program.tables");
    for (int r = 0; r < e->nstages; r++)
        tables_of(&e->stage[r], part[r]);
    for (int k = 0; k < RT_TABLES; k++) {
        uint64_t n = 0;
        for (int r = 0; r < e->nstages; r++)
            n += part[r][k].n;
        fwrite(&n, sizeof n, 1, f);
        for (int r = 0; r < e->nstages; r++)
            if (part[r][k].n)
                fwrite(part[r][k].at, 1, part[r][k].n, f);
        fwrite(pad, 1, (8 - n % 8) % 8, f);
    }
    close_file(f, dir, "program.tables");
}

const char *cuda_arch(const Compile *c)
{
    const Config *g = c->config;
    bool named = g->has_cluster && g->cluster.device >= 0;
    if (c->o->arch)
        return c->o->arch;
    return named ? g->devices.at[g->cluster.device].arch.v : NULL;
}

/* Below build/, and below build/san. */
const char *source_folder(void)
{
    const char *own = own_folder();
    const char *near = str_fmt("%s/..", own);
    if (access(str_fmt("%s/templates/cuda/teracube.cuh", near), R_OK) == 0)
        return near;
    return str_fmt("%s/../..", own);
}

/* A path as make reads it. */
static const char *make_word(const char *s)
{
    Text t = { 0 };
    for (; *s; s++)
        text_add(&t, "%s%c", *s == '$' ? "$" : *s == '#' ? "\\" : "", *s);
    return t.at;
}

static void write_makefile(const char *dir, const Compile *c)
{
    const char *own = own_folder(), *slash = strrchr(own, '/');
    const char *arch = cuda_arch(c), *top = source_folder();
    const char *sub = strlen(top) > strlen(own) + 3 ? "build/" : "";
    if (!arch_is_gpu(arch))
        arch = CUDA_ARCH_DEFAULT;
    Text t = { 0 };
    text_add(&t, "# make                 builds ./program with nvcc\n"
             "# make ARCH=sm_80      for another kind of GPU\n"
             "ARCH     ?= %s\n"
             "CUDA     ?= /usr/local/cuda\n"
             "# where teracube was built: its runtime library, headers and kernels\n"
             "TERACUBE ?= %s\n"
             "NVCC     ?= $(CUDA)/bin/nvcc\n"
             "FLAGS    := " CUDA_FLAGS " -arch=$(ARCH) -I\"$(TERACUBE)/templates/cuda\" "
             "-I\"$(TERACUBE)/runtime\"\n\n"
             "program: program.cu tables.o launch.o\n"
             "\t$(NVCC) $(FLAGS) $(CHECKS) -o $@ program.cu tables.o launch.o "
             "\"$(TERACUBE)/%s%s/libteracube_rt.a\" " CUDA_LIBRARIES "\n\n"
             "tables.o: program.tables\n"
             "\tld -r -b binary -z noexecstack -o $@ program.tables\n\n"
             "launch.o: launch.c launch.h\n"
             "\t$(CC) -std=c11 -D_GNU_SOURCE= -O2 -Wall -c -o $@ launch.c\n\n"
             "clean:\n\trm -f program tables.o launch.o\n\n.PHONY: clean\n", arch,
             make_word(top), sub, slash ? slash + 1 : own);
    write_text(dir, "Makefile", t.at, t.n);
}

static void write_plan(const char *dir, const Plan *p)
{
    FILE *f = open_file(dir, "plan.txt");
    print_page(p, f);
    close_file(f, dir, "plan.txt");
    f = open_file(dir, "plan.json");
    print_json(p, false, f);
    close_file(f, dir, "plan.json");
}

/* TUNING: blocks that sum over rows: eight rows each, but no more than keep a GPU full. */
static int workers_of(const Config *c)
{
    double rows = c->train.batch.v * c->train.sequence.v / (c->plan.data.set ? c->plan.data.v : 1);
    int n = 8;
    while (n < CUDA_WORKERS && n * 8 < rows)
        n *= 2;
    return n;
}

int cuda_folder(Compile *c, const char *dir)
{
    c->workers = workers_of(c->config);
    if (!compile_to(c, "memory"))
        return EXIT_INPUT;
    streams_order(c->plan);
    Emitted *e = emit_program(c->plan);
    if (diag_errors())
        return EXIT_INPUT;
    for (int r = 0; r < e->nstages; r++)
        e->stage[r].head.workers = 1;           // threads of a rank on the host
    Text program = { 0 };
    cuda_program(c->plan, e, cuda_endings(c->plan, e), &program);
    folder_make(dir);
    folder_is_ours(dir);
    write_tables(dir, e);                       // first: then what stands there is ours
    write_text(dir, "program.cu", program.at, program.n);
    write_makefile(dir, c);
    emit_launch(dir, c);
    write_plan(dir, c->plan);
    return EXIT_FINE;
}

int command_emit(Compile *c)
{
    if (c->o->target == NULL || strcmp(c->o->target, "cuda") != 0)
        die(EXIT_USAGE, "emit needs --target cuda");
    if (c->o->output == NULL)
        die(EXIT_USAGE, "emit needs -o DIR");
    const char *arch = cuda_arch(c);
    bool cores = arch && !c->o->arch && strcmp(arch, "cpu") == 0;   // a program for other machines
    if (arch && !cores && !arch_check(c, NULL, arch))
        return EXIT_INPUT;
    int status = cuda_folder(c, c->o->output);
    if (status == EXIT_FINE && !c->o->quiet)
        printf("%s: program.cu and what it needs; make -C %s builds it\n", c->o->output,
               shell_word(c->o->output));
    return status;
}
