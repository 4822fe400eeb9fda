/* text.c: what the forms of a line share: errors with file and line, and text -> ids and mask. */
#include "train/data/line.h"

#include <stdio.h>

/* ---- errors ---- */

iv_status iv_train_line_fail(const iv_train_line *l, const char *fmt, ...) {
    char message[sizeof l->err->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return iv_fail(l->err, IV_FORMAT, "%.300s:%zu: %s", l->options->path, l->number, message);
}

iv_status iv_train_line_no_memory(const iv_train_line *l) {
    return iv_fail(l->err, IV_NO_MEMORY, "%.300s:%zu: no memory", l->options->path, l->number);
}

iv_status iv_train_line_prefix(const iv_train_line *l) {
    return iv_error_prefix(l->err, "%.300s:%zu", l->options->path, l->number);
}

/* ---- text ---- */

bool iv_train_line_push_mask(iv_train_line *l, float weight) { return iv_buf_append(&l->mask, &weight, sizeof weight); }

iv_status iv_train_line_check_ids(const iv_train_line *l) {
    for (size_t i = 0; i < l->ids.count; i++)
        if (l->ids.data[i] < 0 || (size_t)l->ids.data[i] >= l->vocab_size)
            return iv_train_line_fail(l,
                                      "token %zu: wanted an id from 0 to %zu, found %d, which the tokenizer has and "
                                      "the model has not",
                                      i, l->vocab_size - 1, (int)l->ids.data[i]);
    return IV_OK;
}

iv_status iv_train_line_encode(iv_train_line *l, const char *text, size_t n, unsigned flags, const iv_text_span *spans,
                               size_t count) {
    if (!l->text || !l->text->tokenizer)
        return iv_train_line_fail(l, "wanted \"ids\", as the model has no tokenizer; found text");
    iv_status status =
        iv_tokenizer_encode_spans(l->text->tokenizer, text, n, flags, spans, count, &l->ids, &l->inside, l->err);
    if (status != IV_OK) return iv_train_line_prefix(l);
    for (size_t i = 0; i < l->ids.count; i++)
        if (!iv_train_line_push_mask(l, i && l->inside.data[i] ? 1.0f : 0.0f)) return iv_train_line_no_memory(l);
    return iv_train_line_check_ids(l);
}
