/* json.h: strict JSON for every file that invar reads (jansson underneath). */
#ifndef IV_FORMAT_JSON_H
#define IV_FORMAT_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Parses n bytes as one JSON value: duplicate keys, trailing and NUL bytes, invalid UTF-8, NaN and nesting over
 * jansson's limit are refused; NUL escapes are allowed in strings. An integer beyond 64 bits (often
 * tokenizer_config.json's model_max_length) becomes the nearest real. `name` heads the error. The caller owns *out
 * (json_decref). */
iv_status iv_json_parse(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err);

/* The same for a model's files, which Python wrote: fields that are not read may hold NaN, Infinity and -Infinity,
 * which JSON does not have. They become strings that are refused where a field is read. */
iv_status iv_json_parse_python(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err);

/* The same for text that a model wrote: an object may repeat a key; as in Python, the last value counts. */
iv_status iv_json_parse_repeating(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err);

/* The source text of a member of an object that iv_json_parse_repeating accepted. False: no such member, or memory is
 * out. */
bool iv_json_member_text(const char *object, size_t n, const char *key, const char **text, size_t *bytes);

/* The source text of the next element of an array that iv_json_parse_repeating accepted. *at: 0 at the start, then as
 * the previous call left it. False: no more elements. */
bool iv_json_element_text(const char *list, size_t n, size_t *at, const char **text, size_t *bytes);

/* The value of an integer's source text without a sign; false if it is not one, or above 64 bits. */
bool iv_json_unsigned(const char *text, size_t n, uint64_t *out);

/* The same as iv_json_parse_python for a file of at most max_bytes. */
iv_status iv_json_read(const char *path, size_t max_bytes, json_t **out, iv_error *err);

/* "object", "array", "string", "integer", "real", "true", "false", "null", "NaN", ...: for error lines. */
const char *iv_json_type_name(const json_t *value);

/* A value as text, shortened for an error line; "nothing" for NULL. Returns out. */
enum { IV_JSON_SHOWN_BYTES = 80 };
const char *iv_json_shown(const json_t *value, char out[IV_JSON_SHOWN_BYTES]);

/* ---- typed, range-checked reads of an object's members, for configuration files ----
 *
 * Every reader leaves *out alone and sets *found to false when the key is absent or null: Hugging Face files
 * write null for "no value". A value of the wrong type or outside its range is IV_FORMAT, and the message
 * names the file, the field, what was wanted and what was found. */

typedef struct iv_json_object {
    const char *file; /* heads every error */
    const char *path; /* of the object inside the file: "", or "rope_scaling." with its dot */
    json_t *json;     /* borrowed */
} iv_json_object;

/* Wraps value, or refuses it as IV_FORMAT if it is not an object. All pointers are borrowed. */
iv_status iv_json_object_of(const char *file, const char *path, json_t *value, iv_json_object *out, iv_error *err);

/* True if the key exists with a value other than null. */
bool iv_json_object_has(const iv_json_object *o, const char *key);

/* True if there is no such key; null is a value. */
bool iv_json_object_lacks(const iv_json_object *o, const char *key);

/* IV_FORMAT for a member that must be there: "FILE: PATHkey: wanted WANTED, found nothing". */
iv_status iv_json_object_missing(const iv_json_object *o, const char *key, const char *wanted, iv_error *err);

/* An integer in [min, max]. A real without a fraction counts (1e6). */
iv_status iv_json_object_int(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                             bool *found, iv_error *err);

/* A number in [min, max]; integers count. */
iv_status iv_json_object_real(const iv_json_object *o, const char *key, double min, double max, double *out,
                              bool *found, iv_error *err);

iv_status iv_json_object_bool(const iv_json_object *o, const char *key, bool *out, bool *found, iv_error *err);

/* A string without NUL, borrowed from the JSON value. */
iv_status iv_json_object_string(const iv_json_object *o, const char *key, const char **out, bool *found, iv_error *err);

/* One integer or an array of them, each in [min, max]; more than capacity is IV_LIMIT. */
iv_status iv_json_object_ints(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                              size_t capacity, size_t *count, bool *found, iv_error *err);

#endif
