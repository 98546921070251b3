/*
 * handmade.h - a small training program written by hand, for tests of the
 * runtime alone: embedding [V, H], one linear [H, V], cross entropy, AdamW,
 * with kernels in plain C, for any mesh, batch, precision and number of workers.
 */
#ifndef HANDMADE_H
#define HANDMADE_H

#include "../../runtime/rt.h"

typedef struct {
    int data, x, y, z, workers, microbatches, zero, balanced, masked;
    bool is_double, out_in;
    bool bf16;                  // parameters stored so, with a master copy in float
    int64_t vocab, hidden, sequence, batch;
    int64_t steps;
    const char *data_file;
} Make;

/* The program; handmade_free releases it. */
RtProgram *handmade(const Make *make);
void handmade_free(RtProgram *p);

#endif
