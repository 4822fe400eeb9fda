/* tensor_latent.h: the tensors of a layer with latent attention (NUMERICS.md 18). */
#ifndef IV_MODEL_TENSOR_LATENT_H
#define IV_MODEL_TENSOR_LATENT_H

#include "model/tensor_builder.h"

/* As iv_builder_mixer, without the layer's norms. A head has its part of kv_b_proj as two matrices: its values' rows,
 * and its keys' transposed, which take a query to the latent. Neither stays packed. */
iv_status iv_builder_latent(iv_tensor_builder *b, const char *at, size_t index);

#endif
