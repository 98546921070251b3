/*
 * teracube_run.cuh - the life of a rank's context: memory, communicators, tables; the
 * functions that the runtime calls (RtDevice in rt.h), and main.
 */
#ifndef TERACUBE_RUN_CUH
#define TERACUBE_RUN_CUH

/* What program.cu knows: its stages and the groups of ranks. */
struct Program {
    const StageProgram *stages;
    const GroupKey *groups;
    int events;
    size_t scratch, sum[STREAMS];       // bytes
};

/* ---- start --------------------------------------------------------------------------- */

template <typename T> inline T *on_device(Ctx *c, const T *from, int64_t n)
{
    T *p = NULL;
    if (n <= 0 || !from)
        return NULL;
    if (check(c, "a table's memory", cudaMalloc((void **)&p, sizeof(T) * (size_t)n)))
        check(c, "a table", cudaMemcpyAsync(p, from, sizeof(T) * (size_t)n, cudaMemcpyHostToDevice,
                                            c->compute));
    return p;
}

inline void take_memory(Ctx *c)
{
    size_t bytes = (size_t)c->head->block_bytes;
    cudaError_t e = cudaMalloc((void **)&c->block, bytes ? bytes : 64);
    if (e != cudaSuccess) {
        char why[160];
        snprintf(why, sizeof why, "%zu bytes, the plan's block: %s", bytes, cudaGetErrorString(e));
        fail(c, "memory", why);
    }
}

inline void take_trays(Ctx *c)
{
    for (int i = 0; i < TRAYS; i++) {
        check(c, "pinned memory", cudaMallocHost((void **)&c->tray[i], c->work_bytes + 64));
        check(c, "an event", cudaEventCreateWithFlags(&c->tray_free[i], cudaEventDisableTiming));
    }
}

inline void take_streams(Ctx *c, const Program *p)
{
    for (int i = 0; i < STREAMS; i++) {
        check(c, "a stream", cudaStreamCreateWithFlags(&c->stream[i], cudaStreamNonBlocking));
        check(c, "an event", cudaEventCreateWithFlags(&c->tail[i], cudaEventDisableTiming));
        if (p->sum[i] > 0)
            check(c, "scratch", cudaMalloc((void **)&c->sum[i], p->sum[i]));
    }
    c->compute = c->stream[COMPUTE];
    c->nevents = p->events;
    c->event = (cudaEvent_t *)calloc((size_t)c->nevents + 1, sizeof *c->event);
    for (int i = 0; i < c->nevents; i++)
        check(c, "an event", cudaEventCreateWithFlags(&c->event[i], cudaEventDisableTiming));
    c->passed = (cudaEvent_t *)calloc((size_t)c->head->npasses + 1, sizeof *c->passed);
    for (int i = 0; i < c->head->npasses; i++)
        if (c->rank->program->passes[i].awaited)
            check(c, "an event", cudaEventCreateWithFlags(&c->passed[i], cudaEventDisableTiming));
}

/* Rows: what a kernel reads of a row order. Tokens are filled in before each pass. */
inline void take_rows(Ctx *c)
{
    int n = c->head->nrowmaps;
    c->rows = (CtxRows *)calloc((size_t)n + 1, sizeof *c->rows);
    for (int i = 0; i < n; i++) {
        const RtDeviceRows *r = &c->rank->rows[i];
        c->rows[i].token = on_device(c, r->token, r->count);
        c->rows[i].pos = on_device(c, r->pos, r->count);
        c->rows[i].tokens = on_device(c, r->tokens, r->count);
        c->rows[i].targets = on_device(c, r->targets, r->count);
    }
    c->column = (int32_t **)calloc((size_t)c->head->ncolumns + 1, sizeof *c->column);
    for (int i = 0; i < c->head->ncolumns; i++)
        c->column[i] = on_device(c, c->rank->columns[i].global, c->rank->columns[i].n);
}

inline void take_tiles(Ctx *c)
{
    while (c->stage->tiles[c->ntiles].q >= 0)
        c->ntiles++;
    c->tiles = (AttnTiles *)calloc((size_t)c->ntiles + 1, sizeof *c->tiles);
    for (int i = 0; i < c->ntiles; i++) {
        const TileSet *t = &c->stage->tiles[i];
        const RtDeviceRows *q = &c->rank->rows[t->q], *k = &c->rank->rows[t->k];
        const int32_t *rq = (const int32_t *)q->runs, *rk = (const int32_t *)k->runs;
        void *room = NULL;
        size_t bytes = attn_tiles_bytes(rq, q->nruns, rk, k->nruns);
        if (check(c, "tiles", cudaMalloc(&room, bytes ? bytes : 64)))
            check(c, "tiles", attn_tiles_make(rq, q->nruns, rk, k->nruns,
                                              t->causal, t->window, room, &c->tiles[i]));
    }
}

