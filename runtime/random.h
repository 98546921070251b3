/*
 * random.h - every random number of a run, from one counter-based generator.
 *
 * Philox 4x32-10 (Salmon et al., 2011) maps a counter and a key to 128 bits.
 * Counters hold global indices only (token, feature, element), keys the seed
 * and the step: a number never depends on the layout or on an order of calls.
 *
 * Streams, and the constant that keeps each apart from the others:
 *
 *   dropout   ctr {token lo, token hi, feature, salt}   key {seed lo ^ 0x5eed, step}
 *   initial   ctr {block lo, hi, name lo, name hi}      key {seed lo, seed hi}
 *   shuffle   ctr {number lo, number hi, epoch lo, hi}  key {seed lo ^ 0x5f1e, seed hi}
 *   masked    ctr {token lo, token hi, 0, 0x3a5c}       key {seed lo ^ 0x3a5c, step}
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void rt_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

/* Global token: (sequence index within the whole step's batch) * sequence + position.
 * An element is kept where the word >= rt_dropout_limit(p), and is x / (1-p) then. */
uint32_t rt_dropout_word(uint64_t seed, uint32_t step, uint32_t salt, uint64_t token,
                         uint32_t feature);
uint32_t rt_dropout_limit(double p);        // floor(p * 2^32), p in [0, 1)

/* Initial weights; kind as InitKind of the plan: 0 normal(a), 1 uniform(-a, a),
 * 2 constant a. index is row-major in the logical [rows, width] shape. The bits
 * are the same on every machine and in every range. Some 4 ns each. */
enum { RT_INIT_NORMAL, RT_INIT_UNIFORM, RT_INIT_CONSTANT };
double   rt_init_value(int kind, double a, uint64_t seed, uint64_t name_hash, uint64_t index);
void     rt_init_range(int kind, double a, uint64_t seed, uint64_t name_hash, uint64_t first,
                       size_t n, double *out);      // out[i] = value of index first + i
uint64_t rt_name_hash(const char *name);            // FNV-1a 64

/* order = shuffle: the sequences of an epoch are sorted by this value. */
uint64_t rt_shuffle_value(uint64_t seed, uint64_t epoch, uint64_t number);

/* objective = masked(p, token): is this global token of this step chosen? */
bool rt_masked(uint64_t seed, uint32_t step, uint64_t token, double p);

#endif
