/*
 * comm.c - collectives as the executor calls them: groups made once at start,
 * arguments checked, bytes counted, then the back end's function.
 *
 * A group of one needs no peer: it goes to the null back end whatever the run
 * uses. Groups are made for every combination of axes that the program names,
 * in one order, before any rank starts.
 */
#include "rt_impl.h"

/* Share i of n elements in `parts`, in multiples of `grain`. */
void rt_split(int64_t n, int64_t parts, int64_t i, int64_t grain, int64_t *lo, int64_t *hi)
{
    int64_t units = (n + grain - 1) / grain;
    *lo = units * i / parts * grain;
    *hi = units * (i + 1) / parts * grain;
    if (*lo > n)
        *lo = n;
    if (*hi > n)
        *hi = n;
}

/* ---- groups -------------------------------------------------------------- */

static int find_kind(Rt *rt, int axes, int rep, uint64_t stages)
{
    bool halved = ((axes & RT_YK) != 0) != ((axes & RT_YR) != 0);
    rep = halved && rep > 1 ? rep : 1;
    if (rep == 1)                       // YR is then empty, YK all of y
        axes = axes & RT_YK ? axes | RT_YR : axes & ~RT_YR;
    stages = axes & RT_STAGE ? stages : 0;
    for (int i = 0; i < rt->nkinds; i++)
        if (rt->kind[i].axes == axes && rt->kind[i].rep == rep && rt->kind[i].stages == stages)
            return i;
    if (rt->nkinds % 64 == 0) {
        RtGroupKind *more = rt_alloc((size_t)rt->nkinds + 64, sizeof *more);
        if (rt->nkinds)
            memcpy(more, rt->kind, sizeof *more * (size_t)rt->nkinds);
        free(rt->kind);
        rt->kind = more;
    }
    rt->kind[rt->nkinds] = (RtGroupKind){ axes, rep, stages };
    return rt->nkinds++;
}

static RtGroup *new_group(Rt *rt, const int *ranks, int n)
{
    RtGroup *g = rt_alloc(1, sizeof *g);
    g->n = n;
    g->rank = rt_alloc((size_t)n, sizeof *g->rank);
    memcpy(g->rank, ranks, sizeof *ranks * (size_t)n);
    size_t bytes = sizeof *g->slot * (size_t)n;
    g->slot = aligned_alloc(RT_LINE, bytes);
    if (!g->slot || rt_barrier_make(&g->barrier, n, g->rank)) {
        fputs("error: out of memory\n", stderr);
        exit(RT_WORLD);
    }
    memset(g->slot, 0, bytes);
    rt->groups[rt->ngroups++] = g;
    return g;
}

static bool takes_part(const RtGroupKind *k, const RtRank *r)
{
    return !(k->axes & RT_STAGE) || k->stages >> r->stage & 1;
}

/*
 * The groups of one kind in which ranks of this process are. Ranks fall into one group
 * when they agree on all axes outside the kind. Rank numbers have the order of groups:
 * stage, data, x, y, z; and y = yk, yr.
 */
static void seat_kind(Rt *rt, int ikind, int *members)
{
    RtGroupKind *k = &rt->kind[ikind];
    int others = (RT_STAGE | RT_DATA | RT_X | RT_YK | RT_YR | RT_Z) & ~k->axes;
    for (int i = rt->first; i < rt->first + rt->nlocal; i++) {
        RtRank *r = &rt->rank[i];
        if (r->seat[ikind].group || !takes_part(k, r))
            continue;
        int place = rt_axis_coordinate(r, others, k->rep, NULL), n = 0;
        for (int j = 0; j < rt->nranks; j++)
            if (takes_part(k, &rt->rank[j])
                && rt_axis_coordinate(&rt->rank[j], others, k->rep, NULL) == place)
                members[n++] = j;
        RtGroup *g = new_group(rt, members, n);
        for (int m = 0; m < n; m++)
            if (rt_is_here(rt, members[m]))
                rt->rank[members[m]].seat[ikind] = (RtSeat){ g, m };
    }
}

/* The kind of the group that each step of one stage works in. */
static int *kinds_of_steps(Rt *rt, const RtProgram *p)
{
    int *kind = rt_alloc((size_t)p->head->nsteps, sizeof *kind);
    for (int i = 0; i < p->head->nsteps; i++) {
        const RtStep *s = &p->steps[i];
        bool has = (s->kind >= RT_ALL_GATHER && s->kind <= RT_CE_MERGE) || s->kind == RT_COUNT;
        int axes = s->kind == RT_COUNT ? RT_DATA : s->axes;
        kind[i] = has ? find_kind(rt, axes, s->rep, s->stages) : -1;
    }
    return kind;
}

int rt_groups_make(Rt *rt)
{
    int nstages = rt->head->nstages;
    rt->step_kind = rt_alloc((size_t)nstages, sizeof *rt->step_kind);
    for (int s = 0; s < nstages; s++)
        rt->step_kind[s] = kinds_of_steps(rt, &rt->program[s]);
    int *members = rt_alloc((size_t)rt->nranks, sizeof *members);
    rt->groups = rt_alloc((size_t)rt->nlocal * (size_t)rt->nkinds + 1, sizeof *rt->groups);
    for (int i = 0; i < rt->nranks; i++)
        members[i] = i;
    rt->everyone = new_group(rt, members, rt->nranks);
    for (int i = rt->first; i < rt->first + rt->nlocal; i++) {
        RtRank *r = &rt->rank[i];
        r->seat = rt_alloc((size_t)rt->nkinds, sizeof *r->seat);
        r->step_kind = rt->step_kind[r->stage];
        r->world = (RtSeat){ rt->everyone, i };
    }
    for (int k = 0; k < rt->nkinds; k++)
        seat_kind(rt, k, members);
    free(members);
    return RT_OK;
}

