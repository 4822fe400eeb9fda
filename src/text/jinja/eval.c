/* eval.c: evaluating expressions. Recursion is bounded by ivj_enter. */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <math.h>
#include <string.h>

/* ---- operators ---- */

static iv_status fail_types(ivj_run *r, const char *op, ivj_value a, ivj_value b) {
    if (a.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, a);
    if (b.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, b);
    return ivj_fail(r, "'%s' cannot be applied to '%s' and '%s'", op, ivj_type_name(a), ivj_type_name(b));
}

static iv_status fail_overflow(ivj_run *r) { return ivj_fail_limit(r, "an integer does not fit 64 bits"); }

static int bits(uint64_t v) { return v ? 64 - __builtin_clzll(v) : 0; }
static uint64_t magnitude(int64_t v) { return v < 0 ? 0 - (uint64_t)v : (uint64_t)v; }

/* a / b rounded once: the quotient has at least 60 bits and a sticky last bit. */
static double divide_ints(int64_t a, int64_t b) {
    uint64_t x = magnitude(a), y = magnitude(b);
    if (x == 0) return b < 0 ? -0.0 : 0.0;
    int shift = 62 - (bits(x) - bits(y));
    if (shift < 0) shift = 0;
    unsigned __int128 wide = (unsigned __int128)x << shift;
    uint64_t q = (uint64_t)(wide / y);
    if (wide % y) q |= 1;
    double d = ldexp((double)q, -shift);
    return (a < 0) != (b < 0) ? -d : d;
}

static int64_t floor_mod(int64_t a, int64_t b) {
    if (b == -1) return 0;
    int64_t m = a % b;
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

static iv_status power_ints(ivj_run *r, int64_t base, int64_t exponent, ivj_value *out) {
    int64_t v = 1;
    if (exponent < 0) {
        if (base == 0) return ivj_fail(r, "0 cannot be raised to a negative power");
        *out = ivj_float(ivj_power((double)base, exponent));
        return IV_OK;
    }
    if (base == 1 || base == 0 || base == -1) exponent = exponent ? 2 - exponent % 2 : 0;
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(v, base, &v)) return fail_overflow(r);
    *out = ivj_int(v);
    return IV_OK;
}

static iv_status binary_ints(ivj_run *r, ivj_op op, int64_t a, int64_t b, ivj_value *out) {
    int64_t v = 0;
    bool over = false;
    switch (op) {
    case IVJ_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case IVJ_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case IVJ_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case IVJ_POW: return power_ints(r, a, b, out);
    default:
        if (b == 0) return ivj_fail(r, "division by zero");
        if (op == IVJ_DIV) {
            *out = ivj_float(divide_ints(a, b));
            return IV_OK;
        }
        if (op == IVJ_MOD)
            v = floor_mod(a, b);
        else if (b == -1)
            over = __builtin_sub_overflow((int64_t)0, a, &v);
        else
            v = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    }
    if (over) return fail_overflow(r);
    *out = ivj_int(v);
    return IV_OK;
}

/* Python's divmod of floats: the modulus has the sign of the divisor. */
static void divmod_floats(double a, double b, double *quotient, double *modulus) {
    double mod = ivj_remainder(a, b), div = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0)) {
        mod += b;
        div -= 1;
    } else if (mod == 0) {
        mod = copysign(0, b);
    }
    *modulus = mod;
    if (div == 0) {
        *quotient = copysign(0, a / b);
        return;
    }
    *quotient = ivj_floor(div);
    if (div - *quotient > 0.5) *quotient += 1;
}

