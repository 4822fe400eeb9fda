/* data.h: training examples from a JSON-lines file: token ids with a mask, and prompts with answers.
 *
 * docs/formats/training_data.md has the forms of a line. All examples are tokenized when the file is opened; the result
 * never changes and may be read by several threads. It is a function of the bytes of the file, the options and the text
 * model; the clock is not read. */
#ifndef IV_TRAIN_DATA_DATA_H
#define IV_TRAIN_DATA_DATA_H

#include "engine/text_model.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum iv_train_kind {
    IV_TRAIN_SFT, /* tokens to learn, by mask */
    IV_TRAIN_RL   /* prompts to sample from */
} iv_train_kind;

/* What to do with an example of more than max_length tokens. */
typedef enum iv_train_longer {
    IV_TRAIN_LONGER_ERROR,
    IV_TRAIN_LONGER_TRUNCATE, /* the first max_length tokens; dropped if no masked token is left. SFT only */
    IV_TRAIN_LONGER_DROP
} iv_train_longer;

/* What strftime_now() gives to a chat template, so that tokens do not depend on the day: the date that Llama 3.1's
 * template itself has for this purpose. */
#define IV_TRAIN_DATE "26 Jul 2024"

typedef struct iv_train_data_options {
    const char *path; /* "-": standard input */
    iv_train_kind kind;
    size_t vocab_size; /* ids are below it; 0: as many as the tokenizer has */
    size_t max_length; /* in tokens; 0: any length */
    iv_train_longer longer;
    size_t
        positions; /* of the model, which an example and `completion` new tokens fit into, after max_length; 0: any */
    size_t completion; /* RL: new tokens */
    bool need_answer;  /* RL: a line without "answer" is an error */
    bool any_members;  /* members of a line that are not known are for a reward program; else they are errors */
    const char *date;  /* NULL: IV_TRAIN_DATE */
} iv_train_data_options;

typedef struct iv_train_data iv_train_data;

/* One example. Pointers live as long as the data. */
typedef struct iv_train_example {
    const int32_t *ids; /* [count], count >= 1 */
    const float
        *mask; /* [count], mask[0] is 0, all finite and not negative; SFT: at least one is positive; RL: all 0 */
    size_t count;
    size_t prompt_count; /* ids before the first with a positive mask; RL: count */
    const char *answer;  /* RL: UTF-8 with a NUL after answer_bytes; a number is its source text; NULL: none */
    size_t answer_bytes;
    const char *line; /* the line's JSON, not NUL-terminated */
    size_t line_bytes;
    size_t line_number; /* in the file, from 1 */
} iv_train_example;

/* Counts of opening. */
typedef struct iv_train_data_report {
    size_t examples, tokens, masked; /* masked: tokens with a positive mask */
    size_t longest;                  /* tokens of the longest example */
    size_t truncated;                /* examples cut to max_length */
    size_t dropped;                  /* examples left out: too long, or with no masked token left when cut */
} iv_train_data_report;

/* Reads, tokenizes and checks the whole file. text may be NULL, or lack a tokenizer, if all lines have ids; vocab_size
 * is then required. Every bad line is an IV_FORMAT error "file:line: place: wanted X, found Y"; a file without examples
 * is one too. The caller closes *out; text is not kept. */
iv_status iv_train_data_open(const iv_train_data_options *options, const iv_text_model *text, iv_train_data **out,
                             iv_error *err);
/* The same for n bytes in memory, which are copied; options->path heads errors. */
iv_status iv_train_data_parse(const iv_train_data_options *options, const iv_text_model *text, const void *bytes,
                              size_t n, iv_train_data **out, iv_error *err);
void iv_train_data_close(iv_train_data *data); /* NULL is allowed */

size_t iv_train_data_count(const iv_train_data *data);                       /* at least 1 */
iv_train_example iv_train_data_example(const iv_train_data *data, size_t i); /* i < count */
iv_train_data_report iv_train_data_counts(const iv_train_data *data);

/* SHA-256 over all examples in order: docs/formats/training_data.md, "Digest". */
void iv_train_data_digest(const iv_train_data *data, uint8_t out[32]);

#endif
