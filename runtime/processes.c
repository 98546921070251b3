/*
 * processes.c - ranks that are processes: started by Open MPI's mpirun, one rank each.
 *
 * The executable is not linked with MPI. Where a launcher started it, libmpi is opened by
 * name and a dozen functions looked up. Open MPI's handles are addresses of objects that
 * the library exports (ompi_mpi_comm_world, ompi_mpi_byte, ..), so no header is needed;
 * a library that does not export them is refused. MPI only moves bytes: no reduction, no
 * datatypes, no communicators but the world.
 *
 * Only worker 0 calls MPI while the ranks live, and the main thread before and after
 * (MPI_THREAD_SERIALIZED). Nobody blocks inside the library: who waits tests, spins where
 * every thread has a core, else sleeps until a peer rings, for ranks may outnumber cores by
 * far. (To give turns away instead made steps three times longer.) Peers on other machines
 * cannot ring: then it naps.
 *
 * The processes of one machine share a board: what each rank is doing (RtSign), its
 * process, and whether somebody has told an error. It is a memfd of the lowest of them, which
 * the others open through /proc: no name stays behind. From it a rank knows for whom those
 * wait that it waits for, and that a process is gone; of ranks on other machines it sees
 * nothing. The main thread looks at it ten times a second (rt_mpi_watch).
 *
 * The end of a run:
 *   all well, or all agreed on an error     MPI_Finalize; who found the error tells it
 *   an error of one rank                    it tells, then MPI_Abort
 *   a process is gone, or SIGTERM came      the first survivor tells whom it waited for,
 *                                           all of them exit
 */
#include "rt_impl.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SERIALIZED = 2,             // MPI_THREAD_SERIALIZED
    PIECE = 1 << 30,            // bytes of a message; larger ones go in several
    NAP_NS = 100 * 1000,        // TUNING: without bells; 20 to 200 us are alike
    SLEEP_NS = 2000 * 1000,     // with bells: MPI may want to be called though nobody rang
    EAGER = 4000,               // bytes that certainly need one call on each side
    RINGS = 3,                  // for larger ones: request, answer, data
    TAG_SHARE = 1, TAG_AGREE,
    ERROR_TEXT = 512,           // above MPI_MAX_ERROR_STRING
};
static const double STILL_S = 1;        // SIGTERM ends a rank whose peers stood still so long
static const double KILLED_S = 5;       // for so long a rank waits to be ended by another one

/* What the processes tell each other first. */
typedef struct {
    char host[64], boot[40];            // boot_id: names of containers may be equal
    uint64_t cookie;
    int32_t pid, fd;                    // where its board can be opened
    int32_t first_cpu, ncpus;
} Hello;

typedef struct {
    uint64_t cookie;
    atomic_int told;                    // somebody tells the error
    RtSign sign[];                      // by rank
} Board;

/* A message that is under way. `box`: what must not be used before, or -1. `large`:
 * it takes calls of MPI on both sides before it has come. */
typedef struct { void *request; int peer, box; bool large; } Message;

struct RtMpi {
    void *world, *byte;
    int (*init_thread)(int *, char ***, int, int *);
    int (*finalize)(void), (*initialized)(int *);
    int (*abort)(void *, int);
    int (*comm_rank)(void *, int *);
    int (*comm_size)(void *, int *);
    int (*comm_set_errhandler)(void *, void *);
    int (*isend)(const void *, int, void *, int, int, void *, void **);
    int (*irecv)(void *, int, void *, int, int, void *, void **);
    int (*test)(void **, int *, void *);
    int (*error_string)(int, char *, int *);
    int rank, size;
    Hello *hello;                       // by rank
    Board *board; size_t board_bytes;
    int board_fd;
    Message *message; int nmessages, room;
    bool agreeing;                      // waits although the run has failed
    bool agreed, tells;                 // the error is everybody's; is told by this process
    uint64_t moves; double still_since, told_since;     // of the main thread
};

/* ---- how it was started -------------------------------------------------- */

bool rt_launched(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK");
}

/* As far as the environment says: before MPI has started. */
int rt_launched_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank ? rank : getenv("PMIX_RANK");
    return rank ? atoi(rank) : 0;
}

/* ---- the library --------------------------------------------------------- */

