#include "selfcheck.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs and checksums */

static uint32_t next_bits(fc_check *c)
{
    c->state = c->state * 1664525u + 1013904223u;
    return c->state ^ (c->state >> 15);
}

/* In [-1, 1), of 24 bits. */
static float next_float(fc_check *c) { return (float)(int32_t)(next_bits(c) & 0xffffff00u) * 0x1p-31f; }

static void fill(fc_check *c, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = scale * next_float(c);
    }
}

static void *zeroed(fc_check *c, size_t bytes) { return memset(c->take(c, bytes), 0, bytes); }

static float *floats(fc_check *c, size_t n, float scale)
{
    float *x = (float *)c->take(c, (n + 16) * sizeof(float));
    fill(c, x, n, scale);
    memset(x + n, 0xff, 16 * sizeof(float)); /* NaN: must not be read into a result */
    return x;
}

static void add(fc_check *c, const void *data, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)data;
    for (size_t i = 0; i < bytes; i++) {
        c->hash = (c->hash ^ p[i]) * 1099511628211u;
    }
}

static void add_floats(fc_check *c, const float *x, size_t n) { add(c, x, n * sizeof(float)); }

/* Every size, or each fourth one. */
static const int sizes[] = {17, 1, 2, 3, 33, 5, 7, 15, 97, 16, 31, 63, 64, 65, 300};
enum { NUM_SIZES = sizeof sizes / sizeof sizes[0] };
#define EACH_SIZE(c, n)                                                                                      \
    for (size_t n##_index = 0, n; n##_index < NUM_SIZES && (c->restart(c), n = (size_t)sizes[n##_index], 1); \
         n##_index += c->thorough ? 1 : 4)

/* ---- one check a kernel */

/* Rows of what a format's kernel multiplies with, of x [rows, k]; their length in *ld. */
static const float *source_rows(fc_check *c, fc_source source, const float *x, int rows, int k, ptrdiff_t *ld)
{
    *ld = fc_source_floats(source, k);
    if (source == FC_SOURCE_F32) {
        return x;
    }
    float *quantised = (float *)zeroed(c, (size_t)rows * (size_t)*ld * sizeof(float));
    c->kernels->quantize_rows(x, k, rows, k, quantised, *ld);
    return quantised;
}

static void check_gemm(fc_check *c, fc_dtype dtype)
{
    enum { MOST_ROWS = 14, MOST_PANELS = 9, LEAST_K = 45, MOST_K = 101 };
    int row_step = c->thorough ? 1 : 3;
    float acc[MOST_ROWS * MOST_PANELS * 16];
    for (int k = LEAST_K; k <= MOST_K; k += c->thorough ? 28 : MOST_K) {
        c->restart(c);
        float *x = floats(c, (size_t)(MOST_ROWS * k), 1.0f), *w = floats(c, (size_t)(MOST_PANELS * 16 * k), 1.0f);
        uint8_t *panels = (uint8_t *)zeroed(c, fc_packed_bytes(MOST_PANELS * 16, k, dtype) + 64);
        ptrdiff_t ld;
        const float *source = source_rows(c, fc_format_of((int)dtype)->source, x, MOST_ROWS, k, &ld);
        fc_pack_rows(panels, dtype, k, w, FC_F32, MOST_PANELS * 16, 0, 16, 1);
        add(c, panels, fc_packed_bytes(MOST_PANELS * 16, k, dtype));
        for (int rows = 1; rows <= MOST_ROWS; rows += row_step) {
            for (int count = 1; count <= MOST_PANELS; count += 2 * row_step - 1) {
                memset(acc, 0, sizeof acc);
                c->kernels->gemm[dtype](source, ld, rows, panels, count, k, acc, MOST_PANELS * 16);
                add_floats(c, acc, sizeof acc / sizeof acc[0]);
            }
        }
    }
}

#define FC_CHECK_GEMM(A, CODE, name, ...) \
    void fc_check_gemm_##name(fc_check *c) { check_gemm(c, FC_##CODE); }
FC_FORMATS(FC_CHECK_GEMM, )

void fc_check_quantize_rows(fc_check *c)
{
    static const float scales[] = {1.0f, 1e-20f, 3e-37f, 1e30f};
    EACH_SIZE(c, n)
    {
        ptrdiff_t ld = fc_source_floats(FC_SOURCE_Q8, (int)n);
        float *x = floats(c, 4 * n, 1.0f), *out = (float *)zeroed(c, 4 * (size_t)ld * sizeof(float));
        for (size_t i = 0; i < 4 * n; i++) { /* ties, zeros, all sizes */
            x[i] = (i % 7 ? (float)(int)(x[i] * 254.0f) * 0.5f : x[i]) * scales[i / n];
        }
        c->kernels->quantize_rows(x, (ptrdiff_t)n, 4, (int)n, out, ld);
        add_floats(c, out, 4 * (size_t)ld);
    }
}

void fc_check_store_rows(fc_check *c)
{
    enum { ROWS = 3, LD = 304 };
    EACH_SIZE(c, n)
    {
        float *acc = floats(c, ROWS * LD, 2.0f), *bias = floats(c, n, 1.0f), *column = floats(c, n, 1.0f),
              *dst = floats(c, ROWS * n, 1.0f);
        for (int which = 0; which < 8; which++) {
            c->kernels->store_rows(acc, LD, ROWS, (int)n, which & 1 ? bias : NULL, which & 2 ? column : NULL, 0.7f, which & 4,
                                   dst, (ptrdiff_t)n);
            add_floats(c, dst, ROWS * n);
        }
    }
}

void fc_check_swiglu_rows(fc_check *c)
{
    enum { ROWS = 3, LD = 608 };
    EACH_SIZE(c, n)
    {
        float *acc = floats(c, ROWS * LD, 8.0f), *bias = floats(c, LD, 1.0f), *dst = floats(c, ROWS * n, 1.0f);
        c->kernels->swiglu_rows(acc, LD, ROWS, (int)n, NULL, 1.0f, 1.0f, dst, (ptrdiff_t)n);
        add_floats(c, dst, ROWS * n);
        c->kernels->swiglu_rows(acc, LD, ROWS, (int)n, bias, 0.88f, 0.58f, dst, (ptrdiff_t)n);
        add_floats(c, dst, ROWS * n);
    }
}

void fc_check_rms_norm(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, 3.0f), *weight = floats(c, n, 1.0f), *out = floats(c, n, 1.0f);
        c->kernels->rms_norm(x, weight, (int)n, 1e-5f, 1.3f, out);
        add_floats(c, out, n);
        c->kernels->rms_norm(x, weight, (int)n, 1e-5f, 1.0f, x);
        add_floats(c, x, n);
    }
}

