/*
 * attention.cu - templates/cuda/attention*.cuh against plain loops in double: forward, both
 * backward kernels, all forms; runs of rows as slices, gathered and balanced orders make them.
 *
 *     tests/cudasim/kernels/run.sh [plain|asan|check]
 */
#include "kernels.h"
#include "attention.cuh"

/* n rows from `row` on are positions pos.. of sequence seq. */
struct Run { int row, n, seq, pos; };
struct Case {
    const char *name;
    std::vector<Run> q, k;
    int heads, kv_heads;
    bool causal;
    int window;
    double scale, softcap;
    bool accumulate;
    int pad;                            // between rows, in numbers
};

static int rows_of(const std::vector<Run> &runs)
{
    int n = 0;
    for (const Run &r : runs)
        n = r.row + r.n > n ? r.row + r.n : n;
    return n;
}

static std::vector<int32_t> flat(const std::vector<Run> &runs)
{
    std::vector<int32_t> x;
    for (const Run &r : runs)
        x.insert(x.end(), { r.row, r.n, r.seq, r.pos });
    return x;
}

/* Sequence and position of each row; -1: in no run. */
struct Place { int seq = -1, pos = -1; };
static std::vector<Place> places(const std::vector<Run> &runs)
{
    std::vector<Place> p((size_t)rows_of(runs));
    for (const Run &r : runs)
        for (int i = 0; i < r.n; i++)
            p[(size_t)(r.row + i)] = { r.seq, r.pos + i };
    return p;
}

struct Wanted { std::vector<double> o, lse, dq, dk, dv; };

/* Everything by the definition. Arrays are dense here: [rows][heads][d]. */
static Wanted plain(const Case &c, int d, const std::vector<double> &q,
                    const std::vector<double> &k, const std::vector<double> &v,
                    const std::vector<double> &go)
{
    std::vector<Place> pq = places(c.q), pk = places(c.k);
    int nq = (int)pq.size(), nk = (int)pk.size();
    Wanted w;
    w.o.resize(q.size());
    w.dq.resize(q.size());
    w.lse.resize((size_t)(nq * c.heads), -1e30);
    w.dk.resize(k.size());
    w.dv.resize(k.size());
    std::vector<double> p((size_t)nk), x((size_t)nk);
    for (int i = 0; i < nq; i++)
        for (int h = 0; h < c.heads; h++) {
            int kvh = h * c.kv_heads / c.heads;
            const double *qi = &q[(size_t)((i * c.heads + h) * d)];
            const double *goi = &go[(size_t)((i * c.heads + h) * d)];
            double *oi = &w.o[(size_t)((i * c.heads + h) * d)], most = -1e300, sum = 0, delta = 0;
            for (int j = 0; j < nk; j++) {
                int back = pq[(size_t)i].pos - pk[(size_t)j].pos;
                bool seen = pq[(size_t)i].seq >= 0 && pq[(size_t)i].seq == pk[(size_t)j].seq
                            && (!(c.causal || c.window) || back >= 0)
                            && (!c.window || back < c.window);
                x[(size_t)j] = -INFINITY;
                if (!seen)
                    continue;
                double s = 0;
                for (int e = 0; e < d; e++)
                    s += qi[e] * k[(size_t)((j * c.kv_heads + kvh) * d + e)];
                s *= c.scale;
                x[(size_t)j] = c.softcap > 0 ? c.softcap * tanh(s / c.softcap) : s;
                most = fmax(most, x[(size_t)j]);
            }
            for (int j = 0; j < nk; j++)
                sum += p[(size_t)j] = x[(size_t)j] > -INFINITY ? exp(x[(size_t)j] - most) : 0;
            if (sum == 0)
                continue;
            w.lse[(size_t)(i * c.heads + h)] = most + log(sum);
            for (int j = 0; j < nk; j++) {
                p[(size_t)j] /= sum;
                for (int e = 0; e < d; e++)
                    oi[e] += p[(size_t)j] * v[(size_t)((j * c.kv_heads + kvh) * d + e)];
            }
            for (int e = 0; e < d; e++)
                delta += oi[e] * goi[e];
            for (int j = 0; j < nk; j++) {
                size_t at = (size_t)((j * c.kv_heads + kvh) * d);
                double dp = 0, t = c.softcap > 0 ? x[(size_t)j] / c.softcap : 0;
                if (p[(size_t)j] == 0)
                    continue;
                for (int e = 0; e < d; e++) {
                    dp += goi[e] * v[at + (size_t)e];
                    w.dv[at + (size_t)e] += p[(size_t)j] * goi[e];
                }
                double ds = p[(size_t)j] * (dp - delta) * c.scale * (1 - t * t);
                for (int e = 0; e < d; e++) {
                    w.dq[(size_t)((i * c.heads + h) * d + e)] += ds * k[at + (size_t)e];
                    w.dk[at + (size_t)e] += ds * qi[e];
                }
            }
        }
    return w;
}

