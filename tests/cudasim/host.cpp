/*
 * host.cpp - the host's side of CUDA: devices, memory, streams, events, launches.
 *
 * A stream is a queue. Its work runs when somebody waits for it, one operation at a
 * time, the stream chosen at random among those whose head may go: whatever order
 * CUDA would allow can happen, and by some seed does. Each operation carries a clock
 * (which earlier operations are finished before it for sure) for the check build.
 */
#include "sim.h"
#include "cudasim.h"
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// Never destroyed: threads may still wait on them at exit.
std::mutex &big_lock = *new std::mutex();
std::condition_variable &progress = *new std::condition_variable();

static __thread int my_device;
static __thread cudaError_t last_error;

cudaError_t set_error(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

/* ---- devices ------------------------------------------------------------ */

static int nslots;

static CUstream_st *new_stream(Device *d, bool blocking)
{
    CUstream_st *s = new CUstream_st();
    s->device = d->number;
    s->slot = nslots++;
    s->blocking = blocking;
    d->streams.push_back(s);
    return s;
}

static void devices_go_on();

static std::vector<Device *> *devices = new std::vector<Device *>();
static int ndevices() { return (int)devices->size(); }

// With the lock held.
static Device *device(int number)
{
    static bool once = (std::thread(devices_go_on).detach(), true);
    (void)once;
    while ((int)devices->size() <= number) {
        Device *d = new Device();
        d->number = (int)devices->size();
        d->random.state = settings().seed * 7919 + (uint64_t)d->number;
        new_stream(d, true)->legacy = true;
        devices->push_back(d);
    }
    return (*devices)[number];
}

Device *current_device()
{
    std::lock_guard<std::mutex> hold(big_lock);
    return device(my_device);
}

// CUDA_VISIBLE_DEVICES: numbers of the machine's GPUs, by the process's own.
static const std::vector<int> &visible()
{
    static std::vector<int> *all = nullptr;
    static std::mutex lock;
    std::lock_guard<std::mutex> hold(lock);
    const char *s = getenv("CUDA_VISIBLE_DEVICES");
    if (all)
        return *all;
    all = new std::vector<int>();
    for (int i = 0; !s && i < settings().devices; i++)
        all->push_back(i);
    for (char *end; s && *s; s = end + (*end == ',')) {
        long n = strtol(s, &end, 10);
        if (end == s || n < 0 || n >= settings().devices)
            break;                      // as CUDA: what follows is not seen either
        all->push_back((int)n);
    }
    return *all;
}

static int device_count() { return (int)visible().size(); }

/* ---- memory ------------------------------------------------------------- */

/*
 * Device memory comes from a range of addresses per device that is used once only, in whole
 * pages with a forbidden page after them; an allocation ends at the end of its
 * pages as nearly as its alignment lets it. What is freed stays forbidden.
 */
enum { PAGE = 4096, ALIGN = 256, SLACK = 0xa5 };
static const size_t REGION = (size_t)1 << 36;

Region sim_region[256];
int sim_nregions;

static std::recursive_mutex &alloc_lock = *new std::recursive_mutex();
static std::map<const char *, Alloc *> &allocs()
{
    static auto *a = new std::map<const char *, Alloc *>();
    return *a;
}

Alloc *find_alloc(const void *p, bool near)
{
    std::lock_guard<std::recursive_mutex> hold(alloc_lock);
    auto i = allocs().upper_bound((const char *)p);
    if (i == allocs().begin())
        return nullptr;
    Alloc *a = (--i)->second;
    size_t at = (size_t)((const char *)p - a->base);
    return at < a->bytes + (near ? PAGE : 0) ? a : nullptr;
}

std::string describe(const void *p)
{
    Alloc *a = find_alloc(p, true);
    if (!a)
        return "not device memory";
    std::string what = a->where == PINNED ? format("pinned allocation %d", a->number)
        : format("allocation %d of device %d", a->number, a->device);
    what += format(" (%zu bytes%s)", a->bytes, a->freed ? ", freed" : "");
    size_t at = (size_t)((const char *)p - a->base);
    return at < a->bytes ? format("byte %zu of ", at) + what
                         : format("%zu past the end of ", at - a->bytes) + what;
}

bool check_device_range(const void *p, size_t bytes, int dev, const char *who)
{
    if (!bytes)
        return true;
    Alloc *a = find_alloc(p);
    const char *bad = !a ? "is not device memory"
        : a->where != ON_DEVICE ? "is host memory"
        : a->freed ? "was freed"
        : dev >= 0 && a->device != dev ? "belongs to another device"
        : (size_t)((const char *)p - a->base) + bytes > a->bytes ? "ends too early" : nullptr;
    if (bad)
        report("%s, device %d: %p with %zu bytes %s: %s", who, dev, p, bytes, bad,
               describe(p).c_str());
    return !bad;
}

bool check_device_rows(const void *p, size_t rows, size_t width, size_t pitch, int dev,
                       const char *who)
{
    return rows == 0 || width == 0 || check_device_range(p, (rows - 1) * pitch + width, dev, who);
}

static size_t slack(const Alloc *a) { return (ALIGN - a->bytes % ALIGN) % ALIGN; }

static void check_slack(const Alloc *a)
{
    for (size_t i = 0; !SIM_ASAN && !a->freed && i < slack(a); i++)
        if ((unsigned char)a->base[a->bytes + i] != SLACK) {
            report("somebody wrote %s", describe(a->base + a->bytes + i).c_str());
            return;
        }
}

static void check_all_slack()
{
    for (auto &a : allocs())
        check_slack(a.second);
}

static char *take_pages(Device *d, size_t bytes, size_t *taken)
{
    if (!d->region) {
        d->region = d->top = (char *)mmap(nullptr, REGION, PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (d->region == MAP_FAILED || sim_nregions == 256)
            fatal("no address space for a device's memory");
        sim_region[sim_nregions] = { d->region, d->region + REGION };
        __atomic_fetch_add(&sim_nregions, 1, __ATOMIC_RELEASE);
        static bool once = (atexit(check_all_slack), true);
        (void)once;
    }
    *taken = (bytes + PAGE - 1) / PAGE * PAGE;
    char *p = d->top;
    if (p + *taken + PAGE > d->region + REGION ||
        mprotect(p, *taken, PROT_READ | PROT_WRITE))
        return nullptr;
    d->top = p + *taken + PAGE;
    return p;
}

static cudaError_t allocate(void **out, size_t bytes, Where where)
{
    std::lock_guard<std::mutex> hold(big_lock);
    *out = nullptr;
    if (!bytes)
        return cudaSuccess;
    Device *d = device(my_device);
    if (where == ON_DEVICE && (bytes > settings().memory || d->used + bytes > settings().memory))
        return set_error(cudaErrorMemoryAllocation);
    Alloc *a = new Alloc();
    a->bytes = bytes;
    a->where = where;
    a->device = my_device;
    a->number = d->allocations++;
    if (SIM_ASAN) {
        if (posix_memalign((void **)&a->base, ALIGN, bytes))
            return set_error(cudaErrorMemoryAllocation);
    } else {
        size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN, taken;
        char *pages = take_pages(d, rounded, &taken);
        if (!pages)
            return set_error(cudaErrorMemoryAllocation);
        a->base = pages + taken - rounded;
        memset(a->base + bytes, SLACK, slack(a));
    }
    memset(a->base, 0xff, bytes);
    if (where == ON_DEVICE)
        d->used += bytes;
    std::lock_guard<std::recursive_mutex> also(alloc_lock);
    allocs()[a->base] = a;
    if (race_alloc)
        race_alloc(a);
    *out = a->base;
    return cudaSuccess;
}

static cudaError_t release(void *p, Where where)
{
    if (!p)
        return cudaSuccess;
    Alloc *a = find_alloc(p);
    if (!a || a->base != p || a->where != where || a->freed) {
        report("free of %p, which is not the start of a live allocation: %s", p,
               describe(p).c_str());
        return set_error(cudaErrorInvalidValue);
    }
    cudaDeviceSynchronize();
    std::lock_guard<std::mutex> hold(big_lock);
    std::lock_guard<std::recursive_mutex> also(alloc_lock);
    check_slack(a);
    if (where == ON_DEVICE)
        device(a->device)->used -= a->bytes;
    a->freed = true;
    if (race_free)
        race_free(a);
    if (SIM_ASAN) {
        free(a->base);
        allocs().erase(a->base);
        delete a;
    } else {
        char *pages = (char *)((uintptr_t)a->base & ~(uintptr_t)(PAGE - 1));
        size_t taken = (size_t)(a->base + a->bytes + slack(a) - pages);
        madvise(pages, taken, MADV_DONTNEED);
        mprotect(pages, taken, PROT_NONE);
    }
    return cudaSuccess;
}

/* ---- streams ------------------------------------------------------------ */

void join(Clock &a, const Clock &b)
{
    if (a.size() < b.size())
        a.resize(b.size());
    for (size_t i = 0; i < b.size(); i++)
        a[i] = std::max(a[i], b[i]);
}

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

CUstream_st *resolve(cudaStream_t s)
{
    if (s == nullptr || s == cudaStreamLegacy || s == cudaStreamPerThread)
        return current_device()->streams[0];
    std::lock_guard<std::mutex> hold(big_lock);
    for (CUstream_st *t : device(my_device)->streams)
        if (t == s)
            return s;
    report("a stream of another device, or one that was destroyed, is used on device %d",
           my_device);
    set_error(cudaErrorInvalidResourceHandle);
    return nullptr;
}

static void order_after(CUstream_st *s, Op &op, const MarkRef &m)
{
    if (!m)
        return;
    if (!m->done)
        op.after.push_back(m);
    join(s->seen, m->clock);
}

MarkRef enqueue_op(CUstream_st *s, Op op)
{
    std::lock_guard<std::mutex> hold(big_lock);
    Device *d = device(s->device);
    std::vector<MarkRef> waits;
    waits.swap(op.after);
    for (auto &m : waits)
        order_after(s, op, m);
    if (s->legacy) {
        for (CUstream_st *t : d->streams)
            if (t->blocking && t != s)
                order_after(s, op, t->tail);
    } else if (s->blocking) {
        order_after(s, op, d->streams[0]->tail);
    }
    join(s->seen, d->host);
    if ((int)s->seen.size() <= s->slot)
        s->seen.resize((size_t)s->slot + 1);
    op.clock = s->seen[(size_t)s->slot] = ++s->clock;
    op.slot = s->slot;
    op.device = s->device;
    op.mark = std::make_shared<Mark>();
    op.mark->clock = s->seen;
    if (race_op)
        race_op(op);
    static uint64_t turn;
    op.turn = turn++;
    s->tail = op.mark;
    s->queue.push_back(std::move(op));
    return s->tail;
}

static bool may_go(const CUstream_st *s)
{
    if (s->busy || s->queue.empty())
        return false;
    const Op &op = s->queue.front();
    for (auto &m : op.after)
        if (!m->done)
            return false;
    return !op.posting || !op.posted || posting_done(op);
}

int running_ops;

// Runs one operation, or posts one collective. False if nothing can go.
static bool run_one(Device *d, std::unique_lock<std::mutex> &lock)
{
    std::vector<CUstream_st *> ready;
    for (CUstream_st *s : d->streams)
        if (may_go(s))
            ready.push_back(s);
    if (ready.empty())
        return false;
    CUstream_st *s = ready[settings().seed ? d->random.below(ready.size()) : 0];
    for (CUstream_st *t : ready)
        if (!settings().seed && t->queue.front().turn < s->queue.front().turn)
            s = t;
    Op &op = s->queue.front();
    if (op.posting) {
        if (!op.posted) {
            op.posted = true;
            if (!posting_post(op))
                return true;
        }
    } else if (op.run) {
        s->busy = true;
        running_ops++;
        lock.unlock();
        op.run(op);
        lock.lock();
        running_ops--;
        s->busy = false;
    }
    op.mark->time = now();
    op.mark->done = true;
    s->queue.pop_front();
    progress_made();
    return true;
}

bool run_something(std::unique_lock<std::mutex> &lock) { return run_one(device(my_device), lock); }

bool device_may_go()
{
    for (int i = 0; i < ndevices(); i++)
        for (CUstream_st *s : device(i)->streams)
            if (may_go(s))
                return true;
    return false;
}

/*
 * A GPU goes on while its host waits for something else: another rank's message in a barrier
 * of the program's own, say. When nothing has happened for a while, this thread takes a step
 * for any device.
 */
static void devices_go_on()
{
    enum { SHORT_MS = 10, LONG_MS = 500 };      // somebody waits here; nobody does
    uint64_t seen = 0;
    int idle = 0;
    for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(SHORT_MS));
        std::unique_lock<std::mutex> lock(big_lock);
        idle = running_ops == 0 && seen == happened_so_far() ? idle + SHORT_MS : 0;
        if (idle > 0 && (anybody_waits() || idle >= LONG_MS))
            for (int i = 0; i < ndevices(); i++) {
                my_device = i;
                if (run_one(device(i), lock))
                    break;
            }
        seen = happened_so_far();
    }
}

