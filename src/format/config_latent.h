/* config_latent.h: latent attention in config.json: the ranks and the parts of heads. */
#ifndef IV_FORMAT_CONFIG_LATENT_H
#define IV_FORMAT_CONFIG_LATENT_H

#include "format/json.h"
#include "format/model_config.h"

/* For the families that have it, in place of the sizes of heads, after c->heads: fills the members of latent attention,
 * kv_heads and head_dim. */
iv_status iv_config_parse_latent(const iv_json_object *o, iv_model_config *c, iv_error *err);

/* After the rotary settings: whether the rotation's pairs are neighbours in files, and the scale of scores that YaRN's
 * mscale_all_dim changes. */
iv_status iv_config_use_latent(const iv_json_object *o, iv_model_config *c, iv_error *err);

#endif
