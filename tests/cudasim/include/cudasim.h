/* cudasim.h - what an emulated program may ask of the emulator; C and C++. */
#ifndef CUDASIM_H
#define CUDASIM_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

// Runs fn(rank, n, arg) in n threads, thread r on device r; 0 if all returned 0.
int cudasim_ranks(int n, int (*fn)(int rank, int n, void *arg), void *arg);

// Bytes of device memory that kernels have read and written since the first call. What threads
// of a block access at one place of the program counts once; at two places, twice. Only the
// check build counts; others return 0.
int cudasim_traffic(uint64_t *read, uint64_t *written);

/*
 * With simcc --ranks a program for one process per GPU becomes one process with
 * CUDASIM_RANKS threads: its main runs in each, and getenv says RANK, LOCAL_RANK,
 * WORLD_SIZE and LOCAL_WORLD_SIZE as a launcher would.
 */

#ifdef __cplusplus
}
#endif
#endif
