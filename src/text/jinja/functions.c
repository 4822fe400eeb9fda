/* functions.c: the global functions (Jinja2's range, dict, namespace, cycler, joiner; Hugging Face's raise_exception
 * and strftime_now) and the tests (`x is name(...)`). */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- global functions ---- */

enum { TIME_BYTES_MAX = 512 };

#define FUNCTION(name) static iv_status name(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out)

FUNCTION(make_range) {
    (void)self;
    ivj_value arg[3];
    int64_t start, stop, step;
    IV_TRY(ivj_bind(r, "range", call, "start! stop step", arg));
    IV_TRY(ivj_arg_int(r, "range", arg[0], 0, &start));
    IV_TRY(ivj_arg_int(r, "range", arg[1], 0, &stop));
    IV_TRY(ivj_arg_int(r, "range", arg[2], 1, &step));
    if (arg[1].type == IVJ_MISSING) stop = start, start = 0;
    if (step == 0) return ivj_fail(r, "the step of a range is zero");
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, span = 0;
    if (step > 0 && stop > start) span = (uint64_t)stop - (uint64_t)start;
    if (step < 0 && start > stop) span = (uint64_t)start - (uint64_t)stop;
    uint64_t n = span ? (span - 1) / stride + 1 : 0;
    if (n > IVJ_MAX_RANGE) return ivj_fail(r, "a range has at most %d items", IVJ_MAX_RANGE);
    ivj_range *range;
    IV_TRY(ivj_alloc(r, 1, sizeof *range, &range));
    *range = (ivj_range){.start = start, .stop = stop, .step = step, .n = (size_t)n};
    *out = (ivj_value){.type = IVJ_RANGE, .u.range = range};
    return IV_OK;
}

/* dict(mapping or pairs, **more) */
static iv_status fill_dict(ivj_run *r, const char *what, const ivj_call *call, ivj_dict *d) {
    if (call->n_args > 1) return ivj_fail(r, "%s takes at most 1 positional argument, found %zu", what, call->n_args);
    if (call->n_args && call->args[0].type == IVJ_DICT) {
        const ivj_dict *from = call->args[0].u.dict;
        for (size_t i = 0; i < from->n; i++) IV_TRY(ivj_dict_set(r, d, from->entries[i].key, from->entries[i].value));
    } else if (call->n_args) {
        ivj_list *pairs, *pair;
        IV_TRY(ivj_to_list(r, call->args[0], &pairs));
        for (size_t i = 0; i < pairs->n; i++) {
            IV_TRY(ivj_to_list(r, pairs->items[i], &pair));
            if (pair->n != 2) return ivj_fail(r, "%s wants pairs, found %zu items", what, pair->n);
            IV_TRY(ivj_dict_set(r, d, pair->items[0], pair->items[1]));
        }
    }
    for (size_t i = 0; i < call->n_keywords; i++)
        IV_TRY(ivj_dict_set(r, d, call->keywords[i].name, call->keywords[i].value));
    return IV_OK;
}

FUNCTION(make_dict) {
    (void)self;
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    *out = ivj_dict_value(d);
    return fill_dict(r, "dict", call, d);
}

FUNCTION(make_namespace) {
    (void)self;
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    *out = (ivj_value){.type = IVJ_NAMESPACE, .u.dict = d};
    return fill_dict(r, "namespace", call, d);
}

FUNCTION(make_cycler) {
    (void)self;
    ivj_cycler *cycler;
    if (call->n_keywords || call->n_args == 0) return ivj_fail(r, "cycler wants the values to cycle through");
    IV_TRY(ivj_alloc(r, 1, sizeof *cycler, &cycler));
    *cycler = (ivj_cycler){.items = call->args, .n = call->n_args};
    *out = (ivj_value){.type = IVJ_CYCLER, .u.cycler = cycler};
    return IV_OK;
}

FUNCTION(make_joiner) {
    (void)self;
    ivj_value separator, *item;
    ivj_cycler *joiner;
    IV_TRY(ivj_bind(r, "joiner", call, "sep", &separator));
    IV_TRY(ivj_alloc(r, 1, sizeof *item, &item));
    IV_TRY(ivj_alloc(r, 1, sizeof *joiner, &joiner));
    *item = separator.type == IVJ_MISSING ? ivj_text(", ") : separator;
    *joiner = (ivj_cycler){.items = item, .n = 1};
    *out = (ivj_value){.type = IVJ_JOINER, .u.cycler = joiner};
    return IV_OK;
}

FUNCTION(raise_exception) {
    (void)self;
    (void)out;
    ivj_value message;
    IV_TRY(ivj_bind(r, "raise_exception", call, "message!", &message));
    IV_TRY(ivj_str(r, message, &message));
    return ivj_fail(r, "%.*s", (int)(message.n < 800 ? message.n : 800), message.u.s);
}

/* Python's directives for C's strftime, of a time without a zone: %f is replaced by microseconds, %z, %:z and %Z by
 * nothing. False: it does not fit into `size` bytes. */
static bool expand_time_format(const char *format, size_t n, long microseconds, char *out, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char next = format[i] == '%' && i + 1 < n ? format[i + 1] : 0;
        bool colon = next == ':' && i + 2 < n && format[i + 2] == 'z';
        if (at + 8 > size) return false;
        if (next == 'f') {
            at += (size_t)snprintf(out + at, size - at, "%06ld", microseconds);
            i++;
        } else if (next == 'z' || next == 'Z' || colon) {
            i += colon ? 2 : 1;
        } else {
            bool last = format[i] == '%' && i + 1 == n; /* stands for itself */
            out[at++] = format[i];
            if (next || last) out[at++] = next ? next : '%';
            i += next != 0; /* %% is no beginning of another directive */
        }
    }
    out[at] = 0;
    return true;
}

