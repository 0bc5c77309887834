/* Ops on rows: embedding, norm, linear maps with what is fused to them, the sums and gates between them, the best ids. */
#include <string.h>

#include "op.h"

void fc_run_embed(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld;
    float *dst = fc_buffer_rows(m, op->dst, &ld);
    range rows = fc_share(m, m->step->num_rows);
    for (int r = rows.begin; r < rows.end; r++) {
        m->run->kernels->embed_row(op->weights, op->dtype, op->k, m->step->token_ids[r], op->scale, dst + r * ld);
        memset(dst + r * ld + op->k, 0, (size_t)(ld - op->k) * sizeof(float));
    }
}

/* Row r of the destination's source: gathered, normalised and scaled, as the op says; [op->k]. */
static void prepare_row(const team_member *m, const fc_op *op, int r, const float *src, ptrdiff_t ld_src, float *out)
{
    const float *x = src + fc_source_row(m, op, r) * ld_src;
    if (op->norm) {
        m->run->kernels->rms_norm(x, op->norm, op->k, op->eps, op->src_scale, out);
        return;
    }
    for (int i = 0; i < op->k; i++) {
        out[i] = op->src_scale * x[i];
    }
}

static int changes_rows(const team_member *m, const fc_op *op)
{
    return op->norm || op->src_scale != 1.0f || fc_gathers(m, op);
}

void fc_run_norm(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = fc_buffer_rows(m, op->src, &ld_src);
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    range rows = fc_share(m, fc_num_rows(m, op->dst));
    for (int r = rows.begin; r < rows.end; r++) {
        prepare_row(m, op, r, src, ld_src, dst + r * ld_dst);
    }
}

void fc_run_linear(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = fc_buffer_rows(m, op->src, &ld_src);
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst), *scratch = m->scratch;
    int rows = fc_num_rows(m, op->dst);
    if (rows == 0) {
        return;
    }
    fc_source source = fc_format_of(op->dtype)->source;
    if (source != FC_SOURCE_F32 || changes_rows(m, op)) {
        int alone = rows <= NORM_ROWS;
        float *prepared = alone ? scratch : fc_shared_rows(m);
        ptrdiff_t ld = fc_source_row_floats(op);
        range mine = alone ? (range){0, rows} : fc_share(m, rows);
        if (!alone && !op->barrier) { /* another thread may still read what an earlier op left there */
            fc_meet(m);
        }
        size_t width = fc_source_width(m->run->program);
        float *row = scratch + NORM_ROWS * width; /* what is prepared before it is quantised */
        scratch = row + width;
        for (int r = mine.begin; r < mine.end; r++) {
            if (source == FC_SOURCE_F32) {
                prepare_row(m, op, r, src, ld_src, prepared + r * ld);
                continue;
            }
            const float *x = src + r * ld_src;
            if (changes_rows(m, op)) {
                prepare_row(m, op, r, src, ld_src, row);
                x = row;
            }
            m->run->kernels->quantize_rows(x, 0, 1, op->k, prepared + r * ld, 0);
        }
        if (!alone) {
            fc_meet(m);
        }
        src = prepared;
        ld_src = ld;
    }

    fc_gemm *gemm = m->run->kernels->gemm[op->dtype];
    ptrdiff_t panel_bytes = fc_panel_bytes(op->dtype, op->k);
    /* A share is whole heads when the heads are finished here, whole (gate, up) pairs for SWIGLU, else whole panels. */
    int panels_each = op->fused_heads ? op->head_dim / FC_LANES : op->epilogue == FC_SWIGLU ? 2 : 1;
    range units = fc_share(m, fc_panels(op->n) / panels_each);
    int first = units.begin * panels_each, end = units.end * panels_each, step = rows <= TILE_ROWS ? PANELS_FEW : PANELS_MANY;
    ptrdiff_t ld_acc = (ptrdiff_t)step * FC_LANES;
    for (int p = first; p < end; p += step) {
        int panels = end - p < step ? end - p : step, column = p * FC_LANES;
        gemm(src, ld_src, rows, (const uint8_t *)op->weights + p * panel_bytes, panels, op->k, scratch, ld_acc);
        int columns = op->n - column < panels * FC_LANES ? op->n - column : panels * FC_LANES;
        const float *bias = op->bias ? op->bias + column : NULL;
        if (op->epilogue == FC_SWIGLU) {
            m->run->kernels->swiglu_rows(scratch, ld_acc, rows, panels * FC_LANES / 2, bias, op->gate_scale, op->scale,
                                         dst + column / 2, ld_dst);
        } else {
            m->run->kernels->store_rows(scratch, ld_acc, rows, columns, bias,
                                        op->column_scale ? op->column_scale + column : NULL, op->scale, op->epilogue == FC_ADD,
                                        dst + column, ld_dst);
        }
    }
    if (op->fused_heads) {
        fc_finish_heads(m, op, units, dst, ld_dst);
    }
}

void fc_run_add(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = fc_buffer_rows(m, op->src, &ld_src);
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    range rows = fc_share(m, fc_num_rows(m, op->dst));
    for (int r = rows.begin; r < rows.end; r++) {
        m->run->kernels->store_rows(src + fc_source_row(m, op, r) * ld_src, ld_src, 1, op->n, NULL, NULL, op->scale, 1,
                                    dst + r * ld_dst, ld_dst);
    }
}

void fc_run_glu(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_gate, ld_up, ld_dst;
    const float *gate = fc_buffer_rows(m, op->src, &ld_gate), *up = fc_buffer_rows(m, op->src2, &ld_up);
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    range rows = fc_share(m, fc_num_rows(m, op->dst));
    for (int r = rows.begin; r < rows.end; r++) {
        for (int i = 0; i < op->n; i += FC_LANES) { /* the kernel takes pairs of 16 columns */
            int n = op->n - i < FC_LANES ? op->n - i : FC_LANES;
            float pair[2 * FC_LANES] = {0};
            memcpy(pair, gate + r * ld_gate + i, (size_t)n * sizeof(float));
            memcpy(pair + FC_LANES, up + r * ld_up + i, (size_t)n * sizeof(float));
            m->run->kernels->swiglu_rows(pair, 2 * FC_LANES, 1, n, NULL, op->gate_scale, op->scale, dst + r * ld_dst + i,
                                         ld_dst);
        }
    }
}

enum { NO_COLUMNS = -2 }; /* the id of a thread that had no columns to look at */

/* Each thread looks at its columns of every row; the lowest index of equals wins, as columns are merged in order. */
void fc_run_argmax(const team_member *m, const fc_op *op)
{
    if (!m->step->argmax) {
        return;
    }
    ptrdiff_t ld;
    const float *src = fc_buffer_rows(m, op->src, &ld);
    range columns = fc_share(m, op->n);
    best_id *found = fc_bests(m);
    for (int r = 0; r < m->step->num_out; r++) {
        best_id best = {0, NO_COLUMNS};
        if (columns.end > columns.begin) {
            int finite = 1;
            ptrdiff_t index = 0;
            best.value = m->run->kernels->argmax(src + r * ld + columns.begin, columns.end - columns.begin, &index, &finite);
            best.index = finite ? (int32_t)index + columns.begin : -1;
        }
        found[r * m->num_threads + m->thread] = best;
    }
    fc_meet(m);
    range rows = fc_share(m, m->step->num_out);
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
