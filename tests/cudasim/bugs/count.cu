// catch: plain "rank . calls AllReduce of 6[34] float"
// catch: asan "calls AllReduce"
// catch: check "calls AllReduce"
// Ranks disagree about the length of a collective.
#include "../test.h"
#include "cudasim.h"
#include "nccl.h"

static ncclUniqueId id;

static int rank_main(int rank, int n, void *)
{
    ncclComm_t comm;
    ncclCommInitRank(&comm, n, id, rank);
    Vec<float> x(64);
    x.send();
    int count = 64;
#ifdef BUG
    count -= rank == 2;
#endif
    ncclAllReduce(x.dev, x.dev, count, ncclFloat, ncclSum, comm, 0);
    cudaStreamSynchronize(0);
    ncclCommDestroy(comm);
    return 0;
}

int main()
{
    ncclGetUniqueId(&id);
    CHECK(!cudasim_ranks(4, rank_main, nullptr));
    return test_end();
}
