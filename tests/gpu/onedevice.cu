/*
 * onedevice.cu - a stand-in for NCCL among ranks that are threads of one process on one GPU,
 * where NCCL says "Duplicate GPU detected". Only the calls of a generated program, only sums.
 *
 *     make CHECKS="-include onedevice.h onedevice.cu"      RT_SHARE_GPU=1 ./program
 *
 * A rank waits, on the host, until all members have made the call; the last one enqueues it
 * for all behind their events, and they go on behind its event. The step tables allow that:
 * the CPU's ranks wait in the same places. Sums are taken in the order of members. It tells
 * whether a program is right, not how fast its collectives are.
 */
#include "onedevice.h"

#include <cuda_bf16.h>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>
#include <stdlib.h>
#include <string.h>

namespace onedevice {

enum { MOST = 64 };                     // members of a group
enum Kind { GATHER, SCATTER, REDUCE, BROADCAST, SPLIT };

/* What a kernel gets: where each member has its numbers, and where it wants the result. */
struct Parts { const void *from[MOST]; void *to[MOST]; int n; };

/* One call of all members. */
struct Meeting {
    Kind kind;
    int root;                           // who alone takes a sum, or gives; -1: all
    size_t count;
    ncclDataType_t type;
    Parts parts;
    cudaEvent_t ready[MOST];
    int color[MOST], key[MOST], came, left;
    ncclComm_t made[MOST];
    ncclResult_t result;
    bool done;
};

struct Transfer {
    const void *from;
    void *to;
    size_t bytes[2];                    // given, taken
    cudaEvent_t ready, over;
    bool came[2], done;
};

struct Group {
    std::mutex lock;
    std::condition_variable moved;
    std::map<uint64_t, Meeting> calls;  // by their number
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Transfer>>> transfers;
    cudaEvent_t over;
    int n;
};

/* What a group of sends and receives of this thread still waits for. */
struct Open { ncclComm_t comm; std::shared_ptr<Transfer> t; cudaStream_t stream; };
thread_local std::vector<Open> opened;
thread_local int depth;

std::mutex worlds_lock;
std::map<std::vector<char>, std::shared_ptr<Group>> worlds;

size_t size_of(ncclDataType_t t) { return t == ncclDouble ? 8 : t == ncclFloat ? 4 : 2; }

/* TUNING: seconds after which a member that did not come is given up. */
std::chrono::seconds patience() { return std::chrono::seconds(60); }

ncclResult_t of(cudaError_t e) { return e == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }

/* ---- kernels ------------------------------------------------------------------------- */

__device__ inline float wide(float x) { return x; }
__device__ inline double wide(double x) { return x; }
__device__ inline float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void put(float *p, float x) { *p = x; }
__device__ inline void put(double *p, double x) { *p = x; }
__device__ inline void put(__nv_bfloat16 *p, float x) { *p = __float2bfloat16(x); }

template <typename T> __device__ auto sum(const Parts &p, size_t i)
{
    auto s = wide(((const T *)p.from[0])[i]);
    for (int q = 1; q < p.n; q++)
        s += wide(((const T *)p.from[q])[i]);
    return s;
}

/* Each number is read and written by one thread, so results may lie where parts did. */
template <typename T> __global__ void one_gather(Parts p, size_t count)
{
    for (size_t j = blockIdx.x * (size_t)blockDim.x + threadIdx.x; j < count * p.n;
         j += (size_t)gridDim.x * blockDim.x) {
        T x = ((const T *)p.from[j / count])[j % count];
        for (int r = 0; r < p.n; r++)
            ((T *)p.to[r])[j] = x;
    }
}

template <typename T> __global__ void one_scatter(Parts p, size_t count)
{
    for (size_t j = blockIdx.x * (size_t)blockDim.x + threadIdx.x; j < count * p.n;
         j += (size_t)gridDim.x * blockDim.x)
        put((T *)p.to[j / count] + j % count, sum<T>(p, j));
}

template <typename T> __global__ void one_reduce(Parts p, size_t count, int root)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        auto s = sum<T>(p, i);
        for (int r = 0; r < p.n; r++)
            if (root < 0 || r == root)
                put((T *)p.to[r] + i, s);
    }
}

template <typename T> __global__ void one_broadcast(Parts p, size_t count, int root)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        T x = ((const T *)p.from[root])[i];
        for (int r = 0; r < p.n; r++)
            ((T *)p.to[r])[i] = x;
    }
}

