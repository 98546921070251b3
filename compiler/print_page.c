/*
 * print_page.c - `teracube plan`: the page a person reads at a glance, then the
 * tables behind it, then the resolved plan block, which can be pasted back.
 *
 * Bytes of collectives are those that one rank receives. The step is predicted where
 * a cluster was given (pipeline.c).
 */
#include "predict.h"
#include "print.h"

static const char *or_dash(const char *s) { return s && *s ? s : "-"; }

static const char *axes_text(const Plan *p, Axes a, int rep)
{
    return or_dash(axes_word(print_axes(p, a, rep), rep));
}

/* "h.*.ln_1: all-gather over y" -> "h.*.ln_1": the kind is said beside it. */
static const char *subject(const char *name)
{
    const char *colon = strstr(name, ": ");
    return colon ? str_of(name, (size_t)(colon - name)) : name;
}

static void heading(FILE *f, const char *title)
{
    fprintf(f, "\n%s\n", title);
}

/* ---- at a glance -------------------------------------------------------------- */

static const char *count_text(int64_t n)
{
    if (n >= 1000000000)
        return str_fmt("%.2f billion", (double)n / 1e9);
    if (n >= 1000000)
        return str_fmt("%.1f million", (double)n / 1e6);
    return str_fmt("%" PRId64, n);
}

static const char *layout_line(const Plan *p)
{
    const Choices *is = &p->is;
    return str_fmt("data %d, cube [%d, %d, %d]", is->data, is->x, is->y, is->z);
}

static void print_traffic_line(const Plan *p, const Traffics *all, FILE *f)
{
    double sum = 0;
    const Traffic *most = NULL;
    for (int i = 0; i < all->n; i++) {
        const Traffic *t = &all->at[i];
        sum += t->bytes * t->calls;
        if (most == NULL || t->bytes * t->calls > most->bytes * most->calls)
            most = t;
    }
    if (most == NULL) {
        fprintf(f, "  traffic   none: one rank has everything\n");
        return;
    }
    fprintf(f, "  traffic   %s received by a rank in a step\n", str_bytes(sum));
    const Inst *c = most->inst;
    fprintf(f, "  largest   %s over %s, %s in %d call%s: %s (%s)\n", coll_word[c->coll],
            axes_text(p, c->axes, c->rep), str_bytes(most->bytes * most->calls), most->calls,
            most->calls > 1 ? "s" : "", subject(most->name), source_where(c->loc));
}

static void print_glance(const Plan *p, const Traffics *all, FILE *f)
{
    const Choices *is = &p->is;
    int ranks = plan_ranks(p);
    Peak peak = print_peak(p);
    fprintf(f, "%s: %s on %d rank%s, %" PRId64 " sequences of %" PRId64 " tokens in a step\n",
            p->model_name ? p->model_name : "model", layout_line(p), ranks, ranks > 1 ? "s" : "",
            is->batch, is->sequence);
    fprintf(f, "  model     %s parameters, %d turns, %s\n", count_text(print_parameters(p)),
            p->layers, is->precision == PREC_FP64 ? "fp64" : is->precision == PREC_FP32 ? "fp32"
            : is->precision == PREC_BF16 ? "bf16" : "16 bits or fewer");
    fprintf(f, "  memory    %s a rank at its peak", str_bytes((double)p->block_bytes));
    if (ranks > 1)
        fprintf(f, ", %s together", str_bytes((double)p->block_bytes * ranks));
    if (peak.at < p->insts.n)
        fprintf(f, "; most in %s (%s)", p->insts.at[peak.at].name,
                source_where(p->insts.at[peak.at].loc));
    fprintf(f, "\n");
    print_traffic_line(p, all, f);
    const Pipeline *q = p->pipeline;
    if (q)
        fprintf(f, "  step      %s predicted, %.4g tokens/s, mfu %.1f %%; compute %s, x %s, y %s, "
                "z %s, data %s, optimizer %s\n", str_seconds(q->sim.step_s),
                q->tokens / q->sim.step_s, 100 * q->mfu, str_seconds(q->sim.part[PART_COMPUTE]),
                str_seconds(q->sim.part[PART_X]), str_seconds(q->sim.part[PART_Y]),
                str_seconds(q->sim.part[PART_Z]), str_seconds(q->sim.part[PART_DATA]),
                str_seconds(q->sim.part[PART_OPTIMIZER]));
    if (is->refused)
        fprintf(f, "  note      %s: checked, but not laid out in this version\n", is->refused);
}

