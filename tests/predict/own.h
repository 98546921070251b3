/*
 * own.h - a published row as a user would plan it: a model of examples/, a cluster of
 * examples/clusters, the row's layout pinned; what `teracube plan` says of it.
 */
#ifndef OWN_H
#define OWN_H

#include "rows.h"

typedef struct {
    double step_s;                  // our own program's
    double published_s;             // the page's line `published` (residual.h); NAN: none
} Own;

/* Of a row with a measured step; why it cannot be planned, or NULL. */
const char *own_step(const Row *r, Own *out);

#endif
