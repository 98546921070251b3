/*
 * checkpoint.c - parameters and moments: first values, files of tensors, and look-ups.
 *
 * Everything goes through the map of tables.c from a rank's shard to elements
 * of whole parameters, so a file is the same for every layout and a file from
 * any layout can be read by any other. No rank ever holds more than its shard
 * and a small buffer: a rank reads and writes the byte ranges of its elements.
 *
 * A matrix stored [out, in] is transposed in the file: there a column of the
 * block, as far as the shard has it, is one range.
 *
 * Saving writes to FILE.tmp-PID in the same folder, counts every element, syncs
 * and renames. Checksums (checksum.c) are made of what is written, and rank 0 puts them into
 * the header last; on reading each is of the copy that counts. Only one copy of each element
 * is written (RtRank.counts). Ranks that are processes open the file that rank 0 made, PID
 * being rank 0's. Moments lie in files as the parameters do that they belong to; resume.c asks
 * for them.
 */
#include "rt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BUFFER = 8192,          // elements read or written at a time
    COLS = 16, ROWS = 512,  // a tile of a transposed matrix: it stays in the cache
    SOON = 32 << 20,        // bytes written after which the disk may begin
};

/* n elements that are neighbours in the file: tensor elements index.. of `param`
 * stand at flat elements at, at + stride, .. of this rank. */
typedef struct { int param; int64_t index, n, at, stride; } FileRun;
typedef struct FileIo FileIo;
struct FileIo {
    RtRank *r;
    int (*run)(FileIo *io, const FileRun *run);
    RtValues what;
    RtOutput *out;          // written to
    const RtTensors *in;    // read from
    atomic_uint *sum;       // of what is read: where its checksums add up; NULL: they do not
    int unit;               // that the runs are of
    FileRun pending;
    int64_t unsent;         // bytes written since the disk was told
    char buffer[BUFFER * 8];
    double value[BUFFER];
};

/* Flat elements of a unit as the rank keeps them: element e is number e - shift. */
typedef struct { char *base; int64_t shift; int stored; } Kept;

static Kept kept_params(const RtRank *r, int unit)
{
    const RtHeader *h = r->head;
    return (Kept){ r->block + h->params_offset, rt_shift(r, unit, RT_PARAMS), h->params_stored };
}

/* The float copy of parameters that are stored in 16 bits. */
static Kept kept_master(const RtRank *r, int unit)
{
    return (Kept){ r->block + r->head->master_offset, rt_shift(r, unit, RT_MOMENTS), RT_REAL };
}

static Kept kept_moments(const RtRank *r, int unit, RtValues what)
{
    int64_t offset = what == RT_MOMENT_1 ? r->head->m_offset : r->head->v_offset;
    return (Kept){ r->block + offset, rt_shift(r, unit, RT_MOMENTS), RT_REAL };
}

/* What is saved and shown. */
static Kept kept_best(const RtRank *r, int unit, RtValues what)
{
    if (what != RT_WEIGHTS)
        return kept_moments(r, unit, what);
    return r->head->master_offset >= 0 ? kept_master(r, unit) : kept_params(r, unit);
}

static char *element(const RtRank *r, const Kept *k, int64_t at)
{
    return k->base + (at - k->shift) * rt_size(r->rt, k->stored);
}

static void put_kept(const RtRank *r, const Kept *k, int64_t at, int64_t stride, int64_t n,
                     const double *v)
{
    void *p = element(r, k, at);
    float *f = p;
    double *d = p;
    if (k->stored != RT_REAL)
        for (int64_t i = 0; i < n; i++)
            rt_put(r->rt, k->stored, p, i * stride, v[i]);
    else if (r->rt->real == sizeof *d)
        for (int64_t i = 0; i < n; i++)
            d[i * stride] = v[i];
    else if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            f[i] = (float)v[i];
    else
        for (int64_t i = 0; i < n; i++)
            f[i * stride] = (float)v[i];
}

/* n values to the unit's flat elements at, at + stride, .., and to those of the master
 * copy that are here. */
