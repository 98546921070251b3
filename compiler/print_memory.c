/*
 * print_memory.c - what fills a stage's block, by class, and the block's map.
 *
 *     block = persistent part + the largest function's own + what is in flight
 *
 * (memory.c). The classes of the first are counted; those of the second and of a
 * region are counted where the most of it is alive. Whatever no class has is a gap.
 */
#include "print.h"

/* ---- the most that is alive of some buffers ------------------------------------------ */

enum { KV = BUF_CLASSES, CLASSES };
typedef struct { int64_t bytes[CLASSES], sum; InstId at; } Most;

typedef struct { InstId at; int class; int64_t change; } Event;
typedef VEC(Event) Events;

static int by_time(const void *x, const void *y)
{
    const Event *a = x, *b = y;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return (a->change > b->change) - (a->change < b->change);     // ends before begins
}

static void add_life(const Plan *p, const Buffer *b, Events *e)
{
    int64_t bytes = buffer_bytes(p, b);
    bool kv = b->region == REGION_MICRO || b->region == REGION_MICRO_BACK;
    Event begin = { b->first, kv ? (int)KV : (int)b->class, bytes };
    Event end = { b->last + 1, begin.class, -bytes };
    vec_add(e, begin);
    vec_add(e, end);
}

static Most most_alive(Events *e)
{
    Most most = { 0 }, now = { 0 };
    vec_sort(*e, by_time);
    for (int i = 0; i < e->n; i++) {
        now.at = e->at[i].at;
        now.bytes[e->at[i].class] += e->at[i].change;
        now.sum += e->at[i].change;
        if (now.sum > most.sum)
            most = now;
    }
    return most;
}

/* ---- the parts of the block ----------------------------------------------------------- */

/* What is placed together: what a function uses alone, or a region of a unit. */
typedef struct { Events lives; Most most; int64_t size; } Part;
typedef struct {
    const Plan *p;
    int64_t persistent;
    Part *own;                      // by function
    Part *region[REGIONS];          // by chunk and slice (microbatches: slice 0)
} Parts;

static Part *region_part(const Parts *all, Region r, int slice, int chunk)
{
    int i = chunk * all->p->is.nslices + (r < REGION_MICRO ? slice : 0);
    return &all->region[r][i];
}

static int *funcs_of_insts(const Plan *p)
{
    int *of = NEWN(int, p->insts.n + 1);
    for (int k = 0; k < p->funcs.n; k++)
        for (int i = p->funcs.at[k].first; i < p->funcs.at[k].end; i++)
            of[i] = k;
    return of;
}

/* Buffers in one block without regions: all in the first function's part. */
static bool is_one_part(const Plan *p)
{
    return p->is.stages <= 1 && p->is.chunks <= 1 && p->is.nslices <= 1;
}

static Parts find_parts(const Plan *p)
{
    Parts all = { .p = p };
    bool one = is_one_part(p);
    const int *func = funcs_of_insts(p);
    all.own = NEWN(Part, p->funcs.n + 1);
    for (int r = 0; r < REGIONS && !one; r++)
        all.region[r] = NEWN(Part, p->is.chunks * p->is.nslices);
    for (int i = 0; i < p->buffers.n; i++)
        if (p->buffers.at[i].persistent)
            all.persistent += buffer_bytes(p, &p->buffers.at[i]);
    for (int i = 0; i < p->buffers.n; i++) {
        const Buffer *b = &p->buffers.at[i];
        if (b->persistent || b->first < 0)
            continue;
        int k = one ? 0 : func[b->first];
        bool own = one || b->region == REGION_FIXED;
        Part *part = own ? &all.own[k]
            : region_part(&all, b->region, p->funcs.at[k].slice, p->funcs.at[k].chunk);
        int64_t end = b->offset + buffer_bytes(p, b) - (own ? all.persistent : 0);
        part->size = end > part->size ? end : part->size;
        add_life(p, b, &part->lives);
    }
    for (int k = 0; k < p->funcs.n || k == 0; k++)
        all.own[k].most = most_alive(&all.own[k].lives);
    for (int r = REGION_UNIT; r < REGIONS && !one; r++)
        for (int i = 0; i < p->is.chunks * p->is.nslices; i++)
            all.region[r][i].most = most_alive(&all.region[r][i].lives);
    return all;
}

