/* The table of formats, and weights into panels: data movement and rounding only. */
#include "formats.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "fastcore.h"
#include "half.h"
#include "parallel.h"

static inline float bf16_to_float(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t float_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { /* NaN stays a NaN */
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* ---- f32: 16 floats a k */

static void load_f32(const void *elements, float *values, int n) { memcpy(values, elements, (size_t)n * sizeof(float)); }

static void pack_f32(void *blocks, int lane, const float *values, int n)
{
    for (int i = 0; i < n; i++) {
        ((float *)blocks)[i * FC_LANES + lane] = values[i];
    }
}

static void unpack_f32(const void *blocks, int lane, float *values, int n)
{
    for (int i = 0; i < n; i++) {
        values[i] = ((const float *)blocks)[i * FC_LANES + lane];
    }
}

/* ---- bf16: 8 u32 a k, row j in the low half and row j + 8 in the high half */

static int bf16_slot(int lane) { return 2 * (lane % 8) + lane / 8; }

static void load_bf16(const void *elements, float *values, int n)
{
    for (int i = 0; i < n; i++) {
        values[i] = bf16_to_float(((const uint16_t *)elements)[i]);
    }
}

static void pack_bf16(void *blocks, int lane, const float *values, int n)
{
    uint16_t *to = (uint16_t *)blocks + bf16_slot(lane);
    for (int i = 0; i < n; i++) {
        to[i * FC_LANES] = float_to_bf16(values[i]);
    }
}

static void unpack_bf16(const void *blocks, int lane, float *values, int n)
{
    const uint16_t *from = (const uint16_t *)blocks + bf16_slot(lane);
    for (int i = 0; i < n; i++) {
        values[i] = bf16_to_float(from[i * FC_LANES]);
    }
}

/* ---- f16: 16 halves a k */

static void load_f16(const void *elements, float *values, int n)
{
    for (int i = 0; i < n; i++) {
        values[i] = fc_half_to_float(((const uint16_t *)elements)[i]);
    }
}

static void pack_f16(void *blocks, int lane, const float *values, int n)
{
    for (int i = 0; i < n; i++) {
        ((uint16_t *)blocks)[i * FC_LANES + lane] = fc_float_to_half(values[i]);
    }
}

static void unpack_f16(const void *blocks, int lane, float *values, int n)
{
    for (int i = 0; i < n; i++) {
        values[i] = fc_half_to_float(((const uint16_t *)blocks)[i * FC_LANES + lane]);
    }
}

/* ---- groups of 32 */

enum { INT8_SCALES = 512, INT4_SCALES = 256, INT4_MINIMA = 288 };

static uint16_t *halves_of(void *block, int at) { return (uint16_t *)((uint8_t *)block + at); }
static float half_of(const void *block, int at, int lane)
{
    return fc_half_to_float(((const uint16_t *)((const uint8_t *)block + at))[lane]);
}

/* The range of a group that is filled up with zeros; both are NaN where a value is not finite. */
static void range_of(const float *values, int n, float *least, float *most)
{
    float zero = 0.0f;
    *least = *most = values[0];
    for (int i = 0; i < n; i++) {
        zero += values[i] * 0.0f;
        *least = values[i] < *least ? values[i] : *least;
        *most = values[i] > *most ? values[i] : *most;
    }
    *least += zero;
    *most += zero;
}

/* The searches below take groups of 32, filled up with zeros, as eight vectors; sums have a fixed order. */
enum { VECTORS = FC_GROUP / 4 };
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

static inline f32x4 either(i32x4 mask, f32x4 a, f32x4 b) { return (f32x4)((mask & (i32x4)a) | (~mask & (i32x4)b)); }
static inline float sum_of(f32x4 x) { return (x[0] + x[2]) + (x[1] + x[3]); }

/* q = the nearest integer to (x - least) / step, ties to even, in [low, high]; low where that is NaN. Returns the sum of squared errors
 * of those with weight 1; the others have 0. */
static inline float quantize(const f32x4 *x, const f32x4 *weight, float least, float step, float low, float high, f32x4 *q)
{
    const float even = 12582912.0f; /* 1.5 * 2^23, from where on floats are whole */
    const f32x4 lows = {low, low, low, low}, highs = {high, high, high, high};
    float inverse = step > 0.0f ? 1.0f / step : 0.0f;
    f32x4 squares = {0};
    for (int i = 0; i < VECTORS; i++) {
        f32x4 t = (x[i] - least) * inverse;
        t = either(t > lows, t, lows);
        t = either(t < highs, t, highs);
        q[i] = (t + even) - even;
        f32x4 off = (q[i] * step + least - x[i]) * weight[i];
        squares += off * off;
    }
    return sum_of(squares);
}

/* The first `count` values of a group, and weights of 1 for them. */
static void fill(f32x4 *x, f32x4 *weight, const float *values, int count)
{
    float one[FC_GROUP] = {0};
    for (int i = 0; i < count; i++) {
        one[i] = 1.0f;
    }
    memset(x, 0, FC_GROUP * sizeof(float));
    memcpy(x, values, (size_t)count * sizeof(float));
    memcpy(weight, one, sizeof one);
}

/* The largest number becomes 127, 126 ... or 120, whichever makes the least error: coarser steps may lie better. */
static void pack_int8(void *blocks, int lane, const float *values, int n)
{
    enum { STEPS = 8 };
    uint8_t *block = (uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT8_SCALES + 32) {
        int count = n < FC_GROUP ? n : FC_GROUP;
        f32x4 x[VECTORS], weight[VECTORS], q[VECTORS], tried[VECTORS];
        float least, most, best = 0.0f;
        fill(x, weight, values, count);
        range_of(values, count, &least, &most);
        float size = most > -least ? most : -least;
        uint16_t scale = 0;
        for (int i = 0; i < STEPS; i++) {
            float target = (float)(127 - i);
            uint16_t half = fc_float_to_half(size < 127.0f * 65504.0f ? size / target
                                             : size == size && i == 0 ? 65504.0f
                                                                      : size);
            if (fc_half_to_float(half) * 127.5f <
                size) { /* what rounds down among subnormal halves would cut the largest off */
                half += half < 0x7bff;
            }
            float error = quantize(x, weight, 0.0f, fc_half_to_float(half), -127.0f, 127.0f, tried);
            if (i == 0 || error < best) {
                best = error;
                scale = half;
                memcpy(q, tried, sizeof q);
            }
        }
        for (int i = 0; i < FC_GROUP; i++) {
            ((int8_t *)block)[i / 4 * 64 + lane * 4 + i % 4] = (int8_t)q[i / 4][i % 4];
        }
        halves_of(block, INT8_SCALES)[lane] = scale;
    }
}

static void unpack_int8(const void *blocks, int lane, float *values, int n)
{
    const uint8_t *block = (const uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT8_SCALES + 32) {
        float scale = half_of(block, INT8_SCALES, lane);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            values[i] = scale * (float)((const int8_t *)block)[i / 4 * 64 + lane * 4 + i % 4];
        }
    }
}

static float stored_half(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return fc_half_to_float(half);
}

static void load_int8(const void *elements, float *values, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, from += 2 + FC_GROUP) {
        float scale = stored_half(from);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            values[i] = scale * (float)(int8_t)from[2 + i];
        }
    }
}

