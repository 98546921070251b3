/*
 * tensors.c - the header of safetensors files, read and written.
 *
 *     u64 n | n bytes of JSON, padded with blanks | data
 *     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * Offsets count from the end of the JSON. Only this shape of JSON is accepted;
 * anything else in a header is an error at its byte. Data is never read here.
 */
#include "rt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER = 100 << 20 };

/* ---- bytes --------------------------------------------------------------- */

int rt_read_at(int fd, void *p, size_t n, int64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)p + done, n - done, at + (int64_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got < 0 ? errno : 0;
            return -1;
        }
        done += (size_t)got;
    }
    return 0;
}

int rt_write_at(int fd, const void *p, size_t n, int64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(fd, (const char *)p + done, n - done, at + (int64_t)done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            errno = put < 0 ? errno : ENOSPC;
            return -1;
        }
        done += (size_t)put;
    }
    return 0;
}

/* ---- element types ------------------------------------------------------- */

static const struct { const char *word; size_t bytes; } dtypes[] = {
    [RT_F32] = { "F32", 4 }, [RT_F64] = { "F64", 8 }, [RT_F16] = { "F16", 2 },
    [RT_BF16] = { "BF16", 2 }, [RT_OTHER] = { "", 0 },
};

size_t rt_dtype_bytes(RtDtype dtype) { return dtypes[dtype].bytes; }

static double half_value(uint16_t h)
{
    int e = h >> 10 & 31;
    double m = h & 1023, v;
    if (e == 31)
        v = m > 0 ? __builtin_nan("") : __builtin_inf();
    else
        v = __builtin_ldexp(e ? m + 1024 : m, (e ? e : 1) - 25);
    return h >> 15 ? -v : v;
}

/* Values as they lie in a file (little endian, as this machine). */
void rt_dtype_decode(RtDtype dtype, const void *src, int64_t n, double *dst)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        uint32_t w;
        float f;
        const char *p = (const char *)src + (size_t)i * rt_dtype_bytes(dtype);
        if (dtype == RT_F64) {
            memcpy(&dst[i], p, 8);
        } else if (dtype == RT_F32) {
            memcpy(&f, p, 4);
            dst[i] = (double)f;
        } else {
            memcpy(&h, p, 2);
            w = (uint32_t)h << 16;
            memcpy(&f, &w, 4);
            dst[i] = dtype == RT_BF16 ? (double)f : half_value(h);
        }
    }
}

/* ---- reading the header -------------------------------------------------- */

typedef struct {
    Rt *rt;
    const char *file;
    const char *begin, *p, *end;
} Json;

static int json_fail(Json *j, const char *expected)
{
    return rt_fail(j->rt, RT_USER, "%s: error: expected %s at byte %lld of the header "
                   "[weights-file]", j->file, expected, (long long)(j->p - j->begin) + 8);
}

static void blanks(Json *j)
{
    while (j->p < j->end && memchr(" \t\r\n", *j->p, 4))
        j->p++;
}

static bool next_is(Json *j, char c)
{
    blanks(j);
    if (j->p >= j->end || *j->p != c)
        return false;
    j->p++;
    return true;
}

static int hex4(Json *j, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, j->p++) {
        char c = j->p < j->end ? *j->p : 0;
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (v < 0)
            return json_fail(j, "four hexadecimal digits");
        *out = *out * 16 + (unsigned)v;
    }
    return RT_OK;
}

static char *put_utf8(char *o, unsigned c)
{
    if (c < 0x80) {
        *o++ = (char)c;
    } else if (c < 0x800) {
        *o++ = (char)(0xc0 | c >> 6);
        *o++ = (char)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        *o++ = (char)(0xe0 | c >> 12);
        *o++ = (char)(0x80 | (c >> 6 & 63));
        *o++ = (char)(0x80 | (c & 63));
    } else {
        *o++ = (char)(0xf0 | c >> 18);
        *o++ = (char)(0x80 | (c >> 12 & 63));
        *o++ = (char)(0x80 | (c >> 6 & 63));
        *o++ = (char)(0x80 | (c & 63));
    }
    return o;
}

