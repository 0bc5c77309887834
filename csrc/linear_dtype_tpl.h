/* Included by linear_tpl.h once per weight dtype. */
FC_DEFINE_TILE(1, 1)
FC_DEFINE_TILE(1, 2)
FC_DEFINE_TILE(1, 3)
FC_DEFINE_TILE(1, 4)
FC_DEFINE_TILE(2, 1)
FC_DEFINE_TILE(2, 2)
FC_DEFINE_TILE(2, 4)
FC_DEFINE_TILE(3, 1)
FC_DEFINE_TILE(3, 2)
FC_DEFINE_TILE(3, 4)
FC_DEFINE_TILE(4, 1)
FC_DEFINE_TILE(4, 2)
FC_DEFINE_TILE(4, 4)
FC_DEFINE_TILE(5, 1)
FC_DEFINE_TILE(5, 2)
FC_DEFINE_TILE(5, 4)
FC_DEFINE_TILE(6, 1)
FC_DEFINE_TILE(6, 2)
FC_DEFINE_TILE(6, 4)

FC_DEFINE_TILE_BLOCKS(1, 1)
FC_DEFINE_TILE_BLOCKS(1, 2)
FC_DEFINE_TILE_BLOCKS(1, 3)
FC_DEFINE_TILE_BLOCKS(1, 4)
FC_DEFINE_TILE_BLOCKS(2, 1)
FC_DEFINE_TILE_BLOCKS(2, 2)
FC_DEFINE_TILE_BLOCKS(2, 4)
FC_DEFINE_TILE_BLOCKS(3, 1)
FC_DEFINE_TILE_BLOCKS(3, 2)
FC_DEFINE_TILE_BLOCKS(3, 4)
FC_DEFINE_TILE_BLOCKS(4, 1)
FC_DEFINE_TILE_BLOCKS(4, 2)
FC_DEFINE_TILE_BLOCKS(4, 4)
FC_DEFINE_TILE_BLOCKS(5, 1)
FC_DEFINE_TILE_BLOCKS(5, 2)
FC_DEFINE_TILE_BLOCKS(5, 4)
FC_DEFINE_TILE_BLOCKS(6, 1)
FC_DEFINE_TILE_BLOCKS(6, 2)
FC_DEFINE_TILE_BLOCKS(6, 4)

/* All rows over panels that stay in cache together, by tiles of nearly equal height. */
static inline void FC_GEMM_PANELS(const float *x, ptrdiff_t ld_x, int rows, const uint8_t *w, ptrdiff_t panel_bytes,
                                  ptrdiff_t k_bytes, int panels, int num_k, float *acc, ptrdiff_t ld_acc, ptrdiff_t next)
{
    for (int height; rows > 0; rows -= height) {
        ptrdiff_t p = 0;
        height = FC_NAME(tile_height)(rows);
        FC_RUN_HEIGHT(FC_RUN_TILE)
        x += height * ld_x;
        acc += height * ld_acc;
    }
}

static void FC_GEMM(const float *x, ptrdiff_t ld_x, int rows, const void *weights, ptrdiff_t panel_bytes, ptrdiff_t k_bytes,
                    int panels, int num_k, float *acc, ptrdiff_t ld_acc)
{
    enum { CACHED_BYTES = 128 * 1024, FEW_ROWS = 18 };
    const uint8_t *w = (const uint8_t *)weights;
    /* One tile streams, and the hardware sees its streams. A few tiles that share a panel would leave memory idle while the later
     * ones compute, so they touch the next panel. Many tiles hide the wait for a panel anyway. */
    int few = rows > 6 && rows <= FEW_ROWS;
    int together = rows <= 6 || (!few && panel_bytes * panels <= CACHED_BYTES) ? panels : few ? FC_PANELS_2 : FC_PANELS_4;
    for (int p = 0; p < panels; p += together) {
        FC_GEMM_PANELS(x, ld_x, rows, w + p * panel_bytes, panel_bytes, k_bytes, panels - p < together ? panels - p : together,
                       num_k, acc + (ptrdiff_t)p * 16, ld_acc, few ? together * panel_bytes : 0);
    }
}

/* Up to six rows over k in blocks, each with all panels. */
static inline void FC_GEMM_BLOCKS(const float *x, ptrdiff_t ld_x, int height, const uint8_t *const *blocks, int panels,
                                  int num_k, float *acc, ptrdiff_t ld_acc)
{
    ptrdiff_t k_bytes = fc_lane_bytes(FC_DTYPE_CODE), panel_bytes = FC_BLOCK_TOKENS * k_bytes, p = 0;
    FC_RUN_HEIGHT(FC_RUN_TILE_BLOCKS)
}
#undef FC_DTYPE
#undef FC_DTYPE_CODE
