/*
 * profile.h - measured rates of a machine, and the text file they are kept in.
 *
 *   profile.c        `teracube profile`: measures this machine (runtime/measure.h)
 *   profile_file.c   writes, reads and checks the file; which machine this one is
 *   profile_rate.c   what cost.c asks: a figure between the measured ones
 *
 * `teracube profile CLUSTER -o DIR` emits a program that measures a cluster (runtime/survey.h)
 * and writes such a file itself.
 *
 * The file is text, one `key value...` a line: the first line is `teracube-profile 1`,
 * the last one a checksum of all bytes before it. Seconds, bytes, FLOP/s; `alone` means
 * one thread, `busy` as many as there are cores, each with work of its own.
 */
#ifndef PROFILE_H
#define PROFILE_H

#include "ast.h"

enum { PROFILE_VERSION = 1, PROFILE_SIDE = 16 };

/* Products by form: C = A B, A Bt, At B (forward, gradient of X, gradient of W). */
typedef enum { FORM_NN, FORM_NT, FORM_TN, FORMS } ProductForm;
extern const char *const form_word[FORMS];

/* FLOP/s of one thread over the grid m x n x k; axes ascend. flops: alone, busy; the
 * point (im, in, ik) stands at (im*nn + in)*nk + ik. */
typedef struct {
    int nm, nn, nk;                             // 0: not measured
    double m[PROFILE_SIDE], n[PROFILE_SIDE], k[PROFILE_SIDE];
    double *flops[2];
} ProductGrid;

/* Streams through memory: bytes that a call reads and writes, rate of one thread. */
typedef struct { double bytes, rate[2]; } StreamRate;

enum { PROFILE_PRECISIONS = 3 };                // fp32, fp64, bf16

/* What a collective call of a group costs a rank: alpha + bytes received / rate. Groups of
 * `group` that fill `ranks` ranks, all at once; with more ranks than cores they take turns.
 * RING_ALL: all-reduce. RING_SEND: a message from one stage to the next. */
typedef enum { RING_GATHER, RING_SUM, RING_ALL, RING_SEND, RINGS } RingKind;
extern const char *const ring_word[RINGS];
typedef struct { double bytes, seconds; } RingPoint;
typedef struct {
    RingKind kind; int group, ranks;
    /* of a cluster (runtime/survey.h), else 0: members `stride` ranks apart, in `nodes` nodes;
     * groups of a node at work at once */
    int stride, nodes, sharing;
    VEC(RingPoint) points;
    double alpha, rate, mean, worst;            // the fit; its errors, relative
} RingRate;

/*
 * One turn of a model on one core: attention (l queries after c keys, one sequence, all
 * heads) and the products of the turn, fp32 or fp64. The fit is of what context adds,
 *     t_ctx(l, c) = t(l, c) - t(l, 0) = a0 + a1 l + a2 c + a3 l c,
 * forward and backward; products cancel in it. Errors are of t, relative.
 */
typedef struct { double l, c, attention[2], products[2]; } TurnPoint;
typedef struct {
    const char *name;                           // of the attention
    int heads, kv_heads, hd; bool is_double;
    VEC(TurnPoint) points;
    double fit[2][4], mean[2], worst[2];
} TurnRate;

typedef struct Profile {
    const char *cpu, *isa, *blas;
    bool is_device;                             // a GPU: `cpu` is its name, isa NULL, cores 1
    const char *cluster; int nodes, per_node, ports;    // that was measured; NULL: one machine
    int cores;
    double memory, load;                        // bytes; load average when measured
    double step[2];                             // seconds to start a step: 1 worker, all cores
    ProductGrid product[PROFILE_PRECISIONS][FORMS];
    VEC(StreamRate) streams;                    // by bytes
    VEC(RingRate) rings;
    VEC(TurnRate) turns;
} Profile;

/* ---- profile_file.c -------------------------------------------------------------- */

/* This machine, as a profile names it: cpu, isa, cores; the rest is empty. */
Profile     profile_here(void);
int         machine_cores(void);                // that this process may use
void        profile_text(const Profile *p, Text *out);
/* NULL: cannot be read; *why says so in words ("is cut short: ..."). */
Profile    *profile_parse(const char *text, size_t n, const char **why);
/* The file at `path`; what is wrong is reported at `loc` [profile-valid]. NULL then. */
Profile    *profile_read(const char *path, Loc loc);
bool        profile_same(const Profile *a, const Profile *b);   // of the same kind of machine?
/* Is it of this machine? If not, that is reported at `loc` [profile-machine]. */
bool        profile_is_here(const Profile *p, Loc loc);

/* ---- profile_rate.c -------------------------------------------------------------- */

/* Fit of seconds = alpha + bytes / rate to the points, by relative error. */
void   ring_fit(RingRate *r);
void   turn_fit(TurnRate *t);
/* Seconds of one thread, `threads` being at work on the machine. */
double profile_product(const Profile *p, int precision, ProductForm form, double m, double n,
                       double k, double threads);
double profile_stream(const Profile *p, double bytes, double threads);
/* Best measured rate of products, one thread. */
double profile_peak(const Profile *p, int precision, double threads);
/* Seconds of a core and core-bytes/s: what of a call is left for a rank with a core. */
bool   profile_ring(const Profile *p, RingKind kind, int group, int ranks, double *alpha,
                    double *rate);
/* A call in a group of a cluster, by the measured one that is most like it. */
bool   profile_group(const Profile *p, RingKind kind, int size, int stride, int nodes,
                     int sharing, double *alpha, double *rate);
/* Attention of one head and sequence, l queries after c; NULL: none fits. */
const TurnRate *profile_turn(const Profile *p, bool is_double, int hd, double group);
double profile_attention(const TurnRate *t, bool backward, double l, double c);

#endif
