/* json_schema.c: kinds are sets: keywords of one schema intersect, branches unite. */
#include "format/json_schema.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    UNSAID = 2 * IV_KIND_ALL + 1, /* no constraint: every kind, and a bit that no keyword sets */
    DEPTH_MAX = 64,
    LOOKS_MAX = 80000, /* per answer ... */
    A_SCHEMA = 8       /* ... a schema costs this many, an entry of a list one */
};

typedef struct kind_name {
    const char *name;
    unsigned bits;
} kind_name;

static const kind_name types[] = {{"null", IV_KIND_NULL},       {"boolean", IV_KIND_BOOLEAN},
                                  {"integer", IV_KIND_INTEGER}, {"number", IV_KIND_INTEGER | IV_KIND_NUMBER},
                                  {"string", IV_KIND_STRING},   {"array", IV_KIND_ARRAY},
                                  {"object", IV_KIND_OBJECT}};

static const kind_name subjects[] = {
    {"minLength", IV_KIND_STRING},
    {"maxLength", IV_KIND_STRING},
    {"pattern", IV_KIND_STRING},
    {"format", IV_KIND_STRING},
    {"minimum", IV_KIND_INTEGER | IV_KIND_NUMBER},
    {"maximum", IV_KIND_INTEGER | IV_KIND_NUMBER},
    {"exclusiveMinimum", IV_KIND_INTEGER | IV_KIND_NUMBER},
    {"exclusiveMaximum", IV_KIND_INTEGER | IV_KIND_NUMBER},
    {"items", IV_KIND_ARRAY},
    {"prefixItems", IV_KIND_ARRAY},
    {"minItems", IV_KIND_ARRAY},
    {"maxItems", IV_KIND_ARRAY},
    {"uniqueItems", IV_KIND_ARRAY},
    {"properties", IV_KIND_OBJECT},
    {"required", IV_KIND_OBJECT},
    {"additionalProperties", IV_KIND_OBJECT},
    {"minProperties", IV_KIND_OBJECT},
    {"maxProperties", IV_KIND_OBJECT},
};

unsigned iv_json_kind_named(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0) return types[i].bits;
    return 0;
}

unsigned iv_json_kind_of(const json_t *value) {
    double x = json_number_value(value);
    switch (json_typeof(value)) {
    case JSON_OBJECT: return IV_KIND_OBJECT;
    case JSON_ARRAY: return IV_KIND_ARRAY;
    case JSON_STRING: return IV_KIND_STRING;
    case JSON_INTEGER: return IV_KIND_INTEGER;
    case JSON_REAL: return x == floor(x) ? IV_KIND_INTEGER : IV_KIND_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return IV_KIND_BOOLEAN;
    default: return IV_KIND_NULL;
    }
}

unsigned iv_json_keyword_kinds(const json_t *schema) {
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        if (json_object_get(schema, subjects[i].name)) bits |= subjects[i].bits;
    return bits;
}

/* ---- references ---------------------------------------------------------------------------------------- */

/* One step of a JSON pointer, unescaped into out; returns the rest. */
static const char *pointer_step(const char *p, char *out, size_t size) {
    size_t n = 0;
    for (; *p && *p != '/' && n + 1 < size; p++) {
        char c = *p;
        if (c == '~' && (p[1] == '0' || p[1] == '1')) c = *++p == '0' ? '~' : '/';
        if (c == '%' && p[1] == '2' && p[2] == '4') c = '$', p += 2; /* some writers use "%24defs" */
        out[n++] = c;
    }
    out[n] = 0;
    return p;
}

json_t *iv_json_pointer(json_t *root, const char *text) {
    char key[400];
    if (text[0] != '#' || (text[1] && text[1] != '/')) return NULL;
    for (const char *p = text + 1; *p == '/' && root;) {
        p = pointer_step(p + 1, key, sizeof key);
        if (json_is_array(root)) {
            char *end;
            unsigned long i = strtoul(key, &end, 10);
            root = *key && !*end ? json_array_get(root, i) : NULL;
        } else {
            root = json_object_get(root, key);
        }
        if (*p && *p != '/') root = NULL; /* longer than any key of interest */
    }
    return root;
}

