/* IEEE half precision in plain C, rounding to nearest even: the same bits as the F16C and NEON instructions. */
#ifndef FC_HALF_H
#define FC_HALF_H

#include <stdint.h>
#include <string.h>

static inline float fc_half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu, bits;
    if (exponent == 31) { /* infinity; a NaN becomes quiet */
        bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0);
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else if (mantissa) { /* subnormal: a normal float */
        int shift = __builtin_clz(mantissa) - 21;
        bits = sign | ((uint32_t)(113 - shift) << 23) | (((mantissa << shift) & 0x3ffu) << 13);
    } else {
        bits = sign;
    }
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t fc_float_to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        uint32_t mantissa = (magnitude >> 13) & 0x3ffu;
        return (uint16_t)(sign | 0x7c00u | (magnitude > 0x7f800000u ? mantissa | 0x200u : 0));
    }
    if (magnitude >= 0x477ff000u) { /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    }
    uint32_t shift, base;
    if (magnitude >= 0x38800000u) { /* normal half */
        shift = 13;
        base = magnitude - 0x38000000u;
    } else if (magnitude >= 0x33000000u) { /* subnormal half */
        shift = 126 - (magnitude >> 23);
        base = (magnitude & 0x7fffffu) | 0x800000u;
    } else {
        return (uint16_t)sign;
    }
    uint32_t result = base >> shift, rest = base & ((1u << shift) - 1), half = 1u << (shift - 1);
    result += rest > half || (rest == half && (result & 1));
    return (uint16_t)(sign | result);
}

#endif
