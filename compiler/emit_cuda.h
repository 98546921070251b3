/*
 * emit_cuda.h - the parts of the CUDA emitter: text of kernels and of the program.
 */
#ifndef EMIT_CUDA_H
#define EMIT_CUDA_H

#include "emit.h"
#include "options.h"

/* Blocks that sum over rows, each with its row of scratch (Choices.workers), at most. */
enum { CUDA_WORKERS = 256 };

/* How a row kernel works: threads of an item (a warp, or a block), threads of a block,
 * neighbouring columns of one access, columns of a thread. */
typedef struct { bool is_double; int group, block, vec, each; } CudaRows;

/* Is the argument read or written several columns at once? */
bool     cuda_rows_wide(const RowProg *p, int arg);
/* `aligned_to`: elements to which every operand's first one is aligned. */
CudaRows cuda_rows_how(const RowProg *p, bool is_double, int aligned_to);
/* Appends one __global__ function; `what`: the name of each argument, for who reads it. Column
 * sums: a row of scratch for each block. */
void     cuda_rows(Text *out, const RowProg *p, const char *symbol, const char *const *what,
                   CudaRows how);

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
 * differ from slice to slice. */
typedef VEC(int64_t) Numbers;
typedef struct { const char *text; InstId first; Numbers at, own; } TurnPiece;

/* emit_cuda_slices.c: the pieces of a turn, by slice. Texts that differ in numbers alone become
 * one. */
void cuda_share_numbers(TurnPiece *const *all, int n);

#endif
