/* The checks of the kernels of ssm_tpl.h. */
#include "check_inputs.h"

void fc_check_conv_row(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        for (int d_conv = 1; d_conv <= 4; d_conv++) {
            float *taps[4], *weight = floats(c, 4 * n, 1.0f), *bias = floats(c, n, 1.0f), *out = floats(c, n, 1.0f);
            for (int k = 0; k < 4; k++) {
                taps[k] = floats(c, n, 2.0f);
            }
            c->kernels->conv_row((const float *const *)taps, d_conv, weight, (ptrdiff_t)n, d_conv % 2 ? bias : NULL, (int)n,
                                 out);
            add_floats(c, out, n);
        }
    }
}

void fc_check_time_steps(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, 8.0f), *bias = floats(c, n, 4.0f), *rate = floats(c, n, 5.0f), *step = floats(c, n, 1.0f);
        float *decay = floats(c, n, 1.0f);
        c->kernels->time_steps(x, bias, rate, (int)n, 0.01f, 6.0f, step, decay);
        add_floats(c, step, n);
        add_floats(c, decay, n);
    }
}

void fc_check_scan(fc_check *c)
{
    for (int dims = 1; dims <= 32; dims += dims < 4 && c->thorough ? 1 : 7) {
        for (int d_state = 1; d_state <= 33; d_state += 8) {
            enum { TOKENS = 5 };
            c->restart(c);
            size_t ld = (size_t)(32 + 2 * d_state);
            float *x = floats(c, TOKENS * ld, 1.0f), *gate = floats(c, TOKENS * 32, 4.0f), *y = floats(c, TOKENS * 32, 1.0f);
            float *step = floats(c, TOKENS, 1.0f), *decay = floats(c, TOKENS, 1.0f),
                  *held = floats(c, 2 * 16 * (size_t)d_state, 1.0f);
            fc_scan_task task = {
                .x = x,
                .B = x + 32,
                .C = x + 32 + d_state,
                .step = step,
                .decay = decay,
                .gate = d_state % 16 == 1 ? gate : NULL,
                .ld_x = (ptrdiff_t)ld,
                .ld_step = 1,
                .ld_gate = 32,
                .ld_y = 32,
                .skip = 0.9f,
                .tokens = TOKENS,
                .dims = dims,
                .d_state = d_state,
                .state = held,
                .y = y,
            };
            c->kernels->scan(&task);
            add_floats(c, y, TOKENS * 32);
            for (int d = 0; d < dims; d++) { /* what lies beyond the last dim is not defined */
                for (int n = 0; n < d_state; n++) {
                    add_floats(c, held + (d / 16 * d_state + n) * 16 + d % 16, 1);
                }
            }
        }
    }
}

void fc_check_gated_norm(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, 3.0f), *gate = floats(c, n, 4.0f), *weight = floats(c, n, 1.0f), *out = floats(c, n, 1.0f);
        for (int before = 0; before < 2; before++) {
            c->kernels->gated_norm(x, gate, weight, (int)n, 1e-5f, before, out);
            add_floats(c, out, n);
        }
    }
}
