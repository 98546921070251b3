/*
 * print.c - the graph and the instructions as text (-d graph, -d partition),
 * and what the printers share: names, counts, traffic of collectives.
 *
 * Everything here only reads the plan, and prints the same text for the same
 * plan. Formulas, with p ranks in a group and n elements of a rank's value:
 *
 *     all_gather      (p-1) n of the part      all_reduce   2 (p-1)/p n
 *     reduce_scatter  (p-1) n of the result    all_to_all   what is not here already
 *     send, recv      n
 */
#include "print.h"

/* ---- names ------------------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Replaces the number `turn` (or, turn unknown, each dotted number) by `*`. */
const char *print_turnless(const char *name, int turn)
{
    static Text t;                  // the same room for every name
    bool found = false;
    t.n = 0;
    text_bytes(&t, name, strlen(name));     // as long at most
    char *out = t.at;
    for (const char *s = name; *s;) {
        if (!is_digit(*s) || (s > name && is_digit(s[-1]))) {
            found &= *s != '+';     // "h.0.q+h.0.k": every name has its turn
            *out++ = *s++;
            continue;
        }
        const char *e = s;
        while (is_digit(*e))
            e++;
        bool dotted = (s == name || s[-1] == '.' || s[-1] == '+') && *e == '.';
        bool is_turn = turn >= 0 ? !found && strtol(s, NULL, 10) == turn : dotted;
        if (is_turn && e - s < 10) {
            *out++ = '*';
            found = true;
        } else
            while (s < e)
                *out++ = *s++;
        s = e;
    }
    return str_of(t.at, (size_t)(out - t.at));
}

const char *print_range(int from, int to)
{
    return from == to ? str_fmt("%d", from) : str_fmt("%d-%d", from, to);
}

const char *print_ranges(const bool *of, int n)
{
    Text t = { 0 };
    for (int r = 0; r < n;) {
        int to = r;
        while (of[r] && to + 1 < n && of[to + 1])
            to++;
        if (of[r])
            text_add(&t, "%s%s", t.n ? ", " : "", print_range(r, to));
        r = to + 1;
    }
    return t.n ? str_of(t.at, t.n) : "-";
}

/* The unit that a value is of, also where it is a range of the parameters' region. */
static UnitId unit_of(const Plan *p, ValueId v)
{
    const Value *x = &p->values.at[v];
    for (int u = 0; x->unit == NONE && x->buffer == THE_PARAMS && u < p->units.n; u++)
        if (p->units.at[u].offset == x->offset && p->units.at[u].shard == x->cols)
            return u;
    return x->unit;
}

int print_turn(const Plan *p, const Inst *i)
{
    if (i->op != NONE)
        return p->ops.at[i->op].turn;
    for (int j = 0; j < i->nin + i->nout; j++) {
        UnitId u = unit_of(p, j < i->nin ? i->in[j] : i->out[j - i->nin]);
        if (u != NONE)
            return p->units.at[u].turn;
    }
    return NONE;
}

const char *print_value_name(const Plan *p, ValueId v)
{
    const Value *x = &p->values.at[v];
    if (x->unit != NONE)
        return p->units.at[x->unit].name;
    if (x->tensor != NONE)
        return p->tensors.at[x->tensor].name;
    return x->buffer == NONE ? "?" : p->buffers.at[x->buffer].name;
}

Axes print_axes(const Plan *p, Axes a, int rep)
{
    Axes all[] = { AX_DATA, AX_X, AX_YK, AX_YR, AX_Z }, kept = a & AX_STAGE;
    for (int i = 0; i < 5; i++)
        if ((a & all[i]) && axes_size(p, all[i], rep) > 1)
            kept |= all[i];
    return kept;
}

static int64_t value_bytes(const Plan *p, ValueId v)
{
    const Value *x = &p->values.at[v];
    DType d = x->buffer == NONE ? D_REAL : p->buffers.at[x->buffer].dtype;
    return x->rows * x->cols * dtype_bytes(p, d);
}

int64_t print_param_bytes(const Plan *p)
{
    return dtype_bytes(p, p->buffers.n > THE_PARAMS ? p->buffers.at[THE_PARAMS].dtype : D_REAL);
}

int64_t print_parameters(const Plan *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->params.n; i++) {
        const Param *w = &p->params.at[i];
        n += (w->kind == PARAM_VECTOR ? 1 : w->rows) * w->width;
    }
    return n;
}

int64_t print_passes(const Plan *p)
{
    int64_t per = (int64_t)p->is.data * p->is.microbatch;
    return per > 0 && p->is.batch > per ? p->is.batch / per : 1;
}

