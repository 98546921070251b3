/*
 * outputs.c - files that a run is about to write over: only those that a run wrote.
 *
 * A slip of the command line, --log notes.txt, must not cost the notes. An old log, trace,
 * profile or file of weights makes room for the new one, and so does an empty file; another
 * regular file is an error before the first step. What is no regular file holds nothing.
 */
#include "rt_impl.h"

#include <stdio.h>
#include <sys/stat.h>

enum { FRONT = 32 };                    // bytes that are looked at

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* [, then an event, the end, or nothing yet; or as the simulator writes it. */
static bool is_trace(const char *text)
{
    return strcmp(text, "[\n") == 0 || begins(text, "[\n{\"name\": ") || begins(text, "[\n\n]")
           || begins(text, "{\"displayTimeUnit\": ");
}

/* Safetensors: the length of the header, the header. */
static bool is_weights(const char *text, int64_t bytes)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | (unsigned char)text[i];
    return bytes > 8 && n <= (uint64_t)bytes - 8 && text[8] == '{';
}

/* What stands at `path` and is no `kind`, a word of the four below: true. */
bool rt_is_foreign(const char *path, const char *kind)
{
    struct stat st;
    char text[FRONT + 1] = "";
    if (!path || stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return false;
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, FRONT, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    bool own = strcmp(kind, "log") == 0 ? begins(text, "{\"run\": ")
             : strcmp(kind, "trace") == 0 ? is_trace(text)
             : strcmp(kind, "profile") == 0 ? begins(text, "teracube-profile ")
             : is_weights(text, st.st_size);
    return f && !own;                   // one that cannot be read cannot be written, or is told
}

int rt_outputs_spare(Rt *rt)
{
    const struct { const char *option, *path, *kind; } all[] = {
        { "--log", rt->log_path, "log" }, { "--trace", rt->options->trace, "trace" },
        { "--save", rt->options->save, "file of weights" },
    };
    for (size_t i = 0; rt->first == 0 && i < sizeof all / sizeof *all; i++)
        if (rt_is_foreign(all[i].path, all[i].kind))
            return rt_fail(rt, RT_USAGE, "%s: error: %s %s would overwrite a file that is no %s; "
                           "name another, or remove it", rt->exe, all[i].option, all[i].path,
                           all[i].kind);
    return RT_OK;
}
