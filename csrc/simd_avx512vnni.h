/* AVX-512 with VNNI: dot products of a group by instructions that multiply unsigned by signed bytes. */
#ifndef FC_SIMD_AVX512VNNI_H
#define FC_SIMD_AVX512VNNI_H

#define FC_OTHER_DOTS
#include "simd_avx512.h"

#undef FC_ISA
#define FC_ISA avx512vnni
#define FC_QUANTISED_ROWS 6
#define FC_QUANTISED_PANELS 2

typedef __m512i d8, d4, w8, w4;

static inline __m512i fc_four(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

static inline d4 d4_start(void) { return _mm512_setzero_si512(); }

/* Weights are multiplied as q + 128, so 128 times the sum of x comes off. */
static inline d8 d8_start(const fc_q8_group *x) { return _mm512_set1_epi32(-128 * x->sum); }

static inline w8 w8_load(const uint8_t *p)
{
    return _mm512_xor_si512(_mm512_loadu_si512((const void *)p), _mm512_set1_epi8(-128));
}

static inline w4 w4_load(const uint8_t *p, int quad)
{
    __m512i w = _mm512_loadu_si512((const void *)p);
    return _mm512_and_si512(quad < 4 ? w : _mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
}

static inline d8 d8_add(d8 s, w8 w, const fc_q8_group *x, int quad)
{
    return _mm512_dpbusd_epi32(s, w, fc_four(x->q + quad * 4));
}
static inline d4 d4_add(d4 s, w4 w, const fc_q8_group *x, int quad) { return d8_add(s, w, x, quad); }

static inline p16 d8_sum(d8 s) { return _mm512_cvtepi32_ps(s); }
static inline p16 d4_sum(d4 s) { return _mm512_cvtepi32_ps(s); }

#endif
