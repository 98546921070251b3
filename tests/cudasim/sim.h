/*
 * sim.h - what the parts of the emulator share.
 *
 *   sim.cpp   blocks as fibers, barriers, warp operations, kernels
 *   warp.cpp  shuffles, votes, ldmatrix, mma, cp.async
 *   host.cpp  devices, memory, streams, events
 *   blas.cpp  cuBLAS, cuBLASLt      nccl.cpp  NCCL among threads
 *   race.cpp  the check build: linked there only, hence the weak names below
 *
 * A host thread works for the device it has set (a rank). Stream work is queued and
 * runs when a thread synchronises, as late as CUDA allows.
 */
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H
#include "cuda_runtime.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#ifndef SIM_ASAN                // for programs compiled with -fsanitize=address: sim.cpp, host.cpp
#define SIM_ASAN 0
#endif

/* ---- settings, from the environment ------------------------------------- */

enum Order { ASCENDING, DESCENDING, RANDOM };
struct Settings {
    Order order;            // CUDASIM_ORDER=asc|desc|random: threads and blocks
    uint64_t seed;          // CUDASIM_SEED: random order, and which stream goes next; 0: as issued
    int threads;            // CUDASIM_THREADS: OS threads for one kernel
    int devices;            // CUDASIM_DEVICES
    size_t memory;          // CUDASIM_MEMORY_MB of each device
    int timeout;            // CUDASIM_TIMEOUT seconds without progress: a last resort
};
const Settings &settings();

