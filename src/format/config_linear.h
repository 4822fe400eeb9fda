/* config_linear.h: layers with a state in config.json, linear attention and short convolutions: their sizes, and which
 * layers they are. */
#ifndef IV_FORMAT_CONFIG_LINEAR_H
#define IV_FORMAT_CONFIG_LINEAR_H

#include "format/json.h"
#include "format/model_config.h"

/* For the families that have them, after c->layers: fills the linear_ members, and mixer and attention_gate of the
 * layers. */
iv_status iv_config_parse_linear(const iv_json_object *o, iv_model_config *c, iv_error *err);

/* The same for LFM2: short convolutions, norm_eps in place of rms_norm_eps; adjusts: the MLP's size is made from
 * intermediate_size. */
iv_status iv_config_parse_short_conv(const iv_json_object *o, bool adjusts, iv_model_config *c, iv_error *err);

#endif
