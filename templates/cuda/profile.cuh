/*
 * profile.cuh - measures GPUs and the links between them for survey.h: what the programs of
 * `teracube profile CLUSTER --target cuda` are made of. One process for each GPU, or, where
 * no launcher started it, a thread for each.
 *
 * Own work is timed by events around as many calls as take CALLS_S. Collectives start behind a
 * barrier, and the time to their end is divided by their number. Memory holds numbers, not
 * zeros: a GPU that multiplies zeros draws less power and is faster than it will ever be.
 */
#ifndef TERACUBE_PROFILE_CUH
#define TERACUBE_PROFILE_CUH

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

extern "C" {
#include "launch.h"
#include "survey.h"
}

static const double CALLS_S = 5e-3;     // TUNING: clocks have settled, 500 points take 10 s

struct Probe {
    const SurveyTask *task;
    int rank, ranks, device;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cublasHandle_t blas;
    ncclComm_t world, group;            // group: of the last size and stride
    int size, stride;
    char *room; size_t bytes;           // of all operands
    bool has_bf16, failed;
};

/* false: a call failed; said once for each rank. */
inline bool fine(Probe *p, const char *what, const char *why)
{
    if (!why)
        return true;
    if (!p->failed)
        fprintf(stderr, "%s: error: rank %d could not %s: %s\n", p->task->exe, p->rank, what, why);
    p->failed = true;
    return false;
}

inline bool cuda_fine(Probe *p, const char *what, cudaError_t e)
{
    return fine(p, what, e == cudaSuccess ? NULL : cudaGetErrorString(e));
}

inline bool nccl_fine(Probe *p, const char *what, ncclResult_t r)
{
    return fine(p, what, r == ncclSuccess ? NULL : ncclGetErrorString(r));
}

inline bool blas_fine(Probe *p, const char *what, cublasStatus_t s)
{
    return fine(p, what, s == CUBLAS_STATUS_SUCCESS ? NULL : cublasGetStatusString(s));
}

/* ---- memory ---------------------------------------------------------------------------- */

/* Halves of 0.5 to 1 as bf16; a pair of them is such a number as float. */
__global__ void fill_kernel(uint32_t *p, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint32_t r = (uint32_t)i * 2654435761u;
        p[i] = 0x3f003f00u | (r >> 8 & 0x007f007fu);
    }
}

/* y = s x: 16 bytes a thread and turn. */
__global__ void scale_kernel(float4 *y, const float4 *x, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float4 v = x[i];
        v.x *= 0.5f;
        v.y *= 0.5f;
        v.z *= 0.5f;
        v.w *= 0.5f;
        y[i] = v;
    }
}

__global__ void empty_kernel(int *p)
{
    if (p)
        *p = 0;
}

enum { THREADS = 256, BLOCKS = 2048 };  // TUNING: enough to fill any GPU, far below the limits

inline unsigned blocks_for(size_t n)
{
    size_t b = (n + THREADS - 1) / THREADS, most = BLOCKS;
    return (unsigned)(b < 1 ? 1 : b < most ? b : most);
}

/* Room for so many bytes, filled; NULL: failed. */
inline char *operands(Probe *p, size_t bytes)
{
    bytes = (bytes + 255) / 256 * 256;
    if (bytes <= p->bytes)
        return p->room;
    if (p->room)
        cudaFree(p->room);
    p->room = NULL;
    p->bytes = 0;
    if (!cuda_fine(p, "have memory", cudaMalloc((void **)&p->room, bytes)))
        return NULL;
    p->bytes = bytes;
    size_t n = bytes / sizeof(uint32_t);
    fill_kernel<<<blocks_for(n), THREADS, 0, p->stream>>>((uint32_t *)p->room, n);
    return cuda_fine(p, "fill memory", cudaGetLastError()) ? p->room : NULL;
}

/* ---- time ------------------------------------------------------------------------------ */

