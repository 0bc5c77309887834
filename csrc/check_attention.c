/* The checks of the kernels of attention_tpl.h. */
#include "check_inputs.h"

/* One head's cache of `length` positions in blocks that are not in order. */
typedef struct {
    fc_kv_cache kv;
    int32_t blocks[64];
    size_t bytes;
} head_cache;

static const int kv_dtypes[] = {FC_F32, FC_F16, FC_INT8};
enum { NUM_KV_DTYPES = sizeof kv_dtypes / sizeof kv_dtypes[0] };

static head_cache write_cache(fc_check *c, int length, int head_dim, int dtype)
{
    head_cache cache = {0};
    int num_blocks = (length + FC_BLOCK_TOKENS - 1) / FC_BLOCK_TOKENS;
    cache.kv.dtype = dtype;
    cache.kv.v_offset = fc_kv_part_bytes(dtype, head_dim);
    cache.kv.block_bytes = cache.kv.layer_bytes = cache.kv.head_bytes =
        cache.kv.v_offset + fc_kv_part_bytes(dtype, fc_pad(head_dim));
    cache.bytes = (size_t)(cache.kv.block_bytes * num_blocks);
    cache.kv.base = (uint8_t *)zeroed(c, cache.bytes);
    for (int b = 0; b < num_blocks; b++) {
        cache.blocks[b] = (b * 5 + 2) % num_blocks;
    }
    if (num_blocks % 5 == 0) {
        for (int b = 0; b < num_blocks; b++) {
            cache.blocks[b] = num_blocks - 1 - b;
        }
    }
    for (int position = 0; position < length; position++) {
        uint8_t *block = cache.kv.base + cache.blocks[position / FC_BLOCK_TOKENS] * cache.kv.block_bytes;
        for (int is_v = 0; is_v < 2; is_v++) {
            float x[FC_MAX_HEAD_DIM], center[FC_MAX_HEAD_DIM], unit[FC_MAX_HEAD_DIM];
            fill(c, x, (size_t)head_dim, 1.5f);
            fill(c, center, (size_t)head_dim, 4.0f);
            for (int i = 0; i < head_dim; i++) {
                unit[i] = i % 3 ? 0.5f : 4.0f;
            }
            c->kernels->write_kv(x, is_v || position % 3 == 0 ? NULL : center, unit, head_dim, dtype, is_v, block,
                                 cache.kv.v_offset, position);
        }
    }
    return cache;
}

void fc_check_write_kv(fc_check *c)
{
    static const int dims[] = {2, 6, 16, 24, 64, 130};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        for (int d = 0; d < NUM_KV_DTYPES; d++) {
            c->restart(c);
            head_cache cache = write_cache(c, 71, dims[i], kv_dtypes[d]);
            add(c, cache.kv.base, cache.bytes);
        }
    }
    /* conversions to half at every exponent, with the bits below in all patterns */
    uint8_t block[FC_BLOCK_TOKENS * 32 * 2] __attribute__((aligned(4))) = {0};
    for (uint32_t high = 0; high < 0x7f8; high += c->thorough ? 1 : 31) {
        float x[16];
        for (uint32_t i = 0; i < 16; i++) {
            static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000};
            uint32_t bits = high << 20 | (next_bits(c) & 0xfe000u) | low[i % 8] | (i & 8) << 28;
            memcpy(&x[i], &bits, sizeof bits);
        }
        c->kernels->write_kv(x, NULL, NULL, 16, FC_F16, 1, block, 0, 0);
        add(c, block, 32);
    }
    /* int8 of ties, and of the smallest and largest */
    static const float scales[] = {1.0f, 1e-20f, 3e-37f, 1e30f};
    for (int i = 0; i < 4; i++) {
        float x[24];
        fill(c, x, 24, 1.0f);
        for (int j = 0; j < 24; j++) {
            x[j] = (j % 7 ? (float)(int)(x[j] * 254.0f) * 0.5f : x[j]) * scales[i];
        }
        c->kernels->write_kv(x, NULL, NULL, 24, FC_INT8, i % 2, block, 0, i);
        add(c, block, (size_t)fc_kv_part_bytes(FC_INT8, 32));
    }
}

