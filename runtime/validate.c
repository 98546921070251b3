/*
 * validate.c - the loss on data that nothing is learned from.
 *
 * The forward half of a training step alone, on batches of the validation data: the
 * passes that begin a step, receive, go forward and send. Nothing is dropped out
 * (RtCall.evaluate). What the loss's chunks add to gradients does not matter: the first
 * pass of the next step overwrites them. Parameters and moments are not written. A signal ends
 * it behind the batch at hand, without a figure.
 */
#include "rt_impl.h"

/* Has a signal come to some rank? Every worker gets the same answer. */
static int ask_stop(RtWorker *w, bool *stop)
{
    RtRank *r = w->rank;
    if (w->index == 0) {
        double came = rt_signalled() != 0;
        atomic_store(&r->sign->op, -1);
        RT_TRY(rt_sum_doubles(w, &r->world, &came, 1));
        r->now.stop = came > 0;
    }
    RT_TRY(rt_team(w));
    *stop = r->now.stop;
    return rt_team(w);                  // worker 0 clears it
}

/* After `step` steps; *stop: a signal came. All workers of all ranks call it. */
int rt_validate(RtWorker *w, int64_t step, bool *stop)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    double loss = 0;
    int64_t count = 0;                  // targets that count, of all ranks
    enum { KINDS = 1 << RT_PASS_BEGIN | 1 << RT_PASS_RECV_ACTIVATION | 1 << RT_PASS_FORWARD
                   | 1 << RT_PASS_SEND_ACTIVATION };
    for (int64_t b = 0; b < rt->head->train.validate_batches; b++) {
        if (w->index == 0)
            RT_TRY(rt_begin_step(r, b, true));
        RT_TRY(rt_passes(w, KINDS));
        if (w->index == 0 && rt->options->device)
            RT_TRY(rt_device_sums(r));
        for (int i = 0; w->index == 0 && i < rt->nworkers; i++)
            loss += r->loss[i * 8];
        count += r->now.count;
        RT_TRY(ask_stop(w, stop));
        if (*stop)
            return RT_OK;
    }
    if (w->index)
        return RT_OK;
    atomic_store(&r->sign->op, -1);
    RT_TRY(rt_sum_doubles(w, &r->world, &loss, 1));
    return r->id ? RT_OK : rt_log_validation(rt, step, count > 0 ? loss / (double)count : 0);
}
