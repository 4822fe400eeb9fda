/* adapter_config.h: adapter_config.json of PEFT: which modules of a model have an adapter of low rank, of which rank
 * and scale. What a configuration may ask for and is not done is refused by name: docs/LORA.md. */
#ifndef IV_FORMAT_ADAPTER_CONFIG_H
#define IV_FORMAT_ADAPTER_CONFIG_H

#include "format/json.h"

enum { IV_ADAPTER_RANK_MAX = 4096, IV_ADAPTER_CONFIG_BYTES_MAX = 16 << 20 };

typedef struct iv_adapter_config {
    json_t *root;
    const char *file; /* heads the errors; borrowed */
    int64_t rank;
    double alpha;
    bool root_scale; /* use_rslora: alpha / sqrt(rank) */
    bool all_linear;
    json_t *targets, *excluded; /* a string or an array of strings; excluded may be NULL */
    json_t *rank_pattern, *alpha_pattern, *layers, *layer_lists; /* or NULL */
} iv_adapter_config;

/* Pure. The caller closes *out; after an error nothing is left. */
iv_status iv_adapter_config_parse(const char *name, const char *json, size_t n, iv_adapter_config *out, iv_error *err);
void iv_adapter_config_close(iv_adapter_config *c);

/* Whether the configuration gives the module ("model.layers.0.self_attn.q_proj") an adapter. */
iv_status iv_adapter_config_selects(const iv_adapter_config *c, const char *module, bool *out, iv_error *err);

/* The module's rank, and the factor of its term: alpha / rank, or alpha / sqrt(rank), rounded once to float32. */
iv_status iv_adapter_config_numbers(const iv_adapter_config *c, const char *module, int64_t *rank, float *scale,
                                    iv_error *err);

#endif
