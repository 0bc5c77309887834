/* Attention of the query rows that share one kv head. Positions are taken in segments of FC_SEGMENT_TOKENS: a segment gives its
 * maximum m, the sum l of exp(s - m) and the sums o of exp(s - m) v; segments are combined in order. Both products are the linear
 * kernel again: scores with K as the panels, sums of v with V as the panels. */

/* s[i] = exp(s[i] * scale - m) for i < n, 0 up to padded; returns the sum, m in *max. */
static inline float FC_NAME(softmax_row)(float *s, int n, int padded, float scale, float *max)
{
    p16 by = p16_set1(scale), m = p16_set1(s[0] * scale);
    for (int i = 0; i < n; i += 16) {
        p16 v = p16_mul(n - i >= 16 ? p16_load(s + i) : FC_NAME(load_n)(s + i, n - i), by);
        if (n - i < 16) {
            float t[16];
            p16_store(t, v);
            for (int j = n - i; j < 16; j++) {
                t[j] = t[0];
            }
            v = p16_load(t);
        }
        p16_store(s + i, v);
        m = p16_max(m, v);
    }
    *max = p16_largest(m);
    p16 sum = p16_zero(), shift = p16_set1(*max);
    for (int i = 0; i < n; i += 16) {
        p16 v = FC_NAME(exp16)(p16_sub(p16_load(s + i), shift));
        if (n - i < 16) {
            float t[16];
            p16_store(t, v);
            v = FC_NAME(load_n)(t, n - i);
        }
        p16_store(s + i, v);
        sum = p16_add(sum, v);
    }
    for (int i = fc_pad(n); i < padded; i += 16) {
        p16_store(s + i, p16_zero());
    }
    return p16_sum(sum);
}

/* The parts of blocks that a segment reads, in order: its K, then its V; and what comes after them. */
typedef struct {
    const uint8_t *parts[2 * FC_SEGMENT_TOKENS / FC_BLOCK_TOKENS + 2 * FC_STREAMS - 1];
    ptrdiff_t part_bytes;
    float *expanded; /* a part of int8 as f32 */
} FC_NAME(chain);

/* x times the panels of the parts from i on, each of part_k of num_k. touch: while four parts are read, the next four are touched. */
static inline void FC_NAME(multiply_parts)(int dtype, const float *x, ptrdiff_t ld_x, int rows, const FC_NAME(chain) * chain,
                                           int i, int panels, int part_k, int num_k, float *acc, ptrdiff_t ld_acc, int go_on,
                                           int touch)
{
    ptrdiff_t quarter = chain->part_bytes / FC_STREAMS;
    const uint8_t *ahead[FC_STREAMS];
    for (int j = 0; j < FC_STREAMS; j++) {
        ahead[j] = chain->parts[(i / FC_STREAMS + 1) * FC_STREAMS + j] + i % FC_STREAMS * quarter;
    }
    FC_NAME(weights) weights = {chain->parts + i, part_k, num_k, fc_panel_bytes(dtype, part_k), ahead};
    (dtype == FC_F32 ? gemm_panels_f32 : gemm_panels_f16)(touch ? FC_STREAMS : 0, x, ld_x, rows, &weights, panels, acc, ld_acc,
                                                          go_on);
}

/* Panels of K as f32 at `to`, of a part of int8. */
static inline void FC_NAME(expand_keys)(const uint8_t *part, int panels, int head_dim, float *to)
{
    const float *scales = (const float *)(part + (ptrdiff_t)FC_BLOCK_TOKENS * head_dim);
    for (int panel = 0; panel < panels; panel++, scales += FC_LANES) {
        for (int i = 0; i < head_dim; i += FC_GROUP) {
            p16 scale = p16_load(scales + i / FC_GROUP * FC_BLOCK_TOKENS);
            for (int j = i; j < head_dim && j < i + FC_GROUP; j++, part += FC_LANES, to += FC_LANES) {
                p16_store(to, p16_mul(p16_load_s8(part), scale));
            }
        }
    }
}

/* V of the first num_tokens likewise. */
static inline void FC_NAME(expand_values)(const uint8_t *part, int padded_dim, int num_tokens, float *to)
{
    const float *scales = (const float *)(part + (ptrdiff_t)FC_BLOCK_TOKENS * padded_dim);
    for (int i = 0; i < padded_dim; i += FC_LANES, part += FC_BLOCK_TOKENS * FC_LANES, to += FC_BLOCK_TOKENS * FC_LANES) {
        for (int t = 0; t < num_tokens; t++) {
            p16 scale = p16_set1(scales[i / FC_GROUP * FC_BLOCK_TOKENS + t]);
            p16_store(to + t * FC_LANES, p16_mul(p16_load_s8(part + t * FC_LANES), scale));
        }
    }
}

