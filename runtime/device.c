/*
 * device.c - training on devices: the runtime keeps the data, the files and the sums of
 * a step; the program's device runs the passes (rt.h, RtDevice).
 *
 * The block's persistent part has a copy on the host, which first weights are written
 * into and files are read from. It is pushed before the first step and pulled when
 * somebody looks. Steps that belong to the host (RT_COUNT, RT_TOTALS) run behind the
 * pass that holds them.
 */
#include "rt_impl.h"

typedef struct {
    void *ctx;
    RtDeviceRank rank;
    RtDeviceRows *rows;
    RtDeviceColumns *columns;
    RtDeviceGroup *groups;
    RtDeviceBoxes **boxes;              // by step; owned by the step that made them
    RtBoxes *given; int ngiven;
    RtDeviceRange *updates, *norms;
    int *filled;                        // by row map: the microbatch that the device has
    atomic_bool open;
    uint64_t done;                      // collectives that had ended when somebody looked
    double *begin, *end;                // of passes, for the trace
} Device;

static int told(RtRank *r, const char *what, const char *message)
{
    char who[48];
    if (!message)
        return RT_OK;
    return rt_fail(r->rt, RT_WORLD, "%s: error: %s could not %s: %s", r->rt->exe, rt_who(r, who),
                   what, message);
}

int64_t rt_persistent_bytes(const RtRank *r)
{
    const RtHeader *h = r->head;
    /* a part is kept from this `zero` on */
    const struct { int64_t offset; int part_from, stored; } kept[] = {
        { h->params_offset, 3, h->params_stored }, { h->grads_offset, 2, RT_REAL },
        { h->m_offset, 1, RT_REAL }, { h->v_offset, 1, RT_REAL },
        { h->master_offset, 1, RT_REAL },
    };
    int64_t end = 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        int64_t n = h->zero >= kept[i].part_from ? h->flat_pad / h->data : h->flat_pad;
        int64_t to = kept[i].offset + n * rt_size(r->rt, kept[i].stored);
        if (kept[i].offset >= 0 && to > end)
            end = to;
    }
    return end;
}

/* ---- which device ---------------------------------------------------------- */

static int is_shared(void)
{
    const char *want = getenv("RT_SHARE_GPU");          // for trying a plan on a small machine
    return want && strcmp(want, "1") == 0;
}

static int64_t block_of(const Rt *rt, int rank)
{
    return rt->program[rank / (rt->nranks / rt->head->nstages)].head->block_bytes;
}

/* What a rank takes beside the block: what the program says, and all-to-alls' packed boxes, as
 * much again taken as given. The libraries' own memory is not known. */
static int64_t beside(const Rt *rt, int rank)
{
    const RtProgram *p = &rt->program[rank / (rt->nranks / rt->head->nstages)];
    int64_t most = 0;
    for (int i = 0; i < p->head->nsteps; i++) {
        const RtStep *s = &p->steps[i];
        int64_t bytes = 2 * s->rows * s->a.ld * rt_size(rt, s->a.stored);
        if (s->kind == RT_ALL_TO_ALL && bytes > most)
            most = bytes;
    }
    return rt->options->device->beside + most;
}

static int gpu_of(const Rt *rt, int rank) { return (rt->gpu + rank - rt->first) % rt->ngpus; }

static int check_memory(Rt *rt, int rank)
{
    RtDeviceFacts f = { .bytes = 0 };
    char has[32], needs[32], more[32];
    const char *why = rt->options->device->look(gpu_of(rt, rank), &f);
    if (why)
        return rt_fail(rt, RT_WORLD, "%s: error: rank %d cannot use GPU %d: %s", rt->exe, rank,
                       gpu_of(rt, rank), why);
    if ((double)f.bytes >= (double)(block_of(rt, rank) + beside(rt, rank)))
        return RT_OK;
    return rt_fail(rt, RT_WORLD, "%s: error: the GPU of rank %d (%s, %s) has %s of memory, the "
                   "plan's block %s and what stands beside it %s", rt->exe, rank, f.kind, f.id,
                   rt_size_words((double)f.bytes, "B", has),
                   rt_size_words((double)block_of(rt, rank), "B", needs),
                   rt_size_words((double)beside(rt, rank), "B", more));
}

