/*
 * network.h - what a rank asks of the network in a step, and over which links.
 */
#ifndef NETWORK_H
#define NETWORK_H

#include "predict.h"

/* Calls of one kind over one group of axes, of one rank and step. Bytes are received (send:
 * sent); seconds are those of the calls, whether something hides them or not. */
typedef struct {
    CollKind coll;
    const char *axis;                   // "x", "x z", "data", "stage"
    int64_t size;                       // ranks of a group
    double calls, bytes, seconds;
} NetUse;
typedef VEC(NetUse) NetUses;

/* Of stage r. on_paper, or where the plan is not laid out: from the terms of its prices;
 * else from its instructions. In order of first use. */
NetUses network_uses(const Plan *p, const Pipeline *q, int r, bool on_paper);

/* The links under an axis, by the group that needs the most. */
typedef struct {
    int size, stride;                   // stride: ranks from one member to the next
    int inside, nodes;                  // members of a group in one node; nodes it touches
    int groups;                         // groups of one node that use its ports at once
    int ports;                          // of a node
    double rate, alpha;                 // bytes/s of one link or port; seconds
    bool crosses, spine;
} Links;
Links network_links(const Prices *w, const Mesh *m, int axis);      // axis: MESH_*
const char *network_links_text(const Links *l);     // "inside a node, 300 GB/s a device"

#endif
