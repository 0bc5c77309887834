/* Dot products of a group for AVX-512 BW: of int8 as pairs of 16 bits, so that nothing saturates; of int4 in 16 bits for a whole group. */
#ifndef FC_DOTS_AVX512_H
#define FC_DOTS_AVX512_H

#define FC_QUANTISED_ROWS 6

typedef __m512i d8, d4, w4;
typedef struct {
    __m512i even, odd; /* the first and third byte of four, and the others */
} w8;

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
static inline d8 d8_start(const int32_t *start) { return _mm512_setzero_si512(); }

static inline w8 w8_load(const uint8_t *p)
{
    __m512i w = _mm512_loadu_si512((const void *)p);
    return (w8){_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), _mm512_srai_epi16(w, 8)};
}

static inline d8 d8_add(d8 s, w8 w, const int8_t *q, const int16_t *wide)
{
    s = _mm512_add_epi32(s, _mm512_madd_epi16(w.even, fc_four(wide)));
    FC_KEEP(s);
    s = _mm512_add_epi32(s, _mm512_madd_epi16(w.odd, fc_four(wide + 2)));
    FC_KEEP(s);
    return s;
}

static inline p16 d8_sum(d8 s) { return _mm512_cvtepi32_ps(s); }

static inline w4 w4_load(const uint8_t *p, int quad)
{
    __m512i w = _mm512_loadu_si512((const void *)p);
    return _mm512_and_si512(quad < 4 ? w : _mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
}

static inline d4 d4_add(d4 s, w4 w, const int8_t *q, const int16_t *wide)
{
    s = _mm512_add_epi16(s, _mm512_maddubs_epi16(w, fc_four(q)));
    FC_KEEP(s);
    return s;
}

static inline p16 d4_sum(d4 s) { return _mm512_cvtepi32_ps(_mm512_madd_epi16(s, _mm512_set1_epi16(1))); }

#endif