static void *open_library(Rt *rt, const char **name)
{
    static const char *const names[] = { "libmpi.so.40", "libmpi.so.12", "libmpi.so" };
    const char *want = getenv("RT_MPI");
    void *lib = NULL;
    if (want && *want) {
        *name = want;
        lib = dlopen(want, RTLD_NOW | RTLD_GLOBAL);
        if (!lib)
            rt_fail(rt, RT_WORLD, "%s: error: RT_MPI: %s", rt->exe, dlerror());
        return lib;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++) {
        *name = names[i];
        lib = dlopen(*name, RTLD_NOW | RTLD_GLOBAL);    // its parts look for its symbols
    }
    if (!lib)
        rt_fail(rt, RT_WORLD, "%s: error: started by mpirun, but there is no libmpi.so.40; install "
                "Open MPI's library (libopenmpi3), set RT_MPI=PATH, or RT_COMM=threads for ranks "
                "as threads", rt->exe);
    return lib;
}

static int load(Rt *rt, RtMpi *m)
{
    const char *name = "";
    void *lib = open_library(rt, &name);
    if (!lib)
        return atomic_load(&rt->status);
    const struct { const char *symbol; void *to; } all[] = {
        { "ompi_mpi_comm_world", &m->world }, { "ompi_mpi_byte", &m->byte },
        { "MPI_Init_thread", &m->init_thread }, { "MPI_Finalize", &m->finalize },
        { "MPI_Initialized", &m->initialized },
        { "MPI_Abort", &m->abort }, { "MPI_Comm_rank", &m->comm_rank },
        { "MPI_Comm_size", &m->comm_size },
        { "MPI_Comm_set_errhandler", &m->comm_set_errhandler }, { "MPI_Isend", &m->isend },
        { "MPI_Irecv", &m->irecv }, { "MPI_Test", &m->test },
        { "MPI_Error_string", &m->error_string },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *p = dlsym(lib, all[i].symbol);
        if (!p)
            return rt_fail(rt, RT_WORLD, "%s: error: %s is not Open MPI's library: it has no %s; "
                           "set RT_MPI=PATH to Open MPI's libmpi.so.40", rt->exe, name,
                           all[i].symbol);
        memcpy(all[i].to, &p, sizeof p);
    }
    int thread_level = SERIALIZED, running = 0;
    m->initialized(&running);           // by the run before this one
    if (!running && m->init_thread(NULL, NULL, SERIALIZED, &thread_level))
        return rt_fail(rt, RT_WORLD, "%s: error: MPI_Init_thread failed", rt->exe);
    m->comm_set_errhandler(m->world, dlsym(lib, "ompi_mpi_errors_return"));
    m->comm_rank(m->world, &m->rank);
    m->comm_size(m->world, &m->size);
    if (thread_level < SERIALIZED)
        return rt_fail(rt, RT_WORLD, "%s: error: this MPI library cannot be called by threads in "
                       "turn (MPI_THREAD_SERIALIZED)", rt->exe);
    return RT_OK;
}

/* ---- messages ------------------------------------------------------------ */

static int broken(Rt *rt, int rc, const RtRank *r, const char *what)
{
    char why[ERROR_TEXT] = "", text[1200] = "";
    int n = 0;
    rt->mpi->error_string(rc, why, &n);
    if (r)
        rt_waiting(r, -1, what, 0, text, sizeof text);
    return rt_fail(rt, RT_WORLD, "%s: error: %s%sMPI: %s", rt->exe, text, *text ? ": " : "", why);
}

