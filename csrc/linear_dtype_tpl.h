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

/* All rows over panels that stay in cache together, by tiles of nearly equal height; the first one touches what is ahead. */
static inline void FC_GEMM_PANELS(const float *x, ptrdiff_t ld_x, int rows, const uint8_t *const *parts, ptrdiff_t panel_bytes,
                                  ptrdiff_t k_bytes, int panels, int part_k, int num_k, float *acc, ptrdiff_t ld_acc, int go_on,
                                  int touch, const uint8_t *const *ahead)
{
    for (int height; rows > 0; rows -= height) {
        ptrdiff_t p = 0;
        height = FC_NAME(tile_height)(rows);
        if (touch) {
            FC_RUN_HEIGHT(1)
        } else {
            FC_RUN_HEIGHT(0)
        }
        x += height * ld_x;
        acc += height * ld_acc;
        touch = 0;
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
    ptrdiff_t bytes = together * panel_bytes, quarter = bytes / FC_STREAMS;
    for (int p = 0; p < panels; p += together, w += bytes) {
        const uint8_t *next = w + bytes;
        const uint8_t *const ahead[FC_STREAMS] = {next, next + quarter, next + 2 * quarter, next + 3 * quarter};
        FC_GEMM_PANELS(x, ld_x, rows, &w, panel_bytes, k_bytes, panels - p < together ? panels - p : together, num_k, num_k,
                       acc + (ptrdiff_t)p * 16, ld_acc, 0, few, ahead);
    }
}
#undef FC_DTYPE
#undef FC_DTYPE_CODE