/* One side of an exchange: boxes behind one another from number `from` of the room on, but
 * the rank's own at `own`; at[q] is where member q's begins. Returns where they end. */
inline int64_t take_side(Ctx *c, const RtDeviceBoxes *b, bool gives, int size, int64_t ld, int me,
                         int n, int64_t from, int64_t own, MoveBoxes *out, int64_t *at)
{
    const RtBox *box = gives ? b->give : b->take;
    const RtColRun *runs = gives ? b->give_run : b->take_run;
    int nboxes = gives ? b->ngive : b->ntake, nruns = 0, k = 0;
    for (int i = 0; i < nboxes; i++)
        nruns += box[i].nruns;
    MoveBox *boxes = (MoveBox *)calloc((size_t)nboxes + 1, sizeof *boxes);
    MoveRun *run = (MoveRun *)calloc((size_t)nruns + 1, sizeof *run);
    nruns = 0;
    for (int q = 0; q < n; q++) {
        at[q] = from;
        if (k >= nboxes || box[k].peer != q)
            continue;
        const RtBox *x = &box[k];
        boxes[k] = { gives ? x->src_row : x->dst_row, x->rows, 0, 0, nruns, x->nruns };
        for (int i = 0; i < x->nruns; i++)
            run[nruns++] = { gives ? runs[x->run + i].src : runs[x->run + i].dst, 0,
                             runs[x->run + i].n };
        if (q == me && own >= 0)
            move_boxes_place(&boxes[k], 1, run, own);
        else
            from = move_boxes_place(&boxes[k], 1, run, from);
        k++;
    }
    at[n] = from;
    move_boxes_measure(boxes, nboxes, run, ld, size, out);
    out->box = on_device(c, boxes, nboxes);
    out->run = on_device(c, run, nruns);
    check(c, "boxes", cudaStreamSynchronize(c->compute));
    free(boxes);
    free(run);
    return from;
}

/* Boxes of all-to-alls; the room they share. */
inline void take_boxes(Ctx *c)
{
    int64_t most = 0;
    while (c->stage->boxes[c->nexchanges].step >= 0)
        c->nexchanges++;
    c->exchange = (Exchange *)calloc((size_t)c->nexchanges + 1, sizeof *c->exchange);
    for (int i = 0; i < c->nexchanges; i++) {
        Exchange *e = &c->exchange[i];
        int istep = c->stage->boxes[i].step, g = c->stage->boxes[i].group;
        const RtStep *s = &c->rank->program->steps[istep];
        const RtDeviceBoxes *b = c->rank->boxes[istep];
        int size = s->a.stored == RT_BF16_STORED ? 2 : (int)sizeof(real);
        int me = c->group_me[g], n = c->group_size[g];
        e->give_at = (int64_t *)calloc(2 * (size_t)n + 2, sizeof *e->give_at);
        e->take_at = e->give_at + n + 1;
        e->give_ld = s->a.ld;
        e->take_ld = s->c.ld;
        int64_t end = take_side(c, b, true, size, s->a.ld, me, n, 0, -1, &e->give, e->give_at);
        end = take_side(c, b, false, size, s->c.ld, me, n, (end + 15) / 16 * 16, e->give_at[me],
                        &e->take, e->take_at);
        most = end * size > most ? end * size : most;
    }
    check(c, "scratch", cudaMalloc((void **)&c->packed, (size_t)most + 64));
}

/* All ranks split the world by each group in the same order. */
inline void take_groups(Ctx *c, const Program *p)
{
    ncclUniqueId id;
    memcpy(&id, c->rank->meeting, sizeof id);
    check(c, "NCCL's start", ncclCommInitRank(&c->world, c->rank->nranks, id, c->rank->rank));
    int n = 0;
    while (p->groups[n].axes)
        n++;
    c->ngroups = n;
    c->comm = (ncclComm_t *)calloc((size_t)n + 1, sizeof *c->comm);
    c->group_me = (int *)calloc((size_t)n + 1, sizeof *c->group_me);
    c->group_size = (int *)calloc((size_t)n + 1, sizeof *c->group_size);
    for (int i = 0; i < n && !c->message[0]; i++) {
        const RtDeviceGroup *g = &c->rank->groups[i];
        c->group_me[i] = g->me;
        c->group_size[i] = g->n;
        int color = g->n > 1 ? g->rank[0] : NCCL_SPLIT_NOCOLOR;
        check(c, "NCCL's groups", ncclCommSplit(c->world, color, g->me, &c->comm[i], NULL));
    }
}

