/* schema_parts.c: a schema taken apart: references, unknown keywords, merging. */
#include "base/size.h"
#include "grammar/schema.h"

#include <string.h>

/* ---- known keywords ------------------------------------------------------------------------------------ */

static const char *const joining_words[] = {"$ref", "allOf", "anyOf", "oneOf"};

static bool is_joining(const char *key) {
    for (size_t i = 0; i < sizeof joining_words / sizeof *joining_words; i++)
        if (strcmp(key, joining_words[i]) == 0) return true;
    return false;
}

/* ---- references ---------------------------------------------------------------------------------------- */

iv_status iv_schema_resolve(iv_schema_set *s, const json_t *ref, const char *where, json_t **out,
                            const char **out_where, iv_error *err) {
    const char *text = json_string_value(ref);
    if (!text) return iv_schema_fail(s, IV_INVALID, where, "$ref: wanted a string", err);
    const char *part = iv_json_fragment(s->root, text);
    if (!part)
        return iv_fail(
            err, IV_UNSUPPORTED,
            "%s: %.300s: $ref: wanted \"#\", a JSON pointer, \"#/...\", or an anchor in this document, found "
            "\"%.100s\"",
            s->name, where, text);
    bool anchor = part[1] && part[1] != '/';
    IV_TRY(iv_schema_charge(s, anchor ? IV_JSON_ANCHOR_LOOKS : strlen(part), IV_EFFORT_VALUE, where, err));
    if (s->inner_base == 0) s->inner_base = iv_json_has_inner_base(s->root) ? 1 : -1;
    if (s->inner_base > 0)
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "$ref: not supported in a document with references below an inner \"$id\"", err);
    *out = iv_json_pointer(s->root, part);
    if (!*out) return iv_fail(err, IV_INVALID, "%s: %.300s: $ref: \"%.100s\" was not found", s->name, where, text);
    *out_where = iv_arena_strndup(s->arena, part, iv_size_min(strlen(part), 300));
    return *out_where ? IV_OK : iv_schema_no_memory(s, err);
}

/* ---- unknown keywords ---------------------------------------------------------------------------------- */

iv_status iv_schema_check_keywords(const iv_schema_set *s, json_t *schema, const char *where, iv_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(schema))
        return iv_schema_fail(s, IV_INVALID, where, "wanted a schema: an object, true or false", err);
    json_object_foreach(schema, key, value) {
        if (!iv_schema_is_assertion(key) || iv_schema_always_holds(key, value)) continue;
        return iv_fail(err, IV_UNSUPPORTED, "%s: %.300s/%.100s: this keyword is not supported", s->name, where, key);
    }
    return IV_OK;
}

/* ---- merging ------------------------------------------------------------------------------------------- */

/* An {"allOf": [x, y]} that stays in s->made; borrowed. NULL: no memory. */
static json_t *both_of(iv_schema_set *s, json_t *x, json_t *y) {
    if (json_is_boolean(x) || json_is_boolean(y)) return json_is_false(x) || json_is_true(y) ? x : y;
    json_t *schema = json_pack("{s:[O, O]}", "allOf", x, y);
    return schema && json_array_append_new(s->made, schema) == 0 ? schema : NULL;
}

static iv_status set(const iv_schema_set *s, json_t *a, const char *key, json_t *value, iv_error *err) {
    return json_object_set(a, key, value) == 0 ? IV_OK : iv_schema_no_memory(s, err);
}

static iv_status set_new(const iv_schema_set *s, json_t *a, const char *key, json_t *value, iv_error *err) {
    return json_object_set_new(a, key, value) == 0 ? IV_OK : iv_schema_no_memory(s, err);
}

static iv_status cannot(const iv_schema_set *s, const char *where, const char *key, iv_error *err) {
    return iv_fail(err, IV_UNSUPPORTED, "%s: %.300s: two different \"%s\" cannot be combined", s->name, where, key);
}