/* ---- what is in flight ---------------------------------------------------------------- */

/* A copy of a region: of one microbatch. It lives from call `first` to call `last`. */
typedef struct { const Part *part; Region region; int first, last; } Copy;
typedef VEC(Copy) Copies;

static Copies find_copies(const Parts *all)
{
    const Plan *p = all->p;
    Copies copies = { 0 };
    int m = (int)print_passes(p), units = p->is.chunks * p->is.nslices;
    int *at = NEWN(int, REGIONS * units * m);           // index + 1
    for (int i = 0; i < p->calls.n; i++) {
        const Step *s = &p->calls.at[i].step;
        for (Region r = REGION_UNIT; r < REGIONS && s->kind < STEP_SYNC; r++) {
            if (!call_needs(s->kind, r))
                continue;
            int slice = r < REGION_MICRO ? s->slice : 0;
            int *known = &at[(r * units + s->chunk * p->is.nslices + slice) * m + s->microbatch];
            if (*known == 0) {
                Copy c = { region_part(all, r, slice, s->chunk), r, i, i };
                vec_add(&copies, c);
                *known = copies.n;
            }
            copies.at[*known - 1].last = i;
        }
    }
    return copies;
}

static void add_most(const Most *m, Peak *peak)
{
    for (int c = 0; c < BUF_CLASSES; c++)
        peak->bytes[c] += m->bytes[c];
    peak->keys_values += m->bytes[KV];
    peak->sum += m->sum;
}

static void add_in_flight(const Parts *all, Peak *peak)
{
    int n = all->p->calls.n, full = 0;
    Copies copies = find_copies(all);
    int64_t *bytes = NEWN(int64_t, n + 1);
    int *units = NEWN(int, n + 1), *micros = NEWN(int, n + 1);
    for (int i = 0; i < copies.n; i++) {
        const Copy *c = &copies.at[i];
        bytes[c->first] += c->part->size;
        bytes[c->last + 1] -= c->part->size;
        int *count = c->region == REGION_UNIT ? units : c->region == REGION_MICRO ? micros : NULL;
        if (count) {
            count[c->first]++;
            count[c->last + 1]--;
        }
    }
    for (int i = 1; i < n; i++) {
        bytes[i] += bytes[i - 1];
        units[i] += units[i - 1];
        micros[i] += micros[i - 1];
        full = bytes[i] > bytes[full] ? i : full;
    }
    for (int i = 0; i < n; i++) {
        peak->units = units[i] > peak->units ? units[i] : peak->units;
        peak->microbatches = micros[i] > peak->microbatches ? micros[i] : peak->microbatches;
    }
    for (int i = 0; i < copies.n; i++)
        if (copies.at[i].first <= full && full <= copies.at[i].last)
            add_most(&copies.at[i].part->most, peak);
}

Peak print_peak(const Plan *p)
{
    Aside aside = aside_begin();
    Peak peak = { 0 };
    Parts all = find_parts(p);
    const Part *largest = &all.own[0];
    for (int k = 1; k < p->funcs.n; k++)
        largest = all.own[k].size > largest->size ? &all.own[k] : largest;
    add_most(&largest->most, &peak);
    peak.at = largest->most.at;
    for (int i = 0; i < p->buffers.n; i++)
        if (p->buffers.at[i].persistent) {
            peak.bytes[p->buffers.at[i].class] += buffer_bytes(p, &p->buffers.at[i]);
            peak.sum += buffer_bytes(p, &p->buffers.at[i]);
        }
    if (!is_one_part(p))
        add_in_flight(&all, &peak);
    aside_end(aside);
    return peak;
}