int *print_counts(const Plan *p)
{
    int *of = NEWN(int, p->insts.n + 1), *func = NEWN(int, p->funcs.n + 1);
    for (int i = 0; i < p->calls.n; i++)
        func[p->calls.at[i].func]++;
    for (int k = 0; k < p->funcs.n; k++)
        for (int i = p->funcs.at[k].first; i < p->funcs.at[k].end; i++)
            of[i] = func[k];
    return of;
}

const char *const attention_word[3] = { "local", "gather", "exchange" };
const char *const precision_word[5] = { "fp64", "fp32", "bf16", "fp16", "fp8" };

const char *print_keep(const Choices *is)
{
    return is->keep_inputs ? (is->keep_weights ? "both" : "inputs")
                           : (is->keep_weights ? "weights" : "none");
}

const char *print_partition(const Choices *is)
{
    return is->summa ? str_fmt("summa(%d)", is->summa) : is->x > 1 ? "3d" : is->z > 1 ? "2d" : "1d";
}

const char *print_recompute(const Plan *p)
{
    const PlanSpec *s = &p->config->plan;
    return s->recompute_n > 0 ? str_fmt("full(%" PRId64 ")", s->recompute_n)
         : s->recompute.v ? s->recompute.v : "none";
}

/* Columns of parameter w in a unit, from piece `from` on. */
static int64_t columns_in(const ParamUnit *u, ParamId w, int from)
{
    int64_t cols = 0;
    for (int j = from; j < u->npieces; j++)
        if (u->piece[j].param == w)
            cols += (j + 1 < u->npieces ? u->piece[j + 1].local_start : u->bcols) -
                    u->piece[j].local_start;
    return cols;
}

static ParamHome *homes_of(const Plan *p)
{
    ParamHome *all = NEWN(ParamHome, p->params.n);
    const ParamUnit **last = NEWN(const ParamUnit *, p->params.n);     // seen with this parameter
    for (int u = 0; u < p->units.n; u++) {
        const ParamUnit *unit = &p->units.at[u];
        int64_t ways = axes_size(p, unit->spread, unit->rep);
        for (int j = 0; j < unit->npieces; j++) {
            ParamId w = unit->piece[j].param;
            ParamHome *h = &all[w];
            int64_t cols = last[w] == unit ? 0 : columns_in(unit, w, j);
            last[w] = unit;
            if (cols == 0)
                continue;
            h->unit = h->unit ? h->unit : unit;
            h->rows = unit->brows;
            h->cols += cols;
            h->elements += (unit->brows * cols + ways - 1) / ways;
        }
    }
    return all;
}

ParamHome **print_param_homes(const Plan *p)
{
    ParamHome **all = NEWN(ParamHome *, p->is.stages);
    for (int r = 0; r < p->is.stages; r++)
        all[r] = homes_of(plan_stage(p, r));
    return all;
}

/* ---- traffic ---------------------------------------------------------------- */

/* Part of its own block in the other layout that a rank holds already, on
 * average over the y*z ranks: rank (i, j) keeps the overlap of the i-th of y
 * and the j-th of z parts, of rows and of columns alike. */
static double overlap_ab(const Plan *p)
{
    double y = p->is.y, z = p->is.z, sum = 0;
    for (int i = 0; i < p->is.y; i++)
        for (int j = 0; j < p->is.z; j++) {
            double lo = fmax(i / y, j / z), hi = fmin((i + 1) / y, (j + 1) / z);
            if (hi > lo)
                sum += (hi - lo) * (hi - lo);
        }
    return sum;
}

int64_t print_group(const Plan *p, const Inst *i)
{
    if (i->coll == COLL_SEND || i->coll == COLL_RECV)
        return 2;
    int64_t n = axes_size(p, i->axes, i->rep);
    return i->axes & AX_STAGE ? n * __builtin_popcountll(i->stages) : n;
}

double print_received(const Plan *p, const Inst *i)
{
    double group = (double)print_group(p, i);
    double in = i->nin ? (double)value_bytes(p, i->in[0]) : 0;
    double out = i->nout ? (double)value_bytes(p, i->out[0]) : in;
    switch (i->coll) {
    case COLL_ALL_GATHER:       return (group - 1) * in;
    case COLL_REDUCE_SCATTER:   return (group - 1) * out;
    case COLL_ALL_REDUCE:       return 2 * (group - 1) / group * out;
    case COLL_BROADCAST: case COLL_REDUCE:      // the mean over the group
        return (group - 1) / group * in;
    case COLL_ALL_TO_ALL:
        if (i->a2a == A2A_AB || i->a2a == A2A_BA)
            return in * (1 - overlap_ab(p));
        return in * (group - 1) / group;
    default:                    return out;
    }
}

