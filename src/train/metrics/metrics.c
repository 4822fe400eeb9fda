/* metrics.c: collecting metrics; writing, and cutting back, the log. Owns the log's file descriptor. */
#include "train/metrics/metrics.h"
#include "base/file.h"
#include "base/json_out.h"
#include "format/json.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_BYTES_MAX ((size_t)1 << 34) /* 16 GiB */

/* ---- one step ---- */

void iv_train_metrics_begin(iv_train_metrics *m, uint64_t step) { m->step = step, m->count = 0; }

static const iv_train_metric *find(const iv_train_metrics *m, const char *name) {
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->at[i].name, name) == 0) return &m->at[i];
    return NULL;
}

static iv_train_metric *add(iv_train_metrics *m, const char *name) {
    size_t n = strlen(name);
    const iv_train_metric *same = find(m, name);
    if (same) return &m->at[same - m->at];
    IV_ASSERT(m->count < IV_TRAIN_METRICS_MAX && n > 0 && n < IV_TRAIN_METRIC_NAME_BYTES && strcmp(name, "step") != 0);
    for (size_t i = 0; i < n; i++) IV_ASSERT(isalnum((unsigned char)name[i]) || name[i] == '_');
    memcpy(m->at[m->count].name, name, n + 1);
    return &m->at[m->count++];
}

void iv_train_metrics_set(iv_train_metrics *m, const char *name, double value) {
    iv_train_metric *metric = add(m, name);
    metric->value = value, metric->text[0] = 0;
}

void iv_train_metrics_set_text(iv_train_metrics *m, const char *name, const char *text) {
    iv_train_metric *metric = add(m, name);
    size_t n = strlen(text);
    IV_ASSERT(n > 0 && n < IV_TRAIN_METRIC_TEXT_BYTES);
    memcpy(metric->text, text, n + 1);
}

bool iv_train_metrics_get(const iv_train_metrics *m, const char *name, double *value) {
    const iv_train_metric *metric = find(m, name);
    if (!metric || metric->text[0]) return false;
    *value = metric->value;
    return true;
}

bool iv_train_metrics_line(const iv_train_metrics *m, iv_buf *out) {
    iv_json_out o = {.buf = out};
    iv_out_open(&o, '{');
    iv_out_kv_uint(&o, "step", m->step);
    for (size_t i = 0; i < m->count; i++)
        if (m->at[i].text[0])
            iv_out_kv_text(&o, m->at[i].name, m->at[i].text);
        else
            iv_out_kv_double(&o, m->at[i].name, m->at[i].value);
    iv_out_close(&o, '}');
    return !o.failed && iv_buf_putc(out, '\n');
}

/* ---- the log ---- */

struct iv_train_log {
    char *path;
    int fd;
    off_t end; /* after the last whole line */
    iv_buf line;
};

iv_status iv_train_log_step_of(const char *name, const char *line, size_t n, uint64_t *step, iv_error *err) {
    json_t *root;
    char shown[IV_JSON_SHOWN_BYTES];
    IV_TRY(iv_json_parse(name, line, n, &root, err));
    const json_t *value = json_object_get(root, "step");
    iv_status status = IV_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        status = iv_fail(err, IV_FORMAT, "%s: step: wanted an integer of at least 0, as in a log of training, found %s",
                         name, iv_json_shown(value, shown));
    else
        *step = (uint64_t)json_integer_value(value);
    json_decref(root);
    return status;
}

/* Copies the lines of steps below `next`. */
static iv_status keep_lines(const char *path, const iv_buf *file, uint64_t next, iv_buf *kept, iv_error *err) {
    size_t number = 0;
    for (size_t at = 0, end; at < file->len; at = end + 1) {
        const char *newline = memchr(file->data + at, '\n', file->len - at);
        char name[400];
        uint64_t step;
        if (!newline) return IV_OK; /* not written to its end */
        end = (size_t)(newline - file->data);
        snprintf(name, sizeof name, "%.300s:%zu", path, ++number);
        IV_TRY(iv_train_log_step_of(name, file->data + at, end - at, &step, err));
        if (step < next && !iv_buf_append(kept, file->data + at, end + 1 - at))
            return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    }
    return IV_OK;
}

static iv_status cut_back(const char *path, uint64_t next, iv_error *err) {
    iv_buf file = {0}, kept = {0};
    iv_status status = iv_file_read(path, LOG_BYTES_MAX, &file, err);
    if (status == IV_OK) status = keep_lines(path, &file, next, &kept, err);
    if (status == IV_OK && kept.len < file.len) status = iv_file_write(path, kept.data ? kept.data : "", kept.len, err);
    iv_buf_free(&file), iv_buf_free(&kept);
    return status;
}

static iv_status open_end(iv_train_log *log, iv_error *err) {
    struct stat st;
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->fd < 0 || fstat(log->fd, &st) != 0)
        return iv_fail(err, IV_IO, "%s: cannot write: %s", log->path, strerror(errno));
    log->end = st.st_size;
    return IV_OK;
}

iv_status iv_train_log_open(const char *path, uint64_t next, iv_train_log **out, iv_error *err) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) IV_TRY(cut_back(path, next, err)); /* not /dev/null or a pipe */
    iv_train_log *log = calloc(1, sizeof *log);
    if (log) log->fd = -1, log->path = strdup(path);
    iv_status status =
        log && log->path ? open_end(log, err) : iv_fail(err, IV_NO_MEMORY, "%s: no memory for a log", path);
    if (status == IV_OK) {
        *out = log;
    } else {
        iv_error ignored;
        iv_train_log_close(log, &ignored);
    }
    return status;
}

iv_status iv_train_log_add(iv_train_log *log, const iv_train_metrics *m, iv_error *err) {
    iv_buf_clear(&log->line);
    if (!iv_train_metrics_line(m, &log->line)) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for a line", log->path);
    for (size_t done = 0; done < log->line.len;) {
        ssize_t put = write(log->fd, log->line.data + done, log->line.len - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            int reason = errno;
            int cut = ftruncate(log->fd, log->end); /* fails on a pipe, where there is nothing to cut */
            (void)cut;
            return iv_fail(err, IV_IO, "%s: write failed: %s", log->path, strerror(reason));
        }
        done += (size_t)put;
    }
    log->end += (off_t)log->line.len;
    return IV_OK;
}

iv_status iv_train_log_close(iv_train_log *log, iv_error *err) {
    iv_status status = IV_OK;
    if (!log) return IV_OK;
    if (log->fd >= 0 && close(log->fd) != 0)
        status = iv_fail(err, IV_IO, "%s: write failed: %s", log->path, strerror(errno));
    iv_buf_free(&log->line);
    free(log->path);
    free(log);
    return status;
}