void fc_check_rope(fc_check *c)
{
    EACH_SIZE(c, half)
    {
        float *x = floats(c, 2 * half, 3.0f), *cos = floats(c, half, 1.0f), *sin = floats(c, half, 1.0f);
        c->kernels->rope(x, cos, sin, (int)(2 * half), x);
        add_floats(c, x, 2 * half);
    }
}

void fc_check_embed_row(fc_check *c)
{
    for (fc_dtype dtype = 0; dtype < FC_NUM_DTYPES; dtype++) {
        EACH_SIZE(c, k)
        {
            float *table = floats(c, 21 * k, 1.0f), *out = floats(c, k, 1.0f);
            void *panels = zeroed(c, fc_packed_bytes(21, (int)k, dtype));
            fc_pack_rows(panels, dtype, (int)k, table, FC_F32, 21, 0, 16, 1);
            for (int row = 0; row < 21; row += 4) {
                c->kernels->embed_row(panels, (int)dtype, (int)k, row, 2.5f, out);
                add_floats(c, out, k);
            }
        }
    }
}

/* One head's cache of `length` positions in blocks that are not in order. */
typedef struct {
    fc_kv_cache kv;
    int32_t blocks[64];
    size_t bytes;
} head_cache;

static head_cache write_cache(fc_check *c, int length, int head_dim, int dtype)
{
    head_cache cache = {0};
    int num_blocks = (length + FC_BLOCK_TOKENS - 1) / FC_BLOCK_TOKENS;
    cache.kv.dtype = dtype;
    cache.kv.v_offset = (ptrdiff_t)fc_kv_bytes(dtype) * FC_BLOCK_TOKENS * head_dim;
    cache.kv.block_bytes = cache.kv.layer_bytes = cache.kv.head_bytes =
        cache.kv.v_offset + (ptrdiff_t)fc_kv_bytes(dtype) * FC_BLOCK_TOKENS * fc_pad(head_dim);
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
            float x[FC_MAX_HEAD_DIM];
            fill(c, x, (size_t)head_dim, 1.5f);
            c->kernels->write_kv(x, head_dim, dtype, is_v, block, cache.kv.v_offset, position);
        }
    }
    return cache;
}

