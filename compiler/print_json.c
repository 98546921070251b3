/*
 * print_json.c - `teracube plan --json`: one object with the keys of design.md
 * section 8. Figures that need a cost model are null.
 *
 * Bytes and counts are of one rank of the stage named; collectives give bytes received
 * per call (send: sent), and how many calls all passes of a step make. A tensor names
 * the first stage that has it in `stage` and all in `stages`.
 */
#include "estimate.h"
#include "json.h"
#include "print.h"
#include "residual.h"

static void axes(Json *j, const char *name, const Plan *p, Axes a, int rep)
{
    a = print_axes(p, a, rep);
    json_begin(j, name, '[');
    if (a & AX_STAGE)
        json_text(j, NULL, "stage");
    if (a & AX_DATA)
        json_text(j, NULL, "data");
    if (a & AX_X)
        json_text(j, NULL, "x");
    if (a & AX_Y)
        json_text(j, NULL, "y");
    if (a & AX_Z)
        json_text(j, NULL, "z");
    json_end(j, ']');
}

/* ---- parts of the object ----------------------------------------------------------- */

static void json_head(Json *j, const Plan *p)
{
    const Config *c = p->config;
    json_integer(j, "schema", 1);
    json_begin(j, "hashes", '{');
    for (int i = 0; i < HASHES; i++)
        if (i != HASH_TRAIN)
            json_text(j, hash_word[i], str_fmt("%016" PRIx64, plan_hash(p, i)));
    json_end(j, '}');
    json_begin(j, "warnings", '[');
    for (int i = 0; i < diag_nwarnings(); i++)
        json_text(j, NULL, diag_warning_text(i));
    json_end(j, ']');
    json_begin(j, "model", '{');
    json_text(j, "name", p->model_name);
    json_integer(j, "parameters", print_parameters(p));
    json_integer(j, "layers", p->layers);
    json_end(j, '}');
    json_begin(j, "cluster", '{');
    json_text(j, "name", c->has_cluster ? c->cluster.name : "this machine");
    json_integer(j, "devices", c->has_cluster
                 ? (int64_t)(c->cluster.nodes.v * c->cluster.per_node.v) : plan_ranks(p));
    json_integer(j, "nodes", c->has_cluster ? (int64_t)c->cluster.nodes.v : 1);
    json_end(j, '}');
}

static void json_mesh(Json *j, const Plan *p)
{
    Mesh m = price_mesh(p);
    json_begin(j, "mesh", '{');
    json_begin(j, "order", '[');
    bool done[MESH_AXES] = { false };
    for (int i = 0; i < MESH_AXES; i++) {       // slowest first; those of size 1 as usual
        int next = MESH_STAGE;
        while (done[next])
            next++;
        for (int k = next; k < MESH_AXES; k++)
            next = !done[k] && m.stride[k] > m.stride[next] ? k : next;
        done[next] = true;
        json_text(j, NULL, mesh_axis_word[next]);
    }
    json_end(j, ']');
    json_begin(j, "axes", '[');
    for (int i = 0; i < MESH_AXES; i++)
        json_axis(j, p, &m, i);
    json_end(j, ']');
    json_end(j, '}');
}

/* On paper nobody laid out what is kept: what the estimate rests on, or the plan pins. */
static const char *keep_text(const Plan *p)
{
    const Word *pin = &p->config->plan.keep;
    return p->is.keep_why ? print_keep(&p->is)
         : p->pipeline ? keep_word[p->pipeline->closed->keep] : pin->v;
}

