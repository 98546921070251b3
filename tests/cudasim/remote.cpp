/*
 * remote.cpp - ranks that are processes of one machine: messages over sockets.
 *
 * Each process listens at a name made of the world's and its rank (an abstract socket: no
 * file). One thread sends what is queued, others read what comes, so that nobody who holds
 * the lock waits for a peer. A peer that is gone is as silent as a dead GPU: nothing is
 * reported, those who wait for it wait on.
 */
#include "sim.h"
#include "remote.h"
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <time.h>
#include <tuple>
#include <unistd.h>

typedef std::tuple<std::string, int, uint64_t, int> Address;
static std::map<Address, RemoteMail> &mail = *new std::map<Address, RemoteMail>();

struct Letter { std::string world; int process; std::string bytes; };
static std::mutex &out_lock = *new std::mutex();
static std::condition_variable &out_change = *new std::condition_variable();
static std::deque<Letter> &out = *new std::deque<Letter>();

bool remote_on()
{
    static const char *s = getenv("CUDASIM_PROCESSES");
    return s && !strcmp(s, "1");
}

static socklen_t name_socket(struct sockaddr_un *a, const std::string &world, int process)
{
    std::string name = format("%s %d", world.c_str(), process);
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    memcpy(a->sun_path + 1, name.data(), std::min(name.size(), sizeof a->sun_path - 1));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name.size());
}

static bool get(int fd, void *to, size_t n)
{
    for (char *p = (char *)to; n > 0;) {
        ssize_t k = read(fd, p, n);
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static void receive(int fd)
{
    RemoteMail m;
    while (get(fd, &m.head, sizeof m.head)) {
        m.data.resize(m.head.bytes);
        if (!get(fd, &m.data[0], m.head.bytes))
            break;
        std::lock_guard<std::mutex> hold(big_lock);
        mail[Address(m.head.comm, m.head.what, m.head.number, m.head.from)] = m;
        progress_made();
    }
    close(fd);
}

static void listen_on(int fd)
{
    for (;;) {
        int peer = accept(fd, nullptr, nullptr);
        if (peer >= 0)
            std::thread(receive, peer).detach();
    }
}

static int connect_to(const Letter &l)
{
    struct sockaddr_un a;
    socklen_t n = name_socket(&a, l.world, l.process);
    for (int i = 0; i < 3000; i++) {            // it may come later
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a, n) == 0)
            return fd;
        close(fd);
        usleep(10000);
    }
    return -1;
}

static void deliver()
{
    std::map<std::pair<std::string, int>, int> fds;
    for (;;) {
        std::unique_lock<std::mutex> lock(out_lock);
        out_change.wait(lock, [] { return !out.empty(); });
        Letter l = std::move(out.front());
        out.pop_front();
        lock.unlock();
        auto key = std::make_pair(l.world, l.process);
        if (!fds.count(key))
            fds[key] = connect_to(l);
        const char *p = l.bytes.data();
        for (size_t n = l.bytes.size(); n > 0 && fds[key] >= 0;) {
            ssize_t k = send(fds[key], p, n, MSG_NOSIGNAL);
            if (k <= 0)
                break;
            p += k;
            n -= (size_t)k;
        }
    }
}

void remote_open(const std::string &world, int rank)
{
    struct sockaddr_un a;
    socklen_t n = name_socket(&a, world, rank);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) || listen(fd, 64))
        fatal("process %d cannot listen: %s", rank, strerror(errno));
    std::thread(listen_on, fd).detach();
    static bool once = (std::thread(deliver).detach(), true);
    (void)once;
}

void remote_send(const std::string &world, int process, RemoteHead head, const void *data)
{
    Letter l = { world, process, std::string((const char *)&head, sizeof head) };
    l.bytes.append((const char *)data, head.bytes);
    std::lock_guard<std::mutex> hold(out_lock);
    out.push_back(std::move(l));
    out_change.notify_one();
}

RemoteMail *remote_mail(const std::string &comm, int what, uint64_t number, int from)
{
    auto i = mail.find(Address(comm, what, number, from));
    return i == mail.end() ? nullptr : &i->second;
}

void remote_forget(const std::string &comm, int what, uint64_t number, int from)
{
    mail.erase(Address(comm, what, number, from));
}
