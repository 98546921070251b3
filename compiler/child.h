/*
 * child.h - programs that the commands start: a C compiler, nvcc, nvidia-smi.
 */
#ifndef CHILD_H
#define CHILD_H

#include "util.h"

/*
 * Runs argv (NULL at its end; argv[0] is looked for in PATH) in folder `dir` (NULL: here) and
 * waits. `said`: NULL, or gets stdout and stderr. Gives the exit status, 127 where the program
 * could not be started, 128 + the signal that ended it.
 */
enum { CHILD_ABSENT = 127 };
int child_run(const char *const *argv, const char *dir, Text *said);
/* Behind a program that failed: does not come back where a signal (SIGTERM, ..) has told us to end
 * while there was a temporary folder. What else is left behind is gone by then. */
void child_ended(int status);

/* Words of `text`, separated by blanks, at argv[n] and on, NULL behind them; how many there are
 * then. argv has room for CHILD_WORDS; what is too much is left out. */
enum { CHILD_WORDS = 64 };
int child_words(const char **argv, int n, const char *text);

/* The program's path in PATH, or its own where it has a slash; NULL: there is none. */
const char *child_find(const char *name);

/* A word as sh reads it: in quotes where it needs them. */
const char *shell_word(const char *s);

/* A folder of its own in $TMPDIR, gone with everything in it when the process ends, by SIGTERM,
 * SIGHUP or SIGINT too: these wait for the program that runs, and are passed on to it. */
const char *temporary_folder(void);
void temporary_remove(void);        // now: another program takes this process's place

#endif
