/*
 * verify_calls.c - functions and step tables: what of a stage's instructions runs when.
 *
 * verify_flow.c reads the instructions in the order in which one microbatch would run them.
 * It holds for any table that keeps the order of schedule_check and gives every unit
 * memory of its own, which is checked here.
 */
#include "verify.h"
#include "predict.h"

/* ---- functions ------------------------------------------------------------------- */

/* The next function of the canonical order (plan.h, StepKind); false behind the last. */
static bool next_func(const Plan *p, Func *f)
{
    static const StepKind forth[] = { STEP_RECV_ACTIVATION, STEP_FORWARD, STEP_SEND_ACTIVATION },
                          back[] = { STEP_RECV_GRADIENT, STEP_BACKWARD, STEP_SEND_GRADIENT };
    int k = p->is.nslices, n = p->is.chunks * k, unit = f->chunk * k + f->slice, at = 0;
    if (f->kind == STEP_SYNC || f->kind == STEP_OPTIMIZER) {
        f->kind++;
        return f->kind == STEP_OPTIMIZER;
    }
    bool begin = f->kind == STEP_BEGIN;
    bool is_forth = f->kind == STEP_FORWARD || f->kind == STEP_SEND_ACTIVATION ||
                    f->kind == STEP_RECV_ACTIVATION;
    const StepKind *list = begin || is_forth ? forth : back;
    while (!begin && list[at] != f->kind)
        at++;
    for (at = begin ? 0 : at + 1;; at++) {
        if (at == 3 && list == forth && unit + 1 < n)
            unit++, at = 0;
        else if (at == 3 && list == forth)
            list = back, at = 0;        // from the last chunk, and its last slice
        else if (at == 3 && unit > 0)
            unit--, at = 0;
        else if (at == 3)
            break;
        int section = unit / k * p->is.stages + p->stage;
        bool first = section == 0 || p->is.stages == 1;
        bool last = section == p->is.stages * p->is.chunks - 1 || p->is.stages == 1;
        StepKind kind = list[at];
        if ((first && (kind == STEP_RECV_ACTIVATION || kind == STEP_SEND_GRADIENT)) ||
            (last && (kind == STEP_SEND_ACTIVATION || kind == STEP_RECV_GRADIENT)))
            continue;
        *f = (Func){ kind, unit % k, unit / k, 0, 0 };
        return true;
    }
    *f = (Func){ STEP_SYNC, 0, 0, 0, 0 };
    return true;
}

/* What a function does belongs to its phase; targets are counted in BEGIN. */
static void check_phases(Verify *v, const Plan *p, const Func *f)
{
    static const Phase of[STEP_KINDS] = {
        [STEP_BACKWARD] = PHASE_BACKWARD, [STEP_SEND_GRADIENT] = PHASE_BACKWARD,
        [STEP_RECV_GRADIENT] = PHASE_BACKWARD, [STEP_SYNC] = PHASE_SYNC,
        [STEP_OPTIMIZER] = PHASE_OPTIMIZER };
    for (int i = f->first; i < f->end && i < p->insts.n; i++) {
        const Inst *n = &p->insts.at[i];
        if (n->phase != of[f->kind] || (n->kind == I_COUNT && f->kind != STEP_BEGIN))
            verify_fail(v, i, "stands in a function of another phase, %s", step_word[f->kind]);
    }
}

/* Every instruction belongs to one function, and they stand in the order of a unit. */
static void check_functions(Verify *v, const Plan *p)
{
    Func want = { STEP_BEGIN, 0, 0, 0, 0 };
    bool more = true;
    InstId at = 0;
    for (int i = 0; i < p->funcs.n; i++) {
        const Func *f = &p->funcs.at[i];
        if (!more || f->kind != want.kind || f->slice != want.slice || f->chunk != want.chunk)
            verify_fail(v, NONE, "function %d of stage %d is %s %d.%d", i, p->stage,
                        step_word[f->kind], f->slice, f->chunk);
        if (f->first != at || f->end < at)
            verify_fail(v, NONE, "functions of stage %d do not follow one another", p->stage);
        check_phases(v, p, f);
        at = f->end;
        more = more && next_func(p, &want);
    }
    if (more || at != p->insts.n)
        verify_fail(v, NONE, "stage %d has %d functions, up to instruction %d of %d", p->stage,
                    p->funcs.n, at, p->insts.n);
}

/* ---- calls ----------------------------------------------------------------------- */

