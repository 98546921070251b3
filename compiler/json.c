/*
 * json.c - writing JSON.
 */
#include "json.h"

static void sep(Json *j)
{
    if (!j->first)
        fputc(',', j->f);
    j->first = false;
    if (j->depth <= 2) {
        fputc('\n', j->f);
        for (int i = 0; i < j->depth; i++)
            fputs("  ", j->f);
    } else
        fputc(' ', j->f);
}

static void quoted(Json *j, const char *s)
{
    fputc('"', j->f);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            fprintf(j->f, "\\%c", c);
        else if (c < 0x20)
            fprintf(j->f, "\\u%04x", c);
        else
            fputc(c, j->f);
    }
    fputc('"', j->f);
}

void json_key(Json *j, const char *name)
{
    sep(j);
    if (name) {
        quoted(j, name);
        fputs(": ", j->f);
    }
}

void json_begin(Json *j, const char *name, char bracket)
{
    json_key(j, name);
    fputc(bracket, j->f);
    j->first = true;
    j->depth++;
}

void json_end(Json *j, char bracket)
{
    j->depth--;
    if (!j->first && j->depth < 2) {
        fputc('\n', j->f);
        for (int i = 0; i < j->depth; i++)
            fputs("  ", j->f);
    } else if (!j->first)
        fputc(' ', j->f);
    fputc(bracket, j->f);
    j->first = false;
}

void json_text(Json *j, const char *name, const char *s)
{
    json_key(j, name);
    if (s)
        quoted(j, s);
    else
        fputs("null", j->f);
}

void json_integer(Json *j, const char *name, int64_t n)
{
    json_key(j, name);
    fprintf(j->f, "%" PRId64, n);
}

void json_real(Json *j, const char *name, double x)
{
    json_key(j, name);
    if (!isfinite(x))
        fputs("null", j->f);
    else if (floor(x) == x && fabs(x) < 9e15)
        fprintf(j->f, "%.0f", x);
    else
        fprintf(j->f, "%.17g", x);
}

void json_null(Json *j, const char *name)
{
    json_key(j, name);
    fputs("null", j->f);
}
