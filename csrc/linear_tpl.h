/* Linear maps as tiles of R activation rows by P panels of 16 outputs. Every output is one chain of fused multiply-adds over k,
 * so neither the shape of the tile nor the vector width shows in the result. The accumulators have names because compilers keep
 * an array of them in memory.
 *
 * A tile can touch what is read after its weights, as much as it reads, so that it is on its way from memory in time: in one stream,
 * or in four by turns where it lies in pieces. Memory gives half as much when small pieces are fetched one after another. */

enum { FC_STREAMS = 4 };

#define FC_ROWS_1(M, p) M(0, p)
#define FC_ROWS_2(M, p) FC_ROWS_1(M, p) M(1, p)
#define FC_ROWS_3(M, p) FC_ROWS_2(M, p) M(2, p)
#define FC_ROWS_4(M, p) FC_ROWS_3(M, p) M(3, p)
#define FC_ROWS_5(M, p) FC_ROWS_4(M, p) M(4, p)
#define FC_ROWS_6(M, p) FC_ROWS_5(M, p) M(5, p)
#define FC_GRID_1(R, M) FC_ROWS_##R(M, 0)
#define FC_GRID_2(R, M) FC_GRID_1(R, M) FC_ROWS_##R(M, 1)
#define FC_GRID_3(R, M) FC_GRID_2(R, M) FC_ROWS_##R(M, 2)
#define FC_GRID_4(R, M) FC_GRID_3(R, M) FC_ROWS_##R(M, 3)
#define FC_PANELS_UP_TO_1(M) M(0)
#define FC_PANELS_UP_TO_2(M) M(0) M(1)
#define FC_PANELS_UP_TO_3(M) M(0) M(1) M(2)
#define FC_PANELS_UP_TO_4(M) M(0) M(1) M(2) M(3)

