/*
 * teracube_kernels.cuh - the kernels of the other templates as program.cu calls them: a
 * rank's context and row orders in, sizes as kernel.h of the compiler has them.
 */
#ifndef TERACUBE_KERNELS_CUH
#define TERACUBE_KERNELS_CUH

/* ---- attention ----------------------------------------------------------------------- */

struct Attention { int heads, kv_heads; bool causal; int64_t window; double scale, softcap; };

inline AttnSpec attention_spec(const Attention &a, int head_size)
{
    AttnSpec s;
    memset(&s, 0, sizeof s);
    s.heads = a.heads;
    s.kv_heads = a.kv_heads;
    s.head_size = head_size;
    s.ordered = a.causal || a.window > 0;
    s.window = (int)a.window;
    s.scale = a.scale;
    s.softcap = a.softcap;
    return s;
}

template <int HEAD, typename S>
inline void attention(Ctx *c, int tiles, Attention a, const S *q, int64_t ld_q, const S *k,
                      int64_t ld_k, const S *v, int64_t ld_v, S *o, int64_t ld_o,
                      real_of<S> *lse, int64_t ld_lse)
{
    AttnSpec s = attention_spec(a, HEAD);
    s.ld_q = ld_q;
    s.ld_k = ld_k;
    s.ld_v = ld_v;
    s.ld_o = ld_o;
    s.ld_lse = ld_lse;
    check(c, "attention", (attn_forward<S, HEAD>(s, c->tiles[tiles], q, k, v, o, lse,
                                                 c->compute)));
}

template <int HEAD, typename S>
inline void attention_backward(Ctx *c, int tiles, Attention a, const S *q, int64_t ld_q,
                               const S *k, int64_t ld_k, const S *v, int64_t ld_v, const S *o,
                               int64_t ld_o, const real_of<S> *lse, int64_t ld_lse,
                               const S *dout, int64_t ld_do, S *dq, int64_t ld_dq,
                               real_of<S> *dk, int64_t ld_dk, real_of<S> *dv, int64_t ld_dv,
                               bool accumulate)
{
    AttnSpec s = attention_spec(a, HEAD);
    s.ld_q = ld_q;
    s.ld_k = ld_k;
    s.ld_v = ld_v;
    s.ld_o = ld_o;
    s.ld_lse = ld_lse;
    s.ld_do = ld_do;
    s.ld_dq = ld_dq;
    s.ld_dk = ld_dk;
    s.ld_dv = ld_dv;
    int64_t rows = c->rank->rows[c->stage->tiles[tiles].q].count;
    check(c, "attention's gradient",
          (attn_backward<S, HEAD>(s, c->tiles[tiles], rows, q, k, v, o, lse, dout, c->scratch, dq,
                                  dk, dv, accumulate, c->compute)));
}

/* ---- rows ------------------------------------------------------------------------------ */

enum Ids { IDS_TOKENS, IDS_POSITIONS };

inline const int *ids_of(const Ctx *c, int map, Ids ids)
{
    return ids == IDS_TOKENS ? c->rows[map].tokens : c->rows[map].pos;
}

/* First global column (of a table: row) that the rank holds. */
inline int64_t first_of(const Ctx *c, int columns)
{
    const RtDeviceColumns *t = &c->rank->columns[columns];
    return t->n > 0 ? t->global[0] : 0;
}

template <typename E, typename Y>
inline void embed(Ctx *c, int map, Ids ids, int columns, const E *table, int64_t ld_table, Y *y,
                  int64_t ld_y, int64_t rows, int64_t cols, int64_t brows)
{
    check(c, "look-up", embed_forward(table, ld_table, ids_of(c, map, ids), first_of(c, columns),
                                      brows, y, ld_y, rows, cols, c->compute));
}

/*
 * What the host sends while it runs ahead of the device lies on one of TRAYS pinned pieces of
 * c->work_bytes; the host waits only for what it sent from there TRAYS calls before. Between
 * take_tray and give_tray copies from it are put on c->compute.
 */
inline char *take_tray(Ctx *c)
{
    int i = (int)(c->trays % TRAYS);
    check(c, "a copy", cudaEventSynchronize(c->tray_free[i]));
    return c->message[0] ? NULL : c->tray[i];
}

inline void give_tray(Ctx *c)
{
    check(c, "an event", cudaEventRecord(c->tray_free[c->trays++ % TRAYS], c->compute));
}

