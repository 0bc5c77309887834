/* Replays a recorded program over one step: the only place that knows the order of ops at run time. Every thread runs the whole list
 * and takes its share of each op; shares are ranges of outputs, never of a sum. */
#include <stdatomic.h>
#include <string.h>

#include "kernels.h"
#include "parallel.h"

enum {
    NORM_ROWS = 8, /* up to here each thread normalises for itself instead of meeting the others */
    TILE_ROWS = 6, /* up to here a thread takes many panels a call, beyond it two */
    PANELS_FEW = 16,
    PANELS_MANY = 2,
    SPLIT_TOKENS = 4, /* sequences with more rows than this in a step do not split their context over threads */
    NO_COLUMNS = -2,  /* the id of a thread that had no columns to look at */
    SPLIT_ROWS = 16,  /* rows of a step whose context may be split */
};

typedef struct {
    const fc_program *program;
    const fc_step *step;
    int num_ops, split;
    fc_barrier barrier;
    atomic_int stop_at;          /* no thread starts an op behind a barrier from this index on */
    atomic_int next[FC_MAX_OPS]; /* items handed out, per op */
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

/* ---- memory: the buffers, a shared norm buffer, attention partials, each thread's best ids, one scratch per thread */

static size_t widest(const fc_program *program)
{
    size_t width = FC_LANES;
    for (int b = 0; b < program->num_buffers; b++) {
        width = (size_t)program->buffers[b].ld > width ? (size_t)program->buffers[b].ld : width;
    }
    return width;
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
    size_t norm = NORM_ROWS * widest(program);
    size_t few = (size_t)TILE_ROWS * PANELS_FEW * FC_LANES, many = (size_t)row_capacity * PANELS_MANY * FC_LANES;
    size_t linear = norm + (few > many ? few : many);
    for (int i = 0; i < program->num_ops; i++) {
        const fc_op *op = &program->ops[i];
        size_t attention = op->kind == FC_OP_ATTENTION ? fc_attention_scratch_floats(op->head_dim) : 0;
        linear = attention > linear ? attention : linear;
    }
    return (linear + 63) / 64 * 64;
}

size_t fc_workspace_floats(const fc_program *program, int row_capacity, int segment_capacity, int num_threads)
{
    return fc_buffer_offset(program, program->num_buffers, row_capacity) + widest(program) * (size_t)row_capacity +
           partial_floats(program, segment_capacity) + best_floats(row_capacity, num_threads) + 64 +
           scratch_floats(program, row_capacity) * (size_t)num_threads;
}

static float *shared_norm(const team_member *m)
{
    const fc_program *program = m->run->program;
    return m->step->workspace + fc_buffer_offset(program, program->num_buffers, m->step->row_capacity);
}

static float *partials(const team_member *m)
{
    return shared_norm(m) + widest(m->run->program) * (size_t)m->step->row_capacity;
}

static best_id *bests(const team_member *m)
{
    return (best_id *)(partials(m) + partial_floats(m->run->program, m->step->segment_capacity));
}

static float *buffer(const team_member *m, int b, ptrdiff_t *ld)
{
    if (b == FC_BUFFER_OUTPUT) {
        *ld = m->step->ld_output;
        return m->step->output;
    }
    *ld = m->run->program->buffers[b].ld;
    return m->step->workspace + fc_buffer_offset(m->run->program, b, m->step->row_capacity);
}

/* ---- shares */

typedef struct {
    int begin, end;
} range;

static range share(const team_member *m, int items)
{
    return (range){(int)((int64_t)items * m->thread / m->num_threads),
                   (int)((int64_t)items * (m->thread + 1) / m->num_threads)};
}

static void meet(const team_member *m) { fc_barrier_wait(&m->run->barrier, m->num_threads); }

static int num_rows(const fc_step *step, int row_set)
{
    return row_set == FC_ROWS_ALL ? step->num_rows : row_set == FC_ROWS_OUT ? step->num_out : step->num_seqs;
}

/* ---- ops */

static void run_embed(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld;
    float *dst = buffer(m, op->dst, &ld);
    range rows = share(m, m->step->num_rows);
    for (int r = rows.begin; r < rows.end; r++) {
        fc_active->embed_row(op->weights, op->dtype, op->k, m->step->token_ids[r], op->scale, dst + r * ld);
        memset(dst + r * ld + op->k, 0, (size_t)(ld - op->k) * sizeof(float));
    }
}

/* Row r of the op's rows in a source that holds all rows of the step. */
static int source_row(const fc_step *step, const fc_op *op, int r)
{
    return op->row_set == FC_ROWS_OUT ? step->out_rows[r] : r;
}

static void norm_rows(const team_member *m, const fc_op *op, range rows, const float *src, ptrdiff_t ld_src, float *dst,
                      ptrdiff_t ld_dst)
{
    for (int r = rows.begin; r < rows.end; r++) {
        fc_active->rms_norm(src + source_row(m->step, op, r) * ld_src, op->norm, op->k, op->eps, op->src_scale,
                            dst + r * ld_dst);
    }
}

static void run_norm(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = buffer(m, op->src, &ld_src);
    float *dst = buffer(m, op->dst, &ld_dst);
    norm_rows(m, op, share(m, num_rows(m->step, op->row_set)), src, ld_src, dst, ld_dst);
}

static const int32_t *block_table(const fc_step *step, int seq)
{
    return step->block_tables + (ptrdiff_t)seq * step->max_blocks;
}

/* The heads [heads.begin, heads.end) of q | k | v in `src`, for all rows. */
static void process_heads(const team_member *m, const fc_op *op, range heads, float *src, ptrdiff_t ld)
{
    const fc_step *step = m->step;
    const fc_kv_cache *kv = &step->kv;
    int head_dim = op->head_dim;
    for (int seq = 0; seq < step->num_seqs; seq++) {
        const int32_t *blocks = block_table(step, seq);
        for (int r = step->seq_rows[seq]; r < step->seq_rows[seq + 1]; r++) {
            int position = step->seq_pos[seq] + r - step->seq_rows[seq];
            const float *cos = step->rope_cos + (ptrdiff_t)r * (head_dim / 2);
            const float *sin = step->rope_sin + (ptrdiff_t)r * (head_dim / 2);
            uint8_t *layer = kv->base + blocks[position / FC_BLOCK_TOKENS] * kv->block_bytes + op->layer * kv->layer_bytes;
            for (int h = heads.begin; h < heads.end; h++) {
                float *x = src + r * ld + (ptrdiff_t)h * head_dim;
                int kv_head = h - op->num_heads, is_v = kv_head >= op->num_kv_heads;
                if (is_v) {
                    fc_active->write_kv(x, head_dim, kv->dtype, 1, layer + (kv_head - op->num_kv_heads) * kv->head_bytes,
                                        kv->v_offset, position);
                    continue;
                }
                const float *norm = kv_head < 0 ? op->q_norm : op->k_norm;
                float scale = kv_head < 0 ? 1.0f : op->key_scale;
                if (norm) {
                    fc_active->rms_norm(x, norm, head_dim, op->eps, scale, x);
                } else if (scale != 1.0f) {
                    for (int i = 0; i < head_dim; i++) {
                        x[i] *= scale;
                    }
                }
                fc_active->rope(x, cos, sin, head_dim, x);
                if (kv_head >= 0) {
                    fc_active->write_kv(x, head_dim, kv->dtype, 0, layer + kv_head * kv->head_bytes, kv->v_offset, position);
                }
            }
        }
    }
}

static void run_heads(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld;
    float *src = buffer(m, op->src, &ld);
    process_heads(m, op, share(m, op->num_heads + 2 * op->num_kv_heads), src, ld);
}

static void run_linear(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = buffer(m, op->src, &ld_src);
    float *dst = buffer(m, op->dst, &ld_dst), *scratch = m->scratch;
    int rows = num_rows(m->step, op->row_set);
    if (rows == 0) {
        return;
    }
    if (op->norm) {
        float *normed = rows <= NORM_ROWS ? scratch : shared_norm(m);
        ptrdiff_t ld = fc_row_floats(op->k);
        if (rows > NORM_ROWS && !op->barrier) { /* another thread may still read what an earlier op left there */
            meet(m);
        }
        norm_rows(m, op, rows <= NORM_ROWS ? (range){0, rows} : share(m, rows), src, ld_src, normed, ld);
        if (rows > NORM_ROWS) {
            meet(m);
        }
        src = normed;
        ld_src = ld;
        scratch += NORM_ROWS * widest(m->run->program);
    }

    fc_gemm *gemm = fc_active->gemm[op->dtype];
    ptrdiff_t panel_bytes = fc_panel_bytes(op->dtype, op->k);
    /* A share is whole heads when the heads are finished here, whole (gate, up) pairs for SWIGLU, else whole panels. */
    int panels_each = op->fused_heads ? op->head_dim / FC_LANES : op->epilogue == FC_SWIGLU ? 2 : 1;
    range units = share(m, fc_panels(op->n) / panels_each);
    int first = units.begin * panels_each, end = units.end * panels_each, step = rows <= TILE_ROWS ? PANELS_FEW : PANELS_MANY;
    ptrdiff_t ld_acc = (ptrdiff_t)step * FC_LANES;
    for (int p = first; p < end; p += step) {
        int panels = end - p < step ? end - p : step, column = p * FC_LANES;
        gemm(src, ld_src, rows, (const uint8_t *)op->weights + p * panel_bytes, panels, op->k, scratch, ld_acc);
        int columns = op->n - column < panels * FC_LANES ? op->n - column : panels * FC_LANES;
        const float *bias = op->bias ? op->bias + column : NULL;
        if (op->epilogue == FC_SWIGLU) {
            fc_active->swiglu_rows(scratch, ld_acc, rows, panels * FC_LANES / 2, bias, op->gate_scale, op->scale,
                                   dst + column / 2, ld_dst);
        } else {
            fc_active->store_rows(scratch, ld_acc, rows, columns, bias, op->column_scale ? op->column_scale + column : NULL,
                                  op->scale, op->epilogue == FC_ADD, dst + column, ld_dst);
        }
    }
    if (op->fused_heads) {
        process_heads(m, op, units, dst, ld_dst);
    }
}

static int num_segments(int positions) { return (positions + FC_SEGMENT_TOKENS - 1) / FC_SEGMENT_TOKENS; }

static int sequence_length(const fc_step *step, int seq)
{
    return step->seq_pos[seq] + step->seq_rows[seq + 1] - step->seq_rows[seq];
}

static fc_attention_task attention_of(const team_member *m, const fc_op *op, int seq, int head)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_q, ld_out;
    int row = step->seq_rows[seq], group = op->num_heads / op->num_kv_heads;
    const float *q = buffer(m, op->src, &ld_q);
    float *out = buffer(m, op->dst, &ld_out);
    return (fc_attention_task){
        .q = q + row * ld_q + (ptrdiff_t)head * group * op->head_dim,
        .ld_q = ld_q,
        .tokens = step->seq_rows[seq + 1] - row,
        .group = group,
        .head_dim = op->head_dim,
        .limit = step->seq_pos[seq] + (op->causal ? 1 : step->seq_rows[seq + 1] - row),
        .limit_step = op->causal ? 1 : 0,
        .score_scale = op->score_scale,
        .kv = &step->kv,
        .head_base = step->kv.base + op->layer * step->kv.layer_bytes + head * step->kv.head_bytes,
        .blocks = block_table(step, seq),
        .out = out + row * ld_out + (ptrdiff_t)head * group * op->head_dim,
        .ld_out = ld_out,
        .scratch = m->scratch,
    };
}