static void put(const FileIo *io, int64_t at, int64_t stride, int64_t n, const double *v)
{
    const RtRank *r = io->r;
    bool weights = io->what == RT_WEIGHTS;
    Kept to = weights ? kept_params(r, io->unit) : kept_moments(r, io->unit, io->what);
    put_kept(r, &to, at, stride, n, v);
    if (!weights || r->head->master_offset < 0)
        return;
    Kept master = kept_master(r, io->unit);
    int64_t lo, hi, first = 0, end = n;
    rt_held(r, io->unit, RT_MOMENTS, &lo, &hi);
    if (at < lo)
        first = (lo - at + stride - 1) / stride;
    if (at + (n - 1) * stride >= hi)
        end = (hi - at + stride - 1) / stride;
    if (first < end)
        put_kept(r, &master, at + first * stride, stride, end - first, v + first);
}

/* ---- runs in files ------------------------------------------------------- */

static int flush_run(FileIo *io)
{
    FileRun run = io->pending;
    io->pending.n = 0;
    return run.n > 0 ? io->run(io, &run) : RT_OK;
}

/* Rows that follow each other both in the file and here become one run. */
static int straight_span(void *ctx, const RtSpan *s)
{
    FileIo *io = ctx;
    const RtParam *p = &io->r->rt->program->params[s->param];
    if (p->out_in)
        return RT_OK;
    FileRun *last = &io->pending;
    int64_t index = s->row * p->width + s->col;
    if (last->n > 0 && last->param == s->param && last->index + last->n == index
        && last->at + last->n == s->at) {
        last->n += s->n;
        return RT_OK;
    }
    RT_TRY(flush_run(io));
    io->pending = (FileRun){ s->param, index, s->n, s->at, 1 };
    return RT_OK;
}

/* Rows [from, to) of one column of the block, in stretches that follow each other in the
 * file. `at` is where flat element 0 of the block would be in the rank's memory. */
static int turned_column(FileIo *io, const RtUnit *u, int param, const int32_t *rows,
                         int64_t from, int64_t to, int64_t col, int64_t gcol, int64_t at)
{
    const RtParam *p = &io->r->rt->program->params[param];
    for (int64_t row = from; row < to;) {
        int64_t grow = rows ? rows[row] : row, n = 1;
        while (row + n < to && (rows ? rows[row + n] : row + n) == grow + n)
            n++;
        int64_t inside = p->rows - grow < n ? p->rows - grow : n;
        FileRun run = { param, gcol * p->rows + grow, inside, at + row * u->bcols + col,
                        u->bcols };
        if (inside > 0)
            RT_TRY(io->run(io, &run));
        row += n;
    }
    return RT_OK;
}

/* The first row whose element in `col` is at or behind flat element `from`. */
static int64_t row_from(const RtUnit *u, int64_t from, int64_t col)
{
    return from > col ? (from - col + u->bcols - 1) / u->bcols : 0;
}

/* The transposed ones, tile by tile: the columns of a tile share cache lines. */
static int turned_columns(FileIo *io, int iunit, int64_t lo, int64_t hi)
{
    const RtRank *r = io->r;
    const RtProgram *prog = r->program;
    const RtUnit *u = &prog->units[iunit];
    const int32_t *rows = u->rows >= 0 ? r->cols[u->rows].global : NULL;
    int64_t first = r->shard[iunit] * u->shard, block = u->brows * u->bcols;
    int64_t from = (lo > u->offset ? lo - u->offset : 0) + first;
    int64_t to = (hi < u->offset + u->shard ? hi - u->offset : u->shard) + first;
    to = to < block ? to : block;
    for (int i = u->first_piece; i < u->first_piece + u->npieces && from < to; i++) {
        const RtPiece *piece = &prog->pieces[i];
        const RtParam *p = &prog->params[piece->param];
        int64_t cut, c = rt_axis_coordinate(r, u->col_axis, piece->rep, &cut);
        int64_t width = piece->width / cut, start = piece->start + c * width;
        width = p->width - start < width ? p->width - start : width;    // beyond is padding
        for (int64_t tile = 0; p->out_in && tile < width; tile += COLS)
            for (int64_t row = from / u->bcols; row * u->bcols < to; row += ROWS)
                for (int64_t k = tile; k < width && k < tile + COLS; k++) {
                    int64_t col = piece->local_start + k;
                    int64_t a = row_from(u, from, col), b = row_from(u, to, col);
                    a = a > row ? a : row;
                    b = b < row + ROWS ? b : row + ROWS;
                    RT_TRY(turned_column(io, u, piece->param, rows, a, b, col, start + k,
                                         u->offset - first));
                }
    }
    return RT_OK;
}

