/* One check a kernel, on fixed pseudo-random inputs: a checksum of the bits of what comes out, which must be the same on every
 * instruction set, compiler and machine. A set is used only where a quick run of all checks gives scalar's. */
#ifndef FC_SELFCHECK_H
#define FC_SELFCHECK_H

#include "kernels.h"

typedef struct fc_check fc_check;
struct fc_check {
    const fc_kernels *kernels;
    int thorough; /* all sizes, also those that take seconds */
    void *(*take)(fc_check *, size_t bytes);
    void (*restart)(fc_check *); /* nothing taken before is used any more */
    uint32_t state;
    uint64_t hash;
    const char *failed; /* what broke a law within one set, or NULL */
};

uint64_t fc_checksum(fc_check *c, void (*check)(fc_check *));

#define FC_CHECK_OF(type, name, args) void fc_check_##name(fc_check *c);
FC_KERNEL_LIST(FC_CHECK_OF)
#undef FC_CHECK_OF

/* Whether two complete tables give the same bits. */
int fc_reproduces(const fc_kernels *expected, const fc_kernels *kernels);

#endif