template <typename S, int HEAD> static void test(const Case &c)
{
    typedef real_of<S> R;
    int nq = rows_of(c.q), nk = rows_of(c.k), wq = c.heads * HEAD, wk = c.kv_heads * HEAD;
    int lq = wq + c.pad, lk = wk + c.pad;
    test_what = c.name;
    Matrix<S> q(nq, wq, lq), k(nk, wk, lk), v(nk, wk, lk), o(nq, wq, lq), go(nq, wq, lq);
    Matrix<S> dq(nq, wq, lq);
    Matrix<R> lse(nq, c.heads, c.heads), delta(nq, c.heads, c.heads);
    Matrix<R> dk(nk, wk, lk), dv(nk, wk, lk);
    q.random(1, 1.5);
    k.random(2, 1.5);
    v.random(3, 1);
    go.random(4, 1);
    dk.random(5, 1);                    // += keeps it
    dv.random(6, 1);
    std::vector<double> old_k = dk.values(), old_v = dv.values();
    Wanted w = plain(c, HEAD, q.values(), k.values(), v.values(), go.values());
    AttnSpec s = {};
    s.heads = c.heads;
    s.kv_heads = c.kv_heads;
    s.head_size = HEAD;
    s.ordered = c.causal || c.window > 0;
    s.window = c.window;
    s.scale = c.scale;
    s.softcap = c.softcap;
    s.ld_q = s.ld_o = s.ld_do = s.ld_dq = lq;
    s.ld_k = s.ld_v = s.ld_dk = s.ld_dv = lk;
    s.ld_lse = c.heads;
    std::vector<int32_t> rq = flat(c.q), rk = flat(c.k);
    size_t bytes = attn_tiles_bytes(rq.data(), (int64_t)c.q.size(), rk.data(), (int64_t)c.k.size());
    void *device;
    AttnTiles tiles;
    OK(cudaMalloc(&device, bytes));
    OK(attn_tiles_make(rq.data(), (int64_t)c.q.size(), rk.data(), (int64_t)c.k.size(), c.causal,
                       c.window, device, &tiles));
    OK((attn_forward<S, HEAD>(s, tiles, q.dev, k.dev, v.dev, o.dev, lse.dev, 0)));
    OK((attn_backward<S, HEAD>(s, tiles, nq, q.dev, k.dev, v.dev, o.dev, lse.dev, go.dev,
                               delta.dev, dq.dev, dk.dev, dv.dev, c.accumulate, 0)));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(device));
    if (c.accumulate)
        for (size_t i = 0; i < old_k.size(); i++) {
            w.dk[i] += old_k[i];
            w.dv[i] += old_v[i];
        }
    double tol = sizeof(S) == 2 ? 2e-2 : sizeof(S) == 4 ? 2e-5 : 1e-12;
    o.compare("o", w.o, tol);
    for (int i = 0; i < nq * c.heads; i++)
        if (w.lse[(size_t)i] == -1e30)
            w.lse[(size_t)i] = lse.values()[(size_t)i] < -1e29 ? lse.values()[(size_t)i] : 0;
    lse.compare("lse", w.lse, tol);
    dq.compare("dq", w.dq, tol);
    dk.compare("dk", w.dk, tol);
    dv.compare("dv", w.dv, tol);
    test_what = "";
}

int main()
{
    // one sequence, all rows; 70 = a whole tile and a bit
    Case one = { "one", { { 0, 70, 0, 0 } }, { { 0, 70, 0, 0 } }, 2, 2, true, 0, 0.2, 0, false, 8 };
    // the third slice of two sequences: keys of all three slices, slice by slice
    Case slice = { "slice", { { 0, 33, 0, 97 }, { 33, 33, 1, 97 } },
                   { { 0, 65, 0, 0 }, { 130, 32, 0, 65 }, { 194, 33, 0, 97 },
                     { 65, 65, 1, 0 }, { 162, 32, 1, 65 }, { 227, 33, 1, 97 } },
                   3, 1, true, 0, 0.15, 0, true, 0 };
    // balanced: chunks from both ends, a window, a cap, a sequence that has no queries here
    Case balanced = { "balanced", { { 0, 20, 0, 20 }, { 20, 20, 0, 140 } },
                      { { 0, 160, 0, 0 }, { 160, 40, 1, 0 } }, 4, 2, true, 50, 0.2, 2.0, false, 8 };
    Case both = { "both ways", { { 0, 70, 0, 0 } }, { { 0, 70, 0, 0 } }, 2, 1, false, 0, 0.3, 0,
                  false, 0 };
    Case blind = { "blind", { { 0, 5, 0, 0 }, { 5, 10, 1, 0 } }, { { 0, 9, 1, 0 } }, 1, 1, true, 0,
                   1, 0, false, 0 };
    Case whole = { "whole tiles", { { 0, 192, 0, 0 } }, { { 0, 192, 0, 0 } }, 1, 1, true, 80,
                   0.2, 0, false, 0 };
    test<float, 16>(one);
    test<float, 20>(slice);
    test<float, 33>(balanced);
    test<float, 136>(both);
    test<float, 8>(blind);
    test<double, 72>(slice);
    test<double, 8>(balanced);
    test<bf16, 12>(balanced);           // no size for tensor cores
    Case odd = one;
    odd.pad = 3;                        // rows not aligned
    test<bf16, 32>(odd);
    test<bf16, 32>(whole);
    test<bf16, 40>(slice);
    test<bf16, 64>(balanced);
    test<bf16, 64>(both);
    test<bf16, 32>(blind);
    test<bf16, 128>(one);
    test<bf16, 144>(slice);             // two groups of warps share the columns unevenly
    test<bf16, 256>(balanced);
    return test_end();
}