int rt_devices_choose(Rt *rt)
{
    int local = 0;
    const char *host = rt->remote ? rt_remote_host_of(rt, rt->first, &local) : "";
    const char *on = rt->remote ? " on " : "";
    const char *why = rt->options->device->count(&rt->ngpus);
    if (why || rt->ngpus < 1)
        return rt_fail(rt, RT_WORLD, "%s: error: there is no GPU%s%s: %s", rt->exe, on, host,
                       why ? why : "none was found");
    if (!rt->remote && rt->nranks > rt->ngpus && !is_shared())
        return rt_fail(rt, RT_WORLD, "%s: error: the plan has %d ranks, this machine %d GPU%s; "
                       "launch.sh and launch.sbatch start one process a GPU on several", rt->exe,
                       rt->nranks, rt->ngpus, rt->ngpus == 1 ? "" : "s");
    if (rt->remote && rt->ngpus > 1 && local >= rt->ngpus && !is_shared())
        return rt_fail(rt, RT_WORLD, "%s: error: rank %d is number %d on %s, which has %d GPUs; "
                       "start as many processes there", rt->exe, rt->first, local + 1, host,
                       rt->ngpus);
    rt->gpu = rt->ngpus > 1 ? local % rt->ngpus : 0;
    for (int i = rt->first; i < rt->first + rt->nlocal; i++)
        RT_TRY(check_memory(rt, i));
    return RT_OK;
}

/* Processes that each see one GPU may all see the same. */
static int check_different(Rt *rt)
{
    RtDeviceFacts mine = { .bytes = 0 };
    rt->options->device->look(rt->gpu, &mine);
    RtDeviceFacts *all = rt_alloc((size_t)rt->nranks, sizeof *all);
    int status = rt_remote_share(rt, &mine, all, sizeof mine), none;
    for (int a = 0; a < rt->nranks && !status && !is_shared(); a++)
        for (int b = a + 1; b < rt->nranks && !status; b++)
            if (strcmp(all[a].id, all[b].id) == 0 && rt_remote_together(rt, a, b))
                status = rt_fail(rt, RT_WORLD, "%s: error: ranks %d and %d take the same GPU (%s) "
                                 "of %s: give each its own by CUDA_VISIBLE_DEVICES, or all of them "
                                 "all", rt->exe, a, b, all[a].id,
                                 rt_remote_host_of(rt, a, &none));
    free(all);
    return status;
}

/* What NCCL wants to bring the ranks together. */
int rt_devices_meet(Rt *rt)
{
    const RtDevice *dev = rt->options->device;
    if (rt->remote) {
        check_different(rt);
        RT_TRY(rt_remote_agree(rt, NULL));
    }
    const char *why = rt->first == 0 ? dev->meeting(rt->meeting) : NULL;
    if (why)
        rt_fail(rt, RT_WORLD, "%s: error: NCCL could not start: %s", rt->exe, why);
    if (!rt->remote)
        return atomic_load(&rt->status);
    RT_TRY(rt_remote_agree(rt, NULL));
    char *all = rt_alloc((size_t)rt->nranks, sizeof rt->meeting);
    int status = rt_remote_share(rt, rt->meeting, all, sizeof rt->meeting);
    if (!status)
        memcpy(rt->meeting, all, sizeof rt->meeting);
    free(all);
    return status;
}

/* ---- what the context is told --------------------------------------------- */

static void tell_tables(RtRank *r, Device *d)
{
    const RtHeader *h = r->head;
    d->rows = rt_alloc((size_t)h->nrowmaps + 1, sizeof *d->rows);
    d->filled = rt_alloc((size_t)h->nrowmaps + 1, sizeof *d->filled);
    d->columns = rt_alloc((size_t)h->ncolumns + 1, sizeof *d->columns);
    for (int i = 0; i < h->nrowmaps; i++) {
        const RtRows *m = &r->rows[i];
        d->rows[i] = (RtDeviceRows){ m->count, m->nruns, m->seq, m->pos, m->tokens, m->targets,
                                     m->token, m->runs };
        d->filled[i] = -1;
    }
    for (int i = 0; i < h->ncolumns; i++)
        d->columns[i] = (RtDeviceColumns){ r->cols[i].n, r->cols[i].global };
}

