/*
 * launch.c - see launch.h. One thread of each process (`channel`) reads what comes, beats,
 * and in rank 0 adds up and answers; all others write to the socket under its lock.
 *
 *   start   HELLO to rank 0; when all have come, WELCOME with everybody's HELLO, or REFUSE
 *   run     PUT to rank 0, answered by GOT when the group is complete; BLOB; BEAT both ways
 *   end     BYE both ways; FAIL to rank 0, and from it to all
 *
 * A connection that ends without BYE, or says nothing for SILENT_S, is a process that is gone.
 */
#include "launch.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAGIC = 0x54434c31, MOST = 1 << 30,         // bytes of a frame
    FIRST_PORT = 15000, PORTS = 15000,          // below those that systems hand out
    RETRY_MS = 50, BEAT_MS = 1000,
    VALUES = 8,                                 // doubles of a sum
};
static const double SILENT_S = 8;       // TUNING: beats may be late on a busy machine, and
                                        // the loss of a host is to be known within 10 s
static const double SAY_S = 5;          // a peer that does not read for so long is lost
static const double BYE_S = 5;          // for the others to say it too

typedef enum { HELLO, WELCOME, REFUSE, BEAT, PUT, GOT, BLOB, FAIL, BYE } Kind;
enum { SUM, SHARE };

typedef struct {
    uint32_t magic, bytes;              // what follows
    int32_t kind, rank;
    int32_t op, n, me, status;
    uint64_t group;
} Frame;

typedef struct { int32_t world, pad; uint64_t program; LaunchPeer peer; } Hello;

typedef struct {
    int fd;                             // -1: none
    char *in; size_t have, room;        // bytes of frames not yet whole
    double heard;                       // when something came last
    bool bye;
    pthread_mutex_t out;
} Conn;

typedef struct { bool waits; Frame frame; char *data; } Brought;
typedef struct Blob { struct Blob *next; void *data; size_t bytes; } Blob;

struct Launch {
    LaunchPlace place;
    int rank, world;
    LaunchPeer *peer;
    Conn *conn;                         // rank 0: by rank; others: [0]
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;               // over all that follows
    pthread_cond_t change;
    Brought *brought;                   // rank 0: by rank
    Blob **blob;                        // rank 0: by rank, the oldest first
    LaunchState *state;                 // rank 0: by rank; others: [0], its own
    char *answer; size_t answered;      // of the last PUT; NULL: not yet
    LaunchNews news;
    bool over;
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *get(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) {
        fputs("error: out of memory\n", stderr);
        exit(4);
    }
    return p;
}

/* ---- the environment ----------------------------------------------------- */

