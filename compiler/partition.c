/*
 * partition.c - the pass that lays the graph out on the grid: places tensors,
 * clusters row operators, lowers to instructions, and picks what to keep from
 * forward to backward so that the block fits.
 *
 *   needs graph, autodiff, mesh; fills rowmaps, units, values, rowprogs, insts, buffers;
 *   keeps the meaning of ops (sums of products may be regrouped).
 */
#include "partition.h"

static void fresh(Part *q, Plan *p)
{
    memset(q, 0, sizeof *q);
    q->p = p;
    q->spot = SCRATCHN(Spot, p->tensors.n + 2 * p->params.n);
    q->info = SCRATCHN(OpInfo, p->ops.n);
    q->param_unit = SCRATCHN(int, p->params.n);
    q->param_nunits = SCRATCHN(int, p->params.n);
    q->concat = SCRATCHN(ValueId, p->ops.n);
    for (int i = 0; i < p->ops.n; i++)
        q->info[i].psum = q->info[i].cluster = NONE;
    place_uses(q);
    place_sections(q);
    place_homes(q);
    place_region(q);
}

/* Every PSUM's terms share one buffer. */
static void number_psums(Part *q)
{
    Plan *p = q->p;
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        if (o->kind != OP_PSUM)
            continue;
        Psum s = { NONE };
        vec_add(&q->psums, s);
        for (int j = 0; j < o->nin; j++)
            q->info[p->tensors.at[o->in[j]].def].psum = q->psums.n - 1;
    }
}

/* All that is the same for every stage, and whatever is kept. */
static void look_around(Part *q, Plan *p)
{
    fresh(q, p);
    number_psums(q);
    place_columns(q);
    if (diag_errors())
        return;
    place_cuts(q);
    cluster_ops(q);
}

/* `common` for one stage, which writes into copies: they are gone when it is laid out. */
static Part part_of_stage(const Part *common, Plan *p)
{
    Part q = *common;
    q.p = p;
    size_t spots = (size_t)p->tensors.n + 2 * (size_t)p->params.n, ops = (size_t)p->ops.n;
    size_t clusters = (size_t)q.clusters.n, psums = (size_t)q.psums.n;
    q.spot = arena_copy(scratch, q.spot, spots * sizeof *q.spot);
    q.info = arena_copy(scratch, q.info, ops * sizeof *q.info);
    q.clusters.at = arena_copy(scratch, q.clusters.at, clusters * sizeof *q.clusters.at);
    q.psums.at = arena_copy(scratch, q.psums.at, psums * sizeof *q.psums.at);
    q.clusters.cap = q.clusters.n;
    q.psums.cap = q.psums.n;
    q.param_unit = SCRATCHN(int, p->params.n);
    q.param_nunits = SCRATCHN(int, p->params.n);
    q.concat = SCRATCHN(ValueId, p->ops.n);
    return q;
}

static void lay_out_stage(const Part *common, Plan *p)
{
    Mark mark = arena_mark(scratch);
    Part q = part_of_stage(common, p);
    p->rowmaps.n = p->units.n = p->values.n = p->rowprogs.n = p->insts.n = p->buffers.n = 0;
    p->funcs.n = p->calls.n = p->front.n = 0;
    p->placed = false;
    place_params(&q);
    place_units(&q);
    q.grad = SCRATCHN(UnitGrad, p->units.n);
    q.unit_whole = SCRATCHN(ValueId, p->units.n);
    q.unit_phase = SCRATCHN(Phase, p->units.n);
    q.unit_turn = SCRATCHN(int, p->units.n);
    lower(&q);
    memory_place(p);
    arena_release(scratch, mark);
}

/* Plans of the other stages: the graph and the choices shared, the rest their own. */
static void make_stages(Plan *p)
{
    p->stages = NULL;
    if (p->is.stages == 1)
        return;
    Plan **stages = NEWN(Plan *, p->is.stages);
    stages[0] = p;
    for (int r = 1; r < p->is.stages; r++) {
        stages[r] = NEW(Plan);
        *stages[r] = *p;
        memset(&stages[r]->rowmaps, 0, sizeof p->rowmaps);
        memset(&stages[r]->units, 0, sizeof p->units);
        memset(&stages[r]->values, 0, sizeof p->values);
        memset(&stages[r]->rowprogs, 0, sizeof p->rowprogs);
        memset(&stages[r]->insts, 0, sizeof p->insts);
        memset(&stages[r]->front, 0, sizeof p->front);
        memset(&stages[r]->funcs, 0, sizeof p->funcs);
        memset(&stages[r]->calls, 0, sizeof p->calls);
        memset(&stages[r]->buffers, 0, sizeof p->buffers);
        stages[r]->stage = r;
    }
    for (int r = 0; r < p->is.stages; r++)
        stages[r]->stages = stages;
}

static int64_t largest_block(const Plan *p)
{
    int64_t most = 0;
    for (int r = 0; r < p->is.stages; r++)
        most = plan_stage(p, r)->block_bytes > most ? plan_stage(p, r)->block_bytes : most;
    return most;
}

static void lay_out(const Part *common, Plan *p, bool keep_inputs, bool keep_weights)
{
    p->is.keep_inputs = keep_inputs;
    p->is.keep_weights = keep_weights;
    for (int r = 0; r < p->is.stages && !diag_errors(); r++) {
        Plan *s = plan_stage(p, r);
        s->is = p->is;
        lay_out_stage(common, s);
    }
}

