/*
 * emit_cuda_rows.c - a row program (plan.h) as the text of one CUDA kernel.
 *
 * An item is one part of one row. A group of threads, a warp or a block, takes an
 * item: column c belongs to thread (c / V) % G, so that V neighbours make one access
 * of 16 bytes and a row is read and written once. What a phase needs again later
 * stays in registers, E numbers a thread:
 *
 *     phase p    loads, arithmetic, partial results of the reductions of level p
 *                shuffles (and shared memory, where the group is a block)
 *     phase p+1  reads them as scalars
 *
 * Levels are those of rowlevels.c. A value that needs a costly function, or
 * a load, is kept for later phases; anything else is computed again. Sums over rows
 * (R_COLSUM) are kept over all items of a group, then added up in the block's row of the
 * scratch matrix. Functions are those of templates/cuda/rows.cuh.
 */
#include <ctype.h>

#include "emit_cuda.h"

enum { WARP = 32, BLOCK = 256, WIDE_BLOCK = 512 };

typedef struct {
    const RowProg *p;
    Text *out;
    CudaRows how;
    int64_t pw; int E;
    int nphases, nred;
    RowReduction *red;
    int *level, *seen, *kept;       // kept: last phase that reads it again, NONE
    bool *scalar, *done, *used;     // done: named in the present scope; used: by a result
    int phase;
} Rows;

/* ---- analysis -------------------------------------------------------------------- */

/* Marks what a result is made of. */
static void use(Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    if (r->used[i])
        return;
    r->used[i] = true;
    bool leaf = n->kind < R_OP || (n->kind == R_OP && n->op == OP_COLUMN);
    if (!leaf && n->a >= 0)
        use(r, n->a);
    if (!leaf && n->b >= 0 && n->kind != R_M2 && !(n->kind == R_OP && n->op == OP_SPREAD))
        use(r, n->b);
}

/* Is the node's value in memory or costly, so that a later phase finds it in registers? */
static bool keeps(const Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    bool wide_load = n->kind == R_LOAD && !r->scalar[i];
    return !r->scalar[i] && (wide_load || n->kind == R_LOADVEC || row_costly(n));
}

/* Marks what phase p evaluates for node i. */
static void visit(Rows *r, int i, int p)
{
    const RowNode *n = &r->p->node[i];
    if (r->scalar[i])
        return;
    if (r->seen[i] != NONE && r->seen[i] < p && keeps(r, i)) {
        r->kept[i] = p;
        return;
    }
    if (r->seen[i] == NONE)
        r->seen[i] = p;
    if (n->kind != R_OP || n->op == OP_COLUMN)
        return;
    visit(r, n->a, p);
    if (n->b >= 0 && n->op != OP_SPREAD)
        visit(r, n->b, p);
}

static bool is_store(RowNodeKind k) { return k == R_STORE || k == R_STOREPART || k == R_COLSUM; }

static void find_kept(Rows *r)
{
    for (int i = 0; i < r->p->nnodes; i++)
        if (is_store(r->p->node[i].kind))
            use(r, r->p->node[i].a);
    for (int p = 0; p < r->nphases; p++) {
        for (int i = 0; i < r->nred; i++)
            if (r->red[i].phase == p)
                visit(r, r->red[i].a, p);
        for (int i = 0; i < r->p->nnodes; i++)
            if (is_store(r->p->node[i].kind) && r->level[i] == p &&
                r->p->node[i].kind != R_STOREPART)
                visit(r, r->p->node[i].a, p);
    }
}

/* ---- text of values ----------------------------------------------------------------- */

#define put(r, ...) text_add((r)->out, __VA_ARGS__)

static const char *real(const Rows *r) { return r->how.is_double ? "double" : "float"; }

