/*
 * emit_llvm_rows.c - row programs (plan.h) as loops over rows, parts and columns.
 *
 * A row is small enough for the first cache, so a part of a row is read as often
 * as its reductions need it, in the phases of rowlevels.c.
 *
 * A value that needs a costly function (exp, tanh ..) and comes back in a later
 * phase is put aside on the stack; one that has been stored is read from there;
 * anything else is cheaper to compute again. What is one number per part is a
 * scalar, evaluated before the loop of its level.
 */
#include "llvm_emit.h"

enum { PUT_BYTES = 64 << 10 };
static const double huge_of[2] = { 1e30, 1e300 };       // R_FIRST: nowhere

typedef struct {
    L *l; const RowProg *p;
    int64_t pw; int lanes;      // columns of a part; vector width used
    int nphases;
    int nred; RowReduction *red;
    Val *reduced;               // by reduction: its value
    /* per node */
    int *level;
    int *seen, *stored;         // first phase that evaluates, that has stored it; NONE
    int *mark;                  // last phase that visited it
    int *cost;                  // per phase: about how many instructions
    bool *scalar, *put;         // one number per part; put aside for later phases
    Val *one, *all, *memo;      // as a scalar, in all lanes, in the present chunk
    Val *aside;                 // where it is put
    /* where the builder is */
    int phase;
    bool fixed[RT_MAX_ARGS];    // the argument is a vector
    Val at[RT_MAX_ARGS];        // the row's first element of the argument; a vector's
    Val part, first;            // part, and its first column
    Val col; int active;        // column of the chunk inside the part, lanes in use
    Val token[2], key[2], colmap, row_token, evaluate, *salt;
} Rows;

/* ---- analysis ----------------------------------------------------------------- */

/* Can the node that an R_STORE writes there be read from it? */
static bool can_hold(const RowArg *a)
{
    return !a->accumulate && a->stride == 1 && !a->bf16;
}

static bool can_read_back(const Rows *r, int node, int phase)
{
    return r->stored[node] != NONE && r->stored[node] < phase;
}

/* Which nodes phase `phase` evaluates for `node`; costly ones seen before are put
 * aside by the phase that saw them. */
static void visit(Rows *r, int node, int phase)
{
    const RowNode *n = &r->p->node[node];
    if (r->scalar[node] || r->mark[node] == phase || can_read_back(r, node, phase)) return;
    r->mark[node] = phase;
    if (r->seen[node] != NONE && row_costly(n) && r->pw * r->l->size <= PUT_BYTES) {
        r->put[node] = true;
        return;
    }
    if (r->seen[node] == NONE) r->seen[node] = phase;
    r->cost[phase] += row_costly(n) ? 12 : 1;
    if (n->kind != R_OP || n->op == OP_COLUMN) return;
    visit(r, n->a, phase);
    if (n->b >= 0 && n->op != OP_SPREAD) visit(r, n->b, phase);
}

static bool is_root(const RowNode *n)
{
    return n->kind == R_STORE || n->kind == R_COLSUM;
}

static void find_reuse(Rows *r)
{
    r->cost = NEWN(int, r->nphases);
    for (int phase = 0; phase < r->nphases; phase++) {
        for (int i = 0; i < r->nred; i++) {
            if (r->red[i].phase != phase) continue;
            visit(r, r->red[i].a, phase);
            if (r->red[i].b >= 0) visit(r, r->red[i].b, phase);
        }
        for (int i = 0; i < r->p->nnodes; i++) {
            const RowNode *n = &r->p->node[i];
            if (!is_root(n) || r->level[i] != phase) continue;
            visit(r, n->a, phase);
            const RowArg *arg = &r->p->arg[n->arg];
            if (n->kind == R_STORE && can_hold(arg) && r->p->node[n->a].kind == R_OP
                && r->stored[n->a] == NONE)
                r->stored[n->a] = phase;
        }
    }
    for (int i = 0; i < r->p->nnodes; i++)
        if (r->put[i]) r->aside[i] = l_stack(r->l, r->pw + r->lanes, str_fmt("v_node%d", i));
}

