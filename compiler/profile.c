/*
 * profile.c - `teracube profile [FILE...] -o F`: measures this machine and writes its
 * rates; see profile.h for the file and runtime/measure.h for what is run.
 *
 * A model adds one turn of its first repeat: its attention by the kernels that a run
 * would use and its products, for slices of l tokens after c tokens of context on one
 * core while the others do the same.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "measure.h"
#include "predict.h"
#include "profile.h"

/* How much is measured. Sides of products ascend; 0 ends a list. */
typedef struct {
    double point_s;                     // on each point of a grid
    double tokens[PROFILE_SIDE], widths[PROFILE_SIDE];
    bool fp64;
    double list_s;                      // on each list of equal steps
    int64_t ring_times;                 // from one size of a collective to the next
    double slices, contexts;            // of a turn: parts of the sequence
} Effort;

/* TUNING: half a minute and 6 s on two cores at 75 GFLOP/s, 2025-11. */
static const Effort full = {
    .point_s = 8e-3, .tokens = { 1, 8, 32, 128, 512, 2048 }, .widths = { 32, 128, 512, 2048 },
    .fp64 = true, .list_s = 0.02, .ring_times = 8, .slices = 32, .contexts = 8,
};
static const Effort quick = {
    .point_s = 3e-3, .tokens = { 1, 16, 128, 512 }, .widths = { 64, 256, 1024 },
    .list_s = 5e-3, .ring_times = 64, .slices = 8, .contexts = 4,
};

static int side_of(const double *list)
{
    int n = 0;
    while (n < PROFILE_SIDE && list[n] > 0)
        n++;
    return n;
}

/* ---- products, memory, ranks ------------------------------------------------------ */

static void measure_grid(RtMeasure *m, const Effort *e, ProductForm form, int cores,
                         ProductGrid *g)
{
    bool sums_tokens = form == FORM_TN;
    const double *wide = e->widths, *tall = e->tokens;
    g->nm = side_of(sums_tokens ? wide : tall);
    g->nn = side_of(wide);
    g->nk = side_of(sums_tokens ? tall : wide);
    memcpy(g->m, sums_tokens ? wide : tall, sizeof g->m);
    memcpy(g->n, wide, sizeof g->n);
    memcpy(g->k, sums_tokens ? tall : wide, sizeof g->k);
    int size = g->nm * g->nn * g->nk;
    for (int busy = 0; busy < 2; busy++) {
        g->flops[busy] = NEWN(double, size);
        for (int i = 0; i < size; i++) {
            double a = g->m[i / g->nk / g->nn], b = g->n[i / g->nk % g->nn], c = g->k[i % g->nk];
            double s = rt_measure_product(m, form == FORM_TN, form == FORM_NT, (int64_t)a,
                                          (int64_t)b, (int64_t)c, busy ? cores : 1, e->point_s);
            g->flops[busy][i] = 2 * a * b * c / s;
        }
    }
}

static void measure_products(const Effort *e, Profile *p)
{
    for (int d = 0; d < 1 + e->fp64; d++) {
        RtMeasure *m = rt_measure_open(d == 1);
        if (m == NULL)
            exit(EXIT_WORLD);
        for (int form = 0; form < FORMS; form++)
            if (d == 0 || form == FORM_NN)
                measure_grid(m, e, (ProductForm)form, p->cores, &p->product[d][form]);
        if (d == 0)
            p->blas = str(rt_measure_blas(m));
        rt_measure_close(m);
    }
}

static void measure_streams(const Effort *e, Profile *p)
{
    for (int64_t bytes = 64 << 10; bytes <= 256 << 20; bytes *= 8) {
        StreamRate s = { (double)bytes, { 0 } };
        for (int busy = 0; busy < 2; busy++)
            s.rate[busy] = (double)bytes /
                           rt_measure_stream(bytes, busy ? p->cores : 1, 2 * e->point_s);
        vec_add(&p->streams, s);
    }
}

