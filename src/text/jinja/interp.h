/* interp.h: the interpreter: one rendering, calls, iteration, evaluation, text of values.
 *
 * Every function that can fail takes the run in place of an iv_error: the run holds the caller's error and the current
 * line. */
#ifndef IV_TEXT_JINJA_INTERP_H
#define IV_TEXT_JINJA_INTERP_H

#include "base/buf.h"
#include "text/jinja/node.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

/* ---- one rendering ---- */

typedef struct ivj_binding {
    uint32_t atom;
    ivj_value value;
} ivj_binding;

/* The names assigned in a block with a scope: the template, a loop body, a macro call, with, filter, set. Lookup goes
 * from the newest binding backwards and then to the parent. */
typedef struct ivj_scope {
    struct ivj_scope *parent;
    ivj_binding *bindings;
    size_t n, cap;
} ivj_scope;

/* The built-in filters, tests and methods by name; NULL if there is none. Code that they call looks names up here, so
 * that it does not depend on them. */
typedef struct ivj_library {
    const ivj_filter *(*filter)(const char *name, size_t n);
    const ivj_function *(*test)(const char *name, size_t n);
    const ivj_function *(*method)(ivj_type type, const char *name, size_t n);
} ivj_library;

/* A generation block inside of captured text: where it must be in the output. */
typedef struct ivj_captured_span {
    size_t start, n;
    const char *text;
    uint32_t line;
} ivj_captured_span;

struct ivj_run {
    const char *name; /* of the template, for errors */
    const iv_template *t;
    const ivj_library *library;
    ivj_pool pool;
    iv_error *err;
    iv_buf *out;          /* the current output: the caller's buffer or a capture */
    iv_buf *top;          /* the caller's buffer */
    iv_text_spans *spans; /* of generation blocks; NULL: not wanted */
    ivj_captured_span *captured;
    size_t captured_n, captured_cap;
    const char *now;    /* the result of strftime_now, or NULL */
    ivj_value *context; /* by atom: the caller's variables, then the globals; IVJ_MISSING if neither */
    ivj_scope *scope;
    ivj_value filter_input; /* operand of a filter without one: {% filter %} and {% set x | f %} */
    uint32_t line;
    size_t depth, steps, written;
    /* The newest long concatenation, kept with room to grow: s = s + t in a loop is then linear. */
    char *tail;
    size_t tail_len, tail_cap;
};

