/*
 * emit_cuda_rows.c - a row program (plan.h) as the text of one CUDA kernel.
 *
 * An item is one part of one row. A group of threads, a warp or a block, takes an
 * item: column c belongs to thread (c / V) % G, so that V neighbours make one access
 * of 16 bytes and a row is read and written once. What a phase needs again later
 * stays on chip, E numbers a thread:
 *
 *     phase p    loads, arithmetic, partial results of the reductions of level p
 *                shuffles (and shared memory, where the group is a block)
 *     phase p+1  reads them as scalars
 *
 * Levels are those of rowlevels.c. A value that needs a costly function, or
 * a load, is kept for later phases; anything else is computed again. emit_cuda_fit.c says
 * where it is kept, so that registers are enough: v<i>[E], w<i>[E / 2] (bf16 in pairs), or
 * h<i> in shared memory. Sums over rows (R_COLSUM), k<i>, are kept over all items of a group,
 * then added up in the block's row of the scratch matrix. Where columns know nothing of each
 * other, the items are walked once for each tile of columns; where sums do not fit beside the
 * row, a batch of items is walked again for them, with the reductions' results in `known`.
 * Functions are those of templates/cuda/rows.cuh.
 */
#include <ctype.h>

#include "emit_cuda.h"

enum { UNROLL = 2 };            // TUNING: accesses in flight where no register array is named

typedef struct {
    const CudaRows *h;
    const RowProg *p;
    Text *out;
    int64_t pw; int E;
    int nred;
    RowReduction *red;
    bool *scalar;
    bool *done, *used;          // named in the present scope; used by a result
    bool sweep;                 // the second pass, for sums over rows alone
    bool *known, any_known;     // by reduction: the sweep reads it
} Rows;

/* ---- analysis -------------------------------------------------------------------- */

/* Marks what a result is made of; a sweep knows the reductions. */
static void use(Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    if (r->used[i])
        return;
    r->used[i] = true;
    bool leaf = n->kind < R_OP || (n->kind == R_OP && n->op == OP_COLUMN) ||
                (r->sweep && row_is_reduction(n->kind));
    if (!leaf && n->a >= 0)
        use(r, n->a);
    if (!leaf && n->b >= 0 && n->kind != R_M2 && !(n->kind == R_OP && n->op == OP_SPREAD))
        use(r, n->b);
}

/* Is node i a result of phase p, here? */
static bool is_result(const Rows *r, int i, int p)
{
    return r->sweep ? cuda_rows_sum_stays(r->p, i) : cuda_rows_result(r->h, i, p);
}

static void find_used(Rows *r)
{
    for (int i = 0; i < r->p->nnodes; i++)
        r->used[i] = false;
    for (int q = 0; q < r->h->levels.nphases; q++)
        for (int i = 0; i < r->p->nnodes; i++)
            if (is_result(r, i, q) || (r->p->node[i].kind == R_STOREPART && !r->sweep))
                use(r, r->p->node[i].a);
    for (int k = 0; k < r->nred && !r->sweep; k++) {
        use(r, r->red[k].a);
        if (r->red[k].b != NONE)
            use(r, r->red[k].b);
    }
}

static void find_known(Rows *r)
{
    r->known = NEWN(bool, r->nred + 1);
    r->sweep = true;
    find_used(r);
    for (int k = 0; k < r->nred && r->h->swept; k++) {
        r->known[k] = r->red[k].node != NONE && r->used[r->red[k].node];
        r->any_known |= r->known[k];
    }
    r->sweep = false;
    find_used(r);
}

/* Is the value kept for a later phase? */
static bool is_kept(const Rows *r, int i)
{
    return !r->sweep && r->h->kept[i] != NONE && cuda_rows_keeps(r->h, i);
}

static bool in_array(const Rows *r, int i)
{
    return is_kept(r, i) && r->h->place[i] == IN_REGISTERS;
}

