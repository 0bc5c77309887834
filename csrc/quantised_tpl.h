/* Linear maps of weights in groups of 32 with rows quantised likewise. Within a group products of integers are summed exactly, in any
 * order; an output is one chain of fused multiply-adds over the groups:
 *   int8   acc = fma(sum of qw qx, scale_w * scale_x, acc)
 *   int4   the same, then acc = fma(minimum, scale_x * sum of qx, acc) */

/* Groups of nothing larger are zeros: 127 / largest must be finite. */
#define FC_LEAST_GROUP 1e-36f

/* Adding 1.5 * 2^23 rounds to even, and leaves the integer in the low bits. */
#define FC_ROUNDER 12582912.0f

/* Group g of a row, of n values; returns 0, or NaN where one of them is not finite. */
static inline p16 FC_NAME(quantize_group)(const float *x, int n, const fc_q8_row *row, ptrdiff_t g)
{
    p16 v[2] = {FC_NAME(load_up_to)(x, n), n > 16 ? FC_NAME(load_up_to)(x + 16, n - 16) : p16_zero()};
    p16 zero = p16_add(p16_mul(v[0], p16_zero()), p16_mul(v[1], p16_zero())), size = p16_zero(), sum = p16_zero();
    for (int half = 0; half < 2; half++) {
        size = p16_max(v[half], size);
        size = p16_max(p16_sub(p16_zero(), v[half]), size);
    }
    float largest = p16_largest(size), inverse = largest >= FC_LEAST_GROUP ? 127.0f / largest : 0.0f;
    for (int half = 0; half < 2; half++) {
        p16 y = p16_mul(v[half], p16_set1(inverse));
        y = p16_min(p16_max(y, p16_set1(-127.0f)), p16_set1(127.0f)); /* of what is not finite too */
        y = p16_add(y, p16_set1(FC_ROUNDER));
        sum = p16_add(sum, p16_sub(y, p16_set1(FC_ROUNDER)));
        p16_store_low_bytes(row->q + g * FC_GROUP + half * 16, row->wide + g * FC_GROUP + half * 16, y);
    }
    float total = p16_sum(sum); /* of integers: exact */
    row->scale[g] = largest >= FC_LEAST_GROUP ? largest / 127.0f : 0.0f;
    row->scaled_sum[g] = row->scale[g] * total;
    row->start[g] = -128 * (int32_t)total;
    return zero;
}

static void FC_NAME(quantize_rows)(const float *x, ptrdiff_t ld_x, int rows, int k, float *out, ptrdiff_t ld_out)
{
    ptrdiff_t groups = (k + FC_GROUP - 1) / FC_GROUP;
    for (int r = 0; r < rows; r++, x += ld_x, out += ld_out) {
        fc_q8_row row = fc_q8_row_of(out, groups);
        p16 zero = p16_zero();
        for (ptrdiff_t g = 0; g < groups; g++) {
            int left = k - (int)g * FC_GROUP;
            zero = p16_add(zero, FC_NAME(quantize_group)(x + g * FC_GROUP, left < FC_GROUP ? left : FC_GROUP, &row, g));
        }
        row.scale[0] += p16_sum(zero);
    }
}
