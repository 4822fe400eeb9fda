/* value.c: lists, dicts, truth, equality and order by Python's rules; sorting; arithmetic of doubles without libm. */
#include "text/jinja/interp.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

/* ---- plain values, lists ---- */

ivj_value ivj_text(const char *s) { return ivj_string(s, strlen(s)); }

bool ivj_bytes_equal(ivj_value v, const char *text) {
    size_t n = strlen(text);
    return v.type == IVJ_STRING && v.n == n && memcmp(v.u.s, text, n) == 0;
}

static const char *type_name_of(ivj_type type) {
    static const char *const names[IVJ_TYPES] = {"missing",   "Undefined", "NoneType",  "bool",      "int",
                                                 "float",     "str",       "list",      "tuple",     "dict",
                                                 "dict view", "range",     "generator", "Namespace", "LoopContext",
                                                 "Macro",     "Cycler",    "Joiner",    "function",  "method"};
    return type < IVJ_TYPES ? names[type] : "object";
}

const char *ivj_type_name(ivj_value v) { return type_name_of((ivj_type)v.type); }

iv_status ivj_fail_undefined(ivj_run *r, ivj_value v) {
    int n = (int)iv_size_min(v.n, 200);
    if (v.why == IVJ_BY_HINT) return ivj_fail(r, "%.*s", n, v.u.s);
    if (v.why == IVJ_BY_NAME) return ivj_fail(r, "'%.*s' is undefined", n, v.u.s);
    if (v.why == IVJ_BY_SANDBOX) return ivj_fail(r, "access to attribute '%.*s' is unsafe", n, v.u.s);
    return ivj_fail(r, "'%s object' has no attribute '%.*s'", type_name_of((ivj_type)(v.why - IVJ_OF_TYPE)), n, v.u.s);
}

iv_status ivj_list_new(ivj_run *r, size_t cap, ivj_list **out) {
    IV_TRY(ivj_alloc(r, 1, sizeof **out, out));
    (*out)->cap = cap;
    return cap ? ivj_alloc(r, cap, sizeof(ivj_value), &(*out)->items) : IV_OK;
}

iv_status ivj_list_push(ivj_run *r, ivj_list *list, ivj_value v) {
    if (list->n == list->cap) IV_TRY(ivj_grow(r, &list->items, list->n, sizeof *list->items, &list->cap));
    list->items[list->n++] = v;
    return IV_OK;
}

iv_status ivj_list_append(ivj_run *r, ivj_list *list, const ivj_value *items, size_t n) {
    IV_TRY(ivj_charge(r, n / 16));
    for (size_t i = 0; i < n; i++) IV_TRY(ivj_list_push(r, list, items[i]));
    return IV_OK;
}

bool ivj_truth(ivj_value v) {
    switch ((ivj_type)v.type) {
    case IVJ_MISSING:
    case IVJ_UNDEFINED:
    case IVJ_NONE: return false;
    case IVJ_BOOL: return v.u.b;
    case IVJ_INT: return v.u.i != 0;
    case IVJ_FLOAT: return v.u.d != 0;
    case IVJ_STRING: return v.n != 0;
    case IVJ_LIST:
    case IVJ_TUPLE: return v.u.list->n != 0;
    case IVJ_DICT:
    case IVJ_VIEW: return v.u.dict->n != 0;
    case IVJ_RANGE: return v.u.range->n != 0;
    default: return true;
    }
}

static int compare_int_double(int64_t i, double d) {
    if (d >= 9223372036854775808.0) return -1;
    if (d < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)d; /* toward zero */
    if (i != whole) return i < whole ? -1 : 1;
    double rest = d - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

int ivj_compare_numbers(ivj_value a, ivj_value b) {
    if ((a.type == IVJ_FLOAT && isnan(a.u.d)) || (b.type == IVJ_FLOAT && isnan(b.u.d))) return 2;
    if (a.type == IVJ_FLOAT && b.type == IVJ_FLOAT) return a.u.d < b.u.d ? -1 : a.u.d > b.u.d;
    if (a.type == IVJ_FLOAT) return -compare_int_double(ivj_as_int(b), a.u.d);
    if (b.type == IVJ_FLOAT) return compare_int_double(ivj_as_int(a), b.u.d);
    int64_t x = ivj_as_int(a), y = ivj_as_int(b);
    return x < y ? -1 : x > y;
}

static int compare_strings(ivj_value a, ivj_value b) {
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.u.s, b.u.s, n) : 0; /* UTF-8 bytes sort like code points */
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

bool ivj_same(ivj_value a, ivj_value b) {
    if (a.type != b.type) return false;
    switch ((ivj_type)a.type) {
    case IVJ_MISSING:
    case IVJ_UNDEFINED: return false; /* every undefined value is its own object */
    case IVJ_NONE: return true;
    case IVJ_BOOL: return a.u.b == b.u.b;
    case IVJ_INT: return a.u.i == b.u.i;
    case IVJ_FLOAT: return a.u.d == b.u.d;
    case IVJ_STRING: return a.markup == b.markup && compare_strings(a, b) == 0;
    case IVJ_METHOD: return false;
    default: return a.u.s == b.u.s; /* any of the pointers */
    }
}

static iv_status lists_equal(ivj_run *r, const ivj_list *a, const ivj_list *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) IV_TRY(ivj_equal(r, a->items[i], b->items[i], out));
    return IV_OK;
}

