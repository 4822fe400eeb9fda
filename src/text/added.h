/* added.h: finding added tokens in a text, before any other step. */
#ifndef IV_TEXT_ADDED_H
#define IV_TEXT_ADDED_H

#include "base/buf.h"
#include "text/regex.h"

typedef struct iv_added_entry {
    iv_str text; /* the text to find: the content, or its normal form */
    const iv_added_token *token;
} iv_added_entry;

/* One set of added tokens. A tokenizer has two: tokens found in the original text, and tokens found in the normalized
 * text. */
typedef struct iv_added_set {
    iv_added_entry *entries; /* owned; sorted by text, no two equal */
    size_t count;
    uint32_t first_byte[257]; /* entries that start with byte b: first_byte[b] .. first_byte[b + 1] */
    iv_regex *word;           /* owned; one word character; NULL unless some token is single_word */
} iv_added_set;

/* Takes ownership of entries (malloc'd), also on failure. name heads the error (two tokens with the same text). */
iv_status iv_added_set_open(const char *name, iv_added_entry *entries, size_t count, iv_added_set *out, iv_error *err);
void iv_added_set_close(iv_added_set *set);

/* An iteration over one text; zero-initialise. */
typedef struct iv_added_walk {
    size_t start, end;           /* the part found last */
    const iv_added_token *token; /* NULL: text between tokens */
    size_t done, from;           /* internal */
    size_t space_end;            /* internal: end of the run of space that an rstrip token consumed last */
    size_t held_start, held_end; /* internal: a token to return after the text before it */
    const iv_added_token *held;
} iv_added_walk;

/* The next part of the n bytes of valid UTF-8: text or one token; *more is false at the end. At each position the
 * longest token wins. With special false, special tokens are skipped and stay text. */
iv_status iv_added_next(const iv_added_set *set, iv_regex_work *work, const char *text, size_t n, bool special,
                        iv_added_walk *walk, bool *more, iv_error *err);

#endif
