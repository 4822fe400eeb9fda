/* tokenizer.h: text <-> token ids, from a Hugging Face tokenizer.json.
 *
 * The ids are those of the reference library, `tokenizers`; docs/formats/tokenizer.md lists what is supported
 * and the known differences. An open tokenizer never changes: any number of threads may use one at the same
 * time. */
#ifndef IV_TEXT_TOKENIZER_H
#define IV_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/status.h"

typedef struct iv_tokenizer iv_tokenizer;

enum {
    IV_TOKENIZE_BYTES_MAX = 16 << 20,  /* one text */
    IV_TOKENIZE_GROWTH_MAX = 64,       /* no step may make a text this many times longer, */
    IV_TOKENIZE_GROWTH_BASE = 64 << 10 /* plus so many bytes: IV_LIMIT */
};

/* Opens dir/tokenizer.json. Nothing else is read: the other files of a model only repeat or decorate it. */
iv_status iv_tokenizer_open(const char *dir, iv_tokenizer **out, iv_error *err);

/* The same from n bytes in memory, which are not kept; name heads errors. */
iv_status iv_tokenizer_parse(const char *name, const char *json, size_t n, iv_tokenizer **out, iv_error *err);

void iv_tokenizer_close(iv_tokenizer *t); /* NULL is allowed */

/* Flags of iv_tokenizer_encode. */
typedef enum iv_encode_flags {
    IV_ENCODE_PLAIN = 0,
    IV_ENCODE_ADD_SPECIAL = 1,  /* put the post-processor's tokens (BOS, ...) around the text */
    IV_ENCODE_MARKED = 4,       /* marks of iv_tokenizer_mark are taken out of the text between added tokens */
    IV_ENCODE_PARSE_SPECIAL = 2 /* special tokens spelt out in the text become their ids; else they are plain
                                   text. Added tokens that are not special are recognised either way. */
} iv_encode_flags;

/* Appends the text with a mark behind each character of every special token that it spells. Marks that were in it are
 * left out. iv_tokenizer_unmark takes marks out of n bytes, in place; returns what is left of them. */
iv_status iv_tokenizer_mark(const iv_tokenizer *t, const char *text, size_t n, iv_buf *out, iv_error *err);
size_t iv_tokenizer_unmark(char *text, size_t n);

/* Appends the ids of n bytes to out. IV_INVALID if they are not UTF-8 (NUL is a character like any other),
 * IV_LIMIT when the text is too long or a pattern of the tokenizer takes too many steps on it. On failure out
 * is as before. */
iv_status iv_tokenizer_encode(const iv_tokenizer *t, const char *text, size_t n, unsigned flags, iv_ids *out,
                              iv_error *err);

/* Appends the text of n ids to out: valid UTF-8, whatever the ids. skip_special leaves special tokens out. An
 * id that names no token (a model may have more rows than its tokenizer has tokens) gives nothing; a negative
 * one is IV_INVALID. */
iv_status iv_tokenizer_decode(const iv_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, iv_buf *out,
                              iv_error *err);

size_t iv_tokenizer_vocab_size(const iv_tokenizer *t); /* 1 + the largest id */

/* The id of a token by its exact text, added tokens included. */
bool iv_tokenizer_find(const iv_tokenizer *t, const char *token, size_t n, int32_t *id);

/* A token's text as the file has it (not decoded), *n bytes (n may be NULL); NULL if the id names none. */
const char *iv_tokenizer_token(const iv_tokenizer *t, int32_t id, size_t *n);

bool iv_tokenizer_is_special(const iv_tokenizer *t, int32_t id);

/* Appends a token's bytes where its spelling alone says them, however few of a character they are: *told. So it is in
 * byte-level vocabularies, and for the byte tokens of those with a fallback; what others add to a text only decoding
 * says. False: no memory. */
bool iv_tokenizer_token_bytes(const iv_tokenizer *t, int32_t id, iv_buf *out, bool *told);

/* SHA-256 of the bytes of tokenizer.json. */
void iv_tokenizer_digest(const iv_tokenizer *t, uint8_t out[32]);

/* Decoding token by token. What push and flush append, put together, is what iv_tokenizer_decode gives for
 * all the ids; each append is whole characters. push appends what no later token can change; flush, once, the
 * rest. The tokenizer must outlive the stream. */
typedef struct iv_token_stream iv_token_stream;

iv_status iv_token_stream_open(const iv_tokenizer *t, bool skip_special, iv_token_stream **out, iv_error *err);
/* Before the first push: the stream's text continues that of n ids (a prompt), so that nothing is stripped from its
 * beginning which only the beginning of a text loses. Pushed text is then what HF's decode gives for all ids, less what
 * it gives for the first n, as in vLLM's detokenizer: with Strip or Metaspace an answer keeps its first space, also
 * behind special tokens ("[/INST]") of a prompt that has other text. A prompt without text, such as a skipped "<s>"
 * alone, changes nothing. Characters do not reach over: bytes of one that the n ids leave open are not waited for.
 * `text`: as behind text in any case, which is how a grammar sees the answer. */
iv_status iv_token_stream_follow(iv_token_stream *s, const int32_t *ids, size_t n, bool text, iv_error *err);
/* Room, so that tokens of up to so many bytes seldom need memory later. */
iv_status iv_token_stream_reserve(iv_token_stream *s, size_t bytes, iv_error *err);
iv_status iv_token_stream_push(iv_token_stream *s, int32_t id, iv_buf *out, iv_error *err);
/* The same for a token that is not skipped, special or not. */
iv_status iv_token_stream_show(iv_token_stream *s, int32_t id, iv_buf *out, iv_error *err);
iv_status iv_token_stream_flush(iv_token_stream *s, iv_buf *out, iv_error *err);
void iv_token_stream_close(iv_token_stream *s); /* NULL is allowed */

#endif