static bool refuse(LaunchFault *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(LaunchFault *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    return false;
}

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* Whole numbers from 0 on; -1: it is none. */
static int number(const char *s)
{
    char *end;
    long v = s ? strtol(s, &end, 10) : -1;
    return !s || end == s || *end || v < 0 || v > 1 << 24 ? -1 : (int)v;
}

static void set_port(LaunchPlace *p, uint64_t job)
{
    snprintf(p->port, sizeof p->port, "%d", FIRST_PORT + (int)(job % PORTS));
}

/* The first host of "gpu[03-07,9],login1": of each bracket its first number. */
static void first_host(const char *list, char *out, size_t room)
{
    size_t n = 0;
    bool copies = true;
    for (; *list && n + 1 < room; list++) {
        if (*list == ']')
            copies = true;
        else if (*list == ',' && copies)
            break;
        else if (*list == '-' || *list == ',')
            copies = copies && *list == '-';        // a host's own, or behind the first number
        else if (*list == '[') {
            size_t digits = strspn(list + 1, "0123456789");
            digits = digits < room - 1 - n ? digits : room - 1 - n;
            memcpy(out + n, list + 1, digits);
            n += digits;
            copies = false;
        }
        if (copies && *list != ']' && *list != '[')
            out[n++] = *list;
    }
    out[n] = 0;
}

/* "HOST:PORT", an address with colons in brackets. */
static bool read_root(const char *root, LaunchPlace *p, LaunchFault *f)
{
    const char *colon = strrchr(root, ':');
    bool brackets = *root == '[' && colon && colon > root && colon[-1] == ']';
    size_t n = colon ? (size_t)(colon - root) - 2 * brackets : 0;
    int port = colon ? number(colon + 1) : -1;
    if (n < 1 || n >= sizeof p->root || port < 1 || port > 65535)
        return refuse(f, "--root %s: expected HOST:PORT", root);
    memcpy(p->root, root + brackets, n);
    p->root[n] = 0;
    snprintf(p->port, sizeof p->port, "%d", port);
    return true;
}

/* Where rank 0 is, by what the launcher says. */
static bool find_root(LaunchPlace *p, LaunchFault *f)
{
    const char *host = env("MASTER_ADDR"), *port = env("MASTER_PORT");
    const char *nodes = env("SLURM_STEP_NODELIST"), *job = env("SLURM_JOB_ID");
    bool here = number(getenv("OMPI_COMM_WORLD_LOCAL_SIZE")) == p->world;
    nodes = nodes ? nodes : env("SLURM_JOB_NODELIST");
    if (host && port) {
        int n = number(port);
        const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
        if (n < 1 || n > 65534)
            return refuse(f, "MASTER_PORT=%s is no port", port);
        n += agent && strcmp(agent, "True") == 0;   // torchrun itself listens at MASTER_PORT
        snprintf(p->root, sizeof p->root, "%s", host);
        snprintf(p->port, sizeof p->port, "%d", n);
        return true;
    }
    if (strcmp(p->by, "Open MPI") == 0 && here) {
        const char *id = env("PMIX_NAMESPACE");
        uint64_t h = 14695981039346656037u;         // FNV-1a
        for (const char *s = id ? id : "0"; *s; s++)
            h = (h ^ (unsigned char)*s) * 1099511628211u;
        snprintf(p->root, sizeof p->root, "127.0.0.1");
        set_port(p, h >> 16);
        return true;
    }
    if (strcmp(p->by, "torchrun") != 0 && nodes && number(job) >= 0) {
        int step = number(getenv("SLURM_STEP_ID"));
        first_host(nodes, p->root, sizeof p->root);
        set_port(p, (uint64_t)number(job) * 16 + (uint64_t)(step > 0 ? step : 0));
        return true;
    }
    if (strcmp(p->by, "torchrun") == 0)
        return refuse(f, "RANK and WORLD_SIZE are set, but not %s: torchrun sets both; or give "
                      "--root HOST:PORT of rank 0", host ? "MASTER_PORT" : "MASTER_ADDR");
    return refuse(f, "%s does not say on which host rank 0 is: give --root HOST:PORT, or set "
                  "MASTER_ADDR and MASTER_PORT", p->by);
}

bool launch_find(const char *root, const char *rank, const char *world, LaunchPlace *p,
                 LaunchFault *f)
{
    const struct { const char *by, *rank, *world, *local; bool on; } all[] = {
        { "--rank", rank, world, NULL, rank || world },
        { "torchrun", getenv("RANK"), getenv("WORLD_SIZE"), getenv("LOCAL_RANK"),
          env("RANK") && env("WORLD_SIZE") },
        { "Open MPI", getenv("OMPI_COMM_WORLD_RANK"), getenv("OMPI_COMM_WORLD_SIZE"),
          getenv("OMPI_COMM_WORLD_LOCAL_RANK"), env("OMPI_COMM_WORLD_SIZE") },
        { "Slurm", getenv("SLURM_PROCID"),      // batch scripts have it too, but no list of a step
          env("SLURM_STEP_NUM_TASKS") ? getenv("SLURM_STEP_NUM_TASKS") : getenv("SLURM_NTASKS"),
          getenv("SLURM_LOCALID"), env("SLURM_PROCID") && env("SLURM_STEP_NODELIST") },
    };
    *p = (LaunchPlace){ .world = 1, .local = -1 };
    *f = (LaunchFault){ .tell = true };
    size_t i = 0, n = sizeof all / sizeof *all;
    while (i < n && !all[i].on)
        i++;
    if (i == n)
        return !root || refuse(f, "--root needs --rank and --world: no launcher says them");
    if (i == 0 && (!rank || !world || !root))
        return refuse(f, "--rank, --world and --root HOST:PORT go together");
    p->by = all[i].by;
    p->rank = number(all[i].rank);
    p->world = number(all[i].world);
    p->local = number(all[i].local);
    f->tell = p->rank <= 0;
    if (p->world < 1 || p->rank < 0)
        return refuse(f, "%s: rank `%s` of `%s` makes no sense", p->by,
                      all[i].rank ? all[i].rank : "", all[i].world ? all[i].world : "");
    if (p->rank >= p->world) {
        f->tell = true;
        return refuse(f, "%s: there is no rank %d among %d", p->by, p->rank, p->world);
    }
    return root ? read_root(root, p, f) : p->world == 1 || find_root(p, f);
}

/* ---- sockets ------------------------------------------------------------- */

static void set_up(int fd)
{
    int one = 1;
    struct timeval limit = { (time_t)SAY_S, 0 };
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* What cannot be said is lost: the reading side learns of it. */
static void say(Conn *c, Frame f, const void *data)
{
    f.magic = MAGIC;
    struct { const void *p; size_t n; } part[2] = { { &f, sizeof f }, { data, f.bytes } };
    pthread_mutex_lock(&c->out);
    for (int i = 0; i < 2; i++)
        for (const char *p = part[i].p; part[i].n > 0 && c->fd >= 0;) {
            ssize_t n = send(c->fd, p, part[i].n, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0) {                       // a broken frame must not be followed by others
                shutdown(c->fd, SHUT_WR);
                break;
            }
            p += n;
            part[i].n -= (size_t)n;
        }
    pthread_mutex_unlock(&c->out);
}

/* Takes in what has come. false: the other side has closed. */
static bool fill(Conn *c)
{
    for (;;) {
        if (c->room - c->have < 4096) {
            c->room = 2 * c->room + 16384;
            c->in = realloc(c->in, c->room);
            if (!c->in)
                return false;
        }
        ssize_t n = recv(c->fd, c->in + c->have, c->room - c->have, MSG_DONTWAIT);
        if (n > 0) {
            c->have += (size_t)n;
            c->heard = now_s();
            continue;
        }
        return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    }
}

/* The first whole frame; its data stand behind it in c->in. */
static bool whole(const Conn *c, Frame *f)
{
    if (c->have < sizeof *f)
        return false;
    memcpy(f, c->in, sizeof *f);
    return f->magic != MAGIC || f->bytes > MOST || c->have >= sizeof *f + f->bytes;
}

static bool sound(const Frame *f) { return f->magic == MAGIC && f->bytes <= MOST; }

static const char *data_of(const Conn *c) { return c->in + sizeof(Frame); }

static void drop(Conn *c, const Frame *f)
{
    size_t n = sizeof *f + f->bytes;
    memmove(c->in, c->in + n, c->have - n);
    c->have -= n;
}

static void close_conn(Conn *c)
{
    pthread_mutex_lock(&c->out);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->have = 0;
    pthread_mutex_unlock(&c->out);
}

static int try_each(const struct addrinfo *list, bool listens)
{
    int fd = -1, why = 0;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        int one = 1, zero = 0;
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (listens && a->ai_family == AF_INET6)
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
        int bad = listens ? bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, SOMAXCONN)
                          : connect(fd, a->ai_addr, a->ai_addrlen);
        if (bad) {
            why = errno;
            close(fd);
            fd = -1;
        }
    }
    errno = why;
    return fd;
}

