/*
 * teracube.cuh - what a generated program (program.cu) is made of: the context of a rank,
 * products, collectives, and one line for each kernel of the other templates.
 *
 * A rank is a host thread with a GPU. It walks the step table in host code, far ahead of the
 * GPU, and puts work on five streams: kernels and products; collectives of activations;
 * gathers of weights; sums of gradients; transfers between stages. Where one stream touches
 * bytes of another, the plan has an event: mark() behind the one, follow() in front of the
 * other. Several communicators are so at work at once: every rank of a group puts them on in
 * the same order, and their kernels fit on a GPU together, so none waits for room that
 * another holds. The program defines `real` and TERACUBE_WORKERS before it includes this file.
 *
 * Every function below is called by program.cu. The first error of a rank is kept and
 * ends the run (RtDevice in rt.h); later calls then do nothing that matters.
 */
#ifndef TERACUBE_CUH
#define TERACUBE_CUH

#include "rt.h"

#include "attention.cuh"
#include "embed.cuh"
#include "loss.cuh"
#include "moves.cuh"
#include "optimizer.cuh"
#include "profile.cuh"
#include "rope.cuh"
#include "rows.cuh"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <math.h>
#include <mutex>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef __nv_bfloat16 bf16;

/* Row orders that meet in attention; -1 ends the list. */
struct TileSet { int q, k; bool causal; int64_t window; };
/* A kind of all-to-all: the first step that is one, its group; step -1 ends the list. */
struct BoxSet { int step, group; };
struct GroupKey { int axes, rep; uint64_t stages; };
struct Ctx;

/* In the order of compiler/streams.c. */
enum Stream { COMPUTE, TENSOR, WEIGHTS, GRADIENTS, STAGES, STREAMS };
enum {
    TENSOR_BIT = 1 << TENSOR, WEIGHTS_BIT = 1 << WEIGHTS, GRADIENTS_BIT = 1 << GRADIENTS,
    STAGES_BIT = 1 << STAGES,
    UNDER_BIT = 1 << STREAMS            // it goes on under the pass before
};
struct PassCode {
    void (*run)(Ctx *);
    const int64_t *slice;               // what differs from slice to slice: Ctx.slice
    unsigned streams;                   // those it needs beside COMPUTE
};

struct StageProgram {
    const PassCode *pass;               // by RtPass.func
    const TileSet *tiles;
    const BoxSet *boxes;
};

/* An all-to-all: what goes through the room of packed boxes, in numbers; by member of the
 * group where its part begins. The rank's own part is taken where it was given. */
struct Exchange {
    MoveBoxes give, take;
    int64_t give_ld, take_ld, *give_at, *take_at;
};

/* TUNING: things that may be on their way to the device at once; a microbatch has some three. */
enum { TRAYS = 8 };

struct CtxRows { int64_t *token; int32_t *pos, *tokens, *targets; };

struct Ctx {
    const RtDeviceRank *rank;
    const StageProgram *stage;
    const RtHeader *head;
    int device;
    char *block, *base[RT_REGIONS];
    cudaStream_t compute, stream[STREAMS];          // compute is stream[COMPUTE]
    cudaEvent_t *event; int nevents;    // of the plan, by number
    cudaEvent_t tail[STREAMS];          // for one stream to go on behind another
    cudaEvent_t *passed;                // by pass; NULL: nobody waits for it
    cublasHandle_t blas;
    cublasLtHandle_t lt;
    struct EndedProduct *ended;         // ways that were looked up, a list
    void *lt_space; size_t lt_bytes;
    ncclComm_t world, *comm;            // by group; NULL: no member
    struct Watch *watch;                // what the device is at
    int ngroups, *group_size, *group_me;
    CtxRows *rows;
    char *tray[TRAYS];                  // pinned, on which tokens go to the device; see take_tray
    cudaEvent_t tray_free[TRAYS];       // the last copy from it is done
    unsigned trays;                     // taken so far
    int32_t **column;
    AttnTiles *tiles; int ntiles;
    Exchange *exchange; int nexchanges;
    char *packed;                       // boxes on their way
    real *scratch;                      // delta of attention; operands that change their type
    char *work; size_t work_bytes;      // of the optimizer, the norm, gradients of tables
    char *sum[STREAMS];                 // sums that are then added to what is there
    double *sums;                       // on the device: loss, squares, clip factor
    unsigned long long *found;          // on the device: of `find`
    OptPiece *updates, *norms;          // what the optimizer does, what counts in the norm
    int64_t nupdates, nnorms;
    /* of the pass */
    int istep;                          // the step of the plan that is being put on
    const RtDeviceNow *now;
    bool looks;                         // behind each step somebody looks at what it wrote
    bool again;                         // an earlier pass of the training step ran these steps
    bool follows;                       // another slice of the microbatch came before, this way
    bool begun;                         // again or follows
    const int64_t *slice;               // its slice's offsets of keys and values, row orders ..
    uint64_t seed; uint32_t step, evaluate;
    double scale, clip, lr;
    char message[512];
};

