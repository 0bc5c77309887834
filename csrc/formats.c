/* The table of formats, and weights into panels: data movement and rounding only. */
#include "formats.h"

#include <stdatomic.h>
#include <string.h>

#include "fastcore.h"
#include "formats_groups.h"
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
