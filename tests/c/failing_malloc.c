/* Preloaded into a process: one request for memory of a chosen library is refused. Linux with glibc.
 *
 *   refuse_request(n, library)   the n-th request (from 1) by code of a library whose path holds this word; 0 refuses none
 *   requests_seen()              such requests since then */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static char word[64];
static atomic_long refused, seen;

void refuse_request(long n, const char *library)
{
    atomic_store(&refused, 0);
    strncpy(word, library, sizeof word - 1);
    atomic_store(&seen, 0);
    atomic_store(&refused, n);
}

long requests_seen(void) { return atomic_load(&seen); }

static int is_refused(const void *caller)
{
    Dl_info info;
    if (atomic_load(&refused) == 0 || !dladdr(caller, &info) || !strstr(info.dli_fname, word)) {
        return 0;
    }
    return atomic_fetch_add(&seen, 1) + 1 == atomic_load(&refused);
}

#define REFUSE(nothing)                            \
    if (is_refused(__builtin_return_address(0))) { \
        errno = ENOMEM;                            \
        return nothing;                            \
    }

void *malloc(size_t size)
{
    REFUSE(NULL)
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    REFUSE(NULL)
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    REFUSE(NULL)
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    REFUSE(NULL)
    return __libc_memalign(alignment, size);
}

void *mmap64(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    REFUSE(MAP_FAILED)
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    REFUSE(MAP_FAILED)
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}
