/* dialect.h: from Oniguruma's pattern language, which tokenizer.json uses, to PCRE2's.
 *
 * The two look alike and differ in the small print (\h, \v, \w, \s on U+180E, {,n}, {n}+, (?m), nested
 * classes, the Unicode version), so a pattern is parsed and written anew. What is not known to mean the same
 * is refused. */
#ifndef IV_TEXT_DIALECT_H
#define IV_TEXT_DIALECT_H

#include "base/buf.h"
#include "base/status.h"

enum { IV_PATTERN_GROUPS_MAX = 64 }; /* nesting of ( */

/* Appends to out the PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) that finds what the n bytes
 * of valid UTF-8 find in Oniguruma. where heads the error, IV_UNSUPPORTED or IV_FORMAT, that names the
 * construct. */
iv_status iv_dialect_translate(const char *where, const char *pattern, size_t n, iv_buf *out, iv_error *err);

#endif
