/*
 * sides.h - figures of two sides as a table: what changed, the largest change first, and the
 * names of what did not. Used by diff (two plans) and simulate (before and after).
 */
#ifndef SIDES_H
#define SIDES_H

#include "util.h"

typedef enum { SHOW_TEXT, SHOW_NUMBER, SHOW_SECONDS, SHOW_BYTES } Show;
/* A figure: text, or a value; has: that side has it. A sum stands last. */
typedef struct { const char *name, *text[2]; double value[2]; bool has[2], is_sum; } SideRow;
typedef struct { const char *key, *title; Show show; VEC(SideRow) rows; } SideTable;

SideRow *side_row(SideTable *t, const char *name);      // made where there is none
void     side_text(SideTable *t, int side, const char *name, const char *text);
void     side_put(SideTable *t, int side, const char *name, double value);

bool        side_alike(double a, double b);             // but for rounding
bool        side_same(const SideRow *r);
const char *side_change(Show show, double a, double b); // "+1.2 ms (+3.0 %)"; alike: ""
/* With the columns' headings; nothing where there are no rows. */
void        side_print(const SideTable *t, const char *a, const char *b, const char *change,
                       FILE *f);

#endif