static const char *constant(const Rows *r, double c)
{
    if (!r->how.is_double)
        c = (float)c;                       // what is too large or too small, nvcc warns of
    if (isinf(c))
        return c > 0 ? "INFINITY" : "-INFINITY";
    const char *digits = str_fmt(r->how.is_double ? "%.17g" : "%.9g", c);
    bool dot = strpbrk(digits, ".e") != NULL;
    return str_fmt("%s%s%s", digits, dot ? "" : ".0", r->how.is_double ? "" : "f");
}

/* The name of node i's value where it is used: a register, an array's element, a scalar. */
static const char *name(const Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    if (n->kind == R_NUMBER)
        return constant(r, n->c);
    if (!r->scalar[i] && keeps(r, i) && r->kept[i] != NONE)
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
        return str_fmt("dropout(%s, dropout_word(seed, step, %uu, row_token[row], "
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
        if (r->scalar[i] && r->used[i] && r->level[i] == phase && !row_is_reduction(n->kind) &&
            n->kind != R_NUMBER)
            scalar_text(r, i);
    }
}

/* ---- loads: V neighbours at once ------------------------------------------------------ */

static bool is_plain(const RowArg *a) { return a->stride == 1 && a->per <= 1; }

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
    bool keep = r->kept[i] != NONE;
    const char *to = keep ? str_fmt("v%d + e", i) : str_fmt("t%d", i);
    bool wraps = a->is_vector && a->length != r->pw && a->length != r->p->width;
    if (!keep)
        put(r, "            %s t%d[V];\n", real(r), i);
    if (is_plain(a) && !wraps) {
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

/* Loads that phase p needs and does not find in registers. */
static void loads(Rows *r, int i, int p)
{
    const RowNode *n = &r->p->node[i];
    if (r->scalar[i] || r->done[i] || (r->seen[i] < p && keeps(r, i)))
        return;
    if (n->kind == R_LOAD || n->kind == R_LOADVEC) {
        load_chunk(r, i);
        r->done[i] = true;
    } else if (n->kind == R_OP && n->op != OP_COLUMN) {
        loads(r, n->a, p);
        if (n->b >= 0 && n->op != OP_SPREAD)
            loads(r, n->b, p);
    }
}

/* Element code of node i: operands first. */
static void element(Rows *r, int i, int p)
{
    const RowNode *n = &r->p->node[i];
    bool loaded = n->kind == R_LOAD || n->kind == R_LOADVEC;
    if (r->scalar[i] || r->done[i] || (r->seen[i] < p && keeps(r, i)))
        return;
    r->done[i] = true;
    if (loaded) {
        if (r->kept[i] == NONE)
            put(r, "                const %s v%d = t%d[j];\n", real(r), i, i);
        return;
    }
    if (n->op != OP_COLUMN) {
        element(r, n->a, p);
        if (n->b >= 0 && n->op != OP_SPREAD)
            element(r, n->b, p);
    }
    bool keep = keeps(r, i) && r->kept[i] != NONE;
    put(r, "                %s%s = %s;\n", keep ? "" : str_fmt("const %s ", real(r)), name(r, i),
        op_text(r, n));
}

/* ---- phases ---------------------------------------------------------------------------- */

static void reduction_begin(Rows *r, const RowReduction *d, int k)
{
    const char *nowhere = constant(r, r->how.is_double ? 1e300 : 1e30);
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

/* May a thread keep its columns' sums over all items? Else they go to memory at once. */
static bool sums_stay(const RowProg *p, int64_t length)
{
    return p->parts == 1 || length == p->width / p->parts;
}

static void sum_over_rows(Rows *r, int i)
{
    const RowNode *n = &r->p->node[i];
    const RowArg *a = &r->p->arg[n->arg];
    if (sums_stay(r->p, a->length))
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
        if ((r->p->node[i].kind == R_STORE || r->p->node[i].kind == R_COLSUM) && r->level[i] == p)
            return true;
    return false;
}

static bool in_phase(const Rows *r, int i, int p)
{
    RowNodeKind k = r->p->node[i].kind;
    return (k == R_STORE || k == R_COLSUM) && r->level[i] == p;
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

static void chunk_body(Rows *r, int p)
{
    memset(r->done, 0, sizeof *r->done * (size_t)r->p->nnodes);
    for (int k = 0; k < r->nred; k++)
        if (r->red[k].phase == p)
            loads(r, r->red[k].a, p);
    for (int i = 0; i < r->p->nnodes; i++)
        if (in_phase(r, i, p)) {
            loads(r, r->p->node[i].a, p);
            if (r->p->node[i].kind == R_STORE)
                put(r, "            %s s%d[V];\n", real(r), i);
        }
    memset(r->done, 0, sizeof *r->done * (size_t)r->p->nnodes);
    put(r, "#pragma unroll\n            for (int j = 0; j < V; j++) {\n");
    for (int k = 0; k < r->nred; k++)
        if (r->red[k].phase == p) {
            element(r, r->red[k].a, p);
            reduction_step(r, &r->red[k], k);
        }
    for (int i = 0; i < r->p->nnodes; i++) {
        if (!in_phase(r, i, p))
            continue;
        element(r, r->p->node[i].a, p);
        if (r->p->node[i].kind == R_STORE)
            put(r, "                s%d[j] = %s;\n", i, name(r, r->p->node[i].a));
        else
            sum_over_rows(r, i);
    }
    put(r, "            }\n");
    for (int i = 0; i < r->p->nnodes; i++)
        if (in_phase(r, i, p) && r->p->node[i].kind == R_STORE)
            store_chunk(r, i);
}

static void column_loop(Rows *r, int p)
{
    bool whole = r->pw == (int64_t)r->how.group * r->E;
    Text body = { 0 }, *out = r->out;
    r->out = &body;
    chunk_body(r, p);
    r->out = out;
    put(r, "#pragma unroll\n        for (int e = 0; e < %d; e += V) {\n", r->E);
    if (!whole || names_column(body.at))
        put(r, "            const int c = (e / V * G + lane) * V;\n");
    if (!whole)
        put(r, "            if (c >= %" PRId64 ")\n                break;\n", r->pw);
    put(r, "%s        }\n", body.at);
}

static void phase(Rows *r, int p)
{
    r->phase = p;
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
        if (n->kind == R_STOREPART && r->level[i] == p)
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
}

/* Sums over rows start at zero; those in registers are written behind the last item. */
static void column_sums(Rows *r, bool end)
{
    for (int i = 0; i < r->p->nnodes; i++) {
        const RowNode *n = &r->p->node[i];
        if (n->kind != R_COLSUM)
            continue;
        const RowArg *a = &r->p->arg[n->arg];
        bool stay = sums_stay(r->p, a->length);
        if (stay && !end)
            put(r, "    %s k%d[%d] = { 0 };\n", real(r), i, r->E);
        else if (!stay && !end)
            put(r, "    for (int c = threadIdx.x; c < %" PRId64 "; c += blockDim.x)\n"
                "        a%d[blockIdx.x * (int64_t)%" PRId64 " + c] = 0;\n    __syncthreads();\n",
                a->length, n->arg, a->length);
        else if (stay)
            put(r, "    colsum_partial<G, V>(k%d, %" PRId64 ", %" PRId64
                ", a%d + blockIdx.x * (int64_t)%" PRId64 ");\n", i, r->pw, a->length, n->arg,
                a->length);
    }
}

bool cuda_rows_wide(const RowProg *p, int arg)
{
    int64_t pw = p->width / p->parts;
    const RowArg *a = &p->arg[arg];
    for (int i = 0; i < p->nnodes; i++) {
        const RowNode *n = &p->node[i];
        bool moves = n->kind == R_LOAD || n->kind == R_STORE || n->kind == R_LOADVEC;
        if (moves && n->arg == arg && is_plain(a) && !(a->is_vector && a->length % pw))
            return true;
    }
    return false;
}

static bool aligned(const RowProg *p, int64_t pw, int v)
{
    if (pw % v)
        return false;
    for (int i = 0; i < p->nargs; i++)
        if (cuda_rows_wide(p, i) && !p->arg[i].is_vector && p->arg[i].ld % v)
            return false;
    return true;
}

CudaRows cuda_rows_how(const RowProg *p, bool is_double, int aligned_to)
{
    CudaRows h = { .is_double = is_double, .vec = is_double ? 2 : 4 };
    int64_t pw = p->width / p->parts;
    for (int i = 0; i < p->nargs && h.vec == 4; i++)
        if (p->arg[i].bf16)
            h.vec = 8;
    while (h.vec > 1 && (h.vec > aligned_to || !aligned(p, pw, h.vec)))
        h.vec /= 2;
    bool shared = false;        // sums of several parts in one row of scratch: an item a block
    bool sums = false;          // sums stay in registers: fewer columns a thread
    for (int i = 0; i < p->nnodes; i++) {
        sums |= p->node[i].kind == R_COLSUM;
        shared |= p->node[i].kind == R_COLSUM && !sums_stay(p, p->arg[p->node[i].arg].length);
    }
    bool narrow = pw <= (sums ? 256 : 1024) && !shared;
    h.group = narrow ? WARP : pw <= 8192 ? BLOCK : WIDE_BLOCK;
    h.block = h.group == WARP ? BLOCK : h.group;
    int64_t chunk = (int64_t)h.group * h.vec;
    h.each = (int)((pw + chunk - 1) / chunk) * h.vec;
    return h;
}

void cuda_rows(Text *out, const RowProg *p, const char *symbol, const char *const *what,
               CudaRows how)
{
    Rows r = { .p = p, .out = out, .how = how, .pw = p->width / p->parts, .E = how.each };
    RowLevels levels = row_levels(p);
    r.level = levels.level;
    r.scalar = levels.scalar;
    r.nphases = levels.nphases;
    r.nred = levels.nred;
    r.red = levels.red;
    r.seen = NEWN(int, p->nnodes);
    r.kept = NEWN(int, p->nnodes);
    r.done = NEWN(bool, p->nnodes);
    r.used = NEWN(bool, p->nnodes);
    for (int i = 0; i < p->nnodes; i++)
        r.seen[i] = r.kept[i] = NONE;
    find_kept(&r);
    // With a least number of blocks the compiler does not spill for the sake of more of them.
    put(&r, "__global__ void __launch_bounds__(%d, %d) %s(\n    ", how.block,
        how.is_double || how.block > BLOCK ? 1 : 2, symbol);
    parameters(&r, what);
    put(&r, ")\n{\n    constexpr int G = %d, V = %d;       // threads of an item, neighbours\n"
        "    const int lane = threadIdx.x %% G;\n"
        "    const int64_t group = (int64_t)blockIdx.x * (blockDim.x / G) + threadIdx.x / G;\n"
        "    const int64_t groups = (int64_t)gridDim.x * (blockDim.x / G);\n", how.group, how.vec);
    if (r.nred)
        put(&r, "    __shared__ %s scratch[32];\n", real(&r));
    column_sums(&r, false);
    if (p->parts == 1)
        put(&r, "    for (int64_t row = group; row < rows; row += groups) {\n");
    else
        put(&r, "    for (int64_t item = group; item < rows * %d; item += groups) {\n"
            "        const int64_t row = item / %d, part = item %% %d;\n", p->parts, p->parts,
            p->parts);
    for (int i = 0; i < p->nnodes; i++)
        if (!r.scalar[i] && keeps(&r, i) && r.kept[i] != NONE)
            put(&r, "        %s v%d[%d];\n", real(&r), i, r.E);
    for (int q = 0; q < r.nphases; q++)
        phase(&r, q);
    put(&r, "    }\n");
    column_sums(&r, true);
    put(&r, "}\n\n");
}
