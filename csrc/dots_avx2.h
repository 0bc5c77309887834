/* Dot products of a group for AVX2: of int8 as pairs of 16 bits, so that nothing saturates; of int4 in 16 bits for a whole group. */
#ifndef FC_DOTS_AVX2_H
#define FC_DOTS_AVX2_H

#define FC_QUANTISED_ROWS 4

typedef struct {
    __m256i lo, hi;
} d8, d4, w4;
typedef struct {
    __m256i even_lo, odd_lo, even_hi, odd_hi; /* the first and third byte of four, and the others */
} w8;

/* Sums stay in registers, and rows in the order of the source: moved apart, they would not fit. */
#ifndef FC_KEEP
#define FC_KEEP(v) __asm__ volatile("" : "+x"(v))
#endif

static inline __m256i fc_four(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

static inline d4 d4_start(const int32_t *start) { return (d4){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline d8 d8_start(const int32_t *start) { return (d8){_mm256_setzero_si256(), _mm256_setzero_si256()}; }

static inline w8 w8_load(const uint8_t *p)
{
    __m256i lo = _mm256_loadu_si256((const __m256i *)p), hi = _mm256_loadu_si256((const __m256i *)(p + 32));
    return (w8){_mm256_srai_epi16(_mm256_slli_epi16(lo, 8), 8), _mm256_srai_epi16(lo, 8),
                _mm256_srai_epi16(_mm256_slli_epi16(hi, 8), 8), _mm256_srai_epi16(hi, 8)};
}

static inline d8 d8_add(d8 s, w8 w, const int8_t *q, const int16_t *wide)
{
    __m256i even = fc_four(wide), odd = fc_four(wide + 2);
    s.lo = _mm256_add_epi32(s.lo, _mm256_madd_epi16(w.even_lo, even));
    FC_KEEP(s.lo);
    s.hi = _mm256_add_epi32(s.hi, _mm256_madd_epi16(w.even_hi, even));
    FC_KEEP(s.hi);
    s.lo = _mm256_add_epi32(s.lo, _mm256_madd_epi16(w.odd_lo, odd));
    FC_KEEP(s.lo);
    s.hi = _mm256_add_epi32(s.hi, _mm256_madd_epi16(w.odd_hi, odd));
    FC_KEEP(s.hi);
    return s;
}

static inline p16 d8_sum(d8 s) { return (p16){_mm256_cvtepi32_ps(s.lo), _mm256_cvtepi32_ps(s.hi)}; }

static inline w4 w4_load(const uint8_t *p, int quad)
{
    __m256i lo = _mm256_loadu_si256((const __m256i *)p), hi = _mm256_loadu_si256((const __m256i *)(p + 32));
    __m256i low_nibbles = _mm256_set1_epi8(15);
    if (quad >= 4) {
        lo = _mm256_srli_epi16(lo, 4);
        hi = _mm256_srli_epi16(hi, 4);
    }
    return (w4){_mm256_and_si256(lo, low_nibbles), _mm256_and_si256(hi, low_nibbles)};
}

static inline d4 d4_add(d4 s, w4 w, const int8_t *q, const int16_t *wide)
{
    __m256i four = fc_four(q);
    s.lo = _mm256_add_epi16(s.lo, _mm256_maddubs_epi16(w.lo, four));
    FC_KEEP(s.lo);
    s.hi = _mm256_add_epi16(s.hi, _mm256_maddubs_epi16(w.hi, four));
    FC_KEEP(s.hi);
    return s;
}

static inline p16 d4_sum(d4 s)
{
    __m256i ones = _mm256_set1_epi16(1);
    return (p16){_mm256_cvtepi32_ps(_mm256_madd_epi16(s.lo, ones)), _mm256_cvtepi32_ps(_mm256_madd_epi16(s.hi, ones))};
}

#endif