const RtSeat *rt_seat_of(const RtRank *r, int axes, int rep, uint64_t stages)
{
    int known = r->rt->nkinds, k = find_kind(r->rt, axes, rep, stages);
    r->rt->nkinds = known;              // one that no step has stays unknown
    return k < known ? &r->seat[k] : NULL;
}

void rt_groups_free(Rt *rt)
{
    for (int i = 0; i < rt->ngroups; i++) {
        RtGroup *g = rt->groups[i];
        rt_barrier_free(&g->barrier);
        free(g->slot);
        free(g->rank);
        free(g);
    }
    for (int i = 0; rt->rank && i < rt->nranks; i++)
        free(rt->rank[i].seat);
    free(rt->groups);
    free(rt->kind);
    for (int s = 0; rt->step_kind && s < rt->head->nstages; s++)
        free(rt->step_kind[s]);
    free(rt->step_kind);
}

/* ---- calls --------------------------------------------------------------- */

static const RtComm *comm_of(const RtWorker *w, const RtSeat *s)
{
    return s->group->n == 1 ? &rt_comm_null : w->rank->rt->comm;
}

static void count(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n, int times)
{
    if (w->index == 0)
        w->rank->received += (double)n * (s->group->n - 1) * times
                             * (double)rt_size(w->rank->rt, dst.stored);
}

int rt_all_gather(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n)
{
    count(w, s, dst, n, 1);
    return n > 0 ? comm_of(w, s)->all_gather(w, s, src, dst, n) : RT_OK;
}

int rt_reduce_scatter(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n,
                      bool add)
{
    count(w, s, src, n, 1);
    return n > 0 ? comm_of(w, s)->reduce_scatter(w, s, src, dst, n, add) : RT_OK;
}

int rt_all_reduce(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n)
{
    count(w, s, dst, n / s->group->n, 2);
    return n > 0 ? comm_of(w, s)->all_reduce(w, s, dst, n) : RT_OK;
}

/* Words received: those of all but the member that has them, and of the one that sums. */
int rt_broadcast(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst, int64_t n)
{
    count(w, s, dst, s->me == root ? 0 : n, s->group->n > 1 ? 1 : 0);
    return n > 0 ? comm_of(w, s)->broadcast(w, s, root, src, dst, n) : RT_OK;
}

int rt_reduce(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst, int64_t n,
              bool add)
{
    count(w, s, src, s->me == root ? n : 0, 1);
    return n > 0 ? comm_of(w, s)->reduce(w, s, root, src, dst, n, add) : RT_OK;
}

int rt_all_to_all(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                  const RtBoxes *boxes)
{
    if (w->index == 0)
        for (int i = 0; i < boxes->nboxes; i++)
            if (boxes->box[i].peer != s->me)
                for (int k = 0; k < boxes->box[i].nruns; k++)
                    w->rank->received += (double)boxes->box[i].rows
                                         * (double)boxes->run[boxes->box[i].run + k].n
                                         * (double)rt_size(w->rank->rt, dst.stored);
    return comm_of(w, s)->all_to_all(w, s, src, dst, boxes);
}

int rt_sum_doubles(RtWorker *w, const RtSeat *s, double *v, int n)
{
    return comm_of(w, s)->sum_doubles(w, s, v, n);
}

int rt_barrier(RtWorker *w, const RtSeat *s)
{
    return comm_of(w, s)->barrier(w, s);
}

/* Worker 0; called with an error too. */
int rt_agree(RtWorker *w)
{
    RtRank *r = w->rank;
    return rt_processes(r->rt) ? rt_processes_agree(r->rt, r) : rt_barrier(w, &r->world);
}

int rt_processes_agree(Rt *rt, RtRank *r)
{
    return rt->mpi ? rt_mpi_agree(rt, r) : rt->remote ? rt_remote_agree(rt, r) : RT_OK;
}

int rt_bring(RtWorker *w, const void *p, size_t bytes)
{
    return w->rank->rt->mpi ? rt_mpi_bring(w, p, bytes) : rt_remote_bring(w, p, bytes);
}

int rt_take(RtWorker *w, int from, void *p, size_t bytes)
{
    return w->rank->rt->mpi ? rt_mpi_take(w, from, p, bytes) : rt_remote_take(w, from, p, bytes);
}

/* ---- messages ------------------------------------------------------------- */

static int peer_of(const RtRank *r, int stage)
{
    return r->id + (stage - r->stage) * (r->rt->nranks / r->rt->head->nstages);
}

/* What a message of the pass carries. */
int rt_mail_kind(const RtPass *pass)
{
    return pass->kind == RT_PASS_SEND_GRADIENT || pass->kind == RT_PASS_RECV_GRADIENT
           || pass->kind == RT_PASS_BACKWARD ? RT_MAIL_GRADIENT : RT_MAIL_ACTIVATION;
}

int rt_send(RtWorker *w, int stage, const void *src, int64_t bytes)
{
    int peer = peer_of(w->rank, stage);
    return bytes > 0 ? w->rank->rt->comm->send(w, peer, rt_mail_kind(w->pass), src, bytes) : RT_OK;
}

int rt_recv(RtWorker *w, int stage, void *dst, int64_t bytes)
{
    if (w->index == 0)
        w->rank->received += (double)bytes;
    int peer = peer_of(w->rank, stage);
    return bytes > 0 ? w->rank->rt->comm->recv(w, peer, rt_mail_kind(w->pass), dst, bytes) : RT_OK;
}
