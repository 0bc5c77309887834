/* AVX-512 with VNNI: dot products of a group by instructions that multiply unsigned by signed bytes. */
#ifndef FC_SIMD_AVX512VNNI_H
#define FC_SIMD_AVX512VNNI_H

#define FC_OTHER_DOTS
#include "simd_avx512.h"

#undef FC_ISA
#define FC_ISA avx512vnni
#define FC_QUANTISED_ROWS 6

typedef __m512i d8, d4, w8, w4;

/* Sums stay in registers, and rows in the order of the source: moved apart, they would not fit. */
#ifndef FC_KEEP
#define FC_KEEP(v) __asm__ volatile("" : "+v"(v))
#endif

static inline __m512i fc_four(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

static inline d4 d4_start(const int32_t *start) { return _mm512_setzero_si512(); }

/* Weights are multiplied as q + 128, so 128 times the sum of x comes off. */
static inline d8 d8_start(const int32_t *start) { return _mm512_set1_epi32(*start); }

static inline w8 w8_load(const uint8_t *p)
{
    return _mm512_xor_si512(_mm512_loadu_si512((const void *)p), _mm512_set1_epi8(-128));
}

static inline w4 w4_load(const uint8_t *p, int quad)
{
    __m512i w = _mm512_loadu_si512((const void *)p);
    return _mm512_and_si512(quad < 4 ? w : _mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
}

static inline d8 d8_add(d8 s, w8 w, const int8_t *q, const int16_t *wide)
{
    s = _mm512_dpbusd_epi32(s, w, fc_four(q));
    FC_KEEP(s);
    return s;
}
static inline d4 d4_add(d4 s, w4 w, const int8_t *q, const int16_t *wide) { return d8_add(s, w, q, wide); }

static inline p16 d8_sum(d8 s) { return _mm512_cvtepi32_ps(s); }
static inline p16 d4_sum(d4 s) { return _mm512_cvtepi32_ps(s); }

#endif
