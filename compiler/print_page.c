/*
 * print_page.c - `teracube plan`: the page a person reads at a glance, then the
 * tables behind it, then the resolved plan block, which can be pasted back.
 *
 * Bytes of collectives are those that one rank receives (of a send: sends). With stages
 * every table says whose it is; neighbours that look the same are one entry, "1-6".
 * The step is predicted where a cluster was given, and for pipelines (pipeline.c).
 */
#include "print.h"

static const char *or_dash(const char *s) { return s && *s ? s : "-"; }

static const char *axes_text(const Plan *p, Axes a, int rep)
{
    return or_dash(axes_word(print_axes(p, a, rep), rep));
}

static bool is_transfer(const Inst *c) { return c->coll == COLL_SEND || c->coll == COLL_RECV; }

static const char *group_text(const Plan *p, const Inst *c)
{
    return is_transfer(c) ? "stage" : axes_text(p, c->axes, c->rep);
}

/* "h.*.ln_1: all-gather over y" -> "h.*.ln_1": the kind is said beside it. */
static const char *subject(const char *name)
{
    const char *colon = strstr(name, ": ");
    return colon ? str_of(name, (size_t)(colon - name)) : name;
}

/* What the tables need of a stage. */
typedef struct { const Plan *p; Traffics traffic; Peak peak; } Stage;
typedef struct { int n; Stage *at; } Stages;

static Stages find_stages(const Plan *p)
{
    Stages all = { p->is.stages, NEWN(Stage, p->is.stages) };
    for (int r = 0; r < all.n; r++) {
        const Plan *s = plan_stage(p, r);
        all.at[r] = (Stage){ s, print_traffic(s, false), print_peak(s) };
    }
    return all;
}

/* ---- at a glance -------------------------------------------------------------- */

static const char *number_text(int64_t n)
{
    if (n >= 1000000000)
        return str_fmt("%.2f billion", (double)n / 1e9);
    if (n >= 1000000)
        return str_fmt("%.1f million", (double)n / 1e6);
    return str_fmt("%" PRId64, n);
}

static double received(const Stage *s)
{
    double sum = 0;
    for (int i = 0; i < s->traffic.n; i++)
        if (s->traffic.at[i].inst->coll != COLL_SEND)
            sum += s->traffic.at[i].sum;
    return sum;
}

/* The family of the cube paper that the grid is of, and what it makes a rank receive. */
static void print_family(const Stage *s, FILE *f)
{
    const Choices *is = &s->p->is;
    double sum = 0;
    for (int i = 0; i < s->traffic.n; i++) {
        const Inst *c = s->traffic.at[i].inst;
        if (c->coll != COLL_SEND && !(c->axes & (AX_DATA | AX_STAGE)))
            sum += s->traffic.at[i].sum;
    }
    if (is->x * is->y * is->z == 1)
        return;
    const char *rest = is->y == 1 ? is->z == 1 ? "" : " and z" : is->z == 1 ? " and y"
                                                                           : ", y and z";
    const char *what = is->summa ? "products by broadcasts of blocks"
        : is->x == 1 && is->z == 1 ? "matrices split over y alone, Megatron's"
        : is->x == 1 ? is->y == 1 ? "matrices split over z" : "matrices split over y and z"
        : !*rest ? "matrices spread over x alone, as FSDP has them"
        : str_fmt("matrices spread over x%s", rest);
    fprintf(f, "  family    %s: %s; %s received over the cube in a step\n", print_partition(is),
            what, str_bytes(sum));
}

static void print_traffic_line(const Stages *all, FILE *f)
{
    const Stage *s = &all->at[0];
    const Traffic *most = NULL;
    for (int r = 1; r < all->n; r++)
        if (received(&all->at[r]) > received(s))
            s = &all->at[r];
    for (int i = 0; i < s->traffic.n; i++) {
        const Traffic *t = &s->traffic.at[i];
        if (t->inst->coll != COLL_SEND && (most == NULL || t->sum > most->sum))
            most = t;
    }
    if (most == NULL) {
        fprintf(f, "  traffic   none: one rank has everything\n");
        return;
    }
    fprintf(f, "  traffic   %s received by a rank%s in a step\n", str_bytes(received(s)),
            all->n > 1 ? str_fmt(" of stage %d", s->p->stage) : "");
    print_family(s, f);
    const Inst *c = most->inst;
    fprintf(f, "  largest   %s over %s, %s in %s: %s (%s)\n", coll_word[c->coll],
            group_text(s->p, c), str_bytes(most->sum), plural(most->calls, "call"),
            subject(most->name), source_where(c->loc));
}

