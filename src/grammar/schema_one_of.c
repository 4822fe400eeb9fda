/* schema_one_of.c: makes the branches of oneOf exclusive. A branch's answers (what the compiler writes for it) must be
 * invalid under every other branch (as the standard reads it: other members are allowed by default, a keyword implies
 * no type). Where that cannot be shown, a branch loses what overlaps: kinds, or members that another branch requires.
 */
#include "base/size.h"
#include "grammar/schema.h"

#include <math.h>
#include <string.h>

enum { APART_DEPTH_MAX = 6, REFINEMENTS_MAX = 64, COMPARE_EFFORT = 32 };

typedef struct side {
    json_t *schema;
    iv_schema_parts parts;
    bool standard; /* as the standard reads it; false: as the compiler writes it */
} side;

static iv_status apart(iv_schema_set *s, json_t *answers, bool standard, json_t *other, const char *where, int depth,
                       bool *out, iv_error *err);

/* A schema with choices gets members and types from its branches. */
static iv_status open_side(iv_schema_set *s, json_t *schema, bool standard, const char *where, side *out,
                           iv_error *err) {
    *out = (side){.schema = schema};
    iv_status status = iv_schema_parts_open(s, schema, where, &out->parts, err);
    out->standard = standard || json_array_size(out->parts.choices) > 0;
    return status;
}

/* ---- kinds --------------------------------------------------------------------------------------------- */

static iv_status kinds_of(iv_schema_set *s, const side *x, const char *where, unsigned *out, iv_error *err) {
    const json_t *type = json_object_get(x->parts.plain, "type"), *list = json_object_get(x->parts.plain, "enum"),
                 *only = json_object_get(x->parts.plain, "const");
    *out = IV_KIND_ALL;
    if (type) IV_TRY(iv_schema_kinds(s, type, where, out, err));
    unsigned values = 0;
    for (size_t i = 0; i < json_array_size(list); i++) values |= iv_json_kind_of(json_array_get(list, i));
    if (json_is_array(list)) *out &= values;
    if (only) *out &= iv_json_kind_of(only);
    unsigned implied = iv_json_keyword_kinds(x->parts.plain);
    if (!x->standard && !type && !only && !list && implied) *out = implied;
    return IV_OK;
}

/* ---- values and numbers -------------------------------------------------------------------------------- */

static bool same(const json_t *x, const json_t *y) {
    if (json_is_number(x) && json_is_number(y)) return json_number_value(x) == json_number_value(y);
    return json_is_number(x) || json_is_number(y) ? false : json_equal(x, y);
}

static size_t value_count(const json_t *plain) {
    return json_object_get(plain, "const") ? 1 : json_array_size(json_object_get(plain, "enum"));
}

static const json_t *value_at(const json_t *plain, size_t i) {
    const json_t *only = json_object_get(plain, "const");
    return only ? only : json_array_get(json_object_get(plain, "enum"), i);
}

static bool has_values(const json_t *plain) {
    return json_object_get(plain, "const") || json_is_array(json_object_get(plain, "enum"));
}

/* Lists and objects in lists may hold equal numbers in two spellings: only scalars are compared. */
static iv_status values_apart(iv_schema_set *s, const json_t *x, const json_t *y, const char *where, bool *out,
                              iv_error *err) {
    size_t n = value_count(x), m = value_count(y);
    *out = false;
    IV_TRY(iv_schema_charge(s, n, IV_EFFORT_COMPARE * (1 + m), where, err));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < m; k++) {
            const json_t *one = value_at(x, i), *other = value_at(y, k);
            bool nested =
                (json_is_object(one) && json_is_object(other)) || (json_is_array(one) && json_is_array(other));
            if (nested || same(one, other)) return IV_OK;
        }
    *out = true;
    return IV_OK;
}

