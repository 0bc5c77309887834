/* fastcore: the public C interface. Plain C11; nothing here allocates, prints, reads the environment or aborts.
 *
 * Weights. A linear map [out_features, in_features] is stored as panels of 16 output rows, k-major: panel[k][16]. Row r is lane
 * r % 16 of panel r / 16; missing rows of the last panel are zero. The formats: formats.h.
 * All accumulate in f32: out[r] = fma(w[r][k], x[k], ...) for k = 0, 1, 2, ... from zero, one chain an output, so a result does
 * not depend on threads, on the number of activation rows, or on the instruction set.
 *
 * Activations are row-major f32, rows padded to a multiple of 16 floats.
 *
 * KV cache. Memory comes in blocks of FC_BLOCK_TOKENS positions. A block holds, for every layer and kv head,
 *   K  [FC_BLOCK_TOKENS / 16][head_dim][16]   lanes are positions, so scores are a linear map with K as its panel
 *   V  [head_dim padded to 16 / 16][FC_BLOCK_TOKENS][16]   lanes are features, so sums of V are one with V as its panels
 * in f32, f16 or int8. Of int8 both are followed by f32 scales [groups of 32 features][FC_BLOCK_TOKENS], x = scale * q with q in
 * [-127, 127]. Keys of int8 are held as key = key_center + key_unit * x: without the center scores of a row all change by the same,
 * and the softmax does not, so attention multiplies queries by the units and leaves the center out.
 *
 * Recurrent state, in f32, for every layer with a Mamba-2 mixer: the last d_conv - 1 inputs of the convolution
 * [d_conv - 1][channels padded to 16], and the scan's state [head][tile of 16 head dims][d_state][16], lanes are head dims. That of a
 * sequence fills consecutive blocks of the same memory. It is updated in place and starts at zero at position 0. */
#ifndef FASTCORE_H
#define FASTCORE_H

#include <stddef.h>
#include <stdint.h>

#include "formats.h"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "every bit is specified, NaN too: compile without -ffast-math and its parts"
#endif

enum {
    FC_LANES = 16,
    FC_BLOCK_TOKENS = 32,
    FC_SEGMENT_TOKENS = 512,
    FC_MAX_HEAD_DIM = 512,
    FC_MAX_THREADS = 1024,
    FC_MAX_D_CONV = 64
};

static inline int fc_pad(int n) { return (n + FC_LANES - 1) / FC_LANES * FC_LANES; }
/* Floats from one row of activations to the next: rows whole pages apart would all lie in the same few sets of a cache. */
static inline int fc_row_floats(int n) { return fc_pad(n) % 1024 ? fc_pad(n) : fc_pad(n) + FC_LANES; }
static inline int fc_panels(int n) { return (n + FC_LANES - 1) / FC_LANES; }
/* Bytes of the K or V of one head in a block; features: head_dim, of V padded. */
static inline ptrdiff_t fc_kv_part_bytes(int dtype, int features)
{
    ptrdiff_t numbers = (ptrdiff_t)FC_BLOCK_TOKENS * features;
    ptrdiff_t scales = FC_BLOCK_TOKENS * (ptrdiff_t)sizeof(float) * ((features + FC_GROUP - 1) / FC_GROUP);
    return dtype == FC_F32 ? 4 * numbers : dtype == FC_F16 ? 2 * numbers : numbers + scales;
}

/* ---- instruction sets (dispatch.c) */

int fc_num_isas(void);
const char *fc_isa_name(int i);
/* Whether this machine can run instruction set i, and its self-check reproduces the scalar bits. */
int fc_isa_usable(int i);
int fc_isa_active(void);
/* Make instruction set i the one that every later call uses; not while a step runs. */
void fc_isa_use(int i);

/* ---- single functions on arrays, for tests and for sampling */

