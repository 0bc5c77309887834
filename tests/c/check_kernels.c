/* Runs every kernel of the table, and a tiny model, on fixed pseudo-random inputs and prints a checksum of the bits of what comes
 * out: a line "<instruction set> <kernel> <checksum>" each. The same kernel must print the same checksum on every instruction set,
 * compiler and machine.
 *
 *   check_kernels             the instruction sets that this machine can run
 *   check_kernels NAME ...    these, without asking whether it can */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* ---- inputs and checksums */

static uint32_t state;

static uint32_t next_bits(void)
{
    state = state * 1664525u + 1013904223u;
    return state ^ (state >> 15);
}

/* In [-1, 1), of 24 bits. */
static float next_float(void) { return (float)(int32_t)(next_bits() & 0xffffff00u) * 0x1p-31f; }

static float *floats(size_t n, float scale)
{
    float *x = (float *)malloc((n + 16) * sizeof(float));
    if (!x) {
        exit(2);
    }
    for (size_t i = 0; i < n; i++) {
        x[i] = scale * next_float();
    }
    memset(x + n, 0xff, 16 * sizeof(float)); /* NaN: must not be read into a result */
    return x;
}

static void *zeroed(size_t bytes)
{
    void *p = calloc(bytes, 1);
    if (!p) {
        exit(2);
    }
    return p;
}

static uint64_t hash;

static void add(const void *data, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ p[i]) * 1099511628211u;
    }
}

static void add_floats(const float *x, size_t n) { add(x, n * sizeof(float)); }

