/*
 * prims.cuh - the instructions that CUDA C++ has no name for, one small function each.
 *
 * Kernels hold no inline assembly: what they need stands here, for the GPU as PTX
 * and, with CUDASIM, as a call of the emulator. Everything works from sm_80 on.
 *
 *     ldmatrix_x4(r, row)          8x8 matrices of 2-byte elements from shared memory
 *     mma_bf16(d, a, b, c)         d = a b + c; a 16x16, b 16x8 of bf16, c and d 16x8 of float
 *     cp_async16(dst, src)         16 bytes from global to shared memory, later
 *     ld_nc16 ld16 st16 st_cs16    16 bytes at once
 *
 * Who holds what in mma_bf16, with g = lane / 4 and t = lane % 4 (two bf16 a register, the
 * first in the low half):
 *     a[0] A[g][2t..]   a[1] A[g+8][2t..]   a[2] A[g][2t+8..]   a[3] A[g+8][2t+8..]
 *     b[0] B[2t..][g]   b[1] B[2t+8..][g]
 *     c[0] C[g][2t]     c[1] C[g][2t+1]     c[2] C[g+8][2t]     c[3] C[g+8][2t+1]
 * ldmatrix hands matrix m out in the same way: lane i gets elements 2(i%4) and 2(i%4)+1 of row
 * i/4 in r[m]. So A (row by row in shared memory) comes from one ldmatrix_x4 whose lanes
 * name rows lane%16, column 8*(lane/16); B (row by row, k by n) from one
 * ldmatrix_x2_trans whose lanes name rows lane%16.
 */
#ifndef PRIMS_CUH
#define PRIMS_CUH
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define PRIM static __device__ __forceinline__

#ifdef CUDASIM
#define PRIM_AT , const char *file = __builtin_FILE(), int line = __builtin_LINE()
#else
#define PRIM_AT
PRIM unsigned prim_shared(const void *p)        // the address as ld.shared wants it
{
    return (unsigned)__cvta_generic_to_shared(p);
}
#endif

/* ---- ldmatrix: lane 8m + r names row r of matrix m, 16 bytes, aligned to 16 ---- */

PRIM void ldmatrix_x1(uint32_t r[1], const void *row PRIM_AT)
{
#ifdef CUDASIM
    cudasim::ldmatrix(r, 1, false, row, file, line);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0]) : "r"(prim_shared(row)) : "memory");
#endif
}

PRIM void ldmatrix_x1_trans(uint32_t r[1], const void *row PRIM_AT)
{
#ifdef CUDASIM
    cudasim::ldmatrix(r, 1, true, row, file, line);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0]) : "r"(prim_shared(row)) : "memory");
#endif
}

PRIM void ldmatrix_x2(uint32_t r[2], const void *row PRIM_AT)
{
#ifdef CUDASIM
    cudasim::ldmatrix(r, 2, false, row, file, line);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(prim_shared(row)) : "memory");
#endif
}

PRIM void ldmatrix_x2_trans(uint32_t r[2], const void *row PRIM_AT)
{
#ifdef CUDASIM
    cudasim::ldmatrix(r, 2, true, row, file, line);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(prim_shared(row)) : "memory");
#endif
}

PRIM void ldmatrix_x4(uint32_t r[4], const void *row PRIM_AT)
{
#ifdef CUDASIM
    cudasim::ldmatrix(r, 4, false, row, file, line);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(prim_shared(row)) : "memory");
#endif
}

PRIM void ldmatrix_x4_trans(uint32_t r[4], const void *row PRIM_AT)
{
#ifdef CUDASIM
    cudasim::ldmatrix(r, 4, true, row, file, line);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(prim_shared(row)) : "memory");
#endif
}

/* ---- mma ---------------------------------------------------------------- */

// d may be c.
PRIM void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4] PRIM_AT)
{
#ifdef CUDASIM
    cudasim::mma_bf16(d, a, b, c, file, line);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                   "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}

// Two floats as a register of mma_bf16: lo in the low half.
PRIM uint32_t pack_bf16(float lo, float hi)
{
#ifdef CUDASIM
    return cudasim_to_bf16(lo) | (uint32_t)cudasim_to_bf16(hi) << 16;
#else
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}

/* ---- cp.async: there after cp_async_wait and a barrier ------------------ */

PRIM void cp_async16(void *dst, const void *src)
{
#ifdef CUDASIM
    cudasim::cp_async(dst, src, 16, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(prim_shared(dst)), "l"(__cvta_generic_to_global(src)) : "memory");
#endif
}

// Zeros instead, without a look at src, where `valid` is false.
PRIM void cp_async16_or_zero(void *dst, const void *src, bool valid)
{
#ifdef CUDASIM
    cudasim::cp_async(dst, src, 16, valid ? 16 : 0);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(prim_shared(dst)), "l"(__cvta_generic_to_global(src)),
                    "r"(valid ? 16 : 0) : "memory");
#endif
}

PRIM void cp_async_commit()
{
#ifdef CUDASIM
    cudasim::cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most N of this thread's committed groups are under way.
template <int N> PRIM void cp_async_wait()
{
#ifdef CUDASIM
    cudasim::cp_async_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
#endif
}

/* ---- 16 bytes at once; p aligned to 16 ---------------------------------- */

// Global memory that no thread writes while the kernel runs; passes L1 by.
PRIM uint4 ld_nc16(const void *p)
{
#ifdef CUDASIM
    return *(const uint4 *)p;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(p)));
    return v;
#endif
}

PRIM uint4 ld16(const void *p) { return *(const uint4 *)p; }
PRIM void st16(void *p, uint4 v) { *(uint4 *)p = v; }

// Written once, not read soon.
PRIM void st_cs16(void *p, uint4 v)
{
#ifdef CUDASIM
    *(uint4 *)p = v;
#else
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
#endif
}

#undef PRIM
#undef PRIM_AT
#endif
