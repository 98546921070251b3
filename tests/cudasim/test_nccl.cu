/* test_nccl.cu - collectives among six ranks against sums made by hand; groups, splits,
 * messages, several streams. */
#include "test.h"
#include "cuda_bf16.h"
#include "cudasim.h"
#include "nccl.h"

enum { N = 6, COUNT = 40 };
static ncclUniqueId id;

__global__ void add(float *x, float v) { x[threadIdx.x] += v; }

// Element i of rank r: small whole numbers, exact in every type.
static int element(int r, int i) { return (i * (r + 1)) % 11 - 3; }

template <class T> static void reductions(int rank, ncclComm_t comm, cudaStream_t s,
                                          ncclDataType_t type)
{
    Vec<T> in(COUNT * N), out(COUNT * N), part(COUNT), all(COUNT * N), top(COUNT);
    for (int i = 0; i < COUNT * N; i++)
        in[i] = (T)element(rank, i);
    in.send();
    cudaStreamSynchronize(0);
    CHECK(!ncclAllReduce(in.dev, out.dev, COUNT * N, type, ncclSum, comm, s));
    CHECK(!ncclReduceScatter(in.dev, part.dev, COUNT, type, ncclSum, comm, s));
    CHECK(!ncclAllGather(part.dev, all.dev, COUNT, type, comm, s));
    CHECK(!ncclAllReduce(in.dev, top.dev, COUNT, type, ncclMax, comm, s));
    CHECK(!ncclAllGather(in.dev + COUNT * rank, in.dev, COUNT, type, comm, s));   // in place
    CHECK(!ncclBroadcast(top.dev, top.dev, COUNT, type, 2, comm, s));
    cudaStreamSynchronize(s);
    in.fetch(), out.fetch(), part.fetch(), all.fetch(), top.fetch();
    for (int i = 0; i < COUNT * N; i++) {
        int sum = 0, most = -100;
        for (int r = 0; r < N; r++) {
            sum += element(r, i);
            most = std::max(most, element(r, i));
        }
        CHECK((double)out[i] == sum && (double)all[i] == sum);
        CHECK(i / COUNT != rank || (double)part[i % COUNT] == sum);
        CHECK((double)in[i] == element(i / COUNT, i));
        CHECK(i >= COUNT || (double)top[i] == most);
    }
}

// A ring, with and without a group; then all to all in one group.
static void messages(int rank, ncclComm_t comm, cudaStream_t s)
{
    Vec<float> mine(COUNT), theirs(COUNT), from(COUNT * N), to(COUNT * N);
    for (int i = 0; i < COUNT; i++)
        mine[i] = (float)element(rank, i);
    for (int i = 0; i < COUNT * N; i++)
        to[i] = (float)(rank * 1000 + i);
    mine.send(), to.send();
    cudaStreamSynchronize(0);
    int next = (rank + 1) % N, last = (rank + N - 1) % N;
    for (int turn = 0; turn < 3; turn++) {
        ncclGroupStart();
        ncclSend(mine.dev, COUNT, ncclFloat, next, comm, s);
        ncclRecv(theirs.dev, COUNT, ncclFloat, last, comm, s);
        ncclGroupEnd();
        cudaMemcpyAsync(mine.dev, theirs.dev, mine.bytes(), cudaMemcpyDeviceToDevice, s);
    }
    if (rank % 2 == 0) {
        ncclSend(mine.dev, 8, ncclFloat, rank + 1, comm, s);
        ncclRecv(theirs.dev, 8, ncclFloat, rank + 1, comm, s);
    } else {
        ncclRecv(theirs.dev, 8, ncclFloat, rank - 1, comm, s);
        ncclSend(mine.dev, 8, ncclFloat, rank - 1, comm, s);
    }
    ncclGroupStart();
    for (int r = 0; r < N; r++) {
        ncclSend(to.dev + r * COUNT, COUNT, ncclFloat, r, comm, s);
        ncclRecv(from.dev + r * COUNT, COUNT, ncclFloat, r, comm, s);
    }
    ncclGroupEnd();
    cudaStreamSynchronize(s);
    mine.fetch(), theirs.fetch(), from.fetch();
    for (int i = 0; i < COUNT; i++) {
        CHECK(mine[i] == (float)element((rank + N - 3) % N, i));
        CHECK(i >= 8 || theirs[i] == (float)element(((rank ^ 1) + N - 3) % N, i));
    }
    for (int i = 0; i < COUNT * N; i++)
        CHECK(from[i] == (float)(i / COUNT * 1000 + rank * COUNT + i % COUNT));
}