/*
 * The largest microbatch that surely fits, or 0. What does not shrink with it: the
 * persistent part, gathered weights and the logits of a chunk; the rest is taken to
 * be as large as the whole of what is not persistent.
 */
static int64_t fitting_microbatch(const Plan *p, const int64_t *by)
{
    const Choices *is = &p->is;
    int64_t persistent = by[BUF_PARAMS] + by[BUF_GRADS] + by[BUF_MOMENTS], fixed = persistent;
    int64_t real = is->precision == PREC_FP64 ? 8 : 4, step = is->x * lcm64(is->y, is->z);
    bool *seen = NEWN(bool, p->buffers.n);
    for (int i = 0; i < p->values.n; i++) {
        const Value *v = &p->values.at[i];
        if (v->unit != NONE && v->whole && !seen[v->buffer])
            fixed += p->buffers.at[v->buffer].elements * real;
        seen[v->buffer] |= v->unit != NONE;
    }
    fixed += by[BUF_LOGITS] / (is->T / is->x / is->logits_chunk);
    for (int64_t m = is->microbatch - 1; m > 0; m--)
        if (is->batch / is->data % m == 0 && m * is->sequence % step == 0 &&
            fixed + (p->block_bytes - persistent) * m / is->microbatch <= is->room_bytes)
            return m;
    return 0;
}

static void report_memory(const Plan *p, const char *change)
{
    int64_t by[BUF_CLASSES] = { 0 };
    int worst = 0;
    for (int i = 0; i < p->buffers.n; i++) {
        const Buffer *b = &p->buffers.at[i];
        by[b->class] += b->elements *
                        (b->dtype == D_I32 ? 4 : b->dtype == D_BF16 ? 2
                         : p->is.precision == PREC_FP64 ? 8 : 4);
    }
    for (int c = 1; c < BUF_CLASSES; c++)
        if (by[c] > by[worst])
            worst = c;
    const PlanSpec *s = &p->config->plan;
    bool piped = p->is.stages > 1 || p->is.nslices > 1;
    Loc at = p->is.stages > 1 && s->pipeline.loc.end ? s->pipeline.loc
           : s->cube_loc.end ? s->cube_loc : s->loc;
    if (p->is.stages > 1)
        diag_error(at, "memory-fits", "stage %d lacks %s: a rank needs %s, there are %s", p->stage,
                   str_bytes((double)(p->block_bytes - p->is.room_bytes)),
                   str_bytes((double)p->block_bytes), p->is.room_what);
    else
        diag_error(at, "memory-fits", "a rank needs %s, there are %s",
                   str_bytes((double)p->block_bytes), p->is.room_what);
    if (piped && change) {
        diag_hint("most of it is %s; write %s", buf_class_word[worst], change);
        return;
    }
    int64_t fits = piped ? 0 : fitting_microbatch(p, by);
    if (fits)
        diag_hint("most of it is %s; write microbatch = %" PRId64, buf_class_word[worst], fits);
    else if (!piped && s->keep.v && strcmp(s->keep.v, "none") != 0)
        diag_hint("most of it is %s; write keep = none", buf_class_word[worst]);
    else
        diag_hint("most of it is %s; about %.0f devices with as much memory hold it",
                  buf_class_word[worst], ceil((double)p->block_bytes * plan_ranks(p) /
                  (double)(p->is.room_bytes > 0 ? p->is.room_bytes : 1)));
}

/* Widths and parts alone, on the forward graph: to report them beside other errors. */
void partition_check(Plan *p)
{
    Part q;
    fresh(&q, p);
    place_columns(&q);
}

void partition_choose(Plan *p)
{
    const Word keep = p->config->plan.keep;
    Part q;
    if (p->is.refused) {
        diag_error(p->is.refused_loc, "unsupported", "this version checks %s, but cannot lay them "
                   "out yet", p->is.refused);
        if (p->is.refused_hint)
            diag_hint("write %s", p->is.refused_hint);
        return;
    }
    fresh(&q, p);
    place_psums(&q);
    look_around(&q, p);
    make_stages(p);
    if (diag_errors())
        return;
    if (p->is.summa) {
        lay_out(&q, p, false, false);
        p->is.keep_why = "blocks are sent again for every product";
    } else if (keep.v) {
        bool both = strcmp(keep.v, "both") == 0;
        lay_out(&q, p, both || strcmp(keep.v, "inputs") == 0,
                both || strcmp(keep.v, "weights") == 0);
        p->is.keep_why = "pinned";
    } else {
        static const bool way[][2] = { { true, true }, { true, false }, { false, false } };
        static const char *const why[] = {
            "what is gathered once is kept: it fits",
            "gathered weights are gathered again: keeping them does not fit",
            "everything is gathered again: keeping it does not fit" };
        for (int i = 0; i < 3; i++) {
            lay_out(&q, p, way[i][0], way[i][1]);
            p->is.keep_why = why[i];
            if (diag_errors() || largest_block(p) <= p->is.room_bytes)
                break;
        }
    }
    int worst = 0;
    for (int r = 0; r < p->is.stages; r++) {
        plan_stage(p, r)->is = p->is;
        if (plan_stage(p, r)->block_bytes > plan_stage(p, worst)->block_bytes)
            worst = r;
    }
    if (!diag_errors() && plan_stage(p, worst)->block_bytes > p->is.room_bytes)
        report_memory(plan_stage(p, worst),
                      p->is.stages > 1 || p->is.nslices > 1 ? fitting_change(p) : NULL);
}