/* ---- what each axis costs ------------------------------------------------------ */

enum { SHOWN_KINDS = COLL_ALL_TO_ALL + 1 };

static void print_axis_costs(const Plan *p, const Traffics *all, FILE *f)
{
    if (all->n == 0)
        return;
    heading(f, "what each axis costs: bytes received by a rank in a step, and calls");
    fprintf(f, "  %-12s %5s", "axis", "size");
    for (int k = 0; k < SHOWN_KINDS; k++)
        fprintf(f, "  %18s", coll_word[k]);
    fprintf(f, "  %10s\n", "together");
    bool *done = NEWN(bool, all->n);
    for (int i = 0; i < all->n; i++) {
        if (done[i])
            continue;
        const Inst *c = all->at[i].inst;
        double bytes[COLL_COUNT] = { 0 }, sum = 0;
        int calls[COLL_COUNT] = { 0 };
        for (int j = i; j < all->n; j++) {
            const Inst *d = all->at[j].inst;
            if (d->axes != c->axes || d->rep != c->rep)
                continue;
            done[j] = true;
            bytes[d->coll] += all->at[j].bytes * all->at[j].calls;
            calls[d->coll] += all->at[j].calls;
            sum += all->at[j].bytes * all->at[j].calls;
        }
        fprintf(f, "  %-12s %5" PRId64, axes_text(p, c->axes, c->rep), all->at[i].size);
        for (int k = 0; k < SHOWN_KINDS; k++)
            fprintf(f, "  %18s", calls[k] == 0 ? "-"
                    : str_fmt("%s in %d", str_bytes(bytes[k]), calls[k]));
        fprintf(f, "  %10s\n", str_bytes(sum));
    }
}

/* ---- layouts and choices -------------------------------------------------------- */

static void print_layouts(const Plan *p, FILE *f)
{
    int64_t T = p->is.T;
    heading(f, "layouts");
    fprintf(f, "  %-34s %-12s %-12s %s\n", "tensor", "rows by", "columns by", "rows on a rank");
    fprintf(f, "  %-34s %-12s %-12s %" PRId64 " of %" PRId64 " tokens\n", "A  residual stream",
            axes_text(p, AX_X | AX_YK, 1), axes_text(p, AX_Z, 1), T / p->is.x / p->is.y, T);
    fprintf(f, "  %-34s %-12s %-12s %" PRId64 " of %" PRId64 " tokens\n",
            "B  inside a pair of linears", axes_text(p, AX_X | AX_Z, 1), axes_text(p, AX_YK, 1),
            T / p->is.x / p->is.z, T);
    fprintf(f, "  %-34s %-12s %s\n", "matrices entered in A",
            axes_text(p, AX_Z, 1), axes_text(p, AX_YK, 1));
    fprintf(f, "  %-34s %-12s %s\n", "matrices entered in B, tables",
            axes_text(p, AX_YK, 1), axes_text(p, AX_Z, 1));
    if (p->is.x > 1)
        fprintf(f, "  a matrix's block on a rank, flattened, is spread over x\n");
}

static const char *const attention_word[] = { "local", "gather", "exchange" };

static const char *keep_word(const Choices *is)
{
    return is->keep_inputs ? (is->keep_weights ? "both" : "inputs")
                           : (is->keep_weights ? "weights" : "none");
}

