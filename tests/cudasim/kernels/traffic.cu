/*
 * traffic.cu - bytes of device memory that each kernel of templates/cuda moves, counted by the
 * check build (cudasim.h), beside the least possible: every operand read once, every result
 * written once. For attention the published algorithm's count (FlashAttention-2: Dao,
 * 2023, algorithms 1 and 2) with the same tiles: forward, q and o once, k and v once for each
 * tile of queries that sees them; backward, k, v and their gradients once, q and do once for
 * each tile of keys, dq read and written by each of them in float.
 *
 *     tests/cudasim/kernels/run.sh check; TRAFFIC=1 prints the table
 */
#include "kernels.h"
#include "attention.cuh"
#include "cudasim.h"
#include "embed.cuh"
#include "loss.cuh"
#include "moves.cuh"
#include "optimizer.cuh"
#include "rope.cuh"

static uint64_t before;
static bool counts;

static uint64_t moved()
{
    uint64_t read, written;
    OK(cudaDeviceSynchronize());
    counts = cudasim_traffic(&read, &written);
    return read + written;
}

/* Since the last call of begin(). `most`: what moved / least may be. */
static void begin() { before = moved(); }
static void measured(const char *name, double least, double most)
{
    double all = (double)(moved() - before), ratio = all / least;
    if (!counts)
        return;
    if (getenv("TRAFFIC"))
        printf("%-34s %12.0f %12.0f %9.3f\n", name, all, least, ratio);
    if (ratio > most && test_failures++ < 20)
        fprintf(stderr, "%s moves %.0f bytes, %.3f times the least of %.0f\n", name, all, ratio,
                least);
}

/* ---- attention ------------------------------------------------------------------------- */

/* The plain form of the gradient takes operands in pieces, and some of them twice. */
template <typename S, int D>
static void attention(const char *type, bool causal, double most_back)
{
    enum { T = 320, HEADS = 2, TILE = ATTN_TILE, N = T / TILE };
    typedef real_of<S> R;
    Matrix<S> q(T, HEADS * D, HEADS * D), k(T, HEADS * D, HEADS * D), v(T, HEADS * D, HEADS * D);
    Matrix<S> o(T, HEADS * D, HEADS * D), go(T, HEADS * D, HEADS * D), dq(T, HEADS * D, HEADS * D);
    Matrix<R> dk(T, HEADS * D, HEADS * D), dv(T, HEADS * D, HEADS * D), lse(T, HEADS, HEADS);
    Array<R> delta((size_t)T * HEADS);
    q.random(1, 1), k.random(2, 1), v.random(3, 1), go.random(4, 1);
    const std::vector<int32_t> runs = { 0, T, 0, 0 };
    Array<char> room(attn_tiles_bytes(runs.data(), 1, runs.data(), 1) + 64);
    AttnTiles tiles;
    OK(attn_tiles_make(runs.data(), 1, runs.data(), 1, causal, 0, room.dev, &tiles));
    AttnSpec s;
    memset(&s, 0, sizeof s);
    s.heads = s.kv_heads = HEADS;
    s.head_size = D;
    s.ordered = causal;
    s.scale = 0.1;
    s.ld_q = s.ld_k = s.ld_v = s.ld_o = s.ld_do = s.ld_dq = s.ld_dk = s.ld_dv = HEADS * D;
    s.ld_lse = HEADS;
    const double met = causal ? N * (N + 1) / 2 : N * N;       // pairs of tiles
    const double rows = (double)T * HEADS, tile = (double)TILE * HEADS;
    const double line = D * sizeof(S), wide = D * sizeof(R), stat = sizeof(R);
    char name[80];
    begin();
    OK((attn_forward<S, D>(s, tiles, q.dev, k.dev, v.dev, o.dev, lse.dev, 0)));
    snprintf(name, sizeof name, "attention %s %d%s", type, D, causal ? " causal" : "");
    measured(name, rows * (2 * line + stat) + met * tile * 2 * line, 1.02);
    begin();
    OK((attn_backward<S, D>(s, tiles, T, q.dev, k.dev, v.dev, o.dev, lse.dev, go.dev, delta.dev,
                            dq.dev, dk.dev, dv.dev, false, 0)));
    snprintf(name, sizeof name, "  its gradient");
    measured(name, rows * (2 * line + stat)                     // delta from o and do
                   + rows * (2 * line + 2 * wide)               // k, v, dk, dv
                   + met * tile * (2 * line + 2 * stat)         // q, do, lse, delta
                   + met * tile * 2 * wide, most_back);         // dq, read and written in float
}