/* ---- merging objects ----------------------------------------------------------------------------------- */

/* The schema in b of properties that it does not list. */
static json_t *rest_of(const json_t *b) { return json_object_get(b, "additionalProperties"); }

static bool has_members(const json_t *x) {
    return json_object_get(x, "properties") || json_object_get(x, "patternProperties") || rest_of(x);
}

/* additionalProperties of one schema would have to skip its own patterns, but not the other's. */
static bool patterns_clash(const json_t *a, const json_t *b) {
    const json_t *pa = json_object_get(a, "patternProperties"), *pb = json_object_get(b, "patternProperties");
    bool rest = json_object_get(a, "additionalProperties") || json_object_get(b, "additionalProperties");
    return (pa || pb) && rest && has_members(a) && has_members(b) && !json_equal(a, b);
}

static iv_status merge_properties(iv_schema_set *s, json_t *a, json_t *b, const char *where, iv_error *err) {
    json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties"), *value;
    const char *key;
    if ((pa && !json_is_object(pa)) || (pb && !json_is_object(pb)))
        return iv_schema_fail(s, IV_INVALID, where, "properties: wanted an object", err);
    if (patterns_clash(a, b)) return cannot(s, where, "patternProperties", err);
    IV_TRY(iv_schema_charge(s, json_object_size(pa) + json_object_size(pb), IV_EFFORT_MEMBER, where, err));
    json_t *all = json_object();
    if (!all) return iv_schema_no_memory(s, err);
    bool ok = true;
    json_object_foreach(pa, key, value) {
        json_t *other = pb ? json_object_get(pb, key) : NULL;
        if (!other) other = rest_of(b);
        ok = ok && json_object_set(all, key, other ? both_of(s, value, other) : value) == 0;
    }
    json_object_foreach(pb, key, value) {
        if (json_object_get(all, key)) continue;
        json_t *other = rest_of(a);
        ok = ok && json_object_set(all, key, other ? both_of(s, value, other) : value) == 0;
    }
    json_t *ra = rest_of(a), *rb = rest_of(b);
    if (ok && (pa || pb)) ok = json_object_set(a, "properties", all) == 0;
    json_decref(all);
    if (ok && rb) ok = json_object_set(a, "additionalProperties", ra ? both_of(s, ra, rb) : rb) == 0;
    return ok ? IV_OK : iv_schema_no_memory(s, err);
}

/* The cost of comparing each of y with each of x. */
static iv_status charge_pairs(iv_schema_set *s, const json_t *x, const json_t *y, const char *where, iv_error *err) {
    return iv_schema_charge(s, json_array_size(y), IV_EFFORT_COMPARE * (1 + json_array_size(x)), where, err);
}

static iv_status merge_required(iv_schema_set *s, json_t *a, json_t *list, const char *where, iv_error *err) {
    IV_TRY(charge_pairs(s, json_object_get(a, "required"), list, where, err));
    json_t *all = json_copy(json_object_get(a, "required")), *name, *known;
    size_t i, k;
    bool ok = all && json_is_array(all) && json_is_array(list);
    if (!ok) {
        json_decref(all);
        return iv_schema_fail(s, IV_INVALID, where, "required: wanted a list", err);
    }
    json_array_foreach(list, i, name) {
        bool there = false;
        json_array_foreach(all, k, known) there |= json_equal(known, name);
        if (!there) ok = ok && json_array_append(all, name) == 0;
    }
    if (!ok) {
        json_decref(all);
        return iv_schema_no_memory(s, err);
    }
    return set_new(s, a, "required", all, err);
}

/* ---- merging values ------------------------------------------------------------------------------------ */

static json_t *common(json_t *x, json_t *y) {
    json_t *out = json_array(), *one, *other;
    size_t i, k;
    json_array_foreach(x, i, one) json_array_foreach(y, k, other) if (json_equal(one, other))
        json_array_append(out, one);
    return out;
}