/* Seconds of one of n calls on the stream; negative: failed. */
template <typename F> inline double time_calls(Probe *p, int n, F call)
{
    float ms = 0;
    if (!cuda_fine(p, "note the time", cudaEventRecord(p->begin, p->stream)))
        return -1;
    for (int i = 0; i < n; i++)
        if (!call())
            return -1;
    if (!cuda_fine(p, "note the time", cudaEventRecord(p->end, p->stream)) ||
        !cuda_fine(p, "work", cudaEventSynchronize(p->end)) ||
        !cuda_fine(p, "read the time", cudaEventElapsedTime(&ms, p->begin, p->end)))
        return -1;
    return ms > 0 ? 1e-3 * ms / n : 1e-9;
}

/* Own work: once to warm up, once to see how long it takes. */
template <typename F> inline double time_own(Probe *p, F call)
{
    double s = time_calls(p, 1, call);
    s = s < 0 ? s : time_calls(p, 1, call);
    if (s < 0)
        return s;
    double n = CALLS_S / s;
    return time_calls(p, n < 1 ? 1 : n > 1000 ? 1000 : (int)n, call);
}

/* All ranks are here, and the stream is empty. */
inline bool meet(Probe *p)
{
    float *one = (float *)operands(p, 256);
    return one && nccl_fine(p, "meet the others", ncclAllReduce(one, one, 1, ncclFloat, ncclMax,
                                                                p->world, p->stream)) &&
           cuda_fine(p, "meet the others", cudaStreamSynchronize(p->stream));
}

/* ---- what survey.h asks ------------------------------------------------------------------ */

inline double probe_product(void *ctx, int precision, int form, int64_t m, int64_t n, int64_t k,
                            bool)
{
    Probe *p = (Probe *)ctx;
    bool half = precision == SURVEY_BF16;
    size_t e = half ? 2 : precision == SURVEY_FP32 ? 4 : 8;
    if (half && !p->has_bf16)
        return 0;
    char *a = operands(p, e * (size_t)(m * k + k * n + m * n) + 1024);
    if (!a)
        return -1;
    char *b = a + (e * (size_t)(m * k) + 255) / 256 * 256;
    char *c = b + (e * (size_t)(k * n) + 255) / 256 * 256;
    cudaDataType t = half ? CUDA_R_16BF : precision == SURVEY_FP32 ? CUDA_R_32F : CUDA_R_64F;
    cublasComputeType_t in = e == 8 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
    cublasOperation_t ta = form == SURVEY_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = form == SURVEY_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    float one = 1, zero = 0;
    double one8 = 1, zero8 = 0;
    const void *alpha = e == 8 ? (const void *)&one8 : &one;
    const void *beta = e == 8 ? (const void *)&zero8 : &zero;
    return time_own(p, [&] {            // column by column, so B comes first
        return blas_fine(p, "multiply", cublasGemmEx(p->blas, tb, ta, (int)n, (int)m, (int)k,
            alpha, b, t, (int)(form == SURVEY_NT ? k : n), a, t,
            (int)(form == SURVEY_TN ? m : k), beta, c, t, (int)n, in, CUBLAS_GEMM_DEFAULT));
    });
}

inline double probe_stream(void *ctx, int64_t bytes, bool)
{
    Probe *p = (Probe *)ctx;
    char *x = operands(p, (size_t)bytes);
    if (!x)
        return -1;
    size_t n = (size_t)bytes / 2 / sizeof(float4);      // half is read, half is written
    float4 *y = (float4 *)x + n;
    return time_own(p, [&] {
        scale_kernel<<<blocks_for(n), THREADS, 0, p->stream>>>(y, (const float4 *)x, n);
        return cuda_fine(p, "start a kernel", cudaGetLastError());
    });
}

inline double probe_start(void *ctx, bool)
{
    Probe *p = (Probe *)ctx;
    return time_own(p, [&] {
        empty_kernel<<<1, 32, 0, p->stream>>>((int *)NULL);
        return cuda_fine(p, "start a kernel", cudaGetLastError());
    });
}