/* ---- operands ------------------------------------------------------------------ */

/* Element n of argument i, counted from where the row (or the vector) starts. */
static Val element(Rows *r, int i, Val n) { return l_at(r->l, r->l->stored[i], r->at[i], n); }

static Val column(Rows *r) { return l_iadd(r->l, r->first, r->col); }

/* Lane by lane: element index(column + lane) of argument i, for the lanes in use. */
typedef Val Index(Rows *r, const RowArg *a, Val column);

static Val index_per(Rows *r, const RowArg *a, Val c)
{
    L *l = r->l;
    if (a->per > 1) c = LLVMBuildUDiv(l->b, c, l_i64(l, a->per), "");
    return l_imulc(l, c, a->stride);
}

static Val index_vector(Rows *r, const RowArg *a, Val c)
{
    return LLVMBuildURem(r->l->b, c, l_i64(r->l, a->length), "");
}

static Val lane_at(Rows *r, int i, Index *index, int lane)
{
    Val c = l_iaddc(r->l, column(r), lane);
    return element(r, i, index(r, &r->p->arg[i], c));
}

static Val gather(Rows *r, int i, Index *index)
{
    L *l = r->l;
    if (r->lanes == 1) return l_load(l, l->stored[i], lane_at(r, i, index, 0), 1, 1);
    Val x = LLVMConstNull(l_reals(l, r->lanes));
    for (int t = 0; t < r->active; t++) {
        Val one = l_load(l, l->stored[i], lane_at(r, i, index, t), 1, 1);
        x = LLVMBuildInsertElement(l->b, x, one, l_i64(l, t), "");
    }
    return x;
}

/* Argument i as rows: an address where the chunk is contiguous, or NULL. */
static Val row_address(Rows *r, int i)
{
    const RowArg *a = &r->p->arg[i];
    if (a->per > 1 || a->stride != 1) return NULL;
    return element(r, i, column(r));
}

/* Argument i as a vector, element (first + col) % length: the same. */
static Val vector_address(Rows *r, int i)
{
    L *l = r->l;
    int64_t n = r->p->arg[i].length;
    if (n == r->p->width) return element(r, i, column(r));
    if (n % r->pw == 0) {
        Val at = n == r->pw ? l_i64(l, 0)
                            : LLVMBuildURem(l->b, r->first, l_i64(l, n), "");
        return element(r, i, l_iadd(l, at, r->col));
    }
    if (r->pw % n || n % r->lanes) return NULL;
    return element(r, i, LLVMBuildURem(l->b, r->col, l_i64(l, n), ""));
}

static Val load_row(Rows *r, int i)
{
    L *l = r->l;
    const RowArg *a = &r->p->arg[i];
    Val p = row_address(r, i);
    if (p) return l_load(l, l->stored[i], p, r->lanes, r->active);
    bool aligned = r->p->parts == 1 || r->pw % r->lanes == 0;
    if (a->per % r->lanes || !aligned) return gather(r, i, index_per);
    p = element(r, i, index_per(r, a, column(r)));              // one number for the chunk
    return l_splat(l, l_load(l, l->stored[i], p, 1, 1), r->lanes);
}

static Val load_vector(Rows *r, int i)
{
    Val p = vector_address(r, i);
    return p ? l_load(r->l, r->l->stored[i], p, r->lanes, r->active)
             : gather(r, i, index_vector);
}

static Val global_columns(Rows *r)
{
    return l_load(r->l, r->l->i32, l_at(r->l, r->l->i32, r->colmap, column(r)), r->lanes,
                  r->active);
}

/* Index inside the (global) part, as a number. */
static Val column_number(Rows *r)
{
    L *l = r->l;
    Val c = global_columns(r);
    c = LLVMBuildURem(l->b, c, l_const(l_type(c), (double)r->p->part_width), "");
    return LLVMBuildSIToFP(l->b, c, l_reals(l, r->lanes), "");
}

