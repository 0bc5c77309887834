/* Which instruction set runs: an ordered table, best last; a set is usable when the machine has it and a self-check on it reproduces
 * the scalar bits. */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "kernels.h"

static int always(void) { return 1; }

static const struct {
    const char *name;
    int (*supported)(void);
    const fc_kernels *kernels;
} isas[] = {
    {"scalar", always, &fc_kernels_scalar},
#if defined(__x86_64__) || defined(_M_X64)
    {"avx2", fc_cpu_has_avx2, &fc_kernels_avx2},
    {"avx512", fc_cpu_has_avx512, &fc_kernels_avx512},
#elif defined(__aarch64__)
    {"neon", always, &fc_kernels_neon},
#endif
};

const fc_kernels *_Atomic fc_active = &fc_kernels_scalar;

int fc_num_isas(void) { return (int)(sizeof isas / sizeof isas[0]); }
const char *fc_isa_name(int i) { return isas[i].name; }
void fc_isa_use(int i) { fc_active = isas[i].kernels; }

int fc_isa_active(void)
{
    int i = 0;
    while (isas[i].kernels != fc_active) {
        i++;
    }
    return i;
}

enum { CHECK_K = 37, CHECK_ROWS = 11, CHECK_PANELS = 7 };

/* A small fixed computation over every kind of primitive. */
static void self_check(const fc_kernels *kernels, float *result)
{
    float x[CHECK_ROWS * CHECK_K], panels[CHECK_PANELS * CHECK_K * 16], y[CHECK_PANELS * 16];
    uint32_t state = 1;
    for (int i = 0; i < CHECK_ROWS * CHECK_K; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-29f;
    }
    for (int i = 0; i < CHECK_PANELS * CHECK_K * 16; i++) {
        state = state * 1664525u + 1013904223u;
        uint32_t bits = 0x3c003c00u ^ (state & 0x83ff83ffu); /* moderate numbers read as f32, as bf16 and as f16 */
        memcpy(&panels[i], &bits, sizeof bits);
    }
    kernels->gemm_f32(x, CHECK_K, CHECK_ROWS, panels, CHECK_PANELS, CHECK_K, result, CHECK_PANELS * 16);
    result += CHECK_ROWS * CHECK_PANELS * 16;
    kernels->gemm_bf16(x, CHECK_K, CHECK_ROWS, panels, CHECK_PANELS, CHECK_K, result, CHECK_PANELS * 16);
    result += CHECK_ROWS * CHECK_PANELS * 16;
    kernels->gemm_f16(x, CHECK_K, CHECK_ROWS, panels, CHECK_PANELS, CHECK_K, result, CHECK_PANELS * 16);
    kernels->silu(result, y, CHECK_PANELS * 16);
    result += CHECK_ROWS * CHECK_PANELS * 16;
    kernels->rms_norm(y, panels, CHECK_PANELS * 16, 1e-6f, 1.0f, result);
    result += CHECK_PANELS * 16;
    kernels->rope(x, y, y + 33, 66, result);
    kernels->write_kv(x, 16, FC_F16, 1, (uint8_t *)(result + 66), 0, 0); /* sixteen halves */
}

enum { CHECK_FLOATS = 3 * CHECK_ROWS * CHECK_PANELS * 16 + CHECK_PANELS * 16 + 66 + 8 };

int fc_isa_usable(int i)
{
    if (!isas[i].supported()) {
        return 0;
    }
    float expected[CHECK_FLOATS], found[CHECK_FLOATS];
    self_check(&fc_kernels_scalar, expected);
    self_check(isas[i].kernels, found);
    return memcmp(expected, found, sizeof expected) == 0;
}

void fc_exp(const float *x, float *out, ptrdiff_t n) { fc_active->exp(x, out, n); }
void fc_silu(const float *x, float *out, ptrdiff_t n) { fc_active->silu(x, out, n); }
void fc_softplus(const float *x, float *out, ptrdiff_t n) { fc_active->softplus(x, out, n); }
void fc_softmax_weights(const float *x, ptrdiff_t n, float shift, float scale, float *weights, double *sums)
{
    fc_active->softmax_weights(x, n, shift, scale, weights, sums);
}

double fc_sum_exp(const float *x, ptrdiff_t n, float shift, float scale) { return fc_active->sum_exp(x, n, shift, scale); }

int64_t fc_argmax(const float *x, ptrdiff_t n)
{
    int finite = 1;
    ptrdiff_t index = 0;
    fc_active->argmax(x, n, &index, &finite);
    return finite ? index : -1;
}