void run_until(const MarkRef &m)
{
    if (!m)
        return;
    std::unique_lock<std::mutex> lock(big_lock);
    Device *d = device(my_device);
    while (!m->done)
        if (!run_one(d, lock))
            wait_for_progress(lock);
    join(d->host, m->clock);
}

void drain(Device *d)
{
    for (size_t i = 0; ; i++) {
        MarkRef tail;
        {
            std::lock_guard<std::mutex> hold(big_lock);
            if (i >= d->streams.size())
                return;
            tail = d->streams[i]->tail;
        }
        run_until(tail);
    }
}

// For queries: a step on, so that a program that polls gets somewhere.
static cudaError_t query(const MarkRef &m)
{
    if (!m)
        return cudaSuccess;
    std::unique_lock<std::mutex> lock(big_lock);
    Device *d = device(my_device);
    if (!m->done)
        run_one(d, lock);
    if (!m->done)
        return cudaErrorNotReady;
    join(d->host, m->clock);
    return cudaSuccess;
}

/* ---- launches ----------------------------------------------------------- */

static std::map<const void *, size_t> &smem_limits()
{
    static auto *m = new std::map<const void *, size_t>();
    return *m;
}

static size_t smem_limit(const void *k)
{
    std::lock_guard<std::mutex> hold(big_lock);
    auto i = smem_limits().find(k);
    return i == smem_limits().end() ? 48 << 10 : i->second;
}

