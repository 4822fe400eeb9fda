/* unicode.h: code points as Python's str sees them: classes, case, counting. Byte strings are UTF-8;
 * a malformed byte counts as one character, so that no input can run past its end. */
#ifndef IV_TEXT_JINJA_UNICODE_H
#define IV_TEXT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IVJ_CASE_MAX = 3 }; /* code points that one code point may become */

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
bool ivj_cp_is_lower(uint32_t cp);
bool ivj_cp_is_upper(uint32_t cp);
bool ivj_cp_is_title(uint32_t cp);
bool ivj_cp_is_printable(uint32_t cp);

/* Full case mapping without context (the final sigma is the caller's). Returns the count, 1..IVJ_CASE_MAX. */
size_t ivj_cp_case(uint32_t cp, ivj_case to, uint32_t out[IVJ_CASE_MAX]);

#endif
