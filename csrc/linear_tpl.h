/* Linear maps as tiles of R activation rows by P panels of 16 outputs. Every output is one chain of fused multiply-adds over k,
 * so neither the shape of the tile nor the vector width shows in the result.
 *
 * What is const in a signature is a constant where the function is inlined: loops over R and P are unrolled whole, so that the
 * accumulators live in registers.
 *
 * A tile can touch what is read after its weights, as much as it reads, so that it is on its way from memory in time: in one stream,
 * or in four by turns where it lies in pieces. Memory gives half as much when small pieces are fetched one after another. */

enum { FC_STREAMS = 4, FC_TILE_ROWS = 6, FC_TILE_PANELS = 4 };

/* The formats that this file multiplies: f32 sources with the sixteen weights of a k loaded by p16_load_<name>. */
#define FC_FLOAT_FORMATS(X) X(F32, f32) X(BF16, bf16) X(F16, f16)

FC_INLINE p16 FC_NAME(load_lanes)(const int dtype, const uint8_t *p)
{
#define FC_LOAD_CASE(CODE, name) \
    case FC_##CODE:              \
        return p16_load_##name(p);
    switch (dtype) {
        FC_FLOAT_FORMATS(FC_LOAD_CASE)
    default:
        return p16_zero();
    }
}

/* Where k lies: part_k at a time at the addresses in `parts`, the panels of a part one after another. */
typedef struct {
    const uint8_t *const *parts;
    int part_k, num_k;
    ptrdiff_t panel_bytes;
    const uint8_t *const *ahead; /* the streams to touch, in the order of the parts */
} FC_NAME(weights);

/* go_on: the chains start from acc, not from zero. streams: 0, 1 or FC_STREAMS of `ahead`. */
FC_INLINE void FC_NAME(tile)(const int dtype, const int R, const int P, const int streams, const float *restrict x,
                             ptrdiff_t ld_x, const FC_NAME(weights) * weights, ptrdiff_t panel, float *restrict acc,
                             ptrdiff_t ld_acc, int go_on)
{
    const ptrdiff_t k_bytes = fc_block_bytes(dtype), panel_bytes = weights->panel_bytes, offset = panel * panel_bytes;
    const uint8_t *const *parts = weights->parts, *ahead[FC_STREAMS];
    const float *rows[FC_TILE_ROWS];
    p16 sums[FC_TILE_ROWS][FC_TILE_PANELS];
    FC_UNROLL
    for (int s = 0; s < streams; s++) {
        ahead[s] = weights->ahead[s] + offset / streams;
    }
    FC_UNROLL
    for (int r = 0; r < R; r++) {
        rows[r] = x + r * ld_x;
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            sums[r][p] = go_on ? p16_load(acc + r * ld_acc + p * 16) : p16_zero();
        }
    }
    for (ptrdiff_t k = 0, num_k = weights->num_k, part_k = weights->part_k; k < num_k; parts++) {
        const uint8_t *w[FC_TILE_PANELS];
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            w[p] = parts[0] + offset + p * panel_bytes;
        }
        for (ptrdiff_t end = k + part_k < num_k ? k + part_k : num_k; k < end; k++) {
            p16 lanes[FC_TILE_PANELS];
            FC_UNROLL
            for (int p = 0; p < P; p++) {
                lanes[p] = FC_NAME(load_lanes)(dtype, w[p]);
                w[p] += k_bytes;
            }
            if (streams) {
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    __builtin_prefetch(ahead[0] + p * k_bytes);
                }
                const uint8_t *touched = ahead[0] + P * k_bytes;
                FC_UNROLL
                for (int s = 1; s < streams; s++) {
                    ahead[s - 1] = ahead[s];
                }
                ahead[streams - 1] = touched;
            }
            FC_UNROLL
            for (int r = 0; r < R;
                 r++) { /* one broadcast lives at a time: six beside the sums would not fit sixteen registers */
                p16 b = p16_set1(rows[r][k]);
                FC_UNROLL
                for (int p = 0; p < P; p++) {
                    sums[r][p] = p16_fma(b, lanes[p], sums[r][p]);
                }
            }
        }
    }
    FC_UNROLL
    for (int r = 0; r < R; r++) {
        FC_UNROLL
        for (int p = 0; p < P; p++) {
            p16_store(acc + r * ld_acc + p * 16, sums[r][p]);
        }
    }
}

/* All panels of a tile of R rows, P at a time, and the last ones two or one at a time. One row hides the latency of its chains only
 * behind other panels, so its last panels go together. */
FC_INLINE void FC_NAME(tiles)(const int dtype, const int R, const int P, const int streams, const float *x, ptrdiff_t ld_x,
                              const FC_NAME(weights) * weights, int panels, float *acc, ptrdiff_t ld_acc, int go_on)
{
    int p = 0;
#define FC_TILE(P) FC_NAME(tile)(dtype, R, P, streams, x, ld_x, weights, p, acc + p * 16, ld_acc, go_on)
    for (; panels - p >= P; p += P) {
        FC_TILE(P);
    }
    if (R == 1 && panels - p == 3) {
        FC_TILE(3);
        return;
    }
    for (; P > 2 && panels - p >= 2; p += 2) {
        FC_TILE(2);
    }
    for (; P > 1 && p < panels; p++) {
        FC_TILE(1);
    }
#undef FC_TILE
}