/* n elements (none if there is no room for them) by way of `at` on a tray; what is behind. */
template <typename T> inline char *upload(Ctx *c, T *to, char *at, const T *from, size_t n)
{
    if (!to || !at || !from)
        return at;
    memcpy(at, from, n * sizeof *to);
    check(c, "a copy", cudaMemcpyAsync(to, at, n * sizeof *to, cudaMemcpyHostToDevice, c->compute));
    return at + n * sizeof *to;
}

/* The host sorts the rows by id. */
template <typename S>
inline void embed_gradient(Ctx *c, int map, Ids ids, int columns, const S *dy, int64_t ld_dy,
                           real_of<S> *de, int64_t ld_de, int64_t rows, int64_t cols,
                           int64_t brows)
{
    const RtDeviceRows *r = &c->rank->rows[map];
    const int *id = ids == IDS_TOKENS ? r->tokens : r->pos;
    EmbedOwner *owners = (EmbedOwner *)(void *)take_tray(c);
    int *order = (int *)(void *)(owners + rows), *count = (int *)calloc((size_t)brows + 1, 4);
    EmbedOwner *to = (EmbedOwner *)(void *)c->work;
    if (!owners || !count) {
        fail(c, "gradient of a table", "no memory");
        return;
    }
    int n = embed_sort(id, rows, first_of(c, columns), brows, count, order, owners);
    check(c, "gradient of a table",
          cudaMemcpyAsync(to, owners, (sizeof *owners + sizeof(int)) * (size_t)rows,
                          cudaMemcpyHostToDevice, c->compute));
    give_tray(c);
    check(c, "gradient of a table",
          embed_backward(dy, ld_dy, (const int *)(const void *)(to + rows), to, n, de, ld_de, cols,
                         c->compute));
    free(count);
}

template <typename R>
inline void rope_table(Ctx *c, R *table, int64_t positions, int64_t rotary, double theta)
{
    check(c, "angles", rope_table(table, positions, (int)rotary, theta, c->compute));
}

template <typename X, typename Y>
inline void rope(Ctx *c, int map, const X *x, int64_t ld_x, Y *y, int64_t ld_y,
                 const real_of<X> *table, int64_t rows, int64_t heads, int64_t head_size,
                 int64_t rotary, bool interleaved, bool inverse)
{
    RopeSpec s = { (int)heads, (int)head_size, (int)rotary, interleaved, inverse, ld_x, ld_y };
    check(c, "rope", rope(s, x, y, table, c->rows[map].pos, rows, c->compute));
}

/* ---- loss -------------------------------------------------------------------------------- */

/* Is this rank the one, among those with the same rows, whose loss counts? */
inline bool owns_loss(const Ctx *c, int map)
{
    const RtHeader *h = c->head;
    int axes = c->rank->program->rowmaps[map].axes, id = c->rank->rank;
    int z = id % h->z, y = id / h->z % h->y, x = id / h->z / h->y % h->x;
    return (axes & RT_X || x == 0) && (axes & (RT_YK | RT_YR) || y == 0) &&
           (axes & RT_Z || z == 0);
}

template <typename S>
inline void loss_statistics(Ctx *c, int map, int columns, const S *logits, int64_t ld,
                            real_of<S> *stat, int64_t rows, int64_t cols)
{
    check(c, "loss", ce_stat(logits, ld, rows, cols, c->rows[map].targets, first_of(c, columns),
                             c->head->vocab, stat, c->compute));
}

template <typename S>
inline void loss_gradient(Ctx *c, int map, int columns, S *logits, int64_t ld,
                          const real_of<S> *stat, int64_t rows, int64_t cols)
{
    check(c, "loss", ce(logits, ld, rows, cols, stat, c->rows[map].targets, c->head->ignore,
                        first_of(c, columns), c->head->vocab, c->scale, (double *)(void *)c->work,
                        owns_loss(c, map) ? c->sums : (double *)NULL, c->compute));
}

/* ---- moves --------------------------------------------------------------------------------- */

template <typename R>
inline void merge(Ctx *c, int g, const R *parts, int64_t rows, int nstats, const uint8_t *stat,
                  int64_t values, R *const *to)
{
    check(c, "statistics", merge(parts, c->group_size[g], rows, nstats, stat, to, values,
                                 c->compute));
}