int64_t print_block_under(const Plan *p, int r, ScheduleKind kind)
{
    Aside aside = aside_begin();
    Plan other = *plan_stage(p, r);
    Schedule s = p->pipeline->schedule;
    s.kind = kind;
    s.stage = NULL;
    schedule_build(&s);
    memset(&other.calls, 0, sizeof other.calls);
    memset(&other.buffers, 0, sizeof other.buffers);
    vec_reserve(&other.buffers, plan_stage(p, r)->buffers.n);
    for (int i = 0; i < plan_stage(p, r)->buffers.n; i++)
        vec_add(&other.buffers, plan_stage(p, r)->buffers.at[i]);
    other.stages = NULL;
    other.placed = false;
    calls_of_table(&other, &s.stage[r]);
    memory_place(&other);
    aside_end(aside);
    return other.block_bytes;
}

/* ---- the map: -d memory ---------------------------------------------------------------- */

static const char *const region_word[REGIONS] = {
    "block", "unit", "unit-forward", "unit-backward", "microbatch", "microbatch-backward"
};

static void print_buffers(const Plan *p, FILE *f)
{
    const int *func = funcs_of_insts(p);
    Table t = { .align = "rrllrrl" };
    static const char *const head[] = { "offset", "bytes", "in", "class", "from", "to", "buffer" };
    for (int i = 0; i < 7; i++)
        table_cell(&t, "%s", head[i]);
    for (int i = 0; i < p->buffers.n; i++) {
        const Buffer *b = &p->buffers.at[i];
        if (b->first < 0)
            continue;
        const Func *x = p->funcs.n ? &p->funcs.at[func[b->first]] : NULL;
        table_cell(&t, "%" PRId64, b->offset);
        table_cell(&t, "%" PRId64, buffer_bytes(p, b));
        Text in = { 0 };
        text_add(&in, "%s", region_word[b->region]);
        if (b->region != REGION_FIXED && p->is.nslices > 1 && b->region < REGION_MICRO)
            text_add(&in, " slice %d", x->slice);
        if (b->region != REGION_FIXED && p->is.chunks > 1)
            text_add(&in, " chunk %d", x->chunk);
        table_cell(&t, "%s", str_of(in.at, in.n));
        table_cell(&t, "%s", buf_class_word[b->class]);
        table_cell(&t, "%d", b->first);
        table_cell(&t, "%d", b->last);
        table_cell(&t, "%s", b->name);
    }
    table_print(&t, f);
}

/* Where the regions of a call's unit and microbatch stand in the block. */
static void print_places(const Plan *p, FILE *f)
{
    Table t = { .align = "rlrrrrr" };
    table_cell(&t, "call");
    table_cell(&t, "step");
    for (int r = REGION_UNIT; r < REGIONS; r++)
        table_cell(&t, "%s", region_word[r]);
    for (int i = 0; i < p->calls.n; i++) {
        const Call *c = &p->calls.at[i];
        table_cell(&t, "%d", i);
        table_cell(&t, "%s", step_text(&c->step));
        for (int r = REGION_UNIT; r < REGIONS; r++)
            if (c->region[r])
                table_cell(&t, "%" PRId64, c->region[r]);
            else
                table_cell(&t, "-");
    }
    table_print(&t, f);
}

/* Of every stage: the buffers and where they are, then the regions of every call. */
void print_memory(const Plan *p, FILE *f)
{
    for (int r = 0; r < p->is.stages; r++) {
        const Plan *s = plan_stage(p, r);
        if (p->is.stages > 1)
            fprintf(f, "# stage %d\n", r);
        fprintf(f, "# %" PRId64 " bytes, one block\n", s->block_bytes);
        print_buffers(s, f);
        if (!is_one_part(s))
            print_places(s, f);
    }
}
