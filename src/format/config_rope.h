/* config_rope.h: the rotary settings of a config.json. */
#ifndef IV_FORMAT_CONFIG_ROPE_H
#define IV_FORMAT_CONFIG_ROPE_H

#include "format/json.h"
#include "format/model_config.h"

/* How layers that slide rotate, where rope_parameters does not say so by layer type. */
typedef enum iv_local_rope {
    IV_LOCAL_SAME,     /* as all layers; the family has one setting */
    IV_LOCAL_UNSCALED, /* without the scaling */
    IV_LOCAL_THETA     /* without the scaling, by rope_local_base_freq */
} iv_local_rope;

/* What a family's code does where a file says nothing. */
typedef struct iv_rope_defaults {
    iv_local_rope local;
    double theta;        /* 0: 10,000 */
    double partial;      /* partial_rotary_factor; 0: the family turns whole heads */
    bool neighbours;     /* always: iv_rope_config.neighbours */
    bool scales_queries; /* llama_4_scaling_beta is read */
    bool proportional;   /* the kind of this name is */
    int64_t head_dim;    /* of what turns, where that is another number than a head's; else 0 */
    bool part_of_head;   /* partial_rotary_factor may be that number's part of a head */
} iv_rope_defaults;

/* Fills c->ropes: [0] of layers that see all positions; [1] of layers that slide, if theirs is another.
 * c->max_positions may grow to the context length that the scaling gives. */
iv_status iv_config_parse_rope(const iv_json_object *o, const iv_rope_defaults *family, iv_model_config *c,
                               iv_error *err);

#endif
