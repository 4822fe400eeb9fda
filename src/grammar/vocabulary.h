/* vocabulary.h: the bytes of every token, and all tokens as one prefix tree, so that walks visit common prefixes once.
 * A token's bytes are those it adds in the middle of a text. Special tokens and unused ids have no bytes: they match a
 * grammar only where it requires them by name. Immutable once open; thread-safe. */
#ifndef IV_GRAMMAR_VOCABULARY_H
#define IV_GRAMMAR_VOCABULARY_H

#include "base/status.h"
#include "grammar/automaton.h"

#include <stddef.h>
#include <stdint.h>

/* A node of the tree in depth-first order: children follow their parent, smaller bytes first. */
typedef struct iv_vocabulary_node {
    uint32_t skip;  /* the first node that is not below this one */
    uint32_t token; /* its tokens are token_ids[token .. the next node's token) */
    uint16_t depth; /* from 1 */
    uint8_t byte;
} iv_vocabulary_node;

typedef struct iv_vocabulary {
    size_t size;     /* ids are below it */
    size_t *offsets; /* [size + 1]: of a token's bytes */
    char *bytes;
    iv_vocabulary_node *nodes; /* [node_count + 1]; the last one is a sentinel */
    size_t node_count;
    int32_t *token_ids;
    size_t longest;                /* bytes of a token */
    int32_t specials[IV_SPECIALS]; /* ids; -1: no such special token */
} iv_vocabulary;

struct iv_tokenizer;

enum { IV_VOCABULARY_TOKEN_BYTES_MAX = 4096 /* longer tokens never match */ };

/* size: of the model's vocabulary, which may be larger or smaller than the tokenizer's. */
iv_status iv_vocabulary_open(const struct iv_tokenizer *t, size_t size, iv_vocabulary *out, iv_error *err);
/* The same from given bytes: token i is bytes[offsets[i] .. offsets[i + 1]), none if empty. Copies. */
iv_status iv_vocabulary_make(const char *bytes, const size_t *offsets, size_t size, iv_vocabulary *out, iv_error *err);
void iv_vocabulary_close(iv_vocabulary *v); /* a zeroed one is fine */

#endif