/* The same of `tokens` rows from row `first` of the sequence on. */
static fc_attention_task rows_of_task(fc_attention_task task, int first, int tokens)
{
    task.q += first * task.ld_q;
    task.out += first * task.ld_out;
    task.limit += first * task.limit_step;
    task.tokens = tokens;
    return task;
}

/* (tile of tokens) x (kv head) of all sequences, handed out as threads come free, the longest of a sequence first. */
static void attention_tiles(const team_member *m, const fc_op *op, atomic_int *next)
{
    const fc_step *step = m->step;
    int group = op->num_heads / op->num_kv_heads, tile = FC_ATTENTION_ROWS / group > 1 ? FC_ATTENTION_ROWS / group : 1;
    int item = atomic_fetch_add(next, 1), before = 0;
    for (int seq = 0; seq < step->num_seqs; seq++) {
        int rows = step->seq_rows[seq + 1] - step->seq_rows[seq];
        int tiles = (rows + tile - 1) / tile, items = tiles * op->num_kv_heads;
        for (; item < before + items; item = atomic_fetch_add(next, 1)) {
            int index = item - before, first = (tiles - 1 - index / op->num_kv_heads) * tile;
            fc_attention_task task = rows_of_task(attention_of(m, op, seq, index % op->num_kv_heads), first,
                                                  rows - first < tile ? rows - first : tile);
            task.end_segment = num_segments(task.limit + (task.tokens - 1) * task.limit_step);
            fc_active->attention(&task);
        }
        before += items;
    }
}