struct Random {             // splitmix64
    uint64_t state;
    uint64_t next()
    {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    uint64_t below(uint64_t n) { return next() % n; }
};

/* ---- reports ------------------------------------------------------------ */

enum { EXIT_REPORTED = 66, EXIT_STUCK = 67 };

// One message; the process will end with EXIT_REPORTED whatever the program says.
void report(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// The same, and the end: nothing sensible can follow.
[[noreturn]] void fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *base_name(const char *path);

/* ---- memory ------------------------------------------------------------- */

enum Where { ON_DEVICE, PINNED };
struct Alloc {
    char *base;
    size_t bytes;
    Where where;
    int device;
    bool freed;
    int number;             // "allocation 3 of device 0"
    void *shadow;           // race.cpp
};
// The allocation that holds p (or ends right before it, with `near`), or null.
Alloc *find_alloc(const void *p, bool near = false);
// True if all bytes lie in one live allocation of the device; else reports, with `who`.
bool check_device_range(const void *p, size_t bytes, int device, const char *who);
// rows of `width` bytes, `pitch` bytes apart
bool check_device_rows(const void *p, size_t rows, size_t width, size_t pitch, int device,
                       const char *who);
std::string describe(const void *p);
struct Region { char *low, *high; };
extern Region sim_region[256];                  // where cudaMalloc and cudaMallocHost allocate
extern int sim_nregions;

/* ---- clocks: what has happened before what ------------------------------ */

typedef std::vector<uint32_t> Clock;            // by stream slot
void join(Clock &a, const Clock &b);

// Something queued on a stream.
struct Mark {
    bool done = false;
    Clock clock;
    double time = 0;
};
typedef std::shared_ptr<Mark> MarkRef;

struct Posting;                                 // nccl.cpp
struct Op {
    std::string name;
    std::function<void(Op &)> run;              // without the lock
    std::vector<MarkRef> after;
    MarkRef mark;
    std::shared_ptr<Posting> posting;           // a collective: posted, then awaited
    bool posted = false;
    int device = 0, slot = 0;
    uint32_t clock = 0, id = 0;                 // id: into race.cpp's table
    uint64_t turn = 0;                          // order of issue
};

/* ---- streams ------------------------------------------------------------ */

struct CUstream_st {
    int device, slot;
    uint32_t clock = 0;
    bool blocking, busy = false, legacy = false;
    std::deque<Op> queue;
    MarkRef tail;
    Clock seen;
};
struct CUevent_st { MarkRef mark; bool timed; int device; };

struct Device {
    int number;
    std::vector<CUstream_st *> streams;         // [0]: the legacy default stream
    size_t used = 0;
    int allocations = 0;
    Random random;
    Clock host;                                 // what the host has waited for
    char *region = nullptr, *top = nullptr;     // addresses, handed out once only
};

extern std::mutex &big_lock;                    // over all of the above
extern std::condition_variable &progress;
Device *current_device();                       // takes the lock
CUstream_st *resolve(cudaStream_t s);           // null after an error
cudaError_t set_error(cudaError_t e);
// Queues `op` on s; `touches` are the streams' clocks. Needs no lock.
MarkRef enqueue_op(CUstream_st *s, Op op);
// Runs work of this thread's device until the mark is done.
void run_until(const MarkRef &m);
void drain(Device *d);
// One operation of this thread's device, if any may go; the lock is held, but not meanwhile.
bool run_something(std::unique_lock<std::mutex> &lock);
extern int running_ops;

// nccl.cpp. With the lock held.
bool posting_post(Op &op);                      // true when it is complete at once
bool posting_done(const Op &op);
void wait_for_progress(std::unique_lock<std::mutex> &lock);  // finds deadlocks
void progress_made();
uint64_t happened_so_far();
bool anybody_waits();                                        // of the hosts, for their devices
bool device_may_go();                                        // something on some device may run

/* ---- kernels ------------------------------------------------------------ */

struct Kernel {
    std::string name;
    dim3 grid, block;
    size_t smem;
    std::shared_ptr<cudasim::Body> body;
    const Op *op;
};
void run_kernel(const Kernel &k);

enum State { NEW, READY, AT_BARRIER, IN_WARP, DONE };
struct Copy { char *dst; const char *src; int bytes, copied, group; void *pc; };

struct Fiber : cudasim::Thread {                // one CUDA thread
    int id;
    State state;
    void *sp;
    char *stack;                                // lowest address
    int predicate;
    unsigned mask;                              // of the warp operation it waits in
    void *arg;
    cudasim::WarpFn fn;
    const char *what, *file;                    // where it waits
    int line;
    uint32_t warp_epoch;                        // __syncwarps passed
    std::vector<Copy> copies;                   // cp.async not waited for
    int group;
    int depth;                                  // of the call stack below, in the check build
    void *callers[16];
};

struct SharedVar { const char *name; int n; char *base; size_t bytes; bool used; };

enum { STACK = SIM_ASAN ? 256 << 10 : 64 << 10, MAX_THREADS = 1024, ARENA = 240 << 10 };

struct Worker {                                 // one OS thread that runs blocks
    cudasim::Block block;
    const Kernel *kernel;
    Fiber *fiber;                               // MAX_THREADS of them
    int nfibers, ndone, at_barrier, truths;
    int order[MAX_THREADS], pos;
    Fiber *now;
    void *sp;                                   // of the scheduler
    std::vector<char *> free_stacks;
    uint32_t epoch;                             // barriers passed
    bool in_warp_op, settling;      // settling: a cp.async that was counted when it began
    Random random;
    char *arena;
    size_t arena_used, arena_left;      // of this kernel; of the one before, not yet forgotten
    std::vector<SharedVar> shared;
    void *shadow;                               // race.cpp
    std::set<std::pair<const char *, uint32_t>> counted;    // by the block: address, place
    ~Worker();
};
extern __thread Worker *sim_worker;             // null outside kernels

// "kernel k, block (0,0,0), thread (5,0,0)"
std::string where_now();
void finish_copies(Fiber *f, int groups_left);

/* ---- the check build ---------------------------------------------------- */

#define WEAK __attribute__((weak))
WEAK void race_op(Op &op);                                  // gives it an id
WEAK void race_alloc(Alloc *a);
WEAK void race_free(Alloc *a);
WEAK void race_block(Worker *w);                            // a block begins
WEAK void race_range(const Op &op, const void *p, size_t bytes, bool write);
WEAK void race_access(const void *p, size_t bytes, bool write, void *pc);
WEAK void race_async(const Copy &c, bool begin);            // cp.async issued, completed
static inline void touches(const Op &op, const void *p, size_t bytes, bool write)
{
    if (race_range)
        race_range(op, p, bytes, write);
}
#endif