static int unit_runs(FileIo *io, int iunit, int64_t lo, int64_t hi)
{
    RT_TRY(rt_spans(io->r, iunit, lo, hi, straight_span, io));
    RT_TRY(flush_run(io));
    return turned_columns(io, iunit, lo, hi);
}

/* ---- first values -------------------------------------------------------- */

static int init_span(void *ctx, const RtSpan *s)
{
    FileIo *io = ctx;
    const RtRank *r = io->r;
    const RtProgram *prog = r->rt->program;
    const RtParam *p = &prog->params[s->param];
    uint64_t hash = rt_name_hash(rt_text(prog, p->name));
    for (int64_t i = 0; i < s->n; i += BUFFER) {
        int64_t n = s->n - i < BUFFER ? s->n - i : BUFFER;
        rt_init_range(p->init, p->init_a, r->rt->head->train.seed, hash,
                      (uint64_t)(s->row * p->width + s->col + i), (size_t)n, io->value);
        put(io, s->at + i, 1, n, io->value);
    }
    return RT_OK;
}

static int load_broken(Rt *rt, const RtTensors *in, const RtTensor *t)
{
    return rt_fail(rt, RT_USER, "%s: error: could not read tensor %s: %s [weights-file]",
                   in->file, t->name, errno ? strerror(errno) : "the file is cut off");
}

/* Adds a range's part to the checksum of its tensor: `crc` is of the range, which ends n bytes
 * before the tensor. */
static void add_range(atomic_uint *sum, uint32_t crc, int64_t n)
{
    atomic_fetch_xor(sum, rt_crc_behind(crc, (uint64_t)n));
}

static int load_run(FileIo *io, const FileRun *run)
{
    RtRank *r = io->r;
    Rt *rt = r->rt;
    const RtTensors *in = io->in;
    int tensor = (int)(io->what - in->first) * rt->head->nparams + run->param;
    const RtTensor *t = in->of[tensor];
    int64_t size = (int64_t)rt_dtype_bytes(t->dtype);
    int64_t behind = t->end - t->begin - (run->index + run->n) * size;
    uint32_t crc = 0;
    bool weights = io->what == RT_WEIGHTS;
    Kept to = weights ? kept_params(r, io->unit) : kept_moments(r, io->unit, io->what);
    bool same = t->dtype == (rt->real == sizeof(float) ? RT_F32 : RT_F64)
                && to.stored == RT_REAL && (!weights || r->head->master_offset < 0);
    if (same && run->stride == 1) {
        void *p = element(r, &to, run->at);
        if (rt_read_at(in->fd, p, (size_t)(run->n * size), t->begin + run->index * size))
            return load_broken(rt, in, t);
        if (io->sum)
            add_range(&io->sum[tensor], rt_crc(0, p, (size_t)(run->n * size)), behind);
        return RT_OK;
    }
    for (int64_t i = 0; i < run->n; i += BUFFER) {
        int64_t n = run->n - i < BUFFER ? run->n - i : BUFFER;
        if (rt_read_at(in->fd, io->buffer, (size_t)(n * size),
                       t->begin + (run->index + i) * size))
            return load_broken(rt, in, t);
        if (io->sum)
            crc = rt_crc(crc, io->buffer, (size_t)(n * size));
        rt_dtype_decode(t->dtype, io->buffer, n, io->value);
        put(io, run->at + i * run->stride, run->stride, n, io->value);
    }
    if (io->sum)
        add_range(&io->sum[tensor], crc, behind);
    return RT_OK;
}

/* The worker's share of those of the flat elements [lo, hi) that are the unit's. */
static bool share_of(const RtWorker *w, const RtUnit *u, int64_t *lo, int64_t *hi)
{
    int64_t from = *lo > u->offset ? *lo : u->offset, a, b;
    int64_t to = *hi < u->offset + u->shard ? *hi : u->offset + u->shard;
    if (from >= to)
        return false;
    rt_split(to - from, w->rank->rt->nworkers, w->index, RT_LINE, &a, &b);
    *lo = from + a;
    *hi = from + b;
    return a < b;
}

