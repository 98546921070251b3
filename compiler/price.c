/*
 * price.c - what single things cost in seconds (price.h).
 *
 * The unit is a second of wall time on one rank. Parameters are the device and
 * cluster sections; without them this machine is assumed (see assumed_machine).
 *
 *   product    blocks + bytes stored / (memory * stream), at least all bytes, on a device
 *              of `units` processors that each make `tile` x `tile` results at a time; many
 *              small products in one call: blocks + all bytes
 *                w = ceil(m/tile) ceil(n/tile) / units           waves of blocks
 *                blocks = ((1-wave) w + wave ceil(w) + tail) * a wave's FLOP
 *                         * (k + deep)/k / (matrix * top)
 *              (/ odd where a row is no multiple of 16 bytes); on any other device
 *              max(2mnk / (matrix * top * k/(k + deep) * mn/(mn + tile)), bytes / ..)
 *   attention  FLOP of the (query, key) pairs / (matrix * flash), at least the bytes
 *   rows       bytes that enter or leave a run of row operators / (memory * stream)
 *   ring       call + steps * alpha + bytes received / rate of the group
 *   transfer   call + alpha + bytes / rate
 *
 * The shares (top, stream, flash, ..) are fitted by kind of device: `reached` below.
 *
 * On a profiled machine products come from the measured grid, bytes from the measured
 * streams, attention from the measured turn where heads are of the same size, rings from
 * the measured calls. Ranks of this machine are priced as if each had its cores; the
 * simulation shares them out (simulate.c).
 *
 * Rings: all-gather and reduce-scatter take p-1 steps and (p-1)/p of the whole; an
 * all-reduce is both. Groups inside a node have its link, of which small groups use less where
 * devices are wired in pairs; one that crosses nodes has its node's ports, shared with the
 * groups of the node's other devices, and steps of both kinds. An all-reduce across nodes is a
 * tree where that has less to wait for: 2 ceil(log2 nodes) steps between nodes, and the bytes
 * of a ring (NCCL's double tree: Jeaugey, 2019).
 *
 * Known lies: every rank is as fast as the next; congestion between groups of different
 * axes is left out; a partial sum is reduced at the size of a stored number.
 */
#include "price.h"

/*
 * TUNING: shares of the data sheet that are reached, by architecture. tests/predict/README.md
 * says from which published rows each was fitted, and how well it does on others.
 */
static const Reach reached[] = {
    { .arch = "sm_70", .top = 0.8, .deep = 2, .tail = 0.02, .wave = 0.6, .odd = 0.43,
      .units = 80, .tile = 128, .stream = 0.88, .flash = 0.35, .flash_back = 0.25,
      .call = 50e-6, .link = { 0.27, 0.5, 0.85 }, .port = 0.9, .send = 0.85 },
    { .arch = "sm_80", .top = 0.755, .deep = 3, .tail = 0.01, .wave = 0.55, .odd = 0.43,
      .units = 108, .tile = 128, .stream = 0.92, .flash = 0.68, .flash_back = 0.23,
      .call = 37e-6, .link = { 0.66, 0.74, 0.76 }, .port = 0.75, .send = 0.9 },
    { .arch = "sm_90", .top = 0.70, .deep = 5, .tail = 0.02, .wave = 0.5, .odd = 0.4,
      .units = 132, .tile = 128, .stream = 0.85, .flash = 0.4, .flash_back = 0.26,
      .call = 25e-6, .link = { 0.7, 0.75, 0.8 }, .port = 0.8, .send = 0.85 },
    { .arch = "sm_100", .top = 0.70, .deep = 5, .tail = 0.02, .wave = 0.5, .odd = 0.4,
      .units = 148, .tile = 128, .stream = 0.85, .flash = 0.4, .flash_back = 0.26,
      .call = 25e-6, .link = { 0.7, 0.75, 0.8 }, .port = 0.8, .send = 0.85 },
    /* devices that are no GPU of the table: cores, mostly */
    { .top = 0.76, .deep = 100, .stream = 0.8, .flash = 0.35, .flash_back = 0.35,
      .link = { 1, 1, 1 }, .port = 1, .send = 1 },
};
/* TUNING: results at which a product of any other device reaches half its speed, as a share
 * of the matrix rate: one wave of tiles over all units. */