/* Names are interned. by_size: the first of each has the size of all. */
static bool same_traffic(const Traffic *a, const Traffic *b, bool by_size)
{
    const Inst *x = a->inst, *y = b->inst;
    return x->phase == y->phase && x->coll == y->coll && x->axes == y->axes && x->rep == y->rep &&
           a->name == b->name && a->reason == b->reason &&
           (!by_size || rint(a->bytes) == rint(b->bytes));
}

Traffics print_traffic(const Plan *p, bool by_size)
{
    Traffics all = { 0 };
    const int *counts = print_counts(p);
    for (int i = 0; i < p->insts.n; i++) {
        const Inst *c = &p->insts.at[i];
        if (c->kind != I_COLL)
            continue;
        int turn = print_turn(p, c);
        double bytes = print_received(p, c);
        Traffic t = { .inst = c, .name = print_turnless(c->name, turn), .bytes = bytes,
                      .tensor = print_turnless(print_value_name(p, c->nin ? c->in[0]
                                                                           : c->out[0]), turn),
                      .reason = c->reason ? print_turnless(c->reason, turn) : NULL,
                      .most = bytes, .size = print_group(p, c), .calls = counts[i],
                      .sum = bytes * counts[i] };
        int at = 0;
        while (at < all.n && !same_traffic(&all.at[at], &t, by_size))
            at++;
        if (at == all.n) {
            vec_add(&all, t);
            continue;
        }
        Traffic *same = &all.at[at];
        same->calls += t.calls;
        same->sum += t.sum;
        same->bytes = bytes < same->bytes ? bytes : same->bytes;
        same->most = bytes > same->most ? bytes : same->most;
    }
    return all;
}

/* ---- the graph -------------------------------------------------------------- */

static const char *const phase_word[] = { "forward", "backward", "sync", "optimizer" };

static void print_tensor(const Plan *p, TensorId t, FILE *f)
{
    const Tensor *x = &p->tensors.at[t];
    switch (x->kind) {
    case T_NUMBER: fprintf(f, "%g", x->number); break;
    case T_MATRIX: fprintf(f, "%s[%" PRId64 " x %" PRId64 "]", x->name, x->rows, x->width); break;
    case T_IDS:    fprintf(f, "%s", x->name); break;
    case T_LOSS:   fprintf(f, "loss"); break;
    case T_GRAD:   fprintf(f, "d(%s)", p->params.at[x->param].name); break;
    default:       fprintf(f, "%s#%d[%" PRId64 "]", x->name, t, x->width);
    }
}

static void print_attributes(const Op *o, FILE *f)
{
    if (o->kind == OP_POW || o->kind == OP_DROPOUT)
        fprintf(f, " c=%g", o->c);
    if (o->parts > 1)
        fprintf(f, " parts=%d", o->parts);
    if (o->transposed)
        fprintf(f, " transposed");
    if (o->kind == OP_ATTN || o->kind == OP_ATTN_DX) {
        fprintf(f, " heads=%d", o->heads);
        if (o->kv_heads != o->heads)
            fprintf(f, " kv_heads=%d", o->kv_heads);
        fprintf(f, " scale=%g%s", o->scale, o->causal ? " causal" : "");
        if (o->window > 0)
            fprintf(f, " window=%" PRId64, o->window);
        if (o->softcap > 0)
            fprintf(f, " softcap=%g", o->softcap);
    }
    if (o->kind == OP_ROPE)
        fprintf(f, " heads=%d rotary=%" PRId64 " theta=%g%s%s", o->heads, o->rotary, o->theta,
                o->interleaved ? " interleaved" : "", o->inverse ? " inverse" : "");
}

/* One line per operator: results = word(operands) attributes   # name place */
void print_graph(const Plan *p, FILE *f)
{
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        if (i == 0 || o->phase != p->ops.at[i - 1].phase)
            fprintf(f, "# %s\n", phase_word[o->phase]);
        fprintf(f, "%4d  ", i);
        for (int j = 0; j < o->nout; j++) {
            fprintf(f, "%s", j ? ", " : "");
            print_tensor(p, o->out[j], f);
        }
        fprintf(f, " %s %s(", op_class[o->kind] == C_ACC ? "+=" : "=", op_word[o->kind]);
        for (int j = 0; j < o->nin; j++) {
            fprintf(f, "%s", j ? ", " : "");
            print_tensor(p, o->in[j], f);
        }
        fprintf(f, ")");
        print_attributes(o, f);
        fprintf(f, "    # %s %s\n", o->name, source_where(o->loc));
    }
}

