/* draft.h: guesses at a sequence's next tokens by looking its end up in itself (prompt lookup; Saxena 2023).
 *
 * Every pair of neighbouring tokens is in a hash table of chains, latest first, so a guess costs a bounded number of
 * looks however long the sequence is. A guess is only a guess: what it is worth is decided by computing it. */
#ifndef IV_ENGINE_DRAFT_H
#define IV_ENGINE_DRAFT_H

#include "base/status.h"

enum { IV_DRAFT_MAX = 16 };

typedef struct iv_draft_index {
    uint32_t *heads;    /* [heads_mask + 1]: the latest position at which such a pair ends; 0: none */
    uint32_t *previous; /* [tokens_max]: by position, the one before it in the chain; 0: none */
    size_t heads_mask;
    size_t indexed; /* pairs that end before this position are in */
} iv_draft_index;

iv_status iv_draft_index_open(iv_draft_index *x, size_t tokens_max, iv_error *err);
void iv_draft_index_close(iv_draft_index *x);

/* Guesses at most `limit` tokens after tokens[0..count): those that followed the longest earlier match (up to four
 * tokens, two at least) of the sequence's end, of equally long ones the latest. Where the match overlaps the end, what
 * is between repeats. The sequence only ever grows from call to call. Returns how many, 0 or limit. */
size_t iv_draft_propose(iv_draft_index *x, const int32_t *tokens, size_t count, size_t limit, int32_t *out);

#endif
