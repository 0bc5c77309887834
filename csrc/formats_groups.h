/* The formats in groups of 32, a part of formats.c: rounding, and the same bytes where a checkpoint has them already. */
#ifndef FC_FORMATS_GROUPS_H
#define FC_FORMATS_GROUPS_H

#include <math.h>
#include <string.h>

#include "formats.h"
#include "half.h"

enum { INT8_SCALES = 512, INT4_SCALES = 256, INT4_MINIMA = 288 };

static uint16_t *halves_of(void *block, int at) { return (uint16_t *)((uint8_t *)block + at); }
static float half_of(const void *block, int at, int lane)
{
    return fc_half_to_float(((const uint16_t *)((const uint8_t *)block + at))[lane]);
}

/* The range of a group that is filled up with zeros; both are NaN where a value is not finite. */
static void range_of(const float *values, int n, float *least, float *most)
{
    float zero = 0.0f;
    *least = *most = values[0];
    for (int i = 0; i < n; i++) {
        zero += values[i] * 0.0f;
        *least = values[i] < *least ? values[i] : *least;
        *most = values[i] > *most ? values[i] : *most;
    }
    *least += zero;
    *most += zero;
}

/* The searches below take groups of 32, filled up with zeros, as eight vectors; sums have a fixed order. */
enum { VECTORS = FC_GROUP / 4 };
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

static inline f32x4 either(i32x4 mask, f32x4 a, f32x4 b) { return (f32x4)((mask & (i32x4)a) | (~mask & (i32x4)b)); }
static inline float sum_of(f32x4 x) { return (x[0] + x[2]) + (x[1] + x[3]); }

/* q = the nearest integer to (x - least) / step, ties to even, in [low, high]; low where that is NaN. Returns the sum of squared errors
 * of those with weight 1; the others have 0. */
static inline float quantize(const f32x4 *x, const f32x4 *weight, float least, float step, float low, float high, f32x4 *q)
{
    const float even = 12582912.0f; /* 1.5 * 2^23, from where on floats are whole */
    const f32x4 lows = {low, low, low, low}, highs = {high, high, high, high};
    float inverse = step > 0.0f ? 1.0f / step : 0.0f;
    f32x4 squares = {0};
    for (int i = 0; i < VECTORS; i++) {
        f32x4 t = (x[i] - least) * inverse;
        t = either(t > lows, t, lows);
        t = either(t < highs, t, highs);
        q[i] = (t + even) - even;
        f32x4 off = (q[i] * step + least - x[i]) * weight[i];
        squares += off * off;
    }
    return sum_of(squares);
}

/* The first `count` values of a group, and weights of 1 for them. */
static void fill(f32x4 *x, f32x4 *weight, const float *values, int count)
{
    float one[FC_GROUP] = {0};
    for (int i = 0; i < count; i++) {
        one[i] = 1.0f;
    }
    memset(x, 0, FC_GROUP * sizeof(float));
    memcpy(x, values, (size_t)count * sizeof(float));
    memcpy(weight, one, sizeof one);
}

/* The largest number becomes 127, 126 ... or 120, whichever makes the least error: coarser steps may lie better. */
static void pack_int8(void *blocks, int lane, const float *values, int n)
{
    enum { STEPS = 8 };
    uint8_t *block = (uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT8_SCALES + 32) {
        int count = n < FC_GROUP ? n : FC_GROUP;
        f32x4 x[VECTORS], weight[VECTORS], q[VECTORS], tried[VECTORS];
        float least, most, best = 0.0f;
        fill(x, weight, values, count);
        range_of(values, count, &least, &most);
        float size = most > -least ? most : -least;
        uint16_t scale = 0;
        for (int i = 0; i < STEPS; i++) {
            float target = (float)(127 - i);
            uint16_t half = fc_float_to_half(size < 127.0f * 65504.0f ? size / target
                                             : size == size && i == 0 ? 65504.0f
                                                                      : size);
            if (fc_half_to_float(half) * 127.5f <
                size) { /* what rounds down among subnormal halves would cut the largest off */
                half += half < 0x7bff;
            }
            float error = quantize(x, weight, 0.0f, fc_half_to_float(half), -127.0f, 127.0f, tried);
            if (i == 0 || error < best) {
                best = error;
                scale = half;
                memcpy(q, tried, sizeof q);
            }
        }
        for (int i = 0; i < FC_GROUP; i++) {
            ((int8_t *)block)[i / 4 * 64 + lane * 4 + i % 4] = (int8_t)q[i / 4][i % 4];
        }
        halves_of(block, INT8_SCALES)[lane] = scale;
    }
}

static void unpack_int8(const void *blocks, int lane, float *values, int n)
{
    const uint8_t *block = (const uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT8_SCALES + 32) {
        float scale = half_of(block, INT8_SCALES, lane);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            values[i] = scale * (float)((const int8_t *)block)[i / 4 * 64 + lane * 4 + i % 4];
        }
    }
}

static float stored_half(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return fc_half_to_float(half);
}

