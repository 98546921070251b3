/*
 * small.cu - the templates that are limited by memory (embedding, loss, optimizer, rotary
 * positions, row pieces, moves) against plain loops in double.
 *
 *     tests/cudasim/kernels/run.sh [plain|asan|check]
 */
#include "kernels.h"
#include "embed.cuh"
#include "loss.cuh"
#include "moves.cuh"
#include "optimizer.cuh"
#include "rope.cuh"

extern "C" {
#include "random.h"
}

template <typename S> static double tolerance()
{
    return sizeof(S) == 2 ? 1e-2 : sizeof(S) == 4 ? 1e-5 : 1e-13;
}

static std::vector<int> some_ids(int n, int limit, int seed)
{
    Random random(seed);
    std::vector<int> ids;
    for (int i = 0; i < n; i++)
        ids.push_back((int)(random.next() % (unsigned)limit));
    return ids;
}

/* ---- embedding ---------------------------------------------------------------------- */

template <typename E, typename Y> static void test_embed(int rows, int cols, int pad)
{
    const int vocab = 23, base = 7, brows = 9;
    test_what = "embedding";
    Matrix<E> table(brows, cols, cols + pad);
    Matrix<Y> y(rows, cols, cols + pad);
    Matrix<real_of<Y>> de(brows, cols, cols + pad);
    Array<int> ids(some_ids(rows, vocab, 5));
    table.random(1, 1);
    de.random(2, 1);
    std::vector<double> e = table.values(), want, dwant = de.values();
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            int row = ids[(size_t)r] - base;
            want.push_back(row >= 0 && row < brows ? e[(size_t)(row * cols + c)] : 0);
        }
    OK((embed_forward<E, Y>(table.dev, table.ld, ids.dev, base, brows, y.dev, y.ld, rows, cols,
                            0)));
    y.compare("y", want, sizeof(Y) < sizeof(E) ? 1e-2 : 0);
    y.random(3, 1);
    std::vector<double> dy = y.values();
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            int row = ids[(size_t)r] - base;
            if (row >= 0 && row < brows)
                dwant[(size_t)(row * cols + c)] += dy[(size_t)(r * cols + c)];
        }
    std::vector<int> count((size_t)brows);
    Array<int> order((size_t)rows);
    Array<EmbedOwner> owners((size_t)rows);
    int n = embed_sort(ids.host.data(), rows, base, brows, count.data(), order.host.data(),
                       owners.host.data());
    order.send();
    owners.send();
    OK(embed_backward(y.dev, y.ld, order.dev, owners.dev, n, de.dev, de.ld, cols, 0));
    de.compare("dE", dwant, 1e-5);
    for (int x : count)
        test_failures += x != 0;
}

/* ---- cross entropy -------------------------------------------------------------------- */