/* Elements [lo, hi) of the unit, from the file; those that this rank answers for are checked. */
static int load_range(FileIo *io, int64_t lo, int64_t hi)
{
    const RtRank *r = io->r;
    int64_t from = hi, to = hi;         // the rank answers for [from, to)
    if (r->counts[io->unit] && io->in->has_crc) {
        rt_owned(r, io->unit, &from, &to);
        from = from < lo ? lo : from > hi ? hi : from;
        to = to < from ? from : to > hi ? hi : to;
    }
    RT_TRY(lo < from ? unit_runs(io, io->unit, lo, from) : RT_OK);
    io->sum = io->in->sum;
    int status = from < to ? unit_runs(io, io->unit, from, to) : RT_OK;
    io->sum = NULL;
    return status || to >= hi ? status : unit_runs(io, io->unit, to, hi);
}

/* A worker's share of every unit, or of what is here of it; padding stays zero. */
static int fill(FileIo *io, const RtWorker *w)
{
    RtRank *r = w->rank;
    for (int u = 0; u < r->head->nunits; u++) {
        int64_t lo, hi;
        rt_held(r, u, io->what == RT_WEIGHTS ? RT_PARAMS : RT_MOMENTS, &lo, &hi);
        io->unit = u;
        if (share_of(w, &r->program->units[u], &lo, &hi))
            RT_TRY(io->in ? load_range(io, lo, hi) : rt_spans(r, u, lo, hi, init_span, io));
        atomic_fetch_add(&r->sign->progress, 1);
    }
    return RT_OK;
}

/* Are the bytes that were read those that were written? */
static int check_read(RtWorker *w)
{
    Rt *rt = w->rank->rt;
    RtTensors *const all[] = { rt->load, rt->moments };
    RT_TRY(rt_team(w));
    if (w->index)
        return RT_OK;
    for (int i = 0; i < 2; i++)
        if (all[i] && all[i]->has_crc)
            rt_crc_judge(w, all[i]);    // an error is made everybody's where all meet next
    return rt->load || rt->moments ? rt_agree(w) : RT_OK;
}

int rt_init_params(RtWorker *w)
{
    Rt *rt = w->rank->rt;
    FileIo *io = rt_alloc(1, sizeof *io);
    io->r = w->rank;
    io->run = load_run;
    io->in = rt->load;
    int status = fill(io, w);
    io->in = rt->moments;
    for (int k = RT_MOMENT_1; io->in && !status && k <= (int)rt_last_values(rt); k++) {
        io->what = (RtValues)k;
        status = fill(io, w);
    }
    free(io);
    RT_TRY(status);
    return check_read(w);
}

/* ---- which tensors a file must have -------------------------------------- */

static void shape_words(const int64_t *shape, int n, char *out, size_t room)
{
    size_t at = (size_t)snprintf(out, room, "[");
    for (int i = 0; i < n && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at < room)
        snprintf(out + at, room - at, "]");
}

RtValues rt_last_values(const Rt *rt)
{
    return rt->head->optimizer == 0 ? RT_MOMENT_2 : RT_MOMENT_1;
}

/* Before a parameter's name, in files: its moments have names of their own. */
const char *rt_values_prefix(const Rt *rt, RtValues what)
{
    if (what == RT_WEIGHTS)
        return "";
    return rt->head->optimizer ? "sgd.m." : what == RT_MOMENT_1 ? "adam.m." : "adam.v.";
}

/* One line per tensor that is missing or does not fit; NULL: it is fine. */
static const char *what_is_wrong(const Rt *rt, const RtTensor *t, const char *name, int iparam,
                                 char line[800])
{
    const RtParam *p = &rt->program->params[iparam];
    int64_t want[2];
    int ndim = rt_param_shape(p, want);
    char a[96], b[96];
    shape_words(want, ndim, a, sizeof a);
    if (!t) {
        snprintf(line, 800, "tensor %s %s is missing", name, a);
        return line;
    }
    shape_words(t->shape, t->ndim, b, sizeof b);
    if (t->ndim != ndim || memcmp(t->shape, want, sizeof *want * (size_t)ndim) != 0) {
        snprintf(line, 800, "tensor %s is %s, expected %s", name, b, a);
        return line;
    }
    if (t->dtype == RT_OTHER) {
        snprintf(line, 800, "tensor %s has dtype %s; F32, F64, F16 and BF16 can be read", name,
                 t->dtype_word);
        return line;
    }
    return NULL;
}

