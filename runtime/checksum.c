/*
 * checksum.c - CRC-32C of tensors that many ranks write or read, each its own byte ranges.
 *
 * A CRC without its first and last inversion is linear: that of a tensor is the sum (exclusive or)
 * of what each range gives with zeros in the place of all other bytes, and n zeros behind a range
 * are a product with x^(8n) modulo the polynomial. So every range adds its part, in any order, on
 * any rank; the parts of all processes meet on rank 0. Polynomial 0x1edc6f41 (Castagnoli, RFC 3720,
 * appendix B.4), bits reflected: bit 31 is x^0.
 *
 * In a file's metadata stands `crc32c`: one number of eight digits for the header, with zeros in
 * its own place, and one for each tensor in the order of the header. Files without it are read;
 * checkpoints have it from version 2 on.
 */
#include "rt_impl.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

enum { DIGITS = 8, NIBBLES = 16 };      // of a number in the file; of a count of bytes
static const uint32_t polynomial = 0x82f63b78, one = 0x80000000;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t table[8][256];          // [k]: a byte with k zero bytes behind it
static uint32_t zeros[NIBBLES][16];     // [k][d]: x^(8 d 16^k)

/* ---- arithmetic ----------------------------------------------------------- */

static uint32_t times_x(uint32_t a) { return a & 1 ? a >> 1 ^ polynomial : a >> 1; }

static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1, b = times_x(b))
        if (a & one)
            product ^= b;
    return product;
}

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        table[0][i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[0][i] = times_x(table[0][i]);
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    uint32_t base = one >> 8;           // x^8
    for (int k = 0; k < NIBBLES; k++) {
        zeros[k][0] = one;
        for (int d = 1; d < 16; d++)
            zeros[k][d] = times(zeros[k][d - 1], base);
        base = times(zeros[k][15], base);
    }
}

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
static uint32_t by_instruction(uint32_t crc, const unsigned char *p, size_t n)
{
    uint64_t c = crc, eight;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&eight, p, 8);
        c = _mm_crc32_u64(c, eight);
    }
    crc = (uint32_t)c;
    for (; n > 0; n--)
        crc = _mm_crc32_u8(crc, *p++);
    return crc;
}
#endif

/* Eight bytes at a time ("slicing by 8"). */
static uint32_t by_table(uint32_t crc, const unsigned char *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t next = 0;
        for (int k = 0; k < 4; k++)
            next ^= table[7 - k][(p[k] ^ crc >> 8 * k) & 255] ^ table[3 - k][p[4 + k]];
        crc = next;
    }
    for (; n > 0; n--)
        crc = crc >> 8 ^ table[0][(*p++ ^ crc) & 255];
    return crc;
}

uint32_t rt_crc(uint32_t crc, const void *p, size_t n)
{
    pthread_once(&once, make_tables);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return by_instruction(crc, p, n);
#endif
    return by_table(crc, p, n);
}

uint32_t rt_crc_table(uint32_t crc, const void *p, size_t n)
{
    pthread_once(&once, make_tables);
    return by_table(crc, p, n);
}

uint32_t rt_crc_behind(uint32_t crc, uint64_t n)
{
    pthread_once(&once, make_tables);
    for (int k = 0; n > 0; k++, n >>= 4)
        if (n & 15)
            crc = times(zeros[k][n & 15], crc);
    return crc;
}

uint32_t rt_crc_end(uint32_t sum, uint64_t n)
{
    return ~(sum ^ rt_crc_behind(~(uint32_t)0, n));
}

/* ---- all processes --------------------------------------------------------- */

int rt_crc_gather(RtWorker *w, atomic_uint *sum, int n)
{
    RtRank *r = w->rank;
    if (!rt_processes(r->rt))
        return RT_OK;
    uint32_t *v = rt_alloc((size_t)n, sizeof *v);
    int status = RT_OK;
    for (int k = 0; k < n; k++)
        v[k] = atomic_load(&sum[k]);
    if (r->id > 0)
        status = rt_bring(w, v, sizeof *v * (size_t)n);
    for (int i = 1; r->id == 0 && i < r->rt->nranks && !status; i++) {
        status = rt_take(w, i, v, sizeof *v * (size_t)n);
        for (int k = 0; k < n && !status; k++)
            atomic_fetch_xor(&sum[k], v[k]);
    }
    free(v);
    return status;
}