/* a / (1 - p) where the element is kept, else 0 (rt_dropout_word); RtCall.evaluate: a. */
static Val dropout(Rows *r, const RowNode *n, Val a)
{
    L *l = r->l;
    Val c[4] = { l_splat(l, r->token[0], r->lanes), l_splat(l, r->token[1], r->lanes),
                 global_columns(r), l_splat(l, r->salt[n->salt], r->lanes) };
    Val k[2] = { l_splat(l, r->key[0], r->lanes), l_splat(l, r->key[1], r->lanes) };
    Val limit = l_const(l->i32, floor(n->c * 4294967296.0)), scale = l_num(l, 1 / (1 - n->c));
    limit = l_splat(l, l_select(l, r->evaluate, l_i32(l, 0), limit), r->lanes);
    scale = l_splat(l, l_select(l, r->evaluate, l_num(l, 1), scale), r->lanes);
    return l_select(l, l_icmp(l, LLVMIntUGE, l_philox(l, c, k), limit), l_mul(l, a, scale),
                    l_const(l_type(a), 0));
}

/* ---- nodes --------------------------------------------------------------------- */

static Val full(Rows *r, int node);

static Val compute(Rows *r, int node)
{
    const RowNode *n = &r->p->node[node];
    if (n->kind == R_LOAD) return load_row(r, n->arg);
    if (n->kind == R_LOADVEC) return load_vector(r, n->arg);
    if (n->op == OP_COLUMN) return column_number(r);
    Val a = full(r, n->a);
    if (n->op == OP_DROPOUT) return dropout(r, n, a);
    return l_op(r->l, n->op, a, n->b < 0 || n->op == OP_SPREAD ? NULL : full(r, n->b), n->c);
}

/* Where an R_STORE has left `node`. */
static Val stored_at(Rows *r, int node)
{
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        if (n->kind == R_STORE && n->a == node && can_hold(&r->p->arg[n->arg]))
            return row_address(r, n->arg);
    }
    bug("row program %s: node %d is not stored", r->p->name, node);
}

/* Called after its node and operator in the IR: "v7_tanh". */
static Val named(Rows *r, int node, Val x)
{
    const RowNode *n = &r->p->node[node];
    const char *word = n->kind == R_OP ? op_word[n->op] : n->kind <= R_LOADVEC ? "load" : "part";
    if (!LLVMIsAInstruction(x)) return x;
    word = str_fmt("v%d_%s", node, word);
    LLVMSetValueName2(x, word, strlen(word));
    return x;
}

/* The node's value in the lanes of the present chunk. */
static Val full(Rows *r, int node)
{
    L *l = r->l;
    if (r->scalar[node]) return r->all[node];
    if (r->memo[node]) return r->memo[node];
    Val x;
    if (can_read_back(r, node, r->phase)) {
        x = l_load(l, l->real, stored_at(r, node), r->lanes, r->active);
    } else if (r->put[node] && r->seen[node] < r->phase) {
        x = l_load(l, l->real, l_real_at(l, r->aside[node], r->col), r->lanes, r->lanes);
    } else {
        x = named(r, node, compute(r, node));
        if (r->put[node]) l_store(l, x, l_real_at(l, r->aside[node], r->col), r->lanes);
    }
    return r->memo[node] = x;
}

static Val scalar_load(Rows *r, const RowNode *n)
{
    L *l = r->l;
    const RowArg *a = &r->p->arg[n->arg];
    Val i = n->kind == R_LOADVEC ? l_i64(l, 0)
          : n->kind == R_LOADPART ? l_imulc(l, r->part, a->stride) : index_per(r, a, r->first);
    return l_load(l, l->stored[n->arg], element(r, n->arg, i), 1, 1);
}

