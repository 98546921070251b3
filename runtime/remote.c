/*
 * remote.c - ranks that are processes, whose steps a device runs: launch.c brings them
 * together, NCCL moves their data, and over launch.c's connections go what is left to the
 * host: sums of a step, agreement on errors, events of the trace, who is gone.
 *
 * The end of a run:
 *   all well, or all agreed on an error     the lowest rank that found it tells it
 *   an error of one rank                    it tells it; all others hear of it and end
 *   a process is gone                       rank 0 tells whom it waited for; where rank 0 is
 *                                           gone, one process of each machine tells
 * A thread that waits for a device whose peer is gone cannot be woken: the process ends
 * without it.
 *
 * Launchers fill nodes in order, so the process's number is the place of a rank on the
 * cluster: where the plan orders ranks otherwise (`ranks = [..]`), another one than its own.
 */
#include "launch.h"
#include "rt_impl.h"

#include <math.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static const double JOIN_S = 9;         // TUNING: RT_JOIN; a missing peer is to be known in 10 s
static const double CAUSE_S = 0.3;      // a lost peer may be known a little later than what
                                        // followed from it
static const double VERDICT_S = 1.5;    // for rank 0 to say whose error it is
static const double LOOK_S = 1;         // between two looks at a device that seems to stand
static const double STILL_S = 10;       // SIGTERM ends a rank that stood still so long

struct RtRemote {
    LaunchPlace place;
    Launch *launch;
    int *rank_of, *process_of;          // by process; by rank
    bool agreed, settled, tells;        // the error is everybody's; is known to all; is told here
    double over_since;                  // the run has failed
    uint64_t moves; double still_since, looked;
    uint64_t all_moves; double all_still_since;
};

static const LaunchPeer *peer(const Rt *rt, int rank)
{
    return launch_peer(rt->remote->launch, rt->remote->process_of[rank]);
}

static void nap(void) { nanosleep(&(struct timespec){ 0, 20 * 1000000 }, NULL); }

/* ---- errors -------------------------------------------------------------- */

/* In the place of what this process thought. */
static void replace_fault(Rt *rt, int status, const char *text)
{
    pthread_mutex_lock(&rt->fault_lock);
    snprintf(rt->fault, sizeof rt->fault, "%s", text);
    atomic_store(&rt->status, status);
    pthread_mutex_unlock(&rt->fault_lock);
    rt_wake_all(rt);
}

/* What rank `rank` was last heard to do; nothing where it said nothing. */
static void heard_words(const Rt *rt, int rank, char *out, size_t room)
{
    const RtRemote *m = rt->remote;
    LaunchState s = launch_heard(m->launch, m->process_of[rank]);
    RtProgram const *p = rt->rank ? rt->rank[rank].program : NULL;
    *out = 0;
    if (!p || s.op < 0 || s.op >= p->head->nsteps)
        return;
    snprintf(out, room, "\nnote: rank %d on %s was last heard in '%s' (%s, step %lld)", rank,
             peer(rt, rank)->host, rt_text(p, p->steps[s.op].name),
             rt_text(p, p->steps[s.op].source), (long long)s.step + 1);
}

/* What this rank is at. */
static void own_words(Rt *rt, double seconds, char *out, size_t room)
{
    RtRank *r = rt->rank ? &rt->rank[rt->first] : NULL;
    if (!r || !r->worker) {
        snprintf(out, room, "rank %d had not begun", rt->first);
        return;
    }
    if (rt_device_where(r))
        rt_waiting(r, -1, "the sums of the step", seconds, out, room);
    else
        snprintf(out, room, "rank %d was opening its device", rt->first);
}

static void gone_words(Rt *rt, const LaunchNews *n, char *out, size_t room)
{
    char own[1000], last[400] = "";
    int rank = rt->remote->rank_of[n->rank];
    own_words(rt, 0, own, sizeof own);
    if (rt->first == 0)
        heard_words(rt, rank, last, sizeof last);
    snprintf(out, room, "%s: error: rank %d on %s is gone: %.60s; %s%s", rt->exe, rank,
             peer(rt, rank)->host, n->text, own, last);
}

/* The first process of its machine, rank 0 being gone. */
static bool first_here(const Rt *rt)
{
    for (int p = 1; p < rt->remote->place.rank; p++)
        if (rt_remote_together(rt, rt->remote->rank_of[p], rt->first))
            return false;
    return true;
}