static void print_memory_line(const Plan *p, const Stages *all, FILE *f)
{
    const Stage *worst = &all->at[0];
    double together = 0;
    int each = plan_ranks(p) / all->n;
    for (int r = 0; r < all->n; r++) {
        const Stage *s = &all->at[r];
        together += (double)s->p->block_bytes * each;
        worst = s->p->block_bytes > worst->p->block_bytes ? s : worst;
    }
    const Inst *at = &worst->p->insts.at[worst->peak.at];
    fprintf(f, "  memory    %s a rank%s at its peak", str_bytes((double)worst->p->block_bytes),
            all->n > 1 ? str_fmt(" of stage %d", worst->p->stage) : "");
    if (plan_ranks(p) > 1)
        fprintf(f, ", %s together", str_bytes(together));
    fprintf(f, "; most in %s (%s)\n", at->name, source_where(at->loc));
}

/* The schedule decides how many units are in flight, most of all on the first stage. */
static void print_other_schedule(const Plan *p, FILE *f)
{
    ScheduleKind kind = p->pipeline->schedule.kind;
    ScheduleKind other = kind == SCHEDULE_1F1B ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
    fprintf(f, "  schedule  %s: %s at the peak of stage 0; %s: %s, laid out the same way\n",
            schedule_word[kind], str_bytes((double)p->block_bytes), schedule_word[other],
            str_bytes((double)print_block_under(p, 0, other)));
}

static void print_glance(const Plan *p, const Stages *all, FILE *f)
{
    const Choices *is = &p->is;
    const Pipeline *q = p->pipeline;
    fprintf(f, "%s: %s on %s, %s of %s in a step\n", p->model_name ? p->model_name : "model",
            plan_line(p), plural(plan_ranks(p), "rank"), plural(is->batch, "sequence"),
            plural(is->sequence, "token"));
    fprintf(f, "  model     %s parameters, %s, %s\n", number_text(print_parameters(p)),
            plural(p->layers, "turn"), precision_word[is->precision]);
    if (q && (q->P > 1 || q->feed.k > 1))
        print_feed(q, f);
    if (q)
        print_step(q, f);
    print_memory_line(p, all, f);
    if (all->n > 1)
        print_other_schedule(p, f);
    print_traffic_line(all, f);
}

/* ---- stages --------------------------------------------------------------------- */

static void print_stages(const Stages *all, FILE *f)
{
    const Pipeline *q = all->at[0].p->pipeline;
    Table t = { .align = "llrrrrrl" };
    static const char *const head[] = { "stage", "turns", "forward", "backward", "idle", "units",
                                        "microbatches", "most of its own in" };
    if (all->n == 1 || q == NULL)
        return;
    for (int i = 0; i < 8; i++)
        table_cell(&t, "%s", head[i]);
    for (int r = 0; r < all->n; r++) {
        const Peak *peak = &all->at[r].peak;
        const Plan *s = all->at[r].p;
        const Inst *at = &s->insts.at[peak->at];
        table_cell(&t, "%d", r);
        table_cell(&t, "%s", print_stage_turns(q, r));
        table_cell(&t, "%s", str_seconds(print_longest(q, r, q->timing.forward)));
        table_cell(&t, "%s", str_seconds(print_longest(q, r, q->timing.backward)));
        table_cell(&t, "%.1f%%", 100 * (1 - q->sim.busy[r] / q->sim.step_s));
        table_cell(&t, "%d", peak->units);
        table_cell(&t, "%d", peak->microbatches);
        table_cell(&t, "%s", print_turnless(at->name, print_turn(s, at)));
    }
    print_heading(f, "stages: turns, the longest unit and idle time as predicted, units and "
                     "microbatches in flight");
    table_join(&t);
    table_print(&t, f);
}

