/* call.h: arguments, and the tables of what can be called: functions, methods, filters, tests. */
#ifndef IV_TEXT_JINJA_CALL_H
#define IV_TEXT_JINJA_CALL_H

#include "text/jinja/value.h"

typedef struct ivj_keyword {
    ivj_value name; /* a string */
    ivj_value value;
} ivj_keyword;

typedef struct ivj_call {
    const ivj_value *args;
    const ivj_keyword *keywords;
    size_t n_args, n_keywords;
} ivj_call;

/* self is the object of a method, the operand of a filter or test, and missing for a function. */
typedef iv_status ivj_callee(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out);

struct ivj_function { /* a function, method or test */
    const char *name;
    ivj_callee *run;
};

typedef struct ivj_filter {
    const char *name;
    ivj_callee *run;
    const char *generator; /* not NULL: gives an iterator, printed so; `run` makes its list when it is walked */
    const char *names;     /* of a generator's arguments, checked at once; NULL: any, checked by `run` */
} ivj_filter;

struct ivj_bound {
    const ivj_function *method;
    ivj_value self;
};

/* Puts arguments where `names` says: words separated by spaces, a word that ends in '!' is required.
 * out has one place a word; what is not given becomes IVJ_MISSING. `what` names the callee in errors. */
iv_status ivj_bind(ivj_run *r, const char *what, const ivj_call *call, const char *names, ivj_value *out);

/* Typed arguments: the default stands for a missing one; template errors name `what`. */
iv_status ivj_arg_int(ivj_run *r, const char *what, ivj_value v, int64_t fallback, int64_t *out);
iv_status ivj_arg_string(ivj_run *r, const char *what, ivj_value v, const char *fallback, ivj_value *out);
static inline bool ivj_arg_bool(ivj_value v, bool fallback) { return v.type == IVJ_MISSING ? fallback : ivj_truth(v); }

/* Looked up by name; NULL if there is none. */
const ivj_filter *ivj_find_filter(const char *name, size_t n);
const ivj_function *ivj_find_test(const char *name, size_t n);
const ivj_function *ivj_find_global(const char *name, size_t n);
const ivj_function *ivj_find_method(ivj_type type, const char *name, size_t n);
/* A method that the immutable sandbox hides (list.append, dict.pop, ...). */
bool ivj_is_hidden_method(ivj_type type, const char *name, size_t n);

/* Calls any value. */
iv_status ivj_call_value(ivj_run *r, ivj_value callee, const ivj_call *call, ivj_value *out);
iv_status ivj_call_filter(ivj_run *r, const ivj_filter *f, ivj_value self, const ivj_call *call, ivj_value *out);

/* obj.name, obj[key], obj|attr(name): undefined when absent; an error on an undefined obj. */
iv_status ivj_attribute(ivj_run *r, ivj_value obj, ivj_value name, ivj_value *out);
iv_status ivj_item(ivj_run *r, ivj_value obj, ivj_value key, ivj_value *out);
iv_status ivj_own_attribute(ivj_run *r, ivj_value obj, ivj_value name, bool *found, ivj_value *out);
/* obj[start:stop:step]; IVJ_NONE or IVJ_MISSING for a part not written. */
iv_status ivj_slice(ivj_run *r, ivj_value obj, const ivj_value part[3], ivj_value *out);

#endif