static iv_status dicts_equal(ivj_run *r, const ivj_dict *a, const ivj_dict *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const ivj_value *other = NULL;
        IV_TRY(ivj_dict_get(r, b, a->entries[i].key, &other));
        *out = other != NULL;
        if (other) IV_TRY(ivj_equal(r, a->entries[i].value, *other, out));
    }
    return IV_OK;
}

static bool ranges_equal(const ivj_range *a, const ivj_range *b) {
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

iv_status ivj_equal(ivj_run *r, ivj_value a, ivj_value b, bool *out) {
    if (ivj_is_number(a) && ivj_is_number(b)) {
        *out = ivj_compare_numbers(a, b) == 0;
        return IV_OK;
    }
    *out = false;
    if (a.type != b.type) return IV_OK;
    IV_TRY(ivj_charge(r, 1));
    switch ((ivj_type)a.type) {
    case IVJ_UNDEFINED: *out = true; return IV_OK;
    case IVJ_STRING:
        if (a.n != b.n) return IV_OK;
        *out = a.u.s == b.u.s || compare_strings(a, b) == 0;
        return ivj_charge_bytes(r, a.n);
    case IVJ_RANGE: *out = ranges_equal(a.u.range, b.u.range); return IV_OK;
    case IVJ_LIST:
    case IVJ_TUPLE:
    case IVJ_DICT: break;
    default: *out = ivj_same(a, b); return IV_OK;
    }
    IV_TRY(ivj_enter(r));
    if (a.type == IVJ_DICT)
        IV_TRY(dicts_equal(r, a.u.dict, b.u.dict, out));
    else
        IV_TRY(lists_equal(r, a.u.list, b.u.list, out));
    ivj_leave(r);
    return IV_OK;
}

iv_status ivj_less(ivj_run *r, ivj_value a, ivj_value b, bool *out) {
    IV_TRY(ivj_charge(r, 1));
    if (ivj_is_number(a) && ivj_is_number(b)) {
        *out = ivj_compare_numbers(a, b) == -1;
        return IV_OK;
    }
    if (a.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, a);
    if (b.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, b);
    if (a.type == IVJ_STRING && b.type == IVJ_STRING) {
        *out = compare_strings(a, b) < 0;
        return ivj_charge_bytes(r, a.n < b.n ? a.n : b.n);
    }
    if (a.type != b.type || !ivj_is_sequence(a))
        return ivj_fail(r, "'%s' and '%s' cannot be ordered", ivj_type_name(a), ivj_type_name(b));
    IV_TRY(ivj_enter(r));
    const ivj_list *x = a.u.list, *y = b.u.list;
    size_t i = 0;
    for (bool equal = true; i < x->n && i < y->n; i++) {
        IV_TRY(ivj_equal(r, x->items[i], y->items[i], &equal));
        if (!equal) break;
    }
    if (i < x->n && i < y->n)
        IV_TRY(ivj_less(r, x->items[i], y->items[i], out));
    else
        *out = x->n < y->n;
    ivj_leave(r);
    return IV_OK;
}

static iv_status from_json_object(ivj_run *r, const json_t *json, int depth, ivj_value *out) {
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    *out = ivj_dict_value(d);
    /* jansson iterates over mutable objects only, and does not change them. */
    json_t *object = (json_t *)(uintptr_t)json;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        ivj_value v;
        IV_TRY(ivj_from_json(r, json_object_iter_value(it), depth + 1, &v));
        IV_TRY(ivj_dict_set(r, d, ivj_text(json_object_iter_key(it)), v));
    }
    return IV_OK;
}

