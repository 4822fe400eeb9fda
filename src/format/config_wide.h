/* config_wide.h: layers whose heads have other sizes, as Gemma 4's layers that see all positions. */
#ifndef IV_FORMAT_CONFIG_WIDE_H
#define IV_FORMAT_CONFIG_WIDE_H

#include "format/json.h"
#include "format/model_config.h"

/* Reads the sizes, of per_layer_config or of global_head_dim and num_global_key_value_heads. After those of all layers,
 * before the rotary settings. */
iv_status iv_config_parse_wide(const iv_json_object *o, iv_model_config *c, iv_error *err);

/* Which layers have them, after c->layer[].window: those that see all positions, the last one among them. */
iv_status iv_config_use_wide(const iv_json_object *o, iv_model_config *c, iv_error *err);

#endif
