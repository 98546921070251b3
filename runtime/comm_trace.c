/*
 * comm_trace.c - prints every collective and forwards it to the run's back end.
 * RT_COMM=trace in the environment chooses it; lines go to stderr:
 *
 *   rank 2  all_gather       768 x 4  'h.0.attn.c_attn: X over y'  (gpt2.tcube:12:19)
 */
#include "rt_impl.h"

static const RtComm *below(const Rt *rt)
{
    return rt->mpi ? &rt_comm_mpi : rt->remote ? &rt_comm_remote : &rt_comm_threads;
}

static void say(const RtWorker *w, const RtSeat *s, const char *what, int64_t n)
{
    if (w->index)
        return;
    const RtRank *r = w->rank;
    int op = atomic_load(&r->sign->op);
    const RtProgram *p = r->program;
    fprintf(stderr, "rank %-3d %-15s %9lld x %-3d '%s'  (%s)\n", r->id, what, (long long)n,
            s->group->n, op >= 0 ? rt_text(p, p->steps[op].name) : "",
            op >= 0 ? rt_text(p, p->steps[op].source) : "");
}

static int trace_all_gather(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n)
{
    say(w, s, "all_gather", n);
    return below(w->rank->rt)->all_gather(w, s, src, dst, n);
}

static int trace_reduce_scatter(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                                int64_t n, bool add)
{
    say(w, s, "reduce_scatter", n);
    return below(w->rank->rt)->reduce_scatter(w, s, src, dst, n, add);
}

static int trace_all_reduce(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n)
{
    say(w, s, "all_reduce", n);
    return below(w->rank->rt)->all_reduce(w, s, dst, n);
}

static int trace_broadcast(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                           int64_t n)
{
    say(w, s, "broadcast", n);
    return below(w->rank->rt)->broadcast(w, s, root, src, dst, n);
}

static int trace_reduce(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                        int64_t n, bool add)
{
    say(w, s, "reduce", n);
    return below(w->rank->rt)->reduce(w, s, root, src, dst, n, add);
}

static int trace_all_to_all(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                            const RtBoxes *boxes)
{
    say(w, s, "all_to_all", boxes->elements);
    return below(w->rank->rt)->all_to_all(w, s, src, dst, boxes);
}

static void say_message(const RtWorker *w, const char *what, int peer, int64_t bytes)
{
    if (w->index)
        return;
    const RtRank *r = w->rank;
    const RtProgram *p = r->program;
    int op = atomic_load(&r->sign->op);
    fprintf(stderr, "rank %-3d %-10s rank %-3d %9lld bytes, microbatch %d slice %d  '%s'  (%s)\n",
            r->id, what, peer, (long long)bytes, w->pass->microbatch, w->pass->slice,
            op >= 0 ? rt_text(p, p->steps[op].name) : "",
            op >= 0 ? rt_text(p, p->steps[op].source) : "");
}

static int trace_send(RtWorker *w, int peer, int kind, const void *src, int64_t bytes)
{
    say_message(w, "send to", peer, bytes);
    return below(w->rank->rt)->send(w, peer, kind, src, bytes);
}

static int trace_recv(RtWorker *w, int peer, int kind, void *dst, int64_t bytes)
{
    say_message(w, "recv from", peer, bytes);
    return below(w->rank->rt)->recv(w, peer, kind, dst, bytes);
}

static int trace_open(Rt *rt) { return below(rt)->open ? below(rt)->open(rt) : RT_OK; }
static int trace_start(RtRank *r) { return below(r->rt)->start ? below(r->rt)->start(r) : RT_OK; }
static void trace_close(Rt *rt)
{
    if (below(rt)->close)
        below(rt)->close(rt);
}

static int trace_sum_doubles(RtWorker *w, const RtSeat *s, double *v, int n)
{
    say(w, s, "sum_doubles", n);
    return below(w->rank->rt)->sum_doubles(w, s, v, n);
}

static int trace_barrier(RtWorker *w, const RtSeat *s)
{
    say(w, s, "barrier", 0);
    return below(w->rank->rt)->barrier(w, s);
}

const RtComm rt_comm_trace = {
    "trace", trace_open, trace_start, trace_close, trace_all_gather, trace_reduce_scatter,
    trace_all_reduce, trace_broadcast, trace_reduce, trace_all_to_all, trace_send, trace_recv,
    trace_sum_doubles, trace_barrier,
};
