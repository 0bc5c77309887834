#if defined(__aarch64__)
#include "simd_neon.h"

#include "isa_tpl.h"
#endif
