/*
 * frame.h - what other frameworks' programs do in a step, priced by price.h: the way from a
 * published run to a time and a peak that can be compared with it (tests/predict), and from a
 * plan to what such a program would take in its layout (residual.h).
 *
 * The programs differ from ours in what they store, fuse and overlap; a Manner says how.
 * Products, kernels, collectives and transfers cost the same as in our own plans.
 */
#ifndef FRAME_H
#define FRAME_H

#include "price.h"

typedef struct {
    double layers, hidden, heads, kv_heads, ffn, seq, vocab;
    bool gated;                     // a third matrix in the MLP, rope, no biases (Llama)
    bool tied;                      // the head is the embedding
} Dims;

typedef enum { AGAIN_NONE, AGAIN_HALF, AGAIN_ATTENTION, AGAIN_FULL } Again;

typedef struct {
    double gpus, tp, pp, vp, dp, cp;
    int zero;
    double micro, batch;            // sequences
    bool sp;                        // what stands between the products is cut over tp too
    bool flash;
    Again again;                    // recompute
    bool fp8;
    double slices;                  // token slices; 0: the best uniform number
    const double *slice; int nslice;    // their lengths, where they are not uniform
} Way;

typedef struct Manner {
    const char *name;
    bool flash, sp;                 // as a rule; sp: where not everything is computed again
    bool dropout;
    bool stack;                     // layers alone: no embedding, head and loss
    bool fused;                     // row operators are compiled into few kernels
    bool overlap;                   // weights and gradients travel while the device computes
    bool rails;                     // a stage border's tensor is cut over the ranks of tp
    bool broadcast;                 // one rank sends the whole tensor to the next stage
    bool gpipe;
    bool narrow;                    // collectives of sharded weights use one port of a node
    bool apart;                     // replicas are the outermost axis, not stages
    double host;                    // seconds to start a kernel; 0: the device never waits
    double sums;                    // bytes moved per parameter to add up microbatches
    double grad;                    // bytes of a reduced gradient
    double logit, held;             // bytes moved per logit by the loss, both ways; held at once
    bool whole;                     // all gradients exist before they are reduced
    double update;                  // bytes the optimizer moves per parameter
} Manner;
extern const Manner megatron, megatron_fp16, deepspeed, fsdp, fsdp_fp32, titan, titan_compiled,
                    alpa, terapipe, deepspeed_zero3, megatron_core,
                    deepspeed_bf16;

typedef struct {
    double step_s, forward_s, backward_s;   // the last two: of one layer, one microbatch
    double static_bytes, activation_bytes, peak_bytes;
} Frame;

double dims_parameters(const Dims *s);
/* w: prices of 16-bit numbers; w8: the same with the matrix rate of 8 bits. */
Frame frame_of(const Prices *w, const Prices *w8, const Dims *s, const Way *l,
               const Manner *how);

#endif