static const double TILE_SHARE = 1 / 2.5e8;
/* Backward forms the scores again and makes three products of two: 5 to 2. */
static const double ATTENTION_BACK = 2.5;
/* TUNING: to start a kernel, where the device section does not say. */
static const double LAUNCH_GPU = 5e-6, LAUNCH_CPU = 1e-6;

/* ---- the machine ------------------------------------------------------------------ */

static double num_or(Num n, double otherwise) { return n.set ? n.v : otherwise; }

/* TUNING: a core of this machine, until it is profiled: 60 GFLOP/s in fp32 products, 5
 * GB/s of memory. Ranks take turns on the cores, and memcpy is the link. */
static Prices assumed_machine(const Plan *p)
{
    int workers = p->is.workers > 1 ? p->is.workers : 1;
    double half = p->is.precision == PREC_FP64 ? 0.5 : 1;
    return (Prices){ .matrix = 60e9 * workers * half, .vector = 8e9 * workers * half,
                     .memory = 5e9 * workers, .launch = LAUNCH_CPU, .tile = 256, .link = 5e9,
                     .link_alpha = 2e-6, .port = 5e9, .port_alpha = 2e-6, .ports = 1,
                     .per_node = 1 << 20, .nodes = 1, .assumed = true,
                     .cores = machine_cores(), .workers = workers,
                     .reach = *price_reach(NULL) };
}

/* What was measured takes the place of the data sheet. */
static void use_profile(Prices *w, const Profile *f, const Plan *p)
{
    int ranks = plan_ranks(p), here = ranks < w->per_node ? ranks : w->per_node;
    double alpha, rate;
    w->workers = w->workers > 1 ? w->workers : 1;
    w->at_work = (double)here * w->workers < f->cores ? (double)here * w->workers : f->cores;
    w->profile = f;
    w->ranks = here;
    w->serial = true;
    w->assumed = false;
    w->matrix = w->workers * profile_peak(f, p->is.precision == PREC_FP64, w->at_work);
    w->memory = w->workers * f->streams.at[f->streams.n - 1].rate[w->at_work > 1];
    w->launch = f->step[w->workers > 1];
    if (profile_ring(f, RING_SEND, 2, 2, &alpha, &rate)) {
        w->link_alpha = alpha;
        w->link = rate;
    }
}

/* A GPU's: all of it is one rank's. The data sheet's matrix rate stays what mfu is measured by. */
static void use_device(Prices *w, const Device *d, int precision)
{
    const Profile *f = d->rates;
    double alpha, rate;
    w->profile = f;
    w->at_work = 1;
    w->memory = f->streams.at[f->streams.n - 1].rate[0];
    w->launch = f->step[0];
    if (!d->matrix.set)
        w->matrix = profile_peak(f, precision, 1);
    w->reach.call = 0;                  // is in what was measured
    for (int nodes = 1; nodes <= 2; nodes++)
        if (profile_group(f, RING_SEND, 2, 1, nodes, 1, &alpha, &rate)) {
            *(nodes == 1 ? &w->link_alpha : &w->port_alpha) = alpha;
            *(nodes == 1 ? &w->link : &w->port) = rate;
        }
    w->reach.send = w->reach.port = 1;
    w->reach.link[0] = w->reach.link[1] = w->reach.link[2] = 1;
}

/* Of profile.h, by the plan's. */
static int profiled_precision(const Profile *f, int bytes)
{
    return bytes > 4 ? 1 : bytes < 4 && f->is_device ? 2 : 0;   // cores store 16 bits, no more
}

const Reach *price_reach(const char *arch)
{
    const Reach *r = reached;
    size_t n = arch ? strlen(arch) : 0;
    while (r->arch && !(n > 0 && strcmp(r->arch, arch) == 0))
        r++;
    for (const Reach *g = reached; r->arch == NULL && n > 1 && g->arch; g++)
        if (strlen(g->arch) == n && strncmp(g->arch, arch, n - 1) == 0)
            return g;               // of one generation: all but the last digit
    return r;
}