/* `parts` ranks that have the columns of `vocab` evenly, the last ones beyond it. */
template <typename S> static void test_loss(int rows, int vocab, int parts, int cols, int pad)
{
    typedef real_of<S> R;
    const int ignore = 3;
    const double scale = 1.0 / rows;
    test_what = "cross entropy";
    Array<int> targets(some_ids(rows, vocab, 6));
    if (rows > 2)
        targets[1] = targets[2] = ignore;
    targets.send();
    std::vector<Matrix<S> *> logits;
    std::vector<std::vector<double>> l;
    Array<R> gathered((size_t)(parts * rows * 3)), stat((size_t)(rows * 3));
    Array<double> row_loss((size_t)rows), total(std::vector<double>{ 2.0 });
    for (int p = 0; p < parts; p++) {
        logits.push_back(new Matrix<S>(rows, cols, cols + pad));
        logits.back()->random(10 + p, p == 1 ? 120 : 8);    // sums of parts differ widely
        l.push_back(logits.back()->values());
        OK(ce_stat(logits.back()->dev, cols + pad, rows, cols, targets.dev, p * cols, vocab,
                   gathered.dev + p * rows * 3, 0));
    }
    OK(ce_merge(gathered.dev, parts, rows, stat.dev, 0));
    double loss = 2.0;
    for (int p = 0; p < parts; p++) {
        std::vector<double> want;
        for (int r = 0; r < rows; r++) {
            double most = -1e300, sum = 0, target = 0;
            int t = targets[(size_t)r];
            for (int c = 0; c < vocab; c++)
                most = fmax(most, l[(size_t)(c / cols)][(size_t)(r * cols + c % cols)]);
            for (int c = 0; c < vocab; c++)
                sum += exp(l[(size_t)(c / cols)][(size_t)(r * cols + c % cols)] - most);
            target = l[(size_t)(t / cols)][(size_t)(r * cols + t % cols)];
            if (p == 0 && t != ignore)
                loss += log(sum) + most - target;
            for (int c = p * cols; c < (p + 1) * cols; c++) {
                double x = l[(size_t)p][(size_t)(r * cols + c % cols)];
                bool zero = t == ignore || c >= vocab;
                want.push_back(zero ? 0 : (exp(x - most) / sum - (c == t)) * scale);
            }
        }
        OK(ce(logits[(size_t)p]->dev, cols + pad, rows, cols, stat.dev, targets.dev, ignore,
              p * cols, vocab, scale, p == 0 ? row_loss.dev : NULL, p == 0 ? total.dev : NULL, 0));
        logits[(size_t)p]->compare("gradient", want, tolerance<S>());
        delete logits[(size_t)p];
    }
    total.fetch();
    if (!(fabs(total[0] - loss) <= 1e-5 * loss)) {
        fprintf(stderr, "loss %.9g, wanted %.9g\n", total[0], loss);
        test_failures++;
    }
}

/* ---- optimizer ------------------------------------------------------------------------- */

template <typename R> static void test_optimizer(bool adam, bool copied, int shift)
{
    const int n[3] = { OPT_PIECE + 37, 5, 1024 };
    test_what = adam ? "adamw" : "sgd";
    int all = n[0] + n[1] + n[2] + 16;
    Matrix<R> p(1, all, all), g(1, all, all), m(1, all, all), v(1, all, all);
    Matrix<bf16> copy(1, all, all);
    p.random(1, 1);
    g.random(2, 1);
    m.random(3, 0.1);
    v.random(4, 0.1);
    for (R &x : v.host)
        x = x < 0 ? -x : x;
    v.send();
    Array<OptPiece> pieces(8);
    int64_t count = 0, at = shift;
    for (int i = 0; i < 3; i++) {       // g elsewhere than p, as ranges of the owner are
        count += opt_pieces(n[i], at, at, at + 1, at, i != 1, pieces.host.data() + count);
        at += n[i];
    }
    pieces.send();
    OptStep s = { 1e-2, 0.9, 0.95, 1e-6, 0.1, 1 / (1 - 0.9), 1 / (1 - 0.95), 0.8, NULL };
    Array<double> clip(1), squares(1), partial(8);
    std::vector<double> wp = p.values(), wg = g.values(), wm = m.values(), wv = v.values();
    std::vector<double> wc = copy.values();
    double sum = 0;
    for (int64_t i = shift; i < at; i++)
        sum += wg[(size_t)(i + 1)] * wg[(size_t)(i + 1)];
    OK(opt_squares(pieces.dev, count, g.dev, partial.dev, squares.dev, 0));
    OK(opt_clip(squares.dev, 2.0, clip.dev, 0));
    clip.fetch();
    double factor = 2.0 / (sqrt(sum) + 1e-6);
    test_failures += !(fabs(clip[0] - factor) < 1e-9 * factor);
    s.clip = clip.dev;
    for (int64_t i = shift; i < at; i++) {
        size_t e = (size_t)i;
        bool decay = !(i >= shift + n[0] && i < shift + n[0] + n[1]);
        double x = wg[e + 1] * factor;
        if (adam) {
            wm[e] = 0.9 * wm[e] + (1 - 0.9) * x;
            wv[e] = 0.95 * wv[e] + (1 - 0.95) * x * x;
            wp[e] -= s.lr * (wm[e] * s.correct1 / (sqrt(wv[e] * s.correct2) + s.eps)
                             + (decay ? s.decay : 0) * wp[e]);
        } else {
            wm[e] = 0.8 * wm[e] + x;
            wp[e] -= s.lr * wm[e];
        }
        if (copied)
            wc[e] = wp[e];
    }
    bf16 *to = copied ? copy.dev : NULL;
    if (adam)
        OK(opt_adamw(pieces.dev, count, s, p.dev, g.dev, m.dev, v.dev, to, 0));
    else
        OK(opt_sgd(pieces.dev, count, s, p.dev, g.dev, m.dev, to, 0));
    p.compare("p", wp, tolerance<R>());
    m.compare("m", wm, tolerance<R>());
    v.compare("v", wv, tolerance<R>());
    copy.compare("copy", wc, 1e-2);
}