/* (kv head) x (segment) of all sequences in shares of neighbours, so that a thread knows what it reads next. The results of a row
 * lie together: [row of the step][head][segment]. */
static void attention_segments(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    int items = 0, before = 0, group = op->num_heads / op->num_kv_heads;
    for (int seq = 0; seq < step->num_seqs; seq++) {
        items += num_segments(sequence_length(step, seq)) * op->num_kv_heads;
    }
    range mine = share(m, items);
    for (int seq = 0; seq < step->num_seqs; seq++) {
        int segments = num_segments(sequence_length(step, seq));
        for (int head = 0; head < op->num_kv_heads; head++, before += segments) {
            fc_attention_task task = attention_of(m, op, seq, head);
            task.first_segment = mine.begin > before ? mine.begin - before : 0;
            task.end_segment = mine.end - before < segments ? mine.end - before : segments;
            task.partial_segments = step->segment_capacity;
            for (int t = 0; t < task.tokens && task.first_segment < task.end_segment; t++) {
                ptrdiff_t row = step->seq_rows[seq] + t;
                fc_attention_task one = rows_of_task(task, t, 1);
                one.partial = partials(m) + (row * op->num_kv_heads + head) * group * step->segment_capacity *
                                                (ptrdiff_t)(fc_pad(op->head_dim) + 2);
                fc_active->attention(&one);
            }
        }
    }
}