void cudasim::enqueue(const char *name, const void *fn, dim3 grid, dim3 block, size_t smem,
                      cudaStream_t stream, Body *body)
{
    std::shared_ptr<Body> owned(body);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > MAX_THREADS || block.z > 64 || !grid.x || !grid.y || !grid.z ||
        grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
        set_error(cudaErrorInvalidConfiguration);
        return;
    }
    if (smem > smem_limit(fn)) {
        set_error(cudaErrorInvalidValue);
        return;
    }
    CUstream_st *s = resolve(stream);
    if (!s)
        return;
    Op op;
    op.name = name;
    op.run = [=](Op &o) { run_kernel({ o.name, grid, block, smem, owned, &o }); };
    enqueue_op(s, std::move(op));
}

/* ---- copies ------------------------------------------------------------- */

static bool is_device(const void *p)
{
    Alloc *a = find_alloc(p);
    return a && a->where == ON_DEVICE;
}

static bool is_pinned(const void *p)
{
    Alloc *a = find_alloc(p);
    return a && a->where == PINNED;
}

struct Rows { char *dst; const char *src; size_t dpitch, spitch, width, height; };

static void copy_rows(const Op &op, const Rows &r, bool to_device, bool from_device)
{
    for (size_t y = 0; y < r.height; y++) {
        if (from_device)
            touches(op, r.src + y * r.spitch, r.width, false);
        if (to_device)
            touches(op, r.dst + y * r.dpitch, r.width, true);
        memmove(r.dst + y * r.dpitch, r.src + y * r.spitch, r.width);
    }
}

