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

/* The program's path in PATH, or its own where it has a slash; NULL: there is none. */
const char *child_find(const char *name);

/* A word as sh reads it: in quotes where it needs them. */
const char *shell_word(const char *s);

/* A folder of its own in $TMPDIR, gone with everything in it when the process ends. */
const char *temporary_folder(void);
void temporary_remove(void);        // now: another program takes this process's place

#endif
