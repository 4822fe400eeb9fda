/* config_rope.h: the rotary settings of a config.json. */
#ifndef IV_FORMAT_CONFIG_ROPE_H
#define IV_FORMAT_CONFIG_ROPE_H

#include "format/json.h"
#include "format/model_config.h"

/* Fills c->ropes; c->max_positions may grow to the context length that the scaling gives. */
iv_status iv_config_parse_rope(const iv_json_object *o, iv_model_config *c, iv_error *err);

#endif
