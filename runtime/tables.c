/*
 * tables.c - which tokens, columns and parameters a rank holds.
 *
 * The rows of a slice, l tokens of each of the b sequences of a microbatch, stand in
 * one global order g = 0 .. b*l-1, for each slice alike:
 *
 *   plain      g = sequence * l + position in the slice
 *   balanced   for r in 0 .. n-1 (n = x*z ranks), for each sequence: chunk r,
 *              then chunk 2n-1-r, chunks of l/(2n) positions
 *
 * Every layout gives a rank one stretch of that order: layout A stretch x_i*y +
 * y_i of x*y, layout B stretch x_i*z + z_i of x*z. Keys and values have the stretches
 * of several slices, one slice after another. Columns are cut segment by segment.
 * A parameter's block is cut, row by row, over the axes it is spread on:
 *
 *        columns of a piece          flat: row by row, padded, cut evenly
 *      +-----+---------+---+         [ 0 0 0 0 0 0 1 1 1 | 1 1 1 2 2 2 2 2 2 | .. ]
 *      |  0  |    0    | 0 |  row 0    shard 0             shard 1
 *      |  1  |    1    | 1 |  row 1
 *      +-----+---------+---+
 */
#include "rt_impl.h"

#include <stddef.h>

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Where rank `id` stands: its number, coordinates and program. */
RtRank rt_place(Rt *rt, int id)
{
    const RtHeader *h = rt->head;
    int replica = id / h->z / h->y / h->x, stage = replica / h->data;
    return (RtRank){ .rt = rt, .id = id, .z = id % h->z, .y = id / h->z % h->y,
                     .x = id / h->z / h->y % h->x, .d = replica % h->data, .stage = stage,
                     .program = &rt->program[stage], .head = rt->program[stage].head };
}

/*
 * The rank's coordinate on `axes` taken together, in group order (stage, data, x,
 * yk, yr, z; z fastest); *size is their product.
 */
int rt_axis_coordinate(const RtRank *r, int axes, int rep, int64_t *size)
{
    const RtHeader *h = r->rt->head;
    rep = rep > 1 ? rep : 1;
    const int at[5] = { r->d, r->x, r->y / rep, r->y % rep, r->z };
    const int n[5] = { h->data, h->x, h->y / rep, rep, h->z };
    int64_t i = axes & RT_STAGE ? r->stage : 0, p = axes & RT_STAGE ? h->nstages : 1;
    for (int a = 0; a < 5; a++) {
        if (axes & 1 << a) {
            i = i * n[a] + at[a];
            p *= n[a];
        }
    }
    if (size)
        *size = p;
    return (int)i;
}

/* ---- rows ---------------------------------------------------------------- */

static int64_t slice_rows(const RtRank *r, int slice)
{
    const RtHeader *h = r->rt->head;
    return h->T / h->sequence * r->program->slices[slice];
}

/* First of the rank's rows in the slice's order, and their number, uncut by chunks. */
int64_t rt_rows_first(const RtRank *r, int axes, int slice, int64_t *n)
{
    int64_t p = 1, i = rt_axis_coordinate(r, axes & ~RT_DATA, 1, &p);
    *n = slice_rows(r, slice) / p;
    return i * *n;
}

/* Row g of a slice of `length` tokens that begins at position `start`. */
static void row_place(const RtHeader *h, int64_t g, int64_t start, int64_t length, int32_t *seq,
                      int32_t *pos)
{
    if (!h->balanced) {
        *seq = (int32_t)(g / length);
        *pos = (int32_t)(start + g % length);
        return;
    }
    int64_t n = (int64_t)h->x * h->z, chunk = length / (2 * n);
    int64_t share = h->T / h->sequence * length / n;
    int64_t r = g / share, in = g % share;
    bool late = in % (2 * chunk) >= chunk;
    *seq = (int32_t)(in / (2 * chunk));
    *pos = (int32_t)(start + (late ? 2 * n - 1 - r : r) * chunk + in % chunk);
}

