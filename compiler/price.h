/*
 * price.h - what single things cost in seconds: matrix products, attention, kernels that
 * move bytes, collectives, transfers. Pure functions of a price list and of sizes; what a
 * model has of each is shape.c's and cost.c's matter.
 *
 * Seconds are wall time of one rank; bytes are those that a rank receives (collectives,
 * transfers) or moves through its memory. No function allocates or reports errors.
 */
#ifndef PRICE_H
#define PRICE_H

#include "plan.h"
#include "profile.h"

/* What share of its data sheet a kind of device reaches: the dozen constants that are fitted
 * (tests/predict). Pure numbers unless said. */
typedef struct {
    const char *arch;               // "sm_80"; NULL: any other
    double top, deep;               // products: best share of the matrix rate; depth at half of it
    double tail, wave;              // of a wave lost in each product; weight of whole waves
    double odd;                     // left of it where rows are no multiple of 16 bytes
    int units, tile;                // multiprocessors; side of the block of results each makes
    double stream;                  // of the memory's rate, by kernels that move bytes
    double flash, flash_back;       // of the matrix rate, by fused attention either way
    double call;                    // seconds of a collective besides its steps
    double link[3];                 // of a device's links, by groups of 2, of 3 and 4, of more
    double port, send;              // of a port between nodes, by rings and by transfers
} Reach;

/* The machine, as priced. Rates per second, of one device unless said. */
typedef struct {
    double matrix, vector;          // FLOP/s of the plan's precision; of plain arithmetic
    double memory;                  // bytes/s
    double launch;                  // seconds to start a kernel
    double tile;                    // results of a product at half speed, where units is 0
    Reach reach;
    double link, link_alpha;        // inside a node: bytes/s of one device, seconds
    double port, port_alpha;        // between nodes: bytes/s of one port
    int ports, per_node, nodes;
    int spine_nodes; double spine, spine_alpha;     // spine_nodes 0: none
    bool assumed;                   // no cluster was given: opinions, not a data sheet
    /* a machine whose devices are cores; the rates above are those of a rank's workers,
     * each on a core of its own */
    int cores;                      // this machine's: ranks take turns on them; 0: no limit
    int workers;                    // threads of one rank, else 1
    bool serial;                    // starting a kernel takes the rank's own time
    const Profile *profile;         // measured; NULL: the rates above alone
    double at_work; int ranks;      // threads that compute at once; ranks in one node
} Prices;

/* Sizes of the axes of a mesh, and how far apart neighbours on them are in ranks. */
enum { MESH_STAGE, MESH_DATA, MESH_X, MESH_Y, MESH_Z, MESH_AXES };
typedef struct { int size[MESH_AXES], stride[MESH_AXES], ranks; } Mesh;

/* Axes that collectives run over, as seen by the network. sum_*, all_*: of those that
 * scatter sums, of all-reduces, where they were measured (else 0: as the others). */
typedef struct {
    int size, nodes; bool crosses;  // nodes: that it has members in
    double rate, alpha, sum_rate, sum_alpha, all_rate, all_alpha;
    double call, tree;              // seconds of a call; of a tree's way up, across nodes
} Group;

/* Attention of a rank, one pass each way. */
typedef struct {
    bool gather;                    // K and V of a rank's rows come from all of x, z
    bool causal; int64_t window;
    double pair_flop;               // FLOP of a pair (query, key)
    double heads, hd, per_kv;       // heads of a sequence that a rank has (a share of
                                    // them, where it has a share of the rows); queries of a key
    double query_bytes, key_bytes;  // moved, per query token and per key
} Attention;

Prices price_list(const Plan *p);
/* Constants of an architecture, else of its generation (sm_86: sm_80), else of any device. */
const Reach *price_reach(const char *arch);
/* The mesh of a plan; of other sizes with the ranks in the plan's order. */
Mesh   price_mesh(const Plan *p);
Mesh   price_mesh_of(const Plan *p, int data, int stages, int x, int y, int z);
Group  price_group(const Prices *w, const Mesh *m, Axes axes);

/* A product of [m, k] and [k, n] with numbers of e bytes. */
double price_product(const Prices *w, ProductForm form, double m, double n, double k, double e,
                     double more_bytes);
/* `count` of them in one call, as attention with stored scores has; never profiled. */
double price_products(const Prices *w, double count, double m, double n, double k, double e);
double price_bytes(const Prices *w, double bytes);      // a kernel that moves them
/* Calls of one kind, in which a rank receives `bytes` together (as a ring would). */
double price_collective(const Prices *w, const Group *g, RingKind kind, double calls,
                        double bytes);
/* (query, key) pairs of l queries after c tokens, b sequences of L tokens. */
double price_pairs(const Attention *a, double b, double l, double c, double L);
double price_attention(const Prices *w, const Mesh *m, const Attention *a, bool backward,
                       bool balanced, double e, double b, double l, double c, double L);
/* A rank of stage r receives `bytes` from the stage before it (after it, for gradients). */
double price_transfer(const Prices *w, const Mesh *m, int r, bool forward, double bytes);

#endif