/* Kept, but what is at work is a copy of the chunk: t<i>. */
static bool in_chunk(const Rows *r, int i)
{
    return is_kept(r, i) && r->h->place[i] != IN_REGISTERS;
}

/* Does phase p find the value where an earlier one left it? */
static bool is_found(const Rows *r, int i, int p)
{
    return is_kept(r, i) && r->h->seen[i] < p;
}

/* Is it a sum over rows that stands in shared memory? */
static bool sum_is_shared(const Rows *r, int i)
{
    return !r->sweep && cuda_rows_sum_stays(r->p, i) && r->h->place[i] == IN_SHARED;
}

/* ---- text of values ----------------------------------------------------------------- */

#define put(r, ...) text_add((r)->out, __VA_ARGS__)

static const char *real(const Rows *r) { return r->h->is_double ? "double" : "float"; }

static const char *constant(const Rows *r, double c)
{
    if (!r->h->is_double)
        c = (float)c;                       // what is too large or too small, nvcc warns of
    if (isinf(c))
        return c > 0 ? "INFINITY" : "-INFINITY";
    const char *digits = str_fmt(r->h->is_double ? "%.17g" : "%.9g", c);
    bool dot = strpbrk(digits, ".e") != NULL;
    return str_fmt("%s%s%s", digits, dot ? "" : ".0", r->h->is_double ? "" : "f");
}

/* The name of node i's value where it is used: a register, an array's element, a scalar. */
static const char *name(const Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    if (n->kind == R_NUMBER)
        return constant(r, n->c);
    if (in_array(r, i))
        return str_fmt("v%d[e + j]", i);
    return str_fmt("v%d", i);
}

static const char *pow_text(const Rows *r, const RowNode *n, const char *a)
{
    if (n->c == floor(n->c) && fabs(n->c) <= 8)
        return str_fmt("op_power<%d>(%s)", (int)n->c, a);
    return str_fmt("op_pow(%s, %s)", a, constant(r, n->c));
}

/* Where the item begins in a matrix of rows of `ld`, its parts `part` apart. */
static const char *item_at(const Rows *r, int64_t ld, int64_t part)
{
    const char *row = ld == 1 ? "row" : str_fmt("row * %" PRId64, ld);
    return r->p->parts > 1 ? str_fmt("%s + part * %" PRId64, row, part) : row;
}

/* From a part's column to the row's. */
static const char *part_offset(const Rows *r)
{
    return r->p->parts > 1 ? str_fmt("part * %" PRId64 " + ", r->pw) : "";
}

static const char *op_text(const Rows *r, const RowNode *n)
{
    const char *a = n->op == OP_COLUMN ? "" : name(r, n->a);
    const char *b = n->b >= 0 && n->op != OP_SPREAD ? name(r, n->b) : "";
    switch (n->op) {
    case OP_ADD: return str_fmt("%s + %s", a, b);
    case OP_SUB: return str_fmt("%s - %s", a, b);
    case OP_MUL: return str_fmt("%s * %s", a, b);
    case OP_DIV: return str_fmt("%s / %s", a, b);
    case OP_MAX: return str_fmt("op_max(%s, %s)", a, b);
    case OP_MIN: return str_fmt("op_min(%s, %s)", a, b);
    case OP_GE:  return str_fmt("op_ge(%s, %s)", a, b);
    case OP_EQ:  return str_fmt("op_eq(%s, %s)", a, b);
    case OP_NEG: return str_fmt("-%s", a);
    case OP_POW: return pow_text(r, n, a);
    case OP_SPREAD: return a;
    case OP_COLUMN: return str_fmt("(%s)(column[%sc + j] %% %" PRId64 ")", real(r),
                                   part_offset(r), r->p->part_width);
    case OP_DROPOUT:
        return str_fmt("dropout(%s, dropout_word(seed, step, salt%d, row_token[row], "
                       "column[%sc + j]), evaluate ? 0u : %uu, evaluate ? (%s)1 : %s)", a,
                       n->salt, part_offset(r), (unsigned)floor(n->c * 4294967296.0), real(r),
                       constant(r, 1 / (1 - n->c)));
    default:
        return str_fmt("op_%s(%s)", op_word[n->op], a);     // exp log sqrt rsqrt tanh ..
    }
}

