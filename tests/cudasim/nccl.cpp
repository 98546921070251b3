/*
 * nccl.cpp - NCCL among the threads of one process.
 *
 * Operations of a communicator are numbered as they are issued; equal numbers belong
 * together. When an operation becomes the head of its stream its rank posts it; the last
 * rank to post performs it for all, sums in the order of ranks. Send and receive meet by
 * their number between the two ranks. The program is told of operations that do
 * not fit together, of buffers outside allocations, and of deadlock: every rank that
 * lives waits, and has looked around since anything last happened.
 *
 * Where each rank is a process (CUDASIM_PROCESSES=1, remote.cpp), every member sends what it
 * brings to every other, and performs the operation for itself when all has come, in the
 * same order: the same bits. Of deadlock nothing is known then.
 */
#include "sim.h"
#include "cudasim.h"
#include "cuda_bf16.h"
#include "nccl.h"
#include "remote.h"
#include <set>
#include <signal.h>
#include <thread>
#include <unistd.h>

enum Kind { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, SEND, RECV };
static const char *const kind_name[] = {
    "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "Send", "Recv"
};
static const char *const op_name[] = { "sum", "product", "max", "min", "average" };
static const struct { const char *name; size_t bytes; } types[] = {
    { "int8", 1 }, { "uint8", 1 }, { "int32", 4 }, { "uint32", 4 }, { "int64", 8 },
    { "uint64", 8 }, { "float16", 2 }, { "float", 4 }, { "double", 8 }, { "bfloat16", 2 }
};

/* ---- who is there ------------------------------------------------------- */

static uint64_t happened;                       // counts progress
struct Rank {                                   // a thread that has taken part
    bool waiting = false;
    uint64_t seen = 0;
    int needs = 0;                              // threads that must have come before we judge
    std::string what;
};
static std::set<Rank *> &ranks = *new std::set<Rank *>();
static int ever;                                // ranks that were ever there

static std::string pending();

static void enter(Rank *r)
{
    if (ranks.insert(r).second)
        ever++;
}

static thread_local struct Me {
    Rank *rank = nullptr;
    Rank *get()                                 // with big_lock
    {
        if (!rank) {
            rank = new Rank();
            enter(rank);
        }
        return rank;
    }
    ~Me()
    {
        if (!rank)
            return;
        std::lock_guard<std::mutex> hold(big_lock);
        ranks.erase(rank);
        progress_made();
    }
} me;

void progress_made()
{
    happened++;
    progress.notify_all();
}

uint64_t happened_so_far() { return happened; }

bool anybody_waits()
{
    for (Rank *r : ranks)
        if (r->waiting)
            return true;
    return false;
}

void wait_for_progress(std::unique_lock<std::mutex> &lock)
{
    Rank *r = me.get();
    r->waiting = true;
    r->seen = happened;
    bool stuck = running_ops == 0 && !device_may_go() && !remote_on();
    for (Rank *other : ranks)
        if (!other->waiting || other->seen != happened || other->needs > ever)
            stuck = false;
    if (stuck)
        fatal("deadlock: nobody can go on%s", pending().c_str());
    uint64_t before = happened;
    auto limit = std::chrono::seconds(settings().timeout);
    if (!progress.wait_for(lock, limit, [&] { return happened != before; }))
        fatal("nothing has happened for %d s%s", settings().timeout, pending().c_str());
    r->waiting = false;
}

// The host waits for `done`; its device works on.
static void host_wait(std::unique_lock<std::mutex> &lock, const std::string &what, int needs,
                      const std::function<bool()> &done)
{
    Rank *r = me.get();
    r->what = what;
    r->needs = needs;
    while (!done())
        if (!run_something(lock))
            wait_for_progress(lock);
    r->what.clear();
    r->needs = 0;
}

/* ---- communicators ------------------------------------------------------ */

