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
/* verify of a model too large to execute: shrinks it, says what, verifies that. */
int verify_shrunk(Compile *c);

#endif