static LaunchEvent await_news(RtRemote *m, double seconds, LaunchNews *n)
{
    double until = rt_now_s() + seconds;
    while (launch_news(m->launch, n) == LAUNCH_QUIET && rt_now_s() < until)
        nap();
    return n->what;
}

/* The run has failed here or elsewhere: whose error is it, and who tells it? Main thread. */
static void settle(Rt *rt)
{
    RtRemote *m = rt->remote;
    LaunchNews n = { 0 };
    char text[LAUNCH_TEXT];
    if (m->settled || m->agreed || !m->launch)
        return;
    m->settled = true;
    if (await_news(m, CAUSE_S, &n) == LAUNCH_QUIET) {
        if (rt->rank && !strstr(rt->fault, "step ")) {
            char own[1000];
            own_words(rt, 0, own, sizeof own);
            size_t at = strlen(rt->fault);
            snprintf(rt->fault + at, sizeof rt->fault - at, "\nnote: %s", own);
        }
        launch_fail(m->launch, atomic_load(&rt->status), rt->fault);
        await_news(m, rt->first == 0 ? 0 : VERDICT_S, &n);
    }
    switch (n.what) {
    case LAUNCH_QUIET:
        m->tells = true;
        break;
    case LAUNCH_FAILED:
        m->tells = n.rank == m->place.rank;
        if (!m->tells)
            replace_fault(rt, n.status, n.text);
        break;
    case LAUNCH_GONE:
        gone_words(rt, &n, text, sizeof text);
        replace_fault(rt, n.status, text);
        m->tells = rt->first == 0 || first_here(rt);
        if (rt->first == 0)
            launch_fail(m->launch, n.status, text);
        break;
    }
}

/* A call of launch.c found news: what it is, the main thread says. */
static int interrupted(Rt *rt, const RtRank *r)
{
    if (!r)
        settle(rt);
    else
        rt_fail(rt, RT_WORLD, "%s: error: another process has ended", rt->exe);
    return atomic_load(&rt->status);
}

bool rt_remote_tells(Rt *rt)
{
    settle(rt);
    return rt->remote->tells;
}

/* ---- joining ------------------------------------------------------------- */

/* An error before the others can be heard, or one that all of them have. */
static int fails_alone(Rt *rt, bool tells, const char *text)
{
    rt->remote->agreed = true;
    rt->remote->tells = tells;
    return rt_fail(rt, RT_WORLD, "%s: error: %s", rt->exe, text);
}

static int wrong_world(Rt *rt)
{
    const LaunchPlace *p = &rt->remote->place;
    char text[400], hint[120] = "";
    if (strcmp(p->by, "torchrun") == 0)
        snprintf(hint, sizeof hint, "--nnodes times --nproc-per-node must be %d", rt->nranks);
    else
        snprintf(hint, sizeof hint, "use %s %d", strcmp(p->by, "Slurm") == 0 ? "srun -n"
                 : strcmp(p->by, "Open MPI") == 0 ? "mpirun -np" : "--world", rt->nranks);
    snprintf(text, sizeof text, "the plan has %d rank%s, %s started %d process%s; %s", rt->nranks,
             rt->nranks == 1 ? "" : "s", strcmp(p->by, "--rank") == 0 ? "--world" : p->by,
             p->world, p->world == 1 ? "" : "es", hint);
    return fails_alone(rt, p->rank == 0, text);
}

bool rt_remote_together(const Rt *rt, int a, int b)
{
    const LaunchPeer *x = peer(rt, a), *y = peer(rt, b);
    return strcmp(x->host, y->host) == 0 && strcmp(x->machine, y->machine) == 0;
}

/* Coordinates of a rank: stage, data, x, y, z. */
static void coordinates(const RtHeader *h, int rank, int at[5])
{
    const int size[] = { h->nstages, h->data, h->x, h->y, h->z };
    for (int i = 5; i-- > 0; rank /= size[i])
        at[i] = rank % size[i];
}

/* Which process each rank is. */
static void number_ranks(const Rt *rt, RtRemote *m)
{
    const RtHeader *h = rt->program->head;
    m->rank_of = rt_alloc((size_t)rt->nranks, sizeof *m->rank_of);
    m->process_of = rt_alloc((size_t)rt->nranks, sizeof *m->process_of);
    for (int r = 0; r < rt->nranks; r++) {
        int at[5], place = 0;
        coordinates(h, r, at);
        for (int i = 0; i < 5; i++)
            place += at[i] * h->place[i];
        m->process_of[r] = h->node > 0 ? place : r;
        m->rank_of[m->process_of[r] % rt->nranks] = r;
    }
}