/* ---- in a header ------------------------------------------------------------ */

static const char key[] = "\"crc32c\":\"";

void rt_crc_room(FILE *f, int ntensors)
{
    fputs(key, f);
    for (int i = 0; i <= ntensors; i++)
        fprintf(f, "%s%0*x", i ? " " : "", DIGITS, 0);
    putc('"', f);
}

/* The digits behind the key; NULL: there are none. `text` has a zero behind its end. */
static char *digits_of(char *text)
{
    char *at = strstr(text, key);
    at = at ? at + strlen(key) : NULL;
    return at && strspn(at, "0123456789abcdef") == DIGITS ? at : NULL;
}

static void put_number(char *at, uint32_t v)
{
    char digits[DIGITS + 1];
    snprintf(digits, sizeof digits, "%0*x", DIGITS, v);
    memcpy(at, digits, DIGITS);
}

/* Of the header's n bytes, its own digits being zeros. */
static uint32_t of_header(const char *text, size_t n, const char *digits)
{
    uint32_t crc = rt_crc(~(uint32_t)0, text, (size_t)(digits - text));
    crc = rt_crc(crc, "00000000", DIGITS);
    return ~rt_crc(crc, digits + DIGITS, n - (size_t)(digits - text) - DIGITS);
}

void rt_crc_fill(char *text, size_t n, const atomic_uint *sum, const int64_t *bytes, int ntensors)
{
    char *own = digits_of(text), *at = own;
    for (int i = 0; i < ntensors; i++) {
        at += DIGITS + 1;
        put_number(at, rt_crc_end(atomic_load(&sum[i]), (uint64_t)bytes[i]));
    }
    put_number(own, of_header(text, n, own));
}

int rt_crc_check_header(Rt *rt, const char *file, char *text, size_t n)
{
    char *own = digits_of(text);
    if (!own)
        return RT_OK;
    uint32_t is = of_header(text, n, own), was = (uint32_t)strtoul(own, NULL, 16);
    return is == was ? RT_OK
        : rt_fail(rt, RT_USER, "%s: error: the header is damaged: its checksum is %08x, %08x was "
                  "written with it [weights-file]\nnote: a program that changes the file leaves "
                  "`crc32c` out of its metadata", file, is, was);
}

int rt_crc_read(Rt *rt, RtTensors *t)
{
    const char *word = rt_tensors_word(t, "crc32c"), *at = word;
    for (int i = -1; word && i < t->n; i++) {
        char *end;
        uint32_t v = (uint32_t)strtoul(at, &end, 16);
        if (end - at != DIGITS || *end != (i + 1 < t->n ? ' ' : 0))
            return rt_fail(rt, RT_USER, "%s: error: `crc32c` of the metadata: expected %d numbers "
                           "of %d digits [weights-file]", t->file, t->n + 1, DIGITS);
        if (i >= 0)
            t->tensor[i].crc = v;
        at = end + 1;
    }
    t->has_crc = word != NULL;
    return RT_OK;
}

int rt_crc_judge(RtWorker *w, RtTensors *t)
{
    Rt *rt = w->rank->rt;
    int n = (int)(t->last - t->first + 1) * rt->head->nparams;
    RT_TRY(rt_agree(w));                // everything was read
    RT_TRY(rt_crc_gather(w, t->sum, n));
    for (int i = 0; i < n && w->rank->id == 0; i++) {
        const RtTensor *q = t->of[i];
        uint32_t is = rt_crc_end(atomic_load(&t->sum[i]), (uint64_t)(q->end - q->begin));
        if (is != q->crc)
            return rt_fail(rt, RT_USER, "%s: error: tensor %s is damaged: the checksum of its "
                           "bytes is %08x, %08x was written with them [weights-file]%s", t->file,
                           q->name, is, q->crc, rt->options->resume ? "\nnote: `latest` in the "
                           "folder of the checkpoints may name an older one, for --resume" : "");
    }
    return RT_OK;
}
