/* Dot products of a group for every aarch64: products of bytes in 16 bits, of int4 for a whole group. */
#ifndef FC_DOTS_NEON_H
#define FC_DOTS_NEON_H

#define FC_QUANTISED_ROWS 4

typedef struct {
    int32x4_t pairs[8]; /* of two lanes each, two sums a lane */
} d8;
typedef struct {
    int16x8_t fours[8]; /* of two lanes each, four sums a lane */
} d4;
typedef struct {
    int8x16_t v[4];
} w8, w4;

static inline int8x16_t fc_four(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

static inline d8 d8_start(const int32_t *start)
{
    d8 s;
    for (int i = 0; i < 8; i++) {
        s.pairs[i] = vdupq_n_s32(0);
    }
    return s;
}

static inline d4 d4_start(const int32_t *start)
{
    d4 s;
    for (int i = 0; i < 8; i++) {
        s.fours[i] = vdupq_n_s16(0);
    }
    return s;
}

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
    int8x16_t four = fc_four(q);
    for (int i = 0; i < 4; i++) {
        s.pairs[2 * i] = vpadalq_s16(s.pairs[2 * i], vmull_s8(vget_low_s8(w.v[i]), vget_low_s8(four)));
        s.pairs[2 * i + 1] = vpadalq_s16(s.pairs[2 * i + 1], vmull_high_s8(w.v[i], four));
    }
    return s;
}

static inline d4 d4_add(d4 s, w4 w, const int8_t *q, const int16_t *wide)
{
    int8x16_t four = fc_four(q);
    for (int i = 0; i < 4; i++) {
        s.fours[2 * i] = vmlal_s8(s.fours[2 * i], vget_low_s8(w.v[i]), vget_low_s8(four));
        s.fours[2 * i + 1] = vmlal_high_s8(s.fours[2 * i + 1], w.v[i], four);
    }
    return s;
}

static inline p16 d8_sum(d8 s)
{
    float32x4_t v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = vcvtq_f32_s32(vpaddq_s32(s.pairs[2 * i], s.pairs[2 * i + 1]));
    }
    return (p16){v[0], v[1], v[2], v[3]};
}

static inline p16 d4_sum(d4 s)
{
    d8 pairs;
    for (int i = 0; i < 8; i++) {
        pairs.pairs[i] = vpaddlq_s16(s.fours[i]);
    }
    return d8_sum(pairs);
}

#endif
