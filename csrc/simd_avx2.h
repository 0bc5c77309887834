/* Primitives for AVX2 + FMA + F16C: sixteen lanes are two registers. */
#ifndef FC_SIMD_AVX2_H
#define FC_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"

#define FC_ISA avx2
/* Panels that a tile of two and three, and of four to six rows takes at once: what the registers hold. */
#define FC_PANELS_2 2
#define FC_PANELS_4 1
#define FC_TOUCHES 1

typedef struct {
    __m256 lo, hi;
} p16;

static inline p16 p16_zero(void) { return (p16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }

static inline p16 p16_set1(float v)
{
    __m256 x = _mm256_set1_ps(v);
    return (p16){x, x};
}

static inline p16 p16_load(const float *p) { return (p16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }

static inline void p16_store(float *p, p16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

#define FC_BINARY(name, op) \
    static inline p16 name(p16 a, p16 b) { return (p16){op(a.lo, b.lo), op(a.hi, b.hi)}; }
FC_BINARY(p16_add, _mm256_add_ps)
FC_BINARY(p16_sub, _mm256_sub_ps)
FC_BINARY(p16_mul, _mm256_mul_ps)
FC_BINARY(p16_div, _mm256_div_ps)
FC_BINARY(p16_max, _mm256_max_ps) /* a > b ? a : b, so a NaN in either gives b */
FC_BINARY(p16_min, _mm256_min_ps) /* a < b ? a : b */
#undef FC_BINARY

static inline p16 p16_fma(p16 a, p16 b, p16 c)
{
    return (p16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

/* The fixed tree: lanes 8 apart, then 4, 2, 1. */
#define FC_TREE(name, op)                                                                   \
    static inline float name(p16 a)                                                         \
    {                                                                                       \
        __m256 v8 = _mm256_##op##_ps(a.lo, a.hi);                                           \
        __m128 v = _mm_##op##_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1)); \
        v = _mm_##op##_ps(v, _mm_movehl_ps(v, v));                                          \
        return _mm_cvtss_f32(_mm_##op##_ss(v, _mm_movehdup_ps(v)));                         \
    }
FC_TREE(p16_sum, add)
FC_TREE(p16_largest, max)
#undef FC_TREE

/* a * 2^n, where the low bits of n's representation hold the integer (see p16_exp). */
static inline p16 p16_add_exponent(p16 a, p16 n)
{
    __m256i lo = _mm256_slli_epi32(_mm256_castps_si256(n.lo), 23);
    __m256i hi = _mm256_slli_epi32(_mm256_castps_si256(n.hi), 23);
    return (p16){_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.lo), lo)),
                 _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.hi), hi))};
}

static inline p16 p16_load_f32(const void *p) { return p16_load((const float *)p); }

/* Eight u32, lane j in the low half and lane j + 8 in the high half. */
static inline p16 p16_load_bf16(const void *p)
{
    __m256i w = _mm256_loadu_si256((const __m256i *)p);
    return (p16){_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
                 _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u)))};
}

static inline p16 p16_load_f16(const void *p)
{
    const __m128i *h = (const __m128i *)p;
    return (p16){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}

static inline p16 p16_load_s8(const void *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (p16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}

static inline void p16_store_f16(void *p, p16 a)
{
    __m128i *h = (__m128i *)p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

/* The lowest byte of each lane: to q, and widened to `wide`, of four the second and third swapped. */
static inline void p16_store_low_bytes(int8_t *q, int16_t *wide, p16 a)
{
    const __m256i low = _mm256_set1_epi32(0xff);
    __m256i lo = _mm256_and_si256(_mm256_castps_si256(a.lo), low), hi = _mm256_and_si256(_mm256_castps_si256(a.hi), low);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)q, bytes);
    bytes = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    _mm256_storeu_si256((__m256i *)wide, _mm256_cvtepi8_epi16(bytes));
}

#include "dots_avx2.h"

#endif
