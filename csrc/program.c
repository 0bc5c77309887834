/* Replays a recorded program over one step: the only place that knows the order of ops at run time. Every thread runs the whole list
 * and takes its share of each op; shares are ranges of outputs, never of a sum. */
#include "op.h"

_Static_assert(sizeof(atomic_int) == sizeof(float), "one counter fits where one float does");

/* ---- memory: the buffers, shared source rows, attention partials, items handed out of each op, each thread's best ids, a
 * scratch a thread */

size_t fc_source_width(const fc_program *program)
{
    size_t width = FC_LANES;
    for (int b = 0; b < program->num_buffers; b++) {
        width = (size_t)program->buffers[b].ld > width ? (size_t)program->buffers[b].ld : width;
    }
    return width + FC_GROUP;
}

size_t fc_buffer_offset(const fc_program *program, int b, int row_capacity)
{
    size_t floats = 0;
    for (int i = 0; i < b; i++) {
        floats += (size_t)program->buffers[i].ld * (size_t)row_capacity;
    }
    return floats;
}

static size_t partial_floats(const fc_program *program, int segment_capacity)
{
    size_t most = 0;
    for (int i = 0; i < program->num_ops; i++) {
        const fc_op *op = &program->ops[i];
        size_t row = (size_t)op->num_heads * (size_t)(fc_pad(op->head_dim) + 2);
        most = op->kind == FC_OP_ATTENTION && row > most ? row : most;
    }
    return most * SPLIT_ROWS * (size_t)segment_capacity;
}

static size_t best_floats(int row_capacity, int num_threads)
{
    return (size_t)row_capacity * (size_t)num_threads * (sizeof(best_id) / sizeof(float));
}

static size_t scratch_floats(const fc_program *program, int row_capacity)
{
    size_t rows = (NORM_ROWS + 1) * fc_source_width(program);
    size_t few = (size_t)TILE_ROWS * PANELS_FEW * FC_LANES, many = (size_t)row_capacity * PANELS_MANY * FC_LANES;
    size_t floats = rows + (few > many ? few : many);
    for (int i = 0; i < program->num_ops; i++) {
        const fc_op *op = &program->ops[i];
        size_t attention = op->kind == FC_OP_ATTENTION ? fc_attention_scratch_floats(op->head_dim) : 0;
        floats = attention > floats ? attention : floats;
    }
    return (floats + 63) / 64 * 64;
}

size_t fc_workspace_floats(const fc_program *program, int row_capacity, int segment_capacity, int num_threads)
{
    return fc_buffer_offset(program, program->num_buffers, row_capacity) + fc_source_width(program) * (size_t)row_capacity +
           partial_floats(program, segment_capacity) + (size_t)program->num_ops + best_floats(row_capacity, num_threads) + 64 +
           scratch_floats(program, row_capacity) * (size_t)num_threads;
}

float *fc_shared_rows(const team_member *m)
{
    const fc_program *program = m->run->program;
    return m->step->workspace + fc_buffer_offset(program, program->num_buffers, m->step->row_capacity);
}

float *fc_partials(const team_member *m)
{
    return fc_shared_rows(m) + fc_source_width(m->run->program) * (size_t)m->step->row_capacity;
}

static atomic_int *items_handed_out(const team_member *m)
{
    return (atomic_int *)(fc_partials(m) + partial_floats(m->run->program, m->step->segment_capacity));
}

best_id *fc_bests(const team_member *m) { return (best_id *)(items_handed_out(m) + m->run->program->num_ops); }

static float *scratch_of(const team_member *m)
{
    float *end = (float *)fc_bests(m) + best_floats(m->step->row_capacity, m->num_threads);
    end += 64 - (end - m->step->workspace) % 64;
    return end + scratch_floats(m->run->program, m->step->row_capacity) * (size_t)m->thread;
}

float *fc_buffer_rows(const team_member *m, int b, ptrdiff_t *ld)
{
    if (b == FC_BUFFER_OUTPUT) {
        *ld = m->step->ld_output;
        return m->step->output;
    }
    *ld = m->run->program->buffers[b].ld;
    return m->step->workspace + fc_buffer_offset(m->run->program, b, m->step->row_capacity);
}

/* ---- replay */

static const char *const names[] = {
#define FC_NAME_OF(KIND, name) #name,
    FC_OP_LIST(FC_NAME_OF)
#undef FC_NAME_OF
};

const char *fc_op_name(int kind) { return names[kind]; }

static void (*const drivers[])(const team_member *, const fc_op *) = {
#define FC_DRIVER_OF(KIND, name) fc_run_##name,
    FC_OP_LIST(FC_DRIVER_OF)
#undef FC_DRIVER_OF
};

static void run_thread(void *data, int thread, int num_threads)
{
    run_state *run = (run_state *)data;
    const fc_step *step = run->step;
    team_member m = {run, step, thread, num_threads, NULL};
    m.scratch = scratch_of(&m);
    double last = thread == 0 ? fc_seconds() : 0.0, polled = last;
    for (int i = 0; i < run->num_ops; i++) {
        const fc_op *op = &run->program->ops[i];
        if (op->barrier) {
            fc_meet(&m);
            if (atomic_load_explicit(&run->stop_at, memory_order_relaxed) <= i) {
                return;
            }
        }
        drivers[op->kind](&m, op);
        if (thread == 0 && (step->op_seconds || step->poll)) {
            double now = fc_seconds();
            if (step->op_seconds) {
                step->op_seconds[i] += now - last;
            }
            last = now;
            if (step->poll && now - polled > 0.05) {
                polled = now;
                if (step->poll(step->poll_data) && atomic_load(&run->stop_at) > i + 1) {
                    atomic_store_explicit(&run->stop_at, i + 1, memory_order_relaxed);
                }
            }
        }
    }
}

int fc_run(const fc_program *program, const fc_step *step, int num_threads)
{
    run_state run = {.program = program, .step = step, .kernels = fc_active};
    run.num_ops = step->num_ops < 0 ? program->num_ops : step->num_ops;
    run.split = fc_splits_context(program, step, num_threads);
    run.next = items_handed_out(&(team_member){.run = &run, .step = step});
    atomic_init(&run.stop_at, run.num_ops);
    for (int i = 0; i < program->num_ops; i++) {
        atomic_init(&run.next[i], 0);
    }
    fc_parallel(num_threads, run_thread, &run);
    return atomic_load(&run.stop_at) < run.num_ops;
}
