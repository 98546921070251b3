/*
 * compare.c - are two safetensors files the same numbers?
 *
 *     compare A A0 B B0 TOLERANCE
 *
 * A and B are what a step made of the weights in A0 and B0: the differences from those are
 * compared, tensor by tensor where the header names one, as design.md 9 does gradients:
 * max |a - b| <= tolerance * max(max |b|, 0.01 G), G the largest of all. Each file is all
 * F64 or all F32; tensors stand in the same order.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char *header; uint64_t n; char *data; size_t bytes; int size; } File;

static File read_file(const char *path)
{
    File f = { 0 };
    FILE *in = fopen(path, "rb");
    if (!in || fread(&f.n, 8, 1, in) != 1 || f.n > 1u << 26) {
        fprintf(stderr, "compare: %s cannot be read\n", path);
        exit(2);
    }
    f.header = calloc(1, f.n + 1);
    fseek(in, 0, SEEK_END);
    f.bytes = (size_t)ftell(in) - 8 - f.n;
    f.data = malloc(f.bytes + 1);
    fseek(in, 8, SEEK_SET);
    if (fread(f.header, 1, f.n, in) != f.n || fread(f.data, 1, f.bytes, in) != f.bytes) {
        fprintf(stderr, "compare: %s is cut short\n", path);
        exit(2);
    }
    fclose(in);
    f.size = strstr(f.header, "\"F64\"") ? 8 : 4;
    return f;
}

static double number(const File *f, size_t i)
{
    return f->size == 8 ? ((const double *)(const void *)f->data)[i]
                     : (double)((const float *)(const void *)f->data)[i];
}

/* Bytes [from, to) of the next tensor in the header; NULL: none. */
static const char *next_tensor(const char *at, size_t *from, size_t *to)
{
    at = strstr(at, "\"data_offsets\"");
    if (!at)
        return NULL;
    at = strchr(at, '[') + 1;
    char *end;
    *from = strtoull(at, &end, 10);
    *to = strtoull(strchr(end, ',') + 1, &end, 10);
    return end;
}

/* What the step subtracted from number i. */
static double change(const File f[2], size_t i) { return number(&f[1], i) - number(&f[0], i); }

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    File a[2] = { read_file(argv[1]), read_file(argv[2]) };
    File b[2] = { read_file(argv[3]), read_file(argv[4]) };
    double tolerance = atof(argv[5]), largest = 0, worst = 0;
    size_t n = a[0].bytes / (size_t)a[0].size;
    if (n != a[1].bytes / (size_t)a[1].size || n != b[0].bytes / (size_t)b[0].size ||
        n != b[1].bytes / (size_t)b[1].size) {
        printf("other tensors\n");
        return 1;
    }
    int bad = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(change(b, i)));
    size_t from, to;
    for (const char *at = b[0].header; (at = next_tensor(at, &from, &to));) {
        double diff = 0, most = 0;
        for (size_t i = from / (size_t)b[0].size; i < to / (size_t)b[0].size; i++) {
            double d = fabs(change(a, i) - change(b, i));
            diff = d <= diff ? diff : d;        // keeps what is no number
            most = fmax(most, fabs(change(b, i)));
        }
        double e = diff / fmax(fmax(most, 0.01 * largest), 1e-300);
        worst = e <= worst ? worst : e;
        bad += !(e <= tolerance);
    }
    printf("%.2g\n", worst);
    return bad > 0 || largest == 0;
}
