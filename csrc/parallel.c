/* The only place that starts threads: one OpenMP region a call. */
#include "parallel.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>

#if defined(__x86_64__) || defined(__i386__)
#define FC_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define FC_PAUSE() __asm__ volatile("yield")
#else
#define FC_PAUSE() ((void)0)
#endif

/* A child of fork has only the thread that forked, so the pool of that thread is taken down first and rebuilt by whoever needs it. */
static void release_pool(void) { omp_pause_resource_all(omp_pause_soft); }

static void register_release(void) { pthread_atfork(release_pool, NULL, NULL); }

static void watch_fork(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_release);
}

void fc_parallel(int num_threads, void (*body)(void *, int, int), void *data)
{
    if (num_threads <= 1) {
        body(data, 0, 1);
        return;
    }
    watch_fork();
#pragma omp parallel num_threads(num_threads)
    {
        body(data, omp_get_thread_num(), omp_get_num_threads());
    }
}

void fc_barrier_wait(fc_barrier *barrier, int num_threads)
{
    enum { SPINS = 4000 };
    if (num_threads == 1) {
        return;
    }
    int generation = atomic_load_explicit(&barrier->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) == num_threads - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->generation, generation + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&barrier->generation, memory_order_acquire) == generation; spins++) {
        if (spins < SPINS) {
            FC_PAUSE();
        } else {
            sched_yield();
        }
    }
}