static iv_status merge_enum(iv_schema_set *s, json_t *a, json_t *y, const char *where, iv_error *err) {
    json_t *x = json_object_get(a, "enum");
    if (!json_is_array(x) || !json_is_array(y)) return iv_schema_fail(s, IV_INVALID, where, "enum: wanted a list", err);
    IV_TRY(charge_pairs(s, x, y, where, err));
    return set_new(s, a, "enum", common(x, y), err);
}

static iv_status merge_type(const iv_schema_set *s, json_t *a, json_t *y, const char *where, iv_error *err) {
    static const struct {
        unsigned bits;
        const char *name;
    } names[] = {{IV_KIND_NULL, "null"},     {IV_KIND_BOOLEAN, "boolean"}, {IV_KIND_INTEGER | IV_KIND_NUMBER, "number"},
                 {IV_KIND_STRING, "string"}, {IV_KIND_ARRAY, "array"},     {IV_KIND_OBJECT, "object"}};
    unsigned one, other;
    IV_TRY(iv_schema_kinds(s, json_object_get(a, "type"), where, &one, err));
    IV_TRY(iv_schema_kinds(s, y, where, &other, err));
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsigned both = one & other & names[i].bits;
        if (both) json_array_append_new(list, json_string(both == IV_KIND_INTEGER ? "integer" : names[i].name));
    }
    return set_new(s, a, "type", list, err);
}

static iv_status merge_limit(const iv_schema_set *s, json_t *a, const char *key, json_t *y, bool larger,
                             const char *where, iv_error *err) {
    json_t *x = json_object_get(a, key);
    if (!json_is_number(x) || !json_is_number(y))
        return iv_fail(err, IV_INVALID, "%s: %.300s: %s: wanted a number", s->name, where, key);
    bool take = larger ? json_number_value(y) > json_number_value(x) : json_number_value(y) < json_number_value(x);
    return take ? set(s, a, key, y, err) : IV_OK;
}

/* Merges a keyword that both have. */
static iv_status merge_word(iv_schema_set *s, json_t *a, const char *key, json_t *y, const char *where, iv_error *err) {
    static const char *const least[] = {"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"};
    static const char *const most[] = {"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"};
    json_t *x = json_object_get(a, key);
    if (json_equal(x, y)) return IV_OK;
    if (json_is_boolean(x) && json_is_boolean(y) && strncmp(key, "exclusive", 9) == 0) /* draft 4 */
        return set(s, a, key, json_true(), err);
    for (size_t i = 0; i < 5; i++) {
        if (strcmp(key, least[i]) == 0) return merge_limit(s, a, key, y, true, where, err);
        if (strcmp(key, most[i]) == 0) return merge_limit(s, a, key, y, false, where, err);
    }
    if (strcmp(key, "type") == 0) return merge_type(s, a, y, where, err);
    if (strcmp(key, "enum") == 0) return merge_enum(s, a, y, where, err);
    if (strcmp(key, "required") == 0) return merge_required(s, a, y, where, err);
    if (strcmp(key, "uniqueItems") == 0) return set(s, a, key, json_true(), err);
    if (strcmp(key, "const") == 0) return set_new(s, a, "enum", json_array(), err); /* no value equals both */
    if (strcmp(key, "items") == 0 && !json_is_array(x) && !json_is_array(y)) {
        json_t *both = both_of(s, x, y);
        return both ? set(s, a, key, both, err) : iv_schema_no_memory(s, err);
    }
    return cannot(s, where, key, err);
}