template <typename T> void launch(const Meeting &m, cudaStream_t s)
{
    bool each = m.kind == GATHER || m.kind == SCATTER;
    size_t work = each ? m.count * (size_t)m.parts.n : m.count;
    unsigned blocks = (unsigned)(work / 256 < 1024 ? work / 256 + 1 : 1024);
    if (work == 0)
        return;
    if (m.kind == GATHER)
        one_gather<T><<<blocks, 256, 0, s>>>(m.parts, m.count);
    else if (m.kind == SCATTER)
        one_scatter<T><<<blocks, 256, 0, s>>>(m.parts, m.count);
    else if (m.kind == REDUCE)
        one_reduce<T><<<blocks, 256, 0, s>>>(m.parts, m.count, m.root);
    else
        one_broadcast<T><<<blocks, 256, 0, s>>>(m.parts, m.count, m.root);
}

}

struct ncclComm {
    std::shared_ptr<onedevice::Group> group;
    int rank;
    uint64_t calls;
    cudaEvent_t ready;                  // of my part, in the present call
};

namespace onedevice {

std::shared_ptr<Group> new_group(int n)
{
    auto g = std::make_shared<Group>();
    g->n = n;
    cudaEventCreateWithFlags(&g->over, cudaEventDisableTiming);
    return g;
}

ncclComm_t member(const std::shared_ptr<Group> &g, int rank)
{
    ncclComm_t c = new ncclComm{ g, rank, 0, NULL };
    cudaEventCreateWithFlags(&c->ready, cudaEventDisableTiming);
    return c;
}

/* The members of each colour become a group, in the order of their keys. */
void split(Meeting &m, int n)
{
    std::map<int, std::map<std::pair<int, int>, int>> colours;
    for (int r = 0; r < n; r++)
        if (m.color[r] != NCCL_SPLIT_NOCOLOR)
            colours[m.color[r]][{ m.key[r], r }] = r;
    for (auto &one : colours) {
        auto g = new_group((int)one.second.size());
        int rank = 0;
        for (auto &who : one.second)
            m.made[who.second] = member(g, rank++);
    }
}

void perform(Group *g, Meeting &m, cudaStream_t s)
{
    if (m.kind == SPLIT)
        return split(m, g->n);
    for (int q = 0; q < g->n; q++)
        cudaStreamWaitEvent(s, m.ready[q], 0);
    m.parts.n = g->n;
    if (m.type == ncclDouble)
        launch<double>(m, s);
    else if (m.type == ncclFloat)
        launch<float>(m, s);
    else
        launch<__nv_bfloat16>(m, s);
    m.result = of(cudaGetLastError());
    cudaEventRecord(g->over, s);
}

/* A call of all members; `mine` has what this one brings. */
ncclResult_t together(ncclComm_t c, const Meeting &mine, const void *from, void *to, int color,
                      int key, cudaStream_t s, ncclComm_t *made)
{
    Group *g = c->group.get();
    if (mine.kind != SPLIT)
        cudaEventRecord(c->ready, s);
    std::unique_lock<std::mutex> hold(g->lock);
    uint64_t number = c->calls++;
    Meeting &m = g->calls[number];
    if (m.came == 0) {
        m.kind = mine.kind;
        m.root = mine.root;
        m.count = mine.count;
        m.type = mine.type;
    } else if (m.kind != mine.kind || m.count != mine.count || m.type != mine.type ||
               m.root != mine.root) {
        m.result = ncclInvalidUsage;    // two members make different calls
    }
    m.parts.from[c->rank] = from;
    m.parts.to[c->rank] = to;
    m.ready[c->rank] = c->ready;
    m.color[c->rank] = color;
    m.key[c->rank] = key;
    if (++m.came == g->n) {
        if (m.result == ncclSuccess)
            perform(g, m, s);
        m.done = true;
        g->moved.notify_all();
    } else if (!g->moved.wait_for(hold, patience(), [&] { return m.done; })) {
        return ncclRemoteError;
    } else if (mine.kind != SPLIT) {
        cudaStreamWaitEvent(s, g->over, 0);
    }
    ncclResult_t result = m.result;
    if (made)
        *made = m.made[c->rank];
    if (++m.left == g->n)
        g->calls.erase(number);
    return result;
}

ncclResult_t collective(Kind kind, const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclComm_t c, cudaStream_t s, int root = -1)
{
    Meeting m = {};
    m.kind = kind;
    m.root = root;
    m.count = count;
    m.type = type;
    return together(c, m, from, to, 0, 0, s, NULL);
}

/* ---- transfers -------------------------------------------------------------------------- */

ncclResult_t finish(Open &o)
{
    Group *g = o.comm->group.get();
    std::unique_lock<std::mutex> hold(g->lock);
    if (!g->moved.wait_for(hold, patience(), [&] { return o.t->done; }))
        return ncclRemoteError;
    cudaStreamWaitEvent(o.stream, o.t->over, 0);
    return o.t->bytes[0] == o.t->bytes[1] ? ncclSuccess : ncclInvalidUsage;
}

/* The first of the two leaves its event, the second one copies. */
ncclResult_t transfer(bool gives, const void *from, void *to, size_t bytes, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    Group *g = c->group.get();
    std::unique_lock<std::mutex> hold(g->lock);
    auto &queue = g->transfers[gives ? std::pair<int, int>(c->rank, peer)
                                     : std::pair<int, int>(peer, c->rank)];
    size_t i = 0;
    while (i < queue.size() && queue[i]->came[gives])
        i++;
    if (i == queue.size())
        queue.push_back(std::shared_ptr<Transfer>(new Transfer(), [](Transfer *t) {
            cudaEventDestroy(t->ready);
            cudaEventDestroy(t->over);
            delete t;
        }));
    auto t = queue[i];
    t->came[gives] = true;
    t->bytes[gives] = bytes;
    if (gives)
        t->from = from;
    else
        t->to = to;
    if (t->came[!gives]) {
        cudaStreamWaitEvent(s, t->ready, 0);
        if (t->bytes[0] == t->bytes[1])
            cudaMemcpyAsync(t->to, t->from, bytes, cudaMemcpyDeviceToDevice, s);
        cudaEventRecord(t->over, s);
        t->done = true;
        queue.erase(queue.begin() + (std::ptrdiff_t)i);
        g->moved.notify_all();
    } else {
        cudaEventCreateWithFlags(&t->ready, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&t->over, cudaEventDisableTiming);
        cudaEventRecord(t->ready, s);
    }
    hold.unlock();
    Open o = { c, t, s };
    if (depth > 0)
        return opened.push_back(o), ncclSuccess;
    return finish(o);
}

}