/* ---- errors ------------------------------------------------------------------------ */

inline void fail(Ctx *c, const char *what, const char *why)
{
    if (!c->message[0])
        snprintf(c->message, sizeof c->message, "%s: %s", what, why);
}

inline bool check(Ctx *c, const char *what, cudaError_t e)
{
    if (e != cudaSuccess)
        fail(c, what, cudaGetErrorString(e));
    return e == cudaSuccess;
}

inline bool check(Ctx *c, const char *what, ncclResult_t e)
{
    if (e != ncclSuccess)
        fail(c, what, ncclGetErrorString(e));
    return e == ncclSuccess;
}

inline bool check(Ctx *c, const char *what, cublasStatus_t e)
{
    char why[40];
    snprintf(why, sizeof why, "cuBLAS status %d", (int)e);
    if (e != CUBLAS_STATUS_SUCCESS)
        fail(c, what, why);
    return e == CUBLAS_STATUS_SUCCESS;
}

/* ---- steps of the plan ---------------------------------------------------------------- */

/* The next step of the plan begins, or the next two, which are one call. */
inline void step(Ctx *c, int n = 1)
{
    if (c->looks)
        c->now->look(c->now->of, c->istep);
    c->looks = c->now->look != NULL;    // there is none before a pass's first one
    c->istep += n;
}

/* ---- order between streams ------------------------------------------------------------- */

inline void mark(Ctx *c, Stream s, int64_t event)
{
    check(c, "an event", cudaEventRecord(c->event[event], c->stream[s]));
}

inline void follow(Ctx *c, Stream s, int64_t event)
{
    check(c, "an event", cudaStreamWaitEvent(c->stream[s], c->event[event], 0));
}

/* What comes on stream s from here on starts behind all that is on `other` now. */
inline void follow_tail(Ctx *c, Stream s, Stream other)
{
    check(c, "an event", cudaEventRecord(c->tail[other], c->stream[other]));
    check(c, "an event", cudaStreamWaitEvent(c->stream[s], c->tail[other], 0));
}

/* ---- addresses ----------------------------------------------------------------------- */

template <typename T> inline T *at(Ctx *c, int region, int64_t offset)
{
    return (T *)(void *)(c->base[region] + offset);
}

/* Blocks of a row kernel: `per` items each, but no more than keep the GPU full. */
inline unsigned blocks(Ctx *c, int64_t items, int per)
{
    (void)c;
    int64_t n = (items + per - 1) / per;
    return (unsigned)(n < 4096 ? n : 4096);
}

