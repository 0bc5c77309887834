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
                                  int streams, const uint8_t *const *ahead)
{
    for (int height; rows > 0; rows -= height) {
        ptrdiff_t p = 0;
        height = FC_NAME(tile_height)(rows);
        switch (streams) {
        case 0:
            FC_RUN_HEIGHT(0)
            break;
        case 1:
            FC_RUN_HEIGHT(1)
            break;
        case FC_STREAMS:
            FC_RUN_HEIGHT(FC_STREAMS)
        }
        x += height * ld_x;
        acc += height * ld_acc;
        streams = 0;
    }
}

static void FC_GEMM(const float *x, ptrdiff_t ld_x, int rows, const void *weights, int panels, int num_k, float *acc,
                    ptrdiff_t ld_acc)
{
    enum { CACHED_BYTES = 128 * 1024, FEW_ROWS = 18 };
    const uint8_t *w = (const uint8_t *)weights, *next;
    ptrdiff_t k_bytes = FC_K_BYTES, panel_bytes = num_k * k_bytes;
    /* One or two rows stream, and the hardware sees their streams. With a few more, memory would idle while they are computed, so
     * they touch the next panels. Many hide the wait for a panel anyway. */
    int few = rows > 2 && rows <= FEW_ROWS;
    int together = few ? FC_PANELS_2 : rows <= 2 || panel_bytes * panels <= CACHED_BYTES ? panels : FC_PANELS_4;
    for (int p = 0; p < panels; p += together, w = next) {
        next = w + together * panel_bytes;
        FC_GEMM_PANELS(x, ld_x, rows, &w, panel_bytes, k_bytes, panels - p < together ? panels - p : together, num_k, num_k,
                       acc + (ptrdiff_t)p * 16, ld_acc, 0, few, &next);
    }
}
#undef FC_DTYPE
#undef FC_K_BYTES