void fc_check_write_kv(fc_check *c)
{
    static const int dims[] = {2, 6, 16, 24, 64, 130};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        for (int half = 0; half < 2; half++) {
            c->restart(c);
            head_cache cache = write_cache(c, 71, dims[i], half ? FC_F16 : FC_F32);
            add(c, cache.kv.base, cache.bytes);
        }
    }
    /* conversions to half at every exponent, with the bits below in all patterns */
    uint8_t block[FC_BLOCK_TOKENS * 32 * 2] = {0};
    for (uint32_t high = 0; high < 0x7f8; high += c->thorough ? 1 : 31) {
        float x[16];
        for (uint32_t i = 0; i < 16; i++) {
            static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000};
            uint32_t bits = high << 20 | (next_bits(c) & 0xfe000u) | low[i % 8] | (i & 8) << 28;
            memcpy(&x[i], &bits, sizeof bits);
        }
        c->kernels->write_kv(x, 16, FC_F16, 1, block, 0, 0);
        add(c, block, 32);
    }
}

static void attend(fc_check *c, int length, int tokens, int group, int head_dim, int causal, int dtype)
{
    c->restart(c);
    head_cache cache = write_cache(c, length, head_dim, dtype);
    int rows = tokens * group, segments = (length + FC_SEGMENT_TOKENS - 1) / FC_SEGMENT_TOKENS, width = fc_pad(head_dim) + 2;
    float *q = floats(c, (size_t)(rows * head_dim), 2.0f), *out = floats(c, (size_t)(rows * head_dim), 1.0f);
    float *scratch = (float *)zeroed(c, fc_attention_scratch_floats(head_dim) * sizeof(float));
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
    for (int half = 0; half < 2; half++) {
        int dtype = half ? FC_F16 : FC_F32;
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

void fc_check_conv_row(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        for (int d_conv = 1; d_conv <= 4; d_conv++) {
            float *taps[4], *weight = floats(c, 4 * n, 1.0f), *bias = floats(c, n, 1.0f), *out = floats(c, n, 1.0f);
            for (int k = 0; k < 4; k++) {
                taps[k] = floats(c, n, 2.0f);
            }
            c->kernels->conv_row((const float *const *)taps, d_conv, weight, (ptrdiff_t)n, d_conv % 2 ? bias : NULL, (int)n,
                                 out);
            add_floats(c, out, n);
        }
    }
}

void fc_check_time_steps(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, 8.0f), *bias = floats(c, n, 4.0f), *rate = floats(c, n, 5.0f), *step = floats(c, n, 1.0f);
        float *decay = floats(c, n, 1.0f);
        c->kernels->time_steps(x, bias, rate, (int)n, 0.01f, 6.0f, step, decay);
        add_floats(c, step, n);
        add_floats(c, decay, n);
    }
}

void fc_check_scan(fc_check *c)
{
    for (int dims = 1; dims <= 32; dims += dims < 4 && c->thorough ? 1 : 7) {
        for (int d_state = 1; d_state <= 33; d_state += 8) {
            enum { TOKENS = 5 };
            c->restart(c);
            size_t ld = (size_t)(32 + 2 * d_state);
            float *x = floats(c, TOKENS * ld, 1.0f), *gate = floats(c, TOKENS * 32, 4.0f), *y = floats(c, TOKENS * 32, 1.0f);
            float *step = floats(c, TOKENS, 1.0f), *decay = floats(c, TOKENS, 1.0f),
                  *held = floats(c, 2 * 16 * (size_t)d_state, 1.0f);
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
            c->kernels->scan(&task);
            add_floats(c, y, TOKENS * 32);
            for (int d = 0; d < dims; d++) { /* what lies beyond the last dim is not defined */
                for (int n = 0; n < d_state; n++) {
                    add_floats(c, held + (d / 16 * d_state + n) * 16 + d % 16, 1);
                }
            }
        }
    }
}

void fc_check_gated_norm(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, 3.0f), *gate = floats(c, n, 4.0f), *weight = floats(c, n, 1.0f), *out = floats(c, n, 1.0f);
        for (int before = 0; before < 2; before++) {
            c->kernels->gated_norm(x, gate, weight, (int)n, 1e-5f, before, out);
            add_floats(c, out, n);
        }
    }
}

