/* fuzz_generation_config.c: any generation_config.json either fails or is in range. Input: the JSON. */
#include "format/generation_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iv_generation_config g;
    iv_error err = {0};
    iv_status status = iv_generation_config_parse("fuzz", (const char *)data, size, &g, &err);
    if (status != IV_OK) {
        IV_ASSERT(err.status == status && err.message[0]);
        return 0;
    }
    if (g.has_temperature) IV_ASSERT(g.temperature >= 0 && g.temperature <= IV_TEMPERATURE_MAX);
    if (g.has_top_k) IV_ASSERT(g.top_k >= 0 && g.top_k <= IV_VOCAB_MAX);
    if (g.has_top_p) IV_ASSERT(g.top_p >= 0 && g.top_p <= 1);
    if (g.has_min_p) IV_ASSERT(g.min_p >= 0 && g.min_p <= 1);
    if (g.has_repetition_penalty) IV_ASSERT(g.repetition_penalty > 0);
    if (g.has_max_new_tokens) IV_ASSERT(g.max_new_tokens >= 1);
    if (g.has_bos) IV_ASSERT(g.bos_id >= 0 && g.bos_id < IV_VOCAB_MAX);
    IV_ASSERT(g.eos_count <= IV_EOS_IDS_MAX && (g.has_eos || g.eos_count == 0));
    for (size_t i = 0; i < g.eos_count; i++) IV_ASSERT(g.eos_ids[i] >= 0 && g.eos_ids[i] < IV_VOCAB_MAX);
    return 0;
}