/* Row kernel k is about to start with `bytes` of shared memory, more than a block has unasked. */
template <typename Kernel> inline void shared_memory(Ctx *c, Kernel *k, int bytes)
{
    check(c, "shared memory of a row program",
          cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

/* ---- loads and stores of generated row programs ---------------------------------------- */

/* V numbers from p, in accesses of 16 bytes where V fills some: p is aligned to V numbers. */
template <int V, typename S>
__device__ __forceinline__ void row_load(const S *p, real_of<S> *to)
{
    constexpr int n = Pack<S>::n;
    if constexpr (V % n == 0) {
#pragma unroll
        for (int i = 0; i < V; i += n) {
            Pack<S> x = load_pack(p + i);
#pragma unroll
            for (int j = 0; j < n; j++)
                to[i + j] = x.at[j];
        }
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            to[j] = widen(p[j]);
    }
}

template <int V, typename S>
__device__ __forceinline__ void row_store(S *p, const real_of<S> *from)
{
    constexpr int n = Pack<S>::n;
    if constexpr (V % n == 0) {
#pragma unroll
        for (int i = 0; i < V; i += n) {
            Pack<S> x;
#pragma unroll
            for (int j = 0; j < n; j++)
                x.at[j] = from[i + j];
            store_pack(p + i, x);
        }
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            p[j] = narrow<S>(from[j]);
    }
}

/* x, which the compiler may not know: what is read at such a place is read again. */
__device__ __forceinline__ int opaque(int x)
{
#ifndef CUDASIM
    asm volatile("" : "+r"(x));
#endif
    return x;
}

/* The same for what all rows read, in front of a row's first phase. ptxas for sm_100 keeps it,
 * widened, and spills other numbers for that; for sm_80 and sm_90 it does not, and spills if told
 * to read again (ptxas 13.0). */
__device__ __forceinline__ int next_row(int x)
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 1000
    __syncwarp();           // what follows stays behind the row's own numbers
    return opaque(x);
#else
    return x;
#endif
}

/* In front of each of the unrolled accesses to a row that is all on chip, where none has to
 * begin early. ptxas for sm_100 would begin all of them at once, and spill what they take. */
__device__ __forceinline__ void in_turn(void)
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 1000
    __syncwarp();
#endif
}

/* Numbers that were read as bf16, two a register: the same bits. V is even. */
template <int V> __device__ __forceinline__ void pack_pairs(const float *from, unsigned *to)
{
#pragma unroll
    for (int j = 0; j < V / 2; j++)
        to[j] = pack_bf16(from[2 * j], from[2 * j + 1]);
}

template <int V> __device__ __forceinline__ void unpack_pairs(const unsigned *from, float *to)
{
#pragma unroll
    for (int j = 0; j < V / 2; j++) {
        to[2 * j] = __uint_as_float(from[j] << 16);
        to[2 * j + 1] = __uint_as_float(from[j] & 0xffff0000u);
    }
}

template <typename S> __device__ __forceinline__ void narrow_store(S *p, real_of<S> x)
{
    *p = narrow<S>(x);
}

#include "teracube_start.cuh"

/* ---- collectives and transfers ------------------------------------------------------------- */

inline ncclDataType_t nccl_type(const float *) { return ncclFloat; }
inline ncclDataType_t nccl_type(const double *) { return ncclDouble; }
inline ncclDataType_t nccl_type(const bf16 *) { return ncclBfloat16; }

template <typename T>
inline void all_gather(Ctx *c, Stream s, int g, const T *src, T *dst, int64_t n)
{
    check(c, "all-gather", ncclAllGather(src, dst, (size_t)n, nccl_type(src), c->comm[g],
                                         c->stream[s]));
    watched(c, c->stream[s]);
}

/* The member's own part stands where the result has it. */
template <typename T>
inline void all_gather_in_place(Ctx *c, Stream s, int g, T *, T *all, int64_t n)
{
    all_gather(c, s, g, (const T *)(all + c->group_me[g] * n), all, n);
}

template <typename T>
inline void reduce_scatter(Ctx *c, Stream s, int g, const T *src, T *dst, int64_t n, bool add)
{
    T *to = add ? (T *)(void *)c->sum[s] : dst;
    check(c, "reduce-scatter", ncclReduceScatter(src, to, (size_t)n, nccl_type(src), ncclSum,
                                                 c->comm[g], c->stream[s]));
    watched(c, c->stream[s]);
    if (add)
        check(c, "reduce-scatter", move_copy(to, n, dst, n, (int64_t)1, n, true, c->stream[s]));
}

template <typename T>
inline void reduce_scatter_in_place(Ctx *c, Stream s, int g, const T *src, T *all, int64_t n, bool)
{
    reduce_scatter(c, s, g, src, all + c->group_me[g] * n, n, false);
}

