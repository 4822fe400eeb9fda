/* tokenizer.h: text <-> token ids, from a Hugging Face tokenizer.json.
 *
 * The ids are those of the reference library, `tokenizers`; docs/formats/tokenizer.md lists what is supported
 * and the known differences. An open tokenizer never changes: any number of threads may use one at the same
 * time. */
#ifndef IV_TEXT_TOKENIZER_H
#define IV_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/status.h"
#include "text/span.h"

typedef struct iv_tokenizer iv_tokenizer;

enum {
    IV_TOKENIZE_BYTES_MAX = 16 << 20,  /* one text */
    IV_TOKENIZE_GROWTH_MAX = 64,       /* a step may lengthen a text by this factor, */
    IV_TOKENIZE_GROWTH_BASE = 64 << 10 /* plus this many bytes; longer: IV_LIMIT */
};

/* Opens dir/tokenizer.json. The other files of a model are not read: they only repeat it. */
iv_status iv_tokenizer_open(const char *dir, iv_tokenizer **out, iv_error *err);

/* The same from n bytes in memory, which are not kept; name heads errors. */
iv_status iv_tokenizer_parse(const char *name, const char *json, size_t n, iv_tokenizer **out, iv_error *err);

void iv_tokenizer_close(iv_tokenizer *t); /* NULL is allowed */

/* Flags of iv_tokenizer_encode. */
typedef enum iv_encode_flags {
    IV_ENCODE_PLAIN = 0,
    IV_ENCODE_ADD_SPECIAL = 1,  /* put the post-processor's tokens (BOS, ...) around the text */
    IV_ENCODE_MARKED = 4,       /* marks of iv_tokenizer_mark are removed from the text between added tokens */
    IV_ENCODE_PARSE_SPECIAL = 2 /* special tokens spelt out in the text become their ids; else they are plain
                                   text. Added tokens that are not special are recognised either way. */
} iv_encode_flags;

/* Appends the text with a mark after each character of every special token in it. Existing marks are removed.
 * iv_tokenizer_unmark removes marks from n bytes, in place; returns the new length. */
iv_status iv_tokenizer_mark(const iv_tokenizer *t, const char *text, size_t n, iv_buf *out, iv_error *err);
size_t iv_tokenizer_unmark(char *text, size_t n);

/* Appends the ids of n bytes to out. IV_INVALID if they are not UTF-8 (NUL is a character like any other),
 * IV_LIMIT when the text is too long or a pattern of the tokenizer takes too many steps on it. On failure out
 * is as before. */
iv_status iv_tokenizer_encode(const iv_tokenizer *t, const char *text, size_t n, unsigned flags, iv_ids *out,
                              iv_error *err);

/* The same, and appends to `inside` one byte for each id: 1 if the token holds bytes of one of the spans of the text,
 * otherwise 0 (also for tokens around the text). Spans begin and end between characters. A character of several tokens
 * is in a span with all of them; where a normalizer rewrites characters across the end of a span, they count as
 * outside. flags without IV_ENCODE_MARKED. */
iv_status iv_tokenizer_encode_spans(const iv_tokenizer *t, const char *text, size_t n, unsigned flags,
                                    const iv_text_span *spans, size_t span_count, iv_ids *out, iv_buf *inside,
                                    iv_error *err);

/* Appends the text of n ids to out: valid UTF-8 for any ids. skip_special omits special tokens. An id without a token
 * (a model may have more rows than its tokenizer has tokens) is empty; a negative id is IV_INVALID. */
iv_status iv_tokenizer_decode(const iv_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, iv_buf *out,
                              iv_error *err);

size_t iv_tokenizer_vocab_size(const iv_tokenizer *t); /* 1 + the largest id */

/* The id of a token by its exact text, added tokens included. */
bool iv_tokenizer_find(const iv_tokenizer *t, const char *token, size_t n, int32_t *id);

/* A token's text in the file (not decoded), *n bytes (n may be NULL); NULL for an id without a token. */
const char *iv_tokenizer_token(const iv_tokenizer *t, int32_t id, size_t *n);

bool iv_tokenizer_is_special(const iv_tokenizer *t, int32_t id);

/* Appends a token's bytes if they follow from its text alone (*known), even part of a character: in byte-level
 * vocabularies, and for the byte tokens of vocabularies with a fallback. For other tokens the text depends on decoding.
 * False: no memory. */
bool iv_tokenizer_token_bytes(const iv_tokenizer *t, int32_t id, iv_buf *out, bool *known);

/* SHA-256 of the bytes of tokenizer.json. */
void iv_tokenizer_digest(const iv_tokenizer *t, uint8_t out[32]);

/* Decoding token by token. The concatenated output of push and flush equals iv_tokenizer_decode of all ids; each append
 * is whole characters. push appends text that later tokens cannot change; flush, called once, appends the rest. The
 * tokenizer must outlive the stream. */
typedef struct iv_token_stream iv_token_stream;

iv_status iv_token_stream_open(const iv_tokenizer *t, bool skip_special, iv_token_stream **out, iv_error *err);
/* To be called before the first push: the stream continues the text of n ids (a prompt), so the decoder does not strip
 * its beginning as that of a text. The output is then Hugging Face's decode of all ids minus its decode of the first n,
 * as in vLLM's detokenizer: with Strip or Metaspace an answer keeps its first space, also after special tokens
 * ("[/INST]") of a prompt that has other text. A prompt without text, such as a skipped "<s>" alone, has no effect.
 * Characters do not cross the boundary: an incomplete character of the prompt is not completed.
 *
 * `text`: decode as after text in any case, as a grammar sees the answer. */
iv_status iv_token_stream_follow(iv_token_stream *s, const int32_t *ids, size_t n, bool text, iv_error *err);
/* Reserves memory, so that tokens of up to this many bytes seldom allocate later. */
iv_status iv_token_stream_reserve(iv_token_stream *s, size_t bytes, iv_error *err);
iv_status iv_token_stream_push(iv_token_stream *s, int32_t id, iv_buf *out, iv_error *err);
/* The same for a token that is not skipped, special or not. */
iv_status iv_token_stream_show(iv_token_stream *s, int32_t id, iv_buf *out, iv_error *err);
iv_status iv_token_stream_flush(iv_token_stream *s, iv_buf *out, iv_error *err);
void iv_token_stream_close(iv_token_stream *s); /* NULL is allowed */

#endif
