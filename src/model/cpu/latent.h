/* latent.h: latent attention on the CPU, around the kernel of attention: NUMERICS.md 18. For ranks that have heads. */
#ifndef IV_MODEL_CPU_LATENT_H
#define IV_MODEL_CPU_LATENT_H

#include "model/cpu/cpu_model.h"

/* From the rows of qkv in `wide`: q, [tokens][heads][kv_rank + rope_dim], and each token's latent and turned key in the
 * layer's pages. */
void iv_cpu_latent_inputs(iv_cpu_model *s, size_t layer, const iv_kv_layout *layout, const iv_attention_span *spans,
                          unsigned char *kv);

/* From attention's rows, `latent`, to `attended`, [tokens][heads][value_dim]. */
void iv_cpu_latent_values(iv_cpu_model *s, size_t layer);

#endif