/* Scalars of level <= phase that are not there yet. */
static void scalar_text(Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    const RowArg *a = &r->p->arg[n->arg];
    if (n->kind == R_LOADPART)
        put(r, "        const %s v%d = widen(a%d[%s]);\n", real(r), i, n->arg,
            item_at(r, a->ld, a->stride));
    else if (n->kind == R_LOAD && r->p->parts == 1)
        put(r, "        const %s v%d = widen(a%d[%s]);\n", real(r), i, n->arg,
            item_at(r, a->ld, 0));
    else if (n->kind == R_LOAD)
        put(r, "        const %s v%d = widen(a%d[row * %" PRId64 " + part * %" PRId64 " / %" PRId64
            " * %" PRId64 "]);\n", real(r), i, n->arg, a->ld, r->pw, a->per, a->stride);
    else if (n->kind == R_LOADVEC)
        put(r, "        const %s v%d = widen(a%d[0]);\n", real(r), i, n->arg);
    else if (n->kind == R_OP)
        put(r, "        const %s v%d = %s;\n", real(r), i, op_text(r, n));
}

static void scalars(Rows *r, int phase)
{
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        if (r->scalar[i] && r->used[i] && r->h->levels.level[i] == phase &&
            !row_is_reduction(n->kind) && n->kind != R_NUMBER)
            scalar_text(r, i);
    }
}

/* ---- loads: V neighbours at once ------------------------------------------------------ */

/* Where the chunk's first element of the argument is. */
static const char *where(const Rows *r, const RowArg *a, int arg)
{
    if (a->is_vector && a->length == r->p->width && r->p->parts > 1)
        return str_fmt("a%d + part * %" PRId64 " + c", arg, r->pw);
    if (a->is_vector)
        return str_fmt("a%d + c", arg);
    return str_fmt("a%d + %s + c", arg, item_at(r, a->ld, r->pw));
}

/* Before the loop over the chunk's elements: t<i>[V] or v<i>[e ..]. */
static void load_chunk(Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    const RowArg *a = &r->p->arg[n->arg];
    bool keep = in_array(r, i);
    const char *to = keep ? str_fmt("v%d + e", i) : str_fmt("t%d", i);
    bool wraps = a->is_vector && a->length != r->pw && a->length != r->p->width;
    if (!keep)
        put(r, "            %s t%d[V];\n", real(r), i);
    if (cuda_rows_plain(a) && !wraps) {
        put(r, "            row_load<V>(%s, %s);\n", where(r, a, n->arg), to);
        return;
    }
    const char *at = wraps
        ? str_fmt("(%sc + j) %% %" PRId64, part_offset(r), a->length)
        : str_fmt("row * %" PRId64 " + (%sc + j) / %" PRId64 " * %" PRId64, a->ld,
                  part_offset(r), a->per > 1 ? a->per : 1, a->stride);
    put(r, "#pragma unroll\n            for (int j = 0; j < V; j++)\n"
        "                (%s)[j] = widen(a%d[%s]);\n", to, n->arg, at);
}

/* t<i>: from where an earlier phase left it. */
static void fetch(Rows *r, int i)
{
    put(r, "            %s t%d[V];\n", real(r), i);
    if (r->h->place[i] == IN_PAIRS)
        put(r, "            unpack_pairs<V>(w%d + e / 2, t%d);\n", i, i);
    else
        put(r, "            row_load<V>(h%d + c, t%d);\n", i, i);
}