static iv_status binary_floats(ivj_run *r, ivj_op op, double a, double b, ivj_value *out) {
    double v = 0, other;
    switch (op) {
    case IVJ_ADD: v = a + b; break;
    case IVJ_SUB: v = a - b; break;
    case IVJ_MUL: v = a * b; break;
    case IVJ_POW:
        if (a == 0 && b < 0) return ivj_fail(r, "0.0 cannot be raised to a negative power");
        if (!(b >= -4096 && b <= 4096) || b != ivj_floor(b))
            return ivj_fail(r, "powers of floats are supported for integer exponents up to 4096");
        v = ivj_power(a, (int64_t)b);
        if (!isfinite(v) && isfinite(a)) return ivj_fail(r, "a power is out of range");
        break;
    default:
        if (b == 0) return ivj_fail(r, "division by zero");
        if (op == IVJ_DIV)
            v = a / b;
        else if (!isfinite(a) || isnan(b))
            v = (double)NAN;
        else if (op == IVJ_MOD)
            divmod_floats(a, b, &other, &v);
        else
            divmod_floats(a, b, &v, &other);
        break;
    }
    *out = ivj_float(v);
    return IV_OK;
}

static iv_status add_strings(ivj_run *r, ivj_value a, ivj_value b, ivj_value *out) {
    bool markup = a.markup || b.markup;
    if (markup) {
        IV_TRY(ivj_escape(r, a, &a));
        IV_TRY(ivj_escape(r, b, &b));
    }
    IV_TRY(ivj_join_two(r, a, b, out));
    out->markup = markup;
    return IV_OK;
}

static iv_status repeat(ivj_run *r, ivj_value v, int64_t times, ivj_value *out) {
    size_t count = times > 0 ? (size_t)times : 0;
    size_t size = v.type == IVJ_STRING ? v.n : v.u.list->n * sizeof(ivj_value);
    if (size && count > IVJ_MAX_LIVE_BYTES / size)
        return ivj_fail_limit(r, "a repetition needs more than %zu bytes", IVJ_MAX_LIVE_BYTES);
    if (size == 0) count = 0;
    IV_TRY(ivj_charge_bytes(r, size * count));
    char *copy;
    IV_TRY(ivj_alloc(r, size * count, 1, &copy));
    const char *bytes = v.type == IVJ_STRING ? v.u.s : (const char *)v.u.list->items;
    for (size_t i = 0; i < count; i++) memcpy(copy + i * size, bytes, size);
    if (v.type == IVJ_STRING) {
        *out = ivj_string(copy, size * count);
        out->markup = v.markup;
        return IV_OK;
    }
    ivj_list *list;
    IV_TRY(ivj_list_new(r, 0, &list));
    list->items = (ivj_value *)(void *)copy;
    list->n = list->cap = v.u.list->n * count;
    *out = v.type == IVJ_LIST ? ivj_list_value(list) : ivj_tuple_value(list);
    return IV_OK;
}

static iv_status add_lists(ivj_run *r, ivj_value a, ivj_value b, ivj_value *out) {
    ivj_list *list;
    IV_TRY(ivj_list_new(r, a.u.list->n + b.u.list->n, &list));
    IV_TRY(ivj_list_append(r, list, a.u.list->items, a.u.list->n));
    IV_TRY(ivj_list_append(r, list, b.u.list->items, b.u.list->n));
    *out = a.type == IVJ_LIST ? ivj_list_value(list) : ivj_tuple_value(list);
    return IV_OK;
}

static bool can_repeat(ivj_value v) { return v.type == IVJ_STRING || ivj_is_sequence(v); }

iv_status ivj_binary(ivj_run *r, ivj_op op, ivj_value a, ivj_value b, ivj_value *out) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (ivj_is_int(a) && ivj_is_int(b)) return binary_ints(r, op, ivj_as_int(a), ivj_as_int(b), out);
    if (ivj_is_number(a) && ivj_is_number(b)) return binary_floats(r, op, ivj_as_double(a), ivj_as_double(b), out);
    if (op == IVJ_MOD && a.type == IVJ_STRING) return ivj_percent(r, a, b, out);
    if (op == IVJ_ADD && a.type == b.type) {
        if (a.type == IVJ_STRING) return add_strings(r, a, b, out);
        if (ivj_is_sequence(a)) return add_lists(r, a, b, out);
    }
    if (op == IVJ_MUL && can_repeat(a) && ivj_is_int(b)) return repeat(r, a, ivj_as_int(b), out);
    if (op == IVJ_MUL && can_repeat(b) && ivj_is_int(a)) return repeat(r, b, ivj_as_int(a), out);
    return fail_types(r, names[op], a, b);
}

