/* line.h: one line of a training file -> ids, mask, answer. Internal to data*.c. */
#ifndef IV_TRAIN_DATA_LINE_H
#define IV_TRAIN_DATA_LINE_H

#include "train/data/data.h"
#include "base/buf.h"

/* A line being read, and its result. Buffers are reused from line to line. */
typedef struct iv_train_line {
    const iv_train_data_options *options;
    const iv_text_model *text; /* may be NULL */
    size_t vocab_size;
    size_t number;
    const char *json; /* [bytes] */
    size_t bytes;
    json_t *root; /* an object */
    iv_error *err;

    iv_ids ids;
    iv_buf mask;   /* a float for each id */
    iv_buf answer; /* valid if has_answer */
    bool has_answer;

    iv_buf inside, rendered, partial; /* scratch */
    iv_text_spans spans;
} iv_train_line;

/* Reads line->json into ids, mask and answer. max_length is left to the caller. */
iv_status iv_train_line_read(iv_train_line *line);
void iv_train_line_free(iv_train_line *line);

/* ---- errors and text (text.c) ---- */

/* Fills line->err: "file:line: ...". Returns IV_FORMAT. */
iv_status iv_train_line_fail(const iv_train_line *line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
iv_status iv_train_line_no_memory(const iv_train_line *line);
/* "file:line: " before the error that a call gave. Returns its status. */
iv_status iv_train_line_prefix(const iv_train_line *line);

/* Tokenizes the text (IV_ENCODE_... flags) into ids; mask is 1 for tokens that hold bytes of the spans, but for the
 * first token; otherwise 0. */
iv_status iv_train_line_encode(iv_train_line *line, const char *text, size_t n, unsigned flags,
                               const iv_text_span *spans, size_t count);
/* Tokens beyond the model's vocabulary are an error. */
iv_status iv_train_line_check_ids(const iv_train_line *line);
bool iv_train_line_push_mask(iv_train_line *line, float weight); /* false: no memory */

/* ---- conversations (chat.c) ---- */

bool iv_train_line_has_template(const iv_train_line *line);

/* Reads a list of messages (format/chat_messages.h); the caller owns *out. name heads errors. *assistant: messages of
 * the assistant that may be learned. */
iv_status iv_train_line_read_messages(const iv_train_line *line, const char *name, const json_t *messages, json_t **out,
                                      size_t *assistant);
/* Learns the assistant's tokens of the messages, as read, from index `from` on. The messages are changed. */
iv_status iv_train_line_learn(iv_train_line *line, json_t *messages, size_t from);
/* The messages, as read, as a prompt, with the generation prompt; nothing is masked. They are changed. */
iv_status iv_train_line_prompt(iv_train_line *line, const char *name, json_t *messages);

#endif
