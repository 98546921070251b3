/*
 * emit_llvm_tile.c - one register tile of a product, the inner loop of attention.
 *
 * AVX2: 6 rows x 2 registers of sums, 2 registers of b, 1 broadcast: 15 of 16.
 * AVX-512: 8 rows. Per k: two loads of b, one broadcast per row, two fma per row.
 */
#include "llvm_emit.h"

static Val final_sum(L *l, const Tile *t, int row, Val sum)
{
    if (t->mode == TILE_SET) return sum;
    Val old = l_load(l, l->real, t->c[row], l->lanes, t->cols);
    return t->mode == TILE_ADD ? l_add(l, old, sum) : l_fma(l, old, t->scale, sum);
}

/* c[r, :] (+)= sum over k of a[r, k] b[k, :]. Unrolling over k gains nothing. */
void l_tile(L *l, const Tile *t)
{
    int rows = l->tile_rows;
    Val sum[L_ROWS_MAX], out[L_ROWS_MAX];
    for (int r = 0; r < rows; r++) sum[r] = LLVMConstNull(l_reals(l, l->lanes));
    Loop o = l_for(l, "k", l_i64(l, 0), t->n, 1, rows, sum);
    Val b = l_load(l, l->real, l_real_at(l, t->b, l_imul(l, o.i, t->b_step)), l->lanes, t->cols);
    Val at = l_imul(l, o.i, t->a_step);
    for (int r = 0; r < rows; r++) {
        Val a = l_load(l, l->real, l_real_at(l, t->a[r], at), 1, 1);
        sum[r] = l_fma(l, l_splat(l, a, l->lanes), b, o.carry[r]);
    }
    l_next(l, &o, sum);
    for (int r = 0; r < rows; r++) out[r] = final_sum(l, t, r, o.carry[r]);
    for (int r = 0; r < rows; r++) l_store(l, out[r], t->c[r], t->cols);
}