static const int sizes[] = {1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 63, 64, 65, 97, 300};
#define EACH_SIZE(n)                                                                                                   \
    for (size_t n##_index = 0, n = 1; n##_index < sizeof sizes / sizeof sizes[0] && (n = (size_t)sizes[n##_index], 1); \
         n##_index++)

/* ---- one check a kernel */

static void check_gemm(fc_gemm *gemm, fc_dtype dtype)
{
    enum { MOST_ROWS = 14, MOST_PANELS = 9, K = 45 };
    float *x = floats(MOST_ROWS * K, 1.0f), *w = floats(MOST_PANELS * 16 * K, 1.0f);
    uint8_t *panels = (uint8_t *)zeroed(fc_packed_bytes(MOST_PANELS * 16, K, dtype) + 64);
    float acc[MOST_ROWS * MOST_PANELS * 16];
    fc_pack_rows(panels, dtype, K, w, FC_F32, MOST_PANELS * 16, 0, 16, 1);
    add(panels, fc_packed_bytes(MOST_PANELS * 16, K, dtype));
    for (int rows = 1; rows <= MOST_ROWS; rows++) {
        for (int count = 1; count <= MOST_PANELS; count++) {
            memset(acc, 0, sizeof acc);
            gemm(x, K, rows, panels, count, K, acc, MOST_PANELS * 16);
            add_floats(acc, sizeof acc / sizeof acc[0]);
        }
    }
    free(x);
    free(w);
    free(panels);
}

static void check_gemm_f32(void) { check_gemm(fc_active->gemm_f32, FC_F32); }
static void check_gemm_bf16(void) { check_gemm(fc_active->gemm_bf16, FC_BF16); }
static void check_gemm_f16(void) { check_gemm(fc_active->gemm_f16, FC_F16); }

static void check_store_rows(void)
{
    enum { ROWS = 3, LD = 304 };
    EACH_SIZE(n)
    {
        float *acc = floats(ROWS * LD, 2.0f), *bias = floats(n, 1.0f), *column = floats(n, 1.0f), *dst = floats(ROWS * n, 1.0f);
        for (int which = 0; which < 8; which++) {
            fc_active->store_rows(acc, LD, ROWS, (int)n, which & 1 ? bias : NULL, which & 2 ? column : NULL, 0.7f, which & 4,
                                  dst, (ptrdiff_t)n);
            add_floats(dst, ROWS * n);
        }
        free(acc);
        free(bias);
        free(column);
        free(dst);
    }
}

static void check_swiglu_rows(void)
{
    enum { ROWS = 3, LD = 608 };
    EACH_SIZE(n)
    {
        float *acc = floats(ROWS * LD, 8.0f), *bias = floats(LD, 1.0f), *dst = floats(ROWS * n, 1.0f);
        fc_active->swiglu_rows(acc, LD, ROWS, (int)n, NULL, 1.0f, 1.0f, dst, (ptrdiff_t)n);
        add_floats(dst, ROWS * n);
        fc_active->swiglu_rows(acc, LD, ROWS, (int)n, bias, 0.88f, 0.58f, dst, (ptrdiff_t)n);
        add_floats(dst, ROWS * n);
        free(acc);
        free(bias);
        free(dst);
    }
}

static void check_rms_norm(void)
{
    EACH_SIZE(n)
    {
        float *x = floats(n, 3.0f), *weight = floats(n, 1.0f), *out = floats(n, 1.0f);
        fc_active->rms_norm(x, weight, (int)n, 1e-5f, 1.3f, out);
        add_floats(out, n);
        fc_active->rms_norm(x, weight, (int)n, 1e-5f, 1.0f, x);
        add_floats(x, n);
        free(x);
        free(weight);
        free(out);
    }
}

static void check_rope(void)
{
    EACH_SIZE(half)
    {
        float *x = floats(2 * half, 3.0f), *cos = floats(half, 1.0f), *sin = floats(half, 1.0f);
        fc_active->rope(x, cos, sin, (int)(2 * half), x);
        add_floats(x, 2 * half);
        free(x);
        free(cos);
        free(sin);
    }
}

static void check_embed_row(void)
{
    for (fc_dtype dtype = 0; dtype < FC_NUM_DTYPES; dtype++) {
        EACH_SIZE(k)
        {
            float *table = floats(21 * k, 1.0f), *out = floats(k, 1.0f);
            void *panels = zeroed(fc_packed_bytes(21, (int)k, dtype));
            fc_pack_rows(panels, dtype, (int)k, table, FC_F32, 21, 0, 16, 1);
            for (int row = 0; row < 21; row += 4) {
                fc_active->embed_row(panels, (int)dtype, (int)k, row, 2.5f, out);
                add_floats(out, k);
            }
            free(table);
            free(out);
            free(panels);
        }
    }
}

/* One head's cache of `length` positions in blocks that are not in order. */
typedef struct {
    fc_kv_cache kv;
    int32_t blocks[64];
    size_t bytes;
} head_cache;

static head_cache write_cache(int length, int head_dim, int dtype)
{
    head_cache cache = {0};
    int num_blocks = (length + FC_BLOCK_TOKENS - 1) / FC_BLOCK_TOKENS;
    cache.kv.dtype = dtype;
    cache.kv.v_offset = (ptrdiff_t)fc_kv_bytes(dtype) * FC_BLOCK_TOKENS * head_dim;
    cache.kv.block_bytes = cache.kv.layer_bytes = cache.kv.head_bytes =
        cache.kv.v_offset + (ptrdiff_t)fc_kv_bytes(dtype) * FC_BLOCK_TOKENS * fc_pad(head_dim);
    cache.bytes = (size_t)(cache.kv.block_bytes * num_blocks);
    cache.kv.base = (uint8_t *)zeroed(cache.bytes);
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
            float *x = floats((size_t)head_dim, 1.5f);
            fc_active->write_kv(x, head_dim, dtype, is_v, block, cache.kv.v_offset, position);
            free(x);
        }
    }
    return cache;
}

static void check_write_kv(void)
{
    static const int dims[] = {2, 6, 16, 24, 64, 130};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        for (int half = 0; half < 2; half++) {
            head_cache cache = write_cache(71, dims[i], half ? FC_F16 : FC_F32);
            add(cache.kv.base, cache.bytes);
            free(cache.kv.base);
        }
    }
    /* conversions to half at every exponent, with the bits below in all patterns */
    uint8_t block[FC_BLOCK_TOKENS * 32 * 2] = {0};
    for (uint32_t high = 0; high < 0x7f8; high++) {
        float x[16];
        for (uint32_t i = 0; i < 16; i++) {
            static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000};
            uint32_t bits = high << 20 | (next_bits() & 0xfe000u) | low[i % 8] | (i & 8) << 28;
            memcpy(&x[i], &bits, sizeof bits);
        }
        fc_active->write_kv(x, 16, FC_F16, 1, block, 0, 0);
        add(block, 32);
    }
}