/* The communicator of all groups of that shape, at work or not: made by all ranks at once. */
inline bool take_group(Probe *p, const SurveyGroup *g)
{
    if (p->size == g->size && p->stride == g->stride)
        return true;
    if (p->group)
        ncclCommDestroy(p->group);
    p->group = NULL;
    SurveyGroup every = { g->size, g->stride, p->task->per_node };
    int color = survey_group(p->task, &every, p->rank);
    color = color < 0 ? NCCL_SPLIT_NOCOLOR : color;
    if (!nccl_fine(p, "make a group", ncclCommSplit(p->world, color, p->rank, &p->group, NULL)))
        return false;
    p->size = g->size;
    p->stride = g->stride;
    return true;
}

/* TUNING: calls by bytes: some milliseconds each way on links of 10 to 500 GB/s. */
inline int calls_for(int64_t bytes) { return bytes < 1 << 20 ? 20 : bytes < 32 << 20 ? 8 : 3; }

inline ncclResult_t call_once(Probe *p, int kind, const SurveyGroup *g, int64_t bytes, char *at)
{
    bool first = (p->rank / g->stride) % g->size == 0;
    size_t part = (size_t)(bytes / (g->size - 1) / (int64_t)sizeof(float));
    float *whole = (float *)at, *own = whole + part * (size_t)((p->rank / g->stride) % g->size);
    size_t sum = (size_t)(bytes * g->size / (2 * (g->size - 1)) / (int64_t)sizeof(float));
    switch (kind) {
    case SURVEY_GATHER: return ncclAllGather(own, whole, part, ncclFloat, p->group, p->stream);
    case SURVEY_SUM:
        return ncclReduceScatter(whole, own, part, ncclFloat, ncclSum, p->group, p->stream);
    case SURVEY_ALL:
        return ncclAllReduce(whole, whole, sum, ncclFloat, ncclSum, p->group, p->stream);
    default:
        return first ? ncclSend(whole, (size_t)bytes / sizeof(float), ncclFloat, 1, p->group,
                                p->stream)
                     : ncclRecv(whole, (size_t)bytes / sizeof(float), ncclFloat, 0, p->group,
                                p->stream);
    }
}

inline double probe_collective(void *ctx, int kind, const SurveyGroup *g, int64_t bytes)
{
    Probe *p = (Probe *)ctx;
    char *at = operands(p, (size_t)(2 * bytes + 4096));
    if (!at || !take_group(p, g) || !meet(p))
        return -1;
    if (!survey_active(p->task, g, p->rank))
        return 0;
    auto call = [&] {
        return nccl_fine(p, "call NCCL", call_once(p, kind, g, bytes, at));
    };
    double s = time_calls(p, 2, call);
    return s < 0 ? s : time_calls(p, calls_for(bytes), call);
}

inline double probe_exchange(void *ctx, int partner, int, int64_t bytes)
{
    Probe *p = (Probe *)ctx;
    char *at = operands(p, (size_t)(2 * bytes));
    if (!at || !meet(p))
        return -1;
    if (partner < 0)
        return 0;
    auto call = [&] {
        size_t n = (size_t)bytes / sizeof(float);
        return nccl_fine(p, "begin", ncclGroupStart()) &&
               nccl_fine(p, "send", ncclSend(at, n, ncclFloat, partner, p->world, p->stream)) &&
               nccl_fine(p, "receive", ncclRecv(at + bytes, n, ncclFloat, partner, p->world,
                                                p->stream)) &&
               nccl_fine(p, "exchange", ncclGroupEnd());
    };
    double s = time_calls(p, 2, call);
    return s < 0 ? s : time_calls(p, calls_for(bytes), call);
}

/* Over the network as well: each rank's bytes to all. */
inline bool probe_collect(void *ctx, const void *mine, void *all, size_t bytes)
{
    Probe *p = (Probe *)ctx;
    char *at = operands(p, bytes * (size_t)(p->ranks + 1));
    if (!at)
        return false;
    char *own = at + bytes * (size_t)p->ranks;
    return cuda_fine(p, "copy", cudaMemcpyAsync(own, mine, bytes, cudaMemcpyHostToDevice,
                                                p->stream)) &&
           nccl_fine(p, "gather", ncclAllGather(own, at, bytes, ncclChar, p->world, p->stream)) &&
           (p->rank > 0 || cuda_fine(p, "copy", cudaMemcpyAsync(all, at, bytes * (size_t)p->ranks,
                                                cudaMemcpyDeviceToHost, p->stream))) &&
           cuda_fine(p, "gather", cudaStreamSynchronize(p->stream));
}

