/* The kernels that exist once per instruction set: one list, one table of pointers per set. Each works on a range that the caller
 * chose; none knows about threads. */
#ifndef FC_KERNELS_H
#define FC_KERNELS_H

#include "fastcore.h"

/* acc[r][p * 16 + lane] = sum over k of x[r][k] * panel p [k][lane]; rows of the format's source, ld_x floats apart. */
#define FC_GEMM_ARGS \
    (const float *x, ptrdiff_t ld_x, int rows, const void *weights, int panels, int num_k, float *acc, ptrdiff_t ld_acc)
typedef void fc_gemm FC_GEMM_ARGS;

/* Attention of `tokens` x `group` query rows of one kv head over the positions of segments [first_segment, end_segment).
 * q: [tokens][ld_q], the group's heads side by side. The row of token t sees positions < limit + t * limit_step. The result of row r
 * (token-major) goes to out + t * ld_out + g * head_dim, or, when partial is given, unnormalised to
 * partial + (r * partial_segments + segment) * (padded head_dim + 2) as [sums of v][sum][max]. */
typedef struct {
    const float *q;
    ptrdiff_t ld_q;
    int tokens, group, head_dim;
    int limit, limit_step;
    int first_segment, end_segment;
    float score_scale;
    const fc_kv_cache *kv;
    const float *key_unit;    /* [head_dim] or NULL: of keys of int8 */
    const uint8_t *head_base; /* kv->base at this layer and head */
    const int32_t *blocks;
    float *out;
    ptrdiff_t ld_out;
    float *partial;
    int partial_segments;
    float *scratch; /* fc_attention_scratch_floats */
} fc_attention_task;

/* The selective scan of up to two tiles of 16 dims of one head over the tokens of one sequence:
 *   state = decay * state + (step * x) B,   y = (state C + skip * x) * silu(gate), without the last factor when gate is NULL
 * state: [tile][d_state][16], lanes are dims. x, B and C of token t are ld_x apart, step and decay ld_step. */
typedef struct {
    const float *x, *B, *C, *step, *decay, *gate;
    ptrdiff_t ld_x, ld_step, ld_gate, ld_y;
    float skip;
    int tokens, dims, d_state;
    float *state, *y;
} fc_scan_task;

