/* exp, silu, norms, RoPE, epilogues and reductions over 16-lane vectors. Sums over a row keep 16 partial sums and one fixed tree,
 * whatever the hardware's width. */

static inline p16 FC_NAME(load_n)(const float *p, ptrdiff_t n)
{
    float v[16] = {0};
    for (ptrdiff_t i = 0; i < n; i++) {
        v[i] = p[i];
    }
    return p16_load(v);
}

static inline void FC_NAME(store_n)(float *p, p16 a, ptrdiff_t n)
{
    float v[16];
    p16_store(v, a);
    for (ptrdiff_t i = 0; i < n; i++) {
        p[i] = v[i];
    }
}

static inline p16 FC_NAME(load_up_to)(const float *p, ptrdiff_t n) { return n >= 16 ? p16_load(p) : FC_NAME(load_n)(p, n); }

static inline void FC_NAME(store_up_to)(float *p, p16 a, ptrdiff_t n)
{
    if (n >= 16) {
        p16_store(p, a);
    } else {
        FC_NAME(store_n)(p, a, n);
    }
}

/* e^x = 2^n e^r, n = round(x log2 e), |r| <= ln 2 / 2, e^r by a minimax polynomial of degree 6; x is clamped to [-87.33, 88.37], where 2^n is
 * a normal number. NaN stays NaN. Adding 1.5 * 2^23 leaves n in the low bits. */
static inline p16 FC_NAME(exp16)(p16 x)
{
    const p16 shift = p16_set1(12582912.0f);
    x = p16_max(p16_set1(-87.33f), x);
    x = p16_min(p16_set1(88.37f), x);
    p16 biased = p16_fma(x, p16_set1(1.44269504f), shift);
    p16 n = p16_sub(biased, shift);
    p16 r = p16_fma(n, p16_set1(-0.693145752f), x);
    r = p16_fma(n, p16_set1(-1.42860677e-6f), r);
    p16 y = p16_set1(1.38144672e-3f);
    y = p16_fma(y, r, p16_set1(8.36878084e-3f));
    y = p16_fma(y, r, p16_set1(4.16683927e-2f));
    y = p16_fma(y, r, p16_set1(1.66665196e-1f));
    y = p16_fma(y, r, p16_set1(0.49999994f));
    y = p16_fma(y, r, p16_set1(1.0f));
    y = p16_fma(y, r, p16_set1(1.0f));
    return p16_add_exponent(y, biased);
}

static inline p16 FC_NAME(silu16)(p16 x)
{
    p16 one = p16_set1(1.0f);
    return p16_div(x, p16_add(one, FC_NAME(exp16)(p16_sub(p16_zero(), x))));
}

static void FC_NAME(exp)(const float *x, float *out, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += 16) {
        FC_NAME(store_up_to)(out + i, FC_NAME(exp16)(FC_NAME(load_up_to)(x + i, n - i)), n - i);
    }
}

static void FC_NAME(silu)(const float *x, float *out, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += 16) {
        FC_NAME(store_up_to)(out + i, FC_NAME(silu16)(FC_NAME(load_up_to)(x + i, n - i)), n - i);
    }
}

static void FC_NAME(store_rows)(const float *acc, ptrdiff_t ld_acc, int rows, int n, const float *bias,
                                const float *column_scale, float scale, int add, float *dst, ptrdiff_t ld_dst)
{
    p16 s = p16_set1(scale);
    for (int r = 0; r < rows; r++, acc += ld_acc, dst += ld_dst) {
        for (int i = 0; i < n; i += 16) {
            p16 y = p16_load(acc + i);
            if (bias) {
                y = p16_add(y, FC_NAME(load_up_to)(bias + i, n - i));
            }
            if (column_scale) {
                y = p16_mul(y, FC_NAME(load_up_to)(column_scale + i, n - i));
            }
            y = p16_mul(y, s);
            if (add) {
                y = p16_add(FC_NAME(load_up_to)(dst + i, n - i), y);
            }
            FC_NAME(store_up_to)(dst + i, y, n - i);
        }
    }
}

static void FC_NAME(swiglu_rows)(const float *acc, ptrdiff_t ld_acc, int rows, int n, const float *bias, float gate_scale,
                                 float scale, float *dst, ptrdiff_t ld_dst)
{
    for (int r = 0; r < rows; r++, acc += ld_acc, dst += ld_dst) {
        for (int i = 0; i < n; i += 16) {
            p16 gate = p16_load(acc + 2 * i), up = p16_load(acc + 2 * i + 16);
            if (bias) {
                gate = p16_add(gate, p16_load(bias + 2 * i));
                up = p16_add(up, p16_load(bias + 2 * i + 16));
            }
            gate = FC_NAME(silu16)(p16_mul(gate, p16_set1(gate_scale)));
            FC_NAME(store_up_to)(dst + i, p16_mul(p16_mul(gate, up), p16_set1(scale)), n - i);
        }
    }
}

static inline float FC_NAME(inverse_rms)(const float *x, int n, float eps)
{
    p16 sum = p16_zero();
    for (int i = 0; i < n; i += 16) {
        p16 v = FC_NAME(load_up_to)(x + i, n - i);
        sum = p16_fma(v, v, sum);
    }
    return 1.0f / sqrtf(p16_sum(sum) / (float)n + eps);
}