FUNCTION(strftime_now) {
    (void)self;
    ivj_value format;
    IV_TRY(ivj_bind(r, "strftime_now", call, "format!", &format));
    IV_TRY(ivj_arg_string(r, "strftime_now", format, NULL, &format));
    if (r->now) {
        *out = ivj_text(r->now);
        return IV_OK;
    }
    char pattern[TIME_BYTES_MAX * 4], text[TIME_BYTES_MAX * 4];
    if (format.n >= TIME_BYTES_MAX - 1 || (format.n && memchr(format.u.s, 0, format.n)))
        return ivj_fail_limit(r, "the format of strftime_now has at most %d bytes", TIME_BYTES_MAX - 2);
    struct timespec now;
    struct tm tm;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0 || !localtime_r(&now.tv_sec, &tm))
        return ivj_fail(r, "the clock cannot be read");
    tm.tm_isdst = -1; /* as without a zone */
    if (!expand_time_format(format.n ? format.u.s : "", format.n, now.tv_nsec / 1000, pattern, sizeof pattern - 1))
        return ivj_fail_limit(r, "the text of strftime_now is too long");
    /* An appended byte distinguishes an empty result from one that does not fit. */
    memcpy(pattern + strlen(pattern), "x", 2);
    size_t n = strftime(text, sizeof text, pattern, &tm);
    if (n == 0) return ivj_fail_limit(r, "the text of strftime_now is too long");
    return ivj_copy_string(r, text, n - 1, out);
}

static const ivj_function globals[] = {{"cycler", make_cycler},       {"dict", make_dict},
                                       {"joiner", make_joiner},       {"namespace", make_namespace},
                                       {"range", make_range},         {"raise_exception", raise_exception},
                                       {"strftime_now", strftime_now}};

const ivj_function *ivj_find_global(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (strlen(globals[i].name) == n && memcmp(globals[i].name, name, n) == 0) return &globals[i];
    return NULL;
}

/* ---- tests ---- */

/* Tests without arguments that depend only on the value. */
#define PLAIN_TEST(name, condition)                      \
    FUNCTION(name) {                                     \
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

FUNCTION(is_lower) { return has_case(r, self, call, false, out); }
FUNCTION(is_upper) { return has_case(r, self, call, true, out); }

/* value % divisor == wanted */
static iv_status remainder_is(ivj_run *r, ivj_value v, ivj_value divisor, int64_t wanted, ivj_value *out) {
    bool equal;
    IV_TRY(ivj_binary(r, IVJ_MOD, v, divisor, out));
    IV_TRY(ivj_equal(r, *out, ivj_int(wanted), &equal));
    *out = ivj_bool(equal);
    return IV_OK;
}

FUNCTION(is_odd) {
    IV_TRY(ivj_bind(r, "odd", call, "", NULL));
    return remainder_is(r, self, ivj_int(2), 1, out);
}

FUNCTION(is_even) {
    IV_TRY(ivj_bind(r, "even", call, "", NULL));
    return remainder_is(r, self, ivj_int(2), 0, out);
}

FUNCTION(is_divisibleby) {
    ivj_value divisor;
    IV_TRY(ivj_bind(r, "divisibleby", call, "num!", &divisor));
    return remainder_is(r, self, divisor, 0, out);
}

FUNCTION(is_sameas) {
    ivj_value other;
    IV_TRY(ivj_bind(r, "sameas", call, "other!", &other));
    *out = ivj_bool(ivj_same(self, other));
    return IV_OK;
}

static iv_status known(ivj_run *r, ivj_value self, const ivj_call *call, bool filter, ivj_value *out) {
    IV_TRY(ivj_bind(r, "the test", call, "", NULL));
    if (!ivj_hashable(self, 0)) return ivj_fail(r, "'%s' cannot be a name", ivj_type_name(self));
    bool found = self.type == IVJ_STRING &&
                 (filter ? r->library->filter(self.u.s, self.n) != NULL : ivj_find_test(self.u.s, self.n) != NULL);
    *out = ivj_bool(found);
    return IV_OK;
}

FUNCTION(is_filter) { return known(r, self, call, true, out); }
FUNCTION(is_test) { return known(r, self, call, false, out); }

static iv_status compare_with(ivj_run *r, ivj_value self, const ivj_call *call, ivj_op op, ivj_value *out) {
    ivj_value other;
    bool held;
    IV_TRY(ivj_bind(r, "a comparison test", call, "other!", &other));
    IV_TRY(ivj_compare(r, op, self, other, &held));
    *out = ivj_bool(held);
    return IV_OK;
}

FUNCTION(is_eq) { return compare_with(r, self, call, IVJ_EQ, out); }
FUNCTION(is_ne) { return compare_with(r, self, call, IVJ_NE, out); }
FUNCTION(is_lt) { return compare_with(r, self, call, IVJ_LT, out); }
FUNCTION(is_le) { return compare_with(r, self, call, IVJ_LE, out); }
FUNCTION(is_gt) { return compare_with(r, self, call, IVJ_GT, out); }
FUNCTION(is_ge) { return compare_with(r, self, call, IVJ_GE, out); }
FUNCTION(is_in) { return compare_with(r, self, call, IVJ_IN, out); }

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