struct Call {
    Kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;                                   // or root
    ncclComm *comm;
    uint64_t number;
    bool done;
    Op *at;                                     // where it is posted
};
struct Posting { std::vector<Call> calls; };

struct Split { int color, key; ncclComm *result; bool known; };
struct Group {                                  // what the members of a communicator share
    int id, nranks;
    std::vector<ncclComm *> member;
    std::map<uint64_t, std::vector<Call *>> collectives;
    std::map<std::pair<int, int>, std::map<uint64_t, std::pair<Call *, Call *>>> pairs;
    std::map<uint64_t, std::vector<Split>> splits;
    std::map<uint64_t, int> splits_done;
    std::string name, world;                    // where ranks are processes
    std::vector<int> process;                   // of each member: its rank in the world
};
struct ncclComm {
    Group *group;
    int rank, device;
    uint64_t issued = 0, nsplits = 0;
    std::map<std::pair<int, int>, uint64_t> sent, received;     // by peer
    bool aborted = false;
};
static std::vector<Group *> &groups = *new std::vector<Group *>();

static Group *new_group(int nranks)
{
    Group *g = new Group();
    g->id = (int)groups.size();
    g->nranks = nranks;
    g->member.resize((size_t)nranks);
    groups.push_back(g);
    return g;
}

static std::string show(const Call &c)
{
    std::string s = format("%s of %zu %s", kind_name[c.kind], c.count, types[c.type].name);
    if (c.kind <= REDUCE || c.kind == REDUCESCATTER)
        s += format(", %s", op_name[c.op]);
    if (c.kind == REDUCE || c.kind == BROADCAST)
        s += format(", root %d", c.peer);
    return s;
}

static std::string pending()
{
    std::string s;
    for (Group *g : groups) {
        for (auto &entry : g->collectives) {
            std::string here, missing;
            const Call *any = nullptr;
            for (const Call *c : entry.second)
                any = c ? c : any;
            if (!any)
                continue;
            for (int r = 0; r < g->nranks; r++) {
                const Call *c = entry.second[(size_t)r];
                (c ? here : missing) += format(" %d", r);
            }
            s += format("\n  communicator %d (%d ranks), operation %llu, %s: ranks%s wait for%s",
                        g->id, g->nranks, (unsigned long long)entry.first, show(*any).c_str(),
                        here.c_str(), missing.c_str());
            for (int r = 0; r < g->nranks; r++)
                if (!entry.second[(size_t)r] && g->member[(size_t)r])
                    s += format("\n    rank %d has issued %llu operations", r,
                                (unsigned long long)g->member[(size_t)r]->issued);
        }
        for (auto &pair : g->pairs)
            for (auto &entry : pair.second) {
                bool sender = entry.second.first != nullptr;
                const Call *c = sender ? entry.second.first : entry.second.second;
                if (!c)
                    continue;
                s += format("\n  communicator %d: rank %d waits in %s %s rank %d, message %llu",
                            g->id, sender ? pair.first.first : pair.first.second,
                            show(*c).c_str(), sender ? "to" : "from",
                            sender ? pair.first.second : pair.first.first,
                            (unsigned long long)entry.first);
            }
    }
    for (Rank *r : ranks)
        if (!r->what.empty())
            s += "\n  " + r->what;
    return s;
}

/* ---- arithmetic --------------------------------------------------------- */

template <class T> static T combine(T a, T b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd: return (T)(a * b);
    case ncclMax:  return a > b || a != a ? a : b;
    case ncclMin:  return a < b || a != a ? a : b;
    default:       return (T)(a + b);
    }
}

template <class T> static void reduce(std::string &out, const std::vector<const char *> &in,
                                      size_t n, ncclRedOp_t op)
{
    for (size_t i = 0; i < n; i++) {
        T sum = ((const T *)in[0])[i];
        for (size_t r = 1; r < in.size(); r++)
            sum = combine(sum, ((const T *)in[r])[i], op);
        if (op == ncclAvg)
            sum = (T)(sum / (T)in.size());
        memcpy(&out[i * sizeof(T)], &sum, sizeof sum);
    }
}