/* ---- what each axis costs ------------------------------------------------------ */

static void axis_row(const Stage *s, const Traffic *of, const char *stage, bool *done, Table *t)
{
    double bytes[COLL_COUNT] = { 0 }, sum = 0;
    int64_t calls[COLL_COUNT] = { 0 };
    const char *group = group_text(s->p, of->inst);
    for (int j = 0; j < s->traffic.n; j++) {
        const Traffic *u = &s->traffic.at[j];
        const Inst *d = u->inst;
        if (u->size != of->size || strcmp(group_text(s->p, d), group) != 0)
            continue;
        done[j] = true;
        bytes[d->coll] += u->sum;
        calls[d->coll] += u->calls;
        sum += d->coll == COLL_SEND ? 0 : u->sum;
    }
    table_cell(t, "%s", stage);
    table_cell(t, "%s", group);
    table_cell(t, "%" PRId64, of->size);
    for (int k = 0; k < COLL_COUNT; k++)
        table_cell(t, "%s", calls[k] == 0 ? "-"
                   : str_fmt("%s in %" PRId64, str_bytes(bytes[k]), calls[k]));
    table_cell(t, "%s", str_bytes(sum));
}

static void axis_rows(const Stage *s, const char *stage, Table *t)
{
    bool *done = NEWN(bool, s->traffic.n + 1);
    for (int i = 0; i < s->traffic.n; i++)
        if (!done[i])
            axis_row(s, &s->traffic.at[i], stage, done, t);
}

static bool same_axes(const Stage *a, const Stage *b)
{
    Table x = { 0 }, y = { 0 };
    axis_rows(a, "", &x);
    axis_rows(b, "", &y);
    return x.cells.n == y.cells.n &&
           (x.cells.n == 0 ||
            memcmp(x.cells.at, y.cells.at, sizeof *x.cells.at * (size_t)x.cells.n) == 0);
}

static void print_axis_costs(const Stages *all, FILE *f)
{
    Table t = { .align = "llrrrrrrrrrr" };
    bool any = false;
    table_cell(&t, "stage");
    table_cell(&t, "axis");
    table_cell(&t, "size");
    for (int k = 0; k < COLL_COUNT; k++)
        table_cell(&t, "%s", coll_word[k]);
    table_cell(&t, "together");
    for (int r = 0; r < all->n;) {
        int to = r;
        while (to + 1 < all->n && same_axes(&all->at[r], &all->at[to + 1]))
            to++;
        any |= all->at[r].traffic.n > 0;
        axis_rows(&all->at[r], all->n > 1 ? print_range(r, to) : "-", &t);
        r = to + 1;
    }
    if (!any)
        return;
    print_heading(f, all->n > 1 ? "what each axis costs: bytes received (send: sent) by a rank in "
                  "a step, and calls" : "what each axis costs: bytes received by a rank in a step, "
                  "and calls");
    table_print(&t, f);
}

/* ---- layouts and choices -------------------------------------------------------- */

static void layout_row(const Plan *p, Table *t, const char *what, Axes rows, Axes cols,
                       int64_t ways, int64_t T)
{
    table_cell(t, "%s", what);
    table_cell(t, "%s", axes_text(p, rows, 1));
    table_cell(t, "%s", axes_text(p, cols, 1));
    table_cell(t, "%s", ways ? str_fmt("%" PRId64 " of %" PRId64 " tokens", T / ways, T) : "-");
}