static void combine_items(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_out;
    float *out = buffer(m, op->dst, &ld_out);
    range heads = share(m, op->num_heads);
    int padded = fc_pad(op->head_dim);
    for (int seq = 0; seq < step->num_seqs; seq++) {
        int rows = step->seq_rows[seq + 1] - step->seq_rows[seq];
        for (int t = 0; t < rows; t++) {
            int row = step->seq_rows[seq] + t;
            int visible = step->seq_pos[seq] + (op->causal ? t + 1 : rows);
            int segments = num_segments(visible);
            for (int h = heads.begin; h < heads.end; h++) {
                const float *partial =
                    partials(m) + ((ptrdiff_t)row * op->num_heads + h) * step->segment_capacity * (padded + 2);
                fc_active->attention_combine(partial, segments, op->head_dim, out + row * ld_out + (ptrdiff_t)h * op->head_dim);
            }
        }
    }
}

/* Whether the contexts are cut over threads: long ones, of so few rows that the kv heads alone do not keep the team busy. */
static int splits(const fc_program *program, const fc_step *step, int num_threads)
{
    int longest = 0, items = 0;
    for (int i = 0; i < program->num_ops; i++) {
        items = program->ops[i].kind == FC_OP_ATTENTION ? program->ops[i].num_kv_heads * step->num_seqs : items;
    }
    for (int seq = 0; seq < step->num_seqs; seq++) {
        int rows = step->seq_rows[seq + 1] - step->seq_rows[seq], segments = num_segments(sequence_length(step, seq));
        longest = segments > longest ? segments : longest;
        if (rows > SPLIT_TOKENS) {
            return 0;
        }
    }
    return num_threads > 1 && longest > 1 && step->num_rows <= SPLIT_ROWS && items < 8 * num_threads;
}

