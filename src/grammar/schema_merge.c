/* schema_merge.c: two sets of plain keywords as one that says what both say. What cannot be said so is refused. */
#include "grammar/schema_parts.h"

#include <string.h>

json_t *iv_schema_both(iv_schema_set *s, json_t *x, json_t *y) {
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

/* ---- objects ------------------------------------------------------------------------------------------- */

/* What b says of a property that it does not list. */
static json_t *rest_of(json_t *b) { return json_object_get(b, "additionalProperties"); }

static iv_status merge_properties(iv_schema_set *s, json_t *a, json_t *b, const char *where, iv_error *err) {
    json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties"), *value;
    const char *key;
    if ((pa && !json_is_object(pa)) || (pb && !json_is_object(pb)))
        return iv_schema_fail(s, IV_INVALID, where, "properties: wanted an object", err);
    IV_TRY(iv_schema_spend(s, json_object_size(pa) + json_object_size(pb), IV_EFFORT_MEMBER, where, err));
    json_t *all = json_object();
    if (!all) return iv_schema_no_memory(s, err);
    bool ok = true;
    json_object_foreach(pa, key, value) {
        json_t *other = pb ? json_object_get(pb, key) : NULL;
        if (!other) other = rest_of(b);
        ok = ok && json_object_set(all, key, other ? iv_schema_both(s, value, other) : value) == 0;
    }
    json_object_foreach(pb, key, value) {
        if (json_object_get(all, key)) continue;
        json_t *other = rest_of(a);
        ok = ok && json_object_set(all, key, other ? iv_schema_both(s, value, other) : value) == 0;
    }
    json_t *ra = rest_of(a), *rb = rest_of(b);
    if (ok && (pa || pb)) ok = json_object_set(a, "properties", all) == 0;
    json_decref(all);
    if (ok && rb) ok = json_object_set(a, "additionalProperties", ra ? iv_schema_both(s, ra, rb) : rb) == 0;
    return ok ? IV_OK : iv_schema_no_memory(s, err);
}

/* Each of y is compared with each of x. */
static iv_status spend_on_pairs(iv_schema_set *s, const json_t *x, const json_t *y, const char *where, iv_error *err) {
    return iv_schema_spend(s, json_array_size(y), IV_EFFORT_COMPARE * (1 + json_array_size(x)), where, err);
}

static iv_status merge_required(iv_schema_set *s, json_t *a, json_t *list, const char *where, iv_error *err) {
    IV_TRY(spend_on_pairs(s, json_object_get(a, "required"), list, where, err));
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

/* ---- values -------------------------------------------------------------------------------------------- */

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
    IV_TRY(spend_on_pairs(s, x, y, where, err));
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

/* Both say something by this keyword. */
static iv_status merge_word(iv_schema_set *s, json_t *a, const char *key, json_t *y, const char *where, iv_error *err) {
    static const char *const least[] = {"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"};
    static const char *const most[] = {"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"};
    json_t *x = json_object_get(a, key);
    if (json_equal(x, y)) return IV_OK;
    for (size_t i = 0; i < 5; i++) {
        if (strcmp(key, least[i]) == 0) return merge_limit(s, a, key, y, true, where, err);
        if (strcmp(key, most[i]) == 0) return merge_limit(s, a, key, y, false, where, err);
    }
    if (strcmp(key, "type") == 0) return merge_type(s, a, y, where, err);
    if (strcmp(key, "enum") == 0) return merge_enum(s, a, y, where, err);
    if (strcmp(key, "required") == 0) return merge_required(s, a, y, where, err);
    if (strcmp(key, "uniqueItems") == 0) return set(s, a, key, json_true(), err);
    if (strcmp(key, "const") == 0) return set_new(s, a, "enum", json_array(), err); /* no value is both */
    if (strcmp(key, "items") == 0) {
        json_t *both = iv_schema_both(s, x, y);
        return both ? set(s, a, key, both, err) : iv_schema_no_memory(s, err);
    }
    return cannot(s, where, key, err);
}

iv_status iv_schema_merge(iv_schema_set *s, json_t *a, json_t *b, const char *where, iv_error *err) {
    const char *key;
    json_t *value;
    if (json_object_size(a) == 0) return json_object_update(a, b) == 0 ? IV_OK : iv_schema_no_memory(s, err);
    bool items = json_object_get(a, "items") || json_object_get(b, "items");
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