template <typename R>
inline void merge_loss(Ctx *c, int g, const R *parts, R *whole, int64_t rows)
{
    check(c, "statistics", ce_merge(parts, c->group_size[g], rows, whole, c->compute));
}

template <typename R>
inline void column_sums(Ctx *c, const R *partial, R *dst, int64_t n, bool add)
{
    check(c, "column sums", colsum_finish(partial, (int64_t)TERACUBE_WORKERS, n, dst, add,
                                          c->compute));
}

template <typename A, typename B>
inline void copy(Ctx *c, const A *src, int64_t ld_src, B *dst, int64_t ld_dst, int64_t rows,
                 int64_t cols, bool add)
{
    check(c, "copy", move_copy(src, ld_src, dst, ld_dst, rows, cols, add, c->compute));
}

template <typename T> inline void zero(Ctx *c, T *dst, int64_t n, bool keep)
{
    if (!keep)
        check(c, "zeros", move_zero(dst, n, c->compute));
}

/* ---- optimizer ------------------------------------------------------------------------------ */

inline int64_t pieces_of(const RtDeviceRange *r, int n, OptPiece *to)
{
    const int64_t size = sizeof(real);
    int64_t count = 0;
    for (int i = 0; i < n; i++) {
        int64_t p = r[i].master >= 0 ? r[i].master : r[i].params;
        count += opt_pieces(r[i].n, p / size, r[i].params / 2, r[i].grads / size, r[i].m / size,
                            r[i].decay, to ? to + count : NULL);
    }
    return count;
}

inline OptPiece *pieces_on_device(Ctx *c, const RtDeviceRange *r, int n, int64_t *count)
{
    *count = pieces_of(r, n, NULL);
    OptPiece *all = (OptPiece *)malloc(sizeof *all * (size_t)(*count + 1)), *to = NULL;
    pieces_of(r, n, all);
    check(c, "optimizer", cudaMalloc((void **)&to, sizeof *all * (size_t)(*count + 1)));
    if (!c->message[0])
        check(c, "optimizer", cudaMemcpy(to, all, sizeof *all * (size_t)*count,
                                         cudaMemcpyHostToDevice));
    free(all);
    return to;
}

inline void take_optimizer(Ctx *c)
{
    c->updates = pieces_on_device(c, c->rank->updates, c->rank->nupdates, &c->nupdates);
    c->norms = pieces_on_device(c, c->rank->norms, c->rank->nnorms, &c->nnorms);
}

/* Bytes that sums and sorts of the rank, and the tokens of rows, need beside the block. */
inline size_t work_bytes(const Ctx *c)
{
    size_t most = (size_t)pieces_of(c->rank->norms, c->rank->nnorms, NULL) * sizeof(double);
    for (int i = 0; i < c->head->nrowmaps; i++) {
        size_t rows = (size_t)c->rank->rows[i].count + 1;
        size_t need = rows * (sizeof(EmbedOwner) + sizeof(int) + sizeof(double));
        most = need > most ? need : most;
    }
    return most;
}

inline void gradient_norm(Ctx *c)
{
    check(c, "norm", opt_squares(c->norms, c->nnorms, (const real *)(void *)c->block,
                                 (double *)(void *)c->work, c->sums + 1, c->compute));
}

/* The clip factor is the host's: the norm needs all ranks. */
inline void update(Ctx *c)
{
    const RtHeader *h = c->head;
    double t = (double)c->step + 1;
    OptStep s = { c->lr, h->train.beta1, h->train.beta2, h->train.eps, h->train.weight_decay,
                  1 / (1 - pow(h->train.beta1, t)), 1 / (1 - pow(h->train.beta2, t)),
                  h->train.momentum, c->sums + 2 };
    real *block = (real *)(void *)c->block;
    bf16 *copy = h->master_offset >= 0 ? (bf16 *)(void *)c->block : NULL;
    upload(c, c->sums + 2, take_tray(c), &c->clip, 1);
    give_tray(c);
    if (h->optimizer == 0)
        check(c, "optimizer",
              opt_adamw(c->updates, c->nupdates, s, block, block, block,
                        (real *)(void *)(c->block + (h->v_offset - h->m_offset)), copy,
                        c->compute));
    else
        check(c, "optimizer", opt_sgd(c->updates, c->nupdates, s, block, block, block, copy,
                                      c->compute));
}

#endif
