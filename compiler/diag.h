/*
 * diag.h - source text, locations, and every message a user sees.
 *
 * All input (files, includes, --set options, the prelude) is appended to one
 * byte space, so a location is a pair of offsets; file, line, column, tabs and
 * UTF-8 width are worked out when a message is printed.
 *
 * Exit status (language.md, 7): 0 fine, 1 files or data, 2 command line,
 * 3 our own checks disagree, 4 the world outside.
 */
#ifndef DIAG_H
#define DIAG_H

#include "util.h"

typedef struct { uint32_t start, end; } Loc;      // {0, 0}: nowhere
enum { EXIT_FINE, EXIT_INPUT, EXIT_USAGE, EXIT_FAULT, EXIT_WORLD };

/* Adds a source and returns its first offset (never 0). `name` is shown in
 * messages: a path, or "--set plan.cube=[2,2]"; text is copied. */
uint32_t    source_add(const char *name, const char *text, size_t n);
const char *source_text(uint32_t at);             // the bytes from `at` on
const char *source_name(uint32_t at);
const char *source_where(Loc loc);                // "gpt2.tcube:9:44", interned
const char *source_dir(uint32_t at);              // folder of the file, "." if none

/*
 * One message. `check` is the permanent name in brackets ("" for none). The
 * caret line shows `loc`; notes and a hint that follow belong to it. Errors are
 * counted; after 20 the rest are counted but not printed, and a line says so.
 *
 *     diag_error(loc, "heads-divide", "25 heads do not split over y = %d", 4);
 *     diag_note(loc2, "y = 4 stands here");
 *     diag_hint("y can be 1, 5 or 25");
 */
void diag_error(Loc loc, const char *check, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void diag_warning(Loc loc, const char *check, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void diag_note(Loc loc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void diag_hint(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int  diag_errors(void);                           // errors so far
int  diag_status(void);     // EXIT_FINE, EXIT_INPUT; EXIT_USAGE if all stand in options
int  diag_nwarnings(void);
const char *diag_warning_text(int i);             // for plan --json

/* Ends the process: a message without a place, and the status. */
_Noreturn void die(int status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Our own fault: prints "fault: ..." and ends with status 3. */
#define bug(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void bug_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
