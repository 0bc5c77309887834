/* Runs every kernel of the table, and a tiny model, on fixed pseudo-random inputs and prints a checksum of the bits of what comes
 * out: a line "<instruction set> <kernel> <checksum>" each. The same kernel must print the same checksum on every instruction set,
 * compiler and machine.
 *
 *   check_kernels             the instruction sets that this machine can run
 *   check_kernels NAME ...    these, without asking whether it can */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "selfcheck.h"

/* ---- memory: each array its own, so that sanitizers see its bounds */

static void *taken[1024];
static size_t num_taken;

static void *take(fc_check *c, size_t bytes)
{
    (void)c;
    void *p = num_taken < sizeof taken / sizeof taken[0] ? malloc(bytes) : NULL;
    if (!p) {
        exit(2);
    }
    return taken[num_taken++] = p;
}

static void restart(fc_check *c)
{
    (void)c;
    while (num_taken) {
        free(taken[--num_taken]);
    }
}

static void *zeroed(size_t bytes)
{
    void *p = calloc(bytes, 1);
    if (!p) {
        exit(2);
    }
    return p;
}

static uint32_t state;

static float *floats(size_t n, float scale)
{
    float *x = (float *)zeroed((n + 16) * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = scale * (float)(int32_t)((state ^ state >> 15) & 0xffffff00u) * 0x1p-31f;
    }
    return x;
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
    fc_kv_cache kv = {.dtype = kv_dtype, .v_offset = fc_kv_part_bytes(kv_dtype, HEAD_DIM)};
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

/* The logits of all chunkings and numbers of threads, which must be equal, into the sum. */
static uint64_t check_model(void)
{
    uint64_t hash = 14695981039346656037u;
    state = 12345;
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
    count++;
    ops[count++] = (fc_op){.kind = FC_OP_ARGMAX, .barrier = 1, .src = FC_BUFFER_OUTPUT, .n = VOCAB};
    fc_program program = {ops, buffers, count, BUFFERS};

    static const int whole[] = {TOKENS}, pieces[] = {1, 6, 7, 40, 1, 35};
    int one_by_one[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        one_by_one[i] = 1;
    }
    const int *chunkings[] = {whole, pieces, one_by_one};
    static const int kv_dtypes[] = {FC_F32, FC_F16, FC_INT8};
    for (int d = 0; d < 3; d++) {
        float *expected = logits(&program, whole, 1, kv_dtypes[d]);
        for (int c = 0; c < 3; c++) {
            for (int num_threads = 1; num_threads <= 3; num_threads++) {
                float *found = logits(&program, chunkings[c], num_threads, kv_dtypes[d]);
                if (memcmp(expected, found, TOKENS * VOCAB * sizeof(float)) != 0) {
                    printf("chunking %d on %d threads differs\n", c, num_threads);
                    exit(1);
                }
                free(found);
            }
        }
        for (size_t i = 0; i < TOKENS * VOCAB * sizeof(float); i++) {
            hash = (hash ^ ((uint8_t *)expected)[i]) * 1099511628211u;
        }
        free(expected);
    }
    for (int i = 0; i < count - 2; i++) {
        free((void *)ops[i].weights);
    }
    free(norm);
    free(q_norm);
    free(bias);
    return hash;
}

/* ---- all of them */

static void print(const char *isa, const char *what, uint64_t checksum)
{
    printf("%s %s %016llx\n", isa, what, (unsigned long long)checksum);
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
        fc_check check = {.kernels = fc_active, .thorough = 1, .take = take, .restart = restart};
#define FC_PRINT(type, name, args) print(isa, #name, fc_checksum(&check, fc_check_##name));
        FC_KERNEL_LIST(FC_PRINT)
        if (check.failed) {
            printf("%s\n", check.failed);
            return 1;
        }
        print(isa, "model", check_model());
    }
    return 0;
}
