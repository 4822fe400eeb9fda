/* progress.h: the progress of a run for people: "step 12/300  loss 1.25  kl 0  8.1k tokens/s  2:05 left".
 *
 * On a terminal one line that is rewritten; elsewhere (a file, a pipe) a line every few seconds. */
#ifndef IV_TRAIN_METRICS_PROGRESS_H
#define IV_TRAIN_METRICS_PROGRESS_H

#include "train/metrics/metrics.h"

#include <stdio.h>

enum {
    IV_TRAIN_PROGRESS_SECONDS = 5, /* between two lines that are not on a terminal */
    IV_TRAIN_IDLE_STEPS = 10       /* in a row without an advantage, from which on the line says so */
};

typedef struct iv_train_progress {
    FILE *out;
    bool terminal;
    size_t columns; /* of the terminal; 0: unknown */
    uint64_t total; /* the last step */
    uint64_t done;  /* steps since the start */
    double start, shown;
    bool any, open; /* a line was shown; the cursor is behind it */
} iv_train_progress;

/* A run up to step `total`; now: seconds of any clock that runs forward (iv_now). Whether out is a terminal, and how
 * wide, is asked here. out NULL: nothing is shown. */
void iv_train_progress_begin(iv_train_progress *p, FILE *out, uint64_t total, double now);
/* After a step. Shows reward if it is a metric, otherwise loss; the same of held-out examples, kl and
 * tokens_per_second if they are; and steps_without_advantage. */
void iv_train_progress_step(iv_train_progress *p, const iv_train_metrics *m, double now);
/* Before other output, and at the end: the next output starts on a line of its own. */
void iv_train_progress_break(iv_train_progress *p);

/* The line without its end, appended to out; seconds_left below 0: unknown. False: no memory. */
bool iv_train_progress_line(const iv_train_metrics *m, uint64_t total, double seconds_left, iv_buf *out);

#endif