static void reduce_bf16(std::string &out, const std::vector<const char *> &in, size_t n,
                        ncclRedOp_t op)
{
    for (size_t i = 0; i < n; i++) {
        float sum = ((const __nv_bfloat16 *)in[0])[i];
        for (size_t r = 1; r < in.size(); r++)
            sum = combine(sum, (float)((const __nv_bfloat16 *)in[r])[i], op);
        __nv_bfloat16 v = op == ncclAvg ? sum / (float)in.size() : sum;
        memcpy(&out[i * 2], &v, 2);
    }
}

static std::string reduced(const std::vector<Call *> &all, size_t n)
{
    std::vector<const char *> in;
    for (Call *c : all)
        in.push_back((const char *)c->send);
    std::string out(n * types[all[0]->type].bytes, 0);
    ncclRedOp_t op = all[0]->op;
    switch (all[0]->type) {
    case ncclInt8:     reduce<int8_t>(out, in, n, op); break;
    case ncclUint8:    reduce<uint8_t>(out, in, n, op); break;
    case ncclInt32:    reduce<int32_t>(out, in, n, op); break;
    case ncclUint32:   reduce<uint32_t>(out, in, n, op); break;
    case ncclInt64:    reduce<int64_t>(out, in, n, op); break;
    case ncclUint64:   reduce<uint64_t>(out, in, n, op); break;
    case ncclFloat32:  reduce<float>(out, in, n, op); break;
    case ncclFloat64:  reduce<double>(out, in, n, op); break;
    case ncclBfloat16: reduce_bf16(out, in, n, op); break;
    default: fatal("NCCL: reduction of float16 is not emulated");
    }
    return out;
}

/* ---- what a call reads and writes --------------------------------------- */

struct Extent { size_t send, recv; };           // elements; 0: not used by this rank

static Extent extent(const Call &c)
{
    size_t n = (size_t)c.comm->group->nranks;
    bool root = c.comm->rank == c.peer;
    switch (c.kind) {
    case ALLREDUCE:     return { c.count, c.count };
    case REDUCE:        return { c.count, root ? c.count : 0 };
    case BROADCAST:     return { root ? c.count : 0, c.count };
    case ALLGATHER:     return { c.count, c.count * n };
    case REDUCESCATTER: return { c.count * n, c.count };
    case SEND:          return { c.count, 0 };
    default:            return { 0, c.count };
    }
}

static void check_buffers(const Call &c)
{
    Extent e = extent(c);
    size_t bytes = types[c.type].bytes;
    std::string who = format("%s, rank %d", show(c).c_str(), c.comm->rank);
    check_device_range(c.send, e.send * bytes, c.comm->device, who.c_str());
    check_device_range(c.recv, e.recv * bytes, c.comm->device, who.c_str());
    const char *s = (const char *)c.send, *r = (const char *)c.recv;
    size_t offset = c.kind == ALLGATHER ? c.count * bytes * (size_t)c.comm->rank : 0;
    size_t back = c.kind == REDUCESCATTER ? c.count * bytes * (size_t)c.comm->rank : 0;
    bool in_place = s + back == r + offset;
    if (e.send && e.recv && !in_place && s < r + e.recv * bytes && r < s + e.send * bytes)
        report("%s: the buffers overlap, and not as an operation in place", who.c_str());
}

static void put(Call *c, size_t at, const char *data, size_t bytes)
{
    if (!bytes)
        return;
    touches(*c->at, (char *)c->recv + at, bytes, true);
    memcpy((char *)c->recv + at, data, bytes);
}

