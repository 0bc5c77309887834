/* Included by linear_tpl.h once per weight dtype. */
FC_DEFINE_TILE(1, 1)
FC_DEFINE_TILE(1, 2)
FC_DEFINE_TILE(1, 3)
FC_DEFINE_TILE(1, 4)
FC_DEFINE_TILE(2, 1)
FC_DEFINE_TILE(2, 2)
FC_DEFINE_TILE(3, 1)
FC_DEFINE_TILE(3, 2)
FC_DEFINE_TILE(4, 1)
FC_DEFINE_TILE(4, 2)
FC_DEFINE_TILE(5, 1)
FC_DEFINE_TILE(5, 2)
FC_DEFINE_TILE(6, 1)
FC_DEFINE_TILE(6, 2)

static void FC_GEMM(const float *x, ptrdiff_t ld_x, int rows, const void *weights, ptrdiff_t panel_bytes,
                                              ptrdiff_t k_bytes, int panels, int num_k, float *acc, ptrdiff_t ld_acc, int first)
{
    const uint8_t *w = (const uint8_t *)weights;
    int tiles = (rows + 5) / 6;
    for (int t = 0; t < tiles; t++) { /* tiles of nearly equal height */
        int height = rows / (tiles - t) + (rows % (tiles - t) != 0);
        ptrdiff_t p = 0;
        switch (height) {
        case 1:
            while (panels - p >= 4) {
                FC_RUN_TILE(1, 4);
            }
            if (panels - p >= 2) { /* a lone panel cannot hide the latency of its chain: take the rest together */
                if (panels - p == 3) {
                    FC_RUN_TILE(1, 3);
                } else {
                    FC_RUN_TILE(1, 2);
                }
            }
            while (p < panels) {
                FC_RUN_TILE(1, 1);
            }
            break;
            FC_CASE(2, 2)
            FC_CASE(3, 2)
            FC_CASE(4, FC_PANELS_4)
            FC_CASE(5, FC_PANELS_4)
            FC_CASE(6, FC_PANELS_4)
        }
        x += height * ld_x;
        acc += height * ld_acc;
        rows -= height;
    }
}
#undef FC_DTYPE