/* Do process p and the next one of its machine lie apart as a cyclic distribution has them? */
static bool is_cyclic(const Rt *rt)
{
    const int *rank = rt->remote->rank_of;
    int machines = 1;
    while (machines < rt->nranks && !rt_remote_together(rt, rank[0], rank[machines]))
        machines++;
    for (int p = machines; p < rt->nranks; p++)
        if (!rt_remote_together(rt, rank[p], rank[p - machines]))
            return false;
    return machines < rt->nranks && machines > 1;
}

/* The axis that alone tells two ranks apart; -1: there are several. */
static int only_axis(const RtHeader *h, int a, int b)
{
    int at[5], other[5], axis = -1, differ = 0;
    coordinates(h, a, at);
    coordinates(h, b, other);
    for (int i = 0; i < 5; i++)
        if (at[i] != other[i]) {
            axis = i;
            differ++;
        }
    return differ == 1 ? axis : -1;
}

/* Two ranks that the plan puts on one node, and the launcher on two machines; the first
 * ones that differ along `axis` alone, or at all (-1). */
static bool parted(const Rt *rt, int axis, int *a, int *b)
{
    const RtHeader *h = rt->program->head;
    const int *place = rt->remote->process_of;
    for (*a = 0; *a < rt->nranks; ++*a)
        for (*b = *a + 1; *b < rt->nranks; ++*b)
            if (place[*a] / h->node == place[*b] / h->node && !rt_remote_together(rt, *a, *b) &&
                (axis < 0 || only_axis(h, *a, *b) == axis))
                return true;
    return false;
}

/* Is the plan's placement what the launcher made of it? */
static int check_nodes(Rt *rt)
{
    static const char *const word[] = { "a stage", "data", "x", "y", "z" };
    const char *want = getenv("RT_PLACEMENT");
    int a, b, axis = 4, node = rt->program->head->node;
    if (node < 2 || (want && strcmp(want, "any") == 0) || !parted(rt, -1, &a, &b))
        return RT_OK;
    while (axis > 0 && !parted(rt, axis, &a, &b))
        axis--;
    if (axis == 0)
        parted(rt, -1, &a, &b);
    char text[700], what[64] = "belong on one node";
    if (axis > 0)
        snprintf(what, sizeof what, "share %s but not a node", word[axis]);
    const char *on[] = { peer(rt, a)->host, peer(rt, b)->host };
    bool cyclic = is_cyclic(rt);
    snprintf(text, sizeof text, "ranks %d and %d %s: %s (rank %d is on %s, rank %d on %s; the plan "
             "fills nodes of %d ranks in order); %sRT_PLACEMENT=any runs as it is", a, b, what,
             cyclic ? "the launcher placed ranks cyclically" : "the launcher placed them so",
             a, on[0], b, on[1], node,
             cyclic ? "srun --distribution=block or mpirun --map-by slot does not, " : "");
    return fails_alone(rt, rt->first == 0, text);
}

int rt_remote_join(Rt *rt)
{
    const RtOptions *o = rt->options;
    const char *want = getenv("RT_COMM"), *limit = getenv("RT_JOIN");
    RtRemote *m = rt->remote = rt_alloc(1, sizeof *m);
    LaunchFault fault;
    double limit_s = JOIN_S;
    if (want && strcmp(want, "threads") == 0)
        m->place.by = NULL;
    else if (!launch_find(o->root, o->rank, o->world, &m->place, &fault))
        return fails_alone(rt, fault.tell, fault.text);
    if (!m->place.by) {
        free(m);
        rt->remote = NULL;
        return RT_OK;
    }
    if (limit && *limit) {
        char *end;
        limit_s = strtod(limit, &end);
        if (*end || !(limit_s > 0) || !isfinite(limit_s))
            return fails_alone(rt, m->place.rank == 0, "RT_JOIN: expected seconds");
    }
    rt->nlocal = 1;
    if (m->place.world != rt->nranks)
        return wrong_world(rt);
    number_ranks(rt, m);
    rt->first = m->rank_of[m->place.rank];
    m->launch = launch_join(&m->place, rt->head->plan_hash, limit_s, &fault);
    if (!m->launch)
        return fails_alone(rt, fault.tell, fault.text);
    rt->save_id = peer(rt, 0)->pid;
    RT_TRY(check_nodes(rt));
    rt->started_s = rt_now_s();
    return RT_OK;
}

