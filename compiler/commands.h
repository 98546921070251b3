/*
 * commands.h - shared by the commands that execute a plan: run.c, run_reference.c,
 * verify_run.c.
 */
#ifndef COMMANDS_H
#define COMMANDS_H

#include "emit.h"
#include "options.h"

void use_this_machine(Compile *c);
/* Machine code for a program's kernels; ends the process where LLVM is absent. */
Kernels *make_kernels(const Compile *c, const Emitted *e);
const RtKernelFn *jit_kernels(Kernels *k);
/* Trains with the slow interpreter (`run --reference`); the exit status. */
int run_reference(Compile *c);

/* verify: above this a plan is shrunk before it is executed (design.md 8). */
#define VERIFY_FLOPS 1e10
enum { VERIFY_RANKS = 64 };
double verify_flops(const Plan *p, const Emitted *e);       // of one step, all ranks
/* Steps of c's plan against the reference; the exit status. */
int verify_execute(Compile *c, const Emitted *e);
/* Shrinks the model, says what it shrank, and verifies that; verify_shrink.c. */
int verify_shrunk(Compile *c);

#endif
