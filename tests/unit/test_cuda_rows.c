/*
 * test_cuda_rows.c - where CUDA row kernels keep their numbers (emit_cuda_fit.c): registers
 * and shared memory suffice at any width, and rows of the usual widths are read once.
 */
#include <criterion/criterion.h>

#include "emit_cuda.h"

enum { ROOM = 96 << 10 };           // shared memory of a block on every GPU from sm_80 on

typedef struct { RowProg p; RowNode node[64]; RowArg arg[16]; bool bf16; } Prog;

static int node(Prog *g, RowNodeKind kind, OpKind op, int a, int b, int arg)
{
    g->node[g->p.nnodes] = (RowNode){ .kind = kind, .op = op, .a = a, .b = b, .arg = arg,
                                      .part = row_is_reduction(kind) };
    return g->p.nnodes++;
}
static int arg(Prog *g, bool vector, bool out, bool bf16)
{
    int64_t w = g->p.width;
    g->arg[g->p.nargs] = (RowArg){ .is_vector = vector, .is_out = out, .length = w, .ld = w,
                                   .stride = 1, .per = 1, .bf16 = bf16 };
    return g->p.nargs++;
}
static int rows(Prog *g) { return node(g, R_LOAD, 0, NONE, NONE, arg(g, false, false, g->bf16)); }
static int vec(Prog *g) { return node(g, R_LOADVEC, 0, NONE, NONE, arg(g, true, false, g->bf16)); }
static int op(Prog *g, OpKind k, int a, int b) { return node(g, R_OP, k, a, b, 0); }
static int reduce(Prog *g, RowNodeKind k, int a) { return node(g, k, 0, a, NONE, 0); }
static void store(Prog *g, int a) { node(g, R_STORE, 0, a, NONE, arg(g, false, true, g->bf16)); }
static void colsum(Prog *g, int a) { node(g, R_COLSUM, 0, a, NONE, arg(g, true, true, false)); }

/* y = norm(x + dx) gain + bias: both sum and norm are stored. */
static void norm(Prog *g)
{
    int x = op(g, OP_ADD, rows(g), rows(g));
    int mean = reduce(g, R_MEAN, x), m2 = node(g, R_M2, 0, x, mean, 0);
    int y = op(g, OP_MUL, op(g, OP_SUB, x, mean), op(g, OP_RSQRT, m2, NONE));
    store(g, x);
    store(g, op(g, OP_ADD, op(g, OP_MUL, y, vec(g)), vec(g)));
}

/* Gradients of that, of what it was added to, of gain and bias, and of a bias before it. */
static void norm_back(Prog *g)
{
    int dy = rows(g), x = rows(g), d = op(g, OP_MUL, dy, vec(g));
    int a = reduce(g, R_SUM, d), b = reduce(g, R_SUM, op(g, OP_MUL, d, x));
    int dx = op(g, OP_ADD, rows(g), op(g, OP_SUB, d, op(g, OP_ADD, a, op(g, OP_MUL, x, b))));
    store(g, dx);
    colsum(g, dy);
    colsum(g, op(g, OP_MUL, dy, x));
    colsum(g, dx);
}

static void softmax(Prog *g)
{
    int x = rows(g), e = op(g, OP_EXP, op(g, OP_SUB, x, reduce(g, R_MAX, x)), NONE);
    store(g, op(g, OP_DIV, e, reduce(g, R_SUM, e)));
}

static void bias_back(Prog *g) { colsum(g, rows(g)); }

static void gelu(Prog *g) { store(g, op(g, OP_MUL, rows(g), op(g, OP_ERF, rows(g), NONE))); }

static void (*const kind[])(Prog *g) = { norm, norm_back, softmax, bias_back, gelu };

static CudaRows how(int k, int64_t width, bool bf16, bool is_double)
{
    Prog *g = NEWN(Prog, 1);
    g->p = (RowProg){ .name = "rows", .width = width, .parts = 1, .part_width = width,
                      .arg = g->arg, .node = g->node };
    g->bf16 = bf16;
    kind[k](g);
    return cuda_rows_how(&g->p, is_double, 8);
}

Test(cuda_rows, registers_suffice)
{
    static const int64_t widths[] = { 1, 48, 255, 256, 768, 1024, 1025, 1600, 4096, 5120, 6144,
                                      8192, 8200, 12288, 16384, 20480, 25600, 30522, 32000, 50257,
                                      50400, 128256, 250880 };
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < (int)(sizeof widths / sizeof *widths); i++)
            for (int real = 0; real < 3; real++) {
                CudaRows h = how(k, widths[i], real == 0, real == 2);
                cr_assert(h.registers <= h.limit, "program %d, %d columns, real %d: %d of %d", k,
                          (int)widths[i], real, h.registers, h.limit);
                cr_assert(h.block * h.least * h.limit <= 65536, "program %d: %d threads", k,
                          h.block);
                cr_assert(h.shared * h.least <= ROOM, "program %d, %d columns: %d bytes", k,
                          (int)widths[i], (int)h.shared);
            }
}

/* Nothing that has a number for each column of each row is read twice. */
Test(cuda_rows, usual_widths_are_read_once)
{
    static const int64_t widths[] = { 768, 1024, 1600, 2048, 4096, 5120, 6144, 8192, 12288 };
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < (int)(sizeof widths / sizeof *widths); i++) {
            CudaRows h = how(k, widths[i], true, false);
            cr_assert(!h.swept, "program %d, %d columns: sums in a sweep", k, (int)widths[i]);
            for (int n = 0; n < h.p->nnodes; n++)
                cr_assert(h.p->node[n].kind != R_LOAD || h.place[n] != IN_MEMORY,
                          "program %d, %d columns: node %d is read twice", k, (int)widths[i], n);
        }
}

/* It sees one that is: two rows of a vocabulary do not fit on chip. */
Test(cuda_rows, wide_sums_are_swept)
{
    CudaRows h = how(1, 250880, true, false);
    cr_assert(h.swept && h.batch > 0 && h.tile > 0);
}
