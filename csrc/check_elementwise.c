/* The checks of the kernels of elementwise_tpl.h. */
#include "check_inputs.h"

void fc_check_store_rows(fc_check *c)
{
    enum { ROWS = 3, LD = 304 };
    EACH_SIZE(c, n)
    {
        float *acc = floats(c, ROWS * LD, 2.0f), *bias = floats(c, n, 1.0f), *column = floats(c, n, 1.0f),
              *dst = floats(c, ROWS * n, 1.0f);
        for (int which = 0; which < 8; which++) {
            c->kernels->store_rows(acc, LD, ROWS, (int)n, which & 1 ? bias : NULL, which & 2 ? column : NULL, 0.7f, which & 4,
                                   dst, (ptrdiff_t)n);
            add_floats(c, dst, ROWS * n);
        }
    }
}

void fc_check_swiglu_rows(fc_check *c)
{
    enum { ROWS = 3, LD = 608 };
    EACH_SIZE(c, n)
    {
        float *acc = floats(c, ROWS * LD, 8.0f), *bias = floats(c, LD, 1.0f), *dst = floats(c, ROWS * n, 1.0f);
        c->kernels->swiglu_rows(acc, LD, ROWS, (int)n, NULL, 1.0f, 1.0f, dst, (ptrdiff_t)n);
        add_floats(c, dst, ROWS * n);
        c->kernels->swiglu_rows(acc, LD, ROWS, (int)n, bias, 0.88f, 0.58f, dst, (ptrdiff_t)n);
        add_floats(c, dst, ROWS * n);
    }
}

void fc_check_rms_norm(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, 3.0f), *weight = floats(c, n, 1.0f), *out = floats(c, n, 1.0f);
        c->kernels->rms_norm(x, weight, (int)n, 1e-5f, 1.3f, out);
        add_floats(c, out, n);
        c->kernels->rms_norm(x, weight, (int)n, 1e-5f, 1.0f, x);
        add_floats(c, x, n);
    }
}

void fc_check_rope(fc_check *c)
{
    EACH_SIZE(c, half)
    {
        float *x = floats(c, 2 * half, 3.0f), *cos = floats(c, half, 1.0f), *sin = floats(c, half, 1.0f);
        c->kernels->rope(x, cos, sin, (int)(2 * half), x);
        add_floats(c, x, 2 * half);
    }
}

void fc_check_embed_row(fc_check *c)
{
    for (fc_dtype dtype = 0; dtype < FC_NUM_DTYPES; dtype++) {
        EACH_SIZE(c, k)
        {
            float *table = floats(c, 21 * k, 1.0f), *out = floats(c, k, 1.0f);
            void *panels = zeroed(c, fc_packed_bytes(21, (int)k, dtype));
            fc_pack_rows(panels, dtype, (int)k, table, FC_F32, 21, 0, 16, 1);
            for (int row = 0; row < 21; row += 4) {
                c->kernels->embed_row(panels, (int)dtype, (int)k, row, 2.5f, out);
                add_floats(c, out, k);
            }
        }
    }
}

static void check_function(fc_check *c, void (*function)(const float *, float *, ptrdiff_t), float scale)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, scale), *out = floats(c, n, 1.0f);
        function(x, out, (ptrdiff_t)n);
        add_floats(c, out, n);
    }
    float x[256], out[256]; /* every exponent, and what is not finite */
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t bits = (i << 23 | next_bits(c) >> 9) ^ (i % 2) << 31;
        bits = i == 255 ? 0x7f800000u : bits;
        memcpy(&x[i], &bits, sizeof bits);
    }
    function(x, out, 256);
    add_floats(c, out, 256);
}

void fc_check_exp(fc_check *c) { check_function(c, c->kernels->exp, 90.0f); }
void fc_check_silu(fc_check *c) { check_function(c, c->kernels->silu, 30.0f); }
void fc_check_softplus(fc_check *c) { check_function(c, c->kernels->softplus, 30.0f); }

void fc_check_argmax(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        for (int pass = 0; pass < 8; pass++) {
            float *x = floats(c, n, 1.0f);
            if (pass == 6) {
                x[n / 2] = 1.0f / 0.0f;
            }
            for (size_t i = 0; i < n && pass < 4; i++) { /* ties */
                x[i] = (float)(int)(x[i] * 3.0f);
            }
            ptrdiff_t index = -1;
            int finite = 1;
            float value = c->kernels->argmax(x, (ptrdiff_t)n, &index, &finite);
            int64_t found[2] = {finite ? index : -1, finite};
            add(c, found, sizeof found);
            add_floats(c, &value, finite ? 1 : 0);
        }
    }
}

void fc_check_softmax_weights(fc_check *c)
{
    for (size_t n = 1; n < (c->thorough ? 2000 : 400); n = n * 3 + 1) {
        c->restart(c);
        float *x = floats(c, n, 60.0f), *weights = floats(c, n, 1.0f);
        double sums[2000 / FC_WEIGHT_BLOCK + 1];
        c->kernels->softmax_weights(x, (ptrdiff_t)n, 59.0f, 1.3f, weights, sums);
        add_floats(c, weights, n);
        add(c, sums, ((n + FC_WEIGHT_BLOCK - 1) / FC_WEIGHT_BLOCK) * sizeof(double));
    }
}

void fc_check_sum_exp(fc_check *c)
{
    for (size_t n = 1; n < (c->thorough ? 40000 : 400); n = n * 3 + 1) {
        c->restart(c);
        float *x = floats(c, n, 6.0f);
        double sum = c->kernels->sum_exp(x, (ptrdiff_t)n, 5.5f, 0.8f);
        add(c, &sum, sizeof sum);
    }
}