static void run_attention(const team_member *m, const fc_op *op, int op_index)
{
    if (m->run->split) {
        attention_segments(m, op);
        meet(m);
        combine_items(m, op);
    } else {
        attention_tiles(m, op, &m->run->next[op_index]);
    }
}

/* Each thread looks at its columns of every row; the lowest index of equals wins, as columns are merged in order. */
static void run_argmax(const team_member *m, const fc_op *op)
{
    if (!m->step->argmax) {
        return;
    }
    ptrdiff_t ld;
    const float *src = buffer(m, op->src, &ld);
    range columns = share(m, op->n);
    best_id *found = bests(m);
    for (int r = 0; r < m->step->num_out; r++) {
        best_id best = {0, NO_COLUMNS};
        if (columns.end > columns.begin) {
            int finite = 1;
            ptrdiff_t index = 0;
            best.value = fc_active->argmax(src + r * ld + columns.begin, columns.end - columns.begin, &index, &finite);
            best.index = finite ? (int32_t)index + columns.begin : -1;
        }
        found[r * m->num_threads + m->thread] = best;
    }
    meet(m);
    range rows = share(m, m->step->num_out);
    for (int r = rows.begin; r < rows.end; r++) {
        best_id best = {0, NO_COLUMNS};
        for (int t = 0; t < m->num_threads; t++) {
            best_id next = found[r * m->num_threads + t];
            if (best.index == NO_COLUMNS || next.index == -1 ||
                (best.index >= 0 && next.index >= 0 && next.value > best.value)) {
                best = next;
            }
        }
        m->step->argmax[r] = best.index;
    }
}

/* ---- the Mamba-2 mixer */

/* This op's part of a sequence's recurrent state. */
static float *op_state(const team_member *m, const fc_op *op, int seq)
{
    const fc_kv_cache *kv = &m->step->kv;
    return (float *)(kv->base + m->step->state_blocks[seq] * kv->block_bytes) + op->state_floats;
}

/* The inputs before the first row are in the state, which takes the last ones in the end; [d_conv - 1][padded n]. */
static void run_conv(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_src, ld_dst, ld = fc_pad(op->n);
    const float *src = buffer(m, op->src, &ld_src) + op->column;
    float *dst = buffer(m, op->dst, &ld_dst);
    range panels = share(m, fc_panels(op->n));
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
            fc_active->conv_row(taps, op->d_conv, op->conv + first, ld, op->bias ? op->bias + first : NULL, end - first,
                                dst + (row + t) * ld_dst + first);
        }
        for (int k = 0; k < before; k++) {
            int at = rows - before + k;
            memcpy(state + k * ld, at < 0 ? state + (at + before) * ld : x + at * ld_src, bytes);
        }
    }
}