static void print_layouts(const Plan *p, FILE *f)
{
    const Choices *is = &p->is;
    Table t = { .align = "llll" };
    int64_t longest = is->slice && is->nslices ? is->slice[0] : is->sequence;
    for (int i = 1; i < is->nslices; i++)
        longest = is->slice[i] > longest ? is->slice[i] : longest;
    int64_t T = is->microbatch * longest;
    table_cell(&t, "tensor");
    table_cell(&t, "rows by");
    table_cell(&t, "columns by");
    table_cell(&t, is->nslices > 1 ? "rows on a rank, of the longest slice" : "rows on a rank");
    if (is->summa) {
        layout_row(p, &t, "B  all activations", AX_Z, AX_YK, is->z, T);
        layout_row(p, &t, "matrices and tables", AX_Z, AX_YK, 0, T);
        print_heading(f, "layouts");
        table_print(&t, f);
        return;
    }
    layout_row(p, &t, "A  residual stream", AX_X | AX_YK, AX_Z, is->x * is->y, T);
    layout_row(p, &t, "B  inside a pair of linears", AX_X | AX_Z, AX_YK, is->x * is->z, T);
    if (is->y * is->z > 1) {
        layout_row(p, &t, "matrices entered in A", AX_Z, AX_YK, 0, T);
        layout_row(p, &t, "matrices entered in B, tables", AX_YK, AX_Z, 0, T);
    }
    print_heading(f, "layouts");
    table_print(&t, f);
    if (is->x > 1)
        fprintf(f, "  a matrix's block on a rank, flattened, is spread over x\n");
}

static void print_choice(FILE *f, const char *what, const char *why)
{
    if (why && *why)
        fprintf(f, "  %-24s %s\n", what, why);
}

static const char *zero_why(const Choices *is)
{
    static const char *const split[] = { "moments", "moments and gradients",
                                         "moments, gradients and parameters" };
    return is->data == 1 ? NULL : is->zero == 0 ? "every replica keeps everything"
        : str_fmt("%s are split over the %d replicas", split[is->zero - 1], is->data);
}

static const char *recompute_why(const Choices *is)
{
    if (is->recompute == RECOMPUTE_NONE)
        return is->stages > 1 || is->nslices > 1 ? "what the backward pass needs is kept" : NULL;
    return is->recompute == RECOMPUTE_ATTENTION ? "attention's results are made again going back"
        : is->recompute_turns == INT32_MAX ? "what enters a turn is kept, the rest made again"
        : str_fmt("what enters one of a stage's first %s is kept, the rest made again",
                  plural(is->recompute_turns, "turn"));
}

static void print_choices(const Plan *p, FILE *f)
{
    const Choices *is = &p->is;
    print_heading(f, "choices");
    print_choice(f, str_fmt("attention = %s", attention_word[is->attention]), is->attention_why);
    print_choice(f, str_fmt("keep = %s", print_keep(is)), is->keep_why);
    if (is->prefetch > 0 || p->config->plan.prefetch.set)
        print_choice(f, str_fmt("prefetch = %d", is->prefetch), is->prefetch_why);
    print_choice(f, str_fmt("vectors = %s", is->shard_vectors ? "sharded" : "whole"),
                 is->vectors_why);
    print_choice(f, str_fmt("zero = %d", is->zero), zero_why(is));
    print_choice(f, str_fmt("recompute = %s", print_recompute(p)), recompute_why(is));
    for (int r = 0; r < is->stages; r++) {
        const Plan *s = plan_stage(p, r);
        for (int u = 0; u < s->units.n; u++) {
            const ParamUnit *unit = &s->units.at[u];
            int64_t pad = unit->pad_rows ? unit->pad_rows : unit->pad_cols;
            int64_t have = unit->npieces == 0 ? pad
                : unit->pad_rows ? p->params.at[unit->piece[0].param].rows
                                 : p->params.at[unit->piece[0].param].width;
            if (pad > have && (unit->first_stage || is->stages == 1))
                print_choice(f, "vocab-pads", str_fmt("%s: %" PRId64 " padded to %" PRId64
                             ", a multiple of y; masked, never stored", unit->name, have, pad));
        }
    }
}

/* ---- parameters ------------------------------------------------------------------ */

/* Parameters of repeats that look the same are one row; bit by stage who has them. */
typedef struct { ParamId w; ParamHome home; int count; bool *stages; } Row;
typedef VEC(Row) Rows;

static const char *shown_name(const Param *w)
{
    return w->turn == NONE ? w->name : print_turnless(w->name, w->turn);
}