iv_status ivj_from_json(ivj_run *r, const json_t *json, int depth, ivj_value *out) {
    if (depth > IVJ_MAX_VALUE_DEPTH)
        return ivj_fail_limit(r, "the variables are nested more than %d deep", IVJ_MAX_VALUE_DEPTH);
    switch (json_typeof(json)) {
    case JSON_OBJECT: return from_json_object(r, json, depth, out);
    case JSON_ARRAY: {
        ivj_list *list;
        IV_TRY(ivj_list_new(r, json_array_size(json), &list));
        for (size_t i = 0; i < json_array_size(json); i++) {
            ivj_value v;
            IV_TRY(ivj_from_json(r, json_array_get(json, i), depth + 1, &v));
            IV_TRY(ivj_list_push(r, list, v));
        }
        *out = ivj_list_value(list);
        return IV_OK;
    }
    case JSON_STRING:
        if (json_string_length(json) > IVJ_MAX_LIVE_BYTES)
            return ivj_fail_limit(r, "a variable has more than %zu bytes", IVJ_MAX_LIVE_BYTES);
        *out = ivj_string(json_string_value(json), json_string_length(json));
        return IV_OK;
    case JSON_INTEGER: *out = ivj_int(json_integer_value(json)); return IV_OK;
    case JSON_REAL: *out = ivj_float(json_real_value(json)); return IV_OK;
    case JSON_TRUE:
    case JSON_FALSE: *out = ivj_bool(json_is_true(json)); return IV_OK;
    default: *out = ivj_none(); return IV_OK;
    }
}

/* ---- dicts ---- */

enum { INDEX_FROM = 8 }; /* entries */

static uint64_t mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 33;
}

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3ULL;
    return mix(h);
}

bool ivj_hashable(ivj_value v, int depth) {
    if (v.type == IVJ_LIST || v.type == IVJ_DICT || depth > IVJ_MAX_VALUE_DEPTH) return false;
    if (v.type != IVJ_TUPLE) return true;
    for (size_t i = 0; i < v.u.list->n; i++)
        if (!ivj_hashable(v.u.list->items[i], depth + 1)) return false;
    return true;
}

/* Equal values have equal hashes, across bool, int and float. */
static uint64_t hash(ivj_value v) {
    switch ((ivj_type)v.type) {
    case IVJ_STRING: return hash_bytes(v.u.s, v.n);
    case IVJ_BOOL:
    case IVJ_INT: return mix((uint64_t)ivj_as_int(v));
    case IVJ_FLOAT: {
        if (v.u.d >= -9e18 && v.u.d <= 9e18 && v.u.d == (double)(int64_t)v.u.d) return mix((uint64_t)(int64_t)v.u.d);
        return hash_bytes((const char *)&v.u.d, sizeof v.u.d);
    }
    case IVJ_TUPLE: {
        uint64_t h = v.u.list->n;
        for (size_t i = 0; i < v.u.list->n; i++) h = mix(h ^ hash(v.u.list->items[i]));
        return h;
    }
    default: return v.type;
    }
}

iv_status ivj_dict_new(ivj_run *r, ivj_dict **out) { return ivj_alloc(r, 1, sizeof **out, out); }

static iv_status same_key(ivj_run *r, const ivj_entry *e, uint64_t h, ivj_value key, bool *same) {
    *same = false;
    return e->hash == h ? ivj_equal(r, e->key, key, same) : IV_OK;
}

/* The entry of key, or NULL; with an index, *slot is where the key is or would be. */
static iv_status find(ivj_run *r, const ivj_dict *d, uint64_t h, ivj_value key, ivj_entry **out, size_t *slot) {
    bool same;
    *out = NULL;
    if (!d->index) {
        for (size_t i = 0; i < d->n && !*out; i++) {
            IV_TRY(same_key(r, &d->entries[i], h, key, &same));
            if (same) *out = &d->entries[i];
        }
        return IV_OK;
    }
    for (size_t i = h & (d->index_cap - 1), probes = 1;; i = (i + 1) & (d->index_cap - 1), probes++) {
        *slot = i;
        if (d->index[i] == 0) return IV_OK;
        if (probes % 8 == 0) IV_TRY(ivj_charge(r, 1));
        IV_TRY(same_key(r, &d->entries[d->index[i] - 1], h, key, &same));
        if (same) {
            *out = &d->entries[d->index[i] - 1];
            return IV_OK;
        }
    }
}