static void measure_ring(const Effort *e, RingKind kind, int group, int ranks, Profile *p)
{
    static const RtStepKind step[] = { RT_ALL_GATHER, RT_REDUCE_SCATTER, RT_ALL_REDUCE };
    RingRate r = { .kind = kind, .group = group, .ranks = ranks };
    for (int64_t bytes = 1 << 10; bytes <= 4 << 20; bytes *= e->ring_times) {
        double s = kind == RING_SEND ? rt_measure_transfer(bytes, e->list_s)
                 : rt_measure_collective(step[kind], group, ranks, bytes, e->list_s);
        if (s <= 0)
            exit(EXIT_WORLD);           // the runtime has said why
        vec_add(&r.points, ((RingPoint){ (double)bytes, s }));
    }
    ring_fit(&r);
    vec_add(&p->rings, r);
}

static void measure_ranks(const Effort *e, Profile *p)
{
    int most = p->cores < 4 ? 4 : p->cores < 16 ? p->cores : 16;
    p->step[0] = rt_measure_step(1, e->list_s);
    p->step[1] = rt_measure_step(p->cores, e->list_s);
    if (p->step[0] <= 0 || p->step[1] <= 0)
        exit(EXIT_WORLD);
    measure_ring(e, RING_SEND, 2, 2, p);
    for (int kind = 0; kind < RING_SEND; kind++)
        for (int group = 2; group <= most; group *= 2)
            for (int ranks = group; ranks <= most; ranks *= 2)
                measure_ring(e, (RingKind)kind, group, ranks, p);
}

/* ---- a turn of the model ----------------------------------------------------------- */

/* Rows of attention's operands on one thread: q, k, v, o, lse, do, dq, dk, dv. */
enum { OPERANDS = 9 };
typedef struct { char *at[OPERANDS]; } Rows;

typedef struct {
    RtKernelFn fn[2];
    int64_t items[2];
    int side;
    RtRun q, k;
    Rows *rows;                         // by thread
} Attend;