/* The bounds of numbers, or of lengths. Exclusive bounds count as inclusive. */
static bool ranges_apart(const json_t *x, const json_t *y, const char *least, const char *most, const char *open_least,
                         const char *open_most) {
    const json_t *ends[2][2];
    const json_t *both[2] = {x, y};
    for (int i = 0; i < 2; i++) {
        const json_t *low = json_object_get(both[i], open_least), *high = json_object_get(both[i], open_most);
        ends[i][0] = json_is_number(json_object_get(both[i], least)) ? json_object_get(both[i], least) : low;
        ends[i][1] = json_is_number(json_object_get(both[i], most)) ? json_object_get(both[i], most) : high;
    }
    for (int i = 0; i < 2; i++) {
        const json_t *high = ends[i][1], *low = ends[1 - i][0];
        if (json_is_number(high) && json_is_number(low) && json_number_value(high) < json_number_value(low))
            return true;
    }
    return false;
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static bool requires(const json_t *plain, const char *name) {
    const json_t *list = json_object_get(plain, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && strcmp(one, name) == 0) return true;
    }
    return false;
}

/* Whether no value of the side has a member of this name. */
static bool never_has(const side *x, const char *name) {
    const json_t *listed = json_object_get(x->parts.plain, "properties"), *own = json_object_get(listed, name),
                 *rest = json_object_get(x->parts.plain, "additionalProperties");
    if (own) return json_is_false(own);
    if (json_object_get(x->parts.plain, "patternProperties")) return false;
    if (rest) return json_is_false(rest);
    return !x->standard && listed && !requires(x->parts.plain, name);
}

static iv_status required_apart(iv_schema_set *s, const side *x, const side *y, const json_t *required,
                                const char *where, int depth, bool *out, iv_error *err) {
    json_t *xs = json_object_get(x->parts.plain, "properties"), *ys = json_object_get(y->parts.plain, "properties");
    for (size_t i = 0; i < json_array_size(required) && !*out; i++) {
        const char *name = json_string_value(json_array_get(required, i));
        IV_TRY(iv_schema_charge(s, 1, COMPARE_EFFORT, where, err));
        if (!name) return iv_schema_fail(s, IV_INVALID, where, "required: wanted strings", err);
        json_t *own = json_object_get(xs, name), *other = json_object_get(ys, name);
        *out = never_has(x, name) || never_has(y, name);
        if (!*out && own && other) IV_TRY(apart(s, own, x->standard, other, where, depth + 1, out, err));
    }
    return IV_OK;
}

/* ---- two sides ----------------------------------------------------------------------------------------- */