/* ---- a rank ---------------------------------------------------------------------------- */

inline bool probe_open(Probe *p, const ncclUniqueId *id, SurveyMachine *m)
{
    cudaDeviceProp q;
    int blas = 0, nccl = 0;
    if (!cuda_fine(p, "take its GPU", cudaSetDevice(p->device)) ||
        !cuda_fine(p, "look at its GPU", cudaGetDeviceProperties(&q, p->device)) ||
        !cuda_fine(p, "have a stream", cudaStreamCreateWithFlags(&p->stream,
                                                               cudaStreamNonBlocking)) ||
        !cuda_fine(p, "have an event", cudaEventCreate(&p->begin)) ||
        !cuda_fine(p, "have an event", cudaEventCreate(&p->end)) ||
        !blas_fine(p, "start cuBLAS", cublasCreate(&p->blas)) ||
        !blas_fine(p, "start cuBLAS", cublasSetStream(p->blas, p->stream)) ||
        !nccl_fine(p, "join the others", ncclCommInitRank(&p->world, p->ranks, *id, p->rank)))
        return false;
    p->has_bf16 = q.major >= 8;
    cublasGetVersion(p->blas, &blas);
    ncclGetVersion(&nccl);
    *m = SurveyMachine();
    m->ctx = p;
    m->rank = p->rank;
    m->ranks = p->ranks;
    m->is_device = true;
    m->cores = 1;
    m->bytes = (double)q.totalGlobalMem;
    m->product = probe_product;
    m->stream = probe_stream;
    m->start = probe_start;
    m->collective = probe_collective;
    m->exchange = probe_exchange;
    m->collect = probe_collect;
    snprintf(m->kind, sizeof m->kind, "%.*s", SURVEY_NAME - 1, q.name);
    snprintf(m->library, sizeof m->library, "cuBLAS %d, NCCL %d", blas, nccl);
    if (gethostname(m->host, sizeof m->host - 1))
        strcpy(m->host, "unknown");
    return true;
}

inline void probe_close(Probe *p)
{
    if (p->group)
        ncclCommDestroy(p->group);
    if (p->world)
        ncclCommDestroy(p->world);
    if (p->blas)
        cublasDestroy(p->blas);
    if (p->room)
        cudaFree(p->room);
    if (p->begin)
        cudaEventDestroy(p->begin);
    if (p->end)
        cudaEventDestroy(p->end);
    if (p->stream)
        cudaStreamDestroy(p->stream);
}

inline int probe_run(const SurveyTask *t, int rank, int device, const ncclUniqueId *id)
{
    Probe p = Probe();
    SurveyMachine m;
    p.task = t;
    p.rank = rank;
    p.ranks = t->nodes * t->per_node;
    p.device = device;
    int status = probe_open(&p, id, &m) ? survey_run(t, &m) : 4;
    if (status == 0)                    // else the others may wait for this rank for ever
        probe_close(&p);
    return status;
}

/* ---- main ------------------------------------------------------------------------------ */

struct Wanted { const char *root, *rank, *world; };

/* --root HOST:PORT --rank N --world N: where no launcher says them. */
inline int more_options(void *ctx, int argc, char **argv)
{
    Wanted *w = (Wanted *)ctx;
    const char **of = strcmp(argv[0], "--root") == 0 ? &w->root
                    : strcmp(argv[0], "--rank") == 0 ? &w->rank
                    : strcmp(argv[0], "--world") == 0 ? &w->world : NULL;
    if (!of || argc < 2)
        return 0;
    *of = argv[1];
    return 2;
}

inline int refuse_start(const SurveyTask *t, const char *text)
{
    fprintf(stderr, "%s: error: %s\n", t->exe, text);
    return 4;
}

