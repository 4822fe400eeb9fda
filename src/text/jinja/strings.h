/* strings.h: what str methods and text filters share. Positions and widths count characters. Results keep
 * the Markup of the string they are made from. */
#ifndef IV_TEXT_JINJA_STRINGS_H
#define IV_TEXT_JINJA_STRINGS_H

#include "text/jinja/run.h"
#include "text/jinja/unicode.h"

enum { IVJ_LEFT = 1, IVJ_RIGHT = 2, IVJ_BOTH = 3 };

iv_status ivj_recase(ivj_run *r, ivj_value s, ivj_case to, ivj_value *out);
iv_status ivj_capitalize(ivj_run *r, ivj_value s, ivj_value *out);
iv_status ivj_title(ivj_run *r, ivj_value s, ivj_value *out); /* str.title: words are runs of letters with case */
iv_status ivj_swapcase(ivj_run *r, ivj_value s, ivj_value *out);

/* chars: the characters to take off; IVJ_NONE for whitespace. */
iv_status ivj_strip(ivj_run *r, ivj_value s, ivj_value chars, int sides, ivj_value *out);
iv_status ivj_replace(ivj_run *r, ivj_value s, ivj_value old, ivj_value with, int64_t count, ivj_value *out);
/* sides: where the filling goes; IVJ_BOTH centers. */
iv_status ivj_pad(ivj_run *r, ivj_value s, int64_t width, ivj_value fill, int sides, ivj_value *out);
/* separator: IVJ_NONE for runs of whitespace. max < 0: no limit. from_right: rsplit. */
iv_status ivj_split(ivj_run *r, ivj_value s, ivj_value separator, int64_t max, bool from_right, ivj_list **out);
iv_status ivj_splitlines(ivj_run *r, ivj_value s, bool keep_ends, ivj_list **out);
iv_status ivj_join(ivj_run *r, ivj_value separator, const ivj_list *strings, ivj_value *out);

bool ivj_starts_with(ivj_value s, ivj_value prefix);
bool ivj_ends_with(ivj_value s, ivj_value suffix);
/* s without its first `start` and last `end` bytes. */
ivj_value ivj_part(ivj_value s, size_t start, size_t end);
/* Byte offset of the first (last) occurrence in *at, or -1. Charges for the bytes it looks at. */
iv_status ivj_find(ivj_run *r, ivj_value s, ivj_value what, bool last, int64_t *at);

#endif
