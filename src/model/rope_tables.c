/* rope_tables.c: from a configuration to the rule of numerics/rope.h. */
#include "model/rope_tables.h"
#include "base/size.h"
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

void iv_rope_tables(const iv_rope_config *c, size_t head_dim, iv_pool *pool, size_t positions, float *cosine,
                    float *sine) {
    double frequencies[IV_HEAD_DIM_MAX / 2];
    iv_rope_rule rule = {.theta = c->theta,
                         .factor = c->factor,
                         .low_freq = c->low_freq_factor,
                         .high_freq = c->high_freq_factor,
                         .original_positions = (double)c->original_positions,
                         .beta_fast = c->beta_fast,
                         .beta_slow = c->beta_slow,
                         .truncate = c->truncate};
    size_t rotated = c->rotated ? (size_t)c->rotated : head_dim;
    if (c->kind == IV_ROPE_NONE)
        memset(frequencies, 0, sizeof frequencies);
    else
        iv_rope_frequencies(&rule, rotated, frequencies);
    rope_job job = {frequencies, head_dim / 2, rotated / 2, positions, 1, cosine, sine};
    if (c->kind == IV_ROPE_YARN)
        job.attention = c->attention != 0
                            ? c->attention
                            : iv_rope_yarn_attention(c->factor, c->mscale, c->mscale_all_dim) * c->attn_factor;
    iv_pool_run(pool, (positions + ROWS_A_TASK - 1) / ROWS_A_TASK, rope_task, &job);
}
