/*
 * rowlevels.c - when each node of a row program is known: what both emitters of row programs
 * go by (emit_llvm_rows.c, emit_cuda_rows.c).
 *
 * Phase p is one loop over the columns. It evaluates what is asked for at level p, and its
 * reductions are known to phase p + 1:
 *
 *     level of an operand                        0
 *     level of an operator                       the largest of its operands'
 *     level of a reduction of a                  level of a, + 1
 *     M2 = sum (x - mean)^2: the mean first      level of a, + 2
 */
#include "kernel.h"

bool row_costly(const RowNode *n)
{
    if (n->kind != R_OP)
        return false;
    switch (n->op) {
    case OP_EXP: case OP_LOG: case OP_TANH: case OP_SIGMOID: case OP_ERF: case OP_SIN:
    case OP_COS: case OP_DROPOUT: case OP_SQRT: case OP_RSQRT: case OP_DIV:
        return true;
    case OP_POW:
        return n->c != floor(n->c) || n->c < 0;
    default:
        return false;
    }
}

bool row_is_reduction(RowNodeKind k)
{
    return k == R_SUM || k == R_MEAN || k == R_M2 || k == R_MAX || k == R_FIRST;
}

static bool is_scalar(const RowProg *p, const RowLevels *l, const RowNode *n)
{
    switch (n->kind) {
    case R_NUMBER: case R_LOADPART:
        return true;
    case R_LOAD:
        return p->arg[n->arg].per > 1 && p->arg[n->arg].per % (p->width / p->parts) == 0;
    case R_LOADVEC:
        return p->arg[n->arg].length == 1;
    case R_OP:
        if (n->op == OP_COLUMN || n->op == OP_DROPOUT)
            return false;
        return l->scalar[n->a] && (n->b < 0 || n->op == OP_SPREAD || l->scalar[n->b]);
    default:
        return row_is_reduction(n->kind);
    }
}

static int level_of(const RowLevels *l, const RowNode *n)
{
    int a = 0, b = 0;
    if (n->kind == R_OP && n->op == OP_COLUMN)
        return 0;
    if (n->kind >= R_OP && n->a >= 0)
        a = l->level[n->a];
    if (((n->kind == R_OP && n->op != OP_SPREAD) || n->kind == R_FIRST) && n->b >= 0)
        b = l->level[n->b];
    int most = a > b ? a : b;
    return most + (n->kind == R_M2 ? 2 : row_is_reduction(n->kind) ? 1 : 0);
}

static int add_reduction(RowLevels *l, RowNodeKind kind, int a, int b, int node, int phase)
{
    l->red[l->nred] = (RowReduction){ kind, a, b, node, phase, NONE };
    return l->nred++;
}

/* The mean of node a, which R_M2 needs: that of an R_MEAN, or one of its own. */
static int mean_of(RowLevels *l, int a)
{
    for (int i = 0; i < l->nred; i++)
        if (l->red[i].kind == R_MEAN && l->red[i].a == a)
            return i;
    return add_reduction(l, R_MEAN, a, NONE, NONE, l->level[a]);
}

RowLevels row_levels(const RowProg *p)
{
    RowLevels l = { .nphases = 1, .level = NEWN(int, p->nnodes), .scalar = NEWN(bool, p->nnodes),
                    .red = NEWN(RowReduction, 2 * p->nnodes + 1) };
    for (int i = 0; i < p->nnodes; i++) {
        const RowNode *n = &p->node[i];
        l.level[i] = level_of(&l, n);
        l.scalar[i] = is_scalar(p, &l, n);
        if (n->part && n->kind == R_OP && !l.scalar[i])
            bug("row program %s: node %d is not one number per part", p->name, i);
        if (row_is_reduction(n->kind) && n->kind != R_M2)
            add_reduction(&l, n->kind, n->a, n->kind == R_FIRST ? n->b : NONE, i, l.level[i] - 1);
        l.nphases = l.level[i] >= l.nphases ? l.level[i] + 1 : l.nphases;
    }
    for (int i = 0; i < p->nnodes; i++) {
        const RowNode *n = &p->node[i];
        if (n->kind != R_M2)
            continue;
        int mean = mean_of(&l, n->a);
        l.red[add_reduction(&l, R_M2, n->a, NONE, i, l.level[i] - 1)].mean = mean;
    }
    return l;
}
