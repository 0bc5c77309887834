/* What the checks of kernels are made of: pseudo-random inputs, and the checksum of what comes out. */
#ifndef FC_CHECK_INPUTS_H
#define FC_CHECK_INPUTS_H

#include "selfcheck.h"

#include <string.h>

static inline uint32_t next_bits(fc_check *c)
{
    c->state = c->state * 1664525u + 1013904223u;
    return c->state ^ (c->state >> 15);
}

/* In [-1, 1), of 24 bits. */
static inline float next_float(fc_check *c) { return (float)(int32_t)(next_bits(c) & 0xffffff00u) * 0x1p-31f; }

static inline void fill(fc_check *c, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = scale * next_float(c);
    }
}

static inline void *zeroed(fc_check *c, size_t bytes) { return memset(c->take(c, bytes), 0, bytes); }

static inline float *floats(fc_check *c, size_t n, float scale)
{
    float *x = (float *)c->take(c, (n + 16) * sizeof(float));
    fill(c, x, n, scale);
    memset(x + n, 0xff, 16 * sizeof(float)); /* NaN: must not be read into a result */
    return x;
}

static inline uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 1099511628211u;
    return hash ^ hash >> 32;
}

static inline void add(fc_check *c, const void *data, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)data;
    uint64_t word;
    for (; bytes >= sizeof word; p += sizeof word, bytes -= sizeof word) {
        memcpy(&word, p, sizeof word);
        c->hash = mixed(c->hash, word);
    }
    for (; bytes > 0; p++, bytes--) {
        c->hash = mixed(c->hash, *p);
    }
}

static inline void add_floats(fc_check *c, const float *x, size_t n) { add(c, x, n * sizeof(float)); }

/* Every size, or each fourth one. */
static const int fc_check_sizes[] = {17, 1, 2, 3, 33, 5, 7, 15, 97, 16, 31, 63, 64, 65, 300};
enum { NUM_SIZES = sizeof fc_check_sizes / sizeof fc_check_sizes[0] };
#define EACH_SIZE(c, n)                                                                                               \
    for (size_t n##_index = 0, n; n##_index < NUM_SIZES && (c->restart(c), n = (size_t)fc_check_sizes[n##_index], 1); \
         n##_index += c->thorough ? 1 : 4)

#endif
