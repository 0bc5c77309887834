#define FC_TARGET "amx-tile,amx-int8,avx512vnni,avx512f,avx512bw,avx512vl,avx2,fma,f16c"
#define FC_SIMD "simd_avx512amx.h"
#define FC_BODY "isa_quantised_tpl.h"
#include "isa_x86_tpl.h"
