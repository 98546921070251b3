/*
 * test_launch.c - launch.c alone: what launchers say of a process, and ranks that meet,
 * add up, fail and vanish. Ranks are forked processes.
 */
#include "launch.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- what launchers say ------------------------------------------------------ */

static void clear(void)
{
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_USE_AGENT_STORE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE",
        "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID",
        "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

/* "NAME=VALUE NAME=VALUE": the environment; values have no blanks. */
static void set(const char *all)
{
    char text[600], *save, *word;
    clear();
    snprintf(text, sizeof text, "%s", all);
    for (word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        *value++ = 0;
        setenv(word, value, 1);
    }
}

static void expect(const char *all, const char *by, int rank, int world, int local,
                   const char *root)
{
    LaunchPlace p;
    LaunchFault f;
    char at[300];
    set(all);
    cr_assert(launch_find(NULL, NULL, NULL, &p, &f), "%s: %s", all, f.text);
    cr_assert_str_eq(p.by ? p.by : "nobody", by, "%s", all);
    cr_assert(p.rank == rank && p.world == world && p.local == local, "%s: %d of %d, local %d",
              all, p.rank, p.world, p.local);
    snprintf(at, sizeof at, "%s:%s", p.root, p.port);
    cr_assert_str_eq(at, root, "%s: root %s", all, at);
}

Test(launch, environments)
{
    expect("", "nobody", 0, 1, -1, ":");
    expect("RANK=3", "nobody", 0, 1, -1, ":");          // of some other program
    expect("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=29500", "torchrun", 3, 8, 1,
           "a:29500");
    expect("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=29500 "
           "TORCHELASTIC_USE_AGENT_STORE=True", "torchrun", 3, 8, 1, "a:29501");
    expect("SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_JOB_ID=100 "
           "SLURM_STEP_NODELIST=gpu[03-07,9],login SLURM_STEP_ID=2", "Slurm", 5, 8, 1,
           "gpu03:16602");
    expect("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a", "nobody", 0, 1, -1, ":");
    expect("SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=0 SLURM_JOB_ID=7 "
           "SLURM_STEP_NODELIST=r[1-2]n[04-05,7]-x,b", "Slurm", 0, 8, 0, "r1n04-x:15112");
    expect("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_JOB_ID=7 "
           "SLURM_STEP_NODELIST=a-b.c,d-e MASTER_ADDR=m MASTER_PORT=5", "Slurm", 0, 2, 0, "m:5");
    expect("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_JOB_ID=937 "
           "SLURM_STEP_NODELIST=a-b.c,d-e", "Slurm", 1, 2, 0, "a-b.c:29992");
    /* mpirun in a batch script: what Slurm says is of the script */
    expect("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
           "OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 "
           "SLURM_JOB_NODELIST=n[1-2]", "Open MPI", 2, 4, 0, "n1:15016");
    LaunchPlace a, b;
    LaunchFault f;
    set("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
        "PMIX_NAMESPACE=job1");
    cr_assert(launch_find(NULL, NULL, NULL, &a, &f));
    setenv("PMIX_NAMESPACE", "job2", 1);
    cr_assert(launch_find(NULL, NULL, NULL, &b, &f));
    cr_assert(strcmp(a.root, "127.0.0.1") == 0 && strcmp(a.port, b.port) != 0,
              "two jobs of a machine share a port");
    cr_assert(launch_find("[fe80::1]:77", "1", "2", &a, &f));
    cr_assert(strcmp(a.root, "fe80::1") == 0 && strcmp(a.port, "77") == 0 && a.rank == 1);
    cr_assert(launch_find("h:77", NULL, NULL, &a, &f));         // the root alone is another
    cr_assert(strcmp(a.by, "Open MPI") == 0 && strcmp(a.root, "h") == 0 && a.rank == 2);
}

static void refused(const char *all, const char *root, const char *rank, const char *world,
                    const char *text)
{
    LaunchPlace p;
    LaunchFault f;
    set(all);
    cr_assert_not(launch_find(root, rank, world, &p, &f), "%s is fine", all);
    cr_assert_not_null(strstr(f.text, text), "%s: %s", all, f.text);
}

Test(launch, wrong_environments)
{
    refused("RANK=0 WORLD_SIZE=2", NULL, NULL, NULL, "not MASTER_ADDR");
    refused("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", NULL, NULL, NULL, "not MASTER_PORT");
    refused("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535", NULL, NULL, NULL, "is no port");
    refused("RANK=x WORLD_SIZE=2", NULL, NULL, NULL, "rank `x` of `2` makes no sense");
    refused("RANK=2 WORLD_SIZE=2", NULL, NULL, NULL, "there is no rank 2 among 2");
    refused("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1", NULL,
            NULL, NULL, "does not say on which host rank 0 is");
    refused("", "a:1", NULL, NULL, "--root needs --rank and --world");
    refused("", "a:1", "0", NULL, "go together");
    refused("", NULL, "0", "2", "go together");
    refused("", "a", "0", "2", "expected HOST:PORT");
    refused("", "a:0", "0", "2", "expected HOST:PORT");
    refused("", "a:99999", "0", "2", "expected HOST:PORT");
    refused("", ":5", "0", "2", "expected HOST:PORT");
    refused("", "a:1", "0", "0", "makes no sense");
}

/* ---- ranks ------------------------------------------------------------------------ */

enum { MOST = 8 };

/* What the ranks leave for the test. */
typedef struct { char text[MOST][300]; int good[MOST]; double seconds[MOST]; } Left;
static Left *left;

static int free_port(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0 &&
              getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    close(fd);
    return ntohs(a.sin_port);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void (*Body)(Launch *l, int rank, int world);

static Launch *join(int port, int rank, int world, uint64_t program, double limit_s)
{
    LaunchPlace p = { .by = "--rank", .rank = rank, .world = world, .local = -1,
                      .root = "127.0.0.1" };
    LaunchFault f;
    snprintf(p.port, sizeof p.port, "%d", port);
    double begin = seconds();
    Launch *l = launch_join(&p, program, limit_s, &f);
    left->seconds[rank] = seconds() - begin;
    if (!l)
        snprintf(left->text[rank], sizeof left->text[rank], "%s%.250s", f.tell ? "" : "(silent) ",
                 f.text);
    return l;
}

static pid_t start(int port, int rank, int world, Body body)
{
    pid_t pid = fork();
    if (pid == 0) {
        Launch *l = join(port, rank, world, 1, 3);
        if (l)
            body(l, rank, world);
        _exit(0);
    }
    return pid;
}

/* Ranks from..world-1 of `world`, all to their end. */
static void run(int from, int world, Body body)
{
    pid_t pid[MOST];
    int port = free_port();
    left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(left != MAP_FAILED);
    for (int r = from; r < world; r++)
        pid[r] = start(port, r, world, body);
    for (int r = from; r < world; r++)
        waitpid(pid[r], NULL, 0);
}

static void work(Launch *l, int rank, int world)
{
    int good = 0, numbers[MOST];
    /* sums in member order: 1e16 + 1 - 1e16 depends on it */
    double v[2] = { rank == 0 ? 1e16 : rank == 1 ? 1 : rank == 2 ? -1e16 : 0, rank };
    good += launch_sum(l, 1, world, rank, v, 2) && v[0] == (1e16 + 1) - 1e16 && v[1] == 6;
    /* the odd ones, and the even ones backwards */
    double one = rank == 0 ? 1e16 : rank == 2 ? 1 : rank;
    good += launch_sum(l, rank % 2 ? 11 : 10, 2, rank % 2 ? rank / 2 : 1 - rank / 2, &one, 1) &&
            one == (rank % 2 ? 4 : 1 + 1e16);
    int mine = 10 * rank, all = 1;
    good += launch_share(l, &mine, numbers, sizeof mine);
    for (int r = 0; r < world; r++)
        all &= numbers[r] == 10 * r;
    good += all;
    if (rank > 0) {
        char text[20000];               // more than a socket takes at once, of each its own
        memset(text, 'a' + rank, sizeof text);
        good += launch_bring(l, text, 1000 * (size_t)rank + 17000);
    }
    for (int r = 1; rank == 0 && r < world; r++) {
        void *p;
        size_t n;
        all &= launch_take(l, r, &p, &n) && n == 1000 * (size_t)r + 17000 &&
               *(char *)p == 'a' + r;
        free(p);
    }
    good += rank == 0 && all;
    good += launch_peer(l, world - 1)->pid > 0 && launch_peer(l, 0)->host[0] != 0;
    LaunchNews n;
    good += launch_news(l, &n) == LAUNCH_QUIET;
    left->good[rank] = good;
    launch_leave(l, true);
}

Test(launch, ranks_work_together)
{
    run(0, 4, work);
    for (int r = 0; r < 4; r++)
        cr_assert_eq(left->good[r], 7, "rank %d: %d of 7, %s", r, left->good[r], left->text[r]);
}

static void nothing(Launch *l, int rank, int world)
{
    (void)l, (void)rank, (void)world;
}

Test(launch, a_peer_never_comes)
{
    run(1, 3, nothing);                 // nor does rank 0
    for (int r = 1; r < 3; r++)
        cr_assert_not_null(strstr(left->text[r], "waited in vain for rank 0 at 127.0.0.1"), "%s",
                           left->text[r]);
    left->text[0][0] = 0;
    int port = free_port();
    pid_t one = start(port, 1, 4, nothing), two = start(port, 0, 4, nothing);
    waitpid(one, NULL, 0);
    waitpid(two, NULL, 0);
    cr_assert_not_null(strstr(left->text[0], "ranks 2 and 3 did not come within 3 s"), "%s",
                       left->text[0]);
    cr_assert_eq(strncmp(left->text[1], "(silent) ranks 2 and 3", 22), 0, "%s", left->text[1]);
    cr_assert(left->seconds[1] < 5);
}

Test(launch, not_the_same_run)
{
    int port = free_port();
    left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t other = fork();
    if (other == 0)
        _exit(join(port, 1, 2, 2, 3) != NULL);
    cr_assert_null(join(port, 0, 2, 1, 3));
    waitpid(other, NULL, 0);
    cr_assert_not_null(strstr(left->text[0], "runs another program"), "%s", left->text[0]);
    other = fork();
    if (other == 0)
        _exit(join(port, 1, 4, 1, 3) != NULL);
    cr_assert_null(join(port, 0, 2, 1, 3));
    waitpid(other, NULL, 0);
    cr_assert_not_null(strstr(left->text[0], "was started as one of 4, rank 0 as one of 2"), "%s",
                       left->text[0]);
}

/* Somebody else at the port says something, and is not taken for a rank. */
Test(launch, a_stranger_calls)
{
    int port = free_port();
    left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[2] = { start(port, 0, 2, nothing), 0 };
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port) };
    int fd = -1;
    for (int i = 0; i < 100 && fd < 0; i++) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
            close(fd);
            fd = -1;
            usleep(20000);
        }
    }
    char junk[200];
    memset(junk, 'x', sizeof junk);
    cr_assert_eq(write(fd, junk, sizeof junk), (ssize_t)sizeof junk);
    pid[1] = start(port, 1, 2, nothing);
    for (int i = 0; i < 2; i++)
        waitpid(pid[i], NULL, 0);
    cr_assert_str_eq(left->text[0], "");
    cr_assert_str_eq(left->text[1], "");
}