static void perform(const std::vector<Call *> &all)
{
    const Call *first = all[0];
    size_t bytes = first->count * types[first->type].bytes, n = all.size();
    for (Call *c : all)
        if (c->at && extent(*c).send)
            touches(*c->at, c->send, extent(*c).send * types[c->type].bytes, false);
    std::string data;
    switch (first->kind) {
    case ALLREDUCE:
    case REDUCE:
        data = reduced(all, first->count);
        break;
    case BROADCAST:
        data.assign((const char *)all[(size_t)first->peer]->send, bytes);
        break;
    case ALLGATHER:
        for (Call *c : all)
            data.append((const char *)c->send, bytes);
        break;
    default:
        data = reduced(all, first->count * n);
        break;
    }
    for (size_t r = 0; r < n; r++) {
        if (!all[r]->at)                        // another process's
            continue;
        if (first->kind == REDUCESCATTER)
            put(all[r], 0, data.data() + r * bytes, bytes);
        else if (first->kind != REDUCE || (int)r == first->peer)
            put(all[r], 0, data.data(), data.size());
        all[r]->done = true;
    }
}

/* ---- ranks that are processes: with big_lock held ------------------------- */

static RemoteHead head_of(const Group *g, int what, int from, uint64_t number)
{
    RemoteHead h;
    memset(&h, 0, sizeof h);
    if (g->name.size() >= sizeof h.comm)
        fatal("a communicator of too many splits");
    strcpy(h.comm, g->name.c_str());
    h.what = what;
    h.from = from;
    h.number = number;
    return h;
}

static void send_call(const Call &c, int what, int to)
{
    RemoteHead h = head_of(c.comm->group, what, c.comm->rank, c.number);
    h.kind = c.kind;
    h.type = c.type;
    h.op = c.op;
    h.peer = c.peer;
    h.count = c.count;
    h.bytes = c.kind == RECV ? 0 : extent(c).send * types[c.type].bytes;
    remote_send(c.comm->group->world, c.comm->group->process[(size_t)to], h, c.send);
}

// CUDASIM_DIE=N: the process is killed when it posts its N-th operation; 0: it says at the end
// how many there were. CUDASIM_HANG=N: from its N-th operation on it brings nothing.
static bool goes_on()
{
    static const char *s = getenv("CUDASIM_DIE"), *h = getenv("CUDASIM_HANG");
    static int at = s ? atoi(s) : -1, hang = h ? atoi(h) : -1, n = 0;
    static bool once = at == 0 && atexit([] { fprintf(stderr, "%d operations\n", n); }) == 0;
    (void)once;
    if (++n == at)
        raise(SIGKILL);
    return hang < 0 || n < hang;
}

static void post_remote(Call *c)
{
    if (!goes_on())
        return;
    if (c->kind == SEND)
        send_call(*c, R_MESSAGE, c->peer);
    for (int r = 0; c->kind < SEND && r < c->comm->group->nranks; r++)
        if (r != c->comm->rank)
            send_call(*c, R_COLLECTIVE, r);
    if (c->kind == SEND)
        c->done = true;                         // a copy is under way
}

static bool fit(const Call &a, const Call &b);

static Call call_of(const RemoteMail &m, ncclComm *there)
{
    const RemoteHead &h = m.head;
    return { (Kind)h.kind, m.data.data(), nullptr, (size_t)h.count, (ncclDataType_t)h.type,
             (ncclRedOp_t)h.op, h.peer, there, h.number, false, nullptr };
}

