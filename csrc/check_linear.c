/* The checks of the kernels of linear_tpl.h, quantised_gemm_tpl.h and quantised_tpl.h. */
#include "check_inputs.h"

/* Rows of what a format's kernel multiplies with, of x [rows, k]; their length in *ld. */
static const float *source_rows(fc_check *c, fc_source source, const float *x, int rows, int k, ptrdiff_t *ld)
{
    *ld = fc_source_floats(source, k);
    if (source == FC_SOURCE_F32) {
        return x;
    }
    float *quantised = (float *)zeroed(c, (size_t)rows * (size_t)*ld * sizeof(float));
    c->kernels->quantize_rows(x, k, rows, k, quantised, *ld);
    return quantised;
}

static void check_gemm(fc_check *c, fc_dtype dtype)
{
    enum { MOST_ROWS = 19, MOST_PANELS = 9, LEAST_K = 45, MOST_K = 157 };
    int row_step = c->thorough ? 1 : 6, panel_step = c->thorough ? 1 : 5;
    float acc[MOST_ROWS * MOST_PANELS * 16];
    for (int k = LEAST_K; k <= MOST_K; k += c->thorough ? 56 : MOST_K) {
        c->restart(c);
        float *x = floats(c, (size_t)(MOST_ROWS * k), 1.0f), *w = floats(c, (size_t)(MOST_PANELS * 16 * k), 1.0f);
        uint8_t *panels = (uint8_t *)zeroed(c, fc_packed_bytes(MOST_PANELS * 16, k, dtype) + 64);
        ptrdiff_t ld;
        const float *source = source_rows(c, fc_format_of((int)dtype)->source, x, MOST_ROWS, k, &ld);
        fc_pack_rows(panels, dtype, k, w, FC_F32, MOST_PANELS * 16, 0, 16, 1);
        add(c, panels, fc_packed_bytes(MOST_PANELS * 16, k, dtype));
        for (int rows = 1; rows <= MOST_ROWS; rows += row_step) {
            for (int count = 1; count <= MOST_PANELS; count += panel_step) {
                memset(acc, 0, sizeof acc);
                c->kernels->gemm[dtype](source, ld, rows, panels, count, k, acc, MOST_PANELS * 16);
                add_floats(c, acc, sizeof acc / sizeof acc[0]);
            }
        }
    }
}

#define FC_CHECK_GEMM(A, CODE, name, ...) \
    void fc_check_gemm_##name(fc_check *c) { check_gemm(c, FC_##CODE); }
FC_FORMATS(FC_CHECK_GEMM, )

void fc_check_quantize_rows(fc_check *c)
{
    static const float scales[] = {1.0f, 1e-20f, 3e-37f, 1e30f};
    EACH_SIZE(c, n)
    {
        ptrdiff_t ld = fc_source_floats(FC_SOURCE_Q8, (int)n);
        float *x = floats(c, 4 * n, 1.0f), *out = (float *)zeroed(c, 4 * (size_t)ld * sizeof(float));
        for (size_t i = 0; i < 4 * n; i++) { /* ties, zeros, all sizes */
            x[i] = (i % 7 ? (float)(int)(x[i] * 254.0f) * 0.5f : x[i]) * scales[i / n];
        }
        c->kernels->quantize_rows(x, (ptrdiff_t)n, 4, (int)n, out, ld);
        add_floats(c, out, 4 * (size_t)ld);
    }
}
