/* config_wrapper.h: configurations of models that put a decoder next to towers for images or sound. */
#ifndef IV_FORMAT_CONFIG_WRAPPER_H
#define IV_FORMAT_CONFIG_WRAPPER_H

#include "format/json.h"

typedef struct iv_config_wrapper {
    const char *model_type, *text_type; /* of the whole; of the decoder, where text_config does not say it */
    unsigned stored;                    /* bits of tensor_places.h */
} iv_config_wrapper;

/* The decoder's configuration: of a wrapper its text_config, with the members that are given for the whole; else the
 * object itself. *flat is a new reference. *out: the wrapper, NULL if it is none. */
iv_status iv_config_unwrap(const iv_json_object *whole, json_t **flat, const iv_config_wrapper **out, iv_error *err);

/* The i-th of them, for messages; NULL behind the last one. */
const iv_config_wrapper *iv_config_wrapper_at(size_t i);

#endif