static void attend(void *arg, int thread)
{
    const Attend *a = arg;
    static const int forward[] = { 0, 1, 2, 3, 4 }, back[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
    const int *order = a->side ? back : forward;
    RtCall call = { .runs_q = &a->q.row, .runs_k = &a->k.row, .nruns_q = 1, .nruns_k = 1,
                    .nworkers = 1 };
    for (int i = 0; i < (a->side ? 9 : 5); i++)
        call.arg[i] = a->rows[thread].at[order[i]];
    a->fn[a->side](&call, 0, a->items[a->side]);
}

static char *random_rows(int64_t n, size_t real)
{
    char *p = aligned_alloc(64, ((size_t)n * real + 127) / 64 * 64);
    uint32_t seed = 12345;
    if (p == NULL)
        die(EXIT_WORLD, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        double v = (double)(seed >> 8) / (1 << 23) - 1;
        if (real == sizeof(double))
            ((double *)(void *)p)[i] = v;
        else
            ((float *)(void *)p)[i] = (float)v;
    }
    return p;
}

static const Op *first_attention(const Plan *p)
{
    for (int i = 0; i < p->nforward; i++)
        if (p->ops.at[i].kind == OP_ATTN && p->ops.at[i].repeat == 0 && p->ops.at[i].turn == 0)
            return &p->ops.at[i];
    return NULL;
}

static KernelSpec attention_spec(const Op *o, bool back, bool is_double, int64_t width)
{
    int64_t hd = width / o->heads, kv = hd * o->kv_heads;
    KernelSpec s = { .kind = back ? K_ATTN_DX : K_ATTN, .name = back ? "turn_bwd" : "turn",
                     .key = back ? "turn_bwd" : "turn", .is_double = is_double,
                     .heads = o->heads, .kv_heads = o->kv_heads, .hd = hd, .nseq = 1,
                     .causal = true, .scale = o->scale, .softcap = o->softcap };
    const int64_t ld[OPERANDS] = { width, kv, kv, width, o->heads, width, width, kv, kv };
    memcpy(s.ld, ld, sizeof ld);
    return s;
}

/* TUNING: a point of a turn works on so many heads that it has about this many FLOP; more
 * tell nothing new, and large models are measured in seconds. */
static const double POINT_FLOP = 3e8;

/* Heads that are measured: whole groups of query heads, at least one. */
static int64_t heads_measured(const Op *o, double l, double c, double hd)
{
    double flop = 14 * l * (c + l / 2) * hd;            // of a head, forward and backward
    int64_t group = o->heads / o->kv_heads, n = (int64_t)(POINT_FLOP / flop) / group;
    n = n < 1 ? 1 : n;
    return n * group < o->heads ? n * group : o->heads;
}

typedef struct { RtMeasure *blas; const Effort *e; const Plan *plan; Profile *p; } Turn;

/* Forward and backward products of the turn for l tokens; what is large is priced by the
 * grid that was measured. */
static void turn_products(const Turn *t, bool is_double, double l, double s[2])
{
    static const bool trans[FORMS][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 } };
    s[0] = s[1] = 0;
    for (int i = 0; i < t->plan->nforward; i++) {
        const Op *o = &t->plan->ops.at[i];
        if (o->kind != OP_LINEAR || o->repeat != 0 || o->turn != 0)
            continue;
        double in = (double)t->plan->tensors.at[o->in[0]].width;
        double out = (double)t->plan->tensors.at[o->out[0]].width;
        double size[FORMS][3] = { { l, out, in }, { l, in, out }, { in, out, l } };
        for (int form = 0; form < FORMS; form++) {
            const double *q = size[form];
            s[form > 0] += 2 * l * in * out > POINT_FLOP
                ? profile_product(t->p, is_double, (ProductForm)form, q[0], q[1], q[2],
                                  t->p->cores)
                : rt_measure_product(t->blas, trans[form][0], trans[form][1], (int64_t)q[0],
                                     (int64_t)q[1], (int64_t)q[2], t->p->cores, t->e->point_s);
        }
    }
}

static void turn_points(const Turn *t, const Op *o, Attend *a, TurnRate *out)
{
    double L = (double)t->plan->is.sequence, products[2];
    double step = L / t->e->contexts, least = L / t->e->slices < 1 ? 1 : L / t->e->slices;
    for (double l = floor(least); l <= L; l *= 2) {
        turn_products(t, out->is_double, l, products);
        for (double c = 0; c + l <= L; c = floor(c + (step < 1 ? 1 : step))) {
            TurnPoint q = { l, c, { 0 }, { products[0], products[1] } };
            int64_t heads = heads_measured(o, l, c, out->hd);
            a->q = (RtRun){ 0, (int32_t)l, 0, (int32_t)c };
            a->k = (RtRun){ 0, (int32_t)(c + l), 0, 0 };
            a->items[0] = heads;
            a->items[1] = heads * o->kv_heads / o->heads;
            for (a->side = 0; a->side < 2; a->side++)
                q.attention[a->side] = rt_measure_calls(attend, a, t->p->cores, t->e->point_s) *
                                       (double)o->heads / (double)heads;
            vec_add(&out->points, q);
        }
    }
}

enum { LEAST_SEQUENCE = 8 };            // below it there is nothing to fit

