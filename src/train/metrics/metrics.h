/* metrics.h: the numbers of a step, and the log of a run: a file of JSON lines, one a step.
 *
 *   {"step":12,"loss":1.25,"learning_rate":0.0003,"weights":"5f0c..."}
 *
 * Nothing in a log decides a weight. */
#ifndef IV_TRAIN_METRICS_METRICS_H
#define IV_TRAIN_METRICS_METRICS_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IV_TRAIN_METRICS_MAX = 64, IV_TRAIN_METRIC_NAME_BYTES = 48, IV_TRAIN_METRIC_TEXT_BYTES = 80 };

/* A number, or a text such as a hash. */
typedef struct iv_train_metric {
    char name[IV_TRAIN_METRIC_NAME_BYTES];
    char text[IV_TRAIN_METRIC_TEXT_BYTES]; /* "": a number */
    double value;
} iv_train_metric;

typedef struct iv_train_metrics {
    uint64_t step; /* from 1: the step that these numbers describe */
    size_t count;
    iv_train_metric at[IV_TRAIN_METRICS_MAX];
} iv_train_metrics;

/* Empties m for a step. */
void iv_train_metrics_begin(iv_train_metrics *m, uint64_t step);
/* Adds a metric, or replaces the one of that name. name: letters, digits and _, not "step". Programmer errors (too
 * many, too long, another character) are assertions. */
void iv_train_metrics_set(iv_train_metrics *m, const char *name, double value);
void iv_train_metrics_set_text(iv_train_metrics *m, const char *name, const char *text);
/* False, and *value is unchanged, if there is no number of that name. */
bool iv_train_metrics_get(const iv_train_metrics *m, const char *name, double *value);

/* Appends the JSON line with its newline. Numbers read back as the same doubles; NaN and infinities are null. False: no
 * memory. */
bool iv_train_metrics_line(const iv_train_metrics *m, iv_buf *out);

/* ---- the log ---- */

typedef struct iv_train_log iv_train_log;

/* Opens the log for a run whose next step is `next` (1 for a new one): lines of steps from `next` on are removed, as is
 * a line that was not written to its end; the file is created if there is none. A file that is not such a log is
 * refused (IV_FORMAT, file:line) and stays as it is. The caller closes *out. */
iv_status iv_train_log_open(const char *path, uint64_t next, iv_train_log **out, iv_error *err);
/* Writes the line of a step in one call, unbuffered. On failure (a full disk) the file ends with the line before. */
iv_status iv_train_log_add(iv_train_log *log, const iv_train_metrics *m, iv_error *err);
iv_status iv_train_log_close(iv_train_log *log, iv_error *err); /* NULL is allowed; frees log in any case */

/* The step of a line of n bytes without its newline, for readers of logs; name heads errors. */
iv_status iv_train_log_step_of(const char *name, const char *line, size_t n, uint64_t *step, iv_error *err);

#endif
