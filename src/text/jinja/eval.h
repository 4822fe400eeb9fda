/* eval.h: evaluating the tree: expressions (expr.c), statements (exec.c), macros (macro.c). */
#ifndef IV_TEXT_JINJA_EVAL_H
#define IV_TEXT_JINJA_EVAL_H

#include "text/jinja/iter.h"

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
    bool has_length, has_next, at_end; /* has_next: `next` was taken early */
    ivj_value previous, current, next, changed;
};

typedef enum ivj_flow { IVJ_ON, IVJ_BROKEN, IVJ_CONTINUED } ivj_flow;

iv_status ivj_eval(ivj_run *r, const ivj_node *node, ivj_value *out);
/* Runs statements; *flow says whether a break or continue cut them short. */
iv_status ivj_exec(ivj_run *r, const ivj_nodes *body, ivj_flow *flow);
/* Runs a loop over `items`; the text goes to the run's output. */
iv_status ivj_exec_loop(ivj_run *r, const ivj_node *node, ivj_value items, size_t depth0, ivj_flow *flow);
/* Binds a target (a name, a namespace's field, a tuple of them) in the current scope. */
iv_status ivj_bind_target(ivj_run *r, const ivj_node *target, ivj_value value);

iv_status ivj_macro_new(ivj_run *r, const ivj_node *node, ivj_value *out);
iv_status ivj_call_macro(ivj_run *r, const ivj_macro *macro, const ivj_call *call, ivj_value *out);
/* loop(items) inside a recursive loop. */
iv_status ivj_call_loop(ivj_run *r, ivj_loop *loop, const ivj_call *call, ivj_value *out);
iv_status ivj_loop_attribute(ivj_run *r, ivj_loop *loop, ivj_value name, bool *found, ivj_value *out);
iv_status ivj_loop_next(ivj_run *r, ivj_loop *loop, bool *has, ivj_value *out);

/* Evaluates the arguments of a call, filter or test. */
iv_status ivj_eval_args(ivj_run *r, const ivj_nodes *args, ivj_call *out);

/* Text written between these two calls becomes a string. Finish also after a failure, with its status. */
typedef struct ivj_capture {
    iv_buf buf, *outer;
} ivj_capture;
void ivj_capture_begin(ivj_run *r, ivj_capture *capture);
iv_status ivj_capture_end(ivj_run *r, ivj_capture *capture, iv_status status, ivj_value *out);

/* Operators (operators.c). */
iv_status ivj_binary(ivj_run *r, ivj_op op, ivj_value a, ivj_value b, ivj_value *out);
iv_status ivj_compare(ivj_run *r, ivj_op op, ivj_value a, ivj_value b, bool *out);
iv_status ivj_negative(ivj_run *r, ivj_value v, ivj_value *out);
iv_status ivj_positive(ivj_run *r, ivj_value v, ivj_value *out);

#endif
