/* The logits that a mask of tokens leaves. */
#include <math.h>

#include "fastcore.h"

/* A bit per lane: compilers make vectors of a comparison with these, and not of shifts by a lane's number. */
#define FC_BITS4(i) 1u << (i), 1u << (i + 1), 1u << (i + 2), 1u << (i + 3)
static const uint32_t lane_bit[32] = {FC_BITS4(0),  FC_BITS4(4),  FC_BITS4(8),  FC_BITS4(12),
                                      FC_BITS4(16), FC_BITS4(20), FC_BITS4(24), FC_BITS4(28)};

void fc_mask_logits(const float *logits, const uint32_t *allowed, ptrdiff_t n, float *out)
{
    ptrdiff_t first = 0;
    for (; first + 32 <= n; first += 32) {
        uint32_t word = allowed[first / 32];
        for (int i = 0; i < 32; i++) {
            float logit = logits[first + i];
            out[first + i] = (word & lane_bit[i]) != 0 ? logit : -INFINITY;
        }
    }
    for (; first < n; first++) {
        out[first] = (allowed[first / 32] & lane_bit[first % 32]) != 0 ? logits[first] : -INFINITY;
    }
}
