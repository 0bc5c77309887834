#define FC_TARGET "avx2,fma,f16c"
#define FC_SIMD "simd_avx2.h"
#define FC_BODY "isa_tpl.h"
#include "isa_x86_tpl.h"
