/* draft.h: drafts of a sequence's next tokens by prompt lookup (Saxena 2023): the tokens that followed an earlier
 * occurrence of the sequence's end.
 *
 * A hash table of chains, latest first, has every pair of adjacent tokens, so a draft costs a bounded number of lookups
 * at any length. The model verifies every draft token. */
#ifndef IV_ENGINE_DRAFT_H
#define IV_ENGINE_DRAFT_H

#include "base/status.h"

enum { IV_DRAFT_MAX = 16 };

typedef struct iv_draft_index {
    uint32_t *heads;    /* [heads_mask + 1]: the latest position where such a pair ends; 0: none */
    uint32_t *previous; /* [tokens_max]: by position, the one before it in the chain; 0: none */
    size_t heads_mask;
    size_t indexed; /* pairs that end before this position are indexed */
} iv_draft_index;

iv_status iv_draft_index_open(iv_draft_index *x, size_t tokens_max, iv_error *err);
void iv_draft_index_close(iv_draft_index *x);

/* Drafts `limit` tokens after tokens[0..count): those that followed the longest earlier match (two to four tokens) of
 * the sequence's end, or the latest of equally long matches. A match that overlaps the end repeats its period. Between
 * calls the sequence may only grow. Returns limit, or 0 without a match. */
size_t iv_draft_propose(iv_draft_index *x, const int32_t *tokens, size_t count, size_t limit, int32_t *out);

#endif
