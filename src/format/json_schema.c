/* json_schema.c: kinds are sets: keywords of one schema intersect, branches unite. */
#include "format/json_schema.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    UNSAID = 2 * IV_KIND_ALL + 1, /* no constraint: every kind, and a bit that no keyword sets */
    DEPTH_MAX = 64,
    NESTING_MAX = 2048, /* of a document, as the parser allows */
    LOOKS_MAX = 80000,  /* per answer ... */
    A_SCHEMA = 8        /* ... a schema costs this many, an entry of a list one */
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
    {"multipleOf", IV_KIND_INTEGER | IV_KIND_NUMBER},
    {"items", IV_KIND_ARRAY},
    {"prefixItems", IV_KIND_ARRAY},
    {"minItems", IV_KIND_ARRAY},
    {"maxItems", IV_KIND_ARRAY},
    {"uniqueItems", IV_KIND_ARRAY},
    {"properties", IV_KIND_OBJECT},
    {"required", IV_KIND_OBJECT},
    {"patternProperties", IV_KIND_OBJECT},
    {"propertyNames", IV_KIND_OBJECT},
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

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The text without percent-encoding. NULL: no memory, NUL, or not UTF-8 as jansson will find. The caller frees it. */
static char *percent_decoded(const char *p) {
    char *out = malloc(strlen(p) + 1);
    size_t n = 0;
    for (; out && *p; p++) {
        int high = *p == '%' ? hex_digit(p[1]) : -1, low = high >= 0 ? hex_digit(p[2]) : -1;
        out[n++] = low < 0 ? *p : (char)(high << 4 | low);
        if (low >= 0) p += 2;
        if (out[n - 1] == 0) { /* no key has it */
            free(out);
            return NULL;
        }
    }
    if (out) out[n] = 0;
    return out;
}

/* One step of a JSON pointer, unescaped into out, which is as long as p; returns the rest. */
static const char *pointer_step(const char *p, char *out) {
    size_t n = 0;
    for (; *p && *p != '/'; p++) {
        char c = *p;
        if (c == '~' && (p[1] == '0' || p[1] == '1')) c = *++p == '0' ? '~' : '/';
        out[n++] = c;
    }
    out[n] = 0;
    return p;
}

/* An array's index: digits without a leading zero. */
static json_t *element(json_t *array, const char *key) {
    size_t n = strspn(key, "0123456789");
    return n > 0 && n < 10 && !key[n] && (n == 1 || key[0] != '0') ? json_array_get(array, strtoul(key, NULL, 10))
                                                                   : NULL;
}

/* Members whose values are data, not schemas. */
static bool is_data(const char *key) {
    static const char *const data[] = {"enum", "const", "default", "examples", "example"};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        if (strcmp(key, data[i]) == 0) return true;
    return false;
}

static const char *text_of(const json_t *schema, const char *key) {
    return json_string_value(json_object_get(schema, key));
}

static bool is_anchored(const json_t *schema, const char *name) {
    const char *anchor = text_of(schema, "$anchor"), *id = text_of(schema, "$id"), *old = text_of(schema, "id");
    return (anchor && strcmp(anchor, name) == 0) || (id && id[0] == '#' && strcmp(id + 1, name) == 0) ||
           (old && old[0] == '#' && strcmp(old + 1, name) == 0);
}

/* Looks at *left values. */
static json_t *find_anchor(json_t *at, const char *name, int depth, size_t *left) {
    json_t *value, *found = NULL;
    const char *key;
    size_t i;
    if (depth > NESTING_MAX || *left == 0) return NULL;
    --*left;
    if (json_is_object(at) && is_anchored(at, name)) return at;
    json_array_foreach(at, i, value) if ((found = find_anchor(value, name, depth + 1, left))) return found;
    json_object_foreach(at, key,
                        value) if (!is_data(key) && (found = find_anchor(value, name, depth + 1, left))) return found;
    return NULL;
}

json_t *iv_json_pointer(json_t *root, const char *text) {
    if (text[0] != '#') return NULL;
    if (!text[1]) return root;
    char *path = percent_decoded(text + 1), *key = path ? malloc(strlen(path) + 1) : NULL;
    size_t left = IV_JSON_ANCHOR_LOOKS;
    if (key && path[0] != '/') root = find_anchor(root, path, 0, &left);
    for (const char *p = path; key && *p == '/' && root;) {
        p = pointer_step(p + 1, key);
        root = json_is_array(root) ? element(root, key) : json_object_get(root, key);
    }
    if (!key) root = NULL;
    free(path), free(key);
    return root;
}

const char *iv_json_fragment(const json_t *root, const char *reference) {
    static const char *const ids[] = {"$id", "id"};
    if (reference[0] == '#') return reference;
    for (size_t i = 0; i < 2; i++) {
        const char *id = text_of(root, ids[i]);
        size_t n = id ? strcspn(id, "#") : 0;
        if (n == 0 || strncmp(id, reference, n) != 0) continue;
        if (!reference[n]) return "#";
        if (reference[n] == '#') return reference + n;
    }
    return NULL;
}

static bool has_inner_base(json_t *at, bool below, int depth) {
    const char *key, *id = text_of(at, "$id"), *old = text_of(at, "id");
    json_t *value;
    size_t i;
    if (depth > NESTING_MAX) return true;
    below = below || (depth > 0 && ((id && id[0] != '#') || (old && old[0] != '#')));
    if (below && text_of(at, "$ref")) return true;
    json_array_foreach(at, i, value) if (has_inner_base(value, below, depth + 1)) return true;
    json_object_foreach(at, key, value) if (has_inner_base(value, below, depth + 1)) return true;
    return false;
}

bool iv_json_has_inner_base(json_t *root) { return has_inner_base(root, false, 0); }

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
    if (ref) ref = iv_json_fragment(l->root, ref);
    if (ref && take_looks(l, ref[1] && ref[1] != '/' ? IV_JSON_ANCHOR_LOOKS : strlen(ref) / 8))
        bits &= kinds_of(l, iv_json_pointer(l->root, ref), name, depth + 1);
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