static iv_status negative(ivj_run *r, ivj_value v, ivj_value *out) {
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    if (!ivj_is_number(v)) return ivj_fail(r, "'-' cannot be applied to '%s'", ivj_type_name(v));
    if (v.type != IVJ_FLOAT) return binary_ints(r, IVJ_SUB, 0, ivj_as_int(v), out);
    *out = ivj_float(-v.u.d);
    return IV_OK;
}

static iv_status positive(ivj_run *r, ivj_value v, ivj_value *out) {
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    if (!ivj_is_number(v)) return ivj_fail(r, "'+' cannot be applied to '%s'", ivj_type_name(v));
    *out = v.type == IVJ_BOOL ? ivj_int(v.u.b) : v;
    return IV_OK;
}

iv_status ivj_compare(ivj_run *r, ivj_op op, ivj_value a, ivj_value b, bool *out) {
    switch (op) {
    case IVJ_EQ: return ivj_equal(r, a, b, out);
    case IVJ_NE:
        IV_TRY(ivj_equal(r, a, b, out));
        *out = !*out;
        return IV_OK;
    case IVJ_LT: return ivj_less(r, a, b, out);
    case IVJ_GT: return ivj_less(r, b, a, out);
    case IVJ_LE:
    case IVJ_GE: {
        if (ivj_is_number(a) && ivj_is_number(b)) {
            int c = ivj_compare_numbers(a, b);
            *out = c != 2 && (op == IVJ_LE ? c <= 0 : c >= 0);
            return IV_OK;
        }
        IV_TRY(op == IVJ_LE ? ivj_less(r, b, a, out) : ivj_less(r, a, b, out));
        *out = !*out;
        return IV_OK;
    }
    default:
        IV_TRY(ivj_contains(r, b, a, out));
        if (op == IVJ_NOT_IN) *out = !*out;
        return IV_OK;
    }
}

/* ---- expressions ---- */

static iv_status eval_items(ivj_run *r, const ivj_nodes *nodes, ivj_list **out) {
    IV_TRY(ivj_list_new(r, nodes->n, out));
    for (uint32_t i = 0; i < nodes->n; i++) {
        ivj_value v;
        IV_TRY(ivj_eval(r, nodes->at[i], &v));
        IV_TRY(ivj_list_push(r, *out, v));
    }
    return IV_OK;
}

static iv_status eval_sequence(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_list *list;
    IV_TRY(eval_items(r, &node->list, &list));
    *out = node->kind == IVJ_N_LIST ? ivj_list_value(list) : ivj_tuple_value(list);
    return IV_OK;
}

static iv_status eval_dict(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    for (uint32_t i = 0; i < node->list.n; i++) {
        ivj_value key, value;
        IV_TRY(ivj_eval(r, node->list.at[i]->a, &key));
        IV_TRY(ivj_eval(r, node->list.at[i]->b, &value));
        IV_TRY(ivj_dict_set(r, d, key, value));
    }
    *out = ivj_dict_value(d);
    return IV_OK;
}

static iv_status eval_cond(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value test;
    IV_TRY(ivj_eval(r, node->a, &test));
    if (ivj_truth(test)) return ivj_eval(r, node->b, out);
    if (node->c) return ivj_eval(r, node->c, out);
    *out = ivj_hint("the inline if is false and has no else");
    return IV_OK;
}

static iv_status eval_logic(ivj_run *r, const ivj_node *node, ivj_value *out) {
    IV_TRY(ivj_eval(r, node->a, out));
    return ivj_truth(*out) == (node->kind == IVJ_N_AND) ? ivj_eval(r, node->b, out) : IV_OK;
}

static iv_status eval_binary(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value a, b;
    IV_TRY(ivj_eval(r, node->a, &a));
    IV_TRY(ivj_eval(r, node->b, &b));
    r->line = node->line;
    return ivj_binary(r, (ivj_op)node->op, a, b, out);
}

