/* data.c: lines of a file -> examples in a few arrays; limits of length; the digest.
 * Owns the bytes of the file, the ids, masks and answers of all examples. */
#include "train/data/data.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"
#include "base/utf8.h"
#include "train/data/line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((size_t)1 << 36) /* 64 GiB */

/* Where an example lies in the arrays. */
typedef struct record {
    size_t at, count, prompt_count; /* ids and mask */
    size_t answer, answer_bytes;    /* in answers; SIZE_MAX: none */
    size_t line, line_bytes, line_number;
} record;

struct iv_train_data {
    iv_buf file;
    iv_ids ids;
    iv_buf mask, answers, records; /* of float, char, record */
    iv_train_data_report report;
    iv_train_kind kind;
    uint8_t digest[32];
};

/* ---- one example ---- */

static size_t first_masked(const float *mask, size_t count) {
    size_t i = 0;
    while (i < count && !(mask[i] > 0)) i++;
    return i;
}

/* Applies max_length. *keep: whether the example stays. */
static iv_status limit_length(iv_train_data *d, iv_train_line *l, bool *keep) {
    const iv_train_data_options *o = l->options;
    *keep = true;
    if (!o->max_length || l->ids.count <= o->max_length) return IV_OK;
    if (o->longer == IV_TRAIN_LONGER_ERROR)
        return iv_train_line_fail(l, "wanted at most %zu tokens, found %zu", o->max_length, l->ids.count);
    if (o->longer == IV_TRAIN_LONGER_TRUNCATE) {
        l->ids.count = o->max_length;
        l->mask.len = o->max_length * sizeof(float);
        *keep = first_masked((const float *)(const void *)l->mask.data, l->ids.count) < l->ids.count;
        d->report.truncated += *keep;
    } else {
        *keep = false;
    }
    d->report.dropped += !*keep;
    return IV_OK;
}

/* An example that a step could not run. */
static iv_status check_positions(const iv_train_line *l) {
    const iv_train_data_options *o = l->options;
    size_t n = l->ids.count;
    if (!o->positions || (n <= o->positions && o->completion <= o->positions - n)) return IV_OK;
    if (o->completion)
        return iv_train_line_fail(
            l, "wanted a prompt and %zu new tokens in the model's %zu positions, found %zu tokens%s", o->completion,
            o->positions, n, n < o->positions ? ": a smaller max_new_tokens (--max-new-tokens) fits" : "");
    return iv_train_line_fail(l, "wanted at most the model's %zu positions, found %zu tokens", o->positions, n);
}

static iv_status add_example(iv_train_data *d, const iv_train_line *l) {
    const float *mask = (const float *)(const void *)l->mask.data;
    size_t n = l->ids.count, prompt = first_masked(mask, n);
    record r = {.at = d->ids.count,
                .count = n,
                .prompt_count = prompt,
                .answer = SIZE_MAX,
                .line = (size_t)(l->json - d->file.data),
                .line_bytes = l->bytes,
                .line_number = l->number};
    if (l->has_answer) r.answer = d->answers.len, r.answer_bytes = l->answer.len;
    bool ok = iv_ids_append(&d->ids, l->ids.data, n) && iv_buf_append(&d->mask, l->mask.data, n * sizeof(float)) &&
              (!l->has_answer ||
               (iv_buf_append(&d->answers, l->answer.data, l->answer.len) && iv_buf_putc(&d->answers, 0))) &&
              iv_buf_append(&d->records, &r, sizeof r);
    if (!ok) return iv_train_line_no_memory(l);
    iv_train_data_report *report = &d->report;
    report->examples++, report->tokens += n;
    report->longest = iv_size_max(report->longest, n);
    for (size_t i = prompt; i < n; i++) report->masked += mask[i] > 0;
    return IV_OK;
}

/* ---- lines ---- */

static bool blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r') return false;
    return true;
}

static iv_status read_line(iv_train_data *d, iv_train_line *l) {
    bool keep;
    IV_TRY(iv_train_line_read(l));
    IV_TRY(limit_length(d, l, &keep));
    if (!keep) return IV_OK;
    IV_TRY(check_positions(l));
    return add_example(d, l);
}

static iv_status read_lines(iv_train_data *d, iv_train_line *l) {
    const char *text = d->file.data ? d->file.data : "";
    size_t n = d->file.len, lines = 0;
    for (size_t at = iv_utf8_mark(text, n), end; at < n; at = end + 1) {
        const char *newline = memchr(text + at, '\n', n - at);
        end = newline ? (size_t)(newline - text) : n;
        l->number++;
        l->json = text + at, l->bytes = end - at;
        if (l->bytes && l->json[l->bytes - 1] == '\r') l->bytes--;
        if (blank(l->json, l->bytes)) continue;
        lines++;
        IV_TRY(read_line(d, l));
    }
    if (d->report.examples) return IV_OK;
    if (lines == 0)
        return iv_fail(l->err, IV_FORMAT, "%s: wanted a JSON object a line, found %s", l->options->path,
                       n ? "blank lines only" : "an empty file");
    return iv_fail(l->err, IV_FORMAT, "%s: wanted examples of at most %zu tokens, found %zu longer ones only",
                   l->options->path, l->options->max_length, lines);
}

/* ---- digest ---- */

static void add_word(iv_digest *h, uint64_t v, int bytes) {
    uint8_t out[8];
    for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(v >> (8 * i));
    iv_digest_add(h, out, (size_t)bytes);
}