static iv_status grow(ivj_run *r, ivj_dict *d) {
    IV_TRY(ivj_grow(r, &d->entries, d->n, sizeof *d->entries, &d->cap));
    if (d->cap <= INDEX_FROM) return IV_OK;
    d->index_cap = d->cap * 2;
    IV_TRY(ivj_alloc(r, d->index_cap, sizeof *d->index, &d->index));
    for (size_t e = 0; e < d->n; e++) {
        size_t i = d->entries[e].hash & (d->index_cap - 1);
        while (d->index[i]) i = (i + 1) & (d->index_cap - 1);
        d->index[i] = (uint32_t)e + 1;
    }
    return ivj_charge(r, d->n);
}

iv_status ivj_dict_set(ivj_run *r, ivj_dict *d, ivj_value key, ivj_value value) {
    if (!ivj_hashable(key, 0)) return ivj_fail(r, "'%s' cannot be a key", ivj_type_name(key));
    uint64_t h = hash(key);
    ivj_entry *e;
    size_t slot = 0;
    IV_TRY(find(r, d, h, key, &e, &slot));
    if (e) {
        e->value = value;
        return IV_OK;
    }
    if (d->n == d->cap) {
        IV_TRY(grow(r, d));
        IV_TRY(find(r, d, h, key, &e, &slot));
    }
    d->entries[d->n++] = (ivj_entry){.hash = h, .key = key, .value = value};
    if (d->index) d->index[slot] = (uint32_t)d->n;
    return IV_OK;
}

iv_status ivj_dict_get(ivj_run *r, const ivj_dict *d, ivj_value key, const ivj_value **out) {
    if (!ivj_hashable(key, 0)) return ivj_fail(r, "'%s' cannot be a key", ivj_type_name(key));
    ivj_entry *e;
    size_t slot;
    IV_TRY(find(r, d, hash(key), key, &e, &slot));
    *out = e ? &e->value : NULL;
    return IV_OK;
}

/* ---- sorting ---- */

/* Merges the sorted runs [low, mid) and [mid, high) of `from` into `to`. */
static iv_status merge(ivj_run *r, const ivj_value *keys, bool reverse, const size_t *from, size_t *to, size_t low,
                       size_t mid, size_t high) {
    size_t a = low, b = mid;
    for (size_t i = low; i < high; i++) {
        bool take_b = a == mid;
        if (a < mid && b < high) {
            /* Stable: the later key precedes only if it is strictly less (greater, reversed). */
            size_t x = reverse ? from[a] : from[b], y = reverse ? from[b] : from[a];
            IV_TRY(ivj_less(r, keys[x], keys[y], &take_b));
        }
        to[i] = take_b ? from[b++] : from[a++];
    }
    return IV_OK;
}

iv_status ivj_sort_order(ivj_run *r, const ivj_value *keys, size_t n, bool reverse, size_t **order) {
    size_t *from, *to;
    IV_TRY(ivj_alloc(r, n, sizeof *from, &from));
    IV_TRY(ivj_alloc(r, n, sizeof *to, &to));
    for (size_t i = 0; i < n; i++) from[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t mid = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            IV_TRY(merge(r, keys, reverse, from, to, low, mid, high));
        }
        size_t *swap = from;
        from = to;
        to = swap;
    }
    *order = from;
    return IV_OK;
}

iv_status ivj_sort_keys(ivj_run *r, const ivj_dict *d, size_t **order) {
    ivj_value *keys;
    IV_TRY(ivj_alloc(r, d->n, sizeof *keys, &keys));
    for (size_t i = 0; i < d->n; i++) keys[i] = d->entries[i].key;
    return ivj_sort_order(r, keys, d->n, false, order);
}

/* ---- doubles ---- */

#define TWO_52 4503599627370496.0

double ivj_floor(double d) {
    if (!(fabs(d) < TWO_52) || d == 0) return d; /* integers, infinities, NaN and both zeros */
    double t = (double)(int64_t)d;
    return t > d ? t - 1 : t == 0 ? copysign(t, d) : t;
}

double ivj_ceil(double d) { return -ivj_floor(-d); }

double ivj_round_even(double d) {
    double low = ivj_floor(d), rest = d - low;
    if (!(rest > 0)) return d;
    bool odd = fabs(low) < TWO_52 && ((int64_t)low & 1);
    return rest > 0.5 || (rest == 0.5 && odd) ? low + 1 : low;
}

