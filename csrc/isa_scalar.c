#include "simd_scalar.h"

#include "isa_tpl.h"
