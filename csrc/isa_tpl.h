/* The body of every isa_<isa>.c: the kernels written over that set's primitives, and their table. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels.h"

#define FC_NAME_(name, isa) fc_##name##_##isa
#define FC_NAME__(name, isa) FC_NAME_(name, isa)
#define FC_NAME(name) FC_NAME__(name, FC_ISA)

#include "linear_tpl.h"

#include "elementwise_tpl.h"

#include "attention_tpl.h"

#include "ssm_tpl.h"

#define FC_TABLE__(isa) fc_kernels_##isa
#define FC_TABLE_(isa) FC_TABLE__(isa)
#define FC_ENTRY(type, name, args) .name = FC_NAME(name),
const fc_kernels FC_TABLE_(FC_ISA) = {FC_KERNEL_LIST(FC_ENTRY)};