template <const Program *P> inline const char *device_open(const RtDeviceRank *rank, void **ctx)
{
    Ctx *c = (Ctx *)calloc(1, sizeof *c);
    *ctx = c;
    c->rank = rank;
    c->head = rank->program->head;
    c->stage = &P->stages[c->head->stage];
    c->device = rank->device;
    if (!check(c, "this GPU", cudaSetDevice(c->device)))
        return c->message;
    take_streams(c, P);
    take_watch(c);
    check(c, "cuBLAS", cublasCreate(&c->blas));
    check(c, "cuBLAS", cublasSetStream(c->blas, c->compute));
    take_products(c);
    take_memory(c);
    check(c, "scratch", cudaMalloc((void **)&c->scratch, P->scratch + 64));
    c->work_bytes = work_bytes(c);
    check(c, "scratch", cudaMalloc((void **)&c->work, c->work_bytes + 64));
    check(c, "scratch", cudaMalloc((void **)&c->sums, 3 * sizeof(double)));
    check(c, "scratch", cudaMalloc((void **)&c->found, sizeof *c->found));
    take_trays(c);
    take_rows(c);
    take_tiles(c);
    take_optimizer(c);
    check(c, "tables", cudaStreamSynchronize(c->compute));
    if (!c->message[0])
        take_groups(c, P);
    if (!c->message[0])
        take_boxes(c);
    return c->message[0] ? c->message : NULL;
}

/* Called when all ranks are done, by one thread for all. */
inline void device_close(void *ctx)
{
    Ctx *c = (Ctx *)ctx;
    cudaSetDevice(c->device);
    for (int i = 0; i < STREAMS && c->stream[i]; i++)
        cudaStreamSynchronize(c->stream[i]);
    for (int i = 0; i < c->ngroups; i++)
        if (c->comm[i])
            ncclCommDestroy(c->comm[i]);
    if (c->world)
        ncclCommDestroy(c->world);
    if (c->blas)
        cublasDestroy(c->blas);
    free_ended(c);
    if (c->lt)
        cublasLtDestroy(c->lt);
    cudaFree(c->lt_space);
    cudaFree(c->block);
    cudaFree(c->scratch);
    cudaFree(c->work);
    cudaFree(c->sums);
    cudaFree(c->found);
    cudaFree(c->updates);
    cudaFree(c->norms);
    for (int i = 0; c->rows && i < c->head->nrowmaps; i++) {
        cudaFree(c->rows[i].token);
        cudaFree(c->rows[i].pos);
        cudaFree(c->rows[i].tokens);
        cudaFree(c->rows[i].targets);
    }
    for (int i = 0; i < TRAYS; i++) {
        cudaFreeHost(c->tray[i]);
        if (c->tray_free[i])
            cudaEventDestroy(c->tray_free[i]);
    }
    for (int i = 0; c->column && i < c->head->ncolumns; i++)
        cudaFree(c->column[i]);
    for (int i = 0; i < c->ntiles; i++)
        cudaFree((void *)c->tiles[i].q);
    for (int i = 0; i < STREAMS; i++) {
        cudaFree(c->sum[i]);
        if (c->tail[i])
            cudaEventDestroy(c->tail[i]);
        if (c->stream[i])
            cudaStreamDestroy(c->stream[i]);
    }
    for (int i = 0; i < c->nevents; i++)
        if (c->event[i])
            cudaEventDestroy(c->event[i]);
    for (int i = 0; c->passed && i < c->head->npasses; i++)
        if (c->passed[i])
            cudaEventDestroy(c->passed[i]);
    free(c->event);
    free(c->passed);
    close_watch(c);
    free(c->rows);
    free(c->column);
    for (int i = 0; c->exchange && i < c->nexchanges; i++) {
        cudaFree((void *)c->exchange[i].give.box);
        cudaFree((void *)c->exchange[i].give.run);
        cudaFree((void *)c->exchange[i].take.box);
        cudaFree((void *)c->exchange[i].take.run);
        free(c->exchange[i].give_at);
    }
    cudaFree(c->packed);
    free(c->exchange);
    free(c->tiles);
    free(c->comm);
    free(c->group_me);
    free(c->group_size);
    free(c);
}

