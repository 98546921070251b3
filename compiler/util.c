/*
 * util.c - arena, vector, interned string, map, text, and sizes for people.
 *
 * One thread only: interning and the arenas are not locked. An arena is a list
 * of zeroed chunks; an object never moves and is never freed alone.
 */
#define _POSIX_C_SOURCE 200809L
#include "util.h"
#include "diag.h"

#include <sys/mman.h>
#include <time.h>

/* ---- arena ---------------------------------------------------------------- */

/* TUNING: chunks of at least the first size; larger than the second, they are not kept. */
enum { CHUNK_BYTES = 1 << 18, KEPT_BYTES = 1 << 23, ALIGN = 16 };

typedef struct Chunk Chunk;
struct Chunk {
    Chunk *next;
    size_t used, size;          // bytes behind the head
};
/* Chunks in the order in which they serve; those behind `top` are empty. */
struct Arena { Chunk *first, *top; };

static Arena perm_arena, scratch_arena;
Arena *perm = &perm_arena;
Arena *scratch = &scratch_arena;

static char *chunk_data(Chunk *c)
{
    return (char *)c + (sizeof(Chunk) + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t chunk_bytes(size_t size) { return size + sizeof(Chunk) + ALIGN; }

/* Pages of its own, zeroed by the system: those that nobody touches cost nothing, so that a
 * vector may have more room than it ever fills. */
static Chunk *chunk_new(size_t size)
{
    Chunk *c = mmap(NULL, chunk_bytes(size), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (c == MAP_FAILED)
        die(EXIT_WORLD, "out of memory (%zu bytes were asked for)", size);
    c->size = size;
    return c;
}

void *arena_get(Arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        die(EXIT_WORLD, "out of memory (%zu bytes were asked for)", bytes);
    size_t n = (bytes + (bytes == 0) + ALIGN - 1) / ALIGN * ALIGN;

    if (a->top == NULL || a->top->size - a->top->used < n) {
        Chunk **next = a->top ? &a->top->next : &a->first;
        if (*next == NULL || (*next)->size < n) {
            Chunk *fresh = chunk_new(n > CHUNK_BYTES / 4 ? n + CHUNK_BYTES : CHUNK_BYTES);
            fresh->next = *next;
            *next = fresh;
        }
        a->top = *next;
    }
    void *p = chunk_data(a->top) + a->top->used;
    a->top->used += n;
    return p;
}

void *arena_copy(Arena *a, const void *at, size_t bytes)
{
    void *out = arena_get(a, bytes);

    if (bytes)
        memcpy(out, at, bytes);
    return out;
}

Mark arena_mark(const Arena *a)
{
    return (Mark){ a->top, a->top ? a->top->used : 0 };
}

void arena_release(Arena *a, Mark m)
{
    Chunk *from = m.top, **end = from ? &from->next : &a->first;
    Chunk *last = a->top ? a->top->next : NULL;

    if (from) {
        memset(chunk_data(from) + m.used, 0, from->used - m.used);
        from->used = m.used;
    }
    while (*end != last) {
        Chunk *c = *end;
        if (c->size > KEPT_BYTES) {
            *end = c->next;
            munmap(c, chunk_bytes(c->size));
            continue;
        }
        memset(chunk_data(c), 0, c->used);
        c->used = 0;
        end = &c->next;
    }
    a->top = from;
}

void arena_reset(Arena *a) { arena_release(a, (Mark){ NULL, 0 }); }

Aside aside_begin(void)
{
    Aside a = { perm, arena_mark(scratch) };

    perm = scratch;
    return a;
}

void aside_end(Aside a)
{
    perm = a.perm;
    arena_release(scratch, a.mark);
}

/* ---- vector --------------------------------------------------------------- */

/* TUNING: how much larger something becomes that has grown out of its room. From a page on
 * four times: what nobody touches of it costs nothing, and what it leaves behind is less. */
static int growth(size_t bytes) { return bytes < 4096 ? 2 : 4; }

void vec_room(void **at, int *cap, int n, size_t size)
{
    if (n <= *cap)
        return;
    if (n > INT32_MAX / 4)
        die(EXIT_WORLD, "out of memory (a list of %d elements)", n);
    int least = size < 64 ? 8 : 2;
    int room = *cap ? *cap * growth((size_t)*cap * size) : n > least ? n : least;
    while (room < n)
        room *= 2;
    void *fresh = arena_get(perm, (size_t)room * size);
    if (*cap)
        memcpy(fresh, *at, (size_t)*cap * size);
    *at = fresh;
    *cap = room;
}

/* ---- interned strings ----------------------------------------------------- */

/* For tables in memory alone: eight bytes at a time, as the machine has them. */
static uint64_t hash_text(const char *s, size_t n)
{
    static const uint64_t ODD = 0x9e3779b97f4a7c15u;
    uint64_t h = n * ODD, word;

    for (; n > 0; s += sizeof word, n -= n < sizeof word ? n : sizeof word) {
        word = 0;
        memcpy(&word, s, n < sizeof word ? n : sizeof word);
        h = (h ^ word) * ODD;
        h ^= h >> 32;
    }
    return h;
}

typedef struct { const char *text; size_t n; uint64_t hash; } Slot;
static struct { Slot *at; size_t n, cap; } interned;

static Slot *slot_of(const char *text, size_t n, uint64_t hash)
{
    size_t i = hash & (interned.cap - 1);

    while (interned.at[i].text) {
        Slot *s = &interned.at[i];
        if (s->hash == hash && s->n == n && memcmp(s->text, text, n) == 0)
            return s;
        i = (i + 1) & (interned.cap - 1);
    }
    return &interned.at[i];
}

static void interned_grow(void)
{
    Slot *old = interned.at;
    size_t cap = interned.cap;

    interned.cap = cap ? cap * 2 : 1024;
    interned.at = arena_get(&perm_arena, interned.cap * sizeof(Slot));
    for (size_t i = 0; i < cap; i++) {
        if (old[i].text)
            *slot_of(old[i].text, old[i].n, old[i].hash) = old[i];
    }
}

const char *str_of(const char *text, size_t n)
{
    if (interned.n * 2 >= interned.cap)
        interned_grow();
    uint64_t hash = hash_text(text, n);
    Slot *s = slot_of(text, n, hash);
    if (!s->text) {
        char *copy = arena_get(&perm_arena, n + 1);
        if (n)
            memcpy(copy, text, n);
        *s = (Slot){ copy, n, hash };
        interned.n++;
    }
    return s->text;
}

const char *str(const char *text)
{
    return str_of(text, strlen(text));
}

const char *str_fmt(const char *fmt, ...)
{
    char small[512];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0)
        bug("str_fmt: \"%s\" cannot be formatted", fmt);
    if ((size_t)n < sizeof small)
        return str_of(small, (size_t)n);
    char *large = malloc((size_t)n + 1);
    if (!large)
        die(EXIT_WORLD, "out of memory (%d bytes were asked for)", n);
    va_start(ap, fmt);
    vsnprintf(large, (size_t)n + 1, fmt, ap);
    va_end(ap);
    const char *s = str_of(large, (size_t)n);
    free(large);
    return s;
}

/* ---- map ------------------------------------------------------------------ */

typedef struct { const char *key; uint32_t hash; int value; } MapSlot;
struct Map { MapSlot *at; size_t n, cap; };

Map *map_new(void)
{
    return NEW(Map);
}

static MapSlot *map_slot(const Map *m, const char *key, uint32_t hash)
{
    size_t i = hash & (m->cap - 1);

    while (m->at[i].key && (m->at[i].hash != hash || strcmp(m->at[i].key, key) != 0))
        i = (i + 1) & (m->cap - 1);
    return &m->at[i];
}

int map_get(const Map *m, const char *key)
{
    if (!m->cap)
        return -1;
    MapSlot *s = map_slot(m, key, (uint32_t)hash_text(key, strlen(key)));
    return s->key ? s->value : -1;
}

static void map_grow(Map *m)
{
    Map old = *m;

    m->cap = old.cap ? old.cap * 2 : 16;
    m->at = NEWN(MapSlot, m->cap);
    for (size_t i = 0; i < old.cap; i++) {
        if (!old.at[i].key)
            continue;
        size_t k = old.at[i].hash & (m->cap - 1);
        while (m->at[k].key)
            k = (k + 1) & (m->cap - 1);
        m->at[k] = old.at[i];
    }
}

int *map_at(Map *m, const char *key)
{
    if (m->n * 2 >= m->cap)
        map_grow(m);
    uint32_t hash = (uint32_t)hash_text(key, strlen(key));
    MapSlot *s = map_slot(m, key, hash);
    if (!s->key) {
        *s = (MapSlot){ str(key), hash, -1 };
        m->n++;
    }
    return &s->value;
}

void map_put(Map *m, const char *key, int value)
{
    *map_at(m, key) = value;
}

/* ---- text ----------------------------------------------------------------- */

static void text_room(Text *t, size_t more)
{
    size_t need = t->n + more, cap = t->cap ? t->cap * growth(t->cap) : 256;
    if (need <= t->cap)
        return;
    while (cap < need)
        cap *= 2;
    char *fresh = arena_get(perm, cap);
    if (t->n)
        memcpy(fresh, t->at, t->n);
    t->at = fresh;
    t->cap = cap;
}

void text_bytes(Text *t, const void *at, size_t n)
{
    text_room(t, n + 1);
    if (n)
        memcpy(t->at + t->n, at, n);
    t->n += n;
}

const char *str_digits(char room[DIGITS], int64_t n)
{
    char *at = room + DIGITS - 1;
    uint64_t rest = n < 0 ? -(uint64_t)n : (uint64_t)n;

    *at = 0;
    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (n < 0)
        *--at = '-';
    return at;
}

void text_number(Text *t, int64_t n)
{
    char room[DIGITS];
    const char *digits = str_digits(room, n);

    text_bytes(t, digits, strlen(digits));
}

void text_add(Text *t, const char *fmt, ...)
{
    for (;;) {                      // a second time where the first had too little room
        va_list ap;
        text_room(t, 1);
        size_t room = t->cap - t->n;
        va_start(ap, fmt);
        int n = vsnprintf(t->at + t->n, room, fmt, ap);
        va_end(ap);
        if (n < 0)
            bug("text_add: \"%s\" cannot be formatted", fmt);
        if ((size_t)n < room) {
            t->n += (size_t)n;
            return;
        }
        text_room(t, (size_t)n + 1);
    }
}

/* ---- near names ----------------------------------------------------------- */

enum { NEAR_LONGEST = 63 };         // longer words get no suggestion

/* Insertions, deletions, replacements and swaps of neighbours that turn one
 * word into the other. */
static int edit_distance(const char *a, int na, const char *b, int nb)
{
    int row[3][NEAR_LONGEST + 2];   // row i of the table is row[i % 3]

    for (int j = 0; j <= nb; j++)
        row[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int d = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < d)
                d = up[j] + 1;
            if (now[j - 1] + 1 < d)
                d = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]
                && up2[j - 2] + 1 < d)
                d = up2[j - 2] + 1;
            now[j] = d;
        }
    }
    return row[na % 3][nb];
}

