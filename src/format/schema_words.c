/* schema_words.c: the tables of keywords, and a walk over all schemas of a document. */
#include "format/schema_words.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { NESTING_MAX = 2048 /* of a document, as the parser allows */, WHERE_BYTES = 200 };

static const char *const keywords[] = {"$ref",
                                       "allOf",
                                       "anyOf",
                                       "oneOf",
                                       "type",
                                       "const",
                                       "enum",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       "items",
                                       "prefixItems",
                                       "additionalItems",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "properties",
                                       "required",
                                       "patternProperties",
                                       "propertyNames",
                                       "additionalProperties",
                                       "minProperties",
                                       "maxProperties"};

/* Keywords that say something of values, but are not supported: of every draft, and of the draft's predecessors. */
static const char *const assertions[] = {"not",
                                         "if",
                                         "contains",
                                         "dependencies",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "unevaluatedItems",
                                         "unevaluatedProperties",
                                         "$dynamicRef",
                                         "$recursiveRef",
                                         "extends",
                                         "disallow",
                                         "divisibleBy"};

/* Labels that do all that they are for. */
static const char *const descriptions[] = {"$schema",  "$comment",   "title",    "description", "default",
                                           "examples", "deprecated", "readOnly", "writeOnly"};
static const char *const names[] = {"$id", "id", "$anchor"};

/* Members that hold one schema, or a list of them; and members that hold schemas by names. */
static const char *const nested[] = {"items",         "prefixItems", "additionalItems", "additionalProperties",
                                     "propertyNames", "allOf",       "anyOf",           "oneOf"};
static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions"};

static const char *const formats[IV_FORMAT_COUNT] = {
    [IV_FORMAT_DATE] = "date",
    [IV_FORMAT_TIME] = "time",
    [IV_FORMAT_DATE_TIME] = "date-time",
    [IV_FORMAT_DURATION] = "duration",
    [IV_FORMAT_UUID] = "uuid",
    [IV_FORMAT_EMAIL] = "email",
    [IV_FORMAT_IDN_EMAIL] = "idn-email",
    [IV_FORMAT_HOSTNAME] = "hostname",
    [IV_FORMAT_IDN_HOSTNAME] = "idn-hostname",
    [IV_FORMAT_IPV4] = "ipv4",
    [IV_FORMAT_IPV6] = "ipv6",
    [IV_FORMAT_URI] = "uri",
    [IV_FORMAT_IRI] = "iri",
    [IV_FORMAT_URI_REFERENCE] = "uri-reference",
    [IV_FORMAT_IRI_REFERENCE] = "iri-reference",
    [IV_FORMAT_JSON_POINTER] = "json-pointer",
    [IV_FORMAT_RELATIVE_JSON_POINTER] = "relative-json-pointer",
    [IV_FORMAT_URI_TEMPLATE] = "uri-template",
    [IV_FORMAT_REGEX] = "regex",
};

static bool among(const char *key, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, list[i]) == 0) return true;
    return false;
}

#define AMONG(key, list) among(key, list, sizeof(list) / sizeof *(list))

bool iv_schema_is_word(const char *key) { return AMONG(key, keywords); }

bool iv_schema_is_assertion(const char *key) { return AMONG(key, assertions); }

bool iv_schema_is_label(const char *key) { return !iv_schema_is_word(key) && !iv_schema_is_assertion(key); }

bool iv_schema_always_holds(const char *key, const json_t *value) {
    bool list = strcmp(key, "dependencies") == 0 || strcmp(key, "dependentRequired") == 0 ||
                strcmp(key, "dependentSchemas") == 0;
    if (list) return json_is_object(value) && json_object_size(value) == 0;
    if (strcmp(key, "not") == 0) return json_is_false(value);
    bool schema = strncmp(key, "unevaluated", 11) == 0;
    return schema && (json_is_true(value) || (json_is_object(value) && json_object_size(value) == 0));
}

iv_schema_format iv_schema_format_named(const char *name) {
    for (int i = IV_FORMAT_NONE + 1; i < IV_FORMAT_COUNT; i++)
        if (strcmp(name, formats[i]) == 0) return (iv_schema_format)i;
    return IV_FORMAT_NONE;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

typedef struct walk {
    iv_schema_label_seen *seen;
    void *user;
    bool by_name, ended; /* by_name: a $ref goes by an id or an anchor */
    char where[WHERE_BYTES];
} walk;

typedef void visitor(walk *w, const json_t *schema, size_t at, int depth);

/* Appends a step of a JSON pointer behind `at` bytes; the end of it, where a long one is cut. */
static size_t enter(walk *w, size_t at, const char *key) {
    w->where[at < sizeof w->where - 1 ? at++ : at] = '/';
    for (; *key && at < sizeof w->where - 3; key++) {
        if (*key != '~' && *key != '/')
            w->where[at++] = *key;
        else
            w->where[at++] = '~', w->where[at++] = *key == '~' ? '0' : '1';
    }
    w->where[at] = 0;
    return at;
}

static size_t enter_index(walk *w, size_t at, size_t index) {
    char text[24];
    snprintf(text, sizeof text, "%zu", index);
    return enter(w, at, text);
}

static void each_member(walk *w, const json_t *map, size_t at, int depth, visitor *visit) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, key, value) if (!w->ended)
        visit(w, value, enter(w, at, key), depth + 1);
}

/* Calls visit for the schemas that are members of this one. */
static void each_schema(walk *w, const json_t *schema, size_t at, int depth, visitor *visit) {
    const char *key;
    json_t *value, *one;
    size_t i;
    if (depth > NESTING_MAX) return;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        bool map = AMONG(key, maps);
        if (w->ended || !(map || AMONG(key, nested))) continue;
        size_t below = enter(w, at, key);
        if (map)
            each_member(w, value, below, depth, visit);
        else if (json_is_object(value))
            visit(w, value, below, depth + 1);
        json_array_foreach(value, i, one) if (!w->ended) visit(w, one, enter_index(w, below, i), depth + 1);
    }
}

static void find_reference(walk *w, const json_t *schema, size_t at, int depth) {
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    w->by_name = w->by_name || (ref && strcmp(ref, "#") != 0 && strncmp(ref, "#/", 2) != 0);
    each_schema(w, schema, at, depth, find_reference);
}

static bool is_silent(const walk *w, const char *key) {
    return !iv_schema_is_label(key) || AMONG(key, descriptions) || strcmp(key, "$defs") == 0 ||
           strcmp(key, "definitions") == 0 || (w->by_name && AMONG(key, names));
}

static void see_labels(walk *w, const json_t *schema, size_t at, int depth) {
    const char *key, *format = json_string_value(json_object_get(schema, "format"));
    json_t *value;
    char what[80];
    w->where[at] = 0;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) if (!w->ended && !is_silent(w, key)) w->ended =
        !w->seen(w->user, w->where, key);
    if (!w->ended && format && iv_schema_format_named(format) == IV_FORMAT_NONE) {
        snprintf(what, sizeof what, "format: %s", format);
        w->ended = !w->seen(w->user, w->where, what);
    }
    each_schema(w, schema, at, depth, see_labels);
}

void iv_schema_labels(const json_t *schema, iv_schema_label_seen *seen, void *user) {
    walk w = {.seen = seen, .user = user, .where = "#"};
    find_reference(&w, schema, 1, 0);
    see_labels(&w, schema, 1, 0);
}