static void tell_groups(RtRank *r, Device *d)
{
    const RtDevice *dev = r->rt->options->device;
    d->groups = rt_alloc((size_t)dev->ngroups + 1, sizeof *d->groups);
    for (int i = 0; i < dev->ngroups; i++) {
        const RtSeat *seat = rt_seat_of(r, dev->groups[i].axes, dev->groups[i].rep,
                                        dev->groups[i].stages);
        if (seat && seat->group)
            d->groups[i] = (RtDeviceGroup){ seat->group->n, seat->me, seat->group->rank };
    }
}

/* Steps with equal boxes share them. */
static int tell_boxes(RtRank *r, Device *d)
{
    int n = r->head->nsteps, different = 0;
    for (const RtBoxes *b = r->made; b; b = b->next)
        different++;
    d->boxes = rt_alloc((size_t)n + 1, sizeof *d->boxes);
    d->given = rt_alloc((size_t)different + 1, sizeof *d->given);
    for (int i = 0; i < n; i++) {
        const RtBoxes *take = r->boxes[i];
        if (!take)
            continue;
        if (take->step == i) {
            RtBoxes *give = &d->given[d->ngiven++];
            RT_TRY(rt_boxes_given(r, i, give));
            d->boxes[i] = rt_alloc(1, sizeof **d->boxes);
            *d->boxes[i] = (RtDeviceBoxes){ give->box, take->box, give->nboxes, take->nboxes,
                                            give->run, take->run };
        }
        d->boxes[i] = d->boxes[take->step];
    }
    return RT_OK;
}

static void free_boxes(RtRank *r, Device *d)
{
    for (int i = 0; d->boxes && i < r->head->nsteps; i++)
        if (r->boxes[i] && r->boxes[i]->step == i)
            free(d->boxes[i]);
    for (int i = 0; i < d->ngiven; i++)
        rt_boxes_clear(&d->given[i]);
    free(d->boxes);
    free(d->given);
}

static int64_t place(const RtRank *r, int64_t offset, int unit, RtKept what, int64_t e, int stored)
{
    return offset < 0 ? -1 : offset + (e - rt_shift(r, unit, what)) * rt_size(r->rt, stored);
}

static RtDeviceRange range_of(const RtRank *r, int unit, int64_t lo, int64_t hi, bool decay)
{
    const RtHeader *h = r->head;
    return (RtDeviceRange){
        .n = hi - lo, .decay = decay,
        .params = place(r, h->params_offset, unit, RT_PARAMS, lo, h->params_stored),
        .master = place(r, h->master_offset, unit, RT_MOMENTS, lo, RT_REAL),
        .grads = place(r, h->grads_offset, unit, RT_GRADS, lo, RT_REAL),
        .m = place(r, h->m_offset, unit, RT_MOMENTS, lo, RT_REAL),
        .v = place(r, h->v_offset, unit, RT_MOMENTS, lo, RT_REAL),
    };
}

static void tell_ranges(RtRank *r, Device *d)
{
    d->updates = rt_alloc((size_t)r->nranges + 1, sizeof *d->updates);
    d->norms = rt_alloc((size_t)r->head->nunits + 1, sizeof *d->norms);
    for (int64_t i = 0; i < r->nranges; i++) {
        const RtRange *g = &r->range[i];
        d->updates[d->rank.nupdates++] = range_of(r, g->unit, g->lo, g->hi, g->decay);
    }
    for (int u = 0; u < r->head->nunits; u++) {
        int64_t lo, hi;
        rt_owned(r, u, &lo, &hi);
        if (r->counts[u] && lo < hi)
            d->norms[d->rank.nnorms++] = range_of(r, u, lo, hi, false);
    }
}

int rt_device_open(RtRank *r)
{
    Device *d = rt_alloc(1, sizeof *d);
    r->device = d;
    tell_tables(r, d);
    tell_groups(r, d);
    tell_ranges(r, d);
    RT_TRY(tell_boxes(r, d));
    d->rank.program = r->program;
    d->rank.rank = r->id;
    d->rank.nranks = r->rt->nranks;
    d->rank.rows = d->rows;
    d->rank.columns = d->columns;
    d->rank.groups = d->groups;
    d->rank.boxes = (const RtDeviceBoxes *const *)d->boxes;
    d->rank.updates = d->updates;
    d->rank.norms = d->norms;
    d->rank.device = gpu_of(r->rt, r->id);
    d->rank.meeting = r->rt->meeting;
    d->rank.timed = r->rt->options->trace != NULL;
    if (d->rank.timed) {
        d->begin = rt_alloc((size_t)r->head->npasses, sizeof *d->begin);
        d->end = rt_alloc((size_t)r->head->npasses, sizeof *d->end);
    }
    RT_TRY(told(r, "open its device", r->rt->options->device->open(&d->rank, &d->ctx)));
    atomic_store(&d->open, true);
    return RT_OK;
}