static int keep_int8(void *blocks, int lane, const void *elements, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    uint8_t *block = (uint8_t *)blocks;
    int beyond = 0;
    for (; n > 0; n -= FC_GROUP, from += 2 + FC_GROUP, block += INT8_SCALES + 32) {
        memcpy(block + INT8_SCALES + 2 * lane, from, 2);
        for (int i = 0; i < FC_GROUP; i++) {
            beyond |= from[2 + i] == 0x80;
        }
        for (int quad = 0; quad < FC_GROUP / 4; quad++) {
            memcpy(block + quad * 64 + lane * 4, from + 2 + quad * 4, 4);
        }
    }
    return beyond;
}

/* From the whole range in 15, 16 or 17 steps on: the line through the values that the last q fit best, as long as it gets better. */
static void pack_int4(void *blocks, int lane, const float *values, int n)
{
    enum { STARTS = 3, ROUNDS = 6 };
    uint8_t *block = (uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT4_MINIMA + 32) {
        int count = n < FC_GROUP ? n : FC_GROUP;
        f32x4 x[VECTORS], weight[VECTORS], q[VECTORS] = {{0}}, tried[VECTORS], all = {0};
        float least, most, best = INFINITY;
        fill(x, weight, values, count);
        range_of(values, count, &least, &most);
        uint16_t best_scale = fc_float_to_half((most - least) / 15.0f), best_minimum = fc_float_to_half(least);
        for (int i = 0; i < VECTORS; i++) {
            all += x[i];
        }
        float sum_x = sum_of(all);
        for (int start = 0; start < STARTS; start++) {
            float scale = (most - least) / (float)(15 + start), last = INFINITY;
            float minimum = least - 0.5f * (float)start * scale;
            for (int round = 0; round < ROUNDS; round++) {
                uint16_t halves[2] = {fc_float_to_half(scale), fc_float_to_half(minimum)};
                float error = quantize(x, weight, fc_half_to_float(halves[1]), fc_half_to_float(halves[0]), 0.0f, 15.0f, tried);
                if (!(error < last)) {
                    break;
                }
                last = error;
                if (error < best) {
                    best = error;
                    memcpy(q, tried, sizeof q);
                    best_scale = halves[0];
                    best_minimum = halves[1];
                }
                f32x4 first = {0}, second = {0}, product = {0};
                for (int i = 0; i < VECTORS; i++) {
                    f32x4 counted = tried[i] * weight[i];
                    first += counted;
                    second += counted * counted;
                    product += counted * x[i];
                }
                float sum_q = sum_of(first), sum_qq = sum_of(second), sum_qx = sum_of(product);
                float spread = (float)count * sum_qq - sum_q * sum_q;
                if (!(spread > 0.0f)) {
                    break;
                }
                scale = ((float)count * sum_qx - sum_q * sum_x) / spread;
                minimum = (sum_x - scale * sum_q) / (float)count;
            }
        }
        for (int i = 0; i < FC_GROUP / 2; i++) {
            int low = (int)q[i / 4][i % 4], high = i + 16 < count ? (int)q[4 + i / 4][i % 4] : 0;
            block[i / 4 * 64 + lane * 4 + i % 4] = (uint8_t)((i < count ? low : 0) | high << 4);
        }
        halves_of(block, INT4_SCALES)[lane] = best_scale;
        halves_of(block, INT4_MINIMA)[lane] = best_minimum;
    }
}

