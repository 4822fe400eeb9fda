/* curves.h: the log of a run (metrics.h) as pictures: one chart a metric over the steps.
 *
 * The page and the picture need no script and no other file, and follow the reader's light or dark preference. A point
 * of the chart tells its steps and its value when the pointer is on it. With more than IV_TRAIN_CURVES_POINTS steps a
 * point is the mean of several, with a line from their least to their greatest value. A metric whose values are
 * positive and span more than a factor of 100 has a logarithmic axis. Values that are not finite (null in the log)
 * leave a gap and are counted in the chart's title. */
#ifndef IV_TRAIN_METRICS_CURVES_H
#define IV_TRAIN_METRICS_CURVES_H

#include "base/status.h"

enum { IV_TRAIN_CURVES_POINTS = 160, IV_TRAIN_CURVES_METRICS_MAX = 256 };

/* Reads the log and writes an HTML page and an SVG file, each unless its path is NULL; files are replaced whole. title:
 * UTF-8 for people, such as the run's name. A last line without its end is left out; another line that is no step of a
 * log, or a log without steps, is IV_FORMAT. */
iv_status iv_train_curves_write(const char *log, const char *title, const char *html, const char *svg, iv_error *err);

#endif