/* Where `peer` sleeps, it looks again. */
static void ring(RtMpi *m, int peer)
{
    RtSign *sign = m->board ? &m->board->sign[peer] : NULL;
    if (!sign || atomic_load(&sign->pid) == 0)
        return;
    atomic_fetch_add(&sign->bell, 1);
    if (atomic_load(&sign->sleeps))
        syscall(SYS_futex, &sign->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Until the bell is no longer at `heard`, or for a while. */
static void sleep_till_rung(RtMpi *m, int peer, unsigned heard)
{
    RtSign *me = &m->board->sign[m->rank];
    if (atomic_load(&m->board->sign[peer].pid) == 0) {
        nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
        return;
    }
    const struct timespec limit = { 0, SLEEP_NS };
    syscall(SYS_futex, &me->bell, FUTEX_WAIT, heard, &limit, NULL, 0);
}

static Message *new_message(RtMpi *m, int peer, int box, int bytes)
{
    if (m->nmessages == m->room) {
        int room = 2 * m->room + 4 * m->size + 64;
        Message *more = rt_alloc((size_t)room, sizeof *more);
        if (m->nmessages)
            memcpy(more, m->message, sizeof *more * (size_t)m->nmessages);
        free(m->message);
        m->message = more;
        m->room = room;
    }
    Message *new = &m->message[m->nmessages++];
    *new = (Message){ NULL, peer, box, bytes > EAGER };
    return new;
}

int rt_mpi_send(Rt *rt, const void *p, int64_t bytes, int peer, int tag, int box)
{
    RtMpi *m = rt->mpi;
    do {
        int n = bytes < PIECE ? (int)bytes : PIECE;
        Message *new = new_message(m, peer, box, n);
        int rc = m->isend(p, n, m->byte, peer, tag, m->world, &new->request);
        if (rc)
            return broken(rt, rc, NULL, NULL);
        p = (const char *)p + n;
        bytes -= n;
    } while (bytes > 0);
    ring(m, peer);
    return RT_OK;
}

int rt_mpi_recv(Rt *rt, void *p, int64_t bytes, int peer, int tag)
{
    RtMpi *m = rt->mpi;
    do {
        int n = bytes < PIECE ? (int)bytes : PIECE;
        Message *new = new_message(m, peer, -1, n);
        int rc = m->irecv(p, n, m->byte, peer, tag, m->world, &new->request);
        if (rc)
            return broken(rt, rc, NULL, NULL);
        p = (char *)p + n;
        bytes -= n;
    } while (bytes > 0);
    return RT_OK;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Is it time to give up? Counts only while those `r` waits for stand still. */
static int check_time(RtRank *r, const char *what, uint64_t *moves, double *since)
{
    char text[1600];
    double now = rt_now_s();
    uint64_t now_moves = rt_moves(r);
    if (*since == 0 || now_moves != *moves) {
        *since = now;
        *moves = now_moves;
    }
    if (now - *since < r->rt->timeout_s)
        return RT_OK;
    rt_waiting(r, -1, what, now - *since, text, sizeof text);
    return rt_fail(r->rt, RT_WORLD, "%s: error: %s", r->rt->exe, text);
}

/* Waits for one message. r: NULL before the ranks live, then there is no limit. */
static int await(Rt *rt, RtRank *r, Message *message, const char *what)
{
    RtMpi *m = rt->mpi;
    RtSign *me = m->board ? &m->board->sign[m->rank] : NULL;
    uint64_t moves = 0;
    double since = 0;
    int rings = 0;
    for (int round = 0;; round++) {
        bool sleeps = round >= rt->spin && me;
        if (sleeps)
            atomic_store(&me->sleeps, 1);
        unsigned heard = me ? atomic_load(&me->bell) : 0;
        int done = 0, rc = m->test(&message->request, &done, NULL);
        if (sleeps && !rc && !done) {
            if (message->large && rings++ < RINGS)
                ring(m, message->peer);
            sleep_till_rung(m, message->peer, heard);
        }
        if (sleeps)
            atomic_store(&me->sleeps, 0);
        if (rc)
            return broken(rt, rc, r, what);
        if (done) {
            if (round > 0 && r)
                atomic_store(&r->sign->waits_for, -1);
            if (message->large)
                ring(m, message->peer);
            return RT_OK;
        }
        if (round == 0 && r)
            atomic_store(&r->sign->waits_for, message->peer);
        if (!sleeps) {
            pause_cpu();
            continue;
        }
        if (atomic_load(&rt->status) && !m->agreeing)
            return atomic_load(&rt->status);
        if (r && round % 32 == 31)
            RT_TRY(check_time(r, what, &moves, &since));
    }
}

/* Waits for all messages with this `box`. */
int rt_mpi_wait(Rt *rt, RtRank *r, int box, const char *what)
{
    RtMpi *m = rt->mpi;
    int left = 0, i = 0, status = RT_OK;
    for (; i < m->nmessages && !status; i++) {
        if (m->message[i].box == box)
            status = await(rt, r, &m->message[i], what);
        else
            m->message[left++] = m->message[i];
    }
    for (; i < m->nmessages; i++)
        m->message[left++] = m->message[i];
    m->nmessages = left;
    return status;
}

/* ---- agreement ----------------------------------------------------------- */

typedef struct { int32_t status, rank, failed; } Verdict;

/* Keeps the error of the lowest rank that has one: that process tells it, the others know. */
static int accept(Rt *rt, const RtRank *r, Verdict v)
{
    RtMpi *m = rt->mpi;
    char who[48];
    if (!v.status)
        return RT_OK;
    m->agreed = true;
    pthread_mutex_lock(&rt->fault_lock);
    atomic_store(&rt->status, v.status);
    m->tells = v.rank == m->rank;
    size_t n = strlen(rt->fault);
    if (m->tells && v.failed < m->size) {
        if (r)
            rt_who(r, who);
        else
            snprintf(who, sizeof who, "rank %d", m->rank);
        snprintf(rt->fault + n, sizeof rt->fault - n, "\nnote: so says %s on %s", who,
                 m->hello[m->rank].host);
    }
    pthread_mutex_unlock(&rt->fault_lock);
    return v.status;
}

static int exchange_verdicts(Rt *rt, RtRank *r, Verdict *v)
{
    static const char what[] = "an agreement";
    RtMpi *m = rt->mpi;
    if (m->rank > 0) {
        RT_TRY(rt_mpi_send(rt, v, sizeof *v, 0, TAG_AGREE, -1));
        RT_TRY(rt_mpi_wait(rt, r, -1, what));
        RT_TRY(rt_mpi_recv(rt, v, sizeof *v, 0, TAG_AGREE));
        return rt_mpi_wait(rt, r, -1, what);
    }
    Verdict *all = rt_alloc((size_t)m->size, sizeof *all);
    int status = RT_OK;
    for (int i = 1; i < m->size && !status; i++)
        status = rt_mpi_recv(rt, &all[i], sizeof *all, i, TAG_AGREE);
    if (!status)
        status = rt_mpi_wait(rt, r, -1, what);
    for (int i = 1; i < m->size; i++) {
        if (all[i].status && !v->status)
            *v = (Verdict){ all[i].status, i, v->failed };
        v->failed += all[i].status != 0;
    }
    for (int i = 1; i < m->size && !status; i++)
        status = rt_mpi_send(rt, v, sizeof *v, i, TAG_AGREE, -1);
    if (!status)
        status = rt_mpi_wait(rt, r, -1, what);
    free(all);
    return status;
}

/* All processes come here; an error of one is then an error of all. r: NULL before the
 * ranks live. */
int rt_mpi_agree(Rt *rt, RtRank *r)
{
    int status = atomic_load(&rt->status);
    if (rt->mpi->agreed)
        return status;
    Verdict v = { status, rt->mpi->rank, status != 0 };
    rt->mpi->agreeing = true;
    int bad = exchange_verdicts(rt, r, &v);
    rt->mpi->agreeing = false;
    return bad ? bad : accept(rt, r, v);
}

/* ---- the board ----------------------------------------------------------- */

static int make_board(Rt *rt, RtMpi *m)
{
    m->board_bytes = sizeof(Board) + sizeof(RtSign) * (size_t)m->size;
    m->board_fd = memfd_create("teracube", MFD_CLOEXEC);
    void *p = MAP_FAILED;
    if (m->board_fd >= 0 && !ftruncate(m->board_fd, (off_t)m->board_bytes))
        p = mmap(NULL, m->board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->board_fd, 0);
    if (p == MAP_FAILED)
        return rt_fail(rt, RT_WORLD, "%s: error: could not make shared memory: %s", rt->exe,
                       strerror(errno));
    m->board = p;
    for (int i = 0; i < m->size; i++) {
        atomic_init(&m->board->sign[i].op, -1);
        atomic_init(&m->board->sign[i].waits_for, -1);
    }
    return RT_OK;
}

/* Takes the board of the lowest rank of this machine, where it can be opened. */
static void share_board(RtMpi *m)
{
    const Hello *me = &m->hello[m->rank], *lead = m->hello;
    while (strcmp(lead->host, me->host) != 0 || strcmp(lead->boot, me->boot) != 0)
        lead++;
    if (lead == me)
        return;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", lead->pid, lead->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    Board *b = mmap(NULL, m->board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (b == MAP_FAILED || b->cookie != lead->cookie) {     // another container's process
        if (b != MAP_FAILED)
            munmap(b, m->board_bytes);
        close(fd);
        return;
    }
    munmap(m->board, m->board_bytes);
    close(m->board_fd);
    m->board = b;
    m->board_fd = fd;
}

static void read_line(const char *path, char *out, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, room - 1);
    out[n > 0 ? n : 0] = 0;
    if (fd >= 0)
        close(fd);
}

int rt_mpi_share(Rt *rt, const void *mine, void *all, size_t bytes)
{
    const RtMpi *m = rt->mpi;
    for (int i = 0; i < m->size; i++)
        if (i != m->rank) {
            RT_TRY(rt_mpi_recv(rt, (char *)all + bytes * (size_t)i, (int64_t)bytes, i, TAG_SHARE));
            RT_TRY(rt_mpi_send(rt, mine, (int64_t)bytes, i, TAG_SHARE, -1));
        }
    memmove((char *)all + bytes * (size_t)m->rank, mine, bytes);
    return rt_mpi_wait(rt, NULL, -1, "the start");
}

static int greet(Rt *rt, RtMpi *m)
{
    Hello *me = &m->hello[m->rank];
    cpu_set_t cpus;
    gethostname(me->host, sizeof me->host - 1);
    read_line("/proc/sys/kernel/random/boot_id", me->boot, sizeof me->boot);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    me->pid = getpid();
    me->fd = m->board_fd;
    me->cookie = (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec << 20
                 ^ (uint64_t)me->pid;
    m->board->cookie = me->cookie;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        me->ncpus = CPU_COUNT(&cpus);
        while (me->first_cpu < CPU_SETSIZE - 1 && !CPU_ISSET(me->first_cpu, &cpus))
            me->first_cpu++;
    }
    return rt_mpi_share(rt, me, m->hello, sizeof *me);
}

/* ---- joining ------------------------------------------------------------- */

/* First of all: which rank is this process? */
int rt_mpi_join(Rt *rt)
{
    RtMpi *m = rt->mpi = rt_alloc(1, sizeof *m);
    m->board_fd = -1;
    int status = load(rt, m);
    if (status) {                       // nobody to agree with: one of each machine tells
        const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
        m->agreed = true;
        m->tells = !local || strcmp(local, "0") == 0;
        return status;
    }
    rt->first = m->rank;
    rt->nlocal = 1;
    if (m->size != rt->nranks) {
        m->agreed = true;
        m->tells = m->rank == 0;
        return rt_fail(rt, RT_USAGE, "%s: error: the plan has %d ranks, the launcher started %d "
                       "process%s; use mpirun -np %d", rt->exe, rt->nranks, m->size,
                       m->size == 1 ? "" : "es", rt->nranks);
    }
    m->hello = rt_alloc((size_t)m->size, sizeof *m->hello);
    RT_TRY(make_board(rt, m));
    RT_TRY(greet(rt, m));
    share_board(m);
    rt->sign = m->board->sign;
    atomic_store(&rt->sign[m->rank].pid, m->hello[m->rank].pid);
    rt->save_id = m->hello[0].pid;
    RT_TRY(rt_mpi_agree(rt, NULL));
    rt->started_s = rt_now_s();
    return RT_OK;
}

/* Name of the i-th machine, NULL behind the last one. */
const char *rt_mpi_host(const Rt *rt, int i)
{
    const Hello *h = rt->mpi->hello;
    for (int k = 0; k < rt->nranks; k++) {
        int first = 0;
        while (strcmp(h[first].host, h[k].host) != 0)
            first++;
        if (first == k && i-- == 0)
            return h[k].host;
    }
    return NULL;
}

/* Added to times of rank `rank`, gives times of this process's clock. Clocks of different
 * machines are taken to agree when all had joined. */
double rt_mpi_clock(const Rt *rt, int rank, double started_s)
{
    const Hello *h = rt->mpi->hello;
    bool same = strcmp(h[rank].boot, h[rt->mpi->rank].boot) == 0;
    return same ? 0 : rt->started_s - started_s;
}

/* Does every worker that may run where this process runs have a core? */
bool rt_mpi_has_cores(const Rt *rt)
{
    const Hello *h = rt->mpi->hello, *me = &h[rt->mpi->rank];
    int workers = 0;
    for (int i = 0; i < rt->nranks; i++)
        if (strcmp(h[i].boot, me->boot) == 0 && h[i].first_cpu == me->first_cpu)
            workers += rt->nworkers;
    return workers <= me->ncpus;
}

/* ---- those who are gone -------------------------------------------------- */

static int find_dead(const RtMpi *m)
{
    for (int i = 0; i < m->size; i++) {
        int pid = atomic_load(&m->board->sign[i].pid);
        if (pid > 0 && kill(pid, 0) && errno == ESRCH)
            return i;
    }
    return -1;
}

/* Only one process of a machine tells the error that ends the run. */
bool rt_mpi_tells(Rt *rt)
{
    RtMpi *m = rt->mpi;
    if (!m->agreed && !m->tells)
        m->tells = !m->board || !atomic_exchange(&m->board->told, 1);
    return m->tells;
}

/* To an error of this rank alone, where it came; the ranks being still there. */
void rt_mpi_place_fault(Rt *rt)
{
    char text[400];
    size_t n = strlen(rt->fault);
    if (!atomic_load(&rt->status) || rt->mpi->agreed || strstr(rt->fault, "rank "))
        return;
    rt_doing(&rt->rank[rt->first], text, sizeof text);
    snprintf(rt->fault + n, sizeof rt->fault - n, "\nnote: %s", text);
}

/* Ends this process; the launcher ends the others, or they see that it is gone. */
static void give_up(Rt *rt, const char *why)
{
    char text[1600];
    if (why && rt_mpi_tells(rt)) {
        RtRank *r = &rt->rank[rt->first];
        double s = rt->mpi->still_since > 0 ? rt_now_s() - rt->mpi->still_since : 0;
        if (atomic_load(&r->sign->waits_for) >= 0)
            rt_waiting(r, -1, "a message", s, text, sizeof text);
        else
            rt_doing(r, text, sizeof text);
        fflush(stdout);
        fprintf(stderr, "%s: error: %s; %s\n", rt->exe, why, text);
    }
    if (rt->save.fd >= 0)
        unlink(rt->save.tmp);
    _exit(RT_WORLD);
}

/* The main thread, ten times a second while the ranks live. */
void rt_mpi_watch(Rt *rt)
{
    RtMpi *m = rt->mpi;
    RtRank *r = &rt->rank[rt->first];
    char why[64];
    double now = rt_now_s();
    uint64_t moves = rt_moves(r);
    bool waits = atomic_load(&r->sign->waits_for) >= 0;
    if (moves != m->moves || !waits || m->still_since == 0) {
        m->moves = moves;
        m->still_since = now;
    }
    if (atomic_load(&m->board->told) && !m->tells) {
        m->told_since = m->told_since > 0 ? m->told_since : now;
        if (rt_signalled() || now - m->told_since > KILLED_S)
            give_up(rt, NULL);
        return;
    }
    int dead = find_dead(m);
    if (dead >= 0) {                    // what it did last is no news
        atomic_store(&m->board->sign[dead].op, -1);
        atomic_store(&m->board->sign[dead].waits_for, -1);
        snprintf(why, sizeof why, "rank %d is gone", dead);
        give_up(rt, why);
    }
    if (rt_signalled() == SIGTERM && waits && now - m->still_since > STILL_S)
        give_up(rt, "SIGTERM came");
}

/* ---- the end ------------------------------------------------------------- */

/* Last of all, errors being told. */
void rt_mpi_leave(Rt *rt)
{
    RtMpi *m = rt->mpi;
    int status = atomic_load(&rt->status);
    if (m->finalize && m->hello && status && !m->agreed) {
        if (!m->tells)
            nanosleep(&(struct timespec){ (time_t)KILLED_S, 0 }, NULL);
        signal(SIGALRM, SIG_DFL);
        alarm((unsigned)KILLED_S);      // should MPI_Abort not return
        m->abort(m->world, status);
        _exit(status);
    }
    if (m->size > 0 && (status || !rt->options->goes_on))
        m->finalize();
    else if (m->size > 0)
        ;                               // another run of this process follows
    else if (!m->tells)                 // the launcher ends all when the first one leaves
        sleep(1);
    if (m->board)
        munmap(m->board, m->board_bytes);
    if (m->board_fd >= 0)
        close(m->board_fd);
    free(m->hello);
    free(m->message);
    free(m);
    rt->mpi = NULL;
    rt->sign = NULL;
}
