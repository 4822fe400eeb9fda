/* fuzz_index.c: any index either fails or names plain files, each once and in order. Input: the JSON. */
#include "format/shard_index.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iv_arena arena = {0};
    iv_shard_index index = {0};
    iv_error err = {0};
    iv_status status = iv_shard_index_parse("fuzz", (const char *)data, size, &arena, &index, &err);
    if (status != IV_OK) IV_ASSERT(err.status == status && err.message[0]);
    for (size_t i = 0; status == IV_OK && i < index.shard_count; i++) {
        const char *s = index.shards[i];
        IV_ASSERT(s[0] && s[0] != '.' && !strchr(s, '/') && strstr(s, ".safetensors"));
        IV_ASSERT(i == 0 || strcmp(index.shards[i - 1], s) < 0);
    }
    for (size_t i = 0; status == IV_OK && i < index.count; i++) {
        const iv_shard_entry *e = &index.entries[i];
        IV_ASSERT(e->shard >= 0 && (size_t)e->shard < index.shard_count);
        IV_ASSERT(i == 0 || strcmp(index.entries[i - 1].tensor, e->tensor) < 0);
    }
    iv_arena_free(&arena);
    return 0;
}