// Performs the call if all that it needs has come.
static void try_remote(Call *c)
{
    Group *g = c->comm->group;
    if (c->kind == RECV) {
        RemoteMail *m = remote_mail(g->name, R_MESSAGE, c->number, c->peer);
        if (!m)
            return;
        if (m->head.count != c->count || m->head.type != c->type)
            fatal("communicator %d, message %llu: rank %d sends %llu of type %d, rank %d expects "
                  "%zu of type %d", g->id, (unsigned long long)c->number, c->peer,
                  (unsigned long long)m->head.count, m->head.type, c->comm->rank, c->count,
                  c->type);
        put(c, 0, m->data.data(), m->data.size());
        remote_forget(g->name, R_MESSAGE, c->number, c->peer);
        c->done = true;
        return;
    }
    for (int r = 0; r < g->nranks; r++)
        if (r != c->comm->rank && !remote_mail(g->name, R_COLLECTIVE, c->number, r))
            return;
    std::vector<ncclComm> there((size_t)g->nranks);
    std::vector<Call> others((size_t)g->nranks);
    std::vector<Call *> all((size_t)g->nranks);
    for (int r = 0; r < g->nranks; r++) {
        there[(size_t)r].group = g;
        there[(size_t)r].rank = r;
        all[(size_t)r] = c;
        if (r == c->comm->rank)
            continue;
        others[(size_t)r] = call_of(*remote_mail(g->name, R_COLLECTIVE, c->number, r),
                                    &there[(size_t)r]);
        all[(size_t)r] = &others[(size_t)r];
        if (!fit(*c, others[(size_t)r]))
            fatal("communicator %d, operation %llu: rank %d calls %s, rank %d calls %s", g->id,
                  (unsigned long long)c->number, c->comm->rank, show(*c).c_str(), r,
                  show(others[(size_t)r]).c_str());
    }
    perform(all);
    for (int r = 0; r < g->nranks; r++)
        remote_forget(g->name, R_COLLECTIVE, c->number, r);
}

/* ---- posting: with big_lock held ---------------------------------------- */

static bool fit(const Call &a, const Call &b)
{
    return a.kind == b.kind && a.count == b.count && a.type == b.type &&
        (a.kind == BROADCAST || a.kind == ALLGATHER || a.op == b.op) &&
        ((a.kind != REDUCE && a.kind != BROADCAST) || a.peer == b.peer);
}

static void post_collective(Call *c)
{
    Group *g = c->comm->group;
    auto &all = g->collectives[c->number];
    all.resize((size_t)g->nranks);
    bool complete = true;
    for (Call *other : all)
        if (other && !fit(*c, *other))
            fatal("communicator %d, operation %llu: rank %d calls %s, rank %d calls %s", g->id,
                  (unsigned long long)c->number, c->comm->rank, show(*c).c_str(),
                  other->comm->rank, show(*other).c_str());
    all[(size_t)c->comm->rank] = c;
    for (Call *other : all)
        complete = complete && other;
    if (!complete)
        return;
    perform(all);
    g->collectives.erase(c->number);
}

static void post_message(Call *c)
{
    Group *g = c->comm->group;
    bool sends = c->kind == SEND;
    auto key = sends ? std::make_pair(c->comm->rank, c->peer)
                     : std::make_pair(c->peer, c->comm->rank);
    auto &pair = g->pairs[key][c->number];
    (sends ? pair.first : pair.second) = c;
    Call *from = pair.first, *to = pair.second;
    if (!from || !to)
        return;
    if (from->count != to->count || from->type != to->type)
        fatal("communicator %d, message %llu: rank %d calls %s to rank %d, which calls %s", g->id,
              (unsigned long long)c->number, key.first, show(*from).c_str(), key.second,
              show(*to).c_str());
    size_t bytes = from->count * types[from->type].bytes;
    touches(*from->at, from->send, bytes, false);
    put(to, 0, (const char *)from->send, bytes);
    from->done = to->done = true;
    g->pairs[key].erase(c->number);
}

bool posting_done(const Op &op)
{
    for (auto &c : op.posting->calls) {
        if (!c.done && remote_on())
            try_remote(&c);
        if (!c.done && !c.comm->aborted)
            return false;
    }
    return true;
}

bool posting_post(Op &op)
{
    for (auto &c : op.posting->calls) {
        c.at = &op;
        if (remote_on())
            post_remote(&c);
        else if (c.kind >= SEND)
            post_message(&c);
        else
            post_collective(&c);
    }
    progress_made();
    return posting_done(op);
}

/* ---- issuing ------------------------------------------------------------ */