static int by_place(const void *a, const void *b)
{
    const RtRun *p = a, *q = b;
    return p->seq != q->seq ? (p->seq > q->seq) - (p->seq < q->seq)
                            : (p->pos > q->pos) - (p->pos < q->pos);
}

/* The rank's stretch of one slice: of it all, or of part chunk_i of the x share. */
static int64_t stretch(const RtRank *r, const RtRowMap *map, int slice, int64_t *n)
{
    if (map->chunk <= 0)
        return rt_rows_first(r, map->axes, slice, n);
    int64_t share, zn = 1, zi = 0, first = rt_rows_first(r, map->axes & RT_X, slice, &share);
    if (map->axes & RT_Z)
        zi = rt_axis_coordinate(r, RT_Z, 1, &zn);
    int64_t lo = min64(map->chunk_i * map->chunk, share);
    *n = min64(map->chunk, share - lo) / zn;
    return first + lo + zi * *n;
}

static void add_row(RtRows *rows, int32_t seq, int32_t pos)
{
    int64_t i = rows->count++;
    rows->seq[i] = seq;
    rows->pos[i] = pos;
    RtRun *run = rows->nruns ? &rows->runs[rows->nruns - 1] : NULL;
    if (run && run->seq == seq && run->pos + run->n == pos)
        run->n++;
    else
        rows->runs[rows->nruns++] = (RtRun){ (int32_t)i, 1, seq, pos };
}

void rt_rows_make(const RtRank *r, const RtRowMap *map, RtRows *out)
{
    const int64_t *slices = r->program->slices;
    int64_t n = 0, start = 0, part;
    int last = map->first + map->nslices - 1;
    for (int s = map->first; s <= last; s++) {
        stretch(r, map, s, &part);
        n += part;
    }
    *out = (RtRows){ .last = last, .microbatch = -1 };
    out->seq = rt_alloc((size_t)n, sizeof *out->seq);
    out->pos = rt_alloc((size_t)n, sizeof *out->pos);
    out->token = rt_alloc((size_t)n, sizeof *out->token);
    out->runs = rt_alloc((size_t)n, sizeof *out->runs);
    for (int s = 0; s < map->first; s++)
        start += slices[s];
    for (int s = map->first; s <= last; s++) {
        int64_t first = stretch(r, map, s, &part);
        for (int64_t i = 0; i < part; i++) {
            int32_t seq, pos;
            row_place(r->rt->head, first + i, start, slices[s], &seq, &pos);
            add_row(out, seq, pos);
        }
        start += slices[s];
    }
    qsort(out->runs, (size_t)out->nruns, sizeof *out->runs, by_place);
}

/* ---- columns ------------------------------------------------------------- */

int rt_cols_make(const RtRank *r, const RtColumns *columns, RtCols *out)
{
    const RtSegment *seg = r->program->segments + columns->first;
    out->n = 0;
    for (int pass = 0; pass < 2; pass++) {
        int64_t at = 0;
        for (int i = 0; i < columns->nseg; i++) {
            int64_t p, c = rt_axis_coordinate(r, columns->axis, seg[i].rep, &p);
            if (seg[i].width % p)
                return rt_fail(r->rt, RT_BUG, "%s: error: %lld columns are not cut evenly by "
                               "%lld", r->rt->exe, (long long)seg[i].width, (long long)p);
            int64_t n = seg[i].width / p;
            for (int64_t k = 0; pass && k < n; k++)
                out->global[at + k] = (int32_t)(seg[i].start + c * n + k);
            at += n;
        }
        if (!pass)
            out->global = rt_alloc((size_t)at, sizeof *out->global);
        out->n = at;
    }
    return RT_OK;
}

/* ---- parameters ---------------------------------------------------------- */