static void attend(fc_check *c, int length, int tokens, int group, int head_dim, int causal, int dtype)
{
    c->restart(c);
    head_cache cache = write_cache(c, length, head_dim, dtype);
    int rows = tokens * group, segments = (length + FC_SEGMENT_TOKENS - 1) / FC_SEGMENT_TOKENS, width = fc_pad(head_dim) + 2;
    float *q = floats(c, (size_t)(rows * head_dim), 2.0f), *out = floats(c, (size_t)(rows * head_dim), 1.0f);
    float *scratch = (float *)zeroed(c, fc_attention_scratch_floats(head_dim) * sizeof(float));
    float *unit = floats(c, (size_t)head_dim, 2.0f);
    float *partial = (float *)zeroed(c, (size_t)(rows * segments * width) * sizeof(float));
    fc_attention_task task = {
        .q = q,
        .ld_q = group * head_dim,
        .tokens = tokens,
        .group = group,
        .head_dim = head_dim,
        .limit = causal ? length - tokens + 1 : length,
        .limit_step = causal,
        .end_segment = segments,
        .score_scale = 0.3f,
        .kv = &cache.kv,
        .key_unit = group % 2 ? unit : NULL,
        .head_base = cache.kv.base,
        .blocks = cache.blocks,
        .out = out,
        .ld_out = group * head_dim,
        .scratch = scratch,
    };
    c->kernels->attention(&task);
    add_floats(c, out, (size_t)(rows * head_dim));
    task.partial = partial;
    task.partial_segments = segments;
    c->kernels->attention(&task);
    add_floats(c, partial, (size_t)(rows * segments * width));
    for (int row = 0; row < rows; row++) {
        int visible = (task.limit + row / group * task.limit_step + FC_SEGMENT_TOKENS - 1) / FC_SEGMENT_TOKENS;
        float combined[FC_MAX_HEAD_DIM];
        c->kernels->attention_combine(partial + row * segments * width, visible, head_dim, combined);
        if (memcmp(combined, out + row * head_dim, (size_t)head_dim * sizeof(float)) != 0) {
            c->failed = "attention: a row differs when its segments are combined later";
        }
    }
}

void fc_check_attention(fc_check *c)
{
    for (int d = 0; d < NUM_KV_DTYPES; d++) {
        int dtype = kv_dtypes[d];
        for (int causal = 0; causal < 2; causal++) {
            attend(c, 1, 1, 1, 2, causal, dtype);
            attend(c, 17, 17, 3, 6, causal, dtype);
            attend(c, 33, 2, 7, 24, causal, dtype);
            if (!c->thorough) {
                continue;
            }
            attend(c, 97, 31, 2, 64, causal, dtype);
            attend(c, FC_SEGMENT_TOKENS, 5, 1, 16, causal, dtype);
            attend(c, FC_SEGMENT_TOKENS + 1, 5, 2, 16, causal, dtype);
            attend(c, 2 * FC_SEGMENT_TOKENS + 70, 9, 3, 8, causal, dtype);
        }
    }
}

void fc_check_attention_combine(fc_check *c)
{
    for (int segments = 1; segments <= 5; segments += c->thorough ? 1 : 2) {
        EACH_SIZE(c, dim)
        {
            size_t width = (size_t)fc_pad((int)dim) + 2;
            float *partial = floats(c, (size_t)segments * width, 1.0f), *out = floats(c, dim, 1.0f);
            for (int s = 0; s < segments; s++) {
                partial[(size_t)s * width + width - 2] = 1.5f + next_float(c);  /* the sum */
                partial[(size_t)s * width + width - 1] = 20.0f * next_float(c); /* the maximum */
            }
            c->kernels->attention_combine(partial, segments, (int)dim, out);
            add_floats(c, out, dim);
        }
    }
}
