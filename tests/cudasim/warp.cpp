/*
 * warp.cpp - the operations of a warp, by their definitions in the PTX ISA, and cp.async.
 *
 * Each is a function of the 32 lanes' arguments, called once by the lane that arrives
 * last. Memory is read and written by the lane that names it, so that the check
 * build sees the right thread.
 */
#include "sim.h"
#include "cuda_bf16.h"

/* ---- votes, shuffles, __syncwarp ---------------------------------------- */

struct VoteArg { cudasim::Vote kind; int predicate; unsigned result; };

static void do_vote(void **args, unsigned lanes)
{
    unsigned ballot = 0;
    for (int i = 0; i < 32; i++)
        if (lanes >> i & 1 && ((VoteArg *)args[i])->predicate)
            ballot |= 1u << i;
    for (int i = 0; i < 32; i++) {
        if (!(lanes >> i & 1))
            continue;
        VoteArg *a = (VoteArg *)args[i];
        a->result = a->kind == cudasim::ANY ? ballot != 0
                  : a->kind == cudasim::ALL ? ballot == lanes : ballot;
    }
}

struct ShuffleArg { cudasim::Shuffle kind; uint64_t value, result; int lane, width; };

// The source lane of PTX shfl; out of its segment, or absent: the lane's own value.
static void do_shuffle(void **args, unsigned lanes)
{
    for (int i = 0; i < 32; i++) {
        if (!(lanes >> i & 1))
            continue;
        ShuffleArg *a = (ShuffleArg *)args[i];
        int low = i & ~(a->width - 1), high = low + a->width - 1, j = i;
        switch (a->kind) {
        case cudasim::IDX:  j = low + (a->lane & (a->width - 1)); break;
        case cudasim::UP:   j = i - a->lane < low ? i : i - a->lane; break;
        case cudasim::DOWN: j = i + a->lane > high ? i : i + a->lane; break;
        case cudasim::XOR:  j = (i ^ a->lane) > high ? i : i ^ a->lane; break;
        }
        if (j < 0 || j > 31 || !(lanes >> j & 1))
            fatal("shuffle from lane %d, which does not take part, in %s", j,
                  where_now().c_str());
        a->result = ((ShuffleArg *)args[j])->value;
    }
}

static void do_syncwarp(void **args, unsigned lanes)
{
    uint32_t epoch = 0;
    for (int i = 0; i < 32; i++)
        if (lanes >> i & 1)
            epoch = std::max(epoch, ((Fiber *)args[i])->warp_epoch);
    for (int i = 0; i < 32; i++)
        if (lanes >> i & 1)
            ((Fiber *)args[i])->warp_epoch = epoch + 1;
}

namespace cudasim {

unsigned vote(Vote kind, unsigned mask, int predicate, const char *file, int line)
{
    VoteArg a = { kind, predicate, 0 };
    warp_op(mask, &a, do_vote, "a vote", file, line);
    return a.result;
}

uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int lane, int width,
                 const char *file, int line)
{
    ShuffleArg a = { kind, value, 0, lane, width };
    warp_op(mask, &a, do_shuffle, "a shuffle", file, line);
    return a.result;
}

void warp_barrier(unsigned mask, const char *file, int line)
{
    warp_op(mask, sim_worker ? sim_worker->now : nullptr, do_syncwarp, "__syncwarp", file, line);
}

}

/* ---- ldmatrix ----------------------------------------------------------- */

/*
 * ldmatrix.m8n8.xN.b16: lane 8m + r names row r of matrix m (8 elements of 2 bytes); lane i
 * gets of each matrix row i/4, elements 2(i%4) and the next: of the transpose with .trans.
 */
struct MatrixArg { uint16_t row[8]; uint32_t *r; int n; bool trans; };

static void whole_warp(unsigned lanes)
{
    if (lanes != 0xffffffff)
        fatal("ldmatrix or mma.sync without a whole warp (lanes %08x) in %s", lanes,
              where_now().c_str());
}

static void do_ldmatrix(void **args, unsigned lanes)
{
    whole_warp(lanes);
    for (int i = 0; i < 32; i++) {
        MatrixArg *a = (MatrixArg *)args[i];
        for (int m = 0; m < a->n; m++) {
            uint32_t half[2];
            for (int h = 0; h < 2; h++) {
                int row = i / 4, col = 2 * (i % 4) + h;
                if (a->trans)
                    std::swap(row, col);
                half[h] = ((MatrixArg *)args[8 * m + row])->row[col];
            }
            a->r[m] = half[0] | half[1] << 16;
        }
    }
}