/* ---- meeting ------------------------------------------------------------- */

static Hello hello_of(const LaunchPlace *p, uint64_t program)
{
    Hello h = { .world = p->world, .program = program };
    const char *other = env("RT_HOST");         // tests: the name of this machine
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (gethostname(h.peer.host, sizeof h.peer.host - 1))
        strcpy(h.peer.host, "unknown");
    if (f) {
        if (!fgets(h.peer.machine, sizeof h.peer.machine, f))
            h.peer.machine[0] = 0;
        fclose(f);
    }
    if (other) {
        snprintf(h.peer.host, sizeof h.peer.host, "%s", other);
        snprintf(h.peer.machine, sizeof h.peer.machine, "%s", other);
    }
    h.peer.pid = (int32_t)getpid();
    h.peer.local = p->local;
    return h;
}

/* "rank 1", "ranks 1 and 4", "ranks 1, 4, 5 .. (12 in all)" */
static void list_ranks(const bool *in, int n, char *out, size_t room)
{
    int total = 0, said = 0;
    for (int i = 0; i < n; i++)
        total += in[i];
    size_t at = (size_t)snprintf(out, room, total == 1 ? "rank" : "ranks");
    for (int i = 0; i < n && said < 6 && at < room; i++)
        if (in[i])
            at += (size_t)snprintf(out + at, room - at, "%s %d",
                                   said++ == 0 ? "" : said == total ? " and" : ",", i);
    if (total > said && at < room)
        snprintf(out + at, room - at, " .. (%d in all)", total);
}