static iv_status plain_apart(iv_schema_set *s, const side *x, const side *y, const char *where, int depth, bool *out,
                             iv_error *err) {
    const json_t *a = x->parts.plain, *b = y->parts.plain;
    unsigned one, other;
    *out = x->parts.nothing || y->parts.nothing;
    if (*out) return IV_OK;
    IV_TRY(kinds_of(s, x, where, &one, err));
    IV_TRY(kinds_of(s, y, where, &other, err));
    unsigned both = one & other;
    *out = both == 0;
    if (!*out && has_values(a) && has_values(b)) IV_TRY(values_apart(s, a, b, where, out, err));
    if (!*out && (both & ~(unsigned)(IV_KIND_INTEGER | IV_KIND_NUMBER)) == 0)
        *out = ranges_apart(a, b, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum");
    if (!*out && both == IV_KIND_STRING) *out = ranges_apart(a, b, "minLength", "maxLength", "", "");
    if (!*out && both == IV_KIND_ARRAY) *out = ranges_apart(a, b, "minItems", "maxItems", "", "");
    if (*out || both != IV_KIND_OBJECT) return IV_OK;
    IV_TRY(required_apart(s, x, y, json_object_get(a, "required"), where, depth, out, err));
    return *out ? IV_OK : required_apart(s, x, y, json_object_get(b, "required"), where, depth, out, err);
}

/* Whether all branches of one choice of y are apart from x. */
static iv_status choices_apart(iv_schema_set *s, const side *x, const side *y, const char *where, int depth, bool *out,
                               iv_error *err) {
    for (size_t i = 0; i < json_array_size(y->parts.choices) && !*out; i++) {
        json_t *list = json_object_get(json_array_get(y->parts.choices, i), "list"), *branch;
        size_t k;
        bool all = true;
        json_array_foreach(list, k, branch) if (all)
            IV_TRY(apart(s, x->schema, x->standard, branch, where, depth + 1, &all, err));
        *out = all;
    }
    return IV_OK;
}

/* The same for the branches of x, if it has nothing else: each is then compiled as it is. */
static iv_status branches_apart(iv_schema_set *s, const side *x, bool standard, const side *y, const char *where,
                                int depth, bool *out, iv_error *err) {
    json_t *list = json_object_get(json_array_get(x->parts.choices, 0), "list"), *branch;
    size_t k;
    if (json_object_size(x->parts.plain) || json_array_size(x->parts.choices) != 1) return IV_OK;
    *out = true;
    json_array_foreach(list, k, branch) if (*out)
        IV_TRY(apart(s, branch, standard, y->schema, where, depth + 1, out, err));
    return IV_OK;
}

static iv_status sides_apart(iv_schema_set *s, const side *x, bool standard, const side *y, const char *where,
                             int depth, bool *out, iv_error *err) {
    IV_TRY(plain_apart(s, x, y, where, depth, out, err));
    if (!*out) IV_TRY(choices_apart(s, x, y, where, depth, out, err));
    return *out ? IV_OK : branches_apart(s, x, standard, y, where, depth, out, err);
}

/* *out: no answer written for a schema is valid under the other. False: perhaps one is. */
static iv_status apart(iv_schema_set *s, json_t *answers, bool standard, json_t *other, const char *where, int depth,
                       bool *out, iv_error *err) {
    side x = {0}, y = {0};
    *out = false;
    if (depth > APART_DEPTH_MAX) return IV_OK;
    iv_status status = open_side(s, answers, standard, where, &x, err);
    if (status == IV_OK) status = open_side(s, other, true, where, &y, err);
    if (status == IV_OK) status = sides_apart(s, &x, standard, &y, where, depth, out, err);
    iv_schema_parts_close(&x.parts), iv_schema_parts_close(&y.parts);
    return status;
}

/* ---- refinement ---------------------------------------------------------------------------------------- */

/* Whether every value of x is valid under y, for the simplest y. */
static iv_status within(iv_schema_set *s, const side *x, const side *y, const char *where, bool *out, iv_error *err) {
    const char *key;
    json_t *value;
    unsigned one, other;
    *out = json_array_size(y->parts.choices) == 0 && !y->parts.nothing;
    IV_TRY(kinds_of(s, x, where, &one, err));
    IV_TRY(kinds_of(s, y, where, &other, err));
    json_object_foreach(y->parts.plain, key, value) {
        bool required = strcmp(key, "required") == 0;
        if (strcmp(key, "type") != 0 && !required) *out = false;
        for (size_t i = 0; required && i < json_array_size(value); i++) {
            const char *name = json_string_value(json_array_get(value, i));
            if (!name || !requires(x->parts.plain, name)) *out = false;
        }
    }
    if (one & ~other) *out = false;
    return IV_OK;
}

static json_t *kind_names(unsigned kinds) {
    static const struct {
        unsigned bits;
        const char *name;
    } names[] = {{IV_KIND_NULL, "null"},     {IV_KIND_BOOLEAN, "boolean"}, {IV_KIND_INTEGER | IV_KIND_NUMBER, "number"},
                 {IV_KIND_STRING, "string"}, {IV_KIND_ARRAY, "array"},     {IV_KIND_OBJECT, "object"}};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((kinds & names[i].bits) == names[i].bits) json_array_append_new(list, json_string(names[i].name));
    if ((kinds & (IV_KIND_INTEGER | IV_KIND_NUMBER)) == IV_KIND_INTEGER)
        json_array_append_new(list, json_string("integer"));
    return list;
}

/* What x must add to lose values that y may have, too; NULL: nothing found. */
static iv_status refinement(iv_schema_set *s, const side *x, const side *y, const char *where, json_t **out,
                            iv_error *err) {
    unsigned one, other;
    *out = NULL;
    IV_TRY(kinds_of(s, x, where, &one, err));
    IV_TRY(kinds_of(s, y, where, &other, err));
    unsigned left = one & ~other;
    if ((left & (IV_KIND_INTEGER | IV_KIND_NUMBER)) == IV_KIND_NUMBER) left &= ~(unsigned)IV_KIND_NUMBER;
    if (left && json_array_size(x->parts.choices) == 0) {
        *out = json_pack("{s:o}", "type", kind_names(left));
        return *out ? IV_OK : iv_schema_no_memory(s, err);
    }
    const json_t *required = json_object_get(y->parts.plain, "required");
    for (size_t i = 0; one == IV_KIND_OBJECT && i < json_array_size(required) && !*out; i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name || requires(x->parts.plain, name)) continue;
        bool open = !json_object_get(x->parts.plain, "properties");
        *out = open && !json_object_get(x->parts.plain, "additionalProperties")
                   ? json_pack("{s:{s:b}, s:b}", "properties", name, 0, "additionalProperties", 1)
                   : json_pack("{s:{s:b}}", "properties", name, 0);
        if (!*out) return iv_schema_no_memory(s, err);
    }
    return IV_OK;
}

