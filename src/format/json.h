/* json.h: strict JSON for every file that invar reads (jansson underneath). */
#ifndef IV_FORMAT_JSON_H
#define IV_FORMAT_JSON_H

#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Parses n bytes as one JSON value: duplicate keys, trailing and NUL bytes, invalid UTF-8, NaN and nesting over
 * jansson's limit are refused; NUL escapes are allowed in strings. An integer beyond 64 bits, as
 * tokenizer_config.json's model_max_length often is, comes as a real, the nearest one. `name` heads the error.
 * The caller owns *out (json_decref). */
iv_status iv_json_parse(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err);

/* The same for a model's files, which Python wrote: NaN, Infinity and -Infinity, which JSON does not have, may be
 * values of what is not read. They come as strings that iv_json_word knows. */
iv_status iv_json_parse_python(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err);
/* The word, if a value is one of these; else NULL. */
const char *iv_json_word(const json_t *value);

/* The same where an object may name a member twice: the last one counts, as in Python. For what models write. */
iv_status iv_json_parse_repeating(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err);

/* A member's own text, as it is written, of an object that iv_json_parse_repeating took. False: the object has no such
 * member, or memory is out. */
bool iv_json_member_text(const char *object, size_t n, const char *key, const char **text, size_t *bytes);

/* The next element's own text of a list that iv_json_parse_repeating took. *at: 0 before the first one, else as it was
 * left. False: there are no more. */
bool iv_json_element_text(const char *list, size_t n, size_t *at, const char **text, size_t *bytes);

/* An integer's own text as a number without sign; false if it is none, or above 64 bits. */
bool iv_json_unsigned(const char *text, size_t n, uint64_t *out);

/* The same as iv_json_parse_python for a file of at most max_bytes. */
iv_status iv_json_read(const char *path, size_t max_bytes, json_t **out, iv_error *err);

/* "object", "array", "string", "integer", "real", "true", "false", "null", "NaN", ...: for error lines. */
const char *iv_json_type_name(const json_t *value);

/* A value as text, cut where it is longer than an error line should have: "nothing" for NULL. Returns out. */
enum { IV_JSON_SHOWN_BYTES = 80 };
const char *iv_json_shown(const json_t *value, char out[IV_JSON_SHOWN_BYTES]);

#endif
