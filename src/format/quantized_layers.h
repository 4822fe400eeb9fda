/* quantized_layers.h: which tensors of a checkpoint are linear layers that are quantized. */
#ifndef IV_FORMAT_QUANTIZED_LAYERS_H
#define IV_FORMAT_QUANTIZED_LAYERS_H

#include "format/safetensors.h"

/* Whether a checkpoint's tensor is a linear layer that is quantized. */
bool iv_quantize_is_layer(const iv_tensor_info *t);

#endif
