/* What the body of every isa_<isa>.c begins with: names of its functions, inlining and unrolling. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels.h"

#define FC_NAME_(name, isa) fc_##name##_##isa
#define FC_NAME__(name, isa) FC_NAME_(name, isa)
#define FC_NAME(name) FC_NAME__(name, FC_ISA)

#define FC_TABLE__(isa) fc_kernels_##isa
#define FC_TABLE_(isa) FC_TABLE__(isa)
#define FC_TABLE FC_TABLE_(FC_ISA)

#define FC_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define FC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FC_UNROLL _Pragma("GCC unroll 16")
#endif
