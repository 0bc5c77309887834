/* Threads: a team for one call, and a barrier inside it. */
#ifndef FC_PARALLEL_H
#define FC_PARALLEL_H

#include <stdatomic.h>

/* body(data, thread, num_threads) on every thread of a team; returns when all have. The team has num_threads threads, or as many as
 * the system starts: at least the calling one. */
void fc_parallel(int num_threads, void (*body)(void *, int, int), void *data);

typedef struct {
    atomic_int arrived, generation;
} fc_barrier;

/* All of num_threads threads meet here. Spins for a bounded time, then yields its time slice between looks. */
void fc_barrier_wait(fc_barrier *barrier, int num_threads);

#endif
