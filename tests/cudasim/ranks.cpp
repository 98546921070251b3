/* ranks.cpp - main for a program of one process per GPU: each thread is a rank. */
#include "sim.h"
#include "cudasim.h"
#include <stdio.h>

// The linker's --wrap exchanges the names: the program's main is __real_main.
extern "C" int __real_main(int argc, char **argv);

static thread_local char value[4][16];

static const char *const names[] = { "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE" };

// All calls of getenv come here.
extern "C" char *__real_getenv(const char *name);
extern "C" char *__wrap_getenv(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i]) && value[i][0])
            return value[i];
    return __real_getenv(name);
}

struct Args { int argc; char **argv; };

static int rank_main(int rank, int n, void *arg)
{
    Args a = *(Args *)arg;
    std::vector<char *> argv(a.argv, a.argv + a.argc + 1);
    for (int i = 0; i < 4; i++)
        snprintf(value[i], sizeof value[i], "%d", i < 2 ? rank : n);
    return __real_main(a.argc, argv.data());
}

extern "C" int __wrap_main(int argc, char **argv)
{
    const char *n = getenv("CUDASIM_RANKS");
    Args a = { argc, argv };
    return cudasim_ranks(n ? atoi(n) : 1, rank_main, &a);
}