struct Init { ncclComm_t *out; int nranks; std::string id; int rank; };
static thread_local int depth;                  // of ncclGroupStart
static thread_local std::vector<std::pair<CUstream_st *, Call>> grouped;
static thread_local std::vector<Init> inits;

static void issue(CUstream_st *s, std::vector<Call> calls)
{
    Op op;
    op.name = calls.size() == 1 ? kind_name[calls[0].kind] : "group";
    op.posting = std::make_shared<Posting>();
    op.posting->calls = std::move(calls);
    enqueue_op(s, std::move(op));
}

static ncclResult_t call(Kind kind, const void *send, void *recv, size_t count,
                         ncclDataType_t type, ncclRedOp_t op, int peer, ncclComm_t comm,
                         cudaStream_t stream)
{
    CUstream_st *s = resolve(stream);
    if (!s || !comm || comm->aborted)
        return ncclInvalidArgument;
    if (s->device != comm->device) {
        report("%s: the communicator belongs to device %d, the stream to device %d",
               kind_name[kind], comm->device, s->device);
        return ncclInvalidUsage;
    }
    if (peer < 0 || peer >= comm->group->nranks) {
        report("%s: no rank %d among %d", kind_name[kind], peer, comm->group->nranks);
        return ncclInvalidArgument;
    }
    Call c = { kind, send, recv, count, type, op, peer, comm, 0, false, nullptr };
    if (kind == SEND)
        c.number = comm->sent[{ peer, 0 }]++;
    else if (kind == RECV)
        c.number = comm->received[{ peer, 0 }]++;
    else
        c.number = comm->issued++;
    check_buffers(c);
    if (depth)
        grouped.push_back({ s, c });
    else
        issue(s, { c });
    return ncclSuccess;
}

// The world of processes: all say that they are there.
static void join_remote(const Init &i)
{
    std::unique_lock<std::mutex> lock(big_lock);
    Group *g = new_group(i.nranks);
    g->name = g->world = i.id.c_str();
    for (int r = 0; r < i.nranks; r++)
        g->process.push_back(r);
    ncclComm *c = new ncclComm();
    c->group = g;
    c->rank = i.rank;
    cudaGetDevice(&c->device);
    g->member[(size_t)i.rank] = c;
    if (i.nranks > 1)
        remote_open(g->world, i.rank);
    for (int r = 0; r < i.nranks; r++)
        if (r != i.rank)
            remote_send(g->world, r, head_of(g, R_JOIN, i.rank, 0), "");
    host_wait(lock, format("rank %d waits in ncclCommInitRank of %d ranks", i.rank, i.nranks), 0,
              [=] {
                  for (int r = 0; r < i.nranks; r++)
                      if (r != i.rank && !remote_mail(g->name, R_JOIN, 0, r))
                          return false;
                  return true;
              });
    *i.out = c;
}

// Every process sees all colors and keys, and makes its own group of them.
static ncclComm *split_remote(ncclComm *c, int color, int key)
{
    std::unique_lock<std::mutex> lock(big_lock);
    Group *g = c->group;
    uint64_t number = c->nsplits++;
    RemoteHead h = head_of(g, R_SPLIT, c->rank, number);
    h.kind = color;
    h.type = key;
    for (int r = 0; r < g->nranks; r++)
        if (r != c->rank)
            remote_send(g->world, g->process[(size_t)r], h, "");
    host_wait(lock, format("rank %d of communicator %d waits in ncclCommSplit", c->rank, g->id),
              0, [=] {
                  for (int r = 0; r < g->nranks; r++)
                      if (r != c->rank && !remote_mail(g->name, R_SPLIT, number, r))
                          return false;
                  return true;
              });
    std::vector<std::pair<int, int>> members;   // key, rank
    for (int r = 0; r < g->nranks; r++) {
        const RemoteMail *m = r == c->rank ? nullptr : remote_mail(g->name, R_SPLIT, number, r);
        if ((m ? m->head.kind : color) == color)
            members.push_back({ m ? m->head.type : key, r });
    }
    if (color < 0)
        return nullptr;
    std::sort(members.begin(), members.end());
    Group *made = new_group((int)members.size());
    made->name = format("%s/%llu.%d", g->name.c_str(), (unsigned long long)number, color);
    made->world = g->world;
    ncclComm *out = new ncclComm();
    out->group = made;
    out->device = c->device;
    for (size_t i = 0; i < members.size(); i++) {
        made->process.push_back(g->process[(size_t)members[i].second]);
        if (members[i].second == c->rank)
            out->rank = (int)i;
    }
    made->member[(size_t)out->rank] = out;
    return out;
}

