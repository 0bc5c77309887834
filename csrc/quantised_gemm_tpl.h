/* gemm_int8 and gemm_int4 over the dot products of a set, dots_<isa>.h:
 *   d8, d8_start(group)           the products of 16 lanes with a group of a row, from zero
 *   w8, w8_load(p)                a quad: four k of 16 lanes
 *   d8_add(d8, w8, group, quad)   and those of one quad more
 *   d8_sum(d8)                    their sums, as floats (exact)
 * and the same for int4, where w4_load(p, quad) takes a quad of nibbles. */

FC_INLINE void FC_NAME(quantised_tile)(const int dtype, const int R, const int P, const float *x, ptrdiff_t ld_x,
                                       const uint8_t *weights, ptrdiff_t panel_bytes, int groups, float *acc, ptrdiff_t ld_acc)
{
    enum { QUADS = FC_GROUP / 4 };
    const int block_bytes = fc_block_bytes(dtype), scales = dtype == FC_INT8 ? 512 : 256;
    p16 sums[FC_QUANTISED_ROWS][FC_QUANTISED_PANELS];
    FC_UNROLL
    for (int r = 0; r < R; r++) {
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            sums[r][p] = p16_zero();
        }
    }
    for (ptrdiff_t g = 0; g < groups; g++) {
        const fc_q8_group *rows[FC_QUANTISED_ROWS];
        const uint8_t *block[FC_QUANTISED_PANELS];
        p16 scale[FC_QUANTISED_PANELS], exact[FC_QUANTISED_ROWS][FC_QUANTISED_PANELS];
        FC_UNROLL
        for (int r = 0; r < R; r++) {
            rows[r] = (const fc_q8_group *)(x + r * ld_x) + g;
        }
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            block[p] = weights + p * panel_bytes + g * block_bytes;
        }
        if (dtype == FC_INT8) {
            d8 dots[FC_QUANTISED_ROWS][FC_QUANTISED_PANELS];
            FC_UNROLL
            for (int r = 0; r < R; r++) {
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    dots[r][p] = d8_start(rows[r]);
                }
            }
            FC_UNROLL
            for (int quad = 0; quad < QUADS; quad++) {
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    w8 w = w8_load(block[p] + quad * 64);
                    FC_UNROLL
                    for (int r = 0; r < R; r++) {
                        dots[r][p] = d8_add(dots[r][p], w, rows[r], quad);
                    }
                }
            }
            FC_UNROLL
            for (int r = 0; r < R; r++) {
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    exact[r][p] = d8_sum(dots[r][p]);
                }
            }
        } else {
            d4 dots[FC_QUANTISED_ROWS][FC_QUANTISED_PANELS];
            FC_UNROLL
            for (int r = 0; r < R; r++) {
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    dots[r][p] = d4_start();
                }
            }
            FC_UNROLL
            for (int quad = 0; quad < QUADS; quad++) {
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    w4 w = w4_load(block[p] + quad % 4 * 64, quad);
                    FC_UNROLL
                    for (int r = 0; r < R; r++) {
                        dots[r][p] = d4_add(dots[r][p], w, rows[r], quad);
                    }
                }
            }
            FC_UNROLL
            for (int r = 0; r < R; r++) {
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    exact[r][p] = d4_sum(dots[r][p]);
                }
            }
        }
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            scale[p] = p16_load_f16(block[p] + scales);
            FC_UNROLL
            for (int r = 0; r < R; r++) {
                sums[r][p] = p16_fma(exact[r][p], p16_mul(scale[p], p16_set1(rows[r]->scale)), sums[r][p]);
            }
            if (dtype == FC_INT4) {
                p16 minimum = p16_load_f16(block[p] + scales + 32);
                FC_UNROLL
                for (int r = 0; r < R; r++) {
                    sums[r][p] = p16_fma(minimum, p16_set1(rows[r]->scaled_sum), sums[r][p]);
                }
            }
        }
    }
    FC_UNROLL
    for (int r = 0; r < R; r++) {
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            p16_store(acc + r * ld_acc + p * 16, sums[r][p]);
        }
    }
}

/* All panels of R rows: P at a time, then one. */
FC_INLINE void FC_NAME(quantised_panels)(const int dtype, const int R, const int P, const float *x, ptrdiff_t ld_x,
                                         const uint8_t *weights, int panels, int num_k, float *acc, ptrdiff_t ld_acc)
{
    int p = 0, groups = (num_k + FC_GROUP - 1) / FC_GROUP;
    ptrdiff_t panel_bytes = (ptrdiff_t)groups * fc_block_bytes(dtype);
    for (; panels - p >= P; p += P) {
        FC_NAME(quantised_tile)
        (dtype, R, P, x, ld_x, weights + p * panel_bytes, panel_bytes, groups, acc + p * 16, ld_acc);
    }
    for (; P > 1 && p < panels; p++) {
        FC_NAME(quantised_tile)
        (dtype, R, 1, x, ld_x, weights + p * panel_bytes, panel_bytes, groups, acc + p * 16, ld_acc);
    }
}

FC_INLINE void FC_NAME(gemm_quantised)(const int dtype, const float *x, ptrdiff_t ld_x, int rows, const void *weights,
                                       int panels, int num_k, float *acc, ptrdiff_t ld_acc)
{
    const uint8_t *w = (const uint8_t *)weights;
    while (rows > 0) {
        int tiles = (rows + FC_QUANTISED_ROWS - 1) / FC_QUANTISED_ROWS, height = (rows + tiles - 1) / tiles;
#define FC_HEIGHT(R)                                                             \
    case R:                                                                      \
        FC_NAME(quantised_panels)                                                \
        (dtype, R, FC_QUANTISED_PANELS, x, ld_x, w, panels, num_k, acc, ld_acc); \
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
        x += height * ld_x;
        acc += height * ld_acc;
        rows -= height;
    }
}

static void FC_NAME(gemm_int8) FC_GEMM_ARGS
{
    FC_NAME(gemm_quantised)
    (FC_INT8, x, ld_x, rows, weights, panels, num_k, acc, ld_acc);
}

static void FC_NAME(gemm_int4) FC_GEMM_ARGS
{
    FC_NAME(gemm_quantised)
    (FC_INT4, x, ld_x, rows, weights, panels, num_k, acc, ld_acc);
}