void rt_owned(const RtRank *r, int iunit, int64_t *lo, int64_t *hi)
{
    const RtHeader *h = r->head;
    const RtUnit *u = &r->program->units[iunit];
    int64_t part = u->shard / h->data, slice = h->flat_pad / h->data;
    *lo = u->offset;
    *hi = u->offset + u->shard;
    if (h->zero >= 2) {
        *lo += r->d * part;
        *hi = *lo + part;
    } else if (h->zero == 1) {
        *lo = max64(*lo, r->d * slice);
        *hi = min64(*hi, (r->d + 1) * slice);
    } else if (r->d > 0) {
        *hi = *lo;
    }
}

/* The `zero` from which a replica keeps nothing but what it owns. */
static int owned_from(RtKept what)
{
    return what == RT_PARAMS ? 3 : what == RT_GRADS ? 2 : 1;
}

void rt_held(const RtRank *r, int iunit, RtKept what, int64_t *lo, int64_t *hi)
{
    const RtUnit *u = &r->program->units[iunit];
    *lo = u->offset;
    *hi = u->offset + u->shard;
    if (r->head->zero >= owned_from(what))
        rt_owned(r, iunit, lo, hi);
}

int64_t rt_shift(const RtRank *r, int iunit, RtKept what)
{
    const RtHeader *h = r->head;
    const RtUnit *u = &r->program->units[iunit];
    if (h->zero < owned_from(what))
        return 0;
    if (h->zero == 1)
        return r->d * (h->flat_pad / h->data);
    return u->offset + r->d * (u->shard / h->data) - u->offset / h->data;
}

int rt_spans(const RtRank *r, int iunit, int64_t lo, int64_t hi, RtSpanFn fn, void *ctx)
{
    const RtProgram *p = r->program;
    const RtUnit *u = &p->units[iunit];
    const RtCols *rows = u->rows >= 0 ? &r->cols[u->rows] : NULL;
    int64_t first = (int64_t)r->shard[iunit] * u->shard;        // of the block, flat
    int64_t from = max64(lo - u->offset, 0) + first;
    int64_t to = min64(min64(hi - u->offset, u->shard) + first, u->brows * u->bcols);
    while (from < to) {
        int64_t row = from / u->bcols, col = from % u->bcols;
        int64_t end = min64(u->bcols, col + to - from);
        int64_t grow = rows ? rows->global[row] : row;
        for (int i = u->first_piece; i < u->first_piece + u->npieces; i++) {
            const RtPiece *piece = &p->pieces[i];
            const RtParam *param = &p->params[piece->param];
            int64_t cut, c = rt_axis_coordinate(r, u->col_axis, piece->rep, &cut);
            int64_t width = piece->width / cut;
            int64_t a = max64(col, piece->local_start);
            int64_t gcol = piece->start + c * width + a - piece->local_start;
            int64_t n = min64(end, piece->local_start + width) - a;
            n = min64(n, param->width - gcol);          // what is beyond is padding
            if (n <= 0 || grow >= param->rows)
                continue;
            RtSpan span = { piece->param, grow, gcol, n,
                            u->offset + from - first + a - col };
            RT_TRY(fn(ctx, &span));
        }
        from += end - col;
    }
    return RT_OK;
}

/* ---- boxes of all-to-alls ------------------------------------------------ */

typedef struct { int nboxes, boxes_cap, nruns, runs_cap; } Room;

static RtBox *add_box(RtBoxes *b, Room *room)
{
    if (b->nboxes == room->boxes_cap) {
        room->boxes_cap = 2 * room->boxes_cap + 8;
        RtBox *box = rt_alloc((size_t)room->boxes_cap, sizeof *box);
        if (b->box)
            memcpy(box, b->box, sizeof *box * (size_t)b->nboxes);
        free(b->box);
        b->box = box;
    }
    return &b->box[b->nboxes++];
}