/* ---- rotary positions ------------------------------------------------------------------- */

template <typename X, typename Y>
static void test_rope(int rows, int heads, int hd, int rotary, bool interleaved, bool inverse,
                      int pad)
{
    const int positions = 50;
    const double theta = 10000;
    test_what = "rotary positions";
    int cols = heads * hd;
    Matrix<X> x(rows, cols, cols + pad);
    Matrix<Y> y(rows, cols, cols + pad);
    Matrix<real_of<X>> table(positions, rotary, rotary);
    Array<int> pos(some_ids(rows, positions, 9));
    x.random(1, 1);
    std::vector<double> v = x.values(), want = v;
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < rotary / 2; i++) {
                size_t at = (size_t)(r * cols + h * hd);
                size_t a = at + (size_t)(interleaved ? 2 * i : i);
                size_t b = interleaved ? a + 1 : a + (size_t)rotary / 2;
                double angle = pos[(size_t)r] * pow(theta, -2.0 * i / rotary);
                double c = cos(angle), s = inverse ? -sin(angle) : sin(angle);
                want[a] = v[a] * c - v[b] * s;
                want[b] = v[b] * c + v[a] * s;
            }
    RopeSpec s = { heads, hd, rotary, interleaved, inverse, x.ld, y.ld };
    OK(rope_table(table.dev, positions, rotary, theta, 0));
    OK(rope(s, x.dev, y.dev, table.dev, pos.dev, rows, 0));
    y.compare("y", want, fmax(tolerance<X>(), tolerance<Y>()));
}

/* ---- pieces of row programs -------------------------------------------------------------- */

constexpr int ROW_LOADS = 3;

/* A row in registers: its mean and variance, and sums over rows; dropout of ones. */
template <typename S, int T>
__global__ void row_kernel(const S *x, int64_t ld, int rows, int width, int length,
                           real_of<S> *stats, real_of<S> *partial, real_of<S> *mask)
{
    typedef real_of<S> R;
    __shared__ R scratch[32];
    int groups = (int)blockDim.x / T, t = (int)threadIdx.x % T;
    R sums[ROW_LOADS] = {};
    for (int r = (int)blockIdx.x * groups + (int)threadIdx.x / T; r < rows;
         r += (int)gridDim.x * groups) {
        R v[ROW_LOADS], mean, m2, most = -1e30f, least = 1e30f;
        int n = 0;
        for (int i = 0; i < ROW_LOADS; i++) {
            int c = i * T + t;
            v[i] = 0;
            if (c < width) {
                v[i] = widen(x[r * ld + c]);
                n = i + 1;
                most = op_max(most, v[i]);
                least = op_min(least, v[i]);
                sums[i] += v[i];
                unsigned word = dropout_word(12345678901ull, 7, 99, (uint64_t)r + (5ull << 32),
                                             (unsigned)c);
                mask[(int64_t)r * width + c] = dropout((R)1, word, 0x40000000u, (R)(4.0 / 3));
            }
        }
        group_moments<T>(v, n, width, scratch, &mean, &m2);
        most = group_max<T>(most, scratch);
        least = group_min<T>(least, scratch);
        if (t == 0) {
            stats[4 * r] = mean;
            stats[4 * r + 1] = m2 / (R)width;
            stats[4 * r + 2] = most;
            stats[4 * r + 3] = least;
        }
    }
    colsum_zero(length, partial + (int64_t)blockIdx.x * length);
    colsum_add<T, 1>(sums, 0, width, length, partial + (int64_t)blockIdx.x * length);
}

