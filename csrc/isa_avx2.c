#define FC_TARGET "avx2,fma,f16c"
#define FC_SIMD "simd_avx2.h"
#include "isa_x86_tpl.h"