/* Each kernel has a fc_check_<name> in a check_*.c, by which instruction sets and compilers are compared. */
#define FC_GEMM_OF(K, CODE, name, ...) K(void, gemm_##name, FC_GEMM_ARGS)
#define FC_KERNEL_LIST(K)                                                                                                       \
    FC_FORMATS(FC_GEMM_OF, K)                                                                                                   \
    /* out[row] = the fc_q8_row of k values, the last group filled up with zeros; rows of out are ld_out floats apart */        \
    K(void, quantize_rows, (const float *x, ptrdiff_t ld_x, int rows, int k, float *out, ptrdiff_t ld_out))                     \
    /* dst = or += (acc + bias) * column_scale * scale on n columns of each row; bias, column_scale may be NULL */              \
    K(void, store_rows,                                                                                                         \
      (const float *acc, ptrdiff_t ld_acc, int rows, int n, const float *bias, const float *column_scale, float scale,          \
       int add, float *dst, ptrdiff_t ld_dst))                                                                                  \
    /* acc holds pairs of 16 columns (gate, up); dst gets n = 16 a pair (last one cut): silu(gate * gate_scale) * up * scale */ \
    K(void, swiglu_rows,                                                                                                        \
      (const float *acc, ptrdiff_t ld_acc, int rows, int n, const float *bias, float gate_scale, float scale, float *dst,       \
       ptrdiff_t ld_dst))                                                                                                       \
    K(void, rms_norm, (const float *x, const float *weight, int n, float eps, float scale, float *out))                         \
    /* out[j] = x[j] cos[j] - x[j + half] sin[j]; out[j + half] = x[j + half] cos[j] + x[j] sin[j] */                           \
    K(void, rope, (const float *x, const float *cos, const float *sin, int head_dim, float *out))                               \
    /* one row of a packed map times scale */                                                                                   \
    K(void, embed_row, (const void *panels, int dtype, int k, int row, float scale, float *out))                                \
    K(void, attention, (const fc_attention_task *task))                                                                         \
    /* out = the partial results of one row, combined in the order of the segments */                                           \
    K(void, attention_combine, (const float *partial, int segments, int head_dim, float *out))                                  \
    /* x [head_dim] into the cache at a position, in int8 as (x - center) / unit unless they are NULL */                        \
    K(void, write_kv,                                                                                                           \
      (const float *x, const float *center, const float *unit, int head_dim, int dtype, int is_v, uint8_t *base,                \
       ptrdiff_t v_offset, int position))                                                                                       \
    /* out[i] = silu(bias[i] + sum over k of weight[k][i] * taps[k][i]); bias may be NULL */                                    \
    K(void, conv_row,                                                                                                           \
      (const float *const *taps, int d_conv, const float *weight, ptrdiff_t ld_weight, const float *bias, int n, float *out))   \
    /* step = softplus(x + bias) within [low, high]; decay = exp(step * rate) */                                                \
    K(void, time_steps,                                                                                                         \
      (const float *x, const float *bias, const float *rate, int n, float low, float high, float *step, float *decay))          \
    K(void, scan, (const fc_scan_task *task))                                                                                   \
    /* rms_norm(x * silu(gate)) * weight, or rms_norm(x) * weight * silu(gate); out may be x */                                 \
    K(void, gated_norm,                                                                                                         \
      (const float *x, const float *gate, const float *weight, int n, float eps, int norm_before_gate, float *out))             \
    K(void, softplus, (const float *x, float *out, ptrdiff_t n))                                                                \
    K(void, exp, (const float *x, float *out, ptrdiff_t n))                                                                     \
    K(void, silu, (const float *x, float *out, ptrdiff_t n))                                                                    \
    /* largest value over n >= 1 and its lowest index; *finite is cleared when a value is NaN or infinite */                    \
    K(float, argmax, (const float *x, ptrdiff_t n, ptrdiff_t *index, int *finite))                                              \
    /* weights[i] = exp((x[i] - shift) * scale), 0 where that is below e^-87; sums of FC_WEIGHT_BLOCK of them */                \
    K(void, softmax_weights, (const float *x, ptrdiff_t n, float shift, float scale, float *weights, double *sums))             \
    K(double, sum_exp, (const float *x, ptrdiff_t n, float shift, float scale))

typedef struct {
    fc_gemm *gemm[FC_NUM_DTYPES]; /* the gemm_<format> by format, where the table is complete (dispatch.c) */
#define FC_MEMBER(type, name, args) type(*name) args;
    FC_KERNEL_LIST(FC_MEMBER)
#undef FC_MEMBER
} fc_kernels;

/* Rows of queries that a task keeps in scratch at once, those that go through a segment together, and the scratch's size. */
enum { FC_ATTENTION_ROWS = 96, FC_PASS_ROWS = 8 };
static inline size_t fc_attention_scratch_floats(int head_dim)
{
    return (size_t)FC_ATTENTION_ROWS * (2 * fc_pad(head_dim) + 2) +
           FC_PASS_ROWS * ((size_t)FC_SEGMENT_TOKENS + fc_pad(head_dim)) + FC_BLOCK_TOKENS * (size_t)fc_pad(head_dim);
}

extern const fc_kernels fc_kernels_scalar;
#if defined(__x86_64__) || defined(_M_X64)
extern const fc_kernels fc_kernels_avx2, fc_kernels_avx512, fc_kernels_avx512vnni, fc_kernels_avx512amx;
#elif defined(__aarch64__)
extern const fc_kernels fc_kernels_neon, fc_kernels_neondot, fc_kernels_neoni8mm;
#endif

/* The table in use. Each read may see another: a step reads it once. */
extern const fc_kernels *_Atomic fc_active;

#endif
