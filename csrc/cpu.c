#define _DEFAULT_SOURCE
#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

/* The registers that the operating system saves on a context switch. */
static uint64_t enabled_state(void)
{
    unsigned eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (uint64_t)edx << 32 | eax;
}

int fc_cpu_has_avx2(void)
{
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
        return 0;
    }
    const unsigned wanted = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if ((ecx & wanted) != wanted || (enabled_state() & 6) != 6) {
        return 0;
    }
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & bit_AVX2);
}

int fc_cpu_has_avx512(void)
{
    unsigned eax, ebx, ecx, edx;
    const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512VL;
    const uint64_t state = 0xe6; /* xmm, ymm, mask registers, both halves of zmm */
    return fc_cpu_has_avx2() && (enabled_state() & state) == state && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           (ebx & wanted) == wanted;
}

int fc_cpu_has_avx512vnni(void)
{
    unsigned eax, ebx, ecx, edx;
    return fc_cpu_has_avx512() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ecx & bit_AVX512VNNI);
}

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

int fc_cpu_has_avx512amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILE_DATA = 18 };
    unsigned eax, ebx, ecx, edx;
    const unsigned wanted = 1u << 24 | 1u << 25; /* tiles, and their products of bytes */
    const uint64_t state = 3u << 17;             /* their shapes and data */
    return fc_cpu_has_avx512vnni() && (enabled_state() & state) == state && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           (edx & wanted) == wanted && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}
#else
int fc_cpu_has_avx512amx(void) { return 0; }
#endif
#else
int fc_cpu_has_avx512amx(void) { return 0; }
int fc_cpu_has_avx512vnni(void) { return 0; }
int fc_cpu_has_avx2(void) { return 0; }
int fc_cpu_has_avx512(void) { return 0; }
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
int fc_cpu_has_neondot(void) { return (getauxval(AT_HWCAP) >> 20) & 1; }                           /* HWCAP_ASIMDDP */
int fc_cpu_has_neoni8mm(void) { return fc_cpu_has_neondot() && (getauxval(AT_HWCAP2) >> 13) & 1; } /* HWCAP2_I8MM */
#elif defined(__aarch64__) && defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>
static int has(const char *feature)
{
    int yes = 0;
    size_t size = sizeof yes;
    return sysctlbyname(feature, &yes, &size, NULL, 0) == 0 && yes;
}
int fc_cpu_has_neondot(void) { return has("hw.optional.arm.FEAT_DotProd"); }
int fc_cpu_has_neoni8mm(void) { return fc_cpu_has_neondot() && has("hw.optional.arm.FEAT_I8MM"); }
#else
int fc_cpu_has_neondot(void) { return 0; }
int fc_cpu_has_neoni8mm(void) { return 0; }
#endif
