/* decode.h: token texts -> bytes, through a chain of steps; each passes on text as soon as it is certain.
 *
 * Whole decoding is streaming with one flush at the end, so both give the same text. Steps replace parts of tokens and
 * ends of tokens: a step that fuses all tokens (Fuse, ByteLevel) passes on parts and holds back the end. */
#ifndef IV_TEXT_DECODE_H
#define IV_TEXT_DECODE_H

#include "base/buf.h"
#include "text/regex.h"

/* The compiled decoder of a tokenizer. */
typedef struct iv_decoder {
    const iv_decoder_spec *steps; /* borrowed */
    size_t count;
    bool join_with_spaces;                     /* there is no decoder */
    iv_regex *regexes[IV_TOKENIZER_STEPS_MAX]; /* owned; NULL where a step has none */
} iv_decoder;

/* The specs must outlive the decoder. On failure nothing is left to close. */
iv_status iv_decoder_open(const char *name, const iv_tokenizer_json *spec, iv_decoder *out, iv_error *err);
void iv_decoder_close(iv_decoder *d);

/* The state of one step between tokens. */
typedef struct iv_decode_state {
    iv_buf held;        /* the token so far, or characters that may be stripped */
    iv_buf bytes;       /* BYTE_FALLBACK: the run of byte tokens; BYTE_LEVEL: an incomplete sequence */
    size_t token_index; /* METASPACE */
    size_t stripped;    /* STRIP: characters dropped on the left */
    bool left_done;     /* STRIP */
} iv_decode_state;

typedef struct iv_decode_run {
    const iv_decoder *decoder;
    iv_regex_work *work;
    iv_decode_state states[IV_TOKENIZER_STEPS_MAX];
    size_t tokens;
    iv_buf *out; /* of the call in progress */
    iv_error *err;
} iv_decode_run;

/* A run owns its states; *run may be moved only before the first token. */
iv_status iv_decode_begin(const iv_decoder *d, iv_decode_run *run, iv_error *err);
void iv_decode_end(iv_decode_run *run);

/* Reserves memory for tokens of this many bytes. */
bool iv_decode_reserve(iv_decode_run *run, size_t bytes);

/* Appends a token's bytes if they follow from its text alone (*known). False: no memory. */
bool iv_decode_token_bytes(const iv_decoder *d, iv_str token, iv_buf *out, bool *known);

/* Marks a text boundary: the tokens so far belong to a preceding text. Text held back is dropped; pending bytes are
 * flushed to out. */
iv_status iv_decode_boundary(iv_decode_run *run, iv_buf *out, iv_error *err);

/* Each appends to out. After a flush the run may only be ended. */
iv_status iv_decode_token(iv_decode_run *run, iv_str token, iv_buf *out, iv_error *err);
iv_status iv_decode_flush(iv_decode_run *run, iv_buf *out, iv_error *err);

#endif