template <typename S, int T> static void test_rows(int rows, int width, int length)
{
    typedef real_of<S> R;
    const int blocks = 3;
    test_what = "rows";
    Matrix<S> x(rows, width, width + 1);
    Matrix<R> stats(rows, 4, 4), partial(blocks, length, length), sum(1, length, length);
    Matrix<R> mask(rows, width, width);
    x.random(1, 1);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width; c++)
            number_to(&x.at(r, c), number(x.at(r, c)) + (sizeof(S) == 2 ? 0 : 1000));
    x.send();
    sum.random(2, 1);
    std::vector<double> v = x.values(), want, sums = sum.values(), masks;
    for (int r = 0; r < rows; r++) {
        double mean = 0, m2 = 0, most = -1e30, least = 1e30;
        for (int c = 0; c < width; c++) {
            double a = v[(size_t)(r * width + c)];
            mean += a / width;
            most = fmax(most, a);
            least = fmin(least, a);
            sums[(size_t)(c % length)] += a;
            bool kept = rt_dropout_word(12345678901ull, 7, 99, (uint64_t)r + (5ull << 32),
                                        (uint32_t)c) >= rt_dropout_limit(0.25);
            masks.push_back(kept ? 4.0 / 3 : 0);
        }
        for (int c = 0; c < width; c++)
            m2 += pow(v[(size_t)(r * width + c)] - mean, 2);
        want.insert(want.end(), { mean, m2 / width, most, least });
    }
    row_kernel<S, T><<<blocks, T == 32 ? 128 : T>>>(x.dev, x.ld, rows, width, length, stats.dev,
                                                    partial.dev, mask.dev);
    OK(cudaGetLastError());
    OK(colsum_finish(partial.dev, blocks, length, sum.dev, true, 0));
    stats.compare("mean, variance, max, min", want, sizeof(S) == 8 ? 1e-10 : 1e-6);
    for (int r = 0; r < rows; r++) {    // variance by itself: it is small beside 1000
        double var = number(stats.at(r, 1)), w = want[(size_t)(4 * r + 1)];
        test_failures += !(fabs(var - w) < 1e-3 * w);
    }
    sum.compare("column sums", sums, 1e-5);
    mask.compare("dropout", masks, 1e-6);
    if (width == length) {
        Matrix<R> rows_sum(1, width, width);
        std::vector<double> w((size_t)width);
        for (size_t i = 0; i < v.size(); i++)
            w[i % (size_t)width] += v[i];
        OK(colsum_rows(x.dev, x.ld, rows, width, partial.dev, blocks, rows_sum.dev, false, 0));
        rows_sum.compare("colsum", w, 1e-5);
    }
}

/* ---- moves --------------------------------------------------------------------------------- */

template <typename A, typename B> static void test_copy(int rows, int cols, int pad, bool add)
{
    test_what = "copy";
    Matrix<A> a(rows, cols, cols + pad);
    Matrix<B> b(rows, cols, cols + 2 * pad);
    a.random(1, 1);
    b.random(2, 1);
    std::vector<double> want = a.values(), old = b.values();
    for (size_t i = 0; i < want.size(); i++)
        want[i] += add ? old[i] : 0;
    OK(move_copy(a.dev, a.ld, b.dev, b.ld, rows, cols, add, 0));
    b.compare("dst", want, sizeof(B) == 2 ? 1e-2 : 1e-6);
}