Prices price_list(const Plan *p)
{
    const Config *c = p->config;
    Prices w = { .workers = 1 };
    if (!c->has_cluster || c->cluster.device < 0) {
        w = assumed_machine(p);
        if (c->here)
            use_profile(&w, c->here, p);
        return w;
    }
    const Cluster *k = &c->cluster;
    const Device *d = &c->devices.at[k->device];
    w.vector = num_or(d->vector, 10e12);
    double matrix = num_or(d->matrix, 8 * w.vector);
    switch (p->is.precision) {
    case PREC_FP64: w.matrix = num_or(d->matrix_fp64, w.vector / 2); break;
    case PREC_FP32: w.matrix = num_or(d->matrix_fp32, w.vector); break;
    case PREC_FP8: w.matrix = num_or(d->matrix_fp8, matrix); break;
    default: w.matrix = matrix;
    }
    w.memory = num_or(d->bandwidth, 1e12);
    w.launch = num_or(d->launch, arch_is_gpu(d->arch.v) ? LAUNCH_GPU
                                                                                : LAUNCH_CPU);
    w.reach = *price_reach(d->arch.v);
    w.tile = w.matrix * TILE_SHARE;
    w.nodes = (int)num_or(k->nodes, 1);
    w.per_node = (int)num_or(k->per_node, 1);
    w.port = num_or(k->network_rate, num_or(k->link_rate, 25e9));
    w.port_alpha = num_or(k->network_latency, 10e-6);
    w.link = num_or(k->link_rate, w.port);
    w.link_alpha = num_or(k->link_latency, 5e-6);
    w.ports = (int)num_or(k->ports, 1);
    if (k->spine_nodes.set) {
        w.spine_nodes = (int)k->spine_nodes.v;
        w.spine = num_or(k->spine_rate, w.port);
        w.spine_alpha = num_or(k->spine_latency, w.port_alpha);
    }
    if (d->rates && d->rates->is_device)
        use_device(&w, d, profiled_precision(d->rates, p->is.precision == PREC_FP64 ? 8 :
                                             p->is.precision == PREC_FP32 ? 4 : 2));
    else if (d->rates)
        use_profile(&w, d->rates, p);
    return w;
}

/* ---- the mesh ------------------------------------------------------------------------ */

Mesh price_mesh_of(const Plan *p, int data, int stages, int x, int y, int z)
{
    static const char *const usual[] = { "stage", "data", "x", "y", "z" };
    const PlanSpec *s = &p->config->plan;
    Mesh m = { .size = { stages, data, x, y, z }, .ranks = 1 };
    for (int i = MESH_AXES; i-- > 0;) {
        const char *a = s->ranks.n == MESH_AXES ? s->ranks.at[i] : usual[i];
        int axis = 0;
        while (*usual[axis] != *a)
            axis++;
        m.stride[axis] = m.ranks;
        m.ranks *= m.size[axis];
    }
    return m;
}

Mesh price_mesh(const Plan *p)
{
    const Choices *is = &p->is;
    return price_mesh_of(p, is->data, is->stages, is->x, is->y, is->z);
}

/* Of a device's links, what a ring of n devices in a node uses: where devices are wired in
 * pairs, small groups leave links idle. */
static double link_rate(const Prices *w, int n)
{
    return w->link * w->reach.link[n <= 2 ? 0 : n <= 4 ? 1 : 2];
}

/* As measured on the cluster; false: nothing like it was. */
static bool measured_group(const Prices *w, int stride, int here, Group *g)
{
    const Profile *f = w->profile;
    int steps = g->size - 1, sharing = w->per_node / here;
    sharing = sharing > 0 ? sharing : 1;
    if (f == NULL || g->size < 2 ||
        !profile_group(f, RING_GATHER, g->size, stride, g->nodes, sharing, &g->alpha, &g->rate))
        return false;
    if (profile_group(f, RING_SUM, g->size, stride, g->nodes, sharing, &g->sum_alpha,
                      &g->sum_rate))
        g->sum_alpha /= steps;
    if (profile_group(f, RING_ALL, g->size, stride, g->nodes, sharing, &g->all_alpha,
                      &g->all_rate))
        g->all_alpha /= 2 * steps;
    g->alpha /= steps;
    g->tree = HUGE_VAL;
    return true;
}