static void load_int8(const void *elements, float *values, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, from += 2 + FC_GROUP) {
        float scale = stored_half(from);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            values[i] = scale * (float)(int8_t)from[2 + i];
        }
    }
}

static int keep_int8(void *blocks, int lane, const void *elements, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    uint8_t *block = (uint8_t *)blocks;
    int beyond = 0;
    for (; n > 0; n -= FC_GROUP, from += 2 + FC_GROUP, block += INT8_SCALES + 32) {
        memcpy(block + INT8_SCALES + 2 * lane, from, 2);
        for (int i = 0; i < FC_GROUP; i++) {
            beyond |= from[2 + i] == 0x80;
        }
        for (int quad = 0; quad < FC_GROUP / 4; quad++) {
            memcpy(block + quad * 64 + lane * 4, from + 2 + quad * 4, 4);
        }
    }
    return beyond;
}

/* From the whole range in 15, 16 or 17 steps on: the line through the values that the last q fit best, as long as it gets better. */
static void pack_int4(void *blocks, int lane, const float *values, int n)
{
    enum { STARTS = 3, ROUNDS = 6 };
    uint8_t *block = (uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT4_MINIMA + 32) {
        int count = n < FC_GROUP ? n : FC_GROUP;
        f32x4 x[VECTORS], weight[VECTORS], q[VECTORS] = {{0}}, tried[VECTORS], all = {0};
        float least, most, best = INFINITY;
        fill(x, weight, values, count);
        range_of(values, count, &least, &most);
        uint16_t best_scale = fc_float_to_half((most - least) / 15.0f), best_minimum = fc_float_to_half(least);
        for (int i = 0; i < VECTORS; i++) {
            all += x[i];
        }
        float sum_x = sum_of(all);
        for (int start = 0; start < STARTS; start++) {
            float scale = (most - least) / (float)(15 + start), last = INFINITY;
            float minimum = least - 0.5f * (float)start * scale;
            for (int round = 0; round < ROUNDS; round++) {
                uint16_t halves[2] = {fc_float_to_half(scale), fc_float_to_half(minimum)};
                float error = quantize(x, weight, fc_half_to_float(halves[1]), fc_half_to_float(halves[0]), 0.0f, 15.0f, tried);
                if (!(error < last)) {
                    break;
                }
                last = error;
                if (error < best) {
                    best = error;
                    memcpy(q, tried, sizeof q);
                    best_scale = halves[0];
                    best_minimum = halves[1];
                }
                f32x4 first = {0}, second = {0}, product = {0};
                for (int i = 0; i < VECTORS; i++) {
                    f32x4 counted = tried[i] * weight[i];
                    first += counted;
                    second += counted * counted;
                    product += counted * x[i];
                }
                float sum_q = sum_of(first), sum_qq = sum_of(second), sum_qx = sum_of(product);
                float spread = (float)count * sum_qq - sum_q * sum_q;
                if (!(spread > 0.0f)) {
                    break;
                }
                scale = ((float)count * sum_qx - sum_q * sum_x) / spread;
                minimum = (sum_x - scale * sum_q) / (float)count;
            }
        }
        for (int i = 0; i < FC_GROUP / 2; i++) {
            int low = (int)q[i / 4][i % 4], high = i + 16 < count ? (int)q[4 + i / 4][i % 4] : 0;
            block[i / 4 * 64 + lane * 4 + i % 4] = (uint8_t)((i < count ? low : 0) | high << 4);
        }
        halves_of(block, INT4_SCALES)[lane] = best_scale;
        halves_of(block, INT4_MINIMA)[lane] = best_minimum;
    }
}

static void unpack_int4(const void *blocks, int lane, float *values, int n)
{
    const uint8_t *block = (const uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT4_MINIMA + 32) {
        float scale = half_of(block, INT4_SCALES, lane), minimum = half_of(block, INT4_MINIMA, lane);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            uint8_t both = block[i % 16 / 4 * 64 + lane * 4 + i % 4];
            values[i] = fmaf((float)(i < 16 ? both & 15 : both >> 4), scale, minimum);
        }
    }
}

static void load_int4(const void *elements, float *values, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, from += 4 + FC_GROUP / 2) {
        float scale = stored_half(from), minimum = stored_half(from + 2);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            uint8_t both = from[4 + i % 16];
            values[i] = fmaf((float)(i < 16 ? both & 15 : both >> 4), scale, minimum);
        }
    }
}

static int keep_int4(void *blocks, int lane, const void *elements, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    uint8_t *block = (uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, from += 4 + FC_GROUP / 2, block += INT4_MINIMA + 32) {
        memcpy(block + INT4_SCALES + 2 * lane, from, 2);
        memcpy(block + INT4_MINIMA + 2 * lane, from + 2, 2);
        for (int quad = 0; quad < FC_GROUP / 8; quad++) {
            memcpy(block + quad * 64 + lane * 4, from + 4 + quad * 4, 4);
        }
    }
    return 0;
}

#endif