const char *str_nearest(const char *word, const char *const *names, int n)
{
    size_t length = strlen(word);
    const char *best = NULL, *second = NULL;

    if (length > NEAR_LONGEST)
        return NULL;
    int limit = length / 3 > 1 ? (int)(length / 3) : 1;
    int d1 = limit + 1, d2 = limit + 1;
    for (int i = 0; i < n; i++) {
        size_t ln = names[i] ? strlen(names[i]) : NEAR_LONGEST + 1;
        if (ln > NEAR_LONGEST || (best && strcmp(best, names[i]) == 0))
            continue;
        int d = edit_distance(word, (int)length, names[i], (int)ln);
        // a word of one or two letters is near nothing that shares no letter with it
        if (d == 0 || (size_t)d >= (length > ln ? length : ln))
            continue;
        if (d < d1) {
            second = best;
            d2 = d1;
            best = names[i];
            d1 = d;
        } else if (d < d2 && !(second && strcmp(second, names[i]) == 0)) {
            second = names[i];
            d2 = d;
        }
    }
    if (!best)
        return NULL;
    return second ? str_fmt("`%s` or `%s`", best, second) : str_fmt("`%s`", best);
}

/* ---- sizes for people ----------------------------------------------------- */

/* Three digits and the unit that keeps them between 1 and 999; what is beyond the last unit has
 * more digits, and at last an exponent. `units` starts at `unit_of_one`, steps of 1000. */
