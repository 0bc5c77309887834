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

/* A whole panel from 16 rows of the same 16-bit dtype: the common case at load, in blocks of k that stay in L1. */
static void pack_panel_u16(uint8_t *panel, fc_dtype dtype, int k, const uint16_t *src)
{
    enum { BLOCK = 64 };
    for (ptrdiff_t start = 0; start < k; start += BLOCK) {
        ptrdiff_t end = start + BLOCK < k ? start + BLOCK : k;
        for (int pair = 0; pair < 8; pair++) {
            /* bf16 interleaves rows j and j + 8, f16 keeps neighbours together */
            const uint16_t *a = src + (dtype == FC_BF16 ? pair : 2 * pair) * (ptrdiff_t)k;
            const uint16_t *b = a + (dtype == FC_BF16 ? 8 : 1) * (ptrdiff_t)k;
            uint32_t *out = (uint32_t *)panel + pair;
            for (ptrdiff_t i = start; i < end; i++) {
                out[i * 8] = (uint32_t)a[i] | (uint32_t)b[i] << 16;
            }
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

void fc_pack_rows(void *panels, fc_dtype dtype, int in_features, const void *src, fc_dtype src_dtype, int num_rows, int first_row,
                  int group_stride, int num_threads)
{
    pack_job job = {(uint8_t *)panels, dtype,     src_dtype,   in_features,
                    num_rows,          first_row, group_stride, (const uint8_t *)src};
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