static void measure_turn(const Effort *e, const Plan *plan, Profile *p)
{
    const Op *o = first_attention(plan);
    int64_t L = plan->is.sequence;
    if (o == NULL || !o->causal || (o->window > 0 && o->window < L)) {
        fprintf(stderr, "note: no turn is measured: the first repeat of %s has no causal "
                "attention without a window\n", plan->model_name);
        return;
    }
    if (L < LEAST_SEQUENCE) {
        fprintf(stderr, "note: no turn is measured: `sequence` says how long slices can be, and it "
                "is %" PRId64 "\n", L);
        return;
    }
    bool is_double = plan->is.precision == PREC_FP64;
    size_t real = is_double ? sizeof(double) : sizeof(float);
    int64_t width = plan->tensors.at[o->in[0]].width, kv = width / o->heads * o->kv_heads;
    TurnRate out = { .name = o->name, .heads = o->heads, .kv_heads = o->kv_heads,
                     .hd = (int)(width / o->heads), .is_double = is_double };
    KernelSpec spec[2] = { attention_spec(o, false, is_double, width),
                           attention_spec(o, true, is_double, width) };
    Kernels *kernels = llvm_load("profile FILE")->make(spec, 2, plan->model_name, NULL);
    const RtKernelFn *fn = jit_kernels(kernels);
    Attend a = { .fn = { fn[0], fn[1] }, .rows = NEWN(Rows, p->cores) };
    const int64_t columns[OPERANDS] = { width, kv, kv, width, o->heads, width, width, kv, kv };
    for (int i = 0; i < p->cores; i++)
        for (int k = 0; k < OPERANDS; k++)
            a.rows[i].at[k] = random_rows(L * columns[k], real);
    Turn t = { rt_measure_open(is_double), e, plan, p };
    if (t.blas == NULL)
        exit(EXIT_WORLD);
    turn_points(&t, o, &a, &out);
    turn_fit(&out);
    vec_add(&p->turns, out);
    rt_measure_close(t.blas);
    for (int i = 0; i < p->cores; i++)
        for (int k = 0; k < OPERANDS; k++)
            free(a.rows[i].at[k]);
    llvm_load("")->free(kernels);
}

/* ---- for people -------------------------------------------------------------------- */

static void print_products(const Profile *p, bool is_double, int form)
{
    static const char *const what[FORMS] = { "X W, forward", "dY Wt, gradient of X",
                                             "Xt dY, gradient of W" };
    const ProductGrid *g = &p->product[is_double][form];
    bool sums = form == FORM_TN;
    if (g->nm == 0)
        return;
    printf("\n%s products, GFLOP/s of a core, all cores busy (alone): %s\n  tokens", is_double
           ? "fp64" : "fp32", what[form]);
    for (int w = 0; w < g->nn; w++)
        printf(" %16s", str_fmt("%g x %g", g->n[w], g->n[w]));
    printf("\n");
    for (int i = 0; i < (sums ? g->nk : g->nm); i++) {
        printf("  %6g", sums ? g->k[i] : g->m[i]);
        for (int w = 0; w < g->nn; w++) {
            int at = sums ? (w * g->nn + w) * g->nk + i : (i * g->nn + w) * g->nk + w;
            printf(" %16s", str_fmt("%.1f (%.1f)", g->flops[1][at] * 1e-9,
                                    g->flops[0][at] * 1e-9));
        }
        printf("\n");
    }
}

static void print_turn(const TurnRate *t)
{
    printf("\na turn on one core, forward + backward: attention %s, %s of %d (%d for keys), and "
           "the turn's products\n  %6s", t->name, plural(t->heads, "head"), t->hd, t->kv_heads,
           "l \\ c");
    for (int i = 0; i < t->points.n && t->points.at[i].l == t->points.at[0].l; i++)
        printf(" %9g", t->points.at[i].c);
    for (int i = 0; i < t->points.n; i++) {
        const TurnPoint *q = &t->points.at[i];
        if (i == 0 || q->l != t->points.at[i - 1].l)
            printf("\n  %6g", q->l);
        printf(" %9s", str_seconds(q->attention[0] + q->attention[1] + q->products[0] +
                                   q->products[1]));
    }
    printf("\n");
    for (int side = 0; side < 2; side++) {
        const double *a = t->fit[side];
        printf("  %-8s t_ctx = %.3g + %.3g l + %.3g c + %.3g l c; error of t: mean %.1f %%, worst "
               "%.1f %%\n", side ? "backward" : "forward", a[0], a[1], a[2], a[3],
               100 * t->mean[side], 100 * t->worst[side]);
    }
}