/* ---- kinds --------------------------------------------------------------------------------------------- */

typedef struct look {
    json_t *root;
    bool spoken; /* keywords other than "type" count too */
    size_t left; /* LOOKS_MAX minus the steps taken */
} look;

/* The kinds of the property `name`; NULL: of the schema itself. */
static unsigned kinds_of(look *l, json_t *schema, const char *name, int depth);

static bool take_looks(look *l, size_t n) {
    bool enough = l->left >= n;
    l->left -= enough ? n : l->left;
    return enough;
}

static unsigned kinds_of_type(look *l, const json_t *type) {
    unsigned bits = 0;
    if (json_is_string(type)) bits = iv_json_kind_named(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type) && take_looks(l, 1); i++) {
        const char *one = json_string_value(json_array_get(type, i));
        bits |= one ? iv_json_kind_named(one) : 0;
    }
    return bits ? bits : UNSAID;
}

/* A list longer than the budget allows any kind. */
static unsigned kinds_of_values(look *l, const json_t *list) {
    unsigned bits = 0;
    if (!take_looks(l, json_array_size(list))) return UNSAID;
    for (size_t i = 0; i < json_array_size(list); i++) bits |= iv_json_kind_of(json_array_get(list, i));
    return bits;
}

/* The kinds that the schema's own keywords allow. */
static unsigned own_kinds(look *l, json_t *schema) {
    json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    unsigned bits = kinds_of_type(l, json_object_get(schema, "type"));
    if (json_is_array(list)) bits &= kinds_of_values(l, list);
    if (only) bits &= iv_json_kind_of(only);
    unsigned spoken = l->spoken && bits == UNSAID ? iv_json_keyword_kinds(schema) : 0;
    return spoken ? spoken : bits;
}

/* The kinds that they allow for a property. */
static unsigned property_kinds(look *l, json_t *schema, const char *name, int depth) {
    json_t *found = json_object_get(json_object_get(schema, "properties"), name);
    if (!found) found = json_object_get(schema, "additionalProperties");
    return json_is_object(found) ? kinds_of(l, found, NULL, depth + 1) : UNSAID;
}

/* A branch without a constraint counts as a string next to one that has a constraint. */
static unsigned any_of(look *l, json_t *list, const char *name, int depth) {
    unsigned said = 0;
    size_t i, silent = 0;
    for (i = 0; i < json_array_size(list) && take_looks(l, 1); i++) {
        unsigned bits = kinds_of(l, json_array_get(list, i), name, depth + 1);
        silent += bits == UNSAID;
        said |= bits == UNSAID ? IV_KIND_STRING : bits;
    }
    return silent == i ? UNSAID : said;
}

static unsigned kinds_of(look *l, json_t *schema, const char *name, int depth) {
    static const char *const branches[] = {"anyOf", "oneOf"};
    if (json_is_false(schema)) return 0;
    if (!json_is_object(schema) || depth > DEPTH_MAX || !take_looks(l, A_SCHEMA)) return UNSAID;
    unsigned bits = name ? property_kinds(l, schema, name, depth) : own_kinds(l, schema);
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (ref) bits &= kinds_of(l, iv_json_pointer(l->root, ref), name, depth + 1);
    const json_t *all = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(all) && take_looks(l, 1); i++)
        bits &= kinds_of(l, json_array_get(all, i), name, depth + 1);
    for (size_t k = 0; k < 2; k++) {
        json_t *list = json_object_get(schema, branches[k]);
        if (json_array_size(list)) bits &= any_of(l, list, name, depth);
    }
    return bits;
}

unsigned iv_json_parameter_kinds(json_t *parameters, const char *name, size_t *looks) {
    unsigned bits = UNSAID;
    *looks = 0;
    for (int spoken = 0; spoken < 2 && bits == UNSAID; spoken++) {
        look l = {.root = parameters, .spoken = spoken, .left = LOOKS_MAX};
        bits = kinds_of(&l, parameters, name, 0);
        *looks += LOOKS_MAX - l.left;
    }
    return bits == UNSAID ? IV_KIND_STRING : bits & IV_KIND_ALL;
}
