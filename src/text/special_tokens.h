/* special_tokens.h: the special tokens that a model directory names. */
#ifndef IV_TEXT_SPECIAL_TOKENS_H
#define IV_TEXT_SPECIAL_TOKENS_H

#include "base/status.h"

#include <jansson.h>

/* Adds "bos_token", "eos_token" and their like to `into`, each as a string: those of tokenizer_config.json, which is
 * `config` (NULL: there is none), and over them, where that is of the older form without added_tokens_decoder, those of
 * special_tokens_map.json. */
iv_status iv_special_tokens_read(const char *dir, const json_t *config, json_t *into, iv_error *err);

#endif
