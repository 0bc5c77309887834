/* The Mamba-2 mixer between its projections: causal convolution, step sizes, selective scan, gated norm. */

/* ln(1 + e^x) = max(x, 0) + u P(u) with u = e^-|x| in (0, 1] and P(u) = ln(1 + u) / u, a minimax polynomial of degree 8. Beyond
 * x = 20 this is x. NaN stays NaN. */
static inline p16 FC_NAME(softplus16)(p16 x)
{
    p16 u = FC_NAME(exp16)(p16_min(x, p16_sub(p16_zero(), x)));
    p16 y = p16_set1(5.36482455e-3f);
    y = p16_fma(y, u, p16_set1(-3.00657917e-2f));
    y = p16_fma(y, u, p16_set1(7.9204537e-2f));
    y = p16_fma(y, u, p16_set1(-0.137538031f));
    y = p16_fma(y, u, p16_set1(0.191536546f));
    y = p16_fma(y, u, p16_set1(-0.248571634f));
    y = p16_fma(y, u, p16_set1(0.33321324f));
    y = p16_fma(y, u, p16_set1(-0.499996483f));
    y = p16_fma(y, u, p16_set1(1.0f));
    return p16_fma(y, u, p16_max(p16_zero(), x));
}

static void FC_NAME(softplus)(const float *x, float *out, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += 16) {
        FC_NAME(store_up_to)(out + i, FC_NAME(softplus16)(FC_NAME(load_up_to)(x + i, n - i)), n - i);
    }
}

static void FC_NAME(conv_row)(const float *const *taps, int d_conv, const float *weight, ptrdiff_t ld_weight, const float *bias,
                              int n, float *out)
{
    for (int i = 0; i < n; i += 16) {
        p16 y = bias ? FC_NAME(load_up_to)(bias + i, n - i) : p16_zero();
        for (int k = 0; k < d_conv; k++) {
            p16 w = FC_NAME(load_up_to)(weight + k * ld_weight + i, n - i);
            y = p16_fma(w, FC_NAME(load_up_to)(taps[k] + i, n - i), y);
        }
        FC_NAME(store_up_to)(out + i, FC_NAME(silu16)(y), n - i);
    }
}

static void FC_NAME(time_steps)(const float *x, const float *bias, const float *rate, int n, float low, float high, float *step,
                                float *decay)
{
    p16 least = p16_set1(low), most = p16_set1(high);
    for (int i = 0; i < n; i += 16) {
        p16 dt = p16_add(FC_NAME(load_up_to)(x + i, n - i), FC_NAME(load_up_to)(bias + i, n - i));
        dt = p16_min(most, p16_max(least, FC_NAME(softplus16)(dt)));
        FC_NAME(store_up_to)(step + i, dt, n - i);
        FC_NAME(store_up_to)(decay + i, FC_NAME(exp16)(p16_mul(dt, FC_NAME(load_up_to)(rate + i, n - i))), n - i);
    }
}

/* P tiles of 16 head dims, all tokens. A lane's y is one chain over d_state. */
FC_INLINE void FC_NAME(scan_tiles)(const int P, const fc_scan_task *task)
{
    const ptrdiff_t d_state = task->d_state, tile_floats = d_state * 16;
    float *restrict state = task->state;
    const p16 skip = p16_set1(task->skip);
    for (ptrdiff_t t = 0; t < task->tokens; t++) {
        const float *x = task->x + t * task->ld_x;
        const float *restrict B = task->B + t * task->ld_x, *restrict C = task->C + t * task->ld_x;
        const p16 dt = p16_set1(task->step[t * task->ld_step]), decay = p16_set1(task->decay[t * task->ld_step]);
        p16 in[2], weighted[2], y[2];
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            in[p] = FC_NAME(load_up_to)(x + p * 16, task->dims - p * 16);
            weighted[p] = p16_mul(dt, in[p]);
            y[p] = p16_zero();
        }
        for (ptrdiff_t n = 0; n < d_state; n++) {
            const p16 b = p16_set1(B[n]), c = p16_set1(C[n]);
            FC_UNROLL
            for (int p = 0; p < P; p++) {
                float *at = state + p * tile_floats + n * 16;
                p16 h = p16_fma(decay, p16_load(at), p16_mul(weighted[p], b));
                y[p] = p16_fma(h, c, y[p]);
                p16_store(at, h);
            }
        }
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            y[p] = p16_fma(in[p], skip, y[p]);
            if (task->gate) {
                const float *gate = task->gate + t * task->ld_gate + p * 16;
                y[p] = p16_mul(y[p], FC_NAME(silu16)(FC_NAME(load_up_to)(gate, task->dims - p * 16)));
            }
            FC_NAME(store_up_to)(task->y + t * task->ld_y + p * 16, y[p], task->dims - p * 16);
        }
    }
}

static void FC_NAME(scan)(const fc_scan_task *task)
{
    if (task->dims > 16) {
        FC_NAME(scan_tiles)(2, task);
    } else {
        FC_NAME(scan_tiles)(1, task);
    }
}

static void FC_NAME(gated_norm)(const float *x, const float *gate, const float *weight, int n, float eps, int norm_before_gate,
                                float *out)
{
    if (!norm_before_gate) {
        for (int i = 0; i < n; i += 16) {
            p16 y = FC_NAME(silu16)(FC_NAME(load_up_to)(gate + i, n - i));
            FC_NAME(store_up_to)(out + i, p16_mul(FC_NAME(load_up_to)(x + i, n - i), y), n - i);
        }
        FC_NAME(rms_norm)(out, weight, n, eps, 1.0f, out);
        return;
    }
    FC_NAME(rms_norm)(x, weight, n, eps, 1.0f, out);
    for (int i = 0; i < n; i += 16) {
        p16 y = FC_NAME(silu16)(FC_NAME(load_up_to)(gate + i, n - i));
        FC_NAME(store_up_to)(out + i, p16_mul(FC_NAME(load_up_to)(out + i, n - i), y), n - i);
    }
}
