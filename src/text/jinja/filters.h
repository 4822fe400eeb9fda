/* filters.h: every filter, in two files; the table that names them is in filters.c. */
#ifndef IV_TEXT_JINJA_FILTERS_H
#define IV_TEXT_JINJA_FILTERS_H

#include "text/jinja/call.h"

#define IVJ_FILTER(name) iv_status name(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out)

/* text */
ivj_callee ivj_f_capitalize, ivj_f_center, ivj_f_escape, ivj_f_forceescape, ivj_f_format, ivj_f_indent, ivj_f_lower,
    ivj_f_replace, ivj_f_safe, ivj_f_string, ivj_f_title, ivj_f_trim, ivj_f_truncate, ivj_f_upper, ivj_f_urlencode,
    ivj_f_wordcount, ivj_f_xmlattr;

/* numbers and single values */
ivj_callee ivj_f_abs, ivj_f_attr, ivj_f_default, ivj_f_float, ivj_f_int, ivj_f_length, ivj_f_round;

/* sequences */
ivj_callee ivj_f_batch, ivj_f_dictsort, ivj_f_first, ivj_f_groupby, ivj_f_items, ivj_f_join, ivj_f_last, ivj_f_list,
    ivj_f_map, ivj_f_max, ivj_f_min, ivj_f_reject, ivj_f_rejectattr, ivj_f_reverse, ivj_f_select, ivj_f_selectattr,
    ivj_f_slice, ivj_f_sort, ivj_f_sum, ivj_f_unique;

#endif
