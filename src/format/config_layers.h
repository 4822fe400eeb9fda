/* config_layers.h: what differs by layer in config.json: windows, layers without a rotation, where norms stand. */
#ifndef IV_FORMAT_CONFIG_LAYERS_H
#define IV_FORMAT_CONFIG_LAYERS_H

#include "format/config_families.h"

/* After c's sizes and rotary settings. Fills c->layer; an error names the member. */
iv_status iv_config_parse_layers(const iv_json_object *o, const iv_family_facts *f, iv_model_config *c, iv_error *err);

#endif
