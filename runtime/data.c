/*
 * data.c - token files: found, mapped, checked, and handed out by sequence.
 *
 * Files matching train.data, in name order, are one row of N tokens. Sequence r
 * of step s is number (s*batch + r) mod floor((N-1)/L) of it, L tokens long; its
 * targets are the next tokens. Files stay mapped; a rank copies only the rows it
 * holds into its tables, microbatch by microbatch, and checks each token there.
 *
 * Validation has data of its own, always in file order: batch b is the b-th one, however
 * often it is taken.
 *
 * order = shuffle: in each epoch the numbers are sorted by Philox. The sorted
 * table is shared by all ranks; two epochs are kept, since ranks may stand one
 * step apart. Every table has its size at start.
 */
#include "rt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LLMC_MAGIC = 20240520, LLMC_VERSION = 1, LLMC_HEADER = 1024 };

typedef enum { AUTO, BYTES, U16, U32, LLMC } Format;
static const char *const format_word[] = { "auto", "bytes", "u16", "u32", "llmc" };

typedef struct {
    char *name;
    const unsigned char *map;
    size_t mapped;
    const unsigned char *tokens;        // NULL: fixed tokens in memory
    int width;                          // bytes of a token
    int64_t first, n;                   // its tokens in the joined row
} File;

typedef struct { uint64_t value; int64_t number; } Ticket;

struct RtData {
    File *file; int nfiles;
    const int32_t *fixed;
    int64_t n, nseq, limit;
    bool shuffle, masked;
    pthread_mutex_t lock;
    struct { int64_t epoch; int64_t *number; } order[2];
    Ticket *ticket, *spare;
};

/* ---- opening ------------------------------------------------------------- */

static uint32_t word_at(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), e = strlen(end);
    return n >= e && strcmp(s + n - e, end) == 0;
}

static int open_llmc(Rt *rt, File *f, const char *why)
{
    if (f->mapped < LLMC_HEADER || word_at(f->map) != LLMC_MAGIC)
        return rt_fail(rt, RT_USER, "%s: error: no llmc header (magic %d) where %s [data-format]",
                       f->name, LLMC_MAGIC, why);
    if (word_at(f->map + 4) != LLMC_VERSION)
        return rt_fail(rt, RT_USER, "%s: error: llmc version %u, expected %d [data-format]",
                       f->name, word_at(f->map + 4), LLMC_VERSION);
    int64_t says = word_at(f->map + 8), has = (int64_t)(f->mapped - LLMC_HEADER) / 2;
    if (says > has)
        return rt_fail(rt, RT_USER, "%s: error: the header says %lld tokens, the file holds %lld "
                       "[data-format]", f->name, (long long)says, (long long)has);
    f->tokens = f->map + LLMC_HEADER;
    f->width = 2;
    f->n = says;
    return RT_OK;
}

static int find_tokens(Rt *rt, File *f, Format format)
{
    if (format == AUTO) {
        if (f->mapped >= LLMC_HEADER && word_at(f->map) == LLMC_MAGIC)
            return open_llmc(rt, f, "format = auto finds one");
        if (ends_in(f->name, ".bin"))
            return rt_fail(rt, RT_USER, "%s: error: a .bin file without an llmc header; say "
                           "format = u16, u32 or bytes [data-format]", f->name);
        format = BYTES;
    }
    if (format == LLMC)
        return open_llmc(rt, f, "format = llmc needs one");
    f->tokens = f->map;
    f->width = format == U16 ? 2 : format == U32 ? 4 : 1;
    if (f->mapped % (size_t)f->width)
        return rt_fail(rt, RT_USER, "%s: error: %lld bytes are no whole number of %s tokens "
                       "[data-format]", f->name, (long long)f->mapped, format_word[format]);
    f->n = (int64_t)(f->mapped / (size_t)f->width);
    return RT_OK;
}

