/* operators.c: arithmetic and comparison by Python's rules; integers that leave 64 bits are an error. */
#include "text/jinja/eval.h"
#include "text/jinja/number.h"
#include "text/jinja/text.h"

#include <math.h>
#include <string.h>

static iv_status fail_types(ivj_run *r, const char *op, ivj_value a, ivj_value b) {
    if (a.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, a);
    if (b.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, b);
    return ivj_fail(r, "'%s' cannot be applied to '%s' and '%s'", op, ivj_type_name(a), ivj_type_name(b));
}

static iv_status fail_overflow(ivj_run *r) { return ivj_fail_limit(r, "an integer does not fit 64 bits"); }

static int bits(uint64_t v) { return v ? 64 - __builtin_clzll(v) : 0; }
static uint64_t magnitude(int64_t v) { return v < 0 ? 0 - (uint64_t)v : (uint64_t)v; }

/* a / b rounded once: the quotient is made with at least 60 bits and a sticky last one. */
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

iv_status ivj_negative(ivj_run *r, ivj_value v, ivj_value *out) {
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    if (!ivj_is_number(v)) return ivj_fail(r, "'-' cannot be applied to '%s'", ivj_type_name(v));
    if (v.type != IVJ_FLOAT) return binary_ints(r, IVJ_SUB, 0, ivj_as_int(v), out);
    *out = ivj_float(-v.u.d);
    return IV_OK;
}

iv_status ivj_positive(ivj_run *r, ivj_value v, ivj_value *out) {
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
