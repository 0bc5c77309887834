/* gemm_int8 and gemm_int4 over the dot products of a set, dots_<isa>.h:
 *   d8, d8_start(start)           of 16 lanes with a group of a row, from zero; what the row has as `start` of the group
 *   w8, w8_load(p)                a quad: four k of 16 lanes
 *   d8_add(d8, w8, q, wide)       and those of one quad more, whose values of the row are q and wide
 *   d8_sum(d8)                    their sums, as floats (exact)
 * and the same for int4, where w4_load(p, quad) takes a quad of nibbles. FC_QUANTISED_ROWS rows fit its registers.
 *
 * A set with a matrix unit has FC_MATRIX_ROWS and, for so many rows and a panel,
 *   fc_matrix_begin(), fc_matrix_tile(dtype, x, ld_x, block, groups, acc, ld_acc), fc_matrix_end()
 *
 * A tile is one panel, so that weights are read in one stream: memory gives half as much to two by turns. The rows of a tile hide
 * each other's latency, a single one that of the next groups. */

FC_INLINE void FC_NAME(quantised_tile)(const int dtype, const int R, const float *x, ptrdiff_t ld_x, const uint8_t *block,
                                       ptrdiff_t groups, float *acc, ptrdiff_t ld_acc)
{
    enum { QUADS = FC_GROUP / 4 };
    const ptrdiff_t block_bytes = fc_block_bytes(dtype), scales = dtype == FC_INT8 ? 512 : 256;
    const fc_q8_row row = fc_q8_row_of(x, groups);
    const int8_t *q = row.q;
    const int16_t *wide = row.wide;
    p16 sums[FC_QUANTISED_ROWS];
    FC_UNROLL
    for (int r = 0; r < R; r++) {
        sums[r] = p16_zero();
    }
    for (ptrdiff_t g = 0; g < groups; g++, block += block_bytes, q += FC_GROUP, wide += FC_GROUP) {
        p16 exact[FC_QUANTISED_ROWS];
#define FC_DOTS(name, load)                                                                                   \
    d##name dots[FC_QUANTISED_ROWS];                                                                          \
    FC_UNROLL                                                                                                 \
    for (int r = 0; r < R; r++) {                                                                             \
        dots[r] = d##name##_start(row.start + g + r * ld_x);                                                  \
    }                                                                                                         \
    FC_UNROLL                                                                                                 \
    for (int quad = 0; quad < QUADS; quad++) {                                                                \
        w##name w = load;                                                                                     \
        FC_UNROLL                                                                                             \
        for (int r = 0; r < R; r++) {                                                                         \
            dots[r] = d##name##_add(dots[r], w, q + r * ld_x * 4 + quad * 4, wide + r * ld_x * 2 + quad * 4); \
        }                                                                                                     \
    }                                                                                                         \
    FC_UNROLL                                                                                                 \
    for (int r = 0; r < R; r++) {                                                                             \
        exact[r] = d##name##_sum(dots[r]);                                                                    \
    }
        if (dtype == FC_INT8) {
            FC_DOTS(8, w8_load(block + quad * 64))
        } else {
            FC_DOTS(4, w4_load(block + quad % 4 * 64, quad))
        }
#undef FC_DOTS
        p16 scale = p16_load_f16(block + scales);
        FC_UNROLL
        for (int r = 0; r < R; r++) {
            sums[r] = p16_fma(exact[r], p16_mul(scale, p16_set1(row.scale[g + r * ld_x])), sums[r]);
        }
        if (dtype == FC_INT4) {
            p16 minimum = p16_load_f16(block + scales + 32);
            FC_UNROLL
            for (int r = 0; r < R; r++) {
                sums[r] = p16_fma(minimum, p16_set1(row.scaled_sum[g + r * ld_x]), sums[r]);
            }
        }
    }
    FC_UNROLL
    for (int r = 0; r < R; r++) {
        p16_store(acc + r * ld_acc, sums[r]);
    }
}

/* Tiles of nearly equal height. Where two rows are over, they go alone: weights that are near cost them little, and a lower first tile
 * would not be faster. */
static inline int FC_NAME(quantised_height)(int rows)
{
    int tiles = (rows + FC_QUANTISED_ROWS - 1) / FC_QUANTISED_ROWS, over = rows - FC_QUANTISED_ROWS;
    return over > 0 && over <= 2 && FC_QUANTISED_ROWS > 2 ? rows - 2 : (rows + tiles - 1) / tiles;
}

FC_INLINE void FC_NAME(gemm_quantised)(const int dtype, const float *x, ptrdiff_t ld_x, int rows, const void *weights,
                                       int panels, int num_k, float *acc, ptrdiff_t ld_acc)
{
    const ptrdiff_t groups = (num_k + FC_GROUP - 1) / FC_GROUP, panel_bytes = groups * fc_block_bytes(dtype);
#ifdef FC_MATRIX_ROWS
    if (rows >= FC_MATRIX_ROWS) {
        fc_matrix_begin();
        for (; rows >= FC_MATRIX_ROWS; rows -= FC_MATRIX_ROWS, x += FC_MATRIX_ROWS * ld_x, acc += FC_MATRIX_ROWS * ld_acc) {
            for (ptrdiff_t p = 0; p < panels; p++) {
                fc_matrix_tile(dtype, x, ld_x, (const uint8_t *)weights + p * panel_bytes, groups, acc + p * FC_LANES, ld_acc);
            }
        }
        fc_matrix_end();
    }
#endif
    for (int height; rows > 0; rows -= height, x += height * ld_x, acc += height * ld_acc) {
        height = FC_NAME(quantised_height)(rows);
        const uint8_t *panel = (const uint8_t *)weights;
        for (int p = 0; p < panels; p++, panel += panel_bytes) {
#define FC_HEIGHT(R)                                                                                      \
    case R:                                                                                               \
        FC_NAME(quantised_tile)(dtype, R, x, ld_x, panel, groups, acc + p * (ptrdiff_t)FC_LANES, ld_acc); \
        break;
            switch (height) {
                FC_HEIGHT(1)
#if FC_QUANTISED_ROWS > 1
                FC_HEIGHT(2)
                FC_HEIGHT(3)
                FC_HEIGHT(4)
#endif
#if FC_QUANTISED_ROWS > 4
                FC_HEIGHT(5)
                FC_HEIGHT(6)
#endif
            }
#undef FC_HEIGHT
        }
    }
}

static void FC_NAME(gemm_int8) FC_GEMM_ARGS
{
    FC_NAME(gemm_quantised)(FC_INT8, x, ld_x, rows, weights, panels, num_k, acc, ld_acc);
}

static void FC_NAME(gemm_int4) FC_GEMM_ARGS
{
    FC_NAME(gemm_quantised)(FC_INT4, x, ld_x, rows, weights, panels, num_k, acc, ld_acc);
}
