/*
 * rt_impl.h - what the files of the runtime share; nobody else includes it.
 *
 * Rt is one run: the programs of all stages, what --set changed, data, logs, and its
 * ranks. RtRank is one rank: its stage's program, its block, its tables and its seats
 * in groups. What differs from stage to stage (steps, passes, units, sizes of tables,
 * offsets) is read from RtRank.program and RtRank.head, the rest from Rt.head. RtWorker
 * is one thread of a rank; worker 0 is the rank's own thread. There is no
 * global state but the flag that a signal sets (exec.c).
 *
 * Functions return a status: 0, or one of rt.h's exit statuses after rt_fail
 * kept the message. Letters: p members of a group, n elements, W workers.
 */
#ifndef RT_IMPL_H
#define RT_IMPL_H

#include "random.h"
#include "rt.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { RT_OK, RT_USER = 1, RT_USAGE = 2, RT_BUG = 3, RT_WORLD = 4 };
enum { RT_LINE = 64 };                  // bytes of a cache line

#define RT_TRY(x) do { int try_status = (x); if (try_status) return try_status; } while (0)

typedef struct RtRank RtRank;
typedef struct RtWorker RtWorker;
typedef struct RtData RtData;
typedef struct RtTensors RtTensors;
typedef struct RtMpi RtMpi;             // processes.c
typedef struct RtPost RtPost;           // comm_mpi.c
typedef struct RtRemote RtRemote;       // remote.c

/* ---- waiting (comm_threads.c) -------------------------------------------- */

/*
 * A barrier of n threads. `gen` counts rounds, its top bit says that the run is
 * over. A thread that waits spins a little where every thread has a core, then
 * sleeps on `gen`. seen[i] is the round member i has reached.
 */
typedef struct {
    _Alignas(RT_LINE) atomic_uint gen;
    atomic_int sleepers;
    _Alignas(RT_LINE) atomic_int arrived;
    int n;
    atomic_uint *seen;
    const int *rank;                    // rank of member i; NULL: workers of one rank
} RtBarrier;

/* ---- groups and collectives (comm.c) ------------------------------------- */

/* What a member shows its peers in a collective. */
typedef struct {
    _Alignas(RT_LINE) const void *src;
    void *dst;
    int64_t n;
    int step;
} RtSlot;

typedef struct {
    int n;
    int *rank;                          // members in group order
    RtBarrier barrier;
    RtSlot *slot;
} RtGroup;
typedef struct { RtGroup *group; int me; } RtSeat;

/* Boxes that one rank copies in an all-to-all. */
typedef struct RtBoxes RtBoxes;
struct RtBoxes {
    RtBox *box; int nboxes;
    RtColRun *run; int nruns;
    int64_t src_ld, dst_ld;
    int64_t elements;                   // copied in all
    int step;                           // the first one that uses them
    RtBoxes *next;                      // of the rank
};

/* Messages between two ranks arrive in the order they were sent, per kind. */
enum { RT_MAIL_ACTIVATION, RT_MAIL_GRADIENT, RT_MAIL_KINDS };

/* What goes with a message. */
typedef struct { int64_t bytes; int32_t step, microbatch, slice, pad; } RtLabel;

/* Numbers in memory, and how they are stored: RT_REAL or RT_BF16_STORED. */
typedef struct { void *at; int stored; } RtNumbers;

/*
 * A back end. Every worker of a rank makes every call; the back end says who
 * works. The data may be read by peers until the call returns. What is moved but not
 * summed is stored alike on both sides; sums are made in float or double and rounded once.
 */
typedef struct RtComm {
    const char *name;
    /* Before the ranks start, groups being made; after they have ended. May be NULL. */
    int (*open)(Rt *rt);
    int (*start)(RtRank *r);            // worker 0, the rank's tables being made; may be NULL
    void (*close)(Rt *rt);
    /* src [n] of each member, in group order -> dst [p*n] */
    int (*all_gather)(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n);
    /* part `me` of the sum of all src [p*n] -> dst [n]; add: dst += */
    int (*reduce_scatter)(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                          int64_t n, bool add);
    int (*all_reduce)(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n);
    /* src [n] of member `root` -> dst [n] of each; src and dst do not overlap */
    int (*broadcast)(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                     int64_t n);
    /* the sum of all src [n] -> dst [n] of member `root`; add: dst += */
    int (*reduce)(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                  int64_t n, bool add);
    int (*all_to_all)(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                      const RtBoxes *boxes);
    /* One message to or from rank `peer`, of one of RT_MAIL_KINDS. send may return before
     * it is received; src may change then. */
    int (*send)(RtWorker *w, int peer, int kind, const void *src, int64_t bytes);
    int (*recv)(RtWorker *w, int peer, int kind, void *dst, int64_t bytes);
    /* v [n] summed in member order; worker 0 only, n at most RT_MAX_SUMS */
    int (*sum_doubles)(RtWorker *w, const RtSeat *s, double *v, int n);
    int (*barrier)(RtWorker *w, const RtSeat *s);       // worker 0 only
} RtComm;
enum { RT_MAX_SUMS = 8 };

