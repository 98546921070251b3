/* cudasim.h - what an emulated program may ask of the emulator; C and C++. */
#ifndef CUDASIM_H
#define CUDASIM_H
#ifdef __cplusplus
extern "C" {
#endif

// Runs fn(rank, n, arg) in n threads, thread r on device r; 0 if all returned 0.
int cudasim_ranks(int n, int (*fn)(int rank, int n, void *arg), void *arg);

/*
 * With simcc --ranks a program for one process per GPU becomes one process with
 * CUDASIM_RANKS threads: its main runs in each, and getenv says RANK, LOCAL_RANK,
 * WORLD_SIZE and LOCAL_WORLD_SIZE as a launcher would.
 */

#ifdef __cplusplus
}
#endif
#endif