static void add_param(const Plan *p, ParamHome *const *homes, ParamId w, Rows *rows, Map *seen)
{
    const Param *a = &p->params.at[w];
    bool *on = NEWN(bool, p->is.stages);
    ParamHome home = { 0 };
    for (int r = 0; r < p->is.stages; r++) {
        ParamHome h = homes[r][w];
        on[r] = h.unit != NULL;
        home = home.unit ? home : h;
    }
    if (home.unit == NULL)
        return;
    const ParamUnit *u = home.unit;
    const char *key = str_fmt("%s %d %" PRId64 " %" PRId64 " %d %d %d %d %d %" PRId64,
        shown_name(a), a->kind, a->rows, a->width, u->row_axis, u->col_axis, u->spread, u->repl,
        u->rep, home.elements);
    int at = map_get(seen, key);
    if (at < 0) {
        map_put(seen, key, rows->n);
        Row row = { w, home, 1, on };
        vec_add(rows, row);
        return;
    }
    rows->at[at].count++;
    for (int r = 0; r < p->is.stages; r++)
        rows->at[at].stages[r] |= on[r];
}

static void print_parameters_table(const Plan *p, FILE *f)
{
    Rows rows = { 0 };
    Map *seen = map_new();
    ParamHome *const *homes = print_param_homes(p);
    for (int i = 0; i < p->params.n; i++)
        add_param(p, homes, i, &rows, seen);
    Table t = { .align = "lllllllrr" };
    static const char *const head[] = { "parameter", "shape", "rows by", "columns by", "spread",
                                        "kept by", "stages", "on a rank", "times" };
    for (int i = 0; i < 9; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i < rows.n; i++) {
        const Row *row = &rows.at[i];
        const Param *w = &p->params.at[row->w];
        const ParamUnit *u = row->home.unit;
        table_cell(&t, "%s", shown_name(w));
        table_cell(&t, "%s", w->kind == PARAM_VECTOR ? str_fmt("%" PRId64, w->width)
                   : str_fmt("%" PRId64 " x %" PRId64, w->rows, w->width));
        table_cell(&t, "%s", axes_text(p, u->row_axis, u->rep));
        table_cell(&t, "%s", axes_text(p, u->col_axis, u->rep));
        table_cell(&t, "%s", axes_text(p, u->spread, u->rep));
        table_cell(&t, "%s", axes_text(p, u->repl, u->rep));
        table_cell(&t, "%s", p->is.stages > 1 ? print_ranges(row->stages, p->is.stages) : "-");
        table_cell(&t, "%s", str_bytes((double)(row->home.elements * print_param_bytes(p))));
        table_cell(&t, "%d", row->count);
    }
    print_heading(f, "tensors");
    table_print(&t, f);
}

/* ---- collectives ----------------------------------------------------------------- */

static const char *size_text(const Traffic *t)
{
    const char *least = str_bytes(t->bytes), *most = str_bytes(t->most);
    return least == most || strcmp(least, most) == 0 ? least : str_fmt("%s to %s", least, most);
}

static const char *collectives_text(const Stage *s)
{
    static const char *const phase[] = { "forward", "backward", "gradients", "optimizer" };
    const char *reason = NULL;
    Text out = { 0 };
    for (int ph = 0; ph < 4; ph++) {
        bool any = false;
        for (int i = 0; i < s->traffic.n; i++) {
            const Traffic *t = &s->traffic.at[i];
            const Inst *c = t->inst;
            if ((int)c->phase != ph)
                continue;
            if (!any)
                text_add(&out, "  %s\n", phase[ph]);
            any = true;
            text_add(&out, "    %-14s %-10s %3" PRId64 " %s %10s x %-4" PRId64 " %s (%s)\n",
                     coll_word[c->coll], group_text(s->p, c), t->size,
                     is_transfer(c) ? "stages" : "ranks", size_text(t), t->calls,
                     subject(t->name), source_where(c->loc));
            if (t->reason && t->reason != reason)
                text_add(&out, "      %s\n", t->reason);
            reason = t->reason;
        }
    }
    return out.n ? str_of(out.at, out.n) : "";
}

