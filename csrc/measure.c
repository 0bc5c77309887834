/* What the machine can do: the limits that benchmarks are held against. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <time.h>

#include "kernels.h"
#include "parallel.h"

double fc_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    const uint8_t *data;
    size_t bytes;
    int streams;
} read_job;

/* A cache line that stays in registers whatever the instruction set, and the bytes taken of a stream at a time. */
typedef uint64_t lanes __attribute__((vector_size(64)));
enum { STRIDE = 256 };

static void read_range(void *data, int thread, int num_threads)
{
    read_job *job = (read_job *)data;
    size_t part = job->bytes / (size_t)num_threads / (size_t)job->streams / STRIDE * STRIDE;
    const uint8_t *base = job->data + part * (size_t)job->streams * (size_t)thread;
    lanes sum = {0};
    for (size_t i = 0; i + STRIDE <= part; i += STRIDE) {
        for (int s = 0; s < job->streams; s++) {
            const uint8_t *at = base + (size_t)s * part + i;
            for (size_t j = 0; j < STRIDE; j += sizeof(lanes)) {
                lanes line;
                memcpy(&line, at + j, sizeof line);
                sum += line;
            }
        }
    }
    for (int j = 1; j < 8; j++) {
        sum[0] += sum[j];
    }
    volatile uint64_t keep = sum[0]; /* so that the loop is not dropped */
    (void)keep;
}

double fc_time_read(const void *data, size_t bytes, int streams, int num_threads)
{
    read_job job = {(const uint8_t *)data, bytes, streams};
    double start = fc_seconds();
    fc_parallel(num_threads, read_range, &job);
    return fc_seconds() - start;
}

/* The inner loop of prefill on operands that stay in L1: what the machine's multipliers give to this program at best. */
enum { PEAK_K = 256, PEAK_REPEATS = 20000 };

typedef struct {
    float x[6 * PEAK_K], panel[16 * PEAK_K];
} peak_operands;

static void peak_range(void *data, int thread, int num_threads)
{
    (void)thread;
    (void)num_threads;
    const peak_operands *operands = (const peak_operands *)data;
    float acc[6 * 16];
    for (int i = 0; i < PEAK_REPEATS; i++) {
        fc_active->gemm_f32(operands->x, PEAK_K, 6, operands->panel, 1, PEAK_K, acc, 16);
    }
}

double fc_flops_peak(int num_threads)
{
    peak_operands operands;
    for (int i = 0; i < 16 * PEAK_K; i++) {
        operands.panel[i] = 0.5f;
        operands.x[i % (6 * PEAK_K)] = 1.0f;
    }
    double start = fc_seconds();
    fc_parallel(num_threads, peak_range, &operands);
    return 2.0 * 6 * 16 * PEAK_K * PEAK_REPEATS * num_threads / (fc_seconds() - start);
}
