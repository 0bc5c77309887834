/* NEON with the dot products of bytes of ARMv8.2. */
#ifndef FC_SIMD_NEONDOT_H
#define FC_SIMD_NEONDOT_H

#define FC_OTHER_DOTS
#include "simd_neon.h"

#undef FC_ISA
#define FC_ISA neondot
#define FC_QUANTISED_ROWS 4

typedef struct {
    int32x4_t v[4];
} d8, d4;
typedef struct {
    int8x16_t v[4];
} w8, w4;

static inline d4 d4_start(const int32_t *start)
{
    int32x4_t zero = vdupq_n_s32(0);
    return (d4){{zero, zero, zero, zero}};
}
static inline d8 d8_start(const int32_t *start) { return d4_start(start); }

static inline w8 w8_load(const uint8_t *p)
{
    w8 w;
    for (int i = 0; i < 4; i++) {
        w.v[i] = vld1q_s8((const int8_t *)p + i * 16);
    }
    return w;
}

static inline w4 w4_load(const uint8_t *p, int quad)
{
    w4 w;
    for (int i = 0; i < 4; i++) {
        uint8x16_t both = vld1q_u8(p + i * 16);
        w.v[i] = vreinterpretq_s8_u8(quad < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4));
    }
    return w;
}

static inline d8 d8_add(d8 s, w8 w, const int8_t *q, const int16_t *wide)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    for (int i = 0; i < 4; i++) {
        s.v[i] = vdotq_s32(s.v[i], w.v[i], vreinterpretq_s8_s32(vdupq_n_s32(four)));
    }
    return s;
}
static inline d4 d4_add(d4 s, w4 w, const int8_t *q, const int16_t *wide) { return d8_add(s, w, q, wide); }

static inline p16 d8_sum(d8 s)
{
    return (p16){vcvtq_f32_s32(s.v[0]), vcvtq_f32_s32(s.v[1]), vcvtq_f32_s32(s.v[2]), vcvtq_f32_s32(s.v[3])};
}
static inline p16 d4_sum(d4 s) { return d8_sum(s); }

#endif
