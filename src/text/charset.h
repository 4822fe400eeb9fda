/* charset.h: sets of characters for the inside of a PCRE2 class, with the meaning that they have in the reference
 * engine (Oniguruma with Unicode 16) although the installed PCRE2 knows an older Unicode; and the byte-level alphabet.
 */
#ifndef IV_TEXT_CHARSET_H
#define IV_TEXT_CHARSET_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* The 25 characters with the property White_Space: \s of the reference engines. */
#define IV_CHARSET_SPACE                                                                                 \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"

/* Other_Alphabetic characters that are neither letters nor marks. */
#define IV_CHARSET_CIRCLED "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

/* Appends the set of a property: a general category of one or two letters (not C, Cn, Cs), or one of a few scripts.
 * False if it is neither, or (*memory set) memory is out. */
bool iv_charset_property(iv_buf *out, const char *name, size_t n, bool *memory);

/* Appends the word characters: letters, marks, decimal digits, letter numbers, connectors, circled letters.
 */
bool iv_charset_word(iv_buf *out);

/* White_Space. */
bool iv_charset_is_space(uint32_t cp);

/* ---- the byte-level alphabet ---- */

/* The character of a byte, as UTF-8 in out[2]; returns its length, 1 or 2. */
size_t iv_byte_level_encode(uint8_t byte, char out[2]);

/* The byte of a character, or -1 if it is not one of the 256. */
int iv_byte_level_decode(uint32_t cp);

#endif