/* \n, \u00e9 ... after the backslash. */
static int escape(Json *j, char **o)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->p < j->end ? *j->p++ : 0;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        *(*o)++ = to[at - from];
        return RT_OK;
    }
    unsigned u, low;
    if (c != 'u')
        return json_fail(j, "an escape");
    RT_TRY(hex4(j, &u));
    if (u >= 0xd800 && u < 0xdc00) {
        if (j->end - j->p < 2 || j->p[0] != '\\' || j->p[1] != 'u')
            return json_fail(j, "the second half of a surrogate pair");
        j->p += 2;
        RT_TRY(hex4(j, &low));
        if (low < 0xdc00 || low > 0xdfff)
            return json_fail(j, "the second half of a surrogate pair");
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    }
    *o = put_utf8(*o, u);
    return RT_OK;
}

/* A string, decoded; the caller frees it. */
static int string(Json *j, char **out)
{
    *out = NULL;
    if (!next_is(j, '"'))
        return json_fail(j, "a string");
    const char *q = j->p;
    while (q < j->end && *q != '"')
        q += *q == '\\' ? 2 : 1;
    if (q >= j->end)
        return json_fail(j, "the end of this string");
    char *o = *out = rt_alloc((size_t)(q - j->p) + 1, 1);
    while (*j->p != '"') {
        if ((unsigned char)*j->p < 32)
            return json_fail(j, "no control character in a string");
        if (*j->p != '\\')
            *o++ = *j->p++;
        else if (j->p++, escape(j, &o))
            return atomic_load(&j->rt->status);
    }
    j->p++;
    return RT_OK;
}

