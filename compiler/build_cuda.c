/*
 * build_cuda.c - nvcc: where it is, what it knows, and what went wrong when it fails.
 * `build --target cuda` emits into a temporary folder and leaves the executable.
 */
#include <errno.h>
#include <unistd.h>

#include "cuda.h"

/* ---- nvcc ----------------------------------------------------------------------------- */

const char *nvcc_find(void)
{
    const char *named = getenv("NVCC");
    if (named && *named)
        return child_find(named);
    static const char *const homes[] = { "CUDA_HOME", "CUDA_PATH" };
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        const char *home = getenv(homes[i]);
        const char *at = home && *home ? child_find(str_fmt("%s/bin/nvcc", home)) : NULL;
        if (at)
            return at;
    }
    const char *at = child_find("nvcc");
    return at ? at : child_find("/usr/local/cuda/bin/nvcc");
}

void nvcc_absent(const Compile *c)
{
    const char *named = getenv("NVCC"), *file = c->o->in.files[0];
    if (named && *named)
        die(EXIT_WORLD, "could not run NVCC=%s", named);
    die(EXIT_WORLD, "there is no nvcc here (PATH, CUDA_HOME, /usr/local/cuda; set NVCC to name "
        "it).\nhint: teracube emit %s --target cuda -o DIR writes the program; make -C DIR "
        "builds it where nvcc is", shell_word(file));
}

bool nvcc_knows(const char *nvcc, const char *arch)
{
    const char *flag = str_fmt("-arch=%s", arch);
    const char *const argv[] = { nvcc, "--dryrun", flag, "-c", "-o", "/dev/null", "program.cu",
                                 NULL };
    Text said = { 0 };
    return child_run(argv, NULL, &said) == 0;
}

/* "sm_80 sm_90 ..": what the kernels can be made for, of all that nvcc lists. */
static const char *known_archs(const char *nvcc)
{
    const char *const argv[] = { nvcc, "--list-gpu-code", NULL };
    Text said = { 0 }, list = { 0 };
    if (child_run(argv, NULL, &said) != 0)
        return "none that it names: is it nvcc?";
    for (const char *s = strstr(said.at, "sm_"); s; s = strstr(s + 1, "sm_"))
        if (atoi(s + 3) >= CUDA_ARCH_LEAST)
            text_add(&list, "%s%.*s", list.n ? " " : "", (int)strcspn(s, " \n"), s);
    return list.n ? list.at : "none of those that teracube needs";
}

bool arch_check(const Compile *c, const char *nvcc, const char *arch)
{
    const char *why = NULL;
    size_t digits = strncmp(arch, "sm_", 3) == 0 ? strspn(arch + 3, "0123456789") : 0;
    const char *rest = digits ? arch + 3 + digits : "";     // "a", "f": of this GPU alone
    if (digits == 0 || digits > 6 || (*rest && strcmp(rest, "a") != 0 && strcmp(rest, "f") != 0))
        why = str_fmt("the CUDA target is for GPUs: `%s` is no arch like sm_90", arch);
    else if (atoi(arch + 3) < CUDA_ARCH_LEAST)
        why = str_fmt("the CUDA target needs sm_%d or later, not %s", CUDA_ARCH_LEAST, arch);
    else if (nvcc && !nvcc_knows(nvcc, arch))
        why = str_fmt("%s does not know %s", nvcc, arch);
    if (why == NULL)
        return true;
    const char *known = nvcc ? known_archs(nvcc) : "sm_80, sm_90, sm_100";
    if (c->o->arch || !c->config->has_cluster)
        die(EXIT_USAGE, "%s; there are %s", why, known);
    const Device *d = &c->config->devices.at[c->config->cluster.device];
    diag_error(d->arch.loc, "device-arch", "%s", why);
    diag_hint("there are %s; --arch takes another one than device %s has", known, d->name);
    return false;
}

/* ---- compile, link ---------------------------------------------------------------------- */

#ifdef TERACUBE_SAN
#define SANITIZE "-Xcompiler", "-fsanitize=address", "-Xcompiler", "-fsanitize=undefined",
#else
#define SANITIZE
#endif

