/* tests.c: `x is name(...)`. */
#include "text/jinja/eval.h"
#include "text/jinja/methods.h"
#include "text/jinja/text.h"

#include <string.h>

#define TEST(name) static iv_status name(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out)

/* Tests without arguments that only look at the value. */
#define PLAIN_TEST(name, condition)                      \
    TEST(name) {                                         \
        IV_TRY(ivj_bind(r, "the test", call, "", NULL)); \
        *out = ivj_bool(condition);                      \
        return IV_OK;                                    \
    }

static bool is_callable(ivj_value v) {
    return v.type == IVJ_UNDEFINED || v.type == IVJ_FUNCTION || v.type == IVJ_METHOD || v.type == IVJ_MACRO ||
           v.type == IVJ_JOINER || v.type == IVJ_LOOP;
}

static bool is_subscriptable(ivj_value v) {
    return v.type == IVJ_UNDEFINED || v.type == IVJ_STRING || ivj_is_sequence(v) || v.type == IVJ_DICT ||
           v.type == IVJ_RANGE;
}

PLAIN_TEST(is_defined, self.type != IVJ_UNDEFINED)
PLAIN_TEST(is_undefined, self.type == IVJ_UNDEFINED)
PLAIN_TEST(is_none, self.type == IVJ_NONE)
PLAIN_TEST(is_boolean, self.type == IVJ_BOOL)
PLAIN_TEST(is_true, self.type == IVJ_BOOL && self.u.b)
PLAIN_TEST(is_false, self.type == IVJ_BOOL && !self.u.b)
PLAIN_TEST(is_integer, self.type == IVJ_INT)
PLAIN_TEST(is_float, self.type == IVJ_FLOAT)
PLAIN_TEST(is_number, ivj_is_number(self))
PLAIN_TEST(is_string, self.type == IVJ_STRING)
PLAIN_TEST(is_mapping, self.type == IVJ_DICT)
PLAIN_TEST(is_iterable, ivj_iterable(self))
PLAIN_TEST(is_sequence, is_subscriptable(self))
PLAIN_TEST(is_callable_test, is_callable(self))
PLAIN_TEST(is_escaped, self.type == IVJ_STRING && self.markup)

static iv_status has_case(ivj_run *r, ivj_value self, const ivj_call *call, bool upper, ivj_value *out) {
    IV_TRY(ivj_bind(r, "the test", call, "", NULL));
    IV_TRY(ivj_str(r, self, &self));
    *out = ivj_bool(ivj_string_has_case(self, upper));
    return ivj_charge_bytes(r, self.n);
}

TEST(is_lower) { return has_case(r, self, call, false, out); }
TEST(is_upper) { return has_case(r, self, call, true, out); }

/* value % divisor == wanted */
static iv_status remainder_is(ivj_run *r, ivj_value v, ivj_value divisor, int64_t wanted, ivj_value *out) {
    bool equal;
    IV_TRY(ivj_binary(r, IVJ_MOD, v, divisor, out));
    IV_TRY(ivj_equal(r, *out, ivj_int(wanted), &equal));
    *out = ivj_bool(equal);
    return IV_OK;
}

TEST(is_odd) {
    IV_TRY(ivj_bind(r, "odd", call, "", NULL));
    return remainder_is(r, self, ivj_int(2), 1, out);
}

TEST(is_even) {
    IV_TRY(ivj_bind(r, "even", call, "", NULL));
    return remainder_is(r, self, ivj_int(2), 0, out);
}

TEST(is_divisibleby) {
    ivj_value divisor;
    IV_TRY(ivj_bind(r, "divisibleby", call, "num!", &divisor));
    return remainder_is(r, self, divisor, 0, out);
}

TEST(is_sameas) {
    ivj_value other;
    IV_TRY(ivj_bind(r, "sameas", call, "other!", &other));
    *out = ivj_bool(ivj_same(self, other));
    return IV_OK;
}

static iv_status known(ivj_run *r, ivj_value self, const ivj_call *call, bool filter, ivj_value *out) {
    IV_TRY(ivj_bind(r, "the test", call, "", NULL));
    if (!ivj_hashable(self, 0)) return ivj_fail(r, "'%s' cannot be a name", ivj_type_name(self));
    bool found = self.type == IVJ_STRING &&
                 (filter ? ivj_find_filter(self.u.s, self.n) != NULL : ivj_find_test(self.u.s, self.n) != NULL);
    *out = ivj_bool(found);
    return IV_OK;
}

TEST(is_filter) { return known(r, self, call, true, out); }
TEST(is_test) { return known(r, self, call, false, out); }

static iv_status compare_with(ivj_run *r, ivj_value self, const ivj_call *call, ivj_op op, ivj_value *out) {
    ivj_value other;
    bool held;
    IV_TRY(ivj_bind(r, "a comparison test", call, "other!", &other));
    IV_TRY(ivj_compare(r, op, self, other, &held));
    *out = ivj_bool(held);
    return IV_OK;
}

TEST(is_eq) { return compare_with(r, self, call, IVJ_EQ, out); }
TEST(is_ne) { return compare_with(r, self, call, IVJ_NE, out); }
TEST(is_lt) { return compare_with(r, self, call, IVJ_LT, out); }
TEST(is_le) { return compare_with(r, self, call, IVJ_LE, out); }
TEST(is_gt) { return compare_with(r, self, call, IVJ_GT, out); }
TEST(is_ge) { return compare_with(r, self, call, IVJ_GE, out); }
TEST(is_in) { return compare_with(r, self, call, IVJ_IN, out); }

static const ivj_function tests[] = {{"!=", is_ne},
                                     {"<", is_lt},
                                     {"<=", is_le},
                                     {"==", is_eq},
                                     {">", is_gt},
                                     {">=", is_ge},
                                     {"boolean", is_boolean},
                                     {"callable", is_callable_test},
                                     {"defined", is_defined},
                                     {"divisibleby", is_divisibleby},
                                     {"eq", is_eq},
                                     {"equalto", is_eq},
                                     {"escaped", is_escaped},
                                     {"even", is_even},
                                     {"false", is_false},
                                     {"filter", is_filter},
                                     {"float", is_float},
                                     {"ge", is_ge},
                                     {"greaterthan", is_gt},
                                     {"gt", is_gt},
                                     {"in", is_in},
                                     {"integer", is_integer},
                                     {"iterable", is_iterable},
                                     {"le", is_le},
                                     {"lessthan", is_lt},
                                     {"lower", is_lower},
                                     {"lt", is_lt},
                                     {"mapping", is_mapping},
                                     {"ne", is_ne},
                                     {"none", is_none},
                                     {"number", is_number},
                                     {"odd", is_odd},
                                     {"sameas", is_sameas},
                                     {"sequence", is_sequence},
                                     {"string", is_string},
                                     {"test", is_test},
                                     {"true", is_true},
                                     {"undefined", is_undefined},
                                     {"upper", is_upper}};

const ivj_function *ivj_find_test(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, name, n) == 0) return &tests[i];
    return NULL;
}