/* Behind the loop over the chunk's elements: what phase p has made, for later ones. */
static void keep_chunk(Rows *r, int p)
{
    for (int i = 0; i < r->p->nnodes; i++) {
        if (!r->done[i] || !in_chunk(r, i) || r->h->seen[i] != p)
            continue;
        if (r->h->place[i] == IN_PAIRS)
            put(r, "            pack_pairs<V>(t%d, w%d + e / 2);\n", i, i);
        else
            put(r, "            row_store<V>(h%d + c, t%d);\n", i, i);
    }
}

/* Before that loop: values that phase p needs and does not find in an array. */
static void loads(Rows *r, int i, int p)
{
    const RowNode *n = &r->p->node[i];
    if (r->scalar[i] || r->done[i])
        return;
    r->done[i] = true;
    if (is_found(r, i, p)) {
        if (in_chunk(r, i))
            fetch(r, i);
    } else if (n->kind == R_LOAD || n->kind == R_LOADVEC) {
        load_chunk(r, i);
    } else if (n->kind == R_OP && n->op != OP_COLUMN) {
        loads(r, n->a, p);
        if (n->b >= 0 && n->op != OP_SPREAD)
            loads(r, n->b, p);
        if (in_chunk(r, i))
            put(r, "            %s t%d[V];\n", real(r), i);
    }
}

/* Element code of node i: operands first. */
static void element(Rows *r, int i, int p)
{
    const RowNode *n = &r->p->node[i];
    bool loaded = n->kind == R_LOAD || n->kind == R_LOADVEC;
    if (r->scalar[i] || r->done[i])
        return;
    r->done[i] = true;
    if (loaded || is_found(r, i, p)) {
        if (!in_array(r, i))
            put(r, "                const %s v%d = t%d[j];\n", real(r), i, i);
        return;
    }
    if (n->op != OP_COLUMN) {
        element(r, n->a, p);
        if (n->b >= 0 && n->op != OP_SPREAD)
            element(r, n->b, p);
    }
    put(r, "                %s%s = %s;\n", in_array(r, i) ? "" : str_fmt("const %s ", real(r)),
        name(r, i), op_text(r, n));
    if (in_chunk(r, i))
        put(r, "                t%d[j] = v%d;\n", i, i);
}

/* ---- phases ---------------------------------------------------------------------------- */

static void reduction_begin(Rows *r, const RowReduction *d, int k)
{
    const char *nowhere = constant(r, r->h->is_double ? 1e300 : 1e30);
    const char *first = d->kind == R_MAX ? "-INFINITY" : d->kind == R_FIRST ? nowhere : "0";
    put(r, "        %s r%d = %s;\n", real(r), k, first);
}

static void reduction_step(Rows *r, const RowReduction *d, int k)
{
    const char *a = name(r, d->a);
    switch (d->kind) {
    case R_MAX:
        put(r, "                r%d = op_max(r%d, %s);\n", k, k, a);
        break;
    case R_FIRST:
        put(r, "                if (%s == %s)\n"
            "                    r%d = op_min(r%d, (%s)(column[%sc + j] %% %" PRId64 "));\n",
            a, name(r, d->b), k, k, real(r), part_offset(r), r->p->part_width);
        break;
    case R_M2:
        put(r, "                r%d += (%s - r%d) * (%s - r%d);\n", k, a, d->mean, a, d->mean);
        break;
    default:
        put(r, "                r%d += %s;\n", k, a);
    }
}

static void reduction_end(Rows *r, const RowReduction *d, int k)
{
    const char *how = d->kind == R_MAX ? "max" : d->kind == R_FIRST ? "min" : "sum";
    put(r, "        r%d = group_%s<G>(r%d, scratch);\n", k, how, k);
    if (d->kind == R_MEAN)
        put(r, "        r%d *= %s;\n", k, constant(r, 1.0 / (double)r->pw));
    if (d->node != NONE && r->used[d->node])
        put(r, "        const %s v%d = r%d;\n", real(r), d->node, k);
    if (r->known[k])
        put(r, "        if (lane == 0)\n            known[turn][%d] = r%d;\n", k, k);
}

