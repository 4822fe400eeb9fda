/* token_rules.h: constraints on tokens instead of text: the ids that may be drawn, and sequences that may not be
 * completed. */
#ifndef IV_GRAMMAR_TOKEN_RULES_H
#define IV_GRAMMAR_TOKEN_RULES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct iv_token_rules {
    size_t vocab;
    uint64_t *allowed; /* a bit for each id; NULL: all */
    int32_t *ids;      /* the bad sequences, one after the other ... */
    size_t *ends;      /* [count] ... and where each ends */
    size_t count;
} iv_token_rules;

/* text: {"allowed": [ids], "bad": [[ids], ...]}, either of which may be absent. Errors name the fields of requests. */
iv_status iv_token_rules_read(const char *text, size_t vocab, iv_token_rules *out, iv_error *err);
void iv_token_rules_free(iv_token_rules *r);

/* Bit id of mask[(vocab + 63) / 64] is 1 for each id that may follow ids[0..count): allowed, and not the last of a bad
 * sequence whose other ids come before it. */
void iv_token_rules_mask(const iv_token_rules *r, const int32_t *ids, size_t count, uint64_t *mask);

#endif
