/*
 * measure.h - what this machine does in a second when the runtime asks it: products of
 * its BLAS, streams through memory, collectives of ranks as threads, starts of steps.
 * For `teracube profile` alone. Every figure is the seconds of one call: of the thread's own
 * work where nobody waits, of which the lower eighth of repetitions is taken; else of the clock,
 * the shortest of short rounds: what other programs take is left out as far as it can be.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include "rt.h"

enum { RT_CPU_NAME = 128 };
int rt_measure_cores(void);             // that this process may use
void rt_measure_cpu(char name[RT_CPU_NAME]);    // as the system calls it
const char *rt_measure_isa(void);       // "x86-64 avx2 fma": what the BLAS and LLVM go by

/* Calls fn(arg, thread) on so many threads at once, each over and over, for about
 * `seconds` and at least three times; none rests before all have done that. */
typedef void (*RtMeasured)(void *arg, int thread);
double rt_measure_calls(RtMeasured fn, void *arg, int threads, double seconds);

/* The BLAS that a run of that precision takes; NULL: none could be opened (was said). */
typedef struct RtMeasure RtMeasure;
RtMeasure  *rt_measure_open(bool is_double);
const char *rt_measure_blas(const RtMeasure *m);
void        rt_measure_close(RtMeasure *m);
/* C [m, n] = op(A) op(B) with k summed, a product of its own on each thread. */
double rt_measure_product(RtMeasure *m, bool trans_a, bool trans_b, int64_t rows, int64_t cols,
                          int64_t depth, int threads, double seconds);

/* y = s * x, half of `bytes` read and half written, on each thread. */
double rt_measure_stream(int64_t bytes, int threads, double seconds);

/* A collective (RT_ALL_GATHER, RT_REDUCE_SCATTER, RT_ALL_REDUCE) in which each rank
 * receives `bytes`, in groups of `group` that fill `ranks` ranks, all at once. 0: the run
 * failed, and said why. */
double rt_measure_collective(RtStepKind kind, int group, int ranks, int64_t bytes,
                             double seconds);
/* The same in groups whose members are `stride` ranks apart; ranks % (group * stride) = 0.
 * processes: this is one of as many as there are ranks, under mpirun, and all of them
 * call this alike; rank 0 gets the figure, the others 0. Negative: the run failed, and said why. */
double rt_measure_group(RtStepKind kind, int group, int stride, int ranks, int64_t bytes,
                        bool processes, double seconds);
void rt_measure_end(int ranks);         // of processes: none of these follows, MPI may end
/* `bytes` from one stage to the next, there and back, halved. */
double rt_measure_transfer(int64_t bytes, double seconds);
/* A step that does next to nothing, on a rank of so many workers. */
double rt_measure_step(int workers, double seconds);

#endif
