/*
 * comm_null.c - collectives of one rank: copies, or nothing. The smallest back
 * end, and the one that groups of one member use in every run.
 */
#include "rt_impl.h"

/* The worker's share of dst [n] (+)= src [n]. */
static int move(RtWorker *w, RtNumbers src, RtNumbers dst, int64_t n, bool add)
{
    const Rt *rt = w->rank->rt;
    int64_t lo, hi;
    rt_split(n, rt->nworkers, w->index, RT_LINE, &lo, &hi);
    if (lo < hi && (add || src.at != dst.at))
        rt_move(rt, (const char *)src.at + lo * rt_size(rt, src.stored), src.stored,
                (char *)dst.at + lo * rt_size(rt, dst.stored), dst.stored, hi - lo, add);
    return RT_OK;
}

static int null_all_gather(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n)
{
    (void)s;
    return move(w, src, dst, n, false);
}

static int null_reduce_scatter(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                               int64_t n, bool add)
{
    (void)s;
    return move(w, src, dst, n, add);
}

static int null_all_reduce(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n)
{
    (void)w, (void)s, (void)dst, (void)n;
    return RT_OK;
}

static int null_broadcast(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                          int64_t n)
{
    (void)s, (void)root;
    return move(w, src, dst, n, false);
}

static int null_reduce(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                       int64_t n, bool add)
{
    (void)s, (void)root;
    return move(w, src, dst, n, add);
}

static int null_all_to_all(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                           const RtBoxes *b)
{
    (void)s;
    size_t real = (size_t)rt_size(w->rank->rt, dst.stored);
    for (int i = 0; i < b->nboxes && w->index == 0; i++) {
        const RtBox *box = &b->box[i];
        for (int64_t row = 0; row < box->rows; row++) {
            const char *from = (const char *)src.at
                               + (size_t)((box->src_row + row) * b->src_ld) * real;
            char *to = (char *)dst.at + (size_t)((box->dst_row + row) * b->dst_ld) * real;
            for (int k = box->run; k < box->run + box->nruns; k++)
                memcpy(to + (size_t)b->run[k].dst * real, from + (size_t)b->run[k].src * real,
                       (size_t)b->run[k].n * real);
        }
    }
    return RT_OK;
}

/* There is nobody to send to. */
static int null_send(RtWorker *w, int peer, int kind, const void *src, int64_t bytes)
{
    (void)kind, (void)src, (void)bytes;
    return rt_fail(w->rank->rt, RT_BUG, "%s: error: rank %d alone sends to rank %d",
                   w->rank->rt->exe, w->rank->id, peer);
}

static int null_recv(RtWorker *w, int peer, int kind, void *dst, int64_t bytes)
{
    (void)kind, (void)dst, (void)bytes;
    return rt_fail(w->rank->rt, RT_BUG, "%s: error: rank %d alone receives from rank %d",
                   w->rank->rt->exe, w->rank->id, peer);
}

static int null_sum_doubles(RtWorker *w, const RtSeat *s, double *v, int n)
{
    (void)w, (void)s, (void)v, (void)n;
    return RT_OK;
}

static int null_barrier(RtWorker *w, const RtSeat *s)
{
    (void)w, (void)s;
    return RT_OK;
}

const RtComm rt_comm_null = {
    "null", NULL, NULL, NULL, null_all_gather, null_reduce_scatter, null_all_reduce,
    null_broadcast, null_reduce, null_all_to_all, null_send, null_recv, null_sum_doubles,
    null_barrier,
};
