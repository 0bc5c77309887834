/* The body of every isa_<isa>.c: the kernels written over that set's primitives, and their table. */
#include "isa_names.h"

#include "linear_tpl.h"

#include "elementwise_tpl.h"

#include "attention_tpl.h"

#include "ssm_tpl.h"

#include "quantised_tpl.h"

#include "quantised_gemm_tpl.h"

#define FC_ENTRY(type, name, args) .name = FC_NAME(name),
const fc_kernels FC_TABLE = {FC_KERNEL_LIST(FC_ENTRY)};
