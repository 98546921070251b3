/*
 * json.h - writing JSON: commas, quotes and indentation are seen to here.
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

#endif