static void print_choice(FILE *f, const char *what, const char *why)
{
    if (why && *why)
        fprintf(f, "  %-24s %s\n", what, why);
}

static void print_choices(const Plan *p, FILE *f)
{
    const Choices *is = &p->is;
    heading(f, "choices");
    print_choice(f, str_fmt("attention = %s", attention_word[is->attention]), is->attention_why);
    print_choice(f, str_fmt("keep = %s", keep_word(is)), is->keep_why);
    print_choice(f, str_fmt("vectors = %s", is->shard_vectors ? "sharded" : "whole"),
                 is->vectors_why);
    for (int u = 0; u < p->units.n; u++) {
        const ParamUnit *unit = &p->units.at[u];
        int64_t pad = unit->pad_rows ? unit->pad_rows : unit->pad_cols;
        int64_t have = unit->npieces == 0 ? pad
            : unit->pad_rows ? p->params.at[unit->piece[0].param].rows
                             : p->params.at[unit->piece[0].param].width;
        if (pad > have)
            print_choice(f, "vocab-pads", str_fmt("%s: %" PRId64 " padded to %" PRId64
                         ", a multiple of y; masked, never stored", unit->name, have, pad));
    }
}

/* ---- parameters ------------------------------------------------------------------ */

typedef struct { const char *line; int count; double bytes; } Row;

static void print_parameters_table(const Plan *p, FILE *f)
{
    VEC(Row) rows = { 0 };
    Map *seen = map_new();
    for (int i = 0; i < p->params.n; i++) {
        const Param *w = &p->params.at[i];
        ParamHome h = print_param_home(p, i);
        if (h.unit == NULL)
            continue;
        const ParamUnit *u = h.unit;
        double bytes = (double)h.elements * (double)print_real_bytes(p);
        const char *shape = w->kind == PARAM_VECTOR ? str_fmt("%" PRId64, w->width)
            : str_fmt("%" PRId64 " x %" PRId64, w->rows, w->width);
        const char *line = str_fmt("  %-44s %-14s %-8s %-10s %-8s %-8s %10s",
            w->turn == NONE ? w->name : print_turnless(w->name, w->turn), shape,
            axes_text(p, u->row_axis, u->rep), axes_text(p, u->col_axis, u->rep),
            axes_text(p, u->spread, u->rep), axes_text(p, u->repl, u->rep), str_bytes(bytes));
        int at = map_get(seen, line);
        if (at >= 0) {
            rows.at[at].count++;
            continue;
        }
        map_put(seen, line, rows.n);
        Row row = { line, 1, bytes };
        vec_add(&rows, row);
    }
    heading(f, "tensors");
    fprintf(f, "  %-44s %-14s %-8s %-10s %-8s %-8s %10s  %s\n", "parameter", "shape", "rows by",
            "columns by", "spread", "kept by", "on a rank", "times");
    for (int i = 0; i < rows.n; i++)
        fprintf(f, "%s  %d\n", rows.at[i].line, rows.at[i].count);
}

/* ---- collectives ----------------------------------------------------------------- */

static void print_collectives(const Plan *p, const Traffics *all, FILE *f)
{
    static const char *const phase[] = { "forward", "backward", "gradients", "optimizer" };
    if (all->n == 0)
        return;
    heading(f, "collectives: bytes received by a rank in a call, and calls in a step");
    for (int ph = 0; ph < 4; ph++) {
        bool any = false;
        for (int i = 0; i < all->n; i++) {
            const Traffic *t = &all->at[i];
            const Inst *c = t->inst;
            if ((int)c->phase != ph)
                continue;
            if (!any)
                fprintf(f, "  %s\n", phase[ph]);
            any = true;
            fprintf(f, "    %-14s %-8s %3" PRId64 " ranks %10s x %-4d %s (%s)\n",
                    coll_word[c->coll], axes_text(p, c->axes, c->rep), t->size,
                    str_bytes(t->bytes), t->calls, subject(t->name), source_where(c->loc));
            if (t->reason && (i == 0 || t->reason != all->at[i - 1].reason))
                fprintf(f, "      %s\n", t->reason);
        }
    }
}

