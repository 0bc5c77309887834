/* The best legal path through label scores. */
#include <math.h>

#include "fastcore.h"

/* Take the best score off all, so that sums stay small however long the text; nothing to take when all are -inf. */
static void take_off_best(float *scores, int num_labels)
{
    float best = -INFINITY;
    for (int label = 0; label < num_labels; label++) {
        best = scores[label] > best ? scores[label] : best;
    }
    if (best > -INFINITY) {
        for (int label = 0; label < num_labels; label++) {
            scores[label] -= best;
        }
    }
}

static int32_t first_best(const float *scores, int num_labels)
{
    int32_t best = 0;
    for (int32_t label = 1; label < num_labels; label++) {
        best = scores[label] > scores[best] ? label : best;
    }
    return best;
}

int fc_viterbi(const float *logits, int num_tokens, int num_labels, const float *transition_scores, const float *start,
               const float *end, float *score_scratch, uint8_t *back, int32_t *path)
{
    float *scores = score_scratch, *next = score_scratch + num_labels;
    int32_t from_best[FC_MAX_LABELS];
    if (num_tokens == 0) {
        return 0;
    }
    for (int to = 0; to < num_labels; to++) {
        scores[to] = start[to] + logits[to];
    }
    take_off_best(scores, num_labels);
    for (int token = 1; token < num_tokens; token++) {
        const float *emitted = logits + (ptrdiff_t)token * num_labels;
        uint8_t *came_from = back + (ptrdiff_t)token * num_labels;
        for (int to = 0; to < num_labels; to++) {
            next[to] = -INFINITY;
            from_best[to] = 0;
        }
        for (int32_t from = 0; from < num_labels; from++) {
            const float *transition = transition_scores + (ptrdiff_t)from * num_labels;
            for (int to = 0; to < num_labels; to++) {
                float candidate = scores[from] + transition[to];
                int better = candidate > next[to]; /* strictly: of equals, the lowest label stays */
                next[to] = better ? candidate : next[to];
                from_best[to] = better ? from : from_best[to];
            }
        }
        for (int to = 0; to < num_labels; to++) {
            next[to] += emitted[to];
            came_from[to] = (uint8_t)from_best[to];
        }
        take_off_best(next, num_labels);
        float *swap = scores;
        scores = next;
        next = swap;
    }
    for (int label = 0; label < num_labels; label++) {
        scores[label] += end[label];
    }
    path[num_tokens - 1] = first_best(scores, num_labels);
    for (int token = num_tokens - 1; token > 0; token--) {
        path[token - 1] = back[(ptrdiff_t)token * num_labels + path[token]];
    }
    return scores[path[num_tokens - 1]] > -INFINITY ? 0 : -1;
}