void print_json_layout(Json *j, const Plan *p)
{
    const Choices *is = &p->is;
    const PlanSpec *s = &p->config->plan;
    json_begin(j, "layout", '{');
    json_integer(j, "data", is->data);
    json_integer(j, "pipeline", is->stages);
    json_integer(j, "chunks", is->chunks);
    json_begin(j, "cube", '[');
    json_integer(j, NULL, is->x);
    json_integer(j, NULL, is->y);
    json_integer(j, NULL, is->z);
    json_end(j, ']');
    json_text(j, "partition", print_partition(is));
    const Pipeline *q = p->pipeline;
    json_integer(j, "microbatch", q ? q->feed.b : is->microbatch);
    json_begin(j, "slices", '[');
    if (q)
        for (int i = 0; i < q->feed.k; i++)
            json_integer(j, NULL, q->feed.slice[i]);
    else
        json_integer(j, NULL, is->sequence);
    json_end(j, ']');
    json_text(j, "schedule", s->schedule.v ? s->schedule.v : "1f1b");
    json_text(j, "recompute", print_recompute(p));
    json_integer(j, "zero", is->zero);
    json_begin(j, "turns", '[');
    if (q)
        for (int i = 0; i < q->P * q->v; i++)
            json_integer(j, NULL, q->section[i].turns);
    else
        json_integer(j, NULL, p->layers);
    json_end(j, ']');
    json_text(j, "attention", attention_word[is->attention]);
    json_text(j, "rows", is->balanced ? "balanced" : "plain");
    const char *keep = keep_text(p);
    if (keep)
        json_text(j, "keep", keep);
    else
        json_null(j, "keep");
    json_integer(j, "prefetch", is->prefetch);
    json_text(j, "vectors", is->shard_vectors ? "sharded" : "whole");
    if ((q ? q->feed.k : is->nslices) > 1 && !s->logits_chunk.set)      // each slice has its own
        json_text(j, "logits_chunk", "auto");
    else
        json_integer(j, "logits_chunk", is->logits_chunk);
    json_end(j, '}');
}

void print_json_predicted(Json *j, const Plan *p)
{
    static const char *const figure[] = { "step_s", "tokens_per_s", "flops_per_device_per_s",
                                          "mfu", "hfu" };
    const Pipeline *q = p->pipeline;
    json_begin(j, "predicted", '{');
    if (q) {
        const Estimate *e = q->closed;
        const double v[] = { e->step_s, e->tokens_per_s,
                             q->model_flop / e->step_s / plan_ranks(p), e->mfu, e->hfu };
        for (int i = 0; i < 5; i++)
            json_real(j, figure[i], v[i]);
        json_real(j, "formula_s", q->feed.formula_s);
        json_real(j, "simulated_s", q->sim.step_s);
        json_real(j, "bubble", q->sim.bubble);
        json_integer(j, "last_stage", e->last);
    } else
        for (int i = 0; i < 5; i++)
            json_null(j, figure[i]);
    const Residual *off = q ? residual_of(p) : NULL;
    const char *program = NULL;
    double as_theirs = residual_step(p, off, &program);
    json_real(j, "error", off ? off->error : NAN);
    json_real(j, "published_s", as_theirs);
    if (program)
        json_text(j, "published_program", program);
    else
        json_null(j, "published_program");
    json_begin(j, "breakdown_s", '{');
    for (int i = 0; i < PARTS; i++)
        if (q)
            json_real(j, part_word[i], q->closed->part[i]);
        else
            json_null(j, part_word[i]);
    json_end(j, '}');
    json_end(j, '}');
}

/* Stages of a plan on paper. */
static void json_estimates(Json *j, const Pipeline *q)
{
    for (int r = 0; r < q->P; r++) {
        const StageMemory *m = &q->memory[r];
        json_begin(j, NULL, '{');
        json_integer(j, "stage", r);
        json_integer(j, "parameters", (int64_t)m->parameters);
        json_integer(j, "gradients", (int64_t)m->gradients);
        json_integer(j, "optimizer", (int64_t)m->optimizer);
        json_integer(j, "activations", (int64_t)m->activations);
        json_integer(j, "keys_values", (int64_t)m->keys_values);
        json_integer(j, "gathered", 0);
        json_integer(j, "logits", (int64_t)m->logits);
        json_integer(j, "workspace", (int64_t)m->workspace);
        json_integer(j, "library", 0);
        json_integer(j, "peak", (int64_t)m->peak);
        json_integer(j, "free", q->plan->is.room_bytes - (int64_t)m->peak);
        json_end(j, '}');
    }
}

static void json_step(Json *j, const Step *u)
{
    json_begin(j, NULL, '{');
    json_text(j, "kind", step_word[u->kind]);
    json_integer(j, "microbatch", u->microbatch);
    json_integer(j, "slice", u->slice);
    json_integer(j, "chunk", u->chunk);
    json_end(j, '}');
}