/* x times the expanded panels. touch: the part four places on is touched, too. */
static inline void FC_NAME(multiply_expanded)(const float *x, ptrdiff_t ld_x, int rows, const FC_NAME(chain) * chain, int i,
                                              int panels, int part_k, int num_k, float *acc, ptrdiff_t ld_acc, int go_on,
                                              int touch)
{
    for (ptrdiff_t byte = 0; touch && byte < chain->part_bytes; byte += 64) {
        __builtin_prefetch(chain->parts[i + FC_STREAMS] + byte);
    }
    const uint8_t *part = (const uint8_t *)chain->expanded;
    FC_NAME(weights) weights = {&part, part_k, num_k, fc_panel_bytes(FC_F32, part_k), &part};
    gemm_panels_f32(0, x, ld_x, rows, &weights, panels, acc, ld_acc, go_on);
}

/* s = scores of the rows q against the first n positions of a segment. */
static inline void FC_NAME(scores)(int dtype, const float *q, ptrdiff_t ld_q, int rows, const FC_NAME(chain) * chain,
                                   int head_dim, int n, float *s, int touch)
{
    for (int i = 0; i < n; i += FC_BLOCK_TOKENS) {
        int panels = fc_panels(n - i < FC_BLOCK_TOKENS ? n - i : FC_BLOCK_TOKENS);
        if (dtype == FC_INT8) {
            FC_NAME(expand_keys)(chain->parts[i / FC_BLOCK_TOKENS], panels, head_dim, chain->expanded);
            FC_NAME(multiply_expanded)(q, ld_q, rows, chain, i / FC_BLOCK_TOKENS, panels, head_dim, head_dim, s + i,
                                       FC_SEGMENT_TOKENS, 0, touch);
            continue;
        }
        FC_NAME(multiply_parts)(dtype, q, ld_q, rows, chain, i / FC_BLOCK_TOKENS, panels, head_dim, head_dim, s + i,
                                FC_SEGMENT_TOKENS, 0, touch);
    }
}

/* o = sums over the first n positions of a segment, weighted by the rows p; its V begins at first_part of the chain. What comes from
 * memory is read part by part, with all panels of each; otherwise the sums stay in registers through all parts. */
static inline void FC_NAME(weighted_sums)(int dtype, const float *p, int rows, const FC_NAME(chain) * chain, int first_part,
                                          int padded_dim, int n, float *o, int touch)
{
    int panels = padded_dim / FC_LANES, at_once = touch || dtype == FC_INT8 ? FC_BLOCK_TOKENS : n;
    for (int i = 0; i < n; i += at_once) {
        int num_k = n - i < at_once ? n - i : at_once;
        if (dtype == FC_INT8) {
            int part = first_part + i / FC_BLOCK_TOKENS;
            FC_NAME(expand_values)(chain->parts[part], padded_dim, num_k, chain->expanded);
            FC_NAME(multiply_expanded)(p + i, FC_SEGMENT_TOKENS, rows, chain, part, panels, FC_BLOCK_TOKENS, num_k, o,
                                       padded_dim, i > 0, touch);
            continue;
        }
        FC_NAME(multiply_parts)(dtype, p + i, FC_SEGMENT_TOKENS, rows, chain, first_part + i / FC_BLOCK_TOKENS, panels,
                                FC_BLOCK_TOKENS, num_k, o, padded_dim, i > 0, touch);
    }
}

/* (o, l, m) of a row = (o, l, m) combined with a later segment's. */
static inline void FC_NAME(combine)(float *o, float *l, float *m, const float *o2, float l2, float m2, int padded_dim)
{
    float max = *m > m2 ? *m : m2;
    p16 a = FC_NAME(exp16)(p16_set1(*m - max)), b = FC_NAME(exp16)(p16_set1(m2 - max));
    for (int i = 0; i < padded_dim; i += 16) {
        p16_store(o + i, p16_fma(p16_load(o + i), a, p16_mul(p16_load(o2 + i), b)));
    }
    float sum[16];
    p16_store(sum, p16_fma(p16_set1(*l), a, p16_mul(p16_set1(l2), b)));
    *l = sum[0];
    *m = max;
}

static inline void FC_NAME(divide)(const float *o, float l, int head_dim, float *out)
{
    for (int i = 0; i < head_dim; i += 16) {
        FC_NAME(store_up_to)(out + i, p16_div(p16_load(o + i), p16_set1(l)), head_dim - i);
    }
}

static inline const uint8_t *FC_NAME(block_at)(const fc_attention_task *task, int position)
{
    return task->head_base + task->blocks[position / FC_BLOCK_TOKENS] * task->kv->block_bytes;
}