/* Each fills the caller's error with "name:line: ..." and returns IV_TEMPLATE, IV_LIMIT, ... */
iv_status ivj_fail(ivj_run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
iv_status ivj_fail_limit(ivj_run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
iv_status ivj_fail_undefined(ivj_run *r, ivj_value undefined); /* "'x' is undefined" */

iv_status ivj_charge(ivj_run *r, size_t steps); /* IV_LIMIT past IVJ_MAX_STEPS */
iv_status ivj_charge_bytes(ivj_run *r, size_t bytes);
iv_status ivj_enter(ivj_run *r); /* one deeper; IV_LIMIT past IVJ_MAX_EVAL_DEPTH */
static inline void ivj_leave(ivj_run *r) { r->depth--; }

/* Zeroed memory of the run in *out. */
iv_status ivj_alloc(ivj_run *r, size_t count, size_t size, void *out);

/* Doubles the capacity of an array of the run; items: the address of its pointer, of which n elements are in use. */
iv_status ivj_grow(ivj_run *r, void *items, size_t n, size_t size, size_t *cap);

/* Appends to a buffer of the run, within the output limits. */
iv_status ivj_write(ivj_run *r, iv_buf *buf, const char *s, size_t n);
iv_status ivj_write_text(ivj_run *r, iv_buf *buf, const char *s);

/* The content of buf as a string value of the run; frees buf. `status`: the result of filling the buffer. */
iv_status ivj_finish_string(ivj_run *r, iv_status status, iv_buf *buf, ivj_value *out);
iv_status ivj_copy_string(ivj_run *r, const char *s, size_t n, ivj_value *out);
/* a then b, neither escaped. */
iv_status ivj_join_two(ivj_run *r, ivj_value a, ivj_value b, ivj_value *out);

/* Adds a span of n bytes from `start` of the output. captured: its text, if it is not written there yet. */
iv_status ivj_add_span(ivj_run *r, size_t start, const char *captured, size_t n);
iv_status ivj_check_spans(ivj_run *r); /* at the end: captured text is where its span is */

/* Scopes. ivj_scope_new does not enter. */
iv_status ivj_scope_new(ivj_run *r, ivj_scope *parent, ivj_scope **out);
iv_status ivj_assign(ivj_run *r, ivj_scope *scope, uint32_t atom, ivj_value value);
iv_status ivj_lookup(ivj_run *r, uint32_t atom, ivj_value *out); /* undefined if there is no such name */

/* ---- calls ---- */

typedef struct ivj_keyword {
    ivj_value name; /* a string */
    ivj_value value;
} ivj_keyword;

typedef struct ivj_call {
    const ivj_value *args;
    const ivj_keyword *keywords;
    size_t n_args, n_keywords;
} ivj_call;

/* self: the object of a method, the operand of a filter or test; missing for a function. */
typedef iv_status ivj_callee(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out);

struct ivj_function { /* a function, method or test */
    const char *name;
    ivj_callee *run;
};

struct ivj_filter {
    const char *name;
    ivj_callee *run;
    const char *
        generator; /* not NULL: the filter returns an iterator with this repr; `run` makes its list on the first read */
    const char *names; /* parameters of a generator, checked at once; NULL: checked by `run` */
};

struct ivj_bound {
    const ivj_function *method;
    ivj_value self;
};

/* Assigns arguments to the parameters in `names`: words separated by spaces; a word that ends in '!' is required. out
 * has one entry per word; omitted arguments become IVJ_MISSING. `what` names the callee in errors. */
iv_status ivj_bind(ivj_run *r, const char *what, const ivj_call *call, const char *names, ivj_value *out);

/* Typed arguments, with a default for a missing one; `what` names the callee in errors. */
iv_status ivj_arg_int(ivj_run *r, const char *what, ivj_value v, int64_t fallback, int64_t *out);
iv_status ivj_arg_string(ivj_run *r, const char *what, ivj_value v, const char *fallback, ivj_value *out);
static inline bool ivj_arg_bool(ivj_value v, bool fallback) { return v.type == IVJ_MISSING ? fallback : ivj_truth(v); }

/* Looked up by name; NULL if there is none. */
const ivj_filter *ivj_find_filter(const char *name, size_t n);
const ivj_function *ivj_find_test(const char *name, size_t n);
const ivj_function *ivj_find_global(const char *name, size_t n);
const ivj_function *ivj_find_method(ivj_type type, const char *name, size_t n);

/* Calls any value. */
iv_status ivj_call_value(ivj_run *r, ivj_value callee, const ivj_call *call, ivj_value *out);
iv_status ivj_call_filter(ivj_run *r, const ivj_filter *f, ivj_value self, const ivj_call *call, ivj_value *out);

/* obj.name, obj[key], obj|attr(name): undefined when absent; an error on an undefined obj. */
iv_status ivj_attribute(ivj_run *r, ivj_value obj, ivj_value name, ivj_value *out);
iv_status ivj_item(ivj_run *r, ivj_value obj, ivj_value key, ivj_value *out);
iv_status ivj_own_attribute(ivj_run *r, ivj_value obj, ivj_value name, bool *found, ivj_value *out);
/* obj[start:stop:step]; IVJ_NONE or IVJ_MISSING for a part not written. */
iv_status ivj_slice(ivj_run *r, ivj_value obj, const ivj_value part[3], ivj_value *out);

/* ---- iteration ---- */

typedef enum ivj_iter_kind {
    IVJ_OVER_LIST,
    IVJ_OVER_STRING,
    IVJ_OVER_RANGE,
    IVJ_OVER_DICT,   /* keys, values or items */
    IVJ_OVER_FILTER, /* the result of a deferred filter, which runs when the first item is read */
    IVJ_OVER_TEST    /* items of another iterator for which a loop's `if` holds */
} ivj_iter_kind;

struct ivj_iter {
    ivj_iter_kind kind;
    const char *name; /* its type as Python prints it */
    ivj_value source;
    size_t at;
    ivj_view view;
    const ivj_filter *filter; /* IVJ_OVER_FILTER, until it has run */
    ivj_call call;
    /* IVJ_OVER_TEST */
    iv_status (*next)(ivj_run *r, ivj_iter *it, bool *has, ivj_value *out);
    ivj_iter *inner;
    const ivj_node *loop;
    ivj_scope *scope;
};

/* iter(v). An iterator is returned unchanged; a value that is not iterable is a template error. */
iv_status ivj_iter_open(ivj_run *r, ivj_value v, ivj_iter **out);
iv_status ivj_iter_next(ivj_run *r, ivj_iter *it, bool *has, ivj_value *out);
bool ivj_iterable(ivj_value v);

/* An iterator value over a list. */
iv_status ivj_iter_over(ivj_run *r, ivj_list *list, const char *name, ivj_value *out);

/* list(v): shares the items of a list or tuple. */
iv_status ivj_to_list(ivj_run *r, ivj_value v, ivj_list **out);

/* len(v); false if the value has none. */
bool ivj_length(ivj_value v, size_t *out);

/* `v in seq`. */
iv_status ivj_contains(ivj_run *r, ivj_value seq, ivj_value v, bool *out);

ivj_value ivj_range_item(const ivj_range *range, size_t i);

/* ---- evaluation ---- */

struct ivj_macro {
    const ivj_node *node; /* IVJ_N_MACRO */
    ivj_scope *scope;     /* where it was defined */
};

/* The loop variable. */
struct ivj_loop {
    const ivj_node *node;
    ivj_scope *outer; /* around the loop: for recursion */
    ivj_iter *iter;
    size_t index0, depth0, length;
    bool has_length, has_next, at_end; /* `next` was read ahead */
    ivj_value previous, current, next, changed;
};

typedef enum ivj_flow { IVJ_ON, IVJ_BROKEN, IVJ_CONTINUED } ivj_flow;

iv_status ivj_eval(ivj_run *r, const ivj_node *node, ivj_value *out);
/* Runs statements; *flow: whether a break or continue ended them. */
iv_status ivj_exec(ivj_run *r, const ivj_nodes *body, ivj_flow *flow);
/* Binds a target (a name, a namespace's field, a tuple of them) in the current scope. */
iv_status ivj_bind_target(ivj_run *r, const ivj_node *target, ivj_value value);

iv_status ivj_loop_next(ivj_run *r, ivj_loop *loop, bool *has, ivj_value *out);
iv_status ivj_loop_attribute(ivj_run *r, ivj_loop *loop, ivj_value name, bool *found, ivj_value *out);

/* Evaluates the arguments of a call, filter or test. */
iv_status ivj_eval_args(ivj_run *r, const ivj_nodes *args, ivj_call *out);

/* Operators. */
iv_status ivj_binary(ivj_run *r, ivj_op op, ivj_value a, ivj_value b, ivj_value *out);
iv_status ivj_compare(ivj_run *r, ivj_op op, ivj_value a, ivj_value b, bool *out);

/* ---- values as text ---- */

/* str(v) or repr(v) at the end of buf. */
iv_status ivj_print(ivj_run *r, iv_buf *buf, ivj_value v);
iv_status ivj_repr(ivj_run *r, iv_buf *buf, ivj_value v);
/* str(v) as a value: a string unchanged, without its markup. */
iv_status ivj_str(ivj_run *r, ivj_value v, ivj_value *out);
/* The same, but Markup stays Markup. */
iv_status ivj_soft_str(ivj_run *r, ivj_value v, ivj_value *out);

iv_status ivj_join(ivj_run *r, ivj_value separator, const ivj_list *strings, ivj_value *out);

/* repr of a float: the shortest decimal that reads back the same. */
enum { IVJ_FLOAT_BYTES = 40 };
void ivj_float_text(double d, char out[IVJ_FLOAT_BYTES]);

/* HTML escapes of & < > ' " as Markup; Markup is unchanged. */
iv_status ivj_escape(ivj_run *r, ivj_value v, ivj_value *out);
/* Also escapes Markup. */
iv_status ivj_force_escape(ivj_run *r, ivj_value v, ivj_value *out);

/* The tojson filter: json.dumps with its arguments. */
ivj_callee ivj_filter_tojson;

/* The maximal width of a formatted field. */
enum { IVJ_MAX_WIDTH = 10000 };

/* format % args, and format.format(...). Markup formats escape inserted values. */
iv_status ivj_percent(ivj_run *r, ivj_value format, ivj_value args, ivj_value *out);
iv_status ivj_format(ivj_run *r, ivj_value format, const ivj_call *call, ivj_value *out);

/* ---- filters ---- */

#define IVJ_FILTER(name) iv_status name(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out)

/* Filters over sequences (filters_sequence.c), for the table in filters.c. */
ivj_callee ivj_f_batch, ivj_f_dictsort, ivj_f_first, ivj_f_groupby, ivj_f_items, ivj_f_join, ivj_f_last, ivj_f_list,
    ivj_f_map, ivj_f_max, ivj_f_min, ivj_f_reject, ivj_f_rejectattr, ivj_f_reverse, ivj_f_select, ivj_f_selectattr,
    ivj_f_slice, ivj_f_sort, ivj_f_sum, ivj_f_unique;

#endif
