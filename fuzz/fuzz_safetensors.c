/* fuzz_safetensors.c: any header either fails or describes tensors that tile the file exactly.
 * Input: 4 bytes of data size (little-endian), then the header. */
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    size_t n = size - 4, at = 8 + n;
    size_t data_bytes = data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16 | (size_t)data[3] << 24;
    iv_arena arena = {0};
    iv_tensor_info *tensors = NULL;
    size_t count = 0;
    iv_error err = {0};
    iv_status status =
        iv_safetensors_parse("fuzz", (const char *)data + 4, n, at + data_bytes, &arena, &tensors, &count, &err);
    if (status != IV_OK) IV_ASSERT(err.status == status && err.message[0]);
    for (size_t i = 0; status == IV_OK && i < count; i++) {
        const iv_tensor_info *t = &tensors[i];
        size_t elements = 1;
        IV_ASSERT(t->ndim >= 0 && t->ndim <= IV_TENSOR_DIMS_MAX && t->shard == 0);
        for (int d = 0; d < t->ndim; d++) elements *= (size_t)t->shape[d];
        IV_ASSERT(t->elements == elements && t->bytes == elements * iv_dtype_bytes(t->dtype));
        IV_ASSERT(t->offset == at && strlen(t->name) <= IV_TENSOR_NAME_BYTES_MAX);
        at += t->bytes;
    }
    if (status == IV_OK) IV_ASSERT(at == 8 + n + data_bytes);
    iv_arena_free(&arena);
    return 0;
}
