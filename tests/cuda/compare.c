/*
 * compare.c - are two safetensors files the same numbers?
 *
 *     compare A B BASE TOLERANCE
 *
 * A and B are what a step made of the weights in BASE: their differences from it are
 * compared, tensor by tensor where the header names one, as design.md 9 does gradients:
 * max |a - b| <= tolerance * max(max |b|, 0.01 G), G the largest of all. All F64 or F32.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char *header; uint64_t n; char *data; size_t bytes; } File;

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
    return f;
}

static double number(const File *f, int size, size_t i)
{
    return size == 8 ? ((const double *)(const void *)f->data)[i]
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

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    File a = read_file(argv[1]), b = read_file(argv[2]), base = read_file(argv[3]);
    double tolerance = atof(argv[4]), largest = 0, worst = 0;
    if (a.bytes != b.bytes || a.bytes != base.bytes || strcmp(a.header, b.header) != 0) {
        printf("other tensors\n");
        return 1;
    }
    int size = strstr(a.header, "\"F64\"") ? 8 : 4, bad = 0;
    for (size_t i = 0; i < a.bytes / (size_t)size; i++)
        largest = fmax(largest, fabs(number(&b, size, i) - number(&base, size, i)));
    size_t from, to;
    for (const char *at = a.header; (at = next_tensor(at, &from, &to));) {
        double diff = 0, most = 0;
        for (size_t i = from / (size_t)size; i < to / (size_t)size; i++) {
            double d = fabs(number(&a, size, i) - number(&b, size, i));
            diff = d <= diff ? diff : d;        // keeps what is no number
            most = fmax(most, fabs(number(&b, size, i) - number(&base, size, i)));
        }
        double e = diff / fmax(fmax(most, 0.01 * largest), 1e-300);
        worst = e <= worst ? worst : e;
        bad += !(e <= tolerance);
    }
    printf("%.2g\n", worst);
    return bad > 0 || largest == 0;
}
