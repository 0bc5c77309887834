/* Between the projections of q, k, v and that of the output: heads are finished, K and V go into the cache, attention reads it. */
#include "op.h"

/* ---- heads */

static uint8_t *cache_of(const team_member *m, const fc_op *op, int seq, int position)
{
    const fc_kv_cache *kv = &m->step->kv;
    return kv->base + fc_block_table(m->step, seq)[position / FC_BLOCK_TOKENS] * kv->block_bytes + op->layer * kv->layer_bytes;
}

/* What a vector [num_kv_heads][head_dim] has for a head, or NULL. */
static const float *of_head(const fc_op *op, const float *vector, int kv_head)
{
    return vector ? vector + (ptrdiff_t)kv_head * op->head_dim : NULL;
}

void fc_finish_heads(const team_member *m, const fc_op *op, range heads, float *qkv, ptrdiff_t ld)
{
    const fc_step *step = m->step;
    const fc_kv_cache *kv = &step->kv;
    int head_dim = op->head_dim;
    for (int seq = 0; seq < step->num_seqs; seq++) {
        const int32_t *blocks = fc_block_table(step, seq);
        for (int r = step->seq_rows[seq]; r < step->seq_rows[seq + 1]; r++) {
            int position = step->seq_pos[seq] + r - step->seq_rows[seq];
            const float *cos = step->rope_cos + (ptrdiff_t)r * (head_dim / 2);
            const float *sin = step->rope_sin + (ptrdiff_t)r * (head_dim / 2);
            uint8_t *layer = kv->base + blocks[position / FC_BLOCK_TOKENS] * kv->block_bytes + op->layer * kv->layer_bytes;
            for (int h = heads.begin; h < heads.end; h++) {
                float *x = qkv + r * ld + (ptrdiff_t)h * head_dim;
                int kv_head = h - op->num_heads, is_v = kv_head >= op->num_kv_heads;
                if (is_v) {
                    m->run->kernels->write_kv(x, NULL, NULL, head_dim, kv->dtype, 1,
                                              layer + (kv_head - op->num_kv_heads) * kv->head_bytes, kv->v_offset, position);
                    continue;
                }
                const float *norm = kv_head < 0 ? op->q_norm : op->k_norm;
                float scale = kv_head < 0 ? 1.0f : op->key_scale;
                if (norm) {
                    m->run->kernels->rms_norm(x, norm, head_dim, op->eps, scale, x);
                } else if (scale != 1.0f) {
                    for (int i = 0; i < head_dim; i++) {
                        x[i] *= scale;
                    }
                }
                m->run->kernels->rope(x, cos, sin, head_dim, x);
                if (kv_head >= 0) {
                    m->run->kernels->write_kv(x, of_head(op, op->key_center, kv_head), of_head(op, op->key_unit, kv_head),
                                              head_dim, kv->dtype, 0, layer + kv_head * kv->head_bytes, kv->v_offset, position);
                }
            }
        }
    }
}

void fc_run_heads(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld;
    float *src = fc_buffer_rows(m, op->src, &ld);
    fc_finish_heads(m, op, fc_share(m, op->num_heads + 2 * op->num_kv_heads), src, ld);
}

void fc_run_head_norm(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld;
    float *x = fc_buffer_rows(m, op->src, &ld);
    range heads = fc_share(m, op->num_heads);
    for (int r = 0; r < m->step->num_rows; r++) {
        for (int h = heads.begin; h < heads.end; h++) {
            float *head = x + r * ld + (ptrdiff_t)h * op->head_dim;
            m->run->kernels->rms_norm(head, op->norm, op->head_dim, op->eps, op->scale, head);
        }
    }
}

void fc_run_rope(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld, half = op->head_dim / 2;
    float *x = fc_buffer_rows(m, op->src, &ld);
    range heads = fc_share(m, op->num_heads);
    for (int r = 0; r < m->step->num_rows; r++) {
        for (int h = heads.begin; h < heads.end; h++) {
            float *head = x + r * ld + (ptrdiff_t)h * op->head_dim;
            m->run->kernels->rope(head, m->step->rope_cos + r * half, m->step->rope_sin + r * half, op->head_dim, head);
        }
    }
}