static void store_chunk(Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    const RowArg *a = &r->p->arg[n->arg];
    if (a->stride == 1)
        put(r, "            row_store<V>(%s, s%d);\n", where(r, a, n->arg), i);
    else
        put(r, "#pragma unroll\n            for (int j = 0; j < V; j++)\n"
            "                narrow_store(a%d + row * %" PRId64 " + (%sc + j) * %" PRId64
            ", s%d[j]);\n", n->arg, a->ld, part_offset(r), a->stride, i);
}

static void sum_over_rows(Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    const RowArg *a = &r->p->arg[n->arg];
    if (sum_is_shared(r, i))
        put(r, "                u%d[j] += %s;\n", i, name(r, n->a));
    else if (cuda_rows_sum_stays(r->p, i))
        put(r, "                k%d[e + j] += %s;\n", i, name(r, n->a));
    else
        put(r, "                a%d[blockIdx.x * (int64_t)%" PRId64 " + (%sc + j) %% %" PRId64
            "] += %s;\n", n->arg, a->length, part_offset(r), a->length, name(r, n->a));
}

/* Does phase p have a loop over the columns? */
static bool has_loop(const Rows *r, int p)
{
    for (int k = 0; k < r->nred; k++)
        if (r->red[k].phase == p)
            return true;
    for (int i = 0; i < r->p->nnodes; i++)
        if (is_result(r, i, p))
            return true;
    return false;
}

/* Does the text name the column `c`? */
static bool names_column(const char *s)
{
    for (const char *at = s; (at = strchr(at, 'c')); at++) {
        bool begins = at == s || !(isalnum((unsigned char)at[-1]) || at[-1] == '_' ||
                                   at[-1] == '>' || at[-1] == '.');
        if (begins && !isalnum((unsigned char)at[1]) && at[1] != '_')
            return true;
    }
    return false;
}

/* Before the loop over the chunk's elements. */
static void result_begin(Rows *r, int i, int p)
{
    loads(r, r->p->node[i].a, p);
    if (r->p->node[i].kind == R_STORE)
        put(r, "            %s s%d[V];\n", real(r), i);
    else if (sum_is_shared(r, i))
        put(r, "            %s u%d[V];\n            row_load<V>(k%d + c, u%d);\n", real(r), i, i,
            i);
}

static void result_end(Rows *r, int i)
{
    if (r->p->node[i].kind == R_STORE)
        store_chunk(r, i);
    else if (sum_is_shared(r, i))
        put(r, "            row_store<V>(k%d + c, u%d);\n", i, i);
}

static void nothing_done(Rows *r)
{
    for (int i = 0; i < r->p->nnodes; i++)
        r->done[i] = false;
}

static void chunk_body(Rows *r, int p)
{
    int nred = r->sweep ? 0 : r->nred;
    nothing_done(r);
    for (int k = 0; k < nred; k++)
        if (r->red[k].phase == p)
            loads(r, r->red[k].a, p);
    for (int i = 0; i < r->p->nnodes; i++)
        if (is_result(r, i, p))
            result_begin(r, i, p);
    nothing_done(r);
    put(r, "#pragma unroll\n            for (int j = 0; j < V; j++) {\n");
    for (int k = 0; k < nred; k++)
        if (r->red[k].phase == p) {
            element(r, r->red[k].a, p);
            reduction_step(r, &r->red[k], k);
        }
    for (int i = 0; i < r->p->nnodes; i++) {
        if (!is_result(r, i, p))
            continue;
        element(r, r->p->node[i].a, p);
        if (r->p->node[i].kind == R_STORE)
            put(r, "                s%d[j] = %s;\n", i, name(r, r->p->node[i].a));
        else
            sum_over_rows(r, i);
    }
    put(r, "            }\n");
    keep_chunk(r, p);
    for (int i = 0; i < r->p->nnodes; i++)
        if (is_result(r, i, p))
            result_end(r, i);
}

