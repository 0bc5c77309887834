#define FC_TARGET "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
#define FC_SIMD "simd_avx512.h"
#include "isa_x86_tpl.h"