void fc_exp(const float *x, float *out, ptrdiff_t n);
void fc_silu(const float *x, float *out, ptrdiff_t n);
void fc_softplus(const float *x, float *out, ptrdiff_t n);
/* Index of the largest value (the lowest such index), or -1 if any value is NaN or infinite. */
int64_t fc_argmax(const float *x, ptrdiff_t n);
/* weights[i] = exp((x[i] - shift) * scale), 0 where that is below e^-87, and sums of FC_WEIGHT_BLOCK of them at a time. */
enum { FC_WEIGHT_BLOCK = 256 };
void fc_softmax_weights(const float *x, ptrdiff_t n, float shift, float scale, float *weights, double *sums);
/* sum of exp((x - shift) * scale), over 16 lanes and a fixed tree. */
double fc_sum_exp(const float *x, ptrdiff_t n, float shift, float scale);
/* out[i] = logits[i] where bit i % 32 of allowed[i / 32] is set, else -INFINITY. allowed: ceil(n / 32) words. */
void fc_mask_logits(const float *logits, const uint32_t *allowed, ptrdiff_t n, float *out);

enum { FC_MAX_LABELS = 256 }; /* what a uint8_t of `back` can name */

/* The labels path[num_tokens] with the highest sum of logits [num_tokens, num_labels], transition_scores [from][to], start and end
 * scores [num_labels]; of equals, the lowest labels from the last token back. -INFINITY forbids; logits must be finite. Sums are f32:
 * (score + transition) + logit, less the best score after every token. Scratch: score_scratch[2 * num_labels],
 * back[num_tokens * num_labels]. 0, or non-zero when no path is legal. */
int fc_viterbi(const float *logits, int num_tokens, int num_labels, const float *transition_scores, const float *start,
               const float *end, float *score_scratch, uint8_t *back, int32_t *path);

/* ---- the program */

/* The kinds of op: each has its driver (fc_run_<name>, csrc/op.h) and its record in fastcore/model/ops, where its formula stands. */
#define FC_OP_LIST(X)                                                                                  \
    X(EMBED, embed)                                                                                    \
    X(NORM, norm)                                                                                      \
    X(LINEAR, linear) /* with an optional norm of the source first, an epilogue, and heads finished */ \
    X(ADD, add)                                                                                        \
    X(GLU, glu)                                                                                        \
    X(HEAD_NORM, head_norm)                                                                            \
    X(ROPE, rope)                                                                                      \
    X(CACHE_WRITE, cache_write)                                                                        \
    X(HEADS, heads) /* the three above for q | k | v of one buffer */                                  \
    X(ATTENTION, attention)                                                                            \
    X(ARGMAX, argmax)                                                                                  \
    X(CONV, conv)                                                                                      \
    X(TIME_STEPS, time_steps)                                                                          \
    X(SCAN, scan)                                                                                      \
    X(GATED_NORM, gated_norm)

typedef enum {
#define FC_OP_KIND(KIND, name) FC_OP_##KIND,
    FC_OP_LIST(FC_OP_KIND)
#undef FC_OP_KIND
        FC_NUM_OP_KINDS
} fc_op_kind;

/* "embed", "norm", ... */
const char *fc_op_name(int kind);

typedef enum {
    FC_STORE,  /* dst = y */
    FC_ADD,    /* dst += y */
    FC_SWIGLU, /* rows come in panel pairs (gate, up): dst = silu(gate_scale * gate) * up */
} fc_epilogue;

typedef enum {
    FC_ROWS_ALL, /* a row for every row of the step */
    FC_ROWS_OUT, /* a row for each that is asked for */
} fc_row_set;

enum { FC_BUFFER_OUTPUT = -1 /* the caller's [num_out, out_features] array */, FC_NO_BUFFER = -2 };

/* One op. It computes the rows of its destination; where that holds the rows asked for and its source holds all, it picks them out.
 * y = (w x + bias) * column_scale * scale, where absent parts do nothing. */