static const char *scaled(double v, const char *const *units, int n, int one)
{
    int i = one;
    double a = fabs(v);

    if (!isfinite(v))
        return str_fmt("%g %s", v, units[one]);
    for (; i + 1 < n && a >= 999.5; i++)
        a /= 1000;
    for (; i > 0 && a > 0 && a < 0.9995; i--)
        a *= 1000;
    if (a >= 999.5 && a < 1e6)
        return str_fmt("%s%.0f %s", v < 0 ? "-" : "", a, units[i]);
    return str_fmt("%s%.3g %s", v < 0 ? "-" : "", a, units[i]);
}

const char *str_bytes(double bytes)
{
    static const char *const units[] = { "B", "KB", "MB", "GB", "TB", "PB", "EB" };

    return scaled(bytes, units, 7, 0);
}

const char *str_seconds(double seconds)
{
    static const char *const units[] = { "ns", "us", "ms", "s" };
    /* TUNING: below is what rounding leaves of a difference */
    static const double NOTHING = 1e-15;

    return scaled(fabs(seconds) < NOTHING ? 0 : seconds, units, 4, 3);
}

const char *str_flop(double flop)
{
    static const char *const units[] = { "FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP",
                                         "EFLOP", "ZFLOP" };

    return scaled(flop, units, 8, 0);
}

const char *plural(int64_t n, const char *noun)
{
    size_t len = strlen(noun);
    bool ch = len > 1 && strcmp(noun + len - 2, "ch") == 0, y = len > 1 && noun[len - 1] == 'y';
    return str_fmt("%" PRId64 " %.*s%s", n, (int)(len - (y && n != 1)), noun,
                   n == 1 ? "" : y ? "ies" : ch ? "es" : "s");
}

/* ---- numbers -------------------------------------------------------------- */

int64_t gcd64(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a < 0 ? -a : a;
}

int64_t lcm64(int64_t a, int64_t b)
{
    int64_t g = gcd64(a, b), r;

    if (g == 0)
        return 0;
    if (__builtin_mul_overflow(a / g, b, &r))
        bug("lcm64: %" PRId64 " and %" PRId64 " have no 64-bit multiple", a, b);
    return r < 0 ? -r : r;
}

uint64_t hash_bytes(const void *data, size_t n, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u ^ seed;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