/* ---- the instructions of one rank ------------------------------------------- */

static void print_axis_set(const Plan *p, const char *what, Axes a, int rep, FILE *f)
{
    a = print_axes(p, a, rep);
    if (a == 0)
        return;
    const char *name[] = { "stage", "data", "x", (a & AX_YR) || rep > 1 ? "yk" : "y", "yr", "z" };
    const Axes axis[] = { AX_STAGE, AX_DATA, AX_X, AX_YK, AX_YR, AX_Z };
    char sep = '{';
    fprintf(f, " %s:", what);
    for (int i = 0; i < 6; i++)
        if (a & axis[i]) {
            fprintf(f, "%c%s", sep, name[i]);
            sep = ',';
        }
    fputc('}', f);
}

static void print_value(const Plan *p, ValueId v, FILE *f)
{
    const Value *x = &p->values.at[v];
    fprintf(f, "%s[%" PRId64 "x%" PRId64, print_value_name(p, v), x->rows, x->cols);
    if (x->unit != NONE) {
        const ParamUnit *u = &p->units.at[x->unit];
        print_axis_set(p, "rows", u->row_axis, u->rep, f);
        print_axis_set(p, "cols", u->col_axis, u->rep, f);
        if (!x->whole)
            print_axis_set(p, "spread", u->spread, u->rep, f);
    } else {
        print_axis_set(p, "rows", x->layout.rows, x->layout.rep, f);
        print_axis_set(p, "cols", x->layout.cols, x->layout.rep, f);
        print_axis_set(p, "partial", x->layout.partial, x->layout.rep, f);
    }
    fputc(']', f);
}

static void print_inst(const Plan *p, int i, FILE *f)
{
    const Inst *x = &p->insts.at[i];
    static const char *const phase[] = { "fwd", "bwd", "sync", "opt" };
    fprintf(f, "%5d %-4s %s", i, phase[x->phase],
            x->kind == I_COLL ? coll_word[x->coll] : inst_word[x->kind]);
    if (x->kind == I_COLL)
        print_axis_set(p, "over", x->axes, x->rep, f);
    if (x->kind == I_COLL && (x->coll == COLL_BROADCAST || x->coll == COLL_REDUCE))
        fprintf(f, " %s %d", x->coll == COLL_BROADCAST ? "from" : "to", x->peer);
    fprintf(f, "  %s  ", x->name);
    for (int j = 0; j < x->nin; j++) {
        fprintf(f, "%s", j ? ", " : "");
        print_value(p, x->in[j], f);
        if (x->kind == I_GEMM && (j == 0 ? x->trans_a : x->trans_b))
            fputc('T', f);
    }
    fprintf(f, " %s ", x->accumulate ? "+>" : "->");
    for (int j = 0; j < x->nout; j++) {
        fprintf(f, "%s", j ? ", " : "");
        print_value(p, x->out[j], f);
    }
    if (x->kind == I_COLL && x->reason)
        fprintf(f, "  because %s", x->reason);
    fprintf(f, "  # %s\n", source_where(x->loc));
}

static void print_func(const Plan *p, const Func *x, int calls, FILE *f)
{
    fprintf(f, "# %s", step_word[x->kind]);
    if (p->is.nslices > 1 && x->kind < STEP_SYNC)
        fprintf(f, ", slice %d", x->slice);
    if (p->is.chunks > 1 && x->kind < STEP_SYNC)
        fprintf(f, ", chunk %d", x->chunk);
    fprintf(f, ": %s, %s a step\n", plural(x->end - x->first, "instruction"),
            plural(calls, "call"));
    for (int i = x->first; i < x->end; i++)
        print_inst(p, i, f);
}

/* Of every stage, function by function; one line per instruction: phase, kind, name,
 * operands -> results, reason, place. */
void print_insts(const Plan *p, FILE *f)
{
    for (int r = 0; r < p->is.stages; r++) {
        const Plan *s = plan_stage(p, r);
        int *calls = NEWN(int, s->funcs.n + 1);
        for (int i = 0; i < s->calls.n; i++)
            calls[s->calls.at[i].func]++;
        if (p->is.stages > 1)
            fprintf(f, "# stage %d\n", r);
        for (int i = 0; i < s->funcs.n; i++)
            print_func(s, &s->funcs.at[i], calls[i], f);
    }
}
