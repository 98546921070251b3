/*
 * program_main.c - main() of an executable made by `teracube build --target cpu`.
 *
 * The object that the compiler writes holds the program's tables as bytes and
 * its kernels; this file, part of the runtime library, hands them to rt_main.
 */
#include "rt.h"

extern const RtHeader   program_head;
extern const RtStep     program_steps[];
extern const RtParam    program_params[];
extern const RtUnit     program_units[];
extern const RtPiece    program_pieces[];
extern const RtSegment  program_segments[];
extern const RtColumns  program_columns[];
extern const RtRowMap   program_rowmaps[];
extern const char       program_text[];
extern const RtKernelFn rt_kernels[];

int main(int argc, char **argv)
{
    const RtProgram program = {
        .head = &program_head, .steps = program_steps, .params = program_params,
        .units = program_units, .pieces = program_pieces, .segments = program_segments,
        .columns = program_columns, .rowmaps = program_rowmaps, .text = program_text,
        .kernels = rt_kernels
    };
    return rt_main(&program, argc, argv);
}
