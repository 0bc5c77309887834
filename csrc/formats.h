/* The formats of weights: one row each, which everything else asks. */
#ifndef FC_FORMATS_H
#define FC_FORMATS_H

#include <stddef.h>
#include <stdint.h>

/* What a linear map multiplies its weights with. */
typedef enum {
    FC_SOURCE_F32, /* rows of f32 as they are */
    FC_SOURCE_Q8,  /* rows quantised by fc_kernels.quantize_rows: an fc_q8_row each */
} fc_source;

/* A row of FC_SOURCE_Q8: groups of 32 values x[i] = scale * q[i], q in [-127, 127]. Its arrays lie one after another. */
enum { FC_GROUP = 32 };
typedef struct {
    int8_t *q;                 /* [groups][32] */
    float *scale, *scaled_sum; /* [groups]; scaled_sum is scale times the sum of q */
    int32_t *start;            /* [groups]: -128 times the sum of q, where weights are multiplied as q + 128 */
    int16_t *wide;             /* [groups][32]: q again; of four, the first and third, then the second and fourth */
} fc_q8_row;

static inline fc_q8_row fc_q8_row_of(const float *row, ptrdiff_t groups)
{
    float *scale = (float *)row + groups * (FC_GROUP / 4);
    return (fc_q8_row){(int8_t *)row, scale, scale + groups, (int32_t *)(scale + 2 * groups), (int16_t *)(scale + 3 * groups)};
}

/* Floats of a source row of k values. */
static inline ptrdiff_t fc_source_floats(fc_source source, int k)
{
    enum { GROUP_BYTES = FC_GROUP * 3 + 3 * 4 };
    return source == FC_SOURCE_Q8 ? (k + FC_GROUP - 1) / FC_GROUP * (ptrdiff_t)(GROUP_BYTES / sizeof(float)) : k;
}

/* X(A, CODE, name, stored_as, element_bytes, load, keep, pack_panel, block_k, block_bytes, source), A is passed on.
 *   stored_as, element_bytes, load     an element of a tensor, of block_k numbers: its name in NumPy, its size, how they become f32;
 *                                      NULL, 0 and NULL where weights are only packed into this format
 *   keep                   puts such elements into a lane as they are, where load and pack would round; or NULL
 *   pack_panel             packs 16 rows of such elements at once, or NULL
 *   block_k, block_bytes   inputs that lie together (the last block is filled up with zeros), and the bytes of them, of 16 rows
 *   source                 what its kernel gemm_<name> (linear_tpl.h) multiplies with
 * and pack_<name>, unpack_<name> (formats.c): f32 to one lane of blocks, and back. */
#define FC_FORMATS(X, A)                                                                                                              \
    X(A, F32, f32, "float32", 4, load_f32, NULL, transpose_panel, 1, 64, FC_SOURCE_F32)                                               \
    X(A, BF16, bf16, "uint16", 2, load_bf16, NULL, zip_by_eights, 1, 32, FC_SOURCE_F32)                                               \
    X(A, F16, f16, "float16", 2, load_f16, NULL, zip_neighbours, 1, 32, FC_SOURCE_F32)                                                \
    /* groups of 32: w = scale * q, q in [-127, 127] as [8 quads of k][16][4], then 16 f16 scales; stored: f16 scale, 32 q */         \
    X(A, INT8, int8, "V34", 34, load_int8, keep_int8, NULL, 32, 544, FC_SOURCE_Q8)                                                    \
    /* groups of 32: w = scale * q + minimum, q in [0, 15] as [4 quads of k][16][4], in the high nibbles the next 16 k; then 16 f16 \
     * scales and 16 f16 minima; stored: f16 scale, f16 minimum, 16 bytes of q, in the high nibbles the second half */ \
    X(A, INT4, int4, "V20", 20, load_int4, keep_int4, NULL, 32, 320, FC_SOURCE_Q8)

#define FC_FORMAT_CODE(A, CODE, ...) FC_##CODE,
typedef enum { FC_FORMATS(FC_FORMAT_CODE, ) FC_NUM_DTYPES } fc_dtype;
#undef FC_FORMAT_CODE

#define FC_BLOCK_BYTES_CASE(dtype, CODE, name, stored_as, element_bytes, load, keep, pack_panel, block_k, block_bytes, source) \
    dtype == FC_##CODE ? block_bytes:
/* block_bytes of a format, a constant where dtype is one. */
static inline int fc_block_bytes(int dtype) { return FC_FORMATS(FC_BLOCK_BYTES_CASE, dtype) 0; }

enum { FC_CHUNK_K = 256 /* values that pack and unpack take at most at a time: whole blocks of every format */ };

typedef struct {
    const char *name, *stored_as;
    int element_bytes;
    void (*load)(const void *elements, float *values, int n);
    int (*keep)(void *blocks, int lane, const void *elements, int n); /* 0, or 1 where an integer is out of range */
    void (*pack_panel)(void *blocks, const void *elements, int k);
    int block_k, block_bytes;
    fc_source source;
    /* n <= FC_CHUNK_K values of one lane, to or from the start of a block */
    void (*pack)(void *blocks, int lane, const float *values, int n);
    void (*unpack)(const void *blocks, int lane, float *values, int n);
} fc_format;

/* The row of a format; dtype is below FC_NUM_DTYPES. */
const fc_format *fc_format_of(int dtype);

/* Bytes of one panel of 16 rows with k inputs. */
ptrdiff_t fc_panel_bytes(int dtype, int k);

/* Bytes of the panels of an [out_features, in_features] map. */
size_t fc_packed_bytes(int out_features, int in_features, fc_dtype dtype);

/* Put `num_rows` rows of `src` ([num_rows, in_features], row-major, elements of src_dtype) into `panels` from row `first_row` on;
 * a source row i goes to row first_row + i, or, with group_stride > 16, to first_row + i / 16 * group_stride + i % 16 (gate and up
 * projections interleaved panel by panel). Rounds to nearest even where the target is narrower; elements of the target's own format
 * stay as they are. `panels` starts zeroed. Returns 0, or 1 where stored integers go beyond the range of the format. */
int fc_pack_rows(void *panels, fc_dtype dtype, int in_features, const void *src, fc_dtype src_dtype, int num_rows,
                 int first_row, int group_stride, int num_threads);

/* The inverse for one row, as f32. */
void fc_unpack_row(const void *panels, fc_dtype dtype, int in_features, int row, float *out);

#endif