/* ---- a step ---------------------------------------------------------------------------- */

inline const char *device_write(void *ctx, int64_t offset, const void *src, size_t bytes)
{
    Ctx *c = (Ctx *)ctx;
    check(c, "copy", cudaMemcpyAsync(c->block + offset, src, bytes, cudaMemcpyHostToDevice,
                                     c->compute));
    check(c, "copy", cudaStreamSynchronize(c->compute));
    return c->message[0] ? c->message : NULL;
}

inline const char *device_read(void *ctx, int64_t offset, void *dst, size_t bytes)
{
    Ctx *c = (Ctx *)ctx;
    check(c, "copy", cudaMemcpyAsync(dst, c->block + offset, bytes, cudaMemcpyDeviceToHost,
                                     c->compute));
    check(c, "copy", cudaStreamSynchronize(c->compute));
    return c->message[0] ? c->message : NULL;
}

/* Of a row order, what another microbatch changes. */
inline const char *device_rows(void *ctx, int map)
{
    Ctx *c = (Ctx *)ctx;
    const RtDeviceRows *r = &c->rank->rows[map];
    const CtxRows *to = &c->rows[map];
    size_t n = (size_t)r->count;
    char *at = take_tray(c);
    at = upload(c, to->token, at, r->token, n);
    at = upload(c, to->tokens, at, r->tokens, n);
    upload(c, to->targets, at, r->targets, n);
    give_tray(c);
    return c->message[0] ? c->message : NULL;
}

/* The first number that is not finite, of what the steps before have written; messages are on
 * their way yet, which a peer may take only behind ours. */
inline const char *device_find(void *ctx, int64_t offset, int64_t ld, int64_t rows, int64_t cols,
                               int stored, int64_t *first)
{
    Ctx *c = (Ctx *)ctx;
    unsigned long long found = 0;
    const char *x = c->block + offset;
    for (int i = 0; i < STAGES; i++)
        check(c, "a step", cudaStreamSynchronize(c->stream[i]));
    if (stored == RT_BF16_STORED)
        check(c, "a search", move_find((const bf16 *)(const void *)x, ld, rows, cols, c->found,
                                       c->compute));
    else
        check(c, "a search", move_find((const real *)(const void *)x, ld, rows, cols, c->found,
                                       c->compute));
    check(c, "a search", cudaMemcpyAsync(&found, c->found, sizeof found, cudaMemcpyDeviceToHost,
                                         c->compute));
    check(c, "a search", cudaStreamSynchronize(c->compute));
    *first = found + 1 == 0 ? -1 : (int64_t)found;
    return c->message[0] ? c->message : NULL;
}

/* Behind a pass, where a broken step is taken again. What it received is here when all has come
 * that the plan has on STAGES before. */
inline void look_at_last(Ctx *c, const RtPass *p)
{
    bool receives = p->kind == RT_PASS_RECV_ACTIVATION || p->kind == RT_PASS_RECV_GRADIENT;
    if (c->looks)
        c->now->look(c->now->of, c->istep);
    if (!c->now->look || !receives)
        return;
    check(c, "transfers", cudaStreamSynchronize(c->stream[STAGES]));
    for (int i = p->first; i < p->last; i++)
        c->now->look(c->now->of, i);
}

/*
 * Transfers are passes of their own, all at once, on STAGES. The other streams of a pass
 * start behind what is on COMPUTE, and COMPUTE goes on behind them. What goes on under the pass
 * before has events for all that it needs of it.
 */
inline void run_pass(Ctx *c, const RtPass *p, int ipass)
{
    const PassCode *code = &c->stage->pass[p->func];
    bool transfer = code->streams & STAGES_BIT;
    Stream mine = transfer ? STAGES : COMPUTE;
    if (p->after >= 0)
        check(c, "an event", cudaStreamWaitEvent(c->stream[mine], c->passed[p->after], 0));
    watch_begins(c, ipass, c->stream[mine]);
    for (int i = TENSOR; i < STAGES; i++)
        if (!(code->streams & UNDER_BIT) && code->streams >> i & 1)
            follow_tail(c, (Stream)i, COMPUTE);
    if (transfer)
        check(c, "transfers", ncclGroupStart());
    c->slice = code->slice;
    c->istep = p->first - 1;
    c->looks = false;
    code->run(c);
    if (transfer)
        check(c, "transfers", ncclGroupEnd());
    look_at_last(c, p);
    for (int i = TENSOR; i < STAGES; i++)
        if (code->streams >> i & 1)
            follow_tail(c, COMPUTE, (Stream)i);
    watch_ends(c, ipass, c->stream[mine]);
    if (p->awaited)
        check(c, "an event", cudaEventRecord(c->passed[ipass], c->stream[mine]));
}

