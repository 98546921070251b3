/*
 * network.c - what a rank asks of the network in a step, and over which links (network.h).
 *
 * Known lie: the tied matrices of the first and the last stage are counted as one
 * all-reduce between two ranks over the links of a transfer.
 */
#include "network.h"
#include "print.h"

/* ---- uses ------------------------------------------------------------------------- */

static void add_use(NetUses *all, NetUse u)
{
    for (int i = 0; i < all->n; i++) {
        NetUse *a = &all->at[i];
        if (a->coll == u.coll && a->axis == u.axis && a->size == u.size) {
            a->calls += u.calls;
            a->bytes += u.bytes;
            a->seconds += u.seconds;
            return;
        }
    }
    if (u.calls > 0)
        vec_add(all, u);
}

static RingKind ring_of(CollKind k)
{
    return k == COLL_REDUCE_SCATTER || k == COLL_REDUCE ? RING_SUM
         : k == COLL_ALL_REDUCE ? RING_ALL : RING_GATHER;
}

/* One call of an instruction. */
static double call_seconds(const Plan *p, const Cost *c, const Inst *i, double bytes)
{
    if (i->coll == COLL_SEND)
        return price_transfer(&c->prices, &c->mesh, i->peer, i->phase == PHASE_FORWARD, bytes);
    if (i->axes & AX_STAGE)
        return price_transfer(&c->prices, &c->mesh, p->is.stages - 1, true, bytes);
    Group g = price_group(&c->prices, &c->mesh, i->axes);
    g.size = (int)print_group(p, i);
    if (i->coll == COLL_BROADCAST || i->coll == COLL_REDUCE)    // as cost.c: see blocks there
        bytes *= (double)g.size / (g.size - 1);
    return price_collective(&c->prices, &g, ring_of(i->coll), 1, bytes);
}

static NetUses laid_out(const Plan *p, const Cost *c)
{
    NetUses all = { 0 };
    Traffics t = print_traffic(p, true);
    for (int k = 0; k < t.n; k++) {
        const Traffic *a = &t.at[k];
        const Inst *i = a->inst;
        bool transfer = i->coll == COLL_SEND || i->coll == COLL_RECV;
        if (i->coll == COLL_RECV)       // the other end of a send
            continue;
        double calls = (double)a->calls;
        NetUse u = { i->coll, transfer ? str("stage")
                     : str(axes_word(print_axes(p, i->axes, i->rep), i->rep)),
                     a->size, calls, a->sum, calls * call_seconds(p, c, i, a->bytes) };
        add_use(&all, u);
    }
    return all;
}

static const CollKind coll_of[] = { [RING_GATHER] = COLL_ALL_GATHER,
                                    [RING_SUM] = COLL_REDUCE_SCATTER,
                                    [RING_ALL] = COLL_ALL_REDUCE };

/* A collective of `count` turns of a section, for all units of the step. */
static void paper_term(NetUses *all, const Pipeline *q, const Term *t, double count)
{
    static const char *const axis[] = { "x", "y", "z" };
    const Schedule *s = &q->schedule;
    bool both = t->axis == 2 && t->group.size > q->plan->is.z;
    CollKind kind = !t->rooted ? coll_of[t->ring] : t->ring == RING_SUM ? COLL_REDUCE
                                                                        : COLL_BROADCAST;
    NetUse u = { kind, str(both ? "x z" : axis[t->axis]), t->group.size, 0, 0, 0 };
    for (int i = 0; i < s->k; i++) {
        double bytes = t->token_bytes * (double)(s->b * s->slice[i]) + t->bytes;
        u.calls += t->calls;
        u.bytes += t->rooted ? bytes * (t->group.size - 1) / t->group.size : bytes;
        u.seconds += price_collective(&q->cost->prices, &t->group, t->ring, t->calls, bytes);
    }
    count *= s->m;
    u.calls *= count;
    u.bytes *= count;
    u.seconds *= count;
    add_use(all, u);
}

static void paper_section(NetUses *all, const Pipeline *q, const Stretch *s)
{
    bool full = q->plan->is.recompute == RECOMPUTE_FULL;
    for (int i = 0; i < s->nclasses; i++) {
        const TurnClass *t = &q->cost->classes.at[s->class[i]];
        bool again = full && s->class[i] != q->cost->head && s->class[i] != q->cost->tail;
        for (int k = 0; k < t->terms.n; k++) {
            const Term *u = &t->terms.at[k];
            if (u->kind == TERM_COLLECTIVE)
                paper_term(all, q, u, s->count[i] * (again && !u->backward ? 2 : 1));
        }
    }
}

