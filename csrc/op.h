/* What the drivers of the ops share: the state of a step, who takes which share of an op, and where buffers lie. */
#ifndef FC_OP_H
#define FC_OP_H

#include <stdatomic.h>

#include "kernels.h"
#include "parallel.h"

enum {
    NORM_ROWS = 8, /* up to here each thread prepares the source rows for itself instead of meeting the others */
    TILE_ROWS = 6, /* up to here a thread takes many panels a call, beyond it two */
    PANELS_FEW = 16,
    PANELS_MANY = 2,
    SPLIT_TOKENS = 4, /* sequences with more rows than this in a step do not split their context over threads */
    SPLIT_ROWS = 16,  /* rows of a step whose context may be split */
};

/* One step under way. The kernels are those of the instruction set in use when it began. */
typedef struct {
    const fc_program *program;
    const fc_step *step;
    const fc_kernels *kernels;
    int num_ops, split;
    atomic_int *next;                /* items handed out, per op */
    atomic_int stop_at;              /* no thread starts an op behind a barrier from this index on */
    _Alignas(64) fc_barrier barrier; /* written at every meeting, in a cache line apart from what is read all the time */
} run_state;

typedef struct {
    run_state *run;
    const fc_step *step;
    int thread, num_threads;
    float *scratch;
} team_member;

/* The best of the columns that one thread looked at. */
typedef struct {
    float value;
    int32_t index; /* -1: some value is not finite */
} best_id;

/* Each thread calls the driver of every op, in order: fc_run_embed, ... */
#define FC_DRIVER(KIND, name) void fc_run_##name(const team_member *m, const fc_op *op);
FC_OP_LIST(FC_DRIVER)
#undef FC_DRIVER

/* ---- parts of the workspace (program.c) */

/* Floats of the widest source row: of a buffer, or quantised, which is shorter but for its last group. */
size_t fc_source_width(const fc_program *program);
float *fc_shared_rows(const team_member *m); /* [row_capacity][widest source row], for prepared ones */
float *fc_partials(const team_member *m);    /* of attention over split contexts */
best_id *fc_bests(const team_member *m);     /* [num_out][num_threads] */

/* Buffer b, [rows][*ld]. */
float *fc_buffer_rows(const team_member *m, int b, ptrdiff_t *ld);

/* Floats from one prepared source row of a linear map to the next. */
static inline ptrdiff_t fc_source_row_floats(const fc_op *op)
{
    fc_source source = fc_format_of(op->dtype)->source;
    return source == FC_SOURCE_F32 ? fc_row_floats(op->k) : fc_source_floats(source, op->k);
}

/* ---- shares */

typedef struct {
    int begin, end;
} range;

static inline range fc_share(const team_member *m, int items)
{
    return (range){(int)((int64_t)items * m->thread / m->num_threads),
                   (int)((int64_t)items * (m->thread + 1) / m->num_threads)};
}

static inline void fc_meet(const team_member *m) { fc_barrier_wait(&m->run->barrier, m->num_threads); }

/* ---- rows */

static inline int fc_row_set_of(const team_member *m, int b)
{
    return b == FC_BUFFER_OUTPUT ? FC_ROWS_OUT : m->run->program->buffers[b].row_set;
}

/* Rows of buffer b in this step. */
static inline int fc_num_rows(const team_member *m, int b)
{
    return fc_row_set_of(m, b) == FC_ROWS_ALL ? m->step->num_rows : m->step->num_out;
}

/* Whether an op takes its rows out of a buffer that holds all rows of the step. */
static inline int fc_gathers(const team_member *m, const fc_op *op)
{
    return fc_row_set_of(m, op->src) == FC_ROWS_ALL && fc_row_set_of(m, op->dst) == FC_ROWS_OUT;
}

/* Row of the source that row r of the destination is made from. */
static inline int fc_source_row(const team_member *m, const fc_op *op, int r)
{
    return fc_gathers(m, op) ? m->step->out_rows[r] : r;
}

static inline const int32_t *fc_block_table(const fc_step *step, int seq)
{
    return step->block_tables + (ptrdiff_t)seq * step->max_blocks;
}

static inline int fc_sequence_length(const fc_step *step, int seq)
{
    return step->seq_pos[seq] + step->seq_rows[seq + 1] - step->seq_rows[seq];
}

/* Whether this step cuts the contexts of attention over threads (ops_attention.c). */
int fc_splits_context(const fc_program *program, const fc_step *step, int num_threads);
/* The tail of a linear map to q | k | v: norms, RoPE, cache, for the heads [heads.begin, heads.end). */
void fc_finish_heads(const team_member *m, const fc_op *op, range heads, float *qkv, ptrdiff_t ld);

#endif