static void attend(int length, int tokens, int group, int head_dim, int causal, int dtype)
{
    head_cache cache = write_cache(length, head_dim, dtype);
    int rows = tokens * group, segments = (length + FC_SEGMENT_TOKENS - 1) / FC_SEGMENT_TOKENS, width = fc_pad(head_dim) + 2;
    float *q = floats((size_t)(rows * head_dim), 2.0f), *out = floats((size_t)(rows * head_dim), 1.0f);
    float *scratch = (float *)zeroed(fc_attention_scratch_floats(head_dim) * sizeof(float));
    float *partial = (float *)zeroed((size_t)(rows * segments * width) * sizeof(float));
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
        .head_base = cache.kv.base,
        .blocks = cache.blocks,
        .out = out,
        .ld_out = group * head_dim,
        .scratch = scratch,
    };
    fc_active->attention(&task);
    add_floats(out, (size_t)(rows * head_dim));
    task.partial = partial;
    task.partial_segments = segments;
    fc_active->attention(&task);
    add_floats(partial, (size_t)(rows * segments * width));
    for (int row = 0; row < rows; row++) {
        int visible = (task.limit + row / group * task.limit_step + FC_SEGMENT_TOKENS - 1) / FC_SEGMENT_TOKENS;
        float combined[FC_MAX_HEAD_DIM];
        fc_active->attention_combine(partial + row * segments * width, visible, head_dim, combined);
        if (memcmp(combined, out + row * head_dim, (size_t)head_dim * sizeof(float)) != 0) {
            printf("row %d of %d positions differs when its segments are combined later\n", row, length);
            exit(1);
        }
    }
    free(cache.kv.base);
    free(q);
    free(out);
    free(scratch);
    free(partial);
}

static void check_attention(void)
{
    for (int half = 0; half < 2; half++) {
        int dtype = half ? FC_F16 : FC_F32;
        for (int causal = 0; causal < 2; causal++) {
            attend(1, 1, 1, 2, causal, dtype);
            attend(17, 17, 3, 6, causal, dtype);
            attend(33, 2, 7, 24, causal, dtype);
            attend(97, 31, 2, 64, causal, dtype);
            attend(FC_SEGMENT_TOKENS, 5, 1, 16, causal, dtype);
            attend(FC_SEGMENT_TOKENS + 1, 5, 2, 16, causal, dtype);
            attend(2 * FC_SEGMENT_TOKENS + 70, 9, 3, 8, causal, dtype);
        }
    }
}

static void check_attention_combine(void)
{
    for (int segments = 1; segments <= 5; segments++) {
        EACH_SIZE(dim)
        {
            size_t width = (size_t)fc_pad((int)dim) + 2;
            float *partial = floats((size_t)segments * width, 1.0f), *out = floats(dim, 1.0f);
            for (int s = 0; s < segments; s++) {
                partial[(size_t)s * width + width - 2] = 1.5f + next_float();  /* the sum */
                partial[(size_t)s * width + width - 1] = 20.0f * next_float(); /* the maximum */
            }
            fc_active->attention_combine(partial, segments, (int)dim, out);
            add_floats(out, dim);
            free(partial);
            free(out);
        }
    }
}

static void check_conv_row(void)
{
    EACH_SIZE(n)
    {
        for (int d_conv = 1; d_conv <= 4; d_conv++) {
            float *taps[4], *weight = floats(4 * n, 1.0f), *bias = floats(n, 1.0f), *out = floats(n, 1.0f);
            for (int k = 0; k < 4; k++) {
                taps[k] = floats(n, 2.0f);
            }
            fc_active->conv_row((const float *const *)taps, d_conv, weight, (ptrdiff_t)n, d_conv % 2 ? bias : NULL, (int)n,
                                out);
            add_floats(out, n);
            for (int k = 0; k < 4; k++) {
                free(taps[k]);
            }
            free(weight);
            free(bias);
            free(out);
        }
    }
}

static void check_time_steps(void)
{
    EACH_SIZE(n)
    {
        float *x = floats(n, 8.0f), *bias = floats(n, 4.0f), *rate = floats(n, 5.0f), *step = floats(n, 1.0f);
        float *decay = floats(n, 1.0f);
        fc_active->time_steps(x, bias, rate, (int)n, 0.01f, 6.0f, step, decay);
        add_floats(step, n);
        add_floats(decay, n);
        free(x);
        free(bias);
        free(rate);
        free(step);
        free(decay);
    }
}

