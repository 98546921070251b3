/*
 * run_cuda.c - `teracube run` on GPUs: counts them, has nvcc make the program once, keeps it
 * in a cache, and starts it, a process for each rank.
 *
 * Nothing here needs a driver or CUDA's libraries: nvidia-smi says what is there (where
 * there is none, /dev does). $XDG_CACHE_HOME/teracube (~/.cache/teracube) has a folder for
 * each program text, named by the hash of all that nvcc read: program.o, and an executable
 * for each set of tables (data, steps, rates) that it was linked with. It may be deleted.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "cuda.h"
#include "launch.h"

/* ---- devices ------------------------------------------------------------------------- */

typedef struct { int n; const char *arch, *why; } Gpus;     // arch NULL: nobody says it

/* Of n devices, those that CUDA_VISIBLE_DEVICES leaves. */
static int visible(int n)
{
    const char *s = getenv("CUDA_VISIBLE_DEVICES");
    int left = 0;
    if (s == NULL)
        return n;
    for (s += strspn(s, " "); *s && *s != '-'; s += *s == ',')
        left++, s += strcspn(s, ",");
    return left < n ? left : n;
}

/* Device files: nvidia0, nvidia1 .. */
static int device_files(void)
{
    int n = 0;
    DIR *dev = opendir("/dev");
    for (struct dirent *e; dev && (e = readdir(dev));)
        n += strncmp(e->d_name, "nvidia", 6) == 0 && e->d_name[6] &&
             e->d_name[6 + strspn(e->d_name + 6, "0123456789")] == 0;
    if (dev)
        closedir(dev);
    return n;
}

static Gpus look(void)
{
    Gpus g = { 0 };
    const char *smi = child_find("nvidia-smi");
    if (smi == NULL) {
        g.n = visible(device_files());
        g.why = "no nvidia-smi, no /dev/nvidia0";
        return g;
    }
    const char *const argv[] = { smi, "--query-gpu=compute_cap", "--format=csv,noheader", NULL };
    Text said = { 0 };
    int status = child_run(argv, NULL, &said), least = 0;
    if (status != 0) {
        g.why = str_fmt("nvidia-smi says: %.*s", (int)strcspn(said.at, "\n"), said.at);
        return g;
    }
    for (const char *s = said.at; *s; s += strcspn(s, "\n"), s += *s == '\n') {
        char *end;
        int major = (int)strtol(s, &end, 10), minor = *end == '.' ? atoi(end + 1) : 0;
        if (major < 1)
            continue;
        g.n++;
        if (least == 0 || major * 10 + minor < least)
            least = major * 10 + minor;         // its code runs on the others too
    }
    g.n = visible(g.n);
    g.arch = str_fmt("sm_%d", least);
    g.why = "nvidia-smi, or CUDA_VISIBLE_DEVICES, leaves none";
    return g;
}

/* Looked at once: nvidia-smi takes up to a second. */
static const Gpus *gpus(void)
{
    static Gpus seen;
    static bool looked;
    if (!looked)
        seen = look();
    looked = true;
    return &seen;
}

bool run_takes_cuda(const Compile *c)
{
    const char *word = getenv("TERACUBE_TARGET");
    if (word && *word) {
        if (strcmp(word, "cpu") != 0 && strcmp(word, "cuda") != 0)
            die(EXIT_USAGE, "TERACUBE_TARGET=%s: there are cpu and cuda", word);
        return strcmp(word, "cuda") == 0;
    }
    int n = gpus()->n;
    if (n > 0 && nvcc_find() == NULL) {
        if (!c->o->quiet)
            fprintf(stderr, "note: run takes the CPU: here %s %s, but no nvcc\n",
                    n == 1 ? "is" : "are", plural(n, "GPU"));
        return false;
    }
    return n > 0;
}

/* ---- the cache ------------------------------------------------------------------------- */

