/*
 * test_streams.c - do the events of the CUDA program order all that must be ordered? Found
 * again here in the plainest way: every two instructions of a function that touch the same bytes,
 * one of them writing, must be ordered by their streams and by the events between them.
 */
#include <criterion/criterion.h>

#include "grids.h"
#include "plan.h"

/* Something on a stream: an instruction, or a piece of the sum of gradients over data. */
typedef struct { int region; int64_t from, to; bool written; } Bytes;
typedef struct {
    StreamId stream; int signal, nwaits, *wait;
    VEC(Bytes) spans;
} Act;
typedef VEC(Act) Acts;

static Bytes bytes_of(const Plan *p, ValueId id, bool written)
{
    const Value *v = &p->values.at[id];
    const Buffer *b = &p->buffers.at[v->buffer];
    int64_t bytes = dtype_bytes(p, b->dtype), from = b->offset + v->offset * bytes;
    return (Bytes){ b->region, from, from + ((v->rows - 1) * v->ld + v->cols) * bytes, written };
}

static void add_acts(Plan *p, const Func *f, Acts *all)
{
    for (int i = f->first; i < f->end; i++) {
        Inst *n = &p->insts.at[i];
        Act a = { n->stream, n->signal, n->nwaits, n->wait, { 0 } };
        for (int j = 0; j < n->nin + n->nout && i != p->pieced; j++) {
            ValueId v = j < n->nin ? n->in[j] : n->out[j - n->nin];
            if (p->values.at[v].rows > 0)
                vec_add(&a.spans, bytes_of(p, v, j >= n->nin));
        }
        if (i != p->pieced) {
            vec_add(all, a);
            continue;
        }
        for (int k = 0; k < p->grad_pieces.n; k++) {
            GradPiece *g = &p->grad_pieces.at[k];
            Bytes s = bytes_of(p, n->in[0], true);
            int64_t bytes = dtype_bytes(p, p->buffers.at[p->values.at[n->in[0]].buffer].dtype);
            bool last = k == p->grad_pieces.n - 1;
            Act piece = { n->stream, last ? n->signal : NONE, g->nwaits, g->wait, { 0 } };
            s.from += g->at * bytes;
            s.to = s.from + g->n * bytes;
            vec_add(&piece.spans, s);
            vec_add(all, piece);
        }
    }
}

/* What a function does; SYNC goes on where the function ends that it runs under. */
static Acts acts_of(Plan *p, int f)
{
    Acts all = { 0 };
    if (p->under != NONE && p->funcs.at[f].kind == STEP_SYNC)
        return all;
    add_acts(p, &p->funcs.at[f], &all);
    for (int g = 0; f == p->under && g < p->funcs.n; g++)
        if (p->funcs.at[g].kind == STEP_SYNC)
            add_acts(p, &p->funcs.at[g], &all);
    return all;
}

static bool in_conflict(const Act *a, const Act *b)
{
    for (int i = 0; i < a->spans.n; i++)
        for (int j = 0; j < b->spans.n; j++) {
            const Bytes *x = &a->spans.at[i], *y = &b->spans.at[j];
            if ((x->written || y->written) && x->region == y->region && x->from < y->to &&
                y->from < x->to)
                return true;
        }
    return false;
}

/*
 * Pairs that nothing orders. before[i][j]: i is over when j begins. A wait is for the latest
 * record of its event in front of it, as in CUDA.
 */
static int unordered(const Acts *acts)
{
    int n = acts->n, missing = 0;
    const Act *at = acts->at;
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
                       in_conflict(&at[i], &at[j]);
    free(before);
    return missing;
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
        for (int f = 0; f < s->funcs.n; f++) {
            Acts all = acts_of(s, f);
            cr_expect_eq(unordered(&all), 0, "stage %d, function %d", r, f);
            for (int i = 0; i < all.n; i++)
                for (int w = 0; w < all.at[i].nwaits; w++, n++) {
                    int was = all.at[i].wait[w];
                    all.at[i].wait[w] = -2;
                    cr_expect_gt(unordered(&all), 0, "stage %d, function %d, act %d: wait %d is "
                                 "one too many", r, f, i, w);
                    all.at[i].wait[w] = was;
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
        { "plan.data=2", "plan.zero=0", "plan.cube=[1,2,1]", "model.hidden=256" },
        { "plan.data=2", "plan.zero=1", "plan.cube=[2,1,2]", "model.hidden=256" },
        { "plan.data=2", "plan.zero=1", "plan.pipeline=2", "plan.slices=[32,32]",
          "model.hidden=256" },
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

/* The sum over data runs under the last backward pass: all but the first layer's and the tables'
 * parts of it wait for less than the whole of the pass. */
Test(streams, gradients_are_summed_under_the_backward_pass)
{
    for (int zero = 0; zero < 2; zero++) {
        const char *const sets[] = { "plan.data=2", zero ? "plan.zero=1" : "plan.zero=0",
                                     "model.hidden=256", "model.layers=6", NULL };
        Plan *p = ordered("examples/tiny.tcube", sets);
        cr_assert_neq(p->under, NONE);
        const Func *f = &p->funcs.at[p->under];
        int early = 0;
        int64_t at = 0;
        for (int k = 0; k < p->grad_pieces.n; k++) {
            const GradPiece *g = &p->grad_pieces.at[k];
            InstId latest = NONE;
            for (int w = 0; w < g->nwaits; w++)
                for (int i = f->first; i < f->end; i++)
                    if (p->insts.at[i].signal == g->wait[w])
                        latest = i > latest ? i : latest;
            early += latest < f->first + (f->end - f->first) * 2 / 3;
            at += g->n;
        }
        cr_expect_gt(early, p->grad_pieces.n / 3);
        cr_expect_eq(at, p->values.at[p->insts.at[p->pieced].in[0]].cols, "all of it, once");
    }
}