static int map_file(Rt *rt, File *f, Format format)
{
    int fd = open(f->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK), status = RT_OK;
    if (fd < 0)
        return rt_fail(rt, RT_USER, "%s: error: could not read the data: %s [data-file]",
                       f->name, strerror(errno));
    struct stat st;
    if (fstat(fd, &st))
        status = rt_fail(rt, RT_USER, "%s: error: could not read the data: %s [data-file]",
                         f->name, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = rt_fail(rt, RT_USER, "%s: error: the data is no regular file [data-file]",
                         f->name);
    else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = rt_fail(rt, RT_USER, "%s: error: could not map the data: %s [data-file]",
                             f->name, strerror(errno));
        else {
            f->map = p;
            f->mapped = (size_t)st.st_size;
        }
    }
    close(fd);
    return status ? status : find_tokens(rt, f, format);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *copy_text(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(rt_alloc(n, 1), s, n);
}

/* A file of exactly that name, else the files that match, sorted. */
static int find_files(Rt *rt, RtData *d, const char *pattern)
{
    if (access(pattern, F_OK) == 0 || !strpbrk(pattern, "*?[")) {
        d->file = rt_alloc(1, sizeof *d->file);
        d->file[0].name = copy_text(pattern);
        d->nfiles = 1;
        return RT_OK;
    }
    glob_t g;
    int rc = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &g);
    if (rc == GLOB_NOMATCH || (rc == 0 && g.gl_pathc == 0))
        return rt_fail(rt, RT_USER, "%s: error: no file matches the data's pattern [data-file]",
                       pattern);
    if (rc)
        return rt_fail(rt, RT_USER, "%s: error: could not list the data's files: %s [data-file]",
                       pattern, errno ? strerror(errno) : "out of memory");
    qsort(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, by_name);
    d->file = rt_alloc(g.gl_pathc, sizeof *d->file);
    d->nfiles = (int)g.gl_pathc;
    for (int i = 0; i < d->nfiles; i++)
        d->file[i].name = copy_text(g.gl_pathv[i]);
    globfree(&g);
    return RT_OK;
}

static int parse_format(Rt *rt, const char *word, Format *out)
{
    *out = AUTO;
    for (int i = 0; i < 5 && *word; i++)
        if (strcmp(word, format_word[i]) == 0) {
            *out = (Format)i;
            return RT_OK;
        }
    return *word ? rt_fail(rt, RT_USAGE, "%s: error: unknown format `%s`; there are auto, bytes, "
                           "u16, u32 and llmc [data-format]", rt->exe, word) : RT_OK;
}

static int open_files(Rt *rt, RtData *d, const char *path)
{
    Format format;
    RT_TRY(parse_format(rt, rt->format ? rt->format : "", &format));
    if (!path || !*path)
        return rt_fail(rt, RT_USER, "%s: error: there is no data; give train.data a file "
                       "[data-file]", rt->exe);
    RT_TRY(find_files(rt, d, path));
    for (int i = 0; i < d->nfiles; i++) {
        RT_TRY(map_file(rt, &d->file[i], format));
        d->file[i].first = d->n;
        d->n += d->file[i].n;
    }
    return RT_OK;
}