static void print_profile(const Profile *p)
{
    printf("%s, %s, %s; %s; load %.2f when measured\n", p->cpu, plural(p->cores, "core"),
           p->isa, p->blas, p->load);
    for (int d = 0; d < 2; d++)
        for (int form = 0; form < FORMS; form++)
            print_products(p, d, form);
    printf("\nmemory, GB/s of a core\n  %10s %8s %8s\n", "bytes", "alone", "busy");
    for (int i = 0; i < p->streams.n; i++)
        printf("  %10s %8.1f %8.1f\n", str_bytes(p->streams.at[i].bytes),
               p->streams.at[i].rate[0] * 1e-9, p->streams.at[i].rate[1] * 1e-9);
    printf("\nto start a step: %s, with %s %s\n", str_seconds(p->step[0]),
           plural(p->cores, "worker"), str_seconds(p->step[1]));
    printf("\ncollectives of ranks as threads: latency + bytes received / rate\n");
    for (int i = 0; i < p->rings.n; i++) {
        const RingRate *r = &p->rings.at[i];
        printf("  %-14s groups of %d in %d ranks  %9s  %6.2f GB/s   error: mean %.0f %%, worst "
               "%.0f %%\n", ring_word[r->kind], r->group, r->ranks, str_seconds(r->alpha),
               r->rate * 1e-9, 100 * r->mean, 100 * r->worst);
    }
    for (int i = 0; i < p->turns.n; i++)
        print_turn(&p->turns.at[i]);
}

/* ---- the command ------------------------------------------------------------------- */

static const char *fresh_name(const char *path)
{
    return str_fmt("%s.new.%ld", path, (long)getpid());
}

/* What cannot be written is better known before a minute has passed. */
static void try_output(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        die(EXIT_WORLD, "could not write %s: it is no regular file", path);
    FILE *f = fopen(fresh_name(path), "wb");
    if (f == NULL)
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(errno));
    fclose(f);
    unlink(fresh_name(path));
}

static void write_profile(const Profile *p, const char *path)
{
    const char *fresh = fresh_name(path);
    Text t = { 0 };
    profile_text(p, &t);
    FILE *f = fopen(fresh, "wb");
    if (f == NULL)
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(errno));
    bool fine = fwrite(t.at, 1, t.n, f) == t.n;
    int why = errno;
    fine = fclose(f) == 0 && fine;
    if (!fine || rename(fresh, path) != 0) {
        why = fine || why == 0 ? errno : why;
        unlink(fresh);
        die(EXIT_WORLD, "could not write %s: %s", path, strerror(why));
    }
}

int command_profile(Compile *c)
{
    const Effort *e = c->o->is_quick ? &quick : &full;
    if (c->o->target)
        return profile_emit(c);
    if (c->o->output == NULL)
        die(EXIT_USAGE, "profile needs -o F, the file to write");
    if (c->config->has_cluster && c->config->ast->model_name == NULL)
        die(EXIT_USAGE, "profile -o F measures this machine; cluster %s is measured by a program: "
            "--target cuda (or cpu) -o DIR", c->config->cluster.name);
    use_this_machine(c);
    if (c->o->in.nfiles > 0 && !compile_to(c, "autodiff"))
        return EXIT_INPUT;
    try_output(c->o->output);
    Profile p = profile_here();
    double load[1] = { 0 };
    if (getloadavg(load, 1) != 1)
        load[0] = 0;
    p.load = load[0];
    p.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    measure_products(e, &p);
    measure_streams(e, &p);
    measure_ranks(e, &p);
    if (c->o->in.nfiles > 0)
        measure_turn(e, c->plan, &p);
    write_profile(&p, c->o->output);
    if (!c->o->quiet)
        print_profile(&p);
    if (p.load > 0.5)
        fprintf(stderr, "note: other programs were at work (load %.2f on %s); where they "
                "were, rates are too low\n", p.load, plural(p.cores, "core"));
    return EXIT_FINE;
}