/* A HELLO that came over an unnamed connection: true where it was taken. */
static bool take_hello(Launch *l, const Hello *mine, Hello *hello, Conn *c, LaunchFault *f)
{
    Frame frame;
    Hello h;
    if (!whole(c, &frame))
        return true;
    if (!sound(&frame) || frame.kind != HELLO || frame.bytes != sizeof h) {
        close_conn(c);                          // a stranger
        return true;
    }
    memcpy(&h, data_of(c), sizeof h);
    h.peer.host[LAUNCH_NAME - 1] = h.peer.machine[LAUNCH_NAME - 1] = 0;
    drop(c, &frame);
    int r = frame.rank;
    if (h.world != l->world)
        refuse(f, "rank %d on %s was started as one of %d, rank 0 as one of %d", r, h.peer.host,
               h.world, l->world);
    else if (r < 1 || r >= l->world)
        refuse(f, "%s came as rank %d, and there are %d ranks", h.peer.host, r, l->world);
    else if (h.program != mine->program)
        refuse(f, "rank %d on %s runs another program than rank 0 on %s", r, h.peer.host,
               mine->peer.host);
    else if (l->conn[r].fd >= 0)
        refuse(f, "rank %d came twice: from %s and from %s", r, hello[r].peer.host, h.peer.host);
    if (f->text[0]) {
        Frame no = { .kind = REFUSE, .bytes = (uint32_t)strlen(f->text) };
        say(c, no, f->text);
        close_conn(c);
        return false;
    }
    hello[r] = h;
    l->conn[r].fd = c->fd;
    l->conn[r].heard = now_s();
    c->fd = -1;
    return true;
}

static int arrived(const Launch *l)
{
    int n = 1;
    for (int r = 1; r < l->world; r++)
        n += l->conn[r].fd >= 0;
    return n;
}

static void missing(const Launch *l, const Hello *hello, double limit_s, LaunchFault *f)
{
    bool *here = get((size_t)l->world, sizeof *here), *away = get((size_t)l->world, sizeof *away);
    char come[200], gone[200], near[300] = "";
    int first = 0;
    for (int r = 0; r < l->world; r++) {
        here[r] = r == 0 || l->conn[r].fd >= 0;
        away[r] = !here[r];
    }
    while (first < l->world && here[first])
        first++;
    for (int r = first - 1; r <= first + 1; r += 2)     // neighbours are started together
        if (r < l->world && here[r])
            snprintf(near + strlen(near), sizeof near - strlen(near), "%s rank %d is on %s",
                     *near ? "," : ";", r, hello[r].peer.host);
    list_ranks(here, l->world, come, sizeof come);
    list_ranks(away, l->world, gone, sizeof gone);
    refuse(f, "%s did not come within %.0f s to rank 0 on %s, port %s; %s did%s", gone, limit_s,
           hello[0].peer.host, l->place.port, come, near);
    free(here);
    free(away);
}

/* Rank 0: until all have come. */
static bool gather(Launch *l, int listener, Hello *hello, double limit_s, LaunchFault *f)
{
    int n = 0, room = l->world + 64;
    double until = now_s() + limit_s;
    Conn *fresh = get((size_t)room, sizeof *fresh);         // who has not said its name yet
    struct pollfd *look = get((size_t)room + 1, sizeof *look);
    bool good = true;
    while (good && arrived(l) < l->world) {
        double left = until - now_s();
        if (left <= 0) {
            missing(l, hello, limit_s, f);
            good = false;
            break;
        }
        look[0] = (struct pollfd){ .fd = n < room ? listener : -1, .events = POLLIN };
        for (int i = 0; i < n; i++)
            look[i + 1] = (struct pollfd){ .fd = fresh[i].fd, .events = POLLIN };
        if (poll(look, (nfds_t)n + 1, left > 0.1 ? 100 : (int)(left * 1000) + 1) < 0)
            continue;
        for (int i = 0; i < n && good; i++)
            if (look[i + 1].revents) {
                if (!fill(&fresh[i]))
                    close_conn(&fresh[i]);
                else
                    good = take_hello(l, &hello[0], hello, &fresh[i], f);
            }
        if (good && look[0].revents) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0) {
                set_up(fd);
                fresh[n] = (Conn){ .fd = fd };
                pthread_mutex_init(&fresh[n++].out, NULL);
            }
        }
        int kept = 0;
        for (int i = 0; i < n; i++) {
            if (fresh[i].fd >= 0)
                fresh[kept++] = fresh[i];
            else
                free(fresh[i].in);
        }
        n = kept;
    }
    for (int i = 0; i < n; i++) {
        close_conn(&fresh[i]);
        free(fresh[i].in);
    }
    free(fresh);
    free(look);
    Frame answer = { .kind = good ? WELCOME : REFUSE, .bytes = good
                     ? (uint32_t)(sizeof *hello * (size_t)l->world) : (uint32_t)strlen(f->text) };
    for (int r = 1; r < l->world; r++)
        if (l->conn[r].fd >= 0)
            say(&l->conn[r], answer, good ? (const void *)hello : f->text);
    return good;
}

