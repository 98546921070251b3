/*
 * checkpoint.c - parameters: first values, whole-model files, and look-ups.
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
 * and renames. Only one copy of each element is written (RtRank.counts). Ranks that are
 * processes open the file that rank 0 made, PID being rank 0's.
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

/* What is saved and shown. */
static Kept kept_best(const RtRank *r, int unit)
{
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
    Kept params = kept_params(r, io->unit);
    put_kept(r, &params, at, stride, n, v);
    if (r->head->master_offset < 0)
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

static int load_broken(Rt *rt, const RtTensor *t)
{
    return rt_fail(rt, RT_USER, "%s: error: could not read tensor %s: %s [weights-file]",
                   rt->load->file, t->name, errno ? strerror(errno) : "the file is cut off");
}

static int load_run(FileIo *io, const FileRun *run)
{
    RtRank *r = io->r;
    Rt *rt = r->rt;
    const RtTensor *t = rt->load->of[run->param];
    int64_t size = (int64_t)rt_dtype_bytes(t->dtype);
    Kept to = kept_params(r, io->unit);
    bool same = t->dtype == (rt->real == sizeof(float) ? RT_F32 : RT_F64);
    if (same && run->stride == 1 && to.stored == RT_REAL && r->head->master_offset < 0)
        return rt_read_at(rt->load->fd, element(r, &to, run->at), (size_t)(run->n * size),
                          t->begin + run->index * size)
               ? load_broken(rt, t) : RT_OK;
    for (int64_t i = 0; i < run->n; i += BUFFER) {
        int64_t n = run->n - i < BUFFER ? run->n - i : BUFFER;
        if (rt_read_at(rt->load->fd, io->buffer, (size_t)(n * size),
                       t->begin + (run->index + i) * size))
            return load_broken(rt, t);
        rt_dtype_decode(t->dtype, io->buffer, n, io->value);
        put(io, run->at + i * run->stride, run->stride, n, io->value);
    }
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

/* A worker's share of every unit, or of what is here of it; padding stays zero. */
int rt_init_params(RtWorker *w)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    FileIo *io = rt_alloc(1, sizeof *io);
    io->r = r;
    io->run = load_run;
    int status = RT_OK;
    for (int u = 0; u < r->head->nunits && !status; u++) {
        int64_t lo, hi;
        rt_held(r, u, RT_PARAMS, &lo, &hi);
        io->unit = u;
        if (share_of(w, &r->program->units[u], &lo, &hi))
            status = rt->load ? unit_runs(io, u, lo, hi) : rt_spans(r, u, lo, hi, init_span, io);
        atomic_fetch_add(&r->sign->progress, 1);
    }
    free(io);
    return status;
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

/* One line per tensor that is missing or does not fit; NULL: it is fine. */
static const char *what_is_wrong(const Rt *rt, const RtTensors *ts, int iparam, char line[512])
{
    const RtParam *p = &rt->program->params[iparam];
    const char *name = rt_text(rt->program, p->name);
    const RtTensor *t = ts->of[iparam];
    int64_t want[2];
    int ndim = rt_param_shape(p, want);
    char a[96], b[96];
    shape_words(want, ndim, a, sizeof a);
    if (!t) {
        snprintf(line, 512, "tensor %s %s is missing", name, a);
        return line;
    }
    shape_words(t->shape, t->ndim, b, sizeof b);
    if (t->ndim != ndim || memcmp(t->shape, want, sizeof *want * (size_t)ndim) != 0) {
        snprintf(line, 512, "tensor %s is %s, expected %s", name, b, a);
        return line;
    }
    if (t->dtype == RT_OTHER) {
        snprintf(line, 512, "tensor %s has dtype %s; F32, F64, F16 and BF16 can be read", name,
                 t->dtype_word);
        return line;
    }
    return NULL;
}

static void warn_extra(const Rt *rt, const RtTensors *ts)
{
    char list[800] = "";
    int n = 0;
    for (int i = 0; i < ts->n; i++) {
        bool used = false;
        for (int k = 0; k < rt->head->nparams; k++)
            used = used || ts->of[k] == &ts->tensor[i];
        size_t at = strlen(list);
        if (!used && n++ < 10)
            snprintf(list + at, sizeof list - at, "%s%s", n > 1 ? ", " : "", ts->tensor[i].name);
    }
    if (n > 10)
        rt_note(rt, "warning: %s: %d tensors have no use here: %s and %d more", ts->file, n, list,
                n - 10);
    else if (n > 0)
        rt_note(rt, "warning: %s: %d tensor%s no use here: %s", ts->file, n,
                n == 1 ? " has" : "s have", list);
}

int rt_load_open(Rt *rt)
{
    const RtProgram *p = rt->program;
    if (!rt->load_path || !*rt->load_path)
        return RT_OK;
    rt->load = rt_alloc(1, sizeof *rt->load);
    RtTensors *ts = rt->load;
    RT_TRY(rt_tensors_read(rt, rt->load_path, ts));
    ts->of = rt_alloc((size_t)rt->head->nparams, sizeof *ts->of);
    char all[1500] = "", line[512];
    int wrong = 0;
    for (int i = 0; i < rt->head->nparams; i++) {
        for (int k = 0; k < ts->n && !ts->of[i]; k++)
            if (strcmp(ts->tensor[k].name, rt_text(p, p->params[i].name)) == 0)
                ts->of[i] = &ts->tensor[k];
        size_t at = strlen(all);
        if (what_is_wrong(rt, ts, i, line) && wrong++ < 8)
            snprintf(all + at, sizeof all - at, "%s%s: error: %s [weights-fit]",
                     wrong > 1 ? "\n" : "", ts->file, line);
    }
    if (wrong > 8) {
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, "\nnote: and %d more", wrong - 8);
    }
    if (wrong)
        return rt_fail(rt, RT_USER, "%s", all);
    warn_extra(rt, ts);
    return RT_OK;
}

void rt_load_close(Rt *rt)
{
    if (rt->load)
        rt_tensors_free(rt->load);
    free(rt->load);
    rt->load = NULL;
}

/* ---- saving -------------------------------------------------------------- */

static int save_broken(Rt *rt, const char *doing)
{
    return rt_fail(rt, RT_WORLD, "%s: error: could not %s: %s", rt->options->save, doing,
                   strerror(errno));
}

/* The process of rank 0 makes it, then the others find it. */
static int open_tmp(Rt *rt)
{
    size_t room = strlen(rt->options->save) + 32;
    rt->save_tmp = rt_alloc(room, 1);
    snprintf(rt->save_tmp, room, "%s.tmp-%d", rt->options->save, rt->save_id);
    int how = rt->first == 0 ? O_RDWR | O_CREAT | O_TRUNC : O_RDWR;
    rt->save_fd = open(rt->save_tmp, how | O_CLOEXEC, 0666);
    if (rt->save_fd >= 0)
        return RT_OK;
    free(rt->save_tmp);
    rt->save_tmp = NULL;
    return save_broken(rt, "write the weights there");
}

/* Removes what is left of a file that was not finished. */
void rt_save_forget(Rt *rt)
{
    if (!rt->save_tmp)
        return;
    if (rt->save_fd >= 0)
        close(rt->save_fd);
    rt->save_fd = -1;
    if (rt->first == 0 || atomic_load(&rt->status))
        unlink(rt->save_tmp);
    free(rt->save_tmp);
    rt->save_tmp = NULL;
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
    if (rt->first == 0)
        open_tmp(rt);                   // its status is kept
    if (rt->mpi)
        RT_TRY(rt_mpi_agree(rt, NULL));
    if (rt->first > 0)
        open_tmp(rt);
    return atomic_load(&rt->status);
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
    Kept k = kept_best(r, io->unit);
    bool as_it_lies = run->stride == 1 && k.stored == RT_REAL;
    int64_t real = (int64_t)rt->real, most = as_it_lies ? SOON / real : BUFFER;
    int64_t to = rt->tensor_at[run->param] + run->index * real;
    atomic_fetch_add(&rt->written[run->param], run->n);
    for (int64_t i = 0; i < run->n; i += most) {
        int64_t n = run->n - i < most ? run->n - i : most;
        const void *from = element(r, &k, run->at + i);
        if (!as_it_lies) {
            gather(io, &k, run, i, n, io->buffer);
            from = io->buffer;
        }
        if (rt_write_at(rt->save_fd, from, (size_t)(n * real), to + i * real))
            return save_broken(rt, "write the weights");
        io->unsent += n * real;
        if (io->unsent >= SOON) {       // the disk works while we copy; fsync reports its errors
            sync_file_range(rt->save_fd, 0, 0, SYNC_FILE_RANGE_WRITE);
            io->unsent = 0;
        }
    }
    return RT_OK;
}

/* Opens the file; rank 0's process has made it. */
static int begin_save(Rt *rt)
{
    int n = rt->head->nparams;
    size_t bytes;
    rt->tensor_at = rt_alloc((size_t)n + 1, sizeof *rt->tensor_at);
    rt->written = rt_alloc((size_t)n, sizeof *rt->written);
    RT_TRY(open_tmp(rt));
    char *header = rt_tensors_header(rt, &bytes, rt->tensor_at);
    if (!header)
        return save_broken(rt, "make the header");
    bool makes = rt->first == 0;
    int bad = makes && (rt_write_at(rt->save_fd, header, bytes, 0)
                        || ftruncate(rt->save_fd, rt->tensor_at[n]));
    free(header);
    return bad ? save_broken(rt, "write the weights") : RT_OK;
}

/* The folder too: else the new name may be lost with the power. */
static int sync_folder(Rt *rt)
{
    char *dir = rt_alloc(strlen(rt->options->save) + 2, 1);
    strcpy(dir, rt->options->save);
    char *slash = strrchr(dir, '/');
    strcpy(slash ? slash + 1 : dir, slash ? "" : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    int bad = fd < 0 || (fsync(fd) && errno != EINVAL);
    if (fd >= 0)
        close(fd);
    return bad ? save_broken(rt, "sync the folder") : RT_OK;
}

/* What the other processes wrote, too. */
static int add_written(RtWorker *w)
{
    Rt *rt = w->rank->rt;
    int nparams = rt->head->nparams;
    double v[RT_MAX_SUMS];
    for (int i = 0; i < nparams; i += RT_MAX_SUMS) {
        int n = nparams - i < RT_MAX_SUMS ? nparams - i : RT_MAX_SUMS;
        for (int k = 0; k < n; k++)
            v[k] = (double)atomic_load(&rt->written[i + k]);
        RT_TRY(rt_sum_doubles(w, &w->rank->world, v, n));
        for (int k = 0; k < n; k++)
            atomic_store(&rt->written[i + k], (long long)v[k]);
    }
    return RT_OK;
}

/* Rank 0, when all have written. */
static int end_save(Rt *rt)
{
    const RtProgram *p = rt->program;
    for (int i = 0; i < rt->head->nparams; i++) {
        long long want = p->params[i].rows * p->params[i].width;
        long long has = atomic_load(&rt->written[i]);
        if (want != has)
            return rt_fail(rt, RT_BUG, "%s: error: %lld of %lld elements of %s were written",
                           rt->options->save, has, want, rt_text(p, p->params[i].name));
    }
    if (fsync(rt->save_fd))
        return save_broken(rt, "sync the weights");
    int fd = rt->save_fd;
    rt->save_fd = -1;
    if (close(fd))
        return save_broken(rt, "close the weights");
    if (rename(rt->save_tmp, rt->options->save))
        return save_broken(rt, "rename the weights");
    free(rt->save_tmp);
    rt->save_tmp = NULL;
    return sync_folder(rt);
}

/* A worker's share of every unit whose copy here is the one that counts. */
static int save_params(RtWorker *w)
{
    RtRank *r = w->rank;
    FileIo *io = rt_alloc(1, sizeof *io);
    io->r = r;
    io->run = save_run;
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

/* An error is kept in rt, and made everybody's where all meet next. */
int rt_save(RtWorker *w)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    bool lead = w->index == 0, first = lead && r->id == 0, other = lead && !first && rt->mpi;
    if (first)
        begin_save(rt);
    if (lead)
        RT_TRY(rt_agree(w));
    if (other)
        begin_save(rt);
    rt_team(w);
    if (!atomic_load(&rt->status))
        save_params(w);
    rt_team(w);
    if (other && !atomic_load(&rt->status) && fsync(rt->save_fd))
        save_broken(rt, "sync the weights");
    if (lead)
        RT_TRY(rt_agree(w));
    if (lead && rt->mpi)
        RT_TRY(add_written(w));
    if (first)
        end_save(rt);
    if (other)
        rt_save_forget(rt);
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
            Reader to = { r, iparam, what ? grads : kept_best(r, u), dst };
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