void fc_run_cache_write(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    const fc_kv_cache *kv = &step->kv;
    ptrdiff_t ld_k, ld_v;
    const float *k = fc_buffer_rows(m, op->src, &ld_k), *v = fc_buffer_rows(m, op->src2, &ld_v);
    range heads = fc_share(m, op->num_kv_heads);
    for (int seq = 0; seq < step->num_seqs; seq++) {
        for (int r = step->seq_rows[seq]; r < step->seq_rows[seq + 1]; r++) {
            int position = step->seq_pos[seq] + r - step->seq_rows[seq];
            uint8_t *layer = cache_of(m, op, seq, position);
            for (int h = heads.begin; h < heads.end; h++) {
                uint8_t *head = layer + h * kv->head_bytes;
                ptrdiff_t column = (ptrdiff_t)h * op->head_dim;
                m->run->kernels->write_kv(k + r * ld_k + column, of_head(op, op->key_center, h), of_head(op, op->key_unit, h),
                                          op->head_dim, kv->dtype, 0, head, kv->v_offset, position);
                m->run->kernels->write_kv(v + r * ld_v + column, NULL, NULL, op->head_dim, kv->dtype, 1, head, kv->v_offset,
                                          position);
            }
        }
    }
}

/* ---- attention */

static int num_segments(int positions) { return (positions + FC_SEGMENT_TOKENS - 1) / FC_SEGMENT_TOKENS; }

static fc_attention_task attention_of(const team_member *m, const fc_op *op, int seq, int head)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_q, ld_out;
    int row = step->seq_rows[seq], group = op->num_heads / op->num_kv_heads;
    const float *q = fc_buffer_rows(m, op->src, &ld_q);
    float *out = fc_buffer_rows(m, op->dst, &ld_out);
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
        .key_unit = of_head(op, op->key_unit, head),
        .head_base = step->kv.base + op->layer * step->kv.layer_bytes + head * step->kv.head_bytes,
        .blocks = fc_block_table(step, seq),
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
static void attention_tiles(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    atomic_int *next = &m->run->next[op - m->run->program->ops];
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
            m->run->kernels->attention(&task);
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
        items += num_segments(fc_sequence_length(step, seq)) * op->num_kv_heads;
    }
    range mine = fc_share(m, items);
    for (int seq = 0; seq < step->num_seqs; seq++) {
        int segments = num_segments(fc_sequence_length(step, seq));
        for (int head = 0; head < op->num_kv_heads; head++, before += segments) {
            fc_attention_task task = attention_of(m, op, seq, head);
            task.first_segment = mine.begin > before ? mine.begin - before : 0;
            task.end_segment = mine.end - before < segments ? mine.end - before : segments;
            task.partial_segments = step->segment_capacity;
            for (int t = 0; t < task.tokens && task.first_segment < task.end_segment; t++) {
                ptrdiff_t row = step->seq_rows[seq] + t;
                fc_attention_task one = rows_of_task(task, t, 1);
                one.partial = fc_partials(m) + (row * op->num_kv_heads + head) * group * step->segment_capacity *
                                                   (ptrdiff_t)(fc_pad(op->head_dim) + 2);
                m->run->kernels->attention(&one);
            }
        }
    }
}

static void combine_items(const team_member *m, const fc_op *op)
{
    const fc_step *step = m->step;
    ptrdiff_t ld_out;
    float *out = fc_buffer_rows(m, op->dst, &ld_out);
    range heads = fc_share(m, op->num_heads);
    int padded = fc_pad(op->head_dim);
    for (int seq = 0; seq < step->num_seqs; seq++) {
        int rows = step->seq_rows[seq + 1] - step->seq_rows[seq];
        for (int t = 0; t < rows; t++) {
            int row = step->seq_rows[seq] + t;
            int visible = step->seq_pos[seq] + (op->causal ? t + 1 : rows);
            int segments = num_segments(visible);
            for (int h = heads.begin; h < heads.end; h++) {
                const float *partial =
                    fc_partials(m) + ((ptrdiff_t)row * op->num_heads + h) * step->segment_capacity * (padded + 2);
                m->run->kernels->attention_combine(partial, segments, op->head_dim,
                                                   out + row * ld_out + (ptrdiff_t)h * op->head_dim);
            }
        }
    }
}

/* Whether the contexts are cut over threads: long ones, of so few rows that the kv heads alone do not keep the team busy. */
int fc_splits_context(const fc_program *program, const fc_step *step, int num_threads)
{
    int longest = 0, items = 0;
    for (int i = 0; i < program->num_ops; i++) {
        items = program->ops[i].kind == FC_OP_ATTENTION ? program->ops[i].num_kv_heads * step->num_seqs : items;
    }
    for (int seq = 0; seq < step->num_seqs; seq++) {
        int rows = step->seq_rows[seq + 1] - step->seq_rows[seq], segments = num_segments(fc_sequence_length(step, seq));
        longest = segments > longest ? segments : longest;
        if (rows > SPLIT_TOKENS) {
            return 0;
        }
    }
    return num_threads > 1 && longest > 1 && step->num_rows <= SPLIT_ROWS && items < 8 * num_threads;
}

void fc_run_attention(const team_member *m, const fc_op *op)
{
    if (m->run->split) {
        attention_segments(m, op);
        fc_meet(m);
        combine_items(m, op);
    } else {
        attention_tiles(m, op);
    }
}