static iv_status eval_concat(ivj_run *r, const ivj_node *node, ivj_value *out) {
    *out = ivj_string("", 0);
    for (uint32_t i = 0; i < node->list.n; i++) {
        ivj_value v;
        IV_TRY(ivj_eval(r, node->list.at[i], &v));
        IV_TRY(ivj_str(r, v, &v));
        IV_TRY(ivj_join_two(r, *out, v, out));
    }
    return IV_OK;
}

static iv_status eval_compare(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value left, right;
    bool held = true;
    IV_TRY(ivj_eval(r, node->a, &left));
    for (uint32_t i = 0; i < node->list.n && held; i++, left = right) {
        IV_TRY(ivj_eval(r, node->list.at[i]->a, &right));
        r->line = node->line;
        IV_TRY(ivj_compare(r, (ivj_op)node->list.at[i]->op, left, right, &held));
    }
    *out = ivj_bool(held);
    return IV_OK;
}

static iv_status eval_slice(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value object, part[3];
    IV_TRY(ivj_eval(r, node->a, &object));
    for (uint32_t i = 0; i < 3; i++) {
        part[i] = ivj_none();
        if (node->list.at[i]) IV_TRY(ivj_eval(r, node->list.at[i], &part[i]));
    }
    r->line = node->line;
    return ivj_slice(r, object, part, out);
}

/* Appends the members of a mapping given as **mapping. */
static iv_status spread(ivj_run *r, ivj_value v, ivj_keyword **keywords, size_t *n) {
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    if (v.type != IVJ_DICT) return ivj_fail(r, "** wants a mapping, found '%s'", ivj_type_name(v));
    ivj_keyword *all;
    IV_TRY(ivj_alloc(r, *n + v.u.dict->n, sizeof *all, &all));
    if (*n) memcpy(all, *keywords, *n * sizeof *all);
    for (size_t i = 0; i < v.u.dict->n; i++) {
        const ivj_entry *e = &v.u.dict->entries[i];
        if (e->key.type != IVJ_STRING)
            return ivj_fail(r, "the keys of ** are strings, found '%s'", ivj_type_name(e->key));
        all[(*n)++] = (ivj_keyword){.name = e->key, .value = e->value};
    }
    *keywords = all;
    return IV_OK;
}

static iv_status check_keywords(ivj_run *r, const ivj_keyword *keywords, size_t n) {
    for (size_t i = 1; i < n; i++) {
        IV_TRY(ivj_charge(r, i / 16));
        for (size_t k = 0; k < i; k++)
            if (ivj_same(keywords[i].name, keywords[k].name))
                return ivj_fail(r, "the keyword argument '%.*s' is given twice",
                                (int)(keywords[i].name.n < 60 ? keywords[i].name.n : 60), keywords[i].name.u.s);
    }
    return IV_OK;
}

iv_status ivj_eval_args(ivj_run *r, const ivj_nodes *nodes, ivj_call *out) {
    ivj_list *args;
    ivj_keyword *keywords = NULL;
    size_t n_keywords = 0;
    *out = (ivj_call){0};
    if (nodes->n == 0) return IV_OK;
    IV_TRY(ivj_list_new(r, nodes->n, &args));
    IV_TRY(ivj_alloc(r, nodes->n, sizeof *keywords, &keywords));
    /* Keywords before a ** use this array; spread then replaces it by a larger one. */
    size_t room = nodes->n;
    for (uint32_t i = 0; i < nodes->n; i++) {
        const ivj_node *arg = nodes->at[i];
        ivj_value v;
        IV_TRY(ivj_eval(r, arg->a, &v));
        if (arg->op == IVJ_POSITIONAL)
            IV_TRY(ivj_list_push(r, args, v));
        else if (arg->op == IVJ_STAR) {
            ivj_list *more;
            IV_TRY(ivj_to_list(r, v, &more));
            IV_TRY(ivj_list_append(r, args, more->items, more->n));
        } else if (arg->op == IVJ_STAR_STAR)
            IV_TRY(spread(r, v, &keywords, &n_keywords)); /* always the last */
        else {
            IV_ASSERT(n_keywords < room);
            keywords[n_keywords++] = (ivj_keyword){.name = arg->value, .value = v};
        }
    }
    IV_TRY(check_keywords(r, keywords, n_keywords));
    *out = (ivj_call){.args = args->items, .n_args = args->n, .keywords = keywords, .n_keywords = n_keywords};
    return IV_OK;
}