/* Are the items walked once for each tile of columns, `first` being its first? */
static bool in_tiles(const Rows *r)
{
    return (r->sweep || !r->nred) && r->h->tile && r->h->tile < r->E;
}

/* Arrays in registers have constant indices: their loops are unrolled. */
static bool names_array(const char *s) { return strstr(s, "[e + j]") || strstr(s, " + e"); }

/* Does phase p read vectors, for the first time, that registers have no room for? */
static bool reads_vectors(const Rows *r, int p)
{
    for (int i = 0; i < r->p->nnodes; i++)
        if (r->p->node[i].kind == R_LOADVEC && r->h->place[i] == IN_MEMORY && r->h->seen[i] == p)
            return true;
    return false;
}

/* Are a row's own numbers all on chip in phase p? */
static bool finds_all(const Rows *r, int p)
{
    for (int i = 0; i < r->p->nnodes; i++)
        if (r->p->node[i].kind == R_LOAD && r->h->in_phase[i] >> p & 1 &&
            (r->h->seen[i] == p || !is_kept(r, i)))
            return false;
    return true;
}

static void column_loop(Rows *r, int p)
{
    int each = in_tiles(r) ? r->h->tile : r->E, chunks = each / r->h->vec;
    bool whole = r->pw % ((int64_t)r->h->group * each) == 0;
    Text body = { 0 }, *out = r->out;
    r->out = &body;
    chunk_body(r, p);
    r->out = out;
    bool unrolled = chunks <= UNROLL || names_array(body.at);
    bool again = unrolled && (p > 0 || reads_vectors(r, p));
    bool column = !whole || names_column(body.at);
    // What an earlier phase, or row, has read must not be kept by the compiler instead.
    if (again && column)
        put(r, "        const int lane%d = %s(lane);\n", p, p ? "opaque" : "next_row");
    put(r, unrolled ? "#pragma unroll\n" : "#pragma unroll %d\n", UNROLL);
    put(r, "        for (int e = 0; e < %d; e += V) {\n", each);
    if (again && chunks > 1 && finds_all(r, p))
        put(r, "            in_turn();\n");
    if (column)
        put(r, "            const int c = %s(e / V * G + lane%s) * V;\n",
            in_tiles(r) ? "first + " : "", again ? str_fmt("%d", p) : "");
    if (!whole)
        put(r, "            if (%sc >= %" PRId64 ")\n                break;\n",
            unrolled && !in_tiles(r) && chunks > 1
                ? str_fmt("e == %d && ", each - r->h->vec) : "", r->pw);
    put(r, "%s        }\n", body.at);
}

static void phase(Rows *r, int p)
{
    scalars(r, p);
    for (int k = 0; k < r->nred; k++)
        if (r->red[k].phase == p)
            reduction_begin(r, &r->red[k], k);
    if (has_loop(r, p))
        column_loop(r, p);
    for (int k = 0; k < r->nred; k++)
        if (r->red[k].phase == p)
            reduction_end(r, &r->red[k], k);
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        const RowArg *a = &r->p->arg[n->arg];
        if (n->kind == R_STOREPART && r->h->levels.level[i] == p)
            put(r, "        if (lane == 0)\n            narrow_store(a%d + %s, %s);\n", n->arg,
                item_at(r, a->ld, a->stride), name(r, n->a));
    }
}

/* ---- the kernel --------------------------------------------------------------------------- */

static const char *storage(const Rows *r, const RowArg *a)
{
    return a->bf16 ? "__nv_bfloat16" : real(r);
}