/* ---- the others -------------------------------------------------------------------------- */

template <typename S> static void moves(const char *type)
{
    enum { ROWS = 128, COLS = 1024 };
    typedef real_of<S> R;
    const double n = (double)ROWS * COLS;
    Matrix<S> a(ROWS, COLS, COLS), b(ROWS, COLS, COLS), logits(ROWS, COLS, COLS);
    Matrix<R> stat(ROWS, 3, 3), sums(1, COLS, COLS), partial(8, COLS, COLS), de(COLS, COLS, COLS);
    Array<int> ids(ROWS);
    char name[80];
    a.random(1, 1), logits.random(2, 1);
    for (int i = 0; i < ROWS; i++)
        ids[(size_t)i] = i * 7 % 64;
    ids.send();
    begin();
    OK(move_copy(a.dev, COLS, b.dev, COLS, ROWS, COLS, false, 0));
    snprintf(name, sizeof name, "copy %s", type);
    measured(name, 2 * n * sizeof(S), 1);
    begin();
    OK(move_copy(a.dev, COLS, b.dev, COLS, ROWS, COLS, true, 0));
    measured("  added", 3 * n * sizeof(S), 1);
    begin();
    OK(embed_forward(logits.dev, COLS, ids.dev, 0, ROWS, b.dev, COLS, ROWS, COLS, 0));
    measured("look-up", 2 * n * sizeof(S) + ROWS * 4, 1.02);
    std::vector<int> count(ROWS), order(ROWS);
    std::vector<EmbedOwner> owners(ROWS);
    int nowners = embed_sort(ids.host.data(), ROWS, 0, ROWS, count.data(), order.data(),
                             owners.data());
    Array<int> at(order);
    Array<EmbedOwner> who(owners);
    begin();
    OK(embed_backward(a.dev, COLS, at.dev, who.dev, nowners, de.dev, COLS, COLS, 0));
    measured("  its gradient", n * sizeof(S) + 2.0 * nowners * COLS * sizeof(R), 1.02);
    begin();
    OK(ce_stat(logits.dev, COLS, ROWS, COLS, ids.dev, 0, COLS, stat.dev, 0));
    measured("loss: statistics", n * sizeof(S), 1.02);
    Array<double> row_loss(ROWS), total(1);
    total.send();
    begin();
    OK(ce(logits.dev, COLS, ROWS, COLS, stat.dev, ids.dev, -1, 0, COLS, 1, row_loss.dev,
          total.dev, 0));
    measured("  its gradient", 2 * n * sizeof(S), 1.02);
    begin();
    OK(colsum_rows(a.dev, COLS, ROWS, COLS, partial.dev, 8, sums.dev, false, 0));
    measured("column sums", n * sizeof(S) + 17.0 * COLS * sizeof(R), 1.01);
}

template <typename R> static void optimizer(const char *type)
{
    enum { N = 1 << 17 };
    Matrix<R> p(1, N, N), g(1, N, N), m(1, N, N), v(1, N, N);
    Matrix<bf16> copy(1, N, N);
    p.random(1, 1), g.random(2, 1), m.random(3, 1), v.random(4, 0);
    std::vector<OptPiece> list((size_t)opt_pieces(N, 0, 0, 0, 0, true, NULL));
    opt_pieces(N, 0, 0, 0, 0, true, list.data());
    Array<OptPiece> pieces(list);
    Array<double> partial(list.size()), total(1);
    OptStep s = { 1e-3, 0.9, 0.99, 1e-8, 0.1, 1, 1, 0, NULL };
    char name[80];
    begin();
    OK(opt_adamw(pieces.dev, (int64_t)list.size(), s, p.dev, g.dev, m.dev, v.dev, copy.dev, 0));
    snprintf(name, sizeof name, "adamw %s", type);
    measured(name, 7.0 * N * sizeof(R) + 2.0 * N, 1.03);
    begin();
    OK(opt_squares(pieces.dev, (int64_t)list.size(), g.dev, partial.dev, total.dev, 0));
    measured("norm", 1.0 * N * sizeof(R), 1.03);
}

int main()
{
    attention<bf16, 64>("bf16", true, 1);
    attention<bf16, 64>("bf16", false, 1);
    attention<bf16, 128>("bf16", true, 1);
    attention<float, 64>("float", true, 1.7);
    moves<bf16>("bf16");
    moves<float>("float");
    optimizer<float>("float");
    return test_end();
}
