#define FC_TARGET "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
#define FC_SIMD "simd_avx512.h"
#define FC_BODY "isa_tpl.h"
#include "isa_x86_tpl.h"
