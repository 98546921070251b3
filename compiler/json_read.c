/*
 * json_read.c - reading JSON, value by value (json.h). Nothing is built: what a caller
 * does not ask for is skipped.
 */
#include <ctype.h>

#include "json.h"

enum { DEEP = 64 };             // levels that are skipped; deeper is no file of ours

static void blanks(JsonIn *j)
{
    while (j->at < j->n && strchr(" \t\r\n", j->text[j->at]) && j->text[j->at])
        j->at++;
}

/* `ended`: nothing follows but a part of a word. */
static bool wrong(JsonIn *j, const char *why)
{
    size_t i = j->at;
    if (j->why == NULL) {
        while (i < j->n && (isalnum((unsigned char)j->text[i]) || strchr("+-.", j->text[i])))
            i++;
        j->ended = i >= j->n;
        j->why = why;
    }
    return false;
}

char json_peek(JsonIn *j)
{
    blanks(j);
    return j->why || j->at >= j->n ? 0 : j->text[j->at];
}

static bool takes(JsonIn *j, char c)
{
    if (json_peek(j) != c)
        return false;
    j->at++;
    return true;
}

bool json_open(JsonIn *j, char bracket)
{
    j->first = true;
    return takes(j, bracket) || wrong(j, bracket == '{' ? "an object was expected"
                                                         : "a list was expected");
}

bool json_more(JsonIn *j, char bracket)
{
    bool first = j->first;
    j->first = false;
    if (j->why || takes(j, bracket))
        return false;
    if (!first && !takes(j, ','))
        return wrong(j, "a comma is missing");
    return json_peek(j) || wrong(j, "the text ends too early");
}

/* UTF-8 of one code point. */
static int utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : 3;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : 0xe0) | c);
    return n;
}

/* What follows a backslash, at j->at; bytes written. */
static int escaped(JsonIn *j, char *out)
{
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    char c = j->text[j->at++];
    const char *k = strchr(from, c);
    unsigned code = 0;
    if (c != 'u') {
        out[0] = k && c ? to[k - from] : c;
        return 1;
    }
    for (int i = 0; i < 4 && j->at < j->n; i++) {
        char d = j->text[j->at++];
        code = code * 16 + (unsigned)(d <= '9' ? d - '0' : (d | 32) - 'a' + 10) % 16;
    }
    return utf8(out, code);
}

const char *json_get_text(JsonIn *j)
{
    bool plain = true;
    if (!takes(j, '"')) {
        wrong(j, "a text was expected");
        return "";
    }
    size_t from = j->at, to;
    for (to = from; to < j->n && j->text[to] != '"'; to++)
        if (j->text[to] == '\\') {
            plain = false;
            to++;
        }
    if (to >= j->n) {
        j->at = j->n;
        wrong(j, "a text does not end");
        return "";
    }
    j->at = to + 1;
    if (plain)
        return str_of(j->text + from, to - from);
    char *out = arena_get(scratch, to - from + 4);
    int n = 0;
    for (j->at = from; j->at < to;)
        if (j->text[j->at] == '\\' && ++j->at)
            n += escaped(j, out + n);
        else
            out[n++] = j->text[j->at++];
    j->at = to + 1;
    return str_of(out, (size_t)n);
}

const char *json_name(JsonIn *j)
{
    const char *name = json_get_text(j);
    if (j->why == NULL && !takes(j, ':'))
        wrong(j, "a colon is missing");
    return name;
}

double json_get_number(JsonIn *j)
{
    char word[64], *end;
    size_t n = 0;
    json_peek(j);
    if (j->n - j->at >= 4 && memcmp(j->text + j->at, "null", 4) == 0) {
        j->at += 4;
        return NAN;
    }
    while (n < sizeof word - 1 && j->at + n < j->n && j->text[j->at + n] &&
           strchr("+-.0123456789eE", j->text[j->at + n])) {
        word[n] = j->text[j->at + n];
        n++;
    }
    word[n] = 0;
    double v = strtod(word, &end);
    if (n == 0 || *end) {
        wrong(j, "a number was expected");
        return NAN;
    }
    j->at += n;
    return v;
}

static void skip(JsonIn *j, int deep)
{
    char c = json_peek(j);
    if (deep > DEEP)
        wrong(j, "lists in lists, too many");
    else if (c == '{' || c == '[') {
        char close = c == '{' ? '}' : ']';
        for (json_open(j, c); json_more(j, close);) {
            if (c == '{')
                json_name(j);
            skip(j, deep + 1);
        }
    } else if (c == '"')
        json_get_text(j);
    else if (j->n - j->at >= 4 && memcmp(j->text + j->at, "true", 4) == 0)
        j->at += 4;
    else if (j->n - j->at >= 5 && memcmp(j->text + j->at, "false", 5) == 0)
        j->at += 5;
    else
        json_get_number(j);
}

void json_skip(JsonIn *j) { skip(j, 0); }
