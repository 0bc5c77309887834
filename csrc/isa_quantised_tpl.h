/* The body of an isa_<isa>.c whose set has more than another for quantised maps only: the rest is left to the set before it. */
#include "isa_names.h"

#include "quantised_gemm_tpl.h"

const fc_kernels FC_TABLE = {.gemm_int8 = FC_NAME(gemm_int8), .gemm_int4 = FC_NAME(gemm_int4)};
