/*
 * teracube_start.cuh - which GPU a rank takes, what its ranks need to meet, and what it is at:
 * the collective it waits in, and when its passes ran.
 *
 * Behind every collective stands an event. The oldest one that has not come yet names the
 * collective at which the device is: that is asked when a process has ended or nothing moves.
 */
#ifndef TERACUBE_START_CUH
#define TERACUBE_START_CUH

/* ---- before there are ranks ---------------------------------------------------------- */

inline const char *device_count(int *n)
{
    *n = 0;
    cudaError_t e = cudaGetDeviceCount(n);
    return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

inline const char *device_look(int device, RtDeviceFacts *facts)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetPCIBusId(facts->id, sizeof facts->id, device);
    if (e != cudaSuccess)
        return cudaGetErrorString(e);
    snprintf(facts->kind, sizeof facts->kind, "%.*s", (int)sizeof facts->kind - 1, p.name);
    facts->bytes = p.totalGlobalMem;
    return NULL;
}

inline const char *device_meeting(char meeting[RT_MEETING])
{
    static_assert(sizeof(ncclUniqueId) == RT_MEETING, "NCCL's id has another size");
    ncclUniqueId id;
    ncclResult_t r = ncclGetUniqueId(&id);
    memcpy(meeting, &id, sizeof id);
    return r == ncclSuccess ? NULL : ncclGetErrorString(r);
}

/* ---- what it is at --------------------------------------------------------------------- */

enum { WATCHED = 1024 };            // TUNING: collectives that the host may be ahead

struct Watch {
    std::mutex lock;
    cudaEvent_t event[WATCHED];     // the n-th stands at n % WATCHED
    int pass[WATCHED], nth[WATCHED];
    uint64_t begun, ended;
    int ipass, n;                   // of the pass at hand: collectives so far
    int together;                   // so many more are one in the plan
    cudaEvent_t *begin, *end;       // by pass, where times are wanted
    bool *ran;
};

inline void take_watch(Ctx *c)
{
    Watch *w = c->watch = new Watch();
    for (int i = 0; i < WATCHED; i++)
        check(c, "an event", cudaEventCreateWithFlags(&w->event[i], cudaEventDisableTiming));
    if (!c->rank->timed)
        return;
    int n = c->head->npasses;
    w->begin = (cudaEvent_t *)calloc((size_t)n + 1, sizeof *w->begin);
    w->end = (cudaEvent_t *)calloc((size_t)n + 1, sizeof *w->end);
    w->ran = (bool *)calloc((size_t)n + 1, sizeof *w->ran);
    for (int i = 0; i < n; i++) {
        check(c, "an event", cudaEventCreate(&w->begin[i]));
        check(c, "an event", cudaEventCreate(&w->end[i]));
    }
}

inline void close_watch(Ctx *c)
{
    Watch *w = c->watch;
    if (!w)
        return;
    for (int i = 0; i < WATCHED; i++)
        if (w->event[i])
            cudaEventDestroy(w->event[i]);
    for (int i = 0; w->begin && i < c->head->npasses; i++) {
        cudaEventDestroy(w->begin[i]);
        cudaEventDestroy(w->end[i]);
    }
    free(w->begin);
    free(w->end);
    free(w->ran);
    delete w;
}

/* With the lock: those at the front that have ended. */
inline void watch_on(Watch *w)
{
    while (w->ended < w->begun && cudaEventQuery(w->event[w->ended % WATCHED]) == cudaSuccess)
        w->ended++;
}

/* Behind a collective on stream s. Where the host is too far ahead the oldest ones are kept. */
inline void watched(Ctx *c, cudaStream_t s)
{
    Watch *w = c->watch;
    int nth = w->n;
    w->n += w->together <= 1;
    w->together -= w->together > 0;
    if (c->rank->nranks == 1)
        return;
    std::lock_guard<std::mutex> hold(w->lock);
    if (w->begun - w->ended == WATCHED) {
        check(c, "a pass", cudaGetLastError());         // a query may take its place
        watch_on(w);
        cudaGetLastError();
    }
    if (w->begun - w->ended == WATCHED)
        return;
    int i = (int)(w->begun % WATCHED);
    w->pass[i] = w->ipass;
    w->nth[i] = nth;
    if (check(c, "an event", cudaEventRecord(w->event[i], s)))
        w->begun++;
}

inline bool device_where(void *ctx, int *ipass, int *nth, uint64_t *done)
{
    Ctx *c = (Ctx *)ctx;
    Watch *w = c->watch;
    cudaSetDevice(c->device);
    std::lock_guard<std::mutex> hold(w->lock);
    watch_on(w);
    *done = w->ended;
    if (w->ended == w->begun)
        return false;
    *ipass = w->pass[w->ended % WATCHED];
    *nth = w->nth[w->ended % WATCHED];
    return true;
}

/* The next n collectives are one of the plan's. */
inline void watched_as_one(Ctx *c, int n) { c->watch->together = n; }

/* Around a pass on stream s; transfers are one collective. */
inline void watch_begins(Ctx *c, int ipass, cudaStream_t s)
{
    Watch *w = c->watch;
    w->ipass = ipass;
    w->n = w->together = 0;
    if (w->begin)
        check(c, "an event", cudaEventRecord(w->begin[ipass], s));
}

inline void watch_ends(Ctx *c, int ipass, cudaStream_t s)
{
    Watch *w = c->watch;
    int kind = c->rank->program->passes[ipass].kind;
    if (kind >= RT_PASS_SEND_ACTIVATION && kind <= RT_PASS_RECV_GRADIENT)
        watched(c, s);
    if (w->end) {
        check(c, "an event", cudaEventRecord(w->end[ipass], s));
        w->ran[ipass] = true;
    }
}

/* The device's clock is the host's at an event that both see now. */
inline const char *device_spans(void *ctx, double *begin, double *end)
{
    Ctx *c = (Ctx *)ctx;
    Watch *w = c->watch;
    cudaEvent_t now;
    struct timespec t;
    check(c, "times", cudaDeviceSynchronize());
    check(c, "times", cudaEventCreate(&now));
    check(c, "times", cudaEventRecord(now, c->compute));
    check(c, "times", cudaEventSynchronize(now));
    clock_gettime(CLOCK_MONOTONIC, &t);
    double now_s = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    for (int i = 0; i < c->head->npasses; i++) {
        float before = 0, after = 0;
        begin[i] = end[i] = 0;
        if (!w->ran[i])
            continue;
        check(c, "times", cudaEventElapsedTime(&before, w->begin[i], now));
        check(c, "times", cudaEventElapsedTime(&after, w->end[i], now));
        begin[i] = now_s - 1e-3 * before;
        end[i] = now_s - 1e-3 * after;
        w->ran[i] = false;
    }
    cudaEventDestroy(now);
    return c->message[0] ? c->message : NULL;
}

#endif