static void parameters(Rows *r, const char *const *what)
{
    for (int i = 0; i < r->p->nargs; i++) {
        const RowArg *a = &r->p->arg[i];
        const char *type = str_fmt("%s%s *__restrict__ a%d,", a->is_out ? "" : "const ",
                                   storage(r, a), i);
        put(r, "%-40s  // %s\n    ", type, what[i]);
    }
    put(r, "int64_t rows");
    if (r->p->needs_colmap)
        put(r, ", const int32_t *__restrict__ column");
    if (r->p->needs_rowmap)
        put(r, ", const int64_t *__restrict__ row_token,\n    uint64_t seed, uint32_t step, "
            "uint32_t evaluate");
    for (int i = 0; i < r->p->nsalts; i++)
        put(r, ", uint32_t salt%d", i);
}

/* The block's row of each sum over rows starts at zero. */
static void clear_sums(Rows *r)
{
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        if (n->kind == R_COLSUM)
            put(r, "    colsum_zero(%" PRId64 ", a%d + blockIdx.x * (int64_t)%" PRId64 ");\n",
                r->p->arg[n->arg].length, n->arg, r->p->arg[n->arg].length);
    }
}

static void sums_begin(Rows *r)
{
    for (int i = 0; i < r->p->nnodes; i++)
        if (sum_is_shared(r, i))
            put(r, "    for (int c = lane * V; c < %" PRId64 "; c += G * V)\n"
                "        for (int j = 0; j < V; j++)\n            k%d[c + j] = 0;\n", r->pw, i);
        else if (cuda_rows_sum_stays(r->p, i))
            put(r, "    %s k%d[%d] = { 0 };\n", real(r), i, in_tiles(r) ? r->h->tile : r->E);
}

static void sums_end(Rows *r)
{
    for (int i = 0; i < r->p->nnodes; i++) {
        if (!cuda_rows_sum_stays(r->p, i))
            continue;
        const RowNode *n = &r->p->node[i];
        int64_t length = r->p->arg[n->arg].length;
        const char *how = sum_is_shared(r, i) ? str_fmt("shared<G>(k%d, ", i)
            : str_fmt("add<G, V>(k%d, %s, ", i, in_tiles(r) ? "first" : "0");
        put(r, "    colsum_%s%" PRId64 ", %" PRId64 ", a%d + blockIdx.x * (int64_t)%" PRId64
            ");\n", how, r->pw, length, n->arg, length);
    }
}

static void shared_memory(Rows *r)
{
    const CudaRows *h = r->h;
    if (r->nred)
        put(r, "    __shared__ %s scratch[32];\n", real(r));
    if (r->any_known)
        put(r, "    __shared__ %s known[%d][%d];    // reductions of a batch of items\n", real(r),
            h->batch, r->nred);
    if (h->shared)
        put(r, "    extern __shared__ __align__(16) unsigned char shared_bytes[];\n");
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        bool sum = sum_is_shared(r, i);
        if (!sum && !(in_chunk(r, i) && h->place[i] == IN_SHARED))
            continue;
        const char *type = sum || n->kind == R_OP ? real(r) : storage(r, &r->p->arg[n->arg]);
        put(r, "    %s *const %c%d = (%s *)(shared_bytes + %" PRId64 ");\n", type,
            sum ? 'k' : 'h', i, type, h->offset[i]);
    }
}

/* An item is the row, where that is in one part. */
static const char *item_word(const Rows *r) { return r->p->parts > 1 ? "item" : "row"; }

static const char *items(const Rows *r)
{
    return r->p->parts > 1 ? str_fmt("rows * %d", r->p->parts) : "rows";
}

static void item_begin(Rows *r)
{
    if (r->p->parts > 1)
        put(r, "        const int64_t row = item / %d, part = item %% %d;\n", r->p->parts,
            r->p->parts);
}

