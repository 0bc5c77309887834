/* Linear maps of weights in groups of 32 with rows quantised likewise. Within a group products of integers are summed exactly, in any
 * order; an output is one chain of fused multiply-adds over the groups:
 *   int8   acc = fma(sum of qw qx, scale_w * scale_x, acc)
 *   int4   the same, then acc = fma(minimum, scale_x * sum of qx, acc) */

/* Groups of nothing larger are zeros: 127 / largest must be finite. */
#define FC_LEAST_GROUP 1e-36f

static inline void FC_NAME(quantize_group)(const float *x, int n, fc_q8_group *group)
{
    p16 v[2] = {FC_NAME(load_up_to)(x, n), n > 16 ? FC_NAME(load_up_to)(x + 16, n - 16) : p16_zero()};
    p16 zero = p16_add(p16_mul(v[0], p16_zero()), p16_mul(v[1], p16_zero())), size = p16_zero();
    for (int half = 0; half < 2; half++) {
        size = p16_max(v[half], size);
        size = p16_max(p16_sub(p16_zero(), v[half]), size);
    }
    float largest = FC_NAME(max16)(size), not_finite = FC_NAME(sum16)(zero), low_bits[16];
    p16 inverse = p16_set1(largest >= FC_LEAST_GROUP ? 127.0f / largest : 0.0f), sum = p16_zero();
    for (int half = 0; half < 2; half++) {
        p16 y = p16_mul(v[half], inverse);
        y = p16_min(p16_max(y, p16_set1(-127.0f)), p16_set1(127.0f)); /* of what is not finite too */
        y = p16_add(y, p16_set1(12582912.0f));                        /* rounds to even, and leaves the
                                              integer in the low bits */
        sum = p16_add(sum, p16_sub(y, p16_set1(12582912.0f)));
        p16_store(low_bits, y);
        for (int i = 0; i < 16; i++) {
            int32_t bits;
            memcpy(&bits, &low_bits[i], sizeof bits);
            group->q[half * 16 + i] = (int8_t)(bits & 0xff);
        }
    }
    for (int i = 0; i < FC_GROUP; i += 4) {
        group->wide[i] = group->q[i];
        group->wide[i + 1] = group->q[i + 2];
        group->wide[i + 2] = group->q[i + 1];
        group->wide[i + 3] = group->q[i + 3];
    }
    float total = FC_NAME(sum16)(sum); /* of integers: exact */
    group->scale = (largest >= FC_LEAST_GROUP ? largest / 127.0f : 0.0f) + not_finite;
    group->sum = (int32_t)total;
    group->scaled_sum = group->scale * total;
}

static void FC_NAME(quantize_rows)(const float *x, ptrdiff_t ld_x, int rows, int k, float *out, ptrdiff_t ld_out)
{
    for (int r = 0; r < rows; r++, x += ld_x, out += ld_out) {
        fc_q8_group *groups = (fc_q8_group *)out;
        for (int i = 0; i < k; i += FC_GROUP) {
            FC_NAME(quantize_group)
            (x + i, k - i < FC_GROUP ? k - i : FC_GROUP, groups++);
        }
    }
}
