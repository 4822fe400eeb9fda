/* json_object.c: one place where a JSON value becomes a C value. */
#include "format/json_object.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

iv_status iv_json_object_of(const char *file, const char *path, json_t *value, iv_json_object *out, iv_error *err) {
    if (!json_is_object(value)) {
        size_t n = strlen(path);
        if (n == 0) return iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", file, iv_json_type_name(value));
        return iv_fail(err, IV_FORMAT, "%s: %.*s: wanted an object, found %s", file, (int)(n - 1), path,
                       iv_json_type_name(value));
    }
    *out = (iv_json_object){.file = file, .path = path, .json = value};
    return IV_OK;
}

/* NULL for an absent key and for null. */
static const json_t *member(const iv_json_object *o, const char *key) {
    const json_t *value = json_object_get(o->json, key);
    return json_is_null(value) ? NULL : value;
}

bool iv_json_object_has(const iv_json_object *o, const char *key) { return member(o, key) != NULL; }

/* What was found, short enough for a message: the number itself, else the type. */
static const char *describe(const json_t *value, char buf[48]) {
    if (json_is_integer(value))
        snprintf(buf, 48, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(buf, 48, "%.15g", json_real_value(value));
    else if (iv_json_word(value))
        snprintf(buf, 48, "%s, which JSON does not have", iv_json_word(value));
    else
        snprintf(buf, 48, "%s", iv_json_type_name(value));
    return buf;
}

static iv_status fail_int(const iv_json_object *o, const char *key, int64_t min, int64_t max, const json_t *value,
                          iv_error *err) {
    char found[48];
    return iv_fail(err, IV_FORMAT, "%s: %s%.100s: wanted an integer from %" PRId64 " to %" PRId64 ", found %s", o->file,
                   o->path, key, min, max, describe(value, found));
}

/* False unless value is an integer in [min, max]. */
static bool to_int(const json_t *value, int64_t min, int64_t max, int64_t *out) {
    if (json_is_integer(value)) {
        json_int_t v = json_integer_value(value);
        if (v < min || v > max) return false;
        *out = v;
        return true;
    }
    if (!json_is_real(value)) return false;
    double v = json_real_value(value);
    /* Above 2^53 a real no longer says which integer was meant. */
    if (!(v >= -9007199254740992.0 && v <= 9007199254740992.0) || v != (double)(int64_t)v) return false;
    if ((int64_t)v < min || (int64_t)v > max) return false;
    *out = (int64_t)v;
    return true;
}

iv_status iv_json_object_int(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                             bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    *found = value != NULL;
    if (!value || to_int(value, min, max, out)) return IV_OK;
    return fail_int(o, key, min, max, value, err);
}

iv_status iv_json_object_real(const iv_json_object *o, const char *key, double min, double max, double *out,
                              bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    char text[48];
    *found = value != NULL;
    if (!value) return IV_OK;
    double v = json_number_value(value);
    if (!json_is_number(value) || !(v >= min && v <= max))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted a number from %g to %g, found %s", o->file, o->path, key, min,
                       max, describe(value, text));
    *out = v;
    return IV_OK;
}

iv_status iv_json_object_bool(const iv_json_object *o, const char *key, bool *out, bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    char text[48];
    *found = value != NULL;
    if (!value) return IV_OK;
    if (!json_is_boolean(value))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted true or false, found %s", o->file, o->path, key,
                       describe(value, text));
    *out = json_is_true(value);
    return IV_OK;
}

iv_status iv_json_object_string(const iv_json_object *o, const char *key, const char **out, bool *found,
                                iv_error *err) {
    const json_t *value = member(o, key);
    char text[48];
    *found = value != NULL;
    if (!value) return IV_OK;
    if (!json_is_string(value) || iv_json_word(value))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted a string, found %s", o->file, o->path, key,
                       describe(value, text));
    if (strlen(json_string_value(value)) != json_string_length(value))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: the string holds a NUL", o->file, o->path, key);
    *out = json_string_value(value);
    return IV_OK;
}

iv_status iv_json_object_ints(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                              size_t capacity, size_t *count, bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    *found = value != NULL;
    if (!value) return IV_OK;
    if (!json_is_array(value)) {
        IV_ASSERT(capacity > 0);
        if (!to_int(value, min, max, &out[0])) return fail_int(o, key, min, max, value, err);
        *count = 1;
        return IV_OK;
    }
    size_t n = json_array_size(value);
    if (n > capacity)
        return iv_fail(err, IV_LIMIT, "%s: %s%s: %zu entries, at most %zu are read", o->file, o->path, key, n,
                       capacity);
    for (size_t i = 0; i < n; i++) {
        char place[120];
        snprintf(place, sizeof place, "%.80s[%zu]", key, i);
        const json_t *item = json_array_get(value, i);
        if (!to_int(item, min, max, &out[i])) return fail_int(o, place, min, max, item, err);
    }
    *count = n;
    return IV_OK;
}