template <typename T> inline void all_reduce(Ctx *c, Stream s, int g, T *x, int64_t n)
{
    check(c, "all-reduce", ncclAllReduce(x, x, (size_t)n, nccl_type(x), ncclSum, c->comm[g],
                                         c->stream[s]));
    watched(c, c->stream[s]);
}

/* src of member `root` to dst of all. */
template <typename T>
inline void broadcast(Ctx *c, Stream s, int g, int root, const T *src, T *dst, int64_t n)
{
    check(c, "broadcast", ncclBroadcast(src, dst, (size_t)n, nccl_type(src), root, c->comm[g],
                                        c->stream[s]));
    watched(c, c->stream[s]);
}

/* The sum of all src to dst of member `root`; the others' dst stays as it is. */
template <typename T>
inline void reduce(Ctx *c, Stream s, int g, int root, const T *src, T *dst, int64_t n, bool add)
{
    bool mine = c->group_me[g] == root;
    T *to = mine && !add ? dst : (T *)(void *)c->sum[s];
    check(c, "reduce", ncclReduce(src, to, (size_t)n, nccl_type(src), ncclSum, root, c->comm[g],
                                  c->stream[s]));
    watched(c, c->stream[s]);
    if (mine && add)
        check(c, "reduce", move_copy(to, n, dst, n, (int64_t)1, n, true, c->stream[s]));
}

/* Of everyone's x the sum, where member `to` has its own. */
template <typename T> inline void reduce_in_place(Ctx *c, Stream s, int g, int to, T *x, int64_t n)
{
    check(c, "reduce", ncclReduce(x, x, (size_t)n, nccl_type(x), ncclSum, to, c->comm[g],
                                  c->stream[s]));
    watched(c, c->stream[s]);
}

/* Boxes given are packed, sent, and unpacked by who takes them. */
template <typename T>
inline void all_to_all(Ctx *c, Stream s, int g, int boxes, const T *src, T *dst)
{
    const Exchange &e = c->exchange[boxes];
    const int n = c->group_size[g], me = c->group_me[g];
    T *room = (T *)(void *)c->packed;
    check(c, "all-to-all", move_boxes(e.give, sizeof(T), const_cast<T *>(src), e.give_ld, room,
                                      true, c->stream[s]));
    check(c, "all-to-all", ncclGroupStart());
    for (int q = 0; q < n; q++) {
        int64_t give = e.give_at[q + 1] - e.give_at[q], take = e.take_at[q + 1] - e.take_at[q];
        if (q != me && give > 0)
            check(c, "all-to-all", ncclSend(room + e.give_at[q], (size_t)give, nccl_type(src), q,
                                            c->comm[g], c->stream[s]));
        if (q != me && take > 0)
            check(c, "all-to-all", ncclRecv(room + e.take_at[q], (size_t)take, nccl_type(dst), q,
                                            c->comm[g], c->stream[s]));
    }
    check(c, "all-to-all", ncclGroupEnd());
    watched(c, c->stream[s]);
    check(c, "all-to-all", move_boxes(e.take, sizeof(T), dst, e.take_ld, room, false,
                                      c->stream[s]));
}

enum Neighbour { NEXT_STAGE = 1, PREVIOUS_STAGE = -1 };

/* The rank at this one's place on the next or the previous stage, round the end. */
inline int peer_of(const Ctx *c, Neighbour way)
{
    int n = c->head->nstages, each = c->rank->nranks / n, stage = (c->head->stage + way + n) % n;
    return stage * each + c->rank->rank % each;
}

template <typename T> inline void send(Ctx *c, Neighbour way, const T *src, int64_t n)
{
    check(c, "send", ncclSend(src, (size_t)n, nccl_type(src), peer_of(c, way), c->world,
                              c->stream[STAGES]));
}

template <typename T> inline void recv(Ctx *c, Neighbour way, T *dst, int64_t n)
{
    check(c, "receive", ncclRecv(dst, (size_t)n, nccl_type(dst), peer_of(c, way), c->world,
                                 c->stream[STAGES]));
}

#include "teracube_kernels.cuh"
#include "teracube_products.cuh"
#include "teracube_run.cuh"

#endif