/* Scalars of level `phase`, then the R_STOREPARTs that were waiting for them. */
static void scalars(Rows *r)
{
    L *l = r->l;
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        if (r->level[i] != r->phase) continue;
        if (n->kind == R_STOREPART) {
            const RowArg *a = &r->p->arg[n->arg];
            Typ of = l->stored[n->arg];
            Val p = element(r, n->arg, l_imulc(l, r->part, a->stride)), x = r->one[n->a];
            if (a->accumulate) x = l_add(l, x, l_load(l, of, p, 1, 1));
            l_store(l, l_rounded(l, of, x), p, 1);
        }
        if (!r->scalar[i]) continue;
        if (n->kind == R_NUMBER) r->one[i] = l_num(l, n->c);
        else if (n->kind == R_OP) r->one[i] = l_op(l, n->op, r->one[n->a],
                                                   n->b < 0 ? NULL : r->one[n->b], n->c);
        else if (!row_is_reduction(n->kind)) r->one[i] = scalar_load(r, n);
        named(r, i, r->one[i]);
        r->all[i] = n->kind == R_NUMBER ? l_const(l_reals(l, r->lanes), n->c)
                                        : l_splat(l, r->one[i], r->lanes);
    }
}

/* ---- reductions and results ------------------------------------------------------ */

static int combine_op(RowNodeKind k)
{
    return k == R_MAX ? L_MAX : k == R_FIRST ? L_MIN : L_SUM;
}

static double neutral(const Rows *r, RowNodeKind k)
{
    return k == R_MAX ? -INFINITY : k == R_FIRST ? huge_of[r->l->is_double] : 0;
}

/* What the chunk adds to a reduction; lanes that are not in use add nothing. */
static Val contribution(Rows *r, const RowReduction *d)
{
    L *l = r->l;
    Val x = full(r, d->a);
    if (d->kind == R_M2) {
        x = l_sub(l, x, l_splat(l, r->reduced[d->mean], r->lanes));
        x = l_mul(l, x, x);
    }
    if (d->kind == R_FIRST) {
        Val same = l_cmp(l, LLVMRealOEQ, x, full(r, d->b));
        x = l_select(l, same, column_number(r), l_const(l_type(x), neutral(r, R_FIRST)));
    }
    if (r->active == r->lanes) return x;
    return l_select(l, l_mask(l, r->lanes, l_i64(l, r->active)), x,
                    l_const(l_type(x), neutral(r, d->kind)));
}

static void store_row(Rows *r, const RowNode *n)
{
    L *l = r->l;
    const RowArg *a = &r->p->arg[n->arg];
    Typ of = l->stored[n->arg];
    Val x = full(r, n->a), p = row_address(r, n->arg);
    if (p) {
        if (a->accumulate) x = l_add(l, x, l_load(l, of, p, r->lanes, r->active));
        l_store(l, l_rounded(l, of, x), p, r->active);
        return;
    }
    if (a->per > 1) bug("row program %s: stores through a repeated column", r->p->name);
    for (int t = 0; t < r->active; t++) {
        Val one = r->lanes == 1 ? x : LLVMBuildExtractElement(l->b, x, l_i64(l, t), "");
        Val q = lane_at(r, n->arg, index_per, t);
        if (a->accumulate) one = l_add(l, one, l_load(l, of, q, 1, 1));
        l_store(l, l_rounded(l, of, one), q, 1);
    }
}

/* Sums over rows grow in the worker's scratch; lanes may share an element. */
static void column_sum(Rows *r, const RowNode *n)
{
    L *l = r->l;
    Val x = full(r, n->a), p = vector_address(r, n->arg);
    if (p) {
        l_store(l, l_add(l, l_load(l, l->real, p, r->lanes, r->active), x), p, r->active);
        return;
    }
    for (int t = 0; t < r->active; t++) {
        Val one = r->lanes == 1 ? x : LLVMBuildExtractElement(l->b, x, l_i64(l, t), "");
        Val q = lane_at(r, n->arg, index_vector, t);
        l_store(l, l_add(l, l_load(l, l->real, q, 1, 1), one), q, 1);
    }
}

/* ---- loops --------------------------------------------------------------------- */

