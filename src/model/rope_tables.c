/* rope_tables.c: from a configuration to the rule of numerics/rope.h. */
#include "model/rope_tables.h"
#include "base/size.h"
#include "numerics/elementary64.h"
#include "numerics/rope.h"

#include <string.h>

typedef struct rope_job {
    const double *frequencies;
    size_t pairs, turning, positions; /* the first `turning` of `pairs` are rotated */
    double attention;                 /* factor of cosines and sines */
    float *cosine, *sine;
} rope_job;

enum { ROWS_A_TASK = 256 };

static void rope_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const rope_job *j = context;
    size_t end = iv_size_min((index + 1) * ROWS_A_TASK, j->positions);
    for (size_t p = index * ROWS_A_TASK; p < end; p++) {
        float *cosine = j->cosine + p * j->pairs, *sine = j->sine + p * j->pairs;
        iv_rope_row(j->frequencies, j->turning, (int64_t)p, j->attention, cosine, sine);
        for (size_t i = j->turning; i < j->pairs; i++) cosine[i] = 1, sine[i] = 0;
    }
}

static double attention_of(const iv_rope_config *c) {
    if (c->kind != IV_ROPE_YARN && c->kind != IV_ROPE_LONG) return 1;
    if (c->attention != 0) return c->attention;
    if (c->kind == IV_ROPE_LONG) return iv_rope_long_attention(c->factor, (double)c->original_positions);
    return iv_rope_yarn_attention(c->factor, c->mscale, c->mscale_all_dim) * c->attn_factor;
}

void iv_rope_tables(const iv_model_config *config, int rope, iv_pool *pool, size_t positions, float *cosine,
                    float *sine) {
    double frequencies[IV_HEAD_DIM_MAX / 2];
    const iv_rope_config *c = &config->ropes[rope];
    size_t head_dim = (size_t)iv_config_rope_dim(config, rope), rotated = c->rotated ? (size_t)c->rotated : head_dim;
    bool long_lists = c->kind == IV_ROPE_LONG, ntk = c->kind == IV_ROPE_NTK;
    iv_rope_rule rule = {.theta = ntk ? iv_rope_ntk_theta(c->theta, c->factor, rotated) : c->theta,
                         .factor = long_lists || ntk ? 1 : c->factor,
                         .factors = long_lists ? config->long_factors[c->extended] : NULL,
                         .low_freq = c->low_freq_factor,
                         .high_freq = c->high_freq_factor,
                         .original_positions = (double)c->original_positions,
                         .beta_fast = c->beta_fast,
                         .beta_slow = c->beta_slow,
                         .truncate = c->truncate};
    if (c->kind == IV_ROPE_NONE)
        memset(frequencies, 0, sizeof frequencies);
    else
        iv_rope_frequencies(&rule, c->kind == IV_ROPE_PROPORTIONAL ? head_dim : rotated, frequencies);
    rope_job job = {frequencies, head_dim / 2, rotated / 2, positions, attention_of(c), cosine, sine};
    iv_pool_run(pool, (positions + ROWS_A_TASK - 1) / ROWS_A_TASK, rope_task, &job);
}

void iv_rope_query_scales(const iv_rope_config *c, size_t positions, float *out) {
    for (size_t p = 0; p < positions; p++)
        out[p] =
            (float)(1 + c->query_beta *
                            iv_log64(1.0 + (double)((p + (size_t)c->query_shift) / (size_t)c->original_positions)));
}