static void FC_NAME(rms_norm)(const float *x, const float *weight, int n, float eps, float scale, float *out)
{
    p16 inverse = p16_set1(FC_NAME(inverse_rms)(x, n, eps)), s = p16_set1(scale);
    for (int i = 0; i < n; i += 16) {
        p16 y = p16_mul(FC_NAME(load_up_to)(x + i, n - i), inverse);
        y = p16_mul(p16_mul(y, FC_NAME(load_up_to)(weight + i, n - i)), s);
        FC_NAME(store_up_to)(out + i, y, n - i);
    }
}

static void FC_NAME(rope)(const float *x, const float *cos, const float *sin, int head_dim, float *out)
{
    int half = head_dim / 2;
    for (int j = 0; j < half; j += 16) {
        int m = half - j;
        p16 a = FC_NAME(load_up_to)(x + j, m), b = FC_NAME(load_up_to)(x + half + j, m);
        p16 c = FC_NAME(load_up_to)(cos + j, m), s = FC_NAME(load_up_to)(sin + j, m);
        FC_NAME(store_up_to)(out + j, p16_sub(p16_mul(a, c), p16_mul(b, s)), m);
        FC_NAME(store_up_to)(out + half + j, p16_add(p16_mul(b, c), p16_mul(a, s)), m);
    }
}

static void FC_NAME(embed_row)(const void *panels, int dtype, int k, int row, float scale, float *out)
{
    fc_unpack_row(panels, (fc_dtype)dtype, k, row, out);
    for (int i = 0; i < k; i++) {
        out[i] *= scale;
    }
}

/* Largest of n <= 1024 values. */
static inline float FC_NAME(largest)(const float *x, ptrdiff_t n, p16 *nan)
{
    p16 best = p16_set1(x[0]), best2 = best;
    ptrdiff_t i = 0;
    for (; i + 32 <= n; i += 32) {
        p16 a = p16_load(x + i), b = p16_load(x + i + 16);
        best = p16_max(best, a);
        best2 = p16_max(best2, b);
        *nan = p16_fma(p16_add(p16_mul(a, p16_zero()), b), p16_zero(), *nan); /* 0 * x is 0 for finite x only */
    }
    for (; i < n; i++) {
        best = p16_max(best, p16_set1(x[i]));
        *nan = p16_fma(p16_set1(x[i]), p16_zero(), *nan);
    }
    return p16_largest(p16_max(best, best2));
}

static float FC_NAME(argmax)(const float *x, ptrdiff_t n, ptrdiff_t *index, int *finite)
{
    enum { CHUNK = 1024 };
    p16 nan = p16_zero();
    float value = x[0];
    ptrdiff_t chunk = 0;
    for (ptrdiff_t i = 0; i < n; i += CHUNK) {
        float largest = FC_NAME(largest)(x + i, n - i < CHUNK ? n - i : CHUNK, &nan);
        if (largest > value) {
            value = largest;
            chunk = i;
        }
    }
    *index = 0;
    if (!(p16_sum(nan) == 0.0f)) {
        *finite = 0;
        return value;
    }
    while (x[chunk] != value) {
        chunk++;
    }
    *index = chunk;
    return value;
}

static void FC_NAME(softmax_weights)(const float *x, ptrdiff_t n, float shift, float scale, float *weights, double *sums)
{
    p16 minus = p16_set1(shift), by = p16_set1(scale);
    for (ptrdiff_t start = 0; start < n; start += FC_WEIGHT_BLOCK) {
        ptrdiff_t end = n - start < FC_WEIGHT_BLOCK ? n : start + FC_WEIGHT_BLOCK;
        p16 sum = p16_zero();
        for (ptrdiff_t i = start; i < end; i += 16) {
            float drop[16], weight[16];
            p16 z = p16_mul(p16_sub(FC_NAME(load_up_to)(x + i, end - i), minus), by);
            p16_store(drop, z);
            p16_store(weight, FC_NAME(exp16)(z));
            for (int j = 0; j < 16; j++) {
                weight[j] = j < end - i && drop[j] >= -87.0f ? weight[j] : 0.0f;
            }
            z = p16_load(weight);
            FC_NAME(store_up_to)(weights + i, z, end - i);
            sum = p16_add(sum, z);
        }
        sums[start / FC_WEIGHT_BLOCK] = p16_sum(sum);
    }
}

static double FC_NAME(sum_exp)(const float *x, ptrdiff_t n, float shift, float scale)
{
    /* f32 partial sums of 1024 blocks keep their error far below an ulp of the total, which is a double. */
    double total = 0.0;
    p16 minus = p16_set1(shift), by = p16_set1(scale);
    for (ptrdiff_t start = 0; start < n; start += 16384) {
        ptrdiff_t end = n - start < 16384 ? n : start + 16384;
        p16 sum = p16_zero();
        for (ptrdiff_t i = start; i < end; i += 16) {
            p16 y = FC_NAME(exp16)(p16_mul(p16_sub(FC_NAME(load_up_to)(x + i, end - i), minus), by));
            if (end - i < 16) {
                float v[16];
                p16_store(v, y);
                y = FC_NAME(load_n)(v, end - i);
            }
            sum = p16_add(sum, y);
        }
        total += p16_sum(sum);
    }
    return total;
}
