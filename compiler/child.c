/*
 * child.c - starts other programs and waits for them; folders for what they write.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "diag.h"

/* Once there is a temporary folder, a signal that ends us waits until it is gone, and goes on to
 * the program that runs. */
static volatile sig_atomic_t told, running;
static const int endings[] = { SIGTERM, SIGHUP, SIGINT };
enum { ENDINGS = sizeof endings / sizeof *endings };

static void tell(int sig)
{
    told = sig;
    if (running > 0)
        kill((pid_t)running, sig);
}

static void child(const char *const *argv, const char *dir, int out)
{
    if (out >= 0) {
        int none = open("/dev/null", O_RDONLY);
        if (none < 0 || dup2(none, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
            _exit(CHILD_ABSENT);
    }
    if (dir == NULL || chdir(dir) == 0)
        execvp(argv[0], (char *const *)(void *)argv);
    _exit(CHILD_ABSENT);
}

static void read_all(int from, Text *said)
{
    char part[4096];
    for (;;) {
        ssize_t n = read(from, part, sizeof part);
        if (n > 0)
            text_bytes(said, part, (size_t)n);
        else if (n == 0 || errno != EINTR)
            return;
    }
}

/* As in system(): Ctrl-C is for the child, and what we leave behind is cleared up. */
int child_run(const char *const *argv, const char *dir, Text *said)
{
    int ends[2] = { -1, -1 }, status = 0;
    if (said && pipe2(ends, O_CLOEXEC) != 0)
        die(EXIT_WORLD, "could not start %s: %s", argv[0], strerror(errno));
    fflush(NULL);
    struct sigaction ignore = { .sa_handler = SIG_IGN }, was_int, was_quit;
    sigaction(SIGINT, &ignore, &was_int);
    sigaction(SIGQUIT, &ignore, &was_quit);
    sigset_t end, before;
    sigemptyset(&end);
    for (int i = 0; i < ENDINGS; i++)
        sigaddset(&end, endings[i]);
    sigprocmask(SIG_BLOCK, &end, &before);
    int sig = told;
    pid_t pid = sig ? -1 : fork();
    if (pid == 0) {
        sigaction(SIGINT, &was_int, NULL);
        sigaction(SIGQUIT, &was_quit, NULL);
        struct sigaction was;
        for (int i = 0; i < ENDINGS; i++)       // what is ignored stays so
            if (sigaction(endings[i], NULL, &was) == 0 && was.sa_handler == tell)
                signal(endings[i], SIG_DFL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        child(argv, dir, ends[1]);
    }
    running = pid;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (said) {
        close(ends[1]);
        read_all(ends[0], said);
        close(ends[0]);
    }
    bool failed = pid < 0;
    while (!failed && waitpid(pid, &status, 0) < 0)
        failed = errno != EINTR;
    running = 0;
    sigaction(SIGINT, &was_int, NULL);
    sigaction(SIGQUIT, &was_quit, NULL);
    if (said)
        text_bytes(said, "", 1), said->n--;         // a string
    if (sig)
        return 128 + sig;
    if (failed)
        return CHILD_ABSENT;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void child_ended(int status)
{
    if (told)
        exit(status);                           // temporary_remove says how we really end
}

int child_words(const char **argv, int n, const char *text)
{
    for (const char *s = text + strspn(text, " \t"); *s && n < CHILD_WORDS - 1;
         s += strspn(s, " \t")) {
        size_t len = strcspn(s, " \t");
        argv[n++] = str_of(s, len);
        s += len;
    }
    argv[n] = NULL;
    return n;
}

const char *child_find(const char *name)
{
    struct stat st;
    if (strchr(name, '/'))
        return access(name, X_OK) == 0 && stat(name, &st) == 0 && S_ISREG(st.st_mode) ? name : NULL;
    const char *path = getenv("PATH");
    for (const char *s = path ? path : "/usr/local/bin:/usr/bin:/bin"; *s;) {
        size_t n = strcspn(s, ":");
        const char *at = n ? str_fmt("%.*s/%s", (int)n, s, name) : str_fmt("./%s", name);
        if (access(at, X_OK) == 0 && stat(at, &st) == 0 && S_ISREG(st.st_mode))
            return at;
        s += n + (s[n] == ':');
    }
    return NULL;
}

/* ---- folders ------------------------------------------------------------------------ */

static const char *temporary;
static pid_t owner;

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

void temporary_remove(void)
{
    if (temporary && getpid() == owner)
        nftw(temporary, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (told && getpid() == owner) {
        signal(told, SIG_DFL);
        raise(told);
    }
}

const char *shell_word(const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./-+=,:@%";
    Text t = { 0 };
    if (*s && s[strspn(s, plain)] == 0)
        return s;
    text_add(&t, "'");
    for (; *s; s++)
        text_add(&t, *s == '\'' ? "'\\''" : "%c", *s);
    text_add(&t, "'");
    return t.at;
}

const char *temporary_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/teracube.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (temporary)
        return temporary;
    if (n >= (int)sizeof path || mkdtemp(path) == NULL)
        die(EXIT_WORLD, "could not make a folder in %s: %s", tmp && *tmp ? tmp : "/tmp",
            strerror(n >= (int)sizeof path ? ENAMETOOLONG : errno));
    owner = getpid();
    temporary = str(path);
    struct sigaction act = { .sa_handler = tell }, was;
    for (int i = 0; i < ENDINGS; i++)
        if (sigaction(endings[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)    // nohup
            sigaction(endings[i], &act, NULL);
    atexit(temporary_remove);
    return temporary;
}
