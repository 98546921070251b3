/*
 * launch.h - processes that a launcher started, one for each rank: which one this is, and how
 * they find and hear each other beside NCCL.
 *
 *     torchrun    RANK WORLD_SIZE LOCAL_RANK, MASTER_ADDR MASTER_PORT
 *     Open MPI    OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK
 *     Slurm       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID; rank 0 is on the first host
 *                 of SLURM_STEP_NODELIST, its port follows from the job's number
 *     else        --rank --world --root HOST:PORT
 *
 * Rank 0 listens; every other rank keeps one connection to it. Over it go names of hosts,
 * sums, and a beat each second, so that a process that ends or falls silent is known to all.
 * Plain C, Linux, TCP; all machines count bytes alike. Knows nothing of plans and devices.
 */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LAUNCH_NAME = 64, LAUNCH_TEXT = 2048 };

typedef struct {
    const char *by;                     // who started it: "torchrun", ..; NULL: nobody
    int rank, world;
    int local;                          // rank on its machine; -1: nobody says
    char root[256], port[16];           // where rank 0 listens
} LaunchPlace;

/* What does not fit: a line without the program's name. `tell`: it is this process that
 * should say it, since others know it too. */
typedef struct { bool tell; char text[LAUNCH_TEXT]; } LaunchFault;

/* From the options (NULL: not given), else the environment. false: the fault says why. */
bool launch_find(const char *root, const char *rank, const char *world, LaunchPlace *out,
                 LaunchFault *fault);

typedef struct Launch Launch;

/* `machine` tells hosts of one name apart: the kernel's boot number. */
typedef struct { char host[LAUNCH_NAME], machine[LAUNCH_NAME]; int32_t pid, local; } LaunchPeer;

/* All processes of the world meet, or `limit_s` ends it: NULL. `program`: the same in all. */
Launch *launch_join(const LaunchPlace *place, uint64_t program, double limit_s,
                    LaunchFault *fault);
const LaunchPeer *launch_peer(const Launch *l, int rank);

/* Each of the next waits for the others and is called by one thread at a time; false: there
 * is news (launch_news) that ends the run. */

/* Member `me` of the n of a group brings v [k]; all get the sum, taken in the order of
 * members. `group`: a number that no other group has. k <= 8. */
bool launch_sum(Launch *l, uint64_t group, int n, int me, double *v, int k);
/* Everyone's bytes to everyone: all [world * bytes], by rank. */
bool launch_share(Launch *l, const void *mine, void *all, size_t bytes);
/* To rank 0 alone, which takes them rank by rank: malloc'd, to be freed. */
bool launch_bring(Launch *l, const void *mine, size_t bytes);
bool launch_take(Launch *l, int rank, void **bytes, size_t *n);

/* What a process does, as rank 0 last heard it. Any thread. */
typedef struct { int64_t step; int32_t op, pad; uint64_t moves; } LaunchState;
void launch_tell(Launch *l, LaunchState now);
LaunchState launch_heard(Launch *l, int rank);

/* What ended the run elsewhere; the first of it stays. Any thread. */
typedef enum { LAUNCH_QUIET, LAUNCH_GONE, LAUNCH_FAILED } LaunchEvent;
typedef struct {
    LaunchEvent what;
    int rank, status;                   // who is gone, or had the error
    char text[LAUNCH_TEXT];             // how it went, or its message
} LaunchNews;
LaunchEvent launch_news(Launch *l, LaunchNews *out);
/* An error of this process: all others hear of it. */
void launch_fail(Launch *l, int status, const char *text);

/* well: all ranks come here, and none is then missed. */
void launch_leave(Launch *l, bool well);

#ifdef __cplusplus
}
#endif

#endif
