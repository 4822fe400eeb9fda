/* config_linear.h: layers of linear attention in config.json: their sizes, and which layers they are. */
#ifndef IV_FORMAT_CONFIG_LINEAR_H
#define IV_FORMAT_CONFIG_LINEAR_H

#include "format/json.h"
#include "format/model_config.h"

/* For the families that have them, after c->layers: fills the linear_ members, and mixer and attention_gate of the
 * layers. */
iv_status iv_config_parse_linear(const iv_json_object *o, iv_model_config *c, iv_error *err);

#endif