static bool receive_all(Launch *l, Hello *hello, double limit_s, LaunchFault *f)
{
    struct addrinfo *list = NULL, want = { .ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM };
    int fd = -1;
    int why = 0;
    const int families[] = { AF_INET6, AF_INET };       // the first one takes both
    for (int i = 0; i < 2 && fd < 0 && why != EADDRINUSE; i++) {
        want.ai_family = families[i];
        if (getaddrinfo(NULL, l->place.port, &want, &list) == 0) {
            fd = try_each(list, true);
            why = errno;
            freeaddrinfo(list);
        }
    }
    if (fd < 0)
        refuse(f, "rank 0 could not listen at port %s: %s; --root or MASTER_PORT names another",
               l->place.port, strerror(why));
    bool good = fd >= 0 && gather(l, fd, hello, limit_s, f);
    if (fd >= 0)
        close(fd);
    return good;
}

/* Others: finds rank 0. */
static int reach(const Launch *l, double until, LaunchFault *f)
{
    const LaunchPlace *p = &l->place;
    for (;;) {
        struct addrinfo *list = NULL, want = { .ai_socktype = SOCK_STREAM };
        int rc = getaddrinfo(p->root, p->port, &want, &list), fd = rc ? -1 : try_each(list, false);
        int why = errno;
        if (list)
            freeaddrinfo(list);
        if (fd >= 0)
            return fd;
        if (now_s() > until) {
            refuse(f, "rank %d waited in vain for rank 0 at %s, port %s: %s", l->rank, p->root,
                   p->port, rc ? gai_strerror(rc) : strerror(why));
            return -1;
        }
        nanosleep(&(struct timespec){ 0, RETRY_MS * 1000000 }, NULL);
    }
}

static bool ask(Launch *l, Hello *hello, double limit_s, LaunchFault *f)
{
    Conn *c = &l->conn[0];
    Frame frame = { .kind = HELLO, .rank = l->rank, .bytes = sizeof *hello };
    double until = now_s() + limit_s;
    f->tell = l->place.local < 0 || l->place.local == 0 || l->rank == 1;    // one of a machine
    c->fd = reach(l, until, f);
    if (c->fd < 0)
        return false;
    set_up(c->fd);
    say(c, frame, &hello[l->rank]);
    until = now_s() + limit_s + 2;              // rank 0 may have begun later
    while (!whole(c, &frame)) {
        struct pollfd look = { .fd = c->fd, .events = POLLIN };
        poll(&look, 1, 100);
        if (look.revents && !fill(c) && !whole(c, &frame))
            return refuse(f, "rank 0 at %s, port %s ended before all ranks had come",
                          l->place.root, l->place.port);
        if (now_s() > until)
            return refuse(f, "rank %d has no answer of rank 0 at %s, port %s", l->rank,
                          l->place.root, l->place.port);
    }
    f->tell = false;                            // rank 0 does
    size_t n = sizeof *hello * (size_t)l->world;
    if (sound(&frame) && frame.kind == REFUSE)
        return refuse(f, "%.*s", (int)frame.bytes, data_of(c));
    if (!sound(&frame) || frame.kind != WELCOME || frame.bytes != n) {
        f->tell = true;
        return refuse(f, "who answers at %s, port %s is not rank 0; --root or MASTER_PORT names "
                      "another port", l->place.root, l->place.port);
    }
    memcpy(hello, data_of(c), n);
    drop(c, &frame);
    return true;
}

/* ---- the run ------------------------------------------------------------- */

