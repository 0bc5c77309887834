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

/* All rows over panels that stay in cache together. Each of the tiles brings its share of the next panels on their way. */
static inline void FC_GEMM_PANELS(const float *x, ptrdiff_t ld_x, int rows, const uint8_t *w, ptrdiff_t panel_bytes,
                                  ptrdiff_t k_bytes, int panels, int num_k, float *acc, ptrdiff_t ld_acc, int first)
{
    int tiles = (rows + 5) / 6;
    ptrdiff_t ahead_bytes = 4 * k_bytes / tiles;
    const uint8_t *ahead = w + panels * panel_bytes;
    for (int t = 0; t < tiles; t++) { /* of nearly equal height */
        int height = rows / (tiles - t) + (rows % (tiles - t) != 0);
        ptrdiff_t p = 0;
        switch (height) {
        case 1:
            while (panels - p >= 4) {
                FC_RUN_TILE(1, 4);
            }
            if (panels - p == 3) { /* a lone panel cannot hide the latency of its chain: the rest goes together */
                FC_RUN_TILE(1, 3);
            } else if (panels - p == 2) {
                FC_RUN_TILE(1, 2);
            } else if (panels - p == 1) {
                FC_RUN_TILE(1, 1);
            }
            break;
            FC_CASE(2, FC_PANELS_2)
            FC_CASE(3, FC_PANELS_2)
            FC_CASE(4, FC_PANELS_4)
            FC_CASE(5, FC_PANELS_4)
            FC_CASE(6, FC_PANELS_4)
        }
        x += height * ld_x;
        acc += height * ld_acc;
        rows -= height;
        ahead += num_k / 4 * ahead_bytes;
    }
}

static void FC_GEMM(const float *x, ptrdiff_t ld_x, int rows, const void *weights, ptrdiff_t panel_bytes, ptrdiff_t k_bytes,
                    int panels, int num_k, float *acc, ptrdiff_t ld_acc, int first)
{
    enum { CACHED_BYTES = 128 * 1024 };
    const uint8_t *w = (const uint8_t *)weights;
    int together = rows <= 6 || panel_bytes * panels <= CACHED_BYTES ? panels : FC_PANELS_4;
    for (int p = 0; p < panels; p += together) {
        FC_GEMM_PANELS(x, ld_x, rows, w + p * panel_bytes, panel_bytes, k_bytes, panels - p < together ? panels - p : together, num_k,
                       acc + (ptrdiff_t)p * 16, ld_acc, first);
    }
}
#undef FC_DTYPE