/* Opens the tokens of `path`, or those in memory, as *out. */
static int open_data(Rt *rt, const char *path, RtData **out)
{
    const RtHeader *h = rt->head;
    RtData *d = *out = rt_alloc(1, sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
    d->masked = h->objective == 1;
    d->limit = h->token_limit > 0 ? h->token_limit : h->vocab;
    if (h->vocab > 0 && h->vocab < d->limit)
        d->limit = h->vocab;
    if (rt->options->fixed_tokens) {
        d->fixed = rt->options->fixed_tokens;
        d->n = rt->options->fixed_ntokens;
    } else {
        RT_TRY(open_files(rt, d, path));
    }
    if (d->n < h->sequence + 1)
        return rt_fail(rt, RT_USER, "%s: error: %lld tokens, a sequence of %lld and its targets "
                       "need %lld [data-short]", d->nfiles ? path : rt->exe,
                       (long long)d->n, (long long)h->sequence, (long long)h->sequence + 1);
    d->nseq = (d->n - 1) / h->sequence;
    return RT_OK;
}

int rt_data_open(Rt *rt)
{
    RT_TRY(open_data(rt, rt->data_path, &rt->data));
    RtData *d = rt->data;
    const char *order = rt->order ? rt->order : "";
    d->shuffle = strcmp(order, "shuffle") == 0;
    if (*order && !d->shuffle && strcmp(order, "sequential") != 0)
        return rt_fail(rt, RT_USAGE, "%s: error: unknown order `%s`; there are sequential and "
                       "shuffle", rt->exe, order);
    if (d->shuffle) {
        d->ticket = rt_alloc((size_t)d->nseq, sizeof *d->ticket);
        d->spare = rt_alloc((size_t)d->nseq, sizeof *d->spare);
        for (int i = 0; i < 2; i++) {
            d->order[i].epoch = -1;
            d->order[i].number = rt_alloc((size_t)d->nseq, sizeof *d->order[i].number);
        }
    }
    return RT_OK;
}

/* Where fewer sequences are there than are taken, some are taken again. */
int rt_validation_open(Rt *rt)
{
    int64_t want = rt->head->train.validate_batches * rt->head->batch;
    RT_TRY(open_data(rt, rt->validate_path, &rt->validation));
    int64_t has = rt->validation->nseq;
    if (has < want)
        rt_note(rt, "warning: %s: %lld sequences, validation takes %lld: some count more than "
                "once", rt->validate_path, (long long)has, (long long)want);
    return RT_OK;
}

static void close_data(RtData *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->nfiles; i++) {
        if (d->file[i].map)
            munmap((void *)(uintptr_t)d->file[i].map, d->file[i].mapped);
        free(d->file[i].name);
    }
    free(d->file);
    free(d->ticket);
    free(d->spare);
    free(d->order[0].number);
    free(d->order[1].number);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void rt_data_close(Rt *rt)
{
    close_data(rt->data);
    close_data(rt->validation);
    rt->data = rt->validation = NULL;
}

/* Refuses a target that is one of the data files: opening it would empty it. */
int rt_data_spare(Rt *rt, const char *option, const char *path)
{
    struct stat a, b;
    RtData *const all[] = { rt->data, rt->validation };
    if (path == NULL || stat(path, &a) != 0)
        return RT_OK;
    for (int i = 0; i < 2; i++)
        for (int k = 0; all[i] && k < all[i]->nfiles; k++) {
            const char *name = all[i]->file[k].name;
            if (name && stat(name, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
                return rt_fail(rt, RT_USAGE, "%s: error: %s %s would overwrite the %s data",
                               rt->exe, option, path, i ? "validation" : "training");
        }
    return RT_OK;
}

int64_t rt_data_tokens(const RtData *d) { return d->n; }

/* ---- tokens -------------------------------------------------------------- */

/* The file that holds token i; files without tokens are passed over. */
static const File *file_of(const RtData *d, int64_t i)
{
    int lo = 0, hi = d->nfiles - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (i < d->file[mid].first + d->file[mid].n)
            hi = mid;
        else
            lo = mid + 1;
    }
    return &d->file[lo];
}

static int64_t file_token(const File *f, int64_t k)
{
    const unsigned char *p = f->tokens + k * f->width;
    return f->width == 1 ? p[0] : f->width == 2 ? p[0] | p[1] << 8 : (int64_t)word_at(p);
}

int64_t rt_data_token(const RtData *d, int64_t i)
{
    if (d->fixed)
        return d->fixed[i];
    const File *f = file_of(d, i);
    return file_token(f, i - f->first);
}

static int out_of_range(Rt *rt, const RtData *d, int64_t i, int64_t token)
{
    const File *f = d->fixed ? NULL : file_of(d, i);
    int64_t at = f ? i - f->first : i;
    int64_t byte = f ? at * f->width + (f->tokens - f->map) : at * 4;
    return rt_fail(rt, RT_USER, "%s: error: token %lld at byte %lld (token %lld of the file) is "
                   "not below %lld [token-range]", f ? f->name : rt->exe, (long long)token,
                   (long long)byte, (long long)at, (long long)d->limit);
}

/* Tokens [i, i+n) of the row; `ignore` may exceed the range where `targets`. */
static int read_tokens(Rt *rt, const RtData *d, int64_t i, int64_t n, bool targets, int32_t *out)
{
    int64_t ignore = rt->head->ignore;
    for (int64_t k = 0; k < n;) {
        const File *f = d->fixed ? NULL : file_of(d, i + k);
        int64_t end = f && f->first + f->n - i < n ? f->first + f->n - i : n;
        for (; k < end; k++) {
            int64_t t = f ? file_token(f, i + k - f->first) : d->fixed[i + k];
            if ((t < 0 || t >= d->limit) && !(targets && t == ignore))
                return out_of_range(rt, d, i + k, t);
            out[k] = (int32_t)t;
        }
    }
    return RT_OK;
}

/* ---- order --------------------------------------------------------------- */

/* Sorts by value, equal values by number (stable, 8 bits at a time). */
static void sort_tickets(Ticket *a, Ticket *b, int64_t n)
{
    for (int shift = 0; shift < 64; shift += 8) {
        int64_t start[257] = { 0 };
        for (int64_t i = 0; i < n; i++)
            start[(a[i].value >> shift & 255) + 1]++;
        for (int i = 0; i < 256; i++)
            start[i + 1] += start[i];
        for (int64_t i = 0; i < n; i++)
            b[start[a[i].value >> shift & 255]++] = a[i];
        Ticket *t = a;
        a = b;
        b = t;
    }
}

/* The order of an epoch; the caller holds the lock. */
static const int64_t *epoch_order(Rt *rt, int64_t epoch)
{
    RtData *d = rt->data;
    int k = (int)(epoch % 2);
    if (d->order[k].epoch != epoch) {
        for (int64_t i = 0; i < d->nseq; i++)
            d->ticket[i] = (Ticket){ rt_shuffle_value(rt->head->train.seed, (uint64_t)epoch,
                                                      (uint64_t)i), i };
        sort_tickets(d->ticket, d->spare, d->nseq);
        for (int64_t i = 0; i < d->nseq; i++)
            d->order[k].number[i] = d->ticket[i].number;
        d->order[k].epoch = epoch;
    }
    return d->order[k].number;
}

/* Sequences taken before the step. A resumed run goes on where the first one stood. */
int64_t rt_data_position(const Rt *rt, int64_t step)
{
    return rt->first_sequence + (step - rt->first_step) * rt->head->batch;
}

/* Of the step that runs: training or validation. */
static RtData *data_of(const RtRank *r)
{
    return r->now.evaluate ? r->rt->validation : r->rt->data;
}

/* The replica's sequences of the step, in all its microbatches. */
int rt_data_step(RtRank *r, int64_t step)
{
    Rt *rt = r->rt;
    RtData *d = data_of(r);
    const RtHeader *h = rt->head;
    int64_t n = h->T / h->sequence * h->microbatches;
    int64_t from = r->now.evaluate ? step * h->batch : rt_data_position(rt, step);
    from += r->d * n;
    if (!d)
        return RT_OK;
    if (d->shuffle)
        pthread_mutex_lock(&d->lock);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (from + i) % d->nseq;
        r->sequence[i] = d->shuffle ? epoch_order(rt, (from + i) / d->nseq)[at] : at;
    }
    if (d->shuffle)
        pthread_mutex_unlock(&d->lock);
    for (int m = 0; m < r->head->nrowmaps; m++)
        r->rows[m].microbatch = -1;
    return RT_OK;
}

/* masked: chosen inputs become the mask token, the others' targets do not count. */
static void mask_rows(RtRank *r, RtRows *rows)
{
    const RtHeader *h = r->rt->head;
    for (int64_t i = 0; i < rows->count; i++) {
        bool chosen = rt_masked(h->train.seed, (uint32_t)r->now.step, (uint64_t)rows->token[i],
                                h->mask_p);
        if (rows->tokens && chosen)
            rows->tokens[i] = h->mask_token;
        if (rows->targets && !chosen)
            rows->targets[i] = h->ignore;
    }
}

/* One row order's global tokens, and its tokens and targets where kernels ask for them. */
static int fill_rows(RtRank *r, RtRows *rows, int64_t microbatch)
{
    Rt *rt = r->rt;
    const RtHeader *h = rt->head;
    int64_t nseq = h->T / h->sequence, first = microbatch * nseq;
    int64_t base = r->d * h->microbatches * nseq + first;
    for (int64_t i = 0; i < rows->count; i++)
        rows->token[i] = (base + rows->seq[i]) * h->sequence + rows->pos[i];
    rows->microbatch = (int32_t)microbatch;
    const RtData *d = data_of(r);
    if (!d || (!rows->tokens && !rows->targets))
        return RT_OK;
    for (int64_t i = 0; i < rows->nruns; i++) {
        const RtRun *run = &rows->runs[i];
        int64_t at = r->sequence[first + run->seq] * h->sequence + run->pos;
        if (rows->tokens)
            RT_TRY(read_tokens(rt, d, at, run->n, false, rows->tokens + run->row));
        if (rows->targets)
            RT_TRY(read_tokens(rt, d, at + (d->masked ? 0 : 1), run->n, true,
                               rows->targets + run->row));
    }
    if (d->masked)
        mask_rows(r, rows);
    return RT_OK;
}

/* The row orders that steps of this pass use: those that end with its slice. */
int rt_data_fill(RtRank *r, const RtPass *pass)
{
    for (int m = 0; m < r->head->nrowmaps; m++) {
        RtRows *rows = &r->rows[m];
        if (rows->last == pass->slice && rows->microbatch != pass->microbatch)
            RT_TRY(fill_rows(r, rows, pass->microbatch));
    }
    return RT_OK;
}

/* Targets of the replica that count, in all microbatches of the step. */
int64_t rt_data_count(RtRank *r)
{
    const RtData *d = data_of(r);
    const RtHeader *h = r->rt->head;
    int64_t nseq = h->T / h->sequence * h->microbatches, n = 0;
    if (!d || (!d->masked && h->ignore < 0))
        return nseq * h->sequence;
    for (int64_t s = 0; s < nseq; s++)
        for (int64_t pos = 0; pos < h->sequence; pos++) {
            int64_t at = r->sequence[s] * h->sequence + pos;
            if (!d->masked) {
                n += rt_data_token(d, at + 1) != h->ignore;
                continue;
            }
            uint64_t token = (uint64_t)((r->d * nseq + s) * h->sequence + pos);
            n += rt_masked(h->train.seed, (uint32_t)r->now.step, token, h->mask_p)
                 && rt_data_token(d, at) != h->ignore;
        }
    return n;
}
