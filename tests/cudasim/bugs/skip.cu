// catch: plain "deadlock: nobody can go on"
// catch: asan "ranks 0 2 wait for 1"
// catch: check "rank 1 has issued 3 operations"
// A rank leaves out one collective.
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
    for (int i = 0; i < 4; i++) {
#ifdef BUG
        if (rank == 1 && i == 2)
            continue;
#endif
        ncclAllReduce(x.dev, x.dev, 64, ncclFloat, ncclSum, comm, 0);
    }
    cudaStreamSynchronize(0);
    ncclCommDestroy(comm);
    return 0;
}

int main()
{
    ncclGetUniqueId(&id);
    CHECK(!cudasim_ranks(3, rank_main, nullptr));
    return test_end();
}