extern const RtComm rt_comm_null, rt_comm_threads, rt_comm_mpi, rt_comm_remote, rt_comm_trace;

/* ---- tables (tables.c) --------------------------------------------------- */

/* Rows of one RtRowMap on one rank. token, tokens and targets are those of a microbatch. */
typedef struct {
    int64_t count, nruns;
    int32_t *seq, *pos;                 // sequence of the microbatch, position in it
    int32_t last;                       // slice: passes of it fill the rows
    int32_t microbatch;                 // for which they are filled, -1: none
    int64_t *token;
    int32_t *tokens, *targets;          // NULL: no kernel asks for them
    RtRun *runs;                        // sorted by (seq, pos)
} RtRows;

typedef struct { int64_t n; int32_t *global; } RtCols;

/* n elements of parameter `param` from (row, col) on, at flat element `at`. */
typedef struct { int param; int64_t row, col, n, at; } RtSpan;
typedef int (*RtSpanFn)(void *ctx, const RtSpan *span);

/* Flat elements [lo, hi) on which the optimizer has one decay. `unit`: the first one's. */
typedef struct { int64_t lo, hi; int unit; bool decay; } RtRange;

/* What is kept per flat element. */
typedef enum { RT_PARAMS, RT_GRADS, RT_MOMENTS } RtKept;

/* ---- files of tensors ----------------------------------------------------- */

/* What a file holds of each parameter. */
typedef enum { RT_WEIGHTS, RT_MOMENT_1, RT_MOMENT_2 } RtValues;

/* A file that all ranks write together. */
typedef struct {
    char *path, *tmp;                   // its name, and the one it has until it is complete
    const char *what, *hint;            // in errors: "weights"; behind them
    char *metadata;                     // `,"key":"value"` ..; or NULL
    RtValues first, last;
    int fd;                             // of this process; -1: closed
    int64_t *at, end;                   // where tensors begin, where the file ends
    atomic_llong *written;              // elements of each, by this process
    atomic_uint *sum;                   // parts of the checksum of each, by this process
    char *header; size_t header_bytes;  // what the file begins with
} RtOutput;

/* The folder of checkpoints: resume.c. */
enum { RT_KEEP = 2, RT_KEEP_NAME = 40 };
typedef struct {
    bool on;
    char *dir;
    int lock;                           // the folder, locked by this run
    char name[RT_KEEP][RT_KEEP_NAME]; int n;    // that `latest` has, the newest first
    char now[RT_KEEP_NAME], hint[256];  // that is being written; what errors say about others
    RtOutput file[2];
} RtKeep;

/* ---- the run ------------------------------------------------------------- */

typedef struct {
    int64_t step;
    int64_t count;                      // targets that count
    double loss, norm, clip, lr;
    bool stop;                          // a signal came to some rank
    bool evaluate;                      // validation: `step` is the batch, nothing is learned
    bool broken;                        // loss or norm is not finite
} RtNow;

struct RtWorker {
    RtRank *rank;
    int index;
    const RtPass *pass;                 // that is running
    pthread_t thread;
    bool started;
    int32_t flags[16];
};

/* What a rank shows of itself; processes of one machine share the memory where it is. */
typedef struct {
    _Alignas(RT_LINE) atomic_int op;    // index of the running step; -1: between steps
    atomic_int waits_for;               // whose message it waits for, or -1
    atomic_int pid;                     // process that shows it, 0: the only one
    atomic_uint bell; atomic_int sleeps;    // peers ring when there is something to look at
    atomic_llong progress;              // changes when the rank does
} RtSign;

/* The first number that was not finite when a broken step was taken again: fault.c. */
typedef struct { bool found; int pass, step, out; int64_t row, col; double value; } RtSearch;