/* Name of the i-th machine, NULL behind the last one. */
const char *rt_remote_host(const Rt *rt, int i)
{
    for (int k = 0; k < rt->nranks; k++) {
        int first = 0;
        while (!rt_remote_together(rt, first, k))
            first++;
        if (first == k && i-- == 0)
            return peer(rt, k)->host;
    }
    return NULL;
}

const char *rt_remote_host_of(const Rt *rt, int rank, int *local)
{
    const RtRemote *m = rt->remote;
    const LaunchPeer *me = peer(rt, rank);
    *local = me->local < 0 ? 0 : me->local;
    for (int p = 0; p < m->process_of[rank] && me->local < 0; p++)     // nobody says: count
        *local += rt_remote_together(rt, m->rank_of[p], rank);
    return me->host;
}

/* ---- sums and agreement -------------------------------------------------- */

int rt_remote_share(Rt *rt, const void *mine, void *all, size_t bytes)
{
    const RtRemote *m = rt->remote;
    char *by_process = rt_alloc((size_t)rt->nranks, bytes);
    bool good = launch_share(m->launch, mine, by_process, bytes);
    for (int p = 0; p < rt->nranks && good; p++)
        memcpy((char *)all + bytes * (size_t)m->rank_of[p], by_process + bytes * (size_t)p, bytes);
    free(by_process);
    return good ? RT_OK : interrupted(rt, NULL);
}

/* All processes come here; an error of one is then an error of all. */
int rt_remote_agree(Rt *rt, RtRank *r)
{
    RtRemote *m = rt->remote;
    int32_t mine = atomic_load(&rt->status), first = -1, failed = 0;
    if (m->agreed || m->settled)
        return mine;
    int32_t *all = rt_alloc((size_t)rt->nranks, sizeof *all);
    if (!launch_share(m->launch, &mine, all, sizeof mine)) {
        free(all);
        return interrupted(rt, r);
    }
    for (int i = rt->nranks; i-- > 0;)
        if (all[m->process_of[i]]) {
            first = i;
            failed++;
        }
    int status = first < 0 ? RT_OK : all[m->process_of[first]];
    free(all);
    if (status) {
        pthread_mutex_lock(&rt->fault_lock);
        m->agreed = true;
        m->tells = first == rt->first;
        atomic_store(&rt->status, status);
        size_t n = strlen(rt->fault);
        if (m->tells && failed < rt->nranks && !strstr(rt->fault, "rank "))
            snprintf(rt->fault + n, sizeof rt->fault - n, "\nnote: so says rank %d on %s",
                     rt->first, peer(rt, rt->first)->host);
        pthread_mutex_unlock(&rt->fault_lock);
    }
    return status;
}

/* A number for the members of a group: FNV-1a. */
static uint64_t name_group(const RtGroup *g)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < g->n; i++)
        h = (h ^ (uint64_t)(g->rank[i] + 1)) * 1099511628211u;
    return h;
}

static int remote_sum_doubles(RtWorker *w, const RtSeat *s, double *v, int n)
{
    Rt *rt = w->rank->rt;
    bool good = launch_sum(rt->remote->launch, name_group(s->group), s->group->n, s->me, v, n);
    return good ? RT_OK : interrupted(rt, w->rank);
}

static int remote_barrier(RtWorker *w, const RtSeat *s)
{
    double nothing = 0;
    return remote_sum_doubles(w, s, &nothing, 1);
}

/* What the device does itself is not asked of the host. */
const RtComm rt_comm_remote = {
    .name = "remote", .sum_doubles = remote_sum_doubles, .barrier = remote_barrier,
};

/* ---- while the ranks live ------------------------------------------------- */

/* Rank 0: has nobody moved for too long? */
static void check_all(Rt *rt, double now)
{
    RtRemote *m = rt->remote;
    uint64_t moves = m->moves;
    for (int r = 1; r < rt->nranks; r++)
        moves = moves * 1000003 + launch_heard(m->launch, r).moves;
    if (moves != m->all_moves || m->all_still_since == 0) {
        m->all_moves = moves;
        m->all_still_since = now;
    }
    double still = now - m->all_still_since;
    if (still < rt->timeout_s)
        return;
    char own[1000], text[LAUNCH_TEXT], last[400];
    own_words(rt, still, own, sizeof own);
    size_t at = (size_t)snprintf(text, sizeof text, "%s: error: nobody has moved for %.3g s: %s",
                                 rt->exe, still, own);
    for (int r = 1; r < rt->nranks && r <= 4 && at < sizeof text; r++) {
        heard_words(rt, r, last, sizeof last);
        at += (size_t)snprintf(text + at, sizeof text - at, "%s", last);
    }
    rt_fail(rt, RT_WORLD, "%s", text);
}