static void run_time_steps(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = buffer(m, op->src, &ld_src) + op->column;
    float *dst = buffer(m, op->dst, &ld_dst);
    range rows = share(m, m->step->num_rows);
    for (int r = rows.begin; r < rows.end; r++) {
        float *to = dst + r * ld_dst;
        fc_active->time_steps(src + r * ld_src, op->bias, op->rate, op->n, op->low, op->high, to, to + op->n);
    }
}

/* Shares are tiles of 16 dims of a head, taken two at a time where both are the thread's. */
static void run_scan(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_src, ld_steps, ld_dst, ld_gate = 0;
    const float *src = buffer(m, op->src, &ld_src), *steps = buffer(m, op->src2, &ld_steps);
    const float *gate = op->gate == FC_NO_BUFFER ? NULL : buffer(m, op->gate, &ld_gate);
    float *dst = buffer(m, op->dst, &ld_dst);
    int tiles = fc_panels(op->head_dim), features = op->num_heads * op->head_dim;
    range mine = share(m, op->num_heads * tiles);
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
            fc_active->scan(&task);
        }
        i += 1 + pair;
    }
}

static void run_gated_norm(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_gate, ld_dst;
    const float *src = buffer(m, op->src, &ld_src), *gate = buffer(m, op->gate, &ld_gate);
    float *dst = buffer(m, op->dst, &ld_dst);
    int size = op->n / op->num_groups;
    range mine = share(m, m->step->num_rows * op->num_groups); /* (row, group) */
    for (int i = mine.begin; i < mine.end; i++) {
        ptrdiff_t row = i / op->num_groups, column = (ptrdiff_t)(i % op->num_groups) * size;
        fc_active->gated_norm(src + row * ld_src + column, gate + row * ld_gate + column, op->norm + column, size, op->eps,
                              op->norm_before_gate, dst + row * ld_dst + column);
    }
}

static void run_op(const team_member *m, const fc_op *op, int index)
{
    switch (op->kind) {
    case FC_OP_EMBED:
        run_embed(m, op);
        break;
    case FC_OP_NORM:
        run_norm(m, op);
        break;
    case FC_OP_LINEAR:
        run_linear(m, op);
        break;
    case FC_OP_HEADS:
        run_heads(m, op);
        break;
    case FC_OP_ATTENTION:
        run_attention(m, op, index);
        break;
    case FC_OP_ARGMAX:
        run_argmax(m, op);
        break;
    case FC_OP_CONV:
        run_conv(m, op);
        break;
    case FC_OP_TIME_STEPS:
        run_time_steps(m, op);
        break;
    case FC_OP_SCAN:
        run_scan(m, op);
        break;
    case FC_OP_GATED_NORM:
        run_gated_norm(m, op);
        break;
    }
}

static void run_thread(void *data, int thread, int num_threads)
{
    run_state *run = (run_state *)data;
    const fc_program *program = run->program;
    const fc_step *step = run->step;
    team_member m = {run, step, thread, num_threads, NULL};
    m.scratch = (float *)bests(&m) + best_floats(step->row_capacity, num_threads);
    m.scratch += (64 - (m.scratch - step->workspace) % 64) + scratch_floats(program, step->row_capacity) * (size_t)thread;
    double last = thread == 0 ? fc_seconds() : 0.0, polled = last;
    for (int i = 0; i < run->num_ops; i++) {
        const fc_op *op = &program->ops[i];
        if (op->barrier) {
            meet(&m);
            if (atomic_load_explicit(&run->stop_at, memory_order_relaxed) <= i) {
                return;
            }
        }
        run_op(&m, op, i);
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
    run_state run = {.program = program, .step = step};
    run.num_ops = step->num_ops < 0 ? program->num_ops : step->num_ops;
    run.split = splits(program, step, num_threads);
    atomic_init(&run.stop_at, run.num_ops);
    for (int i = 0; i < run.num_ops; i++) {
        atomic_init(&run.next[i], 0);
    }
    fc_parallel(num_threads, run_thread, &run);
    return atomic_load(&run.stop_at) < run.num_ops;
}