/* What the stages' step tables call, but for what comes before the first pass. */
static void json_schedule(Json *j, const Plan *p)
{
    json_begin(j, "schedule", '[');
    for (int r = 0; r < p->is.stages; r++) {
        const Plan *s = plan_stage(p, r);
        const Steps *paper = s->calls.n ? NULL : &p->pipeline->schedule.stage[r];
        json_begin(j, NULL, '{');
        json_integer(j, "stage", r);
        json_begin(j, "steps", '[');
        for (int i = 0; i < s->calls.n; i++)
            if (s->calls.at[i].step.kind != STEP_BEGIN)
                json_step(j, &s->calls.at[i].step);
        for (int i = 0; paper && i < paper->n; i++)
            json_step(j, &paper->at[i]);
        json_end(j, ']');
        json_end(j, '}');
    }
    json_end(j, ']');
}

static void json_stage(Json *j, const Plan *s)
{
    Peak peak = print_peak(s);
    json_begin(j, NULL, '{');
    json_integer(j, "stage", s->stage);
    json_integer(j, "parameters", peak.bytes[BUF_PARAMS]);
    json_integer(j, "gradients", peak.bytes[BUF_GRADS]);
    json_integer(j, "optimizer", peak.bytes[BUF_MOMENTS]);
    json_integer(j, "activations", peak.bytes[BUF_ACTIVATION]);
    json_integer(j, "keys_values", peak.keys_values);
    json_integer(j, "gathered", peak.bytes[BUF_GATHERED]);
    json_integer(j, "logits", peak.bytes[BUF_LOGITS]);
    json_integer(j, "workspace", peak.bytes[BUF_WORK] + (s->block_bytes - peak.sum));   // and gaps
    json_integer(j, "library", 0);
    json_integer(j, "peak", s->block_bytes);
    json_integer(j, "free", s->is.room_bytes - s->block_bytes);
    json_integer(j, "units", peak.units);
    json_end(j, '}');
}

static void json_memory(Json *j, const Plan *p)
{
    json_begin(j, "memory", '{');
    json_integer(j, "device_bytes", p->is.room_bytes);
    json_begin(j, "stages", '[');
    if (p->pipeline && p->insts.n == 0)
        json_estimates(j, p->pipeline);
    else
        for (int r = 0; r < p->is.stages; r++)
            json_stage(j, plan_stage(p, r));
    json_end(j, ']');
    json_end(j, '}');
}

/* Bytes of an instruction's results that stay until the backward part, which is from `back`. */
static int64_t saved_bytes(const Plan *p, const Inst *x, InstId back)
{
    int64_t sum = 0;
    for (int i = 0; i < x->nout; i++) {
        const Value *v = &p->values.at[x->out[i]];
        if (v->buffer == NONE)
            continue;
        const Buffer *b = &p->buffers.at[v->buffer];
        if (b->class == BUF_ACTIVATION && b->last >= back)
            sum += v->rows * v->cols * dtype_bytes(p, b->dtype);
    }
    return sum;
}

typedef struct { const Inst *x; const char *name; int64_t count; } Operator;

static double product_bytes(const Plan *p, const Inst *x)
{
    double sum = 0;
    const int64_t size[] = { x->m * x->k, x->k * x->n, x->m * x->n };
    for (int i = 0; i < 3; i++) {
        BufferId b = p->values.at[i < 2 ? x->in[i] : x->out[0]].buffer;
        sum += (double)(size[i] * dtype_bytes(p, b == NONE ? D_REAL : p->buffers.at[b].dtype));
    }
    return sum;
}

static void json_operator(Json *j, const Plan *p, const Operator *o, InstId back)
{
    const Inst *x = o->x;
    json_begin(j, NULL, '{');
    json_text(j, "name", o->name);
    json_text(j, "source", source_where(x->loc));
    json_integer(j, "stage", p->stage);
    if (x->kind == I_GEMM) {
        json_integer(j, "m", x->m);
        json_integer(j, "n", x->n);
        json_integer(j, "k", x->k);
        json_real(j, "flops", 2 * (double)x->m * (double)x->n * (double)x->k);
        json_real(j, "bytes", product_bytes(p, x));
    } else {
        static const char *const none[] = { "m", "n", "k", "flops", "bytes" };
        for (int q = 0; q < 5; q++)
            json_null(j, none[q]);
    }
    json_null(j, "forward_s");
    json_null(j, "backward_s");
    json_integer(j, "saved_bytes", saved_bytes(p, x, back));
    json_integer(j, "count", o->count);
    json_end(j, '}');
}

