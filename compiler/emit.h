/*
 * emit.h - a plan as the runtime reads it: tables (rt.h) and the kernels they
 * call (kernel.h). Shared by emit.c, verify_run.c and main.c.
 */
#ifndef EMIT_H
#define EMIT_H

#include "kernel.h"
#include "rt.h"

typedef struct { ValueId a, b, c; } StepValues;     // what RtStep.a, b, c refer to, or NONE

typedef struct {            // of one pipeline stage
    RtHeader head;
    VEC(RtStep) steps;
    VEC(RtParam) params;
    VEC(RtUnit) units;
    VEC(RtPiece) pieces;
    VEC(RtSegment) segments;
    VEC(RtColumns) columns;
    VEC(RtRowMap) rowmaps;
    VEC(RtPass) passes;
    VEC(int64_t) slices;
    VEC(RtOut) outs;
    VEC(uint32_t) salts;
    VEC(RtRef) args;        // of the steps: step_args
    VEC(ValueId) arg_values;    // what they refer to; these two are not written
    VEC(StepValues) values;     // by step
    Text text;
} StageTables;

typedef struct {
    int nstages; StageTables *stage;
    VEC(KernelSpec) specs;  // of all stages: equal kernels once
} Emitted;

/* Needs memory; fills everything. Owned by `perm`. */
Emitted *emit_program(const Plan *p);

/* The model_hash of its programs and their logs, whatever the layout. Needs graph. */
uint64_t emitted_model_hash(const Plan *p);

/* A name of the model as an identifier of C: letters and digits, all else, however much, an
 * underscore between them. Two names may become one. */
const char *emit_name(const char *name);

static inline const RtRef *step_args(const StageTables *e, const RtStep *s)
{
    return e->args.at + s->first_arg;
}

/* The tables as rt_run takes them, one program per stage, owned by `perm`; `kernels` in the
 * order of specs. */
const RtProgram *emitted_program(const Emitted *e, const RtKernelFn *kernels);

#endif