static int whole(Json *j, int64_t *out)
{
    blanks(j);
    if (j->p >= j->end || *j->p < '0' || *j->p > '9')
        return json_fail(j, "a whole number");
    for (*out = 0; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
        if (__builtin_mul_overflow(*out, 10, out)
            || __builtin_add_overflow(*out, *j->p - '0', out))
            return json_fail(j, "a number below 2^63");
    return RT_OK;
}

static int numbers(Json *j, int64_t *out, int room, int *n)
{
    *n = 0;
    if (!next_is(j, '['))
        return json_fail(j, "`[`");
    if (next_is(j, ']'))
        return RT_OK;
    do {
        if (*n == room)
            return json_fail(j, "fewer numbers");
        RT_TRY(whole(j, &out[(*n)++]));
    } while (next_is(j, ','));
    return next_is(j, ']') ? RT_OK : json_fail(j, "`,` or `]`");
}

/* {"dtype": "F32", "shape": [..], "data_offsets": [a, b]} */
static int tensor(Json *j, RtTensor *t)
{
    int seen = 0, n;
    if (!next_is(j, '{'))
        return json_fail(j, "`{`");
    do {
        char *key = NULL, *word = NULL;
        int status = string(j, &key), bit = 0;
        if (!status && !next_is(j, ':'))
            status = json_fail(j, "`:`");
        if (status) {
            // told
        } else if (strcmp(key, "dtype") == 0) {
            bit = 1;
            status = string(j, &word);
            if (!status) {
                snprintf(t->dtype_word, sizeof t->dtype_word, "%s", word);
                for (t->dtype = RT_F32; t->dtype < RT_OTHER; t->dtype++)
                    if (strcmp(word, dtypes[t->dtype].word) == 0)
                        break;
            }
        } else if (strcmp(key, "shape") == 0) {
            bit = 2;
            status = numbers(j, t->shape, 8, &t->ndim);
        } else if (strcmp(key, "data_offsets") == 0) {
            int64_t at[2];
            bit = 4;
            status = numbers(j, at, 2, &n);
            if (!status && n != 2)
                status = json_fail(j, "two offsets");
            t->begin = at[0];
            t->end = at[1];
        } else {
            status = json_fail(j, "dtype, shape or data_offsets before this");
        }
        free(key);
        free(word);
        RT_TRY(status);
        if (seen & bit)
            return json_fail(j, "each key once");
        seen |= bit;
    } while (next_is(j, ','));
    if (!next_is(j, '}'))
        return json_fail(j, "`,` or `}`");
    return seen == 7 ? RT_OK : json_fail(j, "dtype, shape and data_offsets before this");
}

/* {"key": "value", ...}, kept as words: key, value, key, .. */
static int metadata(Json *j, RtTensors *out)
{
    if (!next_is(j, '{'))
        return json_fail(j, "`{`");
    if (next_is(j, '}'))
        return RT_OK;
    do {
        for (int i = 0; i < 2; i++) {
            if (out->nwords % 32 == 0) {
                char **more = rt_alloc((size_t)out->nwords + 32, sizeof *more);
                if (out->nwords)
                    memcpy(more, out->word, sizeof *more * (size_t)out->nwords);
                free(out->word);
                out->word = more;
            }
            RT_TRY(string(j, &out->word[out->nwords++]));
            if (i == 0 && !next_is(j, ':'))
                return json_fail(j, "`:`");
        }
    } while (next_is(j, ','));
    return next_is(j, '}') ? RT_OK : json_fail(j, "`,` or `}`");
}

static int header(Json *j, RtTensors *out)
{
    int room = 0;
    if (!next_is(j, '{'))
        return json_fail(j, "`{`");
    if (!next_is(j, '}')) {
        do {
            char *name;
            int status = string(j, &name);
            if (!status && !next_is(j, ':'))
                status = json_fail(j, "`:`");
            if (!status && strcmp(name, "__metadata__") == 0) {
                status = metadata(j, out);
                free(name);
                RT_TRY(status);
                continue;
            }
            if (out->n == room) {
                room = 2 * room + 64;
                RtTensor *more = rt_alloc((size_t)room, sizeof *more);
                if (out->n)
                    memcpy(more, out->tensor, sizeof *more * (size_t)out->n);
                free(out->tensor);
                out->tensor = more;
            }
            RtTensor *t = &out->tensor[out->n++];
            t->name = name;
            RT_TRY(status);
            RT_TRY(tensor(j, t));
            for (int i = 0; i < out->n - 1; i++)
                if (strcmp(out->tensor[i].name, name) == 0)
                    return rt_fail(j->rt, RT_USER, "%s: error: tensor %s stands there twice "
                                   "[weights-file]", j->file, name);
        } while (next_is(j, ','));
        if (!next_is(j, '}'))
            return json_fail(j, "`,` or `}`");
    }
    blanks(j);
    return j->p == j->end ? RT_OK : json_fail(j, "the end");
}

/* Sizes agree, and the data lies inside the file. */
static int check_places(Rt *rt, const RtTensors *ts, int64_t data_at, int64_t size)
{
    for (int i = 0; i < ts->n; i++) {
        RtTensor *t = &ts->tensor[i];
        int64_t n = (int64_t)rt_dtype_bytes(t->dtype);
        bool wide = false;
        for (int k = 0; k < t->ndim; k++)
            wide = wide || __builtin_mul_overflow(n, t->shape[k], &n);
        if (t->begin > t->end || t->end > INT64_MAX - data_at || wide
            || (t->dtype != RT_OTHER && t->end - t->begin != n))
            return rt_fail(rt, RT_USER, "%s: error: tensor %s has offsets %lld to %lld, its shape "
                           "needs %lld bytes [weights-file]", ts->file, t->name,
                           (long long)t->begin, (long long)t->end, (long long)n);
        t->begin += data_at;
        t->end += data_at;
        if (t->end > size)
            return rt_fail(rt, RT_USER, "%s: error: the file is cut off: tensor %s ends at byte "
                           "%lld, the file at %lld [weights-file]", ts->file, t->name,
                           (long long)t->end, (long long)size);
    }
    return RT_OK;
}

int rt_tensors_read(Rt *rt, const char *file, RtTensors *out)
{
    unsigned char length[8];
    struct stat st;
    /* Without O_NONBLOCK a FIFO that nobody writes would be waited for without end. */
    *out = (RtTensors){ .fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK) };
    out->file = rt_alloc(strlen(file) + 1, 1);
    strcpy(out->file, file);
    if (out->fd < 0 || fstat(out->fd, &st))
        return rt_fail(rt, RT_USER, "%s: error: could not read the weights: %s [weights-file]",
                       file, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return rt_fail(rt, RT_USER, "%s: error: no safetensors file: it is a folder; in one of a "
                       "checkpoint the weights are model.safetensors [weights-file]", file);
    if (!S_ISREG(st.st_mode))
        return rt_fail(rt, RT_USER, "%s: error: no safetensors file: it is no regular file "
                       "[weights-file]", file);
    if (st.st_size < 8 || rt_read_at(out->fd, length, 8, 0))
        return rt_fail(rt, RT_USER, "%s: error: no safetensors file: it has no header "
                       "[weights-file]", file);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | length[i];
    if (n > MAX_HEADER)
        return rt_fail(rt, RT_USER, "%s: error: no safetensors file: a header of %llu bytes "
                       "[weights-file]", file, (unsigned long long)n);
    if ((int64_t)n > st.st_size - 8)
        return rt_fail(rt, RT_USER, "%s: error: the file is cut off: a header of %llu bytes, %lld "
                       "are there [weights-file]", file, (unsigned long long)n,
                       (long long)st.st_size - 8);
    char *text = rt_alloc((size_t)n + 1, 1);
    int status;
    if (rt_read_at(out->fd, text, (size_t)n, 8))
        status = rt_fail(rt, RT_USER, "%s: error: could not read the weights: %s [weights-file]",
                         file, strerror(errno));
    else {
        Json j = { rt, file, text, text, text + n };
        status = rt_crc_check_header(rt, file, text, (size_t)n);
        status = status ? status : header(&j, out);
    }
    free(text);
    RT_TRY(status);
    RT_TRY(check_places(rt, out, 8 + (int64_t)n, st.st_size));
    return rt_crc_read(rt, out);
}

/* The metadata's value of `key`, or NULL. */
const char *rt_tensors_word(const RtTensors *t, const char *key)
{
    for (int i = 0; i + 1 < t->nwords; i += 2)
        if (strcmp(t->word[i], key) == 0)
            return t->word[i + 1];
    return NULL;
}

void rt_tensors_free(RtTensors *t)
{
    for (int i = 0; i < t->n; i++)
        free(t->tensor[i].name);
    for (int i = 0; i < t->nwords; i++)
        free(t->word[i]);
    free(t->word);
    free(t->tensor);
    free(t->of);
    free(t->sum);
    free(t->file);
    if (t->fd >= 0)
        close(t->fd);
}

/* ---- writing it ---------------------------------------------------------- */

int rt_param_shape(const RtParam *p, int64_t shape[2])
{
    if (p->kind == 2) {
        shape[0] = p->width;
        return 1;
    }
    shape[0] = p->out_in ? p->width : p->rows;
    shape[1] = p->out_in ? p->rows : p->width;
    return 2;
}

/*
 * The first bytes of a file with the values o->first .. o->last of all parameters in
 * program order, length included; a zero behind them. o->at: where each begins in the file;
 * o->end: its end.
 */
char *rt_tensors_header(const Rt *rt, RtOutput *o, size_t *bytes)
{
    const RtProgram *p = rt->program;
    int nparams = rt->head->nparams, all = (int)(o->last - o->first + 1) * nparams;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    fprintf(f, "{\"__metadata__\":{\"format\":\"pt\"%s,", o->metadata ? o->metadata : "");
    rt_crc_room(f, all);
    fputc('}', f);
    int64_t begin = 0;
    for (int i = 0; i < all; i++) {
        const RtParam *q = &p->params[i % nparams];
        int64_t shape[2], end = begin + q->rows * q->width * (int64_t)rt->real;
        fprintf(f, ",\"%s", rt_values_prefix(rt, o->first + (unsigned)(i / nparams)));
        for (const char *s = rt_text(p, q->name); *s; s++)
            fprintf(f, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
        fprintf(f, "\":{\"dtype\":\"%s\",\"shape\":[", rt->real == 4 ? "F32" : "F64");
        int ndim = rt_param_shape(q, shape);
        for (int k = 0; k < ndim; k++)
            fprintf(f, "%s%lld", k ? "," : "", (long long)shape[k]);
        fprintf(f, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)end);
        o->at[i] = begin;
        begin = end;
    }
    o->end = begin;
    fputc('}', f);
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    size_t padded = (n + 7) / 8 * 8;
    char *out = rt_alloc(8 + padded + 1, 1);
    for (int i = 0; i < 8; i++)
        out[i] = (char)(padded >> 8 * i & 255);
    memcpy(out + 8, text, n);
    memset(out + 8 + n, ' ', padded - n);
    free(text);
    for (int i = 0; i < all; i++)
        o->at[i] += 8 + (int64_t)padded;
    o->end += 8 + (int64_t)padded;
    *bytes = 8 + padded;
    return out;
}