/* --trace: one call of a step; step -1: a device's whole pass. */
typedef struct { double begin_s, end_s; int step, pass; } RtEvent;

struct RtRank {
    Rt *rt;
    const RtProgram *program;           // of the rank's stage
    const RtHeader *head;               // its head
    int id, stage, d, x, y, z;          // number and coordinates
    char *block;
    size_t block_mapped;
    RtSeat *seat;                       // by group kind
    const int *step_kind;               // group kind of each step, -1: none
    RtSeat world;
    RtRows *rows;                       // by row map
    RtCols *cols;                       // by column table
    RtBoxes **boxes, *made;             // by step, shared by equal ones; all of them
    int32_t *forwards, *backwards;      // by (chunk, microbatch): slices done in this step
    int nchunks;
    int *shard;                         // by unit: which piece of the block it stores
    bool *counts;                       // by unit: this rank's copy is the one that counts
    RtRange *range; int64_t nranges;    // what the optimizer does here
    int64_t *sequence;                  // of the step: sequence numbers in the data
    RtWorker *worker;
    RtBarrier team;
    void *device;                       // context of RtOptions.device
    RtNow now;
    bool searching;                     // the broken step is taken again
    RtSearch search;
    double *loss, *squares;             // [W * 8]
    float *scratch;                     // operands of a product that are stored in 16 bits
    RtEvent *events; int64_t nevents;   // of the step; NULL without --trace
    double received;                    // bytes got from peers
    RtSign *sign;
    RtPost *post;
    _Atomic(RtBarrier *) waits;         // where it waits, or NULL
};

typedef struct {
    int32_t axes, rep;                  // rep = 1 unless one of YK, YR is cut off
    uint64_t stages;                    // with RT_STAGE: which
} RtGroupKind;

typedef struct RtMail RtMail;           // comm_threads.c

/* One BLAS (blas.c). Row-major; c = a b, or c += a b. */
typedef struct RtBlas {
    const char *name;
    char what[96];                      // "OpenBLAS SkylakeX"
    void *cblas, *dnnl;                 // the function; both NULL: our own loops
    pthread_mutex_t *lock;              // not NULL: not to be called by two threads at once
    bool is_double;
    double gflops, peak;                // measured at start, one thread
} RtBlas;

struct Rt {
    const RtProgram *program;           // one per stage; options, parameters: of the first
    const RtHeader *head;               // the first one's, with --set applied
    RtHeader own;
    const RtOptions *options;
    const char *exe;
    int nranks, nworkers;
    int first, nlocal;                  // the ranks of this process: of rank[], which has all
    size_t real;                        // bytes
    int64_t steps;                      // the run ends after this one
    int64_t first_step, first_sequence; // where it begins: steps and sequences done before
    RtRank *rank;
    RtSign *sign;                       // by rank
    RtMpi *mpi;                         // this process is one of several under MPI; else NULL
    RtRemote *remote;                   // one of several whose steps a device runs; else NULL
    RtGroupKind *kind; int nkinds;
    int **step_kind;                    // by stage: group kind of each step, -1
    RtGroup **groups; int ngroups;
    RtGroup *everyone;
    int gpu, ngpus;                     // of the first rank here; that this process sees
    char meeting[RT_MEETING];           // RtDeviceRank.meeting
    const RtComm *comm;
    RtMail *mail; int nmail;
    RtBlas blas;
    pthread_mutex_t blas_lock;
    RtData *data, *validation;
    RtTensors *load, *moments;          // first values; NULL: made from the seed, zero
    char *data_path, *load_path, *log_path, *validate_path;
    char *format, *order;               // words of the data; as the paths, --set may change them
    bool look;                          // RT_LOOK=1, for tests: a good step is looked at too
    int spin;                           // rounds before a waiting thread sleeps
    double timeout_s;
    double started_s;

    atomic_int status;                  // of the first error; also the flag that ends all
    pthread_mutex_t fault_lock;
    char fault[2048];
    RtOutput save;                      // --save
    int save_id;                        // its name ends so in every process
    RtKeep keep;
    FILE *log, *trace; bool trace_any;
};

/* Bytes of a number that is stored so. */
static inline int64_t rt_size(const Rt *rt, int stored)
{
    return stored == RT_BF16_STORED ? 2 : (int64_t)rt->real;
}

