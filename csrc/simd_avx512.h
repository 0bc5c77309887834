/* Primitives for AVX-512 F, BW and VL: sixteen lanes are one register. */
#ifndef FC_SIMD_AVX512_H
#define FC_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"

#define FC_ISA avx512
/* An accumulator is one chain of one register here: more panels at once keep both multipliers busy. */
#define FC_PANELS_2 4
#define FC_PANELS_4 4
#define FC_TOUCHES 1

typedef __m512 p16;

static inline p16 p16_zero(void) { return _mm512_setzero_ps(); }
static inline p16 p16_set1(float v) { return _mm512_set1_ps(v); }
static inline p16 p16_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void p16_store(float *p, p16 a) { _mm512_storeu_ps(p, a); }
static inline p16 p16_add(p16 a, p16 b) { return _mm512_add_ps(a, b); }
static inline p16 p16_sub(p16 a, p16 b) { return _mm512_sub_ps(a, b); }
static inline p16 p16_mul(p16 a, p16 b) { return _mm512_mul_ps(a, b); }
static inline p16 p16_div(p16 a, p16 b) { return _mm512_div_ps(a, b); }
static inline p16 p16_max(p16 a, p16 b) { return _mm512_max_ps(a, b); } /* a > b ? a : b, so a NaN in either gives b */
static inline p16 p16_min(p16 a, p16 b) { return _mm512_min_ps(a, b); } /* a < b ? a : b */
static inline p16 p16_fma(p16 a, p16 b, p16 c) { return _mm512_fmadd_ps(a, b, c); }

/* The fixed tree: lanes 8 apart, then 4, 2, 1. */
#define FC_TREE(name, op)                                                                   \
    static inline float name(p16 a)                                                         \
    {                                                                                       \
        __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));     \
        __m256 v8 = _mm256_##op##_ps(_mm512_castps512_ps256(a), high);                      \
        __m128 v = _mm_##op##_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1)); \
        v = _mm_##op##_ps(v, _mm_movehl_ps(v, v));                                          \
        return _mm_cvtss_f32(_mm_##op##_ss(v, _mm_movehdup_ps(v)));                         \
    }
FC_TREE(p16_sum, add)
FC_TREE(p16_largest, max)
#undef FC_TREE

/* a * 2^n, where the low bits of n's representation hold the integer (see exp16). */
static inline p16 p16_add_exponent(p16 a, p16 n)
{
    __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), shifted));
}

static inline p16 p16_load_f32(const void *p) { return p16_load((const float *)p); }

/* Eight u32, lane j in the low half and lane j + 8 in the high half. */
static inline p16 p16_load_bf16(const void *p)
{
    const __m512i low_half_up = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
    __m512i w = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_sllv_epi32(w, low_half_up), _mm512_set1_epi32((int)0xffff0000u)));
}

static inline p16 p16_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

static inline p16 p16_load_s8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline void p16_store_f16(void *p, p16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

/* The lowest byte of each lane: to q, and widened to `wide`, of four the second and third swapped. */
static inline void p16_store_low_bytes(int8_t *q, int16_t *wide, p16 a)
{
    __m128i bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(a));
    _mm_storeu_si128((__m128i *)q, bytes);
    bytes = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    _mm256_storeu_si256((__m256i *)wide, _mm256_cvtepi8_epi16(bytes));
}

#ifndef FC_OTHER_DOTS
#include "dots_avx512.h"
#endif

#endif
