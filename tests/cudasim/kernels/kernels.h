/* kernels.h - for the tests of templates/cuda: matrices on both sides, compared with double. */
#ifndef KERNELS_H
#define KERNELS_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <vector>

typedef __nv_bfloat16 bf16;

static int test_failures;
static const char *test_what = "";

#define OK(x) test_ok(x, __FILE__, __LINE__)
static inline void test_ok(cudaError_t e, const char *file, int line)
{
    if (e != cudaSuccess && test_failures++ < 20)
        fprintf(stderr, "%s:%d: %s: %s\n", file, line, test_what, cudaGetErrorString(e));
}

static inline double number(float x) { return x; }
static inline double number(double x) { return x; }
static inline double number(bf16 x) { return __bfloat162float(x); }
static inline void number_to(float *x, double v) { *x = (float)v; }
static inline void number_to(double *x, double v) { *x = v; }
static inline void number_to(bf16 *x, double v) { *x = __float2bfloat16_rn((float)v); }

/* Numbers in [-1, 1), a stream for each seed. */
struct Random {
    uint64_t x;
    explicit Random(int seed) : x((uint64_t)seed * 0x9e3779b97f4a7c15u + 1) {}
    unsigned next()
    {
        x = x * 6364136223846793005u + 1442695040888963407u;
        return (unsigned)(x >> 33);
    }
    double real() { return (double)next() / 1073741824.0 - 1; }
};

/* Numbers [rows, cols], ld apart from row to row; what lies between rows must stay. */
template <typename T> struct Matrix {
    int rows, cols, ld;
    std::vector<T> host;
    T *dev;
    Matrix(int r, int c, int l) : rows(r), cols(c), ld(l), host((size_t)(r * l + 1))
    {
        OK(cudaMalloc((void **)&dev, host.size() * sizeof(T)));
        for (T &x : host)
            number_to(&x, 77);
        send();
    }
    ~Matrix() { cudaFree(dev); }
    Matrix(const Matrix &) = delete;
    void send()
    {
        OK(cudaMemcpy(dev, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    void fetch()
    {
        OK(cudaMemcpy(host.data(), dev, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    }
    T &at(int r, int c) { return host[(size_t)(r * ld + c)]; }
    void random(int seed, double size)
    {
        Random random(seed);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++)
                number_to(&at(r, c), random.real() * size);
        send();
    }
    std::vector<double> values()        // dense, as the device has them
    {
        fetch();
        std::vector<double> v;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++)
                v.push_back(number(at(r, c)));
        return v;
    }
    /* |x - wanted| <= tol (|wanted| + root mean square of all wanted); nothing between rows. */
    void compare(const char *name, const std::vector<double> &wanted, double tol)
    {
        std::vector<double> v = values();
        double squares = 0;
        for (double w : wanted)
            squares += w * w;
        double size = sqrt(squares / (double)wanted.size()) + 1e-30;
        int wrong = 0;
        for (size_t i = 0; i < v.size(); i++)
            if (!(fabs(v[i] - wanted[i]) <= tol * (fabs(wanted[i]) + size)) && wrong++ < 3)
                fprintf(stderr, "%s: %s[%d][%d] = %.9g, wanted %.9g\n", test_what, name,
                        (int)i / cols, (int)i % cols, v[i], wanted[i]);
        for (int r = 0; r < rows; r++)
            for (int c = cols; c < ld; c++)
                if (number(at(r, c)) != 77 && wrong++ < 3)
                    fprintf(stderr, "%s: %s: something was written behind row %d\n", test_what,
                            name, r);
        if (wrong)
            fprintf(stderr, "%s: %s: %d of %d are wrong\n", test_what, name, wrong, (int)v.size());
        test_failures += wrong > 0;
    }
};

/* A vector of whole things. */
template <typename T> struct Array {
    std::vector<T> host;
    T *dev;
    explicit Array(size_t n) : host(n) { OK(cudaMalloc((void **)&dev, n * sizeof(T) + 1)); }
    explicit Array(const std::vector<T> &v) : Array(v.size())
    {
        host = v;
        send();
    }
    ~Array() { cudaFree(dev); }
    Array(const Array &) = delete;
    T &operator[](size_t i) { return host[i]; }
    void send()
    {
        OK(cudaMemcpy(dev, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    void fetch()
    {
        OK(cudaMemcpy(host.data(), dev, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    }
};

static inline int test_end()
{
    OK(cudaDeviceSynchronize());
    if (test_failures)
        fprintf(stderr, "%d failures\n", test_failures);
    return test_failures ? 1 : 0;
}

#endif