/* The calls fit their functions; `again` is as the table says. The steps less BEGIN. */
static Steps calls_steps(Verify *v, const Plan *p)
{
    Steps out = { 0 };
    bool *called = NEWN(bool, p->funcs.n + 1);
    vec_reserve(&out, p->calls.n);
    for (int i = 0; i < p->calls.n; i++) {
        const Call *c = &p->calls.at[i];
        const Step *s = &c->step;
        if (c->func < 0 || c->func >= p->funcs.n) {
            verify_fail(v, NONE, "call %d of stage %d has no function", i, p->stage);
            continue;
        }
        const Func *f = &p->funcs.at[c->func];
        if (f->kind != s->kind || f->slice != s->slice || f->chunk != s->chunk)
            verify_fail(v, NONE, "call %d of stage %d, %s, runs %s %d.%d", i, p->stage,
                        step_text(s), step_word[f->kind], f->slice, f->chunk);
        if (c->again != called[c->func])
            verify_fail(v, NONE, "call %d of stage %d, %s, is not the first of its function, or "
                        "is", i, p->stage, step_text(s));
        if ((s->kind == STEP_BEGIN) != (i == 0) || c->region[REGION_FIXED])
            verify_fail(v, NONE, "call %d of stage %d is %s", i, p->stage, step_text(s));
        called[c->func] = true;
        if (s->kind != STEP_BEGIN)
            vec_add(&out, *s);
    }
    return out;
}

/* A line of schedule_check, "check: what", as one of ours. */
static void forward_line(Verify *v, char *line)
{
    char *colon = strchr(line, ':');
    if (colon == NULL)
        return;
    *colon = 0;
    v->check = str(line);
    verify_fail(v, NONE, "%s", colon + 2);
}

/* The tables of all stages, as they will be run, against the rules of schedule.c. */
static void check_tables(Verify *v, const Plan *p)
{
    const Choices *is = &p->is;
    Schedule s = { .P = is->stages, .v = is->chunks, .k = is->nslices, .b = is->microbatch,
                   .m = (int)(is->batch / is->data / is->microbatch), .sequence = is->sequence,
                   .slice = is->slice, .stage = NEWN(Steps, is->stages) };
    s.cut_bytes = p->pipeline ? p->pipeline->schedule.cut_bytes : NEWN(int64_t, 1);
    for (int r = 0; r < is->stages; r++)
        s.stage[r] = calls_steps(v, plan_stage(p, r));
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f == NULL)
        die(EXIT_WORLD, "not enough memory");
    int failed = schedule_check(&s, f);
    fclose(f);
    for (char *line = failed ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n"))
        forward_line(v, line);
    free(text);
}

/* ---- memory of units ------------------------------------------------------------------ */

static bool belongs(const Plan *p, Region r, const Func *f, const Func *first)
{
    bool forth = f->kind == STEP_FORWARD || f->kind == STEP_SEND_ACTIVATION ||
                 f->kind == STEP_RECV_ACTIVATION;
    if (r == REGION_FIXED)
        return true;
    if (f->kind >= STEP_SYNC || f->chunk != first->chunk)
        return false;
    bool back = r == REGION_UNIT_BACK || r == REGION_MICRO_BACK;
    if (back ? forth : r == REGION_UNIT_FORTH && !forth)
        return false;
    return r >= REGION_MICRO || f->slice == first->slice || p->is.nslices == 1;
}

/* What is in a unit's memory is touched by functions of that unit alone. */
static void check_touches(Verify *v, const Plan *p)
{
    const Func **first = NEWN(const Func *, p->buffers.n + 1);
    for (int k = 0; k < p->funcs.n; k++)
        for (int i = p->funcs.at[k].first; i < p->funcs.at[k].end && i < p->insts.n; i++) {
            const Inst *n = &p->insts.at[i];
            for (int j = 0; j < n->nin + n->nout; j++) {
                BufferId b = p->values.at[j < n->nin ? n->in[j] : n->out[j - n->nin]].buffer;
                first[b] = first[b] ? first[b] : &p->funcs.at[k];
                if (!belongs(p, p->buffers.at[b].region, &p->funcs.at[k], first[b]))
                    verify_fail(v, i, "`%s` is in memory of another unit",
                                p->buffers.at[b].name);
            }
        }
}

void verify_calls(Verify *v)
{
    const Plan *p = v->p;
    v->check = "functions-cover";
    check_functions(v, p);
    v->check = "regions-apart";
    check_touches(v, p);
    v->check = "step-order";
    bool all = p->stage == 0;
    for (int r = 0; all && r < p->is.stages; r++)
        all = plan_stage(p, r)->calls.n > 0;
    if (all)
        check_tables(v, p);
}