/* The first of two numbers that are not finite; padding does not count. */
template <typename S> static void test_find(int rows, int cols, int pad)
{
    test_what = "find";
    Matrix<S> a(rows, cols, cols + pad);
    for (S &x : a.host)
        number_to(&x, NAN);
    a.random(1, 1);
    unsigned long long *first, got = 0;
    OK(cudaMalloc((void **)&first, sizeof *first));
    for (int k = 1; k <= 3; k++) {
        int i = rows * cols / k;
        unsigned long long want = k > 1 ? (unsigned long long)i : ~0ull;
        if (k > 1)
            number_to(&a.at(i / cols, i % cols), k == 2 ? NAN : -INFINITY);
        a.send();
        OK(move_find(a.dev, a.ld, rows, cols, first, 0));
        OK(cudaMemcpy(&got, first, sizeof got, cudaMemcpyDeviceToHost));
        if (got != want && test_failures++ < 20)
            fprintf(stderr, "find: %llu, expected %llu\n", got, want);
    }
    OK(cudaFree(first));
}

template <typename R> static void test_merge(int p, int rows)
{
    test_what = "merge";
    const uint8_t stat[4] = { MERGE_SUM, MERGE_VAR, MERGE_MAX, MERGE_MIN };
    const int slots = 5, n = 10;
    Matrix<R> parts(p * rows, slots, slots), out(4, rows, rows);
    parts.random(1, 3);
    for (int i = 0; i < p * rows; i++)
        number_to(&parts.at(i, 2), fabs(number(parts.at(i, 2))));
    parts.send();
    std::vector<double> v = parts.values(), want((size_t)(4 * rows));
    for (int r = 0; r < rows; r++) {
        double sum = 0, mean = 0, m2 = 0, most = -1e30, least = 1e30;
        for (int i = 0; i < p; i++) {
            const double *x = &v[(size_t)((i * rows + r) * slots)];
            sum += x[0];
            mean += x[1] / p;
            most = fmax(most, x[3]);
            least = fmin(least, x[4]);
        }
        for (int i = 0; i < p; i++) {
            const double *x = &v[(size_t)((i * rows + r) * slots)];
            m2 += x[2] + n * (x[1] - mean) * (x[1] - mean);
        }
        want[(size_t)r] = sum;
        want[(size_t)(rows + r)] = m2 / (p * n);
        want[(size_t)(2 * rows + r)] = most;
        want[(size_t)(3 * rows + r)] = least;
    }
    R *dst[4] = { out.dev, out.dev + rows, out.dev + 2 * rows, out.dev + 3 * rows };
    OK(merge(parts.dev, p, rows, 4, stat, dst, (int64_t)n, 0));
    out.compare("statistics", want, 1e-5);
    OK(move_zero(out.dev, 4 * rows, 0));
    out.compare("zeros", std::vector<double>((size_t)(4 * rows)), 0);
}

/* Two boxes of two runs each, there and back into another matrix. `step` numbers are one. */
template <typename T> static void test_boxes(int step, int rows)
{
    test_what = "boxes";
    int ld = 20 * step;
    Matrix<T> a(rows, ld, ld), b(rows, ld, ld);
    a.random(1, 1);
    b.random(2, 1);
    std::vector<double> x = a.values(), want = b.values();
    Array<MoveBox> box(2), back(2);
    Array<MoveRun> run(3), run_back(3);
    int h = rows / 2;
    box[0] = { 1, h, 0, 0, 0, 2 };      // columns 2..5, 9..11
    box[1] = { h, rows - h, 0, 0, 2, 1 };   // columns 0..6
    back[0] = { 0, h, 0, 0, 0, 2 };
    back[1] = { h, rows - h, 0, 0, 2, 1 };
    int from[3] = { 2, 9, 0 }, to[3] = { 13, 1, 8 }, n[3] = { 4, 3, 7 };
    for (size_t i = 0; i < 3; i++) {
        run[i] = { from[i] * step, 0, n[i] * step };
        run_back[i] = { to[i] * step, 0, n[i] * step };
    }
    int64_t all = move_boxes_place(box.host.data(), 2, run.host.data(), 0);
    test_failures += all != move_boxes_place(back.host.data(), 2, run_back.host.data(), 0)
                     || all != (int64_t)(h * 7 + (rows - h) * 7) * step;
    Array<T> buffer((size_t)all);
    MoveBoxes p = {}, u = {};
    move_boxes_measure(box.host.data(), 2, run.host.data(), ld, sizeof(T), &p);
    move_boxes_measure(back.host.data(), 2, run_back.host.data(), ld, sizeof(T), &u);
    box.send();
    run.send();
    back.send();
    run_back.send();
    p.box = box.dev;
    p.run = run.dev;
    u.box = back.dev;
    u.run = run_back.dev;
    OK(move_boxes(p, sizeof(T), a.dev, ld, buffer.dev, true, 0));
    OK(move_boxes(u, sizeof(T), b.dev, ld, buffer.dev, false, 0));
    for (int i = 0; i < 3; i++)
        for (int r = 0; r < (i < 2 ? h : rows - h); r++)
            for (int c = 0; c < n[i] * step; c++)
                want[(size_t)(((i < 2 ? 0 : h) + r) * ld + to[i] * step + c)] =
                    x[(size_t)(((i < 2 ? 1 : h) + r) * ld + from[i] * step + c)];
    b.compare("unpacked", want, 0);
}

