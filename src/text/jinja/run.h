/* run.h: one rendering: its memory, its output, its limits, its scopes.
 *
 * Every function that can fail takes the run in place of an iv_error: the run holds the caller's error, and
 * knows the line to blame. */
#ifndef IV_TEXT_JINJA_RUN_H
#define IV_TEXT_JINJA_RUN_H

#include "base/buf.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

typedef struct ivj_binding {
    uint32_t atom;
    ivj_value value;
} ivj_binding;

/* Assigned names of a block that has its own: the template, a loop body, a macro call, with, filter, set.
 * Lookup goes from the newest binding back and then to the parent. */
typedef struct ivj_scope {
    struct ivj_scope *parent;
    ivj_binding *bindings;
    size_t n, cap;
} ivj_scope;

struct ivj_run {
    const char *name; /* of the template, for errors */
    const iv_template *t;
    ivj_pool pool;
    iv_error *err;
    iv_buf *out;        /* where text goes now: the caller's buffer or a capture */
    const char *now;    /* what strftime_now returns, or NULL */
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
iv_status ivj_fail_memory(ivj_run *r, size_t bytes);
iv_status ivj_fail_undefined(ivj_run *r, ivj_value undefined); /* "'x' is undefined" */

iv_status ivj_charge(ivj_run *r, size_t steps); /* IV_LIMIT past IVJ_MAX_STEPS */
iv_status ivj_charge_bytes(ivj_run *r, size_t bytes);
iv_status ivj_enter(ivj_run *r); /* one deeper; IV_LIMIT past IVJ_MAX_EVAL_DEPTH */
static inline void ivj_leave(ivj_run *r) { r->depth--; }

/* Zeroed memory of the run in *out. */
iv_status ivj_alloc(ivj_run *r, size_t count, size_t size, void *out);

/* Appends to a buffer of the run, within the output limits. */
iv_status ivj_write(ivj_run *r, iv_buf *buf, const char *s, size_t n);
iv_status ivj_write_text(ivj_run *r, iv_buf *buf, const char *s);

/* The content of buf as a string value of the run; frees buf. Pass the status of what filled the buffer. */
iv_status ivj_finish_string(ivj_run *r, iv_status status, iv_buf *buf, ivj_value *out);
iv_status ivj_copy_string(ivj_run *r, const char *s, size_t n, ivj_value *out);
/* a then b, neither escaped. */
iv_status ivj_join_two(ivj_run *r, ivj_value a, ivj_value b, ivj_value *out);

/* Scopes. ivj_scope_new does not enter. */
iv_status ivj_scope_new(ivj_run *r, ivj_scope *parent, ivj_scope **out);
iv_status ivj_assign(ivj_run *r, ivj_scope *scope, uint32_t atom, ivj_value value);
iv_status ivj_lookup(ivj_run *r, uint32_t atom, ivj_value *out); /* undefined if there is no such name */

#endif
