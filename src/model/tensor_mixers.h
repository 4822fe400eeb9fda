/* tensor_mixers.h: the tensors of a layer's mixer: attention, linear attention or a short convolution, with the layer's
 * norms. */
#ifndef IV_MODEL_TENSOR_MIXERS_H
#define IV_MODEL_TENSOR_MIXERS_H

#include "model/tensor_builder.h"

/* at: "model.layers.3."; index: of the layer. */
iv_status iv_builder_mixer(iv_tensor_builder *b, const char *at, size_t index);

#endif
