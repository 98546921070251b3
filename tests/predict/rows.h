/*
 * rows.h - published rows: read from comma-separated files, and what each says as a
 * shape, a layout, the program that ran and the machine.
 */
#ifndef ROWS_H
#define ROWS_H

#include "frame.h"

typedef enum { SEEN_STEP, SEEN_FORWARD, SEEN_BACKWARD, SEEN_ONE, SEEN_PEAK, SEEN_STATIC, SEEN_KEPT,
               SEEN_FULL } Seen;

/* A calibration row: one kernel or one collective. */
typedef struct {
    double bytes;                   // of a kernel that moves them; received in a collective
    int products; double count[2], m[2], n[2], k[2];
    RingKind ring; int ranks;       // ranks 0: no collective
    double copied;                  // moved by copies to and from the collective's buffer
} One;

typedef struct {
    const char *file; int line;
    const char *set;                // what it is counted with: "vtrain_ground_truth_multi"
    const char *sweep;              // rows of one work on one machine
    const char *why_not;            // NULL: shape, layout, how and machine are filled
    const char *config;             // equal for rows of one run
    Dims shape;
    Way layout;
    const Manner *how;
    const char *machine;            // file of examples/clusters
    bool trains;                    // constants are fitted on it
    Seen seen; One one;
    double measured;                // seconds, bytes
    double predicted;
} Row;
typedef VEC(Row) Rows;

/* Appends the rows of one file; exits where it cannot be read. */
void rows_read(Rows *rows, const char *path);

#endif