static void unpack_int4(const void *blocks, int lane, float *values, int n)
{
    const uint8_t *block = (const uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, block += INT4_MINIMA + 32) {
        float scale = half_of(block, INT4_SCALES, lane), minimum = half_of(block, INT4_MINIMA, lane);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            uint8_t both = block[i % 16 / 4 * 64 + lane * 4 + i % 4];
            values[i] = fmaf((float)(i < 16 ? both & 15 : both >> 4), scale, minimum);
        }
    }
}

static void load_int4(const void *elements, float *values, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    for (; n > 0; n -= FC_GROUP, values += FC_GROUP, from += 4 + FC_GROUP / 2) {
        float scale = stored_half(from), minimum = stored_half(from + 2);
        for (int i = 0; i < (n < FC_GROUP ? n : FC_GROUP); i++) {
            uint8_t both = from[4 + i % 16];
            values[i] = fmaf((float)(i < 16 ? both & 15 : both >> 4), scale, minimum);
        }
    }
}

static int keep_int4(void *blocks, int lane, const void *elements, int n)
{
    const uint8_t *from = (const uint8_t *)elements;
    uint8_t *block = (uint8_t *)blocks;
    for (; n > 0; n -= FC_GROUP, from += 4 + FC_GROUP / 2, block += INT4_MINIMA + 32) {
        memcpy(block + INT4_SCALES + 2 * lane, from, 2);
        memcpy(block + INT4_MINIMA + 2 * lane, from + 2, 2);
        for (int quad = 0; quad < FC_GROUP / 8; quad++) {
            memcpy(block + quad * 64 + lane * 4, from + 4 + quad * 4, 4);
        }
    }
    return 0;
}

/* ---- whole panels, the common case at load: 4 x 4 transposed; of 16-bit elements, pairs of rows are zipped before */

typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

#if defined(__clang__)
#define ZIP16(a, b, low) \
    (low ? __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11) : __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15))