/* The height of the next of the tiles that take `rows` rows: nearly equal ones. Of seven or eight rows two stay for a second tile:
 * tiles of three and four keep the multipliers waiting for their chains, or out of registers. */
static inline int FC_NAME(tile_height)(int rows)
{
    int tiles = (rows + FC_TILE_ROWS - 1) / FC_TILE_ROWS;
    return rows == 7 || rows == 8 ? rows - 2 : (rows + tiles - 1) / tiles;
}

FC_INLINE void FC_NAME(rows)(const int dtype, const int streams, int height, const float *x, ptrdiff_t ld_x,
                             const FC_NAME(weights) * weights, int panels, float *acc, ptrdiff_t ld_acc, int go_on)
{
#define FC_HEIGHT(R, P)                                                                     \
    case R:                                                                                 \
        FC_NAME(tiles)(dtype, R, P, streams, x, ld_x, weights, panels, acc, ld_acc, go_on); \
        break;
    switch (height) {
        FC_HEIGHT(1, 4)
        FC_HEIGHT(2, FC_PANELS_2)
        FC_HEIGHT(3, FC_PANELS_2)
        FC_HEIGHT(4, FC_PANELS_4)
        FC_HEIGHT(5, FC_PANELS_4)
        FC_HEIGHT(6, FC_PANELS_4)
    }
#undef FC_HEIGHT
}

/* All rows over panels that stay in cache together, by tiles of nearly equal height; the first one touches what is ahead. */
FC_INLINE void FC_NAME(gemm_panels)(const int dtype, int streams, const float *x, ptrdiff_t ld_x, int rows,
                                    const FC_NAME(weights) * weights, int panels, float *acc, ptrdiff_t ld_acc, int go_on)
{
    for (int height; rows > 0; rows -= height) {
        height = FC_NAME(tile_height)(rows);
        switch (streams * FC_TOUCHES) {
        case 0:
            FC_NAME(rows)(dtype, 0, height, x, ld_x, weights, panels, acc, ld_acc, go_on);
            break;
#if FC_TOUCHES
        case 1:
            FC_NAME(rows)(dtype, 1, height, x, ld_x, weights, panels, acc, ld_acc, go_on);
            break;
        case FC_STREAMS:
            FC_NAME(rows)(dtype, FC_STREAMS, height, x, ld_x, weights, panels, acc, ld_acc, go_on);
#endif
        }
        x += height * ld_x;
        acc += height * ld_acc;
        streams = 0;
    }
}

#define FC_FLOAT_GEMM(CODE, name)                                                                                           \
    static void gemm_panels_##name(int streams, const float *x, ptrdiff_t ld_x, int rows, const FC_NAME(weights) * weights, \
                                   int panels, float *acc, ptrdiff_t ld_acc, int go_on)                                     \
    {                                                                                                                       \
        FC_NAME(gemm_panels)(FC_##CODE, streams, x, ld_x, rows, weights, panels, acc, ld_acc, go_on);                       \
    }                                                                                                                       \
                                                                                                                            \
    static void FC_NAME(gemm_##name) FC_GEMM_ARGS                                                                           \
    {                                                                                                                       \
        FC_NAME(gemm)(FC_##CODE, gemm_panels_##name, x, ld_x, rows, weights, panels, num_k, acc, ld_acc);                   \
    }

typedef void FC_NAME(panels_kernel)(int streams, const float *x, ptrdiff_t ld_x, int rows, const FC_NAME(weights) * weights,
                                    int panels, float *acc, ptrdiff_t ld_acc, int go_on);

static void FC_NAME(gemm)(int dtype, FC_NAME(panels_kernel) * kernel, const float *x, ptrdiff_t ld_x, int rows,
                          const void *weights, int panels, int num_k, float *acc, ptrdiff_t ld_acc)
{
    enum { CACHED_BYTES = 128 * 1024, FEW_ROWS = 18 };
    ptrdiff_t panel_bytes = fc_panel_bytes(dtype, num_k);
    const uint8_t *w = (const uint8_t *)weights, *next;
    /* One or two rows stream, and the hardware sees their streams. With a few more, memory would idle while they are computed, so
     * they touch the next panels. Many hide the wait for a panel anyway. */
    int few = rows > 2 && rows <= FEW_ROWS;
    int together = few ? FC_PANELS_2 : rows <= 2 || panel_bytes * panels <= CACHED_BYTES ? panels : FC_PANELS_4;
    for (int p = 0; p < panels; p += together, w = next) {
        next = w + together * panel_bytes;
        FC_NAME(weights) some = {&w, num_k, num_k, panel_bytes, &next};
        kernel(few, x, ld_x, rows, &some, panels - p < together ? panels - p : together, acc + (ptrdiff_t)p * 16, ld_acc, 0);
    }
}

FC_FLOAT_FORMATS(FC_FLOAT_GEMM)