/* The last lines of what nvcc said; which library it missed. */
_Noreturn static void nvcc_failed(const char *nvcc, const char *doing, int status,
                                  const Text *said)
{
    static const struct { const char *sign, *what; } lacks[] = {
        { "nccl.h", "NCCL is missing: nvcc found no nccl.h (libnccl-dev)" },
        { "lnccl", "NCCL is missing: the linker found no libnccl (libnccl-dev)" },
        { "cublas_v2.h", "cuBLAS is missing: nvcc found no cublas_v2.h (libcublas-dev)" },
        { "cublasLt.h", "cuBLAS is missing: nvcc found no cublasLt.h (libcublas-dev)" },
        { "lcublas", "cuBLAS is missing: the linker found no libcublas (libcublas-dev)" },
    };
    child_ended(status);
    const char *fatal = strstr(said->at, "No such file");
    fatal = fatal ? fatal : strstr(said->at, "cannot find -l");
    for (size_t i = 0; fatal && i < sizeof lacks / sizeof *lacks; i++)
        if (strstr(said->at, lacks[i].sign))
            die(EXIT_WORLD, "%s; CPATH and LIBRARY_PATH may say where it is", lacks[i].what);
    enum { LINES = 20 };
    const char *from = said->at + said->n;
    for (int lines = 0; from > said->at && lines <= LINES; from--)
        lines += from[-1] == '\n';
    fprintf(stderr, "%s", from + (from > said->at));
    if (status == CHILD_ABSENT)
        die(EXIT_WORLD, "could not run %s", nvcc);
    die(EXIT_WORLD, "%s could not %s (status %d)", nvcc, doing, status);
}

void cuda_compile(const char *nvcc, const char *arch, const char *dir, const char *object)
{
    const char *argv[CHILD_WORDS], *top = source_folder();
    int n = 0;
    argv[n++] = nvcc;
    n = child_words(argv, n, CUDA_FLAGS);
    argv[n++] = str_fmt("-arch=%s", arch);
    argv[n++] = str_fmt("-I%s/templates/cuda", top);
    argv[n++] = str_fmt("-I%s/runtime", top);
    const char *const rest[] = { SANITIZE "-c", "-o", object, str_fmt("%s/program.cu", dir),
                                 NULL };
    for (int i = 0; i == 0 || argv[n - 1]; i++)
        argv[n++] = rest[i];
    Text said = { 0 };
    int status = child_run(argv, NULL, &said);
    if (status != 0)
        nvcc_failed(nvcc, "compile program.cu", status, &said);
}

void cuda_link(const char *nvcc, const char *arch, const char *dir, const char *object,
               const char *exe)
{
    // The names of the symbols come from the file's: so in its folder.
    const char *const ld[] = { "ld", "-r", "-b", "binary", "-z", "noexecstack", "-o", "tables.o",
                               "program.tables", NULL };
    Text said = { 0 };
    int status = child_run(ld, dir, &said);
    if (status != 0)
        nvcc_failed("ld", "make an object of program.tables", status, &said);
    const char *dot = *exe == '-' ? "./" : "";              // no option of nvcc
    const char *fresh = str_fmt("%s%s.new.%ld", dot, exe, (long)getpid());
    const char *argv[CHILD_WORDS];
    int n = 0;
    const char *const first[] = { nvcc, str_fmt("-arch=%s", arch), SANITIZE "-o", fresh, object,
                                  str_fmt("%s/tables.o", dir), runtime_library(), NULL };
    for (; first[n]; n++)
        argv[n] = first[n];
    child_words(argv, n, CUDA_LIBRARIES);
    said.n = 0;
    status = child_run(argv, NULL, &said);
    if (status != 0) {
        unlink(fresh);
        nvcc_failed(nvcc, str_fmt("link %s", exe), status, &said);
    }
    if (rename(fresh, exe) != 0) {
        int why = errno;
        unlink(fresh);
        die(EXIT_WORLD, "could not write %s: %s", exe, strerror(why));
    }
}

/* ---- build ------------------------------------------------------------------------------- */

int build_cuda(Compile *c)
{
    const char *nvcc = nvcc_find(), *arch = cuda_arch(c);
    if (nvcc == NULL)
        nvcc_absent(c);
    runtime_library();
    arch = arch ? arch : CUDA_ARCH_DEFAULT;
    if (!arch_check(c, nvcc, arch))
        return EXIT_INPUT;
    const char *dir = temporary_folder(), *object = str_fmt("%s/program.o", dir);
    int status = cuda_folder(c, dir);
    if (status != EXIT_FINE)
        return status;
    cuda_compile(nvcc, arch, dir, object);
    cuda_link(nvcc, arch, dir, object, c->o->output);
    if (!c->o->quiet)
        printf("%s: %s on GPUs (%s); run it with --help\n", c->o->output,
               plural(plan_ranks(c->plan), "rank"), arch);
    return EXIT_FINE;
}
