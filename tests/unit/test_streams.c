/*
 * test_streams.c - do the events of the CUDA program order all that must be ordered? Found
 * again here in the plainest way: every two instructions of a function that touch the same bytes,
 * one of them writing, must be ordered by their streams and by the events between them.
 */
#include <criterion/criterion.h>

#include "grids.h"
#include "plan.h"

static bool touches(const Plan *p, ValueId id, int64_t *from, int64_t *to)
{
    const Value *v = &p->values.at[id];
    const Buffer *b = &p->buffers.at[v->buffer];
    int64_t bytes = dtype_bytes(p, b->dtype);
    *from = b->offset + v->offset * bytes;
    *to = *from + ((v->rows - 1) * v->ld + v->cols) * bytes;
    return v->rows > 0;
}

static bool in_conflict(const Plan *p, const Inst *a, const Inst *b)
{
    for (int i = 0; i < a->nin + a->nout; i++)
        for (int j = 0; j < b->nin + b->nout; j++) {
            if (i < a->nin && j < b->nin)
                continue;
            ValueId x = i < a->nin ? a->in[i] : a->out[i - a->nin];
            ValueId y = j < b->nin ? b->in[j] : b->out[j - b->nin];
            int64_t xf, xt, yf, yt;
            if (p->buffers.at[p->values.at[x].buffer].region ==
                p->buffers.at[p->values.at[y].buffer].region &&
                touches(p, x, &xf, &xt) && touches(p, y, &yf, &yt) && xf < yt && yf < xt)
                return true;
        }
    return false;
}

/*
 * Pairs of a function that nothing orders. before[i][j]: i is over when j begins. A wait is
 * for the latest record of its event in front of it, as in CUDA.
 */
static int unordered(const Plan *p, const Func *f)
{
    int n = f->end - f->first, missing = 0;
    const Inst *at = &p->insts.at[f->first];
    char *before = calloc((size_t)n * (size_t)n + 1, 1);
    for (int j = 0; j < n; j++) {
        VEC(int) direct = { 0 };
        for (int i = j; i-- > 0;)
            if (at[i].stream == at[j].stream) {
                vec_add(&direct, i);
                break;
            }
        for (int w = 0; w < at[j].nwaits; w++)
            for (int i = j; i-- > 0;)
                if (at[i].signal == at[j].wait[w]) {
                    vec_add(&direct, i);
                    break;
                }
        for (int d = 0; d < direct.n; d++) {
            before[direct.at[d] * n + j] = 1;
            for (int i = 0; i < n; i++)
                before[i * n + j] |= before[i * n + direct.at[d]];
        }
    }
    for (int j = 0; j < n; j++)
        for (int i = 0; i < j; i++)
            missing += !before[i * n + j] && at[i].stream != at[j].stream &&
                       in_conflict(p, &at[i], &at[j]);
    free(before);
    return missing;
}

static int all_unordered(const Plan *p)
{
    int n = 0;
    for (int f = 0; f < p->funcs.n; f++)
        n += unordered(p, &p->funcs.at[f]);
    return n;
}

static Plan *ordered(const char *file, const char *const *sets)
{
    Plan *p = grids_compile(grids_config(file, sets), 1);
    cr_assert(p != NULL, "%s does not compile", file);
    streams_order(p);
    return p;
}

/* Everything is ordered; and no longer when any one wait is left out. Returns the waits. */
static int check(Plan *p)
{
    int n = 0;
    for (int r = 0; r < p->is.stages; r++) {
        Plan *s = plan_stage(p, r);
        cr_expect_eq(all_unordered(s), 0, "stage %d", r);
        for (int f = 0; f < s->funcs.n; f++)
            for (int i = s->funcs.at[f].first; i < s->funcs.at[f].end; i++) {
                Inst *x = &s->insts.at[i];
                for (int w = 0; w < x->nwaits; w++, n++) {
                    int was = x->wait[w];
                    x->wait[w] = -2;
                    cr_expect_gt(unordered(s, &s->funcs.at[f]), 0, "stage %d, instruction %d: "
                                 "wait %d is one too many", r, i, w);
                    x->wait[w] = was;
                }
            }
    }
    return n;
}

Test(streams, all_that_conflicts_is_ordered)
{
    static const char *const set[][8] = {
        { "plan.cube=[2,2,2]", "plan.keep=none" },
        { "plan.cube=[2,2,2]", "plan.keep=both", "plan.prefetch=1" },
        { "plan.cube=[2,1,2]", "plan.data=2", "plan.zero=3", "plan.keep=none", "plan.prefetch=2" },
        { "plan.data=2", "plan.zero=2", "plan.pipeline=2", "plan.slices=[32,32]" },
    };
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        cr_expect_gt(check(ordered("examples/tiny.tcube", set[i])), 0, "no waits: %zu", i);
}

/* With prefetch = 1, what a gather of weights waits for stands before the turn before. */
Test(streams, weights_are_gathered_a_turn_ahead)
{
    for (int ahead = 0; ahead < 2; ahead++) {
        const char *const sets[] = { "plan.cube=[2,2,2]", "plan.keep=none", "model.layers=4",
                                     ahead ? "plan.prefetch=1" : "plan.prefetch=0", NULL };
        Plan *p = ordered("examples/tiny.tcube", sets);
        int late = 0, gathers = 0, turn = NONE, start = 0, previous = 0;
        for (int i = 0; i < p->insts.n; i++) {
            const Inst *n = &p->insts.at[i];
            int mine = inst_turn(p, i, p->insts.n);
            if (mine != turn) {
                previous = start;
                start = i;
                turn = mine;
            }
            if (n->stream != STREAM_WEIGHTS)
                continue;
            gathers++;
            for (int w = 0; w < n->nwaits; w++) {
                int from = i - 1;
                while (p->insts.at[from].signal != n->wait[w])
                    from--;
                late += from >= previous;
            }
        }
        cr_expect_gt(gathers, 16);
        if (ahead)
            cr_expect_eq(late, 0);
        else
            cr_expect_gt(late, 0);
    }
}
