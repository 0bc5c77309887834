/* Primitives in plain C: the specification that every other instruction set reproduces bit for bit. */
#ifndef FC_SIMD_SCALAR_H
#define FC_SIMD_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"
#include "half.h"

#define FC_ISA scalar
/* Panels that a tile of two and three, and of four to six rows takes at once: what the registers hold. */
#define FC_PANELS_2 2
#define FC_PANELS_4 1
#define FC_TOUCHES 0 /* whether tiles touch what comes after them */

typedef struct {
    float v[16];
} p16;

#define FC_EACH(expression)        \
    p16 r;                         \
    for (int i = 0; i < 16; i++) { \
        r.v[i] = (expression);     \
    }                              \
    return r

static inline p16 p16_zero(void) { FC_EACH(0.0f); }
static inline p16 p16_set1(float x) { FC_EACH(x); }
static inline p16 p16_load(const float *p) { FC_EACH(p[i]); }
static inline void p16_store(float *p, p16 a) { memcpy(p, a.v, sizeof a.v); }
static inline p16 p16_add(p16 a, p16 b) { FC_EACH(a.v[i] + b.v[i]); }
static inline p16 p16_sub(p16 a, p16 b) { FC_EACH(a.v[i] - b.v[i]); }
static inline p16 p16_mul(p16 a, p16 b) { FC_EACH(a.v[i] * b.v[i]); }
static inline p16 p16_div(p16 a, p16 b) { FC_EACH(a.v[i] / b.v[i]); }
static inline p16 p16_max(p16 a, p16 b) { FC_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline p16 p16_min(p16 a, p16 b) { FC_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
/* Not inlined: sixteen calls of fmaf cost far more than the one around them, and copies in every tile take a minute to compile. */
static __attribute__((noinline)) p16 p16_fma(p16 a, p16 b, p16 c) { FC_EACH(fmaf(a.v[i], b.v[i], c.v[i])); }

/* The fixed tree: lanes 8 apart, then 4, 2, 1. */
#define FC_TREE(name, combined)                       \
    static inline float name(p16 a)                   \
    {                                                 \
        for (int width = 8; width; width /= 2) {      \
            for (int i = 0; i < width; i++) {         \
                float x = a.v[i], y = a.v[i + width]; \
                a.v[i] = combined;                    \
            }                                         \
        }                                             \
        return a.v[0];                                \
    }
FC_TREE(p16_sum, x + y)
FC_TREE(p16_largest, x > y ? x : y)
#undef FC_TREE

static inline uint32_t fc_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float fc_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline p16 p16_add_exponent(p16 a, p16 n) { FC_EACH(fc_from_bits(fc_bits(a.v[i]) + (fc_bits(n.v[i]) << 23))); }

static inline p16 p16_load_f32(const void *p) { return p16_load((const float *)p); }

static inline p16 p16_load_bf16(const void *p)
{
    const uint32_t *w = (const uint32_t *)p;
    FC_EACH(fc_from_bits(i < 8 ? w[i] << 16 : w[i - 8] & 0xffff0000u));
}

static inline p16 p16_load_f16(const void *p)
{
    const uint16_t *h = (const uint16_t *)p;
    FC_EACH(fc_half_to_float(h[i]));
}

static inline p16 p16_load_s8(const void *p) { FC_EACH((float)((const int8_t *)p)[i]); }

static inline void p16_store_f16(void *p, p16 a)
{
    uint16_t *h = (uint16_t *)p;
    for (int i = 0; i < 16; i++) {
        h[i] = fc_float_to_half(a.v[i]);
    }
}

/* The lowest byte of each lane: to q, and widened to `wide`, of four the second and third swapped. */
static inline void p16_store_low_bytes(int8_t *q, int16_t *wide, p16 a)
{
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(fc_bits(a.v[i]) & 0xff);
        wide[i % 4 == 1 ? i + 1 : i % 4 == 2 ? i - 1 : i] = q[i];
    }
}

#undef FC_EACH

#include "dots_scalar.h"

#endif