/* One chunk of the phase. acc: accumulators of the phase's reductions. */
static void chunk(Rows *r, Val col, int active, Val *acc)
{
    r->col = col;
    r->active = active;
    memset(r->memo, 0, sizeof *r->memo * (size_t)r->p->nnodes);
    for (int i = 0; i < r->nred; i++) {
        if (r->red[i].phase != r->phase) continue;
        *acc = l_combine(r->l, combine_op(r->red[i].kind), *acc, contribution(r, &r->red[i]));
        acc++;
    }
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        if (!is_root(n) || r->level[i] != r->phase) continue;
        if (n->kind == R_STORE) store_row(r, n);
        else column_sum(r, n);
    }
}

/* Chunks side by side: more for short expressions, whose sums would wait. */
static int unroll_of(const Rows *r, int nacc, int64_t chunks)
{
    int cost = r->cost[r->phase];
    int u = cost <= 8 ? 4 : cost <= 20 ? 2 : 1;
    if (u == 1 && nacc && cost <= 40) u = 2;
    while (u > 1 && (u * nacc > L_CARRY || u > chunks)) u /= 2;
    return u;
}

static int phase_reductions(const Rows *r, bool *any)
{
    int n = 0;
    for (int i = 0; i < r->nred; i++) n += r->red[i].phase == r->phase;
    *any = n > 0;
    for (int i = 0; i < r->p->nnodes; i++)
        *any |= is_root(&r->p->node[i]) && r->level[i] == r->phase;
    return n;
}

static void set_scalar(Rows *r, const RowReduction *d, Val x)
{
    L *l = r->l;
    if (d->kind == R_MEAN) x = l_mul(l, x, l_num(l, 1 / (double)r->pw));
    r->reduced[d - r->red] = x;
    if (d->node == NONE) return;
    r->one[d->node] = x;
}

static void column_loop(Rows *r)
{
    L *l = r->l;
    bool any;
    int nacc = phase_reductions(r, &any), k = 0;
    if (!any) return;
    int64_t chunks = r->pw / r->lanes, tail = r->pw % r->lanes;
    int u = unroll_of(r, nacc, chunks), n = u * nacc;
    int64_t turns = chunks / u, step = (int64_t)u * r->lanes;
    Val acc[L_CARRY];
    for (int i = 0; i < r->nred; i++)
        if (r->red[i].phase == r->phase) {
            for (int j = 0; j < u; j++)
                acc[j * nacc + k] = l_const(l_reals(l, r->lanes), neutral(r, r->red[i].kind));
            k++;
        }
    if (turns > 1) {
        Loop o = l_for(l, str_fmt("col%d", r->phase), l_i64(l, 0), l_i64(l, turns * step), step,
                       n, acc);
        memcpy(acc, o.carry, sizeof *acc * (size_t)n);
        for (int j = 0; j < u; j++)
            chunk(r, l_iaddc(l, o.i, j * r->lanes), r->lanes, acc + j * nacc);
        l_next(l, &o, acc);
        memcpy(acc, o.carry, sizeof *acc * (size_t)n);
    } else {
        turns = 0;
    }
    for (int64_t j = turns * u; j < chunks; j++)
        chunk(r, l_i64(l, j * r->lanes), r->lanes, acc + (j % u) * nacc);
    if (tail) chunk(r, l_i64(l, chunks * r->lanes), (int)tail, acc);
    k = 0;
    for (int i = 0; i < r->nred; i++) {
        if (r->red[i].phase != r->phase) continue;
        int op = combine_op(r->red[i].kind);
        for (int j = 1; j < u; j++) acc[k] = l_combine(l, op, acc[k], acc[j * nacc + k]);
        set_scalar(r, &r->red[i], l_reduce(l, op, acc[k++]));
    }
}

static void one_part(Rows *r, Val part)
{
    r->part = part;
    r->first = l_imulc(r->l, part, r->pw);
    for (r->phase = 0; r->phase < r->nphases; r->phase++) {
        scalars(r);
        column_loop(r);
    }
}

