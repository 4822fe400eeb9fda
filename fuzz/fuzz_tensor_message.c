/* fuzz_tensor_message.c: any bytes are a message of named tensors, in either form, or are refused; what is a message
 * has every tensor within its storage. */
#include "format/tensor_message.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const iv_tensor_message *m) {
    for (size_t i = 0; i < m->count; i++) {
        const iv_message_tensor *t = &m->tensors[i];
        size_t elements, bytes;
        IV_ASSERT(t->name && *t->name && t->storage < m->storage_count);
        const iv_message_storage *s = &m->storages[t->storage];
        IV_ASSERT(t->offset <= s->bytes && t->bytes <= s->bytes - t->offset);
        IV_ASSERT(iv_safetensors_shape_bytes(t->shape, t->ndim, iv_dtype_bytes(t->dtype), &elements, &bytes));
        IV_ASSERT(bytes == t->bytes);
        if (s->kind == IV_STORAGE_SHM) IV_ASSERT(strncmp(s->shm, "/torch_", 7) == 0 && !strchr(s->shm + 1, '/'));
    }
}

/* The first byte chooses the form and the rank. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iv_arena arena;
    iv_tensor_message m;
    iv_error err;
    if (size == 0) return 0;
    iv_arena_init(&arena, 64 << 20);
    if (iv_tensor_message_read("message", data + 1, size - 1, data[0] & 1, data[0] >> 1 & 3, &arena, &m, &err) == IV_OK)
        check(&m);
    iv_arena_free(&arena);
    return 0;
}
