/* The only place that starts threads: one OpenMP region a call. */
#include "parallel.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include "fastcore.h"

#if defined(__x86_64__) || defined(__i386__)
#define FC_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define FC_PAUSE() __asm__ volatile("yield")
#else
#define FC_PAUSE() ((void)0)
#endif

/* Threads of the pool that OpenMP keeps for the calling thread: its last team. */
static _Thread_local int pool_threads = 1;

/* A child of fork has only the thread that forked, so the pool of that thread is taken down first and rebuilt by whoever needs it. */
static void release_pool(void)
{
    omp_pause_resource_all(omp_pause_soft);
    pool_threads = 1;
}

static void register_release(void) { pthread_atfork(release_pool, NULL, NULL); }

static void watch_fork(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_release);
}

static void *wait_for(void *mutex)
{
    pthread_mutex_lock((pthread_mutex_t *)mutex);
    pthread_mutex_unlock((pthread_mutex_t *)mutex);
    return NULL;
}

/* How many threads, up to `wanted`, the system lets this process start now. OpenMP ends the process where one fails to start, so they
 * are tried before it; what they release, stacks too, is there for OpenMP's own. */
static int startable(int wanted)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[FC_MAX_THREADS];
    int count = 0;
    pthread_mutex_lock(&mutex);
    while (count < wanted && pthread_create(&threads[count], NULL, wait_for, &mutex) == 0) {
        count++;
    }
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    return count;
}

/* The thread sanitizer does not see how OpenMP starts and ends a team, so it is told: what was written before a team starts is seen by
 * all of it, and what the team writes is seen by who waits for its end. */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *), __tsan_release(void *);
#define FC_PASS_ON(place) __tsan_release(place)
#define FC_TAKE_OVER(place) __tsan_acquire(place)
#else
#define FC_PASS_ON(place) ((void)(place))
#define FC_TAKE_OVER(place) ((void)(place))
#endif

void fc_parallel(int num_threads, void (*body)(void *, int, int), void *data)
{
    char start, end; /* places for the above */
    if (num_threads > 1) {
        watch_fork();
        num_threads = num_threads < FC_MAX_THREADS ? num_threads : FC_MAX_THREADS;
        num_threads = num_threads > pool_threads ? pool_threads + startable(num_threads - pool_threads) : num_threads;
    }
    if (num_threads <= 1) {
        body(data, 0, 1);
        return;
    }
    pool_threads = num_threads;
    FC_PASS_ON(&start);
#pragma omp parallel num_threads(num_threads)
    {
        FC_TAKE_OVER(&start);
        body(data, omp_get_thread_num(), omp_get_num_threads());
        FC_PASS_ON(&end);
    }
    FC_TAKE_OVER(&end);
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
