// catch: plain "rank . calls (ReduceScatter|AllGather) .*calls (ReduceScatter|AllGather)"
// Two collectives in another order on one rank.
#include "../test.h"
#include "cudasim.h"
#include "nccl.h"

static ncclUniqueId id;

static int rank_main(int rank, int n, void *)
{
    ncclComm_t comm;
    ncclCommInitRank(&comm, n, id, rank);
    Vec<float> x(64), y(32), z(64);
    x.send(), y.send();
    int first = 0;
#ifdef BUG
    first = rank;
#endif
    for (int i = 0; i < 2; i++)
        if (i == first)
            ncclAllGather(y.dev, z.dev, 32, ncclFloat, comm, 0);
        else
            ncclReduceScatter(x.dev, x.dev + 32 * rank, 32, ncclFloat, ncclSum, comm, 0);
    cudaStreamSynchronize(0);
    ncclCommDestroy(comm);
    return 0;
}

int main()
{
    ncclGetUniqueId(&id);
    CHECK(!cudasim_ranks(2, rank_main, nullptr));
    return test_end();
}
