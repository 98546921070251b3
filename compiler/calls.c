/*
 * calls.c - the functions that a stage's instructions form, and the step table that
 * calls them.
 *
 *   needs insts (with one stage, one slice) or the stage's table of schedule.c;
 *   fills funcs, calls (without the regions' places: memory.c).
 */
#include "predict.h"

static void func_add(Plan *p, StepKind kind, InstId first, InstId end)
{
    Func f = { kind, 0, 0, first, end };
    vec_add(&p->funcs, f);
}

static InstId end_of_phase(const Plan *p, InstId from, Phase last)
{
    while (from < p->insts.n && p->insts.at[from].phase <= last)
        from++;
    return from;
}

void funcs_of_one(Plan *p)
{
    InstId at = 0;
    p->funcs.n = 0;
    while (at < p->insts.n && p->insts.at[at].kind == I_COUNT)
        at++;
    func_add(p, STEP_BEGIN, 0, at);
    static const struct { StepKind kind; Phase phase; } part[] = {
        { STEP_FORWARD, PHASE_FORWARD }, { STEP_BACKWARD, PHASE_BACKWARD },
        { STEP_SYNC, PHASE_SYNC }, { STEP_OPTIMIZER, PHASE_OPTIMIZER }
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        InstId end = end_of_phase(p, at, part[i].phase);
        func_add(p, part[i].kind, at, end);
        at = end;
    }
}

static int func_of(const Plan *p, const Step *s)
{
    for (int i = 0; i < p->funcs.n; i++) {
        const Func *f = &p->funcs.at[i];
        if (f->kind == s->kind && f->slice == s->slice && f->chunk == s->chunk)
            return i;
    }
    bug("the step table calls a function that was not made: %s", step_text(s));
}

static void call_add(Plan *p, const Step *s, bool *called)
{
    Call c = { .step = *s, .func = func_of(p, s), .after = NONE };
    c.again = called[c.func];
    called[c.func] = true;
    vec_add(&p->calls, c);
}

void calls_of_table(Plan *p, const Steps *table)
{
    Step begin = { STEP_BEGIN, 0, 0, 0, NONE, 0 };
    bool *called = NEWN(bool, p->funcs.n);
    p->calls.n = 0;
    vec_reserve(&p->calls, table->n + 1);
    call_add(p, &begin, called);
    for (int i = 0; i < table->n; i++)
        call_add(p, &table->at[i], called);
}

void calls_of_one(Plan *p)
{
    Steps t = { 0 };
    Step s = { STEP_FORWARD, 0, 0, 0, NONE, 0 };
    int64_t m = p->is.batch / p->is.data / p->is.microbatch;
    for (int j = 0; j < m; j++)
        for (int k = 0; k < 2; k++) {
            s.kind = k ? STEP_BACKWARD : STEP_FORWARD;
            s.microbatch = j;
            vec_add(&t, s);
        }
    s.microbatch = 0;
    s.kind = STEP_SYNC;
    vec_add(&t, s);
    s.kind = STEP_OPTIMIZER;
    vec_add(&t, s);
    calls_of_table(p, &t);
}