double ivj_remainder(double a, double b) {
    int a_exp, b_exp;
    if (isinf(b) || a == 0) return a;
    /* Mantissas as integers of 53 bits, then long division, one bit a step. */
    uint64_t x = (uint64_t)ldexp(frexp(fabs(a), &a_exp), 53), y = (uint64_t)ldexp(frexp(fabs(b), &b_exp), 53);
    if (a_exp < b_exp) return a;
    for (x %= y; a_exp > b_exp; a_exp--) x = (x << 1) % y;
    return copysign(ldexp((double)x, b_exp - 53), a);
}

/* high + low: a number of twice the precision. */
typedef struct pair {
    double high, low;
} pair;

/* The two halves of a double's mantissa, so that their products are exact. */
static pair split(double d) {
    double t = d * 134217729.0, high = t - (t - d);
    return (pair){high, d - high};
}

static pair multiply(pair a, pair b) {
    double p = a.high * b.high;
    pair x = split(a.high), y = split(b.high);
    double error = ((x.high * y.high - p) + x.high * y.low + x.low * y.high) + x.low * y.low;
    error += a.high * b.low + a.low * b.high;
    double high = p + error;
    return (pair){high, isfinite(high) ? error - (high - p) : 0};
}

double ivj_power(double base, int64_t exponent) {
    uint64_t n = exponent < 0 ? 0 - (uint64_t)exponent : (uint64_t)exponent;
    pair result = {1, 0}, square = {base, 0};
    for (; n; n >>= 1) {
        if (n & 1) result = multiply(result, square);
        if (n > 1) square = multiply(square, square);
    }
    return exponent < 0 ? 1 / result.high : result.high;
}

/* ---- arguments ---- */

static iv_status bind_keyword(ivj_run *r, const char *what, const ivj_keyword *k, const char *names, ivj_value *out) {
    int n = (int)(k->name.n < 60 ? k->name.n : 60);
    size_t slot = 0;
    for (const char *word = names; *word; slot++) {
        size_t len = strcspn(word, " "), bare = len && word[len - 1] == '!' ? len - 1 : len;
        if (bare == k->name.n && memcmp(word, k->name.u.s, bare) == 0) {
            if (out[slot].type != IVJ_MISSING) return ivj_fail(r, "%s has two values for '%.*s'", what, n, k->name.u.s);
            out[slot] = k->value;
            return IV_OK;
        }
        word += len;
        word += *word == ' ';
    }
    return ivj_fail(r, "%s has no parameter '%.*s'", what, n, k->name.u.s);
}

iv_status ivj_bind(ivj_run *r, const char *what, const ivj_call *call, const char *names, ivj_value *out) {
    size_t slots = 0;
    for (const char *word = names; *word; slots++) {
        word += strcspn(word, " ");
        word += *word == ' ';
    }
    for (size_t i = 0; i < slots; i++) out[i] = (ivj_value){.type = IVJ_MISSING};
    if (call->n_args > slots)
        return ivj_fail(r, "%s takes at most %zu arguments, found %zu", what, slots, call->n_args);
    for (size_t i = 0; i < call->n_args; i++) out[i] = call->args[i];
    for (size_t i = 0; i < call->n_keywords; i++) IV_TRY(bind_keyword(r, what, &call->keywords[i], names, out));
    size_t slot = 0;
    for (const char *word = names; *word; slot++) {
        size_t len = strcspn(word, " ");
        if (word[len - 1] == '!' && out[slot].type == IVJ_MISSING)
            return ivj_fail(r, "%s needs the argument '%.*s'", what, (int)len - 1, word);
        word += len;
        word += *word == ' ';
    }
    return IV_OK;
}

iv_status ivj_arg_int(ivj_run *r, const char *what, ivj_value v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (v.type == IVJ_MISSING) return IV_OK;
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    if (!ivj_is_int(v)) return ivj_fail(r, "%s wants an integer, found '%s'", what, ivj_type_name(v));
    *out = ivj_as_int(v);
    return IV_OK;
}

iv_status ivj_arg_string(ivj_run *r, const char *what, ivj_value v, const char *fallback, ivj_value *out) {
    *out = v;
    if (v.type == IVJ_MISSING && fallback) *out = ivj_text(fallback);
    if (out->type == IVJ_STRING) return IV_OK;
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    return ivj_fail(r, "%s wants a string, found '%s'", what, ivj_type_name(v));
}
