/* test.h - for the programs of this folder: a check that goes on, and a vector on both sides. */
#pragma once
#include <cuda_runtime.h>
#include <stdio.h>
#include <vector>

static int test_failures;
#define CHECK(x) \
    do { \
        if (!(x) && test_failures++ < 5) \
            fprintf(stderr, "%s:%d: wrong: %s\n", __FILE__, __LINE__, #x); \
    } while (0)

template <class T> struct Vec {
    std::vector<T> host;
    T *dev;
    explicit Vec(int n) : host((size_t)n) { cudaMalloc(&dev, (size_t)n * sizeof(T)); }
    ~Vec() { cudaFree(dev); }
    Vec(const Vec &) = delete;
    T &operator[](int i) { return host[(size_t)i]; }
    size_t bytes() const { return host.size() * sizeof(T); }
    void send() { cudaMemcpy(dev, host.data(), bytes(), cudaMemcpyHostToDevice); }
    void fetch() { cudaMemcpy(host.data(), dev, bytes(), cudaMemcpyDeviceToHost); }
};

static inline int test_end()
{
    cudaDeviceSynchronize();
    return test_failures ? 1 : 0;
}
