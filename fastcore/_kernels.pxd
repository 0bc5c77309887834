# What the border calls of csrc/fastcore.h. Cython reads it before _kernels.pyx.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef extern from "fastcore.h" nogil:
    enum:
        FC_LANES
        FC_BLOCK_TOKENS
        FC_SEGMENT_TOKENS
        FC_MAX_HEAD_DIM
        FC_MAX_THREADS
        FC_MAX_LABELS
        FC_BUFFER_OUTPUT
        FC_NO_BUFFER
    ctypedef enum fc_dtype:
        FC_NUM_DTYPES
    ctypedef struct fc_format:
        const char *name
        const char *stored_as
        int block_k
    const fc_format *fc_format_of(int dtype)
    enum:
        FC_NUM_OP_KINDS
    const char *fc_op_name(int kind)
    ctypedef enum fc_epilogue:
        FC_STORE
        FC_ADD
        FC_SWIGLU
    ctypedef enum fc_row_set:
        FC_ROWS_ALL
        FC_ROWS_OUT
    ctypedef struct fc_op:
        int32_t kind, barrier, src, dst, epilogue, dtype, n, k
        const void *weights
        const float *bias
        const float *column_scale
        const float *norm
        float scale, src_scale, gate_scale, eps
        int32_t fused_heads, num_heads, num_kv_heads, head_dim, layer, causal
        const float *q_norm
        const float *k_norm
        const float *key_center
        const float *key_unit
        float key_scale, score_scale
        int32_t column, src2, gate, d_conv, d_state, num_groups, norm_before_gate
        const float *conv
        const float *rate
        const float *skip
        float low, high
        ptrdiff_t state_floats
    ctypedef struct fc_buffer:
        int32_t ld, row_set
    ctypedef struct fc_program:
        const fc_op *ops
        const fc_buffer *buffers
        int32_t num_ops, num_buffers
    ctypedef struct fc_kv_cache:
        uint8_t *base
        ptrdiff_t block_bytes, layer_bytes, head_bytes, v_offset
        int32_t dtype
    ctypedef struct fc_step:
        int32_t num_rows, num_seqs, num_out
        const int32_t *token_ids
        const int32_t *seq_rows
        const int32_t *seq_pos
        const int32_t *block_tables
        int32_t max_blocks
        const int32_t *state_blocks
        const int32_t *out_rows
        const float *rope_cos
        const float *rope_sin
        float *output
        ptrdiff_t ld_output
        int32_t *argmax
        fc_kv_cache kv
        float *workspace
        int32_t row_capacity, segment_capacity
        int (*poll)(void *) noexcept
        void *poll_data
        double *op_seconds
        int32_t num_ops
    int fc_pad(int n)
    int fc_row_floats(int n)
    ptrdiff_t fc_kv_part_bytes(int dtype, int features)
    size_t fc_packed_bytes(int out_features, int in_features, fc_dtype dtype)
    int fc_pack_rows(void *panels, fc_dtype dtype, int in_features, const void *src, fc_dtype src_dtype, int num_rows,
                     int first_row, int group_stride, int num_threads)
    void fc_unpack_row(const void *panels, fc_dtype dtype, int in_features, int row, float *out)
    int fc_num_isas()
    const char *fc_isa_name(int i)
    int fc_isa_usable(int i)
    int fc_isa_active()
    void fc_isa_use(int i)
    void fc_exp(const float *x, float *out, ptrdiff_t n)
    void fc_silu(const float *x, float *out, ptrdiff_t n)
    void fc_softplus(const float *x, float *out, ptrdiff_t n)
    int64_t fc_argmax(const float *x, ptrdiff_t n)
    double fc_sum_exp(const float *x, ptrdiff_t n, float shift, float scale)
    enum:
        FC_WEIGHT_BLOCK
    void fc_softmax_weights(const float *x, ptrdiff_t n, float shift, float scale, float *weights, double *sums)
    void fc_mask_logits(const float *logits, const uint32_t *allowed, ptrdiff_t n, float *out)
    int fc_viterbi(const float *logits, int num_tokens, int num_labels, const float *transition_scores, const float *start,
                   const float *end, float *score_scratch, uint8_t *back, int32_t *path)
    size_t fc_workspace_floats(const fc_program *program, int row_capacity, int segment_capacity, int num_threads)
    size_t fc_buffer_offset(const fc_program *program, int b, int row_capacity)
    int fc_run(const fc_program *program, const fc_step *step, int num_threads)
    double fc_time_read(const void *data, size_t nbytes, int streams, int num_threads)
    double fc_flops_peak(int num_threads)