static void join_all(std::vector<Init> &all)
{
    if (remote_on()) {
        for (auto &i : all)
            join_remote(i);
        return;
    }
    struct Meeting { Group *group; int here; };
    static auto &meetings = *new std::map<std::string, Meeting>();
    std::unique_lock<std::mutex> lock(big_lock);
    int device;
    cudaGetDevice(&device);
    me.get();
    for (auto &i : all) {
        if (!meetings.count(i.id))
            meetings[i.id] = { new_group(i.nranks), 0 };
        Meeting &m = meetings[i.id];
        if (m.group->nranks != i.nranks || m.group->member[(size_t)i.rank])
            fatal("ncclCommInitRank: rank %d of %d, but %s", i.rank, i.nranks,
                  m.group->nranks != i.nranks ? "another rank names another number of ranks"
                                              : "that rank is there already");
        ncclComm *c = new ncclComm();
        c->group = m.group;
        c->rank = i.rank;
        c->device = device;
        m.group->member[(size_t)i.rank] = c;
        m.here++;
        *i.out = c;
        progress_made();
    }
    for (auto &i : all) {
        Meeting *m = &meetings[i.id];
        host_wait(lock, format("rank %d waits in ncclCommInitRank of %d ranks", i.rank, i.nranks),
                  i.nranks, [=] { return m->here == i.nranks; });
    }
}

extern "C" {

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth)
        return ncclSuccess;
    std::vector<Init> joining;
    joining.swap(inits);
    if (!joining.empty())
        join_all(joining);
    auto calls = std::move(grouped);
    grouped.clear();
    while (!calls.empty()) {                    // one operation for each stream
        CUstream_st *s = calls[0].first;
        std::vector<Call> mine;
        auto rest = calls;
        rest.clear();
        for (auto &c : calls)
            if (c.first == s)
                mine.push_back(c.second);
            else
                rest.push_back(c);
        issue(s, mine);
        calls.swap(rest);
    }
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    return call(ALLREDUCE, send, recv, count, type, op, 0, c, s);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t s)
{
    return call(REDUCE, send, recv, count, type, op, root, c, s);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t c, cudaStream_t s)
{
    return call(BROADCAST, send, recv, count, type, ncclSum, root, c, s);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                       cudaStream_t s)
{
    return call(BROADCAST, buffer, buffer, count, type, ncclSum, root, c, s);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t s)
{
    return call(ALLGATHER, send, recv, sendcount, type, ncclSum, 0, c, s);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recvcount,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s)
{
    return call(REDUCESCATTER, send, recv, recvcount, type, op, 0, c, s);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t c, cudaStream_t s)
{
    return call(SEND, send, nullptr, count, type, ncclSum, peer, c, s);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return call(RECV, nullptr, recv, count, type, ncclSum, peer, c, s);
}

/* ---- making and ending communicators ------------------------------------ */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    std::lock_guard<std::mutex> hold(big_lock);
    static int n;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "cudasim %d %d", (int)getpid(), n++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    (void)config;
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return ncclInvalidArgument;
    Init i = { c, nranks, std::string(id.internal, sizeof id.internal), rank };
    if (depth) {
        inits.push_back(i);
    } else {
        std::vector<Init> one = { i };
        join_all(one);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *c, int nranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(c, nranks, id, rank, nullptr);
}