/* Members of the group of rank 0, and how the nodes lie under them. */
Group price_group(const Prices *w, const Mesh *m, Axes axes)
{
    static const Axes of[MESH_AXES] = { 0, AX_DATA, AX_X, AX_YK, AX_Z };
    Group g = { .size = 1, .nodes = 1, .alpha = w->link_alpha, .call = w->reach.call };
    int reach = 0, here = 0;            // farthest member; members in the first node
    int stride = m->ranks;              // from a member to the next
    for (int i = 0; i < MESH_AXES; i++)
        if (axes & of[i]) {
            stride = m->size[i] > 1 && m->stride[i] < stride ? m->stride[i] : stride;
            g.size *= m->size[i];
            reach += (m->size[i] - 1) * m->stride[i];
        }
    g.rate = link_rate(w, g.size);
    if (reach < w->per_node) {
        double steps = g.size > 1 ? g.size - 1 : 1;
        if (measured_group(w, stride, g.size, &g))
            return g;
        if (w->profile && g.size > 1) {
            if (profile_ring(w->profile, RING_GATHER, g.size, w->ranks, &g.alpha, &g.rate))
                g.alpha /= steps;
            if (profile_ring(w->profile, RING_SUM, g.size, w->ranks, &g.sum_alpha, &g.sum_rate))
                g.sum_alpha /= steps;
        }
        return g;
    }
    for (int rank = 0; rank < w->per_node && rank <= reach; rank++) {
        bool in = true;
        for (int i = 0; i < MESH_AXES; i++)
            in &= rank / m->stride[i] % m->size[i] == 0 || (axes & of[i]);
        here += in;
    }
    if (here < 1)
        here = 1;
    double groups = (double)w->per_node / here;
    double rate = w->ports * w->port * w->reach.port / groups, link = link_rate(w, here);
    bool spine = w->spine_nodes && reach >= w->spine_nodes * w->per_node;
    if (spine && w->spine * w->ports * w->reach.port / groups < rate)
        rate = w->spine * w->ports * w->reach.port / groups;
    g.crosses = true;
    g.nodes = g.size / here > 1 ? g.size / here : 2;
    g.rate = rate < link ? rate : link;
    double far = spine ? w->spine_alpha : w->port_alpha;
    g.alpha = w->link_alpha + (far - w->link_alpha) * g.nodes / g.size;
    g.tree = (here - 1) * w->link_alpha + ceil(log2(g.nodes)) * far;
    measured_group(w, stride, here, &g);
    return g;
}

/* ---- prices ------------------------------------------------------------------------ */

/* Workers of a rank cut the larger side of a result. */
static double measured_product(const Prices *w, ProductForm form, double m, double n, double k,
                               double e)
{
    *(m >= n ? &m : &n) /= w->workers;
    return profile_product(w->profile, profiled_precision(w->profile, (int)e), form, m, n, k,
                           w->at_work);
}

/* Seconds of `count` products on a device that makes its results in blocks, as many at a
 * time as it has units. A wave that is not full costs as much as one; libraries choose
 * smaller blocks to fill it, so that only a part of that is lost. Grows with m, n and k, and
 * never less for the whole than for its parts together. */
static double blocks_s(const Prices *w, double count, double m, double n, double k)
{
    const Reach *r = &w->reach;
    double side = r->tile, waves = count * ceil(m / side) * ceil(n / side) / r->units;
    double used = (1 - r->wave) * waves + r->wave * ceil(waves) + r->tail;
    return used * r->units * side * side * 2 * (k + r->deep) / (w->matrix * r->top);
}

/* Multiples of 16 bytes let matrix units load whole vectors. */
static bool aligned(double n, double e) { return fmod(n * e, 16) == 0; }

double price_products(const Prices *w, double count, double m, double n, double k, double e)
{
    double bytes_s = price_bytes(w, count * e * (m * k + k * n + m * n));
    if (w->reach.units) {
        /* matrices that are in memory already have sides of whole numbers */
        bool odd = (n == floor(n) && !aligned(n, e)) || (k == floor(k) && !aligned(k, e));
        double blocks = blocks_s(w, count, m, n, k) / (odd ? w->reach.odd : 1);
        if (count > 1)              // short sums of many small matrices hide nothing
            return blocks + bytes_s;
        return fmax(blocks + price_bytes(w, e * m * n), bytes_s);
    }
    double speed = w->matrix * w->reach.top * k / (k + w->reach.deep) *
                   (m * n / (m * n + w->tile));
    return fmax(count * 2 * m * n * k / speed, bytes_s);
}

double price_product(const Prices *w, ProductForm form, double m, double n, double k, double e,
                     double more_bytes)
{
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    double bytes_s = price_bytes(w, e * (m * k + k * n + m * n) + more_bytes);
    double flop_s = w->profile ? measured_product(w, form, m, n, k, e)
                               : price_products(w, 1, m, n, k, e);
    return flop_s > bytes_s ? flop_s : bytes_s;
}

double price_bytes(const Prices *w, double bytes)
{
    return w->profile ? profile_stream(w->profile, bytes / w->workers, w->at_work)
                      : bytes / (w->memory * w->reach.stream);
}

