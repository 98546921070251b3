/*
 * tune_fit.c - the best layout is laid out before it is shown.
 *
 * Bytes of a search are sums (estimate.h); a block has gaps. A best one that nearly fills the room
 * is laid out as `plan` does it. Where it does not fit, its mesh and microbatch are searched
 * again with as much less room as the gaps took, and what then is best is looked at.
 */
#include "partition.h"
#include "tune_print.h"

/* TUNING: what is expected to fill less of the room was not seen to outgrow it (gaps took 9 % of a
 * block with slices); so many layouts are laid out before the next is shown as it is. */
#define NEAR_ROOM 0.88
enum { MOST_LAID_OUT = 8 };

/* The best variant of a candidate's mesh and microbatch that holds no more than `room`. */
static bool search_again(const Tune *t, const Candidate *is, double room, Candidate *best)
{
    Config *c = tune_config(t, &is->at);
    const PlanSpec mesh = c->plan;
    c->plan = t->plan->config->plan;
    c->plan.data = mesh.data;
    c->plan.pipeline = mesh.pipeline;
    memcpy(c->plan.cube, mesh.cube, sizeof mesh.cube);
    c->plan.microbatch = mesh.microbatch;
    Plan *p = tune_open(c);
    TuneAsk ask = { .objective = t->ask.objective, .top = 1, .turns_only = t->ask.turns_only,
                    .no_front = true, .budget_s = t->ask.budget_s };
    if (p == NULL)
        return false;
    p->is.room_bytes = (int64_t)room;
    Tune *again = tune_search(p, &ask);
    if (again == NULL || again->best.n == 0)
        return false;
    *best = again->best.at[0];
    best->at.keep = best->is.keep;      // with all the room it would be another
    best->is.room_bytes = is->is.room_bytes;
    return true;
}

static void drop_first(Tune *t)
{
    t->best.n--;
    memmove(t->best.at, t->best.at + 1, sizeof *t->best.at * (size_t)t->best.n);
}

void tune_fit(Tune *t)
{
    double start = now_s();
    for (int i = 0; i < MOST_LAID_OUT && t->best.n; i++) {
        Candidate first = t->best.at[0], other;
        double room = first.is.room_bytes;
        bool late = t->ask.budget_s > 0 && t->seconds + now_s() - start > t->ask.budget_s;
        if (first.is.memory.peak <= NEAR_ROOM * room || late)
            break;
        Plan p = *t->plan;
        p.config = tune_config(t, &first.at);
        PlanSpec s = p.config->plan;
        if (s.keep.v == NULL)
            s.keep.v = keep_word[first.is.keep];
        int64_t bytes = laid_out_bytes(&p, &s);
        t->laid_out = bytes < INT64_MAX ? bytes : 0;
        if (bytes == INT64_MAX || (double)bytes <= room)    // or nobody knows
            break;
        t->laid_out = 0;
        vec_add(&t->outgrown, ((LaidOut){ first.at, bytes }));
        drop_first(t);
        if (search_again(t, &first, room * first.is.memory.peak / (double)bytes, &other))
            tune_add(t, &other);
        else if (t->best.n == 0) {
            first.is.memory.peak = (double)bytes;
            t->near = first;
            t->has_near = true;
        }
    }
    t->seconds += now_s() - start;
}