/* Rank 2 is killed; the others wait for it and hear of it. */
static void one_dies(Launch *l, int rank, int world)
{
    double v = rank;
    LaunchNews n = { .what = LAUNCH_QUIET };
    left->good[rank] = launch_sum(l, 1, world, rank, &v, 1);
    if (rank == 2)
        raise(SIGKILL);
    double begin = seconds();
    bool goes = launch_sum(l, 1, world, rank, &v, 1);
    launch_news(l, &n);
    if (rank == 0)                      // what others hear is what rank 0 says of it
        launch_fail(l, 4, "rank 2 it was");
    snprintf(left->text[rank], sizeof left->text[rank], "%d %d %.99s", goes, n.rank, n.text);
    left->seconds[rank] = seconds() - begin;
    launch_leave(l, false);
}

Test(launch, a_rank_dies)
{
    run(0, 4, one_dies);
    cr_assert_str_eq(left->text[0], "0 2 its process has ended");
    cr_assert_str_eq(left->text[1], "0 0 rank 2 it was");
    cr_assert_str_eq(left->text[3], "0 0 rank 2 it was");
    for (int r = 0; r < 4; r++)
        cr_assert(left->good[r] && left->seconds[r] < 2);
}

static void one_fails(Launch *l, int rank, int world)
{
    double v = rank;
    LaunchNews n = { .what = LAUNCH_QUIET };
    if (rank == 1)
        launch_fail(l, 3, "rank 1 has had enough");
    launch_sum(l, 1, world + (rank == 1), rank, &v, 1);         // nobody gets an answer
    launch_news(l, &n);
    snprintf(left->text[rank], sizeof left->text[rank], "%d of %d: %.99s", n.status, n.rank,
             n.text);
    launch_leave(l, false);
}

Test(launch, a_rank_fails)
{
    run(0, 3, one_fails);
    for (int r = 0; r < 3; r++)         // rank 1 itself hears that its error is the one
        cr_assert_str_eq(left->text[r], "3 of 1: rank 1 has had enough");
}