/* ---- memory ---------------------------------------------------------------------- */

static void print_memory(const Plan *p, FILE *f)
{
    Peak peak = print_peak(p);
    heading(f, "memory of a rank, by class, when the most is alive");
    for (int c = 0; c < BUF_CLASSES; c++)
        if (peak.bytes[c] > 0)
            fprintf(f, "  %-14s %12s\n", buf_class_word[c], str_bytes((double)peak.bytes[c]));
    if (p->block_bytes > peak.sum)
        fprintf(f, "  %-14s %12s\n", "gaps", str_bytes((double)(p->block_bytes - peak.sum)));
    fprintf(f, "  %-14s %12s  %" PRId64 " bytes, one block\n", "peak",
            str_bytes((double)p->block_bytes), p->block_bytes);
    if (p->is.room_what)
        fprintf(f, "  %-14s %12s  %s\n", "free",
                str_bytes((double)(p->is.room_bytes - p->block_bytes)), p->is.room_what);
}

/* ---- the plan block --------------------------------------------------------------- */

static void print_block(const Plan *p, FILE *f)
{
    const Choices *is = &p->is;
    const PlanSpec *s = &p->config->plan;
    fprintf(f, "\nplan {\n");
    fprintf(f, "    data         = %d\n", is->data);
    fprintf(f, "    pipeline     = %d\n", is->stages);
    fprintf(f, "    chunks       = %d\n", s->chunks.set ? (int)s->chunks.v : 1);
    fprintf(f, "    cube         = [%d, %d, %d]\n", is->x, is->y, is->z);
    fprintf(f, "    microbatch   = %" PRId64 "\n", is->microbatch);
    if (s->slices_kind == SLICES_LIST && s->slices.n > 0) {
        fprintf(f, "    slices       = [");
        for (int i = 0; i < s->slices.n; i++)
            fprintf(f, "%s%" PRId64, i ? ", " : "", s->slices.at[i]);
        fprintf(f, "]\n");
    } else
        fprintf(f, "    slices       = uniform(%" PRId64 ")\n",
                s->slices_kind == SLICES_UNIFORM ? s->slices_n : 1);
    fprintf(f, "    schedule     = %s\n", s->schedule.v ? s->schedule.v : "1f1b");
    if (s->recompute_n > 0)
        fprintf(f, "    recompute    = full(%" PRId64 ")\n", s->recompute_n);
    else
        fprintf(f, "    recompute    = %s\n", s->recompute.v ? s->recompute.v : "none");
    fprintf(f, "    zero         = %d\n", is->zero);
    if (s->ranks.n == 5) {
        fprintf(f, "    ranks        = [");
        for (int i = 0; i < 5; i++)
            fprintf(f, "%s%s", i ? ", " : "", s->ranks.at[i]);
        fprintf(f, "]\n");
    }
    fprintf(f, "    attention    = %s\n", attention_word[is->attention]);
    fprintf(f, "    rows         = %s\n", is->balanced ? "balanced" : "plain");
    fprintf(f, "    keep         = %s\n", keep_word(is));
    fprintf(f, "    vectors      = %s\n", is->shard_vectors ? "sharded" : "whole");
    fprintf(f, "    logits_chunk = %" PRId64 "\n", is->logits_chunk);
    fprintf(f, "}\n");
}

void print_page(const Plan *p, FILE *f)
{
    Traffics all = print_traffic(p);
    print_glance(p, &all, f);
    print_axis_costs(p, &all, f);
    print_layouts(p, f);
    print_choices(p, f);
    print_parameters_table(p, f);
    print_collectives(p, &all, f);
    print_memory(p, f);
    print_block(p, f);
}