/* ---- mma ---------------------------------------------------------------- */

/*
 * mma.m16n8k16, bf16 to f32; with g = lane / 4 and t = lane % 4:
 *     a[0] A[g][2t..]    a[1] A[g+8][2t..]    a[2] A[g][2t+8..]   a[3] A[g+8][2t+8..]
 *     b[0] B[2t..][g]    b[1] B[2t+8..][g]
 *     c, d: [0] [g][2t]  [1] [g][2t+1]  [2] [g+8][2t]  [3] [g+8][2t+1]
 */
struct MmaArg { float *d; const uint32_t *a, *b; const float *c; };

static float low(uint32_t v) { return cudasim_from_bf16((unsigned short)v); }
static float high(uint32_t v) { return cudasim_from_bf16((unsigned short)(v >> 16)); }

static void do_mma(void **args, unsigned lanes)
{
    whole_warp(lanes);
    float A[16][16], B[16][8], D[16][8];
    for (int i = 0; i < 32; i++) {
        MmaArg *m = (MmaArg *)args[i];
        int g = i / 4, t = i % 4;
        for (int q = 0; q < 4; q++) {
            A[g + q % 2 * 8][2 * t + q / 2 * 8] = low(m->a[q]);
            A[g + q % 2 * 8][2 * t + q / 2 * 8 + 1] = high(m->a[q]);
            D[g + q / 2 * 8][2 * t + q % 2] = m->c[q];
        }
        for (int q = 0; q < 2; q++) {
            B[2 * t + q * 8][g] = low(m->b[q]);
            B[2 * t + q * 8 + 1][g] = high(m->b[q]);
        }
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                D[i][j] += A[i][k] * B[k][j];
    for (int i = 0; i < 32; i++) {
        MmaArg *m = (MmaArg *)args[i];
        for (int q = 0; q < 4; q++)
            m->d[q] = D[i / 4 + q / 2 * 8][2 * (i % 4) + q % 2];
    }
}

/* ---- cp.async ----------------------------------------------------------- */

// As late as allowed: at the wait that asks for them, or at the thread's end.
void finish_copies(Fiber *f, int groups_left)
{
    size_t kept = 0;
    for (auto &c : f->copies) {
        if (groups_left >= 0 && c.group >= f->group - groups_left) {
            f->copies[kept++] = c;
            continue;
        }
        memcpy(c.dst, c.src, (size_t)c.copied);
        memset(c.dst + c.copied, 0, (size_t)(c.bytes - c.copied));
        if (race_async)
            race_async(c, false);
    }
    f->copies.resize(kept);
}

namespace cudasim {

void ldmatrix(uint32_t *r, int n, bool trans, const void *row, const char *file, int line)
{
    MatrixArg a;
    a.r = r;
    a.n = n;
    a.trans = trans;
    if ((sim_worker->now->id & 31) < 8 * n) {
        if ((uintptr_t)row % 16)
            fatal("ldmatrix at %s:%d: row %p is not aligned to 16 bytes, %s", base_name(file),
                  line, row, where_now().c_str());
        if (race_access)
            race_access(row, 16, false, __builtin_return_address(0));
        memcpy(a.row, row, 16);
    }
    warp_op(0xffffffff, &a, do_ldmatrix, "ldmatrix", file, line);
}

void mma_bf16(float *d, const uint32_t *a, const uint32_t *b, const float *c, const char *file,
              int line)
{
    MmaArg m = { d, a, b, c };
    warp_op(0xffffffff, &m, do_mma, "mma.sync", file, line);
}

void cp_async(void *shared, const void *global, int bytes, int copied)
{
    Fiber *f = sim_worker->now;
    if ((uintptr_t)shared % (uintptr_t)bytes || (uintptr_t)global % (uintptr_t)bytes)
        fatal("cp.async of %d bytes from %p to %p: not aligned, %s", bytes, global, shared,
              where_now().c_str());
    Copy c = { (char *)shared, (const char *)global, bytes, copied, f->group,
               __builtin_return_address(0) };
    if (race_async)
        race_async(c, true);
    f->copies.push_back(c);
}

void cp_async_commit() { sim_worker->now->group++; }

void cp_async_wait(int groups_left)
{
    Fiber *f = sim_worker->now;
    if (!f->copies.empty())
        finish_copies(f, groups_left);
}

}
