/* AVX-512 with VNNI, and tiles of AMX for sixteen rows at a time: a group of them (16 rows of 32 bytes) times a group of a panel (8
 * quads of 16 lanes, which is the layout of the panels) is one instruction, whose int32 sums go through memory to be scaled. */
#ifndef FC_SIMD_AVX512AMX_H
#define FC_SIMD_AVX512AMX_H

#include "isa_names.h"
#include "simd_avx512vnni.h"

#undef FC_ISA
#define FC_ISA avx512amx
#define FC_MATRIX_ROWS 16

/* Shapes of the eight tiles, as LDTILECFG takes them: 0-3 hold sums, 4 and 5 rows, 6 and 7 weights. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_a_row[16];
    uint8_t rows[16];
} fc_tile_shapes;

/* The operating system gives a thread's tiles up with the configuration, so that none is saved between maps. */
static inline void fc_matrix_begin(void)
{
    static const fc_tile_shapes shapes __attribute__((aligned(64))) = {
        .palette = 1,
        .bytes_a_row = {64, 64, 64, 64, 32, 32, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 8, 8},
    };
    _tile_loadconfig(&shapes);
}

static inline void fc_matrix_end(void) { _tile_release(); }

/* 512 bytes of the weights of a group: as they are, or nibbles one a byte. */
static inline const uint8_t *fc_matrix_weights(const int dtype, const uint8_t *block, uint8_t *bytes)
{
    if (dtype == FC_INT8) {
        return block;
    }
    for (int quad = 0; quad < FC_GROUP / 4; quad++) {
        _mm512_store_si512((void *)(bytes + quad * 64), w4_load(block + quad % 4 * 64, quad));
    }
    __asm__ volatile("" ::: "memory"); /* tiles are loaded behind the compiler's back */
    return bytes;
}

/* SUMS, ROWS and WEIGHTS are numbers of tiles. */
#define FC_MATRIX_GROUP(SUMS, ROWS, WEIGHTS, i)                                                      \
    if (g + i < groups) {                                                                            \
        _tile_zero(SUMS);                                                                            \
        _tile_loadd(ROWS, row.q + (g + i) * FC_GROUP, ld_x * 4);                                     \
        _tile_loadd(WEIGHTS, fc_matrix_weights(dtype, block + (g + i) * block_bytes, bytes[i]), 64); \
        _tile_dpbssd(SUMS, ROWS, WEIGHTS);                                                           \
        _tile_stored(SUMS, exact[i], 64);                                                            \
    }

/* Sixteen rows and a panel. Four groups are under way at a time. */
FC_INLINE void fc_matrix_tile(const int dtype, const float *x, ptrdiff_t ld_x, const uint8_t *block, ptrdiff_t groups,
                              float *acc, ptrdiff_t ld_acc)
{
    enum { TOGETHER = 4 };
    const ptrdiff_t block_bytes = fc_block_bytes(dtype), scales = dtype == FC_INT8 ? 512 : 256;
    const fc_q8_row row = fc_q8_row_of(x, groups);
    int32_t exact[TOGETHER][FC_MATRIX_ROWS * 16] __attribute__((aligned(64)));
    uint8_t bytes[TOGETHER][FC_GROUP * 16] __attribute__((aligned(64)));
    p16 sums[FC_MATRIX_ROWS];
    for (int r = 0; r < FC_MATRIX_ROWS; r++) {
        sums[r] = p16_zero();
    }
    for (ptrdiff_t g = 0; g < groups; g += TOGETHER) {
        FC_MATRIX_GROUP(0, 4, 6, 0)
        FC_MATRIX_GROUP(1, 5, 7, 1)
        FC_MATRIX_GROUP(2, 4, 6, 2)
        FC_MATRIX_GROUP(3, 5, 7, 3)
        for (ptrdiff_t i = 0; i < TOGETHER && g + i < groups; i++) {
            const uint8_t *halves = block + (g + i) * block_bytes + scales;
            p16 scale = p16_load_f16(halves), minimum = dtype == FC_INT4 ? p16_load_f16(halves + 32) : p16_zero();
            FC_UNROLL
            for (int r = 0; r < FC_MATRIX_ROWS; r++) {
                p16 sum = d8_sum(_mm512_load_si512((const void *)(exact[i] + r * 16)));
                sums[r] = p16_fma(sum, p16_mul(scale, p16_set1(row.scale[g + i + r * ld_x])), sums[r]);
                if (dtype == FC_INT4) {
                    sums[r] = p16_fma(minimum, p16_set1(row.scaled_sum[g + i + r * ld_x]), sums[r]);
                }
            }
        }
    }
    FC_UNROLL
    for (int r = 0; r < FC_MATRIX_ROWS; r++) {
        p16_store(acc + r * ld_acc, sums[r]);
    }
}
#undef FC_MATRIX_GROUP

#endif