/* All phases of an item. */
static void item(Rows *r)
{
    item_begin(r);
    for (int i = 0; i < r->p->nnodes; i++)
        if (in_array(r, i))
            put(r, "        %s v%d[%d];\n", real(r), i, r->E);
        else if (in_chunk(r, i) && r->h->place[i] == IN_PAIRS)
            put(r, "        unsigned w%d[%d];\n", i, r->E / 2);
    for (int q = 0; q < r->h->levels.nphases; q++)
        phase(r, q);
}

/* What a sweep knows of an item; then its columns once more. */
static void item_again(Rows *r)
{
    item_begin(r);
    for (int k = 0; k < r->nred; k++)
        if (r->known[k])
            put(r, "        const %s v%d = known[turn][%d];\n", real(r), r->red[k].node, k);
    for (int q = 0; q < r->h->levels.nphases; q++)
        scalars(r, q);
    column_loop(r, 0);
}

/* body(r) in a loop, further to the right; "": there is none. */
static void loop(Rows *r, const char *head, void (*body)(Rows *r))
{
    Text inner = { 0 }, *out = r->out;
    if (!*head) {
        body(r);
        return;
    }
    r->out = &inner;
    body(r);
    r->out = out;
    put(r, "    %s {\n", head);
    for (const char *at = inner.at, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        put(r, "%s%.*s\n", *at == '#' ? "" : "    ", (int)(end - at), at);
    }
    put(r, "    }\n");
}

/* Sums of the tile over all items, or over those of the batch. */
static void tile(Rows *r)
{
    bool sums = r->sweep || !r->h->swept;
    if (sums)
        sums_begin(r);
    if (r->h->swept)
        put(r, "    for (int turn = 0; turn < %d && from + turn * groups < %s; turn++) {\n"
            "        const int64_t %s = from + turn * groups;\n", r->h->batch, items(r),
            item_word(r));
    else
        put(r, "    for (int64_t %s = group; %s < %s; %s += groups) {\n", item_word(r),
            item_word(r), items(r), item_word(r));
    if (r->sweep)
        item_again(r);
    else
        item(r);
    put(r, "    }\n");
    if (sums)
        sums_end(r);
}

static void tiles(Rows *r)
{
    loop(r, in_tiles(r) ? str_fmt("for (int first = 0; first < %" PRId64 "; first += G * %d)",
                                  r->pw, r->h->tile) : "", tile);
}

/* Rows, then the same ones for sums over them. */
static void batch(Rows *r)
{
    tiles(r);
    r->sweep = true;
    find_used(r);
    put(r, "    __syncthreads();\n");
    tiles(r);
    put(r, "    __syncthreads();\n");
}

void cuda_rows(Text *out, const char *symbol, const char *const *what,
               const CudaRows *how)
{
    const RowProg *p = how->p;
    Rows r = { .h = how, .p = p, .out = out, .pw = p->width / p->parts, .E = how->each,
               .nred = how->levels.nred, .red = how->levels.red, .scalar = how->levels.scalar };
    r.done = NEWN(bool, p->nnodes);
    r.used = NEWN(bool, p->nnodes);
    find_known(&r);
    // With a least number of blocks the compiler does not spill for the sake of more of them.
    put(&r, "__global__ void __launch_bounds__(%d, %d) %s(\n    ", how->block, how->least, symbol);
    parameters(&r, what);
    put(&r, ")\n{\n    constexpr int G = %d, V = %d;       // threads of an item, neighbours\n"
        "    const int lane = threadIdx.x %% G;\n"
        "    const int64_t group = (int64_t)blockIdx.x * (blockDim.x / G) + threadIdx.x / G;\n"
        "    const int64_t groups = (int64_t)gridDim.x * (blockDim.x / G);\n",
        how->group, how->vec);
    shared_memory(&r);
    clear_sums(&r);
    if (how->swept)
        loop(&r, str_fmt("for (int64_t from = group; from < %s; from += groups * %d)", items(&r),
                         how->batch), batch);
    else
        tiles(&r);
    put(&r, "}\n\n");
}