// All ranks of c meet; the last to come makes the groups: ranks by key, then by old rank.
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    (void)config;
    if (remote_on()) {
        *out = split_remote(c, color, key);
        return ncclSuccess;
    }
    std::unique_lock<std::mutex> lock(big_lock);
    Group *g = c->group;
    uint64_t number = c->nsplits++;
    auto &all = g->splits[number];
    all.resize((size_t)g->nranks);
    all[(size_t)c->rank] = { color, key, nullptr, true };
    bool complete = true;
    for (auto &s : all)
        complete = complete && s.known;
    if (complete) {
        std::map<int, std::vector<int>> colors;
        for (int r = 0; r < g->nranks; r++)
            if (all[(size_t)r].color >= 0)
                colors[all[(size_t)r].color].push_back(r);
        for (auto &entry : colors) {
            std::stable_sort(entry.second.begin(), entry.second.end(), [&](int a, int b) {
                return all[(size_t)a].key < all[(size_t)b].key; });
            Group *made = new_group((int)entry.second.size());
            for (int r = 0; r < made->nranks; r++) {
                int old = entry.second[(size_t)r];
                ncclComm *m = new ncclComm();
                m->group = made;
                m->rank = r;
                m->device = g->member[(size_t)old]->device;
                made->member[(size_t)r] = m;
                all[(size_t)old].result = m;
            }
        }
        g->splits_done[number] = 1;
        progress_made();
    }
    host_wait(lock, format("rank %d of communicator %d waits in ncclCommSplit", c->rank, g->id),
              0, [=] { return g->splits_done.count(number) > 0; });
    *out = g->splits[number][(size_t)c->rank].result;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    (void)c;
    cudaDeviceSynchronize();
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) { return ncclCommFinalize(c); }

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    std::lock_guard<std::mutex> hold(big_lock);
    c->aborted = true;
    for (auto &entry : c->group->collectives)
        entry.second[(size_t)c->rank] = nullptr;
    for (auto &pair : c->group->pairs)
        for (auto &entry : pair.second) {
            if (pair.first.first == c->rank)
                entry.second.first = nullptr;
            if (pair.first.second == c->rank)
                entry.second.second = nullptr;
        }
    progress_made();
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
    *r = c->aborted ? ncclInternalError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t c, int *n) { *n = c->group->nranks; return ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank) { *rank = c->rank; return ncclSuccess; }
ncclResult_t ncclCommCuDevice(ncclComm_t c, int *d) { *d = c->device; return ncclSuccess; }
ncclResult_t ncclGetVersion(int *v) { *v = NCCL_VERSION_CODE; return ncclSuccess; }
const char *ncclGetLastError(ncclComm_t c) { (void)c; return ""; }
const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const text[] = {
        "no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or network error",
        "operation in progress"
    };
    return r >= 0 && r <= ncclInProgress ? text[r] : "unknown result code";
}

/* ---- rank threads ------------------------------------------------------- */

int cudasim_ranks(int n, int (*fn)(int rank, int n, void *arg), void *arg)
{
    std::vector<std::thread> threads;
    std::vector<int> status((size_t)n);
    std::vector<Rank *> all;
    {
        std::lock_guard<std::mutex> hold(big_lock);
        ranks.erase(me.rank);                   // the caller only waits for its threads
        for (int r = 0; r < n; r++) {
            all.push_back(new Rank());
            enter(all.back());
        }
    }
    for (int r = 0; r < n; r++)
        threads.emplace_back([&, r] {
            me.rank = all[(size_t)r];
            cudaSetDevice(r);
            status[(size_t)r] = fn(r, n, arg);
            cudaDeviceSynchronize();            // a GPU would go on without its host
        });
    for (auto &t : threads)
        t.join();
    for (int s : status)
        if (s)
            return s;
    return 0;
}

}
