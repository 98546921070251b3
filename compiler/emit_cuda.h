/*
 * emit_cuda.h - the parts of the CUDA emitter: text of kernels and of the program.
 */
#ifndef EMIT_CUDA_H
#define EMIT_CUDA_H

#include "emit.h"
#include "options.h"

/* Blocks that sum over rows, each with its row of scratch (Choices.workers), at most. */
enum { CUDA_WORKERS = 256 };

/* Threads of an item: a warp, of which a block has eight, or a block. ROWS_LONG: columns from
 * which a row needs the wide one. */
enum { ROWS_WARP = 32, ROWS_BLOCK = 256, ROWS_WIDE = 512, ROWS_LONG = 8192 };

/* Where a thread has its numbers of a kept value, or of a sum over rows. IN_PAIRS: bf16, two a
 * register. IN_MEMORY: not kept, but read or computed again. */
typedef enum { IN_REGISTERS, IN_PAIRS, IN_SHARED, IN_MEMORY } RowPlace;

/* How a row kernel works (emit_cuda_fit.c). Columns: c belongs to thread (c / vec) % group. */
typedef struct {
    const RowProg *p;
    bool is_double;
    int group, block, least;    // threads of an item, of a block; blocks that a processor holds
    int vec, each;              // neighbours of one access, columns of a thread
    int tile;                   // columns of a thread whose sums are made at once; 0: all
    bool swept; int batch;      // sums over rows: a second pass over `batch` rows
    RowLevels levels;
    int *seen, *kept;           // by node: first phase that has it, last that reads it again
    uint64_t *in_phase;         // by node: bit q: phase q's loop asks for it
    RowPlace *place;            // by node
    int64_t *offset, shared;    // bytes of shared memory: where a node's begin; all
    int registers, limit;       // estimated; what the shape leaves a thread
} CudaRows;

/* Has the argument a number for each column, one beside the other? */
static inline bool cuda_rows_plain(const RowArg *a) { return a->stride == 1 && a->per <= 1; }
/* Is the argument read or written several columns at once? */
bool     cuda_rows_wide(const RowProg *p, int arg);
/* `aligned_to`: elements to which every operand's first one is aligned. */
CudaRows cuda_rows_how(const RowProg *p, bool is_double, int aligned_to);
/* Is node i a sum over rows that a group keeps over all items? Others go to memory at once. */
bool     cuda_rows_sum_stays(const RowProg *p, int i);
/* Is node i's value in memory or costly, so that a later phase finds it on chip? */
bool     cuda_rows_keeps(const CudaRows *h, int i);
/* Is node i stored or summed over rows by the loop of `phase`, and not in a sweep? */
bool     cuda_rows_result(const CudaRows *h, int i, int phase);
/* Appends one __global__ function; `what`: the name of each argument, for who reads it. Column
 * sums: a row of scratch for each block. */
void     cuda_rows(Text *out, const char *symbol, const char *const *what, const CudaRows *how);

/* How cuBLASLt ends a product, so that the row program behind it is not called. */
typedef enum { END_NONE, END_BIAS, END_GELU } EndKind;
typedef struct {
    EndKind end;
    bool kept;                  // what GELU was taken of goes where the product would
    int bias, out;              // arguments of the row program
} Ending;

/* By stage and step. Row programs that read what is kept become others of e->specs. */
Ending **cuda_endings(const Plan *p, Emitted *e);

/* The text of program.cu. */
void     cuda_program(const Plan *p, const Emitted *e, Ending *const *ends, Text *out);

/* emit_files.c: a file of the folder; the process ends where it cannot be written. */
void     write_text(const char *dir, const char *name, const char *at, size_t n);
/* launch.sh, launch.sbatch, launch.c, launch.h. */
void     emit_launch(const char *dir, const Compile *c);

/* Steps of one turn: the body of a function, the numbers that it gets in `o`, and in `s` those that
 * differ from slice to slice; the values that stand there, or NONE. */
typedef VEC(int64_t) Numbers;
typedef struct {
    const char *text;
    InstId first;
    Numbers at, own;
    VEC(ValueId) value, own_value;      // of the first ones of at, own
} TurnPiece;

/* emit_cuda_slices.c: the pieces of a turn, by slice. Texts that differ in numbers alone become
 * one. */
void cuda_share_numbers(TurnPiece *const *all, int n);

#endif
