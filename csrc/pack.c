/* Weights into panels: data movement and rounding only. */
#include <string.h>

#include "fastcore.h"
#include "half.h"
#include "parallel.h"

size_t fc_packed_bytes(int out_features, int in_features, fc_dtype dtype)
{
    return (size_t)fc_panels(out_features) * (size_t)in_features * (size_t)fc_lane_bytes(dtype);
}

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

static inline float load_element(const void *p, fc_dtype dtype, ptrdiff_t i)
{
    switch (dtype) {
    case FC_BF16:
        return bf16_to_float(((const uint16_t *)p)[i]);
    case FC_F16:
        return fc_half_to_float(((const uint16_t *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

/* Where lane `lane` of one k lies, in elements from the start of that k. */
static inline int lane_slot(fc_dtype dtype, int lane) { return dtype == FC_BF16 ? 2 * (lane % 8) + lane / 8 : lane; }

static void pack_lane(uint8_t *panel, fc_dtype dtype, int lane, int k, const void *row, fc_dtype src_dtype)
{
    int slot = lane_slot(dtype, lane);
    for (ptrdiff_t i = 0; i < k; i++) {
        if (dtype == src_dtype && dtype != FC_F32) {
            ((uint16_t *)panel)[i * FC_LANES + slot] = ((const uint16_t *)row)[i];
            continue;
        }
        float v = load_element(row, src_dtype, i);
        if (dtype == FC_F32) {
            ((float *)panel)[i * FC_LANES + slot] = v;
        } else {
            ((uint16_t *)panel)[i * FC_LANES + slot] = dtype == FC_BF16 ? float_to_bf16(v) : fc_float_to_half(v);
        }
    }
}

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

/* Four vectors of four k into four k of four, at `to`, 8 u32 apart. */
static inline void transpose_4x4(u32x4 a, u32x4 b, u32x4 c, u32x4 d, uint32_t *to)
{
    u32x4 ab = SHUFFLE32(a, b, 0, 4, 1, 5), cd = SHUFFLE32(c, d, 0, 4, 1, 5);
    u32x4 ab2 = SHUFFLE32(a, b, 2, 6, 3, 7), cd2 = SHUFFLE32(c, d, 2, 6, 3, 7);
    u32x4 rows[4] = {SHUFFLE32(ab, cd, 0, 1, 4, 5), SHUFFLE32(ab, cd, 2, 3, 6, 7), SHUFFLE32(ab2, cd2, 0, 1, 4, 5),
                     SHUFFLE32(ab2, cd2, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++) {
        memcpy(to + i * 8, &rows[i], sizeof rows[i]);
    }
}

/* A whole panel from 16 rows of the same 16-bit dtype, the common case at load: pairs of rows are zipped, then 4 x 4 transposed.
 * bf16 pairs rows j and j + 8, f16 neighbours. */
static void pack_panel_u16(uint8_t *panel, fc_dtype dtype, int k, const uint16_t *src)
{
    ptrdiff_t i = 0, apart = dtype == FC_BF16 ? 8 : 1, stride = dtype == FC_BF16 ? 1 : 2;
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
            transpose_4x4(low[half], low[half + 1], low[half + 2], low[half + 3], to + half);
            transpose_4x4(high[half], high[half + 1], high[half + 2], high[half + 3], to + 32 + half);
        }
    }
    for (; i < k; i++) {
        for (int row = 0; row < 16; row++) {
            ((uint16_t *)panel)[i * FC_LANES + lane_slot(dtype, row)] = src[row * (ptrdiff_t)k + i];
        }
    }
}

typedef struct {
    uint8_t *panels;
    fc_dtype dtype, src_dtype;
    int k, num_rows, first_row, group_stride;
    const uint8_t *src;
} pack_job;

static void pack_range(void *data, int thread, int num_threads)
{
    const pack_job *job = (const pack_job *)data;
    int groups = (job->num_rows + 15) / 16;
    ptrdiff_t panel_bytes = job->k * fc_lane_bytes(job->dtype), row_bytes = (ptrdiff_t)job->k * fc_dtype_bytes(job->src_dtype);
    int aligned = job->first_row % 16 == 0;
    /* Sources that straddle panels share their border panels, so one thread takes them all. */
    int begin = aligned ? (int)((int64_t)groups * thread / num_threads) : thread == 0 ? 0 : groups;
    int end = aligned ? (int)((int64_t)groups * (thread + 1) / num_threads) : groups;
    for (int g = begin; g < end; g++) {
        int rows = job->num_rows - g * 16 < 16 ? job->num_rows - g * 16 : 16;
        int to = job->first_row + g * job->group_stride;
        const uint8_t *from = job->src + (ptrdiff_t)g * 16 * row_bytes;
        if (aligned && rows == 16 && job->dtype == job->src_dtype && job->dtype != FC_F32) {
            pack_panel_u16(job->panels + to / 16 * panel_bytes, job->dtype, job->k, (const uint16_t *)from);
            continue;
        }
        for (int r = 0; r < rows; r++) {
            pack_lane(job->panels + (to + r) / 16 * panel_bytes, job->dtype, (to + r) % 16, job->k, from + r * row_bytes,
                      job->src_dtype);
        }
    }
}

void fc_pack_rows(void *panels, fc_dtype dtype, int in_features, const void *src, fc_dtype src_dtype, int num_rows,
                  int first_row, int group_stride, int num_threads)
{
    pack_job job = {(uint8_t *)panels, dtype, src_dtype, in_features, num_rows, first_row, group_stride, (const uint8_t *)src};
    fc_parallel(num_threads, pack_range, &job);
}

void fc_unpack_row(const void *panels, fc_dtype dtype, int in_features, int row, float *out)
{
    const uint8_t *panel = (const uint8_t *)panels + row / 16 * (in_features * fc_lane_bytes(dtype));
    int slot = lane_slot(dtype, row % 16);
    for (ptrdiff_t i = 0; i < in_features; i++) {
        out[i] = load_element(panel, dtype, i * FC_LANES + slot);
    }
}
