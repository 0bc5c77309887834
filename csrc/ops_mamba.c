/* The Mamba-2 mixer between its two projections. */
#include <string.h>

#include "op.h"

/* This op's part of a sequence's recurrent state. */
static float *op_state(const team_member *m, const fc_op *op, int seq)
{
    const fc_kv_cache *kv = &m->step->kv;
    return (float *)(kv->base + m->step->state_blocks[seq] * kv->block_bytes) + op->state_floats;
}

/* The inputs before the first row are in the state, which takes the last ones in the end; [d_conv - 1][padded n]. */
void fc_run_conv(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_src, ld_dst, ld = fc_pad(op->n);
    const float *src = fc_buffer_rows(m, op->src, &ld_src) + op->column;
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    range panels = fc_share(m, fc_panels(op->n));
    int first = panels.begin * FC_LANES, end = panels.end * FC_LANES < op->n ? panels.end * FC_LANES : op->n;
    size_t bytes = (size_t)(end - first) * sizeof(float);
    int before = op->d_conv - 1;
    for (int seq = 0; seq < step->num_seqs && end > first; seq++) {
        int row = step->seq_rows[seq], rows = step->seq_rows[seq + 1] - row;
        float *state = before ? op_state(m, op, seq) + first : NULL; /* a kernel of one tap has none */
        const float *x = src + row * ld_src + first;
        for (int k = 0; k < before && step->seq_pos[seq] == 0; k++) {
            memset(state + k * ld, 0, bytes);
        }
        for (int t = 0; t < rows; t++) {
            const float *taps[FC_MAX_D_CONV];
            for (int k = 0; k < op->d_conv; k++) {
                int at = t - before + k;
                taps[k] = at < 0 ? state + (at + before) * ld : x + at * ld_src;
            }
            m->run->kernels->conv_row(taps, op->d_conv, op->conv + first, ld, op->bias ? op->bias + first : NULL, end - first,
                                      dst + (row + t) * ld_dst + first);
        }
        for (int k = 0; k < before; k++) {
            int at = rows - before + k;
            memcpy(state + k * ld, at < 0 ? state + (at + before) * ld : x + at * ld_src, bytes);
        }
    }
}

void fc_run_time_steps(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = fc_buffer_rows(m, op->src, &ld_src) + op->column;
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    range rows = fc_share(m, m->step->num_rows);
    for (int r = rows.begin; r < rows.end; r++) {
        float *to = dst + r * ld_dst;
        m->run->kernels->time_steps(src + r * ld_src, op->bias, op->rate, op->n, op->low, op->high, to, to + op->n);
    }
}

/* Shares are tiles of 16 dims of a head, taken two at a time where both are the thread's. */
void fc_run_scan(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_src, ld_steps, ld_dst, ld_gate = 0;
    const float *src = fc_buffer_rows(m, op->src, &ld_src), *steps = fc_buffer_rows(m, op->src2, &ld_steps);
    const float *gate = op->gate == FC_NO_BUFFER ? NULL : fc_buffer_rows(m, op->gate, &ld_gate);
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    int tiles = fc_panels(op->head_dim), features = op->num_heads * op->head_dim;
    range mine = fc_share(m, op->num_heads * tiles);
    for (int i = mine.begin; i < mine.end;) {
        int head = i / tiles, tile = i % tiles, pair = tile + 1 < tiles && i + 1 < mine.end;
        int group = head / (op->num_heads / op->num_groups), dims = op->head_dim - tile * FC_LANES;
        ptrdiff_t column = (ptrdiff_t)head * op->head_dim + tile * FC_LANES;
        dims = dims < (1 + pair) * FC_LANES ? dims : (1 + pair) * FC_LANES;
        for (int seq = 0; seq < step->num_seqs; seq++) {
            ptrdiff_t row = step->seq_rows[seq];
            fc_scan_task task = {
                .x = src + row * ld_src + column,
                .B = src + row * ld_src + features + group * op->d_state,
                .C = src + row * ld_src + features + (op->num_groups + group) * op->d_state,
                .step = steps + row * ld_steps + head,
                .decay = steps + row * ld_steps + op->num_heads + head,
                .gate = gate ? gate + row * ld_gate + column : NULL,
                .ld_x = ld_src,
                .ld_step = ld_steps,
                .ld_gate = ld_gate,
                .ld_y = ld_dst,
                .skip = op->skip[head],
                .tokens = step->seq_rows[seq + 1] - step->seq_rows[seq],
                .dims = dims,
                .d_state = op->d_state,
                .state = op_state(m, op, seq) + (ptrdiff_t)i * op->d_state * FC_LANES,
                .y = dst + row * ld_dst + column,
            };
            if (step->seq_pos[seq] == 0) {
                memset(task.state, 0, (size_t)(1 + pair) * (size_t)op->d_state * FC_LANES * sizeof(float));
            }
            m->run->kernels->scan(&task);
        }
        i += 1 + pair;
    }
}

void fc_run_gated_norm(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_gate, ld_dst;
    const float *src = fc_buffer_rows(m, op->src, &ld_src), *gate = fc_buffer_rows(m, op->gate, &ld_gate);
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    int size = op->n / op->num_groups;
    range mine = fc_share(m, m->step->num_rows * op->num_groups); /* (row, group) */
    for (int i = mine.begin; i < mine.end; i++) {
        ptrdiff_t row = i / op->num_groups, column = (ptrdiff_t)(i % op->num_groups) * size;
        m->run->kernels->gated_norm(src + row * ld_src + column, gate + row * ld_gate + column, op->norm + column, size,
                                    op->eps, op->norm_before_gate, dst + row * ld_dst + column);
    }
}