/* Tensors that nobody wants: how many, and the first of them in words. */
static int unused(const Rt *rt, const RtTensors *ts, char list[900])
{
    int n = 0, wanted = (int)(ts->last - ts->first + 1) * rt->head->nparams;
    *list = 0;
    for (int i = 0; i < ts->n; i++) {
        bool used = false;
        for (int k = 0; k < wanted && !used; k++)
            used = ts->of[k] == &ts->tensor[i];
        size_t at = strlen(list);
        if (!used && n++ < 10)
            snprintf(list + at, 800 - at, "%s%s", n > 1 ? ", " : "", ts->tensor[i].name);
    }
    size_t at = strlen(list);
    if (n > 10)
        snprintf(list + at, 900 - at, " and %d more", n - 10);
    return n;
}

/* Finds the tensors first .. last of every parameter; others are listed, or with `strict`
 * an error. */
int rt_tensors_match(Rt *rt, RtTensors *ts, RtValues first, RtValues last, bool strict)
{
    const RtProgram *p = rt->program;
    int n = rt->head->nparams, all = (int)(last - first + 1) * n, wrong = 0;
    ts->first = first;
    ts->last = last;
    ts->of = rt_alloc((size_t)all, sizeof *ts->of);
    ts->sum = rt_alloc((size_t)all, sizeof *ts->sum);
    char text[1500] = "", line[800], name[400], list[900];
    for (int k = 0; k < all; k++) {
        snprintf(name, sizeof name, "%s%s", rt_values_prefix(rt, first + (unsigned)(k / n)),
                 rt_text(p, p->params[k % n].name));
        for (int i = 0; i < ts->n && !ts->of[k]; i++)
            if (strcmp(ts->tensor[i].name, name) == 0)
                ts->of[k] = &ts->tensor[i];
        size_t at = strlen(text);
        if (what_is_wrong(rt, ts->of[k], name, k % n, line) && wrong++ < 8)
            snprintf(text + at, sizeof text - at, "%s%s: error: %s [weights-fit]",
                     wrong > 1 ? "\n" : "", ts->file, line);
    }
    if (wrong > 8) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "\nnote: and %d more", wrong - 8);
    }
    if (wrong)
        return rt_fail(rt, RT_USER, "%s", text);
    int over = unused(rt, ts, list);
    if (over && strict)
        return rt_fail(rt, RT_USER, "%s: error: %d tensor%s no place in this model: %s "
                       "[weights-fit]", ts->file, over, over == 1 ? " has" : "s have", list);
    if (over)
        rt_note(rt, "warning: %s: %d tensor%s no use here: %s", ts->file, over,
                over == 1 ? " has" : "s have", list);
    return RT_OK;
}

int rt_load_open(Rt *rt)
{
    if (rt->load || !rt->load_path || !*rt->load_path)
        return RT_OK;
    rt->load = rt_alloc(1, sizeof *rt->load);
    RT_TRY(rt_tensors_read(rt, rt->load_path, rt->load));
    return rt_tensors_match(rt, rt->load, RT_WEIGHTS, RT_WEIGHTS, false);
}

void rt_load_close(Rt *rt)
{
    RtTensors **all[] = { &rt->load, &rt->moments };
    for (int i = 0; i < 2; i++) {
        if (*all[i])
            rt_tensors_free(*all[i]);
        free(*all[i]);
        *all[i] = NULL;
    }
}

/* ---- saving -------------------------------------------------------------- */

static int save_broken(Rt *rt, const RtOutput *o, const char *doing)
{
    return rt_fail(rt, RT_WORLD, "%s: error: could not %s the %s: %s%s", o->path, doing, o->what,
                   strerror(errno), o->hint);
}

/* Rank 0 makes it, then the other processes find it. */
static int open_output(Rt *rt, RtOutput *o)
{
    int how = rt->first == 0 ? O_RDWR | O_CREAT | O_TRUNC : O_RDWR;
    o->fd = open(o->tmp, how | O_CLOEXEC, 0666);
    if (o->fd >= 0)
        return RT_OK;
    return rt_fail(rt, RT_WORLD, "%s: error: could not write the %s there: %s%s", o->path, o->what,
                   strerror(errno), o->hint);
}

