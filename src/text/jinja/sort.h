/* sort.h: a stable sort whose comparisons can fail. */
#ifndef IV_TEXT_JINJA_SORT_H
#define IV_TEXT_JINJA_SORT_H

#include "text/jinja/run.h"

/* *order: positions of the n keys in ascending order; equal keys keep theirs, also when reversed. */
iv_status ivj_sort_order(ivj_run *r, const ivj_value *keys, size_t n, bool reverse, size_t **order);
/* The same for the keys of a dict. */
iv_status ivj_sort_keys(ivj_run *r, const ivj_dict *d, size_t **order);

#endif