static void check_scan(void)
{
    for (int dims = 1; dims <= 32; dims += dims < 4 ? 1 : 7) {
        for (int d_state = 1; d_state <= 33; d_state += 8) {
            enum { TOKENS = 5 };
            size_t ld = (size_t)(32 + 2 * d_state);
            float *x = floats(TOKENS * ld, 1.0f), *gate = floats(TOKENS * 32, 4.0f), *y = floats(TOKENS * 32, 1.0f);
            float *step = floats(TOKENS, 1.0f), *decay = floats(TOKENS, 1.0f), *held = floats(2 * 16 * (size_t)d_state, 1.0f);
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
            fc_active->scan(&task);
            add_floats(y, TOKENS * 32);
            for (int d = 0; d < dims; d++) { /* what lies beyond the last dim is not defined */
                for (int n = 0; n < d_state; n++) {
                    add_floats(held + (d / 16 * d_state + n) * 16 + d % 16, 1);
                }
            }
            free(x);
            free(gate);
            free(y);
            free(step);
            free(decay);
            free(held);
        }
    }
}

static void check_gated_norm(void)
{
    EACH_SIZE(n)
    {
        float *x = floats(n, 3.0f), *gate = floats(n, 4.0f), *weight = floats(n, 1.0f), *out = floats(n, 1.0f);
        for (int before = 0; before < 2; before++) {
            fc_active->gated_norm(x, gate, weight, (int)n, 1e-5f, before, out);
            add_floats(out, n);
        }
        free(x);
        free(gate);
        free(weight);
        free(out);
    }
}

static void check_function(void (*function)(const float *, float *, ptrdiff_t), float scale)
{
    EACH_SIZE(n)
    {
        float *x = floats(n, scale), *out = floats(n, 1.0f);
        function(x, out, (ptrdiff_t)n);
        add_floats(out, n);
        free(x);
        free(out);
    }
    float x[256], out[256]; /* every exponent, and what is not finite */
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t bits = (i << 23 | next_bits() >> 9) ^ (i % 2) << 31;
        bits = i == 255 ? 0x7f800000u : bits;
        memcpy(&x[i], &bits, sizeof bits);
    }
    function(x, out, 256);
    add_floats(out, 256);
}

static void check_exp(void) { check_function(fc_active->exp, 90.0f); }
static void check_silu(void) { check_function(fc_active->silu, 30.0f); }
static void check_softplus(void) { check_function(fc_active->softplus, 30.0f); }

static void check_argmax(void)
{
    EACH_SIZE(n)
    {
        for (int pass = 0; pass < 8; pass++) {
            float *x = floats(n, 1.0f);
            if (pass == 6) {
                x[n / 2] = 1.0f / 0.0f;
            }
            for (size_t i = 0; i < n && pass < 4; i++) { /* ties */
                x[i] = (float)(int)(x[i] * 3.0f);
            }
            ptrdiff_t index = -1;
            int finite = 1;
            float value = fc_active->argmax(x, (ptrdiff_t)n, &index, &finite);
            int64_t found[2] = {finite ? index : -1, finite};
            add(found, sizeof found);
            add_floats(&value, finite ? 1 : 0);
            free(x);
        }
    }
}

static void check_softmax_weights(void)
{
    for (size_t n = 1; n < 2000; n = n * 3 + 1) {
        float *x = floats(n, 60.0f), *weights = floats(n, 1.0f);
        double sums[2000 / FC_WEIGHT_BLOCK + 1];
        fc_active->softmax_weights(x, (ptrdiff_t)n, 59.0f, 1.3f, weights, sums);
        add_floats(weights, n);
        add(sums, ((n + FC_WEIGHT_BLOCK - 1) / FC_WEIGHT_BLOCK) * sizeof(double));
        free(x);
        free(weights);
    }
}

static void check_sum_exp(void)
{
    for (size_t n = 1; n < 40000; n = n * 3 + 1) {
        float *x = floats(n, 6.0f);
        double sum = fc_active->sum_exp(x, (ptrdiff_t)n, 5.5f, 0.8f);
        add(&sum, sizeof sum);
        free(x);
    }
}

/* ---- a tiny model: two layers, grouped attention, SwiGLU, a tied head */

enum {
    VOCAB = 75,
    HIDDEN = 40,
    HEADS = 6,
    KV_HEADS = 2,
    HEAD_DIM = 16,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    INNER = 50,
    LAYERS = 2,
    TOKENS = 90,
    BLOCKS = 3,
    OPS = 2 + LAYERS * 6 + 1,
};

