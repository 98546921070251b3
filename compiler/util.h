/*
 * util.h - the four tools every pass uses: arena, growable vector, interned
 * string, string map. Nothing here knows about Transformers.
 *
 * Lifetimes have names: `perm` lives as long as the compile, `scratch` is
 * emptied after each pass by the loop in main.c. Nothing is freed by hand; what a
 * function needs for a while it takes between a mark and its release.
 * Memory comes zeroed; running out of it ends the process with status 4.
 */
#ifndef UTIL_H
#define UTIL_H

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Arena Arena;
extern Arena *perm;         // the whole compile
extern Arena *scratch;      // one pass

void *arena_get(Arena *a, size_t bytes);    // zeroed, 16-byte aligned
void *arena_copy(Arena *a, const void *at, size_t bytes);
typedef struct { void *top; size_t used; } Mark;
Mark  arena_mark(const Arena *a);
void  arena_release(Arena *a, Mark m);      // what was taken since is gone
void  arena_reset(Arena *a);                // all memory of `a` is gone
#define NEW(T)            ((T *)arena_get(perm, sizeof(T)))
#define NEWN(T, n)        ((T *)arena_get(perm, sizeof(T) * (size_t)(n)))
#define SCRATCHN(T, n)    ((T *)arena_get(scratch, sizeof(T) * (size_t)(n)))

/*
 * For a while NEW, NEWN and vectors take from `scratch`, and all that they took is gone at the
 * end. Interned strings stay. May be nested; nobody resets `scratch` meanwhile.
 */
typedef struct { Arena *perm; Mark mark; } Aside;
Aside aside_begin(void);
void  aside_end(Aside a);

/*
 * Growable vector: VEC(Op) ops; vec_add(&ops, op); ops.at[i]; ops.n.
 * Elements live in `perm` and move when the vector grows: keep indices. Where their number is
 * known, vec_reserve(&ops, n) saves the moves.
 */
#define VEC(T) struct { T *at; int n, cap; }
#define vec_add(v, x) (vec_room((void **)&(v)->at, &(v)->cap, (v)->n + 1, \
    sizeof *(v)->at), (v)->at[(v)->n++] = (x))
#define vec_reserve(v, all) vec_room((void **)&(v)->at, &(v)->cap, (all), sizeof *(v)->at)
void vec_room(void **at, int *cap, int n, size_t size);
#define vec_sort(v, by)     /* an empty one too, which qsort does not take */ \
    do { if ((v).n) qsort((v).at, (size_t)(v).n, sizeof *(v).at, by); } while (0)

/* Interned strings: equal text, equal pointer. */
const char *str_of(const char *text, size_t n);
const char *str(const char *text);
const char *str_fmt(const char *fmt, ...)           // interned result
    __attribute__((format(printf, 1, 2)));

/* Map from interned or plain strings to non-negative ints. */
typedef struct Map Map;
Map *map_new(void);
int  map_get(const Map *m, const char *key);        // -1: absent
void map_put(Map *m, const char *key, int value);   // replaces
int *map_at(Map *m, const char *key);       // its value, to be written: -1 where it was absent

/* n in decimal, in `room`. */
enum { DIGITS = 21 };
const char *str_digits(char room[DIGITS], int64_t n);

/* A string being written. */
typedef struct { char *at; size_t n, cap; } Text;
void text_bytes(Text *t, const void *at, size_t n);     // n 0: nothing; no end mark
void text_number(Text *t, int64_t n);                   // in decimal; no end mark
void text_add(Text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Up to two names near `word` by edit distance (distance at most
 * max(1, length/3)); returns "`a`" or "`a` or `b`", or NULL. */
const char *str_nearest(const char *word, const char *const *names, int n);

/* Sizes for people: "1.21 GB" (powers of 1000), "3.1 ms", "12.4 GFLOP". */
const char *str_bytes(double bytes);
const char *str_seconds(double seconds);
const char *str_flop(double flop);
/* A count of something: "1 slice", "2 slices", "3 microbatches". */
const char *plural(int64_t n, const char *noun);

int64_t gcd64(int64_t a, int64_t b);
int64_t lcm64(int64_t a, int64_t b);
static inline double larger(double a, double b) { return a > b ? a : b; }
static inline double less(double a, double b) { return a < b ? a : b; }
uint64_t hash_bytes(const void *data, size_t n, uint64_t seed);   // FNV-1a 64
double now_s(void);                                                // monotonic

#endif