static void FC_NAME(attention)(const fc_attention_task *task)
{
    const fc_kv_cache *kv = task->kv;
    int head_dim = task->head_dim, padded = fc_pad(head_dim), rows = task->tokens * task->group;
    float *q = task->scratch;                             /* [rows][padded] */
    float *o = q + (ptrdiff_t)FC_ATTENTION_ROWS * padded; /* [rows][padded] */
    float *l = o + (ptrdiff_t)FC_ATTENTION_ROWS * padded, *m = l + FC_ATTENTION_ROWS;
    float *s = m + FC_ATTENTION_ROWS;                 /* [FC_PASS_ROWS][FC_SEGMENT_TOKENS] */
    float *o2 = s + FC_PASS_ROWS * FC_SEGMENT_TOKENS; /* [FC_PASS_ROWS][padded] */
    FC_NAME(chain) chain = {.part_bytes = kv->v_offset, .expanded = o2 + FC_PASS_ROWS * padded};
    for (int r = 0; r < rows; r++) {
        const float *from = task->q + r / task->group * task->ld_q + (ptrdiff_t)(r % task->group) * head_dim;
        float *row = q + (ptrdiff_t)r * padded;
        memcpy(row, from, (size_t)head_dim * sizeof(float));
        for (int i = 0; i < head_dim && task->key_unit && kv->dtype == FC_INT8; i++) {
            row[i] *= task->key_unit[i];
        }
    }
    for (int segment = task->first_segment; segment < task->end_segment; segment++) {
        int start = segment * FC_SEGMENT_TOKENS, end = task->limit + (task->tokens - 1) * task->limit_step;
        if (start >= end) { /* nor is anything of a later segment visible */
            break;
        }
        int blocks = 0;
        for (int i = start; i < start + FC_SEGMENT_TOKENS && i < end; i += FC_BLOCK_TOKENS) {
            chain.parts[blocks++] = FC_NAME(block_at)(task, i);
        }
        for (int i = 0; i < blocks; i++) {
            chain.parts[blocks + i] = chain.parts[i] + kv->v_offset;
        }
        for (int i = 0; i < 2 * FC_STREAMS - 1; i++) {
            int next = start + FC_SEGMENT_TOKENS + i * FC_BLOCK_TOKENS;
            chain.parts[2 * blocks + i] =
                segment + 1 < task->end_segment && next < end ? FC_NAME(block_at)(task, next) : chain.parts[0];
        }
        for (int r0 = 0, height; r0 < rows; r0 += height) {
            height = rows - r0 <= FC_PASS_ROWS ? rows - r0 : FC_NAME(tile_height)(rows - r0);
            int last = task->limit + (r0 + height - 1) / task->group * task->limit_step - start;
            int visible = last < FC_SEGMENT_TOKENS ? last : FC_SEGMENT_TOKENS; /* to the tile's last row */
            if (visible <= 0) {
                continue;
            }
            FC_NAME(scores)(kv->dtype, q + (ptrdiff_t)r0 * padded, padded, height, &chain, head_dim, visible, s, r0 == 0);
            float sums[FC_PASS_ROWS], maxima[FC_PASS_ROWS];
            for (int r = 0; r < height; r++) {
                int n = task->limit + (r0 + r) / task->group * task->limit_step - start;
                n = n < FC_SEGMENT_TOKENS ? n : FC_SEGMENT_TOKENS;
                float *row = s + (ptrdiff_t)r * FC_SEGMENT_TOKENS;
                if (n > 0) {
                    sums[r] = FC_NAME(softmax_row)(row, n, fc_pad(visible), task->score_scale, &maxima[r]);
                } else {
                    sums[r] = -1.0f; /* sees nothing of this segment */
                    memset(row, 0, (size_t)visible * sizeof(float));
                }
            }
            FC_NAME(weighted_sums)(kv->dtype, s, height, &chain, blocks, padded, visible, o2, r0 == 0);
            for (int r = 0; r < height; r++) {
                ptrdiff_t row = r0 + r;
                if (sums[r] < 0) {
                    continue;
                }
                if (task->partial) {
                    float *to = task->partial + (row * task->partial_segments + segment) * (padded + 2);
                    memcpy(to, o2 + r * padded, (size_t)padded * sizeof(float));
                    to[padded] = sums[r];
                    to[padded + 1] = maxima[r];
                } else if (segment == task->first_segment) {
                    memcpy(o + row * padded, o2 + r * padded, (size_t)padded * sizeof(float));
                    l[row] = sums[r];
                    m[row] = maxima[r];
                } else {
                    FC_NAME(combine)(o + row * padded, l + row, m + row, o2 + r * padded, sums[r], maxima[r], padded);
                }
            }
        }
    }
    if (!task->partial) {
        for (int r = 0; r < rows; r++) {
            FC_NAME(divide)(o + (ptrdiff_t)r * padded, l[r], head_dim,
                            task->out + r / task->group * task->ld_out + (ptrdiff_t)(r % task->group) * head_dim);
        }
    }
}