/* Opens the file. Rank 0's process makes it, with its header and its size. */
static int begin_output(Rt *rt, RtOutput *o)
{
    size_t n = (size_t)(o->last - o->first + 1) * (size_t)rt->head->nparams;
    if (!o->at) {
        o->at = rt_alloc(n, sizeof *o->at);
        o->written = rt_alloc(n, sizeof *o->written);
        o->sum = rt_alloc(n, sizeof *o->sum);
    }
    for (size_t i = 0; i < n; i++) {
        atomic_store(&o->written[i], 0);
        atomic_store(&o->sum[i], 0);
    }
    RT_TRY(open_output(rt, o));
    free(o->header);
    o->header = rt_tensors_header(rt, o, &o->header_bytes);
    if (!o->header)
        return save_broken(rt, o, "make the header of");
    bool makes = rt->first == 0;
    int bad = makes && (rt_write_at(o->fd, o->header, o->header_bytes, 0)
                        || ftruncate(o->fd, o->end));
    return bad ? save_broken(rt, o, "write") : RT_OK;
}

/* n values of the run, side by side. */
static void gather(const FileIo *io, const Kept *k, const FileRun *run, int64_t i, int64_t n,
                   void *out)
{
    const Rt *rt = io->r->rt;
    const void *p = element(io->r, k, run->at + i * run->stride);
    const float *f = p;
    const double *d = p;
    if (k->stored != RT_REAL)
        for (int64_t e = 0; e < n; e++)
            rt_put(rt, RT_REAL, out, e, rt_get(rt, k->stored, p, e * run->stride));
    else if (rt->real == sizeof *d)
        for (int64_t e = 0; e < n; e++)
            ((double *)out)[e] = d[e * run->stride];
    else
        for (int64_t e = 0; e < n; e++)
            ((float *)out)[e] = f[e * run->stride];
}

static int save_run(FileIo *io, const FileRun *run)
{
    RtRank *r = io->r;
    Rt *rt = r->rt;
    RtOutput *o = io->out;
    Kept k = kept_best(r, io->unit, io->what);
    bool as_it_lies = run->stride == 1 && k.stored == RT_REAL;
    int64_t real = (int64_t)rt->real, most = as_it_lies ? SOON / real : BUFFER;
    int tensor = (int)(io->what - o->first) * rt->head->nparams + run->param;
    int64_t to = o->at[tensor] + run->index * real;
    const RtParam *p = &rt->program->params[run->param];
    uint32_t crc = 0;
    atomic_fetch_add(&o->written[tensor], run->n);
    for (int64_t i = 0; i < run->n; i += most) {
        int64_t n = run->n - i < most ? run->n - i : most;
        const void *from = element(r, &k, run->at + i);
        if (!as_it_lies) {
            gather(io, &k, run, i, n, io->buffer);
            from = io->buffer;
        }
        if (rt_write_at(o->fd, from, (size_t)(n * real), to + i * real))
            return save_broken(rt, o, "write");
        crc = rt_crc(crc, from, (size_t)(n * real));
        io->unsent += n * real;
        if (io->unsent >= SOON) {       // the disk works while we copy; fsync reports its errors
            sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
            io->unsent = 0;
        }
    }
    add_range(&o->sum[tensor], crc, (p->rows * p->width - run->index - run->n) * real);
    return RT_OK;
}

/* A worker's share of every unit whose copy here is the one that counts. */
static int save_values(RtWorker *w, RtOutput *o, RtValues what)
{
    RtRank *r = w->rank;
    FileIo *io = rt_alloc(1, sizeof *io);
    io->r = r;
    io->run = save_run;
    io->out = o;
    io->what = what;
    int status = RT_OK;
    for (int u = 0; u < r->head->nunits && !status; u++) {
        int64_t lo, hi;
        rt_owned(r, u, &lo, &hi);
        io->unit = u;
        if (r->counts[u] && share_of(w, &r->program->units[u], &lo, &hi))
            status = unit_runs(io, u, lo, hi);
        atomic_fetch_add(&r->sign->progress, 1);
    }
    free(io);
    return status;
}