typedef struct {
    int32_t kind, barrier; /* barrier: wait for all threads before this op */
    int32_t src, dst;      /* buffers; src2 and gate below too */
    int32_t epilogue;
    int32_t dtype, n, k; /* n outputs (of a SWIGLU: gate and up together), k inputs */
    const void *weights;
    const float *bias, *column_scale, *norm; /* [n], [n], [k] */
    float scale, src_scale, gate_scale, eps; /* src_scale multiplies the (normalised) source of a NORM or LINEAR */
    /* HEADS (also as the tail of a LINEAR whose head_dim is a multiple of 16) and ATTENTION */
    int32_t fused_heads; /* LINEAR: do the HEADS work on the heads just computed */
    int32_t num_heads, num_kv_heads, head_dim, layer, causal;
    const float *q_norm, *k_norm; /* [head_dim] */
    const float *key_center;      /* [num_kv_heads][head_dim] or NULL; CACHE_WRITE too */
    const float *key_unit;        /* the same, of powers of two; beside a center, and of ATTENTION */
    float key_scale, score_scale;
    /* CONV, TIME_STEPS, SCAN (num_heads heads of head_dim), GATED_NORM */
    int32_t column, src2, gate; /* gate: a buffer whose first columns are the gate, or FC_NO_BUFFER */
    int32_t d_conv, d_state, num_groups, norm_before_gate;
    const float *conv;        /* [d_conv][padded n] */
    const float *rate, *skip; /* [num_heads] */
    float low, high;
    ptrdiff_t state_floats; /* where this op's part of a sequence's state starts */
} fc_op;

typedef struct {
    int32_t ld;      /* floats a row */
    int32_t row_set; /* which rows of the step it holds */
} fc_buffer;

typedef struct {
    const fc_op *ops;
    const fc_buffer *buffers;
    int32_t num_ops, num_buffers;
} fc_program;

/* The KV blocks. Address of (block, layer, head): base + block * block_bytes + layer * layer_bytes + head * head_bytes. */
typedef struct {
    uint8_t *base;
    ptrdiff_t block_bytes, layer_bytes, head_bytes, v_offset;
    int32_t dtype;
} fc_kv_cache;

/* One step: rows of many sequences, each sequence's rows together and in order. */
typedef struct {
    int32_t num_rows, num_seqs, num_out;
    const int32_t *token_ids;    /* [num_rows] */
    const int32_t *seq_rows;     /* [num_seqs + 1]: first row of each sequence */
    const int32_t *seq_pos;      /* [num_seqs]: position of its first row */
    const int32_t *block_tables; /* [num_seqs, max_blocks] */
    int32_t max_blocks;
    const int32_t *state_blocks;      /* [num_seqs]: first block of each sequence's recurrent state, where a program has such */
    const int32_t *out_rows;          /* [num_out] */
    const float *rope_cos, *rope_sin; /* [num_rows, head_dim / 2] */
    float *output;                    /* [num_out, ld_output] */
    ptrdiff_t ld_output;
    int32_t *argmax; /* [num_out] or NULL */
    fc_kv_cache kv;
    /* memory, sized by fc_workspace_floats */
    float *workspace;
    int32_t row_capacity, segment_capacity;
    /* called by one thread between ops; non-zero stops the step */
    int (*poll)(void *);
    void *poll_data;
    double *op_seconds; /* [num_ops] or NULL: time of each op on thread 0 */
    int32_t num_ops;    /* run only the first num_ops ops; < 0: all */
} fc_step;

/* Floats of workspace for steps of up to row_capacity rows and contexts of up to segment_capacity segments. */
size_t fc_workspace_floats(const fc_program *program, int row_capacity, int segment_capacity, int num_threads);
/* Where buffer b starts in the workspace. */
size_t fc_buffer_offset(const fc_program *program, int b, int row_capacity);
/* 0, or non-zero when poll stopped it (the sequences of the step then hold partial state). */
int fc_run(const fc_program *program, const fc_step *step, int num_threads);

/* ---- limits of the machine (measure.c) */

/* Seconds for `num_threads` threads to read `bytes` from `data` in `streams` contiguous streams each: the machine's read limit. */
double fc_time_read(const void *data, size_t bytes, int streams, int num_threads);
/* FLOP/s of the f32 kernel on operands that stay in L1, over num_threads threads: the machine's compute limit. */
double fc_flops_peak(int num_threads);
/* A monotonic clock. */
double fc_seconds(void);

#endif
