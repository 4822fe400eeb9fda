/* fuzz_adapter.c: any adapter_config.json and header of tensors either fail or pair up. Input: the configuration, a
 * NUL, the header of the safetensors file. */
#include "format/adapter.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const iv_status status, const iv_error *err) {
    IV_ASSERT(status == IV_OK || (err->status == status && err->message[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    size_t n = strnlen(text, size);
    const char *header = n < size ? text + n + 1 : text + n;
    iv_adapter_config c;
    iv_adapter_parts parts;
    iv_arena arena;
    iv_tensor_info *tensors;
    size_t count, bytes = size - (size_t)(header - text);
    iv_error err = {0};
    iv_status status = iv_adapter_config_parse("fuzz", text, n, &c, &err);
    check(status, &err);
    if (status != IV_OK) return 0;
    iv_arena_init(&arena, (size_t)64 << 20);
    status = iv_safetensors_parse("fuzz", header, bytes, (size_t)1 << 30, &arena, &tensors, &count, &err);
    if (status == IV_OK) {
        status = iv_adapter_parts_make("fuzz", &c, tensors, count, &arena, &parts, &err);
        check(status, &err);
        for (size_t i = 0; status == IV_OK && i < parts.count; i++) {
            const iv_adapter_part *p = &parts.part[i];
            IV_ASSERT(p->rank >= 1 && p->rank <= IV_ADAPTER_RANK_MAX && p->rank <= parts.rank_max);
            IV_ASSERT((size_t)p->a.shape[0] == p->rank && (size_t)p->b.shape[1] == p->rank && *p->module);
            IV_ASSERT(i == 0 || strcmp(p[-1].module, p->module) < 0);
        }
    }
    iv_arena_free(&arena);
    iv_adapter_config_close(&c);
    return 0;
}