static inline bool rt_is_here(const Rt *rt, int rank)
{
    return rank >= rt->first && rank < rt->first + rt->nlocal;
}

/* ---- bf16.c -------------------------------------------------------------- */

void rt_widen(const uint16_t *src, int64_t n, float *dst);
void rt_narrow(const float *src, int64_t n, uint16_t *dst);
void rt_move(const Rt *rt, const void *src, int src_stored, void *dst, int dst_stored,
             int64_t n, bool add);

static inline float rt_float(uint16_t h)
{
    uint32_t w = (uint32_t)h << 16;
    float f;
    memcpy(&f, &w, sizeof f);
    return f;
}

/* What is no number stays none: rounding could carry it to infinity or to zero. */
static inline uint16_t rt_bf16(float f)
{
    uint32_t w;
    memcpy(&w, &f, sizeof w);
    uint32_t rounded = (w + 0x7fff + (w >> 16 & 1)) >> 16, nan = w >> 16 | 0x40;
    return (uint16_t)((w & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* Element i of numbers that are stored so. */
static inline double rt_get(const Rt *rt, int stored, const void *base, int64_t i)
{
    if (stored == RT_BF16_STORED)
        return (double)rt_float(((const uint16_t *)base)[i]);
    return rt->real == sizeof(float) ? (double)((const float *)base)[i]
                                     : ((const double *)base)[i];
}

static inline void rt_put(const Rt *rt, int stored, void *base, int64_t i, double v)
{
    if (stored == RT_BF16_STORED)
        ((uint16_t *)base)[i] = rt_bf16((float)v);
    else if (rt->real == sizeof(float))
        ((float *)base)[i] = (float)v;
    else
        ((double *)base)[i] = v;
}

/* ---- log.c --------------------------------------------------------------- */

/* Keeps the first message, ends the run everywhere. Returns `status`. */
int    rt_fail(Rt *rt, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void   rt_note(const Rt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int    rt_log_open(Rt *rt);
void   rt_log_head(Rt *rt);
int    rt_log_step(RtRank *r, double step_s);
int    rt_log_validation(Rt *rt, int64_t step, double loss);
int    rt_log_close(Rt *rt);
void   rt_trace_step(Rt *rt, int64_t step);
double rt_now_s(void);
void  *rt_alloc(size_t count, size_t size);     // zeroed; ends the process when there is none
const char *rt_text(const RtProgram *p, int32_t offset);   // -1: ""
const char *rt_who(const RtRank *r, char out[48]);          // "rank 3 (stage 1)"
const char *rt_size_words(double v, const char *unit, char out[32]);    // "1.21 GB"

/* ---- tables.c ------------------------------------------------------------ */

int  rt_axis_coordinate(const RtRank *r, int axes, int rep, int64_t *size);
int  rt_tables_make(RtRank *r);
void rt_tables_free(RtRank *r);
RtRank rt_place(Rt *rt, int id);        // a rank's coordinates and program, nothing else
void rt_rows_make(const RtRank *r, const RtRowMap *map, RtRows *out);
int  rt_cols_make(const RtRank *r, const RtColumns *columns, RtCols *out);
int64_t rt_rows_first(const RtRank *r, int axes, int slice, int64_t *n);
/* Spans of the rank's shard of `unit` within flat elements [lo, hi). */
int  rt_spans(const RtRank *r, int unit, int64_t lo, int64_t hi, RtSpanFn fn, void *ctx);
/* Flat elements of the unit that this replica owns; with zero = 0, replica 0 all. */
void rt_owned(const RtRank *r, int unit, int64_t *lo, int64_t *hi);
/* Flat elements of the unit that are kept here: all, or those that are owned. */
void rt_held(const RtRank *r, int unit, RtKept what, int64_t *lo, int64_t *hi);
/* Flat element e of the unit is kept as element e - rt_shift(..). */
int64_t rt_shift(const RtRank *r, int unit, RtKept what);
int  rt_boxes_make(RtRank *r, int istep);
/* What the rank gives in an all-to-all, `peer` being who takes it; in the order of the group.
 * Free *out with rt_boxes_clear. */
int  rt_boxes_given(RtRank *r, int istep, RtBoxes *out);
void rt_boxes_clear(RtBoxes *b);

/* ---- comm.c, comm_threads.c ---------------------------------------------- */

int  rt_groups_make(Rt *rt);
void rt_groups_free(Rt *rt);
/* The rank's seat in the group of those axes; NULL: no step has such a group. */
const RtSeat *rt_seat_of(const RtRank *r, int axes, int rep, uint64_t stages);
int  rt_barrier_make(RtBarrier *b, int n, const int *rank);
void rt_barrier_free(RtBarrier *b);
int  rt_wait(RtRank *r, RtBarrier *b, int me, const char *what);
int  rt_team(RtWorker *w);              // all workers of the rank meet
/* "rank 5 waited 3 s in all_gather 'X' (gpt2.tcube:12:19, step 4) for rank 2", and notes on
 * those it waits for. `worker` >= 0: a thread waits for that worker of its own rank. */
void rt_waiting(const RtRank *r, int worker, const char *what, double seconds, char *out,
                size_t room);
void rt_doing(const RtRank *r, char *out, size_t room);     // "rank 5 is in product 'X' (..)"
uint64_t rt_moves(const RtRank *r);     // changes when a rank moves that r waits for
/* out [n] (+)= sum of elements first + i at `src` of the group's slots, in member order. */
void rt_sum_members(const RtWorker *w, const RtGroup *g, int stored, int64_t first, int64_t n,
                    RtNumbers out, bool add);
/* The label of a message is not that of the one that is expected. */
int  rt_wrong_message(const RtWorker *w, int from, const RtLabel *sent, int64_t bytes);
void rt_wake_all(Rt *rt);
void rt_split(int64_t n, int64_t parts, int64_t i, int64_t grain, int64_t *lo, int64_t *hi);
int  rt_all_gather(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n);
int  rt_reduce_scatter(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst, int64_t n,
                       bool add);
int  rt_all_reduce(RtWorker *w, const RtSeat *s, RtNumbers dst, int64_t n);
int  rt_broadcast(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst,
                  int64_t n);
int  rt_reduce(RtWorker *w, const RtSeat *s, int root, RtNumbers src, RtNumbers dst, int64_t n,
               bool add);
int  rt_all_to_all(RtWorker *w, const RtSeat *s, RtNumbers src, RtNumbers dst,
                   const RtBoxes *boxes);
int  rt_sum_doubles(RtWorker *w, const RtSeat *s, double *v, int n);
int  rt_barrier(RtWorker *w, const RtSeat *s);
int  rt_agree(RtWorker *w);             // all ranks meet; an error of one is one of all
/* To and from the rank of stage `stage` with the same other coordinates. */
int  rt_mail_kind(const RtPass *pass);
int  rt_send(RtWorker *w, int stage, const void *src, int64_t bytes);
int  rt_recv(RtWorker *w, int stage, void *dst, int64_t bytes);

/* ---- outputs.c ----------------------------------------------------------- */

/* Is there something that is no "log", "trace", "profile" or "file of weights"? */
bool rt_is_foreign(const char *path, const char *kind);
int  rt_outputs_spare(Rt *rt);          // an error, where the run would write over it

/* ---- agree.c ------------------------------------------------------------- */

/* Errors, where processes have other files, or other settings. All call the one when options
 * are read, the other behind everything that a setting may change. */
int  rt_same_files(Rt *rt);
int  rt_same_run(Rt *rt);

/* ---- processes.c, comm_mpi.c --------------------------------------------- */

bool rt_launched(void);                 // by mpirun or the like
int  rt_launched_rank(void);
int  rt_mpi_join(Rt *rt);               // sets Rt.mpi, .first, .nlocal, .sign
void rt_mpi_place_fault(Rt *rt);
bool rt_mpi_tells(Rt *rt);              // is it this process that tells the error?
void rt_mpi_leave(Rt *rt);
int  rt_mpi_agree(Rt *rt, RtRank *r);
int  rt_mpi_share(Rt *rt, const void *mine, void *all, size_t bytes);      // all by rank
void rt_mpi_watch(Rt *rt);
const char *rt_mpi_host(const Rt *rt, int i);
double rt_mpi_clock(const Rt *rt, int rank, double started_s);
bool rt_mpi_has_cores(const Rt *rt);
/* Messages under way; `box` names what they are made of for rt_mpi_wait, or -1. Received
 * ones have box -1. */
int  rt_mpi_send(Rt *rt, const void *p, int64_t bytes, int peer, int tag, int box);
int  rt_mpi_recv(Rt *rt, void *p, int64_t bytes, int peer, int tag);
int  rt_mpi_wait(Rt *rt, RtRank *r, int box, const char *what);
int  rt_mpi_bring_events(RtWorker *w);
int  rt_mpi_bring(RtWorker *w, const void *p, size_t bytes);
int  rt_mpi_take(RtWorker *w, int from, void *p, size_t bytes);

/* ---- remote.c ------------------------------------------------------------ */

int  rt_remote_join(Rt *rt);            // sets Rt.remote, .first, .nlocal
int  rt_remote_share(Rt *rt, const void *mine, void *all, size_t bytes);   // all by rank
int  rt_remote_agree(Rt *rt, RtRank *r);
bool rt_remote_tells(Rt *rt);
void rt_remote_watch(Rt *rt);
bool rt_remote_stuck(const Rt *rt, double seconds);     // too long over to wait for threads
void rt_remote_leave(Rt *rt);
int  rt_remote_bring_events(RtWorker *w);
int  rt_remote_bring(RtWorker *w, const void *p, size_t bytes);
int  rt_remote_take(RtWorker *w, int from, void *p, size_t bytes);
const char *rt_remote_host(const Rt *rt, int i);
bool rt_remote_together(const Rt *rt, int a, int b);    // two ranks on one machine
const char *rt_remote_host_of(const Rt *rt, int rank, int *local);     // its rank there

/* ---- ranks that are processes, of either kind (comm.c) -------------------- */

static inline bool rt_processes(const Rt *rt) { return rt->mpi || rt->remote; }
int  rt_processes_agree(Rt *rt, RtRank *r);     // r: NULL before the ranks live
/* Worker 0 of each rank but 0 brings bytes, that of rank 0 takes them from one after another. */
int  rt_bring(RtWorker *w, const void *p, size_t bytes);
int  rt_take(RtWorker *w, int from, void *p, size_t bytes);

/* ---- exec.c -------------------------------------------------------------- */

int  rt_exec(Rt *rt);                   // starts the ranks, trains, joins them
int  rt_signalled(void);                // the number of a signal that came, 0
int  rt_begin_step(RtRank *r, int64_t step, bool evaluate);     // worker 0 calls it
int  rt_passes(RtWorker *w, unsigned kinds);        // those of the stage whose bit is set

/* ---- validate.c, fault.c -------------------------------------------------- */

int  rt_validate(RtWorker *w, int64_t step, bool *stop);
int  rt_look(RtWorker *w, int istep);
int  rt_find_fault(RtWorker *w);

/* ---- device.c: steps that a device runs (RtOptions.device) ---------------- */

int64_t rt_persistent_bytes(const RtRank *r);   // of the block, from its start
int  rt_devices_choose(Rt *rt);                 // before there are ranks
int  rt_devices_meet(Rt *rt);                   // all having chosen
bool rt_device_where(RtRank *r);                // r->sign: what it waits in; false: not open yet
int  rt_device_events(RtRank *r);               // of the step, for the trace
int  rt_device_open(RtRank *r);                 // its context; the block is the host's copy
void rt_device_close(RtRank *r);
int  rt_device_push(RtRank *r);                 // parameters and moments to the device
int  rt_device_pull(RtRank *r);                 // the persistent part back
int  rt_device_pass(RtWorker *w, const RtPass *pass);
int  rt_device_sums(RtRank *r);
/* As RtDevice.find: of what stands at byte `at` of the block; its value. -1 after an error too. */
int64_t rt_device_find(RtRank *r, const RtOut *o, int64_t at, double *value);

/* ---- steps.c ------------------------------------------------------------- */

int  rt_step(RtWorker *w, int istep);   // every worker of the rank calls it
int64_t rt_gemm_scratch(const RtProgram *p);

/* ---- blas.c -------------------------------------------------------------- */

int  rt_blas_open(Rt *rt);
void rt_gemm(const RtBlas *blas, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
             const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,
             bool add);

/* ---- data.c -------------------------------------------------------------- */

int     rt_data_open(Rt *rt);
int     rt_data_spare(Rt *rt, const char *option, const char *path);
void    rt_data_close(Rt *rt);
int64_t rt_data_tokens(const RtData *data);
int64_t rt_data_token(const RtData *data, int64_t i);
int     rt_validation_open(Rt *rt);
int64_t rt_data_position(const Rt *rt, int64_t step);
int     rt_data_step(RtRank *r, int64_t step);      // which sequences the step has
int     rt_data_fill(RtRank *r, const RtPass *pass);    // tokens and targets of its rows
int64_t rt_data_count(RtRank *r);                   // targets of the replica that count

/* ---- optim.c ------------------------------------------------------------- */

int  rt_set(Rt *rt, const char *key_value);         // "train.lr=1e-3"
int  rt_ranges_make(RtRank *r);

/* ---- tensors.c ----------------------------------------------------------- */

typedef enum { RT_F32, RT_F64, RT_F16, RT_BF16, RT_OTHER } RtDtype;
typedef struct {
    char *name;
    RtDtype dtype; char dtype_word[8];
    int ndim; int64_t shape[8];
    int64_t begin, end;                 // bytes in the file
    uint32_t crc;                       // as it was written, where the file has checksums
} RtTensor;
struct RtTensors {
    char *file;
    int fd;
    RtTensor *tensor; int n;
    char **word; int nwords;            // metadata: key, value, key, ..
    RtValues first, last;
    RtTensor **of;                      // by value and parameter
    bool has_crc;
    atomic_uint *sum;                   // as `of`: parts of the checksums of what was read here
};

int    rt_tensors_read(Rt *rt, const char *file, RtTensors *out);  // header only
void   rt_tensors_free(RtTensors *t);
size_t rt_dtype_bytes(RtDtype dtype);
void   rt_dtype_decode(RtDtype dtype, const void *src, int64_t n, double *dst);
int    rt_param_shape(const RtParam *p, int64_t shape[2]);         // in files; gives ndim
const char *rt_tensors_word(const RtTensors *t, const char *key);
char  *rt_tensors_header(const Rt *rt, RtOutput *o, size_t *bytes);
/* Reads or writes all of n bytes; 0, or -1 with errno (0: the file ends). */
int    rt_read_at(int fd, void *p, size_t n, int64_t at);
int    rt_write_at(int fd, const void *p, size_t n, int64_t at);

/* ---- checksum.c ---------------------------------------------------------- */

/* CRC-32C without its inversions: of what `crc` is of and n bytes more; n zero bytes more. */
uint32_t rt_crc(uint32_t crc, const void *p, size_t n);
uint32_t rt_crc_behind(uint32_t crc, uint64_t n);
uint32_t rt_crc_table(uint32_t crc, const void *p, size_t n);   // rt_crc by a table, for tests
/* The checksum of n bytes: `sum`, exclusive or, of rt_crc(0, part) with what follows as zeros. */
uint32_t rt_crc_end(uint32_t sum, uint64_t n);
int  rt_crc_gather(RtWorker *w, atomic_uint *sum, int n);   // on rank 0 those of all processes
void rt_crc_room(FILE *f, int ntensors);    // the metadata's "crc32c":"..", zeros yet
/* Into a header's text, all tensors being written; n: its bytes, `bytes`: the tensors'. */
void rt_crc_fill(char *text, size_t n, const atomic_uint *sum, const int64_t *bytes,
                 int ntensors);
int  rt_crc_check_header(Rt *rt, const char *file, char *text, size_t n);
int  rt_crc_read(Rt *rt, RtTensors *t);     // what the metadata have
int  rt_crc_judge(RtWorker *w, RtTensors *t);   // all tensors having been read

/* ---- checkpoint.c -------------------------------------------------------- */

RtValues rt_last_values(const Rt *rt);
const char *rt_values_prefix(const Rt *rt, RtValues what);
int  rt_tensors_match(Rt *rt, RtTensors *ts, RtValues first, RtValues last, bool strict);
int  rt_write_outputs(RtWorker *w, RtOutput *o, int n);
void rt_output_forget(Rt *rt, RtOutput *o);
int  rt_sync_folder(const char *file);              // that holds it; 0, or -1 with errno
int  rt_load_open(Rt *rt);
void rt_load_close(Rt *rt);
int  rt_init_params(RtWorker *w);                   // first values, or those of the file
int  rt_save_probe(Rt *rt);
int  rt_save(RtWorker *w);                          // every worker of every rank calls it
void rt_save_forget(Rt *rt);                        // removes what an error left

/* ---- resume.c ------------------------------------------------------------ */

int  rt_checkpoint_open(Rt *rt);
int  rt_checkpoint(RtWorker *w, int64_t step);
void rt_checkpoint_close(Rt *rt);
int  rt_resume_open(Rt *rt);
void rt_resume_data(const Rt *rt);

#endif
