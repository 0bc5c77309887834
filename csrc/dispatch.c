/* Which instruction set runs: an ordered table, best last; a set is usable when the machine has it and all its kernels reproduce the
 * scalar bits. A table may leave kernels out; they are those of the set before it, so a set that has more than another for some
 * kernels only is a row with these. */
#include "cpu.h"
#include "kernels.h"
#include "selfcheck.h"

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
    {"avx512vnni", fc_cpu_has_avx512vnni, &fc_kernels_avx512vnni},
    {"avx512amx", fc_cpu_has_avx512amx, &fc_kernels_avx512amx},
#elif defined(__aarch64__)
    {"neon", always, &fc_kernels_neon},
    {"neondot", fc_cpu_has_neondot, &fc_kernels_neondot},
    {"neoni8mm", fc_cpu_has_neoni8mm, &fc_kernels_neoni8mm},
#endif
};

enum { NUM_ISAS = sizeof isas / sizeof isas[0] };

/* The tables with what a set leaves out taken from the set below it. */
static fc_kernels complete[NUM_ISAS];
const fc_kernels *_Atomic fc_active = &complete[0];

static __attribute__((constructor)) void complete_tables(void)
{
    for (int i = 0; i < NUM_ISAS; i++) {
        complete[i] = *isas[i].kernels;
#define FC_TAKE_FROM_BELOW(type, name, args)     \
    if (!complete[i].name) {                     \
        complete[i].name = complete[i - 1].name; \
    }
        FC_KERNEL_LIST(FC_TAKE_FROM_BELOW)
#define FC_GEMM_BY_FORMAT(A, CODE, name, ...) complete[i].gemm[FC_##CODE] = complete[i].gemm_##name;
        FC_FORMATS(FC_GEMM_BY_FORMAT, )
    }
}

int fc_num_isas(void) { return NUM_ISAS; }
const char *fc_isa_name(int i) { return isas[i].name; }

int fc_isa_usable(int i)
{
    static _Atomic signed char verdicts[NUM_ISAS]; /* 1 is yes, -1 no, 0 not known */
    if (i > 0 && verdicts[i] == 0) {
        verdicts[i] = isas[i].supported() && fc_reproduces(&complete[0], &complete[i]) ? 1 : -1;
    }
    return i == 0 || verdicts[i] > 0;
}

int fc_isa_active(void) { return (int)(fc_active - complete); }
void fc_isa_use(int i) { fc_active = &complete[i]; }

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