static void print_collectives(const Stages *all, FILE *f)
{
    const char **text = NEWN(const char *, all->n);
    bool any = false;
    for (int r = 0; r < all->n; r++) {
        text[r] = collectives_text(&all->at[r]);
        any |= text[r][0] != 0;
    }
    if (!any)
        return;
    print_heading(f, all->n > 1 ? "collectives: bytes received (send: sent) by a rank in a call, "
                  "and calls in a step" : "collectives: bytes received by a rank in a call, and "
                  "calls in a step");
    for (int r = 0; r < all->n;) {
        int to = r;
        while (to + 1 < all->n && text[to + 1] == text[r])
            to++;
        if (all->n > 1)
            fprintf(f, "stage%s %s\n", r == to ? "" : "s", print_range(r, to));
        fprintf(f, "%s", text[r]);
        r = to + 1;
    }
}

/* ---- memory ---------------------------------------------------------------------- */

static const char *bytes_text(int64_t n) { return n ? str_bytes((double)n) : "-"; }

/* One row per stage. */
static void print_stage_memory(const Stages *all, FILE *f)
{
    static const char *const more[] = { "keys/values", "gaps", "peak", "bytes", "free" };
    Table t = { .align = "lrrrrrrrrrrrr" };
    table_cell(&t, "stage");
    for (int c = 0; c < BUF_CLASSES; c++)
        table_cell(&t, "%s", buf_class_word[c]);
    for (int i = 0; i < 5; i++)
        table_cell(&t, "%s", more[i]);
    for (int r = 0; r < all->n; r++) {
        const Peak *peak = &all->at[r].peak;
        const Plan *s = all->at[r].p;
        table_cell(&t, "%s", all->n > 1 ? str_fmt("%d", r) : "-");
        for (int c = 0; c < BUF_CLASSES; c++)
            table_cell(&t, "%s", bytes_text(peak->bytes[c]));
        table_cell(&t, "%s", bytes_text(peak->keys_values));
        table_cell(&t, "%s", bytes_text(s->block_bytes - peak->sum));
        table_cell(&t, "%s", bytes_text(s->block_bytes));
        table_cell(&t, "%" PRId64, s->block_bytes);
        table_cell(&t, "%s", s->is.room_what ? bytes_text(s->is.room_bytes - s->block_bytes) : "-");
    }
    print_heading(f, "memory of a rank by class, each stage's one block");
    table_join(&t);
    table_print(&t, f);
    if (all->at[0].p->is.room_what)
        fprintf(f, "  free: of %s\n", all->at[0].p->is.room_what);
}

static void print_class(FILE *f, const char *name, int64_t bytes)
{
    if (bytes > 0)
        fprintf(f, "  %-14s %12s\n", name, str_bytes((double)bytes));
}

static void print_memory_table(const Stages *all, FILE *f)
{
    const Plan *p = all->at[0].p;
    const Peak *peak = &all->at[0].peak;
    if (all->n > 1) {
        print_stage_memory(all, f);
        return;
    }
    print_heading(f, "memory of a rank, by class, when the most is alive");
    for (int c = 0; c < BUF_CLASSES; c++)
        print_class(f, buf_class_word[c], peak->bytes[c]);
    print_class(f, "keys/values", peak->keys_values);
    print_class(f, "gaps", p->block_bytes - peak->sum);
    fprintf(f, "  %-14s %12s  %" PRId64 " bytes, one block\n", "peak",
            str_bytes((double)p->block_bytes), p->block_bytes);
    if (p->is.room_what)
        fprintf(f, "  %-14s %12s  %s\n", "free",
                str_bytes((double)(p->is.room_bytes - p->block_bytes)), p->is.room_what);
}

void print_page(const Plan *p, FILE *f)
{
    Stages all = find_stages(p);
    print_glance(p, &all, f);
    if (p->pipeline)
        print_parts(p->pipeline, f);
    print_stages(&all, f);
    print_axis_costs(&all, f);
    if (p->pipeline) {
        print_axis_links(p->pipeline, f);
        print_grids(p, f);
    }
    print_layouts(p, f);
    print_choices(p, f);
    print_parameters_table(p, f);
    print_collectives(&all, f);
    print_memory_table(&all, f);
    print_plan_block(p, f);
}