/* Every element was written once, by some rank. */
static int count_written(RtWorker *w, const RtOutput *o)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    const RtProgram *p = rt->program;
    int n = rt->head->nparams, all = (int)(o->last - o->first + 1) * n;
    for (int i = 0; i < all; i += RT_MAX_SUMS) {
        int m = all - i < RT_MAX_SUMS ? all - i : RT_MAX_SUMS;
        double has[RT_MAX_SUMS];
        for (int k = 0; k < m; k++)     // one count for all ranks of this process
            has[k] = r->id == rt->first ? (double)atomic_load(&o->written[i + k]) : 0;
        RT_TRY(rt_sum_doubles(w, &r->world, has, m));
        for (int k = 0; k < m; k++) {
            const RtParam *q = &p->params[(i + k) % n];
            double want = (double)(q->rows * q->width);
            if (want != has[k])
                return rt_fail(rt, RT_BUG, "%s: error: %.0f of %.0f elements of %s%s were written",
                               o->path, has[k], want,
                               rt_values_prefix(rt, o->first + (unsigned)((i + k) / n)),
                               rt_text(p, q->name));
        }
    }
    return RT_OK;
}

/* Rank 0 puts the checksums of what all have written into the header. */
static int write_sums(RtWorker *w, RtOutput *o)
{
    RtRank *r = w->rank;
    const RtProgram *p = r->rt->program;
    int n = r->rt->head->nparams, all = (int)(o->last - o->first + 1) * n;
    RT_TRY(rt_crc_gather(w, o->sum, all));
    if (r->id > 0)
        return RT_OK;
    int64_t *bytes = rt_alloc((size_t)all, sizeof *bytes);
    for (int i = 0; i < all; i++)
        bytes[i] = p->params[i % n].rows * p->params[i % n].width * (int64_t)r->rt->real;
    rt_crc_fill(o->header + 8, o->header_bytes - 8, o->sum, bytes, all);
    free(bytes);
    return rt_write_at(o->fd, o->header, o->header_bytes, 0) ? save_broken(r->rt, o, "write")
                                                             : RT_OK;
}

/* What this process wrote is on the disk. Stretch by stretch first, so that those who
 * wait see it move. */
static int sync_output(RtRank *r, RtOutput *o)
{
    for (int64_t at = 0; at < o->end; at += SOON) {
        sync_file_range(o->fd, at, SOON, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE
                                         | SYNC_FILE_RANGE_WAIT_AFTER);
        atomic_fetch_add(&r->sign->progress, 1);
    }
    if (fsync(o->fd))
        return save_broken(r->rt, o, "sync");
    int fd = o->fd;
    o->fd = -1;
    return close(fd) ? save_broken(r->rt, o, "close") : RT_OK;
}

/* The new name itself: else it may be lost with the power. */
int rt_sync_folder(const char *file)
{
    char *dir = rt_alloc(strlen(file) + 2, 1);
    strcpy(dir, file);
    char *slash = strrchr(dir, '/');
    strcpy(slash ? slash + 1 : dir, slash ? "" : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    int bad = fd < 0 || (fsync(fd) && errno != EINVAL);
    if (fd >= 0)
        close(fd);
    return bad ? -1 : 0;
}

static int begin_outputs(Rt *rt, RtOutput *o, int n)
{
    for (int i = 0; i < n; i++)
        RT_TRY(begin_output(rt, &o[i]));
    return RT_OK;
}

static int save_outputs(RtWorker *w, RtOutput *o, int n)
{
    for (int i = 0; i < n; i++)
        for (unsigned what = o[i].first; what <= o[i].last; what++)
            RT_TRY(save_values(w, &o[i], (RtValues)what));
    return RT_OK;
}

static int sync_outputs(RtRank *r, RtOutput *o, int n)
{
    for (int i = 0; i < n; i++)
        RT_TRY(sync_output(r, &o[i]));
    return RT_OK;
}

/* The files o[0 .. n) under their `tmp` names, complete and synced. All workers of all
 * ranks call it. An error is kept in rt, and made everybody's where all meet next. */
int rt_write_outputs(RtWorker *w, RtOutput *o, int n)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    bool lead = w->index == 0, opens = lead && r->id == rt->first;
    if (opens && r->id == 0)
        begin_outputs(rt, o, n);
    if (lead)
        RT_TRY(rt_agree(w));
    if (opens && r->id > 0)
        begin_outputs(rt, o, n);
    rt_team(w);
    if (!atomic_load(&rt->status))
        save_outputs(w, o, n);
    rt_team(w);
    if (!lead)
        return atomic_load(&rt->status);
    RT_TRY(rt_agree(w));
    for (int i = 0; i < n; i++)
        RT_TRY(count_written(w, &o[i]));
    for (int i = 0; i < n; i++)
        RT_TRY(write_sums(w, &o[i]));
    if (opens)
        sync_outputs(r, o, n);
    return rt_agree(w);
}

