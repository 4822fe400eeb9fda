/* utf8.h: UTF-8 validation and coding. Strict: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef IV_BASE_UTF8_H
#define IV_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed sequence at s (n bytes available); 0 if there is none. */
size_t iv_utf8_length(const uint8_t *s, size_t n);

/* Decodes the well-formed sequence at s into *cp; returns its length, 0 if malformed. */
size_t iv_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp);

/* Writes cp (a scalar value) to out[4]; returns the byte count. */
size_t iv_utf8_encode(uint32_t cp, uint8_t out[4]);

/* True if all n bytes are well formed; else *bad (may be NULL) is the offset of the first that is not. */
bool iv_utf8_valid(const uint8_t *s, size_t n, size_t *bad);

/* True if the n bytes are a proper prefix of some well-formed sequence (more input may complete it). */
bool iv_utf8_is_partial(const uint8_t *s, size_t n);

/* Bytes of a byte order mark at the beginning of a text (Windows writes one): 3, or 0. Readers of text that people
 * write skip it. */
size_t iv_utf8_mark(const char *s, size_t n);

#endif
