/* curves_log.h: a log of metrics as columns. Internal to curves*.c. */
#ifndef IV_TRAIN_METRICS_CURVES_LOG_H
#define IV_TRAIN_METRICS_CURVES_LOG_H

#include "train/metrics/curves.h"
#include "train/metrics/metrics.h"
#include "base/buf.h"

typedef struct iv_train_point {
    double step, value; /* value: NaN for null */
} iv_train_point;

/* A metric: points, or the last text. */
typedef struct iv_train_column {
    char name[IV_TRAIN_METRIC_NAME_BYTES]; /* cut if longer */
    char text[IV_TRAIN_METRIC_TEXT_BYTES]; /* cut if longer; "": numbers only */
    iv_buf points;                         /* iv_train_point */
} iv_train_column;

typedef struct iv_train_columns {
    size_t count, steps;
    uint64_t first, last; /* steps */
    iv_train_column at[IV_TRAIN_CURVES_METRICS_MAX];
} iv_train_columns;

/* Columns in the order in which they first appear, evaluations next to what they evaluate; *c is zero before. The
 * caller frees it, on failure too. */
iv_status iv_train_columns_read(const char *path, iv_train_columns *c, iv_error *err);
void iv_train_columns_free(iv_train_columns *c);

static inline size_t iv_train_column_count(const iv_train_column *c) { return c->points.len / sizeof(iv_train_point); }
static inline const iv_train_point *iv_train_column_points(const iv_train_column *c) {
    return (const iv_train_point *)(const void *)c->points.data;
}

#endif