static void add_run(RtBoxes *b, Room *room, int first, int64_t src, int64_t dst, int64_t n)
{
    RtColRun *last = b->nruns > first ? &b->run[b->nruns - 1] : NULL;
    if (last && last->src + last->n == src && last->dst + last->n == dst) {
        last->n += n;
        return;
    }
    if (b->nruns == room->runs_cap) {
        room->runs_cap = 2 * room->runs_cap + 16;
        RtColRun *run = rt_alloc((size_t)room->runs_cap, sizeof *run);
        if (b->run)
            memcpy(run, b->run, sizeof *run * (size_t)b->nruns);
        free(b->run);
        b->run = run;
    }
    b->run[b->nruns++] = (RtColRun){ src, dst, n };
}

/*
 * Between layouts A [T/(xy), W/z] and B [T/(xz), W/y]: from every member copy
 * the rows and columns that this rank wants and that member holds. A column
 * that several members hold (kv heads replicated over y) comes from the first.
 */
static int boxes_ab(RtRank *r, const RtStep *s, const RtSeat *seat, RtBoxes *b)
{
    Rt *rt = r->rt;
    const RtColumns *src_table = &r->program->columns[s->columns_src];
    RtCols mine, *want = &mine;
    int src_axes = s->a2a == RT_A2A_AB ? RT_X | RT_YK | RT_YR : RT_X | RT_Z;
    int dst_axes = s->a2a == RT_A2A_AB ? RT_X | RT_Z : RT_X | RT_YK | RT_YR;
    int64_t n, first = rt_rows_first(r, dst_axes, s->slice, &n), got = 0, top = 0;
    RT_TRY(rt_cols_make(r, &r->program->columns[s->columns_dst], want));
    for (int64_t i = 0; i < want->n; i++)
        top = max64(top, want->global[i] + 1);
    Room room = { 0 };
    int32_t *where = rt_alloc((size_t)top, sizeof *where);
    /* found[first member with the same rows][column]; members' rows are equal or apart */
    bool *have = rt_alloc((size_t)(want->n * seat->group->n), sizeof *have);
    int64_t *from_row = rt_alloc((size_t)seat->group->n, sizeof *from_row);
    int status = RT_OK;
    for (int m = 0; m < seat->group->n && !status; m++) {
        RtRank peer = rt_place(rt, seat->group->rank[m]);
        int64_t pn, pfirst = rt_rows_first(&peer, src_axes, s->slice, &pn);
        int64_t lo = max64(first, pfirst), hi = min64(first + n, pfirst + pn);
        from_row[m] = pfirst;
        if (lo >= hi)
            continue;
        RtCols cols;
        status = rt_cols_make(&peer, src_table, &cols);
        if (status)
            break;
        memset(where, 255, sizeof *where * (size_t)top);
        for (int64_t i = 0; i < cols.n; i++)
            if (cols.global[i] < top)
                where[cols.global[i]] = (int32_t)i;
        int first_with = 0;
        while (from_row[first_with] != pfirst)
            first_with++;
        bool *found = have + (int64_t)first_with * want->n;
        int first_run = b->nruns;
        int64_t taken = 0;
        for (int64_t i = 0; i < want->n; i++) {
            int32_t at = where[want->global[i]];
            if (at < 0 || found[i])
                continue;
            found[i] = true;
            taken++;
            add_run(b, &room, first_run, at, i, 1);
        }
        if (b->nruns > first_run)
            *add_box(b, &room) = (RtBox){ m, first_run, b->nruns - first_run, lo - pfirst,
                                          lo - first, hi - lo };
        got += taken * (hi - lo);
        free(cols.global);
    }
    if (!status && got != want->n * n)
        status = rt_fail(rt, RT_BUG, "%s: error: all_to_all '%s' finds %lld of %lld elements "
                         "(%s)", rt->exe, rt_text(r->program, s->name), (long long)got,
                         (long long)(want->n * n), rt_text(r->program, s->source));
    b->elements = got;
    free(where);
    free(have);
    free(from_row);
    free(mine.global);
    return status;
}