static void check_function(fc_check *c, void (*function)(const float *, float *, ptrdiff_t), float scale)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, scale), *out = floats(c, n, 1.0f);
        function(x, out, (ptrdiff_t)n);
        add_floats(c, out, n);
    }
    float x[256], out[256]; /* every exponent, and what is not finite */
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t bits = (i << 23 | next_bits(c) >> 9) ^ (i % 2) << 31;
        bits = i == 255 ? 0x7f800000u : bits;
        memcpy(&x[i], &bits, sizeof bits);
    }
    function(x, out, 256);
    add_floats(c, out, 256);
}

void fc_check_exp(fc_check *c) { check_function(c, c->kernels->exp, 90.0f); }
void fc_check_silu(fc_check *c) { check_function(c, c->kernels->silu, 30.0f); }
void fc_check_softplus(fc_check *c) { check_function(c, c->kernels->softplus, 30.0f); }

void fc_check_argmax(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        for (int pass = 0; pass < 8; pass++) {
            float *x = floats(c, n, 1.0f);
            if (pass == 6) {
                x[n / 2] = 1.0f / 0.0f;
            }
            for (size_t i = 0; i < n && pass < 4; i++) { /* ties */
                x[i] = (float)(int)(x[i] * 3.0f);
            }
            ptrdiff_t index = -1;
            int finite = 1;
            float value = c->kernels->argmax(x, (ptrdiff_t)n, &index, &finite);
            int64_t found[2] = {finite ? index : -1, finite};
            add(c, found, sizeof found);
            add_floats(c, &value, finite ? 1 : 0);
        }
    }
}

void fc_check_softmax_weights(fc_check *c)
{
    for (size_t n = 1; n < (c->thorough ? 2000 : 400); n = n * 3 + 1) {
        c->restart(c);
        float *x = floats(c, n, 60.0f), *weights = floats(c, n, 1.0f);
        double sums[2000 / FC_WEIGHT_BLOCK + 1];
        c->kernels->softmax_weights(x, (ptrdiff_t)n, 59.0f, 1.3f, weights, sums);
        add_floats(c, weights, n);
        add(c, sums, ((n + FC_WEIGHT_BLOCK - 1) / FC_WEIGHT_BLOCK) * sizeof(double));
    }
}

void fc_check_sum_exp(fc_check *c)
{
    for (size_t n = 1; n < (c->thorough ? 40000 : 400); n = n * 3 + 1) {
        c->restart(c);
        float *x = floats(c, n, 6.0f);
        double sum = c->kernels->sum_exp(x, (ptrdiff_t)n, 5.5f, 0.8f);
        add(c, &sum, sizeof sum);
    }
}

/* ---- all of them */

uint64_t fc_checksum(fc_check *c, void (*check)(fc_check *))
{
    c->state = 12345;
    c->hash = 14695981039346656037u;
    c->restart(c);
    check(c);
    c->restart(c);
    return c->hash;
}

/* Memory of the self-check, one thread at a time. */
static uint8_t memory[1 << 18] __attribute__((aligned(64)));
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
    fc_check check;
    size_t used;
} quick_check;

static void *take(fc_check *c, size_t bytes)
{
    size_t *used = &((quick_check *)c)->used, from = *used;
    *used += (bytes + 63) / 64 * 64;
    return memory + from;
}

static void restart(fc_check *c) { ((quick_check *)c)->used = 0; }

#define FC_COUNT(type, name, args) +1
enum { NUM_KERNELS = FC_KERNEL_LIST(FC_COUNT) };

int fc_reproduces(const fc_kernels *expected, const fc_kernels *kernels)
{
    static uint64_t sums[NUM_KERNELS]; /* of the kernels of `expected`, once they are known */
    static const fc_kernels *known;
    quick_check scalar = {{.kernels = expected, .take = take, .restart = restart}, 0}, other = scalar;
    other.check.kernels = kernels;
    int i = 0, same = 1;
    pthread_mutex_lock(&lock);
#define FC_COMPARE(type, name, args)                                                                  \
    if (known != expected) {                                                                          \
        sums[i] = fc_checksum(&scalar.check, fc_check_##name);                                        \
    }                                                                                                 \
    same &= kernels->name == expected->name || fc_checksum(&other.check, fc_check_##name) == sums[i]; \
    i++;
    FC_KERNEL_LIST(FC_COMPARE)
    known = expected;
    pthread_mutex_unlock(&lock);
    return same && !other.check.failed;
}
