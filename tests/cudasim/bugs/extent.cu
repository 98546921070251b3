// catch: plain "ends too early"
// catch: asan "ends too early"
// catch: check "ends too early"
// A gathered buffer has no room for all ranks.
#include "../test.h"
#include "cudasim.h"
#include "nccl.h"

static ncclUniqueId id;

static int rank_main(int rank, int n, void *)
{
    ncclComm_t comm;
    ncclCommInitRank(&comm, n, id, rank);
#ifdef BUG
    Vec<float> x(64), all(64 * n - 1);
#else
    Vec<float> x(64), all(64 * n);
#endif
    x.send();
    ncclAllGather(x.dev, all.dev, 64, ncclFloat, comm, 0);
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
