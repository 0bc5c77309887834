/* Dot products of a group in plain C. */
#ifndef FC_DOTS_SCALAR_H
#define FC_DOTS_SCALAR_H

#define FC_QUANTISED_ROWS 1

typedef struct {
    int32_t v[16];
} d8;
typedef struct {
    int8_t v[64];
} w8;
typedef d8 d4;
typedef w8 w4;

static inline d4 d4_start(const int32_t *start) { return (d4){{0}}; }
static inline d8 d8_start(const int32_t *start) { return d4_start(start); }

static inline w8 w8_load(const uint8_t *p)
{
    w8 w;
    memcpy(&w, p, sizeof w);
    return w;
}

static inline w4 w4_load(const uint8_t *p, int quad)
{
    w4 w;
    for (int i = 0; i < 64; i++) {
        w.v[i] = (int8_t)(quad < 4 ? p[i] & 15 : p[i] >> 4);
    }
    return w;
}

static inline d8 d8_add(d8 sums, w8 w, const int8_t *q, const int16_t *wide)
{
    for (int i = 0; i < 64; i++) {
        sums.v[i / 4] += w.v[i] * q[i % 4];
    }
    return sums;
}
static inline d4 d4_add(d4 sums, w4 w, const int8_t *q, const int16_t *wide) { return d8_add(sums, w, q, wide); }

static inline p16 d8_sum(d8 sums)
{
    p16 r;
    for (int i = 0; i < 16; i++) {
        r.v[i] = (float)sums.v[i];
    }
    return r;
}
static inline p16 d4_sum(d4 sums) { return d8_sum(sums); }

#endif