void rt_device_close(RtRank *r)
{
    Device *d = r->device;
    if (!d)
        return;
    if (d->ctx)
        r->rt->options->device->close(d->ctx);
    free_boxes(r, d);
    free(d->rows);
    free(d->filled);
    free(d->columns);
    free(d->groups);
    free(d->updates);
    free(d->norms);
    free(d->begin);
    free(d->end);
    free(d);
    r->device = NULL;
}

int rt_device_push(RtRank *r)
{
    Device *d = r->device;
    return told(r, "write to its device",
                r->rt->options->device->write(d->ctx, 0, r->block,
                                              (size_t)rt_persistent_bytes(r)));
}

int rt_device_pull(RtRank *r)
{
    Device *d = r->device;
    return told(r, "read from its device",
                r->rt->options->device->read(d->ctx, 0, r->block,
                                             (size_t)rt_persistent_bytes(r)));
}

/* ---- a pass --------------------------------------------------------------- */

/* Tokens of the pass's microbatch, where the device does not have them yet. */
static int move_rows(RtRank *r, Device *d)
{
    const RtDevice *dev = r->rt->options->device;
    for (int i = 0; i < r->head->nrowmaps; i++) {
        if (r->rows[i].microbatch < 0 || d->filled[i] == r->rows[i].microbatch)
            continue;
        d->filled[i] = r->rows[i].microbatch;
        RT_TRY(told(r, "take its tokens", dev->rows(d->ctx, i)));
    }
    return RT_OK;
}

/* What the step's passes have added up. */
int rt_device_sums(RtRank *r)
{
    Device *d = r->device;
    return told(r, "add up its loss",
                r->rt->options->device->sums(d->ctx, &r->loss[0], &r->squares[0]));
}

int64_t rt_device_find(RtRank *r, const RtOut *o, int64_t at, double *value)
{
    Device *d = r->device;
    const RtDevice *dev = r->rt->options->device;
    int64_t first = -1, size = rt_size(r->rt, o->at.stored);
    double number = 0;                  // as wide as any
    atomic_fetch_add(&r->sign->progress, 1);
    if (told(r, "look for what is not finite", dev->find(d->ctx, at, o->at.ld, o->rows, o->cols,
                                                         o->at.stored, &first)) || first < 0)
        return -1;
    at += (first / o->cols * o->at.ld + first % o->cols) * size;
    told(r, "read from its device", dev->read(d->ctx, at, &number, (size_t)size));
    *value = rt_get(r->rt, o->at.stored, &number, 0);
    return first;
}

static void look_behind(void *of, int istep) { rt_look(of, istep); }    // its status is in Rt

int rt_device_pass(RtWorker *w, const RtPass *pass)
{
    RtRank *r = w->rank;
    Device *d = r->device;
    const RtDevice *dev = r->rt->options->device;
    RtDeviceNow now = { .step = r->now.step, .count = r->now.count, .lr = r->now.lr,
                        .clip = r->now.clip, .evaluate = r->now.evaluate,
                        .look = r->searching ? look_behind : NULL, .of = w };
    atomic_store(&r->sign->op, pass->first < pass->last ? pass->first : -1);
    atomic_fetch_add(&r->sign->progress, 1);
    RT_TRY(move_rows(r, d));
    if (pass->kind == RT_PASS_BEGIN)            // another step: other tokens in the same rows
        for (int i = 0; i < r->head->nrowmaps; i++)
            d->filled[i] = -1;
    RT_TRY(told(r, "run a pass", dev->pass(d->ctx, (int)(pass - r->program->passes), &now)));
    for (int i = pass->first; i < pass->last; i++) {
        int kind = r->program->steps[i].kind;
        if (kind == RT_TOTALS || kind == RT_COUNT) {
            atomic_store(&r->sign->op, i);
            atomic_fetch_add(&r->sign->progress, 1);
        }
        if (kind == RT_TOTALS)
            RT_TRY(rt_device_sums(r));
        if (kind == RT_TOTALS || kind == RT_COUNT)
            RT_TRY(rt_step(w, i));
    }
    return atomic_load_explicit(&r->rt->status, memory_order_relaxed);
}