/* ---- branches ------------------------------------------------------------------------------------------ */

static json_t *keep(iv_schema_set *s, json_t *value) {
    return value && json_array_append_new(s->made, value) == 0 ? value : NULL;
}

/* A branch with the keywords next to oneOf. */
static iv_status open_branch(iv_schema_set *s, json_t *plain, json_t *branch, bool standard, const char *where,
                             side *out, iv_error *err) {
    json_t *whole = keep(s, json_pack("{s:[O, O]}", "allOf", plain, branch));
    *out = (side){0};
    return whole ? open_side(s, whole, standard, where, out, err) : iv_schema_no_memory(s, err);
}

/* Takes from *branch, whose side is x, what it shares with y. *branch is NULL if nothing is left of it. */
static iv_status exclude(iv_schema_set *s, json_t *plain, bool standard, json_t **branch, side *x, const side *y,
                         const char *where, iv_error *err) {
    for (size_t tries = 0; tries < REFINEMENTS_MAX; tries++) {
        bool done, inside;
        json_t *more;
        IV_TRY(iv_schema_charge(s, 1, IV_EFFORT_MEMBER, where, err));
        IV_TRY(sides_apart(s, x, standard, y, where, 0, &done, err));
        if (done) return IV_OK;
        IV_TRY(within(s, x, y, where, &inside, err));
        if (inside) *branch = NULL;
        if (inside) return IV_OK;
        IV_TRY(refinement(s, x, y, where, &more, err));
        if (!more) break;
        if (!(*branch = keep(s, json_pack("{s:[O, o]}", "allOf", *branch, more)))) return iv_schema_no_memory(s, err);
        iv_schema_parts_close(&x->parts);
        IV_TRY(open_branch(s, plain, *branch, standard, where, x, err));
    }
    return iv_schema_fail(s, IV_UNSUPPORTED, where,
                          "oneOf: two branches may hold at once: let them require a member with different values, or "
                          "write anyOf",
                          err);
}

static iv_status exclude_others(iv_schema_set *s, json_t *plain, bool standard, json_t *list, size_t index,
                                const side *others, const char *where, json_t **branch, iv_error *err) {
    side x;
    *branch = json_array_get(list, index);
    iv_status status = open_branch(s, plain, *branch, standard, where, &x, err);
    for (size_t k = 0; status == IV_OK && k < json_array_size(list) && *branch; k++) {
        if (k == index) continue;
        if (json_equal(json_array_get(list, index), json_array_get(list, k)))
            *branch = NULL; /* they hold together */
        else
            status = exclude(s, plain, standard, branch, &x, &others[k], where, err);
    }
    iv_schema_parts_close(&x.parts);
    return status;
}

iv_status iv_schema_exclusive(iv_schema_set *s, json_t *plain, bool alone, json_t *list, const char *where,
                              json_t **out, iv_error *err) {
    size_t count = json_array_size(list);
    iv_status status = IV_OK;
    if (!(*out = keep(s, json_array()))) return iv_schema_no_memory(s, err);
    IV_TRY(iv_schema_charge(s, count, IV_EFFORT_COMPARE * (1 + count), where, err));
    side *others = IV_ARENA_NEW(s->arena, count + 1, side);
    if (!others) return iv_schema_no_memory(s, err);
    memset(others, 0, (count + 1) * sizeof *others);
    for (size_t i = 0; status == IV_OK && i < count; i++)
        status = open_side(s, json_array_get(list, i), true, where, &others[i], err);
    for (size_t i = 0; status == IV_OK && i < count; i++) {
        json_t *branch;
        status = exclude_others(s, plain, !alone, list, i, others, where, &branch, err);
        if (status == IV_OK && branch && json_array_append(*out, branch) != 0) status = iv_schema_no_memory(s, err);
    }
    for (size_t i = 0; i < count; i++) iv_schema_parts_close(&others[i].parts);
    return status;
}