static iv_status make_digest(iv_train_data *d, iv_error *err) {
    static const char head[] = "invar training data 1";
    iv_digest *h = iv_digest_new();
    if (!h) return iv_fail(err, IV_NO_MEMORY, "training data: no memory for a digest");
    iv_digest_add(h, head, sizeof head);
    add_word(h, d->kind, 4);
    add_word(h, d->report.examples, 8);
    for (size_t i = 0; i < d->report.examples; i++) {
        iv_train_example e = iv_train_data_example(d, i);
        add_word(h, e.count, 8);
        for (size_t t = 0; t < e.count; t++) add_word(h, (uint32_t)e.ids[t], 4);
        for (size_t t = 0; t < e.count; t++) {
            uint32_t bits;
            memcpy(&bits, &e.mask[t], sizeof bits);
            add_word(h, bits, 4);
        }
        add_word(h, e.answer ? e.answer_bytes : UINT64_MAX, 8);
        if (e.answer) iv_digest_add(h, e.answer, e.answer_bytes);
    }
    iv_digest_finish(h, d->digest);
    return IV_OK;
}

/* ---- opening ---- */

static iv_status check_options(const iv_train_data_options *o, const iv_text_model *text, iv_error *err) {
    if (o->max_length == 1)
        return iv_fail(err, IV_INVALID,
                       "max_length: wanted 0 or at least 2 tokens, found 1: the first is never learned");
    if (o->kind == IV_TRAIN_RL && o->longer == IV_TRAIN_LONGER_TRUNCATE)
        return iv_fail(err, IV_INVALID,
                       "max_length: a cut prompt asks for something else: wanted error or drop, found "
                       "truncate");
    if (!o->vocab_size && !(text && text->tokenizer))
        return iv_fail(err, IV_INVALID, "vocab_size: wanted the model's, as it has no tokenizer; found 0");
    return IV_OK;
}

/* Takes the file's bytes into *out. */
static iv_status build(const iv_train_data_options *o, const iv_text_model *text, iv_buf *file, iv_train_data **out,
                       iv_error *err) {
    iv_train_data *d = calloc(1, sizeof *d);
    if (!d) {
        iv_buf_free(file);
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->path);
    }
    d->file = *file, d->kind = o->kind;
    *file = (iv_buf){0};
    iv_train_line line = {.options = o,
                          .text = text,
                          .vocab_size = o->vocab_size ? o->vocab_size : iv_tokenizer_vocab_size(text->tokenizer),
                          .err = err};
    iv_status status = read_lines(d, &line);
    iv_train_line_free(&line);
    if (status == IV_OK) status = make_digest(d, err);
    if (status == IV_OK)
        *out = d;
    else
        iv_train_data_close(d);
    return status;
}

static iv_status read_standard_input(iv_buf *out, iv_error *err) {
    enum { CHUNK = 1 << 20 };
    for (;;) {
        if (out->len > FILE_BYTES_MAX)
            return iv_fail(err, IV_LIMIT, "standard input: at most %zu bytes are read", FILE_BYTES_MAX);
        if (!iv_buf_reserve(out, CHUNK)) return iv_fail(err, IV_NO_MEMORY, "standard input: no memory");
        ssize_t got = read(STDIN_FILENO, out->data + out->len, CHUNK);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return iv_fail(err, IV_IO, "standard input: read failed: %s", strerror(errno));
        if (got == 0) return IV_OK;
        out->len += (size_t)got;
    }
}

iv_status iv_train_data_open(const iv_train_data_options *options, const iv_text_model *text, iv_train_data **out,
                             iv_error *err) {
    iv_train_data_options o = *options;
    iv_buf file = {0};
    bool input = strcmp(o.path, "-") == 0;
    IV_TRY(check_options(&o, text, err));
    iv_status status = input ? read_standard_input(&file, err) : iv_file_read_any(o.path, FILE_BYTES_MAX, &file, err);
    if (input) o.path = "standard input";
    if (status == IV_OK) return build(&o, text, &file, out, err);
    iv_buf_free(&file);
    return status;
}

iv_status iv_train_data_parse(const iv_train_data_options *options, const iv_text_model *text, const void *bytes,
                              size_t n, iv_train_data **out, iv_error *err) {
    iv_buf file = {0};
    IV_TRY(check_options(options, text, err));
    if (!iv_buf_append(&file, bytes, n)) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", options->path);
    return build(options, text, &file, out, err);
}

void iv_train_data_close(iv_train_data *d) {
    if (!d) return;
    iv_buf_free(&d->file);
    iv_ids_free(&d->ids);
    iv_buf_free(&d->mask);
    iv_buf_free(&d->answers);
    iv_buf_free(&d->records);
    free(d);
}

/* ---- reading ---- */

size_t iv_train_data_count(const iv_train_data *d) { return d->report.examples; }

iv_train_example iv_train_data_example(const iv_train_data *d, size_t i) {
    record r;
    IV_ASSERT(i < d->report.examples);
    memcpy(&r, d->records.data + i * sizeof r, sizeof r);
    return (iv_train_example){.ids = d->ids.data + r.at,
                              .mask = (const float *)(const void *)d->mask.data + r.at,
                              .count = r.count,
                              .prompt_count = r.prompt_count,
                              .answer = r.answer == SIZE_MAX ? NULL : d->answers.data + r.answer,
                              .answer_bytes = r.answer_bytes,
                              .line = d->file.data + r.line,
                              .line_bytes = r.line_bytes,
                              .line_number = r.line_number};
}

iv_train_data_report iv_train_data_counts(const iv_train_data *d) { return d->report; }
void iv_train_data_digest(const iv_train_data *d, uint8_t out[32]) { memcpy(out, d->digest, sizeof d->digest); }