/*
 * attention = exchange. HEADS: [rows, cols] -> [p*rows, cols/p], member i takes
 * part i of the columns. TOKENS: the inverse, [rows, cols] -> [rows/p, cols*p].
 */
static void boxes_exchange(const RtStep *s, const RtSeat *seat, RtBoxes *b)
{
    int64_t p = seat->group->n, me = seat->me;
    bool heads = s->a2a == RT_A2A_HEADS;
    int64_t rows = heads ? s->rows : s->rows / p;
    int64_t cols = heads ? s->cols / p : s->cols;
    Room room = { 0 };
    for (int64_t m = 0; m < p; m++) {
        int run = b->nruns;
        add_run(b, &room, run, heads ? me * cols : 0, heads ? 0 : m * cols, cols);
        *add_box(b, &room) = (RtBox){ (int)m, run, 1, heads ? 0 : me * rows,
                                      heads ? m * rows : 0, rows };
    }
    b->elements = p * rows * cols;
}

static int find_boxes(RtRank *r, const RtStep *s, const RtSeat *seat, RtBoxes *b)
{
    if (s->a2a == RT_A2A_AB || s->a2a == RT_A2A_BA)
        return boxes_ab(r, s, seat, b);
    boxes_exchange(s, seat, b);
    return RT_OK;
}

static bool same_boxes(const RtProgram *p, const RtStep *a, const RtStep *b)
{
    return a->a2a == b->a2a && a->axes == b->axes && a->rep == b->rep && a->rows == b->rows
           && a->cols == b->cols && a->columns_src == b->columns_src
           && a->columns_dst == b->columns_dst && a->a.ld == b->a.ld && a->c.ld == b->c.ld
           && p->slices[a->slice] == p->slices[b->slice];
}

/* Equal exchanges of one rank share their boxes. */
int rt_boxes_make(RtRank *r, int istep)
{
    const RtStep *steps = r->program->steps, *s = &steps[istep];
    for (RtBoxes *b = r->made; b; b = b->next)
        if (same_boxes(r->program, &steps[b->step], s)) {
            r->boxes[istep] = b;
            return RT_OK;
        }
    const RtSeat *seat = &r->seat[r->step_kind[istep]];
    RtBoxes *b = rt_alloc(1, sizeof *b);
    b->src_ld = s->a.ld;
    b->dst_ld = s->c.ld;
    b->step = istep;
    b->next = r->made;
    r->boxes[istep] = r->made = b;
    return find_boxes(r, s, seat, b);
}

void rt_boxes_clear(RtBoxes *b)
{
    free(b->box);
    free(b->run);
    *b = (RtBoxes){ 0 };
}

/* Each member's boxes are worked out as it does itself; those of this rank's rows are copied. */
int rt_boxes_given(RtRank *r, int istep, RtBoxes *out)
{
    const RtStep *s = &r->program->steps[istep];
    const RtSeat *seat = &r->seat[r->step_kind[istep]];
    Room room = { 0 };
    *out = (RtBoxes){ .src_ld = s->a.ld, .dst_ld = s->c.ld, .step = istep };
    for (int m = 0; m < seat->group->n; m++) {
        RtRank taker = rt_place(r->rt, seat->group->rank[m]);
        RtBoxes all = { 0 };
        int status = find_boxes(&taker, s, &(RtSeat){ seat->group, m }, &all);
        for (int i = 0; i < all.nboxes && !status; i++) {
            RtBox box = all.box[i];
            if (box.peer != seat->me)
                continue;
            int first = out->nruns;
            for (int k = box.run; k < box.run + box.nruns; k++)
                add_run(out, &room, first, all.run[k].src, all.run[k].dst, all.run[k].n);
            box.peer = m;
            box.run = first;
            *add_box(out, &room) = box;
        }
        rt_boxes_clear(&all);
        RT_TRY(status);
    }
    return RT_OK;
}