/* The main thread, ten times a second. */
void rt_remote_watch(Rt *rt)
{
    RtRemote *m = rt->remote;
    RtRank *r = &rt->rank[rt->first];
    LaunchNews n;
    double now = rt_now_s();
    if (atomic_load(&rt->status) || launch_news(m->launch, &n) != LAUNCH_QUIET) {
        settle(rt);
        m->over_since = m->over_since > 0 ? m->over_since : now;
        return;
    }
    uint64_t moves = (uint64_t)atomic_load(&r->sign->progress);
    if (moves != m->moves) {
        m->moves = moves;
        m->still_since = now;
        m->looked = now;
    } else if (now - m->looked > LOOK_S) {      // the device may have gone on
        rt_device_where(r);
        m->looked = now;
    }
    launch_tell(m->launch, (LaunchState){ r->now.step, atomic_load(&r->sign->op), 0, moves });
    if (rt->first == 0 && rt->nranks > 1)
        check_all(rt, now);
    if (rt_signalled() == SIGTERM && m->still_since > 0 && now - m->still_since > STILL_S) {
        char own[1000];
        own_words(rt, now - m->still_since, own, sizeof own);
        rt_fail(rt, RT_WORLD, "%s: error: SIGTERM came; %s", rt->exe, own);
    }
}

bool rt_remote_stuck(const Rt *rt, double seconds)
{
    const RtRemote *m = rt->remote;
    return m->over_since > 0 && rt_now_s() - m->over_since > seconds;
}

/* ---- to rank 0 ----------------------------------------------------------- */

int rt_remote_bring(RtWorker *w, const void *p, size_t bytes)
{
    Rt *rt = w->rank->rt;
    return launch_bring(rt->remote->launch, p, bytes) ? RT_OK : interrupted(rt, w->rank);
}

int rt_remote_take(RtWorker *w, int from, void *p, size_t bytes)
{
    Rt *rt = w->rank->rt;
    void *all;
    size_t n;
    if (!launch_take(rt->remote->launch, rt->remote->process_of[from], &all, &n))
        return interrupted(rt, w->rank);
    memcpy(p, all, n < bytes ? n : bytes);
    free(all);
    return RT_OK;
}

/* ---- the trace ----------------------------------------------------------- */

/* Every rank's events of the step to rank 0, on its clock. */
int rt_remote_bring_events(RtWorker *w)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    Launch *l = rt->remote->launch;
    size_t head = sizeof rt->started_s, events = sizeof *r->events * (size_t)r->nevents;
    if (r->id > 0) {
        char *all = rt_alloc(head + events, 1);
        memcpy(all, &rt->started_s, head);
        memcpy(all + head, r->events, events);
        bool good = launch_bring(l, all, head + events);
        free(all);
        r->nevents = 0;
        return good ? RT_OK : interrupted(rt, r);
    }
    for (int i = 1; i < rt->nranks; i++) {
        RtRank *q = &rt->rank[i];
        void *all;
        size_t n;
        double started;
        if (!launch_take(l, rt->remote->process_of[i], &all, &n))
            return interrupted(rt, r);
        free(q->events);
        q->events = rt_alloc(n, 1);
        q->nevents = (int64_t)((n - head) / sizeof *q->events);
        memcpy(&started, all, head);
        memcpy(q->events, (char *)all + head, n - head);
        free(all);
        double shift = rt_remote_together(rt, 0, i) ? 0 : rt->started_s - started;
        for (int64_t e = 0; e < q->nevents; e++) {
            q->events[e].begin_s += shift;
            q->events[e].end_s += shift;
        }
    }
    return RT_OK;
}

/* ---- the end ------------------------------------------------------------- */

/* Last of all, errors being told. A device that waits for a peer who is gone cannot be
 * closed: after an error the process ends here. */
void rt_remote_leave(Rt *rt)
{
    RtRemote *m = rt->remote;
    int status = atomic_load(&rt->status);
    if (m->launch)
        launch_leave(m->launch, status == RT_OK || (m->agreed && rt->rank == NULL));
    bool tells = m->tells;
    free(m->rank_of);
    free(m->process_of);
    free(m);
    rt->remote = NULL;
    if (status) {
        if (!tells)                     // the launcher ends all when the first one leaves
            sleep(1);
        fflush(NULL);
        _exit(status);
    }
}
