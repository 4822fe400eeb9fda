/* rope_tables.h: the rotary tables of a configuration. Law: NUMERICS.md section 6. */
#ifndef IV_MODEL_ROPE_TABLES_H
#define IV_MODEL_ROPE_TABLES_H

#include "base/threads.h"
#include "format/model_config.h"

/* Of c->ropes[rope]; cosine, sine: [positions][head_dim / 2]. Over threads. */
void iv_rope_tables(const iv_model_config *c, int rope, iv_pool *pool, size_t positions, float *cosine, float *sine);

/* What rotated queries are multiplied by, [positions]; query_beta is not 0. */
void iv_rope_query_scales(const iv_rope_config *c, size_t positions, float *out);

#endif
