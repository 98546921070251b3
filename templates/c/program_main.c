/*
 * program_main.c - main() of an executable made by `teracube build --target cpu`.
 *
 * The object that the compiler writes holds the program's tables as bytes and
 * its kernels; this file, part of the runtime library, hands them to rt_main.
 */
#include "rt.h"

#include <stdio.h>
#include <stdlib.h>

/* The tables of all stages, those of stage 0 first. */
extern const RtHeader   program_head[];
extern const RtStep     program_steps[];
extern const RtParam    program_params[];
extern const RtUnit     program_units[];
extern const RtPiece    program_pieces[];
extern const RtSegment  program_segments[];
extern const RtColumns  program_columns[];
extern const RtRowMap   program_rowmaps[];
extern const RtPass     program_passes[];
extern const int64_t    program_slices[];
extern const RtOut      program_outs[];
extern const RtRef      program_args[];
extern const uint32_t   program_salts[];
extern const char       program_text[];
extern const RtKernelFn rt_kernels[];

int main(int argc, char **argv)
{
    int n = program_head[0].nstages;
    RtProgram *program = calloc((size_t)n, sizeof *program);
    if (program == NULL) {
        fputs("error: out of memory\n", stderr);
        return 4;
    }
    RtProgram at = {
        .head = program_head, .steps = program_steps, .params = program_params,
        .units = program_units, .pieces = program_pieces, .segments = program_segments,
        .columns = program_columns, .rowmaps = program_rowmaps, .passes = program_passes,
        .slices = program_slices, .outs = program_outs, .args = program_args,
        .salts = program_salts, .text = program_text, .kernels = rt_kernels
    };
    for (int i = 0; i < n; i++) {
        const RtHeader *h = at.head;
        program[i] = at;
        at.head++;
        at.steps += h->nsteps;
        at.params += h->nparams;
        at.units += h->nunits;
        at.pieces += h->npieces;
        at.segments += h->nsegments;
        at.columns += h->ncolumns;
        at.rowmaps += h->nrowmaps;
        at.passes += h->npasses;
        at.slices += h->nslices;
        at.outs += h->nouts;
        at.args += h->nargs;
        at.salts += h->nsalts;
        at.text += h->text_bytes;
    }
    int status = rt_main(program, argc, argv);
    free(program);
    return status;
}
