/* Primitives for NEON (every aarch64): sixteen lanes are four registers. */
#ifndef FC_SIMD_NEON_H
#define FC_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"

#define FC_ISA neon
#define FC_PANELS_2 2
#define FC_PANELS_4 1
#define FC_TOUCHES 1

typedef struct {
    float32x4_t a, b, c, d;
} p16;

static inline p16 p16_zero(void)
{
    float32x4_t x = vdupq_n_f32(0.0f);
    return (p16){x, x, x, x};
}

static inline p16 p16_set1(float v)
{
    float32x4_t x = vdupq_n_f32(v);
    return (p16){x, x, x, x};
}

static inline p16 p16_load(const float *p)
{
    return (p16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

static inline void p16_store(float *p, p16 x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

/* vmaxq and vminq treat NaN and the sign of zero otherwise than x86 does. */
static inline float32x4_t fc_max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
static inline float32x4_t fc_min4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }

#define FC_BINARY(name, op) \
    static inline p16 name(p16 x, p16 y) { return (p16){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)}; }
FC_BINARY(p16_add, vaddq_f32)
FC_BINARY(p16_sub, vsubq_f32)
FC_BINARY(p16_mul, vmulq_f32)
FC_BINARY(p16_div, vdivq_f32)
FC_BINARY(p16_max, fc_max4) /* x > y ? x : y, so a NaN in either gives y */
FC_BINARY(p16_min, fc_min4) /* x < y ? x : y */
#undef FC_BINARY

static inline p16 p16_fma(p16 x, p16 y, p16 z)
{
    return (p16){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}

/* The fixed tree: lanes 8 apart, then 4, 2, 1. */
static inline float p16_sum(p16 x)
{
    float32x4_t v = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline float p16_largest(p16 x)
{
    float32x4_t v = fc_max4(fc_max4(x.a, x.c), fc_max4(x.b, x.d));
    v = fc_max4(v, vextq_f32(v, v, 2));
    return vgetq_lane_f32(v, 0) > vgetq_lane_f32(v, 1) ? vgetq_lane_f32(v, 0) : vgetq_lane_f32(v, 1);
}

static inline float32x4_t fc_add_exponent4(float32x4_t x, float32x4_t n)
{
    uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(n), 23);
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(x), shifted));
}

/* x * 2^n, where the low bits of n's representation hold the integer (see exp16). */
static inline p16 p16_add_exponent(p16 x, p16 n)
{
    return (p16){fc_add_exponent4(x.a, n.a), fc_add_exponent4(x.b, n.b), fc_add_exponent4(x.c, n.c),
                 fc_add_exponent4(x.d, n.d)};
}

static inline p16 p16_load_f32(const void *p) { return p16_load((const float *)p); }

/* Eight u32, lane j in the low half and lane j + 8 in the high half. */
static inline p16 p16_load_bf16(const void *p)
{
    uint32x4_t w0 = vld1q_u32((const uint32_t *)p), w1 = vld1q_u32((const uint32_t *)p + 4), high = vdupq_n_u32(0xffff0000u);
    return (p16){vreinterpretq_f32_u32(vshlq_n_u32(w0, 16)), vreinterpretq_f32_u32(vshlq_n_u32(w1, 16)),
                 vreinterpretq_f32_u32(vandq_u32(w0, high)), vreinterpretq_f32_u32(vandq_u32(w1, high))};
}

static inline p16 p16_load_f16(const void *p)
{
    float16x8_t h0 = vld1q_f16((const float16_t *)p), h1 = vld1q_f16((const float16_t *)p + 8);
    return (p16){vcvt_f32_f16(vget_low_f16(h0)), vcvt_high_f32_f16(h0), vcvt_f32_f16(vget_low_f16(h1)), vcvt_high_f32_f16(h1)};
}

static inline p16 p16_load_s8(const void *p)
{
    int8x16_t bytes = vld1q_s8((const int8_t *)p);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return (p16){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}

static inline void p16_store_f16(void *p, p16 x)
{
    vst1q_f16((float16_t *)p, vcombine_f16(vcvt_f16_f32(x.a), vcvt_f16_f32(x.b)));
    vst1q_f16((float16_t *)p + 8, vcombine_f16(vcvt_f16_f32(x.c), vcvt_f16_f32(x.d)));
}

/* The lowest byte of each lane: to q, and widened to `wide`, of four the second and third swapped. */
static inline void p16_store_low_bytes(int8_t *q, int16_t *wide, p16 x)
{
    static const uint8_t swapped[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    uint16x8_t low = vcombine_u16(vmovn_u32(vreinterpretq_u32_f32(x.a)), vmovn_u32(vreinterpretq_u32_f32(x.b)));
    uint16x8_t high = vcombine_u16(vmovn_u32(vreinterpretq_u32_f32(x.c)), vmovn_u32(vreinterpretq_u32_f32(x.d)));
    int8x16_t bytes = vreinterpretq_s8_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high)));
    vst1q_s8(q, bytes);
    bytes = vqtbl1q_s8(bytes, vld1q_u8(swapped));
    vst1q_s16(wide, vmovl_s8(vget_low_s8(bytes)));
    vst1q_s16(wide + 8, vmovl_high_s8(bytes));
}

#ifndef FC_OTHER_DOTS
#include "dots_neon.h"
#endif

#endif
