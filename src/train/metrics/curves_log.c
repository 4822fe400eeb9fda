/* curves_log.c: reading a log. */
#include "train/metrics/curves_log.h"
#include "base/file.h"
#include "format/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LOG_BYTES_MAX ((size_t)1 << 34) /* 16 GiB */

static iv_train_column *column_of(iv_train_columns *c, const char *name) {
    char cut[IV_TRAIN_METRIC_NAME_BYTES];
    snprintf(cut, sizeof cut, "%s", name);
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->at[i].name, cut) == 0) return &c->at[i];
    if (c->count == IV_TRAIN_CURVES_METRICS_MAX) return NULL;
    memcpy(c->at[c->count].name, cut, sizeof cut);
    return &c->at[c->count++];
}

static iv_status add_line(iv_train_columns *c, const char *where, const json_t *line, uint64_t step, iv_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)line, key, value) {
        if (strcmp(key, "step") == 0 || !(json_is_number(value) || json_is_null(value) || json_is_string(value)))
            continue;
        iv_train_column *column = column_of(c, key);
        if (!column)
            return iv_fail(err, IV_LIMIT, "%s: wanted at most %d metrics, found more", where,
                           IV_TRAIN_CURVES_METRICS_MAX);
        if (json_is_string(value)) {
            snprintf(column->text, sizeof column->text, "%s", json_string_value(value));
            continue;
        }
        const iv_train_point p = {(double)step, json_is_null(value) ? (double)NAN : json_number_value(value)};
        if (!iv_buf_append(&column->points, &p, sizeof p)) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    }
    if (c->steps++ == 0) c->first = step;
    c->last = step;
    return IV_OK;
}

static iv_status read_line(iv_train_columns *c, const char *where, const char *line, size_t n, iv_error *err) {
    json_t *root;
    uint64_t step = 0;
    IV_TRY(iv_train_log_step_of(where, line, n, &step, err));
    IV_TRY(iv_json_parse(where, line, n, &root, err));
    iv_status status = add_line(c, where, root, step, err);
    json_decref(root);
    return status;
}

static iv_status read_lines(iv_train_columns *c, const char *path, const iv_buf *file, iv_error *err) {
    size_t number = 0;
    for (size_t at = 0, end; at < file->len; at = end + 1) {
        const char *newline = memchr(file->data + at, '\n', file->len - at);
        char where[400];
        if (!newline) break; /* not written to its end */
        end = (size_t)(newline - file->data);
        snprintf(where, sizeof where, "%.300s:%zu", path, ++number);
        IV_TRY(read_line(c, where, file->data + at, end - at, err));
    }
    if (c->steps) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: wanted at least one step, found an empty log", path);
}

/* "eval_loss" stands right after "loss". */
static void pair_evaluations(iv_train_columns *c) {
    for (size_t i = 0; i < c->count; i++)
        for (size_t j = i + 2; j < c->count; j++) {
            if (strncmp(c->at[j].name, "eval_", 5) != 0 || strcmp(c->at[j].name + 5, c->at[i].name) != 0) continue;
            iv_train_column moved = c->at[j];
            memmove(&c->at[i + 2], &c->at[i + 1], (j - i - 1) * sizeof moved);
            c->at[i + 1] = moved;
        }
}

iv_status iv_train_columns_read(const char *path, iv_train_columns *c, iv_error *err) {
    iv_buf file = {0};
    iv_status status = iv_file_read(path, LOG_BYTES_MAX, &file, err);
    if (status == IV_OK) status = read_lines(c, path, &file, err);
    pair_evaluations(c);
    iv_buf_free(&file);
    return status;
}

void iv_train_columns_free(iv_train_columns *c) {
    for (size_t i = 0; i < c->count; i++) iv_buf_free(&c->at[i].points);
    *c = (iv_train_columns){0};
}