/*
 * When the host goes on (as the CUDA documentation has it): after the copy, for
 * cudaMemcpy with a host side and from the device to pageable memory; once the source is
 * staged, from pageable memory; at once, for pinned memory and between devices.
 */
static cudaError_t copy(Rows r, cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
    if (r.width == 0 || r.height == 0)
        return cudaSuccess;
    bool to = is_device(r.dst), from = is_device(r.src);
    if (kind != cudaMemcpyDefault) {
        bool want_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        bool want_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
        if (to != want_to || from != want_from) {
            report("copy of kind %d: the destination is %s, the source is %s", (int)kind,
                   to ? "device memory" : "host memory", from ? "device memory" : "host memory");
            return set_error(cudaErrorInvalidValue);
        }
    }
    if ((to && !check_device_rows(r.dst, r.height, r.width, r.dpitch, -1, "copy")) ||
        (from && !check_device_rows(r.src, r.height, r.width, r.spitch, -1, "copy")) ||
        r.dpitch < r.width || r.spitch < r.width)
        return set_error(cudaErrorInvalidValue);
    CUstream_st *s = resolve(stream);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    Op op;
    op.name = "copy";
    if (!wait && !from && !is_pinned(r.src)) {
        auto staged = std::make_shared<std::string>();
        for (size_t y = 0; y < r.height; y++)
            staged->append(r.src + y * r.spitch, r.width);
        r.spitch = r.width;
        op.run = [=](Op &o) {
            Rows q = r;
            q.src = staged->data();
            copy_rows(o, q, to, false);
        };
    } else {
        op.run = [=](Op &o) { copy_rows(o, r, to, from); };
    }
    MarkRef m = enqueue_op(s, std::move(op));
    if (wait ? !(to && from) : !to && !is_pinned(r.dst))
        run_until(m);
    return cudaSuccess;
}

