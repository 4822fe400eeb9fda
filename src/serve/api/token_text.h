/* token_text.h: the bytes of a single token, and its name in logprobs.
 *
 * A token's bytes are those it adds inside a text. A byte-level token may be part of a character: its bytes are
 * exact all the same, and its name is "bytes:\xNN...". */
#ifndef IV_SERVE_API_TOKEN_TEXT_H
#define IV_SERVE_API_TOKEN_TEXT_H

#include "base/json_out.h"
#include "base/status.h"
#include "invar.h"

/* A thread-safe cache of token bytes: computing them needs a decoder, and answers need thousands. */
typedef struct iv_token_texts iv_token_texts;
iv_status iv_token_texts_open(size_t vocab, iv_token_texts **out, iv_error *err);
void iv_token_texts_close(iv_token_texts *texts); /* NULL is fine */

/* Replaces out. Ids outside the vocabulary have no bytes. texts: NULL: no cache. */
iv_status iv_token_bytes(const iv_text_model *t, iv_token_texts *texts, int32_t id, iv_buf *out, iv_error *err);

/* Replaces `name`: the bytes if they are UTF-8, else "bytes:\xNN..."; "token_id:N" if as_id. */
bool iv_token_name(int32_t id, const iv_buf *bytes, bool as_id, iv_buf *name);

#endif
