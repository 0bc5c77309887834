#include "selfcheck.h"

#include <pthread.h>

uint64_t fc_checksum(fc_check *c, void (*check)(fc_check *))
{
    c->state = 12345;
    c->hash = 14695981039346656037u;
    c->restart(c);
    check(c);
    c->restart(c);
    return c->hash;
}

/* Memory of the self-check, one thread at a time. */
static uint8_t memory[1 << 18] __attribute__((aligned(64)));
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
    fc_check check;
    size_t used;
} quick_check;

static void *take(fc_check *c, size_t bytes)
{
    size_t *used = &((quick_check *)c)->used, from = *used;
    *used += (bytes + 63) / 64 * 64;
    return memory + from;
}

static void restart(fc_check *c) { ((quick_check *)c)->used = 0; }

#define FC_COUNT(type, name, args) +1
enum { NUM_KERNELS = FC_KERNEL_LIST(FC_COUNT) };

int fc_reproduces(const fc_kernels *expected, const fc_kernels *kernels)
{
    static uint64_t sums[NUM_KERNELS]; /* of the kernels of `expected`, once they are known */
    static const fc_kernels *known;
    quick_check scalar = {{.kernels = expected, .take = take, .restart = restart}, 0}, other = scalar;
    other.check.kernels = kernels;
    int i = 0, same = 1;
    pthread_mutex_lock(&lock);
#define FC_COMPARE(type, name, args)                                                                  \
    if (known != expected) {                                                                          \
        sums[i] = fc_checksum(&scalar.check, fc_check_##name);                                        \
    }                                                                                                 \
    same &= kernels->name == expected->name || fc_checksum(&other.check, fc_check_##name) == sums[i]; \
    i++;
    FC_KERNEL_LIST(FC_COMPARE)
    known = expected;
    pthread_mutex_unlock(&lock);
    return same && !other.check.failed;
}
