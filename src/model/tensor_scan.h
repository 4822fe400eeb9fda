/* tensor_scan.h: the tensors of a layer with a selective scan. */
#ifndef IV_MODEL_TENSOR_SCAN_H
#define IV_MODEL_TENSOR_SCAN_H

#include "model/tensor_builder.h"

/* Adds those of the layer, with its norms; `at`: the layer's prefix. */
iv_status iv_builder_scan(iv_tensor_builder *b, const char *at, size_t index);

#endif
