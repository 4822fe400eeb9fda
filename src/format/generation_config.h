/* generation_config.h: generation_config.json: the sampling defaults that a model's authors suggest. Every field is
 * optional, and so is the file. */
#ifndef IV_FORMAT_GENERATION_CONFIG_H
#define IV_FORMAT_GENERATION_CONFIG_H

#include "format/model_config.h"

#define IV_TEMPERATURE_MAX 100.0
#define IV_REPETITION_PENALTY_MAX 100.0
enum { IV_UNAPPLIED_BYTES = 1024 };

/* A value counts only if its has_ flag is set. */
typedef struct iv_generation_config {
    bool has_do_sample, do_sample;
    bool has_temperature, has_top_k, has_top_p, has_min_p, has_repetition_penalty;
    double temperature;        /* 0 to IV_TEMPERATURE_MAX */
    int64_t top_k;             /* 0 to IV_VOCAB_MAX; 0: off */
    double top_p, min_p;       /* 0 to 1 */
    double repetition_penalty; /* above 0; 1: off */
    bool has_max_new_tokens, has_max_length;
    int64_t max_new_tokens, max_length; /* 1 to IV_POSITIONS_MAX */
    bool has_bos, has_pad, has_eos;
    int64_t bos_id, pad_id; /* 0 to IV_VOCAB_MAX - 1 */
    int64_t eos_ids[IV_EOS_IDS_MAX];
    size_t eos_count;
    /* Keys that would change an answer of transformers but are not implemented here, with values that are not neutral:
     * one "KEY VALUE" a line, as many as fit. */
    char unapplied[IV_UNAPPLIED_BYTES];
} iv_generation_config;

/* Parses n bytes; `name` heads the errors. Pure. */
iv_status iv_generation_config_parse(const char *name, const char *json, size_t n, iv_generation_config *out,
                                     iv_error *err);

/* The same for dir/generation_config.json; IV_OK with nothing set when there is no such file. */
iv_status iv_generation_config_read(const char *dir, iv_generation_config *out, iv_error *err);

#endif