/* Local matrix products and kernels of a stage's forward part; equal turns once. */
static void json_stage_operators(Json *j, const Plan *p)
{
    VEC(Operator) list = { 0 };
    Map *seen = map_new();
    const int *counts = print_counts(p);
    InstId back = 0;
    while (back < p->insts.n && p->insts.at[back].phase == PHASE_FORWARD)
        back++;
    for (int i = 0; i < back; i++) {
        const Inst *x = &p->insts.at[i];
        if (x->kind == I_COLL || x->kind == I_COPY || x->kind == I_ZERO || x->kind == I_MERGE ||
            x->kind == I_COUNT)
            continue;
        const char *name = print_turnless(x->name, print_turn(p, x));
        const char *k = str_fmt("%s %d %" PRId64 " %" PRId64 " %" PRId64, name, x->kind, x->m,
                                x->n, x->k);
        int at = map_get(seen, k);
        if (at >= 0) {
            list.at[at].count += counts[i];
            continue;
        }
        map_put(seen, k, list.n);
        Operator e = { x, name, counts[i] };
        vec_add(&list, e);
    }
    for (int i = 0; i < list.n; i++)
        json_operator(j, p, &list.at[i], back);
}

static void json_operators(Json *j, const Plan *p)
{
    json_begin(j, "operators", '[');
    for (int r = 0; r < p->is.stages; r++)
        json_stage_operators(j, plan_stage(p, r));
    json_end(j, ']');
}

/* How a buffer's numbers are stored. */
static const char *stored_word(const Plan *p, BufferId b)
{
    bool narrow = p->is.precision != PREC_FP64 && p->is.precision != PREC_FP32;
    DType d = b < p->buffers.n ? p->buffers.at[b].dtype : D_REAL;
    return d == D_BF16 ? "bf16" : narrow ? "fp32" : precision_word[p->is.precision];
}

static void json_param(Json *j, const Plan *p, ParamHome *const *homes, int w)
{
    const Param *a = &p->params.at[w];
    ParamHome h = { 0 };
    int first = 0;
    for (; first < p->is.stages && h.unit == NULL; first++)
        h = homes[first][w];
    if (h.unit == NULL)
        return;
    const ParamUnit *u = h.unit;
    json_begin(j, NULL, '{');
    json_text(j, "name", a->name);
    json_begin(j, "shape", '[');
    if (a->kind != PARAM_VECTOR)
        json_integer(j, NULL, a->rows);
    json_integer(j, NULL, a->width);
    json_end(j, ']');
    json_text(j, "dtype", stored_word(p, THE_PARAMS));
    json_begin(j, "layout", '{');
    axes(j, "rows", p, u->row_axis, u->rep);
    axes(j, "columns", p, u->col_axis, u->rep);
    axes(j, "replicated", p, u->repl | AX_DATA, u->rep);
    axes(j, "spread", p, u->spread, u->rep);        // the block, flattened row by row
    json_end(j, '}');
    json_begin(j, "local_shape", '[');
    if (a->kind != PARAM_VECTOR)
        json_integer(j, NULL, h.rows);
    json_integer(j, NULL, h.cols);
    json_end(j, ']');
    json_integer(j, "local_bytes", h.elements * print_param_bytes(p));
    json_integer(j, "stage", first - 1);
    json_begin(j, "stages", '[');
    for (int r = first - 1; r < p->is.stages; r++)
        if (homes[r][w].unit)
            json_integer(j, NULL, r);
    json_end(j, ']');
    json_end(j, '}');
}

static void json_activation(Json *j, const Plan *p, const Value *v)
{
    const Tensor *t = &p->tensors.at[v->tensor];
    const Layout *l = &v->layout;
    const RowMap *m = v->rowmap == NONE ? NULL : &p->rowmaps.at[v->rowmap];
    int64_t tokens = p->is.nslices > 1 && m ? 0 : p->is.sequence;
    for (int i = 0; tokens == 0 && i < m->nslices; i++)
        tokens += p->is.slice[m->first + i];
    Axes all = AX_X | AX_YK | AX_Z | (l->rep > 1 ? AX_YR : 0);
    json_begin(j, NULL, '{');
    json_text(j, "name", t->name);
    json_begin(j, "shape", '[');
    json_integer(j, NULL, p->is.microbatch * p->is.data * tokens);      // of one pass
    json_integer(j, NULL, t->width);
    json_end(j, ']');
    json_text(j, "dtype", stored_word(p, v->buffer));
    json_begin(j, "layout", '{');
    axes(j, "rows", p, l->rows | AX_DATA, l->rep);
    axes(j, "columns", p, l->cols, l->rep);
    axes(j, "replicated", p, all & (Axes)~(l->rows | l->cols | l->partial), l->rep);
    json_end(j, '}');
    json_begin(j, "local_shape", '[');
    json_integer(j, NULL, v->rows);
    json_integer(j, NULL, v->cols);
    json_end(j, ']');
    json_integer(j, "local_bytes",
                 v->rows * v->cols * dtype_bytes(p, p->buffers.at[v->buffer].dtype));
    json_integer(j, "stage", p->stage);
    json_begin(j, "stages", '[');
    json_integer(j, NULL, p->stage);
    json_end(j, ']');
    json_end(j, '}');
}