#define FC_DECLARE_X(r, p) const float *x##r = x + (r) * ld_x;
#define FC_DECLARE_W(p) const uint8_t *w##p = w + (p) * panel_bytes;
#define FC_DECLARE_ACC(r, p) p16 a##r##_##p = go_on ? p16_load(acc + (r) * ld_acc + (p) * 16) : p16_zero();
#define FC_MULTIPLY(r, p) a##r##_##p = p16_fma(b, v##p, a##r##_##p);
#define FC_MULTIPLY_1(r) FC_MULTIPLY(r, 0)
#define FC_MULTIPLY_2(r) FC_MULTIPLY_1(r) FC_MULTIPLY(r, 1)
#define FC_MULTIPLY_3(r) FC_MULTIPLY_2(r) FC_MULTIPLY(r, 2)
#define FC_MULTIPLY_4(r) FC_MULTIPLY_3(r) FC_MULTIPLY(r, 3)
/* One broadcast lives at a time: six of them beside the accumulators would not fit sixteen registers. */
#define FC_STEP(r, P)              \
    {                              \
        p16 b = p16_set1(x##r[k]); \
        FC_MULTIPLY_##P(r)         \
    }
#define FC_WRITE(r, p) p16_store(acc + (r) * ld_acc + (p) * 16, a##r##_##p);
#define FC_LOAD_W(p)          \
    p16 v##p = FC_LOAD(w##p); \
    w##p += k_bytes;
#define FC_TOUCH(p) __builtin_prefetch(ahead0 + (p) * k_bytes);

/* k lies part_k at a time at the addresses in `parts`. go_on: the chains start from acc, not from zero. ahead: the streams to touch,
 * 0, 1 or FC_STREAMS of them, a constant. */
#define FC_DEFINE_TILE(R, P)                                                                                           \
    static inline __attribute__((always_inline)) void FC_TILE(R, P)(                                                   \
        const float *restrict x, ptrdiff_t ld_x, const uint8_t *const *parts, ptrdiff_t offset, ptrdiff_t panel_bytes, \
        ptrdiff_t k_bytes, int part_k, int num_k, float *restrict acc, ptrdiff_t ld_acc, int go_on, const int streams, \
        const uint8_t *const *ahead)                                                                                   \
    {                                                                                                                  \
        (void)panel_bytes;                                                                                             \
        (void)ld_x;                                                                                                    \
        const uint8_t *ahead0 = 0, *ahead1 = 0, *ahead2 = 0, *ahead3 = 0;                                              \
        if (streams) {                                                                                                 \
            ahead0 = ahead[0] + offset / streams;                                                                      \
        }                                                                                                              \
        if (streams == FC_STREAMS) {                                                                                   \
            ptrdiff_t at = offset / FC_STREAMS;                                                                        \
            ahead1 = ahead[1] + at, ahead2 = ahead[2] + at, ahead3 = ahead[3] + at;                                    \
        }                                                                                                              \
        FC_ROWS_##R(FC_DECLARE_X, 0) FC_GRID_##P(R, FC_DECLARE_ACC) for (ptrdiff_t k = 0; k < num_k; parts++)          \
        {                                                                                                              \
            const uint8_t *w = parts[0] + offset;                                                                      \
            ptrdiff_t end = k + part_k < num_k ? k + part_k : num_k;                                                   \
            FC_PANELS_UP_TO_##P(FC_DECLARE_W) for (; k < end; k++)                                                     \
            {                                                                                                          \
                FC_PANELS_UP_TO_##P(FC_LOAD_W) if (streams)                                                            \
                {                                                                                                      \
                    FC_PANELS_UP_TO_##P(FC_TOUCH) const uint8_t *next = ahead0 + P * k_bytes;                          \
                    ahead0 = streams == 1 ? next : ahead1, ahead1 = ahead2, ahead2 = ahead3, ahead3 = next;            \
                }                                                                                                      \
                FC_ROWS_##R(FC_STEP, P)                                                                                \
            }                                                                                                          \
        }                                                                                                              \
        FC_GRID_##P(R, FC_WRITE)                                                                                       \
    }

#define FC_RUN_TILE(R, P, streams)                                                                                            \
    FC_TILE(R, P)(x, ld_x, parts, p * panel_bytes, panel_bytes, k_bytes, part_k, num_k, acc + p * 16, ld_acc, go_on, streams, \
                  ahead);                                                                                                     \
    p += P

/* The panels of R rows: P at a time, then two, then one. */
#define FC_CASE(R, P, streams)             \
    case R:                                \
        while (panels - p >= P) {          \
            FC_RUN_TILE(R, P, streams);    \
        }                                  \
        while (P > 2 && panels - p >= 2) { \
            FC_RUN_TILE(R, 2, streams);    \
        }                                  \
        while (p < panels) {               \
            FC_RUN_TILE(R, 1, streams);    \
        }                                  \
        break;

/* All panels of a tile of `height` rows. One row hides the latency of its chains only behind other panels, so its last panels
 * go together. */
#define FC_RUN_HEIGHT(streams)           \
    switch (height) {                    \
    case 1:                              \
        while (panels - p >= 4) {        \
            FC_RUN_TILE(1, 4, streams);  \
        }                                \
        if (panels - p == 3) {           \
            FC_RUN_TILE(1, 3, streams);  \
        } else if (panels - p == 2) {    \
            FC_RUN_TILE(1, 2, streams);  \
        } else if (panels - p == 1) {    \
            FC_RUN_TILE(1, 1, streams);  \
        }                                \
        break;                           \
        FC_CASE(2, FC_PANELS_2, streams) \
        FC_CASE(3, FC_PANELS_2, streams) \
        FC_CASE(4, FC_PANELS_4, streams) \
        FC_CASE(5, FC_PANELS_4, streams) \
        FC_CASE(6, FC_PANELS_4, streams) \
    }

/* The height of the next of the tiles that take `rows` rows: nearly equal ones. Of seven or eight rows two stay for a second tile:
 * tiles of three and four keep the multipliers waiting for their chains, or out of registers. */
static inline int FC_NAME(tile_height)(int rows)
{
    int tiles = (rows + 5) / 6;
    return rows == 7 || rows == 8 ? rows - 2 : (rows + tiles - 1) / tiles;
}

#define FC_TILE__(dtype, R, P) tile_##dtype##_##R##x##P
#define FC_TILE_(dtype, R, P) FC_TILE__(dtype, R, P)
#define FC_TILE(R, P) FC_TILE_(FC_DTYPE, R, P)
#define FC_LOAD__(dtype) p16_load_##dtype
#define FC_LOAD_(dtype) FC_LOAD__(dtype)
#define FC_LOAD FC_LOAD_(FC_DTYPE)
#define FC_GEMM__(dtype) FC_NAME(gemm_##dtype)
#define FC_GEMM_(dtype) FC_GEMM__(dtype)
#define FC_GEMM FC_GEMM_(FC_DTYPE)
#define FC_GEMM_PANELS__(dtype) gemm_panels_##dtype
#define FC_GEMM_PANELS_(dtype) FC_GEMM_PANELS__(dtype)
#define FC_GEMM_PANELS FC_GEMM_PANELS_(FC_DTYPE)

#define FC_DTYPE f32
#define FC_K_BYTES 64
#include "linear_dtype_tpl.h"
#define FC_DTYPE bf16
#define FC_K_BYTES 32
#include "linear_dtype_tpl.h"
#define FC_DTYPE f16
#define FC_K_BYTES 32
#include "linear_dtype_tpl.h"
