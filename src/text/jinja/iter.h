/* iter.h: walking over values, in the order and with the laziness that a template can notice. */
#ifndef IV_TEXT_JINJA_ITER_H
#define IV_TEXT_JINJA_ITER_H

#include "text/jinja/call.h"
#include "text/jinja/node.h"
#include "text/jinja/run.h"

typedef enum ivj_iter_kind {
    IVJ_OVER_LIST,
    IVJ_OVER_STRING,
    IVJ_OVER_RANGE,
    IVJ_OVER_DICT,   /* keys, values or items */
    IVJ_OVER_FILTER, /* what a filter will give; it runs when the first item is asked for */
    IVJ_OVER_TEST    /* items of another iterator for which a loop's `if` holds */
} ivj_iter_kind;

struct ivj_iter {
    ivj_iter_kind kind;
    const char *name; /* as Python would print its type */
    ivj_value source;
    size_t at;
    ivj_view view;
    const ivj_filter *filter; /* IVJ_OVER_FILTER, until it has run */
    ivj_call call;
    ivj_iter *inner; /* IVJ_OVER_TEST */
    const ivj_node *loop;
    ivj_scope *scope;
};

/* iter(v). An iterator is itself; a template error if v cannot be walked. */
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

#endif
