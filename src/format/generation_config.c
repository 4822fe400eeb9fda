/* generation_config.c: a flat object of optional numbers.
 *
 * Invariant: every value whose has_ flag is set lies in the range given in the header. */
#include "format/generation_config.h"
#include "base/file.h"
#include "format/json.h"

#include <stdio.h>
#include <string.h>

/* Published files use the id -1 for "none". */
static iv_status parse_id(const iv_json_object *o, const char *key, int64_t *out, bool *has, iv_error *err) {
    int64_t id = -1;
    IV_TRY(iv_json_object_int(o, key, -1, IV_VOCAB_MAX - 1, &id, has, err));
    *has = *has && id >= 0;
    if (*has) *out = id;
    return IV_OK;
}

static iv_status parse_eos(const iv_json_object *o, iv_generation_config *g, iv_error *err) {
    int64_t ids[IV_EOS_IDS_MAX];
    size_t count = 0;
    bool found;
    IV_TRY(iv_json_object_ints(o, "eos_token_id", -1, IV_VOCAB_MAX - 1, ids, IV_EOS_IDS_MAX, &count, &found, err));
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= 0) g->eos_ids[g->eos_count++] = ids[i];
    g->has_eos = g->eos_count > 0;
    return IV_OK;
}

static iv_status parse_fields(const iv_json_object *o, iv_generation_config *g, iv_error *err) {
    IV_TRY(iv_json_object_bool(o, "do_sample", &g->do_sample, &g->has_do_sample, err));
    IV_TRY(iv_json_object_real(o, "temperature", 0, IV_TEMPERATURE_MAX, &g->temperature, &g->has_temperature, err));
    IV_TRY(iv_json_object_int(o, "top_k", -1, IV_VOCAB_MAX, &g->top_k, &g->has_top_k, err));
    if (g->top_k == -1) g->top_k = 0; /* vLLM's value for off */
    IV_TRY(iv_json_object_real(o, "top_p", 0, 1, &g->top_p, &g->has_top_p, err));
    if (g->has_top_p && g->top_p == 0)
        return iv_fail(err, IV_FORMAT, "%s: top_p: wanted a number above 0, found 0", o->file);
    IV_TRY(iv_json_object_real(o, "min_p", 0, 1, &g->min_p, &g->has_min_p, err));
    IV_TRY(iv_json_object_real(o, "repetition_penalty", 0, IV_REPETITION_PENALTY_MAX, &g->repetition_penalty,
                               &g->has_repetition_penalty, err));
    if (g->has_repetition_penalty && g->repetition_penalty == 0)
        return iv_fail(err, IV_FORMAT, "%s: repetition_penalty: wanted a number above 0, found 0", o->file);
    IV_TRY(
        iv_json_object_int(o, "max_new_tokens", 1, IV_POSITIONS_MAX, &g->max_new_tokens, &g->has_max_new_tokens, err));
    IV_TRY(iv_json_object_int(o, "max_length", 1, IV_POSITIONS_MAX, &g->max_length, &g->has_max_length, err));
    IV_TRY(parse_id(o, "bos_token_id", &g->bos_id, &g->has_bos, err));
    IV_TRY(parse_id(o, "pad_token_id", &g->pad_id, &g->has_pad, err));
    return parse_eos(o, g, err);
}

/* Keys of transformers' GenerationConfig 4.57 and 5, with their neutral values. */
static const struct {
    const char *key, *neutral; /* values between bars */
} unapplied[] = {
    {"min_length", "|0|"},
    {"min_new_tokens", "|0|"},
    {"max_time", ""},
    {"stop_strings", "|[]|"},
    {"num_beams", "|1|"},
    {"num_beam_groups", "|1|"},
    {"num_return_sequences", "|1|"},
    {"diversity_penalty", "|0|0.0|"},
    {"length_penalty", "|1|1.0|"},
    {"constraints", "|[]|"},
    {"force_words_ids", "|[]|"},
    {"typical_p", "|1|1.0|"},
    {"top_h", "|1|1.0|"},
    {"epsilon_cutoff", "|0|0.0|"},
    {"eta_cutoff", "|0|0.0|"},
    {"presence_penalty", "|0|0.0|"},
    {"frequency_penalty", "|0|0.0|"},
    {"encoder_repetition_penalty", "|1|1.0|"},
    {"no_repeat_ngram_size", "|0|"},
    {"encoder_no_repeat_ngram_size", "|0|"},
    {"bad_words_ids", "|[]|"},
    {"suppress_tokens", "|[]|"},
    {"begin_suppress_tokens", "|[]|"},
    {"forced_bos_token_id", ""},
    {"forced_eos_token_id", "|[]|"},
    {"sequence_bias", "|{}|[]|"},
    {"exponential_decay_length_penalty", ""},
    {"remove_invalid_values", "|false|"},
    {"token_healing", "|false|"},
    {"guidance_scale", "|1|1.0|"},
    {"watermarking_config", ""},
    {"penalty_alpha", "|0|0.0|"},
    {"dola_layers", ""},
};

static void list_unapplied(const iv_json_object *o, iv_generation_config *g) {
    size_t n = 0;
    for (size_t i = 0; i < sizeof unapplied / sizeof *unapplied; i++) {
        char shown[IV_JSON_SHOWN_BYTES], bars[IV_JSON_SHOWN_BYTES + 4], line[IV_JSON_SHOWN_BYTES + 60];
        if (!iv_json_object_has(o, unapplied[i].key)) continue;
        iv_json_shown(json_object_get(o->json, unapplied[i].key), shown);
        snprintf(bars, sizeof bars, "|%s|", shown);
        if (strstr(unapplied[i].neutral, bars)) continue;
        size_t length = (size_t)snprintf(line, sizeof line, "%s%s %s", n ? "\n" : "", unapplied[i].key, shown);
        if (length >= sizeof g->unapplied - n) return;
        memcpy(g->unapplied + n, line, length + 1);
        n += length;
    }
}

iv_status iv_generation_config_parse(const char *name, const char *json, size_t n, iv_generation_config *out,
                                     iv_error *err) {
    json_t *root;
    iv_json_object top;
    *out = (iv_generation_config){0};
    IV_TRY(iv_json_parse_python(name, json, n, &root, err));
    iv_status status = iv_json_object_of(name, "", root, &top, err);
    if (status == IV_OK) status = parse_fields(&top, out, err);
    if (status == IV_OK) list_unapplied(&top, out);
    json_decref(root);
    return status;
}

iv_status iv_generation_config_read(const char *dir, iv_generation_config *out, iv_error *err) {
    iv_buf path = {0}, bytes = {0};
    *out = (iv_generation_config){0};
    iv_status status = iv_path_join(dir, "generation_config.json", &path, err);
    if (status == IV_OK && iv_file_exists(path.data)) {
        status = iv_file_read(path.data, IV_CONFIG_BYTES_MAX, &bytes, err);
        if (status == IV_OK) status = iv_generation_config_parse(path.data, bytes.data, bytes.len, out, err);
    }
    iv_buf_free(&bytes);
    iv_buf_free(&path);
    return status;
}