/* Adds the keywords of b to a, so that a requires what both require. New schemas stay in s->made. */
static iv_status merge(iv_schema_set *s, json_t *a, json_t *b, const char *where, iv_error *err) {
    const char *key;
    json_t *value;
    if (json_object_size(a) == 0) return json_object_update(a, b) == 0 ? IV_OK : iv_schema_no_memory(s, err);
    bool items = json_object_get(a, "items") || json_object_get(b, "items");
    bool tuple = json_is_array(json_object_get(a, "items")) || json_is_array(json_object_get(b, "items"));
    if (tuple && !json_equal(json_object_get(a, "additionalItems"), json_object_get(b, "additionalItems")) &&
        json_object_get(a, "items") && json_object_get(b, "items"))
        return cannot(s, where, "additionalItems", err);
    if (json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems")) {
        bool same = json_equal(json_object_get(a, "prefixItems"), json_object_get(b, "prefixItems"));
        if (items && !same) return cannot(s, where, "prefixItems", err);
    }
    IV_TRY(merge_properties(s, a, b, where, err));
    json_object_foreach(b, key, value) {
        if (strcmp(key, "properties") == 0 || strcmp(key, "additionalProperties") == 0) continue;
        iv_status status =
            json_object_get(a, key) ? merge_word(s, a, key, value, where, err) : set(s, a, key, value, err);
        if (status != IV_OK) return status;
    }
    return IV_OK;
}

/* ---- combinations -------------------------------------------------------------------------------------- */

static iv_status take_apart(iv_schema_set *s, json_t *schema, const char *where, int depth, iv_schema_parts *out,
                            iv_error *err) {
    const char *key, *target_where;
    json_t *value, *plain, *target;
    size_t i;
    if (depth > IV_SCHEMA_REFERENCES_MAX)
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "refers to itself with nothing in between", err);
    out->nothing |= json_is_false(schema);
    if (json_is_boolean(schema)) return IV_OK;
    IV_TRY(iv_schema_charge(s, 1 + json_object_size(schema), IV_EFFORT_SCHEMA, where, err));
    IV_TRY(iv_schema_check_keywords(s, schema, where, err));
    if (!(plain = json_object())) return iv_schema_no_memory(s, err);
    bool ok = true;
    json_object_foreach(schema, key, value) if (iv_schema_is_word(key) && !is_joining(key)) ok =
        ok && json_object_set(plain, key, value) == 0;
    iv_status status = ok ? merge(s, out->plain, plain, where, err) : iv_schema_no_memory(s, err);
    json_decref(plain);
    IV_TRY(status);
    if ((value = json_object_get(schema, "$ref"))) {
        IV_TRY(iv_schema_resolve(s, value, where, &target, &target_where, err));
        IV_TRY(take_apart(s, target, target_where, depth + 1, out, err));
    }
    value = json_object_get(schema, "allOf");
    if (value && !json_is_array(value)) return iv_schema_fail(s, IV_INVALID, where, "allOf: wanted a list", err);
    json_array_foreach(value, i, target)
        IV_TRY(take_apart(s, target, iv_schema_at_index(s, where, "allOf", i), depth + 1, out, err));
    for (int k = 2; k < 4; k++) {
        value = json_object_get(schema, joining_words[k]);
        if (!value) continue;
        if (json_array_size(value) == 0)
            return iv_fail(err, IV_INVALID, "%s: %.300s/%s: wanted a list of schemas", s->name, where,
                           joining_words[k]);
        if (json_array_append_new(out->choices,
                                  json_pack("{s:O, s:s, s:s}", "list", value, "at",
                                            iv_schema_at(s, where, joining_words[k]), "key", joining_words[k])) != 0)
            return iv_schema_no_memory(s, err);
    }
    return IV_OK;
}

iv_status iv_schema_parts_open(iv_schema_set *s, json_t *schema, const char *where, iv_schema_parts *out,
                               iv_error *err) {
    *out = (iv_schema_parts){.plain = json_object(), .choices = json_array()};
    if (!out->plain || !out->choices || json_array_append(s->made, out->plain) != 0) return iv_schema_no_memory(s, err);
    return take_apart(s, schema, where, 0, out, err);
}

void iv_schema_parts_close(iv_schema_parts *p) {
    json_decref(p->plain), json_decref(p->choices);
    p->plain = p->choices = NULL;
}