static void FC_NAME(attention_combine)(const float *partial, int segments, int head_dim, float *out)
{
    int padded = fc_pad(head_dim);
    float o[FC_MAX_HEAD_DIM];
    memcpy(o, partial, (size_t)padded * sizeof(float));
    float l = partial[padded], m = partial[padded + 1];
    for (int segment = 1; segment < segments; segment++) {
        const float *next = partial + (ptrdiff_t)segment * (padded + 2);
        FC_NAME(combine)(o, &l, &m, next, next[padded], next[padded + 1], padded);
    }
    FC_NAME(divide)(o, l, head_dim, out);
}

/* q of n values, as (x - center) / unit unless these are NULL, and their scale; NaN where one of them is not finite. */
static inline float FC_NAME(quantise)(const float *x, const float *center, const float *unit, int n, int8_t *q)
{
    float y[FC_GROUP], largest = 0.0f, zero = 0.0f;
    for (int i = 0; i < n; i++) {
        y[i] = center ? (x[i] - center[i]) / unit[i] : x[i];
        float size = y[i] < 0.0f ? -y[i] : y[i];
        largest = size > largest ? size : largest;
        zero += y[i] * 0.0f;
    }
    float inverse = largest >= 1e-36f ? 127.0f / largest : 0.0f; /* which must be finite */
    for (int i = 0; i < n; i++) {
        float scaled = y[i] * inverse;
        scaled = scaled > -127.0f ? scaled < 127.0f ? scaled : 127.0f : -127.0f; /* of what is not finite too */
        q[i] = (int8_t)(scaled + 12582912.0f - 12582912.0f);                     /* rounded to even */
    }
    return (inverse > 0.0f ? largest / 127.0f : 0.0f) + zero;
}

static inline void FC_NAME(write_int8)(const float *x, const float *center, const float *unit, int head_dim, int is_v,
                                       uint8_t *part, int slot)
{
    float *scales = (float *)(part + (ptrdiff_t)FC_BLOCK_TOKENS * (is_v ? fc_pad(head_dim) : head_dim)) + slot;
    for (int i = 0; i < head_dim; i += FC_GROUP) {
        int8_t q[FC_GROUP] = {0};
        int n = head_dim - i < FC_GROUP ? head_dim - i : FC_GROUP;
        scales[i / FC_GROUP * FC_BLOCK_TOKENS] =
            FC_NAME(quantise)(x + i, center ? center + i : NULL, center ? unit + i : NULL, n, q);
        for (int j = 0; is_v && j < n; j += FC_LANES) {
            memcpy(part + ((i + j) * FC_BLOCK_TOKENS + slot * FC_LANES), q + j, FC_LANES);
        }
        for (int j = 0; !is_v && j < n; j++) {
            part[(slot / 16 * head_dim + i + j) * 16 + slot % 16] = (uint8_t)q[j];
        }
    }
}

static void FC_NAME(write_kv)(const float *x, const float *center, const float *unit, int head_dim, int dtype, int is_v,
                              uint8_t *base, ptrdiff_t v_offset, int position)
{
    int slot = position % FC_BLOCK_TOKENS;
    ptrdiff_t element = dtype == FC_F32 ? 4 : 2;
    if (dtype == FC_INT8) {
        FC_NAME(write_int8)(x, center, unit, head_dim, is_v, is_v ? base + v_offset : base, slot);
        return;
    }
    if (is_v) {
        uint8_t *v = base + v_offset + (ptrdiff_t)slot * FC_LANES * element;
        for (int i = 0; i < head_dim; i += 16) {
            p16 y = FC_NAME(load_up_to)(x + i, head_dim - i);
            if (dtype == FC_F32) {
                p16_store((float *)v + i * FC_BLOCK_TOKENS, y);
            } else {
                p16_store_f16(v + i * FC_BLOCK_TOKENS * element, y);
            }
        }
        return;
    }
    uint8_t *k = base + (slot / 16 * head_dim * 16 + slot % 16) * element;
    for (int i = 0; i < head_dim; i += 16) {
        int n = head_dim - i < 16 ? head_dim - i : 16;
        if (dtype == FC_F32) {
            for (int j = 0; j < n; j++) {
                ((float *)k)[(i + j) * 16] = x[i + j];
            }
        } else {
            uint16_t half[16];
            p16_store_f16(half, FC_NAME(load_up_to)(x + i, n));
            for (int j = 0; j < n; j++) {
                ((uint16_t *)k)[(i + j) * 16] = half[j];
            }
        }
    }
}