using namespace onedevice;

/* ---- NCCL ------------------------------------------------------------------------------- */

extern "C" {

const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclSuccess ? "no error"
         : r == ncclRemoteError ? "another rank did not come (one-device stand-in for NCCL)"
         : r == ncclInvalidUsage ? "ranks make different calls (one-device stand-in for NCCL)"
         : "one-device stand-in for NCCL";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::mutex lock;
    static int64_t n;
    std::lock_guard<std::mutex> hold(lock);
    memset(id, 0, sizeof *id);
    n++;
    memcpy(id, &n, sizeof n);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *c, int nranks, ncclUniqueId id, int rank)
{
    if (nranks > MOST)
        return ncclInvalidArgument;
    std::lock_guard<std::mutex> hold(worlds_lock);
    auto &g = worlds[std::vector<char>(id.internal, id.internal + sizeof id.internal)];
    if (!g)
        g = new_group(nranks);
    *c = member(g, rank);
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *)
{
    Meeting m = {};
    m.kind = SPLIT;
    return together(c, m, NULL, NULL, color, key, NULL, out);
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    cudaEventDestroy(c->ready);
    delete c;
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t s)
{
    return collective(GATHER, from, to, count, type, c, s);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t c, cudaStream_t s)
{
    return collective(SCATTER, from, to, count, type, c, s);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t c, cudaStream_t s)
{
    return collective(REDUCE, from, to, count, type, c, s);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t, int root, ncclComm_t c, cudaStream_t s)
{
    return collective(REDUCE, from, to, count, type, c, s, root);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t c, cudaStream_t s)
{
    return collective(BROADCAST, from, to, count, type, c, s, root);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return transfer(true, from, NULL, count * size_of(type), peer, c, s);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return transfer(false, NULL, to, count * size_of(type), peer, c, s);
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;
    if (--depth > 0)
        return result;
    for (auto &o : opened) {
        ncclResult_t r = finish(o);
        result = result == ncclSuccess ? r : result;
    }
    opened.clear();
    return result;
}

}
