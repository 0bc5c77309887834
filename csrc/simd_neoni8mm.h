/* NEON with dot products, and with products of 2 x 8 by 8 x 2 bytes (ARMv8.6, FEAT_I8MM) for four rows at a time. */
#ifndef FC_SIMD_NEONI8MM_H
#define FC_SIMD_NEONI8MM_H

#include "isa_names.h"
#include "simd_neondot.h"

#undef FC_ISA
#define FC_ISA neoni8mm
#define FC_MATRIX_ROWS 4

static inline void fc_matrix_begin(void) {}
static inline void fc_matrix_end(void) {}

/* Eight values of a row and of the next one. */
static inline int8x16_t fc_two_rows(const int8_t *q, ptrdiff_t row_bytes)
{
    return vcombine_s8(vld1_s8(q), vld1_s8(q + row_bytes));
}

/* Four rows and a panel. sums[pair][i] holds the products of lanes 2 i and 2 i + 1 with the two rows of a pair. */
FC_INLINE void fc_matrix_tile(const int dtype, const float *x, ptrdiff_t ld_x, const uint8_t *block, ptrdiff_t groups,
                              float *acc, ptrdiff_t ld_acc)
{
    enum { PAIRS = FC_MATRIX_ROWS / 2, LANE_PAIRS = 8 };
    const ptrdiff_t block_bytes = fc_block_bytes(dtype), scales = dtype == FC_INT8 ? 512 : 256, row_bytes = ld_x * 4;
    const fc_q8_row row = fc_q8_row_of(x, groups);
    p16 chains[FC_MATRIX_ROWS];
    for (int r = 0; r < FC_MATRIX_ROWS; r++) {
        chains[r] = p16_zero();
    }
    for (ptrdiff_t g = 0; g < groups; g++, block += block_bytes) {
        int32x4_t sums[PAIRS][LANE_PAIRS];
        for (int pair = 0; pair < PAIRS; pair++) {
            for (int i = 0; i < LANE_PAIRS; i++) {
                sums[pair][i] = vdupq_n_s32(0);
            }
        }
        for (int quad = 0; quad < FC_GROUP / 4; quad += 2) {
            const uint8_t *p = block + (dtype == FC_INT8 ? quad : quad % 4) * 64;
            w8 first = dtype == FC_INT8 ? w8_load(p) : w4_load(p, quad);
            w8 second = dtype == FC_INT8 ? w8_load(p + 64) : w4_load(p + 64, quad);
            int8x16_t rows[PAIRS];
            for (int pair = 0; pair < PAIRS; pair++) {
                rows[pair] = fc_two_rows(row.q + g * FC_GROUP + quad * 4 + 2 * pair * row_bytes, row_bytes);
            }
            for (int i = 0; i < LANE_PAIRS / 2; i++) {
                int32x4_t a = vreinterpretq_s32_s8(first.v[i]), b = vreinterpretq_s32_s8(second.v[i]);
                int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(a, b)), high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
                for (int pair = 0; pair < PAIRS; pair++) {
                    sums[pair][2 * i] = vmmlaq_s32(sums[pair][2 * i], low, rows[pair]);
                    sums[pair][2 * i + 1] = vmmlaq_s32(sums[pair][2 * i + 1], high, rows[pair]);
                }
            }
        }
        p16 scale = p16_load_f16(block + scales);
        for (int r = 0; r < FC_MATRIX_ROWS; r++) {
            d8 lanes;
            for (int i = 0; i < LANE_PAIRS / 2; i++) {
                int32x4_t a = sums[r / 2][2 * i], b = sums[r / 2][2 * i + 1];
                lanes.v[i] = r % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
            }
            chains[r] = p16_fma(d8_sum(lanes), p16_mul(scale, p16_set1(row.scale[g + r * ld_x])), chains[r]);
            if (dtype == FC_INT4) {
                chains[r] = p16_fma(p16_load_f16(block + scales + 32), p16_set1(row.scaled_sum[g + r * ld_x]), chains[r]);
            }
        }
    }
    for (int r = 0; r < FC_MATRIX_ROWS; r++) {
        p16_store(acc + r * ld_acc, chains[r]);
    }
}

#endif