static void one_row(Rows *r, Val row)
{
    L *l = r->l;
    for (int i = 0; i < r->p->nargs; i++) {
        const RowArg *a = &r->p->arg[i];
        if (!r->fixed[i]) r->at[i] = l_arg_at(l, i, l_imulc(l, row, a->ld));
    }
    if (r->row_token) {
        Val token = l_load(l, l->i64, l_at(l, l->i64, r->row_token, row), 1, 1);
        r->token[0] = LLVMBuildTrunc(l->b, token, l->i32, "");
        r->token[1] = LLVMBuildTrunc(l->b, LLVMBuildLShr(l->b, token, l_i64(l, 32), ""), l->i32,
                                     "");
    }
    if (r->p->parts == 1) {
        one_part(r, l_i64(l, 0));
    } else {
        Loop o = l_for(l, "part", l_i64(l, 0), l_i64(l, r->p->parts), 1, 0, NULL);
        one_part(r, o.i);
        l_next(l, &o, NULL);
    }
}

/* Vectors; the worker's row of sums over rows, cleared. */
static void open_vectors(Rows *r)
{
    L *l = r->l;
    for (int i = 0; i < r->p->nargs; i++) r->at[i] = l->arg[i];
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        if (n->kind == R_LOADVEC) r->fixed[n->arg] = true;
        if (n->kind != R_COLSUM || r->fixed[n->arg]) continue;
        r->fixed[n->arg] = true;
        int64_t length = r->p->arg[n->arg].length;
        Val worker = l_field(l, l->i64, worker);
        l->stored[n->arg] = l->real;
        r->at[n->arg] = l_arg_at(l, n->arg, l_imulc(l, worker, length));
        LLVMBuildMemSet(l->b, r->at[n->arg], LLVMConstNull(l->i8), l_i64(l, length * l->size),
                        (unsigned)l->size);
    }
}

static void open_tables(Rows *r)
{
    L *l = r->l;
    if (r->p->needs_colmap) r->colmap = l_field(l, l->ptr, colmap);
    if (!r->p->needs_rowmap) return;
    r->row_token = l_field(l, l->ptr, row_token);
    Val seed = LLVMBuildTrunc(l->b, l_field(l, l->i64, seed), l->i32, "");
    r->key[0] = LLVMBuildXor(l->b, seed, l_i32(l, 0x5eed), "");
    r->key[1] = l_field(l, l->i32, step);
    Val salts = l_field(l, l->ptr, salt);
    r->salt = NEWN(Val, r->p->nsalts + 1);
    for (int i = 0; i < r->p->nsalts; i++) {
        Val at = l_at(l, l->i32, salts, l_i64(l, i));
        r->salt[i] = LLVMBuildLoad2(l->b, l->i32, at, str_fmt("v_salt%d", i));
    }
    r->evaluate = l_icmp(l, LLVMIntNE, l_field(l, l->i32, evaluate), l_i32(l, 0));
}

/* y[r, :] = program(x[r, :], ..) for rows lo .. hi */
void emit_rows(L *l, const KernelSpec *spec)
{
    const RowProg *p = spec->rows;
    size_t n = (size_t)p->nnodes;
    l_kernel(l, spec, p->nargs);
    Rows *r = NEW(Rows);
    RowLevels levels = row_levels(p);
    *r = (Rows){ .l = l, .p = p, .pw = p->width / p->parts, .lanes = l->lanes,
        .nphases = levels.nphases, .level = levels.level, .scalar = levels.scalar,
        .nred = levels.nred, .red = levels.red, .reduced = NEWN(Val, levels.nred + 1),
        .seen = NEWN(int, n), .stored = NEWN(int, n),
        .mark = NEWN(int, n), .put = NEWN(bool, n),
        .one = NEWN(Val, n), .all = NEWN(Val, n), .memo = NEWN(Val, n), .aside = NEWN(Val, n) };
    if (p->width % p->parts) bug("row program %s: %d parts", p->name, p->parts);
    while (r->lanes / 2 >= r->pw) r->lanes /= 2;
    for (size_t i = 0; i < n; i++)
        r->seen[i] = r->stored[i] = r->mark[i] = NONE;
    find_reuse(r);
    open_vectors(r);
    open_tables(r);
    Loop o = l_for(l, "row", l->lo, l->hi, 1, 0, NULL);
    one_row(r, o.i);
    l_next(l, &o, NULL);
    l_finish(l);
}