#define SHUFFLE32(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define ZIP16(a, b, low)                                              \
    (low ? __builtin_shuffle(a, b, (u16x8){0, 8, 1, 9, 2, 10, 3, 11}) \
         : __builtin_shuffle(a, b, (u16x8){4, 12, 5, 13, 6, 14, 7, 15}))
#define SHUFFLE32(a, b, i, j, k, l) __builtin_shuffle(a, b, (u32x4){i, j, k, l})
#endif

/* Four vectors of four k into four k of four, at `to`, `apart` u32 apart. */
static inline void transpose_4x4(u32x4 a, u32x4 b, u32x4 c, u32x4 d, uint32_t *to, int apart)
{
    u32x4 ab = SHUFFLE32(a, b, 0, 4, 1, 5), cd = SHUFFLE32(c, d, 0, 4, 1, 5);
    u32x4 ab2 = SHUFFLE32(a, b, 2, 6, 3, 7), cd2 = SHUFFLE32(c, d, 2, 6, 3, 7);
    u32x4 rows[4] = {SHUFFLE32(ab, cd, 0, 1, 4, 5), SHUFFLE32(ab, cd, 2, 3, 6, 7), SHUFFLE32(ab2, cd2, 0, 1, 4, 5),
                     SHUFFLE32(ab2, cd2, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++) {
        memcpy(to + i * apart, &rows[i], sizeof rows[i]);
    }
}

/* The rows of a pair are `apart`, pairs `stride`. */
static void zip_panel(uint16_t *panel, const uint16_t *src, int k, ptrdiff_t apart, ptrdiff_t stride)
{
    ptrdiff_t i = 0;
    for (; i + 8 <= k; i += 8) {
        u32x4 low[8], high[8];
        for (int pair = 0; pair < 8; pair++) {
            u16x8 a, b;
            memcpy(&a, src + pair * stride * k + i, sizeof a);
            memcpy(&b, src + (pair * stride + apart) * k + i, sizeof b);
            low[pair] = (u32x4)ZIP16(a, b, 1);
            high[pair] = (u32x4)ZIP16(a, b, 0);
        }
        uint32_t *to = (uint32_t *)panel + i * 8;
        for (int half = 0; half < 8; half += 4) {
            transpose_4x4(low[half], low[half + 1], low[half + 2], low[half + 3], to + half, 8);
            transpose_4x4(high[half], high[half + 1], high[half + 2], high[half + 3], to + 32 + half, 8);
        }
    }
    for (; i < k; i++) {
        for (int pair = 0; pair < 8; pair++) {
            panel[i * FC_LANES + 2 * pair] = src[pair * stride * k + i];
            panel[i * FC_LANES + 2 * pair + 1] = src[(pair * stride + apart) * k + i];
        }
    }
}

static void zip_by_eights(void *panel, const void *src, int k) { zip_panel((uint16_t *)panel, (const uint16_t *)src, k, 8, 1); }
static void zip_neighbours(void *panel, const void *src, int k)
{
    zip_panel((uint16_t *)panel, (const uint16_t *)src, k, 1, 2);
}

static void transpose_panel(void *panel, const void *src, int k)
{
    const uint32_t *from = (const uint32_t *)src;
    uint32_t *to = (uint32_t *)panel;
    ptrdiff_t i = 0;
    for (; i + 4 <= k; i += 4) {
        for (int row = 0; row < FC_LANES; row += 4) {
            u32x4 values[4];
            for (int j = 0; j < 4; j++) {
                memcpy(&values[j], from + (ptrdiff_t)(row + j) * k + i, sizeof values[j]);
            }
            transpose_4x4(values[0], values[1], values[2], values[3], to + i * FC_LANES + row, FC_LANES);
        }
    }
    for (; i < k; i++) {
        for (int row = 0; row < FC_LANES; row++) {
            to[i * FC_LANES + row] = from[(ptrdiff_t)row * k + i];
        }
    }
}

/* ---- the table */

#define FC_FORMAT_ROW(A, CODE, name, stored_as, element_bytes, load, keep, pack_panel, block_k, block_bytes, source) \
    {#name, stored_as, element_bytes, load, keep, pack_panel, block_k, block_bytes, source, pack_##name, unpack_##name},
static const fc_format formats[] = {FC_FORMATS(FC_FORMAT_ROW, )};

const fc_format *fc_format_of(int dtype) { return &formats[dtype]; }

ptrdiff_t fc_panel_bytes(int dtype, int k)
{
    const fc_format *format = fc_format_of(dtype);
    return (ptrdiff_t)((k + format->block_k - 1) / format->block_k) * format->block_bytes;
}

size_t fc_packed_bytes(int out_features, int in_features, fc_dtype dtype)
{
    return (size_t)fc_panels(out_features) * (size_t)fc_panel_bytes((int)dtype, in_features);
}

/* ---- rows into panels */

static int pack_row(const fc_format *format, uint8_t *panel, int lane, int k, const uint8_t *row, const fc_format *stored)
{
    float values[FC_CHUNK_K];
    if (format == stored && format->keep) {
        return format->keep(panel, lane, row, k);
    }
    for (int i = 0, n; i < k; i += n) {
        n = k - i < FC_CHUNK_K ? k - i : FC_CHUNK_K;
        stored->load(row + (ptrdiff_t)(i / stored->block_k) * stored->element_bytes, values, n);
        format->pack(panel + (ptrdiff_t)(i / format->block_k) * format->block_bytes, lane, values, n);
    }
    return 0;
}

typedef struct {
    uint8_t *panels;
    const fc_format *format, *stored;
    ptrdiff_t panel_bytes;
    int k, num_rows, first_row, group_stride;
    const uint8_t *src;
    atomic_int beyond;
} pack_job;

static void pack_range(void *data, int thread, int num_threads)
{
    pack_job *job = (pack_job *)data;
    int groups = (job->num_rows + 15) / 16, beyond = 0;
    ptrdiff_t row_bytes = (ptrdiff_t)((job->k + job->stored->block_k - 1) / job->stored->block_k) * job->stored->element_bytes;
    int aligned = job->first_row % 16 == 0;
    /* Sources that straddle panels share their border panels, so one thread takes them all. */
    int begin = aligned ? (int)((int64_t)groups * thread / num_threads) : thread == 0 ? 0 : groups;
    int end = aligned ? (int)((int64_t)groups * (thread + 1) / num_threads) : groups;
    for (int g = begin; g < end; g++) {
        int rows = job->num_rows - g * 16 < 16 ? job->num_rows - g * 16 : 16;
        int to = job->first_row + g * job->group_stride;
        const uint8_t *from = job->src + (ptrdiff_t)g * 16 * row_bytes;
        uint8_t *panel = job->panels + to / 16 * job->panel_bytes;
        if (aligned && rows == 16 && job->format == job->stored && job->format->pack_panel) {
            job->format->pack_panel(panel, from, job->k);
            continue;
        }
        for (int r = 0; r < rows; r++) {
            panel = job->panels + (to + r) / 16 * job->panel_bytes;
            beyond |= pack_row(job->format, panel, (to + r) % 16, job->k, from + r * row_bytes, job->stored);
        }
    }
    if (beyond) {
        job->beyond = 1;
    }
}

int fc_pack_rows(void *panels, fc_dtype dtype, int in_features, const void *src, fc_dtype src_dtype, int num_rows,
                 int first_row, int group_stride, int num_threads)
{
    pack_job job = {
        .panels = (uint8_t *)panels,
        .format = fc_format_of((int)dtype),
        .stored = fc_format_of((int)src_dtype),
        .panel_bytes = fc_panel_bytes((int)dtype, in_features),
        .k = in_features,
        .num_rows = num_rows,
        .first_row = first_row,
        .group_stride = group_stride,
        .src = (const uint8_t *)src,
    };
    fc_parallel(num_threads, pack_range, &job);
    return job.beyond;
}

void fc_unpack_row(const void *panels, fc_dtype dtype, int in_features, int row, float *out)
{
    const fc_format *format = fc_format_of((int)dtype);
    const uint8_t *panel = (const uint8_t *)panels + row / 16 * fc_panel_bytes((int)dtype, in_features);
    for (int i = 0, n; i < in_features; i += n) {
        n = in_features - i < FC_CHUNK_K ? in_features - i : FC_CHUNK_K;
        format->unpack(panel + (ptrdiff_t)(i / format->block_k) * format->block_bytes, row % 16, out + i, n);
    }
}
