/*
 * json.c - writing JSON. One thread: nothing is locked.
 */
#include "json.h"

/* Text without end mark. */
static void put(Json *j, const char *s, size_t n) { fwrite_unlocked(s, 1, n, j->f); }

static void sep(Json *j)
{
    if (!j->first)
        putc_unlocked(',', j->f);
    j->first = false;
    if (j->depth <= 2) {
        putc_unlocked('\n', j->f);
        for (int i = 0; i < j->depth; i++)
            put(j, "  ", 2);
    } else
        putc_unlocked(' ', j->f);
}

static void quoted(Json *j, const char *s)
{
    putc_unlocked('"', j->f);
    while (*s) {
        size_t n = 0;
        while ((unsigned char)s[n] >= 0x20 && s[n] != '"' && s[n] != '\\')
            n++;
        put(j, s, n);
        s += n;
        if (*s == '"' || *s == '\\')
            fprintf(j->f, "\\%c", *s++);
        else if (*s)
            fprintf(j->f, "\\u%04x", (unsigned char)*s++);
    }
    putc_unlocked('"', j->f);
}

void json_key(Json *j, const char *name)
{
    sep(j);
    if (name) {
        quoted(j, name);
        put(j, ": ", 2);
    }
}

void json_begin(Json *j, const char *name, char bracket)
{
    json_key(j, name);
    putc_unlocked(bracket, j->f);
    j->first = true;
    j->depth++;
}

void json_end(Json *j, char bracket)
{
    j->depth--;
    if (!j->first && j->depth < 2) {
        putc_unlocked('\n', j->f);
        for (int i = 0; i < j->depth; i++)
            put(j, "  ", 2);
    } else if (!j->first)
        putc_unlocked(' ', j->f);
    putc_unlocked(bracket, j->f);
    j->first = false;
}

void json_text(Json *j, const char *name, const char *s)
{
    json_key(j, name);
    if (s)
        quoted(j, s);
    else
        put(j, "null", 4);
}

void json_integer(Json *j, const char *name, int64_t n)
{
    char room[DIGITS];
    const char *digits = str_digits(room, n);
    json_key(j, name);
    put(j, digits, strlen(digits));
}

void json_real(Json *j, const char *name, double x)
{
    json_key(j, name);
    if (!isfinite(x))
        put(j, "null", 4);
    else if (floor(x) == x && fabs(x) < 9e15)
        fprintf(j->f, "%.0f", x);
    else
        fprintf(j->f, "%.17g", x);
}

void json_null(Json *j, const char *name)
{
    json_key(j, name);
    put(j, "null", 4);
}