/* ---- the API ------------------------------------------------------------ */

// race.cpp has another one.
extern "C" __attribute__((weak)) int cudasim_traffic(uint64_t *read, uint64_t *written)
{
    *read = *written = 0;
    return 0;
}

extern "C" {

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:                    return "cudaSuccess";
    case cudaErrorInvalidValue:          return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:  return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:         return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:              return "cudaErrorNotReady";
    default:                             return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:                    return "no error";
    case cudaErrorInvalidValue:          return "invalid argument";
    case cudaErrorMemoryAllocation:      return "out of memory";
    case cudaErrorInvalidConfiguration:  return "invalid configuration argument";
    case cudaErrorInvalidDevice:         return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady:              return "device not ready";
    default:                             return "unknown error";
    }
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = device_count();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= device_count())
        return set_error(cudaErrorInvalidDevice);
    my_device = d;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *d)
{
    *d = my_device;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    drain(current_device());
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void) { return cudaDeviceSynchronize(); }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)
{
    if (d < 0 || d >= device_count())
        return set_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    strcpy(p->name, "cudasim");
    p->totalGlobalMem = settings().memory;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsPerMultiProcessor = 2048;
    p->major = 9;
    p->multiProcessorCount = 132;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    p->concurrentKernels = 1;
    p->pciBusID = visible()[(size_t)d];
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int d)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, d);
    if (e)
        return e;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:               *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock:          *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize:                         *value = 32; break;
    case cudaDevAttrMultiProcessorCount:              *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor:           *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor:           *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:     *value = 227 << 10; break;
    default: return set_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int d)
{
    if (d < 0 || d >= device_count())
        return set_error(cudaErrorInvalidDevice);
    snprintf(id, (size_t)len, "0000:%02x:00.0", visible()[(size_t)d]);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }

cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, ON_DEVICE); }
cudaError_t cudaFree(void *p) { return release(p, ON_DEVICE); }
cudaError_t cudaMallocHost(void **p, size_t n) { return allocate(p, n, PINNED); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    return allocate(p, n, PINNED);
}
cudaError_t cudaFreeHost(void *p) { return release(p, PINNED); }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    Device *d = current_device();
    *total_bytes = settings().memory;
    *free_bytes = settings().memory - d->used;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    Alloc *f = find_alloc(p);
    a->type = !f ? cudaMemoryTypeUnregistered
            : f->where == PINNED ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    a->device = f ? f->device : -2;
    a->devicePointer = f ? (void *)p : nullptr;
    a->hostPointer = f && f->where == ON_DEVICE ? nullptr : (void *)p;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
    return copy({ (char *)dst, (const char *)src, n, n, n, 1 }, kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    return copy({ (char *)dst, (const char *)src, n, n, n, 1 }, kind, s, false);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                         size_t height, enum cudaMemcpyKind kind)
{
    return copy({ (char *)dst, (const char *)src, dpitch, spitch, width, height }, kind, nullptr,
                true);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t s)
{
    return copy({ (char *)dst, (const char *)src, dpitch, spitch, width, height }, kind, s,
                false);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t stream)
{
    if (!check_device_range(dst, n, -1, "memset"))
        return set_error(cudaErrorInvalidValue);
    CUstream_st *s = resolve(stream);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    Op op;
    op.name = "memset";
    op.run = [=](Op &o) {
        touches(o, dst, n, true);
        memset(dst, value, n);
    };
    enqueue_op(s, std::move(op));
    return cudaSuccess;
}

cudaError_t cudaMemset(void *dst, int value, size_t n)
{
    return cudaMemsetAsync(dst, value, n, nullptr);
}

/* ---- streams and events ------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    std::lock_guard<std::mutex> hold(big_lock);
    *s = new_stream(device(my_device), flags != cudaStreamNonBlocking);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithFlags(s, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(s, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CUstream_st *s = resolve(stream);
    if (!s || s->legacy)
        return set_error(cudaErrorInvalidResourceHandle);
    run_until(s->tail);
    std::lock_guard<std::mutex> hold(big_lock);
    auto &all = device(s->device)->streams;
    all.erase(std::find(all.begin(), all.end(), s));
    delete s;
    return cudaSuccess;
}

// The default stream's waiting is itself ordered after the other streams.
static MarkRef tail_of(CUstream_st *s)
{
    return s->legacy ? enqueue_op(s, Op()) : s->tail;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CUstream_st *s = resolve(stream);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    run_until(tail_of(s));
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CUstream_st *s = resolve(stream);
    return s ? query(s->tail) : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = new CUevent_st{ nullptr, !(flags & cudaEventDisableTiming), my_device };
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    CUstream_st *s = resolve(stream);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    Op op;
    op.name = "event";
    e->mark = enqueue_op(s, std::move(op));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    (void)flags;
    CUstream_st *s = resolve(stream);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (!e->mark)
        return cudaSuccess;             // never recorded: no wait, as in CUDA
    Op op;
    op.name = "wait";
    op.after.push_back(e->mark);
    enqueue_op(s, std::move(op));
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    run_until(e->mark);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e) { return query(e->mark); }

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (!start->mark || !end->mark || !start->timed || !end->timed)
        return set_error(cudaErrorInvalidResourceHandle);
    if (!start->mark->done || !end->mark->done)
        return cudaErrorNotReady;
    *ms = (float)(1e3 * (end->mark->time - start->mark->time));
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    CUstream_st *s = resolve(stream);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    Op op;
    op.name = "host function";
    op.run = [=](Op &) { fn(arg); };
    enqueue_op(s, std::move(op));
    return cudaSuccess;
}

/* ---- attributes of kernels ---------------------------------------------- */

cudaError_t cudasim_func_limit(const void *k, enum cudaFuncAttribute attr, int value)
{
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || value > 227 << 10)
        return set_error(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(big_lock);
    smem_limits()[k] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudasim_func_attributes(struct cudaFuncAttributes *a, const void *k)
{
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 64;
    a->ptxVersion = a->binaryVersion = 90;
    a->maxDynamicSharedSizeBytes = (int)smem_limit(k);
    return cudaSuccess;
}

cudaError_t cudasim_occupancy(int *blocks, const void *k, int threads, size_t smem)
{
    (void)k;
    if (threads <= 0 || threads > MAX_THREADS)
        return set_error(cudaErrorInvalidValue);
    int by_threads = 2048 / threads, by_smem = smem ? (228 << 10) / (int)(smem + 1024) : 32;
    *blocks = std::min(std::min(by_threads, by_smem), 32);
    return cudaSuccess;
}

}