/* With the lock. */
static void set_news(Launch *l, LaunchEvent what, int rank, int status, const char *text,
                     size_t n)
{
    if (l->news.what != LAUNCH_QUIET || l->over)
        return;
    l->news = (LaunchNews){ .what = what, .rank = rank, .status = status };
    n = n < LAUNCH_TEXT - 1 ? n : LAUNCH_TEXT - 1;
    memcpy(l->news.text, text, n);
    l->news.text[n] = 0;
    pthread_cond_broadcast(&l->change);
}

static void gone(Launch *l, int rank, const char *how)
{
    set_news(l, LAUNCH_GONE, rank, 4, how, strlen(how));
}

static void answer(Launch *l, int r, const void *data, size_t n)
{
    if (r > 0) {
        Frame f = { .kind = GOT, .bytes = (uint32_t)n };
        say(&l->conn[r], f, data);
        return;
    }
    free(l->answer);
    l->answer = get(n, 1);
    memcpy(l->answer, data, n);
    l->answered = n;
    pthread_cond_broadcast(&l->change);
}

/* Rank 0, with the lock: is the group of what rank `from` brought complete? */
static void complete(Launch *l, int from)
{
    const Frame f = l->brought[from].frame;
    int here = 0;
    for (int r = 0; r < l->world; r++) {
        const Brought *b = &l->brought[r];
        here += b->waits && b->frame.group == f.group && b->frame.op == f.op;
    }
    if (here < f.n)
        return;
    size_t each = f.bytes, n = f.op == SUM ? each : each * (size_t)f.n;
    char **of = get((size_t)f.n, sizeof *of), *out = get(n, 1);
    for (int r = 0; r < l->world; r++) {
        const Brought *b = &l->brought[r];
        if (b->waits && b->frame.group == f.group && b->frame.op == f.op &&
            b->frame.me >= 0 && b->frame.me < f.n && b->frame.bytes == f.bytes)
            of[b->frame.me] = b->data;
    }
    for (int q = 0; q < f.n; q++) {
        if (!of[q])
            continue;
        double *sum = (double *)(void *)out;
        for (size_t i = 0; f.op == SUM && i < each / sizeof *sum; i++)
            sum[i] += ((const double *)(const void *)of[q])[i];
        if (f.op == SHARE)
            memcpy(out + each * (size_t)q, of[q], each);
    }
    for (int r = 0; r < l->world; r++) {
        Brought *b = &l->brought[r];
        if (!b->waits || b->frame.group != f.group || b->frame.op != f.op)
            continue;
        b->waits = false;
        free(b->data);
        b->data = NULL;
        answer(l, r, out, n);
    }
    free(of);
    free(out);
}

static void bring(Launch *l, int rank, const Frame *f, const char *data)
{
    Brought *b = &l->brought[rank];
    free(b->data);
    *b = (Brought){ .waits = true, .frame = *f, .data = get(f->bytes, 1) };
    memcpy(b->data, data, f->bytes);
    complete(l, rank);
}

/* Rank 0: everybody else hears of it. */
static void pass_on(Launch *l, int from, int status, const char *text, size_t n)
{
    Frame f = { .kind = FAIL, .rank = from, .status = status, .bytes = (uint32_t)n };
    for (int r = 1; r < l->world; r++)
        say(&l->conn[r], f, text);
}

/* What came from rank r (of others: from rank 0), with the lock. */
static void take(Launch *l, int r, const Frame *f, const char *data)
{
    switch ((Kind)f->kind) {
    case PUT:
        if (l->rank == 0 && f->n > 0 && f->n <= l->world)
            bring(l, r, f, data);
        break;
    case GOT:
        answer(l, 0, data, f->bytes);
        break;
    case BLOB:
        if (l->rank == 0) {
            Blob *b = get(1, sizeof *b), **at = &l->blob[r];
            *b = (Blob){ NULL, get(f->bytes, 1), f->bytes };
            memcpy(b->data, data, f->bytes);
            while (*at)
                at = &(*at)->next;
            *at = b;
            pthread_cond_broadcast(&l->change);
        }
        break;
    case FAIL:
        if (l->rank == 0 && l->news.what == LAUNCH_QUIET)
            pass_on(l, r, f->status, data, f->bytes);
        set_news(l, LAUNCH_FAILED, l->rank == 0 ? r : f->rank, f->status, data, f->bytes);
        break;
    case BYE:
        l->conn[r].bye = true;
        pthread_cond_broadcast(&l->change);
        break;
    case BEAT:
        if (l->rank == 0 && f->bytes == sizeof(LaunchState))
            memcpy(&l->state[r], data, sizeof(LaunchState));
        break;
    default:
        break;
    }
}

