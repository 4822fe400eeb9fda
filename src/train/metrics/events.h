/* events.h: TensorBoard event files with scalars.
 *
 * A file is a sequence of TFRecords (u64 length, u32 masked CRC-32C of it, the bytes, u32 masked CRC-32C of them; all
 * little-endian), each an Event of tensorflow/core/util/event.proto. A resumed run writes another file in the same
 * folder, which begins with a session start: TensorBoard then drops what older files have from that step on. */
#ifndef IV_TRAIN_METRICS_EVENTS_H
#define IV_TRAIN_METRICS_EVENTS_H

#include "train/metrics/metrics.h"

typedef struct iv_train_events iv_train_events;

/* Creates DIR/events.out.tfevents.SECONDS.HOST.PID.N for a run whose next step is `next`; DIR exists. seconds: the time
 * of day, since 1970. The caller closes *out. */
iv_status iv_train_events_open(const char *dir, uint64_t next, double seconds, iv_train_events **out, iv_error *err);
/* Writes every number of the step, unbuffered; texts are left out. */
iv_status iv_train_events_add(iv_train_events *e, const iv_train_metrics *m, double seconds, iv_error *err);
iv_status iv_train_events_close(iv_train_events *e, iv_error *err); /* NULL is allowed; frees e in any case */

uint32_t iv_train_crc32c(const void *bytes, size_t n); /* Castagnoli's polynomial (RFC 3720, B.4) */

#endif