int main()
{
    test_embed<float, float>(37, 33, 0);
    test_embed<bf16, bf16>(41, 160, 8);
    test_embed<bf16, bf16>(29, 7, 3);
    test_embed<float, bf16>(20, 48, 0);
    test_embed<double, double>(13, 130, 2);
    test_loss<float>(7, 50, 3, 20, 1);
    test_loss<bf16>(6, 700, 2, 400, 8);
    test_loss<double>(3, 11, 1, 16, 0);
    test_loss<bf16>(5, 9, 2, 5, 1);
    test_loss<float>(3, 1030, 4, 320, 0);       // the last rank has columns beyond the vocabulary
    test_loss<float>(4, 10, 2, 6, 2);           // a tail behind whole accesses
    test_loss<bf16>(3, 19, 1, 26, 6);
    test_optimizer<float>(true, true, 0);
    test_optimizer<float>(true, false, 3);
    test_optimizer<double>(true, false, 0);
    test_optimizer<float>(false, true, 1);
    test_optimizer<double>(false, true, 2);
    test_rope<float, float>(5, 3, 10, 6, false, false, 1);
    test_rope<float, float>(5, 3, 9, 4, false, false, 0);
    test_rope<bf16, bf16>(5, 3, 9, 8, true, true, 0);
    test_rope<bf16, bf16>(6, 2, 64, 32, false, true, 8);
    test_rope<bf16, bf16>(6, 2, 24, 8, true, false, 0);
    test_rope<bf16, bf16>(6, 2, 24, 24, false, false, 0);
    test_rope<float, bf16>(4, 2, 16, 16, true, true, 0);
    test_rope<bf16, float>(4, 2, 16, 16, false, true, 0);
    test_rope<double, double>(4, 1, 8, 8, false, false, 0);
    test_rows<float, 32>(17, 90, 90);
    test_rows<float, 32>(9, 80, 20);
    test_rows<bf16, 128>(10, 300, 100);
    test_rows<double, 64>(7, 150, 150);
    test_copy<float, float>(5, 12, 4, false);
    test_copy<float, float>(5, 13, 1, true);
    test_copy<float, bf16>(6, 32, 8, true);
    test_copy<bf16, float>(6, 32, 8, true);
    test_copy<bf16, bf16>(3, 1000, 0, true);
    test_copy<double, double>(4, 9, 0, false);
    test_find<float>(5, 13, 1);
    test_find<double>(3, 1000, 0);
    test_find<bf16>(6, 32, 8);
    test_merge<float>(3, 130);
    test_merge<double>(1, 5);
    test_boxes<float>(1, 9);
    test_boxes<bf16>(1, 6);
    test_boxes<bf16>(8, 21);
    test_boxes<double>(2, 5);
    return test_end();
}