/* Results and gradients that section i of stage r hands on. */
static void paper_sends(NetUses *all, const Pipeline *q, int i)
{
    const Schedule *s = &q->schedule;
    int ranks = q->plan->is.x * q->plan->is.y * q->plan->is.z, n = q->P * q->v;
    for (int k = 0; q->P > 1 && k < s->k; k++) {
        double tokens = (double)(s->b * s->slice[k]), m = s->m;
        NetUse u = { COLL_SEND, str("stage"), 2, m, 0, 0 };
        if (i + 1 < n) {
            u.bytes = m * tokens * (double)s->cut_bytes[i] / ranks;
            u.seconds = m * q->timing.send_forward[i * s->k + k];
            add_use(all, u);
        }
        if (i > 0) {
            u.bytes = m * tokens * (double)s->cut_bytes[i - 1] / ranks;
            u.seconds = m * q->timing.send_backward[i * s->k + k];
            add_use(all, u);
        }
    }
}

static NetUses paper(const Pipeline *q, int r)
{
    NetUses all = { 0 };
    const Choices *is = &q->plan->is;
    double parameters = q->P == 1 ? -q->cost->tied : 0, d = is->data;
    for (int c = 0; c < q->v; c++) {
        paper_section(&all, q, &q->section[c * q->P + r]);
        paper_sends(&all, q, c * q->P + r);
        parameters += q->section[c * q->P + r].parameters;
    }
    double part = parameters * (d - 1) / d;
    bool shards = is->zero >= 1;
    if (is->data > 1) {
        NetUse u = { shards ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE, str("data"), is->data, 1,
                     part * q->cost->gradient * (shards ? 1 : 2), q->timing.sync[r] };
        add_use(&all, u);
        NetUse g = { COLL_ALL_GATHER, str("data"), is->data, shards, part * q->cost->element,
                     q->timing.gather[r] };
        add_use(&all, g);
    }
    if (q->timing.tied > 0 && (r == 0 || r == q->P - 1)) {
        NetUse u = { COLL_ALL_REDUCE, str("stage"), 2, 1, q->cost->tied * q->cost->gradient,
                     q->timing.tied };
        add_use(&all, u);
    }
    return all;
}

NetUses network_uses(const Plan *p, const Pipeline *q, int r, bool on_paper)
{
    const Plan *s = plan_stage(p, r);
    return on_paper || s->insts.n == 0 ? paper(q, r) : laid_out(s, q->cost);
}

/* ---- links ------------------------------------------------------------------------ */

/* Does a rank lead from its node, to the next member of its group? */
static bool leaves(const Prices *w, const Mesh *m, int axis, int rank)
{
    int at = rank / m->stride[axis] % m->size[axis];
    int to = rank + (at + 1 < m->size[axis] ? m->stride[axis] : -at * m->stride[axis]);
    return rank / w->per_node != to / w->per_node;
}

Links network_links(const Prices *w, const Mesh *m, int axis)
{
    Links l = { .size = m->size[axis], .stride = m->stride[axis], .ports = w->ports,
                .rate = w->link, .alpha = w->link_alpha };
    int here = m->ranks < w->per_node ? m->ranks : w->per_node, last = -1;
    for (int i = 0; i < l.size; i++) {
        int node = i * l.stride / w->per_node;
        l.inside += node == 0;
        l.nodes += node != last;
        last = node;
    }
    l.crosses = l.nodes > 1;
    for (int rank = 0; rank < m->ranks && axis == MESH_STAGE; rank++)
        l.crosses |= leaves(w, m, axis, rank);
    if (!l.crosses)
        return l;
    l.groups = here / (l.inside > 0 ? l.inside : 1);
    l.spine = w->spine_nodes > 0 && (l.size - 1) * l.stride >= w->spine_nodes * w->per_node;
    l.rate = l.spine ? w->spine : w->port;
    l.alpha = l.spine ? w->spine_alpha : w->port_alpha;
    return l;
}

const char *network_links_text(const Links *l)
{
    const char *rate = str_bytes(l->rate);
    if (l->size == 1)
        return "-";
    if (!l->crosses)
        return str_fmt("inside a node, %s/s a device", rate);
    return str_fmt("%s, %s of a group in each; %s on %s of %s/s%s", plural(l->nodes, "node"),
                   plural(l->inside, "member"), plural(l->groups, "group"),
                   plural(l->ports, "port"), rate, l->spine ? " through the spine" : "");
}