static void read_from(Launch *l, int r)
{
    Conn *c = &l->conn[r];
    Frame f;
    bool open = fill(c);
    pthread_mutex_lock(&l->lock);
    while (c->have > 0 && whole(c, &f)) {
        if (!sound(&f)) {
            open = false;
            break;
        }
        take(l, r, &f, data_of(c));
        drop(c, &f);
    }
    if (!open) {
        if (!c->bye)
            gone(l, r, "its process has ended");
        close_conn(c);
        pthread_cond_broadcast(&l->change);
    }
    pthread_mutex_unlock(&l->lock);
}

static void *channel(void *arg)
{
    Launch *l = arg;
    int n = l->rank == 0 ? l->world : 1;
    struct pollfd *look = get((size_t)n, sizeof *look);
    double beat = 0;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        bool over = l->over;
        Frame f = { .kind = BEAT, .rank = l->rank, .bytes = sizeof(LaunchState) };
        LaunchState state = l->state[0];
        for (int r = 0; r < n; r++) {
            Conn *c = &l->conn[r];
            look[r] = (struct pollfd){ .fd = c->fd, .events = POLLIN };
            if (c->fd >= 0 && !c->bye && now_s() - c->heard > SILENT_S)
                gone(l, r, "nothing was heard of it for 8 s");
        }
        pthread_mutex_unlock(&l->lock);
        if (over)
            break;
        if ((now_s() - beat) * 1000 >= BEAT_MS) {
            beat = now_s();
            for (int r = 0; r < n; r++)
                if (look[r].fd >= 0)
                    say(&l->conn[r], f, &state);
        }
        if (poll(look, (nfds_t)n, BEAT_MS / 5) <= 0)
            continue;
        for (int r = 0; r < n; r++)
            if (look[r].fd >= 0 && look[r].revents)
                read_from(l, r);
    }
    free(look);
    return NULL;
}

Launch *launch_join(const LaunchPlace *p, uint64_t program, double limit_s, LaunchFault *f)
{
    Launch *l = get(1, sizeof *l);
    l->place = *p;
    l->rank = p->rank;
    l->world = p->world;
    size_t n = (size_t)p->world;
    Hello *hello = get(n, sizeof *hello);
    l->peer = get(n, sizeof *l->peer);
    l->conn = get(n, sizeof *l->conn);
    l->brought = get(n, sizeof *l->brought);
    l->blob = get(n, sizeof(Blob *));
    l->state = get(n, sizeof *l->state);
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->change, &attr);
    pthread_condattr_destroy(&attr);
    for (size_t r = 0; r < n; r++) {
        l->conn[r].fd = -1;
        l->state[r].op = -1;
        pthread_mutex_init(&l->conn[r].out, NULL);
    }
    *f = (LaunchFault){ .tell = true };
    hello[l->rank] = hello_of(p, program);
    bool good = p->world == 1 || (l->rank == 0 ? receive_all(l, hello, limit_s, f)
                                               : ask(l, hello, limit_s, f));
    for (size_t r = 0; r < n && good; r++) {
        l->peer[r] = hello[r].peer;
        l->conn[r].heard = now_s();
    }
    free(hello);
    if (good) {
        l->started = pthread_create(&l->thread, NULL, channel, l) == 0;
        good = l->started || refuse(f, "could not start a thread");
    }
    if (!good) {
        launch_leave(l, false);
        l = NULL;
    }
    return l;
}

const LaunchPeer *launch_peer(const Launch *l, int rank) { return &l->peer[rank]; }

/* With the lock: until something changes, or news come. */
static bool wait_change(Launch *l)
{
    if (l->news.what != LAUNCH_QUIET)
        return false;
    pthread_cond_wait(&l->change, &l->lock);
    return true;
}

static bool put(Launch *l, Frame f, const void *data, void *out, size_t n)
{
    bool good = true;
    f.kind = PUT;
    f.rank = l->rank;
    pthread_mutex_lock(&l->lock);
    free(l->answer);
    l->answer = NULL;
    if (l->rank == 0)
        bring(l, 0, &f, data);
    pthread_mutex_unlock(&l->lock);
    if (l->rank > 0)
        say(&l->conn[0], f, data);
    pthread_mutex_lock(&l->lock);
    while (!l->answer && good)
        good = wait_change(l);
    if (l->answer && l->answered == n)
        memcpy(out, l->answer, n);
    good = l->answer && l->answered == n;
    pthread_mutex_unlock(&l->lock);
    return good;
}

