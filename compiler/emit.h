/*
 * emit.h - a plan as the runtime reads it: tables (rt.h) and the kernels they
 * call (kernel.h). Shared by emit.c, verify_run.c and main.c.
 */
#ifndef EMIT_H
#define EMIT_H

#include "kernel.h"
#include "rt.h"

typedef struct {
    RtHeader head;
    VEC(RtStep) steps;
    VEC(RtParam) params;
    VEC(RtUnit) units;
    VEC(RtPiece) pieces;
    VEC(RtSegment) segments;
    VEC(RtColumns) columns;
    VEC(RtRowMap) rowmaps;
    Text text;
    VEC(KernelSpec) specs;
} Emitted;

/* Needs memory; fills everything. Owned by `perm`. */
Emitted *emit_program(const Plan *p);

/* The tables as rt_run takes them; `kernels` in the order of specs. */
RtProgram emitted_program(const Emitted *e, const RtKernelFn *kernels);

#endif
