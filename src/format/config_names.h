/* config_names.h: sizes and settings that some families' files have under other names, or leave out: each call adds the
 * member of the usual name to the object. IV_FORMAT if what it is made of is missing. */
#ifndef IV_FORMAT_CONFIG_NAMES_H
#define IV_FORMAT_CONFIG_NAMES_H

#include "format/json.h"

/* Mixtral's experts have the size of its MLP. */
iv_status iv_config_use_experts_size(const iv_json_object *o, iv_error *err);

/* Gemma 4's name of num_experts_per_tok. */
iv_status iv_config_use_top_k(const iv_json_object *o, iv_error *err);

/* Llama 4's dense layers have a size of their own. */
iv_status iv_config_use_dense_size(const iv_json_object *o, const char *key, iv_error *err);

/* MiniMax-M2 says in dimensions how much of a head turns. */
iv_status iv_config_use_rotary_dim(const iv_json_object *o, int64_t head_dim, iv_error *err);

/* rope_parameters, as JSON text, of a file without any rotary settings. */
iv_status iv_config_use_rope(const iv_json_object *o, const char *text, iv_error *err);

#endif