static iv_status eval_call(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value callee;
    ivj_call call;
    IV_TRY(ivj_eval(r, node->a, &callee));
    IV_TRY(ivj_eval_args(r, &node->list, &call));
    r->line = node->line;
    IV_TRY(ivj_call_value(r, callee, &call, out));
    r->line = node->line;
    return IV_OK;
}

static iv_status fail_unknown(ivj_run *r, const char *what, ivj_value name) {
    return ivj_fail(r, "no %s is named '%.*s'", what, (int)(name.n < 60 ? name.n : 60), name.u.s);
}

static iv_status eval_filter(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value self = r->filter_input;
    ivj_call call;
    if (!node->filter) return fail_unknown(r, "filter", node->value);
    if (node->a) IV_TRY(ivj_eval(r, node->a, &self));
    IV_TRY(ivj_eval_args(r, &node->list, &call));
    r->line = node->line;
    return ivj_call_filter(r, node->filter, self, &call, out);
}

static iv_status eval_test(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value self;
    ivj_call call;
    if (!node->test) return fail_unknown(r, "test", node->value);
    IV_TRY(ivj_eval(r, node->a, &self));
    IV_TRY(ivj_eval_args(r, &node->list, &call));
    r->line = node->line;
    return node->test->run(r, self, &call, out);
}

static iv_status eval_unary(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value v;
    IV_TRY(ivj_eval(r, node->a, &v));
    r->line = node->line;
    if (node->kind == IVJ_N_NEGATIVE) return negative(r, v, out);
    if (node->kind == IVJ_N_POSITIVE) return positive(r, v, out);
    *out = ivj_bool(!ivj_truth(v));
    return IV_OK;
}

static iv_status eval_access(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value object, key = node->value;
    IV_TRY(ivj_eval(r, node->a, &object));
    if (node->kind == IVJ_N_ITEM) IV_TRY(ivj_eval(r, node->b, &key));
    r->line = node->line;
    return node->kind == IVJ_N_ITEM ? ivj_item(r, object, key, out) : ivj_attribute(r, object, key, out);
}

static iv_status eval_node(ivj_run *r, const ivj_node *node, ivj_value *out) {
    switch ((ivj_kind)node->kind) {
    case IVJ_N_CONST: *out = node->value; return IV_OK;
    case IVJ_N_NAME: return ivj_lookup(r, node->atom, out);
    case IVJ_N_LIST:
    case IVJ_N_TUPLE: return eval_sequence(r, node, out);
    case IVJ_N_DICT: return eval_dict(r, node, out);
    case IVJ_N_COND: return eval_cond(r, node, out);
    case IVJ_N_AND:
    case IVJ_N_OR: return eval_logic(r, node, out);
    case IVJ_N_NOT:
    case IVJ_N_NEGATIVE:
    case IVJ_N_POSITIVE: return eval_unary(r, node, out);
    case IVJ_N_BINARY: return eval_binary(r, node, out);
    case IVJ_N_CONCAT: return eval_concat(r, node, out);
    case IVJ_N_COMPARE: return eval_compare(r, node, out);
    case IVJ_N_ATTRIBUTE:
    case IVJ_N_ITEM: return eval_access(r, node, out);
    case IVJ_N_SLICE: return eval_slice(r, node, out);
    case IVJ_N_CALL: return eval_call(r, node, out);
    case IVJ_N_FILTER: return eval_filter(r, node, out);
    case IVJ_N_TEST: return eval_test(r, node, out);
    default: break;
    }
    IV_ASSERT(!"an expression");
    return IV_OK;
}

iv_status ivj_eval(ivj_run *r, const ivj_node *node, ivj_value *out) {
    IV_TRY(ivj_enter(r));
    r->line = node->line;
    IV_TRY(eval_node(r, node, out));
    ivj_leave(r);
    return IV_OK;
}