/* ---- all of a rank ------------------------------------------------------- */

static int check_rows(RtRank *r, int m)
{
    int64_t want = r->program->rowmaps[m].count;
    char who[48];
    if (want == r->rows[m].count)
        return RT_OK;
    return rt_fail(r->rt, RT_BUG, "%s: error: row order %d has %lld rows on %s, the plan "
                   "says %lld", r->rt->exe, m, (long long)r->rows[m].count, rt_who(r, who),
                   (long long)want);
}

int rt_tables_make(RtRank *r)
{
    const RtProgram *p = r->program;
    const RtHeader *h = r->head;
    r->rows = rt_alloc((size_t)h->nrowmaps, sizeof *r->rows);
    r->cols = rt_alloc((size_t)h->ncolumns, sizeof *r->cols);
    r->boxes = rt_alloc((size_t)h->nsteps, sizeof *r->boxes);
    r->shard = rt_alloc((size_t)h->nunits, sizeof *r->shard);
    r->counts = rt_alloc((size_t)h->nunits, sizeof *r->counts);
    r->sequence = rt_alloc((size_t)(h->T / h->sequence * h->microbatches), sizeof *r->sequence);
    for (int i = 0; i < h->npasses; i++)
        r->nchunks = p->passes[i].chunk >= r->nchunks ? p->passes[i].chunk + 1 : r->nchunks;
    size_t pieces = (size_t)r->nchunks * (size_t)h->microbatches;
    r->forwards = rt_alloc(pieces, sizeof *r->forwards);
    r->backwards = rt_alloc(pieces, sizeof *r->backwards);
    for (int m = 0; m < h->nrowmaps; m++) {
        rt_rows_make(r, &p->rowmaps[m], &r->rows[m]);
        RT_TRY(check_rows(r, m));
    }
    for (int c = 0; c < h->ncolumns; c++)
        RT_TRY(rt_cols_make(r, &p->columns[c], &r->cols[c]));
    for (int u = 0; u < h->nunits; u++) {
        const RtUnit *unit = &p->units[u];
        r->shard[u] = rt_axis_coordinate(r, unit->spread & ~RT_DATA, unit->rep, NULL);
        int copy = rt_axis_coordinate(r, unit->repl & ~RT_DATA, unit->rep, NULL);
        r->counts[u] = unit->counts && copy == 0;
    }
    for (int i = 0; i < h->nsteps; i++) {
        const RtStep *s = &p->steps[i];
        if (s->kind == RT_ALL_TO_ALL)
            RT_TRY(rt_boxes_make(r, i));
        if (s->kind != RT_KERNEL || s->rowmap < 0)
            continue;
        RtRows *rows = &r->rows[s->rowmap];
        if (s->ids == RT_IDS_TOKENS && !rows->tokens)
            rows->tokens = rt_alloc((size_t)rows->count, sizeof *rows->tokens);
        if (s->ids == RT_IDS_TARGETS && !rows->targets)
            rows->targets = rt_alloc((size_t)rows->count, sizeof *rows->targets);
    }
    return rt_ranges_make(r);
}

void rt_tables_free(RtRank *r)
{
    const RtHeader *h = r->head;
    for (int m = 0; r->rows && m < h->nrowmaps; m++) {
        RtRows *rows = &r->rows[m];
        free(rows->seq);
        free(rows->pos);
        free(rows->token);
        free(rows->tokens);
        free(rows->targets);
        free(rows->runs);
    }
    for (int c = 0; r->cols && c < h->ncolumns; c++)
        free(r->cols[c].global);
    while (r->made) {
        RtBoxes *b = r->made;
        r->made = b->next;
        rt_boxes_clear(b);
        free(b);
    }
    free(r->rows);
    free(r->cols);
    free(r->boxes);
    free(r->forwards);
    free(r->backwards);
    free(r->shard);
    free(r->counts);
    free(r->sequence);
    free(r->range);
}
