/* attention.c: online softmax over blocks, splits merged in index order, in plain loops. */
#include "numerics/attention.h"
#include "numerics/ex2.h"
#include "numerics/fma32.h"
#include "numerics/tc16.h"
#include "numerics/tree.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

#include <stdlib.h>

enum { HEAD_DIM_MAX = 1024 };

static void store(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

float iv_ref_chain(iv_arithmetic arithmetic, iv_dtype type, float acc, const void *a, const void *b, size_t padded_k) {
    if (arithmetic == IV_TC16) return iv_tc16_chain(type, acc, a, b, padded_k);
    for (size_t i = 0; i < padded_k; i += 2) {
        acc = iv_fma_ftz(iv_element(type, a, i + 1), iv_element(type, b, i + 1), acc);
        acc = iv_fma_ftz(iv_element(type, a, i), iv_element(type, b, i), acc);
    }
    return acc;
}

float iv_ref_sum_weights(iv_dtype type, float acc, const void *weights, size_t k) {
    uint16_t one[IV_CHAIN_STEP];
    for (size_t i = 0; i < IV_CHAIN_STEP; i++) store(type, one, i, 1.0f);
    for (size_t i = 0; i < k; i += IV_CHAIN_STEP)
        acc = iv_tc16_chain(type, acc, (const uint16_t *)weights + i, one, IV_CHAIN_STEP);
    return acc;
}

float iv_attention_exp2(iv_arithmetic arithmetic, float x) { return arithmetic == IV_TC16 ? iv_ex2(x) : v_exp2(x); }

typedef struct row_state { /* of one split, or of the splits merged so far */
    float max, lanes[IV_ATTENTION_LANES], sum;
    float out[HEAD_DIM_MAX];
} row_state;

static void add_weights(const iv_ref_attention_args *a, float alpha, const void *weights, row_state *s) {
    for (size_t c = 0; c < IV_ATTENTION_LANES; c++) s->lanes[c] = s->lanes[c] * alpha;
    if (a->arithmetic == IV_TC16) {
        s->lanes[0] = iv_ref_sum_weights(a->type, s->lanes[0], weights, IV_ATTENTION_BLOCK);
        return;
    }
    for (size_t j = 0; j < IV_ATTENTION_BLOCK; j++) s->lanes[j % IV_ATTENTION_LANES] += iv_element(a->type, weights, j);
}

static void block_step(const iv_ref_attention_args *a, int64_t first_key, row_state *s) {
    size_t padded = iv_padded_k(a->head_dim), element = iv_dtype_bytes(a->type);
    float score[IV_ATTENTION_BLOCK], largest = -INFINITY;
    float rounded[IV_ATTENTION_BLOCK], column[IV_ATTENTION_BLOCK]; /* raw storage for the rounded weights, values */
    int64_t low = iv_first_visible(a->position, a->window);
    for (int64_t j = 0; j < IV_ATTENTION_BLOCK; j++) {
        int64_t key = first_key + j;
        bool visible = key >= low && key <= a->position;
        const char *k = (const char *)a->keys + (size_t)key * padded * element;
        score[j] = visible ? iv_ref_chain(a->arithmetic, a->type, 0.0f, a->q, k, padded) : -INFINITY;
        if (visible && a->score_inner != 0.0f) score[j] = v_tanh(score[j] * a->score_inner);
        if (score[j] > largest) largest = score[j];
    }
    float max = iv_attention_next_max(s->max, largest * a->scale_log2e);
    float alpha = iv_attention_exp2(a->arithmetic, s->max - max);
    for (size_t j = 0; j < IV_ATTENTION_BLOCK; j++)
        store(a->type, rounded, j, iv_attention_exp2(a->arithmetic, iv_fma(score[j], a->scale_log2e, -max)));
    add_weights(a, alpha, rounded, s);
    for (size_t d = 0; d < a->head_dim; d++) {
        for (int64_t j = 0; j < IV_ATTENTION_BLOCK; j++) {
            int64_t key = first_key + j;
            bool visible = key >= low && key <= a->position;
            store(a->type, column, (size_t)j,
                  visible ? iv_element(a->type, a->values, (size_t)key * a->head_dim + d) : 0.0f);
        }
        float sum = iv_ref_chain(a->arithmetic, a->type, s->out[d] * alpha, rounded, column, IV_ATTENTION_BLOCK);
        s->out[d] = sum + 0.0f; /* makes a zero positive: the sign from a masked key's product is undefined */
    }
    s->max = max;
}

static void merge(const iv_ref_attention_args *a, row_state *total, const row_state *split) {
    float max = split->max > total->max ? split->max : total->max;
    float keep = iv_attention_exp2(a->arithmetic, total->max - max);
    float add = iv_attention_exp2(a->arithmetic, split->max - max);
    total->sum = iv_fma(split->sum, add, total->sum * keep);
    for (size_t d = 0; d < a->head_dim; d++) total->out[d] = iv_fma(split->out[d], add, total->out[d] * keep);
    total->max = max;
}

/* The sink is merged last, as a split with this maximum, a sum of 1 and no output. */
static void merge_sink(const iv_ref_attention_args *a, row_state *total) {
    float sink = iv_sink_log2e(*a->sink), max = sink > total->max ? sink : total->max;
    float keep = iv_attention_exp2(a->arithmetic, total->max - max);
    total->sum = iv_fma(total->sum, keep, iv_attention_exp2(a->arithmetic, sink - max));
    for (size_t d = 0; d < a->head_dim; d++) total->out[d] = total->out[d] * keep;
    total->max = max;
}

bool iv_ref_attention(const iv_ref_attention_args *a, float *out) {
    if (a->head_dim > HEAD_DIM_MAX) return false;
    row_state *total = calloc(2, sizeof *total), *split = total + 1;
    if (!total) return false;
    int64_t low = iv_first_visible(a->position, a->window), first_split = low / IV_KV_SPLIT;
    for (int64_t i = first_split; i <= a->position / IV_KV_SPLIT; i++) {
        *split = (row_state){.max = -INFINITY};
        for (int64_t b = 0; b < IV_KV_SPLIT; b += IV_ATTENTION_BLOCK) {
            int64_t first_key = i * IV_KV_SPLIT + b;
            if (first_key + IV_ATTENTION_BLOCK > low && first_key <= a->position) block_step(a, first_key, split);
        }
        split->sum = iv_attention_sum(a->arithmetic, split->lanes);
        if (i == first_split)
            *total = *split;
        else
            merge(a, total, split);
    }
    if (a->sink) merge_sink(a, total);
    for (size_t d = 0; d < a->head_dim; d++) out[d] = iv_canonical(total->out[d] / total->sum);
    free(total);
    return true;
}
