/*
 * sections.c - which part of the pipeline an operator belongs to, and what crosses
 * the cuts.
 *
 * A section is what one chunk of one stage holds: a run of turns; what stands before the
 * first repeat belongs to the first, what stands behind a turn to that turn's. A
 * tensor crosses every cut between the section that makes it and the last one that
 * reads it (gradients: the first one), and is handed on where it is not read.
 *
 * Operators of different blocks never share a kernel, a pending sum or an inlined
 * value. Blocks are the sections, and inside them each turn that is computed again
 * in the backward pass.
 */
#include "partition.h"
#include "predict.h"

static int turns_before(const Plan *p, int repeat)
{
    int n = 0;
    for (int i = 0; i < repeat; i++)
        n += p->turns[i];
    return n;
}

/* Turn of every zone: turns and the gaps behind them, numbered through all repeats. */
static int *turn_of_zones(const Plan *p)
{
    int zones = 1, turn = 0;
    for (int i = 0; i < p->ops.n; i++)
        zones = p->ops.at[i].zone >= zones ? p->ops.at[i].zone + 1 : zones;
    int *of = NEWN(int, zones);
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        if (o->repeat >= 0)
            turn = turns_before(p, o->repeat) + o->turn;
        of[o->zone] = turn;
    }
    return of;
}

static int section_of_turn(const Plan *p, int turn)
{
    if (p->is.stages * p->is.chunks == 1 || p->pipeline == NULL)
        return 0;
    int s = 0;
    while (turn >= p->pipeline->section[s].first + p->pipeline->section[s].turns)
        s++;
    return s;
}

/* Is the turn among the first `recompute_turns` of its stage? */
static bool turn_again(const Plan *p, int section, int turn)
{
    if (p->is.recompute != RECOMPUTE_FULL)
        return false;
    if (p->is.stages * p->is.chunks == 1 || p->pipeline == NULL)
        return turn < p->is.recompute_turns;
    int before = turn - p->pipeline->section[section].first;
    for (int s = section - p->is.stages; s >= 0; s -= p->is.stages)
        before += p->pipeline->section[s].turns;
    return before < p->is.recompute_turns;
}

int *plan_sections(const Plan *p)
{
    int *turn = turn_of_zones(p), *section = NEWN(int, p->ops.n);
    for (int i = 0; i < p->ops.n; i++)
        section[i] = section_of_turn(p, turn[p->ops.at[i].zone]);
    return section;
}

void place_sections(Part *q)
{
    Plan *p = q->p;
    int *turn = turn_of_zones(p);
    q->section = plan_sections(p);
    q->block = NEWN(int, p->ops.n);
    for (int i = 0; i < p->ops.n; i++) {
        const Op *o = &p->ops.at[i];
        int s = q->section[i];
        bool again = o->repeat >= 0 && turn_again(p, s, turn[o->zone]);
        q->block[i] = again ? (int)(p->is.stages * p->is.chunks) + turn[o->zone] : s;
    }
}

bool block_again(const Part *q, OpId op)
{
    return q->block[op] >= q->p->is.stages * q->p->is.chunks;
}

/* Sections from the one that makes t to the farthest that reads it. */
static void reach(const Part *q, TensorId t, int *from, int *to)
{
    const Plan *p = q->p;
    OpId d = p->tensors.at[t].def;
    *from = *to = q->section[d];
    for (int k = 0; k < q->spot[t].nuses; k++) {
        int u = q->section[q->spot[t].use[k]];
        bool farther = p->ops.at[d].phase == PHASE_FORWARD ? u > *to : u < *to;
        *to = farther ? u : *to;
    }
}

void place_cuts(Part *q)
{
    const Plan *p = q->p;
    int n = p->is.stages * p->is.chunks;
    q->cut = NEWN(Ends, n);
    q->cut_back = NEWN(Ends, n);
    for (int t = 0; t < p->tensors.n; t++) {
        int from, to;
        if (p->tensors.at[t].kind != T_ROWS || p->tensors.at[t].def == NONE)
            continue;
        reach(q, t, &from, &to);
        q->spot[t].crosses |= from != to;
        for (int s = from; s < to; s++)
            vec_add(&q->cut[s], t);
        for (int s = to; s < from; s++)
            vec_add(&q->cut_back[s], t);
    }
    /* what leaves a turn that is computed again, too, is in memory */
    for (int t = 0; t < p->tensors.n; t++) {
        OpId d = p->tensors.at[t].def;
        for (int k = 0; d != NONE && k < q->spot[t].nuses; k++)
            q->spot[t].crosses |= q->block[q->spot[t].use[k]] != q->block[d];
    }
}

/* ---- parameters on stages ------------------------------------------------------------- */

static void use_param(const Plan *p, TensorId t, uint64_t *of, uint64_t bit)
{
    if (t >= 0 && p->tensors.at[t].param != NONE &&
        (p->tensors.at[t].kind == T_MATRIX || p->tensors.at[t].kind == T_VECTOR))
        of[p->tensors.at[t].param] |= bit;
}

/* Matrices of one product are stored as one unit: where one of them is, all are. */
static void join_fused(const Plan *p, uint64_t *of)
{
    for (int i = 0; i < p->nforward; i++) {
        const Op *o = &p->ops.at[i];
        uint64_t all = 0;
        for (int j = 1; o->kind == OP_LINEAR && j < o->nin; j++)
            all |= of[p->tensors.at[o->in[j]].param];
        for (int j = 1; o->kind == OP_LINEAR && j < o->nin; j++)
            of[p->tensors.at[o->in[j]].param] = all;
    }
}

/* Bits of the stages that hold a parameter; there are at most 63 (mesh.c). */
void place_params(Part *q)
{
    const Plan *p = q->p;
    q->param_stages = NEWN(uint64_t, p->params.n);
    q->param_here = NEWN(bool, p->params.n);
    uint64_t *here = NEWN(uint64_t, p->params.n);
    for (int i = 0; i < p->ops.n; i++) {
        int r = q->section[i] % p->is.stages;
        for (int j = 0; j < p->ops.at[i].nin; j++) {
            use_param(p, p->ops.at[i].in[j], q->param_stages, UINT64_C(1) << r);
            use_param(p, p->ops.at[i].in[j], here, r == p->stage);
        }
    }
    join_fused(p, q->param_stages);
    join_fused(p, here);
    for (int w = 0; w < p->params.n; w++) {
        uint64_t s = q->param_stages[w];
        if (s == 0) {               // nobody reads it: kept by the first stage
            q->param_stages[w] = 1;
            here[w] = p->stage == 0;
        }
        q->param_here[w] = here[w] != 0;
    }
}
