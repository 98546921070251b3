/*
 * cuda.h - from a plan to a running CUDA program: emit_files.c writes its folder, build_cuda.c
 * has nvcc make the executable, run_cuda.c starts it on this machine's GPUs.
 */
#ifndef CUDA_H
#define CUDA_H

#include "child.h"
#include "options.h"

/* What the emitted Makefile and `build` give to nvcc alike. */
#define CUDA_FLAGS "-std=c++17 -O3"
#define CUDA_LIBRARIES "-lcublasLt -lcublas -lnccl -lpthread -ldl"

/* Compiles c's files for GPUs and writes the folder; the exit status, errors reported. */
int cuda_folder(Compile *c, const char *dir);

/* The folder is made where it is not there; the process ends where that fails. */
void folder_make(const char *dir);

/* --arch, else what the device of the cluster says, else NULL. */
const char *cuda_arch(const Compile *c);
#define CUDA_ARCH_DEFAULT "sm_90"
enum { CUDA_ARCH_LEAST = 80 };          // cp.async, mma of bf16: templates/cuda/prims.cuh

/* Where teracube was built: templates/cuda, runtime; and where its library is, below. */
const char *source_folder(void);
const char *runtime_library(void);      // ends the process where it is not there

/* $NVCC, $CUDA_HOME/bin, $CUDA_PATH/bin, PATH, /usr/local/cuda/bin; NULL: none. */
const char *nvcc_find(void);
bool nvcc_knows(const char *nvcc, const char *arch);
_Noreturn void nvcc_absent(const Compile *c);
/* false: nvcc (NULL: any) does not know `arch`, and that was said. */
bool arch_check(const Compile *c, const char *nvcc, const char *arch);

/* DIR/program.cu -> object; the process ends where nvcc fails. */
void cuda_compile(const char *nvcc, const char *arch, const char *dir, const char *object);
/* The object and DIR/program.tables -> exe, by way of a new file beside it. */
void cuda_link(const char *nvcc, const char *arch, const char *dir, const char *object,
               const char *exe);

/* `build --target cuda`, `run --target cuda`; the exit status. */
int build_cuda(Compile *c);
int run_cuda(Compile *c);
/* Does `run` take the GPUs of this machine where no target is named? */
bool run_takes_cuda(const Compile *c);

#endif