/* Closes the file, and removes it where it was not finished. */
void rt_output_forget(Rt *rt, RtOutput *o)
{
    if (o->fd >= 0) {
        close(o->fd);
        if (rt->first == 0 || atomic_load(&rt->status))
            unlink(o->tmp);
    }
    free(o->path);
    free(o->tmp);
    free(o->metadata);
    free(o->at);
    free(o->written);
    free(o->sum);
    free(o->header);
    *o = (RtOutput){ .fd = -1 };
}

/* ---- --save -------------------------------------------------------------- */

void rt_save_forget(Rt *rt) { rt_output_forget(rt, &rt->save); }

static void name_save(Rt *rt)
{
    size_t room = strlen(rt->options->save) + 32;
    RtOutput *o = &rt->save;
    *o = (RtOutput){ .fd = -1, .what = "weights", .hint = "",
                      .path = rt_alloc(room, 1), .tmp = rt_alloc(room, 1) };
    strcpy(o->path, rt->options->save);
    snprintf(o->tmp, room, "%s.tmp-%d", rt->options->save, rt->save_id);
}

/* Before the first step: can a file be made there at all, and do all processes see it? It
 * is there until rt_save_forget. */
int rt_save_probe(Rt *rt)
{
    struct stat st;
    if (!rt->options->save)
        return RT_OK;
    if (stat(rt->options->save, &st) == 0 && !S_ISREG(st.st_mode))
        return rt_fail(rt, RT_WORLD, "%s: error: could not write the weights there: it is no "
                       "regular file", rt->options->save);
    name_save(rt);
    if (rt->first == 0)
        open_output(rt, &rt->save);     // its status is kept
    RT_TRY(rt_processes_agree(rt, NULL));
    if (rt->first > 0)
        open_output(rt, &rt->save);
    return atomic_load(&rt->status);
}

static int end_save(Rt *rt)
{
    const RtOutput *o = &rt->save;
    if (rename(o->tmp, o->path)) {
        int status = save_broken(rt, o, "rename");
        unlink(o->tmp);
        return status;
    }
    return rt_sync_folder(o->path) ? save_broken(rt, o, "sync the folder of") : RT_OK;
}

int rt_save(RtWorker *w)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    bool lead = w->index == 0;
    if (lead && r->id == rt->first)
        name_save(rt);
    RT_TRY(rt_write_outputs(w, &rt->save, 1));
    if (lead && r->id == 0)
        end_save(rt);
    return lead ? rt_agree(w) : RT_OK;
}

/* ---- look-ups ------------------------------------------------------------ */

typedef struct { const RtRank *r; int param; Kept kept; double *dst; } Reader;

static int read_span(void *ctx, const RtSpan *s)
{
    Reader *to = ctx;
    if (s->param != to->param)
        return RT_OK;
    int64_t width = to->r->rt->program->params[s->param].width;
    const void *from = element(to->r, &to->kept, s->at);
    for (int64_t i = 0; i < s->n; i++)
        to->dst[s->row * width + s->col + i] = rt_get(to->r->rt, to->kept.stored, from, i);
    return RT_OK;
}

void rt_read_param(Rt *rt, int what, int iparam, double *dst)
{
    for (int i = 0; i < rt->nranks; i++) {
        RtRank *r = &rt->rank[i];
        for (int u = 0; u < r->head->nunits; u++) {
            Kept grads = { r->block + r->head->grads_offset, rt_shift(r, u, RT_GRADS), RT_REAL };
            Reader to = { r, iparam, what ? grads : kept_best(r, u, RT_WEIGHTS), dst };
            int64_t lo, hi;
            rt_owned(r, u, &lo, &hi);
            if (r->counts[u] && lo < hi)
                rt_spans(r, u, lo, hi, read_span, &to);
        }
    }
}

int64_t rt_block_bytes(Rt *rt)
{
    int64_t all = 0;
    for (int s = 0; s < rt->head->nstages; s++)
        all += rt->program[s].head->block_bytes * (rt->nranks / rt->head->nstages);
    return all;
}