// Rows and columns of a 2 x 3 grid, used at once on two streams.
static void splits(int rank, ncclComm_t comm)
{
    ncclComm_t row, column, none;
    CHECK(!ncclCommSplit(comm, rank / 3, -rank, &row, nullptr));        // ranks reversed
    CHECK(!ncclCommSplit(comm, rank % 3, rank, &column, nullptr));
    CHECK(!ncclCommSplit(comm, rank ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, nullptr));
    CHECK((none == nullptr) == (rank != 0));
    int n, r;
    ncclCommCount(row, &n), ncclCommUserRank(row, &r);
    CHECK(n == 3 && r == 2 - rank % 3);
    cudaStream_t a, b;
    cudaEvent_t ready;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    Vec<float> x(3), y(3);
    for (int i = 0; i < 3; i++)
        x[i] = y[i] = (float)(1 << rank);
    x.send(), y.send();
    cudaStreamSynchronize(0);
    for (int turn = 0; turn < 3; turn++) {
        ncclAllReduce(x.dev, x.dev, 3, ncclFloat, ncclSum, row, a);
        add<<<1, 3, 0, b>>>(y.dev, 1.0f);
        ncclAllReduce(y.dev, y.dev, 3, ncclFloat, ncclMax, column, b);
    }
    cudaEventRecord(ready, a);
    cudaStreamWaitEvent(b, ready, 0);
    ncclGroupStart();
    ncclAllReduce(x.dev, x.dev, 3, ncclFloat, ncclSum, column, b);
    ncclAllReduce(y.dev, y.dev, 3, ncclFloat, ncclSum, row, b);
    ncclGroupEnd();
    cudaStreamSynchronize(b);
    x.fetch(), y.fetch();
    float top = 0;
    for (int i = 0; i < 3; i++)
        top += (float)((1 << (i + 3)) + 3);
    CHECK(x[0] == 9.0f * 63.0f);
    CHECK(y[2] == top);
    ncclCommDestroy(row), ncclCommDestroy(column);
    if (none)
        ncclCommDestroy(none);
    cudaStreamDestroy(a), cudaStreamDestroy(b), cudaEventDestroy(ready);
}

static int rank_main(int rank, int n, void *)
{
    ncclComm_t comm, again;
    cudaStream_t s;
    CHECK(!ncclCommInitRank(&comm, n, id, rank));
    ncclUniqueId other = id;
    other.internal[100] = 1;
    ncclGroupStart();
    CHECK(!ncclCommInitRank(&again, n, other, n - 1 - rank));
    ncclGroupEnd();
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    reductions<float>(rank, comm, s, ncclFloat);
    reductions<double>(rank, comm, s, ncclDouble);
    reductions<__nv_bfloat16>(n - 1 - rank, again, s, ncclBfloat16);
    reductions<int>(rank, comm, s, ncclInt);
    messages(rank, comm, s);
    splits(rank, comm);
    ncclCommDestroy(comm), ncclCommDestroy(again);
    cudaStreamDestroy(s);
    return 0;
}

int main()
{
    ncclGetUniqueId(&id);
    CHECK(!cudasim_ranks(N, rank_main, nullptr));
    return test_end();
}
