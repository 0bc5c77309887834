/* Linear maps as tiles of R activation rows by P panels of 16 outputs. Every output is one chain of fused multiply-adds over k,
 * started from zero or from an earlier partial sum, so neither the shape of the tile nor the vector width shows in the result.
 * The accumulators have names because compilers keep an array of them in memory. */

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

#define FC_DECLARE_X(r, p) const float *x##r = x + (r)*ld_x;
#define FC_DECLARE_W(p) const uint8_t *w##p = w + (p)*panel_bytes;
#define FC_ZERO(r, p) a##r##_##p = p16_zero();
#define FC_RESUME(r, p) a##r##_##p = p16_load(acc + (r)*ld_acc + (p)*16);
#define FC_DECLARE_ACC(r, p) p16 a##r##_##p;
#define FC_MULTIPLY(r, p) a##r##_##p = p16_fma(b, v##p, a##r##_##p);
#define FC_MULTIPLY_1(r) FC_MULTIPLY(r, 0)
#define FC_MULTIPLY_2(r) FC_MULTIPLY_1(r) FC_MULTIPLY(r, 1)
#define FC_MULTIPLY_3(r) FC_MULTIPLY_2(r) FC_MULTIPLY(r, 2)
#define FC_MULTIPLY_4(r) FC_MULTIPLY_3(r) FC_MULTIPLY(r, 3)
/* One broadcast lives at a time: six of them beside the accumulators would not fit sixteen registers. */
#define FC_STEP(r, P)                  \
    {                                  \
        p16 b = p16_set1(x##r[k]);     \
        FC_MULTIPLY_##P(r)             \
    }
#define FC_WRITE(r, p) p16_store(acc + (r)*ld_acc + (p)*16, a##r##_##p);
#define FC_LOAD_W(p)                \
    p16 v##p = FC_LOAD(w##p);       \
    w##p += k_bytes;

#define FC_ONE_K(R, P)                                         \
    {                                                          \
        FC_PANELS_UP_TO_##P(FC_LOAD_W) FC_ROWS_##R(FC_STEP, P) \
        k++;                                                   \
    }

/* `ahead` is touched as the tile runs, ahead_bytes every four k: the weights of a later tile, on their way from memory. */
#define FC_DEFINE_TILE(R, P)                                                                                         \
    static inline void FC_TILE(R, P)(const float *restrict x, ptrdiff_t ld_x, const uint8_t *restrict w,             \
                                     ptrdiff_t panel_bytes, ptrdiff_t k_bytes, int num_k, float *restrict acc,       \
                                     ptrdiff_t ld_acc, int first, const uint8_t *ahead, ptrdiff_t ahead_bytes)       \
    {                                                                                                                \
        (void)panel_bytes;                                                                                           \
        (void)ld_x;                                                                                                  \
        FC_ROWS_##R(FC_DECLARE_X, 0) FC_PANELS_UP_TO_##P(FC_DECLARE_W) FC_GRID_##P(R, FC_DECLARE_ACC) if (first)     \
        {                                                                                                            \
            FC_GRID_##P(R, FC_ZERO)                                                                                  \
        }                                                                                                            \
        else                                                                                                         \
        {                                                                                                            \
            FC_GRID_##P(R, FC_RESUME)                                                                                \
        }                                                                                                            \
        ptrdiff_t k = 0;                                                                                             \
        for (; k + 4 <= num_k; ahead += ahead_bytes) {                                                               \
            __builtin_prefetch(ahead);                                                                               \
            FC_ONE_K(R, P) FC_ONE_K(R, P) __builtin_prefetch(ahead + ahead_bytes / 2);                               \
            FC_ONE_K(R, P) FC_ONE_K(R, P)                                                                            \
        }                                                                                                            \
        while (k < num_k) {                                                                                          \
            FC_ONE_K(R, P)                                                                                           \
        }                                                                                                            \
        FC_GRID_##P(R, FC_WRITE)                                                                                     \
    }

/* The panels of R rows: P at a time, then two, then one (for one row, the rest at once: it must hide latency alone). */
#define FC_RUN_TILE(R, P)                                                                                            \
    FC_TILE(R, P)(x, ld_x, w + p *panel_bytes, panel_bytes, k_bytes, num_k, acc + p * 16, ld_acc, first,             \
                  ahead + p * panel_bytes, ahead_bytes);                                                             \
    p += P

#define FC_CASE(R, P)             \
    case R:                       \
        while (panels - p >= P) { \
            FC_RUN_TILE(R, P);    \
        }                         \
        while (panels - p >= 2 && P > 2) { \
            FC_RUN_TILE(R, 2);    \
        }                         \
        while (p < panels) {      \
            FC_RUN_TILE(R, 1);    \
        }                         \
        break;

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
#include "linear_dtype_tpl.h"
#define FC_DTYPE bf16
#include "linear_dtype_tpl.h"
#define FC_DTYPE f16
#include "linear_dtype_tpl.h"