static uint64_t hash_file(const char *path, uint64_t h)
{
    FILE *f = fopen(path, "rb");
    char part[1 << 16];
    size_t n = 0;
    if (f)
        while ((n = fread(part, 1, sizeof part, f)) > 0)
            h = hash_bytes(part, n, h);
    if (f == NULL || ferror(f))
        die(EXIT_WORLD, "could not read %s: %s", path, strerror(errno));
    fclose(f);
    return h;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All files of a folder, in the order of their names. */
static uint64_t hash_folder(const char *dir, uint64_t h)
{
    VEC(const char *) names = { 0 };
    DIR *d = opendir(dir);
    if (d == NULL)
        die(EXIT_WORLD, "could not read %s: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            vec_add(&names, str(e->d_name));
    closedir(d);
    vec_sort(names, by_name);
    for (int i = 0; i < names.n; i++)
        h = hash_file(str_fmt("%s/%s", dir, names.at[i]), h);
    return h;
}

static void make_folders(const char *path)
{
    for (const char *s = strchr(path + 1, '/'); ; s = strchr(s + 1, '/')) {
        const char *part = s ? str_of(path, (size_t)(s - path)) : path;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            die(EXIT_WORLD, "could not make %s: %s; XDG_CACHE_HOME names another place", part,
                strerror(errno));
        if (s == NULL)
            return;
    }
}

static const char *cache_folder(void)
{
    const char *x = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (x && *x == '/')
        return str_fmt("%s/teracube", x);
    if (home && *home == '/')
        return str_fmt("%s/.cache/teracube", home);
    die(EXIT_WORLD, "there is no place for the program: neither XDG_CACHE_HOME nor HOME is set");
}

/* The executable of what stands in `dir`, made where it is not there yet. */
static const char *cached(const Compile *c, const char *nvcc, const char *arch, const char *dir)
{
    const char *const version[] = { nvcc, "--version", NULL };
    Text said = { 0 };
    child_run(version, NULL, &said);
    const char *how = str_fmt("%s %s %s", nvcc, arch, CUDA_FLAGS), *top = source_folder();
    uint64_t h = hash_bytes(said.at, said.n, hash_bytes(how, strlen(how), 0));
    h = hash_folder(str_fmt("%s/templates/cuda", top), h);
    h = hash_file(str_fmt("%s/runtime/rt.h", top), h);
    h = hash_file(str_fmt("%s/program.cu", dir), h);
    uint64_t k = hash_file(str_fmt("%s/program.tables", dir), hash_file(runtime_library(), h));

    const char *place = str_fmt("%s/%016" PRIx64, cache_folder(), h);
    const char *object = str_fmt("%s/program.o", place);
    const char *exe = str_fmt("%s/program-%016" PRIx64, place, k);
    if (access(exe, X_OK) == 0)
        return exe;
    make_folders(place);
    if (access(object, R_OK) != 0) {
        const char *fresh = str_fmt("%s/program.%ld.o", dir, (long)getpid());
        const char *there = str_fmt("%s/program.%ld.o", place, (long)getpid());
        if (!c->o->quiet)
            fprintf(stderr, "note: nvcc makes the program, once; it is kept in %s\n", place);
        cuda_compile(nvcc, arch, dir, fresh);
        // Other processes see it whole or not at all; TMPDIR may be another disk.
        const char *const copy[] = { "cp", fresh, there, NULL };
        if (child_run(copy, NULL, NULL) != 0 || rename(there, object) != 0) {
            unlink(there);
            die(EXIT_WORLD, "could not write %s", object);
        }
    }
    cuda_link(nvcc, arch, dir, object, exe);
    return exe;
}

/* ---- run ---------------------------------------------------------------------------------- */

/* A port of this machine that nobody has just now. */
static int free_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool fine = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
                getsockname(fd, (struct sockaddr *)&at, &n) == 0;
    if (!fine)
        die(EXIT_WORLD, "could not find a free port: %s", strerror(errno));
    close(fd);
    return ntohs(at.sin_port);
}

static volatile sig_atomic_t nstarted;
static pid_t *started;

/* Ctrl-C reaches the ranks by itself; what was sent to this process alone goes on to them. */
static void pass_on(int sig)
{
    for (int i = 0; sig != SIGINT && i < nstarted; i++)
        kill(started[i], sig);
}

static void start_rank(const char *exe, const char *const *argv, int rank, int ranks, int port)
{
    pid_t pid = fork();
    if (pid < 0) {
        pass_on(SIGTERM);
        die(EXIT_WORLD, "could not start rank %d: %s", rank, strerror(errno));
    }
    if (pid > 0) {
        started[nstarted++] = pid;
        return;
    }
    const struct { const char *name; int value; } env[] = {
        { "RANK", rank }, { "LOCAL_RANK", rank }, { "WORLD_SIZE", ranks }, { "MASTER_PORT", port },
    };
    char value[16];
    for (size_t i = 0; i < sizeof env / sizeof *env; i++) {
        snprintf(value, sizeof value, "%d", env[i].value);
        setenv(env[i].name, value, 1);
    }
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    execv(exe, (char *const *)(void *)argv);
    _exit(EXIT_WORLD);
}

/* As launch.sh does; the first status that is not 0. */
static int start_ranks(const char *exe, const char *const *argv, int ranks)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGUSR1, SIGHUP };
    struct sigaction act = { .sa_handler = pass_on };
    started = NEWN(pid_t, ranks);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &act, NULL);
    int port = free_port(), first = 0;
    for (int i = 0; i < ranks; i++)
        start_rank(exe, argv, i, ranks, port);
    for (int i = 0; i < ranks; i++) {
        int status;
        while (waitpid(started[i], &status, 0) < 0)
            if (errno != EINTR)
                die(EXIT_WORLD, "could not wait for rank %d: %s", i, strerror(errno));
        status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        first = first ? first : status;
    }
    return first;
}