static void *packed(int rows, int k, fc_dtype dtype, float scale)
{
    float *w = floats((size_t)rows * (size_t)k, scale);
    void *panels = zeroed(fc_packed_bytes(rows, k, dtype));
    fc_pack_rows(panels, dtype, k, w, FC_F32, rows, 0, 16, 2);
    free(w);
    return panels;
}

static fc_op linear(int src, int dst, int n, int k, fc_dtype dtype, const float *norm)
{
    return (fc_op){.kind = FC_OP_LINEAR,
                   .barrier = 1,
                   .src = src,
                   .dst = dst,
                   .row_set = FC_ROWS_ALL,
                   .dtype = (int32_t)dtype,
                   .n = n,
                   .k = k,
                   .weights = packed(n, k, dtype, 0.3f),
                   .norm = norm,
                   .scale = 1.0f,
                   .src_scale = 1.0f,
                   .gate_scale = 1.0f,
                   .eps = 1e-6f,
                   .key_scale = 1.0f};
}

/* The logits [TOKENS, VOCAB] of steps of these sizes. */
static float *logits(const fc_program *program, const int *chunks, int num_threads, int kv_dtype)
{
    float *output = (float *)zeroed(TOKENS * VOCAB * sizeof(float)),
          *tables = (float *)zeroed(TOKENS * HEAD_DIM * sizeof(float));
    float *workspace = (float *)malloc(fc_workspace_floats(program, TOKENS, 1, num_threads) * sizeof(float));
    ptrdiff_t element = fc_kv_bytes(kv_dtype);
    fc_kv_cache kv = {.dtype = kv_dtype, .v_offset = element * FC_BLOCK_TOKENS * HEAD_DIM};
    kv.head_bytes = 2 * kv.v_offset;
    kv.layer_bytes = KV_HEADS * kv.head_bytes;
    kv.block_bytes = LAYERS * kv.layer_bytes;
    kv.base = (uint8_t *)malloc((size_t)(BLOCKS * kv.block_bytes));
    if (!workspace || !kv.base) {
        exit(2);
    }
    memset(kv.base, 0xff, (size_t)(BLOCKS * kv.block_bytes));
    int32_t ids[TOKENS], rows[TOKENS], best[TOKENS];
    static const int32_t blocks[BLOCKS] = {2, 0, 1};
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = i * 29 % VOCAB;
        rows[i] = i;
        for (int j = 0; j < HEAD_DIM / 2; j++) { /* any tables do; these need no library */
            float t = (float)(i * (j + 3) % 17) / 17.0f;
            tables[i * HEAD_DIM / 2 + j] = (1.0f - t * t) / (1.0f + t * t);
            tables[TOKENS * HEAD_DIM / 2 + i * HEAD_DIM / 2 + j] = 2.0f * t / (1.0f + t * t);
        }
    }
    for (int start = 0; start < TOKENS; start += *chunks++) {
        int32_t bounds[2] = {0, *chunks}, position = start;
        fc_step step = {
            .num_rows = *chunks,
            .num_seqs = 1,
            .num_out = *chunks,
            .token_ids = ids + start,
            .seq_rows = bounds,
            .seq_pos = &position,
            .block_tables = blocks,
            .max_blocks = BLOCKS,
            .out_rows = rows,
            .rope_cos = tables + start * HEAD_DIM / 2,
            .rope_sin = tables + (TOKENS + start) * HEAD_DIM / 2,
            .output = output + start * VOCAB,
            .ld_output = VOCAB,
            .argmax = best,
            .kv = kv,
            .workspace = workspace,
            .row_capacity = TOKENS,
            .segment_capacity = 1,
            .num_ops = -1,
        };
        fc_run(program, &step, num_threads);
        for (int i = 0; i < *chunks; i++) {
            if (best[i] < 0 || best[i] != (int32_t)fc_argmax(output + (start + i) * VOCAB, VOCAB)) {
                printf("the best id of row %d is not its logits'\n", start + i);
                exit(1);
            }
        }
    }
    free(kv.base);
    free(tables);
    free(workspace);
    return output;
}

