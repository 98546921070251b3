// catch: plain
// catch: check "no event orders the streams"
// A collective's stream does not wait for the product that it sums up.
#include "../test.h"
#include "cublas_v2.h"
#include "cudasim.h"
#include "nccl.h"

enum { N = 32 };
static ncclUniqueId id;

static int rank_main(int rank, int n, void *)
{
    ncclComm_t comm;
    cublasHandle_t blas;
    cudaStream_t compute, talk;
    cudaEvent_t ready;
    ncclCommInitRank(&comm, n, id, rank);
    cublasCreate(&blas);
    cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&talk, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    cublasSetStream(blas, compute);
    Vec<float> a(N * N), b(N * N), c(N * N);
    for (int i = 0; i < N * N; i++) {
        a[i] = (float)(i % 5);
        b[i] = (float)(i % 3 + rank);
    }
    a.send(), b.send();
    cudaDeviceSynchronize();
    float one = 1, zero = 0;
    for (int i = 0; i < 3; i++)
        cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_T, N, N, N, &one, a.dev, N, b.dev, N, &zero,
                    c.dev, N);
    cudaEventRecord(ready, compute);
#ifndef BUG
    cudaStreamWaitEvent(talk, ready, 0);
#endif
    ncclAllReduce(c.dev, c.dev, N * N, ncclFloat, ncclSum, comm, talk);
    cudaStreamSynchronize(talk);
    cudaStreamSynchronize(compute);
    c.fetch();
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float want = 0;
            for (int r = 0; r < n; r++)
                for (int k = 0; k < N; k++)
                    want += a[k * N + i] * (b[k * N + j] + (float)(r - rank));
            CHECK(c[j * N + i] == want);
        }
    ncclCommDestroy(comm);
    cublasDestroy(blas);
    return 0;
}

int main()
{
    ncclGetUniqueId(&id);
    CHECK(!cudasim_ranks(3, rank_main, nullptr));
    return test_end();
}
