/*
 * json.h - writing JSON (commas, quotes and indentation are seen to here) and reading it.
 *
 *     Json json = { f, true, 1 }, *j = &json;
 *     fputc('{', f);
 *     json_integer(j, "schema", 1);
 *     json_end(j, '}');
 *
 * `name` is the key in an object, NULL in a list. Two levels stand on lines of their own.
 */
#ifndef JSON_H
#define JSON_H

#include "util.h"

typedef struct { FILE *f; bool first; int depth; } Json;

void json_key(Json *j, const char *name);
void json_begin(Json *j, const char *name, char bracket);
void json_end(Json *j, char bracket);
void json_text(Json *j, const char *name, const char *s);      // NULL: null
void json_integer(Json *j, const char *name, int64_t n);
void json_real(Json *j, const char *name, double x);            // not finite: null
void json_null(Json *j, const char *name);

/* ---- json_read.c: reading, value by value -------------------------------------------
 *
 *     JsonIn json = { text, n }, *j = &json;
 *     for (json_open(j, '{'); json_more(j, '}');) {
 *         const char *name = json_name(j);
 *         if (strcmp(name, "step") == 0) step = json_get_number(j);
 *         else json_skip(j);
 *     }
 *
 * Once something is wrong, `why` says what, at byte `at`, and nothing more is read. Texts are
 * interned.
 */
typedef struct {
    const char *text; size_t n, at;
    const char *why; bool ended;    // ended: it may go on where the text ends
    bool first;                     // of the innermost bracket; the reader's own
} JsonIn;

char json_peek(JsonIn *j);                      // its first byte; 0: there is none
bool json_open(JsonIn *j, char bracket);
bool json_more(JsonIn *j, char bracket);        // false: it is closed
const char *json_name(JsonIn *j);
const char *json_get_text(JsonIn *j);           // "" where it is none
double json_get_number(JsonIn *j);              // null: NAN
void json_skip(JsonIn *j);

#endif
