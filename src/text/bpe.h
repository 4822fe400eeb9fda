/* bpe.h: byte-pair encoding of one piece: characters -> ids, then merges by rank, leftmost first. */
#ifndef IV_TEXT_BPE_H
#define IV_TEXT_BPE_H

#include "format/tokenizer_json.h"
#include "base/buf.h"

typedef struct iv_bpe {
    const iv_tokenizer_json *spec; /* borrowed */
    struct iv_bpe_merge *merges;   /* owned: hash table keyed by the pair */
    size_t mask;
    int32_t bytes[256]; /* ids of <0x00>..<0xFF>, -1 where missing */
    int32_t *low_ids;   /* owned: ids of characters below IV_BPE_LOW; NULL with a prefix or suffix */
} iv_bpe;

enum { IV_BPE_LOW = 0x800 };

/* Scratch of one thread. Zero-initialise. */
typedef struct iv_bpe_work {
    struct iv_bpe_symbol *symbols;
    size_t symbol_count, symbol_cap;
    uint64_t *heap; /* candidates for merging */
    size_t heap_count, heap_cap;
} iv_bpe_work;

/* The spec must outlive the result. On failure nothing is left to close. */
iv_status iv_bpe_open(const iv_tokenizer_json *spec, iv_bpe *out, iv_error *err);
void iv_bpe_close(iv_bpe *bpe);

/* Appends the ids of a piece (n bytes of valid UTF-8) to out. O(n log n). Characters outside the vocabulary become byte
 * tokens, the unknown token, or nothing, depending on the model. */
iv_status iv_bpe_encode(const iv_bpe *bpe, iv_bpe_work *work, const char *piece, size_t n, iv_ids *out, iv_error *err);

void iv_bpe_work_free(iv_bpe_work *work);

#endif
