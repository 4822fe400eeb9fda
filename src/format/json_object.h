/* json_object.h: typed, range-checked reads of a JSON object's members, for configuration files.
 *
 * Every reader leaves *out alone and sets *found to false when the key is absent or null: Hugging Face files
 * write null for "no value". A value of the wrong type or outside its range is IV_FORMAT, and the message
 * names the file, the field, what was wanted and what was found. */
#ifndef IV_FORMAT_JSON_OBJECT_H
#define IV_FORMAT_JSON_OBJECT_H

#include "format/json.h"

typedef struct iv_json_object {
    const char *file; /* heads every error */
    const char *path; /* of the object inside the file: "", or "rope_scaling." with its dot */
    json_t *json;     /* borrowed */
} iv_json_object;

/* Wraps value, or refuses it as IV_FORMAT if it is not an object. All pointers are borrowed. */
iv_status iv_json_object_of(const char *file, const char *path, json_t *value, iv_json_object *out, iv_error *err);

/* True if the key is there with a value other than null. */
bool iv_json_object_has(const iv_json_object *o, const char *key);

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
