/* rope_tables.c: from a configuration to the rule of numerics/rope.h. */
#include "model/rope_tables.h"
#include "base/size.h"
#include "numerics/rope.h"

typedef struct rope_job {
    const double *frequencies;
    size_t pairs, positions;
    double attention; /* factor of cosines and sines */
    float *cosine, *sine;
} rope_job;

enum { ROWS_A_TASK = 256 };

static void rope_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const rope_job *j = context;
    size_t end = iv_size_min((index + 1) * ROWS_A_TASK, j->positions);
    for (size_t p = index * ROWS_A_TASK; p < end; p++)
        iv_rope_row(j->frequencies, j->pairs, (int64_t)p, j->attention, j->cosine + p * j->pairs,
                    j->sine + p * j->pairs);
}

void iv_rope_tables(const iv_model_config *c, iv_pool *pool, size_t positions, float *cosine, float *sine) {
    double frequencies[IV_HEAD_DIM_MAX / 2];
    iv_rope_rule rule = {.theta = c->rope_theta,
                         .factor = c->rope_factor,
                         .low_freq = c->rope_low_freq_factor,
                         .high_freq = c->rope_high_freq_factor,
                         .original_positions = (double)c->rope_original_positions,
                         .beta_fast = c->rope_beta_fast,
                         .beta_slow = c->rope_beta_slow,
                         .truncate = c->rope_truncate};
    iv_rope_frequencies(&rule, (size_t)c->head_dim, frequencies);
    rope_job job = {frequencies, (size_t)c->head_dim / 2, positions, 1, cosine, sine};
    if (c->rope == IV_ROPE_YARN)
        job.attention =
            c->rope_attention != 0
                ? c->rope_attention
                : iv_rope_yarn_attention(c->rope_factor, c->rope_mscale, c->rope_mscale_all_dim) * c->rope_attn_factor;
    iv_pool_run(pool, (positions + ROWS_A_TASK - 1) / ROWS_A_TASK, rope_task, &job);
}