double price_collective(const Prices *w, const Group *g, RingKind kind, double calls,
                        double bytes)
{
    (void)w;
    double steps = calls * (g->size - 1) * (kind == RING_ALL ? 2 : 1), start = calls * g->call;
    double wait = steps * g->alpha;
    if (g->size <= 1)
        return 0;
    if (kind == RING_ALL && g->crosses && calls * 2 * g->tree < wait)
        wait = calls * 2 * g->tree;
    if (kind == RING_ALL && g->all_rate > 0)
        return start + steps * g->all_alpha + bytes / g->all_rate;
    double moves = start + wait + bytes / g->rate;
    double sums = g->sum_rate > 0 ? start + steps * g->sum_alpha + bytes / g->sum_rate : moves;
    return kind == RING_GATHER ? moves : kind == RING_SUM ? sums : (moves + sums) / 2;
}

double price_pairs(const Attention *a, double b, double l, double c, double L)
{
    double pairs;
    if (!a->causal)
        pairs = l * L;
    else
        pairs = l * c + l * (l + 1) / 2;
    if (a->causal && a->window > 0 && c + l > (double)a->window) {
        double w = (double)a->window, full = c + l - (c > w ? c : w);   // rows that see w keys
        double rest = l - full;                                          // rows c+1 .. c+rest
        pairs = full * w + rest * c + rest * (rest + 1) / 2;
    }
    return b * pairs;
}

/* From the measured turn; rows in order: the last rank of x, z sees the most keys. */
static double measured_attention(const Prices *w, const Attention *a, const TurnRate *turn,
                                 bool backward, bool balanced, double ways, double b, double l,
                                 double c)
{
    double parts = a->gather ? ways : 1, rows = l / parts;
    double before = balanced ? (l - rows) / 2 : l - rows;
    return b * a->heads * parts / w->workers * profile_attention(turn, backward, rows, c + before);
}

static const TurnRate *turn_of(const Prices *w, const Attention *a, double e)
{
    bool plain = w->profile && a->causal && a->window == 0;
    return plain ? profile_turn(w->profile, e > 4, (int)a->hd, a->per_kv) : NULL;
}

double price_attention(const Prices *w, const Mesh *m, const Attention *a, bool backward,
                       bool balanced, double e, double b, double l, double c, double L)
{
    const TurnRate *turn = turn_of(w, a, e);
    double ways = (double)m->size[MESH_X] * m->size[MESH_Z];
    if (turn)
        return measured_attention(w, a, turn, backward, balanced, ways, b, l, c);
    double flop = price_pairs(a, b, l, c, L) * a->pair_flop;
    if (a->gather && a->causal && !balanced)
        /* rows in order: the last rank of x, z sees the most keys */
        flop = b * l * (c + l - l / ways / 2) * a->pair_flop;
    double keys = a->causal && a->window && c + l > (double)a->window ? (double)a->window + l
                                                                      : c + l;
    double share = backward ? w->reach.flash_back : w->reach.flash;
    double s = flop / (w->matrix * share);
    double bytes_s = price_bytes(w, b * (l * a->query_bytes + keys * a->key_bytes));
    return (s > bytes_s ? s : bytes_s) * (backward ? ATTENTION_BACK : 1);
}

double price_transfer(const Prices *w, const Mesh *m, int r, bool forward, double bytes)
{
    int stride = m->stride[MESH_STAGE], P = m->size[MESH_STAGE];
    int from = forward ? (r + P - 1) % P : (r + 1) % P;
    int a = from * stride / w->per_node, b = r * stride / w->per_node;
    if (P == 1)
        return 0;
    if (a == b)
        return w->reach.call + w->link_alpha + bytes / link_rate(w, 2);
    int sending = 0;                    // devices of the sender's node that send elsewhere
    for (int rank = a * w->per_node; rank < (a + 1) * w->per_node && rank < m->ranks; rank++) {
        int stage = rank / stride % P, to = forward ? (stage + 1) % P : (stage + P - 1) % P;
        bool ends = forward ? stage == P - 1 : stage == 0;
        if (!ends && (rank + (to - stage) * stride) / w->per_node != a)
            sending++;
    }
    double most = w->port * w->reach.send;      // one stream uses one port
    double rate = w->ports * most / (sending > 0 ? sending : 1);
    return w->reach.call + w->port_alpha + bytes / (rate < most ? rate : most);
}
