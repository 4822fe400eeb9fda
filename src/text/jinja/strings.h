/* strings.h: characters and strings as Python sees them. Byte strings are UTF-8; a malformed byte counts as one
 * character, so that no input can run past its end. */
#ifndef IV_TEXT_JINJA_STRINGS_H
#define IV_TEXT_JINJA_STRINGS_H

#include "text/jinja/interp.h"

#include "text/jinja/value.h"

/* ---- characters ---- */

typedef enum ivj_case { IVJ_UPPER, IVJ_LOWER, IVJ_TITLE } ivj_case;

/* Bytes of the character at s (n > 0 bytes available), its code point in *cp (U+FFFD if malformed). */
size_t ivj_cp_next(const char *s, size_t n, uint32_t *cp);
/* Bytes of the character that ends at s + n (n > 0). */
size_t ivj_cp_last(const char *s, size_t n, uint32_t *cp);
size_t ivj_cp_count(const char *s, size_t n);
/* Byte offset of character k; n when there are not that many. */
size_t ivj_cp_offset(const char *s, size_t n, size_t k);

bool ivj_cp_is_space(uint32_t cp);
bool ivj_cp_is_alpha(uint32_t cp);
bool ivj_cp_is_decimal(uint32_t cp);
bool ivj_cp_is_digit(uint32_t cp);
bool ivj_cp_is_numeric(uint32_t cp);
bool ivj_cp_is_word(uint32_t cp); /* \w of a regular expression */
bool ivj_cp_is_printable(uint32_t cp);

/* ---- strings ---- */

enum { IVJ_LEFT = 1, IVJ_RIGHT = 2, IVJ_BOTH = 3 };

bool ivj_string_has_case(ivj_value s, bool upper); /* str.isupper or str.islower */
iv_status ivj_recase(ivj_run *r, ivj_value s, ivj_case to, ivj_value *out);
iv_status ivj_capitalize(ivj_run *r, ivj_value s, ivj_value *out);
iv_status ivj_title(ivj_run *r, ivj_value s, ivj_value *out); /* str.title: words are runs of letters with case */
iv_status ivj_swapcase(ivj_run *r, ivj_value s, ivj_value *out);

/* chars: the characters to strip; IVJ_NONE for whitespace. */
iv_status ivj_strip(ivj_run *r, ivj_value s, ivj_value chars, int sides, ivj_value *out);
iv_status ivj_replace(ivj_run *r, ivj_value s, ivj_value old, ivj_value with, int64_t count, ivj_value *out);
/* sides: the sides to pad; IVJ_BOTH centers. */
iv_status ivj_pad(ivj_run *r, ivj_value s, int64_t width, ivj_value fill, int sides, ivj_value *out);
/* separator: IVJ_NONE for runs of whitespace. max < 0: no limit. from_right: rsplit. */
iv_status ivj_split(ivj_run *r, ivj_value s, ivj_value separator, int64_t max, bool from_right, ivj_list **out);
iv_status ivj_splitlines(ivj_run *r, ivj_value s, bool keep_ends, ivj_list **out);

bool ivj_starts_with(ivj_value s, ivj_value prefix);
bool ivj_ends_with(ivj_value s, ivj_value suffix);
/* s without its first `start` and last `end` bytes. */
ivj_value ivj_part(ivj_value s, size_t start, size_t end);
/* Byte offset of the first (last) occurrence in *at, or -1. Charges for the bytes it looks at. */
iv_status ivj_find(ivj_run *r, ivj_value s, ivj_value what, bool last, int64_t *at);

#endif