bool launch_sum(Launch *l, uint64_t group, int n, int me, double *v, int k)
{
    size_t bytes = sizeof *v * (size_t)(k < VALUES ? k : VALUES);
    Frame f = { .op = SUM, .n = n, .me = me, .group = group, .bytes = (uint32_t)bytes };
    return put(l, f, v, v, bytes);
}

bool launch_share(Launch *l, const void *mine, void *all, size_t bytes)
{
    Frame f = { .op = SHARE, .n = l->world, .me = l->rank, .bytes = (uint32_t)bytes };
    return put(l, f, mine, all, bytes * (size_t)l->world);
}

bool launch_bring(Launch *l, const void *mine, size_t bytes)
{
    Frame f = { .kind = BLOB, .rank = l->rank, .bytes = (uint32_t)bytes };
    say(&l->conn[0], f, mine);
    LaunchNews none;
    return launch_news(l, &none) == LAUNCH_QUIET;
}

bool launch_take(Launch *l, int rank, void **bytes, size_t *n)
{
    pthread_mutex_lock(&l->lock);
    while (!l->blob[rank] && wait_change(l))
        continue;
    Blob *b = l->blob[rank];
    if (b) {
        *bytes = b->data;
        *n = b->bytes;
        l->blob[rank] = b->next;
        free(b);
    }
    pthread_mutex_unlock(&l->lock);
    return b != NULL;
}

void launch_tell(Launch *l, LaunchState now)
{
    pthread_mutex_lock(&l->lock);
    l->state[0] = now;
    pthread_mutex_unlock(&l->lock);
}

LaunchState launch_heard(Launch *l, int rank)
{
    pthread_mutex_lock(&l->lock);
    LaunchState s = l->state[rank];
    pthread_mutex_unlock(&l->lock);
    return s;
}

LaunchEvent launch_news(Launch *l, LaunchNews *out)
{
    pthread_mutex_lock(&l->lock);
    *out = l->news;
    pthread_mutex_unlock(&l->lock);
    return out->what;
}

void launch_fail(Launch *l, int status, const char *text)
{
    Frame f = { .kind = FAIL, .rank = l->rank, .status = status,
                .bytes = (uint32_t)strlen(text) };
    if (l->rank > 0) {
        say(&l->conn[0], f, text);
        return;
    }
    pthread_mutex_lock(&l->lock);
    pass_on(l, 0, status, text, strlen(text));
    set_news(l, LAUNCH_FAILED, 0, status, text, strlen(text));
    pthread_mutex_unlock(&l->lock);
}

/* Rank 0 leaves last, so that nobody takes its end for a fault. */
static void say_bye(Launch *l)
{
    Frame f = { .kind = BYE, .rank = l->rank };
    int n = l->rank == 0 ? l->world : 1;
    if (l->rank > 0)
        say(&l->conn[0], f, NULL);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)BYE_S;
    pthread_mutex_lock(&l->lock);
    for (int r = 0; r < n; r++)
        while (l->conn[r].fd >= 0 && !l->conn[r].bye)
            if (pthread_cond_timedwait(&l->change, &l->lock, &until))
                break;
    pthread_mutex_unlock(&l->lock);
    for (int r = 1; l->rank == 0 && r < n; r++)
        say(&l->conn[r], f, NULL);
}

void launch_leave(Launch *l, bool well)
{
    int n = l->world;
    if (well && l->started)
        say_bye(l);
    pthread_mutex_lock(&l->lock);
    l->over = true;
    pthread_mutex_unlock(&l->lock);
    if (l->started)
        pthread_join(l->thread, NULL);
    for (int r = 0; r < n; r++) {
        close_conn(&l->conn[r]);
        pthread_mutex_destroy(&l->conn[r].out);
        free(l->conn[r].in);
        free(l->brought[r].data);
        while (l->blob[r]) {
            Blob *b = l->blob[r];
            l->blob[r] = b->next;
            free(b->data);
            free(b);
        }
    }
    free(l->answer);
    free(l->peer);
    free(l->conn);
    free(l->brought);
    free(l->blob);
    free(l->state);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->change);
    free(l);
}