inline const char *device_pass(void *ctx, int ipass, const RtDeviceNow *now)
{
    Ctx *c = (Ctx *)ctx;
    const RtPass *p = &c->rank->program->passes[ipass];
    for (int i = 0; i < RT_REGIONS; i++)
        c->base[i] = c->block + p->region[i];
    bool forth = p->kind == RT_PASS_FORWARD || p->kind == RT_PASS_SEND_ACTIVATION ||
                 p->kind == RT_PASS_RECV_ACTIVATION;
    c->again = p->again;
    c->follows = forth ? p->slice > 0 : p->slice + 1 < c->head->nslices;
    c->begun = c->again || c->follows;
    c->seed = c->head->train.seed;
    c->step = (uint32_t)now->step;
    c->evaluate = now->evaluate;
    c->scale = now->count > 0 ? 1.0 / (double)now->count : 0;
    c->clip = now->clip;
    c->lr = now->lr;
    c->now = now;
    if (p->kind == RT_PASS_BEGIN) {
        check(c, "sums", cudaMemsetAsync(c->sums, 0, 2 * sizeof(double), c->compute));
        follow_tail(c, COMPUTE, STAGES);        // the last step's transfers
        follow_tail(c, STAGES, COMPUTE);
    }
    run_pass(c, p, ipass);
    check(c, "a pass", cudaGetLastError());
    return c->message[0] ? c->message : NULL;
}

inline const char *device_sums(void *ctx, double *loss, double *squares)
{
    Ctx *c = (Ctx *)ctx;
    double v[2] = { 0, 0 };
    check(c, "sums", cudaMemcpyAsync(v, c->sums, sizeof v, cudaMemcpyDeviceToHost, c->compute));
    check(c, "sums", cudaStreamSynchronize(c->compute));
    *loss = v[0];
    *squares = v[1];
    return c->message[0] ? c->message : NULL;
}

/* ---- --profile --------------------------------------------------------------------------- */

/* What `teracube profile CLUSTER --target cuda` measures, among this program's ranks. */
inline int device_profile(const RtHeader *h, const RtOptions *o)
{
    SurveyTask task = SurveyTask();
    int ranks = h->nstages * h->data * h->x * h->y * h->z;
    bool whole = h->node > 0 && ranks % h->node == 0;
    task.cluster = h->node > 0 ? "of the plan" : "this machine";
    task.per_node = whole ? h->node : ranks;
    task.nodes = ranks / task.per_node;
    task.ports = h->ports > 0 ? h->ports : 1;
    task.exe = o->exe;
    task.out = o->profile;
    const char *const with[] = { "--root", o->root, "--rank", o->rank, "--world", o->world };
    const char *argv[9] = { o->exe }, *small = getenv("RT_PROFILE");
    int argc = 1;
    if (small && strcmp(small, "tiny") == 0)            // tests: sizes that show nothing
        argv[argc++] = "--tiny";
    for (int i = 0; i < 6; i += 2)
        if (with[i + 1]) {
            argv[argc++] = with[i];
            argv[argc++] = with[i + 1];
        }
    return profile_main(task, argc, (char **)argv);
}

/* ---- main ------------------------------------------------------------------------------- */

template <const Program *P>
inline int teracube_main(const char *from, const char *to, int argc, char **argv)
{
    int n = 0;
    while (P->groups[n].axes)
        n++;
    RtGroupKey *keys = (RtGroupKey *)calloc((size_t)n + 1, sizeof *keys);
    for (int i = 0; i < n; i++)
        keys[i] = { P->groups[i].axes, P->groups[i].rep, P->groups[i].stages };
    int64_t beside = (int64_t)P->scratch + LT_OTHERS;       // at the least
    for (int i = 0; i < STREAMS; i++)
        beside += (int64_t)P->sum[i];
    const RtDevice device = { keys, n, beside, device_count, device_look, device_meeting,
                              device_open<P>, device_close, device_write, device_read,
                              device_rows, device_pass, device_find, device_sums, device_where,
                              device_spans, device_profile };
    int status = rt_device_main(from, (size_t)(to - from), &device, argc, argv);
    free(keys);
    return status;
}

#endif
