// catch: plain "rank . waits in Send of 16 float to rank"
// Every rank sends before it receives, with nothing to hold the messages.
#include "../test.h"
#include "cudasim.h"
#include "nccl.h"

static ncclUniqueId id;

static int rank_main(int rank, int n, void *)
{
    ncclComm_t comm;
    ncclCommInitRank(&comm, n, id, rank);
    Vec<float> x(16), y(16);
    x.send();
#ifndef BUG
    ncclGroupStart();
#endif
    ncclSend(x.dev, 16, ncclFloat, (rank + 1) % n, comm, 0);
    ncclRecv(y.dev, 16, ncclFloat, (rank + n - 1) % n, comm, 0);
#ifndef BUG
    ncclGroupEnd();
#endif
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