/* ---- what it is at --------------------------------------------------------- */

static bool is_exchange(int kind)
{
    return (kind >= RT_ALL_GATHER && kind <= RT_ALL_TO_ALL) || kind == RT_SEND || kind == RT_RECV;
}

/* Any thread. */
bool rt_device_where(RtRank *r)
{
    Device *d = r->device;
    int ipass, nth;
    uint64_t done;
    if (!d || !atomic_load(&d->open))
        return false;
    bool waits = r->rt->options->device->where(d->ctx, &ipass, &nth, &done);
    if (done != d->done)
        atomic_fetch_add(&r->sign->progress, 1);
    d->done = done;
    const RtPass *pass = waits ? &r->program->passes[ipass] : NULL;
    for (int i = pass ? pass->first : 0; pass && i < pass->last; i++)
        if (is_exchange(r->program->steps[i].kind) && nth-- == 0)
            atomic_store(&r->sign->op, i);
    return true;
}

/* Each pass is an event. */
int rt_device_events(RtRank *r)
{
    Device *d = r->device;
    RT_TRY(told(r, "time its passes", r->rt->options->device->spans(d->ctx, d->begin, d->end)));
    for (int i = 0; i < r->head->npasses; i++)
        if (d->end[i] > 0)
            r->events[r->nevents++] = (RtEvent){ d->begin[i], d->end[i], -1, i };
    return RT_OK;
}

/* ---- a program in one file -------------------------------------------------- */

static const char *table_at(const char **at, const char *end, uint64_t *bytes)
{
    if (end - *at < (int64_t)sizeof *bytes)
        return NULL;
    memcpy(bytes, *at, sizeof *bytes);
    const char *table = *at + sizeof *bytes;
    if (*bytes > (uint64_t)(end - table))
        return NULL;
    *at = table + (*bytes + 7) / 8 * 8;
    return table;
}

RtProgram *rt_program_read(const void *file, size_t bytes, int *nstages)
{
    const char *at = file, *end = at + bytes, *table[RT_TABLES];
    uint64_t n[RT_TABLES], used[RT_TABLES] = { 0 };
    for (int i = 0; i < RT_TABLES; i++)
        if (!(table[i] = table_at(&at, end, &n[i])))
            return NULL;
    const RtHeader *head = (const RtHeader *)(const void *)table[0];
    if (n[0] < sizeof *head || head->version != RT_VERSION || head->header_bytes != sizeof *head
        || head->nstages < 1 || n[0] != sizeof *head * (uint64_t)head->nstages)
        return NULL;
    *nstages = head->nstages;
    RtProgram *p = rt_alloc((size_t)head->nstages, sizeof *p);
    for (int r = 0; r < *nstages; r++, head++) {
        const void *mine[RT_TABLES];
        const uint64_t size[RT_TABLES] = {
            sizeof *head, sizeof(RtStep) * (uint64_t)head->nsteps,
            sizeof(RtParam) * (uint64_t)head->nparams, sizeof(RtUnit) * (uint64_t)head->nunits,
            sizeof(RtPiece) * (uint64_t)head->npieces,
            sizeof(RtSegment) * (uint64_t)head->nsegments,
            sizeof(RtColumns) * (uint64_t)head->ncolumns,
            sizeof(RtRowMap) * (uint64_t)head->nrowmaps, sizeof(RtPass) * (uint64_t)head->npasses,
            sizeof(int64_t) * (uint64_t)head->nslices, sizeof(RtOut) * (uint64_t)head->nouts,
            sizeof(RtRef) * (uint64_t)head->nargs, sizeof(uint32_t) * (uint64_t)head->nsalts,
            (uint64_t)head->text_bytes,
        };
        for (int i = 0; i < RT_TABLES; i++) {
            if (used[i] + size[i] > n[i]) {
                free(p);
                return NULL;
            }
            mine[i] = table[i] + used[i];
            used[i] += size[i];
        }
        p[r] = (RtProgram){ .head = mine[0], .steps = mine[1], .params = mine[2], .units = mine[3],
                            .pieces = mine[4], .segments = mine[5], .columns = mine[6],
                            .rowmaps = mine[7], .passes = mine[8], .slices = mine[9],
                            .outs = mine[10], .args = mine[11], .salts = mine[12],
                            .text = mine[13] };
    }
    return p;
}
