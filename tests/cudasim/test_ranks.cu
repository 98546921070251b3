/* test_ranks.cu - a program of one process per GPU, made for simcc --ranks. */
#include "test.h"
#include "nccl.h"
#include <atomic>
#include <stdlib.h>

static ncclUniqueId id;
static std::atomic<int> there;

int main()
{
    int rank = atoi(getenv("RANK")), n = atoi(std::getenv("WORLD_SIZE")), device;
    CHECK(!cudaGetDevice(&device) && device == atoi(getenv("LOCAL_RANK")));
    if (rank == 0) {
        ncclGetUniqueId(&id);
        there = 1;
    }
    while (!there)
        ;
    ncclComm_t comm;
    CHECK(!ncclCommInitRank(&comm, n, id, rank));
    Vec<int> x(1);
    x[0] = rank + 1;
    x.send();
    ncclAllReduce(x.dev, x.dev, 1, ncclInt, ncclSum, comm, 0);
    x.fetch();
    CHECK(x[0] == n * (n + 1) / 2 && n == 5);
    ncclCommDestroy(comm);
    return test_end();
}