/* A thread for each rank. */
inline int run_threads(const SurveyTask *t, int devices)
{
    int ranks = t->nodes * t->per_node;
    char text[256];
    ncclUniqueId id;
    if (devices < ranks) {
        snprintf(text, sizeof text, "cluster %s has %d GPUs, and this process sees %d: start one "
                 "process for each GPU, as launch.sh does", t->cluster, ranks, devices);
        return refuse_start(t, text);
    }
    if (ncclGetUniqueId(&id) != ncclSuccess)
        return refuse_start(t, "NCCL does not start");
    std::vector<std::thread> threads;
    std::atomic<int> status(0);
    for (int r = 0; r < ranks; r++)
        threads.emplace_back([&, r] {
            int s = probe_run(t, r, r, &id);
            if (s) {
                status = s;
                fflush(stdout);
                _exit(s);               // the others would wait
            }
        });
    for (size_t i = 0; i < threads.size(); i++)
        threads[i].join();
    return status;
}

/* NCCL waits for ever for a rank that has ended: whoever hears of it ends too. */
inline void watch_others(const SurveyTask *t, Launch *l, int rank, const std::atomic<bool> *over)
{
    LaunchNews news;
    while (!*over) {
        LaunchEvent what = launch_news(l, &news);
        if (what != LAUNCH_QUIET && !*over) {
            bool tells = what == LAUNCH_GONE && rank == (news.rank == 0);
            if (tells)                  // who failed has told it
                fprintf(stderr, "%s: error: rank %d is gone: %s\n", t->exe, news.rank,
                        news.text);
            if (tells)
                launch_fail(l, 4, news.text);
            usleep(300 * 1000);         // so that the others hear that first
            fflush(stdout);
            _exit(4);
        }
        usleep(50 * 1000);
    }
}

/* This process is one rank. */
inline int run_process(const SurveyTask *t, const LaunchPlace *place, int devices)
{
    LaunchFault fault;
    char text[256];
    int ranks = t->nodes * t->per_node;
    if (place->world != ranks) {
        snprintf(text, sizeof text, "cluster %s has %d GPUs, and %s started %d processes",
                 t->cluster, ranks, place->by, place->world);
        return place->rank == 0 ? refuse_start(t, text) : 4;
    }
    Launch *l = launch_join(place, 0x70726f66696c65, 60, &fault);
    if (!l)
        return fault.tell ? refuse_start(t, fault.text) : 4;
    int local = place->local >= 0 ? place->local : place->rank % t->per_node;
    ncclUniqueId id, *all = (ncclUniqueId *)calloc((size_t)ranks, sizeof id);
    memset(&id, 0, sizeof id);
    bool well = place->rank > 0 || ncclGetUniqueId(&id) == ncclSuccess;
    well = well && all && launch_share(l, &id, all, sizeof id);
    std::atomic<bool> over(false);
    std::thread watch(watch_others, t, l, place->rank, &over);
    int status = well ? probe_run(t, place->rank, devices == 1 ? 0 : local, &all[0])
                      : refuse_start(t, "NCCL does not start");
    if (status)
        launch_fail(l, status, "a measurement failed");
    over = true;
    watch.join();
    launch_leave(l, status == 0);
    free(all);
    return status;
}

inline int profile_main(SurveyTask t, int argc, char **argv)
{
    Wanted w = { NULL, NULL, NULL };
    LaunchPlace place;
    LaunchFault fault;
    int devices = 0, status = survey_options(&t, argc, argv, more_options, &w);
    if (status >= 0)
        return status;
    if (!launch_find(w.root, w.rank, w.world, &place, &fault))
        return fault.tell ? refuse_start(&t, fault.text) : 4;
    cudaError_t e = cudaGetDeviceCount(&devices);
    if (e != cudaSuccess || devices == 0)
        return refuse_start(&t, e != cudaSuccess ? cudaGetErrorString(e) : "there is no GPU");
    return place.by ? run_process(&t, &place, devices) : run_threads(&t, devices);
}

#endif