/* Is v to be shown: rows that are kept or handed on, whole? */
static bool is_activation(const Plan *p, const Value *v)
{
    return v->unit == NONE && v->tensor != NONE && !v->layout.partial && v->buffer != NONE &&
           p->tensors.at[v->tensor].kind == T_ROWS &&
           p->buffers.at[v->buffer].class == BUF_ACTIVATION;
}

/* Parameters, then activations in the layout they are made in, by the first stage and in the
 * first slice that make them; names are unique. */
static void json_tensors(Json *j, const Plan *p)
{
    ParamHome *const *homes = print_param_homes(p);
    json_begin(j, "tensors", '[');
    for (int w = 0; w < p->params.n; w++)
        json_param(j, p, homes, w);
    Map *done = map_new();
    for (int r = 0; r < p->is.stages; r++) {
        const Plan *s = plan_stage(p, r);
        for (int i = 0; i < s->insts.n && s->insts.at[i].phase == PHASE_FORWARD; i++)
            for (int k = 0; k < s->insts.at[i].nout; k++) {
                const Value *v = &s->values.at[s->insts.at[i].out[k]];
                if (!is_activation(s, v) || map_get(done, s->tensors.at[v->tensor].name) >= 0)
                    continue;
                map_put(done, s->tensors.at[v->tensor].name, 1);
                json_activation(j, s, v);
            }
    }
    json_end(j, ']');
}

static void json_stage_collectives(Json *j, const Plan *p)
{
    static const char *const phase[] = { "forward", "backward", "sync", "optimizer" };
    Traffics all = print_traffic(p, true);
    for (int i = 0; i < all.n; i++) {
        const Traffic *t = &all.at[i];
        const Inst *c = t->inst;
        bool transfer = c->coll == COLL_SEND || c->coll == COLL_RECV;
        json_begin(j, NULL, '{');
        json_text(j, "kind", coll_word[c->coll]);
        axes(j, "axes", p, transfer ? AX_STAGE : c->axes, c->rep);
        json_integer(j, "group_size", t->size);
        json_text(j, "tensor", t->tensor);
        json_real(j, "bytes", t->bytes);
        json_integer(j, "count_per_step", t->calls);
        json_null(j, "seconds");
        json_null(j, "exposed_s");
        json_null(j, "algorithm");
        json_text(j, "stream", stream_word[inst_stream(p, c)]);
        json_text(j, "phase", phase[c->phase]);
        json_text(j, "reason", t->reason);
        json_text(j, "source", source_where(c->loc));
        json_integer(j, "stage", p->stage);
        if (transfer)
            json_integer(j, "peer", c->peer);
        json_end(j, '}');
    }
}

static void json_collectives(Json *j, const Plan *p)
{
    json_begin(j, "collectives", '[');
    for (int r = 0; r < p->is.stages; r++)
        json_stage_collectives(j, plan_stage(p, r));
    json_end(j, ']');
}

void print_json(const Plan *p, bool schedule, FILE *f)
{
    Json json = { f, true, 1 }, *j = &json;
    fputc('{', f);
    json_head(j, p);
    json_mesh(j, p);
    print_json_layout(j, p);
    print_json_predicted(j, p);
    if (p->pipeline)
        json_grids(j, p);
    json_memory(j, p);
    json_operators(j, p);
    json_tensors(j, p);
    json_collectives(j, p);
    if (schedule)
        json_schedule(j, p);
    json_end(j, '}');
    fputc('\n', f);
}