static void check_model(void)
{
    enum { X, Q, MIXED, ACTIVATION, BUFFERS };
    static const fc_dtype dtypes[LAYERS] = {FC_BF16, FC_F16};
    static const fc_buffer buffers[BUFFERS] = {{48}, {QKV}, {HEADS * HEAD_DIM}, {64}};
    fc_op ops[OPS] = {{.kind = FC_OP_EMBED,
                       .dst = X,
                       .dtype = FC_BF16,
                       .n = VOCAB,
                       .k = HIDDEN,
                       .scale = 1.0f,
                       .weights = packed(VOCAB, HIDDEN, FC_BF16, 1.0f)}};
    int count = 1;
    float *norm = floats(HIDDEN, 1.0f), *q_norm = floats(HEAD_DIM, 1.0f), *bias = floats(QKV, 0.5f);
    for (int layer = 0; layer < LAYERS; layer++) {
        fc_op heads = {.kind = FC_OP_HEADS,
                       .barrier = 1,
                       .src = Q,
                       .num_heads = HEADS,
                       .num_kv_heads = KV_HEADS,
                       .head_dim = HEAD_DIM,
                       .layer = layer,
                       .causal = 1,
                       .key_scale = 0.8f,
                       .eps = 1e-6f};
        fc_op qkv = linear(X, Q, QKV, HIDDEN, dtypes[layer], norm);
        qkv.bias = bias;
        if (layer == 0) { /* finished inside the projection; the other layer by an op of its own, and normalised */
            qkv.fused_heads = 1;
            qkv.num_heads = HEADS;
            qkv.num_kv_heads = KV_HEADS;
            qkv.head_dim = HEAD_DIM;
        }
        ops[count++] = qkv;
        if (layer == 1) {
            heads.q_norm = heads.k_norm = q_norm;
            ops[count++] = heads;
        }
        heads.kind = FC_OP_ATTENTION;
        heads.dst = MIXED;
        heads.score_scale = 0.25f;
        ops[count++] = heads;
        ops[count] = linear(MIXED, X, HIDDEN, HEADS * HEAD_DIM, dtypes[layer], NULL);
        ops[count++].epilogue = FC_ADD;
        ops[count] = linear(X, ACTIVATION, 128, HIDDEN, dtypes[layer], norm);
        ops[count++].epilogue = FC_SWIGLU;
        ops[count] = linear(ACTIVATION, X, HIDDEN, INNER, FC_F32, NULL);
        ops[count++].epilogue = FC_ADD;
    }
    ops[count] = linear(X, FC_BUFFER_OUTPUT, VOCAB, HIDDEN, FC_BF16, norm);
    free((void *)ops[count].weights);
    ops[count].weights = ops[0].weights;
    ops[count++].row_set = FC_ROWS_OUT;
    ops[count++] = (fc_op){.kind = FC_OP_ARGMAX, .barrier = 1, .src = FC_BUFFER_OUTPUT, .n = VOCAB};
    fc_program program = {ops, buffers, count, BUFFERS};

    static const int whole[] = {TOKENS}, pieces[] = {1, 6, 7, 40, 1, 35};
    int one_by_one[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        one_by_one[i] = 1;
    }
    const int *chunkings[] = {whole, pieces, one_by_one};
    for (int half = 0; half < 2; half++) {
        float *expected = logits(&program, whole, 1, half ? FC_F16 : FC_F32);
        for (int c = 0; c < 3; c++) {
            for (int num_threads = 1; num_threads <= 3; num_threads++) {
                float *found = logits(&program, chunkings[c], num_threads, half ? FC_F16 : FC_F32);
                if (memcmp(expected, found, TOKENS * VOCAB * sizeof(float)) != 0) {
                    printf("chunking %d on %d threads differs\n", c, num_threads);
                    exit(1);
                }
                free(found);
            }
        }
        add_floats(expected, TOKENS * VOCAB);
        free(expected);
    }
    for (int i = 0; i < count - 2; i++) {
        free((void *)ops[i].weights);
    }
    free(norm);
    free(q_norm);
    free(bias);
}

/* ---- all of them */

static void report(const char *isa, const char *what, void (*check)(void))
{
    state = 12345;
    hash = 14695981039346656037u;
    check();
    printf("%s %s %016llx\n", isa, what, (unsigned long long)hash);
}

int main(int argc, char **argv)
{
    for (int i = 0; i < fc_num_isas(); i++) {
        const char *isa = fc_isa_name(i);
        int wanted = argc == 1 && fc_isa_usable(i);
        for (int a = 1; a < argc; a++) {
            wanted |= strcmp(argv[a], isa) == 0;
        }
        if (!wanted) {
            continue;
        }
        fc_isa_use(i);
#define FC_REPORT(type, name, args) report(isa, #name, check_##name);
        FC_KERNEL_LIST(FC_REPORT)
        report(isa, "model", check_model);
    }
    return 0;
}