static int start(const Compile *c, const char *exe, int ranks)
{
    const Options *o = c->o;
    const char *argv[32];
    int n = 0;
    argv[n++] = "teracube";
    const struct { const char *name, *value; } pass[] = {
        { "--load", o->load }, { "--save", o->save }, { "--resume", o->resume },
        { "--log", o->log }, { "--trace", o->trace },
        { "--steps", o->steps < 0 ? NULL : str_fmt("%" PRId64, o->steps) },
    };
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++)
        if (pass[i].value) {
            argv[n++] = pass[i].name;
            argv[n++] = pass[i].value;
        }
    if (o->quiet)
        argv[n++] = "-q";
    argv[n] = NULL;
    fflush(NULL);
    temporary_remove();
    if (ranks > 1)
        return start_ranks(exe, argv, ranks);
    execv(exe, (char *const *)(void *)argv);
    die(EXIT_WORLD, "could not start %s: %s", exe, strerror(errno));
}

int run_cuda(Compile *c)
{
    const Gpus *g = gpus();
    const char *nvcc = nvcc_find(), *arch = c->o->arch ? c->o->arch : g->arch;
    if (c->o->threads)
        die(EXIT_USAGE, "--threads is for --target cpu");
    if (g->n == 0)
        die(EXIT_WORLD, "there is no GPU here: %s; --target cpu runs without", g->why);
    if (nvcc == NULL)
        nvcc_absent(c);
    if (arch == NULL)
        die(EXIT_USAGE, "nobody says which kind of GPU this is (no nvidia-smi): --arch sm_90, "
            "for one");
    arch_check(c, nvcc, arch);
    const char *dir = temporary_folder();
    int status = cuda_folder(c, dir);
    if (status != EXIT_FINE)
        return status;
    int ranks = plan_ranks(c->plan);
    LaunchPlace place;
    LaunchFault fault;
    bool launched = launch_find(NULL, NULL, NULL, &place, &fault) && place.by;
    if (!launched && ranks > g->n) {
        Loc at = c->config->plan.cube[0].loc;
        diag_error(at, "too-few-gpus", "the plan has %s, this machine %s", plural(ranks, "rank"),
                   plural(g->n, "GPU"));
        diag_hint("a smaller plan, or --target cpu");
        return EXIT_INPUT;
    }
    if (!c->o->quiet)
        fprintf(stderr, "note: run takes %d of %s (%s); --target cpu takes the CPU\n", ranks,
                plural(g->n, "GPU"), arch);
    return start(c, cached(c, nvcc, arch, dir), launched ? 1 : ranks);
}
